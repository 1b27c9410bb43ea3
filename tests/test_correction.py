"""What words add, corrected by what the model makes of parts of the text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from whymatch import Explainer, Explanation, correction
from whymatch.correction import OF_TEMPLATE, OF_WORDS, PARTS, _ask, directions, find_moves
from whymatch.encoders.adjusted import adjust
from whymatch.method import project
from whymatch.reading.inputs import Correction, Request
from whymatch.words import word_spans

TEXT = "Two unbelievable dogs run across the snowy field towards a child."
OTHER = "Nobody drank the coffee."


@pytest.fixture(scope="module")
def both(folders):
    """The same explainer, with and without corrections."""
    return [Explainer(folders("bert"), layer=1, path="secant", divisions=count) for count in (4, 0)]


def test_the_sum_stays_what_it_is(both):
    (corrected,), (plain,) = (explainer.decompose([TEXT]) for explainer in both)
    np.testing.assert_allclose(corrected.contributions.sum(0), plain.contributions.sum(0), atol=1e-6)
    assert np.abs(corrected.contributions - plain.contributions).max() > 1e-3
    assert corrected.settings.divisions == 4


def test_an_error_is_not_hidden(folders):
    errors = []
    for count in (0, 4):
        explainer = Explainer(folders("bert"), layer=0, path="straight", steps=1, divisions=count)
        errors.append(explainer.decompose([TEXT])[0].error)
    assert errors[0] > 1e-4
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_it_is_the_smallest_change_that_brings_the_parts_near(both):
    """The same changes, found by minimizing what they should minimize, over all unknowns at once."""
    explainer, plain = both
    (source,) = explainer._method.read([Request(TEXT)])
    question = _ask(source, 4)
    assert question.kept.sum(0).tolist() == [4] * len(word_spans(TEXT))  # every word is in one part of each division
    rows = plain.decompose([TEXT])[0].contributions.astype(np.float64)
    belongs = question.belongs.astype(float)
    words, template = belongs @ rows, rows[belongs.sum(0) == 0].sum(0)
    vectors = explainer.embed(question.texts).astype(np.float64)
    asked = np.hstack([question.kept.astype(float), np.ones((len(vectors), 1))])
    missing = vectors - asked @ np.vstack([words, template])
    count = len(words)
    lengths = np.linalg.norm(words @ directions(words.shape[1]).T, axis=1)
    penalty = np.diag([*(count / OF_WORDS * lengths.mean() / lengths), 1 / OF_TEMPLATE])
    ones = np.ones((count + 1, 1))
    system = np.block([[asked.T @ asked + penalty, ones], [ones.T, np.zeros((1, 1))]])
    change = np.linalg.solve(system, np.vstack([asked.T @ missing, np.zeros((1, rows.shape[1]))]))[:-1]
    now = explainer.decompose([TEXT])[0].contributions
    np.testing.assert_allclose(belongs @ now - words, change[:-1], atol=1e-5)
    np.testing.assert_allclose(now[belongs.sum(0) == 0].sum(0) - template, change[-1], atol=1e-5)
    # The tokens of a word share its change, and what is told about the parts is then nearer to the truth.
    after = asked @ np.vstack([belongs @ now, now[belongs.sum(0) == 0].sum(0)])
    assert np.linalg.norm(after - vectors) < np.linalg.norm(missing)


def test_a_word_that_adds_little_is_moved_little():
    """The model gives each of three words by itself, and misses two of them by as much."""
    rows = np.array([[1.0, 0.0], [0.1, 0.0], [1.0, 0.0]])
    missing = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, -2.0]])
    alone = np.eye(3, dtype=bool)
    keep, add = find_moves(Correction(alone, alone, rows + missing, np.zeros(3)), rows @ directions(2).T)
    moved = keep @ rows + add - rows
    np.testing.assert_allclose(moved.sum(0), 0, atol=1e-12)
    assert moved[0, 1] > 5 * moved[1, 1] > 0
    # Where nothing tells them apart they are moved alike.
    keep, add = find_moves(Correction(alone, alone, missing, np.zeros(3)), np.zeros((3, 1)))
    assert add[0, 1] == pytest.approx(add[1, 1])


@pytest.mark.parametrize("special", ["keep", "base"])
@pytest.mark.parametrize("path", ["secant", "relay", "straight"])
def test_a_long_text_is_projected_with_its_correction(load, path, special):
    """Lengths of contributions, which decide how far they are moved, are told by the same products either way."""
    explainer = Explainer(load("bert"), layer=1, path=path, special=special, divisions=4)
    long = " ".join([TEXT] * 4)
    why = explainer.explain(OTHER, long)
    assert why.b.mode == "pairwise"
    expected = explainer.pair(*explainer.decompose([OTHER, long]))
    np.testing.assert_allclose(why.matrix, expected.matrix, atol=2e-5 if path == "secant" else 2e-3)


def test_some_texts_of_a_batch_are_corrected_and_some_are_not(load):
    """A single word is not divided, and may have as many tokens as two."""
    explainer = Explainer(load("bert"), layer=1, path="secant", divisions=4)
    texts = ["unbelievableness", "zq dog child unbelievable"]
    query, *documents = explainer.decompose([OTHER, *texts])
    assert len({len(each.tokens) for each in documents}) == 1
    sources = explainer._method.ask(explainer._method.read([Request(text) for text in texts]))
    assert [source.correction is not None for source in sources] == [False, True]
    integral = explainer._method.follow(sources, explainer._method.cut(sources[0].input))
    for projection, document in zip(project(integral, sources, query), documents, strict=True):
        expected = query.contributions @ document.contributions.T
        np.testing.assert_allclose(projection.matrix, expected, atol=1e-6)


@pytest.mark.parametrize("path", ["secant", "relay", "straight"])
def test_directions_that_tell_lengths_decide_nothing_else(load, path):
    """Neither beside a few rows, nor beside a text that contributes nothing."""
    explainer = Explainer(load("bert"), layer=1, path=path, divisions=4)
    query, _ = explainer.decompose([OTHER, TEXT])
    corrected = explainer._method.ask(explainer._method.read([Request(TEXT)]))
    plain = [replace(source, correction=None) for source in corrected]
    integral = explainer._method.follow(corrected, explainer._method.cut(corrected[0].input))
    keep = np.abs(find_moves(corrected[0].correction, np.ones((len(corrected[0].side), 1)))[0])
    for rows in (query.contributions, query.contributions.sum(0, keepdims=True), 0 * query.contributions):
        other = replace(query, contributions=rows)
        (with_moves,), (without,) = (project(integral, sources, other) for sources in (corrected, plain))
        assert with_moves.side.nodes == without.side.nodes
        assert with_moves.side.errors.max() <= 2 * keep.sum(1).max() * without.side.errors.max() + 1e-12


@pytest.mark.parametrize("path", ["secant", "relay", "straight"])
def test_an_empty_text_of_an_adjusted_model_can_be_asked_about(load, path):
    """It is its own reference, and its embedding is zero."""
    why = Explainer(adjust(load("bert")), layer=1, path=path, divisions=4).explain("", TEXT)
    assert why.score == 0
    assert np.abs(why.matrix).max() == 0


def test_words_are_sums_of_tokens(both):
    explainer, _ = both
    tokens = explainer.explain(TEXT, OTHER).words()
    words = Explainer(explainer.model, layer=1, path="secant", divisions=4, groups="words").explain(TEXT, OTHER)
    np.testing.assert_allclose(words.matrix, tokens.matrix, atol=1e-5)


def test_sentences_are_divided_where_they_are_explained(both):
    explainer, _ = both
    (source,) = explainer._method.read([Request(f"{TEXT} {OTHER}", groups="sentences")])
    assert sorted(_ask(source, 4).texts) == sorted([TEXT, OTHER])


def test_features_sum_to_the_entry(both):
    explainer, _ = both
    entry = explainer.explain(TEXT, OTHER).matrix[3, 2]
    assert explainer.features(TEXT, OTHER, 3, 2).sum() == pytest.approx(entry, abs=1e-5)


def test_a_prompt_is_part_of_what_is_asked(load):
    model = load("bert")
    explainer = Explainer(model, layer=1, path="secant", divisions=2)
    asked = []
    read = explainer._method.encoder.read
    explainer._method.encoder.read = lambda texts, options: asked.append((texts, options)) or read(texts, options)
    explainer.decompose([TEXT], prompt="query: ")
    texts, options = asked[-1]
    assert options.prompt == "query: "
    assert len(texts) == 2 * PARTS
    assert all(word.strip(".") in TEXT for text in texts for word in text.split())


def test_what_is_not_read_is_not_asked_about(load):
    model = load("bert")
    model.max_seq_length = 8
    explainer = Explainer(model, layer=1, path="secant", divisions=4)
    (source,) = explainer._method.read([Request(TEXT)])
    read = max(high for _, high in source.side.offsets)
    assert read < len(TEXT)
    assert not any(text.endswith("child.") for text in _ask(source, 4).texts)
    (decomposition,) = explainer.decompose([TEXT])
    assert decomposition.error < 1e-5


@pytest.mark.parametrize("text", ["", "coffee", "?", "   "])
def test_texts_that_cannot_be_divided_stay_as_they_are(both, text):
    (corrected,), (plain,) = (explainer.decompose([text]) for explainer in both)
    np.testing.assert_array_equal(corrected.contributions, plain.contributions)


@pytest.mark.parametrize("name", ["fnet", "convbert"])
def test_a_part_is_embedded_as_it_would_be_alone(folders, name):
    """These models do not ignore padding."""
    explainer = Explainer(folders(name), layer=1, divisions=4)
    (source,) = explainer._method.ask(explainer._method.read([Request(TEXT)]))
    question = _ask(source, 4)
    alone = np.stack([explainer.embed([text])[0] for text in question.texts]).astype(np.float64)
    np.testing.assert_allclose(source.correction.answers, alone, atol=1e-5)


def test_what_lies_far_behind_what_is_read_takes_no_time(load, monkeypatch):
    model = load("bert")
    model.max_seq_length = 8
    searched = []
    find = correction.find_spans
    monkeypatch.setattr(correction, "find_spans", lambda text, kind: searched.append(len(text)) or find(text, kind))
    Explainer(model, layer=1, path="secant", divisions=4).decompose([" ".join([TEXT] * 50)])
    assert 0 < max(searched) < len(TEXT)


def test_paths_are_followed_without_asking(both, monkeypatch):
    explainer, _ = both
    monkeypatch.setattr("whymatch.method.with_corrections", lambda *_: pytest.fail("the model was asked about parts"))
    (values,) = explainer.path_values([TEXT], [0.0, 1.0])
    assert np.isfinite(values).all()


def test_it_is_the_same_every_time_and_in_every_company(both):
    explainer, _ = both
    alone = explainer.decompose([TEXT])[0].contributions
    np.testing.assert_allclose(explainer.decompose([OTHER, TEXT, "A child."])[1].contributions, alone, atol=1e-6)


def test_fine_corrects_and_fast_does_not(folders):
    explainer = Explainer(folders("bert"))
    assert explainer.settings.divisions == 4
    assert explainer.at_detail("fast").settings.divisions == 0
    assert explainer.at_detail("fast").at_detail("fine").settings.divisions == 4
    assert Explainer(folders("bert"), divisions=2).at_detail("fast").settings.divisions == 2
    assert Explainer(folders("bert"), divisions=0).settings.divisions == 0
    assert Explainer(folders("bert"), path="straight", layer=1).settings.divisions == 0
    assert Explainer(folders("bert"), fold_reference=False, layer=1).settings.divisions == 0
    for path in ("relay", "relay-2"):  # dearer, so that more questions cost little beside it
        dear = Explainer(folders("bert"), path=path)
        assert dear.settings.divisions == dear.at_detail("fast").at_detail("fine").settings.divisions == 8
    given = Explainer(folders("bert"), layer=1)
    assert given.settings.divisions == 4
    assert given.at_detail("fast").settings == replace(given.settings, divisions=0)
    assert given.at_detail("fast").at_detail("fine").settings == given.settings
    assert given.settings.divisions == 4  # and stays as it was
    again = Explainer.with_settings(Explainer(folders("bert"), divisions=3).settings)
    assert again.settings.divisions == 3


def test_what_cannot_be_asked_for(folders, both):
    for wrong in (-1, 1.5, "4", True, 1001):
        with pytest.raises(ValueError, match=f"divisions={wrong!r}"):
            Explainer(folders("bert"), divisions=wrong)
    with pytest.raises(ValueError, match="fold_reference"):
        Explainer(folders("bert"), divisions=4, fold_reference=False)
    with pytest.raises(ValueError, match="divisions=4 has no meaning"):
        Explainer(lambda texts: np.ones((len(texts), 3)), divisions=4)
    data = both[0].explain(TEXT, OTHER).to_dict()
    with pytest.raises(ValueError, match="its setting divisions is -3"):
        Explanation.from_dict(data | {"settings": data["settings"] | {"divisions": -3}})
    with pytest.raises(ValueError, match="divisions is 4 for the first and 0 for the second"):
        Explainer.pair(both[0].decompose([TEXT])[0], both[1].decompose([TEXT])[0])

"""One side of a score as spans of its text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import zoo

from whymatch import Explainer, Highlight
from whymatch.results.explanation import Explanation

QUERY = "bad coffee in the kitchen"
DOCUMENT = "The coffee is not good. Two dogs run across the snowy field! A man is slicing bread, and nobody drank it."


@pytest.fixture(scope="module")
def explainer(folders):
    return Explainer(folders("bert"), layer=1, tolerance=1e-5)


@pytest.fixture(scope="module")
def why(explainer):
    return explainer.explain(QUERY, DOCUMENT)


@pytest.mark.parametrize("unit", ["words", "sentences", "tokens"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_spans_are_of_the_text_in_order_and_sum_to_the_score(why, side, unit):
    highlights = why.highlights(side, unit)
    text = QUERY if side == "a" else DOCUMENT
    assert sum(span.score for span in highlights) == pytest.approx(why.score, abs=2e-5)
    assert highlights.error <= 2e-5
    inside = highlights.in_text
    assert [text[span.start : span.end] for span in inside] == [span.text for span in inside]
    assert all(x.end <= y.start for x, y in pairwise(inside))
    assert highlights[-1][:2] == (0, 0)  # [CLS] and [SEP]
    assert highlights[-1].text == "[CLS] [SEP]"
    assert highlights.beside == highlights[-1].score


def test_words_and_sentences_are_sums_of_tokens(why):
    tokens, words, sentences = (why.highlights(unit=unit).in_text for unit in ("tokens", "words", "sentences"))
    assert [span.text for span in sentences] == [
        "The coffee is not good.",
        "Two dogs run across the snowy field!",
        "A man is slicing bread, and nobody drank it.",
    ]
    for larger, smaller in ((words, tokens), (sentences, words)):
        for span in larger:
            parts = [part.score for part in smaller if span.start <= part.start and part.end <= span.end]
            assert span.score == pytest.approx(sum(parts), abs=1e-9)
    assert words[1] == Highlight(4, 10, pytest.approx(why.words().matrix.sum(0)[2]), "coffee")


def test_the_strongest(why):
    best = why.highlights(top=2)
    every = why.highlights()
    assert sorted(map(abs, (span.score for span in best))) == sorted(map(abs, (s.score for s in every.strongest(2))))
    assert [span.start for span in best] == sorted(span.start for span in best)
    assert best.error == pytest.approx(every.error, abs=1e-9)
    assert best.left_out == pytest.approx(sum(s.score for s in every) - sum(s.score for s in best), abs=1e-9)
    assert every.to_list()[0] == {"start": 0, "end": 3, "score": every[0].score}
    assert set(every.to_pandas().columns) == {"start", "end", "score", "text"}


@pytest.mark.parametrize("path", ["straight", "relay", "secant"])
@pytest.mark.parametrize("options", [{}, {"similarity": "dot"}, {"fold_reference": False}])
def test_one_pull_back_gives_the_matrixs_column_sums(folders, path, options):
    explainer = Explainer(folders("dot"), layer=1, path=path, tolerance=1e-5, **options)
    why = explainer.explain(QUERY, DOCUMENT)
    highlights = explainer.highlight(QUERY, DOCUMENT, "tokens")
    # The query's own decomposition has an error, which column sums have and a pull-back of its embedding has not.
    bound = 1e-4 * why.norms
    assert highlights.score == pytest.approx(why.score, abs=bound)
    assert highlights.error <= bound
    expected = why.highlights(unit="tokens")
    assert [span[:2] for span in highlights] == [span[:2] for span in expected]
    np.testing.assert_allclose([s.score for s in highlights], [s.score for s in expected], atol=bound)


def test_many_documents_in_order(explainer):
    documents = [DOCUMENT, {"id": 7, "text": "bad coffee"}, DOCUMENT, ""]
    every = list(explainer.highlight_many(QUERY, documents))
    assert [each.text for each in every] == [DOCUMENT, "bad coffee", DOCUMENT, ""]
    for highlights, text in zip(every, (DOCUMENT, "bad coffee", DOCUMENT, ""), strict=True):
        alone = explainer.highlight(QUERY, text)
        assert [span.score for span in highlights] == pytest.approx([span.score for span in alone], abs=1e-6)
        assert highlights.error <= 1e-4


def test_more_than_usual(explainer):
    documents = ["Two dogs run across the field.", "Stocks fell on Monday.", "A man is slicing bread.", DOCUMENT]
    background = explainer.background(documents)
    model = explainer.model
    vectors = model.encode([QUERY, DOCUMENT, *documents])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = float(vectors[0] @ vectors[1] - vectors[2:].mean(0) @ vectors[1])
    highlights = explainer.highlight(QUERY, DOCUMENT, background=background)
    assert highlights.score == pytest.approx(expected, abs=1e-6)
    assert highlights.error <= 1e-4
    usual = [sum(explainer.explain(d, DOCUMENT).highlights()[1].score for d in documents) / len(documents)]
    plain = explainer.highlight(QUERY, DOCUMENT)[1].score
    assert highlights[1].score == pytest.approx(plain - usual[0], abs=1e-4)


def test_prompts_are_read_and_belong_to_no_character(tmp_path):
    explainer = Explainer(str(zoo.prompted(tmp_path)), layer=1, tolerance=1e-5)
    model = explainer.model
    own = float(model.similarity(model.encode_query(QUERY), model.encode_document(DOCUMENT)))
    highlights = explainer.highlight(QUERY, DOCUMENT)
    assert highlights.score == pytest.approx(own, abs=1e-6)
    assert highlights[-1].text == "[CLS] this is [SEP]"
    assert highlights[0].text == "The"


def test_what_was_not_read_is_named(tmp_path):
    explainer = Explainer(str(zoo.build(tmp_path)), layer=-1)
    explainer.model.max_seq_length = 8
    highlights = explainer.highlight(QUERY, DOCUMENT)
    assert highlights.unread
    assert DOCUMENT[: highlights.end] + highlights.unread == DOCUMENT
    assert highlights.in_text[-1].end == highlights.end


@pytest.mark.parametrize("groups", ["sentences", "words", None])
@pytest.mark.parametrize("unit", ["tokens", "words"])
def test_zoom_sums_to_the_sentence(explainer, groups, unit):
    why = explainer.explain(QUERY, DOCUMENT, groups=groups)
    if groups == "words" and unit == "tokens":
        unit = "words"
    sentences = why.highlights(unit="tokens" if groups == "sentences" else "sentences").in_text
    for number, sentence in enumerate(sentences):
        inside = why.zoom(number, unit=unit)
        assert inside.score == pytest.approx(sentence.score, abs=1e-9)
        assert sum(span.score for span in inside) == pytest.approx(sentence.score, abs=1e-6)
        assert all(sentence.start <= span.start and span.end <= sentence.end for span in inside)
        assert list(why.zoom(sentence, unit=unit)) == list(why.zoom((sentence.start, sentence.end), unit=unit))
    assert [span.text for span in why.zoom(1, unit="words")][:2] == ["Two", "dogs"]


def test_zoom_needs_a_model_where_the_tokens_are_not_known(explainer, tmp_path):
    import pickle

    why = explainer.explain(QUERY, DOCUMENT, groups="sentences")
    with pytest.raises(ValueError, match="these are sentences, of which words cannot be made"):
        why.highlights(unit="words")
    with pytest.raises(IndexError, match="sentence 3 is out of range"):
        why.zoom(3)
    with pytest.raises(ValueError, match=r"\(0, 3\) is not the span of one of the 3 sentences"):
        why.zoom((0, 3))
    with pytest.raises(TypeError, match="a sentence is its number or its span"):
        why.zoom("first")
    why.save(tmp_path / "why.json")
    for other in (Explanation.load(tmp_path / "why.json"), pickle.loads(pickle.dumps(why))):
        assert other.highlights(unit="sentences").to_list() == why.highlights(unit="sentences").to_list()
        with pytest.raises(ValueError, match="has no model to look closer with: explain the pair again"):
            other.zoom(0)


def test_bad_input_is_named(why, explainer):
    with pytest.raises(ValueError, match="unit='letters' is not known; choose 'words', 'sentences' or 'tokens'"):
        why.highlights(unit="letters")
    with pytest.raises(ValueError, match="side='c' is not known"):
        why.highlights("c")
    with pytest.raises(ValueError, match="means over words do not sum to the score"):
        why.words("mean").highlights()
    with pytest.raises(ValueError, match="this document has no 'text'"):
        explainer.highlight(QUERY, {"id": 1})
    with pytest.raises(TypeError, match=r"a background takes a list of documents, not \[\]"):
        explainer.background([])

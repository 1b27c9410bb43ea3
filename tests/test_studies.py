"""The paper's studies: by hand on known matrices, and from end to end on a few pairs that were written for it."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zoo

from whymatch import Explainer, studies
from whymatch.corpus.pairs import read_scored_pairs
from whymatch.paths.integrate import RoughPathError
from whymatch.quadrature import RULES
from whymatch.reading.sides import Side
from whymatch.results.explanation import Explanation
from whymatch.studies import (
    accuracy,
    agreement,
    charts,
    cumulative,
    distribution,
    failures,
    lexical,
    negation,
    pos,
    report,
    roles,
    verdicts,
)
from whymatch.studies import experiment as experiment_room
from whymatch.studies.experiment import Experiment
from whymatch.studies.negation import Change
from whymatch.studies.parsers import PARSERS, get_parser, roles_by_order
from whymatch.studies.taggers import CLAWS, TAGGERS, get_tagger, universal, with_auxiliaries
from whymatch.training import adjust, evaluate_sts

PAIRS = Path(__file__).parent / "data/pairs.csv"
CHANGES = [
    Change("The coffee is good.", "The coffee is not good."),
    Change("The coffee is good.", "The coffee is bad."),
    Change("The soup is hot.", "The soup is very warm.", opposite=False),
]


@pytest.fixture(scope="module")
def why(folders):
    return Explainer(folders("bert"), layer=-1).explain("The coffee is not good.", "This is bad coffee.")


def with_matrix(why: Explanation, matrix, score: float | None = None) -> Explanation:
    """An explanation with a matrix of our own, and tokens that are words."""
    matrix = np.array(matrix, float)
    sides = []
    for letter, size in zip("ab", matrix.shape, strict=True):
        words = tuple(f"{letter}{i}" for i in range(size))
        spans = tuple((3 * i, 3 * i + 2) for i in range(size))
        kinds = ("text",) * size
        sides.append(Side(text=" ".join(words), tokens=words, offsets=spans, kinds=kinds, effects=np.zeros(size)))
    score = float(matrix.sum() if score is None else score)
    return replace(why, matrix=matrix, score=score, a=sides[0], b=sides[1])


def test_distribution_of_known_matrices(why):
    first = with_matrix(why, [[0.1, -0.2], [0.3, 9.0]])
    second = with_matrix(why, [[-0.1, 0.05]])
    second = replace(second, b=replace(second.b, kinds=("text", "special")))
    measured = distribution.histogram([first, second])
    assert measured["entries"] == 6
    assert measured["share_negative"] == pytest.approx(2 / 6)
    assert measured["share_negative_without_special_tokens"] == pytest.approx(2 / 5)
    assert measured["root_mean_square"] == pytest.approx(math.sqrt((0.01 + 0.04 + 0.09 + 81 + 0.01 + 0.0025) / 6))
    counts = dict(zip(distribution.EDGES.round(3).tolist(), measured["counts"], strict=False))
    assert sum(measured["counts"]) == 4
    assert measured["share_beyond"] == pytest.approx(2 / 6)  # 0.3 and 9.0
    assert counts[-0.2] == 1


def test_cumulative_shares_of_a_known_matrix(why):
    matrix = np.zeros((10, 10))
    matrix.flat[:4] = [4.0, -2.0, 1.0, -1.0]
    curve = cumulative.curve(with_matrix(why, matrix))  # the score is 2
    assert curve[:6].tolist() == [0.0, 2.0, 1.0, 1.5, 1.0, 1.0]
    assert curve[-1] == 1


def test_where_a_deviation_becomes_small():
    shares = cumulative.SHARES
    up, down = 1 + 0.499 * (1 - shares), 1 - 0.499 * (1 - shares)  # the deviation is almost half of what is left
    measured = cumulative.summary(np.stack([up, down]))
    assert measured["mean"] == pytest.approx([1.0] * 101)
    assert measured["std"][0] == pytest.approx(0.499)
    assert measured["steady_from"] == pytest.approx({"0.05": 0.9, "0.02": 0.96})
    assert measured["top_5_percent"] == pytest.approx({"mean": 1.0, "std": 0.499 * 0.95, "median": 1.0})
    assert cumulative.summary(np.ones((2, 101)))["steady_from"] == {"0.05": 0.0, "0.02": 0.0}
    apart = np.stack([np.full(101, 1.1), np.full(101, 0.9)])
    assert cumulative.summary(apart)["steady_from"] == {"0.05": None, "0.02": None}


def test_relations_of_known_words(why):
    tags = {"a0": "NOUN", "a1": "VERB", "b0": "NOUN", "b1": "DET"}

    def tagger(words):
        return [tags[word] for word in words]

    explanation = with_matrix(why, [[0.6, 0.1], [0.2, -0.4]], score=0.5)
    pairs = pos.tagged([explanation], tagger, "sum")
    ((values, a, b, score),) = pairs
    assert values.tolist() == [[0.6, 0.1], [0.2, -0.4]]
    assert (a, b, score) == (("NOUN", "VERB"), ("NOUN", "DET"), 0.5)
    assert pos.relations(a, b).tolist() == [["NOUN–NOUN", "DET–NOUN"], ["NOUN–VERB", "DET–VERB"]]
    assert pos.top_shares(pairs, 0.25) == {"NOUN–NOUN": 1}
    assert pos.top_shares(pairs, 0.5) == {"NOUN–NOUN": 1, "NOUN–VERB": 1}
    measured = pos.summary(pairs)["explained"]
    assert measured["nouns and verbs"] == pytest.approx((0.8 / 0.5, 0))
    assert measured["all words"] == pytest.approx((1.0, 0))
    assert pos.explained(pairs, pos.most_important) == pytest.approx((1.0, 0))  # round(0.9 · 4) is all four
    mask = pos.most_important(np.arange(-10.0, 10.0).reshape(4, 5))
    assert mask.sum() == 18
    assert not mask.ravel()[10]  # 0, and one of −1 and 1
    assert pos.relations_of_most(pairs) == {"NOUN–NOUN", "DET–VERB", "NOUN–VERB"}  # 0.6, 0.4 and 0.2 of 1.3
    assert measured["90 % most important relations"] == pytest.approx((0.4 / 0.5, 0))
    tags |= {f"b{i}": "DET" for i in range(2, 5)}
    pairs = pos.tagged([with_matrix(why, [[9, 1, 1, 1, 1], [1, 1, 1, 1, 1]])], tagger, "sum")
    measured = pos.summary(pairs)
    assert measured["shares"]["0.1"] == {"NOUN–NOUN": 1.0}  # one entry of ten
    assert measured["shares"]["0.5"] == {"NOUN–NOUN": 0.2}
    assert measured["explained"]["top ten relations"] == pytest.approx((0.5, 0))


def test_a_score_is_split_by_identical_words(why):
    explanation = with_matrix(why, [[0.5, 0.1, 0.01], [0.2, -0.3, 0.02]])
    sides = [
        replace(explanation.a, text="Dogs bark", tokens=("Dogs", "bark"), offsets=((0, 4), (5, 9))),
        replace(explanation.b, text="dogs run .", tokens=("dogs", "run", "."), offsets=((0, 4), (5, 8), (9, 10))),
    ]
    parts, overlap = lexical.split(replace(explanation, a=sides[0], b=sides[1]))
    assert parts == pytest.approx(dict(zip(lexical.PARTS, (0.5, 0.0, 0.03), strict=True)))
    assert overlap == pytest.approx(1 / 3)  # dogs, of dogs, bark and run
    assert lexical.ranks(np.array([3.0, 1.0, 1.0, 2.0])).tolist() == [3.0, 0.5, 0.5, 2.0]
    labels, overlaps = np.array([0.0, 0.0, 1.0, 1.0, 0.5]), np.array([0.1, 0.3, 0.6, 0.8, 0.5])
    assert lexical.bias(labels + 0.1 * overlaps, overlaps, labels) > 0.9  # equal labels: more overlap, higher score
    assert lexical.bias(labels - 0.1 * overlaps, overlaps, labels) < -0.9
    assert lexical.correlation(np.ones(4), np.arange(4.0)) is None


def test_how_explanations_agree_by_hand():
    first = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.1]])
    assert agreement.compare(first, 5 * first) == (pytest.approx(1), 1.0)
    correlation, same = agreement.compare(first, -first)
    assert correlation == pytest.approx(-1)
    assert same == 0
    assert agreement.compare(first, first[:, :2]) == (None, None)
    assert agreement.compare(first, np.full_like(first, 0.2)) == (None, None)  # all words alike: there is no partner
    pairs = [{"folded": (first, 0.0), "the paper's form": (first[::-1], 0.5)}]
    measured = agreement.summary(pairs)
    assert measured["left_out"] == {"folded": 0.0, "the paper's form": 0.5}
    assert list(measured["agreement"]) == ["folded and the paper's form"]


def test_roles_of_known_words():
    assert roles_by_order(["DET", "NOUN", "AUX", "VERB", "DET", "ADJ", "NOUN", "ADP", "DET", "NOUN", "PUNCT"]) == [
        *("other", "subject", "other", "predicate", "other", "modifier", "object", "other", "other", "oblique", "other")
    ]
    assert roles_by_order(["DET", "NOUN", "NOUN", "AUX", "ADJ"]) == [
        *("other", "modifier", "subject", "predicate", "modifier")
    ]
    assert roles_by_order([]) == []
    pairs = [(np.array([[4.0, 1.0], [1.0, 2.0]]), ("subject", "predicate"), ("subject", "predicate"), 10.0)]
    measured = roles.summary(pairs)
    assert measured["relations"]["subject–subject"]["share_of_score"] == pytest.approx(0.4)
    assert measured["relations"]["predicate–subject"]["entries"] == 2
    assert measured["subjects, predicates and objects explain"] == pytest.approx([0.8, 0.0])
    ten = np.zeros((2, 5))
    ten[0, 0] = 1.0
    measured = roles.summary([(ten, ("subject", "object"), ("subject", *["other"] * 4), 1.0)])
    assert roles.lift(measured, "subject–subject") == pytest.approx(10)
    assert roles.lift(measured, "oblique–oblique") == 0
    with pytest.raises(ValueError, match="there is no parser 'mine'; choose one of spacy, order"):
        get_parser("mine")


@pytest.mark.parametrize("name", PARSERS)
def test_parsers_that_are_here(name):
    try:
        parser = get_parser(name)
    except ModuleNotFoundError as error:
        reason = str(error)
        assert "pip install 'whymatch" in reason
        pytest.skip(reason)
    assert parser(["A", "dog", "chases", "two", "cats", "."])[1:5] == ["subject", "predicate", "modifier", "object"]


def test_what_a_negation_changes(folders):
    explainer = Explainer(folders("bert"))
    rows = [
        negation.measure(change, explainer.pair(*explainer.decompose([change.text, change.changed])))
        for change in CHANGES
    ]
    assert [row["kind"] for row in rows] == ["negation", "antonym", "same"]
    for change, row in zip(CHANGES, rows, strict=True):
        assert row["score"] == pytest.approx(explainer.explain(change.text, change.changed).score, abs=1e-6)
    assert rows[0]["word_share"] == pytest.approx(1 / 6)  # "not", of six words with the full stop
    assert rows[1]["word_share"] == pytest.approx(1 / 5)
    controls = negation.score_less_a_word(explainer, [*CHANGES, Change("good", "bad")], 0)
    assert [control is None for control in controls] == [False, False, False, True]
    assert all(control < 1 for control in controls[:3])


def test_what_drives_failures_by_hand():
    labels = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    scores = 2 * labels + 1
    assert failures.distances(scores, labels) == pytest.approx(np.zeros(5), abs=1e-12)
    scores[2] += 1
    far = failures.distances(scores, labels)
    assert far.argmax() == 2
    assert far.sum() == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="do not depend on the labels"):
        failures.distances(np.ones(5), labels)
    words = [(np.array([[1.0, 2.0]]), ("NOUN",), ("NOUN", "DET"), 3.0), (np.array([[3.0]]), ("NOUN",), ("NOUN",), 3.0)]
    names, added = failures.parts(words)
    assert names == ["DET–NOUN", "NOUN–NOUN"]
    assert added.tolist() == [[2.0, 1.0], [0.0, 3.0]]
    more, error = failures.gaps(np.array([[1.0], [3.0], [0.0], [1.0]]), np.array([0, 1]), np.array([2, 3]))
    assert more == pytest.approx([1.5])
    assert error == pytest.approx([math.sqrt(1 / 2 + 0.25 / 2)])


def test_sums_by_values_equal_sums_of_tangents_and_of_attributions(folders):
    """The error of a rule is the same, whether all tokens' attributions are summed or only the whole path's speed."""
    explainer = Explainer(folders("bert"), layer=1, path="straight", tolerance=1e-6)
    texts = ["The coffee is not good.", "This is bad coffee."]
    paths = accuracy.paths_of(explainer, texts)
    assert 0 < accuracy.off_from_tangents(explainer, paths) < 1e-8
    assert max(path.left_out for path in paths.values()) < 1e-8
    for rule, n in (("right", 10), ("right", 49), ("gauss", 6)):
        direct = Explainer(folders("bert"), layer=1, tolerance=1e-6, rule=rule, steps=n, fold_reference=False).explain(
            *texts
        )
        (error,) = accuracy.errors([(paths[texts[0]], paths[texts[1]])], rule, n, "cosine")
        assert error == pytest.approx(direct.error, abs=1e-6)
    assert accuracy.errors([(paths[texts[0]], paths[texts[1]])], "gauss", 64, "cosine")[0] < 1e-7


def test_the_paths_total_of_a_known_curve():
    """A path whose speed is known: right endpoints of t² have the error that the formula says."""
    points = accuracy.points_of(2 * accuracy.INTERVALS)
    from whymatch.quadrature import USUAL

    alpha = USUAL.to_path(points)[0]
    path = accuracy.Path(np.stack([alpha**3 / 3, alpha], axis=1))
    n = 20
    assert path.total("right", n) == pytest.approx([np.mean((np.arange(1, n + 1) / n) ** 2), 1], abs=1e-9)
    assert path.total("gauss", 24) == pytest.approx([1 / 3, 1], abs=1e-9)
    assert RULES["right"].order == 1


def test_a_path_that_is_rough_is_followed_piece_by_piece():
    """An embedding that turns within a thousandth of the way: the rules' errors are those of the formula."""
    steep, place = 2000.0, 0.3712
    calls = []

    class Steep:
        def path_values(self, texts, alpha):
            calls.append(len(alpha))
            alpha = np.asarray(alpha)
            return [np.stack([np.tanh(steep * (alpha - place)), alpha], axis=1) for _ in texts]

    path = accuracy.follow(Steep(), "a text")
    assert len(path.pieces) > 4
    assert path.left_out < accuracy.FITS
    assert sum(calls) < 2000
    for rule, n in (("right", 50), ("right", 2500), ("gauss", 64)):
        alpha, weights = RULES[rule](n)
        slopes = np.stack([steep / np.cosh(np.minimum(steep * np.abs(alpha - place), 300)) ** 2, np.ones(n)], axis=1)
        assert path.total(rule, n) == pytest.approx(weights @ slopes, abs=2e-3)


def test_a_small_turn_that_a_polynomial_passes_by_is_followed_too(monkeypatch):
    class Turning:
        model, settings = None, SimpleNamespace(layer=0)

        def path_values(self, texts, alpha):
            alpha = np.asarray(alpha)
            return [np.stack([0.005 * np.tanh(400 * (alpha - 0.3712)), alpha], axis=1) for _ in texts]

    explainer = Turning()
    monkeypatch.setattr(accuracy, "Explainer", lambda *_, **__: explainer)
    (first,) = accuracy._interpolate(explainer, ["a text"], accuracy.LOOK).values()
    assert first.left_out < accuracy.ROUGH
    (path,) = accuracy.paths_of(explainer, ["a text"]).values()
    assert isinstance(path, accuracy.SteepPath)
    assert path.left_out < accuracy.FITS


def test_where_an_error_first_is_below_a_bound():
    def of(n):
        return np.array([1 / n, 3 / n])  # 2/n on average

    assert accuracy.first_below(of, (1, 10, 1000), 0.01) == 200
    assert accuracy.first_below(of, (1, 10, 1000), 5.0) == 1
    assert accuracy.first_below(of, (1, 10, 100), 0.01) is None


def test_tags_are_universal():
    words = (("NNS", "dogs"), ("VBZ", "runs"), (".", "."), ("$", "$"), ("?", "x"))
    assert [universal(tag, word) for tag, word in words] == ["NOUN", "VERB", "PUNCT", "SYM", "X"]
    words = (("NN2", "dogs"), ("VVZ", "runs"), ("VBZ", "is"), ("XX0", "not"), ("PUN", "."), ("UNC", "x"))
    assert [universal(tag, word, CLAWS) for tag, word in words] == ["NOUN", "VERB", "VERB", "PART", "PUNCT", "X"]
    words = ["He", "has", "a", "dog", "and", "is", "n't", "here"]
    tags = ["PRON", "VERB", "DET", "NOUN", "CCONJ", "VERB", "PART", "ADV"]
    assert with_auxiliaries(words, tags) == ["PRON", "VERB", "DET", "NOUN", "CCONJ", "AUX", "PART", "ADV"]
    assert with_auxiliaries(["Dogs", "have", "not", "run"], ["NOUN", "AUX", "PART", "VERB"])[1] == "AUX"
    with pytest.raises(ValueError, match="there is no tagger 'brown'; choose one of hanta, spacy, flair"):
        get_tagger("brown")


@pytest.mark.parametrize("name", TAGGERS)
def test_taggers_that_are_here(name):
    try:
        tagger = get_tagger(name)
    except ModuleNotFoundError as error:
        assert f"the tagger {name!r} is not installed" in str(error)  # noqa: PT017 what it says is what is tested
        pytest.skip(str(error))
    assert tagger(["Two", "dogs", "run", "."]) == ["NUM", "NOUN", "VERB", "PUNCT"]
    assert tagger(["They", "don't", "run", "."]) == ["PRON", "AUX", "VERB", "PUNCT"]
    assert tagger(["It's", "a", "dog", "."])[0] == "PRON"
    assert tagger([]) == []


@pytest.fixture(scope="module")
def models(folders, tmp_path_factory):
    """An encoder as it is, and the same adjusted."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path_factory.mktemp("models") / "adjusted"
    adjust(SentenceTransformer(str(folders("bert")), device="cpu")).save_pretrained(str(folder))
    return [str(folders("bert")), str(folder)]


def experiment(models, out, **changes):
    options = {"pairs": 8, "layers": [1, 2, 3], "device": "cpu", "parser": "order", "changes": CHANGES} | changes
    return Experiment(models, read_scored_pairs(PAIRS), out, **options)


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    """All studies, run once."""
    pytest.importorskip("HanTa", reason="the tagger needs the extra pos: pip install 'whymatch[pos]'")
    chosen = experiment(models, tmp_path_factory.mktemp("studies"))
    return chosen, {name: studies.run(name, chosen) for name in studies.NAMES}


@pytest.mark.parametrize("name", studies.NAMES)
def test_every_study_from_end_to_end(finished, name):
    chosen, results = finished
    measured = json.loads((chosen.out / f"{name}.json").read_text())
    assert measured["inputs"].get("pairs", 8) == 8
    assert measured["machine"]["cores"] >= 1
    assert measured["seconds"] > 0
    assert results[name].compared
    for file in measured["figures"].values():
        drawing = (chosen.out / file).read_text()
        assert drawing.count("<svg") == 1
        assert len(drawing) < 1_000_000
    text = json.dumps(measured["numbers"])
    assert "NaN" not in text
    assert "Infinity" not in text
    for subject in chosen.subjects:
        assert subject.label in text


def test_their_numbers_agree_with_what_the_explainer_gives(finished):
    chosen, results = finished
    subject = chosen.subjects[0]
    whys = list(Explainer(subject.model, layer=2, special="keep", divisions=0).explain_many(chosen.pairs))
    values = np.concatenate([why.matrix.ravel() for why in whys])
    measured = results["distribution"].numbers[subject.label]["2"]
    assert measured["entries"] == values.size
    assert measured["share_negative"] == pytest.approx((values < 0).mean(), abs=2 / values.size)
    curves = np.stack([cumulative.curve(why) for why in whys])
    assert results["cumulative"].numbers[subject.label]["2"]["mean"] == pytest.approx(curves.mean(0), abs=1e-2)
    errors = results["accuracy"].numbers[subject.label]["layers"]["1"]
    direct = Explainer(subject.model, layer=1, tolerance=1e-6, rule="right", steps=50, fold_reference=False)
    ours = [why.error for why in direct.explain_many(chosen.pairs)]
    assert errors["right"]["mean"][errors["right"]["steps"].index(50)] == pytest.approx(np.mean(ours), rel=1e-3)
    assert errors["right"]["std"][errors["right"]["steps"].index(50)] == pytest.approx(np.std(ours), rel=1e-3)
    assert errors["gauss"]["reached"]["1e-05"] < 64
    measured = results["performance"].numbers["ours"][subject.label]
    assert measured == evaluate_sts(subject.model, chosen.data)


def test_the_papers_form_explains_the_model_that_is_shifted_and_not_trained(finished):
    chosen, results = finished
    for layer in results["agreement"].numbers[chosen.subjects[0].label].values():
        measured = layer["agreement"]["the paper's form and adjusted"]
        assert measured["correlation"] == pytest.approx(1, abs=1e-3)
        assert measured["same_partner"] > 0.99
        assert layer["left_out"]["folded"] < 1e-3 < layer["left_out"]["the paper's form"]


def test_what_stands_beside_the_papers_numbers(finished):
    chosen, results = finished
    lines = {
        name: [(comparison.what, comparison.paper) for comparison in result.compared]
        for name, result in results.items()
    }
    label = chosen.subjects[0].label
    assert (f"{label}: negative at layer 2, the last before the output", "38 %") in lines["distribution"]
    assert (f"{label}: negative at layer 3, the output", "5 %") in lines["distribution"]
    assert (f"{label}: negative at layer 1", "–") in lines["distribution"]
    what = [what for what, _ in lines["accuracy"] if what.startswith(label)]
    assert what[0].endswith("error at layer 3 of 3, right endpoints, N = 50")
    assert what[1].endswith("error at layer 2 of 3, right endpoints, N = 1,000")
    assert what[2].endswith("error at layers 1, right endpoints, N = 2,500")
    rows = results["accuracy"].tables["The N at which the mean error first is below a bound"]
    assert len(rows) == 1 + 2 * 3
    table = results["performance"].tables["Spearman's correlation, times 100"]
    assert [row[:3] for row in table[1:3]] == [[label, "as it is", "ours"], ["adjusted", "adjusted", "ours"]]
    assert ["RoBERTa", "plain", "the paper's", "86.1", "68.8"] in table
    assert results["pos"].numbers[label]["layer"] == results["failures"].numbers[label]["layer"] == 2


@pytest.mark.parametrize(("layers", "expected"), [([2, 3], 2), ([3], 3), ([1, 2, 3], 2), ([0, 1], 1), (None, 2)])
def test_the_one_layer_is_below_the_output(models, tmp_path, layers, expected):
    chosen = experiment(models[:1], tmp_path, layers=layers)
    assert chosen.inner_layer(chosen.subjects[0]) == expected


def test_pairs_and_layers_bound_every_study(models, tmp_path, monkeypatch):
    every = read_scored_pairs(PAIRS)
    usual = Experiment(models[:1], every, tmp_path, device="cpu")
    (subject,) = usual.subjects
    assert (usual.every_layer(subject), usual.layers(subject)) == ([0, 1, 2, 3], [2, 3])
    assert usual.data is every
    bounded = Experiment(models[:1], every, tmp_path, pairs=4, layers=[-1], device="cpu")
    (subject,) = bounded.subjects
    assert bounded.every_layer(subject) == bounded.layers(subject) == [bounded.inner_layer(subject)] == [3]
    assert len(bounded.pairs) == 4
    results = {name: studies.run(name, bounded) for name in ("performance", "accuracy", "layers")}
    assert "on 4 pairs of pairs.csv" in results["performance"].notes[0]
    assert list(results["accuracy"].numbers[subject.label]["layers"]) == ["3"]
    assert results["accuracy"].numbers[subject.label]["layers"]["3"]["pairs"] == 4
    assert results["layers"].numbers[subject.label]["layers"] == [3]
    monkeypatch.setattr(experiment_room, "USUAL_PAIRS", 5)
    fewer = Experiment(models[:1], every, tmp_path, device="cpu")
    assert (len(fewer.pairs), len(fewer.data)) == (5, len(every))


def test_a_layer_may_have_fewer_pairs(models, tmp_path):
    chosen = experiment(models[:1], tmp_path, layers={1: 2, -2: 4, 3: None})
    (subject,) = chosen.subjects
    few, some, all_of_them = (chosen.sample_at(subject, layer).texts for layer in (1, 2, 3))
    assert (len(few), len(some), all_of_them) == (2, 4, chosen.pairs)
    assert set(few) < set(some) < set(chosen.pairs)
    assert len(accuracy.pairs_at(chosen, subject, 1)) == 2
    (label,) = [subject.label]
    assert f"(fewer where they are dear: {label}, layer 1: 2; {label}, layer 2: 4)" in chosen.about_pairs()
    result = studies.run("distribution", chosen)
    whys = list(Explainer(subject.model, layer=1).explain_many(few))
    assert result.numbers[label]["1"]["entries"] == sum(why.matrix.size for why in whys)
    assert chosen.inputs(("pairs",)) != experiment(models[:1], tmp_path, layers=[1, 2, 3]).inputs(("pairs",))


def test_a_layer_that_does_not_converge_is_shown_as_such(models, tmp_path, monkeypatch):
    """Texts whose paths are rough are left out, and so is a layer where most are; nothing is tried again."""
    decompose, tried = Explainer.decompose, []

    def rough(self, texts, *args, **options):
        bad = [text for text in texts if self.settings.rule == "gauss" and self.settings.layer < 3]
        bad = [text for text in bad if self.settings.layer == 1 or text.startswith("The soup")]
        if bad:
            tried.append(texts)
            raise RoughPathError(self.settings.layer, bad[0])
        return decompose(self, texts, *args, **options)

    def jump(self, texts, *args, **options):
        if self.settings.layer == 1:
            raise RoughPathError(1, texts[0], self.settings.rule)
        return decompose(self, texts, *args, **options)

    monkeypatch.setattr(Explainer, "decompose", rough)
    chosen = experiment(models[:1], tmp_path, pairs=12)
    (subject,) = chosen.subjects
    assert (chosen.layers(subject), chosen.rough_layers(subject), chosen.inner_layer(subject)) == ([2, 3], [1], 2)
    result = studies.run("distribution", chosen)
    assert list(result.numbers[subject.label]) == ["2", "3"]
    assert (f"{subject.label}: negative at layer 1", "does not converge") in [(c.what, c.ours) for c in result.compared]
    assert any("layer 1: the embedding moves in steps too steep" in note for note in result.notes)
    kept = [number for number, _ in chosen.numbered(subject, 2)]
    soup = [i for i, pair in enumerate(chosen.pairs) if any(text.startswith("The soup") for text in pair)]
    assert soup
    assert kept == [i for i in range(12) if i not in soup]
    shown = studies.run("layers", chosen)
    assert shown.numbers[subject.label]["rules"] == ["pieces", "gauss", "gauss"]
    tried.clear()
    again = experiment(models[:1], tmp_path, pairs=12)
    assert again.layers(again.subjects[0]) == [2, 3]
    assert tried == []
    with pytest.raises(ValueError, match="too rough at every layer of 1; choose --layers nearer to 3"):
        studies.run("pos", experiment(models[:1], tmp_path, layers=[1]))
    # A layer whose pairs are bounded is followed all the same.
    bounded = experiment(models[:1], tmp_path, pairs=12, layers={1: 3, 3: None})
    assert (bounded.layers(bounded.subjects[0]), bounded.rough_layers(bounded.subjects[0])) == ([1, 3], [])
    result = studies.run("distribution", bounded)
    assert result.numbers[subject.label]["1"]["pairs"] == 3
    assert result.numbers[subject.label]["1"]["largest_error"] <= experiment_room.TOLERANCE
    assert any("layer 1: the embedding moves" in note and "into pieces" in note for note in result.notes)
    shutil.rmtree(tmp_path)
    monkeypatch.setattr(Explainer, "decompose", jump)
    with pytest.raises(ValueError, match="at layer 1 the embedding jumps on the path of every text"):
        studies.run("distribution", experiment(models[:1], tmp_path, pairs=12, layers={1: 3, 3: None}))
    shown = studies.run("layers", experiment(models[:1], tmp_path / "other", pairs=12))
    assert shown.numbers[subject.label]["layers"] == [2, 3]  # layer 1 has no panel


def test_heat_maps_that_are_compared_have_one_scale_and_its_bar(why):
    small, large = with_matrix(why, [[0.1, -0.2]]), with_matrix(why, [[0.3, -0.9]])
    figure = charts.matrices([small, large], ["small", "large"])
    (first,), (second,) = (axes.images for axes in figure.axes[:2])
    assert first.get_clim() == second.get_clim() == (-0.9, 0.9)
    assert figure.axes[2].get_ylabel() == "part of the score"


def test_how_long_it_will_take(models, tmp_path):
    chosen = experiment(models[:1], tmp_path, layers=[2, 3])
    (label,) = [subject.label for subject in chosen.subjects]
    seconds = studies.foresee(["distribution", "accuracy"], chosen)
    assert list(seconds) == [f"{label}, layer 2", f"{label}, layer 3", f"{label}, accuracy"]
    assert all(each > 0 for each in seconds.values())
    studies.run("distribution", chosen)
    assert studies.foresee(["distribution"], chosen) == {}
    seconds = studies.foresee(["performance", "models", "layers"], experiment(models[:1], tmp_path / "other"))
    assert list(seconds) == [f"{label}, {name}" for name in ("performance", "models", "layers")]
    assert all(each > 0 for each in seconds.values())


def test_pairs_bound_the_accuracy_only_if_somebody_says_how_many(models, tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "PAIRS", 3)
    every = read_scored_pairs(PAIRS)
    for pairs, counted in ((None, 3), (5, 5)):
        chosen = Experiment(models[:1], every, tmp_path, pairs=pairs, device="cpu")
        assert len(accuracy.pairs_at(chosen, chosen.subjects[0], 1)) == counted


def test_a_study_depends_on_what_it_uses_and_on_nothing_else(models, tmp_path):
    first = experiment(models[:1], tmp_path)
    every = read_scored_pairs(PAIRS)
    scores = [*every.scores]
    changed = next(i for i, pair in enumerate(every.texts) if pair not in first.pairs)
    scores[changed] = 1 - scores[changed]
    other = Experiment(models[:1], replace(every, scores=scores), tmp_path, pairs=8, layers=[1, 2, 3], device="cpu")
    further = experiment(models[:1], tmp_path, layers=[3])
    for name, same_data, same_layers in (
        ("performance", True, True),
        ("accuracy", True, False),
        ("distribution", True, False),
        ("layers", True, False),
        ("failures", True, False),
    ):
        depends = studies.study(name).DEPENDS
        assert (first.inputs(depends) == other.inputs(depends)) == same_data
        assert (first.inputs(depends) == further.inputs(depends)) == same_layers


def without_the_output(result):
    """Return a result of studies of layers as if the output had not been studied."""
    numbers = {name: {layer: at for layer, at in each.items() if layer != "3"} for name, each in result.numbers.items()}
    return replace(result, numbers=numbers)


def test_the_report_is_one_page_that_asks_for_nothing(finished):
    chosen, results = finished
    path = report.write(results, chosen)
    page = path.read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', re.sub(r'xlink:href="#|xmlns[:\w]*="[^"]*"', "", page))
    for name, result in results.items():
        assert f'id="{name}"' in page
        assert result.title in page
    assert "77 ± 133 %" in page
    lines = verdicts.verdicts(results)
    assert 5 <= len(lines) <= 10
    assert {line.sure for line in lines} == {"only a hint"}  # eight pairs
    assert page.index(lines[0].claim) < page.index("<nav>")
    claims = {line.claim for line in verdicts.verdicts({"distribution": without_the_output(results["distribution"])})}
    assert claims == {"38 % of attributions are negative at the last layer before the output"}
    assert page.count("<svg") == sum(len(result.files) for result in results.values())
    assert page.count("data:application/json;base64,") == len(results)
    assert "minutes in all" in page


def test_a_finished_study_is_not_run_again_and_another_setting_is(models, tmp_path, decomposed):
    first = experiment(models[:1], tmp_path, layers=[3])
    studies.run("distribution", first)
    assert len(decomposed) == len(set(decomposed)) > 0
    decomposed.clear()
    lines = []
    again = experiment(models[:1], tmp_path, layers=[3], say=lines.append)
    result = studies.run("distribution", again)
    assert lines == ["distribution: done before"]
    assert result.numbers == json.loads((tmp_path / "distribution.json").read_text())["numbers"]
    studies.run("cumulative", again)
    assert decomposed == []  # the texts are shared
    studies.run("distribution", experiment(models[:1], tmp_path, layers=[2, 3]))
    assert decomposed  # another layer
    (tmp_path / "distribution.json").write_text("{")
    (tmp_path / "distribution-of-mine.svg").write_text("mine")
    assert studies.run("distribution", first).numbers == result.numbers
    measured = json.loads((tmp_path / "distribution.json").read_text())
    (tmp_path / "distribution.json").write_text(json.dumps(measured | {"title": "damaged"}))
    assert studies.run("distribution", first).title == measured["title"]
    del measured["checksum"]  # as earlier versions wrote it
    (tmp_path / "distribution.json").write_text(json.dumps(measured | {"figures": {"x": "../secret.svg"}}))
    assert studies.run("distribution", first).files == result.files  # which names no file elsewhere
    (tmp_path / "distribution-2.svg").write_text("of another run")
    figures = {"a": "distribution-1.svg", "b": "distribution-2.svg"}
    (tmp_path / "distribution.json").write_text(json.dumps(measured | {"figures": figures, "inputs": {}}))
    studies.run("distribution", first)
    assert sorted(path.name for path in tmp_path.glob("*.svg") if path.name.startswith("distribution")) == [
        "distribution-1.svg",
        "distribution-of-mine.svg",
    ]


def test_an_interrupted_study_goes_on_where_it_was(models, tmp_path, monkeypatch, decomposed):
    from whymatch.studies import experiment as module

    monkeypatch.setattr(module, "CHUNK", 4)
    chosen = experiment(models[:1], tmp_path, layers=[3])
    texts = {text for pair in chosen.pairs for text in pair}
    append, count = module.Store.append, []

    def fail(self, decs):
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        append(self, decs)

    monkeypatch.setattr(module.Store, "append", fail)
    with pytest.raises(KeyboardInterrupt):
        studies.run("distribution", chosen)
    assert not (tmp_path / "distribution.json").exists()
    decomposed.clear()
    studies.run("distribution", experiment(models[:1], tmp_path, layers=[3]))
    # Those that were looked at first, and a chunk of four.
    assert len(decomposed) == len(texts) - module.LOOKED_AT - 4


def test_an_interrupted_study_of_accuracy_goes_on_where_it_was(models, tmp_path, monkeypatch):
    monkeypatch.setattr(accuracy, "PAIRS", 2)
    original, seen = accuracy.layer_of, []

    def layer_of(subject, layer, pairs):
        seen.append(layer)
        if seen == [3, 2, 1]:
            raise KeyboardInterrupt
        return original(subject, layer, pairs)

    monkeypatch.setattr(accuracy, "layer_of", layer_of)
    with pytest.raises(KeyboardInterrupt):
        studies.run("accuracy", experiment(models[:1], tmp_path))
    damaged = min((tmp_path / "parts/accuracy").iterdir())
    damaged.write_text(json.dumps(json.loads(damaged.read_text()) | {"checksum": "0"}))
    studies.run("accuracy", experiment(models[:1], tmp_path))
    assert sorted(seen[3:]) in ([1, 2], [1, 3])  # the layer that was missing, and the damaged one
    assert not (tmp_path / "parts/accuracy").exists()


def test_damaged_texts_are_decomposed_again(models, tmp_path, decomposed):
    studies.run("distribution", experiment(models[:1], tmp_path, layers=[3]))
    for shard in tmp_path.rglob("*.arrow"):
        shard.write_bytes(shard.read_bytes()[:-8])
    decomposed.clear()
    studies.run("cumulative", experiment(models[:1], tmp_path, layers=[3]))
    assert decomposed


def test_what_cannot_be_studied_is_said_at_once(models, tmp_path):
    few = experiment(models[:1], tmp_path, pairs=4)
    with pytest.raises(ValueError, match="compares tenths of the pairs: give 8 or more, not 4"):
        studies.check(["failures"], few)
    every = read_scored_pairs(PAIRS)
    same = replace(every, scores=[0.5] * len(every))
    with pytest.raises(ValueError, match="all these pairs have one label"):
        studies.check(["failures"], Experiment(models[:1], same, tmp_path, device="cpu"))
    with pytest.raises(ValueError, match="there is no tagger 'brown'"):
        studies.check(studies.NAMES, experiment(models[:1], tmp_path, tagger="brown"))
    studies.check(["layers"], experiment(models[:1], tmp_path, tagger="brown"))


def test_all_on_the_command_line(whymatch, models, tmp_path):
    pytest.importorskip("HanTa", reason="the tagger needs the extra pos: pip install 'whymatch[pos]'")
    options = ["--data", str(PAIRS), "--out", str(tmp_path), "--model", models[0], "--pairs", "8", "--layers", "3"]
    out, err = whymatch("study", "all", *options, model=False)
    assert out.index("this will take about") < out.index("performance: ")
    assert f"written: {tmp_path / 'report.html'}" in out
    assert "layers" in err  # how far it is
    assert "negation: skipped: it needs texts and their negations: give --changes FILE.tsv" in out
    skipped = {name for name in studies.NAMES if f"{name}: skipped: " in out}
    assert skipped <= {"negation", "roles"}
    done = [name for name in studies.NAMES if name not in skipped]
    assert {path.name for path in tmp_path.glob("*.json")} == {f"{name}.json" for name in done}
    assert "Not run: " in (tmp_path / "report.html").read_text()
    out, _ = whymatch("study", "all", *options, model=False)
    assert out.count("done before") == len(done)


def test_the_command_line(whymatch, models, tmp_path):
    out, _ = whymatch(
        "study", "layers", "--data", str(PAIRS), "--out", str(tmp_path / "out"), "--model", models[0], model=False
    )
    assert "12 pairs from pairs.csv" in out
    assert "“poorly” in total" in out
    assert "layers-1.svg" in out
    _, err = whymatch("study", "nothing", "--data", str(PAIRS), "--out", str(tmp_path), code=2, model=False)
    assert "there is no study 'nothing'; choose one of performance" in err
    options = ["--data", str(PAIRS), "--out", str(tmp_path / "out"), "--model", models[0]]
    _, err = whymatch("study", "layers", *options, "--layers", "a", code=2, model=False)
    assert "--layers 'a' is not a list of numbers" in err
    _, err = whymatch("study", "layers", *options, "--layers", "2:1,3", code=2, model=False)
    assert "--layers '2:1,3': a study of layer 2 needs 2 or more pairs, not 1" in err
    _, err = whymatch("study", "layers", *options, "--layers", "9", code=2, model=False)
    assert "layer 9 is out of range" in err


def test_a_model_of_queries_and_documents_is_refused(tmp_path):
    zoo.asymmetric(tmp_path / "parts").save(str(tmp_path / "model"))
    with pytest.raises(ValueError, match="reads queries and documents in different ways"):
        experiment([str(tmp_path / "model")], tmp_path / "out")

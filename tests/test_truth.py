"""Tests of explanations: each against a model of which the truth is known, and the whole as a user runs it."""

from __future__ import annotations

import contextlib
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from conftest import flip_bit
from whymatch import Explainer
from whymatch.encoders.identity import identity
from whymatch.truth import (
    AlignedPair,
    Attribution,
    Model,
    Question,
    Result,
    TruthEvaluator,
    advise,
    alignment,
    answers,
    baselines,
    chunks,
    coalitions,
    insertion_deletion,
    read_aligned,
    read_chunked,
    read_pairs,
    read_questions,
    report,
    results,
    runs,
    sanity,
)
from whymatch.truth.asking import append_line, keep_words, read_lines, seeded
from whymatch.truth.controls import CHANGED, Twins
from whymatch.truth.data import sample, split_half
from whymatch.truth.deletions import KEPT, Coalitions, draw
from whymatch.truth.evaluation import Plan, find_files, make_jobs
from whymatch.truth.judging import judge
from whymatch.truth.links import WordLinks
from whymatch.truth.subjects import attribute, describe
from whymatch.words import shares, word_spans

PAIRS = [
    ("The coffee is bad today.", "bad coffee in the kitchen"),
    ("A dog runs in the field.", "The child sees a dog, not a man."),
    ("The stocks are good.", "good bread for the woman"),
]
WORDS_FILE = "0:0\tthe bad coffee\tN/A\tcoffee that is bad\tN/A\t1\t1\t1-3 2-0\n1:1\ta b\tN/A\tb\tN/A\t1\t1\t1-0\n"
CHUNKS_FILE = """<sentence id="1" status="">
// A dog runs .
// The dog sleeps : .
<source>
1 A : 
2 dog : 
3 runs : 
4 . : 
</source>
<translation>
1 The : 
2 dog : 
3 sleeps : 
4 : : 
5 . : 
</translation>
<alignment>
1 2 <==> 1 2 // EQUI // 5 // A dog <==> The dog
3 <==> 3 // OPPO_FACT // 3 // runs <==> sleeps
4 <==> 5 // NOALI // NIL // . <==> .
0 <==> 4 // NOALI // NIL // -not aligned- <==> :
</alignment>
</sentence>
"""  # noqa: W291  # the format has these spaces


def vector(word: str) -> np.ndarray:
    return np.abs(seeded(0, ("word", word.casefold())).normal(size=6))


class Bag(Model):
    """A model whose embedding is the sum of its words' vectors: its explanation is known exactly."""

    def __init__(self, answers: Path | None = None):
        self.name, self.similarity, self.identity, self.asked = "bag", "dot", "bag", 0
        self._file, self._known = answers, {} if answers is None else read_lines(answers)

    def embed(self, texts, side=0):  # noqa: ARG002
        self.asked += len(texts)
        return np.stack([sum((vector(t[low:high]) for low, high in word_spans(t)), np.zeros(6)) for t in texts])


def exact(a: str, b: str) -> np.ndarray:
    rows = [np.stack([vector(text[low:high]) for low, high in word_spans(text)]) for text in (a, b)]
    return rows[0] @ rows[1].T


def test_what_is_exact_predicts_everything():
    result = coalitions(exact, PAIRS, model=Bag())
    assert result.value == pytest.approx(1)
    assert result.estimates["r2_as_is"].value == pytest.approx(1)
    assert result.counts == {"pairs": 3, "failed": 0, "given": 3}
    assert coalitions(lambda a, b: -exact(a, b), PAIRS, model=Bag()).value == pytest.approx(-1)
    assert coalitions(lambda a, b: 0 * exact(a, b), PAIRS, model=Bag()).value == 0


def test_pieces_that_are_not_words_are_shared_among_them_and_templates_are_kept():
    # One piece of two words, and one of none: deleting one of the words takes half of the piece.
    found = shares([(0, 7), (0, 0), (8, 11)], [(0, 3), (4, 7), (8, 11)])
    assert found.tolist() == [[0.5, 0, 0], [0.5, 0, 0], [0, 0, 1]]

    def with_template(a, b):
        matrix = np.pad(exact(a, b), ((1, 0), (1, 0)), constant_values=3.0)
        return Attribution(matrix, [(0, 0), *word_spans(a)], [(0, 0), *word_spans(b)])

    assert coalitions(with_template, PAIRS, model=Bag()).value > 0.5


def test_coalitions_depend_on_seed_and_texts_alone():
    pair = ("a b c d e f g h", "i j k l m n o p")
    a, b = draw((8, 8), 400, 0, pair)
    again, other = draw((8, 8), 400, 0, pair), draw((8, 8), 400, 1, pair)
    assert np.array_equal(a, again[0])
    assert not np.array_equal(a, other[0])
    assert a.any(1).all()
    assert b.any(1).all()
    assert a.mean() == pytest.approx(sum(KEPT) / 2, abs=0.05)
    # One probability for both sides: what is kept of one goes with what is kept of the other.
    assert np.corrcoef(a.mean(1), b.mean(1))[0, 1] > 0.3


def test_words_take_their_space_along():
    text = "It's well-known, really."
    words = word_spans(text)
    assert keep_words(text, words, [True] * len(words)) == text
    keep = [text[low:high] not in ("well", ",") for low, high in words]
    assert keep_words(text, words, keep) == "It's-known really."


def test_the_order_of_an_additive_game_is_the_best():
    pairs = [("the good dog sees bad bread", "coffee"), ("a man runs today", "kitchen")]
    result = insertion_deletion(exact, pairs, model=Bag())
    assert result.value == pytest.approx(1)
    assert result.estimates["best_deletion"].value <= result.estimates["random_deletion"].value
    assert insertion_deletion(lambda a, b: -exact(a, b), pairs, model=Bag()).value < 0


def test_links_of_a_perfect_matrix():
    pair = AlignedPair(("the", "bad", "coffee"), ("coffee", "is", "bad"), ((1, 2), (2, 0)))
    matrix = np.array([[0, 0.1, 0], [0, 0, 1], [1, 0, 0.2]])
    result = alignment(lambda a, b: matrix, [pair])  # noqa: ARG005
    assert result.value == 1
    assert result.pairs[0]["decisions"] == 4
    assert result.estimates["mutual_recall"].value == 1
    assert result.estimates["mutual_precision"].value == pytest.approx(2 / 3)  # "the" and "is" are linked too
    wrong = alignment(lambda a, b: -matrix, [pair])  # noqa: ARG005
    assert wrong.value == 0


def test_a_word_counts_by_what_the_score_loses_without_it():
    pair = AlignedPair(("the", "bad", "coffee"), ("coffee", "is", "bad"), ((0, 1), (1, 2), (2, 0)))
    matrix = np.array([[0, 0, 0.1], [0, 0.1, 1], [1, 0, 0]])  # "the" and "is" are not each other's partners
    result = alignment(lambda a, b: matrix, [pair], model=Bag())  # noqa: ARG005
    entries = exact(*WordLinks().texts(pair))
    losses = [abs(entries.sum(1)), abs(entries.sum(0))]  # of a bag of words, exactly
    right = sum(each.sum() for each in losses) - losses[0][0] - losses[1][1]
    assert result.estimates["top1_by_effect"].value == pytest.approx(right / sum(each.sum() for each in losses))
    assert result.value == pytest.approx(4 / 6)
    assert "top1_by_effect" not in alignment(lambda a, b: matrix, [pair]).estimates  # noqa: ARG005


def test_counting_words_predicts_how_many_are_left():
    pair = ("a b c d e f", "g h i j k")

    class Lengths(Bag):
        asymmetric = False

        def embed(self, texts, side=0):  # noqa: ARG002
            return np.array([[float(len(word_spans(text)))] for text in texts])

    counting = baselines.named("word-count", Lengths())[0]
    assert coalitions(counting, [pair]).value == pytest.approx(1)
    assert np.ptp(attribute(counting, [pair])[0].matrix) == 0


def test_black_boxes_are_judged_and_asked(load):
    model = load("bert")
    explainer = Explainer(lambda texts: model.encode(texts), name="mine")
    pair = AlignedPair(("bad", "coffee"), ("coffee", "is", "bad"), ((0, 2), (1, 0)))
    result = coalitions(explainer, PAIRS)
    assert result.settings["model"] == "mine"
    assert result.value == pytest.approx(coalitions(explainer, PAIRS, model=model).value, abs=1e-4)
    assert alignment(explainer, [pair]).estimates["top1_by_effect"].pairs == 1
    assert sanity(explainer, PAIRS).estimates["copied"].pairs == len(PAIRS)  # what needs no other model
    asked = explainer.usage.texts
    coalitions(explainer, PAIRS)
    assert explainer.usage.texts == asked  # the test asks the explainer's own encoder, which remembers
    with pytest.raises(TypeError, match="'mine' is a BlackBox, and this test or method needs the layers or the token"):
        coalitions(explainer, PAIRS, units="tokens")
    with pytest.raises(ValueError, match="a function whose answers are kept in a file needs a name of its own"):
        Model(lambda texts: model.encode(texts), answers="answers.jsonl")


def test_a_long_text_of_a_black_box_fails_alone(load):
    model = load("bert")
    explainer = Explainer(lambda texts: model.encode(texts), name="mine", budget=60)
    result = coalitions(explainer, [*PAIRS, ("a b c d " * 10, "a dog runs")])
    assert result.counts == {"pairs": 3, "failed": 1, "given": 4}
    assert "budget=60 is too few for a text of 40 words" in result.pairs[-1]["failed"]


def test_dot_products_are_predicted_as_they_are():
    def embed(texts):
        return Bag().embed(texts)

    embed.similarity = "dot"
    explainer = Explainer(embed, name="sums of words")
    result = coalitions(explainer, PAIRS)
    assert result.value == pytest.approx(1)
    assert result.estimates["r2_as_is"].value == pytest.approx(1)
    assert result.estimates["r2_by_cosine"].pairs == 0  # of cosines nothing is said


def test_a_link_needs_two_words_and_a_pair_a_link():
    with pytest.raises(ValueError, match=r"\(1, 0\) is not a link between two of 1 and 1 words: 'a', 'b'"):
        AlignedPair(("a",), ("b",), ((1, 0),))
    unlinked = AlignedPair(("a", "b"), ("a", "b"), ())
    assert math.isnan(alignment(lambda a, b: np.eye(2), [unlinked]).value)  # noqa: ARG005


def test_equal_entries_share_a_hit():
    pair = AlignedPair(("a", "b"), ("c", "d", "e"), ((1, 2),))
    assert alignment(lambda a, b: np.ones((2, 3)), [pair]).value == pytest.approx((1 / 3 + 1 / 2) / 2)  # noqa: ARG005


def test_nobody_is_asked_about_an_empty_text():
    class Picky(Bag):
        def embed(self, texts, side=0):
            assert all(text.strip() for text in texts)
            return super().embed(texts, side)

    pair = AlignedPair(("coffee",), ("coffee", "bread"), ((0, 0),))
    matrix = np.array([[1.0, 0]])
    result = alignment(lambda a, b: matrix, [pair], model=Picky())  # noqa: ARG005
    assert result.estimates["top1_by_effect"].value == 1


def test_pairs_of_single_words_prove_nothing():
    result = sanity(exact, [("coffee", "bread")], model=Bag())
    assert math.isnan(result.value)


def test_tokens_are_summed_over_the_words_of_the_data():
    pair = AlignedPair(("well-known", "dog"), ("dog", "famous"), ((0, 1), (1, 0)))
    pieces = [(0, 4), (4, 5), (5, 10), (11, 14)], [(0, 3), (4, 10)]
    matrix = np.array([[0, 0.6], [0.9, 0], [0, 0.6], [1, 0]])  # together, the first word's pieces prefer "famous"
    assert alignment(lambda a, b: Attribution(matrix, *pieces), [pair]).value == 1  # noqa: ARG005


def test_chunks_are_read_and_judged(tmp_path):
    (tmp_path / "x.wa").write_text(CHUNKS_FILE)
    (pair,) = read_chunked(tmp_path / "x.wa")
    assert pair.text_b == "The dog sleeps : ."
    assert pair.chunks_b == ((0, 1), (2,), (4,), (3,))
    assert [(each.a, each.b, each.kind, each.grade) for each in pair.links] == [(0, 0, "EQUI", 5), (1, 1, "OPPO", 3)]
    matrix = np.zeros((4, 5))
    matrix[:2, :2], matrix[2, 2], matrix[2, 3] = 1, 0.5, 0.4
    result = chunks(lambda a, b: matrix, [pair])  # noqa: ARG005
    assert result.value == 1
    assert result.estimates["EQUI"].value == pytest.approx(2)  # 4 / sqrt(2 · 2)
    assert result.estimates["OPPO"].value == 0.5
    assert result.estimates["grades"].value == pytest.approx(1)


def test_answers_rank_sentences():
    question = Question("who runs?", "The man sleeps. A dog runs today. The child eats.", 18)

    def points(sentence):
        def matrix(a, b):
            low, high = [(0, 15), (16, 33), (34, 49)][sentence]
            inside = [float(low <= start < high) for start, _ in word_spans(b)]
            return np.ones((len(word_spans(a)), 1)) * np.array(inside)

        return matrix

    assert answers(points(1), [question], model=Bag()).value == 1
    wrong = answers(points(0), [question], model=Bag())
    assert wrong.value == pytest.approx(1 / 3)  # equal ones rank last
    assert wrong.estimates["mrr_chance"].value == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_shapley_values_of_least_squares_are_the_exact_ones():
    rng = np.random.default_rng(0)
    masks = baselines.all_coalitions(5)
    values = rng.normal(size=(32, 3))
    exact_values = baselines.exact_values(masks, values)
    assert exact_values.sum(0) == pytest.approx(values[-1] - values[0])
    everything, weights = baselines.sample_coalitions(5, 10**6, rng)
    fitted = baselines.least_squares(everything[1:-1], values[1:-1] - values[0], weights, values[-1] - values[0])
    assert fitted == pytest.approx(exact_values)
    few, weights = baselines.sample_coalitions(12, 48, rng)
    assert len(few) == 50
    additive = few @ rng.normal(size=(12, 3))
    fitted = baselines.least_squares(few[1:-1], additive[1:-1], weights, additive[-1])
    assert few @ fitted == pytest.approx(additive)


def test_intervals_are_over_pairs():
    rows = [{"x": float(value)} for value in np.random.default_rng(0).normal(size=50)]
    found = results.estimate(results.mean_of("x"), rows)
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(4 / math.sqrt(50), rel=0.3)
    ratio = results.Measure({"hits": 2}, {"drawn": 1, "gold": 1})
    known = [{"hits": 1, "drawn": 2, "gold": 2}, {"hits": 3, "drawn": 3, "gold": 3}, {"other": 1}]
    assert results.estimate(ratio, known).value == pytest.approx(8 / 10)
    assert math.isnan(results.estimate(ratio, []).value)
    lists = [{"v": [1.0, 2.0], "g": [1.0, 3.0]}, {"v": [3.0], "g": [2.0]}]
    assert results.estimate(results.Correlation("v", "g"), lists).value == pytest.approx(0.5)


def test_a_result_is_saved_and_read_again(tmp_path):
    result = coalitions(exact, PAIRS, model=Bag())
    result.save(tmp_path / "r.json")
    again = Result.load(tmp_path / "r.json")
    assert again.to_dict() == result.to_dict()
    assert again.value == pytest.approx(result.value)
    assert "coalitions, exact: spearman" in repr(again)
    (tmp_path / "x.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match=r"x.json' cannot be read: .* its format is 'other'"):
        Result.load(tmp_path / "x.json")


def test_a_damaged_result_is_refused(tmp_path):
    path = tmp_path / "r.json"
    result = coalitions(exact, PAIRS, model=Bag())
    result.save(path)
    content, whole = path.read_bytes(), result.to_dict()
    rng = random.Random(0)
    for _ in range(200):
        path.write_bytes(flip_bit(content, rng))
        with contextlib.suppress(ValueError):
            assert Result.load(path).to_dict() == whole  # the name of the checksum is itself not checked
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        Result.load(path)
    for name in whole:
        for value in (None, True, "x", 7, [], {}, [1], {"spearman": 1}, float("nan")):
            with contextlib.suppress(ValueError):
                result = Result.from_dict(whole | {name: value})
                assert repr(result)
                assert report.sections([result])
    with pytest.raises(ValueError, match="'x' is not a test of an evaluation"):
        report.sections([Result.from_dict(whole | {"test": "x"})])


def test_measurements_belong_to_weights(tmp_path):
    """A model that was trained again under its name is measured again."""
    counted: list[tuple[str, str]] = []

    def subject(a, b):
        counted.append((a, b))
        return exact(a, b)

    subject.settings = {"subject": "counted", "model": "bag"}
    for weights, expected in (("one", 3), ("one", 3), ("another", 6), ("one", 6)):
        job = runs.Job(Coalitions(Bag()), subject, PAIRS, {"data": "x", "split": "all"}, weights)
        (result,) = runs.run([job], tmp_path / "out")
        assert (len(counted), result.counts["pairs"]) == (expected, 3)
    assert len(runs.read_results(tmp_path / "out")) == 1  # the same setting of the same model is one result


def test_jobs_know_their_models_weights(folder, tmp_path):
    (tmp_path / "pairs.csv").write_text("text_a,text_b\nA dog runs.,A cat sleeps.\nBread is good.,Coffee is bad.\n")
    plan = Plan(["coalitions"], [tmp_path / "pairs.csv"], methods=["whymatch", "random"], settings=[{"layer": -1}])
    model = SentenceTransformer(str(folder), device="cpu")
    jobs = make_jobs(plan, find_files(plan), model, "m", tmp_path)
    assert {job.identity for job in jobs} == {identity(model)}
    assert len(jobs) == 2


def test_a_run_that_was_stopped_goes_on(tmp_path):
    asked: list[tuple[str, str]] = []

    def counted(a, b):
        asked.append((a, b))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return exact(a, b)

    (tmp_path / "answers").mkdir()
    test = Coalitions(Bag(tmp_path / "answers" / "bag.jsonl"))
    counted.settings = {"subject": "counted", "model": "bag"}
    job = runs.Job(test, counted, PAIRS, {"data": "x", "split": "all"})
    with pytest.raises(KeyboardInterrupt):
        list(runs.run([job], tmp_path / "out"))
    assert not list((tmp_path / "out").glob("*.json"))
    (rows,) = (tmp_path / "out" / "rows").iterdir()
    with rows.open("a") as file:
        file.write('["half a li')  # as a kill leaves it
    said: list[str] = []
    (result,) = runs.run([job], tmp_path / "out", said.append)
    assert result.value == pytest.approx(1)
    assert asked == [*PAIRS, PAIRS[2]]  # the first two were not measured again
    assert "1 pairs to do, 2 done before" in said[0]
    # The model's answers are known to whoever asks next.
    model = Bag(tmp_path / "answers" / "bag.jsonl")
    assert coalitions(exact, PAIRS, model=model).value == pytest.approx(1)
    assert model.asked == 0
    assert len(runs.read_results(tmp_path / "out")) == 1


def test_lines_that_are_cut_short_are_left_out(tmp_path):
    path = tmp_path / "x.jsonl"
    append_line(path, "a", [1.0])
    with path.open("a") as file:
        file.write('["b", [2.')
    assert read_lines(path) == {"a": [1.0]}
    append_line(path, "c", [3.0])
    assert read_lines(path) == {"a": [1.0], "c": [3.0]}
    with path.open("a") as file:
        file.write('["from 0.1", [4.0]]\n[["x"], 1]\n[5, 1]\n7\n' + "[" * 100_000 + "\n")
    assert read_lines(path) == {"a": [1.0], "c": [3.0], "from 0.1": [4.0]}


def test_a_flipped_bit_costs_its_line(tmp_path):
    path, rng = tmp_path / "x.jsonl", random.Random(0)
    lines = {"a": [1.25, 3e-7], "b": {"key": "b", "seconds": 0.5}}
    for _ in range(100):
        path.unlink(missing_ok=True)
        for key, value in lines.items():
            append_line(path, key, value)
        path.write_bytes(flip_bit(path.read_bytes(), rng))
        assert read_lines(path).items() <= lines.items()


def test_pairs_that_fail_are_counted():
    def fails(a, b):
        if "dog" in a:
            raise ArithmeticError("too rough")
        return exact(a, b)

    result = coalitions(fails, PAIRS, model=Bag())
    assert result.counts == {"pairs": 2, "failed": 1, "given": 3}
    nothing = judge(WordLinks(), lambda a, b: 1 / 0, [AlignedPair(("a",), ("a",), ((0, 0),))] * 9)  # noqa: ARG005
    assert nothing.failure == "division by zero"
    assert math.isnan(nothing.value)


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(ValueError, match=r"gave a matrix of \(1, 1\) for texts of 6 and 5 words"):
        coalitions(lambda a, b: np.ones((1, 1)), PAIRS, model=Bag())  # noqa: ARG005
    with pytest.raises(TypeError, match="'x' cannot be judged"):
        coalitions("x", PAIRS, model=Bag())
    with pytest.raises(ValueError, match="give model=, a SentenceTransformer"):
        coalitions(exact, PAIRS)
    with pytest.raises(ValueError, match="units='letters' is not known; choose 'words', 'tokens'"):
        coalitions(exact, PAIRS, model=Bag(), units="letters")
    with pytest.raises(ValueError, match="removal='burn' is not known"):
        coalitions(exact, PAIRS, model=Bag(), removal="burn")


def test_data_is_read_and_split(tmp_path):
    (tmp_path / "mwa.tsv").write_text(WORDS_FILE)
    pairs = read_aligned(tmp_path / "mwa.tsv")
    assert pairs[0].links == ((1, 3), (2, 0))
    assert pairs[0].spans_b == [(0, 6), (7, 11), (12, 14), (15, 18)]
    (tmp_path / "bad.tsv").write_text(WORDS_FILE.replace("2-0", "2-9"))
    with pytest.raises(ValueError, match="'2-9' is not a link between two words"):
        read_aligned(tmp_path / "bad.tsv")
    squad = {
        "data": [{"paragraphs": [{"context": "A. B.", "qas": [{"question": "b?", "answers": [{"answer_start": 3}]}]}]}]
    }
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    assert read_questions(tmp_path / "squad.json") == [Question("b?", "A. B.", 3)]
    for old, new in (
        ('"b?"', '" "'),
        ('"b?"', "5"),
        ("3}", "5}"),
        ("3}", "-1}"),
        ("3}", "1e400}"),
        ('"A. B."', "null"),
    ):
        (tmp_path / "squad.json").write_text(json.dumps(squad).replace(old, new))
        with pytest.raises(ValueError, match="is not in the format of SQuAD"):
            read_questions(tmp_path / "squad.json")
    (tmp_path / "stsb-dev.csv").write_text("a dog,the dog,5.0\na man,bread,0.0\n")
    assert read_pairs(tmp_path / "stsb-dev.csv") == [("a dog", "the dog"), ("a man", "bread")]
    (tmp_path / "stray.csv").write_text('a dog,"the dog\na man,bread\na cup,\n')
    with pytest.warns(UserWarning, match=r"2 rows of .*stray.csv' are left out: row 1: a quotation mark opens"):
        assert read_pairs(tmp_path / "stray.csv") == [("a man", "bread")]
    assert split_half([1, 2, 3, 4, 5], "dev") == [1, 2]
    assert split_half([1, 2, 3, 4, 5], "test") == [3, 4, 5]
    assert sample(range(50), 20, 0)[:5] == sample(range(50), 5, 0)
    with pytest.raises(ValueError, match="split='train' is not known"):
        split_half([1], "train")


def test_units_and_removals(load):
    model = Model(load("bert"))
    text = "The coffee is bad."
    tokens, words = model.units(text, "tokens"), model.units(text, "words")
    assert len(tokens) >= len(words) == 5
    everything = np.ones((1, len(tokens)), bool)
    for removal in ("delete", "mask", "pad"):
        assert model.embed_kept(text, tokens, everything, removal)[0] == pytest.approx(model.embed([text])[0], abs=1e-5)
    without = np.array([[True, False, True, True, True]])
    assert model.embed_kept(text, words, without, "delete")[0] == pytest.approx(
        model.embed(["The is bad."])[0], abs=1e-6
    )
    masked = model.embed_kept(text, words, without, "mask")
    assert not np.allclose(masked, model.embed_kept(text, words, without, "pad"), atol=1e-4)


def test_an_explainer_is_judged_without_decomposing_a_text_twice(load, decomposed):
    explainer = Explainer(load("bert"), layer=2, path="straight", special="keep")
    pairs = [("The coffee is bad.", "bad coffee"), ("The coffee is bad.", "a dog runs")]
    result = coalitions(explainer, pairs, count=12)
    assert sorted(decomposed) == sorted({text for pair in pairs for text in pair})
    assert result.settings["subject"] == "straight 2"
    assert result.pairs[0]["error"] < 1e-3
    assert result.estimates["spearman_by_cosine"].pairs == 2
    assert describe(Explainer(load("bert"), layer=1, path="straight", fold_reference=False, reference="unk"))[
        "subject"
    ] == ("straight 1, from 'unk', unfolded")


def test_baselines_say_what_they_should(load):
    model = Model(load("bert"))
    text = "The coffee is bad."
    (rows,) = baselines.token_cosine(model, 1).decompose([text])
    assert np.linalg.norm(rows.contributions, axis=1) == pytest.approx(1)
    embedding = model.embed([text])[0]
    for baseline in (baselines.last_dot(model), baselines.attention_rollout(model), baselines.leave_one_out(model)):
        (rows,) = baseline.decompose([text])
        total = rows.contributions.sum(0)
        # The model normalizes what it pools.
        assert total / np.linalg.norm(total) == pytest.approx(embedding / np.linalg.norm(embedding), abs=1e-5)
    (sampled,) = baselines.shapley(model, 16).decompose([text])
    (exactly,) = baselines.exact_shapley(model).decompose([text])
    assert sampled.contributions == pytest.approx(exactly.contributions, abs=1e-6)  # 80 coalitions are all of them
    assert exactly.contributions.sum(0) == pytest.approx(embedding, abs=1e-6)
    with pytest.raises(ArithmeticError, match="exact Shapley values of 11 words need 2,048 passes"):
        baselines.exact_shapley(model).decompose(["a b c d e f g h i j k"])
    assert [each.settings["subject"] for each in baselines.named("token-cosine", model)] == [
        f"token cosine {layer}" for layer in range(4)
    ]
    with pytest.raises(ValueError, match="there is no baseline 'x'; choose token-cosine, random"):
        baselines.named("x", model)


def test_gradient_times_input_is_the_derivative_along_the_input(load):
    import torch

    from whymatch.reading.inputs import batched

    model = Model(load("bert", torch.float64))
    text = "The coffee is bad."
    (rows,) = baselines.gradient_times_input(model).decompose([text])
    given = model.encoder.read([text], model.options[0])[0]
    cut = model.encoder.cut(given, 0, torch.float64)
    features = batched([given.features], cut.device)
    x, number, step = cut.head(features), torch.zeros(1, dtype=torch.long), 1e-5
    tail = cut.tail(features)
    with torch.no_grad():
        slope = (tail(x * (1 + step), number) - tail(x * (1 - step), number))[0] / (2 * step)
    assert rows.contributions.sum(0) == pytest.approx(slope.numpy(), abs=1e-6)


def test_missing_extras_are_named(load, monkeypatch):
    import sys

    model = Model(load("bert"))
    for name, extra in (("shapiq", "truth"), ("retrivex", "bench")):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, f"{name}.stransformers", None)
        with pytest.raises(ImportError, match=rf"pip install 'whymatch\[{extra}\]'"):
            baselines.named(name, model)


def test_sanity_tells_equal_models_from_shuffled_ones(load):
    explainer = Explainer(load("bert"), layer=1, path="straight")
    result = sanity(explainer, PAIRS[:2])
    names = {"shuffled_from_2", "shuffled_from_1", "shuffled_from_0"}
    assert names <= set(result.estimates)
    assert result.estimates["equal"].value < 1e-3
    assert all(abs(result.estimates[name].value) < 0.999 for name in names)
    assert result.estimates["shuffled_from_0"].value < CHANGED
    # A function can be judged too, as far as that goes.
    alone = sanity(exact, PAIRS[:2], model=Model(load("bert")))
    assert set(alone.estimates) == {"passed", "equal", "copied", "copied_first", "random"}
    assert alone.estimates["copied"].value == 1


@pytest.mark.parametrize(("template", "gains"), [(3.0, 1), (-3.0, 0)])
def test_a_copied_word_gains_with_all_that_the_other_text_has(load, template, gains):
    """What words lose to special tokens is no loss of the word that they are matched with."""

    def explain(a, b):
        words = word_spans(a), word_spans(b)
        count = len(words[1])
        matrix = np.full((len(words[0]), count + 1), -1.0 * (count - 3))
        matrix[:, 0] = template * (count - 3) * count
        return Attribution(matrix, words[0], [(0, 0), *words[1]])

    result = sanity(explain, [("coffee is unbelievable", "tea is bad")], model=Model(load("bert")))
    assert result.estimates["copied"].value == gains


def test_a_model_is_rewritten_without_changing_what_it_computes(load):
    model = Model(load("bert"))
    twins = Twins(model, ["The coffee is bad."])
    assert twins.rewritten is not None
    other = Model(twins.rewritten)
    assert other.embed(["bad coffee"]) == pytest.approx(model.embed(["bad coffee"]), abs=1e-5)
    ours, theirs = (dict(each.encoder.model.named_parameters()) for each in (model, other))
    assert any(name not in theirs or not np.array_equal(w.detach(), theirs[name].detach()) for name, w in ours.items())
    shuffled = Model(twins.shuffled[2])
    assert not np.allclose(shuffled.embed(["bad coffee"]), model.embed(["bad coffee"]), atol=1e-3)


def test_a_model_of_other_depth_is_refused(load):
    explainer = Explainer(load("bert"))
    explainer._num_layers = 2
    with pytest.raises(ValueError, match="the other model has 3 blocks, and this explainer's 2"):
        explainer.with_model(load("bert"))


def test_advice_leaves_the_defaults_for_a_clear_gain_only(load, monkeypatch):
    explainer = Explainer(load("bert"), path="relay", layer=0)

    def opposite(a, b):
        return -attribute(explainer, [(a, b)])[0].over(word_spans(a), word_spans(b))

    def given(*ways):
        monkeypatch.setattr(
            "whymatch.truth.advice._subjects", lambda _, asked: [(None, baselines.token_cosine(asked)), *ways]
        )
        return advise(load("bert"), PAIRS, name="tiny")

    assert given(({}, opposite), ({"layer": 0}, explainer)).settings == {}  # three pairs are too few
    monkeypatch.setattr("whymatch.truth.advice.LEAST", 3)
    better = given(({}, opposite), ({"layer": 0}, explainer))
    assert better.settings == {"layer": 0}
    assert better.gain.low > 0
    assert f"the settings below are better than the defaults by {better.gain}" in better.verdict
    same = given(({}, explainer), ({"layer": 0}, opposite))
    assert same.settings == {}
    assert same.gain is None
    assert (
        "Nothing that was tried is better, by more than chance and by at least 0.03, than the defaults." in same.verdict
    )
    slow = given(({"layer": 0}, explainer))
    assert "than these settings; the defaults take too long here." in slow.verdict


def test_advice_names_flags(load):
    said: list[str] = []
    advice = advise(load("bert"), PAIRS[:2], name="tiny", say=said.append)
    assert advice.result in advice.results
    assert {str(each.settings["subject"]).split()[0] for each in advice.results} >= {
        "token",
        "leave",
        "relay",
        "secant",
    }
    assert advice.flags == " ".join(f"--{name} {value}" for name, value in advice.settings.items())
    assert str(advice).endswith(f"use: {advice.flags or 'the defaults'}\nin Python: {advice.call}")
    assert eval(advice.call, {"Explainer": lambda model, **settings: (model, settings)}) == ("tiny", advice.settings)
    assert len(said) == len(advice.results) + len(advice.skipped)
    with pytest.raises(ValueError, match="advice needs a few pairs of texts, and 1 were given"):
        advise(load("bert"), PAIRS[:1])


def test_a_training_run_can_call_it(load):
    aligned = [AlignedPair(("bad", "coffee"), ("coffee", "bad"), ((0, 1), (1, 0)))]
    evaluate = TruthEvaluator(PAIRS[:1], aligned, settings={"layer": 2}, name="truth", count=8)
    model = load("bert").train()
    metrics = evaluate(model, epoch=1, steps=2)
    assert set(metrics) == {"truth_coalitions_spearman", "truth_alignment_top1"}
    assert evaluate.primary_metric in metrics
    assert model.training  # it is left as it was
    with pytest.raises(ValueError, match="needs pairs, aligned_pairs, or both"):
        TruthEvaluator()


def test_the_report_escapes_what_it_shows(tmp_path):
    def subject(a, b):
        return exact(a, b)

    subject.settings = {"subject": "<b>&", "model": "m"}
    result = coalitions(subject, PAIRS, model=Bag())
    page = report.write([result], tmp_path / "report.html").read_text()
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "1.000 (1.000 to 1.000)" in page


def test_a_negation_is_seen_by_what_is_missing(tmp_path):
    from whymatch.studies.negation import Negation, changed_words, kind_of, read_changes

    (tmp_path / "n.tsv").write_text("sentence\tnegated\nThe coffee is good.\tThe coffee is not good.\n")
    (change,) = read_changes(tmp_path / "n.tsv")
    assert [marks.tolist() for marks in changed_words((change.text, change.changed))] == [
        [False] * 5,
        [False, False, False, True, False, False],
    ]
    assert kind_of(change, changed_words((change.text, change.changed))) == "negation"
    (tmp_path / "l.tsv").write_text(
        "premise\thypothesis\tlabel\nIt's bad.\tIt's not good.\t0\nIt's bad.\tIt's good.\t1\n"
    )
    same, other = read_changes(tmp_path / "l.tsv")
    assert (same.opposite, other.opposite) == (False, True)
    assert kind_of(other, changed_words((other.text, other.changed))) == "antonym"
    model = Bag()
    model.similarity = "cosine"

    class Exact:
        def decompose(self, texts):
            return [
                baselines.Rows(words, np.stack([vector(text[low:high]) for low, high in words]))
                for text in texts
                for words in [word_spans(text)]
            ]

    result = judge(Negation(model), Exact(), [change, same])
    first = result.pairs[0]
    assert first["kind"] == "negation"
    assert first["seen"] == 1  # the added word alone is why the texts differ
    assert first["loss_share"] > 0.5
    assert result.estimates["score_same"].pairs == 1
    assert result.estimates["control"].value < 1
    (tmp_path / "s.tsv").write_text("sentence\tnegated\nGood.\tGood.\nGood.\t\nGood.\tNot good.\n")
    with pytest.warns(UserWarning, match="2 rows of .* row 2: its two texts are the same; row 3: negated is empty"):
        assert len(read_changes(tmp_path / "s.tsv")) == 1
    (tmp_path / "bad.tsv").write_text("x\ty\n1\t2\n")
    with pytest.raises(ValueError, match="a study of negation needs 'sentence' and 'negated'"):
        read_changes(tmp_path / "bad.tsv")


def test_study_negation(whymatch, tmp_path):
    (tmp_path / "n.tsv").write_text("sentence\tnegated\nbad coffee\tnot bad coffee\na dog runs\ta dog never runs\n")
    data = ["--data", str(tmp_path / "n.tsv"), "--out", str(tmp_path / "out")]
    printed, _ = whymatch("study", "negation", *data, "--methods")
    assert "2 changed texts" in printed
    assert "score after a change, negations (2); another word left out instead: " in printed
    assert (tmp_path / "out/negation-1.svg").is_file()
    assert "score after a change (negation): " in printed
    assert len(runs.read_results(tmp_path / "out/methods")) == 4

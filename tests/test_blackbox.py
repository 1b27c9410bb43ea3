"""Encoders that can only be called."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from whymatch import Explainer, Explanation, ToleranceWarning
from whymatch.corpus import Index
from whymatch.encoders import retries
from whymatch.encoders.blackbox import Usage
from whymatch.encoders.cut import EncoderError
from whymatch.progress import watching
from whymatch.words import keep_units, word_spans

PAIR = ("The coffee is not good.", "This is bad coffee.")
LONG = "A man is slicing a loaf of bread in the old kitchen; a woman isn't."
WEIGHTS = np.random.default_rng(0).standard_normal((256, 12))


def encode(texts):
    """A bag of letters, squashed: quick, and no sum over words."""
    counts = np.array([np.bincount(np.frombuffer(text.encode(), np.uint8), minlength=256) for text in texts])
    return np.tanh(counts @ WEIGHTS / 4) + 0.1


class Recorder:
    """An encoder that notes what it is asked, and fails when told to."""

    batch_size = 16

    def __init__(self, *errors):
        self.asked, self.errors = [], list(errors)

    def __call__(self, texts):
        self.asked.append(list(texts))
        if self.errors:
            raise self.errors.pop(0)
        return encode(texts)


def brute_force(text):
    """Each word's Shapley value by all orders in which words can arrive."""
    units = word_spans(text)
    orders = list(permutations(range(len(units))))
    values = np.zeros((len(units), 12))
    for order in orders:
        kept = [False] * len(units)
        before = encode([keep_units(text, units, kept)])[0]
        for i in order:
            kept[i] = True
            after = encode([keep_units(text, units, kept)])[0]
            values[i] += after - before
            before = after
    return values / len(orders)


def test_what_was_stored_is_no_more_certain_than_before():
    """A store keeps the lengths of errors, and not their directions: beside a text that was sampled now, a bound."""
    explainer = Explainer(encode, samples=200)
    a, b = explainer.decompose([LONG, "Two dogs run across the snowy field, and a child in a red coat laughs."])
    known = explainer.pair(a, b).uncertainty
    assert known.max() > 0
    stored = explainer.pair(a, replace(b, sampling=None)).uncertainty
    assert (stored >= known * (1 - 1e-9)).all()


def test_a_short_text_is_exact():
    explainer = Explainer(encode)
    (a,) = explainer.decompose(["This is bad coffee."])
    nothing = encode([""])[0]
    np.testing.assert_allclose(a.contributions, brute_force(a.text) + nothing / 5, atol=1e-12)
    assert (a.unit, a.mode, a.nodes, a.tokens) == ("word", "shapley", 32, ("This", "is", "bad", "coffee", "."))
    assert [a.text[low:high] for low, high in a.offsets] == list(a.tokens)
    assert a.error < 1e-15
    why = explainer.explain(*PAIR)
    left, right = encode(list(PAIR))
    assert why.score == pytest.approx(left @ right / np.linalg.norm(left) / np.linalg.norm(right), abs=1e-12)
    assert why.error < 1e-12
    assert not why.uncertainty.any()
    assert "entries exact" in why.accuracy
    assert why.model.endswith("test_blackbox.encode")


def test_the_reference_can_be_kept_apart():
    why = Explainer(encode, fold_reference=False, similarity="dot").explain(*PAIR)
    nothing = encode([""])[0]
    assert why.constant == pytest.approx(float(nothing @ nothing))
    assert why.error < 1e-12
    assert why.similarity == "dot"


def test_long_texts_are_sampled_and_say_how_certain_they_are():
    explainer = Explainer(encode, samples=200)
    why = explainer.explain(LONG, PAIR[0])
    assert why.nodes == (200, 64)
    assert why.error < 1e-12
    assert why.uncertainty.shape == why.matrix.shape
    assert why.uncertainty.max() > 0
    assert why.entry_error == why.uncertainty.max()
    # The exact values, from all subsets of the words: the error is within what was said.
    exact = Explainer(encode, samples=2**17, budget=2**17, groups=None)
    truth = exact.explain(" ".join(LONG.split()[:9]), PAIR[0])
    sampled = Explainer(encode, samples=120).explain(" ".join(LONG.split()[:9]), PAIR[0])
    assert not truth.uncertainty.any()
    ratio = (sampled.matrix - truth.matrix) / np.maximum(sampled.uncertainty, 1e-12)
    assert 0.4 < np.sqrt((ratio**2).mean()) < 2
    copy = Explanation.from_dict(why.to_dict())
    assert (copy.uncertainty == why.uncertainty).all()
    assert (why.words().uncertainty == why.uncertainty).all()


def test_a_tolerance_that_the_budget_does_not_reach_is_said():
    with pytest.warns(ToleranceWarning, match=r"standard error of up to .*: 100 embeddings .* A larger budget="):
        why = Explainer(encode, budget=100, tolerance=1e-5).explain(LONG, PAIR[0])
    assert why.nodes[0] == 100
    assert why.error < 1e-12


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match=r"budget=20 is too few for a text of 17 words.*groups='sentences'"):
        Explainer(encode, budget=20).explain(LONG, LONG)
    with pytest.raises(ValueError, match=r"budget=1 is not a number of texts"):
        Explainer(encode, budget=1)
    with pytest.raises(ValueError, match=r"samples=0 is not a number of texts to embed"):
        Explainer(encode, samples=0)


def test_words_are_deleted_or_replaced():
    text = "Isn't it 3.5, or half-done?"
    units = word_spans(text)
    words = [text[low:high] for low, high in units]
    assert words == ["Isn't", "it", "3.5", ",", "or", "half", "-", "done", "?"]

    def keep(*kept, mask=None):
        return keep_units(text, units, [word in kept for word in words], mask)

    assert keep(*words) == text
    assert keep() == ""
    assert keep("it", ",", "?") == "it,?"
    assert keep("half", "done") == "half done"  # two words do not become one
    assert keep("half", "-") == "half-"
    assert keep("it", "or", mask="_") == "_ it __ or ____"
    chinese = "咖啡不好"
    assert keep_units(chinese, word_spans(chinese), [True, False, False, True]) == "咖好"
    recorder = Recorder()
    Explainer(recorder, mask="[MASK]").explain("bad coffee", "tea")
    asked = {text for batch in recorder.asked for text in batch}
    assert asked == {"bad coffee", "[MASK] coffee", "bad [MASK]", "[MASK] [MASK]", "tea", "[MASK]"}


def test_calls_are_batched_cached_and_counted():
    recorder = Recorder()
    explainer = Explainer(recorder)
    explainer.explain(*PAIR)
    asked = [text for batch in recorder.asked for text in batch]
    assert max(map(len, recorder.asked)) == 16
    assert len(asked) == len(set(asked))
    assert explainer.usage == Usage(len(recorder.asked), len(asked), sum(map(len, asked)))
    assert str(explainer.usage).startswith(f"{len(asked)} texts (")
    before = explainer.usage
    explainer.explain(*PAIR)
    assert explainer.usage == before
    explainer.rank("good tea", list(PAIR))
    assert (explainer.usage - before).texts == 2  # "good" is known from the first text


def test_how_many_will_be_embedded_is_known_before():
    explainer = Explainer(encode)
    assert explainer.foresee(["bad coffee", "bad coffee", LONG]) == 4 + 1024
    assert explainer.usage.texts == 0
    assert Explainer(encode, samples=100).foresee([LONG]) == 100
    assert explainer.foresee([LONG], groups="sentences") == 2


def test_failures_that_pass_are_tried_again(monkeypatch):
    waits = []
    monkeypatch.setattr(retries, "_sleep", waits.append)
    recorder = Recorder(ConnectionResetError("reset"), TimeoutError("slow"), retries.BusyError("busy", after=7))
    Explainer(recorder).explain("coffee", "tea")
    assert recorder.asked[0] == recorder.asked[3]
    assert 0.4 <= waits[0] <= 0.6 < 0.8 <= waits[1] <= 1.2
    assert waits[2] == 7
    broken = Recorder(*[ConnectionResetError("reset")] * 9)
    with pytest.raises(ConnectionResetError, match="reset"):
        Explainer(broken).explain("coffee", "tea")
    assert len(broken.asked) == retries.ATTEMPTS
    with pytest.raises(EncoderError, match=r"'broken' fails in its own code while it embeds 2 texts.*KeyError"):
        Explainer(Recorder(KeyError("b")), name="broken").explain("coffee", "tea")


def test_waiting_and_embedding_can_be_stopped():
    class StopError(Exception):
        pass

    def stop(_, doing):
        if doing == "waiting to try again":
            raise StopError

    with watching(stop), pytest.raises(StopError):
        Explainer(Recorder(ConnectionResetError("reset"))).explain("coffee", "tea")
    seen = []

    def watch(done, doing):
        seen.append((done, doing))
        if len(seen) > 4:
            raise StopError

    recorder = Recorder()
    with watching(watch), pytest.raises(StopError):
        Explainer(recorder, samples=400).explain(LONG, LONG)
    assert len(recorder.asked) < 6
    assert "embedding" in {doing for _, doing in seen}
    assert seen == sorted(seen, key=lambda each: each[0])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda texts: np.zeros(len(texts)), r"one vector for each text, \(1, dimensions\); it gives the shape \(1,\)"),
        (lambda texts: np.zeros((len(texts) + 1, 3)), r"it gives the shape \(\d, 3\)"),
        (lambda texts: np.full((len(texts), 3), np.nan), r"numbers that are not finite for 'coffee'"),
        (lambda texts: [["a"]] * len(texts), r"gives no array of numbers for 1 texts"),
        (lambda texts: np.ones((len(texts), 3 + ("tea" in texts[0]))), r"3 dimensions before, and now of 4"),
    ],
)
def test_what_is_no_embedding_is_refused(function, message):
    function.batch_size = 1
    explainer = Explainer(function, name="encode")
    with pytest.raises(ValueError, match=message):
        explainer.rank("coffee", ["tea"])


def test_what_has_no_meaning_is_refused(load):
    assert Explainer(encode, layer=-2).settings.layer == 0  # as commands may ask for
    for name, value in {"layer": 2, "path": "relay", "steps": 4, "reference": "mask", "blocks": "layers"}.items():
        with pytest.raises(ValueError, match=rf"{name}={value!r} has no meaning here.*Shapley values"):
            Explainer(encode, **{name: value})
    with pytest.raises(ValueError, match=r"samples=100 has no meaning here.*method='shapley' samples"):
        Explainer(load(), samples=100)
    with pytest.raises(ValueError, match=r"method='lime' is not known; choose 'shapley'"):
        Explainer(load(), method="lime")
    explainer = Explainer(encode)
    assert explainer.at_layer(0) is explainer
    assert explainer.num_layers == 0
    with pytest.raises(ValueError, match=r"has no layer 1: it is not differentiated"):
        explainer.at_layer(1)
    with pytest.raises(ValueError, match="has no paths"):
        explainer.path_values(["coffee"], [0.5])
    with pytest.raises(EncoderError, match="neither tasks nor named prompts"):
        explainer.explain(*PAIR, task="query")
    with pytest.raises(TypeError, match="mask=3 is not a text"):
        Explainer(encode, mask=3)
    with pytest.raises(TypeError, match=r"or a function from a list of texts to their embeddings, not int: 7"):
        Explainer(7)


def test_texts_without_words_and_groups():
    explainer = Explainer(encode)
    why = explainer.explain("", "bad coffee")
    assert why.tokens_a == ("(no words)",)
    assert why.error < 1e-12
    grouped = explainer.explain(PAIR[0] + " Nobody drank it.", PAIR[1], groups=("sentences", None))
    assert grouped.tokens_a == (PAIR[0], "Nobody drank it.")
    assert grouped.units == ("sentence", "word")
    assert grouped.error < 1e-12
    spans = explainer.explain(PAIR[0], PAIR[1], groups=([(4, 10)], None))
    assert "coffee" in spans.tokens_a
    assert spans.error < 1e-12
    prompted = explainer.explain(*PAIR, prompt="query: ")
    left, right = encode([f"query: {text}" for text in PAIR])
    assert prompted.score == pytest.approx(left @ right / np.linalg.norm(left) / np.linalg.norm(right), abs=1e-12)


def test_a_model_can_be_treated_as_a_black_box(load):
    model = load()
    explainer = Explainer(model, method="shapley")
    why = explainer.explain(*PAIR)
    assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    assert why.error < 1e-7
    assert why.path == "shapley"
    assert explainer.identity == Explainer(model).identity
    model.train()
    explainer.explain("coffee", "tea")
    assert model.training  # the model is as it was
    function = Explainer(lambda texts: model.eval().encode(texts))
    np.testing.assert_allclose(function.explain(*PAIR).matrix, why.matrix, atol=1e-5)


def test_an_index_of_a_model_as_a_black_box_is_opened_with_the_model(load, tmp_path):
    model = load()
    Index.build(list(PAIR), tmp_path / "index", Explainer(model, method="shapley"))
    (hit, _) = Index.open(tmp_path / "index", model=model).search("bad coffee", top=2)
    assert hit.explanation.path == "shapley"


def test_asymmetric_models(tmp_path):
    import zoo

    model = zoo.asymmetric(tmp_path)
    why = Explainer(model, method="shapley").explain("coffee", "bad coffee")
    expected = model.similarity(model.encode_query("coffee"), model.encode_document("bad coffee"))
    assert why.score == pytest.approx(float(expected), abs=1e-6)


def test_everything_after_works_as_for_any_other(tmp_path):
    explainer = Explainer(encode, samples=120)
    page = explainer.explain(LONG, PAIR[0]).to_html()
    assert "Shapley values from 120 and 64 embeddings, words deleted" in page
    ranking = explainer.rank("bad coffee", [*PAIR, LONG], top=2)
    assert len(ranking) == 2
    assert "Best of 3" in ranking.to_html()
    why = ranking[0].explanation
    assert why.align().links
    assert explainer.pair(*explainer.decompose(PAIR)).matrix == pytest.approx(explainer.explain(*PAIR).matrix)

    for store in ("none", "tokens"):
        Index.build([*PAIR, LONG], tmp_path / store, explainer, store=store)
        hits = Index.open(tmp_path / store, model=encode).search("bad coffee", top=3)
        assert [hit.text for hit in hits] == [hit.text for hit in explainer.rank("bad coffee", [*PAIR, LONG])]
        for hit in hits:
            assert hit.explanation.error < 1e-5
        assert max(hit.explanation.uncertainty.max() for hit in hits) > 0  # where it is stored, a bound
    with pytest.raises(ValueError, match=r"which is not on this machine; say which model to use"):
        Index.open(tmp_path / "none")


def test_highlights_and_contrasts():
    explainer = Explainer(encode)
    one, other = (explainer.explain("bad coffee", text) for text in PAIR)
    highlights = explainer.highlight("bad coffee", PAIR[1])
    assert [span.score for span in highlights] == pytest.approx([span.score for span in other.highlights("b")])
    assert highlights.score == pytest.approx(other.score)
    contrast = explainer.contrast("bad coffee", *PAIR)
    assert contrast.difference == pytest.approx(one.score - other.score)
    assert [share.word for share in contrast.by_query_word][:2] == ["bad", "coffee"]
    assert contrast.error < 1e-9
    background = explainer.background([*PAIR, LONG])
    above = explainer.highlight("bad coffee", PAIR[1], background=background)
    assert above.error < 1e-9
    contrast = explainer.contrast("bad coffee", PAIR[1], background)
    assert contrast.error < 1e-9
    ranking = explainer.rank("bad coffee", [*PAIR, "tea"])
    assert ranking.contrast(1, 2).error < 1e-9
    assert ranking.contrast(1, "background").error < 1e-9
    with pytest.raises(ValueError, match="has no blocks: it is not differentiated"):
        explainer.with_model(None)


def test_two_functions_do_not_mix():
    a, b = Explainer(lambda texts: encode(texts)), Explainer(lambda texts: 2 * encode(texts))
    with pytest.raises(ValueError, match="do not belong together: model is"):
        Explainer.pair(a.decompose(["coffee"])[0], b.decompose(["tea"])[0])


def test_a_batch_of_pairs(tmp_path):
    from conftest import read_rows, write_pairs
    from whymatch.corpus import run_batch

    run_batch(write_pairs(tmp_path / "pairs.jsonl", 6), tmp_path / "out", Explainer(encode))
    rows = read_rows(tmp_path / "out")
    assert len(rows) == 6
    assert max(row["error"] for row in rows) < 1e-5


def test_a_batch_is_not_resumed_with_what_another_model_gives(tmp_path):
    from conftest import write_pairs
    from whymatch.corpus import run_batch

    def service(texts):
        return encode(texts) + shift

    shift = 0.0
    pairs, out = write_pairs(tmp_path / "pairs.jsonl", 4), tmp_path / "out"
    assert run_batch(pairs, out, Explainer(service)).done == 4
    assert run_batch(pairs, out, Explainer(service), resume=True).done == 4
    shift = 5.0
    with pytest.raises(ValueError, match="the rows that are done were explained by another encoder"):
        run_batch(pairs, out, Explainer(service), resume=True)

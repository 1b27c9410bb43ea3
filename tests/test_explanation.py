from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest

from whymatch import Explainer, Explanation
from whymatch.reading.sides import Side
from whymatch.settings import Settings

SETTINGS = Settings("tiny", 1, "pad", True, "cosine", "gauss", None, 1e-3)


def explanation(**changes) -> Explanation:
    """A known one: "unbelievable coffee" against "coffee"; ``tokens_a`` and the like change its sides."""
    first = {
        "text": "unbelievable coffee",
        "tokens": ("un", "##believ", "##able", "coffee"),
        "offsets": ((0, 2), (2, 8), (8, 12), (13, 19)),
        "kinds": ("text",) * 4,
        "nodes": 8,
        "mode": "forward",
        "effects": np.zeros(4),
        "errors": np.array([1e-4, 0.0, 0.0, 2e-4]),
        "sizes": np.array([0.5, 0.25, 0.0, 1.0]),
    }
    second = {
        "text": "Coffee!",
        "tokens": ("coffee", "!"),
        "offsets": ((0, 6), (6, 7)),
        "kinds": ("text",) * 2,
        "truncated": True,
        "nodes": 9,
        "mode": "pairwise",
        "effects": np.zeros(2),
        "errors": np.array([1e-4, 0.0]),
        "sizes": np.array([1.0, 0.5]),
    }
    for name in list(changes):
        if name[-2:] in ("_a", "_b"):
            side = first if name.endswith("_a") else second
            side[name[:-2]] = changes.pop(name)
    for side in (first, second):  # estimates that others than those tokens have are not known
        if len(side["errors"]) != len(side["tokens"]):
            side["errors"] = side["sizes"] = np.zeros(0)
    values = {
        "score": 0.75,
        "norms": 1.0,
        "matrix": np.array([[0.1, 0.0], [0.05, -0.2], [0.0, 0.05], [0.25, 0.5]]),
        "constant": 0.0,
        "a": Side(**first),
        "b": Side(**second),
        "settings": SETTINGS,
    }
    return Explanation(**{**values, **changes})


def assert_equal(first: Explanation, second: Explanation) -> None:
    for each in fields(Explanation):
        x, y = getattr(first, each.name), getattr(second, each.name)
        assert type(x) is type(y), each.name
        if not isinstance(x, Side):
            assert np.array_equal(x, y), each.name
    for x, y in ((first.a, second.a), (first.b, second.b)):
        for each in fields(Side):
            assert type(getattr(x, each.name)) is type(getattr(y, each.name)), each.name
            assert np.array_equal(getattr(x, each.name), getattr(y, each.name)), each.name
    assert first.error == second.error
    assert first.entry_error == second.entry_error or np.isnan(first.entry_error)


def test_error_is_what_the_sum_misses():
    assert explanation().error == pytest.approx(0)
    assert explanation(score=0.8).error == pytest.approx(0.05)
    why = explanation(effects_a=np.array([0.1, 0, 0, 0]), effects_b=np.array([0.0, 0.2]), constant=-0.3)
    assert why.attributed == pytest.approx(0.75)
    assert explanation(score=1.5, norms=2.0).relative_error == pytest.approx(0.375)


def test_words_keep_the_sum():
    words = explanation().words()
    assert words.tokens_a == ("unbelievable", "coffee")
    assert words.tokens_b == ("Coffee", "!")
    assert words.offsets_a == ((0, 12), (13, 19))
    np.testing.assert_allclose(words.matrix, [[0.15, -0.15], [0.25, 0.5]])
    assert words.error == pytest.approx(0)
    assert words.unit == "words"
    assert words.sums_to_score
    assert_equal(words.words(), words)


def test_word_means_say_that_they_do_not_sum():
    means = explanation().words(reduce="mean")
    np.testing.assert_allclose(means.matrix, [[0.05, -0.05], [0.25, 0.5]])
    assert not means.sums_to_score
    assert means.error == pytest.approx(abs(0.75 - means.matrix.sum()))
    assert "does not sum to the score" in repr(means)
    with pytest.raises(ValueError, match="means over words already"):
        means.words()


def test_words_of_reference_terms_keep_the_sum():
    why = explanation(effects_a=np.arange(4.0), effects_b=np.arange(2.0), constant=1.0)
    np.testing.assert_allclose(why.words().effects_a, [3, 3])
    assert why.words().attributed == pytest.approx(why.attributed)


def test_unknown_reduction():
    with pytest.raises(ValueError, match="reduce='max' is not known; choose 'sum' or 'mean'"):
        explanation().words(reduce="max")


def test_top_is_by_absolute_value():
    top = explanation().top(3)
    assert [(pair.token_a, pair.token_b, pair.value) for pair in top] == [
        ("coffee", "!", 0.5),
        ("coffee", "coffee", 0.25),
        ("##believ", "!", -0.2),
    ]
    assert (top[2].i, top[2].j) == (1, 1)
    assert len(explanation().top(100)) == 8
    assert explanation().top(0) == []
    for bad in (-1, 2.5, True):
        with pytest.raises(ValueError, match=f"k={bad} is not a number of pairs"):
            explanation().top(bad)


def test_json_is_exact(tmp_path):
    why = explanation(score=1 / 3, matrix=np.random.default_rng(0).standard_normal((4, 2)) * 1e-17)
    why.save(tmp_path / "why.json")
    assert_equal(Explanation.load(tmp_path / "why.json"), why)
    data = json.loads((tmp_path / "why.json").read_text())
    assert (data["format"], data["version"]) == ("whymatch.explanation", 2)
    assert data["error"] == why.error
    assert data["entry_error"] == why.entry_error
    assert list(tmp_path.iterdir()) == [tmp_path / "why.json"]


def test_a_number_that_was_changed_is_noticed(tmp_path):
    path = tmp_path / "why.json"
    explanation().save(path)
    whole = path.read_text()
    path.write_text(whole.replace("-0.2", "-0.3"))
    with pytest.raises(ValueError, match=r"why.json' is damaged: its content was changed after it was written"):
        Explanation.load(path)
    data = json.loads(whole)
    del data["checksum"]  # as earlier versions wrote it, or by hand
    path.write_text(json.dumps(data, indent=2))
    assert_equal(Explanation.load(path), explanation())


def test_a_real_explanation_survives_json(load, tmp_path):
    why = Explainer(load(), layer=1, fold_reference=False).explain("The coffee ☕ </script>", "")
    why.save(tmp_path / "why.json")
    assert_equal(Explanation.load(tmp_path / "why.json"), why)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, r"its format is 'other', not 'whymatch.explanation'"),
        ({"version": 99}, r"format version 99, and this whymatch reads 1 to 2"),
        ({"version": True}, r"format version True"),
        ({"version": 2.0}, r"format version 2\.0"),
        ({"matrix": [[1.0]]}, r"damaged: matrix has the shape \(1, 1\), not \(4, 2\)"),
        ({"matrix": [[0.1, 0.05, 0.0, 0.25], [0.0, -0.2, 0.05, 0.5]]}, r"damaged: matrix has the shape \(2, 4\)"),
        ({"matrix": [[0.1, 0.0], [0.05, float("nan")], [0.0, 0.05], [0.25, 0.5]]}, "numbers that are not finite"),
        ({"matrix": [["0.1", "0"], ["0", "0"], ["0", "0"], ["0", "0"]]}, "not an array of numbers"),
        ({"matrix": [[0.1], [0.05, 0.2]]}, "not an array of numbers"),
        ({"score": float("inf")}, "score is inf, not a number"),
        ({"score": True}, "score is True, not a number"),
        ({"score": "0.75"}, "score is '0.75', not a number"),
        ({"score": 10**400}, "score is 1000.*, not a number"),
        ({"norms": 0.0}, "norms is 0.0, which is not above 0"),
        ({"reduce": "evil"}, "reduce is 'evil', not 'sum' or 'mean'"),
        ({"a": None}, "a side is a NoneType"),
        ({"settings": {"model": "x"}}, "damaged"),
        ({"settings": {"model": 3}}, "setting model is 3"),
        ({"settings": {"evil": 3}}, "'evil', which is not known"),
    ],
)
def test_a_damaged_explanation_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Explanation.from_dict(explanation().to_dict() | change)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tolerance", float("nan")), ("tolerance", -1.0), ("similarity", "evil"), ("layer", True), ("base", 1.5)],
)
def test_a_damaged_setting_is_refused(name, value):
    data = explanation().to_dict()
    with pytest.raises(ValueError, match=f"damaged: its setting {name} is {value}|'{value}'"):
        Explanation.from_dict(data | {"settings": data["settings"] | {name: value}})


def test_version_1_still_loads():
    """One flat list of fields, as the first release wrote it."""
    why = explanation()
    flat = {
        f"{name}_{side}": value
        for side in "ab"
        for name, value in getattr(why, side).to_dict().items()
        if name not in ("nodes", "mode", "unit", "errors", "sizes")
    }
    settings = {name: value for name, value in asdict(SETTINGS).items() if name not in ("blocks", "trust_remote_code")}
    data = {
        "format": "whymatch.explanation",
        "version": 1,
        "score": 0.75,
        "matrix": why.matrix.tolist(),
        "constant": 0.0,
        "norms": 1.0,
        **flat,
        "nodes": [8, 9],
        "modes": ["forward", "pairwise"],
        "units": ["token", "token"],
        "reduce": "sum",
        "settings": settings,
        "error": 0.0,
    }
    loaded = Explanation.from_dict(json.loads(json.dumps(data)))
    assert loaded.tokens_a == why.tokens_a
    assert loaded.settings == why.settings
    assert loaded.b.truncated
    assert np.array_equal(loaded.matrix, why.matrix)
    assert np.isnan(loaded.entry_error)  # which it did not estimate
    assert np.isnan(loaded.words().entry_error)
    assert_equal(Explanation.from_dict(loaded.to_dict()), loaded)


def test_the_error_of_an_entry_comes_from_both_of_its_rows():
    why = explanation()
    np.testing.assert_allclose(why.entry_errors[0], [1e-4 * 1 + 0.5 * 1e-4, 1e-4 * 0.5])
    assert why.entry_error == pytest.approx(2e-4 + 1e-4)
    words = why.words()  # errors of sums add up
    np.testing.assert_allclose(words.entry_errors[0], [1e-4 * 1 + 0.75 * 1e-4, 1e-4 * 0.5])
    assert explanation(norms=2.0).entry_error == pytest.approx(2 * why.entry_error)


def test_an_incomplete_explanation_is_refused(tmp_path):
    data = explanation().to_dict()
    del data["b"]["tokens"]
    with pytest.raises(ValueError, match="a side has no 'tokens'"):
        Explanation.from_dict(data)
    del data["a"]
    with pytest.raises(ValueError, match="has no 'a'"):
        Explanation.from_dict(data)
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match=r"deep.json' is damaged: its values are nested too deeply"):
        Explanation.load(tmp_path / "deep.json")
    with pytest.raises(ValueError, match="its format is 'list'"):
        Explanation.from_dict([])
    (tmp_path / "half.json").write_text('{"format": "whym')
    with pytest.raises(ValueError, match=r"half.json' is not JSON"):
        Explanation.load(tmp_path / "half.json")


def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    explanation().save(tmp_path / "why.json")
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        explanation(score=0.1).save(tmp_path / "why.json")
    monkeypatch.undo()
    assert Explanation.load(tmp_path / "why.json").score == 0.75
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(OSError, match="it is a folder; name a file"):
        explanation().save(tmp_path)
    with pytest.raises(OSError, match="cannot write"):
        explanation().save(tmp_path / "none" / "why.json")


def test_links_and_devices_are_not_replaced(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    explanation().save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert Explanation.load(tmp_path / "real.json").score == 0.75
    explanation().save("/dev/null")
    assert not Path("/dev/null").is_file()


def test_it_tells_where_it_came_from():
    why = explanation()
    assert (why.model, why.layer, why.rule, why.reference, why.similarity) == ("tiny", 1, "gauss", "pad", "cosine")
    assert why.nodes == (8, 9)
    assert repr(why) == "Explanation(4 × 2 tokens, score=0.7500, error=0.0e+00, layer=1)"


def test_what_is_missing_sums_to_the_distance_from_a_perfect_match(load):
    explainer = Explainer(load("bert"), layer=1)
    why = explainer.pair(*explainer.decompose(["The coffee is bad.", "bad coffee"]))
    for side in why.missing:
        assert side.sum() == pytest.approx(1 - why.score, abs=2e-3)
    # A text's similarity with itself is a sum over its tokens: that of the pair of it with itself.
    same = explainer.pair(*explainer.decompose(["bad coffee", "bad coffee"]))
    assert same.a.own == pytest.approx(same.matrix.sum(1), abs=1e-3)
    assert np.abs(same.missing[0]).max() < 1e-3
    words = why.words()
    assert [side.sum() for side in words.missing] == pytest.approx([side.sum() for side in why.missing])
    again = Explanation.from_dict(why.to_dict())
    assert np.array_equal(again.missing[0], why.missing[0])
    # For a dot product, what is missing is missing from the text's product with itself.
    dot = Explainer(load("dot"), layer=1)
    pair = dot.decompose(["The coffee is bad.", "bad coffee"])
    product = float(pair[0].embedding @ pair[0].embedding)
    why = dot.pair(*pair)
    assert why.missing[0].sum() == pytest.approx(product - why.score, rel=1e-2)


def test_what_is_missing_is_not_always_known(load):
    explainer = Explainer(load("bert"), layer=1, fold_reference=False)
    with pytest.raises(ValueError, match="what is missing is known where the matrix sums to the score"):
        _ = explainer.explain("bad coffee", "coffee").missing
    why = Explainer(load("bert"), layer=1).explain("bad coffee", "coffee")
    data = why.to_dict()
    for side in "ab":
        del data[side]["own"]  # as earlier versions saved it
    with pytest.raises(ValueError, match="decompose both"):
        _ = Explanation.from_dict(data).missing

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from whymatch import Explainer, Explanation
from whymatch.decomposition import Settings

SETTINGS = Settings("tiny", 1, "pad", True, "cosine", "gauss", None, 1e-3)


def explanation(**changes) -> Explanation:
    """A known one: "unbelievable coffee" in three pieces and one, against "coffee"."""
    values = {
        "score": 0.75,
        "norms": 1.0,
        "matrix": np.array([[0.1, 0.0], [0.05, -0.2], [0.0, 0.05], [0.25, 0.5]]),
        "effects_a": np.zeros(4),
        "effects_b": np.zeros(2),
        "constant": 0.0,
        "text_a": "unbelievable coffee",
        "text_b": "Coffee!",
        "tokens_a": ("un", "##believ", "##able", "coffee"),
        "tokens_b": ("coffee", "!"),
        "offsets_a": ((0, 2), (2, 8), (8, 12), (13, 19)),
        "offsets_b": ((0, 6), (6, 7)),
        "kinds_a": ("text",) * 4,
        "kinds_b": ("text",) * 2,
        "boxes_a": None,
        "boxes_b": None,
        "image_a": None,
        "image_b": None,
        "truncated_a": False,
        "truncated_b": True,
        "nodes": (8, 9),
        "modes": ("forward", "pairwise"),
        "settings": SETTINGS,
    }
    return Explanation(**{**values, **changes})


def assert_equal(one: Explanation, other: Explanation) -> None:
    for field in fields(Explanation):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert type(a) is type(b), field.name
        assert np.array_equal(a, b), field.name


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
    assert (data["format"], data["version"]) == ("whymatch.explanation", 1)
    assert data["error"] == why.error
    assert list(tmp_path.iterdir()) == [tmp_path / "why.json"]


def test_a_real_explanation_survives_json(load, tmp_path):
    why = Explainer(load(), layer=1, fold_reference=False).explain("The coffee ☕ </script>", "")
    why.save(tmp_path / "why.json")
    assert_equal(Explanation.load(tmp_path / "why.json"), why)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, r"its format is 'other', not 'whymatch.explanation'"),
        ({"version": 99}, r"format version 99, and this whymatch reads 1"),
        ({"matrix": [[1.0]]}, "damaged"),
        ({"matrix": [[0.1, 0.05, 0.0, 0.25], [0.0, -0.2, 0.05, 0.5]]}, r"damaged: matrix has the shape \(2, 4\)"),
        ({"offsets_a": [1]}, "damaged"),
        ({"offsets_a": [[0, 1]]}, "damaged: there are not as many offsets as tokens"),
        ({"settings": {"model": "x"}}, "damaged"),
    ],
)
def test_a_damaged_explanation_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Explanation.from_dict(explanation().to_dict() | change)


def test_an_incomplete_explanation_is_refused(tmp_path):
    data = explanation().to_dict()
    del data["tokens_b"]
    with pytest.raises(ValueError, match="has no 'tokens_b'"):
        Explanation.from_dict(data)
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


def test_decompositions_of_different_kinds_do_not_pair(load):
    model = load()
    (a,) = Explainer(model, layer=1).decompose(["coffee"])
    (b,) = Explainer(model, layer=2).decompose(["coffee"])
    with pytest.raises(ValueError, match="layer is 1 for the first and 2 for the second; decompose both with one"):
        Explainer(model, layer=1).pair(a, b)
    with pytest.raises(TypeError, match="pair takes two decompositions, not a str: use explain for texts"):
        Explainer(model).pair("a", "b")
    assert Explainer(model, layer=1).pair(a, replace(a, text="other")).text_b == "other"

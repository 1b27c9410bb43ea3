"""One side of a pair."""

from __future__ import annotations

import numpy as np
import pytest

from test_explanation import explanation
from whymatch import Explanation
from whymatch.reading.sides import Side


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [1]}, "offsets is not a list of 4"),
        ({"offsets": [[0, 1]]}, "offsets is not a list of 4"),
        ({"offsets": [[0, 1], [0, 1], [0, 1], [0, "1"]]}, "one of offsets is '1', not a whole number"),
        ({"tokens": "text"}, "tokens is a str, not a list"),
        ({"tokens": ["a", "b", "c", 4]}, "one of tokens is a int"),
        ({"kinds": ["text"]}, "there are 1 kinds for 4 tokens"),
        ({"kinds": ["text", "text", "text", "evil"]}, "the kind 'evil' is not known"),
        ({"truncated": 1}, "truncated is 1, not true or false"),
        ({"nodes": 1.5}, "nodes is 1.5, not a whole number"),
        ({"nodes": -1}, "nodes is -1, which is below 0"),
        ({"offsets": [[0, 1], [0, 1], [0, 1], [3, 1]]}, r"one of offsets is \[3, 1\], which is no span"),
        ({"offsets": [[0, 1], [0, 1], [0, 1], [-3, 1]]}, r"one of offsets is \[-3, 1\], which is no span"),
        ({"errors": [0.0, 0.0, 0.0, -0.5]}, "errors holds -0.5, which is below 0"),
        ({"effects": [0.0]}, r"effects has the shape \(1,\)"),
        ({"boxes": [[0, 0, 1, 1]]}, "boxes is not a list of 4"),
        ({"image": ["data:", 1]}, "image is not an address"),
        ({"sizes": []}, "errors of parts, and 0 sizes: both are known, or neither"),
    ],
)
def test_a_damaged_side_is_refused(change, message):
    data = explanation().to_dict()
    with pytest.raises(ValueError, match=f"this explanation is damaged: .*{message}"):
        Explanation.from_dict(data | {"a": data["a"] | change})


def test_names_of_the_sides_are_properties_too():
    why = explanation()
    for name in ("text", "tokens", "offsets", "kinds", "boxes", "image", "truncated", "effects"):
        assert getattr(why, f"{name}_a") is getattr(why.a, name)
        assert getattr(why, f"{name}_b") is getattr(why.b, name)
    assert (why.nodes, why.modes, why.units) == ((8, 9), ("forward", "pairwise"), ("token", "token"))


def side(**changes) -> Side:
    values = {
        "text": "unable dogs",
        "tokens": ("[CLS]", "un", "##able", "dogs"),
        "offsets": ((0, 0), (0, 2), (2, 6), (7, 11)),
        "kinds": ("special", "text", "text", "text"),
        "effects": np.array([1.0, 2.0, 3.0, 4.0]),
        "errors": np.array([0.1, 0.2, 0.3, 0.4]),
        "sizes": np.array([0.5, 0.6, 0.7, 0.8]),
        "own": np.array([0.1, 0.2, 0.3, 0.4]),
    }
    return Side(**values | changes)


def test_content_is_what_the_template_did_not_add():
    assert side().content == [1, 2, 3]
    assert side(kinds=("special", "prompt", "text", "text")).content == [2, 3]


def test_some_parts_of_a_side_have_all_that_belongs_to_them():
    some = side(boxes=((0, 0, 1, 1), (1, 0, 2, 1), (0, 1, 1, 2), (1, 1, 2, 2))).select([3, 1])
    assert (some.tokens, some.kinds) == (("dogs", "un"), ("text", "text"))
    assert (some.offsets, some.boxes) == (((7, 11), (0, 2)), ((1, 1, 2, 2), (1, 0, 2, 1)))
    for name, expected in {"effects": [4, 2], "errors": [0.4, 0.2], "sizes": [0.8, 0.6], "own": [0.4, 0.2]}.items():
        assert getattr(some, name).tolist() == expected, name
    assert Side.from_dict(some.to_dict()).tokens == some.tokens
    assert len(side(own=np.zeros(0), errors=np.zeros(0)).select([0]).own) == 0


def test_words_sum_or_average_their_tokens():
    words, merge = side().words()
    assert words.tokens == ("[CLS]", "unable", "dogs")
    assert words.unit == "word"
    assert merge.tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_allclose(words.effects, [1, 5, 4])
    np.testing.assert_allclose(words.errors, [0.1, 0.5, 0.4])  # at most the sum of those of its tokens
    np.testing.assert_allclose(words.own, [0.1, 0.5, 0.4])
    assert side().words("mean")[1][1].tolist() == [0, 0.5, 0.5, 0]


def test_a_side_survives_plain_values():
    again = Side.from_dict(side(truncated=True, nodes=7, mode="forward", moved=0.25).to_dict())
    assert (again.tokens, again.offsets, again.truncated, again.nodes) == (side().tokens, side().offsets, True, 7)
    assert (again.mode, again.moved, again.own.tolist()) == ("forward", 0.25, [0.1, 0.2, 0.3, 0.4])
    with pytest.raises(ValueError, match="a side has no 'kinds': it is incomplete"):
        Side.from_dict({name: value for name, value in side().to_dict().items() if name != "kinds"})

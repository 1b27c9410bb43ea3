"""How the two sides of a pair are read."""

from __future__ import annotations

import pytest

from whymatch.reading.inputs import EncodeOptions
from whymatch.reading.readings import (
    PLAIN,
    both_groups,
    both_options,
    compare_readings,
    describe_readings,
    parse_readings,
)


def test_one_value_is_for_both_sides_and_a_pair_for_each():
    assert both_options("query", None, "p: ") == (EncodeOptions("query", None, "p: "),) * 2
    expected = EncodeOptions("query", "q", None), EncodeOptions(None, "d", "")
    assert both_options(("query", None), ["q", "d"], (None, "")) == expected


def test_an_asymmetric_model_has_a_query_and_a_document():
    assert both_options(None, None, None, asymmetric=True) == (EncodeOptions("query"), EncodeOptions("document"))
    assert both_options("query", None, None, asymmetric=True) == (EncodeOptions("query"),) * 2
    assert both_options(None, None, None) == (EncodeOptions(),) * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3, None, None), "task=3 is not a text: give one, or a pair"),
        ((None, ("a", 7), None), "prompt_name=7 is not a text"),
        ((None, None, ("a", "b", "c")), r"prompt=\('a', 'b', 'c'\) is not a text"),
    ],
)
def test_what_is_no_text_is_named(given, message):
    with pytest.raises(TypeError, match=message):
        both_options(*given)


def test_a_pair_of_spans_is_one_grouping():
    assert both_groups(((0, 3), (4, 6))) == (((0, 3), (4, 6)),) * 2
    assert both_groups([[0, 3], [4, 6]]) == (((0, 3), (4, 6)),) * 2
    assert both_groups(([(0, 3)], "words")) == (((0, 3),), "words")
    assert both_groups(("words", None), usual="sentences") == ("words", "sentences")
    assert both_groups(None, usual="words") == ("words", "words")
    with pytest.raises(ValueError, match="groups='letters' is not known"):
        both_groups(("words", "letters"))


def test_readings_survive_plain_values():
    readings = EncodeOptions("query", prompt="q: "), EncodeOptions("document", prompt="")
    assert parse_readings(describe_readings(readings)) == readings
    assert compare_readings(readings, readings) == []
    assert compare_readings(readings, PLAIN) == [
        "queries are read as query texts with the prompt 'q: ' there and plain texts with the prompt '' here",
        "documents are read as document texts with the prompt '' there and plain texts with the prompt '' here",
    ]
    for damage in ({"task": 3, "prompt": ""}, {"task": None, "prompt": None}):
        with pytest.raises(ValueError, match="it says that texts are read as"):
            parse_readings({"query": damage, "document": damage})

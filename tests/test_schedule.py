"""Which inputs run together, and which side of a pair is only projected."""

from __future__ import annotations

import numpy as np
import pytest

from whymatch.reading.inputs import EncodeOptions, Input, TokenSource
from whymatch.reading.sides import Side
from whymatch.schedule import TEXTS_TOGETHER, plan

DIMENSIONS = 384


def source(rows, parts=None, task=None) -> TokenSource:
    """An input of so many rows, of which the first and the last belong to the template."""
    count = rows if parts is None else parts
    kinds = ("special", *["text"] * (rows - 2), "special")
    return TokenSource(
        side=Side(text="", tokens=("",) * count, offsets=((0, 0),) * count, kinds=kinds[:count]),
        shares=np.full(count, 1 / count),
        embedding=np.zeros(DIMENSIONS),
        owner=np.zeros(rows, int),
        input=Input(
            value="",
            text="",
            options=EncodeOptions(task, None, None),
            tokens=("",) * rows,
            offsets=((0, 0),) * rows,
            kinds=kinds,
            truncated=False,
            reader=None,
            features={},
        ),
    )


def test_inputs_of_one_length_and_route_run_together():
    sources = {"a": source(5), "b": source(6), "c": source(5), "d": source(5, task="query")}
    assert plan(sources).batches == [["a", "c"], ["b"], ["d"]]


def test_batches_are_bounded():
    sources = {number: source(5) for number in range(2 * TEXTS_TOGETHER + 1)}
    assert [len(batch) for batch in plan(sources).batches] == [TEXTS_TOGETHER, TEXTS_TOGETHER, 1]


@pytest.mark.parametrize(
    ("query", "document", "projected"),
    [
        (6, 100, {0: "document"}),
        (100, 6, {0: "query"}),
        (50, 50, {0: "document"}),  # a cotangent costs less than a tangent
        (500, 480, {}),  # more cotangents than there are dimensions
    ],
)
def test_the_longer_side_is_projected(query, document, projected):
    sources = {"query": source(query), "document": source(document)}
    assert plan(sources, [("query", "document")]).projected == projected


@pytest.mark.parametrize(("document", "extra", "projected"), [(14, 0, True), (14, 8, False), (15, 8, True)])
def test_cotangents_that_a_projection_takes_beside_the_others_are_counted(document, extra, projected):
    sources = {"query": source(6), "document": source(document)}
    planned = plan(sources, [("query", "document")], reverse_cost=1.0, extra=extra)
    assert planned.projected == ({0: "document"} if projected else {})


def test_an_input_in_several_pairs_is_decomposed():
    sources = {"query": source(6), "document": source(100), "other": source(8)}
    pairs = [("query", "document"), ("other", "document")]
    assert plan(sources, pairs).projected == {}
    assert plan({"text": source(6)}, [("text", "text")]).projected == {}


def test_what_is_decomposed_already_is_the_side_to_project_on():
    document = {"document": source(100)}
    assert plan(document, [("query", "document")], known={"query": 6}).projected == {0: "document"}
    assert plan(document, [("query", "document")], known={"query": 130}).projected == {}


def test_a_template_that_does_not_move_needs_no_tangents():
    sources = {"query": source(9), "document": source(10)}
    assert plan(sources, [("query", "document")]).projected == {0: "document"}
    assert plan(sources, [("query", "document")], template_is_still=True).projected == {0: "document"}
    sources = {"query": source(4), "document": source(5)}
    assert plan(sources, [("query", "document")]).projected == {0: "document"}
    assert plan(sources, [("query", "document")], template_is_still=True).projected == {}


def test_what_is_projected_is_in_no_batch():
    sources = {"query": source(6), "document": source(100)}
    planned = plan(sources, [("query", "document")])
    assert planned.batches == [["query"]]
    assert planned.projected == {0: "document"}


def test_where_both_directions_cost_the_same_texts_of_one_length_run_together():
    sources = {"query": source(9), "document": source(9)}
    planned = plan(sources, [("query", "document")], reverse_cost=1.0)
    assert planned.batches == [["query", "document"]]
    assert planned.projected == {}

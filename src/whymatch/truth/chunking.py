"""Does an explanation give chunks of sentences the weight that people give them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whymatch.results.alignment import link
from whymatch.truth.data import ChunkedPair
from whymatch.truth.judging import judge
from whymatch.truth.links import top1
from whymatch.truth.results import Correlation, Measure, Result, Row, mean_of
from whymatch.truth.subjects import Attribution, Subject, TextPair
from whymatch.words import shares

TYPES = ("EQUI", "OPPO", "SPE1", "SPE2", "SIMI", "REL")


@dataclass(frozen=True)
class Chunks:
    """Links between chunks, and what they are worth, compared with people's links, types and grades from 0 to 5.

    The value of two chunks is the sum of their words' entries, divided by the square root of how many entries there
    are, so that long chunks are not better for being long; ``grades_by_sum`` leaves the division out.
    """

    name = "chunks"
    headline = "f1"
    groups = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"value": "sum / sqrt(words × words)", "links": "together"}

    @property
    def measures(self) -> Mapping[str, Measure | Correlation]:
        measures: dict[str, Measure | Correlation] = {
            "f1": Measure({"hits": 2}, {"drawn": 1, "gold": 1}),
            "precision": Measure({"hits": 1}, {"drawn": 1}),
            "recall": Measure({"hits": 1}, {"gold": 1}),
            "top1": Measure({"right": 1}, {"decisions": 1}),
            "grades": Correlation("values", "grades"),
            "grades_by_sum": Correlation("sums", "grades"),
            "unlinked": mean_of("unlinked"),
        }
        return measures | {kind: Measure({f"{kind}_sum": 1}, {f"{kind}_count": 1}) for kind in TYPES}

    def texts(self, item: ChunkedPair) -> TextPair:
        return item.text_a, item.text_b

    def measure(self, item: ChunkedPair, attribution: Attribution) -> Row:
        merged = [
            np.stack([shares(spans, units)[list(chunk)].sum(0) for chunk in chunks])
            for spans, units, chunks in (
                (attribution.spans_a, item.spans_a, item.chunks_a),
                (attribution.spans_b, item.spans_b, item.chunks_b),
            )
        ]
        sums = np.asarray(merged[0] @ attribution.matrix @ merged[1].T)
        sizes = np.outer([len(chunk) for chunk in item.chunks_a], [len(chunk) for chunk in item.chunks_b])
        values = sums / np.sqrt(sizes)
        gold = np.zeros(values.shape, bool)
        for each in item.links:
            gold[each.a, each.b] = True
        drawn = link(values, "mutual")
        row: Row = {
            "gold": int(gold.sum()),
            "drawn": int(drawn.sum()),
            "hits": int((gold & drawn).sum()),
            **top1(values, gold),
            "values": [float(values[each.a, each.b]) for each in item.links],
            "sums": [float(sums[each.a, each.b]) for each in item.links],
            "grades": [each.grade for each in item.links],
            "unlinked": float(values[~gold].mean()) if not gold.all() else None,
        }
        for kind in TYPES:
            of_kind = [float(values[each.a, each.b]) for each in item.links if each.kind == kind]
            row |= {f"{kind}_sum": sum(of_kind), f"{kind}_count": len(of_kind)}
        return row


def chunks(explainer: Subject, chunked_pairs: Sequence[ChunkedPair]) -> Result:
    """Test whether chunks that people aligned are linked, and whether stronger links have higher grades.

    Args:
        explainer: an Explainer, a baseline, or a function ``(a, b) -> matrix``.
        chunked_pairs: pairs with people's chunks and links; see :func:`whymatch.truth.read_chunked`.

    Returns:
        ``value`` is the F1 of links; ``estimates`` also has Spearman's correlation with the grades, and the mean value
        of each type of link: does OPPO come out lower than EQUI?
    """
    return judge(Chunks(), explainer, list(chunked_pairs))

"""Does an explanation point where people point?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whymatch.quadrature import Floats
from whymatch.results.alignment import link, together
from whymatch.truth.data import AlignedPair
from whymatch.truth.judging import judge
from whymatch.truth.results import Measure, Result, Row
from whymatch.truth.subjects import Attribution, Subject, TextPair

KINDS = ("matrix", "mutual", "assignment")


@dataclass(frozen=True)
class WordLinks:
    """Links between words, compared with those that people drew.

    top1: for every word that people linked, of either text: is its strongest partner one that they linked it with?
    together_top1: the same for the partner with which it adds most beyond what both add on average.
    Precision, recall and F1 are of three ways to draw links: ``matrix`` links each word with its strongest partner,
    ``mutual`` and ``assignment`` are those of :meth:`whymatch.Explanation.align`.
    """

    name = "alignment"
    headline = "top1"
    groups = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"links": "together"}  # by what they are chosen; earlier versions compared entries

    @property
    def measures(self) -> Mapping[str, Measure]:
        measures = {
            "top1": Measure({"right": 1}, {"decisions": 1}),
            "together_top1": Measure({"together_right": 1}, {"decisions": 1}),
        }
        for kind in KINDS:
            hits, drawn = f"{kind}_hits", f"{kind}_links"
            measures[f"{kind}_precision"] = Measure({hits: 1}, {drawn: 1})
            measures[f"{kind}_recall"] = Measure({hits: 1}, {"gold": 1})
            measures[f"{kind}_f1"] = Measure({hits: 2}, {drawn: 1, "gold": 1})
        return measures

    def texts(self, item: AlignedPair) -> TextPair:
        return item.text_a, item.text_b

    def measure(self, item: AlignedPair, attribution: Attribution) -> Row:
        matrix = attribution.over(item.spans_a, item.spans_b)
        gold = np.zeros(matrix.shape, bool)
        gold[tuple(np.array(item.links).T)] = True
        row: Row = {"gold": int(gold.sum()), **top1(matrix, gold)}
        row["together_right"] = top1(together(matrix), gold)["right"]
        for kind in KINDS:
            drawn = strongest(matrix) if kind == "matrix" else link(matrix, kind)
            row |= {f"{kind}_links": int(drawn.sum()), f"{kind}_hits": int((drawn & gold).sum())}
        return row


def top1(matrix: Floats, gold: np.ndarray) -> Row:
    """Count the linked rows and columns, and those whose largest entry is a link."""
    right = decisions = 0
    for values, links in ((matrix, gold), (matrix.T, gold.T)):
        linked = np.flatnonzero(links.any(1))
        right += int(links[linked, values[linked].argmax(1)].sum())
        decisions += len(linked)
    return {"right": right, "decisions": decisions}


def strongest(matrix: Floats) -> np.ndarray:
    """Mark the largest entry of each row and of each column."""
    drawn = np.zeros(matrix.shape, bool)
    drawn[np.arange(len(matrix)), matrix.argmax(1)] = True
    drawn[matrix.argmax(0), np.arange(matrix.shape[1])] = True
    return drawn


def alignment(explainer: Subject, aligned_pairs: Sequence[AlignedPair]) -> Result:
    """Test whether words that people linked are each other's strongest partners.

    Args:
        explainer: an Explainer, a baseline, or a function ``(a, b) -> matrix``.
        aligned_pairs: pairs with people's links; see :func:`whymatch.truth.read_aligned`.

    Returns:
        ``value`` is the share of linked words, in both directions, whose strongest partner is one of their links.
    """
    return judge(WordLinks(), explainer, list(aligned_pairs))

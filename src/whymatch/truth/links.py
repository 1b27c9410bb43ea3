"""Does an explanation point where people point?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whymatch.quadrature import Floats
from whymatch.results.alignment import link, together
from whymatch.settings import SIMILARITIES
from whymatch.truth.asking import Model
from whymatch.truth.data import AlignedPair
from whymatch.truth.deletions import model_of
from whymatch.truth.judging import judge
from whymatch.truth.results import Measure, Result, Row
from whymatch.truth.subjects import Attribution, Subject, TextPair, similarity_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KINDS = ("matrix", "mutual", "assignment")


@dataclass(frozen=True)
class WordLinks:
    """Links between words, compared with those that people drew.

    top1: for every word that people linked, of either text: is its strongest partner one that they linked it with?
    together_top1: the same for the partner with which it adds most beyond what both add on average.
    top1_by_effect, together_top1_by_effect: the same, where each word counts by how much the model's score changes
    without it. A word that changes nothing has no partner that matters, though people linked it with one.
    Precision, recall and F1 are of three ways to draw links: ``matrix`` links each word with its strongest partner,
    ``mutual`` and ``assignment`` are those of :meth:`whymatch.Explanation.align`.

    Attributes:
        model: the model that says what words change; None leaves the measures by effect out.
    """

    model: Model | None = None

    name = "alignment"
    headline = "top1"
    groups = None

    @property
    def settings(self) -> Mapping[str, Any]:
        # By what links are chosen; earlier versions compared entries.
        return {"links": "together", "by_effect": self.model is not None}

    @property
    def measures(self) -> Mapping[str, Measure]:
        measures = {
            "top1": Measure({"right": 1}, {"decisions": 1}),
            "together_top1": Measure({"together_right": 1}, {"decisions": 1}),
        }
        if self.model is not None:
            for name in ("", "together_"):
                measures[f"{name}top1_by_effect"] = Measure({f"{name}right_by_effect": 1}, {"effect": 1})
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
        gold[tuple(np.array(item.links, int).reshape(-1, 2).T)] = True
        added = together(matrix)
        row: Row = {"gold": int(gold.sum()), **top1(matrix, gold), "together_right": top1(added, gold)["right"]}
        if self.model is not None:
            effects = self.model.effects(self.texts(item), (item.spans_a, item.spans_b))
            by_effect = top1(matrix, gold, effects)
            row |= {"right_by_effect": by_effect["right"], "effect": by_effect["decisions"]}
            row["together_right_by_effect"] = top1(added, gold, effects)["right"]
        for kind in KINDS:
            drawn = strongest(matrix) if kind == "matrix" else link(matrix, kind)
            row |= {f"{kind}_links": int(drawn.sum()), f"{kind}_hits": int((drawn & gold).sum())}
        return row


def top1(matrix: Floats, gold: np.ndarray, weights: tuple[Floats, Floats] | None = None) -> Row:
    """Count the linked rows and columns, and those whose largest entry is a link; each counts 1, or its weight.

    Where several entries are the largest, those that are links count for their part.
    """
    right = decisions = 0.0
    for side, (values, links) in enumerate(((matrix, gold), (matrix.T, gold.T))):
        linked = np.flatnonzero(links.any(1))
        each = np.ones(len(linked)) if weights is None else weights[side][linked]
        largest = values[linked] == values[linked].max(1, keepdims=True)
        right += float(each @ ((largest & links[linked]).sum(1) / largest.sum(1)))
        decisions += float(each.sum())
    return {"right": right, "decisions": decisions}


def strongest(matrix: Floats) -> np.ndarray:
    """Mark the largest entry of each row and of each column."""
    drawn = np.zeros(matrix.shape, bool)
    drawn[np.arange(len(matrix)), matrix.argmax(1)] = True
    drawn[matrix.argmax(0), np.arange(matrix.shape[1])] = True
    return drawn


def alignment(
    explainer: Subject, aligned_pairs: Sequence[AlignedPair], *, model: Model | SentenceTransformer | None = None
) -> Result:
    """Test whether words that people linked are each other's strongest partners.

    Args:
        explainer: an Explainer, a baseline, or a function ``(a, b) -> matrix``.
        aligned_pairs: pairs with people's links; see :func:`whymatch.truth.read_aligned`.
        model: the model that says what each word changes; None is the explainer's own. A function has none, and then
            the measures by effect are left out.

    Returns:
        ``value`` is the share of linked words, in both directions, whose strongest partner is one of their links.
    """
    known = model is not None or (hasattr(explainer, "model") and similarity_of(explainer) in SIMILARITIES)
    asked = model_of(explainer, model) if known else None
    return judge(WordLinks(asked), explainer, list(aligned_pairs))

"""The few links between two texts that a person would draw, chosen from the whole matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from whymatch.quadrature import Floats

if TYPE_CHECKING:
    from whymatch.results.explanation import Explanation, Pair

Kind = Literal["mutual", "assignment", "flow"]

# A link this much weaker than the strongest is one that nobody would draw.
FAINT = 0.02


@dataclass(frozen=True)
class Alignment:
    """Links, strongest first, and the share of the score that they carry."""

    kind: str
    links: tuple[Pair, ...]
    share: float

    def __repr__(self) -> str:
        links = ", ".join(f"{link.token_a}–{link.token_b}" for link in self.links)
        return f"Alignment({self.kind}, {self.share:.0%} of the score: {links})"


def align(why: Explanation, kind: Kind = "mutual") -> Alignment:
    """Link what the texts themselves say; the model's template and prompt are left out.

    ``"mutual"``: two entries that are each other's strongest. ``"assignment"``: each entry at most once, chosen for
    the largest sum. ``"flow"``: optimal transport of the rows' totals to the columns', so an entry may
    have several links.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r} is not known; choose {', '.join(map(repr, get_args(Kind)))}")
    rows, columns = why.a.content, why.b.content
    part = np.maximum(why.matrix[np.ix_(rows, columns)], 0)
    if part.size == 0 or not part.any():
        return Alignment(kind, (), 0.0)
    places = [(rows[i], columns[j]) for i, j in zip(*np.nonzero(link(part, kind)), strict=True)]
    links = sorted((why.entry(i, j) for i, j in places), key=lambda link: -link.value)
    share = sum(link.value for link in links) / why.score if why.score else 0.0
    return Alignment(kind, tuple(links), share)


def link(part: Floats, kind: str) -> np.ndarray:
    """Mark the links in a matrix that is not negative; see :func:`align`."""
    if part.size == 0 or not part.any():
        return np.zeros(part.shape, dtype=bool)
    chosen: np.ndarray = {"mutual": _mutual, "assignment": _assignment, "flow": _flow}[kind](part)
    return np.asarray(chosen & (part > FAINT * part.max()))


def _mutual(part: Floats) -> np.ndarray:
    best: np.ndarray = (part == part.max(0, keepdims=True)) & (part == part.max(1, keepdims=True))
    return best


def _assignment(part: Floats) -> np.ndarray:
    from scipy.optimize import linear_sum_assignment

    chosen = np.zeros(part.shape, dtype=bool)
    chosen[linear_sum_assignment(part, maximize=True)] = True
    return chosen


def _flow(part: Floats) -> np.ndarray:
    """Transport the rows' sums to the columns' at the highest total value."""
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    rows, columns = part.shape
    give, take = part.sum(1), part.sum(0)
    leave = kron(eye_array(rows), np.ones((1, columns)))
    arrive = kron(np.ones((1, rows)), eye_array(columns))
    # One condition follows from the others. It is left out, since rounding could make them contradict each other.
    conditions = vstack([leave, arrive]).tocsr()[:-1]
    solved = linprog(-part.ravel(), A_eq=conditions, b_eq=np.concatenate([give, take])[:-1], method="highs")
    if not solved.success:
        raise ArithmeticError(f"the transport between the texts could not be solved: {solved.message}")
    moved: np.ndarray = solved.x.reshape(part.shape) > 1e-9 * give.sum()
    return moved

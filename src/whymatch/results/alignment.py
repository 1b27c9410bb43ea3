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
ROUNDING = 1e-9


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

    ``"mutual"``: a row and a column that are each other's strongest. ``"assignment"``: each at most once, chosen for
    the largest sum. Both compare what two entries add together with what they add on average (see :func:`together`).
    ``"flow"``: optimal transport of the rows' totals to the columns', so an entry may have several links.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r} is not known; choose {', '.join(map(repr, get_args(Kind)))}")
    rows, columns = why.a.content, why.b.content
    part = why.matrix[np.ix_(rows, columns)]
    places = [(rows[i], columns[j]) for i, j in zip(*np.nonzero(link(part, kind)), strict=True)]
    links = sorted((why.entry(i, j) for i, j in places), key=lambda link: -link.value)
    share = sum(link.value for link in links) / why.score if why.score else 0.0
    return Alignment(kind, tuple(links), share)


def link(part: Floats, kind: str) -> np.ndarray:
    """Mark the links in a matrix; see :func:`align`. Entries that lower the score are not linked."""
    positive = np.maximum(part, 0)
    clear: np.ndarray = positive > FAINT * positive.max(initial=0)
    if not clear.any():
        return clear
    if kind == "flow":
        return np.asarray(clear & _flow(positive))
    added = together(part)
    if not (added > ROUNDING * positive.max()).any():  # every row is like the others, but for its size
        added = positive
    # An entry that would not be drawn takes no other's place.
    clear &= added > ROUNDING * positive.max()
    return np.asarray(clear & {"mutual": _mutual, "assignment": _assignment}[kind](np.where(clear, added, 0)))


def together(part: Floats) -> Floats:
    """Return what a row and a column add to the score together, beyond what each of them adds on average.

    A word that adds much with every other word is nobody's special partner: compared like this, people's links are
    found more often (docs/truth.md). What lowers the score counts as nothing, or one such entry would raise all others
    of its row and column. A text of one word has no average to compare with.
    """
    positive = np.maximum(part, 0)
    if min(part.shape) < 2:
        return positive
    return np.asarray(positive - positive.mean(0) - positive.mean(1, keepdims=True) + positive.mean())


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

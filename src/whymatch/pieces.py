"""Quadrature on pieces: for a path that is too steep in places for any single rule.

Where an encoder turns within a thousandth of the way, nodes that are spread over the whole path pass it by. The path is
halved, and its halves again, until a polynomial tells how the embedding moves on each piece; each piece then has a few
Gauss nodes of its own. Plain passes find the pieces, and derivatives are taken at their nodes alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from whymatch.quadrature import Floats, Pieces, Rule, legendre

DEGREE = 12  # of a piece's polynomial; half as many Gauss nodes integrate its derivative exactly
FIRST = 4  # pieces of the first look
FEWEST = 3  # nodes of a piece: parts may turn where the total does not
SAFETY = 0.25  # of the tolerance: after a miss, all derivatives are computed again
ROUNDING = 16  # units in the last place that a polynomial's last terms may be made of
MOST = 1024  # pieces
SHORTEST = 2.0**-20  # a piece that is shorter than this, and has no polynomial yet, is a jump


class Piece(NamedTuple):
    """A part of a path, from ``low`` to ``high``, and the embedding on it as a Chebyshev series.

    ``before`` is what the series of the piece that it is a half of left out.
    """

    low: float
    high: float
    before: float
    series: Floats  # (DEGREE + 1, dim)

    @property
    def length(self) -> float:
        return self.high - self.low

    def slopes(self, alpha: Floats) -> Floats:
        """Return the derivative at positions on this piece (positions, dim)."""
        derivative = chebyshev.chebder(self.series, scl=2 / self.length)
        return np.asarray(chebyshev.chebval(2 * (alpha - self.low) / self.length - 1, derivative).T)


class PieceProbe:
    """Which pieces does this path need, and how many nodes each? Answered by plain passes, without derivatives.

    Args:
        end: the values at the end of the path: of an embedding, or its products with some directions.
        size: where they are products: the length of the whole embedding at the end. The error is then the sum of the
            errors along all directions, instead of the error's length.
    """

    def __init__(self, end: NDArray[np.floating], size: float | None = None) -> None:
        self._order = None if size is None else 1
        self._size = (float(np.linalg.norm(end)) if size is None else float(size)) or 1.0
        self.pieces: list[Piece] = []
        self._rounding = 0.0
        self._waiting = [(i / FIRST, (i + 1) / FIRST, np.inf) for i in range(FIRST)]

    def missing(self) -> Floats:
        """Return the positions on the path whose values the next refinement needs."""
        return np.concatenate([low + (high - low) * _points() for low, high, _ in self._waiting])

    def add(self, values: NDArray[np.floating]) -> None:
        self._rounding = ROUNDING * float(np.finfo(values.dtype).eps)
        each = np.asarray(values, np.float64).reshape(len(self._waiting), DEGREE + 1, -1)
        series = _coefficients() @ each
        self.pieces += [Piece(*place, own) for place, own in zip(self._waiting, series, strict=True)]
        self.pieces.sort(key=lambda piece: piece.low)
        self._waiting = []

    def nodes(self, _rule: Rule, tolerance: float) -> tuple[int, Pieces] | None:
        """Return how many nodes bring the relative error of the total below ``tolerance``, and on which pieces.

        None: refine first. Errors of pieces add up, in no particular direction.
        """
        if self._waiting:
            return None
        own = max(SAFETY * tolerance / np.sqrt(len(self.pieces)), self._rounding)
        smooth: list[Piece] = []
        for piece in self.pieces:
            left_out = self.left_out(piece)
            # No division mends rounding, of which every piece has as much: more where the path is steep.
            rounded = left_out > piece.before / 2 and left_out <= SAFETY * tolerance
            if left_out <= own or rounded or piece.length <= SHORTEST:
                smooth.append(piece)
            else:
                middle = (piece.low + piece.high) / 2
                self._waiting += [(piece.low, middle, left_out), (middle, piece.high, left_out)]
        if self._waiting and len(smooth) + len(self._waiting) <= MOST:
            self.pieces = smooth
            return None
        self._waiting = []
        counts = tuple(max(FEWEST, self._enough(piece, own)) for piece in self.pieces)
        return sum(counts), Pieces((0.0, *(piece.high for piece in self.pieces)), counts)

    def is_rough(self, tolerance: float) -> bool:
        """Whether even the shortest pieces, or the most, leave more than this unresolved."""
        return max(map(self.left_out, self.pieces)) > tolerance

    def left_out(self, piece: Piece) -> float:
        """Return the size of a polynomial's last terms, relative to the embedding's: its error is about as large."""
        return float(np.linalg.norm(piece.series[-2:], self._order, axis=1).max()) / self._size

    def _enough(self, piece: Piece, tolerance: float) -> int:
        """Return how many Gauss nodes a piece needs."""
        derivative = chebyshev.chebder(piece.series)
        change = chebyshev.chebval(1, piece.series) - chebyshev.chebval(-1, piece.series)
        for count in range(1, DEGREE // 2):
            x, weights = legendre(count)
            missed = weights @ chebyshev.chebval(x, derivative).T - change
            if np.linalg.norm(missed, self._order) <= tolerance * self._size:
                return count
        return DEGREE // 2


@lru_cache(maxsize=1)
def _points() -> Floats:
    """Return the Chebyshev points on [0, 1], the ends among them."""
    return np.asarray(np.sin(np.pi * np.arange(DEGREE + 1) / DEGREE / 2) ** 2)


@lru_cache(maxsize=1)
def _coefficients() -> Floats:
    """Return the matrix from values at the points of a piece to the coefficients of its series."""
    return np.asarray(np.linalg.inv(chebyshev.chebvander(2 * _points() - 1, DEGREE)))

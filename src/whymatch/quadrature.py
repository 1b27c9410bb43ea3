"""Quadrature: nodes and weights on [0, 1], how many nodes a path needs, and how large the remaining error is.

The speed of an encoder along the path from "nothing" to the text has one bump near the middle. Gauss–Legendre nodes are
therefore placed through a lens, a sinh map that crowds them there. Where exactly the bump is, and how wide it is,
differs from text to text and is found by plain passes along the path.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
RuleName = Literal["gauss", "midpoint", "right", "pieces"]

FINEST = 128  # intervals beyond which a path is not smooth, and more of them would not tell more
FLAT = 0.35  # a series whose last terms are this large, relative to its middle ones, does not fall off
NOISE = 1e-6  # rounding in single precision: errors below it that stopped falling fall no further
FALLING = 0.1  # the logarithm of the factor by which each node lowers the error of a smooth path, at least
CLOSE = 0.95  # the share of the tolerance to aim at: after a narrow miss, all derivatives are computed again


@dataclass(frozen=True)
class Lens:
    """A map of [0, 1] onto itself that crowds points around ``centre``, the closer the smaller ``width`` is."""

    centre: float = 0.5
    width: float = 0.15

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return math.asinh(-self.centre / self.width), math.asinh((1 - self.centre) / self.width)

    def to_path(self, u: Floats) -> tuple[Floats, Floats]:
        """Return positions on the path, and their derivative."""
        low, high = self._ends
        v = low + u * (high - low)
        return self.centre + self.width * np.sinh(v), (high - low) * self.width * np.cosh(v)

    def from_path(self, alpha: Floats) -> Floats:
        """Invert :meth:`to_path`."""
        low, high = self._ends
        return (np.arcsinh((alpha - self.centre) / self.width) - low) / (high - low)


USUAL = Lens()  # where nothing is known of the path


@dataclass(frozen=True)
class Pieces:
    """A division of [0, 1] into pieces, each with its own Gauss nodes; see :mod:`whymatch.pieces`.

    Attributes:
        bounds: where pieces begin and end, from 0 to 1.
        counts: how many nodes each needs.
    """

    bounds: tuple[float, ...] = (0.0, 1.0)
    counts: tuple[int, ...] = (1,)

    def divide(self, n: int) -> list[int]:
        """Divide n nodes among the pieces, in proportion to what they need."""
        ends = [round(n * each / sum(self.counts)) for each in accumulate(self.counts, initial=0)]
        return [high - low for low, high in pairwise(ends)]


# The bump of a whole encoder is near the middle; that of a single block may be anywhere.
CENTRES = (0.05, 0.15, 0.25, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.75, 0.85, 0.95)
WIDTHS = (0.03, 0.06, 0.1, 0.15, 0.22, 0.35, 0.6, 1.2)


@dataclass(frozen=True)
class Rule:
    """A family of rules, one for each number of nodes; weights always sum to 1."""

    name: RuleName
    order: float  # the error falls like 1 / n**order; infinite where it falls like c**-n
    bound: int  # the most nodes that ``steps=None`` will spend on one text
    most: int = 100_000  # the most that can be asked for
    power: float = 2.0  # how fast the coefficients of degree 2n fall, at least, against those of degree n

    def __call__(self, n: int, lens: Lens | Pieces = USUAL) -> tuple[Floats, Floats]:
        """Return the positions and weights of the rule with ``n`` nodes; only Gauss nodes use the lens, or pieces."""
        return _in_pieces(n, lens) if isinstance(lens, Pieces) else _rule(self.name, n, lens)

    def columns(self, n: int, lens: Lens | Pieces = USUAL) -> Floats:
        """Return several sets of weights (n, 4): the first integrates, the others are for :meth:`estimate`.

        For Gauss rules, the others give the integrand's coefficients of degree 1, n − 2 and n − 1 in polynomials that
        are orthonormal under the weights, on pieces with alternating signs, so that they do not cancel; for other
        rules, the last gives the leading term of the Euler–Maclaurin expansion of the error.
        """
        return _columns_in_pieces(n, lens) if isinstance(lens, Pieces) else _columns(self.name, n, lens)

    def estimate(self, sizes: NDArray[np.floating], n: NDArray[np.integer]) -> NDArray[np.floating]:
        """Estimate the error of integrals from the lengths of their four :meth:`columns` (4, …) and their nodes (…).

        A Gauss rule of n nodes first misses the term of degree 2n. If the coefficients of a smooth integrand fall from
        ``head`` at degree 0 to ``tail`` at the degrees n − 2 and n − 1, at that rate they have fallen to
        head · (tail / head)^(2n / (n − 1.5)) there.
        """
        if self.order != math.inf:
            return np.asarray(sizes[3])
        head, tail = np.hypot(sizes[0], sizes[1]), np.hypot(sizes[2], sizes[3])
        power = np.clip(2 * n / np.maximum(n - 1.5, 0.5), self.power, 3)  # few terms say little about a rate
        return np.asarray(head * np.minimum(1, tail / np.maximum(head, np.finfo(np.float64).tiny)) ** power)


RULES: dict[str, Rule] = {
    "gauss": Rule("gauss", math.inf, 1024, most=2048),  # found by an eigenproblem of that size
    "midpoint": Rule("midpoint", 2, 2048),
    "right": Rule("right", 1, 8192),
    "pieces": Rule("pieces", math.inf, 4096, power=2.5),  # a piece has about five nodes
}


legendre = lru_cache(maxsize=256)(np.polynomial.legendre.leggauss)


@lru_cache(maxsize=1024)
def _rule(name: RuleName, n: int, lens: Lens) -> tuple[Floats, Floats]:
    if name == "pieces":
        alpha, weights = _in_pieces(n, Pieces())
    elif name == "gauss":
        x, w = legendre(n)
        alpha, slope = lens.to_path((x + 1) / 2)
        weights = w * slope
        # Gauss integrates the map's own derivative only almost exactly. Constants, and so linear encoders, are
        # exact for every n once the weights sum to 1.
        weights /= weights.sum()
    else:
        # Positions are fractions k / n. Accumulated steps, arange(1, 0, -1 / n), give n + 1 of them for n = 49,
        # 98, 103, ... because the steps' rounding errors add up.
        k = np.arange(n)
        alpha = (k + 1) / n if name == "right" else (k + 0.5) / n
        weights = np.full(n, 1 / n)
    alpha.flags.writeable = weights.flags.writeable = False  # shared by every caller of the cache
    return alpha, weights


@lru_cache(maxsize=1024)
def _columns(name: RuleName, n: int, lens: Lens) -> Floats:
    if name == "pieces":
        return _columns_in_pieces(n, Pieces())
    weights = _rule(name, n, lens)[1]
    columns = np.zeros((n, 4))
    columns[:, 0] = weights
    if name == "gauss":
        columns[:, 1:] = _terms(weights)
    elif n < 4:  # too few to tell anything
        columns[:, 3] = weights
    elif name == "right":  # (f(1) − f(0)) / 2n
        columns[[0, -1], 3] = -1 / (2 * (n - 1)), 1 / (2 * (n - 1))
    else:  # (f'(1) − f'(0)) / 24n²
        columns[[0, 1, -2, -1], 3] = np.array([1, -1, -1, 1]) / (24 * n)
    columns.flags.writeable = False
    return columns


def _in_pieces(n: int, pieces: Pieces) -> tuple[Floats, Floats]:
    """Return the positions and weights of n nodes, divided among pieces."""
    parts = [(*legendre(m), *ends) for m, ends in zip(pieces.divide(n), pairwise(pieces.bounds), strict=True) if m]
    alpha = np.concatenate([low + (high - low) * (x + 1) / 2 for x, _, low, high in parts])
    weights = np.concatenate([w * (high - low) / 2 for _, w, low, high in parts])
    return alpha, weights / weights.sum()  # fewer nodes than pieces leave some without any


def _columns_in_pieces(n: int, pieces: Pieces) -> Floats:
    counts, (_, weights) = pieces.divide(n), _in_pieces(n, pieces)
    columns = np.zeros((n, 4))
    columns[:, 0] = weights
    for number, end in enumerate(accumulate(counts)):
        own = slice(end - counts[number], end)
        # A coefficient is about as large as the integrand; what a piece adds to the integral, by its length.
        columns[own, 1:] = (-1) ** number * np.sqrt(weights[own].sum()) * _terms(weights[own])
    return columns


def _terms(weights: Floats) -> Floats:
    """Return the weights (n, 3) that give an integrand's coefficients of degree 1, n − 2 and n − 1 at Gauss nodes.

    The polynomials, in the variable in which these are Gauss nodes, are orthonormal under ``weights``; the first is
    constant.
    """
    n = len(weights)
    terms = np.zeros((n, 3))
    if n:
        root = np.sqrt(weights)[:, None]
        basis, _ = np.linalg.qr(root * np.polynomial.legendre.legvander(legendre(n)[0], n - 1))
        for column, degree in enumerate((1, n - 2, n - 1)):
            if 0 <= degree < n:
                terms[:, column] = (root * basis)[:, degree]
    return terms


def get_rule(name: str) -> Rule:
    if name not in RULES:
        raise ValueError(f"rule={name!r} is not known; choose one of {', '.join(map(repr, RULES))}")
    return RULES[name]


@lru_cache(maxsize=16)
def _chebyshev_points(levels: int) -> tuple[float, ...]:
    # sin of an exact fraction of pi: a point has the same float at every level, so a dict finds it again.
    return (*(math.sin(math.pi * k / levels / 2) ** 2 for k in range(levels)), 1.0)


@lru_cache(maxsize=16)
def _coefficients(levels: int) -> tuple[Floats, Floats]:
    """Return the Chebyshev points on [-1, 1], and the matrix from values at them to the coefficients of a series."""
    points = 2 * np.array(_chebyshev_points(levels)) - 1
    return points, np.linalg.inv(chebyshev.chebvander(points, levels))


@lru_cache(maxsize=8 * len(CENTRES) * len(WIDTHS))
def _through(lens: Lens, levels: int) -> Floats:
    """Return the matrix from values at the usual lens's Chebyshev points to another lens's Chebyshev coefficients."""
    points, coefficients = _coefficients(levels)
    if lens == USUAL:
        return coefficients
    seen = 2 * USUAL.from_path(lens.to_path((points + 1) / 2)[0]) - 1
    return np.asarray(coefficients @ chebyshev.chebvander(seen, levels) @ coefficients)


class PathProbe:
    """How many nodes does this path need, and where? Answered from the encoder's values on it, without derivatives.

    The values at Chebyshev points of the usual lens give the embedding along the path as a polynomial, on
    which every rule can be tried for nothing. The points are nested: each refinement evaluates only new ones.
    A plain pass costs a fraction of a pass with one tangent, and one set of values serves every n.

    Args:
        start, end: the values at the ends of the path: of an embedding, or its products with some directions.
        size: where they are products: the length of the whole embedding at the end. The error is then the sum of the
            errors along all directions, instead of the error's length.
        few: begin with half as many points, which is worth it where they do not run together anyway.
    """

    MANY = 15  # inner points of the usual first look

    def __init__(
        self,
        start: NDArray[np.floating],
        end: NDArray[np.floating],
        size: float | None = None,
        few: bool = False,
    ) -> None:
        self.levels = 4 if few else 8  # the intervals so far; none of their inner points is known yet
        self._values: dict[float, NDArray[np.floating]] = {0.0: start, 1.0: end}
        self._change = end - start
        self._order = None if size is None else 1
        self._size = (float(np.linalg.norm(end)) if size is None else float(size)) or 1.0

    def missing(self) -> Floats:
        """Return the positions on the path whose values the next refinement needs."""
        self.levels *= 2
        return USUAL.to_path(np.array([u for u in _chebyshev_points(self.levels) if u not in self._values]))[0]

    def add(self, values: NDArray[np.floating]) -> None:
        new = [u for u in _chebyshev_points(self.levels) if u not in self._values]
        self._values.update(zip(new, values, strict=True))

    def is_rough(self, tolerance: float) -> bool:
        """Whether even the finest points leave the path unresolved: its series does not fall off.

        Terms of a smooth path fall geometrically, and those of one with kinks like the square of their degree, to a
        quarter from half of the degrees to all of them.
        """
        if self.levels < FINEST:
            return False
        values = np.stack([self._values[u] for u in _chebyshev_points(self.levels)])
        terms = np.linalg.norm(_through(USUAL, self.levels) @ values, self._order, axis=1) / self._size
        width = self.levels // 8
        last, middle = terms[-width:].max(), terms[self.levels // 2 - width // 2 : self.levels // 2 + width // 2].max()
        return bool(last > tolerance and last > FLAT * middle)

    def nodes(self, rule: Rule, tolerance: float) -> tuple[int, Lens] | None:
        """Return how many nodes bring the relative error of the total below ``tolerance``, and their lens.

        None: refine first. A polynomial of degree m predicts the errors of Gauss rules with fewer than m / 2 nodes; a
        little beyond, the error is extrapolated at the rate at which it has been falling.
        """
        values = np.stack([self._values[u] for u in _chebyshev_points(self.levels)])  # (levels + 1, dim)
        series = _through(USUAL, self.levels) @ values
        # What the polynomial itself misses of the path; if that is too much, it predicts nothing.
        unknown = float(np.linalg.norm(series[-3:], self._order, axis=1).max()) / self._size
        if unknown > tolerance and self.levels < FINEST:
            return None
        slope = chebyshev.chebder(series, scl=2)
        lens = self._best_lens(values, tolerance) if rule.name == "gauss" else USUAL

        def error(n: int) -> float:
            alpha, weights = rule(n, lens)
            u = USUAL.from_path(alpha)
            speed = chebyshev.chebvander(2 * u - 1, self.levels - 1) @ slope / USUAL.to_path(u)[1][:, None]
            return float(np.linalg.norm(weights @ speed - self._change, self._order)) / self._size

        # A Gauss rule of levels / 2 nodes integrates the polynomial exactly, and so predicts nothing.
        trusted = 7 * self.levels // 16
        if rule.order == math.inf:
            errors = [error(n) for n in range(1, trusted + 1)]
            enough = next((n for n, e in enumerate(errors, start=1) if e + unknown <= CLOSE * tolerance), None)
            if enough is not None:
                return enough, lens
            half, last = errors[trusted // 2 - 1], errors[-1]
            rate = math.log(half / last) / (trusted - trusted // 2)
            if last + unknown <= NOISE and rate < FALLING:
                return next(n for n, e in enumerate(errors, start=1) if e <= 2 * last), lens
            beyond = math.log((last + unknown) / (CLOSE * tolerance)) / max(rate, 1e-3)
            # The rate slows down a little, and repeating derivatives costs more than a margin or a refinement.
            close = beyond <= max(2 / 3, 0.1 * trusted) or self.levels >= FINEST
            return (math.ceil(trusted + 1.5 * beyond), lens) if close else None
        if self.levels < 32:  # the slow rules need many nodes anyway, and a path that is known well
            return None
        high = 1
        while error(high) > tolerance and high < rule.bound:
            high *= 2
        return bisect_left(range(high), True, lo=max(1, high // 2), key=lambda n: error(n) <= tolerance), lens

    def _best_lens(self, values: NDArray[np.floating], tolerance: float) -> Lens:
        """Return the lens through which the path needs the fewest terms.

        The terms that are left out bound the error of every part of the path, so a lens that merely makes errors of
        the total cancel is not preferred.
        """
        if self._order is None and values.shape[1] > len(values):
            # Fewer coordinates, in which all lengths are the same.
            values = np.asarray(np.linalg.qr(values.T, mode="r")).T

        def terms(lens: Lens) -> float:
            sizes = np.linalg.norm(_through(lens, self.levels) @ values, self._order, axis=1) / self._size
            # What all terms from here on may add up to, falling.
            left = np.maximum(np.cumsum(sizes[::-1])[::-1], np.finfo(np.float64).tiny)
            # Between two terms, and beyond the last one, as the logarithm goes on.
            return float(np.interp(-math.log(tolerance), -np.log(left), np.arange(len(left))))

        centre = min(CENTRES, key=lambda centre: min(terms(Lens(centre, width)) for width in (0.1, 0.22)))
        return min((Lens(centre, width) for width in WIDTHS), key=terms)

"""Nodes and weights on [0, 1].

The speed of an encoder along the path from "nothing" to the text is one bump near the middle. Gauss–Legendre
nodes are therefore placed through a lens, a sinh map that crowds them there; where exactly the bump is, and how
wide, differs from text to text, and plain passes along the path tell.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
RuleName = Literal["gauss", "midpoint", "right"]

FINEST = 128  # intervals beyond which a path is not smooth, and more of them would not tell more
CLOSE = 0.8  # how much of the tolerance to aim at: a miss by a hair would have to be derived all over again


@dataclass(frozen=True)
class Lens:
    """A map of [0, 1] onto itself that crowds points around ``centre``, the closer the smaller ``width`` is."""

    centre: float = 0.5
    width: float = 0.15

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return math.asinh(-self.centre / self.width), math.asinh((1 - self.centre) / self.width)

    def to_path(self, u: Floats) -> tuple[Floats, Floats]:
        """Positions on the path, and their derivative."""
        low, high = self._ends
        v = low + u * (high - low)
        return self.centre + self.width * np.sinh(v), (high - low) * self.width * np.cosh(v)

    def from_path(self, alpha: Floats) -> Floats:
        """The inverse of :meth:`to_path`."""
        low, high = self._ends
        return (np.arcsinh((alpha - self.centre) / self.width) - low) / (high - low)


USUAL = Lens()  # where nothing is known of the path
LENSES = tuple(Lens(centre, width) for centre in (0.4, 0.45, 0.5, 0.55, 0.6) for width in (0.06, 0.1, 0.15, 0.22, 0.35))


@dataclass(frozen=True)
class Rule:
    """A family of rules, one for each number of nodes; weights always sum to 1."""

    name: RuleName
    order: float  # the error falls like 1 / n**order; infinite where it falls like c**-n
    bound: int  # the most nodes that ``steps=None`` will spend on one text
    most: int = 100_000  # the most that can be asked for

    def __call__(self, n: int, lens: Lens = USUAL) -> tuple[Floats, Floats]:
        """Positions and weights of the rule with ``n`` nodes; only Gauss' look through the lens."""
        return _rule(self.name, n, lens)


RULES: dict[str, Rule] = {
    "gauss": Rule("gauss", math.inf, 1024, most=2048),  # found by an eigenproblem of that size
    "midpoint": Rule("midpoint", 2, 2048),
    "right": Rule("right", 1, 8192),
}


_legendre = lru_cache(maxsize=256)(np.polynomial.legendre.leggauss)


@lru_cache(maxsize=1024)
def _rule(name: RuleName, n: int, lens: Lens) -> tuple[Floats, Floats]:
    if name == "gauss":
        x, w = _legendre(n)
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


def get_rule(name: str) -> Rule:
    if name not in RULES:
        raise ValueError(f"rule={name!r} is not known; choose one of {', '.join(map(repr, RULES))}")
    return RULES[name]


@lru_cache(maxsize=16)
def _chebyshev_points(levels: int) -> tuple[float, ...]:
    # sin of an exact fraction of pi: a point has the same float at every level, so a dict finds it again.
    return (*(math.sin(math.pi * k / levels / 2) ** 2 for k in range(levels)), 1.0)


@lru_cache(maxsize=256)
def _through(lens: Lens, levels: int) -> Floats:
    """Values at the Chebyshev points of the usual lens -> coefficients of the Chebyshev series of another."""
    points = 2 * np.array(_chebyshev_points(levels)) - 1
    vandermonde = chebyshev.chebvander(points, levels)
    coefficients = np.linalg.inv(vandermonde)
    if lens == USUAL:
        return coefficients
    seen = 2 * USUAL.from_path(lens.to_path((points + 1) / 2)[0]) - 1
    return np.asarray(coefficients @ chebyshev.chebvander(seen, levels) @ coefficients)


class PathProbe:
    """How many nodes does this path need, and where? Answered from the encoder's values on it, without derivatives.

    The values at Chebyshev points of the usual lens give the embedding along the path as a polynomial, on
    which every rule can be tried for nothing. The points are nested: each refinement evaluates only new ones.
    A plain pass costs a fraction of a pass with one tangent, and one set of values serves every n.
    """

    def __init__(self, start: NDArray[np.floating], end: NDArray[np.floating]) -> None:
        self.levels = 8  # the intervals so far; none of their inner points is known yet
        self._values: dict[float, NDArray[np.floating]] = {0.0: start, 1.0: end}
        self._change = end - start
        self._size = float(np.linalg.norm(end)) or 1.0

    def missing(self) -> Floats:
        """Positions on the path whose values the next refinement needs."""
        self.levels *= 2
        return USUAL.to_path(np.array([u for u in _chebyshev_points(self.levels) if u not in self._values]))[0]

    def add(self, values: NDArray[np.floating]) -> None:
        new = [u for u in _chebyshev_points(self.levels) if u not in self._values]
        self._values.update(zip(new, values, strict=True))

    def nodes(self, rule: Rule, tolerance: float) -> tuple[int, Lens] | None:
        """The nodes that bring the relative error of the total under ``tolerance``, and their lens.

        None: refine first. A polynomial of degree m foretells Gauss rules of fewer than m / 2 nodes; a little
        beyond, the error is continued at the rate at which it has been falling.
        """
        values = np.stack([self._values[u] for u in _chebyshev_points(self.levels)])  # (levels + 1, dim)
        series = _through(USUAL, self.levels) @ values
        # A path of which so much may be missing foretells nothing.
        rough = np.linalg.norm(series[-3:], axis=1).max() > tolerance * self._size
        if rough and self.levels < FINEST:
            return None
        slope = chebyshev.chebder(series, scl=2)
        lens = self._best_lens(values, tolerance) if rule.name == "gauss" else USUAL

        def error(n: int) -> float:
            alpha, weights = rule(n, lens)
            u = USUAL.from_path(alpha)
            speed = chebyshev.chebvander(2 * u - 1, self.levels - 1) @ slope / USUAL.to_path(u)[1][:, None]
            return float(np.linalg.norm(weights @ speed - self._change)) / self._size

        # A Gauss rule of levels / 2 nodes integrates the polynomial exactly, and so foretells nothing.
        trusted = 7 * self.levels // 16
        if rule.order == math.inf:
            errors = [error(n) for n in range(1, trusted + 1)]
            enough = next((n for n, e in enumerate(errors, start=1) if e <= CLOSE * tolerance), None)
            if enough is not None:
                return enough, lens
            half, last = errors[trusted // 2 - 1], errors[-1]
            rate = math.log(half / last) / (trusted - trusted // 2)
            beyond = math.log(last / tolerance) / max(rate, 1e-3)
            # The rate slackens a little on the way, and deriving again costs more than a margin or a refinement.
            close = beyond <= 0.1 * trusted or self.levels >= FINEST
            return (math.ceil(trusted + 1.5 * beyond), lens) if close else None
        if self.levels < 32:  # the slow rules need many nodes anyway, and a path that is known well
            return None
        high = 1
        while error(high) > tolerance and high < rule.bound:
            high *= 2
        return bisect_left(range(high), True, lo=max(1, high // 2), key=lambda n: error(n) <= tolerance), lens

    def _best_lens(self, values: NDArray[np.floating], tolerance: float) -> Lens:
        """The lens through which the path needs the fewest terms.

        The terms that are left out bound the error of whatever part of the path: a lens that merely makes the
        errors of the total cancel is not preferred.
        """

        def terms(lens: Lens) -> float:
            sizes = np.linalg.norm(_through(lens, self.levels) @ values, axis=1) / self._size
            left = np.cumsum(sizes[::-1])[::-1]  # what all terms from here on may add up to, falling
            # Between two terms, and beyond the last one, as the logarithm goes on.
            return float(np.interp(-math.log(tolerance), -np.log(left), np.arange(len(left))))

        return min(LENSES, key=terms)

"""Nodes and weights on [0, 1].

The speed of an encoder along the path from "nothing" to the text is one bump near the middle. Gauss–Legendre
nodes are therefore placed through a sinh map that crowds them there.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
RuleName = Literal["gauss", "midpoint", "right"]

CENTRE = 0.5
WIDTH = 0.15

FINEST = 128  # intervals beyond which a path is not smooth, and more of them would not tell more


def to_path(u: Floats) -> tuple[Floats, Floats]:
    """The sinh map of u in [0, 1] onto positions in [0, 1], and its derivative."""
    low, high = math.asinh(-CENTRE / WIDTH), math.asinh((1 - CENTRE) / WIDTH)
    v = low + u * (high - low)
    return CENTRE + WIDTH * np.sinh(v), (high - low) * WIDTH * np.cosh(v)


def from_path(alpha: Floats) -> Floats:
    """The inverse of :func:`to_path`."""
    low, high = math.asinh(-CENTRE / WIDTH), math.asinh((1 - CENTRE) / WIDTH)
    return (np.arcsinh((alpha - CENTRE) / WIDTH) - low) / (high - low)


@dataclass(frozen=True)
class Rule:
    """A family of rules, one for each number of nodes; weights always sum to 1."""

    name: RuleName
    order: float  # the error falls like 1 / n**order; infinite where it falls like c**-n
    bound: int  # the most nodes that ``steps=None`` will spend on one text
    most: int = 100_000  # the most that can be asked for

    def __call__(self, n: int) -> tuple[Floats, Floats]:
        """Positions and weights of the rule with ``n`` nodes."""
        return _rule(self.name, n)


RULES: dict[str, Rule] = {
    "gauss": Rule("gauss", math.inf, 1024, most=2048),  # found by an eigenproblem of that size
    "midpoint": Rule("midpoint", 2, 2048),
    "right": Rule("right", 1, 8192),
}


@lru_cache(maxsize=256)
def _rule(name: RuleName, n: int) -> tuple[Floats, Floats]:
    if name == "gauss":
        x, w = np.polynomial.legendre.leggauss(n)
        alpha, slope = to_path((x + 1) / 2)
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


class PathProbe:
    """How many nodes does this path need? Answered from the encoder's values on it, without derivatives.

    The values at Chebyshev points of the mapped variable give the embedding along the path as a polynomial, on
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
        return to_path(np.array([u for u in self._points() if u not in self._values]))[0]

    def add(self, values: NDArray[np.floating]) -> None:
        new = [u for u in self._points() if u not in self._values]
        self._values.update(zip(new, values, strict=True))

    def _points(self) -> list[float]:
        # sin of an exact fraction of pi: a point has the same float at every level, so the dict finds it again.
        return [math.sin(math.pi * k / self.levels / 2) ** 2 for k in range(self.levels)] + [1.0]

    def nodes(self, rule: Rule, tolerance: float) -> int | None:
        """The nodes that bring the relative error of the total under ``tolerance``; None: refine first.

        A polynomial of degree m foretells Gauss rules of fewer than m / 2 nodes; a little beyond, the error is
        continued at the rate at which it has been falling.
        """
        points = np.array(self._points())
        values = np.stack([self._values[u] for u in points])  # (levels + 1, dim)
        chebyshev = np.polynomial.chebyshev
        coefficients = np.linalg.solve(chebyshev.chebvander(2 * points - 1, self.levels), values)
        slope = chebyshev.chebder(coefficients, scl=2)

        def error(n: int) -> float:
            alpha, weights = rule(n)
            u = from_path(alpha)
            speed = chebyshev.chebvander(2 * u - 1, self.levels - 1) @ slope / to_path(u)[1][:, None]
            return float(np.linalg.norm(weights @ speed - self._change)) / self._size

        # A Gauss rule of levels / 2 nodes integrates the polynomial exactly, and so foretells nothing.
        trusted = 7 * self.levels // 16
        if rule.order == math.inf:
            errors = [error(n) for n in range(1, trusted + 1)]
            enough = next((n for n, e in enumerate(errors, start=1) if e <= tolerance), None)
            if enough is not None:
                return enough
            half, last = errors[trusted // 2 - 1], errors[-1]
            rate = math.log(half / last) / (trusted - trusted // 2)
            beyond = math.log(last / tolerance) / max(rate, 1e-3)
            # The rate slackens a little on the way, and deriving again costs more than a margin or a refinement.
            close = beyond <= 0.2 * trusted or self.levels >= FINEST
            return math.ceil(trusted + 1.5 * beyond) if close else None
        if self.levels < 32:  # the slow rules need many nodes anyway, and a path that is known well
            return None
        high = 1
        while error(high) > tolerance and high < rule.bound:
            high *= 2
        return bisect_left(range(high), True, lo=max(1, high // 2), key=lambda n: error(n) <= tolerance)

"""Shapley values of a function of sets whose values are vectors, such as the embedding of what is left of a text.

A set of parts is a coalition, v(S) the embedding when only the parts in S are there. The Shapley value φ[i] is what
part i adds to v, averaged over all orders in which the parts can arrive, so that Σᵢ φ[i] = v(everything) − v(nothing).

It is also the solution of a weighted least-squares problem: v(S) − v(nothing) ≈ Σ_{i ∈ S} φ[i] for every coalition S,
each weighted by the Shapley kernel (n − 1) / (C(n, s) s (n − s)) of its size s, with the sum of φ fixed. Coalitions are
taken in pairs, a set and its complement. Their two equations are one, because the sum is fixed:

    Σ_{i ∈ S} φ[i] ≈ ½ (v(S) − v(complement of S) + v(everything) − v(nothing))

Each size gets its share of the evaluations. A size whose pairs all fit is enumerated; if all sizes are, φ is exact.
For the other sizes, pairs are drawn at random, and the error of φ is estimated from the residuals of the equations of
each size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating]
Flags: TypeAlias = NDArray[np.bool_]
Game: TypeAlias = Callable[[Flags], Floats]  # (coalitions, parts) of who is there -> (coalitions, dim)


@dataclass(frozen=True, eq=False)
class Stratum:
    """Pairs of coalitions of one size, and what is not explained by the Shapley values found.

    Attributes:
        weight: the weight of each pair.
        influence: how much each pair's equation changes the values, if it changes by 1 (pairs, parts).
        residuals: what is missing from each pair's equation (pairs, dim).
        unseen: the fraction of this size's pairs that were not drawn.
    """

    weight: float
    influence: Floats
    residuals: Floats
    unseen: float

    def variance(self, directions: Floats, correction: float) -> Floats:
        """Return the variance of the values' products with some directions (parts, directions)."""
        products = self.residuals @ directions.T  # (pairs, directions)
        count = len(products)
        squares = (self.influence**2).T @ products**2
        means = self.influence.T @ products / count
        spread = np.maximum(squares - count * means**2, 0) * count / max(count - 1, 1)
        return np.asarray(self.weight**2 * self.unseen * correction * spread)

    def total_variance(self, correction: float) -> Floats:
        """Return the variance of each value, summed over dimensions (parts,)."""
        count = len(self.residuals)
        squares = (self.influence**2).T @ (self.residuals**2).sum(1)
        means = self.influence.T @ self.residuals / count  # (parts, dim)
        spread = np.maximum(squares - count * (means**2).sum(1), 0) * count / max(count - 1, 1)
        return np.asarray(self.weight**2 * self.unseen * correction * spread)


@dataclass(frozen=True, eq=False)
class Sampling:
    """How far sampled Shapley values may be from the exact ones; without strata, they are exact."""

    strata: tuple[Stratum, ...] = ()
    correction: float = 1.0  # for values that were fitted to the equations whose residuals are looked at

    @property
    def exact(self) -> bool:
        return not self.strata

    def deviations(self, directions: Floats) -> Floats:
        """Return the standard error of the values' products with some directions: (parts, directions)."""
        parts = self.strata[0].influence.shape[1]
        total = np.zeros((parts, len(directions)))
        for stratum in self.strata:
            total += stratum.variance(directions, self.correction)
        return np.sqrt(total)

    def lengths(self, parts: int) -> Floats:
        """Return the standard error of each value: the root of its mean squared distance from the exact one."""
        total = np.zeros(parts)
        for stratum in self.strata:
            total += stratum.total_variance(self.correction)
        return np.sqrt(total)


@dataclass(frozen=True, eq=False)
class Values:
    """Shapley values and how they were found.

    Attributes:
        values: the Shapley values (parts, dim).
        nothing, everything: the function's values at both ends.
        evaluations: how many coalitions were evaluated, both ends included.
        sampling: how far the values may be off.
    """

    values: Floats
    nothing: Floats
    everything: Floats
    evaluations: int
    sampling: Sampling


def pairs_of(parts: int, size: int) -> int:
    """Return how many pairs of a coalition of this size and its complement there are."""
    return comb(parts, size) // 2 if 2 * size == parts else comb(parts, size)


def kernel(parts: int, size: int) -> float:
    """Return the Shapley kernel's weight of all coalitions of a size and their complements together."""
    return (1 if 2 * size == parts else 2) * (parts - 1) / (size * (parts - size))


def allot(parts: int, pairs: int) -> list[int]:
    """Divide a number of pairs among the sizes 1 to parts / 2, by the kernel; no size gets more than it has."""
    sizes = range(1, parts // 2 + 1)
    available = [pairs_of(parts, size) for size in sizes]
    allotted = [0] * len(available)
    left = min(pairs, sum(available))
    open_sizes = set(range(len(available)))
    while left and open_sizes:
        total = sum(kernel(parts, sizes[i]) for i in open_sizes)
        shares = {i: left * kernel(parts, sizes[i]) / total for i in open_sizes}
        full = [i for i in open_sizes if shares[i] >= available[i]]
        if not full:
            whole = {i: int(share) for i, share in shares.items()}
            rest = left - sum(whole.values())
            for i in sorted(open_sizes, key=lambda i: whole[i] - shares[i])[:rest]:
                whole[i] += 1
            for i, count in whole.items():
                allotted[i] = min(count, available[i])
            break
        for i in full:
            allotted[i] = available[i]
            left -= available[i]
            open_sizes.discard(i)
    return allotted


def least_pairs(parts: int) -> int:
    """Return the fewest pairs from which values and their errors can be estimated: two for each free value."""
    every = sum(pairs_of(parts, size) for size in range(1, parts // 2 + 1))
    return min(every, 2 * parts)


def shapley_values(
    game: Game,
    parts: int,
    *,
    most: int,
    samples: int | None = None,
    tolerance: float = 1e-3,
    seed: int = 0,
    watch: Callable[[float], None] = lambda _: None,
) -> Values:
    """Find the Shapley values of a function of sets.

    Args:
        game: from coalitions (coalitions, parts) to values (coalitions, dim).
        parts: how many parts there are.
        most: how many coalitions may be evaluated, both ends included.
        samples: how many are evaluated; None goes on until the standard error of every product of two values is at
            most the tolerance times the square of v(everything)'s length, or ``most`` is reached.
        seed: of the draws.
        watch: is called with the fraction of ``most`` that has been spent.
    """
    ends = np.array([[False] * parts, [True] * parts])
    nothing, everything = np.asarray(game(ends), np.float64)
    if parts <= 1:
        return Values((everything - nothing)[None][:parts], nothing, everything, 2, Sampling())
    limit = most if samples is None else min(samples, most)
    every = sum(pairs_of(parts, size) for size in range(1, parts // 2 + 1))
    final = min(every, (limit - 2) // 2)
    # Short texts are enumerated. Otherwise the number of pairs is doubled until it is enough.
    count = final if samples is not None or final == every else min(final, max(64, least_pairs(parts)))
    draws = [_Draws(parts, size, seed) for size in range(1, parts // 2 + 1)]
    known: dict[bytes, Floats] = {}
    while True:
        allotted = allot(parts, count)
        chosen = [draw.first(number) for draw, number in zip(draws, allotted, strict=True)]
        new = [pair for pairs in chosen for pair in pairs if pair.tobytes() not in known]
        if new:
            members = np.stack(new)
            embedded = np.asarray(game(np.concatenate([members, ~members])), np.float64)
            differences = embedded[: len(new)] - embedded[len(new) :]
            known.update({pair.tobytes(): each for pair, each in zip(new, differences, strict=True)})
        watch(min(1.0, (2 * len(known) + 2) / max(most, 1)))
        values, sampling = _fit(parts, chosen, known, everything - nothing)
        if sampling.exact or count >= final or samples is not None:
            break
        size = float(everything @ everything) or 1.0
        # The other text of a pair has an error of its own, and its rows are about as long as these.
        if sampling.deviations(values).max() * np.sqrt(2) <= tolerance * size:
            break
        count = min(final, 2 * count)
    return Values(values, nothing, everything, 2 * len(known) + 2, sampling)


class _Draws:
    """Pairs of one size, each once, in an order that does not depend on how many are asked for."""

    def __init__(self, parts: int, size: int, seed: int) -> None:
        self._parts, self._size = parts, size
        self._every = pairs_of(parts, size)
        self._random = np.random.default_rng([seed, parts, size])
        self._drawn: dict[bytes, Flags] = {}

    def first(self, count: int) -> list[Flags]:
        """Return this many of them, and all in order if that is all there are."""
        if count >= self._every:
            whole = combinations(range(self._parts), self._size)
            return [self._flags(members) for members in islice(whole, self._every)]
        while len(self._drawn) < count:
            pair = self._flags(self._random.choice(self._parts, self._size, replace=False))
            if 2 * self._size == self._parts and not pair[0]:
                pair = ~pair  # of two complements of one size, the one with the first part stands for both
            self._drawn.setdefault(pair.tobytes(), pair)
        return list(islice(self._drawn.values(), count))

    def _flags(self, members: Sequence[int] | NDArray[np.integer]) -> Flags:
        flags = np.zeros(self._parts, np.bool_)
        flags[list(members)] = True
        return flags


def _fit(
    parts: int, chosen: Sequence[Sequence[Flags]], differences: dict[bytes, Floats], total: Floats
) -> tuple[Floats, Sampling]:
    """Solve the weighted least-squares problem; estimate the error from what is left of its equations."""
    sizes = [number for number, pairs in enumerate(chosen, 1) if pairs]
    # If there are fewer pairs than sizes, the others stand in for sizes without any pair.
    members = np.concatenate([np.stack(chosen[size - 1]) for size in sizes]).astype(np.float64)
    weights = np.concatenate(
        [np.full(len(chosen[size - 1]), kernel(parts, size) / len(chosen[size - 1])) for size in sizes]
    )
    targets = np.stack([differences[pair.tobytes()] for size in sizes for pair in chosen[size - 1]])
    targets = (targets + total) / 2
    # The sum is fixed below. As a further equation it also makes the matrix invertible: one of two parts says nothing
    # of the other.
    gram = members.T @ (weights[:, None] * members) + weights.sum()
    inverse = np.linalg.pinv(gram, hermitian=True)
    ones = inverse.sum(1)
    free = inverse - np.outer(ones, ones) / ones.sum()  # changes that keep the sum
    values = free @ (members.T @ (weights[:, None] * targets)) + np.outer(ones / ones.sum(), total)
    values += (total - values.sum(0)) / parts  # rounding
    residuals = targets - members @ values
    influence = members @ free
    strata, at = [], 0
    for size in sizes:
        count, every = len(chosen[size - 1]), pairs_of(parts, size)
        here = slice(at, at + count)
        at += count
        if count < every:
            weight = kernel(parts, size) / count
            strata.append(Stratum(weight, influence[here], residuals[here], 1 - count / every))
    equations = len(members)
    return values, Sampling(tuple(strata), equations / max(equations - parts + 1, 1))

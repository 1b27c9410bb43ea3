from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from whymatch.shapley import allot, kernel, pairs_of, shapley_values


def make_game(parts: int, dim: int = 5, steepness: float = 1.0):
    """A smooth function of sets with interactions of every order."""
    random = np.random.default_rng(parts)
    inner, outer, bias = (
        random.standard_normal((parts, 20)),
        random.standard_normal((20, dim)),
        random.standard_normal(20),
    )
    return lambda coalitions: np.tanh(steepness * (coalitions.astype(float) @ inner) + bias) @ outer


def brute_force(game, parts: int):
    """The definition: what a part adds, averaged over the sets of those that came before it."""
    total = 0
    for i in range(parts):
        rest = [j for j in range(parts) if j != i]
        for size in range(parts):
            for members in combinations(rest, size):
                sets = np.zeros((2, parts), bool)
                sets[:, list(members)] = True
                sets[1, i] = True
                without, with_i = game(sets)
                row = np.zeros((parts, len(with_i)))
                row[i] = (with_i - without) / (parts * math.comb(parts - 1, size))
                total = total + row
    return total


@pytest.mark.parametrize("parts", range(1, 9))
def test_short_texts_are_exact(parts):
    game = make_game(parts)
    found = shapley_values(game, parts, most=1024)
    np.testing.assert_allclose(found.values, brute_force(game, parts), atol=1e-12)
    assert found.sampling.exact
    assert found.evaluations == 2**parts


@pytest.mark.parametrize("parts", [2, 3, 10, 11, 30])
def test_pairs_and_weights(parts):
    sizes = range(1, parts // 2 + 1)
    assert 2 * sum(pairs_of(parts, size) for size in sizes) + 2 == 2**parts
    every = sum((parts - 1) / (size * (parts - size)) for size in range(1, parts))
    assert sum(kernel(parts, size) for size in sizes) == pytest.approx(every)
    for count in (1, 5, 100, 1000):
        allotted = allot(parts, count)
        assert sum(allotted) == min(count, sum(pairs_of(parts, size) for size in sizes))
        assert all(number <= pairs_of(parts, size) for number, size in zip(allotted, sizes, strict=True))


def test_the_sum_is_fixed_whatever_is_sampled():
    game = make_game(14)
    for samples in (60, 200, 1000):
        found = shapley_values(game, 14, most=2000, samples=samples)
        assert found.evaluations == samples
        np.testing.assert_allclose(found.values.sum(0), found.everything - found.nothing, atol=1e-12)
        assert not found.sampling.exact


def test_standard_errors_are_those_of_repeated_draws():
    """What is estimated from one sample is how far samples lie from the exact values."""
    parts = 11
    game = make_game(parts)
    exact = brute_force(game, parts)
    ratios, lengths = [], []
    for seed in range(40):
        found = shapley_values(game, parts, most=300, samples=300, seed=seed)
        ratios.append(((found.values - exact) @ exact.T) / found.sampling.deviations(exact))
        lengths.append(np.linalg.norm(found.values - exact, axis=1) / found.sampling.lengths(parts))
    assert 0.85 < np.std(ratios) < 1.2
    assert 0.85 < np.sqrt(np.mean(np.square(lengths))) < 1.2


def test_sampling_stops_when_it_is_certain_enough():
    game = make_game(13, steepness=0.5)
    rough, fine = (shapley_values(game, 13, most=6000, tolerance=tolerance) for tolerance in (3e-2, 6e-3))
    assert rough.evaluations < fine.evaluations < 6000
    for found, tolerance in ((rough, 3e-2), (fine, 6e-3)):
        size = float(found.everything @ found.everything)
        assert found.sampling.deviations(found.values).max() <= tolerance * size
    additive = np.random.default_rng(0).standard_normal((20, 4))
    found = shapley_values(lambda sets: sets.astype(float) @ additive, 20, most=4000)
    assert found.evaluations < 200  # a sum needs no more than a first look
    np.testing.assert_allclose(found.values, additive, atol=1e-10)


def test_no_set_is_evaluated_twice_and_draws_can_be_repeated():
    seen = []

    def game(sets):
        seen.extend(each.tobytes() for each in sets)
        return make_game(12)(sets)

    first = shapley_values(game, 12, most=900, tolerance=1e-6)
    assert len(seen) == len(set(seen)) == first.evaluations <= 900
    again = shapley_values(game, 12, most=900, tolerance=1e-6)
    assert (first.values == again.values).all()

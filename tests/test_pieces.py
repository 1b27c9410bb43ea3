"""Paths that are too steep for one rule, and are followed piece by piece."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch

from conftest import real_model
from whymatch import Explainer, ToleranceWarning, decompose_callable
from whymatch.paths.integrate import RoughPathError
from whymatch.pieces import FIRST, SHORTEST, PieceProbe
from whymatch.quadrature import RULES, Pieces

RULE = RULES["pieces"]
STEEP, PLACE = 2000.0, 0.3712  # an embedding that turns within a thousandth of the way


def curve(alpha):
    return np.stack([1 + np.tanh(STEEP * (alpha - PLACE)), np.cos(2 * alpha), alpha**3], axis=-1)


def slopes(alpha):
    turn = STEEP / np.cosh(np.minimum(STEEP * np.abs(alpha - PLACE), 300)) ** 2
    return np.stack([turn, -2 * np.sin(2 * alpha), 3 * alpha**2], axis=-1)


def follow(path, tolerance, **options):
    """Return the probe of a path, the nodes and pieces that it finds, and the number of its values."""
    probe, count = PieceProbe(path(np.array(1.0)), **options), 0
    while (enough := probe.nodes(RULE, tolerance)) is None:
        alpha = probe.missing()
        count += len(alpha)
        probe.add(path(alpha))
    return probe, enough, count


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_a_steep_turn_is_found_and_needs_few_nodes(tolerance):
    _, (n, pieces), count = follow(curve, tolerance)
    alpha, weights = RULE(n, pieces)
    change = curve(np.array(1.0)) - curve(np.array(0.0))
    missed = np.linalg.norm(weights @ slopes(alpha) - change) / np.linalg.norm(curve(np.array(1.0)))
    assert missed <= tolerance
    assert n < 150
    assert count < 800
    right = RULES["right"](1000)
    assert np.linalg.norm(right[1] @ slopes(right[0]) - change) > 10 * missed


def test_smooth_paths_stay_in_their_first_pieces():
    probe, (n, pieces), _ = follow(lambda alpha: np.stack([np.sin(alpha), alpha], axis=-1), 1e-4)
    assert len(probe.pieces) == len(pieces.counts) == FIRST
    assert n <= 4 * FIRST


def test_a_jump_is_rough():
    def jump(alpha):
        return np.stack([np.sign(alpha - PLACE), alpha], axis=-1)

    probe, _, _ = follow(jump, 1e-3)
    assert probe.is_rough(1e-3)
    assert min(piece.length for piece in probe.pieces) == SHORTEST


def test_directions_have_errors_in_the_unit_of_the_embedding():
    """Along a direction in which nothing is steep, the path stays in its first pieces."""
    direction = np.array([[0.0, 0.0, 1.0]])
    size = float(np.linalg.norm(curve(np.array(1.0))))
    probe, _, _ = follow(lambda alpha: curve(alpha) @ direction.T, 1e-4, size=size)
    assert len(probe.pieces) == FIRST


@pytest.mark.parametrize("n", [1, 3, 7, 11, 40])
def test_nodes_are_divided_in_proportion_and_weights_sum_to_one(n):
    pieces = Pieces((0.0, 0.25, 0.26, 1.0), (2, 6, 3))
    counts = pieces.divide(n)
    assert sum(counts) == n
    assert max(counts) == counts[1]
    alpha, weights = RULE(n, pieces)
    assert len(alpha) == len(weights) == n
    assert weights.sum() == pytest.approx(1)
    assert RULE.columns(n, pieces).shape == (n, 4)
    if min(counts) >= 2:
        assert weights @ alpha**2 == pytest.approx(1 / 3)


def turn(x):
    """An encoder that turns when the first feature passes a place that is not a multiple of anything."""
    gate = torch.tanh(STEEP * (x[..., 0].mean(1, keepdim=True) - PLACE))
    return torch.cat([2 + gate, x.mean(1) * (1 + gate)], 1)


def test_a_steep_encoder_is_decomposed_exactly():
    x = torch.tensor([[1.5, 0.2], [0.5, 1.0], [1.0, -0.4]], dtype=torch.float64)
    zero = torch.zeros_like(x)
    found = decompose_callable(turn, x, zero, rule="pieces", tolerance=1e-4)
    assert found.error < 1e-4
    assert found.nodes < 200
    finer = decompose_callable(turn, x, zero, rule="pieces", tolerance=1e-8)
    length = np.linalg.norm(found.embedding)
    off = np.linalg.norm(found.contributions - finer.contributions, axis=1).max() / length
    assert off <= 1e-4
    assert off <= 3 * found.entry_error  # which no estimate makes smaller than what the total misses


@pytest.mark.parametrize("steepness", [20, 300, 2000])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-4, 1e-5])
def test_rounding_is_not_divided(steepness, tolerance):
    """In single precision every piece has the same rounding, however short it is."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(64, 48, generator=generator) / 8

    def encode(x):
        return torch.sin(x.mean(1) @ weights) + torch.tanh(steepness * (x[..., 0].mean(1, keepdim=True) - PLACE))

    x = torch.randn(6, 64, generator=generator)
    x[:, 0] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)  # some tolerances are below the encoder's own rounding
        found = decompose_callable(encode, x, torch.zeros_like(x), rule="pieces", tolerance=tolerance)
    assert found.error < 5 * tolerance
    assert found.nodes < 500


def test_an_error_of_a_rough_path_can_be_sent_elsewhere():
    error = RoughPathError(3, "a text", "pieces").advise("layer=4 is smooth; ")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (RoughPathError, str(error))


def test_a_jump_is_refused_and_steps_are_too(load):
    def jump(x):
        return torch.tanh(1e7 * (x[..., 0].mean(1, keepdim=True) - PLACE)).expand(-1, 2)

    x = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(RoughPathError, match=r"even pieces of 1/1048576 of it do not tell") as caught:
        decompose_callable(jump, x, torch.zeros_like(x), rule="pieces")
    assert "follows it piece by piece" not in str(caught.value)
    with pytest.raises(ValueError, match="steps=5 is a number of nodes, and rule='pieces' finds its own"):
        Explainer(load(), rule="pieces", steps=5)
    with pytest.raises(ValueError, match="rule='pieces' chooses nodes, and path='secant' has none"):
        Explainer(load(), rule="pieces", path="secant")


@pytest.mark.parametrize("path", ["straight", "relay"])
def test_on_smooth_paths_the_result_is_that_of_gauss_nodes(load, path):
    model = load("bert", torch.float64)
    pair = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")
    options = {"path": path, "layer": 1, "special": "keep", "divisions": 0, "tolerance": 1e-6}
    pieces, gauss = (Explainer(model, rule=rule, **options).explain(*pair) for rule in ("pieces", "gauss"))
    assert pieces.rule == "pieces"
    assert pieces.error <= 1e-6
    np.testing.assert_allclose(pieces.matrix, gauss.matrix, atol=2e-6)


def test_the_papers_own_model_converges_where_its_sum_had_not():
    """Layer 7 of all-mpnet-base-v2 needs more than 1,000 right endpoints for 1 %, says the study of accuracy."""
    explainer = Explainer(real_model("all-mpnet-base-v2"), layer=7, rule="pieces", fold_reference=False)
    (found,) = explainer.decompose(["Somebody plays."])
    assert found.error < 1e-3
    assert found.nodes < 300

"""Paths: how many nodes they get, how far their entries are off, and which are refused."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from conftest import real_model
from whymatch import Explainer, ToleranceWarning, decompose_callable, quadrature
from whymatch.paths.integrate import FEWEST, Integral, RoughPathError
from whymatch.paths.jacobian import Paths
from whymatch.settings import Settings

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def test_given_steps_are_used_and_their_error_reported_without_a_warning(load):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ToleranceWarning)
        why = Explainer(load(), steps=1).explain(*PAIR)
    assert why.nodes == (1, 1)
    assert why.error > 1e-4


@pytest.mark.parametrize("rule", ["midpoint", "right"])
def test_slow_rules_meet_the_tolerance_too(load, rule):
    why = Explainer(load(), layer=2, rule=rule, tolerance=1e-2).explain(*PAIR)
    assert why.relative_error <= 1e-2
    assert why.rule == rule


def test_entries_meet_the_tolerance_where_the_total_is_exact_by_symmetry(load):
    """Between a text and its own reversal the total needs one node; its parts need as many as any other path's."""

    def reversal(x):
        return x.flip(0)

    model = load("bert", torch.float64)
    rough = Explainer(model, layer=0, path="straight", reference=reversal, tolerance=1e-4).explain(*PAIR)
    exact = Explainer(model, layer=0, path="straight", reference=reversal, tolerance=1e-10).explain(*PAIR)
    assert rough.error < 1e-9
    off = np.abs(rough.matrix - exact.matrix).max()
    assert off <= 1e-4
    assert min(rough.nodes) > 1
    rough = Explainer(model, layer=0, path="straight", reference=reversal, steps=1).explain(*PAIR)
    assert rough.error < 1e-9
    assert np.abs(rough.matrix - exact.matrix).max() > 1e-3
    assert rough.entry_error > 1e-3  # and says so


@pytest.mark.parametrize("rule", ["gauss", "midpoint", "right"])
@pytest.mark.parametrize("layer", [0, 2])
def test_the_error_of_entries_is_estimated(load, layer, rule):
    model = load("bert", torch.float64)
    exact = Explainer(model, layer=layer, path="straight", tolerance=1e-10).explain(*PAIR)
    for steps in (3, 5, 8, 12):
        why = Explainer(model, layer=layer, rule=rule, steps=steps).explain(*PAIR)
        off = np.abs(why.matrix - exact.matrix).max()
        assert off <= 10 * why.entry_error + 1e-9
        assert why.entry_error <= 3000 * off + 1e-6


def test_a_path_that_is_not_finite_is_refused(load):
    model = load()
    explainer = Explainer(model, layer=1)
    with torch.no_grad():
        bread = model.tokenizer.convert_tokens_to_ids("bread")
        model[0].auto_model.embeddings.word_embeddings.weight[bread] = float("inf")
    texts = ["The coffee is bad.", "The bread is bad."]
    with pytest.raises(
        ArithmeticError, match=r"at layer 1 cannot be integrated: .*not finite there.*: 'The bread is bad.'"
    ):
        explainer.decompose(texts)


def test_a_path_that_is_not_smooth_is_refused():
    def jump(x):
        return torch.tanh(500 * (x - 0.3)).sum(1)

    x, zero = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(RoughPathError, match=r"even 128 points along it .* rule='pieces' follows it"):
        decompose_callable(jump, x, zero, tolerance=1e-4)
    given = decompose_callable(jump, x, zero, tolerance=1e-4, steps=50)  # steps that are asked for are used
    assert given.nodes == 50
    assert given.error > 1e-3


def test_the_papers_own_model_is_refused_with_advice():
    model = real_model("all-mpnet-base-v2")
    advice = r"layer=(8|9|10) is the shallowest whose path is smooth; path='relay' goes block by block, and path='sec"
    with pytest.raises(RoughPathError, match=advice):
        Explainer(model, layer=0, path="straight").explain("A man plays a flute.", "Somebody plays the flute.")


def test_nodes_are_not_added_to_mend_rounding():
    """An encoder that computes in single precision inside, as many norms do, misses a tolerance that it cannot meet."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 6, dtype=torch.float64, generator=generator)

    def encode(x):
        return 1000 + torch.sigmoid((x @ weights).float()).double() + torch.sin(x @ weights / 2)

    x = torch.randn(4, dtype=torch.float64, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ToleranceWarning)
        decomposition = decompose_callable(encode, x, torch.zeros_like(x), tolerance=2e-11, similarity="dot")
    assert 1e-11 < decomposition.error < 1e-8  # rounding, and said to be so
    assert decomposition.nodes < 100


def test_a_part_of_the_encoder_that_has_all_its_nodes_is_not_refined_again(monkeypatch):
    """Elsewhere there are more nodes to be had, which would not help: it ends all the same."""
    monkeypatch.setitem(quadrature.RULES, "gauss", dataclasses.replace(quadrature.RULES["gauss"], bound=6))
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 4, dtype=torch.float64, generator=generator)
    x = torch.randn(1, 4, dtype=torch.float64, generator=generator)
    paths = Paths(
        tail=lambda points, _: points,
        start=torch.zeros_like(x),
        delta=x,
        owner=torch.arange(4)[None],
        groups=4,
        room=64,
        depth=4,
    )
    settings = Settings("", 0, "given", fold_reference=True, similarity="dot", rule="gauss", steps=None, tolerance=1e-8)
    steep, straight = (lambda points, _: torch.tanh(9 * points @ weights - 4)), (lambda points, _: points @ weights)
    integral = Integral(paths, [steep, straight], settings, ["x"])
    pushed = integral.push()
    assert pushed.nodes == [6 + FEWEST]
    assert (pushed.values.sum(1) - integral.end + integral.start).norm() > 1e-8

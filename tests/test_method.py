"""The method: against the paper's algorithm, against the model's own score, and in every mode."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import oracle
from conftest import explain_in_every_mode
from whymatch import Explainer
from whymatch.reading.inputs import Request

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


LAYERS = range(4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("layer", LAYERS)
def test_the_papers_algorithm_step_by_step(load, kind, layer):
    """With the same rule and steps the engine and the paper's own algorithm do the same sum."""
    model = load(kind, torch.float64)
    expected = oracle.attributions(model, *PAIR, layer, steps=50)
    why = Explainer(model, layer=layer, rule="right", steps=50, fold_reference=False).explain(*PAIR)
    np.testing.assert_allclose(why.matrix, expected["matrix"], atol=1e-12)
    np.testing.assert_allclose(why.effects_a, expected["effects_a"], atol=1e-12)
    np.testing.assert_allclose(why.effects_b, expected["effects_b"], atol=1e-12)
    assert why.constant == pytest.approx(float(expected["constant"]), abs=1e-12)
    assert why.score == pytest.approx(float(expected["score"]), abs=1e-12)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("layer", LAYERS)
def test_what_the_papers_algorithm_converges_to(load, kind, layer):
    """The right rule's error halves with doubled steps, towards the Gauss result."""
    model = load(kind, torch.float64)
    why = Explainer(model, layer=layer, fold_reference=False, tolerance=1e-9).explain(*PAIR)
    distance = [
        abs(oracle.attributions(model, *PAIR, layer, steps)["matrix"].numpy() - why.matrix).max()
        for steps in (200, 800)
    ]
    if layer == 3:
        assert max(distance) < 1e-12  # the mean of the output is linear
    else:
        assert distance[1] == pytest.approx(distance[0] / 4, rel=0.1)
        assert distance[1] < 1e-2


@pytest.mark.parametrize("rule", ["gauss", "midpoint"])
def test_every_rule_converges_to_the_same_matrix(load, rule):
    model = load("bert", torch.float64)
    right = Explainer(model, rule="right", steps=2000).explain(*PAIR).matrix
    fine = Explainer(model, rule=rule, steps=200).explain(*PAIR).matrix
    assert abs(right - fine).max() < 4e-3


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "dot"])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("similarity", [None, "cosine", "dot"])
def test_the_sum_is_the_score(load, kind, fold, similarity):
    model = load(kind)
    for layer in LAYERS:
        explainer = Explainer(model, layer=layer, fold_reference=fold, similarity=similarity)
        why = explainer.explain(*PAIR)
        a, b = model.encode(list(PAIR), convert_to_tensor=True)
        name = similarity or model.similarity_fn_name
        own = torch.nn.functional.cosine_similarity(a, b, dim=0) if name == "cosine" else a @ b
        assert why.score == pytest.approx(float(own), rel=1e-6, abs=1e-6)
        if similarity is None:
            assert why.score == pytest.approx(float(model.similarity(a, b)), rel=1e-6, abs=1e-6)
        assert why.relative_error <= 1e-3
        assert why.norms == pytest.approx(1 if name == "cosine" else float(a.norm() * b.norm()))
        if fold:
            assert why.matrix.sum() == pytest.approx(why.score, abs=1e-3 * why.norms)
            assert why.constant == 0
            assert not why.effects_a.any()
            assert not why.effects_b.any()
        else:
            assert abs(why.constant) > 1e-3
        tight = Explainer(model, layer=layer, fold_reference=fold, similarity=similarity, tolerance=1e-6)
        assert tight.explain(*PAIR).relative_error <= 1e-6


@pytest.mark.parametrize("reference", ["unk", "mask"])
def test_other_references_are_exact_too(load, reference):
    why = Explainer(load("roberta"), layer=0, reference=reference).explain(*PAIR)
    assert why.relative_error <= 1e-3
    assert why.reference == reference


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_forward_reverse_and_pairwise_agree(load, layer, fold):
    model = load("bert", torch.float64)
    # Without divisions, with which texts as short as these are not projected.
    explainer = Explainer(model, layer=layer, fold_reference=fold, tolerance=1e-8, divisions=0)
    results = explain_in_every_mode(explainer, PAIR)
    assert [results[mode].modes for mode in ("forward", "reverse")] == [("forward",) * 2, ("reverse",) * 2]
    assert results["pairwise"].modes == ("forward", "pairwise")
    results["turned"] = explainer.explain(*PAIR[::-1])
    assert results["turned"].modes == ("pairwise", "forward")
    for name, why in results.items():
        turn = name == "turned"
        np.testing.assert_allclose(why.matrix.T if turn else why.matrix, results["forward"].matrix, atol=1e-7)
        effects = (why.effects_b, why.effects_a) if turn else (why.effects_a, why.effects_b)
        np.testing.assert_allclose(effects[0], results["forward"].effects_a, atol=1e-7)
        np.testing.assert_allclose(effects[1], results["forward"].effects_b, atol=1e-7)
        assert why.relative_error <= 1e-8


def test_a_text_against_itself_is_symmetric(load):
    why = Explainer(load(), layer=1).explain(PAIR[0], PAIR[0])
    assert why.score == pytest.approx(1)
    np.testing.assert_allclose(why.matrix, why.matrix.T, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_model_is_derived_in_single(load, dtype):
    """Its own scores are rounded; what they are compared with is not, and no warning blames the nodes."""
    model = load("bert", dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half = Explainer(model, layer=1).explain(*PAIR)
    assert half.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    assert half.relative_error <= 1e-3 + 4 * torch.finfo(dtype).eps
    single = Explainer(model.float(), layer=1).explain(*PAIR)
    np.testing.assert_allclose(half.matrix, single.matrix, atol=2e-3)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_block_of_features_sums_to_its_entry(load, layer, fold):
    explainer = Explainer(load(), layer=layer, fold_reference=fold, tolerance=1e-5)
    why = explainer.pair(*explainer.decompose(PAIR))
    for i, j in ((2, 3), (0, 1), (-1, -2)):
        block = explainer.features(*PAIR, i, j)
        assert block.shape == (16, 16)
        assert block.sum() == pytest.approx(why.matrix[i, j], abs=1e-7)
    with pytest.raises(IndexError, match=r"token 99 is out of range: 'The coffee is not good.' has 8 tokens"):
        explainer.features(*PAIR, 99, 0)


def test_features_are_those_of_the_oracle(load):
    model = load()
    expected = oracle.attributions(model, *PAIR, 1, steps=12)["features"]
    explainer = Explainer(model, layer=1, rule="right", steps=12, fold_reference=False, tolerance=1e-6)
    np.testing.assert_allclose(explainer.features(*PAIR, 2, 4), expected[2, :, 4], atol=1e-7)


def test_decompositions_of_different_kinds_do_not_pair(load):
    model = load()
    (a,) = Explainer(model, layer=1).decompose(["coffee"])
    (b,) = Explainer(model, layer=2).decompose(["coffee"])
    with pytest.raises(ValueError, match="layer is 1 for the first and 2 for the second; decompose both with one"):
        Explainer(model, layer=1).pair(a, b)
    with pytest.raises(TypeError, match="pair takes two decompositions, not a str: use explain for texts"):
        Explainer(model).pair("a", "b")
    assert Explainer(model, layer=1).pair(a, replace(a, side=replace(a.side, text="other"))).text_b == "other"


@pytest.mark.parametrize(
    ("path", "layer", "starts"),
    [
        ("straight", 0, [0]),
        ("relay", 0, [0, 1, 2]),
        ("relay", 2, [2]),
        ("relay", 3, [3]),
        ("relay-2", 0, [0, 1]),  # the shorter segment first, so that the last ones are alike at every layer
        ("relay-2", 1, [1]),
        ("relay-3", 0, [0]),
    ],
)
def test_segments_are_laid_from_the_output(load, path, layer, starts):
    steps = Explainer(load(), layer=layer, path=path)._method
    (source,) = steps.read([Request(PAIR[0])])
    assert steps.starts(steps.cut(source.input)) == starts

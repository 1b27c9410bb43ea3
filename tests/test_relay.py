"""Relays: products of integrated Jacobians, block by block; and paths that are not smooth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo

from conftest import explain_in_every_mode
from whymatch import Explainer

PAIR = ("The coffee is not good.", "This is bad coffee, said nobody who drank it.")
KINDS = [kind for kind in zoo.ARCHITECTURES if kind not in ("t5-relu",)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_architecture_sums_to_the_score(load, kind):
    why = Explainer(load(kind), layer=0, path="relay", tolerance=1e-4).explain(*PAIR)
    assert why.relative_error <= 1e-4
    assert why.settings.path == "relay"


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "llama"])
def test_a_relay_through_one_block_is_the_straight_path(load, kind):
    model = load(kind)
    straight, relay = (
        Explainer(model, layer=-2, path=path, special="keep", divisions=0, tolerance=1e-5).explain(*PAIR)
        for path in ("straight", "relay")
    )
    np.testing.assert_allclose(relay.matrix, straight.matrix, atol=1e-6)


def product_of_jacobians(model, text: str, layer: int, nodes: int) -> np.ndarray:
    """The contributions of a text's tokens, from whole Jacobians of every block: slow, and of no shared code."""
    model = model.double()
    bert, tokenizer = model[0].auto_model, model.tokenizer
    bert.set_attn_implementation("eager")
    ids = tokenizer(text)["input_ids"]
    special = set(tokenizer.all_special_ids)
    reference = [i if i in special else tokenizer.pad_token_id for i in ids]
    with torch.no_grad():
        out = bert(torch.tensor([ids, reference]), torch.ones(2, len(ids)).long(), output_hidden_states=True)
    states = out.hidden_states
    positions, weights = np.polynomial.legendre.leggauss(nodes)
    rows, dim = states[0].shape[1:]
    tangents = []
    for token in range(rows):
        tangent = torch.zeros(rows, dim, dtype=torch.float64)
        tangent[token] = (states[layer][0] - states[layer][1])[token]
        tangents.append(tangent.flatten())
    pushed = torch.stack(tangents).T  # (rows · dim, tokens)
    for number in range(layer, len(bert.encoder.layer)):
        block = bert.encoder.layer[number]

        def run(flat, block=block):
            result = block(flat.view(1, rows, dim))
            return (result[0] if isinstance(result, tuple) else result).flatten()

        x, r = states[number][0].flatten(), states[number][1].flatten()
        jacobian = sum(
            w / 2 * torch.autograd.functional.jacobian(run, r + (u + 1) / 2 * (x - r), vectorize=True)
            for u, w in zip(positions, weights, strict=True)
        )
        pushed = jacobian @ pushed
    return pushed.view(rows, dim, -1).mean(0).T.numpy()  # mean pooling is linear


@pytest.mark.parametrize("layer", [0, 1])
def test_a_relay_is_the_product_of_the_blocks_own_jacobians(load, layer):
    (decomposition,) = Explainer(
        load("dot", torch.float64), layer=layer, path="relay", tolerance=1e-10, fold_reference=False
    ).decompose([PAIR[0]])
    expected = product_of_jacobians(load("dot", torch.float64), PAIR[0], layer, 24)
    np.testing.assert_allclose(decomposition.contributions, expected, atol=1e-8)


@pytest.mark.parametrize("fold", [True, False])
def test_forward_reverse_and_pairwise_agree(load, fold):
    options = {"fold_reference": fold, "tolerance": 1e-8, "divisions": 0}  # with them, short texts are not projected
    explainer = Explainer(load("bert", torch.float64), layer=0, path="relay", **options)
    results = explain_in_every_mode(explainer, PAIR)
    assert results["pairwise"].modes == ("forward", "pairwise")
    for why in results.values():
        np.testing.assert_allclose(why.matrix, results["forward"].matrix, atol=1e-7)
        np.testing.assert_allclose(why.effects_a, results["forward"].effects_a, atol=1e-7)
        assert why.relative_error <= 1e-8
        assert why.entry_error <= 1e-6


def test_chunks_of_tangents_do_not_change_the_result(load, monkeypatch):
    from whymatch.paths.jacobian import Relay

    explainer = Explainer(load("bert", torch.float64), layer=0, path="relay", tolerance=1e-6)
    whole = explainer.decompose([PAIR[0]])[0]
    why = explainer.explain(*PAIR)
    monkeypatch.setattr(Relay, "_at_once", lambda _, count: min(2, count))
    pieces = explainer.decompose([PAIR[0]])[0]
    np.testing.assert_allclose(pieces.contributions, whole.contributions, atol=1e-12)
    np.testing.assert_allclose(pieces.side.errors, whole.side.errors, rtol=1e-6)
    np.testing.assert_allclose(explainer.explain(*PAIR).matrix, why.matrix, atol=1e-12)


def test_batches_groups_and_features(load):
    explainer = Explainer(load("bert", torch.float64), layer=0, path="relay", tolerance=1e-8)
    texts = ["bad coffee", "good tea", PAIR[0]]
    together = explainer.decompose(texts)
    for text, decomposition in zip(texts, together, strict=True):
        (alone,) = explainer.decompose([text])
        np.testing.assert_allclose(decomposition.contributions, alone.contributions, atol=1e-9)
    tokens = explainer.explain(*PAIR)
    words = explainer.explain(*PAIR, groups="words")
    np.testing.assert_allclose(words.matrix, tokens.words().matrix, atol=1e-7)
    assert explainer.features(*PAIR, 2, 3).sum() == pytest.approx(tokens.matrix[2, 3], abs=1e-7)


def test_references_that_are_functions_and_adjusted_models(load):
    from whymatch.training import adjust

    why = Explainer(load(), layer=0, path="relay", reference=lambda x: x.mean(0).expand_as(x)).explain(*PAIR)
    assert why.relative_error <= 1e-3
    adjusted = Explainer(adjust(load()), layer=0, path="relay", tolerance=1e-4, fold_reference=False).explain(*PAIR)
    assert adjusted.relative_error <= 1e-4
    assert adjusted.constant == pytest.approx(0, abs=1e-6)


def test_given_steps_are_those_of_every_segment(load):
    why = Explainer(load(), layer=1, path="relay", steps=4).explain(*PAIR)
    assert why.nodes == (8, 8)  # two blocks
    assert why.error > 0


def test_an_unknown_path_is_named(load):
    with pytest.raises(
        ValueError, match="path='winding' is not known; choose 'straight', 'relay', 'relay-2', 'relay-3', 'secant'"
    ):
        Explainer(load(), path="winding")
    straight, relay = (Explainer(load(), layer=1, path=path).decompose(["coffee"])[0] for path in ("straight", "relay"))
    with pytest.raises(ValueError, match="path is 'straight' for the first and 'relay' for the second"):
        Explainer.pair(straight, relay)
    with pytest.raises(ValueError, match="a relay of several segments"):
        Explainer(load(), layer=0, path="relay").path_values(["coffee"], [0.5])

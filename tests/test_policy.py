"""Where an encoder is cut, and which path is taken, when nobody says."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from conftest import real_model
from whymatch import Explainer, policy
from whymatch.paths import rules
from whymatch.paths.secant import NoSecantError

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def roughen(model, block: int):
    """Let one block's attention decide all of a sudden, so that the line through it is steep."""
    attention = model[0].model.encoder.layer[block].attention.self
    with torch.no_grad():
        attention.query.weight *= 60
        attention.key.weight *= 60
    return model


def deepen(model):
    """Give a model of three blocks two more."""
    blocks = model[0].model.encoder.layer
    blocks.extend([deepcopy(blocks[1]), deepcopy(blocks[2])])
    model[0].model.config.num_hidden_layers = len(blocks)
    return model


def test_the_defaults_go_from_the_input_of_a_smooth_model_by_operations(load):
    why = Explainer(load()).explain(*PAIR)
    assert (why.settings.layer, why.settings.path) == (0, "secant")
    assert why.relative_error <= 1e-3


def test_fast_goes_through_the_last_three_blocks_by_secants_and_the_last_one_by_relays(load):
    model = deepen(load())
    explainer = Explainer(model, detail="fast")
    assert (explainer.settings.layer, explainer.settings.path) == (2, "secant")
    assert Explainer(model).at_detail("fast").settings == explainer.settings
    assert Explainer(model, detail="fast", path="relay").settings.layer == 4
    assert Explainer(load(), detail="fast").settings.layer == 0


def test_fast_does_not_begin_below_fine(load):
    assert Explainer(roughen(load(), 1), detail="fast").settings.layer == 2
    assert Explainer(roughen(load(), 0), detail="fast").settings.layer == 1


def test_fine_begins_after_the_last_rough_block(load):
    assert Explainer(roughen(load(), 1)).settings.layer == 2
    assert Explainer(roughen(load(), 0)).settings.layer == 1
    assert Explainer(roughen(load(), 2)).settings.layer == 2  # some block has to be gone through


@pytest.mark.parametrize("kind", ["llama", "t5", "nomic-bert", "modernbert"])
def test_a_model_with_gates_or_with_norms_that_are_written_out_is_explained_block_by_block(load, kind):
    assert Explainer(load(kind)).settings.path == "relay"


def test_a_model_without_a_secant_is_explained_block_by_block(load, monkeypatch):
    model = load()
    monkeypatch.delitem(rules.RULES, "gelu")
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight *= 1.02  # a model that no other test has looked at
    explainer = Explainer(model)
    assert explainer.settings.path == "relay"
    assert explainer.explain(*PAIR).relative_error <= 1e-3
    with pytest.raises(NoSecantError, match=r"aten\.gelu has no exact secant"):
        Explainer(model, path="secant").explain(*PAIR)


def test_a_layer_that_is_given_stays(load):
    explainer = Explainer(load(), layer=1)
    assert explainer.at_detail("fast") is explainer
    assert explainer.at_layer(0).at_detail("fast").settings.layer == 0


@pytest.mark.parametrize("asked", [{"steps": 5}, {"rule": "right"}, {"fold_reference": False}])
def test_whoever_asks_for_the_papers_sum_gets_its_path(load, asked):
    assert Explainer(load(), layer=1, **asked).settings.path == "straight"
    assert Explainer(load(), layer=1, path="relay", **asked).settings.path == "relay"


def test_a_model_is_looked_at_once_and_again_when_it_changes(load, monkeypatch):
    looks = []
    look = policy.shallowest_smooth
    monkeypatch.setattr(policy, "shallowest_smooth", lambda *args: looks.append(args) or look(*args))
    model = deepen(load())
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight *= 1.01  # a model that no other test has looked at
    for detail in ("fine", "fine", "fast", "fast"):
        Explainer(model, detail=detail)
    assert len(looks) == 2  # at all blocks, and at the last three
    with torch.no_grad():
        model[0].model.embeddings.word_embeddings.weight *= 1.01
    Explainer(model)
    assert len(looks) == 3


def test_an_unknown_level_of_detail_is_named(load):
    with pytest.raises(ValueError, match="detail='coarse' is not known; choose 'fine' or 'fast'"):
        Explainer(load(), detail="coarse")
    with pytest.raises(ValueError, match="detail='coarse' is not known"):
        Explainer(load(), layer=1).at_detail("coarse")


def test_the_papers_own_model_is_explained_by_default():
    explainer = Explainer(real_model("all-mpnet-base-v2"))
    assert explainer.settings.layer == 8
    assert explainer.at_detail("fast").settings.layer == 9
    why = explainer.explain("A man plays.", "Somebody plays.")
    assert why.relative_error <= 1e-3

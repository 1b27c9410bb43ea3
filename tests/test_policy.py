"""Where an encoder is cut, and which path is taken, when nobody says."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import explain_in_every_mode, real_model
from whymatch import Explainer, policy
from whymatch.encoders.adjusted import adjust
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
    assert explainer.at_detail("fast").settings == replace(explainer.settings, divisions=0)
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


@pytest.mark.parametrize("path", ["straight", "relay", "secant"])
def test_words_hand_the_base_over_and_the_sum_stays(load, path):
    keep, base = (Explainer(load(), layer=1, path=path, special=each, divisions=0) for each in ("keep", "base"))
    share = base.settings.base
    assert 0 < share <= 1
    (kept,), (given,) = keep.decompose(PAIR[:1]), base.decompose(PAIR[:1])
    words = np.array(kept.kinds) == "text"
    each = np.asarray(kept.embedding) * share / len(kept.tokens)
    np.testing.assert_allclose(given.contributions[words], kept.contributions[words] - each, atol=1e-5)
    np.testing.assert_allclose(given.contributions.sum(0), kept.contributions.sum(0), atol=1e-5)
    why = base.explain(*PAIR)
    assert why.relative_error <= 1e-3
    assert "what stays without words is with the special tokens" in why.derivation


def test_the_base_is_the_same_in_every_mode_for_groups_and_for_features(load):
    explainer = Explainer(load(), layer=1, path="relay", special="base", tolerance=1e-5)
    results = explain_in_every_mode(explainer, PAIR)
    for why in results.values():
        np.testing.assert_allclose(why.matrix, results["forward"].matrix, atol=1e-5)
    words = explainer.explain(*PAIR, groups="words")
    np.testing.assert_allclose(words.matrix, results["forward"].words().matrix, atol=1e-4)
    for i in (0, 2):  # a special token, and a word
        block = explainer.features(*PAIR, i, 3)
        assert block.sum() == pytest.approx(results["forward"].matrix[i, 3], abs=1e-5)


def test_the_base_belongs_to_a_layer_and_is_kept_with_settings(load, folders):
    explainer = Explainer(str(folders("bert")), layer=0, special="base")
    deeper = explainer.at_layer(2)
    assert deeper.settings == Explainer(load(), layer=2, special="base", name=explainer.settings.model).settings
    other = replace(explainer.settings, base=0.25)
    assert Explainer.with_settings(other).settings.base == 0.25
    a, b = (each.decompose(PAIR[:1])[0] for each in (explainer, Explainer.with_settings(other)))
    with pytest.raises(ValueError, match="do not belong together: base is"):
        Explainer.pair(a, b)


def test_special_tokens_hold_the_base_only_if_much_stays(load, monkeypatch):
    model = load()
    for stays, special in ((0.4, "keep"), (0.6, "base")):
        monkeypatch.setattr(policy, "how_much_stays", lambda _, stays=stays: stays)
        assert Explainer(model).settings.special == special
        assert Explainer(model, rule="right").settings.special == "keep"  # the paper's own sum
        assert Explainer(model, path="straight").settings.special == "keep"
        assert Explainer(model, reference=torch.zeros_like).settings.special == "keep"
        assert Explainer(model, fold_reference=False).settings.special == "keep"
        assert Explainer(adjust(model)).settings.special == "keep"
    assert Explainer(model, special="keep").settings.base == 0
    with pytest.raises(ValueError, match="special='base' needs contributions that sum to the embedding"):
        Explainer(model, special="base", fold_reference=False)


def test_texts_without_words_have_nothing_to_hand_over(load):
    why = Explainer(load(), special="base").explain("", PAIR[0])
    assert why.relative_error <= 1e-3


def test_little_stays_of_minilm_and_much_of_granite(minilm):
    assert Explainer(minilm).settings.special == "keep"
    granite = Explainer(real_model("granite-embedding-30m-english"))
    assert granite.settings.special == "base"
    assert 0.5 < granite.settings.base < 0.8


def test_a_model_that_adds_no_tokens_has_nobody_to_hold_a_base(load, monkeypatch):
    monkeypatch.setattr(policy, "how_much_stays", lambda _: 0.9)
    model = load()
    assert Explainer(model).settings.special == "base"
    monkeypatch.setattr(policy, "TEMPLATE", ())
    assert Explainer(model).settings.special == "keep"


def test_sentences_that_are_too_long_for_a_small_model_are_left_out(load, monkeypatch):
    explainer = Explainer(load(), layer=1, path="relay", special="keep")
    monkeypatch.setattr(policy, "_stays", {})
    everything = policy.how_much_stays(explainer._method)
    original = type(explainer._method.encoder).vectors

    def vectors(self, texts, options):
        if "refund" in texts[0]:
            raise RuntimeError("too long")
        return original(self, texts, options)

    monkeypatch.setattr(policy, "_stays", {})
    monkeypatch.setattr(type(explainer._method.encoder), "vectors", vectors)
    assert policy.how_much_stays(explainer._method) == pytest.approx(everything, abs=0.1)
    assert policy.how_much_stays(explainer._method) != everything

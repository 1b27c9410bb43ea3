"""Every architecture, with one mechanism: exact, right, and the same in a batch as alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo

import oracle
from whymatch import Explainer
from whymatch.inputs import Reading, _folded
from whymatch.preparation import Request

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")
OTHERS = [PAIR, ("A man is slicing bread.", PAIR[1]), ("Two dogs run", "a child in the kitchen; a woman isn't")]
LAYERS = range(4)
BLOCKS = {
    "distilbert": "transformer.layer",
    "albert": "encoder.albert_layer_groups",
    "modernbert": "layers",
    "t5": "encoder.block",
    "t5-relu": "encoder.block",
    **dict.fromkeys(("qwen3", "gemma3", "mistral", "llama"), "layers"),
}
ENTRY = {"deberta-v2": "encoder"}  # whose convolution sees the embeddings too
KINDS = sorted(zoo.ARCHITECTURES)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_is_the_score(load, kind, layer):
    model = load(kind)
    before = model.encode(list(PAIR))
    explainer = Explainer(model, layer=layer, tolerance=2e-3 if kind in zoo.RELU else 1e-6)
    assert explainer.num_layers == 3
    why = explainer.explain(*PAIR)
    assert why.error <= (2e-3 if kind in zoo.RELU else 1e-5)
    assert why.constant == 0
    assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    assert (model.encode(list(PAIR)) == before).all()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_oracle(load, kind, layer):
    model = load(kind)
    expected = oracle.attributions(
        model, *PAIR, layer, steps=12, blocks=BLOCKS.get(kind, "encoder.layer"), entry=ENTRY.get(kind)
    )
    explainer = Explainer(model, layer=layer, rule="right", steps=12, tolerance=1e-6, fold_reference=False)
    why = explainer.pair(*explainer.decompose(PAIR))
    for name in ("matrix", "effects_a", "effects_b", "constant", "score"):
        np.testing.assert_allclose(getattr(why, name), expected[name], atol=2e-6, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_one_by_one(load, kind):
    explainer = Explainer(load(kind), layer=1, tolerance=2e-3 if kind in zoo.RELU else 1e-5)
    for why, pair in zip(explainer.explain_many(OTHERS), OTHERS, strict=True):
        alone = explainer.explain(*pair)
        np.testing.assert_allclose(why.matrix, alone.matrix, atol=explainer.settings.tolerance)
        assert why.tokens_a == alone.tokens_a


@pytest.mark.parametrize("kind", KINDS)
def test_the_modes_agree(load, kind):
    explainer = Explainer(load(kind), layer=1, steps=8, tolerance=1e-5)
    a, b = (Request(text, Reading(), None) for text in PAIR)
    homes = {
        key: (bucket, i)
        for keys, bucket in explainer._preparation.prepare([a, b]).buckets()
        for i, key in enumerate(keys)
    }
    (first, i), (second, j) = homes[a.key], homes[b.key]
    forward, reverse = (first.decompose([i], mode=mode)[0] for mode in ("forward", "reverse"))
    np.testing.assert_allclose(forward.contributions, reverse.contributions, atol=1e-6)
    whole = explainer.pair(forward, second.decompose([j], mode="forward")[0])
    np.testing.assert_allclose(second.project(j, forward).matrix, whole.matrix, atol=1e-5)


def test_blocks_that_share_their_weights_are_counted_as_often_as_they_run(load):
    model = load("albert")
    assert len(model[0].auto_model.encoder.albert_layer_groups) == 1
    assert Explainer(model).num_layers == 3


def test_blocks_can_be_named(load):
    model = load()
    expected = Explainer(model, layer=1).explain(*PAIR).matrix
    for name in ("encoder.layer", "0.model.encoder.layer"):
        assert (Explainer(model, layer=1, blocks=name).explain(*PAIR).matrix == expected).all()
    with pytest.raises(
        ValueError, match=r"blocks='no.such' is not a list of blocks of this model; it has .*encoder.layer"
    ):
        Explainer(model, blocks="no.such")


class Patchwork(torch.nn.Module):
    """Blocks of different kinds, as a list that no rule would take for a transformer's."""

    def __init__(self, model):
        super().__init__()
        self.embeddings = model.embeddings
        self.parts = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16)])
        self.config = model.config

    def forward(self, input_ids, **_):
        from transformers.modeling_outputs import BaseModelOutput

        x = self.embeddings(input_ids=input_ids)
        for part in self.parts:
            x = part(x)
        return BaseModelOutput(last_hidden_state=x)


def test_blocks_that_are_not_found_are_asked_for(load):
    model = load()
    torch.manual_seed(0)
    model[0].model = Patchwork(model[0].model)
    model[0].model_forward_params = {"input_ids", "attention_mask"}
    with pytest.raises(
        TypeError, match=r"no list of alike blocks ran .*parts \(Linear, Tanh\).*blocks=\"path.to.blocks\""
    ):
        Explainer(model)
    explainer = Explainer(model, blocks="parts", layer=1)
    assert explainer.num_layers == 3
    assert explainer.explain(*PAIR).error < 1e-3


TEXT = "The café isn't GOOD 🙂, nobody drank coffee."


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "t5", "llama", "qwen3"])
def test_labels_offsets_and_words_of_each_tokenizer(load, kind):
    model = load(kind)
    (dec,) = Explainer(model, layer=-1).decompose([TEXT])
    ids = model.tokenizer(TEXT)["input_ids"]
    assert len(dec.tokens) == len(ids)
    for label, (low, high), token_kind in zip(dec.tokens, dec.offsets, dec.kinds, strict=True):
        if token_kind == "special":
            assert (low, high) == (0, 0)
            assert label in model.tokenizer.all_special_tokens
            continue
        piece = TEXT[low:high]
        assert piece or not label.strip("▁Ġ")
        unknown = model.tokenizer.unk_token
        readable = _folded(label.removeprefix("##")) == _folded(piece.strip())
        assert readable or label == unknown or not piece.strip() or label.startswith("<0x")
    why = Explainer(model, layer=-1).explain(TEXT, TEXT).words()
    words = [label for label, kind in zip(why.tokens_a, why.kinds_a, strict=True) if kind != "special"]
    expected = ["The", "café", "isn't", "GOOD", "🙂", ",", "nobody", "drank", "coffee", "."]
    assert [word for word in words if word.strip("▁Ġ")] == expected
    assert why.error < 1e-3

"""Every architecture, with one mechanism: exact, right, and the same in a batch as alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
import zoo

import oracle
from conftest import follow
from whymatch import Explainer, method
from whymatch.reading.inputs import _folded

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
    a, b = (follow(explainer, text) for text in PAIR)
    forward, reverse = (method.decompose(*a, explainer.settings, mode=mode)[0] for mode in ("forward", "reverse"))
    np.testing.assert_allclose(forward.contributions, reverse.contributions, atol=1e-6)
    whole = explainer.pair(forward, method.decompose(*b, explainer.settings, mode="forward")[0])
    np.testing.assert_allclose(method.project(*b, forward)[0].matrix, whole.matrix, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(zoo.RARE))
def test_rare_architectures_are_exact_too(load, kind):
    if not hasattr(transformers, zoo.RARE[kind][1]):
        pytest.skip(f"transformers {transformers.__version__} has no {zoo.RARE[kind][1]}")
    model = load(kind)
    for layer in LAYERS:
        why = Explainer(model, layer=layer).explain(*PAIR)
        assert why.relative_error <= 1e-3
        assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)


def test_a_model_that_halves_its_texts_is_exact_where_its_tokens_are(load):
    model = load("funnel")
    assert Explainer(model).num_layers == 1  # of its first stage
    for layer in (0, 1):
        why = Explainer(model, layer=layer).explain(*PAIR)
        assert why.relative_error <= 1e-3
        assert why.score == pytest.approx(float(model.similarity(*map(model.encode, PAIR))), abs=1e-6)
    with pytest.raises(
        TypeError, match=r"hidden states at layer 0 for the \d+ tokens of .* do not belong to its tokens"
    ):
        Explainer(model, blocks="encoder.blocks.2").explain(*PAIR)


@pytest.mark.parametrize("kind", sorted(zoo.MIXTURES))
def test_mixtures_of_experts(load, kind):
    """Derivatives are right; what is missing where another expert is chosen along the path is measured, and said."""
    model = load(kind)
    assert Explainer(model, layer=-1).explain(*PAIR).relative_error <= 1e-3
    grouped = model[0].auto_model.config._experts_implementation
    expected = oracle.attributions(model, *PAIR, 1, steps=12, blocks="layers")
    explainer = Explainer(model, layer=1, rule="right", steps=12, tolerance=1e-6, fold_reference=False)
    why = explainer.pair(*explainer.decompose(PAIR))
    np.testing.assert_allclose(why.matrix, expected["matrix"], atol=2e-6)
    assert model[0].auto_model.config._experts_implementation == grouped  # the model is as it was


UNDERIVED = (
    r"fails in its own code while it is differentiated from layer 1 on .* cannot differentiate one of its operations"
)


@pytest.mark.parametrize("kind", ["bloom", "mra", "recurrent-gemma", "yoso"])
def test_operations_without_a_derivative_are_named(load, kind):
    model = load(kind)
    with pytest.raises(RuntimeError, match=UNDERIVED + ".*layer=-1 explains its last block's output") as error:
        Explainer(model, layer=1, path="relay").explain(*PAIR)
    assert error.value.__cause__ is not None
    assert Explainer(model, layer=-1, path="relay").explain(*PAIR).relative_error <= 1e-3


def test_a_secant_needs_no_derivatives(load):
    assert Explainer(load("mra")).explain(*PAIR).relative_error <= 1e-5


def test_a_model_that_does_not_run_here_is_named(load):
    with pytest.raises(RuntimeError, match=r"fails in its own code while it reads a first, short input \(AttributeErr"):
        Explainer(load("yoso-hash"))  # whose hashing needs a CUDA kernel


def test_long_texts_of_a_model_that_attends_to_blocks(tmp_path):
    """BigBird reads short texts with full attention, and from then on all; only long ones are read by blocks."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    sizes = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
    modules = [Transformer(str(zoo.backbone(tmp_path, "big-bird", 64, **sizes))), Pooling(16, "mean")]
    model = SentenceTransformer(modules=modules, device="cpu")
    transformer = model[0].auto_model
    a, b = " coffee" * 33, " bread" * 10 + " coffee" * 23

    def count(text):
        return len(model.tokenizer(text)["input_ids"])

    a, b = (text[: max(i for i in range(len(text)) if count(text[:i]) == 36)] for text in (a, b))
    explainer = Explainer(model, layer=1)
    why = explainer.explain(a, b)
    assert transformer.attention_type == "block_sparse"  # what the explainer reads, a copy of the model reads
    assert why.score == pytest.approx(float(model.similarity(*map(model.encode, (a, b)))), abs=1e-6)
    assert why.error <= 1e-3
    with pytest.raises(TypeError, match=r"the encoder has 40 hidden states at layer 1 for the 37 tokens of"):
        explainer.explain(a + " coffee" * (37 - count(a)), b)
    transformer.set_attention_type("original_full")
    assert abs(float(model.similarity(*map(model.encode, (a, b)))) - why.score) > 1e-4


@pytest.mark.parametrize("kind", ["squeezebert", "xlnet"])
def test_hidden_states_in_another_order_are_refused(load, kind):
    """At once, and not only for texts whose number of tokens shows it."""
    with pytest.raises(TypeError, match=r"are not given hidden states \(inputs, tokens, dimensions\), in that order"):
        Explainer(load(kind))


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

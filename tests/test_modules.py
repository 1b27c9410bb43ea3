"""What comes after the transformer: poolings, dense layers, normalization; and what comes before it: prompts."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import zoo
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling, WeightedLayerPooling

from whymatch import Explainer

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")
SMOOTH = ["cls", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("mean", "cls")]


def own_score(model, **kwargs):
    return float(model.similarity(*(model.encode(text, **kwargs) for text in PAIR)))


def loaded(folder):
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize("kind", ["bert", "qwen3"])
@pytest.mark.parametrize("pooling", SMOOTH, ids=str)
def test_poolings_are_exact(tmp_path, pooling, kind, layer):
    model = loaded(zoo.build(tmp_path, kind, pooling=pooling))
    why = Explainer(model, layer=layer, tolerance=1e-6).explain(*PAIR)
    assert why.error <= 1e-5
    assert why.score == pytest.approx(own_score(model), abs=1e-6)


@pytest.mark.parametrize("pooling", ["max", ("max", "mean")], ids=str)
def test_max_pooling_has_kinks_and_is_exact_all_the_same(tmp_path, pooling):
    """Where another token becomes the largest the path has a kink, so nodes gain less; the error is still measured."""
    model = loaded(zoo.build(tmp_path, pooling=pooling))
    for layer in (0, 3):
        why = Explainer(model, layer=layer, tolerance=1e-3).explain(*PAIR)
        assert why.error <= 1e-3
        assert why.score == pytest.approx(own_score(model), abs=1e-6)


MIXTURES = {
    "dense": lambda p: [Dense(p.get_embedding_dimension(), 5)],
    "wide dense without activation": lambda p: [
        Dense(p.get_embedding_dimension(), 40, activation_function=torch.nn.Identity())
    ],
    "gelu": lambda p: [Dense(p.get_embedding_dimension(), 12, activation_function=torch.nn.GELU())],
    "layer norm": lambda p: [LayerNorm(p.get_embedding_dimension())],
    "dropout": lambda _: [Dropout(0.5)],
    "normalize in the middle": lambda p: [Normalize(), Dense(p.get_embedding_dimension(), 6)],
    "normalize twice": lambda _: [Normalize()],
}


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", MIXTURES)
def test_modules_are_exact(tmp_path, name, normalize):
    torch.manual_seed(0)
    model = loaded(zoo.build(tmp_path, between=MIXTURES[name], normalize=normalize))
    for similarity in ("cosine", "dot"):
        for layer in (1, 3):
            why = Explainer(model, layer=layer, similarity=similarity, tolerance=1e-6).explain(*PAIR)
            assert why.relative_error <= 1e-5
            assert why.effects_a.sum() == 0
    model.similarity_fn_name = "dot"
    assert why.score == pytest.approx(own_score(model), abs=1e-6 * max(1, why.norms))


def test_a_model_that_uses_every_layer_is_cut_at_none_but_the_first(tmp_path):
    model = loaded(zoo.build(tmp_path))
    model[0].auto_model.config.output_hidden_states = True
    weighted = WeightedLayerPooling(16, num_hidden_layers=3, layer_start=1)
    model = SentenceTransformer(modules=[model[0], weighted, Pooling(16, "mean")], device="cpu")
    with pytest.raises(TypeError, match=r"from layer 2 on, given its own hidden states, misses its own embedding"):
        Explainer(model, layer=2).explain(*PAIR)
    assert Explainer(model, layer=0).explain(*PAIR).error < 1e-3
    why = Explainer(model).explain(*PAIR)
    assert (why.settings.layer, why.settings.path) == (0, "straight")


@pytest.mark.parametrize("normalize", [True, False])
def test_truncated_dimensions(tmp_path, normalize):
    model = SentenceTransformer(str(zoo.build(tmp_path, normalize=normalize)), truncate_dim=5, device="cpu")
    for layer in (1, 3):
        for similarity in ("cosine", "dot"):
            why = Explainer(model, layer=layer, similarity=similarity, tolerance=1e-6).explain(*PAIR)
            assert why.relative_error <= 1e-5
    (dec,) = Explainer(model, layer=1).decompose([PAIR[0]])
    assert dec.contributions.shape[1] == 5
    np.testing.assert_allclose(dec.embedding, model.encode(PAIR[0]), atol=1e-6)
    model.similarity_fn_name = "dot"
    assert why.score == pytest.approx(own_score(model), abs=1e-5)


PROMPTS = {"query": "bread; ", "document": "this is ", "other": "dogs "}


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("kind", ["bert", "roberta", "qwen3"])
def test_prompts_are_labelled_and_left_out_where_pooling_leaves_them_out(tmp_path, kind, include):
    folder = zoo.build(tmp_path, kind, pooling="mean", prompts=PROMPTS, pooling_options={"include_prompt": include})
    model = loaded(folder)
    for layer in (0, 1, 3):
        explainer = Explainer(model, layer=layer, tolerance=1e-6)
        why = explainer.explain(*PAIR, prompt_name="query")
        assert why.error <= 1e-5
        assert why.score == pytest.approx(own_score(model, prompt_name="query"), abs=1e-6)
        prompts = [i for i, kind in enumerate(why.kinds_a) if kind == "prompt"]
        assert "".join(why.tokens_a[i].removeprefix("##") for i in prompts).strip("Ġ") == "bread;"
        assert all(why.offsets_a[i] == (0, 0) for i in prompts)
        low, high = why.offsets_a[why.tokens_a.index("coffee")]
        assert PAIR[0][low:high].strip() == "coffee"
        if layer == 3 and not include:  # at the output the pooling sees each token alone
            paper = Explainer(model, layer=3, tolerance=1e-6, fold_reference=False).explain(*PAIR, prompt_name="query")
            for explanation in (why, paper):
                assert np.abs(explanation.matrix[prompts]).max() == 0
                assert np.abs(explanation.matrix).max() > 1e-4


def test_tasks_read_as_encode_query_and_encode_document_do(tmp_path):
    model = loaded(zoo.build(tmp_path, prompts=PROMPTS))
    expected = float(model.similarity(model.encode_query(PAIR[0]), model.encode_document(PAIR[1])))
    explainer = Explainer(model, layer=2)
    why = explainer.explain(*PAIR, task=("query", "document"))
    assert why.score == pytest.approx(expected, abs=1e-6)
    assert explainer.explain(*PAIR).score == pytest.approx(expected, abs=1e-6)  # what it reads in two ways
    assert abs(explainer.explain(*PAIR, prompt="").score - expected) > 1e-4
    named = explainer.explain(*PAIR, prompt_name=("query", "document"))
    assert named.score == pytest.approx(expected, abs=1e-6)
    given = explainer.explain(*PAIR, prompt=("bread; ", "this is "))
    assert given.score == pytest.approx(expected, abs=1e-6)
    a, b = (explainer.decompose([text], task=task)[0] for text, task in zip(PAIR, ("query", "document"), strict=True))
    np.testing.assert_allclose(explainer.pair(a, b).matrix, why.matrix, atol=1e-3)
    with pytest.raises(
        ValueError, match="there is no prompt 'nope': this model has the prompts query, document, other"
    ):
        explainer.explain(*PAIR, prompt_name="nope")
    with pytest.raises(ValueError, match=r"^there is no prompt 'nope': this model has"):
        explainer.rank(PAIR[0], [PAIR[1]], prompt_name=("query", "nope"))
    for ask in (explainer.explain, explainer.highlight):
        with pytest.raises(ValueError, match="there is no task 'search': this model has query and document"):
            ask(*PAIR, task="search")
    with pytest.raises(ValueError, match="there is no task 'search'"):
        explainer.rank(PAIR[0], [PAIR[1]], task="search")


def test_one_text_under_two_prompts_is_two_inputs(tmp_path):
    model = loaded(zoo.build(tmp_path, prompts=PROMPTS))
    why = Explainer(model, layer=2).explain(PAIR[0], PAIR[0], prompt_name=("query", "other"))
    assert why.tokens_a != why.tokens_b
    assert why.score < 0.9999


@pytest.mark.parametrize("name", ["euclidean", "manhattan"])
def test_distances_are_not_products(tmp_path, name):
    model = loaded(zoo.build(tmp_path, similarity=name))
    with pytest.raises(
        ValueError, match=f"is '{name}', which is not a product of embeddings; give similarity='cosine' or"
    ):
        Explainer(model)
    assert Explainer(model, similarity="dot", layer=2).explain(*PAIR).error < 1e-3


@pytest.mark.parametrize("kind", ["bert", "t5", "modernbert", "llama"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(load, kind, dtype):
    model = load(kind, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        why = Explainer(model, layer=1).explain(*PAIR)
    assert why.score == pytest.approx(own_score(model), abs=1e-6)
    assert why.relative_error <= 1e-3 + 4 * torch.finfo(dtype).eps
    assert next(model.parameters()).dtype == dtype

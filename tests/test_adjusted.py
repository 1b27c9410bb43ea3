"""Adjusted models: the reference's embedding is zero, whatever is around, saved and loaded, trained or not."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import zoo
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from whymatch import Explainer, Explanation, training
from whymatch.encoders import loading
from whymatch.encoders.loading import load as load_model
from whymatch.reading.inputs import EncodeOptions
from whymatch.reading.reference import reference_features
from whymatch.training import ReferenceShift, adjust

TEXTS = [
    "The coffee is not good.",
    "This is bad coffee, and nobody drank it.",
    "bread",
    "Two dogs run across the snowy field towards a child.",
    "A man is slicing bread.",
]
KINDS = sorted(zoo.ARCHITECTURES)


def expected(model, texts, reference="pad", normalized=False):
    """e'(text) − e'(reference), one by one, from the model's modules themselves."""
    from whymatch.encoders.encoder import Encoder
    from whymatch.reading.inputs import batched

    encoder = Encoder(model, "base")
    embeddings = []
    for text in texts:
        (given,) = encoder.read([text], EncodeOptions())
        other = reference_features(encoder.content(reference, given), given)
        rows = []
        for features in (given.features, other):
            out = batched([features], torch.device("cpu"))
            for module in model:
                if type(module).__name__ != "Normalize":
                    out = module(out)
            row = out["sentence_embedding"][0]
            rows.append(row / row.norm() if normalized else row)
        embeddings.append((rows[0] - rows[1]).detach().numpy())
    return np.stack(embeddings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_embedding_is_the_text_minus_its_reference(load, kind):
    model = load(kind, torch.float64)  # so that what is seen is not the rounding of these wildly weighted models
    before = model.encode(TEXTS)
    for normalized in (False, True):
        embeddings = adjust(model, normalized=normalized).encode(TEXTS)
        np.testing.assert_allclose(embeddings, expected(model, TEXTS, normalized=normalized), atol=1e-6)
    assert (model.encode(TEXTS) == before).all()  # the model that was given is as it was


@pytest.mark.parametrize("kind", KINDS)
def test_neither_batch_nor_padding_matters(load, kind):
    adjusted = adjust(load(kind, torch.float64))
    alone = np.stack([adjust(load(kind, torch.float64)).encode(text) for text in TEXTS])
    for size in (1, 2, 5):
        np.testing.assert_allclose(adjusted.encode(TEXTS, batch_size=size), alone, atol=1e-6)


def test_neither_batch_nor_padding_matters_to_the_real_model(minilm):
    adjusted = adjust(minilm)
    alone = np.stack([adjusted.encode(text) for text in TEXTS])
    np.testing.assert_allclose(adjust(minilm).encode(TEXTS), alone, atol=1e-6)


def test_the_reference_itself_is_zero(load):
    adjusted = adjust(load())
    features = adjusted.preprocess(["a coffee"])
    pads = features["content_mask"]
    features["input_ids"] = torch.where(pads, adjusted.tokenizer.pad_token_id, features["input_ids"])
    with torch.no_grad():
        assert (adjusted(features)["sentence_embedding"] == 0).all()


@pytest.mark.parametrize(
    ("pooling", "options"), [("cls", {}), ("max", {}), ("weightedmean", {}), (("mean", "cls"), {})]
)
def test_every_pooling(tmp_path, pooling, options):
    model = SentenceTransformer(str(zoo.build(tmp_path, pooling=pooling, **options)), device="cpu")
    np.testing.assert_allclose(adjust(model).encode(TEXTS), expected(model, TEXTS), atol=3e-6)


def test_a_prompt_belongs_to_the_reference(tmp_path):
    folder = zoo.build(tmp_path, prompts={"query": "coffee and bread: "}, default_prompt_name=None)
    adjusted = adjust(SentenceTransformer(str(folder), device="cpu"))
    plain = adjusted.preprocess(["slicing bread"])["content_mask"]
    prompted = adjusted.preprocess(["slicing bread"], prompt="coffee and bread: ")["content_mask"]
    assert prompted.sum() == plain.sum()
    assert prompted.shape[1] > plain.shape[1]
    why = Explainer(adjusted, tolerance=1e-5, fold_reference=False).explain(*TEXTS[:2], prompt_name="query")
    assert np.abs(why.effects_a).max() < 1e-6
    assert why.error < 1e-5


def test_gradients_flow_through_both_terms(load):
    """The gradient along a direction is what a small step along it changes; no part of it is left out."""
    adjusted = adjust(load(dtype=torch.float64)).eval()
    features = adjusted.preprocess(TEXTS[:3])
    weights = [
        weight for name, weight in adjusted.named_parameters() if "layer" in name and not name.endswith("pooler.weight")
    ]
    torch.manual_seed(0)
    steps = [torch.randn_like(weight) for weight in weights]

    def loss():
        return adjusted({**features})["sentence_embedding"].square().sum()

    loss().backward()
    slope = sum(float((weight.grad * step).sum()) for weight, step in zip(weights, steps, strict=True))
    values = []
    for size in (1e-6, -1e-6):
        with torch.no_grad():
            for weight, step in zip(weights, steps, strict=True):
                weight += size * step
            values.append(float(loss()))
            for weight, step in zip(weights, steps, strict=True):
                weight -= size * step
    assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_batch_computes_each_distinct_reference_once(load, gradients):
    adjusted = adjust(load())
    runs = []
    pooling = adjusted[0].encoder[1]
    pooling.register_forward_hook(lambda _module, _args, out: runs.append(len(out["sentence_embedding"])))
    texts = ["coffee", "bread", "bad coffee", "slicing bread"]
    lengths = len({len(adjusted.tokenizer(text)["input_ids"]) for text in texts})
    assert lengths < len(texts)
    with torch.set_grad_enabled(gradients):
        adjusted(adjusted.preprocess(texts))
    assert sum(runs) == len(texts) + lengths


@pytest.mark.parametrize("how", ["step", "in place", "data", "data row", "load", "sign", "replace", "cast"])
def test_no_reference_outlives_its_weights(load, how):
    adjusted = adjust(load())
    adjusted.encode(TEXTS)
    weight = adjusted[0].encoder[0].auto_model.embeddings.word_embeddings.weight
    if how == "step":
        adjusted.train()
        adjusted(adjusted.preprocess(TEXTS))["sentence_embedding"].sum().backward()
        torch.optim.AdamW(adjusted.parameters(), lr=1e-2).step()
        adjusted.eval()
    elif how == "in place":
        with torch.no_grad():
            weight += 0.1
    elif how == "data":
        weight.data *= 1.5
    elif how == "data row":
        weight.data[adjusted.tokenizer.pad_token_id] += 0.1
    elif how == "load":
        state = {name: value + 0.05 for name, value in adjusted.state_dict().items() if value.is_floating_point()}
        adjusted.load_state_dict(state, strict=False)
    elif how == "sign":
        weight.data.neg_()
    elif how == "replace":
        weight.data = weight.data + 0.1
    else:
        adjusted.to(torch.float64)
    shift = adjusted[0]
    for text, embedding in zip(TEXTS, adjusted.encode(TEXTS), strict=True):
        features = adjusted.preprocess([text])
        both, (row,) = shift.with_references(features)
        with torch.no_grad():
            unshifted = shift.unshifted(both).double().numpy()
        np.testing.assert_allclose(embedding, unshifted[0] - unshifted[int(row)], atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5", "qwen3"])
@pytest.mark.parametrize("normalized", [False, True])
def test_saved_and_loaded(load, tmp_path, kind, normalized):
    adjusted = adjust(load(kind), normalized=normalized)
    before = loading.identity(adjusted)
    for _ in range(2):
        adjusted[0].scale(0.5)
    assert loading.identity(adjusted) != before
    assert adjusted[0].normalized == normalized
    wanted = adjusted.encode(TEXTS)
    adjusted.save_pretrained(str(tmp_path / "model"))
    listed = json.loads((tmp_path / "model/modules.json").read_text())
    assert [module["type"] for module in listed] == ["whymatch.training.ReferenceShift"]
    for again in (
        SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True),
        training.load(tmp_path / "model", "cpu"),
    ):
        assert isinstance(again[0], ReferenceShift)
        assert type(again) is SentenceTransformer
        np.testing.assert_array_equal(again.encode(TEXTS), wanted)
        assert again.max_seq_length == adjusted.max_seq_length
        assert again.get_embedding_dimension() == adjusted.get_embedding_dimension()


def test_encoding_in_another_process(load):
    adjusted = adjust(load())
    pool = adjusted.start_multi_process_pool(["cpu"])
    try:
        embeddings = adjusted.encode(TEXTS, pool=pool, chunk_size=2)
    finally:
        adjusted.stop_multi_process_pool(pool)
    np.testing.assert_allclose(embeddings, adjusted.encode(TEXTS), atol=1e-6)


def test_a_folder_that_is_not_one(load, tmp_path):
    adjust(load()).save_pretrained(str(tmp_path / "model"))
    config = tmp_path / "model/reference_shift.json"
    whole = json.loads(config.read_text())
    config.write_text(json.dumps(whole | {"parameters": {"reference": "pad", "version": 2}}))
    with pytest.raises(ValueError, match=r"adjusted by another whymatch \(version 2\); this one reads version 1"):
        load_model(str(tmp_path / "model"), "cpu")
    config.write_text(json.dumps(whole | {"parameters": {"reference": "pad", "colour": 1}}))
    with pytest.raises(ValueError, match=r"adjusted by another whymatch \(with 'colour'\)"):
        load_model(str(tmp_path / "model"), "cpu")
    config.unlink()
    with pytest.raises(ValueError, match=r"is no adjusted model: its reference_shift.json is missing"):
        load_model(str(tmp_path / "model"), "cpu")
    # A class of somebody else's is nobody's to trust but the user's.
    listed = json.loads((tmp_path / "model/modules.json").read_text())
    listed[0]["type"] = "elsewhere.models.Shifted"
    (tmp_path / "model/modules.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=r"'elsewhere.models.Shifted', which is not part of Sentence Transformers"):
        load_model(str(tmp_path / "model"), "cpu")
    with pytest.raises(ModuleNotFoundError, match="elsewhere"):
        SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=True)


def test_what_cannot_be_adjusted(load):
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    with pytest.raises(TypeError, match="adjust takes a SentenceTransformer, not a str: 'model'"):
        adjust("model")
    with pytest.raises(ValueError, match="adjusted already"):
        adjust(adjust(load()))
    with pytest.raises(ValueError, match="this tokenizer has no mask token"):
        adjust(load("t5"), reference="mask")
    static = StaticEmbedding(load().tokenizer._tokenizer, embedding_dim=8)
    with pytest.raises(TypeError, match="StaticEmbedding"):
        adjust(SentenceTransformer(modules=[static], device="cpu"))
    adjusted = adjust(load())
    features = adjusted.preprocess(["coffee"])
    del features["content_mask"]
    with pytest.raises(TypeError, match="must know which tokens are content"):
        adjusted(features)


@pytest.mark.parametrize(
    ("kind", "similarity", "normalized"),
    [
        *((kind, "cosine", False) for kind in KINDS),
        ("bert", "dot", False),
        ("llama", "dot", True),
    ],
)
def test_its_explanations_have_no_reference_terms(load, kind, similarity, normalized):
    adjusted = adjust(load(kind), normalized=normalized)
    tolerance = 2e-3 if kind in zoo.RELU else 1e-5
    for layer in (0, 2, -1):
        options = {"layer": layer, "path": "straight", "similarity": similarity, "tolerance": tolerance}
        folded = Explainer(adjusted, **options).explain(*TEXTS[:2])
        plain = Explainer(adjusted, fold_reference=False, **options).explain(*TEXTS[:2])
        size = 1 if similarity == "cosine" else float(np.prod(np.linalg.norm(adjusted.encode(TEXTS[:2]), axis=1)))
        for terms in (plain.effects_a, plain.effects_b, plain.constant):
            assert np.abs(terms).max() <= 1e-6 * max(1, size)
        np.testing.assert_allclose(folded.matrix, plain.matrix, atol=1e-6 * max(1, size))
        assert abs(plain.matrix.sum() - plain.score) <= max(tolerance, 1e-5) * max(1, size)
        embeddings = adjusted.encode(TEXTS[:2]).astype(np.float64)
        dot = embeddings[0] @ embeddings[1]
        score = dot / np.prod(np.linalg.norm(embeddings, axis=1)) if similarity == "cosine" else dot
        assert plain.score == pytest.approx(score, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("normalized", [True, False])
def test_what_is_normalized_after_the_shift_is_explained_too(load, normalized):
    adjusted = adjust(load("bert"), normalized=normalized)
    model = SentenceTransformer(modules=[*adjusted, Normalize()], similarity_fn_name="dot")
    options = {"layer": 1, "fold_reference": False, "tolerance": 1e-5}
    why, other = (Explainer(each, **options).explain(*TEXTS[:2]) for each in (model, adjusted))
    assert why.error <= 1e-5
    np.testing.assert_allclose(why.matrix / why.score, other.matrix / other.score, rtol=1e-5, atol=1e-5)
    a, b = adjusted.encode(TEXTS[:2])
    assert why.score == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)


def test_another_reference_than_its_own_has_terms(load):
    adjusted = adjust(load())
    why = Explainer(adjusted, reference="mask", fold_reference=False, tolerance=1e-5).explain(*TEXTS[:2])
    assert abs(why.constant) > 1e-4
    assert why.error <= 1e-5
    own = Explainer(adjust(load(), reference="mask"), reference="mask", fold_reference=False).explain(*TEXTS[:2])
    assert abs(own.constant) < 1e-6


def test_the_name_says_that_it_is_adjusted(load):
    assert Explainer(adjust(load())).settings.model.endswith("(adjusted)")


def test_the_command_explains_with_the_models_own_reference(whymatch, load, tmp_path):
    adjust(load("bert"), reference="mask").save(str(tmp_path / "m"))
    args = ["explain", "bad coffee", "good bread", "--model", str(tmp_path / "m"), "--no-fold", "--json"]
    whymatch(*args, str(tmp_path / "why.json"), model=False)
    why = Explanation.load(tmp_path / "why.json")
    assert why.settings.reference == "mask"
    assert abs(why.constant) < 1e-6 * max(1, abs(why.score))
    whymatch(*args, str(tmp_path / "pad.json"), "--reference", "pad", model=False)
    assert Explanation.load(tmp_path / "pad.json").settings.reference == "pad"


def test_a_text_without_content_is_zero_whatever_it_is_batched_with(load):
    adjusted = adjust(load("bert"))
    embeddings = adjusted.encode(["", *TEXTS], batch_size=8)
    assert (embeddings[0] == 0).all()
    assert (adjusted.encode(["", *TEXTS], batch_size=8, normalize_embeddings=True)[0] == 0).all()


def test_models_with_other_references_are_other_models(load):
    model = load("bert")
    assert loading.identity(adjust(model)) != loading.identity(adjust(model, reference="mask"))
    assert loading.identity(adjust(model)) != loading.identity(adjust(model, normalized=True))
    assert loading.identity(adjust(model)) == loading.identity(adjust(model))


@pytest.mark.parametrize("reference", [None, 7, ""])
def test_references_that_are_none(load, reference):
    with pytest.raises(TypeError, match="an adjusted model's reference is 'pad', 'unk', 'mask' or a text, not"):
        adjust(load("bert"), reference=reference)

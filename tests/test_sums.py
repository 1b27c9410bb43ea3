"""Encoders that are sums over their tokens: static and sparse ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo

from conftest import count_batches
from whymatch import Explainer
from whymatch.corpus import Index
from whymatch.encoders.kinds import FallbackWarning

# torch says of sparse tensors, when the first is made, that they are new and not checked.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

PAIR = ("The coffee is not good, not good.", "This is bad coffee, and nobody drank it.")


def static(*modules, **options):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(0)
    table = StaticEmbedding(zoo.build_tokenizer("wordpiece"), embedding_dim=12)
    return SentenceTransformer(modules=[table, *modules], device="cpu", **options)


def normalize():
    from sentence_transformers.base.modules import Normalize

    return Normalize()


def score(model, a, b, **tasks):
    del tasks
    return float(model.similarity(model.encode(a), model.encode(b)))


@pytest.mark.parametrize("options", [{}, {"truncate_dim": 5}, {"similarity_fn_name": "dot"}])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_static_encoder_is_one_product(normalized, options, tmp_path):
    model = static(*[normalize()] * normalized, **options)
    explainer = Explainer(model)
    why = explainer.explain(*PAIR)
    assert why.score == pytest.approx(score(model, *PAIR), abs=1e-6)
    assert why.relative_error < 1e-6
    assert why.path == "none"
    ids = model[0].tokenizer.encode(PAIR[0], add_special_tokens=False)
    assert len(why.tokens_a) == len(ids.ids)
    assert [PAIR[0][low:high].lower() for low, high in why.offsets_a] == [t.removeprefix("##") for t in ids.tokens]
    if not normalized:
        (a,) = explainer.decompose(PAIR[:1])
        table = model[0].embedding.weight.detach().numpy()[ids.ids][:, : options.get("truncate_dim")]
        np.testing.assert_allclose(a.contributions, table / len(ids.ids), atol=1e-7)
    model.save(str(tmp_path / "model"))
    again = Explainer(tmp_path / "model").explain(*PAIR)
    np.testing.assert_allclose(again.matrix, why.matrix, atol=1e-6)
    assert why.words().error == pytest.approx(why.error, abs=1e-9)
    assert "the sum over tokens that it is" in why.to_html()


def test_static_texts_of_every_kind():
    model = static(normalize(), prompts={"query": "bread: "})
    explainer = Explainer(model)
    why = explainer.explain(*PAIR, prompt_name=("query", None))
    assert why.kinds_a[:2] == ("prompt", "prompt")
    expected = model.similarity(model.encode(PAIR[0], prompt_name="query"), model.encode(PAIR[1]))
    assert why.score == pytest.approx(float(expected), abs=1e-6)
    assert why.error < 1e-6
    asked = explainer.explain("", "coffee")
    assert set(asked.kinds_a) == {"prompt"}  # a model with a prompt for queries reads the first text with it
    empty = explainer.explain("", "coffee", prompt="")
    assert empty.tokens_a == ("(no words)",)
    assert (empty.score, empty.error) == (0, 0)
    grouped = explainer.explain(*PAIR, groups="words")
    assert grouped.units == ("word", "word")
    assert grouped.error < 1e-6
    assert explainer.foresee(PAIR) == 2


def test_static_models_rank_and_index(tmp_path):
    model = static(normalize())
    explainer = Explainer(model)
    documents = [*PAIR, "Two dogs run", "A man is slicing bread."]
    ranking = explainer.rank("bad coffee", documents, top=3)
    expected = sorted((score(model, "bad coffee", document) for document in documents), reverse=True)[:3]
    assert [hit.score for hit in ranking] == pytest.approx(expected, abs=1e-6)
    model.save(str(tmp_path / "model"))
    Index.build(documents, tmp_path / "index", Explainer(tmp_path / "model"))
    hits = Index.open(tmp_path / "index").search("bad coffee", top=3)
    assert [hit.text for hit in hits] == [hit.text for hit in ranking]
    assert hits[0].explanation.error < 1e-5


def test_a_static_model_with_more_modules_is_a_black_box():
    from sentence_transformers.base.modules import Dense

    model = static(Dense(12, 6))
    with pytest.warns(FallbackWarning, match="no blocks: it is explained as a black box, by Shapley values"):
        explainer = Explainer(model)
    why = explainer.explain("bad coffee", "good coffee")
    assert why.path == "shapley"
    assert why.error < 1e-7


def test_model2vec(tmp_path):
    model2vec = pytest.importorskip("model2vec", reason="model2vec is not installed")
    tokenizer = zoo.build_tokenizer("wordpiece").backend_tokenizer
    random = np.random.default_rng(0)
    size = tokenizer.get_vocab_size()
    vectors = random.standard_normal((size, 8)).astype(np.float32)
    plain = model2vec.StaticModel(vectors, tokenizer, normalize=True)
    mapped = model2vec.StaticModel(
        vectors[:50],
        tokenizer,
        weights=random.random(size).astype(np.float32),
        token_mapping=random.integers(0, 50, size),
        max_length=4,
    )
    for model in (plain, mapped):
        explainer = Explainer(model)
        why = explainer.explain("bad 🙂 coffee in the kitchen", PAIR[0])
        a, b = model.encode(["bad 🙂 coffee in the kitchen", PAIR[0]])
        assert why.score == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
        assert why.error < 1e-5
        assert "🙂" not in why.tokens_a  # unknown: the model leaves it out
        assert explainer.explain("🙂", "coffee").score == 0
    assert why.truncated_b
    assert Explainer(plain).identity != Explainer(mapped).identity
    plain.save_pretrained(str(tmp_path / "model"))
    assert Explainer(tmp_path / "model").explain(*PAIR).path == "none"
    assert Explainer(plain, method="shapley").explain("bad coffee", "tea").path == "shapley"


def test_a_real_static_model():
    """The table of wordllama, which its package brings along."""
    from pathlib import Path

    wordllama = pytest.importorskip("wordllama", reason="wordllama is not installed")
    from safetensors.torch import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    place = Path(wordllama.__file__).parent
    (weights,) = load_file(next((place / "weights").glob("*.safetensors"))).values()
    tokenizer = Tokenizer.from_file(str(next((place / "tokenizers").glob("*.json"))))
    tokenizer.no_truncation()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, weights.float()), normalize()], device="cpu")
    why = Explainer(model).explain("The coffee is not good.", "This is bad coffee.")
    assert why.error < 1e-6
    assert why.score == pytest.approx(score(model, "The coffee is not good.", "This is bad coffee."), abs=1e-6)
    best = why.words().top(1)[0]
    assert (best.token_a, best.token_b) == ("coffee", "coffee")


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """The folder of a tiny masked language model."""
    import transformers

    place = tmp_path_factory.mktemp("masked")
    backbone = zoo.backbone(place / "backbone", "bert")
    torch.manual_seed(0)
    config = transformers.BertConfig.from_pretrained(backbone)
    transformers.BertForMaskedLM(config).save_pretrained(place / "model")
    transformers.AutoTokenizer.from_pretrained(backbone).save_pretrained(place / "model")
    return place / "model"


def splade(folder, strategy="max", activation="relu", **options):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    modules = [Transformer(str(folder), transformer_task="fill-mask"), SpladePooling(strategy, activation)]
    return SparseEncoder(modules=modules, device="cpu", **options)


@pytest.mark.parametrize(
    ("strategy", "activation", "options"),
    [
        ("max", "relu", {}),
        ("max", "log1p_relu", {}),
        ("sum", "relu", {}),
        ("max", "relu", {"max_active_dims": 20}),
        ("max", "relu", {"similarity_fn_name": "cosine"}),
    ],
)
def test_a_sparse_encoder_is_exact(masked, strategy, activation, options):
    model = splade(masked, strategy, activation, **options)
    explainer = Explainer(model)
    why = explainer.explain(*PAIR)
    assert why.similarity == options.get("similarity_fn_name", "dot")
    assert why.score == pytest.approx(score(model, *PAIR), rel=1e-5)
    assert why.relative_error < 1e-6
    (a,) = explainer.decompose(PAIR[:1])
    assert a.tokens[0] == "[CLS]"
    embedding = model.encode(PAIR[0], convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(a.contributions.sum(0), embedding, atol=1e-5)
    if strategy == "max":  # each term belongs to one token
        assert ((a.contributions != 0).sum(0) <= 1).all()
        np.testing.assert_allclose(a.contributions.max(0), embedding, atol=1e-6)


def test_sparse_encoders_with_static_queries(masked, tmp_path):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router, Transformer
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

    transformer = Transformer(str(masked), transformer_task="fill-mask")
    size = len(transformer.tokenizer)
    weights = torch.rand(size, generator=torch.Generator().manual_seed(0))
    router = Router.for_query_document(
        query_modules=[SparseStaticEmbedding(transformer.tokenizer, weights)],
        document_modules=[transformer, SpladePooling()],
    )
    model = SparseEncoder(modules=[router], device="cpu")
    model.save_pretrained(str(tmp_path / "model"))
    for each in (model, tmp_path / "model"):
        explainer = Explainer(each)
        assert explainer.asymmetric
        why = explainer.explain(*PAIR)
        expected = model.similarity(model.encode_query(PAIR[0]), model.encode_document(PAIR[1]))
        assert why.score == pytest.approx(float(expected), rel=1e-5)
        assert why.relative_error < 1e-6
        assert why.tokens_a[0] == "the"  # no template on the side of the query
        assert why.tokens_b[0] == "[CLS]"
    ranking = explainer.rank("bad coffee", list(PAIR))
    assert ranking[0].explanation.error < 1e-5


def test_other_sparse_encoders_are_black_boxes(load):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

    transformer, pooling, *_ = load()
    torch.manual_seed(0)
    auto = SparseAutoEncoder(16, hidden_dim=32, k=8)
    model = SparseEncoder(modules=[transformer, pooling, auto], device="cpu")
    with pytest.warns(FallbackWarning, match="its weights are not those of tokens"):
        explainer = Explainer(model)
    assert explainer.explain("bad coffee", "good coffee").relative_error < 1e-6


def test_sparse_models_index(masked, tmp_path):
    model = splade(masked)
    model.save_pretrained(str(tmp_path / "model"))
    explainer = Explainer(tmp_path / "model")
    Index.build(list(PAIR), tmp_path / "index", explainer)
    hits = Index.open(tmp_path / "index").search("bad coffee")
    assert [hit.text for hit in hits] == [hit.text for hit in explainer.rank("bad coffee", list(PAIR))]
    with pytest.raises(ValueError, match=r"samples=10 has no meaning here.*the sum over tokens that it is"):
        Explainer(model, samples=10)


def test_embedding_many_texts_can_be_stopped(masked):
    count_batches(Explainer(splade(masked)))

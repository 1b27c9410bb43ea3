"""Encoders with a vector for each token, compared by MaxSim."""

from __future__ import annotations

import string
from dataclasses import replace

import numpy as np
import pytest
import torch
import zoo

from conftest import count_batches
from whymatch import Explainer
from whymatch.truth import AlignedPair, alignment, coalitions

PAIR = ("Is the coffee good?", "This is bad coffee, and nobody drank it.")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    return zoo.backbone(tmp_path_factory.mktemp("colbert"), "bert")


def colbert(backbone, *, normalize=True, expansion=None, skip=True, **options):
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    torch.manual_seed(0)
    transformer = Transformer(str(backbone), query_expansion=expansion)
    dense = Dense(16, 6, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    last = [Normalize(module_input_name="token_embeddings")] if normalize else []
    mask = MultiVectorMask(skiplist_words=[c for c in string.punctuation if c in ",.?"] if skip else [])
    return MultiVectorEncoder(modules=[transformer, dense, *last, mask], device="cpu", **options)


def own_score(model, a, b):
    return float(model.similarity([model.encode_query(a)], [model.encode_document(b)]))


@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("normalize", [True, False])
def test_the_sum_is_the_score_at_every_layer(backbone, normalize, layer):
    model = colbert(backbone, normalize=normalize)
    why = Explainer(model, layer=layer, tolerance=1e-5).explain(*PAIR)
    assert why.similarity == "maxsim"
    assert why.score == pytest.approx(own_score(model, *PAIR), rel=1e-5)
    assert why.relative_error < 1e-5
    for path in ("relay", "secant"):
        other = Explainer(model, layer=layer, path=path).explain(*PAIR)
        assert other.relative_error < 1e-3


def test_the_output_is_maxsim_itself(backbone):
    model = colbert(backbone)
    why = Explainer(model, layer=-1, tolerance=1e-6).explain(*PAIR)
    raw_a = model.encode_query(PAIR[0], output_value=None)
    raw_b = model.encode_document(PAIR[1], output_value=None)
    products = (raw_a["token_embeddings"] @ raw_b["token_embeddings"].T).numpy()
    mask_a, mask_b = raw_a["attention_mask"].bool().numpy(), raw_b["attention_mask"].bool().numpy()
    assert not mask_b.all()  # punctuation does not take part
    expected = np.zeros_like(products)
    for i in np.flatnonzero(mask_a):
        j = np.where(mask_b, products[i], -np.inf).argmax()
        expected[i, j] = products[i, j]
    np.testing.assert_allclose(why.matrix, expected, atol=1e-5)


@pytest.mark.parametrize("attend", [True, False])
@pytest.mark.parametrize("strategy", ["fixed", "min"])
def test_expanded_queries(backbone, strategy, attend):
    model = colbert(backbone, expansion={"strategy": strategy, "length": 14, "attend": attend})
    for layer in (1, -1):
        why = Explainer(model, layer=layer).explain(*PAIR)
        assert len(why.tokens_a) == 14
        assert why.tokens_a[-1] == "[MASK]"
        assert why.kinds_a[-1] == "special"
        assert why.score == pytest.approx(own_score(model, *PAIR), rel=1e-4)
        assert why.relative_error < 1e-3


def test_prompts_means_and_saved_models(backbone, tmp_path):
    prompts = {"query": "bread ", "document": "dog "}
    model = colbert(backbone, prompts=prompts, similarity_fn_name="meanmaxsim")
    model.save_pretrained(str(tmp_path / "model"))
    for each in (model, tmp_path / "model"):
        explainer = Explainer(each, layer=2)
        why = explainer.explain(*PAIR)
        assert why.similarity == "meanmaxsim"
        assert why.score == pytest.approx(own_score(model, *PAIR), rel=1e-5)
        assert why.relative_error < 1e-3
        assert "prompt" in why.kinds_a
    assert explainer.asymmetric


def test_pairs_ranks_groups_and_pages(backbone):
    model = colbert(backbone)
    explainer = Explainer(model, layer=2)
    documents = [PAIR[1], "Two dogs run across the snowy field.", "A man is slicing bread."]
    ranking = explainer.rank(PAIR[0], documents, top=2)
    scores = [own_score(model, PAIR[0], document) for document in documents]
    assert [hit.score for hit in ranking] == pytest.approx(sorted(scores, reverse=True)[:2], rel=1e-4)
    assert "<html" in ranking.to_html()
    (a,) = explainer.decompose([PAIR[0]], task="query")
    (b,) = explainer.decompose([PAIR[1]], task="document")
    np.testing.assert_allclose(explainer.pair(a, b).matrix, explainer.explain(*PAIR).matrix, atol=1e-6)
    assert a.error < 1e-3
    grouped = explainer.explain(*PAIR, groups="words")
    words = explainer.explain(*PAIR).words()
    assert grouped.tokens_b == words.tokens_b
    np.testing.assert_allclose(grouped.matrix, words.matrix, atol=1e-4)
    highlights = explainer.highlight(*PAIR)
    assert highlights.score == pytest.approx(own_score(model, *PAIR), rel=1e-4)
    assert highlights.error < 1e-3 * highlights.score
    contrast = explainer.contrast(PAIR[0], *documents[:2])
    assert contrast.difference == pytest.approx(scores[0] - scores[1], abs=1e-3)
    assert ranking.contrast(1, 2).error < 1e-2
    apart = Explainer(model, layer=2, fold_reference=False).explain(*PAIR)
    assert apart.relative_error < 1e-3
    assert abs(apart.constant) > 0


@pytest.mark.parametrize("path", ["relay", "secant"])
def test_what_special_tokens_hold_can_be_handed_on(backbone, path):
    """To the tokens that it came from: the sum stays, and so does what their own vectors have of the reference."""
    model = colbert(backbone, expansion={"strategy": "fixed", "length": 12, "attend": True})
    for fold in (True, False):
        options = {"layer": 2, "path": path, "fold_reference": fold}
        kept, shared = (Explainer(model, special=each, **options).explain(*PAIR) for each in ("keep", "share"))
        assert shared.score == kept.score == pytest.approx(own_score(model, *PAIR), rel=1e-5)
        assert shared.matrix.sum() == pytest.approx(kept.matrix.sum(), rel=1e-6)
        assert abs(shared.matrix - kept.matrix).max() > 1e-2
        assert shared.b.moved > 0
    special = [j for j, kind in enumerate(shared.kinds_b) if kind == "special"]
    assert abs(kept.matrix[:, special]).max() > 3e-3
    assert abs(shared.matrix[:, special]).max() < 1e-3


def test_a_batch_of_pairs(backbone, whymatch, tmp_path):
    """Texts that rows share are decomposed in each window anew; an index is refused before anything is embedded."""
    from conftest import read_rows

    model = colbert(backbone)
    model.save_pretrained(str(tmp_path / "model"))
    documents = [PAIR[1], "A man is slicing bread."]
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("text_a,text_b\n" + "".join(f'"{PAIR[0]}","{document}"\n' for document in documents))
    options = ("--model", str(tmp_path / "model"))
    out, _ = whymatch("batch", str(pairs), str(tmp_path / "out"), *options, model=False)
    assert "written: 2 rows" in out
    rows = {row["text_b"]: row for row in read_rows(tmp_path / "out")}
    for document in documents:
        assert rows[document]["score"] == pytest.approx(own_score(model, PAIR[0], document), rel=1e-5)
        assert np.array(rows[document]["matrix"]).sum() == pytest.approx(rows[document]["score"], rel=1e-3)
    (tmp_path / "documents.txt").write_text("\n".join(documents))
    corpus = (str(tmp_path / "documents.txt"), str(tmp_path / "index"))
    _, err = whymatch("index", "build", *corpus, *options, code=2, model=False)
    assert "an index keeps one vector for each text, and" in err


def test_what_cannot_be_done_is_said(backbone, tmp_path):
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    from whymatch.corpus import Index

    model = colbert(backbone)
    with pytest.raises(ValueError, match=r"an index keeps one vector for each text, .* gives several; use rank, which"):
        Index.build(["coffee"], tmp_path / "index", Explainer(model))
    with pytest.raises(ValueError, match=r"similarity='cosine' is not known; choose 'maxsim', 'meanmaxsim'"):
        Explainer(model, similarity="cosine")
    with pytest.raises(ValueError, match="for encoders that give a text one vector"):
        Explainer(model, method="shapley")
    explainer = Explainer(model, layer=-1)
    with pytest.raises(ValueError, match="several vectors, which have no mean"):
        explainer.background(list(PAIR))
    with pytest.raises(ValueError, match="this ranking has no background: its model gives several vectors"):
        explainer.rank("coffee", list(PAIR)).contrast(1, "background")
    with pytest.raises(ValueError, match="no perfect match to compare with"):
        _ = explainer.explain(*PAIR).missing
    model.append(HierarchicalTokenPooling(2.0))
    with pytest.raises(TypeError, match=r"merges the vectors of tokens \(HierarchicalTokenPooling\)"):
        Explainer(model)
    a, b = Explainer(colbert(backbone), layer=-1).decompose(["coffee", "bread"], task="query")
    with pytest.raises(ValueError, match="no token of 'bread' takes part in the score"):
        Explainer.pair(a, replace(b, vectors=np.zeros_like(b.vectors)))


def test_embedding_many_texts_can_be_stopped(backbone):
    count_batches(Explainer(colbert(backbone)))


def test_links_are_judged_and_coalitions_refused(backbone):
    explainer = Explainer(colbert(backbone))
    pair = AlignedPair(("bad", "coffee"), ("coffee", "is", "bad"), ((0, 2), (1, 0)))
    result = alignment(explainer, [pair])
    assert result.counts["pairs"] == 1
    assert "top1_by_effect" not in result.estimates
    with pytest.raises(ValueError, match="gives a text several vectors; these tests ask encoders that give one"):
        coalitions(explainer, [("bad coffee", "the coffee is bad")])

"""The verbs of search: the model's own ranking, with its own prompts."""

from __future__ import annotations

import numpy as np
import pytest
import zoo

from conftest import real_model
from test_ranking import DOCUMENTS, QUERY
from whymatch import Explainer


def own_scores(model, query, documents, **options):
    """What the model's own retrieval gives: the oracle."""
    return model.similarity(model.encode_query(query, **options), model.encode_document(documents, **options))[0]


def test_the_best_documents_in_order_by_the_models_own_scores(load):
    model = load()
    ranking = Explainer(model, layer=2).rank(QUERY, DOCUMENTS, top=3)
    own = model.similarity(model.encode([QUERY]), model.encode(DOCUMENTS))[0].numpy()
    assert [hit.index for hit in ranking] == np.argsort(-own)[:3].tolist()
    assert [hit.rank for hit in ranking] == [1, 2, 3]
    for hit in ranking:
        assert hit.score == pytest.approx(own[hit.index], abs=1e-6)
        assert hit.text == DOCUMENTS[hit.index]
        assert hit.explanation.error < 1e-3
    assert ranking.searched == 4
    assert len(ranking) == 3
    assert ranking[0].rank == 1


def test_a_model_with_prompts_ranks_as_its_own_retrieval_does(tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(zoo.prompted(tmp_path)), device="cpu")
    explainer = Explainer(model, layer=2)
    own = own_scores(model, QUERY, DOCUMENTS).numpy()
    plain = model.similarity(model.encode(QUERY), model.encode(DOCUMENTS))[0].numpy()
    assert np.abs(own - plain).max() > 1e-2  # else this test could not fail
    ranking = explainer.rank(QUERY, DOCUMENTS, top=4)
    for hit in ranking:
        assert hit.score == pytest.approx(own[hit.index], abs=1e-6)
        assert hit.explanation.error < 1e-3
        assert "prompt" in hit.explanation.kinds_a
        assert hit.explanation.score == pytest.approx(explainer.explain(QUERY, DOCUMENTS[hit.index]).score, abs=1e-6)
    other = own_scores(model, QUERY, DOCUMENTS, prompt_name="other").numpy()
    for hit in explainer.rank(QUERY, DOCUMENTS, prompt_name="other"):
        assert hit.score == pytest.approx(other[hit.index], abs=1e-6)
    for hit in explainer.rank(QUERY, DOCUMENTS, prompt=""):
        assert hit.score == pytest.approx(plain[hit.index], abs=1e-6)


def test_a_default_prompt_is_left_out_where_encode_query_leaves_it_out(tmp_path):
    from sentence_transformers import SentenceTransformer

    options = {"prompts": {"usual": "the snowy "}, "default_prompt_name": "usual"}
    model = SentenceTransformer(str(zoo.build(tmp_path, **options)), device="cpu")
    own = own_scores(model, QUERY, DOCUMENTS).numpy()
    for hit in Explainer(model, layer=2).rank(QUERY, DOCUMENTS):
        assert hit.score == pytest.approx(own[hit.index], abs=1e-6)


def test_the_prompts_of_a_real_model_are_used():
    model = real_model("nomic-embed-text-v1.5")
    explainer = Explainer(model, layer=-1)
    own = own_scores(model, QUERY, DOCUMENTS).numpy()
    assert model.prompts["query"] == "search_query: "
    for hit in explainer.rank(QUERY, DOCUMENTS):
        assert hit.score == pytest.approx(own[hit.index], abs=1e-5)


def test_the_query_is_decomposed_once(load, decomposed):
    Explainer(load(), layer=2).rank(QUERY, DOCUMENTS * 40, top=150)
    assert decomposed.count(QUERY) == 1


def test_bad_input_is_named(load):
    explainer = Explainer(load(), layer=2)
    with pytest.raises(TypeError, match="rank takes a list of documents, not 'one'"):
        explainer.rank(QUERY, "one")
    with pytest.raises(TypeError, match=r"rank takes a list of documents, not \[\]"):
        explainer.rank(QUERY, [])
    with pytest.raises(ValueError, match="top=0 is not a number of hits"):
        explainer.rank(QUERY, DOCUMENTS, top=0)
    with pytest.raises(TypeError, match="not int: 3"):
        explainer.rank(QUERY, [3])

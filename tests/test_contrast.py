"""Why one document scores higher than another."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import zoo

from whymatch import Contrast, Explainer

QUERY = "bad coffee in the kitchen"
ONE = "The coffee is not good, and nobody drank it."
OTHER = "A man is slicing bread in the kitchen."
DOCUMENTS = [
    {"id": "c", "title": "Coffee", "text": ONE, "metadata": {"page": 3}},
    {"id": "b", "text": OTHER, "url": "somewhere"},
    {"id": "d", "text": "Two dogs run across the snowy field."},
]


@pytest.fixture(scope="module")
def explainer(folders):
    return Explainer(folders("bert"), layer=1, tolerance=1e-5)


def own_score(model, query, document):
    return float(model.similarity(model.encode_query(query), model.encode_document(document)))


def check_sums(contrast, one, other):
    assert contrast.score_a == pytest.approx(one, abs=1e-6)
    assert contrast.score_b == pytest.approx(other, abs=1e-6)
    assert contrast.difference == pytest.approx(one - other, abs=2e-6)
    assert sum(share.value for share in contrast.by_query_word) == pytest.approx(contrast.difference, abs=5e-5)
    assert contrast.error <= 5e-5
    assert sum(share.value for share in contrast.by_word_a) == pytest.approx(one, abs=5e-5)


@pytest.mark.parametrize("options", [{}, {"similarity": "dot"}, {"fold_reference": False}, {"path": "secant"}])
def test_the_difference_is_a_sum_over_the_querys_words(folders, options):
    explainer = Explainer(folders("bert"), layer=1, tolerance=1e-5, **options)
    contrast = explainer.contrast(QUERY, ONE, OTHER)
    one, other = (own_score(explainer.model, QUERY, text) for text in (ONE, OTHER))
    check_sums(contrast, one, other)
    assert sum(share.value for share in contrast.by_word_b) == pytest.approx(other, abs=5e-5)
    assert [share.word for share in contrast.by_query_word][:5] == QUERY.split()
    # What each document gives a word is the word's row of its own matrix.
    first, second = (explainer.explain(QUERY, text).highlights("a") for text in (ONE, OTHER))
    expected = [x.score - y.score for x, y in zip(first, second, strict=True)]
    np.testing.assert_allclose([share.value for share in contrast.by_query_word], expected, atol=5e-5)


def test_the_contrast_of_two_hits_is_that_of_their_texts(explainer):
    ranking = explainer.rank(QUERY, DOCUMENTS, top=3)
    contrast = ranking.contrast(1, 3)
    check_sums(contrast, ranking[0].score, ranking[2].score)
    direct = explainer.contrast(QUERY, ranking[0].text, ranking[2].text)
    np.testing.assert_allclose(contrast.values, direct.values, atol=5e-5)
    assert contrast.difference > 0
    assert ranking.contrast(3, 1).difference == -contrast.difference
    assert contrast.name_a.startswith("1. ")


def test_ids_titles_and_metadata_come_back(explainer):
    ranking = explainer.rank(QUERY, DOCUMENTS)
    hits = {hit.id: hit for hit in ranking}
    assert hits["c"].title == "Coffee"
    assert hits["c"].metadata == {"page": 3}
    assert hits["b"].metadata == {"url": "somewhere"}
    assert hits["b"].index == 1
    saved = {hit["id"]: hit for hit in ranking.to_dict()["hits"]}
    assert saved["c"]["metadata"] == {"page": 3}
    assert saved["c"]["highlights"] == hits["c"].highlights().to_list()
    table = ranking.to_pandas()
    assert list(table["id"]) == [hit.id for hit in ranking]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_against_a_background(folders, similarity):
    explainer = Explainer(folders("dot"), layer=1, tolerance=1e-5, similarity=similarity)
    model = explainer.model
    texts = [document["text"] for document in DOCUMENTS]
    vectors = [np.asarray(model.encode(text), float) for text in (QUERY, *texts)]
    if similarity == "cosine":
        vectors = [vector / np.linalg.norm(vector) for vector in vectors]
    scores = [float(vectors[0] @ vector) for vector in vectors[1:]]
    background = explainer.background(DOCUMENTS)
    assert background.count == 3
    bound = 1e-4 * (math.dist(vectors[0], np.zeros(16)) * math.dist(vectors[1], np.zeros(16)))
    ranking = explainer.rank(QUERY, DOCUMENTS)
    first = explainer.contrast(QUERY, ONE, background)
    hit = next(hit for hit in ranking if hit.id == "c")
    for contrast in (first, ranking.contrast(hit.rank, "background")):
        assert contrast.score_a == pytest.approx(scores[0], rel=1e-5)
        assert contrast.score_b == pytest.approx(sum(scores) / 3, rel=1e-5)
        assert contrast.error <= bound
        assert contrast.b is None
        assert contrast.by_word_b == []
        assert contrast.name_b == "the mean of 3 documents"
    assert first.name_a == "first"


def test_prompts_are_the_models_own(tmp_path):
    explainer = Explainer(str(zoo.prompted(tmp_path)), layer=1, tolerance=1e-5)
    one, other = (own_score(explainer.model, QUERY, text) for text in (ONE, OTHER))
    check_sums(explainer.contrast(QUERY, ONE, OTHER), one, other)
    ranking = explainer.rank(QUERY, [ONE, OTHER])
    usual = ranking.contrast(1, "background")
    assert usual.score_b == pytest.approx((one + other) / 2, abs=1e-6)


def test_the_words_that_decided(explainer):
    contrast = explainer.contrast(QUERY, ONE, OTHER)
    words = contrast.decisive()
    sign = 1 if contrast.difference > 0 else -1
    assert 1 <= len(words) <= 3
    assert all(sign * word.value > 0 for word in words)
    assert words[0].value == sign * max(sign * share.value for share in contrast.by_query_word)
    assert words[0].word in repr(contrast)


def test_it_is_saved_and_tabulated(explainer, tmp_path):
    contrast = explainer.contrast(QUERY, DOCUMENTS[0], DOCUMENTS[1])
    contrast.save(tmp_path / "c.json")
    data = json.loads((tmp_path / "c.json").read_text())
    assert data["format"] == "whymatch.contrast"
    assert data["name_a"] == "Coffee"
    assert data["name_b"] == "b"
    assert sum(row["value"] for row in data["by_query_word"]) == pytest.approx(data["difference"], abs=5e-5)
    for row in data["by_query_word"]:
        assert row["value"] == pytest.approx(row["a"] - row["b"])
    assert list(contrast.to_pandas()["word"]) == [share.word for share in contrast.by_query_word]


def test_what_cannot_be_contrasted(explainer):
    ranking = explainer.rank(QUERY, DOCUMENTS, top=2)
    for ranks in ((1, 3), (0, 1), (True, 2)):
        with pytest.raises(ValueError, match=r"there is no hit .*: ranks are 1 to 2"):
            ranking.contrast(*ranks)
    one, other = explainer.explain("bad", ONE), explainer.explain("good", ONE)
    with pytest.raises(ValueError, match="a contrast has one query: these explanations have 'bad' and 'good'"):
        Contrast.of(one, other)
    for document, message in (
        ({"title": "x"}, "this document has no 'text'"),
        ({"text": "x", "metadata": 3}, "the metadata of a document must be a dict, not int: 3"),
        ({"text": "x", "title": 3}, "the title of a document must be a str, not int: 3"),
        ({"text": "x", "id": 1.5}, "the id of a document must be a str, not float: 1.5"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            explainer.rank(QUERY, [document])

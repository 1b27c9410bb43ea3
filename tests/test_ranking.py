from __future__ import annotations

import json

import numpy as np

from whymatch import Explainer
from whymatch.results.ranking import top_of

QUERY = "bad coffee"
DOCUMENTS = [
    "Two dogs run across the snowy field towards a child.",
    "This is bad coffee, and nobody drank it.",
    "Stocks fell on Monday.",
    "The coffee is not good.",
]


def test_answers_name_the_words_that_counted(minilm):
    ranking = Explainer(minilm, layer=4).rank("terrible coffee", [*DOCUMENTS, "I would love some tea."], top=2)
    words = [answer.word for answer in ranking[0].answers(3)]
    assert "coffee" in words
    answers = {answer.word: answer.query_word for answer in ranking[0].answers()}
    assert answers["coffee"] == "coffee"
    assert answers["bad" if "bad" in answers else "good"] == "terrible"
    low, high = next(answer.span for answer in ranking[0].answers() if answer.word == "coffee")
    assert ranking[0].text[low:high] == "coffee"


def test_a_ranking_is_saved_and_shown(load, tmp_path):
    ranking = Explainer(load(), layer=2).rank(QUERY, DOCUMENTS, top=2)
    ranking.save(tmp_path / "ranking.json")
    data = json.loads((tmp_path / "ranking.json").read_text())
    assert data["format"] == "whymatch.ranking"
    assert [hit["index"] for hit in data["hits"]] == [hit.index for hit in ranking]
    assert "Best of 4 for: bad coffee" in ranking.to_html()
    assert repr(ranking).startswith(
        f"Ranking(best 2 of 4 for 'bad coffee': {ranking[0].score:.4f} {ranking[0].text[:9]!r}"[:-1]
    )
    assert len(repr(ranking)) < 250


def test_the_best_of_many_scores():
    scores = np.array([0.1, 0.5, 0.5, -1.0, 0.9, 0.5])
    assert top_of(scores, 3) == [4, 1, 2]
    assert top_of(scores, 9) == [4, 1, 2, 5, 0, 3]
    rng = np.random.default_rng(0)
    many = rng.integers(0, 50, 1000) / 50
    assert top_of(many, 100) == sorted(range(1000), key=lambda i: (-many[i], i))[:100]

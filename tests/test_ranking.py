from __future__ import annotations

import json

import numpy as np
import pytest

from whymatch import Explainer
from whymatch.ranking import top_of
from whymatch.tables import read_documents

QUERY = "bad coffee"
DOCUMENTS = [
    "Two dogs run across the snowy field towards a child.",
    "This is bad coffee, and nobody drank it.",
    "Stocks fell on Monday.",
    "The coffee is not good.",
]


def test_the_best_documents_in_order_by_the_models_own_scores(load):
    model = load()
    found = Explainer(model, layer=2).rank(QUERY, DOCUMENTS, top=3)
    own = model.similarity(model.encode([QUERY]), model.encode(DOCUMENTS))[0].numpy()
    assert [hit.index for hit in found] == np.argsort(-own)[:3].tolist()
    assert [hit.rank for hit in found] == [1, 2, 3]
    for hit in found:
        assert hit.score == pytest.approx(own[hit.index], abs=1e-6)
        assert hit.document == DOCUMENTS[hit.index]
        assert hit.explanation.error < 1e-3
    assert found.searched == 4
    assert len(found) == 3
    assert found[0].rank == 1


def test_the_query_is_decomposed_once(load, decomposed):
    Explainer(load(), layer=2).rank(QUERY, DOCUMENTS * 40, top=150)
    assert decomposed.count(QUERY) == 1


def test_answers_name_the_words_that_counted(minilm):
    found = Explainer(minilm, layer=4).rank("terrible coffee", [*DOCUMENTS, "I would love some tea."], top=2)
    words = [answer.word for answer in found[0].answers(3)]
    assert "coffee" in words
    answers = {answer.word: answer.query_word for answer in found[0].answers()}
    assert answers["coffee"] == "coffee"
    assert answers["bad" if "bad" in answers else "good"] == "terrible"
    low, high = next(answer.span for answer in found[0].answers() if answer.word == "coffee")
    assert found[0].document[low:high] == "coffee"


def test_a_ranking_is_saved_and_shown(load, tmp_path):
    found = Explainer(load(), layer=2).rank(QUERY, DOCUMENTS, top=2)
    found.save(tmp_path / "ranking.json")
    data = json.loads((tmp_path / "ranking.json").read_text())
    assert data["format"] == "whymatch.ranking"
    assert [hit["index"] for hit in data["hits"]] == [hit.index for hit in found]
    assert "Best of 4 for: bad coffee" in found.to_html()


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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.txt", "one\n\ntwo, three\n"),
        ("d.jsonl", '"one"\n{"text": "two, three", "id": 4}\n'),
        ("d.csv", 'id,text\n1,one\n2,"two, three"\n'),
        ("d.tsv", "text\tid\none\t1\ntwo, three\t2\n"),
    ],
)
def test_documents_are_read_from_files(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_documents(tmp_path / name) == ["one", "two, three"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", "id,story\n1,one\n", r'none that is called "text"; its first row is \[.id., .story.\]'),
        ("d.jsonl", '{"id": 1}\n', r"has columns id, and none that is called like text"),
        ("d.jsonl", "one\n", "has no row that is a JSON object"),
        ("d.csv", "text,text\none,two\n", "has 2 columns that are called 'text'"),
        ("d.txt", "\n\n", "holds no documents"),
    ],
)
def test_files_without_documents_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_documents(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_documents(tmp_path / "none.txt")


def test_rows_without_a_document_are_named(tmp_path):
    (tmp_path / "d.jsonl").write_text('"one"\n{"text": 1}\nbroken\n{"text": " "}\n"with\u2028a line inside"\n')
    with pytest.warns(UserWarning, match=r"3 rows of .* passed over: row 2: text is no text: 1; row 3: it is not"):
        assert read_documents(tmp_path / "d.jsonl") == ["one", "with\u2028a line inside"]


def test_a_column_that_is_named(tmp_path):
    (tmp_path / "d.csv").write_text("id,story\n1,one\n")
    assert read_documents(tmp_path / "d.csv", "story") == ["one"]
    with pytest.raises(ValueError, match=r"does not name the columns tale; its first row is \['id', 'story'\]"):
        read_documents(tmp_path / "d.csv", "tale")


def test_the_best_of_many_scores():
    scores = np.array([0.1, 0.5, 0.5, -1.0, 0.9, 0.5])
    assert top_of(scores, 3) == [4, 1, 2]
    assert top_of(scores, 9) == [4, 1, 2, 5, 0, 3]
    rng = np.random.default_rng(0)
    many = rng.integers(0, 50, 1000) / 50
    assert top_of(many, 100) == sorted(range(1000), key=lambda i: (-many[i], i))[:100]

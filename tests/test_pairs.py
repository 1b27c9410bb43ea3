"""Pairs with scores and documents, from every format."""

from __future__ import annotations

import json

import pytest

from whymatch.corpus.pairs import read_documents, read_scored_pairs

ROWS = [("bad coffee", "The coffee, it is bad.", 4.5), ("a dog", "two cats", 0.0), ('so "quoted"', "tab", 2.5)]


def texts_of(*args):
    return [document.text for document in read_documents(*args)]


def test_ids_titles_and_metadata_are_read(tmp_path):
    (tmp_path / "d.jsonl").write_text(
        '{"id": 7, "title": "T", "text": "one", "metadata": {"a": 1}, "url": "u"}\n{"text": "two"}\n'
        '{"id": [1], "text": "three"}\n'
    )
    with pytest.warns(UserWarning, match=r"1 row of .* is left out: row 3: the id of a document must be a str"):
        one, two = read_documents(tmp_path / "d.jsonl")
    assert (one.id, one.title, one.text, one.metadata) == ("7", "T", "one", {"a": 1, "url": "u"})
    assert (two.id, two.title, two.metadata) == (None, None, {})
    (tmp_path / "d.csv").write_text("id,text,price\nx,one,3\n")
    (row,) = read_documents(tmp_path / "d.csv")
    assert (row.id, row.metadata) == ("x", {"price": "3"})


def write(path, header=True):
    """The same rows in the format that the name asks for."""
    names = ("sentence1", "sentence2", "score")
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: [row[i] for row in ROWS] for i, name in enumerate(names)}), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in ROWS), encoding="utf-8")
    elif path.suffix == ".tsv":
        rows = [names, *ROWS] if header else ROWS
        path.write_text("\n".join("\t".join(map(str, row)) for row in rows), encoding="utf-8")
    else:
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *ROWS] if header else ROWS)
    return path


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.tsv", "pairs.jsonl", "pairs.parquet"])
def test_every_format_gives_the_same_pairs(tmp_path, name):
    pairs = read_scored_pairs(write(tmp_path / name))
    assert pairs.texts == [row[:2] for row in ROWS]
    assert pairs.scores == [0.9, 0.0, 0.5]
    assert pairs.columns == ("sentence1", "sentence2", "score")
    assert str(pairs) == f"3 pairs from {name} (columns sentence1, sentence2, score; scores 0 to 5)"


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.tsv"])
def test_a_file_without_a_header(tmp_path, name):
    pairs = read_scored_pairs(write(tmp_path / name, header=False))
    assert pairs.texts == [row[:2] for row in ROWS]
    assert pairs.columns == ("1", "2", "3")


def test_columns_that_are_named(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"x": "one", "y": "two", "z": 0.5}), encoding="utf-8")
    assert read_scored_pairs(file, ["y", "x", "z"]).texts == [("two", "one")]
    with pytest.raises(ValueError, match=r"has columns x, y, z, and none with a name like text_a, sentence1"):
        read_scored_pairs(file)
    with pytest.raises(ValueError, match=r"has no column 'w'; it has x, y, z"):
        read_scored_pairs(file, ["x", "y", "w"])
    with pytest.raises(ValueError, match=r"3 columns are needed, not 2: x, y"):
        read_scored_pairs(file, ["x", "y"])


def test_bad_rows_are_counted_and_named(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_bytes(
        b"sentence1,sentence2,score\na,b,1\n,b,1\na,b,many\na,b\na,b,nan\n\na\xff,b,1\n" + b"c,d,0\n" + b"e,f\n" * 2
    )
    pairs = read_scored_pairs(file)
    assert pairs.texts == [("a", "b"), ("c", "d")]
    assert pairs.bad[:5] == [
        (3, "sentence1 is empty"),
        (4, "score is 'many', not a number"),
        (5, "it has 2 of 3 columns"),
        (6, "score is 'nan', not a finite number"),
        (7, "it is not UTF-8"),
    ]
    assert "7 bad rows left out: row 3: sentence1 is empty; row 4:" in str(pairs)
    lines = tmp_path / "pairs.jsonl"
    lines.write_text('{"text_a": "a", "text_b": "b", "label": 1}\n[1]\n{"text_a": \n{"text_a": 3, "text_b": "b"}\n')
    reasons = [reason for _, reason in read_scored_pairs(lines).bad]
    assert reasons[0].startswith("it is not a JSON object")
    assert reasons[1].startswith("it is not JSON")
    assert reasons[2] == "text_a is not a text: 3"


def test_a_score_outside_its_range_is_an_error(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("sentence1,sentence2,score\na,b,1\nc,d,5.5\n")
    with pytest.raises(
        ValueError, match=r"row 3 of .*pairs.csv' has the score 5.5, outside 0 to 5; correct it, or say"
    ):
        read_scored_pairs(file)
    assert read_scored_pairs(file, score_range=(0, 10)).scores == [0.1, 0.55]
    with pytest.raises(ValueError, match="from 5 to 0 is empty"):
        read_scored_pairs(file, score_range=(5, 0))


def test_a_few_scores_above_1_say_nothing_about_their_range(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("sentence1,sentence2,score\n" + "a,b,0.5\n" * 60 + "c,d,1.0001\n")
    with pytest.raises(ValueError, match=r"row 62 of .* has the score 1.0001, and only 1 of 61 are above 1"):
        read_scored_pairs(file)
    assert read_scored_pairs(file, score_range=(0, 2)).scores[0] == 0.25


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("pairs.txt", "a", r"is not a table that can be read; give one of .csv"),
        ("pairs.csv", "", r"is empty"),
        ("pairs.csv", "sentence1,sentence2,score\n", r"holds no pair with a score$"),
        ("pairs.csv", "bad coffee,good bread\n", r"has 2 columns where 3 are needed"),
        ("pairs.jsonl", "3\n", r"has no row that is a JSON object"),
        ("pairs.parquet", "PAR0", r"is not a Parquet file"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, error):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=error):
        read_scored_pairs(tmp_path / name)


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.txt"])
def test_another_encoding_is_named(tmp_path, name):
    (tmp_path / name).write_text("text_a,text_b\na,b\n", encoding="utf-16")
    with pytest.raises(ValueError, match="is not in UTF-8 but in UTF-16"):
        read_documents(tmp_path / name)


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
    assert texts_of(tmp_path / name) == ["one", "two, three"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", "id,story\n1,one\n", r'none of them is named "text"; its first row is \[.id., .story.\]'),
        ("d.jsonl", '{"id": 1}\n', r"has columns id, and none with a name like text"),
        ("d.jsonl", "one\n", "has no row that is a JSON object"),
        ("d.csv", "text,text\none,two\n", "has 2 columns named 'text'"),
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
    with pytest.warns(UserWarning, match=r"3 rows of .* are left out: row 2: text is not a text: 1; row 3: it is not"):
        assert texts_of(tmp_path / "d.jsonl") == ["one", "with\u2028a line inside"]


def test_a_column_that_is_named(tmp_path):
    (tmp_path / "d.csv").write_text("id,story\n1,one\n")
    assert texts_of(tmp_path / "d.csv", "story") == ["one"]
    with pytest.raises(ValueError, match=r"does not name the columns tale; its first row is \['id', 'story'\]"):
        read_documents(tmp_path / "d.csv", "tale")

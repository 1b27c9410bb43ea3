from __future__ import annotations

import json

import pytest

from whymatch.tables import Table, read_scored_pairs

ROWS = [("bad coffee", "The coffee, it is bad.", 4.5), ("a dog", "two cats", 0.0), ('so "quoted"', "tab", 2.5)]


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
    assert str(pairs) == f"3 pairs from {name} (columns sentence1, sentence2, score)"


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.tsv"])
def test_a_file_without_a_header(tmp_path, name):
    pairs = read_scored_pairs(write(tmp_path / name, header=False))
    assert pairs.texts == [row[:2] for row in ROWS]
    assert pairs.columns == ("1", "2", "3")


def test_columns_that_are_named(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"x": "one", "y": "two", "z": 0.5}), encoding="utf-8")
    assert read_scored_pairs(file, ["y", "x", "z"]).texts == [("two", "one")]
    with pytest.raises(ValueError, match=r"has columns x, y, z, and none that is called like text_a, sentence1"):
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
        (6, "score is nan"),
        (7, "it is not UTF-8"),
    ]
    assert "7 bad rows left out: row 3: sentence1 is empty; row 4:" in str(pairs)
    lines = tmp_path / "pairs.jsonl"
    lines.write_text('{"text_a": "a", "text_b": "b", "label": 1}\n[1]\n{"text_a": \n{"text_a": 3, "text_b": "b"}\n')
    reasons = [reason for _, reason in read_scored_pairs(lines).bad]
    assert reasons[0].startswith("it is no JSON object")
    assert reasons[1].startswith("it is not JSON")
    assert reasons[2] == "text_a is no text"


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


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("pairs.txt", "a", r"is no table that can be read; give one of .csv"),
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


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Table.open(tmp_path / "none.csv")

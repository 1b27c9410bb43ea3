from __future__ import annotations

import json

import pytest

from whymatch.tables import FIRST, SECOND, Table, read_documents, read_scored_pairs

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
    assert reasons[2] == "text_a is no text: 3"


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


def test_a_quotation_mark_that_is_never_closed_costs_its_own_row_only(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text('text_a,text_b\n"a\nb",c\n"d,e\nf,g\n"h\ni",j\n"k,l\n')
    rows = list(Table.open(file).rows())
    assert [row.number for row in rows] == [2, 3, 4, 5, 6]
    assert [row.bad is None for row in rows] == [True, False, True, True, False]
    assert rows[0].cells == {"text_a": "a\nb", "text_b": "c"}
    assert rows[3].cells == {"text_a": "h\ni", "text_b": "j"}
    assert rows[1].cells == {"cells": ['"d,e']}
    assert rows[1].bad == "a quotation mark opens in it and is not closed"


def test_too_many_cells_are_a_bad_row(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("text_a,text_b\nbad coffee, hot,good bread\na,b,\n")
    first, second = Table.open(file).rows()
    assert first.bad.startswith("it has 3 columns instead of 2")
    assert second.bad is None  # spreadsheets write empty cells at the end


def test_cells_that_pandas_quotes(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text_a": ['so "quoted"', "a\tb", '"'], "text_b": ["plain", "c", "d"]})
    frame.to_csv(tmp_path / "p.csv", index=False)
    assert [row.cells["text_a"] for row in Table.open(tmp_path / "p.csv").rows()] == frame["text_a"].tolist()
    frame.drop(1).to_csv(tmp_path / "p.tsv", index=False, sep="\t")
    assert [row.cells["text_a"] for row in Table.open(tmp_path / "p.tsv").rows()] == ['so "quoted"', '"']


def test_long_cells_and_numbers(tmp_path):
    (tmp_path / "p.csv").write_text(f"text_a,text_b\n{'a' * 200_000},b\n")
    assert len(next(Table.open(tmp_path / "p.csv").rows()).cells["text_a"]) == 200_000
    lines = ['{"text_a": "a", "text_b": "b"}', f'{{"text_a": {"9" * 5000}}}', "[" * 100_000]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    assert [row.bad is None for row in Table.open(tmp_path / "p.jsonl").rows()] == [True, False, False]


def test_columns_that_the_first_row_has_not(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"text_a": "a"}\n{"text_a": "a", "text_b": "b"}\n')
    assert Table.open(file).choose(None, (FIRST, SECOND)) == ("text_a", "text_b")


def test_what_a_table_says_of_its_columns(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("left,right\na,b\n")
    table = Table.open(file)
    assert table.said(table.choose(None, (FIRST, SECOND))) == (
        "columns 1, 2 of p.csv, whose first row is taken for texts and not for names"
    )
    assert Table.open(file, ["left", "right"]).headed
    with pytest.raises(ValueError, match=r"does not name the columns left, rigt; its first row is \['left', 'right'\]"):
        Table.open(file, ["left", "rigt"])
    file.write_text("text_a,text_a,text_b\n")
    with pytest.raises(ValueError, match="has 2 columns that are called 'text_a'"):
        Table.open(file)


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.txt"])
def test_another_encoding_is_named(tmp_path, name):
    (tmp_path / name).write_text("text_a,text_b\na,b\n", encoding="utf-16")
    with pytest.raises(ValueError, match="is not in UTF-8 but in UTF-16"):
        read_documents(tmp_path / name)

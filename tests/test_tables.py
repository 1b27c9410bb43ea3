"""Tables row by row: every line is part of a row, or of a row that is named as bad."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random

import pytest

from whymatch.corpus import tables
from whymatch.corpus.tables import FIRST, SECOND, Mark, Table


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Table.open(tmp_path / "none.csv")


def test_a_quotation_mark_that_is_never_closed_costs_its_own_row_only(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text('text_a,text_b\n"a\nb",c\n"d,e\nf,g\n"h\ni",j\n"k,l\n')
    rows = list(Table.open(file).rows())
    assert [row.number for row in rows] == [2, 3, 4, 5, 6]
    assert [row.problem is None for row in rows] == [True, False, True, True, False]
    assert rows[0].cells == {"text_a": "a\nb", "text_b": "c"}
    assert rows[3].cells == {"text_a": "h\ni", "text_b": "j"}
    assert rows[1].cells == {"cells": ['"d,e']}
    assert rows[1].problem == "a quotation mark opens in it and is not closed"


def test_too_many_cells_are_a_bad_row(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("text_a,text_b\nbad coffee, hot,good bread\na,b,\n")
    first, second = Table.open(file).rows()
    assert first.problem.startswith("it has 3 columns instead of 2")
    assert second.problem is None  # spreadsheets write empty cells at the end


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
    assert [row.problem is None for row in Table.open(tmp_path / "p.jsonl").rows()] == [True, False, False]


def test_columns_that_the_first_row_has_not(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"text_a": "a"}\n{"text_a": "a", "text_b": "b"}\n')
    assert Table.open(file).choose(None, (FIRST, SECOND)) == ("text_a", "text_b")


def test_what_a_table_says_of_its_columns(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("left,right\na,b\n")
    table = Table.open(file)
    assert table.describe(table.choose(None, (FIRST, SECOND))) == (
        "columns 1, 2 of p.csv, whose first row is taken for texts and not for names"
    )
    assert Table.open(file, ["left", "right"]).headed
    with pytest.raises(ValueError, match=r"does not name the columns left, rigt; its first row is \['left', 'right'\]"):
        Table.open(file, ["left", "rigt"])
    file.write_text("text_a,text_a,text_b\n")
    with pytest.raises(ValueError, match="has 2 columns named 'text_a'"):
        Table.open(file)


def read(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(Table.open(path).rows())


def outcome(rows):
    return [tuple(row.cells.values()) if row.problem is None else None for row in rows]


@pytest.mark.parametrize("header", ["text_a,text_b\n", ""], ids=["with a header", "without"])
def test_a_stray_quotation_mark_swallows_no_rows(tmp_path, header):
    lines = 'x,"open\nhello there,general kenobi\nhello again,kenobi\nx,"open again\ntail one,tail two\n'
    rows = read(tmp_path / "p.csv", header + lines)
    expected = [None, ("hello there", "general kenobi"), ("hello again", "kenobi"), None, ("tail one", "tail two")]
    assert outcome(rows) == expected
    first = 2 if header else 1
    assert [row.number for row in rows] == list(range(first, first + 5))
    assert rows[0].cells == {"cells": ['x,"open']}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"a","b"\n', [("a", "b")]),
        ('"a ""b""","c,d"\r\ne,f\r\n', [('a "b"', "c,d"), ("e", "f")]),
        ('"a\nb","c\r\nd"\ne,f', [("a\nb", "c\r\nd"), ("e", "f")]),
        ('a"b,c"d\n', [('a"b', 'c"d')]),  # inside a cell that does not begin with one, a mark is a mark
        (' "a",b\n', [(' "a"', "b")]),
        ('"a"b,c\nd,e\n', [None, ("d", "e")]),
        ('"a,"b"\nd,e\n', [None, ("d", "e")]),
        ('"a","b\n"c","d"\n', [None, ("c", "d")]),
        ('"a","b""\n"c","d"\n', [None, ("c", "d")]),
        ('"a\nb",c,d\ne,f\n', [None, None, ("e", "f")]),  # three columns: both of its lines are bad
        ('"a\nb",c,\ne,f\n', [("a\nb", "c"), ("e", "f")]),
        ("a,b\rc,d\r", [("a", "b"), ("c", "d")]),
        ('"a\rb",c\rd,e', [("a\rb", "c"), ("d", "e")]),
        ('""\n', [None]),
        ('"",""\n', [("", "")]),
        ('"a\n\nb",c\n\nd,e\n', [("a\n\nb", "c"), ("d", "e")]),
        ('a,"', [None]),
    ],
)
def test_the_rule_of_quotation_marks(tmp_path, text, expected):
    assert outcome(read(tmp_path / "p.csv", "text_a,text_b\n" + text)) == expected


def test_what_csv_writes_is_read_as_csv_reads_it(tmp_path):
    """Any cells at all, with every kind of quoting and line end."""
    rng = random.Random(0)
    for _ in range(300):
        quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        alphabet = 'ab",\n é' if quoting == csv.QUOTE_MINIMAL else 'ab",\n\r é'  # csv does not quote a lone \r
        cells = [["".join(rng.choices(alphabet, k=rng.randint(0, 6))) for _ in range(3)] for _ in range(6)]
        text = io.StringIO(newline="")
        writer = csv.writer(text, quoting=quoting, lineterminator=rng.choice(["\n", "\r\n"]))
        writer.writerows([["text_a", "text_b", "c"], *cells])
        assert outcome(read(tmp_path / "p.csv", text.getvalue())) == [tuple(row) for row in cells]


@pytest.mark.parametrize(
    ("line", "every"), [('a"b,"x', 1), ('x,"open', 100), ('"open,x', 100), ('b","a', 1), ('b","a', 3), ('"""', 1)]
)
def test_broken_quotation_marks_take_linear_time(tmp_path, monkeypatch, line, every):
    """Counted in lines that are taken for rows, again or for the first time."""
    count = 20_000
    lines = [line if i % every == 0 else f"left {i},right {i}" for i in range(count)]
    taken = 0
    original = tables.Lines.take

    def take(self):
        nonlocal taken
        taken += 1
        return original(self)

    monkeypatch.setattr(tables.Lines, "take", take)
    rows = read(tmp_path / "p.csv", "text_a,text_b\n" + "\n".join(lines))
    assert taken <= 4 * count
    assert len(rows) == count  # no line is lost
    good = [i for i in range(count) if i % every]
    assert outcome(row for row in rows if row.problem is None) == [(f"left {i}", f"right {i}") for i in good]


def test_every_line_is_part_of_a_row(tmp_path):
    """Of any file whatsoever."""
    rng = random.Random(1)
    for _ in range(500):
        lines = ["".join(rng.choices('ab",', k=rng.randint(1, 6))) for _ in range(rng.randint(1, 8))]
        rows = read(tmp_path / "p.csv", "\n".join(["text_a,text_b", *lines]) + "\n")
        assert sum(row.lines for row in rows) == len(lines), lines
        assert [row.number for row in rows] == list(range(2, len(rows) + 2))


def test_a_long_cell_is_not_blamed_on_a_quotation_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_CELL", 1000)
    long = "x" * 5000
    rows = read(
        tmp_path / "p.csv", f'text_a,text_b\n{long},b\n"{long}",b\n"{"y" * 400}\n{"y" * 400}",b\n"{long}\nb,c\n'
    )
    assert outcome(rows) == [(long, "b"), (long, "b"), ("y" * 400 + "\n" + "y" * 400, "b"), None, ("b", "c")]
    rows = read(tmp_path / "p.csv", "text_a,text_b\n" + '"open\n' + "y,z\n" * 1000 + '"closed",b\n')
    assert rows[0].problem == "a quotation mark opens in it and is not closed within 1,000 characters"
    assert len(rows) == 1002


def test_rows_of_very_many_lines_are_worth_a_warning(tmp_path):
    """By the rules this is one row; it may be a hundred."""
    file = tmp_path / "p.csv"
    file.write_text('text_a,text_b\nx,"\n' + "a,b\n" * 99 + 'x,"\n')
    scan = Table.open(file).scan(("text_a", "text_b"))
    assert scan.long_rows == [2]
    with pytest.warns(UserWarning, match=r"1 rows of .*p.csv' span more than 20 lines each, .* row 2: is a quotation"):
        tables.warn_of_long_rows(file, scan.long_rows)


def test_a_first_row_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"the first row of .*p.csv' cannot be read: a quotation mark opens"):
        read(tmp_path / "p.csv", 'text_a,"text_b\na,b\n')
    with pytest.raises(ValueError, match=r"the first row of .*p.csv' cannot be read: a quotation mark opens"):
        read(tmp_path / "p.csv", 'x,"y\nz,"u\n')
    (tmp_path / "p.csv").write_text('x,"y\nz,u\n')
    with pytest.raises(ValueError, match="does not name the columns left, right; its first row is"):
        Table.open(tmp_path / "p.csv", ["left", "right"])


def write_table(path, rows):
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        columns = {name: [row[i] for row in rows] for i, name in enumerate(("text_a", "text_b"))}
        pq.write_table(pa.table(columns), path, row_group_size=7)
    elif path.suffix == ".jsonl":
        path.write_text(
            "\n".join(json.dumps({"text_a": a, "text_b": b}) + "\n" * (i % 3) for i, (a, b) in enumerate(rows))
        )
    elif path.suffix == ".tsv":
        path.write_text("\ufefftext_a\ttext_b\n" + "".join(f"{a}\t{b}\r\n" for a, b in rows), newline="")
    else:
        text = "\ufefftext_a,text_b\n" + "".join(f'"{a}\ré",{b}\n' for a, b in rows)
        path.write_bytes(text.encode().replace(b"left 9", b"left \xff") + b'"never closed\n')
    return path


@pytest.mark.parametrize("name", ["p.csv", "p.tsv", "p.jsonl", "p.parquet"])
def test_rows_can_be_read_from_anywhere(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tables, "MARK_EVERY", 5)
    path = write_table(tmp_path / name, [(f"left {i}", f"right {i}") for i in range(33)])
    table = Table.open(path)
    columns = ("text_a", "text_b")
    scan = table.scan(columns)
    rows = list(table.rows())
    assert scan.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(scan) == len(rows) >= 33
    for mark in scan.marks:
        assert list(table.rows(mark)) == rows[mark.index :]
    for first, end in ((0, 3), (4, 9), (17, len(rows)), (32, 33)):
        assert list(table.rows_between(first, end, columns, scan)) == rows[first:end]
    assert len(scan.marks) > 3
    assert table.rows().__next__() == next(table.rows(Mark()))


def test_a_file_that_changes_under_way_is_noticed(tmp_path):
    path = write_table(tmp_path / "p.jsonl", [(f"left {i}", "b") for i in range(9)])
    table = Table.open(path)
    scan = table.scan(("text_a", "text_b"))
    path.write_text(path.read_text().replace("left 7", "left 0"))
    rows = table.rows_between(5, 9, ("text_a", "text_b"), scan)
    assert [next(rows).cells["text_a"] for _ in range(2)] == ["left 5", "left 6"]
    with pytest.raises(ValueError, match=r"p.jsonl' has changed since the job began: its row 8 is another"):
        next(rows)


def test_a_bad_text_in_parquet_costs_its_own_row_only(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    cells = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text_a": cells, "text_b": ["x", "y", "z"]}), tmp_path / "p.parquet")
    assert outcome(Table.open(tmp_path / "p.parquet").rows()) == [("a", "x"), None, ("c", "z")]


def test_a_damaged_parquet_file_is_named(tmp_path):
    path = write_table(tmp_path / "p.parquet", [(f"left {i} {random.Random(i).random()}", "b") for i in range(33)])
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(len(content) // 3) + content[4 + len(content) // 3 :])
    with pytest.raises(ValueError, match=r"p.parquet' is damaged after row \d+"):
        list(Table.open(path).rows())


def test_nothing_in_a_file_steers_the_terminal(tmp_path):
    """The names of columns, which messages repeat."""
    name = "\x1b]0;owned\x07text"
    file = tmp_path / "p.csv"
    file.write_text(f"{name},text_b\na,b\n")
    messages = []

    def ask(columns, likely=(FIRST, SECOND)):
        table = Table.open(file, columns)
        messages.append(table.describe(table.choose(columns, likely)))

    ask([name, "text_b"])
    for columns in ([name, "y"], ["x", "y"]):
        with pytest.raises(ValueError, match="does not name the columns") as error:
            ask(columns)
        messages.append(str(error.value))
    with pytest.raises(ValueError, match="2 columns are needed, not 1") as error:
        ask([name])
    messages.append(str(error.value))
    file.write_text(f"text_a,text_b,{name}\na,b,c\n")
    for columns, likely in ((None, (("z",),)), (["text_a", "z"], (FIRST, SECOND))):
        with pytest.raises(ValueError, match=r"none with a name like|has no column") as error:
            ask(columns, likely)
        messages.append(str(error.value))
    assert all(message.isprintable() for message in messages)
    assert r"'\x1b]0;owned\x07text'" in messages[0]

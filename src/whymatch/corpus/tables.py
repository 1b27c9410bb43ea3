"""Read CSV, TSV, JSON lines and Parquet files row by row, with the reason why a row is bad.

The readers of pyarrow are used for Parquet alone. Its CSV reader accepts text after a closing quotation mark and lets
an unclosed one swallow the rows that follow, both silently; its JSON reader infers one type for each column of the
whole file, so that one odd value makes the whole file an error. Neither can name the rows that it rejects.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from whymatch import files
from whymatch.words import check_text, quote

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

# Usual names of columns, the likeliest first.
FIRST = ("text_a", "sentence1", "sentence_a", "text1", "query", "question", "premise", "anchor", "a")
SECOND = ("text_b", "sentence2", "sentence_b", "text2", "document", "answer", "hypothesis", "positive", "b")
TEXT = ("text", "document", "sentence", "content", "body", "passage")
SCORE = ("score", "label", "similarity", "similarity_score", "gold", "labels", "scores")

LONGEST_CELL = 16 * 2**20  # characters of a cell that spans lines; an unclosed quotation mark is given up after these
MANY_LINES = 20  # a row that spans more is worth a warning
MARK_EVERY = 1024  # rows between two marks
UNCLOSED = "a quotation mark opens in it and is not closed"

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True)
class Row:
    """A row of a file.

    Attributes:
        number: its number in the file, counted from 1; a header is number 1.
        cells: its values by column.
        problem: why it cannot be used, or None.
        lines: how many lines of the file it spans.
    """

    number: int
    cells: dict[str, Any]
    problem: str | None = None
    lines: int = 1

    def text(self, column: str) -> tuple[str, str | None]:
        """Return a cell that must be a text, and the reason if it is not one."""
        value = self.cells.get(column)
        name = join_names([column])
        if self.problem is not None:
            return "", self.problem
        if value is None:
            return "", f"{name} is missing"
        if not isinstance(value, str):
            return "", f"{name} is not a text: {quote(value)}"
        if not value.strip():
            return "", f"{name} is empty"
        try:
            return check_text(value), None
        except ValueError as error:
            return "", str(error)

    def hashes(self, columns: Sequence[str]) -> list[int]:
        """Return the hash of each of these cells; those of a bad row are arbitrary but always the same."""
        if self.problem is not None:
            return [self.number] * len(columns)
        return [hash_text(str(self.cells.get(name))) for name in columns]


@dataclass(frozen=True)
class Mark:
    """A place from which a file can be read: the index (counted from 0) and number of the row that begins there."""

    index: int = 0
    number: int = 1
    place: int = 0  # a byte offset; in Parquet files a row group


@dataclass(frozen=True)
class Scan:
    """The result of one pass over a table.

    Attributes:
        sha256: the hash of the file's content.
        hashes: hashes of the wanted cells, (rows, columns); 16 bytes for a pair of texts, however long they are.
        marks: places from which rows can be read without reading what comes before them.
        long_rows: the numbers of rows that span more than ``MANY_LINES`` lines.
    """

    sha256: str
    hashes: NDArray[np.uint64]
    marks: list[Mark]
    long_rows: list[int]

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True)
class Table:
    """A file of rows. Only its beginning is read until the rows are asked for."""

    path: Path
    columns: tuple[str, ...]
    headed: bool  # whether the file itself names its columns

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        named: Sequence[str] | None = None,
        likely: Sequence[Sequence[str]] = (FIRST, SECOND),
    ) -> Table:
        """Find out which columns a file has.

        Args:
            path: a file in one of ``FORMATS``.
            named: columns that the user says it has.
            likely: usual names of each column that is needed.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        kind = path.suffix.lower()
        if kind not in FORMATS:
            raise ValueError(f"{str(path)!r} is not a table that can be read; give one of {', '.join(FORMATS)}")
        if kind == ".parquet":
            return cls(path, _check_distinct(path, _open_parquet(path).schema_arrow.names), True)
        check_encoding(path)
        if kind in (".jsonl", ".ndjson"):
            # Rows may lack columns, so one row does not tell them all.
            beginning = islice((row for row in cls(path, (), True).rows() if row.problem is None), 100)
            names = list(dict.fromkeys(name for row in beginning for name in row.cells))
            if not names:
                raise ValueError(f"{str(path)!r} has no row that is a JSON object")
            return cls(path, tuple(names), True)
        rows = cls(path, (), False).rows()
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{str(path)!r} is empty")
        names = [cell.strip() for cell in first.cells["cells"]]
        # The first row is a header if enough of its cells are usual names of columns, and a row of texts otherwise.
        headed = _count_usual(names) >= min(2, len(names), len(likely))
        if first.problem is not None:
            # A bad row like any other, unless it looks like a header; the next good one has as many columns.
            good = next((row for row in islice(rows, 100) if row.problem is None), None)
            if good is None or _count_usual(",".join(names).replace('"', "").split(",")):
                raise ValueError(f"the first row of {str(path)!r} cannot be read: {first.problem}")
            names = good.cells["cells"]
        elif headed or (named and set(named) <= set(names)):
            return cls(path, _check_distinct(path, names), True)
        numbers = _number_columns(names)
        if named and not set(named) <= set(numbers):
            raise ValueError(
                f"{str(path)!r} does not name the columns {join_names(named)}; its first row is {quote(names)}"
            )
        return cls(path, numbers, False)

    def rows(self, start: Mark | None = None) -> Iterator[Row]:
        """Read the rows, from a mark on."""
        return (row for _, row in self._read(start or Mark()))

    def scan(self, columns: Sequence[str]) -> Scan:
        """Read the whole file once: its hash, those of the cells in some columns, and marks to start reading at."""
        digest = hashlib.sha256()
        hashes, marks, long_rows = array("Q"), [], []
        for index, (place, row) in enumerate(self._read(Mark(), digest.update)):
            if index % MARK_EVERY == 0 and not self._is_parquet:
                marks.append(Mark(index, row.number, place))
            if row.lines > MANY_LINES:
                long_rows.append(row.number)
            hashes.extend(row.hashes(columns))
        content = digest.hexdigest()
        if self._is_parquet:  # which is not read from its beginning to its end
            content, marks = files.sha256(self.path), _parquet_marks(self.path)
        return Scan(content, np.array(hashes, np.uint64).reshape(-1, len(columns)), marks, long_rows)

    def rows_between(self, first: int, end: int, columns: Sequence[str], scan: Scan) -> Iterator[Row]:
        """Read the rows from one index up to another, and check that they are still those of a scan."""
        start = next((mark for mark in reversed(scan.marks) if mark.index <= first), Mark())
        rows = islice(self.rows(start), first - start.index, end - start.index)
        for index in range(first, end):
            row = next(rows, None)
            if row is None or row.hashes(columns) != scan.hashes[index].tolist():
                raise ValueError(
                    f"{str(self.path)!r} has changed since the job began: its row {index + 1} is another; start again"
                )
            yield row

    @property
    def _is_parquet(self) -> bool:
        return self.path.suffix.lower() == ".parquet"

    def _read(self, start: Mark, observe: Callable[[bytes], None] = lambda _: None) -> Iterator[tuple[int, Row]]:
        """Read rows, each with its place in the file; ``observe`` is called with all bytes that are read."""
        if self._is_parquet:
            yield from _parquet_rows(self.path, start)
            return
        with self.path.open("rb") as file:
            file.seek(start.place)
            lines = Lines(file, start.place, observe)
            if self.path.suffix.lower() in (".jsonl", ".ndjson"):
                yield from _json_rows(lines, start.number)
            else:
                yield from self._separated_rows(lines, start.number)

    def _separated_rows(self, lines: Lines, number: int) -> Iterator[tuple[int, Row]]:
        """Read the rows of a CSV or TSV file. A table without columns is one whose first row is still unknown."""
        width = len(self.columns) or None
        read = _read_tsv_row if self.path.suffix.lower() == ".tsv" else _read_csv_row
        for place, line in lines:
            cells, problem = read(line, lines, width)
            if not cells:
                continue
            if not (number == 1 and self.headed):
                if problem is None and any("\udc80" <= character <= "\udcff" for cell in cells for character in cell):
                    problem = "it is not UTF-8"
                if problem is None and width is not None:
                    problem = _check_width(cells, width)
                usable = problem is None and width is not None
                named = dict(zip(self.columns, cells, strict=False)) if usable else {"cells": cells}
                yield place, Row(number, named, problem, lines.taken)
            number += 1

    def choose(self, wanted: Sequence[str] | None, likely: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return the names of the wanted columns, or of the likely ones; without a header, of the first ones."""
        if wanted is not None:
            if len(wanted) != len(likely):
                raise ValueError(f"{len(likely)} columns are needed, not {len(wanted)}: {join_names(wanted)}")
            missing = [name for name in wanted if name not in self.columns]
            if missing:
                raise ValueError(f"{str(self.path)!r} has no column {missing[0]!r}; it has {join_names(self.columns)}")
            return tuple(wanted)
        if not self.headed:
            if len(self.columns) < len(likely):
                raise ValueError(
                    f"{str(self.path)!r} has {len(self.columns)} columns where {len(likely)} are needed; its first row "
                    "names none of them"
                )
            return self.columns[: len(likely)]
        chosen: list[str] = []
        for names in likely:
            matching = [name for usual in names for name in self.columns if name.casefold() == usual]
            name = next((name for name in matching if name not in chosen), None)
            if name is None:
                raise ValueError(
                    f"{str(self.path)!r} has columns {join_names(self.columns)}, and none with a name like "
                    f"{', '.join(names[:3])}; say which ones to use"
                )
            chosen.append(name)
        return tuple(chosen)

    def describe(self, columns: Sequence[str]) -> str:
        """Say which columns are used."""
        text = f"columns {join_names(columns)} of {join_names([self.path.name])}"
        return text if self.headed else f"{text}, whose first row is taken for texts and not for names"


def hash_text(text: str) -> int:
    """Return a hash of a text that fits into eight bytes."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def warn_of_long_rows(path: Path, numbers: Sequence[int]) -> None:
    """Warn of rows that span so many lines that a quotation mark may be missing."""
    if numbers:
        warnings.warn(
            f"{len(numbers)} rows of {str(path)!r} span more than {MANY_LINES} lines each, the first of them is row "
            f"{numbers[0]}: is a quotation mark not closed?",
            stacklevel=3,
        )


def check_encoding(path: Path) -> None:
    """Raise an error if a file is in UTF-16, as some spreadsheets write it."""
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{str(path)!r} is not in UTF-8 but in UTF-16; save it as UTF-8")


def join_names(names: Sequence[str]) -> str:
    """List names; those with control characters, which could manipulate a reader's terminal, are quoted."""
    return ", ".join(name if name.isprintable() else quote(name) for name in names)


def _count_usual(names: Sequence[str]) -> int:
    """Count the usual names of columns among these."""
    return sum(name.strip().casefold() in {*FIRST, *SECOND, *TEXT, *SCORE} for name in names)


def _number_columns(cells: Sequence[str]) -> tuple[str, ...]:
    """Name the columns of a file that does not name them itself."""
    return tuple(str(i) for i in range(1, len(cells) + 1))


def _check_distinct(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1 and name:
            raise ValueError(f"{str(path)!r} has {names.count(name)} columns named {name!r}; rename them")
    return tuple(names)


def _check_width(cells: Sequence[str], width: int) -> str | None:
    """Return what is wrong with the number of a row's cells, or None. Spreadsheets add empty ones at the end."""
    if len(cells) < width:
        return f"it has {len(cells)} of {width} columns"
    if any(cells[width:]):
        return f"it has {len(cells)} columns instead of {width}: is a comma or a tab not quoted?"
    return None


class Lines:
    """The lines of a file, each with its byte offset. Lines that were taken for one row can be given back."""

    def __init__(self, file: BinaryIO, offset: int = 0, observe: Callable[[bytes], None] = lambda _: None) -> None:
        self._source = _decode_lines(file, offset, observe)
        self._returned: list[tuple[int, str]] = []  # the next one last
        self._row: list[tuple[int, str]] = []

    @property
    def taken(self) -> int:
        """How many lines were taken for the current row."""
        return len(self._row)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Begin a new row with each line."""
        while True:
            self._row = []
            if self.take() is None:
                return
            yield self._row[0]

    def take(self) -> str | None:
        """Take a further line for the current row; None at the end of the file."""
        line = self._returned.pop() if self._returned else next(self._source, None)
        if line is None:
            return None
        self._row.append(line)
        return line[1]

    def give_back(self) -> None:
        """Give back all lines of the current row but the first."""
        self._returned += reversed(self._row[1:])
        del self._row[1:]


def _decode_lines(file: BinaryIO, offset: int, observe: Callable[[bytes], None]) -> Iterator[tuple[int, str]]:
    """Read lines in UTF-8 that end with any of the usual line ends; bytes that are not UTF-8 become surrogates."""
    for line in file:
        observe(line)
        text = line.decode("utf-8", "surrogateescape")
        place = offset
        if offset == 0 and text.startswith("\ufeff"):
            text, place = text[1:], 3
        offset += len(line)
        if "\r" not in text[:-2]:
            yield place, text
            continue
        for piece in _LINE.findall(text):
            yield place, piece
            place += len(piece.encode("utf-8", "surrogateescape"))


def _find_closing(text: str, start: int) -> int:
    """Find the quotation mark that closes a cell; two of them in a row stand for one inside it. -1 if there is none."""
    while (place := text.find('"', start)) >= 0 and text.startswith('"', place + 1):
        start = place + 2
    return place


def _read_csv_row(line: str, lines: Lines, width: int | None) -> tuple[list[str], str | None]:
    """Split a row into cells, and take further lines if a quoted cell spans them.

    Quotation marks mean something only at the beginning of a cell; there, the closing one must be followed by a comma
    or the end of the line. A row that violates this, or that spans lines and does not have ``width`` cells, is
    malformed: its first line is bad and the others are given back.

    This takes linear time. A quoted cell ends at the first run of an odd number of quotation marks, and a line that is
    read again can open a cell that spans lines only with such a run: between the beginning and the end of a cell there
    is none. A line is therefore read at most once for each cell of a row, and once more by itself.
    """
    end = len(line.rstrip("\r\n"))
    if '"' not in line:
        return line[:end].split(",") if end else [], None
    first = line[:end]

    def reject(problem: str) -> tuple[list[str], str]:
        lines.give_back()
        return [first], problem

    cells: list[str] = []
    place = 0
    while True:
        if line.startswith('"', place):
            place += 1
            pieces, size = [], 0
            while (closing := _find_closing(line, place)) < 0:
                pieces.append(line[place:])
                size += len(pieces[-1])
                following = lines.take()
                if following is None:
                    return reject(UNCLOSED)
                if size > LONGEST_CELL and lines.taken > 2:
                    return reject(f"{UNCLOSED} within {LONGEST_CELL:,} characters")
                line, place, end = following, 0, len(following.rstrip("\r\n"))
            cells.append("".join([*pieces, line[place:closing]]).replace('""', '"'))
            place = closing + 1
            if place < end and line[place] != ",":
                rest = quote(line[place:end], 30)
                return reject(
                    UNCLOSED
                    if lines.taken > 1
                    else f"{rest} follows a closing quotation mark; inside a cell, write quotation marks twice"
                )
        else:
            comma = line.find(",", place)
            stop = end if comma < 0 else comma
            cells.append(line[place:stop])
            place = stop
        if lines.taken > 1 and width is not None and len(cells) > width and cells[-1]:
            break
        if place >= end:
            break
        place += 1
    if lines.taken > 1 and width is not None and _check_width(cells, width):
        return reject(f"it spans {lines.taken} lines and has not {width} columns: is a quotation mark not closed?")
    return cells, None


def _read_tsv_row(line: str, _lines: Lines, _width: int | None) -> tuple[list[str], None]:
    """Split a line at its tabs. Marks are removed only where they enclose a cell: few such files quote."""
    content = line.rstrip("\r\n")
    cells = content.split("\t") if content else []
    return [
        cell[1:-1].replace('""', '"') if cell.startswith('"') and 0 < _find_closing(cell, 1) == len(cell) - 1 else cell
        for cell in cells
    ], None


def _json_rows(lines: Lines, first: int) -> Iterator[tuple[int, Row]]:
    for number, (place, text) in enumerate(lines, first):
        line = text.strip()
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers that are too long, and brackets nested too deeply
            reason = getattr(error, "msg", error)
            yield place, Row(number, {"line": line}, f"it is not JSON that can be read ({reason}): {quote(line)}")
            continue
        if isinstance(value, str):
            yield place, Row(number, {TEXT[0]: value})
        elif isinstance(value, dict):
            yield place, Row(number, value)
        else:
            yield place, Row(number, {"line": line}, f"it is not a JSON object: {quote(line)}")


def _open_parquet(path: Path) -> Any:
    from whymatch.corpus.arrow import pa, pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{str(path)!r} is not a Parquet file: {error}") from None


def _parquet_marks(path: Path) -> list[Mark]:
    """Mark the beginning of each row group."""
    metadata = _open_parquet(path).metadata
    sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes]).tolist()
    return [Mark(start, start + 1, group) for group, start in enumerate(starts[:-1])]


def _parquet_rows(path: Path, start: Mark) -> Iterator[tuple[int, Row]]:
    from whymatch.corpus.arrow import pa

    file = _open_parquet(path)
    number = start.number
    for group in range(start.place, file.num_row_groups):
        batches = file.iter_batches(batch_size=1024, row_groups=[group])
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise ValueError(f"{str(path)!r} is damaged after row {number - 1}: {error}") from None
            if batch is None:
                break
            for row in _arrow_rows(batch, number):
                yield group, row
            number += len(batch)


def _arrow_rows(batch: Any, number: int) -> Iterator[Row]:
    try:
        yield from (Row(number + i, cells) for i, cells in enumerate(batch.to_pylist()))
    except UnicodeDecodeError:
        if len(batch) == 1:
            yield Row(number, {}, "it is not UTF-8")
            return
        for i in range(len(batch)):  # one of the rows is bad, and only that one
            yield from _arrow_rows(batch.slice(i, 1), number + i)

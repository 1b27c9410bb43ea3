"""Tables of texts: CSV, TSV, JSON lines and Parquet, row by row, their columns named or guessed, bad rows named."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from whymatch.text import check_text, shown

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

# What columns are called where nobody says which they are, the likeliest first.
FIRST = ("text_a", "sentence1", "sentence_a", "text1", "query", "question", "premise", "anchor", "a")
SECOND = ("text_b", "sentence2", "sentence_b", "text2", "document", "answer", "hypothesis", "positive", "b")
TEXT = ("text", "document", "sentence", "content", "body", "passage")
FEW = 0.05  # the share of scores above 1 that says nothing about their range
LONGEST_CELL = 16 * 2**20  # characters
QUOTED = re.compile(r'"(?:[^"]|"")*"')
SCORE = ("score", "label", "similarity", "similarity_score", "gold", "labels", "scores")


@dataclass(frozen=True)
class Row:
    """One row: its number in the file, from 1, and its cells; or why it cannot be read."""

    number: int
    cells: dict[str, Any]
    bad: str | None = None


@dataclass(frozen=True)
class Table:
    """A file of rows. Nothing but its beginning is read before the rows are asked for."""

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
        """Look at a file's beginning.

        Args:
            named: columns that somebody says it has.
            likely: what the columns that are needed may be called, each.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        kind = path.suffix.lower()
        if kind not in FORMATS:
            raise ValueError(f"{str(path)!r} is no table that can be read; give one of {', '.join(FORMATS)}")
        if kind == ".parquet":
            return cls(path, _distinct(path, _parquet(path).schema_arrow.names), True)
        _check_encoding(path)
        if kind in (".jsonl", ".ndjson"):
            # A row need not have every column.
            beginning = islice((row for row in _json_rows(path) if row.bad is None), 100)
            names = list(dict.fromkeys(name for row in beginning for name in row.cells))
            if not names:
                raise ValueError(f"{str(path)!r} has no row that is a JSON object")
            return cls(path, tuple(names), True)
        first = next(_cells(path), None)
        if first is None:
            raise ValueError(f"{str(path)!r} is empty")
        names = [cell.strip() for cell in first[1]]
        if named and set(named) <= set(names):
            return cls(path, _distinct(path, names), True)
        # The first row may be one of texts: as many of its cells as are needed, or two, must look like names.
        known = sum(name.casefold() in {*FIRST, *SECOND, *TEXT, *SCORE} for name in names)
        if known >= min(2, len(names), len(likely)):
            return cls(path, _distinct(path, names), True)
        if named and not set(named) <= {str(i) for i in range(1, len(names) + 1)}:
            raise ValueError(
                f"{str(path)!r} does not name the columns {', '.join(named)}; its first row is {shown(names)}"
            )
        return cls(path, tuple(str(i) for i in range(1, len(names) + 1)), False)

    def rows(self) -> Iterator[Row]:
        kind = self.path.suffix.lower()
        if kind == ".parquet":
            number = 0
            for batch in _parquet(self.path).iter_batches(batch_size=1024):
                for cells in batch.to_pylist():
                    number += 1
                    yield Row(number, cells)
        elif kind in (".jsonl", ".ndjson"):
            yield from _json_rows(self.path)
        else:
            for number, cells, bad in _cells(self.path, len(self.columns)):
                if number == 1 and self.headed:
                    continue
                if bad is None and len(cells) < len(self.columns):
                    bad = f"it has {len(cells)} of {len(self.columns)} columns"
                elif bad is None and any(cells[len(self.columns) :]):
                    bad = f"it has {len(cells)} columns instead of {len(self.columns)}: is a comma or a tab not quoted?"
                named = dict(zip(self.columns, cells, strict=False))
                yield Row(number, named if bad is None else {"cells": cells}, bad)

    def choose(self, wanted: Sequence[str] | None, likely: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """The names of the columns that are wanted, or else of the likely ones; without names, the first ones."""
        if wanted is not None:
            if len(wanted) != len(likely):
                raise ValueError(f"{len(likely)} columns are needed, not {len(wanted)}: {', '.join(wanted)}")
            missing = [name for name in wanted if name not in self.columns]
            if missing:
                raise ValueError(f"{str(self.path)!r} has no column {missing[0]!r}; it has {', '.join(self.columns)}")
            return tuple(wanted)
        if not self.headed:
            if len(self.columns) < len(likely):
                raise ValueError(
                    f"{str(self.path)!r} has {len(self.columns)} columns where {len(likely)} are needed; its first row "
                    "names none of them"
                )
            return self.columns[: len(likely)]
        found = []
        for names in likely:
            here = [name for like in names for name in self.columns if name.casefold() == like and name not in found]
            if not here:
                raise ValueError(
                    f"{str(self.path)!r} has columns {', '.join(self.columns)}, and none that is called like "
                    f"{', '.join(names[:3])}; say which ones to use"
                )
            found.append(here[0])
        return tuple(found)

    def said(self, chosen: Sequence[str]) -> str:
        """Which columns were taken, for whoever asked."""
        said = f"columns {', '.join(chosen)} of {self.path.name}"
        return said if self.headed else f"{said}, whose first row is taken for texts and not for names"


def text_of(row: Row, name: str) -> tuple[str, str | None]:
    """A cell that must be a text, and why it is none that can be read."""
    text = row.cells.get(name)
    if row.bad is not None:
        return "", row.bad
    if text is None:
        return "", f"{name} is missing"
    if not isinstance(text, str):
        return "", f"{name} is no text: {shown(text)}"
    if not text.strip():
        return "", f"{name} is empty"
    try:
        return check_text(text), None
    except ValueError as error:
        return "", str(error)


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts, with a score if one was asked for."""

    source: str
    columns: tuple[str, ...]
    texts: list[tuple[str, str]]
    scores: list[float]
    bad: list[tuple[int, str]] = field(default_factory=list)  # the numbers of rows that were left out, and why
    score_range: tuple[float, float] = (0.0, 1.0)  # of the scores in the file

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        low, high = self.score_range
        said = f"{len(self):,} pairs from {self.source} (columns {', '.join(self.columns)}; scores {low:g} to {high:g})"
        if not self.bad:
            return said
        named = "; ".join(f"row {number}: {reason}" for number, reason in self.bad[:5])
        return f"{said}; {len(self.bad)} bad rows left out: {named}{' …' if len(self.bad) > 5 else ''}"


def read_scored_pairs(
    path: str | Path, columns: Sequence[str] | None = None, score_range: tuple[float, float] | None = None
) -> Pairs:
    """Pairs with scores from 0 to 1, of a range that is given or guessed: 0 to 1, or else 0 to 5."""
    table = Table.open(path, columns, (FIRST, SECOND, SCORE))
    names = table.choose(columns, (FIRST, SECOND, SCORE))
    texts, scores, numbers, bad = [], [], [], []
    for row in table.rows():
        pair, score, reason = _scored(row, names)
        if reason is not None:
            bad.append((row.number, reason))
            continue
        texts.append(pair)
        scores.append(score)
        numbers.append(row.number)
    if not texts:
        why = f": row {bad[0][0]}: {bad[0][1]}" if bad else ""
        raise ValueError(f"{str(path)!r} holds no pair with a score{why}")
    low, high = score_range or _guessed_range(scores, numbers, path)
    if not low < high:
        raise ValueError(f"a range of scores from {low:g} to {high:g} is empty")
    for number, score in zip(numbers, scores, strict=True):
        if not low <= score <= high:
            raise ValueError(
                f"row {number} of {str(path)!r} has the score {score:g}, outside {low:g} to {high:g}; correct it, or "
                "say what the range is"
            )
    rescaled = [(score - low) / (high - low) for score in scores]
    return Pairs(Path(path).name, names, texts, rescaled, bad, (low, high))


def _guessed_range(scores: Sequence[float], numbers: Sequence[int], path: str | Path) -> tuple[float, float]:
    """0 to 1, or 0 to 5 if many scores say so; a few that do are rather wrong."""
    above = [i for i, score in enumerate(scores) if score > 1]
    if above and len(above) < FEW * len(scores):
        raise ValueError(
            f"row {numbers[above[0]]} of {str(path)!r} has the score {scores[above[0]]:g}, and only {len(above)} of "
            f"{len(scores):,} are above 1; correct it, or say what the range is"
        )
    return (0.0, 5.0) if above else (0.0, 1.0)


def _scored(row: Row, names: Sequence[str]) -> tuple[tuple[str, str], float, str | None]:
    (a, wrong_a), (b, wrong_b) = (text_of(row, name) for name in names[:2])
    if wrong_a or wrong_b:
        return (a, b), 0.0, wrong_a or wrong_b
    score = row.cells.get(names[2])
    try:
        value = float(score)  # type: ignore[arg-type]  # what is no number is found out here
    except (TypeError, ValueError):
        return (a, b), 0.0, f"{names[2]} is {shown(score)}, not a number"
    return (a, b), value, None if math.isfinite(value) else f"{names[2]} is {score}"


def read_documents(path: str | os.PathLike[str], column: str | None = None) -> list[str]:
    """Documents from a file: lines of text, or a table with a column of texts; a warning names rows without any."""
    path = Path(path)
    if path.suffix.lower() in FORMATS:
        named = None if column is None else [column]
        table = Table.open(path, named, (TEXT,))
        if not table.headed and len(table.columns) > 1:
            raise ValueError(
                f'{str(path)!r} has {len(table.columns)} columns, and none that is called "text"; its first row is '
                f"{shown(next(_cells(path))[1])}: say which column to use"
            )
        (name,) = table.choose(named, (TEXT,))
        documents, bad = [], []
        for row in table.rows():
            text, wrong = text_of(row, name)
            if wrong:
                bad.append(f"row {row.number}: {wrong}")
            else:
                documents.append(text)
        if bad:
            more = " …" if len(bad) > 5 else ""
            warnings.warn(f"{len(bad)} rows of {str(path)!r} passed over: {'; '.join(bad[:5])}{more}", stacklevel=2)
    else:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        _check_encoding(path)
        try:
            with path.open(encoding="utf-8-sig") as file:
                documents = [line.rstrip("\n") for line in file if line.strip()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{str(path)!r} is not a text file in UTF-8: {error}") from None
    if not documents:
        raise ValueError(f"{str(path)!r} holds no documents: give one on each line")
    return documents


def _distinct(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1 and name:
            raise ValueError(f"{str(path)!r} has {names.count(name)} columns that are called {name!r}; name them apart")
    return tuple(names)


def _check_encoding(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ValueError(f"{str(path)!r} is not in UTF-8 but in UTF-16; save it as UTF-8")


class _Lines:
    """Lines of a file, which can be given back."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self._back: list[str] = []  # the next one last
        self.taken: list[str] = []
        self.ended = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._back.pop() if self._back else next(self._file, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.taken.append(line)
        return line

    def give_back(self) -> None:
        """All but the first of those that were taken."""
        self._back += reversed(self.taken[1:])
        self.ended = False


def _cells(path: Path, width: int | None = None) -> Iterator[tuple[int, list[str], str | None]]:
    """Of a CSV or TSV file row by row: its number, its cells, and why they cannot be used."""
    tabs = path.suffix.lower() == ".tsv"
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        number = 0
        for cells, bad in _tsv_cells(file) if tabs else _csv_cells(file, width):
            if not cells:
                continue
            number += 1
            if any("\udc80" <= character <= "\udcff" for cell in cells for character in cell):
                bad = "it is not UTF-8"
            yield number, cells, bad


def _csv_cells(file: Iterable[str], width: int | None) -> Iterator[tuple[list[str], str | None]]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    lines = _Lines(file)
    reader = csv.reader(lines)
    while True:
        lines.taken.clear()
        try:
            cells = next(reader, None)
        except csv.Error:
            cells = []
        else:
            if cells is None:
                return
            if not lines.ended and (len(lines.taken) == 1 or width in (None, len(cells))):
                yield cells, None
                continue
        # A quotation mark that nothing closes, or another row's, takes what follows for one cell. Only its own line is
        # bad; the rest is read again.
        first = lines.taken[0].rstrip("\r\n")
        lines.give_back()
        reader = csv.reader(lines)
        yield [first], "a quotation mark opens in it and is not closed"


def _tsv_cells(file: Iterable[str]) -> Iterator[tuple[list[str], str | None]]:
    """Tab-separated files rarely quote: marks are not a cell's own only where they enclose it, as pandas writes it."""
    for line in file:
        cells = line.rstrip("\r\n").split("\t")
        if cells != [""]:
            yield [cell[1:-1].replace('""', '"') if QUOTED.fullmatch(cell) else cell for cell in cells], None


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:  # also numbers too long, and brackets too deep
                said = getattr(error, "msg", error)
                yield Row(
                    number, {"line": line.strip()}, f"it is not JSON that can be read ({said}): {shown(line.strip())}"
                )
                continue
            if isinstance(value, str):
                yield Row(number, {TEXT[0]: value})
            elif isinstance(value, dict):
                yield Row(number, value)
            else:
                yield Row(number, {"line": line.strip()}, f"it is no JSON object: {shown(line.strip())}")


def _parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{str(path)!r} is not a Parquet file: {error}") from None

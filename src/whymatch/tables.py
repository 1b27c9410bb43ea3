"""Tables of texts: CSV, TSV, JSON lines and Parquet, row by row, their columns named or guessed, bad rows named."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whymatch.text import shown

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

# What columns are called where nobody says which they are, the likeliest first.
FIRST = ("text_a", "sentence1", "sentence_a", "text1", "query", "question", "premise", "anchor", "a")
SECOND = ("text_b", "sentence2", "sentence_b", "text2", "document", "answer", "hypothesis", "positive", "b")
TEXT = ("text", "document", "sentence", "content", "body", "passage")
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
    def open(cls, path: str | os.PathLike[str], named: Sequence[str] | None = None) -> Table:
        """Look at a file's beginning; ``named`` are columns that somebody says it has."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        if path.suffix.lower() not in FORMATS:
            raise ValueError(f"{str(path)!r} is no table that can be read; give one of {', '.join(FORMATS)}")
        if path.suffix.lower() == ".parquet":
            return cls(path, tuple(_parquet(path).schema_arrow.names), True)
        if path.suffix.lower() in (".jsonl", ".ndjson"):
            first = next((row for row in _json_rows(path) if row.bad is None), None)
            if first is None:
                raise ValueError(f"{str(path)!r} has no row that is a JSON object")
            return cls(path, tuple(first.cells), True)
        first_row = next(_csv_cells(path), None)
        if first_row is None:
            raise ValueError(f"{str(path)!r} is empty")
        names = [cell.strip() for cell in first_row[1]]
        # Two of several cells must look like names: the first row may be one of texts.
        known = sum(name.casefold() in {*FIRST, *SECOND, *TEXT, *SCORE} for name in names)
        if known >= min(2, len(names)) or (named and set(named) <= set(names)):
            return cls(path, tuple(names), True)
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
            for number, cells, bad in _csv_cells(self.path):
                if number == 1 and self.headed:
                    continue
                if bad is None and len(cells) < len(self.columns):
                    bad = f"it has {len(cells)} of {len(self.columns)} columns"
                yield Row(number, dict(zip(self.columns, cells, strict=False)), bad)

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


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts, with a score if one was asked for."""

    source: str
    columns: tuple[str, ...]
    texts: list[tuple[str, str]]
    scores: list[float]
    bad: list[tuple[int, str]] = field(default_factory=list)  # the numbers of rows that were left out, and why

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        said = f"{len(self):,} pairs from {self.source} (columns {', '.join(self.columns)})"
        if not self.bad:
            return said
        named = "; ".join(f"row {number}: {reason}" for number, reason in self.bad[:5])
        return f"{said}; {len(self.bad)} bad rows left out: {named}{' …' if len(self.bad) > 5 else ''}"


def read_scored_pairs(
    path: str | Path, columns: Sequence[str] | None = None, score_range: tuple[float, float] | None = None
) -> Pairs:
    """Pairs with scores from 0 to 1, of a range that is given or guessed: 0 to 1, or else 0 to 5."""
    table = Table.open(path, columns)
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
    low, high = score_range or ((0.0, 1.0) if max(scores) <= 1 else (0.0, 5.0))
    if not low < high:
        raise ValueError(f"a range of scores from {low:g} to {high:g} is empty")
    for number, score in zip(numbers, scores, strict=True):
        if not low <= score <= high:
            raise ValueError(
                f"row {number} of {str(path)!r} has the score {score:g}, outside {low:g} to {high:g}; correct it, or "
                "say what the range is"
            )
    return Pairs(Path(path).name, names, texts, [(score - low) / (high - low) for score in scores], bad)


def _scored(row: Row, names: Sequence[str]) -> tuple[tuple[str, str], float, str | None]:
    nothing = ("", "")
    if row.bad is not None:
        return nothing, 0.0, row.bad
    a, b, score = (row.cells.get(name) for name in names)
    for name, text in zip(names, (a, b), strict=False):
        if not isinstance(text, str) or not text.strip():
            return nothing, 0.0, f"{name} is {'empty' if text in (None, '') or isinstance(text, str) else 'no text'}"
    try:
        value = float(score)  # type: ignore[arg-type]  # what is no number is found out here
    except (TypeError, ValueError):
        return nothing, 0.0, f"{names[2]} is {shown(str(score))}, not a number"
    if not math.isfinite(value):
        return nothing, 0.0, f"{names[2]} is {score}"
    return (str(a), str(b)), value, None


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str], str | None]]:
    """Row by row, its number, its cells, and why they cannot be used."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        tabs = path.suffix.lower() == ".tsv"
        # Tab-separated files rarely quote: a lone quotation mark there is a character, not the begin of a long cell.
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(file)
        number = 0
        while True:
            try:
                cells, bad = next(reader), None
            except StopIteration:
                return
            except csv.Error as error:
                cells, bad = [""], str(error)
            if not cells:
                continue
            number += 1
            if any("\udc80" <= character <= "\udcff" for cell in cells for character in cell):
                bad = "it is not UTF-8"
            yield number, cells, bad


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                yield Row(number, {}, f"it is not JSON ({error.msg}): {shown(line.strip())}")
                continue
            if isinstance(value, dict):
                yield Row(number, value)
            else:
                yield Row(number, {}, f"it is no JSON object: {shown(line.strip())}")


def _parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{str(path)!r} is not a Parquet file: {error}") from None

"""Read the input of commands from tables: scored pairs of texts, and documents."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whymatch.corpus.tables import (
    FIRST,
    FORMATS,
    MANY_LINES,
    SCORE,
    SECOND,
    TEXT,
    Row,
    Table,
    check_encoding,
    join_names,
    warn_of_long_rows,
)
from whymatch.results.ranking import Document
from whymatch.words import quote

FEW = 0.05  # a share of scores above 1 that is too small to tell that scores range from 0 to 5


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts with scores from 0 to 1.

    Attributes:
        source: the name of the file.
        columns: the names of the columns that were read.
        texts: the pairs.
        scores: a score for each pair.
        bad: the numbers of rows that were left out, each with the reason.
        score_range: what the scores in the file range over.
    """

    source: str
    columns: tuple[str, ...]
    texts: list[tuple[str, str]]
    scores: list[float]
    bad: list[tuple[int, str]] = field(default_factory=list)
    score_range: tuple[float, float] = (0.0, 1.0)

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        low, high = self.score_range
        columns = join_names(self.columns)
        text = f"{len(self):,} pairs from {join_names([self.source])} (columns {columns}; scores {low:g} to {high:g})"
        if not self.bad:
            return text
        return f"{text}; {len(self.bad)} bad rows left out: {_name_rows(self.bad)}"


def read_scored_pairs(
    path: str | Path, columns: Sequence[str] | None = None, score_range: tuple[float, float] | None = None
) -> Pairs:
    """Read pairs, and rescale their scores to 0 to 1.

    Args:
        path: a table with two columns of texts and one of scores.
        columns: their names; None looks for usual ones.
        score_range: what scores range over; None takes 0 to 1, or 0 to 5 if many scores are above 1.
    """
    table = Table.open(path, columns, (FIRST, SECOND, SCORE))
    names = table.choose(columns, (FIRST, SECOND, SCORE))
    texts, scores, numbers, bad, long_rows = [], [], [], [], []
    for row in table.rows():
        pair, score, problem = _read_scored(row, names)
        if row.lines > MANY_LINES:
            long_rows.append(row.number)
        if problem is not None:
            bad.append((row.number, problem))
            continue
        texts.append(pair)
        scores.append(score)
        numbers.append(row.number)
    warn_of_long_rows(table.path, long_rows)
    if not texts:
        reason = f": row {bad[0][0]}: {bad[0][1]}" if bad else ""
        raise ValueError(f"{str(path)!r} holds no pair with a score{reason}")
    low, high = score_range or _guess_range(scores, numbers, path)
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


def _guess_range(scores: Sequence[float], numbers: Sequence[int], path: str | Path) -> tuple[float, float]:
    """Return 0 to 1, or 0 to 5 if many scores are above 1. A few above 1 are more likely mistakes."""
    above = [i for i, score in enumerate(scores) if score > 1]
    if above and len(above) < FEW * len(scores):
        raise ValueError(
            f"row {numbers[above[0]]} of {str(path)!r} has the score {scores[above[0]]:g}, and only {len(above)} of "
            f"{len(scores):,} are above 1; correct it, or say what the range is"
        )
    return (0.0, 5.0) if above else (0.0, 1.0)


def _read_scored(row: Row, names: Sequence[str]) -> tuple[tuple[str, str], float, str | None]:
    (a, problem_a), (b, problem_b) = (row.text(name) for name in names[:2])
    if problem_a or problem_b:
        return (a, b), 0.0, problem_a or problem_b
    score, name = row.cells.get(names[2]), join_names(names[2:])
    try:
        value = float(score)  # type: ignore[arg-type]  # anything else is reported here
    except (TypeError, ValueError, OverflowError):
        return (a, b), 0.0, f"{name} is {quote(score)}, not a number"
    return (a, b), value, None if math.isfinite(value) else f"{name} is {quote(score)}, not a finite number"


def read_documents(path: str | os.PathLike[str], column: str | None = None) -> list[Document]:
    """Read documents: the lines of a text file, or the rows of a table.

    A table's columns ``id`` and ``title`` are the documents' own; whatever other columns it has is metadata. Rows
    without a text are left out, and a warning names them.

    Args:
        path: a text file or a table.
        column: the column of texts; None looks for a usual name.
    """
    path = Path(path)
    if path.suffix.lower() in FORMATS:
        documents = _read_column(path, column)
    else:
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        check_encoding(path)
        try:
            with path.open(encoding="utf-8-sig") as file:
                documents = [Document(line.rstrip("\n")) for line in file if line.strip()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{str(path)!r} is not a text file in UTF-8: {error}") from None
    if not documents:
        raise ValueError(f"{str(path)!r} holds no documents: give one on each line")
    return documents


def _read_column(path: Path, column: str | None) -> list[Document]:
    named = None if column is None else [column]
    table = Table.open(path, named, (TEXT,))
    if named is None and not table.headed and len(table.columns) > 1:
        first = next(table.rows())
        raise ValueError(
            f'{str(path)!r} has {len(table.columns)} columns, and none of them is named "text"; its first row is '
            f"{quote(list(first.cells.values()))}: say which column to use"
        )
    (name,) = table.choose(named, (TEXT,))
    documents, bad, long_rows = [], [], []
    for row in table.rows():
        text, problem = row.text(name)
        if row.lines > MANY_LINES:
            long_rows.append(row.number)
        if problem:
            bad.append((row.number, problem))
            continue
        others = {key: value for key, value in row.cells.items() if key != name} if table.headed else {}
        try:
            documents.append(Document.of({**others, "text": text}))
        except (TypeError, ValueError) as error:
            bad.append((row.number, str(error)))
    warn_of_long_rows(path, long_rows)
    warn_of_bad_rows(path, bad)
    return documents


def warn_of_bad_rows(path: str | os.PathLike[str], bad: Sequence[tuple[int, str]]) -> None:
    """Warn of rows that are left out, each given with the reason."""
    if bad:
        rows, are = ("row", "is") if len(bad) == 1 else ("rows", "are")
        warnings.warn(f"{len(bad):,} {rows} of {os.fspath(path)!r} {are} left out: {_name_rows(bad)}", stacklevel=3)


def _name_rows(bad: Sequence[tuple[int, str]]) -> str:
    """Name the first few bad rows, with what is wrong with them."""
    named = "; ".join(f"row {number}: {reason}" for number, reason in bad[:5])
    return f"{named} …" if len(bad) > 5 else named

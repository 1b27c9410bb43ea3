"""Explaining a file of pairs into a Parquet dataset: every row once, whatever happens on the way.

Rows are explained in the order of the file and written in parts, each of which is all that came of some rows that
follow each other. A part is written aside and put in its place, and only then does the job's record, replaced as a
whole, say which rows it stands for. A job that is started again does the rows for which no whole part stands, and no
others.

The dataset's folder holds parts and nothing else, so that whatever reads Parquet reads it. What belongs to the job is
in a folder beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from whymatch import Explainer, __version__, models
from whymatch.cluster import Ray
from whymatch.decomposition import is_int
from whymatch.engines import SCHEMA, Entry, Explained, Local, OnRay
from whymatch.files import held, made, written_aside
from whymatch.remembered import hash_of
from whymatch.tables import FIRST, SECOND, Table

FORMAT, VERSION = "whymatch batch", 1
BESIDE = ".job"  # what the name of the job's folder ends with
RECORD = "job.json"
ERRORS = "errors"
TEXTS = "texts"

WINDOW = 128  # rows that are explained together, at most
PART_ROWS = 4096
PART_SECONDS = 30.0  # what a kill can cost
PART_BYTES = 64 * 2**20  # what is held in memory

BAD = pa.schema({"row": pa.int64(), "reason": pa.string(), "content": pa.string()})


@dataclass(frozen=True)
class Job:
    """What is asked for; a folder belongs to one job."""

    columns: tuple[str, ...]
    words: bool
    top: int
    settings: dict[str, Any]
    identity: str  # of the model
    content: str  # of the file

    def differences(self, other: dict[str, Any]) -> list[str]:
        """From what a record says, by name."""

        def flat(job: dict[str, Any]) -> dict[str, Any]:
            return {**{key: value for key, value in job.items() if key != "settings"}, **job["settings"]}

        asked, before = flat(json.loads(json.dumps(asdict(self)))), flat(other)
        return [
            f"{name} was {before.get(name)!r:.60}, is {value!r:.60}"
            for name, value in asked.items()
            if before.get(name) != value
        ]


@dataclass(frozen=True)
class Part:
    """All that came of some rows of the file that follow each other."""

    first: int  # row, counted from 0
    rows: int  # of the file
    bytes: int
    bad: int
    bad_bytes: int

    @property
    def file(self) -> str:
        return f"part-{self.first:09d}.parquet"

    def is_whole(self, out: Path, folder: Path) -> bool:
        if not _is_whole(out / self.file, self.bytes, self.rows - self.bad):
            return False
        return not self.bad or _is_whole(folder / ERRORS / self.file, self.bad_bytes, self.bad)


def _is_whole(path: Path, size: int, rows: int) -> bool:
    try:
        return path.stat().st_size == size and pq.read_metadata(path).num_rows == rows
    except (OSError, pa.ArrowException):
        return False


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    rows: int  # in all
    done: int
    bad: int


def run(
    pairs: str | os.PathLike[str],
    out: str | os.PathLike[str],
    explainer: Explainer,
    *,
    columns: Sequence[str] | None = None,
    words: bool = False,
    top: int = 10,
    resume: bool = False,
    window: int = WINDOW,
    ray: Ray | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Explain every pair of a file into a folder; returns how many rows are done, and how many of them were bad.

    Args:
        columns: the names of the two columns of texts; None guesses them.
        words: merge tokens to words.
        top: how many of a pair's strongest entries its row lists.
        resume: go on where a job was interrupted.
        window: rows that are explained together, at most.
        ray: the cluster that explains them; None explains them here.
        watch: is told after every window how far the job is.
    """
    if not is_int(top) or top < 0:
        raise ValueError(f"top={top!r} is not a number of pairs; give 0 or more")
    explainer.check_portable("a batch")
    table = Table.open(pairs, columns)
    names = table.choose(columns, (FIRST, SECOND))
    job = Job(
        columns=names,
        words=words,
        top=top,
        settings=asdict(explainer.settings),
        identity=models.identity(explainer.model),
        content=_content(table.path),
    )
    out = made(out)
    folder = beside(out)
    if out.stat().st_dev != folder.parent.stat().st_dev:  # a part is written there and put here, in one step
        raise ValueError(f"{str(out)!r} is a disk of its own, and what is beside it is on another; name a folder on it")
    with held(made(folder)):
        record = Record.taken_up(job, out, folder, resume)
        hashes = _hashes(table, names)
        if missing := list(record.missing(len(hashes))):
            arguments = (explainer, _repeated(hashes), words, top, window)
            engine = Local(folder / TEXTS, *arguments) if ray is None else OnRay(ray, *arguments)
            for first, end in missing:
                entries = (Entry(row, names) for row in islice(table.rows(), first, end))
                for progress in _written(engine(entries), record, first):
                    watch(Progress(len(hashes), *progress))
        if not record.parts:  # a file without rows is a dataset without rows
            record.add(0, [])
        shutil.rmtree(folder / TEXTS, ignore_errors=True)
    return Progress(len(hashes), record.done, record.bad)


def beside(out: str | os.PathLike[str]) -> Path:
    """The folder of a dataset's job."""
    path = Path(out)
    if path.name in ("", ".."):  # a place that has a name only where it is seen from
        path = path.resolve()
    return path.with_name(f"{path.name}{BESIDE}")


def _written(found: Iterator[Explained], record: Record, first: int) -> Iterator[tuple[int, int]]:
    """Write what an engine finds for rows from the first on; after each of its steps, how many are done and bad."""
    held_back: list[Explained] = []
    started = time.monotonic()
    for each in found:
        held_back.append(each)
        rows = sum(one.count for one in held_back)
        size = sum(one.rows.nbytes for one in held_back)
        if rows >= PART_ROWS or size >= PART_BYTES or time.monotonic() - started >= PART_SECONDS:
            record.add(first, held_back)
            first, held_back, started = first + rows, [], time.monotonic()
        waiting = [sum(one.count for one in held_back), sum(len(one.bad) for one in held_back)]
        yield record.done + waiting[0], record.bad + waiting[1]
    if held_back:
        record.add(first, held_back)


class Record:
    """Which rows are done, and where."""

    def __init__(self, job: Job, out: Path, folder: Path, parts: Sequence[Part] = ()) -> None:
        self._job = job
        self._out = out
        self._folder = folder
        self.parts = list(parts)

    @classmethod
    def taken_up(cls, job: Job, out: Path, folder: Path, resume: bool) -> Record:
        """The record of a job that is there; a new one if nothing is."""
        path = folder / RECORD
        strange = [file.name for file in folder.iterdir() if file.name != ".lock"]
        if strange and not path.exists():
            raise FileExistsError(f"{str(folder)!r} is not empty ({strange[0]}), and holds no job; name another folder")
        there = [file.name for file in out.iterdir()]
        if not there:  # whatever a job beside it says was thrown away with its dataset
            shutil.rmtree(folder / ERRORS, ignore_errors=True)
            record = cls(job, out, folder)
            record._write()
            return record
        if not path.exists():
            raise FileExistsError(f"{str(out)!r} is not empty ({there[0]}), and holds no job; name another folder")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (content["format"], content["version"]) != (FORMAT, VERSION):
                raise ValueError(f"its format is {content['format']!r} {content['version']!r}")
            differing = job.differences(content["job"])
            parts = _checked([Part(**part) for part in content["parts"]])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"the record {str(path)!r} is damaged ({error}); name another folder") from None
        if differing:
            raise ValueError(f"{str(out)!r} belongs to another job: {'; '.join(differing)}. Name another folder")
        record = cls(job, out, folder, parts)
        if not resume:
            raise FileExistsError(
                f"{str(out)!r} holds this job already, {record.done:,} rows of it; go on with --resume"
            )
        record._keep_whole_parts()
        return record

    def _keep_whole_parts(self) -> None:
        damaged = [part for part in self.parts if not part.is_whole(self._out, self._folder)]
        if damaged:
            names = ", ".join(part.file for part in damaged[:3])
            rows = sum(part.rows for part in damaged)
            warnings.warn(f"{names} of {str(self._out)!r} cannot be read; {rows:,} rows are done again", stacklevel=4)
        self.parts = [part for part in self.parts if part not in damaged]
        self._write()
        # What was being written when the last run ended is not named, and goes.
        named = {part.file for part in self.parts}
        for file in (*self._out.glob("part-*.parquet"), *(self._folder / ERRORS).glob("part-*.parquet")):
            if file.name not in named:
                file.unlink()

    @property
    def done(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bad(self) -> int:
        return sum(part.bad for part in self.parts)

    def missing(self, rows: int) -> Iterator[tuple[int, int]]:
        """From where to where rows are still to be done, of so many."""
        place = 0
        for part in sorted(self.parts, key=lambda part: part.first):
            if part.first > place:
                yield place, part.first
            place = part.first + part.rows
        if place > rows:
            raise ValueError(f"the record of {str(self._out)!r} is damaged: it has more rows than the file has")
        if place < rows:
            yield place, rows

    def add(self, first: int, found: Sequence[Explained]) -> None:
        """Write what was found, then say so."""
        rows = pa.concat_tables([SCHEMA.empty_table(), *(one.rows for one in found)])
        bad = [
            {
                "row": entry.number,
                "reason": _plain(reason),
                "content": _plain(json.dumps(entry.cells, ensure_ascii=False, default=str)[:10_000]),
            }
            for one in found
            for entry, reason in one.bad
        ]
        part = Part(first, sum(one.count for one in found), 0, len(bad), 0)
        sizes = {"bytes": self._write_table(self._out / part.file, rows)}
        if bad:
            (self._folder / ERRORS).mkdir(exist_ok=True)
            table = pa.Table.from_pylist(bad, BAD)
            sizes["bad_bytes"] = self._write_table(self._folder / ERRORS / part.file, table)
        self.parts.append(replace(part, **sizes))
        self._write()

    def _write_table(self, path: Path, table: pa.Table) -> int:
        with written_aside(path, self._folder) as aside:
            pq.write_table(table, aside, compression="zstd", write_page_checksum=True)
        return path.stat().st_size

    def _write(self) -> None:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "whymatch": __version__,
            "job": asdict(self._job),
            "parts": [asdict(part) for part in self.parts],
        }
        with written_aside(self._folder / RECORD) as aside:
            aside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _checked(parts: Sequence[Part]) -> list[Part]:
    """Parts that can be true together."""
    end = 0
    for part in sorted(parts, key=lambda part: part.first):
        if not all(is_int(value) and value >= 0 for value in asdict(part).values()) or part.bad > part.rows:
            raise ValueError(f"a part is {part}")
        if part.first < end:
            raise ValueError(f"two parts stand for row {part.first + 1}")
        end = part.first + part.rows
    return list(parts)


def _plain(text: str) -> str:
    """Without what cannot be written: half a character, as a broken file has them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _hashes(table: Table, names: Sequence[str]) -> NDArray[np.uint64]:
    """Two numbers for each row, which stand for its texts: a million rows are held in sixteen megabytes."""
    numbers = (
        hash_of(str(row.cells.get(name))) if row.bad is None else row.number for row in table.rows() for name in names
    )
    return np.fromiter(numbers, np.uint64).reshape(-1, len(names))


def _repeated(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Those that more than one row has, in order."""
    values, counts = np.unique(hashes, return_counts=True)
    return np.asarray(values[counts > 1])


def _content(path: Path) -> str:
    """What a file holds: a job cannot go on with another."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()

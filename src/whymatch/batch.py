"""Explaining a file of pairs into a Parquet dataset: every row once, whatever happens on the way.

Rows are explained in the order of the file and written in parts. A part is written aside and put in its place, and only
then the job's record, replaced as a whole, says that its rows are done. A job that is started again goes on after the
last row that its record names; a part that it does not name is written over.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from whymatch import Explainer, __version__, models
from whymatch.cluster import Ray
from whymatch.engines import SCHEMA, Entry, Local, OnRay
from whymatch.files import locked, written_aside
from whymatch.remembered import hash_of
from whymatch.tables import FIRST, SECOND, Table

FORMAT, VERSION = "whymatch batch", 1
RECORD = "_job.json"  # readers of datasets pass over names that begin so
ERRORS = "_errors"
TEXTS = "_texts"

WINDOW = 128  # rows that are explained together
PART_ROWS = 4096
PART_SECONDS = 30.0  # what a kill can cost

BAD = pa.schema({"row": pa.int64(), "reason": pa.string(), "content": pa.string()})


@dataclass(frozen=True)
class Job:
    """What is asked for; a folder belongs to one job."""

    pairs: str
    columns: tuple[str, ...]
    words: bool
    top: int
    settings: dict[str, Any]
    identity: str  # of the model
    content: str  # of the file


@dataclass
class Progress:
    """How far a job is, for whoever shows it."""

    rows: int  # in all
    done: int = 0
    bad: int = 0
    parts: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)


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
        window: rows that are explained together.
        ray: the cluster that explains them; None explains them here.
        watch: is told after every window how far the job is.
    """
    if top < 0:
        raise ValueError(f"top={top} is not a number of pairs; give 0 or more")
    out = Path(out)
    table = Table.open(pairs, columns)
    names = table.choose(columns, (FIRST, SECOND))
    job = Job(
        pairs=Path(pairs).name,
        columns=names,
        words=words,
        top=top,
        settings=asdict(explainer.settings),
        identity=models.identity(explainer.model),
        content=_content(Path(pairs)),
    )
    _make(out)
    with locked(out), _told(out):
        progress = _begin(job, out, resume)
        hashes = _hashes(table, names)
        progress.rows = len(hashes)
        if progress.done >= progress.rows:
            return progress
        remaining = islice(table.rows(), progress.done, None)
        windows = _windows((Entry(row, names) for row in remaining), window)
        repeated = _repeated(hashes)
        if ray is None:
            engine: Local | OnRay = Local(explainer, out / TEXTS, repeated, words, top)
        else:
            engine = OnRay(ray, explainer, repeated, words, top, window)
        part: list[dict[str, Any]] = []
        bad: list[dict[str, Any]] = []
        started = time.monotonic()
        waiting = 0
        for explained in engine(windows):
            for entry, found in explained:
                if isinstance(found, str):
                    content = json.dumps(entry.cells, ensure_ascii=False, default=str)
                    bad.append({"row": entry.number, "reason": _plain(found), "content": _plain(content[:10_000])})
                else:
                    part.append(found)
            waiting += len(explained)
            if waiting >= PART_ROWS or time.monotonic() - started >= PART_SECONDS:
                _commit(job, out, progress, waiting, part, bad)
                part, bad, waiting, started = [], [], 0, time.monotonic()
            watch(Progress(progress.rows, progress.done + waiting, progress.bad + len(bad)))
        if waiting:
            _commit(job, out, progress, waiting, part, bad)
        shutil.rmtree(out / TEXTS, ignore_errors=True)
    return progress


# --- the folder ---


def _begin(job: Job, out: Path, resume: bool) -> Progress:
    asked = json.loads(json.dumps(asdict(job)))
    path = out / RECORD
    if not path.exists():
        other = [file.name for file in out.iterdir() if file.name != ".lock"]
        if other:
            raise FileExistsError(f"{str(out)!r} is not empty ({other[0]}), and holds no job; name another folder")
        progress = Progress(0)
        _write(job, out, progress)
        return progress
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT or record["version"] != VERSION:
            raise ValueError(f"its format is {record['format']!r} {record['version']!r}")
        before = record["job"]
        progress = Progress(0, record["done"], record["bad"], record["parts"], record["errors"])
        names = [part["file"] for part in (*progress.parts, *progress.errors)]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the record {str(path)!r} is damaged ({error}); name another folder") from None
    differing = [
        f"{name} was {before.get(name)!r:.80}, is {value!r:.80}"
        for name, value in asked.items()
        if before.get(name) != value
    ]
    if differing:
        raise ValueError(f"{str(out)!r} belongs to another job: {'; '.join(differing)}. Name another folder")
    if not resume:
        raise FileExistsError(f"{str(out)!r} holds this job already, {progress.done:,} rows of it; go on with --resume")
    for name in names:
        if not re.fullmatch(rf"(?:{ERRORS}/)?part-\d{{5,}}\.parquet", str(name)):
            raise ValueError(f"the record {str(path)!r} names {name!r}, which is no part of a job")
    for part in (*progress.parts, *progress.errors):
        file = out / part["file"]
        size = file.stat().st_size if file.is_file() else None
        if size != part["bytes"]:
            found = "is missing" if size is None else f"has {size:,} of {part['bytes']:,} bytes"
            raise ValueError(f"the part {str(file)!r} {found}: name another folder, or restore it")
    # What was being written when the last run ended is not named, and goes.
    named = {out / name for name in names}
    for file in (*out.glob("part-*.parquet"), *out.glob(f"{ERRORS}/*"), *out.glob(".*.parquet"), *out.glob("._job*")):
        if file not in named:
            file.unlink()
    return progress


def _commit(
    job: Job, out: Path, progress: Progress, rows: int, part: list[dict[str, Any]], bad: list[dict[str, Any]]
) -> None:
    """Write what is done, then say so."""
    number = len(progress.parts) + len(progress.errors)
    if part:
        progress.parts.append(_write_part(out, f"part-{number:05d}.parquet", part, SCHEMA))
    if bad:
        (out / ERRORS).mkdir(exist_ok=True)
        progress.errors.append(_write_part(out, f"{ERRORS}/part-{number:05d}.parquet", bad, BAD))
    progress.done += rows
    progress.bad += len(bad)
    _write(job, out, progress)


def _write_part(out: Path, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> dict[str, Any]:
    with written_aside(out / name) as aside:
        pq.write_table(pa.Table.from_pylist(rows, schema), aside, compression="zstd")
    return {"file": name, "rows": len(rows), "bytes": (out / name).stat().st_size}


def _write(job: Job, out: Path, progress: Progress) -> None:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "whymatch": __version__,
        "job": asdict(job),
        "done": progress.done,
        "bad": progress.bad,
        "parts": progress.parts,
        "errors": progress.errors,
    }
    with written_aside(out / RECORD) as aside:
        aside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write to {str(out)!r}: {error.strerror or error}") from None
    if not os.access(out, os.W_OK):
        raise PermissionError(f"cannot write to {str(out)!r}: the folder is not writable")


@contextmanager
def _told(out: Path) -> Iterator[None]:
    """Says what a full disk means for a job."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                error.errno,
                f"the disk is full: the rows that are done in {str(out)!r} are safe; make room, then --resume",
            ) from None
        raise


# --- the file ---


def _plain(text: str) -> str:
    """Without what cannot be written: half a character, as a broken file has them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _windows(entries: Iterable[Entry], size: int) -> Iterator[list[Entry]]:
    iterator = iter(entries)
    while window := list(islice(iterator, size)):
        yield window


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

"""The record of a batch: what was asked for, which rows are done, and in which part of the dataset they are.

The folder of the dataset holds parts and nothing else, so that whatever reads Parquet can read it. The record, and the
table of bad rows, are in a folder beside it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from whymatch import files
from whymatch.corpus.arrow import pa, pq
from whymatch.corpus.parts import Manifest, Stamp, size_of, write_part
from whymatch.settings import is_int

FORMAT, VERSION = "whymatch batch", 2  # version 1 has no errors of entries, and no hashes of parts
SUFFIX = ".job"  # of the name of the job's folder
RECORD = "job.json"
ERRORS = "errors"
TEXTS = "texts"

ROWS = pa.schema(
    {
        "row": pa.int64(),
        "text_a": pa.string(),
        "text_b": pa.string(),
        "score": pa.float64(),
        "error": pa.float64(),
        "entry_error": pa.float64(),
        "tokens_a": pa.list_(pa.string()),
        "tokens_b": pa.list_(pa.string()),
        "top": pa.list_(
            pa.struct({"a": pa.string(), "b": pa.string(), "value": pa.float64(), "i": pa.int32(), "j": pa.int32()})
        ),
        "matrix": pa.list_(pa.list_(pa.float32())),
    }
)
SCORED = ("row", "text_a", "text_b", "score")
ROWS_BEFORE = ROWS.remove(ROWS.get_field_index("entry_error"))  # of version 1
BAD_ROWS = pa.schema({"row": pa.int64(), "reason": pa.string(), "content": pa.string()})


@dataclass(frozen=True)
class BadRow:
    """A row that could not be explained."""

    number: int
    cells: dict[str, Any]
    reason: str


@dataclass(frozen=True)
class Results:
    """The results of some consecutive rows of the file.

    Attributes:
        count: how many rows of the file these are.
        rows: rows of the dataset.
        bad: the rows that could not be explained.
    """

    count: int
    rows: pa.Table
    bad: list[BadRow]


@dataclass(frozen=True)
class Job:
    """The parameters of a job. A folder belongs to one job."""

    columns: tuple[str, ...]
    words: bool
    top: int
    settings: dict[str, Any]
    identity: str  # of the model
    readings: dict[str, Any] | None = None  # how the model reads the two texts; None where it reads them plainly
    content: str = ""  # the hash of the file

    def differences(self, recorded: dict[str, Any]) -> list[str]:
        """List the differences between this job and a recorded one, apart from the file's content."""

        def flatten(job: dict[str, Any]) -> dict[str, Any]:
            return {**{key: value for key, value in job.items() if key != "settings"}, **job["settings"]}

        before = flatten(recorded)
        return [
            f"{name} was {before.get(name)!r:.60}, is {value!r:.60}"
            for name, value in flatten(json.loads(json.dumps(asdict(self)))).items()
            # Settings that did not exist yet when the record was written had the value that they have by default.
            if name != "content" and before.get(name) != value and (name in before or value)
        ]


@dataclass(frozen=True)
class Part:
    """A file of the dataset: the results of consecutive rows of the input."""

    first: int  # row, counted from 0
    rows: int  # of the file
    bytes: int
    bad: int
    bad_bytes: int
    sha256: str | None = None  # records of earlier versions have no hashes
    bad_sha256: str | None = None

    @property
    def file(self) -> str:
        return f"part-{self.first:09d}.parquet"

    def is_whole(self, out: Path, folder: Path) -> bool:
        """Whether its files are there and hold what was written."""
        if not _is_whole(out / self.file, self.bytes, self.sha256, self.rows - self.bad):
            return False
        return not self.bad or _is_whole(folder / ERRORS / self.file, self.bad_bytes, self.bad_sha256, self.bad)


def _is_whole(path: Path, size: int, sha256: str | None, rows: int) -> bool:
    if size_of(path) != size:
        return False
    try:
        if sha256 is not None:
            return files.sha256(path) == sha256
        # Every page has a checksum of its own.
        return len(pq.ParquetFile(path, page_checksum_verification=True).read()) == rows
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return False


def job_folder(out: str | os.PathLike[str]) -> Path:
    """Return the folder of a dataset's job, which is beside the dataset."""
    path = Path(out)
    if path.name in ("", ".."):  # a relative path that does not end with a name
        path = path.resolve()
    return path.with_name(f"{path.name}{SUFFIX}")


class Record:
    """Which rows of a job are done, and where their results are."""

    def __init__(self, job: Job, out: Path, folder: Path, parts: Sequence[Part] = (), content: str = "") -> None:
        self._job = job
        self._out = out
        self._folder = folder
        self._content = content  # of the file that the parts are of
        self._manifest = Manifest(folder / RECORD, FORMAT, VERSION)
        self._version = VERSION
        self.parts = list(parts)

    @classmethod
    def open(cls, job: Job, out: Path, folder: Path, resume: bool) -> Record:
        """Read the record of a job, or make one if the dataset is empty; nothing is written yet.

        Args:
            job: what is asked for, without the file's content.
            out: the folder of the dataset.
            folder: the folder of the job.
            resume: whether the job may have begun already.
        """
        record = cls(job, out, folder)
        for name in (RECORD, ERRORS, TEXTS):
            files.refuse_link(folder / name)
        strange = [file.name for file in folder.iterdir() if file.name != files.LOCK]
        if strange and RECORD not in strange:
            raise FileExistsError(f"{str(folder)!r} is not empty ({strange[0]}), and holds no job; name another folder")
        existing = [file.name for file in out.iterdir()]
        if not existing:  # whatever the record of an earlier job says, its dataset has been deleted
            return record
        if not strange:
            raise FileExistsError(f"{str(out)!r} is not empty ({existing[0]}), and holds no job; name another folder")
        path = folder / RECORD
        try:
            content = record._manifest.read()
            record._version = content["version"]
            before = content["job"]
            differences = job.differences(before)
            record._content = before["content"]
            record.parts = _check_parts([Part(**part) for part in content["parts"]])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"the record {str(path)!r} is damaged ({error}); name another folder") from None
        if differences:
            raise ValueError(f"{str(out)!r} belongs to another job: {'; '.join(differences)}. Name another folder")
        if not resume:
            raise FileExistsError(
                f"{str(out)!r} holds this job already, {record.done:,} rows of it; go on with --resume"
            )
        return record

    def start(self, content: str) -> None:
        """Begin or resume the job for a file with this hash; parts that are damaged are forgotten."""
        if self._content not in ("", content):
            raise ValueError(
                f"{str(self._out)!r} belongs to another job: content was {self._content!r:.60}, is {content!r:.60}. "
                "Name another folder"
            )
        self._job = replace(self._job, content=content)
        damaged = [part for part in self.parts if not part.is_whole(self._out, self._folder)]
        if damaged:
            names = ", ".join(part.file for part in damaged[:3])
            rows = sum(part.rows for part in damaged)
            warnings.warn(
                f"{names} of {str(self._out)!r} is damaged or missing; {rows:,} rows are explained again", stacklevel=3
            )
        self.parts = [part for part in self.parts if part not in damaged]
        self._write()
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

    def first_row(self) -> dict[str, Any] | None:
        """Read the first row that was explained, or None."""
        part = next((part for part in self.parts if part.rows > part.bad), None)
        if part is None:
            return None
        rows: list[dict[str, Any]] = pq.read_table(self._out / part.file, columns=list(SCORED)).slice(0, 1).to_pylist()
        return rows[0]

    def missing(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield the gaps between the parts of a file with ``rows`` rows: the first row of each, and the end."""
        place = 0
        for part in sorted(self.parts, key=lambda part: part.first):
            if part.first > place:
                yield place, part.first
            place = part.first + part.rows
        if place > rows:
            raise ValueError(f"the record of {str(self._out)!r} is damaged: it has more rows than the file has")
        if place < rows:
            yield place, rows

    def add(self, first: int, results: Sequence[Results]) -> None:
        """Write the results of consecutive rows as a part, and then record it."""
        rows = pa.concat_tables([ROWS.empty_table(), *(each.rows for each in results)])
        if self._version == 1:  # all parts of a dataset have the same columns
            rows = rows.select(ROWS_BEFORE.names)
        bad = [
            {
                "row": row.number,
                "reason": _encodable(row.reason),
                "content": _encodable(json.dumps(row.cells, ensure_ascii=False, default=str)[:10_000]),
            }
            for each in results
            for row in each.bad
        ]
        part = Part(first, sum(each.count for each in results), 0, len(bad), 0)
        stamp = self._write_table(self._out / part.file, rows)
        part = replace(part, bytes=stamp.bytes, sha256=stamp.sha256)
        if bad:
            (self._folder / ERRORS).mkdir(exist_ok=True)
            stamp = self._write_table(self._folder / ERRORS / part.file, pa.Table.from_pylist(bad, BAD_ROWS))
            part = replace(part, bad_bytes=stamp.bytes, bad_sha256=stamp.sha256)
        self.parts.append(part)
        self._write()

    def _write_table(self, path: Path, table: pa.Table) -> Stamp:
        def write(unfinished: Path) -> None:
            pq.write_table(table, unfinished, compression="zstd", write_page_checksum=True)

        return write_part(path, write, self._folder)

    def _write(self) -> None:
        parts = [asdict(part) for part in self.parts]
        self._manifest.write({"version": self._version, "job": asdict(self._job), "parts": parts})

    def finish(self) -> None:
        """Delete what only the job itself needed."""
        if not self.parts:  # a file without rows gives a dataset without rows
            self.add(0, [])
        shutil.rmtree(self._folder / TEXTS, ignore_errors=True)


def _check_parts(parts: Sequence[Part]) -> list[Part]:
    """Check that recorded parts are possible, by themselves and together."""
    end = 0
    for part in sorted(parts, key=lambda part: part.first):
        counts = (part.first, part.rows, part.bytes, part.bad, part.bad_bytes)
        if not all(is_int(value) and value >= 0 for value in counts) or part.bad > part.rows:
            raise ValueError(f"a part is {part}")
        if not all(value is None or re.fullmatch("[0-9a-f]{64}", value) for value in (part.sha256, part.bad_sha256)):
            raise ValueError(f"a part is {part}")
        if part.first < end:
            raise ValueError(f"two parts stand for row {part.first + 1}")
        end = part.first + part.rows
    return list(parts)


def _encodable(text: str) -> str:
    """Escape lone surrogates, which a broken file may hold and UTF-8 cannot."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

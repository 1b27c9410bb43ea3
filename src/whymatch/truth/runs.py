"""Many tests of many settings: planned, estimated, resumable."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whymatch.files import make_folder
from whymatch.progress import bar
from whymatch.truth.asking import append_line, read_lines
from whymatch.truth.judging import Test, judge, key_of
from whymatch.truth.results import Result, Row
from whymatch.truth.subjects import Subject, describe


@dataclass(frozen=True, eq=False)
class Job:
    """One test of one subject on some items.

    Attributes:
        data: the name and split of the data, for the result.
        identity: the hash of the model that is explained and asked.
    """

    test: Test[Any]
    subject: Subject
    items: Sequence[Any]
    data: Mapping[str, Any]
    identity: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What the result depends on, but for the weights, and how many items there are."""
        return {"test": self.test.name, **self.test.settings, **self.data, **describe(self.subject)}

    @property
    def slug(self) -> str:
        """The name of the job's files: readable, and its own."""
        settings = self.settings
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]
        parts = [self.test.name, Path(settings["model"]).name, settings["subject"], str(settings.get("split") or "all")]
        name = re.sub(r"[^\w.]+", "-", "-".join(parts)).strip("-")[:100]
        return f"{name}-{digest}"


@dataclass(frozen=True)
class Work:
    """What is left of a job."""

    job: Job
    out: Path

    @property
    def rows(self) -> dict[str, Row]:
        """What was measured of this model; a model that was trained again under its name is another."""
        lines = {key: row for key, row in read_lines(self._file).items() if isinstance(row, dict)}
        return {key.removeprefix(self._of): row for key, row in lines.items() if key.startswith(self._of)}

    @property
    def _of(self) -> str:
        """What the keys of the model's rows begin with."""
        return f"{self.job.identity[:16]} "

    @property
    def _file(self) -> Path:
        return self.out / "rows" / f"{self.job.slug}.jsonl"

    def pending(self) -> list[Any]:
        """The items that have not been measured."""
        known = self.rows
        return [item for item in self.job.items if key_of(item) not in known]

    def run(self, items: Sequence[Any], counted: Callable[[Row], None] = lambda _: None) -> Result:
        """Measure items, keeping each as soon as it is known, and save the result so far."""

        def keep(row: Row) -> None:
            append_line(self._file, self._of + row["key"], row)
            counted(row)

        settings = {**self.job.data, "model": self.job.settings["model"]}
        result = judge(self.job.test, self.job.subject, items, settings=settings, known=self.rows, keep=keep)
        if len(items) == len(self.job.items):
            result.save(self.out / f"{self.job.slug}.json")
        return result


def run(
    jobs: Sequence[Job], out: Path, say: Callable[[str], None] = lambda _: None, progress: bool = False
) -> Iterator[Result]:
    """Run jobs, one after the other; what an earlier run has measured is not measured again.

    One pair of each job comes first, to tell how long everything will take.
    """
    make_folder(out)
    make_folder(out / "rows")
    works = [Work(job, out) for job in jobs]
    left = [(work, work.pending()) for work in works]
    total = sum(len(items) for _, items in left)
    if total:
        finished = sum(len(job.items) for job in jobs) - total
        say(f"{len(jobs)} jobs, {total} pairs to do, {finished} done before; one of each first, to estimate the time")
        seconds = 0.0
        for work, items in left:
            if not items:
                continue
            start = time.perf_counter()
            # Not the first: what a first call prepares would count for every pair.
            work.run(items[:1])
            if len(items) > 1:
                start = time.perf_counter()
                work.run(items[1:2])
            each = time.perf_counter() - start
            seconds += each * max(0, len(items) - 2)
            say(f"  {work.job.slug}: {len(items)} pairs, {each:.2f} s each, {clock(each * len(items))}")
        say(f"about {clock(seconds)} in all")
    done = total - sum(len(work.pending()) for work in works)
    with bar("pairs", total, enabled=progress and total > 0) as counter:

        def count(_: Row) -> None:
            nonlocal done
            done += 1
            counter.update(done)

        for work in works:
            yield work.run(work.job.items, count)


def clock(seconds: float) -> str:
    """Write a time as people do."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def read_results(out: Path) -> list[Result]:
    """Read the results in a folder, in the order of their names; files with names of another form are not ours."""
    paths = sorted(path for path in out.glob("*.json") if re.search(r"-[0-9a-f]{8}\.json$", path.name))
    return [Result.load(path) for path in paths]

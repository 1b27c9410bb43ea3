"""Explain a file of pairs into a Parquet dataset: each row exactly once, whatever happens in between.

Rows are explained in the order of the file and written in parts. A job that is started again explains the rows that no
whole part holds, and no others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from whymatch import Explainer
from whymatch.corpus.local import LocalEngine, PairRow, Task
from whymatch.corpus.ray import Ray, RayEngine
from whymatch.corpus.record import TEXTS, Job, Record, Results, job_folder
from whymatch.corpus.tables import FIRST, SECOND, Table, warn_of_long_rows
from whymatch.files import lock_folder, make_folder
from whymatch.reading.readings import PLAIN, Both, Readings, describe_readings
from whymatch.results.ranking import lengths_of
from whymatch.settings import check_top

WINDOW = 128  # rows that are explained together, at most
PART_ROWS = 4096
PART_SECONDS = 30.0  # the work that a kill can cost
PART_BYTES = 64 * 2**20  # of results that are held in memory
SAME = 1e-3  # how far a score may be from what a black box gave the pair before


@dataclass(frozen=True)
class Progress:
    """The progress of a job: all of its rows, those that are done, and how many of these are bad."""

    rows: int
    done: int
    bad: int


def run_batch(
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
    task: Both[str | None] = None,
    prompt_name: Both[str | None] = None,
    prompt: Both[str | None] = None,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Explain every pair of a file into a folder; return how many rows are done, and how many of them are bad.

    Args:
        pairs: a table with two columns of texts.
        out: the folder of the dataset.
        explainer: explains the pairs.
        columns: the names of the two columns; None looks for usual ones.
        words: merge tokens into words.
        top: how many of the strongest entries each row lists.
        resume: continue a job that was interrupted.
        window: how many rows are explained together, at most.
        ray: the cluster that explains them; None explains them in this process.
        task, prompt_name, prompt: how the model reads the two texts, as for :meth:`Explainer.explain`; by default the
            first is a query and the second a document where the model reads them in different ways.
        watch: called after every window.
    """
    check_top(top, what="pairs", least=0)
    explainer.check_portable("a batch")
    readings = explainer.readings(task, prompt_name, prompt)
    table = Table.open(pairs, columns)
    names = table.choose(columns, (FIRST, SECOND))
    out = make_folder(out)
    folder = job_folder(out)
    if out.stat().st_dev != folder.parent.stat().st_dev:  # a part is renamed from one to the other, in one step
        raise ValueError(f"{str(out)!r} is a disk of its own, and its job's folder is on another; name a folder on it")
    with lock_folder(make_folder(folder)):
        identity = explainer.identity
        described = None if readings == PLAIN else describe_readings(readings)
        job = Job(names, words, top, asdict(explainer.settings), identity, described)
        record = Record.open(job, out, folder, resume)
        scan = table.scan(names)
        record.start(scan.sha256)
        _check_encoder(record, explainer, readings)
        warn_of_long_rows(table.path, scan.long_rows)
        if missing := list(record.missing(len(scan))):
            work = Task(words, top, window, _find_repeated(scan.hashes), readings)
            engine: LocalEngine | RayEngine
            if ray is None:
                engine = LocalEngine(explainer, identity, work, folder / TEXTS)
            else:
                engine = RayEngine(ray, explainer, identity, work)
            for first, end in missing:
                rows = (PairRow.read(row, names) for row in table.rows_between(first, end, names, scan))
                for done, bad in _write_parts(engine(rows), record, first):
                    watch(Progress(len(scan), done, bad))
        record.finish()
    return Progress(len(scan), record.done, record.bad)


def _check_encoder(record: Record, explainer: Explainer, readings: Readings) -> None:
    """Raise an error if a black box, of which only the name is known, is not what scored the rows that are done."""
    row = record.first_row() if explainer.settings.path == "shapley" else None
    if row is None:
        return
    options = [{"task": reading.task, "prompt": reading.prompt} for reading in readings]
    a, b = (explainer.embed([row[f"text_{side}"]], **options[i])[0] for i, side in enumerate("ab"))
    score = float(a @ b) / (
        1.0 if explainer.settings.similarity == "dot" else float(np.prod(lengths_of(np.stack([a, b]))))
    )
    if abs(score - row["score"]) > SAME * max(1.0, abs(score)):
        raise ValueError(
            f"the rows that are done were explained by another encoder: {explainer.settings.model!r} gives row "
            f"{row['row']} the score {score:.4f}, and it is stored with {row['score']:.4f}. Name another folder"
        )


def _write_parts(results: Iterator[Results], record: Record, first: int) -> Iterator[tuple[int, int]]:
    """Write results in parts, starting at row ``first``; yield the numbers of finished and of bad rows after each."""
    waiting: list[Results] = []
    started = time.monotonic()
    for each in results:
        waiting.append(each)
        rows = sum(window.count for window in waiting)
        size = sum(window.rows.nbytes for window in waiting)
        if rows >= PART_ROWS or size >= PART_BYTES or time.monotonic() - started >= PART_SECONDS:
            record.add(first, waiting)
            first, rows, waiting, started = first + rows, 0, [], time.monotonic()
        yield record.done + rows, record.bad + sum(len(window.bad) for window in waiting)
    if waiting:
        record.add(first, waiting)


def _find_repeated(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes that occur more than once, sorted."""
    values, counts = np.unique(hashes, return_counts=True)
    return np.asarray(values[counts > 1])

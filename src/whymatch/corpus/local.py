"""Explain rows of a table in this process, window by window."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch import Explainer, Explanation
from whymatch.corpus.arrow import pa
from whymatch.corpus.cache import Cache
from whymatch.corpus.record import ROWS, BadRow, Results
from whymatch.corpus.tables import Row
from whymatch.reading.inputs import EncodeOptions
from whymatch.results.decomposition import Decomposition

WINDOW_SECONDS = 5.0  # of work between two reports of progress


@dataclass(frozen=True)
class PairRow:
    """A row of the file as a pair of texts, or the reason why it is not one."""

    number: int
    cells: dict[str, Any]
    texts: tuple[str, str]
    problem: str | None

    @classmethod
    def read(cls, row: Row, columns: Sequence[str]) -> PairRow:
        (a, problem_a), (b, problem_b) = (row.text(name) for name in columns)
        return cls(row.number, row.cells, (a, b), problem_a or problem_b)

    def reject(self, reason: str) -> BadRow:
        return BadRow(self.number, self.cells, reason)


@dataclass(frozen=True)
class Task:
    """What to do with each pair.

    Attributes:
        words: whether tokens are merged into words.
        top: how many of the strongest entries a row lists.
        window: how many rows are explained together, at most.
        shared: sorted hashes of the texts that appear in more than one row.
        readings: how the model reads the first texts, and the second.
    """

    words: bool
    top: int
    window: int
    shared: NDArray[np.uint64]
    readings: tuple[EncodeOptions, EncodeOptions] = (EncodeOptions(), EncodeOptions())

    def is_shared(self, key: int) -> bool:
        place = int(np.searchsorted(self.shared, np.uint64(key)))
        return place < len(self.shared) and int(self.shared[place]) == key


class LocalEngine:
    """Explains rows in this process.

    Args:
        explainer: explains the pairs.
        identity: the hash of its model.
        task: what to do with each pair.
        folder: where the decompositions of shared texts are kept.
    """

    def __init__(self, explainer: Explainer, identity: str, task: Task, folder: Path) -> None:
        self._task = task
        # An asymmetric model reads a text as a query differently than as a document.
        first, second = task.readings
        named = {"text": first} if first == second else {"query": first, "document": second}
        caches = [Cache(explainer, identity, folder / name, reading, task.is_shared) for name, reading in named.items()]
        self._caches = (caches[0], caches[-1])  # of the two sides of a pair

    def __call__(self, rows: Iterable[PairRow]) -> Iterator[Results]:
        """Explain rows in windows, which grow while each takes little time."""
        remaining = iter(rows)
        size = min(8, self._task.window)
        while window := list(islice(remaining, size)):
            started = time.perf_counter()
            yield self.explain(window)
            affordable = len(window) * WINDOW_SECONDS / max(time.perf_counter() - started, 1e-9)
            size = max(1, min(2 * size, self._task.window, int(affordable)))

    def explain(self, rows: Sequence[PairRow]) -> Results:
        """Explain the rows of one window."""
        good = [row for row in rows if row.problem is None]
        sides: list[dict[str, Decomposition]] = [{}, {}]
        problems: dict[str, str] = {}
        for cache in dict.fromkeys(self._caches):
            numbers = [i for i in (0, 1) if self._caches[i] is cache]
            texts = list(dict.fromkeys(row.texts[i] for row in good for i in numbers))
            kept = {text: each for text in texts if (each := cache.get(text)) is not None}
            new = _decompose(cache, [text for text in texts if text not in kept], problems)
            cache.keep(list(new.values()))
            for i in numbers:
                sides[i] = kept | new
        numbers, explanations, bad = [], [], []
        for row in rows:
            (a, b), (left, right) = row.texts, sides
            if row.problem is not None:
                bad.append(row.reject(row.problem))
            elif a not in left or b not in right:
                bad.append(row.reject(problems[b if a in left else a]))
            else:
                numbers.append(row.number)
                explanations.append(Explainer.pair(left[a], right[b]))
        return Results(len(rows), to_table(numbers, explanations, self._task), bad)


def _decompose(cache: Cache, texts: Sequence[str], problems: dict[str, str]) -> dict[str, Decomposition]:
    """Decompose texts; add the reason to ``problems`` for each that cannot be decomposed."""
    if not texts:
        return {}
    try:
        return cache.decompose(texts)
    except (ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
        # Running out of memory is a RuntimeError of torch, like much else that is not a text's fault.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        if len(texts) == 1:
            problems[texts[0]] = str(error).partition("\n")[0] or type(error).__name__
            return {}
    middle = len(texts) // 2
    return _decompose(cache, texts[:middle], problems) | _decompose(cache, texts[middle:], problems)


def to_table(numbers: Sequence[int], explanations: Sequence[Explanation], task: Task) -> pa.Table:
    """Convert explanations to rows of the dataset."""
    if not explanations:
        return ROWS.empty_table()
    views = [why.words() if task.words else why for why in explanations]
    columns = {
        "row": numbers,
        "text_a": [why.a.text for why in explanations],
        "text_b": [why.b.text for why in explanations],
        "score": [why.score for why in explanations],
        "error": [why.error for why in explanations],
        "entry_error": [why.entry_error for why in explanations],
        "tokens_a": [view.a.tokens for view in views],
        "tokens_b": [view.b.tokens for view in views],
        "top": [
            [{"a": p.token_a, "b": p.token_b, "value": p.value, "i": p.i, "j": p.j} for p in view.top(task.top)]
            for view in views
        ],
    }
    arrays = [pa.array(column, ROWS.field(name).type) for name, column in columns.items()]
    # Matrices are converted array by array: as Python numbers they would take ten times the memory.
    values = pa.array(np.concatenate([view.matrix.astype(np.float32).ravel() for view in views]))
    heights = [view.matrix.shape[0] for view in views]
    widths = np.repeat([view.matrix.shape[1] for view in views], heights)
    lines = pa.ListArray.from_arrays(_ends(widths), values)
    return pa.Table.from_arrays([*arrays, pa.ListArray.from_arrays(_ends(heights), lines)], schema=ROWS)


def _ends(sizes: Any) -> pa.Array:
    return pa.array(np.cumsum([0, *sizes]), pa.int32())

"""Explaining windows of rows: in this process, or on a Ray cluster."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whymatch import Explainer, Explanation, models
from whymatch.cluster import Ray, loaded, streamed
from whymatch.decomposition import Decomposition, Settings
from whymatch.remembered import Remembered
from whymatch.tables import Row, text_of

SCHEMA = pa.schema(
    {
        "row": pa.int64(),
        "text_a": pa.string(),
        "text_b": pa.string(),
        "score": pa.float64(),
        "error": pa.float64(),
        "tokens_a": pa.list_(pa.string()),
        "tokens_b": pa.list_(pa.string()),
        "top": pa.list_(
            pa.struct({"a": pa.string(), "b": pa.string(), "value": pa.float64(), "i": pa.int32(), "j": pa.int32()})
        ),
        "matrix": pa.list_(pa.list_(pa.float32())),
    }
)


WINDOW_SECONDS = 5.0  # of work between two signs of life


class Entry:
    """One row of the file: a pair, or why it is none."""

    def __init__(self, row: Row, names: Sequence[str]) -> None:
        self.number = row.number
        self.cells = row.cells
        (a, wrong_a), (b, wrong_b) = (text_of(row, name) for name in names)
        self.pair = (a, b)
        self.bad = wrong_a or wrong_b


@dataclass(frozen=True)
class Explained:
    """What became of some rows of the file that follow each other."""

    count: int
    rows: pa.Table  # of the dataset
    bad: list[tuple[Entry, str]]  # those that gave none, and why


class Local:
    """Explains rows in this process."""

    def __init__(
        self,
        folder: Path,
        explainer: Explainer,
        repeated: NDArray[np.uint64],
        words: bool,
        top: int,
        window: int,
    ) -> None:
        self._words = words
        self._top = top
        self._window = window

        def wanted(key: int) -> bool:
            place = int(np.searchsorted(repeated, np.uint64(key)))
            return place < len(repeated) and int(repeated[place]) == key

        # An asymmetric model reads a text as a query otherwise than as a document.
        tasks = ("query", "document") if explainer.asymmetric else (None,)
        each = [Remembered(explainer, folder / (task or "text"), task, wanted) for task in tasks]
        self._sides = (each[0], each[-1])

    def __call__(self, entries: Iterable[Entry]) -> Iterator[Explained]:
        """Rows in windows that grow as long as they take little time."""
        remaining = iter(entries)
        size = min(8, self._window)
        while window := list(islice(remaining, size)):
            started = time.perf_counter()
            yield self.explain(window)
            fitting = len(window) * WINDOW_SECONDS / max(time.perf_counter() - started, 1e-9)
            size = max(1, min(2 * size, self._window, int(fitting)))

    def explain(self, entries: Sequence[Entry]) -> Explained:
        good = [entry for entry in entries if entry.bad is None]
        known: list[dict[str, Decomposition]] = [{}, {}]
        wrong: dict[str, str] = {}
        for side in dict.fromkeys(self._sides):
            sides = [i for i in (0, 1) if self._sides[i] is side]
            texts = list(dict.fromkeys(entry.pair[i] for entry in good for i in sides))
            recalled = {text: dec for text in texts if (dec := side.recall(text)) is not None}
            derived = _derived(side, [text for text in texts if text not in recalled], wrong)
            side.keep(list(derived.values()))
            for i in sides:
                known[i] = recalled | derived
        numbers, found, bad = [], [], []
        for entry in entries:
            (a, b), (left, right) = entry.pair, known
            if entry.bad is not None:
                bad.append((entry, entry.bad))
            elif a not in left or b not in right:
                bad.append((entry, wrong[b if a in left else a]))
            else:
                numbers.append(entry.number)
                found.append(Explainer.pair(left[a], right[b]))
        return Explained(len(entries), table_of(numbers, found, self._words, self._top), bad)


def _derived(side: Remembered, texts: Sequence[str], wrong: dict[str, str]) -> dict[str, Decomposition]:
    """Decompose texts; one that cannot be is named in ``wrong``, and takes no other with it."""
    if not texts:
        return {}
    try:
        return side.derive(texts)
    except (ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
        # Torch has no other error for too little memory. Whatever else it means is no fault of a text's.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        if len(texts) == 1:
            wrong[texts[0]] = str(error).partition("\n")[0] or type(error).__name__
            return {}
    middle = len(texts) // 2  # halves find it soon
    return _derived(side, texts[:middle], wrong) | _derived(side, texts[middle:], wrong)


def table_of(numbers: Sequence[int], found: Sequence[Explanation], words: bool, top: int) -> pa.Table:
    """Rows of the dataset."""
    if not found:
        return SCHEMA.empty_table()
    views = [why.words() if words else why for why in found]
    columns = {
        "row": numbers,
        "text_a": [why.text_a for why in found],
        "text_b": [why.text_b for why in found],
        "score": [why.score for why in found],
        "error": [why.error for why in found],
        "tokens_a": [view.tokens_a for view in views],
        "tokens_b": [view.tokens_b for view in views],
        "top": [
            [{"a": p.token_a, "b": p.token_b, "value": p.value, "i": p.i, "j": p.j} for p in view.top(top)]
            for view in views
        ],
    }
    arrays = [pa.array(column, SCHEMA.field(name).type) for name, column in columns.items()]
    # Matrices go from array to array: as Python's numbers they would take ten times the memory.
    values = pa.array(np.concatenate([view.matrix.astype(np.float32).ravel() for view in views]))
    widths = np.repeat([view.matrix.shape[1] for view in views], [view.matrix.shape[0] for view in views])
    heights = [view.matrix.shape[0] for view in views]
    lines = pa.ListArray.from_arrays(_ends(widths), values)
    return pa.Table.from_arrays([*arrays, pa.ListArray.from_arrays(_ends(heights), lines)], schema=SCHEMA)


def _ends(sizes: Any) -> pa.Array:
    return pa.array(np.cumsum([0, *sizes]), pa.int32())


class OnRay:
    """Explains rows on a cluster, in order."""

    def __init__(
        self, ray: Ray, explainer: Explainer, repeated: NDArray[np.uint64], words: bool, top: int, window: int
    ) -> None:
        self._ray = ray
        self._window = window
        self._worker = {
            "settings": explainer.settings,
            "identity": models.identity(explainer.model),
            "repeated": repeated,
            "words": words,
            "top": top,
        }

    def __call__(self, entries: Iterable[Entry]) -> Iterator[Explained]:
        remaining = list(entries)
        good = [entry for entry in remaining if entry.bad is None]
        table = pa.table(
            {
                "row": [entry.number for entry in good],
                "a": [entry.pair[0] for entry in good],
                "b": [entry.pair[1] for entry in good],
            }
        )
        place = 0
        for block in streamed(self._ray, table, Worker, self._worker, self._window):
            reasons = dict(zip(block["row"].to_pylist(), block["reason"].to_pylist(), strict=True))
            first, bad = place, []
            for number, reason in reasons.items():
                # Rows that could not be read were not sent; they come before the one that has come back.
                while remaining[place].number != number:
                    bad.append(_unread(remaining[place]))
                    place += 1
                if reason is not None:
                    bad.append((remaining[place], reason))
                place += 1
            rows = block.filter(block["reason"].is_null()).drop_columns("reason").cast(SCHEMA)
            yield Explained(place - first, rows, bad)
        if rest := remaining[place:]:
            yield Explained(len(rest), SCHEMA.empty_table(), [_unread(entry) for entry in rest])


def _unread(entry: Entry) -> tuple[Entry, str]:
    if entry.bad is None:
        raise RuntimeError(f"row {entry.number} was sent to the cluster, and did not come back")
    return entry, entry.bad


class Worker:
    """An actor: a model, loaded once, that explains one window after another."""

    def __init__(self, settings: Settings, identity: str, repeated: NDArray[np.uint64], words: bool, top: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name) / "texts"
        self._local = Local(folder, loaded(settings, identity), repeated, words, top, window=1)

    def __call__(self, batch: pa.Table) -> pa.Table:
        entries = [Entry(Row(one["row"], {"a": one["a"], "b": one["b"]}), ("a", "b")) for one in batch.to_pylist()]
        found = self._local.explain(entries)
        reasons = pa.table({"row": [entry.number for entry, _ in found.bad], "reason": [why for _, why in found.bad]})
        good = found.rows.append_column("reason", pa.nulls(len(found.rows), pa.string()))
        if not found.bad:
            return good
        return pa.concat_tables([good, reasons], promote_options="default").sort_by("row")

"""Explaining windows of rows: in this process, or on a Ray cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whymatch import Explainer, Explanation, models
from whymatch.cluster import Ray, loaded, streamed
from whymatch.decomposition import Decomposition, Settings
from whymatch.remembered import Remembered
from whymatch.tables import Row
from whymatch.text import check_text

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


class Entry:
    """One row of the file: a pair, or why it is none."""

    def __init__(self, row: Row, names: Sequence[str]) -> None:
        self.number = row.number
        self.cells = row.cells
        self.bad = row.bad
        self.pair = ("", "")
        if self.bad is None:
            found = [row.cells.get(name) for name in names]
            for name, text in zip(names, found, strict=True):
                if not isinstance(text, str):
                    self.bad = f"{name} is {'missing' if text is None else f'no text: {text!r:.60}'}"
                    return
                try:
                    check_text(text)
                except (TypeError, ValueError) as error:
                    self.bad = str(error)
                    return
            self.pair = (str(found[0]), str(found[1]))


class Local:
    """Explains windows of rows in this process."""

    def __init__(self, explainer: Explainer, folder: Path, repeated: NDArray[np.uint64], words: bool, top: int) -> None:
        self._words = words
        self._top = top

        def wanted(key: int) -> bool:
            place = int(np.searchsorted(repeated, np.uint64(key)))
            return place < len(repeated) and int(repeated[place]) == key

        # An asymmetric model reads a text as a query otherwise than as a document.
        tasks = ("query", "document") if explainer.asymmetric else (None,)
        each = [Remembered(explainer, folder / (task or "text"), task, wanted) for task in tasks]
        self._sides = (each[0], each[-1])

    def __call__(self, windows: Iterator[list[Entry]]) -> Iterator[list[tuple[Entry, Any]]]:
        for window in windows:
            found = self._explained([entry for entry in window if entry.bad is None])
            yield [(entry, entry.bad if entry.bad is not None else found[entry.number]) for entry in window]

    def _explained(self, entries: Sequence[Entry]) -> dict[int, Any]:
        """A row of the dataset, or why there is none, for each entry by its number."""
        known: list[dict[str, Decomposition]] = [{}, {}]
        bad: dict[str, str] = {}
        for side in dict.fromkeys(self._sides):
            sides = [i for i in (0, 1) if self._sides[i] is side]
            texts = list(dict.fromkeys(entry.pair[i] for entry in entries for i in sides))
            recalled = {text: dec for text in texts if (dec := side.recall(text)) is not None}
            derived = _derived(side, [text for text in texts if text not in recalled], bad)
            side.keep(list(derived.values()))
            for i in sides:
                known[i] = recalled | derived
        rows: dict[int, Any] = {}
        for entry in entries:
            (a, b), (left, right) = entry.pair, known
            wrong = [bad[text] for text, there in ((a, left), (b, right)) if text not in there]
            rows[entry.number] = wrong[0] if wrong else self._row(entry, left[a], right[b])
        return rows

    def _row(self, entry: Entry, a: Decomposition, b: Decomposition) -> dict[str, Any]:
        return row_of(entry, Explainer.pair(a, b), self._words, self._top)


def _derived(side: Remembered, texts: Sequence[str], bad: dict[str, str]) -> dict[str, Decomposition]:
    """Decompose texts; one that cannot be is named in ``bad``, and takes no other with it."""
    if not texts:
        return {}
    try:
        return side.derive(texts)
    except (ValueError, ArithmeticError) as error:
        if len(texts) == 1:
            bad[texts[0]] = str(error)
            return {}
    middle = len(texts) // 2  # halves find it soon
    return _derived(side, texts[:middle], bad) | _derived(side, texts[middle:], bad)


def row_of(entry: Entry, why: Explanation, words: bool, top: int) -> dict[str, Any]:
    """A row of the dataset."""
    view = why.words() if words else why
    return {
        "row": entry.number,
        "text_a": why.text_a,
        "text_b": why.text_b,
        "score": why.score,
        "error": why.error,
        "tokens_a": list(view.tokens_a),
        "tokens_b": list(view.tokens_b),
        "top": [{"a": p.token_a, "b": p.token_b, "value": p.value, "i": p.i, "j": p.j} for p in view.top(top)],
        "matrix": view.matrix.astype(np.float32).tolist(),
    }


class OnRay:
    """Explains windows of rows on a cluster, in order."""

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

    def __call__(self, windows: Iterator[list[Entry]]) -> Iterator[list[tuple[Entry, Any]]]:
        entries = [entry for window in windows for entry in window]
        good = [entry for entry in entries if entry.bad is None]
        table = pa.table(
            {
                "row": [entry.number for entry in good],
                "a": [entry.pair[0] for entry in good],
                "b": [entry.pair[1] for entry in good],
            }
        )
        blocks = streamed(self._ray, table, Worker, self._worker, self._window)
        return self._merged(entries, (row for block in blocks for row in block.to_pylist()))

    def _merged(self, entries: Sequence[Entry], results: Iterator[dict[str, Any]]) -> Iterator[list[tuple[Entry, Any]]]:
        """Every row with what was found for it, in the order of the file."""
        for low in range(0, len(entries), self._window):
            explained: list[tuple[Entry, Any]] = []
            for entry in entries[low : low + self._window]:
                if entry.bad is not None:
                    explained.append((entry, entry.bad))
                    continue
                row = next(results)
                if row["row"] != entry.number:
                    raise RuntimeError(f"row {entry.number} was expected of the cluster, and row {row['row']} came")
                reason = row.pop("reason")
                explained.append((entry, row if reason is None else reason))
            yield explained


class Worker:
    """An actor: a model, loaded once, that explains one window after another."""

    def __init__(self, settings: Settings, identity: str, repeated: NDArray[np.uint64], words: bool, top: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name) / "texts"
        self._local = Local(loaded(settings, identity), folder, repeated, words, top)

    def __call__(self, batch: pa.Table) -> pa.Table:
        entries = [Entry(Row(one["row"], {"a": one["a"], "b": one["b"]}), ("a", "b")) for one in batch.to_pylist()]
        (explained,) = self._local(iter([entries]))
        rows = [
            {"row": entry.number, "reason": found} if isinstance(found, str) else {**found, "reason": None}
            for entry, found in explained
        ]
        return pa.Table.from_pylist(rows, SCHEMA.append(pa.field("reason", pa.string())))

"""The same jobs on a Ray cluster: Ray Data hands windows of rows to actors, each of which loads the model once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whymatch import Explainer, models
from whymatch.batch import SCHEMA, Entry, Local, Ray
from whymatch.decomposition import Settings
from whymatch.tables import Row

BLOCK_WINDOWS = 4  # windows in a piece of the dataset: what is done again where a worker dies


class Cluster:
    """Explains windows of rows, in order, on a cluster."""

    def __init__(
        self, ray: Ray, explainer: Explainer, repeated: NDArray[np.uint64], words: bool, top: int, window: int
    ) -> None:
        try:
            import_module("ray.data")
        except ImportError as error:
            raise ModuleNotFoundError(
                f"this engine needs the extra ray ({error}): pip install 'whymatch[ray]'"
            ) from None
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
        import ray

        entries = [entry for window in windows for entry in window]
        good = [entry for entry in entries if entry.bad is None]
        started = not ray.is_initialized()
        if started:
            ray.init(address=self._ray.address, log_to_driver=False, include_dashboard=False)
        try:
            yield from self._merged(entries, self._results(good) if good else iter(()))
        finally:
            if started:
                ray.shutdown()

    def _results(self, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
        import ray

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        size = BLOCK_WINDOWS * self._window
        blocks = [
            pa.table(
                {
                    "row": [entry.number for entry in entries[i : i + size]],
                    "a": [entry.pair[0] for entry in entries[i : i + size]],
                    "b": [entry.pair[1] for entry in entries[i : i + size]],
                }
            )
            for i in range(0, len(entries), size)
        ]
        spare = ray.available_resources()
        cores = int(spare.get("CPU", 1) // max(self._ray.num_cpus, 1e-9)) if self._ray.num_cpus else len(blocks)
        workers = min(self._ray.workers or max(1, cores), len(blocks))
        found = ray.data.from_arrow(blocks).map_batches(
            Worker,
            fn_constructor_kwargs=self._worker,
            batch_size=self._window,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=self._ray.num_cpus,
            num_gpus=self._ray.num_gpus or None,
        )
        for block in found.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
            yield from block.to_pylist()

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
        explainer = Explainer.with_settings(settings)
        if models.identity(explainer.model) != identity:
            raise ValueError(f"the model {settings.model!r} of this worker is another than that of the job")
        self._folder = tempfile.TemporaryDirectory()
        self._local = Local(explainer, Path(self._folder.name) / "texts", repeated, words, top)

    def __call__(self, batch: pa.Table) -> pa.Table:
        entries = [Entry(Row(one["row"], {"a": one["a"], "b": one["b"]}), ("a", "b")) for one in batch.to_pylist()]
        (explained,) = self._local(iter([entries]))
        rows = [
            {"row": entry.number, "reason": found} if isinstance(found, str) else {**found, "reason": None}
            for entry, found in explained
        ]
        return pa.Table.from_pylist(rows, SCHEMA.append(pa.field("reason", pa.string())))

"""A Ray cluster: Ray Data hands pieces of a table to actors, each of which loads the model once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa

from whymatch import Explainer, models
from whymatch.decomposition import Settings


@dataclass(frozen=True)
class Ray:
    """A cluster, and how much of it to use."""

    address: str | None = None  # None: one that is started on this machine
    workers: int | None = None  # None: as many as there are cores for
    num_cpus: float = 1.0  # of each
    num_gpus: float = 0.0

    def __post_init__(self) -> None:  # before anything is written
        try:
            import_module("ray.data")
        except ImportError as error:
            raise ModuleNotFoundError(
                f"this engine needs the extra ray ({error}): pip install 'whymatch[ray]'"
            ) from None


def streamed(
    cluster: Ray, table: pa.Table, worker: type, arguments: Mapping[str, Any], batch_size: int
) -> Iterator[pa.Table]:
    """What workers make of a table, batch by batch and in its order.

    A worker is made on each actor, with these arguments, and called with one batch after another.
    """
    if not len(table):
        return
    import ray

    started = not ray.is_initialized()
    if started:
        ray.init(address=cluster.address, log_to_driver=False, include_dashboard=False)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        blocks = [table.slice(i, batch_size) for i in range(0, len(table), batch_size)]
        cores = ray.available_resources().get("CPU", 1)
        fitting = int(cores // cluster.num_cpus) if cluster.num_cpus else len(blocks)
        found = ray.data.from_arrow(blocks).map_batches(
            worker,
            fn_constructor_kwargs=dict(arguments),
            batch_size=batch_size,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=min(cluster.workers or max(1, fitting), len(blocks))),
            num_cpus=cluster.num_cpus,
            num_gpus=cluster.num_gpus or None,
        )
        yield from found.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    except ray.exceptions.RayError as error:
        said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise OSError(f"the Ray cluster failed ({said.strip()}); what is done is safe: go on with it") from error
    finally:
        if started:
            ray.shutdown()


def loaded(settings: Settings, identity: str) -> Explainer:
    """A worker's explainer; an error if it has another model than the job."""
    explainer = Explainer.with_settings(settings)
    if models.identity(explainer.model) != identity:
        raise ValueError(f"the model {settings.model!r} of this worker is another than that of the job")
    return explainer

"""Run on a Ray cluster: actors load the model once and are given one block after another."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from whymatch import Explainer
from whymatch.corpus import require_ray
from whymatch.corpus.arrow import pa
from whymatch.corpus.local import LocalEngine, PairRow, Task
from whymatch.corpus.record import ROWS, Results
from whymatch.settings import Settings

UNFINISHED = 2  # blocks that an actor has at most: one that it works on, and the next
WAITING = 4  # blocks for each actor that are sent and not yet returned to the caller
RETRIES = 3  # of a block whose actor dies; a block that kills every actor must not do so forever
PATIENCE = 60.0  # seconds without any news from the cluster, after which its user is told what is being waited for


@dataclass(frozen=True)
class Ray:
    """A Ray cluster, and how much of it to use.

    Attributes:
        address: where it is; None starts one on this machine, which only this machine can reach.
        workers: how many actors; None starts as many as fit.
        num_cpus: cores of each actor.
        num_gpus: GPUs of each actor.
    """

    address: str | None = None
    workers: int | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0

    def __post_init__(self) -> None:  # an error now, before anything is written
        require_ray()


def stream(cluster: Ray, blocks: Iterable[pa.Table], worker: type, arguments: Mapping[str, Any]) -> Iterator[pa.Table]:
    """Yield what workers return for each block, in order.

    Blocks are taken from the iterable only as fast as results are taken from this one.

    Args:
        cluster: where workers run.
        blocks: what workers are called with.
        worker: a class, of which each actor makes one object.
        arguments: what it is made with.
    """
    source = iter(blocks)
    first = next(source, None)
    if first is None:
        return
    import ray

    with _connect(cluster):
        count = _count_workers(cluster)
        ahead = [first, *islice(source, count - 1)]
        actor = ray.remote(
            num_cpus=cluster.num_cpus,
            num_gpus=cluster.num_gpus or None,
            max_restarts=-1,
            max_task_retries=RETRIES,
        )(Actor)
        actors = [actor.remote(worker, dict(arguments)) for _ in ahead]
        try:
            yield from _distribute(actors, chain(ahead, source))
        except ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1] if lines else type(error).__name__
            raise OSError(f"the Ray cluster failed ({reason}); what is done is safe: resume the job") from error
        finally:
            for each in actors:
                ray.kill(each)


class Actor:
    """A worker in a process of the cluster."""

    def __init__(self, worker: type, arguments: dict[str, Any]) -> None:
        self._worker = worker(**arguments)

    def is_ready(self) -> bool:
        return True

    def run(self, block: pa.Table) -> pa.Table:
        return self._worker(block)


def _distribute(actors: list[Any], blocks: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Hand each block to the actor that has least to do, and yield the results in the order of the blocks."""
    import ray

    starting = {actor.is_ready.remote(): actor for actor in actors}  # an actor that has no place yet gets no blocks
    unfinished: dict[Any, int] = {}  # of each actor that is ready
    running: dict[Any, Any] = {}  # the actor of each result that is not there yet
    results: deque[Any] = deque()  # in the order of the blocks
    exhausted = told = False
    while True:
        while not exhausted and unfinished and len(results) < WAITING * len(unfinished):
            actor = min(unfinished, key=lambda each: unfinished[each])
            if unfinished[actor] >= UNFINISHED:
                break
            block = next(blocks, None)
            if block is None:
                exhausted = True
                break
            result = actor.run.remote(block)
            running[result] = actor
            unfinished[actor] += 1
            results.append(result)
        while results and results[0] not in running:
            yield ray.get(results.popleft())
        if exhausted and not results:
            return
        if exhausted or len(results) >= WAITING * max(1, len(unfinished)):
            awaited = list(running)
        else:
            awaited = [*running, *starting]
        ready, _ = ray.wait(awaited, timeout=PATIENCE)
        if not ready and not told:
            told = True
            warnings.warn(
                f"no news from the Ray cluster for {PATIENCE:.0f} seconds: {len(unfinished)} of {len(actors)} workers "
                f"have started, {len(running)} blocks are under way, and these resources are free: "
                f"{ray.available_resources()}. The job goes on waiting",
                stacklevel=2,
            )
        for reference in ready:
            if reference in starting:
                ray.get(reference)  # raises what the actor raised while it started
                unfinished[starting.pop(reference)] = 0
            else:
                unfinished[running.pop(reference)] -= 1


def _count_workers(cluster: Ray) -> int:
    if cluster.workers is not None:
        return cluster.workers
    import ray

    available = ray.available_resources()
    needs = {"CPU": cluster.num_cpus, "GPU": cluster.num_gpus}
    fitting = [int(available.get(name, 0) // need) for name, need in needs.items() if need]
    return max(1, min(fitting, default=int(available.get("CPU", 1))))


# --- a cluster of this process's own ---

# Ray binds its ports to loopback on systems on which this is False, and to all interfaces elsewhere.
_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"

# Two of Ray's processes outlive the others by a minute or two. This script waits until its standard input is closed,
# which happens when the driver ends, however it ends, and then stops them.
_WATCHDOG = """
import os, signal, sys
sys.stdin.read()
for process in sys.argv[1:]:
    pid, started = process.split(":")
    try:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[19] == started:
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


@contextmanager
def _connect(cluster: Ray) -> Iterator[None]:
    """Connect to a cluster for the time of the block, or start one; a connection that exists is used as it is."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        ray.init(address=address, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()
        return
    before = _descendants(os.getpid())
    with _loopback():
        ray.init(address="local", log_to_driver=False, include_dashboard=False)
    started = {pid: time for pid, time in _descendants(os.getpid()).items() if pid not in before}
    watchdog = _start_watchdog(started)
    try:
        listening = ray.util.get_node_ip_address()
        if not listening.startswith("127.") and listening != "::1":
            warnings.warn(
                f"the Ray cluster of this job listens on all interfaces of this machine ({listening}): keep its ports "
                "behind a firewall",
                stacklevel=2,
            )
        yield
    finally:
        ray.shutdown()
        if watchdog is not None:
            watchdog.communicate()  # closes its standard input


@contextmanager
def _loopback() -> Iterator[None]:
    """Make a cluster that is started inside this block listen on loopback only.

    ``ray.init(_node_ip_address="127.0.0.1")`` alone does not: Ray replaces that by an address which others can reach,
    unless it takes itself to be on a system without clusters. Its processes inherit the variable, which this one has
    read already.
    """
    import ray

    before, constants = os.environ.get(_SWITCH), ray._private.ray_constants
    enabled = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    os.environ[_SWITCH] = "0"
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def _start_watchdog(processes: Mapping[int, str]) -> subprocess.Popen[bytes] | None:
    """Start a process that ends Ray's processes, given with their start times, after this process has ended."""
    if not processes:
        return None
    arguments = [f"{pid}:{started}" for pid, started in processes.items()]
    return subprocess.Popen(
        [sys.executable, "-S", "-c", _WATCHDOG, *arguments],
        stdin=subprocess.PIPE,
        # Whoever reads this process's output until its end must not wait for the watchdog too.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _descendants(pid: int) -> dict[int, str]:
    """Return the processes of Ray below a process, each with its start time; on Linux only."""
    processes: dict[int, tuple[int, str, bool]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            values = (path / "stat").read_text().rpartition(")")[2].split()
            is_ray = b"ray" in (path / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        processes[int(path.name)] = (int(values[1]), values[19], is_ray)
    descendants: set[int] = set()
    parents = {pid}
    while parents := {child for child, (parent, _, _) in processes.items() if parent in parents} - descendants:
        descendants |= parents
    return {child: processes[child][1] for child in descendants if processes[child][2]}


# --- explaining pairs ---


class RayEngine:
    """Explains rows on a cluster, in order.

    Args:
        cluster: where.
        explainer: its settings are those of the workers, which load its model themselves.
        identity: the hash of its model.
        task: what to do with each pair.
    """

    def __init__(self, cluster: Ray, explainer: Explainer, identity: str, task: Task) -> None:
        self._cluster = cluster
        self._window = task.window
        self._arguments = {"settings": explainer.settings, "identity": identity, "task": task}

    def __call__(self, rows: Iterable[PairRow]) -> Iterator[Results]:
        remaining = iter(rows)
        windows: deque[list[PairRow]] = deque()  # those whose results have not come back

        def blocks() -> Iterator[pa.Table]:
            while window := list(islice(remaining, self._window)):
                windows.append(window)
                good = [row for row in window if row.problem is None]
                yield pa.table(
                    {
                        "row": pa.array([row.number for row in good], pa.int64()),
                        "a": pa.array([row.texts[0] for row in good], pa.string()),
                        "b": pa.array([row.texts[1] for row in good], pa.string()),
                    }
                )

        for block in stream(self._cluster, blocks(), PairWorker, self._arguments):
            window = windows.popleft()
            explained = block.filter(block["reason"].is_null()).drop_columns("reason").cast(ROWS)
            reasons = dict(zip(block["row"].to_pylist(), block["reason"].to_pylist(), strict=True))
            bad = []
            for row in window:
                if row.problem is None and row.number not in reasons:
                    raise RuntimeError(f"row {row.number} was sent to the cluster, and did not come back")
                if reason := row.problem or reasons[row.number]:
                    bad.append(row.reject(reason))
            yield Results(len(window), explained, bad)


class PairWorker:
    """Explains blocks of pairs; a column says why a pair could not be explained."""

    def __init__(self, settings: Settings, identity: str, task: Task) -> None:
        self._folder = tempfile.TemporaryDirectory()
        explainer = load_explainer(settings, identity)
        self._engine = LocalEngine(explainer, identity, task, Path(self._folder.name) / "texts")

    def __call__(self, block: pa.Table) -> pa.Table:
        rows = [PairRow(row["row"], {}, (row["a"], row["b"]), None) for row in block.to_pylist()]
        results = self._engine.explain(rows)
        explained = results.rows.append_column("reason", pa.nulls(len(results.rows), pa.string()))
        if not results.bad:
            return explained
        reasons = {"row": [row.number for row in results.bad], "reason": [row.reason for row in results.bad]}
        return pa.concat_tables([explained, pa.table(reasons)], promote_options="default").sort_by("row")


def load_explainer(settings: Settings, identity: str) -> Explainer:
    """Load a worker's explainer, and check that its model is that of the job."""
    explainer = Explainer.with_settings(settings)
    if explainer.identity != identity:
        raise ValueError(f"the model {settings.model!r} of this worker is another than that of the job")
    return explainer

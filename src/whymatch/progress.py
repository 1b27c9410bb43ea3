"""Progress of a long call: reported by the work, watched by whoever waits for it, shown as a bar.

The work reports which fraction of it is done. It need not know who is watching, or which larger task it is part of:

    with watching(callback):  # callback(done, doing), with done from 0 to 1
        with stage(0.0, 0.3, "probing"):
            report(0.5)  # callback(0.15, "probing")

A callback may raise an exception to stop the work. Watchers and stages belong to the current context
(:mod:`contextvars`), so threads do not see each other's. Never ``yield`` inside ``watching`` or ``stage``: what runs
between two items of a generator is the caller's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
Callback: TypeAlias = Callable[[float, str], None]


class _Frame(Protocol):
    """A stage or a watcher, and what it is nested in."""

    outer: _Frame | None

    def receive(self, done: float, doing: str) -> tuple[float, str]:
        """Take a report from inside; return it as it looks from outside."""


_innermost: ContextVar[_Frame | None] = ContextVar("whymatch_progress", default=None)


@dataclass
class _Stage:
    outer: _Frame | None
    low: float
    high: float
    doing: str

    def receive(self, done: float, doing: str) -> tuple[float, str]:
        return self.low + done * (self.high - self.low), doing or self.doing


@dataclass
class _Watcher:
    outer: _Frame | None
    callback: Callback
    done: float = 0.0

    def receive(self, done: float, doing: str) -> tuple[float, str]:
        # Work that turns out to be more than expected repeats a part; the fraction that is shown never falls.
        self.done = max(self.done, done)
        self.callback(self.done, doing)
        return self.done, doing


@contextmanager
def watching(callback: Callback) -> Iterator[None]:
    """Call ``callback(done, doing)`` at every report from inside the block.

    Args:
        callback: takes the fraction that is done, from 0 to 1, which never falls, and what is being done, which may
            be empty. It runs in the thread that does the work, between two chunks of it; an exception stops the work.
    """
    token = _innermost.set(_Watcher(_innermost.get(), callback))
    try:
        yield
    finally:
        _innermost.reset(token)


@contextmanager
def stage(low: float, high: float, doing: str = "") -> Iterator[None]:
    """Let reports from inside the block, which go from 0 to 1, cover only ``low`` to ``high`` of what is outside it."""
    token = _innermost.set(_Stage(_innermost.get(), low, high, doing))
    try:
        yield
    finally:
        _innermost.reset(token)


def stages(
    items: Sequence[T], weights: Sequence[float] | None = None, doing: str = ""
) -> Iterator[tuple[T, AbstractContextManager[None]]]:
    """Give each item a stage of its own, as long as its share of the weights.

    for batch, part in stages(batches, weights=[batch.cost for batch in batches]):
        with part:
            ...
    """
    weights = [1.0] * len(items) if weights is None else weights
    total, done = sum(weights) or 1.0, 0.0
    for item, weight in zip(items, weights, strict=True):
        yield item, stage(done / total, min(1.0, (done + weight) / total), doing)
        done += weight


def report(done: float, doing: str = "") -> None:
    """Say which fraction of the current stage is done; raises what a watcher raises to stop the work."""
    frame = _innermost.get()
    while frame is not None:
        done, doing = frame.receive(done, doing)
        frame = frame.outer


class Bar:
    """What :func:`bar` returns; leaving its ``with`` block leaves the bar on the terminal as it stands."""

    def __init__(self, description: str, total: float | None, enabled: bool) -> None:
        self._description = description
        self._total = total
        self._enabled = enabled
        self._display: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, done: float, total: float | None = None) -> None:
        """Set how many are done, and, where it is known only now, of how many."""
        if not self._enabled:
            return
        self._total = self._total if total is None else total
        if self._display is None or self._task is None:
            self._display = _display()
            self._task = self._display.add_task(self._description, total=self._total)
            self._display.start()
        self._display.update(self._task, completed=done, total=self._total)

    def close(self) -> None:
        """Leave the bar as it stands; further updates begin a new one."""
        if self._display is not None:
            self._display.stop()
        self._display = None


@contextmanager
def showing(after: float = 1.0) -> Iterator[None]:
    """Show on standard error what the block is doing, how far it is and the time left, if it takes a while.

    Args:
        after: the seconds before anything is shown. What is done sooner leaves no trace, and the bar goes in the end.
    """
    if not sys.stderr.isatty():  # a log has no use for it
        yield
        return
    started = time.monotonic()
    display: Progress | None = None

    def update(done: float, doing: str) -> None:
        nonlocal display
        if display is None:
            if time.monotonic() - started < after:
                return
            display = _display(whole=True)
            display.add_task("", total=1.0)
            display.start()
        display.update(display.task_ids[0], completed=done, description=doing or "working")

    try:
        with watching(update):
            yield
    finally:
        if display is not None:
            display.stop()


def bar(description: str, total: float | None = None, enabled: bool = True) -> Bar:
    """Show a progress bar on standard error, with how fast it goes and the time left.

    It appears with its first update, so that a job which fails before it begins leaves no empty bar behind.

        with bar("rows", total) as rows:
            rows.update(10)

    Args:
        description: what is counted, in a word.
        total: how many there are; None where that is not known yet.
        enabled: False shows nothing, so that callers need no second path.
    """
    return Bar(description, total, enabled)


def track(items: Iterable[T], description: str, total: float | None = None, enabled: bool = True) -> Iterator[T]:
    """Iterate over items and show how many are done."""
    with bar(description, total, enabled) as counter:
        counter.update(0)
        for done, item in enumerate(items, 1):
            yield item
            counter.update(done)


def _display(whole: bool = False) -> Progress:
    """Return a bar that counts things; or, if ``whole``, one that shows how much of a single task is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Task as RichTask
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: RichTask) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:.1f}/s" if speed else "", style="progress.data.speed")

    how_far = (TaskProgressColumn(),) if whole else (MofNCompleteColumn(), Speed())
    doing = TextColumn("{task.description}", markup=False)  # a model's name may have brackets
    columns = (doing, BarColumn(), *how_far, TimeRemainingColumn(elapsed_when_finished=True))
    return Progress(*columns, console=Console(stderr=True), transient=whole)

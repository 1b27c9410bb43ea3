"""Jobs of the explorer: one runs, a few wait, and a job whose client has left is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from whymatch import progress
from whymatch.encoders.retries import ServiceError
from whymatch.web.middleware import refuse_for_now

T = TypeVar("T")

STREAM = "application/x-ndjson"
log = logging.getLogger(__name__)


class BusyError(Exception):
    """All slots are taken."""


class StoppedError(Exception):
    """Raised inside a job that is to stop: its client has left, or the server is stopping."""


class DisconnectedError(Exception):
    """The client left before its request was answered."""


class Worker:
    """One thread that runs jobs (derivatives take turns in any case), and a bounded number of slots for them.

    Args:
        waiting: how many jobs may wait beside the one that runs.
    """

    def __init__(self, waiting: int) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="whymatch")
        self._slots = waiting + 1
        self._turn = asyncio.Lock()
        self._stopped = threading.Event()
        self.jobs = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Take a slot; raise BusyError if there is none. Nothing is awaited between the check and the count."""
        if self.jobs >= self._slots:
            raise BusyError(f"{self.jobs} requests are waiting already")
        self.jobs += 1
        try:
            yield
        finally:
            self.jobs -= 1

    async def run(self, job: Callable[[], T], report: progress.Callback) -> T:
        """Run a job when its turn comes. If the caller is cancelled, the job stops at its next report of progress."""
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def watch(done: float, doing: str) -> None:
            if stop.is_set() or self._stopped.is_set():
                raise StoppedError
            _call_in(loop, report, done, doing)

        def work() -> T:
            with progress.watching(watch):
                progress.report(0.0)
                return job()

        # The turn passes on when the thread is free, not when the caller leaves: jobs never pile up behind the lock.
        await self._turn.acquire()
        future = self._thread.submit(work)
        future.add_done_callback(lambda _: _call_in(loop, self._turn.release))
        try:
            return await asyncio.wrap_future(future)
        finally:
            stop.set()

    def stop(self) -> None:
        """Stop all jobs, running or waiting; this may be called from a signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Stop all jobs and end the thread."""
        self.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)


class JobResponse(Response):
    """Run a job and answer with its result as JSON, or with lines of JSON: its progress, and then its result.

    If the client leaves in the meantime, the job stops and its slot is free for another.

    Args:
        worker: runs the job, if it has a slot for it; otherwise the answer is 503.
        job: returns what is sent as JSON. What a user may do wrong is a ValueError, TypeError or ArithmeticError.
        lines: whether to answer in lines.
    """

    def __init__(self, worker: Worker, job: Callable[[], Any], lines: bool) -> None:
        super().__init__()
        self._worker = worker
        self._job = job
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._lines:
                await self._answer_in_lines(receive, send)
            else:
                with self._worker.slot():
                    status, content = await self._run(receive, lambda _done, _doing: None)
                await Response(content, status, media_type="application/json")(scope, receive, send)
        except BusyError as error:
            await refuse_for_now(str(error))(scope, receive, send)
        except DisconnectedError:
            pass

    async def _answer_in_lines(self, receive: Receive, send: Send) -> None:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()  # that were not sent yet; None ends them

        def report(done: float, doing: str) -> None:
            lines.put_nowait(_encode({"progress": done, "doing": doing}))

        # A client that reads slowly holds up its own lines, not the slot: they are sent by another task.
        with self._worker.slot():
            report(0.0, "waiting")
            sender = asyncio.create_task(_send_lines(lines, send))
            try:
                status, content = await self._run(receive, report)
            except BaseException:
                sender.cancel()
                raise
        lines.put_nowait(b'{"result":%b}' % content if status == 200 else content)
        lines.put_nowait(None)
        await sender

    async def _run(self, receive: Receive, report: progress.Callback) -> tuple[int, bytes]:
        """Run the job for as long as the client is there; return a status and JSON."""
        # A large result is encoded in the worker's thread, where it holds up nobody else.
        run = self._worker.run(lambda: _encode(self._job()), report)
        try:
            return 200, await _while_connected(run, receive)
        except DisconnectedError:
            raise
        except StoppedError:
            return 503, _encode({"error": "the server is stopping"})
        except (ValueError, TypeError, ArithmeticError) as error:
            return 422, _encode({"error": str(error)})
        except ServiceError as error:  # of the service that embeds
            return 502, _encode({"error": str(error)})
        except Exception:
            log.exception("a request failed")
            return 500, _encode({"error": "the server failed; its log says why"})


async def _while_connected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Await work, whose request has been read to its end; cancel it when the client disconnects."""
    task = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise DisconnectedError
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_lines(lines: asyncio.Queue[bytes | None], send: Send) -> None:
    headers = [(b"content-type", STREAM.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    while (line := await lines.get()) is not None:
        await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Call a function in the loop's thread, unless the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)

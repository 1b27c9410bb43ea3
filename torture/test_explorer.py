"""The explorer under attack, over real sockets: no slot is lost, its limits hold, and it stays up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attack import Tally, seeded, trials

pytest.importorskip("fastapi", reason="the extra web is not installed")

WAITING = 8  # what docs and code promise: so many wait, and one runs
CLIENTS = 200
PATIENCE = 90.0  # seconds until what was abandoned must have ended; an abandoned job itself takes minutes
WORDS = ["coffee", "bread", "man", "woman", "dog", "child", "kitchen", "field", "stocks", "bad", "good", "snowy"]
QUICK = {"text_a": "The coffee is not good.", "text_b": "This is bad coffee.", "layer": 3}


def slow(rng: random.Random) -> dict[str, Any]:
    """A request that takes seconds with the tiny model: forty long hits at the input layer."""
    documents = [" ".join(rng.choices(WORDS, k=40)) for _ in range(40)]
    return {"query": " ".join(rng.choices(WORDS, k=40)), "documents": documents, "top": 40, "layer": 0}


def message(path: str, body: Any, *lines: str, stream: bool = False) -> bytes:
    """A whole request, as bytes."""
    content = json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        *(lines or [f"Content-Length: {len(content)}"]),
        *(["Accept: application/x-ndjson"] if stream else []),
        "Connection: close",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@dataclass(frozen=True)
class Server:
    port: int
    pid: int

    async def send(self, content: bytes, seconds: float = 300) -> tuple[int, bytes]:
        """Send bytes; returns the status of the answer (0 for none) and its body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(content)
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(), seconds)
        except (ConnectionError, BrokenPipeError):
            return 0, b""
        finally:
            await close(writer)
        head, _, body = answer.partition(b"\r\n\r\n")
        parts = head.split(b" ", 2)
        return (int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0), body

    async def waiting(self) -> int:
        """How much waits, as /healthz says."""
        status, body = await self.send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", 20)
        assert status == 200, f"/healthz answered {status}"
        return int(json.loads(body)["waiting"])

    async def leave(self, content: bytes, after: float, rude: bool) -> None:
        """Send bytes and go away without reading: politely, or with a reset."""
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(content)
                await writer.drain()
                await asyncio.sleep(after)
                if rude:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            finally:
                await close(writer)

    def memory(self) -> float:
        """What it holds, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("server") / "log").open("w")
    command = [sys.executable, "-m", "whymatch.cli", "serve", "--model", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    server = Server(port, process.pid)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                asyncio.run(server.waiting())
                break
            assert process.poll() is None, Path(log.name).read_text()
            time.sleep(0.2)
        yield server
    finally:
        process.kill()
        process.wait()
        log.close()


@contextlib.asynccontextmanager
async def watched(server: Server, tally: Tally, most: int = WAITING + 1) -> AsyncIterator[None]:
    """Ask for its health all the while: it must answer, and never say that more wait than may."""
    ended = asyncio.Event()

    async def watch() -> None:
        while not ended.is_set():
            try:
                waiting = await server.waiting()
            except (OSError, AssertionError, TimeoutError) as error:
                tally.fail(f"/healthz: {type(error).__name__} {error}")
            else:
                tally.add("healthy answers")
                if waiting > most:
                    tally.fail(f"{waiting} wait, and at most {most} may")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 0.2)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        ended.set()
        await task


async def recovered(server: Server, tally: Tally) -> None:
    """Every slot comes back, and a new request is answered."""
    deadline = time.monotonic() + PATIENCE
    while await server.waiting():
        if time.monotonic() > deadline:
            tally.fail(f"{await server.waiting()} slots are still taken by requests that nobody waits for")
            return
        await asyncio.sleep(0.1)
    status, _ = await server.send(message("/api/explain", QUICK))
    if status == 200:
        tally.add("recovered")
    else:
        tally.fail(f"a request after the attack was answered with {status}")


def test_many_clients_at_once(server, tally):
    """However many come, as many as the limit says are accepted, and the rest are told at once to come again."""
    rng = seeded("crowd")
    bodies = [message("/api/rank", slow(rng)) for _ in range(CLIENTS)]
    answers: list[tuple[float, int]] = []

    async def ask(content: bytes) -> None:
        status, _ = await server.send(content)
        answers.append((time.monotonic(), status))

    async def crowd() -> None:
        async with watched(server, tally):
            await asyncio.gather(*(ask(content) for content in bodies))
        await recovered(server, tally)

    asyncio.run(crowd())
    for status, number in Counter(status for _, status in answers).items():
        tally.add(f"answered {status}", number)
    last_refusal = max((moment for moment, status in answers if status == 503), default=0.0)
    accepted = sum(status == 200 for _, status in answers)
    # A place that became free while others still came may be given again.
    done = sum(status == 200 and moment <= last_refusal for moment, status in answers)
    if accepted > WAITING + 1 + done:
        tally.fail(f"{accepted} of {CLIENTS} were accepted: {done} had ended, and {WAITING} may wait")
    if strange := {status for _, status in answers} - {200, 503}:
        tally.fail(f"answers that must not be: {strange}")
    tally.check()


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_clients_that_leave(server, stream, tally):
    """What nobody waits for is stopped."""
    rng = seeded(f"leave {stream}")

    async def leave() -> None:
        for _ in trials(3):
            async with watched(server, tally):
                for _ in range(5):
                    crowd = [
                        server.leave(
                            message("/api/rank", slow(rng), stream=stream), rng.uniform(0, 0.6), rng.random() < 0.5
                        )
                        for _ in range(10)
                    ]
                    await asyncio.gather(*crowd)
                    tally.add("clients that left", len(crowd))
            await recovered(server, tally)

    asyncio.run(leave())
    tally.check()


def test_requests_that_are_no_requests(server, tally):
    """Half requests, garbage, headers that lie."""
    rng = seeded("garbage")
    whole = message("/api/explain", QUICK)
    deep = b"[" * 100_000

    def garbage() -> bytes:
        lines = ["Content-Length: 100000", "Transfer-Encoding: chunked"]
        return rng.choice(
            [
                whole[: rng.randrange(len(whole))],
                rng.randbytes(rng.randrange(1, 3000)),
                message("/api/explain", QUICK, lines[0]),
                message("/api/explain", QUICK, *lines),
                message("/api/explain", QUICK, "Content-Length: -1"),
                message("/api/explain", QUICK, "Content-Length: 10", "Content-Length: 20"),
                message("/" + "x" * 100_000, QUICK),
                message("/api/explain", QUICK, *[f"X-{i}: {'y' * 500}" for i in range(300)]),
                whole.replace(b"127.0.0.1", b"evil.example"),
                b"POST /api/explain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(deep), deep),
            ]
        )

    async def send() -> None:
        async with watched(server, tally):
            for _ in trials(20):
                crowd = [server.leave(garbage(), rng.uniform(0, 0.2), rng.random() < 0.5) for _ in range(10)]
                await asyncio.gather(*crowd)
                tally.add("bad requests", len(crowd))
        await recovered(server, tally)

    asyncio.run(send())
    tally.check()


def test_bodies_without_end(server, tally):
    """A body that is longer than it says, or than may be, is not taken."""
    limit_mib = 64

    async def pour(*lines: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = ["POST /api/explain HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines]
        sent = 0
        with contextlib.suppress(ConnectionError):
            writer.write("\r\n".join(head).encode() + b"\r\n\r\n")
            piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            for _ in range(limit_mib * 16):
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), 5)
                sent += 65536
                if writer.transport.is_closing() or reader.at_eof():
                    break
                await asyncio.sleep(0)
        await close(writer)
        taken = server.memory() - before
        if taken > limit_mib / 2:
            tally.fail(f"{' '.join(lines)}: took {taken:.0f} MiB of {sent / 2**20:.0f} sent")
        tally.add("endless bodies")

    async def send() -> None:
        async with watched(server, tally):
            for lines in (
                ["Transfer-Encoding: chunked"],
                ["Content-Length: 10", "Transfer-Encoding: chunked"],
                ["Transfer-Encoding: chunked", "Content-Length: 10"],
                ["Content-Length: 999999999999"],
            ):
                with contextlib.suppress(TimeoutError):
                    await pour(*lines)
        await recovered(server, tally)

    before = server.memory()
    asyncio.run(send())
    tally.check()


def test_clients_that_only_wait(server, tally):
    """Two hundred connections that say nothing do not keep others out."""

    async def idle() -> None:
        crowd = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CLIENTS)]
        for number, (_, writer) in enumerate(crowd):
            writer.write(b"POST /api/explain HTTP/1.1\r\nHost: 127.0.0.1\r\n"[: number % 40])
        async with watched(server, tally):
            for _ in range(10):
                status, _ = await server.send(message("/api/explain", QUICK))
                tally.add("answered beside them") if status == 200 else tally.fail(f"answered {status}")
        for _, writer in crowd:
            await close(writer)
        await recovered(server, tally)

    asyncio.run(idle())
    tally.check()

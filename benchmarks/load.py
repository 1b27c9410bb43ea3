"""The explorer under load, over loopback: 32 clients for a minute. No 5xx but 503, and memory that does not grow.

    python benchmarks/load.py [--clients 32] [--seconds 60]

Writes ``benchmarks/results/load.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from peers import PAIRS, machine

RESULTS = Path(__file__).parent / "results/load.json"
TEXTS = [text for pair in PAIRS.values() for text in pair]


def memory(pid: int) -> float:
    """What the server holds, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


async def client(address: str, until: float, seen: Counter[str], times: list[float]) -> None:
    choose = random.Random(id(asyncio.current_task()))
    async with httpx.AsyncClient(base_url=address, timeout=120) as asks:
        while time.monotonic() < until:
            body = {"text_a": choose.choice(TEXTS), "text_b": choose.choice(TEXTS), "layer": 5}
            start = time.monotonic()
            try:
                # Some leave before they are answered.
                patience = 0.3 if choose.random() < 0.1 else 120
                answer = await asks.post("/api/explain", json=body, timeout=patience)
            except httpx.TimeoutException:
                seen["left"] += 1
                continue
            seen[str(answer.status_code)] += 1
            if answer.status_code == 200:
                times.append(time.monotonic() - start)
            else:
                await asyncio.sleep(choose.uniform(0.2, 1.0))


async def crowd(address: str, clients: int, seconds: float, pid: int) -> dict[str, Any]:
    seen: Counter[str] = Counter()
    times: list[float] = []
    until = time.monotonic() + seconds
    tasks = [asyncio.create_task(client(address, until, seen, times)) for _ in range(clients)]
    held = []
    while time.monotonic() < until:
        await asyncio.sleep(seconds / 12)
        held.append(round(memory(pid), 1))
    await asyncio.gather(*tasks)
    times.sort()
    return {
        "answers": dict(seen),
        "answered_per_second": len(times) / seconds,
        "median_seconds": times[len(times) // 2] if times else None,
        "memory_mib": held,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "whymatch.cli", "serve", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{address}/healthz").raise_for_status()
                break
            time.sleep(0.2)
        found = asyncio.run(crowd(address, arguments.clients, arguments.seconds, server.pid))
    finally:
        server.terminate()
        server.wait()
    result = {"machine": machine(), "clients": arguments.clients, "seconds": arguments.seconds, **found}
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    bad = [code for code in found["answers"] if code.startswith("5") and code != "503"]
    if bad:
        sys.exit(f"answers that must not be: {bad}")


if __name__ == "__main__":
    main()

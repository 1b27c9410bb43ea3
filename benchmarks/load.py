"""Put the explorer under load: 32 clients on loopback for a minute, some of which leave before they are answered.

No answer may be a 5xx other than 503, and the server's memory should not grow.

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
    """Read how much memory a process uses, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


async def send_requests(address: str, end: float, answers: Counter[str], times: list[float]) -> None:
    """Send one request after another until ``end``; count the answers, and time those that are explanations."""
    random_state = random.Random(id(asyncio.current_task()))
    async with httpx.AsyncClient(base_url=address) as client:
        while time.monotonic() < end:
            body = {"text_a": random_state.choice(TEXTS), "text_b": random_state.choice(TEXTS), "layer": 5}
            start = time.monotonic()
            patience = 0.3 if random_state.random() < 0.1 else 120
            try:
                answer = await client.post("/api/explain", json=body, timeout=patience)
            except httpx.TimeoutException:
                answers["left"] += 1
                continue
            answers[str(answer.status_code)] += 1
            if answer.status_code == 200:
                times.append(time.monotonic() - start)
            else:
                await asyncio.sleep(random_state.uniform(0.2, 1.0))


async def run_clients(address: str, clients: int, seconds: float, pid: int) -> dict[str, Any]:
    answers: Counter[str] = Counter()
    times: list[float] = []
    end = time.monotonic() + seconds
    tasks = [asyncio.create_task(send_requests(address, end, answers, times)) for _ in range(clients)]
    memory_mib = []
    while time.monotonic() < end:
        await asyncio.sleep(seconds / 12)
        memory_mib.append(round(memory(pid), 1))
    await asyncio.gather(*tasks)
    times.sort()
    return {
        "answers": dict(answers),
        "answered_per_second": len(times) / seconds,
        "median_seconds": times[len(times) // 2] if times else None,
        "memory_mib": memory_mib,
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
        measured = asyncio.run(run_clients(address, arguments.clients, arguments.seconds, server.pid))
    finally:
        server.terminate()
        server.wait()
    result = {"machine": machine(), "clients": arguments.clients, "seconds": arguments.seconds, **measured}
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    bad = [code for code in measured["answers"] if code.startswith("5") and code != "503"]
    if bad:
        sys.exit(f"the server failed with {bad}")


if __name__ == "__main__":
    main()

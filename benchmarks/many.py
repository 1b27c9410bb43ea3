"""Many texts: rates by length and layer, what a text takes on disk, what a batch adds, and whether memory stays flat.

    python benchmarks/many.py [--rows 50000] [--only STEP …]

Writes ``benchmarks/results/many.json``, from which ``benchmarks/tables.py`` makes the table of docs/many.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import machine

from whymatch import Explainer
from whymatch.corpus import batch
from whymatch.corpus.index import Index
from whymatch.corpus.shards import PRECISIONS
from whymatch.corpus.store import Store
from whymatch.encoders import loading

RESULTS = Path(__file__).parent / "results/many.json"
LENGTHS = (8, 16, 32, 64)
LAYERS = (0, 3, 5, 6)
WORDS = (
    *("river", "stone", "bread", "coffee", "window", "garden", "letter", "music"),
    *("winter", "road", "market", "child", "paper", "light", "table", "water"),
)


def text(tokens: int, rng: random.Random) -> str:
    """A text of so many tokens: each of these words is one, and the template has two."""
    return " ".join(rng.choice(WORDS) for _ in range(tokens - 2))


def rates(model: Any) -> list[dict[str, Any]]:
    """Texts per second of one core."""
    torch.set_num_threads(1)
    rows = []
    rng = random.Random(0)
    for layer in LAYERS:
        explainer = Explainer(model, layer=layer)
        for length in LENGTHS:
            count = max(2, min(64, 64 * (1 + layer) ** 2 // length))
            texts = [text(length, rng) for _ in range(count)]
            explainer.decompose(texts[:1])
            start = time.perf_counter()
            decs = explainer.decompose(texts)
            seconds = time.perf_counter() - start
            assert len(decs[0].tokens) == length
            rows.append({"layer": layer, "tokens": length, "texts_per_second_and_core": count / seconds})
            print(json.dumps(rows[-1]), flush=True)
    torch.set_num_threads(os.cpu_count() or 1)
    return rows


def precision(model: Any) -> list[dict[str, Any]]:
    """Bytes per text, and what smaller numbers change."""
    rng = random.Random(1)
    explainer = Explainer(model, layer=5)
    rows = []
    for length in LENGTHS:
        texts = [text(length, rng) for _ in range(32)]
        decs = explainer.decompose(texts)
        exact = [Explainer.pair(decs[i], decs[i + 1]) for i in range(31)]
        for name in PRECISIONS:
            with tempfile.TemporaryDirectory() as folder:
                store = Store.create(Path(folder) / "s", explainer.settings, "", 384, name)  # type: ignore[arg-type]
                store.append(decs)
                stored = [Explainer.pair(store[i], store[i + 1]) for i in range(31)]
                rows.append(
                    {
                        "tokens": length,
                        "precision": name,
                        "bytes_per_text": store.shards[0].bytes / len(texts),
                        "largest_change_of_score": max(
                            abs(a.score - b.score) for a, b in zip(exact, stored, strict=True)
                        ),
                        "largest_change_of_an_entry": float(
                            max(np.abs(a.matrix - b.matrix).max() for a, b in zip(exact, stored, strict=True))
                        ),
                        "largest_error": max(why.error for why in stored),
                    }
                )
    return rows


def hit(model: Any) -> dict[str, Any]:
    """The time of one stored hit's explanation, its rows read from the disk's cache."""
    rng = random.Random(2)
    explainer = Explainer(model, layer=6)
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build([text(64, rng) for _ in range(512)], Path(folder) / "i", explainer, store="tokens")
        store = Store.open(index.store.folder)
        (query,) = explainer.decompose([text(12, rng)])
        Explainer.pair(query, store[0])
        times = []
        for i in range(1, 512):
            start = time.perf_counter()
            Explainer.pair(query, store[i])
            times.append(time.perf_counter() - start)
    return {"tokens": 64, "query_tokens": 12, "milliseconds_median": 1e3 * statistics.median(times)}


def write_pairs(path: Path, rows: int, seed: int = 0) -> Path:
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(rows):
            pair = {"text_a": text(rng.randint(4, 8), rng), "text_b": text(rng.randint(4, 8), rng)}
            file.write(json.dumps(pair) + "\n")
    return path


def overhead(model: Any, rows: int = 2000) -> dict[str, Any]:
    """A batch against the engine alone, taking turns: the same texts decomposed once, the same pairs explained."""
    explainer = Explainer(model, layer=5)
    with tempfile.TemporaryDirectory() as folder:
        file = write_pairs(Path(folder) / "p.jsonl", rows)
        pairs = [tuple(json.loads(line).values()) for line in file.read_text().splitlines()]
        ratios = []
        for turn in range(3):
            start = time.perf_counter()
            texts = list(dict.fromkeys(t for pair in pairs for t in pair))
            decs = dict(zip(texts, explainer.decompose(texts), strict=True))
            for a, b in pairs:
                Explainer.pair(decs[a], decs[b])
            bare = time.perf_counter() - start
            start = time.perf_counter()
            batch.run_batch(file, Path(folder) / f"out{turn}", explainer)
            ratios.append((time.perf_counter() - start) / bare)
    return {"rows": rows, "ratio": statistics.median(ratios), "ratios": ratios}


MEMORY = """
import json, sys, os
from pathlib import Path
from whymatch import Explainer
from whymatch.corpus import batch
explainer = Explainer(layer=-1, tolerance=1e-2)
seen = []
def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
def watch(progress):
    if progress.done // 2500 > len(seen):
        seen.append((progress.done, rss()))
batch.run_batch(sys.argv[1], sys.argv[2], explainer, top=3, watch=watch)
print(json.dumps(seen))
"""


def memory(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = write_pairs(Path(folder) / "p.jsonl", rows)
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(file), f"{folder}/out"], capture_output=True, text=True, check=True
        )
    return {"rows": rows, "mib": json.loads(done.stdout)}


ENGINE = """
import json, sys, time, os
engine, cores = sys.argv[3], int(sys.argv[4])
os.environ["OMP_NUM_THREADS"] = "1"  # of a worker
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import torch; torch.set_num_threads(cores if engine == "local" else 1)
from whymatch import Explainer
from whymatch.corpus import batch
from whymatch.corpus.ray import Ray
explainer = Explainer(layer=5)
cluster = None
if engine == "ray":
    import ray
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    cluster = Ray(workers=cores)
start = time.perf_counter()
batch.run_batch(sys.argv[1], sys.argv[2], explainer, ray=cluster)
print(json.dumps(time.perf_counter() - start))
"""


def engine_rates(rows: int = 3000) -> list[dict[str, Any]]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        file = write_pairs(Path(folder) / "p.jsonl", rows)
        for engine, cores in (("local", 1), ("local", 2), ("ray", 1), ("ray", 2)):
            out = f"{folder}/{engine}{cores}"
            command = [sys.executable, "-c", ENGINE, str(file), out, engine, str(cores)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds = json.loads(done.stdout.splitlines()[-1])
            results.append({"engine": engine, "cores": cores, "rows_per_second": rows / seconds})
            print(json.dumps(results[-1]), flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--only", nargs="*", help="the steps to run; the results of the others are kept")
    options = parser.parse_args()
    model, _ = loading.load(None, "cpu")
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results["machine"] = machine()
    steps: dict[str, Any] = {
        "hit": lambda: hit(model),
        "precision": lambda: precision(model),
        "rates": lambda: rates(model),
        "overhead": lambda: overhead(model),
        "engines": engine_rates,
        "memory": lambda: memory(options.rows),
    }
    for name in options.only or steps:
        results[name] = steps[name]()
        print(name, json.dumps(results[name])[:300], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

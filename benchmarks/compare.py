"""Is this tree as fast as another commit, and does it give the same results? Both take turns in one run.

    python benchmarks/compare.py REVISION [--model FOLDER] [--layers 0 3 5] [--turns 5]

A worker process of each tree explains the same pairs in turns. Writes ``benchmarks/results/compare.json``: for each
layer the ratio of the times (this tree ÷ the other; the median over turns), the nodes that each took, and the largest
difference between two matrices.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import PAIRS, machine

HERE = Path(__file__).parent
RESULTS = HERE / "results/compare.json"

WORKER = """
import inspect, json, sys, time
from whymatch import Explainer
# The path that every version has; before there were others, it had no name.
options = {"path": "straight"} if "path" in inspect.signature(Explainer).parameters else {}
model, pairs = Explainer(sys.argv[1] or None, layer=0).model, json.loads(sys.argv[2])
explainers = {}
for line in sys.stdin:
    layer = int(line)
    explainer = explainers.setdefault(layer, Explainer(model, layer=layer, **options))
    start = time.perf_counter()
    explanations = list(explainer.explain_many(pairs))
    seconds = time.perf_counter() - start
    nodes = [list(why.nodes) for why in explanations]
    print(json.dumps({"seconds": seconds, "nodes": nodes, "matrices": [why.matrix.tolist() for why in explanations]}))
    sys.stdout.flush()
"""


def start(source: Path, model: str, pairs: list[tuple[str, str]]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, model, json.dumps(pairs)],
        env=os.environ | {"PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def ask(worker: subprocess.Popen[str], layer: int) -> dict[str, Any]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(layer, file=worker.stdin, flush=True)
    answer: dict[str, Any] = json.loads(worker.stdout.readline())
    return answer


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    flat = [
        abs(x - y)
        for a, b in zip(ours["matrices"], theirs["matrices"], strict=True)
        for row, other in zip(a, b, strict=True)
        for x, y in zip(row, other, strict=True)
    ]
    return float(max(flat))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--model", default="", help="a folder; the default model if not given")
    parser.add_argument("--layers", type=int, nargs="*", default=[0, 3, 5])
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    pairs = [pair for size, pair in PAIRS.items() if size <= 16]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(other), arguments.revision], cwd=HERE, check=True)
        try:
            workers = [start(source / "src", arguments.model, pairs) for source in (HERE.parent, other)]
            rows = []
            for layer in arguments.layers:
                turns = [[ask(worker, layer) for worker in workers] for _ in range(arguments.turns + 1)][1:]
                ours, theirs = turns[0]
                row = {
                    "layer": layer,
                    "ratio": statistics.median(a["seconds"] / b["seconds"] for a, b in turns),
                    "seconds": statistics.median(a["seconds"] for a, _ in turns),
                    "nodes": ours["nodes"],
                    "nodes_before": theirs["nodes"],
                    "largest_difference": difference(ours, theirs),
                }
                print(json.dumps(row), flush=True)
                rows.append(row)
            for worker in workers:
                worker.kill()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=HERE, check=True)
    name = Path(arguments.model).name or "all-MiniLM-L6-v2"
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results[name] = {"machine": machine(), "revision": arguments.revision, "pairs": len(pairs), "rows": rows}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

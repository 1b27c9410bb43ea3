"""Does the sum equal the score? Measured on the first pairs of STS-B dev, at every layer, in every form.

    python benchmarks/exactness.py DEV.CSV [--pairs 200] [--tight-pairs 200] [--tight-layers 0 1 2 3 4 5 6]

Writes ``benchmarks/results/exactness.json``: for each layer, form and tolerance the largest |score − attributed|, the
nodes, and the largest distance of the score from the library's own.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers import machine

from whymatch import Explainer, models

RESULTS = Path(__file__).parent / "results/exactness.json"


def measure(model: Any, pairs: list[tuple[str, str]], own: list[float], **settings: Any) -> dict[str, Any]:
    start = time.perf_counter()
    found = list(Explainer(model, **settings).explain_many(pairs))
    errors = [why.error for why in found]
    nodes = [n for why in found for n in why.nodes]
    row = {
        **settings,
        "pairs": len(pairs),
        "largest_error": max(errors),
        "median_error": float(np.median(errors)),
        "largest_distance_of_score": max(abs(why.score - score) for why, score in zip(found, own, strict=True)),
        "nodes_median": float(np.median(nodes)),
        "nodes_largest": max(nodes),
        "seconds": time.perf_counter() - start,
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--tight-pairs", type=int, default=200)
    parser.add_argument("--layers", type=int, nargs="*", default=range(7))
    arguments = parser.parse_args()
    with arguments.data.open(encoding="utf-8") as file:
        pairs = [(row[0], row[1]) for row in csv.reader(file)][: arguments.pairs]
    model, _ = models.load(None, "cpu")
    own = [float(model.similarity(model.encode(a), model.encode(b))) for a, b in pairs]
    rows = []
    for layer in sorted(arguments.layers, reverse=True):
        rows.append(measure(model, pairs, own, layer=layer))
        few = pairs[: 25 if layer < 3 else len(pairs)]
        rows.append(measure(model, few, own[: len(few)], layer=layer, fold_reference=False))
        rows.append(measure(model, few, own[: len(few)], layer=layer, similarity="dot"))
        tight = pairs[: arguments.tight_pairs if layer >= 3 else min(25, arguments.tight_pairs)]
        rows.append(measure(model, tight, own[: len(tight)], layer=layer, tolerance=1e-6))
        RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

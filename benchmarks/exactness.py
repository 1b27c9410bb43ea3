"""Does the sum equal the score? Measured on the first pairs of STS-B dev, at every layer, in every form.

    python benchmarks/exactness.py DEV.CSV [--pairs 200] [--tight-pairs 200] [--layers 0 1 2 3 4 5 6]

Writes ``benchmarks/results/exactness.json``: for each layer and tolerance the largest |score − attributed| in the
folded form and in the paper's, for cosine and dot, the nodes, and the largest distance of the score from the library's
own.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peers import machine

from whymatch import Explainer
from whymatch.encoders import loading

RESULTS = Path(__file__).parent / "results/exactness.json"


def measure(model: Any, pairs: list[tuple[str, str]], layer: int, tolerance: float) -> dict[str, Any]:
    start = time.perf_counter()
    explainer = Explainer(model, layer=layer, tolerance=tolerance, fold_reference=False)
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    plain = dict(zip(texts, explainer.decompose(texts), strict=True))
    forms = {"paper": plain, "folded": {text: dec.folded() for text, dec in plain.items()}}
    row: dict[str, Any] = {"layer": layer, "tolerance": tolerance, "pairs": len(pairs), "largest_error": {}}
    own = [float(model.similarity(model.encode(a), model.encode(b))) for a, b in pairs]
    for form, decs in forms.items():
        for similarity in ("cosine", "dot"):
            chosen = {
                text: replace(dec, settings=replace(dec.settings, similarity=similarity)) for text, dec in decs.items()
            }
            explanations = [explainer.pair(chosen[a], chosen[b]) for a, b in pairs]
            row["largest_error"][f"{form}, {similarity}"] = max(why.error for why in explanations)
            distance = max(abs(why.score - score) for why, score in zip(explanations, own, strict=True))
            row["largest_distance_of_score"] = max(distance, row.get("largest_distance_of_score", 0.0))
    nodes = [dec.nodes for dec in plain.values()]
    row |= {"nodes_median": float(np.median(nodes)), "nodes_largest": max(nodes)}
    row["seconds"] = time.perf_counter() - start
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
    model, _ = loading.load(None, "cpu")
    rows: list[dict[str, Any]] = []
    for tolerance, count in ((1e-3, arguments.pairs), (1e-6, arguments.tight_pairs)):
        for layer in sorted(arguments.layers, reverse=True):  # the cheap ones first
            rows.append(measure(model, pairs[:count], layer, tolerance))
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

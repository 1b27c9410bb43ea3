"""How many nodes does a path need, with plain Gauss–Legendre nodes and with nodes crowded in the middle?

    python benchmarks/nodes.py

Writes ``benchmarks/results/nodes.json``: for the benchmark's sentences at each layer, the fewest nodes that bring the
relative error of the total under half a tolerance. The total needs one tangent, so every number of nodes is tried.
"""

from __future__ import annotations

import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import PAIRS, machine, timed

from whymatch import Explainer, jacobian, models
from whymatch.jacobian import Points
from whymatch.quadrature import RULES, Floats

LAYERS = (0, 1, 3, 5)
TOLERANCES = (1e-2, 1e-3)
RESULTS = Path(__file__).parent / "results/nodes.json"


def plain_gauss(n: int) -> tuple[Floats, Floats]:
    x, w = np.polynomial.legendre.leggauss(n)
    return (x + 1) / 2, w / 2


def fewest(bucket: Any, rule: Any, tolerances: tuple[float, ...]) -> list[int]:
    """The fewest nodes for each tolerance, tried one by one."""
    whole = torch.ones(1, 1, bucket._paths.delta.shape[1])
    found: list[int] = []
    n = 1
    while len(found) < len(tolerances):
        total = jacobian.forward(bucket._paths, Points.of([rule(n)], bucket._end), whole)[:, 0]
        error = float((total - bucket._change).norm() / bucket._size)
        while len(found) < len(tolerances) and error <= tolerances[len(found)] / 2:
            found.append(n)
        n += 1
    return found


def main() -> None:
    model, _ = models.load(None, "cpu")
    texts = [text for pair in PAIRS.values() for text in pair]
    rows = []
    for layer in LAYERS:
        prepared = Explainer(model, layer=layer)._prepare(texts)
        counts: dict[str, list[list[int]]] = {"plain": [], "crowded": []}
        for text in texts:
            (bucket,) = prepared.buckets([text])
            counts["plain"].append(fewest(bucket, plain_gauss, TOLERANCES))
            counts["crowded"].append(fewest(bucket, RULES["gauss"], TOLERANCES))
        for i, tolerance in enumerate(TOLERANCES):
            row = {"layer": layer, "tolerance": tolerance}
            row |= {name: statistics.median(each[i] for each in found) for name, found in counts.items()}
            rows.append(row)
            print(json.dumps(row), flush=True)
    (bucket,) = Explainer(model, layer=0)._prepare(texts[2:3]).buckets(texts[2:3])
    points, whole = Points.of([RULES["gauss"](16)], bucket._end), torch.ones(1, 1, 16)
    plain = timed(partial(jacobian.values, bucket._paths, points), repeat=9, warm=True)[0]
    tangent = timed(partial(jacobian.forward, bucket._paths, points, whole), repeat=9, warm=True)[0]
    results = {"machine": machine(), "texts": len(texts), "rows": rows, "one_tangent_over_plain_pass": tangent / plain}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

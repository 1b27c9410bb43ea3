"""How far are single entries from their exact values, and does the estimate say so?

    python benchmarks/entries.py DEV.CSV [--model FOLDER] [--layers 0 3 5] [--references pad unk reversed] [--pairs 20]

Compares explanations at the default tolerance with those at a hundredth of it. Writes
``benchmarks/results/entries.json``: for each model, layer and reference the largest true and the largest estimated
error of an entry, the largest error of a score, and the nodes. "reversed" is the text's own representation with its
rows in reverse: the total of that path needs one node, by symmetry, and its parts need many.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from peers import machine
from torch import Tensor

from whymatch import Explainer

RESULTS = Path(__file__).parent / "results/entries.json"
LONGEST = 12  # words of a text


def reversed_rows(x: Tensor) -> Tensor:
    return x.flip(0)


def measure(model: Any, pairs: list[tuple[str, str]], layer: int, reference: str) -> dict[str, Any]:
    given: Any = reversed_rows if reference == "reversed" else reference
    usual, exact = (
        list(Explainer(model, layer=layer, path="straight", reference=given, tolerance=tolerance).explain_many(pairs))
        for tolerance in (1e-3, 1e-5)
    )
    true = [float(np.abs(a.matrix - b.matrix).max()) for a, b in zip(usual, exact, strict=True)]
    return {
        "layer": layer,
        "reference": reference,
        "pairs": len(pairs),
        "largest_error_of_a_score": max(why.error for why in usual),
        "largest_error_of_an_entry": max(true),
        "largest_estimate": max(why.entry_error for why in usual),
        "estimates_below_the_truth": sum(why.entry_error < error for why, error in zip(usual, true, strict=True)),
        "nodes_median": float(np.median([why.nodes for why in usual])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", help="a folder; the default model if not given")
    parser.add_argument("--layers", type=int, nargs="*", default=[0, 3, 5])
    parser.add_argument("--references", nargs="*", default=["pad", "unk", "mask", "reversed"])
    parser.add_argument("--pairs", type=int, default=20)
    arguments = parser.parse_args()
    with arguments.data.open(encoding="utf-8") as file:
        rows = [(row[0], row[1]) for row in csv.reader(file)]
    pairs = [pair for pair in rows if max(len(text.split()) for text in pair) <= LONGEST][: arguments.pairs]
    model = Explainer(arguments.model).model
    name = Path(arguments.model or "all-MiniLM-L6-v2").name
    for layer in arguments.layers:
        for reference in arguments.references:
            row = measure(model, pairs, layer, reference)
            print(json.dumps(row), flush=True)
            results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
            kept = results.get(name, {}).get("rows", [])
            kept = [known for known in kept if (known["layer"], known["reference"]) != (layer, reference)]
            results[name] = {"machine": machine(), "rows": [*kept, row]}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

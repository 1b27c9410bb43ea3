"""The paper's Table 1 on the default model: plain and adjusted training, judged by cosine and by dot product.

    python benchmarks/table1.py TRAIN.CSV OUT [--seeds 0 1] [--only NAME …]

Trains every recipe with every seed into OUT (a run that was interrupted is resumed, one that is finished is kept) and
writes ``benchmarks/results/table1.json``. ``benchmarks/tables.py`` makes the table of the documents from it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from peers import machine

from whymatch import models
from whymatch.training import Recipe, adjust, evaluate_sts, train
from whymatch.training.data import read_splits

RESULTS = Path(__file__).parent / "results/table1.json"
# What is compared in the table, and what else was tried to make the dot product free.
RECIPES: dict[str, dict[str, Any]] = {
    "plain-cosine": {"adjusted": False, "objective": "cosine"},
    "adjusted-cosine": {"objective": "cosine"},
    "adjusted-dot": {"objective": "dot"},
    "adjusted-dot, normalized": {"objective": "dot", "normalized": True},
    "adjusted-cosine, normalized": {"objective": "cosine", "normalized": True},
    "adjusted-dot, own 1": {"objective": "dot", "own": 1.0},
    "adjusted-dot, scale one": {"objective": "dot", "scale": "one"},
    "adjusted-dot, scale learned": {"objective": "dot", "scale": "learned"},
    "adjusted-dot, lr 5e-5": {"objective": "dot", "lr": 5e-5},
    "adjusted-dot, warmup 0.3": {"objective": "dot", "warmup": 0.3},
    "adjusted-dot, taught": {"objective": "dot", "teacher": "plain-cosine"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="the pairs to train on; dev and test are found beside them")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="*", help="the recipes to run; the others' results are kept as they are")
    options = parser.parse_args()
    splits = read_splits(options.train)
    assert splits.test is not None
    print(splits, flush=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"untrained": {}, "runs": []}
    results["machine"] = machine()
    if not results["untrained"]:
        model, _ = models.load(None, None)
        results["untrained"] = {
            "unmodified": evaluate_sts(model, splits.test),
            "shifted": evaluate_sts(adjust(model), splits.test),
        }
    for seed in options.seeds:
        for name in options.only or list(RECIPES):
            changes = dict(RECIPES[name])
            if changes.get("teacher"):
                changes["teacher"] = str(options.out / f"{changes['teacher']}-{seed}")
            print(f"--- {name}, seed {seed}", flush=True)
            folder = options.out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"
            record = train(
                Recipe(seed=seed, **changes),
                splits,
                folder,
                resume=folder.exists(),
                say=lambda line: print(line, flush=True),
            )
            print(json.dumps(record["test"]), flush=True)
            kept = [run for run in results["runs"] if (run["recipe"], run["seed"]) != (name, seed)]
            results["runs"] = [
                *kept,
                {
                    "recipe": name,
                    "seed": seed,
                    **{key: record[key] for key in ("epochs", "dev", "test", "seconds", "steps")},
                },
            ]
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

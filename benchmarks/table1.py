"""The paper's Table 1: plain and adjusted training of a model, evaluated by cosine and by dot product.

    python benchmarks/table1.py TRAIN.CSV OUT [--model MODEL] [--seeds 0 1] [--precision bfloat16]
        [--only NAME …] [--tried NAME …]

Trains every recipe with every seed into OUT, and the variants in TRIED with the first seed, for one epoch. Interrupted
runs are resumed, finished ones are kept. Adds to ``benchmarks/results/table1.json``, which holds the results of each
model, and from which ``benchmarks/tables.py`` makes the tables of the documents.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from peers import machine

from whymatch.encoders import loading
from whymatch.files import write_json
from whymatch.training import Recipe, adjust, evaluate_sts, train
from whymatch.training.data import read_splits

RESULTS = Path(__file__).parent / "results/table1.json"
RECIPES: dict[str, dict[str, Any]] = {
    "plain-cosine": {"adjusted": False, "objective": "cosine"},
    "adjusted-cosine": {"objective": "cosine"},
    "adjusted-dot": {"objective": "dot"},
    "adjusted-cosine, normalized": {"objective": "cosine", "normalized": True},
    "adjusted-dot, normalized, centred, own 1": {"objective": "dot", "normalized": True, "centred": True, "own": 1.0},
    # For models of which five epochs take hours.
    "adjusted-dot, normalized, centred, own 1, 2 epochs": {
        "objective": "dot",
        "normalized": True,
        "centred": True,
        "own": 1.0,
        "epochs": 2,
    },
}
# What was tried to make the dot product free: adjusted-dot with these options, for one epoch.
TRIED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "normalized --centred": {"normalized": True, "centred": True},
    "normalized --centred --own 1": {"normalized": True, "centred": True, "own": 1.0},
    "own 1": {"own": 1.0},
    "teacher plain-cosine": {"teacher": "plain-cosine"},
    "lr 5e-5": {"lr": 5e-5},
    "warmup 0.3": {"warmup": 0.3},
    "scale learned": {"scale": "learned"},
    "scale one": {"scale": "one"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", help="the pairs to train on; dev and test are found beside them")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default=loading.DEFAULT_MODEL, help="a hub id or a folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    for group, names, meaning in (
        ("--only", RECIPES, "the recipes to train in full; other results are kept"),
        ("--tried", TRIED, "the variants to try for one epoch; other results are kept"),
    ):
        parser.add_argument(group, nargs="*", choices=list(names), metavar="NAME", help=meaning)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of matrix products")
    options = parser.parse_args()
    chosen = {"trained": options.only, "tried": options.tried}
    if options.only is None and options.tried is None:
        chosen = {"trained": list(RECIPES), "tried": list(TRIED)}
    splits = read_splits(options.train)
    assert splits.test is not None
    print(splits, flush=True)
    base = Path(options.model).name
    if base not in _results():
        model, _ = loading.load(options.model, None)
        untrained = {
            "unmodified": evaluate_sts(model, splits.test),
            "shifted": evaluate_sts(adjust(model), splits.test),
            "shifted, normalized": evaluate_sts(adjust(model, normalized=True), splits.test),
        }
        write_json(RESULTS, _results() | {base: {"untrained": untrained, "trained": [], "tried": []}}, indent=1)
    runs = [("trained", name, seed, changes) for name, changes in RECIPES.items() for seed in options.seeds]
    runs += [("tried", name, options.seeds[0], {"epochs": 1, **changes}) for name, changes in TRIED.items()]
    for group, name, seed, changes in runs:
        if name not in (chosen[group] or ()):
            continue
        if "teacher" in changes:
            changes = changes | {"teacher": str(options.out / f"{changes['teacher']}-{seed}")}
        print(f"--- {name}, seed {seed}", flush=True)
        folder = options.out / "-".join(re.findall(r"[\w.]+", f"{'tried ' * (group == 'tried')}{name} {seed}"))
        record = train(
            Recipe(base=options.model, seed=seed, precision=options.precision, **changes),
            splits,
            folder,
            resume=folder.exists(),
            say=lambda line: print(line, flush=True),
        )
        print(json.dumps(record["test"]), flush=True)
        measured = {key: record[key] for key in ("epochs", "dev", "test", "seconds", "steps")}
        models = _results()  # read anew: other recipes may have been trained meanwhile
        results = models[base]
        others = [run for run in results[group] if (run["recipe"], run["seed"]) != (name, seed)]
        order = list(RECIPES if group == "trained" else TRIED)
        results[group] = sorted(
            [*others, {"recipe": name, "seed": seed, "precision": options.precision, **measured}],
            key=lambda run: (order.index(run["recipe"]), run["seed"]),
        )
        results["machine"] = machine() | {"model": base}
        write_json(RESULTS, models, indent=1)


def _results() -> dict[str, Any]:
    """Read the results of all models so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}


if __name__ == "__main__":
    main()

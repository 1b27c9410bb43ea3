"""Gather the results of `whymatch evaluate` and `whymatch study negation` into the files that the tables are made of.

    whymatch evaluate all --data DIR --split test --out OUT …
    whymatch study negation --data FILE.tsv --out DIR --methods
    python benchmarks/truth.py OUT… DIR/methods

Adds to ``benchmarks/results/truth.json`` and ``negation.json``, without the single pairs, in the place of earlier
results of the same test, data and method with as many pairs or fewer, and draws the figures of ``docs/truth.md``.
``benchmarks/tables.py`` then makes its tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whymatch.studies import charts
from whymatch.truth.runs import read_results

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
MEASURED = {
    "coalitions": "ranks the model's scores without some words (Spearman)",
    "alignment": "finds people's links between words (top-1)",
}
BASELINES = ("token cosine", "last-layer", "random", "leave one", "gradient", "attention", "Shapley", "exact", "shapiq")


def gather(folders: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Read the results in folders, by the file that they belong to."""
    gathered: dict[str, list[dict[str, Any]]] = {"truth": [], "negation": []}
    for folder in folders:
        for result in read_results(folder):
            content = result.to_dict()
            del content["pairs"]
            content["settings"]["model"] = Path(content["settings"]["model"]).name
            gathered["negation" if result.test == "negation" else "truth"].append(content)
    return gathered


def merge(earlier: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the results of one question, keep the one with the most pairs; of those, the newest."""

    def question(result: dict[str, Any]) -> tuple[Any, ...]:
        names = ("model", "data", "split", "subject", "units", "removal", "max_words", "seed")
        return result["test"], *(result["settings"].get(name) for name in names)

    # Sorting keeps the order of equals, so that the newest of them comes last.
    by_pairs = sorted([*earlier, *new], key=lambda result: int(result["counts"]["pairs"]))
    kept = {question(each): each for each in by_pairs}
    return [kept.pop(asked) for each in [*earlier, *new] if (asked := question(each)) in kept]


def draw(results: Sequence[dict[str, Any]]) -> None:
    """Draw, for each model, how well each method predicts the model, and how often it points where people point."""
    models: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for each in results:
        settings = each["settings"]
        if settings["split"] != "test" or settings.get("removal", "delete") != "delete" or each["failure"]:
            continue
        if "max_words" in settings:
            continue
        if settings.get("units", "words") == "words" and each["test"] in MEASURED:
            methods = models.setdefault(settings["model"], {})
            methods.setdefault(settings["subject"], {})[each["test"]] = each["estimates"][each["headline"]]
    if not models:
        return
    rows = list(map(len, models.values()))
    figure, axes = charts.panels(2 * len(models), 4.4, 0.8 + 0.19 * sum(rows) / len(rows), across=2)
    grid = axes[0].get_gridspec()
    assert grid is not None
    grid.set_height_ratios(rows)
    for i, (model, methods) in enumerate(models.items()):
        order = sorted(methods, key=lambda name: -methods[name].get("coalitions", {"value": -1.0})["value"])
        for axis, (test, meaning) in zip(axes[2 * i : 2 * i + 2], MEASURED.items(), strict=True):
            for y, name in enumerate(order):
                if test in methods[name]:
                    at = methods[name][test]
                    colour = "0.55" if name.startswith(BASELINES) else "#d95f02"
                    axis.plot([at["low"], at["high"]], [y, y], color=colour, linewidth=1.5)
                    axis.plot(at["value"], y, "o", color=colour, markersize=4)
            axis.set_yticks(range(len(order)), order, fontsize=7)
            axis.set_ylim(len(order) - 0.5, -0.5)
            axis.set_xlim(0, 1)
            axis.grid(axis="x", color="0.9")
            axis.set_axisbelow(True)
            axis.set_xlabel(meaning)
            axis.set_title(model, fontsize=9)
    charts.save(figure, DOCS / "truth.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUT")
    gathered = gather(parser.parse_args().folders)
    for name, new in gathered.items():
        path = HERE / "results" / f"{name}.json"
        results = gathered[name] = merge(json.loads(path.read_text()) if path.is_file() else [], new)
        if new:
            path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"written: {path.name}, {len(results)} results")
    draw(gathered["truth"])


if __name__ == "__main__":
    main()

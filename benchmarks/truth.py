"""Gather the results of `whymatch evaluate` and `whymatch study negation` into the files that the tables are made of.

    whymatch evaluate all --data DIR --split test --out OUT …
    whymatch study negation --data FILE.tsv --out DIR --methods
    python benchmarks/truth.py OUT… DIR/methods

Adds to ``benchmarks/results/truth.json`` and ``negation.json``, without the single pairs, in the place of earlier
results of the same test, data and method, and draws the figures of ``docs/truth.md``. ``benchmarks/tables.py`` then
makes its tables.
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
    """Replace earlier results by new ones that answer the same question."""

    def question(result: dict[str, Any]) -> tuple[Any, ...]:
        names = ("model", "data", "split", "subject", "units", "removal", "max_words")
        return result["test"], *(result["settings"].get(name) for name in names)

    return list(({question(each): each for each in earlier} | {question(each): each for each in new}).values())


def draw(results: Sequence[dict[str, Any]]) -> None:
    """Draw, for each model, how well each method foretells the model against how well it points where people point."""
    points: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for each in results:
        settings = each["settings"]
        if settings["split"] != "test" or settings.get("removal", "delete") != "delete" or each["failure"]:
            continue
        if settings.get("units", "words") == "words" and each["test"] in ("coalitions", "alignment"):
            methods = points.setdefault(settings["model"], {})
            methods.setdefault(settings["subject"], {})[each["test"]] = each["estimates"][each["headline"]]
    both = {model: {n: p for n, p in methods.items() if len(p) == 2} for model, methods in points.items()}
    models = [model for model, methods in both.items() if methods]
    if not models:
        return
    figure, axes = charts.panels(len(models), 5.2, 4.2, across=2)
    for axis, model in zip(axes, models, strict=True):
        for name, point in both[model].items():
            x, y = point["coalitions"], point["alignment"]
            colour = "0.55" if name.startswith(BASELINES) else "#d95f02"
            axis.errorbar(
                x["value"],
                y["value"],
                xerr=[[x["value"] - x["low"]], [x["high"] - x["value"]]],
                yerr=[[y["value"] - y["low"]], [y["high"] - y["value"]]],
                fmt="o",
                color=colour,
                markersize=4,
                linewidth=0.8,
            )
            axis.annotate(name, (x["value"], y["value"]), xytext=(4, 3), textcoords="offset points", fontsize=6)
        axis.set_xlabel("foretells the model (coalitions, Spearman)")
        axis.set_ylabel("points where people point (top-1)")
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

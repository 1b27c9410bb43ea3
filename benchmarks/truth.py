"""Judge explanations of four real models, and gather the results into the file that the tables are made of.

    python benchmarks/truth.py run --data DIR --models DIR --out OUT [--model NAME …] [--hours N]
    whymatch study negation --data FILE.tsv --out DIR --methods
    python benchmarks/truth.py gather OUT/* DIR/methods

``run`` goes through the plan below, what decides first, and may be stopped and started again: what is in ``OUT`` is not
run twice. It first says how long everything took when it was last run. With two cores, give each of two runs some of
the models, and set ``OMP_NUM_THREADS=1``.

``gather`` adds to ``benchmarks/results/truth.json`` and ``negation.json``, without the single pairs, in the place of
earlier results of the same test, data and method with as many measures and pairs or fewer, and draws the figures of
``docs/truth.md``. ``benchmarks/tables.py`` then makes its tables.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from tables import DEFAULTS

from whymatch.studies import charts
from whymatch.truth import evaluation
from whymatch.truth.runs import read_results

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
MEASURED = {"coalitions": "predicts the model (Spearman)", "alignment": "finds people's links (top-1)"}
ORANGE, GREY = "#d95f02", "0.55"  # whymatch, and what it is compared with
BASELINES = (
    "token cosine",
    "last-layer",
    "random",
    "word",
    "counting",
    "leave",
    "gradient",
    "attention",
    "Shapley",
    "exact",
    "shapiq",
)

MINILM, MPNET, GRANITE, NOMIC = MODELS = (
    "all-MiniLM-L6-v2",
    "all-mpnet-base-v2",
    "granite-embedding-30m-english",
    "nomic-embed-text-v1.5",
)
CHEAP = (MINILM, MPNET, GRANITE)  # nomic-embed-text-v1.5 is six times as dear as all-MiniLM-L6-v2
BOTH = ("coalitions", "alignment")
FURTHER = ("insertion_deletion", "sanity", "chunks", "answers")
OTHER_WAYS = (("tokens", "delete"), ("words", "mask"), ("words", "pad"))
TOLERANCE = 1e-2  # changes entries by far less than the intervals
# What an explanation is without the questions to the model, and with special tokens that keep what they have.
ASKED: dict[str, Any] = {}
PLAIN, KEEP = {"divisions": 0}, {"divisions": 0, "special": "keep"}
LAST_COSINE = "token-cosine:-1"
SECANT = {"path": "secant"}  # is the default of all but nomic-embed-text-v1.5


@dataclass(frozen=True)
class Step:
    """Some tests of some explanations of some models.

    Attributes:
        settings: the keyword arguments of explainers.
        methods: baselines, by name.
        max_words: of both texts.
        ways: how coalitions remove what: units and removal.
    """

    models: Sequence[str]
    tests: Sequence[str]
    pairs: int
    settings: Sequence[Mapping[str, Any]] = ()
    methods: Sequence[str] = field(default=(), kw_only=True)
    max_words: int | None = field(default=None, kw_only=True)
    ways: Sequence[tuple[str, str]] = field(default=(("words", "delete"),), kw_only=True)


def by_reference(paths: Sequence[str], layer: int) -> list[dict[str, Any]]:
    """Settings that differ in path and reference."""
    return [
        {"path": path, "layer": layer, "reference": each} | KEEP
        for path, each in product(paths, ("pad", "mask", "unk"))
    ]


PLAN = (
    # The defaults, and what anybody can compute.
    Step(CHEAP, BOTH, 200, [ASKED], methods=["token-cosine"]),  # at every layer
    Step([NOMIC], BOTH, 60, [SECANT], methods=["token-cosine"]),
    Step([NOMIC], BOTH, 60, [ASKED]),
    Step(CHEAP, ["alignment"], 75, [ASKED], methods=[LAST_COSINE], max_words=16),
    Step(CHEAP, FURTHER, 60, [ASKED], methods=[LAST_COSINE]),
    Step([NOMIC], FURTHER, 24, [SECANT], methods=[LAST_COSINE]),
    # What the questions to the model are worth, what a base is, and other references.
    Step(CHEAP, BOTH, 200, [PLAIN, {"reference": "mask"} | KEEP, {"reference": "unk"} | KEEP]),
    Step([GRANITE], BOTH, 200, [KEEP]),
    Step([MINILM], BOTH, 200, [{"special": "base"} | PLAIN]),
    Step([NOMIC], BOTH, 60, [SECANT | PLAIN, SECANT | KEEP]),
    Step([NOMIC], ["coalitions"], 60, [SECANT | {"divisions": 8}]),
    Step(CHEAP, FURTHER, 60, [PLAIN]),
    # Coalitions that are made in other ways than the questions to the model.
    Step(CHEAP, ["coalitions"], 100, [ASKED, PLAIN], methods=[LAST_COSINE, "leave-one-out"], ways=OTHER_WAYS),
    # Layers.
    Step([MINILM], BOTH, 200, [{"layer": 3} | KEEP]),
    Step([MINILM], BOTH, 100, [{"layer": each} | KEEP for each in (4, 5)]),
    Step([MPNET], BOTH, 200, [{"layer": 9} | KEEP]),
    Step([MPNET], BOTH, 100, [{"layer": each} | KEEP for each in (10, 11)]),
    Step([MPNET], BOTH, 60, [{"layer": each} | KEEP for each in (0, 4)]),
    Step([GRANITE], BOTH, 200, [{"layer": 3} | KEEP]),
    Step([GRANITE], BOTH, 100, [{"layer": each} | KEEP for each in (4, 5)]),
    Step([GRANITE], BOTH, 60, [{"layer": 3} | PLAIN]),
    Step([NOMIC], BOTH, 60, [{"layer": 11} | SECANT | KEEP]),
    # Other references along other paths.
    Step([MINILM], BOTH, 60, by_reference(("relay", "straight"), 3)),
    Step([GRANITE], BOTH, 60, by_reference(("relay", "straight"), 5)),
    Step([MPNET], BOTH, 60, by_reference(("relay", "straight"), 11)),
    Step([NOMIC], BOTH, 60, by_reference(("secant",), 11)),
    # Paths, special tokens shared among words, and the paper's own form.
    Step([MINILM], BOTH, 100, [{"path": "relay", "layer": each} | KEEP for each in (0, 1, 5)]),
    Step([MINILM], BOTH, 100, [{"path": "relay-2", "layer": 0} | KEEP, {"path": "straight", "layer": 0} | KEEP]),
    Step([MPNET], BOTH, 100, [{"path": each, "layer": 10} | KEEP for each in ("relay", "straight")]),
    Step([MPNET], BOTH, 100, [{"path": "relay", "layer": 11} | KEEP]),
    Step([GRANITE], BOTH, 100, [{"path": "relay", "layer": each} | KEEP for each in (0, 5)]),
    Step([GRANITE], BOTH, 60, [{"path": "straight", "layer": each} | KEEP for each in (3, 5)]),
    Step([GRANITE], BOTH, 60, [{"path": "relay-2", "layer": 0} | KEEP]),
    Step([GRANITE], ["coalitions"], 60, [{"path": "straight", "layer": 0} | KEEP]),
    Step([NOMIC], BOTH, 60, [{"path": "relay", "layer": each} | KEEP for each in (0, 11)]),
    Step([MINILM], BOTH, 100, [{"path": "relay", "layer": 5, "special": "share"} | PLAIN]),
    Step([MINILM, GRANITE], BOTH, 100, [{"layer": 4, "special": "share"} | PLAIN]),
    Step([MINILM], BOTH, 60, methods=["unfolded"], settings=[{"layer": each} for each in (3, 5)]),
    Step([GRANITE], BOTH, 60, methods=["unfolded"], settings=[{"layer": 5}]),
    Step([MPNET], BOTH, 60, methods=["unfolded"], settings=[{"layer": 10}]),
    # Other methods.
    Step(CHEAP, BOTH, 200, methods=["random", "last-dot", "attention-rollout", "leave-one-out"]),
    Step([NOMIC], BOTH, 60, methods=["random", "last-dot", "attention-rollout", "leave-one-out"]),
    Step(CHEAP, ["coalitions"], 200, methods=["word-count"]),
    Step([NOMIC], ["coalitions"], 60, methods=["word-count"]),
    Step([MINILM, GRANITE], BOTH, 100, methods=["shapley:4"]),
    Step([MPNET, NOMIC], BOTH, 60, methods=["shapley:4"]),
    Step(MODELS, ["coalitions"], 60, methods=["gradient-input"]),
    Step([MINILM], ["coalitions"], 40, methods=["retrivex:5:20"]),
    # Short pairs, where every subset can be asked.
    Step([MINILM], ["coalitions"], 60, [PLAIN], methods=["exact-shapley", "leave-one-out", LAST_COSINE], max_words=7),
    Step([MINILM], ["coalitions"], 25, methods=["shapiq"], max_words=7),
)


def plans(step: Step, model: str, data: Path, models: Path) -> Iterator[evaluation.Plan]:
    """Turn a step into what ``whymatch evaluate`` runs of one model."""
    files = {"alignment": "mwa/mtref-dev.tsv", "chunks": "ists", "answers": "xquad/xquad-en-dev.json"}
    place = None if model == MINILM else str(models / model)  # that one is the default
    for test, (units, removal) in product(step.tests, step.ways):
        for methods in ([*step.methods], ["whymatch"]):
            unfolded = methods == ["unfolded"]
            settings = step.settings if unfolded or methods == ["whymatch"] else ({},)
            if not methods or not settings or ("unfolded" in step.methods and not unfolded):
                continue
            yield evaluation.Plan(
                tests=[test],
                data=[data / files.get(test, "stsb/stsb-en-test.csv")],
                models=[place],
                methods=methods,
                settings=[{"tolerance": TOLERANCE} | dict(each) for each in settings],
                units=[units],
                removals=[removal],
                pairs=step.pairs,
                split="test",
                max_words=step.max_words,
            )


def run(data: Path, models: Path, out: Path, names: Sequence[str], hours: float) -> None:
    """Run the plan for some models, until the hours are over."""
    path = HERE / "results" / "truth.json"
    before = json.loads(path.read_text()) if path.is_file() else []
    last = sum(each["seconds"] for each in before if each["settings"]["model"] in names) / 3600
    print(f"the explanations of these models took {last:.1f} hours of one core when they were last made", flush=True)
    start = time.monotonic()
    for step in PLAN:
        for model in names:
            for plan in plans(step, model, data, models) if model in step.models else ():
                if time.monotonic() - start > hours * 3600:
                    print(f"stopped after {hours:g} hours; the same command goes on")
                    return
                for result in evaluation.run(plan, out / model, say=lambda line: print(line, flush=True)):
                    print(f"{model}: {result!r}", flush=True)


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
    """Of the results of one question, keep the one with the most measures and pairs; of those, the newest."""

    def question(result: dict[str, Any]) -> tuple[Any, ...]:
        names = ("model", "data", "split", "subject", "units", "removal", "max_words", "seed")
        return result["test"], *(result["settings"].get(name) for name in names)

    # Sorting keeps the order of equals, so that the newest of them comes last.
    by_content = sorted([*earlier, *new], key=lambda result: (len(result["estimates"]), int(result["counts"]["pairs"])))
    kept = {question(each): each for each in by_content}
    return [kept.pop(asked) for each in [*earlier, *new] if (asked := question(each)) in kept]


Judged = dict[str, dict[str, dict[str, dict[str, Any]]]]  # by model, subject and test


def judged(results: Sequence[dict[str, Any]]) -> Judged:
    """Sort the results on held-out pairs of all lengths, of whole words that are deleted."""
    models: Judged = {}
    for each in results:
        settings = each["settings"]
        usual = (settings.get("units", "words"), settings.get("removal", "delete")) == ("words", "delete")
        held_out = settings["split"] == "test" and "max_words" not in settings
        if usual and held_out and not each["failure"] and each["test"] in MEASURED:
            models.setdefault(settings["model"], {}).setdefault(settings["subject"], {})[each["test"]] = each
    return models


def value_of(result: dict[str, Any]) -> dict[str, float]:
    estimate: dict[str, float] = result["estimates"][result["headline"]]
    return estimate


def layer_of(subject: str) -> int | None:
    """The layer of a subject that is compared by layers: of the default path without more, or of token cosine."""
    match = re.fullmatch(r"(?:secant|token cosine) (\d+)", subject)
    return int(match[1]) if match else None


def find_ways(model: str, methods: Mapping[str, Any]) -> dict[str, str]:
    """Find the methods that a figure compares: what they are called there, and in the results of this model."""
    own, cosine = DEFAULTS[model]

    def nearest_input(start: str) -> str:
        layers = [int(match[1]) for name in methods if (match := re.fullmatch(rf"{start} (\d+)", name))]
        return f"{start} {min(layers)}" if layers else ""

    unfolded = [name for name in methods if name.endswith("unfolded")]
    return {
        "by default": own,
        "without divisions": re.sub(r", divisions=\d+", "", own),
        "relay": nearest_input("relay"),
        "straight": nearest_input("straight"),
        "the paper's, unfolded": max(unfolded, default=""),
        "leave one out": "leave one out",
        "Shapley, 4 a word": "Shapley, 4 a word",
        "gradient × input": "gradient × input",
        "last-layer dot": "last-layer dot",
        "token cosine": cosine,
        "attention rollout": "attention rollout",
        "counting words": "word count",
        "random": "random",
    }


def draw_methods(models: Judged) -> None:
    """Draw, for each model, how well each method predicts the model, and how often it points where people point."""
    figure, axes = charts.panels(2 * len(models), 2.7, 2.9, across=len(models), same=True)
    for column, (model, methods) in enumerate(models.items()):
        ways = find_ways(model, methods)
        for axis, (test, meaning) in zip(axes[column :: len(models)], MEASURED.items(), strict=True):
            for y, (label, name) in enumerate(ways.items()):
                if test in methods.get(name, {}):
                    at = value_of(methods[name][test])
                    colour = GREY if label.startswith(BASELINES) else ORANGE
                    axis.plot([at["low"], at["high"]], [y, y], color=colour, linewidth=1.5)
                    axis.plot(at["value"], y, "o", color=colour, markersize=4)
            axis.set_yticks(range(len(ways)), list(ways))
            axis.set_ylim(len(ways) - 0.5, -0.5)
            axis.set_xlim(-0.05, 1)
            axis.grid(axis="x", color="0.9")
            axis.set_axisbelow(True)
            axis.tick_params(labelsize=7, labelleft=column == 0)
            axis.set_xlabel(meaning, fontsize=8)
            axis.set_title(model, fontsize=8)
    charts.save(figure, DOCS / "truth.svg")


def draw_layers(models: Judged) -> None:
    """Draw both tests against the layer at which a secant begins, and at which token vectors are compared."""
    figure, axes = charts.panels(2 * len(models), 2.9, 2.5, across=len(models), same="y")
    lines = {"secant": (ORANGE, "secants from this layer"), "token cosine": (GREY, "cosine of its token vectors")}
    for i, (test, meaning) in enumerate(MEASURED.items()):
        for axis, (model, methods) in zip(axes[i * len(models) :], models.items(), strict=False):
            for start, (colour, label) in lines.items():
                points = {
                    layer: value_of(of[test])
                    for name, of in methods.items()
                    if name.startswith(start) and test in of and (layer := layer_of(name)) is not None
                }
                at = sorted(points)
                axis.fill_between(
                    at, [points[x]["low"] for x in at], [points[x]["high"] for x in at], color=colour, alpha=0.2, lw=0
                )
                axis.plot(at, [points[x]["value"] for x in at], "o-", color=colour, markersize=3, label=label)
            axis.set_ylim(0, 1)
            axis.locator_params(axis="x", integer=True)
            axis.grid(axis="y", color="0.9")
            axis.set_axisbelow(True)
            axis.tick_params(labelsize=8)
            axis.set_xlabel("layer", fontsize=8)
            if i == 0:
                axis.set_title(model, fontsize=9)
        axes[i * len(models)].set_ylabel(meaning.replace(" (", "\n("), fontsize=8)
    axes[0].legend(fontsize=7, frameon=False, loc="lower left")
    charts.save(figure, DOCS / "truth-layers.svg")


def draw_negation(results: Sequence[dict[str, Any]]) -> None:
    """Draw how often the word that was changed is the one that lacks most, for each kind of change."""
    kinds = {"negation": "a negation", "antonym": "an antonym", "same": "another word for the same"}
    models: dict[str, list[dict[str, Any]]] = {}
    for each in results:
        models.setdefault(each["settings"]["model"], []).append(each)
    most = max(map(len, models.values()))
    figure, axes = charts.panels(len(models), 3.4, 1.2 + 0.45 * most, across=2, same="x")
    for axis, (model, methods) in zip(axes, models.items(), strict=True):
        for y, each in enumerate(methods):
            baseline = each["settings"]["subject"].startswith(BASELINES)
            for (kind, label), shift, mark in zip(kinds.items(), (-0.22, 0, 0.22), "osD", strict=True):
                at = each["estimates"][f"seen_{kind}"]
                colour = GREY if baseline else ORANGE
                axis.plot([at["low"], at["high"]], [y + shift] * 2, color=colour, linewidth=1.2)
                axis.plot(
                    at["value"],
                    y + shift,
                    mark,
                    color=colour,
                    markersize=4,
                    markerfacecolor="white" if kind == "same" else colour,
                    label=label if y == 0 else None,
                )
        subjects = [each["settings"]["subject"] for each in methods]
        labels = ["by default" if name == DEFAULTS[model][0] else name for name in subjects]
        axis.set_yticks(range(len(methods)), labels, fontsize=7)
        axis.set_ylim(len(methods) - 0.5, -0.5)
        axis.set_xlim(-0.03, 1.03)
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=7)
        axis.set_title(model, fontsize=9)
        axis.set_xlabel("the changed word lacks most", fontsize=8)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, frameon=False, ncols=3, loc="outside upper center")
    charts.save(figure, DOCS / "truth-negation.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="judge explanations")
    running.add_argument("--data", type=Path, required=True, help="the folder with stsb, mwa, ists and xquad")
    running.add_argument("--models", type=Path, required=True, help="the folder with all models but the default one")
    running.add_argument("--out", type=Path, required=True, help="the folder of results, one for each model in it")
    running.add_argument("--model", action="append", choices=MODELS, help="only these; repeat it for several")
    running.add_argument("--hours", type=float, default=6.0, help="begin nothing new after so many hours")
    gathering = commands.add_parser("gather", help="add results to those that are committed")
    gathering.add_argument("folders", nargs="+", type=Path, metavar="OUT")
    given = parser.parse_args()
    if given.command == "run":
        run(given.data, given.models, given.out, given.model or MODELS, given.hours)
        return
    gathered = gather(given.folders)
    for name, new in gathered.items():
        path = HERE / "results" / f"{name}.json"
        results = gathered[name] = merge(json.loads(path.read_text()) if path.is_file() else [], new)
        if new:
            path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"written: {path.name}, {len(results)} results")
    if models := judged(gathered["truth"]):
        draw_methods(models)
        draw_layers(models)
    if gathered["negation"]:
        draw_negation(gathered["negation"])


if __name__ == "__main__":
    main()

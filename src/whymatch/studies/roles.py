"""Which syntactic roles a model compares: subjects, predicates, objects and what goes with them.

The paper says that a model's similarity is determined by arguments and predicates in synthetic data, and largely so in
real texts. Its parts of speech cannot tell a subject from an object; a parser can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, percent
from whymatch.studies.parsers import ROLES
from whymatch.studies.pos import Words, relation, relations, tagged, top_shares

DEPENDS = ("pairs", "usual", "parser")
TOP = 0.1
CORE = frozenset({"subject", "predicate", "object"})


def summary(pairs: list[Words]) -> dict[str, Any]:
    """Summarise what pairs of roles add to scores: their mean value, their share, and how often they are highest."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    core = []
    for values, a, b, score in pairs:
        names = relations(a, b)
        for name in np.unique(names).tolist():
            chosen = values[names == name]
            sums[name] = sums.get(name, 0.0) + float(chosen.sum())
            counts[name] = counts.get(name, 0) + chosen.size
        inside = np.outer([role in CORE for role in a], [role in CORE for role in b])
        core.append(float(values[inside].sum() / score) if score else 0.0)
    total, entries = sum(score for *_, score in pairs), sum(counts.values())
    highest = top_shares(pairs, TOP)
    found = sum(highest.values()) or 1
    return {
        "relations": {
            name: {
                "entries": counts[name],
                "share_of_entries": counts[name] / entries,
                "mean": sums[name] / counts[name],
                "share_of_score": sums[name] / total,
                "share_of_highest": highest[name] / found,
            }
            for name in sorted(sums, key=lambda each: -sums[each])
        },
        "subjects, predicates and objects explain": [float(np.mean(core)), float(np.std(core))],
    }


def lift(measured: dict[str, Any], name: str) -> float:
    """Return how much more often a relation is among the highest attributions than among all."""
    found = measured["relations"].get(name)
    return found["share_of_highest"] / found["share_of_entries"] if found else 0.0


def strongest(measured: dict[str, Any], names: Iterable[str]) -> list[str]:
    return sorted((name for name in names if name in measured["relations"]), key=lambda name: -lift(measured, name))


def run(experiment: Experiment) -> Result:
    parser = experiment.parser
    numbers: dict[str, Any] = {}
    for subject in experiment.subjects:
        pairs = tagged(experiment.explanations(subject, None), parser, "sum")
        numbers[subject.label] = {"layer": subject.usual.settings.layer, **summary(pairs)}
    lifts = {
        name: np.array([[lift(measured, relation(a, b)) for b in ROLES] for a in ROLES])
        for name, measured in numbers.items()
    }
    largest = max(float(values.max()) for values in lifts.values()) or 1.0
    figure, axes = charts.panels(len(numbers), 3.8, 3.4, across=2)
    for each, (name, values) in zip(axes, lifts.items(), strict=True):
        drawn = each.imshow(values, cmap="Oranges", vmin=0, vmax=largest)
        for (i, j), value in np.ndenumerate(values):
            colour = "white" if value > 0.6 * largest else "0.2"
            each.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=7, color=colour)
        each.set_xticks(range(len(ROLES)), ROLES, rotation=60, ha="right", fontsize=7)
        each.set_yticks(range(len(ROLES)), ROLES, fontsize=7)
        each.set_title(name, fontsize=9)
    bar = figure.colorbar(drawn, ax=axes, aspect=30)
    bar.set_label("times as often among the highest 10 %", fontsize=8)
    compared = []
    same = [relation(role, role) for role in ROLES[:4]]
    for name, measured in numbers.items():
        first = ", ".join(f"{each} × {lift(measured, each):.1f}" for each in strongest(measured, same))
        compared.append(Comparison(f"{name}: how much more often among the highest 10 % than by chance", first, "–"))
        mean, deviation = measured["subjects, predicates and objects explain"]
        compared.append(
            Comparison(
                f"{name}: subjects, predicates and objects with each other explain",
                f"{100 * mean:.0f} ± {percent(deviation)}",
                "nouns and verbs: 53 ± 90 %",
            )
        )
    table = [["model", "relation", "share of all", "share of the highest 10 %", "mean", "share of the score"]]
    table += [
        [
            name,
            each,
            percent(found["share_of_entries"]),
            percent(found["share_of_highest"]),
            f"{found['mean']:+.4f}",
            percent(found["share_of_score"]),
        ]
        for name, measured in numbers.items()
        for each, found in list(measured["relations"].items())[:8]
    ]
    return Result(
        title="Syntactic roles",
        notes=[
            f"{len(experiment.pairs):,} pairs, explained with the path and layer that whymatch chooses for each "
            f"model; roles by {parser.name}"
            + (
                ", which guesses them from parts of speech and the order of words and is no parser: relative clauses "
                "and passives fool it. "
                if parser.name == "word order"
                else ". "
            )
            + "Words are sums of their tokens. Shown is how much more often a pair of roles is among the highest tenth "
            "of its pair of texts than among all: 1 is chance. All panels have one scale.",
        ],
        compared=compared,
        tables={"What pairs of roles add": table},
        numbers={"parser": parser.name, **numbers},
        figures={"Which roles are matched: how much more often than by chance": figure},
    )

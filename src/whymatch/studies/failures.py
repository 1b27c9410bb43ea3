"""Figure 10, and what the paper proposes beyond it: where a model is far from people's scores, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result
from whymatch.studies.pos import Words, relations, tagged

DRAWN = 3  # failures of either kind
TENTH = 0.1  # the share of pairs that count as failures of either kind
LEAST = 8
FEW = 30  # failures of a kind, below which their standard errors are hardly worth the name
DEPENDS = ("pairs", "layer", "tagger")


def distances(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Measure how far each score lies above the regression line of scores on labels, in the labels' unit."""
    slope, start = np.polyfit(labels, scores, 1)
    if abs(slope) < 1e-9:
        raise ValueError("these scores do not depend on the labels: no pair is a failure")
    return np.asarray((scores - (slope * labels + start)) / slope)


def parts(pairs: list[Words]) -> tuple[list[str], NDArray[np.float64]]:
    """Sum what each relation adds to a score: the relations, and a row of sums for each pair of texts."""
    sums: list[dict[str, float]] = []
    for values, a, b, _ in pairs:
        added: dict[str, float] = {}
        for name, value in zip(relations(a, b).ravel().tolist(), values.ravel().tolist(), strict=True):
            added[name] = added.get(name, 0.0) + value
        sums.append(added)
    names = sorted({name for added in sums for name in added})
    return names, np.array([[added.get(name, 0.0) for name in names] for added in sums])


def gaps(added: NDArray[np.float64], chosen: NDArray[np.intp], usual: NDArray[np.intp]) -> NDArray[np.float64]:
    """Measure how much more each relation adds in the chosen pairs than in the usual ones, with standard errors."""
    groups = [added[chosen], added[usual]]
    difference = groups[0].mean(0) - groups[1].mean(0)
    return np.stack([difference, np.sqrt(sum(group.var(0) / len(group) for group in groups))])


def check(experiment: Experiment) -> None:
    """Raise an error unless there are failures, and usual pairs to compare them with."""
    if len(experiment.pairs) < LEAST:
        raise ValueError(
            f"the study of failures compares tenths of the pairs: give {LEAST} or more, not {len(experiment.pairs)}"
        )
    if len(set(experiment.labels)) < 2:
        raise ValueError("all these pairs have one label: no pair is a failure")


def run(experiment: Experiment) -> Result:
    check(experiment)
    tagger = experiment.tagger
    low, high = experiment.data.score_range
    figures: dict[str, Any] = {}
    numbers: dict[str, Any] = {"tagger": tagger.name}
    compared: list[Comparison] = []
    for subject in experiment.subjects:
        layer = experiment.inner_layer(subject)
        sample = experiment.sample_at(subject, layer)
        numbered = list(experiment.numbered(subject, layer))
        whys, labels = [why for _, why in numbered], np.array([sample.scores[i] for i, _ in numbered])
        far = distances(np.array([why.score for why in whys]), labels)
        order = np.argsort(far)
        count = max(1, round(TENTH * len(order)))
        groups = {"under": order[:count], "over": order[::-1][:count]}
        names, added = parts(tagged(whys, tagger, "sum"))
        driving: dict[str, dict[str, list[float]]] = {}
        for kind, chosen in groups.items():
            differences, deviations = gaps(added, chosen, order[count:-count])
            strongest = np.argsort(differences if kind == "under" else -differences)[:8]
            driving[kind] = {names[i]: [float(differences[i]), float(deviations[i])] for i in strongest}
            worst = chosen[:DRAWN]
            titles = [
                f"score {whys[i].score:.2f}, people {low + (high - low) * labels[i]:.1f} of {high:g}" for i in worst
            ]
            side = "above" if kind == "over" else "below"
            caption = f"{subject.label}, layer {layer}: farthest {kind}estimated ({side} the line of scores on labels)"
            figures[caption] = charts.matrices([whys[i].words() for i in worst], titles)
            ours = ", ".join(
                f"{name} {value:+.2f} ± {error:.2f}" for name, (value, error) in list(driving[kind].items())[:4]
            )
            what = f"{subject.label}: what drives {kind}estimation, against usual pairs"
            few = f" ({count} pairs: too few to trust)" if count < FEW else ""
            compared.append(Comparison(what, ours + few, "proposed, not done"))
        numbers[subject.label] = {
            "layer": layer,
            "failures_of_each_kind": count,
            "driving": driving,
            "farthest": {
                kind: [
                    {"text_a": whys[i].text_a, "text_b": whys[i].text_b, "score": whys[i].score, "label": labels[i]}
                    for i in chosen[:10]
                ]
                for kind, chosen in groups.items()
            },
        }
    figure, axes = charts.panels(len(experiment.subjects), 5.2, 3.8, same="x")
    for each, subject in zip(axes, experiment.subjects, strict=True):
        driving = numbers[subject.label]["driving"]
        rows = [*driving["over"].items(), *reversed(driving["under"].items())]
        values, errors = ([value[i] for _, value in rows] for i in (0, 1))
        colours = ["#d95f02" if value > 0 else "#2166ac" for value in values]
        each.barh(range(len(rows)), values, xerr=errors, color=colours, ecolor="0.4", error_kw={"linewidth": 0.8})
        each.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
        each.invert_yaxis()
        each.axvline(0, color="0.6", linewidth=0.8)
        each.set_xlabel("part of the score, against usual pairs, ± standard error")
        each.set_title(f"{subject.label}: overestimated above, underestimated below", fontsize=8)
    figures["Relations that drive over- and underestimation, against usual pairs, with standard errors"] = figure
    counts = {subject.label: numbers[subject.label]["failures_of_each_kind"] for subject in experiment.subjects}
    warnings = [
        f"Warning: {name} has {count} failures of each kind. Standard errors over so few pairs are themselves "
        "uncertain, and of dozens of relations some differ by chance: read what drives them as a hint only."
        for name, count in counts.items()
        if count < FEW
    ]
    return Result(
        title="Failures (Figure 10), and what drives them",
        notes=[
            *warnings,
            f"A pair is a failure if its score is among the tenth of {experiment.about_pairs()} that lie farthest "
            "above (overestimated), or below (underestimated), the regression line of scores on labels: not above or "
            "below the label itself. A model whose lowest scores are well above zero thus underestimates a pair that "
            "people gave 0 if its score is below what this model usually gives to such pairs. What drives failures is "
            "the difference between what a relation of parts of speech adds to their scores and to those of the other "
            "pairs, words by sum, with its standard error. Failures may differ from other pairs in their labels and "
            "lengths too, which is not corrected for. Numbers in the matrices are hundredths.",
        ],
        compared=compared,
        numbers=numbers,
        figures=figures,
    )

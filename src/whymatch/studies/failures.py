"""Figure 10, and what the paper proposes beyond it: where a model is far from people, and what drives it there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch.studies import charts
from whymatch.studies.pos import Words, relations, tagged
from whymatch.studies.setting import Compared, Result, Setting

SHOWN = 3  # failures of either kind
TENTH = 0.1  # the pairs that count as failures of either kind
LEAST = 8
DEPENDS = ("pairs", "layer", "tagger")


def distances(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each score lies above the line that best foretells scores from labels, in the labels' unit."""
    slope, start = np.polyfit(labels, scores, 1)
    if abs(slope) < 1e-9:
        raise ValueError("these scores have nothing to do with the labels: there is no failure to speak of")
    return np.asarray((scores - (slope * labels + start)) / slope)


def parts(pairs: list[Words]) -> tuple[list[str], NDArray[np.float64]]:
    """What each relation adds to a score: the relations, and a row for each pair of texts."""
    sums: list[dict[str, float]] = []
    for values, a, b, _ in pairs:
        one: dict[str, float] = {}
        for name, value in zip(relations(a, b).ravel().tolist(), values.ravel().tolist(), strict=True):
            one[name] = one.get(name, 0.0) + value
        sums.append(one)
    names = sorted({name for one in sums for name in one})
    return names, np.array([[one.get(name, 0.0) for name in names] for one in sums])


def gaps(added: NDArray[np.float64], chosen: NDArray[np.intp], usual: NDArray[np.intp]) -> NDArray[np.float64]:
    """How much more each relation adds in the chosen pairs than in the usual ones, and the standard error of that."""
    groups = [added[chosen], added[usual]]
    difference = groups[0].mean(0) - groups[1].mean(0)
    return np.stack([difference, np.sqrt(sum(group.var(0) / len(group) for group in groups))])


def check(setting: Setting) -> None:
    """An error unless there are failures, and usual pairs to compare them with."""
    if len(setting.pairs) < LEAST:
        raise ValueError(
            f"the study of failures compares tenths of the pairs: give {LEAST} or more, not {len(setting.pairs)}"
        )
    if len(set(setting.labels)) < 2:
        raise ValueError("all these pairs have one label: there is no failure to speak of")


def run(setting: Setting) -> Result:
    check(setting)
    tagger = setting.tagger
    labels = np.array(setting.labels)
    low, high = setting.data.score_range
    figures: dict[str, Any] = {}
    numbers: dict[str, Any] = {"tagger": tagger.name}
    compared: list[Compared] = []
    for subject in setting.subjects:
        layer = setting.inner_layer(subject)
        found = list(setting.explanations(subject, layer))
        far = distances(np.array([why.score for why in found]), labels)
        order = np.argsort(far)
        count = max(1, round(TENTH * len(order)))
        groups = {"under": order[:count], "over": order[::-1][:count]}
        names, added = parts(tagged(found, tagger, "sum"))
        driving: dict[str, dict[str, list[float]]] = {}
        for kind, chosen in groups.items():
            differences, deviations = gaps(added, chosen, order[count:-count])
            strongest = np.argsort(differences if kind == "under" else -differences)[:8]
            driving[kind] = {names[i]: [float(differences[i]), float(deviations[i])] for i in strongest}
            worst = chosen[:SHOWN]
            titles = [
                f"score {found[i].score:.2f}, people {low + (high - low) * labels[i]:.1f} of {high:g}" for i in worst
            ]
            figures[f"{subject.label}, layer {layer}: farthest {kind}estimated"] = charts.matrices(
                [found[i].words() for i in worst], titles
            )
            said = ", ".join(
                f"{one} {value:+.2f} ± {error:.2f}" for one, (value, error) in list(driving[kind].items())[:4]
            )
            what = f"{subject.label}: what drives {kind}estimation, against usual pairs"
            compared.append(Compared(what, said, "proposed, not done"))
        numbers[subject.label] = {
            "layer": layer,
            "failures_of_each_kind": count,
            "driving": driving,
            "farthest": {
                kind: [
                    {"text_a": found[i].text_a, "text_b": found[i].text_b, "score": found[i].score, "label": labels[i]}
                    for i in chosen[:10]
                ]
                for kind, chosen in groups.items()
            },
        }
    figure, axes = charts.panels(len(setting.subjects), 5.2, 3.8)
    for each, subject in zip(axes, setting.subjects, strict=True):
        driving = numbers[subject.label]["driving"]
        rows = [*driving["over"].items(), *reversed(driving["under"].items())]
        values, errors = ([one[i] for _, one in rows] for i in (0, 1))
        colours = ["#d95f02" if value > 0 else "#2166ac" for value in values]
        each.barh(range(len(rows)), values, xerr=errors, color=colours, ecolor="0.4", error_kw={"linewidth": 0.8})
        each.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
        each.invert_yaxis()
        each.axvline(0, color="0.6", linewidth=0.8)
        each.set_xlabel("part of the score, against usual pairs, ± standard error")
        each.set_title(f"{subject.label}: overestimated above, underestimated below", fontsize=8)
    figures["Relations that drive over- and underestimation"] = figure
    return Result(
        title="Failures (Figure 10), and what drives them",
        notes=[
            f"A pair is a failure if its score is among the tenth of {len(setting.pairs):,} pairs that lie farthest "
            "above, or below, the line that best foretells scores from labels. What drives failures is the difference "
            "between what a relation of parts of speech adds to their scores and to those of the other pairs, words by "
            "sum, with its standard error. Failures may differ from other pairs in their labels and lengths too; that "
            "is not taken out. Numbers in the matrices are hundredths.",
        ],
        compared=compared,
        numbers=numbers,
        figures=figures,
    )

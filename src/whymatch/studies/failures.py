"""Figure 10, and what the paper proposes beyond it: where a model is far from people, and what drives it there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch.studies import charts
from whymatch.studies.pos import Words, relations, tagged
from whymatch.studies.setting import Compared, Result, Setting
from whymatch.studies.taggers import get_tagger

SHOWN = 3  # failures of either kind
TENTH = 0.1  # the pairs that count as failures of either kind


def distances(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each score lies above the line that best foretells scores from labels, in the labels' unit."""
    slope, start = np.polyfit(labels, scores, 1)
    if abs(slope) < 1e-9:
        raise ValueError("these scores have nothing to do with the labels: there is no failure to speak of")
    return np.asarray((scores - (slope * labels + start)) / slope)


def parts(pairs: list[Words], chosen: NDArray[np.intp]) -> dict[str, float]:
    """What each relation adds to a score, on average over the chosen pairs of texts."""
    sums: dict[str, float] = {}
    for i in chosen:
        values, a, b, _ = pairs[i]
        for name, value in zip(relations(a, b).ravel().tolist(), values.ravel().tolist(), strict=True):
            sums[name] = sums.get(name, 0.0) + value / len(chosen)
    return sums


def run(setting: Setting) -> Result:
    tagger = get_tagger(setting.tagger)
    labels = np.array(setting.labels)
    figures: dict[str, Any] = {}
    numbers: dict[str, Any] = {"tagger": tagger.name}
    compared: list[Compared] = []
    for subject in setting.subjects:
        layer = setting.inner_layer(subject)
        found = list(setting.explanations(subject, layer))
        far = distances(np.array([why.score for why in found]), labels)
        order = np.argsort(far)
        count = max(1, round(TENTH * len(order)))
        groups = {"under": order[:count], "usual": order[count:-count], "over": order[::-1][:count]}
        words = tagged(found, tagger, "sum")
        means = {name: parts(words, chosen) for name, chosen in groups.items()}
        gaps = {
            name: {
                one: means[name].get(one, 0.0) - means["usual"].get(one, 0.0) for one in {*means[name], *means["usual"]}
            }
            for name in ("over", "under")
        }
        driving = {
            name: dict(sorted(gap.items(), key=lambda item: -item[1] if name == "over" else item[1])[:8])
            for name, gap in gaps.items()
        }
        for name in ("over", "under"):
            worst = [found[i].words() for i in groups[name][:SHOWN]]
            titles = [
                f"score {why.score:.2f}, people {5 * labels[i]:.1f} of 5"
                for why, i in zip(worst, groups[name][:SHOWN], strict=True)
            ]
            figures[f"{subject.label}, layer {layer}: farthest {name}estimated"] = charts.matrices(worst, titles)
        numbers[subject.label] = {
            "layer": layer,
            "failures_of_each_kind": count,
            "driving": driving,
            "farthest": {
                name: [
                    {"text_a": found[i].text_a, "text_b": found[i].text_b, "score": found[i].score, "label": labels[i]}
                    for i in groups[name][:10]
                ]
                for name in ("over", "under")
            },
        }
        for name in ("over", "under"):
            said = ", ".join(f"{one} {value:+.2f}" for one, value in list(driving[name].items())[:4])
            compared.append(
                Compared(
                    f"{subject.label}: what drives {name}estimation, against usual pairs", said, "proposed, not done"
                )
            )
    figure, axes = charts.panels(len(setting.subjects), 5.2, 3.8)
    for each, subject in zip(axes, setting.subjects, strict=True):
        driving = numbers[subject.label]["driving"]
        rows = [*driving["over"].items(), *reversed(driving["under"].items())]
        each.barh(
            range(len(rows)), [value for _, value in rows], color=["#d95f02" if v > 0 else "#2166ac" for _, v in rows]
        )
        each.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
        each.invert_yaxis()
        each.axvline(0, color="0.6", linewidth=0.8)
        each.set_xlabel("part of the score, against usual pairs")
        each.set_title(f"{subject.label}: overestimated above, underestimated below", fontsize=8)
    figures["Relations that drive over- and underestimation"] = figure
    return Result(
        title="Failures (Figure 10), and what drives them",
        notes=[
            f"A pair is a failure if its score is among the tenth of {len(found):,} pairs that lie farthest above, or "
            "below, the line that best foretells scores from labels. What drives failures is the difference between "
            "what a relation of parts of speech adds to their scores and to those of the other pairs, words by sum.",
        ],
        compared=compared,
        numbers=numbers,
        figures=figures,
    )

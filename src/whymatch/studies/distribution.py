"""Figures 3 and 8: how large token–token attributions are, layer by layer, and how many of them are negative."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from whymatch import Explanation
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, percent

EDGES = np.linspace(-0.25, 0.25, 101)  # what lies beyond is counted but not drawn
DEPENDS = ("pairs", "layers")


def histogram(explanations: Iterable[Explanation]) -> dict[str, Any]:
    """Count attributions by size and by sign."""
    counts = np.zeros(len(EDGES) - 1, int)
    pairs = entries = negative = content = negative_content = 0
    squares = nodes = largest = 0.0
    for why in explanations:
        pairs += 1
        values = why.matrix
        counts += np.histogram(values, EDGES)[0]
        entries += values.size
        negative += int((values < 0).sum())
        squares += float((values**2).sum())
        nodes += sum(why.nodes) / 2
        largest = max(largest, why.relative_error)
        inside = np.outer(np.array(why.kinds_a) == "text", np.array(why.kinds_b) == "text")
        content += int(inside.sum())
        negative_content += int((values[inside] < 0).sum())
    return {
        "pairs": pairs,
        "entries": entries,
        "share_negative": negative / entries,
        "share_negative_without_special_tokens": negative_content / max(content, 1),
        "root_mean_square": (squares / entries) ** 0.5,
        "share_beyond": 1 - int(counts.sum()) / entries,
        "mean_nodes": nodes / pairs,
        "largest_error": largest,
        "counts": counts.tolist(),
    }


def run(experiment: Experiment) -> Result:
    numbers: dict[str, Any] = {}
    for subject in experiment.subjects:
        layers = experiment.layers(subject)
        numbers[subject.label] = {
            str(layer): {"depth": subject.num_layers, **histogram(experiment.explanations(subject, layer))}
            for layer in layers
        }
    figure, axes = charts.panels(len(numbers), 5.2, 3.6, same=True)
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    for each, (name, layers) in zip(axes, numbers.items(), strict=True):
        for (layer, counted), colour in zip(layers.items(), charts.colours(len(layers)), strict=True):
            density = np.array(counted["counts"]) / counted["entries"] / (EDGES[1] - EDGES[0])
            label = f"{layer}: {percent(counted['share_negative'])} negative"
            each.plot(middles, np.where(density > 0, density, np.nan), color=colour, label=label)
        each.set_yscale("log")
        each.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        each.set_xlabel("attribution of a pair of tokens")
        each.set_ylabel("density")
        each.set_title(name, fontsize=9)
        each.legend(title="layer", fontsize=7, title_fontsize=7)
    compared = []
    for subject in experiment.subjects:
        for layer in experiment.asked_layers(subject):
            counted = numbers[subject.label].get(str(layer))
            above = subject.num_layers - layer
            where = {0: ", the output", 1: ", the last before the output"}.get(above, "")
            paper = {0: "5 %", 1: "38 %"}.get(above, "–")
            ours = "does not converge" if counted is None else percent(counted["share_negative"])
            compared.append(Comparison(f"{subject.label}: negative at layer {layer}{where}", ours, paper))
    return Result(
        title="Distribution of attributions (Figures 3 and 8)",
        notes=[
            f"All token–token attributions of {experiment.about_pairs()}, special tokens included. The paper's shares "
            "are those of S-MPNet, adjusted, at layers 11 and 12 of 12. Attributions beyond ±0.25 are counted, not "
            "drawn. All panels have one scale.",
            *experiment.about_rough(),
        ],
        compared=compared,
        numbers=numbers,
        figures={"Density of token–token attributions by layer (logarithmic)": figure},
    )

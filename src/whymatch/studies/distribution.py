"""Figures 3 and 8: how large token–token attributions are, layer by layer, and how many of them are negative."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from whymatch import Explanation
from whymatch.studies import charts
from whymatch.studies.setting import Compared, Result, Setting, percent

EDGES = np.linspace(-0.25, 0.25, 101)  # what lies beyond is counted, and not drawn
DEPENDS = ("pairs", "layers")


def histogram(explanations: Iterable[Explanation]) -> dict[str, Any]:
    counts = np.zeros(len(EDGES) - 1, int)
    entries = negative = content = negative_content = 0
    squares = 0.0
    for why in explanations:
        values = why.matrix
        counts += np.histogram(values, EDGES)[0]
        entries += values.size
        negative += int((values < 0).sum())
        squares += float((values**2).sum())
        inside = np.outer(np.array(why.kinds_a) == "text", np.array(why.kinds_b) == "text")
        content += int(inside.sum())
        negative_content += int((values[inside] < 0).sum())
    return {
        "entries": entries,
        "share_negative": negative / entries,
        "share_negative_without_special_tokens": negative_content / max(content, 1),
        "root_mean_square": (squares / entries) ** 0.5,
        "share_beyond": 1 - int(counts.sum()) / entries,
        "counts": counts.tolist(),
    }


def run(setting: Setting) -> Result:
    numbers: dict[str, Any] = {}
    for subject in setting.subjects:
        layers = setting.layers(subject)
        numbers[subject.label] = {str(layer): histogram(setting.explanations(subject, layer)) for layer in layers}
    figure, axes = charts.panels(len(numbers), 5.2, 3.6)
    middles = (EDGES[1:] + EDGES[:-1]) / 2
    for each, (name, layers) in zip(axes, numbers.items(), strict=True):
        for (layer, found), colour in zip(layers.items(), charts.colours(len(layers)), strict=True):
            density = np.array(found["counts"]) / found["entries"] / (EDGES[1] - EDGES[0])
            label = f"{layer}: {percent(found['share_negative'])} negative"
            each.plot(middles, np.where(density > 0, density, np.nan), color=colour, label=label)
        each.set_yscale("log")
        each.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        each.set_xlabel("attribution of a pair of tokens")
        each.set_ylabel("density")
        each.set_title(name, fontsize=9)
        each.legend(title="layer", fontsize=7, title_fontsize=7)
    compared = []
    for subject in setting.subjects:
        for layer, found in numbers[subject.label].items():
            above = subject.num_layers - int(layer)
            where = {0: ", the output", 1: ", the last before the output"}.get(above, "")
            paper = {0: "5 %", 1: "38 %"}.get(above, "–")
            said = percent(found["share_negative"])
            compared.append(Compared(f"{subject.label}: negative at layer {layer}{where}", said, paper))
    return Result(
        title="Distribution of attributions (Figures 3 and 8)",
        notes=[
            f"All token–token attributions of {len(setting.pairs):,} pairs, special tokens included. The paper's "
            "shares are those of S-MPNet at layers 11 and 12 of 12. A larger one than ±0.25 is counted and not drawn.",
        ],
        compared=compared,
        numbers=numbers,
        figures={"Density of token–token attributions by layer (logarithmic)": figure},
    )

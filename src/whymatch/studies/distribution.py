"""Figures 3 and 8: how large token–token attributions are, layer by layer, and how many of them are negative."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from whymatch import Explanation
from whymatch.studies import charts
from whymatch.studies.setting import Compared, Result, Setting

EDGES = np.linspace(-0.25, 0.25, 101)  # what lies beyond is counted in the outermost bins


def histogram(explanations: Iterable[Explanation]) -> dict[str, Any]:
    counts = np.zeros(len(EDGES) - 1, int)
    entries = negative = content = negative_content = 0
    squares = 0.0
    for why in explanations:
        values = why.matrix
        counts += np.histogram(np.clip(values, EDGES[0], EDGES[-1]), EDGES)[0]
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
            label = f"{layer}: {found['share_negative']:.0%} negative"
            each.step(middles, np.where(density > 0, density, np.nan), where="mid", color=colour, label=label)
        each.set_yscale("log")
        each.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        each.set_xlabel("attribution of a pair of tokens")
        each.set_ylabel("density")
        each.set_title(name, fontsize=9)
        each.legend(title="layer", fontsize=7, title_fontsize=7)
    compared = []
    for name, layers in numbers.items():
        *inner, output = layers
        if inner:
            share = layers[inner[-1]]["share_negative"]
            compared.append(
                Compared(f"{name}: negative at layer {inner[-1]}, the last before the output", f"{share:.0%}", "38 %")
            )
        compared.append(
            Compared(
                f"{name}: negative at layer {output}, the output", f"{layers[output]['share_negative']:.0%}", "5 %"
            )
        )
    return Result(
        title="Distribution of attributions (Figures 3 and 8)",
        notes=[
            f"All token–token attributions of {len(setting.pairs):,} pairs, special tokens included. The paper's "
            "shares are those of S-MPNet at layers 11 and 12 of 12.",
        ],
        compared=compared,
        numbers=numbers,
        figures={"Density of token–token attributions by layer (logarithmic)": figure},
    )

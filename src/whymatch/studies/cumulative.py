"""Figure 5: how much of a score the strongest pairs of tokens make up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch import Explanation
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, percent

SHARES = np.linspace(0, 1, 101)
STEADY = (0.05, 0.02)
DEPENDS = ("pairs", "layers")


def curve(why: Explanation) -> NDArray[np.float64]:
    """Compute the share of the score that the strongest entries sum to, for each share of entries."""
    values = why.matrix.ravel()
    order = np.argsort(-np.abs(values), kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(values[order])])
    return np.asarray(sums[np.round(SHARES * len(values)).astype(int)] / why.score)


def summary(curves: NDArray[np.float64]) -> dict[str, Any]:
    """Summarise the curves of all pairs: mean, deviation, quartiles, and from where on the deviation stays small."""
    std = curves.std(0)
    steady: dict[str, float | None] = {}
    for bound in STEADY:
        first = 1 + max(np.flatnonzero(std > bound), default=-1)
        steady[f"{bound:g}"] = float(SHARES[first]) if first < len(SHARES) else None
    return {
        "pairs": len(curves),
        "shares": SHARES.tolist(),
        "mean": curves.mean(0).tolist(),
        "std": std.tolist(),
        "quartiles": np.percentile(curves, [25, 50, 75], axis=0).tolist(),
        "top_5_percent": {
            "mean": float(curves[:, 5].mean()),
            "std": float(std[5]),
            "median": float(np.median(curves[:, 5])),
        },
        "steady_from": steady,
    }


def collect(explanations: Iterable[Explanation]) -> dict[str, Any]:
    return summary(np.stack([curve(why) for why in explanations if why.score != 0]))


def run(experiment: Experiment) -> Result:
    numbers: dict[str, Any] = {}
    for subject in experiment.subjects:
        layers = experiment.layers(subject)
        numbers[subject.label] = {
            str(layer): {"depth": subject.num_layers, **collect(experiment.explanations(subject, layer))}
            for layer in layers
        }
    chosen = {subject.label: str(experiment.inner_layer(subject)) for subject in experiment.subjects}
    figure, axes = charts.panels(len(numbers), 4.8, 3.6, same=True)
    for each, (name, layers) in zip(axes, numbers.items(), strict=True):
        curves = layers[chosen[name]]
        mean, std = np.array(curves["mean"]), np.array(curves["std"])
        each.fill_between(SHARES, mean - std, mean + std, color="#2166ac", alpha=0.2, label="± standard deviation")
        low, middle, high = curves["quartiles"]
        each.fill_between(SHARES, low, high, color="#d95f02", alpha=0.3, label="middle half of the pairs")
        each.plot(SHARES, middle, color="#d95f02", label="median")
        each.plot(SHARES, mean, color="#2166ac", label="mean")
        each.axhline(1, color="0.6", linewidth=0.8)
        each.set_ylim(-1, 3)
        each.set_xlabel("strongest pairs of tokens, share")
        each.set_ylabel("their sum ÷ score")
        each.set_title(f"{name}, layer {chosen[name]}", fontsize=9)
        each.legend(fontsize=7)
    compared = []
    for name, layers in numbers.items():
        for layer, curves in layers.items():
            top, steady = curves["top_5_percent"], curves["steady_from"]
            compared += [
                Comparison(
                    f"{name}, layer {layer}: the strongest 5 % sum to",
                    f"{100 * top['mean']:.0f} ± {percent(top['std'])} (median {percent(top['median'])})",
                    "77 ± 133 %",
                ),
                Comparison(
                    f"{name}, layer {layer}: needed for a deviation below 5 % / 2 %",
                    f"{percent(steady['0.05'])} / {percent(steady['0.02'])}",
                    "78 % / 92 %",
                ),
            ]
    return Result(
        title="Cumulative share of the prediction (Figure 5)",
        notes=[
            f"Over {experiment.about_pairs()}. A share of a score near zero is large, hence the wide deviation "
            "of the mean; the median and the middle half of the pairs are shown beside it. All panels have one scale.",
            *experiment.about_rough(),
        ],
        compared=compared,
        numbers=numbers,
        figures={"Sum of the strongest attributions as a share of the score": figure},
    )

"""Figure 2: how far the sum of all attributions is from the score, against the number of steps, layer by layer.

The sum of a text's attributions needs no attributions: it is the sum of the encoder's speed along the whole path. That
speed is known from the encoder's values at Chebyshev points of the path, so one set of plain passes serves every rule
and every N. Sums of tangents, one for each node, are computed beside it for a few texts, to check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from whymatch.explainer import Explainer
from whymatch.inputs import Reading
from whymatch.preparation import Request
from whymatch.quadrature import RULES, USUAL
from whymatch.studies import charts
from whymatch.studies.setting import Compared, Result, Setting, Subject

STEPS = {
    "right": (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 1500, 2000, 2500),
    "gauss": (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64),
}
REACHED = (1e-2, 1e-3, 1e-5)
PAIRS = 50  # of the setting's pairs
INTERVALS = 128  # of a path: what its polynomial leaves out is recorded
CHECKED = 4  # texts whose sums are also computed from tangents


class Path:
    """One text's way from its reference: the embedding as a polynomial along it."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        points = np.sin(np.pi * np.arange(INTERVALS + 1) / INTERVALS / 2) ** 2
        series = np.linalg.solve(chebyshev.chebvander(2 * points - 1, INTERVALS), values)
        self.start, self.end = values[0], values[-1]
        # What the polynomial leaves out is smaller than its last terms.
        self.left_out = float(np.abs(series[-4:]).max() / np.linalg.norm(self.end))
        self._slope = chebyshev.chebder(series, scl=2)

    def total(self, rule: str, n: int) -> NDArray[np.float64]:
        """What a rule with n nodes attributes to all tokens together."""
        alpha, weights = RULES[rule](n)
        u = USUAL.from_path(alpha)
        speed = chebyshev.chebval(2 * u - 1, self._slope).T / USUAL.to_path(u)[1][:, None]
        return np.asarray(weights @ speed)


def errors(pairs: Sequence[tuple[Path, Path]], rule: str, n: int, similarity: str) -> NDArray[np.float64]:
    """|score − attributed| of every pair, its reference terms included."""
    found = []
    for a, b in pairs:
        scale = np.linalg.norm(a.end) * np.linalg.norm(b.end) if similarity == "cosine" else 1.0
        attributed = (a.total(rule, n) + a.start) @ (b.total(rule, n) + b.start)
        found.append(abs(a.end @ b.end - attributed) / scale)
    return np.array(found)


def paths_of(explainer: Explainer, texts: Sequence[str]) -> tuple[dict[str, Path], float]:
    """The path of each text, and how far sums of tangents are from what a few of them foretell."""
    positions = USUAL.to_path(np.sin(np.pi * np.arange(INTERVALS + 1) / INTERVALS / 2) ** 2)[0]
    found: dict[str, Path] = {}
    off = 0.0
    prepared = explainer._preparation.prepare([Request(text, Reading(), None) for text in texts])
    for _, bucket in prepared.buckets():
        for side, values in zip(bucket.sides, bucket.curve(positions), strict=True):
            found[side["text"]] = Path(values)
        if len(found) <= CHECKED:
            for rule, n in (("right", 50), ("gauss", 8)):
                direct = bucket.total(*RULES[rule](n))
                for side, one in zip(bucket.sides, direct, strict=True):
                    path = found[side["text"]]
                    off = max(off, float(np.linalg.norm(one - path.total(rule, n)) / np.linalg.norm(path.end)))
    return found, off


def study(setting: Setting, subject: Subject) -> dict[str, Any]:
    pairs = setting.pairs[:PAIRS]
    texts = sorted({text for pair in pairs for text in pair}, key=len)
    layers: dict[str, Any] = {}
    for layer in setting.track(range(subject.num_layers + 1), f"{subject.label}: layers"):
        # In double precision, so that what is seen is the rule's error and not the arithmetic's.
        explainer = Explainer(subject.model, layer=layer, tolerance=1e-6)
        paths, off = paths_of(explainer, texts)
        ends = [(paths[a], paths[b]) for a, b in pairs]
        curves = {}
        for rule, steps in STEPS.items():
            found = [errors(ends, rule, n, explainer.settings.similarity) for n in steps]
            curves[rule] = {
                "steps": list(steps),
                "mean": [float(one.mean()) for one in found],
                "std": [float(one.std()) for one in found],
                "reached": {
                    f"{bound:g}": next((n for n, one in zip(steps, found, strict=True) if one.mean() <= bound), None)
                    for bound in REACHED
                },
            }
        left_out = max(path.left_out for path in paths.values())
        layers[str(layer)] = {**curves, "left_out": left_out, "off_from_tangents": off}
    return {"pairs": len(pairs), "layers": layers}


def run(setting: Setting) -> Result:
    numbers = {subject.label: study(setting, subject) for subject in setting.subjects}
    figure, axes = charts.panels(2 * len(numbers), 4.8, 3.6, across=2)
    for (name, found), row in zip(numbers.items(), zip(axes[::2], axes[1::2], strict=True), strict=True):
        shades = charts.colours(len(found["layers"]))
        for rule, each in zip(STEPS, row, strict=True):
            for (layer, curves), colour in zip(found["layers"].items(), shades, strict=True):
                curve = curves[rule]
                mean, std = np.array(curve["mean"]), np.array(curve["std"])
                each.plot(curve["steps"], mean, color=colour, label=layer, marker=".", markersize=4)
                each.fill_between(
                    curve["steps"], np.maximum(mean - std, mean / 10), mean + std, color=colour, alpha=0.12
                )
            each.set_xscale("log")
            each.set_yscale("log")
            each.set_ylim(1e-9, 3)
            each.set_xlabel("nodes N")
            each.set_ylabel("|ΣA − score|")
            each.set_title(f"{name}: {'right endpoints, the paper’s' if rule == 'right' else 'gauss'}", fontsize=9)
        row[1].legend(title="layer", fontsize=7, title_fontsize=7)
    compared = []
    for name, found in numbers.items():
        layers = found["layers"]
        deep, middle = str(round(0.75 * (len(layers) - 1))), str(round(7 / 12 * (len(layers) - 1)))
        for layer, n, paper in (
            (deep, 50, "(5 ± 5)e-3 at layer 9 of 12"),
            (middle, 1000, "(2 ± 3)e-3 at layer 7 of 12"),
        ):
            curve = layers[layer]["right"]
            i = curve["steps"].index(n)
            compared.append(
                Compared(
                    f"{name}: error at layer {layer} of {len(layers) - 1}, right endpoints, N = {n:,}",
                    f"{curve['mean'][i]:.0e} ± {curve['std'][i]:.0e}",
                    paper,
                )
            )
        compared.append(
            Compared(
                f"{name}: error at layer 0, right endpoints, N = 2,500",
                f"{layers['0']['right']['mean'][-1]:.0e} ± {layers['0']['right']['std'][-1]:.0e}",
                "not converging (S-MPNet); (1 ± 1)e-2 (RoBERTa)",
            )
        )
        for rule in STEPS:
            for layer, curves in layers.items():
                reached = curves[rule]["reached"]
                said = ", ".join(f"{bound}: {n if n is not None else 'not reached'}" for bound, n in reached.items())
                compared.append(Compared(f"{name}: N at which layer {layer} reaches …, {rule}", said, "–"))
    off = max(one["off_from_tangents"] for found in numbers.values() for one in found["layers"].values())
    return Result(
        title="Attribution accuracy (Figure 2)",
        notes=[
            f"The absolute error of the sum, reference terms included, over {min(PAIRS, len(setting.pairs))} pairs, "
            "mean and standard deviation, in double precision. The sum needs the encoder's speed along the path only, "
            f"which is taken from its values at {INTERVALS + 1} points; sums of tangents, computed for a few texts at "
            f"every layer, differ from it by {off:.0e} of an embedding's length at most.",
            "Right endpoints err like 1/N at every layer, from the first steps on. Gauss nodes converge exponentially, "
            "so that a tenth to a hundredth of the steps gives a hundredth of the error.",
        ],
        compared=compared,
        numbers=numbers,
        figures={"Error of the sum against N: mean, and shaded its standard deviation": figure},
    )

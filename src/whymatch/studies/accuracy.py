"""Figure 2: how far the sum of all attributions is from the score, against the number of steps, layer by layer.

The sum of a text's attributions needs no attributions: it is the sum of the encoder's speed along the whole path. That
speed is known from the encoder's values at Chebyshev points of the path, so one set of plain passes serves every rule
and every N. Sums of tangents, one for each node, are computed beside it for a few texts, to check.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache, partial
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

DEPENDS = ("pairs",)
STEPS = {
    "right": (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 1500, 2000, 2500),
    "gauss": (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64),
}
RULE_NAMES = {"right": "right endpoints, the paper's", "gauss": "Gauss nodes, whymatch's"}
UNSURE = ("off_from_tangents", "left_out")
STYLES = {"right": "-", "gauss": "--"}
REACHED = (1e-2, 1e-3, 1e-5)
PAIRS = 50  # of the setting's pairs
INTERVALS = 64  # of a path; twice as many where the polynomial leaves out more than this share of an embedding
LEFT_OUT = 1e-10
CHECKED = 4  # texts, from the shortest to the longest, whose sums are also computed from tangents


class Path:
    """One text's way from its reference: the embedding as a polynomial along it."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        points = points_of(len(values) - 1)
        series = np.linalg.solve(chebyshev.chebvander(2 * points - 1, len(points) - 1), values)
        self.start, self.end = values[0], values[-1]
        # What the polynomial leaves out is smaller than its last terms.
        self.left_out = float(np.abs(series[-4:]).max() / np.linalg.norm(self.end))
        self._slope = chebyshev.chebder(series, scl=2)

    def total(self, rule: str, n: int) -> NDArray[np.float64]:
        """What a rule with n nodes attributes to all tokens together."""
        return np.asarray(_weights(rule, n, len(self._slope)) @ self._slope)


def points_of(intervals: int) -> NDArray[np.float64]:
    """Where a path is looked at, in the parameter in which it is smooth."""
    return np.asarray(np.sin(np.pi * np.arange(intervals + 1) / intervals / 2) ** 2)


@cache
def _weights(rule: str, n: int, terms: int) -> NDArray[np.float64]:
    """What a rule takes of each term of a slope's series."""
    alpha, weights = RULES[rule](n)
    u = USUAL.from_path(alpha)
    return np.asarray((weights / USUAL.to_path(u)[1]) @ chebyshev.chebvander(2 * u - 1, terms - 1))


def errors(pairs: Sequence[tuple[Path, Path]], rule: str, n: int, similarity: str) -> NDArray[np.float64]:
    """|score − attributed| of every pair, its reference terms included."""
    found = []
    for a, b in pairs:
        scale = np.linalg.norm(a.end) * np.linalg.norm(b.end) if similarity == "cosine" else 1.0
        attributed = (a.total(rule, n) + a.start) @ (b.total(rule, n) + b.start)
        found.append(abs(a.end @ b.end - attributed) / scale)
    return np.array(found)


def first_below(of: Callable[..., NDArray[np.float64]], steps: Sequence[int], bound: float) -> int | None:
    """The n at which the mean of errors first is below a bound: between steps, by halving; None if at none of them."""
    reached = next((i for i, n in enumerate(steps) if of(n=n).mean() <= bound), None)
    if reached is None or reached == 0:
        return None if reached is None else steps[0]
    low, high = steps[reached - 1], steps[reached]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if of(n=middle).mean() <= bound else (middle, high)
    return high


def paths_of(explainer: Explainer, texts: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for _, bucket in explainer._preparation.prepare(map(_request, texts)).buckets():
        for intervals in (INTERVALS, 2 * INTERVALS):
            positions = USUAL.to_path(points_of(intervals))[0]
            paths = [Path(values) for values in bucket.curve(positions)]
            if max(path.left_out for path in paths) <= LEFT_OUT:
                break
        found |= zip((side["text"] for side in bucket.sides), paths, strict=True)
    return found


def off_from_tangents(explainer: Explainer, paths: dict[str, Path]) -> float:
    """How far sums of tangents are from what paths foretell, as a share of an embedding's length."""
    by_length = sorted(paths, key=len)
    chosen = {by_length[round(i)] for i in np.linspace(0, len(by_length) - 1, CHECKED)}
    off = 0.0
    for _, bucket in explainer._preparation.prepare(map(_request, chosen)).buckets():
        for rule, n in (("right", 50), ("gauss", 8)):
            for side, direct in zip(bucket.sides, bucket.total(*RULES[rule](n)), strict=True):
                path = paths[side["text"]]
                off = max(off, float(np.linalg.norm(direct - path.total(rule, n)) / np.linalg.norm(path.end)))
    return off


def _request(text: str) -> Request:
    return Request(text, Reading(), None)


def layer_of(subject: Subject, layer: int, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    # In double precision, so that what is seen is the rule's error and not the arithmetic's.
    explainer = Explainer(subject.model, layer=layer, tolerance=1e-6)
    paths = paths_of(explainer, sorted({text for pair in pairs for text in pair}, key=len))
    ends = [(paths[a], paths[b]) for a, b in pairs]
    found: dict[str, Any] = {}
    for rule, steps in STEPS.items():
        of = cache(partial(errors, ends, rule, similarity=explainer.settings.similarity))
        found[rule] = {
            "steps": list(steps),
            "mean": [float(of(n=n).mean()) for n in steps],
            "std": [float(of(n=n).std()) for n in steps],
            "reached": {f"{bound:g}": first_below(of, steps, bound) for bound in REACHED},
        }
    left_out = max(path.left_out for path in paths.values())
    return {**found, "left_out": left_out, "off_from_tangents": off_from_tangents(explainer, paths)}


def study(setting: Setting, subject: Subject) -> dict[str, Any]:
    pairs = random.Random(setting.seed).sample(setting.pairs, min(PAIRS, len(setting.pairs)))
    layers = {
        str(layer): setting.part(f"{subject.identity} {layer}", partial(layer_of, subject, layer, pairs))
        for layer in setting.track(range(subject.num_layers + 1), f"{subject.label}: layers")
    }
    return {"pairs": len(pairs), "layers": layers}


def _unsure(found: dict[str, Any]) -> dict[str, float]:
    """The largest of what is not known of a model's errors."""
    return {key: max(layer[key] for layer in found["layers"].values()) for key in UNSURE}


def run(setting: Setting) -> Result:
    numbers = {subject.label: study(setting, subject) for subject in setting.subjects}
    figure, axes = charts.panels(len(numbers), 6.4, 4.8, across=2)
    for each, (name, found) in zip(axes, numbers.items(), strict=True):
        for (layer, curves), colour in zip(found["layers"].items(), charts.colours(len(found["layers"])), strict=True):
            for rule, style in STYLES.items():
                curve = curves[rule]
                mean, std = (np.maximum(curve[key], 1e-17) for key in ("mean", "std"))
                each.plot(curve["steps"], mean, color=colour, linestyle=style, label=layer if rule == "right" else None)
                each.fill_between(
                    curve["steps"], np.maximum(mean - std, mean / 10), mean + std, color=colour, alpha=0.1
                )
        each.set_xscale("log")
        each.set_yscale("log")
        each.set_ylim(bottom=max(*_unsure(found).values(), 1e-14))  # below it is nothing to read
        each.set_xlabel("nodes N")
        each.set_ylabel("|ΣA − score|")
        each.set_title(name, fontsize=9)
        layers = each.legend(title="layer", fontsize=7, title_fontsize=7, loc="upper right")
        each.add_artist(layers)
        rules = [
            each.plot([], [], color="0.3", linestyle=style, label=RULE_NAMES[rule])[0] for rule, style in STYLES.items()
        ]
        each.legend(handles=rules, fontsize=7, loc="lower right")
    unsure = [_unsure(found) for found in numbers.values()]
    off, left_out = (max(one[key] for one in unsure) for key in UNSURE)
    compared = []
    table = [["model", "layer", *(f"{bound:g}, {rule}" for rule in STEPS for bound in REACHED)]]
    for name, found in numbers.items():
        layers = found["layers"]
        count = len(layers) - 1
        for share, n, paper in (
            (9 / 12, 50, "(5 ± 5)e-3 at layer 9 of 12"),
            (7 / 12, 1000, "(2 ± 3)e-3 at layer 7 of 12"),
        ):
            layer = str(math.ceil(share * count))
            curve = layers[layer]["right"]
            i = curve["steps"].index(n)
            said = f"{curve['mean'][i]:.0e} ± {curve['std'][i]:.0e}"
            compared.append(
                Compared(f"{name}: error at layer {layer} of {count}, right endpoints, N = {n:,}", said, paper)
            )
        shallow = [layer for layer in layers if int(layer) < math.ceil(7 / 12 * count)]
        said = ", ".join(f"{layers[layer]['right']['mean'][-1]:.0e}" for layer in shallow)
        compared.append(
            Compared(
                f"{name}: error at layers {', '.join(shallow)}, right endpoints, N = 2,500",
                said,
                "shallower than 7: not converging by 2,500 (S-MPNet); (1 ± 1)e-2 at the input (RoBERTa)",
            )
        )
        for layer, curves in layers.items():
            reached = [curves[rule]["reached"][f"{bound:g}"] for rule in STEPS for bound in REACHED]
            table.append([name, layer, *("not by 2,500" if n is None else f"{n:,}" for n in reached)])
    return Result(
        title="Attribution accuracy (Figure 2)",
        notes=[
            f"The absolute error of the sum, reference terms included, over {min(PAIRS, len(setting.pairs))} of the "
            "pairs, mean and standard deviation (shaded; below the mean no further than a tenth of it), in double "
            f"precision. The sum needs the encoder's speed along the path only, which is taken from its values at "
            f"{INTERVALS + 1} or {2 * INTERVALS + 1} points. The polynomial through them leaves out {left_out:.0e} of "
            f"an embedding's length at most, and sums of tangents, computed for {CHECKED} texts of different lengths "
            f"at every layer, differ from it by {off:.0e} at most. Smaller errors than these cannot be read and are "
            "not shown: a layer without a curve, such as an output that is only a mean over tokens, has none larger.",
        ],
        compared=compared,
        tables={"The N at which the mean error first is below a bound": table},
        numbers=numbers,
        figures={"Error of the sum against N: mean, and shaded its standard deviation": figure},
    )

"""Figure 2: how far the sum of all attributions is from the score, against the number of steps, layer by layer.

The sum of a text's attributions can be computed without the attributions: it is the integral of the encoder's
derivative along the whole path. That derivative follows from the encoder's values at Chebyshev points of the path, so
one set of plain passes serves every rule and every number of steps. Where the embedding moves in steep steps, one
polynomial does not do: the path is halved, and its halves again, until each piece has a polynomial that fits. For a few
texts, sums of tangents, one for each node, are computed as a check.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from whymatch.explainer import Explainer
from whymatch.pieces import PieceProbe
from whymatch.quadrature import RULES, USUAL
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPENDS = ("pairs", "every layer")
STEPS = {
    "right": (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 1500, 2000, 2500),
    "gauss": (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64),
}
RULE_NAMES = {"right": "right endpoints, the paper's", "gauss": "Gauss nodes, whymatch's"}
UNCERTAIN = ("off_from_tangents", "left_out")
PAPER_SHALLOW = (
    "shallower than 7: has not started converging by 2,500 (S-MPNet, 12 layers); RoBERTa, as deep, has at every layer "
    "((1 ± 1)e-2 at the input); S-distilRoBERTa, 6 layers, converges readily at every layer"
)
SMALLEST = 1e-8  # of the errors that are drawn
REACHED = (1e-2, 1e-3, 1e-5)
PAIRS = 50  # of the experiment's pairs, unless somebody says how many
INTERVALS = 64  # of a path; twice as many where the polynomial leaves out more than LEFT_OUT of an embedding
LEFT_OUT = 1e-10
CHECKED = 4  # texts, from the shortest to the longest, whose sums are also computed from tangents
# A path is followed piece by piece if a polynomial leaves out more than this much of it: ROUGH after a first look with
# few intervals, STILL_ROUGH with the most. A polynomial misses steps that are shorter than its intervals.
LOOK, ROUGH, STILL_ROUGH = 32, 1e-3, 1e-6
FITS = 5e-5  # of an embedding's length: what all pieces together may leave out; rounding leaves out about 5e-7 of each
PASSES = {False: LOOK + 3 * INTERVALS, True: 800}  # of a smooth path and of a rough one, for an estimate of the time


class Path:
    """The embedding along the path from a text's reference to the text, as one polynomial.

    Attributes:
        start, end: the embeddings at its ends.
        left_out: the size of the last terms of the polynomial, which bounds its error, ÷ an embedding's length.
    """

    def __init__(self, values: NDArray[np.floating]) -> None:
        points = points_of(len(values) - 1)
        self.start, self.end = values[0], values[-1]
        self._series = np.linalg.solve(chebyshev.chebvander(2 * points - 1, len(points) - 1), values)
        self.left_out = float(np.abs(self._series[-4:]).max()) / float(np.linalg.norm(self.end))

    def total(self, rule: str, n: int) -> NDArray[np.float64]:
        """Compute what a rule with n nodes attributes to all tokens together."""
        slope = chebyshev.chebder(self._series, scl=2)
        return np.asarray(_weights(rule, n, len(slope)) @ slope)


class SteepPath(Path):
    """The same, as a polynomial for each piece of a path that is too steep for a single one."""

    def __init__(self, probe: PieceProbe, start: NDArray[np.floating], end: NDArray[np.floating]) -> None:
        self.pieces, self.start, self.end = probe.pieces, start, end
        self.left_out = float(np.linalg.norm([*map(probe.left_out, probe.pieces)]))

    def total(self, rule: str, n: int) -> NDArray[np.float64]:
        alpha, weights = RULES[rule](n)
        bounds = np.searchsorted(alpha, [piece.high for piece in self.pieces[:-1]], side="right")
        parts = zip(self.pieces, np.split(alpha, bounds), np.split(weights, bounds), strict=True)
        return np.asarray(sum(sizes @ piece.slopes(places) for piece, places, sizes in parts))


def points_of(intervals: int) -> NDArray[np.float64]:
    """Return the points at which the encoder is evaluated, in the parameter in which a path is smooth."""
    return np.asarray(np.sin(np.pi * np.arange(intervals + 1) / intervals / 2) ** 2)


@cache
def _weights(rule: str, n: int, terms: int) -> NDArray[np.float64]:
    """Return the integral that a rule gives for each term of the series of a derivative."""
    alpha, weights = RULES[rule](n)
    u = USUAL.from_path(alpha)
    return np.asarray(weights / USUAL.to_path(u)[1] @ chebyshev.chebvander(2 * u - 1, terms - 1))


def errors(pairs: Sequence[tuple[Path, Path]], rule: str, n: int, similarity: str) -> NDArray[np.float64]:
    """Compute |score − attributed| of every pair, reference terms included."""
    result = []
    for a, b in pairs:
        scale = np.linalg.norm(a.end) * np.linalg.norm(b.end) if similarity == "cosine" else 1.0
        attributed = (a.total(rule, n) + a.start) @ (b.total(rule, n) + b.start)
        result.append(abs(a.end @ b.end - attributed) / scale)
    return np.array(result)


def first_below(of: Callable[..., NDArray[np.float64]], steps: Sequence[int], bound: float) -> int | None:
    """Find the n at which the mean error first is below a bound, by bisection between steps; None if it never is."""
    reached = next((i for i, n in enumerate(steps) if of(n=n).mean() <= bound), None)
    if reached is None or reached == 0:
        return None if reached is None else steps[0]
    low, high = steps[reached - 1], steps[reached]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if of(n=middle).mean() <= bound else (middle, high)
    return high


def paths_of(explainer: Explainer, texts: Sequence[str]) -> dict[str, Path]:
    """Interpolate the embedding along the path of each text, with more points where it is rough."""
    # Whether a path is rough shows in single precision, which is all that a rough one needs.
    quick = Explainer(explainer.model, layer=explainer.settings.layer, path="straight", special="keep")
    paths: dict[str, Path] = {}
    for text, path in _interpolate(quick, texts, LOOK).items():
        if path.left_out > ROUGH:
            paths[text] = follow(quick, text)
    for intervals in (INTERVALS, 2 * INTERVALS):
        unclear = [
            text
            for text in texts
            if text not in paths or (not isinstance(paths[text], SteepPath) and paths[text].left_out > LEFT_OUT)
        ]
        paths |= _interpolate(explainer, unclear, intervals)
    rough = [text for text, path in paths.items() if not isinstance(path, SteepPath) and path.left_out > STILL_ROUGH]
    return paths | {text: follow(quick, text) for text in rough}


def _interpolate(explainer: Explainer, texts: Sequence[str], intervals: int) -> dict[str, Path]:
    if not texts:
        return {}
    values = explainer.path_values(texts, USUAL.to_path(points_of(intervals))[0])
    return {text: Path(np.asarray(value, np.float64)) for text, value in zip(texts, values, strict=True)}


def follow(explainer: Explainer, text: str) -> SteepPath:
    """Interpolate one rough path piece by piece."""
    start, end = (np.asarray(value, np.float64) for value in explainer.path_values([text], [0.0, 1.0])[0])
    probe = PieceProbe(end)
    while probe.nodes(RULES["pieces"], FITS) is None:
        probe.add(explainer.path_values([text], probe.missing())[0])
    return SteepPath(probe, start, end)


def off_from_tangents(explainer: Explainer, paths: dict[str, Path]) -> float:
    """Compare sums of tangents with what the polynomials predict: the largest difference ÷ an embedding's length."""
    by_length = sorted(paths, key=len)
    # A tangent at each node of a rough path costs as much as to follow it: one is enough there.
    rough = any(isinstance(path, SteepPath) for path in paths.values())
    places = [len(by_length) // 2] if rough else np.linspace(0, len(by_length) - 1, CHECKED)
    checked = list({by_length[round(i)] for i in places})
    off = 0.0
    for rule, n in (("right", 50), ("gauss", 8)):
        for text, direct in zip(checked, explainer.path_total(checked, *RULES[rule](n)), strict=True):
            path = paths[text]
            off = max(off, float(np.linalg.norm(direct - path.total(rule, n)) / np.linalg.norm(path.end)))
    return off


def layer_of(subject: Subject, layer: int, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    # A tight tolerance makes it double precision: rounding must be below the error of the rule.
    explainer = Explainer(subject.model, layer=layer, path="straight", special="keep", tolerance=1e-6)
    paths = paths_of(explainer, sorted({text for pair in pairs for text in pair}, key=len))
    ends = [(paths[a], paths[b]) for a, b in pairs]
    curves: dict[str, Any] = {}
    for rule, steps in STEPS.items():
        of = cache(partial(errors, ends, rule, similarity=explainer.settings.similarity))
        curves[rule] = {
            "steps": list(steps),
            "mean": [float(of(n=n).mean()) for n in steps],
            "std": [float(of(n=n).std()) for n in steps],
            "reached": {f"{bound:g}": first_below(of, steps, bound) for bound in REACHED},
        }
    return {
        **curves,
        "pairs": len(pairs),
        "rough": sum(isinstance(path, SteepPath) for path in paths.values()) / len(paths),
        "left_out": max(path.left_out for path in paths.values()),
        "off_from_tangents": off_from_tangents(explainer, paths),
    }


def pairs_at(experiment: Experiment, subject: Subject, layer: int) -> list[tuple[str, str]]:
    """Choose the pairs whose sums are measured at a layer."""
    pairs = experiment.sample_at(subject, layer).texts
    most = PAIRS if experiment.asked_pairs is None else len(pairs)
    return random.Random(experiment.seed).sample(pairs, min(most, len(pairs)))


def study(experiment: Experiment, subject: Subject) -> dict[str, Any]:
    # From the output to the input: what is cheap is there first.
    layers = {
        layer: experiment.part(
            f"{subject.identity} {layer}", partial(layer_of, subject, layer, pairs_at(experiment, subject, layer))
        )
        for layer in experiment.track(experiment.every_layer(subject)[::-1], f"{subject.label}: layers")
    }
    return {"num_layers": subject.num_layers, "layers": {str(layer): layers[layer] for layer in sorted(layers)}}


def foresee(experiment: Experiment) -> dict[str, float]:
    """Estimate how many seconds each model takes, from a first look at one text at every layer."""
    seconds = {}
    for subject in experiment.subjects:
        total = 0.0
        for layer in experiment.every_layer(subject):
            pairs = pairs_at(experiment, subject, layer)
            texts = sorted({text for pair in pairs for text in pair}, key=len)
            middle = texts[len(texts) // 2]
            started = time.perf_counter()
            (path,) = _interpolate(subject.explainer(layer), [middle], LOOK).values()
            each = (time.perf_counter() - started) / (LOOK + 1)
            # Smooth paths are evaluated in double precision, which takes about twice as long.
            rough = path.left_out > ROUGH
            total += each * (1 if rough else 2) * PASSES[rough] * sum(map(len, texts)) / len(middle)
        seconds[f"{subject.label}, accuracy"] = total
    return seconds


def certain(layer: dict[str, Any]) -> float:
    """Return the error below which what was measured at a layer is not certain."""
    return max(*(float(layer[key]) for key in UNCERTAIN), 1e-14)


def reached(layer: dict[str, Any], rule: str, bound: float) -> str:
    """Say how many nodes a rule needs for a bound."""
    if bound < certain(layer):
        return "not certain"
    n = layer[rule]["reached"][f"{bound:g}"]
    return f"not by {max(STEPS[rule]):,}" if n is None else f"{n:,}"


def draw(numbers: dict[str, Any]) -> Figure:
    """Draw the errors of each model, a panel for each rule."""
    figure, axes = charts.panels(len(STEPS) * len(numbers), 5.2, 4.2, across=len(STEPS), same="y")
    places = [(name, rule) for name in numbers for rule in STEPS]
    for each, (name, rule) in zip(axes, places, strict=True):
        layers = numbers[name]["layers"]
        for (layer, curves), colour in zip(layers.items(), charts.colours(len(layers)), strict=True):
            steps, mean, std = (np.array(curves[rule][key]) for key in ("steps", "mean", "std"))
            mean = np.where(mean >= max(certain(curves), SMALLEST), mean, np.nan)
            if np.isnan(mean).all():
                continue
            each.plot(steps, mean, color=colour, label=layer)
            each.fill_between(steps, np.maximum(mean - std, mean / 10), mean + std, color=colour, alpha=0.1)
        each.set_xscale("log")
        each.set_yscale("log")
        each.set_xlabel("nodes N")
        each.set_ylabel("|ΣA − score|")
        each.set_title(f"{name}: {RULE_NAMES[rule]}", fontsize=9)
        if each.lines:
            each.legend(title="layer", fontsize=7, title_fontsize=7, loc="lower left", ncols=2)
    return figure


def run(experiment: Experiment) -> Result:
    numbers = {subject.label: study(experiment, subject) for subject in experiment.subjects}
    figure = draw(numbers)
    compared = []
    bounds = [f"{bound:g}, {rule}" for rule in STEPS for bound in REACHED]
    table = [["model", "layer", "pairs", *bounds, "certain down to"]]
    for name, measured in numbers.items():
        layers, count = measured["layers"], measured["num_layers"]
        for share, n, paper in (
            (9 / 12, 50, "(5 ± 5)e-3 at layer 9 of 12"),
            (7 / 12, 1000, "(2 ± 3)e-3 at layer 7 of 12"),
        ):
            layer = str(math.ceil(share * count))
            if layer not in layers:
                continue
            curve = layers[layer]["right"]
            i = curve["steps"].index(n)
            ours = f"{curve['mean'][i]:.0e} ± {curve['std'][i]:.0e} ({layers[layer]['pairs']} pairs)"
            compared.append(
                Comparison(f"{name}: error at layer {layer} of {count}, right endpoints, N = {n:,}", ours, paper)
            )
        shallow = [layer for layer in layers if int(layer) < math.ceil(7 / 12 * count)]
        if shallow:
            compared.append(
                Comparison(
                    f"{name}: error at layers {', '.join(shallow)}, right endpoints, N = 2,500",
                    ", ".join(f"{layers[layer]['right']['mean'][-1]:.0e}" for layer in shallow),
                    PAPER_SHALLOW,
                )
            )
        for layer, curves in layers.items():
            row = [reached(curves, rule, bound) for rule in STEPS for bound in REACHED]
            table.append([name, layer, f"{curves['pairs']}", *row, f"{certain(curves):.0e}"])
    most = max(layer["pairs"] for measured in numbers.values() for layer in measured["layers"].values())
    return Result(
        title="Attribution accuracy (Figure 2)",
        notes=[
            f"The absolute error of the sum, reference terms included, over {most} of the pairs or as few as the table "
            "says, mean and standard deviation (shaded; below the mean no further than a tenth of it). The sum needs "
            "only the encoder's derivative along the path, which follows from its values at "
            f"{INTERVALS + 1} or {2 * INTERVALS + 1} points, in double precision; a path on which the embedding moves "
            "in steep steps is followed piece by piece, with some hundred points where it is steep. Sums of tangents, "
            "computed for a few texts at every layer, say how far that is from the truth. Errors smaller than this "
            f"(the table's last column), or than {SMALLEST:.0e}, are not drawn: a layer without a curve, such as an "
            "output that is only a mean over tokens, has none larger. All panels have one scale of errors.",
        ],
        compared=compared,
        tables={"The N at which the mean error first is below a bound": table},
        numbers=numbers,
        figures={"Error of the sum against N: mean, and shaded its standard deviation": figure},
    )

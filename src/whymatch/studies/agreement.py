"""Where explanations of a model as it is agree with those of the adjusted model, layer by layer.

The paper explains an adjusted model: shifted, so that its reference is zero, and trained again. Its authors ask next
whether a model off the shelf can be explained approximately. Three explanations are compared: of the model as it is
with the reference folded back into the tokens, which is exact; of the model as it is in the paper's form, whose
reference terms are left out; and of the adjusted model, if one is among those studied. The paper's form is also what
explains the model that is shifted but not trained: its embeddings differ by what the reference has, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch import Explanation
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, Subject, percent
from whymatch.studies.lexical import correlation, ranks

DEPENDS = ("pairs", "layers")
FOLDED, PAPER, ADJUSTED = "folded", "the paper's form", "adjusted"
STYLES = {(FOLDED, PAPER): "-", (FOLDED, ADJUSTED): "--", (PAPER, ADJUSTED): ":"}

Matrix = NDArray[np.float64]


def content(why: Explanation) -> Matrix:
    """Return the part of the matrix between words, without special tokens."""
    words = why.words()
    rows, columns = ([i for i, kind in enumerate(kinds) if kind == "text"] for kinds in (words.kinds_a, words.kinds_b))
    return np.asarray(words.matrix[np.ix_(rows, columns)], np.float64)


def compare(first: Matrix, second: Matrix) -> tuple[float | None, float | None]:
    """Return the rank correlation of two matrices, and how often they agree on a word's strongest partner.

    None where one has nothing to say of single words, as at the output of a model that pools a special token.
    """
    if first.shape != second.shape or first.size < 3:
        return None, None
    correlated = correlation(ranks(first.ravel()), ranks(second.ravel()))
    if correlated is None:
        return None, None
    same = [
        *(first.argmax(1) == second.argmax(1) if first.shape[1] > 1 else ()),
        *(first.argmax(0) == second.argmax(0) if first.shape[0] > 1 else ()),
    ]
    return correlated, float(np.mean(same)) if same else None


def mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def adjusted_beside(experiment: Experiment, subject: Subject) -> Subject | None:
    """Return the adjusted model of as many blocks, if there is one among the models."""
    return next((each for each in experiment.subjects if each.adjusted and each.num_layers == subject.num_layers), None)


def matrices(experiment: Experiment, subject: Subject, layer: int) -> Iterator[dict[str, tuple[Matrix, float]]]:
    """Explain each pair in all ways, with what the matrix leaves unexplained of the score as a share of its scale."""
    texts = experiment.sample_at(subject, layer).texts
    ways = {
        FOLDED: experiment.numbered(subject, layer, texts),
        PAPER: experiment.numbered(subject, layer, texts, fold=False),
    }
    other = adjusted_beside(experiment, subject)
    if other is not None and layer not in experiment.rough_layers(other):
        ways[ADJUSTED] = experiment.numbered(other, layer, texts)
    explained = {name: dict(_reduce(whys)) for name, whys in ways.items()}
    for number in range(len(texts)):
        if all(number in each for each in explained.values()):
            yield {name: each[number] for name, each in explained.items()}


def _reduce(whys: Iterator[tuple[int, Explanation]]) -> Iterator[tuple[int, tuple[Matrix, float]]]:
    for number, why in whys:
        yield number, (content(why), abs(why.score - float(why.matrix.sum())) / why.norms)


def summary(pairs: Iterable[dict[str, tuple[Matrix, float]]]) -> dict[str, Any]:
    """Summarise how well the explanations of all pairs agree, two ways at a time."""
    every = list(pairs)
    names = list(every[0]) if every else []
    result: dict[str, Any] = {"pairs": len(every), "left_out": {}, "agreement": {}}
    for name in names:
        result["left_out"][name] = mean(pair[name][1] for pair in every)
    for first, second in combinations(names, 2):
        both = [compare(pair[first][0], pair[second][0]) for pair in every]
        result["agreement"][f"{first} and {second}"] = {
            "correlation": mean(each for each, _ in both),
            "same_partner": mean(each for _, each in both),
        }
    return result


def run(experiment: Experiment) -> Result:
    numbers: dict[str, Any] = {}
    for subject in experiment.subjects:
        if not subject.adjusted:
            numbers[subject.label] = {
                str(layer): summary(matrices(experiment, subject, layer)) for layer in experiment.layers(subject)
            }
    if not numbers:
        raise ValueError(
            "all these models are adjusted; the study of agreement needs one as it is: give another --model"
        )
    figure, axes = charts.panels(2 * len(numbers), 4.4, 3.0, across=2, same="y")
    places = [(name, key) for name in numbers for key in ("correlation", "same_partner")]
    for each, (name, key) in zip(axes, places, strict=True):
        layers = numbers[name]
        for (first, second), style in STYLES.items():
            both = f"{first} and {second}"
            known = [
                (int(layer), at["agreement"][both][key]) for layer, at in layers.items() if both in at["agreement"]
            ]
            if known:
                each.plot(*zip(*known, strict=True), linestyle=style, marker="o", color="#2166ac", label=both)
        each.set_xlabel("layer")
        each.set_xticks([int(layer) for layer in layers])
        each.set_ylim(-0.3, 1.05)
        each.set_ylabel("rank correlation" if key == "correlation" else "same strongest partner, share")
        each.set_title(name, fontsize=9)
        each.legend(fontsize=7)
    compared = []
    for name, layers in numbers.items():
        for layer, at in layers.items():
            for both, measured in at["agreement"].items():
                found = "–" if measured["correlation"] is None else f"{measured['correlation']:+.2f}"
                partner = "–" if measured["same_partner"] is None else percent(measured["same_partner"])
                what = f"{name}, layer {layer}: {both}, rank correlation / same strongest partner"
                compared.append(Comparison(what, f"{found} / {partner}", "–"))
            if at["left_out"]:
                what = f"{name}, layer {layer}: what the matrix alone leaves of the score"
                ours = ", ".join(f"{way} {left:.2g}" for way, left in at["left_out"].items() if left is not None)
                compared.append(Comparison(what, ours, "–"))
    return Result(
        title="Agreement with the adjusted model",
        notes=[
            f"{experiment.about_pairs()}, words by sum, special tokens left out, straight paths. “Folded” gives what "
            "the reference has back to the tokens: the matrix sums to the score of the model as it is. “The paper's "
            "form” leaves it out, and on a model that is not adjusted its matrix does not sum to the score: by how "
            "much is said. It is also the exact explanation of the model that is shifted but not trained, but for a "
            "factor. “Adjusted” is the shifted and trained model, where one is among those studied; its scores are "
            "others.",
            *experiment.about_rough(),
        ],
        compared=compared,
        numbers=numbers,
        figures={"Agreement by layer: rank correlation of word pairs, and the strongest partner of a word": figure},
    )

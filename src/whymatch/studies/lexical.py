"""How much of a score comes from words that both texts have, and how much from paraphrases.

The paper has no such study; its authors ask the question in their next one. A score is an exact sum over pairs of
words, so it splits exactly: identical words, different words, and special tokens and punctuation. Whether a model leans
on shared words *more than people do* is another question: it is answered by the correlation of its scores with the
overlap of words among pairs that people gave the same score.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch import Explanation
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, percent

DEPENDS = ("pairs", "usual")
PARTS = ("identical words", "different words", "special tokens and punctuation")
COLOURS = ("#2166ac", "#d95f02", "0.75")
GROUPS = {
    "not alike (people: lowest third)": (0.0, 1 / 3),
    "middle": (1 / 3, 2 / 3),
    "alike (highest third)": (2 / 3, 1),
}
FEW = 10  # pairs of a group, below which its means are hardly worth the name


def split(why: Explanation) -> tuple[dict[str, float], float]:
    """Split a score by what its pairs of words are, and return how many of the words both texts share.

    The overlap is the number of distinct words that both have ÷ that either has.
    """
    words = why.words()
    a, b = (
        [
            token.casefold() if kind == "text" and any(map(str.isalnum, token)) else ""
            for token, kind in zip(tokens, kinds, strict=True)
        ]
        for tokens, kinds in ((words.tokens_a, words.kinds_a), (words.tokens_b, words.kinds_b))
    )
    both = np.outer([bool(word) for word in a], [bool(word) for word in b])
    same = both & np.array([[word == other for other in b] for word in a])
    masks = dict(zip(PARTS, (same, both & ~same, ~both), strict=True))
    union = {*a, *b} - {""}
    overlap = len((set(a) & set(b)) - {""}) / len(union) if union else 0.0
    return {part: float(words.matrix[mask].sum()) for part, mask in masks.items()}, overlap


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rank values from 0; equal ones share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[inverse])


def correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Return Pearson's correlation; None where either does not vary."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def bias(scores: NDArray[np.float64], overlaps: NDArray[np.float64], labels: NDArray[np.float64]) -> float | None:
    """Return the rank correlation of scores with overlaps once what both owe to the labels is taken away."""
    if np.ptp(labels) == 0:
        return correlation(ranks(scores), ranks(overlaps))
    of_labels = ranks(labels)
    left = [
        values - np.polyval(np.polyfit(of_labels, values, 1), of_labels) for values in map(ranks, (scores, overlaps))
    ]
    return correlation(*left)


def summary(explanations: Iterable[tuple[float, Explanation]]) -> dict[str, Any]:
    """Summarise pairs, each with people's score, by thirds of these scores."""
    rows = [(label, why.score, *split(why)) for label, why in explanations]
    labels, scores = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    sums = np.array([[row[2][part] for part in PARTS] for row in rows])
    overlaps = np.array([row[3] for row in rows])
    groups: dict[str, Any] = {}
    for name, (low, high) in {**GROUPS, "all": (0.0, 1.0)}.items():
        chosen = (labels >= low) & ((labels < high) | (high == 1))
        if chosen.any():
            groups[name] = {
                "pairs": int(chosen.sum()),
                "score": float(scores[chosen].mean()),
                "overlap": float(overlaps[chosen].mean()),
                "parts": dict(zip(PARTS, sums[chosen].mean(0).tolist(), strict=True)),
            }
    return {
        "groups": groups,
        "overlap_and_labels": correlation(ranks(overlaps), ranks(labels)),
        "overlap_and_scores": correlation(ranks(overlaps), ranks(scores)),
        "overlap_and_scores_at_equal_labels": bias(scores, overlaps, labels),
    }


def run(experiment: Experiment) -> Result:
    numbers: dict[str, Any] = {}
    for subject in experiment.subjects:
        whys = experiment.numbered(subject, None)
        numbers[subject.label] = summary((experiment.labels[i], why) for i, why in whys)
        numbers[subject.label]["layer"] = subject.usual.settings.layer
    figure, axes = charts.panels(len(numbers), 4.8, 3.2, across=2, same=True)
    for each, (name, measured) in zip(axes, numbers.items(), strict=True):
        groups = measured["groups"]
        for place, group in enumerate(groups.values()):
            up = down = 0.0
            for part, colour in zip(PARTS, COLOURS, strict=True):
                value = group["parts"][part]
                each.barh(place, value, left=up if value > 0 else down, color=colour, label=None if place else part)
                up, down = (up + value, down) if value > 0 else (up, down + value)
            each.plot([group["score"]] * 2, [place - 0.45, place + 0.45], color="black", linewidth=1.2)
        each.set_yticks(range(len(groups)), [f"{key}: {group['pairs']}" for key, group in groups.items()], fontsize=7)
        each.invert_yaxis()
        each.axvline(0, color="0.6", linewidth=0.8)
        each.set_xlabel("part of the score (black: their sum)")
        each.set_title(name, fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=len(PARTS))
    compared = []
    table = [["model", "pairs", "", "overlap", "score", *PARTS]]
    for name, measured in numbers.items():
        whole = measured["groups"]["all"]
        shares = ", ".join(f"{part} {percent(value / whole['score'])}" for part, value in whole["parts"].items())
        compared.append(Comparison(f"{name}: the mean score consists of", shares, "–"))
        values = [
            measured[key] for key in ("overlap_and_scores", "overlap_and_labels", "overlap_and_scores_at_equal_labels")
        ]
        ours = " / ".join("–" if value is None else f"{value:+.2f}" for value in values)
        what = f"{name}: overlap of words against its scores / people's / its scores at equal labels (rank correlation)"
        compared.append(Comparison(what, ours, "–"))
        for key, group in measured["groups"].items():
            parts = [f"{group['parts'][part]:+.3f}" for part in PARTS]
            count = f"{group['pairs']}" + (" (few)" if group["pairs"] < FEW else "")
            table.append([name, count, key, f"{group['overlap']:.2f}", f"{group['score']:.3f}", *parts])
    return Result(
        title="Lexical bias: identical words and paraphrases",
        notes=[
            f"{len(experiment.pairs):,} pairs, explained with the path and layer that whymatch chooses for each "
            "model. Every score is split exactly: identical words (the same letters, whatever their case), different "
            "words, and everything with a special token or punctuation. The last correlation is the bias: above zero, "
            "of two pairs that people find equally similar the model prefers the one that shares more words.",
        ],
        compared=compared,
        tables={"What scores consist of, by people's scores": table},
        numbers=numbers,
        figures={"What scores consist of, by thirds of people's scores; all panels have one scale": figure},
    )

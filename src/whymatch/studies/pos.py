"""Figure 6 and §3.4: which parts of speech a model compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from whymatch import Explanation
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, percent
from whymatch.studies.taggers import Tagger

DEPENDS = ("pairs", "layer", "tagger")
TOP = (0.10, 0.25, 0.50)
CONTENT = frozenset({"NOUN", "VERB"})
MOST = 0.9

Tags: TypeAlias = tuple[str, ...]
Words: TypeAlias = tuple[NDArray[np.float64], Tags, Tags, float]  # a pair's words: values, tags, and its score


def tagged(explanations: Iterable[Explanation], tagger: Tagger, reduce: Literal["sum", "mean"]) -> list[Words]:
    """Merge attributions to words and tag them; special tokens have no tag and are left out."""

    @cache
    def tags(words: Tags) -> Tags:
        return tuple("NOUN" if tag == "PROPN" else tag for tag in tagger(words))  # a name is a noun

    result = []
    for why in explanations:
        words = why.words(reduce)
        rows = [i for i, kind in enumerate(words.kinds_a) if kind == "text"]
        columns = [j for j, kind in enumerate(words.kinds_b) if kind == "text"]
        a = tags(tuple(words.tokens_a[i] for i in rows))
        b = tags(tuple(words.tokens_b[j] for j in columns))
        result.append((words.matrix[np.ix_(rows, columns)], a, b, why.score))
    return result


def relation(tag: str, other: str) -> str:
    """Join two tags in alphabetical order: which text a word is in does not matter."""
    return "–".join(sorted((tag, other)))


def relations(a: Tags, b: Tags) -> NDArray[np.str_]:
    return np.array([[relation(tag, other) for other in b] for tag in a], dtype=str).reshape(len(a), len(b))


def top_shares(pairs: Iterable[Words], share: float) -> Counter[str]:
    """Count how often each relation is among the highest attributions of its pair of texts."""
    counts: Counter[str] = Counter()
    for values, a, b, _ in pairs:
        count = round(share * values.size)
        order = np.argsort(-values, axis=None, kind="stable")[:count]
        counts.update(relations(a, b).ravel()[order].tolist())
    return counts


def explained(pairs: Iterable[Words], chosen: Any) -> tuple[float, float]:
    """Return the mean and deviation of the share of the score that the entries in the mask ``chosen(…)`` sum to."""
    shares = [float(values[chosen(values, a, b)].sum() / score) for values, a, b, score in pairs if score != 0]
    return float(np.mean(shares)), float(np.std(shares))


def most_important(values: NDArray[np.float64], *_: Any) -> NDArray[np.bool_]:
    """Select the strongest nine tenths of a pair's entries, by absolute value."""
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-np.abs(values), axis=None, kind="stable")[: round(MOST * values.size)]] = True
    return mask.reshape(values.shape)


def relations_of_most(pairs: Iterable[Words]) -> set[str]:
    """Select the relations that together make up nine tenths of all attributions, in absolute value."""
    sums: Counter[str] = Counter()
    for values, a, b, _ in pairs:
        for name, value in zip(relations(a, b).ravel().tolist(), np.abs(values).ravel().tolist(), strict=True):
            sums[name] += value
    most: set[str] = set()
    added = 0.0
    for name, value in sums.most_common():
        if added >= MOST * sums.total():
            break
        most.add(name)
        added += value
    return most


def summary(pairs: list[Words]) -> dict[str, Any]:
    """Summarise which relations are strongest, and how much of the score they explain."""
    shares: dict[str, Any] = {}
    counts = {share: top_shares(pairs, share) for share in TOP}
    everywhere = top_shares(pairs, 1.0)
    ten = [name for name, _ in counts[TOP[0]].most_common(10)]
    for share, count in [*counts.items(), (1.0, everywhere)]:
        total = sum(count.values()) or 1
        shares[f"{share:g}"] = {name: count[name] / total for name in ten}
    both = {name for name in everywhere if set(name.split("–")) <= CONTENT}
    most = relations_of_most(pairs)

    def among(names: Iterable[str]) -> Any:
        return lambda _values, a, b: np.isin(relations(a, b), list(names))

    return {
        "shares": shares,
        "explained": {
            "nouns and verbs": explained(pairs, among(both)),
            "top ten relations": explained(pairs, among(ten)),
            "90 % most important relations": explained(pairs, among(most)),
            "90 % most important word pairs": explained(pairs, most_important),
            "all words": explained(pairs, lambda values, _a, _b: np.ones(values.shape, bool)),
        },
    }


PAPER = {
    "nouns and verbs": "53 ± 90 %",
    "top ten relations": "66 ± 98 %",
    "90 % most important relations": "95 ± 29 %",
    "90 % most important word pairs": "95 ± 29 %, if it means these",
    "all words": "–",
}


def run(experiment: Experiment) -> Result:
    tagger = experiment.tagger
    numbers: dict[str, Any] = {}
    for subject in experiment.subjects:
        layer = experiment.inner_layer(subject)
        whys = list(experiment.explanations(subject, layer))
        numbers[subject.label] = {
            "layer": layer,
            "pairs": len(whys),
            "mean": summary(tagged(whys, tagger, "mean")),
            "sum": summary(tagged(whys, tagger, "sum")),
        }
    figure, axes = charts.panels(2 * len(numbers), 5.2, 3.8, across=2, same="y")
    places = [(name, reduce) for name in numbers for reduce in ("mean", "sum")]
    for each, (name, reduce) in zip(axes, places, strict=True):
        shares = numbers[name][reduce]["shares"]
        names = list(shares[f"{TOP[0]:g}"])
        for i, (share, colour) in enumerate(zip([*TOP, 1.0], ["#d95f02", "#e9a26a", "#f2d0b4", "0.75"], strict=True)):
            label = "all" if share == 1 else f"highest {percent(share)}"
            heights = [100 * shares[f"{share:g}"][relation] for relation in names]
            each.bar(np.arange(len(names)) + 0.2 * (i - 1.5), heights, 0.2, color=colour, label=label)
        each.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
        each.set_ylabel("share of word pairs, %")
        each.set_title(f"{name}, layer {numbers[name]['layer']}, words by {reduce}", fontsize=9)
        each.legend(fontsize=7)
    compared = []
    for name, measured in numbers.items():
        first = list(measured["mean"]["shares"][f"{TOP[0]:g}"].items())[:3]
        compared.append(
            Comparison(
                f"{name}: most frequent relations of the highest 10 %",
                ", ".join(f"{relation} {percent(share)}" for relation, share in first),
                "noun–noun almost 25 %, then verb–verb, then noun–verb",
            )
        )
        for what, paper in PAPER.items():
            ours = " / ".join(
                f"{100 * mean:.0f} ± {percent(deviation)}"
                for mean, deviation in (measured[reduce]["explained"][what] for reduce in ("mean", "sum"))
            )
            compared.append(Comparison(f"{name}: {what} explain (by mean / by sum)", ours, paper))
    return Result(
        title="Parts of speech (Figure 6)",
        notes=[
            f"{experiment.about_pairs()}, words tagged by {tagger.name}. Tokens are merged to words by mean, "
            "as in the paper, and by sum, which keeps the score. The highest attributions are those of each pair "
            "of texts. Names count as nouns. Special tokens have no part of speech: what they carry is missing from "
            "“all words”, which is the most that any choice of words explains. The paper's “90 % most important "
            "relations” are read in two ways: the relations that together make up nine tenths of all absolute "
            "attributions, and the strongest nine tenths of each pair's word pairs.",
        ],
        compared=compared,
        numbers={"tagger": tagger.name, **numbers},
        figures={"Relations among the highest attributions": figure},
    )

"""What negations and antonyms do to a score, and whether an explanation shows it.

The paper has no such study. A text and its negation share nearly all their words, and most encoders give them a high
score. What is missing from a perfect match is an exact sum over words (:attr:`whymatch.Explanation.missing`): how much
is missing, and do the words that were changed carry it? :func:`run` asks this of whymatch's explanations for several
models; :class:`Negation` also of other methods.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from whymatch import Explainer, Explanation
from whymatch.corpus.pairs import warn_of_bad_rows
from whymatch.corpus.tables import FIRST, SECOND, Table
from whymatch.results.ranking import scores_of
from whymatch.studies import charts
from whymatch.studies.experiment import Comparison, Experiment, Result, percent
from whymatch.truth.asking import Model, keep_words, seeded
from whymatch.truth.results import Measure, Row, mean_of
from whymatch.truth.subjects import Attribution, TextPair
from whymatch.words import shares, word_spans

NEGATIONS = {"not", "no", "never", "nobody", "nothing", "none", "neither", "nor", "cannot", "without", "nowhere"}
COLUMNS = ((*FIRST, "sentence"), (*SECOND, "negated"))
KINDS = ("negation", "antonym", "same")
KIND_NAMES = {"negation": "negations", "antonym": "antonyms", "same": "said in other words"}
DEPENDS = ("usual", "changes")
TINY = 1e-4  # what is missing from a match of texts that hardly differ has no shares


@dataclass(frozen=True)
class Change:
    """A text, what became of it, and whether that says the opposite."""

    text: str
    changed: str
    opposite: bool = True


def read_changes(path: str | os.PathLike[str]) -> list[Change]:
    """Read a table with the columns ``sentence`` and ``negated``, or ``premise``, ``hypothesis`` and ``label``.

    A label of 0 says that the second text does not contradict the first.
    """
    with Path(path).open(encoding="utf-8-sig") as file:
        names = [name.strip() for name in file.readline().rstrip("\n").split("\t")]
    pair = [name for usual in COLUMNS for name in names if name.casefold() in usual][:2]
    if len(pair) != 2:
        raise ValueError(
            f"{os.fspath(path)!r} has the columns {', '.join(map(repr, names))}; a study of negation needs 'sentence' "
            "and 'negated', or 'premise', 'hypothesis' and 'label'"
        )
    table = Table.open(path, pair, COLUMNS)
    changes, bad = [], []
    for row in table.rows():
        (a, problem_a), (b, problem_b) = (row.text(name) for name in pair)
        if problem := problem_a or problem_b or ("its two texts are the same" if a == b else None):
            bad.append((row.number, problem))
        else:
            changes.append(Change(a, b, str(row.cells.get("label", "1")).strip() != "0"))
    warn_of_bad_rows(path, bad)
    if not changes:
        raise ValueError(f"{os.fspath(path)!r} holds no pair of texts")
    return changes


@dataclass(frozen=True)
class Negation:
    """For each pair: the score, what is missing from 1, and how much of that the changed words carry.

    ``score``: the model's. ``control``: its score of the text with the text less one word that the change left alone.
    ``loss_share``: the part of what is missing that changed words carry, and ``word_share``: what part of the words
    they are. ``seen``: whether the word that lacks most is a changed one, and ``seen_by_chance``. Each also for
    negations, for changes without one (``antonym``), and for pairs that do not contradict (``same``).
    """

    model: Model
    seed: int = 0

    name = "negation"
    headline = "seen"
    groups = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"seed": self.seed}

    @property
    def measures(self) -> Mapping[str, Measure]:
        names = ("seen", "seen_by_chance", "loss_share", "word_share", "score", "control")
        return {f"{name}{kind}": mean_of(f"{name}{kind}") for name in names for kind in ("", *(f"_{k}" for k in KINDS))}

    def texts(self, item: Change) -> TextPair:
        return item.text, item.changed

    def measure(self, item: Change, attribution: Attribution) -> Row:
        pair = (item.text, item.changed)
        words = word_spans(item.text), word_spans(item.changed)
        changed = changed_words(pair)
        counted = [side for side in (0, 1) if changed[side].any()]
        if not all(words) or not counted:
            return {}
        score, control = self.model.remember(["negation", self.seed, *pair], lambda: self._scores(pair, changed[0]))
        row: Row = {"score": score, "control": control if control > -2 else None}
        row["word_share"] = float(np.mean([changed[side].mean() for side in counted]))
        missing = what_is_missing(attribution, words)
        if missing is not None:
            lacks, total = missing
            if total > 1e-4:
                row["loss_share"] = float(np.mean([lacks[side][changed[side]].sum() / total for side in counted]))
            most = max(((float(values.max()), side, int(values.argmax())) for side, values in enumerate(lacks)))
            row["seen"] = float(changed[most[1]][most[2]])
            row["seen_by_chance"] = float(np.concatenate(changed).mean())
        kind = kind_of(item, changed)
        return {**row, **{f"{name}_{kind}": value for name, value in row.items()}, "kind": kind}

    def _scores(self, pair: TextPair, changed: np.ndarray) -> list[float]:
        """Return the pair's score, and the first text's with itself less a word; -9 where none can be left out."""
        less = less_a_word(pair, changed, self.seed)
        texts = [pair[1]] if less is None else [pair[1], less]
        scores = self.model.compare(self.model.embed([pair[0]], 0), self.model.embed(texts, 1))
        return [float(scores[0]), float(scores[1]) if len(scores) > 1 else -9.0]


def measure(item: Change, why: Explanation) -> Row:
    """Measure one explained change: the score, and how much of what is missing the changed words carry.

    For changes to both texts, shares are means over the two; a text without a changed word is not counted.
    """
    words = why.words()
    changed = changed_words((item.text, item.changed))
    row: Row = {"kind": kind_of(item, changed), "score": why.score}
    shares_of, counts, lacking = [], [], []
    for side, missing, marks in zip((words.a, words.b), words.missing, changed, strict=True):
        spans = [span for span, mark in zip(word_spans(side.text), marks, strict=True) if mark]
        inside = np.array([any(low < end and start < high for start, end in spans) for low, high in side.offsets])
        inside &= np.array([kind == "text" for kind in side.kinds])
        lacking += list(zip(missing.tolist(), inside.tolist(), strict=True))
        if spans:
            counts.append(float(marks.mean()))
            if missing.sum() > TINY * why.norms:
                shares_of.append(float(missing[inside].sum() / missing.sum()))
    row["word_share"] = float(np.mean(counts)) if counts else None
    row["loss_share"] = float(np.mean(shares_of)) if shares_of else None
    row["seen"] = float(max(lacking)[1])
    return row


def less_a_word(pair: TextPair, changed: np.ndarray, seed: int) -> str | None:
    """Return a pair's first text without one of the words that the change left alone; None where there is none."""
    words = word_spans(pair[0])
    others = [i for i, (low, high) in enumerate(words) if not changed[i] and pair[0][low:high].isalnum()]
    if not others or len(words) < 2:
        return None
    gone = others[int(seeded(seed, pair).integers(len(others)))]
    return keep_words(pair[0], words, [i != gone for i in range(len(words))])


def score_less_a_word(explainer: Explainer, items: Sequence[Change], seed: int) -> list[float | None]:
    """Return the score of each text with itself less a word that the change left alone; None where there is none."""
    scores: list[float | None] = []
    for item in items:
        pair = (item.text, item.changed)
        less = less_a_word(pair, changed_words(pair)[0], seed)
        if less is None:
            scores.append(None)
            continue
        whole, part = explainer.embed([item.text, less])
        scores.append(float(scores_of(whole, part[None], explainer.settings.similarity)[0]))
    return scores


def average(rows: Sequence[Row]) -> dict[str, Any]:
    """Average what is known of some changes."""
    result: dict[str, Any] = {"pairs": len(rows)}
    for key in ("score", "control", "seen", "loss_share", "word_share"):
        values = [row[key] for row in rows if row.get(key) is not None]
        result[key] = float(np.mean(values)) if values else None
    return result


def run(experiment: Experiment) -> Result:
    items = experiment.changes
    numbers: dict[str, dict[str, Any]] = {}
    layers = {subject.label: subject.usual.settings.layer for subject in experiment.subjects}
    pairs = [(item.text, item.changed) for item in items]
    for subject in experiment.subjects:
        controls = score_less_a_word(subject.usual, items, experiment.seed)
        rows = [
            {**measure(items[number], why), "control": controls[number]}
            for number, why in experiment.numbered(subject, None, pairs)
        ]
        groups = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
        numbers[subject.label] = {kind: average(group) for kind, group in groups.items() if group}
    figure, axes = charts.panels(len(numbers), 4.6, 2.6, across=2, same=True)
    compared = []
    for each, (name, measured) in zip(axes, numbers.items(), strict=True):
        kinds = [kind for kind in KINDS if kind in measured]
        for place, kind in enumerate(kinds):
            found = measured[kind]
            each.barh(place, found["score"], 0.6, color="#d95f02", label=None if place else "after the change")
            if found["control"] is not None:
                label = None if place else "with another word left out instead"
                each.plot([found["control"]] * 2, [place - 0.4, place + 0.4], color="#2166ac", linewidth=2, label=label)
            less = "–" if found["control"] is None else f"{found['control']:.2f}"
            what = f"{name}: score after a change, {KIND_NAMES[kind]} ({found['pairs']}); another word left out instead"
            compared.append(Comparison(what, f"{found['score']:.2f}; {less}", "–"))
            if found["loss_share"] is not None:
                ours = f"{percent(found['loss_share'])} of what is missing; {percent(found['seen'])} lack most"
                what = f"{name}: changed words, {KIND_NAMES[kind]} ({percent(found['word_share'])} of the words), carry"
                compared.append(Comparison(what, ours, "–"))
        each.set_yticks(range(len(kinds)), [KIND_NAMES[kind] for kind in kinds], fontsize=8)
        each.invert_yaxis()
        each.set_xlabel("mean score")
        each.set_title(name, fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=2)
    return Result(
        title="Negations and antonyms",
        notes=[
            f"{len(items):,} texts, each with itself changed: by a negation, by an antonym or otherwise without a word "
            "of negation, or so that it says the same in other words. They are explained by the path and at the layer "
            "that whymatch chooses for each model. A model that understood a negation would score it lower than the "
            "text with any other word left out (the control, one word at random). What is missing from a perfect match "
            "is an exact sum over words; shown is how much of it the changed words carry, and how often the word that "
            "lacks most of all is a changed one.",
        ],
        compared=compared,
        numbers={"layers": layers, **numbers},
        figures={"Scores after a change, and with another word left out instead": figure},
    )


def changed_words(pair: TextPair) -> tuple[np.ndarray, np.ndarray]:
    """Mark the words of each text that the other does not have at that place."""
    words = [[text[low:high].casefold() for low, high in word_spans(text)] for text in pair]
    marks = tuple(np.ones(len(each), bool) for each in words)
    for match in SequenceMatcher(None, words[0], words[1], autojunk=False).get_matching_blocks():
        marks[0][match.a : match.a + match.size] = False
        marks[1][match.b : match.b + match.size] = False
    return marks[0], marks[1]


def kind_of(item: Change, changed: Sequence[np.ndarray]) -> str:
    """Tell a negation from another contradiction, and both from texts that say the same."""
    if not item.opposite:
        return "same"
    for text, marks in zip((item.text, item.changed), changed, strict=True):
        for (low, high), mark in zip(word_spans(text), marks, strict=True):
            word = text[low:high].casefold().replace("’", "'")
            if mark and (word in NEGATIONS or word.endswith("n't")):
                return "negation"
    return "antonym"


def what_is_missing(attribution: Attribution, words: tuple[Any, Any]) -> tuple[list[np.ndarray], float] | None:
    """Return what each word of either text lacks, and the sum that is missing; None where no vectors are known."""
    if attribution.vectors_a is None or attribution.vectors_b is None:
        return None
    vectors = [
        shares(spans, units) @ rows
        for spans, units, rows in (
            (attribution.spans_a, words[0], attribution.vectors_a),
            (attribution.spans_b, words[1], attribution.vectors_b),
        )
    ]
    whole = [attribution.vectors_a.sum(0), attribution.vectors_b.sum(0)]
    lengths = [max(float(np.linalg.norm(each)), 1e-30) for each in whole]
    units = [each / length for each, length in zip(whole, lengths, strict=True)]
    gap = units[0] - units[1]
    lacks = [vectors[0] @ gap / lengths[0], vectors[1] @ -gap / lengths[1]]
    return lacks, float(1 - units[0] @ units[1])

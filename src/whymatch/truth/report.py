"""All results of an evaluation on one self-contained page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader

from whymatch.files import write_text
from whymatch.truth.results import Estimate, Result
from whymatch.words import quote

ORDER = ("coalitions", "insertion_deletion", "alignment", "chunks", "answers", "sanity")
TITLES = {
    "coalitions": "Does it predict what the model says when words are missing?",
    "insertion_deletion": "Do the words it ranks highest matter most?",
    "alignment": "Does it point where people point?",
    "chunks": "Does it give chunks the weight that people give them?",
    "answers": "Does the sentence with the answer get the most?",
    "sanity": "Does it depend on what it should depend on?",
}
MEANINGS = {
    "coalitions": "Words of both texts are removed at random. The sum of the entries that are left is compared with "
    "the score that the model then gives: the rank correlation over coalitions, its mean over pairs.",
    "insertion_deletion": "Words are removed, or added, in the order of what they contribute. 0 is a random order, 1 "
    "the best order that greedy search finds, by the areas under both curves.",
    "alignment": "Of the words that people linked: the share whose strongest partner is one of their links; by effect, "
    "each word counts by how much the model's score changes without it.",
    "chunks": "The F1 of links between chunks, against people's.",
    "answers": "The mean reciprocal rank of the sentence with the answer, by what each sentence adds to the score.",
    "sanity": "The share of checks passed: it changes with the model's weights, not with how the model is written, and "
    "a word gains when it is copied to the other text.",
}
WIDTH, LINE = 640, 22  # of a chart, and of each of its lines, in pixels
NO_VALUE = "no value: the pairs are too few, too short, or too alike"
LETTER, MARGIN = 7, 20  # of the names beside it: the width of a letter, and what is left free


@dataclass(frozen=True)
class Line:
    """One subject in a chart: the value and its interval, as places on the chart."""

    name: str
    estimate: Estimate
    pairs: int
    seconds: float
    x: float
    low: float
    high: float
    y: float


@dataclass(frozen=True)
class Section:
    """One test of one model on one file."""

    test: str
    title: str
    meaning: str
    model: str
    data: str
    headline: str
    lines: Sequence[Line]
    failures: Sequence[tuple[str, str]]
    measures: Sequence[str]
    table: Sequence[tuple[str, Sequence[str]]]
    marks: Sequence[tuple[str, float]]
    height: float
    margin: float


def sections(results: Sequence[Result]) -> list[Section]:
    """Group results by test, model and file, the best of each first."""
    groups: dict[tuple[int, str, str], list[Result]] = {}
    for result in results:
        settings = result.settings
        if result.test not in ORDER:
            raise ValueError(f"{quote(result.test)} is not a test of an evaluation; one is {', '.join(ORDER)}")
        ways = [str(settings[key]) for key in ("units", "removal") if key in settings]
        if "max_words" in settings:
            ways.append(f"texts of at most {settings['max_words']} words")
        data = f"{settings.get('data', '')}, {settings.get('split', 'all')}" + "".join(f", {way}" for way in ways)
        groups.setdefault((ORDER.index(result.test), str(settings.get("model", "")), data), []).append(result)
    return [_section(ORDER[key[0]], key[1], key[2], members) for key, members in sorted(groups.items())]


def _section(test: str, model: str, data: str, results: Sequence[Result]) -> Section:
    good = sorted((each for each in results if math.isfinite(each.value)), key=lambda each: -each.value)
    lowest = min([0.0, *(each.interval[0] for each in good)])
    highest = max([1.0, *(each.interval[1] for each in good)])

    def place(value: float) -> float:
        return round(WIDTH * (value - lowest) / (highest - lowest), 1)

    lines = [
        Line(
            str(each.settings.get("subject", "")),
            each.estimates[each.headline],
            each.counts["pairs"],
            each.seconds / max(1, each.counts["pairs"]),
            place(each.value),
            place(each.interval[0]),
            place(each.interval[1]),
            LINE * (number + 0.5),
        )
        for number, each in enumerate(good)
    ]
    measures = list(dict.fromkeys(name for each in good for name in each.estimates))
    table = [
        (
            str(each.settings.get("subject", "")),
            [str(each.estimates[name]) if _known(each, name) else "" for name in measures],
        )
        for each in good
    ]
    return Section(
        test,
        TITLES[test],
        MEANINGS[test],
        Path(model).name,
        data,
        results[0].headline,
        lines,
        [(str(each.settings.get("subject", "")), each.failure or NO_VALUE) for each in results if each not in good],
        measures,
        table,
        [(mark, place(float(mark))) for mark in ("0", "0.5", "1")],
        LINE * len(lines),
        MARGIN + LETTER * max((len(line.name) for line in lines), default=0),
    )


def _known(result: Result, name: str) -> bool:
    return name in result.estimates and math.isfinite(result.estimates[name].value)


def write(results: Sequence[Result], path: Path) -> Path:
    """Write the page: a single file that needs no network."""
    templates = Environment(loader=PackageLoader("whymatch.truth"), autoescape=True, trim_blocks=True)
    content = templates.get_template("report.html.j2").render(sections=sections(results), width=WIDTH)
    write_text(path, content)
    return path

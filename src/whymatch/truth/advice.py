"""Which settings to use for a model, and how far to trust them, by a short test on some of its pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whymatch.explainer import Explainer
from whymatch.progress import track
from whymatch.truth.asking import Model
from whymatch.truth.baselines import leave_one_out, token_cosine
from whymatch.truth.deletions import Coalitions
from whymatch.truth.judging import judge
from whymatch.truth.results import Estimate, Result, estimate, mean_of
from whymatch.truth.subjects import TextPair

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PAIRS = 12
SECONDS = 120.0  # that one setting may take
MARGIN = 0.03  # a smaller gain is not worth leaving the defaults: they rest on more tests, and several things are tried
LEAST = 6  # pairs with which a gain can be more than chance
NOTE = "(This is about what removing words does. Whether words are matched as people match them is the test alignment.)"


@dataclass(frozen=True, eq=False)
class Advice:
    """What to use, and how far to trust it.

    Attributes:
        model: what the model is called.
        settings: keyword arguments of :class:`whymatch.Explainer`.
        result: how well an explainer with these settings predicts what the model says when words are missing.
        results: the same of every setting that was tried, and of simple baselines.
        skipped: the settings that were left out, each with the reason.
        gain: how much better that is than the defaults on the same pairs; None where they are the defaults.
    """

    model: str
    settings: Mapping[str, Any]
    result: Result
    results: Sequence[Result]
    skipped: Mapping[str, str]
    gain: Estimate | None = None

    @property
    def flags(self) -> str:
        """The settings as flags of the command line; empty where they are its defaults."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items())

    @property
    def call(self) -> str:
        """The settings as a call from Python."""
        given = [repr(self.model), *(f"{name}={value!r}" for name, value in self.settings.items())]
        return f"Explainer({', '.join(given)})"

    @property
    def verdict(self) -> str:
        """How far to believe entries, and what to use, to copy."""
        use = f"use: {self.flags or 'the defaults'}\nin Python: {self.call}"
        return "\n".join([self.trust, self._reason, NOTE, use])

    @property
    def _reason(self) -> str:
        """Why these settings and not others, in a sentence."""
        if self.gain is not None:
            return f"On these pairs, the settings below are better than the defaults by {self.gain}."
        usual = "these settings; the defaults take too long here" if self.settings else "the defaults"
        return f"Nothing that was tried is better, by more than chance and by at least {MARGIN}, than {usual}."

    @property
    def baseline(self) -> float:
        """The value of the cosine of token vectors, which anybody could compute."""
        return next(each.value for each in self.results if str(each.settings["subject"]).startswith("token cosine"))

    @property
    def trust(self) -> str:
        """How far to believe entries, in a sentence."""
        value, (low, _) = self.result.value, self.result.interval
        gain = f"token cosine has {self.baseline:.2f}"
        if low >= 0.75:
            return f"Sums of entries predict well what removing words does ({value:.2f}; {gain})."
        if low >= 0.5:
            return f"Believe large entries, not small differences between them ({value:.2f}; {gain})."
        if low > self.baseline:
            return f"Take entries for hints: they predict what removing words does only roughly ({value:.2f}; {gain})."
        return f"Do not rely on entries for these texts: they predict little ({value:.2f}; {gain})."

    def __str__(self) -> str:
        lines = [
            f"{each.settings['subject']}: {each.estimates[each.headline]}, "
            f"{each.seconds / max(1, each.counts['pairs']):.2f} s a pair"
            for each in sorted(self.results, key=lambda each: -each.value)
        ]
        lines += [f"{name}: left out: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([*lines, self.verdict])


def candidates(layers: int) -> list[dict[str, Any]]:
    """List settings that are worth trying for an encoder of so many blocks; the defaults come first."""
    places = list(dict.fromkeys([0, layers // 2, 3 * layers // 4]))
    tried = [{"path": path, "layer": place} for path in ("secant", "relay") for place in places]
    usual: list[dict[str, Any]] = [{}, {"divisions": 0}, {"special": "keep"}, {"special": "base"}]
    return [*usual, *tried, {"path": "straight", "layer": places[-1]}]


def advise(
    model: SentenceTransformer,
    pairs: Sequence[TextPair],
    *,
    name: str | None = None,
    seconds: float = SECONDS,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    progress: bool = False,
) -> Advice:
    """Try a few settings on a few pairs, and say which to use.

    Args:
        model: a SentenceTransformer.
        pairs: pairs of texts of the kind that will be explained; a dozen are enough.
        name: what the model is called.
        seconds: how long one setting may take; the first pair tells.
        seed: decides which words are removed.
        say: called with a line of text for each setting that has been tried.
        progress: show a bar.
    """
    items = list(pairs)
    if len(items) < 2:
        raise ValueError(f"advice needs a few pairs of texts, and {len(items)} were given")
    asked = Model(model, name=name)
    test = Coalitions(asked, seed=seed)
    results: list[Result] = []
    skipped: dict[str, str] = {}
    tried: dict[int, Mapping[str, Any]] = {}
    ways = 2 + len(candidates(asked.encoder.num_layers))
    for settings, subject in track(_subjects(model, asked), "settings", ways, enabled=progress):
        start = time.perf_counter()
        first = judge(test, subject, items[:1])
        each = time.perf_counter() - start
        label = str(first.settings["subject"])
        if any(label == str(result.settings["subject"]) for result in results) or label in skipped:
            continue  # the defaults are among the others
        if first.failure or each * len(items) > seconds:
            skipped[label] = first.failure or f"{each:.0f} s a pair is too long for a quick test"
            say(f"{label}: {skipped[label]}")
            continue
        result = judge(test, subject, items, settings={"model": asked.name}, known={r["key"]: r for r in first.pairs})
        say(f"{label}: {result.estimates[result.headline]}, {result.seconds / len(items):.2f} s a pair")
        if settings is not None:
            tried[len(results)] = settings
        results.append(result)
    if not tried:
        raise ArithmeticError(f"no setting could be tried: {'; '.join(f'{k}: {v}' for k, v in skipped.items())}")
    usual = min(tried)  # the defaults, unless they were too slow
    if math.isnan(results[usual].value):
        raise ArithmeticError(
            "none of these pairs tells anything: a text needs two words that can be left out, and the model's score "
            "has to change with them"
        )
    gains = {i: gain for i in tried if (gain := _gain(results[i], results[usual])).low > 0 and gain.value >= MARGIN}
    chosen = max(gains, key=lambda i: gains[i].value, default=usual)
    return Advice(asked.name, tried[chosen], results[chosen], results, skipped, gains.get(chosen))


def _gain(result: Result, usual: Result) -> Estimate:
    """Return how much better one setting is than another, pair by pair, so that easy pairs do not count for either."""
    values, others = (
        {row["key"]: row[each.headline] for row in each.pairs if row.get(each.headline) is not None}
        for each in (result, usual)
    )
    both = values.keys() & others.keys()
    if len(both) < LEAST:  # too few for an interval
        return Estimate(math.nan, math.nan, math.nan, len(both))
    return estimate(mean_of("gain"), [{"gain": values[key] - others[key]} for key in sorted(both)])


def _subjects(model: SentenceTransformer, asked: Model) -> Iterator[tuple[Mapping[str, Any] | None, Any]]:
    """Yield what is tried: baselines, without settings, and explainers."""
    yield None, token_cosine(asked)
    yield None, leave_one_out(asked)
    for settings in candidates(asked.encoder.num_layers):
        yield settings, Explainer(model, **settings)

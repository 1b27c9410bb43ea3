"""What a test says of an explanation: its values with their intervals, pair by pair, and how they came to be."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from whymatch.files import read_sealed_json, write_sealed_json
from whymatch.quadrature import Floats
from whymatch.settings import is_int
from whymatch.words import quote

FORMAT, VERSION = "whymatch.truth", 1
RESAMPLES = 2000  # of the bootstrap
LEVEL = 0.95

Row = dict[str, Any]  # what was measured on one pair: "key", "seconds", and numbers


@dataclass(frozen=True)
class Measure:
    """A value over pairs: the sum of some of their numbers, divided by the sum of others, or by how many there are.

    Attributes:
        over: the numbers that are added, each with a factor.
        under: what their sum is divided by; empty is the number of pairs that have the numbers, so that the value is a
            mean.
    """

    over: Mapping[str, float]
    under: Mapping[str, float] = field(default_factory=dict)

    def terms(self, rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
        """Return each pair's part of the numerator and of the denominator; pairs without the numbers are left out."""
        names = [*self.over, *self.under]
        known = [row for row in rows if all(row.get(name) is not None for name in names)]
        over = np.array([sum(f * row[name] for name, f in self.over.items()) for row in known], np.float64)
        if not self.under:
            return over, np.ones(len(known))
        return over, np.array([sum(f * row[name] for name, f in self.under.items()) for row in known], np.float64)


def mean_of(name: str) -> Measure:
    """The mean of one number over the pairs that have it."""
    return Measure({name: 1.0})


@dataclass(frozen=True)
class Estimate:
    """A value, and the interval that it lies in for 95 % of the samples of pairs that one could have drawn."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        value, low, high = (f"{x:.3f}" if abs(x) < 100 else f"{x:.2g}" for x in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation between two numbers of which each pair of texts has a list, over all of them together."""

    x: str
    y: str

    def over(self, rows: Sequence[Row]) -> float:
        """Return the correlation, or nan where there is none."""
        x, y = (np.concatenate([row[name] for row in rows] or [[]]) for name in (self.x, self.y))
        return spearman(x, y) if len(x) > 1 and np.ptp(y) > 0 else math.nan


def spearman(x: Floats, y: Floats) -> float:
    """Return Spearman's correlation; 0 where one of the two does not vary."""
    from scipy.stats import rankdata

    return pearson(rankdata(x), rankdata(y))


def pearson(x: Floats, y: Floats) -> float:
    """Return Pearson's correlation; 0 where one of the two does not vary."""
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size > 0 else 0.0


def estimate(measure: Measure | Correlation, rows: Sequence[Row], seed: int = 0) -> Estimate:
    """Compute a value over pairs, with a bootstrap interval: pairs are drawn again, with replacement."""
    if isinstance(measure, Correlation):
        return _estimate_correlation(measure, [row for row in rows if row.get(measure.x)], seed)
    over, under = measure.terms(rows)
    if not len(over) or under.sum() == 0:
        return Estimate(math.nan, math.nan, math.nan, len(over))
    draws = np.random.default_rng(seed).integers(0, len(over), (RESAMPLES, len(over)))
    below = under[draws].sum(1)
    values = over[draws].sum(1)[below != 0] / below[below != 0]
    return Estimate(float(over.sum() / under.sum()), *_interval(values), len(over))


def _estimate_correlation(measure: Correlation, rows: Sequence[Row], seed: int) -> Estimate:
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, max(1, len(rows)), (RESAMPLES // 10, len(rows)))  # each of them sorts all numbers
    values = np.array([measure.over([rows[i] for i in draw]) for draw in draws])
    return Estimate(measure.over(rows), *_interval(values[np.isfinite(values)]), len(rows))


def _interval(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail]) if len(values) else (math.nan, math.nan)
    return float(low), float(high)


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """The outcome of one test for one explanation method.

    Attributes:
        test: the test's name.
        headline: the name of the measure that the test is known by.
        estimates: every measure, with its interval.
        pairs: what was measured on each pair.
        counts: how many pairs were measured, failed, and what else was counted.
        settings: the test's settings, the data's name and split, and the settings of what was judged.
        seconds: how long the explanations took, all together; the test's own questions to the model are apart.
        failure: why no value could be computed, if none could.
    """

    test: str
    headline: str
    estimates: Mapping[str, Estimate]
    pairs: Sequence[Row]
    counts: Mapping[str, int]
    settings: Mapping[str, Any]
    seconds: float
    failure: str | None = None

    @property
    def value(self) -> float:
        """The value of the headline measure."""
        return self.estimates[self.headline].value

    @property
    def interval(self) -> tuple[float, float]:
        """The bootstrap interval of the headline measure, over pairs."""
        return self.estimates[self.headline].low, self.estimates[self.headline].high

    def __repr__(self) -> str:
        outcome = self.failure or f"{self.headline} {self.estimates[self.headline]}"
        return f"Result({self.test}, {self.settings.get('subject', '')}: {outcome}, {self.counts['pairs']} pairs)"

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers; nan is None."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "test": self.test,
            "headline": self.headline,
            "estimates": {name: _plain(asdict(each)) for name, each in self.estimates.items()},
            "counts": dict(self.counts),
            "settings": _plain(self.settings),
            "seconds": round(self.seconds, 3),
            "failure": self.failure,
            "pairs": [_plain(row) for row in self.pairs],
        }

    @classmethod
    def from_dict(cls, data: Any) -> Result:
        """Make a result from what :meth:`to_dict` returns."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            kind = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"not a result of a test: its format is {kind!r:.60}, not {FORMAT!r}")
        if not is_int(data.get("version")) or data["version"] != VERSION:
            raise ValueError(
                f"this result has format version {data.get('version')!r:.60}; this whymatch reads {VERSION}"
            )
        types: dict[str, Any] = {"test": str, "headline": str, "seconds": int | float, "failure": str | None}
        types |= {"estimates": dict, "pairs": list, "counts": dict, "settings": dict}
        for name, kind in types.items():
            if not isinstance(data.get(name), kind):
                raise ValueError(f"this result is damaged: its {name} is {quote(data.get(name))}")
        values = {name: data[name] for name in types}
        try:
            values["estimates"] = {name: _estimate(each) for name, each in values["estimates"].items()}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"this result is damaged: {type(error).__name__}: {error}") from None
        if values["headline"] not in values["estimates"] or not is_int(values["counts"].get("pairs")):
            raise ValueError(f"this result is damaged: it has no {quote(values['headline'])}, or no number of pairs")
        if not all(isinstance(row, dict) for row in values["pairs"]):
            raise ValueError("this result is damaged: what was measured on a pair is not an object")
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON; the file is either complete or absent."""
        write_sealed_json(path, self.to_dict(), indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read what :meth:`save` wrote."""
        try:
            return cls.from_dict(read_sealed_json(path))
        except ValueError as error:
            raise ValueError(f"{str(path)!r} cannot be read: {error}; remove it, and evaluate again") from None


def _estimate(data: Mapping[str, Any]) -> Estimate:
    value, low, high = (math.nan if data[name] is None else float(data[name]) for name in ("value", "low", "high"))
    return Estimate(value, low, high, int(data["pairs"]))


def _plain(value: Any) -> Any:
    """Turn what a result holds into what JSON can hold, with as many digits as mean anything."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value

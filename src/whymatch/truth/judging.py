"""How a test is run: pair by pair, each one kept as soon as it is known."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from whymatch.settings import ToleranceWarning
from whymatch.truth.results import Correlation, Measure, Result, Row, estimate
from whymatch.truth.subjects import Attribution, Subject, TextPair, attribute, describe

BLOCK = 8  # pairs that are explained together: enough to share batches, few enough that a kill loses little
PATIENCE = 4  # pairs that may fail before the first one that does not

Item = TypeVar("Item", contravariant=True)


class Test(Protocol[Item]):
    """A test: what is measured on one explained pair, and how the measurements are combined."""

    @property
    def name(self) -> str: ...
    @property
    def headline(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def measures(self) -> Mapping[str, Measure | Correlation]: ...
    @property
    def groups(self) -> str | None: ...  # the coarsest pieces that the test needs: "sentences", or None for tokens
    def texts(self, item: Item, /) -> TextPair: ...
    def measure(self, item: Item, attribution: Attribution, /) -> Row: ...


def key_of(item: Any) -> str:
    """Return a short hash by which an item is known again."""
    return hashlib.sha256(json.dumps(item, default=vars, sort_keys=True).encode()).hexdigest()[:16]


def judge(
    test: Test[Any],
    subject: Subject,
    items: Sequence[Any],
    *,
    settings: Mapping[str, Any] | None = None,
    known: Mapping[str, Row] | None = None,
    keep: Callable[[Row], None] = lambda _: None,
    block: int = BLOCK,
) -> Result:
    """Run a test on items.

    Args:
        settings: what else the result should record, such as the name of the data.
        known: rows of an earlier run, by key; those items are not measured again.
        keep: called with each new row.
        block: how many items are explained together.
    """
    rows = dict(known or {})
    keys = [key_of(item) for item in items]
    pending = [i for i, key in enumerate(keys) if key not in rows]
    for low in range(0, len(pending), block):
        numbers = pending[low : low + block]
        for i, explained in zip(
            numbers, _explain(subject, [test.texts(items[i]) for i in numbers], test.groups), strict=True
        ):
            attribution, seconds, problem = explained
            row: Row = {"key": keys[i], "seconds": round(seconds, 4)}
            if attribution is None:
                row["failed"] = problem
            else:
                if attribution.error is not None:
                    row["error"] = attribution.error
                row |= test.measure(items[i], attribution)
            rows[keys[i]] = row
            keep(row)
        so_far = [rows[key] for key in keys if key in rows]
        if len(so_far) >= PATIENCE and all("failed" in row for row in so_far):
            break  # every pair would fail for the same reason
    measured = [rows[key] for key in keys if key in rows]
    good = [row for row in measured if "failed" not in row]
    failed = [row for row in measured if "failed" in row]
    return Result(
        test=test.name,
        headline=test.headline,
        estimates={name: estimate(measure, good) for name, measure in test.measures.items()},
        pairs=measured,
        counts={"pairs": len(good), "failed": len(failed), "given": len(items)},
        settings={**test.settings, **(settings or {}), **describe(subject)},
        seconds=sum(row["seconds"] for row in good),
        failure=None if good else str(failed[0]["failed"]) if failed else "there were no pairs",
    )


def _explain(
    subject: Subject, pairs: Sequence[TextPair], groups: str | None
) -> list[tuple[Attribution | None, float, str]]:
    """Explain pairs together; where one of them cannot be explained, one by one."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # How far each sum is from its score is among what is measured.
            warnings.simplefilter("ignore", ToleranceWarning)
            attributions = attribute(subject, pairs, groups)
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, ValueError) and not hasattr(subject, "decompose"):
            raise  # a function that is judged is wrong
        if len(pairs) == 1:
            return [(None, time.perf_counter() - start, str(error))]
        return [each for pair in pairs for each in _explain(subject, [pair], groups)]
    seconds = (time.perf_counter() - start) / len(pairs)
    # A subject that remembers texts knows what each of them cost when it was new.
    costs = [subject.seconds(*pair, groups) if hasattr(subject, "seconds") else seconds for pair in pairs]
    return [(each, cost, "") for each, cost in zip(attributions, costs, strict=True)]

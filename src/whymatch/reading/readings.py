"""How the two sides of a pair are read: the task, the prompt and the groups of each, from what a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from whymatch.reading.inputs import EncodeOptions
from whymatch.settings import is_int
from whymatch.words import Groups, check_groups, quote

T = TypeVar("T")
Both: TypeAlias = T | tuple[T, T]  # one for both sides, or one for each
Readings: TypeAlias = tuple[EncodeOptions, EncodeOptions]  # of queries and of documents

PLAIN: Readings = (EncodeOptions(prompt=""), EncodeOptions(prompt=""))  # without prompts


def both_options(task: Any, prompt_name: Any, prompt: Any, asymmetric: bool = False) -> Readings:
    """Return how each side is read, from one value for both or a pair; None is a query and a document if asymmetric."""
    tasks = ("query", "document") if task is None and asymmetric else _both(task)
    a, b = (EncodeOptions(*each) for each in zip(tasks, _both(prompt_name), _both(prompt), strict=True))
    return a, b


def both_groups(groups: Any, usual: Groups = None) -> tuple[Groups, Groups]:
    """Return a grouping for each side; a list of spans is one grouping, and so is a tuple of two spans."""
    pair = isinstance(groups, tuple) and len(groups) == 2 and not any(_is_span(each) for each in groups)
    a, b = (usual if each is None else check_groups(each) for each in (groups if pair else (groups, groups)))
    return a, b


def _both(value: Any) -> tuple[Any, Any]:
    a, b = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
    return a, b


def _is_span(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(is_int(each) for each in value)


def describe_readings(readings: Readings) -> dict[str, Any]:
    """Describe in plain values how queries and documents are read."""
    return {
        name: {"task": reading.task, "prompt": reading.prompt}
        for name, reading in zip(("query", "document"), readings, strict=True)
    }


def parse_readings(content: Any) -> Readings:
    """Return the readings that :func:`describe_readings` described."""
    query, document = (content[name] for name in ("query", "document"))
    for each in (query, document):
        if not isinstance(each["task"], str | None) or not isinstance(each["prompt"], str):
            raise ValueError(f"it says that texts are read as {quote(each)}")
    return EncodeOptions(query["task"], prompt=query["prompt"]), EncodeOptions(
        document["task"], prompt=document["prompt"]
    )


def compare_readings(stored: Readings, given: Readings) -> list[str]:
    """Say in which readings two results differ."""
    return [
        f"{name} are read as {_name(one)} there and {_name(other)} here"
        for name, one, other in zip(("queries", "documents"), stored, given, strict=True)
        if one != other
    ]


def _name(reading: EncodeOptions) -> str:
    return f"{reading.task or 'plain'} texts with the prompt {quote(reading.prompt)}"

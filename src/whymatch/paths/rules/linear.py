"""What a rule returns: a linear map between changes; and what rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pair:
    """A tensor that has one value at x and another at r."""

    x: Tensor
    r: Tensor
    number: int  # of its change among all that a tape knows

    @property
    def mean(self) -> Tensor:
        return torch.lerp(self.x, self.r, 0.5)

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    @property
    def ndim(self) -> int:
        return self.x.ndim


@dataclass(frozen=True)
class Linear:
    """A linear map from the changes of some pairs to the change of one tensor.

    Attributes:
        sources: whose changes it takes.
        push: from their changes (count, *shape), one for each source, to that of the result (count, *shape).
        pull: its transpose: from a cotangent of the result to one for each source.
    """

    sources: Sequence[Pair]
    push: Callable[..., Tensor]
    pull: Callable[[Tensor], Sequence[Tensor]]


Rule: TypeAlias = Callable[..., Any]
RuleType = TypeVar("RuleType", bound=Rule)
RULES: dict[str, Rule] = {}

# What depends on the shape of a tensor only.
BLANK = {"empty_like", "zeros_like", "ones_like", "full_like"}
BLANK |= {"new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"}


class NoRule(Exception):  # noqa: N818 caught where the operation's name is known
    """An operation's rule does not cover how it is called; says why."""


def rule(*names: str) -> Callable[[RuleType], RuleType]:
    """Register the rule of the operations of these names.

    It is called with (value at x, value at r) and the operation's arguments, and returns a Linear; for an operation
    with several outputs a list of these, with None for outputs whose change is not linear.
    """

    def register(function: RuleType) -> RuleType:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def one(pair: Pair, push: Callable[[Tensor], Tensor], pull: Callable[[Tensor], Tensor]) -> Linear:
    return Linear((pair,), push, lambda g: (pull(g),))


def add_up(*maps: Linear) -> Linear:
    """Add maps with one source each."""
    if len(maps) == 1:
        return maps[0]

    # The maps themselves know their sources' values, which a tape has no use for.
    sources, pushes, pulls = zip(*((each.sources[0], each.push, each.pull) for each in maps), strict=True)

    def push(*changes: Tensor) -> Tensor:
        total: Tensor = pushes[0](changes[0])
        for each, change in zip(pushes[1:], changes[1:], strict=True):
            total = total + each(change)
        return total

    return Linear(sources, push, lambda g: [pull(g)[0] for pull in pulls])


def check_fixed(name: str, *values: Any) -> None:
    """Raise unless these arguments are the same at x and r."""
    if any(isinstance(value, Pair) for value in values):
        raise NoRule(f"its {name} depends on the input")


def align(change: Tensor, ndim: int) -> Tensor:
    """Insert axes after the first, so that the rest broadcasts with a tensor of ``ndim`` axes."""
    missing = ndim - (change.ndim - 1)
    return change.view(len(change), *[1] * missing, *change.shape[1:]) if missing > 0 else change


def unbroadcast(g: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum cotangents (count, …) over the axes along which a tensor of this shape was broadcast."""
    lead = g.ndim - 1 - len(shape)
    if lead:
        g = g.sum(tuple(range(1, lead + 1)))
    axes = tuple(i + 1 for i, size in enumerate(shape) if size == 1 and g.shape[i + 1] != 1)
    return g.sum(axes, keepdim=True) if axes else g


def scale_by(pair: Pair, factor: Tensor | float, shape: Sequence[int]) -> Linear:
    """Multiply by a constant that broadcasts, to a result of this shape."""
    unit = isinstance(factor, (int, float)) and factor == 1
    before = pair.shape

    def push(t: Tensor) -> Tensor:
        t = align(t, len(shape))
        return (t if unit else t * factor).expand(len(t), *shape)

    return one(pair, push, lambda g: unbroadcast(g if unit else g * factor, before))

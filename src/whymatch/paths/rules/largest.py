"""The largest of several numbers, pools, and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whymatch.paths.rules.linear import RULES, Linear, NoRule, Pair, add_up, align, one, rule, unbroadcast
from whymatch.paths.rules.moving import number_cells, take

aten = torch.ops.aten


def _overtaken(pair: Pair, dim: int, i: Tensor, j: Tensor, sign: int = 1) -> Linear:
    """Entries along an axis that are the largest at x (number i) and at r (number j); the smallest with sign −1."""
    before, axis = pair.shape, dim + 1
    x, r = pair.x * sign, pair.r * sign
    ahead, behind = x.gather(dim, i) - x.gather(dim, j), r.gather(dim, j) - r.gather(dim, i)
    share = torch.where(ahead + behind > 0, ahead / (ahead + behind), 0.5)

    def push(t: Tensor) -> Tensor:
        def entry(at: Tensor) -> Tensor:
            return t.gather(axis, at.expand(len(t), *at.shape))

        return share * entry(i) + (1 - share) * entry(j)

    def pull(g: Tensor) -> Tensor:
        whole = g.new_zeros(len(g), *before)
        whole.scatter_add_(axis, i.expand_as(g), g * share)
        return whole.scatter_add_(axis, j.expand_as(g), g * (1 - share))

    return one(pair, push, pull)


def _largest(pair: Pair, dim: int, keepdim: bool, sign: int = 1) -> Linear:
    """The largest (or, with sign −1, the smallest) entry along an axis."""
    axis = dim % pair.ndim
    i, j = ((end * sign).argmax(axis, keepdim=True) for end in (pair.x, pair.r))
    kept = _overtaken(pair, axis, i, j, sign)
    if keepdim:
        return kept
    push, pull = kept.push, kept.pull
    return one(pair, lambda t: push(t).squeeze(axis + 1), lambda g: pull(g.unsqueeze(axis + 1))[0])


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(out: Any, pair: Pair, *_: Any, **__: Any) -> list[Linear | None]:
    # The operation says itself which place of its plane each result is taken from.
    values, spatial = out[0][0].shape, 3 if pair.ndim == 5 else 2
    flat = Pair(pair.x.flatten(-spatial), pair.r.flatten(-spatial), pair.number)
    i, j = (each[1].flatten(-spatial) for each in out)
    overtaken, before = _overtaken(flat, flat.ndim - 1, i, j), pair.shape
    push, pull = overtaken.push, overtaken.pull
    pooled = one(
        pair,
        lambda t: push(t.flatten(-spatial)).reshape(len(t), *values),
        lambda g: pull(g.flatten(-spatial))[0].reshape(len(g), *before),
    )
    return [pooled, None]


@rule("avg_pool2d")
def _avg_pool(out: Any, pair: Pair, *args: Any) -> Linear:
    before, after = pair.shape, out[0].shape
    # The kernel's size is the stride, and the rest as its schema has it, where they are not given.
    size, stride, *rest = (*args, []) if len(args) == 1 else args
    options = (size, stride or size, *rest, *((0,), False, True, None)[len(rest) :])

    def pull(g: Tensor) -> Tensor:
        like = g.new_zeros(1).expand(len(g) * before[0], *before[1:])
        pulled: Tensor = aten.avg_pool2d_backward(g.reshape(len(g) * after[0], *after[1:]), like, *options)
        return pulled.view(len(g), *before)

    return one(pair, lambda t: aten.avg_pool2d(t.flatten(0, 1), *options).view(len(t), *after), pull)


def _flat(pair: Pair) -> Pair:
    return Pair(pair.x.reshape(-1), pair.r.reshape(-1), pair.number)


def _largest_of_all(pair: Pair, shape: Sequence[int], sign: int = 1) -> Linear:
    largest, before = _largest(_flat(pair), 0, False, sign), pair.shape
    push, pull = largest.push, largest.pull
    return one(
        pair,
        lambda t: push(t.reshape(len(t), -1)).view(len(t), *shape),
        lambda g: pull(g.reshape(len(g)))[0].view(len(g), *before),
    )


def _extremes(names: tuple[str, str, str], sign: int) -> None:
    whole, several, two = names

    @rule(whole)
    def _(out: Any, pair: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, (Tensor, Pair)):
            return RULES[two](out, pair, dim)
        if dim is None:
            return _largest_of_all(pair, out[0].shape, sign)
        return [_largest(pair, dim, keepdim, sign), None]

    @rule(several)
    def _(out: Any, pair: Pair, dim: Any = (), keepdim: bool = False) -> Linear:
        axes = [dim] if isinstance(dim, int) else list(dim)
        if len(axes) == 1:
            return _largest(pair, axes[0], keepdim, sign)
        if axes and len(axes) != pair.ndim:
            raise NoRule("it takes several axes at once")
        return _largest_of_all(pair, out[0].shape, sign)

    @rule(two)
    def _(out: Any, a: Any, b: Any) -> Linear:
        both = [value if isinstance(value, Pair) else Pair(value, value, -1) for value in (a, b)]
        shape = out[0].shape
        stacked = Pair(
            torch.stack([v.x.expand(shape) for v in both], -1), torch.stack([v.r.expand(shape) for v in both], -1), -1
        )
        largest = _largest(stacked, -1, False, sign)
        maps = []
        for k, value in enumerate((a, b)):
            if isinstance(value, Pair):

                def push(t: Tensor, k: int = k) -> Tensor:
                    t = align(t, len(shape)).expand(len(t), *shape)
                    other = torch.zeros_like(t)
                    return largest.push(torch.stack([t, other] if k == 0 else [other, t], -1))

                def pull(g: Tensor, k: int = k, before: torch.Size = value.shape) -> Tensor:
                    return unbroadcast(largest.pull(g)[0][..., k], before)

                maps.append(one(value, push, pull))
        return add_up(*maps)


_extremes(("max", "amax", "maximum"), 1)
_extremes(("min", "amin", "minimum"), -1)


@rule("sort", "topk")
def _sort(out: Any, pair: Pair, *args: Any, **kwargs: Any) -> list[Linear | None]:
    places, other = out[0][1], out[1][1]
    if not torch.equal(places, other):
        raise NoRule("it puts numbers in another order for the input than for its reference")
    dim = next((a for a in reversed(args) if type(a) is int), -1) if len(args) > 1 else -1
    return [take(pair, number_cells(pair).gather(kwargs.get("dim", dim), places)), None]

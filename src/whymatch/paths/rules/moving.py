"""Operations that move numbers about: views, slices, concatenation, scattering and masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whymatch.paths.rules.linear import (
    Linear,
    NoRule,
    Pair,
    add_up,
    align,
    check_fixed,
    one,
    rule,
    scale_by,
    unbroadcast,
)

aten = torch.ops.aten


@rule("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "alias", "detach", "clone", "_to_copy")
@rule("lift_fresh")
def _reshape(out: Any, pair: Pair, *_: Any, **__: Any) -> Linear:
    before, after = pair.shape, out[0].shape
    old, new = pair.x.dtype, out[0].dtype
    if not (new.is_floating_point or new.is_complex):
        raise NoRule(f"it rounds to {new}")
    if new.is_complex and not old.is_complex:
        return one(pair, lambda t: t.to(new), lambda g: g.real)
    if before == after:
        return one(pair, lambda t: t.to(new), lambda g: g.to(old))
    return one(pair, lambda t: t.reshape(len(t), *after).to(new), lambda g: g.reshape(len(g), *before).to(old))


@rule("permute", "transpose", "t")
def _permute(out: Any, pair: Pair, *args: Any) -> Linear:
    if len(args) == 2:
        order = list(range(pair.ndim))
        i, j = (d % pair.ndim for d in args)
        order[i], order[j] = j, i
    elif args:
        order = [d % pair.ndim for d in args[0]]
    else:
        order = list(range(pair.ndim))[::-1]
    back = [order.index(i) + 1 for i in range(len(order))]
    order = [d + 1 for d in order]
    return one(pair, lambda t: t.permute(0, *order), lambda g: g.permute(0, *back))


@rule("expand")
def _expand(out: Any, pair: Pair, *_: Any, **__: Any) -> Linear:
    return scale_by(pair, 1, out[0].shape)


def _window(pair: Pair, take: Callable[[Tensor], Tensor]) -> Linear:
    """Take a part of a tensor, by a function that returns a view of a tensor with one more axis in front."""
    shape = pair.shape

    def pull(g: Tensor) -> Tensor:
        whole = g.new_zeros(len(g), *shape)
        take(whole).copy_(g)
        return whole

    return one(pair, take, pull)


@rule("slice")
def _slice(
    out: Any, pair: Pair, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Linear:
    if out[0].shape == pair.shape:
        return scale_by(pair, 1, pair.shape)
    at = (slice(None),) * (dim % pair.ndim + 1) + (slice(start, end, step),)
    return _window(pair, lambda t: t[at])


@rule("select")
def _select(out: Any, pair: Pair, dim: int, index: int) -> Linear:
    axis = dim % pair.ndim + 1
    return _window(pair, lambda t: t.select(axis, index))


@rule("unbind")
def _unbind(out: Any, pair: Pair, dim: int = 0) -> list[Linear]:
    return [_select(out, pair, dim, i) for i in range(pair.shape[dim])]


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk")
def _split(out: Any, pair: Pair, _sizes: Any, dim: int = 0) -> list[Linear]:
    dim, low, maps = dim % pair.ndim, 0, []
    for part in out[0]:
        size = part.shape[dim]
        maps.append(_window(pair, partial(torch.narrow, dim=dim + 1, start=low, length=size)))
        low += size
    return maps


@rule("cat", "concat")
def _cat(out: Any, parts: Sequence[Any], dim: int = 0) -> Linear:
    shape, axis, low = out[0].shape, dim % out[0].ndim, 0
    sources: list[Pair] = []
    places: list[tuple[int, int]] = []
    for part in parts:
        if part.shape == (0,):
            continue  # an old way to begin with nothing
        size = part.shape[axis]
        if isinstance(part, Pair):
            sources.append(part)
            places.append((low, size))
        low += size
    whole = sum(size for _, size in places) == shape[axis]

    def push(*changes: Tensor) -> Tensor:
        if whole:
            return torch.cat(changes, axis + 1)
        result = changes[0].new_zeros(len(changes[0]), *shape)
        for place, change in zip(places, changes, strict=True):
            result.narrow(axis + 1, *place).copy_(change)
        return result

    return Linear(sources, push, lambda g: [g.narrow(axis + 1, *place) for place in places])


@rule("stack")
def _stack(out: Any, parts: Sequence[Any], dim: int = 0) -> Linear:
    shape, dim = out[0].shape, dim % out[0].ndim
    maps = []
    for i, part in enumerate(parts):
        if isinstance(part, Pair):

            def push(t: Tensor, i: int = i) -> Tensor:
                whole = t.new_zeros(len(t), *shape)
                whole.select(dim + 1, i).copy_(t)
                return whole

            maps.append(one(part, push, partial(torch.select, dim=dim + 1, index=i)))
    return add_up(*maps)


def take(pair: Pair, places: Tensor) -> Linear:
    """Take the numbers at these places of a flattened tensor, for a result of the shape of ``places``."""
    flat, before, shape = places.reshape(-1), pair.shape, places.shape

    def pull(g: Tensor) -> Tensor:
        whole = g.new_zeros(len(g), math.prod(before))
        return whole.index_add_(1, flat, g.reshape(len(g), -1)).view(len(g), *before)

    return one(pair, lambda t: t.reshape(len(t), -1)[:, flat].view(len(t), *shape), pull)


def put(base: Pair | Tensor, source: Pair | Tensor, places: Tensor, add: bool = False) -> Linear:
    """Put numbers at these places of a flattened tensor, in place of its own or (``add``) on top of them."""
    flat, shape = places.reshape(-1), base.shape
    maps = []
    if isinstance(base, Pair):
        keep = torch.ones(math.prod(shape), dtype=torch.bool, device=flat.device)
        if not add:
            keep[flat] = False
        keep = keep.view(shape)
        maps.append(one(base, lambda t: t * keep, lambda g: g * keep))
    if isinstance(source, Pair):
        if not add and int(torch.bincount(flat).max()) > 1:
            raise NoRule("it writes several numbers to one place")
        before = source.shape

        def push(t: Tensor) -> Tensor:
            t = align(t, places.ndim).expand(len(t), *places.shape)
            whole = t.new_zeros(len(t), math.prod(shape))
            return whole.index_add_(1, flat, t.reshape(len(t), -1)).view(len(t), *shape)

        def pull(g: Tensor) -> Tensor:
            taken = g.reshape(len(g), -1)[:, flat].view(len(g), *places.shape)
            return unbroadcast(taken, before)

        maps.append(one(source, push, pull))
    return add_up(*maps)


def number_cells(pair: Pair | Tensor) -> Tensor:
    """Number the places of a tensor, in its shape."""
    device = pair.x.device if isinstance(pair, Pair) else pair.device
    return torch.arange(math.prod(pair.shape), device=device).view(pair.shape)


def _taking(name: str) -> None:
    """Register an operation that only picks numbers of its first argument: it is asked which, by numbering them."""

    @rule(name)
    def pick(out: Any, pair: Any, *args: Any, **kwargs: Any) -> Linear:
        check_fixed("index", *args, *kwargs.values(), *(args[0] if args and isinstance(args[0], (list, tuple)) else ()))
        if not isinstance(pair, Pair):
            raise NoRule("its index depends on the input")
        return take(pair, getattr(aten, name)(number_cells(pair), *args, **kwargs))


for _name in ("index", "index_select", "gather", "flip", "roll", "repeat", "as_strided", "diagonal", "unfold"):
    _taking(_name)
for _name in ("repeat_interleave", "take", "narrow", "pixel_shuffle", "pixel_unshuffle", "rot90", "masked_select"):
    _taking(_name)


@rule("constant_pad_nd", "im2col")
def _pad(out: Any, pair: Pair, *args: Any) -> Linear:
    operation = aten.im2col if len(args) > 2 else aten.constant_pad_nd
    # Only floating-point numbers can be unfolded; doubles hold every place.
    places = operation((number_cells(pair) + 1).double(), *args[:1], *((0,) if len(args) < 3 else args[1:])).long()
    taken, inside = take(pair, (places - 1).clamp(min=0)), places > 0
    return one(pair, lambda t: taken.push(t) * inside, lambda g: taken.pull(g * inside)[0])


@rule("slice_scatter", "select_scatter")
def _scatter_view(out: Any, base: Any, source: Any, dim: int = 0, *args: Any, **kwargs: Any) -> Linear:
    view = aten.slice if isinstance(source, (Pair, Tensor)) and len(source.shape) == len(base.shape) else aten.select
    return put(base, source, view(number_cells(base), dim, *args, **kwargs))


@rule("index_put", "_unsafe_index_put")
def _index_put(out: Any, base: Any, indices: Sequence[Any], source: Any, accumulate: bool = False) -> Linear:
    check_fixed("index", *indices)
    return put(base, source, aten.index(number_cells(base), list(indices)), accumulate)


@rule("copy")
def _copy(out: Any, base: Any, source: Any, *_: Any) -> Linear | None:
    return scale_by(source, 1, out[0].shape) if isinstance(source, Pair) else None


@rule("masked_fill")
def _masked_fill(out: Any, base: Any, mask: Any, value: Any) -> Linear:
    check_fixed("mask", mask)
    return _where(out, mask, value, base)


@rule("where")
def _where(out: Any, mask: Any, a: Any, b: Any) -> Linear:
    check_fixed("condition", mask)
    maps = [scale_by(a, mask, out[0].shape)] if isinstance(a, Pair) else []
    return add_up(*maps, *([scale_by(b, ~mask, out[0].shape)] if isinstance(b, Pair) else []))


@rule("tril")
def _tril(out: Any, pair: Pair, diagonal: int = 0) -> Linear:
    return scale_by(pair, torch.ones_like(pair.x).tril(diagonal), pair.shape)


@rule("triu")
def _triu(out: Any, pair: Pair, diagonal: int = 0) -> Linear:
    return scale_by(pair, torch.ones_like(pair.x).triu(diagonal), pair.shape)

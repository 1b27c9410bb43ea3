"""Exact difference quotients of PyTorch's operations: for each, a linear map that takes x − r to f(x) − f(r).

A rule is given an operation's values at two points, x and r, and its arguments, in which what differs between the
points is a :class:`Pair`. It returns a :class:`Linear` for each output: a map, linear in the changes of the pairs, that
takes their differences x − r exactly to the output's. A change has a leading axis, over which the map is repeated.

Linear operations are their own quotient. The others:

- f of each number by itself: (f(x) − f(r)) / (x − r), and the slope of f where x and r meet.
- a product: the mean of one factor times the change of the other, and the other way round.
- a softmax exp(z − log Σ exp z): the logarithmic mean of its two values, times the change of z less its mean under
  those logarithmic means.
- a layer norm c · i, of centred numbers c and i = 1 / √(variance + ε), in two ways, alone or mixed. As a
  product: i changes by −i_x² i_r² / (i_x + i_r) per unit of variance, and the variance by the mean of (c_x + c_r) times
  the change of c. And as the paper does with a whole encoder: its Jacobian, averaged along the line from r to x.
- a maximum: where the largest entry is i at x and j at r, shares of the changes of these two, in the proportion in
  which the line from r to x is divided by the point where one overtakes the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from whymatch.paths.derivatives import attention_scores, pull_attention, push_attention
from whymatch.quadrature import get_rule

aten = torch.ops.aten


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


def _one(pair: Pair, push: Callable[[Tensor], Tensor], pull: Callable[[Tensor], Tensor]) -> Linear:
    return Linear((pair,), push, lambda g: (pull(g),))


def _sum(*maps: Linear) -> Linear:
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


def _fixed(name: str, *values: Any) -> None:
    """Raise unless these arguments are the same at x and r."""
    if any(isinstance(value, Pair) for value in values):
        raise NoRule(f"its {name} depends on the input")


def _align(change: Tensor, ndim: int) -> Tensor:
    """Insert axes after the first, so that the rest broadcasts with a tensor of ``ndim`` axes."""
    missing = ndim - (change.ndim - 1)
    return change.view(len(change), *[1] * missing, *change.shape[1:]) if missing > 0 else change


def _unbroadcast(g: Tensor, shape: Sequence[int]) -> Tensor:
    """Sum cotangents (count, …) over the axes along which a tensor of this shape was broadcast."""
    lead = g.ndim - 1 - len(shape)
    if lead:
        g = g.sum(tuple(range(1, lead + 1)))
    axes = tuple(i + 1 for i, size in enumerate(shape) if size == 1 and g.shape[i + 1] != 1)
    return g.sum(axes, keepdim=True) if axes else g


def _scale(pair: Pair, factor: Tensor | float, shape: Sequence[int]) -> Linear:
    """Multiply by a constant that broadcasts, to a result of this shape."""
    unit = isinstance(factor, (int, float)) and factor == 1
    before = pair.shape

    def push(t: Tensor) -> Tensor:
        t = _align(t, len(shape))
        return (t if unit else t * factor).expand(len(t), *shape)

    return _one(pair, push, lambda g: _unbroadcast(g if unit else g * factor, before))


# Moving numbers about.


@rule("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "alias", "detach", "clone", "_to_copy")
@rule("lift_fresh")
def _reshape(out: Any, pair: Pair, *_: Any, **__: Any) -> Linear:
    before, after = pair.shape, out[0].shape
    old, new = pair.x.dtype, out[0].dtype
    if not (new.is_floating_point or new.is_complex):
        raise NoRule(f"it rounds to {new}")
    if new.is_complex and not old.is_complex:
        return _one(pair, lambda t: t.to(new), lambda g: g.real)
    if before == after:
        return _one(pair, lambda t: t.to(new), lambda g: g.to(old))
    return _one(pair, lambda t: t.reshape(len(t), *after).to(new), lambda g: g.reshape(len(g), *before).to(old))


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
    return _one(pair, lambda t: t.permute(0, *order), lambda g: g.permute(0, *back))


@rule("expand")
def _expand(out: Any, pair: Pair, *_: Any, **__: Any) -> Linear:
    return _scale(pair, 1, out[0].shape)


def _window(pair: Pair, take: Callable[[Tensor], Tensor]) -> Linear:
    """Take a part of a tensor, by a function that returns a view of a tensor with one more axis in front."""
    shape = pair.shape

    def pull(g: Tensor) -> Tensor:
        whole = g.new_zeros(len(g), *shape)
        take(whole).copy_(g)
        return whole

    return _one(pair, take, pull)


@rule("slice")
def _slice(
    out: Any, pair: Pair, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Linear:
    if out[0].shape == pair.shape:
        return _scale(pair, 1, pair.shape)
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

            maps.append(_one(part, push, partial(torch.select, dim=dim + 1, index=i)))
    return _sum(*maps)


def take(pair: Pair, places: Tensor) -> Linear:
    """Take the numbers at these places of a flattened tensor, for a result of the shape of ``places``."""
    flat, before, shape = places.reshape(-1), pair.shape, places.shape

    def pull(g: Tensor) -> Tensor:
        whole = g.new_zeros(len(g), math.prod(before))
        return whole.index_add_(1, flat, g.reshape(len(g), -1)).view(len(g), *before)

    return _one(pair, lambda t: t.reshape(len(t), -1)[:, flat].view(len(t), *shape), pull)


def put(base: Pair | Tensor, source: Pair | Tensor, places: Tensor, add: bool = False) -> Linear:
    """Put numbers at these places of a flattened tensor, in place of its own or (``add``) on top of them."""
    flat, shape = places.reshape(-1), base.shape
    maps = []
    if isinstance(base, Pair):
        keep = torch.ones(math.prod(shape), dtype=torch.bool, device=flat.device)
        if not add:
            keep[flat] = False
        keep = keep.view(shape)
        maps.append(_one(base, lambda t: t * keep, lambda g: g * keep))
    if isinstance(source, Pair):
        if not add and int(torch.bincount(flat).max()) > 1:
            raise NoRule("it writes several numbers to one place")
        before = source.shape

        def push(t: Tensor) -> Tensor:
            t = _align(t, places.ndim).expand(len(t), *places.shape)
            whole = t.new_zeros(len(t), math.prod(shape))
            return whole.index_add_(1, flat, t.reshape(len(t), -1)).view(len(t), *shape)

        def pull(g: Tensor) -> Tensor:
            taken = g.reshape(len(g), -1)[:, flat].view(len(g), *places.shape)
            return _unbroadcast(taken, before)

        maps.append(_one(source, push, pull))
    return _sum(*maps)


def _number(pair: Pair | Tensor) -> Tensor:
    """Number the places of a tensor, in its shape."""
    device = pair.x.device if isinstance(pair, Pair) else pair.device
    return torch.arange(math.prod(pair.shape), device=device).view(pair.shape)


def _taking(name: str) -> None:
    """Register an operation that only picks numbers of its first argument: it is asked which, by numbering them."""

    @rule(name)
    def pick(out: Any, pair: Any, *args: Any, **kwargs: Any) -> Linear:
        _fixed("index", *args, *kwargs.values(), *(args[0] if args and isinstance(args[0], (list, tuple)) else ()))
        if not isinstance(pair, Pair):
            raise NoRule("its index depends on the input")
        return take(pair, getattr(aten, name)(_number(pair), *args, **kwargs))


for _name in ("index", "index_select", "gather", "flip", "roll", "repeat", "as_strided", "diagonal", "unfold"):
    _taking(_name)
for _name in ("repeat_interleave", "take", "narrow", "pixel_shuffle", "pixel_unshuffle", "rot90", "masked_select"):
    _taking(_name)


@rule("constant_pad_nd", "im2col")
def _pad(out: Any, pair: Pair, *args: Any) -> Linear:
    operation = aten.im2col if len(args) > 2 else aten.constant_pad_nd
    # Only floating-point numbers can be unfolded; doubles hold every place.
    places = operation((_number(pair) + 1).double(), *args[:1], *((0,) if len(args) < 3 else args[1:])).long()
    taken, inside = take(pair, (places - 1).clamp(min=0)), places > 0
    return _one(pair, lambda t: taken.push(t) * inside, lambda g: taken.pull(g * inside)[0])


@rule("slice_scatter", "select_scatter")
def _scatter_view(out: Any, base: Any, source: Any, dim: int = 0, *args: Any, **kwargs: Any) -> Linear:
    view = aten.slice if isinstance(source, (Pair, Tensor)) and len(source.shape) == len(base.shape) else aten.select
    return put(base, source, view(_number(base), dim, *args, **kwargs))


@rule("index_put", "_unsafe_index_put")
def _index_put(out: Any, base: Any, indices: Sequence[Any], source: Any, accumulate: bool = False) -> Linear:
    _fixed("index", *indices)
    return put(base, source, aten.index(_number(base), list(indices)), accumulate)


@rule("copy")
def _copy(out: Any, base: Any, source: Any, *_: Any) -> Linear | None:
    return _scale(source, 1, out[0].shape) if isinstance(source, Pair) else None


@rule("masked_fill")
def _masked_fill(out: Any, base: Any, mask: Any, value: Any) -> Linear:
    _fixed("mask", mask)
    return _where(out, mask, value, base)


@rule("where")
def _where(out: Any, mask: Any, a: Any, b: Any) -> Linear:
    _fixed("condition", mask)
    maps = [_scale(a, mask, out[0].shape)] if isinstance(a, Pair) else []
    return _sum(*maps, *([_scale(b, ~mask, out[0].shape)] if isinstance(b, Pair) else []))


@rule("tril")
def _tril(out: Any, pair: Pair, diagonal: int = 0) -> Linear:
    return _scale(pair, torch.ones_like(pair.x).tril(diagonal), pair.shape)


@rule("triu")
def _triu(out: Any, pair: Pair, diagonal: int = 0) -> Linear:
    return _scale(pair, torch.ones_like(pair.x).triu(diagonal), pair.shape)


# Sums and products.


@rule("sum")
def _total(out: Any, pair: Pair, dim: Any = None, *_: Any, **__: Any) -> Linear:
    axes = [dim] if isinstance(dim, int) else list(dim or range(pair.ndim))
    axes = sorted(d % pair.ndim + 1 for d in axes) if pair.ndim else []
    before, after = pair.shape, out[0].shape
    kept = [1 if i + 1 in axes else size for i, size in enumerate(before)]
    return _one(
        pair,
        lambda t: t.sum(axes).reshape(len(t), *after) if axes else t,
        lambda g: g.reshape(len(g), *kept).expand(len(g), *before),
    )


@rule("mean")
def _mean(out: Any, pair: Pair, dim: Any = None, *_: Any, **__: Any) -> Linear:
    total, share = _total(out, pair, dim), out[0].numel() / max(1, pair.x.numel())
    push, pull = total.push, total.pull
    return _one(pair, lambda t: push(t) * share, lambda g: pull(g * share)[0])


@rule("cumsum")
def _cumsum(out: Any, pair: Pair, dim: int, **_: Any) -> Linear:
    axis = dim % pair.ndim + 1
    return _one(pair, lambda t: t.cumsum(axis), lambda g: g.flip(axis).cumsum(axis).flip(axis))


@rule("add")
def _add(out: Any, a: Any, b: Any, *, alpha: float = 1) -> Linear:
    maps = [_scale(a, 1, out[0].shape)] if isinstance(a, Pair) else []
    return _sum(*maps, *([_scale(b, alpha, out[0].shape)] if isinstance(b, Pair) else []))


@rule("sub")
def _sub(out: Any, a: Any, b: Any, *, alpha: float = 1) -> Linear:
    return _add(out, a, b, alpha=-alpha)


@rule("rsub")
def _rsub(out: Any, a: Any, b: Any, alpha: float = 1) -> Linear:
    return _add(out, b, a, alpha=-alpha)


@rule("neg")
def _neg(out: Any, pair: Pair) -> Linear:
    return _scale(pair, -1, pair.shape)


def _middle(value: Any) -> Any:
    return value.mean if isinstance(value, Pair) else value


@rule("mul")
def _mul(out: Any, a: Any, b: Any) -> Linear:
    maps = [_scale(a, _middle(b), out[0].shape)] if isinstance(a, Pair) else []
    return _sum(*maps, *([_scale(b, _middle(a), out[0].shape)] if isinstance(b, Pair) else []))


@rule("div", "true_divide")
def _div(out: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Linear:
    if rounding_mode is not None:
        raise NoRule("it rounds")
    if not isinstance(b, Pair):
        return _scale(a, 1 / b, out[0].shape)
    maps = [_scale(b, -_middle(a) / (b.x * b.r), out[0].shape)]
    return _sum(*([_scale(a, (1 / b.x + 1 / b.r) / 2, out[0].shape)] if isinstance(a, Pair) else []), *maps)


@rule("addcmul")
def _addcmul(out: Any, base: Any, a: Any, b: Any, *, value: float = 1) -> Linear:
    shape = out[0].shape
    maps = [_scale(base, 1, shape)] if isinstance(base, Pair) else []
    if isinstance(a, Pair):
        maps.append(_scale(a, _middle(b) * value, shape))
    if isinstance(b, Pair):
        maps.append(_scale(b, _middle(a) * value, shape))
    return _sum(*maps)


@rule("lerp")
def _lerp(out: Any, a: Any, b: Any, weight: Any) -> Linear:
    _fixed("weight", weight)
    maps = [_scale(a, 1 - weight, out[0].shape)] if isinstance(a, Pair) else []
    return _sum(*maps, *([_scale(b, weight, out[0].shape)] if isinstance(b, Pair) else []))


def _left(t: Tensor, b: Tensor) -> Tensor:
    """(count, batch, n, m) times a shared (batch, m, p), as one large product for each entry of the batch."""
    count, batch, n, m = t.shape
    product = torch.bmm(t.transpose(0, 1).reshape(batch, count * n, m), b)
    return product.view(batch, count, n, -1).transpose(0, 1)


def _right(a: Tensor, t: Tensor) -> Tensor:
    """A shared (batch, n, m) times (count, batch, m, p)."""
    count, batch, m, p = t.shape
    product = torch.bmm(a, t.permute(1, 2, 0, 3).reshape(batch, m, count * p))
    return product.view(batch, -1, count, p).permute(2, 0, 1, 3)


@rule("bmm")
def _bmm(out: Any, a: Any, b: Any) -> Linear:
    maps = []
    if isinstance(a, Pair):
        other = _middle(b)
        maps.append(_one(a, lambda t: _left(t, other), lambda g: _left(g, other.mT)))
    if isinstance(b, Pair):
        mean = _middle(a)
        maps.append(_one(b, lambda t: _right(mean, t), lambda g: _right(mean.mT, g)))
    return _sum(*maps)


@rule("mm")
def _mm(out: Any, a: Any, b: Any) -> Linear:
    maps = []
    if isinstance(a, Pair):
        other = _middle(b)
        maps.append(_one(a, lambda t: torch.matmul(t, other), lambda g: torch.matmul(g, other.mT)))
    if isinstance(b, Pair):
        mean = _middle(a)[None]
        maps.append(_one(b, lambda t: _right(mean, t[:, None])[:, 0], lambda g: _right(mean.mT, g[:, None])[:, 0]))
    return _sum(*maps)


@rule("addmm", "baddbmm")
def _addmm(out: Any, base: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Linear:
    maps = [_scale(base, beta, out[0].shape)] if isinstance(base, Pair) else []
    if isinstance(a, Pair):
        other = _middle(b) if alpha == 1 else _middle(b) * alpha
        maps.append((_mm if out[0].ndim == 2 else _bmm)(out, a, other))
    if isinstance(b, Pair):
        other = _middle(a) if alpha == 1 else _middle(a) * alpha
        maps.append((_mm if out[0].ndim == 2 else _bmm)(out, other, b))
    return _sum(*maps)


@rule("linear")
def _linear(out: Any, x: Any, weight: Any, bias: Any = None) -> Linear:
    _fixed("weight", weight, bias)
    return _one(x, lambda t: torch.matmul(t, weight.mT), lambda g: torch.matmul(g, weight))


# Cotangents of complex numbers are such that the real part of their conjugate times a change is its product.


@rule("_fft_c2c")
def _fft(out: Any, pair: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Linear:
    axes = [d % pair.ndim + 1 for d in dim]
    return _one(
        pair,
        lambda t: aten._fft_c2c(t, axes, normalization, forward),
        lambda g: aten._fft_c2c(g, axes, normalization, not forward),
    )


@rule("_fft_r2c")
def _real_fft(out: Any, pair: Pair, dim: Sequence[int], normalization: int, onesided: bool) -> Linear:
    if onesided:
        raise NoRule("it leaves out half of its result")
    axes = [d % pair.ndim + 1 for d in dim]
    return _one(
        pair,
        lambda t: aten._fft_r2c(t, axes, normalization, False),
        lambda g: aten._fft_c2c(g, axes, normalization, False).real,
    )


@rule("view_as_real")
def _view_as_real(out: Any, pair: Pair) -> Linear:
    return _one(pair, torch.view_as_real, lambda g: torch.view_as_complex(g.contiguous()))


@rule("view_as_complex")
def _view_as_complex(out: Any, pair: Pair) -> Linear:
    return _one(pair, lambda t: torch.view_as_complex(t.contiguous()), torch.view_as_real)


@rule("dot", "mv")
def _dot(out: Any, a: Any, b: Any) -> Linear:
    maps = []
    if isinstance(a, Pair):
        other = _middle(b)
        maps.append(_one(a, lambda t: torch.matmul(t, other), lambda g: g[..., None] * other))
    if isinstance(b, Pair):
        mean = _middle(a)
        maps.append(
            _one(
                b,
                lambda t: torch.matmul(t, mean.mT if mean.ndim == 2 else mean),
                lambda g: torch.matmul(g, mean) if mean.ndim == 2 else g[..., None] * mean,
            )
        )
    return _sum(*maps)


@rule("convolution")
def _convolution(out: Any, x: Any, weight: Any, bias: Any, *options: Any) -> Linear:
    _fixed("weight", weight, bias)
    before = x.shape

    def push(t: Tensor) -> Tensor:
        result: Tensor = aten.convolution(t.flatten(0, 1), weight, None, *options)
        return result.view(*t.shape[:2], *result.shape[1:])

    def pull(g: Tensor) -> Tensor:
        shape = (g.shape[0] * g.shape[1], *before[1:])
        like = g.new_zeros(1).expand(shape)
        back: Tensor = aten.convolution_backward(g.flatten(0, 1), like, weight, None, *options, [True, False, False])[0]
        return back.view(len(g), *before)

    if x.ndim != weight.ndim:
        raise NoRule("its input has no axis for a batch")
    return _one(x, push, pull)


@rule("_native_batch_norm_legit_no_training", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def _batch_norm(out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *options: Any) -> list[Linear | None]:
    _fixed("scale", weight, bias, mean, var)
    if len(options) == 3 and options[0]:
        raise NoRule("it is in training mode")
    scale = torch.rsqrt(var + options[-1]) * (1 if weight is None else weight)
    scale = scale.view(-1, *[1] * (x.ndim - 2))
    return [_scale(x, scale, x.shape)] + [None] * (len(out[0]) - 1)


# Functions of each number by itself.


def _quotient(
    x: Tensor,
    r: Tensor,
    f_x: Tensor,
    f_r: Tensor,
    slope: Callable[[Tensor], Tensor],
    kinks: Sequence[float] | None,
) -> Tensor:
    """Return (f(x) − f(r)) / (x − r), or the mean slope between them where their difference would be lost in rounding.

    The mean slope of a smooth function is taken by Gauss's rule with two points, whose error there is below rounding.
    """
    change = x - r
    if kinks is None:
        close = change == 0
    else:
        close = change.abs() <= (0.05 if x.dtype == torch.float32 else 2e-3)
        for kink in kinks:
            close &= ((x - kink) * (r - kink) > 0) | (change == 0)
    ratio = (f_x - f_r) / change
    places = close.reshape(-1).nonzero()[:, 0]
    if len(places):
        start, step = r.reshape(-1)[places], change.reshape(-1)[places]
        away = math.sqrt(3) / 6
        slopes = (slope(start + (0.5 - away) * step) + slope(start + (0.5 + away) * step)) / 2
        ratio = ratio.reshape(-1).index_copy(0, places, slopes).view(change.shape)
    return ratio


# Slopes of functions, and where these have kinks; None for functions that are straight between their kinks, whose
# quotients lose nothing in rounding. The functions' further arguments follow the points.
SLOPES: dict[str, tuple[Callable[..., Tensor], Sequence[float] | None]] = {
    "gelu": (lambda p, approximate="none": aten.gelu_backward(torch.ones_like(p), p, approximate=approximate), ()),
    "silu": (lambda p: aten.silu_backward(torch.ones_like(p), p), ()),
    "mish": (lambda p: aten.mish_backward(torch.ones_like(p), p), ()),
    "tanh": (lambda p: 1 - torch.tanh(p) ** 2, ()),
    "sigmoid": (lambda p: torch.sigmoid(p) * torch.sigmoid(-p), ()),
    "log_sigmoid_forward": (lambda p: torch.sigmoid(-p), ()),
    "softplus": (lambda p, beta=1, threshold=20: aten.softplus_backward(torch.ones_like(p), p, beta, threshold), ()),
    "erf": (lambda p: 2 / math.sqrt(math.pi) * torch.exp(-(p**2)), ()),
    "sin": (torch.cos, ()),
    "cos": (lambda p: -torch.sin(p), ()),
    "relu": (lambda p: (p > 0).to(p), None),
    "abs": (torch.sign, None),
    "leaky_relu": (lambda p, slope=0.01: torch.where(p > 0, 1.0, slope).to(p), None),
    "elu": (
        lambda p, alpha=1, scale=1, input_scale=1: aten.elu_backward(
            torch.ones_like(p), alpha, scale, input_scale, False, p
        ),
        (0,),
    ),
    "hardtanh": (lambda p, low=-1, high=1: ((p > low) & (p < high)).to(p), None),
    "hardswish": (lambda p: aten.hardswish_backward(torch.ones_like(p), p), (-3, 3)),
    "hardsigmoid": (lambda p: aten.hardsigmoid_backward(torch.ones_like(p), p), (-3, 3)),
    "threshold": (lambda p, threshold, _value: (p > threshold).to(p), None),
}


def _elementwise(name: str) -> None:
    slope, kinks = SLOPES[name]

    @rule(name)
    def map_each(out: Any, pair: Pair, *args: Any, **kwargs: Any) -> Any:
        _fixed("parameters", *args, *kwargs.values())
        f_x, f_r = (value if isinstance(value, Tensor) else value[0] for value in out)
        ratio = _quotient(pair.x, pair.r, f_x, f_r, lambda p: slope(p, *args, **kwargs), kinks)
        scaled = _scale(pair, ratio, pair.shape)
        return scaled if isinstance(out[0], Tensor) else [scaled] + [None] * (len(out[0]) - 1)


for _name in SLOPES:
    _elementwise(_name)


def _stable(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function of each number by a form of its quotient in which nothing cancels: (x, r, f(x), f(r))."""

    def register(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @rule(name)
        def map_each(out: Any, pair: Pair) -> Linear:
            return _scale(pair, form(pair.x, pair.r, *out), pair.shape)

        return form

    return register


_stable("sqrt")(lambda x, r, f_x, f_r: 1 / (f_x + f_r))
_stable("rsqrt")(lambda x, r, f_x, f_r: -((f_x * f_r) ** 2) / (f_x + f_r))
_stable("reciprocal")(lambda x, r, f_x, f_r: -f_x * f_r)
_stable("exp")(lambda x, r, f_x, f_r: _logarithmic_mean(f_x, f_r, x - r))
_stable("expm1")(lambda x, r, f_x, f_r: _logarithmic_mean(f_x + 1, f_r + 1, x - r))


@_stable("log")
def _log(x: Tensor, r: Tensor, f_x: Tensor, f_r: Tensor) -> Tensor:
    change = x - r
    ratio = torch.where(change.abs() < 0.5 * r, torch.log1p(change / r), f_x - f_r) / change
    return torch.where(change == 0, 1 / r, ratio)


@_stable("log1p")
def _log1p(x: Tensor, r: Tensor, f_x: Tensor, f_r: Tensor) -> Tensor:
    return _log(x + 1, r + 1, f_x, f_r)


def _logarithmic_mean(a: Tensor, b: Tensor, logs: Tensor) -> Tensor:
    """Return (a − b) / (log a − log b), given a, b ≥ 0 and the difference of their logarithms; 0 where both are 0."""
    near = torch.sqrt(a * b) * torch.sinh(logs / 2) / (logs / 2)
    mean = torch.where(logs.abs() < 2, near, (a - b) / logs)
    return torch.where(logs == 0, b, mean).nan_to_num(0.0, 0.0, 0.0)


@rule("pow")
def _pow(out: Any, base: Any, exponent: Any) -> Linear:
    if isinstance(exponent, Pair):
        if isinstance(base, Pair) or not float(base) > 0:
            raise NoRule("its exponent depends on the input")
        log = math.log(base)
        return _scale(exponent, log * _logarithmic_mean(out[0], out[1], log * (exponent.x - exponent.r)), out[0].shape)
    x, r, p = base.x, base.r, float(exponent)
    if p == int(p) and 0 < abs(p) <= 16:
        n = int(abs(p))
        slope = sum((x**k * r ** (n - 1 - k) for k in range(1, n)), r ** (n - 1))
        slope = slope if p > 0 else -slope * out[0] * out[1]
    elif p == 0:
        slope = torch.zeros_like(x)
    elif p == 0.5:
        slope = 1 / (out[0] + out[1])
    else:
        if not bool((torch.minimum(x, r) > 0).all()):
            raise NoRule(f"its exponent is {p}, and its base not positive")
        # x^p = exp(p log x): the quotients of both.
        log_x, log_r = torch.log(x), torch.log(r)
        slope = p * _logarithmic_mean(out[0], out[1], p * (log_x - log_r)) * _log(x, r, log_x, log_r)
    return _scale(base, slope, out[0].shape)


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(out: Any, pair: Any, *args: Any, **kwargs: Any) -> Linear:
    _fixed("bounds", *args, *kwargs.values())
    if out[0].shape != pair.shape:
        raise NoRule("its bounds have more axes than its input")
    change = pair.x - pair.r
    inside = (out[0] == pair.x).to(change)
    return _scale(pair, torch.where(change == 0, inside, (out[0] - out[1]) / change), pair.shape)


# The largest of several numbers.


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

    return _one(pair, push, pull)


def _largest(pair: Pair, dim: int, keepdim: bool, sign: int = 1) -> Linear:
    """The largest (or, with sign −1, the smallest) entry along an axis."""
    axis = dim % pair.ndim
    i, j = ((end * sign).argmax(axis, keepdim=True) for end in (pair.x, pair.r))
    kept = _overtaken(pair, axis, i, j, sign)
    if keepdim:
        return kept
    push, pull = kept.push, kept.pull
    return _one(pair, lambda t: push(t).squeeze(axis + 1), lambda g: pull(g.unsqueeze(axis + 1))[0])


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(out: Any, pair: Pair, *_: Any, **__: Any) -> list[Linear | None]:
    # The operation says itself which place of its plane each result is taken from.
    values, spatial = out[0][0].shape, 3 if pair.ndim == 5 else 2
    flat = Pair(pair.x.flatten(-spatial), pair.r.flatten(-spatial), pair.number)
    i, j = (each[1].flatten(-spatial) for each in out)
    overtaken, before = _overtaken(flat, flat.ndim - 1, i, j), pair.shape
    push, pull = overtaken.push, overtaken.pull
    pooled = _one(
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

    return _one(pair, lambda t: aten.avg_pool2d(t.flatten(0, 1), *options).view(len(t), *after), pull)


def _flat(pair: Pair) -> Pair:
    return Pair(pair.x.reshape(-1), pair.r.reshape(-1), pair.number)


def _largest_of_all(pair: Pair, shape: Sequence[int], sign: int = 1) -> Linear:
    largest, before = _largest(_flat(pair), 0, False, sign), pair.shape
    push, pull = largest.push, largest.pull
    return _one(
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
                    t = _align(t, len(shape)).expand(len(t), *shape)
                    other = torch.zeros_like(t)
                    return largest.push(torch.stack([t, other] if k == 0 else [other, t], -1))

                def pull(g: Tensor, k: int = k, before: torch.Size = value.shape) -> Tensor:
                    return _unbroadcast(largest.pull(g)[0][..., k], before)

                maps.append(_one(value, push, pull))
        return _sum(*maps)


_extremes(("max", "amax", "maximum"), 1)
_extremes(("min", "amin", "minimum"), -1)


@rule("sort", "topk")
def _sort(out: Any, pair: Pair, *args: Any, **kwargs: Any) -> list[Linear | None]:
    places, other = out[0][1], out[1][1]
    if not torch.equal(places, other):
        raise NoRule("it puts numbers in another order for the input than for its reference")
    dim = next((a for a in reversed(args) if type(a) is int), -1) if len(args) > 1 else -1
    return [take(pair, _number(pair).gather(kwargs.get("dim", dim), places)), None]


# Softmax, and norms.


def _log_softmaxes(pair: Pair, dim: int) -> tuple[Tensor, Tensor]:
    return torch.log_softmax(pair.x, dim), torch.log_softmax(pair.r, dim)


def _softmax_slopes(log_x: Tensor, log_r: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the logarithmic means of two softmaxes, and the same with a sum of 1."""
    slope = _logarithmic_mean(log_x.exp(), log_r.exp(), log_x - log_r)
    return slope, slope / slope.sum(dim, keepdim=True)


@rule("_softmax", "_safe_softmax")
def _softmax(out: Any, pair: Pair, dim: int, *_: Any, **__: Any) -> Linear:
    dim = dim % pair.ndim
    slope = _softmax_slopes(*_log_softmaxes(pair, dim), dim)[0]
    total = slope.sum(dim, keepdim=True)
    share = torch.where(total > 0, 1 / total, 0)  # no share in a row that is masked altogether

    def apply(t: Tensor) -> Tensor:  # symmetric
        return (t - (t * slope).sum(dim + 1, keepdim=True) * share) * slope

    return _one(pair, apply, apply)


@rule("_log_softmax")
def _log_softmax(out: Any, pair: Pair, dim: int, *_: Any) -> Linear:
    dim = dim % pair.ndim
    centre = _softmax_slopes(out[0], out[1], dim)[1]
    return _one(
        pair,
        lambda t: t - (t * centre).sum(dim + 1, keepdim=True),
        lambda g: g - g.sum(dim + 1, keepdim=True) * centre,
    )


@rule("logsumexp")
def _logsumexp(out: Any, pair: Pair, dim: Any, keepdim: bool = False) -> Linear:
    axes = [dim] if isinstance(dim, int) else list(dim)
    if len(axes) != 1:
        raise NoRule("it takes several axes at once")
    axis = axes[0] % pair.ndim
    _, centre = _softmax_slopes(*_log_softmaxes(pair, axis), axis)
    return _one(
        pair,
        lambda t: (t * centre).sum(axis + 1, keepdim=keepdim),
        lambda g: (g if keepdim else g.unsqueeze(axis + 1)) * centre,
    )


def _attention(out: Any, q: Any, k: Any, v: Any, bias: Any, causal: bool, scale: float | None) -> list[Linear | None]:
    _fixed("mask", bias)
    q, k, v = (value if isinstance(value, Pair) else Pair(value, value, -1) for value in (q, k, v))
    if q.shape[1] != k.shape[1]:
        raise NoRule("its queries have more heads than its keys")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if causal:
        allowed = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.x.device).tril()
        bias = torch.zeros_like(allowed, dtype=q.x.dtype).masked_fill(~allowed, -torch.inf)[None, None]
    elif bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=q.x.dtype).masked_fill(~bias, -torch.inf)
        bias = bias.view(*[1] * (4 - bias.ndim), *bias.shape)
    mean_q, mean_k, mean_v = q.mean, k.mean, v.mean

    def weights(part: slice) -> tuple[Tensor, Tensor, Tensor]:
        log_x, log_r = (
            torch.log_softmax(attention_scores(*ends, bias, scale, part), -1).flatten(0, 1)
            for ends in ((q.x, k.x), (q.r, k.r))
        )
        slope, centre = _softmax_slopes(log_x, log_r, -1)
        return torch.lerp(log_x.exp(), log_r.exp(), 0.5), slope, centre

    sources = [pair for pair in (q, k, v) if pair.number >= 0]

    def push(*changes: Tensor) -> Tensor:
        given = iter(changes)
        like = changes[0].new_zeros(1)
        dq, dk, dv = (
            next(given) if pair.number >= 0 else like.expand(len(changes[0]), *pair.shape) for pair in (q, k, v)
        )
        return push_attention(mean_q, mean_k, mean_v, scale, dq, dk, dv, weights)

    def pull(g: Tensor) -> list[Tensor]:
        pulled = pull_attention(mean_q, mean_k, mean_v, scale, g, weights)
        return [each for each, pair in zip(pulled, (q, k, v), strict=True) if pair.number >= 0]

    return [Linear(sources, push, pull)] + [None] * (len(out[0]) - 1)


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _cpu_attention(
    out: Any, q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, **kwargs: Any
) -> list[Linear | None]:
    if dropout_p:
        raise NoRule("it has dropout")
    return _attention(out, q, k, v, kwargs.get("attn_mask"), is_causal, kwargs.get("scale"))


@rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
def _biased_attention(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    _lse: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    **kwargs: Any,
) -> list[Linear | None]:
    if dropout_p:
        raise NoRule("it has dropout")
    return _attention(out, q, k, v, bias, is_causal, kwargs.get("scale"))


@rule("_scaled_dot_product_attention_math_for_mps")
def _mps_attention(
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *_: Any,
    **kw: Any,
) -> list[Linear | None]:
    if dropout_p:
        raise NoRule("it has dropout")
    return _attention(out, q, k, v, bias, is_causal, kw.get("scale"))


@rule("_scaled_dot_product_flash_attention")
def _flash_attention(
    out: Any, q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *_: Any, **kwargs: Any
) -> list[Linear | None]:
    if dropout_p:
        raise NoRule("it has dropout")
    return _attention(out, q, k, v, None, is_causal, kwargs.get("scale"))


# How a norm's quotient is taken; see :func:`_norm`.
Norm: TypeAlias = Literal["both", "line", "mean", "reference"]
MOMENTS = 48  # nodes for integrals of single numbers, whose error does not matter: see :func:`_along_the_line`
# How many times as large as by products of means all norms of an encoder together may make a change, at most, by
# following their lines. Measured in docs/method.md, "Other exact maps".
GROWTH = 3.0


class Restraint:
    """How far the norms of a pass are followed along their lines: known when the last of them has been recorded.

    A line makes a change larger than a product of means does, and norms one after another multiply this. If the growth
    of all norms together is too much, each is a mean of both quotients, all with the same weights.
    """

    def __init__(self, points: int) -> None:
        self._points = points
        self._growths: list[Tensor] = []

    def note(self, growth: Tensor) -> None:
        """Take note of how much larger changes become by the line of one norm: of each point, over its tokens."""
        if self._knows(growth):
            self._growths.append(growth.flatten(1).mean(1))

    def _knows(self, growth: Tensor) -> bool:
        # What has another first axis, as in an encoder that puts all texts in a row, cannot be told apart by points.
        return growth.ndim > 1 and len(growth) == self._points

    def weight(self, like: Tensor) -> Tensor | float:
        """Return the weight of the line, to be multiplied with a tensor that has the shape of a norm's growth."""
        if not self._knows(like):
            return ALONE
        total = torch.stack(self._growths).log().sum(0).clamp_min(1e-9)
        weight = (math.log(GROWTH) / total).clamp_max(1.0).to(like.dtype)
        return weight.view(-1, *[1] * (like.ndim - 1))


ALONE = 2 / 3  # the weight of the line where it cannot be measured


@dataclass
class _Quotient:
    """The parts of a norm's quotient: ``scale · change + first · (c_r · change) + second · (d · change)``."""

    scale: Tensor
    first: Tensor
    second: Tensor
    line: tuple[Tensor, Tensor, Tensor] | None = None  # to be mixed with, by ...
    restraint: Restraint | None = None
    factor: Any = None  # the norm's weight

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.line is not None and self.restraint is not None:
            weight = self.restraint.weight(self.scale)
            both = zip((self.scale, self.first, self.second), self.line, strict=True)
            self.scale, self.first, self.second = (torch.lerp(p, q, weight) for p, q in both)
            self.line = None
        if self.factor is not None:
            self.scale, self.first, self.second = (p * self.factor for p in (self.scale, self.first, self.second))
            self.factor = None
        return self.scale, self.first, self.second


def _norm(pair: Pair, axes: int, eps: float, weight: Any, centred: bool, norm: Norm | Restraint) -> Linear:
    """Divide by a standard deviation, or a root of the mean square, over the last axes.

    A norm c · i, of (centred) numbers c and i = 1 / √(mean c² + ε), has several exact quotients. Its factors may be
    taken at the "mean" of both points, or i at the "reference" and c at the input; its Jacobian may be averaged along
    the "line" between the points; and a restraint mixes the first and the last. All of them have the form
    scale · change + first · (c_r · change) + second · (d · change), where d = c_x − c_r.
    """
    dims, count = tuple(range(-axes, 0)), math.prod(pair.shape[-axes:])
    c_x, c_r = (value - value.mean(dims, keepdim=True) if centred else value for value in (pair.x, pair.r))
    d = c_x - c_r
    line = _along_the_line(c_x, c_r, eps, dims) if norm == "line" or isinstance(norm, Restraint) else None
    if norm == "line" and line is not None:
        quotient = _Quotient(*line, factor=weight)
    else:
        i_x, i_r = (torch.rsqrt((c * c).mean(dims, keepdim=True) + eps) for c in (c_x, c_r))
        scale, c = (i_r, c_x) if norm == "reference" else (torch.lerp(i_x, i_r, 0.5), torch.lerp(c_x, c_r, 0.5))
        second = c * -((i_x * i_r) ** 2) / ((i_x + i_r) * count)  # the variance changes by (2 c_r + d) · change / count
        quotient = _Quotient(scale, 2 * second, second, factor=weight)
        if isinstance(norm, Restraint) and line is not None:
            norm.note(line[0] / scale)
            quotient.line, quotient.restraint = line, norm

    def push(t: Tensor) -> Tensor:
        scale, first, second = quotient.parts
        change = t - t.mean(dims, keepdim=True) if centred else t
        change = (change * scale).addcmul_((t * c_r).sum(dims, keepdim=True), first)
        return change.addcmul_((t * d).sum(dims, keepdim=True), second)

    def pull(g: Tensor) -> Tensor:
        scale, first, second = quotient.parts
        change = g * scale
        change = change - change.mean(dims, keepdim=True) if centred else change
        change = change.addcmul_((g * first).sum(dims, keepdim=True), c_r)
        return change.addcmul_((g * second).sum(dims, keepdim=True), d)

    return _one(pair, push, pull)


def _along_the_line(c_x: Tensor, c_r: Tensor, eps: float, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parts of a norm's Jacobian, averaged along the line from r to x; see :func:`_norm`.

    At c = c_r + α d the Jacobian is i − i³ c cᵀ / count, so that its average needs the mean of i and three moments of
    i³. What their quadrature misses is given to the change along d, so that the map is exact whatever the nodes.
    """
    dtype, count = c_x.dtype, math.prod(c_x.shape[dims[0] :])
    if c_x.device.type != "mps":  # which has no double precision
        c_x, c_r = c_x.double(), c_r.double()
    d = c_x - c_r
    square, product, start = ((u * v).mean(dims, keepdim=True) for u, v in ((d, d), (c_r, d), (c_r, c_r)))
    alpha, weights = (torch.tensor(each).to(d) for each in get_rule("gauss")(MOMENTS))
    variance = (square[..., None] * alpha + 2 * product[..., None]) * alpha + start[..., None]
    i = torch.rsqrt(variance.clamp_min(0) + eps)
    cube = i**3 * weights
    m_0, m_1, m_2 = (each.sum(-1) / count for each in (cube, cube * alpha, cube * alpha**2))
    scale = (i * weights).sum(-1)
    first, second = -(m_0 * c_r + m_1 * d), -(m_1 * c_r + m_2 * d)
    i_x, i_r = (torch.rsqrt((c * c).mean(dims, keepdim=True) + eps) for c in (c_x, c_r))
    missing = i_x * c_x - i_r * c_r - scale * d - count * (product * first + square * second)
    # Where x and r almost meet, nothing but rounding is missing, and would be large relative to d.
    apart = square > torch.finfo(dtype).eps * start
    second = second + torch.where(apart, missing / (count * square), 0)
    return scale.to(dtype), first.to(dtype), second.to(dtype)


@rule("native_layer_norm")
def _layer_norm(
    out: Any, pair: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float, norm: Norm | Restraint = "mean"
) -> list[Linear | None]:
    _fixed("weight", weight, bias)
    return [_norm(pair, len(shape), eps, weight, True, norm), None, None]


@rule("native_group_norm")
def _group_norm(
    out: Any,
    pair: Any,
    weight: Any,
    bias: Any,
    batch: int,
    channels: int,
    _size: int,
    groups: int,
    eps: float,
    norm: Norm | Restraint = "mean",
) -> list[Linear | None]:
    _fixed("weight", weight, bias)
    shape, before = (batch, groups, -1), pair.shape
    rows = Pair(pair.x.reshape(shape), pair.r.reshape(shape), pair.number)
    factor = torch.ones(channels, 1).to(pair.x) if weight is None else weight.view(-1, 1)
    factor = factor.expand(channels, rows.x[0].numel() // channels).reshape(groups, -1)
    inner = _norm(rows, 1, eps, factor, True, norm)
    push, pull = inner.push, inner.pull
    normed = _one(
        pair,
        lambda t: push(t.reshape(len(t), *shape)).view(len(t), *before),
        lambda g: pull(g.reshape(len(g), *shape))[0].view(len(g), *before),
    )
    return [normed, None, None]


@rule("_fused_rms_norm")
def _rms_norm(out: Any, pair: Any, shape: Sequence[int], weight: Any, eps: float | None) -> list[Linear | None]:
    _fixed("weight", weight)
    eps = torch.finfo(pair.x.dtype).eps if eps is None else eps
    # As it is where it is not fused, but written out: the same on every device.
    return [_norm(pair, len(shape), eps, weight, False, "mean"), None]


NORMS = ("native_layer_norm", "native_group_norm")  # whose rules can be told how to take the quotient


def _variance(pair: Pair, dim: Any, correction: float, shape: Sequence[int]) -> Linear:
    axes = list(range(pair.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    axes = [d % pair.ndim for d in axes]
    c_x, c_r = (value - value.mean(axes, keepdim=True) for value in (pair.x, pair.r))
    both = (c_x + c_r) / (math.prod(pair.shape[d] for d in axes) - correction)
    kept = [1 if i in axes else size for i, size in enumerate(pair.shape)]
    behind = [d + 1 for d in axes]
    return _one(
        pair,
        lambda t: (t * both).sum(behind).view(len(t), *shape),
        lambda g: g.reshape(len(g), *kept) * both,
    )


def _correction(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """How many fewer than all numbers a variance is divided by, from the several ways to say so."""
    value = kwargs.get("correction", kwargs.get("unbiased", args[0] if args else 1))
    return 1.0 if value is None else float(value)


@rule("var")
def _var(out: Any, pair: Pair, dim: Any = None, *args: Any, **kwargs: Any) -> Linear:
    if isinstance(dim, bool):
        dim, args = None, (dim,)
    return _variance(pair, dim, _correction(args, kwargs), out[0].shape)


@rule("std")
def _std(out: Any, pair: Pair, dim: Any = None, *args: Any, **kwargs: Any) -> Linear:
    if isinstance(dim, bool):
        dim, args = None, (dim,)
    variance, slope = _variance(pair, dim, _correction(args, kwargs), out[0].shape), 1 / (out[0] + out[1])
    return _one(pair, lambda t: variance.push(t) * slope, lambda g: variance.pull(g * slope)[0])


@rule("var_mean")
def _var_mean(out: Any, pair: Pair, dim: Any = None, *args: Any, **kwargs: Any) -> list[Linear]:
    if isinstance(dim, bool):
        dim, args = None, (dim,)
    shapes = [value.shape for value in out[0]]
    mean = _mean((out[0][1], out[1][1]), pair, dim)
    return [_variance(pair, dim, _correction(args, kwargs), shapes[0]), mean]


@rule("linalg_vector_norm", "norm")
def _length(out: Any, pair: Pair, order: Any = 2, dim: Any = None, *_: Any, **__: Any) -> Linear:
    if order not in (2, None):
        raise NoRule(f"it is a norm of order {order}")
    axes = list(range(pair.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    axes = [d % pair.ndim for d in axes]
    kept = [1 if i in axes else size for i, size in enumerate(pair.shape)]
    both = (pair.x + pair.r) / (out[0] + out[1]).view(kept)
    behind, shape = [d + 1 for d in axes], out[0].shape
    return _one(
        pair,
        lambda t: (t * both).sum(behind).view(len(t), *shape),
        lambda g: g.reshape(len(g), *kept) * both,
    )

"""Layer norms and others, variances and lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from whymatch.paths.rules.linear import Linear, NoRule, Pair, check_fixed, one, rule
from whymatch.paths.rules.products import mean
from whymatch.quadrature import get_rule

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

    return one(pair, push, pull)


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
    check_fixed("weight", weight, bias)
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
    check_fixed("weight", weight, bias)
    shape, before = (batch, groups, -1), pair.shape
    rows = Pair(pair.x.reshape(shape), pair.r.reshape(shape), pair.number)
    factor = torch.ones(channels, 1).to(pair.x) if weight is None else weight.view(-1, 1)
    factor = factor.expand(channels, rows.x[0].numel() // channels).reshape(groups, -1)
    inner = _norm(rows, 1, eps, factor, True, norm)
    push, pull = inner.push, inner.pull
    normed = one(
        pair,
        lambda t: push(t.reshape(len(t), *shape)).view(len(t), *before),
        lambda g: pull(g.reshape(len(g), *shape))[0].view(len(g), *before),
    )
    return [normed, None, None]


@rule("_fused_rms_norm")
def _rms_norm(out: Any, pair: Any, shape: Sequence[int], weight: Any, eps: float | None) -> list[Linear | None]:
    check_fixed("weight", weight)
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
    return one(
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
    return one(pair, lambda t: variance.push(t) * slope, lambda g: variance.pull(g * slope)[0])


@rule("var_mean")
def _var_mean(out: Any, pair: Pair, dim: Any = None, *args: Any, **kwargs: Any) -> list[Linear]:
    if isinstance(dim, bool):
        dim, args = None, (dim,)
    shapes = [value.shape for value in out[0]]
    means = mean((out[0][1], out[1][1]), pair, dim)
    return [_variance(pair, dim, _correction(args, kwargs), shapes[0]), means]


@rule("linalg_vector_norm", "norm")
def _length(out: Any, pair: Pair, order: Any = 2, dim: Any = None, *_: Any, **__: Any) -> Linear:
    if order not in (2, None):
        raise NoRule(f"it is a norm of order {order}")
    axes = list(range(pair.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    axes = [d % pair.ndim for d in axes]
    kept = [1 if i in axes else size for i, size in enumerate(pair.shape)]
    both = (pair.x + pair.r) / (out[0] + out[1]).view(kept)
    behind, shape = [d + 1 for d in axes], out[0].shape
    return one(
        pair,
        lambda t: (t * both).sum(behind).view(len(t), *shape),
        lambda g: g.reshape(len(g), *kept) * both,
    )

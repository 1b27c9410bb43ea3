"""Sums and products, Fourier transforms and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whymatch.paths.rules.linear import Linear, NoRule, Pair, add_up, check_fixed, one, rule, scale_by

aten = torch.ops.aten


@rule("sum")
def _total(out: Any, pair: Pair, dim: Any = None, *_: Any, **__: Any) -> Linear:
    axes = [dim] if isinstance(dim, int) else list(dim or range(pair.ndim))
    axes = sorted(d % pair.ndim + 1 for d in axes) if pair.ndim else []
    before, after = pair.shape, out[0].shape
    kept = [1 if i + 1 in axes else size for i, size in enumerate(before)]
    return one(
        pair,
        lambda t: t.sum(axes).reshape(len(t), *after) if axes else t,
        lambda g: g.reshape(len(g), *kept).expand(len(g), *before),
    )


@rule("mean")
def mean(out: Any, pair: Pair, dim: Any = None, *_: Any, **__: Any) -> Linear:
    total, share = _total(out, pair, dim), out[0].numel() / max(1, pair.x.numel())
    push, pull = total.push, total.pull
    return one(pair, lambda t: push(t) * share, lambda g: pull(g * share)[0])


@rule("cumsum")
def _cumsum(out: Any, pair: Pair, dim: int, **_: Any) -> Linear:
    axis = dim % pair.ndim + 1
    return one(pair, lambda t: t.cumsum(axis), lambda g: g.flip(axis).cumsum(axis).flip(axis))


@rule("add")
def _add(out: Any, a: Any, b: Any, *, alpha: float = 1) -> Linear:
    maps = [scale_by(a, 1, out[0].shape)] if isinstance(a, Pair) else []
    return add_up(*maps, *([scale_by(b, alpha, out[0].shape)] if isinstance(b, Pair) else []))


@rule("sub")
def _sub(out: Any, a: Any, b: Any, *, alpha: float = 1) -> Linear:
    return _add(out, a, b, alpha=-alpha)


@rule("rsub")
def _rsub(out: Any, a: Any, b: Any, alpha: float = 1) -> Linear:
    return _add(out, b, a, alpha=-alpha)


@rule("neg")
def _neg(out: Any, pair: Pair) -> Linear:
    return scale_by(pair, -1, pair.shape)


def _middle(value: Any) -> Any:
    return value.mean if isinstance(value, Pair) else value


@rule("mul")
def _mul(out: Any, a: Any, b: Any) -> Linear:
    maps = [scale_by(a, _middle(b), out[0].shape)] if isinstance(a, Pair) else []
    return add_up(*maps, *([scale_by(b, _middle(a), out[0].shape)] if isinstance(b, Pair) else []))


@rule("div", "true_divide")
def _div(out: Any, a: Any, b: Any, *, rounding_mode: str | None = None) -> Linear:
    if rounding_mode is not None:
        raise NoRule("it rounds")
    if not isinstance(b, Pair):
        return scale_by(a, 1 / b, out[0].shape)
    maps = [scale_by(b, -_middle(a) / (b.x * b.r), out[0].shape)]
    return add_up(*([scale_by(a, (1 / b.x + 1 / b.r) / 2, out[0].shape)] if isinstance(a, Pair) else []), *maps)


@rule("addcmul")
def _addcmul(out: Any, base: Any, a: Any, b: Any, *, value: float = 1) -> Linear:
    shape = out[0].shape
    maps = [scale_by(base, 1, shape)] if isinstance(base, Pair) else []
    if isinstance(a, Pair):
        maps.append(scale_by(a, _middle(b) * value, shape))
    if isinstance(b, Pair):
        maps.append(scale_by(b, _middle(a) * value, shape))
    return add_up(*maps)


@rule("lerp")
def _lerp(out: Any, a: Any, b: Any, weight: Any) -> Linear:
    check_fixed("weight", weight)
    maps = [scale_by(a, 1 - weight, out[0].shape)] if isinstance(a, Pair) else []
    return add_up(*maps, *([scale_by(b, weight, out[0].shape)] if isinstance(b, Pair) else []))


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
        maps.append(one(a, lambda t: _left(t, other), lambda g: _left(g, other.mT)))
    if isinstance(b, Pair):
        mean = _middle(a)
        maps.append(one(b, lambda t: _right(mean, t), lambda g: _right(mean.mT, g)))
    return add_up(*maps)


@rule("mm")
def _mm(out: Any, a: Any, b: Any) -> Linear:
    maps = []
    if isinstance(a, Pair):
        other = _middle(b)
        maps.append(one(a, lambda t: torch.matmul(t, other), lambda g: torch.matmul(g, other.mT)))
    if isinstance(b, Pair):
        mean = _middle(a)[None]
        maps.append(one(b, lambda t: _right(mean, t[:, None])[:, 0], lambda g: _right(mean.mT, g[:, None])[:, 0]))
    return add_up(*maps)


@rule("addmm", "baddbmm")
def _addmm(out: Any, base: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Linear:
    maps = [scale_by(base, beta, out[0].shape)] if isinstance(base, Pair) else []
    if isinstance(a, Pair):
        other = _middle(b) if alpha == 1 else _middle(b) * alpha
        maps.append((_mm if out[0].ndim == 2 else _bmm)(out, a, other))
    if isinstance(b, Pair):
        other = _middle(a) if alpha == 1 else _middle(a) * alpha
        maps.append((_mm if out[0].ndim == 2 else _bmm)(out, other, b))
    return add_up(*maps)


@rule("linear")
def _linear(out: Any, x: Any, weight: Any, bias: Any = None) -> Linear:
    check_fixed("weight", weight, bias)
    return one(x, lambda t: torch.matmul(t, weight.mT), lambda g: torch.matmul(g, weight))


# Cotangents of complex numbers are such that the real part of their conjugate times a change is its product.


@rule("_fft_c2c")
def _fft(out: Any, pair: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Linear:
    axes = [d % pair.ndim + 1 for d in dim]
    return one(
        pair,
        lambda t: aten._fft_c2c(t, axes, normalization, forward),
        lambda g: aten._fft_c2c(g, axes, normalization, not forward),
    )


@rule("_fft_r2c")
def _real_fft(out: Any, pair: Pair, dim: Sequence[int], normalization: int, onesided: bool) -> Linear:
    if onesided:
        raise NoRule("it leaves out half of its result")
    axes = [d % pair.ndim + 1 for d in dim]
    return one(
        pair,
        lambda t: aten._fft_r2c(t, axes, normalization, False),
        lambda g: aten._fft_c2c(g, axes, normalization, False).real,
    )


@rule("view_as_real")
def _view_as_real(out: Any, pair: Pair) -> Linear:
    return one(pair, torch.view_as_real, lambda g: torch.view_as_complex(g.contiguous()))


@rule("view_as_complex")
def _view_as_complex(out: Any, pair: Pair) -> Linear:
    return one(pair, lambda t: torch.view_as_complex(t.contiguous()), torch.view_as_real)


@rule("dot", "mv")
def _dot(out: Any, a: Any, b: Any) -> Linear:
    maps = []
    if isinstance(a, Pair):
        other = _middle(b)
        maps.append(one(a, lambda t: torch.matmul(t, other), lambda g: g[..., None] * other))
    if isinstance(b, Pair):
        mean = _middle(a)
        maps.append(
            one(
                b,
                lambda t: torch.matmul(t, mean.mT if mean.ndim == 2 else mean),
                lambda g: torch.matmul(g, mean) if mean.ndim == 2 else g[..., None] * mean,
            )
        )
    return add_up(*maps)


@rule("convolution")
def _convolution(out: Any, x: Any, weight: Any, bias: Any, *options: Any) -> Linear:
    check_fixed("weight", weight, bias)
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
    return one(x, push, pull)


@rule("_native_batch_norm_legit_no_training", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm")
def _batch_norm(out: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *options: Any) -> list[Linear | None]:
    check_fixed("scale", weight, bias, mean, var)
    if len(options) == 3 and options[0]:
        raise NoRule("it is in training mode")
    scale = torch.rsqrt(var + options[-1]) * (1 if weight is None else weight)
    scale = scale.view(-1, *[1] * (x.ndim - 2))
    return [scale_by(x, scale, x.shape)] + [None] * (len(out[0]) - 1)

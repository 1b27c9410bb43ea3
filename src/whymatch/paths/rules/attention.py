"""Softmax, and attention as one operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whymatch.paths.derivatives import attention_scores, pull_attention, push_attention
from whymatch.paths.rules.elementwise import logarithmic_mean
from whymatch.paths.rules.linear import Linear, NoRule, Pair, check_fixed, one, rule


def _log_softmaxes(pair: Pair, dim: int) -> tuple[Tensor, Tensor]:
    return torch.log_softmax(pair.x, dim), torch.log_softmax(pair.r, dim)


def _softmax_slopes(log_x: Tensor, log_r: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the logarithmic means of two softmaxes, and the same with a sum of 1."""
    slope = logarithmic_mean(log_x.exp(), log_r.exp(), log_x - log_r)
    return slope, slope / slope.sum(dim, keepdim=True)


@rule("_softmax", "_safe_softmax")
def _softmax(out: Any, pair: Pair, dim: int, *_: Any, **__: Any) -> Linear:
    dim = dim % pair.ndim
    slope = _softmax_slopes(*_log_softmaxes(pair, dim), dim)[0]
    total = slope.sum(dim, keepdim=True)
    share = torch.where(total > 0, 1 / total, 0)  # no share in a row that is masked altogether

    def apply(t: Tensor) -> Tensor:  # symmetric
        return (t - (t * slope).sum(dim + 1, keepdim=True) * share) * slope

    return one(pair, apply, apply)


@rule("_log_softmax")
def _log_softmax(out: Any, pair: Pair, dim: int, *_: Any) -> Linear:
    dim = dim % pair.ndim
    centre = _softmax_slopes(out[0], out[1], dim)[1]
    return one(
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
    return one(
        pair,
        lambda t: (t * centre).sum(axis + 1, keepdim=keepdim),
        lambda g: (g if keepdim else g.unsqueeze(axis + 1)) * centre,
    )


def _attention(out: Any, q: Any, k: Any, v: Any, bias: Any, causal: bool, scale: float | None) -> list[Linear | None]:
    check_fixed("mask", bias)
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

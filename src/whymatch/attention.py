"""Attention whose derivatives never hold more than a slice of the tokens × tokens weights.

PyTorch's fused attention has no forward-mode derivative, and the plain one keeps the weights of every head and
differentiates them tangent by tangent, in products too small to be fast. Here all tangents of a token meet the
keys and values, which they share, in one product; the weights are made again from queries and keys, a slice of
queries at a time. Registered under a name of its own with transformers, for the models that take their attention
from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import scaled_dot_product_attention

NAME = "whymatch"

# The slice of the weights' derivatives that is worked on at once: what stays in a core's cache.
SLICE_BYTES = 8 * 2**20


def register() -> None:
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, mask)


def mask(batch_size: int, *args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
    """The mask to add to scores; one for the whole batch where nothing is padded, for it is tokens × tokens."""
    from transformers.masking_utils import eager_mask

    if attention_mask is not None and bool(attention_mask.all()):
        attention_mask = None
    size = 1 if attention_mask is None else batch_size
    found: Tensor | None = eager_mask(size, *args, attention_mask=attention_mask, **kwargs)
    return found


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """What transformers calls: (batch, heads, tokens, head) queries, fewer heads of keys and values."""
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        # Weights that are more than a softmax of products: the model's own plain attention.
        plain: Any = import_module(type(module).__module__)
        own: tuple[Tensor, Any] = plain.eager_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
        return own
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    parts = [part for part in (attention_mask, position_bias) if part is not None]
    bias = sum(parts[1:], parts[0]) if parts else None
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = _Attention.apply(query, key, value, bias, scaling)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None


class _Attention(Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 PyTorch names them
        *tensors, ctx.scale = inputs
        ctx.save_for_forward(*tensors)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def jvp(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor, *_: Any) -> Tensor:
        out: Tensor = _Tangent.apply(*ctx.saved_tensors, ctx.scale, dq, dk, dv)  # type: ignore[no-untyped-call]
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
        found = _Cotangent.apply(*ctx.saved_tensors, ctx.scale, cotangent)  # type: ignore[no-untyped-call]
        return *found, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        """A batch of batches is a longer batch."""
        *tensors, bias, scale = args
        folded = [_front(x, dim, info.batch_size).flatten(0, 1) for x, dim in zip(tensors, in_dims, strict=False)]
        if bias is not None:
            bias = _front(bias, in_dims[3], info.batch_size)
            bias = bias.expand(-1, len(folded[0]) // info.batch_size, *bias.shape[2:]).flatten(0, 1)
        out: Tensor = _Attention.apply(*folded, bias, scale)  # type: ignore[no-untyped-call]
        return out.reshape(info.batch_size, -1, *out.shape[1:]), 0


class _Tangent(Function):
    """Derivatives along (dq, dk, dv), all of shape (batch, heads, tokens, head)."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dq: Tensor, dk: Tensor, dv: Tensor
    ) -> Tensor:
        return _push(q, k, v, bias, scale, dq[None], dk[None], dv[None])[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        q, k, v, bias, scale, *tangents = args
        dq, dk, dv = (_front(x, dim, info.batch_size) for x, dim in zip(tangents, in_dims[5:], strict=True))
        return _push(q, k, v, bias, scale, dq, dk, dv), 0


class _Cotangent(Function):
    """The pull-back of a cotangent to q, k and v."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, cotangent: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(x[0] for x in _pull(q, k, v, bias, scale, cotangent[None]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        q, k, v, bias, scale, cotangent = args
        return _pull(q, k, v, bias, scale, _front(cotangent, in_dims[5], info.batch_size)), (0, 0, 0)


def _front(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _slices(q: Tensor, k: Tensor, tangents: int) -> Iterator[slice]:
    """Slices of the queries for which ``tangents`` derivatives of the weights are few enough."""
    batch, heads, tokens, _ = q.shape
    size = max(1, SLICE_BYTES // (batch * heads * tangents * k.shape[2] * q.element_size()))
    return (slice(low, low + size) for low in range(0, tokens, size))


def _weights(q: Tensor, k: Tensor, bias: Tensor | None, scale: float, part: slice) -> Tensor:
    scores = torch.matmul(q[:, :, part], k.mT).mul_(scale)
    if bias is not None:
        scores += bias[:, :, part] if bias.shape[2] > 1 else bias
    return torch.softmax(scores, -1)


def _push(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dq: Tensor, dk: Tensor, dv: Tensor
) -> Tensor:
    """(tangents, batch, heads, tokens, head) derivatives -> those of the result, in the same layout."""
    count, batch, heads, tokens, _ = dk.shape
    # A query's tangents side by side, so that products with what they share are products of whole matrices.
    dq = dq.permute(1, 2, 3, 0, 4).mul(scale)  # (batch, heads, queries, tangents, head)
    dk = dk.permute(1, 2, 0, 3, 4).mul(scale).flatten(2, 3).flatten(0, 1)  # (batch · heads, tangents · tokens, head)
    dv = dv.permute(1, 2, 3, 0, 4).flatten(3).flatten(0, 1)  # (batch · heads, tokens, tangents · head)
    flat_k, flat_v = k.flatten(0, 1), v.flatten(0, 1)
    # One result that slices are written to: pieces kept between large passing ones would break the heap up.
    out = v.new_empty(batch * heads, q.shape[2], count * v.shape[-1])
    for part in _slices(q, k, count):
        weights = _weights(q, k, bias, scale, part).flatten(0, 1)
        queries = weights.shape[1]
        scores = torch.bmm(dq[:, :, part].reshape(batch * heads, queries * count, -1), flat_k.mT)
        scores = scores.view(batch * heads, queries, count * tokens)
        scores.baddbmm_(q[:, :, part].flatten(0, 1), dk.mT)
        # softmax' = weights · (change − its mean under the weights)
        change = scores.view(batch * heads, queries, count, tokens)
        mean = torch.matmul(change, weights[..., None])
        change.sub_(mean).mul_(weights[:, :, None])
        moved = torch.bmm(change.view(batch * heads, queries * count, tokens), flat_v).view(batch * heads, queries, -1)
        out[:, part] = moved.baddbmm_(weights, dv)
    return out.view(batch, heads, -1, count, v.shape[-1]).permute(3, 0, 1, 2, 4)


def _pull(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, cotangent: Tensor) -> tuple[Tensor, ...]:
    """(cotangents, batch, heads, tokens, head) of the result -> those of q, k and v, in the same layout."""
    count, batch, heads, _, width = cotangent.shape
    tokens = k.shape[2]
    cotangent = cotangent.permute(1, 2, 3, 0, 4)  # (batch, heads, queries, cotangents, head)
    flat_k, flat_v = k.flatten(0, 1), v.flatten(0, 1)
    dq = q.new_empty(batch * heads, q.shape[2], count * q.shape[-1])
    dk = q.new_zeros(batch * heads, count * tokens, q.shape[-1])
    dv = q.new_zeros(batch * heads, tokens, count * width)
    for part in _slices(q, k, count):
        weights = _weights(q, k, bias, scale, part).flatten(0, 1)
        queries = weights.shape[1]
        piece = cotangent[:, :, part].reshape(batch * heads, queries, count * width)
        dv.baddbmm_(weights.mT, piece)
        change = torch.bmm(piece.view(batch * heads, queries * count, width), flat_v.mT)
        change = change.view(batch * heads, queries, count, tokens)
        mean = torch.matmul(change, weights[..., None])
        change.sub_(mean).mul_(weights[:, :, None] * scale)
        moved = torch.bmm(change.view(batch * heads, queries * count, tokens), flat_k)
        dq[:, part] = moved.view(batch * heads, queries, -1)
        dk.baddbmm_(change.view(batch * heads, queries, count * tokens).mT, q[:, :, part].flatten(0, 1))
    return (
        dq.view(batch, heads, -1, count, q.shape[-1]).permute(3, 0, 1, 2, 4),
        dk.view(batch, heads, count, tokens, -1).permute(2, 0, 1, 3, 4),
        dv.view(batch, heads, tokens, count, width).permute(3, 0, 1, 2, 4),
    )

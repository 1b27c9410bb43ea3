"""Derivative rules for linear layers and activations, whose tangents cost one operation and nothing else.

PyTorch's own forward rule of a linear layer also adds a zero tangent for the bias, and under ``vmap`` that zero is
real memory: the whole result is read and written once more. Its rule of an activation finds the slope again for
every tangent, though all of them share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import jvp
from torch.nn.functional import linear

# Activations that act on each number alone; those of transformers' own module are found by where they live.
POINTWISE = (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Mish, nn.ELU, nn.LeakyReLU, nn.Softplus)


class _Linear(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 PyTorch names them
        ctx.save_for_forward(inputs[1])
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return linear(tangent, ctx.saved_tensors[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None, None]:
        return cotangent @ ctx.saved_tensors[0], None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:  # noqa: ARG004
        where = in_dims[0]  # only the input is ever batched
        x = x if where is None else x.movedim(where, 0)
        return _Linear.apply(x, weight, bias), None if where is None else 0  # type: ignore[no-untyped-call]


class _Pointwise(Function):
    @staticmethod
    def forward(x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        return act(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004 PyTorch names them
        x, ctx.act = inputs
        ctx.save_for_forward(x)
        ctx.save_for_backward(x)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return tangent.mul(_slope(ctx))

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return cotangent.mul(_slope(ctx)), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, act: Callable[[Tensor], Tensor]) -> Any:  # noqa: ARG004
        return _Pointwise.apply(x, act), in_dims[0]  # type: ignore[no-untyped-call]


def _slope(ctx: Any) -> Tensor:
    (x,) = ctx.saved_tensors
    return jvp(ctx.act, (x,), (torch.ones_like(x),))[1]  # type: ignore[no-any-return]


def speed_up(tree: nn.Module) -> None:
    """Let the layers of a private tree use the rules; subclasses, which may do more, are left alone."""
    for module in tree.modules():
        if type(module) is nn.Linear:

            def forward(x: Tensor, module: nn.Linear = module) -> Tensor:
                out: Tensor = _Linear.apply(x, module.weight, module.bias)  # type: ignore[no-untyped-call]
                return out

            module.forward = forward  # type: ignore
        elif type(module) in POINTWISE or type(module).__module__ == "transformers.activations":

            def activate(x: Tensor, act: Callable[[Tensor], Tensor] = module.forward) -> Tensor:
                out: Tensor = _Pointwise.apply(x, act)  # type: ignore[no-untyped-call]
                return out

            module.forward = activate

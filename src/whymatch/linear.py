"""A linear layer whose tangents cost one matrix product and nothing else.

PyTorch's own forward rule also adds a zero tangent for the bias, and under ``vmap`` that zero is real memory: the
whole result is read and written once more.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear


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


def speed_up(tree: nn.Module) -> None:
    """Let the linear layers of a private tree use the rule; subclasses, which may do more, are left alone."""
    for module in tree.modules():
        if type(module) is nn.Linear:

            def forward(x: Tensor, module: nn.Linear = module) -> Tensor:
                out: Tensor = _Linear.apply(x, module.weight, module.bias)  # type: ignore[no-untyped-call]
                return out

            module.forward = forward  # type: ignore

"""A private copy of a module tree, which shares the model's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor


def copy_tree(
    model: Any, weight: Callable[[Tensor], Tensor] = lambda tensor: tensor, attention: str | None = None
) -> Any:
    """A copy of a module tree with its own modules, hooks and configurations, and ``weight`` of each weight."""
    modules: dict[int, Any] = {}
    configs: dict[int, Any] = {}
    weights: dict[int, Tensor] = {}

    def one(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in weights:
            weights[id(tensor)] = weight(tensor)
        return weights[id(tensor)]

    def config(value: Any) -> Any:
        if id(value) not in configs:
            configs[id(value)] = copy.deepcopy(value)
            configs[id(value)]._attn_implementation = attention
            configs[id(value)].use_cache = False
        return configs[id(value)]

    def visit(module: Any) -> Any:
        if id(module) in modules:
            return modules[id(module)]
        if "forward" in vars(module):
            raise TypeError(
                f"a {type(module).__name__} of this model has a forward of its own (from accelerate, torch.compile or "
                "a patch), which cannot be copied with it; load the model without that"
            )
        twin = modules[id(module)] = module.__class__.__new__(module.__class__)
        for key, value in module.__dict__.items():
            if key == "_parameters" or key == "_buffers":
                value = {name: one(tensor) for name, tensor in value.items()}
            elif key == "_modules":
                value = {name: None if child is None else visit(child) for name, child in value.items()}
            elif attention is not None and hasattr(value, "_attn_implementation"):
                value = config(value)
            elif key == "_compiled_call_impl":
                value = None  # compiled code would run the model's own modules
            elif isinstance(value, dict):
                value = value.copy()  # hooks, among others
            twin.__dict__[key] = value
        return twin

    return visit(model)

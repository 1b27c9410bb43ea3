"""The encoder from one of its blocks on.

A cut is a private copy of the module tree: its blocks are the ones that capture, skip and inject, and its attention is
the one that can be differentiated. Nothing has to be restored after an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whymatch import jacobian
from whymatch.attention import NAME
from whymatch.inputs import Input
from whymatch.rules import speed_up
from whymatch.tree import copy_tree


@dataclass(frozen=True)
class Tower:
    """What of a model runs for one kind of input: found by running it."""

    blocks: str  # the name of the list of blocks
    layers: int  # how often one of them runs: more often than there are blocks where they share their weights
    rows: int  # the hidden states of the input that it was found with
    normalizers: tuple[str, ...]  # Normalize modules that run last
    entry: str | None  # the outermost module that is handed what the first block is: others inside may use it too


class Cut:
    """The encoder from block ``layer`` on, as a function of that block's input, without a last Normalize."""

    def __init__(self, model: Any, tower: Tower, given: Input, layer: int, dtype: torch.dtype, attention: str) -> None:
        def cast(weight: Tensor) -> Tensor:
            return weight.detach().to(dtype) if weight.is_floating_point() else weight

        # What does not take its attention from transformers may still have a fused one inside.
        self._plainly = jacobian.differentiable if attention == "eager" else nullcontext
        self._tower = tower
        self._options = given.reading.options
        self._layer = layer
        self._dtype = dtype
        self.device = torch.device(model.device)
        self._tree = copy_tree(model, cast, attention).eval()
        speed_up(self._tree)
        # The length of a normalized embedding depends on all tokens at once; the engine divides by it afterwards.
        self.normalizes = bool(tower.normalizers)
        for name in tower.normalizers:
            self._tree.get_submodule(name).forward = lambda features: features
        self.truncate_dim = model.truncate_dim
        self._injected: Tensor | None = None
        self._captured: Tensor | None = None
        self._calls = 0  # of blocks, in the pass that is running
        self._beside: dict[int, list[tuple[Any, ...]]] = {}  # what blocks return beside the hidden states, by call
        blocks = list(self._tree.get_submodule(tower.blocks).children())
        self.depth = max(1, tower.layers - layer)
        for block in blocks:
            block.forward = self._gate(block.forward)
        if layer == 0 and tower.entry is not None:
            entry = self._tree.get_submodule(tower.entry)
            entry.forward = self._entrance(entry.forward)
        self._widths = [m.out_features for block in blocks for m in block.modules() if isinstance(m, nn.Linear)]
        names = ("num_attention_heads", "num_heads", "n_heads")
        heads = [getattr(m, name, 0) for block in blocks for m in block.modules() for name in names]
        # Only the plain attention keeps weights of every head, tokens × tokens.
        self._kept_heads = 0 if attention == NAME else max((h for h in heads if isinstance(h, int)), default=1)

    def _gate(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Stands in for a block's ``forward``: records it, skips it, or feeds it the injected input."""
        layer, last = self._layer, self._tower.layers - 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            number, injected = self._calls, self._injected
            self._calls += 1
            if injected is None:
                if number == layer:
                    self._captured = first_state(args, kwargs)
                    raise _Captured
                out = run(*args, **kwargs)
                if isinstance(out, tuple):
                    self._beside.setdefault(number, []).append(out[1:])
                if number == last < layer:
                    self._captured = out[0] if isinstance(out, tuple) else out
                    raise _Captured
                return out
            if number == layer:
                args, kwargs = _with_state(args, kwargs, injected)
            if number >= layer:
                return run(*args, **kwargs)
            passed = injected if number == last else first_state(args, kwargs)
            return (passed, *self._selected[number]) if number in self._selected else passed

        return forward

    def _entrance(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Stands in for the module around the blocks, whose own input is what the first block is handed."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._injected is None:
                self._captured = first_state(args, kwargs)
                raise _Captured
            args, kwargs = _with_state(args, kwargs, self._injected)
            return run(*args, **kwargs)

        return forward

    def head(self, features: dict[str, Any]) -> Tensor:
        """The representation at the cut (inputs, rows, dim); the rest of the encoder does not run."""
        some = features.get("input_ids", features.get("pixel_values"))
        assert isinstance(some, Tensor)
        hidden: list[Tensor] = []
        size = jacobian.room(self.pass_bytes(self._tower.rows if some.ndim > 2 else some.shape[1]), self.device)
        self._beside.clear()
        for low in range(0, len(some), size):
            self._calls, self._captured = 0, None
            try:
                with torch.no_grad():
                    part = _select(features, torch.arange(low, min(low + size, len(some))))
                    self._tree(self._cast(part), **self._options)
            except _Captured:
                pass
            if self._captured is None:
                raise TypeError(f"the blocks {self._tower.blocks!r} ran {self._calls} times, not {self._tower.layers}")
            hidden.append(self._captured)
        return torch.cat(hidden)

    def tail(self, features: dict[str, Any]) -> Callable[[Tensor, Tensor], Tensor]:
        """The rest of the encoder, as a function of the representation and of whose it is."""
        # Of the inputs whose features these are: their head ran last.
        beside = {number: _joined(parts) for number, parts in self._beside.items()}

        def run(x: Tensor, which: Tensor) -> Tensor:
            self._injected, self._calls = x, 0
            self._selected = {
                number: tuple(value[which] if batched else value for value, batched in found)
                for number, found in beside.items()
            }
            try:
                with self._plainly():
                    out: Tensor = self._tree(self._cast(_select(features, which)), **self._options)[
                        "sentence_embedding"
                    ]
            finally:
                self._injected = None
            return out

        return run

    def _cast(self, features: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for key, value in features.items()
        }

    def pass_bytes(self, rows: int) -> int:
        """An estimate of what one pass over one input holds at its peak."""
        wide, narrow = max(self._widths, default=4096), min(self._widths, default=1024)
        return self._dtype.itemsize * rows * (3 * wide + 6 * narrow + 4 * self._kept_heads * rows)


class _Captured(Exception):  # noqa: N818 it is no error: it ends a pass that has done its work
    pass


def first_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A block's hidden states: its first argument, or the first of its keywords."""
    return args[0] if args else next(iter(kwargs.values()))


def _with_state(args: tuple[Any, ...], kwargs: dict[str, Any], state: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (state, *args[1:]), kwargs
    return args, kwargs | {next(iter(kwargs)): state}


def _joined(parts: list[tuple[Any, ...]]) -> list[tuple[Any, bool]]:
    """What a block returned in each piece of the head, as one value, and whether it has an entry for each input."""
    found = []
    for values in zip(*parts, strict=True):
        tensors = isinstance(values[0], Tensor) and values[0].ndim > 0
        each = tensors and (len(values[0]) > 1 or not all(torch.equal(value, values[0]) for value in values))
        found.append((torch.cat(values) if each else values[0], each))
    return found


def _select(features: dict[str, Any], which: Tensor) -> dict[str, Any]:
    return {key: value[which] if isinstance(value, Tensor) else value for key, value in features.items()}

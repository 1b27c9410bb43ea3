"""Products with the integrated Jacobian, forward and reverse.

With J the Jacobian of the tail averaged along the path, and delta the path's direction,

* :func:`forward` gives J · (delta restricted to a group of rows), one tangent per group;
* :func:`reverse` gives delta · (Jᵀ · cotangent), group by group, one cotangent per embedding direction.

J itself is never formed. Paths of several inputs of one shape run together; nodes, tangents and cotangents are
cut into chunks whose working set is bounded, whatever the length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from whymatch.quadrature import Floats

# Forward-mode AD keeps its nesting level in process-wide state, so two threads may not differentiate at once.
# Nothing is lost: one derivative already keeps every core busy.
LOCK = threading.RLock()

# What one more cotangent costs, in tangents: reverse mode reuses the primal's activations. Measured on CPU.
REVERSE_COST = 0.8

# Told the fraction that is done, between two chunks; it may raise to stop the work. Set by whoever waits for it.
WATCH: ContextVar[Callable[[float], None] | None] = ContextVar("WATCH", default=None)

# The working set that runs fastest: on a CPU, about what stays in its caches.
CPU_BYTES = 128 * 2**20
ACCELERATOR_BYTES = 1024 * 2**20


def room(pass_bytes: int, device: torch.device) -> int:
    """How many plain passes of that size the working set may hold at once."""
    return max(2, (CPU_BYTES if device.type == "cpu" else ACCELERATOR_BYTES) // pass_bytes)


@dataclass(frozen=True)
class Paths:
    """Straight lines in representation space, for inputs of one shape, and the groups whose parts are wanted."""

    tail: Callable[[Tensor, Tensor], Tensor]  # (points, *shape), (points,) input numbers -> (points, embedding)
    start: Tensor  # (inputs, *shape)
    delta: Tensor  # (inputs, *shape)
    owner: Tensor  # (inputs, *cells) the group of each cell; cells are the first axes of the shape; −1: of no group
    groups: int
    room: int  # how many plain passes the working set may hold at once
    depth: int = 1  # how many times that a pass holds when its activations are kept for reverse mode

    def at(self, alpha: Tensor, number: Tensor) -> Tensor:
        return self.start[number] + alpha.view(-1, *[1] * (self.start.ndim - 1)) * self.delta[number]

    def cells(self, values: Tensor) -> Tensor:
        """Sums over what a cell holds, flat: (…, inputs, *shape) -> (…, inputs, cells)."""
        beyond = self.start.ndim - self.owner.ndim
        summed = values.sum(tuple(range(-beyond, 0))) if beyond else values
        return summed.flatten(-(self.owner.ndim - 1))


@dataclass(frozen=True)
class Points:
    """Nodes of every input's own rule, in one flat list."""

    number: Tensor  # (points,)
    alpha: Tensor  # (points,)
    weight: Tensor  # (points,)

    @classmethod
    def of(cls, rules: Sequence[tuple[Floats, Floats]], like: Tensor) -> Points:
        number = np.repeat(np.arange(len(rules)), [len(alpha) for alpha, _ in rules])
        return cls(
            torch.as_tensor(number, device=like.device),
            like.new_tensor(np.concatenate([alpha for alpha, _ in rules])),
            like.new_tensor(np.concatenate([weight for _, weight in rules])),
        )

    def chunks(self, size: int) -> list[Points]:
        """Near-equal pieces of at most ``size`` points: a small last piece would waste a whole pass."""
        count = -(-len(self.number) // size)
        pieces = (t.tensor_split(count) for t in (self.number, self.alpha, self.weight))
        return [Points(*piece) for piece in zip(*pieces, strict=True)]


@contextmanager
def differentiable() -> Iterator[None]:
    """Without PyTorch's fused attention, which has no forward-mode derivative."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _watched(pieces: Sequence[Points]) -> Iterator[Points]:
    watch = WATCH.get()
    for done, piece in enumerate(pieces):
        if watch is not None:
            watch(done / len(pieces))
        yield piece


def values(paths: Paths, points: Points) -> Tensor:
    """The embedding at every point, without derivatives."""
    with torch.no_grad():
        pieces = points.chunks(paths.room)
        return torch.cat([paths.tail(paths.at(piece.alpha, piece.number), piece.number) for piece in pieces])


def forward(paths: Paths, points: Points, which: Tensor) -> Tensor:
    """What groups of each input contribute to its embedding.

    ``which`` (tangents, inputs) names them, −2 is none -> (inputs, tangents, embedding).
    """
    out: Tensor | None = None
    width = max(1, min(len(which), paths.room - 1))
    for piece in _watched(points.chunks(max(1, paths.room // (width + 1)))):
        primal, delta, owner = paths.at(piece.alpha, piece.number), paths.delta[piece.number], paths.owner[piece.number]

        def tangent(
            group: Tensor,
            primal: Tensor = primal,
            delta: Tensor = delta,
            owner: Tensor = owner,
            number: Tensor = piece.number,
        ) -> Tensor:
            own = owner == group.view(-1, *[1] * (owner.ndim - 1))
            moving = own.view(*own.shape, *[1] * (delta.ndim - own.ndim)) * delta
            # The primal does not depend on the group, so vmap computes it once for all of them.
            moved: Tensor = jvp(lambda x: paths.tail(x, number), (primal,), (moving,))[1]
            return moved

        with LOCK, torch.no_grad():
            parts = [vmap(tangent)(part[:, piece.number]) for part in which.tensor_split(-(-len(which) // width))]
        change = torch.cat(parts) * piece.weight[:, None]  # (tangents, points, embedding)
        if out is None:
            out = change.new_zeros(len(paths.start), len(which), change.shape[-1])
        out.index_add_(0, piece.number, change.transpose(0, 1))
    assert out is not None
    return out


def reverse(paths: Paths, points: Points, cotangents: Tensor) -> Tensor:
    """What each group contributes to the embedding's component along each cotangent.

    ``cotangents`` (inputs, cotangents, embedding) -> (inputs, cotangents, groups). The identity gives the whole
    decomposition; the other input's decomposition gives the pair's matrix.
    """
    count = cotangents.shape[1]
    # A last, spare group takes the cells of no group.
    cells = paths.owner.flatten(1)
    place = torch.where(cells < 0, paths.groups, cells)
    out = cotangents.new_zeros(len(paths.start), count, paths.groups + 1)
    width = max(1, min(count, paths.room - paths.depth))
    for piece in _watched(points.chunks(max(1, paths.room // (width + paths.depth)))):
        primal, delta, number = paths.at(piece.alpha, piece.number), paths.delta[piece.number], piece.number
        weighted = delta * piece.weight.view(-1, *[1] * (delta.ndim - 1))
        with LOCK, torch.no_grad():
            pull = vjp(lambda x, number=number: paths.tail(x, number), primal)[1]
            for low in range(0, count, width):
                part = cotangents[number, low : low + width].transpose(0, 1)  # (cotangents, points, embedding)
                gradient = vmap(lambda cotangent, pull=pull: pull(cotangent)[0])(part)
                found = paths.cells(gradient * weighted)  # (cotangents, points, cells)
                grouped = found.new_zeros(*found.shape[:2], paths.groups + 1)
                grouped.scatter_add_(2, place[number].expand_as(found), found)
                out[:, low : low + width].index_add_(0, number, grouped.transpose(0, 1))
    return out[..., :-1]


def cheapest(groups: int, dimensions: int) -> str:
    """The mode that decomposes a whole input with the fewest passes."""
    return "forward" if groups <= REVERSE_COST * dimensions else "reverse"

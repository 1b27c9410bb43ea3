"""Products with the integrated Jacobian, forward and reverse.

With J the Jacobian of the tail averaged along the path, and delta the path's direction,

* :func:`forward` gives J · (delta restricted to a group of rows), one tangent per group;
* :func:`reverse` gives delta · (Jᵀ · cotangent), row by row, one cotangent per embedding direction.

J itself is never formed. Paths of several texts of one length run together; nodes, tangents and cotangents are
cut into chunks whose working set is bounded, whatever the length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from whymatch.quadrature import Floats

# Forward-mode AD keeps its nesting level in process-wide state, so two threads may not differentiate at once.
# Nothing is lost: one derivative already keeps every core busy.
LOCK = threading.RLock()

# What one more cotangent costs, in tangents: reverse mode reuses the primal's activations. Measured on CPU.
REVERSE_COST = 0.8

# The working set that runs fastest: on a CPU, about what stays in its caches.
CPU_BYTES = 128 * 2**20
ACCELERATOR_BYTES = 1024 * 2**20


def room(pass_bytes: int, device: torch.device) -> int:
    """How many plain passes the working set may hold at once."""
    return max(2, (CPU_BYTES if device.type == "cpu" else ACCELERATOR_BYTES) // pass_bytes)


@dataclass(frozen=True)
class Paths:
    """Straight lines in representation space for texts of one length."""

    tail: Callable[[Tensor, Tensor], Tensor]  # (points, rows, dim), (points,) text numbers -> (points, embedding)
    start: Tensor  # (texts, rows, dim)
    delta: Tensor  # (texts, rows, dim)
    pass_bytes: int  # what one plain pass of the tail holds at its peak
    depth: int = 1  # how many times that a pass holds when its activations are kept for reverse mode

    def at(self, alpha: Tensor, text: Tensor) -> Tensor:
        return self.start[text] + alpha[:, None, None] * self.delta[text]

    def room(self) -> int:
        return room(self.pass_bytes, self.start.device)


@dataclass(frozen=True)
class Points:
    """Nodes of every text's own rule, in one flat list."""

    text: Tensor  # (points,)
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
        count = -(-len(self.text) // size)
        pieces = (t.tensor_split(count) for t in (self.text, self.alpha, self.weight))
        return [Points(*piece) for piece in zip(*pieces, strict=True)]


def values(paths: Paths, points: Points) -> Tensor:
    """The embedding at every point, without derivatives."""
    with torch.no_grad():
        pieces = points.chunks(paths.room())
        return torch.cat([paths.tail(paths.at(piece.alpha, piece.text), piece.text) for piece in pieces])


def forward(paths: Paths, points: Points, groups: Tensor) -> Tensor:
    """What each group of rows contributes to the embedding.

    ``groups`` (groups, texts, rows) says with 0 and 1 which rows move together -> (texts, groups, embedding).
    """
    out: Tensor | None = None
    width = min(len(groups), paths.room() - 1)
    for piece in points.chunks(max(1, paths.room() // (width + 1))):
        primal, delta = paths.at(piece.alpha, piece.text), paths.delta[piece.text]

        def tangent(group: Tensor, primal: Tensor = primal, delta: Tensor = delta, text: Tensor = piece.text) -> Tensor:
            # The primal does not depend on the group, so vmap computes it once for all of them.
            moved: Tensor = jvp(lambda x: paths.tail(x, text), (primal,), (group[..., None] * delta,))[1]
            return moved

        with LOCK, torch.no_grad():
            parts = [vmap(tangent)(part[:, piece.text]) for part in groups.tensor_split(-(-len(groups) // width))]
        change = torch.cat(parts) * piece.weight[:, None]  # (groups, points, embedding)
        if out is None:
            out = change.new_zeros(len(paths.start), len(groups), change.shape[-1])
        out.index_add_(0, piece.text, change.transpose(0, 1))
    assert out is not None
    return out


def reverse(paths: Paths, points: Points, cotangents: Tensor) -> Tensor:
    """What each row contributes to the embedding's component along each cotangent.

    ``cotangents`` (texts, cotangents, embedding) -> (texts, cotangents, rows). The identity gives the whole
    decomposition; the other text's decomposition gives the pair's matrix.
    """
    count = cotangents.shape[1]
    out = cotangents.new_zeros(len(paths.start), count, paths.start.shape[1])
    width = max(1, min(count, paths.room() - paths.depth))
    for piece in points.chunks(max(1, paths.room() // (width + paths.depth))):
        primal, delta, text = paths.at(piece.alpha, piece.text), paths.delta[piece.text], piece.text
        weighted = delta * piece.weight[:, None, None]
        with LOCK, torch.no_grad():
            pull = vjp(lambda x, text=text: paths.tail(x, text), primal)[1]
            for low in range(0, count, width):
                part = cotangents[text, low : low + width].transpose(0, 1)  # (cotangents, points, embedding)
                gradient = vmap(lambda cotangent, pull=pull: pull(cotangent)[0])(part)
                rows = (gradient * weighted).sum(-1)  # (cotangents, points, rows)
                out[:, low : low + width].index_add_(0, text, rows.transpose(0, 1))
    return out


def cheapest(groups: int, dimensions: int) -> str:
    """The mode that decomposes a whole text with the fewest passes."""
    return "forward" if groups <= REVERSE_COST * dimensions else "reverse"

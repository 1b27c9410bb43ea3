"""The integrated Jacobian as a linear map: it pushes tangents forward and pulls cotangents back.

An exact decomposition of an encoder e needs a linear map L with L(x − r) = e(x) − e(r). What a group of tokens
contributes is then L applied to x − r restricted to the group (*push*), and what it contributes along some direction of
the embedding is x − r, restricted to the group, times Lᵀ of that direction (*pull*). L is never formed.

The paper's L is the Jacobian of e, averaged along the straight line from r to x. A *relay* is a product of such
averages, one for each segment of a few blocks, along the straight line between the segment's own two states: since each
segment takes x − r at its beginning exactly to x − r at its end, so does the product. A straight path is a relay of one
segment.

Linear layers that a segment applies to its own input (queries, keys and values) are taken out of it: along a straight
line their outputs move along straight lines too, so they need to run once, and not again for each node.

Paths of several inputs of one shape run together; nodes, tangents and cotangents are cut into chunks whose working
set is bounded, whatever the length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear

from whymatch import progress
from whymatch.paths.derivatives import plain_pass
from whymatch.quadrature import Floats

# Forward-mode AD keeps its nesting level in process-wide state, so two threads may not differentiate at once.
# This costs nothing, since one derivative already keeps every core busy.
LOCK = threading.RLock()

# What one more cotangent costs, in tangents: reverse mode reuses the primal's activations. Measured on CPU.
REVERSE_COST = 0.8

# The working set that runs fastest: on a CPU, about what stays in its caches.
CPU_BYTES = 128 * 2**20
ACCELERATOR_BYTES = 1024 * 2**20


def passes_at_once(pass_bytes: int, device: torch.device) -> int:
    """Return how many plain passes of that size the working set may hold."""
    return max(2, (CPU_BYTES if device.type == "cpu" else ACCELERATOR_BYTES) // pass_bytes)


Tail: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # (points, *shape), (points,) -> (points, *values)


@dataclass(frozen=True)
class Lift:
    """Linear layers whose outputs stand beside the input x of a segment: x becomes [x, W₁x + b₁, W₂x + b₂, …]."""

    weights: Sequence[tuple[Tensor, Tensor | None]]  # W (out, dim) and b of each layer

    @property
    def sizes(self) -> list[int]:
        """The widths of x and of each layer's output."""
        return [self.weights[0][0].shape[1], *(len(weight) for weight, _ in self.weights)]

    def points(self, x: Tensor) -> Tensor:
        return torch.cat([x, *(linear(x, weight, bias) for weight, bias in self.weights)], -1)

    def tangents(self, x: Tensor) -> Tensor:
        return torch.cat([x, *(linear(x, weight) for weight, _ in self.weights)], -1)

    def parts(self, lifted: Tensor) -> list[Tensor]:
        """Take lifted states apart: the states themselves, and the output of each layer."""
        return list(torch.split(lifted, self.sizes, -1))

    def cotangents(self, lifted: Tensor) -> Tensor:
        """Pull cotangents of lifted states back to those of the states themselves."""
        own, *others = self.parts(lifted)
        return sum((other @ weight for other, (weight, _) in zip(others, self.weights, strict=True)), own)


@dataclass(frozen=True)
class Paths:
    """Straight lines in representation space, for inputs of one shape, and the groups whose parts are wanted.

    Attributes:
        tail: the encoder from the lines on, or a segment of it: (points, *shape) and (points,) numbers of inputs ->
            (points, *values), an embedding or the representation at the segment's end.
        start: where each line begins: the references.
        delta: from there to the inputs.
        owner: the group of each cell, a cell being an entry of the first axes of the shape; −1 for no group.
        groups: how many groups there are.
        room: how many plain passes the working set may hold at once.
        depth: how many times as much a pass holds when its activations are kept for reverse mode.
        lift: what stands beside the states in ``start`` and ``delta``, if anything does.
    """

    tail: Tail
    start: Tensor  # (inputs, *shape)
    delta: Tensor  # (inputs, *shape)
    owner: Tensor  # (inputs, *cells)
    groups: int
    room: int
    depth: int = 1
    lift: Lift | None = None

    def __len__(self) -> int:
        return len(self.start)

    def lifted(self, lift: Lift | None) -> Paths:
        """Return the same lines with the outputs of linear layers beside the states; the tail must take both forms."""
        if lift is None:
            return self
        return replace(self, start=lift.points(self.start), delta=lift.tangents(self.delta), lift=lift)

    def lowered(self) -> Paths:
        """Return the lines of the states alone: the inverse of :meth:`lifted`."""
        if self.lift is None:
            return self
        dim = self.lift.sizes[0]
        return replace(self, start=self.start[..., :dim], delta=self.delta[..., :dim], lift=None)

    def at(self, alpha: Tensor, number: Tensor) -> Tensor:
        """Return the points at these positions on these inputs' paths."""
        return self.start[number] + alpha.view(-1, *[1] * (self.start.ndim - 1)) * self.delta[number]

    def sum_cells(self, values: Tensor) -> Tensor:
        """Sum over what each cell holds, and flatten the cells: (…, *shape) -> (…, cells)."""
        beyond = self.start.ndim - self.owner.ndim
        summed = values.sum(tuple(range(-beyond, 0))) if beyond else values
        return summed.flatten(-(self.owner.ndim - 1))

    @property
    def moving(self) -> list[Tensor]:
        """The groups of each input that differ from the reference; others ([CLS] at layer 0) contribute nothing."""
        moves = self.sum_cells((self.lowered().delta != 0).to(torch.int64)) > 0
        owner = self.owner.flatten(1)
        return [own[(own >= 0) & moved].unique() for own, moved in zip(owner, moves, strict=True)]

    def restrict(self, groups: Tensor, number: Tensor) -> Tensor:
        """Restrict x − r to groups (tangents, points) of these inputs: -> (tangents, points, *shape)."""
        owner, delta = self.owner[number], self.delta[number]
        own = owner == groups.view(*groups.shape, *[1] * (owner.ndim - 1))
        return own.view(*own.shape, *[1] * (delta.ndim + 1 - own.ndim)) * delta

    def whole(self) -> Paths:
        """Return the same paths with each input as one group."""
        return replace(self, owner=torch.zeros_like(self.owner), groups=1)


@dataclass(frozen=True)
class Nodes:
    """The nodes of every input's own rule, in one flat list."""

    number: Tensor  # (points,) of the input
    alpha: Tensor  # (points,)
    weights: Tensor  # (points, columns)

    @classmethod
    def of(cls, rules: Sequence[tuple[Floats, Floats]], like: Tensor) -> Nodes:
        """Join one rule for each input: positions (n,) and weights (n, columns) or (n,)."""
        number = np.repeat(np.arange(len(rules)), [len(alpha) for alpha, _ in rules])
        weights = np.concatenate([weight.reshape(len(weight), -1) for _, weight in rules if len(weight)])
        return cls(
            torch.as_tensor(number, device=like.device),
            like.new_tensor(np.concatenate([alpha for alpha, _ in rules])),
            like.new_tensor(weights),
        )

    def add_to(self, sums: Tensor, values: Tensor) -> None:
        """Add weighted values (count, points, …) to the sums (columns, inputs, count, …) of their inputs."""
        first, last = int(self.number[0]), int(self.number[-1])  # points are in the order of their inputs
        weights = self.weights.new_zeros(sums.shape[0], last - first + 1, len(self.number))
        weights[:, self.number - first, torch.arange(len(self.number), device=weights.device)] = self.weights.T
        # One product with all columns, instead of a pass over the values for each. (einsum would copy the values.)
        products = torch.matmul(weights.flatten(0, 1), values.flatten(2))  # (count, columns · inputs, …)
        products = products.view(len(values), *weights.shape[:2], *values.shape[2:])
        sums[:, first : last + 1] += products.permute(1, 2, 0, *range(3, products.ndim))

    def chunks(self, size: int, parts: int = 1) -> Iterator[tuple[Nodes, int]]:
        """Cut into near-equal pieces of at most ``size`` points: a small last piece would waste a whole pass.

        Each is returned ``parts`` times, with the number of the part. Progress is reported before each, and whoever
        watches it may stop the work there.
        """
        count = -(-len(self.number) // size)
        pieces = zip(*(t.tensor_split(count) for t in (self.number, self.alpha, self.weights)), strict=True)
        for done, piece in enumerate(pieces):
            nodes = Nodes(*piece)
            for part in range(parts):
                progress.report((done + part / parts) / count)
                yield nodes, part


def values(paths: Paths, nodes: Nodes, reduce: Callable[[Tensor], Tensor] = lambda value: value) -> Tensor:
    """Return ``reduce`` of the tail's value at every node (points, …), without derivatives."""
    with torch.no_grad(), plain_pass():
        pieces = (n for n, _ in nodes.chunks(paths.room))
        return torch.cat([reduce(paths.tail(paths.at(n.alpha, n.number), n.number)) for n in pieces])


@dataclass(frozen=True)
class Product:
    """A linear map's products with tangents or cotangents, and what their errors are estimated from.

    Lists have one entry for each segment, in the order in which the segments run. Columns are the sums under a rule's
    sets of weights (:meth:`whymatch.quadrature.Rule.columns`).

    Attributes:
        values: pushed (inputs, tangents, embedding), or pulled (inputs, cotangents, groups).
        sizes: the length of each tangent's or cotangent's columns (columns, inputs, count).
        totals: the length of the columns of all tangents together; or the columns of each cotangent along x − r,
            (columns, inputs) or (columns, inputs, count).
        missing: how far the total is from what is known of it: the length (inputs,); or along each cotangent, with its
            sign, beyond what is missing after later segments (inputs, count).
        groups: where cotangents were pulled: the columns of each group, by the first segment
            (columns, inputs, cotangents, groups).
    """

    values: Tensor
    sizes: list[Tensor]
    totals: list[Tensor]
    missing: list[Tensor]
    groups: Tensor | None = None


class LinearMap(Protocol):
    """A linear map L with L(x − r) = e(x) − e(r), for every path of a batch."""

    def push(self, groups: Tensor) -> Product:
        """Apply L to x − r restricted to groups: (tangents, inputs) -> (inputs, tangents, embedding).

        −2 stands for no group.
        """

    def pull(self, cotangents: Tensor) -> Product:
        """Apply Lᵀ to cotangents, and sum its products with x − r over each group.

        (inputs, cotangents, embedding) -> (inputs, cotangents, groups). The identity gives the whole decomposition;
        the other input's decomposition gives the pair's matrix.
        """


@dataclass(frozen=True)
class IntegratedJacobian:
    """The Jacobian of one segment, averaged along each of its paths by a quadrature rule."""

    paths: Paths
    nodes: Nodes

    def push(self, tangents: Callable[[slice, Tensor], Tensor], count: int) -> Tensor:
        """Push ``count`` tangents: -> (columns, inputs, tangents, *values).

        Args:
            tangents: returns those of a slice at the points of these inputs: (tangents, points, *shape).
        """
        paths, out = self.paths, None
        width = max(1, min(count, paths.room - 1))
        for nodes, k in self.nodes.chunks(max(1, paths.room // (width + 1)), -(-count // width)):
            number, primal = nodes.number, paths.at(nodes.alpha, nodes.number)
            part = slice(k * width, min((k + 1) * width, count))

            def push(tangent: Tensor, number: Tensor = number, primal: Tensor = primal) -> Tensor:
                # The primal does not depend on the tangent, so vmap computes it once for all of them.
                pushed: Tensor = jvp(lambda x: paths.tail(x, number), (primal,), (tangent,))[1]
                return pushed

            with LOCK, torch.no_grad():
                change = vmap(push)(tangents(part, number))  # (tangents, points, *values)
            if out is None:
                out = change.new_zeros(nodes.weights.shape[1], len(paths), count, *change.shape[2:])
            nodes.add_to(out[:, :, part], change)
        assert out is not None
        return out

    def pull(self, cotangents: Tensor, grouped: bool) -> Tensor:
        """Pull (inputs, cotangents, *values): -> (columns, inputs, cotangents, *shape).

        ``grouped`` sums products with x − r over groups: -> (columns, inputs, cotangents, groups).
        """
        paths, count = self.paths, cotangents.shape[1]
        # A last, spare group takes the cells of no group.
        cells = paths.owner.flatten(1)
        place = torch.where(cells < 0, paths.groups, cells)
        shape = (paths.groups + 1,) if grouped else tuple(paths.start.shape[1:])
        out = cotangents.new_zeros(self.nodes.weights.shape[1], len(paths), count, *shape)
        width = max(1, min(count, paths.room - paths.depth))
        pullback: Any = None
        for nodes, k in self.nodes.chunks(max(1, paths.room // (width + paths.depth)), -(-count // width)):
            delta, number, low = paths.delta[nodes.number], nodes.number, k * width
            with LOCK, torch.no_grad():
                if k == 0:
                    primal = paths.at(nodes.alpha, number)
                    pullback = vjp(lambda x, number=number: paths.tail(x, number), primal)[1]
                part = cotangents[number, low : low + width].transpose(0, 1)  # (cotangents, points, *values)
                change = vmap(lambda cotangent, pullback=pullback: pullback(cotangent)[0])(part)
            if grouped:
                products = paths.sum_cells(change * delta)  # (cotangents, points, cells)
                change = products.new_zeros(*products.shape[:2], paths.groups + 1)
                change.scatter_add_(2, place[number].expand_as(products), products)
            nodes.add_to(out[:, :, low : low + width], change)
        return out[..., :-1] if grouped else out


@dataclass(frozen=True)
class Relay:
    """The product of the integrated Jacobians of segments, the first of which begins at the inputs' representations.

    Attributes:
        segments: in the order in which they run.
        ends: what x − r is at the end of each: the known result of pushing x − r through it (inputs, *values).
    """

    segments: Sequence[IntegratedJacobian]
    ends: Sequence[Tensor]

    def push(self, groups: Tensor) -> Product:
        paths = self.segments[0].paths
        values: list[Tensor] = []
        sizes: list[list[Tensor]] = [[] for _ in self.segments]
        totals: list[list[Tensor]] = [[] for _ in self.segments]
        at_once = self._at_once(len(groups))
        for low in range(0, len(groups), at_once):
            part = groups[low : low + at_once]

            def restricted(which: slice, number: Tensor, part: Tensor = part) -> Tensor:
                return paths.restrict(part[which][:, number], number)

            tangents: Callable[[slice, Tensor], Tensor] = restricted
            for s, segment in enumerate(self.segments):
                columns = segment.push(tangents, len(part))  # (columns, inputs, tangents, *values)
                sizes[s].append(_lengths(columns, 3))
                totals[s].append(columns.sum(2))
                if s + 1 < len(self.segments):
                    lift = self.segments[s + 1].paths.lift
                    tangents = partial(_at_points, columns[0] if lift is None else lift.tangents(columns[0]))
            values.append(columns[0])
        sums = [torch.stack(each).sum(0) for each in totals]
        return Product(
            values=torch.cat(values, 1),
            sizes=[torch.cat(each, 2) for each in sizes],
            totals=[_lengths(total, 2) for total in sums],
            missing=[_lengths(total[0] - end, 1) for total, end in zip(sums, self.ends, strict=True)],
        )

    def pull(self, cotangents: Tensor) -> Product:
        values: list[Tensor] = []
        groups: list[Tensor] = []
        sizes: list[list[Tensor]] = [[] for _ in self.segments]
        totals: list[list[Tensor]] = [[] for _ in self.segments]
        missing: list[list[Tensor]] = [[] for _ in self.segments]
        at_once = self._at_once(cotangents.shape[1])
        for low in range(0, cotangents.shape[1], at_once):
            part = pulled = cotangents[:, low : low + at_once]
            # Whatever a cotangent was pulled back to, along x − r there it has the same product.
            known = torch.einsum("ick,ik->ic", part, self.ends[-1])
            for s in reversed(range(len(self.segments))):
                segment, lift = self.segments[s], self.segments[s].paths.lift
                columns = segment.pull(pulled, grouped=s == 0)  # (columns, inputs, cotangents, *shape or groups)
                if s > 0 and lift is not None:
                    columns = lift.cotangents(columns)
                sizes[s].append(_lengths(columns, 3))
                along = columns if s == 0 else columns * segment.paths.lowered().delta[:, None]
                totals[s].append(along.flatten(3).sum(3))
                missing[s].append(totals[s][-1][0] - known)
                known = totals[s][-1][0]
                pulled = columns[0]
            values.append(pulled)
            groups.append(columns)
        return Product(
            values=torch.cat(values, 1),
            sizes=[torch.cat(each, 2) for each in sizes],
            totals=[torch.cat(each, 2) for each in totals],
            missing=[torch.cat(each, 1) for each in missing],
            groups=torch.cat(groups, 2),
        )

    def _at_once(self, count: int) -> int:
        """How many tangents or cotangents may go from segment to segment together.

        Each is as large as a text's state, with its columns on both sides of a segment, and lifted on one.
        """
        if len(self.segments) == 1:
            return count
        paths, columns = self.segments[0].paths, self.segments[0].nodes.weights.shape[1]
        budget = CPU_BYTES if paths.start.device.type == "cpu" else ACCELERATOR_BYTES
        lifted = max(segment.paths.start.numel() for segment in self.segments)
        numbers = 2 * columns * paths.lowered().start.numel() + lifted
        return max(1, min(count, budget // (numbers * paths.start.element_size())))


def _at_points(tangents: Tensor, which: slice, number: Tensor) -> Tensor:
    """Take tangents (inputs, tangents, *shape) at the points of these inputs: -> (tangents, points, *shape)."""
    return tangents[number, which].transpose(0, 1)


def _lengths(values: Tensor, axes: int) -> Tensor:
    """Return lengths over all but the first axes."""
    lengths: Tensor = values.flatten(axes).norm(dim=axes)
    return lengths


def cheapest_mode(groups: int, dimensions: int) -> str:
    """Return the mode that decomposes a whole input with the fewest passes."""
    return "forward" if groups <= REVERSE_COST * dimensions else "reverse"


@contextmanager
def plain_attention() -> Iterator[None]:
    """Turn off PyTorch's fused attention, which has no forward-mode derivative.

    The switches are global to the process, so they are set under the lock and restored before it is released. Threads
    that interleaved here could leave them off for good.
    """
    with LOCK:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)

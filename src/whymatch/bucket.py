"""Deriving decompositions: inputs of one shape, from an encoder's values and derivatives to their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch import jacobian
from whymatch.decomposition import Decomposition, Projection, Settings
from whymatch.jacobian import Paths, Points
from whymatch.quadrature import USUAL, Floats, Lens, PathProbe, get_rule
from whymatch.text import shown

# An embedding that changes so much of its length so close to its reference jumps there: no number of nodes will do.
NEAR, JUMP = 5e-3, 0.25


class Bucket:
    """Inputs of one shape whose paths are known: ready to be differentiated.

    Args:
        paths: from the references to the inputs, and the groups whose contributions are wanted.
        sides: what results say of each input beside its numbers: the fields of a :class:`Side`.
        embeddings: what the encoder itself gives, in the end.
        normalizes: whether those are divided by their length, which ``paths.tail`` does not do.
        dimensions: how many of the tail's dimensions the embeddings have kept.
    """

    def __init__(
        self,
        paths: Paths,
        sides: Sequence[dict[str, Any]],
        embeddings: NDArray[np.floating],
        settings: Settings,
        normalizes: bool = False,
        dimensions: int | None = None,
    ) -> None:
        self.sides = sides
        self._embeddings = embeddings
        self._settings = settings
        count = len(sides)
        known = (np.array([0.0, NEAR, 1.0]), np.zeros(3))
        values = jacobian.values(paths, Points.of([known] * count, paths.start)).view(count, 3, -1)
        length = values[:, 2].norm(dim=1)
        if dimensions is not None:
            values, whole = values[..., :dimensions], paths.tail
            paths = replace(paths, tail=lambda x, number: whole(x, number)[..., :dimensions])
        self._paths = paths
        self._start, near, self._end = values.unbind(1)
        self._check_finite(values.sum((1, 2)))
        tiny = torch.finfo(values.dtype).tiny
        self._change = self._end - self._start
        self._size = self._end.norm(dim=1).clamp_min(tiny)
        for i, jump in enumerate(((near - self._start).norm(dim=1) / self._size).tolist()):
            if jump > JUMP:
                reason = f"the embedding jumps by {jump:.0%} where the path begins, as a LayerNorm of zero vectors does"
                raise self._cannot_be_integrated(i, reason)
        # A model that normalizes divides the embedding, and so each of its parts, by its length.
        self._scale = 1 / length.clamp_min(tiny) if normalizes else torch.ones_like(length)
        # Groups that the reference shares with the input ([CLS] at layer 0) contribute nothing: no tangent for them.
        moving = paths.cells((paths.delta != 0).to(torch.int64)) > 0
        owner = paths.owner.flatten(1)
        self._moving = [own[(own >= 0) & moves].unique() for own, moves in zip(owner, moving, strict=True)]

    def decompose(self, numbers: Sequence[int] | None = None, mode: str | None = None) -> list[Decomposition]:
        """Decompose the inputs, or those of the given numbers, by the cheapest mode unless one is given."""
        numbers = range(len(self.sides)) if numbers is None else numbers
        inputs, groups, dim = len(self.sides), self._paths.groups, self._end.shape[1]
        tangents = max((len(self._moving[i]) for i in numbers), default=0)
        mode = mode or jacobian.cheapest(tangents, dim)
        parts = self._end.new_zeros(inputs, groups, dim)
        nodes = [0] * inputs
        if tangents == 0:
            mode = "none"
        elif mode == "forward":
            which = self._paths.owner.new_full((tangents, inputs), -2)
            for i in numbers:
                which[: len(self._moving[i]), i] = self._moving[i]
            pushed, nodes = self._settle(
                numbers,
                lambda points: jacobian.forward(self._paths, points, which),
                lambda pushed: (pushed.sum(1) - self._change).norm(dim=1) / self._size,
            )
            for i in numbers:
                parts[i, self._moving[i]] = pushed[i, : len(self._moving[i])]
        else:
            identity = torch.eye(dim, dtype=self._end.dtype, device=self._end.device).expand(inputs, dim, dim)
            pulled, nodes = self._settle(
                numbers,
                lambda points: jacobian.reverse(self._paths, points, identity),
                lambda pulled: (pulled.sum(2) - self._change).norm(dim=1) / self._size,
            )
            parts = pulled.transpose(1, 2)
        parts, reference = parts * self._scale[:, None, None], self._start * self._scale[:, None]
        found = [
            Decomposition(
                **self.sides[i],
                embedding=self._embeddings[i],
                settings=self._settings,
                nodes=nodes[i],
                mode=mode,
                reference=_numpy(reference[i]),
                contributions=_numpy(parts[i][: len(self.sides[i]["tokens"])]),
            )
            for i in numbers
        ]
        return [dec.folded() for dec in found] if self._settings.fold_reference else found

    def project(self, i: int, other: Decomposition) -> Projection:
        """The products of one input's contributions with another's decomposition, by reverse mode."""
        fixed = bool(np.any(other.reference != 0))
        along = np.vstack([other.contributions, other.reference[None]]) if fixed else other.contributions
        cotangents = torch.as_tensor(along).to(self._end)  # (cotangents, dim)
        total = cotangents.sum(0)
        length = float(total.norm()) or 1.0
        if len(self._moving[i]) == 0:
            found, nodes = cotangents.new_zeros(len(cotangents), self._paths.groups), 0
        else:
            # The groups' sum is known: what misses it, along the sum of the cotangents, is the pair's own error.
            every, counts = self._settle(
                [i],
                lambda points: jacobian.reverse(self._paths, points, cotangents.expand(len(self.sides), -1, -1)),
                lambda found: (found.sum((1, 2)) - self._change @ total).abs() / length / self._size,
            )
            found, nodes = every[i], counts[i]
        shares = torch.as_tensor(self.sides[i]["shares"]).to(found)
        found, reference = found[:, : len(shares)] * self._scale[i], self._start[i] * self._scale[i]
        if self._settings.fold_reference:
            found, reference = found + (cotangents @ reference)[:, None] * shares, torch.zeros_like(reference)
        matrix, effects = (found[:-1], found[-1]) if fixed else (found, torch.zeros_like(found[0]))
        return Projection(
            **self.sides[i],
            embedding=self._embeddings[i],
            settings=self._settings,
            nodes=nodes,
            mode="pairwise",
            reference=_numpy(reference),
            matrix=_numpy(matrix),
            effects=_numpy(effects),
        )

    def features(self, row: int, dec: Decomposition) -> NDArray[np.floating]:
        """One row of a single input's decomposition, feature by feature: (features, dim), which sums to that row."""
        rows, width = self._paths.start.shape[1:]
        owner = self._paths.owner.new_full((1, rows, width), -1)
        owner[0, row] = torch.arange(width, device=owner.device)
        paths = replace(self._paths, owner=owner, groups=width)
        parts = self._end.new_zeros(width, self._end.shape[1])
        if dec.nodes:
            ((_, lens),) = self._foreseen
            points = Points.of([get_rule(self._settings.rule)(dec.nodes, lens)], self._end)
            if jacobian.cheapest(width, len(dec.embedding)) == "forward":
                parts = jacobian.forward(paths, points, torch.arange(width, device=owner.device)[:, None])[0]
            else:
                parts = jacobian.reverse(paths, points, torch.eye(len(dec.embedding)).to(parts)[None])[0].T
        found = _numpy(parts * self._scale[0])
        if self._settings.fold_reference:
            found += _numpy(self._start[0] * self._scale[0]) * dec.shares[row] / width
        return found

    def curve(self, alpha: Floats) -> NDArray[np.floating]:
        """The embeddings at these positions on every input's path: (inputs, positions, dim)."""
        points = Points.of([(alpha, alpha)] * len(self.sides), self._end)
        found = jacobian.values(self._paths, points).view(len(self.sides), len(alpha), -1)
        return _numpy(found * self._scale[:, None, None])

    def total(self, alpha: Floats, weights: Floats) -> NDArray[np.floating]:
        """What a rule gives to all groups of an input together, from one tangent at each node: (inputs, dim)."""
        paths = replace(self._paths, owner=torch.zeros_like(self._paths.owner), groups=1)
        points = Points.of([(alpha, weights)] * len(self.sides), self._end)
        which = paths.owner.new_zeros(1, len(self.sides))
        return _numpy(jacobian.forward(paths, points, which)[:, 0] * self._scale[:, None])

    def mismatch(self) -> NDArray[np.floating]:
        """How far the tail at each input's own representation is from the encoder's own embedding."""
        found = _numpy(self._end * self._scale[:, None])
        lengths = np.linalg.norm(self._embeddings, axis=1)
        return np.asarray(np.linalg.norm(found - self._embeddings, axis=1) / np.maximum(lengths, 1e-30))

    def _settle(
        self, which: Sequence[int], compute: Callable[[Points], Tensor], miss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[int]]:
        """Compute with as many nodes as each input needs; measure; again, with more, where that was too few."""
        settings, rule = self._settings, get_rule(self._settings.rule)
        tolerance = settings.text_tolerance
        nodes, lenses = map(list, zip(*self._foreseen, strict=True))

        def points(of: Sequence[int]) -> Points:
            none = np.empty(0)
            each = zip(nodes, lenses, strict=True)
            return Points.of([rule(*one) if i in of else (none, none) for i, one in enumerate(each)], self._end)

        found = compute(points(which))
        whole = (self._change.norm(dim=1) / self._size).tolist()
        while True:
            missed = miss(found)
            self._check_finite(missed)
            errors = missed.tolist()
            short = [i for i in which if errors[i] > tolerance and nodes[i] < rule.bound]
            if settings.steps is not None or not short:
                return found, nodes
            for i in short:
                # The error has come from ``whole``, at no nodes at all, to what it is: go on at that rate.
                if rule.order == math.inf:
                    growth = math.log(whole[i] / tolerance) / max(math.log(whole[i] / errors[i]), 0.1)
                else:
                    growth = (errors[i] / tolerance) ** (1 / rule.order)
                nodes[i] = min(rule.bound, math.ceil(nodes[i] * min(2, max(1.2, 1.05 * growth))) + 1)
            found[short] = compute(points(short))[short]

    def _check_finite(self, values: Tensor) -> None:
        """One value per input; the first that is not finite is named."""
        for i, finite in enumerate(values.isfinite().tolist()):
            if not finite:
                raise self._cannot_be_integrated(i, "the encoder is not finite there")

    def _cannot_be_integrated(self, i: int, reason: str) -> ArithmeticError:
        return ArithmeticError(
            f"the path from the reference {self._settings.reference!r} at layer {self._settings.layer} cannot be "
            f"integrated: {reason}. Give another reference: {shown(self.sides[i]['text'])}"
        )

    @cached_property
    def _foreseen(self) -> list[tuple[int, Lens]]:
        """How many nodes each input will need, and where they crowd, from plain passes along its path."""
        if self._settings.steps is not None:
            return [(self._settings.steps, USUAL)] * len(self.sides)
        rule, tolerance = get_rule(self._settings.rule), self._settings.text_tolerance
        probes = [PathProbe(_numpy(a), _numpy(b)) for a, b in zip(self._start, self._end, strict=True)]
        seen: dict[int, tuple[int, Lens]] = {}
        while len(seen) < len(probes):
            waiting = [i for i in range(len(probes)) if i not in seen]
            missing = [probe.missing() if i in waiting else np.empty(0) for i, probe in enumerate(probes)]
            points = Points.of([(alpha, alpha) for alpha in missing], self._end)
            found = jacobian.values(self._paths, points)
            self._check_finite(found.new_zeros(len(probes)).index_add(0, points.number, found.sum(1)))
            values = np.split(_numpy(found), np.cumsum(list(map(len, missing)))[:-1])
            for i in waiting:
                probes[i].add(values[i])
                enough = probes[i].nodes(rule, tolerance)
                if enough is not None:
                    seen[i] = (min(enough[0], rule.bound), enough[1])
        return [seen[i] for i in range(len(probes))]


def _numpy(tensor: Tensor) -> NDArray[np.floating]:
    # A copy: a view of one text would keep the whole bucket alive.
    return np.array(tensor.detach().cpu().numpy())

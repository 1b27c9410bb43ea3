"""Integrate along a batch of paths, with as many nodes as each needs, and measure the error of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch import progress
from whymatch.paths.jacobian import IntegratedJacobian, Lift, LinearMap, Nodes, Paths, Product, Relay, Tail, values
from whymatch.paths.secant import Recorded, SecantMap
from whymatch.pieces import SHORTEST, PieceProbe
from whymatch.quadrature import FINEST, USUAL, Floats, Lens, PathProbe, Pieces, get_rule
from whymatch.settings import Settings
from whymatch.words import quote

# An embedding that changes by this share of its length this close to its reference jumps there: no number of nodes
# is enough.
NEAR, JUMP = 5e-3, 0.25

# The probe's share of the work, for progress. About right for sentences; passages spend less on it.
PROBE_SHARE = 0.1

# Estimates of the errors of parts are corrected by how far the estimate of the total is from its true error, within
# these bounds. A total with far less error than that, as by symmetry, says nothing about its parts.
CORRECTION = (0.25, 4.0)
SYMMETRIC = 0.05
SAFETY = 0.4  # of its tolerance is what a segment of several is given nodes for
FEWEST = 3  # the fewest nodes that say anything about the error of a part
# What a total may miss by rounding alone, where the estimates are content: some units of single precision, in which
# many encoders compute their norms even where everything else is in double.
ROUNDING = 16 * torch.finfo(torch.float32).eps
CONTENT = 0.01  # the share of the tolerance that such estimates stay below

INEXACT = 1e-3  # a secant that misses more than this share of an embedding's length has an error beyond rounding
SKETCH = 64  # numbers that stand for the state at the end of a segment when nodes are counted
TINY = 1e-150  # nothing, and a number that can be divided by it


class RoughPathError(ArithmeticError):
    """A path on which the embedding moves in steps too steep for any reasonable number of nodes."""

    def __init__(self, layer: int, text: str, rule: str = "gauss", advice: str = "") -> None:
        self.layer, self.text, self.rule, self.advice = layer, text, rule, advice
        if rule == "pieces":
            reason = f"even pieces of 1/{1 / SHORTEST:.0f} of it"
            advice += "a tolerance below 1e-4 computes in double precision, in which steps may be smooth; "
        else:
            reason = f"even {FINEST} points along it"
            advice += "rule='pieces' follows it piece by piece, which takes long; "
        super().__init__(
            f"the path at layer {layer} is not smooth: {reason} do not tell how the embedding moves, and no reasonable "
            f"number of nodes spread over it would meet the tolerance. {advice}steps=N gives the sum of N nodes with "
            f"its true error: {quote(text)}"
        )

    def __reduce__(self) -> tuple[type[RoughPathError], tuple[int, str, str, str]]:
        return type(self), (self.layer, self.text, self.rule, self.advice)

    def advise(self, advice: str) -> RoughPathError:
        """Return the same error with advice on what to do."""
        return RoughPathError(self.layer, self.text, self.rule, advice)


@dataclass(frozen=True)
class Segment:
    """A part of the encoder, the lines along which it is integrated, and its values at their ends.

    Lines are lifted only while they are used: many segments are kept, and lifted ones are several times as large.
    """

    plain: Paths
    lift: Lift | None
    start: Tensor  # (inputs, *values) at the references
    end: Tensor  # (inputs, *values) at the inputs
    recorded: Recorded | None = None  # the secants of all lines, where those are wanted and there is room for them

    @property
    def change(self) -> Tensor:
        return self.end - self.start

    @property
    def paths(self) -> Paths:
        return self.plain.lifted(self.lift)


@dataclass(frozen=True)
class Integrated:
    """Integrals of a batch of paths.

    Attributes:
        values: what each input's groups contribute (inputs, groups, embedding); or along cotangents (inputs,
            cotangents, groups).
        nodes: how many nodes each input took, in all segments together.
        errors: the estimated error of each contribution, relative to the embedding's length (inputs, groups).
    """

    values: Tensor
    nodes: list[int]
    errors: NDArray[np.floating]


@dataclass(frozen=True)
class _Measured:
    """The errors of a product, relative to the embeddings' lengths."""

    missing: NDArray[np.floating]  # (inputs,) from the known total: measured
    errors: NDArray[np.floating]  # (inputs, groups) of parts: estimated
    sizes: NDArray[np.floating]  # (inputs,) the longest part
    blame: NDArray[np.floating]  # (segments, inputs) the relative error that each segment is estimated to make

    def take(self, other: _Measured, which: Sequence[int]) -> None:
        """Replace what was measured of some inputs."""
        index = list(which)
        self.missing[index], self.errors[index] = other.missing[index], other.errors[index]
        self.sizes[index], self.blame[:, index] = other.sizes[index], other.blame[:, index]


class Integral:
    """The exact linear map of every path of a batch, refined until it meets the tolerance.

    Args:
        paths: from the references to the inputs, and the groups whose contributions are wanted. Their tail is ignored.
        tails: the encoder from there on, as one or more segments; see :class:`Paths`.
        settings: how to integrate.
        texts: what to call each input in an error.
        normalizes: whether the encoder divides embeddings by their length, which the last segment does not do. The
            embedding, and so each of its parts, is divided by the length that it has at the end of the path.
        dimensions: how many of the last segment's dimensions are kept after that; None keeps all.
        lifts: for each segment, the linear layers that may be taken out of it; see :class:`Lift`.

    Attributes:
        start, end: the embeddings of the references and of the inputs (inputs, dim).
    """

    def __init__(
        self,
        paths: Paths,
        tails: Sequence[Tail],
        settings: Settings,
        texts: Sequence[str],
        normalizes: bool = False,
        dimensions: int | None = None,
        lifts: Sequence[Lift | None] = (),
    ) -> None:
        self._settings = settings
        self._texts = texts
        self._last_map: Relay | SecantMap
        self._lenses: list[dict[int, Lens | Pieces]] = []  # of each segment: where the nodes of each input crowd
        self.segments: list[Segment] = []
        for number, tail in enumerate(tails):
            lift = lifts[number] if lifts and settings.path != "secant" else None
            line = replace(paths, tail=tail)
            segment = self._ends(line, lift, normalizes and number == len(tails) - 1, dimensions)
            self.segments.append(segment)
            paths = replace(paths, start=segment.start, delta=segment.change)
        self.paths = self.segments[0].plain
        self.start, self.end = self.segments[-1].start, self.segments[-1].end
        self._size = self.end.norm(dim=1).clamp_min(torch.finfo(self.end.dtype).tiny)

    def _ends(self, paths: Paths, lift: Lift | None, normalizes: bool, dimensions: int | None) -> Segment:
        """Run a segment at the ends of its lines, and check that it does not jump where they begin."""
        count, tail = len(paths), paths.tail
        recorded = SecantMap(paths).record_together() if self._settings.path == "secant" else None
        # A secant does not see what is between its ends. Whoever records it runs the segment at the input, but repeats
        # at the reference only the operations that can be watched: what is missing is measured against a pass there.
        if recorded is not None:
            ends = np.array([0.0])
        else:
            ends = np.array([0.0, 1.0] if self._settings.path == "secant" else [0.0, NEAR, 1.0])
        points = values(paths.lifted(lift), Nodes.of([(ends, ends)] * count, paths.start))
        points = points.view(count, len(ends), *points.shape[1:])
        if recorded is not None:
            points = torch.cat([points, recorded.x[:, None]], 1)
        self._check_finite(to_numpy(points.flatten(1).sum(1)))
        tiny = torch.finfo(points.dtype).tiny
        if points.ndim == 3 and (normalizes or dimensions is not None):
            scale = 1 / points[:, -1].norm(dim=1).clamp_min(tiny) if normalizes else torch.ones_like(points[:, 0, 0])
            points = (points * scale[:, None, None])[..., :dimensions]
            recorded = None if recorded is None else recorded.scaled(scale, dimensions)

            def scaled(x: Tensor, number: Tensor) -> Tensor:
                return tail(x, number)[..., :dimensions] * scale[number][:, None]

            paths = replace(paths, tail=scaled)
        start, near, end = points[:, 0], points[:, -2], points[:, -1]
        lengths = end.flatten(1).norm(dim=1).clamp_min(tiny)
        for i, jump in enumerate(((near - start).flatten(1).norm(dim=1) / lengths).tolist()):
            if jump > JUMP and len(ends) == 3:
                reason = f"the embedding jumps by {jump:.0%} where the path begins, as a LayerNorm of zero vectors does"
                raise self._cannot_integrate(i, reason)
        return Segment(paths, lift, start, end, recorded)

    def push(self) -> Integrated:
        """Decompose the inputs by forward mode: one tangent for each group that moves."""
        moving = self.paths.moving
        groups = self.paths.owner.new_full((max(map(len, moving)), len(moving)), -2)
        for i, own in enumerate(moving):
            groups[: len(own), i] = own
        pushed = self._apply(lambda linear: linear.push(groups))
        parts = self.end.new_zeros(len(moving), self.paths.groups, self.end.shape[1])
        errors = np.zeros(parts.shape[:2])
        for i, own in enumerate(moving):
            parts[i, own] = pushed.values[i, : len(own)]
            errors[i, own.cpu().numpy()] = pushed.errors[i, : len(own)]
        return Integrated(parts, pushed.nodes, errors)

    def pull(self) -> Integrated:
        """Decompose the inputs by reverse mode: one cotangent for each dimension of the embedding."""
        dim = self.end.shape[1]
        identity = torch.eye(dim, dtype=self.end.dtype, device=self.end.device).expand(len(self.paths), dim, dim)
        pulled = self._apply(lambda linear: linear.pull(identity), lambda each: each.norm(dim=1))
        return replace(pulled, values=pulled.values.mT)

    def pull_along(self, cotangents: Tensor, beside: Tensor | None = None) -> Integrated:
        """Find what each group of each input contributes along each cotangent (cotangents, embedding).

        Args:
            beside: further cotangents, whose products are the last; they decide neither nodes nor what errors are said
                to be.
        """
        lengths = cotangents.norm(dim=1).clamp_min(torch.finfo(cotangents.dtype).tiny)
        whole = torch.maximum(cotangents.sum(0).norm(), lengths.max())  # they may cancel
        pulled = cotangents if beside is None else torch.cat([cotangents, beside])
        every = pulled.expand(len(self.paths), -1, -1)

        def merge(each: Tensor) -> Tensor:
            each = each[:, : len(cotangents)]
            # What all totals together miss is what the score misses; a part has an error relative to its cotangent.
            if each.ndim == 2 and self._settings.path != "secant":
                merged: Tensor = (each / whole).abs().sum(1)
            else:
                merged = (each / (lengths if each.ndim == 2 else lengths[:, None])).abs().amax(1)
            return merged

        return self._apply(lambda linear: linear.pull(every), merge, cotangents / whole)

    def curve(self, alpha: Floats) -> NDArray[np.floating]:
        """Return the embeddings at these positions on every path (inputs, positions, dim)."""
        nodes = Nodes.of([(alpha, alpha)] * len(self.paths), self.end)
        return to_numpy(values(self._only_segment().paths, nodes).view(len(self.paths), len(alpha), -1))

    def total(self, alpha: Floats, weights: Floats) -> NDArray[np.floating]:
        """Return what a rule gives to all groups together, by one tangent at each node (inputs, dim)."""
        nodes = Nodes.of([(alpha, weights)] * len(self.paths), self.end)
        paths = self._only_segment().paths

        def everything(_: slice, number: Tensor) -> Tensor:
            return paths.delta[number][None]

        return to_numpy(IntegratedJacobian(paths, nodes).push(everything, 1)[0, :, 0])

    def _only_segment(self) -> Segment:
        if len(self.segments) > 1:
            raise ValueError("this path is a relay of several segments; path='straight' has a single one")
        return self.segments[0]

    def linear_map(self, counts: Sequence[Sequence[int]], which: Sequence[int]) -> Relay:
        """Return the map with these numbers of nodes in each segment of the paths ``which``, and none on the others."""
        rule, none = get_rule(self._settings.rule), (np.empty(0), np.empty(0))
        maps = []
        for segment, nodes, lenses in zip(self.segments, counts, self._lenses, strict=True):
            rules = [
                (rule(count, lenses[i])[0], rule.columns(count, lenses[i])) if i in which else none
                for i, count in enumerate(nodes)
            ]
            maps.append(IntegratedJacobian(segment.paths, Nodes.of(rules, self.end)))
        self._last_map = relay = Relay(maps, [segment.change for segment in self.segments])
        return relay

    def secant_operations(self) -> frozenset[str]:
        """Return the names of the operations from a single input to its embedding, and GATE if there is one."""
        recorded = self._only_segment().recorded
        assert recorded is not None, "there is always room for one"
        return recorded.operations

    def last_map(self, owner: Tensor) -> LinearMap:
        """Return the map that was used last, with other groups than those of the paths; see :class:`Paths`."""
        if isinstance(self._last_map, SecantMap):
            paths = replace(self._last_map.paths, owner=owner, groups=int(owner.max()) + 1)
            return replace(self._last_map, paths=paths)
        first, *rest = self._last_map.segments
        paths = replace(first.paths.lowered(), owner=owner, groups=int(owner.max()) + 1)
        return replace(self._last_map, segments=[replace(first, paths=paths), *rest])

    def _apply(
        self,
        apply: Callable[[LinearMap], Product],
        merge: Callable[[Tensor], Tensor] | None = None,
        directions: Tensor | None = None,
    ) -> Integrated:
        """Apply the linear map.

        Args:
            apply: pushes tangents or pulls cotangents.
            merge: where cotangents are pulled: merges them, (inputs, cotangents) or (inputs, cotangents, groups),
                without that axis.
            directions: of the embedding (directions, dim), if nothing is asked of the others; their errors add up.
        """
        if self._settings.path == "secant":
            return self._take_secant(apply, merge)
        measure = self._measure_pushed if merge is None else partial(self._measure_pulled, merge=merge)
        return self._integrate(apply, measure, directions)

    def _take_secant(
        self, apply: Callable[[LinearMap], Product], merge: Callable[[Tensor], Tensor] | None
    ) -> Integrated:
        """Apply the secant, which needs no nodes; what is missing is rounding, and stands for the error of parts."""
        segment = self._only_segment()
        self._last_map = secant = SecantMap(segment.paths, segment.change, recorded=segment.recorded)
        with progress.stage(0, 1, "taking secants"):
            product = apply(secant)
        missing = product.missing[0] if merge is None else merge(product.missing[0])
        relative = _doubles(missing) / _doubles(self._size)
        self._check_finite(relative)
        for i, missed in enumerate(relative):
            if missed > INEXACT:
                raise ArithmeticError(
                    f"the secant misses {missed:.1%} of the embedding, where only rounding may be missing: an "
                    "operation of this encoder, such as one that writes into overlapping memory, is not followed "
                    f"exactly. path='relay' and path='straight' need derivatives alone: {quote(self._texts[i])}"
                )
        parts = product.values.shape[1 if merge is None else 2]
        return Integrated(product.values, [1] * len(relative), np.repeat(relative[:, None], parts, 1))

    def _integrate(
        self,
        apply: Callable[[LinearMap], Product],
        measure: Callable[[Product, NDArray[np.integer]], _Measured],
        directions: Tensor | None,
    ) -> Integrated:
        """Integrate with the nodes foreseen; measure the error; repeat with more where it misses the tolerance."""
        which = [i for i, own in enumerate(self.paths.moving) if len(own)]
        with progress.stage(0, PROBE_SHARE, "looking along the path"):
            nodes = self._foresee(which, directions)
        with progress.stage(PROBE_SHARE, 1, "differentiating"):
            product = apply(self.linear_map(nodes.tolist(), which))
            result, measured = product.values, measure(product, nodes)
            while True:
                self._check_finite(measured.missing)
                short = self._refine(which, measured, nodes) if self._settings.steps is None else []
                if not short:
                    return Integrated(result, nodes.sum(0).tolist(), measured.errors)
                product = apply(self.linear_map(nodes.tolist(), short))
                again = measure(product, nodes)
                result[short] = product.values[short]
                measured.take(again, short)

    def _refine(self, which: Sequence[int], measured: _Measured, nodes: NDArray[np.integer]) -> list[int]:
        """Add nodes where the tolerance is missed and more of them can help; return the inputs where it was done."""
        tolerance, bound = self._settings.text_tolerance, get_rule(self._settings.rule).bound
        # An entry is a product of two rows: its error is a row's times the length of the other, which is taken to be
        # about as long as the longest here.
        parts = measured.errors.max(1, initial=0) * measured.sizes
        # No node mends rounding.
        content = np.maximum(parts, measured.blame.max(0)) <= CONTENT * tolerance
        rounded = content & (measured.missing <= ROUNDING)
        refined = []
        for i in which:
            worst = max(measured.missing[i], parts[i])
            # The segments with the largest errors get more nodes, as long as there are more to be had.
            blamed = (measured.blame[:, i] >= 0.5 * measured.blame[:, i].max()) & (nodes[:, i] < bound)
            if worst > tolerance and not rounded[i] and blamed.any():
                nodes[blamed, i] = [self._more(int(n), float(worst), i) for n in nodes[blamed, i]]
                refined.append(i)
        return refined

    def _more(self, nodes: int, error: float, i: int) -> int:
        """Return how many nodes to try, given the error that ``nodes`` left on path i."""
        rule, tolerance = get_rule(self._settings.rule), self._settings.text_tolerance
        if rule.order == math.inf:
            # Without nodes the error is the whole change; assume that it keeps falling at the same rate.
            whole = float((self.end - self.start)[i].norm() / self._size[i])
            growth = math.log(max(whole, error) / tolerance) / max(math.log(max(whole, error) / error), 0.1)
        else:
            growth = (error / tolerance) ** (1 / rule.order)
        return min(rule.bound, math.ceil(nodes * min(2, max(1.2, 1.05 * growth))) + 1)

    def _measure_pushed(self, product: Product, nodes: NDArray[np.integer]) -> _Measured:
        """Measure what was pushed: its parts are tangents, whose lengths are known after every segment."""
        size = _doubles(self._size)
        relative = self._relative_errors(product, nodes, lambda lengths: lengths)
        lengths = _doubles(product.sizes[-1][0]) / size[:, None]
        missing = _doubles(product.missing[-1]) / size
        return _Measured(
            missing=missing,
            errors=self._no_better(np.sum(relative, 0) * lengths, missing, lengths),
            sizes=lengths.max(1, initial=0),
            blame=np.stack([each.max(1, initial=0) for each in relative]),
        )

    def _measure_pulled(
        self, product: Product, nodes: NDArray[np.integer], merge: Callable[[Tensor], Tensor]
    ) -> _Measured:
        """Measure what was pulled: its parts are groups, which are told apart by the first segment only.

        Args:
            merge: merges cotangents: (inputs, cotangents) or (inputs, cotangents, groups), without that axis.
        """
        assert product.groups is not None
        size, rule = _doubles(self._size)[:, None], get_rule(self._settings.rule)
        relative = self._relative_errors(product, nodes, merge)
        columns = np.stack([_doubles(merge(column)) for column in product.groups])  # (columns, inputs, groups)
        errors = rule.estimate(columns, nodes[0][:, None]) * self._correction(product, nodes, 0, merge)[:, None]
        for later in relative[1:]:
            errors += _doubles(merge(product.values * torch.as_tensor(later).to(product.values)[..., None]))
        missing = _doubles(merge(sum(product.missing[1:], product.missing[0]))) / size[:, 0]
        return _Measured(
            missing=missing,
            errors=self._no_better(errors / size, missing, columns[0] / size),
            sizes=(columns[0] / size).max(1, initial=0),
            blame=np.stack([each.max(1, initial=0) for each in relative]),
        )

    def _no_better(
        self, errors: NDArray[np.floating], missing: NDArray[np.floating], lengths: NDArray[np.floating]
    ) -> NDArray[np.floating]:
        """Take no part to be more exact for its size than the total, where pieces are chosen by the total alone."""
        return np.maximum(errors, missing[:, None] * lengths) if self._settings.rule == "pieces" else errors

    def _relative_errors(
        self, product: Product, nodes: NDArray[np.integer], merge: Callable[[Tensor], Tensor]
    ) -> list[NDArray[np.floating]]:
        """Estimate what each segment adds to the relative error of each tangent or cotangent (inputs, count)."""
        rule, relative = get_rule(self._settings.rule), []
        for s, lengths in enumerate(product.sizes):
            sizes = _doubles(lengths)
            estimate = rule.estimate(sizes, nodes[s][:, None]) / np.maximum(sizes[0], TINY)
            relative.append(np.asarray(estimate * self._correction(product, nodes, s, merge)[:, None]))
        return relative

    def _correction(
        self, product: Product, nodes: NDArray[np.integer], s: int, merge: Callable[[Tensor], Tensor]
    ) -> NDArray[np.floating]:
        """Return how far the estimate of a segment's total is from its true error, within bounds (inputs,)."""
        totals = np.stack([_doubles(merge(column)) for column in product.totals[s]])
        expected = np.maximum(get_rule(self._settings.rule).estimate(totals, nodes[s]), TINY)
        ratio = _doubles(merge(product.missing[s])) / expected
        return np.where(ratio < SYMMETRIC, 1, np.clip(ratio, *CORRECTION))

    def _foresee(self, which: Sequence[int], directions: Tensor | None) -> NDArray[np.integer]:
        """Find by plain passes how many nodes some inputs will need (segments, inputs), and where they crowd."""
        count = len(self.segments)
        if self._settings.steps is not None:
            self._lenses = [dict.fromkeys(which, USUAL)] * count
            return np.full((count, len(self.paths)), self._settings.steps)
        # A segment that misses makes all of them run again, which costs more than the few nodes that avoid it.
        tolerance = self._segment_tolerance * (1.0 if count == 1 else SAFETY)
        last = self.segments[-1]
        foreseen = [
            self._probe(segment, tolerance, which, directions if segment is last else None) for segment in self.segments
        ]
        self._lenses = [{i: lens for i, (_, lens) in of_segment.items()} for of_segment in foreseen]
        nodes = np.full((count, len(self.paths)), FEWEST)
        for s, of_segment in enumerate(foreseen):
            nodes[s, list(of_segment)] = [number for number, _ in of_segment.values()]
        return nodes

    @property
    def _segment_tolerance(self) -> float:
        # Errors of segments add up, in no particular direction.
        return self._settings.text_tolerance / math.sqrt(len(self.segments))

    def nodes_needed(self, segment: int) -> int | None:
        """Return the most nodes that a path needs in one segment, found by plain passes; None where one is rough."""
        try:
            foreseen = self._probe(self.segments[segment], self._segment_tolerance, range(len(self.paths)))
            return max(count for count, _ in foreseen.values())
        except RoughPathError:
            return None

    def _probe(
        self, segment: Segment, tolerance: float, which: Sequence[int], directions: Tensor | None = None
    ) -> dict[int, tuple[int, Lens | Pieces]]:
        """Find how many nodes a segment needs on some paths, and where they crowd.

        See :class:`PathProbe` and :class:`whymatch.pieces.PieceProbe`.
        """
        rule = get_rule(self._settings.rule)
        paths = segment.paths
        reduce = _sketch(segment.end) if directions is None else (lambda points: points @ directions.T)
        start, end = to_numpy(reduce(segment.start)), to_numpy(reduce(segment.end))
        sizes = None if directions is None else _doubles(segment.end.norm(dim=1))
        few = paths.room < PathProbe.MANY

        def probe(i: int) -> PathProbe | PieceProbe:
            size = None if sizes is None else float(sizes[i])
            if rule.name == "pieces":
                return PieceProbe(end[i], size)
            return PathProbe(start[i], end[i], size, few)

        probes = {i: probe(i) for i in which}
        foreseen: dict[int, tuple[int, Lens | Pieces]] = {}
        while len(foreseen) < len(probes):
            waiting = [i for i in which if i not in foreseen]
            missing = [probes[i].missing() if i in waiting else np.empty(0) for i in range(len(self.paths))]
            nodes = Nodes.of([(alpha, alpha) for alpha in missing], paths.start)
            points = values(paths, nodes, reduce)
            self._check_finite(to_numpy(points.new_zeros(len(self.paths)).index_add(0, nodes.number, points.sum(1))))
            split = np.split(to_numpy(points), np.cumsum(list(map(len, missing)))[:-1])
            for i in waiting:
                probes[i].add(split[i])
                enough = probes[i].nodes(rule, tolerance)
                if enough is not None:
                    if probes[i].is_rough(tolerance):
                        raise RoughPathError(self._settings.layer, self._texts[i], rule.name)
                    foreseen[i] = (min(max(enough[0], FEWEST), rule.bound), enough[1])
        return foreseen

    def _check_finite(self, numbers: NDArray[np.floating]) -> None:
        """Raise an error that names the first input whose number is not finite."""
        for i, number in enumerate(numbers):
            if not np.isfinite(number):
                raise self._cannot_integrate(i, "the encoder is not finite there")

    def _cannot_integrate(self, i: int, reason: str) -> ArithmeticError:
        return ArithmeticError(
            f"the path from the reference {self._settings.reference!r} at layer {self._settings.layer} cannot be "
            f"integrated: {reason}. Give another reference: {quote(self._texts[i])}"
        )


def _sketch(values: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that shortens states (points, *values) but roughly keeps their lengths and distances.

    Each number is added to one of a few, with a random sign. Embeddings are left as they are.
    """
    if values.ndim == 2:
        return lambda points: points
    generator = torch.Generator().manual_seed(0)
    count = values[0].numel()
    place = torch.randint(SKETCH, (count,), generator=generator).to(values.device)
    sign = (2 * torch.randint(2, (count,), generator=generator) - 1).to(values)
    return lambda points: points.new_zeros(len(points), SKETCH).index_add(1, place, points.flatten(1) * sign)


def _doubles(tensor: Tensor) -> NDArray[np.float64]:
    return to_numpy(tensor).astype(np.float64)


def to_numpy(tensor: Tensor) -> NDArray[np.floating]:
    """Copy a tensor to NumPy: a view of one input would keep the whole batch alive."""
    return np.array(tensor.detach().cpu().numpy())

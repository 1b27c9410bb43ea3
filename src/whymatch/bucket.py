"""Deriving decompositions: texts of one length, from the encoder's values and derivatives to their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch import jacobian
from whymatch.decomposition import Decomposition, Projection, Settings
from whymatch.encoder import Cut
from whymatch.jacobian import Paths, Points
from whymatch.quadrature import PathProbe, get_rule
from whymatch.reference import reference_ids
from whymatch.text import Text, shown


class Bucket:
    """Texts with the same number of tokens, run through the encoder once and ready to be differentiated."""

    def __init__(
        self, cut: Cut, texts: Sequence[Text], embeddings: NDArray[np.floating], token: int, settings: Settings
    ) -> None:
        self.texts = texts
        self._numbers = {text.text: i for i, text in enumerate(texts)}
        self._embeddings = embeddings
        self._settings = settings
        both = cut.features([*texts, *texts], [t.ids for t in texts] + [reference_ids(t, token) for t in texts])
        hidden, embedding = cut.head(both)
        x, start = hidden.chunk(2)
        self._end, self._start = embedding.chunk(2)
        self._paths = Paths(cut.tail(both), start, x - start, cut.pass_bytes(x.shape[1]), cut.depth)
        self._check_finite((self._end + self._start).sum(1))
        self._change = self._end - self._start
        self._size = self._end.norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
        # A model that normalizes divides the embedding, and so each of its parts, by its length.
        self._scale = 1 / self._size if cut.normalizes else torch.ones_like(self._size)
        # Rows that the reference shares with the text ([CLS] at layer 0) contribute nothing: no tangent for them.
        self._moving = [row.nonzero()[:, 0] for row in (self._paths.delta != 0).any(-1)]

    def decompose(self, names: Iterable[str] | None = None, mode: str | None = None) -> list[Decomposition]:
        """Decompose the texts, or the named ones, by the cheapest mode unless one is given."""
        numbers = [self._numbers[name] for name in (self._numbers if names is None else names)]
        texts, rows, dim = *self._paths.delta.shape[:2], self._end.shape[1]
        tangents = max((len(self._moving[i]) for i in numbers), default=0)
        mode = mode or jacobian.cheapest(tangents, dim)
        parts = self._end.new_zeros(texts, rows, dim)
        nodes = [0] * texts
        if tangents == 0:
            mode = "none"
        elif mode == "forward":
            groups = self._end.new_zeros(tangents, texts, rows)
            for i in numbers:
                groups[torch.arange(len(self._moving[i])), i, self._moving[i]] = 1
            pushed, nodes = self._settle(
                numbers,
                lambda points: jacobian.forward(self._paths, points, groups),
                lambda pushed: (pushed.sum(1) - self._change).norm(dim=1) / self._size,
            )
            for i in numbers:
                parts[i, self._moving[i]] = pushed[i, : len(self._moving[i])]
        else:
            identity = torch.eye(dim, dtype=self._end.dtype, device=self._end.device).expand(texts, dim, dim)
            pulled, nodes = self._settle(
                numbers,
                lambda points: jacobian.reverse(self._paths, points, identity),
                lambda pulled: (pulled.sum(2) - self._change).norm(dim=1) / self._size,
            )
            parts = pulled.transpose(1, 2)
        parts, reference = parts * self._scale[:, None, None], self._start * self._scale[:, None]
        found = [
            Decomposition(
                **self._side(i),
                nodes=nodes[i],
                mode=mode,
                reference=_numpy(reference[i]),
                contributions=_numpy(parts[i]),
            )
            for i in numbers
        ]
        return [dec.folded() for dec in found] if self._settings.fold_reference else found

    def project(self, name: str, other: Decomposition) -> Projection:
        """The products of one text's contributions with another text's decomposition, by reverse mode."""
        i = self._numbers[name]
        rows = len(self.texts[i])
        fixed = bool(np.any(other.reference != 0))
        along = np.vstack([other.contributions, other.reference[None]]) if fixed else other.contributions
        cotangents = torch.as_tensor(along).to(self._end)  # (cotangents, dim)
        total = cotangents.sum(0)
        length = float(total.norm()) or 1.0
        if len(self._moving[i]) == 0:
            found, nodes = cotangents.new_zeros(len(cotangents), rows), 0
        else:
            # The rows' sum is known: what misses it, along the sum of the cotangents, is the pair's own error.
            every, counts = self._settle(
                [i],
                lambda points: jacobian.reverse(self._paths, points, cotangents.expand(len(self.texts), -1, -1)),
                lambda found: (found.sum((1, 2)) - self._change @ total).abs() / length / self._size,
            )
            found, nodes = every[i], counts[i]
        found, reference = found * self._scale[i], self._start[i] * self._scale[i]
        if self._settings.fold_reference:
            share = (cotangents @ reference) / rows
            found, reference = found + share[:, None], torch.zeros_like(reference)
        matrix, effects = (found[:-1], found[-1]) if fixed else (found, torch.zeros_like(found[0]))
        return Projection(
            **self._side(i),
            nodes=nodes,
            mode="pairwise",
            reference=_numpy(reference),
            matrix=_numpy(matrix),
            effects=_numpy(effects),
        )

    def _side(self, i: int) -> dict[str, Any]:
        text = self.texts[i]
        return {
            "text": text.text,
            "tokens": text.tokens,
            "offsets": text.offsets,
            "truncated": text.truncated,
            "embedding": self._embeddings[i],
            "settings": self._settings,
        }

    def _settle(
        self, which: Sequence[int], compute: Callable[[Points], Tensor], miss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[int]]:
        """Compute with as many nodes as each text needs; measure; again, with more, where that was too few."""
        settings, rule = self._settings, get_rule(self._settings.rule)
        tolerance = settings.text_tolerance
        nodes = list(self._foreseen) if settings.steps is None else [settings.steps] * len(self.texts)

        def points(of: Sequence[int]) -> Points:
            none = np.empty(0)
            rules = [rule(n) if i in of else (none, none) for i, n in enumerate(nodes)]
            return Points.of(rules, self._end)

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
        """One value per text; the first that is not finite is named."""
        for text, finite in zip(self.texts, values.isfinite().tolist(), strict=True):
            if not finite:
                raise ArithmeticError(
                    f"the encoder is not finite on the path from the reference {self._settings.reference!r} at layer "
                    f"{self._settings.layer}, so it cannot be integrated there: {shown(text.text)}"
                )

    @cached_property
    def _foreseen(self) -> list[int]:
        """How many nodes each text will need, from plain passes along its path."""
        rule, tolerance = get_rule(self._settings.rule), self._settings.text_tolerance
        probes = [PathProbe(_numpy(a), _numpy(b)) for a, b in zip(self._start, self._end, strict=True)]
        nodes: dict[int, int] = {}
        while len(nodes) < len(probes):
            waiting = [i for i in range(len(probes)) if i not in nodes]
            missing = [probe.missing() if i in waiting else np.empty(0) for i, probe in enumerate(probes)]
            points = Points.of([(alpha, alpha) for alpha in missing], self._end)
            found = jacobian.values(self._paths, points)
            self._check_finite(found.new_zeros(len(self.texts)).index_add(0, points.text, found.sum(1)))
            values = np.split(_numpy(found), np.cumsum(list(map(len, missing)))[:-1])
            for i in waiting:
                probes[i].add(values[i])
                enough = probes[i].nodes(rule, tolerance)
                if enough is not None:
                    nodes[i] = min(enough, rule.bound)
        return [nodes[i] for i in range(len(probes))]


def _numpy(tensor: Tensor) -> NDArray[np.floating]:
    # A copy: a view of one text would keep the whole bucket alive.
    return np.array(tensor.detach().cpu().numpy())

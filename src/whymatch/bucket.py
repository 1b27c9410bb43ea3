"""Deriving decompositions: texts of one length, from the encoder's values and derivatives to their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch import jacobian
from whymatch.decomposition import Decomposition, Projection, Settings
from whymatch.encoder import Cut
from whymatch.jacobian import Paths, Points
from whymatch.quadrature import PathProbe, Rule, get_rule
from whymatch.reference import reference_ids
from whymatch.text import Text


class Bucket:
    """Texts with the same number of tokens, run through the encoder once and ready to be differentiated."""

    def __init__(
        self, cut: Cut, texts: Sequence[Text], embeddings: NDArray[np.floating], token: int, settings: Settings
    ) -> None:
        self.texts = texts
        self._embeddings = embeddings
        self._settings = settings
        features = cut.features(texts, [text.ids for text in texts])
        x, self._end = cut.head(features)
        start, self._start = cut.head(cut.features(texts, [reference_ids(text, token) for text in texts]))
        size = cut.pass_bytes(x.shape[1], x.element_size())
        self._paths = Paths(cut.tail(features), start, x - start, size)
        self._change = self._end - self._start
        self._size = self._end.norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
        # A model that normalizes divides the embedding, and so each of its parts, by its length.
        self._scale = 1 / self._size if cut.normalizes else torch.ones_like(self._size)
        # Rows that the reference shares with the text ([CLS] at layer 0) contribute nothing: no tangent for them.
        self._moving = [row.nonzero()[:, 0] for row in (self._paths.delta != 0).any(-1)]

    @property
    def tangents(self) -> int:
        """The most tangents that a text of this bucket needs in forward mode."""
        return max(len(rows) for rows in self._moving)

    def decompose(self, mode: str | None = None) -> list[Decomposition]:
        """One decomposition per text, by the cheapest mode unless one is given."""
        texts, rows, dim = *self._paths.delta.shape[:2], self._end.shape[1]
        mode = mode or jacobian.cheapest(self.tangents, dim)
        if self.tangents == 0:
            mode, parts, nodes = "none", self._end.new_zeros(texts, rows, dim), [0] * texts
        elif mode == "forward":
            groups = self._end.new_zeros(self.tangents, texts, rows)
            for i, moving in enumerate(self._moving):
                groups[torch.arange(len(moving)), i, moving] = 1
            found, nodes = self._settle(
                lambda points: jacobian.forward(self._paths, points, groups),
                lambda found: (found.sum(1) - self._change).norm(dim=1) / self._size,
            )
            parts = found.new_zeros(texts, rows, dim)
            for i, moving in enumerate(self._moving):
                parts[i, moving] = found[i, : len(moving)]
        else:
            identity = torch.eye(dim, dtype=self._end.dtype, device=self._end.device).expand(texts, dim, dim)
            found, nodes = self._settle(
                lambda points: jacobian.reverse(self._paths, points, identity),
                lambda found: (found.sum(2) - self._change).norm(dim=1) / self._size,
            )
            parts = found.transpose(1, 2)
        parts, reference = parts * self._scale[:, None, None], self._start * self._scale[:, None]
        if self._settings.fold_reference:
            parts, reference = parts + reference[:, None] / rows, torch.zeros_like(reference)
        return [
            Decomposition(
                **self._side(i), nodes=nodes[i], mode=mode, reference=_numpy(reference[i]), contributions=_numpy(part)
            )
            for i, part in enumerate(parts)
        ]

    def project(self, other: Decomposition) -> Projection:
        """The products of the one text of this bucket with another's decomposition, by reverse mode."""
        (rows,) = (len(text) for text in self.texts)
        fixed = np.any(other.reference != 0)
        along = np.vstack([other.contributions, other.reference[None]]) if fixed else other.contributions
        cotangents = torch.as_tensor(along).to(self._end)[None]  # (1, cotangents, dim)
        if self.tangents == 0:
            found, nodes = cotangents.new_zeros(1, cotangents.shape[1], rows), [0]
        else:
            # The rows' sum is known: what misses it, along the sum of the cotangents, is the pair's own error.
            total = cotangents.sum(1, keepdim=True)
            length = total.norm(dim=2)[:, 0].clamp_min(torch.finfo(total.dtype).tiny)
            found, nodes = self._settle(
                lambda points: jacobian.reverse(self._paths, points, cotangents),
                lambda found: (found.sum((1, 2)) - (total[:, 0] * self._change).sum(1)).abs() / length / self._size,
            )
        found, reference = found[0] * self._scale[0], self._start[0] * self._scale[0]
        if self._settings.fold_reference:
            share = (cotangents[0] @ reference) / rows
            found, reference = found + share[:, None], torch.zeros_like(reference)
        matrix, effects = (found[:-1], found[-1]) if fixed else (found, torch.zeros_like(found[0]))
        return Projection(
            **self._side(0),
            nodes=nodes[0],
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
        self, compute: Callable[[Points], Tensor], miss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[int]]:
        """Compute with as many nodes as each text needs; measure; again, with more, where that was too few."""
        rule, tolerance = get_rule(self._settings.rule), self._settings.text_tolerance
        fixed = self._settings.steps
        nodes = [fixed] * len(self.texts) if fixed is not None else self._foresee(rule, tolerance)
        found = compute(Points.of([rule(n) for n in nodes], self._end))
        whole = (self._change.norm(dim=1) / self._size).tolist()
        while fixed is None:
            errors = miss(found).tolist()
            if not all(map(math.isfinite, errors)):
                raise ArithmeticError(
                    f"the path from reference {self._settings.reference!r} cannot be integrated at layer "
                    f"{self._settings.layer}: the encoder is not finite along it for {self.texts[0].text[:60]!r}"
                )
            short = [i for i, error in enumerate(errors) if error > tolerance and nodes[i] < rule.bound]
            if not short:
                break
            for i in short:
                # The error has come from ``whole``, at no nodes at all, to what it is: go on at that rate.
                if rule.order == math.inf:
                    growth = math.log(whole[i] / tolerance) / max(math.log(whole[i] / errors[i]), 0.1)
                else:
                    growth = (errors[i] / tolerance) ** (1 / rule.order)
                nodes[i] = min(rule.bound, math.ceil(nodes[i] * min(2, max(1.2, 1.05 * growth))) + 1)
            none = np.empty(0)
            rules = [rule(nodes[i]) if i in short else (none, none) for i in range(len(nodes))]
            found[short] = compute(Points.of(rules, self._end))[short]
        return found, nodes

    def _foresee(self, rule: Rule, tolerance: float) -> list[int]:
        """How many nodes each text will need, from plain passes along its path."""
        probes = [PathProbe(_numpy(a), _numpy(b)) for a, b in zip(self._start, self._end, strict=True)]
        nodes: list[int | None] = [None] * len(probes)
        while None in nodes:
            open_ = [i for i, n in enumerate(nodes) if n is None]
            missing = [probe.missing() if i in open_ else np.empty(0) for i, probe in enumerate(probes)]
            points = Points.of([(alpha, alpha) for alpha in missing], self._end)
            found = _numpy(jacobian.values(self._paths, points))
            for i, values in zip(open_, np.split(found, np.cumsum([len(missing[i]) for i in open_])[:-1]), strict=True):
                probes[i].add(values)
                nodes[i] = probes[i].nodes(rule, tolerance)
                if nodes[i] is None and probes[i].levels >= 128:
                    nodes[i] = probes[i].levels
        return [min(n, rule.bound) for n in nodes if n is not None]


def _numpy(tensor: Tensor) -> NDArray[np.floating]:
    return tensor.detach().cpu().numpy()

"""One text's embedding as a sum over its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whymatch.text import Span


@dataclass(frozen=True)
class Settings:
    """How a result came to be."""

    model: str
    layer: int
    reference: str
    fold_reference: bool
    similarity: str
    rule: str
    steps: int | None
    tolerance: float

    @property
    def text_tolerance(self) -> float:
        """The relative error that two embeddings may have for their product to stay within the tolerance."""
        return math.sqrt(1 + self.tolerance) - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """What a text brings to a pair, however it was derived."""

    text: str
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    truncated: bool
    embedding: NDArray[np.floating]  # (dim,) what the model's own ``encode`` gives
    reference: NDArray[np.floating]  # (dim,) the part of the embedding that belongs to no token; 0 when folded
    nodes: int
    mode: str  # how it was derived: forward, reverse, or reverse along the other side's rows (pairwise)
    settings: Settings


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition(Side):
    """A text's embedding as a sum: ``contributions.sum(0) + reference`` is ``embedding``, up to ``error``."""

    contributions: NDArray[np.floating]  # (tokens, dim)

    @property
    def error(self) -> float:
        """The length of what is missing, relative to the embedding's."""
        found = self.contributions.sum(0, dtype=np.float64) + self.reference
        missing = float(np.linalg.norm(found - self.embedding))
        return missing / (float(np.linalg.norm(self.embedding)) or 1.0)

    def folded(self) -> Decomposition:
        """The same with the reference given back to the tokens in equal shares, so that they alone sum up."""
        return replace(
            self,
            contributions=self.contributions + self.reference / len(self.tokens),
            reference=np.zeros_like(self.reference),
            settings=replace(self.settings, fold_reference=True),
        )

    def __repr__(self) -> str:
        return f"Decomposition({len(self.tokens)} tokens, error={self.error:.1e}, nodes={self.nodes}, {self.text!r})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Projection(Side):
    """A text's contributions, known only through their products with one other text's decomposition."""

    matrix: NDArray[np.floating]  # (the other's tokens, tokens)
    effects: NDArray[np.floating]  # (tokens,) products with the other's reference

"""One input's embedding as a sum over its tokens, or over groups of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whymatch.reading.pictures import Box, Image
from whymatch.reading.sides import Side
from whymatch.settings import Settings
from whymatch.shapley import Sampling
from whymatch.words import Span


@dataclass(frozen=True, eq=False, kw_only=True)
class Derived:
    """An input, its embedding and its reference: what a :class:`Decomposition` and a :class:`Projection` share.

    Attributes:
        side: the input's parts, and how they were derived.
        embedding: what the model's own ``encode`` returns.
        reference: the part of the embedding that belongs to no token; zero when it is folded into the tokens.
        settings: how the result was computed.
    """

    side: Side
    embedding: NDArray[np.floating]  # (dim,)
    reference: NDArray[np.floating]  # (dim,)
    settings: Settings

    @property
    def text(self) -> str:
        return self.side.text

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.side.tokens

    @property
    def offsets(self) -> tuple[Span, ...]:
        return self.side.offsets

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.side.kinds

    @property
    def boxes(self) -> tuple[Box, ...] | None:
        return self.side.boxes

    @property
    def image(self) -> Image | None:
        return self.side.image

    @property
    def truncated(self) -> bool:
        return self.side.truncated

    @property
    def unit(self) -> str:
        return self.side.unit

    @property
    def nodes(self) -> int:
        return self.side.nodes

    @property
    def mode(self) -> str:
        return self.side.mode


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition(Derived):
    """An embedding as a sum: ``contributions.sum(0) + reference`` is ``embedding``, up to ``error``.

    Attributes:
        contributions: what each token adds to the embedding.
        shares: how much of the reference each token takes when it is folded; one share per number where the embedding
            consists of several vectors.
        sampling: how far sampled contributions may be from the exact ones; None if nothing was sampled.
        vectors: which vectors take part in a score, where the embedding is several vectors in a row.
    """

    contributions: NDArray[np.floating]  # (tokens, dim)
    shares: NDArray[np.floating]  # (tokens,) or (tokens, dim)
    sampling: Sampling | None = None
    vectors: NDArray[np.bool_] | None = None

    @property
    def error(self) -> float:
        """The length of what is missing from the sum, relative to the embedding's."""
        total = self.contributions.sum(0, dtype=np.float64) + self.reference
        missing = float(np.linalg.norm(total - self.embedding))
        return missing / (float(np.linalg.norm(self.embedding)) or 1.0)

    @property
    def entry_error(self) -> float:
        """The largest estimated error of a token's contribution, relative to the embedding's length."""
        return float(self.side.errors.max(initial=0.0))

    def folded(self) -> Decomposition:
        """Give the reference back to the tokens, in equal shares, so that they alone sum to the embedding."""
        return replace(
            self,
            contributions=self.contributions
            + (self.shares if self.shares.ndim == 2 else self.shares[:, None]) * self.reference,
            reference=np.zeros_like(self.reference),
            settings=replace(self.settings, fold_reference=True),
        )

    def __repr__(self) -> str:
        size = f"{len(self.tokens)} {self.unit}s"
        return f"Decomposition({size}, error={self.error:.1e}, nodes={self.nodes}, {self.text!r:.60})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Projection(Derived):
    """An input's contributions, known only through their products with one other input's decomposition.

    Attributes:
        matrix: products with the other's contributions.
        effects: products with the other's reference.
    """

    matrix: NDArray[np.floating]  # (the other's tokens, tokens)
    effects: NDArray[np.floating]  # (tokens,)

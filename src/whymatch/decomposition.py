"""One input's embedding as a sum over its tokens, or other groups of what it consists of."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whymatch.picture import Box, Image
from whymatch.quadrature import get_rule
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


SIMILARITIES = ("cosine", "dot")


def check_settings(
    *,
    model: str,
    reference: str,
    fold_reference: bool,
    similarity: str,
    rule: str,
    steps: int | None,
    tolerance: float,
    least: float,
    layer: int = 0,
) -> Settings:
    """Settings that can be met by an encoder of that precision; otherwise an error that names the one that cannot."""
    most = get_rule(rule).most
    if steps is not None and (not is_int(steps) or not 1 <= steps <= most):
        raise ValueError(f"steps={steps!r} is not a number of nodes; give 1 to {most:,}, or None for the tolerance")
    if similarity not in SIMILARITIES:
        raise ValueError(f"similarity={similarity!r} is not known; choose 'cosine', 'dot' or None, the model's own")
    if not isinstance(tolerance, int | float) or not least <= tolerance <= 1:
        raise ValueError(
            f"tolerance={tolerance!r} cannot be met; give {least:.0e} to 1: the encoder's own arithmetic is no more "
            "exact than that"
        )
    return Settings(
        model=model,
        layer=layer,
        reference=reference,
        fold_reference=bool(fold_reference),
        similarity=similarity,
        rule=rule,
        steps=None if steps is None else int(steps),
        tolerance=float(tolerance),
    )


class ToleranceWarning(UserWarning):
    """A result misses the tolerance that was asked for; its ``error`` says by how much."""


def warn_missed(found: Sequence[tuple[float, int]], allowed: float, settings: Settings, what: str) -> bool:
    """One warning, however many results (their error and nodes) miss what is allowed; whether there was one."""
    missed = [(error, nodes) for error, nodes in found if not error <= allowed]
    if not missed or settings.steps is not None:
        return False
    worst, nodes = max(missed)
    bound = get_rule(settings.rule).bound
    cause = (
        f"at the bound of {bound} nodes; a deeper layer or a larger tolerance converges sooner"
        if nodes >= bound
        else f"although {nodes} nodes are enough: this is the rounding of the model's own scores"
    )
    warnings.warn(
        f"{len(missed)} of {len(found)} {what} miss tolerance={settings.tolerance:g}, the worst with an error of "
        f"{worst:.1e}, {cause}. Results are as they are",
        ToleranceWarning,
        stacklevel=4,
    )
    return True


def is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """What an input brings to a pair, however it was derived. Tuples have one entry per token, or per group."""

    text: str  # a picture's name
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    kinds: tuple[str, ...]  # "text", "special", "prompt", "patch", or "group" where an entry has several
    boxes: tuple[Box, ...] | None
    image: Image | None  # a picture for views
    truncated: bool
    unit: str  # what an entry is: a token, a word, a sentence, a span, a patch
    shares: NDArray[np.floating]  # how much of the reference each entry takes when it is folded: its tokens
    embedding: NDArray[np.floating]  # (dim,) what the model's own ``encode`` gives
    reference: NDArray[np.floating]  # (dim,) the part of the embedding that belongs to no token; 0 when folded
    nodes: int
    mode: str  # how it was derived: forward, reverse, or reverse along the other side's rows (pairwise)
    settings: Settings


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition(Side):
    """An embedding as a sum: ``contributions.sum(0) + reference`` is ``embedding``, up to ``error``."""

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
            contributions=self.contributions + self.shares[:, None] * self.reference,
            reference=np.zeros_like(self.reference),
            settings=replace(self.settings, fold_reference=True),
        )

    def __repr__(self) -> str:
        size = f"{len(self.tokens)} {self.unit}s"
        return f"Decomposition({size}, error={self.error:.1e}, nodes={self.nodes}, {self.text!r:.60})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Projection(Side):
    """A text's contributions, known only through their products with one other text's decomposition."""

    matrix: NDArray[np.floating]  # (the other's tokens, tokens)
    effects: NDArray[np.floating]  # (tokens,) products with the other's reference

"""Does an explanation predict what the model says when words are missing?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whymatch.quadrature import Floats
from whymatch.truth.asking import REMOVALS, UNITS, Model, seeded
from whymatch.truth.judging import judge
from whymatch.truth.results import Measure, Result, Row, mean_of, pearson, spearman
from whymatch.truth.subjects import Attribution, Subject, TextPair
from whymatch.words import shares

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KEPT = (0.2, 0.95)  # for each coalition, the probability of keeping a unit is drawn between these


@dataclass(frozen=True)
class Coalitions:
    """Random units of both texts are kept, the rest is removed; the prediction is compared with the model's score.

    Attributes:
        model: the model to ask.
        count: coalitions for each pair.
        units: ``"words"`` or ``"tokens"``.
        removal: ``"delete"``, or ``"mask"`` or ``"pad"``, which replace what is removed.
        seed: decides, with the texts, which units are kept.
    """

    model: Model
    count: int = 60
    units: str = "words"
    removal: str = "delete"
    seed: int = 0

    name = "coalitions"
    headline = "spearman"
    groups = None

    def __post_init__(self) -> None:
        if self.units not in UNITS:
            raise ValueError(f"units={self.units!r} is not known; choose {', '.join(map(repr, UNITS))}")
        if self.removal not in REMOVALS:
            raise ValueError(f"removal={self.removal!r} is not known; choose {', '.join(map(repr, REMOVALS))}")
        if self.count < 3:
            raise ValueError(f"count={self.count!r} coalitions have no order worth comparing; give 3 or more")

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"coalitions": self.count, "units": self.units, "removal": self.removal, "seed": self.seed, "kept": KEPT}

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {
            name: mean_of(name)
            for name in ("spearman", "r2", "r2_as_is", "spearman_by_cosine", "r2_by_cosine", "r2_by_cosine_as_is")
        }

    def texts(self, item: TextPair) -> TextPair:
        return item

    def measure(self, item: TextPair, attribution: Attribution) -> Row:
        """Compare predictions with the model's scores, for one pair."""
        units, kept, truth = self.ask(item)
        if len(truth) == 0:
            return {"coalitions": 0}
        rows = [
            _kept_rows(spans, each, keep)
            for spans, each, keep in zip((attribution.spans_a, attribution.spans_b), units, kept, strict=True)
        ]
        predicted = np.einsum("ci,ij,cj->c", rows[0], attribution.matrix, rows[1])
        row: Row = {"coalitions": len(truth), "units": [len(each) for each in units], **_agreement(predicted, truth)}
        vectors = attribution.vectors_a, attribution.vectors_b
        if vectors[0] is not None and vectors[1] is not None and self.model.similarity == "cosine":
            a, b = rows[0] @ vectors[0], rows[1] @ vectors[1]
            norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
            cosines = (a * b).sum(1) / np.maximum(norms, np.finfo(np.float64).tiny)
            by_cosine = _agreement(cosines, truth)
            row |= {
                "spearman_by_cosine": by_cosine["spearman"],
                "r2_by_cosine": by_cosine["r2"],
                "r2_by_cosine_as_is": by_cosine["r2_as_is"],
            }
        return row

    def ask(self, pair: TextPair) -> tuple[tuple[Any, Any], tuple[Any, Any], Floats]:
        """Draw coalitions of a pair, and ask the model about them: units, what is kept of them, and scores.

        There are none for a text without units, or where the model's answer is always the same.
        """
        units = tuple(self.model.units(text, self.units, side) for side, text in enumerate(pair))
        if not all(units) or max(map(len, units)) < 2:
            return units, ((), ()), np.zeros(0)  # type: ignore[return-value]
        kept = draw((len(units[0]), len(units[1])), self.count, self.seed, pair)
        truth = self.model.scores_kept(pair, units, kept, self.removal)  # type: ignore[arg-type]
        if np.ptp(truth) == 0:
            return units, ((), ()), np.zeros(0)  # type: ignore[return-value]
        return units, kept, truth  # type: ignore[return-value]


def draw(sizes: tuple[int, int], count: int, seed: int, pair: TextPair) -> tuple[np.ndarray, np.ndarray]:
    """Draw which units are kept: (coalitions, units) for each side; at least one is kept on each.

    What is drawn depends on the seed and the texts alone, and not on which other pairs there are.
    """
    rng = seeded(seed, pair)
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for _ in range(count):
        probability = rng.uniform(*KEPT)
        for side, size in zip(sides, sizes, strict=True):
            keep = rng.random(size) < probability
            while not keep.any():
                keep = rng.random(size) < probability
            side.append(keep)
    return np.stack(sides[0]), np.stack(sides[1])


def _kept_rows(spans: Sequence[Any], units: Sequence[Any], kept: np.ndarray) -> Floats:
    """Return (coalitions, pieces): how much of each piece is kept; pieces of no unit always are."""
    belongs = shares(spans, units)
    always = (belongs.sum(0) == 0).astype(np.float64)
    return np.asarray(np.asarray(kept, np.float64) @ belongs + always)


def _agreement(predicted: Floats, truth: Floats) -> dict[str, float]:
    """Compare predictions with the truth: by ranks, by a straight-line fit, and as they are.

    Predictions that are all the same agree with nothing: 0.
    """
    spread = float(((truth - truth.mean()) ** 2).sum())
    return {
        "spearman": spearman(predicted, truth),
        "r2": pearson(predicted, truth) ** 2,
        "r2_as_is": 1 - float(((truth - predicted) ** 2).sum()) / spread,
    }


def model_of(subject: Subject, model: Model | SentenceTransformer | None) -> Model:
    """Return the model that a test asks: the one that is given, or the explainer's own."""
    if isinstance(model, Model):
        return model
    own = getattr(subject, "model", None)
    if model is None and isinstance(own, Model):  # a baseline's
        return own
    settings = getattr(subject, "settings", None)
    similarity = getattr(settings, "similarity", None)
    if model is not None:
        return Model(model, similarity)
    encoder = getattr(subject, "encoder", own)
    if encoder is not None and settings is not None:
        return Model(encoder, similarity, getattr(settings, "model", None))
    raise ValueError(
        "this test asks the model about changed texts: give model=, a SentenceTransformer or a function from texts to "
        "embeddings"
    )


def coalitions(
    explainer: Subject,
    pairs: Sequence[TextPair],
    *,
    model: Model | SentenceTransformer | None = None,
    count: int = 60,
    units: str = "words",
    removal: str = "delete",
    seed: int = 0,
) -> Result:
    """Test whether an explanation predicts the model's score when some words of both texts are removed.

    Args:
        explainer: an Explainer, a baseline, or a function ``(a, b) -> matrix``.
        pairs: pairs of texts.
        model: the model to ask; None is the explainer's own.
        count: coalitions for each pair.
        units: what is removed: ``"words"`` or ``"tokens"``.
        removal: ``"delete"``, ``"mask"`` or ``"pad"``.
        seed: decides which units are kept.

    Returns:
        ``value`` is the mean over pairs of Spearman's correlation, over coalitions, between the sum of the entries that
        are kept and the model's score. Special tokens, prompts and templates are always kept.
    """
    test = Coalitions(model_of(explainer, model), count, units, removal, seed)
    return judge(test, explainer, list(pairs))

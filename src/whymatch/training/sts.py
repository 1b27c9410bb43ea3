"""How well a model's scores rank pairs as people do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whymatch.tables import Pairs

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def evaluate_sts(model: SentenceTransformer, pairs: Pairs, batch_size: int = 64) -> dict[str, float]:
    """Spearman's correlation, times 100, of people's scores with the cosine and with the dot product of embeddings."""
    texts = list(dict.fromkeys(text for pair in pairs.texts for text in pair))
    vectors: Any = model.encode(texts, batch_size=batch_size, show_progress_bar=False)
    place = {text: i for i, text in enumerate(texts)}
    a, b = (vectors[[place[pair[side]] for pair in pairs.texts]].astype(np.float64) for side in (0, 1))
    dot = (a * b).sum(1)
    cosine = dot / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
    return {name: 100 * _spearman(each, pairs, name) for name, each in (("cosine", cosine), ("dot", dot))}


def _spearman(scores: NDArray[np.float64], pairs: Pairs, by: str) -> float:
    from scipy.stats import spearmanr

    for whose, each in ((f"this model's scores by {by}", scores), ("people's scores", np.array(pairs.scores))):
        if np.ptp(each) == 0 or not np.isfinite(each).all():
            raise ArithmeticError(
                f"{whose} of the {len(pairs):,} pairs from {pairs.source} rank nothing: they are all the same, or no "
                "numbers"
            )
    return float(spearmanr(scores, pairs.scores)[0])

"""How well a model's scores rank pairs as people do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whymatch.tables import Pairs

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def evaluate_sts(model: SentenceTransformer, pairs: Pairs, batch_size: int = 64) -> dict[str, float]:
    """Spearman's correlation, times 100, of people's scores with the cosine and with the dot product of embeddings."""
    from scipy.stats import spearmanr

    texts = list(dict.fromkeys(text for pair in pairs.texts for text in pair))
    found: Any = model.encode(texts, batch_size=batch_size, show_progress_bar=False)
    place = {text: i for i, text in enumerate(texts)}
    a, b = (found[[place[pair[side]] for pair in pairs.texts]].astype(np.float64) for side in (0, 1))
    dot = (a * b).sum(1)
    cosine = dot / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
    return {name: 100 * float(spearmanr(each, pairs.scores)[0]) for name, each in (("cosine", cosine), ("dot", dot))}

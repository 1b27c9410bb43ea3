"""How well a model's scores rank pairs as people do."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from whymatch.corpus.pairs import Pairs

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def evaluate_sts(model: SentenceTransformer, pairs: Pairs, batch_size: int = 64) -> dict[str, float]:
    """Correlate a model's scores with people's.

    Returns:
        Spearman's correlation, times 100, by ``"cosine"`` and by ``"dot"`` product.
    """
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    if len(set(pairs.scores)) < 2:
        raise ArithmeticError(_unranked("people's scores", pairs))
    firsts, seconds = map(list, zip(*pairs.texts, strict=True))
    evaluate = EmbeddingSimilarityEvaluator(
        firsts, seconds, pairs.scores, batch_size, similarity_fn_names=["cosine", "dot"], write_csv=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's, about equal scores: they are an error below
        metrics = evaluate(model)
    correlations = {name: 100 * float(metrics[f"spearman_{name}"]) for name in ("cosine", "dot")}
    for name, correlation in correlations.items():
        if math.isnan(correlation):
            raise ArithmeticError(_unranked(f"this model's scores by {name}", pairs))
    return correlations


def _unranked(scores: str, pairs: Pairs) -> str:
    return (
        f"{scores} of the {len(pairs):,} pairs from {pairs.source} are all the same, or not numbers: they rank nothing"
    )

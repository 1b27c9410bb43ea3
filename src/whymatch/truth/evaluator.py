"""The suite as an evaluator of sentence-transformers, for training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from whymatch.explainer import Explainer
from whymatch.truth.asking import Model
from whymatch.truth.data import AlignedPair
from whymatch.truth.deletions import coalitions
from whymatch.truth.links import alignment
from whymatch.truth.subjects import TextPair


class TruthEvaluator(SentenceEvaluator):  # type: ignore[misc]  # which is not typed
    """Measures during a training run how far explanations of the model can be believed.

        trainer = SentenceTransformerTrainer(model, evaluator=TruthEvaluator(pairs), ...)

    Args:
        pairs: pairs of texts, for the test of coalitions; a dozen are enough for a trend.
        aligned_pairs: pairs with people's links, for the test of alignment.
        settings: keyword arguments of the explainer.
        name: stands before the names of the metrics.
        count: coalitions for each pair.
        seed: decides which words are removed.
    """

    def __init__(
        self,
        pairs: Sequence[TextPair] = (),
        aligned_pairs: Sequence[AlignedPair] = (),
        *,
        settings: Mapping[str, Any] | None = None,
        name: str = "",
        count: int = 60,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not pairs and not aligned_pairs:
            raise ValueError("an evaluator needs pairs, aligned_pairs, or both")
        self.pairs, self.aligned_pairs = list(pairs), list(aligned_pairs)
        self.settings, self.name, self.count, self.seed = dict(settings or {}), name, count, seed
        metric = "coalitions_spearman" if self.pairs else "alignment_top1"
        self.primary_metric = f"{name}_{metric}" if name else metric

    def __call__(
        self, model: Any, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the metrics of the model as it is now; nothing is written to ``output_path``."""
        del output_path
        explainer = Explainer(model, **self.settings)
        # What suits the model may change while it is trained, and its numbers should stay comparable.
        for name in ("special", "divisions"):
            self.settings.setdefault(name, getattr(explainer.settings, name))
        metrics: dict[str, float] = {}
        if self.pairs:
            asked = Model(model, explainer.settings.similarity)
            result = coalitions(explainer, self.pairs, model=asked, count=self.count, seed=self.seed)
            metrics["coalitions_spearman"] = result.value
        if self.aligned_pairs:
            metrics["alignment_top1"] = alignment(explainer, self.aligned_pairs).value
        metrics = self.prefix_name_to_metrics(metrics, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

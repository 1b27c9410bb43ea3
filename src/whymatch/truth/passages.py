"""Does the sentence that answers a question get the most of the score?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whymatch.quadrature import Floats
from whymatch.truth.asking import Model
from whymatch.truth.data import Question
from whymatch.truth.deletions import model_of
from whymatch.truth.judging import judge
from whymatch.truth.results import Measure, Result, Row, mean_of
from whymatch.truth.subjects import Attribution, Subject, TextPair
from whymatch.words import sentence_spans, shares, word_spans

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Answers:
    """Sentences of a paragraph, ranked by what they add to the paragraph's score with a question.

    ``mrr`` is the mean reciprocal rank of the sentence with the answer; ``mrr_per_word`` divides what a sentence adds
    by its length. ``mrr_alone`` ranks sentences by the model's score of each alone: it needs one pass per sentence
    and explains nothing. ``mrr_chance`` is that of a random order.
    """

    model: Model

    name = "answers"
    headline = "mrr"
    groups = "sentences"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    @property
    def measures(self) -> Mapping[str, Measure]:
        names = ("mrr", "mrr_per_word", "mrr_alone", "mrr_chance", "first", "first_alone")
        return {name: mean_of(name) for name in names}

    def texts(self, item: Question) -> TextPair:
        return item.question, item.context

    def measure(self, item: Question, attribution: Attribution) -> Row:
        sentences = sentence_spans(item.context)
        right = next((i for i, (low, high) in enumerate(sentences) if low <= item.place < high), None)
        if right is None or len(sentences) < 2:
            return {"sentences": len(sentences)}
        sums = shares(attribution.spans_b, sentences) @ attribution.matrix.sum(0)
        words = np.array([max(1, len(word_spans(item.context[low:high]))) for low, high in sentences])
        alone = self.model.remember(["alone", item.question, item.context], lambda: self._alone(item, sentences))
        ranks = {"mrr": rank(sums, right), "mrr_per_word": rank(sums / words, right)}
        ranks["mrr_alone"] = rank(np.array(alone), right)
        return {
            "sentences": len(sentences),
            **{name: 1 / place for name, place in ranks.items()},
            "mrr_chance": float(np.mean(1 / np.arange(1, len(sentences) + 1))),
            "first": float(ranks["mrr"] == 1),
            "first_alone": float(ranks["mrr_alone"] == 1),
        }

    def _alone(self, item: Question, sentences: Sequence[Any]) -> list[float]:
        texts = [item.context[low:high] for low, high in sentences]
        question = self.model.embed([item.question], 0)
        return [float(score) for score in self.model.compare(question, self.model.embed(texts, 1))]


def rank(values: Floats, which: int) -> int:
    """Return the place of one value among all, from 1 for the largest; of equal ones it is the last."""
    return int((values >= values[which]).sum())


def answers(
    explainer: Subject, questions: Sequence[Question], *, model: Model | SentenceTransformer | None = None
) -> Result:
    """Test whether the sentence that answers a question gets the most of the paragraph's score.

    Args:
        explainer: an Explainer, a baseline, or a function ``(a, b) -> matrix``.
        questions: questions with paragraphs; see :func:`whymatch.truth.read_questions`.
        model: the model that scores single sentences; None is the explainer's own.

    Returns:
        ``value`` is the mean reciprocal rank of the sentence with the answer.
    """
    return judge(Answers(model_of(explainer, model)), explainer, list(questions))

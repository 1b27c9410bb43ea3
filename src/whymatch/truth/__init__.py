"""Which explanations to believe: tests against the model itself and against people, baselines, and a report."""

from typing import TYPE_CHECKING

from whymatch import lazy

if TYPE_CHECKING:
    from whymatch.truth.advice import Advice, advise
    from whymatch.truth.asking import Model
    from whymatch.truth.chunking import chunks
    from whymatch.truth.controls import sanity
    from whymatch.truth.curves import insertion_deletion
    from whymatch.truth.data import (
        AlignedPair,
        ChunkedPair,
        Question,
        read_aligned,
        read_chunked,
        read_pairs,
        read_questions,
    )
    from whymatch.truth.deletions import coalitions
    from whymatch.truth.evaluator import TruthEvaluator
    from whymatch.truth.links import alignment
    from whymatch.truth.passages import answers
    from whymatch.truth.results import Estimate, Result
    from whymatch.truth.subjects import Attribution

__all__ = [
    "Advice",
    "AlignedPair",
    "Attribution",
    "ChunkedPair",
    "Estimate",
    "Model",
    "Question",
    "Result",
    "TruthEvaluator",
    "advise",
    "alignment",
    "answers",
    "chunks",
    "coalitions",
    "insertion_deletion",
    "read_aligned",
    "read_chunked",
    "read_pairs",
    "read_questions",
    "sanity",
]

__getattr__, __dir__ = lazy.attributes(
    __name__,
    {
        "advise": "whymatch.truth.advice",
        "TruthEvaluator": "whymatch.truth.evaluator",
        "Advice": "whymatch.truth.advice",
        "AlignedPair": "whymatch.truth.data",
        "Attribution": "whymatch.truth.subjects",
        "ChunkedPair": "whymatch.truth.data",
        "Estimate": "whymatch.truth.results",
        "Model": "whymatch.truth.asking",
        "Question": "whymatch.truth.data",
        "Result": "whymatch.truth.results",
        "alignment": "whymatch.truth.links",
        "answers": "whymatch.truth.passages",
        "chunks": "whymatch.truth.chunking",
        "coalitions": "whymatch.truth.deletions",
        "insertion_deletion": "whymatch.truth.curves",
        "read_aligned": "whymatch.truth.data",
        "read_chunked": "whymatch.truth.data",
        "read_pairs": "whymatch.truth.data",
        "read_questions": "whymatch.truth.data",
        "sanity": "whymatch.truth.controls",
    },
)

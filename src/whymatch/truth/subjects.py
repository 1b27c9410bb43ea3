"""What is judged: anything that explains a pair of texts, in one form.

A subject is an :class:`whymatch.Explainer`; an object with ``decompose`` whose results have ``offsets``,
``contributions`` and ``embedding``; an object with ``explain``; or a plain function ``(a, b) -> matrix``, whose rows
and columns are the words of the texts, as :func:`whymatch.words.word_spans` finds them. A function that works on other
pieces returns an :class:`Attribution`, which says where in the texts they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any, TypeAlias

import numpy as np

from whymatch.quadrature import Floats
from whymatch.results.explanation import Explanation
from whymatch.settings import SIMILARITIES
from whymatch.words import Span, quote, shares, word_spans

Subject: TypeAlias = Any  # see above
TextPair: TypeAlias = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Attribution:
    """What each piece of one text with each piece of another adds to their score.

    Attributes:
        matrix: the values.
        spans_a, spans_b: the characters that each row and column stands for; (0, 0) for pieces of neither text, such
            as special tokens.
        vectors_a, vectors_b: what each piece adds to its text's embedding, where that is known.
        error: how far the sum of the values is from the score, relative to its scale, where that is known.
    """

    matrix: Floats
    spans_a: Sequence[Span]
    spans_b: Sequence[Span]
    vectors_a: Floats | None = None
    vectors_b: Floats | None = None
    error: float | None = None

    def __post_init__(self) -> None:
        expected = (len(self.spans_a), len(self.spans_b))
        if np.shape(self.matrix) != expected:
            raise ValueError(f"a matrix of {np.shape(self.matrix)} does not fit the {expected} pieces of its texts")
        if not np.isfinite(self.matrix).all():
            raise ValueError("a matrix has entries that are not numbers")

    def over(self, units_a: Sequence[Span], units_b: Sequence[Span]) -> Floats:
        """Return the matrix over units of the texts, words for example; pieces of neither text are left out."""
        return np.asarray(shares(self.spans_a, units_a) @ self.matrix @ shares(self.spans_b, units_b).T)


def attribute(subject: Subject, pairs: Sequence[TextPair], groups: str | None = None) -> list[Attribution]:
    """Explain pairs; a subject that decomposes texts does so once for each text.

    Args:
        groups: ``"sentences"`` where larger pieces than tokens will do; a subject that can makes use of it.
    """
    # Of encoders with several vectors for a text, a pair is not the product of its two decompositions.
    if hasattr(subject, "decompose") and similarity_of(subject) in SIMILARITIES:
        return _by_decomposition(subject, pairs, groups)
    call = subject.explain if hasattr(subject, "explain") else subject
    if not callable(call):
        raise TypeError(
            f"{subject!r:.60} cannot be judged: give an Explainer, an object with decompose or explain, or a function "
            "(a, b) -> matrix"
        )
    return [_from_answer(call(a, b), a, b) for a, b in pairs]


def similarity_of(subject: Subject) -> str:
    """Return how a subject compares embeddings: by cosines, unless its settings say otherwise."""
    settings = getattr(subject, "settings", None)
    known = settings.get("similarity") if isinstance(settings, dict) else getattr(settings, "similarity", None)
    return str(known or "cosine")


def _by_decomposition(subject: Any, pairs: Sequence[TextPair], groups: str | None) -> list[Attribution]:
    grouped = groups is not None and "groups" in signature(subject.decompose).parameters
    tasks = ("query", "document") if getattr(subject, "asymmetric", False) else (None, None)
    known: dict[tuple[str, str | None], Any] = {}
    for task in dict.fromkeys(tasks):
        texts = list(dict.fromkeys(pair[side] for pair in pairs for side in (0, 1) if tasks[side] == task))
        options = ({} if task is None else {"task": task}) | ({"groups": groups} if grouped else {})
        decompositions = subject.decompose(texts, **options)
        known.update({(text, task): each for text, each in zip(texts, decompositions, strict=True)})
    similarity = similarity_of(subject)
    return [_combine(known[a, tasks[0]], known[b, tasks[1]], similarity) for a, b in pairs]


def _combine(a: Any, b: Any, similarity: str) -> Attribution:
    rows_a, rows_b = (np.asarray(each.contributions, np.float64) for each in (a, b))
    norms = 1.0 if a.embedding is None else float(np.linalg.norm(a.embedding) * np.linalg.norm(b.embedding)) or 1.0
    scale = 1.0 if similarity == "dot" else norms
    error, settings = None, getattr(a, "settings", None)
    if settings is not None and settings.fold_reference:
        score = float(np.dot(np.asarray(a.embedding, np.float64), np.asarray(b.embedding, np.float64)))
        error = abs(float(rows_a.sum(0) @ rows_b.sum(0)) - score) / norms
    return Attribution(rows_a @ rows_b.T / scale, a.offsets, b.offsets, rows_a, rows_b, error)


def _from_answer(answer: Any, a: str, b: str) -> Attribution:
    if isinstance(answer, Attribution):
        return answer
    if isinstance(answer, Explanation):
        return Attribution(answer.matrix, answer.offsets_a, answer.offsets_b, error=answer.relative_error)
    matrix = np.asarray(answer, np.float64)
    words_a, words_b = word_spans(a), word_spans(b)
    if matrix.shape != (len(words_a), len(words_b)):
        raise ValueError(
            f"a function that is judged gave a matrix of {matrix.shape} for texts of {len(words_a)} and {len(words_b)} "
            f"words: return one entry for each pair of words, or an Attribution: {quote(a)}, {quote(b)}"
        )
    return Attribution(matrix, words_a, words_b)


def describe(subject: Subject) -> dict[str, Any]:
    """Return the settings of a subject, as results keep them; its ``"subject"`` is a short name."""
    settings = getattr(subject, "settings", None)
    if settings is None:
        name = getattr(subject, "name", None) or getattr(subject, "__name__", type(subject).__name__)
        return {"subject": str(name)}
    values = dict(settings) if isinstance(settings, dict) else asdict(settings)
    return {"subject": name_of(values), **values} if "subject" not in values else values


def name_of(settings: dict[str, Any]) -> str:
    """Name an explainer's settings in a few words, leaving out the usual ones."""
    parts = [f"{settings['path']} {settings['layer']}"]
    if settings["reference"] != "pad":
        parts.append(f"from {settings['reference']!r}")
    if not settings["fold_reference"]:
        parts.append("unfolded")
    known = {"model", "layer", "reference", "fold_reference", "path", "similarity", "rule", "steps", "tolerance"}
    parts += [
        f"{name}={value}"
        for name, value in settings.items()
        if name not in known | {"blocks", "trust_remote_code", "base"} and value not in (None, False, "keep")
    ]
    return ", ".join(parts)

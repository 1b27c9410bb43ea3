"""Why one document scores higher than another: the gap between two scores as an exact sum over the query's words."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whymatch.files import write_json
from whymatch.frames import to_frame
from whymatch.quadrature import Floats
from whymatch.reading.sides import Side
from whymatch.results.decomposition import Decomposition
from whymatch.results.explanation import Explanation
from whymatch.results.highlights import COARSER, Highlights, Part, Unit, parts_of
from whymatch.settings import check_top

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT, VERSION = "whymatch.contrast", 1


class Share(NamedTuple):
    """A word, and its part of a sum."""

    word: str
    value: float


@dataclass(frozen=True, eq=False)
class Background:
    """The mean of the embeddings of a sample of documents: what a usual document looks like.

    The score of a query with it is the mean of the query's scores with those documents.

    Attributes:
        mean: of the embeddings; where scores are cosines, of the embeddings divided by their lengths.
        count: how many documents there were.
    """

    mean: NDArray[np.floating]  # (dim,)
    count: int

    @classmethod
    def of(cls, vectors: NDArray[np.floating], similarity: str) -> Background:
        """Take the mean of embeddings (documents, dim)."""
        rows = np.asarray(vectors, np.float64)
        if similarity == "cosine":
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return cls(rows.mean(0), len(rows))

    @property
    def name(self) -> str:
        return f"the mean of {self.count:,} documents"


@dataclass(frozen=True, eq=False, kw_only=True)
class Contrast:
    """Why a query scores higher, or lower, with one document than with another.

    ``score_a − score_b`` is the sum over the query's words of what the first document gives the word minus what the
    second does, up to ``error``. Each document's own words sum to its score.

    Attributes:
        query: the query.
        parts: the query's words; what the model adds to it, which has no characters, is the last of them.
        values_a, values_b: what each document contributes to each of them.
        score_a, score_b: the two scores, as the model itself gives them.
        a: the first document's words.
        b: the second document's words; None where it is a background, which has none.
        name_a, name_b: what to call the documents.
        model: the name of the model.
    """

    query: str
    parts: tuple[Part, ...]
    values_a: Floats
    values_b: Floats
    score_a: float
    score_b: float
    a: Highlights
    b: Highlights | None
    name_a: str = "first"
    name_b: str = "second"
    model: str = ""

    @classmethod
    def of(cls, first: Explanation, second: Explanation, name_a: str = "first", name_b: str = "second") -> Contrast:
        """Contrast the explanations of two pairs with one query, which is their first text."""
        for why in (first, second):
            if not why.sums_to_score:
                raise ValueError("means over words do not sum to the score, and cannot be contrasted")
        if first.a.text != second.a.text or first.a.tokens != second.a.tokens:
            raise ValueError(
                f"a contrast has one query: these explanations have {first.a.text!r:.60} and {second.a.text!r:.60}"
            )
        if first.settings.similarity != second.settings.similarity or first.model != second.model:
            raise ValueError("a contrast has one model and one similarity, and these explanations differ in them")
        totals = [_give(why.a, why.totals("a"), why.beside("a")) for why in (first, second)]
        (parts, values_a), (_, values_b) = totals
        return cls(
            query=first.a.text,
            parts=parts,
            values_a=values_a,
            values_b=values_b,
            score_a=first.score,
            score_b=second.score,
            a=first.highlights("b", unit=_unit(first.b)),
            b=second.highlights("b", unit=_unit(second.b)),
            name_a=name_a,
            name_b=name_b,
            model=first.model,
        )

    @classmethod
    def with_background(
        cls, why: Explanation, query: Decomposition, background: Background, name: str = "first"
    ) -> Contrast:
        """Contrast a document with a background: how much more than usual it contributes to the query's words.

        Args:
            why: explains the query and the document.
            query: the same query, decomposed into the same parts.
            background: what is usual.
            name: what to call the document.
        """
        if why.a.tokens != query.tokens:
            raise ValueError(f"the explanation and the decomposition of {query.text!r:.60} have other parts")
        parts, values_a = _give(why.a, why.totals("a"), why.beside("a"))
        _, values_b, usual = _give_vector(query, background.mean, normalize=False)
        return cls(
            query=why.a.text,
            parts=parts,
            values_a=values_a,
            values_b=values_b,
            score_a=why.score,
            score_b=usual,
            a=why.highlights("b", unit=_unit(why.b)),
            b=None,
            name_a=name,
            name_b=background.name,
            model=why.model,
        )

    @property
    def difference(self) -> float:
        """The first score minus the second."""
        return self.score_a - self.score_b

    @property
    def values(self) -> Floats:
        """What the first document gives each of the query's words minus what the second does."""
        return self.values_a - self.values_b

    @property
    def error(self) -> float:
        """How far the sum over the query's words is from the difference; measured."""
        return abs(self.difference - math.fsum(self.values))

    @property
    def by_query_word(self) -> list[Share]:
        """The query's words in order, each with its part of the difference."""
        return [Share(part.text, float(value)) for part, value in zip(self.parts, self.values, strict=True)]

    @property
    def by_word_a(self) -> list[Share]:
        """The first document's words; they sum to its score."""
        return _shares(self.a)

    @property
    def by_word_b(self) -> list[Share]:
        """The second document's words; they sum to its score. A background has none."""
        return _shares(self.b)

    def decisive(self, share: float = 0.8, most: int = 3) -> list[Share]:
        """Return the fewest words, at most so many, that make up this share of what speaks for the difference."""
        sign = 1 if self.difference >= 0 else -1
        ordered = sorted(self.by_query_word, key=lambda each: -sign * each.value)
        wanted = share * math.fsum(max(0.0, sign * each.value) for each in ordered)
        words: list[Share] = []
        for each in ordered[:most]:
            if sign * each.value <= 0 or sign * math.fsum(word.value for word in words) >= wanted:
                break
            words.append(each)
        return words

    def __repr__(self) -> str:
        words = ", ".join(f"{share.word} {share.value:+.3f}" for share in self.decisive())
        return f"Contrast(difference={self.difference:+.4f}, error={self.error:.1e}, decided by {words or 'no word'})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers."""
        rows = zip(self.parts, self.values, self.values_a, self.values_b, strict=True)
        return {
            "format": FORMAT,
            "version": VERSION,
            "query": self.query,
            "model": self.model,
            "difference": self.difference,
            "error": self.error,
            "score_a": self.score_a,
            "score_b": self.score_b,
            "name_a": self.name_a,
            "name_b": self.name_b,
            "by_query_word": [
                {
                    "word": part.text,
                    "start": part.start,
                    "end": part.end,
                    "value": float(value),
                    "a": float(a),
                    "b": float(b),
                }
                for part, value, a, b in rows
            ],
            "a": self.a.to_dict(),
            "b": None if self.b is None else self.b.to_dict(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON; the file is either complete or absent."""
        write_json(path, self.to_dict())

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each of the query's words."""
        rows = self.to_dict()["by_query_word"]
        return to_frame(rows, ["word", "start", "end", "value", "a", "b"])

    def plot(self, ax: Axes | None = None, top: int | None = None) -> tuple[Figure, Axes]:
        """Draw a bar for each of the query's words: to the right for the first document, to the left for the second.

        Args:
            ax: where to draw; None makes a figure.
            top: only so many of the words, those that say most; the others are one bar.
        """
        from whymatch.views import figures

        return figures.contrast(self, ax, None if top is None else check_top(top, what="words"))

    def to_html(self) -> str:
        """Return a self-contained page."""
        from whymatch.views.page import contrast_page

        return contrast_page(self)

    def _repr_html_(self) -> str:
        from whymatch.views.page import contrast_page, frame

        return frame(contrast_page(self), 34)


def contrast_vectors(
    query: Decomposition,
    first: tuple[NDArray[np.floating], Highlights],
    second: tuple[NDArray[np.floating], Highlights] | Background,
    name_a: str,
    name_b: str,
) -> Contrast:
    """Contrast two documents by their embeddings and the query's decomposition; their own words are given.

    Args:
        query: decomposed.
        first: the embedding and the words of the first document.
        second: the same of the second, or a background.
        name_a, name_b: what to call them.
    """
    values, scores = [], []
    for each in (first, second):
        usual = isinstance(each, Background)
        vector = each.mean if isinstance(each, Background) else each[0]
        parts, given, score = _give_vector(query, vector, normalize=not usual)
        values.append(given)
        scores.append(score)
    return Contrast(
        query=query.text,
        parts=parts,
        values_a=values[0],
        values_b=values[1],
        score_a=scores[0],
        score_b=scores[1],
        a=first[1],
        b=None if isinstance(second, Background) else second[1],
        name_a=name_a,
        name_b=name_b,
        model=query.settings.model,
    )


def describe_background(query: Decomposition, background: Background) -> dict[str, Any]:
    """Return what a background contributes to each part of a query, in plain values for a page of hits."""
    totals, beside, score = _totals(query, background.mean, normalize=False)
    return {"name": background.name, "score": score, "totals": totals.tolist(), "beside": beside}


def _give_vector(
    query: Decomposition, vector: NDArray[np.floating], normalize: bool
) -> tuple[tuple[Part, ...], Floats, float]:
    """Return what an embedding contributes to each of the query's words, and the score."""
    totals, beside, score = _totals(query, vector, normalize)
    parts, values = _give(query.side, totals, beside)
    return parts, values, score


def _totals(query: Decomposition, vector: NDArray[np.floating], normalize: bool) -> tuple[Floats, float, float]:
    """Return what an embedding contributes to each part of the query, what belongs to none of them, and the score."""
    direction = np.asarray(vector, np.float64)
    own = np.asarray(query.embedding, np.float64)
    if query.settings.similarity == "cosine":
        tiny = np.finfo(np.float64).tiny
        direction = direction / max(float(np.linalg.norm(own)), tiny)
        if normalize:  # a background is the mean of embeddings that have been divided by their lengths already
            direction = direction / max(float(np.linalg.norm(vector)), tiny)
    totals = np.asarray(query.contributions, np.float64) @ direction
    return totals, float(np.asarray(query.reference, np.float64) @ direction), float(own @ direction)


def _give(side: Side, totals: Floats, beside: float) -> tuple[tuple[Part, ...], Floats]:
    """Sum over the query's words; what belongs to none of them is the last."""
    parts = parts_of(side, _unit(side))
    values = [math.fsum(totals[i] for i in part.members) for part in parts]
    if parts[-1].end > parts[-1].start:
        if beside == 0:
            return tuple(parts), np.array(values)
        parts.append(Part(0, 0, "", ()))
        values.append(0.0)
    values[-1] += beside
    return tuple(parts), np.array(values)


def _unit(side: Side) -> Unit:
    return "sentences" if side.unit in COARSER else "words"


def _shares(highlights: Highlights | None) -> list[Share]:
    return [Share(span.text, span.score) for span in (highlights or ())]


def pick_hits(hits: Sequence[Any], first: int, second: int) -> tuple[Any, Any]:
    """Return two hits by their ranks, which count from 1."""
    for rank in (first, second):
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= len(hits):
            raise ValueError(f"there is no hit {rank!r:.20}: ranks are 1 to {len(hits)}")
    return hits[first - 1], hits[second - 1]

"""Documents ranked for a query, each hit with the reason for its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whymatch.files import write_json
from whymatch.frames import to_frame
from whymatch.reading.inputs import Value, check_input
from whymatch.results.contrast import Background, Contrast, pick_hits
from whymatch.results.decomposition import Decomposition
from whymatch.results.explanation import Explanation
from whymatch.results.highlights import COARSER, Highlights, Unit, read_end
from whymatch.settings import MAXSIM
from whymatch.words import Span, quote

FORMAT, VERSION = "whymatch.ranking", 2
SAME = 0.999  # the least cosine of a stored vector with the encoder's own: what rounding to 16 or 8 bits leaves

FIELDS = ("id", "title", "text", "metadata")


@dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
        text: what the model reads; for a model that reads pictures, also a Pillow image or a path.
        id: what its owner calls it.
        title: what is shown above its text. The model does not read it.
        metadata: whatever else is known about it; returned with each hit.
    """

    text: Value
    id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """Its title, or its id."""
        return self.title or self.id

    @classmethod
    def of(cls, value: Any) -> Document:
        """Make a document of a text, or of a dict with a text and possibly an id, a title and metadata.

        Keys of other names are metadata.
        """
        if isinstance(value, Document):
            return value
        if not isinstance(value, Mapping):
            return cls(check_input(value))
        if "text" not in value:
            raise ValueError(f"this document has no 'text': {quote(dict(value), 80)}")
        metadata = value.get("metadata")
        if metadata is not None and not isinstance(metadata, Mapping):
            kind = type(metadata).__name__
            raise TypeError(f"the metadata of a document must be a dict, not {kind}: {quote(metadata)}")
        title, name = value.get("title"), value.get("id")
        if title is not None and not isinstance(title, str):
            raise TypeError(f"the title of a document must be a str, not {type(title).__name__}: {quote(title)}")
        if isinstance(name, bool) or not isinstance(name, str | int | None):
            raise TypeError(f"the id of a document must be a str, not {type(name).__name__}: {quote(name)}")
        others = {key: each for key, each in value.items() if key not in FIELDS}
        return cls(
            check_input(value["text"]), None if name is None else str(name), title, {**others, **(metadata or {})}
        )

    def hit(
        self, rank: int, index: int, score: float, explain: Callable[[], Explanation], text: str | None = None
    ) -> Hit:
        """Return the document as a hit; ``text`` is the name of a picture."""
        return Hit(
            rank=rank,
            index=index,
            score=score,
            text=self.text if text is None else text,
            explain=explain,
            id=self.id,
            title=self.title,
            metadata=self.metadata,
        )


class Answer(NamedTuple):
    """A word of a document, and the query word that it matched.

    ``value`` is what the pair of the two words adds to the score. ``total`` is what the document's word adds with the
    whole query. The query word is the one whose pair contributes most in the direction of the total.
    """

    word: str
    value: float
    query_word: str
    span: Span
    total: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Hit:
    """One document of a ranking.

    Attributes:
        rank: its place, from 1.
        index: its place among the documents that were searched, from 0.
        score: what the model itself gives it.
        text: what the model read.
        id, title, metadata: what its owner gave with the text.
        explain: computes its explanation when it is first accessed.
    """

    rank: int
    index: int
    score: float
    text: str
    explain: Callable[[], Explanation] = field(repr=False)
    id: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def explanation(self) -> Explanation:
        """Why the document has its score."""
        return self.explain()

    @property
    def name(self) -> str:
        """What to call it in a list: its title, its id, or how it begins."""
        return self.title or self.id or " ".join(self.text.split())[:80]

    def highlights(self, unit: Unit = "words", top: int | None = None) -> Highlights:
        """Return the document's spans and what each adds to the score; they sum to the score."""
        why = self.explanation
        return why.highlights("b", "sentences" if unit == "words" and why.b.unit in COARSER else unit, top)

    def answers(self, k: int | None = None) -> list[Answer]:
        """Return the document's strongest words, each with the query's word that it matched best."""
        why = self.explanation
        words = why.words() if "token" in why.units else why
        totals = words.matrix.sum(0)
        query = words.a.content or range(len(words.a))
        answers = []
        for j in words.b.content:
            sign = -1 if totals[j] < 0 else 1
            best = max(query, key=lambda i, j=j, sign=sign: sign * words.matrix[i, j])
            value, total = float(words.matrix[best, j]), float(totals[j])
            answers.append(Answer(words.b.tokens[j], value, words.a.tokens[best], words.b.offsets[j], total))
        return sorted(answers, key=lambda answer: -abs(answer.total))[:k]

    def to_dict(self, explanation: bool = True) -> dict[str, Any]:
        """Return plain lists, strings and numbers."""
        return {
            "rank": self.rank,
            "index": self.index,
            "id": self.id,
            "title": self.title,
            "metadata": self.metadata,
            "score": self.score,
            "text": self.text,
            "read": read_end(self.explanation.b),
            "highlights": self.highlights().to_list(),
            "answers": [answer._asdict() for answer in self.answers()],
            **({"explanation": self.explanation.to_dict()} if explanation else {}),
        }


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """The best documents for a query, in order.

    Attributes:
        query: the query.
        hits: the documents.
        searched: how many documents there were.
        decomposition: the query's embedding as a sum over its tokens.
        background: the mean of the documents that were searched, or of a sample of them.
    """

    query: str
    hits: tuple[Hit, ...]
    searched: int
    decomposition: Decomposition | None = field(default=None, repr=False)
    background: Background | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.hits)

    def __repr__(self) -> str:
        hits = ", ".join(f"{hit.score:.4f} {quote(hit.name, 40)}" for hit in self.hits[:3])
        more = ", …" if len(self.hits) > 3 else ""
        return f"Ranking(best {len(self)} of {self.searched} for {quote(self.query, 40)}: {hits}{more})"

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __getitem__(self, i: int) -> Hit:
        return self.hits[i]

    def contrast(self, first: int, second: int | Literal["background"]) -> Contrast:
        """Say why one hit is above, or below, another: an exact sum over the query's words.

        Args:
            first: the rank of a hit, from 1.
            second: the rank of another, or ``"background"``, the mean of the documents that were searched: how far the
                hit is above the usual.
        """
        if second != "background":
            one, other = pick_hits(self.hits, first, second)
            return Contrast.of(one.explanation, other.explanation, _label(one), _label(other))
        (hit, _), background = pick_hits(self.hits, first, first), self.background
        if background is None or self.decomposition is None:
            raise ValueError("this ranking has no background: its model gives several vectors, or it has hits alone")
        return Contrast.with_background(hit.explanation, self.decomposition, background, _label(hit))

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers."""
        hits = [hit.to_dict() for hit in self.hits]
        return {"format": FORMAT, "version": VERSION, "query": self.query, "searched": self.searched, "hits": hits}

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each hit."""
        columns = ["rank", "index", "id", "title", "score", "text", "metadata"]
        return to_frame([{name: getattr(hit, name) for name in columns} for hit in self.hits], columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON; the file is either complete or absent."""
        write_json(path, self.to_dict())

    def to_html(self) -> str:
        """Return one self-contained page, hit by hit."""
        from whymatch.views.page import ranking_page

        return ranking_page(self)

    def _repr_html_(self) -> str:
        from whymatch.views.page import frame, ranking_page

        return frame(ranking_page(self))


def _label(hit: Hit) -> str:
    """What to call a hit beside another."""
    return f"{hit.rank}. {hit.title or hit.id}" if hit.title or hit.id else f"hit {hit.rank}"


def scores_of(query: NDArray[np.floating], vectors: NDArray[np.floating], similarity: str) -> NDArray[np.floating]:
    """Return the cosine, dot product or MaxSim of a query's embedding with each of the vectors."""
    if similarity in MAXSIM:
        best = [(query @ each.T).max(1).sum() for each in vectors]
        return np.asarray(best) / (len(query) if similarity == "meanmaxsim" else 1)
    products = vectors @ query
    if similarity == "dot":
        return np.asarray(products)
    return np.asarray(products / lengths_of(vectors) / lengths_of(query[None])[0])


def lengths_of(vectors: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the lengths of vectors, never zero, so that they can be divided by."""
    return np.asarray(np.maximum(np.linalg.norm(vectors, axis=-1), np.finfo(vectors.dtype).tiny))


def differ(stored: Any, own: NDArray[np.floating]) -> str | None:
    """Say how a stored vector differs from the one that an encoder gives; None if it is the same but for rounding."""
    vector = np.asarray(stored, np.float64).ravel()
    if vector.shape != own.shape:
        return f"it has {vector.size} dimensions, and the encoder's {own.size}"
    lengths = float(np.linalg.norm(vector) * np.linalg.norm(own))
    cosine = float(vector @ own) / lengths if lengths else float(not vector.any() and not own.any())
    return None if cosine >= SAME else f"their cosine is {cosine:.3f}"


def top_of(scores: NDArray[np.floating], top: int) -> list[int]:
    """Return the numbers of the highest scores, best first; of equal ones the earlier."""
    least = len(scores) - min(top, len(scores))
    good = np.flatnonzero(scores >= np.partition(scores, least)[least])
    best: list[int] = good[np.lexsort((good, -scores[good]))][:top].tolist()
    return best

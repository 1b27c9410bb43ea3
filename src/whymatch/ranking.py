"""Documents ranked for a query, each hit with the reason for its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whymatch.explanation import Explanation
from whymatch.files import written_aside
from whymatch.text import Span

FORMAT, VERSION = "whymatch.ranking", 1


class Answer(NamedTuple):
    """A word of a document, what it gave to the score, and the query's word that it answered best."""

    word: str
    value: float
    query_word: str
    span: Span


@dataclass(frozen=True)
class Hit:
    """One document of a ranking."""

    rank: int  # from 1
    index: int  # its place among the documents that were given
    score: float
    document: str
    explanation: Explanation

    def answers(self, k: int | None = None) -> list[Answer]:
        """The document's words that gave most, strongest first, with the query's word that each answered."""
        words = self.explanation.words() if "token" in self.explanation.units else self.explanation
        totals = words.matrix.sum(0)
        told = [i for i, kind in enumerate(words.kinds_a) if kind not in ("special", "prompt")] or range(
            len(words.tokens_a)
        )
        found = []
        for j, (word, kind) in enumerate(zip(words.tokens_b, words.kinds_b, strict=True)):
            if kind not in ("special", "prompt"):
                best = max(told, key=lambda i, j=j: words.matrix[i, j])
                found.append(Answer(word, float(totals[j]), words.tokens_a[best], words.offsets_b[j]))
        return sorted(found, key=lambda answer: -abs(answer.value))[:k]


@dataclass(frozen=True)
class Ranking:
    """The best documents for a query, in order."""

    query: str
    hits: tuple[Hit, ...]
    searched: int  # how many documents there were

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __getitem__(self, i: int) -> Hit:
        return self.hits[i]

    def to_dict(self) -> dict[str, Any]:
        hits = [
            {
                "rank": hit.rank,
                "index": hit.index,
                "score": hit.score,
                "answers": [answer._asdict() for answer in hit.answers()],
                "explanation": hit.explanation.to_dict(),
            }
            for hit in self.hits
        ]
        return {"format": FORMAT, "version": VERSION, "query": self.query, "searched": self.searched, "hits": hits}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON; the file is whole or not there."""
        with written_aside(path) as aside:
            aside.write_text(json.dumps(self.to_dict(), ensure_ascii=False) + "\n", encoding="utf-8")

    def to_html(self) -> str:
        """One self-contained page, hit by hit."""
        from whymatch.views.page import page

        if not self.hits:
            raise ValueError("a ranking without hits has nothing to show")
        names = [f"{hit.rank}. {hit.score:.4f}  {hit.document[:80]}" for hit in self.hits]
        return page([hit.explanation for hit in self.hits], f"Best of {self.searched} for: {self.query}", names)


def top_of(scores: NDArray[np.floating], top: int) -> list[int]:
    """The numbers of the highest scores, best first; of equal ones the earlier."""
    least = len(scores) - min(top, len(scores))
    good = np.flatnonzero(scores >= np.partition(scores, least)[least])
    found: list[int] = good[np.lexsort((good, -scores[good]))][:top].tolist()
    return found

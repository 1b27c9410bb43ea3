"""Documents ranked for a query, each hit with the reason for its place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from whymatch.explanation import Explanation
from whymatch.files import written_aside
from whymatch.text import Span, shown

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


def read_documents(path: Path) -> list[str]:
    """Documents from a file: lines of text; JSON lines, strings or with a "text"; a CSV or TSV with a column "text"."""
    import csv
    import io

    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(path)!r}") from None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise ValueError(f"{str(path)!r} is not a text file in UTF-8: {error}") from None
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        rows = list(csv.reader(io.StringIO(content), delimiter="\t" if kind == ".tsv" else ","))
        header = [name.strip().lower() for name in rows[0]] if rows else []
        column = header.index("text") if "text" in header else None
        if column is None:
            raise ValueError(f'{str(path)!r} has no column "text"; its first row is {shown(rows[0] if rows else [])}')
        found = [row[column] for row in rows[1:] if len(row) > column]
    elif kind in (".jsonl", ".ndjson"):
        found = [_json_text(line, number, path) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    else:
        found = content.splitlines()
    documents = [text for text in found if text.strip()]
    if not documents:
        raise ValueError(f"{str(path)!r} holds no documents: give one on each line")
    return documents


def _json_text(line: str, number: int, path: Path) -> str:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} of {str(path)!r} is not JSON ({error}): {shown(line)}") from None
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ValueError(f'line {number} of {str(path)!r} is neither a string nor has a "text": {shown(line)}')
    return text


def top_of(scores: Sequence[float], top: int) -> list[int]:
    """The numbers of the highest scores, best first; of equal ones the earlier."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top]

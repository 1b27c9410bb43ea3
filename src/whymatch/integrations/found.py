"""What the adapters share: hits of another library become explained hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whymatch import Explainer
from whymatch.reading.readings import Both
from whymatch.results.highlights import Unit
from whymatch.results.ranking import differ
from whymatch.words import quote


@dataclass(frozen=True)
class ExplainedHit:
    """A hit of a vector store, and why it has its score.

    Attributes:
        id: what the store calls it.
        score: what the model itself gives it, whatever distance the store uses.
        text: its text.
        metadata: what the store keeps with it.
        highlights: ``[{start, end, score}]``, spans of the text; what belongs to no character has the span (0, 0).
    """

    id: Any
    score: float
    text: str
    metadata: dict[str, Any]
    highlights: list[dict[str, Any]]


@dataclass(frozen=True)
class Reader:
    """How an adapter embeds and explains.

    Attributes:
        explainer: explains the hits with the encoder that made the stored vectors.
        unit: what a span is: "words", "sentences" or "tokens".
        top: keep only this many of the strongest spans of each hit; None keeps all.
        check: compare every stored vector with the encoder's own, and refuse those that do not match.
        task, prompt_name, prompt: how the model reads queries and documents, as for :meth:`Explainer.explain`.
    """

    explainer: Explainer
    unit: Unit = "words"
    top: int | None = None
    check: bool = True
    task: Both[str | None] = None
    prompt_name: Both[str | None] = None
    prompt: Both[str | None] = None
    _options: dict[str, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._options.update(task=self.task, prompt_name=self.prompt_name, prompt=self.prompt)

    def embed_query(self, query: str) -> list[float]:
        """Embed a query as the model does."""
        return self._embed([query], 0)[0].tolist()  # type: ignore[no-any-return]

    def _embed(self, texts: Sequence[str], side: int) -> Any:
        reading = self.explainer.readings(**self._options)[side]
        return self.explainer.embed(texts, task=reading.task, prompt=reading.prompt)

    def highlight(self, query: str, texts: Sequence[str], vectors: Sequence[Any] | None = None) -> list[Any]:
        """Highlight texts for a query; vectors that are stored for them must be the encoder's own."""
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"a hit has no text, but {quote(text)}: say where its text is kept")
        if vectors is not None and self.check:
            self.check_vectors(texts, vectors)
        return list(self.explainer.highlight_many(query, texts, self.unit, self.top, **self._options))

    def check_vectors(self, texts: Sequence[str], vectors: Sequence[Any]) -> None:
        """Raise an error unless each vector is the one that the encoder gives the text."""
        if not texts:
            return
        for text, own, stored in zip(texts, self._embed(texts, 1), vectors, strict=True):
            if stored is None:
                raise ValueError(
                    f"no vector came with the hit {quote(text)}: ask the store for vectors, or check=False"
                )
            if reason := differ(stored, own):
                raise ValueError(
                    f"the stored vector of {quote(text)} is not what {self.explainer.settings.model!r} gives this text "
                    f"({reason}), so its explanation would not be that of the hit. Give the encoder, the prompts and "
                    "the text that the vectors were made with"
                )

    def explain(
        self,
        query: str,
        ids: Sequence[Any],
        texts: Sequence[str],
        metadata: Sequence[Mapping[str, Any] | None],
        vectors: Sequence[Any] | None,
    ) -> list[ExplainedHit]:
        """Explain the hits of a store, in its order."""
        every = self.highlight(query, texts, vectors)
        rows = zip(ids, texts, metadata, every, strict=True)
        return [ExplainedHit(i, each.score, text, dict(more or {}), each.to_list()) for i, text, more, each in rows]


def missing(library: str, extra: str, error: ImportError) -> ImportError:
    """Return an error that says what to install for an adapter."""
    return ImportError(f"this adapter needs {library} ({error}): pip install 'whymatch[{extra}]'")


def text_of(payload: Mapping[str, Any] | None, key: str) -> str:
    """Return the text that a store keeps with a vector; otherwise raise an error that says what is there instead."""
    if payload is None or not isinstance(payload.get(key), str):
        there = ", ".join(map(repr, payload or ())) or "nothing"
        raise ValueError(f"a hit has no text under {key!r}, but {there}: say under which name texts are kept")
    text: str = payload[key]
    return text

"""A component for Haystack (the extra ``haystack``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from whymatch import Explainer
from whymatch.integrations.found import Reader, missing

try:
    from haystack import Document, component
except ImportError as error:
    raise missing("haystack-ai", "haystack", error) from None


@component
class Highlighter:
    """Adds ``meta["whymatch"]`` to documents that were found: ``[{start, end, score}]`` of their contents.

    A document that comes with its embedding must have the encoder's own.

    Args:
        explainer: explains with the encoder that found them.
        check: compare embeddings with the encoder's own.
        reading: other fields of :class:`whymatch.integrations.found.Reader`, such as ``unit`` and ``top``.
    """

    def __init__(self, explainer: Explainer, check: bool = True, **reading: Any) -> None:
        self._reader = Reader(explainer, check=check, **reading)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of the documents, each with its highlights."""
        texts = [document.content for document in documents]
        if self._reader.check:
            known = [document for document in documents if document.embedding is not None]
            self._reader.check_vectors(
                [document.content for document in known], [document.embedding for document in known]
            )
        every = self._reader.highlight(query, texts)
        return {
            "documents": [
                replace(document, meta={**document.meta, "whymatch": highlights.to_list()})
                for document, highlights in zip(documents, every, strict=True)
            ]
        }

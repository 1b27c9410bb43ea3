"""A document compressor for LangChain (the extra ``langchain``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whymatch import Explainer
from whymatch.integrations.found import Reader, missing

try:
    from langchain_core.documents import BaseDocumentCompressor, Document
    from pydantic import ConfigDict
except ImportError as error:
    raise missing("langchain-core", "langchain", error) from None


class HighlightCompressor(BaseDocumentCompressor):  # type: ignore[misc]  # the library's types are not followed
    """Adds ``metadata["whymatch"]`` to documents that were found: ``[{start, end, score}]`` of their texts.

    No document is left out, and the order stays the same. Use it alone or in a ContextualCompressionRetriever.

    Attributes:
        explainer: explains with the encoder that found them.
        unit, top, task, prompt_name, prompt: as in :class:`whymatch.integrations.found.Reader`.
        embeddings: LangChain's own object for the encoder; if given, its vectors must be the explainer's.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    explainer: Explainer
    unit: str = "words"
    top: int | None = None
    task: Any = None
    prompt_name: Any = None
    prompt: Any = None
    embeddings: Any = None

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:  # noqa: ARG002  # LangChain's signature
        """Return copies of the documents, each with its highlights."""
        options = {"task": self.task, "prompt_name": self.prompt_name, "prompt": self.prompt}
        reader = Reader(self.explainer, self.unit, self.top, **options)  # type: ignore[arg-type]  # checked there
        texts = [document.page_content for document in documents]
        vectors = None if self.embeddings is None else self.embeddings.embed_documents(texts)
        return [
            Document(
                page_content=document.page_content,
                id=document.id,
                metadata={**document.metadata, "whymatch": highlights.to_list()},
            )
            for document, highlights in zip(documents, reader.highlight(query, texts, vectors), strict=True)
        ]

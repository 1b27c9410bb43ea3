"""Explained hits from Chroma (the extra ``chroma``)."""

from __future__ import annotations

from typing import Any

from whymatch import Explainer
from whymatch.integrations.found import ExplainedHit, Reader


def search(
    collection: Any, query: str, explainer: Explainer, *, limit: int = 10, where: Any = None, **reading: Any
) -> list[ExplainedHit]:
    """Search a collection whose embeddings this encoder made, and explain the hits.

    Args:
        collection: a Chroma collection, whose documents are the texts.
        query: the query.
        explainer: embeds the query and explains the hits.
        limit: how many hits.
        where: Chroma's own filter.
        reading: other fields of :class:`whymatch.integrations.found.Reader`, such as ``unit`` and ``top``.
    """
    reader = Reader(explainer, **reading)
    result = collection.query(
        query_embeddings=[reader.embed_query(query)],
        n_results=limit,
        where=where,
        include=["documents", "metadatas", "embeddings"],
    )
    ids, texts, metadata, vectors = (result[name][0] for name in ("ids", "documents", "metadatas", "embeddings"))
    return reader.explain(query, ids, texts, metadata, vectors)

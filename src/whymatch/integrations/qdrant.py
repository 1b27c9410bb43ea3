"""Explained hits from Qdrant (the extra ``qdrant``)."""

from __future__ import annotations

from typing import Any

from whymatch import Explainer
from whymatch.integrations.found import ExplainedHit, Reader, text_of


def search(
    client: Any,
    collection: str,
    query: str,
    explainer: Explainer,
    *,
    limit: int = 10,
    text_key: str = "text",
    using: str | None = None,
    query_filter: Any = None,
    **reading: Any,
) -> list[ExplainedHit]:
    """Search a collection whose vectors this encoder made, and explain the hits.

    Args:
        client: a QdrantClient; local mode will do.
        collection: the name of the collection.
        query: the query.
        explainer: embeds the query and explains the hits.
        limit: how many hits.
        text_key: the key of the payload under which a point stores its text.
        using: the name of the vector, where points have several.
        query_filter: Qdrant's own filter.
        reading: other fields of :class:`whymatch.integrations.found.Reader`, such as ``unit`` and ``top``.
    """
    reader = Reader(explainer, **reading)
    points = client.query_points(
        collection,
        query=reader.embed_query(query),
        using=using,
        query_filter=query_filter,
        limit=limit,
        with_payload=True,
        with_vectors=True,
    ).points
    vectors = [point.vector[using] if isinstance(point.vector, dict) else point.vector for point in points]
    metadata = [{key: value for key, value in (point.payload or {}).items() if key != text_key} for point in points]
    texts = [text_of(point.payload, text_key) for point in points]
    return reader.explain(query, [point.id for point in points], texts, metadata, vectors)

"""Explained hits from LanceDB (the extra ``lancedb``)."""

from __future__ import annotations

from typing import Any

from whymatch import Explainer
from whymatch.integrations.found import ExplainedHit, Reader, text_of


def search(
    table: Any,
    query: str,
    explainer: Explainer,
    *,
    limit: int = 10,
    text_key: str = "text",
    vector_key: str = "vector",
    id_key: str = "id",
    where: str | None = None,
    **reading: Any,
) -> list[ExplainedHit]:
    """Search a table whose vectors this encoder made, and explain the hits.

    Args:
        table: a LanceDB table.
        query: the query.
        explainer: embeds the query and explains the hits.
        limit: how many hits.
        text_key, vector_key, id_key: the columns of texts, vectors and ids.
        where: LanceDB's own filter.
        reading: other fields of :class:`whymatch.integrations.found.Reader`, such as ``unit`` and ``top``.
    """
    reader = Reader(explainer, **reading)
    found = table.search(reader.embed_query(query), vector_column_name=vector_key)
    found = found.distance_type(explainer.settings.similarity).limit(limit)
    rows = (found if where is None else found.where(where)).to_list()
    own = {text_key, vector_key, id_key, "_distance"}
    metadata = [{key: value for key, value in row.items() if key not in own} for row in rows]
    ids, vectors = [row.get(id_key) for row in rows], [row[vector_key] for row in rows]
    return reader.explain(query, ids, [text_of(row, text_key) for row in rows], metadata, vectors)

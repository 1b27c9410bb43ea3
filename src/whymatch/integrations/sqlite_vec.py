"""Explained hits from SQLite with sqlite-vec (the extra ``sqlite-vec``)."""

from __future__ import annotations

import sqlite3
import struct
from typing import Any

import numpy as np

from whymatch import Explainer
from whymatch.integrations.found import ExplainedHit, Reader, text_of


def search(
    connection: sqlite3.Connection,
    query: str,
    explainer: Explainer,
    *,
    vectors: str = "vectors",
    documents: str = "documents",
    vector_key: str = "embedding",
    text_key: str = "text",
    limit: int = 10,
    **reading: Any,
) -> list[ExplainedHit]:
    """Search a vec0 table whose vectors this encoder made, and explain the hits.

    Args:
        connection: with sqlite-vec loaded.
        query: the query.
        explainer: embeds the query and explains the hits.
        vectors: the vec0 table.
        documents: the table of documents; its rows have the rowids of their vectors.
        vector_key, text_key: the column of vectors in the one, and of texts in the other.
        limit: how many hits.
        reading: other fields of :class:`whymatch.integrations.found.Reader`, such as ``unit`` and ``top``.
    """
    reader = Reader(explainer, **reading)
    asked = reader.embed_query(query)
    table, column, rows, key = map(_quote, (vectors, vector_key, documents, text_key))
    found = connection.execute(
        f"select rowid, {column} from {table} where {column} match ? and k = ? order by distance",
        (struct.pack(f"{len(asked)}f", *asked), limit),
    ).fetchall()
    ids, texts, metadata = [], [], []
    for number, _ in found:
        cursor = connection.execute(f"select rowid, {key}, * from {rows} where rowid = ?", (number,))
        names = [each[0] for each in cursor.description]
        values = cursor.fetchone()
        if values is None:
            raise ValueError(f"the table {documents!r} has no row {number}, and {vectors!r} has a vector of it")
        ids.append(number)
        texts.append(text_of(dict(zip(names, values, strict=True)), text_key))
        metadata.append({name: v for name, v in zip(names[2:], values[2:], strict=True) if name != text_key})
    return reader.explain(query, ids, texts, metadata, [np.frombuffer(vector, np.float32) for _, vector in found])


def _quote(name: str) -> str:
    """Quote the name of a table or a column."""
    return '"' + name.replace('"', '""') + '"'

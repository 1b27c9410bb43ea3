"""Explained hits from FAISS (the extra ``faiss``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whymatch import Explainer
from whymatch.integrations.found import ExplainedHit, Reader
from whymatch.results.ranking import Document


def search(
    index: Any, documents: Sequence[Any], query: str, explainer: Explainer, *, limit: int = 10, **reading: Any
) -> list[ExplainedHit]:
    """Search an index whose vectors this encoder made, and explain the hits.

    Args:
        index: a FAISS index, which stores vectors only.
        documents: texts, or dicts with a text and possibly an id, a title and metadata, in the order of the vectors.
        query: the query.
        explainer: embeds the query and explains the hits.
        limit: how many hits.
        reading: other fields of :class:`whymatch.integrations.found.Reader`, such as ``unit`` and ``top``.
    """
    reader = Reader(explainer, **reading)
    if index.ntotal != len(documents):
        raise ValueError(f"the index has {index.ntotal:,} vectors, and {len(documents):,} documents were given with it")
    _, found = index.search(np.asarray([reader.embed_query(query)], np.float32), min(limit, index.ntotal))
    numbers = [int(i) for i in found[0] if i >= 0]
    hits = [Document.of(documents[i]) for i in numbers]
    vectors = None
    if reader.check:
        try:
            vectors = [index.reconstruct(i) for i in numbers]
        except RuntimeError as error:
            raise ValueError(
                f"this {type(index).__name__} does not give its vectors back, so they cannot be compared with the "
                f"encoder's: call its make_direct_map(), or search with check=False ({error!s:.80})"
            ) from None
    ids = [number if hit.id is None else hit.id for number, hit in zip(numbers, hits, strict=True)]
    metadata = [hit.metadata if hit.title is None else {"title": hit.title, **hit.metadata} for hit in hits]
    return reader.explain(query, ids, [hit.text for hit in hits], metadata, vectors)

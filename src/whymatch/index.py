"""A corpus that is kept decomposed: search it, and see at once why each hit was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from whymatch import Explainer, models
from whymatch.files import locked
from whymatch.ranking import Hit, Ranking, top_of
from whymatch.store import Precision, Store
from whymatch.text import check_text

SHARD = 256  # texts that are decomposed before they are written down


class Index:
    """Documents, their embeddings and their decompositions, in a folder.

    A search compares the query with every document, by the model's own score, and reads the decompositions of the hits
    only: a hit's explanation is then one matrix product.
    """

    def __init__(self, store: Store, explainer: Explainer) -> None:
        self.store = store
        self._explainer = explainer
        self._norms: NDArray[np.float32] | None = None

    @classmethod
    def build(
        cls,
        documents: Iterable[str],
        folder: str | os.PathLike[str],
        explainer: Explainer,
        *,
        precision: Precision = "float32",
        watch: Callable[[int], None] = lambda _: None,
    ) -> Index:
        """Decompose documents into a new folder."""
        dimensions = explainer.model.get_embedding_dimension()
        assert dimensions is not None
        identity = models.identity(explainer.model)
        index = cls(Store.create(folder, explainer.settings, identity, dimensions, precision), explainer)
        index.add(documents, watch=watch)
        return index

    @classmethod
    def open(cls, folder: str | os.PathLike[str], model: str | None = None, device: str | None = None) -> Index:
        """An index that is there, with the model that made it: the one that its manifest names, or a given one."""
        store = Store.open(folder)
        explainer = Explainer.with_settings(store.settings, model, device)
        store.check(explainer.settings, models.identity(explainer.model))
        return cls(store, explainer)

    def __len__(self) -> int:
        return len(self.store)

    def add(self, documents: Iterable[str], watch: Callable[[int], None] = lambda _: None) -> int:
        """Decompose further documents; returns how many. What was added before an interruption stays."""
        with locked(self.store.folder):
            added = 0
            for chunk in _chunks(documents, SHARD):
                texts = [check_text(text) for text in chunk]
                self.store.append(self._explainer.decompose(texts, task=self._task("document")))
                self._norms = None
                added += len(chunk)
                watch(added)
        return added

    def _task(self, side: str) -> str | None:
        return side if self._explainer.asymmetric else None

    def search(self, query: str, top: int = 10) -> Ranking:
        """The best documents for a query, each with its explanation."""
        if isinstance(top, bool) or not isinstance(top, int) or top < 1:
            raise ValueError(f"top={top!r} is not a number of hits; give 1 or more")
        if not len(self):
            raise ValueError(f"the index {str(self.store.folder)!r} is empty: add documents to it first")
        (asked,) = self._explainer.decompose([check_text(query)], task=self._task("query"))
        # The same weights may be called otherwise today; the store says how its results are called.
        asked = replace(asked, settings=self.store.settings)
        scores = self.scores(np.asarray(asked.embedding, np.float32))
        hits = []
        for place, i in enumerate(top_of(scores.tolist(), top), 1):
            why = Explainer.pair(asked, self.store[i])
            hits.append(Hit(place, i, why.score, why.text_b, why))
        return Ranking(query, tuple(hits), len(self))

    def scores(self, embedding: NDArray[np.float32]) -> NDArray[np.float32]:
        """The model's score of an embedding with every document."""
        products = np.concatenate([shard @ embedding for shard in self.store.embeddings()])
        if self.store.settings.similarity == "dot":
            return products
        if self._norms is None:
            lengths = [np.linalg.norm(shard, axis=1) for shard in self.store.embeddings()]
            self._norms = np.maximum(np.concatenate(lengths), np.float32(1e-30))
        return np.asarray(products / self._norms / max(float(np.linalg.norm(embedding)), 1e-30))


def _chunks(items: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk

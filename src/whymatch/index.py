"""A corpus that is kept decomposed: search it, and see at once why each hit was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whymatch import Explainer, models
from whymatch.cluster import Ray, loaded, streamed
from whymatch.decomposition import Settings, is_int
from whymatch.files import held, made
from whymatch.ranking import Hit, Ranking, top_of
from whymatch.store import Precision, Store, rows_of
from whymatch.text import check_text, shown

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
        resume: bool = False,
        ray: Ray | None = None,
        watch: Callable[[int], None] = lambda _: None,
    ) -> Index:
        """Decompose documents into a new folder.

        Args:
            precision: of the contributions that are stored.
            resume: go on with the same documents where an interrupted build stopped.
            ray: the cluster that decomposes them; None decomposes them here.
            watch: is told how many documents are done.
        """
        explainer.check_portable("an index")
        identity = models.identity(explainer.model)
        documents = iter(documents)
        with held(made(folder)):
            if resume and Store.is_there(folder):
                index = cls(Store.open(folder), explainer)
                index.store.check(explainer.settings, identity, precision)
                index._pass_over(documents)
            else:
                dimensions = explainer.model.get_embedding_dimension()
                assert dimensions is not None
                index = cls(Store.create(folder, explainer.settings, identity, dimensions, precision), explainer)
            done = len(index)
            index._append(documents, ray, lambda added: watch(done + added))
        return index

    def _pass_over(self, documents: Iterator[str]) -> None:
        """Those that are here already, which must be what these begin with."""
        for number, text in enumerate(self.store.texts(), 1):
            given = next(documents, None)
            if given != text:
                raise ValueError(
                    f"the index {str(self.store.folder)!r} is of other documents: its number {number} is "
                    f"{shown(text)}, and here it is {'missing' if given is None else shown(given)}; "
                    "use index add for further documents, or name another folder"
                )

    @classmethod
    def open(cls, folder: str | os.PathLike[str], model: str | None = None, device: str | None = None) -> Index:
        """An index that is there, with the model that made it: the one that its manifest names, or a given one."""
        store = Store.open(folder)
        explainer = Explainer.with_settings(store.settings, model, device)
        store.check(explainer.settings, models.identity(explainer.model))
        return cls(store, explainer)

    def __len__(self) -> int:
        return len(self.store)

    def add(
        self, documents: Iterable[str], *, ray: Ray | None = None, watch: Callable[[int], None] = lambda _: None
    ) -> int:
        """Decompose further documents; returns how many. What was added before an interruption stays."""
        with held(self.store.folder):
            self.store = Store.open(self.store.folder)  # another may have added to it since
            return self._append(documents, ray, watch)

    def _append(self, documents: Iterable[str], ray: Ray | None, watch: Callable[[int], None]) -> int:
        checked = (check_text(text) for text in documents)
        added = 0
        for rows in self._on(ray, list(checked)) if ray else self._here(checked):
            self.store.append_rows(rows)
            self._norms = None
            added += len(rows)
            watch(added)
        return added

    def _here(self, documents: Iterator[str]) -> Iterator[pa.Table]:
        worker = Worker(self._explainer, self._task("document"), self.store.precision)
        while chunk := list(islice(documents, SHARD)):
            yield worker(pa.table({"text": chunk}))

    def _on(self, ray: Ray, documents: Sequence[str]) -> Iterator[pa.Table]:
        arguments = {
            "explainer": (self._explainer.settings, self.store.identity),
            "task": self._task("document"),
            "precision": self.store.precision,
        }
        return streamed(ray, pa.table({"text": documents}), Worker, arguments, SHARD)

    def _task(self, side: str) -> str | None:
        return side if self._explainer.asymmetric else None

    def search(self, query: str, top: int = 10) -> Ranking:
        """The best documents for a query, each with its explanation."""
        if not is_int(top) or top < 1:
            raise ValueError(f"top={top!r} is not a number of hits; give 1 or more")
        if not len(self):
            raise ValueError(f"the index {str(self.store.folder)!r} is empty: add documents to it first")
        (asked,) = self._explainer.decompose([check_text(query)], task=self._task("query"))
        # The same weights may be called otherwise today; the store says how its results are called.
        asked = replace(asked, settings=self.store.settings)
        scores = self.scores(np.asarray(asked.embedding, np.float32))
        hits = []
        for place, i in enumerate(top_of(scores, int(top)), 1):
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


class Worker:
    """Decomposes documents: here, or as an actor of a cluster, which loads the model that it is told of."""

    def __init__(self, explainer: Explainer | tuple[Settings, str], task: str | None, precision: Precision) -> None:
        self._explainer = explainer if isinstance(explainer, Explainer) else loaded(*explainer)
        self._task = task
        self._precision = precision

    def __call__(self, batch: pa.Table) -> pa.Table:
        return rows_of(self._explainer.decompose(batch["text"].to_pylist(), task=self._task), self._precision)

"""A searchable corpus: its embeddings in a folder, with its decompositions if they are asked for."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch import Explainer, Explanation
from whymatch.corpus.arrow import pa
from whymatch.corpus.ray import Ray, load_explainer, stream
from whymatch.corpus.shards import VERSION, Precision, about, to_rows, without_parts
from whymatch.corpus.store import KEPT, Kept, Store
from whymatch.encoders import loading
from whymatch.files import lock_folder, make_folder
from whymatch.reading.inputs import EncodeOptions
from whymatch.reading.readings import PLAIN, Both
from whymatch.results.contrast import Background
from whymatch.results.decomposition import Decomposition
from whymatch.results.ranking import Document, Ranking, differ, lengths_of, top_of
from whymatch.settings import MAXSIM, Settings, check_top
from whymatch.words import Groups, check_text, quote

SHARD = 256  # documents that are written together, at most
SHARD_SECONDS = 5.0  # the work that a kill can cost; of long builds a hundredth, so that shards do not become too many
LONGEST_SECONDS = 30.0  # but no more than this
CHUNK_SECONDS = 1.0  # of work between two reports of progress
SAMPLE = 1000  # documents whose mean is the background


class Index:
    """Documents and their embeddings, in a folder.

    A search compares the query with every document by the model's own score. A hit is explained when its explanation is
    first accessed; where contributions are stored, that is one matrix product and needs no model.
    """

    def __init__(self, store: Store, explainer: Explainer, model: str | None = None) -> None:
        self.store = store
        self._explainer = explainer
        self._model = model or explainer.settings.model  # what the workers of a cluster load
        self._forget()

    def _forget(self) -> None:
        """Forget what was read of the store, which has changed."""
        self._norms: NDArray[np.floating] | None = None
        self._found: dict[str, int] | None = None
        self.__dict__.pop("background", None)

    @classmethod
    def build(
        cls,
        documents: Iterable[Any],
        folder: str | os.PathLike[str],
        explainer: Explainer,
        *,
        store: Kept = "none",
        precision: Precision = "float32",
        resume: bool = False,
        ray: Ray | None = None,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
        watch: Callable[[int], None] = lambda _: None,
    ) -> Index:
        """Embed documents into a new folder.

        Args:
            documents: texts, or dicts with a text and possibly an id, a title and metadata.
            folder: where the index is created.
            explainer: embeds and explains them.
            store: "none" stores embeddings alone, and costs what embedding costs. "sentences" and "tokens" also
                decompose every document, so that hits are explained without the model.
            precision: how contributions are stored.
            resume: continue a build that was interrupted; the documents must be the same.
            ray: the cluster that does the work; None does it in this process.
            task, prompt_name, prompt: how the model reads queries and documents, one for both or a pair; by default
                as its ``encode_query`` and ``encode_document`` do.
            watch: called with the number of documents that are done.
        """
        check_indexable(explainer)
        readings = explainer.readings(task, prompt_name, prompt)
        identity = explainer.identity
        if store not in KEPT:
            raise ValueError(f"store={quote(store)} is not known; choose one of {', '.join(KEPT)}")
        given = map(Document.of, documents)
        with lock_folder(make_folder(folder)):
            if resume and Store.exists(folder):
                index = cls(Store.open(folder), explainer)
                index.store.check(explainer.settings, identity, precision, readings, store)
                index._check_vectors()
                index._skip_stored(given)
            else:
                new = Store.create(
                    folder, explainer.settings, identity, explainer.dimensions, precision, readings, store
                )
                index = cls(new, explainer)
            done = len(index.store)
            index._append(given, ray, lambda added: watch(done + added))
        return index

    def _skip_stored(self, documents: Iterator[Document]) -> None:
        """Take the documents that are stored already, which must come first."""
        for number, stored in enumerate(self.store.documents(), 1):
            given = next(documents, None)
            if given is None or (given.text, given.id) != (stored.text, stored.id):
                raise ValueError(
                    f"the index {str(self.store.folder)!r} is of other documents: its number {number} is "
                    f"{quote(stored.text)}, and here it is {'missing' if given is None else quote(given.text)}; "
                    "use index add for further documents, or name another folder"
                )

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        model: str | Callable[[list[str]], Any] | None = None,
        device: str | None = None,
        trust_remote_code: bool = False,
    ) -> Index:
        """Open an index with the model that made it.

        Args:
            folder: where it is.
            model: a hub id, a folder, or the function that the index was made with. None takes the model that the index
                names if this machine has it: an index may come from somebody else, and does not decide what is
                downloaded, nor where texts are sent.
            device: where the model is loaded.
            trust_remote_code: whether the model may bring code of its own.
        """
        store = Store.open(folder)
        settings = replace(store.settings, trust_remote_code=trust_remote_code)  # for the user to say, not for a file
        explainer = Explainer.with_settings(settings, model or _find_local(store), device)
        index = cls(store, explainer, model if isinstance(model, str) else store.settings.model)
        index._check_store()
        if store.readings is None and explainer.readings() != index._readings:
            warnings.warn(
                f"the index {str(store.folder)!r} was made without the prompts of its model, and its scores are not "
                "those of encode_query and encode_document; build it again",
                stacklevel=2,
            )
        return index

    @property
    def explainer(self) -> Explainer:
        """Embeds and explains the documents."""
        return self._explainer

    def _check_store(self) -> None:
        self.store.check(self._explainer.settings, self._explainer.identity)
        self._check_vectors()

    def _check_vectors(self) -> None:
        """Raise an error if a black box, of which only the name is known, is not what made the index."""
        first = next((i for i in range(len(self.store)) if i not in self.store.deleted), None)
        if self._explainer.settings.path != "shapley" or first is None:
            return
        text, reading = self.store.document(first).text, self._readings[1]
        (own,) = self._explainer.embed([text], task=reading.task, prompt=reading.prompt)
        if reason := differ(self.store[first].embedding, own):
            name = self._explainer.settings.model
            raise ValueError(
                f"the index {str(self.store.folder)!r} was made by another encoder: {name!r} gives {quote(text)} "
                f"another vector than is stored ({reason}). Use what it was made with, or build another"
            )

    def __len__(self) -> int:
        return len(self.store) - len(self.store.deleted)

    def add(
        self,
        documents: Iterable[Any],
        *,
        replace: bool = False,
        ray: Ray | None = None,
        watch: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Add further documents; return how many. Those that were added before an interruption stay.

        Args:
            documents: texts, or dicts with a text and possibly an id, a title and metadata.
            replace: whether a document takes the place of the one with the same id; otherwise that is an error.
            ray: the cluster that does the work; None does it in this process.
            watch: called with the number of documents that have been added.
        """
        with self._writing():
            return self._append(map(Document.of, documents), ray, watch, replace)

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents by their ids; return how many. Ids that the index does not have are an error."""
        with self._writing():
            wanted = [str(each) for each in ids]
            missing = [each for each in wanted if each not in self._by_id]
            if missing:
                raise ValueError(
                    f"the index {str(self.store.folder)!r} has no document with the id {quote(missing[0])}"
                )
            numbers = {self._by_id[each] for each in wanted}
            self.store.delete(numbers)
            self._forget()
            return len(numbers)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with lock_folder(self.store.folder):
            self.store = Store.open(self.store.folder)  # another process may have added to it, or built it again
            self._forget()
            self._check_store()
            yield

    @property
    def _by_id(self) -> dict[str, int]:
        """The number of each document that has an id."""
        if self._found is None:
            self._found = {
                document.id: number
                for number, document in enumerate(self.store.documents())
                if document.id is not None and number not in self.store.deleted
            }
        return self._found

    def _append(
        self, documents: Iterable[Document], ray: Ray | None, watch: Callable[[int], None], replace_old: bool = False
    ) -> int:
        arguments: dict[str, Any] = {
            "reading": self._readings[1],
            "precision": self.store.precision,
            "version": self.store.version,
            "kept": self.store.kept,
        }
        checked = self._check_ids(documents, replace_old)
        added = 0
        if ray is None:
            shards = _gather(checked, DocumentWorker(self._explainer, **arguments), lambda done: watch(added + done))
        else:
            settings = replace(self._explainer.settings, model=self._model)
            blocks = map(_to_block, iter(lambda: list(islice(checked, SHARD)), []))
            shards = stream(ray, blocks, DocumentWorker, {"explainer": (settings, self.store.identity), **arguments})
        for rows in shards:
            ids = {
                name: len(self.store) + i for i, told in enumerate(_told(rows)) if (name := _id_of(told)) is not None
            }
            by_id = self._by_id if ids else {}
            self.store.append_rows(rows, {by_id[name] for name in ids if name in by_id})
            found = {**self._by_id, **ids} if ids else self._found
            self._forget()
            self._found = found
            added += len(rows)
            watch(added)
        return added

    def _check_ids(self, documents: Iterable[Document], replace_old: bool) -> Iterator[Document]:
        """Raise an error at an id that the index, or the documents themselves, have already."""
        stored, seen = set(self._by_id), set[str]()
        for document in documents:
            check_text(document.text)
            if document.id is not None:
                if document.id in seen:
                    raise ValueError(f"two documents have the id {quote(document.id)}")
                if document.id in stored and not replace_old:
                    raise ValueError(
                        f"the index {str(self.store.folder)!r} has a document with the id {quote(document.id)} "
                        "already: replace it (--replace on the command line), or give another id"
                    )
                seen.add(document.id)
            yield document

    @property
    def _readings(self) -> tuple[EncodeOptions, EncodeOptions]:
        """How queries and documents are read."""
        if self.store.readings is not None:
            return self.store.readings
        # Earlier versions took the routes of a model, and none of its prompts beside them.
        return self._explainer.readings() if self._explainer.routed else PLAIN

    def search(self, query: str, top: int = 10, *, groups: Both[Groups] = None) -> Ranking:
        """Return the best documents for a query; each is explained when its explanation is first accessed.

        Args:
            query: a text.
            top: how many documents.
            groups: what is explained, as for :meth:`Explainer.explain`; None is what is stored, or tokens.
        """
        check_top(top)
        if not len(self):
            raise ValueError(f"the index {str(self.store.folder)!r} is empty: add documents to it first")
        asked, _ = self._readings
        own = groups[0] if isinstance(groups, tuple) and len(groups) == 2 else groups
        (decomposition,) = self._explainer.decompose(
            [check_text(query)], task=asked.task, prompt=asked.prompt, groups=own
        )
        scores = self.scores(np.asarray(decomposition.embedding, np.float32))
        hits = tuple(
            self.store.document(i).hit(rank, i, float(scores[i]), partial(self._explain, decomposition, i, groups))
            for rank, i in enumerate(top_of(scores, min(int(top), len(self))), 1)
        )
        return Ranking(query, hits, len(self), decomposition, self.background)

    def _explain(self, query: Decomposition, i: int, groups: Any) -> Explanation:
        if self.store.kept != "none" and groups is None:
            # The model may have another name or place today. Only decompositions with equal settings make a pair.
            return Explainer.pair(replace(query, settings=self.store.settings), self.store[i])
        asked, document = self._readings
        sides = {"task": (asked.task, document.task), "prompt": (asked.prompt, document.prompt)}
        text = self.store.document(i).text
        return next(self._explainer.explain_query(query, [text], groups=groups, **sides))

    def scores(self, embedding: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the model's score of an embedding with every document; a deleted one has −∞."""
        products = np.concatenate([shard @ embedding for shard in self.store.embeddings()])
        if self.store.settings.similarity != "dot":
            if self._norms is None:
                self._norms = np.concatenate([lengths_of(shard) for shard in self.store.embeddings()])
            products = np.asarray(products / self._norms / lengths_of(embedding))
        products[list(self.store.deleted)] = -np.inf
        return products

    @cached_property
    def background(self) -> Background:
        """The mean of the documents, or of a sample of them: what is usual in this index."""
        every = max(1, len(self.store) // SAMPLE)
        rows, first = [], 0
        for shard in self.store.embeddings():
            kept = [i for i in range(-first % every, len(shard), every) if first + i not in self.store.deleted]
            rows.append(np.asarray(shard[kept]))
            first += len(shard)
        return Background.of(np.concatenate(rows), self.store.settings.similarity)


def check_indexable(explainer: Explainer) -> None:
    """Raise an error if an index could not keep what an explainer computes, or could not be opened again."""
    explainer.check_portable("an index")
    if explainer.settings.similarity in MAXSIM:
        raise ValueError(
            f"an index keeps one vector for each text, and {explainer.settings.model!r} gives several; use rank, "
            "which embeds the documents each time"
        )


def estimate(documents: Sequence[Document], explainer: Explainer, store: Kept = "none") -> float:
    """Estimate how many seconds a build takes on this machine, from a few of its documents."""
    check_indexable(explainer)
    by_length = sorted(documents, key=lambda document: len(document.text))
    sample = [by_length[(2 * i + 1) * len(by_length) // 8] for i in range(4)] if len(by_length) > 4 else by_length
    if not sample:
        return 0.0
    worker = DocumentWorker(explainer, explainer.readings()[1], "float32", VERSION, store)
    # Work that is done once, such as finding the model's blocks, is not part of the estimate.
    worker(_to_block(sample[:1]))
    started = time.perf_counter()
    worker(_to_block(sample))
    seconds = time.perf_counter() - started
    return seconds * sum(len(each.text) for each in documents) / max(1, sum(len(each.text) for each in sample))


def _gather(documents: Iterator[Document], work: DocumentWorker, watch: Callable[[int], None]) -> Iterator[pa.Table]:
    """Work on documents a few at a time, and yield what was done every few seconds.

    Args:
        documents: what to work on.
        work: takes a block of documents and returns rows.
        watch: is called with the number of documents that are done and have not been yielded yet.
    """
    began = flushed = time.monotonic()
    waiting: list[pa.Table] = []
    size = 1
    while block := list(islice(documents, min(size, SHARD - sum(map(len, waiting))))):
        started = time.monotonic()
        waiting.append(work(_to_block(block)))
        now = time.monotonic()
        affordable = len(block) * CHUNK_SECONDS / max(now - started, 1e-9)
        size = max(1, min(2 * size, SHARD, int(affordable)))
        patience = min(LONGEST_SECONDS, max(SHARD_SECONDS, (now - began) / 100))
        if sum(map(len, waiting)) >= SHARD or now - flushed >= patience:
            yield pa.concat_tables(waiting)
            waiting, flushed = [], time.monotonic()
        else:
            watch(sum(map(len, waiting)))
    if waiting:
        yield pa.concat_tables(waiting)


def _to_block(documents: Sequence[Document]) -> pa.Table:
    """Put documents into a table, in which they can be sent to another process."""
    return pa.table(
        {
            "text": pa.array([document.text for document in documents], pa.large_string()),
            "about": pa.array([about(document) for document in documents], pa.string()),
        }
    )


def _told(rows: pa.Table) -> list[str]:
    told: list[str] = rows["about"].to_pylist() if "about" in rows.column_names else []
    return told


def _id_of(told: str) -> str | None:
    """Return the id in what a store says of a document."""
    name: str | None = json.loads(told)["id"] if told else None
    return name


def _find_local(store: Store) -> str:
    """Return where this machine has the model that a store names: a folder, the packaged one, or the hub's cache."""
    name = store.settings.model
    if Path(name).is_dir():
        return name
    for installed in loading.installed():
        if installed.name == name:
            packaged = installed.path == loading.packaged()
            return name if packaged else str(installed.path)  # a folder is loaded without asking the hub
    raise ValueError(
        f"the index {str(store.folder)!r} was made with the model {quote(name)}, which is not on this machine; say "
        "which model to use (--model on the command line): a folder, or a hub id to download"
    )


class DocumentWorker:
    """Embeds or decomposes blocks of documents: in this process, or as an actor that loads its own model."""

    def __init__(
        self,
        explainer: Explainer | tuple[Settings, str],
        reading: EncodeOptions,
        precision: Precision,
        version: int,
        kept: Kept,
    ) -> None:
        self._explainer = explainer if isinstance(explainer, Explainer) else load_explainer(*explainer)
        self._reading: dict[str, Any] = {"task": reading.task, "prompt": reading.prompt}
        self._precision = precision
        self._version = version
        self._kept = kept

    def __call__(self, block: pa.Table) -> pa.Table:
        texts = block["text"].to_pylist()
        if self._kept == "none":
            vectors = self._explainer.embed(texts, **self._reading)
            settings = self._explainer.settings
            decompositions = [without_parts(*each, settings) for each in zip(texts, vectors, strict=True)]
        else:
            groups = "sentences" if self._kept == "sentences" else None
            decompositions = self._explainer.decompose(texts, groups=groups, **self._reading)
        return to_rows(decompositions, self._precision, self._version, block["about"].to_pylist())

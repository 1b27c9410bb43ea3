"""The verbs of search: documents ranked, highlighted and contrasted for a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from whymatch import method
from whymatch.encoders.kinds import Direct
from whymatch.method import Method
from whymatch.reading.inputs import Request, Value
from whymatch.reading.readings import Both, both_groups, both_options
from whymatch.reading.sides import Side
from whymatch.results.contrast import Background, Contrast, contrast_vectors
from whymatch.results.decomposition import Decomposition
from whymatch.results.explanation import Explanation
from whymatch.results.highlights import Highlights, Unit, highlight_side
from whymatch.results.ranking import Document, Ranking, scores_of, top_of
from whymatch.runner import Runner
from whymatch.settings import MAXSIM, Settings, check_top
from whymatch.words import Groups

Ask: TypeAlias = Callable[[Value], Request]  # makes a request of an input


class SearchMixin:
    """The methods of :class:`whymatch.Explainer` for a query and documents."""

    _method: Method | Direct
    _groups: Groups

    @property
    def settings(self) -> Settings:
        """How results are computed; each of them carries a copy."""
        return self._method.settings

    @property
    def asymmetric(self) -> bool:
        """Whether the model reads queries and documents in different ways: by a prompt or a route for each."""
        return self._method.encoder.asymmetric

    @property
    def _runner(self) -> Runner:
        return Runner(self._method)

    def _sides(
        self, task: Any, prompt_name: Any, prompt: Any, groups: tuple[Groups, Groups] = (None, None)
    ) -> tuple[Ask, Ask]:
        """Return a function for each side of a pair, query and document, that makes a request of an input."""
        options = both_options(task, prompt_name, prompt, self.asymmetric)
        a, b = (partial(Request.of, options=each, groups=own) for each, own in zip(options, groups, strict=True))
        return a, b

    def rank(
        self,
        query: Value,
        documents: Sequence[Any],
        top: int = 10,
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
        groups: Both[Groups] = None,
    ) -> Ranking:
        """Rank documents for a query by the model's own scores, and explain the best; the query is decomposed once.

        Args:
            query: the query.
            documents: texts, or dicts with a text and possibly an id, a title and metadata, which come back in the
                hits. The model reads the text alone.
            top: how many of the best to explain.
            task, prompt_name, prompt, groups: as for :meth:`explain`.
        """
        if isinstance(documents, str) or not documents:
            raise TypeError(f"rank takes a list of documents, not {documents!r:.60}")
        check_top(top)
        as_query, as_document = self._sides(task, prompt_name, prompt, both_groups(groups, self._groups))
        given = [Document.of(each) for each in documents]
        asked, requests = as_query(query), [as_document(document.text) for document in given]
        runner = self._runner
        (query_vector,), vectors = runner.embed([asked]), runner.embed(requests)
        best = top_of(scores_of(query_vector, vectors, self.settings.similarity), int(top))
        (decomposition,) = runner.decompose([asked])
        reasons = runner.explain(((asked, requests[i]) for i in best), {asked.key: decomposition})
        hits = tuple(
            given[i].hit(rank, i, why.score, partial(_identity, why), why.b.text)
            for rank, (i, why) in enumerate(zip(best, reasons, strict=True), 1)
        )
        several = self.settings.similarity in MAXSIM  # vectors for each text, which have no mean
        background = None if several else Background.of(vectors, self.settings.similarity)
        return Ranking(decomposition.text, hits, len(given), decomposition, background)

    def explain_query(
        self,
        query: Decomposition,
        documents: Iterable[Any],
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
        groups: Both[Groups] = None,
    ) -> Iterator[Explanation]:
        """Explain the scores of documents with a query that has been decomposed, in order.

        Args:
            query: what :meth:`decompose` returned for it.
            documents: texts, or dicts with a text.
            task, prompt_name, prompt, groups: as for :meth:`explain`; those of the query must be what it was
                decomposed with.
        """
        as_query, as_document = self._sides(task, prompt_name, prompt, both_groups(groups, self._groups))
        asked = as_query(query.text)
        pairs = ((asked, as_document(Document.of(each).text)) for each in documents)
        return self._runner.explain(pairs, {asked.key: query})

    def background(
        self,
        documents: Sequence[Any],
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
    ) -> Background:
        """Return the mean of the embeddings of some documents: what a usual document looks like to the model.

        A few hundred documents of a corpus, drawn at random, are enough. Tasks and prompts are for a query and a
        document, as for :meth:`explain`; the document's is used.
        """
        if isinstance(documents, str) or not documents:
            raise TypeError(f"a background takes a list of documents, not {documents!r:.60}")
        if self.settings.similarity in MAXSIM:
            raise ValueError(self._no_background())
        _, as_document = self._sides(task, prompt_name, prompt)
        vectors = self._runner.embed([as_document(Document.of(each).text) for each in documents])
        return Background.of(vectors, self.settings.similarity)

    def highlight(
        self,
        query: Value,
        document: Any,
        unit: Unit = "words",
        top: int | None = None,
        *,
        background: Background | None = None,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
    ) -> Highlights:
        """Return what each word of a document adds to its score with a query: one cotangent, and no matrix.

        With divisions, eight more tell the lengths of contributions (:mod:`whymatch.correction`).

        The numbers are those of :meth:`Explanation.highlights`, up to the tolerance.

        Args:
            query: the query, which is embedded and not decomposed.
            document: a text, or a dict with a text.
            unit: "words", "sentences" or "tokens".
            top: keep only this many of the strongest spans.
            background: subtract what each word would give a usual text: the spans then sum to how far the document's
                score with the query is above its score with the background.
            task, prompt_name, prompt: as for :meth:`explain`.
        """
        options = {"task": task, "prompt_name": prompt_name, "prompt": prompt}
        return next(self.highlight_many(query, [document], unit, top, background=background, **options))

    def highlight_many(
        self,
        query: Value,
        documents: Iterable[Any],
        unit: Unit = "words",
        top: int | None = None,
        *,
        background: Background | None = None,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
    ) -> Iterator[Highlights]:
        """Highlight documents in order for one query, which is embedded once; see :meth:`highlight`."""
        as_query, as_document = self._sides(task, prompt_name, prompt)
        asked, requests = as_query(query), (as_document(Document.of(each).text) for each in documents)
        runner = self._runner
        if self.settings.similarity in MAXSIM:
            if background is not None:
                raise ValueError(self._no_background())
            for why in runner.explain((asked, request) for request in requests):
                yield why.highlights("b", unit, top)
            return
        whole = _whole(*runner.read(asked), self.settings, background)
        warned = False
        for projection in runner.project(whole, requests):
            why = method.combine(whole, projection)
            score = why.score
            if background is not None:
                vector = np.asarray(projection.embedding, np.float64)
                length = float(np.linalg.norm(vector)) if self.settings.similarity == "cosine" else 1.0
                score -= float(background.mean @ vector) / (length or 1.0)
            highlights = highlight_side(why.b, why.totals("b"), score, unit, why.beside("b"), query=whole.text)
            if not warned:
                errors = [(highlights.error / why.norms, why.b.nodes)]
                warned = runner.warn_missed(errors, self.settings.tolerance, "documents")
            yield highlights if top is None else highlights.keep(top)

    def contrast(
        self,
        query: Value,
        one: Any,
        other: Any,
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
    ) -> Contrast:
        """Say why a query scores higher with one document than with another: an exact sum over the query's words.

        The query is decomposed, and each document is highlighted; no matrix is computed.

        Args:
            query: the query.
            one: a text, or a dict with a text.
            other: the same, or a :class:`Background`: how far the first is above the usual.
            task, prompt_name, prompt: as for :meth:`explain`.
        """
        as_query, as_document = self._sides(task, prompt_name, prompt)
        given = [Document.of(each) for each in (one, other) if not isinstance(each, Background)]
        asked, requests = as_query(query), [as_document(document.text) for document in given]
        runner = self._runner
        if self.settings.similarity in MAXSIM:
            if isinstance(other, Background):
                raise ValueError(self._no_background())
            why, other_why = runner.explain((asked, request) for request in requests)
            return Contrast.of(why, other_why, given[0].name or "first", given[1].name or "second")
        (decomposition,) = runner.decompose([asked])
        whole = _whole(decomposition.text, decomposition.embedding, self.settings)
        sides = [
            (each.embedding, method.combine(whole, each).highlights("b")) for each in runner.project(whole, requests)
        ]
        second = other if isinstance(other, Background) else sides[1]
        name = other.name if isinstance(other, Background) else given[1].name or "second"
        return contrast_vectors(decomposition, sides[0], second, given[0].name or "first", name)

    def _no_background(self) -> str:
        return f"{self.settings.model!r} gives each text several vectors, which have no mean: there is no background"


def _identity(why: Explanation) -> Explanation:
    return why


def _whole(
    text: str, embedding: NDArray[np.floating], settings: Settings, background: Background | None = None
) -> Decomposition:
    """Return a text as a single part, which is its embedding itself; a background is a second part, subtracted."""
    rows, names = [np.asarray(embedding, np.float64)], [text]
    if background is not None:
        # Scores divide by the length of the query's embedding, which the background's mean has nothing to do with.
        length = float(np.linalg.norm(rows[0])) if settings.similarity == "cosine" else 1.0
        rows, names = [*rows, -length * np.asarray(background.mean, np.float64)], [*names, background.name]
    count = len(rows)
    side = Side(
        text=text,
        tokens=tuple(names),
        offsets=((0, len(text)),) + ((0, 0),) * (count - 1),
        kinds=("group",) * count,
        unit="span",
        errors=np.zeros(count),
    )
    return Decomposition(
        side=side,
        embedding=embedding,
        reference=np.zeros_like(embedding),
        settings=settings,
        contributions=np.stack(rows),
        shares=np.full(count, 1 / count),
    )

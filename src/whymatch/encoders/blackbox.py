"""Encoders that can only be called: each word's contribution is its Shapley value of the embedding.

The embedding of what is left of a text when words are left out is a function of the set of words that are kept. Its
Shapley values are vectors, one for each word, that sum to e(text) − e(nothing): a decomposition like any other, for
which ``encode`` is all that is needed. See :mod:`whymatch.shapley`.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from whymatch import progress
from whymatch.encoders.cut import EncoderError, model_code
from whymatch.encoders.retries import ServiceError, is_transient, with_retries
from whymatch.reading.inputs import EncodeOptions, Request, Value
from whymatch.reading.sides import Side
from whymatch.results.decomposition import Decomposition
from whymatch.settings import Settings
from whymatch.shapley import Flags, Floats, least_pairs, shapley_values
from whymatch.words import UNITS, Span, check_text, find_spans, group_spans, keep_units, label_groups, quote, word_spans

Embed: TypeAlias = Callable[[list[str], EncodeOptions], Any]

TEXTS_TOGETHER = 64  # texts in one call, unless the function has a batch_size
CACHE_BYTES = 2**28
BUDGET = 1024  # texts that may be embedded for one text: all subsets of ten words
NOTHING = "nothing"  # the name of the reference: the text without its words


@dataclass(frozen=True)
class Usage:
    """How much an encoder has been used so far.

    Attributes:
        calls: how often it was called.
        texts: how many texts it embedded; what was found in the cache does not count.
        characters: their total length.
    """

    calls: int = 0
    texts: int = 0
    characters: int = 0

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.calls - earlier.calls, self.texts - earlier.texts, self.characters - earlier.characters)

    def __str__(self) -> str:
        return f"{self.texts:,} texts ({self.characters:,} characters) embedded in {self.calls:,} calls"


class BlackBox:
    """A function from texts to embeddings, wrapped as an encoder.

    Args:
        embed: takes texts, and how they are read; returns an array (texts, dim).
        name: what results call it.
        model: what :attr:`whymatch.Explainer.model` returns.
        similarity: how its embeddings are compared.
        identity: returns a hash that tells it apart from other encoders in every process; by default, or if it returns
            None, its name is used. When the hash changes, the cache is emptied.
        asymmetric: whether it reads queries and documents in different ways.
        routed: whether it has separate encoders for queries and documents.
        batch_size: how many texts it takes in one call.
    """

    path = "shapley"
    num_layers = 0

    def __init__(
        self,
        embed: Embed,
        name: str,
        model: Any,
        *,
        similarity: str = "cosine",
        identity: Callable[[], str | None] = lambda: None,
        asymmetric: bool = False,
        routed: bool = False,
        batch_size: int = TEXTS_TOGETHER,
    ) -> None:
        self._embed = embed
        self.name = name
        self.model = model
        self.similarity = similarity
        self.asymmetric = asymmetric
        self.routed = routed
        self._identity = identity
        self._batch_size = max(1, batch_size)
        self._cache: OrderedDict[Hashable, Floats] = OrderedDict()
        self._lock = threading.Lock()
        self._dimensions: int | None = None
        self._state: str | None = None  # the identity of what is in the cache
        self.usage = Usage()

    @property
    def dimensions(self) -> int:
        """The number of dimensions of its embeddings, found by embedding one text."""
        if self._dimensions is None:
            self.vectors(["a"], EncodeOptions())
        assert self._dimensions is not None
        return self._dimensions

    def identity(self) -> str:
        """A hash that tells it apart from other encoders."""
        own = self._identity()
        if own is not None:
            return own
        return hashlib.sha256(f"{self.name} {self.dimensions}".encode("utf-8", "surrogatepass")).hexdigest()

    def vectors(self, values: Sequence[Value], options: EncodeOptions) -> NDArray[np.floating]:
        """Embed the texts that are not in the cache, in batches; a batch is tried again if the connection fails."""
        texts = [check_text(value) for value in values]
        known: dict[str, Floats] = {}
        state = self._identity()
        with self._lock:
            if state != self._state:
                self._cache.clear()
                self._state = state
            for text in texts:
                if (text, options) in self._cache:
                    self._cache.move_to_end((text, options))
                    known[text] = self._cache[text, options]
        missing = list(dict.fromkeys(text for text in texts if text not in known))
        for low in range(0, len(missing), self._batch_size):
            batch = missing[low : low + self._batch_size]
            progress.report(0.0, "embedding")
            known.update(zip(batch, self._call(batch, options), strict=True))
        return np.stack([known[text] for text in texts])

    def _call(self, batch: list[str], options: EncodeOptions) -> Floats:
        def call() -> Any:
            with self._lock:  # a failed call may cost as much as one that succeeds
                usage = self.usage
                characters = usage.characters + sum(map(len, batch))
                self.usage = Usage(usage.calls + 1, usage.texts + len(batch), characters)
            try:
                with model_code(self.name, f"it embeds {len(batch)} texts, the first of them {quote(batch[0])}"):
                    return self._embed(batch, options)
            except EncoderError as error:
                cause = error.__cause__
                if cause is not None and (is_transient(cause) or isinstance(cause, ServiceError)):
                    raise cause from None
                raise

        vectors = check_vectors(with_retries(call), batch, self.name, self._dimensions)
        self._dimensions = vectors.shape[1]
        with self._lock:
            self._cache.update({(text, options): vector for text, vector in zip(batch, vectors, strict=True)})
            while len(self._cache) > max(BUDGET, CACHE_BYTES // (8 * self._dimensions)):
                self._cache.popitem(last=False)
        return vectors

    def decompose(self, requests: Sequence[Request], settings: Settings) -> list[Decomposition]:
        """Write the embedding of each text as a sum over its words, or over other groups of characters."""
        decompositions = []
        for request, part in progress.stages(requests):
            with part:
                decompositions.append(self._decompose(request, settings))
        return decompositions

    def most_texts(self, request: Request, settings: Settings) -> int:
        """Return how many texts may have to be embedded to decompose one."""
        units = _units(divide(check_text(request.value), request))
        most = budget_of(len(units), settings)
        return int(min(most if settings.steps is None else settings.steps, 2 ** len(units)))

    def _decompose(self, request: Request, settings: Settings) -> Decomposition:
        text = check_text(request.value)
        side = divide(text, request)
        units = _units(side)
        most = budget_of(len(units), settings)

        def game(coalitions: Flags) -> Floats:
            texts = [keep_units(text, units, flags, settings.mask) for flags in coalitions]
            return self.vectors(texts, request.options)

        solution = shapley_values(
            game,
            len(units),
            most=most,
            samples=settings.steps,
            tolerance=settings.tolerance,
            seed=int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"),
            watch=progress.report,
        )
        embedding = solution.everything
        length = float(np.linalg.norm(embedding)) or 1.0
        decomposition = Decomposition(
            side=replace(
                side,
                nodes=solution.evaluations,
                mode="shapley",
                errors=np.asarray(solution.sampling.lengths(len(side)) / length, np.float64),
            ),
            embedding=embedding,
            reference=solution.nothing,
            settings=settings,
            contributions=solution.values if units else np.zeros((1, len(embedding))),
            shares=np.full(len(side), 1 / len(side)),
            sampling=None if solution.sampling.exact else solution.sampling,
        )
        return decomposition.folded() if settings.fold_reference else decomposition


def budget_of(units: int, settings: Settings) -> int:
    """Return how many texts may be embedded for a text with this many words; raise an error if that is too few."""
    least = 2 + 2 * least_pairs(units)
    most = max(BUDGET, least) if settings.budget is None else settings.budget
    wanted = most if settings.steps is None else settings.steps
    if min(most, wanted) < min(least, 2**units):
        name, value = ("budget", most) if most <= wanted else ("samples", wanted)
        raise ValueError(
            f"{name}={value} is too few for a text of {units} words, whose Shapley values need {least:,} embeddings or "
            "more; give more, or fewer and larger parts: groups='sentences'"
        )
    return most if settings.steps is None else max(most, wanted)


def divide(text: str, request: Request) -> Side:
    """Divide a text into its words, or into the groups that are asked for."""
    words = word_spans(text)
    unit = "word"
    rows = [[i] for i in range(len(words))]
    if request.groups is not None:
        unit = UNITS[request.groups] if isinstance(request.groups, str) else "span"
        spans = find_spans(text, request.groups)
        rows = group_spans(len(text), words, spans, together=unit != "word")
    if not words:  # a text without words is one part
        return Side(text=text, tokens=("(no words)",), offsets=((0, 0),), kinds=("special",), unit=unit)
    names = [text[low:high] for low, high in words]
    tokens, offsets = label_groups(text, names, words, rows)
    kinds = tuple("text" if len(members) == 1 else "group" for members in rows)
    return Side(text=text, tokens=tokens, offsets=offsets, kinds=kinds, unit=unit)


def _units(side: Side) -> list[Span]:
    """Return the characters of each part that has any."""
    return [span for span in side.offsets if span[1] > span[0]]


def check_vectors(vectors: Any, texts: Sequence[str], name: str, dimensions: int | None) -> Floats:
    """Return a function's result as an array (texts, dim), or raise an error that says what it returned."""
    if hasattr(vectors, "detach"):  # a tensor, of torch, on whatever device
        vectors = vectors.detach().to_dense().float().cpu() if vectors.is_sparse else vectors.detach().float().cpu()
    try:
        array = np.asarray(vectors, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name!r} gives no array of numbers for {len(texts)} texts ({error})") from None
    if array.ndim != 2 or len(array) != len(texts) or array.shape[1] == 0:
        raise ValueError(
            f"{name!r} must give one vector for each text, ({len(texts)}, dimensions); it gives the shape {array.shape}"
        )
    if dimensions is not None and array.shape[1] != dimensions:
        raise ValueError(f"{name!r} gave vectors of {dimensions} dimensions before, and now of {array.shape[1]}")
    bad = ~np.isfinite(array).all(1)
    if bad.any():
        raise ValueError(f"{name!r} gives numbers that are not finite for {quote(texts[int(bad.argmax())])}")
    return array

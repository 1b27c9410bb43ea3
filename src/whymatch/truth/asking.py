"""What the model itself says when parts of its texts are missing: the truth that explanations are compared with."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from whymatch.encoders import kinds
from whymatch.encoders.blackbox import BlackBox
from whymatch.encoders.cut import copy_tree
from whymatch.encoders.encoder import Encoder
from whymatch.encoders.multivector import MultiVectorEncoder
from whymatch.paths.jacobian import LOCK
from whymatch.quadrature import Floats
from whymatch.reading.inputs import EncodeOptions, Input, batched
from whymatch.settings import SIMILARITIES
from whymatch.words import Span, keep_units, word_spans

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

UNITS = ("words", "tokens")
REMOVALS = ("delete", "mask", "pad")


class Model:
    """A sentence encoder that is asked for scores of changed texts.

    Args:
        model: a SentenceTransformer, a function from texts to embeddings, or the encoder of an explainer. Whatever
            gives a text one vector can be asked; of what cannot be differentiated, only whole words can be deleted.
        similarity: ``"cosine"`` or ``"dot"``; None is the model's own.
        name: what it is called in results.
        answers: a file in which answers are kept, so that the same question is asked once; None keeps them in memory.
            A function is known by its name alone, and has to have one where answers are kept.
    """

    def __init__(
        self,
        model: SentenceTransformer | Callable[[list[str]], Any] | kinds.AnyEncoder,
        similarity: str | None = None,
        name: str | None = None,
        answers: str | os.PathLike[str] | None = None,
    ) -> None:
        self._encoder = model if isinstance(model, kinds.ENCODERS) else kinds.wrap(model, name=name)
        self.name = name or self._encoder.name
        self.similarity = similarity or self._encoder.similarity
        if isinstance(self._encoder, MultiVectorEncoder):
            raise ValueError(f"{self.name!r} gives a text several vectors; these tests ask encoders that give one")
        if self.similarity not in SIMILARITIES:
            raise ValueError(
                f"{self.name!r} is compared by {self.similarity!r}, and these tests know cosines and dot products: "
                "give similarity='cosine' or 'dot'"
            )
        if answers is not None and name is None and isinstance(self._encoder, BlackBox):
            raise ValueError("a function whose answers are kept in a file needs a name of its own: give name=")
        self._known: dict[str, list[float]] = {}
        self._file = None if answers is None else Path(answers)
        if self._file is not None:
            self._known = read_lines(self._file)

    @property
    def encoder(self) -> Encoder:
        """The encoder, for what needs its tokens and layers."""
        if not isinstance(self._encoder, Encoder):
            raise TypeError(
                f"{self.name!r} is a {type(self._encoder).__name__}, and this test or method needs the layers or the "
                "tokenizer of a transformer; coalitions, insertion_deletion, alignment, chunks and answers do without, "
                "where whole words are deleted"
            )
        return self._encoder

    @property
    def has_layers(self) -> bool:
        """Whether it is a transformer, whose weights can be shuffled and whose tokens can be replaced."""
        return isinstance(self._encoder, Encoder)

    @property
    def asymmetric(self) -> bool:
        """Whether it reads queries and documents in different ways."""
        return self._encoder.asymmetric

    @property
    def options(self) -> tuple[EncodeOptions, EncodeOptions]:
        """How each side of a pair is read."""
        return (EncodeOptions("query"), EncodeOptions("document")) if self.asymmetric else (EncodeOptions(),) * 2

    @cached_property
    def identity(self) -> str:
        """A hash of the model's weights and settings."""
        return self._encoder.identity()

    def embed(self, texts: Sequence[str], side: int = 0) -> Floats:
        """Embed texts as the first or the second of a pair; equal texts once."""
        distinct = list(dict.fromkeys(texts))
        with LOCK if self.has_layers else contextlib.nullcontext():  # a service may take its time
            vectors = dict(zip(distinct, self._encoder.vectors(distinct, self.options[side]), strict=True))
        return np.stack([np.asarray(vectors[text], np.float64) for text in texts])

    def compare(self, a: Floats, b: Floats) -> Floats:
        """Return the scores of embeddings, row by row."""
        products = np.asarray((a * b).sum(-1))
        if self.similarity == "dot":
            return products
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        return np.asarray(products / np.maximum(norms, np.finfo(np.float64).tiny))

    def units(self, text: str, kind: str, side: int = 0) -> list[Span]:
        """Return the spans of a text's words or tokens."""
        if kind == "words":
            return word_spans(text)
        return [span for span in self._read(text, side).offsets if span[1] > span[0]]

    def _read(self, text: str, side: int) -> Input:
        with LOCK:
            return self.encoder.read([text], self.options[side])[0]

    def embed_kept(self, text: str, units: Sequence[Span], kept: np.ndarray, removal: str, side: int = 0) -> Floats:
        """Embed a text of which only some units are kept.

        Args:
            units: the spans that may be removed.
            kept: (coalitions, units), true for those that stay.
            removal: ``"delete"`` deletes whole words from the text, which is read anew; where units are not words, it
                deletes their tokens. ``"mask"`` and ``"pad"`` put such tokens in their place.
        """
        if removal == "delete" and list(units) == word_spans(text):
            return self.embed([keep_words(text, units, row) for row in kept], side)
        given = self._read(text, side)
        ids = {"mask": given.reader.tokenizer.mask_token_id, "pad": given.reader.tokenizer.pad_token_id}
        if removal != "delete" and ids[removal] is None:
            raise ValueError(f"the tokenizer of {self.name!r} has no {removal} token; choose another way of removing")
        rows = [_edit(given, units, row, ids.get(removal)) for row in kept]
        return self._run(rows, self.options[side])

    def _run(self, rows: Sequence[dict[str, Any]], options: EncodeOptions) -> Floats:
        """Run the model on token ids, those of one length together, so that none is padded."""
        twin = copy_tree(self.encoder.model, torch.Tensor.detach).eval()
        by_length: dict[int, list[int]] = {}
        for i, features in enumerate(rows):
            by_length.setdefault(len(features["input_ids"]), []).append(i)
        embeddings: dict[int, Floats] = {}
        for numbers in by_length.values():
            for low in range(0, len(numbers), 64):
                part = numbers[low : low + 64]
                with torch.no_grad():
                    out = twin(batched([rows[i] for i in part], self.encoder.device), **options.kwargs)
                vectors = out["sentence_embedding"].double().cpu().numpy()[:, : self.encoder.model.truncate_dim]
                embeddings.update(zip(part, vectors, strict=True))
        return np.stack([embeddings[i] for i in range(len(rows))])

    def scores_kept(
        self, pair: tuple[str, str], units: tuple[Sequence[Span], Sequence[Span]], kept: tuple[Any, Any], removal: str
    ) -> Floats:
        """Return the scores of a pair of which only some units are kept; each question is asked once."""

        def ask() -> list[float]:
            a, b = (self.embed_kept(pair[i], units[i], kept[i], removal, i) for i in (0, 1))
            return [float(score) for score in self.compare(a, b)]

        masks = [np.packbits(np.asarray(each, bool)).tobytes().hex() for each in kept]
        return np.array(self.remember([removal, pair, units, masks], ask))

    def effects(self, pair: tuple[str, str], units: tuple[Sequence[Span], Sequence[Span]]) -> tuple[Floats, Floats]:
        """Return how much the score of a pair changes, up or down, when each single unit is left out of its text.

        The only unit of a text is what all of the score depends on: nobody is asked about an empty text.
        """

        def ask() -> list[float]:
            changes: list[float] = []
            for side, (text, spans) in enumerate(zip(pair, units, strict=True)):
                stays = ~np.eye(len(spans), dtype=bool)
                texts = [text, *(keep_units(text, spans, row) for row in stays)]
                other = self.embed([pair[1 - side]], 1 - side)
                if len(spans) < 2:
                    texts = [text]
                whole, *without = self.compare(self.embed(texts, side), other)
                changes += [abs(whole - score) for score in without] if without else [abs(whole)] * len(spans)
            return changes

        changes = np.array(self.remember(["left out", pair, units], ask))
        return changes[: len(units[0])], changes[len(units[0]) :]

    def remember(self, question: Any, ask: Callable[[], list[float]]) -> list[float]:
        """Return the answer to a question about this model: the known one, or that of ``ask``, which is kept.

        Args:
            question: what the answer depends on besides the model, as values that JSON can hold.
        """
        content = json.dumps([self.identity, self.similarity, question])
        key = hashlib.sha256(content.encode()).hexdigest()[:32]
        if key not in self._known:
            self._known[key] = [float(f"{number:.8g}") for number in ask()]
            if self._file is not None:
                append_line(self._file, key, self._known[key])
        return self._known[key]


def seeded(seed: int, pair: tuple[str, str]) -> np.random.Generator:
    """Return random numbers that depend on a seed and on two texts alone."""
    digest = hashlib.sha256("\0".join([str(seed), *pair]).encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng(list(digest))


def keep_words(text: str, words: Sequence[Span], kept: Sequence[bool]) -> str:
    """Return a text without some of its words; a word is removed together with the space before it."""
    starts = [0, *(high for _, high in words)]
    pieces = [text[start:high] for start, (_, high), stays in zip(starts, words, kept, strict=False) if stays]
    return "".join(pieces).strip()


def _edit(given: Input, units: Sequence[Span], kept: Sequence[bool], replacement: int | None) -> dict[str, Any]:
    """Delete or replace the tokens of the units that are not kept."""
    gone = [span for span, stays in zip(units, kept, strict=True) if not stays]
    hit = [high > low and any(start < high and low < stop for start, stop in gone) for low, high in given.offsets]
    features = dict(given.features)
    if replacement is None:
        length = len(hit)
        for name, value in features.items():
            if isinstance(value, list) and len(value) == length:
                features[name] = [each for each, away in zip(value, hit, strict=True) if not away]
        return features
    ids = features["input_ids"]
    features["input_ids"] = [replacement if away else each for each, away in zip(ids, hit, strict=True)]
    return features


def append_line(path: Path, key: str, value: Any) -> None:
    """Add a line to a file at once, so that two processes may share it and a kill loses at most this line."""
    line = (json.dumps([key, value, _checksum(key, value)], ensure_ascii=False) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> dict[str, Any]:
    """Read what :func:`append_line` wrote; a line that is damaged, or that a kill cut short, is left out."""
    if not path.exists():
        return {}
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    known = {}
    for line in content.splitlines():
        try:
            key, value, *checksum = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(key, str) and checksum in ([], [_checksum(key, value)]):  # earlier versions wrote none
            known[key] = value
    return known


def _checksum(key: str, value: Any) -> int:
    return zlib.crc32(json.dumps([key, value]).encode())

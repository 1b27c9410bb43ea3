"""Correct what each word adds to an embedding by what the model makes of parts of the text.

A text's words are divided at random into four parts, a few times, and the model embeds each part by itself. What the
words of a part add to the whole text's embedding, with what the template adds, should be near to that: where it is not,
contributions are moved. They are moved as little as possible, as a ridge regression does, and their sum stays what it
is: what words lose others gain, or the template, which is there whatever the words are and is moved half as easily as
all words together. A word that contributes much is moved more easily: of a word that adds next to nothing, little can
be wrong.

With P the contributions, X which of them a part keeps, and E what the model makes of the parts, the corrected
contributions are P + G (E − X P). Of P, G depends on the lengths of its rows alone, and products of P with a few
directions tell them, so that contributions that are known only through products are corrected as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from whymatch.encoders.encoder import Encoder
from whymatch.paths.jacobian import LOCK
from whymatch.quadrature import Floats
from whymatch.reading.inputs import Correction, EncodeOptions, TokenSource
from whymatch.reading.sides import TEMPLATE
from whymatch.words import Span, find_spans, group_spans, keep_units, merge_spans

PARTS = 4  # smaller parts cost less, and tell more of single words
# How far contributions may move, as variances, where the error of a part's embedding has 1: those of all words
# together, because the more words there are, the less is known of each; and the template's. Chosen on dev pairs
# (docs/method.md).
OF_WORDS = 2.0
OF_TEMPLATE = 1.0
DIRECTIONS = 8  # that tell lengths of contributions: as many cotangents more, where those are known by products alone


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked about one text.

    Attributes:
        belongs: (units, tokens), the tokens of what is kept or left out: words, or the groups that are explained.
        kept: (parts of the text, units).
        texts: the parts.
    """

    belongs: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    texts: list[str]

    def without(self, opens: Callable[[str], bool]) -> _Question:
        """Leave out parts that the model would take for something else than a text."""
        stays = [not opens(text) for text in self.texts]
        return replace(self, kept=self.kept[stays], texts=[*compress(self.texts, stays)])


def with_corrections(encoder: Encoder, sources: list[TokenSource], divisions: int) -> list[TokenSource]:
    """Ask the model about parts of texts, and keep with each text what it makes of them."""
    questions = [_ask(source, divisions).without(encoder.opens) for source in sources]
    by_options: dict[EncodeOptions, dict[str, Floats]] = {}
    for source, question in zip(sources, questions, strict=True):
        by_options.setdefault(source.input.options, {}).update(dict.fromkeys(question.texts, np.zeros(0)))
    for options, texts in by_options.items():
        if texts:
            with LOCK:  # as whole texts are embedded: without padding, which not every model ignores
                vectors, _ = encoder.embed(encoder.read(list(texts), options))
            texts.update(zip(texts, np.asarray(vectors, np.float64), strict=True))
    corrected = []
    for source, question in zip(sources, questions, strict=True):
        if question.texts:
            answers = np.stack([by_options[source.input.options][text] for text in question.texts])
            source = replace(source, correction=_correction(source, question, answers))
        corrected.append(source)
    return corrected


def _ask(source: TokenSource, divisions: int) -> _Question:
    """Divide the words of a text, or the groups that are explained, at random: the same way whenever it is asked."""
    text, side = source.input.text, source.side
    units, members = _units(source)
    if source.input.modality != "text" or len(units) < 2:
        return _Question(np.zeros((0, len(side)), bool), np.zeros((0, 0), bool), [])
    belongs = np.zeros((len(units), len(side)), bool)
    for unit, rows in enumerate(members):
        belongs[unit, source.owner[rows]] = True
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    rng, rows_kept = np.random.default_rng(list(digest)), {}
    for _ in range(divisions):
        for chosen in np.array_split(rng.permutation(len(units)), min(PARTS, len(units))):
            row = np.zeros(len(units), bool)
            row[chosen] = True
            rows_kept[row.tobytes()] = row  # short texts have few parts: each is asked about once
    kept = np.stack(list(rows_kept.values()))
    return _Question(belongs, kept, [keep_units(text, units, row) for row in kept])


def _units(source: TokenSource) -> tuple[list[Span], list[list[int]]]:
    """Return the characters and the rows of what is divided, as far as the model reads the text."""
    given, divided = source.input, source.divided
    if divided is None and source.side.unit not in ("token", "word"):  # sentences, or spans
        members = [np.flatnonzero(source.owner == part).tolist() for part in range(len(source.side))]
    else:
        read = max((high for _, high in given.offsets), default=0)  # a text may go on for long after what is read
        spans = find_spans(given.text[:read] if divided is None else given.text, divided or "words")
        members = group_spans(len(given.text), given.offsets, spans, together=divided not in (None, "words"))
    units = []
    for rows in members:
        low, high = merge_spans([given.offsets[row] for row in rows])
        inside = given.text[low:high]
        own = bool(inside.strip()) and given.kinds[rows[0]] not in TEMPLATE
        units.append((low + len(inside) - len(inside.lstrip()), low + len(inside.rstrip())) if own else None)
    return [span for span in units if span], [rows for span, rows in zip(units, members, strict=True) if span]


def _correction(source: TokenSource, question: _Question, answers: Floats) -> Correction:
    template = np.array([kind in TEMPLATE for kind in source.side.kinds], bool)
    receives = np.where(template, source.shares, 0.0)
    return Correction(question.belongs, question.kept, answers, receives / (receives.sum() or 1.0))


@cache
def directions(dim: int) -> Floats:
    """Return directions of the embedding by which the lengths of contributions are told (directions, dim).

    Contributions that are known only through products have no lengths. Their products with a few random directions
    tell them well enough, and are taken where contributions are known as well, so that both are corrected alike.
    """
    drawn = np.random.default_rng(0).normal(size=(DIRECTIONS, dim))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    drawn.flags.writeable = False  # they are kept
    return drawn


def find_moves(correction: Correction, along: Floats) -> tuple[Floats, Floats]:
    """Find how contributions are moved: to ``keep @ P + add``.

    Args:
        along: the contributions' products with the :func:`directions` (tokens, directions).

    Returns:
        ``keep`` (tokens, tokens) and ``add`` (tokens, dim).
    """
    belongs, asked = correction.belongs.astype(np.float64), correction.kept.astype(np.float64)
    # What the words lose or gain is divided among their tokens equally, and the template's by its shares.
    spread = [*(belongs / belongs.sum(1, keepdims=True))]
    lengths = np.linalg.norm(belongs @ along, axis=1)
    weights = lengths / lengths.mean() if lengths.any() else np.ones(len(belongs))
    variance = OF_WORDS * weights / len(belongs)
    if correction.receives.any():
        spread.append(correction.receives)
        variance = np.append(variance, OF_TEMPLATE)
        asked = np.hstack([asked, np.ones((len(asked), 1))])
    # Of changes that are free to take any value, those that keep the sum.
    covariance = np.diag(variance) - np.outer(variance, variance) / variance.sum()
    gain = covariance @ asked.T @ np.linalg.inv(asked @ covariance @ asked.T + np.eye(len(asked)))
    moves = np.stack(spread, axis=1) @ gain  # (tokens, parts of the text)
    always = belongs.sum(0) == 0
    present = correction.kept @ belongs + always
    return np.eye(len(always)) - moves @ present, moves @ correction.answers

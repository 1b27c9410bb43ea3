"""Correct what each word adds to an embedding by what the model makes of parts of the text.

A text's words are divided at random into four parts, a few times, and the model embeds each part by itself. What the
words of a part add to the whole text's embedding, with what the template adds, should be near to that: where it is not,
contributions are moved. They are moved as little as possible, as a ridge regression does, and their sum stays what it
is: what words lose others gain, or the template, which is there whatever the words are and may gain or lose freely.

With P the contributions, X which of them a part keeps, and E what the model makes of the parts, the corrected
contributions are P + G (E − X P). G does not depend on P, so that a correction can be found before P is, and can be
applied to products of P as well.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whymatch.encoders.encoder import Encoder
from whymatch.paths.jacobian import LOCK
from whymatch.quadrature import Floats
from whymatch.reading.inputs import Correction, EncodeOptions, TokenSource
from whymatch.reading.sides import TEMPLATE
from whymatch.words import Span, keep_units, shares, word_spans

PARTS = 4  # smaller parts cost less, and tell more of single words
# How strongly words keep what they have, against an error of a part's embedding: the more words there are, the less is
# known of each. Both were chosen on dev pairs (docs/truth.md).
STIFFNESS = 1.5
FREE = 100.0


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked about one text.

    Attributes:
        units: what is kept or left out: words, or the groups that are explained.
        kept: (parts of the text, units).
        texts: the parts.
    """

    units: list[Span]
    kept: NDArray[np.bool_]
    texts: list[str]


def with_corrections(encoder: Encoder, sources: list[TokenSource], divisions: int) -> list[TokenSource]:
    """Ask the model about parts of texts, and keep with each text how its contributions are corrected."""
    questions = [_ask(source, divisions) for source in sources]
    by_options: dict[EncodeOptions, dict[str, Floats]] = {}
    for source, question in zip(sources, questions, strict=True):
        by_options.setdefault(source.input.options, {}).update(dict.fromkeys(question.texts, np.zeros(0)))
    for options, texts in by_options.items():
        if texts:
            with LOCK:
                vectors = encoder.vectors(list(texts), options)
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
    side, text = source.side, source.input.text
    explained = [
        span for span, kind in zip(side.offsets, side.kinds, strict=True) if kind not in TEMPLATE and span[1] > span[0]
    ]
    units = explained
    if side.unit == "token":
        # What a model with a limit does not read, it does not explain, and is not asked about.
        words = word_spans(text)
        units = [word for word, seen in zip(words, shares(explained, words).any(1), strict=True) if seen]
    if source.input.modality != "text" or len(units) < 2:
        return _Question([], np.zeros((0, 0), bool), [])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    rng, rows = np.random.default_rng(list(digest)), {}
    for _ in range(divisions):
        for members in np.array_split(rng.permutation(len(units)), min(PARTS, len(units))):
            row = np.zeros(len(units), bool)
            row[members] = True
            rows[row.tobytes()] = row  # short texts have few parts: each is asked about once
    kept = np.stack(list(rows.values()))
    return _Question(units, kept, [keep_units(text, units, row) for row in kept])


def _correction(source: TokenSource, question: _Question, answers: Floats) -> Correction:
    """Find how contributions are moved: see above."""
    belongs = shares(source.side.offsets, question.units)  # (units, tokens)
    template = np.array([kind in TEMPLATE for kind in source.side.kinds], bool)
    # What the words lose or gain is divided among their tokens equally, and the template's by its shares.
    spread = [row / row.sum() for row in (belongs > 0).astype(np.float64)]
    variances = [1 / (STIFFNESS * len(spread))] * len(spread)
    asked = question.kept.astype(np.float64)
    pooled = source.shares if source.shares.ndim == 1 else source.shares.mean(1)
    receives = np.where(template, pooled, 0.0)
    if receives.any():
        spread.append(receives / receives.sum())
        variances.append(FREE)
        asked = np.hstack([asked, np.ones((len(asked), 1))])
    variance = np.array(variances)
    # Of changes that are free to take any value, those that keep the sum.
    covariance = np.diag(variance) - np.outer(variance, variance) / variance.sum()
    gain = covariance @ asked.T @ np.linalg.inv(asked @ covariance @ asked.T + np.eye(len(asked)))
    moves = np.stack(spread, axis=1) @ gain  # (tokens, parts of the text)
    always = belongs.sum(0) == 0
    present = question.kept @ belongs + always
    return Correction(np.eye(len(always)) - moves @ present, moves @ answers)

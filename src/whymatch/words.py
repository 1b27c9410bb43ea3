"""Words, sentences and other spans of a text, and the tokens that make them up."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Span: TypeAlias = tuple[int, int]  # characters from start to end
Groups: TypeAlias = str | Sequence[Span] | None  # "words", "sentences", spans, or None for tokens

UNITS = {"words": "word", "sentences": "sentence"}  # what one of each grouping is called


def quote(value: object, width: int = 60) -> str:
    """Quote a value for an error message: escaped, and no longer than a line."""
    quoted = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return quoted if len(quoted) <= width else f"{quoted[:width]}… ({len(quoted):,} characters)"


def check_text(value: object) -> str:
    """Return the value if a tokenizer can read it; otherwise raise an error that quotes it."""
    if not isinstance(value, str):
        raise TypeError(f"a text must be a str, not {type(value).__name__}: {quote(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text has a lone surrogate (U+{ord(value[error.start]):04X}) at character {error.start}, which no "
            f"tokenizer can read: {quote(value)}; decode the bytes it came from with errors='replace'"
        ) from None
    return value


# Words are found in the text, not taken from the tokenizer, so that they are the same for WordPiece, BPE and
# Unigram. A character becomes one letter: w letter, d digit, i ideograph or kana (a word each), m mark or joiner
# (stays with what it follows), a apostrophe, n dot or comma, s space, p any other.
_WORD = re.compile(r"im*|(?:[wd]m*|(?<=[wdm])a(?=[wd])|(?<=d)n(?=d))+|[^s]m*")
_IDEOGRAPHS = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


def _kind(character: str) -> str:
    if character in "'’":
        return "a"
    if character in ".,":
        return "n"
    category = unicodedata.category(character)
    if category[0] == "Z" or category == "Cc":
        return "s"
    if category[0] == "M" or category == "Cf" or category == "Sk":  # Sk has the emoji skin tones
        return "m"
    if category[0] == "N":
        return "d"
    if category[0] == "L" or character == "_":
        return "i" if _IDEOGRAPHS.match(character) else "w"
    return "p"


def word_spans(text: str) -> list[Span]:
    """Find the words and punctuation marks of a text."""
    return [match.span() for match in _WORD.finditer("".join(map(_kind, text)))]


# A sentence ends with its punctuation, and any closing quotes and brackets, before a space or at the end of a line; in
# scripts without spaces, with its punctuation.
_SENTENCE = re.compile(
    r"\S(?:.|(?<!\n)\n(?!\s*\n))*?(?:[.!?…]+[\"'”’)\]»]*(?=\s|$)|[。！？]+[」』”’]*|(?=\s*\n\s*\n)|\s*$)"
)


def sentence_spans(text: str) -> list[Span]:
    """Find the sentences of a text; a blank line ends one too."""
    spans = []
    for match in _SENTENCE.finditer(text):
        low, high = match.span()
        high = low + len(text[low:high].rstrip())
        if high > low:
            spans.append((low, high))
    return spans


def keep_units(text: str, units: Sequence[Span], kept: Iterable[bool], mask: str | None = None) -> str:
    """Return what is left of a text when some of its units are left out, or replaced by a mask.

    A unit keeps the space before it; where two words would otherwise become one, there is a space between them.
    """
    flags = list(kept)
    if all(flags):
        return text
    if mask is not None:
        pieces, end = [], 0
        for (low, high), stays in zip(units, flags, strict=True):
            pieces += [text[end:low], text[low:high] if stays else mask]
            end = high
        return "".join([*pieces, text[end:]])
    result, end, last = "", 0, -1
    for number, (low, high) in enumerate(units):
        if not flags[number]:
            continue
        if last >= 0:
            between = text[units[number - 1][1] : low]
            edges = _kind(text[end - 1]) + _kind(text[low])
            result += between or (" " if number > last + 1 and set(edges) <= set("wd") else "")
        result += text[low:high]
        end, last = high, number
    return result


def group_words(text: str, offsets: Iterable[Span]) -> list[list[int]]:
    """Group the numbers of tokens by word. A token without characters is a group of its own."""
    return group_spans(len(text), offsets, word_spans(text))


_LOOSE = -2  # stands for the last span of a group that is in none


def group_spans(length: int, offsets: Iterable[Span], spans: Sequence[Span], together: bool = False) -> list[list[int]]:
    """Group the numbers of tokens by span. A token that reaches into two spans joins them.

    Tokens outside every span are groups of their own; with ``together``, neighbouring ones that have characters share
    a group.
    """
    owner = [-1] * length
    for number, (low, high) in enumerate(spans):
        owner[low:high] = [number] * (high - low)
    groups: list[list[int]] = []
    last = -1  # the last span that the current group reaches
    for i, (low, high) in enumerate(offsets):
        if together and groups and low == high > 0:
            groups[-1].append(i)  # a space, to which some tokenizers give no width, between two words of one span
            continue
        inside = [number for number in owner[low:high] if number >= 0]
        loose = together and not inside and high > low
        if groups and (inside[0] <= last if inside else loose and last == _LOOSE):
            groups[-1].append(i)
        else:
            groups.append([i])
        last = max(inside) if inside else _LOOSE if loose else -1
    return groups


def label_groups(
    text: str, tokens: Sequence[str], offsets: Sequence[Span], groups: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """Label each group with the text as written, and find its span; a token without characters keeps its name."""
    spans = tuple(merge_spans([offsets[i] for i in group]) for group in groups)
    labels = tuple(text[low:high].strip() or tokens[group[0]] for (low, high), group in zip(spans, groups, strict=True))
    return labels, spans


def merge_spans(spans: Sequence[Span]) -> Span:
    """Return the span from the first character to the last."""
    return min(low for low, _ in spans), max(high for _, high in spans)


def shares(pieces: Sequence[Span], units: Sequence[Span]) -> NDArray[np.floating]:
    """Return (units, pieces): the share of each piece that belongs to each unit, by characters.

    Each column sums to 1, or to 0 for a piece that no unit touches.
    """
    low, high = np.array(pieces, np.int64).reshape(-1, 2).T
    start, stop = np.array(units, np.int64).reshape(-1, 2).T[:, :, None]
    overlap = np.maximum(np.minimum(high, stop) - np.maximum(low, start), 0).astype(np.float64)
    total = overlap.sum(0)
    return np.asarray(overlap / np.where(total > 0, total, 1))


def check_groups(groups: Any) -> Groups:
    """Return the grouping, with spans as a tuple of pairs; otherwise raise an error that quotes it."""
    if groups is None or (isinstance(groups, str) and groups in UNITS):
        return groups
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        raise ValueError(f"groups={groups!r:.60} is not known; give 'words', 'sentences', a list of spans, or None")
    try:
        spans = tuple((int(low), int(high)) for low, high in groups)
    except (TypeError, ValueError):
        raise ValueError(f"groups={groups!r:.80} is not a list of spans: give (start, end) of each") from None
    if not spans:
        raise ValueError("groups=[] has no spans; give some, or None for tokens")
    if any(low >= high or low < 0 for low, high in spans) or any(a[1] > b[0] for a, b in pairwise(spans)):
        raise ValueError(f"groups={groups!r:.80}: spans are (start, end), in order, and do not overlap")
    return spans


def find_spans(text: str, groups: str | Sequence[Span]) -> Sequence[Span]:
    """Find the spans of a grouping in a text."""
    if isinstance(groups, str):
        return word_spans(text) if groups == "words" else sentence_spans(text)
    beyond = [span for span in groups if span[1] > len(text)]
    if beyond:
        raise ValueError(f"groups: the span {beyond[0]} is beyond the {len(text)} characters of {quote(text)}")
    return groups

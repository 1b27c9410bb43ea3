"""Texts and their parts: words, sentences, and the tokens that make them up."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]


def shown(value: object, width: int = 60) -> str:
    """A value as an error message repeats it: quoted, escaped and not longer than a line."""
    quoted = ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)
    return quoted if len(quoted) <= width else f"{quoted[:width]}… ({len(quoted):,} characters)"


def check_text(value: object) -> str:
    """The value, if a tokenizer can read it; otherwise an error that names it."""
    if not isinstance(value, str):
        raise TypeError(f"a text must be a str, not {type(value).__name__}: {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text has a lone surrogate (U+{ord(value[error.start]):04X}) at character {error.start}, which no "
            f"tokenizer can read: {shown(value)}; decode the bytes it came from with errors='replace'"
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
    """The character spans of the words and punctuation marks of a text."""
    return [match.span() for match in _WORD.finditer("".join(map(_kind, text)))]


# A sentence ends with its marks, and the quotes and brackets that close it, before a space, or at a line's end; in
# scripts that do not write spaces, with its marks.
_SENTENCE = re.compile(
    r"\S(?:.|(?<!\n)\n(?!\s*\n))*?(?:[.!?…]+[\"'”’)\]»]*(?=\s|$)|[。！？]+[」』”’]*|(?=\s*\n\s*\n)|\s*$)"
)


def sentence_spans(text: str) -> list[Span]:
    """The character spans of the sentences of a text; a blank line ends one too."""
    spans = []
    for match in _SENTENCE.finditer(text):
        low, high = match.span()
        high = low + len(text[low:high].rstrip())
        if high > low:
            spans.append((low, high))
    return spans


def group_words(text: str, offsets: Iterable[Span]) -> list[list[int]]:
    """Token numbers, word by word. A token without characters is a group of its own."""
    return group_spans(len(text), offsets, word_spans(text))


_LOOSE = -2  # stands for the last span of a group that is in none


def group_spans(length: int, offsets: Iterable[Span], spans: Sequence[Span], together: bool = False) -> list[list[int]]:
    """Token numbers, span by span. A token that reaches into two spans joins them.

    Tokens in no span are groups of their own, or, if they have characters, ``together`` with their neighbours.
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


def labels_of(
    text: str, tokens: Sequence[str], offsets: Sequence[Span], groups: Sequence[Sequence[int]]
) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """A group's label is the text as it was written, and its span; a token without characters keeps its name."""
    spans = tuple(merge_spans([offsets[i] for i in group]) for group in groups)
    labels = tuple(text[low:high].strip() or tokens[group[0]] for (low, high), group in zip(spans, groups, strict=True))
    return labels, spans


def merge_spans(spans: Sequence[Span]) -> Span:
    """The span from the first character to the last."""
    return min(low for low, _ in spans), max(high for _, high in spans)

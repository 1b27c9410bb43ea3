"""Texts as the model itself reads them: ids, tokens and character offsets from one tokenizer call; words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Text:
    """One text, tokenized. Every tuple has one entry per token, in the model's order."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]  # characters of ``text``; empty for what a template or a prompt put beside it
    special: tuple[bool, ...]  # added by the tokenizer's template, not by the text
    truncated: bool
    features: dict[str, Any] = field(repr=False)  # whatever else the model's own preprocessing gave

    def __len__(self) -> int:
        return len(self.ids)


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


def tokenize(model: SentenceTransformer, texts: Sequence[str]) -> list[Text]:
    """Tokenize with the model's own preprocessing, so that prompts, truncation and templates are its own."""
    tokenizer = getattr(model, "tokenizer", None)
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"character offsets need a fast tokenizer, and this model has {type(tokenizer).__name__}; save its "
            "tokenizer.json with transformers and load that"
        )
    wanted = {"padding": False, "return_offsets_mapping": True, "return_special_tokens_mask": True}
    prompt = model.prompts.get(model.default_prompt_name or "", "")  # what ``encode`` would put before each text
    kwargs = {"text": wanted, "common": {"return_tensors": None}}
    batch = model.preprocess(list(texts), prompt=prompt or None, processing_kwargs=kwargs)
    known = {"input_ids", "offset_mapping", "special_tokens_mask"}
    result = []
    for i, text in enumerate(texts):
        # A value that is not one per text (the modality's name, a prompt's length) belongs to all of them.
        features = {k: v[i] if isinstance(v, list) else v for k, v in batch.items() if k not in known}
        special = tuple(bool(flag) for flag in batch["special_tokens_mask"][i])
        result.append(
            Text(
                text=text,
                ids=tuple(batch["input_ids"][i]),
                tokens=tuple(batch.encodings[i].tokens),
                offsets=tuple(
                    (0, 0) if added else (max(0, low - len(prompt)), max(0, high - len(prompt)))
                    for (low, high), added in zip(batch["offset_mapping"][i], special, strict=True)
                ),
                special=special,
                truncated=bool(batch.encodings[i].overflowing),
                features=features,
            )
        )
    return result


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


def group_words(text: str, offsets: Iterable[Span]) -> list[list[int]]:
    """Token numbers, word by word. A token without characters is a group of its own."""
    owner = [-1] * len(text)
    for number, (low, high) in enumerate(word_spans(text)):
        owner[low:high] = [number] * (high - low)
    groups: list[list[int]] = []
    last = -1  # the last word that the current group reaches
    for i, (low, high) in enumerate(offsets):
        inside = [number for number in owner[low:high] if number >= 0]
        if groups and inside and inside[0] <= last:
            groups[-1].append(i)
        else:
            groups.append([i])
        last = max(inside, default=-1)
    return groups


def merge_spans(spans: Sequence[Span]) -> Span:
    """The span from the first character to the last."""
    return min(low for low, _ in spans), max(high for _, high in spans)

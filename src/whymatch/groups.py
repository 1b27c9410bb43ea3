"""What is explained: tokens, or groups of them, which cost as much as a token each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from whymatch.inputs import Input
from whymatch.picture import thumbnail
from whymatch.text import Span, group_spans, labels_of, sentence_spans, shown, word_spans

Groups: TypeAlias = str | Sequence[Span] | None

UNITS = {"words": "word", "sentences": "sentence"}


def check_groups(groups: Any) -> Groups:
    """The grouping, with spans as a tuple of pairs; otherwise an error that names it."""
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
    if any(low >= high or low < 0 for low, high in spans) or any(one[1] > other[0] for one, other in pairwise(spans)):
        raise ValueError(f"groups={groups!r:.80}: spans are (start, end), in order, and do not overlap")
    return spans


def grouped(given: Input, groups: Groups) -> tuple[NDArray[np.integer], dict[str, Any]]:
    """The group of each row of an input, and what results say of the groups."""
    rows = [[i] for i in range(len(given))]
    unit = "token" if given.modality == "text" else "patch"
    if groups is not None and given.modality == "text":
        unit = UNITS[groups] if isinstance(groups, str) else "span"
        spans = _spans(given.text, groups)
        rows = group_spans(len(given.text), given.offsets, spans, together=unit != "word")
    tokens, offsets = labels_of(given.text, given.tokens, given.offsets, rows)
    owner = np.zeros(len(given), dtype=np.int64)
    for number, members in enumerate(rows):
        owner[members] = number
    alone = unit in ("token", "patch")
    return owner, {
        "text": given.text,
        "tokens": given.tokens if alone else tokens,
        "offsets": given.offsets if alone else offsets,
        "kinds": tuple(given.kinds[members[0]] if len(members) == 1 else "group" for members in rows),
        "boxes": given.boxes,
        "image": None if given.modality == "text" else thumbnail(given.value),
        "truncated": given.truncated,
        "unit": unit,
        "shares": _shares(given, rows),
    }


def _shares(given: Input, rows: Sequence[Sequence[int]]) -> NDArray[np.floating]:
    """What a group takes of the reference: its share of the tokens that the pooling sees."""
    first = given.unpooled if given.unpooled < len(given) else 0
    seen = np.array([sum(i >= first for i in members) for members in rows], dtype=np.float64)
    return np.asarray(seen / seen.sum())


def _spans(text: str, groups: str | Sequence[Span]) -> Sequence[Span]:
    if isinstance(groups, str):
        return word_spans(text) if groups == "words" else sentence_spans(text)
    beyond = [span for span in groups if span[1] > len(text)]
    if beyond:
        raise ValueError(f"groups: the span {beyond[0]} is beyond the {len(text)} characters of {shown(text)}")
    return groups

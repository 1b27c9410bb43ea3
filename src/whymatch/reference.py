"""What "nothing" looks like to a tokenizer: the same template, its content replaced by one special token."""

from __future__ import annotations

from typing import Any

from whymatch.text import Text

REFERENCES = ("pad", "unk", "mask")


def check_reference(tokenizer: Any, name: str) -> int:
    """The id that stands for content in the reference called ``name``."""
    if name not in REFERENCES:
        raise ValueError(f"reference={name!r} is not known; choose one of {', '.join(map(repr, REFERENCES))}")
    token = getattr(tokenizer, f"{name}_token_id")
    # An id may be 0 (RoBERTa's <s>, many models' [PAD]), so only None means that there is none.
    if token is None:
        has = [other for other in REFERENCES if getattr(tokenizer, f"{other}_token_id") is not None]
        raise ValueError(f"reference={name!r}: this tokenizer has no {name} token; it has {', '.join(has) or 'none'}")
    return int(token)


def reference_ids(text: Text, token: int) -> tuple[int, ...]:
    """The ids of the reference of a text: as long as the text, the template's own tokens kept."""
    return tuple(i if added else token for i, added in zip(text.ids, text.special, strict=True))

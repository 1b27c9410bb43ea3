"""References, which stand for no content: the template with its content replaced, a blank picture, or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whymatch.reading.inputs import Input
from whymatch.words import check_text, quote

TOKENS = ("pad", "unk", "mask")

Reference: TypeAlias = str | Callable[[Tensor], Tensor]


def name_of(reference: Reference) -> str:
    """Return the name by which results call the reference."""
    return reference if isinstance(reference, str) else getattr(reference, "__name__", type(reference).__name__)


def check_reference(reference: Any) -> Reference:
    """Return the reference if it is a text or a function; otherwise raise an error that quotes it."""
    if isinstance(reference, str):
        if not check_text(reference).strip():
            raise ValueError(
                f"reference={reference!r} is an empty text; give 'pad', 'unk', 'mask', a text or a function"
            )
        return reference
    if not callable(reference):
        raise TypeError(f"reference={reference!r:.60} is not known; give 'pad', 'unk', 'mask', a text or a function")
    return reference  # type: ignore[no-any-return]


def content_ids(tokenizer: Any, reference: str) -> list[int]:
    """Return the token ids that replace content, repeated as often as needed."""
    if reference not in TOKENS:
        ids: list[int] = tokenizer(reference, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError(f"reference={quote(reference)} has no tokens; give a text that has some")
        return ids
    token = getattr(tokenizer, f"{reference}_token_id")
    # An id may be 0 (RoBERTa's <s>, many models' [PAD]), so only None means that there is none.
    if token is None:
        known = [repr(other) for other in TOKENS if getattr(tokenizer, f"{other}_token_id") is not None]
        raise ValueError(
            f"reference={reference!r}: this tokenizer has no {reference} token; it has {', '.join(known) or 'none'}. "
            "Give one of those, a text, or a function of the representation"
        )
    return [int(token)]


def reference_features(ids: list[int], given: Input) -> dict[str, Any]:
    """Build the reference of an input: as long as the input, with the template's and the prompt's tokens kept."""
    if given.modality == "image":  # blank, of the colour that the model's processor turns into zero
        return given.features | {"pixel_values": torch.zeros_like(given.features["pixel_values"])}
    content = [i for i, kind in enumerate(given.kinds) if kind == "text"]
    replaced = list(given.features["input_ids"])
    for number, i in enumerate(content):
        replaced[i] = ids[number % len(ids)]
    return given.features | {"input_ids": replaced}


def reference_states(reference: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Apply a reference that is a function to each representation (tokens, dimensions)."""
    rows = []
    for x in hidden:
        r = reference(x.clone())
        if not isinstance(r, Tensor) or r.shape != x.shape:
            result = tuple(r.shape) if isinstance(r, Tensor) else type(r).__name__
            raise ValueError(
                f"reference={name_of(reference)} gives {result}; it is handed the representation of one input, "
                f"{tuple(x.shape)}, and must give one of that shape"
            )
        rows.append(r.to(x))
    return torch.stack(rows)

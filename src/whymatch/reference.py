"""What "nothing" looks like to an encoder: the same template, its content replaced; a blank picture; or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whymatch.inputs import Input
from whymatch.text import check_text, shown

TOKENS = ("pad", "unk", "mask")

Reference: TypeAlias = str | Callable[[Tensor], Tensor]


class _Usual(str):
    """A reference that nobody asked for: an adjusted model has one of its own instead."""


USUAL_REFERENCE = _Usual("pad")


def name_of(reference: Reference) -> str:
    """How results name the reference that they came from."""
    return reference if isinstance(reference, str) else getattr(reference, "__name__", type(reference).__name__)


def check_reference(reference: Any) -> Reference:
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
    """The ids that take the place of content, over and over."""
    if reference not in TOKENS:
        ids: list[int] = tokenizer(reference, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError(f"reference={shown(reference)} has no tokens; give a text that has some")
        return ids
    token = getattr(tokenizer, f"{reference}_token_id")
    # An id may be 0 (RoBERTa's <s>, many models' [PAD]), so only None means that there is none.
    if token is None:
        has = [repr(other) for other in TOKENS if getattr(tokenizer, f"{other}_token_id") is not None]
        raise ValueError(
            f"reference={reference!r}: this tokenizer has no {reference} token; it has {', '.join(has) or 'none'}. "
            "Give one of those, a text, or a function of the representation"
        )
    return [int(token)]


def reference_features(ids: list[int], given: Input) -> dict[str, Any]:
    """The features of the reference of an input: as long as the input, the template's and the prompt's tokens kept."""
    if given.modality == "image":  # a blank picture, of the colour that the model's processor makes zero
        return given.features | {"pixel_values": torch.zeros_like(given.features["pixel_values"])}
    content = [i for i, kind in enumerate(given.kinds) if kind == "text"]
    replaced = list(given.features["input_ids"])
    for number, i in enumerate(content):
        replaced[i] = ids[number % len(ids)]
    return given.features | {"input_ids": replaced}


def reference_states(reference: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """The reference that a function makes of each representation (tokens, dimensions)."""
    rows = []
    for x in hidden:
        r = reference(x.clone())
        if not isinstance(r, Tensor) or r.shape != x.shape:
            found = tuple(r.shape) if isinstance(r, Tensor) else type(r).__name__
            raise ValueError(
                f"reference={name_of(reference)} gives {found}; it is handed the representation of one input, "
                f"{tuple(x.shape)}, and must give one of that shape"
            )
        rows.append(r.to(x))
    return torch.stack(rows)

"""One side of a pair, as results describe it: an input's tokens, or groups of them, and how they were derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whymatch.reading.pictures import Box, Image
from whymatch.words import Span, group_words, label_groups

KINDS = ("text", "special", "prompt", "patch", "group")
TEMPLATE = ("special", "prompt")  # the kinds that are the model's own, not the input's


def _none() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One side of a pair. Tuples and arrays have one entry per part: per token, or per group of tokens.

    Attributes:
        text: the text; the name of a picture.
        tokens: what each part is called.
        offsets: the characters of the text that each part stands for; empty for what is not part of the text.
        kinds: "text", "special" (added by the model's template), "prompt", "patch" (of a picture), or "group" for a
            part of several tokens.
        boxes: the pixels of each patch, if the side is a picture.
        image: a small copy of the picture as a data: address, with the picture's own width and height.
        truncated: whether the model read only the beginning of the text.
        unit: what a part is: token, word, sentence, span, patch or group.
        nodes: the number of points on the path at which derivatives were taken.
        mode: how the side was derived: "forward", "reverse", "pairwise" or "none".
        effects: each part's product with the other side's reference; zero when references are folded.
        errors: the estimated numerical error of each part's contribution, relative to the embedding's length; empty
            where it is not known.
        sizes: the length of each part's contribution, relative to the embedding's length; likewise.
        own: each part's product with its own side's embedding, in the unit of the score: they sum to the input's
            similarity with itself. Empty where it is not known.
        moved: how much of the special tokens' contributions was moved to content, relative to the embedding's length.
    """

    text: str
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    kinds: tuple[str, ...]
    boxes: tuple[Box, ...] | None = None
    image: Image | None = None
    truncated: bool = False
    unit: str = "token"
    nodes: int = 0
    mode: str = "none"
    effects: NDArray[np.float64] = field(default_factory=_none)
    errors: NDArray[np.float64] = field(default_factory=_none)
    sizes: NDArray[np.float64] = field(default_factory=_none)
    own: NDArray[np.float64] = field(default_factory=_none)
    moved: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def content(self) -> list[int]:
        """The numbers of the parts that belong to the input itself, not to the model's template or prompt."""
        return [i for i, kind in enumerate(self.kinds) if kind not in TEMPLATE]

    def select(self, numbers: Sequence[int]) -> Side:
        """Return the side with only some of its parts."""
        kept = list(numbers)
        return replace(
            self,
            tokens=tuple(self.tokens[i] for i in kept),
            offsets=tuple(self.offsets[i] for i in kept),
            kinds=tuple(self.kinds[i] for i in kept),
            boxes=None if self.boxes is None else tuple(self.boxes[i] for i in kept),
            effects=self.effects[kept],
            errors=self.errors[kept] if len(self.errors) else self.errors,
            sizes=self.sizes[kept] if len(self.sizes) else self.sizes,
            own=self.own[kept] if len(self.own) else self.own,
        )

    def words(self, reduce: str = "sum") -> tuple[Side, NDArray[np.float64]]:
        """Merge tokens into words.

        Returns:
            The side over words, and the matrix (words, tokens) that merges rows: it sums them, or with
            ``reduce="mean"`` averages them.
        """
        groups = group_words(self.text, self.offsets)
        merge = np.zeros((len(groups), len(self)))
        for number, group in enumerate(groups):
            merge[number, group] = 1 / len(group) if reduce == "mean" else 1
        labels, spans = label_groups(self.text, self.tokens, self.offsets, groups)
        side = replace(
            self,
            tokens=labels,
            offsets=spans,
            kinds=tuple(self.kinds[group[0]] for group in groups),
            unit="word" if self.unit == "token" else self.unit,
            effects=merge @ self.effects,
            # Errors and lengths of sums are at most the sums of those of their terms.
            errors=merge @ self.errors if len(self.errors) else self.errors,
            sizes=merge @ self.sizes if len(self.sizes) else self.sizes,
            own=merge @ self.own if len(self.own) else self.own,
        )
        return side, merge

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_dict(cls, data: Any) -> Side:
        """Build a side from what :meth:`to_dict` returns; raise ValueError for anything else."""
        if not isinstance(data, dict):
            raise ValueError(f"a side is a {type(data).__name__}, not an object")
        data = {"own": [], "moved": 0.0, **data}  # which earlier versions did not save
        missing = [each.name for each in fields(cls) if each.name not in data]
        if missing:
            raise ValueError(f"a side has no {missing[0]!r}: it is incomplete")
        tokens = _strings(data["tokens"], "tokens")
        count = len(tokens)
        kinds = _strings(data["kinds"], "kinds", count)
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"the kind {unknown[0]!r:.60} is not known; it is one of {', '.join(KINDS)}")
        image = data["image"]
        if image is not None:
            if not isinstance(image, list | tuple) or len(image) != 3 or not isinstance(image[0], str):
                raise ValueError("image is not an address, a width and a height")
            image = (image[0], _integer(image[1], "image's width"), _integer(image[2], "image's height"))
        errors, sizes = (_lengths(data[name], name, count) for name in ("errors", "sizes"))
        if len(errors) != len(sizes):
            raise ValueError(
                f"there are {len(errors)} errors of parts, and {len(sizes)} sizes: both are known, or neither"
            )
        return cls(
            text=_string(data["text"], "text"),
            tokens=tokens,
            offsets=_spans(data["offsets"], count),
            kinds=kinds,
            boxes=None
            if data["boxes"] is None
            else tuple((a, b, c, d) for a, b, c, d in _integers(data["boxes"], "boxes", count, 4)),
            image=image,
            truncated=_boolean(data["truncated"], "truncated"),
            unit=_string(data["unit"], "unit"),
            nodes=_count(data["nodes"], "nodes"),
            mode=_string(data["mode"], "mode"),
            effects=numbers(data["effects"], "effects", (count,)),
            errors=errors,
            sizes=sizes,
            own=numbers(data["own"], "own", (count if data["own"] else 0,)),
            moved=float(numbers(data["moved"], "moved", ())),
        )


def numbers(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return nested lists as an array of finite numbers of this shape; otherwise raise ValueError."""
    try:
        array = np.asarray(value)
        if array.size and (array.dtype == bool or array.dtype.kind not in "iuf"):
            raise ValueError(f"it holds {array.dtype}")
        array = array.astype(np.float64).reshape(shape) if not array.size else array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} is not an array of numbers ({error})") from None
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return array


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [list(entry) if isinstance(entry, tuple) else entry for entry in value]
    return value


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is a {type(value).__name__}, not a text")
    return value


def _strings(value: Any, name: str, count: int | None = None) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name} is a {type(value).__name__}, not a list of texts")
    if count is not None and len(value) != count:
        raise ValueError(f"there are {len(value)} {name} for {count} tokens")
    return tuple(_string(entry, f"one of {name}") for entry in value)


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.60}, not true or false")
    return value


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r:.60}, not a whole number")
    return value


def _count(value: Any, name: str) -> int:
    if _integer(value, name) < 0:
        raise ValueError(f"{name} is {value!r:.60}, which is below 0")
    return int(value)


def _lengths(value: Any, name: str, count: int) -> NDArray[np.float64]:
    """Return a length for each part, or none where they are not known."""
    lengths = numbers(value, name, (count if value else 0,))
    if (lengths < 0).any():
        raise ValueError(f"{name} holds {lengths.min():g}, which is below 0")
    return lengths


def _spans(value: Any, count: int) -> tuple[Span, ...]:
    spans = tuple((low, high) for low, high in _integers(value, "offsets", count, 2))
    for low, high in spans:
        if not 0 <= low <= high:
            raise ValueError(f"one of offsets is {[low, high]}, which is no span of a text")
    return spans


def _integers(value: Any, name: str, count: int, width: int) -> list[tuple[int, ...]]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != count:
        raise ValueError(f"{name} is not a list of {count}, one for each token")
    entries = []
    for entry in value:
        if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != width:
            raise ValueError(f"one of {name} is {entry!r:.60}, not {width} whole numbers")
        entries.append(tuple(_integer(part, f"one of {name}") for part in entry))
    return entries

"""Texts and pictures as the model itself reads them, row by row of its hidden states."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whymatch.picture import Box, boxes_of, open_picture
from whymatch.text import Span, check_text, shown

Value: TypeAlias = Any  # a text, a Pillow image, or the path of one


@dataclass(frozen=True)
class Reading:
    """What ``encode`` is told beside an input."""

    task: str | None = None
    prompt_name: str | None = None
    prompt: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """What ``encode``, and each module's ``forward``, is given beside the prompt."""
        return {} if self.task is None else {"task": self.task}

    def resolve(self, model: Any) -> str | None:
        """The prompt that the model's own ``encode``, ``encode_query`` or ``encode_document`` puts before a text."""
        if self.prompt is not None:
            return self.prompt
        name = self.prompt_name
        if name is None:
            usual = {"query": ("query",), "document": ("document", "passage", "corpus")}.get(self.task or "", ())
            name = next((each for each in usual if each in model.prompts), model.default_prompt_name)
            return model.prompts.get(name) if name is not None else None
        if name not in model.prompts:
            raise ValueError(f"prompt_name={name!r}: this model has the prompts {', '.join(model.prompts) or '(none)'}")
        prompt: str = model.prompts[name]
        return prompt


@dataclass(frozen=True, eq=False)
class Input:
    """One input, preprocessed. Every tuple has one entry per row of the hidden states, in the model's order."""

    key: Hashable  # equal for inputs that are the same
    value: Value
    text: str  # a picture's name
    reading: Reading
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]  # characters of ``text``; empty for what is not a part of it
    kinds: tuple[str, ...]  # "text", "special" (of the template), "prompt" or "patch"
    truncated: bool
    reader: Any  # the model's module that reads it
    unpooled: int = 0  # how many rows, from the first, the pooling leaves out: those of a prompt
    boxes: tuple[Box, ...] | None = None  # pixels of the picture, row by row
    features: dict[str, Any] = field(repr=False, default_factory=dict)  # the model's own preprocessing

    @property
    def modality(self) -> str:
        return "text" if self.boxes is None else "image"

    def __len__(self) -> int:
        return len(self.tokens)


def key_of(value: Value, reading: Reading) -> Hashable:
    """Texts are the same if they are equal, pictures if they are one object or one file."""
    if isinstance(value, str):
        return value, reading
    return (os.fspath(value) if isinstance(value, os.PathLike) else id(value)), type(value), reading


def check_input(value: Value) -> Value:
    """The value, if it is a text, a Pillow image or a path; otherwise an error that names it."""
    if isinstance(value, os.PathLike) or type(value).__module__.startswith("PIL."):
        return value
    return check_text(value)


def batched(inputs: Sequence[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """The features of inputs with as many rows, which need no padding, as one batch."""
    batch: dict[str, Any] = {}
    for key, value in inputs[0].items():
        if isinstance(value, list):
            batch[key] = torch.tensor([features[key] for features in inputs], device=device)
        elif isinstance(value, Tensor):
            batch[key] = torch.stack([features[key] for features in inputs]).to(device)
        else:
            batch[key] = value  # the modality's name, a prompt's length: of all of them
    return batch


def read_texts(model: Any, texts: Sequence[str], reading: Reading) -> list[Input]:
    """Tokenize with the model's own preprocessing, so that prompts, truncation and templates are its own."""
    prompt = reading.resolve(model)
    wanted = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    kwargs = {"text": wanted, "common": {"return_tensors": None}}
    batch, reader = _preprocess(model, texts, prompt, reading, processing_kwargs=kwargs)
    if batch.get("modality") == "message":
        raise TypeError(
            f"{type(reader).__name__} reads texts through a chat template, in which their characters cannot be found "
            'again; give the model a modality_config that has "text" alone'
        )
    if "offset_mapping" not in batch:
        raise TypeError(
            f"{type(reader).__name__} gives no tokens with character offsets: models that begin with a transformer and "
            "a fast tokenizer can be explained. Save a slow tokenizer's tokenizer.json with transformers, load that; "
            "other encoders can be explained with whymatch.decompose_callable"
        )
    before = len(prompt or "")
    beside = {"offset_mapping", "special_tokens_mask"}
    result = []
    for i, text in enumerate(texts):
        special = [bool(flag) for flag in batch["special_tokens_mask"][i]]
        spans = batch["offset_mapping"][i]
        kinds = tuple(
            "special" if added else "prompt" if 0 < high <= before else "text"
            for (_, high), added in zip(spans, special, strict=True)
        )
        offsets = tuple(
            (max(0, low - before), high - before) if kind == "text" and high > before else (0, 0)
            for (low, high), kind in zip(spans, kinds, strict=True)
        )
        tokens, truncated = _tokens(reader, batch, i, (prompt or "") + text)
        labels = (
            token if kind == "special" else _label(token, ((prompt or "") + text)[low:high])
            for token, kind, (low, high) in zip(tokens, kinds, spans, strict=True)
        )
        result.append(
            Input(
                key=key_of(text, reading),
                value=text,
                text=text,
                reading=reading,
                tokens=tuple(labels),
                offsets=offsets,
                kinds=kinds,
                truncated=truncated,
                reader=reader,
                unpooled=_unpooled(model, batch),
                # A value that is not one per text belongs to all of them.
                features={k: v[i] if isinstance(v, list) else v for k, v in batch.items() if k not in beside},
            )
        )
    return result


def _preprocess(
    model: Any, values: Sequence[Any], prompt: str | None, reading: Reading, **kwargs: Any
) -> tuple[Any, Any]:
    """What the model's own preprocessing gives, and which of its modules, of one or more, did it. Of a private copy."""
    readers: list[Any] = []

    def noted(module: Any) -> Any:
        run = module.preprocess

        @wraps(run)
        def preprocess(*args: Any, **options: Any) -> Any:
            readers.append(module)
            wanted = options.get("processing_kwargs")
            # Padding is only there to make a batch, unless the model says that it is a part of its texts.
            if wanted and not (getattr(module, "processing_kwargs", None) or {}).get("text", {}).get("padding"):
                options["processing_kwargs"] = wanted | {"text": wanted["text"] | {"padding": False}}
            return run(*args, **options)

        return preprocess

    wrapped = [
        module
        for module in model.modules()
        if module is not model and hasattr(module, "preprocess") and not hasattr(module, "sub_modules")
    ]
    for module in wrapped:
        module.preprocess = noted(module)
    try:
        batch = model.preprocess(list(values), prompt=prompt, task=reading.task, **kwargs)
    except TypeError as error:
        if readers and hasattr(readers[0], "auto_model"):
            raise
        raise TypeError(
            f"{type(model[0]).__name__} cannot be asked for tokens ({error}): models that begin with a transformer and "
            "a fast tokenizer can be explained, others with whymatch.decompose_callable"
        ) from None
    finally:
        for module in wrapped:
            del module.preprocess
    return batch, readers[0] if readers else model[0]


def _unpooled(model: Any, batch: Any) -> int:
    leaves_out = any(getattr(module, "include_prompt", True) is False for module in model.modules())
    return int(batch.get("prompt_length") or 0) if leaves_out else 0


def _tokens(reader: Any, batch: Any, i: int, text: str) -> tuple[list[str], bool]:
    """The tokens of a text as the vocabulary has them, and whether the model reads only its beginning."""
    encodings = getattr(batch, "encodings", None)
    if encodings:
        return encodings[i].tokens, bool(encodings[i].overflowing)
    # A processor of several modalities hands on numbers only.
    end = max((high for _, high in batch["offset_mapping"][i]), default=0)
    return reader.tokenizer.convert_ids_to_tokens(batch["input_ids"][i]), bool(text[end:].strip())


def _label(token: str, piece: str) -> str:
    """The token as the vocabulary has it, where a person can read it; otherwise the characters that it stands for."""
    if not piece.strip() or (token.startswith(("[", "<")) and token.endswith(("]", ">"))):
        return token
    return token if _folded(token.removeprefix("##")) == _folded(piece) else piece.strip()


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    return "".join(c for c in plain if not unicodedata.combining(c)).casefold()


def read_picture(model: Any, value: Value, reading: Reading) -> Input:
    """Preprocess one picture; which rows the model makes of it, :func:`with_patches` says when that is known."""
    picture, name = open_picture(value)
    batch, reader = _preprocess(model, [picture], None, reading)
    if "pixel_values" not in batch or batch["pixel_values"].ndim != 4:
        raise TypeError(f"the model's preprocessing makes no grid of pixels of a picture: {shown(name)}")
    return Input(
        key=key_of(value, reading),
        value=picture,
        text=name,
        reading=reading,
        tokens=(),
        offsets=(),
        kinds=(),
        truncated=False,
        reader=reader,
        boxes=(),
        features={k: v[0] if isinstance(v, Tensor) else v for k, v in batch.items()},
    )


def with_patches(given: Input, rows: int, patch: int) -> Input:
    """A picture with the patches, and what precedes them, that are the rows of its hidden states."""
    seen = given.features["pixel_values"].shape[-2:]
    high, wide = (size // patch for size in seen)
    before = rows - high * wide
    if before < 0:
        raise TypeError(f"{rows} hidden states are fewer than the {high} × {wide} patches of {shown(given.text)}")
    special = ["[CLS]"] if before == 1 else [f"[{i}]" for i in range(before)]
    return replace(
        given,
        tokens=(*special, *(f"{row},{column}" for row in range(high) for column in range(wide))),
        offsets=((0, 0),) * rows,
        kinds=("special",) * before + ("patch",) * (high * wide),
        boxes=((0, 0, 0, 0),) * before + boxes_of(given.reader, given.value.size, seen, patch),
    )

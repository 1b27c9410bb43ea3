"""Read texts and pictures as the model itself does, row by row of its hidden states."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch.reading.pictures import Box, boxes_of, open_picture, thumbnail
from whymatch.reading.sides import Side
from whymatch.reading.templates import Place, record_templates
from whymatch.words import UNITS, Groups, Span, check_text, find_spans, group_spans, label_groups, quote

Value: TypeAlias = Any  # a text, a Pillow image, or the path of an image file
Labels: TypeAlias = tuple[tuple[str, ...], tuple[Span, ...], tuple[str, ...]]  # names, characters and kinds of tokens


@dataclass(frozen=True)
class EncodeOptions:
    """The options of ``encode``: task, name of a prompt, prompt."""

    task: str | None = None
    prompt_name: str | None = None
    prompt: str | None = None

    def __post_init__(self) -> None:
        for name in ("task", "prompt_name", "prompt"):
            if not isinstance(getattr(self, name), str | None):
                raise TypeError(
                    f"{name}={getattr(self, name)!r:.80} is not a text: give one, or a pair where there are two sides"
                )

    @property
    def kwargs(self) -> dict[str, str]:
        """The keyword arguments of ``encode``, and of each module's ``forward``, other than the prompt."""
        return {} if self.task is None else {"task": self.task}

    def resolved(self, model: Any) -> EncodeOptions:
        """Return the same options with the prompt in full, which stays when the model's own prompts change."""
        return EncodeOptions(self.task, prompt=self.resolve_prompt(model) or "")

    def resolve_prompt(self, model: Any) -> str | None:
        """Return the prompt that the model's ``encode``, ``encode_query`` or ``encode_document`` would use.

        A task or the name of a prompt that the model does not have is an error.
        """
        if self.task not in (None, "query", "document") and not _takes_tasks(model):
            raise ValueError(f"there is no task {self.task!r:.60}: this model has query and document")
        if self.prompt is not None:
            return self.prompt
        name, prompts = self.prompt_name, getattr(model, "prompts", {})  # a function has none
        if name is None:
            usual = {"query": ("query",), "document": ("document", "passage", "corpus")}.get(self.task or "", ())
            name = next((each for each in usual if each in prompts), getattr(model, "default_prompt_name", None))
            return prompts.get(name) if name is not None else None
        if name not in prompts:
            known = f"the prompts {', '.join(prompts)}" if prompts else "no named prompts"
            raise ValueError(f"there is no prompt {name!r:.60}: this model has {known}")
        prompt: str = prompts[name]
        return prompt


def _takes_tasks(model: Any) -> bool:
    """Whether a module of the model is told the task: a Router, or one of a model's own, which knows its tasks."""
    declared = {each for names in (getattr(model, "module_kwargs", None) or {}).values() for each in names}
    modules = model.modules() if hasattr(model, "modules") else ()
    return "task" in declared or any("task" in getattr(module, "forward_kwargs", ()) for module in modules)


@dataclass(frozen=True)
class Request:
    """An input as a user gives it: what to read, how, and what to explain of it."""

    value: Value
    options: EncodeOptions = EncodeOptions()
    groups: Groups = None
    divided: Groups = None  # where a group is looked at more closely: what was divided when it was explained

    @classmethod
    def of(cls, value: Value, options: EncodeOptions, groups: Groups = None) -> Request:
        """Check an input, and make a request of it."""
        return cls(check_input(value), options, groups)

    @property
    def key(self) -> Hashable:
        """Equal for requests that have the same result: equal texts, one picture object, or one file."""
        if isinstance(self.value, str):
            return self.value, self.options, self.groups, self.divided
        same = os.fspath(self.value) if isinstance(self.value, os.PathLike) else id(self.value)
        return same, type(self.value), self.options, self.groups


@dataclass(frozen=True, eq=False)
class Input:
    """One input, preprocessed. Every tuple has one entry per row of the hidden states, in the model's order.

    Attributes:
        value: the text or the picture.
        text: the text; the name of a picture.
        options: the options of ``encode`` for it.
        tokens: the rows' names.
        offsets: the characters of the text that a row stands for; empty for what is not part of the text.
        kinds: "text", "special", "prompt" or "patch"; see :class:`whymatch.reading.sides.Side`.
        truncated: whether the model reads only the beginning of the text.
        reader: the module of the model that preprocessed it.
        unpooled: how many rows, from the first, the pooling leaves out: those of a prompt.
        boxes: the pixels of each row, for a picture.
        features: what the model's own preprocessing returned.
    """

    value: Value
    text: str
    options: EncodeOptions
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    kinds: tuple[str, ...]
    truncated: bool
    reader: Any
    unpooled: int = 0
    boxes: tuple[Box, ...] | None = None
    features: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def modality(self) -> str:
        return "text" if self.boxes is None else "image"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def route(self) -> Hashable:
        """Equal for inputs that run through the same parts of the model."""
        return self.options.task, self.modality


@dataclass(frozen=True, eq=False)
class Correction:
    """What the model makes of parts of a text, towards which contributions are moved; their sum stays.

    Attributes:
        belongs: which tokens each unit has, a word or a group that is explained (units, tokens).
        kept: which units each part of the text keeps (parts of the text, units).
        answers: their embeddings (parts of the text, dim).
        receives: the shares in which the template's tokens gain or lose; all 0 where it does not (tokens,).
    """

    belongs: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    answers: NDArray[np.floating]
    receives: NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Source:
    """What a decomposition takes from its input.

    Attributes:
        side: the input's parts, as results describe them.
        shares: how much of the reference's embedding each part takes when it is folded: its share of the tokens.
        embedding: what the model's own ``encode`` returns.
        vectors: which vectors take part in a score, where the embedding is several vectors in a row.
        handed: the fraction of a part (column) that each part (row) receives; None if each keeps its own.
        correction: what the model makes of parts of the text; None where it was not asked.
    """

    side: Side
    shares: NDArray[np.floating]  # (parts,); (parts, dim) where each number has its own
    embedding: NDArray[np.floating]  # (dim,)
    vectors: NDArray[np.bool_] | None = field(default=None, kw_only=True)
    handed: NDArray[np.floating] | None = field(default=None, kw_only=True)  # (parts, parts)
    correction: Correction | None = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class TokenSource(Source):
    """What a decomposition takes from an input of a sentence encoder.

    Attributes:
        owner: the part that each row of the hidden states belongs to.
        input: the input as the model reads it.
        state: a layer, and the model's own hidden states there, if they were seen when it embedded the input.
        divided: what is divided for a correction; None is what is explained, or words.
    """

    owner: NDArray[np.integer]  # (rows,)
    input: Input
    state: tuple[int, Tensor] | None = None  # (rows, dim)
    divided: Groups = None


def describe(given: Input, groups: Groups, embedding: NDArray[np.floating]) -> TokenSource:
    """Divide an input into the parts that are explained: its tokens, or groups of them."""
    rows = [[i] for i in range(len(given))]
    unit = "token" if given.modality == "text" else "patch"
    if groups is not None and given.modality == "text":
        unit = UNITS[groups] if isinstance(groups, str) else "span"
        spans = find_spans(given.text, groups)
        rows = group_spans(len(given.text), given.offsets, spans, together=unit != "word")
    tokens, offsets = label_groups(given.text, given.tokens, given.offsets, rows)
    owner = np.zeros(len(given), dtype=np.int64)
    for number, members in enumerate(rows):
        owner[members] = number
    alone = unit in ("token", "patch")
    side = Side(
        text=given.text,
        tokens=given.tokens if alone else tokens,
        offsets=given.offsets if alone else offsets,
        kinds=tuple(given.kinds[members[0]] if len(members) == 1 else "group" for members in rows),
        boxes=given.boxes,
        image=None if given.modality == "text" else thumbnail(given.value),
        truncated=given.truncated,
        unit=unit,
    )
    # A part takes its share of the tokens that the pooling sees.
    first = given.unpooled if given.unpooled < len(given) else 0
    pooled = np.array([sum(i >= first for i in members) for members in rows], dtype=np.float64)
    return TokenSource(side, pooled / pooled.sum(), embedding, owner, given)


def check_input(value: Value) -> Value:
    """Return the value if it is a text, a Pillow image or a path; otherwise raise an error that quotes it."""
    if isinstance(value, os.PathLike) or type(value).__module__.startswith("PIL."):
        return value
    return check_text(value)


def batched(inputs: Sequence[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """Stack the features of inputs that have equally many rows, and so need no padding."""
    batch: dict[str, Any] = {}
    for key, value in inputs[0].items():
        if isinstance(value, list):
            batch[key] = torch.tensor([features[key] for features in inputs], device=device)
        elif isinstance(value, Tensor):
            batch[key] = torch.stack([features[key] for features in inputs]).to(device)
        else:
            batch[key] = value  # the modality's name or a prompt's length: the same for all
    return batch


def read_texts(model: Any, texts: Sequence[str], options: EncodeOptions) -> list[Input]:
    """Tokenize texts with the model's own preprocessing, so that prompts, truncation and templates are its own."""
    prompt = options.resolve_prompt(model)
    with record_templates(model) as templates:
        batch, reader = _preprocess(model, texts, prompt, options, processing_kwargs=_processing(None))
    if "offset_mapping" not in batch:
        raise TypeError(
            f"{type(reader).__name__} gives no tokens with character offsets: models that begin with a transformer and "
            "a fast tokenizer can be explained. Save a slow tokenizer's tokenizer.json with transformers, load that; "
            "other encoders can be explained with whymatch.decompose_callable"
        )
    result = []
    for i, text in enumerate(texts):
        special = [bool(flag) for flag in batch["special_tokens_mask"][i]]
        spans = batch["offset_mapping"][i]
        if batch.get("modality") == "message":
            place = templates[0].find(i, text, prompt)
            ids, (before, truncated) = batch["input_ids"][i], _tokens(reader, batch, i, place.rendered)
            tokens = reader.tokenizer.convert_ids_to_tokens(ids)
            restored = [token != other for token, other in zip(tokens, before, strict=True)]
            named = _label_rendered(place, tokens, spans, restored)
        else:
            tokens, truncated = _tokens(reader, batch, i, (prompt or "") + text)
            named = label_tokens(prompt or "", text, tokens, spans, special)
        # A value that is not one per text belongs to all of them.
        features = {key: value[i] if isinstance(value, list) else value for key, value in batch.items()}
        given = _text_input(text, options, named, truncated, reader, features)
        result.append(replace(given, unpooled=_unpooled(model, batch)))
    return result


def _processing(tensors: str | None) -> dict[str, Any]:
    """Return what the model's preprocessing is told, so that it says which characters each token stands for."""
    wanted = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    return {"text": wanted, "common": {"return_tensors": tensors}}


def _text_input(
    text: str, options: EncodeOptions, named: Labels, truncated: bool, reader: Any, features: dict[str, Any]
) -> Input:
    labels, offsets, kinds = named
    return Input(
        value=text,
        text=text,
        options=options,
        tokens=labels,
        offsets=offsets,
        kinds=kinds,
        truncated=truncated,
        reader=reader,
        features={key: features[key] for key in features if key not in ("offset_mapping", "special_tokens_mask")},
    )


def _label_rendered(place: Place, tokens: Sequence[str], spans: Sequence[Span], restored: Sequence[bool]) -> Labels:
    """Label the tokens of a rendered conversation; what is neither text nor prompt belongs to the template.

    Args:
        restored: whether a token of the template's end stands where a truncated text went on.
    """
    (start, end), (first, last) = place.text, place.prompt
    special = [
        again or not ((low < end and high > start) or (low < last and high > first))
        for (low, high), again in zip(spans, restored, strict=True)
    ]
    inner = place.rendered[start:end]
    labels, offsets, kinds = label_tokens(place.rendered[:start], inner, tokens, spans, special)
    moved = tuple(
        (low + place.stripped, min(high, len(inner)) + place.stripped) if high else (0, 0) for low, high in offsets
    )
    return labels, moved, kinds


def read_expanded(model: Any, text: str, options: EncodeOptions) -> Input:
    """Tokenize a query that a multi-vector encoder expands by further tokens, each with a vector of its own."""
    prompt = options.resolve_prompt(model) or ""
    batch, reader = _preprocess(model, [text], prompt or None, options, processing_kwargs=_processing("pt"))
    features = {key: value[0].tolist() if isinstance(value, Tensor) else value for key, value in batch.items()}
    ids, spans = features["input_ids"], [(low, high) for low, high in features["offset_mapping"]]
    special = [bool(flag) for flag in features["special_tokens_mask"]]
    added = len(ids) - len(spans)
    tokens = reader.tokenizer.convert_ids_to_tokens(ids)
    named = label_tokens(prompt, text, tokens, spans + [(0, 0)] * added, special + [True] * added)
    end = max((high for _, high in named[1]), default=0)
    return _text_input(text, options, named, bool(text[end:].strip()), reader, features)


def label_tokens(
    prompt: str, text: str, tokens: Sequence[str], spans: Sequence[Span], special: Sequence[bool]
) -> Labels:
    """Return what to call tokens, the characters of the text that they stand for, and their kinds.

    Args:
        prompt: what stands before the text.
        spans: the characters of prompt and text together that each token stands for.
        special: whether a token was added by the template.
    """
    before, whole = len(prompt), prompt + text
    kinds = tuple(
        "special" if added else "prompt" if 0 < high <= before else "text"
        for (_, high), added in zip(spans, special, strict=True)
    )
    offsets = tuple(
        (max(0, low - before), high - before) if kind == "text" and high > before else (0, 0)
        for (low, high), kind in zip(spans, kinds, strict=True)
    )
    labels = tuple(
        token if kind == "special" else _label(token, whole[low:high])
        for token, kind, (low, high) in zip(tokens, kinds, spans, strict=True)
    )
    return labels, offsets, kinds


def reader_of(model: Any, options: EncodeOptions) -> Any:
    """Return the module of a private copy of a model that preprocesses texts."""
    return _preprocess(model, ["a"], None, options)[1]


def _preprocess(
    model: Any, values: Sequence[Any], prompt: str | None, options: EncodeOptions, **kwargs: Any
) -> tuple[Any, Any]:
    """Run the model's own preprocessing, on a private copy of the model.

    Returns:
        What it returns, and the module, of possibly several, that did it.
    """
    readers: list[Any] = []

    def record(module: Any) -> Any:
        run = module.preprocess

        @wraps(run)
        def preprocess(*args: Any, **kwargs: Any) -> Any:
            readers.append(module)
            wanted = kwargs.get("processing_kwargs")
            # Padding is only there to make a batch, unless the model says that it is a part of its texts.
            if wanted and not (getattr(module, "processing_kwargs", None) or {}).get("text", {}).get("padding"):
                kwargs["processing_kwargs"] = wanted | {"text": wanted["text"] | {"padding": False}}
            return run(*args, **kwargs)

        return preprocess

    wrapped = [
        module
        for module in model.modules()
        if module is not model and hasattr(module, "preprocess") and not hasattr(module, "sub_modules")
    ]
    for module in wrapped:
        module.preprocess = record(module)
    try:
        batch = model.preprocess(list(values), prompt=prompt, task=options.task, **kwargs)
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
    """Return the tokens of a text as they stand in the vocabulary, and whether the model reads only its beginning."""
    encodings = getattr(batch, "encodings", None)
    if encodings:
        return encodings[i].tokens, bool(encodings[i].overflowing)
    # A processor for several modalities returns numbers only.
    end = max((high for _, high in batch["offset_mapping"][i]), default=0)
    return reader.tokenizer.convert_ids_to_tokens(batch["input_ids"][i]), bool(text[end:].strip())


def _label(token: str, piece: str) -> str:
    """Label a token as the vocabulary spells it, if a person can read that; else by the characters it stands for."""
    if not piece.strip() or (token.startswith(("[", "<")) and token.endswith(("]", ">"))):
        return token
    return token if _folded(token.removeprefix("##")) == _folded(piece) else piece.strip()


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    return "".join(c for c in plain if not unicodedata.combining(c)).casefold()


def read_picture(model: Any, value: Value, options: EncodeOptions) -> Input:
    """Preprocess one picture; :func:`with_patches` adds its rows once it is known how many the model makes of it."""
    picture, name = open_picture(value)
    batch, reader = _preprocess(model, [picture], None, options)
    if "pixel_values" not in batch or batch["pixel_values"].ndim != 4:
        raise TypeError(f"the model's preprocessing makes no grid of pixels of a picture: {quote(name)}")
    return Input(
        value=picture,
        text=name,
        options=options,
        tokens=(),
        offsets=(),
        kinds=(),
        truncated=False,
        reader=reader,
        boxes=(),
        features={k: v[0] if isinstance(v, Tensor) else v for k, v in batch.items()},
    )


def with_patches(given: Input, rows: int, patch: int) -> Input:
    """Name the rows of a picture's hidden states: its patches, and what precedes them."""
    seen = given.features["pixel_values"].shape[-2:]
    high, wide = (size // patch for size in seen)
    before = rows - high * wide
    if before < 0:
        raise TypeError(f"{rows} hidden states are fewer than the {high} × {wide} patches of {quote(given.text)}")
    special = ["[CLS]"] if before == 1 else [f"[{i}]" for i in range(before)]
    return replace(
        given,
        tokens=(*special, *(f"{row},{column}" for row in range(high) for column in range(wide))),
        offsets=((0, 0),) * rows,
        kinds=("special",) * before + ("patch",) * (high * wide),
        boxes=((0, 0, 0, 0),) * before + boxes_of(given.reader, given.value.size, seen, patch),
    )

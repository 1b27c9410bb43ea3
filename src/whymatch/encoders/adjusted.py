"""The paper's adjusted encoders, which subtract the embedding of a text's reference from the embedding of the text."""

from __future__ import annotations

import copy
import json
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module, Normalize, Router
from torch import Tensor

from whymatch.reading.reference import content_ids

# The name of the only route of a ReferenceShift.
ROUTE = "encoder"
VERSION = 1


class Scale(Module):  # type: ignore[misc]  # the library's types are not followed
    """Multiplies embeddings by a fixed number."""

    config_keys = ("factor",)

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        features["sentence_embedding"] = self.factor * features["sentence_embedding"]
        return features

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        self.save_config(output_path)


class ReferenceShift(Router):  # type: ignore[misc]  # the library's types are not followed
    """Shifts the embeddings of the modules inside it: an input's embedding is e'(input) − e'(its reference).

    It is the first, and usually the only, module of an adjusted model. The reference is as long as the input itself,
    whatever it is batched with: the tokens of the template and of a prompt are kept, and content is replaced. A batch
    runs each distinct reference once.

    It is a router with one route, because that is how sentence-transformers saves and loads modules inside a module.

    Args:
        sub_modules: the modules that are shifted, under the name of the route.
        reference: what takes the place of content: ``"pad"``, ``"unk"`` or ``"mask"`` tokens, or a text.
        version: of the saved format.
    """

    config_file_name = "reference_shift.json"
    config_keys = ("reference", "version")

    def __init__(
        self, sub_modules: dict[str, Sequence[Any]], reference: str = "pad", version: int = VERSION, **unknown: Any
    ) -> None:
        if version != VERSION or unknown:
            difference = f"version {version!r}" if version != VERSION else f"with {', '.join(map(repr, unknown))}"
            raise ValueError(
                f"this model was adjusted by another whymatch ({difference}); this one reads version {VERSION}"
            )
        if set(sub_modules) != {ROUTE}:
            raise ValueError(f"a ReferenceShift has one route, {ROUTE!r}, not {', '.join(map(repr, sub_modules))}")
        if not isinstance(reference, str) or not reference:
            raise TypeError(f"an adjusted model's reference is 'pad', 'unk', 'mask' or a text, not {reference!r:.60}")
        # Whatever the task and the modality are, the one route is taken; what is inside may route them further.
        super().__init__(sub_modules, default_route=ROUTE, route_mappings={(None, None): ROUTE})
        self.reference = reference
        self.version = version
        for module in self.modules():
            if hasattr(module, "can_flatten_inputs"):
                module.can_flatten_inputs = False  # a packed batch has no rows whose content could be replaced

    @property
    def encoder(self) -> Any:
        """The modules that are shifted."""
        return self.sub_modules[ROUTE]

    def extra_repr(self) -> str:
        return f"reference={self.reference!r}"

    @property
    def normalized(self) -> bool:
        """Whether embeddings have length 1 (times any scale) before they are shifted."""
        modules = [module for module in self.encoder if not isinstance(module, Scale)]
        return isinstance(modules[-1], Normalize)

    def scale(self, factor: float) -> None:
        """Multiply all embeddings by a number. An explainer made earlier does not see the change."""
        last = self.encoder[-1]
        if isinstance(last, Scale):
            last.factor *= factor
        else:
            self.encoder.append(Scale(factor))

    @classmethod
    def load(
        cls, model_name_or_path: str, subfolder: str = "", module_classes: Any = None, **kwargs: Any
    ) -> ReferenceShift:
        hub = {key: kwargs[key] for key in ("token", "cache_folder", "revision", "local_files_only") if key in kwargs}
        advice = "Make it again with whymatch.training.adjust, or whymatch train"
        try:
            config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{cls.config_file_name} of {model_name_or_path!r} is damaged ({error}). {advice}"
            ) from None
        if not isinstance(config, dict) or not {"types", "structure", "parameters"} <= set(config):
            raise ValueError(
                f"{model_name_or_path!r} is no adjusted model: its {cls.config_file_name} is missing or incomplete. "
                f"{advice}"
            )
        try:
            shift: ReferenceShift = super().load(
                model_name_or_path, subfolder=subfolder, module_classes=module_classes, **kwargs
            )
        except (KeyError, TypeError, AttributeError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise ValueError(f"the adjusted model {model_name_or_path!r} is damaged ({cause}). {advice}") from error
        return shift

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> Any:
        """Preprocess inputs as the encoder does, and mark which tokens are content (``content_mask``)."""
        options = kwargs.pop("processing_kwargs", None) or {}
        text = options.get("text", {})
        wanted = {"return_special_tokens_mask": True}
        if prompt:
            wanted["return_offsets_mapping"] = True
        features = super().preprocess(
            inputs, prompt=prompt, processing_kwargs={**options, "text": {**wanted, **text}}, **kwargs
        )
        if "special_tokens_mask" not in features or not isinstance(features["special_tokens_mask"], Tensor):
            return features
        content = features["special_tokens_mask"] == 0
        if prompt:
            ends = features["offset_mapping"][..., 1]
            content &= ~((ends > 0) & (ends <= len(prompt)))
        features["content_mask"] = content
        for name in ("special_tokens_mask", "offset_mapping"):
            if f"return_{name}" not in text:
                features.pop(name, None)
        return features

    def forward(
        self, features: dict[str, Any], task: str | None = None, modality: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        given = dict(features)
        content = given.pop("content_mask", None)
        task = given.get("task") if task is None else task
        modality = given.get("modality") if modality is None else modality
        options = {"task": task, "modality": modality, **kwargs}
        out: dict[str, Any] = super().forward(dict(given), **options)
        embedding = out["sentence_embedding"]
        shifted = embedding - self._references(given, content, options).to(embedding)
        if content is not None:
            # A text without content is its own reference: its embedding is exactly zero, without rounding.
            shifted = shifted * content.any(1, keepdim=True).to(shifted)
        out["sentence_embedding"] = shifted
        return out

    def unshifted(self, features: dict[str, Any]) -> Tensor:
        """Return e'(inputs), the embeddings before the shift."""
        given = {name: value for name, value in features.items() if name != "content_mask"}
        options = {"task": given.get("task"), "modality": given.get("modality")}
        embeddings: Tensor = super().forward(given, **options)["sentence_embedding"]
        return embeddings

    def with_references(self, features: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Append the distinct references of texts to their batch; also return the row of each text's reference."""
        reader = self._reader(features.get("task"), features.get("modality"))
        keys, replaced = self._replaced(features, features["content_mask"], reader)
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        rows = torch.tensor(list(first.values()), device=replaced.device)
        number = {key: len(keys) + i for i, key in enumerate(first)}
        both = {
            name: torch.cat([value, (replaced if name == "input_ids" else value)[rows]])
            if isinstance(value, Tensor)
            else value
            for name, value in features.items()
        }
        return both, torch.tensor([number[key] for key in keys], device=replaced.device)

    def _references(self, given: dict[str, Any], content: Tensor | None, options: dict[str, Any]) -> Tensor:
        """Embed the reference of each input."""
        keys, replaced = self._replaced(given, content, self._reader(options["task"], options["modality"]))
        first = {key: row for row, key in reversed(list(enumerate(keys)))}

        def run(which: list[Hashable]) -> Tensor:
            rows = torch.tensor([first[key] for key in which], device=replaced.device)
            features = {
                name: value[rows.to(value.device)] if isinstance(value, Tensor) and value.ndim else value
                for name, value in given.items()
            }
            features["input_ids" if "input_ids" in given else "pixel_values"] = replaced[rows]
            if len(which) == 1:
                features = _unpadded(features)
            embeddings: Tensor = super(ReferenceShift, self).forward(features, **options)["sentence_embedding"]
            return embeddings

        distinct = list(first)
        if self.training or torch.is_grad_enabled():
            embeddings = run(distinct)
        else:
            # One by one, so that rounding depends neither on the rest of the batch nor on padding.
            embeddings = torch.cat([run([key]) for key in distinct])
        number = {key: i for i, key in enumerate(distinct)}
        return embeddings[torch.tensor([number[key] for key in keys], device=embeddings.device)]

    def _reader(self, task: str | None, modality: Any) -> Any:
        """Find the module that reads such inputs: a router inside has one for each route."""
        module = self.encoder[0]
        while isinstance(module, Router):
            module = module.sub_modules[module._resolve_route(task=task, modality=modality)][0]
        return module

    def _replaced(self, given: dict[str, Any], content: Tensor | None, reader: Any) -> tuple[list[Hashable], Tensor]:
        """Replace the content of each input; also return a key per input, equal where references are equal."""
        if content is None:
            pixels = given.get("pixel_values")
            if "input_ids" in given or not isinstance(pixels, Tensor) or pixels.ndim != 4:
                raise TypeError(
                    f"an adjusted model must know which tokens are content, and is given {', '.join(given)}: make the "
                    "features with the model's own preprocess; texts and pictures can be embedded, not both at once"
                )
            return [tuple(pixels.shape[1:])] * len(pixels), torch.zeros_like(pixels)
        ids, content = given["input_ids"], content.to(given["input_ids"].device).bool()
        tokens = torch.tensor(content_ids(reader.tokenizer, self.reference), device=ids.device)
        replaced = torch.where(content, tokens[(content.cumsum(1) - 1) % len(tokens)], ids)
        mask = given.get("attention_mask", torch.ones_like(ids))
        rows = zip(replaced.tolist(), mask.tolist(), strict=True)
        return [tuple(token for token, seen in zip(*row, strict=True) if seen) for row in rows], replaced


def _unpadded(features: dict[str, Any]) -> dict[str, Any]:
    """Remove the columns of a single text's features that are not attended to."""
    mask = features.get("attention_mask")
    if mask is None or bool(mask.all()):
        return features
    seen = mask[0].bool()
    return {
        name: value[:, seen.to(value.device)] if isinstance(value, Tensor) and value.shape == mask.shape else value
        for name, value in features.items()
    }


def shift_of(model: Any) -> ReferenceShift | None:
    """Return the shift of an adjusted model, or None if the model is not adjusted."""
    first = next(iter(model.children()), None)
    return first if isinstance(first, ReferenceShift) else None


def unshifted(model: Any) -> Any:
    """Return a model without its shift, sharing its modules; a model without a shift is returned as it is."""
    shift = shift_of(model)
    if shift is None:
        return model
    twin = copy.copy(model)
    twin._modules = {str(i): module for i, module in enumerate([*shift.encoder, *list(model.children())[1:]])}
    return twin


def adjust(model: SentenceTransformer, reference: str = "pad", *, normalized: bool = False) -> SentenceTransformer:
    """Copy a model so that its embedding of any input becomes e'(input) − e'(its reference).

    Args:
        model: a model that reads texts or pictures. It is not changed, and shares nothing with the copy.
        reference: what takes the place of content: ``"pad"`` (the paper's), ``"unk"`` or ``"mask"`` tokens, or a text.
        normalized: whether e' has length 1. By default a final Normalize is removed, as in the paper.
    """
    if not isinstance(model, SentenceTransformer):
        raise TypeError(f"adjust takes a SentenceTransformer, not a {type(model).__name__}: {model!r:.60}")
    if shift_of(model) is not None:
        raise ValueError("this model is adjusted already: its reference is zero")
    modules = _without_normalize(copy.deepcopy(list(model.children())))
    if not modules:
        raise TypeError("this model has no modules that embed anything: there is nothing to adjust")
    if normalized:
        modules.append(Normalize())
    shift = ReferenceShift({ROUTE: modules}, reference)
    adjusted = SentenceTransformer(
        modules=[shift],
        device=str(model.device),
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
    )
    if "text" in adjusted.modalities:
        _check_tokenizers(shift, reference)
        if "content_mask" not in adjusted.preprocess(["a"]):
            raise TypeError(
                f"{type(modules[0]).__name__} does not say which of its tokens are content: models that begin with a "
                "transformer and its tokenizer can be adjusted"
            )
    return adjusted


def _check_tokenizers(shift: ReferenceShift, reference: str) -> None:
    """Check that every tokenizer of the model can make this reference."""
    tokenizers = [module.tokenizer for module in shift.modules() if hasattr(module, "tokenizer")]
    if not tokenizers or not all(hasattr(tokenizer, "pad_token_id") for tokenizer in tokenizers):
        raise TypeError(
            f"{type(shift.encoder[0]).__name__} has no tokenizer of transformers, and so no reference: models that "
            "begin with a transformer and its tokenizer can be adjusted"
        )
    for tokenizer in tokenizers:
        content_ids(tokenizer, reference)


def _without_normalize(modules: list[Any]) -> list[Any]:
    """Remove final Normalize modules, in every route."""
    while modules and isinstance(modules[-1], Normalize):
        modules = modules[:-1]
    if modules and isinstance(modules[-1], Router):
        for name, route in modules[-1].sub_modules.items():
            modules[-1].sub_modules[name] = torch.nn.Sequential(*_without_normalize(list(route)))
    return modules


# Saved folders name these classes by their public place, which stays when this file moves.
ReferenceShift.__module__ = Scale.__module__ = "whymatch.training"

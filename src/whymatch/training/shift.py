"""The paper's adjusted encoders: an embedding minus that of its own reference, so that the reference is zero."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module, Normalize, Router
from torch import Tensor

from whymatch import models
from whymatch.reference import content_ids

# The one route of the router that a shift is.
ROUTE = "encoder"
VERSION = 1

# How many references' embeddings are kept. There is one for each length, and for each prompt.
KEPT = 4096


class Scale(Module):  # type: ignore[misc]  # the library's types are not followed
    """An embedding times a number, which is not trained."""

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
    """Modules whose embedding of an input is e'(input) − e'(its reference): the first, and usually only, module.

    The reference is as long as the input itself, whatever it is batched with: the tokens of the template and of a
    prompt are kept, and content is replaced. A batch runs each distinct reference once; without gradients, what is
    known from earlier batches does not run again until a weight has changed.

    It is a router with one route, because that is how sentence-transformers saves and loads modules inside a module.
    """

    config_file_name = "reference_shift.json"
    config_keys = ("reference", "version")

    def __init__(
        self, sub_modules: dict[str, Sequence[Any]], reference: str = "pad", version: int = VERSION, **unknown: Any
    ) -> None:
        if version != VERSION or unknown:
            found = f"version {version!r}" if version != VERSION else f"with {', '.join(map(repr, unknown))}"
            raise ValueError(f"this model was adjusted by another whymatch ({found}); this one reads version {VERSION}")
        if set(sub_modules) != {ROUTE}:
            raise ValueError(f"a ReferenceShift has one route, {ROUTE!r}, not {', '.join(map(repr, sub_modules))}")
        if not isinstance(reference, str) or not reference:
            raise TypeError(f"an adjusted model's reference is 'pad', 'unk', 'mask' or a text, not {reference!r:.60}")
        # Whatever the task and the modality are, the one route is taken; what is inside may route them further.
        super().__init__(sub_modules, default_route=ROUTE, route_mappings={(None, None): ROUTE})
        self.reference = reference
        self.version = version
        self._known = _Known()
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
        """Whether embeddings have length 1 before they are shifted, but for a scale."""
        modules = [module for module in self.encoder if not isinstance(module, Scale)]
        return isinstance(modules[-1], Normalize)

    def scale(self, factor: float) -> None:
        """Multiply all embeddings by a number. An explainer that was made before does not know of it."""
        last = self.encoder[-1]
        if isinstance(last, Scale):
            last.factor *= factor
        else:
            self.encoder.append(Scale(factor))

    def forget(self) -> None:
        """Let the next embedding compute its reference anew.

        That happens by itself after a change of weights, of a module's settings, or of hooks; not after one that none
        of them shows, such as another active adapter.
        """
        self._known = _Known()

    @classmethod
    def load(
        cls, model_name_or_path: str, subfolder: str = "", module_classes: Any = None, **kwargs: Any
    ) -> ReferenceShift:
        hub = {key: kwargs[key] for key in ("token", "cache_folder", "revision", "local_files_only") if key in kwargs}
        again = "Make it again with whymatch.training.adjust, or whymatch train"
        try:
            config = cls.load_config(model_name_or_path, subfolder=subfolder, **hub)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{cls.config_file_name} of {model_name_or_path!r} is damaged ({error}). {again}"
            ) from None
        if not isinstance(config, dict) or not {"types", "structure", "parameters"} <= set(config):
            raise ValueError(
                f"{model_name_or_path!r} is no adjusted model: its {cls.config_file_name} is missing or is not one. "
                + again
            )
        try:
            found: ReferenceShift = super().load(
                model_name_or_path, subfolder=subfolder, module_classes=module_classes, **kwargs
            )
        except (KeyError, TypeError, AttributeError) as error:
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"the adjusted model {model_name_or_path!r} is damaged ({said}). {again}") from error
        return found

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> Any:
        """The encoder's own preprocessing, and which of the tokens are content."""
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
            # A text without content is its own reference; only rounding would say otherwise.
            shifted = shifted * content.any(1, keepdim=True).to(shifted)
        out["sentence_embedding"] = shifted
        return out

    def unshifted(self, features: dict[str, Any]) -> Tensor:
        """e' of inputs."""
        given = {name: value for name, value in features.items() if name != "content_mask"}
        options = {"task": given.get("task"), "modality": given.get("modality")}
        found: Tensor = super().forward(given, **options)["sentence_embedding"]
        return found

    def with_references(self, features: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Texts and after them their distinct references in one batch, and the place of each text's reference there."""
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
        """The embedding of each input's reference."""
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
            found: Tensor = super(ReferenceShift, self).forward(features, **options)["sentence_embedding"]
            return found

        distinct = list(first)
        if self.training or torch.is_grad_enabled():
            found = run(distinct)
        else:
            beside = {name: value for name, value in given.items() if not isinstance(value, Tensor)}
            kind = replaced.device.type
            autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            place = (replaced.device, autocast, repr((beside, options)))
            known = self._known.of(self)
            missing = [key for key in distinct if (place, key) not in known]
            # One by one: how it rounds may not depend on what else is in the batch, nor on padding.
            known |= {(place, key): run([key])[0] for key in missing}
            found = torch.stack([known[place, key] for key in distinct])
        number = {key: i for i, key in enumerate(distinct)}
        return found[torch.tensor([number[key] for key in keys], device=found.device)]

    def _reader(self, task: str | None, modality: Any) -> Any:
        """The module that reads such inputs: routers inside may have several."""
        module = self.encoder[0]
        while isinstance(module, Router):
            module = module.sub_modules[module._resolve_route(task=task, modality=modality)][0]
        return module

    def _replaced(self, given: dict[str, Any], content: Tensor | None, reader: Any) -> tuple[list[Hashable], Tensor]:
        """What says that two inputs have one reference, and the references' own first feature, row by row."""
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
    """One text's features without the columns that are not attended to."""
    mask = features.get("attention_mask")
    if mask is None or bool(mask.all()):
        return features
    seen = mask[0].bool()
    return {
        name: value[:, seen.to(value.device)] if isinstance(value, Tensor) and value.shape == mask.shape else value
        for name, value in features.items()
    }


class _Known:
    """Embeddings of references, as long as the weights that they came from are the same."""

    def __init__(self) -> None:
        self._weights: Hashable = None
        self._found: dict[Hashable, Tensor] = {}

    def of(self, module: Any) -> dict[Hashable, Tensor]:
        weights = _fingerprint(module)
        if weights != self._weights or len(self._found) > KEPT:
            self._weights, self._found = weights, {}
        return self._found


def _fingerprint(module: Any) -> Hashable:
    """Differs after a change of any weight, of a module's settings or of hooks.

    Optimizers count their changes. What is written past them, through ``.data``, changes the bits of a weight, whose
    rows are summed and then weighted by their places, so that rows that change places are seen too.
    """
    weights = [one.detach() for one in chain(module.parameters(), module.buffers()) if one.is_floating_point()]
    places = tuple((one.data_ptr(), 0 if one.is_inference() else one._version) for one in weights)
    sums = [_bits(one) for one in weights]
    hooks = sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in module.modules())
    return places, tuple(torch.stack(sums).tolist()), hooks, repr(module)


def _bits(weight: Tensor) -> Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = weight.contiguous().view(kinds[weight.element_size()])
    rows = bits.flatten(1).sum(1, dtype=torch.int64) if bits.ndim > 1 else bits.reshape(-1).to(torch.int64)
    return (rows * torch.arange(1, 2 * len(rows), 2, device=rows.device)).sum().cpu()


def shift_of(model: Any) -> ReferenceShift | None:
    """The shift of an adjusted model; None of any other."""
    first = next(iter(model.children()), None)
    return first if isinstance(first, ReferenceShift) else None


def unshifted(model: Any) -> Any:
    """The same model, sharing its modules, without its shift; one that has none is returned as it is."""
    shift = shift_of(model)
    if shift is None:
        return model
    twin = copy.copy(model)
    twin._modules = {str(i): module for i, module in enumerate([*shift.encoder, *list(model.children())[1:]])}
    return twin


def adjust(model: SentenceTransformer, reference: str = "pad", *, normalized: bool = False) -> SentenceTransformer:
    """A copy of a model whose embedding of any input is e'(input) − e'(its reference).

    Args:
        model: any model that reads tokens or pictures. It stays as it is, and shares nothing with the copy.
        reference: what takes the place of content: ``"pad"`` (the paper's), ``"unk"`` or ``"mask"`` tokens, or a text.
        normalized: whether e' has length 1. By default a last Normalize is left out, as in the paper, and e' is what it
            would normalize.
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


def load(folder: str | os.PathLike[str], device: str | None = None) -> SentenceTransformer:
    """A model from a folder or a hub id, adjusted or not, without trusting any code but whymatch's own."""
    return models.load(folder, device)[0]


def _check_tokenizers(shift: ReferenceShift, reference: str) -> None:
    """An error unless there is a reference wherever a text may be read."""
    tokenizers = [module.tokenizer for module in shift.modules() if hasattr(module, "tokenizer")]
    if not tokenizers or not all(hasattr(tokenizer, "pad_token_id") for tokenizer in tokenizers):
        raise TypeError(
            f"{type(shift.encoder[0]).__name__} has no tokenizer of transformers, and so no reference: models that "
            "begin with a transformer and its tokenizer can be adjusted"
        )
    for tokenizer in tokenizers:
        content_ids(tokenizer, reference)


def _without_normalize(modules: list[Any]) -> list[Any]:
    """The modules without those that normalize last, in every route."""
    while modules and isinstance(modules[-1], Normalize):
        modules = modules[:-1]
    if modules and isinstance(modules[-1], Router):
        for name, route in modules[-1].sub_modules.items():
            modules[-1].sub_modules[name] = torch.nn.Sequential(*_without_normalize(list(route)))
    return modules


# Folders name classes by where they are found, which shall not change when this file is moved.
ReferenceShift.__module__ = Scale.__module__ = "whymatch.training"

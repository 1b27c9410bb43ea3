"""Telling models apart: a hash of everything that decides a model's embeddings."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

# Entries of a transformer's configuration that say where it comes from or how it is trained, not what it computes.
UNRELATED = {
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "label2id",
    "problem_type",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}

# Entries of a weight that are looked at together: it bounds the memory that a checksum takes.
AT_ONCE = 2**22

# Hashes by model, each with the state that it belongs to.
_known: WeakKeyDictionary[Any, tuple[Hashable, str]] = WeakKeyDictionary()


def identity(model: SentenceTransformer) -> str:
    """Return a hash of a model's weights, modules, tokenizers, prompts and lengths.

    It is the same in every process, and with every version of the libraries. It is computed once per model object, and
    again after a weight or a setting has changed.
    """
    settings = json.dumps(_with_names(_settings(model)), sort_keys=True, default=str)
    state = (settings, _weights_state(model))
    known = _known.get(model)
    if known is None or known[0] != state:
        known = _known[model] = (state, _hash(model, settings))
    return known[1]


def _hash(model: Any, settings: str) -> str:
    import torch

    digest = hashlib.sha256(settings.encode("utf-8", "surrogatepass"))
    for name, weight in sorted(model.state_dict().items()):
        digest.update(repr((name, tuple(weight.shape), str(weight.dtype))).encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _settings(model: Any) -> dict[str, Any]:
    return {
        "modules": list(_module_settings("", model)),
        "max_seq_length": model.max_seq_length,
        "truncate_dim": getattr(model, "truncate_dim", None),
        "prompts": {name: prompt for name, prompt in model.prompts.items() if prompt},
        "default_prompt": model.default_prompt_name,
    }


def _with_names(value: Any) -> Any:
    """Make names of keys that JSON has none for, such as the pairs of task and modality of a router."""
    if isinstance(value, dict):
        return {key if isinstance(key, (str, int, float)) else str(key): _with_names(v) for key, v in value.items()}
    return [_with_names(each) for each in value] if isinstance(value, (list, tuple)) else value


def _module_settings(name: str, module: Any) -> Iterator[Any]:
    """Yield the name, class and settings of each module; of a transformer, its configuration instead of its parts.

    Settings that have their default value are left out, so that one which a later library adds changes nothing.
    """
    backend = getattr(getattr(module, "tokenizer", None), "backend_tokenizer", None)
    if name and backend is not None:
        # How it pads and truncates is only what it was last asked to do.
        unrelated = {"version", "truncation", "padding"}
        content = {key: value for key, value in json.loads(backend.to_str()).items() if key not in unrelated}
        yield name, "tokenizer", content
    if hasattr(module, "get_config_dict"):
        defaults = {key: p.default for key, p in inspect.signature(type(module)).parameters.items()}
        own = {key: value for key, value in module.get_config_dict().items() if value != defaults.get(key, not value)}
        yield name, type(module).__name__, own
    elif name:
        yield name, type(module).__name__, module.extra_repr()
    config: Any = getattr(module, "config", None)
    if name and hasattr(config, "to_dict"):
        yield name, config.model_type, _transformer_settings(config), list(_adapters(module))
        return
    for child_name, child in module.named_children():
        yield from _module_settings(f"{name}.{child_name}".lstrip("."), child)


def _transformer_settings(config: Any) -> dict[str, Any]:
    try:
        defaults = type(config)().to_dict()
    except Exception:  # a configuration without defaults
        defaults = {}
    return {
        key: value
        for key, value in config.to_dict().items()
        if key not in UNRELATED and "dropout" not in key and not (key in defaults and defaults[key] == value)
    }


def _adapters(module: Any) -> Iterator[tuple[str, str, float]]:
    """Yield each layer's active adapters (of the library peft) and their scales; weights alone do not tell them."""
    for place, layer in module.named_modules():
        if isinstance(getattr(layer, "disable_adapters", None), bool) and not layer.disable_adapters:
            for name in sorted(layer.active_adapters):
                yield place, name, float(getattr(layer, "scaling", {}).get(name, 1))


def _weights_state(model: Any) -> Hashable:
    """Return a value that changes whenever a weight does, in a fraction of the time that a hash takes.

    PyTorch counts in-place changes of a tensor, except those made through ``.data``, which change the checksum.
    """
    weights = [weight.detach() for weight in model.state_dict().values()]
    counts = tuple((weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights)
    return counts, _checksums(weights)


def _checksums(weights: list[Tensor]) -> tuple[int, ...]:
    import torch

    # Moved together, because moving each weight on its own would wait for the device every time.
    return (
        tuple(torch.stack([_checksum(weight).to(weights[0].device) for weight in weights]).tolist()) if weights else ()
    )


def _checksum(weight: Tensor) -> Tensor:
    """Sum a weight's entries, read as integers, each times a different odd number."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = weight.contiguous().view(-1).view(integers[weight.element_size()])
    factors = torch.arange(1, 2 * min(len(flat), AT_ONCE), 2, device=flat.device)
    sums = [(piece * factors[: len(piece)]).sum() * (2 * i + 1) for i, piece in enumerate(torch.split(flat, AT_ONCE))]
    return torch.stack(sums).sum()

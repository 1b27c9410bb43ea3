"""A sentence encoder, cut at one of its blocks.

The model is wrapped, never subclassed and never changed. A cut is a private copy of the module tree that shares
the model's weights: the copy's blocks are the ones that capture and inject, its attention is the one that can be
differentiated, its mode is evaluation. Hooks, modes and configurations of the model itself are never touched, so
there is nothing to restore after an exception, and threads and explainers cannot disturb each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whymatch import jacobian
from whymatch.attention import NAME, register
from whymatch.rules import speed_up
from whymatch.text import Text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def find_blocks(model: nn.Module) -> str:
    """The name of the list of transformer blocks: the longest list of alike modules, outermost first."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    stacks = {name: blocks for name, blocks in lists.items() if len(blocks) and len(set(map(type, blocks))) == 1}
    if not stacks:
        tried = ", ".join(f"{name} ({len(blocks)})" for name, blocks in lists.items()) or "it has no ModuleList"
        raise ValueError(f"no list of alike transformer blocks found in {type(model).__name__}; looked at: {tried}")
    return str(max(stacks, key=lambda name: (len(stacks[name]), -name.count("."))))


class Encoder:
    """A SentenceTransformer with what the engine asks of it."""

    def __init__(self, model: SentenceTransformer, name: str) -> None:
        if len(model) == 0 or not hasattr(model[0], "auto_model"):
            first = type(model[0]).__name__ if len(model) else "nothing"
            raise TypeError(
                f"{name!r} begins with {first}, not with a transformer: there are no blocks to cut it at. "
                "Models that begin with a sentence-transformers Transformer module can be explained"
            )
        if model.truncate_dim is not None:
            raise ValueError(f"{name!r} has truncate_dim={model.truncate_dim}, which is not supported: set it to None")
        self.model = model
        self.name = name
        self.blocks = find_blocks(model)
        self.num_layers = len(model.get_submodule(self.blocks))

    @property
    def similarity(self) -> str:
        return str(self.model.similarity_fn_name)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dimensions(self) -> int:
        return int(self.model.get_embedding_dimension())

    def embed(self, texts: Sequence[str]) -> NDArray[np.floating]:
        """What the model itself gives, to which everything else is compared."""
        twin = _copy_tree(self.model, Tensor.detach).eval()
        return np.asarray(twin.encode(list(texts), show_progress_bar=False))

    def cut(self, layer: int, dtype: torch.dtype, attention: str | None = None) -> Cut:
        """The encoder from ``layer`` on; by default with an attention that has derivatives of both modes."""
        if attention is None:
            register()
            attention = NAME if getattr(self.model[0].auto_model, "_supports_attention_backend", False) else "eager"
        return Cut(self, layer, dtype, attention)


class Cut:
    """The encoder from block ``layer`` on, as a function of that block's input, without a last Normalize."""

    def __init__(self, encoder: Encoder, layer: int, dtype: torch.dtype, attention: str) -> None:
        from sentence_transformers.base.modules import Normalize

        def cast(weight: Tensor) -> Tensor:
            return weight.detach().to(dtype) if weight.is_floating_point() else weight

        self._layer = layer
        self._device = encoder.device
        self._tree = _copy_tree(encoder.model, cast, attention).eval()
        speed_up(self._tree)
        # The length of a normalized embedding depends on all tokens at once; the engine divides by it afterwards.
        self.normalizes = isinstance(self._tree[-1], Normalize)
        while isinstance(self._tree[-1], Normalize):
            del self._tree[-1]
        self._injected: Tensor | None = None
        self._captured: list[Tensor] = []
        self._beside: dict[int, tuple[Any, ...]] = {}  # what blocks return beside the hidden states, for the skipped
        blocks = list(self._tree.get_submodule(encoder.blocks).children())
        self.depth = max(1, len(blocks) - layer)
        for number, block in enumerate(blocks):
            block.forward = self._gate(number, block.forward, last=number == len(blocks) - 1)
        config = encoder.model[0].auto_model.config
        wide = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        self._numbers_per_row = int(3 * wide + 6 * config.hidden_size)
        # Only the plain attention keeps weights of every head, tokens × tokens.
        self._kept_heads = 0 if attention == NAME else int(getattr(config, "num_attention_heads", 1))
        self._itemsize = dtype.itemsize

    def _gate(self, number: int, run: Callable[..., Any], last: bool) -> Callable[..., Any]:
        """Stands in for one block's ``forward``: records it, skips it, or feeds it the injected input."""

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            injected = self._injected
            if injected is None:
                if number == self._layer:
                    self._captured.append(hidden_states)
                out = run(hidden_states, *args, **kwargs)
                if isinstance(out, tuple):
                    self._beside[number] = out[1:]
                if last and number < self._layer:
                    self._captured.append(out[0] if isinstance(out, tuple) else out)
                return out
            if number >= self._layer:
                return run(injected if number == self._layer else hidden_states, *args, **kwargs)
            passed = injected if last else hidden_states
            return (passed, *self._beside[number]) if number in self._beside else passed

        return forward

    def features(self, texts: Sequence[Text], ids: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The model's input for texts of one length, which need no padding."""
        batch: dict[str, Any] = {"input_ids": torch.tensor(ids, device=self._device)}
        for key, value in texts[0].features.items():
            whole = isinstance(value, list)
            batch[key] = torch.tensor([t.features[key] for t in texts], device=self._device) if whole else value
        return batch

    def head(self, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The representation at the cut (texts, rows, dim) and the embedding (texts, embedding)."""
        texts, rows = features["input_ids"].shape
        hidden, embeddings = [], []
        size = jacobian.room(self.pass_bytes(rows), self._device)
        for low in range(0, texts, size):
            part = torch.arange(low, min(low + size, texts), device=self._device)
            self._captured.clear()
            with torch.no_grad():
                embeddings.append(self._tree(_select(features, part))["sentence_embedding"])
            if len(self._captured) != 1:
                raise TypeError(
                    f"the block at layer {self._layer} ran {len(self._captured)} times in one pass of the encoder; an "
                    "encoder whose blocks share their weights, or do not run in their order, cannot be cut there"
                )
            hidden.append(self._captured[0])
        return torch.cat(hidden), torch.cat(embeddings)

    def tail(self, features: dict[str, Any]) -> Callable[[Tensor, Tensor], Tensor]:
        """The rest of the encoder, as a function of the representation and of whose it is."""
        beside = dict(self._beside)  # of the texts whose features these are: their head ran last

        def run(x: Tensor, text: Tensor) -> Tensor:
            self._injected, self._beside = x, beside
            try:
                out: Tensor = self._tree(_select(features, text))["sentence_embedding"]
            finally:
                self._injected = None
            return out

        return run

    def pass_bytes(self, rows: int) -> int:
        """An estimate of what one pass over one text holds at its peak."""
        return self._itemsize * rows * (self._numbers_per_row + 4 * self._kept_heads * rows)


def _select(features: dict[str, Any], text: Tensor) -> dict[str, Any]:
    return {key: value[text] if isinstance(value, Tensor) else value for key, value in features.items()}


def _copy_tree(
    model: Any, weight: Callable[[Tensor], Tensor] = lambda tensor: tensor, attention: str | None = None
) -> Any:
    """A copy of a module tree with its own modules, hooks and configurations, and ``weight`` of each weight."""
    modules: dict[int, Any] = {}
    configs: dict[int, Any] = {}
    weights: dict[int, Tensor] = {}

    def one(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in weights:
            weights[id(tensor)] = weight(tensor)
        return weights[id(tensor)]

    def config(value: Any) -> Any:
        if id(value) not in configs:
            configs[id(value)] = copy.deepcopy(value)
            configs[id(value)]._attn_implementation = attention
        return configs[id(value)]

    def visit(module: Any) -> Any:
        if id(module) in modules:
            return modules[id(module)]
        if "forward" in vars(module):
            raise TypeError(
                f"a {type(module).__name__} of this model has a forward of its own (from accelerate, torch.compile or "
                "a patch), which cannot be copied with it; load the model without that"
            )
        twin = modules[id(module)] = module.__class__.__new__(module.__class__)
        for key, value in module.__dict__.items():
            if key == "_parameters" or key == "_buffers":
                value = {name: one(tensor) for name, tensor in value.items()}
            elif key == "_modules":
                value = {name: None if child is None else visit(child) for name, child in value.items()}
            elif attention is not None and hasattr(value, "_attn_implementation"):
                value = config(value)
            elif key == "_compiled_call_impl":
                value = None  # compiled code would run the model's own modules
            elif isinstance(value, dict):
                value = value.copy()  # hooks, among others
            twin.__dict__[key] = value
        return twin

    return visit(model)

"""A sentence encoder, cut at one of its blocks.

The model is wrapped, never subclassed and never changed. A cut is a private copy of the module tree that shares
the model's weights: the copy's blocks are the ones that capture and inject, its attention is the one that can be
differentiated, its mode is evaluation. Hooks, modes and configurations of the model itself are never touched, so
there is nothing to restore after an exception, and threads and explainers cannot disturb each other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whymatch import jacobian
from whymatch.attention import NAME, register
from whymatch.inputs import Input, Reading, Value, batched, read_picture, read_texts, with_patches
from whymatch.picture import open_picture
from whymatch.reference import Reference, content_ids
from whymatch.rules import speed_up
from whymatch.text import shown

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# What a model is run on once, to see which of its parts run.
SAMPLE = "a"


@dataclass(frozen=True)
class Tower:
    """What of a model runs for one kind of input: found by running it."""

    blocks: str  # the name of the list of blocks
    layers: int  # how often one of them runs: more often than there are blocks where they share their weights
    rows: int  # the hidden states of the input that it was found with
    normalizers: tuple[str, ...]  # Normalize modules that run last
    entry: str | None  # the outermost module that is handed what the first block is: others inside may use it too


class Encoder:
    """A SentenceTransformer with what the engine asks of it."""

    def __init__(self, model: SentenceTransformer, name: str, blocks: str | Sequence[str] | None = None) -> None:
        if len(model) == 0:
            raise TypeError(f"{name!r} has no modules: there is nothing to explain")
        self.model = model
        self.name = name
        self._blocks = None if blocks is None else _named_blocks(model, [blocks] if isinstance(blocks, str) else blocks)
        self._towers: dict[Hashable, Tower] = {}
        self._contents: dict[Hashable, list[int]] = {}
        # Asymmetric models have a route for queries and one for documents; which is which, a pair says by its order.
        self.asymmetric = any(_tasks(module) >= {"query", "document"} for module in model.modules())

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
    def num_layers(self) -> int:
        """Of the tower that a text goes through."""
        return self.tower(self._sample()).layers

    def _sample(self, reading: Reading | None = None) -> Input:
        """A short input, to see which parts of the model run."""
        usual = Reading("query") if self.asymmetric else Reading()
        value = SAMPLE if "text" in self.model.modalities else _blank()
        return self.read([value], reading or usual)[0]

    def check_reference(self, reference: Reference) -> None:
        """An error if the tokenizer has no such token, before any text is read."""
        if isinstance(reference, str) and "text" in self.model.modalities:
            self.content(reference, self._sample())

    def content(self, reference: str, given: Input) -> list[int]:
        """The ids that stand for content where this input is read; asked of the tokenizer once, for it has a state."""
        if given.modality == "image":
            return []
        key = (reference, given.reading.task)
        if key not in self._contents:
            with jacobian.LOCK:
                self._contents[key] = content_ids(given.reader.tokenizer, reference)
        return self._contents[key]

    def read(self, values: Sequence[Value], reading: Reading) -> list[Input]:
        """Preprocess inputs as the model itself does."""
        twin = _copy_tree(self.model)  # preprocessing keeps notes in its modules
        for module in twin.modules():
            if hasattr(module, "can_flatten_inputs"):
                module.can_flatten_inputs = False  # flash attention would pack the texts, and lose their tokens' places
        texts = [value for value in values if isinstance(value, str)]
        if any(_is_media(text, self.model.modalities) for text in texts):
            name = next(text for text in texts if _is_media(text, self.model.modalities))
            raise ValueError(f"{shown(name)} names a file, which this model would open: give a Pillow image or a Path")
        found = iter(read_texts(twin, texts, reading)) if texts else iter(())
        return [next(found) if isinstance(value, str) else self._read_picture(twin, value, reading) for value in values]

    def _read_picture(self, twin: Any, value: Value, reading: Reading) -> Input:
        if "image" not in self.model.modalities:
            raise TypeError(
                f"{self.name!r} reads {', '.join(map(str, self.model.modalities))}, not pictures: {value!r:.80}"
            )
        given = read_picture(twin, value, reading)
        tower = self.tower(given)
        return with_patches(given, tower.rows, _patch_size(self.model, tower))

    def embed(self, inputs: Sequence[Input]) -> NDArray[np.floating]:
        """What the model itself gives, to which everything else is compared."""
        twin = _copy_tree(self.model, Tensor.detach).eval()
        reading = inputs[0].reading
        found: dict[int, NDArray[np.floating]] = {}
        # Inputs of one length need no padding, which rounds, and to which not every model is blind.
        alike: dict[Hashable, list[int]] = {}
        for i, one in enumerate(inputs):
            alike.setdefault((one.modality, len(one)), []).append(i)
        for numbers in alike.values():
            found |= zip(numbers, _encoded(twin, [inputs[i].value for i in numbers], reading), strict=True)
        return np.stack([found[i] for i in range(len(inputs))])

    def vectors(self, values: Sequence[Value], reading: Reading) -> NDArray[np.floating]:
        """Embeddings for ranking: many inputs at once, in the model's own batches."""
        twin = _copy_tree(self.model, Tensor.detach).eval()
        return _encoded(twin, [one if isinstance(one, str) else open_picture(one)[0] for one in values], reading)

    def tower(self, given: Input) -> Tower:
        """The part of the model that runs for this input, and where it can be cut."""
        key = (given.reading.task, given.modality)
        if key not in self._towers:
            # A short text runs through the same parts as a long one, and what they hold meanwhile is small.
            self._towers[key] = self._trace(given if given.modality == "image" else self._sample(given.reading))
        return self._towers[key]

    def _trace(self, given: Input) -> Tower:
        twin = _copy_tree(self.model, Tensor.detach).eval()
        ran: list[str] = []  # leaves, in the order in which they ended
        states: dict[str, list[Any]] = {}  # what each list's blocks were handed
        handed: dict[str, Any] = {}  # what each module was handed, first
        lists: dict[str, Any] = {
            name: module
            for name, module in twin.named_modules()
            if isinstance(module, nn.ModuleList) or name in (self._blocks or ())
        }
        owners = {id(block): name for name, blocks in lists.items() for block in blocks.children()}
        for name, module in list(twin.named_modules()):

            def forward(
                *args: Any,
                name: str = name,
                module: Any = module,
                run: Callable[..., Any] = module.forward,
                **kwargs: Any,
            ) -> Any:
                if args or kwargs:
                    handed.setdefault(name, _first_state(args, kwargs))
                if id(module) in owners:
                    states.setdefault(owners[id(module)], []).append(_first_state(args, kwargs))
                out = run(*args, **kwargs)
                if not len(list(module.children())):
                    ran.append(name)
                return out

            module.forward = forward
        with torch.no_grad():
            twin(batched([given.features], self.device), **given.reading.options)
        blocks = self._choose(lists, states)
        normalizers = []
        for name in reversed(ran):
            if type(twin.get_submodule(name)).__name__ != "Normalize":
                break
            normalizers.append(name)
        state = states[blocks][0]
        if not isinstance(state, Tensor) or state.ndim != 3:
            raise TypeError(
                f"the blocks {blocks!r} of {self.name!r} are not handed hidden states (inputs, tokens, dimensions); "
                f"name others: {_how_to_name()}"
            )
        outside = [blocks.rsplit(".", n)[0] for n in range(blocks.count("."), 0, -1)]
        entry = next((name for name in outside if handed.get(name) is state), None)
        return Tower(blocks, len(states[blocks]), state.shape[1], tuple(normalizers), entry)

    def _choose(self, lists: dict[str, Any], states: dict[str, list[Any]]) -> str:
        """The list of blocks: alike modules that ran, not inside another such list, that ran most often."""
        if self._blocks is not None:
            ran = [name for name in self._blocks if name in states]
            if ran:
                return ran[0]
            raise ValueError(f"blocks={', '.join(map(repr, self._blocks))}: none of these ran for this input")
        alike = [name for name in states if len(set(map(type, lists[name]))) == 1]
        outer = [name for name in alike if not any(name.startswith(other + ".") for other in alike)]
        if outer:
            return max(outer, key=lambda name: len(states[name]))
        tried = [f"{name} ({', '.join(sorted({type(m).__name__ for m in blocks}))})" for name, blocks in lists.items()]
        first = type(self.model[0]).__name__
        raise TypeError(
            f"no list of alike blocks ran in {self.name!r}, which begins with {first}; looked at "
            f"{'; '.join(tried) or 'its modules, none of which is a ModuleList'}. Name the blocks: {_how_to_name()}; "
            "an encoder without blocks can be explained with whymatch.decompose_callable"
        )

    def cut(self, given: Input, layer: int, dtype: torch.dtype, attention: str | None = None) -> Cut:
        """The encoder from ``layer`` on; by default with an attention that has derivatives of both modes."""
        if attention is None:
            register()
            takes_any = [
                m._supports_attention_backend for m in self.model.modules() if hasattr(m, "_supports_attention_backend")
            ]
            attention = NAME if takes_any and all(takes_any) else "eager"
        return Cut(self, given, layer, dtype, attention)


class Cut:
    """The encoder from block ``layer`` on, as a function of that block's input, without a last Normalize."""

    def __init__(self, encoder: Encoder, given: Input, layer: int, dtype: torch.dtype, attention: str) -> None:
        def cast(weight: Tensor) -> Tensor:
            return weight.detach().to(dtype) if weight.is_floating_point() else weight

        # What does not take its attention from transformers may still have a fused one inside.
        self._plainly = jacobian.differentiable if attention == "eager" else nullcontext
        self._tower = tower = encoder.tower(given)
        self._options = given.reading.options
        self._layer = layer
        self._dtype = dtype
        self.device = encoder.device
        self._tree = _copy_tree(encoder.model, cast, attention).eval()
        speed_up(self._tree)
        # The length of a normalized embedding depends on all tokens at once; the engine divides by it afterwards.
        self.normalizes = bool(tower.normalizers)
        for name in tower.normalizers:
            self._tree.get_submodule(name).forward = lambda features: features
        self.truncate_dim = encoder.model.truncate_dim
        self._injected: Tensor | None = None
        self._captured: Tensor | None = None
        self._calls = 0  # of blocks, in the pass that is running
        self._beside: dict[int, list[tuple[Any, ...]]] = {}  # what blocks return beside the hidden states, by call
        blocks = list(self._tree.get_submodule(tower.blocks).children())
        self.depth = max(1, tower.layers - layer)
        for block in blocks:
            block.forward = self._gate(block.forward)
        if layer == 0 and tower.entry is not None:
            entry = self._tree.get_submodule(tower.entry)
            entry.forward = self._entrance(entry.forward)
        self._widths = [m.out_features for block in blocks for m in block.modules() if isinstance(m, nn.Linear)]
        names = ("num_attention_heads", "num_heads", "n_heads")
        heads = [getattr(m, name, 0) for block in blocks for m in block.modules() for name in names]
        # Only the plain attention keeps weights of every head, tokens × tokens.
        self._kept_heads = 0 if attention == NAME else max((h for h in heads if isinstance(h, int)), default=1)

    def _gate(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Stands in for a block's ``forward``: records it, skips it, or feeds it the injected input."""
        layer, last = self._layer, self._tower.layers - 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            number, injected = self._calls, self._injected
            self._calls += 1
            if injected is None:
                if number == layer:
                    self._captured = _first_state(args, kwargs)
                    raise _Captured
                out = run(*args, **kwargs)
                if isinstance(out, tuple):
                    self._beside.setdefault(number, []).append(out[1:])
                if number == last < layer:
                    self._captured = out[0] if isinstance(out, tuple) else out
                    raise _Captured
                return out
            if number == layer:
                args, kwargs = _with_state(args, kwargs, injected)
            if number >= layer:
                return run(*args, **kwargs)
            passed = injected if number == last else _first_state(args, kwargs)
            return (passed, *self._selected[number]) if number in self._selected else passed

        return forward

    def _entrance(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Stands in for the module around the blocks, whose own input is what the first block is handed."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._injected is None:
                self._captured = _first_state(args, kwargs)
                raise _Captured
            args, kwargs = _with_state(args, kwargs, self._injected)
            return run(*args, **kwargs)

        return forward

    def head(self, features: dict[str, Any]) -> Tensor:
        """The representation at the cut (inputs, rows, dim); the rest of the encoder does not run."""
        some = features.get("input_ids", features.get("pixel_values"))
        assert isinstance(some, Tensor)
        hidden: list[Tensor] = []
        size = jacobian.room(self.pass_bytes(self._tower.rows if some.ndim > 2 else some.shape[1]), self.device)
        self._beside.clear()
        for low in range(0, len(some), size):
            self._calls, self._captured = 0, None
            try:
                with torch.no_grad():
                    part = _select(features, torch.arange(low, min(low + size, len(some))))
                    self._tree(self._cast(part), **self._options)
            except _Captured:
                pass
            if self._captured is None:
                raise TypeError(f"the blocks {self._tower.blocks!r} ran {self._calls} times, not {self._tower.layers}")
            hidden.append(self._captured)
        return torch.cat(hidden)

    def tail(self, features: dict[str, Any]) -> Callable[[Tensor, Tensor], Tensor]:
        """The rest of the encoder, as a function of the representation and of whose it is."""
        # Of the inputs whose features these are: their head ran last.
        beside = {number: _joined(parts) for number, parts in self._beside.items()}

        def run(x: Tensor, which: Tensor) -> Tensor:
            self._injected, self._calls = x, 0
            self._selected = {
                number: tuple(value[which] if batched else value for value, batched in found)
                for number, found in beside.items()
            }
            try:
                with self._plainly():
                    out: Tensor = self._tree(self._cast(_select(features, which)), **self._options)[
                        "sentence_embedding"
                    ]
            finally:
                self._injected = None
            return out

        return run

    def _cast(self, features: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value.to(self._dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for key, value in features.items()
        }

    def pass_bytes(self, rows: int) -> int:
        """An estimate of what one pass over one input holds at its peak."""
        wide, narrow = max(self._widths, default=4096), min(self._widths, default=1024)
        return self._dtype.itemsize * rows * (3 * wide + 6 * narrow + 4 * self._kept_heads * rows)


class _Captured(Exception):  # noqa: N818 it is no error: it ends a pass that has done its work
    pass


def _first_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A block's hidden states: its first argument, or the first of its keywords."""
    return args[0] if args else next(iter(kwargs.values()))


def _with_state(args: tuple[Any, ...], kwargs: dict[str, Any], state: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (state, *args[1:]), kwargs
    return args, kwargs | {next(iter(kwargs)): state}


def _joined(parts: list[tuple[Any, ...]]) -> list[tuple[Any, bool]]:
    """What a block returned in each piece of the head, as one value, and whether it has an entry for each input."""
    found = []
    for values in zip(*parts, strict=True):
        tensors = isinstance(values[0], Tensor) and values[0].ndim > 0
        each = tensors and (len(values[0]) > 1 or not all(torch.equal(value, values[0]) for value in values))
        found.append((torch.cat(values) if each else values[0], each))
    return found


def _named_blocks(model: Any, names: Sequence[str]) -> list[str]:
    """Full names of the lists of blocks that a user names, from the model's top or from its transformer's."""
    known = dict(model.named_modules())
    found = []
    for name in names:
        full = [name] if name in known else [each for each in known if each.endswith("." + name)]
        if not full or not all(len(list(known[each].children())) for each in full):
            lists = [each for each, module in known.items() if isinstance(module, nn.ModuleList)]
            raise ValueError(
                f"blocks={name!r} is not a list of blocks of this model; it has {', '.join(lists) or 'none'}"
            )
        found += full
    return found


def _tasks(module: Any) -> set[str]:
    """The tasks that a Router tells apart."""
    routes = getattr(module, "sub_modules", None)
    return {*(routes or ()), *(task for task, _ in getattr(module, "route_mappings", None) or ())}


def _encoded(twin: Any, values: Sequence[Value], reading: Reading) -> NDArray[np.floating]:
    prompt = reading.resolve(twin)
    return np.asarray(twin.encode(values, prompt=prompt, show_progress_bar=False, **reading.options))


def _how_to_name() -> str:
    return 'Explainer(model, blocks="path.to.blocks")'


def _blank() -> Any:
    from PIL import Image

    return Image.new("RGB", (224, 224))


def _is_media(text: str, modalities: Sequence[Any]) -> bool:
    """Whether sentence-transformers would take this text for the name or address of a file."""
    if set(modalities) <= {"text"}:
        return False
    from sentence_transformers.base.modality import infer_modality

    return bool(infer_modality(text, supported_modalities=list(modalities)) != "text")


def _patch_size(model: Any, tower: Tower) -> int:
    """The size of a patch, from what cuts the picture: the nearest convolution that is as wide as its stride."""
    cuts = {
        name: int(module.stride[0])
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride
    }
    if not cuts:
        raise TypeError(
            f"no patches found in the tower of {tower.blocks!r}: its pictures are not cut by one convolution"
        )
    around = tower.blocks.split(".")
    return cuts[max(cuts, key=lambda name: sum(1 for _ in takewhile(bool, map(str.__eq__, name.split("."), around))))]


def _select(features: dict[str, Any], which: Tensor) -> dict[str, Any]:
    return {key: value[which] if isinstance(value, Tensor) else value for key, value in features.items()}


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
            configs[id(value)].use_cache = False
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

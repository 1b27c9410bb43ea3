"""A sentence encoder: how it reads inputs, what it gives for them, and where it can be cut.

The model is wrapped, never subclassed and never changed: everything is run on private copies of its module tree that
share its weights. Its hooks, modes and configurations are never touched, and threads and explainers cannot disturb
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whymatch import jacobian
from whymatch.attention import NAME, register
from whymatch.cut import Cut, Tower, first_state
from whymatch.inputs import Input, Reading, Value, batched, read_picture, read_texts, with_patches
from whymatch.picture import open_picture
from whymatch.reference import Reference, content_ids
from whymatch.text import shown
from whymatch.tree import copy_tree

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# What a model is run on once, to see which of its parts run.
SAMPLE = "a"


class Encoder:
    """A SentenceTransformer with what the engine asks of it."""

    def __init__(self, model: SentenceTransformer, name: str, blocks: str | Sequence[str] | None = None) -> None:
        if len(model) == 0:
            raise TypeError(f"{name!r} has no modules: there is nothing to explain")
        from whymatch.training.shift import shift_of, unshifted

        self.model = model
        self.name = name
        # An adjusted model subtracts its reference's embedding at the very end. What it is cut and read by is the rest.
        shift = shift_of(model)
        self.shifted_by: str | None = None if shift is None else shift.reference
        self._inner = unshifted(model)
        self._before_shift = 0 if shift is None else len(shift.encoder)  # modules
        self._blocks = (
            None if blocks is None else _named_blocks(self._inner, [blocks] if isinstance(blocks, str) else blocks)
        )
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
        twin = copy_tree(self._inner)  # preprocessing keeps notes in its modules
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
        return with_patches(given, tower.rows, _patch_size(self._inner, tower))

    def embed(self, inputs: Sequence[Input]) -> NDArray[np.floating]:
        """What the model itself gives, to which everything else is compared."""
        twin = copy_tree(self.model, Tensor.detach).eval()
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
        twin = copy_tree(self.model, Tensor.detach).eval()
        return _encoded(twin, [one if isinstance(one, str) else open_picture(one)[0] for one in values], reading)

    def tower(self, given: Input) -> Tower:
        """The part of the model that runs for this input, and where it can be cut."""
        key = (given.reading.task, given.modality)
        if key not in self._towers:
            # A short text runs through the same parts as a long one, and what they hold meanwhile is small.
            self._towers[key] = self._trace(given if given.modality == "image" else self._sample(given.reading))
        return self._towers[key]

    def _trace(self, given: Input) -> Tower:
        twin = copy_tree(self._inner, Tensor.detach).eval()
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
                    handed.setdefault(name, first_state(args, kwargs))
                if id(module) in owners:
                    states.setdefault(owners[id(module)], []).append(first_state(args, kwargs))
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
            # What an adjusted model normalizes before its shift, it does not do last.
            shifted = int(name.split(".")[0]) < self._before_shift
            if shifted or type(twin.get_submodule(name)).__name__ != "Normalize":
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
        first = type(self._inner[0]).__name__
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
        return Cut(self._inner, self.tower(given), given, layer, dtype, attention)


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

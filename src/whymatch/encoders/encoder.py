"""A sentence encoder: how it reads inputs, how it embeds them, and where it can be cut.

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

from whymatch import progress
from whymatch.encoders.cut import (
    Cut,
    EncoderError,
    Tokenizers,
    Tower,
    copy_tree,
    first_state,
    has_own_forward,
    is_plain_linear,
    model_code,
)
from whymatch.encoders.identity import identity
from whymatch.encoders.loading import check_default_device
from whymatch.paths.derivatives import NAME, knows_attention, register
from whymatch.paths.jacobian import LOCK
from whymatch.reading.inputs import (
    EncodeOptions,
    Input,
    TokenSource,
    Value,
    batched,
    read_picture,
    read_texts,
    with_patches,
)
from whymatch.reading.pictures import open_picture
from whymatch.reading.reference import Reference, content_ids
from whymatch.words import quote

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BATCH = 32  # what encode takes together
BLOCKLESS = ("BoW", "StaticEmbedding", "WordEmbeddings")  # modules that read texts without a transformer

# The text that a model is run on once, to see which of its parts run, and a longer one for those that halve texts.
SAMPLE, LONGER_SAMPLE = "a", " ".join("abcdefghijklmnop")


class Encoder:
    """A SentenceTransformer, and what the engine asks of it."""

    def __init__(self, model: SentenceTransformer, name: str, blocks: str | Sequence[str] | None = None) -> None:
        if len(model) == 0:
            raise TypeError(f"{name!r} has no modules: there is nothing to explain")
        from whymatch.encoders.adjusted import shift_of, unshifted

        _check_weights(model, name)
        self.model = model
        self.name = name
        # An adjusted model subtracts its reference's embedding at the very end; the rest is what is read and cut.
        shift = shift_of(model)
        self.shifted_by: str | None = None if shift is None else shift.reference
        self._inner = unshifted(model)
        self._before_shift = 0 if shift is None else len(shift.encoder)  # how many modules run before that
        self._blocks = (
            None if blocks is None else _named_blocks(self._inner, [blocks] if isinstance(blocks, str) else blocks)
        )
        self._tokenizers = Tokenizers()
        self._towers: dict[Hashable, Tower] = {}
        self._contents: dict[Hashable, list[int]] = {}
        # Whether a cut gives the model's own hidden states, for each part of the model, layer and precision asked for.
        self.checked_heads: dict[Hashable, bool] = {}
        # Asymmetric models have a route or a prompt for queries and one for documents; a pair's order tells which is
        # which.
        self.routed, self.asymmetric = is_routed(model), is_asymmetric(model)

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
    def uses_all_layers(self) -> bool:
        """Whether the pooling uses the hidden states of all layers, so that only the input can be cut."""
        configs = [getattr(module, "config", None) for module in self._inner.modules()]
        return any(getattr(config, "output_hidden_states", False) is True for config in configs)

    @property
    def dimensions(self) -> int:
        dimensions: int | None = self.model.get_embedding_dimension()
        assert dimensions is not None
        return dimensions

    def identity(self) -> str:
        """A hash of everything that decides the model's embeddings."""
        return identity(self.model)

    @property
    def num_layers(self) -> int:
        """The number of blocks that a text goes through."""
        return self.tower(self._sample()).layers

    def _sample(self, options: EncodeOptions | None = None) -> Input:
        """Read a short input, to see which parts of the model run."""
        usual = EncodeOptions("query") if self.routed else EncodeOptions()
        value = SAMPLE if "text" in self.model.modalities else _blank()
        return self.read([value], options or usual)[0]

    def check_reference(self, reference: Reference) -> None:
        """Raise an error if the tokenizer has no such token, before any text is read."""
        if isinstance(reference, str) and "text" in self.model.modalities:
            self.content(reference, self._sample())

    def content(self, reference: str, given: Input) -> list[int]:
        """Return the token ids that replace content; the tokenizer, which is not thread-safe, is asked once."""
        if given.modality == "image":
            return []
        key = (reference, given.options.task)
        if key not in self._contents:
            with LOCK:
                self._contents[key] = content_ids(given.reader.tokenizer, reference)
        return self._contents[key]

    def read(self, values: Sequence[Value], options: EncodeOptions) -> list[Input]:
        """Preprocess inputs as the model itself does."""
        check_default_device()
        twin = copy_tree(self._inner, tokenizers=self._tokenizers)  # preprocessing keeps notes in its modules
        for module in twin.modules():
            if hasattr(module, "can_flatten_inputs"):
                # Flash attention would pack the texts, and the places of their tokens would be lost.
                module.can_flatten_inputs = False
        texts = [value for value in values if isinstance(value, str)]
        name = next(filter(self.opens, texts), None)
        if name is not None:
            raise ValueError(f"{quote(name)} names a file, which this model would open: give a Pillow image or a Path")
        read = iter(read_texts(twin, texts, options)) if texts else iter(())
        return [next(read) if isinstance(value, str) else self._read_picture(twin, value, options) for value in values]

    def opens(self, text: str) -> bool:
        """Whether the model would take this text for the name or address of a file, and open that."""
        if set(self.model.modalities) <= {"text"}:
            return False
        from sentence_transformers.base.modality import infer_modality

        return bool(infer_modality(text, supported_modalities=list(self.model.modalities)) != "text")

    def _read_picture(self, twin: Any, value: Value, options: EncodeOptions) -> Input:
        if "image" not in self.model.modalities:
            raise TypeError(
                f"{self.name!r} reads {', '.join(map(str, self.model.modalities))}, not pictures: {value!r:.80}"
            )
        given = read_picture(twin, value, options)
        tower = self.tower(given)
        return with_patches(given, tower.rows, _patch_size(self._inner, tower))

    def complete(self, source: TokenSource) -> TokenSource:
        """Add to a source what only this kind of encoder knows."""
        return source

    def embed(
        self, inputs: Sequence[Input], layer: int | None = None
    ) -> tuple[NDArray[np.floating], dict[int, Tensor]]:
        """Embed inputs with the model's own ``encode``, which everything else is compared with.

        Args:
            layer: also keep the hidden states there (rows, dim), by the number of the input, where they can be seen.
        """
        twin = copy_tree(self.model, Tensor.detach, tokenizers=self._tokenizers).eval()
        options = inputs[0].options
        embeddings: dict[int, NDArray[np.floating]] = {}
        states: dict[int, Tensor] = {}
        # Inputs of one length need no padding, which changes how sums round, and which not every model ignores.
        by_length: dict[Hashable, list[int]] = {}
        for i, given in enumerate(inputs):
            by_length.setdefault((given.modality, len(given)), []).append(i)
        # ``encode`` sorts its inputs, so that of several it is not known whose states these are.
        seen = None if layer is None or self.shifted_by is not None else _watch(twin, self.tower(inputs[0]), layer)
        for numbers in by_length.values():
            batch = [inputs[i] for i in numbers]
            with model_code(self.name, f"it embeds {quote(batch[0].text)}", self._too_long(batch[0])):
                embeddings |= zip(numbers, encode(twin, [given.value for given in batch], options), strict=True)
            if seen is not None:
                if len(batch) == len(seen) == 1 and seen[0].shape[:2] == (1, len(batch[0])):
                    states[numbers[0]] = seen[0][0].clone()  # outside of inference mode, where it was made
                seen.clear()
        return np.stack([embeddings[i] for i in range(len(inputs))]), states

    def _too_long(self, given: Input) -> str:
        """Say what to do about a text with more tokens than the model has positions."""
        positions = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        if not isinstance(positions, int) or len(given) < positions:
            return ""
        return (
            f"The text has {len(given):,} tokens, and the model's table has {positions:,} positions: set the model's "
            f"max_seq_length to {positions:,} or less, and longer texts are truncated"
        )

    def vectors(self, values: Sequence[Value], options: EncodeOptions) -> NDArray[np.floating]:
        """Embed many inputs at once, in the model's own batches, for ranking."""
        twin = copy_tree(self.model, Tensor.detach, tokenizers=self._tokenizers).eval()
        opened = [value if isinstance(value, str) else open_picture(value)[0] for value in values]
        options.resolve_prompt(self.model)  # what is wrong with it is no fault of the model's code
        with model_code(self.name, "it embeds texts", "They may be too long, or too short, for it"):
            return np.asarray(in_batches(opened, lambda batch: encode(twin, batch, options)))

    def tower(self, given: Input) -> Tower:
        """Find the part of the model that runs for this input, and where it can be cut."""
        key = given.route
        if key not in self._towers:
            if given.modality == "image":
                self._towers[key] = self._trace(given)
                return self._towers[key]
            # A short text runs through the same parts as a long one, and takes little memory.
            try:
                self._towers[key] = self._trace(self._sample(given.options))
            except EncoderError:
                self._towers[key] = self._trace(self.read([LONGER_SAMPLE], given.options)[0])
        return self._towers[key]

    def _trace(self, given: Input) -> Tower:
        """Run the model on an input, and see what runs."""
        twin = copy_tree(self._inner, Tensor.detach).eval()
        ran: list[str] = []  # modules without children, in the order in which they ended
        states: dict[str, list[Any]] = {}  # the inputs of each list's blocks
        handed: dict[str, Any] = {}  # the first input of each module
        linears: dict[str, list[list[str]]] = {}  # for each call of a list's blocks: layers that are given its input
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
                    linears.setdefault(owners[id(module)], []).append([])
                if is_plain_linear(module):
                    for each, inputs in states.items():
                        if len(args) == 1 and args[0] is inputs[-1] and name not in linears[each][-1]:
                            linears[each][-1].append(name)
                out = run(*args, **kwargs)
                if not len(list(module.children())):
                    ran.append(name)
                return out

            module.forward = forward
        with torch.no_grad(), model_code(self.name, "it reads a first, short input"):
            out = twin(batched([given.features], self.device), **given.options.kwargs)
        if "sentence_embedding" not in out:
            raise TypeError(
                f"{self.name!r} has no pooling: it gives no embedding of a whole text. Add one: "
                "SentenceTransformer(modules=[*model, Pooling(model[0].get_embedding_dimension())])"
            )
        blocks = self._choose(lists, states)
        normalizers = []
        for name in reversed(ran):
            # An adjusted model may normalize before its shift; that is not its last step.
            shifted = int(name.split(".")[0]) < self._before_shift
            if shifted or type(twin.get_submodule(name)).__name__ != "Normalize":
                break
            normalizers.append(name)
        state = states[blocks][0]
        # XLNet's blocks are handed (tokens, inputs, dimensions), SqueezeBERT's (inputs, dimensions, tokens).
        ordered = isinstance(state, Tensor) and state.ndim == 3 and len(state) == 1
        if ordered and given.modality == "text":
            ordered = state.shape[1] == len(given) or state.shape[2] != len(given)
        if not ordered:
            raise TypeError(
                f"the blocks {blocks!r} of {self.name!r} are not given hidden states (inputs, tokens, dimensions), in "
                f"that order, and cannot be explained; if there are others, name them: {_how_to_name()}; "
                "method='shapley' explains the model as a black box"
            )
        outside = [blocks.rsplit(".", n)[0] for n in range(blocks.count("."), 0, -1)]
        entry = next((name for name in outside if handed.get(name) is state), None)
        entries = tuple(map(tuple, linears[blocks]))
        return Tower(blocks, len(states[blocks]), state.shape[1], tuple(normalizers), entry, entries)

    def _choose(self, lists: dict[str, Any], states: dict[str, list[Any]]) -> str:
        """Choose the list of blocks: modules of one type, in no other such list, that ran most often."""
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
            "method='shapley' explains an encoder without blocks as a black box"
        )

    def cut(self, given: Input, layer: int, dtype: torch.dtype, attention: str | None = None) -> Cut:
        """Cut the encoder at a layer; by default, its attention can be differentiated in both modes."""
        if attention is None:
            register()
            attention = NAME if knows_attention(self.model) else "eager"
        return Cut(self._inner, self.name, self.tower(given), given, layer, dtype, attention)


def _watch(twin: Any, tower: Tower, layer: int) -> list[Tensor]:
    """Return a list to which the private twin of a model adds the input of every block that runs at this layer."""
    seen: list[Tensor] = []
    calls = 0
    for block in twin.get_submodule(tower.blocks).children():

        def forward(*args: Any, run: Callable[..., Any] = block.forward, **kwargs: Any) -> Any:
            nonlocal calls
            if calls % tower.layers == layer:
                seen.append(first_state(args, kwargs).clone())  # a block may write into its input
            calls += 1
            return run(*args, **kwargs)

        block.forward = forward
    return seen


def _check_weights(model: Any, name: str) -> None:
    """Refuse weights that have no values, and what cannot be differentiated."""
    if any(weight.is_meta for weight in model.parameters()):
        raise TypeError(f"the weights of {name!r} are on the device 'meta', and so have no values: load it on another")
    if obstacle := find_obstacle(model):
        raise TypeError(f"{name!r} cannot be differentiated, because {obstacle}")


def find_obstacle(model: Any) -> str | None:
    """Return why a model cannot be differentiated, or None if nothing speaks against it."""
    backends = {getattr(each, "backend", "torch") for each in model.modules()} - {"torch"}
    if backends:
        return f"it runs with {min(map(str, backends))}"
    places = {str(weight.device) for weight in model.parameters()}
    if len(places) > 1 and any("_hf_hook" in vars(module) for module in model.modules()):
        return f"accelerate has put its weights in several places ({', '.join(sorted(places))})"
    for path, module in model.named_modules():
        kinds = {weight.dtype for weight in module.parameters(recurse=False)}
        # Eight-bit numbers are multiplied by scales that are kept elsewhere.
        rounded = [kind for kind in kinds if not kind.is_floating_point or kind.itemsize == 1]
        kind = type(module).__name__
        if rounded or "quantized" in type(module).__module__ or hasattr(module, "qweight"):
            return f"it is quantised ({path} is a {kind}), and rounded numbers have no derivative"
        if has_own_forward(module) and kind != "OptimizedModule":
            return f"{path}, a {kind}, has a forward of its own, which cannot be copied with it"
        if kind in BLOCKLESS:
            return f"{kind} has no blocks"
    return None


def _named_blocks(model: Any, names: Sequence[str]) -> list[str]:
    """Complete the names of lists of blocks, which may be relative to the model or to its transformer."""
    known = dict(model.named_modules())
    complete = []
    for name in names:
        full = [name] if name in known else [each for each in known if each.endswith("." + name)]
        if not full or not all(len(list(known[each].children())) for each in full):
            lists = [each for each, module in known.items() if isinstance(module, nn.ModuleList)]
            raise ValueError(
                f"blocks={name!r} is not a list of blocks of this model; it has {', '.join(lists) or 'none'}"
            )
        complete += full
    return complete


def is_routed(model: Any) -> bool:
    """Whether a model has a route for queries and one for documents."""
    return any(_tasks(module) >= {"query", "document"} for module in model.modules())


def is_asymmetric(model: Any) -> bool:
    """Whether a model reads queries and documents in different ways: by a route or a prompt for each."""
    plain, *own = (EncodeOptions(task).resolve_prompt(model) or "" for task in (None, "query", "document"))
    return is_routed(model) or any(prompt != plain for prompt in own)


def _tasks(module: Any) -> set[str]:
    """Return the tasks between which a Router chooses."""
    routes = getattr(module, "sub_modules", None)
    return {*(routes or ()), *(task for task, _ in getattr(module, "route_mappings", None) or ())}


def in_batches(values: Sequence[Any], embed: Callable[[list[Any]], Any]) -> list[Any]:
    """Embed inputs in the batches that ``encode`` itself makes, longest first.

    Between two of them, whoever watches the progress may stop the work.
    """
    order = sorted(range(len(values)), key=lambda i: -len(values[i]) if isinstance(values[i], str) else 0)
    vectors: dict[int, Any] = {}
    for low in range(0, len(order), BATCH):
        progress.report(0.0, "embedding")
        batch = order[low : low + BATCH]
        vectors.update(zip(batch, embed([values[i] for i in batch]), strict=True))
    return [vectors[i] for i in range(len(values))]


def encode(twin: Any, values: Sequence[Value], options: EncodeOptions, **more: Any) -> NDArray[np.floating]:
    """Embed inputs with a model's own ``encode``."""
    prompt = options.resolve_prompt(twin)
    return np.asarray(twin.encode(values, prompt=prompt, show_progress_bar=False, **options.kwargs, **more))


def _how_to_name() -> str:
    return 'Explainer(model, blocks="path.to.blocks")'


def _blank() -> Any:
    from PIL import Image

    return Image.new("RGB", (224, 224))


def _patch_size(model: Any, tower: Tower) -> int:
    """Return the size of a patch: the stride of the nearest convolution whose kernel is as wide as its stride."""
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

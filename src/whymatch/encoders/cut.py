"""The encoder, cut at one of its blocks.

A cut is a private copy of the module tree, whose blocks capture, skip and inject states, and whose attention can be
differentiated. The model itself is never changed, so nothing has to be restored after an exception.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from whymatch.memory import release
from whymatch.paths.derivatives import NAME, plain_pass, speed_up
from whymatch.paths.jacobian import Lift, passes_at_once, plain_attention
from whymatch.reading.inputs import Input
from whymatch.words import quote

LARGE = 64 * 2**20  # bytes of weights whose copies in another precision must not pile up

# What PyTorch says of operations that cannot be differentiated in the ways needed here.
UNDERIVED = re.compile(r"setup_context|forward[ -](AD|mode)|functorch|vmap|batching rule|jvp", re.IGNORECASE)


class EncoderError(RuntimeError, TypeError):
    """The model's own code failed; the exception that it raised is the cause."""


@contextmanager
def model_code(name: str, doing: str, advice: str = "") -> Iterator[None]:
    """Turn an exception of a model's own code into one that names the model, what it was doing, and what to do.

    Args:
        name: the model's name.
        doing: what the model was doing, as the end of "fails in its own code while …".
        advice: a sentence that says what to do, where the cause is known.
    """
    try:
        yield
    except (EncoderError, _Captured, MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        if UNDERIVED.search(str(error)):
            advice = f"PyTorch cannot differentiate one of its operations. {advice}"
        cause = f"{type(error).__name__}: {quote(first_line, 120)}"
        raise EncoderError(f"{name!r} fails in its own code while {doing} ({cause}). {advice}".rstrip()) from error


@dataclass(frozen=True)
class Tower:
    """The part of a model that runs for one kind of input; found by running the model.

    Attributes:
        blocks: the name of the list of blocks.
        layers: how many times blocks run, which is more than there are blocks if they share weights.
        rows: the number of hidden states of the input that it was found with.
        normalizers: the names of the Normalize modules that run last.
        entry: the outermost module with the same input as the first block; others inside it may use that input too.
        linears: for each call of a block, the names of the linear layers that are given the block's own input.
    """

    blocks: str
    layers: int
    rows: int
    normalizers: tuple[str, ...]
    entry: str | None
    linears: tuple[tuple[str, ...], ...] = ()


class Cut:
    """The encoder from block ``layer`` on, as a function of that block's input, without a last Normalize."""

    def __init__(
        self, model: Any, name: str, tower: Tower, given: Input, layer: int, dtype: torch.dtype, attention: str
    ) -> None:
        def cast(weight: Tensor) -> Tensor:
            return weight.detach().to(dtype) if weight.is_floating_point() else weight

        # A model that does not take its attention from transformers may still contain a fused one.
        self._plainly = plain_attention if attention == "eager" else nullcontext
        self._name = name
        self._tower = tower
        self._options = given.options.kwargs
        self._layer = self.layer = layer
        self.layers = tower.layers
        self.dtype = dtype
        self.device = torch.device(model.device)
        if sum(weight.nbytes for weight in model.parameters() if weight.dtype != dtype) > LARGE:
            release()  # the copies of earlier cuts, which nobody uses
        self._tree = copy_tree(model, cast, attention).eval()
        speed_up(self._tree)
        # The length of a normalized embedding depends on all tokens at once; the engine divides by it afterwards.
        self.normalizes = bool(tower.normalizers)
        for name in tower.normalizers:
            self._tree.get_submodule(name).forward = lambda features: features
        self.truncate_dim = getattr(model, "truncate_dim", None)
        self._injected: Tensor | None = None
        self._window: tuple[int, int | None] = (layer, None)  # the blocks that run on what is injected
        self._upto = layer  # where the head ends
        self._captured: Tensor | None = None
        self._calls = 0  # of blocks, in the pass that is running
        self._beside: dict[int, list[tuple[Any, ...]]] = {}  # what blocks return beside the hidden states, by call
        blocks = list(self._tree.get_submodule(tower.blocks).children())
        self.depth = max(1, tower.layers - layer)
        for block in blocks:
            block.forward = self._gate(block.forward)
        self._given: tuple[Tensor, dict[str, Tensor]] | None = None  # a lifted state, and outputs of linear layers
        modules = dict(self._tree.named_modules())
        # Adapters may have taken the place of layers since the tower was found.
        self._linears = [[n for n in names if is_plain_linear(modules.get(n))] for names in tower.linears]
        for name in {name for names in self._linears[layer:] for name in names}:
            module = self._tree.get_submodule(name)
            module.forward = self._unless_given(name, module.forward)
        if layer == 0 and tower.entry is not None:
            entry = self._tree.get_submodule(tower.entry)
            entry.forward = self._entrance(entry.forward)
        self._widths = [m.out_features for block in blocks for m in block.modules() if isinstance(m, nn.Linear)]
        names = ("num_attention_heads", "num_heads", "n_heads")
        heads = [getattr(m, name, 0) for block in blocks for m in block.modules() for name in names]
        # Only the plain attention keeps weights of every head, tokens × tokens.
        self._kept_heads = 0 if attention == NAME else max((h for h in heads if isinstance(h, int)), default=1)

    def _gate(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a block's ``forward``: capture its input, skip it, or feed it the injected input."""
        layer, last = self._layer, self._tower.layers - 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            number, injected = self._calls, self._injected
            self._calls += 1
            if injected is None:  # the head
                if number == layer:
                    self._captured = first_state(args, kwargs)
                if number == self._upto:
                    raise _Captured
                out = run(*args, **kwargs)
                if isinstance(out, tuple):
                    self._beside.setdefault(number, []).append(out[1:])
                if number == last and self._upto > last:
                    if layer > last:
                        self._captured = out[0] if isinstance(out, tuple) else out
                    raise _Captured
                return out
            start, stop = self._window
            if number == stop:
                self._captured = first_state(args, kwargs)
                raise _Captured
            if number == start:
                args, kwargs = _with_state(args, kwargs, injected)
            if number >= start:
                out = run(*args, **kwargs)
                if number == last and stop == last + 1:
                    self._captured = out[0] if isinstance(out, tuple) else out
                    raise _Captured
                return out
            passed = injected if number == last else first_state(args, kwargs)
            return (passed, *self._selected[number]) if number in self._selected else passed

        return forward

    def _unless_given(self, name: str, run: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Replace the ``forward`` of a linear layer whose output may be given together with its input."""

        def forward(x: Tensor) -> Tensor:
            if self._given is not None and x is self._given[0] and name in self._given[1]:
                return self._given[1][name]
            return run(x)

        return forward

    def lift(self, start: int) -> Lift | None:
        """Return the linear layers that see nothing but the input of a tail that begins at this layer."""
        names = self._linears[start] if start < len(self._linears) else ()
        modules = [self._tree.get_submodule(name) for name in names]
        return Lift([(module.weight, module.bias) for module in modules]) if modules else None

    def _entrance(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Replace the ``forward`` of the module around the blocks, whose input is the first block's."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._injected is None:
                self._captured = first_state(args, kwargs)
                if self._upto == 0:
                    raise _Captured
            elif self._window[0] == 0:
                args, kwargs = _with_state(args, kwargs, self._injected)
            return run(*args, **kwargs)

        return forward

    def head(self, features: dict[str, Any], upto: int | None = None, skip: int = 0) -> Tensor:
        """Return the representation at the cut (inputs, rows, dim), of the inputs after those that are skipped.

        The rest of the encoder does not run.

        Args:
            upto: run on to this layer, so that what blocks return besides hidden states is known up to there, and a
                tail may begin there.
            skip: leave out the first inputs, whose states are known; see :attr:`needs_every_input`.
        """
        self._upto = self._layer if upto is None else upto
        some = features.get("input_ids", features.get("pixel_values"))
        assert isinstance(some, Tensor)
        hidden: list[Tensor] = []
        size = passes_at_once(self.pass_bytes(self._tower.rows if some.ndim > 2 else some.shape[1]), self.device)
        self._beside.clear()
        for low in range(skip, len(some), size):
            self._calls, self._captured = 0, None
            try:
                with torch.no_grad(), plain_pass(), model_code(self._name, f"it runs up to layer {self._layer}"):
                    part = _select(features, torch.arange(low, min(low + size, len(some))))
                    self._tree(self._cast(part), **self._options)
            except _Captured:
                pass
            if self._captured is None:
                raise TypeError(f"the blocks {self._tower.blocks!r} ran {self._calls} times, not {self._tower.layers}")
            if not isinstance(self._captured, Tensor):
                raise TypeError(
                    f"the blocks {self._tower.blocks!r} of {self._name!r} give a {type(self._captured).__name__}, not "
                    "hidden states: their output cannot be explained"
                )
            hidden.append(self._captured)
        return torch.cat(hidden)

    @property
    def needs_every_input(self) -> bool:
        """Whether blocks return tensors besides hidden states: a tail needs those of every input's head."""
        return any(isinstance(value, Tensor) for parts in self._beside.values() for value in chain(*parts))

    def tail(
        self, features: dict[str, Any], start: int | None = None, stop: int | None = None
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a part of the encoder as a function of states and of the number of the input that each belongs to.

        States may be lifted (:meth:`lift`).

        Args:
            start: the layer it begins at; that of the cut by default.
            stop: the layer it ends at; by default it goes on to the embedding.
        """
        start = self._layer if start is None else start
        advice = (
            "layer=-1 explains its last block's output, where the blocks do not run"
            if start < self._tower.layers
            else "It cannot be explained"
        )
        doing = f"it is differentiated from layer {start} on"
        # These belong to the inputs with these features, because their head ran last.
        beside = {number: _joined(parts) for number, parts in self._beside.items()}
        lift = self.lift(start)

        def run(x: Tensor, which: Tensor) -> Tensor:
            if lift is not None and x.shape[-1] == sum(lift.sizes):
                x, *outputs = lift.parts(x)
                self._given = x, dict(zip(self._linears[start], outputs, strict=True))
            self._injected, self._calls, self._window, self._captured = x, 0, (start, stop), None
            self._selected = {
                number: tuple(value[which] if batched else value for value, batched in entries)
                for number, entries in beside.items()
            }
            try:
                with self._plainly(), model_code(self._name, doing, advice):
                    out: Tensor = self._tree(self._cast(_select(features, which)), **self._options)[
                        "sentence_embedding"
                    ]
            except _Captured:
                assert self._captured is not None
                return self._captured
            finally:
                self._injected = self._given = None
            return out

        return run

    def _cast(self, features: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value.to(self.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for key, value in features.items()
        }

    def pass_bytes(self, rows: int) -> int:
        """Estimate the memory that one pass over one input takes at its peak."""
        wide, narrow = max(self._widths, default=4096), min(self._widths, default=1024)
        return self.dtype.itemsize * rows * (3 * wide + 6 * narrow + 4 * self._kept_heads * rows)


def is_plain_linear(module: nn.Module | None) -> bool:
    """Whether a module does nothing but multiply by a weight and add a bias."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks


class _Captured(Exception):  # noqa: N818 it is no error: it ends a pass that has done its work
    pass


def first_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a block's hidden states: its first argument, or the first of its keywords."""
    return args[0] if args else next(iter(kwargs.values()))


def _with_state(args: tuple[Any, ...], kwargs: dict[str, Any], state: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (state, *args[1:]), kwargs
    return args, kwargs | {next(iter(kwargs)): state}


def _joined(parts: list[tuple[Any, ...]]) -> list[tuple[Any, bool]]:
    """Join what a block returned in each piece of the head, and say whether it has an entry for each input."""
    joined = []
    for values in zip(*parts, strict=True):
        tensors = isinstance(values[0], Tensor) and values[0].ndim > 0
        each = tensors and (len(values[0]) > 1 or not all(torch.equal(value, values[0]) for value in values))
        joined.append((torch.cat(values) if each else values[0], each))
    return joined


def _select(features: dict[str, Any], which: Tensor) -> dict[str, Any]:
    return {key: value[which] if isinstance(value, Tensor) else value for key, value in features.items()}


class Tokenizers:
    """Private copies of a model's tokenizers.

    How a fast tokenizer pads and truncates is state that every call sets anew. If it were shared, a thread that runs
    the model's own ``encode`` could pad what is read here.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any, Any]] = {}  # an original, what identifies its content, its copy

    def copy(self, reader: Any) -> Any:
        """Copy a tokenizer, or a processor that has one; anything else is returned as it is."""
        inner = getattr(reader, "tokenizer", None)
        if hasattr(inner, "_tokenizer"):  # a processor of several modalities
            twin = _shallow(reader)
            twin.tokenizer = self.copy(inner)
            return twin
        if not hasattr(reader, "_tokenizer") or not hasattr(reader, "backend_tokenizer"):
            return reader
        twin = _shallow(reader)
        twin._tokenizer = self._backend(reader.backend_tokenizer)
        return twin

    def _backend(self, backend: Any) -> Any:
        known = self._copies.get(id(backend))
        content: Any
        try:
            parts = (backend.normalizer, backend.pre_tokenizer, backend.post_processor)
            content = (backend.get_vocab_size(), *map(repr, parts))
        except RuntimeError:  # another thread is setting its state at this moment: its content is what it was
            content = None if known is None else known[1]
        if known is None or known[1] != content:
            known = self._copies[id(backend)] = (backend, content, copy.deepcopy(backend))
        return known[2]


def _shallow(value: Any) -> Any:
    twin = object.__new__(type(value))
    twin.__dict__.update(value.__dict__)
    return twin


def has_own_forward(module: Any) -> bool:
    """Whether a module's ``forward`` was replaced by one that cannot be copied; accelerate's can be left out."""
    return "forward" in vars(module) and not ("_hf_hook" in vars(module) and "_old_forward" in vars(module))


def copy_tree(
    model: Any,
    weight: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    attention: str | None = None,
    tokenizers: Tokenizers | None = None,
) -> Any:
    """Copy a module tree, with its hooks and configurations.

    Args:
        weight: makes each weight of the copy from the original.
        attention: the copy's attention; None leaves it as it is.
        tokenizers: the copies of tokenizers that the copy uses; None lets it share the model's own.
    """
    modules: dict[int, Any] = {}
    configs: dict[int, Any] = {}
    weights: dict[int, Tensor] = {}

    def copy_weight(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        if id(tensor) not in weights:
            weights[id(tensor)] = weight(tensor)
        return weights[id(tensor)]

    def copy_config(value: Any) -> Any:
        if id(value) not in configs:
            configs[id(value)] = copy.deepcopy(value)
            configs[id(value)]._attn_implementation = attention
            # Grouped matrix products have no forward-mode derivative; a loop over the experts has.
            configs[id(value)]._experts_implementation = "eager"
            configs[id(value)].use_cache = False
        return configs[id(value)]

    def visit(module: Any) -> Any:
        if id(module) in modules:
            return modules[id(module)]
        if type(module).__name__ == "OptimizedModule":  # what torch.compile wraps around a module
            return visit(module._orig_mod)
        if has_own_forward(module):
            raise TypeError(
                f"a {type(module).__name__} of this model has a forward of its own (from accelerate, torch.compile or "
                "a patch), which cannot be copied with it; load the model without that"
            )
        twin = modules[id(module)] = module.__class__.__new__(module.__class__)
        for key, value in module.__dict__.items():
            if key in ("forward", "_hf_hook", "_old_forward"):
                continue  # accelerate moves inputs to where the weights are; here they are in one place
            if key == "_parameters" or key == "_buffers":
                value = {name: copy_weight(tensor) for name, tensor in value.items()}
            elif key == "_modules":
                value = {name: None if child is None else visit(child) for name, child in value.items()}
            elif attention is not None and hasattr(value, "_attn_implementation"):
                value = copy_config(value)
            elif tokenizers is not None and key in ("processor", "tokenizer"):
                value = tokenizers.copy(value)
            elif key == "_compiled_call_impl":
                value = None  # compiled code would run the model's own modules
            elif isinstance(value, dict):
                value = value.copy()  # hooks, among others
            twin.__dict__[key] = value
        return twin

    return visit(model)

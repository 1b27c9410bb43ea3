"""The secant of an encoder: a linear map L with L(x − r) = e(x) − e(r), from one pass at x and one at r.

Every operation of the encoder has a difference quotient of its own (``rules``): a linear map that takes the
difference of its arguments exactly to the difference of its results. L is their product. It needs no nodes and is exact
to rounding, with kinks (ReLU, max pooling) too, where quadrature converges slowly.

**A secant depends on how a function is written.** The paper's integral does not: two programs that compute the same
function have the same integrated Jacobian, while ``(a * b) * c`` and ``a * (b * c)`` already have different secants, as
have a norm that is a single operation and one whose factors are multiplied in another order. All of them sum to
e(x) − e(r); how they divide it between the tokens is a matter of definition.

The encoder is ordinary PyTorch code. It is run once at x, while every operation is watched, and repeated with the
values at r; what depends on the input is written to a tape, as a list of linear maps. Changes then run along the tape,
forward or backward, as many at once as there is room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from whymatch import progress
from whymatch.paths.derivatives import plain_pass
from whymatch.paths.jacobian import LOCK, Paths, Product
from whymatch.paths.rules import BLANK, NORMS, RULES, Linear, Norm, NoRule, Pair, Restraint, put, take

aten = torch.ops.aten

ADVICE = 'path="relay" and path="straight" need derivatives alone'

# Products of matrices, which do not accept two precisions.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "linear", "convolution")

# What a product of two tensors that both depend on the input is called among the operations: a gate, in most encoders.
GATE = "mul of two"

# Operations whose maps keep nothing of their constant arguments.
READS = ("add", "sub", "rsub", "cat", "stack", "copy", "index_put")


class NoSecantError(NotImplementedError):
    """An operation of the encoder has no exact difference quotient; the message names it."""


@dataclass(frozen=True)
class Step:
    """One operation's linear map on the tape."""

    result: int
    sources: tuple[int, ...]
    push: Callable[..., Tensor]
    pull: Callable[[Tensor], Sequence[Tensor]]


@dataclass
class Tape:
    """The linear maps of the operations between an input, which is number 0, and a result."""

    steps: list[Step] = field(default_factory=list)
    numbers: int = 1
    result: int = 0

    def add(self, linear: Linear) -> int:
        """Append a map, and return the number of its result."""
        sources = tuple(pair.number for pair in linear.sources)
        self.steps.append(Step(self.numbers, sources, linear.push, linear.pull))
        self.numbers += 1
        return self.numbers - 1

    def finish(self, result: int) -> None:
        """Drop the steps that the result does not depend on."""
        needed, steps = {result}, []
        for step in reversed(self.steps):
            if step.result in needed:
                needed.update(step.sources)
                steps.append(step)
        self.steps, self.result = steps[::-1], result

    def push(self, change: Tensor) -> Tensor:
        """Take changes of the input (count, *shape) to those of the result (count, *shape)."""
        uses = [0] * self.numbers
        for step in self.steps:
            for source in step.sources:
                uses[source] += 1
        changes = {0: change}
        with torch.no_grad():
            for step in self.steps:
                changes[step.result] = step.push(*(changes[source] for source in step.sources))
                for source in step.sources:
                    uses[source] -= 1
                    if not uses[source]:
                        changes.pop(source, None)
        return changes[self.result]

    def pull(self, cotangent: Tensor) -> Tensor:
        """Take cotangents of the result to those of the input: the transpose of :meth:`push`."""
        cotangents = {self.result: cotangent}
        with torch.no_grad():
            for step in reversed(self.steps):
                for source, part in zip(step.sources, step.pull(cotangents.pop(step.result)), strict=True):
                    known = cotangents.get(source)
                    cotangents[source] = part if known is None else known + part
        return cotangents[0]


@dataclass(frozen=True)
class _Value:
    """What is known of a tensor of the encoder beside its value at x."""

    r: Tensor
    number: int | None  # None: it is not the same at x and r, but has no change that is linear
    made_by: str = ""
    version: int = 0  # of its memory, if that was written to
    whole: _Value | None = None  # of what it is a view of, ...
    layout: tuple[Sequence[int], Sequence[int], int] = ((), (), 0)  # ... and that one's size, stride and offset


@dataclass
class _Memory:
    """Memory that was written to: tensors that share it are read from it again."""

    storage: torch.UntypedStorage  # held, so that its address is not used again
    x: Tensor  # flat, a view of it
    r: Tensor  # flat
    number: int | None  # None: it is the same at x and r
    version: int = 0


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation that a function runs at x, repeats it at r, and writes its linear map to a tape."""

    def __init__(self, x: Tensor, r: Tensor, norm: Norm) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape()
        self.operations: set[str] = set()
        self.error: NoSecantError | None = None
        self._norm = Restraint(len(x)) if norm == "both" else norm
        self._dtype = x.dtype
        self._values: Any = WeakTensorKeyDictionary()
        self._memories: dict[int, _Memory] = {}
        self._kept: list[tuple[Tensor, int, str]] = []
        self._values[x] = _Value(r, 0)

    def finish(self, result: Tensor) -> Pair | None:
        """Return the result at both points; None if it does not depend on the input."""
        for tensor, version, name in self._kept:
            if tensor._version != version:
                raise self._refuse(name, "a tensor that it reads is overwritten later")
        value = self._find(result)
        if value is None:
            return None
        pair = self._pair(result, value)
        self.tape.finish(pair.number)
        return pair

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and guarding against it costs as much as a small operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(self._find(tensor) is not None for tensor in _tensors(args, kwargs)):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._write(func, args, kwargs)
        return self._run(func, args, kwargs)

    def _refuse(self, name: str, reason: str = "") -> NoSecantError:
        because = f" where {reason}" if reason else ""
        self.error = NoSecantError(f"the operation {_full(name)} has no exact secant{because}; {ADVICE}")
        return self.error

    def _find(self, tensor: Tensor) -> _Value | None:
        """Return what is known of a tensor; None if it is the same at x and r."""
        value: _Value | None = self._values.get(tensor)
        if not self._memories:
            return value
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        if memory is None or (value is not None and value.version == memory.version):
            return value
        if memory.number is None:
            return None
        # Written to through another tensor: read it again.
        flat = Pair(memory.x, memory.r, memory.number)
        layout = _layout(tensor)
        r = memory.r.as_strided(*layout)
        value = _Value(r, self.tape.add(take(flat, _places(memory.r, layout))), "as_strided", memory.version)
        self._values[tensor] = value
        return value

    def _pair(self, tensor: Tensor, value: _Value) -> Pair:
        if value.number is None:
            raise self._refuse(value.made_by, "its result is another one for the input than for its reference")
        return Pair(tensor, value.r, value.number)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation at both points, and write its map to the tape."""
        name = func._schema.name.removeprefix("aten::")
        self.operations.add(name)
        if name == "_to_copy":
            kwargs = self._without_rounding(args[0], kwargs)
        elif name in PRODUCTS:
            args = self._promote(args)
        known = {id(tensor): self._find(tensor) for tensor in _tensors(args, kwargs)}
        if name == "mul" and sum(value is not None for value in known.values()) > 1:
            self.operations.add(GATE)

        def at_r(tensor: Tensor) -> Tensor:
            value = known[id(tensor)]
            return tensor if value is None else value.r

        out_x = func(*args, **kwargs)
        out_r = func(*_map(at_r, args), **{key: _map(at_r, value) for key, value in kwargs.items()})
        results, others = _listed(out_x), _listed(out_r)
        if name in BLANK:
            return out_x
        if not any(isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex()) for each in results):
            for each, other in zip(results, others, strict=True):
                self._note_discrete(name, each, other)
            return out_x

        def paired(tensor: Tensor) -> Any:
            value = known[id(tensor)]
            if name not in READS if value is None else "attention" in name:
                self._kept.append((tensor, tensor._version, name))
            return tensor if value is None else self._pair(tensor, value)

        if name not in RULES:
            raise self._refuse(name)
        options: dict[str, Any] = {"norm": self._norm} if name in NORMS else {}
        try:
            options |= {key: _map(paired, value) for key, value in kwargs.items()}
            maps = RULES[name]((out_x, out_r), *_map(paired, args), **options)
        except NoRule as error:
            raise self._refuse(name, str(error)) from None
        except TypeError as error:
            raise self._refuse(name, f"it is called as {func._schema}") from error
        source = self._values.get(args[0]) if func.is_view else None
        whole = None if source is None else source.whole or source
        layout = ((), (), 0) if source is None else source.layout if source.whole else _layout(args[0])
        version = 0 if source is None else source.version
        for each, other, linear in zip(results, others, _listed(maps), strict=True):
            if linear is not None:
                self._values[each] = _Value(other, self.tape.add(linear), name, version, whole, layout)
            elif isinstance(each, Tensor):
                self._note_discrete(name, each, other)
        return out_x

    def _note_discrete(self, name: str, x: Any, r: Any) -> None:
        """Take a result that has no linear change as a constant if it is the same at both points."""
        if isinstance(x, Tensor):
            if x.shape != r.shape or not torch.equal(x, r):
                self._values[x] = _Value(r, None, name)
        elif x != r:
            raise self._refuse(name, "its result is another one for the input than for its reference")

    def _without_rounding(self, tensor: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Skip a cast to a lower precision than the encoder's input has: rounding has no difference quotient."""
        dtype = kwargs.get("dtype")
        if dtype is not None and dtype.is_floating_point and dtype.itemsize < tensor.dtype.itemsize:
            return kwargs | {"dtype": tensor.dtype if self._dtype.itemsize >= tensor.dtype.itemsize else self._dtype}
        return kwargs

    def _promote(self, args: Any) -> Any:
        """Give all floating-point tensors the highest of their precisions: one may have been kept from a lower one."""
        dtypes = {arg.dtype for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()}
        if len(dtypes) <= 1:
            return args
        widest = max(dtypes, key=lambda dtype: dtype.itemsize)

        def promote(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() or tensor.dtype == widest:
                return tensor
            if self._find(tensor) is None:
                return tensor.to(widest)
            promoted: Tensor = self._run(aten._to_copy.default, (tensor,), {"dtype": widest})
            return promoted

        return _map(promote, args)

    def _write(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that writes to its first argument as one that does not, and note what it wrote."""
        name = func._schema.name.removeprefix("aten::")
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        plain = getattr(getattr(aten, name[:-1], None), func._overloadname, None) if name.endswith("_") else None
        if plain is None or written != ["self"]:
            raise self._refuse(name, "it writes to a tensor that it is given")
        target = args[0]
        storage = target.untyped_storage()
        before = self._find(target)
        memory = self._memories.get(storage._cdata) or self._memory(target, storage, before)
        if memory.number is None:
            memory.r = memory.x.clone()  # what does not depend on the input may have been written to unseen
        if name in ("zero_", "fill_") and not any(self._find(a) for a in args[1:] if isinstance(a, Tensor)):
            new, value = plain(*args, **kwargs), None
        else:
            new = self._run(plain, args, kwargs)
            value = self._find(new)
        r = new if value is None else value.r.to(target.dtype)
        number = None if value is None else value.number
        if value is not None and number is None:
            raise self._refuse(name, "its result is another one for the input than for its reference")
        if number is not None and new.dtype != target.dtype:
            raise self._refuse(name, f"it writes {new.dtype} to {target.dtype}")
        target.copy_(new)
        layout = _layout(target)
        if _covers(target, memory.x):
            memory.r = r.reshape(-1)
            memory.number = None
            if number is not None:
                memory.number = self.tape.add(RULES["view"]((memory.x, memory.r), Pair(new, r, number)))
        else:
            places = _places(memory.r, layout)
            known = memory.x if memory.number is None else Pair(memory.x, memory.r, memory.number)
            source = new if number is None else Pair(new, r, number)
            memory.r = memory.r.index_copy(0, places.reshape(-1), r.reshape(-1))
            if isinstance(known, Pair) or isinstance(source, Pair):
                memory.number = self.tape.add(put(known, source, places))
        memory.version += 1
        self._values.pop(target, None)
        if number is not None:
            self._values[target] = _Value(r, number, name, memory.version)
        return target

    def _memory(self, target: Tensor, storage: torch.UntypedStorage, value: _Value | None) -> _Memory:
        """Start tracking what is written to a tensor's memory."""
        flat = target.new_empty(0).set_(storage, 0, (storage.nbytes() // target.element_size(),), (1,))
        memory = _Memory(storage, flat, flat, None)
        if value is not None and not _covers(target, flat):
            base = value.whole or value
            layout = value.layout if value.whole else _layout(target)
            assert base.number is not None
            places = _places(flat, layout)
            memory.r = flat.index_copy(0, places.reshape(-1), base.r.reshape(-1))
            memory.number = self.tape.add(put(flat, Pair(base.r, base.r, base.number), places))
        self._memories[storage._cdata] = memory
        return memory


def _layout(tensor: Tensor) -> tuple[Sequence[int], Sequence[int], int]:
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())


def _places(flat: Tensor, layout: tuple[Sequence[int], Sequence[int], int]) -> Tensor:
    """Return the places in flat memory that a tensor of some layout has."""
    return torch.arange(len(flat), device=flat.device).as_strided(*layout)


def _covers(tensor: Tensor, flat: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.numel() == flat.numel()


def _full(name: str) -> str:
    """Name an operation in full, as PyTorch does; those of other libraries have theirs before the name."""
    return name.replace("::", ".") if "::" in name else f"aten.{name}"


def _listed(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Return the tensors among an operation's arguments, which may be in lists."""
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from (each for each in arg if isinstance(each, Tensor))


def _map(function: Callable[[Tensor], Any], args: Any) -> Any:
    """Replace tensors, also in lists."""
    if isinstance(args, Tensor):
        return function(args)
    return [_map(function, arg) for arg in args] if isinstance(args, (list, tuple)) else args


@dataclass(frozen=True)
class Recorded:
    """A function at two points, and the linear map between its differences there."""

    tape: Tape | None  # None: the function's value is the same at both
    x: Tensor  # (points, *values)
    r: Tensor
    operations: frozenset[str]  # the names of those that depend on the input

    def scaled(self, scale: Tensor, dimensions: int | None) -> Recorded:
        """Return the same for the first dimensions of each vector, times a number of its own."""
        factors, width = scale[:, None], self.x.shape[1]

        def push(change: Tensor) -> Tensor:
            return change[..., :dimensions] * factors

        def pull(cotangent: Tensor) -> tuple[Tensor]:
            return (torch.nn.functional.pad(cotangent * factors, (0, width - cotangent.shape[-1])),)

        tape = self.tape
        if tape is not None:
            last = Step(tape.numbers, (tape.result,), push, pull)
            tape = Tape([*tape.steps, last], tape.numbers + 1, tape.numbers)
        return replace(self, tape=tape, x=push(self.x), r=push(self.r))


def record(function: Callable[[Tensor], Tensor], x: Tensor, r: Tensor, norm: Norm = "both") -> Recorded:
    """Run a function at two points, and record its secant.

    Raises:
        NoSecantError: an operation has no exact difference quotient.
    """
    x, r = x.detach().clone(), r.detach().clone()
    recorder = _Recorder(x, r, norm)
    with LOCK, torch.no_grad(), plain_pass():
        try:
            with recorder:
                out = function(x)
        except Exception:
            if recorder.error is not None:
                # Whatever the function made of it on the way.
                raise recorder.error from None
            raise
        pair = recorder.finish(out)
    operations = frozenset(recorder.operations)
    return Recorded(None, out, out, operations) if pair is None else Recorded(recorder.tape, pair.x, pair.r, operations)


@dataclass(frozen=True)
class SecantMap:
    """The secant of an encoder between the ends of each path, as a :class:`whymatch.paths.jacobian.LinearMap`.

    It depends on how the encoder is written, unlike an integrated Jacobian; see :mod:`whymatch.paths.secant`.

    Attributes:
        paths: the paths, of which only the ends matter.
        change: what the embeddings are known to change by (inputs, dim), from which ``missing`` is measured. None: as
            they do in the pass that the secant is taken from.
        norm: how a norm's quotient is taken: along the "line" between both points, with factors at their "mean", as a
            mean of "both", or with the deviation at the "reference". All are exact; docs/method.md compares them.
        recorded: the secants of all paths together, if they have been recorded; see :meth:`record_together`.
    """

    paths: Paths
    change: Tensor | None = None
    norm: Norm = "both"
    recorded: Recorded | None = None

    def record_together(self) -> Recorded | None:
        """Record the secants of all paths together; None if there is no room for that.

        Raises:
            NoSecantError: an operation has no exact difference quotient.
        """
        every = torch.arange(len(self.paths), device=self.paths.start.device)
        return self._record(every) if len(every) <= self._together else None

    @property
    def _together(self) -> int:
        """How many secants may be recorded at once: a tape holds about what the activations of both points do."""
        return max(1, self.paths.room // (2 * self.paths.depth + 2))

    def _record(self, number: Tensor) -> Recorded:
        paths, r = self.paths, self.paths.start[number]
        return record(lambda x: paths.tail(x, number), r + paths.delta[number], r, self.norm)

    def push(self, groups: Tensor) -> Product:
        """Apply the map to x − r restricted to groups: (tangents, inputs) -> (inputs, tangents, embedding)."""
        count, values, changes = len(groups), [], []
        for number, recorded, size, share in self._pieces(count):
            parts = []
            for done, part in share(torch.split(groups[:, number], size)):
                progress.report(done)
                if recorded.tape is None:
                    parts.append(recorded.x.new_zeros(len(part), *recorded.x.shape))
                    continue
                parts.append(recorded.tape.push(self.paths.restrict(part, number)))
            values.append(torch.cat(parts).transpose(0, 1))  # (inputs, tangents, embedding)
            changes.append(recorded.x - recorded.r if self.change is None else self.change[number])
        pushed, change = torch.cat(values), torch.cat(changes)
        total = pushed.sum(1)
        return Product(
            values=pushed,
            sizes=[pushed.norm(dim=2)[None]],
            totals=[total.norm(dim=1)[None]],
            missing=[(total - change).norm(dim=1)],
        )

    def pull(self, cotangents: Tensor) -> Product:
        """Apply the transpose to cotangents: (inputs, cotangents, embedding) -> (inputs, cotangents, groups)."""
        paths, count, values, known = self.paths, cotangents.shape[1], [], []
        cells = paths.owner.flatten(1)
        place = torch.where(cells < 0, paths.groups, cells)  # a last, spare group takes the cells of no group
        for number, recorded, size, share in self._pieces(count):
            parts = []
            for done, part in share(torch.split(cotangents[number].transpose(0, 1), size)):
                progress.report(done)
                pulled = part.new_zeros(*part.shape[:2], paths.groups + 1)
                if recorded.tape is not None:
                    products = paths.sum_cells(recorded.tape.pull(part) * paths.delta[number])
                    pulled.scatter_add_(2, place[number].expand_as(products), products)
                parts.append(pulled[..., :-1])
            values.append(torch.cat(parts).transpose(0, 1))  # (inputs, cotangents, groups)
            change = recorded.x - recorded.r if self.change is None else self.change[number]
            known.append(torch.einsum("ick,ik->ic", cotangents[number], change))
        pulled = torch.cat(values)
        total = pulled.sum(2)
        return Product(
            values=pulled,
            sizes=[pulled.norm(dim=2)[None]],
            totals=[total[None]],
            missing=[total - torch.cat(known)],
            groups=pulled[None],
        )

    def _pieces(self, count: int) -> Iterator[tuple[Tensor, Recorded, int, Any]]:
        """Record the secants of as many inputs at once as there is room for, unless they have been recorded.

        Yields:
            The numbers of these inputs; what was recorded; how many tangents may run together; and a function that adds
            to each piece of them how much of the work is done before it.
        """
        paths = self.paths
        together = len(paths) if self.recorded is not None else self._together
        pieces = torch.split(torch.arange(len(paths), device=paths.start.device), together)
        for i, number in enumerate(pieces):
            recorded = self.recorded or self._record(number)
            size = max(1, min(count, (paths.room - 1) // len(number)))

            def share(parts: Sequence[Tensor], i: int = i) -> Iterator[tuple[float, Tensor]]:
                return (((i + j / len(parts)) / len(pieces), part) for j, part in enumerate(parts))

            yield number, recorded, size, share

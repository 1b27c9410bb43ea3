"""The method, from two texts to the sum of their score, in the order in which it happens.

1. **Read** each text as the model itself does: its tokens, and its embedding e(text), which everything is checked
   against.
2. **Reference**: the same template with every content token replaced, so that nothing is said.
3. **Cut** the encoder at a layer. x is what the text is there, r what the reference is, Δ = x − r, and e is the rest of
   the encoder, so that e(x) is the text's embedding and e(r) the reference's.
4. **Integrate** the Jacobian of e along the straight line from r to x. The result is a linear map L, and by the
   fundamental theorem of calculus L(Δ) = e(x) − e(r). Token by token, P[i] = L(Δ restricted to token i), so that

       Σᵢ P[i] = e(x) − e(r).

   With ``path="relay"`` L is a product of such integrals, one for each block, along the straight line between what
   text and reference are at that block. Each of them is exact for the block, and so is their product for all blocks.
   With ``path="secant"`` L is made of the exact difference quotients of the encoder's own operations.

5. **Fold** the reference's embedding back into the tokens in equal shares, Q[i] = P[i] + e(r) / tokens, so that
   Σᵢ Q[i] = e(x). The paper leaves this step out, and has reference terms beside its matrix instead. With
   ``special="base"`` tokens then hand a part of their shares of e(x) over to the template. **Correct**, where it is
   asked for, what words have by what the model makes of parts of the text (:mod:`whymatch.correction`); the sum stays.
6. **Combine** two texts: A = Q_a Q_bᵀ sums to e(a) · e(b), and divided by ‖e(a)‖ ‖e(b)‖ to their cosine. Of an encoder
   with a vector for each token, e has all of them, and those that met are multiplied.

P belongs to one text, however many pairs that text is in. The paper (Möller, Nikolaev and Padó, EMNLP 2023) forms L
itself, by one backward pass per dimension of the embedding, and from two of them a (tokens · dimensions)² matrix, whose
sums over dimensions are A.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch import progress
from whymatch.correction import directions, find_moves, with_corrections
from whymatch.encoders.cut import Cut
from whymatch.encoders.encoder import Encoder
from whymatch.paths.integrate import Integral, Integrated, to_numpy
from whymatch.paths.jacobian import LOCK, Nodes, Paths, Tail, cheapest_mode, passes_at_once, values
from whymatch.quadrature import Floats
from whymatch.reading.inputs import EncodeOptions, Input, Request, Source, TokenSource, batched, describe
from whymatch.reading.reference import Reference, reference_features, reference_states
from whymatch.reading.sides import TEMPLATE, Side
from whymatch.results.decomposition import Decomposition, Derived, Projection
from whymatch.results.explanation import Explanation
from whymatch.settings import MAXSIM, Settings, check_layer
from whymatch.words import quote

CHANGES = ("special", "base", "divisions")  # the settings of what is done with contributions once they are known
FEW = 16  # inputs at a time whose hidden states are kept from the model's own run


@dataclass(frozen=True)
class Method:
    """Steps 1 to 5, for one encoder, reference and layer.

    Attributes:
        layer: as the user gave it: one that counts from the end means another block in each of a model's towers.
    """

    encoder: Encoder
    reference: Reference
    layer: int
    settings: Settings

    # 1. Read.

    def read(self, requests: Sequence[Request]) -> list[TokenSource]:
        """Preprocess inputs as the model does, and let the model itself embed them."""
        sources: dict[int, TokenSource] = {}
        by_options: dict[EncodeOptions, list[int]] = {}
        for i, request in enumerate(requests):
            by_options.setdefault(request.options, []).append(i)
        for options, numbers in by_options.items():
            # A tokenizer's truncation is its own state: two threads that set it at once fail with "Already borrowed".
            with LOCK:
                inputs = self.encoder.read([requests[i].value for i in numbers], options)
                layer = self._layer_to_keep(inputs)
                embeddings, states = self.encoder.embed(inputs, layer)
            for n, (i, given) in enumerate(zip(numbers, inputs, strict=True)):
                source = describe(given, requests[i].groups, embeddings[n])
                state = None if layer is None or n not in states else (layer, states[n])
                source = replace(source, state=state, divided=requests[i].divided)
                sources[i] = self.encoder.complete(source)
        return [sources[i] for i in range(len(requests))]

    def _layer_to_keep(self, inputs: Sequence[Input]) -> int | None:
        """Return the layer whose states are worth keeping while inputs are embedded, so that they need not run again.

        They are kept for a few inputs only, each of them as large as a text's hidden states.
        """
        alike = len({given.route for given in inputs}) == 1 and self.encoder.dtype == self._dtype
        if len(inputs) > FEW or not alike or inputs[0].modality != "text":
            return None
        layers = self.encoder.tower(inputs[0]).layers
        layer = check_layer(self.layer, layers)
        return layer if 0 < layer < layers else None

    # 2. Reference, and 3. Cut.

    @property
    def _dtype(self) -> torch.dtype:
        """Single precision where its rounding is far below the tolerance, else double."""
        single = self.settings.tolerance >= 1e-4 and self.encoder.dtype != torch.float64
        single = single or self.encoder.device.type == "mps"  # which has no double precision
        return torch.float32 if single else torch.float64

    def cut(self, given: Input) -> Cut:
        """Cut the encoder for an input: the part up to the layer, and the part from there on."""
        return self.encoder.cut(given, check_layer(self.layer, self.encoder.tower(given).layers), self._dtype)

    def starts(self, cut: Cut) -> list[int]:
        """Return the layers at which the segments of a path begin; a straight path has a single one."""
        if self.settings.segment is None or cut.layer >= cut.layers:
            return [cut.layer]
        # A shorter segment, where the blocks do not divide evenly, comes first, so that the last ones are alike at
        # every layer.
        return [cut.layer, *reversed(range(cut.layers - self.settings.segment, cut.layer, -self.settings.segment))]

    @torch.inference_mode(False)  # which the caller may be in, and in which PyTorch 2.6 does not differentiate
    def follow(self, sources: Sequence[TokenSource], cut: Cut) -> Integral:
        """Run inputs of one shape and route up to the cut, and draw the lines from their references to them."""
        shifted_by, starts = self.encoder.shifted_by, self.starts(cut)
        features, x, states = self._run_head(sources, cut, upto=starts[-1])
        r = states[self.reference] if isinstance(self.reference, str) else reference_states(self.reference, x)
        if x.shape[1] != len(sources[0].input):
            raise TypeError(
                f"the encoder has {x.shape[1]} hidden states at layer {self.settings.layer} for the "
                f"{len(sources[0].input)} tokens of {quote(sources[0].input.text)}: they do not belong to its tokens, "
                "and cannot be explained"
            )
        tails = [cut.tail(features, start, stop) for start, stop in zip(starts, [*starts[1:], None], strict=True)]
        paths = _lines(sources, cut, x, r, cut.tail(features), self.settings.segment or cut.depth)
        if shifted_by is not None:
            tails[-1] = _shift(tails[-1], paths, states[shifted_by])
        texts = [source.input.text for source in sources]
        lifts = [cut.lift(start) for start in starts]
        integral = Integral(paths, tails, self.settings, texts, cut.normalizes, cut.truncate_dim, lifts)
        if shifted_by is not None:
            # An empty text is its own reference, whose embedding is zero: what is left of it is rounding.
            still = [len(own) == 0 for own in integral.paths.moving]
            integral.start[still] = integral.end[still] = 0
        self._check_end(integral, sources)
        return integral

    def _run_head(
        self, sources: Sequence[TokenSource], cut: Cut, upto: int
    ) -> tuple[dict[str, Any], Tensor, dict[str, Tensor]]:
        """Run inputs and their references up to the cut, and on to the layer ``upto``.

        Returns:
            The features of all, and the representations at the cut: of the inputs, and of each kind of reference.
        """
        inputs = [source.input for source in sources]
        # The references: the one that is asked for and, for an adjusted model, the one whose embedding it subtracts.
        replaced = {
            name: [reference_features(self.encoder.content(name, inputs[0]), given) for given in inputs]
            for name in (self.reference, self.encoder.shifted_by)
            if isinstance(name, str)
        }
        features = batched([*(i.features for i in inputs), *chain.from_iterable(replaced.values())], cut.device)
        known = [source.state[1] for source in sources if source.state is not None and source.state[0] == cut.layer]
        if (
            replaced
            and len(known) == len(sources)
            and self._cut_gives(torch.stack(known), cut, features, inputs[0].route)
        ):
            # The model has run the inputs already: only their references are left to run.
            others = list(cut.head(features, upto=upto, skip=len(inputs)).chunk(len(replaced)))
            if not cut.needs_every_input:
                references = dict(zip(replaced, others, strict=True))
                return features, _snap(torch.stack(known), list(references.values())), references
        x, *others = cut.head(features, upto=upto).chunk(1 + len(replaced))
        return features, x, dict(zip(replaced, others, strict=True))

    def _cut_gives(self, known: Tensor, cut: Cut, features: dict[str, Any], route: Hashable) -> bool:
        """Whether the cut gives the states that the model gave; asked the first time only."""
        checked, head = self.encoder.checked_heads, (route, cut.layer, cut.dtype)
        if head not in checked:
            x = cut.head(features)[: len(known)]
            checked[head] = bool((x - known).abs().max() <= 1e-3 * x.abs().max())
        return checked[head]

    @torch.inference_mode(False)
    def hand_on(self, sources: Sequence[TokenSource], cut: Cut) -> list[TokenSource]:
        """Find where what the template's tokens hold at the cut came from, so that it can be handed on to there.

        A special token's state at a layer is its reference's and what the content has since added to it. The same kind
        of map, from the input up to the layer, tells how much of that each part has added: these are the shares in
        which the parts receive what the special token contributes. So for a prompt's tokens.
        """
        rows = sorted({i for source in sources for i, kind in enumerate(source.input.kinds) if kind in TEMPLATE})
        if self.settings.special != "share" or cut.layer == 0 or not rows:
            return list(sources)
        if not isinstance(self.reference, str):
            raise ValueError(
                "special='share' needs a reference that is a token or a text, not the function "
                f"{self.settings.reference}: what special tokens hold is traced back to the input, where a function's "
                "reference is not known"
            )
        below = self.encoder.cut(sources[0].input, 0, cut.dtype)
        step = self.settings.segment or cut.layer
        starts = list(range(0, cut.layer, step))
        features, x, states = self._run_head(sources, below, upto=starts[-1])
        tails = [
            below.tail(features, start, stop) for start, stop in zip(starts, [*starts[1:], cut.layer], strict=True)
        ]
        tails[-1] = partial(_states_of, tails[-1], rows)
        paths = _lines(sources, below, x, states[self.reference], tails[0], step)
        if not any(map(len, paths.moving)):
            return list(sources)  # they are their own references
        texts = [source.input.text for source in sources]
        integral = Integral(paths, tails, self.settings, texts)
        with progress.stage(0, 0.5, "tracing special tokens"):
            pushed = integral.push()
        change = integral.end - integral.start  # (inputs, rows · dim)
        handed_on = []
        for i, source in enumerate(sources):
            added = pushed.values[i].view(paths.groups, len(rows), -1)[: len(source.side)]
            whole = change[i].view(len(rows), -1)
            shares = to_numpy(torch.einsum("prd,rd->pr", added, whole) / whole.square().sum(1).clamp_min(1e-30))
            parts = np.eye(len(source.side))
            for column, row in enumerate(rows):
                part = int(source.owner[row])
                if source.side.kinds[part] in TEMPLATE:
                    received = np.where([kind in TEMPLATE for kind in source.side.kinds], 0, shares[:, column])
                    parts[:, part] = received
                    parts[part, part] = 1 - received.sum()  # what did not come from content stays
            handed_on.append(replace(source, handed=parts))
        return handed_on

    def ask(self, sources: Sequence[TokenSource]) -> list[TokenSource]:
        """Ask the model about parts of the texts, where contributions are to be corrected by that."""
        if not self.settings.divisions:
            return list(sources)
        return with_corrections(self.encoder, list(sources), self.settings.divisions)

    def _check_end(self, integral: Integral, sources: Sequence[TokenSource]) -> None:
        """Raise an error unless every path ends at the embedding that the model itself gives."""
        embeddings = np.stack([source.embedding for source in sources])
        lengths = np.maximum(np.linalg.norm(embeddings, axis=1), 1e-30)
        missed = np.linalg.norm(to_numpy(integral.end) - embeddings, axis=1) / lengths
        if missed.max() <= max(1e-2, 16 * torch.finfo(self.encoder.dtype).eps):
            return
        worst = quote(sources[int(missed.argmax())].side.text)
        if self.encoder.shifted_by is not None:
            raise TypeError(
                f"this adjusted model reads its reference at another place than the text, as it does where "
                f"{self.encoder.shifted_by!r} tokens also end a text; adjust it with another reference: {worst}"
            )
        raise TypeError(
            f"the encoder from layer {self.settings.layer} on, given its own hidden states, misses its own "
            f"embedding by {missed.max():.0%}: it uses more than the hidden states there (all layers' outputs, "
            f"or the tokens themselves), and cannot be cut at that layer: {worst}"
        )


def _snap(x: Tensor, references: Sequence[Tensor]) -> Tensor:
    """Make rows that differ from a reference's by rounding equal to it: the model's own run and a cut's differ so."""
    for r in references:
        rounding = 64 * torch.finfo(x.dtype).eps * r.abs().amax(-1, keepdim=True)
        x = torch.where((x - r).abs().amax(-1, keepdim=True) <= rounding, r, x)
    return x


def _lines(sources: Sequence[TokenSource], cut: Cut, x: Tensor, r: Tensor, tail: Tail, depth: int) -> Paths:
    """Return the straight lines from references to inputs (inputs, rows, dim), through ``depth`` blocks each."""
    return Paths(
        tail=tail,
        start=r,
        delta=x - r,
        owner=torch.as_tensor(np.stack([source.owner for source in sources]), device=x.device),
        groups=max(len(source.side) for source in sources),
        room=passes_at_once(cut.pass_bytes(x.shape[1]), x.device),
        depth=depth,
    )


def _states_of(tail: Tail, rows: Sequence[int], x: Tensor, number: Tensor) -> Tensor:
    """Return some rows of what a tail gives, as one vector for each point."""
    return tail(x, number)[:, list(rows)].flatten(1)


# 4. Integrate.


@torch.inference_mode(False)
def decompose(
    integral: Integral,
    sources: Sequence[Source],
    settings: Settings,
    mode: str | None = None,
) -> list[Decomposition]:
    """Write the embeddings of a batch as sums over their inputs' parts.

    Args:
        mode: "forward" or "reverse"; None chooses the cheaper.
    """
    tangents = max(map(len, integral.paths.moving))
    mode = "none" if tangents == 0 else mode or cheapest_mode(tangents, integral.end.shape[1])
    integrated = None if mode == "none" else integral.push() if mode == "forward" else integral.pull()
    decompositions = []
    for i, source in enumerate(sources):
        parts = len(source.side)
        contributions = np.zeros((parts, integral.end.shape[1]), to_numpy(integral.end[:0]).dtype)
        errors, nodes = np.zeros(parts), 0
        moved = 0.0
        if integrated is not None:
            contributions = to_numpy(integrated.values[i][:parts])
            errors, nodes = integrated.errors[i][:parts], integrated.nodes[i]
        if source.handed is not None:
            given = contributions * (1 - np.diag(source.handed))[:, None].astype(contributions.dtype)
            moved = float(np.linalg.norm(given.sum(0)) / max(float(np.linalg.norm(source.embedding)), 1e-30))
            contributions = (source.handed @ contributions).astype(contributions.dtype)
            errors = np.abs(source.handed) @ errors
        decomposition = Decomposition(
            side=replace(source.side, nodes=nodes, mode=mode, errors=errors, moved=moved),
            embedding=source.embedding,
            reference=to_numpy(integral.start[i]),
            settings=settings,
            contributions=contributions,
            shares=source.shares,
            vectors=source.vectors,
        )
        if settings.fold_reference:  # 5. Fold.
            decomposition = decomposition.folded()
            if (base := base_of(source.side, source.shares, settings)) is not None:
                given = (base[:, None] * source.embedding).astype(contributions.dtype)
                decomposition = replace(decomposition, contributions=decomposition.contributions + given)
        decompositions.append(correct(decomposition, source))
    return decompositions


def correct(decomposition: Decomposition, source: Source) -> Decomposition:
    """Correct contributions by what the model makes of parts of the text, where it was asked."""
    if source.correction is None:
        return decomposition
    rows = decomposition.contributions
    keep, add = find_moves(source.correction, rows @ directions(rows.shape[1]).T)
    return replace(
        decomposition,
        side=replace(decomposition.side, errors=np.abs(keep) @ decomposition.side.errors),
        contributions=(keep @ rows + add).astype(rows.dtype),
    )


def base_of(side: Side, shares: NDArray[np.floating], settings: Settings) -> NDArray[np.floating] | None:
    """Return the fraction of the embedding that each part receives, or hands over: they sum to 0.

    An embedding hardly becomes shorter when words are left out, and much of its direction stays. What stays is not the
    words': each of them hands a part of its share over to the template, which is there whatever the words are.

    Returns:
        None where nothing is handed over.
    """
    if settings.base == 0 or shares.ndim > 1 or side.image is not None:
        return None
    template = np.array([kind in TEMPLATE for kind in side.kinds], bool)
    # A prompt that the pooling leaves out has no share of the embedding, and receives nothing.
    receives, others = np.where(template, shares, 0.0), np.where(template, 0.0, shares)
    if not (receives.any() and others.any()):
        return None
    return np.asarray(settings.base * (others.sum() * receives / receives.sum() - others), np.float64)


@torch.inference_mode(False)
def project(integral: Integral, sources: Sequence[Source], other: Decomposition) -> list[Projection]:
    """Find the products of the contributions of each input of a batch with another input's, without decomposing them.

    Lᵀ of the other's rows, times Δ, needs one reverse pass for each of those rows: a long text that meets a short one
    costs like the short one. Where contributions are corrected, a few more tell their lengths.
    """
    has_reference = bool(np.any(other.reference != 0))
    rows = np.vstack([other.contributions, other.reference[None]]) if has_reference else other.contributions
    cotangents, beside = torch.as_tensor(rows).to(integral.end), None  # (cotangents, dim)
    if any(source.correction is not None for source in sources):
        beside = torch.tensor(directions(rows.shape[1])).to(integral.end)
    moves = [len(own) > 0 for own in integral.paths.moving]
    pulled = integral.pull_along(cotangents, beside) if any(moves) else None
    return [
        _project(integral, pulled if moves[i] else None, i, source, cotangents, beside, other)
        for i, source in enumerate(sources)
    ]


def _project(
    integral: Integral,
    integrated: Integrated | None,
    i: int,
    source: Source,
    cotangents: Tensor,
    beside: Tensor | None,
    other: Decomposition,
) -> Projection:
    """Make a projection of the products with the other's rows, and with the directions ``beside`` them, if any."""
    settings, parts, count = other.settings, len(source.side), len(cotangents)
    every = cotangents if beside is None else torch.cat([cotangents, beside])
    products, errors, nodes = every.new_zeros(len(every), parts), np.zeros(parts), 0
    if integrated is not None:
        products, errors = integrated.values[i][:, :parts], integrated.errors[i][:parts]
        nodes = integrated.nodes[i]
    moved = 0.0
    if source.handed is not None:
        handed = torch.as_tensor(source.handed).to(products)
        given = (products[:count] * (1 - handed.diagonal())).sum()
        moved = float(given.abs() / (cotangents.sum(0).norm() * integral.end[i].norm()).clamp_min(1e-30))
        products, errors = products @ handed.T, np.abs(source.handed) @ errors
    reference = integral.start[i]
    if settings.fold_reference:  # 5. Fold.
        shares = torch.as_tensor(source.shares).to(products)
        products, reference = products + (every @ reference)[:, None] * shares, torch.zeros_like(reference)
        if (base := base_of(source.side, source.shares, settings)) is not None:
            embedding = torch.as_tensor(source.embedding).to(products)
            products = products + (every @ embedding)[:, None] * torch.as_tensor(base).to(products)
    along, products = products[count:], products[:count]
    if source.correction is not None:
        keep, add = find_moves(source.correction, np.asarray(to_numpy(along.T), np.float64))
        products = products @ torch.as_tensor(keep).to(products).T + cotangents @ torch.as_tensor(add).to(products).T
        errors = np.abs(keep) @ errors
    unit = cotangents.norm(dim=1).clamp_min(torch.finfo(cotangents.dtype).tiny) * integral.end[i].norm()
    sizes = (products / unit[:, None]).abs().amax(0)  # as far as the other input can tell
    has_reference = count > len(other.contributions)
    matrix, effects = (products[:-1], products[-1]) if has_reference else (products, torch.zeros_like(products[0]))
    return Projection(
        side=replace(
            source.side,
            nodes=nodes,
            mode="pairwise",
            errors=errors,
            sizes=np.asarray(to_numpy(sizes), np.float64),
            moved=moved,
        ),
        embedding=source.embedding,
        reference=to_numpy(reference),
        settings=settings,
        matrix=to_numpy(matrix),
        effects=to_numpy(effects),
    )


@torch.inference_mode(False)
def split_features(integral: Integral, row: int, decomposition: Decomposition) -> NDArray[np.floating]:
    """Split one row of a single input's decomposition over the features of its representation: (features, dim)."""
    paths, settings = integral.paths, decomposition.settings
    rows, width = paths.start.shape[1:]
    owner = paths.owner.new_full((1, rows, width), -1)
    owner[0, row] = torch.arange(width, device=owner.device)
    dim = len(decomposition.embedding)
    parts = integral.end.new_zeros(width, dim)
    if decomposition.nodes:
        jacobian = integral.last_map(owner)
        if cheapest_mode(width, dim) == "forward":
            parts = jacobian.push(torch.arange(width, device=owner.device)[:, None]).values[0]
        else:
            parts = jacobian.pull(torch.eye(dim).to(parts)[None]).values[0].T
    features = to_numpy(parts)
    if settings.fold_reference:
        features += to_numpy(integral.start[0]) * decomposition.shares[row] / width
        if (base := base_of(decomposition.side, decomposition.shares, settings)) is not None:
            features += (decomposition.embedding * base[row] / width).astype(features.dtype)
    return features


# 6. Combine.


def combine(a: Derived, b: Derived) -> Explanation:
    """Combine two inputs, at least one of them decomposed, to the explanation of their score."""
    check_alike(a.settings, b.settings)
    if a.settings.similarity in MAXSIM:
        a, b = _matched(a, b)
    if a.embedding.shape != b.embedding.shape:
        sizes = f"{a.embedding.shape[0]} and {b.embedding.shape[0]}"
        raise ValueError(f"these decompositions do not belong together: their embeddings have {sizes} dimensions")
    ref_a, ref_b = np.asarray(a.reference, np.float64), np.asarray(b.reference, np.float64)
    if isinstance(b, Projection):
        matrix, effects_b = np.asarray(b.matrix, np.float64), np.asarray(b.effects, np.float64)
        effects_a = _rows(a) @ ref_b
    elif isinstance(a, Projection):
        matrix, effects_a = np.asarray(a.matrix, np.float64).T, np.asarray(a.effects, np.float64)
        effects_b = _rows(b) @ ref_a
    else:
        matrix, effects_a, effects_b = _rows(a) @ _rows(b).T, _rows(a) @ ref_b, _rows(b) @ ref_a
    left, right = np.asarray(a.embedding, np.float64), np.asarray(b.embedding, np.float64)
    norms = max(float(np.linalg.norm(left) * np.linalg.norm(right)), float(np.finfo(np.float64).tiny))
    scale = 1 / norms if a.settings.similarity == "cosine" else 1.0
    if a.settings.similarity == "meanmaxsim" and isinstance(a, Decomposition) and a.vectors is not None:
        scale = 1 / len(a.vectors)
    return Explanation(
        score=float(left @ right) * scale,
        matrix=matrix * scale,
        constant=float(ref_a @ ref_b) * scale,
        norms=norms * scale,
        a=_side(a, effects_a * scale),
        b=_side(b, effects_b * scale),
        settings=a.settings,
        deviations=_deviations(a, b, scale),
    )


def _matched(a: Derived, b: Derived) -> tuple[Decomposition, Decomposition]:
    """Keep the vectors of a query that take part, and beside each of them the document's that is most similar to it.

    Their product is the MaxSim score, and a sum of products of contributions like any other.
    """
    if not (isinstance(a, Decomposition) and isinstance(b, Decomposition)) or a.vectors is None or b.vectors is None:
        raise TypeError("MaxSim compares two decompositions of an encoder with several vectors for each text")
    query, document = a.embedding.reshape(len(a.vectors), -1), b.embedding.reshape(len(b.vectors), -1)
    if query.shape[1] != document.shape[1]:
        sizes = f"{query.shape[1]} and {document.shape[1]}"
        raise ValueError(f"these decompositions do not belong together: their vectors have {sizes} dimensions")
    chosen, candidates = np.flatnonzero(a.vectors), np.flatnonzero(b.vectors)
    if not len(chosen) or not len(candidates):
        raise ValueError(f"no token of {quote((b if len(chosen) else a).text)} takes part in the score")
    products = np.asarray(query[chosen], np.float64) @ np.asarray(document[candidates], np.float64).T
    partners = candidates[products.argmax(1)]
    return _with_vectors(a, chosen), _with_vectors(b, partners)


def _with_vectors(decomposition: Decomposition, numbers: NDArray[np.integer]) -> Decomposition:
    """Return a decomposition of some of the vectors, in this order; one may be there more than once."""
    assert decomposition.vectors is not None
    count = len(decomposition.vectors)

    def take(array: NDArray[np.floating]) -> NDArray[np.floating]:
        vectors = array.reshape(*array.shape[:-1], count, -1)[..., numbers, :]
        return vectors.reshape(*array.shape[:-1], -1)

    return replace(
        decomposition,
        embedding=take(decomposition.embedding),
        reference=take(decomposition.reference),
        contributions=take(decomposition.contributions),
        vectors=np.ones(len(numbers), np.bool_),
    )


def _deviations(a: Derived, b: Derived, scale: float) -> Floats | None:
    """The standard error of each entry, if any contribution was sampled."""
    if not (isinstance(a, Decomposition) and isinstance(b, Decomposition)) or a.sampling is b.sampling is None:
        return None
    left, right = _sampling_errors(a, b), _sampling_errors(b, a).T
    # The errors of two texts are independent, those of a text with itself are the same.
    return np.asarray((left + right if a is b else np.hypot(left, right)) * scale)


def _sampling_errors(sampled: Decomposition, other: Decomposition) -> Floats:
    """The standard error of each entry that comes from one side's contributions: (its parts, the other's parts)."""
    if sampled.sampling is not None:
        return np.asarray(sampled.sampling.deviations(_rows(other)), np.float64)
    # What was stored and read again knows the lengths of its errors alone: at most this much, in any direction.
    length = float(np.linalg.norm(np.asarray(sampled.embedding, np.float64)))
    return np.outer(sampled.side.errors * length, np.linalg.norm(_rows(other), axis=1)).astype(np.float64)


def _side(derived: Derived, effects: Floats) -> Side:
    if isinstance(derived, Projection):
        return replace(derived.side, effects=effects)
    rows, embedding = _rows(derived), np.asarray(derived.embedding, np.float64)
    length = max(float(np.linalg.norm(embedding)), float(np.finfo(np.float64).tiny))
    # The square of the least length is zero, and a text of nothing has no similarity with itself.
    unit = max(length**2, float(np.finfo(np.float64).tiny)) if derived.settings.similarity == "cosine" else 1.0
    sizes = np.linalg.norm(rows, axis=1) / length
    if derived.settings.similarity in MAXSIM:  # only the vectors that met are here
        return replace(derived.side, effects=effects, sizes=sizes)
    return replace(derived.side, effects=effects, sizes=sizes, own=rows @ embedding / unit)


def _rows(derived: Derived) -> Floats:
    if not isinstance(derived, Decomposition):
        raise TypeError(f"a pair needs two decompositions, not a {type(derived).__name__}")
    return np.asarray(derived.contributions, np.float64)


def check_alike(a: Settings, b: Settings) -> None:
    """Raise an error unless results with these settings can be combined."""
    for name in ("model", "layer", "path", "reference", "fold_reference", "similarity", "blocks", *CHANGES):
        first, second = getattr(a, name), getattr(b, name)
        if first != second:
            raise ValueError(
                f"these decompositions do not belong together: {name} is {first!r} for the first and {second!r} for "
                "the second; decompose both with one explainer"
            )


def _shift(tail: Tail, paths: Paths, zero: Tensor) -> Tail:
    """Return the end of the encoder that is zero at these references."""
    ends = Nodes.of([(np.zeros(1), np.zeros(1))] * len(zero), zero)
    there = values(replace(paths, start=zero), ends)
    return lambda x, number: tail(x, number) - there[number]

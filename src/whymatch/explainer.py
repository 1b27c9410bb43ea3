"""The one verb: explain."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from whymatch import method, policy
from whymatch.encoders import kinds
from whymatch.encoders.blackbox import NOTHING, Usage
from whymatch.encoders.encoder import Encoder
from whymatch.encoders.kinds import Direct
from whymatch.encoders.multivector import MultiVectorEncoder
from whymatch.method import Method
from whymatch.paths.integrate import Integral
from whymatch.paths.jacobian import LOCK
from whymatch.progress import track
from whymatch.quadrature import Floats, RuleName, get_rule
from whymatch.reading.inputs import EncodeOptions, Request, TokenSource, Value
from whymatch.reading.readings import Both, Readings, both_groups, both_options
from whymatch.reading.reference import Reference, check_reference, name_of
from whymatch.results.decomposition import Decomposition
from whymatch.results.explanation import Explanation
from whymatch.runner import Runner
from whymatch.search import SearchMixin
from whymatch.settings import MAXSIM, PATHLESS, SIMILARITIES, Settings, check_layer, check_settings, is_int
from whymatch.words import Groups, check_groups, quote

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Explainer(SearchMixin):
    """Explains why an encoder gives two texts the score that it gives.

    Args:
        model: a hub id, a folder or a SentenceTransformer; None is the default model. Or a function from a list of
            texts to an array (texts, dimensions), such as :func:`whymatch.endpoint` makes: any black box.
        layer: where the encoder is cut: 0 explains the input embeddings, ``num_layers`` the last block's output;
            negative numbers count from there. None is the layer that suits the model and ``detail``, found by plain
            passes (:mod:`whymatch.policy`).
        reference: what stands for no content: ``"pad"``, ``"unk"`` or ``"mask"`` tokens; another text, whose tokens are
            repeated as often as needed; or a function that takes an input's representation at the layer (rows,
            dimensions) and returns one of that shape. None is the reference of an adjusted model, else ``"pad"``. A
            picture's reference is blank unless a function gives it.
        fold_reference: give the reference's embedding back to the tokens, so that the matrix alone sums to the
            score. False is the paper's form, with its reference terms.
        similarity: ``"cosine"`` or ``"dot"``; None is the model's own.
        path: how the difference between a text and its reference is divided among the tokens, always exactly.
            ``"straight"`` integrates along one line at the layer, as in the paper. ``"relay"`` integrates block by
            block, each along its own line: it needs fewer nodes, and converges where a single line does not;
            ``"relay-2"`` and ``"relay-3"`` take two or three blocks at a time. ``"secant"`` takes the difference
            quotient of each operation: one pass, no nodes, exact with ReLU and max pooling too, but it depends on how
            the model is written. None is ``"secant"`` for models with LayerNorms and without gates and ``"relay"`` for
            others, or ``"straight"`` where the paper's own sum is asked for, by ``steps``, ``rule`` or
            ``fold_reference=False``.
        special: ``"keep"`` leaves what special and prompt tokens contribute with them. ``"share"`` moves it to the
            tokens from which they gathered it up to the layer: the sum stays the same, and ``Side.moved`` says how much
            was moved. At the input they have gathered nothing from the text, so there is nothing to share. ``"base"``
            gives special tokens what does not go when words do: other tokens hand over a part of their shares of the
            embedding, ``settings.base``, which is measured for the model. What a word is worth is then nearer to what
            the model loses without it. None is ``"base"`` for models of which more than half stays, except along the
            paper's straight path, and else ``"keep"``.
        divisions: how many times the words of a text are divided at random into four parts, which the model embeds.
            Contributions are then moved, as little as possible and with their sum fixed, towards what it makes of the
            parts: what a word is worth is nearer to what the model does with and without it. Each division costs about
            one run of the model. None is 4 for secants and 8 for relays where ``detail`` is fine, and 0 where it is
            fast, along the paper's straight path, and for pictures, several vectors and adjusted models.
        detail: which layer, and how many divisions, None stands for: ``"fine"`` for a pair that is looked at closely,
            ``"fast"`` for passages and for many texts.
        rule: ``"gauss"``, ``"midpoint"`` or ``"right"``, the paper's. ``"pieces"`` divides a path that is too steep for
            the others into pieces, each with Gauss nodes of its own, found by some hundred plain passes.
        steps: nodes per text; None uses as many as the tolerance requires.
        tolerance: the bound on the numerical error of the score and of each entry, ÷ (‖e(a)‖ ‖e(b)‖).
        device: where a model given by name is loaded.
        blocks: the name of the model's list of blocks (two names, for a model with two towers), if it is not found
            automatically.
        groups: what is explained: tokens (None), ``"words"`` or ``"sentences"``. A group costs what a token costs.
        trust_remote_code: whether a model given by name may run code of its own.
        method: ``"shapley"`` treats a model as a black box, as functions are: the contributions of words are Shapley
            values of the embedding, for which the model embeds parts of the text. None differentiates what can be
            differentiated.
        mask: for Shapley values: what replaces a word that is left out; None deletes it.
        samples: how many parts of a text are embedded for its Shapley values; None is as many as the tolerance needs.
            For a short text, all subsets of its words are embedded, and its values are exact.
        budget: how many parts of a text may be embedded; None is 1,024, or more for texts of more than 250 words.
        name: what results call the model; None is its own name.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | SentenceTransformer | Callable[[list[str]], Any] | None = None,
        *,
        layer: int | None = None,
        reference: Reference | None = None,
        fold_reference: bool = True,
        similarity: Literal["cosine", "dot"] | None = None,
        path: Literal["straight", "relay", "relay-2", "relay-3", "secant"] | None = None,
        detail: Literal["fine", "fast"] = "fine",
        special: Literal["keep", "share", "base"] | None = None,
        divisions: int | None = None,
        rule: RuleName = "gauss",
        steps: int | None = None,
        tolerance: float = 1e-3,
        device: str | torch.device | None = None,
        blocks: str | Sequence[str] | None = None,
        groups: Literal["words", "sentences"] | None = None,
        trust_remote_code: bool = False,
        method: Literal["shapley"] | None = None,
        mask: str | None = None,
        samples: int | None = None,
        budget: int | None = None,
        name: str | None = None,
    ) -> None:
        get_rule(rule)
        policy.check_detail(detail)
        if reference is not None:
            check_reference(reference)
        self._groups = check_groups(groups)
        names = None if blocks is None else (blocks,) if isinstance(blocks, str) else tuple(blocks)
        encoder = kinds.wrap(
            model, method=method, device=device, blocks=names, trust_remote_code=trust_remote_code, name=name
        )
        own = encoder.similarity
        allowed = MAXSIM if isinstance(encoder, MultiVectorEncoder) else SIMILARITIES
        if similarity is not None and similarity not in allowed:
            choices = ", ".join(map(repr, allowed))
            raise ValueError(f"similarity={similarity!r} is not known; choose {choices} or None, the model's own")
        if similarity is None and own not in allowed:
            raise ValueError(
                f"the similarity of {encoder.name!r} is {own!r}, which is not a product of embeddings; "
                "give similarity='cosine' or 'dot'"
            )
        sampling = {"mask": mask, "samples": samples, "budget": budget}
        if not isinstance(encoder, Encoder):
            # Counted from its output, every layer of an encoder without blocks is its input.
            given = {
                "layer": None if layer is None or layer <= 0 else layer,
                "reference": reference,
                "path": path,
                "steps": steps,
                "blocks": blocks,
                "special": None if special in (None, "keep") else special,
                "divisions": divisions or None,
            }
            if encoder.path != "shapley":
                given |= sampling
            _refuse(given, f"{encoder.name!r} is not differentiated, but explained by {PATHLESS[encoder.path]}")
            self._num_layers, self._layer_given, self._corrects = 0, True, False
            settings = check_settings(
                model=encoder.name,
                reference=NOTHING,
                fold_reference=fold_reference,
                similarity=similarity or own,
                rule=rule,
                steps=samples,
                tolerance=tolerance,
                least_tolerance=1e-9,
                trust_remote_code=trust_remote_code,
                path=encoder.path,
                mask=mask,
                budget=budget,
            )
            self._method = Direct(encoder, settings)
            return
        _refuse(sampling, f"{encoder.name!r} is differentiated, and nothing is sampled; method='shapley' samples")
        if reference is None:
            reference = encoder.shifted_by or "pad"
        with LOCK:
            self._num_layers = encoder.num_layers
            encoder.check_reference(reference)
        settings = check_settings(
            model=encoder.name,
            layer=0 if layer is None else check_layer(layer, self._num_layers),
            reference=name_of(reference),
            fold_reference=fold_reference,
            similarity=similarity or own,
            rule=rule,
            steps=steps,
            tolerance=tolerance,
            least_tolerance=_least_tolerance(encoder),
            blocks=names,
            trust_remote_code=trust_remote_code,
            path=path or "relay",
            special=special or "keep",
            divisions=divisions or 0,
        )
        if special == "base" and settings.similarity in MAXSIM:
            raise ValueError(f"special='base' has no meaning for the several vectors of {encoder.name!r}; drop it")
        if special == "base" and not fold_reference:
            raise ValueError("special='base' needs contributions that sum to the embedding; drop fold_reference=False")
        self._method = Method(encoder, reference, 0 if layer is None else layer, settings)
        paper = steps is not None or rule != "gauss" or not fold_reference
        if path is None:
            settings = replace(settings, path=policy.choose_path(self._method, paper))
        if special is None:
            paper = paper or settings.path == "straight"
            settings = replace(settings, special=policy.choose_special(self._method, paper))
        self._method = replace(self._method, settings=settings)
        self._corrects = divisions is None and policy.may_correct(self._method, paper or settings.path == "straight")
        if self._corrects:
            settings = replace(settings, divisions=policy.choose_divisions(settings.path, detail))
            self._method = replace(self._method, settings=settings)
        self._layer_given = layer is not None
        self._method = self.at_detail(detail)._method if layer is None else _with_base(self._method)

    @classmethod
    def with_settings(
        cls,
        settings: Settings,
        model: str | os.PathLike[str] | Callable[[list[str]], Any] | None = None,
        device: str | None = None,
    ) -> Explainer:
        """Make an explainer like the one that computed results with these settings; its model may have moved."""
        if settings.path in PATHLESS:
            return cls(
                model or settings.model,
                device=device,
                method="shapley" if settings.path == "shapley" else None,
                fold_reference=settings.fold_reference,
                similarity=settings.similarity,  # type: ignore[arg-type]  # checked here as anybody's are
                samples=settings.steps,
                tolerance=settings.tolerance,
                trust_remote_code=settings.trust_remote_code,
                mask=settings.mask,
                budget=settings.budget,
            )
        explainer = cls(
            model or settings.model,
            device=device,
            layer=settings.layer,
            reference=settings.reference,
            fold_reference=settings.fold_reference,
            similarity=settings.similarity,  # type: ignore[arg-type]  # checked here as anybody's are
            rule=settings.rule,  # type: ignore[arg-type]
            steps=settings.steps,
            tolerance=settings.tolerance,
            blocks=settings.blocks,
            trust_remote_code=settings.trust_remote_code,
            path=settings.path,  # type: ignore[arg-type]
            special="share" if settings.special == "share" else "keep",
            divisions=settings.divisions,
        )
        # It is not measured again: another machine might round it in another way.
        how = replace(explainer._method.settings, special=settings.special, base=settings.base)
        explainer._method = replace(explainer._method, settings=how)
        return explainer

    def check_portable(self, what: str) -> None:
        """Raise an error that names ``what`` if ``with_settings`` could not make this explainer again."""
        if isinstance(self._method, Method) and not isinstance(self._method.reference, str):
            name = self.settings.reference
            raise ValueError(f"{what} cannot remember a reference that is a function, {name}; give a token or a text")
        if self._groups is not None:
            raise ValueError(
                f"{what} is of tokens, not of groups={self._groups!r:.60}; words can be made of them later"
            )

    @property
    def routed(self) -> bool:
        """Whether the model has separate encoders (routes) for queries and documents."""
        return self._method.encoder.routed

    @property
    def num_layers(self) -> int:
        """The number L of blocks; ``layer`` runs from 0, the input embeddings, to L, the output."""
        return self._num_layers

    @property
    def model(self) -> Any:
        """The model that is explained: a SentenceTransformer, or what was given instead of one."""
        return self._method.encoder.model

    @property
    def encoder(self) -> kinds.AnyEncoder:
        """The model as whymatch reads it. That of a black box keeps what it has embedded, and counts it."""
        return self._method.encoder

    @property
    def identity(self) -> str:
        """A hash of everything that decides the model's embeddings; of a function, of its name."""
        return self._method.encoder.identity()

    @property
    def dimensions(self) -> int:
        """The number of dimensions of the embeddings."""
        return self._method.encoder.dimensions

    @property
    def usage(self) -> Usage:
        """How many texts and characters a black box has embedded so far, in how many calls; others are not counted."""
        return getattr(self._method.encoder, "usage", Usage())

    def foresee(self, inputs: Sequence[Value], groups: Groups = None) -> int:
        """Return how many texts at most a black box embeds to decompose these inputs; others embed just the inputs."""
        requests = self._requests(inputs, groups=groups)
        most = self._method.encoder.most_texts if isinstance(self._method, Direct) else lambda *_: 1
        return sum(most(request, self.settings) for request in {each.key: each for each in requests}.values())

    def __repr__(self) -> str:
        return f"Explainer({self.settings})"

    def at_layer(self, layer: int) -> Explainer:
        """Return the same explainer at another layer; the model is shared, and nothing is loaded again."""
        if isinstance(self._method, Direct) and is_int(layer) and layer <= 0:
            return self
        other = copy.copy(self)
        how = self._runner.differentiable(f"layer {layer!r}")
        settings = replace(self.settings, layer=check_layer(layer, self._num_layers))
        other._method = _with_base(replace(how, layer=layer, settings=settings))
        other._layer_given = True
        return other

    def at_detail(self, detail: Literal["fine", "fast"]) -> Explainer:
        """Return the same explainer at the layer, and with the divisions, that suit this level of detail.

        What was given stays as it is.
        """
        policy.check_detail(detail)
        other = copy.copy(self)
        if not self._layer_given:
            # Counted from the output, so that a second tower of another depth is cut at the same distance from it.
            layer = policy.choose_layer(self._runner.differentiable("layers"), detail)
            other = self.at_layer(layer - self._num_layers - 1)
            other._layer_given = False
        if self._corrects:
            settings = replace(other.settings, divisions=policy.choose_divisions(other.settings.path, detail))
            other._method = replace(other._runner.differentiable("divisions"), settings=settings)
        return other

    def with_model(self, model: SentenceTransformer) -> Explainer:
        """Return the same explainer of another model of as many blocks: a changed copy of its own, for example."""
        how = self._runner.differentiable("blocks")
        encoder = type(how.encoder)(model, self.settings.model, self.settings.blocks)
        with LOCK:
            count = encoder.num_layers
        if count != self._num_layers:
            raise ValueError(f"the other model has {count} blocks, and this explainer's {self._num_layers}")
        other = copy.copy(self)
        other._method = _with_base(replace(how, encoder=encoder))
        return other

    def explain(
        self,
        a: Value,
        b: Value,
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
        groups: Both[Groups] = None,
    ) -> Explanation:
        """Explain why the model gives these two inputs their score.

        Inputs are texts; for a model that reads pictures also Pillow images and paths of image files.

        Args:
            a, b: the two inputs; of a model with prompts or routes for them, the query and the document.
            task: what ``encode`` is told: ``"query"`` is ``encode_query``, ``"document"`` is ``encode_document``.
                One for both sides, or a pair, like the other options. None means a query and a document if the model
                reads them in different ways.
            prompt_name: the name of one of the model's prompts.
            prompt: a prompt itself; ``""`` is none.
            groups: what is explained, instead of the explainer's own: ``"words"``, ``"sentences"`` or a list of
                character spans (start, end), as a pair where the sides differ.
        """
        return next(self.explain_many([(a, b)], task=task, prompt_name=prompt_name, prompt=prompt, groups=groups))

    def explain_many(
        self,
        pairs: Iterable[tuple[Value, Value]],
        progress: bool = False,
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
        groups: Both[Groups] = None,
    ) -> Iterator[Explanation]:
        """Explain pairs in order; inputs run in batches, and one that many pairs share runs once."""
        first, second = self._sides(task, prompt_name, prompt, both_groups(groups, self._groups))

        def requests() -> Iterator[tuple[Request, Request]]:
            for number, pair in enumerate(pairs):
                if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                    raise TypeError(f"pair {number} is not two texts: {pair!r:.80}")
                yield first(pair[0]), second(pair[1])

        total = len(pairs) if isinstance(pairs, Sized) else None
        return track(self._runner.explain(requests()), "pairs", total, enabled=progress)

    def readings(
        self,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
    ) -> Readings:
        """Return how queries and documents are read, with their prompts in full: what a stored result records."""
        query, document = both_options(task, prompt_name, prompt, self.asymmetric)
        return query.resolved(self.model), document.resolved(self.model)

    def decompose(
        self,
        inputs: Sequence[Value],
        progress: bool = False,
        *,
        task: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        groups: Groups = None,
    ) -> list[Decomposition]:
        """Write each input's embedding as a sum over its tokens; done once, it serves any number of pairs."""
        return self._runner.decompose(self._requests(inputs, task, prompt_name, prompt, groups), progress)

    def path_values(self, inputs: Sequence[Value], alpha: Sequence[float] | Floats) -> list[NDArray[np.floating]]:
        """Return the embeddings at positions from 0 to 1 on the way from each input's reference to it.

        Returns:
            For each input, (positions, dimensions). No derivative is taken.
        """
        positions = np.asarray(alpha, np.float64)
        return self._along(inputs, lambda integral: integral.curve(positions))

    def path_total(
        self, inputs: Sequence[Value], alpha: Sequence[float] | Floats, weights: Sequence[float] | Floats
    ) -> list[NDArray[np.floating]]:
        """Return what a quadrature rule yields for all tokens of each input together.

        Args:
            alpha: the nodes of the rule, from 0 to 1.
            weights: their weights.

        Returns:
            For each input, (dimensions,), by one tangent at each node.
        """
        nodes, sizes = np.asarray(alpha, np.float64), np.asarray(weights, np.float64)
        return self._along(inputs, lambda integral: integral.total(nodes, sizes))

    def _along(
        self, inputs: Sequence[Value], compute: Callable[[Integral], NDArray[np.floating]]
    ) -> list[NDArray[np.floating]]:
        requests = self._requests(inputs)
        results: dict[Hashable, NDArray[np.floating]] = {}

        def derive(keys: list[Hashable], integral: Integral, _: list[TokenSource]) -> None:
            results.update(zip(keys, compute(integral), strict=True))

        how = self._runner.differentiable("paths")
        if self.settings.path == "secant":  # which has no path, and need not be recorded for the line between its ends
            how = replace(how, settings=replace(how.settings, path="straight"))
        how = replace(how, settings=replace(how.settings, divisions=0))  # what is corrected is a result, not a path
        Runner(how).derive(requests, derive)
        return [results[request.key] for request in requests]

    def _requests(
        self, inputs: Any, task: Any = None, prompt_name: Any = None, prompt: Any = None, groups: Any = None
    ) -> list[Request]:
        if isinstance(inputs, str) or not isinstance(inputs, Iterable):
            raise TypeError(f"decompose takes a list of texts, not one: give [{inputs!r:.60}]")
        grouping = self._groups if groups is None else check_groups(groups)
        options = EncodeOptions(task, prompt_name, prompt)
        return [Request.of(value, options, grouping) for value in inputs]

    @staticmethod
    def pair(a: Decomposition, b: Decomposition) -> Explanation:
        """Explain the score of two decomposed inputs: one matrix product, no model."""
        for side in (a, b):
            if not isinstance(side, Decomposition):
                raise TypeError(f"pair takes two decompositions, not a {type(side).__name__}: use explain for texts")
        return method.combine(a, b)

    def features(
        self,
        a: Value,
        b: Value,
        i: int,
        j: int,
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
    ) -> NDArray[np.floating]:
        """Return one entry of the matrix before it is summed: features of token i × features of token j.

        The block sums to the entry. Where the reference is folded, the features of a token share its part equally, as
        they do what it hands over or receives with ``special="base"``, and what a correction moves.
        """
        sides: list[tuple[NDArray[np.floating], float]] = []
        for value, ask, row in zip((a, b), self._sides(task, prompt_name, prompt), (i, j), strict=True):

            def split(_: Any, integral: Integral, members: list[TokenSource], row: int = row) -> None:
                (member,) = members
                (decomposition,) = method.decompose(integral, [replace(member, correction=None)], self.settings)
                count = len(decomposition.tokens)
                if not is_int(row) or not -count <= row < count:
                    raise IndexError(f"token {row!r} is out of range: {quote(decomposition.text)} has {count} tokens")
                features = method.split_features(integral, row % count, decomposition)
                corrected = method.correct(decomposition, member)
                change = corrected.contributions[row] - decomposition.contributions[row]
                features += change / len(features)
                sides.append((features, float(np.linalg.norm(decomposition.embedding))))

            self._runner.derive([ask(value)], split)
        (left, norm_a), (right, norm_b) = sides
        scale = norm_a * norm_b if self.settings.similarity == "cosine" else 1.0
        return np.asarray(left @ right.T / scale)

    def embed(
        self,
        inputs: Sequence[Value],
        *,
        task: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> NDArray[np.floating]:
        """Return the model's own embeddings of inputs (inputs, dimensions), which scores are products of."""
        with LOCK:
            return self._method.encoder.vectors(list(inputs), EncodeOptions(task, prompt_name, prompt))


def _with_base(how: Method) -> Method:
    """Measure what tokens hand over to the template, where they do."""
    base = policy.measure_base(how) if how.settings.special == "base" else 0.0
    return replace(how, settings=replace(how.settings, base=base))


def _refuse(given: dict[str, Any], reason: str) -> None:
    """Raise an error if any of these was given; None is what nobody gives."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}={value!r:.60} has no meaning here: {reason}")


def _least_tolerance(encoder: Encoder) -> float:
    """Return the tightest tolerance that the arithmetic can meet."""
    if encoder.device.type == "mps":  # which has no double precision to derive in
        return 1e-5
    return 8 * torch.finfo(torch.float64 if encoder.dtype == torch.float64 else torch.float32).eps

"""The one verb: explain."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from whymatch import models
from whymatch.bucket import Bucket
from whymatch.decomposition import SIMILARITIES, Decomposition, Settings, check_settings, is_int, warn_missed
from whymatch.encoder import Encoder
from whymatch.explanation import Explanation, combine
from whymatch.groups import Groups, check_groups
from whymatch.inputs import Reading, Value, check_input
from whymatch.jacobian import LOCK, REVERSE_COST
from whymatch.preparation import TEXTS_TOGETHER, Preparation, Prepared, Request, check_layer
from whymatch.quadrature import get_rule
from whymatch.ranking import Hit, Ranking, top_of
from whymatch.reference import (
    USUAL_REFERENCE,
    Reference,
    check_reference,
    name_of,
)
from whymatch.text import shown

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

T = TypeVar("T")
Both: TypeAlias = T | tuple[T, T]  # one for both sides, or one for each

# Pairs that are looked at together for inputs they share; enough to fill the machine, few enough to bound what is held.
PAIRS_TOGETHER = 64


class Explainer:
    """Explains why an encoder gives two texts the score that it gives.

    Args:
        model: a hub id, a folder or a SentenceTransformer; None is the default model.
        layer: where the encoder is cut: 0 explains the input embeddings, ``num_layers`` the last block's output;
            negative numbers count from there.
        reference: what stands for no content: ``"pad"`` (the default, unless an adjusted model has one of its own),
            ``"unk"`` or ``"mask"`` tokens; another text, whose tokens
            are repeated as often as needed; or a function that is handed an input's representation at the layer
            (rows, dimensions) and gives one of that shape. A picture's is blank unless a function gives it.
        fold_reference: give the reference's embedding back to the tokens, so that the matrix alone sums to the
            score. False is the form of the paper, with its reference terms.
        similarity: ``"cosine"`` or ``"dot"``; None is the model's own.
        rule: ``"gauss"``, ``"midpoint"`` or ``"right"``, the paper's.
        steps: nodes per text; None is as many as the tolerance needs.
        tolerance: the bound on |score − attributed| ÷ (‖e(a)‖ ‖e(b)‖).
        device: where a model that is named, not given, is loaded.
        blocks: the name of the model's list of blocks (or the names, of a model with two towers), where it is not
            found by itself.
        groups: what is explained: tokens (None), ``"words"`` or ``"sentences"``. A group costs what a token costs.
        trust_remote_code: whether a model that is named may bring code of its own.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | SentenceTransformer | None = None,
        *,
        layer: int = 0,
        reference: Reference = USUAL_REFERENCE,
        fold_reference: bool = True,
        similarity: Literal["cosine", "dot"] | None = None,
        rule: Literal["gauss", "midpoint", "right"] = "gauss",
        steps: int | None = None,
        tolerance: float = 1e-3,
        device: str | torch.device | None = None,
        blocks: str | Sequence[str] | None = None,
        groups: Literal["words", "sentences"] | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        get_rule(rule)
        check_reference(reference)
        self._groups = check_groups(groups)
        encoder = _wrap(model, device, blocks, trust_remote_code)
        if reference is USUAL_REFERENCE:
            reference = encoder.shifted_by or "pad"
        own = encoder.similarity
        if similarity is None and own not in SIMILARITIES:
            raise ValueError(
                f"the similarity of {encoder.name!r} is {own!r}, which is not a product of embeddings; "
                "give similarity='cosine' or 'dot'"
            )
        with LOCK:
            self._num_layers = encoder.num_layers
            encoder.check_reference(reference)
        settings = check_settings(
            model=encoder.name,
            layer=check_layer(layer, self._num_layers),
            reference=name_of(reference),
            fold_reference=fold_reference,
            similarity=similarity or own,
            rule=rule,
            steps=steps,
            tolerance=tolerance,
            least=_least(encoder),
        )
        self._preparation = Preparation(encoder, reference, layer, settings)

    @classmethod
    def with_settings(
        cls, settings: Settings, model: str | os.PathLike[str] | None = None, device: str | None = None
    ) -> Explainer:
        """An explainer as the one that results with these settings came from; the model may have moved."""
        return cls(
            model or settings.model,
            device=device,
            layer=settings.layer,
            reference=settings.reference,
            fold_reference=settings.fold_reference,
            similarity=settings.similarity,  # type: ignore[arg-type]  # checked here as anybody's are
            rule=settings.rule,  # type: ignore[arg-type]
            steps=settings.steps,
            tolerance=settings.tolerance,
        )

    def check_portable(self, what: str) -> None:
        """An error if ``with_settings`` could not make this explainer again, as something needs that outlives it."""
        if not isinstance(self._preparation.reference, str):
            name = self.settings.reference
            raise ValueError(f"{what} cannot remember a reference that is a function, {name}; give a token or a text")
        if self._groups is not None:
            raise ValueError(
                f"{what} is of tokens, not of groups={self._groups!r:.60}; words can be made of them later"
            )

    @property
    def asymmetric(self) -> bool:
        """Whether the model reads queries and documents in different ways."""
        return self._encoder.asymmetric

    @property
    def num_layers(self) -> int:
        """The number L of blocks; ``layer`` runs from 0, the input embeddings, to L, the output."""
        return self._num_layers

    @property
    def settings(self) -> Settings:
        return self._preparation.settings

    @property
    def model(self) -> SentenceTransformer:
        return self._encoder.model

    @property
    def _encoder(self) -> Encoder:
        return self._preparation.encoder

    def __repr__(self) -> str:
        return f"Explainer({self.settings})"

    def at_layer(self, layer: int) -> Explainer:
        """The same explainer at another layer; the model is shared, and nothing is loaded again."""
        twin = copy.copy(self)
        settings = replace(self.settings, layer=check_layer(layer, self._num_layers))
        twin._preparation = replace(self._preparation, layer=layer, settings=settings)
        return twin

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
        """Why the model gives these two inputs their score.

        Inputs are texts; for a model that reads pictures also Pillow images and paths of image files.

        Args:
            a, b: the two inputs; of an asymmetric model, the query and the document.
            task: what ``encode`` is told: ``"query"`` is ``encode_query``, ``"document"`` is ``encode_document``.
                One for both sides, or a pair; so for the rest.
            prompt_name: the name of one of the model's prompts.
            prompt: a prompt itself.
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
        readings = self._readings(task, prompt_name, prompt)
        chosen = [self._groups if one is None else check_groups(one) for one in _both_groups(groups)]

        def requests() -> Iterator[tuple[Request, Request]]:
            for number, pair in enumerate(pairs):
                a, b = _check_pair(pair, number)
                yield Request(a, readings[0], chosen[0]), Request(b, readings[1], chosen[1])

        results = self._explain_windows(requests())
        return _shown(results, "pairs", len(pairs) if isinstance(pairs, Sized) else None) if progress else results

    def _readings(self, task: Any, prompt_name: Any, prompt: Any) -> list[Reading]:
        """How each side of a pair is read; the sides of an asymmetric model are a query and a document."""
        tasks = ("query", "document") if task is None and self._encoder.asymmetric else _both("task", task)
        names, prompts = _both("prompt_name", prompt_name), _both("prompt", prompt)
        return [Reading(*one) for one in zip(tasks, names, prompts, strict=True)]

    def _explain_windows(self, pairs: Iterator[tuple[Request, Request]]) -> Iterator[Explanation]:
        known: dict[Hashable, Decomposition] = {}
        warned = False
        while window := list(islice(pairs, PAIRS_TOGETHER)):
            # What this window shares with the last one is kept; a query's decomposition so lasts while it is used.
            keys = {side.key for pair in window for side in pair}
            known = {key: found for key, found in known.items() if key in keys}
            results = self._explain_window(window, known)
            if not warned:
                found = [(result.relative_error, max(result.nodes)) for result in results]
                warned = self._warn_missed(found, self.settings.tolerance, "pairs")
            yield from results

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
        """Each input's embedding as a sum over its tokens; made once, used in any number of pairs."""
        if isinstance(inputs, str) or not isinstance(inputs, Iterable):
            raise TypeError(f"decompose takes a list of texts, not one: give [{inputs!r:.60}]")
        _both("task", task), _both("prompt_name", prompt_name), _both("prompt", prompt)
        chosen = self._groups if groups is None else check_groups(groups)
        asked = [Request(check_input(one), Reading(task, prompt_name, prompt), chosen) for one in inputs]
        distinct = list({one.key: one for one in asked}.values())
        found: dict[Hashable, Decomposition] = {}
        chunks = [distinct[i : i + 4 * TEXTS_TOGETHER] for i in range(0, len(distinct), 4 * TEXTS_TOGETHER)]
        for chunk in _shown(chunks, "texts", len(chunks)) if progress else chunks:
            for keys, bucket in self._preparation.prepare(chunk).buckets():
                found |= zip(keys, bucket.decompose(), strict=True)
        errors = [(dec.error, dec.nodes) for dec in found.values()]
        self._warn_missed(errors, self.settings.text_tolerance, "texts")
        return [found[one.key] for one in asked]

    @staticmethod
    def pair(a: Decomposition, b: Decomposition) -> Explanation:
        """The explanation of two decomposed inputs: one matrix product, no model."""
        for side in (a, b):
            if not isinstance(side, Decomposition):
                raise TypeError(f"pair takes two decompositions, not a {type(side).__name__}: use explain for texts")
        return combine(a, b)

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
        """One token pair's entry of the matrix, before it was reduced: features of token i × features of token j.

        The block sums to the entry. Where the reference is folded, the features of a token share its part equally.
        """
        readings = self._readings(task, prompt_name, prompt)
        sides = []
        for value, reading, row in zip((a, b), readings, (i, j), strict=True):
            asked = Request(check_input(value), reading, None)
            ((_, bucket),) = self._preparation.prepare([asked]).buckets()
            (dec,) = bucket.decompose()
            if not is_int(row) or not -len(dec.tokens) <= row < len(dec.tokens):
                raise IndexError(f"token {row!r} is out of range: {shown(dec.text)} has {len(dec.tokens)} tokens")
            sides.append((bucket.features(row % len(dec.tokens), dec), np.linalg.norm(dec.embedding)))
        (left, norm_a), (right, norm_b) = sides
        scale = norm_a * norm_b if self.settings.similarity == "cosine" else 1.0
        return np.asarray(left @ right.T / scale)

    def rank(
        self,
        query: Value,
        documents: Sequence[Value],
        top: int = 10,
        *,
        task: Both[str | None] = None,
        prompt_name: Both[str | None] = None,
        prompt: Both[str | None] = None,
        groups: Both[Groups] = None,
    ) -> Ranking:
        """The best documents for a query by the model's own scores, each explained; the query is decomposed once."""
        if isinstance(documents, str) or not documents:
            raise TypeError(f"rank takes a list of documents, not {documents!r:.60}")
        if not is_int(top) or top < 1:
            raise ValueError(f"top={top!r} is not a number of hits; give 1 or more")
        readings = self._readings(task, prompt_name, prompt)
        checked = [check_input(one) for one in documents]
        with LOCK:
            (asked,) = self._encoder.vectors([check_input(query)], readings[0])
            found = self._encoder.vectors(checked, readings[1])
        if self.settings.similarity == "cosine":
            asked = asked / max(float(np.linalg.norm(asked)), 1e-30)
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-30)
        best = top_of(found @ asked, int(top))
        pairs = [(query, checked[i]) for i in best]
        reasons = self.explain_many(pairs, task=task, prompt_name=prompt_name, prompt=prompt, groups=groups)
        hits = tuple(
            Hit(place, i, why.score, why.text_b, why)
            for place, (i, why) in enumerate(zip(best, reasons, strict=True), 1)
        )
        return Ranking(hits[0].explanation.text_a, hits, len(checked))

    def _explain_window(
        self, window: Sequence[tuple[Request, Request]], known: dict[Hashable, Decomposition]
    ) -> list[Explanation]:
        new = self._preparation.prepare([side for pair in window for side in pair if side.key not in known])
        projected = self._projected(window, known, new)
        # A bucket is made once for all its inputs, projected or not: they share a run through the encoder.
        homes: dict[Hashable, tuple[Bucket, int]] = {}
        long_ones = set(projected.values())
        for keys, bucket in new.buckets():
            homes |= {key: (bucket, i) for i, key in enumerate(keys) if key in long_ones}
            whole = [i for i, key in enumerate(keys) if key not in long_ones]
            known |= zip([keys[i] for i in whole], bucket.decompose(whole), strict=True)
        results = []
        for number, pair in enumerate(window):
            a, b = (side.key for side in pair)
            long = projected.get(number)
            if long is None:
                results.append(combine(known[a], known[b]))
                continue
            bucket, i = homes[long]
            side = bucket.project(i, known[b if long == a else a])
            results.append(combine(side, known[b]) if long == a else combine(known[a], side))
        return results

    def _projected(
        self, window: Sequence[tuple[Request, Request]], known: dict[Hashable, Decomposition], new: Prepared
    ) -> dict[int, Hashable]:
        """The long side of each pair, by the pair's number, that need not be decomposed.

        If it meets a single, shorter one, reverse mode along that one's rows gives their matrix with fewer passes.
        """
        rows = {key: len(dec.tokens) for key, dec in known.items()}
        rows |= {key: len(item.side["tokens"]) for key, item in new.items.items()}
        # At the input of most models the template's own tokens do not move, and need no tangent.
        first = self.settings.layer == 0 and isinstance(self._preparation.reference, str)
        still = {
            key: sum(kind in ("special", "prompt") for kind in item.side["kinds"]) for key, item in new.items.items()
        }
        uses = Counter(key for pair in window for key in {side.key for side in pair})
        found: dict[int, Hashable] = {}
        for number, pair in enumerate(window):
            keys: list[Hashable] = [side.key for side in pair]
            short, long = sorted(keys, key=lambda key: (key in new.items, rows[key]))
            if long not in new.items or uses[long] > 1 or long == short:
                continue
            tangents = rows[long] - (still[long] if first else 0)
            if REVERSE_COST * rows[short] < min(tangents, REVERSE_COST * len(new.items[long].embedding)):
                found[number] = long
        return found

    def _warn_missed(self, found: Sequence[tuple[float, int]], tolerance: float, what: str) -> bool:
        # The model's own rounding is no fault of the result's, and no number of nodes would mend it.
        allowed = tolerance + 4 * torch.finfo(self._encoder.dtype).eps
        return warn_missed(found, allowed, self.settings, what)


def _wrap(model: Any, device: Any, blocks: str | Sequence[str] | None, trust_remote_code: bool) -> Encoder:
    from sentence_transformers import SentenceTransformer

    if isinstance(model, SentenceTransformer):
        if device is not None and torch.device(device).type != torch.device(model.device).type:
            raise ValueError(
                f"device={str(device)!r}, but the model given is on {str(model.device)!r} and is never moved; "
                "move it yourself, or give its name"
            )
        from whymatch.training.shift import shift_of

        name = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
        return Encoder(model, name if shift_of(model) is None else f"{name} (adjusted)", blocks)
    if model is None or isinstance(model, str | os.PathLike):
        return Encoder(*models.load(model, None if device is None else str(device), trust_remote_code), blocks)
    raise TypeError(
        f"model must be a hub id, a folder or a SentenceTransformer, not {type(model).__name__}: {model!r:.60}"
    )


def _both(name: str, value: Any) -> tuple[Any, Any]:
    """One value for both sides, or a pair of them."""
    a, b = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
    if not all(one is None or isinstance(one, str) for one in (a, b)):
        raise TypeError(f"{name}={value!r:.80} is neither a text nor a pair of them")
    return a, b


def _both_groups(groups: Any) -> tuple[Any, Any]:
    """A pair of groupings; a list of spans is one grouping, and so is a tuple of two of them."""
    if isinstance(groups, tuple) and len(groups) == 2 and not any(_is_span(one) for one in groups):
        return groups
    return groups, groups


def _is_span(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(is_int(one) for one in value)


def _least(encoder: Encoder) -> float:
    """The tightest tolerance that the arithmetic can meet."""
    if encoder.device.type == "mps":  # which has no double precision to derive in
        return 1e-5
    return 8 * torch.finfo(torch.float64 if encoder.dtype == torch.float64 else torch.float32).eps


def _check_pair(pair: Any, number: int) -> tuple[Value, Value]:
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise TypeError(f"pair {number} is not two texts: {pair!r:.80}")
    return check_input(pair[0]), check_input(pair[1])


def _shown(items: Iterable[Any], what: str, total: int | None) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import track

    return iter(track(items, description=what, total=total, console=Console(stderr=True)))

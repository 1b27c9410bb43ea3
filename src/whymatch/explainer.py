"""The one verb: explain."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from whymatch import models
from whymatch.bucket import Bucket
from whymatch.decomposition import Decomposition, Settings
from whymatch.encoder import Cut, Encoder
from whymatch.explanation import Explanation, combine
from whymatch.jacobian import LOCK, REVERSE_COST
from whymatch.quadrature import get_rule
from whymatch.reference import check_reference
from whymatch.text import Text, check_text, tokenize

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SIMILARITIES = ("cosine", "dot")
# Texts of one length that run through the encoder together, and pairs that are looked at together for texts
# they share: enough to fill the machine, few enough to bound what is held.
TEXTS_TOGETHER = 32
PAIRS_TOGETHER = 64


class ToleranceWarning(UserWarning):
    """A result misses the tolerance that was asked for; its ``error`` says by how much."""


class Explainer:
    """Explains why an encoder gives two texts the score that it gives.

    Args:
        model: a hub id, a folder or a SentenceTransformer; None is the default model.
        layer: where the encoder is cut: 0 explains the input embeddings, ``num_layers`` the last block's output;
            negative numbers count from there.
        reference: what stands for no content: ``"pad"``, ``"unk"`` or ``"mask"`` tokens.
        fold_reference: give the reference's embedding back to the tokens, so that the matrix alone sums to the
            score. False is the form of the paper, with its reference terms.
        similarity: ``"cosine"`` or ``"dot"``; None is the model's own.
        rule: ``"gauss"``, ``"midpoint"`` or ``"right"``, the paper's.
        steps: nodes per text; None is as many as the tolerance needs.
        tolerance: the bound on |score − attributed| ÷ (‖e(a)‖ ‖e(b)‖).
        device: where a model that is named, not given, is loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | SentenceTransformer | None = None,
        *,
        layer: int = 0,
        reference: str = "pad",
        fold_reference: bool = True,
        similarity: Literal["cosine", "dot"] | None = None,
        rule: Literal["gauss", "midpoint", "right"] = "gauss",
        steps: int | None = None,
        tolerance: float = 1e-3,
        device: str | torch.device | None = None,
    ) -> None:
        most = get_rule(rule).most
        if steps is not None and (not _is_int(steps) or not 1 <= steps <= most):
            raise ValueError(f"steps={steps!r} is not a number of nodes; give 1 to {most:,}, or None for the tolerance")
        if similarity not in (*SIMILARITIES, None):
            raise ValueError(f"similarity={similarity!r} is not known; choose 'cosine', 'dot' or None, the model's own")
        self._encoder = _wrap(model, device)
        double = self._encoder.dtype == torch.float64
        least = 8 * torch.finfo(torch.float64 if double else torch.float32).eps
        if not isinstance(tolerance, int | float) or not least <= tolerance <= 1:
            raise ValueError(
                f"tolerance={tolerance!r} cannot be met; give {least:.0e} to 1 (scores in "
                f"{'double' if double else 'single'} precision are no more exact than that)"
            )
        own = self._encoder.similarity
        if similarity is None and own not in SIMILARITIES:
            raise ValueError(
                f"the similarity of {self._encoder.name!r} is {own!r}, which is not a product of embeddings; "
                "give similarity='cosine' or 'dot'"
            )
        self._token = check_reference(self._encoder.model.tokenizer, reference)
        self._settings = Settings(
            model=self._encoder.name,
            layer=_check_layer(layer, self.num_layers),
            reference=reference,
            fold_reference=bool(fold_reference),
            similarity=similarity or own,
            rule=rule,
            steps=None if steps is None else int(steps),
            tolerance=float(tolerance),
        )

    @property
    def num_layers(self) -> int:
        """The number L of blocks; ``layer`` runs from 0, the input embeddings, to L, the output."""
        return self._encoder.num_layers

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def model(self) -> SentenceTransformer:
        return self._encoder.model

    def __repr__(self) -> str:
        return f"Explainer({self._settings})"

    def explain(self, text_a: str, text_b: str) -> Explanation:
        """Why the model gives these two texts their score."""
        return next(self.explain_many([(text_a, text_b)]))

    def explain_many(self, pairs: Iterable[tuple[str, str]], progress: bool = False) -> Iterator[Explanation]:
        """Explain pairs in order; texts run in batches, and a text that many pairs share runs once."""
        results = self._explain_windows(iter(pairs))
        return _shown(results, "pairs", len(pairs) if isinstance(pairs, Sized) else None) if progress else results

    def _explain_windows(self, pairs: Iterator[tuple[str, str]]) -> Iterator[Explanation]:
        known: dict[str, Decomposition] = {}
        number, warned = 0, False
        while window := [_check_pair(pair, number + i) for i, pair in enumerate(islice(pairs, PAIRS_TOGETHER))]:
            number += len(window)
            # What this window shares with the last one is kept; a query's decomposition so lasts while it is used.
            texts = {text for pair in window for text in pair}
            known = {text: found for text, found in known.items() if text in texts}
            results = self._explain_window(window, known)
            if not warned:
                found = [(result.relative_error, max(result.nodes)) for result in results]
                warned = self._warn_missed(found, self._settings.tolerance, "pairs")
            yield from results

    def decompose(self, texts: Sequence[str], progress: bool = False) -> list[Decomposition]:
        """Each text's embedding as a sum over its tokens; made once, used in any number of pairs."""
        if isinstance(texts, str):
            raise TypeError(f"decompose takes a list of texts, not one: give [{texts[:60]!r}]")
        checked = [check_text(text) for text in texts]
        distinct = list(dict.fromkeys(checked))
        found: dict[str, Decomposition] = {}
        chunks = [distinct[i : i + 4 * TEXTS_TOGETHER] for i in range(0, len(distinct), 4 * TEXTS_TOGETHER)]
        for chunk in _shown(chunks, "texts", len(chunks)) if progress else chunks:
            for bucket in self._prepare(chunk).buckets(chunk):
                found |= {dec.text: dec for dec in bucket.decompose()}
        errors = [(dec.error, dec.nodes) for dec in found.values()]
        self._warn_missed(errors, self._settings.text_tolerance, "texts")
        return [found[text] for text in checked]

    def pair(self, a: Decomposition, b: Decomposition) -> Explanation:
        """The explanation of two decomposed texts: one matrix product, no model."""
        for side in (a, b):
            if not isinstance(side, Decomposition):
                raise TypeError(f"pair takes two decompositions, not a {type(side).__name__}: use explain for texts")
        return combine(a, b)

    def _explain_window(self, window: Sequence[tuple[str, str]], known: dict[str, Decomposition]) -> list[Explanation]:
        new = self._prepare([text for pair in window for text in pair if text not in known])
        projected = self._projected(window, known, new.texts)
        # A bucket is made once for all its texts, projected or not: they share a run through the encoder.
        homes = {text.text: bucket for bucket in new.buckets(new.texts) for text in bucket.texts}
        for bucket in dict.fromkeys(homes.values()):
            whole = [text.text for text in bucket.texts if text.text not in projected.values()]
            known |= {dec.text: dec for dec in bucket.decompose(whole)}
        results = []
        for number, (a, b) in enumerate(window):
            long = projected.get(number)
            if long is None:
                results.append(combine(known[a], known[b]))
                continue
            side = homes[long].project(long, known[b if long == a else a])
            results.append(combine(side, known[b]) if long == a else combine(known[a], side))
        return results

    def _projected(
        self, window: Sequence[tuple[str, str]], known: dict[str, Decomposition], new: dict[str, Text]
    ) -> dict[int, str]:
        """The long text of each pair, by the pair's number, that need not be decomposed.

        If it meets a single, shorter text, reverse mode along that one's rows gives their matrix with fewer passes.
        """
        rows = {text: len(dec.tokens) for text, dec in known.items()} | {name: len(text) for name, text in new.items()}
        dimensions = self._encoder.dimensions
        # At the input of most models the template's own tokens do not move, and need no tangent.
        still = {name: sum(text.special) if self._settings.layer == 0 else 0 for name, text in new.items()}
        uses = Counter(text for pair in window for text in set(pair))
        found: dict[int, str] = {}
        for number, pair in enumerate(window):
            short, long = sorted(pair, key=lambda text: (text in new, rows[text]))
            alone = long in new and uses[long] == 1 and long != short
            if alone and REVERSE_COST * rows[short] < min(rows[long] - still[long], REVERSE_COST * dimensions):
                found[number] = long
        return found

    def _prepare(self, texts: Iterable[str]) -> _Prepared:
        """Tokenize texts and let the model itself embed them."""
        distinct = list(dict.fromkeys(texts))
        # A tokenizer's truncation is state of its own: two threads that set it at once fail with "Already borrowed".
        with LOCK:
            tokenized = tokenize(self._encoder.model, distinct) if distinct else []
            embeddings = list(self._encoder.embed(distinct)) if distinct else []
        return _Prepared(
            {text.text: text for text in tokenized},
            dict(zip(distinct, embeddings, strict=True)),
            self._encoder.cut(self._settings.layer, self._precision()),
            self._token,
            self._settings,
        )

    def _warn_missed(self, found: Sequence[tuple[float, int]], tolerance: float, what: str) -> bool:
        """One warning, however many results miss the tolerance; whether there was one."""
        # The model's own rounding is no fault of the result's, and no number of nodes would mend it.
        allowed = tolerance + 4 * torch.finfo(self._encoder.dtype).eps
        missed = [(error, nodes) for error, nodes in found if not error <= allowed]
        if not missed or self._settings.steps is not None:
            return False
        worst, nodes = max(missed)
        bound = get_rule(self._settings.rule).bound
        cause = (
            f"at the bound of {bound} nodes; a deeper layer or a larger tolerance converges sooner"
            if nodes >= bound
            else f"although {nodes} nodes are enough: this is the rounding of the model's own scores"
        )
        warnings.warn(
            f"{len(missed)} of {len(found)} {what} miss tolerance={self._settings.tolerance:g}, the worst with an "
            f"error of {worst:.1e}, {cause}. Results are as they are",
            ToleranceWarning,
            stacklevel=3,
        )
        return True

    def _precision(self) -> torch.dtype:
        """Single precision where its rounding is far below the tolerance, else double."""
        single = self._settings.tolerance >= 1e-4 and self._encoder.dtype != torch.float64
        return torch.float32 if single or self._encoder.device.type == "mps" else torch.float64


@dataclass(frozen=True)
class _Prepared:
    """Texts that are ready to be derived, by their text."""

    texts: dict[str, Text]
    embeddings: dict[str, NDArray[np.floating]]
    cut: Cut
    token: int
    settings: Settings

    def buckets(self, names: Iterable[str]) -> Iterator[Bucket]:
        """Texts of one length together, in batches of a bounded size."""
        by_length: dict[int, list[str]] = {}
        for name in names:
            by_length.setdefault(len(self.texts[name]), []).append(name)
        for alike in by_length.values():
            for i in range(0, len(alike), TEXTS_TOGETHER):
                batch = alike[i : i + TEXTS_TOGETHER]
                embeddings = np.stack([self.embeddings[name] for name in batch])
                yield Bucket(self.cut, [self.texts[name] for name in batch], embeddings, self.token, self.settings)


def _wrap(model: Any, device: str | torch.device | None) -> Encoder:
    from sentence_transformers import SentenceTransformer

    if isinstance(model, SentenceTransformer):
        if device is not None and torch.device(device).type != torch.device(model.device).type:
            raise ValueError(
                f"device={str(device)!r}, but the model given is on {str(model.device)!r} and is never moved; "
                "move it yourself, or give its name"
            )
        config = getattr(model, "config", None)
        return Encoder(model, getattr(config, "_name_or_path", "") or type(model).__name__)
    if model is None or isinstance(model, str | os.PathLike):
        return Encoder(*models.load(model, None if device is None else str(device)))
    raise TypeError(
        f"model must be a hub id, a folder or a SentenceTransformer, not {type(model).__name__}: {model!r:.60}"
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_layer(layer: int, count: int) -> int:
    if not _is_int(layer) or not -count - 1 <= layer <= count:
        raise ValueError(
            f"layer={layer!r} is out of range; this model has {count} blocks: give 0 (input embeddings) to {count} "
            f"(output), or -1 (output) to {-count - 1}"
        )
    return int(layer) % (count + 1)


def _check_pair(pair: Any, number: int) -> tuple[str, str]:
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise TypeError(f"pair {number} is not two texts: {pair!r:.80}")
    return check_text(pair[0]), check_text(pair[1])


def _shown(items: Iterable[Any], what: str, total: int | None) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import track

    return iter(track(items, description=what, total=total, console=Console(stderr=True)))

"""Other ways to explain a pair, behind the interface by which an explainer is judged."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, cast

import numpy as np
import torch

from whymatch.encoders.cut import Cut, copy_tree
from whymatch.paths.integrate import to_numpy
from whymatch.paths.jacobian import LOCK
from whymatch.quadrature import Floats
from whymatch.reading.inputs import Input, batched
from whymatch.settings import check_layer
from whymatch.truth.asking import Model, keep_words, seeded
from whymatch.truth.subjects import Attribution
from whymatch.words import Span, word_spans


@dataclass(frozen=True, eq=False)
class Rows:
    """What each piece of a text is worth, as a vector; the products of two texts' vectors are their matrix."""

    offsets: Sequence[Span]
    contributions: Floats  # (pieces, dim)
    embedding: Floats | None = None  # whose length the products are divided by


class Baseline:
    """Explains each text by one vector for each of its pieces.

    Args:
        model: the encoder.
        name: what the baseline is called in results.
        rows: returns the vectors of texts on one side of a pair, 0 or 1.
    """

    def __init__(self, model: Model, name: str, rows: Callable[[Sequence[str], int], list[Rows]]) -> None:
        self.model = model
        self.settings = {"subject": name, "model": model.name, "similarity": model.similarity}
        self.asymmetric = model.asymmetric
        self._rows = rows

    def decompose(self, texts: Sequence[str], task: str | None = None) -> list[Rows]:
        """Return the vectors of each text."""
        return self._rows(texts, int(task == "document"))


def hidden_states(model: Model, texts: Sequence[str], layer: int, side: int) -> list[tuple[Input, Floats]]:
    """Return what each text's tokens are at a layer: the input of that block, or what the pooling is given."""
    with LOCK:
        inputs = model.encoder.read(list(texts), model.options[side])
    by_length: dict[int, list[int]] = {}
    for i, given in enumerate(inputs):
        by_length.setdefault(len(given), []).append(i)
    states: dict[int, Floats] = {}
    last = layer == model.encoder.num_layers
    run = _outputs(model, side) if last else model.encoder.cut(inputs[0], layer, _precision(model)).head
    for numbers in by_length.values():
        with LOCK:
            hidden = run(batched([inputs[i].features for i in numbers], model.encoder.device))
        states.update(zip(numbers, np.asarray(to_numpy(hidden), np.float64), strict=True))
    return [(given, states[i]) for i, given in enumerate(inputs)]


def _outputs(model: Model, side: int) -> Callable[[dict[str, Any]], torch.Tensor]:
    """Return a function that gives the tokens' vectors as the pooling sees them, after any last normalization."""
    twin = copy_tree(model.encoder.model, torch.Tensor.detach).eval()

    def run(features: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            out = twin(features, **model.options[side].kwargs)
        if "token_embeddings" not in out:
            raise TypeError(f"{model.name!r} gives no vectors of its tokens: there is nothing to compare")
        return torch.as_tensor(out["token_embeddings"])

    return run


def _precision(model: Model) -> torch.dtype:
    return torch.float64 if model.encoder.dtype == torch.float64 else torch.float32


def token_cosine(model: Model, layer: int = -1) -> Baseline:
    """Cosines of token vectors at a layer."""
    place = check_layer(layer, model.encoder.num_layers)

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        return [
            Rows(given.offsets, states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-30))
            for given, states in hidden_states(model, texts, place, side)
        ]

    return Baseline(model, f"token cosine {place}", rows)


def last_dot(model: Model) -> Baseline:
    """Dot products of the tokens' last vectors, divided by how many there are: what mean pooling adds up."""
    last = model.encoder.num_layers

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        return [Rows(given.offsets, states / len(states)) for given, states in hidden_states(model, texts, last, side)]

    return Baseline(model, "last-layer dot", rows)


def random_values(model: Model, seed: int = 0) -> Baseline:
    """Vectors drawn at random, which know nothing about the text."""

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        results = []
        for text in texts:
            words = word_spans(text)
            results.append(Rows(words, seeded(seed, (str(side), text)).normal(size=(len(words), 32))))
        return results

    return Baseline(model, "random", rows)


def word_count(model: Model) -> Baseline:
    """Every pair of words is worth the same, so that all it can predict is how many words are left."""

    def rows(texts: Sequence[str], side: int) -> list[Rows]:  # noqa: ARG001
        spans = [word_spans(text) for text in texts]
        return [Rows(words, np.ones((len(words), 1)) / max(len(words), 1)) for words in spans]

    return Baseline(model, "word count", rows)


def leave_one_out(model: Model) -> Baseline:
    """What the embedding loses when one word is deleted; the rest of the embedding is shared equally by all words."""

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        results = []
        for text in texts:
            words = word_spans(text)
            without = [keep_words(text, words, [j != i for j in range(len(words))]) for i in range(len(words))]
            whole, *others = model.embed([text, *without], side)
            results.append(_shared(words, whole - np.stack(others) if others else np.zeros((0, len(whole))), whole))
        return results

    return Baseline(model, "leave one out", rows)


def _shared(words: Sequence[Span], vectors: Floats, whole: Floats) -> Rows:
    """Share what is missing from an embedding equally among its words."""
    rest = (whole - vectors.sum(0)) / max(len(words), 1)
    return Rows(words, vectors + rest, whole)


def gradient_times_input(model: Model) -> Baseline:
    """The Jacobian at the text itself, times each token's input embedding; no reference, no path, no completeness.

    The products of two texts' vectors are the mixed second derivative of their dot product, times both inputs.
    """

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        with LOCK:
            inputs = model.encoder.read(list(texts), model.options[side])
            cut = model.encoder.cut(inputs[0], 0, _precision(model))
            return [_gradient_rows(cut, given) for given in inputs]

    return Baseline(model, "gradient × input", rows)


def _gradient_rows(cut: Cut, given: Input) -> Rows:
    features = batched([given.features], cut.device)
    x = cut.head(features)[0]
    tail = cut.tail(features)
    results = []
    for low in range(0, len(x), 32):  # tokens at once
        tokens = torch.arange(low, min(low + 32, len(x)))
        tangents = torch.zeros(len(tokens), *x.shape, dtype=x.dtype, device=x.device)
        tangents[torch.arange(len(tokens)), tokens] = x[tokens]
        number = torch.zeros(len(tokens), dtype=torch.long, device=x.device)
        end, moved = cast(Any, torch.func.jvp)(
            partial(_tail_of, tail, number), (x.expand_as(tangents).clone(),), (tangents,)
        )
        results.append(moved.detach())
    vectors = np.asarray(to_numpy(torch.cat(results)), np.float64)
    return Rows(given.offsets, vectors, np.asarray(to_numpy(end[0].detach()), np.float64))


def _tail_of(tail: Callable[..., torch.Tensor], number: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return tail(x, number)


def attention_rollout(model: Model) -> Baseline:
    """The pooled outputs, traced back to the inputs by attention alone (Abnar and Zuidema, 2020).

    Heads are averaged, half of each block's weight is its residual's, and blocks are multiplied. What flows along it
    are the last vectors, so that the rows sum to the pooled embedding.
    """
    weights: dict[str, Callable[[int], Floats]] = {
        "mean": lambda n: np.full(n, 1 / n),
        "cls": lambda n: np.eye(n)[0],
        "lasttoken": lambda n: np.eye(n)[-1],
    }
    modes = [getattr(each, "pooling_mode", None) for each in model.encoder.model.modules()]
    mode = next((each for each in modes if isinstance(each, str)), "")
    pooled = weights.get(mode)
    if pooled is None:
        raise TypeError(f"attention rollout needs mean, cls or lasttoken pooling; that of {model.name!r} is {mode!r}")
    twin = copy_tree(model.encoder.model, torch.Tensor.detach, attention="eager").eval()
    transformer = next((m for m in twin.modules() if hasattr(m, "config") and hasattr(m, "get_input_embeddings")), None)
    if transformer is None:
        raise TypeError(f"attention rollout needs a transformer, and {model.name!r} has none")
    takes = set(signature(transformer.forward).parameters)

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        with LOCK:
            inputs = model.encoder.read(list(texts), model.options[side])
        results = []
        for given in inputs:
            features = batched([given.features], model.encoder.device)
            with torch.no_grad(), LOCK:
                known = {name: value for name, value in features.items() if name in takes}
                out = transformer(**known, output_attentions=True)
            if not getattr(out, "attentions", None):
                raise TypeError(f"{model.name!r} does not tell its attention")
            flow = np.eye(len(given))
            for block in out.attentions:
                mixed = (np.asarray(to_numpy(block[0]), np.float64).mean(0) + np.eye(len(given))) / 2
                flow = mixed @ flow
            last = np.asarray(to_numpy(out.last_hidden_state[0]), np.float64)
            vectors = flow.T @ (pooled(len(given))[:, None] * last)
            results.append(Rows(given.offsets, vectors, vectors.sum(0)))
        return results

    return Baseline(model, "attention rollout", rows)


def shapley(model: Model, samples: int = 4, seed: int = 0) -> Baseline:
    """Shapley values of the embedding, by least squares over sampled coalitions of words, their sum fixed.

    The embedding of the words that are left is a game whose values are vectors. What a text without words has is
    shared equally.

    Args:
        samples: coalitions for each word.
        seed: decides, with the text, which coalitions.
    """

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        results = []
        for text in texts:
            words = word_spans(text)
            masks, weights = sample_coalitions(len(words), samples * len(words), seeded(seed, (text, "")))
            embeddings = _embed_masks(model, text, words, masks, side)
            nothing, whole = embeddings[0], embeddings[-1]
            values = least_squares(masks[1:-1], embeddings[1:-1] - nothing, weights, whole - nothing)
            results.append(_shared(words, values, whole))
        return results

    return Baseline(model, f"Shapley, {samples} a word", rows)


def exact_shapley(model: Model, most: int = 10) -> Baseline:
    """The exact Shapley values of the embedding, from all coalitions of a short text's words.

    Args:
        most: words that a text may have.
    """

    def rows(texts: Sequence[str], side: int) -> list[Rows]:
        results = []
        for text in texts:
            words = word_spans(text)
            n = len(words)
            if n > most:
                raise ArithmeticError(f"exact Shapley values of {n} words need {2**n:,} passes; give {most} or fewer")
            masks = all_coalitions(n)
            embeddings = _embed_masks(model, text, words, masks, side)
            results.append(_shared(words, exact_values(masks, embeddings), embeddings[-1]))
        return results

    return Baseline(model, "exact Shapley", rows)


def _embed_masks(model: Model, text: str, words: Sequence[Span], masks: np.ndarray, side: int) -> Floats:
    return model.embed([keep_words(text, words, mask) for mask in masks], side)


def all_coalitions(n: int) -> np.ndarray:
    """Return all subsets of n players, (2ⁿ, n), from the empty to the full one."""
    return (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool)


def exact_values(masks: np.ndarray, values: Floats) -> Floats:
    """Return the Shapley values (players, dim) of a game known on all coalitions, in the order of all_coalitions."""
    n = masks.shape[1]
    sizes = masks.sum(1)
    averages = np.zeros((n, values.shape[1]))
    for i in range(n):
        without = np.flatnonzero(~masks[:, i])
        weights = np.array([1 / (n * math.comb(n - 1, size)) for size in sizes[without]])
        averages[i] = weights @ (values[without + (1 << i)] - values[without])
    return averages


def sample_coalitions(n: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, Floats]:
    """Draw coalitions for least squares: (coalitions, players), the empty one first and the full one last.

    Where so many would be all, they are all, with the weights of Shapley's kernel; otherwise they are drawn by those
    weights, each with its complement, and count alike.
    """
    if n <= 1 or 2**n - 2 <= count:
        masks = all_coalitions(n)
        sizes = masks[1:-1].sum(1)
        return masks, np.array([(n - 1) / (math.comb(n, k) * k * (n - k)) for k in sizes])
    sizes = np.arange(1, n)
    chances = (n - 1) / (sizes * (n - sizes))
    drawn = np.zeros((count - count % 2, n), bool)
    for row, size in zip(drawn[::2], rng.choice(sizes, len(drawn) // 2, p=chances / chances.sum()), strict=True):
        row[rng.permutation(n)[:size]] = True
    drawn[1::2] = ~drawn[::2]
    return np.concatenate([np.zeros((1, n), bool), drawn, np.ones((1, n), bool)]), np.ones(len(drawn))


def least_squares(masks: np.ndarray, values: Floats, weights: Floats, total: Floats) -> Floats:
    """Fit values of players whose sum is ``total`` to the values of coalitions: (players, dim)."""
    n = masks.shape[1]
    if n == 0:
        return np.zeros((0, len(total)))
    # The last player has what the others leave of the total.
    known = masks.astype(np.float64)
    roots = np.sqrt(weights)[:, None]
    design = (known[:, :-1] - known[:, -1:]) * roots
    target = (values - known[:, -1:] * total) * roots
    others = np.linalg.lstsq(design, target, rcond=None)[0] if n > 1 else np.zeros((0, len(total)))
    return np.concatenate([others, (total - others.sum(0))[None]])


class Interactions:
    """Second-order Shapley interactions of the score itself, by shapiq, for pairs of few words.

    Entries are the interactions of a word of one text with a word of the other. Each word's own value is in a row or
    column of no word; interactions within a text have no place in a matrix and are left out.

    Args:
        model: the encoder.
        most: words that both texts together may have.
    """

    def __init__(self, model: Model, most: int = 12) -> None:
        try:
            import shapiq
        except ImportError as error:
            raise ImportError(f"shapiq is not installed ({error}): pip install 'whymatch[truth]'") from None
        self._shapiq, self._model, self._most = shapiq, model, most
        self.settings = {"subject": "shapiq k-SII", "model": model.name, "similarity": model.similarity}

    def explain(self, a: str, b: str) -> Attribution:
        """Explain a pair by all coalitions of its words."""
        words = word_spans(a), word_spans(b)
        n, first = len(words[0]) + len(words[1]), len(words[0])
        if n > self._most:
            raise ArithmeticError(f"interactions of {n} words need {2**n:,} scores; give {self._most} words or fewer")

        def scores(masks: np.ndarray) -> Floats:
            masks = np.asarray(masks, bool)
            sides = (
                _embed_masks(self._model, text, spans, part, side)
                for side, (text, spans, part) in enumerate(
                    ((a, words[0], masks[:, :first]), (b, words[1], masks[:, first:]))
                )
            )
            return self._model.compare(*sides)

        values = self._shapiq.ExactComputer(scores, n)("k-SII", order=2)
        pairs, singles = np.asarray(values.get_n_order_values(2)), np.asarray(values.get_n_order_values(1))
        matrix = np.zeros((first + 1, n - first + 1))
        matrix[:-1, :-1] = pairs[:first, first:]
        matrix[:-1, -1], matrix[-1, :-1] = singles[:first], singles[first:]
        return Attribution(matrix, [*words[0], (0, 0)], [*words[1], (0, 0)])


class Retrivex:
    """The paper's algorithm as retrivex computes it, at its own defaults, for models that it can read.

    Args:
        model: the encoder.
        layer: the layer, as retrivex counts them.
        steps: its number of interpolation steps.
    """

    def __init__(self, model: Model, layer: int = 0, steps: int = 250) -> None:
        try:
            from retrivex.stransformers import IntJacobianExplainableTransformer
        except ImportError as error:
            raise ImportError(f"retrivex is not installed ({error}): pip install 'whymatch[bench]'") from None
        self._model, self._steps = model, steps
        self._layer = layer
        self._peer = IntJacobianExplainableTransformer(modules=list(copy.deepcopy(model.encoder.model)))
        subject = f"retrivex {layer}, {steps} steps"
        self.settings = {"subject": subject, "model": model.name, "similarity": model.similarity}

    def explain(self, a: str, b: str) -> Attribution:
        """Explain a pair; the matrix alone, as it is shown, without the reference terms beside it."""
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            matrix, *_ = self._peer.explain(
                a, b, layer_index=self._layer, num_interpolation_steps=self._steps, show_progress=False
            )
        self._peer.intermediate_representations.clear()
        with LOCK:
            offsets = [self._model.encoder.read([text], self._model.options[0])[0].offsets for text in (a, b)]
        return Attribution(np.asarray(matrix, np.float64), offsets[0], offsets[1])


# By the names that the command line takes; token-cosine:3 is a layer of its own, token-cosine all of them.
BASELINES: dict[str, Callable[[Model], Any]] = {
    "random": random_values,
    "word-count": word_count,
    "last-dot": last_dot,
    "gradient-input": gradient_times_input,
    "attention-rollout": attention_rollout,
    "leave-one-out": leave_one_out,
    "shapley": shapley,
    "exact-shapley": exact_shapley,
    "shapiq": Interactions,
    "retrivex": Retrivex,
}


def named(name: str, model: Model) -> list[Any]:
    """Return the baselines of a name: ``"token-cosine"`` is one for each layer, ``"shapley:16"`` has 16 samples,
    ``"retrivex:5:50"`` is of layer 5, with 50 steps.
    """
    kind, *numbers = name.split(":")
    options: dict[str, tuple[Callable[..., Any], int]] = {
        "token-cosine": (token_cosine, 1),
        "shapley": (shapley, 1),
        "retrivex": (Retrivex, 2),
    }
    if numbers and kind in options:
        make, most = options[kind]
        if len(numbers) > most or not all(number.removeprefix("-").isdecimal() for number in numbers):
            example = ":".join([kind, "3", "50"][: most + 1])
            raise ValueError(f"{name!r}: {':'.join(numbers)!r} cannot be read; write {example}, or {kind}")
        return [make(model, *map(int, numbers))]
    if name == "token-cosine":
        return [token_cosine(model, layer) for layer in range(model.encoder.num_layers + 1)]
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}; choose token-cosine, {', '.join(BASELINES)}")
    return [BASELINES[name](model)]

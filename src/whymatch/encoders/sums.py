"""Encoders that are sums over their tokens already: static ones and sparse ones.

A static encoder averages a vector from a table for each token. A sparse one gives each text a weight for each term of a
vocabulary, and each weight comes from one token, the one that predicts the term most strongly, or is a sum over
tokens. Either way a token's contribution to the embedding is known as soon as the text has been read: there is no
path, no reference and nothing to integrate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch import progress
from whymatch.encoders.cut import Tokenizers, copy_tree, model_code
from whymatch.encoders.encoder import in_batches, is_asymmetric, is_routed
from whymatch.encoders.identity import identity
from whymatch.paths.jacobian import LOCK
from whymatch.reading.inputs import (
    EncodeOptions,
    Input,
    Request,
    Value,
    batched,
    describe,
    label_tokens,
    read_texts,
    reader_of,
)
from whymatch.results.decomposition import Decomposition
from whymatch.settings import Settings
from whymatch.words import check_text, quote

Rows = NDArray[np.floating]  # (tokens, dim)


class TokenSum:
    """What static and sparse encoders share; each of them says how its tokens contribute."""

    path = "none"
    asymmetric = routed = False

    def __init__(self, model: Any, name: str) -> None:
        self.model = model
        self.name = name
        # model2vec models do not name a similarity, and are made for the cosine.
        self.similarity = str(getattr(model, "similarity_fn_name", "cosine"))

    @property
    def dimensions(self) -> int:
        return len(self.vectors(["a"], EncodeOptions("query" if self.asymmetric else None))[0])

    def identity(self) -> str:
        """A hash of everything that decides the model's embeddings."""
        return identity(self.model)

    def vectors(self, values: Sequence[Value], options: EncodeOptions) -> NDArray[np.floating]:
        """Embed texts with the model's own ``encode``."""
        texts = [check_text(value) for value in values]
        with LOCK, model_code(self.name, f"it embeds {len(texts)} texts, the first of them {quote(texts[0])}"):
            return np.asarray(in_batches(texts, lambda batch: self._encode(batch, options)))

    def _encode(self, texts: list[str], options: EncodeOptions) -> Any:
        raise NotImplementedError

    def read(self, texts: Sequence[str], options: EncodeOptions) -> list[tuple[Input, Rows]]:
        """Tokenize texts, and find what each token contributes to the embedding."""
        raise NotImplementedError

    def most_texts(self, request: Request, settings: Settings) -> int:  # noqa: ARG002 as other kinds have it
        return 1

    def decompose(self, requests: Sequence[Request], settings: Settings) -> list[Decomposition]:
        """Write the embedding of each text as a sum over its tokens."""
        by_options: dict[Hashable, list[int]] = {}
        for i, request in enumerate(requests):
            by_options.setdefault(request.options, []).append(i)
        results: dict[int, Decomposition] = {}
        for numbers, part in progress.stages(list(by_options.values())):
            with part:
                texts = [check_text(requests[i].value) for i in numbers]
                options = requests[numbers[0]].options
                embeddings = self.vectors(texts, options)
                for i, (given, rows), embedding in zip(numbers, self.read(texts, options), embeddings, strict=True):
                    results[i] = _decomposition(given, rows, embedding, requests[i], settings)
                    progress.report(len(results) / len(requests))
        return [results[i] for i in range(len(requests))]


def _decomposition(
    given: Input, rows: Rows, embedding: NDArray[np.floating], request: Request, settings: Settings
) -> Decomposition:
    if not len(given):  # a text without tokens is one part, which contributes nothing
        given = replace(given, tokens=("(no words)",), offsets=((0, 0),), kinds=("special",))
        rows = np.zeros((1, len(embedding)))
    source = describe(given, request.groups, embedding)
    contributions = np.zeros((len(source.side), len(embedding)), rows.dtype)
    np.add.at(contributions, source.owner, rows)
    return Decomposition(
        side=replace(source.side, mode="none", errors=np.zeros(len(source.side))),
        embedding=embedding,
        reference=np.zeros(len(embedding)),
        settings=settings,
        contributions=contributions,
        shares=source.shares,
    )


class StaticEncoder(TokenSum):
    """A SentenceTransformer that begins with a StaticEmbedding, and has nothing but Normalize after it."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__(model, name)
        self.asymmetric = is_asymmetric(model)

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether a SentenceTransformer is of this kind."""
        kinds = [type(module).__name__ for module in model]
        if not kinds or kinds[0] != "StaticEmbedding" or getattr(model[0].embedding, "mode", "") != "mean":
            return False
        return set(kinds[1:]) <= {"Normalize", "Dropout"}

    def _encode(self, texts: list[str], options: EncodeOptions) -> Any:
        twin = copy_tree(self.model, Tensor.detach).eval()
        return twin.encode(texts, prompt=options.resolve_prompt(twin), show_progress_bar=False, **options.kwargs)

    def read(self, texts: Sequence[str], options: EncodeOptions) -> list[tuple[Input, Rows]]:
        table = self.model[0]
        prompt = options.resolve_prompt(self.model) or ""
        encodings = table.tokenizer.encode_batch([prompt + text for text in texts], add_special_tokens=False)
        weights = table.embedding.weight.detach()
        normalizes = any(type(module).__name__ == "Normalize" for module in self.model)
        result = []
        for text, encoding in zip(texts, encodings, strict=True):
            given = _input(text, prompt, encoding, options, table)
            rows = weights[torch.tensor(encoding.ids, dtype=torch.long, device=weights.device)].double().cpu().numpy()
            result.append((given, _averaged(rows, normalizes)[:, : self.model.truncate_dim]))
        return result


class Model2Vec(TokenSum):
    """A ``StaticModel`` of the library model2vec."""

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether an object is a model of model2vec."""
        return any(each.__module__.startswith("model2vec.") for each in type(model).__mro__) and all(
            hasattr(model, name) for name in ("embedding", "tokenizer", "encode")
        )

    def identity(self) -> str:
        digest = hashlib.sha256(self.model.tokenizer.to_str().encode("utf-8", "surrogatepass"))
        digest.update(repr((self.model.normalize, self.model.max_length)).encode())
        for array in (self.model.embedding, self.model.weights, self.model.token_mapping):
            if array is not None:
                digest.update(repr((array.shape, str(array.dtype))).encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def _encode(self, texts: list[str], options: EncodeOptions) -> Any:
        return self.model.encode([_prompt(options) + text for text in texts], show_progress_bar=False)

    def read(self, texts: Sequence[str], options: EncodeOptions) -> list[tuple[Input, Rows]]:
        model, prompt = self.model, _prompt(options)
        result = []
        for text in texts:
            # As its encode does: long texts are cut by characters first, and unknown tokens left out.
            whole = prompt + text
            cut = whole if model.max_length is None else whole[: model.max_length * model.median_token_length]
            encoding = model.tokenizer.encode(cut, add_special_tokens=False)
            kept = [i for i, token in enumerate(encoding.ids) if token != model.unk_token_id]
            given = _input(text, prompt, encoding, options, model, kept, truncated=len(cut) < len(whole))
            ids = np.array([encoding.ids[i] for i in kept], dtype=np.int64)
            places = ids if model.token_mapping is None else model.token_mapping[ids]
            rows = np.asarray(model.embedding[places], np.float64)
            if model.weights is not None:
                rows = rows * np.asarray(model.weights[ids], np.float64)[:, None]
            result.append((given, _averaged(rows, model.normalize)))
        return result


def _averaged(rows: Rows, normalizes: bool) -> Rows:
    rows = rows / max(len(rows), 1)
    length = float(np.linalg.norm(rows.sum(0)))
    return rows / length if normalizes and length > 0 else rows


def _prompt(options: EncodeOptions) -> str:
    if options.task is not None or options.prompt_name is not None:
        raise ValueError("this model has neither tasks nor named prompts; give prompt='…' itself")
    return options.prompt or ""


def _input(
    text: str,
    prompt: str,
    encoding: Any,
    options: EncodeOptions,
    reader: Any,
    kept: Sequence[int] | None = None,
    truncated: bool = False,
) -> Input:
    """Describe a text that was tokenized without a template."""
    kept = range(len(encoding.ids)) if kept is None else kept
    spans = [encoding.offsets[i] for i in kept]
    tokens = [encoding.tokens[i] for i in kept]
    labels, offsets, kinds = label_tokens(prompt, text, tokens, spans, [False] * len(tokens))
    truncated = truncated or bool(encoding.overflowing)
    return Input(text, text, options, labels, offsets, kinds, truncated, reader)


class SparseEncoder(TokenSum):
    """A SparseEncoder of sentence-transformers: SPLADE, or static weights of tokens, on either side."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__(model, name)
        self.asymmetric, self.routed = is_asymmetric(model), is_routed(model)
        self._tokenizers = Tokenizers()

    @staticmethod
    def fits(model: Any) -> bool:
        """Whether every route through a model ends with weights that are of tokens."""
        routes = model[0].sub_modules.values() if hasattr(model[0], "sub_modules") and len(model) == 1 else [model]
        ends = (["SpladePooling"], ["SparseStaticEmbedding"])
        for route in routes:
            kinds = [type(module).__name__ for module in route]
            if kinds[1 if len(kinds) > 1 else 0 :] not in ends:
                return False
        return True

    def _encode(self, texts: list[str], options: EncodeOptions) -> Any:
        twin = copy_tree(self.model, Tensor.detach, tokenizers=self._tokenizers).eval()
        prompt = options.resolve_prompt(twin)
        weights = twin.encode(
            texts, prompt=prompt, show_progress_bar=False, convert_to_sparse_tensor=False, **options.kwargs
        )
        return weights.float().cpu().numpy()

    def read(self, texts: Sequence[str], options: EncodeOptions) -> list[tuple[Input, Rows]]:
        with LOCK, model_code(self.name, f"it reads {quote(texts[0])}"):
            twin = copy_tree(self.model, Tensor.detach, tokenizers=self._tokenizers).eval()
            reader = reader_of(twin, options)
            if type(reader).__name__ == "SparseStaticEmbedding":
                readings = [self._read_static(reader, text, options) for text in texts]
            else:
                pooling = next(
                    each
                    for each in twin.modules()
                    if type(each).__name__ == "SpladePooling" and _follows(twin, reader, each)
                )
                readings = [_read_splade(twin, pooling, given) for given in read_texts(twin, texts, options)]
        most = self.model.max_active_dims
        return [(given, rows if most is None else _strongest(rows, most)) for given, rows in readings]

    def _read_static(self, reader: Any, text: str, options: EncodeOptions) -> tuple[Input, Rows]:
        """Give a token's weight to the token; if it occurs twice, each occurrence gets half of it."""
        prompt = options.resolve_prompt(self.model) or ""
        batch = reader.tokenizer(prompt + text, truncation=True, add_special_tokens=False)
        given = _input(text, prompt, batch.encodings[0], options, reader)
        weights = reader.weight.detach().float().cpu().numpy()
        ids = np.array(batch["input_ids"], dtype=np.int64)
        rows = np.zeros((len(ids), len(weights)), np.float32)
        counts = np.bincount(ids, minlength=len(weights))
        rows[np.arange(len(ids)), ids] = weights[ids] / counts[ids]
        return given, rows


def _follows(model: Any, reader: Any, pooling: Any) -> bool:
    """Whether a pooling is on the same route as the module that reads the text."""
    routes = model[0].sub_modules.values() if hasattr(model[0], "sub_modules") else [model]
    return any({id(reader), id(pooling)} <= {id(each) for each in route} for route in routes)


def _read_splade(twin: Any, pooling: Any, given: Input) -> tuple[Input, Rows]:
    """Give each term's weight to the token that predicts it most strongly, or to all tokens where they are summed."""
    seen: list[Tensor] = []
    run = pooling.forward

    def forward(features: dict[str, Any]) -> Any:
        logits = features["token_embeddings"][0] * features["attention_mask"][0][:, None]
        seen.append(logits.float())
        return run(features)

    pooling.forward = forward
    try:
        with torch.no_grad():
            twin(batched([given.features], torch.device(twin.device)), **given.options.kwargs)
    finally:
        del pooling.forward
    (logits,) = seen
    weights = torch.log1p(torch.relu(logits))  # (tokens, terms)
    if pooling.activation_function == "log1p_relu":
        weights = torch.log1p(weights)
    if pooling.pooling_strategy == "max":
        best = weights.max(0)
        weights = torch.zeros_like(weights).scatter_(0, best.indices[None], best.values[None])
    return given, weights.cpu().numpy()


def _strongest(rows: Rows, most: int) -> Rows:
    """Keep the terms that the model keeps: those with the largest weights."""
    totals = torch.as_tensor(rows.sum(0))
    kept = torch.zeros_like(totals, dtype=torch.bool)
    kept[torch.topk(totals.abs(), min(most, len(totals))).indices] = True
    return np.where(kept.numpy(), rows, 0)

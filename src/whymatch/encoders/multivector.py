"""Encoders that give each token a vector of its own, and compare texts by MaxSim (ColBERT).

The score of a query and a document is a sum over the query's vectors, each with the document's vector that it is most
similar to. Once it is known which that is, the score is a sum of products like any other. All vectors of a text, one
after the other, are its embedding here: the engine writes them as a sum over tokens at any layer, and
:func:`whymatch.method.combine` multiplies those that met. At the output, a token's contribution is its own vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whymatch.encoders.cut import copy_tree, model_code
from whymatch.encoders.encoder import Encoder, in_batches
from whymatch.reading.inputs import EncodeOptions, Input, TokenSource, Value, read_expanded
from whymatch.words import check_text, quote


class _Flatten(nn.Module):
    """The end of a multi-vector encoder: its vectors one after the other, zero where they do not take part."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        vectors = features["token_embeddings"]
        taking_part = features["attention_mask"].to(vectors.dtype)
        features["sentence_embedding"] = (vectors * taking_part[..., None]).flatten(1)
        return features


class MultiVectorEncoder(Encoder):
    """A MultiVectorEncoder of sentence-transformers, as an encoder of one long vector."""

    def __init__(self, model: Any, name: str, blocks: Sequence[str] | None = None) -> None:
        pooled = [type(each).__name__ for each in model.modules() if type(each).__name__.endswith("TokenPooling")]
        if pooled:
            raise TypeError(
                f"{name!r} merges the vectors of tokens ({pooled[0]}), which then belong to none; explain it without"
            )
        super().__init__(model, name, blocks)
        self._inner = copy_tree(model)
        self._inner.append(_Flatten())
        self.asymmetric = self.routed = True  # it reads queries and documents in different ways

    def read(self, values: Sequence[Value], options: EncodeOptions) -> list[Input]:
        """Preprocess inputs as the model does; a query may be expanded by further tokens."""
        transformer = self._inner[0]
        if options.task != "query" or getattr(transformer, "query_expansion", None) is None:
            return super().read(values, options)
        twin = copy_tree(self._inner, tokenizers=self._tokenizers)
        return [read_expanded(twin, check_text(value), options) for value in values]

    def embed(self, inputs: Sequence[Input], layer: int | None = None) -> tuple[Any, dict[int, Tensor]]:  # noqa: ARG002
        """Return the vectors that the model itself gives the tokens of each input, one after the other.

        Vectors that do not take part are nan until :meth:`complete` has recorded them.
        """
        return [self._embed(given) for given in inputs], {}

    def _embed(self, given: Input) -> NDArray[np.floating]:
        twin = copy_tree(self.model, Tensor.detach, tokenizers=self._tokenizers).eval()
        prompt = given.options.resolve_prompt(twin)
        with model_code(self.name, f"it embeds {quote(given.text)}", self._too_long(given)):
            (raw,) = twin.encode(
                [given.value], prompt=prompt, output_value=None, show_progress_bar=False, **given.options.kwargs
            )
        vectors: Tensor = raw["token_embeddings"].float()
        if len(vectors) != len(given):
            counts = f"{len(vectors)} vectors for the {len(given)} tokens"
            raise TypeError(f"{self.name!r} gives {counts} of {quote(given.text)}")
        return vectors.masked_fill(~raw["attention_mask"].bool()[:, None], torch.nan).flatten().cpu().numpy()

    def complete(self, source: TokenSource) -> TokenSource:
        """Record which of an input's vectors take part, and which part of the input each belongs to."""
        taking_part = ~np.isnan(source.embedding.reshape(len(source.input), -1)).any(1)
        owner = source.owner[None] == np.arange(len(source.side))[:, None]  # (parts, tokens)
        shares = np.repeat(owner, len(source.embedding) // len(taking_part), axis=1).astype(np.float64)
        return replace(source, embedding=np.nan_to_num(source.embedding), shares=shares, vectors=taking_part)

    def vectors(self, values: Sequence[Value], options: EncodeOptions) -> Any:
        """Embed many inputs for ranking: for each, (vectors, dimensions)."""
        twin = copy_tree(self.model, Tensor.detach, tokenizers=self._tokenizers).eval()
        prompt = options.resolve_prompt(twin)
        texts = [check_text(value) for value in values]
        with model_code(self.name, "it embeds texts to rank them", "Texts may be too long for it"):
            vectors = in_batches(
                texts, lambda batch: twin.encode(batch, prompt=prompt, show_progress_bar=False, **options.kwargs)
            )
        return [np.asarray(torch.as_tensor(each).float().cpu()) for each in vectors]

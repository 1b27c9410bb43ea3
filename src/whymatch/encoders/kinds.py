"""Kinds of encoders: which one a model is, and so how its texts become decompositions.

| kind | what it is | a text's decomposition |
|---|---|---|
| ``encoder.Encoder`` | a SentenceTransformer that can be differentiated | ``whymatch.method`` |
| ``multivector.MultiVectorEncoder`` | a vector for each token | the same, of all vectors together |
| ``sums.StaticEncoder``, ``Model2Vec`` | a table of vectors that are averaged | read off the table |
| ``sums.SparseEncoder`` | a weight for each term of a vocabulary | read off the terms |
| ``blackbox.BlackBox`` | a function, a service, a model that cannot be differentiated | Shapley values |

Everything after this (pairs, rankings, indexes, pages) works with decompositions only.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch.encoders import loading
from whymatch.encoders.blackbox import TEXTS_TOGETHER, BlackBox
from whymatch.encoders.cut import copy_tree
from whymatch.encoders.encoder import Encoder, encode, find_obstacle, is_asymmetric, is_routed
from whymatch.encoders.endpoints import Endpoint
from whymatch.encoders.multivector import MultiVectorEncoder
from whymatch.encoders.sums import Model2Vec, SparseEncoder, StaticEncoder
from whymatch.paths.jacobian import LOCK
from whymatch.reading.inputs import EncodeOptions, Request, Value
from whymatch.results.decomposition import Decomposition
from whymatch.settings import Settings

METHODS = ("shapley",)


class FallbackWarning(UserWarning):
    """A model that could not be explained in its own way is explained as a black box."""


class DirectEncoder(Protocol):
    """An encoder whose texts are decomposed without derivatives.

    Attributes:
        name: what results call it.
        model: the object that it was made of.
        similarity: how its embeddings are compared.
        asymmetric: whether it reads queries and documents in different ways.
        routed: whether it has separate encoders for queries and documents.
        path: how it is decomposed, as the settings of its results say it.
        dimensions: the number of dimensions of its embeddings.
    """

    name: str
    model: Any
    similarity: str
    asymmetric: bool
    routed: bool
    path: str

    @property
    def dimensions(self) -> int: ...

    def identity(self) -> str:
        """A hash that tells it apart from other encoders."""

    def vectors(self, values: Sequence[Value], options: EncodeOptions) -> NDArray[np.floating]:
        """Embed texts, for ranking."""

    def decompose(self, requests: Sequence[Request], settings: Settings) -> list[Decomposition]:
        """Write the embedding of each text as a sum over its parts."""

    def most_texts(self, request: Request, settings: Settings) -> int:
        """Return how many texts may have to be embedded to decompose one."""


AnyEncoder: TypeAlias = Encoder | DirectEncoder
ENCODERS = (Encoder, MultiVectorEncoder, StaticEncoder, Model2Vec, SparseEncoder, BlackBox)


@dataclass(frozen=True)
class Direct:
    """The counterpart of :class:`whymatch.method.Method` for encoders that are neither cut nor integrated."""

    encoder: DirectEncoder
    settings: Settings

    def decompose(self, requests: Sequence[Request]) -> list[Decomposition]:
        return self.encoder.decompose(requests, self.settings)


def wrap(
    model: Any,
    *,
    method: str | None = None,
    device: Any = None,
    blocks: tuple[str, ...] | None = None,
    trust_remote_code: bool = False,
    name: str | None = None,
) -> AnyEncoder:
    """Find out which kind of encoder a model is; see :class:`whymatch.Explainer` for the arguments."""
    if method is not None and method not in METHODS:
        raise ValueError(f"method={method!r:.60} is not known; choose 'shapley', or None for the model's own")
    loaded = None
    if model is None or isinstance(model, str | os.PathLike):
        model, loaded = loading.load(model, None if device is None else str(device), trust_remote_code)
    elif Model2Vec.fits(model):
        own = name or model.config.get("base_model_name") or type(model).__name__
        return Model2Vec(model, own) if method is None else _function(model.encode, own)
    elif type(model).__name__ == "OptimizedModule":  # what torch.compile wraps around a model
        return wrap(model._orig_mod, method=method, device=device, blocks=blocks, name=name)
    elif callable(model) and not isinstance(model, torch.nn.Module):
        return _function(model, name)
    else:
        _check_object(model, device)
    own = name or loaded or getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
    kind = loading.check_kind(model)
    if method == "shapley":
        if kind == "MultiVectorEncoder":
            raise ValueError("method='shapley' is for encoders that give a text one vector, and this one gives several")
        return _model_as_function(model, own)
    if kind == "SparseEncoder":
        if SparseEncoder.fits(model):
            return SparseEncoder(model, own)
        return _fall_back(model, own, "its weights are not those of tokens")
    if kind == "MultiVectorEncoder":
        return MultiVectorEncoder(model, own, blocks)
    if StaticEncoder.fits(model):
        return StaticEncoder(model, own)
    if obstacle := find_obstacle(model):
        return _fall_back(model, own, obstacle)
    encoder = Encoder(model, own, blocks)
    if encoder.shifted_by is not None and loaded is None and name is None:  # what it was made of has the same name
        encoder.name = f"{own} (adjusted)"
    return encoder


def _fall_back(model: Any, name: str, reason: str) -> BlackBox:
    """Treat a model as a black box because there is no other way, and say so."""
    warnings.warn(
        f"{name!r} cannot be differentiated, because {reason}: it is explained as a black box, by Shapley values of "
        "its words. method='shapley' says that this is meant",
        FallbackWarning,
        stacklevel=4,
    )
    return _model_as_function(model, name)


def _check_object(model: Any, device: Any) -> None:
    """Raise an error unless an object is a model that can be explained."""
    if not loading.check_kind(model):
        raise TypeError(
            "model must be a hub id, a folder, a SentenceTransformer or a function from a list of texts to their "
            f"embeddings, not {type(model).__name__}: {model!r:.60}"
        )
    if device is not None and torch.device(device).type != torch.device(model.device).type:
        raise ValueError(
            f"device={str(device)!r}, but the model given is on {str(model.device)!r} and is never moved; "
            "move it yourself, or give its name"
        )


def _function(function: Callable[[list[str]], Any], name: str | None) -> BlackBox:
    """Wrap a function from a list of texts to an array."""

    # A black box counts its calls and tries again itself, so that the requests of a service are counted one by one.
    once = function.request if isinstance(function, Endpoint) else function

    def embed(texts: list[str], options: EncodeOptions) -> Any:
        if options.task is not None or options.prompt_name is not None:
            raise TypeError("a function has neither tasks nor named prompts; give prompt='…' itself")
        return once([(options.prompt or "") + text for text in texts])

    own = getattr(function, "name", None)
    if not isinstance(own, str):
        place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
        # A name that does not lead back to the function does not tell it apart from others.
        own = place if "<" not in place and hasattr(function, "__qualname__") else f"{place} at {id(function):#x}"
    size = getattr(function, "batch_size", TEXTS_TOGETHER)
    identity = getattr(function, "identity", None)
    return BlackBox(
        embed,
        name or own,
        function,
        similarity=str(getattr(function, "similarity", "cosine")),
        identity=identity if callable(identity) else lambda: None,
        batch_size=size if isinstance(size, int) else TEXTS_TOGETHER,
    )


def _model_as_function(model: Any, name: str) -> BlackBox:
    """Use a model's ``encode`` and nothing else of it."""

    copyable = find_obstacle(model) is None

    def identify() -> str | None:
        try:
            return loading.identity(model)
        except (AttributeError, TypeError, RuntimeError):  # weights that are not tensors, such as quantised ones
            return None

    def embed(texts: list[str], options: EncodeOptions) -> Any:
        dense = {"convert_to_sparse_tensor": False} if hasattr(model, "max_active_dims") else {}
        with LOCK:
            if copyable:
                return encode(copy_tree(model, Tensor.detach).eval(), texts, options, **dense)
            training = model.training
            try:
                return encode(model, texts, options, **dense)
            finally:
                model.train(training)  # which encode switches off

    return BlackBox(
        embed,
        name,
        model,
        similarity=str(model.similarity_fn_name),
        identity=identify,
        asymmetric=is_asymmetric(model),
        routed=is_routed(model),
    )

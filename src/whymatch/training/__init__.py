"""Training adjusted models: encoders whose reference embedding is exactly zero."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from whymatch import lazy

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from whymatch.encoders.adjusted import ReferenceShift, Scale, adjust
    from whymatch.training.data import read_splits
    from whymatch.training.run import Recipe, train
    from whymatch.training.sts import evaluate_sts

__all__ = ["Recipe", "ReferenceShift", "Scale", "adjust", "evaluate_sts", "load", "read_splits", "train"]

__getattr__, __dir__ = lazy.attributes(
    __name__,
    {
        "Recipe": "whymatch.training.run",
        "ReferenceShift": "whymatch.encoders.adjusted",
        "Scale": "whymatch.encoders.adjusted",
        "adjust": "whymatch.encoders.adjusted",
        "evaluate_sts": "whymatch.training.sts",
        "read_splits": "whymatch.training.data",
        "train": "whymatch.training.run",
    },
)


def load(folder: str | os.PathLike[str], device: str | None = None) -> SentenceTransformer:
    """Load a model, adjusted or not, from a folder or a hub id, running no code from it."""
    from whymatch.encoders import loading

    return loading.load(folder, device)[0]

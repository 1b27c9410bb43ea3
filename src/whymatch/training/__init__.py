"""Adjusted models: encoders whose reference is exactly zero; made, trained, saved and loaded like any other."""

from typing import TYPE_CHECKING

from whymatch import lazy

if TYPE_CHECKING:
    from whymatch.training.data import read_splits
    from whymatch.training.run import Recipe, train
    from whymatch.training.shift import ReferenceShift, Scale, adjust, load
    from whymatch.training.sts import evaluate_sts

__all__ = ["Recipe", "ReferenceShift", "Scale", "adjust", "evaluate_sts", "load", "read_splits", "train"]

__getattr__, __dir__ = lazy.attributes(
    __name__,
    {
        "Recipe": "run",
        "ReferenceShift": "shift",
        "Scale": "shift",
        "adjust": "shift",
        "evaluate_sts": "sts",
        "load": "shift",
        "read_splits": "data",
        "train": "run",
    },
)

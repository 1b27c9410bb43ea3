"""Adjusted models: encoders whose reference is exactly zero; made, trained, saved and loaded like any other."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whymatch.training.run import Recipe, train
    from whymatch.training.shift import ReferenceShift, adjust, load
    from whymatch.training.sts import evaluate_sts

__all__ = ["Recipe", "ReferenceShift", "adjust", "evaluate_sts", "load", "train"]

_HOMES = {
    "Recipe": "run",
    "ReferenceShift": "shift",
    "adjust": "shift",
    "evaluate_sts": "sts",
    "load": "shift",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The paper's studies, each one command: what is measured here, beside what the paper reports."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whymatch.studies.setting import Result, Setting

# In the order of the paper, which is that of the report.
NAMES = ("performance", "accuracy", "distribution", "cumulative", "pos", "layers", "models", "failures")


def study(name: str) -> Any:
    """A study's module: ``run`` runs it, and ``DEPENDS`` names what its result depends on beside the models."""
    if name not in NAMES:
        raise ValueError(f"there is no study {name!r}; choose one of {', '.join(NAMES)}, or all")
    return import_module(f"whymatch.studies.{name}")


def check(names: Iterable[str], setting: Setting) -> None:
    """An error now rather than after an hour, if one of the studies cannot be run."""
    if any("tagger" in study(name).DEPENDS for name in names):
        _ = setting.tagger
    if "failures" in names:
        study("failures").check(setting)


def run(name: str, setting: Setting) -> Result:
    """Run one study, or read what it found if it has been run with this setting before."""
    return setting.once(name, study(name))

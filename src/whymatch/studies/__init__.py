"""The paper's studies, each one command: what is measured here, beside what the paper reports."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whymatch.studies.setting import Result, Setting

# In the order of the paper, which is that of the report.
NAMES = ("performance", "accuracy", "distribution", "cumulative", "pos", "layers", "models", "failures")


def run(name: str, setting: Setting) -> Result:
    """Run one study, or read what it found if it has been run with this setting before."""
    if name not in NAMES:
        raise ValueError(f"there is no study {name!r}; choose one of {', '.join(NAMES)}, or all")
    return setting.once(name, import_module(f"whymatch.studies.{name}").run)

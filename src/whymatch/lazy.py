"""Names that are imported when they are first used: torch alone takes seconds to load."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers read it: this file is a part of ``import whymatch``, which takes no time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def attributes(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are imported from ``homes`` on first use."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return get, names

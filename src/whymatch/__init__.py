"""Why does this encoder say these two texts match? Its score as an exact sum over pairs of tokens."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from whymatch.callables import decompose_callable
    from whymatch.decomposition import Decomposition, ToleranceWarning
    from whymatch.explainer import Explainer
    from whymatch.explanation import Explanation

__all__ = ["Decomposition", "Explainer", "Explanation", "ToleranceWarning", "__version__", "decompose_callable"]

# Names are imported when they are used: torch takes seconds to load, and not everyone who imports this needs it.
_HOMES = {
    "Decomposition": "whymatch.decomposition",
    "Explainer": "whymatch.explainer",
    "Explanation": "whymatch.explanation",
    "ToleranceWarning": "whymatch.decomposition",
    "decompose_callable": "whymatch.callables",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

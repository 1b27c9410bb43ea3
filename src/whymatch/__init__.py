"""Why does this encoder say these two texts match? Its score as an exact sum over pairs of tokens."""

from typing import TYPE_CHECKING

from whymatch import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from whymatch.callables import decompose_callable
    from whymatch.decomposition import Decomposition, ToleranceWarning
    from whymatch.explainer import Explainer
    from whymatch.explanation import Explanation

__all__ = ["Decomposition", "Explainer", "Explanation", "ToleranceWarning", "__version__", "decompose_callable"]

__getattr__, __dir__ = lazy.attributes(
    __name__,
    {
        "Decomposition": "decomposition",
        "Explainer": "explainer",
        "Explanation": "explanation",
        "ToleranceWarning": "decomposition",
        "decompose_callable": "callables",
    },
)

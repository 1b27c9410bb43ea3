"""Why does this encoder say these two texts match? Its score as an exact sum over pairs of tokens."""

from whymatch import lazy

__version__ = "0.2.0"

TYPE_CHECKING = False  # as type checkers read it; importing typing takes as long as all the rest

if TYPE_CHECKING:
    from whymatch.callables import decompose_callable
    from whymatch.contrast import Background, Contrast
    from whymatch.decomposition import Decomposition
    from whymatch.endpoints import endpoint
    from whymatch.explainer import Explainer
    from whymatch.explanation import Explanation
    from whymatch.highlights import Highlight, Highlights
    from whymatch.ranking import Hit, Ranking
    from whymatch.settings import ToleranceWarning

__all__ = [
    "Background",
    "Contrast",
    "Decomposition",
    "Explainer",
    "Explanation",
    "Highlight",
    "Highlights",
    "Hit",
    "Ranking",
    "ToleranceWarning",
    "__version__",
    "decompose_callable",
    "endpoint",
]

__getattr__, __dir__ = lazy.attributes(
    __name__,
    {
        "Background": "whymatch.contrast",
        "Contrast": "whymatch.contrast",
        "Decomposition": "whymatch.decomposition",
        "Explainer": "whymatch.explainer",
        "Explanation": "whymatch.explanation",
        "Highlight": "whymatch.highlights",
        "Highlights": "whymatch.highlights",
        "Hit": "whymatch.ranking",
        "Ranking": "whymatch.ranking",
        "ToleranceWarning": "whymatch.settings",
        "decompose_callable": "whymatch.callables",
        "endpoint": "whymatch.endpoints",
    },
)

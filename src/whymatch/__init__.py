"""Why does this encoder say these two texts match? Its score as an exact sum over pairs of tokens."""

from whymatch import lazy

__version__ = "0.2.0"

TYPE_CHECKING = False  # as type checkers read it; importing typing takes as long as all the rest

if TYPE_CHECKING:
    from whymatch.callables import decompose_callable
    from whymatch.encoders.endpoints import endpoint
    from whymatch.explainer import Explainer
    from whymatch.results.contrast import Background, Contrast
    from whymatch.results.decomposition import Decomposition
    from whymatch.results.explanation import Explanation
    from whymatch.results.highlights import Highlight, Highlights
    from whymatch.results.ranking import Hit, Ranking
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
        "Background": "whymatch.results.contrast",
        "Contrast": "whymatch.results.contrast",
        "Decomposition": "whymatch.results.decomposition",
        "Explainer": "whymatch.explainer",
        "Explanation": "whymatch.results.explanation",
        "Highlight": "whymatch.results.highlights",
        "Highlights": "whymatch.results.highlights",
        "Hit": "whymatch.results.ranking",
        "Ranking": "whymatch.results.ranking",
        "ToleranceWarning": "whymatch.settings",
        "decompose_callable": "whymatch.callables",
        "endpoint": "whymatch.encoders.endpoints",
    },
)

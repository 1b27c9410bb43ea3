"""Many texts: tables of them, batches of pairs, indexes that explain their hits, clusters."""

from typing import TYPE_CHECKING

from whymatch import lazy

if TYPE_CHECKING:
    from whymatch.corpus.batch import run_batch
    from whymatch.corpus.index import Index
    from whymatch.corpus.pairs import read_documents, read_scored_pairs
    from whymatch.corpus.ray import Ray

__all__ = ["Index", "Ray", "read_documents", "read_scored_pairs", "run_batch"]

__getattr__, __dir__ = lazy.attributes(
    __name__,
    {
        "Index": "whymatch.corpus.index",
        "Ray": "whymatch.corpus.ray",
        "read_documents": "whymatch.corpus.pairs",
        "read_scored_pairs": "whymatch.corpus.pairs",
        "run_batch": "whymatch.corpus.batch",
    },
)


def require_ray() -> None:
    """Raise an error that names the extra if Ray is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(f"a cluster needs Ray ({error}): pip install 'whymatch[ray]'") from None

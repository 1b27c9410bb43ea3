"""Tables for pandas, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def require_pandas() -> Any:
    """Import pandas; raise an ImportError that says what to install where it is missing."""
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas needs pandas: pip install 'whymatch[pandas]'") from None
    return pandas


def to_frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Any:
    """Make a DataFrame of rows; it has its columns also where there are no rows."""
    return require_pandas().DataFrame(rows, columns=list(columns))

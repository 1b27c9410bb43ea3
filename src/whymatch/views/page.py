"""An explanation as one self-contained page (jinja2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader

from whymatch.views.colours import NEGATIVE, POSITIVE

if TYPE_CHECKING:
    from whymatch.explanation import Explanation

# Everything that comes from a text is escaped by the template engine, in markup and in the script's data alike.
_TEMPLATES = Environment(loader=PackageLoader("whymatch.views"), autoescape=True)


def page(why: Explanation) -> str:
    """The page: the two texts, the matrix, and what a token's partners gave it."""
    largest = float(np.abs(why.matrix).max(initial=0)) or 1.0
    payload: dict[str, Any] = {
        "matrix": [[round(value, 6) for value in row] for row in why.matrix.tolist()],
        "tokens": [why.tokens_a, why.tokens_b],
        "largest": largest,
    }
    return _TEMPLATES.get_template("page.html.j2").render(
        why=why, payload=payload, negative=NEGATIVE, positive=POSITIVE, enumerate=enumerate
    )

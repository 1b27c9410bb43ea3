"""The matrix as a heat map (matplotlib)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from whymatch.views.colours import NEGATIVE, POSITIVE, ZERO, ink, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whymatch.explanation import Explanation


def heatmap(why: Explanation) -> tuple[Figure, Axes]:
    """Texts a down, b across; colours centred on zero. Never shown, always returned."""
    # Not pyplot: it would keep every figure alive, and choose a window system for the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    rows, columns = why.matrix.shape
    cell = 0.55 if max(rows, columns) <= 16 else 0.32
    largest = float(np.abs(why.matrix).max(initial=0)) or 1.0
    figure = Figure(figsize=(2.6 + cell * columns, 2.0 + cell * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scale = LinearSegmentedColormap.from_list("signed", [np.array(c) / 255 for c in (NEGATIVE, ZERO, POSITIVE)])
    image = axes.imshow(why.matrix, cmap=scale, vmin=-largest, vmax=largest, aspect="equal")
    # A "$" in a token would start a formula.
    labels_a, labels_b = ([token.replace("$", r"\$") for token in side] for side in (why.tokens_a, why.tokens_b))
    turn: dict[str, Any] = {"rotation": 90} if columns > 16 else {"rotation": 45, "ha": "right"}
    axes.set_xticks(range(columns), labels_b, **turn)
    axes.set_yticks(range(rows), labels_a)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if rows * columns <= 256:
        for (i, j), value in np.ndenumerate(why.matrix):
            if abs(value) >= 0.05 * largest:
                colour = ink(shade(value, largest))
                axes.text(
                    j, i, re.sub(r"^(-?)0", r"\1", f"{value:.2f}"), ha="center", va="center", color=colour, fontsize=8
                )
    title = f"{why.similarity} {why.score:.4f}   error {why.error:.0e}\nlayer {why.layer}, {why.account}"
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the score")
    return figure, axes

"""The look of the studies' figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whymatch.files import written_aside
from whymatch.views.colours import NEGATIVE, POSITIVE, ZERO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whymatch import Explanation

# A scale that is read in order, light to dark, for layers; it stays readable without colour.
SEQUENCE = "viridis"
CELL = 0.27  # inches


def panels(count: int, width: float = 4.6, height: float = 3.4, across: int = 3) -> tuple[Figure, list[Axes]]:
    """So many axes in a figure of their own, which no window shows."""
    from matplotlib.figure import Figure

    columns = min(count, across)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    flat = list(axes.ravel())
    for extra in flat[count:]:
        extra.set_visible(False)
    for each in flat[:count]:
        each.spines[["top", "right"]].set_visible(False)
    return figure, flat[:count]


def save(figure: Figure, path: Path) -> None:
    """As SVG whose letters stay letters. Without a date and random names: the same figure is the same file."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "whymatch"}), written_aside(path) as aside:
        figure.savefig(aside, format="svg", metadata={"Date": None})


def colours(count: int) -> list[Any]:
    import matplotlib as mpl

    return [mpl.colormaps[SEQUENCE](value) for value in np.linspace(0.05, 0.85, max(count, 2))][:count]


def matrices(explanations: Sequence[Explanation], titles: Sequence[str], across: int = 3) -> Figure:
    """Heat maps beside each other, each on its own scale, centred on zero; in hundredths, in the cells."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    scale = LinearSegmentedColormap.from_list("signed", [np.array(c) / 255 for c in (NEGATIVE, ZERO, POSITIVE)])
    lines = [explanations[i : i + across] for i in range(0, len(explanations), across)]
    # Cells of one size in every panel, whatever its shape.
    heights = [1.3 + CELL * max(len(why.tokens_a) for why in line) for line in lines]
    columns = [[line[i] for line in lines if i < len(line)] for i in range(min(across, len(explanations)))]
    widths = [1.3 + CELL * max(len(why.tokens_b) for why in column) for column in columns]
    figure = Figure(figsize=(sum(widths), sum(heights)), layout="constrained")
    axes: Any = figure.subplots(
        len(lines), len(columns), squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": heights}
    )
    for extra in axes.ravel()[len(explanations) :]:
        extra.set_visible(False)
    for each, why, title in zip(axes.ravel(), explanations, titles, strict=False):
        largest = float(np.abs(why.matrix).max(initial=0)) or 1.0
        each.imshow(why.matrix, cmap=scale, vmin=-largest, vmax=largest)
        for (i, j), value in np.ndenumerate(why.matrix):
            colour = "white" if abs(value) > 0.6 * largest else "0.25"
            each.text(j, i, f"{round(100 * value)}", ha="center", va="center", fontsize=6, color=colour)
        each.set_xticks(
            range(len(why.tokens_b)), [t.replace("$", r"\$") for t in why.tokens_b], rotation=90, fontsize=8
        )
        each.set_yticks(range(len(why.tokens_a)), [t.replace("$", r"\$") for t in why.tokens_a], fontsize=8)
        each.tick_params(length=0)
        each.spines[:].set_visible(False)
        each.set_title(title, fontsize=8)
    return figure

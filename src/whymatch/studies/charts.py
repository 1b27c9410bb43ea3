"""The look of the studies' figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whymatch.files import replace_file
from whymatch.views.colours import NEGATIVE, POSITIVE, ZERO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whymatch import Explanation

# For layers: from dark to light, so that their order shows even without colour.
SEQUENCE = "viridis"
CELL = 0.27  # inches
LETTER = 0.07  # inches, of the labels of heat maps
NUMBERED = 400  # cells of a heat map; in a larger one, their numbers would be a blur


def panels(
    count: int, width: float = 4.6, height: float = 3.4, across: int = 3, same: bool | Literal["x", "y"] = False
) -> tuple[Figure, list[Axes]]:
    """Create a figure with so many axes, without a window; those that are compared have the ``same`` scales."""
    from matplotlib.figure import Figure

    columns = min(count, across)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    shared = {axis: same is True or same == axis for axis in "xy"}
    axes: Any = figure.subplots(rows, columns, squeeze=False, sharex=shared["x"], sharey=shared["y"])
    flat = list(axes.ravel())
    for extra in flat[count:]:
        extra.set_visible(False)
    for each in flat[:count]:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelbottom=True, labelleft=True)
    return figure, flat[:count]


def save(figure: Figure, path: Path) -> None:
    """Save a figure as SVG, its letters as text. Without a date and random names, equal figures are equal files."""
    import matplotlib as mpl

    if any(axes.get_label() == "<colorbar>" for axes in figure.axes):
        figure.draw_without_rendering()  # the layout of panels with a colour bar settles in a second pass only
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "whymatch"}), replace_file(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def colours(count: int) -> list[Any]:
    import matplotlib as mpl

    return [mpl.colormaps[SEQUENCE](value) for value in np.linspace(0.05, 0.85, max(count, 2))][:count]


def matrices(
    explanations: Sequence[Explanation], titles: Sequence[str], across: int = 3, beside: Sequence[Explanation] = ()
) -> Figure:
    """Draw heat maps side by side, with one scale around zero and its bar; numbers in the cells are hundredths.

    The scale is also that of explanations in other figures, which are compared with these (``beside``).
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    scale = LinearSegmentedColormap.from_list("signed", [np.array(c) / 255 for c in (NEGATIVE, ZERO, POSITIVE)])
    # All panels have cells of one size, and room for their labels and titles.
    sizes = [
        (
            max(0.5 + LETTER * _longest(why.tokens_a) + CELL * len(why.tokens_b), 0.2 + LETTER * len(title)),
            0.6 + LETTER * _longest(why.tokens_b) + CELL * len(why.tokens_a),
        )
        for why, title in zip(explanations, titles, strict=True)
    ]
    heights = [max(height for _, height in sizes[i : i + across]) for i in range(0, len(sizes), across)]
    widths = [max(width for width, _ in sizes[i::across]) for i in range(min(across, len(sizes)))]
    figure = Figure(figsize=(sum(widths) + 0.8, sum(heights)), layout="constrained")
    axes: Any = figure.subplots(
        len(heights), len(widths), squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": heights}
    )
    for extra in axes.ravel()[len(explanations) :]:
        extra.set_visible(False)
    shown = [*explanations, *beside]
    largest = max((float(np.abs(why.matrix).max(initial=0)) for why in shown), default=0.0) or 1.0
    for each, why, title in zip(axes.ravel(), explanations, titles, strict=False):
        drawn = each.imshow(why.matrix, cmap=scale, vmin=-largest, vmax=largest)
        for (i, j), value in np.ndenumerate(why.matrix) if why.matrix.size <= NUMBERED else ():
            colour = "white" if abs(value) > 0.6 * largest else "0.25"
            each.text(j, i, f"{round(100 * value)}", ha="center", va="center", fontsize=6, color=colour)
        each.set_xticks(
            range(len(why.tokens_b)), [t.replace("$", r"\$") for t in why.tokens_b], rotation=90, fontsize=8
        )
        each.set_yticks(range(len(why.tokens_a)), [t.replace("$", r"\$") for t in why.tokens_a], fontsize=8)
        each.tick_params(length=0)
        each.spines[:].set_visible(False)
        each.set_title(title, fontsize=8)
    bar = figure.colorbar(drawn, ax=axes, shrink=min(1.0, 2.5 / sum(heights)), aspect=25, pad=0.01)
    bar.set_label("part of the score", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    return figure


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels), default=0)

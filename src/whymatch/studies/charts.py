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

    figure.draw_without_rendering()  # the layout of panels with a colour bar settles in a second pass only
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "whymatch"}), replace_file(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def colours(count: int) -> list[Any]:
    import matplotlib as mpl

    return [mpl.colormaps[SEQUENCE](value) for value in np.linspace(0.05, 0.85, max(count, 2))][:count]


def matrices(explanations: Sequence[Explanation], titles: Sequence[str], across: int = 3) -> Figure:
    """Draw heat maps side by side, with one scale around zero and its bar; numbers in the cells are hundredths."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    scale = LinearSegmentedColormap.from_list("signed", [np.array(c) / 255 for c in (NEGATIVE, ZERO, POSITIVE)])
    lines = [explanations[i : i + across] for i in range(0, len(explanations), across)]
    # All panels have cells of one size.
    heights = [1.3 + CELL * max(len(why.tokens_a) for why in line) for line in lines]
    columns = [[line[i] for line in lines if i < len(line)] for i in range(min(across, len(explanations)))]
    widths = [1.3 + CELL * max(len(why.tokens_b) for why in column) for column in columns]
    figure = Figure(figsize=(sum(widths), sum(heights)), layout="constrained")
    axes: Any = figure.subplots(
        len(lines), len(columns), squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": heights}
    )
    for extra in axes.ravel()[len(explanations) :]:
        extra.set_visible(False)
    largest = max((float(np.abs(why.matrix).max(initial=0)) for why in explanations), default=0.0) or 1.0
    for each, why, title in zip(axes.ravel(), explanations, titles, strict=False):
        drawn = each.imshow(why.matrix, cmap=scale, vmin=-largest, vmax=largest)
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
    bar = figure.colorbar(drawn, ax=axes, shrink=min(1.0, 2.5 / sum(heights)), aspect=25, pad=0.01)
    bar.set_label("part of the score", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    return figure

"""The matrix as a heat map, and the texts with the links between them (matplotlib)."""

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
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = why.matrix.shape
    cell = 0.55 if max(rows, columns) <= 16 else 0.32
    largest = float(np.abs(why.matrix).max(initial=0)) or 1.0
    figure, axes = _figure(2.6 + cell * columns, 2.0 + cell * rows)
    scale = LinearSegmentedColormap.from_list("signed", [np.array(c) / 255 for c in (NEGATIVE, ZERO, POSITIVE)])
    image = axes.imshow(why.matrix, cmap=scale, vmin=-largest, vmax=largest, aspect="equal")
    turn: dict[str, Any] = {"rotation": 90} if columns > 16 else {"rotation": 45, "ha": "right"}
    axes.set_xticks(range(columns), [_plain(token) for token in why.tokens_b], **turn)
    axes.set_yticks(range(rows), [_plain(token) for token in why.tokens_a])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if rows * columns <= 256:
        for (i, j), value in np.ndenumerate(why.matrix):
            if abs(value) >= 0.05 * largest:
                number = re.sub(r"^(-?)0", r"\1", f"{value:.2f}")
                axes.text(j, i, number, ha="center", va="center", color=ink(shade(value, largest)), fontsize=8)
    axes.set_title(_title(why), fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the score")
    return figure, axes


def links(why: Explanation) -> tuple[Figure, Axes]:
    """The two texts above each other. The alignment's links are drawn in full, the next strongest pairs thinly."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    aligned = {(link.i, link.j) for link in why.align().links}
    drawn = [link for link in why.top(max(12, 3 * len(aligned))) if link.value] + [why.entry(i, j) for i, j in aligned]
    largest = max((abs(link.value) for link in drawn), default=0.0) or 1.0
    places = [_places(tokens) for tokens in (why.tokens_a, why.tokens_b)]
    width = max(end for _, end in places)
    figure, axes = _figure(max(5.0, 0.115 * width), 3.4)
    # The shorter text stands in the middle of the longer one.
    shifts = [(width - end) / 2 for _, end in places]
    totals = [why.matrix.sum(1), why.matrix.sum(0)]
    strongest = max((float(np.abs(total).max(initial=0)) for total in totals), default=0.0) or 1.0
    for side, (tokens, y) in enumerate(((why.tokens_a, 1.0), (why.tokens_b, 0.0))):
        for place, token, total in zip(places[side][0], tokens, totals[side], strict=True):
            colour = shade(float(total), strongest)
            box = {"boxstyle": "round,pad=0.25", "facecolor": np.array(colour) / 255, "edgecolor": "none"}
            axes.text(
                place + shifts[side],
                y,
                _plain(token),
                ha="center",
                va="center",
                color=ink(colour),
                fontsize=9,
                bbox=box,
            )
    for link in sorted(dict.fromkeys(drawn), key=lambda link: abs(link.value)):
        strong = (link.i, link.j) in aligned
        start, end = places[0][0][link.i] + shifts[0], places[1][0][link.j] + shifts[1]
        curve = Path([(start, 0.9), (start, 0.5), (end, 0.5), (end, 0.1)], [Path.MOVETO] + [Path.CURVE4] * 3)
        edge = np.array(POSITIVE if link.value > 0 else NEGATIVE) / 255
        thickness = (0.8 + 6 * abs(link.value) / largest) if strong else 0.3 + 3 * abs(link.value) / largest
        patch = PathPatch(curve, fill=False, edgecolor=edge, linewidth=thickness, alpha=0.9 if strong else 0.3)
        if link.value < 0:
            patch.set_linestyle((0, (3, 2)))  # told from the positive ones without colour too
        axes.add_patch(patch)
    axes.set_xlim(-3, width + 3)
    axes.set_ylim(-0.2, 1.2)
    axes.set_axis_off()
    share = f"{why.align().share:.0%} of it in the strong links"
    axes.set_title(f"{_title(why)}\n{share}, dashed lowers it", fontsize=10)
    return figure, axes


KINDS = {"heatmap": heatmap, "links": links}


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    # Not pyplot: it would keep every figure alive, and choose a window system for the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _title(why: Explanation) -> str:
    return f"{why.similarity} {why.score:.4f}   error {why.error:.0e}\nlayer {why.layer}, {why.account}"


def _plain(token: str, longest: int = 24) -> str:
    """A label on one line; a "$" would start a formula."""
    line = " ".join(token.split()) or token
    return (line if len(line) <= longest else line[: longest - 1] + "…").replace("$", r"\$")


def _places(tokens: tuple[str, ...]) -> tuple[list[float], float]:
    """Where the middle of each token stands on a line of text, in letters, and where the line ends."""
    middles, end = [], 0.0
    for token in tokens:
        size = max(2.0, len(_plain(token)) * 1.05)
        middles.append(end + size / 2)
        end += size + 1.6
    return middles, end - 1.6

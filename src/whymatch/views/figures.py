"""Figures: matrices, links between texts, passages, contrasts, and layers (matplotlib, the extra ``plot``).

Each function returns ``(figure, axes)``, shows nothing by itself, and draws into ``ax`` if one is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whymatch.views.colours import LINES, NEGATIVE, POSITIVE, ZERO, ink, shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from whymatch.results.contrast import Contrast
    from whymatch.results.explanation import Explanation
    from whymatch.results.highlights import Highlights


TOP = 30  # rows, and columns, of a heat map of about a foot
LINE = 110  # letters of a line of words of that length


def require_matplotlib() -> None:
    """Raise an ImportError that says what to install, if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'whymatch[plot]'") from None


def heatmap(why: Explanation, ax: Axes | None = None, top: int | None = None) -> tuple[Figure, Axes]:
    """Draw the matrix, text a down and text b across, in colours centred on zero.

    Args:
        why: the explanation.
        ax: where to draw; None makes a figure.
        top: the most rows, and the most columns, that are drawn: those that matter most, in their order. None is as
            many as a figure has room for.
    """
    require_matplotlib()
    down, across = _strongest(why, (top or TOP, top or TOP))
    matrix = why.matrix[np.ix_(down, across)]
    rows, columns = matrix.shape
    cell = 0.55 if max(rows, columns) <= 16 else 0.32
    largest = float(np.abs(why.matrix).max(initial=0)) or 1.0
    figure, axes = _figure(2.6 + cell * columns, 2.0 + cell * rows, ax)
    image = axes.imshow(matrix, cmap=_signed(), vmin=-largest, vmax=largest, aspect="equal")
    turn: dict[str, Any] = {"rotation": 90} if columns > 16 else {"rotation": 45, "ha": "right"}
    axes.set_xticks(range(columns), [_label(why.tokens_b[j]) for j in across], **turn)
    axes.set_yticks(range(rows), [_label(why.tokens_a[i]) for i in down])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if rows * columns <= 256:
        digits = 2 if largest >= 0.2 else 3  # small values would all be .00
        for (i, j), value in np.ndenumerate(matrix):
            if abs(value) >= 0.05 * largest:
                number = re.sub(r"^(-?)0", r"\1", f"{value:.{digits}f}").replace("-", "−")
                axes.text(j, i, number, ha="center", va="center", color=ink(shade(value, largest)), fontsize=8)
    axes.set_title(_title(why, down, across), fontsize=10)
    cells = f"what a pair of {why.unit} adds to the {why.similarity}"
    label = cells if why.sums_to_score else "mean over the tokens of two words"
    figure.colorbar(image, ax=axes, shrink=0.8, label=label)
    return figure, axes


def links(why: Explanation, ax: Axes | None = None, top: int | None = None) -> tuple[Figure, Axes]:
    """Draw one text above the other, with bold links for the alignment and thin ones for the next strongest pairs.

    Args:
        why: the explanation.
        ax: where to draw; None makes a figure.
        top: the most tokens of a text that are drawn: those that matter most, in their order. None is as many as a
            line has room for.
    """
    require_matplotlib()
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    kept = _strongest(why, (_fitting(why, 0), _fitting(why, 1)) if top is None else (top, top))
    numbers = [{token: place for place, token in enumerate(side)} for side in kept]
    aligned = {(link.i, link.j) for link in why.align().links if link.i in numbers[0] and link.j in numbers[1]}
    weights = np.abs(why.matrix[np.ix_(*kept)])
    order = np.argsort(-weights, axis=None, kind="stable")[: max(12, 3 * len(aligned))]
    strong = {(kept[0][n // len(kept[1])], kept[1][n % len(kept[1])]) for n in order.tolist()}
    drawn = [link for link in (why.entry(i, j) for i, j in sorted(strong | aligned)) if link.value]
    largest = max((abs(link.value) for link in drawn), default=0.0) or 1.0
    tokens = [[side[n] for n in side_kept] for side, side_kept in zip((why.tokens_a, why.tokens_b), kept, strict=True)]
    places = [_places(line) for line in tokens]
    width = max(end for _, end in places)
    figure, axes = _figure(max(5.0, 0.115 * width), 3.4, ax)
    # The shorter text is centred below or above the longer one.
    shifts = [(width - end) / 2 for _, end in places]
    totals = [why.matrix.sum(1)[kept[0]], why.matrix.sum(0)[kept[1]]]  # with all of the other text, drawn or not
    strongest = max((float(np.abs(total).max(initial=0)) for total in totals), default=0.0) or 1.0
    for side, y in enumerate((1.0, 0.0)):
        for place, token, total in zip(places[side][0], tokens[side], totals[side], strict=True):
            x, colour = place + shifts[side], shade(float(total), strongest)
            box = {"boxstyle": "round,pad=0.25", "facecolor": np.array(colour) / 255, "edgecolor": "none"}
            axes.text(x, y, _label(token), ha="center", va="center", color=ink(colour), fontsize=9, bbox=box)
    for link in sorted(drawn, key=lambda link: abs(link.value)):
        bold = (link.i, link.j) in aligned
        start = places[0][0][numbers[0][link.i]] + shifts[0]
        end = places[1][0][numbers[1][link.j]] + shifts[1]
        curve = Path([(start, 0.9), (start, 0.5), (end, 0.5), (end, 0.1)], [Path.MOVETO] + [Path.CURVE4] * 3)
        edge = np.array(POSITIVE if link.value > 0 else NEGATIVE) / 255
        thickness = (0.8 + 6 * abs(link.value) / largest) if bold else 0.3 + 3 * abs(link.value) / largest
        patch = PathPatch(curve, fill=False, edgecolor=edge, linewidth=thickness, alpha=0.9 if bold else 0.3)
        if link.value < 0:
            patch.set_linestyle((0, (3, 2)))  # so that it differs from a positive one without colour too
        axes.add_patch(patch)
    axes.set_xlim(-3, width + 3)
    axes.set_ylim(-0.2, 1.2)
    axes.set_axis_off()
    bold_sum = sum(float(why.matrix[place]) for place in aligned)
    legend = f"the bold links add {bold_sum:+.3f} of it; dashed links lower it"
    axes.set_title(f"{_title(why, *kept)}\n{legend}", fontsize=10)
    return figure, axes


KINDS = {"heatmap": heatmap, "links": links}


def contrast(contrast: Contrast, ax: Axes | None = None, top: int | None = None) -> tuple[Figure, Axes]:
    """Draw what each of the query's words says for the first document (to the right) or for the second (to the left).

    Args:
        contrast: why one document scores higher than another.
        ax: where to draw; None makes a figure.
        top: only so many of the words, those that say most, in their order; the others are one bar.
    """
    require_matplotlib()
    values = np.asarray(contrast.values)
    kept = _largest(np.abs(values), len(values) if top is None else top)
    names = [_label(contrast.parts[i].text or "(reference)") for i in kept]
    shown = values[kept]
    if len(kept) < len(values):
        names.append(f"the other {len(values) - len(kept)}")
        shown = np.append(shown, values.sum() - shown.sum())
    figure, axes = _figure(6.4, 2.0 + 0.28 * len(names), ax)
    largest = float(np.abs(shown).max(initial=0)) or 1.0
    colours = [np.array(POSITIVE if value > 0 else NEGATIVE) / 255 for value in shown]
    axes.barh(range(len(names)), shown, color=colours, height=0.72)
    for row, value in enumerate(shown):
        side = (
            {"ha": "left", "x": value + 0.02 * largest} if value >= 0 else {"ha": "right", "x": value - 0.02 * largest}
        )
        axes.text(y=row, s=f"{value:+.3f}".replace("-", "−"), va="center", fontsize=8, **side)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(-1.25 * largest, 1.25 * largest)
    axes.axvline(0, color="0.4", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    # Titles of documents may be long: each has a line of its own.
    first, second = _label(contrast.name_a, 48), _label(contrast.name_b, 48)
    axes.set_xlabel(f"← for {second}\nfor {first} →", fontsize=9)
    axes.set_title(
        f"{_label(contrast.query, 64)}\n{contrast.score_a:.4f}  {first}\n− {contrast.score_b:.4f}  {second}\n"
        f"= {contrast.difference:+.4f}, the sum of the bars, error {contrast.error:.0e}",
        fontsize=9,
    )
    return figure, axes


def passage(highlights: Highlights, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """Draw a text as it is written, its spans coloured by what they add to the score; what was not read is crossed out.

    Args:
        highlights: the text and its spans.
        ax: where to draw; None makes a figure as high as the text is long.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure as PlainFigure
    from matplotlib.font_manager import FontProperties
    from matplotlib.patches import Rectangle

    font, high = FontProperties(size=10), 17.0  # points
    largest = max((abs(span.score) for span in highlights.in_text), default=0.0) or 1.0
    width = 7.0 * 72 - 12 if ax is None else ax.get_window_extent().width / ax.figure.dpi * 72
    fine = 10  # pixels of a point, so that letters are measured as they are and not as they fit a screen
    canvas: Any = FigureCanvasAgg(PlainFigure(dpi=72 * fine))  # parts of which have no types
    renderer = canvas.get_renderer()

    def measure(text: str) -> float:
        """The width in points; between bars, since a space at an end would not count."""
        both, bars = (renderer.get_text_width_height_descent(each, font, False)[0] for each in (f"|{text}|", "||"))
        return float(1.02 * (both - bars) / fine)

    placed = list(_lay_out(_pieces(highlights), width - 4, measure))
    lines = 1 + max((line for line, *_ in placed), default=0)
    figure, axes = _figure(7.0, 1.3 + lines * high / 72, ax)
    for line, x, size, text, score, read in placed:
        colour = shade(0.0 if score is None else score, largest)
        if score is not None:
            box = Rectangle((x - 0.5, line * high), size + 1, high - 2, facecolor=np.array(colour) / 255, linewidth=0)
            axes.add_patch(box)
        ink_of = ink(colour) if read else "0.45"
        axes.text(x, (line + 0.45) * high, _label(text, len(text) + 1), va="center", color=ink_of, fontproperties=font)
        if not read and text.strip():
            axes.plot([x, x + size], [(line + 0.45) * high] * 2, color="0.45", linewidth=0.8)
    axes.set_xlim(0, width)
    axes.set_ylim(lines * high, 0)
    axes.set_axis_off()
    inside = sum(span.score for span in highlights.in_text)
    rest = highlights.score - inside
    axes.set_title(
        f"score {highlights.score:.4f} = {highlights.unit} {inside:+.4f}, the rest {rest:+.4f}; "
        f"error {highlights.error:.0e}",
        fontsize=10,
    )
    colours = ScalarMappable(Normalize(-largest, largest), _signed())
    label = f"what one of the {highlights.unit} adds"
    figure.colorbar(colours, ax=axes, orientation="horizontal", shrink=0.4, aspect=30, pad=0.02, label=label)
    return figure, axes


def layer_sweep(explanations: Sequence[Explanation], ax: Axes | None = None, top: int = 6) -> tuple[Figure, Axes]:
    """Draw how the explanation of one pair changes with the layer: a line for each of the strongest pairs of words.

    All other pairs are one more line, so that at every layer the lines sum to the score.

    Args:
        explanations: of the same two texts by the same model, each at another layer:
            ``[explainer.at_layer(layer).explain(a, b) for layer in range(explainer.num_layers + 1)]``.
        ax: where to draw; None makes a figure.
        top: how many pairs have a line of their own.
    """
    require_matplotlib()
    if len(explanations) < 2:
        raise ValueError("a sweep needs explanations at two layers or more; explainer.at_layer(l) explains at layer l")
    words = [why.words() if "token" in why.units and why.sums_to_score else why for why in explanations]
    words.sort(key=lambda why: why.layer)
    first = words[0]
    for why in words[1:]:
        if (why.tokens_a, why.tokens_b, why.model) != (first.tokens_a, first.tokens_b, first.model):
            raise ValueError("a sweep is of one pair and one model; these explanations have others")
    layers = [why.layer for why in words]
    if len(set(layers)) < len(layers):
        raise ValueError(f"a sweep has one explanation for each layer; given are layers {layers}")
    cube = np.stack([why.matrix for why in words])  # (layers, rows, columns)
    strength = np.abs(cube).max(0)
    order = np.argsort(-strength, axis=None, kind="stable")[:top]
    places = [tuple(int(n) for n in np.unravel_index(place, strength.shape)) for place in order]
    figure, axes = _figure(7.0, 4.2, ax)
    left = cube.sum((1, 2)).astype(float)
    for number, (i, j) in enumerate(places):
        colour, marker = LINES[number % len(LINES)], "osD^vPX*"[number % 8]
        values = cube[:, i, j]
        left = left - values
        label = f"{_label(first.tokens_a[i], 16)} – {_label(first.tokens_b[j], 16)}"
        axes.plot(layers, values, color=np.array(colour) / 255, marker=marker, markersize=5, label=label)
    axes.plot(layers, left, color="0.5", linestyle="--", marker=".", label="all other pairs")
    axes.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xticks(layers)
    axes.set_xlabel("layer at which the words are taken (0 is the input)")
    axes.set_ylabel(f"what a pair adds to the {first.similarity}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    worst = max(why.error for why in words)
    axes.set_title(
        f"{first.similarity} {first.score:.4f}: the lines sum to it at every layer, error at most {worst:.0e}",
        fontsize=10,
    )
    return figure, axes


def _pieces(highlights: Highlights) -> Iterator[tuple[str, float | None, bool]]:
    """Cut a text at its spans: (text, score or None, whether it was read), spans divided at their spaces."""
    end = 0
    for span in sorted(highlights.in_text):
        yield from ((part, None, True) for part in re.split(r"(\s+)", highlights.text[end : span.start]) if part)
        yield from (
            (part, span.score, True) for part in re.split(r"(\s+)", highlights.text[span.start : span.end]) if part
        )
        end = span.end
    yield from ((part, None, True) for part in re.split(r"(\s+)", highlights.text[end : highlights.end]) if part)
    yield from ((part, None, False) for part in re.split(r"(\s+)", highlights.text[max(end, highlights.end) :]) if part)


def _lay_out(
    pieces: Iterator[tuple[str, float | None, bool]], width: float, measure: Any
) -> Iterator[tuple[int, float, float, str, float | None, bool]]:
    """Put pieces on lines of a width: (line, x, width, text, score, read)."""
    line, x = 0, 0.0
    before = " "
    for text, score, read in pieces:
        if text.isspace():
            if "\n" in text:
                line, x, before = line + 1, 0.0, " "
                continue
            text = " "
        size = measure(text)
        # What closes a phrase stays with its word; there is room for it in the margin.
        hangs = before != " " and len(text) <= 2 and not any(letter.isalnum() for letter in text)
        if x and x + size > width and text != " " and not hangs:
            line, x = line + 1, 0.0
        before = text
        if x or text != " ":
            yield line, x, size, text, score, read
            x += size


def _signed() -> Any:
    """The scale of colours from what lowers the score, over nothing, to what raises it."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("signed", [np.array(c) / 255 for c in (NEGATIVE, ZERO, POSITIVE)])


def _largest(weights: Any, count: int) -> list[int]:
    """The positions of the largest weights, in their order."""
    return sorted(np.argsort(-weights, kind="stable")[:count].tolist())


def _strongest(why: Explanation, counts: tuple[int, int]) -> tuple[list[int], list[int]]:
    """So many rows and columns: those that matter most, in their order."""
    magnitude = np.abs(why.matrix)
    return _largest(magnitude.sum(1), counts[0]), _largest(magnitude.sum(0), counts[1])


def _fitting(why: Explanation, side: int) -> int:
    """How many of the strongest tokens of a text a line has room for, at least one."""
    tokens, weights = (why.tokens_a, why.tokens_b)[side], np.abs(why.matrix).sum(1 - side)
    order = np.argsort(-weights, kind="stable").tolist()
    return next(
        (n - 1 for n in range(2, len(order) + 1) if _places([tokens[i] for i in order[:n]])[1] > LINE), len(order)
    )


def _figure(width: float, height: float, ax: Axes | None = None) -> tuple[Figure, Axes]:
    if ax is not None:
        figure: Any = ax.figure
        return figure, ax
    # Not by pyplot, which keeps every figure alive and chooses a window system for the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _title(why: Explanation, rows: list[int], columns: list[int]) -> str:
    """What a figure of so many rows and columns of an explanation is of."""
    title = f"{why.similarity} {why.score:.4f}   {why.accuracy}\n{why.derivation}, {why.account}"
    if (len(rows), len(columns)) == why.matrix.shape:
        return title
    return f"{title}\ndrawn: the strongest {len(rows)} of {len(why.a)} rows and {len(columns)} of {len(why.b)} columns"


def _label(token: str, longest: int = 24) -> str:
    """Put a token on one line, without a "$", which would begin a formula."""
    line = " ".join(token.split()) or token
    return (line if len(line) <= longest else line[: longest - 1] + "…").replace("$", r"\$")


def _places(tokens: Sequence[str]) -> tuple[list[float], float]:
    """Return the middle of each token on a line of text, and the line's end, both in letters."""
    middles, end = [], 0.0
    for token in tokens:
        size = max(2.0, len(_label(token)) * 1.05)
        middles.append(end + size / 2)
        end += size + 1.6
    return middles, end - 1.6

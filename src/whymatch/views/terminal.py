"""Explanations and rankings for a terminal of any width (rich)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from whymatch.views.colours import ink, shade
from whymatch.views.printable import printable

if TYPE_CHECKING:
    from whymatch.results.contrast import Contrast
    from whymatch.results.explanation import Explanation, Pair
    from whymatch.results.highlights import Highlights
    from whymatch.results.ranking import Ranking

CELL = 7  # the width of a column of the matrix
ROWS = 40  # the most rows of the matrix that are printed
LONG = 60  # words of a hit that are printed; of a longer one
SENTENCES = 3  # are, the strongest
FAINT = 0.1  # of the largest value: less has no colour


@dataclass(frozen=True)
class Report:
    """An explanation for rich to print: how the score adds up, the texts, the strongest pairs, and the matrix.

    Attributes:
        why: the explanation.
        top: how many of the strongest pairs to list.
        missing: show also what is missing from a perfect match.
    """

    why: Explanation
    top: int = 10
    missing: bool = False

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        why, width = self.why, options.max_width
        yield _account(why)
        yield Text()
        yield from _texts(why, (why.matrix.sum(1), why.matrix.sum(0)))
        if self.missing:
            yield Text()
            yield from _missing(why)
        for side, truncated in (("first", why.truncated_a), ("second", why.truncated_b)):
            if truncated:
                yield Text(f"The {side} text is longer than the model reads; its end was not read.", style="yellow")
        if self.top:
            yield Text()
            yield _strongest(why.top(self.top), width)
        yield Text()
        # Words where the tokens do not fit; the strongest rows and columns where words do not fit either.
        fits = _label_width(why, width) + CELL * len(why.tokens_b) <= width and len(why.tokens_a) <= ROWS
        words = None if fits or "token" not in why.units or not why.sums_to_score else why.words()
        if words is not None and len(words.tokens_b) < len(why.tokens_b):
            yield Text("by words:", style="dim")
            yield _matrix(words, width)
        else:
            yield _matrix(why, width)


def ranking(ranking: Ranking) -> RenderableType:
    """Each hit, its words coloured by what they add to the score, and which of the query's words they answered.

    All hits have one scale of colours, so that a weak hit looks weak.
    """
    every = [hit.highlights() for hit in ranking]
    largest = _largest_span(*every)
    parts: list[RenderableType] = [
        Text(f"best {len(ranking)} of {ranking.searched} for: {printable(ranking.query)}", style="bold"),
        _legend(largest),
    ]
    for hit, highlights in zip(ranking, every, strict=True):
        reasons = (
            f"{fit(a.word, 40)} {a.total:+.3f}, of it {a.value:+.3f} with “{fit(a.query_word, 40)}”"
            for a in hit.answers(4)
        )
        name = "  ".join(printable(each) for each in (hit.title, hit.id) if each)
        parts += [
            Text(),
            Text(f"{hit.rank}. {hit.score:.4f}  {name}".rstrip(), style="bold"),
            _passage(highlights, hit.highlights("sentences"), largest),
            Text("; ".join(reasons), style="dim"),
        ]
    return Group(*parts)


def contrast(contrast: Contrast) -> RenderableType:
    """Which of the query's words decided, and the words of both documents."""
    a, b = printable(contrast.name_a), printable(contrast.name_b)
    largest = max((abs(value) for value in contrast.values), default=0.0) or 1.0
    decisive = ", ".join(f"{printable(share.word)} {share.value:+.3f}" for share in contrast.decisive())
    table = Table.grid(padding=(0, 1))
    for part, value, first, second in zip(
        contrast.parts, contrast.values, contrast.values_a, contrast.values_b, strict=True
    ):
        size = round(10 * abs(value) / largest)
        bar = ("█" * size).rjust(10) + "│" if value < 0 else " " * 10 + "│" + "█" * size
        table.add_row(
            Text(fit(part.text or "(reference)", 20), justify="right", style="" if part.end > part.start else "dim"),
            Text(bar.ljust(21), style="rgb({},{},{})".format(*shade(float(np.copysign(1, value)), 1))),
            Text(f"{value:+.3f}"),
            Text(f"{first:+.3f} against {second:+.3f}", style="dim"),
        )
    rows: list[RenderableType] = [
        Text(f"{a} against {b}, for: {printable(contrast.query)}", style="bold"),
        Text.assemble(
            (f"{contrast.difference:+.4f}", "bold"),
            f" = {contrast.score_a:.4f} − {contrast.score_b:.4f}, ",
            f"the sum of the query's words, error {contrast.error:.0e}",
        ),
        Text(f"decided by {decisive}" if decisive else "no word decided"),
        Text(),
        table,
        Text(),
    ]
    sides = [(name, side) for name, side in ((a, contrast.a), (b, contrast.b)) if side is not None]
    scale = _largest_span(*(side for _, side in sides))
    rows.append(_legend(scale))
    for (name, side), score in zip(sides, (contrast.score_a, contrast.score_b), strict=False):
        rows += [Text(f"{name}  {score:.4f}", style="bold"), _passage(side, None, scale)]
    return Group(*rows)


def highlights(highlights: Highlights) -> RenderableType:
    """A text, its spans coloured by what they add to the score, and the strongest of them."""
    largest = _largest_span(highlights)
    strongest = Table.grid(padding=(0, 1))
    for span in highlights.strongest(8):
        strongest.add_row(Text(f"{span.score:+.3f}"), Text(fit(span.text, 100)))
    inside = sum(span.score for span in highlights.in_text)
    others = f", what is not shown {highlights.left_out:+.4f}" if highlights.left_out else ""
    return Group(
        *([Text(f"for: {printable(highlights.query)}", style="bold")] if highlights.query else []),
        Text.assemble((f"score {highlights.score:.4f}", "bold"), f"  error {highlights.error:.0e}"),
        Text(f"{highlights.unit} {inside:+.4f}, what the model adds to the text {highlights.beside:+.4f}{others}"),
        _legend(largest),
        Text(),
        _passage(highlights, None, largest),
        Text(),
        strongest,
    )


def _largest_span(*every: Highlights) -> float:
    return max((abs(span.score) for each in every for span in each.in_text), default=0.0) or 1.0


def _legend(largest: float) -> Text:
    """What the colours mean."""
    text = Text.assemble(("colours: ", "dim"))
    for value in (-1.0, -0.5, 0.0, 0.5, 1.0):
        text.append(f" {value * largest:+.3f} ", _background(value, 1))
    return text.append(" added to the score", "dim")


def _passage(words: Highlights, sentences: Highlights | None, largest: float) -> Text:
    """A text with its words coloured; of a long one, where sentences are given, the strongest of these."""
    text, line, end = words.text, Text(), 0
    shown = [(0, len(text))]
    if sentences is not None and len(words.in_text) > LONG:
        best = sorted(sentences.strongest(SENTENCES))
        shown = [(span.start, span.end) for span in best]
    for low, high in shown:
        if low > end:
            line.append("… ", "dim")
        end = low
        for span in words.in_text:
            if span.start < end or span.end > high:
                continue
            line.append(printable(text[end : span.start]))
            line.append(printable(text[span.start : span.end]), _background(span.score, largest))
            end = span.end
        line.append(printable(text[end : min(high, words.end)]))
        end = high
        line.append(" ")
    if end < words.end:
        line.append("…", "dim")
    if words.unread:
        line.append(f" [not read by the model: {printable(words.unread)}]", "dim strike")
    return line


def fit(token: str, width: int) -> str:
    """Put a token on one line that is safe to print, and cut it to a width in cells."""
    line = printable(token)
    return line if cell_len(line) <= width else set_cell_size(line, width - 1).rstrip() + "…"


def _account(why: Explanation) -> Text:
    positive, negative = why.matrix[why.matrix > 0].sum(), why.matrix[why.matrix < 0].sum()
    text = Text.assemble((f"score {why.score:.4f}", "bold"), f"  {why.similarity}, {why.accuracy}\n")
    text.append(f"pairs {why.matrix.sum():+.4f}: {positive:+.4f} raise it, {negative:+.4f} lower it")
    if not why.settings.fold_reference:
        a, b = why.effects_b.sum(), why.effects_a.sum()
        text.append(f"\nreference a {a:+.4f}  b {b:+.4f}  both {why.constant:+.4f}")
    integrated = why.path in ("straight", "relay")
    nodes = f", {why.rule} with {why.nodes[0]} and {why.nodes[1]} nodes" if integrated else ""
    text.append(f"\n{printable(why.model)}, {printable(why.derivation)}{nodes}", "dim")
    if not why.sums_to_score:
        text.append(f"\n{why.account}", "yellow")
    return text


def _missing(why: Explanation) -> Iterator[Text]:
    """Render both texts, coloured by what each token lacks, and name the tokens that lack most."""
    missing = why.missing
    for name, tokens, values in zip(("first", "second"), (why.tokens_a, why.tokens_b), missing, strict=True):
        order = np.argsort(-values, kind="stable")[:5]
        most = ", ".join(f"{printable(tokens[i])} {values[i]:+.4f}" for i in order)
        yield Text(f"missing from the {name} text's match with itself: {values.sum():.4f}; most: {most}")
    yield from _texts(why, missing)


def _texts(why: Explanation, totals: tuple[np.ndarray, np.ndarray]) -> Iterator[Text]:
    """Render both texts, each token coloured by a value."""
    largest = max(float(np.abs(total).max(initial=0)) for total in totals) or 1.0
    for tokens, values in zip((why.tokens_a, why.tokens_b), totals, strict=True):
        line = Text()
        for token, value in zip(tokens, values, strict=True):
            line.append(printable(token), _background(value, largest))
            line.append(" ")
        yield line


def _strongest(pairs: list[Pair], width: int) -> Table:
    largest = max((abs(pair.value) for pair in pairs), default=0.0) or 1.0
    room = max(6, min(24, width // 4))
    table = Table.grid(padding=(0, 1))
    for pair in pairs:
        bar = "█" * max(1, round(room / 2 * abs(pair.value) / largest))
        colour = "rgb({},{},{})".format(*shade(np.copysign(1, pair.value), 1))
        table.add_row(
            Text(fit(pair.token_a, room), justify="right"),
            Text(fit(pair.token_b, room)),
            Text(f"{pair.value:+.4f}"),
            Text(bar, style=colour),
        )
    return table


def _matrix(why: Explanation, width: int) -> RenderableType:
    """Render every cell if all fit; otherwise the rows and columns with the largest sums, in their order."""
    label = _label_width(why, width)
    columns = _largest(np.abs(why.matrix).sum(0), max(1, (width - label) // CELL))
    rows = _largest(np.abs(why.matrix).sum(1), ROWS)
    largest = float(np.abs(why.matrix).max(initial=0)) or 1.0
    form = "+.3f" if largest < 9.9995 else "+.1f" if largest < 999.95 else "+.0e"
    lines = Text(no_wrap=True)
    lines.append(" " * label)
    for j in columns:
        name = fit(why.tokens_b[j], CELL - 1)
        lines.append(" " * (CELL - cell_len(name)) + name, "bold")
    for i in rows:
        lines.append("\n" + set_cell_size(fit(why.tokens_a[i], label), label), "bold")
        for j in columns:
            lines.append(" ")
            lines.append(f"{why.matrix[i, j]:{form}}".rjust(CELL - 1), _background(why.matrix[i, j], largest))
    if len(rows) == len(why.tokens_a) and len(columns) == len(why.tokens_b):
        return lines
    count = f"{len(rows)} of {len(why.tokens_a)} rows and {len(columns)} of {len(why.tokens_b)} columns are shown"
    return Group(lines, Text(count, style="dim"))


def _background(value: float, largest: float) -> str:
    """Return the style of a text on the colour of a value; of a value near zero, the terminal's own, light or dark."""
    if abs(value) < FAINT * largest:
        return ""
    colour = shade(float(value), largest)
    return "{} on rgb({},{},{})".format(ink(colour), *colour)


def _label_width(why: Explanation, width: int) -> int:
    return min(max((cell_len(printable(token)) for token in why.tokens_a), default=1), max(6, width // 5))


def _largest(weights: np.ndarray, count: int) -> list[int]:
    """Return the positions of the largest weights, in their order."""
    return sorted(np.argsort(-weights, kind="stable")[:count].tolist())

"""An explanation for a terminal of any width (rich)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from whymatch.views.colours import ink, shade

if TYPE_CHECKING:
    from whymatch.explanation import Explanation, Pair
    from whymatch.ranking import Ranking

CELL = 7  # the width of a column of the matrix
ROWS = 40


def report(why: Explanation, top: int, width: int) -> RenderableType:
    """The account of the score, the texts, the strongest pairs, and the matrix, or as much of it as fits."""
    parts: list[RenderableType] = [_account(why), Text(), *_texts(why)]
    for side, truncated in (("first", why.truncated_a), ("second", why.truncated_b)):
        if truncated:
            parts.append(Text(f"The {side} text is longer than the model reads; its end was cut off.", style="yellow"))
    if top:
        parts += [Text(), _strongest(why.top(top), width)]
    # Words where the tokens do not fit; the strongest rows and columns where words do not either.
    fits = _label_width(why, width) + CELL * len(why.tokens_b) <= width and len(why.tokens_a) <= ROWS
    words = None if fits or "token" not in why.units or not why.sums_to_score else why.words()
    if words is not None and len(words.tokens_b) < len(why.tokens_b):
        parts += [Text(), Text("by words:", style="dim"), _matrix(words, width)]
    else:
        parts += [Text(), _matrix(why, width)]
    return Group(*parts)


def _texts(why: Explanation) -> list[RenderableType]:
    """Both texts, each token on the colour of what it gives in total."""
    totals = why.matrix.sum(1), why.matrix.sum(0)
    largest = max(float(np.abs(total).max(initial=0)) for total in totals) or 1.0
    lines: list[RenderableType] = []
    for tokens, values in zip((why.tokens_a, why.tokens_b), totals, strict=True):
        line = Text()
        for token, value in zip(tokens, values, strict=True):
            colour = shade(float(value), largest)
            line.append(clean(token), "{} on rgb({},{},{})".format(ink(colour), *colour))
            line.append(" ")
        lines.append(line)
    return lines


def ranking(found: Ranking) -> RenderableType:
    """Each hit with its words on the colour of what they gave, and the query's words that the strongest answered."""
    parts: list[RenderableType] = [
        Text(f"best {len(found)} of {found.searched} for: {clean(found.query)}", style="bold")
    ]
    for hit in found:
        answers = hit.answers()
        largest = max((abs(answer.value) for answer in answers), default=0.0) or 1.0
        line, end = Text(), 0
        for answer in sorted(answers, key=lambda answer: answer.span):
            low, high = answer.span
            colour = shade(answer.value, largest)
            line.append(clean(hit.document[end:low]))
            line.append(clean(hit.document[low:high]), "{} on rgb({},{},{})".format(ink(colour), *colour))
            end = high
        line.append(clean(hit.document[end:]))
        why = ", ".join(f"{clean(a.word)} ← {clean(a.query_word)} {a.value:+.3f}" for a in answers[:4])
        parts += [Text(), Text(f"{hit.rank}. {hit.score:.4f}", style="bold"), line, Text(why, style="dim")]
    return Group(*parts)


def _account(why: Explanation) -> Text:
    positive, negative = why.matrix[why.matrix > 0].sum(), why.matrix[why.matrix < 0].sum()
    line = Text.assemble((f"score {why.score:.4f}", "bold"), f"  {why.similarity}, error {why.error:.1e}\n")
    line.append(f"pairs {why.matrix.sum():+.4f}: {positive:+.4f} raise it, {negative:+.4f} lower it")
    if not why.settings.fold_reference:
        effects = f"\nreference a {why.effects_b.sum():+.4f}  b {why.effects_a.sum():+.4f}  both {why.constant:+.4f}"
        line.append(effects)
    line.append(f"\n{why.model}, layer {why.layer}, {why.rule} with {why.nodes[0]} and {why.nodes[1]} nodes", "dim")
    if not why.sums_to_score:
        line.append(f"\n{why.account}", "yellow")
    return line


def _strongest(pairs: list[Pair], width: int) -> Table:
    largest = max((abs(pair.value) for pair in pairs), default=0.0) or 1.0
    room = max(6, min(24, width // 4))
    table = Table.grid(padding=(0, 1))
    for pair in pairs:
        bar = "█" * max(1, round(room / 2 * abs(pair.value) / largest))
        colour = "rgb({},{},{})".format(*shade(np.copysign(1, pair.value), 1))
        table.add_row(
            Text(clean(pair.token_a, room), justify="right"),
            Text(clean(pair.token_b, room)),
            Text(f"{pair.value:+.4f}"),
            Text(bar, style=colour),
        )
    return table


def _matrix(why: Explanation, width: int) -> RenderableType:
    """Every cell where they fit; else the columns, then the rows, that matter most, in their order."""
    cell, label = CELL, _label_width(why, width)
    columns = _strong(np.abs(why.matrix).sum(0), max(1, (width - label) // cell))
    rows = _strong(np.abs(why.matrix).sum(1), ROWS)
    largest = float(np.abs(why.matrix).max(initial=0)) or 1.0
    form = "+.3f" if largest < 9.9995 else "+.1f" if largest < 999.95 else "+.0e"
    lines = Text(no_wrap=True)
    lines.append(" " * label)
    for j in columns:
        name = clean(why.tokens_b[j], cell - 1)
        lines.append(" " * (cell - cell_len(name)) + name, "bold")
    for i in rows:
        lines.append("\n" + set_cell_size(clean(why.tokens_a[i], label), label), "bold")
        for j in columns:
            colour = shade(why.matrix[i, j], largest)
            lines.append(" ")
            style = "{} on rgb({},{},{})".format(ink(colour), *colour)
            lines.append(f"{why.matrix[i, j]:{form}}".rjust(cell - 1), style)
    hidden = f"{len(rows)} of {len(why.tokens_a)} rows, {len(columns)} of {len(why.tokens_b)} columns shown"
    whole = len(rows) == len(why.tokens_a) and len(columns) == len(why.tokens_b)
    return lines if whole else Group(lines, Text(hidden, style="dim"))


def _label_width(why: Explanation, width: int) -> int:
    return min(max((cell_len(clean(token)) for token in why.tokens_a), default=1), max(6, width // 5))


def _strong(weight: np.ndarray, count: int) -> list[int]:
    return sorted(np.argsort(-weight, kind="stable")[:count].tolist())


def clean(token: str, width: int | None = None) -> str:
    """A token on one line, without what could move the cursor, cut to a width in cells."""
    line = "".join(c if c.isprintable() else "�" for c in token)
    if width is not None and cell_len(line) > width:
        line = set_cell_size(line, width - 1).rstrip() + "…"
    return line

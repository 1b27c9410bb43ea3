"""One side of a score as highlighted spans of its text, whose numbers sum to the score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, overload

from whymatch.frames import to_frame
from whymatch.quadrature import Floats
from whymatch.reading.sides import Side
from whymatch.settings import check_top
from whymatch.words import group_spans, merge_spans, quote, sentence_spans, word_spans

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Unit: TypeAlias = Literal["tokens", "words", "sentences"]
UNITS = ("tokens", "words", "sentences")
COARSER = ("sentence", "span")  # the units of parts that words cannot be made of


class Highlight(NamedTuple):
    """A span of a text, and what it adds to the score.

    What the model adds to a text, its special tokens and its prompt, has no characters: its span is (0, 0).
    """

    start: int
    end: int
    score: float
    text: str


class Part(NamedTuple):
    """A span of a side's text, and the numbers of the side's parts that it is made of."""

    start: int
    end: int
    text: str
    members: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Highlights(Sequence[Highlight]):
    """The spans of one text, in their order, whose scores sum to the score of the pair.

    Attributes:
        text: the text.
        spans: its spans; what belongs to no character is the last of them, with the span (0, 0).
        score: what they sum to, up to ``error``: the score that the model itself gives the pair, or a part of it.
        unit: what a span is: "tokens", "words" or "sentences".
        end: how many characters of the text the model has read; fewer than the text has if it was cut off.
        left_out: the sum of the spans that were not kept.
        query: the other text of the pair, which the spans match or do not match.
    """

    text: str
    spans: tuple[Highlight, ...]
    score: float
    unit: str
    end: int
    left_out: float = 0.0
    query: str = ""

    @overload
    def __getitem__(self, i: int) -> Highlight: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[Highlight, ...]: ...
    def __getitem__(self, i: int | slice) -> Highlight | tuple[Highlight, ...]:
        return self.spans[i]

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Highlight]:
        return iter(self.spans)

    def __repr__(self) -> str:
        size = f"{len(self.spans)} {self.unit}"
        return f"Highlights({size}, score={self.score:.4f}, error={self.error:.1e}, {quote(self.text)})"

    @property
    def error(self) -> float:
        """The measured distance between the score and the sum of all spans, including those left out."""
        return abs(self.score - math.fsum([self.left_out, *(span.score for span in self.spans)]))

    @property
    def in_text(self) -> list[Highlight]:
        """The spans that have characters."""
        return [span for span in self.spans if span.end > span.start]

    @property
    def beside(self) -> float:
        """What belongs to no character: the special tokens' and the prompt's part of the score."""
        return math.fsum(span.score for span in self.spans if span.end <= span.start)

    @property
    def unread(self) -> str:
        """The end of the text that the model did not read."""
        return self.text[self.end :]

    def strongest(self, top: int) -> list[Highlight]:
        """Return the spans of the text with the largest absolute scores, strongest first."""
        return sorted(self.in_text, key=lambda span: -abs(span.score))[: check_top(top, what="spans", least=0)]

    def keep(self, top: int) -> Highlights:
        """Keep this many of the strongest spans, in the order of the text; ``left_out`` is the sum of the others."""
        kept = set(self.strongest(top))
        others = math.fsum(span.score for span in self.spans if span not in kept)
        spans = tuple(span for span in self.spans if span in kept)
        return replace(self, spans=spans, left_out=self.left_out + others)

    def to_list(self) -> list[dict[str, Any]]:
        """Return ``[{start, end, score}]``, as search engines return highlights."""
        return [{"start": span.start, "end": span.end, "score": span.score} for span in self.spans]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers."""
        return {
            "query": self.query,
            "text": self.text,
            "score": self.score,
            "error": self.error,
            "unit": self.unit,
            "read": self.end,
            "left_out": self.left_out,
            "highlights": [span._asdict() for span in self.spans],
        }

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each span."""
        return to_frame([span._asdict() for span in self.spans], list(Highlight._fields))

    def plot(self, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw the text as it is written, its spans coloured by what they add to the score."""
        from whymatch.views import figures

        return figures.passage(self, ax)

    def to_html(self) -> str:
        """Return a self-contained page."""
        from whymatch.views.page import highlights_page

        return highlights_page(self)

    def _repr_html_(self) -> str:
        from whymatch.views.page import frame, highlights_page

        return frame(highlights_page(self), 20)


def parts_of(side: Side, unit: str) -> list[Part]:
    """Divide a side into spans of its text; what has no characters is one part at the end, with the span (0, 0)."""
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r:.60} is not known; choose 'words', 'sentences' or 'tokens'")
    if side.boxes is not None:
        raise ValueError(f"{quote(side.text)} is a picture, and has no characters to highlight")
    if unit == "words" and side.unit in COARSER:
        raise ValueError(f"these are {side.unit}s, of which words cannot be made: zoom into one, or explain tokens")
    inside = set(side.content)
    numbers: Sequence[Sequence[int]] = [[i] for i in range(len(side))]
    if unit == "sentences" or (unit == "words" and side.unit == "token"):
        spans = word_spans(side.text) if unit == "words" else sentence_spans(side.text)
        # The template and the prompt are kept apart from the text around them.
        content = side.content
        offsets = [side.offsets[i] for i in content]
        groups = group_spans(len(side.text), offsets, spans, together=unit == "sentences")
        numbers = [[content[k] for k in group] for group in groups]
        numbers = [*numbers, *([i] for i in range(len(side)) if i not in inside)]
    parts: list[Part] = []
    rest: list[int] = []
    for members in numbers:
        low, high = merge_spans([side.offsets[i] for i in members])
        if high > low and members[0] in inside:
            parts.append(Part(low, high, side.text[low:high], tuple(members)))
        elif parts and low == high > 0 and members[0] in inside:
            # A space, to which some tokenizers give no width, goes with what stands before it.
            parts[-1] = parts[-1]._replace(members=(*parts[-1].members, *members))
        else:
            rest += members
    if rest:
        parts.append(Part(0, 0, " ".join(side.tokens[i] for i in sorted(rest)), tuple(sorted(rest))))
    return parts


def read_end(side: Side) -> int:
    """Return how many characters of a side's text the model has read."""
    if not side.truncated:
        return len(side.text)
    return max((side.offsets[i][1] for i in side.content), default=0)


def highlight_side(
    side: Side,
    totals: Floats,
    score: float,
    unit: str = "words",
    beside: float = 0.0,
    top: int | None = None,
    query: str = "",
) -> Highlights:
    """Write a score as a sum over spans of one side.

    Args:
        side: the side.
        totals: what each of its parts adds to the score.
        score: what they sum to.
        unit: "words", "sentences" or "tokens".
        beside: what belongs to none of its parts.
        top: keep only this many of the strongest spans, in the order of the text; None keeps all.
        query: the other text of the pair.
    """
    spans = []
    for low, high, text, members in parts_of(side, unit):
        extra = beside if high == low else 0.0
        spans.append(Highlight(low, high, math.fsum(totals[i] for i in members) + extra, text))
    if beside and not (spans and spans[-1].end == spans[-1].start):
        spans.append(Highlight(0, 0, beside, ""))
    highlights = Highlights(side.text, tuple(spans), score, unit, read_end(side), query=query)
    return highlights if top is None else highlights.keep(top)

"""One pair's score as a matrix over its tokens."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from whymatch.files import read_sealed_json, write_sealed_json
from whymatch.frames import require_pandas
from whymatch.quadrature import Floats
from whymatch.reading.pictures import Box, Image
from whymatch.reading.sides import Side, numbers
from whymatch.results.alignment import Alignment, Kind, align
from whymatch.results.highlights import COARSER, Highlight, Highlights, Part, Unit, highlight_side, parts_of
from whymatch.settings import MAXSIM, MOST_DIVISIONS, PATHLESS, SIMILARITIES, Settings, check_top, is_int
from whymatch.words import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT, VERSION = "whymatch.explanation", 2


class Pair(NamedTuple):
    """One entry of the matrix, named."""

    token_a: str
    token_b: str
    value: float
    i: int
    j: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """A similarity score written as a sum.

    ``score = matrix.sum() + a.effects.sum() + b.effects.sum() + constant``, up to ``error``. The effects and the
    constant are what the references have to do with the score; they are zero when the references are folded into
    the tokens.

    Attributes:
        score: what the model itself gives the pair.
        matrix: what each token of a with each token of b adds to the score.
        constant: the product of the two references.
        norms: ‖e(a)‖ ‖e(b)‖ in the score's unit: 1 for cosine.
        a, b: the two sides: their tokens, and how they were derived.
        settings: how the explanation was computed.
        reduce: "sum", or "mean" where tokens were averaged over words and do not sum to the score.
        deviations: the standard error of each entry, where contributions were sampled and it is known.
    """

    score: float
    matrix: Floats  # (tokens of a, tokens of b)
    constant: float
    norms: float
    a: Side
    b: Side
    settings: Settings
    reduce: Literal["sum", "mean"] = "sum"
    deviations: Floats | None = None  # (tokens of a, tokens of b)
    # Explains the pair again with the tokens of one side, "a" or "b"; saved results and copies do not have it.
    finer: Callable[[str], Explanation] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "finer": None}

    @property
    def attributed(self) -> float:
        """Everything that has been given to tokens and references."""
        # The order in which NumPy adds depends on the memory's layout; in one layout a saved result has the same sum.
        cells = np.ascontiguousarray(self.matrix).sum()
        return float(cells + self.a.effects.sum() + self.b.effects.sum() + self.constant)

    @property
    def error(self) -> float:
        """How far the sum is from the score that the model itself gives; measured."""
        return abs(self.score - self.attributed)

    @property
    def relative_error(self) -> float:
        """The error in the unit of the tolerance, which is the same for cosine and dot."""
        return self.error / self.norms

    @property
    def entry_errors(self) -> Floats:
        """How far each entry may be from its exact value, by the estimated errors of both sides; nan if unknown."""
        a, b = self.a, self.b
        if self.deviations is not None:
            return self.deviations
        if not (len(a.errors) and len(b.errors)):
            return np.full(self.matrix.shape, math.nan)
        return (np.outer(a.errors, b.sizes) + np.outer(a.sizes, b.errors)) * self.norms

    @property
    def entry_error(self) -> float:
        """How far any entry may be from its exact value: the largest of :attr:`entry_errors`.

        It is estimated while the derivatives are taken; nan for results of versions that did not estimate it.
        """
        return float(self.entry_errors.max(initial=0.0))

    @property
    def uncertainty(self) -> Floats:
        """The standard error of each entry that comes from sampling; zero where nothing was sampled.

        Sampling never changes the sum of the entries, only how it is divided among them.
        """
        return self.entry_errors if self.path == "shapley" else np.zeros(self.matrix.shape)

    @property
    def missing(self) -> tuple[Floats, Floats]:
        """What is missing from a perfect match, for each token of either text: unmatched tokens carry the loss.

        A text's similarity with itself, 1 for cosine, is also a sum over its tokens. Each number is a token's part of
        that sum minus its part of this score, so a text's numbers sum to its similarity with itself minus the score.
        """
        if not self.settings.fold_reference or not self.sums_to_score:
            raise ValueError(f"what is missing is known where the matrix sums to the score; here, {self.account}")
        if self.settings.similarity in MAXSIM:
            raise ValueError("a text of several vectors has others in each pair, and no perfect match to compare with")
        if not (len(self.a.own) and len(self.b.own)):
            raise ValueError(
                "one text was not decomposed, only its products with the other were found; decompose both: "
                "explainer.pair(*explainer.decompose([a, b]))"
            )
        return self.a.own - self.matrix.sum(1), self.b.own - self.matrix.sum(0)

    @property
    def sums_to_score(self) -> bool:
        """Whether the entries are parts of the score; means over words are not."""
        return self.reduce == "sum"

    @property
    def account(self) -> str:
        """A phrase for views: how the matrix relates to the score."""
        if not self.sums_to_score:
            return "means over words: they do not sum to the score"
        if not self.settings.fold_reference:
            return "the cells and the reference terms sum to the score"
        return "the cells sum to the score"

    @property
    def accuracy(self) -> str:
        """A phrase for views: the error of the sum, and of its entries."""
        entries = "" if math.isnan(self.entry_error) else f", entries within ±{self.entry_error:.0e}"
        if self.path == "shapley":
            largest = float(self.uncertainty.max(initial=0.0))
            entries = f", entries ±{largest:.0e} (standard error)" if largest else ", entries exact"
        return f"error {self.error:.0e}{entries}"

    @property
    def derivation(self) -> str:
        """How the entries were found, in words for a view."""
        if self.path == "shapley":
            left_out = "deleted" if self.settings.mask is None else f"replaced by {self.settings.mask!r}"
            return f"Shapley values from {self.nodes[0]:,} and {self.nodes[1]:,} embeddings, words {left_out}"
        if self.path == "none":
            return PATHLESS["none"]
        shared = ""
        if self.settings.special == "share":
            shared = f", what special tokens have is shared ({self.a.moved:.0%} and {self.b.moved:.0%} of the texts)"
        if self.settings.base and len(self.a.content) < len(self.a):
            shared = ", what stays without words is with the special tokens"
        if self.settings.divisions:
            shared += f", {self.settings.divisions} divisions"
        return f"layer {self.layer}, {self.path} path{shared}"

    @property
    def unit(self) -> str:
        """A word for views: what rows and columns stand for, in the plural."""
        a, b = (f"{unit}{'es' if unit.endswith('ch') else 's'}" for unit in self.units)
        return a if a == b else f"{a} and {b}"

    # Shortcuts to the settings and the sides.

    @property
    def model(self) -> str:
        return self.settings.model

    @property
    def layer(self) -> int:
        return self.settings.layer

    @property
    def path(self) -> str:
        return self.settings.path

    @property
    def rule(self) -> str:
        return self.settings.rule

    @property
    def reference(self) -> str:
        return self.settings.reference

    @property
    def similarity(self) -> str:
        return self.settings.similarity

    @property
    def nodes(self) -> tuple[int, int]:
        return self.a.nodes, self.b.nodes

    @property
    def modes(self) -> tuple[str, str]:
        return self.a.mode, self.b.mode

    @property
    def units(self) -> tuple[str, str]:
        return self.a.unit, self.b.unit

    @property
    def text_a(self) -> str:
        return self.a.text

    @property
    def text_b(self) -> str:
        return self.b.text

    @property
    def tokens_a(self) -> tuple[str, ...]:
        return self.a.tokens

    @property
    def tokens_b(self) -> tuple[str, ...]:
        return self.b.tokens

    @property
    def offsets_a(self) -> tuple[Span, ...]:
        return self.a.offsets

    @property
    def offsets_b(self) -> tuple[Span, ...]:
        return self.b.offsets

    @property
    def kinds_a(self) -> tuple[str, ...]:
        return self.a.kinds

    @property
    def kinds_b(self) -> tuple[str, ...]:
        return self.b.kinds

    @property
    def boxes_a(self) -> tuple[Box, ...] | None:
        return self.a.boxes

    @property
    def boxes_b(self) -> tuple[Box, ...] | None:
        return self.b.boxes

    @property
    def image_a(self) -> Image | None:
        return self.a.image

    @property
    def image_b(self) -> Image | None:
        return self.b.image

    @property
    def truncated_a(self) -> bool:
        return self.a.truncated

    @property
    def truncated_b(self) -> bool:
        return self.b.truncated

    @property
    def effects_a(self) -> Floats:
        return self.a.effects

    @property
    def effects_b(self) -> Floats:
        return self.b.effects

    def __repr__(self) -> str:
        size = f"{len(self.a)} × {len(self.b)} {self.unit}"
        note = "" if self.sums_to_score else ", means: does not sum to the score"
        where = self.path if self.path in PATHLESS else f"layer={self.layer}"
        return f"Explanation({size}, score={self.score:.4f}, error={self.error:.1e}, {where}{note})"

    def top(self, k: int = 10) -> list[Pair]:
        """Return the ``k`` strongest pairs, by absolute value."""
        order = np.argsort(-np.abs(self.matrix), axis=None, kind="stable")[: check_top(k, "k", "pairs", least=0)]
        places = zip(*(index.tolist() for index in np.unravel_index(order, self.matrix.shape)), strict=True)
        return [self.entry(i, j) for i, j in places]

    def entry(self, i: int, j: int) -> Pair:
        """Return one entry of the matrix, with its tokens."""
        return Pair(self.a.tokens[i], self.b.tokens[j], float(self.matrix[i, j]), int(i), int(j))

    def totals(self, side: Literal["a", "b"]) -> Floats:
        """Return what each part of a side adds to the score."""
        check_side(side)
        own = self.matrix.sum(1) + self.a.effects if side == "a" else self.matrix.sum(0) + self.b.effects
        return np.asarray(own, np.float64)

    def beside(self, side: Literal["a", "b"]) -> float:
        """Return what belongs to no part of a side: the reference terms of the other; zero when they are folded."""
        check_side(side)
        return float((self.b if side == "a" else self.a).effects.sum() + self.constant)

    def highlights(self, side: Literal["a", "b"] = "b", unit: Unit = "words", top: int | None = None) -> Highlights:
        """Return the spans of one text, in their order, with what each adds to the score; they sum to the score.

        Args:
            side: "a" or "b".
            unit: "words", "sentences" or "tokens".
            top: keep only this many of the strongest spans.
        """
        if not self.sums_to_score:
            raise ValueError("means over words do not sum to the score; call highlights on the tokens' explanation")
        totals = self.totals(side)
        own, other = (self.a, self.b) if side == "a" else (self.b, self.a)
        return highlight_side(own, totals, self.score, unit, self.beside(side), top, other.text)

    def zoom(
        self, sentence: int | tuple[int, int] | Highlight, side: Literal["a", "b"] = "b", unit: Unit = "tokens"
    ) -> Highlights:
        """Return the tokens, or words, of one sentence; they sum to the sentence's value.

        An explanation of sentences is computed again with the tokens of this side, by the explainer that made it.

        Args:
            sentence: its number, counted from 0, or its span (start, end).
            side: "a" or "b".
            unit: "tokens" or "words".
        """
        check_side(side)
        if not self.sums_to_score:
            raise ValueError("means over words do not sum to the score; call zoom on the tokens' explanation")
        own: Side = getattr(self, side)
        grouped = own.unit in COARSER
        part = _find_part(parts_of(own, "tokens" if grouped else "sentences"), sentence, own.text)
        value = math.fsum(self.totals(side)[list(part.members)])
        why = self
        if grouped:
            if self.finer is None:
                raise ValueError(
                    f"this explanation of {own.unit}s was saved or copied, and has no model to look closer with: "
                    "explain the pair again, with tokens"
                )
            why = self.finer(side)
        spans = why.highlights(side, unit)
        inside = [span for span in spans.in_text if part.start <= span.start and span.end <= part.end]
        return replace(spans, spans=tuple(inside), score=value)

    def align(self, kind: Kind = "mutual") -> Alignment:
        """Return the few links a person would draw, and the share of the score that they carry.

        ``"mutual"``: two that add more together, compared with what they add on average, than either does with any
        other; ``"assignment"``: each at most once; ``"flow"``: optimal transport of what the rows give to what the
        columns take.
        """
        return align(self, kind)

    def words(self, reduce: Literal["sum", "mean"] = "sum") -> Explanation:
        """Return the same explanation over words.

        ``"sum"`` keeps the sum; ``"mean"``, the choice of the paper, does not, and the result says so.
        """
        if reduce not in ("sum", "mean"):
            raise ValueError(f"reduce={reduce!r} is not known; choose 'sum' or 'mean'")
        if self.reduce == "mean":
            raise ValueError("these are means over words already; call words() on the tokens' explanation")
        (a, merge_a), (b, merge_b) = self.a.words(reduce), self.b.words(reduce)
        # The standard error of a sum is at most the sum of those of its terms.
        deviations = None if self.deviations is None else merge_a @ self.deviations @ merge_b.T
        return replace(self, matrix=merge_a @ self.matrix @ merge_b.T, a=a, b=b, reduce=reduce, deviations=deviations)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers, from which :meth:`from_dict` makes an equal explanation."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "score": self.score,
            "error": self.error,
            "entry_error": None if math.isnan(self.entry_error) else self.entry_error,
            "matrix": self.matrix.tolist(),
            "constant": self.constant,
            "norms": self.norms,
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "reduce": self.reduce,
            "deviations": None if self.deviations is None else self.deviations.tolist(),
            "settings": asdict(self.settings),
        }

    @classmethod
    def from_dict(cls, data: Any) -> Explanation:
        """Make an explanation from what :meth:`to_dict` returns, of this version or an earlier one."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            kind = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"not an explanation: its format is {kind!r:.60}, not {FORMAT!r}")
        version = data.get("version")
        if not is_int(version) or version not in (1, VERSION):
            raise ValueError(
                f"this explanation has format version {version!r:.60}, and this whymatch reads 1 to {VERSION}; "
                "use the whymatch that wrote it, or explain again"
            )
        try:
            return cls._from_dict(_upgrade(data) if version == 1 else data)
        except KeyError as error:
            raise ValueError(f"this explanation has no {error.args[0]!r}: it is incomplete") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"this explanation is damaged: {error}") from None

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        a, b = Side.from_dict(data["a"]), Side.from_dict(data["b"])
        if data["reduce"] not in ("sum", "mean"):
            raise ValueError(f"reduce is {data['reduce']!r:.60}, not 'sum' or 'mean'")
        if not _number(data["norms"], "norms") > 0:
            raise ValueError(f"norms is {data['norms']!r:.60}, which is not above 0")
        return cls(
            score=_number(data["score"], "score"),
            matrix=numbers(data["matrix"], "matrix", (len(a), len(b))),
            constant=_number(data["constant"], "constant"),
            norms=_number(data["norms"], "norms"),
            a=a,
            b=b,
            settings=_settings(data["settings"]),
            reduce=data["reduce"],
            deviations=None
            if data.get("deviations") is None
            else numbers(data["deviations"], "deviations", (len(a), len(b))),
        )

    def to_pandas(self) -> Any:
        """Return the matrix as a pandas DataFrame, with the parts of a as rows and those of b as columns."""
        return require_pandas().DataFrame(self.matrix, index=list(self.a.tokens), columns=list(self.b.tokens))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, exact to the last bit; the file is either complete or absent."""
        write_sealed_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Explanation:
        """Read what :meth:`save` wrote."""
        try:
            data = read_sealed_json(path)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{str(path)!r} is not JSON: {error}") from None
        except ValueError as error:
            raise ValueError(f"{str(path)!r} is damaged: {error}") from None
        return cls.from_dict(data)

    def plot(
        self, kind: Literal["heatmap", "links"] = "heatmap", ax: Axes | None = None, top: int | None = None
    ) -> tuple[Figure, Axes]:
        """Draw a heat map of the matrix, or the two texts above each other with the links between them.

        Args:
            kind: "heatmap" or "links".
            ax: where to draw; None makes a figure.
            top: the largest number of rows, and of columns, to draw: those that matter most, in order. None is as many
                as can be read in a figure about a foot wide.
        """
        from whymatch.views import figures

        if kind not in figures.KINDS:
            raise ValueError(f"kind={kind!r} is not known; choose {', '.join(map(repr, figures.KINDS))}")
        return figures.KINDS[kind](self, ax, None if top is None else check_top(top, what="rows and columns"))

    def to_html(self, begin: Literal["tokens", "words"] | None = None) -> str:
        """Return a self-contained page that loads nothing from the network.

        It begins with words, as they are written, or with tokens.
        """
        from whymatch.views.page import page

        return page([self], begin=begin)

    def widget(self, explainer: Any = None) -> Any:
        """Return a view for notebooks whose state Python reads and sets; the page itself where anywidget is missing.

        Args:
            explainer: what made this, a :class:`whymatch.Explainer`; with it the view can change layer and texts.
        """
        from whymatch.views.widget import show

        return show(self, explainer)

    def _repr_html_(self) -> str:
        """Show the page in a notebook, in its own frame, so that several can be shown."""
        from whymatch.views.page import frame, page

        return frame(page([self]))


def check_side(side: Any) -> None:
    if side not in ("a", "b"):
        raise ValueError(f"side={side!r:.60} is not known; choose 'a' or 'b'")


def _find_part(parts: list[Part], wanted: Any, text: str) -> Part:
    """Find a sentence by its number or its span."""
    sentences = [part for part in parts if part.end > part.start]
    if is_int(wanted):
        if not -len(sentences) <= wanted < len(sentences):
            raise IndexError(f"sentence {wanted} is out of range: {text!r:.60} has {len(sentences)}")
        return sentences[int(wanted)]
    try:
        start, end = int(wanted[0]), int(wanted[1])
    except (TypeError, ValueError, IndexError):
        raise TypeError(f"a sentence is its number or its span (start, end), not {wanted!r:.60}") from None
    for part in sentences:
        if (part.start, part.end) == (start, end):
            return part
    raise ValueError(f"({start}, {end}) is not the span of one of the {len(sentences)} sentences of {text!r:.60}")


def _upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Turn version 1, which had one flat list of fields, into version 2."""
    sides = {}
    for number, name in enumerate("ab"):
        sides[name] = {
            key: data[f"{key}_{name}"]
            for key in ("text", "tokens", "offsets", "kinds", "boxes", "image", "truncated", "effects")
        } | {
            "unit": data["units"][number],
            "nodes": data["nodes"][number],
            "mode": data["modes"][number],
            # Version 1 did not estimate the errors of its entries.
            "errors": [],
            "sizes": [],
        }
    return {**data, **sides}


def _number(value: Any, name: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer larger than any float
        pass
    raise ValueError(f"{name} is {value!r:.60}, not a number")


def _settings(data: Any) -> Settings:
    """Read settings; each must have the type that it has in results."""
    if not isinstance(data, dict):
        raise ValueError(f"its settings are a {type(data).__name__}, not an object")
    unknown = set(data) - {each.name for each in fields(Settings)}
    if unknown:
        raise ValueError(f"its settings have {min(unknown)!r:.60}, which is not known")
    types: dict[str, tuple[type, ...]] = {
        "model": (str,),
        "layer": (int,),
        "reference": (str,),
        "fold_reference": (bool,),
        "similarity": (str,),
        "rule": (str,),
        "steps": (int, type(None)),
        "tolerance": (int, float),
        "blocks": (list, tuple, type(None)),
        "trust_remote_code": (bool,),
        "path": (str,),
        "special": (str,),
        "base": (int, float),
        "divisions": (int,),
        "mask": (str, type(None)),
        "budget": (int, type(None)),
    }
    for name, value in data.items():
        if not isinstance(value, types[name]) or (isinstance(value, bool) and bool not in types[name]):
            raise ValueError(f"its setting {name} is {value!r:.60}")
    if "tolerance" in data and not _number(data["tolerance"], "its setting tolerance") > 0:
        raise ValueError(f"its setting tolerance is {data['tolerance']!r:.60}")
    if not 0 <= _number(data.get("base", 0), "its setting base") <= 1:
        raise ValueError(f"its setting base is {data['base']!r:.60}")
    if not 0 <= data.get("divisions", 0) <= MOST_DIVISIONS:
        raise ValueError(f"its setting divisions is {data['divisions']!r:.60}")
    if data.get("similarity", SIMILARITIES[0]) not in SIMILARITIES + MAXSIM:
        raise ValueError(f"its setting similarity is {data['similarity']!r:.60}")
    return Settings(**data)

"""One pair's score as a matrix over its tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from whymatch.alignment import Alignment, Kind, align
from whymatch.decomposition import Decomposition, Projection, Settings, Side
from whymatch.files import written_aside
from whymatch.picture import Box, Image
from whymatch.quadrature import Floats
from whymatch.text import Span, group_words, labels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT, VERSION = "whymatch.explanation", 1


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

    ``score = matrix.sum() + effects_a.sum() + effects_b.sum() + constant``, up to ``error``. The effects and the
    constant are what the references have to do with the score; they are zero when the references are folded into
    the tokens.
    """

    score: float
    matrix: Floats  # (tokens_a, tokens_b)
    effects_a: Floats  # (tokens_a,) each token of a with the reference of b
    effects_b: Floats  # (tokens_b,)
    constant: float  # the two references with each other
    norms: float  # ‖e(a)‖ ‖e(b)‖ in the score's unit: 1 for cosine
    text_a: str
    text_b: str
    tokens_a: tuple[str, ...]
    tokens_b: tuple[str, ...]
    offsets_a: tuple[Span, ...]
    offsets_b: tuple[Span, ...]
    kinds_a: tuple[str, ...]  # "text", "special" (of the template), "prompt", "patch" (of a picture) or "group"
    kinds_b: tuple[str, ...]
    boxes_a: tuple[Box, ...] | None  # where a side is a picture: its patches, in its pixels
    boxes_b: tuple[Box, ...] | None
    image_a: Image | None  # the picture itself, small, as a data: address, and its own width and height
    image_b: Image | None
    truncated_a: bool
    truncated_b: bool
    nodes: tuple[int, int]
    modes: tuple[str, str]
    settings: Settings
    units: tuple[str, str] = ("token", "token")  # what rows and columns are: token, word, sentence, span, patch
    reduce: Literal["sum", "mean"] = "sum"

    @property
    def attributed(self) -> float:
        """Everything that has been given to tokens and references."""
        return float(self.matrix.sum() + self.effects_a.sum() + self.effects_b.sum() + self.constant)

    @property
    def error(self) -> float:
        """How far the sum is from the score that the model itself gives."""
        return abs(self.score - self.attributed)

    @property
    def relative_error(self) -> float:
        """The error in the unit of the tolerance, which is the same for cosine and dot."""
        return self.error / self.norms

    @property
    def sums_to_score(self) -> bool:
        """Whether the entries are parts of the score; means over words are not."""
        return self.reduce == "sum"

    @property
    def account(self) -> str:
        """What the matrix is of the score, in words for a view."""
        if not self.sums_to_score:
            return "means over words: they do not sum to the score"
        if not self.settings.fold_reference:
            return "the cells and the reference terms sum to the score"
        return "the cells sum to the score"

    @property
    def unit(self) -> str:
        """What rows and columns are, in words for a view."""
        a, b = (f"{unit}{'es' if unit.endswith('ch') else 's'}" for unit in self.units)
        return a if a == b else f"{a} and {b}"

    @property
    def model(self) -> str:
        return self.settings.model

    @property
    def layer(self) -> int:
        return self.settings.layer

    @property
    def rule(self) -> str:
        return self.settings.rule

    @property
    def reference(self) -> str:
        return self.settings.reference

    @property
    def similarity(self) -> str:
        return self.settings.similarity

    def __repr__(self) -> str:
        size = f"{len(self.tokens_a)} × {len(self.tokens_b)} {self.unit}"
        note = "" if self.sums_to_score else ", means: does not sum to the score"
        return f"Explanation({size}, score={self.score:.4f}, error={self.error:.1e}, layer={self.layer}{note})"

    def top(self, k: int = 10) -> list[Pair]:
        """The ``k`` strongest pairs, by absolute value."""
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
            raise ValueError(f"k={k!r} is not a number of pairs; give 0 or more")
        order = np.argsort(-np.abs(self.matrix), axis=None, kind="stable")[:k]
        places = zip(*(index.tolist() for index in np.unravel_index(order, self.matrix.shape)), strict=True)
        return [self.entry(i, j) for i, j in places]

    def entry(self, i: int, j: int) -> Pair:
        """One entry of the matrix, with its tokens."""
        return Pair(self.tokens_a[i], self.tokens_b[j], float(self.matrix[i, j]), int(i), int(j))

    def align(self, kind: Kind = "mutual") -> Alignment:
        """The few links a person would draw, and the share of the score that they carry.

        ``"mutual"``: entries that are each other's strongest; ``"assignment"``: each entry at most once; ``"flow"``:
        optimal transport of what the rows give to what the columns take.
        """
        return align(self, kind)

    def words(self, reduce: Literal["sum", "mean"] = "sum") -> Explanation:
        """The same explanation over words.

        ``"sum"`` keeps the sum; ``"mean"``, the choice of the paper, does not, and the result says so.
        """
        if reduce not in ("sum", "mean"):
            raise ValueError(f"reduce={reduce!r} is not known; choose 'sum' or 'mean'")
        if self.reduce == "mean":
            raise ValueError("these are means over words already; call words() on the tokens' explanation")
        rows = group_words(self.text_a, self.offsets_a)
        columns = group_words(self.text_b, self.offsets_b)
        left, right = _pooling(rows, reduce), _pooling(columns, reduce)
        labels_a, spans_a = labels_of(self.text_a, self.tokens_a, self.offsets_a, rows)
        labels_b, spans_b = labels_of(self.text_b, self.tokens_b, self.offsets_b, columns)
        return replace(
            self,
            matrix=left @ self.matrix @ right.T,
            effects_a=left @ self.effects_a,
            effects_b=right @ self.effects_b,
            tokens_a=labels_a,
            tokens_b=labels_b,
            offsets_a=spans_a,
            offsets_b=spans_b,
            kinds_a=tuple(self.kinds_a[group[0]] for group in rows),
            kinds_b=tuple(self.kinds_b[group[0]] for group in columns),
            units=(_word(self.units[0]), _word(self.units[1])),
            reduce=reduce,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, strings and numbers, from which :meth:`from_dict` makes an equal explanation."""
        plain: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            value = [list(x) if isinstance(x, tuple) else x for x in value] if isinstance(value, tuple) else value
            plain[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
        return {"format": FORMAT, "version": VERSION, **plain, "settings": asdict(self.settings), "error": self.error}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Explanation:
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"not an explanation: its format is {found!r}, not {FORMAT!r}")
        if data.get("version") != VERSION:
            raise ValueError(
                f"this explanation has format version {data.get('version')!r}, and this whymatch reads {VERSION}; "
                "use the whymatch that wrote it, or explain again"
            )
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            shape = (len(values["tokens_a"]), len(values["tokens_b"]))
            for name, size in (("matrix", shape), ("effects_a", shape[:1]), ("effects_b", shape[1:])):
                values[name] = np.asarray(values[name], dtype=np.float64)
                if values[name].shape != size:
                    raise ValueError(f"{name} has the shape {values[name].shape}, not {size}")
            for name in ("tokens_a", "tokens_b", "kinds_a", "kinds_b", "nodes", "modes", "units"):
                values[name] = tuple(values[name])
            for name in ("image_a", "image_b"):
                values[name] = None if values[name] is None else tuple(values[name])
            for name in ("boxes_a", "boxes_b"):
                values[name] = None if values[name] is None else tuple(tuple(map(int, box)) for box in values[name])
            for name in ("offsets_a", "offsets_b"):
                values[name] = tuple((int(low), int(high)) for low, high in values[name])
            if (len(values["offsets_a"]), len(values["offsets_b"])) != shape:
                raise ValueError("there are not as many offsets as tokens")
            values["settings"] = Settings(**values["settings"])
        except KeyError as error:
            raise ValueError(f"this explanation has no {error.args[0]!r}: it is incomplete") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"this explanation is damaged: {error}") from None
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON, exact to the last bit; the file is whole or not there."""
        with written_aside(path) as aside:
            aside.write_text(json.dumps(self.to_dict(), ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Explanation:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{str(path)!r} is not JSON: {error}") from None
        return cls.from_dict(data)

    def plot(self, kind: Literal["heatmap", "links"] = "heatmap") -> tuple[Figure, Axes]:
        """A heat map of the matrix, or the two texts above each other with the links between them."""
        from whymatch.views import figures

        if kind not in figures.KINDS:
            raise ValueError(f"kind={kind!r} is not known; choose {', '.join(map(repr, figures.KINDS))}")
        return figures.KINDS[kind](self)

    def to_html(self, begin: Literal["tokens", "words"] = "tokens") -> str:
        """A page of its own: no network, no script from elsewhere. It begins with tokens or with words."""
        from whymatch.views.page import page

        return page([self], begin=begin)

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame of its own, so that any number of them can be shown."""
        from whymatch.views.page import frame

        return frame(self)


def combine(a: Side, b: Side) -> Explanation:
    """The explanation of a pair of texts, at least one of them decomposed."""
    _check_alike(a.settings, b.settings)
    if a.embedding.shape != b.embedding.shape:
        sizes = f"{a.embedding.shape[0]} and {b.embedding.shape[0]}"
        raise ValueError(f"these decompositions do not belong together: their embeddings have {sizes} dimensions")
    ref_a, ref_b = np.asarray(a.reference, np.float64), np.asarray(b.reference, np.float64)
    if isinstance(b, Projection):
        matrix, effects_b = np.asarray(b.matrix, np.float64), np.asarray(b.effects, np.float64)
        effects_a = _rows(a) @ ref_b
    elif isinstance(a, Projection):
        matrix, effects_a = np.asarray(a.matrix, np.float64).T, np.asarray(a.effects, np.float64)
        effects_b = _rows(b) @ ref_a
    else:
        matrix, effects_a, effects_b = _rows(a) @ _rows(b).T, _rows(a) @ ref_b, _rows(b) @ ref_a
    left, right = np.asarray(a.embedding, np.float64), np.asarray(b.embedding, np.float64)
    norms = max(float(np.linalg.norm(left) * np.linalg.norm(right)), float(np.finfo(np.float64).tiny))
    scale = 1 / norms if a.settings.similarity == "cosine" else 1.0
    return Explanation(
        score=float(left @ right) * scale,
        norms=norms * scale,
        matrix=matrix * scale,
        effects_a=effects_a * scale,
        effects_b=effects_b * scale,
        constant=float(ref_a @ ref_b) * scale,
        text_a=a.text,
        text_b=b.text,
        tokens_a=a.tokens,
        tokens_b=b.tokens,
        offsets_a=a.offsets,
        offsets_b=b.offsets,
        kinds_a=a.kinds,
        kinds_b=b.kinds,
        boxes_a=a.boxes,
        boxes_b=b.boxes,
        image_a=a.image,
        image_b=b.image,
        truncated_a=a.truncated,
        truncated_b=b.truncated,
        nodes=(a.nodes, b.nodes),
        modes=(a.mode, b.mode),
        settings=a.settings,
        units=(a.unit, b.unit),
    )


def _word(unit: str) -> str:
    return "word" if unit == "token" else unit


def _rows(side: Side) -> Floats:
    if not isinstance(side, Decomposition):
        raise TypeError(f"a pair needs two decompositions, not a {type(side).__name__}")
    return np.asarray(side.contributions, np.float64)


def _check_alike(a: Settings, b: Settings) -> None:
    for name in ("model", "layer", "reference", "fold_reference", "similarity"):
        one, other = getattr(a, name), getattr(b, name)
        if one != other:
            raise ValueError(
                f"these decompositions do not belong together: {name} is {one!r} for the first and {other!r} for "
                "the second; decompose both with one explainer"
            )


def _pooling(groups: Sequence[Sequence[int]], reduce: str) -> Floats:
    """The matrix that sums, or averages, tokens into groups."""
    pooling = np.zeros((len(groups), sum(map(len, groups))))
    for number, group in enumerate(groups):
        pooling[number, list(group)] = 1 / len(group) if reduce == "mean" else 1
    return pooling

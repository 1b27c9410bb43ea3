"""The settings of a result, checks on what a user may ask for, and the warning when a result misses its tolerance."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whymatch.quadrature import get_rule

SIMILARITIES = ("cosine", "dot")
MAXSIM = ("maxsim", "meanmaxsim")  # of encoders with several vectors for each text
# How encoders that are not differentiated are explained, in words.
PATHLESS = {"shapley": "Shapley values of the embedding", "none": "the sum over tokens that it is"}
PATHS = ("straight", "relay", "relay-2", "relay-3", "secant")
DETAILS = ("fine", "fast")
SPECIAL = ("keep", "share", "base")
MOST_DIVISIONS = 1000


@dataclass(frozen=True)
class Settings:
    """How a result was computed; enough to compute it again.

    Attributes:
        model: the name under which the model was loaded.
        layer: the block at whose input the encoder is cut; 0 is the input embeddings.
        reference: what stands for no content: "pad", "unk", "mask", a text, or a function's name.
        fold_reference: whether the reference's embedding is given back to the tokens.
        similarity: "cosine" or "dot".
        rule: the quadrature rule.
        steps: nodes per text, or samples of a Shapley value; None if they follow from the tolerance.
        tolerance: the bound on the error of the score and of each entry, relative to ‖e(a)‖ ‖e(b)‖.
        blocks: the names of the model's lists of blocks, where the user gave them.
        trust_remote_code: whether the model may bring code of its own.
        path: how e(x) − e(r) is divided: "straight", "relay" (or "relay-2" and "relay-3", for segments of two or three
            blocks) or "secant"; see :class:`whymatch.Explainer`. "shapley" for Shapley values; "none" where an
            encoder is a sum over tokens already.
        special: whether special and prompt tokens "keep" what they contribute, "share" it among the tokens that it came
            from, or also hold the "base", the part of an embedding that does not go when words do.
        base: with special="base", how much of its share of the embedding a token hands over.
        divisions: how many times the words of a text are divided into parts, whose own embeddings correct the
            contributions; 0 if they are as the path gives them.
        mask: what replaces words that are left out for a Shapley value; None deletes them.
        budget: how many texts may be embedded for the Shapley values of one; None is the usual number.
    """

    model: str
    layer: int
    reference: str
    fold_reference: bool
    similarity: str
    rule: str
    steps: int | None
    tolerance: float
    blocks: tuple[str, ...] | None = None
    trust_remote_code: bool = False
    path: str = "straight"
    mask: str | None = None
    budget: int | None = None
    special: str = "keep"
    base: float = 0.0
    divisions: int = 0

    def __post_init__(self) -> None:
        if self.blocks is not None:  # JSON gives a list
            object.__setattr__(self, "blocks", tuple(self.blocks))

    @property
    def segment(self) -> int | None:
        """How many blocks each segment of the path takes; None for a path of a single segment."""
        return {"relay": 1, "relay-2": 2, "relay-3": 3}.get(self.path)

    @property
    def text_tolerance(self) -> float:
        """The relative error that two embeddings may have for their product to stay within the tolerance."""
        return math.sqrt(1 + self.tolerance) - 1


def check_settings(
    *,
    model: str,
    reference: str,
    fold_reference: bool,
    similarity: str,
    rule: str,
    steps: int | None,
    tolerance: float,
    least_tolerance: float,
    layer: int = 0,
    blocks: tuple[str, ...] | None = None,
    trust_remote_code: bool = False,
    path: str = "straight",
    mask: str | None = None,
    budget: int | None = None,
    special: str = "keep",
    divisions: int = 0,
) -> Settings:
    """Return the settings if they can be met; otherwise raise an error that names the one that cannot."""
    most = get_rule(rule).most
    if path == "shapley":
        if steps is not None and (not is_int(steps) or steps < 2):
            raise ValueError(f"samples={steps!r} is not a number of texts to embed; give 2 or more, or None")
    elif steps is not None and (not is_int(steps) or not 1 <= steps <= most):
        raise ValueError(f"steps={steps!r} is not a number of nodes; give 1 to {most:,}, or None for the tolerance")
    if steps is not None and rule == "pieces" and path != "shapley":
        raise ValueError(f"steps={steps!r} is a number of nodes, and rule='pieces' finds its own; drop one of them")
    if path == "secant" and (steps is not None or rule != "gauss"):
        given = f"rule={rule!r} chooses" if steps is None else f"steps={steps!r} is a number of"
        raise ValueError(f"{given} nodes, and path='secant' has none; choose another path")
    if similarity not in SIMILARITIES + MAXSIM:
        raise ValueError(f"similarity={similarity!r} is not known; choose 'cosine', 'dot' or None, the model's own")
    if mask is not None and not isinstance(mask, str):
        raise TypeError(f"mask={mask!r:.60} is not a text: give what replaces a word, or None to delete it")
    if budget is not None and (not is_int(budget) or budget < 2):
        raise ValueError(f"budget={budget!r} is not a number of texts to embed; give 2 or more, or None")
    if path not in PATHS and path not in PATHLESS:
        raise ValueError(f"path={path!r} is not known; choose {', '.join(map(repr, PATHS))}")
    if special not in SPECIAL:
        raise ValueError(f"special={special!r} is not known; choose {', '.join(map(repr, SPECIAL))}")
    if not is_int(divisions) or not 0 <= divisions <= MOST_DIVISIONS:
        raise ValueError(
            f"divisions={divisions!r:.60} is not a number of times to divide a text; give 0 to {MOST_DIVISIONS:,}"
        )
    if divisions and not fold_reference:
        raise ValueError(
            f"divisions={divisions} needs contributions that sum to the embedding; drop fold_reference=False"
        )
    if divisions and similarity in MAXSIM:
        raise ValueError(f"divisions={divisions} has no meaning for the several vectors of {model!r}; drop it")
    if not isinstance(tolerance, int | float) or not least_tolerance <= tolerance <= 1:
        raise ValueError(
            f"tolerance={tolerance!r} cannot be taken; give {least_tolerance:.0e}, which is how exact the encoder's "
            "own arithmetic is, to 1, the score itself"
        )
    return Settings(
        model=model,
        layer=layer,
        reference=reference,
        fold_reference=bool(fold_reference),
        similarity=similarity,
        rule=rule,
        steps=None if steps is None else int(steps),
        tolerance=float(tolerance),
        blocks=blocks,
        trust_remote_code=bool(trust_remote_code),
        path=path,
        mask=mask,
        budget=None if budget is None else int(budget),
        special=special,
        divisions=int(divisions),
    )


def check_layer(layer: int, count: int) -> int:
    """Return the layer counted from 0, for an encoder of ``count`` blocks; negative numbers count from the output."""
    if not is_int(layer) or not -count - 1 <= layer <= count:
        raise ValueError(
            f"layer {layer!r} is out of range; this model has {count} blocks: give 0 (input embeddings) to {count} "
            f"(output), or -1 (output) to {-count - 1}"
        )
    return int(layer) % (count + 1)


def check_top(top: int, name: str = "top", what: str = "hits", least: int = 1) -> int:
    """Return ``top`` if it is a whole number of at least ``least``; otherwise raise an error that names it."""
    if not is_int(top) or top < least:
        raise ValueError(f"{name}={top!r} is not a number of {what}; give {least} or more")
    return int(top)


def is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


class ToleranceWarning(UserWarning):
    """A result misses the tolerance that was asked for; its ``error`` and ``entry_error`` say by how much."""


def warn_uncertain(largest: float, settings: Settings, nodes: int) -> None:
    """Warn that a budget was spent before sampled entries were as certain as they should be."""
    warnings.warn(
        f"entries have a standard error of up to {largest:.1e}, and tolerance={settings.tolerance:g}: {nodes:,} "
        "embeddings of parts of a text are not enough. A larger budget= makes them more certain; their sum is the "
        "score as it is",
        ToleranceWarning,
        stacklevel=4,
    )


def warn_missed(results: Sequence[tuple[float, int]], allowed: float, settings: Settings, what: str) -> bool:
    """Warn once if any result misses what is allowed.

    Args:
        results: the error and the number of nodes of each result.
        allowed: the largest error that is not warned about.
        what: what the results are, in the plural, for the message.

    Returns:
        Whether there was a warning.
    """
    missed = [(error, nodes) for error, nodes in results if not error <= allowed]
    if not missed or settings.steps is not None:
        return False
    worst, nodes = max(missed)
    bound = get_rule(settings.rule).bound
    cause = (
        f"at the bound of {bound} nodes; a deeper layer or a larger tolerance converges sooner"
        if nodes >= bound
        else f"although {nodes} nodes are enough: this is the rounding of the model's own scores"
    )
    warnings.warn(
        f"{len(missed)} of {len(results)} {what} miss tolerance={settings.tolerance:g}, the worst with an error of "
        f"{worst:.1e}, {cause}. Results are as they are",
        ToleranceWarning,
        stacklevel=4,
    )
    return True

"""What agrees with the paper and what does not, in ten lines that open the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whymatch.studies.experiment import Result, nearest, percent

# How sure one can be, by the number of pairs behind a number.
SURE = ((500, "sure"), (100, "fairly sure"), (30, "not very sure"), (0, "only a hint"))


@dataclass(frozen=True)
class Verdict:
    """One line: what the paper says, what was found for a model, whether they agree, and how sure that is."""

    claim: str
    model: str
    ours: str
    agrees: bool
    pairs: int

    @property
    def sure(self) -> str:
        return next(word for least, word in SURE if self.pairs >= least)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the study that examines it, and how a model's numbers are read for it.

    ``read(numbers, model)`` returns what was found, whether it agrees, and over how many pairs; None if it was not
    examined.
    """

    study: str
    text: str
    read: Callable[[Any, str], tuple[str, bool, int] | None]


def _error_at(share: float, n: int, most: float) -> Callable[[Any, str], tuple[str, bool, int] | None]:
    def read(numbers: Any, model: str) -> tuple[str, bool, int] | None:
        measured = numbers[model]
        layer = measured["layers"].get(str(math.ceil(share * measured["num_layers"])))
        if layer is None:
            return None
        curve = layer["right"]
        mean, std = (curve[key][curve["steps"].index(n)] for key in ("mean", "std"))
        return f"{mean:.0e} ± {std:.0e}", mean <= most, layer["pairs"]

    return read


def _shallow(numbers: Any, model: str) -> tuple[str, bool, int] | None:
    measured = numbers[model]
    below = math.ceil(7 / 12 * measured["num_layers"])
    shallow = {int(name): layer for name, layer in measured["layers"].items() if int(name) < below}
    if not shallow:
        return None
    errors = [layer["right"]["mean"][-1] for layer in shallow.values()]
    found = f"{min(errors):.0e} to {max(errors):.0e} at layers {min(shallow)} to {max(shallow)}"
    # The paper says of S-MPNet that it does not converge, of a model half as deep that it does, and of another that is
    # as deep that it begins to.
    deep = measured["num_layers"] >= 12
    if deep and "mpnet" not in model.lower():
        return None
    agrees = max(errors) > 1e-2 if deep else max(errors) <= 1e-2
    return found, agrees, min(each["pairs"] for each in shallow.values())


def _negative(above: int, paper: float, within: float) -> Callable[[Any, str], tuple[str, bool, int] | None]:
    def read(numbers: Any, model: str) -> tuple[str, bool, int] | None:
        layers = numbers[model]
        found = layers.get(str(depth_of(layers) - above))
        if found is None:
            return None
        return percent(found["share_negative"]), abs(found["share_negative"] - paper) <= within, found["pairs"]

    return read


def depth_of(layers: Mapping[str, Any]) -> int:
    """Return the number of the output's layer."""
    return max(int(layer["depth"]) for layer in layers.values())


def _middle(layers: Mapping[str, Any]) -> Any:
    """Return what was measured at the layer nearest to three quarters of the depth, below the output; None if none."""
    depth = depth_of(layers)
    below = [int(layer) for layer in layers if int(layer) < depth]
    return layers[str(nearest(below, depth))] if below else None


def _strongest(numbers: Any, model: str) -> tuple[str, bool, int] | None:
    found = _middle(numbers[model])
    if found is None:
        return None
    top = found["top_5_percent"]
    ours = f"{100 * top['mean']:.0f} ± {percent(top['std'])}"
    return ours, abs(top["mean"] - 0.77) <= 0.2 and top["std"] > 0.5, found["pairs"]


def _needed(numbers: Any, model: str) -> tuple[str, bool, int] | None:
    found = _middle(numbers[model])
    if found is None:
        return None
    steady = [found["steady_from"][key] for key in ("0.05", "0.02")]
    agrees = all(
        each is not None and abs(each - paper) <= 0.1 for each, paper in zip(steady, (0.78, 0.92), strict=True)
    )
    return " / ".join(map(percent, steady)), agrees, found["pairs"]


def _relations(numbers: Any, model: str) -> tuple[str, bool, int] | None:
    measured = numbers[model]
    first = list(measured["mean"]["shares"]["0.1"].items())[:3]
    names = [name for name, _ in first]
    ours = ", ".join(f"{name} {percent(share)}" for name, share in first)
    return ours, names == ["NOUN–NOUN", "VERB–VERB", "NOUN–VERB"], measured["pairs"]


def _explained(what: str, paper: float) -> Callable[[Any, str], tuple[str, bool, int] | None]:
    def read(numbers: Any, model: str) -> tuple[str, bool, int] | None:
        mean, std = numbers[model]["mean"]["explained"][what]
        return f"{100 * mean:.0f} ± {percent(std)}", abs(mean - paper) <= 0.2, numbers[model]["pairs"]

    return read


CLAIMS = (
    Claim("accuracy", "error (5 ± 5)e-3 at layer 9 of 12 with 50 steps", _error_at(9 / 12, 50, 1e-2)),
    Claim("accuracy", "error (2 ± 3)e-3 at layer 7 of 12 with 1,000 steps", _error_at(7 / 12, 1000, 5e-3)),
    Claim(
        "accuracy", "shallower layers of S-MPNet do not converge by 2,500 steps; a model half as deep does", _shallow
    ),
    Claim(
        "distribution", "38 % of attributions are negative at the last layer before the output", _negative(1, 0.38, 0.1)
    ),
    Claim("distribution", "5 % are negative at the output", _negative(0, 0.05, 0.05)),
    Claim("cumulative", "the strongest 5 % sum to 77 ± 133 % of the score", _strongest),
    Claim("cumulative", "78 % / 92 % are needed for a deviation below 5 % / 2 %", _needed),
    Claim("pos", "of the highest 10 %, noun–noun almost 25 %, then verb–verb, then noun–verb", _relations),
    Claim("pos", "nouns and verbs explain 53 ± 90 %", _explained("nouns and verbs", 0.53)),
    Claim("pos", "the ten most frequent relations explain 66 ± 98 %", _explained("top ten relations", 0.66)),
)


def verdicts(results: Mapping[str, Result]) -> list[Verdict]:
    """Judge each of the paper's claims by the first model: the one that the studies lead with.

    "Agrees" is generous: within ten points of a share (five of a small one), twenty of a mean that varies by more than
    its own size, and an error no larger than the paper's and its deviation. Only relations must come in its order.
    """
    judged = []
    for claim in CLAIMS:
        result = results.get(claim.study)
        if result is None:
            continue
        models = [name for name in result.numbers if isinstance(result.numbers[name], Mapping)]
        found = claim.read(result.numbers, models[0]) if models else None
        if found is not None:
            judged.append(Verdict(claim.text, models[0], *found))
    return judged

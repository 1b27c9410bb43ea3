"""Scheduling: which inputs run through the encoder together, and which of them need not be decomposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from whymatch.paths.jacobian import REVERSE_COST
from whymatch.reading.inputs import TokenSource
from whymatch.reading.sides import TEMPLATE

# Inputs of one length that run through the encoder together: enough to fill the machine, few enough to bound memory.
TEXTS_TOGETHER = 32

Key = Hashable  # of a request


@dataclass(frozen=True)
class Plan:
    """What runs together.

    Attributes:
        batches: inputs of one route and shape, which need no padding, and are decomposed.
        projected: by the number of a pair, the side that is not decomposed but projected on the other.
    """

    batches: list[list[Key]]
    projected: dict[int, Key]


def plan(
    sources: Mapping[Key, TokenSource],
    pairs: Sequence[tuple[Key, Key]] = (),
    known: Mapping[Key, int] | None = None,
    template_is_still: bool = False,
    reverse_cost: float = REVERSE_COST,
    extra: int = 0,
) -> Plan:
    """Decide what runs together.

    Args:
        sources: the inputs that are to be derived.
        pairs: the pairs in which they meet.
        known: the number of rows of each input that has been decomposed already.
        template_is_still: whether the template's own tokens equal their reference, and need no tangent, as at the
            input of most models.
        reverse_cost: what a cotangent costs, in tangents.
        extra: cotangents that a projection takes beside the other side's rows.
    """
    projected = _longer_sides(sources, pairs, known or {}, template_is_still, reverse_cost, extra)
    apart = set(projected.values())
    return Plan(_batches({key: source for key, source in sources.items() if key not in apart}), projected)


def _batches(sources: Mapping[Key, TokenSource]) -> list[list[Key]]:
    alike: dict[Hashable, list[Key]] = {}
    for key, source in sources.items():
        alike.setdefault((source.input.route, source.input.options, len(source.input)), []).append(key)
    return [keys[i : i + TEXTS_TOGETHER] for keys in alike.values() for i in range(0, len(keys), TEXTS_TOGETHER)]


def _longer_sides(
    sources: Mapping[Key, TokenSource],
    pairs: Sequence[tuple[Key, Key]],
    known: Mapping[Key, int],
    template_is_still: bool,
    reverse_cost: float,
    extra: int,
) -> dict[int, Key]:
    """Find the long side of each pair that need not be decomposed.

    If it meets a single, shorter input, reverse mode along that one's rows gives their matrix with fewer passes.
    """
    rows = dict(known) | {key: len(source.side) for key, source in sources.items()}
    uses = Counter(key for pair in pairs for key in set(pair))
    projected: dict[int, Key] = {}
    for number, pair in enumerate(pairs):
        short, long = sorted(pair, key=lambda key: (key in sources, rows[key]))
        if long not in sources or uses[long] > 1 or long == short:
            continue
        source = sources[long]
        still = sum(kind in TEMPLATE for kind in source.side.kinds) if template_is_still else 0
        if reverse_cost * (rows[short] + extra) < min(rows[long] - still, reverse_cost * len(source.embedding)):
            projected[number] = long
    return projected

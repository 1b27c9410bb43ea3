"""The one scale of every view: blue for what lowers the score, white for nothing, orange for what raises it.

Blue and orange stay apart for every common kind of colour blindness.
"""

from __future__ import annotations

NEGATIVE = (33, 102, 172)
POSITIVE = (217, 95, 2)
ZERO = (255, 255, 255)


def shade(value: float, largest: float) -> tuple[int, int, int]:
    """The colour of a value where ``largest`` is the largest absolute value shown."""
    strength = min(1.0, abs(value) / largest) if largest > 0 else 0.0
    end = POSITIVE if value > 0 else NEGATIVE
    red, green, blue = (round(zero + strength * (full - zero)) for zero, full in zip(ZERO, end, strict=True))
    return red, green, blue


def ink(colour: tuple[int, int, int]) -> str:
    """Black or white, whichever can be read on the colour."""
    red, green, blue = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"

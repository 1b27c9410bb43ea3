"""The colours of every view: blue lowers the score, white is zero, orange raises it.

Blue and orange can be told apart with every common kind of colour blindness.
"""

from __future__ import annotations

NEGATIVE = (33, 102, 172)
POSITIVE = (217, 95, 2)
ZERO = (255, 255, 255)
# Of lines that are beside each other; they differ in lightness too, and figures give each another marker.
LINES = ((213, 94, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (0, 0, 0))


def shade(value: float, largest: float) -> tuple[int, int, int]:
    """Compute the colour of a value; ``largest`` is the absolute value that gets the full colour."""
    strength = min(1.0, abs(value) / largest) if largest > 0 else 0.0
    end = POSITIVE if value > 0 else NEGATIVE
    red, green, blue = (round(zero + strength * (full - zero)) for zero, full in zip(ZERO, end, strict=True))
    return red, green, blue


def ink(colour: tuple[int, int, int]) -> str:
    """Choose black or white, whichever can be read on the colour."""
    red, green, blue = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"

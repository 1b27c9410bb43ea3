"""Text that is safe to print."""

from __future__ import annotations

# They join or part letters, and emoji, and do nothing else.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """Replace every character that could move the cursor, or change how a terminal shows what follows.

    These are line breaks, escapes and other control characters, marks of direction, and lone surrogates.
    """
    return "".join(c if c.isprintable() or c in _JOINERS else "�" for c in text)

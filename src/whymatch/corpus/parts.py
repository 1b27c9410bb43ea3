"""Folders of parts, and the manifest that names the parts.

A part is written under a temporary name and renamed when it is complete. Only then does the manifest, which is replaced
as a whole, name it. At whatever moment a process dies, the folder holds all that its manifest names; any other part is
a leftover. A folder may have been prepared by somebody else, so symbolic links are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whymatch import __version__, files
from whymatch.settings import is_int


@dataclass(frozen=True)
class Manifest:
    """A JSON file that says what a folder holds.

    Attributes:
        path: the file.
        format: the name of its format.
        version: the newest version of the format; all earlier ones can be read.
    """

    path: Path
    format: str
    version: int

    def read(self) -> dict[str, Any]:
        """Read the content. Whatever is wrong with it is a ValueError; no file at all is a FileNotFoundError."""
        content = files.read_json(self.path, follow_links=False)
        if not isinstance(content, dict) or content.get("format") != self.format:
            name = content.get("format") if isinstance(content, dict) else content
            raise ValueError(f"its format is {name!r:.60}, not {self.format!r}")
        version: Any = content.get("version")
        if not is_int(version) or not 1 <= version <= self.version:
            raise ValueError(f"its version is {version!r:.60}; this whymatch reads 1 to {self.version}")
        if version > 1 and content.pop(files.CHECKSUM, None) != files.checksum(content):  # version 1 had none
            raise ValueError("its checksum is not that of its content")
        return content

    def write(self, content: dict[str, Any]) -> None:
        """Replace the content, which may name a version of its own."""
        head = {"format": self.format, "version": self.version, "whymatch": __version__}
        content = head | content
        files.write_sealed_json(self.path, content, indent=1, follow_links=False)


@dataclass(frozen=True)
class Stamp:
    """The size and the hash of a part, by which damage is noticed."""

    bytes: int
    sha256: str


def write_part(path: Path, write: Callable[[Path], None], temporary: Path | None = None) -> Stamp:
    """Write a part.

    Args:
        path: its file.
        write: writes the content to the path that it is called with.
        temporary: the folder for the unfinished file; that of ``path`` by default.
    """
    with files.replace_file(path, temporary, follow_links=False) as unfinished:
        write(unfinished)
        return Stamp(unfinished.stat().st_size, files.sha256(unfinished))


def size_of(path: Path) -> int | None:
    """Return the size of a part's file, or None if there is no such file."""
    files.refuse_link(path)
    return path.stat().st_size if path.is_file() else None

"""Writing files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` only if nothing went wrong."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {str(target)!r}: it is a folder; name a file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    except OSError as error:
        raise OSError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        umask = os.umask(0)
        os.umask(umask)
        aside.chmod(0o666 & ~umask)  # mkstemp gives 0600, which is not what a saved result should have
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)

"""Writing files that are either whole or not there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` only if nothing went wrong."""
    target = Path(path).resolve()  # a link stays a link, and what it names is replaced
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a folder; name a file")
    if target.exists() and not target.is_file():  # a pipe or a device cannot be replaced
        yield target
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}{target.suffix}")
    try:
        aside.touch(exist_ok=False)
    except OSError as error:
        raise OSError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    try:
        yield aside
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a folder for this process alone; an error at once if another has it. A process that dies lets it go."""
    import fcntl

    with (Path(folder) / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BlockingIOError(
                f"another process is writing to {os.fspath(folder)!r}; wait for it to end, or name another folder"
            ) from None
        yield  # closing the file lets it go

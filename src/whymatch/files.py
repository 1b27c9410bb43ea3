"""Writing files that are either whole or not there, and folders that one process writes to at a time."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# How the name of what is being written ends: no reader takes it for a part of a folder, and no one else's file has it.
ASIDE = ".whymatch.tmp"


@contextmanager
def written_aside(path: str | os.PathLike[str], folder: Path | None = None) -> Iterator[Path]:
    """A path beside ``path``, or in a folder, to write to; it takes the place of ``path`` only if nothing went wrong.

    What was written is on the disk before it has its name: a machine that stops leaves the old file or the new one.
    """
    target = Path(path).resolve()  # a link stays a link, and what it names is replaced
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a folder; name a file")
    if target.exists() and not target.is_file():  # a pipe or a device cannot be replaced
        yield target
        return
    aside = (folder or target.parent) / f".{target.name}.{os.getpid()}.{threading.get_ident()}{ASIDE}"
    try:
        aside.touch(exist_ok=False)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {str(path)!r}: {error.strerror or error}") from error
    try:
        yield aside
        _to_disk(aside)
        aside.replace(target)
        _to_disk(target.parent)
    finally:
        aside.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have none for folders
            raise
    finally:
        os.close(number)


def made(folder: str | os.PathLike[str]) -> Path:
    """A folder that is there and can be written to; an error that says why not."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to {str(folder)!r}: the folder is not writable")
    return folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone, and clear away what a process that died was writing to it.

    An error at once if another process has it; one that dies lets it go. A full disk is named.
    """
    import fcntl

    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BlockingIOError(
                f"another process is writing to {os.fspath(folder)!r}; wait for it to end, or name another folder"
            ) from None
        for aside in folder.glob(f".*{ASIDE}"):
            aside.unlink(missing_ok=True)
        try:
            yield  # closing the file lets it go
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(
                error.errno, f"the disk is full: what is done in {str(folder)!r} is safe; make room, then go on with it"
            ) from None

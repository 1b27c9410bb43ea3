"""Write files so that they are either complete or absent, and lock folders against a second writer."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

# The suffix of unfinished files, which no reader of a folder takes for a part.
UNFINISHED = ".whymatch.tmp"
LOCK = ".lock"
CHECKSUM = "checksum"  # the key of a JSON object's hash of the rest
WINDOWS = os.name == "nt"


@contextmanager
def replace_file(
    path: str | os.PathLike[str], folder: Path | None = None, *, follow_links: bool = True
) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` when the block ends without an error.

    The data is flushed to the disk before the rename, so a crash leaves either the old file or the new one. An existing
    file keeps its permissions.

    Args:
        path: the file to write.
        folder: where the temporary file is created; the folder of ``path`` by default.
        follow_links: write to the target of a symbolic link, which suits a path that a user typed. False refuses links,
            which suits a path inside a folder that somebody else may have prepared.
    """
    if not follow_links:
        refuse_link(Path(path))
    target = Path(path).resolve() if follow_links else Path(path).absolute()
    if target.is_dir():
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a folder; name a file")
    if target.exists() and not target.is_file():  # a pipe or a device is written to, not replaced
        yield target
        return
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    temporary = (folder or target.parent) / f".{target.name}.{os.getpid()}.{threading.get_ident()}{UNFINISHED}"
    try:
        # With the final permissions from the start: a private file's content is never readable by others.
        permissions = 0o666 if mode is None else mode | stat.S_IWUSR | stat.S_IRUSR
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, permissions))
    except OSError as error:
        raise OSError(error.errno, f"cannot write {str(path)!r}: {error.strerror or error}") from error
    try:
        yield temporary
        _flush(temporary)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
        _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str, *, follow_links: bool = True) -> None:
    """Write a text file in UTF-8; see ``replace_file``."""
    with replace_file(path, follow_links=follow_links) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(
    path: str | os.PathLike[str], content: Any, indent: int | None = None, *, follow_links: bool = True
) -> None:
    """Write a JSON file that ends with a newline; see ``replace_file``."""
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False) + "\n", follow_links=follow_links)


def read_json(path: str | os.PathLike[str], *, follow_links: bool = True) -> Any:
    """Read a JSON file. Whatever is wrong with its content is a ValueError."""
    try:
        with Path(path).open("rb") if follow_links else open_regular(Path(path)) as file:
            return json.loads(file.read().decode("utf-8"))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading unless it is a symbolic link, a pipe or a device."""
    refuse_link(path)
    # O_NONBLOCK: opening a pipe would otherwise wait for somebody to write to it.
    optional = ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
    file = os.fdopen(os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in optional)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, f"{str(path)!r} is not a regular file")
    return file


def write_sealed_json(
    path: str | os.PathLike[str], content: dict[str, Any], indent: int | None = None, *, follow_links: bool = True
) -> None:
    """Write a JSON object with a hash of its own content, which ``read_sealed_json`` checks."""
    write_json(path, content | {CHECKSUM: checksum(content)}, indent, follow_links=follow_links)


def read_sealed_json(path: str | os.PathLike[str], *, follow_links: bool = True) -> Any:
    """Read a JSON file. If it has a hash of its content, the content must be what was written.

    A single flipped bit can turn one number into another, which nothing else would notice. A file without the hash, as
    earlier versions wrote them, is taken as it is.
    """
    content = read_json(path, follow_links=follow_links)
    if isinstance(content, dict) and CHECKSUM in content and content.pop(CHECKSUM) != checksum(content):
        raise ValueError(f"its content was changed after it was written; to read it as it is, remove its {CHECKSUM!r}")
    return content


def checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object's content, however it is written."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def refuse_link(path: Path) -> None:
    """Raise an error if a path is a symbolic link."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, f"{str(path)!r} is a symbolic link, which may lead out of its folder; remove it")


def _flush(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk."""
    if WINDOWS and path.is_dir():  # which Windows cannot open
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows flushes only what it may write
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Create a folder unless it exists, and check that it can be written to."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to {str(folder)!r}: the folder is not writable")
    return folder


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a folder, and remove the unfinished files of a process that died.

    Raises BlockingIOError at once if another process has the lock. The operating system releases the lock of a process
    that dies. An error about a full disk says that finished work is safe.
    """
    from filelock import FileLock, Timeout

    refuse_link(folder / LOCK)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(
            f"another process is writing to {os.fspath(folder)!r}; wait for it to end, or name another folder"
        ) from None
    try:
        for file in folder.glob(f".*{UNFINISHED}"):
            file.unlink(missing_ok=True)
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise
        raise OSError(
            error.errno,
            f"the disk is full: what is done in {str(folder)!r} is safe; free some space, then resume",
        ) from None
    finally:
        lock.release()

"""Files that are complete or absent, and folders with one writer."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import pytest

from whymatch import files
from whymatch.files import (
    UNFINISHED,
    lock_folder,
    make_folder,
    read_json,
    replace_file,
    sha256,
    write_json,
    write_text,
)


def test_a_file_is_complete_or_absent(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(ZeroDivisionError), replace_file(path) as temporary:
        temporary.write_text(f"half, {1 / 0}")
    assert list(tmp_path.iterdir()) == []
    write_text(path, "whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(IsADirectoryError, match="it is a folder; name a file"):
        write_text(tmp_path, "")
    with pytest.raises(OSError, match=r"cannot write '.*none/file': No such file"):
        write_text(tmp_path / "none/file", "")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_of_an_existing_file_are_kept(tmp_path, mode):
    path = tmp_path / "private.json"
    path.write_text("{}")
    path.chmod(mode)
    with replace_file(path) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) & 0o077 == mode & 0o077  # nobody else may read it meanwhile
        temporary.write_text("[]")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_text() == "[]"


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    write_text(tmp_path / "new", "")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_links_are_followed_only_where_that_is_meant(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    with pytest.raises(OSError, match=r"link' is a symbolic link, which may lead out of its folder; remove it"):
        write_json(link, {}, follow_links=False)
    with pytest.raises(OSError, match="is a symbolic link"):
        read_json(link, follow_links=False)
    assert target.read_text() == "new"


def test_json(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"é": [1]}, indent=1)
    assert path.read_bytes() == '{\n "é": [\n  1\n ]\n}\n'.encode()
    assert read_json(path) == {"é": [1]}
    for content in ("[" * 100_000, "{", "\xff"):
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(ValueError, match=r"nested too deeply|Expecting|decode"):
            read_json(path)


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_folder_has_one_writer(tmp_path):
    left, other = tmp_path / f".part.1.2{UNFINISHED}", tmp_path / ".notes.tmp"
    left.write_text("what a process that died was writing")
    other.write_text("somebody else's")
    with lock_folder(tmp_path):
        assert not left.exists()
        assert other.exists()
        with pytest.raises(BlockingIOError, match="another process is writing to"), lock_folder(tmp_path):
            pass
    with lock_folder(tmp_path):
        pass


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    """Whoever sends a folder must not choose which file is opened for writing."""
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent/.lock").symlink_to(target)
    with pytest.raises(OSError, match="is a symbolic link"), lock_folder(tmp_path / "sent"):
        pass
    assert target.read_text() == "mine"


def test_a_full_disk_is_named(tmp_path):
    message = r"the disk is full: what is done in .* is safe; free some space, then resume"
    with pytest.raises(OSError, match=message), lock_folder(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="elsewhere"), lock_folder(tmp_path):
        raise OSError(errno.EIO, "elsewhere")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write to '.*file/folder': Not a directory"):
        make_folder(tmp_path / "file/folder")


def test_windows_can_save(tmp_path, monkeypatch):
    """There a folder cannot be opened, and only a file that is open for writing can be flushed."""
    opened, flushed = os.open, []

    def windows_open(path, flags, *args, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *args, **options)

    def windows_fsync(descriptor):
        os.write(descriptor, b"")  # fails unless it is open for writing
        flushed.append(descriptor)

    monkeypatch.setattr(files, "WINDOWS", True)
    monkeypatch.setattr(os, "open", windows_open)
    monkeypatch.setattr(os, "fsync", windows_fsync)
    write_json(tmp_path / "a.json", {"a": 1})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    assert len(flushed) == 1


def test_nothing_here_needs_unix():
    script = "import sys; sys.modules['fcntl'] = None; import whymatch.files"
    subprocess.run([sys.executable, "-c", script], check=True)

"""Folders of parts, and the manifest that names them."""

from __future__ import annotations

import json

import pytest

from whymatch import __version__, files
from whymatch.corpus.parts import Manifest, size_of, write_part


@pytest.fixture
def manifest(tmp_path):
    return Manifest(tmp_path / "manifest.json", "parts", 3)


def test_a_manifest_is_read_as_it_was_written(manifest):
    manifest.write({"rows": [1, 2]})
    head = {"format": "parts", "version": 3, "whymatch": __version__}
    assert manifest.read() == head | {"rows": [1, 2]}
    manifest.write({"version": 2, "rows": []})  # of a folder that an earlier version made
    assert manifest.read()["version"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"its format is \[\], not 'parts'"),
        ({"format": "other", "version": 1}, "its format is 'other', not 'parts'"),
        ({"format": "parts", "version": 4}, "its version is 4; this whymatch reads 1 to 3"),
        ({"format": "parts", "version": True}, "its version is True"),
        ({"format": "parts", "version": 2}, "its checksum is not that of its content"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said(manifest, content, message):
    manifest.path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        manifest.read()


def test_the_first_version_had_no_checksum(manifest):
    manifest.path.write_text(json.dumps({"format": "parts", "version": 1, "rows": 7}))
    assert manifest.read()["rows"] == 7


def test_a_manifest_behind_a_link_is_neither_read_nor_written(manifest, tmp_path):
    (tmp_path / "elsewhere.json").write_text("{}")
    manifest.path.symlink_to(tmp_path / "elsewhere.json")
    for attempt in (manifest.read, lambda: manifest.write({})):
        with pytest.raises((OSError, ValueError), match="link"):
            attempt()
    assert (tmp_path / "elsewhere.json").read_text() == "{}"


def test_a_part_is_there_when_it_is_complete(tmp_path):
    path = tmp_path / "00000.part"
    stamp = write_part(path, lambda unfinished: unfinished.write_bytes(b"content") and None)
    assert (stamp.bytes, stamp.sha256) == (7, files.sha256(path))
    assert size_of(path) == 7
    assert size_of(tmp_path / "00001.part") is None

    def fail(unfinished):
        unfinished.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_part(path, fail)
    assert path.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [path]
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link, which may lead out of its folder"):
        size_of(path)

"""The record of a batch: what is damaged is noticed, whatever it is."""

from __future__ import annotations

import json
import random
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import flip_bit, write_manifest
from whymatch.corpus.record import ERRORS, RECORD, ROWS, TEXTS, BadRow, Job, Part, Record, Results, job_folder

JOB = Job(("text_a", "text_b"), False, 10, {"model": "m", "layer": 3}, "weights")
COUNT = 40


def results(first):
    rng = random.Random(first)
    rows = [
        {
            "row": first + i + 1,
            "text_a": f"left {rng.random()}",
            "text_b": f"right {rng.random()}",
            "score": rng.random(),
            "error": 0.0,
            "entry_error": 0.0,
            "tokens_a": ["left"],
            "tokens_b": ["right"],
            "top": [{"a": "left", "b": "right", "value": 0.5, "i": 0, "j": 0}],
            "matrix": [[rng.random() for _ in range(8)]],
        }
        for i in range(COUNT - 1)
    ]
    bad = BadRow(first + COUNT, {"line": "{"}, "it is not JSON")
    return Results(COUNT, pa.Table.from_pylist(rows, ROWS), [bad])


@pytest.fixture
def folders(tmp_path):
    """A job of two parts."""
    out, folder = tmp_path / "out", job_folder(tmp_path / "out")
    out.mkdir()
    folder.mkdir()
    record = Record.open(JOB, out, folder, resume=False)
    record.start("content")
    record.add(0, [results(0)])
    record.add(COUNT, [results(COUNT)])
    return out, folder


def resume(out, folder):
    """The rows that are still to be done."""
    record = Record.open(JOB, out, folder, resume=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record.start("content")
    missing = list(record.missing(2 * COUNT))
    assert bool(caught) == bool(missing)
    return missing


def test_what_is_whole_is_not_done_again(folders):
    out, folder = folders
    assert resume(out, folder) == []
    parts = json.loads((folder / RECORD).read_text())["parts"]
    assert [len(part["sha256"]) for part in parts] == [64, 64]
    assert [len(part["bad_sha256"]) for part in parts] == [64, 64]


@pytest.mark.parametrize("place", ["out", "errors"])
def test_every_bit_counts(folders, place):
    out, folder = folders
    path = (out if place == "out" else folder / ERRORS) / "part-000000000.parquet"
    whole, record = path.read_bytes(), (folder / RECORD).read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        path.write_bytes(flip_bit(whole, rng))
        assert resume(out, folder) == [(0, COUNT)]
        assert not path.exists()  # nothing reads it any more
        (out / "part-000000000.parquet").touch()
        path.write_bytes(whole)
        (folder / RECORD).write_bytes(record)


def test_records_of_earlier_versions_are_checked_by_the_checksums_of_their_pages(folders):
    out, folder = folders
    content = json.loads((folder / RECORD).read_text())
    content["version"] = 1
    for part in content["parts"]:
        del part["sha256"], part["bad_sha256"]
    write_manifest(folder / RECORD, content)
    assert resume(out, folder) == []
    record = Record.open(JOB, out, folder, resume=True)
    record.add(2 * COUNT, [results(2 * COUNT)])
    assert "entry_error" not in pq.read_schema(out / "part-000000080.parquet").names  # as in its other parts
    del record.parts[2]
    record.start("content")
    path = out / "part-000000000.parquet"
    whole, record = path.read_bytes(), (folder / RECORD).read_bytes()
    metadata = pq.read_metadata(path).row_group(0)
    rng = random.Random(0)
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        end = start + column.total_compressed_size
        damaged = bytearray(whole)
        damaged[rng.randrange(end - 8, end)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        assert resume(out, folder) == [(0, COUNT)], column.path_in_schema
        path.write_bytes(whole)
        (folder / RECORD).write_bytes(record)


def test_another_file_or_other_settings_are_another_job(folders):
    out, folder = folders
    with pytest.raises(ValueError, match="belongs to another job: content was 'content', is 'other'"):
        Record.open(JOB, out, folder, resume=True).start("other")
    other = Job(JOB.columns, False, 10, {"model": "m", "layer": 4}, "weights")
    with pytest.raises(ValueError, match=r"belongs to another job: layer was 3, is 4\. Name another folder"):
        Record.open(other, out, folder, resume=True)
    newer = Job(JOB.columns, False, 10, {**JOB.settings, "blocks": None, "trust_remote_code": False}, "weights")
    assert Record.open(newer, out, folder, resume=True).done == 2 * COUNT
    chosen = Job(JOB.columns, False, 10, {**JOB.settings, "blocks": "encoder.layer"}, "weights")
    with pytest.raises(ValueError, match=r"blocks was None, is 'encoder.layer'"):
        Record.open(chosen, out, folder, resume=True)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "3", "{}", '{"format": "whymatch batch", "version": 3}', "\0"])
def test_a_record_that_cannot_be_read(folders, text):
    out, folder = folders
    (folder / RECORD).write_text(text)
    with pytest.raises(ValueError, match=r"the record .*job.json' is damaged \(.*\); name another folder"):
        Record.open(JOB, out, folder, resume=True)


def test_every_bit_of_the_record_counts(folders):
    out, folder = folders
    path = folder / RECORD
    whole, before = path.read_bytes(), json.loads(path.read_text())
    rng = random.Random(0)
    noticed = 0
    for _ in range(300):
        path.write_bytes(flip_bit(whole, rng))
        try:
            assert Record.open(JOB, out, folder, resume=True).parts == [Part(**part) for part in before["parts"]]
        except ValueError:
            noticed += 1
    assert noticed > 250


@pytest.mark.parametrize("value", ["0", "x" * 64, 3, ["0" * 64]])
def test_a_hash_that_is_none(folders, value):
    out, folder = folders
    content = json.loads((folder / RECORD).read_text())
    content["parts"][0]["sha256"] = value
    write_manifest(folder / RECORD, content)
    with pytest.raises(ValueError, match="is damaged"):
        Record.open(JOB, out, folder, resume=True)


@pytest.mark.parametrize("name", [RECORD, ERRORS, TEXTS])
def test_links_lead_nowhere(folders, tmp_path, name):
    """Neither the record nor what is deleted or written lies elsewhere."""
    out, folder = folders
    elsewhere = tmp_path / "elsewhere"
    if (folder / name).exists():
        (folder / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (folder / name).symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a symbolic link"):
        Record.open(JOB, out, folder, resume=True)


def test_a_part_that_is_a_link(folders, tmp_path):
    out, folder = folders
    path = out / "part-000000000.parquet"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link"):
        resume(out, folder)
    path = out / "part-000000080.parquet"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a symbolic link"):
        Record(JOB, out, folder).add(2 * COUNT, [results(0)])

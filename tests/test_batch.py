"""Batch jobs: every row once, whatever happens."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from conftest import read_rows, write_manifest, write_pairs
from whymatch import Explainer
from whymatch.corpus import batch
from whymatch.corpus import record as records
from whymatch.corpus.record import ROWS
from whymatch.files import UNFINISHED, lock_folder


@pytest.fixture(scope="module")
def explainer(folders):
    return Explainer(folders("bert"), layer=-1)


def test_rows_are_what_explain_gives(explainer, tmp_path):
    pairs = write_pairs(tmp_path / "pairs.jsonl", 30)
    seen = []
    progress = batch.run_batch(pairs, tmp_path / "out", explainer, top=3, watch=seen.append)
    assert (progress.done, progress.bad, progress.rows) == (30, 0, 30)
    assert seen[-1].done == 30
    rows = read_rows(tmp_path / "out")
    assert [row["row"] for row in rows] == list(range(1, 31))
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    for row, line in zip(rows, lines, strict=True):
        why = explainer.explain(line["text_a"], line["text_b"])
        assert row["score"] == pytest.approx(why.score, abs=1e-6)
        assert row["error"] <= 1e-3
        assert row["entry_error"] == pytest.approx(why.entry_error, rel=0.5, abs=1e-4)
        assert tuple(row["tokens_a"]) == why.tokens_a
        np.testing.assert_allclose(row["matrix"], why.matrix, atol=1e-5)
        assert len(row["top"]) == 3
        best = row["top"][0]
        assert row["matrix"][best["i"]][best["j"]] == pytest.approx(best["value"], abs=1e-6)
        assert (best["a"], best["b"]) == (why.tokens_a[best["i"]], why.tokens_b[best["j"]])
    assert not (tmp_path / "out.job/texts").exists()
    assert [file.suffix for file in (tmp_path / "out").iterdir()] == [".parquet"]


def test_each_text_is_decomposed_once(explainer, tmp_path, decomposed):
    pairs = write_pairs(tmp_path / "pairs.jsonl", 40)
    batch.run_batch(pairs, tmp_path / "out", explainer, window=4)
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert sorted(decomposed) == sorted({text for line in lines for text in line.values()})


def test_words(explainer, tmp_path):
    (tmp_path / "p.csv").write_text("text_a,text_b\nThe coffee is unbelievably bad.,bad coffee\n")
    batch.run_batch(tmp_path / "p.csv", tmp_path / "out", explainer, words=True)
    (row,) = read_rows(tmp_path / "out")
    assert "unbelievably" in row["tokens_a"]
    assert np.shape(row["matrix"]) == (len(row["tokens_a"]), len(row["tokens_b"]))


def test_bad_rows_go_to_a_table_of_their_own(explainer, tmp_path):
    lines = [
        '{"text_a": "a", "text_b": "b"}',
        '{"text_a": 3, "text_b": "b"}',
        "not json",
        '{"text_a": "a"}',
        '{"text_a": "\\ud800", "text_b": "b"}',
        '{"text_a": "c", "text_b": "d"}',
        '{"text_a": " ", "text_b": "d"}',
    ]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    progress = batch.run_batch(tmp_path / "p.jsonl", tmp_path / "out", explainer)
    assert (progress.done, progress.bad) == (7, 5)
    assert [row["row"] for row in read_rows(tmp_path / "out")] == [1, 6]
    bad = pq.read_table(tmp_path / "out.job/errors").to_pylist()
    assert [row["row"] for row in bad] == [2, 3, 4, 5, 7]
    assert bad[0]["reason"] == "text_a is not a text: 3"
    assert bad[1]["reason"].startswith("it is not JSON")
    assert bad[2]["reason"] == "text_b is missing"
    assert json.loads(bad[2]["content"]) == {"text_a": "a"}
    assert json.loads(bad[1]["content"]) == {"line": "not json"}
    assert bad[4]["reason"] == "text_a is empty"


@pytest.mark.parametrize(
    "error",
    [
        ArithmeticError("the encoder is not finite there"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
)
def test_a_row_that_cannot_be_explained_does_not_take_others_with_it(explainer, tmp_path, monkeypatch, error):
    pairs = write_pairs(tmp_path / "p.jsonl", 20)
    victim = json.loads(pairs.read_text().splitlines()[7])["text_b"]
    original = Explainer.decompose

    def decompose(self, inputs, *args, **kwargs):
        if victim in inputs:
            raise error
        return original(self, inputs, *args, **kwargs)

    monkeypatch.setattr(Explainer, "decompose", decompose)
    progress = batch.run_batch(pairs, tmp_path / "out", explainer)
    lines = [json.loads(line)["text_b"] for line in pairs.read_text().splitlines()]
    assert progress.bad == lines.count(victim)
    assert len(read_rows(tmp_path / "out")) == 20 - progress.bad


def test_a_fault_of_the_engine_is_no_fault_of_a_row(explainer, tmp_path, monkeypatch):
    def decompose(*_args, **_kwargs):
        raise RuntimeError("device-side assert triggered")

    with monkeypatch.context() as patch:
        patch.setattr(Explainer, "decompose", decompose)
        with pytest.raises(RuntimeError, match="device-side assert"):
            batch.run_batch(write_pairs(tmp_path / "p.jsonl", 20), tmp_path / "out", explainer)
    assert batch.run_batch(tmp_path / "p.jsonl", tmp_path / "out", explainer).done == 20


@pytest.mark.parametrize("good", [12, 0])
def test_the_dataset_is_read_by_everyone(explainer, tmp_path, good):
    pairs = write_pairs(tmp_path / "p.jsonl", good)
    with pairs.open("a") as file:
        file.write('{"text_a": "a", "text_b": null}\n')
    out = tmp_path / "out"
    batch.run_batch(pairs, out, explainer)
    scores = [row["score"] for row in read_rows(out)]
    assert len(scores) == good
    pandas = pytest.importorskip("pandas")
    assert pandas.read_parquet(out)["score"].tolist() == scores
    duckdb = pytest.importorskip("duckdb")
    for name in (f"'{out}/*.parquet'", f"'{out}/**/*.parquet'"):
        query = f"select score, top[1].value from {name} order by row"
        assert [row[0] for row in duckdb.sql(query).fetchall()] == scores
    polars = pytest.importorskip("polars")
    for name in (out, out / "*.parquet"):
        assert polars.read_parquet(name).sort("row")["score"].to_list() == scores


def test_a_file_without_rows_is_a_dataset_without_rows(explainer, tmp_path):
    (tmp_path / "p.csv").write_text("text_a,text_b\n")
    assert batch.run_batch(tmp_path / "p.csv", tmp_path / "out", explainer) == batch.Progress(0, 0, 0)
    assert pq.read_table(tmp_path / "out").schema.names == ROWS.names


def test_windows_are_no_longer_than_a_person_waits(explainer, tmp_path, monkeypatch):
    from whymatch.corpus import local

    pairs = write_pairs(tmp_path / "p.jsonl", 60)
    sizes = []
    monkeypatch.setattr(local, "WINDOW_SECONDS", 1e9)
    batch.run_batch(pairs, tmp_path / "fast", explainer, window=32, watch=lambda progress: sizes.append(progress.done))
    assert sizes == [8, 24, 56, 60]
    monkeypatch.setattr(local, "WINDOW_SECONDS", 0.0)
    sizes.clear()
    batch.run_batch(pairs, tmp_path / "slow", explainer, watch=lambda progress: sizes.append(progress.done))
    assert sizes[:3] == [8, 9, 10]


def test_parts_are_written_before_they_are_large(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "PART_BYTES", 1)
    batch.run_batch(write_pairs(tmp_path / "p.jsonl", 24), tmp_path / "out", explainer, window=8)
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["part-000000000.parquet", "part-000000008.parquet", "part-000000016.parquet"]


COMMAND = """
import sys, torch
torch.set_num_threads(1)
from whymatch.corpus import batch
batch.PART_SECONDS, batch.PART_ROWS = 0.1, 24
from whymatch.cli import main
sys.argv = ["whymatch", *sys.argv[1:]]
main()
"""


def start(*args: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "batch", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )


def test_killed_ten_times_it_ends_with_every_row_once(tmp_path, explainer, monkeypatch):
    """SIGKILL at random moments of a real job, in forked children so that no time is lost in imports."""
    monkeypatch.setattr(batch, "PART_SECONDS", 0.0)
    pairs = write_pairs(tmp_path / "p.jsonl", 200)
    with pairs.open("a") as file:
        file.write("not json\n")
    out = tmp_path / "out"
    rng = random.Random(0)
    killed = 0
    explainer.explain("a", "b")
    while killed < 10:
        child = os.fork()
        if child == 0:  # pragma: no cover: it is killed
            try:
                batch.run_batch(pairs, out, explainer, window=4, resume=True)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break
        killed += 1
    assert killed >= 10
    parts = json.loads((tmp_path / "out.job/job.json").read_text())["parts"]
    assert sum(part["rows"] for part in parts) < 201  # otherwise nothing was tested
    progress = batch.run_batch(pairs, out, explainer, window=4, resume=True)
    assert progress.done == 201
    rows = read_rows(out)
    assert [row["row"] for row in rows] == list(range(1, 201))
    assert [row["row"] for row in pq.read_table(tmp_path / "out.job/errors").to_pylist()] == [201]
    whole = tmp_path / "whole"
    batch.run_batch(pairs, whole, explainer)
    for row, expected in zip(rows, read_rows(whole), strict=True):
        assert row["score"] == pytest.approx(expected["score"], abs=1e-6)
        np.testing.assert_allclose(row["matrix"], expected["matrix"], atol=1e-5)
    assert all(file.suffix == ".parquet" for file in out.iterdir())
    assert sorted(file.name for file in (tmp_path / "out.job").iterdir()) == [".lock", "errors", "job.json"]


def test_the_command_killed_and_resumed(tmp_path, folders, whymatch):
    pairs = write_pairs(tmp_path / "p.jsonl", 300)
    options = [pairs, tmp_path / "out", "--model", folders("bert"), "--layer", "-1", "--batch-size", "8"]
    process = start(*options)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if list((tmp_path / "out").glob("part-*.parquet")):
            process.kill()
            break
        time.sleep(0.01)
    process.communicate()
    here = ["batch", *map(str, options)]
    _, err = whymatch(*here, code=2, model=False)
    assert "holds this job already" in err
    out, _ = whymatch(*here, "--resume", model=False)
    assert "columns text_a, text_b of" in out
    assert "written: 300 rows" in out
    assert [row["row"] for row in read_rows(tmp_path / "out")] == list(range(1, 301))


def test_two_processes_on_one_folder(tmp_path, explainer):
    """A second process is refused as long as the first works, and finds all done when it has ended."""
    pairs = write_pairs(tmp_path / "p.jsonl", 60)
    begin, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover: another process

        def wait(progress):
            if progress.done == 8:
                os.write(begin[1], b".")
                os.read(end[0], 1)

        try:
            batch.run_batch(pairs, tmp_path / "out", explainer, window=8, watch=wait)
        finally:
            os._exit(0)
    os.read(begin[0], 1)
    with pytest.raises(BlockingIOError, match=r"another process is writing to .*out.job'; wait for it to end"):
        batch.run_batch(pairs, tmp_path / "out", explainer, window=8, resume=True)
    os.write(end[1], b".")
    assert os.waitpid(child, 0)[1] == 0
    assert [row["row"] for row in read_rows(tmp_path / "out")] == list(range(1, 61))
    with pytest.raises(FileExistsError, match="holds this job already, 60 rows of it"):
        batch.run_batch(pairs, tmp_path / "out", explainer)
    for descriptor in (*begin, *end):
        os.close(descriptor)


def test_folders_that_belong_to_something_else(tmp_path, explainer, folders):
    pairs = write_pairs(tmp_path / "p.jsonl", 5)
    out = tmp_path / "out"
    batch.run_batch(pairs, out, explainer)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for change, message in (
        ({"top": 3}, "top was 10, is 3"),
        ({"words": True}, "words was False, is True"),
    ):
        with pytest.raises(ValueError, match=f"belongs to another job: {message}"):
            batch.run_batch(pairs, out, explainer, resume=True, **change)
    with pytest.raises(ValueError, match=r"belongs to another job: layer was 3, is 1.*\. Name another folder"):
        batch.run_batch(pairs, out, Explainer(folders("bert"), layer=1), resume=True)
    with pytest.raises(ValueError, match=r"belongs to another job: .*identity was"):
        batch.run_batch(pairs, out, Explainer(folders("mpnet"), layer=-1), resume=True)
    with pytest.raises(ValueError, match=r"belongs to another job: tolerance was 0.001, is 0.002"):
        batch.run_batch(pairs, out, Explainer(folders("bert"), layer=-1, tolerance=2e-3), resume=True)
    with pytest.raises(FileExistsError, match="holds this job already, 5 rows of it; go on with --resume"):
        batch.run_batch(pairs, out, explainer)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    other = write_pairs(tmp_path / "other.jsonl", 6)
    with pytest.raises(ValueError, match="belongs to another job: content was"):
        batch.run_batch(other, out, explainer, resume=True)
    assert batch.run_batch(pairs, out, explainer, resume=True).done == 5
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match=r"is not empty \(thesis.tex\), and holds no job"):
        batch.run_batch(pairs, tmp_path / "full", explainer)


def test_nothing_of_others_is_touched(tmp_path, explainer):
    """A folder that happens to be called like a job's, and files that happen to end like what is being written."""
    pairs = write_pairs(tmp_path / "p.jsonl", 5)
    (tmp_path / "out.job/errors").mkdir(parents=True)
    thesis = tmp_path / "out.job/errors/thesis.tex"
    thesis.write_text("mine")
    with pytest.raises(FileExistsError, match=r"out.job' is not empty \(errors\), and holds no job"):
        batch.run_batch(pairs, tmp_path / "out", explainer)
    assert thesis.read_text() == "mine"
    (tmp_path / ".notes.tmp").write_text("mine")
    left = tmp_path / f".part.parquet.1.2{UNFINISHED}"
    left.write_text("what a process that died was writing")
    with lock_folder(tmp_path):
        assert (tmp_path / ".notes.tmp").exists()
        assert not left.exists()


def test_a_dataset_that_was_thrown_away_is_begun_anew(tmp_path, explainer, folders):
    pairs = write_pairs(tmp_path / "p.jsonl", 5)
    with pairs.open("a") as file:
        file.write("not json\n")
    out = tmp_path / "out"
    batch.run_batch(pairs, out, explainer)
    shutil.rmtree(out)
    progress = batch.run_batch(pairs, out, Explainer(folders("bert"), layer=1))
    assert (progress.done, progress.bad) == (6, 1)
    assert pq.read_table(tmp_path / "out.job/errors").num_rows == 1


@pytest.mark.parametrize("damage", ["cut", "gone", "zeros", "errors"])
def test_what_is_damaged_is_done_again_and_nothing_else(tmp_path, explainer, interrupted, damage, decomposed):
    pairs = write_pairs(tmp_path / "p.jsonl", 40, repeat=1)
    lines = pairs.read_text().splitlines()
    lines[3] = "not json"
    pairs.write_text("\n".join(lines))
    out = tmp_path / "out"
    interrupted(pairs, out, explainer, 8)
    part = out / "part-000000000.parquet"
    whole = part.read_bytes()
    if damage == "gone":
        part.unlink()
    elif damage == "errors":
        (tmp_path / "out.job/errors/part-000000000.parquet").unlink()
    else:
        part.write_bytes(whole[:-10] if damage == "cut" else b"\0" * len(whole))
    decomposed.clear()
    with pytest.warns(UserWarning, match=r"part-000000000.parquet of .*out' is damaged or missing; 8 rows"):
        progress = batch.run_batch(pairs, out, explainer, window=8, resume=True)
    assert (progress.done, progress.bad) == (40, 1)
    assert sorted(row["row"] for row in read_rows(out)) == [i for i in range(1, 41) if i != 4]
    second = {text for line in lines[8:16] for text in json.loads(line).values()}
    others = {text for i, line in enumerate(lines) if i != 3 and not 8 <= i < 16 for text in json.loads(line).values()}
    assert not set(decomposed) & (second - others)


@pytest.mark.parametrize(
    ("message", "damage"),
    [
        ("two parts stand for row", lambda record: record["parts"][0].update(first=8)),
        ("a part is", lambda record: record["parts"][0].update(rows=-1)),
        ("a part is", lambda record: record["parts"][0].update(bad=99)),
        ("'bytes'", lambda record: record["parts"][0].pop("bytes")),
        ("'file'", lambda record: record["parts"][0].update(file="../../elsewhere.parquet")),
        ("damaged", lambda record: record.update(job=[])),
        ("damaged", lambda record: record.update(parts=3)),
        ("its format is 'x'", lambda record: record.update(format="x")),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, explainer, interrupted, message, damage):
    pairs = write_pairs(tmp_path / "p.jsonl", 40)
    out, path = tmp_path / "out", tmp_path / "out.job/job.json"
    interrupted(pairs, out, explainer, 8)
    record = json.loads(path.read_text())
    damage(record)
    write_manifest(path, record)
    with pytest.raises(ValueError, match=message):
        batch.run_batch(pairs, out, explainer, resume=True)
    assert len(list(out.iterdir())) == 2
    path.write_text("{")
    with pytest.raises(ValueError, match=r"the record .*job.json' is damaged .*; name another folder"):
        batch.run_batch(pairs, out, explainer, resume=True)


def test_a_part_that_the_record_forgot_is_done_again(tmp_path, explainer, interrupted):
    pairs = write_pairs(tmp_path / "p.jsonl", 40)
    out, path = tmp_path / "out", tmp_path / "out.job/job.json"
    interrupted(pairs, out, explainer, 8)
    record = json.loads(path.read_text())
    del record["parts"][0]
    write_manifest(path, record)
    assert batch.run_batch(pairs, out, explainer, window=8, resume=True).done == 40
    assert [row["row"] for row in read_rows(out)] == list(range(1, 41))


def test_a_full_disk_loses_nothing(tmp_path, explainer, monkeypatch):
    import errno

    pairs = write_pairs(tmp_path / "p.jsonl", 40)
    monkeypatch.setattr(batch, "PART_SECONDS", 0.0)
    write, count = pq.write_table, []

    def full(table, where, **options):
        count.append(1)
        if len(count) == 3:
            where.write_bytes(b"half a par")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(table, where, **options)

    monkeypatch.setattr(records.pq, "write_table", full)
    with pytest.raises(OSError, match=r"the disk is full: what is done in .* is safe; free some space, then resume"):
        batch.run_batch(pairs, tmp_path / "out", explainer, window=8)
    assert [row["row"] for row in read_rows(tmp_path / "out")] == list(range(1, 17))
    batch.run_batch(pairs, tmp_path / "out", explainer, window=8, resume=True)
    assert [row["row"] for row in read_rows(tmp_path / "out")] == list(range(1, 41))


def test_an_unwritable_folder(tmp_path, explainer, monkeypatch):
    (tmp_path / "file").write_text("")
    pairs = write_pairs(tmp_path / "p.jsonl", 2)
    with pytest.raises(OSError, match=r"cannot write to .*file/out': Not a directory"):
        batch.run_batch(pairs, tmp_path / "file/out", explainer)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(PermissionError, match=r"cannot write to .*out': the folder is not writable"):
        batch.run_batch(pairs, tmp_path / "out", explainer)


def test_a_disk_of_its_own_is_refused(tmp_path, explainer, monkeypatch):
    other = Path("/proc")
    if other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other disk here")
    monkeypatch.setattr(batch, "job_folder", lambda _: other / "out.job")
    with pytest.raises(ValueError, match=r"out' is a disk of its own, and its job's folder is on another"):
        batch.run_batch(write_pairs(tmp_path / "p.jsonl", 2), tmp_path / "out", explainer)


def test_what_a_job_could_not_take_up_again_is_refused(tmp_path, load):
    pairs = write_pairs(tmp_path / "p.jsonl", 2)
    with pytest.raises(ValueError, match="a batch cannot remember a reference that is a function, zero"):
        batch.run_batch(pairs, tmp_path / "out", Explainer(load(), reference=zero))
    with pytest.raises(ValueError, match="a batch is of tokens, not of groups='words'"):
        batch.run_batch(pairs, tmp_path / "out", Explainer(load(), groups="words"))
    assert not (tmp_path / "out").exists()


def zero(x):
    return x * 0


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_damaged_leftovers_of_texts_are_made_again(tmp_path, explainer, interrupted, damage):
    pairs = write_pairs(tmp_path / "p.jsonl", 40)
    interrupted(pairs, tmp_path / "out", explainer, 8)
    for shard in (tmp_path / "out.job/texts").rglob("*.arrow"):
        shard.write_bytes(b"damaged" if damage == "cut" else b"\0" * shard.stat().st_size)
    progress = batch.run_batch(pairs, tmp_path / "out", explainer, window=8, resume=True)
    assert (progress.done, progress.bad) == (40, 0)
    assert [row["row"] for row in read_rows(tmp_path / "out")] == list(range(1, 41))


def test_queries_and_documents_go_their_own_ways(tmp_path):
    """A text that is a query in one row and a document in another is two things to an asymmetric model."""
    import zoo

    model = zoo.asymmetric(tmp_path)
    explainer = Explainer(model, layer=-1)
    texts = [("bad coffee", "good bread"), ("good bread", "bad coffee"), ("bad coffee", "bad coffee")]
    (tmp_path / "p.csv").write_text("text_a,text_b\n" + "".join(f"{a},{b}\n" for a, b in texts))
    batch.run_batch(tmp_path / "p.csv", tmp_path / "out", explainer, window=1)
    for row, pair in zip(read_rows(tmp_path / "out"), texts, strict=True):
        why = explainer.explain(*pair)
        assert row["score"] == pytest.approx(why.score, abs=1e-6)
        assert (tuple(row["tokens_a"]), tuple(row["tokens_b"])) == (why.tokens_a, why.tokens_b)
        np.testing.assert_allclose(row["matrix"], why.matrix, atol=1e-5)


def test_prompts_are_the_models_own_and_belong_to_the_job(tmp_path):
    import zoo

    explainer = Explainer(str(zoo.prompted(tmp_path)), layer=-1)
    model = explainer.model
    (tmp_path / "p.csv").write_text("query,document\nbad coffee,good bread\ngood bread,bad coffee\n")
    batch.run_batch(tmp_path / "p.csv", tmp_path / "out", explainer)
    for row in read_rows(tmp_path / "out"):
        own = model.similarity(model.encode_query(row["text_a"]), model.encode_document(row["text_b"]))
        assert row["score"] == pytest.approx(float(own), abs=1e-6)
    with pytest.raises(ValueError, match="belongs to another job: readings was"):
        batch.run_batch(tmp_path / "p.csv", tmp_path / "out", explainer, resume=True, prompt_name="other")


def expected_rows(pairs, explainer):
    for line in pairs.read_text().splitlines():
        pair = json.loads(line)
        yield explainer.explain(pair["text_a"], pair["text_b"])


@pytest.mark.parametrize("left", ["parts", "texts only"])
def test_stored_texts_of_another_layer_are_not_used(tmp_path, explainer, interrupted, left):
    pairs = write_pairs(tmp_path / "p.jsonl", 20)
    out = tmp_path / "out"
    interrupted(pairs, out, explainer, 8)
    assert list((tmp_path / "out.job/texts").rglob("*.arrow"))
    shutil.rmtree(out)
    if left == "texts only":  # as after a kill before the first part
        out.mkdir()
    other = explainer.at_layer(1)
    batch.run_batch(pairs, out, other, window=8)
    batch.run_batch(pairs, tmp_path / "fresh", other, window=8)
    for row, fresh in zip(read_rows(out), read_rows(tmp_path / "fresh"), strict=True):
        np.testing.assert_allclose(row["matrix"], fresh["matrix"], atol=1e-6)


def test_stored_texts_of_other_weights_are_not_used(tmp_path, interrupted, folders, decomposed):
    """A model that was trained further in the same folder."""
    from sentence_transformers import SentenceTransformer

    place = str(shutil.copytree(folders("bert"), tmp_path / "model"))
    pairs = write_pairs(tmp_path / "p.jsonl", 20)
    interrupted(pairs, tmp_path / "out", Explainer(place, layer=-1), 8)
    model = SentenceTransformer(place, device="cpu")
    model[0].auto_model.embeddings.word_embeddings.weight.data *= 1.5
    model.save(place)
    shutil.rmtree(tmp_path / "out")
    decomposed.clear()
    explainer = Explainer(place, layer=-1)
    batch.run_batch(pairs, tmp_path / "out", explainer, window=8)
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert sorted(decomposed) == sorted({text for line in lines for text in line.values()})
    for row, why in zip(read_rows(tmp_path / "out"), expected_rows(pairs, explainer), strict=True):
        assert row["score"] == pytest.approx(why.score, abs=1e-6)


def test_stored_texts_of_the_same_job_are_used(tmp_path, explainer, interrupted, decomposed):
    pairs = write_pairs(tmp_path / "p.jsonl", 24, repeat=24)  # the first text of all rows is the same
    interrupted(pairs, tmp_path / "out", explainer, 8)
    decomposed.clear()
    batch.run_batch(pairs, tmp_path / "out", explainer, window=8, resume=True)
    assert json.loads(pairs.read_text().splitlines()[0])["text_a"] not in decomposed


def test_a_file_is_read_once_and_then_from_where_rows_are_missing(tmp_path, explainer, interrupted, monkeypatch):
    from whymatch.corpus import tables

    pairs = write_pairs(tmp_path / "p.jsonl", 60)
    interrupted(pairs, tmp_path / "out", explainer, 8)
    monkeypatch.setattr(tables, "MARK_EVERY", 4)
    decode, read = tables._decode_lines, []

    def count(*args):
        for line in decode(*args):
            read.append(line)
            yield line

    monkeypatch.setattr(tables, "_decode_lines", count)
    batch.run_batch(pairs, tmp_path / "out", explainer, window=8, resume=True)
    assert len(read) <= 60 + 60 + (60 - 16) + 4  # its columns (no more than 100 lines), the scan, the missing rows


def test_broken_quotation_marks_are_counted(tmp_path, whymatch):
    file = tmp_path / "p.csv"
    file.write_text('text_a,text_b\nx,"open\nbad coffee,bread\ngood,coffee\nx,"open again\nman,dog\n')
    out, _ = whymatch("batch", str(file), str(tmp_path / "out"), "--layer", "-1")
    assert f"written: 3 rows to {tmp_path / 'out'}; 2 bad rows, listed in {tmp_path / 'out.job/errors'}" in out.replace(
        "\n", ""
    )
    assert [row["row"] for row in read_rows(tmp_path / "out")] == [3, 4, 6]
    assert [row["row"] for row in read_rows(tmp_path / "out.job/errors")] == [2, 5]


def test_no_progress_is_shown_before_an_error(tmp_path, whymatch):
    pairs = write_pairs(tmp_path / "p.jsonl", 3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("")
    _, err = whymatch("batch", str(pairs), str(tmp_path / "full"), code=2)
    assert err.startswith("whymatch: ")
    assert err.count("\n") == 1


def test_nothing_in_a_file_steers_the_terminal(tmp_path, whymatch):
    file = tmp_path / "p.csv"
    file.write_text("\x1b[31mtext_a,text_b\na,b\n")
    options = ["--columns", "\x1b[31mtext_a,text_b", "--layer", "-1"]
    out, err = whymatch("batch", str(file), str(tmp_path / "out"), *options)
    assert "\x1b[31m" not in out + err
    assert "columns '\\x1b[31mtext_a', text_b of p.csv" in out

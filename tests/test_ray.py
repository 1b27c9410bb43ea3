"""The same jobs on a local Ray cluster of two nodes, one of whose workers is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import read_rows, write_pairs

ray = pytest.importorskip("ray", reason="these need the extra ray: pip install 'whymatch[ray]'")

from whymatch import Explainer
from whymatch.corpus import batch
from whymatch.corpus.ray import WAITING, Ray, stream

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:no news from the Ray cluster"),  # on a machine that has much else to do
]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, each with a core of its own."""
    from ray.cluster_utils import Cluster

    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else other tests keep the workers waiting
        # Workers are not killed, nor objects refused, for what else fills this machine's memory and disk.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_local_fs_capacity_threshold": "1",
        "OMP_NUM_THREADS": "1",
        "WHYMATCH_TEST": str(os.getpid()),
    }
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 120 * 2**20})
    nodes.add_node(num_cpus=2, object_store_memory=120 * 2**20)
    ray.init(address=nodes.address, log_to_driver=False)
    try:
        if not ray.wait([ray.remote(lambda: True).remote()], timeout=120)[0]:
            pytest.skip("a cluster on this machine starts no worker within two minutes")
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def explainer(folders):
    return Explainer(folders("bert"), layer=-1)


def test_the_cluster_gives_what_this_process_gives(cluster, explainer, tmp_path):
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    pairs = write_pairs(tmp_path / "p.jsonl", 24)
    with pairs.open("a") as file:
        file.write('not json\n{"text_a": "a", "text_b": "b"}\n')
    batch.run_batch(pairs, tmp_path / "local", explainer)
    progress = batch.run_batch(
        pairs, tmp_path / "ray", explainer, window=8, ray=Ray(cluster.address, workers=2, num_cpus=1)
    )
    assert (progress.done, progress.bad) == (26, 1)
    ours, theirs = read_rows(tmp_path / "local"), read_rows(tmp_path / "ray")
    assert [row["row"] for row in theirs] == [row["row"] for row in ours]
    for row, expected in zip(ours, theirs, strict=True):
        assert row["score"] == pytest.approx(expected["score"], abs=1e-6)
        assert row["tokens_b"] == expected["tokens_b"]
        np.testing.assert_allclose(row["matrix"], expected["matrix"], atol=1e-6)
    assert pq.read_table(tmp_path / "ray.job/errors")["row"].to_pylist() == [25]


def workers() -> list[int]:
    """The actors' processes: descendants of this one's cluster, and of no other on the machine."""
    import psutil

    workers = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = " ".join(process.info["cmdline"] or [])
        mine = (process.info["environ"] or {}).get("WHYMATCH_TEST") == str(os.getpid())
        if mine and line.startswith("ray::Actor"):
            workers.append(process.pid)
    return workers


def test_a_worker_that_is_killed_is_replaced(cluster, explainer, tmp_path):
    pairs = write_pairs(tmp_path / "p.jsonl", 80)
    killed: list[int] = []

    def kill_one(progress):
        if not killed and progress.done < 60:
            for pid in workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    ours = Ray(cluster.address, workers=2)
    batch.run_batch(pairs, tmp_path / "out", explainer, window=4, ray=ours, watch=kill_one)
    assert killed
    batch.run_batch(pairs, tmp_path / "here", explainer)
    for row, expected in zip(read_rows(tmp_path / "out"), read_rows(tmp_path / "here"), strict=True):
        assert (row["row"], row["text_a"], row["text_b"]) == (expected["row"], expected["text_a"], expected["text_b"])
        np.testing.assert_allclose(row["matrix"], expected["matrix"], atol=1e-6)


def test_the_command_line(cluster, tmp_path, whymatch):
    pairs = write_pairs(tmp_path / "p.jsonl", 12)
    options = ["--layer", "-1", "--engine", "ray", "--address", cluster.address, "--workers", "1", "--batch-size", "4"]
    out, _ = whymatch("batch", str(pairs), str(tmp_path / "out"), *options)
    assert "written: 12 rows" in out
    _, err = whymatch("batch", str(pairs), str(tmp_path / "other"), *options[:2], "--workers", "2", code=2)
    assert "--address, --workers and --num-gpus are for --engine ray" in err
    assert not (tmp_path / "other").exists()


def test_a_cluster_that_fails_is_named(cluster, tmp_path, explainer, monkeypatch):
    """A node that has another model under the name of the job's."""
    pairs = write_pairs(tmp_path / "p.jsonl", 12)
    with monkeypatch.context() as patch:
        patch.setattr(Explainer, "identity", "0" * 64)
        with pytest.raises(OSError, match=r"the Ray cluster failed \(.*is another than that of the job"):
            batch.run_batch(pairs, tmp_path / "out", explainer, ray=Ray(cluster.address, workers=1))


@pytest.mark.parametrize("begun", ["here", "there"])
def test_an_interrupted_job_goes_on_in_the_other_place(cluster, explainer, tmp_path, interrupted, begun):
    pairs = write_pairs(tmp_path / "p.jsonl", 60)
    there = Ray(cluster.address, workers=1)
    first, second = (None, there) if begun == "here" else (there, None)
    interrupted(pairs, tmp_path / "out", explainer, 8, ray=first)
    batch.run_batch(pairs, tmp_path / "out", explainer, window=8, resume=True, ray=second)
    assert [row["row"] for row in read_rows(tmp_path / "out")] == list(range(1, 61))


def test_an_index_is_built_on_the_cluster(cluster, explainer, tmp_path, monkeypatch):
    from whymatch.corpus import index as module

    monkeypatch.setattr(module, "SHARD", 8)
    documents = [f"The coffee number {i} is {'not ' * (i % 3)}good." for i in range(30)]
    options = {"precision": "float16", "store": "tokens"}
    here = module.Index.build(documents, tmp_path / "here", explainer, **options)
    there = module.Index.build(documents, tmp_path / "there", explainer, ray=Ray(cluster.address, workers=1), **options)
    assert list(there.store.texts()) == documents
    for i in range(30):
        np.testing.assert_allclose(here.store[i].contributions, there.store[i].contributions, atol=1e-3)
        np.testing.assert_allclose(here.store[i].embedding, there.store[i].embedding, atol=1e-6)
    assert there.add(["One more."], ray=Ray(cluster.address, workers=1)) == 1
    assert module.Index.open(tmp_path / "there").search("One more.", top=1).hits[0].index == 30


def test_blocks_are_sent_only_as_fast_as_results_are_taken(cluster):
    class Double:
        def __call__(self, block):
            return block.append_column("double", [[2 * block["i"][0].as_py()]])

    sent = 0

    def blocks():
        nonlocal sent
        for i in range(60):
            sent += 1
            yield pa.table({"i": [i]})

    workers = 2
    for i, block in enumerate(stream(Ray(cluster.address, workers=workers, num_cpus=0.1), blocks(), Double, {})):
        assert block.to_pydict() == {"i": [i], "double": [2 * i]}
        assert sent <= i + 1 + (WAITING + 1) * workers
    assert i == 59
    assert list(stream(Ray(cluster.address), iter(()), Double, {})) == []


def test_a_cluster_without_room_says_what_it_waits_for(cluster, monkeypatch):
    monkeypatch.setattr("whymatch.corpus.ray.PATIENCE", 0.5)
    results = stream(Ray(cluster.address, workers=1, num_cpus=100), [pa.table({"i": [1]})], object, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # which ends the waiting
        with pytest.raises(UserWarning, match=r"0 of 1 workers have started, 0 blocks are under way, .* free: .*CPU"):
            next(results)


def test_more_workers_than_there_is_room_for(cluster):
    """Those that find no place do not keep the others from working."""

    class Same:
        def __call__(self, block):
            return block

    blocks = [pa.table({"i": [i]}) for i in range(30)]
    results = stream(Ray(cluster.address, workers=20, num_cpus=1), blocks, Same, {})
    assert [block["i"][0].as_py() for block in results] == list(range(30))


DRIVER = """
import os, signal, sys
import psutil
from whymatch.corpus.ray import Ray, _connect
with _connect(Ray()):
    import ray
    class Busy:
        def work(self): return 1
    actor = ray.remote(num_cpus=0)(Busy).remote()
    ray.get(actor.work.remote())
    ours = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for connection in psutil.net_connections("tcp"):
        if connection.status == "LISTEN" and connection.pid in {*ours, os.getpid()}:
            print("listening", connection.laddr.ip)
    print("processes", *ours, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray's own processes look after themselves")
@pytest.mark.parametrize("end", ["kill", "return"])
def test_a_cluster_of_its_own_is_local_and_ends_with_its_driver(end, tmp_path):
    import psutil

    out = tmp_path / "out"  # no pipe: whatever outlives the driver would hold it open
    with out.open("w") as file:
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", DRIVER, end],
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=200,
            env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
        )
    lines = [line.split() for line in out.read_text().splitlines() if line.startswith(("listening ", "processes "))]
    addresses = [line[1] for line in lines if line[0] == "listening"]
    assert len(addresses) > 3, out.read_text()
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    processes = [int(pid) for line in lines if line[0] == "processes" for pid in line[1:]]
    assert len(processes) > 4
    deadline = time.monotonic() + 25
    while (left := [pid for pid in processes if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left

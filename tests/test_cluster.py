"""The same jobs on a local Ray cluster of two nodes, one of whose workers is killed."""

from __future__ import annotations

import os
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_batch import read, write_pairs

ray = pytest.importorskip("ray", reason="these need the extra ray: pip install 'whymatch[ray]'")
pytest.importorskip("ray.data")

from whymatch import Explainer, batch
from whymatch.cluster import Ray

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, each with a core of its own."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["WHYMATCH_TEST"] = str(os.getpid())
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 120 * 2**20})
    found.add_node(num_cpus=2, object_store_memory=120 * 2**20)
    ray.init(address=found.address, log_to_driver=False)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.fixture(scope="module")
def explainer(folders):
    return Explainer(folders("bert"), layer=-1)


def test_the_cluster_gives_what_this_process_gives(cluster, explainer, tmp_path):
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    pairs = write_pairs(tmp_path / "p.jsonl", 60)
    with pairs.open("a") as file:
        file.write('not json\n{"text_a": "a", "text_b": "b"}\n')
    batch.run(pairs, tmp_path / "local", explainer)
    found = batch.run(pairs, tmp_path / "ray", explainer, window=8, ray=Ray(cluster.address, workers=2, num_cpus=1))
    assert (found.done, found.bad) == (62, 1)
    ours, theirs = read(tmp_path / "local"), read(tmp_path / "ray")
    assert [row["row"] for row in theirs] == [row["row"] for row in ours]
    for one, other in zip(ours, theirs, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-6)
        assert one["tokens_b"] == other["tokens_b"]
        np.testing.assert_allclose(one["matrix"], other["matrix"], atol=1e-6)
    assert pq.read_table(tmp_path / "ray.job/errors")["row"].to_pylist() == [61]


def workers() -> list[int]:
    """The actors' processes: descendants of this one's cluster, and of no other on the machine."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = " ".join(process.info["cmdline"] or [])
        mine = (process.info["environ"] or {}).get("WHYMATCH_TEST") == str(os.getpid())
        if mine and line.startswith("ray::") and "Worker" in line:
            found.append(process.pid)
    return found


def test_a_worker_that_is_killed_is_replaced(cluster, explainer, tmp_path):
    pairs = write_pairs(tmp_path / "p.jsonl", 400)
    killed: list[int] = []

    def kill_one(progress):
        if not killed and progress.done < 300:
            for pid in workers()[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    ours = Ray(cluster.address, workers=2)
    batch.run(pairs, tmp_path / "out", explainer, window=4, ray=ours, watch=kill_one)
    assert killed
    batch.run(pairs, tmp_path / "here", explainer)
    for one, other in zip(read(tmp_path / "out"), read(tmp_path / "here"), strict=True):
        assert (one["row"], one["text_a"], one["text_b"]) == (other["row"], other["text_a"], other["text_b"])
        np.testing.assert_allclose(one["matrix"], other["matrix"], atol=1e-6)


def test_a_job_on_the_cluster_goes_on_after_an_interruption(cluster, explainer, tmp_path, interrupted):
    pairs = write_pairs(tmp_path / "p.jsonl", 60)
    ours = Ray(cluster.address, workers=1)
    interrupted(pairs, tmp_path / "out", explainer, 8, ray=ours)
    batch.run(pairs, tmp_path / "out", explainer, window=8, resume=True, ray=ours)
    assert [row["row"] for row in read(tmp_path / "out")] == list(range(1, 61))


def test_the_command_line(cluster, tmp_path, whymatch):
    pairs = write_pairs(tmp_path / "p.jsonl", 12)
    options = ["--layer", "-1", "--engine", "ray", "--address", cluster.address, "--workers", "2", "--batch-size", "4"]
    out, _ = whymatch("batch", str(pairs), str(tmp_path / "out"), *options)
    assert "written: 12 rows" in out
    _, err = whymatch("batch", str(pairs), str(tmp_path / "other"), *options[:2], "--workers", "2", code=2)
    assert "--address, --workers and --num-gpus are for --engine ray" in err
    assert not (tmp_path / "other").exists()


def test_a_cluster_that_fails_is_named(cluster, tmp_path, explainer, monkeypatch):
    """A node that has another model under the name of the job's."""
    from whymatch import engines

    pairs = write_pairs(tmp_path / "p.jsonl", 12)
    with monkeypatch.context() as patch:
        patch.setattr(engines.models, "identity", lambda _: "0" * 64)
        with pytest.raises(OSError, match=r"the Ray cluster failed \(.*is another than that of the job"):
            batch.run(pairs, tmp_path / "out", explainer, ray=Ray(cluster.address, workers=1))


def test_a_job_goes_on_from_one_engine_to_the_other(cluster, explainer, tmp_path, interrupted):
    pairs = write_pairs(tmp_path / "p.jsonl", 60)
    interrupted(pairs, tmp_path / "out", explainer, 8)
    batch.run(pairs, tmp_path / "out", explainer, window=8, resume=True, ray=Ray(cluster.address, workers=2))
    assert [row["row"] for row in read(tmp_path / "out")] == list(range(1, 61))


def test_an_index_is_built_on_the_cluster(cluster, explainer, tmp_path, monkeypatch):
    from whymatch import index as module

    monkeypatch.setattr(module, "SHARD", 8)
    documents = [f"The coffee number {i} is {'not ' * (i % 3)}good." for i in range(30)]
    here = module.Index.build(documents, tmp_path / "here", explainer, precision="float16")
    there = module.Index.build(
        documents, tmp_path / "there", explainer, precision="float16", ray=Ray(cluster.address, workers=2)
    )
    assert list(there.store.texts()) == documents
    for i in range(30):
        np.testing.assert_allclose(here.store[i].contributions, there.store[i].contributions, atol=1e-3)
        np.testing.assert_allclose(here.store[i].embedding, there.store[i].embedding, atol=1e-6)
    assert there.add(["One more."], ray=Ray(cluster.address, workers=1)) == 1
    assert module.Index.open(tmp_path / "there").search("One more.", top=1).hits[0].index == 30

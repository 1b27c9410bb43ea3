"""One file of a store."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from conftest import TEXTS, write_manifest
from whymatch import Explainer
from whymatch.corpus.store import MANIFEST, Store


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-6), ("float16", 2e-3), ("int8", 2e-2)])
def test_smaller_numbers_cost_little_and_say_how_much(explainer, tmp_path, precision, bound):
    store = Store.create(tmp_path / "s", explainer.settings, "", 16, precision)
    decs = explainer.decompose(TEXTS[:2])
    store.append(decs)
    exact, stored = Explainer.pair(*decs), Explainer.pair(store[0], store[1])
    assert stored.score == pytest.approx(exact.score, abs=1e-6)  # from embeddings, which are kept as they are
    size = np.abs(exact.matrix).max()
    assert np.abs(stored.matrix - exact.matrix).max() <= bound * size
    assert stored.error == pytest.approx(abs(stored.score - stored.matrix.sum()))
    with pytest.raises(ValueError, match="precision='int4' is not known; choose one of float32, float16, int8"):
        Store.create(tmp_path / "t", explainer.settings, "", 16, "int4")


def read_again(folder, before) -> int:
    try:
        again = Store.open(folder)
        vectors = np.concatenate(list(again.embeddings()))
        same = all(
            (stored.text, stored.tokens, stored.offsets, stored.kinds)
            == (expected.text, expected.tokens, expected.offsets, expected.kinds)
            and np.array_equal(stored.contributions, expected.contributions)
            and np.array_equal(vectors[i], expected.embedding)
            for i, (stored, expected) in enumerate(zip((again[i] for i in range(len(before))), before, strict=True))
        )
    except ValueError as error:
        return 3 if "is damaged" in str(error) else 1
    except BaseException:
        return 2
    return 0 if same else 4


def test_no_damage_of_a_shard_gives_a_wrong_result_or_a_crash(store):
    """Bytes at random places are changed; what is read then is what was written, or an error says that it is not."""
    shards = [store.folder / shard.file for shard in store.shards]
    whole = [path.read_bytes() for path in shards]
    before = [store[i] for i in range(len(store))]
    rng = random.Random(0)
    outcomes = set()
    for _ in range(60):
        number = rng.randrange(len(shards))
        content = bytearray(whole[number])
        place = rng.randrange(len(content) - 8)
        content[place : place + 8] = rng.randbytes(8)
        shards[number].write_bytes(content)
        child = os.fork()  # it may die of what it reads
        if child == 0:  # pragma: no cover: another process
            os._exit(read_again(store.folder, before))
        status = os.waitpid(child, 0)[1]
        assert os.WIFEXITED(status), f"bytes from {place} of {shards[number].name} on: signal {os.WTERMSIG(status)}"
        outcomes.add(os.WEXITSTATUS(status))
        assert os.WEXITSTATUS(status) in (0, 3), f"bytes from {place} of {shards[number].name} on"
        shards[number].write_bytes(whole[number])
    assert outcomes == {0, 3}


def test_numbers_that_do_not_fit_are_refused(explainer, tmp_path):
    (dec,) = explainer.decompose(TEXTS[:1])
    store = Store.create(tmp_path / "s", explainer.settings, "", 16, "float16")
    with pytest.raises(ValueError, match=r"contributions of 'The coffee is not good.' do not fit into float16"):
        store.append([replace(dec, contributions=dec.contributions * 1e9)])


def test_errors_are_stored_with_what_fewer_bits_add(explainer, tmp_path):
    decompositions = explainer.decompose(TEXTS[:2])
    exact = Explainer.pair(*decompositions)
    estimates = []
    for precision in ("float32", "float16", "int8"):
        store = Store.create(tmp_path / precision, explainer.settings, "", 16, precision)
        store.append(decompositions)
        why = Explainer.pair(store[0], store[1])
        assert (np.abs(why.matrix - exact.matrix) <= why.entry_errors + 1e-6).all()
        estimates.append(why.entry_error)
    assert estimates[0] == pytest.approx(exact.entry_error, rel=1e-3, abs=1e-6)
    assert estimates == sorted(estimates)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_shard_is_refused_before_it_unfolds(store, codec, monkeypatch):
    path = store.folder / "00000.arrow"
    with pa.OSFile(str(path)) as source:
        rows = pa.ipc.open_file(source).read_all()
    with pa.ipc.new_file(str(path), rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(rows)
    manifest = json.loads((store.folder / MANIFEST).read_text())
    manifest["shards"][0]["bytes"] = path.stat().st_size
    write_manifest(store.folder / MANIFEST, manifest)
    monkeypatch.setattr(pa.ipc, "read_record_batch", lambda *_: pytest.fail("it was unfolded"))
    with pytest.raises(ValueError, match="it is compressed, and stores are not"):
        Store.open(store.folder)[0]


def test_an_empty_shard_is_damaged(store):
    manifest = json.loads((store.folder / MANIFEST).read_text())
    path = store.folder / "00001.arrow"
    for content in (b"ARROW1\0\0", b"ARROW1\0\0" + b"\xff\xff\xff\xff\0\0\0\0" * 200):
        path.write_bytes(content.ljust(2000, b"\0"))
        manifest["shards"][1]["bytes"] = path.stat().st_size
        write_manifest(store.folder / MANIFEST, manifest)
        with pytest.raises(ValueError, match=r"00001.arrow' is damaged"):
            list(Store.open(store.folder).texts())

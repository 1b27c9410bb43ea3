"""Decompositions on disk."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest

from conftest import TEXTS, flip_bit, write_manifest
from whymatch import Explainer
from whymatch.corpus.shards import to_rows
from whymatch.corpus.store import MANIFEST, Store
from whymatch.files import lock_folder


def test_what_is_stored_comes_back_to_the_bit(store, explainer):
    again = Store.open(store.folder)
    assert len(again) == len(TEXTS)
    assert list(again.texts()) == TEXTS
    for i, dec in enumerate(explainer.decompose(TEXTS)):
        stored = again[i]
        for name in ("text", "tokens", "offsets", "kinds", "truncated", "unit", "mode", "nodes", "settings"):
            assert getattr(stored, name) == getattr(dec, name), name
        for name in ("contributions", "embedding", "reference", "shares"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(dec, name).astype(np.float32), err_msg=name)
    a, b = again[0], again[1]
    why, direct = Explainer.pair(a, b), explainer.explain(TEXTS[0], TEXTS[1])
    np.testing.assert_allclose(why.matrix, direct.matrix, atol=1e-5)  # other batches round otherwise
    np.testing.assert_array_equal(
        np.concatenate(list(again.embeddings())), [again[i].embedding for i in range(len(TEXTS))]
    )
    with pytest.raises(IndexError, match="text 6 is out of range: the store has 6"):
        again[6]


def shard_of(**changes):
    return {"file": "00000.arrow", "texts": 1, "bytes": 1000, "embeddings": 0} | changes


def test_damage_is_found_and_named(store):
    shard = store.folder / "00000.arrow"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"00000.arrow' has [\d,]+ of [\d,]+ bytes; build the store again"):
        Store.open(store.folder)
    shard.write_bytes(b"\0" * len(whole))
    with pytest.raises(ValueError, match=r"00000.arrow' is damaged"):
        Store.open(store.folder)[0]
    shard.unlink()
    with pytest.raises(ValueError, match=r"00000.arrow' is missing"):
        Store.open(store.folder)
    manifest = store.folder / MANIFEST
    content = json.loads(manifest.read_text())
    for change, message in (
        ({"format": "other"}, "its format is 'other', not 'whymatch store'"),
        ({"version": 9}, "its version is 9; this whymatch reads 1 to 3"),
        ({"settings": {"model": "x"}}, "cannot be used"),
        ({"settings": content["settings"] | {"layer": "2"}}, "layer is '2'"),
        ({"settings": content["settings"] | {"model": ["x"]}}, "model is"),
        ({"precision": "int4"}, "precision='int4' is not known"),
        ({"precision": []}, "cannot be used"),
        ({"identity": 3}, "identity is 3"),
        ({"dimensions": "16"}, "it has '16' dimensions"),
        ({"dimensions": 0}, "it has 0 dimensions"),
        ({"dimensions": 10**30}, "it has 1000"),
        (
            {"shards": [shard_of(file="../../secret.arrow")]},
            r"names '../../secret.arrow', which is not a shard",
        ),
        ({"shards": [shard_of(file="/etc/passwd")]}, r"names '/etc/passwd', which is not a shard"),
        ({"shards": [shard_of(texts=0)]}, "cannot hold 0 texts"),
        ({"shards": [shard_of(texts=10**12)]}, "cannot hold 1,000,000,000,000 texts in 1,000 bytes"),
        ({"shards": [shard_of(bytes=-1)]}, "it says"),
        ({"shards": [shard_of(embeddings="x")]}, "it says"),
        ({"shards": 3}, "cannot be used"),
        ({"shards": [{"file": "00000.arrow"}]}, "cannot be used"),
        ({"shards": [shard_of(), shard_of()]}, "names a shard twice"),
    ):
        write_manifest(manifest, content | change)
        with pytest.raises(ValueError, match=message):
            Store.open(store.folder)
    for text in ("{", "[" * 100_000, "3", '{"format": "whymatch store"}'):
        manifest.write_text(text)
        with pytest.raises(ValueError, match="cannot be used"):
            Store.open(store.folder)
    manifest.unlink()
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        Store.open(store.folder)


def test_every_bit_of_the_manifest_counts(store):
    path = store.folder / MANIFEST
    whole = path.read_bytes()
    rng = random.Random(0)
    noticed = 0
    for _ in range(300):
        path.write_bytes(flip_bit(whole, rng))
        try:
            again = Store.open(store.folder)
            assert (again.settings, again.shards, again.identity) == (store.settings, store.shards, store.identity)
        except ValueError:
            noticed += 1
    assert noticed > 250


def test_a_store_is_not_made_over_another(store, explainer):
    with pytest.raises(FileExistsError, match="holds an index already"):
        Store.create(store.folder, explainer.settings, "", 16)


def test_a_cache_is_used_only_by_the_model_and_the_settings_that_made_it(store, explainer):
    same = Store.reuse(store.folder, explainer.settings, "identity", 16)
    assert list(same.texts()) == TEXTS
    renamed = replace(explainer.settings, model="elsewhere")
    assert len(Store.reuse(store.folder, renamed, "identity", 16)) == len(TEXTS)
    assert len(Store.reuse(store.folder, explainer.settings, "other weights", 16)) == 0
    same.append(explainer.decompose(TEXTS))
    assert len(Store.reuse(store.folder, explainer.at_layer(1).settings, "identity", 16)) == 0
    (store.folder / MANIFEST).write_text("{")
    assert len(Store.reuse(store.folder, explainer.settings, "identity", 16)) == 0


def test_stores_of_the_first_version_are_read_and_added_to(explainer, tmp_path):
    """They have no errors of contributions."""
    store = Store.create(tmp_path / "store", explainer.settings, "identity", 16)
    store.version = 1
    store._save()
    store = Store.open(tmp_path / "store")
    store.append(explainer.decompose(TEXTS[:2]))
    again = Store.open(tmp_path / "store")
    assert json.loads((tmp_path / "store" / MANIFEST).read_text())["version"] == 1
    assert list(again.texts()) == TEXTS[:2]
    why, direct = Explainer.pair(again[0], again[1]), explainer.explain(TEXTS[0], TEXTS[1])
    np.testing.assert_allclose(why.matrix, direct.matrix, atol=1e-5)
    assert np.isnan(why.entry_error)
    manifest = json.loads((tmp_path / "store" / MANIFEST).read_text())
    for name in ("blocks", "trust_remote_code"):  # settings that the first version did not have
        manifest["settings"].pop(name)
    write_manifest(tmp_path / "store" / MANIFEST, manifest)
    Store.open(tmp_path / "store").check(explainer.settings, "identity")


def test_nothing_made_with_other_settings_is_added(store, explainer):
    with pytest.raises(ValueError, match=r"'A man.' does not belong to this store: layer is 2 there and 1 here"):
        store.append(explainer.at_layer(1).decompose(["A man."]))
    rows = to_rows(explainer.decompose(TEXTS[:1]), "float16")
    with pytest.raises(ValueError, match="these rows are not of 16 dimensions in float32"):
        store.append_rows(rows)


@pytest.mark.parametrize("name", [MANIFEST, "00000.arrow", "00002.arrow", ".lock"])
def test_links_in_a_received_store_are_refused(store, explainer, tmp_path, name):
    """Whoever prepared the folder does not choose which file is read or written."""
    target = tmp_path / "target"
    link = store.folder / name
    target.write_bytes(link.read_bytes() if link.exists() else b"mine")
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(OSError, match="is a symbolic link"), lock_folder(store.folder):
        Store.open(store.folder).append(explainer.decompose(["more"]))
    assert target.read_bytes() == before


def test_a_pipe_in_the_place_of_a_file_is_refused(store):
    (store.folder / MANIFEST).unlink()
    os.mkfifo(store.folder / MANIFEST)
    with pytest.raises(OSError, match="is not a regular file"):
        Store.open(store.folder)

"""Decompositions on disk, and search that explains itself."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from whymatch import Explainer, models
from whymatch.index import Index
from whymatch.store import MANIFEST, Store

TEXTS = [
    "The coffee is not good.",
    "This is bad coffee, and nobody drank it.",
    "A man is slicing bread.",
    "Two dogs run across the snowy field towards a child.",
    "Stocks fell on Monday; naïve café ☕ 中文.",
    "",
]


@pytest.fixture(scope="module")
def explainer(folders):
    return Explainer(folders("bert"), layer=2)


@pytest.fixture
def store(explainer, tmp_path):
    found = Store.create(tmp_path / "store", explainer.settings, "identity", 16)
    found.append(explainer.decompose(TEXTS[:4]))
    found.append(explainer.decompose(TEXTS[4:]))
    return found


def test_what_is_stored_comes_back_to_the_bit(store, explainer):
    again = Store.open(store.folder)
    assert len(again) == len(TEXTS)
    assert list(again.texts()) == TEXTS
    for i, dec in enumerate(explainer.decompose(TEXTS)):
        found = again[i]
        for name in ("text", "tokens", "offsets", "kinds", "truncated", "unit", "mode", "nodes", "settings"):
            assert getattr(found, name) == getattr(dec, name), name
        for name in ("contributions", "embedding", "reference", "shares"):
            np.testing.assert_array_equal(getattr(found, name), getattr(dec, name).astype(np.float32), err_msg=name)
    a, b = again[0], again[1]
    why, direct = Explainer.pair(a, b), explainer.explain(TEXTS[0], TEXTS[1])
    np.testing.assert_allclose(why.matrix, direct.matrix, atol=1e-6)
    np.testing.assert_array_equal(
        np.concatenate(list(again.embeddings())), [again[i].embedding for i in range(len(TEXTS))]
    )
    with pytest.raises(IndexError, match="text 6 is out of range: the store has 6"):
        again[6]


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-6), ("float16", 2e-3), ("int8", 2e-2)])
def test_smaller_numbers_cost_little_and_say_how_much(explainer, tmp_path, precision, bound):
    store = Store.create(tmp_path / "s", explainer.settings, "", 16, precision)
    decs = explainer.decompose(TEXTS[:2])
    store.append(decs)
    exact, found = Explainer.pair(*decs), Explainer.pair(store[0], store[1])
    assert found.score == pytest.approx(exact.score, abs=1e-6)  # from embeddings, which are kept as they are
    size = np.abs(exact.matrix).max()
    assert np.abs(found.matrix - exact.matrix).max() <= bound * size
    assert found.error == pytest.approx(abs(found.score - found.matrix.sum()))
    with pytest.raises(ValueError, match="precision='int4' is not known; choose one of float32, float16, int8"):
        Store.create(tmp_path / "t", explainer.settings, "", 16, "int4")


def shard_of(**changes):
    return {"file": "00000.arrow", "texts": 1, "bytes": 1, "embeddings": 0} | changes


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


def read_again(folder, before) -> int:
    try:
        again = Store.open(folder)
        vectors = np.concatenate(list(again.embeddings()))
        same = all(
            (one.text, one.tokens, one.offsets, one.kinds) == (other.text, other.tokens, other.offsets, other.kinds)
            and np.array_equal(one.contributions, other.contributions)
            and np.array_equal(vectors[i], other.embedding)
            for i, (one, other) in enumerate(zip((again[i] for i in range(len(before))), before, strict=True))
        )
    except ValueError as error:
        return 3 if "is damaged" in str(error) else 1
    except BaseException:
        return 2
    return 0 if same else 4


def test_numbers_that_do_not_fit_are_refused(explainer, tmp_path):
    (dec,) = explainer.decompose(TEXTS[:1])
    store = Store.create(tmp_path / "s", explainer.settings, "", 16, "float16")
    with pytest.raises(ValueError, match=r"contributions of 'The coffee is not good.' do not fit into float16"):
        store.append([replace(dec, contributions=dec.contributions * 1e9)])


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
        ({"format": "other"}, "is not the manifest of a whymatch store"),
        ({"version": 9}, "is a store of version 9; this whymatch reads 1"),
        ({"settings": {"model": "x"}}, "is damaged"),
        ({"precision": "int4"}, "is damaged"),
        ({"dimensions": "16"}, "is damaged"),
        (
            {"shards": [shard_of(file="../../secret.arrow")]},
            r"names '../../secret.arrow', which is no shard",
        ),
        ({"shards": [shard_of(file="/etc/passwd")]}, r"names '/etc/passwd', which is no shard"),
        ({"shards": [shard_of(texts=0)]}, "has 0 texts"),
        ({"shards": [{"file": "00000.arrow"}]}, "is damaged"),
        ({"shards": [shard_of(), shard_of()]}, "names a shard twice"),
    ):
        manifest.write_text(json.dumps(content | change))
        with pytest.raises(ValueError, match=message):
            Store.open(store.folder)
    manifest.write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        Store.open(store.folder)
    manifest.unlink()
    with pytest.raises(FileNotFoundError, match="there is no store in"):
        Store.open(store.folder)


def test_a_store_is_not_made_over_another(store, explainer):
    with pytest.raises(FileExistsError, match="holds a store already"):
        Store.create(store.folder, explainer.settings, "", 16)


def test_the_identity_of_a_model_is_that_of_its_weights(load):
    one = models.identity(load())
    model = load()
    model.encode(TEXTS)  # which sets the tokenizer's padding
    assert models.identity(model) == one
    model[0].auto_model.embeddings.word_embeddings.weight.data[3, 3] += 1e-3
    assert models.identity(model) != one
    assert models.identity(load("roberta")) != one


# --- the index ---


@pytest.fixture
def index(explainer, tmp_path):
    return Index.build(TEXTS[:5], tmp_path / "index", explainer)


def test_search_gives_the_models_own_ranking_and_reasons(index, explainer):
    found = Index.open(index.store.folder).search("bad coffee", top=3)
    ranked = explainer.rank("bad coffee", TEXTS[:5], top=3)
    assert [hit.index for hit in found.hits] == [hit.index for hit in ranked.hits]
    assert found.searched == 5
    for hit, other in zip(found.hits, ranked.hits, strict=True):
        assert hit.score == pytest.approx(other.score, abs=1e-6)
        assert hit.document == other.document
        assert hit.explanation.error <= 1e-3
        np.testing.assert_allclose(hit.explanation.matrix, other.explanation.matrix, atol=2e-3)
    assert "bad coffee" in found.to_html()


def test_dot_products_are_searched_as_such(folders, tmp_path):
    explainer = Explainer(folders("dot"), layer=-1)
    index = Index.build(TEXTS[:5], tmp_path / "i", explainer)
    ranked = explainer.rank("bad coffee", TEXTS[:5], top=5)
    assert [hit.index for hit in index.search("bad coffee", top=5).hits] == [hit.index for hit in ranked.hits]


def test_documents_are_added(index):
    opened = Index.open(index.store.folder)
    assert opened.add(["Nobody came to the party."]) == 1
    again = Index.open(index.store.folder)
    assert len(again) == 6
    assert again.search("Nobody came to the party.", top=1).hits[0].index == 5


def test_another_model_or_layer_is_refused(index, folders):
    with pytest.raises(ValueError, match=r"was made otherwise: the model is .* there, and .* here has other weights"):
        Index.open(index.store.folder, model=str(folders("mpnet")))
    manifest = index.store.folder / MANIFEST
    content = json.loads(manifest.read_text())
    store = Store.open(index.store.folder)
    other = Explainer(folders("bert"), layer=1)
    with pytest.raises(ValueError, match="layer is 2 there and 1 here"):
        store.check(other.settings, content["identity"])


def test_a_model_that_moved_is_the_same_model(index, folders, tmp_path):
    import shutil

    shutil.copytree(folders("bert"), tmp_path / "elsewhere")
    found = Index.open(index.store.folder, model=str(tmp_path / "elsewhere")).search("bad coffee", top=1)
    assert found.hits[0].explanation.error <= 1e-3


def test_what_cannot_be_searched(index, explainer, tmp_path):
    with pytest.raises(ValueError, match="top=0 is not a number of hits"):
        index.search("x", top=0)
    with pytest.raises(ValueError, match="is empty: add documents to it first"):
        Index.build([], tmp_path / "empty", explainer).search("x")


def test_two_writers_do_not_meet(index):
    from whymatch.files import held

    with held(index.store.folder), pytest.raises(BlockingIOError, match="another process is writing to"):
        Index.open(index.store.folder).add(["one more"])
    assert Index.open(index.store.folder).add(["one more"]) == 1


def test_writers_that_take_turns_lose_nothing(index):
    first, second = Index.open(index.store.folder), Index.open(index.store.folder)
    first.add(["one more"])
    second.add(["and another"])
    first.add(["a third"])
    assert list(Index.open(index.store.folder).store.texts())[5:] == ["one more", "and another", "a third"]


def test_a_build_that_was_interrupted_goes_on(explainer, tmp_path, monkeypatch):
    from whymatch import index as module

    monkeypatch.setattr(module, "SHARD", 2)

    def stop(done):
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.build(TEXTS, tmp_path / "i", explainer, watch=stop)
    with pytest.raises(FileExistsError, match="holds a store already"):
        Index.build(TEXTS, tmp_path / "i", explainer)
    with pytest.raises(ValueError, match=r"is of other documents: its number 2 is .*, and here it is missing"):
        Index.build(TEXTS[:1], tmp_path / "i", explainer, resume=True)
    with pytest.raises(ValueError, match="precision is 'float32' there and 'int8' here"):
        Index.build(TEXTS, tmp_path / "i", explainer, resume=True, precision="int8")
    said: list[int] = []
    built = Index.build(TEXTS, tmp_path / "i", explainer, resume=True, watch=said.append)
    assert said[0] == 4
    assert list(built.store.texts()) == TEXTS
    assert list(Index.build(TEXTS, tmp_path / "i", explainer, resume=True).store.texts()) == TEXTS


def test_a_hit_reads_its_own_rows(folders, tmp_path):
    explainer = Explainer(folders("bert"), layer=-1)
    documents = ["coffee " * 20 + str(i) for i in range(40)]
    index = Index.open(Index.build(documents, tmp_path / "i", explainer).store.folder)
    pages = index.store[7].contributions
    assert not pages.flags.owndata  # a view of the file
    assert not pages.flags.writeable


def test_killed_while_documents_are_added(explainer, tmp_path, monkeypatch):
    """SIGKILL at random moments of a build, which then goes on: every document once, in order, and nothing else."""
    from whymatch import index as module

    monkeypatch.setattr(module, "SHARD", 4)
    documents = [f"The coffee number {i} is bad." for i in range(200)]
    explainer.explain("a", "b")
    rng = random.Random(1)
    killed = 0
    for _ in range(20):
        child = os.fork()
        if child == 0:  # pragma: no cover: it is killed
            try:
                Index.build(documents, tmp_path / "i", explainer, resume=True)
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert killed > 10
    index = Index.build(documents, tmp_path / "i", explainer, resume=True)
    assert list(index.store.texts()) == documents
    (direct,) = explainer.decompose([documents[123]])
    np.testing.assert_allclose(index.store[123].contributions, direct.contributions, atol=1e-5)
    named = {MANIFEST, ".lock", *(shard.file for shard in index.store.shards)}
    assert {file.name for file in (tmp_path / "i").iterdir()} == named


def test_two_builds_of_one_index_do_not_double_it(explainer, tmp_path, monkeypatch):
    """The second one begins when the first has ended, and not when it was asked for."""
    documents = TEXTS[:5]
    Index.build(documents[:2], tmp_path / "i", explainer)
    original = Index._pass_over

    def pass_over(self, given):
        with pytest.raises(BlockingIOError, match="another process is writing to"):
            Index.build(documents, tmp_path / "i", explainer, resume=True)
        original(self, given)

    monkeypatch.setattr(Index, "_pass_over", pass_over)
    assert list(Index.build(documents, tmp_path / "i", explainer, resume=True).store.texts()) == documents


def test_what_an_index_could_not_remember_is_refused(load, tmp_path):
    def mine(x):
        return x * 0

    with pytest.raises(ValueError, match="an index cannot remember a reference that is a function, mine"):
        Index.build(TEXTS, tmp_path / "i", Explainer(load(), reference=mine))
    assert not (tmp_path / "i").exists()


def test_a_full_disk_and_an_unwritable_folder_are_named(explainer, tmp_path, monkeypatch):
    import errno

    def full(*_):
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append_rows", full)
        with pytest.raises(OSError, match=r"the disk is full: what is done in .*i' is safe; make room"):
            Index.build(TEXTS, tmp_path / "i", explainer)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(PermissionError, match="the folder is not writable"):
        Index.build(TEXTS, tmp_path / "j", explainer)


def test_the_command_line(whymatch, tmp_path, folders):
    (tmp_path / "docs.txt").write_text("\n".join(TEXTS[:4]))
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "Bread and coffee."}))
    folder = str(tmp_path / "index")
    out, _ = whymatch("index", "build", str(tmp_path / "docs.txt"), folder, "--precision", "float16")
    assert f"written: 4 documents to {folder}" in out
    out, _ = whymatch("index", "add", str(tmp_path / "more.jsonl"), folder, model=False)
    assert "1 documents" in out
    assert "5 in all" in out
    page, saved = tmp_path / "hits.html", tmp_path / "hits.json"
    options = ["--top", "2", "--html", str(page), "--json", str(saved)]
    out, _ = whymatch("index", "search", "bad coffee", folder, *options, model=False)
    assert "coffee" in out
    assert "<script" in page.read_text()
    assert len(json.loads(saved.read_text())["hits"]) == 2
    _, err = whymatch("index", "search", "bad coffee", str(tmp_path), code=2, model=False)
    assert "there is no store in" in err
    _, err = whymatch("index", "build", str(tmp_path / "docs.txt"), folder, code=2)
    assert "holds a store already" in err
    _, err = whymatch("index", "search", "x", folder, "--model", str(folders("mpnet")), code=2, model=False)
    assert "has other weights" in err

"""A corpus that is stored decomposed, and search that explains itself."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import zoo

from conftest import TEXTS, write_manifest
from whymatch import Explainer
from whymatch.corpus.index import Index
from whymatch.corpus.store import MANIFEST, Store
from whymatch.encoders import loading
from whymatch.files import lock_folder


@pytest.fixture
def index(explainer, tmp_path):
    return Index.build(TEXTS[:5], tmp_path / "index", explainer, store="tokens")


def test_search_gives_the_models_own_ranking_and_reasons(index, explainer):
    ranking = Index.open(index.store.folder).search("bad coffee", top=3)
    ranked = explainer.rank("bad coffee", TEXTS[:5], top=3)
    assert [hit.index for hit in ranking.hits] == [hit.index for hit in ranked.hits]
    assert ranking.searched == 5
    for hit, other in zip(ranking.hits, ranked.hits, strict=True):
        assert hit.score == pytest.approx(other.score, abs=1e-6)
        assert hit.text == other.text
        assert hit.explanation.error <= 1e-3
        np.testing.assert_allclose(hit.explanation.matrix, other.explanation.matrix, atol=2e-3)
    assert "bad coffee" in ranking.to_html()


def test_dot_products_are_searched_as_such(folders, tmp_path):
    explainer = Explainer(folders("dot"), layer=-1)
    index = Index.build(TEXTS[:5], tmp_path / "i", explainer)
    ranked = explainer.rank("bad coffee", TEXTS[:5], top=5)
    assert [hit.index for hit in index.search("bad coffee", top=5).hits] == [hit.index for hit in ranked.hits]


def test_prompts_are_the_models_own_and_recorded(tmp_path):
    model = str(zoo.prompted(tmp_path))
    explainer = Explainer(model, layer=2)
    folder = tmp_path / "i"
    Index.build(TEXTS[:3], folder, explainer)
    recorded = json.loads((folder / MANIFEST).read_text())["readings"]
    assert recorded == {
        "query": {"task": "query", "prompt": "bread; "},
        "document": {"task": "document", "prompt": "this is "},
    }
    Index.open(folder).add(TEXTS[3:5])
    own = explainer.model.similarity(
        explainer.model.encode_query("bad coffee"), explainer.model.encode_document(TEXTS[:5])
    )[0]
    for hit in Index.open(folder).search("bad coffee", top=5):
        assert hit.score == pytest.approx(float(own[hit.index]), abs=1e-6)
    with pytest.raises(ValueError, match=r"documents are read as document texts with the prompt 'this is ' there and "):
        Index.build(TEXTS, folder, explainer, resume=True, prompt_name="other")
    Index.build(TEXTS[:3], tmp_path / "other", explainer, prompt_name=("query", "other"))
    other = explainer.model.encode(TEXTS[:3], prompt_name="other")
    own = explainer.model.similarity(explainer.model.encode_query("bad coffee"), other)[0]
    for hit in Index.open(tmp_path / "other").search("bad coffee"):
        assert hit.score == pytest.approx(float(own[hit.index]), abs=1e-6)


def test_an_index_that_was_made_without_prompts_says_so(tmp_path):
    """As earlier versions made them, and did not record it."""
    explainer = Explainer(str(zoo.prompted(tmp_path)), layer=2)
    Index.build(TEXTS[:3], tmp_path / "i", explainer, prompt="")
    manifest = tmp_path / "i" / MANIFEST
    content = json.loads(manifest.read_text())
    del content["readings"]
    write_manifest(manifest, content)
    with pytest.warns(UserWarning, match="was made without the prompts of its model"):
        index = Index.open(tmp_path / "i")
    own = explainer.model.similarity(explainer.model.encode("bad coffee"), explainer.model.encode(TEXTS[:3]))[0]
    for hit in index.search("bad coffee"):
        assert hit.score == pytest.approx(float(own[hit.index]), abs=1e-6)


ARTICLES = [
    {"id": "a", "title": "Coffee", "text": TEXTS[0], "metadata": {"page": 3}},
    {"id": "b", "text": TEXTS[1], "url": "somewhere"},
    {"text": "A man is slicing bread. Nobody drank it. Two dogs run."},
]


@pytest.mark.parametrize("store", ["none", "sentences", "tokens"])
def test_hits_have_what_was_given_with_the_text(explainer, tmp_path, store, decomposed):
    Index.build(ARTICLES, tmp_path / "i", explainer, store=store)
    assert len(decomposed) == (0 if store == "none" else 3)
    decomposed.clear()
    index = Index.open(tmp_path / "i")
    assert index.store.kept == store
    ranking = index.search("bad coffee", top=3)
    assert decomposed == ["bad coffee"]  # hits are explained when they are looked at
    hits = {hit.id: hit for hit in ranking}
    assert (hits["a"].title, hits["a"].metadata, hits["a"].text) == ("Coffee", {"page": 3}, TEXTS[0])
    assert hits["b"].metadata == {"url": "somewhere"}
    for hit in ranking:
        why = explainer.explain("bad coffee", hit.text, groups=(None, "sentences" if store == "sentences" else None))
        assert hit.score == pytest.approx(why.score, abs=1e-6)
        assert hit.explanation.error <= 1e-3
        assert hit.explanation.b.unit == ("sentence" if store == "sentences" else "token")
        sentences = hit.explanation.highlights(unit="sentences")
        for span, other in zip(sentences, why.highlights(unit="sentences"), strict=True):
            assert span.score == pytest.approx(other.score, abs=2e-3)
    contrast = ranking.contrast(1, 2)
    assert contrast.difference == pytest.approx(ranking[0].score - ranking[1].score, abs=1e-5)
    assert contrast.error <= 2e-3
    usual = ranking.contrast(1, "background")
    assert usual.score_b == pytest.approx(np.mean([hit.score for hit in ranking]), abs=1e-5)
    assert {hit.explanation.b.unit for hit in index.search("bad coffee", groups="sentences")} == {"sentence"}
    assert json.loads(json.dumps(ranking.to_dict()))["hits"][0]["id"] == ranking[0].id


@pytest.mark.parametrize("store", ["none", "tokens"])
def test_documents_are_replaced_and_deleted_by_id(explainer, tmp_path, store):
    index = Index.build(ARTICLES, tmp_path / "i", explainer, store=store)
    with pytest.raises(ValueError, match="has a document with the id 'a' already: replace it"):
        index.add([{"id": "a", "text": "new"}])
    with pytest.raises(ValueError, match="two documents have the id 'x'"):
        index.add([{"id": "x", "text": "one"}, {"id": "x", "text": "two"}])
    assert index.add([{"id": "a", "title": "New", "text": "Stocks fell on Monday."}], replace=True) == 1
    for again in (index, Index.open(tmp_path / "i")):
        assert len(again) == 3
        hits = again.search("Stocks fell on Monday.", top=9)
        assert len(hits) == 3
        assert (hits[0].id, hits[0].title) == ("a", "New")
        assert TEXTS[0] not in [hit.text for hit in hits]
        assert hits.searched == 3
        assert again.background.count == 3
    assert index.delete(["a"]) == 1
    assert [hit.id for hit in Index.open(tmp_path / "i").search("Stocks fell", top=9) if hit.id] == ["b"]
    with pytest.raises(ValueError, match="has no document with the id 'a'"):
        index.delete(["a"])
    assert index.add([{"id": "a", "text": "again"}]) == 1


def test_the_work_is_written_every_few_seconds(explainer, tmp_path, monkeypatch):
    """A kill costs what was done since then, and not a whole shard."""
    from whymatch.corpus import index as module

    monkeypatch.setattr(module, "SHARD_SECONDS", 0.0)
    monkeypatch.setattr(module, "CHUNK_SECONDS", 0.0)
    said = []

    def stop(done):
        said.append(done)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.build(TEXTS, tmp_path / "i", explainer, watch=stop)
    assert said == [1, 2, 3]
    assert len(Store.open(tmp_path / "i")) == 3


def test_an_estimate_is_a_time(explainer):
    from whymatch.corpus.index import estimate
    from whymatch.results.ranking import Document

    documents = [Document(text * 3) for text in TEXTS[:5]]
    few, many = (estimate(documents * n, explainer) for n in (1, 1000))
    assert 0 < few < many
    assert estimate([], explainer) == 0


def test_metadata_that_cannot_be_kept_is_named(explainer, tmp_path):
    with pytest.raises(ValueError, match="the metadata of 'x' is not made of plain values"):
        Index.build([{"id": "x", "text": "y", "metadata": {"when": object()}}], tmp_path / "i", explainer)


def test_documents_are_added(index):
    opened = Index.open(index.store.folder)
    assert opened.add(["Nobody came to the party."]) == 1
    again = Index.open(index.store.folder)
    assert len(again) == 6
    assert again.search("Nobody came to the party.", top=1).hits[0].index == 5


def test_another_model_or_layer_is_refused(index, folders):
    with pytest.raises(ValueError, match=r"was made differently: the model is .* there, and .* here has other weights"):
        Index.open(index.store.folder, model=str(folders("mpnet")))
    manifest = index.store.folder / MANIFEST
    content = json.loads(manifest.read_text())
    store = Store.open(index.store.folder)
    other = Explainer(folders("bert"), layer=1)
    with pytest.raises(ValueError, match="layer is 2 there and 1 here"):
        store.check(other.settings, content["identity"])


def test_a_model_that_moved_is_the_same_model(index, folders, tmp_path):
    shutil.copytree(folders("bert"), tmp_path / "elsewhere")
    ranking = Index.open(index.store.folder, model=str(tmp_path / "elsewhere")).search("bad coffee", top=1)
    assert ranking.hits[0].explanation.error <= 1e-3


def test_what_cannot_be_searched(index, explainer, tmp_path):
    with pytest.raises(ValueError, match="top=0 is not a number of hits"):
        index.search("x", top=0)
    with pytest.raises(ValueError, match="is empty: add documents to it first"):
        Index.build([], tmp_path / "empty", explainer).search("x")


def test_two_writers_do_not_meet(index):
    with lock_folder(index.store.folder), pytest.raises(BlockingIOError, match="another process is writing to"):
        Index.open(index.store.folder).add(["one more"])
    assert Index.open(index.store.folder).add(["one more"]) == 1


def test_writers_that_take_turns_lose_nothing(index):
    first, second = Index.open(index.store.folder), Index.open(index.store.folder)
    first.add(["one more"])
    second.add(["and another"])
    first.add(["a third"])
    assert list(Index.open(index.store.folder).store.texts())[5:] == ["one more", "and another", "a third"]


def test_a_build_that_was_interrupted_goes_on(explainer, tmp_path, monkeypatch):
    from whymatch.corpus import index as module

    monkeypatch.setattr(module, "SHARD", 2)

    def stop(done):
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.build(TEXTS, tmp_path / "i", explainer, watch=stop)
    with pytest.raises(FileExistsError, match="holds an index already"):
        Index.build(TEXTS, tmp_path / "i", explainer)
    with pytest.raises(ValueError, match=r"is of other documents: its number 2 is .*, and here it is missing"):
        Index.build(TEXTS[:1], tmp_path / "i", explainer, resume=True)
    with pytest.raises(ValueError, match="precision is 'float32' there and 'int8' here"):
        Index.build(TEXTS, tmp_path / "i", explainer, resume=True, precision="int8")
    counts: list[int] = []
    built = Index.build(TEXTS, tmp_path / "i", explainer, resume=True, watch=counts.append)
    assert counts[0] == 3  # progress is by document
    assert list(built.store.texts()) == TEXTS
    assert list(Index.build(TEXTS, tmp_path / "i", explainer, resume=True).store.texts()) == TEXTS


def test_a_hit_reads_its_own_rows(folders, tmp_path):
    explainer = Explainer(folders("bert"), layer=-1)
    documents = ["coffee " * 20 + str(i) for i in range(40)]
    index = Index.open(Index.build(documents, tmp_path / "i", explainer, store="tokens").store.folder)
    pages = index.store[7].contributions
    assert not pages.flags.owndata  # a view of the file
    assert not pages.flags.writeable


def test_killed_while_documents_are_added(explainer, tmp_path, monkeypatch):
    """SIGKILL at random moments of a build, which then goes on: every document once, in order, and nothing else."""
    from whymatch.corpus import index as module

    monkeypatch.setattr(module, "SHARD", 4)
    documents = [f"The coffee number {i} is bad." for i in range(200)]
    explainer.explain("a", "b")
    rng = random.Random(1)
    killed = 0
    for _ in range(20):
        child = os.fork()
        if child == 0:  # pragma: no cover: it is killed
            try:
                Index.build(documents, tmp_path / "i", explainer, resume=True, store="tokens")
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0.0, 0.2))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert killed > 10
    index = Index.build(documents, tmp_path / "i", explainer, resume=True, store="tokens")
    assert list(index.store.texts()) == documents
    (direct,) = explainer.decompose([documents[123]])
    np.testing.assert_allclose(index.store[123].contributions, direct.contributions, atol=1e-5)
    named = {MANIFEST, ".lock", *(shard.file for shard in index.store.shards)}
    assert {file.name for file in (tmp_path / "i").iterdir()} == named


def test_two_builds_of_one_index_do_not_double_it(explainer, tmp_path, monkeypatch):
    """The second one begins when the first has ended, and not when it was asked for."""
    documents = TEXTS[:5]
    Index.build(documents[:2], tmp_path / "i", explainer)
    original = Index._skip_stored

    def skip_stored(self, given):
        with pytest.raises(BlockingIOError, match="another process is writing to"):
            Index.build(documents, tmp_path / "i", explainer, resume=True)
        original(self, given)

    monkeypatch.setattr(Index, "_skip_stored", skip_stored)
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
        with pytest.raises(OSError, match=r"the disk is full: what is done in .*i' is safe; free some space"):
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
    assert "written: 1 document to" in out
    assert "5 in all" in out
    (tmp_path / "named.jsonl").write_text(json.dumps({"id": "n", "text": "Snowy fields."}))
    whymatch("index", "add", str(tmp_path / "named.jsonl"), folder, model=False)
    _, err = whymatch("index", "add", str(tmp_path / "named.jsonl"), folder, code=2, model=False)
    assert "--replace" in err
    out, _ = whymatch("index", "add", str(tmp_path / "named.jsonl"), folder, "--replace", model=False)
    assert "6 in all" in out
    assert "5 left" in whymatch("index", "delete", folder, "n", model=False)[0]
    out, _ = whymatch("index", "search", "bad coffee", folder, "--versus", "1,2", model=False)
    assert "decided by" in out
    options = ("--groups", "words,sentences", "--top", "1", "--json", "-")
    (hit,) = json.loads(whymatch("index", "search", "bad coffee", folder, *options, model=False)[0])["hits"]
    assert [hit["explanation"][side]["unit"] for side in "ab"] == ["word", "sentence"]
    page, saved = tmp_path / "hits.html", tmp_path / "hits.json"
    options = ["--top", "2", "--html", str(page), "--json", str(saved)]
    out, _ = whymatch("index", "search", "bad coffee", folder, *options, model=False)
    assert "coffee" in out
    assert "<script" in page.read_text()
    assert len(json.loads(saved.read_text())["hits"]) == 2
    _, err = whymatch("index", "search", "bad coffee", str(tmp_path), code=2, model=False)
    assert "there is no store in" in err
    _, err = whymatch("index", "build", str(tmp_path / "docs.txt"), folder, code=2)
    assert "holds an index already" in err
    _, err = whymatch("index", "search", "x", folder, "--model", str(folders("mpnet")), code=2, model=False)
    assert "has other weights" in err


def test_an_index_that_was_built_again_meanwhile_is_not_added_to(index, explainer):
    """Another process may replace it by one of another model or layer."""
    opened = Index.open(index.store.folder)
    shutil.rmtree(index.store.folder)
    Index.build(TEXTS[:2], index.store.folder, explainer.at_layer(1))
    with pytest.raises(ValueError, match="layer is 1 there and 2 here"):
        opened.add(["one more"])
    assert len(Store.open(index.store.folder)) == 2


def name_model(index, name):
    path = index.store.folder / MANIFEST
    content = json.loads(path.read_text())
    content["settings"]["model"] = name
    write_manifest(path, content)


def test_an_index_does_not_decide_what_is_downloaded(index, monkeypatch, folders):
    name_model(index, "somebody/elses-model")
    monkeypatch.setattr(loading, "load", lambda *_args, **_options: pytest.fail("a model was loaded"))
    with pytest.raises(ValueError, match=r"model 'somebody/elses-model', which is not on this machine; say which"):
        Index.open(index.store.folder)
    monkeypatch.undo()
    assert Index.open(index.store.folder, model=str(folders("bert"))).search("bad coffee", top=1).hits


def test_a_model_of_the_cache_is_loaded_from_its_folder(index, monkeypatch, folders):
    """So that nothing asks the hub, even if the cache is incomplete."""
    name_model(index, "somebody/known-model")
    known = loading.Installed("somebody/known-model", "hub cache", folders("bert"))
    monkeypatch.setattr(loading, "installed", lambda: [known])
    loaded = []
    original = loading.load

    def load(name, *args, **kwargs):
        loaded.append(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(loading, "load", load)
    assert Index.open(index.store.folder).search("bad coffee", top=1).hits
    assert loaded == [str(folders("bert"))]


@pytest.mark.parametrize("content", ["[" * 100_000, "{}", "null", '{"format": "whymatch store", "version": 1}'])
def test_the_command_line_shows_no_traceback_for_a_bad_manifest(whymatch, index, content):
    (index.store.folder / MANIFEST).write_text(content)
    _, err = whymatch("index", "search", "bad coffee", str(index.store.folder), code=2, model=False)
    assert err.startswith("whymatch: the manifest of")


def test_no_progress_is_shown_before_an_error(whymatch, index, tmp_path):
    (tmp_path / "docs.txt").write_text("\n".join(TEXTS[:4]))
    _, err = whymatch("index", "build", str(tmp_path / "docs.txt"), str(index.store.folder), code=2)
    assert err.startswith("whymatch: ")
    assert err.count("\n") == 1


def test_without_pyarrow_the_extra_is_named():
    script = """
import sys
sys.modules["pyarrow"] = None
import whymatch.corpus, whymatch.corpus.pairs, whymatch.corpus.tables
try:
    whymatch.corpus.Index
except ModuleNotFoundError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip().endswith("pip install 'whymatch[corpus]'")

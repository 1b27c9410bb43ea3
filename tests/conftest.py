"""Fixtures: the tiny encoders of :mod:`zoo`, each built once, and the packaged model."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub: no test may reach for a network

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo

from whymatch.models import packaged

THREADS = torch.get_num_threads()
torch.set_num_threads(1)  # tiny models only lose by more


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
    from whymatch.models import load

    torch.set_num_threads(THREADS)
    yield load(None, "cpu")[0]
    torch.set_num_threads(1)


@pytest.fixture
def decomposed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are decomposed from here on, each time that one is."""
    from whymatch.bucket import Bucket

    seen: list[str] = []
    original = Bucket.decompose

    def decompose(self, numbers=None):
        seen.extend(self.sides[i]["text"] for i in (range(len(self.sides)) if numbers is None else numbers))
        return original(self, numbers)

    monkeypatch.setattr(Bucket, "decompose", decompose)
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
    from whymatch import batch

    def run(pairs, out, explainer, window, **options):
        def stop(progress):
            if progress.done == 2 * window:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(batch, "PART_SECONDS", 0.0)
            with pytest.raises(KeyboardInterrupt):
                batch.run(pairs, out, explainer, window=window, watch=stop, **options)
        assert len(list(out.iterdir())) == 2

    return run

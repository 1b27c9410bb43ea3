"""The torture suite's fixtures: tiny models, a scratch folder for each test, and the counts of a run as JSON."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub: nothing here may reach for a network
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))  # the tiny models are the tests'

import zoo
from attack import SCALE, SEED, Tally

torch.set_num_threads(1)  # tiny models only lose by more, and a forked child has no other threads

TALLIES: list[Tally] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", help="write the counts of this run to this file, as JSON")


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Counts the outcomes of one test's trials."""
    path, name = request.node.path.stem, request.node.name
    counts = Tally(f"{path.removeprefix('test_')}: {name.removeprefix('test_').replace('_', ' ')}")
    TALLIES.append(counts)
    return counts


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of the zoo, built when it is first asked for."""
    built: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in built:
            built[kind] = zoo.build(tmp_path_factory.mktemp(kind), kind)
        return built[kind]

    return folder


@pytest.fixture(scope="session")
def folder(folders: Callable[[str], Path]) -> Path:
    return folders("bert")


@pytest.fixture(scope="session", autouse=True)
def imported(folder: Path) -> None:
    """Import everything once, so that forked commands start at once."""
    from whymatch import Explainer, cli  # noqa: F401

    Explainer(folder, layer=-1).explain("a", "b")


def machine() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        info = Path("/proc/cpuinfo").read_text()
        name = next((line.split(":")[1].strip() for line in info.splitlines() if "model name" in line), name)
    return {"cpu": name, "cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}


def commit() -> str | None:
    """What was tortured: the commit, marked if the code had changed since."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    return git.stdout.strip() or None


STARTED = time.monotonic()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--results")
    if path is None or not TALLIES:
        return
    results = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "scale": SCALE,
        "seed": SEED,
        "seconds": round(time.monotonic() - STARTED),
        "attacks": {tally.name: dict(sorted(tally.outcomes.items())) for tally in TALLIES},
    }
    Path(path).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("outcomes")
    for tally in TALLIES:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(tally.outcomes.items()))
        terminalreporter.write_line(f"{tally.name}: {counts}")

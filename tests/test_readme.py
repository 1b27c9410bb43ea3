"""The README's code is run, its commands too, and its numbers are those of the committed results."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def test_the_python_runs_and_says_what_it_says(minilm, tmp_path, monkeypatch):  # noqa: ARG001 it skips where there is none
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = [code for language, code in BLOCKS if language == "python"]
    assert len(blocks) == 6
    exec(blocks[0], names)
    why = names["why"]
    assert f"{why.score:.4f}" == f"{why.matrix.sum():.4f}" == "0.8337"
    assert why.error < 1e-5
    assert [(pair.token_a, pair.token_b) for pair in why.top(3)] == [
        ("coffee",) * 2,
        ("good", "bad"),
        ("is", "is"),
    ]
    assert names["page"].startswith("<!doctype html>")
    for code in blocks[1:]:
        exec(code, names)


def test_the_python_of_the_training_page_runs(minilm):  # noqa: ARG001
    content = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    code, training = re.findall(r"```python\n(.*?)```", content, re.DOTALL)
    assert "train(Recipe(" in training  # which takes half an hour; test_training.py does as much in seconds
    names: dict = {}
    exec(code, names)
    why = names["why"]
    assert max(abs(why.effects_a).max(), abs(why.effects_b).max(), abs(why.constant)) < 1e-6
    assert abs(why.matrix.sum() - why.score) < 1e-3


def test_the_commands_run(minilm, tmp_path, monkeypatch, whymatch):  # noqa: ARG001
    lines = [line for language, code in BLOCKS if language == "sh" for line in code.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("whymatch")]
    names = [command[1] for command in commands]
    assert names == [
        *("explain", "explain", "rank", "rank", "highlight", "evaluate", "models", "serve"),
        *("batch", "index", "index", "train", "evaluate-sts", "study"),
    ]
    (tmp_path / "documents.txt").write_text("The coffee is not good.\nI would love some tea.\n")
    (tmp_path / "pairs.csv").write_text("text_a,text_b\nbad coffee,The coffee is not good.\n")
    monkeypatch.chdir(tmp_path)
    # The browser tests serve, and those of truth, training and studies do the rest, which takes longer than this may.
    others = ("evaluate", "serve", "train", "evaluate-sts", "study")
    for command in [command for command in commands if command[1] not in others]:
        said, _ = whymatch(*command[1:], model=False)
        assert said
    assert {path.name for path in tmp_path.iterdir()} == {
        *("documents.txt", "pairs.csv", "why.html", "why.json", "ranking.html", "out", "out.job", "my-index"),
    }


def test_the_two_commands_exist():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "lint", "bench"} <= set(targets)
    assert "make demo" in README
    assert "make test" in README


def test_the_tables_show_the_committed_results(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    runpy.run_path(str(ROOT / "benchmarks/tables.py"), run_name="__main__")


@pytest.mark.parametrize("name", ["peers", "exactness"])
def test_results_say_on_what_machine(name):
    results = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    assert {"cpu", "cores", "torch", "date"} <= set(results["machine"])


def test_the_last_torture_is_shown():
    if not (ROOT / "torture/results.json").exists():
        pytest.skip("no run of make torture is recorded")
    done = subprocess.run([sys.executable, ROOT / "torture/report.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_are_not_broken(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert not broken

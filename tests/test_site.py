"""The site: every public name and command is on it, its code runs, and its notebooks were run."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

import whymatch

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [*sorted((ROOT / "docs/gallery").glob("*.ipynb")), ROOT / "examples/whymatch.ipynb"]


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


def test_every_public_name_has_its_place_and_an_example():
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^::: whymatch\.(\w+)$", page, re.MULTILINE))
    assert described == set(whymatch.__all__) - {"__version__"}
    code = "\n".join(blocks("reference.md"))
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    assert {"explainer", "why", "query", "ranking", "hit", "contrast", "usual", "highlights", "span"} <= used
    assert {"endpoint", "decompose_callable", "ToleranceWarning", "__version__"} <= used


def test_the_code_of_the_pages_runs(minilm, tmp_path, monkeypatch, capsys):  # noqa: ARG001
    monkeypatch.chdir(tmp_path)
    for page in ("index.md", "start.md", "reference.md"):
        names: dict = {}
        for code in blocks(page):
            exec(code, names)
    home = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```text\n(.*?)```", home, re.DOTALL)
    assert capsys.readouterr().out.startswith(printed)


def test_every_command_is_described_with_its_options(hooks):
    from typer.main import get_command

    from whymatch.cli import app

    page = hooks.describe_commands()
    for name, command in get_command(app).commands.items():
        assert f"## whymatch {name}" in page
        for parameter in getattr(command, "params", []):
            if parameter.param_type_name == "option" and parameter.name != "help":
                assert f"`{parameter.opts[0]}`" in page
    assert "## whymatch index build" in page
    assert "Serve the explorer" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_were_run_and_draw_something(path, hooks):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        source = "".join(cell["source"])
        ast.parse(source.replace("%matplotlib inline", ""))
        assert cell["outputs"] or "print(" not in source, f"was not run: {source[:60]}"
    page, pictures = hooks.render_notebook(path)
    assert pictures, "a figure"
    assert page.startswith("# ")
    assert not re.search(r"/(home|root|work|Users|tmp)/", page), "the machine that ran it"


def test_every_notebook_has_a_card_with_its_figure(hooks):
    page = (ROOT / "docs/gallery/index.md").read_text(encoding="utf-8")
    cards = hooks.make_cards(page)
    for path in NOTEBOOKS:
        assert f"![]({path.stem}-1.png)" in cards
    assert cards.count("**[") == len(NOTEBOOKS)


def test_the_version_is_one():
    assert f"version: {whymatch.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"=={whymatch.__version__}'" in (ROOT / "space/Dockerfile").read_text()
    assert re.search(rf"^## {re.escape(whymatch.__version__)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["tests", "docs", "release"])
def test_workflows_run_what_there_is(name):
    """They mirror .ci/run and the Makefile; what they call exists."""
    text = (ROOT / f".github/workflows/{name}.yml").read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = re.findall(r"run: make ([\w-]+)", text)
    assert set(called) <= targets
    assert called or "run: .ci/run" in text

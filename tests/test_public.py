"""What users rely on: the names, the import, the README."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import whymatch


def test_the_public_names_are_exactly_these():
    assert sorted(whymatch.__all__) == [
        "Background",
        "Contrast",
        "Decomposition",
        "Explainer",
        "Explanation",
        "Highlight",
        "Highlights",
        "Hit",
        "Ranking",
        "ToleranceWarning",
        "__version__",
        "decompose_callable",
        "endpoint",
    ]
    assert set(whymatch.__all__) <= set(dir(whymatch))
    for name in whymatch.__all__:
        getattr(whymatch, name)  # each is imported from where it lives
    with pytest.raises(AttributeError, match="module 'whymatch' has no attribute 'explain'"):
        _ = whymatch.explain


def test_the_contract_of_the_explainer():
    parameters = inspect.signature(whymatch.Explainer).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "model": None,
        "layer": None,
        "reference": None,
        "fold_reference": True,
        "similarity": None,
        "path": None,
        "divisions": None,
        "detail": "fine",
        "special": None,
        "rule": "gauss",
        "steps": None,
        "tolerance": 1e-3,
        "device": None,
        "blocks": None,
        "groups": None,
        "trust_remote_code": False,
        "method": None,
        "mask": None,
        "samples": None,
        "budget": None,
        "name": None,
    }
    public = {name for name in dir(whymatch.Explainer) if not name.startswith("_")}
    assert public == {
        "asymmetric",
        "at_detail",
        "at_layer",
        "background",
        "check_portable",
        "contrast",
        "decompose",
        "dimensions",
        "embed",
        "encoder",
        "explain",
        "explain_many",
        "explain_query",
        "features",
        "foresee",
        "identity",
        "highlight",
        "highlight_many",
        "model",
        "num_layers",
        "pair",
        "path_total",
        "path_values",
        "rank",
        "readings",
        "routed",
        "settings",
        "usage",
        "with_model",
        "with_settings",
    }


def in_new_process(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        (
            "import whymatch",
            {"numpy", "torch", "transformers", "matplotlib", "pyarrow", "rich", "typer", "dataclasses", "typing", "re"},
        ),
        ("from whymatch import Explanation", {"torch", "transformers", "matplotlib", "pyarrow", "rich", "scipy"}),
        ("import whymatch.cli", {"torch", "transformers", "matplotlib", "pyarrow", "scipy"}),
    ],
)
def test_importing_is_light(statement, heavy):
    """What is imported decides how long it takes, on every machine."""
    script = f"import sys; before = set(sys.modules); {statement}; print(sorted({heavy} & set(sys.modules) - before))"
    ended = in_new_process(script)
    assert ended.stdout.strip() == "[]", ended.stderr


# Other libraries may use what they find; whymatch itself is told that nothing optional is installed.
WITHOUT_EXTRAS = """
import builtins
import_module = builtins.__import__

def import_without_extras(name, globals=None, *rest, **options):
    optional = name.partition(".")[0] in {"matplotlib", "pyarrow", "fastapi", "uvicorn", "ray", "HanTa", "datasets"}
    if optional and (globals or {}).get("__name__", "").startswith("whymatch"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return import_module(name, globals, *rest, **options)

builtins.__import__ = import_without_extras
from whymatch.cli import main
main()
"""
PAIR = ("The coffee is not good.", "This is bad coffee.")


def test_the_default_install_explains_and_writes_a_page(folder, tmp_path):
    arguments = ["explain", *PAIR, "--model", str(folder), "--layer", "-1", "--html", str(tmp_path / "why.html")]
    ended = in_new_process(WITHOUT_EXTRAS, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert "coffee" in ended.stdout
    assert "<html" in (tmp_path / "why.html").read_text()


@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("plot", ["explain", *PAIR, "--png", "why.png"]),
        ("corpus", ["batch", "pairs.csv", "out"]),
        ("corpus", ["index", "build", "pairs.csv", "index"]),
        ("web", ["serve"]),
        ("ray", ["batch", "pairs.csv", "out", "--engine", "ray"]),
    ],
)
def test_a_missing_extra_is_named(extra, arguments, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("text_a,text_b\ncoffee,bread\n")
    ended = in_new_process(WITHOUT_EXTRAS, *arguments, "--model", str(folder))
    assert ended.returncode == 2, ended.stderr
    assert f"pip install 'whymatch[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr

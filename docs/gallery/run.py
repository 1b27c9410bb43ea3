"""Run the notebooks of the gallery and the one in examples/, and keep what they print, show and draw.

They share a kernel, since importing torch takes longer than most of them; their names do not meet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples/whymatch.ipynb"
RESET = "%reset -f\n%matplotlib inline"


def run(paths: list[Path]) -> None:
    """Execute notebooks in one kernel, and write each with its outputs when it has ended."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=1200, resources={"metadata": {"path": str(HERE)}})
    with client.setup_kernel():
        for path in paths:
            client.nb = notebook = nbformat.read(path, as_version=4)
            notebook.cells.insert(0, nbformat.v4.new_code_cell(RESET))
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
            del notebook.cells[0]
            _clean(notebook, path.stem)
            nbformat.write(notebook, path)


def _clean(notebook: Any, name: str) -> None:
    """Take away what a run says about its time and its machine, which does not belong to the result."""
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"{name}-{number}"
        if cell.cell_type != "code":
            continue
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
        cell.execution_count = None
        cell.outputs = _join(each for each in cell.outputs if each.get("name") != "stderr")
        for output in cell.outputs:
            output.pop("execution_count", None)
            if output.output_type == "execute_result":
                output.execution_count = None


def _join(outputs: Iterable[Any]) -> list[Any]:
    """Put what was printed in several pieces together."""
    joined: list[Any] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of notebooks, without .ipynb; all of them by default")
    names = parser.parse_args().names
    every = [*sorted(HERE.glob("*.ipynb")), EXAMPLE]
    run([path for path in every if not names or path.stem in names])

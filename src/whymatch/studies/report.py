"""All studies on one self-contained page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from whymatch.files import write_text
from whymatch.studies.experiment import Experiment, Result
from whymatch.studies.verdicts import verdicts


def write(results: Mapping[str, Result], experiment: Experiment, skipped: Mapping[str, str] | None = None) -> Path:
    """Write ``report.html`` into the experiment's folder: a single file that needs no network.

    Args:
        results: the studies' results by their names.
        experiment: what was studied.
        skipped: why other studies were left out, by their names.
    """
    templates = Environment(loader=PackageLoader("whymatch.studies"), autoescape=True)

    def drawing(file: str) -> Any:
        content = (experiment.out / file).read_text(encoding="utf-8")
        return Markup(content[content.index("<svg") :])  # by matplotlib, which escapes the texts in it

    def numbers(name: str) -> str:
        """Return a link that saves the JSON file of a study."""
        return (
            "data:application/json;base64," + base64.b64encode((experiment.out / f"{name}.json").read_bytes()).decode()
        )

    content = templates.get_template("report.html.j2").render(
        results=results,
        skipped=skipped or {},
        verdicts=verdicts(results),
        inputs=experiment.inputs(("pairs", "layers")),
        subjects=experiment.subjects,
        machine=next(iter(results.values())).machine,
        seconds=sum(result.seconds for result in results.values()),
        drawing=drawing,
        numbers=numbers,
    )
    path = experiment.out / "report.html"
    write_text(path, content)
    return path

"""All studies on one self-contained page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from whymatch.files import written_aside
from whymatch.studies.setting import Result, Setting


def write(results: dict[str, Result], setting: Setting) -> Path:
    """Write ``report.html`` into the setting's folder; what it shows is in it, and it asks the network for nothing."""
    templates = Environment(loader=PackageLoader("whymatch.studies"), autoescape=True)

    def drawing(file: str) -> Any:
        content = (setting.out / file).read_text(encoding="utf-8")
        return Markup(content[content.index("<svg") :])  # made here, by matplotlib, which escapes what texts are in it

    def numbers(name: str) -> str:
        """A study's whole record, to be saved from the page."""
        return "data:application/json;base64," + base64.b64encode((setting.out / f"{name}.json").read_bytes()).decode()

    content = templates.get_template("report.html.j2").render(
        results=results,
        inputs=setting.inputs(("pairs", "layers")),
        subjects=setting.subjects,
        machine=next(iter(results.values())).machine,
        seconds=sum(result.seconds for result in results.values()),
        drawing=drawing,
        numbers=numbers,
    )
    path = setting.out / "report.html"
    with written_aside(path) as aside:
        aside.write_text(content, encoding="utf-8")
    return path

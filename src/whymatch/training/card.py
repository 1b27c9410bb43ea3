"""The model card of a trained model: what it is, what it was made of, how good it is, how to explain with it."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def card(record: dict[str, Any]) -> str:
    environment = Environment(
        loader=PackageLoader("whymatch.training"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("card.md").render(record=record, recipe=record["recipe"])

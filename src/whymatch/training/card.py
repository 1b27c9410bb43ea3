"""The model card of a trained model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def card(record: dict[str, Any], name: str) -> str:
    """Render a model card.

    Args:
        record: what was recorded in training.
        name: of the model's folder.
    """
    environment = Environment(
        loader=PackageLoader("whymatch.training"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    recipe = record["recipe"]
    unused = {"scale", "centred", "own"} if recipe["objective"] == "cosine" else set()
    settings = {
        key: value for key, value in recipe.items() if key not in {"base", "normalized", *unused} and value is not None
    }
    if "teacher" in settings:
        settings["teacher"] = _hub_id(recipe["teacher"]) or Path(recipe["teacher"]).name
    hub_id = _hub_id(recipe["base"])
    return environment.get_template("card.md").render(
        record=record,
        recipe=recipe,
        settings=settings,
        name=name,
        hub_id=hub_id,
        base=hub_id or Path(recipe["base"]).name,
    )


def _hub_id(name: str) -> str | None:
    """Return a hub id as it is, and None for a folder: its path means nothing to others and may be private."""
    return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).exists() else None

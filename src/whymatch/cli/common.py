"""What commands share: options, and the checks and endings of a command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from whymatch.files import written_aside

if TYPE_CHECKING:
    from whymatch.ranking import Ranking

Model: TypeAlias = Annotated[str | None, typer.Option(help="A hub id or a folder.", show_default="all-MiniLM-L6-v2")]
Models: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="A hub id or a folder; more than once to compare.", show_default="all-MiniLM-L6-v2"),
]
Layer: TypeAlias = Annotated[int, typer.Option(help="0 is the input embeddings, -1 the output.")]
Tolerance: TypeAlias = Annotated[float, typer.Option(help="The largest error of the sum.")]
Page: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="Save a page.")]
ScoredColumns: TypeAlias = Annotated[
    str | None, typer.Option(metavar="A,B,SCORE", help="The columns' names.", show_default="guessed, and shown")
]
Range: TypeAlias = Annotated[
    str | None, typer.Option(metavar="LOW,HIGH", help="What scores range over.", show_default="0,1, or else 0,5")
]


def quiet_loading() -> None:
    """No progress bar while weights are loaded: commands show their own progress."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def names_of(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]


def range_of(given: str | None) -> tuple[float, float] | None:
    """Two numbers that a comma parts."""
    if given is None:
        return None
    try:
        low, high = map(float, given.split(","))
    except ValueError:
        raise ValueError(f"--score-range {given!r} is not two numbers; give them as 0,5") from None
    return low, high


def check_writable(path: Path | None) -> None:
    """Fail before the work is done rather than after it."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a folder; name a file")
    if not os.access(path.parent, os.W_OK):
        reason = "is not writable" if path.parent.is_dir() else "does not exist"
        raise OSError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} {reason}")


def save_page(content: str, path: Path) -> None:
    with written_aside(path) as aside:
        aside.write_text(content, encoding="utf-8")


def show_ranking(found: Ranking, json: Path | None, html: Path | None) -> None:
    """Print hits, and save them where that was asked for."""
    from rich.console import Console

    from whymatch.views.terminal import ranking

    if json is not None:
        found.save(json)
    if html is not None:
        save_page(found.to_html(), html)
    Console(highlight=False).print(ranking(found))

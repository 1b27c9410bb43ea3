"""The command line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from whymatch import __version__
from whymatch.cli import looking, many, research

app = typer.Typer(
    help="Why does this encoder say these two texts match?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
index = typer.Typer(
    help="A corpus that is kept decomposed: search it, and see why each hit was found.", no_args_is_help=True
)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Look": (looking.explain, looking.rank, looking.serve, looking.models),
    "Many texts": (many.batch,),
    "Research": (research.train, research.evaluate_sts, research.study),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for command in (many.build, many.add, many.search):
    index.command()(command)
app.add_typer(index, name="index", rich_help_panel="Many texts")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"whymatch {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run; bad input is one line on standard error and exit code 2."""
    # The command prints its own result and nothing that the libraries below it would like to add.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.showwarning = lambda message, *_args, **_kwargs: typer.echo(f"whymatch: {message}", err=True)
    try:
        app()
    except (ValueError, TypeError, OSError, ArithmeticError, ImportError) as error:
        typer.echo(f"whymatch: {error}", err=True)
        sys.exit(2)

"""The command line."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from whymatch import __version__
from whymatch.cli import corpus, explain, research, truth
from whymatch.cli.common import echo, name_standard_input

app = typer.Typer(
    help="Why does this encoder say these two texts match?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
index = typer.Typer(help="Keep a corpus embedded, search it, and see why each hit matches.", no_args_is_help=True)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "A few texts": (explain.explain, explain.rank, explain.highlight, explain.serve, explain.models),
    "Many texts": (corpus.batch,),
    "Research": (truth.evaluate, research.train, research.evaluate_sts, research.study),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for command in (corpus.build, corpus.add, corpus.delete, corpus.search):
    index.command()(command)
app.add_typer(index, name="index", rich_help_panel="Many texts")

# What bad input, bad files and too small a machine raise.
EXPECTED = (ValueError, TypeError, OSError, ArithmeticError, ImportError, RuntimeError, MemoryError, EOFError)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"whymatch {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command line. Bad input is one message on standard error, and exit code 2; Ctrl-C is exit code 130."""
    # Commands print their own results and progress, and nothing that libraries would like to add.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.showwarning = lambda message, *_args, **_kwargs: _say(str(message))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character still shows the rest
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if _is_mistake(error):
            raise
        _say(_describe(error))
        sys.exit(2)


def _say(message: str) -> None:
    """Tell of an error or a warning."""
    echo(f"whymatch: {name_standard_input(message)}", err=True)


def _is_mistake(error: Exception) -> bool:
    """Whether an exception comes from a mistake in this package, so that its traceback is worth seeing.

    What a library raises on bad data may be of any type; what the package's own code raises on it is expected.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    own = frame.f_globals.get("__name__", "").startswith("whymatch")
    return own and type(error).__module__ == "builtins" and not isinstance(error, EXPECTED)


def _describe(error: Exception) -> str:
    """Put an exception into words, also where its own message does not."""
    if isinstance(error, RecursionError):
        return f"the data is nested too deeply: {error}"
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {str(error) or 'give shorter texts, fewer at once, or a deeper layer'}"
    if isinstance(error, EXPECTED) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"

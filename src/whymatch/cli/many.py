"""Commands for many texts: batch, and index with build, add and search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from whymatch.cli.common import Layer, Model, Page, Tolerance, check_writable, names_of, quiet_loading, show_ranking
from whymatch.text import check_text

if TYPE_CHECKING:
    from whymatch.cluster import Ray

Corpus: TypeAlias = Annotated[Path, typer.Argument(help="Documents: lines of text, or a table with a column of texts.")]
Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the index.")]
Column: TypeAlias = Annotated[str | None, typer.Option(help="The column of texts.", show_default="guessed")]
Moved: TypeAlias = Annotated[str | None, typer.Option(help="Where its model is now.", show_default="where it was")]

Engine: TypeAlias = Annotated[str, typer.Option(help="local or ray.")]
Address: TypeAlias = Annotated[str | None, typer.Option(help="The Ray cluster.", show_default="one on this machine")]
Workers: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Ray actors.", show_default="one for each core")]
Gpus: TypeAlias = Annotated[float, typer.Option(min=0, help="GPUs of each actor.")]
Cpus: TypeAlias = Annotated[float, typer.Option(min=0, help="Cores of each actor.")]
Resume: TypeAlias = Annotated[bool, typer.Option("--resume", help="Go on where a job was interrupted.")]


def batch(
    pairs: Annotated[Path, typer.Argument(help="Pairs of texts: CSV, TSV, JSONL or Parquet.")],
    out: Annotated[Path, typer.Argument(help="The folder of the Parquet dataset.")],
    model: Model = None,
    layer: Layer = -2,
    words: Annotated[bool, typer.Option("--words", help="Merge tokens to words.")] = False,
    top: Annotated[int, typer.Option(min=0, help="How many of the strongest pairs to list in each row.")] = 10,
    tolerance: Tolerance = 1e-3,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="The columns' names.", show_default="guessed, and shown")
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    num_gpus: Gpus = 0.0,
    num_cpus: Cpus = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that are explained together.")] = 128,
    resume: Resume = False,
) -> None:
    """Explain every pair of a file into a Parquet dataset; a job that was killed goes on with --resume."""
    ray = _cluster(engine, address, workers, num_cpus, num_gpus)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from whymatch import Explainer
    from whymatch import batch as jobs
    from whymatch.tables import FIRST, SECOND, Table

    table = Table.open(pairs, names_of(columns))
    typer.echo(table.said(table.choose(names_of(columns), (FIRST, SECOND))))
    quiet_loading()
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
            columns=names_of(columns),
            words=words,
            top=top,
            resume=resume,
            window=batch_size,
            ray=ray,
            watch=watch,
        )
    said = f"; {found.bad:,} bad ones in {jobs.beside(out) / jobs.ERRORS}" if found.bad else ""
    typer.echo(f"written: {found.done - found.bad:,} rows to {out}{said}")


def build(
    corpus: Corpus,
    folder: Folder,
    column: Column = None,
    model: Model = None,
    layer: Layer = -2,
    tolerance: Tolerance = 1e-3,
    precision: Annotated[str, typer.Option(help="Of what is stored: float32, float16 or int8.")] = "float32",
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    num_gpus: Gpus = 0.0,
    num_cpus: Cpus = 1.0,
    resume: Resume = False,
) -> None:
    """Decompose a corpus into a new index; a build that was killed goes on with --resume."""
    ray = _cluster(engine, address, workers, num_cpus, num_gpus)
    from whymatch import Explainer
    from whymatch.index import Index
    from whymatch.tables import read_documents

    documents = read_documents(corpus, column)
    quiet_loading()
    explainer = Explainer(model, layer=layer, tolerance=tolerance)
    with _counted("documents", len(documents)) as watch:
        built = Index.build(
            documents,
            folder,
            explainer,
            precision=precision,  # type: ignore[arg-type]  # checked there
            resume=resume,
            ray=ray,
            watch=watch,
        )
    typer.echo(f"written: {len(built):,} documents to {folder}")


def add(
    corpus: Corpus,
    folder: Folder,
    column: Column = None,
    model: Moved = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    num_gpus: Gpus = 0.0,
    num_cpus: Cpus = 1.0,
) -> None:
    """Decompose further documents into an index that is there."""
    ray = _cluster(engine, address, workers, num_cpus, num_gpus)
    from whymatch.index import Index
    from whymatch.tables import read_documents

    documents = read_documents(corpus, column)
    quiet_loading()
    found = Index.open(folder, model)
    with _counted("documents", len(documents)) as watch:
        found.add(documents, ray=ray, watch=watch)
    typer.echo(f"written: {len(documents):,} documents to {folder}, {len(found):,} in all")


def search(
    query: Annotated[str, typer.Argument(help="The query.")],
    folder: Folder = Path("."),
    top: Annotated[int, typer.Option(min=1, help="How many hits.")] = 10,
    model: Moved = None,
    html: Page = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the hits.")] = None,
) -> None:
    """Search an index, and say which words of a hit answered which of the query's."""
    for path in (json, html):
        check_writable(path)
    check_text(query)
    from whymatch.index import Index

    quiet_loading()
    found = Index.open(folder, model).search(query, top=top)
    show_ranking(found, json, html)


def _cluster(engine: str, address: str | None, workers: int | None, num_cpus: float, num_gpus: float) -> Ray | None:
    """What the engine's options mean: a cluster, or None for this process."""
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine {engine!r} is not known; choose local or ray")
    if engine == "local":
        if address is not None or workers is not None or num_gpus:
            raise ValueError("--address, --workers and --num-gpus are for --engine ray")
        return None
    from whymatch.cluster import Ray

    return Ray(address, workers, num_cpus, num_gpus)


@contextmanager
def _counted(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, told how many are done."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)

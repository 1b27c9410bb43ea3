"""Commands for many texts: batch, and index with build, add and search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from whymatch.cli.common import (
    AllowHttp,
    Detail,
    Divisions,
    Documents,
    Endpoint,
    Grouping,
    Hits,
    Json,
    KeyEnv,
    Layer,
    Method,
    Model,
    Page,
    PathOption,
    PromptName,
    Query,
    Special,
    Task,
    Tolerance,
    Versus,
    check_writable,
    choose_model,
    count,
    echo,
    echo_cost,
    echo_usage,
    groups_of,
    is_black_box,
    make_explainer,
    most_of,
    names_of,
    offer,
    ranks_of,
    read_text,
    reading_of,
    show_ranking,
    standard_input,
)
from whymatch.progress import bar

if TYPE_CHECKING:
    from whymatch import Explainer
    from whymatch.corpus.ray import Ray
    from whymatch.results.ranking import Document

Corpus: TypeAlias = Documents
Folder: TypeAlias = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the index.")]
Column: TypeAlias = Annotated[
    str | None, typer.Option(help="The column of texts.", show_default="one with a usual name")
]
Moved: TypeAlias = Annotated[
    str | None, typer.Option(help="Its model: a hub id or a folder.", show_default="the one it names, if it is here")
]

Engine: TypeAlias = Annotated[str, typer.Option(help="local or ray.", autocompletion=offer("local", "ray"))]
Address: TypeAlias = Annotated[str | None, typer.Option(help="The Ray cluster.", show_default="one on this machine")]
Workers: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Ray actors.", show_default="one for each core")]
Gpus: TypeAlias = Annotated[float, typer.Option(min=0, help="GPUs of each actor.")]
Cpus: TypeAlias = Annotated[float, typer.Option(min=0, help="Cores of each actor.")]
Resume: TypeAlias = Annotated[bool, typer.Option("--resume", help="Go on with a job that was interrupted.")]


def batch(
    pairs: Annotated[
        Path,
        typer.Argument(help="Pairs of texts: CSV, TSV, JSONL or Parquet; - reads CSV or JSONL from standard input."),
    ],
    out: Annotated[Path, typer.Argument(help="The folder of the Parquet dataset.")],
    model: Model = None,
    layer: Layer = None,
    detail: Detail = "fast",
    path: PathOption = None,
    special: Special = None,
    divisions: Divisions = None,
    words: Annotated[bool, typer.Option("--words", help="Merge tokens to words.")] = False,
    top: Annotated[int, typer.Option(min=0, help="How many of the strongest pairs to list in each row.")] = 10,
    tolerance: Tolerance = 1e-3,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="The columns' names.", show_default="those with usual names")
    ] = None,
    prompt_name: PromptName = None,
    task: Task = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    num_gpus: Gpus = 0.0,
    num_cpus: Cpus = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that are explained together.")] = 128,
    resume: Resume = False,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
    method: Method = None,
) -> None:
    """Explain every pair of a file into a Parquet dataset; a job that was killed goes on with --resume."""
    cluster = _choose_cluster(engine, address, workers, num_cpus, num_gpus, endpoint)
    from whymatch.corpus.batch import Progress, run_batch
    from whymatch.corpus.record import ERRORS, job_folder
    from whymatch.corpus.tables import FIRST, SECOND, Table

    with standard_input(pairs, ".csv") as source:
        table = Table.open(source, names_of(columns))
        named = table.choose(names_of(columns), (FIRST, SECOND))
        echo(table.describe(named))
        options = {
            "layer": layer,
            "detail": detail,
            "path": path,
            "special": special,
            "divisions": divisions,
            "tolerance": tolerance,
            "method": method,
        }
        explainer = make_explainer(model, endpoint, key_env, allow_http, **options)
        if is_black_box(explainer):
            cells = (row.text(name) for row in table.rows() for name in named)
            echo_cost(explainer, explainer.foresee(list({text for text, problem in cells if problem is None})))
        with echo_usage(explainer), bar("rows") as rows:

            def watch(progress: Progress) -> None:
                rows.update(progress.done, progress.rows)

            result = run_batch(
                source,
                out,
                explainer,
                columns=names_of(columns),
                words=words,
                top=top,
                resume=resume,
                window=batch_size,
                ray=cluster,
                watch=watch,
                **reading_of(prompt_name, task),
            )
    place = f", listed in {job_folder(out) / ERRORS}" if result.bad else ""
    echo(f"written: {result.done - result.bad:,} rows to {out}; {result.bad:,} bad rows{place}")


def build(
    corpus: Corpus,
    folder: Folder,
    column: Column = None,
    model: Model = None,
    layer: Layer = None,
    detail: Detail = "fast",
    path: PathOption = None,
    special: Special = None,
    divisions: Divisions = None,
    tolerance: Tolerance = 1e-3,
    store: Annotated[
        str,
        typer.Option(
            help="none, or sentences or tokens: decompose all documents now, so that hits need no model.",
            autocompletion=offer("none", "sentences", "tokens"),
        ),
    ] = "none",
    precision: Annotated[
        str,
        typer.Option(
            help="How contributions are stored: float32, float16 or int8.",
            autocompletion=offer("float32", "float16", "int8"),
        ),
    ] = "float32",
    prompt_name: PromptName = None,
    task: Task = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    num_gpus: Gpus = 0.0,
    num_cpus: Cpus = 1.0,
    resume: Resume = False,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
    method: Method = None,
) -> None:
    """Embed a corpus into a new index; a build that was killed goes on with --resume."""
    cluster = _choose_cluster(engine, address, workers, num_cpus, num_gpus, endpoint)
    from whymatch.corpus.index import Index, estimate
    from whymatch.corpus.pairs import read_documents
    from whymatch.corpus.store import KEPT, Store

    if not resume:
        Store.check_absent(folder)  # before anything is embedded
    if store not in KEPT:
        raise ValueError(f"--store {store!r} is not known; choose {', '.join(KEPT)}")
    with standard_input(corpus) as source:
        documents = read_documents(source, column)
    options = {
        "layer": layer,
        "detail": detail,
        "path": path,
        "special": special,
        "divisions": divisions,
        "tolerance": tolerance,
        "method": method,
    }
    explainer = make_explainer(model, endpoint, key_env, allow_http, **options)
    if endpoint is not None:  # an estimate would ask the service, and cost what it costs
        echo_cost(explainer, _most_texts(explainer, documents, store))
    elif cluster is None:
        seconds = estimate(documents, explainer, store)  # type: ignore[arg-type]  # checked above
        what = "embed" if store == "none" else f"embed and decompose ({store})"
        echo(f"{count(len(documents), 'document')} to {what}: about {_duration(seconds)} on this machine", err=True)
    with echo_usage(explainer), bar("documents", len(documents)) as counter:
        index = Index.build(
            documents,
            folder,
            explainer,
            store=store,  # type: ignore[arg-type]  # checked above
            precision=precision,  # type: ignore[arg-type]  # checked there
            resume=resume,
            ray=cluster,
            watch=counter.update,
            **reading_of(prompt_name, task),
        )
    echo(f"written: {count(len(index), 'document')} to {folder}")


def add(
    corpus: Corpus,
    folder: Folder,
    column: Column = None,
    model: Moved = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let a document take the place of the one with its id.")
    ] = False,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    num_gpus: Gpus = 0.0,
    num_cpus: Cpus = 1.0,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
) -> None:
    """Add further documents to an index, or replace documents by their ids."""
    cluster = _choose_cluster(engine, address, workers, num_cpus, num_gpus, endpoint)
    from whymatch.corpus.index import Index
    from whymatch.corpus.pairs import read_documents

    with standard_input(corpus) as source:
        documents = read_documents(source, column)
    index = Index.open(folder, choose_model(model, endpoint, key_env, allow_http))
    if is_black_box(index.explainer):
        echo_cost(index.explainer, _most_texts(index.explainer, documents, index.store.kept))
    with echo_usage(index.explainer), bar("documents", len(documents)) as counter:
        index.add(documents, replace=replace, ray=cluster, watch=counter.update)
    echo(f"written: {count(len(documents), 'document')} to {folder}, {len(index):,} in all")


def delete(
    folder: Folder,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of the documents.")],
    model: Moved = None,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
) -> None:
    """Delete documents from an index by their ids."""
    from whymatch.corpus.index import Index

    index = Index.open(folder, choose_model(model, endpoint, key_env, allow_http))
    echo(f"deleted: {count(index.delete(ids), 'document')} from {folder}, {len(index):,} left")


def search(
    query: Query,
    folder: Folder = Path("."),
    top: Hits = 10,
    model: Moved = None,
    versus: Versus = None,
    groups: Grouping = None,
    html: Page = None,
    json: Json = None,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
) -> None:
    """Search an index, and show which words of each hit answered which words of the query."""
    check_writable(json, html)
    query = read_text(query, "query")
    from whymatch.corpus.index import Index

    ranks, chosen = ranks_of(versus), groups_of(groups)
    index = Index.open(folder, choose_model(model, endpoint, key_env, allow_http))
    explained = most_of(top, ranks, len(index))
    if is_black_box(index.explainer):
        both = chosen if isinstance(chosen, tuple) else (chosen, chosen)
        most = index.explainer.foresee([query], both[0])
        if index.store.kept == "none" or chosen is not None:  # hits are explained now: those that would cost most
            most += index.explainer.foresee(sorted(index.store.texts(), key=len)[-explained:], both[1])
        echo_cost(index.explainer, most)
    with echo_usage(index.explainer):
        show_ranking(index.search(query, top=explained, groups=chosen), json, html, ranks)


def _most_texts(explainer: Explainer, documents: Sequence[Document], store: str) -> int:
    """Return how many texts a service may have to embed for an index of these documents."""
    texts = [document.text for document in documents]
    return len(texts) if store == "none" else explainer.foresee(texts, "sentences" if store == "sentences" else None)


def _duration(seconds: float) -> str:
    """Say how long something takes, as exactly as an estimate can."""
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return count(round(seconds / size), unit)
    return count(max(1, round(seconds)), "second")


def _choose_cluster(
    engine: str, address: str | None, workers: int | None, num_cpus: float, num_gpus: float, endpoint: str | None
) -> Ray | None:
    """Return the cluster that the options ask for, or None for this process."""
    if engine not in ("local", "ray"):
        raise ValueError(f"--engine {engine!r} is not known; choose local or ray")
    if engine == "local":
        if address is not None or workers is not None or num_gpus:
            raise ValueError("--address, --workers and --num-gpus are for --engine ray")
        return None
    if endpoint is not None:
        raise ValueError("--endpoint is for --engine local: a service is asked from one place")
    from whymatch.corpus import require_ray

    require_ray()  # before anything that needs less is missed
    from whymatch.corpus.ray import Ray

    return Ray(address, workers, num_cpus, num_gpus)

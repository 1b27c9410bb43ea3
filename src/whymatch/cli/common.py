"""What the commands share: options, checks, and how they print."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

import typer

from whymatch.files import write_json, write_text
from whymatch.views.printable import printable
from whymatch.words import check_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from whymatch import Explainer
    from whymatch.results.ranking import Ranking

STANDARD = "-"  # standard input or output, in the place of a file or a text
STANDARD_FOLDER = "whymatch-standard-input-"  # how the folder of a copy of standard input begins
TOKENS = ("pad", "unk", "mask")  # that may stand for no content
UNITS = ("tokens", "words", "sentences")


def offer(*values: str) -> Callable[[str], list[str]]:
    """Let the shell complete these values of an option."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def _offer_models(incomplete: str) -> list[str]:
    """Let the shell complete the names of models that are here; where none fits, it completes folders by itself."""
    from whymatch.encoders.loading import installed

    return [model.name for model in installed() if model.name.startswith(incomplete)]


Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="A model's hub id or folder.",
        envvar="WHYMATCH_MODEL",
        show_default="all-MiniLM-L6-v2",
        autocompletion=_offer_models,
    ),
]
Models: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="A model's hub id or folder; repeat it for several.",
        envvar="WHYMATCH_MODEL",
        show_default="all-MiniLM-L6-v2",
        autocompletion=_offer_models,
    ),
]
Endpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URL", help="A service that embeds texts in OpenAI's format; --model names its model."),
]
KeyEnv: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="The environment variable that holds the service's key.")
]
AllowHttp: TypeAlias = Annotated[
    bool, typer.Option("--allow-http", help="Send texts to another machine without encryption.")
]
Method: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="shapley: treat the model as a black box.",
        show_default="derivatives, where there are any",
        autocompletion=offer("shapley"),
    ),
]
Layer: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Where to cut: 0 is the input embeddings, -1 the output.", show_default="what suits the model"),
]
PathOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--path",
        help="secant (by operations), relay (block by block), relay-2, relay-3 or straight (the paper's).",
        show_default="secant for encoders like BERT, relay for others",
        autocompletion=offer("secant", "relay", "relay-2", "relay-3", "straight"),
    ),
]
Special: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Special tokens keep what they contribute, share it among the tokens that it came from, or hold the base, "
        "which stays whatever the words are.",
        show_default="base where more than half stays, else keep",
        autocompletion=offer("keep", "share", "base"),
    ),
]
Divisions: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How many times words are divided into four parts, whose own embeddings correct what words add.",
        show_default="for fine 4, or 8 along relays; 0 for fast",
    ),
]
Detail: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Which layer suits the model: fine looks closely at one pair, fast serves many texts.",
        autocompletion=offer("fine", "fast"),
    ),
]
Tolerance: TypeAlias = Annotated[float, typer.Option(help="The largest error of the sum.")]
Query: TypeAlias = Annotated[str, typer.Argument(help="The query.")]
Hits: TypeAlias = Annotated[int, typer.Option(min=1, help="How many hits to show.")]
Json: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Save the result as JSON; - prints it, and nothing else.")
]
Page: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Save a page to open in a browser; - prints it.")
]
Documents: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Documents: lines of text, or a table (.jsonl, .csv, .tsv) with a column of texts; - is standard input.",
    ),
]
Versus: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RANK,RANK",
        help="Say why one hit is above another, as 1,2; or above what is usual, as 1,background.",
    ),
]
Ranks: TypeAlias = tuple[int, int | Literal["background"]]
Grouping: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT[,UNIT]",
        help="Explain words or sentences instead of tokens, of both texts or of each.",
        show_default="tokens",
        autocompletion=offer(*UNITS, *(f"{a},{b}" for a in UNITS for b in UNITS if a != b)),
    ),
]
PromptName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME]",
        help="The model's prompt for both sides, or for each.",
        show_default="its own for queries and documents",
    ),
]
Task: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TASK[,TASK]",
        help="query or document for both sides, or for each.",
        show_default="query,document if the model tells them apart",
        autocompletion=offer("query", "document", "query,document"),
    ),
]
ScoredColumns: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="A,B,SCORE", help="The names of the columns.", show_default="guessed, and printed"),
]
Range: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="LOW,HIGH", help="The lowest and the highest score.", show_default="0,1, or else 0,5"),
]


def echo(message: object, err: bool = False) -> None:
    """Print a message. Nothing in it, whichever file or model it came from, reaches the terminal as a command."""
    typer.echo(_printable_lines(str(message)), err=err)


def show(renderable: RenderableType) -> None:
    """Print what rich can render, as safely as :func:`echo`."""
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console(highlight=False)
    # A segment's style is apart from its text until it is written.
    segments = (
        segment if segment.control else Segment(_printable_lines(segment.text), segment.style)
        for segment in console.render(renderable)
    )
    console.print(Segments(segments), end="")


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def choose_model(model: str | None, endpoint: str | None, key_env: str | None, allow_http: bool) -> Any:
    """Return a model's name as it is, or the service that the options name."""
    if endpoint is None:
        if key_env is not None or allow_http:
            raise ValueError("--key-env and --allow-http are for --endpoint")
        return model
    from whymatch import endpoint as connect

    return connect(endpoint, model=model, key_env=key_env, allow_http=allow_http)


def make_explainer(
    model: str | None, endpoint: str | None, key_env: str | None, allow_http: bool, **options: Any
) -> Explainer:
    """Make the explainer of a model or of a service; it checks the options itself, and says what is allowed."""
    from whymatch import Explainer

    return Explainer(choose_model(model, endpoint, key_env, allow_http), **options)


def reading_of(prompt_name: str | None, task: str | None) -> dict[str, Any]:
    """Return the arguments that say how each side is read."""
    return {"prompt_name": split_sides(prompt_name), "task": split_sides(task)}


def echo_cost(explainer: Explainer, most: int, each: str = "") -> None:
    """Say how many texts a black box may have to embed, before any is: of a service, each may cost money."""
    echo(f"whymatch: {explainer.settings.model} will embed {most:,} texts or fewer{each}", err=True)


def is_black_box(explainer: Explainer) -> bool:
    """Whether an explainer embeds parts of a text, many times over."""
    return explainer.settings.path == "shapley"


@contextmanager
def echo_usage(explainer: Explainer) -> Iterator[None]:
    """Say in the end how many texts a black box has embedded, also if it was stopped or has failed."""
    try:
        yield
    finally:
        if explainer.usage.texts:
            echo(f"whymatch: {explainer.usage}", err=True)


def names_of(columns: str | None) -> list[str] | None:
    """Split names at commas."""
    return None if columns is None else [name.strip() for name in columns.split(",")]


def split_sides(names: str | None) -> str | tuple[str, str] | None:
    """Return one name for both sides, or two that have a comma between them."""
    first, comma, second = (names or "").partition(",")
    return (first.strip(), second.strip()) if comma else names


def range_of(text: str | None) -> tuple[float, float] | None:
    """Read two numbers with a comma between them."""
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"--score-range {text!r} is not two numbers; write them as 0,5") from None
    return low, high


def groups_of(text: str | None) -> Any:
    """Read what is explained: a unit for both sides, or one for each."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) > 2 or not set(names) <= set(UNITS):
        raise ValueError(f"--groups {text!r} is not known; choose tokens, words or sentences, or two of them as a,b")
    units = [None if name == "tokens" else name for name in names]
    return (units[0], units[-1]) if len(units) == 2 else units[0]


def reference_of(text: str | None) -> str | None:
    """Read what stands for no content: a known token, or a text in quotation marks."""
    if text is None or text in TOKENS:
        return text
    if len(text) > 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    raise ValueError(
        f"--reference {text!r} is neither {', '.join(TOKENS[:-1])} nor {TOKENS[-1]}; a text is written in quotation "
        f"marks of its own: --reference '\"{text}\"'"
    )


def read_text(text: str, name: str) -> str:
    """Return a text that was given on the command line; - reads it from standard input."""
    # Bytes that are not UTF-8 reach Python's arguments as lone surrogates, which this check names.
    given = check_text(sys.stdin.read() if text == STANDARD else text)
    if not given.strip():
        raise ValueError(f"the {name} is empty; give a text")
    return given


def is_standard(path: Path | None) -> bool:
    """Whether a file is - , which stands for standard input or output."""
    return path is not None and str(path) == STANDARD


@contextmanager
def standard_input(path: Path, other: str = ".txt") -> Iterator[Path]:
    """Yield the path, or, for - , that of a file with what stands on standard input: JSON lines, or ``other``."""
    if not is_standard(path):
        yield path
        return
    content = sys.stdin.buffer.read()
    suffix = ".jsonl" if content.lstrip().startswith(b"{") else other
    with tempfile.TemporaryDirectory(prefix=STANDARD_FOLDER) as folder:
        file = Path(folder) / f"standard-input{suffix}"
        file.write_bytes(content)
        yield file


def name_standard_input(message: str) -> str:
    """Call standard input by its name where a message has the file that it was put into."""
    return re.sub(rf"'[^']*{STANDARD_FOLDER}[^']*'", "standard input", message)


def count(number: int, thing: str) -> str:
    """Write a number of things: 1 document, 2 documents."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def save_result(result: Saved, json: Path | None, html: Path | None, about: dict[str, Any] | None = None) -> bool:
    """Save a result, or print it; return whether it was printed, so that nothing else may be.

    Args:
        result: what is saved.
        json, html: where; - prints it.
        about: further fields of the JSON, before its own.
    """
    if is_standard(json) and is_standard(html):
        raise ValueError("--json - and --html - would both print to standard output; choose one of them")
    if json is not None and not is_standard(json):
        write_json(json, (about or {}) | result.to_dict())
    if html is not None and not is_standard(html):
        save_page(result.to_html(), html)
    if is_standard(json):
        typer.echo(dumps((about or {}) | result.to_dict(), ensure_ascii=False))
    if is_standard(html):
        typer.echo(result.to_html())
    return is_standard(json) or is_standard(html)


class Saved(Protocol):
    """A result that can be saved."""

    def to_dict(self) -> dict[str, Any]: ...

    def to_html(self) -> str: ...


def check_writable(*paths: Path | None) -> None:
    """Fail before the work is done, not after it, where a result could not be saved."""
    for path in paths:
        if path is None or str(path) == STANDARD:
            continue
        if path.is_dir():
            raise IsADirectoryError(f"cannot write {str(path)!r}: it is a folder; name a file")
        if not os.access(path.parent, os.W_OK):
            reason = "is not writable" if path.parent.is_dir() else "does not exist"
            raise OSError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} {reason}")


def save_page(content: str, path: Path) -> None:
    """Write a page; the file is either complete or absent."""
    write_text(path, content)


def ranks_of(text: str | None) -> Ranks | None:
    """Read the ranks of two hits, or of one and the word background."""
    if text is None:
        return None
    first, _, second = (part.strip() for part in text.partition(","))
    if first.isdecimal() and (second.isdecimal() or second == "background") and "0" not in (first, second):
        return int(first), "background" if second == "background" else int(second)
    raise ValueError(f"--versus {text!r} is not two ranks, which count from 1; write them as 1,2, or 1,background")


def most_of(top: int, ranks: Ranks | None, documents: int) -> int:
    """Return how many hits to explain: ``top``, or only as many as it takes for those that are compared to be among
    them.
    """
    if ranks is None:
        return top
    last = max(rank for rank in ranks if isinstance(rank, int))
    if last > documents:
        raise ValueError(f"there is no hit {last}: ranks are 1 to {documents}")
    return last


def show_ranking(ranking: Ranking, json: Path | None, html: Path | None, ranks: Ranks | None = None) -> None:
    """Print a ranking, or why one hit of it is above another, and save it where that was asked for."""
    from whymatch.views import terminal

    if ranks is None:
        if not save_result(ranking, json, html):
            show(terminal.ranking(ranking))
        return
    contrast = ranking.contrast(*ranks)
    if not save_result(contrast, json, html):
        show(terminal.contrast(contrast))

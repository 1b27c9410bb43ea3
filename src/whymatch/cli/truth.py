"""The command that tells which explanation to believe: evaluate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from whymatch.cli.common import Models, echo, names_of, reference_of

QUICK = ("quick", "data", "model", "pairs", "seed", "columns")  # what --quick does not choose itself


def evaluate(
    context: typer.Context,
    tests: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEST…|all",
            help="coalitions, insertion_deletion, alignment, chunks, answers, sanity, or all.",
            show_default="those that read one of the files",
        ),
    ] = None,
    *,
    data: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE|DIR",
            help="Pairs of texts (CSV, TSV, JSONL, Parquet), word links (MultiMWA's .tsv), chunks (iSTS's .wa), "
            "questions (SQuAD's .json), or a folder of such files. Repeat it for several.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of results. What it holds is not run again.")
    ] = Path("truth"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Try a few settings on a few pairs, and say which to use.")
    ] = False,
    model: Models = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="What is judged: whymatch, unfolded (the paper's form), or a baseline: random, word-count, "
            "token-cosine[:LAYER], last-dot, gradient-input, attention-rollout, leave-one-out, shapley[:SAMPLES], "
            "exact-shapley, shapiq, retrivex[:LAYER[:STEPS]].",
        ),
    ] = "whymatch",
    layer: Annotated[
        str | None, typer.Option(metavar="I,J,…", help="Layers.", show_default="the explainer's own")
    ] = None,
    path: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Paths.", show_default="the explainer's own")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="References.", show_default="the explainer's own")
    ] = None,
    special: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="Treatments of special tokens.", show_default="the explainer's own"),
    ] = None,
    divisions: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="How often words are divided.", show_default="the explainer's own"),
    ] = None,
    detail: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="fine or fast.", show_default="the explainer's own")
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="The largest error of a sum.", show_default="0.001")] = None,
    fold: Annotated[
        bool, typer.Option("--fold/--no-fold", help="Give references back to the tokens; the paper does not.")
    ] = True,
    units: Annotated[str, typer.Option(metavar="NAME,…", help="What coalitions remove: words or tokens.")] = "words",
    removal: Annotated[str, typer.Option(metavar="NAME,…", help="How: delete, mask or pad.")] = "delete",
    pairs: Annotated[int, typer.Option(min=2, help="How many pairs of each file.")] = 100,
    max_words: Annotated[
        int | None, typer.Option(min=1, help="Only pairs of texts of so many words.", show_default="all")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="dev or test: a file of that name in a folder, else the first or the second half of a file.",
            show_default="everything",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Of tables of pairs: the columns of the two texts.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides which pairs, and which words are removed.")] = 0,
) -> None:
    """Test how far explanations can be believed: against the model itself, and against people."""
    from whymatch.truth import evaluation, report
    from whymatch.truth.runs import read_results

    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if quick:
        if others := [name for name in given if name not in QUICK]:
            flags = ", ".join("TEST" if name == "tests" else f"--{name.replace('_', '-')}" for name in others)
            raise ValueError(f"--quick chooses its tests and settings itself, and writes no file: leave out {flags}")
        _advise(model or [None], data, names_of(columns), pairs if "pairs" in given else None, seed)
        return

    options: dict[str, list[Any]] = {
        "layer": _numbers(layer),
        "path": _names(path),
        "reference": [reference_of(each) for each in _names(reference)],
        "special": _names(special),
        "divisions": _numbers(divisions, "divisions"),
        "detail": _names(detail),
        "tolerance": [tolerance],
    }
    chosen = {name: values for name, values in options.items() if values != [None]}
    settings = [dict(zip(chosen, values, strict=True)) for values in product(*chosen.values())]
    if not fold:
        settings = [each | {"fold_reference": False} for each in settings]
    plan = evaluation.Plan(
        tests=tests or [],
        data=data,
        models=model or [None],
        methods=names_of(method) or [],
        settings=settings,
        units=names_of(units) or [],
        removals=names_of(removal) or [],
        pairs=pairs,
        split=split,
        seed=seed,
        max_words=max_words,
        columns=names_of(columns),
    )
    without = []
    for result in evaluation.run(plan, out, say=echo, progress=True):
        name = f"{result.test}, {Path(str(result.settings['model'])).name}, {result.settings['subject']}"
        echo(f"{name}: {result.failure or f'{result.headline} {result.estimates[result.headline]}'}")
        if math.isnan(result.value):
            without.append(name)
    echo(f"written: {report.write(read_results(out), out / 'report.html')}")
    if without:
        raise ValueError(
            f"there is no value for {'; '.join(without[:3])}: the pairs of {', '.join(path.name for path in data)} are "
            "too few, too short, or too alike; --columns names the columns of a table"
        )


def _advise(
    models: Sequence[str | None],
    data: Sequence[Path],
    columns: Sequence[str] | None,
    count: int | None,
    seed: int,
) -> None:
    from whymatch.encoders.loading import load
    from whymatch.truth import evaluation
    from whymatch.truth.advice import PAIRS, advise
    from whymatch.truth.data import read_pairs, sample

    for place in data:
        if place.is_dir():
            raise ValueError(f"--data {str(place)!r} is a folder; --quick reads files of pairs: name one of its files")
        if evaluation.kind_of(place) != "pairs":
            raise ValueError(
                f"--data {str(place)!r} is not a table of pairs; --quick reads {evaluation.WANTED['pairs']}"
            )
    pairs = sample([pair for file in data for pair in read_pairs(file, columns)], count or PAIRS, seed)
    for name in models:
        loaded, full_name = load(name, None)
        echo(f"{full_name}, {len(pairs)} pairs: how well sums of entries predict scores when words are missing")
        advice = advise(loaded, pairs, name=full_name, seed=seed, say=echo, progress=True)
        echo(f"\n{advice.verdict}")


def _names(text: str | None) -> list[Any]:
    return [None] if text is None else list(names_of(text) or [])


def _numbers(text: str | None, flag: str = "layer") -> list[Any]:
    if text is None:
        return [None]
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(f"--{flag} {text!r} is not a list of numbers; give them as 0,2,-1") from None

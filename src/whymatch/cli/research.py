"""The commands for research: train, evaluate-sts, study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whymatch.cli.common import (
    Model,
    Models,
    Range,
    ScoredColumns,
    check_writable,
    echo,
    names_of,
    range_of,
)
from whymatch.files import write_json

if TYPE_CHECKING:
    from whymatch.studies.negation import Change

CHANGES = 100  # texts of a table of changes, unless --pairs says how many


def train(
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME", help="Scored pairs: CSV, TSV, JSONL, Parquet, or a dataset's name[:configuration]."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the new model.")],
    objective: Annotated[str, typer.Option(help="What the score is: dot or cosine.")] = "dot",
    base: Model = None,
    adjusted: Annotated[
        bool, typer.Option("--adjusted/--plain", help="Subtract the reference's embedding, as the paper does.")
    ] = True,
    normalized: Annotated[
        bool, typer.Option("--normalized", help="Give embeddings length 1 before they are shifted.")
    ] = False,
    epochs: Annotated[int, typer.Option(help="Passes over the pairs.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Pairs per step.")] = 16,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 2e-5,
    weight_decay: Annotated[float, typer.Option(help="The weight decay of AdamW.")] = 0.1,
    warmup: Annotated[float, typer.Option(help="The share of steps in which the learning rate rises.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Decides the order of pairs, and dropout.")] = 0,
    scale: Annotated[str, typer.Option(help="What dot products are multiplied by: one, usual or learned.")] = "usual",
    centred: Annotated[
        bool, typer.Option("--centred", help="Let the usual dot product of unrelated texts stand for the score 0.")
    ] = False,
    own: Annotated[float, typer.Option(help="The weight of a text's dot product with itself standing for 1.")] = 0.0,
    teacher: Annotated[str | None, typer.Option(help="A model whose cosines count as much as the labels.")] = None,
    precision: Annotated[
        str, typer.Option(help="Of the matrix products of training: float32, or bfloat16, which is faster.")
    ] = "float32",
    dev: Annotated[
        str | None, typer.Option(metavar="FILE", help="Pairs to choose the best epoch by.", show_default="beside FILE")
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Pairs to evaluate on.", show_default="beside FILE")
    ] = None,
    columns: ScoredColumns = None,
    score_range: Range = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run was interrupted.")] = False,
) -> None:
    """Train an encoder whose reference is exactly zero, or a plain one to compare it with."""
    from whymatch.encoders.loading import DEFAULT_MODEL
    from whymatch.training import Recipe
    from whymatch.training import train as run
    from whymatch.training.data import read_splits

    recipe = Recipe(
        base=base or DEFAULT_MODEL,
        objective=objective,  # type: ignore[arg-type]  # checked there
        adjusted=adjusted,
        normalized=normalized,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        warmup=warmup,
        seed=seed,
        scale=scale,  # type: ignore[arg-type]
        centred=centred,
        own=own,
        teacher=teacher,
        precision=precision,  # type: ignore[arg-type]
    )
    splits = read_splits(data, dev, test, names_of(columns), range_of(score_range), seed)
    echo(splits)
    record = run(recipe, splits, out, resume=resume, say=echo, progress=True)
    if "test" in record:
        scores = record["test"]
        echo(f"test: Spearman {scores['cosine']:.2f} by cosine, {scores['dot']:.2f} by dot product")


def evaluate_sts(
    model: Annotated[str, typer.Argument(help="A hub id or a folder.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Scored pairs: CSV, TSV, JSONL or Parquet.")],
    columns: ScoredColumns = None,
    score_range: Range = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the numbers.")] = None,
) -> None:
    """Print Spearman's correlation of a model's scores with people's, by cosine and by dot product."""
    check_writable(json)
    from whymatch.corpus.pairs import read_scored_pairs
    from whymatch.encoders.loading import load
    from whymatch.training import sts

    pairs = read_scored_pairs(data, names_of(columns), range_of(score_range))
    echo(pairs)
    encoder, name = load(model, None)
    correlations = sts.evaluate_sts(encoder, pairs)
    if json is not None:
        write_json(json, {"model": name, "data": str(pairs), "spearman": correlations}, indent=1)
    echo(f"Spearman × 100: {correlations['cosine']:.2f} by cosine, {correlations['dot']:.2f} by dot product")


def study(
    name: Annotated[
        str,
        typer.Argument(
            help="performance, accuracy, distribution, cumulative, pos, layers, models or failures, the paper's; "
            "agreement, roles, negation or lexical, which its authors asked next; or all."
        ),
    ],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Scored pairs: CSV, TSV, JSONL or Parquet.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of results. Finished studies are not run again.")
    ],
    model: Models = None,
    pairs: Annotated[
        int | None, typer.Option(min=2, help="How many of the pairs.", show_default="1000; performance: all")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="I,J:PAIRS,…",
            help="Which layers, and how many pairs at a dear one.",
            show_default="at the paper's depths; accuracy, layers: all",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides which of the pairs.")] = 0,
    tagger: Annotated[str | None, typer.Option(help="hanta, spacy or flair.", show_default="hanta")] = None,
    parser: Annotated[
        str | None, typer.Option(help="For roles: spacy, or order, which only guesses.", show_default="spacy")
    ] = None,
    changes: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="For negation: texts and their negations, TSV; may be repeated."),
    ] = None,
    methods: Annotated[
        bool, typer.Option("--methods", help="negation: compare whymatch with other methods of explanation, too.")
    ] = False,
    columns: ScoredColumns = None,
    score_range: Range = None,
) -> None:
    """Run one of the paper's studies, or all of them, and show our numbers beside the paper's."""
    from whymatch import studies
    from whymatch.corpus.pairs import Pairs, read_scored_pairs
    from whymatch.encoders.loading import DEFAULT_MODEL
    from whymatch.studies import report
    from whymatch.studies.experiment import Experiment
    from whymatch.studies.negation import read_changes
    from whymatch.truth.data import sample

    if name not in (*studies.NAMES, "all"):
        raise ValueError(f"there is no study {name!r}; choose one of {', '.join(studies.NAMES)}, or all")
    chosen = None if layers is None else _read_layers(layers)
    changed: list[Change] = []
    for file in [data] if name == "negation" and not changes else changes or []:
        changed += sample(read_changes(file), pairs or CHANGES, seed)
    if name == "negation":
        echo(f"{len(changed)} changed texts")
        scored = Pairs(data.name, (), [(change.text, change.changed) for change in changed], [0.0] * len(changed))
    else:
        scored = read_scored_pairs(data, names_of(columns), range_of(score_range))
        echo(scored)
    experiment = Experiment(
        model or [DEFAULT_MODEL],
        scored,
        out,
        pairs=pairs,
        layers=chosen,
        seed=seed,
        tagger=tagger,
        parser=parser,
        changes=changed,
        say=echo,
        progress=True,
    )
    skipped: dict[str, str] = {}
    if name == "all":
        reasons = {each: studies.why_skipped(each, experiment) for each in studies.NAMES}
        skipped = {each: reason for each, reason in reasons.items() if reason is not None}
    for each, reason in skipped.items():
        echo(f"{each}: skipped: {reason}")
    names = [each for each in studies.NAMES if each not in skipped] if name == "all" else [name]
    studies.check(names, experiment)
    _print_estimate(studies.foresee(names, experiment))
    results = {each: studies.run(each, experiment) for each in names}
    if name == "all":
        echo(f"written: {report.write(results, experiment, skipped)}")
        return
    for comparison in results[name].compared:
        echo(f"{comparison.what}: {comparison.ours}; the paper's: {comparison.paper}")
    for caption, rows in results[name].tables.items():
        echo("\n".join([f"{caption}:", *("  ".join(row) for row in rows)]))
    echo(f"written: {out / f'{name}.json'}, {', '.join(results[name].files.values())}")
    if name == "negation" and methods:
        _compare_methods(changed, data, out, model or [DEFAULT_MODEL], seed)


def _read_layers(layers: str) -> dict[int, int | None]:
    """Read a list of layers, each with the most pairs that are studied at it: 7:20,9:100,11,12."""
    chosen: dict[int, int | None] = {}
    for each in layers.split(","):
        layer, colon, most = each.partition(":")
        try:
            chosen[int(layer)] = int(most) if colon else None
        except ValueError:
            raise ValueError(
                f"--layers {layers!r} is not a list of numbers; give them as 0,3,6, or with the most pairs of a layer "
                "as 0:20,3,6"
            ) from None
        if colon and int(most) < 2:
            raise ValueError(f"--layers {layers!r}: a study of layer {layer} needs 2 or more pairs, not {most}")
    return chosen


def _print_estimate(seconds: Mapping[str, float]) -> None:
    """Print how long studies will take, and what takes longest."""
    total = sum(seconds.values())
    longest = sorted(seconds.items(), key=lambda each: -each[1])[:5]
    parts = "; ".join(f"{name} {_duration(each)}" for name, each in longest)
    echo(f"this will take about {_duration(total)}{f' ({parts})' if len(seconds) > 1 else ''}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _compare_methods(items: Sequence[Change], data: Path, out: Path, models: Sequence[str], seed: int) -> None:
    """Tell which methods of explanation show what negations and antonyms do to a score."""
    from whymatch.encoders.loading import load
    from whymatch.studies.negation import Negation
    from whymatch.truth import evaluation
    from whymatch.truth.runs import Job, run

    folder = out / "methods"  # apart from the studies' own results
    for name in models:
        model, full_name = load(name, None)
        plan = evaluation.Plan([], [], methods=("whymatch", "token-cosine:-1", "leave-one-out", "shapley"))
        subjects, asked = evaluation.make_subjects(plan, model, full_name, folder)
        test, about = Negation(asked, seed), {"data": data.name}
        jobs = [Job(test, each, items, about, asked.identity) for each in subjects]
        for result in run(jobs, folder, echo, progress=True):
            values = result.estimates
            echo(
                f"{result.settings['subject']}: the word that lacks most is a changed one in "
                f"{values['seen'].value:.0%} of pairs ({values['seen_by_chance'].value:.0%} by chance); changed words "
                f"carry {values['loss_share'].value:.0%} of what is missing"
            )
        for kind in ("negation", "antonym", "same"):
            if values[f"score_{kind}"].pairs:
                echo(
                    f"score after a change ({kind}): {values[f'score_{kind}']}; with another word left out instead: "
                    f"{values[f'control_{kind}']}"
                )
    echo(f"written: {folder}")

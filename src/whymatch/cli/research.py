"""Commands of research: train, evaluate-sts, study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whymatch.cli.common import Model, Models, Range, ScoredColumns, check_writable, names_of, quiet_loading, range_of
from whymatch.files import written_aside


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
    weight_decay: Annotated[float, typer.Option(help="AdamW's.")] = 0.1,
    warmup: Annotated[float, typer.Option(help="The share of steps in which the learning rate rises.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the order of pairs, and of dropout.")] = 0,
    scale: Annotated[str, typer.Option(help="What dot products are multiplied with: one, usual or learned.")] = "usual",
    centred: Annotated[
        bool, typer.Option("--centred", help="Let the usual dot product of unrelated texts stand for 0.")
    ] = False,
    own: Annotated[float, typer.Option(help="The weight of a text's dot product with itself standing for 1.")] = 0.0,
    teacher: Annotated[str | None, typer.Option(help="A model whose cosines count as much as the labels.")] = None,
    dev: Annotated[str | None, typer.Option(metavar="FILE", help="To choose by.", show_default="beside FILE")] = None,
    test: Annotated[str | None, typer.Option(metavar="FILE", help="To judge by.", show_default="beside FILE")] = None,
    columns: ScoredColumns = None,
    score_range: Range = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run was interrupted.")] = False,
) -> None:
    """Train an encoder whose reference is exactly zero, or a plain one to compare it with."""
    from whymatch.models import DEFAULT_MODEL
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
    )
    splits = read_splits(data, dev, test, names_of(columns), range_of(score_range), seed)
    typer.echo(splits)
    quiet_loading()
    record = run(recipe, splits, out, resume=resume, say=typer.echo, progress=True)
    if "test" in record:
        found = record["test"]
        typer.echo(f"test: Spearman {found['cosine']:.2f} by cosine, {found['dot']:.2f} by dot product")


def evaluate_sts(
    model: Annotated[str, typer.Argument(help="A hub id or a folder.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Scored pairs: CSV, TSV, JSONL or Parquet.")],
    columns: ScoredColumns = None,
    score_range: Range = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the numbers.")] = None,
) -> None:
    """Print Spearman's correlation of a model's scores with people's, by cosine and by dot product."""
    check_writable(json)
    from whymatch.models import load
    from whymatch.tables import read_scored_pairs
    from whymatch.training import sts

    pairs = read_scored_pairs(data, names_of(columns), range_of(score_range))
    typer.echo(pairs)
    quiet_loading()
    encoder, name = load(model, None)
    found = sts.evaluate_sts(encoder, pairs)
    if json is not None:
        import json as text

        with written_aside(json) as aside:
            content = {"model": name, "data": str(pairs), "spearman": found}
            aside.write_text(text.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    typer.echo(f"Spearman × 100: {found['cosine']:.2f} by cosine, {found['dot']:.2f} by dot product")


def study(
    name: Annotated[
        str,
        typer.Argument(help="performance, accuracy, distribution, cumulative, pos, layers, models, failures or all."),
    ],
    data: Annotated[Path, typer.Option(metavar="FILE", help="Scored pairs: CSV, TSV, JSONL or Parquet.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of results. What is there is not done again.")],
    model: Models = None,
    pairs: Annotated[int, typer.Option(min=2, help="How many of the pairs.")] = 1000,
    layers: Annotated[
        str | None, typer.Option(metavar="I,J,…", help="Which layers.", show_default="the upper two thirds")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which of the pairs.")] = 0,
    tagger: Annotated[str | None, typer.Option(help="hanta, spacy or flair.", show_default="hanta")] = None,
    columns: ScoredColumns = None,
    score_range: Range = None,
) -> None:
    """Run one of the paper's studies, or all of them, and put the numbers beside the paper's."""
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
    scored = read_scored_pairs(data, names_of(columns), range_of(score_range))
    typer.echo(scored)
    quiet_loading()
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
    names = studies.NAMES if name == "all" else (name,)
    studies.check(names, setting)
    results = {each: studies.run(each, setting) for each in names}
    if name == "all":
        typer.echo(f"written: {report.write(results, setting)}")
        return
    for one in results[name].compared:
        typer.echo(f"{one.what}: {one.ours}; the paper's: {one.paper}")
    for caption, rows in results[name].tables.items():
        typer.echo("\n".join([f"{caption}:", *("  ".join(row) for row in rows)]))
    typer.echo(f"written: {out / f'{name}.json'}, {', '.join(results[name].files.values())}")

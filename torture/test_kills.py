"""SIGKILL at random moments: whatever is resumed ends with every row, and every document, exactly once."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from attack import Command, Tally, seeded, trials

from whymatch.corpus.index import Index

WORDS = ["coffee", "bread", "man", "woman", "dog", "child", "kitchen", "field", "stocks", "bad", "good", "snowy"]
# Parts of a batch and shards of an index are large for good reasons; small ones let kills meet many of them.
SMALL = {"whymatch.corpus.batch.PART_ROWS": 16, "whymatch.corpus.batch.PART_SECONDS": 0.05}
SMALL_SHARDS = {"whymatch.corpus.index.SHARD": 8}
BAD = 3  # lines of the file that are no rows


def write_pairs(path: Path, count: int, rng: random.Random) -> Path:
    lines = []
    for _ in range(count):
        # The first text is one of a few, so that many rows share it.
        pair = {"text_a": " ".join(rng.choices(WORDS[:4], k=2)), "text_b": " ".join(rng.choices(WORDS, k=5))}
        lines.append(json.dumps(pair))
    for _ in range(BAD):
        lines.insert(rng.randrange(len(lines)), "{not json")
    path.write_text("\n".join(lines) + "\n")
    return path


def read(folder: Path) -> list[dict[str, Any]]:
    return sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["row"]) if folder.exists() else []


def difference(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str | None:
    """In what a dataset differs from what it must be; which rows ran together may change the last digits."""
    numbers, due = [row["row"] for row in rows], [row["row"] for row in expected]
    if numbers != due:
        lost, doubled = sorted(set(due) - set(numbers)), len(numbers) - len(set(numbers))
        return f"rows lost: {lost[:5]}, doubled: {doubled}, not in the file: {sorted(set(numbers) - set(due))[:5]}"
    for row, other in zip(rows, expected, strict=True):
        for name, value in other.items():
            if name in ("score", "error", "matrix", "entry_error"):
                shapes = np.shape(row[name]) == np.shape(value)
                if not shapes or not np.allclose(np.array(row[name], float), np.array(value, float), atol=1e-4):
                    return f"row {row['row']} has another {name}"
            elif name != "top" and row[name] != value:
                return f"row {row['row']} has another {name}"
    return None


def strays(out: Path) -> list[str]:
    return [path.name for path in out.iterdir() if path.suffix != ".parquet"]


def attack(args: list[object], tmp_path: Path, rng: random.Random, tally: Tally, constants: dict[str, Any]) -> None:
    """Start a command again and again and kill it, at the last with nothing in its way."""
    longest = 1.0
    for _ in range(rng.randrange(2, 7)):
        command = Command(*args, folder=tmp_path, constants=constants)
        time.sleep(rng.uniform(0, longest))
        command.kill()
        ended = command.wait()
        if ended.code == -9:
            tally.add("kills")
        elif ended.code == 0:
            tally.add("ended before the kill")
            longest *= 0.6
        else:
            tally.fail(f"{args[0]}: {ended}")
    ended = Command(*args, folder=tmp_path, constants=constants).wait()
    if ended.code != 0:
        tally.fail(f"{args[0]}: {ended}")


def test_batch(folder, tmp_path, tally):
    rng = seeded("kill batch")
    pairs = write_pairs(tmp_path / "pairs.jsonl", 200, rng)
    options = ["--model", folder, "--layer", "-1", "--batch-size", 8]
    whole = Command("batch", pairs, tmp_path / "whole", *options, folder=tmp_path).wait()
    assert whole.code == 0, whole
    for number in trials(14):
        place = tmp_path / str(number)
        place.mkdir()
        attack(["batch", pairs, place / "out", *options, "--resume"], place, rng, tally, SMALL)
        wrong = difference(read(place / "out"), read(tmp_path / "whole"))
        bad = difference(read(place / "out.job/errors"), read(tmp_path / "whole.job/errors"))
        if wrong or bad or strays(place / "out"):
            tally.fail(f"job {number}: {wrong or bad or strays(place / 'out')}")
        else:
            tally.add("jobs with every row once")
            tally.add("rows", len(read(place / "out")) + len(read(place / "out.job/errors")))
        shutil.rmtree(place)
    tally.check()


def test_another_job_in_the_same_place(folder, folders, tmp_path, tally):
    """A killed job's leftovers never enter another job: other settings, another model, another file."""
    rng = seeded("other job")
    for number in trials(10):
        place = tmp_path / str(number)
        place.mkdir()
        model = place / "model"
        shutil.copytree(folder, model)
        pairs = write_pairs(place / "pairs.jsonl", 120, rng)

        def batch(out: str, layer: int, pairs: Path = pairs, place: Path = place, model: Path = model) -> Command:
            options = ["--model", model, "--layer", layer, "--batch-size", 8]
            return Command("batch", pairs, place / out, *options, folder=place, constants=SMALL)

        first = batch("out", 2)
        time.sleep(rng.uniform(0.2, 1.0))
        first.kill()
        first.wait()
        shutil.rmtree(place / "out", ignore_errors=True)
        change = rng.choice(["layer", "model", "file"])
        if change == "model":
            shutil.rmtree(model)
            shutil.copytree(folders("electra"), model)
        elif change == "file":
            write_pairs(pairs, 120, rng)
        layer = 3 if change == "layer" else 2
        second, clean = batch("out", layer).wait(), batch("clean", layer).wait()
        assert clean.code == 0, clean
        if second.refused:
            tally.add("refused")
        elif second.code != 0:
            tally.fail(f"{change} changed: {second}")
        elif wrong := difference(read(place / "out"), read(place / "clean")):
            tally.fail(f"{change} changed: {wrong}")
        else:
            tally.add("results of the new job alone")
        shutil.rmtree(place)
    tally.check()


def test_index(folder, tmp_path, tally):
    rng = seeded("kill index")
    for number in trials(12):
        place = tmp_path / str(number)
        place.mkdir()
        documents = [f"{' '.join(rng.choices(WORDS, k=4))} {i}" for i in range(120)]
        (place / "documents.txt").write_text("\n".join(documents) + "\n")
        options = ["--model", folder, "--layer", "-1", "--resume"]
        attack(["index", "build", place / "documents.txt", place / "index", *options], place, rng, tally, SMALL_SHARDS)
        hits = Index.open(place / "index", str(folder)).search("bad coffee", top=1000).hits
        if [hit.text for hit in sorted(hits, key=lambda hit: hit.index)] != documents:
            tally.fail(f"index {number}: {len(hits)} documents, of {len(documents)}, or in another order")
        else:
            tally.add("indexes with every document once")
            tally.add("documents", len(documents))
        shutil.rmtree(place)
    tally.check()

"""One flipped bit in a file that is read: it is noticed, or what is read is what was written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from attack import REFUSALS, Command, Tally, describe, flip, is_clear, seeded, trials

from whymatch import Explainer, Explanation
from whymatch.corpus.index import Index

PAIRS = [{"text_a": f"coffee {i % 3}", "text_b": f"the bread of man {i}"} for i in range(40)]
DOCUMENTS = [f"the coffee of woman {i} is not good" for i in range(30)]
SMALL = {"whymatch.corpus.batch.PART_ROWS": 16, "whymatch.corpus.index.SHARD": 8}
HARMLESS, NOTICED, WRONG = 0, 3, 4


def read(folder: Path) -> str:
    """Everything that a dataset says, in the order of its rows."""
    rows = sorted(pq.read_table(folder).to_pylist(), key=lambda row: row["row"])
    return json.dumps(rows, default=str)


def copy_tree(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target, symlinks=True))


def in_child(look: Any) -> int:
    """Run in a forked child, which may die of what it reads; returns its exit code, or minus a signal's number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = look()
        except REFUSALS as error:
            code = NOTICED if is_clear(str(error)) else 5
        except BaseException:
            code = 2
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def count(code: int, what: str, tally: Tally) -> None:
    if code == HARMLESS:
        tally.add("harmless")
    elif code == NOTICED:
        tally.add("noticed")
    else:
        meaning = {WRONG: "reads as other content", 5: "an unclear error", 2: "an exception that is no refusal"}
        tally.fail(f"{what}: {meaning.get(code, f'died with {code}')}")


@pytest.fixture(scope="module")
def job(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished batch job of several parts, with rows in its errors table."""
    place = tmp_path_factory.mktemp("job")
    lines = [json.dumps(pair) for pair in PAIRS]
    lines[7] = lines[30] = "{not json"
    (place / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    options = ["--model", folder, "--layer", "-1", "--batch-size", 8]
    ended = Command("batch", "pairs.jsonl", "out", *options, folder=place, constants=SMALL, cwd=place).wait()
    assert ended.code == 0, ended
    assert len(list((place / "out").iterdir())) > 1
    return place


def test_parts_and_record_of_a_batch(job, folder, tmp_path, tally):
    """After ``--resume`` the dataset is what it was, or the command refuses."""
    rng = seeded("flip batch")
    rows, errors = read(job / "out"), read(job / "out.job/errors")
    files = [path.relative_to(job) for path in sorted(job.rglob("*")) if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.parts[0] in ("out", "out.job")]
    for number in trials(120):
        place = copy_tree(job, tmp_path / "job")
        # The record is small: it would seldom be met if bytes were equally likely.
        path = files[number % len(files)]
        _, what = flip(place / path, rng)
        options = ["--model", folder, "--layer", "-1", "--batch-size", 8, "--resume"]
        ended = Command("batch", "pairs.jsonl", "out", *options, folder=place, constants=SMALL, cwd=place).wait()
        if ended.refused:
            tally.add("noticed: refused")
        elif ended.code != 0:
            tally.fail(f"{what}: {ended}")
        else:
            try:
                same = same_rows(read(place / "out"), rows) and read(place / "out.job/errors") == errors
            except Exception as error:
                tally.fail(f"{what}: after --resume, {describe(error)}")
                continue
            again = (place / path).read_bytes() == (job / path).read_bytes()
            if not same:
                tally.fail(f"{what}: reads as other content")
            else:
                tally.add("noticed: made again" if again or "again" in ended.err else "harmless")
    tally.check()


def same_rows(content: str, other: str) -> bool:
    """Equal but for the last digits of numbers, which depend on what ran together."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 4) + 0.0
        if isinstance(value, list):
            return [rounded(item) for item in value]
        return {k: rounded(v) for k, v in value.items() if k != "top"} if isinstance(value, dict) else value

    return content == other or rounded(json.loads(content)) == rounded(json.loads(other))


@pytest.fixture(scope="module")
def index(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("index")
    (place / "documents.txt").write_text("\n".join(DOCUMENTS) + "\n")
    options = ["--model", folder, "--layer", "-1", "--store", "tokens"]
    command = Command("index", "build", place / "documents.txt", place / "i", *options, folder=place, constants=SMALL)
    ended = command.wait()
    assert ended.code == 0, ended
    return place / "i"


def search(index: Path, model: Path) -> list[dict[str, Any]]:
    """Everything that a search says of every document; what the model is called is the caller's to say."""
    hits = Index.open(index, str(model)).search("bad coffee", top=1000).hits
    explanations = [{**hit.explanation.to_dict(), "index": hit.index, "document": hit.text} for hit in hits]
    for hit in explanations:
        hit["settings"] = {**hit["settings"], "model": ""}
    return explanations


def test_manifest_and_shards_of_an_index(index, folder, tmp_path, tally):
    rng = seeded("flip index")
    before = search(index, folder)
    files = sorted(path.name for path in index.iterdir() if path.stat().st_size)
    for number in trials(200):
        place = copy_tree(index, tmp_path / "index")
        _, what = flip(place / files[number % len(files)], rng)
        count(in_child(lambda place=place: HARMLESS if search(place, folder) == before else WRONG), what, tally)
    tally.check()


def test_the_model_of_an_index(index, folder, tmp_path, tally):
    """An index is searched with the model that made it, to the bit, or not at all."""
    rng = seeded("flip model")
    before = search(index, folder)
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".md"]
    for number in trials(100):
        model = copy_tree(folder, tmp_path / "model")
        path = files[number % len(files)]
        _, what = flip(model / path, rng)
        code = in_child(lambda model=model: HARMLESS if search(index, model) == before else WRONG)
        if code == 2:  # what a broken configuration raises is the libraries' own, and says that it is broken
            code = NOTICED
        count(code, f"{path}: {what}", tally)
    tally.check()


def test_saved_explanations(folder, tmp_path, tally):
    rng = seeded("flip explanation")
    path = tmp_path / "why.json"
    why = Explainer(folder, layer=2).explain("The coffee is not good.", "This is bad coffee.")
    why.save(path)
    before = Explanation.load(path).to_dict()
    for _ in trials(400):
        content, what = flip(path, rng)

        def look() -> int:
            return HARMLESS if Explanation.load(path).to_dict() == before else WRONG

        count(in_child(look), what, tally)
        path.write_bytes(content)
    tally.check()

"""An evaluation as the user requests it: tests, models, settings and files become jobs."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whymatch.encoders.loading import load
from whymatch.explainer import Explainer
from whymatch.files import make_folder
from whymatch.results.decomposition import Decomposition
from whymatch.truth import baselines, data
from whymatch.truth.asking import Model
from whymatch.truth.chunking import Chunks
from whymatch.truth.controls import Twins
from whymatch.truth.curves import InsertionDeletion
from whymatch.truth.deletions import Coalitions
from whymatch.truth.links import WordLinks
from whymatch.truth.passages import Answers
from whymatch.truth.results import Result
from whymatch.truth.runs import Job
from whymatch.truth.runs import run as run_jobs
from whymatch.words import word_spans

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# What each test reads.
READS = {
    "coalitions": "pairs",
    "insertion_deletion": "pairs",
    "alignment": "links",
    "chunks": "chunks",
    "answers": "questions",
    "sanity": "pairs",
}
WANTED = {
    "pairs": "pairs of texts (CSV, TSV, JSONL, Parquet)",
    "links": "word links (MultiMWA's .tsv)",
    "chunks": "linked chunks (iSTS's .wa)",
    "questions": "questions (SQuAD's .json)",
}
READERS: dict[str, Callable[[Path], Sequence[Any]]] = {
    "pairs": data.read_pairs,
    "links": data.read_aligned,
    "chunks": data.read_chunked,
    "questions": data.read_questions,
}
BY_SUFFIX = {".wa": "chunks", ".json": "questions"} | dict.fromkeys((".csv", ".jsonl", ".ndjson", ".parquet"), "pairs")


FIRST_LINES = 100  # of a table, by which it is known: there may be pairs without links
REMEMBERED = 2000  # texts whose decompositions are kept for the next test


@dataclass(frozen=True)
class Plan:
    """What is to be evaluated.

    Attributes:
        tests: names of tests, or ``["all"]``; empty for every test that reads one of the files.
        data: files, or folders of them.
        models: hub ids or folders; None is the default model.
        methods: ``"whymatch"``, and baselines by name.
        settings: the keyword arguments of each explainer.
        units, removals: what coalitions remove, and how.
        pairs: how many pairs of each file.
        split: ``"dev"`` or ``"test"``, or None for everything.
        seed: decides which pairs, and which words are removed.
        max_words: leave out pairs with a text of more words; None takes all.
        columns: of tables of pairs: those of the two texts; None finds them.
    """

    tests: Sequence[str]
    data: Sequence[Path]
    models: Sequence[str | None] = (None,)
    methods: Sequence[str] = ("whymatch",)
    settings: Sequence[Mapping[str, Any]] = ({},)
    units: Sequence[str] = ("words",)
    removals: Sequence[str] = ("delete",)
    pairs: int = 100
    split: str | None = None
    seed: int = 0
    max_words: int | None = None
    columns: Sequence[str] | None = None

    @property
    def names(self) -> list[str]:
        """The tests, each checked."""
        for name in self.tests:
            if name not in (*READS, "all"):
                raise ValueError(f"there is no test {name!r}; choose {', '.join(READS)}, or all")
        return list(READS) if "all" in self.tests else list(dict.fromkeys(self.tests))


def run(plan: Plan, out: Path, say: Callable[[str], None] = lambda _: None, progress: bool = False) -> Iterator[Result]:
    """Run an evaluation; what the folder already holds of it is not run again."""
    files = find_files(plan, out)
    plan = replace(plan, tests=plan.tests or [name for name, kind in READS.items() if files[kind]])
    for name in plan.models:
        model, full_name = load(name, None)
        yield from run_jobs(make_jobs(plan, files, model, full_name, out), out, say, progress)


def find_files(plan: Plan, out: Path | None = None) -> dict[str, list[Path]]:
    """Sort files by what they hold, and check that each test has some; what is in ``out`` is no data."""
    files: dict[str, list[Path]] = {kind: [] for kind in WANTED}
    data.split_half([], plan.split)  # which checks its name
    for place in plan.data:
        if place.is_dir():
            if plan.split is None:
                raise ValueError(f"{str(place)!r} is a folder: say which of its files, --split dev or test")
            own = None if out is None else out.resolve()
            inside = [path for path in sorted(place.rglob("*")) if own not in path.resolve().parents]
            kinds = {path: kind_of(path) for path in inside}
            found = {wanted: [path for path, kind in kinds.items() if kind == wanted] for wanted in WANTED}
            # Files that are named for the split; where there are none, half of those that are named for no other.
            named = [path for path in found["pairs"] if split_named(path) == plan.split]
            found["pairs"] = named or [path for path in found["pairs"] if split_named(path) is None]
            found["questions"] = [path for path in found["questions"] if data.holds_questions(path)]
            for kind, paths in found.items():
                files[kind] += paths
        elif kind_of(place) is None:
            raise ValueError(f"{str(place)!r} is not a file that a test can read; give {'; '.join(WANTED.values())}")
        else:
            files[kind_of(place) or ""].append(place)
    for name in plan.names:
        if not files[READS[name]]:
            raise ValueError(f"the test {name!r} reads {WANTED[READS[name]]}, and --data names no such file")
    if not any(files.values()):
        places = ", ".join(repr(str(place)) for place in plan.data)
        raise ValueError(f"there is nothing that a test can read in {places}; give {'; '.join(WANTED.values())}")
    return files


def kind_of(path: Path) -> str | None:
    """Tell what a file holds by its name and its first lines; None if no test reads it."""
    if not path.is_file():
        if not path.exists():
            raise FileNotFoundError(f"there is no file {str(path)!r}")
        return None
    kind = path.suffix.lower()
    if kind == ".tsv":
        with path.open(encoding="utf-8", errors="replace") as file:
            rows = [line.rstrip("\n").split("\t") for line in islice(file, FIRST_LINES) if line.strip()]
        eight = all(len(cells) >= 8 for cells in rows)
        linked = eight and any(re.fullmatch(r"(\d+-\d+\s*)+", cells[7].strip()) for cells in rows)
        return "links" if linked else "pairs"
    return BY_SUFFIX.get(kind)


def split_named(path: Path) -> str | None:
    """Return which split a file of pairs is, by its name."""
    words = re.split(r"[\W_]+", path.stem.casefold())
    return next((word for word in words if word in ("train", *data.SPLITS)), None)


def read(kind: str, path: Path, plan: Plan) -> tuple[list[Any], dict[str, Any]]:
    """Read items from a file, and name the split that they are."""
    items = data.read_pairs(path, plan.columns) if kind == "pairs" else list(READERS[kind](path))
    own = split_named(path) if kind == "pairs" else None
    if own is not None and plan.split not in (None, own):
        raise ValueError(f"{str(path)!r} is named as the split {own!r}, and --split says {plan.split!r}")
    if own is None:
        items = data.split_half(items, plan.split)
    description: dict[str, Any] = {"data": path.name, "file": fingerprint(path), "split": own or plan.split or "all"}
    if kind == "pairs" and plan.columns is not None:
        description["columns"] = list(plan.columns)
    if plan.max_words is not None:
        items = [item for item in items if max(map(count_words, texts_of(item))) <= plan.max_words]
        description["max_words"] = plan.max_words
    return data.sample(items, plan.pairs, plan.seed), description


def fingerprint(path: Path) -> str:
    """Tell files of one name apart, by how they begin: a file that grows is still the same."""
    with path.open("rb") as file:
        start = file.readline(4096) + file.readline(4096)  # the first line may be the names of columns
    return hashlib.sha256(start).hexdigest()[:8]


def texts_of(item: Any) -> tuple[str, str]:
    """Return the two texts of what a test is run on."""
    if isinstance(item, data.Question):
        return item.question, item.context
    return (item.text_a, item.text_b) if isinstance(item, data.TokenisedPair) else item


def count_words(text: str) -> int:
    return len(word_spans(text))


def make_jobs(plan: Plan, files: Mapping[str, Sequence[Path]], model: Any, name: str, out: Path) -> list[Job]:
    """List what there is to do for one model."""
    subjects, asked = make_subjects(plan, model, name, out)
    jobs = []
    for test in plan.names:
        for path in files[READS[test]]:
            items, description = read(READS[test], path, plan)
            if not items:
                short = "" if plan.max_words is None else f" whose texts have {plan.max_words} words or fewer"
                of_split = "" if plan.split is None else f" in its half for {plan.split!r}"
                raise ValueError(f"{str(path)!r} has no pair{short}{of_split}")
            twins = Twins(asked, [text for item in items[:4] for text in texts_of(item)], plan.seed)
            for subject in subjects:
                tests = make_tests(plan, test, subject, asked, twins)
                jobs += [Job(each, subject, items, description, asked.identity) for each in tests]
    return jobs


def make_subjects(plan: Plan, model: Any, name: str, out: Path) -> tuple[list[Any], Model]:
    """Prepare what is judged, and the model that is asked, whose answers are kept in the folder."""
    make_folder(out / "answers")
    file = re.sub(r"[^-.0-9A-Za-z]+", "-", Path(name).name)
    asked = Model(model, name=name, answers=out / "answers" / f"{file}.jsonl")
    subjects: list[Any] = []
    for each in plan.methods:
        if each == "whymatch":
            subjects += [Subject(Explainer(model, **settings), name) for settings in plan.settings]
        elif each == "unfolded":  # the paper's own form, of the same model
            paper = {"path": "straight", "fold_reference": False, "special": "keep", "divisions": 0}
            straight = [dict(each) | paper for each in plan.settings if each.get("path") in (None, "straight")]
            if not straight:
                paths = ", ".join(dict.fromkeys(str(each["path"]) for each in plan.settings))
                raise ValueError(f"unfolded is the paper's form, whose path is straight, not {paths}; add it to --path")
            subjects += [Subject(Explainer(model, **settings), name) for settings in straight]
        else:
            subjects += baselines.named(each, asked)
    return subjects, asked


def make_tests(plan: Plan, name: str, subject: Any, model: Model, twins: Twins) -> list[Any]:
    """Prepare a test for a subject, in each of the ways that are asked for."""
    if name == "coalitions":
        ways = product(plan.units, plan.removals)
        return [Coalitions(model, units=units, removal=removal, seed=plan.seed) for units, removal in ways]
    if name == "insertion_deletion":
        return [InsertionDeletion(model, seed=plan.seed)]
    if name == "answers":
        return [Answers(model)]
    if name == "sanity":
        return [twins.sanity(subject, getattr(subject, "with_model", None))]
    return [WordLinks(model) if name == "alignment" else Chunks()]


class Subject:
    """An explainer that several tests share: it decomposes each text once, and knows what that cost.

    Args:
        explainer: the explainer.
        name: what its model is called in results.
    """

    def __init__(self, explainer: Explainer, name: str) -> None:
        self._explainer = explainer
        self._known: dict[tuple[str, str | None, str | None], tuple[Decomposition, float]] = {}
        self.settings = replace(explainer.settings, model=name)
        self.asymmetric = explainer.asymmetric

    def decompose(
        self, texts: Sequence[str], task: str | None = None, groups: str | None = None
    ) -> list[Decomposition]:
        """Decompose texts as the explainer does; those that are known already are not decomposed again."""
        missing = [text for text in texts if (text, task, groups) not in self._known]
        if missing:
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
            start = time.perf_counter()
            decompositions = self._explainer.decompose(missing, task=task, groups=groups)
            each = (time.perf_counter() - start) / len(missing)
            self._known |= {(text, task, groups): (d, each) for text, d in zip(missing, decompositions, strict=True)}
        return [self._known[text, task, groups][0] for text in texts]

    def with_model(self, model: SentenceTransformer) -> Explainer:
        """Return the same explainer of another model."""
        return self._explainer.with_model(model)

    def seconds(self, a: str, b: str, groups: str | None) -> float:
        """Return what the decompositions of two texts cost."""
        tasks = ("query", "document") if self.asymmetric else (None, None)
        keys = {(a, tasks[0], groups), (b, tasks[1], groups)}
        return sum(self._known[key][1] for key in keys if key in self._known)

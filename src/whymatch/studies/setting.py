"""What every study shares: the models, the pairs, the texts' decompositions, and the form of a result."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import re
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whymatch import Explainer, Explanation, __version__, models
from whymatch.decomposition import Decomposition
from whymatch.files import held, made, written_aside
from whymatch.store import Store
from whymatch.studies import charts
from whymatch.studies.taggers import Tagger, get_tagger
from whymatch.tables import Pairs
from whymatch.training.shift import shift_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sentence_transformers import SentenceTransformer

# Texts that are decomposed before they are written down: what an interruption can cost.
AT_ONCE = 64
TOLERANCE = 1e-3
PARTS = "parts"  # the folder of what an interrupted study has found


@dataclass(frozen=True)
class Compared:
    """One number of ours beside the paper's."""

    what: str
    ours: str
    paper: str


@dataclass
class Result:
    """What a study found: in words, in numbers, beside the paper's, and in figures."""

    title: str
    notes: list[str] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)  # by caption; the first row is the header
    figures: dict[str, Figure] = field(default_factory=dict)  # by caption
    files: dict[str, str] = field(default_factory=dict)  # the figures' files by caption, once they are written
    seconds: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)


class Subject:
    """A model that is studied."""

    def __init__(self, name: str, device: str | None = None) -> None:
        self.model: SentenceTransformer
        self.model, self.name = models.load(name, device)
        # What figures call it: the last part of a hub id or of a path.
        self.label = Path(self.name.rstrip("/")).name
        self.adjusted = shift_of(self.model) is not None
        self._whole = Explainer(self.model, tolerance=TOLERANCE)
        if self._whole.asymmetric:
            raise ValueError(
                f"{self.name!r} reads queries and documents in different ways; the studies are of models that read "
                "both texts of a pair alike: choose another --model"
            )

    @cached_property
    def identity(self) -> str:
        return models.identity(self.model)

    @property
    def num_layers(self) -> int:
        return self._whole.num_layers

    def explainer(self, layer: int) -> Explainer:
        return self._whole.at_layer(layer)


class Setting:
    """The models, pairs and layers of a run, and its folder.

    A text is decomposed once for each model and layer, and kept in the folder: all studies share it, and what an
    interrupted study has decomposed is there when it is run again.
    """

    def __init__(
        self,
        names: Sequence[str],
        data: Pairs,
        out: str | os.PathLike[str],
        *,
        pairs: int | None = 1000,
        layers: Sequence[int] | None = None,
        seed: int = 0,
        tagger: str | None = None,
        device: str | None = None,
        say: Callable[[str], None] = lambda _: None,
        progress: bool = False,
    ) -> None:
        self.subjects = [Subject(name, device) for name in names]
        labels = [subject.label for subject in self.subjects]
        for i, subject in enumerate(self.subjects):
            if labels.count(subject.label) > 1:
                subject.label = f"{subject.label} ({i + 1})"
        self.data = data
        self.out = Path(out)
        self.seed = seed
        self.say = say
        self._tagger = tagger
        self.progress = progress
        chosen = list(range(len(data)))
        if pairs is not None and pairs < len(chosen):
            chosen = sorted(random.Random(seed).sample(chosen, pairs))
        self.pairs = [data.texts[i] for i in chosen]
        self.labels = [data.scores[i] for i in chosen]
        self._layers = layers
        self._study: Hashable = None  # the one that is running
        for subject in self.subjects:  # an error now rather than after an hour
            for layer in layers or ():
                subject.explainer(layer)
        made(self.out)

    @cached_property
    def tagger(self) -> Tagger:
        return get_tagger(self._tagger)

    def layers(self, subject: Subject) -> list[int]:
        """The layers that are asked for; else the upper two thirds: a layer costs the more the deeper it lies below."""
        count = subject.num_layers
        found = range((count + 2) // 3, count + 1) if self._layers is None else self._layers
        return sorted({subject.explainer(layer).settings.layer for layer in found})

    def inner_layer(self, subject: Subject) -> int:
        """The one layer of studies that look at one: the middle one of those below the output."""
        layers = self.layers(subject)
        below = [layer for layer in layers if layer < subject.num_layers] or layers
        return below[len(below) // 2]

    # --- decompositions ---

    def decompositions(
        self, subject: Subject, layer: int, pairs: Sequence[tuple[str, str]] | None = None
    ) -> Mapping[str, Decomposition]:
        """Of every text of the pairs, from the folder; those that are not there yet are derived first."""
        explainer = subject.explainer(layer)
        store = self._store(subject, explainer)
        place = {text: i for i, text in enumerate(store.texts())}
        wanted = dict.fromkeys(text for pair in (self.pairs if pairs is None else pairs) for text in pair)
        missing = sorted((text for text in wanted if text not in place), key=len)
        chunks = [missing[i : i + AT_ONCE] for i in range(0, len(missing), AT_ONCE)]
        random.Random(0).shuffle(chunks)  # short and long ones in turn, so that the time left can be told
        for chunk in self.track(chunks, f"{subject.label}, layer {layer}: texts × {AT_ONCE}"):
            store.append(explainer.decompose(chunk))
        place = {text: i for i, text in enumerate(store.texts())}
        return {text: store[place[text]] for text in wanted}

    def _store(self, subject: Subject, explainer: Explainer) -> Store:
        folder = self.out / "texts" / f"{subject.identity[:16]}-layer-{explainer.settings.layer}"
        if Store.is_there(folder):
            try:
                store = Store.open(folder)
                store.check(explainer.settings, subject.identity)
                return store
            except ValueError as error:  # what can be made again is no reason to stop
                self.say(f"decomposed again: {error}")
                shutil.rmtree(folder)
        dimensions = subject.model.get_embedding_dimension()
        assert dimensions is not None
        return Store.create(folder, explainer.settings, subject.identity, dimensions)

    def explanations(
        self, subject: Subject, layer: int, pairs: Sequence[tuple[str, str]] | None = None
    ) -> Iterator[Explanation]:
        """Of every pair, in order."""
        pairs = self.pairs if pairs is None else pairs
        found = self.decompositions(subject, layer, pairs)
        return (Explainer.pair(found[a], found[b]) for a, b in pairs)

    def track(self, items: Sequence[Any], what: str) -> Iterator[Any]:
        if not self.progress or not items:
            return iter(items)
        from rich.console import Console
        from rich.progress import track

        return iter(track(items, description=what, console=Console(stderr=True)))

    # --- results ---

    def inputs(self, depends: Iterable[str]) -> dict[str, Any]:
        """What a result depends on: the models, and those of the things below that it names."""
        known: dict[str, Callable[[], dict[str, Any]]] = {
            "data": lambda: {
                "data": self.data.source,
                "data_pairs": len(self.data),
                "data_sha256": _digest(self.data.texts, self.data.scores),
            },
            "pairs": lambda: {
                "data": self.data.source,
                "pairs": len(self.pairs),
                "seed": self.seed,
                "pairs_sha256": _digest(self.pairs, self.labels),
            },
            "layers": lambda: {"layers": [self.layers(subject) for subject in self.subjects]},
            "layer": lambda: {"layer": [self.inner_layer(subject) for subject in self.subjects]},
            "tagger": lambda: {"tagger": self.tagger.name},
        }
        found: dict[str, Any] = {
            "models": [{"name": subject.label, "identity": subject.identity} for subject in self.subjects],
            "tolerance": TOLERANCE,
            "version": __version__,
        }
        for name in depends:
            found |= known[name]()
        return found

    def once(self, name: str, study: Any) -> Result:
        """Run a study unless its result is there; write down what it found."""
        path = self.out / f"{name}.json"
        before = _read(path)
        inputs = json.loads(json.dumps(self.inputs(study.DEPENDS)))
        same = before is not None and before["inputs"] == inputs
        if same and all((self.out / file).is_file() for file in before["figures"].values()):
            self.say(f"{name}: done before")
            known = {key: before[key] for key in ("title", "notes", "numbers", "tables", "seconds", "machine")}
            return Result(**known, compared=[Compared(**one) for one in before["compared"]], files=before["figures"])
        with held(self.out):
            result = self._run(name, study, inputs)
            for old in set(before["figures"].values() if before else ()) - set(result.files.values()):
                (self.out / old).unlink(missing_ok=True)
            return result

    def _run(self, name: str, study: Any, inputs: dict[str, Any]) -> Result:
        started = time.perf_counter()
        self._study = (name, json.dumps(inputs))
        result: Result = study.run(self)
        result.files = {}
        for number, (caption, figure) in enumerate(result.figures.items(), 1):
            file = f"{name}-{number}.svg"
            charts.save(figure, self.out / file)
            result.files[caption] = file
        result.seconds = round(time.perf_counter() - started, 1)
        result.machine = {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()}
        content = {
            "study": name,
            "title": result.title,
            "inputs": inputs,
            "machine": result.machine,
            "seconds": result.seconds,
            "notes": result.notes,
            "tables": result.tables,
            "compared": [vars(one) for one in result.compared],
            "numbers": result.numbers,
            "figures": result.files,
        }
        _write(content, self.out / f"{name}.json")
        shutil.rmtree(self.out / PARTS / name, ignore_errors=True)
        self.say(f"{name}: {result.seconds:.0f} s")
        return result

    def part(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A part of the study that is running; one that was computed before an interruption is read."""
        assert isinstance(self._study, tuple)
        path = self.out / PARTS / self._study[0] / f"{_digest(self._study, key)[:16]}.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = compute()
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(found, path)
        return found


def percent(share: float | None) -> str:
    return "not reached" if share is None else f"{100 * share:.0f} %"


def _digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def _write(content: dict[str, Any], path: Path) -> None:
    with written_aside(path) as aside:
        aside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    """A result that was written before; None if there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    wanted = {"title", "inputs", "notes", "compared", "numbers", "tables", "figures", "seconds", "machine"}
    if not isinstance(found, dict) or not wanted <= set(found) or not isinstance(found["figures"], dict):
        return None
    # It is only a file that somebody made: the figures that it names are this study's, in its own folder.
    ours = re.compile(rf"{path.stem}-\d+\.svg")
    return found if all(ours.fullmatch(str(file)) for file in found["figures"].values()) else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())

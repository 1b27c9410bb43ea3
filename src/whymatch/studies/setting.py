"""What every study shares: the models, the pairs, the texts' decompositions, and the form of a result."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whymatch import Explainer, Explanation, __version__, models
from whymatch.decomposition import Decomposition
from whymatch.files import written_aside
from whymatch.store import Store
from whymatch.studies import charts
from whymatch.tables import Pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sentence_transformers import SentenceTransformer

# Texts that are decomposed before they are written down: what an interruption can cost.
AT_ONCE = 64
TOLERANCE = 1e-3


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
    figures: dict[str, Figure] = field(default_factory=dict)  # by caption
    files: dict[str, str] = field(default_factory=dict)  # the figures' files by caption, once they are written


class Subject:
    """A model that is studied."""

    def __init__(self, name: str, device: str | None = None) -> None:
        self.model: SentenceTransformer
        self.model, self.name = models.load(name, device)
        # What figures call it: the last part of a hub id or of a path.
        self.label = Path(self.name.rstrip("/")).name
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
        self.tagger = tagger
        self.say = say
        self.progress = progress
        chosen = list(range(len(data)))
        if pairs is not None and pairs < len(chosen):
            chosen = sorted(random.Random(seed).sample(chosen, pairs))
        self.pairs = [data.texts[i] for i in chosen]
        self.labels = [data.scores[i] for i in chosen]
        self._layers = layers
        for subject in self.subjects:  # an error now rather than after an hour
            for layer in layers or ():
                subject.explainer(layer)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"cannot write to {str(out)!r}: {error.strerror or error}") from None

    def layers(self, subject: Subject) -> list[int]:
        """The layers that are asked for; else the upper two thirds: a layer costs the more the deeper it lies below."""
        count = subject.num_layers
        found = range((count + 2) // 3, count + 1) if self._layers is None else self._layers
        return sorted({subject.explainer(layer).settings.layer for layer in found})

    def inner_layer(self, subject: Subject) -> int:
        """The one layer of studies that look at one: the deepest below the output, as near to the words as is cheap."""
        layers = self.layers(subject)
        return layers[len(layers) // 2]

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
        for chunk in self.track(chunks, f"{subject.label}, layer {layer}: texts × {AT_ONCE}"):
            store.append(explainer.decompose(chunk))
        place = {text: i for i, text in enumerate(store.texts())}
        return {text: store[place[text]] for text in wanted}

    def _store(self, subject: Subject, explainer: Explainer) -> Store:
        folder = self.out / "texts" / f"{subject.identity[:16]}-layer-{explainer.settings.layer}"
        if not Store.is_there(folder):
            dimensions = subject.model.get_embedding_dimension()
            assert dimensions is not None
            return Store.create(folder, explainer.settings, subject.identity, dimensions)
        store = Store.open(folder)
        store.check(explainer.settings, subject.identity)
        return store

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

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """Everything that a result depends on."""
        pairs = hashlib.sha256(repr((self.pairs, self.labels)).encode("utf-8", "surrogatepass")).hexdigest()
        return {
            "models": [{"name": subject.label, "identity": subject.identity} for subject in self.subjects],
            "layers": [self.layers(subject) for subject in self.subjects],
            "data": self.data.source,
            "pairs": len(self.pairs),
            "pairs_sha256": pairs,
            "seed": self.seed,
            "tagger": self.tagger,
            "tolerance": TOLERANCE,
            "version": __version__,
        }

    def once(self, name: str, study: Callable[[Setting], Result]) -> Result:
        """Run a study unless its result is there; write down what it found."""
        path = self.out / f"{name}.json"
        before = _read(path)
        same = before is not None and before["inputs"] == json.loads(json.dumps(self.inputs))
        if same and all((self.out / file).is_file() for file in before["figures"].values()):
            self.say(f"{name}: done before")
            compared = [Compared(**one) for one in before["compared"]]
            return Result(before["title"], before["notes"], compared, before["numbers"], files=before["figures"])
        started = time.perf_counter()
        result = study(self)
        result.files = {}
        for number, (caption, figure) in enumerate(result.figures.items(), 1):
            file = f"{name}-{number}.svg"
            charts.save(figure, self.out / file)
            result.files[caption] = file
        content = {
            "study": name,
            "title": result.title,
            "inputs": self.inputs,
            "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()},
            "seconds": round(time.perf_counter() - started, 1),
            "notes": result.notes,
            "compared": [vars(one) for one in result.compared],
            "numbers": result.numbers,
            "figures": result.files,
        }
        with written_aside(path) as aside:
            aside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self.say(f"{name}: {content['seconds']:.0f} s")
        return result


def _read(path: Path) -> Any:
    """A result that was written before; None if there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    wanted = {"title", "inputs", "notes", "compared", "numbers", "figures"}
    return found if isinstance(found, dict) and wanted <= set(found) else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())

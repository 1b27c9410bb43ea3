"""What all studies share: the models, pairs and layers, the decompositions of texts, and the form of results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whymatch import Explainer, Explanation, __version__
from whymatch.corpus.pairs import Pairs
from whymatch.corpus.store import Store
from whymatch.encoders import loading
from whymatch.encoders.adjusted import shift_of
from whymatch.files import lock_folder, make_folder, read_json, read_sealed_json, write_json, write_sealed_json
from whymatch.memory import release
from whymatch.paths.integrate import RoughPathError
from whymatch.progress import track
from whymatch.studies import charts
from whymatch.studies.parsers import Parser, get_parser
from whymatch.studies.taggers import Tagger, get_tagger

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sentence_transformers import SentenceTransformer

    from whymatch.studies.negation import Change

USUAL_PAIRS = 1000  # of those given, in studies that explain them
CHUNK = 64  # texts that are decomposed between two writes: what an interruption can cost
TOLERANCE = 1e-3
PARTS = "parts"  # the folder of what an interrupted study has computed
ROUGH = "rough.json"  # beside stored texts: those whose paths no reasonable number of nodes can follow
LOOKED_AT = 3  # texts that decide whether the paths at a layer are rough
PAPERS = (7, 9, 11, 12)  # the layers of the paper's figures, of twelve


@dataclass(frozen=True)
class Comparison:
    """A number of ours beside the paper's."""

    what: str
    ours: str
    paper: str


@dataclass
class Result:
    """The result of a study.

    Attributes:
        title: of the study.
        notes: what was measured, and how, in sentences.
        compared: our numbers beside the paper's.
        numbers: all numbers.
        tables: tables by their captions; the first row is the header.
        figures: figures by their captions.
        files: the names of the figures' files by their captions, once they are written.
        seconds: how long the study took.
        machine: what it ran on.
    """

    title: str
    notes: list[str] = field(default_factory=list)
    compared: list[Comparison] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)


class Subject:
    """A model that is studied."""

    def __init__(self, name: str, device: str | None = None) -> None:
        self.model: SentenceTransformer
        self.model, self.name = loading.load(name, device)
        self.label = Path(self.name.rstrip("/")).name  # in figures: the last part of a hub id or of a path
        self.adjusted = shift_of(self.model) is not None
        # The paper's form, from which the folded one is made when it is read: one decomposition serves both.
        self._explainer, self._in_pieces = (
            Explainer(self.model, layer=0, path="straight", rule=rule, tolerance=TOLERANCE, fold_reference=False)
            for rule in ("gauss", "pieces")
        )
        if self._explainer.routed:
            raise ValueError(
                f"{self.name!r} reads queries and documents in different ways; the studies need a model that reads "
                "both texts of a pair alike: choose another --model"
            )

    @property
    def identity(self) -> str:
        return loading.identity(self.model)

    @property
    def num_layers(self) -> int:
        return self._explainer.num_layers

    def explainer(self, layer: int, in_pieces: bool = False) -> Explainer:
        """Return an explainer along the straight path at a layer, the paper's, or along pieces of it."""
        return (self._in_pieces if in_pieces else self._explainer).at_layer(layer)

    @cached_property
    def usual(self) -> Explainer:
        """An explainer with the settings that whymatch itself would choose."""
        return Explainer(self.model, tolerance=TOLERANCE)


class Stored:
    """The decompositions of texts in a folder, and the names of texts that cannot be decomposed."""

    def __init__(self, folder: Path, explainer: Explainer) -> None:
        self._explainer = explainer
        self._store = Store.reuse(folder, explainer.settings, explainer.identity, explainer.dimensions)
        self._path = folder / ROUGH
        try:
            self.rough = {str(text) for text in read_json(self._path)}
        except (OSError, ValueError, TypeError):
            self.rough = set()
        self._numbers = {text: i for i, text in enumerate(self._store.texts())}

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Return the texts, each once, that have not been tried."""
        return [text for text in dict.fromkeys(texts) if text not in self._numbers and text not in self.rough]

    def add(self, texts: Sequence[str]) -> None:
        """Decompose texts together, or one by one if the path of any is rough."""
        texts = self.missing(texts)
        if not texts:
            return
        try:
            self._store.append(self._explainer.decompose(texts))
        except RoughPathError:
            if len(texts) > 1:
                for text in texts:
                    self.add([text])
                return
            self.rough |= set(texts)
            write_json(self._path, sorted(self.rough))
        self._numbers = {text: i for i, text in enumerate(self._store.texts())}

    def explain(self, pairs: Sequence[tuple[str, str]], fold: bool = True) -> Iterator[tuple[int, Explanation]]:
        """Explain the pairs that can be, each with its number; two texts at a time are in memory."""
        for number, pair in enumerate(pairs):
            if all(text in self._numbers for text in pair):
                sides = (self._store[self._numbers[text]] for text in pair)
                a, b = (side.folded() if fold else side for side in sides)
                yield number, Explainer.pair(a, b)


class Experiment:
    """The models, pairs and layers that are studied, and the folder of the results.

    A text is decomposed once for each model and layer, and kept in the folder: all studies share it, and so does a
    study that is run again after an interruption.

    Args:
        names: of the models.
        data: scored pairs.
        out: the folder.
        pairs: how many of the pairs are studied; None is 1,000, and all of them where nothing is explained.
        layers: the layers that are studied; None is the choice of each study. A mapping also says how many pairs are
            studied at a layer, where that is fewer than ``pairs``: layers near the input cost the most. A layer whose
            paths are too steep for the usual nodes is followed piece by piece if its pairs are bounded so, and else
            left out.
        changes: texts and what became of them, for the study of negation.
        seed: decides which pairs are studied.
        tagger: the name of the tagger of parts of speech.
        device: where the models are loaded.
        say: called with a line of text when a study is finished.
        progress: show progress bars.
    """

    def __init__(
        self,
        names: Sequence[str],
        data: Pairs,
        out: str | os.PathLike[str],
        *,
        pairs: int | None = None,
        layers: Sequence[int] | Mapping[int, int | None] | None = None,
        seed: int = 0,
        tagger: str | None = None,
        parser: str | None = None,
        changes: Sequence[Change] = (),
        device: str | None = None,
        say: Callable[[str], None] = lambda _: None,
        progress: bool = False,
    ) -> None:
        self.subjects = [Subject(name, device) for name in names]
        labels = [subject.label for subject in self.subjects]
        for i, subject in enumerate(self.subjects):
            if labels.count(subject.label) > 1:
                subject.label = f"{subject.label} ({i + 1})"
        self.out = Path(out)
        self.seed = seed
        self.say = say
        self._drawn = _draw(len(data), USUAL_PAIRS if pairs is None else pairs, seed)
        self.sample = _choose(data, self._drawn)
        self.data = data if pairs is None else self.sample
        self.asked_pairs = pairs
        self.changes = list(changes)
        self._every = data
        self._tagger, self._parser = tagger, parser
        self._progress = progress
        self._layers = None if layers is None else list(layers)
        self._most = dict(layers) if isinstance(layers, Mapping) else {}
        self._rough: dict[tuple[str, int], bool] = {}
        self._running: tuple[str, str] | None = None  # the name and inputs of the study that is running
        for subject in self.subjects:  # an error now rather than after an hour
            for layer in layers or ():
                subject.explainer(layer)
        make_folder(self.out)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The texts that are explained."""
        return self.sample.texts

    @property
    def labels(self) -> list[float]:
        """The scores of the pairs that are explained."""
        return self.sample.scores

    @cached_property
    def tagger(self) -> Tagger:
        return get_tagger(self._tagger)

    @cached_property
    def parser(self) -> Parser:
        return get_parser(self._parser)

    def sample_at(self, subject: Subject, layer: int) -> Pairs:
        """The pairs that are studied at a layer: all of the sample, or fewer where ``layers`` says so."""
        most = self._most_at(subject, layer)
        return self.sample if most is None or most >= len(self.sample) else _choose(self._every, self._drawn[:most])

    def _most_at(self, subject: Subject, layer: int) -> int | None:
        return {subject.explainer(each).settings.layer: count for each, count in self._most.items()}.get(layer)

    def every_layer(self, subject: Subject) -> list[int]:
        """The layers that were asked for, or else all of them."""
        layers = range(subject.num_layers + 1) if self._layers is None else self._layers
        return sorted({subject.explainer(layer).settings.layer for layer in layers})

    def asked_layers(self, subject: Subject) -> list[int]:
        """The layers that were asked for, or else those of the paper's figures, at the same depths of the model."""
        if self._layers is not None:
            return self.every_layer(subject)
        count = subject.num_layers
        # The paper's 11 is the last before the output, whatever the depth.
        return sorted({count, max(count - 1, 0), *(math.ceil(layer / 12 * count) for layer in PAPERS[:2])})

    def layers(self, subject: Subject) -> list[int]:
        """The layers that were asked for, without those that are left out because their paths are rough."""
        left_out = self.rough_layers(subject)
        return [layer for layer in self.asked_layers(subject) if layer not in left_out]

    def rough_layers(self, subject: Subject) -> list[int]:
        """The layers that were asked for, but whose paths are too steep to be followed with so many pairs."""
        return [
            layer
            for layer in self.asked_layers(subject)
            if self.is_rough(subject, layer) and not self.is_in_pieces(subject, layer)
        ]

    def is_in_pieces(self, subject: Subject, layer: int) -> bool:
        """Whether the paths at a layer are steep, and followed piece by piece."""
        return self._most_at(subject, layer) is not None and self.is_rough(subject, layer)

    def explainer_at(self, subject: Subject, layer: int | None) -> Explainer:
        """Return an explainer along the straight path at a layer; None explains as whymatch does by itself."""
        return subject.usual if layer is None else subject.explainer(layer, self.is_in_pieces(subject, layer))

    def inner_layer(self, subject: Subject) -> int:
        """The layer of studies that look at a single one, below the output: the nearest to three quarters of the depth.

        The paper's ninth of twelve, where it is among those that are studied; the shallower of two that are as near.
        """
        layers = self.layers(subject)
        if not layers:
            raise ValueError(
                f"{subject.label}: the straight path is too rough at every layer of "
                f"{', '.join(map(str, self.asked_layers(subject)))}; choose --layers nearer to {subject.num_layers}"
            )
        below = [layer for layer in layers if layer < subject.num_layers] or layers
        return nearest(below, subject.num_layers)

    def is_rough(self, subject: Subject, layer: int) -> bool:
        """Whether most of a few texts of usual length move too steeply along the straight path at a layer.

        It takes a few plain passes to find out, and is remembered in the folder.
        """
        key = subject.identity, layer
        if key not in self._rough:
            texts = sorted({text for pair in self.pairs for text in pair}, key=lambda text: (len(text), text))
            middle = texts[len(texts) // 2 :][:LOOKED_AT]
            stored = self._stored(subject.explainer(layer), subject)
            stored.add(middle)
            self._rough[key] = 2 * len(stored.rough & set(middle)) > len(middle)
        return self._rough[key]

    def about_rough(self) -> list[str]:
        """Say which layers' paths are rough, and what is done with them, in sentences for each model."""
        sentences = []
        for subject in self.subjects:
            left_out = self.rough_layers(subject)
            followed = [layer for layer in self.layers(subject) if self.is_in_pieces(subject, layer)]
            for layers, done in (
                (left_out, "It is left out; --layers LAYER:PAIRS follows it piece by piece, for so many pairs."),
                (followed, "The path is divided into pieces, each with nodes of its own."),
            ):
                if layers:
                    sentences.append(
                        f"{subject.label}, layer {', '.join(map(str, layers))}: the embedding moves in steps too steep "
                        f"for nodes that are spread over the whole path. {done}"
                    )
        return sentences

    def about_pairs(self) -> str:
        """Say how many pairs are studied, and at which layers there are fewer, in a phrase."""
        fewer = {
            f"{subject.label}, layer {layer}": len(sample)
            for subject in self.subjects
            for layer in self.layers(subject)
            if len(sample := self.sample_at(subject, layer)) < len(self.sample)
        }
        at = "; ".join(f"{where}: {count:,}" for where, count in fewer.items())
        return f"{len(self.pairs):,} pairs" + (f" (fewer where they are dear: {at})" if at else "")

    # --- decompositions ---

    def _stored(self, explainer: Explainer, subject: Subject) -> Stored:
        how = explainer.settings
        way = f"-{how.path}" if how.path != "straight" else "-pieces" if how.rule == "pieces" else ""
        name = f"{subject.identity[:16]}-layer-{how.layer}{way}"
        return Stored(self.out / "texts" / name, explainer)

    def explanations(
        self,
        subject: Subject,
        layer: int | None,
        pairs: Sequence[tuple[str, str]] | None = None,
        explainer: Explainer | None = None,
    ) -> Iterator[Explanation]:
        """Explain pairs in order, those of a layer's sample unless others are given.

        A pair with a text whose path is rough is left out. A text that the folder has is not decomposed again.

        Args:
            subject: the model.
            layer: of the paper's straight path; None explains as whymatch does when nobody chooses.
            pairs: the pairs; None is the sample.
            explainer: explains, instead of the subject's own at the layer.
        """
        return (why for _, why in self.numbered(subject, layer, pairs, explainer))

    def numbered(
        self,
        subject: Subject,
        layer: int | None,
        pairs: Sequence[tuple[str, str]] | None = None,
        explainer: Explainer | None = None,
        fold: bool = True,
    ) -> Iterator[tuple[int, Explanation]]:
        """Explain pairs in order, each with its number among those given: some may be left out.

        With ``fold=False``, the straight path's explanations have the paper's form, with its reference terms.
        """
        given = explainer is not None
        if explainer is None:
            explainer = self.explainer_at(subject, layer)
        if pairs is None:
            pairs = self.pairs if layer is None else self.sample_at(subject, layer).texts
        stored = self._stored(explainer, subject)
        missing = sorted(stored.missing(text for pair in pairs for text in pair), key=len)
        chunks = [missing[i : i + CHUNK] for i in range(0, len(missing), CHUNK)]
        random.Random(0).shuffle(chunks)  # short and long ones in turn, so that the time left can be estimated
        for chunk in self.track(chunks, f"{subject.label}, layer {explainer.settings.layer}: texts × {CHUNK}"):
            stored.add(chunk)
        every = {text for pair in pairs for text in pair}
        if not given and explainer.settings.rule == "pieces" and every <= stored.rough:
            raise ValueError(
                f"{subject.label}: at layer {layer} the embedding jumps on the path of every text, and not even pieces "
                "of it can be followed; leave the layer out of --layers"
            )
        return stored.explain(pairs, fold)

    def track(self, items: Sequence[Any], description: str) -> Iterator[Any]:
        """Iterate over items with a progress bar, if one is wanted."""
        return track(items, description, len(items), enabled=self._progress)

    def estimate(self, subject: Subject, explainer: Explainer, texts: Iterable[str]) -> float:
        """Estimate how many seconds it takes to decompose those of the texts that the folder does not have.

        One of usual length is decomposed, and kept; the others take longer as the square of their lengths.
        """
        stored = self._stored(explainer, subject)
        missing = sorted(stored.missing(texts), key=len)
        if len(missing) < 2:
            return 0.0
        trial = missing[len(missing) // 2]
        started = time.perf_counter()
        stored.add([trial])
        each = (time.perf_counter() - started) / len(trial) ** 2
        return each * sum(len(text) ** 2 for text in missing if text != trial)

    def knows_rough(self, subject: Subject, explainer: Explainer, texts: Iterable[str]) -> bool:
        """Whether the path of one of the texts has been found to be rough."""
        return not self._stored(explainer, subject).rough.isdisjoint(texts)

    def foresee(self, depends: Iterable[str]) -> dict[str, float]:
        """Estimate how many seconds texts still take that studies depend on, by model and layer."""
        depends, seconds = set(depends), {}
        for subject in self.subjects:
            layers: list[int | None] = []
            if "layers" in depends:
                layers += self.layers(subject)
            elif "layer" in depends:
                layers.append(self.inner_layer(subject))
            if "usual" in depends:
                layers.append(None)
            for layer in layers:
                explainer = self.explainer_at(subject, layer)
                pairs = self.sample.texts if layer is None else self.sample_at(subject, layer).texts
                if layer is None and "changes" in depends:
                    changes = [(change.text, change.changed) for change in self.changes]
                    pairs = [*(pairs if "pairs" in depends else ()), *changes]
                name = f"{subject.label}, layer {explainer.settings.layer}" + (
                    "" if layer is not None else ", as usual"
                )
                seconds[name] = self.estimate(subject, explainer, (text for pair in pairs for text in pair))
        return {name: each for name, each in seconds.items() if each}

    # --- results ---

    def inputs(self, depends: Iterable[str]) -> dict[str, Any]:
        """Everything that decides a result: the models, and what the study says it depends on."""
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
                **({"most_pairs": {str(layer): most for layer, most in self._most.items()}} if self._most else {}),
            },
            "every layer": lambda: {
                "layers": [self.every_layer(subject) for subject in self.subjects],
                "steep": "in pieces",  # earlier results, of steep layers block by block, are made again
            },
            "layers": lambda: {
                "layers": [self.layers(subject) for subject in self.subjects],
                "rough": [self.rough_layers(subject) for subject in self.subjects],
                "pieces": [
                    [layer for layer in self.layers(subject) if self.is_in_pieces(subject, layer)]
                    for subject in self.subjects
                ],
            },
            "layer": lambda: {"layer": [self.inner_layer(subject) for subject in self.subjects]},
            # Where a model is stored says nothing about it.
            "usual": lambda: {"usual": [str(replace(each.usual.settings, model=each.label)) for each in self.subjects]},
            "changes": lambda: {"changes": len(self.changes), "changes_sha256": _digest(self.changes)},
            "tagger": lambda: {"tagger": self.tagger.name},
            "parser": lambda: {"parser": self.parser.name},
        }
        inputs: dict[str, Any] = {
            "models": [{"name": subject.label, "identity": subject.identity} for subject in self.subjects],
            "tolerance": TOLERANCE,
            "version": __version__,
        }
        for name in depends:
            inputs |= known[name]()
        return inputs

    def run_once(self, name: str, study: Any) -> Result:
        """Run a study and write its result, unless the folder has a result of the same inputs."""
        earlier = _read_result(self.out / f"{name}.json")
        inputs = json.loads(json.dumps(self.inputs(study.DEPENDS)))
        if self.is_finished(name, study):
            self.say(f"{name}: done before")
            known = {key: earlier[key] for key in ("title", "notes", "numbers", "tables", "seconds", "machine")}
            comparisons = [Comparison(**comparison) for comparison in earlier["compared"]]
            return Result(**known, compared=comparisons, files=earlier["figures"])
        with lock_folder(self.out):
            result = self._run(name, study, inputs)
            for old in set(earlier["figures"].values() if earlier else ()) - set(result.files.values()):
                (self.out / old).unlink(missing_ok=True)
            return result

    def is_finished(self, name: str, study: Any) -> bool:
        """Whether the folder has the result of a study with these inputs, and its figures."""
        earlier = _read_result(self.out / f"{name}.json")
        same = earlier is not None and earlier["inputs"] == json.loads(json.dumps(self.inputs(study.DEPENDS)))
        return same and all((self.out / file).is_file() for file in earlier["figures"].values())

    def _run(self, name: str, study: Any, inputs: dict[str, Any]) -> Result:
        release()  # what the study before it held
        started = time.perf_counter()
        self._running = (name, json.dumps(inputs))
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
            "compared": [vars(comparison) for comparison in result.compared],
            "numbers": result.numbers,
            "figures": result.files,
        }
        _write(self.out / f"{name}.json", content)
        shutil.rmtree(self.out / PARTS / name, ignore_errors=True)
        self.say(f"{name}: {result.seconds:.0f} s")
        return result

    def part(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Compute a part of the study that is running, or read it if it was computed before an interruption."""
        assert self._running is not None
        path = self.out / PARTS / self._running[0] / f"{_digest(self._running, key)[:16]}.json"
        try:
            computed: dict[str, Any] = read_sealed_json(path)
        except (OSError, ValueError):
            computed = compute()
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, computed)
        return computed


def nearest(layers: Iterable[int], depth: int) -> int:
    """Return the layer that is nearest to three quarters of the depth: the shallower of two that are as near."""
    return min(layers, key=lambda layer: (abs(layer - 0.75 * depth), layer))


def percent(share: float | None) -> str:
    return "not reached" if share is None else f"{100 * share:.0f} %"


def _draw(among: int, count: int, seed: int) -> list[int]:
    """Draw so many numbers, in the order in which they are drawn: the first few are a sample too."""
    return list(range(among)) if count >= among else random.Random(seed).sample(range(among), count)


def _choose(data: Pairs, rows: Sequence[int]) -> Pairs:
    """Choose pairs by their numbers, in the order of the data."""
    if len(rows) == len(data):
        return data
    ordered = sorted(rows)
    texts, scores = [data.texts[i] for i in ordered], [data.scores[i] for i in ordered]
    return Pairs(data.source, data.columns, texts, scores, data.bad, data.score_range)


def _digest(*values: Any) -> str:
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write JSON with a hash of what will be read again, whose keys are texts."""
    write_sealed_json(path, json.loads(json.dumps(content)), indent=1)


def _read_result(path: Path) -> Any:
    """Read a result that was written earlier; None if there is none that can be read."""
    try:
        content = read_sealed_json(path)
    except (OSError, ValueError):
        return None
    keys = {"title", "inputs", "notes", "compared", "numbers", "tables", "figures", "seconds", "machine"}
    if not isinstance(content, dict) or not keys <= set(content) or not isinstance(content["figures"], dict):
        return None
    # Figures are removed when a study is run again: a file that anybody may have written must not name others.
    ours = re.compile(rf"{path.stem}-\d+\.svg")
    return content if all(ours.fullmatch(str(file)) for file in content["figures"].values()) else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())

"""Decompositions on disk: Arrow shards that are mapped into memory, and a manifest that says whose they are.

A shard is written aside, put in its place, and only then named by the manifest, which is replaced as a whole. Whatever
moment a process dies at, the folder holds what the manifest says and nothing of it is damaged.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whymatch import __version__
from whymatch.decomposition import Decomposition, Settings
from whymatch.files import locked, written_aside

FORMAT, VERSION = "whymatch store", 1
MANIFEST = "manifest.json"
PRECISIONS: dict[str, Any] = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
Precision = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class Shard:
    """A file of decompositions: each of its rows is a text."""

    file: str
    texts: int
    bytes: int


class Store:
    """A folder of decompositions of one model, made with one setting."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = Settings(**manifest["settings"])
        self.identity: str = manifest["identity"]
        self.dimensions: int = manifest["dimensions"]
        self.precision: Precision = manifest["precision"]
        self.shards = [Shard(**shard) for shard in manifest["shards"]]
        self._ends = list(accumulate(shard.texts for shard in self.shards))  # of the shards, counted in texts
        self._maps: dict[int, _Map] = {}

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        settings: Settings,
        identity: str,
        dimensions: int,
        precision: Precision = "float32",
    ) -> Store:
        """A new, empty store."""
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from None
        content = {"settings": asdict(settings), "identity": identity, "dimensions": dimensions, "shards": []}
        with locked(folder):
            if cls.is_there(folder):
                raise FileExistsError(f"{str(folder)!r} holds a store already; add to it, or name another folder")
            store = cls(folder, {**content, "precision": precision})
            store._save()
        return store

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """A store that is there; an error that says what is wrong with it, if something is."""
        folder = Path(folder)
        try:
            content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no store in {str(folder)!r}: it has no {MANIFEST}") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"the manifest of {str(folder)!r} is damaged ({error}); build the store again") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"{str(folder / MANIFEST)!r} is not the manifest of a whymatch store")
        if content.get("version") != VERSION:
            raise ValueError(
                f"{str(folder)!r} is a store of version {content.get('version')!r}; this whymatch reads {VERSION}"
            )
        try:
            store = cls(folder, content)
        except (KeyError, TypeError) as error:
            raise ValueError(f"the manifest of {str(folder)!r} is damaged ({error}); build the store again") from None
        for shard in store.shards:
            # A manifest is only a file that somebody made: what it names must lie in its own folder.
            if not re.fullmatch(r"\d{5,}\.arrow", str(shard.file)):
                raise ValueError(f"the manifest of {str(folder)!r} names {shard.file!r}, which is no shard of a store")
            path = folder / shard.file
            size = path.stat().st_size if path.is_file() else None
            if size != shard.bytes:
                found = "is missing" if size is None else f"has {size:,} of {shard.bytes:,} bytes"
                raise ValueError(f"the shard {str(path)!r} {found}; build the store again")
        return store

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @staticmethod
    def is_there(folder: str | os.PathLike[str]) -> bool:
        return (Path(folder) / MANIFEST).exists()

    def check(self, settings: Settings, identity: str, precision: Precision | None = None) -> None:
        """An error that says in what an explainer differs from the one that made this store, if it does."""
        other = [
            f"{name} is {getattr(self.settings, name)!r} there and {getattr(settings, name)!r} here"
            for name in ("layer", "reference", "fold_reference", "similarity", "rule", "steps", "tolerance")
            if getattr(self.settings, name) != getattr(settings, name)
        ]
        if precision not in (None, self.precision):
            other.append(f"precision is {self.precision!r} there and {precision!r} here")
        # A model is what its weights are, whatever it is called.
        if identity != self.identity:
            other.append(f"the model is {self.settings.model!r} there, and {settings.model!r} here has other weights")
        if other:
            raise ValueError(
                f"the store {str(self.folder)!r} was made otherwise: {'; '.join(other)}. Use what it was made with, or "
                "build another"
            )

    def append(self, decompositions: Sequence[Decomposition]) -> None:
        """Add texts, in one shard. Pictures have no place in a store."""
        if decompositions:
            self.append_rows(rows_of(decompositions, self.precision))

    def append_rows(self, rows: pa.Table) -> None:
        """Add what ``rows_of`` made of texts in this store's precision, in one shard."""
        number = int(Path(self.shards[-1].file).stem) + 1 if self.shards else 0
        path = self.folder / f"{number:05d}.arrow"
        with written_aside(path) as aside, pa.OSFile(str(aside), "wb") as sink:
            with pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows.combine_chunks())
            sink.flush()
        self.shards.append(Shard(path.name, len(rows), path.stat().st_size))
        self._ends.append(len(self) + len(rows))
        self._save()

    def _save(self) -> None:
        content = {
            "format": FORMAT,
            "version": VERSION,
            "whymatch": __version__,
            "settings": asdict(self.settings),
            "identity": self.identity,
            "dimensions": self.dimensions,
            "precision": self.precision,
            "shards": [asdict(shard) for shard in self.shards],
        }
        with written_aside(self.folder / MANIFEST) as aside:
            aside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def _map(self, number: int) -> _Map:
        if number not in self._maps:
            shard = self.shards[number]
            try:
                self._maps[number] = _Map(self.folder / shard.file, self.dimensions)
            except (pa.ArrowException, OSError, KeyError) as error:
                raise ValueError(
                    f"the shard {str(self.folder / shard.file)!r} is damaged ({error}); build the store again"
                ) from None
        return self._maps[number]

    def _place(self, i: int) -> tuple[int, int]:
        """The shard of a text, and its row there."""
        if not 0 <= i < len(self):
            raise IndexError(f"text {i} is out of range: the store has {len(self)}")
        number = bisect_right(self._ends, i)
        return number, i - (self._ends[number - 1] if number else 0)

    def __getitem__(self, i: int) -> Decomposition:
        """One text's decomposition; only its own rows are read."""
        number, row = self._place(i)
        return self._map(number).decomposition(row, self.settings)

    def text(self, i: int) -> str:
        number, row = self._place(i)
        text: str = self._map(number).columns["text"][row].as_py()
        return text

    def texts(self) -> Iterator[str]:
        for number in range(len(self.shards)):
            yield from self._map(number).columns["text"].to_pylist()

    def embeddings(self) -> Iterator[NDArray[np.float32]]:
        """The embeddings, shard by shard, as they lie on the disk."""
        for number in range(len(self.shards)):
            yield self._map(number).embeddings


def rows_of(decs: Sequence[Decomposition], precision: Precision) -> pa.Table:
    """Texts as a shard holds them."""
    for dec in decs:
        if dec.boxes is not None:
            raise TypeError(f"a store holds texts, not pictures: {dec.text!r}")

    def lists(values: Sequence[Any], kind: Any) -> pa.Array:
        return pa.array([list(one) for one in values], pa.list_(kind))

    rows = [np.asarray(dec.contributions, np.float32) for dec in decs]
    scales: list[Any] = [()] * len(rows)
    if precision == "int8":
        peaks = [np.maximum(np.abs(one).max(axis=1), 1e-30) for one in rows]
        scales = [peak / 127 for peak in peaks]
        rows = [np.rint(one / scale[:, None]) for one, scale in zip(rows, scales, strict=True)]
    kind = PRECISIONS[precision]
    flat = np.concatenate([one.ravel() for one in rows]).astype(kind.to_pandas_dtype())
    ends = np.cumsum([0, *(one.size for one in rows)])
    columns = {
        "text": pa.array([dec.text for dec in decs], pa.large_string()),
        "tokens": lists([dec.tokens for dec in decs], pa.string()),
        "offsets": lists([np.ravel(dec.offsets) for dec in decs], pa.int32()),
        "kinds": lists([dec.kinds for dec in decs], pa.string()),
        "shares": lists([dec.shares for dec in decs], pa.float32()),
        "truncated": pa.array([dec.truncated for dec in decs]),
        "unit": pa.array([dec.unit for dec in decs]),
        "mode": pa.array([dec.mode for dec in decs]),
        "nodes": pa.array([dec.nodes for dec in decs], pa.int32()),
        "scales": lists(scales, pa.float32()),
        "embedding": _fixed(np.stack([dec.embedding for dec in decs])),
        "reference": _fixed(np.stack([dec.reference for dec in decs])),
        "contributions": pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pa.array(flat, kind)),
    }
    return pa.table(columns)


class _Map:
    """A shard that is mapped into memory: what is not looked at is not read."""

    def __init__(self, path: Path, dimensions: int) -> None:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks()
        self.columns = {
            name: column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        self._dimensions = dimensions

    @cached_property
    def embeddings(self) -> NDArray[np.float32]:
        return self._matrix("embedding")

    @cached_property
    def references(self) -> NDArray[np.float32]:
        return self._matrix("reference")

    def _matrix(self, name: str) -> NDArray[np.float32]:
        flat: NDArray[np.float32] = self.columns[name].flatten().to_numpy(zero_copy_only=True)
        return flat.reshape(-1, self._dimensions)

    @cached_property
    def _contributions(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        column = self.columns["contributions"]
        return column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=True)

    def decomposition(self, row: int, settings: Settings) -> Decomposition:
        def cell(name: str) -> Any:
            return self.columns[name][row].as_py()

        ends, flat = self._contributions
        contributions = flat[ends[row] : ends[row + 1]].reshape(-1, self._dimensions)
        scales = cell("scales")
        if scales:
            contributions = contributions * np.asarray(scales, np.float32)[:, None]
        offsets = cell("offsets")
        return Decomposition(
            text=cell("text"),
            tokens=tuple(cell("tokens")),
            offsets=tuple(zip(offsets[::2], offsets[1::2], strict=True)),
            kinds=tuple(cell("kinds")),
            boxes=None,
            image=None,
            truncated=cell("truncated"),
            unit=cell("unit"),
            shares=np.asarray(cell("shares"), np.float32),
            embedding=self.embeddings[row],
            reference=self.references[row],
            nodes=cell("nodes"),
            mode=cell("mode"),
            settings=settings,
            contributions=contributions,
        )


def _fixed(matrix: NDArray[np.floating]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.astype(np.float32).ravel()), matrix.shape[1])

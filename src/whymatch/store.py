"""Decompositions on disk: Arrow shards that are mapped into memory, and a manifest that says whose they are.

A shard is written aside, put in its place, and only then named by the manifest, which is replaced as a whole. Whatever
moment a process dies at, the folder holds what the manifest says and nothing of it is damaged.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whymatch import __version__
from whymatch.decomposition import Decomposition, Settings, is_int
from whymatch.files import made, written_aside
from whymatch.text import shown

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
    embeddings: int  # the checksum of its embeddings; each text has one of its own beside it


class Store:
    """A folder of decompositions of one model, made with one setting."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = Settings(**manifest["settings"])
        self.identity: str = manifest["identity"]
        self.dimensions: int = manifest["dimensions"]
        self.precision: Precision = manifest["precision"]
        self.shards = [Shard(**shard) for shard in manifest["shards"]]
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
        for shard in self.shards:
            # A manifest is only a file that somebody made: what it names must lie in its own folder.
            if not re.fullmatch(r"\d{5,}\.arrow", str(shard.file)):
                raise ValueError(f"it names {shard.file!r}, which is no shard of a store")
            if not is_int(shard.texts) or shard.texts < 1 or not is_int(self.dimensions):
                raise ValueError(f"{shard.file!r} has {shard.texts!r} texts of {self.dimensions!r} dimensions")
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ValueError("it names a shard twice")
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
        if cls.is_there(folder):
            raise FileExistsError(f"{str(folder)!r} holds a store already; add to it, or name another folder")
        content = {"settings": asdict(settings), "identity": identity, "dimensions": dimensions, "shards": []}
        store = cls(Path(folder), {**content, "precision": precision})
        made(folder)
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
        except ValueError as error:
            raise ValueError(f"the manifest of {str(folder)!r} is damaged ({error}); build the store again") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"{str(folder / MANIFEST)!r} is not the manifest of a whymatch store")
        if content.get("version") != VERSION:
            raise ValueError(
                f"{str(folder)!r} is a store of version {content.get('version')!r}; this whymatch reads {VERSION}"
            )
        try:
            store = cls(folder, content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the manifest of {str(folder)!r} is damaged ({error}); build the store again") from None
        for shard in store.shards:
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
        rows = rows.combine_chunks()
        with (
            written_aside(path) as aside,
            pa.OSFile(str(aside), "wb") as sink,
            pa.ipc.new_file(sink, rows.schema) as writer,
        ):
            writer.write_table(rows)
        checksum = zlib.crc32(_flat(rows["embedding"].chunk(0)).data)
        self.shards.append(Shard(path.name, len(rows), path.stat().st_size, checksum))
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
            with self._named(number):
                self._maps[number] = _Map(self.folder / shard.file, shard, self.dimensions, self.precision)
        return self._maps[number]

    @contextmanager
    def _named(self, number: int) -> Iterator[None]:
        """Says which shard is damaged."""
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, _DamageError) as error:
            raise ValueError(
                f"the shard {str(self.folder / self.shards[number].file)!r} is damaged ({error}); build the store again"
            ) from None

    def _place(self, i: int) -> tuple[int, int]:
        """The shard of a text, and its row there."""
        if not 0 <= i < len(self):
            raise IndexError(f"text {i} is out of range: the store has {len(self)}")
        number = bisect_right(self._ends, i)
        return number, i - (self._ends[number - 1] if number else 0)

    def __getitem__(self, i: int) -> Decomposition:
        """One text's decomposition; only its own rows are read."""
        number, row = self._place(i)
        with self._named(number):
            return self._map(number).decomposition(row, self.settings)

    def texts(self) -> Iterator[str]:
        for number in range(len(self.shards)):
            yield from self._map(number).columns["text"].to_pylist()

    def embeddings(self) -> Iterator[NDArray[np.float32]]:
        """The embeddings, shard by shard, as they lie on the disk."""
        for number in range(len(self.shards)):
            with self._named(number):
                found = self._map(number).embeddings
            yield found


def schema_of(precision: Precision, dimensions: int) -> pa.Schema:
    """What a shard's columns are."""
    vector = pa.list_(pa.field("item", pa.float32()), dimensions)
    return pa.schema(
        {
            "text": pa.large_string(),
            "tokens": pa.list_(pa.string()),
            "offsets": pa.list_(pa.int32()),
            "kinds": pa.list_(pa.string()),
            "shares": pa.list_(pa.float32()),
            "truncated": pa.bool_(),
            "unit": pa.string(),
            "mode": pa.string(),
            "nodes": pa.int32(),
            "scales": pa.list_(pa.float32()),
            "embedding": vector,
            "reference": vector,
            "contributions": pa.large_list(PRECISIONS[precision]),
            "checksum": pa.uint32(),
        }
    )


def rows_of(decs: Sequence[Decomposition], precision: Precision) -> pa.Table:
    """Texts as a shard holds them."""
    for dec in decs:
        if dec.boxes is not None:
            raise TypeError(f"a store holds texts, not pictures: {dec.text!r}")
    dtype = PRECISIONS[precision].to_pandas_dtype()
    values = [np.asarray(dec.contributions, np.float32) for dec in decs]
    scales = [np.empty(0, np.float32)] * len(decs)
    if precision == "int8":
        scales = [np.maximum(np.abs(one).max(axis=1), np.float32(1e-30)) / np.float32(127) for one in values]
        values = [np.rint(one / scale[:, None]) for one, scale in zip(values, scales, strict=True)]
    with np.errstate(over="ignore"):  # found out below
        values = [one.astype(dtype) for one in values]
    for dec, one in zip(decs, values, strict=True):
        if not np.isfinite(one).all():
            raise ValueError(f"contributions of {shown(dec.text)} do not fit into {precision}; use float32")
    ends = np.cumsum([0, *(one.size for one in values)])
    flat = pa.array(np.concatenate([one.ravel() for one in values]))
    embeddings, references = (
        np.stack([np.asarray(getattr(dec, name), np.float32) for dec in decs]) for name in ("embedding", "reference")
    )
    offsets = [np.ravel(dec.offsets).astype(np.int32) for dec in decs]
    shares = [np.asarray(dec.shares, np.float32) for dec in decs]
    rows = {
        "text": [dec.text for dec in decs],
        "tokens": [dec.tokens for dec in decs],
        "offsets": offsets,
        "kinds": [dec.kinds for dec in decs],
        "shares": shares,
        "truncated": [dec.truncated for dec in decs],
        "unit": [dec.unit for dec in decs],
        "mode": [dec.mode for dec in decs],
        "nodes": [dec.nodes for dec in decs],
        "scales": scales,
    }
    checksums = [
        _checksum((dec.text, *dec.tokens, *dec.kinds), *parts)
        for dec, *parts in zip(decs, offsets, shares, scales, embeddings, references, values, strict=True)
    ]
    schema = schema_of(precision, embeddings.shape[1])
    columns = [pa.array(column, schema.field(name).type) for name, column in rows.items()]
    columns += [
        pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])
        for matrix in (embeddings, references)
    ]
    columns.append(pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), flat))
    return pa.Table.from_arrays([*columns, pa.array(checksums, pa.uint32())], schema=schema)


def _checksum(texts: Sequence[str], *parts: NDArray[Any]) -> int:
    """Of everything in a text's row that an explanation is made of."""
    found = zlib.crc32("\0".join(texts).encode())
    for part in parts:
        found = zlib.crc32(np.ascontiguousarray(part).data, found)
    return found


def _flat(column: pa.Array) -> NDArray[Any]:
    """The numbers of a column of lists, one list after the other, as they lie in memory."""
    values: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=True)
    return values


class _DamageError(Exception):
    """What a file says cannot be."""


class _Map:
    """A shard that is mapped into memory: of the contributions, what is not looked at is not read."""

    def __init__(self, path: Path, shard: Shard, dimensions: int, precision: Precision) -> None:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if not table.schema.equals(schema_of(precision, dimensions)):
            raise _DamageError("it has other columns than its manifest says")
        table.validate(full=True)  # of lists, where they begin and end: Arrow itself trusts them
        if len(table) != shard.texts or any(column.null_count for column in table.columns):
            raise _DamageError(f"it has {len(table)} texts, not {shard.texts}, or empty cells")
        self.columns = dict(zip(table.column_names, (column.chunk(0) for column in table.columns), strict=True))
        self._dimensions = dimensions
        self._shard = shard

    @cached_property
    def embeddings(self) -> NDArray[np.float32]:
        found = self._matrix("embedding")
        if zlib.crc32(found.data) != self._shard.embeddings:
            raise _DamageError("its embeddings are not what was written")
        return found

    @cached_property
    def references(self) -> NDArray[np.float32]:
        return self._matrix("reference")

    def _matrix(self, name: str) -> NDArray[np.float32]:
        return _flat(self.columns[name]).reshape(-1, self._dimensions)

    @cached_property
    def _contributions(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        column = self.columns["contributions"]
        return column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=True)

    def decomposition(self, row: int, settings: Settings) -> Decomposition:
        def cell(name: str) -> Any:
            return self.columns[name][row].as_py()

        def numbers(name: str, kind: Any) -> NDArray[Any]:
            return np.asarray(cell(name), kind)

        ends, flat = self._contributions
        stored = flat[ends[row] : ends[row + 1]]
        text, tokens, kinds = cell("text"), tuple(cell("tokens")), tuple(cell("kinds"))
        offsets = numbers("offsets", np.int32)
        shares, scales = numbers("shares", np.float32), numbers("scales", np.float32)
        embedding, reference = self.embeddings[row], self.references[row]
        parts = (offsets, shares, scales, embedding, reference, stored)
        if stored.size != len(tokens) * self._dimensions or _checksum((text, *tokens, *kinds), *parts) != cell(
            "checksum"
        ):
            raise _DamageError(f"its text {row} is not what was written")
        contributions = stored.reshape(-1, self._dimensions)
        return Decomposition(
            text=text,
            tokens=tokens,
            offsets=tuple(map(tuple, offsets.reshape(-1, 2).tolist())),
            kinds=kinds,
            boxes=None,
            image=None,
            truncated=cell("truncated"),
            unit=cell("unit"),
            shares=shares,
            embedding=embedding,
            reference=reference,
            nodes=cell("nodes"),
            mode=cell("mode"),
            settings=settings,
            contributions=contributions * scales[:, None] if len(scales) else contributions,
        )

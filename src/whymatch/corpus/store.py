"""Decompositions on disk: Arrow files that are mapped into memory, and a manifest that says which model made them."""

from __future__ import annotations

import os
import re
import shutil
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np
from numpy.typing import NDArray

from whymatch import files
from whymatch.corpus.arrow import pa
from whymatch.corpus.parts import Manifest, size_of, write_part
from whymatch.corpus.shards import (
    PRECISIONS,
    VERSION,
    Damage,
    OpenShard,
    Precision,
    Shard,
    columns_of,
    flatten,
    to_rows,
)
from whymatch.reading.inputs import EncodeOptions
from whymatch.reading.readings import PLAIN, Readings, compare_readings, describe_readings, parse_readings
from whymatch.results.decomposition import Decomposition
from whymatch.results.ranking import Document
from whymatch.settings import Settings, is_int
from whymatch.words import quote

FORMAT = "whymatch store"
MANIFEST = "manifest.json"
Kept = Literal["none", "sentences", "tokens"]
KEPT = ("none", "sentences", "tokens")
MOST_DIMENSIONS = 2**20

# Settings that do not change a decomposition. What a model is called does not matter: it is compared by its weights.
_IRRELEVANT = ("model", "trust_remote_code")


class Store:
    """A folder of decompositions that one model made with the same settings."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.version: int = manifest["version"]
        self.settings = _read_settings(manifest["settings"])
        self.identity: str = manifest["identity"]
        self.dimensions: int = manifest["dimensions"]
        self.precision: Precision = manifest["precision"]
        # How queries and documents are read; None in a manifest of an earlier version, which did not say.
        readings = manifest.get("readings")
        self.readings = None if readings is None else parse_readings(readings)
        self.kept: Kept = manifest.get("kept", "tokens")
        self.deleted: set[int] = set(manifest.get("deleted", ()))  # the numbers of texts that are no longer there
        self.shards = [Shard(**shard) for shard in manifest["shards"]]
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
        if self.kept not in KEPT:
            raise ValueError(f"store={quote(self.kept)} is not known; choose one of {', '.join(KEPT)}")
        if not all(is_int(number) and number >= 0 for number in self.deleted):
            raise ValueError("its list of deleted texts is not one of numbers")
        if not isinstance(self.identity, str):
            raise ValueError(f"the model's identity is {quote(self.identity)}, not a hash")
        if not is_int(self.dimensions) or not 1 <= self.dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"it has {quote(self.dimensions)} dimensions")
        for shard in self.shards:
            self._check_claims(shard)
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ValueError("it names a shard twice")
        self._ends = list(accumulate(shard.texts for shard in self.shards))  # after each shard, counted in texts
        if self.deleted and max(self.deleted) >= len(self):
            raise ValueError(f"it says that text {max(self.deleted)} of {len(self)} is deleted")
        self._open_shards: dict[int, OpenShard] = {}

    def _check_claims(self, shard: Shard) -> None:
        """Check what a manifest says of a shard: it may have been written by somebody else."""
        if not re.fullmatch(r"\d{5,18}\.arrow", str(shard.file)):
            raise ValueError(f"it names {quote(shard.file)}, which is not a shard of a store")
        if not all(is_int(value) and value >= 0 for value in (shard.texts, shard.bytes, shard.embeddings)):
            raise ValueError(f"it says {quote(asdict(shard))}")
        # The embedding and that of the reference alone take this much.
        if not 1 <= shard.texts <= shard.bytes // (8 * self.dimensions):
            raise ValueError(f"{shard.file!r} cannot hold {shard.texts:,} texts in {shard.bytes:,} bytes")

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        settings: Settings,
        identity: str,
        dimensions: int,
        precision: Precision = "float32",
        readings: Readings = PLAIN,
        kept: Kept = "tokens",
    ) -> Store:
        """Create an empty store.

        Args:
            folder: where to create it; the folder itself may exist.
            settings: those of the explainer whose decompositions will be stored.
            identity: the hash of its model.
            dimensions: those of the model's embeddings.
            precision: how contributions are stored.
            readings: how the model reads queries and the stored texts, each with its prompt in full.
            kept: of which parts contributions are stored: "tokens", "sentences", or "none" for embeddings alone.
        """
        cls.check_absent(folder)
        content = {
            "version": VERSION,
            "settings": asdict(settings),
            "identity": identity,
            "dimensions": dimensions,
            "precision": precision,
            "readings": describe_readings(readings),
            "kept": kept,
            "shards": [],
        }
        store = cls(Path(folder), content)
        files.make_folder(folder)
        store._save()
        return store

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Store:
        """Open an existing store. Its shards are checked when they are read."""
        folder = Path(folder)
        try:
            store = cls(folder, Manifest(folder / MANIFEST, FORMAT, VERSION).read())
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no store in {str(folder)!r}: it has no {MANIFEST}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"the manifest of {str(folder)!r} cannot be used ({error}); build the store again"
            ) from None
        for shard in store.shards:
            path = folder / shard.file
            size = size_of(path)
            if size != shard.bytes:
                state = "is missing" if size is None else f"has {size:,} of {shard.bytes:,} bytes"
                raise ValueError(f"the shard {str(path)!r} {state}; build the store again")
        return store

    @classmethod
    def reuse(
        cls,
        folder: str | os.PathLike[str],
        settings: Settings,
        identity: str,
        dimensions: int,
        reading: EncodeOptions = PLAIN[0],
    ) -> Store:
        """Open a store that is only a cache; one that is damaged, or made by another model, is emptied first."""
        files.refuse_link(Path(folder))
        if cls.exists(folder):
            try:
                store = cls.open(folder)
                store.check(settings, identity, readings=(reading, reading))
                return store
            except (OSError, ValueError):
                shutil.rmtree(folder)
        return cls.create(folder, settings, identity, dimensions, readings=(reading, reading))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @classmethod
    def check_absent(cls, folder: str | os.PathLike[str]) -> None:
        """Raise an error if a folder holds a store."""
        if cls.exists(folder):
            raise FileExistsError(f"{str(folder)!r} holds an index already; add to it, or name another folder")

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """Whether a folder holds a store."""
        return os.path.lexists(Path(folder) / MANIFEST)

    def check(
        self,
        settings: Settings,
        identity: str,
        precision: Precision | None = None,
        readings: Readings | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Raise an error if the explainer with these settings and this model is not the one that made the store."""
        differences = _compare_settings(self.settings, settings)
        if precision not in (None, self.precision):
            differences.append(f"precision is {self.precision!r} there and {precision!r} here")
        if kept not in (None, self.kept):
            differences.append(f"it stores {self.kept} there and {kept} here")
        if readings is not None:
            differences += compare_readings(self.readings or PLAIN, readings)
        if identity != self.identity:
            differences.append(
                f"the model is {self.settings.model!r} there, and {settings.model!r} here has other weights"
            )
        if differences:
            raise ValueError(
                f"the store {str(self.folder)!r} was made differently: {'; '.join(differences)}. Use what it was made "
                "with, or build another"
            )

    def append(self, decompositions: Sequence[Decomposition]) -> None:
        """Add texts, in one shard. Pictures cannot be stored."""
        for decomposition in decompositions:
            if differences := _compare_settings(self.settings, decomposition.settings):
                raise ValueError(f"{quote(decomposition.text)} does not belong to this store: {'; '.join(differences)}")
        if decompositions:
            self.append_rows(to_rows(decompositions, self.precision, self.version))

    @property
    def _schema(self) -> pa.Schema:
        return columns_of(self.precision, self.dimensions, self.version)

    def append_rows(self, rows: pa.Table, deleted: Iterable[int] = ()) -> None:
        """Add texts that ``to_rows`` has converted to this store's precision and version, in one shard.

        Texts that they replace are deleted in the same step, so that a reader sees either the old or the new text.
        """
        if not rows.schema.equals(self._schema):
            raise ValueError(f"these rows are not of {self.dimensions} dimensions in {self.precision}")
        number = int(Path(self.shards[-1].file).stem) + 1 if self.shards else 0
        path = self.folder / f"{number:05d}.arrow"
        rows = rows.combine_chunks()

        def write(unfinished: Path) -> None:
            with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows)

        stamp = write_part(path, write)
        checksum = zlib.crc32(flatten(rows["embedding"].chunk(0)).data)
        self.shards.append(Shard(path.name, len(rows), stamp.bytes, checksum))
        self._ends.append(len(self) + len(rows))
        self.deleted |= set(deleted)
        self._save()

    def delete(self, numbers: Iterable[int]) -> None:
        """Delete texts: they stay in their shards but are no longer found."""
        self.deleted |= set(numbers)
        self._save()

    def _save(self) -> None:
        Manifest(self.folder / MANIFEST, FORMAT, VERSION).write(
            {
                "version": self.version,
                "settings": asdict(self.settings),
                "identity": self.identity,
                "dimensions": self.dimensions,
                "precision": self.precision,
                **({} if self.readings is None else {"readings": describe_readings(self.readings)}),
                **({"kept": self.kept, "deleted": sorted(self.deleted)} if self.version > 2 else {}),
                "shards": [asdict(shard) for shard in self.shards],
            }
        )

    def _open_shard(self, number: int) -> OpenShard:
        if number not in self._open_shards:
            shard = self.shards[number]
            with self._naming(number):
                path = self.folder / shard.file
                self._open_shards[number] = OpenShard(path, shard, self.dimensions, self._schema)
        return self._open_shards[number]

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Name the shard in errors about damage."""
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, IndexError, struct.error, UnicodeDecodeError, Damage) as error:
            raise ValueError(
                f"the shard {str(self.folder / self.shards[number].file)!r} is damaged ({error}); build the store again"
            ) from None

    def _locate(self, i: int) -> tuple[int, int]:
        """Return the shard that holds text i, and its row there."""
        if not 0 <= i < len(self):
            raise IndexError(f"text {i} is out of range: the store has {len(self)}")
        number = bisect_right(self._ends, i)
        return number, i - (self._ends[number - 1] if number else 0)

    def __getitem__(self, i: int) -> Decomposition:
        """Read one text's decomposition, and nothing else."""
        number, row = self._locate(i)
        with self._naming(number):
            return self._open_shard(number).decomposition(row, self.settings)

    def document(self, i: int) -> Document:
        """Read one text, with its id, title and metadata; refuse a row that was changed after it was written."""
        number, row = self._locate(i)
        with self._naming(number):
            shard = self._open_shard(number)
            shard.decomposition(row, self.settings)  # compares the row with its checksum
            return shard.document(row)

    def documents(self) -> Iterator[Document]:
        """Read all texts, in order, with their ids, titles and metadata; deleted ones too."""
        for number, shard in enumerate(self.shards):
            with self._naming(number):
                rows = [self._open_shard(number).document(row) for row in range(shard.texts)]
            yield from rows

    def texts(self) -> Iterator[str]:
        """Read all texts, in order."""
        for number in range(len(self.shards)):
            with self._naming(number):
                texts = self._open_shard(number).columns["text"].to_pylist()
            yield from texts

    def embeddings(self) -> Iterator[NDArray[np.float32]]:
        """Read the embeddings, one matrix for each shard."""
        for number in range(len(self.shards)):
            with self._naming(number):
                embeddings = self._open_shard(number).embeddings
            yield embeddings


def _read_settings(content: dict[str, Any]) -> Settings:
    """Read settings from a manifest, and check the type of each value."""
    settings = Settings(**content)
    for name, kind in get_type_hints(Settings).items():
        value = getattr(settings, name)
        try:
            matches = isinstance(value, kind) or (kind is float and is_int(value))
        except TypeError:  # a type such as list[str]
            continue
        if not matches:
            raise ValueError(f"{name} is {quote(value)}")
    return settings


def _compare_settings(stored: Settings, given: Settings) -> list[str]:
    """Say in which settings two decompositions differ."""
    names = [field.name for field in fields(Settings) if field.name not in _IRRELEVANT]
    return [
        f"{name} is {getattr(stored, name)!r} there and {getattr(given, name)!r} here"
        for name in names
        if getattr(stored, name) != getattr(given, name)
    ]

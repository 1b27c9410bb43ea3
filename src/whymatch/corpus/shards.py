"""One file of a store: its columns, decompositions as rows of them, and rows as decompositions.

A shard is an Arrow file that is mapped into memory. It may have been written by somebody else: nothing in it is trusted
before it is checked.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whymatch import files
from whymatch.corpus.arrow import pa
from whymatch.reading.sides import Side
from whymatch.results.decomposition import Decomposition
from whymatch.results.ranking import Document
from whymatch.settings import Settings
from whymatch.words import quote

VERSION = 3  # of the format: 1 has no errors of contributions, 2 keeps nothing of a document but its text
PRECISIONS: dict[str, Any] = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8()}
Precision = Literal["float32", "float16", "int8"]
_MAGIC = b"ARROW1\0\0"  # what an Arrow file begins with; messages follow


@dataclass(frozen=True)
class Shard:
    """A file of decompositions, one text in each row."""

    file: str
    texts: int
    bytes: int
    embeddings: int  # the checksum of the embeddings; each text has its own in its row


def columns_of(precision: Precision, dimensions: int, version: int = VERSION) -> pa.Schema:
    """Return the columns of a shard, in a version of the format."""
    vector = pa.list_(pa.field("item", pa.float32()), dimensions)
    columns = pa.schema(
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
            "errors": pa.list_(pa.float32()),
        }
    )
    if version > 2:
        return columns.append(pa.field("about", pa.string()))
    return columns if version > 1 else columns.remove(columns.get_field_index("errors"))


def without_parts(text: str, embedding: NDArray[np.floating], settings: Settings) -> Decomposition:
    """Return an embedding that is not decomposed, for a store that keeps no contributions."""
    return Decomposition(
        side=Side(text=text, tokens=(), offsets=(), kinds=()),
        embedding=embedding,
        reference=np.zeros_like(embedding),
        settings=settings,
        contributions=np.zeros((0, len(embedding)), np.float32),
        shares=np.zeros(0),
    )


def to_rows(
    decompositions: Sequence[Decomposition],
    precision: Precision,
    version: int = VERSION,
    notes: Sequence[str] | None = None,
) -> pa.Table:
    """Convert decompositions to the rows of a shard, in a version of the format.

    Args:
        decompositions: of the texts.
        precision: how contributions are stored.
        version: of the format.
        notes: what :func:`about` returned for each document.
    """
    notes = [""] * len(decompositions) if notes is None else notes
    if version < 3 and any(notes):
        raise ValueError("this store is of an earlier version, which keeps no ids, titles or metadata; build it again")
    for each in decompositions:
        if each.boxes is not None:
            raise TypeError(f"a store holds texts, not pictures: {each.text!r}")
    dtype = PRECISIONS[precision].to_pandas_dtype()
    values = [np.asarray(each.contributions, np.float32) for each in decompositions]
    scales = [np.empty(0, np.float32)] * len(decompositions)
    if precision == "int8":
        scales = [
            np.maximum(np.abs(value).max(axis=1, initial=0), np.float32(1e-30)) / np.float32(127) for value in values
        ]
        values = [np.rint(value / scale[:, None]) for value, scale in zip(values, scales, strict=True)]
    with np.errstate(over="ignore"):  # reported below
        values = [value.astype(dtype) for value in values]
    errors = []
    for each, value, scale in zip(decompositions, values, scales, strict=True):
        if not np.isfinite(value).all():
            raise ValueError(f"contributions of {quote(each.text)} do not fit into {precision}; use float32")
        known = version > 1 and len(each.side.errors)
        stored = value * scale[:, None] if len(scale) else value
        errors.append(_errors(each, stored) if known else np.empty(0, np.float32))
    embeddings, references = (
        np.stack([np.asarray(getattr(each, name), np.float32) for each in decompositions])
        for name in ("embedding", "reference")
    )
    offsets = [np.ravel(each.offsets).astype(np.int32) for each in decompositions]
    shares = [np.asarray(each.shares, np.float32) for each in decompositions]
    cells = {
        "text": [each.text for each in decompositions],
        "tokens": [each.tokens for each in decompositions],
        "offsets": offsets,
        "kinds": [each.kinds for each in decompositions],
        "shares": shares,
        "truncated": [each.truncated for each in decompositions],
        "unit": [each.unit for each in decompositions],
        "mode": [each.mode for each in decompositions],
        "nodes": [each.nodes for each in decompositions],
        "scales": scales,
    }
    checksums = [
        _checksum((*_words_of(each, version), *([beside] if version > 2 else [])), *numbers)
        for each, beside, *numbers in zip(
            decompositions, notes, offsets, shares, scales, embeddings, references, values, errors, strict=True
        )
    ]
    schema = columns_of(precision, embeddings.shape[1], version)
    columns = [pa.array(column, schema.field(name).type) for name, column in cells.items()]
    columns += [
        pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])
        for matrix in (embeddings, references)
    ]
    ends = pa.array(np.cumsum([0, *(value.size for value in values)]), pa.int64())
    columns.append(pa.LargeListArray.from_arrays(ends, pa.array(np.concatenate([value.ravel() for value in values]))))
    last = [pa.array(checksums, pa.uint32()), pa.array(errors, pa.list_(pa.float32())), pa.array(notes, pa.string())]
    columns += last[:version]
    return pa.Table.from_arrays(columns, schema=schema)


def about(document: Document) -> str:
    """Write a document's id, title and metadata as JSON; an empty string if it has none."""
    known = {"id": document.id, "title": document.title, "metadata": document.metadata}
    try:
        return json.dumps(known, ensure_ascii=False, sort_keys=True) if any(known.values()) else ""
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the metadata of {quote(document.id or document.text)} is not made of plain values: {error}"
        ) from None


def _errors(decomposition: Decomposition, stored: NDArray[Any]) -> NDArray[np.float32]:
    """Return the errors of contributions, including what is lost by storing them in fewer bits."""
    length = max(float(np.linalg.norm(decomposition.embedding)), float(np.finfo(np.float32).tiny))
    rounding = np.linalg.norm(np.asarray(decomposition.contributions, np.float64) - stored, axis=1) / length
    return np.asarray(decomposition.side.errors + rounding, np.float32)


def _words_of(derived: Decomposition | Side, version: int) -> tuple[str, ...]:
    """Collect the texts in a row; the checksum of version 1 did not cover how the text was derived."""
    words = (derived.text, *derived.tokens, *derived.kinds)
    return words if version == 1 else (*words, derived.unit, derived.mode, f"{derived.nodes} {derived.truncated}")


def _checksum(texts: Sequence[str], *numbers: NDArray[Any]) -> int:
    """Return a checksum of everything in a row that an explanation is made of."""
    checksum = zlib.crc32("\0".join(texts).encode())
    for array in numbers:
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def flatten(column: pa.Array) -> NDArray[Any]:
    """Return the numbers of a column of lists, without copying them."""
    values: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=True)
    return values


class Damage(Exception):  # noqa: N818  # what it says is put into a sentence
    """A shard's content contradicts itself or the manifest."""


def _map_rows(path: Path, schema: pa.Schema) -> pa.RecordBatch:
    """Map a shard into memory; only what is accessed is read.

    The file's messages are read one after the other, not through its footer, so that each is checked before Arrow
    follows it. A compressed message could expand to any size.
    """
    with files.open_regular(path) as file:
        buffer = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if buffer.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
        raise Damage("it is not an Arrow file")
    messages = iter(pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer.slice(len(_MAGIC)))))
    head, message = next(messages, None), next(messages, None)
    if head is None or message is None:
        raise Damage("it ends too early")
    if head.type != "schema" or not pa.ipc.read_schema(head).equals(schema):
        raise Damage("it has other columns than its manifest says")
    if message.type != "record batch":
        raise Damage(f"it has a {message.type} in the place of its rows")
    if _is_compressed(message.metadata.to_pybytes()):
        raise Damage("it is compressed, and stores are not")
    return pa.ipc.read_record_batch(message, schema)


def _is_compressed(metadata: bytes) -> bool:
    """Whether the body of a record batch is compressed.

    pyarrow does not say, so this looks into the flatbuffer: Message.header (field 2) is a RecordBatch, whose field 3
    is its compression. https://github.com/apache/arrow/blob/main/format/Message.fbs
    """

    def field(table: int, number: int) -> int:
        """Return the place of a table's field, or 0 if the table does not have it."""
        directory = table - struct.unpack_from("<i", metadata, table)[0]
        place = 4 + 2 * number
        if place >= struct.unpack_from("<H", metadata, directory)[0]:
            return 0
        offset = struct.unpack_from("<H", metadata, directory + place)[0]
        return table + offset if offset else 0

    message = struct.unpack_from("<I", metadata, 0)[0]
    header = field(message, 2)
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return bool(field(batch, 3))


class OpenShard:
    """A shard that is mapped into memory."""

    def __init__(self, path: Path, shard: Shard, dimensions: int, schema: pa.Schema) -> None:
        rows = _map_rows(path, schema)
        rows.validate(full=True)  # where lists begin and end, which Arrow itself trusts
        if len(rows) != shard.texts or any(column.null_count for column in rows.columns):
            raise Damage(f"it has {len(rows)} texts, not {shard.texts}, or empty cells")
        self.columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        self._dimensions = dimensions
        self._shard = shard

    @cached_property
    def embeddings(self) -> NDArray[np.float32]:
        embeddings = self._matrix("embedding")
        if zlib.crc32(embeddings.data) != self._shard.embeddings:
            raise Damage("its embeddings are not what was written")
        return embeddings

    @cached_property
    def references(self) -> NDArray[np.float32]:
        return self._matrix("reference")

    def _matrix(self, name: str) -> NDArray[np.float32]:
        return flatten(self.columns[name]).reshape(-1, self._dimensions)

    @cached_property
    def _contributions(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        column = self.columns["contributions"]
        return column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=True)

    def document(self, row: int) -> Document:
        text = self.columns["text"][row].as_py()
        notes = self.columns["about"][row].as_py() if "about" in self.columns else ""
        if not notes:
            return Document(text)
        try:
            return Document.of({**json.loads(notes), "text": text})
        except (ValueError, TypeError) as error:
            raise Damage(f"its text {row} is not what was written ({error})") from None

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
        errors = numbers("errors", np.float32) if "errors" in self.columns else np.empty(0, np.float32)
        side = Side(
            text=text,
            tokens=tokens,
            offsets=tuple(map(tuple, offsets.reshape(-1, 2).tolist())),
            kinds=kinds,
            truncated=cell("truncated"),
            unit=cell("unit"),
            nodes=cell("nodes"),
            mode=cell("mode"),
            errors=errors.astype(np.float64),
        )
        parts = (offsets, shares, scales, embedding, reference, stored, errors)
        notes = (cell("about"),) if "about" in self.columns else ()
        checksum = _checksum((*_words_of(side, 2 if "errors" in self.columns else 1), *notes), *parts)
        if stored.size != len(tokens) * self._dimensions or checksum != cell("checksum"):
            raise Damage(f"its text {row} is not what was written")
        contributions = stored.reshape(-1, self._dimensions)
        return Decomposition(
            side=side,
            embedding=embedding,
            reference=reference,
            settings=settings,
            contributions=contributions * scales[:, None] if len(scales) else contributions,
            shares=shares,
        )

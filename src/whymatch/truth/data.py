"""Read the data that tests run on."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from whymatch.corpus.pairs import warn_of_bad_rows
from whymatch.corpus.tables import FIRST, SECOND, Table, check_encoding
from whymatch.files import read_json
from whymatch.words import Span, check_text, quote

T = TypeVar("T")
SPLITS = ("dev", "test")


@dataclass(frozen=True)
class TokenisedPair:
    """Two sentences as their words; the texts are the words joined by spaces."""

    words_a: tuple[str, ...]
    words_b: tuple[str, ...]

    @property
    def text_a(self) -> str:
        return " ".join(self.words_a)

    @property
    def text_b(self) -> str:
        return " ".join(self.words_b)

    @property
    def spans_a(self) -> list[Span]:
        return joined_spans(self.words_a)

    @property
    def spans_b(self) -> list[Span]:
        return joined_spans(self.words_b)


@dataclass(frozen=True)
class AlignedPair(TokenisedPair):
    """Two sentences, and the links between their words that people are sure of."""

    links: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for i, j in self.links:
            if not (0 <= i < len(self.words_a) and 0 <= j < len(self.words_b)):
                raise ValueError(
                    f"({i}, {j}) is not a link between two of {len(self.words_a)} and {len(self.words_b)} words: "
                    f"{quote(self.text_a)}, {quote(self.text_b)}"
                )


def joined_spans(words: Sequence[str]) -> list[Span]:
    """Return where each word is in the words joined by spaces."""
    spans, place = [], 0
    for word in words:
        spans.append((place, place + len(word)))
        place += len(word) + 1
    return spans


def read_pairs(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Read pairs of texts from a table: CSV, TSV, JSONL or Parquet; such as STS-B's files.

    Bad rows are left out, and a warning names them.
    """
    table = Table.open(path, columns, (FIRST, SECOND))
    names = table.choose(columns, (FIRST, SECOND))
    pairs, bad = [], []
    for row in table.rows():
        (a, problem_a), (b, problem_b) = (row.text(name) for name in names)
        if problem := problem_a or problem_b:
            bad.append((row.number, problem))
        else:
            pairs.append((a, b))
    warn_of_bad_rows(path, bad)
    if not pairs:
        raise ValueError(f"{os.fspath(path)!r} holds no pair of texts")
    return pairs


def read_aligned(path: str | os.PathLike[str]) -> list[AlignedPair]:
    """Read pairs in the format of MultiMWA: tab-separated, sentences in columns 2 and 4, sure links ``i-j`` in 8.

    Pairs without a link are left out.
    """
    pairs = []
    for number, line in enumerate(read_lines_of(path), 1):
        cells = line.split("\t")
        if len(cells) < 8:
            raise ValueError(
                f"line {number} of {os.fspath(path)!r} has {len(cells)} columns, not 8 or more: {quote(line)}"
            )
        words_a, words_b = tuple(cells[1].split()), tuple(cells[3].split())
        links = []
        for place in cells[7].split():
            match = re.fullmatch(r"(\d+)-(\d+)", place)
            if match is None or int(match[1]) >= len(words_a) or int(match[2]) >= len(words_b):
                raise ValueError(f"line {number} of {os.fspath(path)!r}: {place!r} is not a link between two words")
            links.append((int(match[1]), int(match[2])))
        if links:
            pairs.append(AlignedPair(words_a, words_b, tuple(sorted(links))))
    if not pairs:
        raise ValueError(f"{os.fspath(path)!r} holds no pair with a link")
    return pairs


@dataclass(frozen=True)
class ChunkLink:
    """Two chunks that people linked: their numbers, the type of the link, and its grade from 0 to 5."""

    a: int
    b: int
    kind: str
    grade: float


@dataclass(frozen=True)
class ChunkedPair(TokenisedPair):
    """Two sentences, their chunks as numbers of words, and people's links between chunks."""

    chunks_a: tuple[tuple[int, ...], ...]
    chunks_b: tuple[tuple[int, ...], ...]
    links: tuple[ChunkLink, ...]


def read_chunked(path: str | os.PathLike[str]) -> list[ChunkedPair]:
    """Read pairs in the format of interpretable STS (``.wa``); pairs without a link are left out."""
    content = "\n".join(read_lines_of(path))
    pairs = []
    for number, part in enumerate(re.findall(r"<sentence\b.*?</sentence>", content, re.DOTALL), 1):
        try:
            pair = _read_chunked(part)
        except (AttributeError, ValueError, IndexError) as error:
            raise ValueError(
                f"sentence {number} of {os.fspath(path)!r} cannot be read: {error}: {quote(part)}"
            ) from None
        if pair.links:
            pairs.append(pair)
    if not pairs:
        raise ValueError(f"{os.fspath(path)!r} holds no pair with linked chunks")
    return pairs


def _read_chunked(part: str) -> ChunkedPair:
    def words(name: str) -> tuple[str, ...]:
        block = re.search(rf"<{name}>(.*?)</{name}>", part, re.DOTALL)
        if block is None:
            raise ValueError(f"it has no <{name}>")
        # "3 word :" on each line; the word itself may be a colon.
        return tuple(line.split()[1] for line in block[1].strip().split("\n"))

    sides = words("source"), words("translation")
    chunks: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    links = []
    block = re.search(r"<alignment>(.*?)</alignment>", part, re.DOTALL)
    if block is None:
        raise ValueError("it has no <alignment>")
    for line in block[1].strip().split("\n"):
        places, kind, grade, *_ = (cell.strip() for cell in line.split(" // "))
        numbers = []
        for side, cell in enumerate(places.split("<==>")):
            chunk = tuple(int(each) - 1 for each in cell.split() if each != "0")
            if any(not 0 <= each < len(sides[side]) for each in chunk):
                raise ValueError(f"{line!r} names a word that is not there")
            if chunk and chunk not in chunks[side]:
                chunks[side].append(chunk)
            numbers.append(chunks[side].index(chunk) if chunk else None)
        a, b = numbers
        kind = kind.split("_")[0]  # EQUI_FACT and the like: the second part is a separate annotation
        if a is not None and b is not None and kind != "NOALI" and grade != "NIL":
            links.append(ChunkLink(a, b, kind, float(grade)))
    return ChunkedPair(*sides, tuple(chunks[0]), tuple(chunks[1]), tuple(links))


@dataclass(frozen=True)
class Question:
    """A question, a paragraph, and the character of the paragraph at which the answer begins."""

    question: str
    context: str
    place: int


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Read questions in the format of SQuAD; those without an answer are left out."""

    def read(question: str, context: str, place: int) -> Question:
        if not check_text(question).strip() or not 0 <= place < len(check_text(context)):
            raise ValueError(f"the question {quote(question)} has no words, or its answer is not in {quote(context)}")
        return Question(question, context, place)

    try:
        content = read_json(path)
        questions = [
            read(each["question"], paragraph["context"], int(each["answers"][0]["answer_start"]))
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for each in paragraph["qas"]
            if each["answers"]
        ]
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {os.fspath(path)!r}") from None
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{os.fspath(path)!r} is not in the format of SQuAD, where data have paragraphs, and these a context and "
            f"qas with a question and answers: {what}"
        ) from None
    if not questions:
        raise ValueError(f"{os.fspath(path)!r} holds no question with an answer")
    return questions


def holds_questions(path: Path) -> bool:
    """Whether a JSON file begins as SQuAD's do, with paragraphs; folders hold other JSON files, too."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return '"paragraphs"' in file.read(2**16)


def read_lines_of(path: str | os.PathLike[str]) -> list[str]:
    """Read the lines of a text file that are not blank."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    check_encoding(path)
    try:
        return [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not a text file in UTF-8: {error}") from None


def split_half(items: Sequence[T], split: str | None) -> list[T]:
    """Return the first half of items for ``"dev"``, to tune on, the second for ``"test"``, to report; None is all."""
    if split is not None and split not in SPLITS:
        raise ValueError(f"split={split!r} is not known; choose {', '.join(SPLITS)}, or none")
    half = len(items) // 2
    return list(items if split is None else items[:half] if split == "dev" else items[half:])


def sample(items: Sequence[T], count: int | None, seed: int) -> list[T]:
    """Draw items; fewer are always among more of the same seed, so that a run can be made longer."""
    drawn = list(items)
    random.Random(seed).shuffle(drawn)
    return drawn if count is None else drawn[:count]

"""Texts that many pairs share: each is decomposed once, and remembered on the disk."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from whymatch.decomposition import Decomposition
from whymatch.explainer import Explainer
from whymatch.store import Store


def hash_of(text: str) -> int:
    """A number that stands for a text: eight bytes, however long it is."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class Remembered:
    """Decompositions of texts in one task; those that are ``wanted`` again are kept in a folder."""

    def __init__(self, explainer: Explainer, folder: Path, task: str | None, wanted: Callable[[int], bool]) -> None:
        self._explainer = explainer
        self._folder = folder
        self._task = task
        self._wanted = wanted
        self._store: Store | None = None
        self._places: dict[int, int] = {}  # in the store, by the hash of a text
        if folder.exists():
            self._take_up()

    def _take_up(self) -> None:
        """What an interrupted run had decomposed; if any of it is damaged, all is decomposed again."""
        try:
            self._store = Store.open(self._folder)
            self._places = {hash_of(text): i for i, text in enumerate(self._store.texts())}
        except (OSError, ValueError):
            self._forget()

    def _forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._store, self._places = None, {}

    def recall(self, text: str) -> Decomposition | None:
        place = self._places.get(hash_of(text))
        if place is None or self._store is None:
            return None
        try:
            found = self._store[place]
        except ValueError:  # damaged: what can be made again is no reason to give up
            self._forget()
            return None
        return found if found.text == text else None  # two texts may have one hash

    def derive(self, texts: Sequence[str]) -> dict[str, Decomposition]:
        """Decompose texts that are not known; an error is that of a text."""
        new = self._explainer.decompose(texts, task=self._task)
        return dict(zip(texts, new, strict=True))

    def keep(self, decs: Sequence[Decomposition]) -> None:
        kept = {hash_of(dec.text): dec for dec in decs}
        kept = {key: dec for key, dec in kept.items() if self._wanted(key) and key not in self._places}
        if not kept:
            return
        if self._store is None:
            size = len(next(iter(kept.values())).embedding)
            self._store = Store.create(self._folder, self._explainer.settings, "", size)
        start = len(self._store)
        self._store.append(list(kept.values()))
        self._places |= {key: start + i for i, key in enumerate(kept)}

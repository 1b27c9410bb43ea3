"""A cache on disk of the decompositions of texts that many pairs share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from whymatch.corpus.store import Store
from whymatch.corpus.tables import hash_text
from whymatch.explainer import Explainer
from whymatch.reading.inputs import EncodeOptions
from whymatch.results.decomposition import Decomposition
from whymatch.results.ranking import differ
from whymatch.settings import MAXSIM


class Cache:
    """Decomposes texts, and keeps those that will be needed again.

    What an interrupted job left in the folder is used if the same model made it with the same settings, and deleted
    otherwise. A service's model is the same if it gives a stored text the same vector. Of multi-vector encoders nothing
    is kept: a store has one vector for each text.

    Args:
        explainer: decomposes the texts.
        identity: the hash of its model.
        folder: where decompositions are kept.
        reading: how the model reads the texts.
        is_needed_again: whether the text with this hash will be needed again.
    """

    def __init__(
        self,
        explainer: Explainer,
        identity: str,
        folder: Path,
        reading: EncodeOptions,
        is_needed_again: Callable[[int], bool],
    ) -> None:
        self._explainer = explainer
        self._identity = identity
        self._folder = folder
        self._reading = reading
        self._is_needed_again = is_needed_again
        self._places: dict[int, int] = {}  # of texts in the store, by their hashes
        self._keeps = explainer.settings.similarity not in MAXSIM
        if self._keeps:
            self._open()

    def _open(self) -> None:
        explainer = self._explainer
        self._store = Store.reuse(self._folder, explainer.settings, self._identity, explainer.dimensions, self._reading)
        try:
            if len(self._store) and explainer.settings.path == "shapley":
                self._check_vector(self._store[0])
            self._places = {hash_text(text): i for i, text in enumerate(self._store.texts())}
        except ValueError:
            self._clear()

    def _check_vector(self, stored: Decomposition) -> None:
        """Raise an error if a black box, of which only the name is known, gives a text another vector than it did."""
        (own,) = self._explainer.embed([stored.text], task=self._reading.task, prompt=self._reading.prompt)
        if reason := differ(stored.embedding, own):
            raise ValueError(reason)

    def _clear(self) -> None:
        """Start with an empty store: what was there is damaged, and can be decomposed again."""
        shutil.rmtree(self._folder)
        self._places = {}
        self._open()

    def get(self, text: str) -> Decomposition | None:
        """Return the stored decomposition of a text, or None."""
        place = self._places.get(hash_text(text))
        if place is None:
            return None
        try:
            decomposition = self._store[place]
        except ValueError:
            self._clear()
            return None
        return decomposition if decomposition.text == text else None  # two texts may have the same hash

    def decompose(self, texts: Sequence[str]) -> dict[str, Decomposition]:
        """Decompose texts that are not in the cache."""
        reading = self._reading
        decompositions = self._explainer.decompose(texts, task=reading.task, prompt=reading.prompt)
        return dict(zip(texts, decompositions, strict=True))

    def keep(self, decompositions: Sequence[Decomposition]) -> None:
        """Store the decompositions of texts that will be needed again."""
        if not self._keeps:
            return
        new = {hash_text(each.text): each for each in decompositions}
        new = {key: each for key, each in new.items() if self._is_needed_again(key) and key not in self._places}
        start = len(self._store)
        self._store.append(list(new.values()))
        self._places |= {key: start + i for i, key in enumerate(new)}

"""Do the words that an explanation ranks highest matter most?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from whymatch.quadrature import Floats
from whymatch.truth.asking import Model, keep_words, seeded
from whymatch.truth.deletions import model_of
from whymatch.truth.judging import judge
from whymatch.truth.results import Measure, Result, Row, mean_of
from whymatch.truth.subjects import Attribution, Subject, TextPair
from whymatch.words import shares, word_spans

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Word: TypeAlias = tuple[int, int]  # the side, and the number of the word there
Kept: TypeAlias = tuple[frozenset[int], frozenset[int]]  # the words of each side that are there


@dataclass(frozen=True)
class InsertionDeletion:
    """Words are removed, or added, in the order of what they contribute; the area under the score's curve is compared.

    Both texts' words are in one order. Each text always has a word: deletion ends with one in each, and insertion
    begins with the best of each. ``gain`` is 0 for a random order and 1 for the best order that greedy search finds.

    Attributes:
        model: the model to ask.
        orders: random orders for each pair.
        seed: decides, with the texts, the random orders.
    """

    model: Model
    orders: int = 5
    seed: int = 0

    name = "insertion_deletion"
    headline = "gain"
    groups = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"orders": self.orders, "seed": self.seed, "units": "words", "removal": "delete"}

    @property
    def measures(self) -> Mapping[str, Measure]:
        fell, rose = {"random_deletion": 1.0, "deletion": -1.0}, {"insertion": 1.0, "random_insertion": -1.0}
        most_fell = {"random_deletion": 1.0, "best_deletion": -1.0}
        most_rose = {"best_insertion": 1.0, "random_insertion": -1.0}
        areas = [f"{prefix}{name}" for name in ("deletion", "insertion") for prefix in ("", "random_", "best_")]
        return {
            "gain": Measure(_sum(fell, rose), _sum(most_fell, most_rose)),
            "deletion_gain": Measure(fell, most_fell),
            "insertion_gain": Measure(rose, most_rose),
        } | {name: mean_of(name) for name in areas}

    def texts(self, item: TextPair) -> TextPair:
        return item

    def measure(self, item: TextPair, attribution: Attribution) -> Row:
        """Follow the order of an explanation, and compare it with random and greedy ones."""
        game = Game(self.model, item)
        if min(game.sizes) < 1 or sum(game.sizes) < 4:
            return {"words": sum(game.sizes)}
        matrix = attribution.matrix
        worth = [
            shares(attribution.spans_a, game.words[0]) @ matrix.sum(1),
            shares(attribution.spans_b, game.words[1]) @ matrix.sum(0),
        ]
        order = sorted(game.all, key=lambda word: -worth[word[0]][word[1]])
        own = {"deletion": game.deletion(order), "insertion": game.insertion(order)}
        return {"words": sum(game.sizes), **own, **self._others(game)}

    def _others(self, game: Game) -> dict[str, float]:
        """Return the mean area of random orders and that of greedy ones, which depend on model and pair alone."""

        def compute() -> list[float]:
            rng = seeded(self.seed, game.pair)
            orders = [[game.all[i] for i in rng.permutation(len(game.all))] for _ in range(self.orders)]
            chance = [float(np.mean([way(order) for order in orders])) for way in (game.deletion, game.insertion)]
            return [*chance, game.best_deletion(), game.best_insertion()]

        names = ("random_deletion", "random_insertion", "best_deletion", "best_insertion")
        areas = self.model.remember(["curves", self.orders, self.seed, *game.pair], compute)
        return dict(zip(names, areas, strict=True))


def _sum(*terms: Mapping[str, float]) -> dict[str, float]:
    names = {name: 0.0 for each in terms for name in each}
    return {name: sum(each.get(name, 0.0) for each in terms) for name in names}


class Game:
    """The scores of a pair with some of its words."""

    def __init__(self, model: Model, pair: TextPair) -> None:
        self.model, self.pair = model, pair
        self.words = word_spans(pair[0]), word_spans(pair[1])
        self.sizes = len(self.words[0]), len(self.words[1])
        self.all: list[Word] = [(side, i) for side in (0, 1) for i in range(self.sizes[side])]
        self._vectors: dict[tuple[int, frozenset[int]], Floats] = {}

    def scores(self, states: Sequence[Kept]) -> Floats:
        """Return the scores of the pair with the words that are kept in each state; each text is embedded once."""
        for side in (0, 1):
            new = [kept for kept in dict.fromkeys(state[side] for state in states) if (side, kept) not in self._vectors]
            if new:
                texts = [
                    keep_words(self.pair[side], self.words[side], [i in kept for i in range(self.sizes[side])])
                    for kept in new
                ]
                vectors = self.model.embed(texts, side)
                self._vectors.update({(side, kept): each for kept, each in zip(new, vectors, strict=True)})
        a, b = (np.stack([self._vectors[side, state[side]] for state in states]) for side in (0, 1))
        return self.model.compare(a, b)

    @property
    def whole(self) -> Kept:
        return frozenset(range(self.sizes[0])), frozenset(range(self.sizes[1]))

    def deletion(self, order: Sequence[Word]) -> float:
        """Return the area under the curve while words are removed, down to one in each text."""
        return float(self.scores(list(_removing(self.whole, order))).mean())

    def insertion(self, order: Sequence[Word]) -> float:
        """Return the area under the curve while words are added, from the first of each text on."""
        first = tuple(frozenset([next(i for side, i in order if side == each)]) for each in (0, 1))
        states: list[Kept] = [(first[0], first[1])]
        for word in order:
            if word[1] not in states[-1][word[0]]:
                states.append(_changed(states[-1], word))
        return float(self.scores(states).mean())

    def best_deletion(self) -> float:
        """Remove at each step the word whose loss lowers the score most."""
        return self._greedy(self.whole, lambda kept: [w for w in _members(kept) if len(kept[w[0]]) > 1], np.argmin)

    def best_insertion(self) -> float:
        """Begin with the two words that score highest, and add at each step the one that raises the score most."""
        starts: list[Kept] = [
            (frozenset([i]), frozenset([j])) for i in range(self.sizes[0]) for j in range(self.sizes[1])
        ]
        start = starts[int(np.argmax(self.scores(starts)))]
        return self._greedy(start, lambda kept: [w for w in self.all if w[1] not in kept[w[0]]], np.argmax)

    def _greedy(self, state: Kept, choices: Callable[[Kept], list[Word]], choose: Callable[[Floats], Any]) -> float:
        curve = [float(self.scores([state])[0])]
        while words := choices(state):
            states = [_changed(state, word) for word in words]
            values = self.scores(states)
            best = int(choose(values))
            state = states[best]
            curve.append(float(values[best]))
        return float(np.mean(curve))


def _members(kept: Kept) -> list[Word]:
    return [(side, i) for side in (0, 1) for i in sorted(kept[side])]


def _changed(state: Kept, word: Word) -> Kept:
    """Add a word that is not there, or remove one that is."""
    side, number = word
    new = state[side] ^ {number}
    return (new, state[1]) if side == 0 else (state[0], new)


def _removing(state: Kept, order: Sequence[Word]) -> Iterator[Kept]:
    yield state
    for word in order:
        if len(state[word[0]]) > 1:
            state = _changed(state, word)
            yield state


def insertion_deletion(
    explainer: Subject,
    pairs: Sequence[TextPair],
    *,
    model: Model | SentenceTransformer | None = None,
    orders: int = 5,
    seed: int = 0,
) -> Result:
    """Test whether removing words in the order of their contributions lowers the score fast, and adding them raises it.

    Args:
        explainer: an Explainer, a baseline, or a function ``(a, b) -> matrix``.
        pairs: pairs of texts.
        model: the model to ask; None is the explainer's own.
        orders: random orders to compare with.
        seed: decides the random orders.

    Returns:
        ``value`` is how far the order comes from a random one, at 0, to the best that greedy search finds, at 1, in
        the areas under both curves.
    """
    return judge(InsertionDeletion(model_of(explainer, model), orders, seed), explainer, list(pairs))

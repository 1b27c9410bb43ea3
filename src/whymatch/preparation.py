"""From inputs as they were asked for to buckets of them that are ready to be derived."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whymatch import jacobian
from whymatch.bucket import Bucket
from whymatch.cut import Cut
from whymatch.decomposition import Settings, is_int
from whymatch.encoder import Encoder
from whymatch.groups import Groups, grouped
from whymatch.inputs import Input, Reading, Value, batched, key_of
from whymatch.jacobian import LOCK, Paths, Points
from whymatch.reference import Reference, reference_features, reference_states
from whymatch.text import shown

# Inputs of one length that run through the encoder together: enough to fill the machine, few enough to bound what
# is held.
TEXTS_TOGETHER = 32


@dataclass(frozen=True)
class Request:
    """One side of a pair, as it was asked for."""

    value: Value
    reading: Reading
    groups: Groups

    @property
    def key(self) -> Hashable:
        return key_of(self.value, self.reading), self.groups


@dataclass(frozen=True)
class Preparation:
    """How an explainer's inputs are made ready."""

    encoder: Encoder
    reference: Reference
    layer: int  # as it was given: one that counts from the end means another place in each tower
    settings: Settings

    def prepare(self, requests: Iterable[Request]) -> Prepared:
        """Preprocess inputs and let the model itself embed them."""
        distinct = {one.key: one for one in requests}
        items: dict[Hashable, Item] = {}
        by_reading: dict[Reading, list[Request]] = {}
        for one in distinct.values():
            by_reading.setdefault(one.reading, []).append(one)
        for reading, alike in by_reading.items():
            # A tokenizer's truncation is its own state: two threads that set it at once fail with "Already borrowed".
            with LOCK:
                inputs = self.encoder.read([one.value for one in alike], reading)
                embeddings = self.encoder.embed(inputs)
            for one, given, embedding in zip(alike, inputs, embeddings, strict=True):
                items[one.key] = Item(given, embedding, *grouped(given, one.groups))
        return Prepared(self, {key: items[key] for key in distinct})

    def cut(self, given: Input, attention: str | None = None) -> Cut:
        """The part of the encoder that is differentiated for an input."""
        layer = check_layer(self.layer, self.encoder.tower(given).layers)
        return self.encoder.cut(given, layer, self._precision(), attention)

    def bucket(self, cut: Cut, items: Sequence[Item]) -> Bucket:
        """Inputs of one length and one tower, run through the encoder up to the cut."""
        inputs = [item.given for item in items]
        own, shifted_by = [one.features for one in inputs], self.encoder.shifted_by
        replaced = {
            name: [reference_features(self.encoder.content(name, inputs[0]), one) for one in inputs]
            for name in (self.reference, shifted_by)
            if isinstance(name, str)
        }
        features = batched([*own, *chain.from_iterable(replaced.values())], cut.device)
        x, *others = cut.head(features).chunk(1 + len(replaced))
        states = dict(zip(replaced, others, strict=True))
        start = states[self.reference] if isinstance(self.reference, str) else reference_states(self.reference, x)
        if x.shape[1] != len(inputs[0]):
            raise TypeError(
                f"the encoder has {x.shape[1]} hidden states at layer {self.settings.layer} for the {len(inputs[0])} "
                f"tokens of {shown(inputs[0].text)}: they do not belong to its tokens, and cannot be explained"
            )
        paths = Paths(
            tail=cut.tail(features),
            start=start,
            delta=x - start,
            owner=torch.as_tensor(np.stack([item.owner for item in items]), device=x.device),
            groups=max(len(item.side["tokens"]) for item in items),
            room=jacobian.room(cut.pass_bytes(x.shape[1]), x.device),
            depth=cut.depth,
        )
        if shifted_by is not None:
            paths = _shifted(paths, states[shifted_by])
        embeddings = np.stack([item.embedding for item in items])
        bucket = Bucket(
            paths, [item.side for item in items], embeddings, self.settings, cut.normalizes, cut.truncate_dim
        )
        missed = bucket.mismatch()
        worst = inputs[int(missed.argmax())].text
        if not missed.max() <= max(1e-2, 16 * torch.finfo(self.encoder.dtype).eps):
            if shifted_by is not None:
                raise TypeError(
                    f"this adjusted model reads its reference at another place than the text, as it does where "
                    f"{shifted_by!r} tokens also end a text; adjust it with another reference: {shown(worst)}"
                )
            raise TypeError(
                f"the encoder from layer {self.settings.layer} on, given its own hidden states, misses its own "
                f"embedding by {missed.max():.0%}: it uses more than the hidden states there (all layers' outputs, "
                f"or the tokens themselves), and cannot be cut at that layer: {shown(worst)}"
            )
        return bucket

    def _precision(self) -> torch.dtype:
        """Single precision where its rounding is far below the tolerance, else double."""
        single = self.settings.tolerance >= 1e-4 and self.encoder.dtype != torch.float64
        return torch.float32 if single or self.encoder.device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Item:
    """One input, ready to be derived."""

    given: Input
    embedding: NDArray[np.floating]
    owner: NDArray[np.integer]  # the group of each row
    side: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """Inputs that are ready to be derived, by their keys."""

    by: Preparation
    items: dict[Hashable, Item]

    def buckets(self) -> Iterator[tuple[list[Hashable], Bucket]]:
        """Inputs of one length that go through the encoder in one way, in batches of a bounded size."""
        alike: dict[tuple[Reading, str, int], list[Hashable]] = {}
        for key, item in self.items.items():
            given = item.given
            alike.setdefault((given.reading, given.modality, len(given)), []).append(key)
        # One cut for each way: where it holds weights of its own, in another precision, they are as large as the model.
        cuts: dict[Hashable, Cut] = {}
        for (reading, modality, _), keys in alike.items():
            if (reading.task, modality) not in cuts:
                cuts[reading.task, modality] = self.by.cut(self.items[keys[0]].given)
            cut = cuts[reading.task, modality]
            for i in range(0, len(keys), TEXTS_TOGETHER):
                batch = keys[i : i + TEXTS_TOGETHER]
                yield batch, self.by.bucket(cut, [self.items[key] for key in batch])


def _shifted(paths: Paths, zero: Tensor) -> Paths:
    """The same paths of the encoder that gives zero there."""
    ends = Points.of([(np.zeros(1), np.zeros(1))] * len(zero), zero)
    there, run = jacobian.values(replace(paths, start=zero), ends), paths.tail
    return replace(paths, tail=lambda x, number: run(x, number) - there[number])


def check_layer(layer: int, count: int) -> int:
    if not is_int(layer) or not -count - 1 <= layer <= count:
        raise ValueError(
            f"layer={layer!r} is out of range; this model has {count} blocks: give 0 (input embeddings) to {count} "
            f"(output), or -1 (output) to {-count - 1}"
        )
    return int(layer) % (count + 1)

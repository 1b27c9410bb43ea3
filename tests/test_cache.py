"""The cache of decompositions that many pairs share."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import TEXTS
from whymatch import Explainer
from whymatch.corpus.cache import Cache
from whymatch.corpus.tables import hash_text
from whymatch.reading.inputs import EncodeOptions


@pytest.fixture
def make(explainer, tmp_path):
    """A cache in one folder, of the text that is needed again."""

    def cache(identity="identity", explainer=explainer):
        return Cache(
            explainer, identity, tmp_path / "texts", EncodeOptions(prompt=""), {hash_text(TEXTS[0])}.__contains__
        )

    return cache


def test_only_what_is_needed_again_is_kept(make):
    cache = make()
    decompositions = cache.decompose(TEXTS[:2])
    assert list(decompositions) == TEXTS[:2]
    cache.keep(list(decompositions.values()))
    for again in (cache, make()):  # in this process, and after it was killed
        kept = again.get(TEXTS[0])
        np.testing.assert_array_equal(kept.contributions, decompositions[TEXTS[0]].contributions.astype(np.float32))
        assert again.get(TEXTS[1]) is None
    assert len(cache._store) == 1
    cache.keep(list(decompositions.values()))  # which it has
    assert len(cache._store) == 1


def test_what_another_model_or_other_settings_left_is_deleted(make, folders):
    cache = make()
    cache.keep(list(cache.decompose(TEXTS[:1]).values()))
    assert make("of another model").get(TEXTS[0]) is None
    cache = make()
    cache.keep(list(cache.decompose(TEXTS[:1]).values()))
    assert make(explainer=Explainer(folders("bert"), layer=1)).get(TEXTS[0]) is None


def test_what_is_damaged_is_decomposed_again(make, tmp_path):
    cache = make()
    cache.keep(list(cache.decompose(TEXTS[:1]).values()))
    (shard,) = (tmp_path / "texts").glob("*.arrow")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    again = make()
    assert again.get(TEXTS[0]) is None
    again.keep(list(again.decompose(TEXTS[:1]).values()))
    assert make().get(TEXTS[0]).text == TEXTS[0]


def test_what_a_service_gave_before_its_model_changed_is_deleted(make):
    def service(texts):
        return [[len(text), text.count("o") + shift, 1.0] for text in texts]

    shift = 0
    explainer = Explainer(service)
    cache = make(explainer=explainer)
    cache.keep(list(cache.decompose(TEXTS[:1]).values()))
    assert make(explainer=Explainer(service)).get(TEXTS[0]) is not None
    shift = 30
    assert make(explainer=Explainer(service)).get(TEXTS[0]) is None

"""The real model: the packaged all-MiniLM-L6-v2."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from whymatch import Explainer
from whymatch.encoders.loading import check_packaged, packaged

COFFEE = ("The coffee is not good.", "This is bad coffee.")
STSB = Path(__file__).parents[2] / "shared/data/stsb/stsb-en-dev.csv"


def test_its_weights_are_the_published_ones(minilm):
    check_packaged(packaged())
    assert minilm.get_embedding_dimension() == 384


@pytest.mark.parametrize("layer", range(7))
def test_exact_at_every_layer(minilm, layer):
    explainer = Explainer(minilm, layer=layer)
    assert explainer.num_layers == 6
    why = explainer.explain(*COFFEE)
    assert why.score == pytest.approx(float(minilm.similarity(*map(minilm.encode, COFFEE))), abs=1e-6)
    assert why.score == pytest.approx(0.8337, abs=1e-4)
    assert why.error <= 1e-3
    assert why.matrix.sum() == pytest.approx(why.score, abs=1e-3)


@pytest.mark.parametrize(("path", "coffee"), [("straight", 0.571), ("relay", 1.089), ("secant", 1.214)])
def test_the_matrix_says_what_a_person_would(minilm, path, coffee):
    why = Explainer(minilm, layer=0, path=path, divisions=0).explain(*COFFEE)
    pairs = {(pair.token_a, pair.token_b): pair.value for pair in why.top(4) if pair.value > 0}
    assert list(pairs)[:3] == [("coffee", "coffee"), ("good", "bad"), ("not", "bad")]
    assert pairs["coffee", "coffee"] == pytest.approx(coffee, abs=5e-3)


def test_a_tight_tolerance_is_met(minilm):
    for fold in (True, False):
        why = Explainer(minilm, layer=2, tolerance=1e-6, fold_reference=fold).explain(*COFFEE)
        assert why.error <= 1e-6


def test_a_text_of_100_000_characters_is_truncated_and_says_so(minilm):
    why = Explainer(minilm, layer=-1).explain("coffee " * 14_300, "This is bad coffee.")
    assert why.truncated_a
    assert not why.truncated_b
    assert why.matrix.shape == (256, 7)
    assert len(why.tokens_a) == 256
    assert why.error <= 1e-3


@pytest.mark.skipif(not STSB.is_file(), reason=f"the STS benchmark is not beside the project: {STSB.name}")
@pytest.mark.parametrize("layer", [3, 5, 6])
def test_exact_on_real_pairs(minilm, layer):
    """The first pairs of STS-B dev; benchmarks/exactness.py runs 200 at every layer."""
    with STSB.open(encoding="utf-8") as file:
        pairs = [(row[0], row[1]) for row in csv.reader(file)][:4]
    for fold, similarity in ((True, "cosine"), (False, "dot")):
        explainer = Explainer(minilm, layer=layer, fold_reference=fold, similarity=similarity)
        for pair, why in zip(pairs, explainer.explain_many(pairs), strict=True):
            assert why.error <= 1e-3
            assert why.score == pytest.approx(float(minilm.similarity(*map(minilm.encode, pair))), abs=1e-6)

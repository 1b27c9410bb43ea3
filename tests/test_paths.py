"""Every exact path, wherever explanations are made."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import TEXTS, read_rows, real_model, write_pairs
from whymatch import Explainer
from whymatch.corpus.batch import run_batch
from whymatch.corpus.index import Index
from whymatch.encoders.adjusted import adjust

PATHS = ("straight", "relay", "secant")
PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


@pytest.mark.parametrize("path", PATHS)
def test_an_adjusted_model_needs_no_reference_terms(load, path):
    model = adjust(load())
    explainer = Explainer(model, layer=1, path=path, fold_reference=False, similarity="dot")
    why = explainer.explain(*PAIR)
    assert why.settings.path == path
    a, b = model.encode(list(PAIR))
    assert why.score == pytest.approx(float(a @ b), abs=1e-5)
    assert why.matrix.sum() == pytest.approx(why.score, abs=1e-3 * abs(why.score) + 1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_a_batch_has_what_explain_gives(folders, tmp_path, path):
    explainer = Explainer(folders("bert"), layer=1, path=path)
    pairs = write_pairs(tmp_path / "pairs.jsonl", 4)
    run_batch(pairs, tmp_path / "out", explainer)
    for row in read_rows(tmp_path / "out"):
        why = explainer.explain(row["text_a"], row["text_b"])
        np.testing.assert_allclose(row["matrix"], why.matrix, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_an_index_explains_as_a_ranking_does(folders, tmp_path, path):
    explainer = Explainer(folders("bert"), layer=1, path=path)
    found = Index.build(TEXTS[:4], tmp_path / "index", explainer, store="tokens").search("bad coffee", top=2)
    for hit, other in zip(found, explainer.rank("bad coffee", TEXTS[:4], top=2), strict=True):
        assert hit.explanation.settings.path == path
        np.testing.assert_allclose(hit.explanation.matrix, other.explanation.matrix, atol=2e-3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "layer"), [("all-mpnet-base-v2", 11), ("granite-embedding-30m-english", 4), ("nomic-embed-text-v1.5", 11)]
)
def test_real_models_are_exact(name, layer, path):
    why = Explainer(real_model(name), layer=layer, path=path).explain("A man plays.", "Somebody plays the flute.")
    assert why.relative_error <= (1e-5 if path == "secant" else 1e-3)


@pytest.mark.parametrize("path", ["relay", "secant"])
def test_the_papers_own_model_is_exact_from_its_input(path):
    """Where the paper's sum had not converged with 2,500 steps."""
    why = Explainer(real_model("all-mpnet-base-v2"), layer=0, path=path).explain("A man plays.", "Somebody plays.")
    assert why.relative_error <= 1e-3

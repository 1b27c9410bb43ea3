"""One text's embedding as a sum."""

from __future__ import annotations

import numpy as np
import pytest

from whymatch import Explainer
from whymatch.reading.sides import Side
from whymatch.results.decomposition import Decomposition
from whymatch.settings import Settings

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


@pytest.mark.parametrize("fold", [True, False])
def test_a_decomposition_sums_to_the_models_own_embedding(load, fold):
    for kind in ("bert", "dot"):
        model = load(kind)
        for dec in Explainer(model, layer=1, fold_reference=fold).decompose(list(PAIR)):
            np.testing.assert_allclose(dec.embedding, model.encode(dec.text), atol=1e-6)
            np.testing.assert_allclose(
                dec.contributions.sum(0) + dec.reference, dec.embedding, atol=1e-3 * np.linalg.norm(dec.embedding)
            )
            assert dec.contributions.shape == (len(dec.tokens), 16)
            assert dec.error <= 5e-4
            assert dec.nodes >= 1
            assert dec.reference.any() != fold


def test_a_folded_reference_is_shared_out():
    parts = Decomposition(
        side=Side(
            text="ab", tokens=("a", "b"), offsets=((0, 1), (1, 2)), kinds=("text",) * 2, errors=np.array([0.1, 0.3])
        ),
        embedding=np.array([3.0, 4.0]),
        reference=np.array([2.0, -2.0]),
        settings=Settings("tiny", 1, "pad", False, "cosine", "gauss", None, 1e-3),
        contributions=np.array([[1.0, 2.0], [0.0, 4.5]]),
        shares=np.array([0.25, 0.75]),
    )
    assert parts.error == pytest.approx(0.5 / 5)
    assert parts.entry_error == 0.3
    folded = parts.folded()
    np.testing.assert_allclose(folded.contributions, [[1.5, 1.5], [1.5, 3.0]])
    assert not folded.reference.any()
    assert folded.settings.fold_reference
    assert folded.error == pytest.approx(parts.error)
    assert repr(parts) == "Decomposition(2 tokens, error=1.0e-01, nodes=0, 'ab')"

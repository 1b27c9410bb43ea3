from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whymatch import Explainer

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")
LAYERS = range(4)


TEXTS = {
    "empty": "",
    "spaces": "  \t\n ",
    "one word": "coffee",
    "emoji": "👍🏽 👨‍👩‍👧 ☕️",
    "right to left": "הקפה לא טוב בכלל",
    "combining": "e\u0301\u0323 cafe\u0301",
    "control": "a\x00b\x1b[31mc\u200b\ufeff",
    "only special": "[SEP]",
    "many special": "[CLS] [MASK] [SEP] [PAD]",
    "markup": "</script><img src=x onerror=alert(1)>",
    "long": "coffee is bad. " * 6700,
}


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("name", TEXTS)
def test_any_text_is_explained_exactly(load, kind, name):
    text = TEXTS[name]
    explainer = Explainer(load(kind), layer=1)
    for a, b in ((text, PAIR[0]), (PAIR[0], text), (text, text)):
        why = explainer.explain(a, b)
        assert why.relative_error <= 1e-3
        assert why.matrix.shape == (len(why.tokens_a), len(why.tokens_b)) == (len(why.offsets_a), len(why.offsets_b))
        assert why.words().attributed == pytest.approx(why.attributed, abs=1e-12)
        assert (why.truncated_a, why.truncated_b) == (a == TEXTS["long"], b == TEXTS["long"])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(a=st.text(st.characters(), max_size=40), b=st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_is_exact_or_named(folders, a, b):
    explainer = _shared(folders)
    if any("\ud800" <= character <= "\udfff" for character in a + b):
        with pytest.raises(ValueError, match="lone surrogate"):
            explainer.explain(a, b)
        return
    why = explainer.explain(a, b)
    assert why.relative_error <= 1e-3
    for text, tokens, offsets in ((a, why.tokens_a, why.offsets_a), (b, why.tokens_b, why.offsets_b)):
        assert len(tokens) == len(offsets)
        assert all(0 <= low <= high <= len(text) for low, high in offsets)
    words = why.words()
    assert words.matrix.sum() == pytest.approx(why.matrix.sum(), abs=1e-9)
    assert words.matrix.shape == (len(words.tokens_a), len(words.tokens_b))


_EXPLAINERS: dict[str, Explainer] = {}


def _shared(folders) -> Explainer:
    if "one" not in _EXPLAINERS:
        _EXPLAINERS["one"] = Explainer(folders("bert"), layer=1)
    return _EXPLAINERS["one"]


def test_a_model_with_another_similarity_is_refused_until_one_is_given(load):
    model = load("dot")
    model.similarity_fn_name = "manhattan"
    with pytest.raises(ValueError, match=r"is 'manhattan', which is not a product of embeddings; give similarity="):
        Explainer(model)
    assert Explainer(model, similarity="cosine").explain(*PAIR).relative_error <= 1e-3


def test_bad_inputs_are_named(load):
    explainer = Explainer(load())
    with pytest.raises(TypeError, match=r"a text must be a str, not bytes: b'a'"):
        explainer.explain(b"a", "b")
    with pytest.raises(TypeError, match=r"decompose takes a list of texts, not one: give \['coffee'\]"):
        explainer.decompose("coffee")
    with pytest.raises(TypeError, match=r"pair 1 is not two texts: 'ab'"):
        list(explainer.explain_many([("a", "b"), "ab"]))
    with pytest.raises(TypeError, match=r"model must be a hub id, a folder, .* or a function .*, not int: 7"):
        Explainer(7)
    assert explainer.decompose([]) == []
    assert list(explainer.explain_many([])) == []


def test_what_encode_is_told_is_checked(load):
    explainer = Explainer(load(), layer=2)
    with pytest.raises(TypeError, match="prompt=3 is not a text: give one, or a pair where there are two sides"):
        explainer.explain(*PAIR, prompt=3)
    with pytest.raises(TypeError, match="task=1 is not a text"):
        explainer.explain(*PAIR, task=("query", 1))
    with pytest.raises(TypeError, match=r"task=\('query', 'document'\) is not a text"):
        explainer.decompose([PAIR[0]], task=("query", "document"))
    with pytest.raises(TypeError, match="decompose takes a list of texts, not one: give"):
        explainer.decompose(7)


def test_another_layer_shares_the_model(load):
    explainer = Explainer(load(), layer=2)
    other = explainer.at_layer(0)
    assert other.model is explainer.model
    assert (other.settings.layer, explainer.settings.layer) == (0, 2)
    assert other.explain(*PAIR).layer == 0
    with pytest.raises(ValueError, match="layer 9 is out of range"):
        explainer.at_layer(9)


@pytest.mark.parametrize("kind", ["deberta-v2", "t5-relu"])
def test_threads_leave_the_process_as_it_was(load, kind):
    """Models without an attention of their own need PyTorch's fused one turned off, for the whole process."""
    from threading import Thread

    def flags():
        cuda = torch.backends.cuda
        return (
            torch.backends.mha.get_fastpath_enabled(),
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
        )

    before = flags()
    explainers = [Explainer(load(kind), layer=2, steps=2) for _ in range(4)]
    expected = explainers[0].explain(*PAIR).matrix
    matrices = []

    def work(explainer):
        matrices.extend(explainer.explain(*PAIR).matrix for _ in range(4))

    threads = [Thread(target=work, args=(explainer,)) for explainer in explainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(matrices) == 16
    for matrix in matrices:
        np.testing.assert_allclose(matrix, expected, atol=1e-5)
    assert flags() == before

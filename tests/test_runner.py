"""Requests run once, in batches, with progress, and a warning where one misses."""

from __future__ import annotations

import numpy as np
import pytest

from whymatch import Explainer, ToleranceWarning
from whymatch.runner import PAIRS_TOGETHER
from whymatch.schedule import TEXTS_TOGETHER

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def test_many_is_one_by_one_in_order(load):
    explainer = Explainer(load(), layer=1)
    pairs = [(f"{PAIR[i % 2]} number {i % 7}", PAIR[(i + 1) % 2][: 5 + i % 30]) for i in range(PAIRS_TOGETHER + 9)]
    together = list(explainer.explain_many(iter(pairs)))
    assert [(why.text_a, why.text_b) for why in together] == pairs
    for pair, why in list(zip(pairs, together, strict=True))[:: len(pairs) // 12]:
        alone = explainer.explain(*pair)
        assert why.score == pytest.approx(alone.score, abs=1e-6)
        assert abs(why.matrix - alone.matrix).max() < 2e-3  # a text may be decomposed in one and projected in the other
        assert why.relative_error <= 1e-3


def test_batches_of_decompositions_are_one_by_one(load):
    explainer = Explainer(load(), layer=1)
    texts = [f"{PAIR[i % 2]} {'coffee ' * (i % 3)}{i % 5}" for i in range(TEXTS_TOGETHER + 5)]
    together = explainer.decompose(texts)
    assert [dec.text for dec in together] == texts
    for dec in together[::6]:
        (alone,) = explainer.decompose([dec.text])
        np.testing.assert_allclose(dec.embedding, alone.embedding, atol=1e-6)
        assert abs(dec.nodes - alone.nodes) <= 1
        np.testing.assert_allclose(dec.contributions, alone.contributions, atol=1e-3)


def test_a_text_is_decomposed_once_however_many_pairs_share_it(load, decomposed):
    query = "The coffee is bad and nobody drank it in the kitchen"
    pairs = [(query, f"bread {i}") for i in range(2 * PAIRS_TOGETHER)]
    results = list(Explainer(load(), layer=2).explain_many(pairs))
    assert len(results) == len(pairs)
    assert decomposed.count(query) == 1
    assert len(decomposed) == len(set(decomposed))


def test_a_short_query_never_decomposes_a_long_document(load):
    model = load()
    explainer = Explainer(model, layer=1)
    why = explainer.explain("bad coffee", "nobody drank it " * 8)
    assert why.modes == ("forward", "pairwise")
    paired = explainer.pair(*explainer.decompose(["bad coffee", "nobody drank it " * 8]))
    assert paired.modes == ("forward", "reverse")  # more tokens than the 16 dimensions
    np.testing.assert_allclose(why.matrix, paired.matrix, atol=2e-3)


def test_a_tolerance_out_of_reach_is_one_warning_and_the_true_error(load, monkeypatch):
    from whymatch import quadrature

    monkeypatch.setitem(quadrature.RULES, "gauss", quadrature.Rule("gauss", quadrature.RULES["gauss"].order, 2))
    explainer = Explainer(load(), path="relay", tolerance=1e-5)
    with pytest.warns(
        ToleranceWarning, match=r"1 of 1 pairs miss tolerance=1e-05, .* at the bound of 2 nodes"
    ) as caught:
        why = explainer.explain(*PAIR)
    assert sum(each.category is ToleranceWarning for each in caught) == 1  # PyTorch may have some of its own
    assert why.error > 1e-5
    assert why.error == pytest.approx(abs(why.score - why.matrix.sum()))
    with pytest.warns(ToleranceWarning, match=r"2 of 2 texts miss") as caught:
        explainer.decompose(list(PAIR))
    assert len(caught) == 1


def test_one_copy_of_the_weights_however_many_lengths(load, monkeypatch):
    """In another precision a cut holds weights of its own, as large as the model."""
    from whymatch.encoders.cut import Cut

    cuts = []
    original = Cut.__init__
    monkeypatch.setattr(Cut, "__init__", lambda self, *args: (cuts.append(1), original(self, *args))[1])
    texts = ["coffee " * n for n in range(1, 9)]
    Explainer(load(), layer=2, tolerance=1e-5).decompose(texts)
    assert len(cuts) == 1


def test_progress_is_shown_on_request(load, capsys):
    explainer = Explainer(load(), layer=2)
    assert len(list(explainer.explain_many([PAIR], progress=True))) == 1
    assert len(explainer.decompose(list(PAIR), progress=True)) == 2
    output = capsys.readouterr()
    assert "pairs" in output.err
    assert output.out == ""


def test_progress_is_one_for_the_whole_of_a_call_and_stops_even_the_probe(load):
    from whymatch import progress

    explainer, seen = Explainer(load(), layer=0, path="relay", divisions=0), []
    with progress.watching(lambda done, doing: seen.append((done, doing))):
        explainer.explain(*PAIR)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {doing for _, doing in seen} >= {"looking along the path", "differentiating"}
    assert 0.5 < seen[-1][0] <= 1

    class Stop(Exception):  # noqa: N818 it stops the work, and is no error
        pass

    def stop(_, doing):
        if doing == "looking along the path":
            raise Stop

    with progress.watching(stop), pytest.raises(Stop):
        explainer.explain(*PAIR)

from __future__ import annotations

import numpy as np
import pytest

from test_explanation import explanation
from whymatch.results.alignment import link, together

MATRIX = np.array([[0.5, 0.1, 0.0], [0.4, 0.3, 0.0], [0.0, -0.6, 0.02], [0.0, 0.0, 0.2]])


def known(**changes):
    return explanation(
        **{
            "matrix": MATRIX,
            "score": float(MATRIX.sum()),
            "effects_b": np.zeros(3),
            "tokens_b": ("x", "y", "[SEP]"),
            "offsets_b": ((0, 1), (2, 3), (0, 0)),
            "kinds_b": ("text", "text", "special"),
        }
        | changes
    )


def links(why, kind):
    return {(link.i, link.j) for link in why.align(kind).links}


def test_mutual_links_are_each_others_strongest():
    assert links(known(), "mutual") == {(0, 0), (1, 1)}  # the second row adds more with the first column, as all do
    assert known().align().share == pytest.approx(0.8 / MATRIX.sum())


def test_a_word_that_adds_much_with_every_other_is_nobodys_special_partner():
    # The first column is strongest in every row: by itself it would be linked with the first row alone.
    part = np.array([[0.9, 0.7, 0.1], [0.8, 0.1, 0.1], [0.7, 0.1, 0.5]])
    assert set(zip(*np.nonzero(link(part, "mutual")), strict=True)) == {(0, 1), (1, 0), (2, 2)}
    np.testing.assert_allclose(together(part).sum(0), 0, atol=1e-12)
    np.testing.assert_allclose(together(part).sum(1), 0, atol=1e-12)


@pytest.mark.parametrize("kind", ["mutual", "assignment"])
def test_a_text_of_one_word_is_linked_with_its_strongest_partner(kind):
    assert link(np.array([[0.1, 0.4, 0.2]]), kind).tolist() == [[False, True, False]]
    assert link(np.array([[0.3]]), kind).tolist() == [[True]]


def test_rows_that_differ_in_size_alone_are_linked_by_their_entries():
    assert link(np.array([[0.5, 0.4], [0.4, 0.3]]), "mutual").tolist() == [[True, False], [False, False]]
    assert link(np.array([[0.5, 0.4], [0.4, 0.3]]), "assignment").sum() == 2


def test_links_do_not_depend_on_the_order_of_words():
    rng = np.random.default_rng(0)
    for _ in range(50):
        part, order = rng.normal(size=(5, 6)), rng.permutation(6)
        for kind in ("mutual", "assignment"):
            np.testing.assert_array_equal(link(part[:, order], kind), link(part, kind)[:, order])
            assert not (link(part, kind) & (together(part) <= 0)).any()


def test_an_assignment_uses_each_once():
    assert links(known(), "assignment") == {(0, 0), (1, 1)}


def test_a_flow_gives_everything_away():
    assert links(known(), "flow") >= {(0, 0), (1, 1), (1, 0)}


@pytest.mark.parametrize("kind", ["mutual", "assignment", "flow"])
def test_special_tokens_and_negative_pairs_have_no_links(kind):
    why = known()
    assert all(j != 2 and MATRIX[i, j] > 0 for i, j in links(why, kind))
    nothing = known(matrix=-np.abs(MATRIX))
    assert nothing.align(kind).links == ()
    assert nothing.align(kind).share == 0
    only = known(kinds_b=("special",) * 3)
    assert only.align(kind).links == ()


def test_links_come_strongest_first_and_say_what_they_are():
    alignment = known().align("assignment")
    assert [link.value for link in alignment.links] == [0.5, 0.3]
    assert repr(alignment) == "Alignment(assignment, 87% of the score: un–x, ##believ–y)"


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="kind='best' is not known; choose 'mutual', 'assignment', 'flow'"):
        known().align("best")


@pytest.mark.parametrize("kind", ["mutual", "assignment", "flow"])
def test_the_links_of_a_real_pair(minilm, kind):
    from whymatch import Explainer

    why = Explainer(minilm, layer=4).explain("The coffee is not good.", "This is bad coffee.").words()
    alignment = why.align(kind)
    assert ("coffee", "coffee") in {(link.token_a, link.token_b) for link in alignment.links}
    assert 0.4 < alignment.share < 1.2

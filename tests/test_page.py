"""The page: it stands alone, escapes what is in it, and holds what its script needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conftest import large_explanation
from test_explanation import explanation
from whymatch.views.page import page as render
from whymatch.views.page import payload

HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_the_page_stands_alone_and_escapes():
    why = explanation(text_a=HOSTILE, tokens_a=(HOSTILE, "b", "c", "d"))
    page = why.to_html()
    assert HOSTILE not in page
    assert "<img" not in page
    assert page.count("</script>") == 2
    bare = page.replace("http://www.w3.org/2000/svg", "").replace(
        "src=x", ""
    )  # a name, not an address; the text itself
    for outside in ("http://", "https://", "src=", "@import", "url(", "innerHTML", "insertAdjacentHTML"):
        assert outside not in bare
    assert '"score": 0.75' in page


def test_a_page_holds_many():
    page = render([explanation(), explanation(score=0.5)])
    assert page.count('"format": "whymatch.explanation"') == 2
    with pytest.raises(ValueError, match="at least one"):
        render([])


def test_a_notebook_can_show_any_number():
    """In a frame of its own each time: no names or styles to collide, and nothing around it within reach."""
    frame = explanation(text_a=HOSTILE, tokens_a=(HOSTILE, "b", "c", "d"))._repr_html_()
    assert frame.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    assert "<script" not in frame
    assert HOSTILE not in frame


def test_the_page_has_words_beside_tokens_and_links_of_both():
    data = payload(explanation())
    assert data["view"]["words"][0] == {"groups": [[0, 1, 2], [3]], "labels": ("unbelievable", "coffee")}
    assert set(data["view"]["links"]) == {"tokens", "words"}
    means = payload(explanation().words("mean"))
    assert means["view"]["words"] is None


def test_the_page_is_small():
    assert len(large_explanation(40, 40).to_html().encode()) < 200_000


def test_the_page_says_what_sums_to_the_score():
    paper = replace(explanation(), settings=replace(explanation().settings, fold_reference=False))
    assert '"account": "the cells and the reference terms sum to the score"' in paper.to_html()

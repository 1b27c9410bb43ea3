from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from test_explanation import explanation
from whymatch.views.colours import ink, shade
from whymatch.views.page import page as views_page
from whymatch.views.page import payload
from whymatch.views.terminal import clean, report

HOSTILE = "</script><img src=x onerror=alert(1)>"


def printed(why, width=80, top=5, **options) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    console.print(report(why, top, console.width))
    return console.file.getvalue()


def big(rows=60, columns=60):
    names_a, names_b = (tuple(f"token{i}" for i in range(n)) for n in (rows, columns))
    return explanation(
        matrix=np.random.default_rng(0).standard_normal((rows, columns)),
        effects_a=np.zeros(rows),
        effects_b=np.zeros(columns),
        tokens_a=names_a,
        tokens_b=names_b,
        offsets_a=((0, 0),) * rows,
        offsets_b=((0, 0),) * columns,
        kinds_a=("text",) * rows,
        kinds_b=("text",) * columns,
    )


def test_colours_are_signed_and_centred_on_white():
    assert shade(0, 1) == shade(5, 0) == (255, 255, 255)
    red, _, blue = shade(1, 1)
    assert red > blue
    red, _, blue = shade(-1, 1)
    assert blue > red
    assert ink((255, 255, 255)) == "black"
    assert ink(shade(-1, 1)) == "white"


def test_the_terminal_shows_score_error_pairs_and_matrix():
    out = printed(explanation())
    assert "score 0.7500" in out
    assert "error 0.0e+00" in out
    assert "+0.5000" in out
    assert "##believ" in out
    assert "The second text is longer than the model reads" in out
    assert "-0.200" in out


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_matrix_fits_the_terminal(width):
    out = printed(big(), width=width)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= width
    assert "of 60 rows" in out


def test_wide_characters_and_large_values_fit_too():
    why = explanation(matrix=np.array([[123.4, -12.0]] * 4), tokens_b=("名前", "字"))
    assert max(cell_len(line.rstrip()) for line in printed(why, width=40).splitlines()) <= 40
    rows = printed(why, width=40).splitlines()[-4:]
    assert len({cell_len(row.rstrip()) for row in rows}) == 1


def test_colour_can_be_switched_off():
    assert "\x1b[" in printed(explanation(), force_terminal=True, color_system="truecolor")
    assert "\x1b[" not in printed(explanation())


def test_reference_terms_are_part_of_the_account():
    why = explanation(effects_a=np.full(4, 0.1), constant=-0.4)
    out = printed(replace(why, settings=replace(why.settings, fold_reference=False)))
    assert "reference a +0.0000  b +0.4000  both -0.4000" in out
    paper = replace(why, settings=replace(why.settings, fold_reference=False))
    assert "the cells and the reference terms sum to the score" in paper.plot()[1].get_title()
    assert '"account": "the cells and the reference terms sum to the score"' in paper.to_html()


def test_values_in_cells_keep_their_digits():
    _, axes = explanation(matrix=np.array([[10.5, 0.5], [-0.5, 100.25], [0, 0], [0, 0]])).plot()
    assert {text.get_text() for text in axes.texts} == {"10.50", "100.25"}


def test_means_say_so():
    assert "do not sum to the score" in printed(explanation().words("mean"))


def test_a_token_cannot_move_the_cursor():
    assert clean("a\x1b[31m\nb") == "a�[31m�b"
    assert clean("internationalization", 8) == "interna…"
    assert "\x1b" not in printed(explanation(tokens_b=("\x1b[2J", "[bold]x")))
    assert "[bold]x" in printed(explanation(tokens_b=("a", "[bold]x")))


@pytest.mark.parametrize("why", [explanation(), big(), explanation(tokens_a=("$x^2$", "a_b", "\\frac", "名"))])
def test_the_heat_map_is_drawn(why, tmp_path):
    figure, axes = why.plot()
    assert [label.get_text().replace("\\$", "$") for label in axes.get_yticklabels()] == list(why.tokens_a)
    assert f"{why.score:.4f}" in axes.get_title()
    low, high = axes.images[0].get_clim()
    assert low == -high
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without this character is not this test's matter
        figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


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
    page = views_page([explanation(), explanation(score=0.5)], names=["first", "second"])
    assert page.count('"format": "whymatch.explanation"') == 2
    assert '"heading": "second"' in page
    with pytest.raises(ValueError, match="at least one"):
        views_page([])


def test_a_notebook_can_show_any_number():
    """In a frame of its own each time: no names or styles to collide, and nothing around it within reach."""
    shown = explanation(text_a=HOSTILE, tokens_a=(HOSTILE, "b", "c", "d"))._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in shown
    assert "<script" not in shown
    assert HOSTILE not in shown


def test_the_page_has_words_beside_tokens_and_links_of_both():
    data = payload(explanation())
    assert data["view"]["words"][0] == {"groups": [[0, 1, 2], [3]], "labels": ("unbelievable", "coffee")}
    assert set(data["view"]["links"]) == {"tokens", "words"}
    means = payload(explanation().words("mean"))
    assert means["view"]["words"] is None


@pytest.mark.parametrize(
    "why", [explanation(), big(5, 5), big(60, 60), explanation(tokens_a=("$x^2$", "a_b", "\\frac", "c"))]
)
def test_links_are_drawn_without_collisions(why, tmp_path):
    figure, axes = why.plot("links")
    figure.savefig(tmp_path / "links.png")
    renderer = figure.canvas.get_renderer()
    for y in (1.0, 0.0):
        line = sorted(
            (t.get_window_extent(renderer) for t in axes.texts if t.get_position()[1] == y), key=lambda b: b.x0
        )
        assert all(one.x1 <= other.x0 for one, other in pairwise(line))
    assert f"{why.score:.4f}" in axes.get_title()
    assert "error" in axes.get_title()
    assert axes.patches
    with pytest.raises(ValueError, match="kind='pie' is not known; choose 'heatmap', 'links'"):
        why.plot("pie")


@pytest.mark.parametrize("size", [5, 60])
def test_labels_of_the_heat_map_do_not_collide(size, tmp_path):
    figure, axes = big(size, size).plot()
    figure.savefig(tmp_path / "map.png")
    renderer = figure.canvas.get_renderer()
    for labels, low, high in ((axes.get_xticklabels(), "x0", "x1"), (axes.get_yticklabels(), "y0", "y1")):
        boxes = sorted((label.get_window_extent(renderer) for label in labels), key=lambda box: getattr(box, low))
        if labels[0].get_rotation() in (0, 90):
            assert all(getattr(one, high) <= getattr(other, low) + 1 for one, other in pairwise(boxes))


def test_texts_are_shown_and_words_where_tokens_do_not_fit():
    assert "unbelievable" not in printed(explanation(), width=80)
    why = big(3, 30)
    tokens = tuple(f"##{i}" if i % 2 else f"w{i}" for i in range(30))
    spans = tuple((3 * (i // 2) + i % 2, 3 * (i // 2) + 1 + i % 2) for i in range(30))
    out = printed(replace(why, text_b="ab " * 15, tokens_b=tokens, offsets_b=spans), width=120)
    assert "by words:" in out


def test_the_page_is_small():
    assert len(big(40, 40).to_html().encode()) < 200_000

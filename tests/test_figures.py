"""Figures: what they show, that labels do not collide, and what to do where matplotlib is missing."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from conftest import large_explanation
from test_explanation import explanation
from whymatch.results.contrast import Contrast
from whymatch.results.highlights import Highlight, Highlights
from whymatch.views.colours import ink, shade
from whymatch.views.figures import layer_sweep


def test_colours_are_signed_and_centred_on_white():
    assert shade(0, 1) == shade(5, 0) == (255, 255, 255)
    red, _, blue = shade(1, 1)
    assert red > blue
    red, _, blue = shade(-1, 1)
    assert blue > red
    assert ink((255, 255, 255)) == "black"
    assert ink(shade(-1, 1)) == "white"


def test_values_in_cells_keep_their_digits():
    _, axes = explanation(matrix=np.array([[10.5, 0.5], [-0.5, 100.25], [0, 0], [0, 0]])).plot()
    assert {text.get_text() for text in axes.texts} == {"10.50", "100.25"}


@pytest.mark.parametrize(
    "why", [explanation(), large_explanation(), explanation(tokens_a=("$x^2$", "a_b", "\\frac", "名"))]
)
def test_the_heat_map_is_drawn(why, tmp_path):
    figure, axes = why.plot(top=60)
    assert [label.get_text().replace("\\$", "$") for label in axes.get_yticklabels()] == list(why.tokens_a)
    assert f"{why.score:.4f}" in axes.get_title()
    low, high = axes.images[0].get_clim()
    assert low == -high
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without this character is not this test's matter
        figure.savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "why",
    [
        explanation(),
        large_explanation(5, 5),
        large_explanation(60, 60),
        explanation(tokens_a=("$x^2$", "a_b", "\\frac", "c")),
    ],
)
def test_links_are_drawn_without_collisions(why, tmp_path):
    figure, axes = why.plot("links")
    figure.savefig(tmp_path / "links.png")
    renderer = figure.canvas.get_renderer()
    for y in (1.0, 0.0):
        line = sorted(
            (t.get_window_extent(renderer) for t in axes.texts if t.get_position()[1] == y), key=lambda b: b.x0
        )
        assert all(left.x1 <= right.x0 for left, right in pairwise(line))
    assert f"{why.score:.4f}" in axes.get_title()
    assert "error" in axes.get_title()
    assert axes.patches
    with pytest.raises(ValueError, match="kind='pie' is not known; choose 'heatmap', 'links'"):
        why.plot("pie")


@pytest.mark.parametrize("size", [5, 60])
def test_labels_of_the_heat_map_do_not_collide(size, tmp_path):
    figure, axes = large_explanation(size, size).plot(top=60)
    figure.savefig(tmp_path / "map.png")
    renderer = figure.canvas.get_renderer()
    for labels, low, high in ((axes.get_xticklabels(), "x0", "x1"), (axes.get_yticklabels(), "y0", "y1")):
        boxes = sorted((label.get_window_extent(renderer) for label in labels), key=lambda box: getattr(box, low))
        if labels[0].get_rotation() in (0, 90):
            assert all(getattr(first, high) <= getattr(second, low) + 1 for first, second in pairwise(boxes))


def test_the_title_says_what_sums_to_the_score():
    why = explanation(effects_a=np.full(4, 0.1), constant=-0.4)
    paper = replace(why, settings=replace(why.settings, fold_reference=False))
    assert "the cells and the reference terms sum to the score" in paper.plot()[1].get_title()


def test_small_values_keep_digits_that_say_something():
    _, axes = explanation(matrix=np.array([[0.0104, 0.0], [-0.0052, 0.0], [0, 0], [0, 0]])).plot()
    assert {text.get_text() for text in axes.texts} == {".010", "−.005"}


def test_only_the_strongest_rows_are_drawn():
    why = large_explanation(30, 30)
    figure, axes = why.plot(top=5)
    order = np.argsort(-np.abs(why.matrix).sum(1))[:5]
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"token{i}" for i in sorted(order)]
    assert "the strongest 5 of 30 rows" in axes.get_title()
    assert max(figure.get_size_inches()) < 8


def test_links_of_a_long_text_are_those_of_the_whole():
    """What is not drawn still counts: in the error of the title, and in the tints of the tokens that are."""
    why = large_explanation(30, 30)
    _, axes = why.plot("links", top=5)
    assert f"error {why.error:.0e}" in axes.get_title()
    assert "the strongest 5 of 30 rows and 5 of 30 columns" in axes.get_title()
    assert len(axes.texts) == 10
    totals = why.matrix.sum(1)
    rows = np.argsort(-np.abs(why.matrix).sum(1))[:5]
    largest = max(
        np.abs(totals[rows]).max(), np.abs(why.matrix.sum(0)[np.argsort(-np.abs(why.matrix).sum(0))[:5]]).max()
    )
    tints = {text.get_text(): text.get_bbox_patch().get_facecolor()[:3] for text in axes.texts[:5]}
    for row in rows:
        assert tints[f"token{row}"] == pytest.approx(np.array(shade(totals[row], largest)) / 255)
    assert max(large_explanation(200, 60).plot("links")[0].get_size_inches()) < 30


@pytest.mark.parametrize("kind", ["heatmap", "links"])
def test_a_passage_of_200_words_has_a_figure_of_a_sensible_size(kind):
    why = large_explanation(12, 200)
    figure, axes = why.plot(kind)
    assert max(figure.get_size_inches()) < 14
    assert "the strongest 12 of 12" in axes.get_title()
    assert "of 200" in axes.get_title()
    assert f"error {why.error:.0e}" in axes.get_title(), "what is not drawn is no error"
    assert figure.get_size_inches()[0] < why.plot(kind, top=100)[0].get_size_inches()[0]


def test_long_titles_of_documents_fit_into_the_figure(tmp_path):
    title = "1. How do I return something that I bought in another country?"
    contrast = replace(a_contrast(), query="how long does it take " * 9, name_a=title, name_b=title)
    figure, axes = contrast.plot()
    figure.savefig(tmp_path / "contrast.png")
    renderer = figure.canvas.get_renderer()
    for text in (axes.title, axes.xaxis.label):
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


def a_contrast():
    return Contrast.of(explanation(), explanation(matrix=explanation().matrix * 0.4, score=0.3), "good $1", "bad")


def test_a_contrast_is_bars_that_sum_to_the_difference(tmp_path):
    contrast = a_contrast()
    figure, axes = contrast.plot()
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([share.value for share in contrast.by_query_word])
    assert sum(widths) == pytest.approx(contrast.difference)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["unbelievable", "coffee"]
    assert "+0.4500, the sum of the bars" in axes.get_title()
    figure.savefig(tmp_path / "contrast.png")
    _, few = contrast.plot(top=1)
    assert sum(bar.get_width() for bar in few.patches) == pytest.approx(contrast.difference)
    assert [label.get_text() for label in few.get_yticklabels()] == ["coffee", "the other 1"]
    with pytest.raises(ValueError, match="top=0"):
        contrast.plot(top=0)


def test_a_passage_is_drawn_as_it_is_written(tmp_path):
    text = "Bad  coffee costs $2,\nand nobody drank it. Not read"
    spans = [Highlight(*match.span(), 0.1 - 0.05 * i, match[0]) for i, match in enumerate(re.finditer(r"[\w$]+", text))]
    highlights = Highlights(
        text, tuple(spans[:-2]), sum(span.score for span in spans[:-2]), "words", text.index(" Not")
    )
    figure, axes = highlights.plot()
    figure.savefig(tmp_path / "passage.png")
    drawn = [each for each in axes.texts if each.get_text().strip()]
    assert [each.get_text().replace("\\$", "$") for each in drawn] == re.findall(r"[\w$]+|[,.]", text)
    lines = sorted({each.get_position()[1] for each in drawn})
    assert len(lines) == 2, "as in the text"
    renderer = figure.canvas.get_renderer()
    for y in lines:
        boxes = [each.get_window_extent(renderer) for each in drawn if each.get_position()[1] == y]
        assert all(left.x1 <= right.x0 + 1 for left, right in pairwise(boxes))
    assert len(axes.patches) == len(spans) - 2
    assert len(axes.lines) == 2, "what was not read is crossed out"


def test_no_line_of_a_passage_begins_with_a_comma():
    text = ", ".join(["coffee"] * 120) + "."
    spans = [Highlight(*match.span(), 0.1, match[0]) for match in re.finditer(r"\w+|[,.]", text)]
    _, axes = Highlights(text, tuple(spans), 24.0, "words", len(text)).plot()
    lines: dict[float, list] = {}
    for each in axes.texts:
        lines.setdefault(each.get_position()[1], []).append(each)
    assert len(lines) > 5
    for line in lines.values():
        assert min(line, key=lambda each: each.get_position()[0]).get_text() == "coffee"


def test_a_sweep_has_lines_that_sum_to_the_score_at_every_layer():
    def at(layer: int, share: float):
        why = explanation()
        matrix = why.matrix * share
        matrix[0, 0] += why.score - matrix.sum()
        return replace(why, matrix=matrix, settings=replace(why.settings, layer=layer))

    _, axes = layer_sweep([at(2, 0.2), at(0, 1.0), at(1, 0.5)], top=2)
    lines = [line for line in axes.lines if line.get_label()[0] != "_"]
    assert [line.get_label() for line in lines] == ["unbelievable – Coffee", "coffee – !", "all other pairs"]
    assert list(lines[0].get_xdata()) == [0, 1, 2]
    assert np.sum([line.get_ydata() for line in lines], axis=0) == pytest.approx([0.75] * 3)
    assert len({line.get_marker() for line in lines}) == 3, "told apart without colour"
    with pytest.raises(ValueError, match="two layers or more"):
        layer_sweep([at(0, 1.0)])
    with pytest.raises(ValueError, match="one explanation for each layer"):
        layer_sweep([at(0, 1.0), at(0, 0.5)])
    with pytest.raises(ValueError, match="one pair and one model"):
        layer_sweep([at(0, 1.0), large_explanation()])


def test_every_figure_is_drawn_where_it_is_asked_for():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 12))
    highlights = explanation().highlights("a")
    sweep = [explanation(), replace(explanation(), settings=replace(explanation().settings, layer=3))]
    draw = [explanation().plot, a_contrast().plot, highlights.plot, lambda ax: layer_sweep(sweep, ax)]
    for function, ax in zip(draw, figure.subplots(2, 2).flat, strict=True):
        assert function(ax=ax) == (figure, ax)


@pytest.mark.parametrize("kind", ["heatmap", "links"])
def test_without_matplotlib_the_extra_is_named(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"^figures need matplotlib: pip install 'whymatch\[plot\]'$"):
        explanation().plot(kind)

"""The terminal's view: it fits, it is safe to print, and it says what there is to say."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from conftest import large_explanation
from test_explanation import explanation
from whymatch.results.highlights import Highlight, Highlights
from whymatch.views.printable import printable
from whymatch.views.terminal import Report, fit, highlights


def printed(why, width=80, top=5, **options) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    console.print(Report(why, top))
    return console.file.getvalue()


def test_the_terminal_shows_score_error_pairs_and_matrix():
    out = printed(explanation())
    assert "score 0.7500" in out
    assert "error 0e+00, entries within ±3e-04" in out
    assert "+0.5000" in out
    assert "##believ" in out
    assert "The second text is longer than the model reads" in out
    assert "-0.200" in out


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_matrix_fits_the_terminal(width):
    out = printed(large_explanation(), width=width)
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


def test_what_adds_nothing_has_the_colours_of_the_terminal():
    """Which may be light or dark."""
    spans = (Highlight(0, 4, 0.001, "This"), Highlight(5, 11, 0.5, "coffee"))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor")
    console.print(highlights(Highlights("This coffee", spans, 0.501, "words", 11, query="tea")))
    passage = next(line for line in console.file.getvalue().splitlines() if line.startswith("This "))
    assert passage.count("48;2;") == 1


def test_means_say_so():
    assert "do not sum to the score" in printed(explanation().words("mean"))


def test_texts_are_shown_and_words_where_tokens_do_not_fit():
    assert "unbelievable" not in printed(explanation(), width=80)
    why = large_explanation(3, 30)
    tokens = tuple(f"##{i}" if i % 2 else f"w{i}" for i in range(30))
    spans = tuple((3 * (i // 2) + i % 2, 3 * (i // 2) + 1 + i % 2) for i in range(30))
    side = replace(why.b, text="ab " * 15, tokens=tokens, offsets=spans)
    out = printed(replace(why, b=side), width=120)
    assert "by words:" in out


def test_reference_terms_are_part_of_the_account():
    why = explanation(effects_a=np.full(4, 0.1), constant=-0.4)
    out = printed(replace(why, settings=replace(why.settings, fold_reference=False)))
    assert "reference a +0.0000  b +0.4000  both -0.4000" in out


@pytest.mark.parametrize("text", ["\x1b[2J", "a\x1b]0;owned\x07", "a\nb", "a\rb", "\x9b31m", "\u202egnp", "\ud800"])
def test_nothing_from_a_text_moves_the_cursor(text):
    assert printable(text).isprintable()
    why = explanation(tokens_b=(text, "[bold]x"), text_b=text)
    out = printed(replace(why, settings=replace(why.settings, model=text)))
    assert all(line.isprintable() for line in out.splitlines())
    assert "[bold]x" in out


def test_letters_that_are_joined_or_parted_stay_so():
    assert printable("می‌خواهم 👩‍🚀") == "می‌خواهم 👩‍🚀"


def test_a_long_token_is_cut_to_its_width():
    assert fit("internationalization", 8) == "interna…"
    assert cell_len(fit("名" * 10, 7)) <= 7

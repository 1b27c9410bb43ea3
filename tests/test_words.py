from __future__ import annotations

import pytest

from whymatch.words import check_text, group_spans, group_words, quote, sentence_spans, word_spans


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The coffee isn't good.", ["The", "coffee", "isn't", "good", "."]),
        ("costs 1,299.50 (approx)", ["costs", "1,299.50", "(", "approx", ")"]),
        ("well-known  'quoted' end.", ["well", "-", "known", "'", "quoted", "'", "end", "."]),
        ("我喜欢 coffee", ["我", "喜", "欢", "coffee"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("cafe\u0301 au lait", ["cafe\u0301", "au", "lait"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("nice 👍🏽 one", ["nice", "👍🏽", "one"]),
        ("a\tb\nc", ["a", "b", "c"]),
        ("", []),
        ("   ", []),
    ],
)
def test_words_as_people_see_them(text, words):
    assert [text[low:high] for low, high in word_spans(text)] == words


def test_tokens_are_grouped_by_the_word_they_belong_to():
    text = "unbelievable coffee."
    offsets = [(0, 0), (0, 2), (2, 7), (7, 12), (13, 19), (19, 20), (0, 0)]
    assert group_words(text, offsets) == [[0], [1, 2, 3], [4], [5], [6]]


def test_a_token_that_spans_two_words_joins_them():
    assert group_words("New York is big", [(0, 8), (9, 11), (12, 15)]) == [[0], [1], [2]]
    assert group_words("New York", [(0, 2), (2, 6), (6, 8)]) == [[0, 1, 2]]


def test_tokens_of_one_character_stay_together():
    """Byte-level tokenizers cut one emoji into several tokens, all with the span of the whole."""
    assert group_words("👍 ok", [(0, 1), (0, 1), (0, 1), (1, 4)]) == [[0, 1, 2], [3]]


def test_bad_texts_are_named():
    with pytest.raises(TypeError, match=r"a text must be a str, not int: 42"):
        check_text(42)
    with pytest.raises(TypeError, match=r"not NoneType: None"):
        check_text(None)
    with pytest.raises(ValueError, match=r"lone surrogate \(U\+D800\) at character 3.*'abc\\ud800d'"):
        check_text("abc\ud800d")


def test_long_values_are_shortened_in_messages():
    assert quote("x" * 1000) == repr("x" * 1000)[:60] + "… (1,002 characters)"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One here. Two there! Three?", ["One here.", "Two there!", "Three?"]),
        ('He said "no." Then left', ['He said "no."', "Then left"]),
        ("It costs 1.50 at whymatch.org today. Yes.", ["It costs 1.50 at whymatch.org today.", "Yes."]),
        ("A title\n\nA line\nthat goes on. End", ["A title", "A line\nthat goes on.", "End"]),
        ("我喜欢。你呢？", ["我喜欢。", "你呢？"]),
        ("no mark", ["no mark"]),
        ("  ", []),
        ("", []),
    ],
)
def test_sentences_as_people_see_them(text, sentences):
    assert [text[low:high] for low, high in sentence_spans(text)] == sentences


def test_tokens_in_no_span_stay_with_their_neighbours():
    offsets = [(0, 0), (0, 3), (4, 7), (8, 11), (12, 15), (0, 0)]
    assert group_spans(15, offsets, [(4, 7)], together=True) == [[0], [1], [2], [3, 4], [5]]
    assert group_spans(15, offsets, [(4, 7)]) == [[0], [1], [2], [3], [4], [5]]


def test_a_space_without_width_does_not_break_a_sentence():
    """Tokenizers that trim offsets give a token of spaces a span of no width."""
    offsets = [(0, 0), (0, 3), (4, 4), (5, 8), (0, 0)]
    assert group_spans(8, offsets, [(0, 8)], together=True) == [[0], [1, 2, 3], [4]]

"""Inputs are read as the model itself reads them: every row of the hidden states has its label and its place."""

from __future__ import annotations

from typing import ClassVar

import pytest

from whymatch.encoders.encoder import Encoder
from whymatch.reading.inputs import EncodeOptions, read_texts


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
def test_ids_labels_and_offsets_come_from_one_call(load, kind):
    model = load(kind)
    text = "The coffee isn't good, 😀 e\u0301 nobody drank it."
    (read,) = Encoder(model, "tiny").read([text], EncodeOptions())
    assert list(read.features["input_ids"]) == model.tokenizer(text)["input_ids"]
    assert len(read) == len(read.tokens) == len(read.offsets) == len(read.features["input_ids"])
    assert read.kinds == ("special", *["text"] * (len(read) - 2), "special")
    assert read.offsets[0] == read.offsets[-1] == (0, 0)
    where = read.tokens.index("coffee")
    low, high = read.offsets[where]
    assert text[low:high].strip() == "coffee"
    assert not read.truncated


def test_a_truncated_text_has_as_many_labels_as_rows(load):
    """Tools that tokenize again by hand show 62 labels for 32 rows."""
    model = load()
    (read,) = Encoder(model, "tiny").read(["coffee " * 200], EncodeOptions())
    assert read.truncated
    assert len(read) == len(read.tokens) == len(read.offsets) == model.max_seq_length == 40
    assert read.kinds[-1] == "special"


def test_a_typed_special_token_is_content(load):
    (read,) = Encoder(load(), "tiny").read(["[SEP] coffee"], EncodeOptions())
    assert read.tokens[:2] == ("[CLS]", "[SEP]")
    assert read.kinds[:2] == ("special", "text")
    assert read.offsets[1] == (0, 5)


def test_a_slow_tokenizer_is_refused():
    class Slow(list):
        prompts: ClassVar[dict[str, str]] = {}
        default_prompt_name = None

        def modules(self):
            return []

        def preprocess(self, *_, **__):
            return {"input_ids": [[1, 2]]}

    with pytest.raises(TypeError, match="a fast tokenizer can be explained"):
        read_texts(Slow([object()]), ["a"], EncodeOptions())

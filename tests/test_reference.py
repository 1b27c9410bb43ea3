from __future__ import annotations

import pytest

from whymatch.reference import check_reference, reference_ids
from whymatch.text import tokenize


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("name", ["pad", "unk", "mask"])
def test_the_reference_keeps_the_template_and_the_length(load, kind, name):
    """Ids 0, 1 and 2 are hard-coded elsewhere, and RoBERTa's <s>, whose id is 0, is taken for missing."""
    model = load(kind)
    token = check_reference(model.tokenizer, name)
    assert token == getattr(model.tokenizer, f"{name}_token_id")
    (text,) = tokenize(model, ["The coffee is bad."])
    ids = reference_ids(text, token)
    assert ids == (text.ids[0], *[token] * (len(text) - 2), text.ids[-1])
    assert ids[0] == model.tokenizer.cls_token_id


def test_a_typed_special_token_is_replaced(load):
    model = load()
    (text,) = tokenize(model, ["[SEP] bad"])
    assert model.tokenizer.sep_token_id not in reference_ids(text, 0)[:-1]


def test_an_unknown_reference_names_the_known_ones(load):
    with pytest.raises(ValueError, match=r"reference='zero' is not known; choose one of 'pad', 'unk', 'mask'"):
        check_reference(load().tokenizer, "zero")


def test_a_missing_token_names_what_there_is():
    class Bare:
        pad_token_id = None
        unk_token_id = 0
        mask_token_id = None

    with pytest.raises(ValueError, match="this tokenizer has no pad token; it has unk"):
        check_reference(Bare(), "pad")

from __future__ import annotations

import numpy as np
import pytest
import torch

from whymatch import Explainer
from whymatch.encoders.encoder import Encoder
from whymatch.reading.inputs import EncodeOptions
from whymatch.reading.reference import check_reference, content_ids, reference_features

PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")


def ids_of(model, text, reference):
    (given,) = Encoder(model, "tiny").read([text], EncodeOptions())
    return given.features["input_ids"], reference_features(content_ids(model.tokenizer, reference), given)["input_ids"]


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("name", ["pad", "unk", "mask"])
def test_the_reference_keeps_the_template_and_the_length(load, kind, name):
    """Ids 0, 1 and 2 are hard-coded elsewhere, and RoBERTa's <s>, whose id is 0, is taken for missing."""
    model = load(kind)
    token = getattr(model.tokenizer, f"{name}_token_id")
    own, replaced = ids_of(model, "The coffee is bad.", name)
    assert replaced == [own[0], *[token] * (len(own) - 2), own[-1]]
    assert replaced[0] == model.tokenizer.cls_token_id


def test_a_text_is_repeated_as_often_as_needed(load):
    model = load()
    own, replaced = ids_of(model, "The coffee is not good.", "nobody is")
    content = model.tokenizer("nobody is", add_special_tokens=False)["input_ids"]
    assert replaced == [own[0], *(content * 10)[: len(own) - 2], own[-1]]


def test_a_typed_special_token_is_replaced(load):
    model = load()
    assert model.tokenizer.sep_token_id not in ids_of(model, "[SEP] bad", "pad")[1][:-1]


@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize("reference", ["pad", "unk", "mask", "nobody drank", lambda x: x.mean(0).expand_as(x)])
def test_each_is_exact(load, reference, layer):
    for fold in (True, False):
        why = Explainer(load(), layer=layer, reference=reference, tolerance=1e-6, fold_reference=fold).explain(*PAIR)
        assert why.error <= 1e-5
        assert (why.constant == 0) == fold
    assert why.reference == (reference if isinstance(reference, str) else "<lambda>")


def test_a_function_is_handed_the_representation(load):
    seen = []

    def halved(x):
        seen.append(tuple(x.shape))
        return x / 2

    why = Explainer(load(), layer=1, reference=halved).explain(*PAIR)
    assert seen == [(len(why.tokens_a), 16), (len(why.tokens_b), 16)]
    assert why.reference == "halved"
    with pytest.raises(ValueError, match=r"reference=<lambda> gives \(16,\); it is handed .* \(8, 16\)"):
        Explainer(load(), layer=1, reference=lambda x: x[0]).explain(*PAIR)


def test_a_path_that_cannot_be_integrated_is_refused(load):
    """RMSNorm of the zero vector is zero, and of any other, however short, is not."""
    with pytest.raises(
        ArithmeticError, match=r"reference 'zeros_like' at layer 0 cannot be integrated: .*LayerNorm of zero"
    ):
        Explainer(load("llama"), layer=0, reference=torch.zeros_like).explain(*PAIR)
    with pytest.raises(ArithmeticError, match="cannot be integrated: the encoder is not finite there"):
        Explainer(load(), reference=lambda x: x * float("inf")).explain(*PAIR)


def test_unusable_references_are_named(load):
    with pytest.raises(ValueError, match="reference=' ' is an empty text"):
        check_reference(" ")
    with pytest.raises(TypeError, match="reference=3 is not known; give 'pad', 'unk', 'mask', a text or a function"):
        Explainer(load(), reference=3)


def test_a_missing_token_names_what_there_is(load):
    class Bare:
        pad_token_id = None
        unk_token_id = 0
        mask_token_id = None

    with pytest.raises(ValueError, match="this tokenizer has no pad token; it has 'unk'"):
        content_ids(Bare(), "pad")
    with pytest.raises(ValueError, match="reference='mask': this tokenizer has no mask token; it has 'pad'"):
        Explainer(load("qwen3"), reference="mask")


def test_the_reference_changes_the_matrix_and_not_the_score(load):
    model = load()
    pad, mask = (Explainer(model, reference=name).explain(*PAIR) for name in ("pad", "mask"))
    assert pad.score == mask.score
    assert np.abs(pad.matrix - mask.matrix).max() > 1e-3

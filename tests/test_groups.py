"""Groups of tokens as the unit of derivation, and long texts."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import zoo

from whymatch import Explainer

TEXT = "The coffee is not good. Nobody drank it!  Two dogs run across the field."
OTHER = "This is bad coffee."


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("kind", ["bert", "roberta", "llama"])
def test_words_derived_are_words_summed(load, kind, layer):
    """One tangent per word gives what the tokens' tangents give together."""
    model = load(kind)
    tokens = Explainer(model, layer=layer, tolerance=1e-6).explain(TEXT, OTHER).words()
    words = Explainer(model, layer=layer, tolerance=1e-6, groups="words").explain(TEXT, OTHER)
    assert words.tokens_a == tokens.tokens_a
    assert words.offsets_b == tokens.offsets_b
    assert words.units == tokens.units == ("word", "word")
    np.testing.assert_allclose(words.matrix, tokens.matrix, atol=2e-6)
    assert words.error <= 1e-5


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_sentences_are_exact(load, layer, fold):
    explainer = Explainer(load(), layer=layer, tolerance=1e-6, fold_reference=fold, divisions=0)
    tokens = explainer.explain(TEXT, OTHER)
    why = explainer.explain(TEXT, OTHER, groups=("sentences", None))
    assert why.tokens_a[1:-1] == ("The coffee is not good.", "Nobody drank it!", "Two dogs run across the field.")
    assert why.kinds_a == ("special", "group", "group", "group", "special")
    assert why.units == ("sentence", "token")
    assert why.error <= 1e-5
    assert why.relative_error <= 1e-5
    first = [i for i, (_, high) in enumerate(tokens.offsets_a) if 0 < high <= 23]
    np.testing.assert_allclose(why.matrix[1], tokens.matrix[first].sum(0), atol=2e-6)


def test_spans(load):
    explainer = Explainer(load(), layer=1, tolerance=1e-6)
    coffee = TEXT.index("coffee")
    why = explainer.explain(TEXT, OTHER, groups=([(coffee, coffee + 6)], None))
    assert why.tokens_a[1:-1] == ("The", "coffee", TEXT[coffee + 7 :])
    assert why.error <= 1e-5
    (dec,) = explainer.decompose([TEXT], groups=[(0, 23), (24, 40)])
    assert dec.tokens[1:3] == ("The coffee is not good.", "Nobody drank it!")
    assert dec.unit == "span"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("letters", "groups='letters' is not known"),
        ([], "has no spans"),
        ([(3, 2)], "in order, and do not overlap"),
        ([(0, 4), (2, 6)], "in order, and do not overlap"),
        ([(0, 4000)], r"the span \(0, 4000\) is beyond the 72 characters of"),
        (["words"], "is not a list of spans"),
    ],
)
def test_bad_groups_are_named(load, groups, message):
    with pytest.raises(ValueError, match=message):
        Explainer(load(), layer=1).decompose([TEXT], groups=groups)


def test_a_sentence_costs_a_tangent(load, monkeypatch):
    from whymatch.paths.jacobian import IntegratedJacobian

    widths = []
    push = IntegratedJacobian.push
    monkeypatch.setattr(IntegratedJacobian, "push", lambda *args: (widths.append(args[2]), push(*args))[1])
    explainer = Explainer(load(), layer=0, path="relay")
    explainer.decompose([TEXT], groups="sentences")
    assert widths[0] == 3


LONG = """
import resource, sys
from sentence_transformers import SentenceTransformer
from whymatch import Explainer
import torch
torch.set_num_threads(2)
model = SentenceTransformer(sys.argv[1], device="cpu")
explainer = Explainer(model, layer=int(sys.argv[3]), steps=1)  # what is held at once does not depend on them
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
text = (("the coffee is not good and nobody drank it " * int(sys.argv[4])).strip() + ". ") * 40
model.encode(text)
before = peak()
(dec,) = explainer.decompose([text], groups=sys.argv[2] if sys.argv[2] != "tokens" else None)
print(sum(kind == "special" for kind in dec.kinds), len(dec.tokens), peak() - before)
"""


@pytest.mark.parametrize(("length", "groups", "layer"), [(256, "tokens", 2), (1024, "sentences", 2)])
def test_long_texts_stay_within_the_memory_bound(tmp_path, length, groups, layer):
    folder = zoo.build(tmp_path, "modernbert", length=length)
    run = subprocess.run(
        [sys.executable, "-c", LONG, str(folder), groups, str(layer), str(length // 40)],
        capture_output=True,
        text=True,
        check=True,
    )
    special, entries, grown = run.stdout.split()
    assert int(special) == 2
    assert (int(entries) == length) == (groups == "tokens")
    assert float(grown) < (300 if length == 256 else 400)  # MiB

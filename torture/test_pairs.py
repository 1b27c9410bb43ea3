"""Hostile texts: each pair is explained exactly, within its tolerance, or refused with a clear error."""

from __future__ import annotations

import json
import random
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest
from attack import REFUSALS, Tally, describe, is_clear, seeded, trials
from sentence_transformers import SentenceTransformer

from whymatch import Explainer, Explanation, ToleranceWarning

KINDS = ("bert", "roberta", "xlm-roberta", "llama", "t5")  # a tokenizer of each family
TOLERANCE = 1e-3

PIECES = [
    "coffee", "The coffee is not good.", "naïve", "Straße", "ΑΒΓ", "Привет", "你好世界", "こんにちは", "한국어",
    "שלום עולם", "مرحبا بالعالم", "नमस्ते", "ไทย", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏿", "e\u0301\u0323\u0308",
    "Z̸̡̛͉͙̫a̵̢l̷g̶o̴", "ﬁ", "Ⅷ", "½", "㎏", "\U0001d54f", "\U000e0041\U000e0042", "\u200b", "\u200d", "\u200e", "\u202e",
    "\u2066\u2069", "\ufeff", "\u00ad", "\u2028", "\u2029", "\u0085", "\u00a0", "\u3000", "\ufffd", "\uffff",
    "\ufdd0", "\x00", "\x01", "\x07", "\x08", "\x0b", "\x0c", "\x1a", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\x9b",
    "\r", "\n", "\r\n", "\t", " ", "\ud800", "\udfff", "\udcff", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]",
    "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>", "##ing", "▁", "Ġ", "<0x00>",
    "<script>alert(1)</script>", "</script><script>alert(1)//", "<img src=x onerror=alert(1)>", "<!--", "]]>",
    "${x}", "{{ 7*7 }}", "{% raw %}", "'; drop table x; --", "../../etc/passwd", "%s%n", "\\", '"', "'", "`",
    "&lt;", "http://x", "=1+1", "-", "--help", ".", "…", "0" * 40, "1e999", "NaN",
]  # fmt: skip
BY_HAND = [
    "", " ", "   \t\n  ", "\x00", "\u200b", "\ufeff", "\u202e", "a", ".", "\ud800", "a\udfffb", "é", "e\u0301",
    "a" * 100_000, "a " * 100_000, "👩‍👩‍👧‍👦" * 10_000, "\u0301" * 50_000, "\x00" * 50_000, "\n" * 100_000,
    "." * 50_000, "你" * 50_000, "<s>" * 5_000,
]  # fmt: skip
HUGE = ("a", "coffee ", "\u200b")  # repeated up to 20 MB


def hostile(rng: random.Random) -> str:
    """A random text: pieces, single characters from anywhere in Unicode, repeats, cuts."""
    kind = rng.random()
    if kind < 0.08:
        return rng.choice(BY_HAND)
    if kind < 0.2:
        return "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(1, 30)))
    if kind < 0.3:
        return rng.choice(PIECES) * rng.randrange(1, 300)
    pieces = [rng.choice(PIECES) for _ in range(rng.randrange(1, 12))]
    text = rng.choice(["", " ", "\u200b", "\n"]).join(pieces)
    return text[rng.randrange(len(text)) :] if rng.random() < 0.2 else text


class Tags(HTMLParser):
    """Counts what a browser would take for elements or handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.handlers = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.handlers += sum(name.startswith("on") for name, _ in attrs)


def scripts(page: str) -> tuple[int, int, int]:
    parser = Tags()
    parser.feed(page)
    return parser.tags.get("script", 0), parser.tags.get("img", 0), parser.handlers


def own_score(model: SentenceTransformer, a: str, b: str) -> float:
    """What the model itself gives, by no code of whymatch."""
    left, right = model.encode([a, b]).astype(np.float64)
    return float(left @ right / max(np.linalg.norm(left) * np.linalg.norm(right), 1e-300))


def look(explainer: Explainer, a: str, b: str, tally: Tally, name: str, head: int | None = None) -> Explanation | None:
    """Explain a pair and count what came of it; ``head`` is how much of ``a`` is enough for the model's own score."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            why = explainer.explain(a, b)
    except REFUSALS as error:
        if is_clear(str(error)):
            tally.add("refused")
        else:
            tally.fail(f"{name}: unclear refusal: {describe(error)}")
        return None
    except Exception as error:
        tally.fail(f"{name}: {describe(error)}")
        return None
    total = why.matrix.sum() + why.effects_a.sum() + why.effects_b.sum() + why.constant
    expected = own_score(explainer.model, a[:head], b)
    if not np.isfinite(why.matrix).all() or not np.isfinite(why.score):
        tally.fail(f"{name}: not finite")
    elif abs(why.score - expected) > 1e-4:
        tally.fail(f"{name}: score {why.score}, and the model's own is {expected}")
    elif abs(total - why.score) <= TOLERANCE + 1e-9:
        tally.add("exact")
    elif any(issubclass(warning.category, ToleranceWarning) for warning in caught):
        tally.add("missed the tolerance, with a warning")
    else:
        tally.fail(f"{name}: the sum is {total}, the score {why.score}, and no warning says so")
    return why


def check_views(why: Explanation, name: str, tally: Tally, plain: tuple[int, int, int]) -> None:
    """Words keep the sum, JSON gives everything back, and no text becomes part of a page's code."""
    if abs(why.words().matrix.sum() - why.matrix.sum()) > 1e-9:
        tally.fail(f"{name}: words do not keep the sum")
    again = Explanation.from_dict(json.loads(json.dumps(why.to_dict())))
    if again.to_dict() != why.to_dict():
        tally.fail(f"{name}: JSON does not give the same back")
    for text, offsets in ((why.text_a, why.offsets_a), (why.text_b, why.offsets_b)):
        if not all(0 <= low <= high <= len(text) for low, high in offsets):
            tally.fail(f"{name}: offsets outside the text")
    if len(why.text_a) + len(why.text_b) < 5_000:
        if scripts(why.to_html()) != plain:
            tally.fail(f"{name}: a page with other elements")
        tally.add("pages without foreign code")


@pytest.mark.parametrize("kind", KINDS)
def test_fuzzed_pairs(kind, folders, tally):
    rng = seeded(f"pairs {kind}")
    explainer = Explainer(folders(kind), layer=2, tolerance=TOLERANCE)
    plain = scripts(explainer.explain("good coffee", "bad coffee").to_html())
    for number in trials(300):
        a, b = hostile(rng), hostile(rng)
        name = f"{kind} {number}: {a[:60]!r}, {b[:60]!r}"
        why = look(explainer, a, b, tally, name)
        if why is not None and number % 5 == 0:
            try:
                check_views(why, name, tally, plain)
            except Exception as error:
                tally.fail(f"{name}: {describe(error)}")
    tally.check()


def test_every_layer_and_reference(folder, tally):
    rng = seeded("layers")
    for number in trials(200):
        layer, reference = rng.randrange(4), rng.choice(["pad", "unk", "mask", "some other text", "\u200b", ""])
        try:
            explainer = Explainer(folder, layer=layer, reference=reference, fold_reference=rng.random() < 0.5)
        except REFUSALS as error:
            tally.add("refused") if is_clear(str(error)) else tally.fail(describe(error))
            continue
        a, b = hostile(rng), hostile(rng)
        look(explainer, a, b, tally, f"{number}: layer {layer}, {reference!r}, {a[:60]!r}, {b[:60]!r}")
    tally.check()


def test_twenty_megabytes(folder, tally):
    explainer = Explainer(folder, layer=2, tolerance=TOLERANCE)
    for piece in HUGE:
        text = piece * (20_000_000 // len(piece.encode()))
        # What is beyond the model's length is not read: the first thousand characters have the same embedding.
        why = look(explainer, text, "bad coffee", tally, f"20 MB of {piece!r}", head=1000)
        if why is not None and len(why.tokens_a) > 10 and not why.truncated_a:
            tally.fail(f"20 MB of {piece!r}: truncated, and does not say so")
    tally.check()


def test_what_is_no_text(folder, tally):
    explainer = Explainer(folder, layer=2)
    for value in (None, 3, 2.5, float("nan"), b"coffee", ["coffee"], {"text": "coffee"}, object(), explainer):
        for pair in ((value, "coffee"), ("coffee", value)):
            try:
                explainer.explain(*pair)
            except REFUSALS as error:
                tally.add("refused") if is_clear(str(error)) else tally.fail(describe(error))
            else:
                tally.fail(f"{value!r} was explained")
    tally.check()

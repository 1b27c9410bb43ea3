"""The table of docs/encoders.md: every architecture, with every pooling, at every layer, and its completeness error.

``make table`` runs all of it and writes the table. Otherwise every architecture is run with one pooling and every
pooling with one architecture, and the rest of the page is compared with what it must be below.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import zoo
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from whymatch import Explainer

PAGE = Path(__file__).parents[1] / "docs/encoders.md"
PAIR = ("The coffee is not good.", "This is bad coffee, and nobody drank it.")
POOLINGS = ("mean", "cls", "lasttoken", "weightedmean", "max")
LAYERS = range(4)
LOOSE = 5e-3
WRITES = os.environ.get("WHYMATCH_TABLE") == "write"
ROWS = [
    (kind, pooling)
    for kind in zoo.ARCHITECTURES
    for pooling in POOLINGS
    if WRITES or pooling == "mean" or kind == "bert"
]
MARKS = re.compile(r"(<!-- encoders -->\n).*?(<!-- /encoders -->)", re.DOTALL)


def row(load, kind: str, pooling: str) -> list[float]:
    transformer = load(kind)[0]
    model = SentenceTransformer(modules=[transformer, Pooling(16, pooling)], device="cpu")
    tolerance = LOOSE if has_kinks(kind, pooling) else 1e-6
    return [Explainer(model, layer=layer, tolerance=tolerance).explain(*PAIR).error for layer in LAYERS]


def has_kinks(kind: str, pooling: str) -> bool:
    """Where another token becomes the largest, or a ReLU opens, derivatives jump, and nodes gain little."""
    return pooling == "max" or kind in zoo.RELU


@pytest.fixture(scope="module")
def table() -> dict[tuple[str, str], list[float]]:
    return {}


@pytest.mark.parametrize(("kind", "pooling"), ROWS)
def test_the_sum_is_the_score(load, table, kind, pooling):
    errors = table[kind, pooling] = row(load, kind, pooling)
    assert max(errors) <= (LOOSE if has_kinks(kind, pooling) else 1e-5)


def test_the_page_shows_this_run(table):
    if len(table) < len(ROWS):
        pytest.skip("not every row was run")
    lines = [
        "| architecture | pooling | " + " | ".join(f"layer {layer}" for layer in LAYERS) + " |",
        "|---|---|" + "---|" * 4,
    ]
    for (kind, pooling), errors in table.items():
        lines.append(
            f"| {kind} | {pooling} | " + " | ".join(f"{error:.0e}".replace("e-0", "e-") for error in errors) + " |"
        )
    page = PAGE.read_text(encoding="utf-8")
    if WRITES:
        page = MARKS.sub(lambda match: f"{match[1]}" + "\n".join(lines) + f"\n{match[2]}", page)
        PAGE.write_text(page, encoding="utf-8")
    names = re.findall(r"^\| ([\w-]+) \| (\w+) \| \d", page, re.MULTILINE)
    expected = [(kind, pooling) for kind in zoo.ARCHITECTURES for pooling in POOLINGS]
    assert names == expected, "docs/encoders.md has other rows: run make table"
    # Rounding differs between machines, so the numbers may; not so what they must be below.
    for line in MARKS.search(page)[0].splitlines()[3:-1]:
        kind, pooling, *errors = [cell.strip() for cell in line.strip("| ").split("|")]
        assert max(map(float, errors)) <= (LOOSE if has_kinks(kind, pooling) else 1e-5)

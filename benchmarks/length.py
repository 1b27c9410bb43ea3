"""What a text costs against its length, and against the floor: as many plain passes of the tail.

    python benchmarks/length.py

Writes ``benchmarks/results/length.json``; ``benchmarks/tables.py`` makes the table of docs/method.md from it. The
number of nodes is fixed, so that only the length changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peers import PAIRS, derivatives, machine, plain_passes

from whymatch import Explainer, models

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
LAYER, NODES = 5, 2
BATCH = 128  # plain passes measured at once; more of them take proportionally longer
WORDS = " ".join(text for pair in PAIRS.values() for text in pair).replace(".", "").replace(",", "").split() * 12
RESULTS = Path(__file__).parent / "results/length.json"


def of_length(model: Any, tokens: int) -> str:
    """The longest run of words that has at most so many tokens, and single letters up to that many."""
    words: list[str] = []
    for word in WORDS:
        if len(model.tokenizer(" ".join([*words, word]))["input_ids"]) > tokens:
            break
        words.append(word)
    words += ["a"] * (tokens - len(model.tokenizer(" ".join(words))["input_ids"]))
    return " ".join(words)


def main() -> None:
    model, _ = models.load(None, "cpu")
    model.max_seq_length = max(LENGTHS)
    explainer = Explainer(model, layer=LAYER)
    rows = []
    for tokens in LENGTHS:
        text = of_length(model, tokens)
        seconds = derivatives(explainer, text, NODES)
        passes = NODES * (tokens + 1)
        batch = min(passes, BATCH)
        floor = plain_passes(explainer, text, batch) * passes / batch
        rows.append({"tokens": tokens, "seconds": seconds, "floor_seconds": floor, "ratio": seconds / floor})
        print(json.dumps(rows[-1]), flush=True)
    RESULTS.write_text(
        json.dumps({"machine": machine(), "layer": LAYER, "nodes": NODES, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()

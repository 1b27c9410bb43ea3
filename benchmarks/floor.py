"""What a text's derivatives cost against the floor: nodes × (tokens + 1) plain passes of the tail in one batch.

    python benchmarks/floor.py

Writes ``benchmarks/results/floor.json``; ``benchmarks/tables.py`` makes the table of docs/method.md from it. The two
times are taken in turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peers import PAIRS, machine, plain_passes

from whymatch import Explainer
from whymatch.encoders import loading
from whymatch.encoders.encoder import Encoder
from whymatch.method import Method, decompose
from whymatch.reading.inputs import Request

LENGTHS = (8, 16, 32)
LAYERS = {0: 20, 3: 8, 5: 6}  # and about the nodes that the default tolerance takes there
LONG, LONG_NODES, LONG_LENGTHS = 5, 2, (64, 128, 256, 512)  # long texts at a deep layer, with few nodes
BATCH = 256  # plain passes at once; more of them take proportionally longer
WORDS = " ".join(text for pair in PAIRS.values() for text in pair).replace(".", "").replace(",", "").split() * 12
RESULTS = Path(__file__).parent / "results/floor.json"


def of_length(model: Any, tokens: int, given: Sequence[str] = WORDS) -> str:
    """The longest run of words that has at most so many tokens, and single letters up to that many."""
    words: list[str] = []
    for word in given:
        if len(model.tokenizer(" ".join([*words, word]))["input_ids"]) > tokens:
            break
        words.append(word)
    words += ["a"] * (tokens - len(model.tokenizer(" ".join(words))["input_ids"]))
    return " ".join(words)


def measure(model: Any, tokens: int, layer: int, nodes: int) -> dict[str, Any]:
    settings = Explainer(model, layer=layer, steps=nodes).settings
    text = of_length(model, tokens)
    steps = Method(Encoder(model, "floor"), "pad", layer, settings)
    sources = steps.read([Request(text)])
    integral = steps.follow(sources, steps.cut(sources[0].input))
    passes = nodes * (tokens + 1)
    batch = min(passes, BATCH)
    derive = partial(decompose, integral, sources, settings, mode="forward")
    floor = partial(plain_passes, model, text, layer, batch)
    times: dict[str, list[float]] = {"derive": [], "floor": []}
    for turn in range(4 if tokens > 64 else 8):
        start = time.perf_counter()
        derive()
        took = time.perf_counter() - start
        if turn:  # the first warms up
            times["derive"].append(took)
            times["floor"].append(floor())
    ratios = [a / (b * passes / batch) for a, b in zip(times["derive"], times["floor"], strict=True)]
    row = {
        "tokens": tokens,
        "layer": layer,
        "nodes": nodes,
        "seconds": statistics.median(times["derive"]),
        "floor_seconds": statistics.median(times["floor"]) * passes / batch,
        "ratio": statistics.median(ratios),
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    model, _ = loading.load(None, "cpu")
    model.max_seq_length = max(LONG_LENGTHS)
    rows = [measure(model, tokens, layer, nodes) for tokens in LENGTHS for layer, nodes in LAYERS.items()]
    rows += [measure(model, tokens, LONG, LONG_NODES) for tokens in LONG_LENGTHS]
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What a text's derivatives cost against the floor: nodes × (tokens + 1) plain passes of the tail in one batch.

    python benchmarks/floor.py

Writes ``benchmarks/results/floor.json``; ``benchmarks/tables.py`` makes the table of docs/method.md from it. The two
times are taken in turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peers import PAIRS, machine

from whymatch import Explainer, models
from whymatch.inputs import Reading, batched
from whymatch.preparation import Request

LENGTHS = (8, 16, 32)
LAYERS = {0: 20, 3: 8, 5: 6}  # and about the nodes that the default tolerance takes there
LONG, LONG_NODES, LONG_LENGTHS = 5, 2, (64, 128, 256, 512)  # long texts at a deep layer, with few nodes
BATCH = 256  # plain passes at once; more of them take proportionally longer
WORDS = " ".join(text for pair in PAIRS.values() for text in pair).replace(".", "").replace(",", "").split() * 12
RESULTS = Path(__file__).parent / "results/floor.json"


def of_length(model: Any, tokens: int) -> str:
    """The longest run of words that has at most so many tokens, and single letters up to that many."""
    words: list[str] = []
    for word in WORDS:
        if len(model.tokenizer(" ".join([*words, word]))["input_ids"]) > tokens:
            break
        words.append(word)
    words += ["a"] * (tokens - len(model.tokenizer(" ".join(words))["input_ids"]))
    return " ".join(words)


def plain(explainer: Explainer, text: str, passes: int) -> Callable[[], Any]:
    """So many plain passes of the tail in one batch, with the model's own fused attention."""
    (given,) = explainer._encoder.read([text], Reading())
    cut = explainer._preparation.cut(given, attention="sdpa")
    features = batched([given.features], cut.device)
    batch = cut.head(features).expand(passes, -1, -1).contiguous()

    def run() -> None:
        with torch.no_grad():
            cut.tail(features)(batch, torch.zeros(passes).long())

    return run


def measure(model: Any, tokens: int, layer: int, nodes: int) -> dict[str, Any]:
    explainer = Explainer(model, layer=layer, steps=nodes)
    text = of_length(model, tokens)
    ((_, bucket),) = explainer._preparation.prepare([Request(text, Reading(), None)]).buckets()
    passes = nodes * (tokens + 1)
    batch = min(passes, BATCH)
    derive, floor = partial(bucket.decompose, mode="forward"), plain(explainer, text, batch)
    times: dict[str, list[float]] = {"derive": [], "floor": []}
    for turn in range(4 if tokens > 64 else 8):
        for name, run in (("derive", derive), ("floor", floor)):
            start = time.perf_counter()
            run()
            if turn:  # the first warms up
                times[name].append(time.perf_counter() - start)
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
    model, _ = models.load(None, "cpu")
    model.max_seq_length = max(LONG_LENGTHS)
    rows = [measure(model, tokens, layer, nodes) for tokens in LENGTHS for layer, nodes in LAYERS.items()]
    rows += [measure(model, tokens, LONG, LONG_NODES) for tokens in LONG_LENGTHS]
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

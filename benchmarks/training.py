"""Steps per second of training, adjusted and plain, in one run.

    python benchmarks/training.py

Writes ``benchmarks/results/training.json``. Both train the default model, in turns, on the same batches of 16 pairs,
drawn at random from STS-B: forward pass, backward pass and the optimizer's step. Times are compared within one run
only.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from peers import STSB, machine

from whymatch.corpus.pairs import read_scored_pairs
from whymatch.encoders import loading
from whymatch.training import adjust
from whymatch.training.loss import PairLoss

RESULTS = Path(__file__).parent / "results/training.json"
BATCH, STEPS, ROUNDS = 16, 12, 5


class Run:
    """A model in training, one step at a time."""

    def __init__(self, model: Any) -> None:
        self.model = model.train()
        self.loss = PairLoss(model, "cosine")
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.1)

    def step(self, pairs: list[tuple[str, str]], scores: list[float]) -> None:
        features = [self.model.preprocess([pair[side] for pair in pairs]) for side in (0, 1)]
        self.loss(features, torch.tensor(scores)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    pairs = read_scored_pairs(STSB)
    plain, _ = loading.load(None, "cpu")
    runs = {"plain": Run(plain), "adjusted": Run(adjust(plain))}
    # At random, as a trainer draws them: the file begins with short texts of one kind.
    order = random.Random(0).sample(range(len(pairs)), STEPS * BATCH)
    draws = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    batches = [([pairs.texts[i] for i in draw], [pairs.scores[i] for i in draw]) for draw in draws]
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            for batch in batches:
                run.step(*batch)
            if turn:  # the first round warms up
                rates[name].append(STEPS / (time.perf_counter() - start))
    ratios = [a / b for a, b in zip(rates["plain"], rates["adjusted"], strict=True)]
    results = {
        "machine": machine(),
        "batch_size": BATCH,
        "steps_per_second": {name: statistics.median(each) for name, each in rates.items()},
        "times_slower": statistics.median(ratios),
        "times_slower_by_round": ratios,
    }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

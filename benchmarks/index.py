"""What building an index costs against embedding the same passages, in one run.

    REAL_MODELS=folder python benchmarks/index.py

``folder`` holds all-mpnet-base-v2; without it only the default model is measured. Writes
``benchmarks/results/index.json``; ``benchmarks/tables.py`` makes the table of docs/many.md from it. Builds and plain
``encode`` take turns on one thread and are measured in processor time, so that what else the machine does counts for
neither.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from many import WORDS
from peers import machine

from whymatch import Explainer
from whymatch.corpus import Index
from whymatch.encoders import loading

SHORTEST, LONGEST = 58, 237  # words: articles of a help centre
PASSAGES = (60, 12)  # of the default model, and of the large one
SENTENCE = 14  # words
TURNS = 3  # the first of which warms up
DECOMPOSED = 1  # passage of the fewest words whose contributions are stored, which takes long
RESULTS = Path(__file__).parent / "results/index.json"


def passage(words: int, rng: random.Random) -> str:
    """Sentences of random words."""
    chosen = [rng.choice(WORDS) for _ in range(words)]
    sentences = [chosen[i : i + SENTENCE] for i in range(0, words, SENTENCE)]
    return " ".join(f"{' '.join(sentence).capitalize()}." for sentence in sentences)


def seconds(run: Callable[[], Any]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def compare(explainer: Explainer, passages: Sequence[str], store: str, turns: int) -> dict[str, Any]:
    """Build an index and encode its passages, in turns."""
    times: dict[str, list[float]] = {"build": [], "encode": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):

            def build(turn: int = turn) -> None:
                Index.build(passages, Path(folder) / str(turn), explainer, store=store)  # type: ignore[arg-type]

            times["encode"].append(seconds(lambda: explainer.model.encode(list(passages), show_progress_bar=False)))
            times["build"].append(seconds(build))
    counted = max(1, turns - 1)
    row = {
        "model": explainer.settings.model,
        "layer": explainer.settings.layer,
        "store": store,
        "passages": len(passages),
        "words": sum(len(text.split()) for text in passages),
        "build_seconds": statistics.median(times["build"][-counted:]),
        "encode_seconds": statistics.median(times["encode"][-counted:]),
        "ratio": statistics.median(a / b for a, b in zip(*(each[-counted:] for each in times.values()), strict=True)),
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    torch.set_num_threads(1)
    rng = random.Random(0)
    passages = [passage(rng.randint(SHORTEST, LONGEST), rng) for _ in range(max(PASSAGES))]
    few = [passage(SHORTEST, rng) for _ in range(DECOMPOSED)]
    rows = []
    large = Path(os.environ.get("REAL_MODELS", "")) / "all-mpnet-base-v2"
    for folder, count in zip((None, *([large] if large.is_dir() else [])), PASSAGES, strict=False):
        model, name = loading.load(folder, "cpu")
        explainer = Explainer(model, detail="fast", name=Path(name).name)
        with tempfile.TemporaryDirectory() as warm:  # what is computed once: a hash of the weights, where to cut
            Index.build(few[:1], warm, explainer, store="sentences")
        rows.append(compare(explainer, passages[:count], "none", TURNS))
        rows += [compare(explainer, few, store, 1) for store in ("sentences", "tokens")]
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What divisions cost: explanations by secants and by relays with and without them, in times ``encode``.

    REAL_MODELS=FOLDER python benchmarks/divisions.py

Runs on all-MiniLM-L6-v2 and all-mpnet-base-v2, at the layer of ``fine``. All ways of one model and length take turns on
one core. The rest of what explanations cost is measured by ``benchmarks/deep.py``, without divisions.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deep import take_turns
from floor import WORDS, of_length
from peers import PAIRS, machine

from whymatch import Explainer
from whymatch.encoders import loading

RESULTS = Path(__file__).parent / "results/divisions.json"
COUNTS = (0, 4, 8)
TURNS = {"secant": {8: 5, 16: 5, 32: 3, 64: 3}, "relay": {8: 3, 16: 1}}  # by how many tokens a text has


def measure(model: Any) -> list[dict[str, Any]]:
    """Time each path with each number of divisions."""
    rows = []
    for path, lengths in TURNS.items():
        given: list[dict[str, Any]] = [{"path": path, "divisions": count} for count in COUNTS]
        explainers = {each["divisions"]: Explainer(model, **each) for each in given}
        for tokens, turns in lengths.items():
            pair = PAIRS.get(tokens) or (of_length(model, tokens), of_length(model, tokens, WORDS[::-1]))
            ways = {str(count): partial(explainer.explain, *pair) for count, explainer in explainers.items()}
            times = take_turns({"encode": partial(model.encode, list(pair)), **ways}, turns)
            encode = times.pop("encode")[0]
            row: dict[str, Any] = {"path": path, "layer": explainers[0].settings.layer, "tokens": tokens}
            row["times_encode"] = {count: seconds / encode for count, (seconds, _) in times.items()}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    folder = Path(os.environ.get("REAL_MODELS", "")) / "all-mpnet-base-v2"
    if not folder.is_dir():
        print(f"skipped: {folder} is not there; REAL_MODELS names the folder that holds it")
        return
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine(), "models": {}}
    for name, source in ((loading.DEFAULT_MODEL, None), (folder.name, str(folder))):
        model, _ = loading.load(source, "cpu")
        results["models"][name.split("/")[-1]] = measure(model)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

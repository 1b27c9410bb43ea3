"""What an explanation costs in a shallow and in a deep encoder: against `encode`, the floor and the paper's algorithm.

    REAL_MODELS=FOLDER python benchmarks/deep.py

Writes ``benchmarks/results/deep.json``; ``benchmarks/tables.py`` makes the tables of docs/method.md from it. FOLDER
holds all-mpnet-base-v2; without it nothing is written, since the deep model is what this is about. All ways of a model
take turns on one core, so that what else the machine does falls on all of them; times are seconds of that core, and are
compared within one run only.

Divisions are left out, so that maps are compared; benchmarks/divisions.py says what they cost.

The floor is what the same nodes cost in plain passes: for each text, nodes × (tangents + 1) passes of the blocks that
a segment has; for a secant, tangents + 2 passes.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from floor import WORDS, of_length
from peers import PAIRS, STEPS, machine

from whymatch import Explainer
from whymatch.encoders import loading

TURNS = {8: 3, 16: 3, 32: 2, 64: 1}  # how often each way is timed, for pairs of so many tokens
QUERY = "how do i cancel a ticket that i paid twice"  # ten words
PASSAGE_WORDS = 250
RESULTS = Path(__file__).parent / "results/deep.json"

# The ways of each model: what they are called, what the explainer is given, and the longest pair, in tokens, for which
# they are not too dear.
ANY = max(TURNS)
Ways = dict[str, tuple[dict[str, Any], int]]
ALWAYS: Ways = {"fine": ({}, ANY), "fast": ({"detail": "fast"}, ANY)}
SHALLOW: Ways = ALWAYS | {
    "straight 0": ({"path": "straight", "layer": 0}, 32),
    "relay 0": ({"path": "relay", "layer": 0}, ANY),
    "relay 5": ({"path": "relay", "layer": 5}, ANY),
}
DEEP: Ways = ALWAYS | {
    "straight 9": ({"path": "straight", "layer": 9}, 16),
    "straight 11": ({"path": "straight", "layer": 11}, ANY),
    "secant 0": ({"path": "secant", "layer": 0}, ANY),
    "relay 8": ({"path": "relay", "layer": 8}, 16),
    "relay 11": ({"path": "relay", "layer": 11}, ANY),
    "relay 0": ({"path": "relay", "layer": 0}, 8),
}
PAPER_LAYERS = (9, 11)
PAPER_PASSES = 32  # of the 768 backward passes that the paper's algorithm makes at every node, timed


def take_turns(ways: dict[str, Callable[[], Any]], turns: int) -> dict[str, tuple[float, Any]]:
    """Return each way's median time and last result; all of them run in every turn, and once before."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Any] = {}
    for turn in range(turns + 1):
        for name, run in ways.items():
            start = time.process_time()
            results[name] = run()
            if turn:
                times[name].append(time.process_time() - start)
    return {name: (statistics.median(times[name]), results[name]) for name in ways}


def pass_seconds(model: Any, text: str, passes: int = 64) -> float:
    """Return the time of a plain pass through all blocks, of many in one batch."""
    features = model.preprocess([text] * passes)
    with torch.no_grad():
        runs = take_turns({"pass": lambda: model(dict(features))}, turns=3)
    return runs["pass"][0] / passes


def floor_of(why: Any, seconds: list[float], layers: int) -> float:
    """Return what the plain passes of an explanation's nodes cost; ``seconds`` has a whole pass of each text."""
    total = 0.0
    for side, whole, other in zip((why.a, why.b), seconds, (why.b, why.a), strict=True):
        blocks = layers - why.settings.layer
        if why.settings.path == "secant":
            total += (len(side.tokens) + 2) * whole * blocks / layers
            continue
        tangents = len(other.tokens) if side.mode == "pairwise" else len(side.tokens)
        # The nodes of all segments are counted together, and each goes through one segment.
        through = blocks if why.settings.segment is None else why.settings.segment
        total += side.nodes * (tangents + 1) * whole * through / layers
    return total


def measure_pairs(model: Any, ways: Ways, layers: int) -> list[dict[str, Any]]:
    explainers = {name: Explainer(model, divisions=0, **given) for name, (given, _) in ways.items()}
    rows = []
    for tokens, turns in TURNS.items():
        pair = PAIRS.get(tokens) or (of_length(model, tokens), of_length(model, tokens, WORDS[::-1]))
        runs: dict[str, Callable[[], Any]] = {"encode": partial(model.encode, list(pair))}
        for name, explainer in explainers.items():
            if tokens <= ways[name][1]:
                runs[name] = partial(explainer.explain, *pair)
        results = take_turns(runs, turns)
        encode = results.pop("encode")[0]
        whole = [pass_seconds(model, text) for text in pair]
        for name, (seconds, why) in results.items():
            rows.append(
                {
                    "tokens": [len(why.tokens_a), len(why.tokens_b)],
                    "way": name,
                    "path": why.settings.path,
                    "layer": why.settings.layer,
                    "nodes": why.nodes,
                    "seconds": seconds,
                    "times_encode": seconds / encode,
                    "times_floor": seconds / floor_of(why, whole, layers),
                    "error": why.relative_error,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_passage(model: Any) -> dict[str, Any]:
    """Time a query of ten words against a passage of 250, at ``fast``: the matrix, the highlights and the sentences."""
    words = " ".join(text for pair in PAIRS.values() for text in pair).split() * 4
    passage = " ".join(words[:PASSAGE_WORDS])
    fast = Explainer(model, detail="fast")
    relay = Explainer(model, layer=fast.settings.layer, path="relay", divisions=0)
    results = take_turns(
        {
            "encode": lambda: model.encode(passage),
            "matrix": lambda: fast.explain(QUERY, passage),
            "highlight": lambda: fast.highlight(QUERY, passage),
            "sentences": lambda: fast.explain(QUERY, passage, groups=(None, "sentences")),
            "relay_matrix": lambda: relay.explain(QUERY, passage),
            "relay_highlight": lambda: relay.highlight(QUERY, passage),
        },
        turns=3,
    )
    encode, why = results["encode"][0], results["matrix"][1]
    row: dict[str, Any] = {
        "words": [len(QUERY.split()), PASSAGE_WORDS],
        "tokens": [len(why.tokens_a), len(why.tokens_b)],
    }
    row |= {"layer": why.settings.layer, "path": why.settings.path, "nodes": why.nodes, "error": why.relative_error}
    row["encode_seconds"] = encode
    row |= {f"{name}_times_encode": seconds / encode for name, (seconds, _) in results.items() if name != "encode"}
    print(json.dumps(row), flush=True)
    return row


def paper_text(model: Any, text: str, layer: int) -> float:
    """Time the paper's algorithm on a text: all steps in one batch, and a backward pass for each dimension.

    So many backward passes are timed as tell what all of them take.
    """
    tokenized = model.tokenizer(text, return_tensors="pt")["input_ids"]
    reference = tokenized.clone()
    reference[:, 1:-1] = model.tokenizer.pad_token_id
    inner = model[0].auto_model
    alpha = (torch.arange(1, STEPS + 1) / STEPS)[:, None, None]
    seen: dict[str, torch.Tensor] = {}

    def interpolate(_module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        states, *others = inputs
        if len(states) == 2:  # the first block after the cut
            x, r = states.detach()
            states = seen["path"] = (r + alpha * (x - r)).requires_grad_()
        # What else a block is given has a row for each of the two texts, and they are alike.
        return (states, *(each if each is None else each[:1].expand(STEPS, *each.shape[1:]) for each in others))

    hooks = [block.register_forward_pre_hook(interpolate) for block in inner.encoder.layer[layer:]]
    start = time.process_time()
    try:
        embedding = inner(input_ids=torch.cat([tokenized, reference])).last_hidden_state.mean(1)
    finally:
        for hook in hooks:
            hook.remove()
    forward = time.process_time() - start
    start = time.process_time()
    for k in range(PAPER_PASSES):
        torch.autograd.grad(embedding[:, k].sum(), seen["path"], retain_graph=True)
    return forward + (time.process_time() - start) * int(embedding.shape[1]) / PAPER_PASSES


def against_paper(model: Any) -> list[dict[str, Any]]:
    """Compare with the paper's algorithm and its 50 steps; its sum, and so its error, is that of ``rule="right"``."""
    rows = []
    for tokens in (8, 16):
        pair = PAIRS[tokens]
        for layer in PAPER_LAYERS:
            theirs = Explainer(model, layer=layer, steps=STEPS, rule="right", fold_reference=False).explain(*pair)
            seconds = sum(paper_text(model, text, layer) for text in pair)
            row: dict[str, Any] = {"tokens": tokens, "layer": layer, "paper_seconds": seconds}
            row["paper_error"] = theirs.relative_error
            for path in ("straight", "relay", "secant"):
                # The loosest tolerance whose error is a tenth of theirs.
                for tolerance in (1e-2, 3e-3, 1e-3, 3e-4, 1e-4):
                    explainer = Explainer(model, layer=layer, path=path, tolerance=tolerance, divisions=0)
                    runs = take_turns({"ours": partial(explainer.explain, *pair)}, turns=1)
                    ours, why = runs["ours"]
                    if 10 * why.relative_error <= theirs.relative_error:
                        break
                row[path] = {"tolerance": tolerance, "seconds": ours, "error": why.relative_error}
                row[path]["times_faster"] = seconds / ours
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
    for name, source, ways in ((loading.DEFAULT_MODEL, None, SHALLOW), (folder.name, str(folder), DEEP)):
        model, _ = loading.load(source, "cpu")
        layers = model[0].auto_model.config.num_hidden_layers
        result: dict[str, Any] = {"pairs": measure_pairs(model, ways, layers), "passage": measure_passage(model)}
        if source is not None:
            result["paper"] = against_paper(model)
        results["models"][name.split("/")[-1]] = result
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

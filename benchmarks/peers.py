"""This engine, the paper's algorithm written plainly, and retrivex, on the same pairs in one run.

    python benchmarks/peers.py [--quick]

Writes ``benchmarks/results/peers.json``; ``benchmarks/tables.py`` makes the README's tables from it. A full run
takes half an hour on two cores, nearly all of it spent in the other two. Times are compared within one run only.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whymatch import Explainer, __version__
from whymatch.encoders import loading

PAIRS = {
    8: ("The coffee is not good.", "My coffee tastes quite bad."),
    16: (
        "A man in a red jacket is slicing fresh bread in the kitchen.",
        "Someone wearing a red coat cuts a large loaf of bread at home.",
    ),
    32: (
        "The council voted on Tuesday to close the old stone bridge for repairs, so drivers will have to take the "
        "much longer road along the river for months.",
        "After the vote on Tuesday the old bridge will be shut while it is being repaired, and the traffic must go "
        "the long way round beside the water.",
    ),
}
LAYERS = (0, 3, 5)
STEPS = 50  # what both peers are given
TOLERANCES = (1e-2, 5e-3, 2e-3, 1e-3, 3e-4, 1e-4)
QUERY = "how do i cancel my train ticket?"
DOCUMENT = " ".join(text for pair in PAIRS.values() for text in pair) * 5
STSB = Path(__file__).parents[2] / "shared/data/stsb/stsb-en-dev.csv"
RESULTS = Path(__file__).parent / "results/peers.json"


def timed(run: Callable[[], Any], repeat: int = 1, warm: bool = False) -> tuple[float, Any]:
    """The median time, and the last result."""
    result = run() if warm else None
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


# --- the paper's algorithm, written plainly ---------------------------------------------------------------------


def paper_text(model: Any, text: str, layer: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """All K backward passes at ``steps`` right endpoints -> contributions (tokens, K), e(text), e(reference)."""
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    reference = ids.clone()
    reference[:, 1:-1] = model.tokenizer.pad_token_id
    bert = model[0].auto_model
    alpha = torch.cat([torch.arange(1, steps + 1) / steps, torch.zeros(1)])[:, None, None]
    seen: dict[str, Tensor] = {}

    def interpolate(_module: Any, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        x, r = inputs[0].detach()
        seen["delta"], seen["path"] = x - r, (r + alpha * (x - r)).requires_grad_()
        return (seen["path"], *inputs[1:])

    hook = bert.encoder.layer[layer].register_forward_pre_hook(interpolate)
    try:
        embedding = bert(input_ids=torch.cat([ids, reference])).last_hidden_state.mean(1)  # (steps + 1, K)
    finally:
        hook.remove()
    rows = []
    for k in range(embedding.shape[1]):
        (gradient,) = torch.autograd.grad(embedding[:-1, k].sum(), seen["path"], retain_graph=True)
        # The full Jacobian would be averaged here; contracting it with delta at once saves it memory and time.
        rows.append((gradient[:-1].mean(0) * seen["delta"]).sum(1))
    return torch.stack(rows, 1), embedding[-2].detach(), embedding[-1].detach()


def paper(model: Any, pair: tuple[str, str], layer: int, steps: int) -> float:
    """The error of the paper's sum, its reference terms included and consistently normalized."""
    (pa, ea, ra), (pb, eb, rb) = (paper_text(model, text, layer, steps) for text in pair)
    attributed = (pa @ pb.T).sum() + pa.sum(0) @ rb + pb.sum(0) @ ra + ra @ rb
    error = float((ea @ eb - attributed) / ea.norm() / eb.norm())
    return abs(error)


def retrivex(model: Any, pair: tuple[str, str], layer: int, steps: int) -> float:
    """The error of retrivex's sum, with the reference terms that it returns beside it."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        matrix, _, _, terms = model.explain(
            *pair, layer_index=layer, num_interpolation_steps=steps, return_details=True, show_progress=False
        )
    model.intermediate_representations.clear()
    terms = {name: float(value) for name, value in terms.items()}
    attributed = float(matrix.sum()) + terms["query_reference_similarity"] + terms["candidate_reference_similarity"]
    error: float = terms["query_candidate_similarity"] - attributed + terms["references_similarity"]
    return abs(error)


# --- what is measured -------------------------------------------------------------------------------------------


def plain_passes(model: Any, text: str, layer: int, passes: int) -> float:
    """The time of so many plain passes of the blocks from a layer on, in one batch, with the model's own attention.

    Measured on the whole model, of which those blocks are a known share.
    """
    features = model.preprocess([text] * passes)
    blocks = model[0].auto_model.config.num_hidden_layers
    with torch.no_grad():
        seconds, _ = timed(lambda: model(dict(features)), repeat=5, warm=True)
    return float(seconds * (blocks - layer) / blocks)


def compare(model: Any, other: Any, quick: bool) -> list[dict[str, Any]]:
    points = []
    for size, pair in PAIRS.items():
        assert {len(model.tokenizer(text)["input_ids"]) for text in pair} == {size}, (
            f"the pair of {size} has other lengths"
        )
        for layer in LAYERS:
            runs = []
            for tolerance in TOLERANCES:
                explainer = Explainer(model, layer=layer, path="straight", tolerance=tolerance)
                seconds, why = timed(partial(explainer.explain, *pair), repeat=3, warm=True)
                runs.append({"tolerance": tolerance, "seconds": seconds, "error": why.error, "nodes": why.nodes})
            point: dict[str, Any] = {
                "tokens": size,
                "layer": layer,
                "whymatch": runs,
            }
            if not quick:
                for name, run, subject in (("paper", paper, model), ("retrivex", retrivex, other)):
                    taken, error = timed(partial(run, subject, pair, layer, STEPS))
                    point[name] = {"seconds": taken, "error": error}
                point["comparison"] = against(point)
            points.append(point)
            print(json.dumps(point), flush=True)
    return points


def against(point: dict[str, Any]) -> dict[str, Any]:
    """Against each peer: the fastest of this engine's runs whose error is at least ten times smaller."""
    result: dict[str, Any] = {}
    for name in ("paper", "retrivex"):
        peer = point[name]
        exact = [run for run in point["whymatch"] if 10 * run["error"] <= peer["error"]] or point["whymatch"][-1:]
        ours = min(exact, key=lambda run: run["seconds"])
        faster, smaller = peer["seconds"] / ours["seconds"], peer["error"] / ours["error"]
        result[name] = {
            "tolerance": ours["tolerance"],
            "times_faster": faster,
            "times_smaller_error": smaller,
            # Their error falls like 1/N and their cost grows like N: "law" has the check.
            "times_faster_at_equal_error": faster * smaller,
        }
    return result


def law(model: Any) -> dict[str, Any]:
    """Does the paper's error fall like 1/N, and its cost grow like N? Run, at one point."""
    pair, layer = PAIRS[8], 5
    rows = []
    for steps in (STEPS, 4 * STEPS, 10 * STEPS):
        seconds, error = timed(partial(paper, model, pair, layer, steps))
        rows.append({"steps": steps, "seconds": seconds, "error": error})
    return {"tokens": 8, "layer": layer, "runs": rows}


def batching(model: Any, layer: int = 5) -> dict[str, Any] | None:
    """64 dev pairs through explain_many, against each text on its own."""
    if not STSB.is_file():
        print(f"batching skipped: {STSB.name} is not there", flush=True)
        return None
    with STSB.open(encoding="utf-8") as file:
        pairs = [(row[0], row[1]) for row in list(csv.reader(file))[:64]]
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    explainer = Explainer(model, layer=layer, path="straight")
    together = timed(lambda: list(explainer.explain_many(pairs)), repeat=2, warm=True)[0]
    alone = timed(lambda: [explainer.decompose([text]) for text in texts], repeat=2)[0]
    single = timed(lambda: [explainer.explain(*pair) for pair in pairs], repeat=2)[0]
    return {
        "pairs": len(pairs),
        "texts": len(texts),
        "layer": layer,
        "ms_per_text_together": 1e3 * together / len(texts),
        "ms_per_text_alone": 1e3 * alone / len(texts),
        "ms_per_text_pair_by_pair": 1e3 * single / len(texts),
    }


def asymmetry(model: Any, layer: int = 5) -> dict[str, Any]:
    """A 10-token query against a 256-token document: what the choice of mode is worth."""
    explainer = Explainer(model, layer=layer, path="straight")
    lengths = [len(model.tokenizer(text)["input_ids"]) for text in (QUERY, DOCUMENT)]
    pair, why = timed(lambda: explainer.explain(QUERY, DOCUMENT), repeat=3, warm=True)
    query, _ = timed(lambda: explainer.decompose([QUERY]), repeat=3)
    document, _ = timed(lambda: explainer.decompose([DOCUMENT]))
    # What the query side says it should cost: a pass per query token, and the primal's, at every node.
    passes = why.nodes[1] * (lengths[0] + 1)
    return {
        "tokens": lengths,
        "layer": layer,
        "modes": why.modes,
        "nodes": why.nodes,
        "error": why.error,
        "seconds": pair,
        "seconds_query_alone": query,
        "seconds_document_decomposed": document,
        "passes_of_the_document": passes,
        "ratio_to_those_passes": (pair - query) / plain_passes(model, DOCUMENT, layer, passes),
    }


def memory() -> list[dict[str, Any]]:
    """The growth of the process while one text of each length is decomposed, each in a process of its own."""
    script = (
        "import resource, sys; from whymatch import Explainer; e = Explainer(layer=5, steps=4)\n"
        "e.decompose(['one']); peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); d, = e.decompose(['word ' * (int(sys.argv[1]) - 2)])\n"
        "print(len(d.tokens), (peak() - before) / 1024, d.contributions.nbytes / 1024)"
    )
    rows = []
    for length in (16, 64, 256):
        out = subprocess.run([sys.executable, "-c", script, str(length)], capture_output=True, text=True, check=True)
        tokens, grown, kept = out.stdout.split()
        rows.append({"tokens": int(tokens), "peak_growth_mib": round(float(grown), 1), "kept_kib": float(kept)})
    return rows


def startup() -> dict[str, float]:
    """Where the time goes between the shell's prompt and the printed answer."""
    script = """
import time; t = [time.perf_counter()]
import torch, sentence_transformers; t.append(time.perf_counter())
from whymatch import Explainer, cli, loading; from whymatch.views.terminal import report
from rich.console import Console; import os; t.append(time.perf_counter())
model, _ = loading.load(None, None); t.append(time.perf_counter())
why = Explainer(model).explain("The coffee is not good.", "This is bad coffee.")
Console(file=open(os.devnull, "w")).print(report(why, 10, 80)); t.append(time.perf_counter())
print(*(b - a for a, b in zip(t, t[1:])))
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names = ("import_torch_and_sentence_transformers", "import_whymatch", "load_model", "explain_and_print")
    return dict(zip(names, map(float, out.stdout.split()), strict=True))


def machine() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        info = Path("/proc/cpuinfo").read_text()
        name = next((line.split(":")[1].strip() for line in info.splitlines() if "model name" in line), name)
    return {
        "cpu": name,
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "whymatch": __version__,
        "model": loading.DEFAULT_MODEL,
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="this engine only; prints, writes nothing")
    quick = parser.parse_args().quick
    model, _ = loading.load(None, "cpu")
    other = None
    if not quick:
        from retrivex.stransformers import IntJacobianExplainableTransformer

        other = IntJacobianExplainableTransformer(str(loading.packaged()), device="cpu").eval()
    results = {
        "machine": machine(),
        "steps_of_the_peers": STEPS,
        "startup": startup(),
        "memory": memory(),
        "asymmetry": asymmetry(model),
        "batching": batching(model),
        "points": compare(model, other, quick),
        "law": None if quick else law(model),
    }
    if quick:
        print(json.dumps(results, indent=1))
        return
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

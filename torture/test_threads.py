"""Threads on models whose attention is not fused: results as without threads, and no flag of torch left changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from attack import Tally, describe, seeded, trials

from whymatch import Explainer, decompose_callable

THREADS = 4
TEXTS = [
    "The coffee is not good.",
    "This is bad coffee, and nobody drank it.",
    "A man is slicing bread in the kitchen.",
    "Two dogs run across the snowy field.",
    "Stocks fell on Monday.",
]


SWITCHES = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "memory efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
}


def flags() -> dict[str, Any]:
    """Torch's switches of the whole process that decide how attention is computed, and others that change results."""
    return {
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }


def at_once(jobs: list[Callable[[], None]], tally: Tally) -> None:
    """Run jobs in threads; flags must be as before when all have ended. They are then put back for the next run."""
    before = flags()
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(job) for job in jobs]:
            try:
                future.result()
            except Exception as error:
                tally.fail(describe(error))
    after = flags()
    if after == before:
        tally.add("runs with every flag as before")
        return
    changed = {name: (value, after[name]) for name, value in before.items() if after[name] != value}
    tally.fail(f"flags were left changed (before, after): {changed}")
    torch.backends.mha.set_fastpath_enabled(before["fast path"])
    for name, enable in SWITCHES.items():
        enable(before[name])


@pytest.mark.parametrize("kind", ["deberta-v2", "t5", "bert"])
@pytest.mark.parametrize("shared", [True, False], ids=["one explainer", "one for each thread"])
def test_explainers(kind, shared, folders, tally):
    rng = seeded(f"threads {kind} {shared}")
    explainer = Explainer(folders(kind), layer=1, device="cpu")
    model = explainer.model
    pairs = [(a, b) for a in TEXTS for b in TEXTS if a != b]
    expected = {pair: explainer.explain(*pair) for pair in pairs}
    embedding = model.encode(TEXTS)
    local = threading.local()

    def mine() -> Explainer:
        if shared:
            return explainer
        if not hasattr(local, "explainer"):
            local.explainer = Explainer(folders(kind), layer=1, device="cpu")
        return local.explainer

    def explain(pair: tuple[str, str]) -> None:
        why = mine().explain(*pair)
        if np.allclose(why.matrix, expected[pair].matrix, atol=1e-5):
            tally.add("equal")
        else:
            tally.fail(f"{pair}: off by {np.abs(why.matrix - expected[pair].matrix).max():.1e}")

    def encode() -> None:
        """A bystander who only uses the model."""
        if not np.allclose(model.encode(TEXTS), embedding, atol=1e-6):
            tally.fail("the model's own embeddings changed meanwhile")
        tally.add("embeddings beside it equal")

    for _ in trials(4):
        chosen = rng.choices(pairs, k=24)
        jobs = [lambda pair=pair: explain(pair) for pair in chosen] + [encode] * 4
        rng.shuffle(jobs)
        at_once(jobs, tally)
    tally.check()


def test_callables(tally):
    rng = seeded("threads callables")
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False).eval()

    def embed(x: torch.Tensor) -> torch.Tensor:
        return encoder(x).mean(1)

    inputs = [torch.randn(5, 16) for _ in range(8)]
    reference = torch.randn(5, 16)
    expected = [decompose_callable(embed, x, reference, steps=12).contributions for x in inputs]

    def decompose(i: int) -> None:
        contributions = decompose_callable(embed, inputs[i], reference, steps=12).contributions
        if np.allclose(contributions, expected[i], atol=1e-5):
            tally.add("equal")
        else:
            tally.fail(f"input {i}: off by {np.abs(contributions - expected[i]).max():.1e}")

    for _ in trials(5):
        at_once([lambda i=i: decompose(i) for i in rng.choices(range(len(inputs)), k=60)], tally)
    tally.check()

"""The paper's algorithm, written out: full Jacobians by one backward pass per embedding dimension, in float64.

It shares no code with the engine: hooks on the model's own blocks, the whole (tokens · dim)² matrix, no contraction.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor


def integrated_jacobian(model, text: str, layer: int, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """J (K, S·D), delta (S·D), e(text) and e(reference), by the right-endpoint rule."""
    model = copy.deepcopy(model).double().eval()
    bert, tokenizer = model[0].auto_model, model.tokenizer
    bert.config._attn_implementation = "eager"
    blocks = bert.encoder.layer
    ids = tokenizer(text, truncation=True, max_length=model.max_seq_length)["input_ids"]
    reference = [ids[0], *[tokenizer.pad_token_id] * (len(ids) - 2), ids[-1]]
    alpha = torch.tensor([n / steps for n in range(1, steps + 1)] + [0.0], dtype=torch.float64)[:, None, None]
    seen: dict[str, Tensor] = {}

    def interpolate(hidden: Tensor) -> Tensor:
        x, r = hidden.detach()[:2]
        seen["delta"] = x - r
        seen["path"] = (r + alpha * (x - r)).requires_grad_()
        return seen["path"]

    def before(_module, inputs):
        return (interpolate(inputs[0]), *inputs[1:])

    def after(_module, _inputs, output):
        return (interpolate(output[0]), *output[1:]) if isinstance(output, tuple) else interpolate(output)

    if layer < len(blocks):
        blocks[layer].register_forward_pre_hook(before)
    else:
        blocks[-1].register_forward_hook(after)
    # As many rows as the path has points, because a block may be handed a position bias for each row.
    rows = torch.tensor([ids, reference]).repeat(len(alpha) // 2 + 1, 1)[: len(alpha)]
    embedding = bert(input_ids=rows).last_hidden_state.mean(1)
    jacobian = []
    for k in range(embedding.shape[1]):
        (gradient,) = torch.autograd.grad(embedding[:-1, k].sum(), seen["path"], retain_graph=True)
        jacobian.append(gradient[:-1].mean(0).flatten())
    return torch.stack(jacobian), seen["delta"].flatten(), embedding[-2].detach(), embedding[-1].detach()


def attributions(model, text_a: str, text_b: str, layer: int, steps: int) -> dict[str, Tensor]:
    """The paper's token–token matrix and its reference terms, for cosine."""
    ja, da, ea, ra = integrated_jacobian(model, text_a, layer, steps)
    jb, db, eb, rb = integrated_jacobian(model, text_b, layer, steps)
    dim = model[0].auto_model.config.hidden_size
    full = da[:, None] * (ja.T @ jb) * db[None, :]  # (Sa·D, Sb·D)
    matrix = full.reshape(len(da) // dim, dim, len(db) // dim, dim).sum((1, 3))
    scale = ea.norm() * eb.norm()
    return {
        "matrix": matrix / scale,
        "effects_a": ((ja * da).reshape(len(ja), -1, dim).sum(2).T @ rb) / scale,
        "effects_b": ((jb * db).reshape(len(jb), -1, dim).sum(2).T @ ra) / scale,
        "constant": ra @ rb / scale,
        "score": ea @ eb / scale,
    }

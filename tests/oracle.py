"""The paper's algorithm, written out: full Jacobians by one backward pass per embedding dimension, in float64.

It shares no code with the engine: hooks on the model's own blocks, the whole (tokens · dim)² matrix, no contraction.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor


def integrated_jacobian(
    model, text: str, layer: int, steps: int, blocks: str = "encoder.layer", entry: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """J (K, S·D), delta (S·D), e(text) and e(reference), by the right-endpoint rule."""
    model = copy.deepcopy(model).double().eval()
    while type(model[-1]).__name__ == "Normalize":
        del model[-1]
    transformer, tokenizer = model[0].auto_model, model.tokenizer
    transformer.config._attn_implementation = "eager"
    transformer.config._experts_implementation = "eager"
    transformer.config.use_cache = False
    read = tokenizer(text, truncation=True, max_length=model.max_seq_length, return_special_tokens_mask=True)
    ids, special = read["input_ids"], read["special_tokens_mask"]
    reference = [i if added else tokenizer.pad_token_id for i, added in zip(ids, special, strict=True)]
    alpha = torch.tensor([n / steps for n in range(1, steps + 1)] + [0.0], dtype=torch.float64)[:, None, None]
    seen: dict[str, Tensor] = {}
    calls = [0]  # shared blocks run several times: what counts is how often one has run

    def interpolate(hidden: Tensor) -> Tensor:
        x, r = hidden.detach()[:2]
        seen["delta"] = x - r
        seen["path"] = (r + alpha * (x - r)).requires_grad_()
        return seen["path"]

    def before(_module, inputs):
        calls[0] += 1
        return (interpolate(inputs[0]), *inputs[1:]) if calls[0] - 1 == layer else None

    def after(_module, _inputs, output):
        if layer < transformer.config.num_hidden_layers or calls[0] != layer:
            return None
        return (interpolate(output[0]), *output[1:]) if isinstance(output, tuple) else interpolate(output)

    stack = list(transformer.get_submodule(blocks).children())
    if layer == 0 and entry is not None:  # more than the first block is handed the embeddings
        stack = [transformer.get_submodule(entry)]
    for block in stack:
        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)
    # As many rows as the path has points, because a block may be handed a position bias for each row.
    rows = torch.tensor([ids, reference]).repeat(len(alpha) // 2 + 1, 1)[: len(alpha)]
    embedding = model({"input_ids": rows, "attention_mask": torch.ones_like(rows)})["sentence_embedding"]
    jacobian = []
    for k in range(embedding.shape[1]):
        (gradient,) = torch.autograd.grad(embedding[:-1, k].sum(), seen["path"], retain_graph=True)
        jacobian.append(gradient[:-1].mean(0).flatten())
    return torch.stack(jacobian), seen["delta"].flatten(), embedding[-2].detach(), embedding[-1].detach()


def attributions(
    model, text_a: str, text_b: str, layer: int, steps: int, blocks: str = "encoder.layer", entry: str | None = None
) -> dict[str, Tensor]:
    """The paper's token–token matrix and its reference terms, for cosine."""
    ja, da, ea, ra = integrated_jacobian(model, text_a, layer, steps, blocks, entry)
    jb, db, eb, rb = integrated_jacobian(model, text_b, layer, steps, blocks, entry)
    dim = model[0].auto_model.config.hidden_size
    full = da[:, None] * (ja.T @ jb) * db[None, :]  # (Sa·D, Sb·D)
    matrix = full.reshape(len(da) // dim, dim, len(db) // dim, dim).sum((1, 3))
    scale = ea.norm() * eb.norm()
    return {
        "features": full.reshape(len(da) // dim, dim, len(db) // dim, dim) / scale,
        "matrix": matrix / scale,
        "effects_a": ((ja * da).reshape(len(ja), -1, dim).sum(2).T @ rb) / scale,
        "effects_b": ((jb * db).reshape(len(jb), -1, dim).sum(2).T @ ra) / scale,
        "constant": ra @ rb / scale,
        "score": ea @ eb / scale,
    }

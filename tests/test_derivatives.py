"""The rules of derivatives that private copies of a model use: each is what PyTorch itself computes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.func import jvp, vjp, vmap

from whymatch.paths.derivatives import attend, knows_attention, speed_up


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(7, eps=0.1), nn.LayerNorm(7, elementwise_affine=False)])
def test_the_rules_of_layers_say_what_pytorch_says(norm):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(5, 7), nn.GELU(), norm, nn.Linear(7, 6, bias=False)).double()
    for weight in plain.parameters():  # those of a fresh LayerNorm are 1 and 0
        nn.init.normal_(weight)
    quick = copy.deepcopy(plain)
    speed_up(quick)
    x, tangents = torch.randn(2, 3, 5).double(), torch.randn(4, 2, 3, 5).double()
    cotangents = torch.randn(4, 2, 3, 6).double()
    for derive in (
        lambda f: vmap(lambda v: jvp(f, (x,), (v,))[1])(tangents),
        lambda f: vmap(vjp(f, x)[1])(cotangents)[0],
        lambda f: f(x),
        lambda f: vmap(f, in_dims=1)(x),
    ):
        torch.testing.assert_close(derive(quick), derive(plain))


def plain_attention(q, k, v, bias):
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5 + (0 if bias is None else bias)
    return (scores.softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("heads", [4, 2], ids=["a key for each query", "keys are shared"])
@pytest.mark.parametrize("masked", [False, True])
def test_the_rule_of_attention_says_what_pytorch_says(heads, masked):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 5, 3, dtype=torch.float64) for n in (4, heads, heads))
    bias = torch.zeros(2, 1, 5, 5, dtype=torch.float64)
    bias[1, ..., 3:] = torch.finfo(torch.float64).min
    bias = bias if masked else None
    tangents = tuple(torch.randn(7, *each.shape, dtype=torch.float64) for each in (q, k, v))
    cotangents = torch.randn(7, 2, 5, 4, 3, dtype=torch.float64)

    def quick(*inputs):
        return attend(None, *inputs, bias)[0]

    def plain(*inputs):
        return plain_attention(*inputs, bias)

    for derive in (
        lambda f: vmap(lambda *along: jvp(f, (q, k, v), along)[1])(*tangents),
        lambda f: vmap(vjp(f, q, k, v)[1])(cotangents),
        lambda f: f(q, k, v),
        lambda f: vmap(f)(*tangents),
    ):
        torch.testing.assert_close(derive(quick), derive(plain))


def test_an_attention_that_is_written_out_has_the_rule_too(load):
    model = load("mpnet", torch.float64)
    assert knows_attention(model)
    own = next(module for module in model.modules() if type(module).__name__ == "MPNetSelfAttention")
    tree = copy.deepcopy(own).eval()
    speed_up(tree)
    torch.manual_seed(0)
    width, heads = own.q.in_features, own.num_attention_heads
    x, tangents = torch.randn(2, 5, width).double(), torch.randn(3, 2, 5, width).double()
    mask = torch.zeros(2, 1, 1, 5).double()
    mask[1, ..., 3:] = torch.finfo(torch.float64).min
    bias = torch.randn(1, heads, 5, 5).double().expand(2, -1, -1, -1).contiguous()
    for derive in (
        lambda f: vmap(lambda v: jvp(f, (x,), (v,))[1])(tangents),
        lambda f: vmap(vjp(f, x)[1])(tangents)[0],
        lambda f: f(x),
    ):
        # Each call gets scores of its own: the model's code adds its bias in place.
        quick, plain = (derive(lambda x, run=run: run(x, mask, bias)[0]) for run in (tree, own.eval()))
        torch.testing.assert_close(quick, plain)

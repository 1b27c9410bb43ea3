from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from whymatch import jacobian
from whymatch.jacobian import Paths, Points, forward, reverse, values
from whymatch.quadrature import RULES
from whymatch.rules import speed_up

TEXTS, ROWS, DIM, OUT = 3, 4, 5, 6


def paths(tail, dtype=torch.float64) -> Paths:
    torch.manual_seed(1)
    start, end = torch.randn(2, TEXTS, ROWS, DIM, dtype=dtype)
    return Paths(tail, start, end - start, torch.arange(ROWS).expand(TEXTS, ROWS), ROWS, room=1000)


def curved(dtype=torch.float64):
    torch.manual_seed(0)
    first, second = nn.Linear(DIM, 8).to(dtype), nn.Linear(8, OUT).to(dtype)

    def tail(x, text):
        mixed = torch.softmax(x @ x.transpose(1, 2), -1) @ x
        return second(torch.tanh(first(mixed))).mean(1) * (1 + text[:, None])

    return tail


def points(n, rule="gauss"):
    return Points.of([RULES[rule](n)] * TEXTS, torch.zeros((), dtype=torch.float64))


def each_row(texts=TEXTS):
    return torch.arange(ROWS)[:, None].expand(ROWS, texts)


@pytest.mark.parametrize("rule", RULES)
def test_a_linear_encoder_is_exact_with_one_node(rule):
    torch.manual_seed(0)
    weight = torch.randn(DIM, OUT, dtype=torch.float64)
    lines = paths(lambda x, _text: (x @ weight).sum(1))
    found = forward(lines, points(1, rule), each_row())
    torch.testing.assert_close(found, lines.delta @ weight)


def test_forward_and_reverse_agree_and_sum_to_the_change():
    lines = paths(curved())
    pushed = forward(lines, points(40), each_row())
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    pulled = reverse(lines, points(40), identity)
    torch.testing.assert_close(pushed, pulled.transpose(1, 2), atol=1e-12, rtol=0)
    text = torch.arange(TEXTS)
    ends = [lines.tail(lines.at(torch.full((TEXTS,), at, dtype=torch.float64), text), text) for at in (0.0, 1.0)]
    torch.testing.assert_close(pushed.sum(1), ends[1] - ends[0], atol=1e-9, rtol=0)


def test_reverse_along_other_rows_is_the_product():
    lines = paths(curved())
    torch.manual_seed(3)
    others = torch.randn(TEXTS, 2, OUT, dtype=torch.float64)
    pushed = forward(lines, points(12), each_row())
    torch.testing.assert_close(reverse(lines, points(12), others), others @ pushed.transpose(1, 2))


def test_groups_of_rows_move_together():
    lines = paths(curved())
    single = forward(lines, points(12), each_row())
    halves = replace(lines, owner=torch.tensor([0, 0, 1, -1]).expand(TEXTS, ROWS), groups=2)
    expected = torch.stack([single[:, :2].sum(1), single[:, 2]], 1)
    torch.testing.assert_close(forward(halves, points(12), torch.tensor([[0], [1]]).expand(2, TEXTS)), expected)
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    torch.testing.assert_close(reverse(halves, points(12), identity).transpose(1, 2), expected)


def test_groups_may_be_of_single_numbers():
    """The paper's form, before it is reduced to tokens: one tangent per feature."""
    lines = paths(curved())
    single = forward(lines, points(12), each_row())
    owner = torch.arange(ROWS * DIM).view(ROWS, DIM).expand(TEXTS, ROWS, DIM)
    every = replace(lines, owner=owner, groups=ROWS * DIM)
    pushed = forward(every, points(12), torch.arange(ROWS * DIM)[:, None].expand(-1, TEXTS))
    torch.testing.assert_close(pushed.view(TEXTS, ROWS, DIM, OUT).sum(2), single)
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    torch.testing.assert_close(reverse(every, points(12), identity).transpose(1, 2), pushed)


def test_texts_may_have_different_numbers_of_nodes():
    lines = paths(curved())
    mixed = Points.of([RULES["gauss"](n) for n in (3, 12, 7)], lines.start)
    found = forward(lines, mixed, each_row())
    for i, n in enumerate((3, 12, 7)):
        torch.testing.assert_close(found[i], forward(lines, points(n), each_row())[i])


@pytest.mark.parametrize("room", [2, 3, 7, 10**6])
def test_chunks_do_not_change_the_result(room):
    lines = paths(curved())
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    whole = forward(lines, points(9), each_row()), reverse(lines, points(9), identity), values(lines, points(9))
    seen, whole_tail = [], curved()

    def tail(x, text):
        seen.append(len(x))
        return whole_tail(x, text)

    small = replace(lines, tail=tail, room=room)
    pieces = forward(small, points(9), each_row()), reverse(small, points(9), identity), values(small, points(9))
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(one, other)
    assert max(seen) <= room


def test_the_cheapest_mode_counts_passes():
    assert jacobian.cheapest(groups=16, dimensions=384) == "forward"
    assert jacobian.cheapest(groups=384, dimensions=384) == "reverse"


def test_the_linear_rule_says_what_pytorch_says():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(DIM, 7), nn.GELU(), nn.Linear(7, OUT, bias=False)).double()
    quick = nn.Sequential(nn.Linear(DIM, 7), nn.GELU(), nn.Linear(7, OUT, bias=False)).double()
    quick.load_state_dict(plain.state_dict())
    speed_up(quick)
    x, tangents = torch.randn(2, 3, DIM).double(), torch.randn(4, 2, 3, DIM).double()
    cotangents = torch.randn(4, 2, 3, OUT).double()
    for derive in (
        lambda f: torch.func.vmap(lambda v: torch.func.jvp(f, (x,), (v,))[1])(tangents),
        lambda f: torch.func.vmap(torch.func.vjp(f, x)[1])(cotangents)[0],
        lambda f: f(x),
        lambda f: torch.func.vmap(f, in_dims=1)(x),
    ):
        torch.testing.assert_close(derive(quick), derive(plain))

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from whymatch.paths.jacobian import IntegratedJacobian, Nodes, Paths, cheapest_mode, values
from whymatch.quadrature import RULES

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


def push(lines, nodes, groups, column=0):
    def tangents(which, number):
        return lines.restrict(groups[which][:, number], number)

    return IntegratedJacobian(lines, nodes).push(tangents, len(groups))[column]


def pull(lines, nodes, cotangents, column=0):
    return IntegratedJacobian(lines, nodes).pull(cotangents, grouped=True)[column]


def points(n, rule="gauss"):
    return Nodes.of([RULES[rule](n)] * TEXTS, torch.zeros((), dtype=torch.float64))


def each_row(texts=TEXTS):
    return torch.arange(ROWS)[:, None].expand(ROWS, texts)


@pytest.mark.parametrize("rule", RULES)
def test_a_linear_encoder_is_exact_with_one_node(rule):
    torch.manual_seed(0)
    weight = torch.randn(DIM, OUT, dtype=torch.float64)
    lines = paths(lambda x, _text: (x @ weight).sum(1))
    torch.testing.assert_close(push(lines, points(1, rule), each_row()), lines.delta @ weight)


def test_forward_and_reverse_agree_and_sum_to_the_change():
    lines = paths(curved())
    pushed = push(lines, points(40), each_row())
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    pulled = pull(lines, points(40), identity)
    torch.testing.assert_close(pushed, pulled.transpose(1, 2), atol=1e-12, rtol=0)
    text = torch.arange(TEXTS)
    ends = [lines.tail(lines.at(torch.full((TEXTS,), at, dtype=torch.float64), text), text) for at in (0.0, 1.0)]
    torch.testing.assert_close(pushed.sum(1), ends[1] - ends[0], atol=1e-9, rtol=0)


def test_reverse_along_other_rows_is_the_product():
    lines = paths(curved())
    torch.manual_seed(3)
    others = torch.randn(TEXTS, 2, OUT, dtype=torch.float64)
    pushed = push(lines, points(12), each_row())
    torch.testing.assert_close(pull(lines, points(12), others), others @ pushed.transpose(1, 2))


def test_groups_of_rows_move_together():
    lines = paths(curved())
    single = push(lines, points(12), each_row())
    halves = replace(lines, owner=torch.tensor([0, 0, 1, -1]).expand(TEXTS, ROWS), groups=2)
    expected = torch.stack([single[:, :2].sum(1), single[:, 2]], 1)
    torch.testing.assert_close(push(halves, points(12), torch.tensor([[0], [1]]).expand(2, TEXTS)), expected)
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    torch.testing.assert_close(pull(halves, points(12), identity).transpose(1, 2), expected)


def test_groups_may_be_of_single_numbers():
    """The paper's form, before it is reduced to tokens: one tangent per feature."""
    lines = paths(curved())
    single = push(lines, points(12), each_row())
    owner = torch.arange(ROWS * DIM).view(ROWS, DIM).expand(TEXTS, ROWS, DIM)
    every = replace(lines, owner=owner, groups=ROWS * DIM)
    pushed = push(every, points(12), torch.arange(ROWS * DIM)[:, None].expand(-1, TEXTS))
    torch.testing.assert_close(pushed.view(TEXTS, ROWS, DIM, OUT).sum(2), single)
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    torch.testing.assert_close(pull(every, points(12), identity).transpose(1, 2), pushed)


def test_texts_may_have_different_numbers_of_nodes():
    lines = paths(curved())
    mixed = Nodes.of([RULES["gauss"](n) for n in (3, 12, 7)], lines.start)
    pushed = push(lines, mixed, each_row())
    for i, n in enumerate((3, 12, 7)):
        torch.testing.assert_close(pushed[i], push(lines, points(n), each_row())[i])


@pytest.mark.parametrize("room", [2, 3, 7, 10**6])
def test_chunks_do_not_change_the_result(room):
    lines = paths(curved())
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    whole = push(lines, points(9), each_row()), pull(lines, points(9), identity), values(lines, points(9))
    seen, whole_tail = [], curved()

    def tail(x, text):
        seen.append(len(x))
        return whole_tail(x, text)

    small = replace(lines, tail=tail, room=room)
    pieces = push(small, points(9), each_row()), pull(small, points(9), identity), values(small, points(9))
    for part, expected in zip(whole, pieces, strict=True):
        torch.testing.assert_close(part, expected)
    assert max(seen) <= room


def test_every_column_of_weights_is_a_sum_of_its_own():
    lines = paths(curved())
    alpha, weights = RULES["gauss"](9)
    columns = RULES["gauss"].columns(9)
    every = Nodes.of([(alpha, columns)] * TEXTS, lines.start)
    identity = torch.eye(OUT, dtype=torch.float64).expand(TEXTS, OUT, OUT)
    for number in range(4):
        alone = Nodes.of([(alpha, columns[:, number])] * TEXTS, lines.start)
        expected = push(lines, alone, each_row())
        torch.testing.assert_close(push(lines, every, each_row(), number), expected)
        torch.testing.assert_close(pull(lines, every, identity, number).mT, expected)
    plain = Nodes.of([(alpha, weights)] * TEXTS, lines.start)
    torch.testing.assert_close(push(lines, every, each_row()), push(lines, plain, each_row()))


def test_the_cheapest_mode_counts_passes():
    assert cheapest_mode(groups=16, dimensions=384) == "forward"
    assert cheapest_mode(groups=384, dimensions=384) == "reverse"

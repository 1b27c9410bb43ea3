"""The rules of the secant: each against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 as everybody calls it

from whymatch.paths.jacobian import plain_attention
from whymatch.paths.rules import RULES, Pair
from whymatch.paths.secant import NoSecantError, record

DOUBLE = torch.float64


def ends(*shape, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, *shape, generator=generator, dtype=dtype)


def secant(function, x, r, **options):
    """The matrix of a function's secant (results, inputs), by pushing each direction; checked to be exact."""
    recorded = record(function, x, r, **options)
    identity = torch.eye(x.numel(), dtype=x.dtype).view(-1, *x.shape)
    pushed = recorded.tape.push(identity).reshape(len(identity), -1)  # (inputs, results)
    change = (function(x) - function(r)).detach().flatten()
    torch.testing.assert_close((x - r).flatten() @ pushed, change, rtol=1e-11, atol=1e-11)
    cotangents = torch.eye(change.numel(), dtype=x.dtype).view(-1, *recorded.x.shape)
    torch.testing.assert_close(
        recorded.tape.pull(cotangents).reshape(len(cotangents), -1), pushed.T, rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(recorded.x, function(x).detach(), rtol=0, atol=1e-15)
    torch.testing.assert_close(recorded.r, function(r).detach(), rtol=0, atol=1e-15)
    return pushed.T.numpy()


# Linear operations are their own secant: whatever points it is taken between, it is the function's matrix.

WEIGHT = ends(5, 4)[0]
LINEAR = {
    "view": lambda x: x.view(4, 6),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(-1, 0),
    "t": lambda x: x[0].t(),
    "expand": lambda x: x[:, :, None].expand(-1, -1, 3, -1),
    "slice": lambda x: x[:, 1:, ::2],
    "slice a negative range": lambda x: x[..., -3:-1],
    "select": lambda x: x[:, -1],
    "unbind": lambda x: x.unbind(1)[2] + x.unbind(1)[0],
    "split": lambda x: torch.cat(x.split([1, 3], -1)[::-1], -1),
    "chunk": lambda x: x.chunk(2, -1)[1] - x.chunk(2, -1)[0],
    "cat": lambda x: torch.cat([x, torch.ones(2, 1, 4), -x], 1),
    "stack": lambda x: torch.stack([x, torch.ones(2, 3, 4), 2 * x], -2),
    "index": lambda x: x[torch.tensor([1, 0, 1]), torch.tensor([0, 2, 2])],
    "a mask as index": lambda x: x[torch.tensor([[True, False, True], [False, False, True]])],
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 2, 0])),
    "gather": lambda x: x.gather(2, torch.tensor([3, 0]).expand(2, 3, 2)),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 2),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "pad less": lambda x: F.pad(x, (-1, 1)),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "masked_fill": lambda x: x.masked_fill(torch.tensor([True, False, False, True]), -7.0),
    "where": lambda x: torch.where(torch.tensor([[True], [False], [True]]), x, 2.0),
    "where, of two": lambda x: torch.where(torch.tensor([[True], [False], [True]]), x, x.flip(0)),
    "tril": lambda x: x.tril(),
    "triu": lambda x: x.triu(1),
    "sum": lambda x: x.sum(1),
    "sum of all": lambda x: x.sum(),
    "sum over two axes": lambda x: x.sum((0, 2), keepdim=True),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "mean of all": lambda x: x.mean(),
    "cumsum": lambda x: x.cumsum(1),
    "add": lambda x: x + x[:, :1] + torch.ones(3, 1),
    "a constant that is larger": lambda x: x[0, 0] + torch.zeros(5, 4),
    "add with a factor": lambda x: torch.add(x, x.flip(2), alpha=3),
    "sub": lambda x: 1 - (x - x[..., :1]) - 2,
    "mul": lambda x: x * torch.arange(4) * 3,
    "div": lambda x: x / torch.arange(1, 5) / 2,
    "neg": lambda x: -x,
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "linear": lambda x: F.linear(x, WEIGHT, WEIGHT[:, 0]),
    "matmul from the left": lambda x: WEIGHT @ x.mT,
    "mm from the left": lambda x: WEIGHT @ x[0].T,
    "mv": lambda x: WEIGHT @ x[0, 0],
    "mv of a matrix": lambda x: x[0] @ WEIGHT[0],
    "addmm": lambda x: torch.addmm(x[0], x[0], WEIGHT[:4].mT[:, :4], beta=2, alpha=3),
    "baddbmm": lambda x: torch.baddbmm(x[:, :, :3], x, torch.ones(2, 4, 3), beta=2, alpha=3),
    "einsum": lambda x: torch.einsum("btd,kd->kbt", x, WEIGHT),
    "conv1d": lambda x: F.conv1d(x, torch.ones(2, 3, 3), padding=1, stride=2),
    "conv1d in groups": lambda x: F.conv1d(x, torch.ones(3, 1, 2), groups=3),
    "im2col": lambda x: F.unfold(x[:, :, None], (1, 3), padding=(0, 1)),
    "batch_norm": lambda x: F.batch_norm(x, torch.ones(3), torch.tensor([1.0, 2, 3]), torch.ones(3), torch.ones(3)),
    "fft": lambda x: torch.fft.fftn(x.to(torch.complex128), dim=(1, 2)).real,
    "fft of real numbers": lambda x: torch.fft.fft(x, dim=-1).imag,
    "avg_pool2d": lambda x: F.avg_pool2d(x[:, None], 2, padding=1),
    "avg_pool2d without padding": lambda x: F.avg_pool2d(x[:, None], (2, 3), stride=1),
    "as_strided": lambda x: x.clone().as_strided((2, 2), (1, 5), 3),
    "rotate": lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1) * torch.arange(4) + x * torch.ones(3, 1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :1] * 2, 1, 2, 3),
    "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 2),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_operations_are_their_own_secant(name):
    function = LINEAR[name]
    previous = torch.get_default_dtype()
    torch.set_default_dtype(DOUBLE)
    try:
        x, r = ends(2, 3, 4)
        matrix = secant(function, x, r)
        origin = function(torch.zeros_like(x)).flatten()
        columns = [function(direction).flatten() - origin for direction in torch.eye(24).view(24, 2, 3, 4)]
    finally:
        torch.set_default_dtype(previous)
    np.testing.assert_allclose(matrix, torch.stack(columns, 1).numpy(), atol=1e-13)


# Functions of each number.

ELEMENTWISE = {
    "relu": (F.relu, lambda v: max(v, 0.0)),
    "gelu": (F.gelu, lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2)))),
    "gelu, by tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    ),
    "silu": (F.silu, lambda v: v / (1 + math.exp(-v))),
    "mish": (F.mish, lambda v: v * math.tanh(math.log1p(math.exp(v)))),
    "tanh": (torch.tanh, math.tanh),
    "sigmoid": (torch.sigmoid, lambda v: 1 / (1 + math.exp(-v))),
    "logsigmoid": (F.logsigmoid, lambda v: -math.log1p(math.exp(-v))),
    "softplus": (F.softplus, lambda v: math.log1p(math.exp(v))),
    "erf": (torch.erf, math.erf),
    "exp": (torch.exp, math.exp),
    "expm1": (torch.expm1, math.expm1),
    "sin": (torch.sin, math.sin),
    "cos": (torch.cos, math.cos),
    "abs": (torch.abs, abs),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda v: v if v > 0 else 0.2 * v),
    "elu": (F.elu, lambda v: v if v > 0 else math.expm1(v)),
    "hardtanh": (F.hardtanh, lambda v: min(max(v, -1.0), 1.0)),
    "hardswish": (F.hardswish, lambda v: v * min(max(v + 3, 0.0), 6.0) / 6),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), lambda v: min(max(v, -0.5), 0.7)),
    "clamp_min": (lambda x: x.clamp_min(0.1), lambda v: max(v, 0.1)),
    "square": (torch.square, lambda v: v * v),
    "pow 3": (lambda x: x**3, lambda v: v**3),
    "pow -2": (lambda x: x**-2, lambda v: v**-2),
    "2 to the power": (lambda x: 2.0**x, lambda v: 2.0**v),
}
POSITIVE = {
    "sqrt": (torch.sqrt, math.sqrt),
    "rsqrt": (torch.rsqrt, lambda v: 1 / math.sqrt(v)),
    "reciprocal": (torch.reciprocal, lambda v: 1 / v),
    "3 / x": (lambda x: 3 / x, lambda v: 3 / v),
    "log": (torch.log, math.log),
    "log1p": (torch.log1p, math.log1p),
    "pow 0.5": (lambda x: x**0.5, math.sqrt),
    "pow -0.5": (lambda x: x**-0.5, lambda v: v**-0.5),
    "pow 1.7": (lambda x: x**1.7, lambda v: v**1.7),
}
FUNCTIONS = ELEMENTWISE | POSITIVE


def slope(f, v, h=1e-5):
    return (f(v + h) - f(v - h)) / (2 * h)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_each_number(name):
    function, f = FUNCTIONS[name]
    x, r = 1.5 * ends(12, seed=3)
    x[:2] = r[:2]  # where they meet
    if name in POSITIVE:
        x, r = x.abs() + 0.2, r.abs() + 0.2
    expected = [slope(f, a) if a == b else (f(a) - f(b)) / (a - b) for a, b in zip(x.tolist(), r.tolist(), strict=True)]
    np.testing.assert_allclose(secant(function, x, r), np.diag(expected), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("apart", [1e-14, 1e-9, 1e-5, 1e-3, 1e-2])
def test_points_that_nearly_meet(name, apart):
    """The quotient of rounded values would be lost in their rounding; the secant is close to the slope."""
    function, f = FUNCTIONS[name]
    r = torch.linspace(0.21, 2.9, 9, dtype=DOUBLE)
    x = r + apart
    exact = [slope(f, a, max(apart / 2, 1e-5)) for a in ((x + r) / 2).tolist()]
    np.testing.assert_allclose(np.diag(secant(function, x, r)), exact, rtol=1e-6, atol=1e-6)
    single = record(function, x.float(), r.float()).tape.push(torch.ones(1, 9))[0]
    distance = 1e-4 if apart < 1e-2 and name in SMOOTH else 2e-3
    if apart >= 1e-2 or name in SMOOTH:
        np.testing.assert_allclose(single, exact, atol=distance, rtol=distance)


SMOOTH = [name for name in FUNCTIONS if name not in ("relu", "abs", "leaky_relu", "elu", "hardtanh", "hardswish")]
SMOOTH = [name for name in SMOOTH if not name.startswith("clamp")]


# Products, and what is made of several numbers.


def test_a_product_takes_the_mean_of_one_factor_and_the_change_of_the_other():
    x, r = ends(2, 3)
    matrix = secant(lambda v: v[0] * v[1], x, r)
    mean = ((x + r) / 2).numpy()
    np.testing.assert_allclose(matrix, np.hstack([np.diag(mean[1]), np.diag(mean[0])]))


def test_a_quotient_is_a_product_with_a_reciprocal():
    x, r = ends(2, 3)
    matrix = secant(lambda v: v[0] / v[1], x, r)
    x, r = x.numpy(), r.numpy()
    over = np.diag((1 / x[1] + 1 / r[1]) / 2)
    under = np.diag(-(x[0] + r[0]) / 2 / (x[1] * r[1]))
    np.testing.assert_allclose(matrix, np.hstack([over, under]))


@pytest.mark.parametrize("product", ["bmm", "mm", "dot", "mul, broadcast", "addcmul", "baddbmm"])
def test_products_of_two_things_that_change(product):
    x, r = ends(2, 3, 3)
    function = {
        "bmm": lambda v: torch.bmm(v, v.flip(0)),
        "mm": lambda v: v[0] @ v[1],
        "dot": lambda v: v[0, 0] @ v[1, 1],
        "mul, broadcast": lambda v: v * v[:1, 1:2],
        "addcmul": lambda v: torch.addcmul(v[0], v[1], v[0].T, value=2),
        "baddbmm": lambda v: torch.baddbmm(v, v, v.mT),
    }[product]
    # All are quadratic, and the secant of a quadratic function is its derivative at the mean.
    expected = torch.func.jacrev(function)((x + r) / 2).reshape(-1, 18)
    np.testing.assert_allclose(secant(function, x, r), expected.numpy(), atol=1e-12)


def slow_softmax(z):
    shifted = [math.exp(v - max(z)) for v in z]
    return [v / sum(shifted) for v in shifted]


def slow_softmax_secant(z_x, z_r):
    a, b = slow_softmax(z_x), slow_softmax(z_r)
    mean = [
        u if u == v else 0.0 if not (u and v) else (u - v) / (math.log(u) - math.log(v))
        for u, v in zip(a, b, strict=True)
    ]
    total = sum(mean)
    n = len(mean)
    return np.array([[mean[i] * ((i == j) - mean[j] / total) for j in range(n)] for i in range(n)])


def test_softmax():
    x, r = 2 * ends(5)
    np.testing.assert_allclose(secant(lambda z: z.softmax(0), x, r), slow_softmax_secant(x.tolist(), r.tolist()))
    same = x + 3.0  # the weights are the same: the derivative
    np.testing.assert_allclose(
        secant(lambda z: z.softmax(0), same, x), torch.func.jacrev(lambda z: z.softmax(0))(x), atol=1e-12
    )


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(DOUBLE).min, -1e4])
def test_softmax_with_a_mask(masked):
    x, r = ends(2, 4)
    mask = torch.tensor([0, masked, 0, 0], dtype=DOUBLE)
    matrix = secant(lambda z: (z + mask).softmax(-1), x, r).reshape(2, 4, 2, 4)
    for row in range(2):
        kept = [0, 2, 3]
        expected = slow_softmax_secant(x[row, kept].tolist(), r[row, kept].tolist())
        np.testing.assert_allclose(matrix[row][:, row][np.ix_(kept, kept)], expected, atol=1e-14)
        assert (matrix[row][1] == 0).all()
        assert (matrix[row][:, row, 1] == 0).all()


def test_softmax_that_moves_from_one_end_to_the_other():
    x = torch.tensor([400.0, 0, -400], dtype=DOUBLE)
    matrix = secant(lambda z: z.softmax(0), x, -x)
    assert np.isfinite(matrix).all()
    assert matrix[0, 0] == pytest.approx(1 / 1600, rel=0.1)  # it rises by 1, as z rises by 800 and its rival falls


def test_log_softmax_and_logsumexp():
    x, r = ends(3, 4)
    secant(lambda z: z.log_softmax(-1), x, r)
    matrix = secant(lambda z: z.logsumexp(1), x, r)
    for row in range(3):
        weights = matrix[row].reshape(3, 4)[row]
        a, b = (slow_softmax(z[row].tolist()) for z in (x, r))
        means = [(u - v) / (math.log(u) - math.log(v)) for u, v in zip(a, b, strict=True)]
        np.testing.assert_allclose(weights, np.array(means) / sum(means))


def slow_norm_secant(x, r, eps, centred, norm="both", share=2 / 3):
    """The derivative of (i, c) ↦ i · c at the factors, with quotients of i and the variance; or a mean of Jacobians."""
    if norm == "both":
        line, mean = (slow_norm_secant(x, r, eps, centred, each) for each in ("line", "mean"))
        return share * line + (1 - share) * mean
    n = len(x)
    if norm == "line":
        nodes, weights = np.polynomial.legendre.leggauss(80)
        matrix = np.zeros((n, n))
        for node, weight in zip(nodes / 2 + 0.5, weights / 2, strict=True):
            point = torch.tensor([v + node * (u - v) for u, v in zip(x, r, strict=True)], dtype=DOUBLE)
            matrix += weight * torch.func.jacrev(lambda p: _written_norm(p, eps, centred))(point).numpy()
        return matrix
    c_x, c_r = ([v - sum(p) / n * centred for v in p] for p in (x, r))
    i_x, i_r = (1 / math.sqrt(sum(v * v for v in c) / n + eps) for c in (c_x, c_r))
    at_i = i_r if norm == "reference" else (i_x + i_r) / 2
    at_c = c_x if norm == "reference" else [(u + v) / 2 for u, v in zip(c_x, c_r, strict=True)]
    per_variance = -i_x * i_r / (1 / i_x + 1 / i_r)
    matrix = np.zeros((n, n))
    for j in range(n):
        dc = [(k == j) - centred / n for k in range(n)]
        dvar = sum((u + v) * d for u, v, d in zip(c_x, c_r, dc, strict=True)) / n
        for k in range(n):
            matrix[k, j] = at_i * dc[k] + at_c[k] * per_variance * dvar
    return matrix


def slow_growth(x, r, eps):
    """How much larger a norm's mean factor along the line is than the mean of those at its ends."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    factors = [1 / math.sqrt((r + t * (x - r)).var() + eps) for t in (*(nodes / 2 + 0.5), 0, 1)]
    return weights @ factors[:-2] / sum(factors[-2:])


def _written_norm(v, eps, centred):
    c = v - v.mean() if centred else v
    return c * torch.rsqrt((c * c).mean() + eps)


NORMS = ["both", "line", "mean", "reference"]


@pytest.mark.parametrize("norm", NORMS)
def test_layer_norm(norm):
    x, r = ends(6)
    weight = torch.arange(1.0, 7, dtype=DOUBLE)
    matrix = secant(lambda v: F.layer_norm(v, (6,), weight, weight, 1e-3), x, r, norm=norm)
    expected = slow_norm_secant(x.tolist(), r.tolist(), 1e-3, True, norm)
    np.testing.assert_allclose(matrix, weight.numpy()[:, None] * expected)


def test_rms_norm():
    x, r = ends(6)
    matrix = secant(lambda v: F.rms_norm(v, (6,), None, 1e-3), x, r)
    np.testing.assert_allclose(matrix, slow_norm_secant(x.tolist(), r.tolist(), 1e-3, False, "mean"))


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_is_exact_where_the_line_almost_meets_its_centre(norm):
    """The deviation has a sharp dip there, which the nodes do not resolve."""
    x, _ = ends(6)
    r = -1.001 * x + 1e-5
    matrix = secant(lambda v: F.layer_norm(v, (6,), eps=1e-12), x, r, norm=norm)
    np.testing.assert_allclose(
        matrix @ (x - r).numpy(), (F.layer_norm(x, (6,)) - F.layer_norm(r, (6,))).numpy(), atol=1e-4
    )


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_points_that_almost_meet_is_its_derivative(norm):
    x, _ = ends(6)
    x = x.float()
    derivative = torch.func.jacrev(lambda v: F.layer_norm(v, (6,)))(x).numpy()
    for r in (x, x + 1e-6):
        pushed = record(lambda v: F.layer_norm(v, (6,)), x, r, norm).tape.push(torch.eye(6))
        np.testing.assert_allclose(pushed.T.numpy(), derivative, atol=1e-5)


def test_a_layer_norm_written_out_is_a_product():
    x, r = ends(6)
    expected = slow_norm_secant(x.tolist(), r.tolist(), 1e-3, True, "mean")
    np.testing.assert_allclose(secant(lambda v: _written_norm(v, 1e-3, True), x, r), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda v: v.var(1),
        lambda v: v.var((0, 1), correction=0),
        lambda v: v.std(1, keepdim=True),
        lambda v: torch.cat(torch.var_mean(v, 1, keepdim=True)),
        lambda v: v.norm(dim=1),
        lambda v: v.norm(),
        lambda v: F.normalize(v, dim=-1),
        lambda v: v / v.pow(2).sum(-1, keepdim=True).sqrt(),
    ],
)
def test_spreads_and_lengths(function):
    x, r = ends(3, 4)
    secant(function, x, r)
    near = secant(function, x, x + 1e-9)
    np.testing.assert_allclose(near, torch.func.jacrev(function)(x).reshape(-1, 12), atol=1e-7)


def slow_max_secant(x, r):
    i, j = max(range(len(x)), key=x.__getitem__), max(range(len(r)), key=r.__getitem__)
    row = [0.0] * len(x)
    # The share of the line from r to x on which entry i is above entry j.
    share = 0.5 if i == j else (x[i] - x[j]) / ((x[i] - x[j]) + (r[j] - r[i]))
    row[i] += share
    row[j] += 1 - share
    return row


@pytest.mark.parametrize("seed", range(5))
def test_maxima(seed):
    x, r = ends(3, 5, seed=seed)
    expected = np.zeros((3, 3, 5))
    for row in range(3):
        expected[row, row] = slow_max_secant(x[row].tolist(), r[row].tolist())
    expected = expected.reshape(3, 15)
    for function in (lambda v: v.max(1)[0], lambda v: v.amax(-1), lambda v: -(-v).min(1, keepdim=True)[0][:, 0]):
        np.testing.assert_allclose(secant(function, x, r), expected, atol=1e-14)
    whole = np.array([slow_max_secant(x.flatten().tolist(), r.flatten().tolist())])
    for function in (lambda v: v.max(), lambda v: v.amax(), lambda v: v.amax((0, 1)), lambda v: -(-v).amin()):
        np.testing.assert_allclose(secant(function, x, r), whole, atol=1e-14)
    two = secant(lambda v: torch.maximum(v[0], v[1]), x, r).reshape(5, 3, 5)
    for column in range(5):
        pair = slow_max_secant(x[:2, column].tolist(), r[:2, column].tolist())
        np.testing.assert_allclose(two[column, :2, column], pair, atol=1e-14)
    np.testing.assert_allclose(
        secant(lambda v: torch.minimum(v, torch.zeros(5, dtype=DOUBLE)), x, r),
        secant(lambda v: -torch.relu(-v), x, r),
        atol=1e-14,
    )


def test_max_pooling_of_planes():
    x, r = ends(2, 3, 4, 6)
    matrix = secant(lambda v: F.max_pool2d(v, (2, 3)), x, r).reshape(2, 3, 2, 2, 2, 3, 4, 6)
    for row in range(2):
        for column in range(2):
            window = (1, 2, slice(2 * row, 2 * row + 2), slice(3 * column, 3 * column + 3))
            expected = slow_max_secant(x[window].flatten().tolist(), r[window].flatten().tolist())
            np.testing.assert_allclose(matrix[1, 2, row, column][window].flatten(), expected, atol=1e-14)
    secant(lambda v: F.max_pool1d(v[0], 3, stride=1, padding=1), x, r)


def test_group_norm():
    x, r = ends(2, 4, 3)
    weight = torch.arange(1.0, 5, dtype=DOUBLE)
    matrix = secant(lambda v: F.group_norm(v, 2, weight, weight, 1e-3), x, r).reshape(2, 4, 3, 2, 4, 3)
    expected = slow_norm_secant(x[1, 2:].flatten().tolist(), r[1, 2:].flatten().tolist(), 1e-3, True, "line")
    expected = expected.reshape(2, 3, 2, 3) * np.array([3, 4])[:, None, None, None]
    np.testing.assert_allclose(matrix[1, 2:, :, 1, 2:], expected)


def test_a_sorted_tensor_needs_one_order():
    x = torch.tensor([3.0, 1, 2], dtype=DOUBLE)
    np.testing.assert_allclose(secant(lambda v: v.sort()[0], x, x / 2), np.eye(3)[[1, 2, 0]])
    np.testing.assert_allclose(secant(lambda v: v.topk(2)[0], x, x / 2), np.eye(3)[[0, 2]])
    with pytest.raises(NoSecantError, match=r"aten\.sort has no exact secant where it puts numbers in another order"):
        record(lambda v: v.sort()[0], x, -x)


# Fused attention: on other devices it has other names and orders of arguments.

MASK = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
FUSED = {
    "_scaled_dot_product_flash_attention_for_cpu": lambda rule, out, q, k, v, mask, causal: rule(
        out, q, k, v, 0.0, causal, attn_mask=mask, scale=0.3
    ),
    "_scaled_dot_product_efficient_attention": lambda rule, out, q, k, v, mask, causal: rule(
        out, q, k, v, mask, True, 0.0, causal, scale=0.3
    ),
    "_scaled_dot_product_cudnn_attention": lambda rule, out, q, k, v, mask, causal: rule(
        out, q, k, v, mask, True, 0.0, causal, False, scale=0.3
    ),
    "_scaled_dot_product_attention_math_for_mps": lambda rule, out, q, k, v, mask, causal: rule(
        out, q, k, v, mask, 0.0, causal, None, scale=0.3
    ),
    "_scaled_dot_product_flash_attention": lambda rule, out, q, k, v, _mask, causal: rule(
        out, q, k, v, 0.0, causal, False, scale=0.3
    ),
}


@pytest.mark.parametrize("masked", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("name", FUSED)
def test_fused_attention_is_the_same_as_written_out(name, masked):
    if name.endswith("_flash_attention") and masked in ("bool", "float"):
        return  # it takes no mask
    x, r = ends(3, 2, 2, 3, 4)  # q, k and v
    mask = MASK if masked == "bool" else ends(2, 1, 3, 3, seed=1)[0] if masked == "float" else None
    added = torch.zeros(3, 3, dtype=DOUBLE)
    if masked == "float":
        added = mask
    elif masked != "none":
        added.masked_fill_(~(MASK if masked == "bool" else torch.ones(3, 3, dtype=torch.bool).tril()), -torch.inf)

    def written(v):
        scores = torch.matmul(v[0], v[1].mT) * 0.3 + added
        return torch.matmul(scores.softmax(-1), v[2])

    q, k, v = (Pair(x[n], r[n], n) for n in range(3))
    out = ((written(x), None), (written(r), None))
    attention = FUSED[name](RULES[name], out, q, k, v, mask, masked == "causal")[0]
    changes = ends(5, 3, 2, 2, 3, 4, seed=2)[0]
    expected = record(written, x, r).tape
    torch.testing.assert_close(attention.push(*changes.unbind(1)), expected.push(changes))
    cotangents = ends(5, 2, 2, 3, 4, seed=3)[0]
    torch.testing.assert_close(torch.stack(attention.pull(cotangents), 1), expected.pull(cotangents))


def test_attention_with_queries_that_do_not_change():
    x, r = ends(2, 2, 3, 4)
    queries = ends(2, 2, 3, 4, seed=1)[0]
    fused = secant(lambda v: F.scaled_dot_product_attention(queries, v, v), x, r)
    written = secant(lambda v: torch.matmul((torch.matmul(queries, v.mT) / 2).softmax(-1), v), x, r)
    np.testing.assert_allclose(fused, written, atol=1e-12)


def test_a_module_of_pytorch():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    x, r = ends(2, 3, 8)

    def run(v):
        with plain_attention():
            return layer(v)

    secant(run, x, r)


# Precision.


def test_a_cast_to_a_lower_precision_is_left_out():
    """Its rounding would be all that is missing; weights that were made in it are raised to the input's."""
    weight = torch.eye(4) * 2

    def function(v):
        low = v.to(torch.float32)
        return (low * torch.rsqrt(low.pow(2).mean(-1, keepdim=True)) @ weight.to(low.dtype)).to(v.dtype)

    x, r = ends(3, 4)
    recorded = record(lambda v: function(v) @ torch.eye(4), x, r)  # double, with a matrix in single precision
    change = recorded.tape.push((x - r)[None])[0]
    torch.testing.assert_close(change, recorded.x - recorded.r, rtol=0, atol=1e-14)
    torch.testing.assert_close(recorded.x, function(x), rtol=0, atol=1e-6)


def test_a_wider_weight_raises_what_it_meets():
    x, r = ends(3, 4, dtype=torch.float32)
    recorded = record(lambda v: v.double() @ torch.eye(4, dtype=DOUBLE), x, r)
    torch.testing.assert_close(recorded.tape.push((x - r)[None])[0], (x - r).double())
    assert recorded.tape.pull(torch.ones(1, 3, 4, dtype=DOUBLE)).dtype == torch.float32


# Operations that write to memory.


def overwritten(v):
    scores = v * 2
    scores += 1
    scores[:, 1:] *= v[:, 1:]
    scores.T[0].add_(v[:, 2])
    view = scores.view(-1)
    view[::2] = 0
    buffer = torch.zeros(3, 4, dtype=v.dtype)
    row = buffer[1]
    buffer[:, :2] = scores[:, :2]
    row.mul_(v[0])
    buffer[2].copy_(view[:4])
    buffer[0, 3] = 5
    F.relu(buffer, inplace=True)
    scores.masked_fill_(torch.tensor([True, False, False, False]), 3.0)
    return torch.cat([buffer, scores, row[None]])


def functional(v):
    scores = v * 2 + 1
    scores = torch.cat([scores[:, :1], scores[:, 1:] * v[:, 1:]], 1)
    scores = torch.cat([scores[:, :1] + v[:, 2:3], scores[:, 1:]], 1)
    keep = (torch.arange(12) % 2).view(3, 4)
    scores = scores * keep
    rows = torch.cat([scores[:, :2], torch.zeros(3, 2, dtype=v.dtype)], 1)
    rows = torch.stack([rows[0], rows[1] * v[0], scores.reshape(-1)[:4]])
    rows = torch.cat([torch.cat([rows[0, :3], rows.new_full((1,), 5.0)])[None], rows[1:]])
    rows = F.relu(rows)
    scores = torch.cat([torch.full((3, 1), 3.0, dtype=v.dtype), scores[:, 1:]], 1)
    return torch.cat([rows, scores, rows[1:2]])


def test_writing_in_place_is_the_same_as_not_to():
    x, r = ends(3, 4)
    torch.testing.assert_close(overwritten(x), functional(x))
    before = x.clone(), r.clone()
    np.testing.assert_allclose(secant(overwritten, x, r), secant(functional, x, r), atol=1e-13)
    assert torch.equal(x, before[0])
    assert torch.equal(r, before[1])


def test_memory_that_is_used_again():
    def function(v):
        buffer = v * 2
        buffer.zero_()
        buffer[0] = 3  # the same for both points
        buffer[1:] = v[1:]
        return buffer * v

    x, r = ends(3, 4)
    expected = secant(lambda v: torch.cat([torch.full((1, 4), 3.0, dtype=DOUBLE), v[1:]]) * v, x, r)
    np.testing.assert_allclose(secant(function, x, r), expected, atol=1e-14)


def test_an_encoder_may_overwrite_its_input():
    x, r = ends(3, 4)
    recorded = record(lambda v: v.add_(1).mul_(2), x, r)
    torch.testing.assert_close(recorded.tape.push((x - r)[None])[0], 2 * (x - r))


def test_a_factor_that_is_overwritten_later_is_refused():
    def function(v):
        factor = torch.ones(4, dtype=v.dtype)
        scaled = v * factor
        factor.fill_(2)
        return scaled

    with pytest.raises(NoSecantError, match=r"aten\.mul .* where a tensor that it reads is overwritten later"):
        record(function, *ends(3, 4))


# What has no secant.


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: torch.lgamma(v.abs()), r"aten\.lgamma has no exact secant; path=\"relay\""),
        (lambda v: v.round(), r"aten\.round has no"),
        (lambda v: torch.where(v > 0, v, 0), r"aten\.gt .* where its result is another one for the input than"),
        (lambda v: v[v.argmax(0)], r"aten\.argmax .* where its result is another one"),
        (lambda v: v if v.sum() > 0 else -v, r"aten\.gt .* where its result is another one|aten\._local_scalar_dense"),
        (lambda v: v * v.sum().item(), r"aten\._local_scalar_dense .* where its result is another one"),
        (lambda v: v.norm(p=1, dim=0), r"aten\.linalg_vector_norm .* where it is a norm of order 1"),
        (lambda v: v.pow(1.5), r"aten\.pow .* where its exponent is 1.5, and its base not positive"),
        (lambda v: torch.pow(v.abs(), v), r"aten\.pow .* where its exponent depends on the input"),
        (lambda v: F.batch_norm(v, None, None, training=True), r"native_batch_norm"),
        (lambda v: torch.mul(v, 2, out=torch.empty_like(v)), r"aten\.mul .* where it writes to a tensor that it is"),
    ],
)
def test_what_has_no_secant_is_named(function, message):
    x = torch.tensor([[1.0, -2, 3], [0.3, 2, -1]], dtype=DOUBLE)
    with pytest.raises(NoSecantError, match=message):
        record(function, x, -x)


def test_a_branch_that_both_points_take():
    x, r = ends(3, 4)
    np.testing.assert_allclose(secant(lambda v: v * 2 if v.sum() < 1e3 else -v, x, r), 2 * np.eye(12))

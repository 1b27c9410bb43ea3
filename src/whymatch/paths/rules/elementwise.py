"""Functions of each number by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whymatch.paths.rules.linear import Linear, NoRule, Pair, check_fixed, rule, scale_by

aten = torch.ops.aten


def _quotient(
    x: Tensor,
    r: Tensor,
    f_x: Tensor,
    f_r: Tensor,
    slope: Callable[[Tensor], Tensor],
    kinks: Sequence[float] | None,
) -> Tensor:
    """Return (f(x) − f(r)) / (x − r), or the mean slope between them where their difference would be lost in rounding.

    The mean slope of a smooth function is taken by Gauss's rule with two points, whose error there is below rounding.
    """
    change = x - r
    if kinks is None:
        close = change == 0
    else:
        close = change.abs() <= (0.05 if x.dtype == torch.float32 else 2e-3)
        for kink in kinks:
            close &= ((x - kink) * (r - kink) > 0) | (change == 0)
    ratio = (f_x - f_r) / change
    places = close.reshape(-1).nonzero()[:, 0]
    if len(places):
        start, step = r.reshape(-1)[places], change.reshape(-1)[places]
        away = math.sqrt(3) / 6
        slopes = (slope(start + (0.5 - away) * step) + slope(start + (0.5 + away) * step)) / 2
        ratio = ratio.reshape(-1).index_copy(0, places, slopes).view(change.shape)
    return ratio


# Slopes of functions, and where these have kinks; None for functions that are straight between their kinks, whose
# quotients lose nothing in rounding. The functions' further arguments follow the points.
SLOPES: dict[str, tuple[Callable[..., Tensor], Sequence[float] | None]] = {
    "gelu": (lambda p, approximate="none": aten.gelu_backward(torch.ones_like(p), p, approximate=approximate), ()),
    "silu": (lambda p: aten.silu_backward(torch.ones_like(p), p), ()),
    "mish": (lambda p: aten.mish_backward(torch.ones_like(p), p), ()),
    "tanh": (lambda p: 1 - torch.tanh(p) ** 2, ()),
    "sigmoid": (lambda p: torch.sigmoid(p) * torch.sigmoid(-p), ()),
    "log_sigmoid_forward": (lambda p: torch.sigmoid(-p), ()),
    "softplus": (lambda p, beta=1, threshold=20: aten.softplus_backward(torch.ones_like(p), p, beta, threshold), ()),
    "erf": (lambda p: 2 / math.sqrt(math.pi) * torch.exp(-(p**2)), ()),
    "sin": (torch.cos, ()),
    "cos": (lambda p: -torch.sin(p), ()),
    "relu": (lambda p: (p > 0).to(p), None),
    "abs": (torch.sign, None),
    "leaky_relu": (lambda p, slope=0.01: torch.where(p > 0, 1.0, slope).to(p), None),
    "elu": (
        lambda p, alpha=1, scale=1, input_scale=1: aten.elu_backward(
            torch.ones_like(p), alpha, scale, input_scale, False, p
        ),
        (0,),
    ),
    "hardtanh": (lambda p, low=-1, high=1: ((p > low) & (p < high)).to(p), None),
    "hardswish": (lambda p: aten.hardswish_backward(torch.ones_like(p), p), (-3, 3)),
    "hardsigmoid": (lambda p: aten.hardsigmoid_backward(torch.ones_like(p), p), (-3, 3)),
    "threshold": (lambda p, threshold, _value: (p > threshold).to(p), None),
}


def _elementwise(name: str) -> None:
    slope, kinks = SLOPES[name]

    @rule(name)
    def map_each(out: Any, pair: Pair, *args: Any, **kwargs: Any) -> Any:
        check_fixed("parameters", *args, *kwargs.values())
        f_x, f_r = (value if isinstance(value, Tensor) else value[0] for value in out)
        ratio = _quotient(pair.x, pair.r, f_x, f_r, lambda p: slope(p, *args, **kwargs), kinks)
        scaled = scale_by(pair, ratio, pair.shape)
        return scaled if isinstance(out[0], Tensor) else [scaled] + [None] * (len(out[0]) - 1)


for _name in SLOPES:
    _elementwise(_name)


def _stable(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function of each number by a form of its quotient in which nothing cancels: (x, r, f(x), f(r))."""

    def register(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @rule(name)
        def map_each(out: Any, pair: Pair) -> Linear:
            return scale_by(pair, form(pair.x, pair.r, *out), pair.shape)

        return form

    return register


_stable("sqrt")(lambda x, r, f_x, f_r: 1 / (f_x + f_r))
_stable("rsqrt")(lambda x, r, f_x, f_r: -((f_x * f_r) ** 2) / (f_x + f_r))
_stable("reciprocal")(lambda x, r, f_x, f_r: -f_x * f_r)
_stable("exp")(lambda x, r, f_x, f_r: logarithmic_mean(f_x, f_r, x - r))
_stable("expm1")(lambda x, r, f_x, f_r: logarithmic_mean(f_x + 1, f_r + 1, x - r))


@_stable("log")
def _log(x: Tensor, r: Tensor, f_x: Tensor, f_r: Tensor) -> Tensor:
    change = x - r
    ratio = torch.where(change.abs() < 0.5 * r, torch.log1p(change / r), f_x - f_r) / change
    return torch.where(change == 0, 1 / r, ratio)


@_stable("log1p")
def _log1p(x: Tensor, r: Tensor, f_x: Tensor, f_r: Tensor) -> Tensor:
    return _log(x + 1, r + 1, f_x, f_r)


def logarithmic_mean(a: Tensor, b: Tensor, logs: Tensor) -> Tensor:
    """Return (a − b) / (log a − log b), given a, b ≥ 0 and the difference of their logarithms; 0 where both are 0."""
    near = torch.sqrt(a * b) * torch.sinh(logs / 2) / (logs / 2)
    mean = torch.where(logs.abs() < 2, near, (a - b) / logs)
    return torch.where(logs == 0, b, mean).nan_to_num(0.0, 0.0, 0.0)


@rule("pow")
def _pow(out: Any, base: Any, exponent: Any) -> Linear:
    if isinstance(exponent, Pair):
        if isinstance(base, Pair) or not float(base) > 0:
            raise NoRule("its exponent depends on the input")
        log = math.log(base)
        return scale_by(exponent, log * logarithmic_mean(out[0], out[1], log * (exponent.x - exponent.r)), out[0].shape)
    x, r, p = base.x, base.r, float(exponent)
    if p == int(p) and 0 < abs(p) <= 16:
        n = int(abs(p))
        slope = sum((x**k * r ** (n - 1 - k) for k in range(1, n)), r ** (n - 1))
        slope = slope if p > 0 else -slope * out[0] * out[1]
    elif p == 0:
        slope = torch.zeros_like(x)
    elif p == 0.5:
        slope = 1 / (out[0] + out[1])
    else:
        if not bool((torch.minimum(x, r) > 0).all()):
            raise NoRule(f"its exponent is {p}, and its base not positive")
        # x^p = exp(p log x): the quotients of both.
        log_x, log_r = torch.log(x), torch.log(r)
        slope = p * logarithmic_mean(out[0], out[1], p * (log_x - log_r)) * _log(x, r, log_x, log_r)
    return scale_by(base, slope, out[0].shape)


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(out: Any, pair: Any, *args: Any, **kwargs: Any) -> Linear:
    check_fixed("bounds", *args, *kwargs.values())
    if out[0].shape != pair.shape:
        raise NoRule("its bounds have more axes than its input")
    change = pair.x - pair.r
    inside = (out[0] == pair.x).to(change)
    return scale_by(pair, torch.where(change == 0, inside, (out[0] - out[1]) / change), pair.shape)

from __future__ import annotations

import math

import numpy as np
import pytest

from whymatch.quadrature import CLOSE, FINEST, RULES, USUAL, Lens, PathProbe, get_rule

SIZES = [*range(1, 66), 98, 103, 128, 250]


# What each rule gives for the integral of α², in closed form; Gauss' error is below rounding from 12 nodes on.
SQUARES = {
    "gauss": lambda n: 1 / 3 if n >= 12 else None,
    "midpoint": lambda n: 1 / 3 - 1 / (12 * n**2),
    "right": lambda n: (n + 1) * (2 * n + 1) / (6 * n**2),
    "pieces": lambda n: 1 / 3 if n >= 2 else None,
}


@pytest.mark.parametrize("name", RULES)
def test_positions_lie_on_the_path_and_weights_integrate_a_parabola(name):
    for n in SIZES:
        alpha, weights = RULES[name](n)
        assert len(alpha) == len(weights) == n
        assert (alpha > 0).all()
        assert (alpha <= 1).all()
        assert (np.diff(alpha) > 0).all()
        expected = SQUARES[name](n)
        if expected is not None:
            assert weights @ alpha**2 == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("n", [49, 98, 103])
def test_right_rule_has_no_extra_node_where_accumulated_steps_have_one(n):
    """Every public implementation takes arange(1, 0, -1/n), which has n + 1 entries here, and divides by n."""
    assert len(np.arange(1, 0, -1 / n)) == n + 1
    np.testing.assert_array_equal(RULES["right"](n)[0], [k / n for k in range(1, n + 1)])


@pytest.mark.parametrize(("name", "order"), [("right", 1), ("midpoint", 2)])
def test_error_falls_at_the_rules_order(name, order):
    def error(n):
        alpha, weights = RULES[name](n)
        return abs(weights @ np.exp(alpha) - (math.e - 1))

    assert math.log2(error(64) / error(128)) == pytest.approx(order, abs=0.05)
    assert RULES[name].order == order


def test_gauss_converges_exponentially_on_a_sharp_bump():
    def error(n):
        alpha, weights = RULES["gauss"](n)
        return abs(weights @ (1 / np.cosh((alpha - 0.52) / 0.08) ** 2) - 0.08 * (np.tanh(6) + np.tanh(6.5)))

    assert error(24) < 1e-2 * error(12)
    assert error(48) < 1e-9


@pytest.mark.parametrize("lens", [USUAL, Lens(0.6, 0.06), Lens(0.4, 0.35)])
def test_a_lens_is_undone_by_its_inverse(lens):
    u = np.linspace(0, 1, 33)
    alpha, slope = lens.to_path(u)
    np.testing.assert_allclose(lens.from_path(alpha), u, atol=1e-14)
    assert alpha[0] == pytest.approx(0, abs=1e-15)
    assert alpha[-1] == pytest.approx(1)
    np.testing.assert_allclose((lens.to_path(u + 1e-6)[0] - lens.to_path(u - 1e-6)[0]) / 2e-6, slope, rtol=1e-6)


def test_unknown_rule_names_the_known_ones():
    known = "'gauss', 'midpoint', 'right', 'pieces'"
    with pytest.raises(ValueError, match=f"rule='simpson' is not known; choose one of {known}"):
        get_rule("simpson")


def curve(alpha, centre, width):
    """An embedding that turns from one direction into another at ``centre``."""
    turn = np.tanh((alpha - centre) / width)
    return np.stack([1 + turn, 1 - turn, 0.3 * turn**2, np.cos(2 * alpha)], axis=-1)


@pytest.mark.parametrize("name", ["gauss", "midpoint", "right"])
@pytest.mark.parametrize(("centre", "width"), [(0.5, 0.1), (0.45, 0.2), (0.7, 0.6), (0.3, 5.0)])
def test_the_probe_predicts_nodes_that_are_enough_and_not_far_too_many(name, centre, width):
    rule, tolerance = RULES[name], 1e-3 if name != "gauss" else 1e-5
    probe = PathProbe(curve(np.array(0.0), centre, width), curve(np.array(1.0), centre, width))
    evaluated = 0
    while True:
        alpha = probe.missing()
        evaluated += len(alpha)
        probe.add(curve(alpha, centre, width))
        enough = probe.nodes(rule, tolerance)
        if enough is not None:
            break
    n, lens = enough
    assert evaluated == probe.levels - 1  # nested: no position twice

    def error(n):
        alpha, weights = rule(n, lens)
        h = 1e-6
        speed = (curve(alpha + h, centre, width) - curve(alpha - h, centre, width)) / (2 * h)
        end = curve(np.array(1.0), centre, width)
        return np.linalg.norm(weights @ speed - (end - curve(np.array(0.0), centre, width))) / np.linalg.norm(end)

    assert error(n) <= tolerance * 1.05
    if name != "midpoint":  # it is better than its order where the path is flat at both ends
        assert n <= 3 or error(math.floor(n / 1.4)) > CLOSE * tolerance


@pytest.mark.parametrize("few", [False, True])
def test_a_probe_of_some_directions_predicts_the_sum_of_the_errors_along_them(few):
    """Directions in which the path is smoother than elsewhere need fewer nodes, with errors in the same unit."""
    rule, tolerance, centre, width = RULES["gauss"], 1e-4, 0.5, 0.2
    directions = np.array([[0.1, 0.1, 0, 1], [0.5, 0.5, 0, 0.5]]) / 2  # along these, the turn cancels itself
    start, end = (curve(np.array(alpha), centre, width) for alpha in (0.0, 1.0))

    def count(probe, path):
        enough = None
        while enough is None:
            probe.add(path(probe.missing()))
            enough = probe.nodes(rule, tolerance)
        return enough

    everything, _ = count(PathProbe(start, end), lambda alpha: curve(alpha, centre, width))
    probe = PathProbe(directions @ start, directions @ end, size=np.linalg.norm(end), few=few)
    some, lens = count(probe, lambda alpha: curve(alpha, centre, width) @ directions.T)
    assert some < everything
    alpha, weights = rule(some, lens)
    h = 1e-6
    speed = (curve(alpha + h, centre, width) - curve(alpha - h, centre, width)) / (2 * h) @ directions.T
    error = np.abs(weights @ speed - directions @ (end - start)).sum() / np.linalg.norm(end)
    assert error <= tolerance


def test_the_probe_gives_up_on_a_path_that_is_not_smooth():
    def kink(alpha):
        return np.stack([1 + np.abs(alpha - 0.4321), alpha], axis=-1)

    probe = PathProbe(kink(np.array(0.0)), kink(np.array(1.0)))
    while True:
        probe.add(kink(probe.missing()))
        enough = probe.nodes(RULES["gauss"], 1e-9)
        if enough is not None:
            break
        assert probe.levels < FINEST
    assert enough[0] > 100


def test_the_probe_finds_where_the_bump_is():
    """Through a lens of its own, a bump that is narrow and off the middle needs fewer nodes than through the usual."""
    centre, width = 0.6, 0.05
    probe = PathProbe(curve(np.array(0.0), centre, width), curve(np.array(1.0), centre, width))
    enough = None
    while enough is None:
        probe.add(curve(probe.missing(), centre, width))
        enough = probe.nodes(RULES["gauss"], 1e-3)
    n, lens = enough
    assert lens.centre > USUAL.centre
    assert lens.width < USUAL.width

    def error(n, lens):
        alpha, weights = RULES["gauss"](n, lens)
        change = np.tanh((1 - centre) / width) - np.tanh(-centre / width)
        return abs(weights @ (1 / np.cosh((alpha - centre) / width) ** 2) / width - change)

    assert error(n, lens) < 0.2 * error(n, USUAL)

"""Prices: of laws, of one report, their hull as a law, and moments from them."""

import math

import mpmath
import numpy as np
import pytest

from shoal.bounds.anycrowd import prices
from shoal.bounds.ratio import Lognormal


def some_law(seed, size=40):
    rng = np.random.default_rng(seed)
    value = np.concatenate([rng.random(size // 2), 1.0 + rng.random(size // 2) * 3.0, [1.0]])
    value.sort()
    mass = rng.random(size + 1)
    above, below = value > 1.0, value < 1.0
    # mean 1: balance both sides
    mass[below] *= (mass[above] @ (value[above] - 1.0)) / (mass[below] @ (1.0 - value[below]))
    return value, mass / mass.sum()


def price(value, mass, k):
    return mass @ np.maximum(value - k, 0.0) if k >= 1.0 else mass @ np.maximum(k - value, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_prices_of_a_law(seed):
    value, mass = some_law(seed)
    found = prices.prices_of_law(value - 1.0, mass, 0.0, 0.0)
    for k in (0.1, 0.5, 0.99, 1.0, 1.2, 3.0, 5.0):
        assert found.at(np.array([k - 1.0]))[0] == pytest.approx(price(value, mass, k), rel=1e-12, abs=1e-15)
    raised = prices.prices_of_law(value - 1.0, mass, 1e-3, 1e-6)
    assert raised.value == pytest.approx(found.value * 1.001 + 1e-6, rel=1e-12)


def exact_report(k, scale, rate):
    """Black-Scholes with 60 digits."""
    with mpmath.workdps(60):
        k, r = mpmath.mpf(k), 1 / mpmath.mpf(scale)
        up, down = (-mpmath.log(k) + s * r**2 / 2 for s in (1, -1))
        call = mpmath.ncdf(up / r) - k * mpmath.ncdf(down / r)
        return rate * (call if k >= 1 else call - 1 + k)


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0, 300.0])
def test_one_report_is_never_too_cheap(scale):
    spread = 1.0 / scale
    loss = spread * np.array([-9.0, -5.0, -2.0, -0.5, 0.0, 0.3, 1.0, 4.0, 9.0])
    gap = np.expm1(loss)
    found = prices.prices_of_report(gap, scale, 0.3)
    for g, value in zip(gap.tolist(), found.value.tolist(), strict=True):
        exact = exact_report(mpmath.mpf(1) + mpmath.mpf(g), scale, mpmath.mpf(0.3))
        assert exact <= value <= exact * (1 + mpmath.mpf(1e-6)) + 1e-15


@pytest.mark.parametrize(
    ("x", "moved", "others"), [(0.0, 1.0, (-1.0,)), (0.0, 1.0, (-1.0, 0.5)), (-1.0, 1.0, (0.3, 1.0))]
)
def test_one_report_of_a_sample_is_never_too_cheap(x, moved, others):
    """One of some users reports: exact by quadrature, for zero-out and for replace."""
    r, n = 0.8, 1 + len(others)
    y = np.linspace(-14.0, 14.0, 40_001)
    still, new, rest = (
        sum(np.exp(-0.5 * (y - r * place) ** 2) for place in places) * (y[1] - y[0]) / math.sqrt(2.0 * math.pi) / n
        for places in ((x,), (moved,), others)
    )
    p, q = new + rest, still + rest
    scale = 1.0 / r / abs(moved - x)
    gap = np.expm1(np.array([-0.9, -0.3, -0.05, 0.05, 0.3, 0.9]))
    after, before = (1.0 / r / 2.0, 1.0 / r if x == 0.0 else 1.0 / r / 2.0)
    found = prices.prices_of_sampled_report(gap, scale, 1.0 / n, scale_after=after, scale_before=before)
    k = 1.0 + gap[:, None]
    exact = np.where(gap < 0.0, np.maximum(k * q - p, 0.0).sum(axis=1), np.maximum(p - k * q, 0.0).sum(axis=1))
    assert np.all(exact <= found.value + 1e-9)
    assert np.any(exact > 0.5 * found.value)
    everybody = prices.prices_of_sampled_report(gap, scale, 1.0, scale_after=after, scale_before=before)
    assert everybody.value == pytest.approx(prices.prices_of_report(gap, scale, 1.0).value, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_hull_is_a_law_between_the_truth_and_the_bounds(seed):
    """Bounds at some points above the prices of a law: the hull is not below these, nor above the bounds."""
    value, mass = some_law(seed)
    rng = np.random.default_rng(100 + seed)
    gap = np.union1d(np.linspace(-0.95, 4.0, 60), [0.0])
    exact = np.array([price(value, mass, 1.0 + g) for g in gap])
    bound = prices.Prices(gap=gap, value=exact * (1.0 + 0.3 * rng.random(len(gap))) + 1e-9)
    law = prices.law_from_prices(bound)
    assert law.mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert law.mass @ (1.0 + law.gap) + law.infinite == pytest.approx(1.0, abs=1e-8)
    made = law.prices()
    assert np.all(made.at(gap) <= bound.value * (1 + 2e-9))
    fine = np.linspace(-0.9, 3.9, 997)
    truth = np.array([price(value, mass, 1.0 + g) for g in fine])
    assert np.all(made.at(fine) >= truth)
    for way, sign in (("forward", 1.0), ("reverse", -1.0)):
        pair = law.pair(way)
        for epsilon in (0.0, 0.1, 0.5):
            delta = np.maximum(pair.top - math.exp(epsilon) * pair.base, 0.0).sum() + pair.infinite
            at = made.at(np.array([math.expm1(sign * epsilon)]))[0]
            assert delta == pytest.approx(at * (1.0 if way == "forward" else math.exp(epsilon)), rel=1e-6, abs=1e-12)


def test_the_smaller_of_two_bounds():
    one, other = (prices.prices_of_report(np.linspace(-0.9, 3.0, 80 + i), 1.0 + 0.2 * i, 1.0) for i in (0, 1))
    both = prices.smaller_prices(one, other)
    assert np.all(both.value <= one.at(both.gap))
    assert np.all(both.value <= other.at(both.gap))


@pytest.mark.parametrize("order", [1.3, 2.0, 2.5, 7.0, 30.0])
@pytest.mark.parametrize("way", ["forward", "reverse"])
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_moments_of_one_report(order, way, scale):
    """The closed form exp(L (L - 1) / 2 s^2), in both directions, from its prices alone."""
    reach = 20.0 / scale
    gap = np.expm1(np.linspace(-reach, reach, 2001))
    bound = prices.prices_of_report(gap, scale, 0.4)
    exact = Lognormal(scale=scale, rate=0.4).log_moments(np.array([order]))[0]
    found = prices._log_moment_from_prices(bound, order, way, scale, 0.4)
    assert exact <= found <= 1.01 * exact


def test_moments_of_a_law_that_is_cut():
    """Beyond the last price the report in the clear serves: no moment is infinite, and none is above its own."""
    law = prices.law_from_prices(prices.prices_of_report(np.expm1(np.linspace(-3.0, 3.0, 601)), 2.0, 1.0))
    for way in ("forward", "reverse"):
        found = law.log_moments(np.array([2.0, 10.0, 500.0]), way, 2.0, 1.0)
        assert np.all(np.isfinite(found))
        assert np.all(found <= Lognormal(scale=2.0).log_moments(np.array([2.0, 10.0, 500.0])) * (1 + 1e-9))

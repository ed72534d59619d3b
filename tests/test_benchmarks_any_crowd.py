"""The baselines of benchmarks/any_crowd.py: neither better nor worse than their theorems make them."""

from __future__ import annotations

import importlib.util
import math
import pathlib
import sys

import numpy as np
import pytest
from scipy import integrate, special, stats

import shoal
from shoal import literature

PATH = pathlib.Path(__file__).parents[1] / "benchmarks" / "any_crowd.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("any_crowd", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["any_crowd"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["any_crowd"]


# --- the blanket -------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.7, 2.0, 9.48])
def test_blanket_mass_is_the_integral_of_the_lowest_density(bench, sigma):
    def lowest(y):
        return min(stats.norm.pdf(y, x, sigma) for x in (-1.0, -0.3, 0.0, 0.6, 1.0))

    expected = integrate.quad(lowest, -60.0, 60.0, points=[0.0], limit=200)[0]
    assert bench.blanket_mass(sigma, 1) == pytest.approx(expected, rel=1e-9)
    assert bench.blanket_mass(sigma, 1) == pytest.approx(2.0 * special.ndtr(-1.0 / sigma), rel=1e-12)


@pytest.mark.parametrize("dimension", [2, 10, 100, 1_000])
def test_blanket_mass_in_more_dimensions(bench, dimension):
    sigma = 5.0

    def radial(norm):
        return stats.chi.pdf(norm, dimension) * math.exp(-norm / sigma - 0.5 / sigma**2)

    middle = math.sqrt(dimension)
    expected = integrate.quad(radial, max(0.0, middle - 9.0), middle + 9.0, epsabs=1e-14, points=[middle])[0]
    assert bench.blanket_mass(sigma, dimension) == pytest.approx(expected, rel=1e-7)


def test_blanket_of_two_users_by_quadrature(bench):
    """E[(V_1 + V_2)+] / 2 over both reports, straight from the densities."""
    r, t = 1.0, math.exp(1.0)
    point = bench.Point(users=2, sigma=1.0, delta=1e-3)
    y, weights = bench.gauss(-9.0, 9.0, 0.05, 4)
    lowest = np.minimum(stats.norm.pdf(y - r), stats.norm.pdf(y + r))
    moved, rest = stats.norm.pdf(y - r), stats.norm.pdf(y)
    gamma = float(weights @ lowest)
    for forward, term in ((True, moved - t * rest), (False, rest - t * moved)):
        value, mass = term / lowest, weights * lowest
        both = np.maximum(value[:, None] + value[None, :], 0.0)
        expected = 0.5 * (mass @ both @ mass) + (1.0 - gamma) * float(mass @ np.maximum(value, 0.0))
        assert bench.blanket_delta(point, 1.0, forward, dimension=1) == pytest.approx(expected, rel=1e-3)


def test_known_values_of_the_blanket(bench):
    # Of an independent computation.
    at = {1: 6.69e-4, 1_000: 4.74e-3}
    point = bench.Point(users=60_000, sigma=9.48, delta=1 / 60_000)
    for dimension, epsilon in at.items():
        deltas = [bench.blanket_delta(point, f * epsilon, True, dimension=dimension) for f in (0.997, 1.003)]
        assert deltas[0] > point.delta > deltas[1]


def test_blankets_grow_with_dimension_and_move_and_fall_with_users(bench):
    point = bench.Point(users=100, sigma=5.0, delta=1e-5)
    by_dimension = [bench.blanket_delta(point, 0.08, True, dimension=d) for d in (1, 3, 30)]
    assert by_dimension == sorted(by_dimension)
    assert by_dimension[0] < 0.5 * by_dimension[2]
    by_move = [bench.blanket_delta(point, 0.08, True, dimension=3, move=m) for m in (0.5, 0.9, 1.0)]
    assert by_move == sorted(by_move)
    more = bench.blanket_delta(bench.Point(users=120, sigma=5.0, delta=1e-5), 0.08, True, dimension=3)
    assert more < by_dimension[1]


def test_no_blanket_is_below_the_identical_crowd(bench):
    for point in (
        bench.Point(users=100, sigma=5.0, delta=1e-5),
        bench.Point(users=100, sigma=3.0, delta=1e-5, rate=0.3),
    ):
        floor = point.mechanism().replace(crowd="identical").delta(epsilon=0.05).lower
        assert bench.blanket_delta(point, 0.05, True, dimension=1) > floor


# --- means of independent terms ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "sigma", "epsilon", "forward", "expected"),
    [
        (2, 1.0, 3.0, True, 1.67702771411789e-4),
        (2, 1.0, 3.0, False, 1.59026508187270e-5),
        (10, 1.0, 2.0, False, 7.86973676658454e-10),
        (1_000, 2.0, 0.07, True, 6.6916594815345e-8),
        (1_000, 2.0, 0.07, False, 5.8588355579365e-8),
    ],
)
def test_identical_crowd_of_high_precision(bench, users, sigma, epsilon, forward, expected):
    along, _, masses = bench.reports(1)
    values = bench.difference(along / sigma - 0.5 / sigma**2, epsilon, forward)
    found = bench.mean_price(bench.Term(values=values, masses=masses), users)
    assert expected * (1.0 - 1e-4) < found < expected * (1.0 + 1e-3)


def test_finer_steps_change_little(bench):
    point = bench.Point(users=1_000, sigma=2.0, delta=1e-6)
    rough, fine = (bench.blanket_delta(point, 0.1327, True, dimension=1, fine=f) for f in (1.0, 2.0))
    assert rough == pytest.approx(fine, rel=1e-3)


# --- clones ------------------------------------------------------------------------------------


def test_gaussian_clones_are_those_of_version_0_1(bench):
    """0.2555 for 1,000 users and sigma 2, at the clone probability that is best there."""
    point = bench.Point(users=1_000, sigma=2.0, delta=1e-6)
    exponents = (2.5, 2.58, 2.66)
    below, above = (
        min(bench.gaussian_clones_delta(point, e, True, exponent=x) for x in exponents) for e in (0.2535, 0.2575)
    )
    assert below > point.delta > above


def test_cost_of_clones_is_that_of_the_theorem(bench):
    point = bench.Point(users=1_000, sigma=2.0, delta=1e-6)
    r, e0 = 0.5, 1.0
    tail = bench.gaussian_delta(e0, 2.0) + bench.gaussian_delta(e0 - r**2, 2.0)
    others = 999 * math.exp(-e0)
    assert bench.clones_cost(point, e0) == pytest.approx(tail * others / (1.0 + others), rel=1e-12)
    expected = shoal.LocalGaussian(sigma=2.0).delta(epsilon=e0)
    assert expected.lower * (1 - 1e-12) <= bench.gaussian_delta(e0, 2.0) <= expected.upper * (1 + 1e-12)


def test_clones_2021_use_all_of_delta_and_no_more(bench):
    """Against a scan of both parts of delta through the theorem itself, and the paper's equal split."""
    point = bench.POINTS[0]
    found = bench.fmt_clones(point)
    scanned = []
    for delta0 in np.geomspace(1e-13, 1e-9, 81).tolist():
        local = shoal.LocalGaussian(sigma=point.sigma, adjacency="replace").epsilon(delta=delta0).upper
        for part in np.linspace(0.02, 0.98, 49).tolist():
            one = literature.clones(users=point.users, epsilon0=local, delta=part * point.delta, delta0=delta0)
            scanned.append(one.epsilon if one.delta <= point.delta else math.inf)
    assert found <= min(scanned) * (1.0 + 1e-6)
    assert found == pytest.approx(min(scanned), rel=1e-3)
    assert found < literature.clones_gaussian(users=point.users, sigma=point.sigma, delta=point.delta).total.epsilon


def test_clones_2021_where_the_theorem_says_nothing(bench):
    point = bench.Point(users=100, sigma=5.0, delta=1e-5)
    assert bench.fmt_epsilon(point, 0.1) == math.inf
    assert bench.fmt_clones(point) == point.local


# --- the table ---------------------------------------------------------------------------------


def test_who_is_ahead(bench):
    anywhere = {c.name: 1.0 + i for i, c in enumerate(bench.COLUMNS)}
    assert bench.ahead(anywhere) == "ours"
    flat = {**anywhere, "blanket, d = 1": 0.9}
    assert bench.ahead(flat) == "ours; for its dimension blanket, d = 1, 10.0% below"
    assert bench.described(bench.POINTS[0]) == "60,000; 9.48; 1/n"

"""Sums from above, for several laws at once, against exact convolution and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from shoal.bounds import grid, sums


def two_laws(half):
    """A coin and a skewed law of mean 0, on one grid."""
    first = (np.array([-1.0, 1.0]), np.array([0.5, 0.5]))
    second = (np.array([-0.25, 3.0]), np.array([12.0, 1.0]) / 13.0)
    base = grid.base_for(0.7, half)
    rows = [sums.atoms_on_grid(y, mass, half, base) for y, mass in (first, second)]
    return sums.batch(rows, base, weight=np.ones(2), stretch=[0.0, 0.0], cut=[0.0, 0.0])


def exact(count, k):
    """Calls of the sums, from the binomial law."""
    heads = np.arange(count + 1)
    first = stats.binom.pmf(heads, count, 0.5) @ np.maximum(2.0 * heads - count - k, 0.0)
    second = stats.binom.pmf(heads, count, 1 / 13) @ np.maximum(3.25 * heads - 0.25 * count - k, 0.0)
    return first, second


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_sums_are_above_the_exact_ones_and_close(count):
    total = sums.sums_by_count(two_laws(256), 1e-25)(count)
    assert total.count == count
    scale = math.sqrt(count)
    for place in range(2):
        law = total.laws()[place]
        y, mass = law.point, law.mass
        assert mass.sum() == pytest.approx(1.0, abs=1e-12)
        assert mass @ y == pytest.approx(0.0, abs=1e-11 * scale)
        for k in (0.0, 0.7 * scale, 2.0 * scale, 5.0 * scale):
            call, truth = mass @ np.maximum(y - k, 0.0) + 2.0 * total.cut[place], exact(count, k)[place]
            assert call >= truth * (1 - 1e-12)
            assert call <= truth * 1.01 + 2e-3 * scale * stats.norm.pdf(k / scale)


def test_the_cut_is_what_was_moved():
    """With a large allowance calls are too small, but not by more than is said."""
    total = sums.sums_by_count(two_laws(64), 1e-4)(500)
    for place in range(2):
        law = total.laws()[place]
        y, mass = law.point, law.mass
        assert total.cut[place] > 0.0
        for k in (10.0, 40.0, 80.0):
            assert mass @ np.maximum(y - k, 0.0) + 2.0 * total.cut[place] >= exact(500, k)[place]


def test_different_sums_together_and_one_alone():
    sum_of = sums.sums_by_count(two_laws(128), 1e-25)
    both = sums.batch_sum(sum_of(5), sum_of(2), 1e-25)
    one = sums.batch_sum(sum_of(5).only(1), sum_of(2).only(1), 1e-25)
    assert both.count == one.count == 7
    for k in (0.0, 2.0, 6.0):
        laws = (both.laws()[1], one.laws()[0], sum_of(7).laws()[1])
        found = [law.mass @ np.maximum(law.point - k, 0.0) for law in laws]
        assert found == pytest.approx([found[0]] * 3, rel=1e-2)
        assert min(found) >= exact(7, k)[1] * (1 - 1e-12)


def test_positions_are_those_of_the_grid():
    half, base = 16, -3
    y = np.array([0.3, -5.0, 40.0, 0.0])
    mass = sums.atoms_on_grid(y, np.full(4, 0.25), half, base)
    points = sums.batch([mass], base, weight=np.ones(1), stretch=[0.0], cut=[0.0]).points()
    assert set(np.round(points[mass > 0.0], 9)) <= set(np.round(grid.lattice_points(half, base, -50.0, 50.0), 9))
    assert (mass * points).sum() == pytest.approx(0.25 * y.sum())

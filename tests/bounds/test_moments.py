"""Moments of the mean ratio against high precision, brute force, closed forms and each other."""

import itertools
import json
import math
import pathlib

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from shoal.bounds import moments
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical

REFERENCE = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "moments.json").read_text())["rows"]


def mean(users, scale, rate=1.0, weight=1.0):
    return Identical(ratio=Lognormal(scale=scale, rate=rate), users=users, weight=weight)


def values(direction):
    return [[*row[1:6], float(row[6])] for row in REFERENCE if row[0] == direction]


def test_the_reference_covers_the_range():
    rows = values("forward")
    assert {r[0] for r in rows} >= {1, 2, 3, 1000, 60_000, 10**9}
    assert {r[1] for r in rows} >= {0.3, 1.0, 100.0}
    # Rényi DP of 1e-13 and below is among it, and logarithms far beyond overflow.
    assert min(r[5] / (r[4] - 1) for r in rows) < 2e-13
    assert max(r[5] for r in rows) > 1e5


def test_forward_moments_match_high_precision():
    """Relative error below 1e-12 up to order 128 and 1e-11 up to 1,000."""
    for users, scale, rate, weight, order, exact in values("forward"):
        found = moments.log_moments(mean(users, scale, rate, weight), order)[order]
        limit = 1e-12 if order <= 128 else 1e-11
        assert found == pytest.approx(exact, rel=limit, abs=0), (users, scale, rate, weight, order)


def test_reverse_moments_match_high_precision():
    for users, scale, rate, weight, power, exact in values("reverse"):
        found = moments.log_negative_moments(mean(users, scale, rate, weight), np.array([float(power)]))[0]
        assert found == pytest.approx(exact, rel=1e-12, abs=0), (users, scale, rate, power)


def test_roundoff_bounds_the_error_seen():
    for users, scale, rate, weight, order, exact in values("forward"):
        found = moments.log_moments(mean(users, scale, rate, weight), order)[order]
        margin = moments.roundoff(np.array([order]))[0]
        assert abs(found / exact - 1.0) < margin / 2.0, (users, scale, order)


def test_tiny_values_keep_full_relative_precision():
    """m_2 - 1 = rate weight^2 (M_2 - 1) / n exactly; here near 1e-15 and below."""
    for users, scale, rate, weight in [(10**9, 1000.0, 1.0, 1.0), (10**7, 30.0, 1e-4, 1.0), (10**6, 30.0, 1.0, 1e-3)]:
        exact = math.log1p(rate * weight**2 * math.expm1(1 / scale**2) / users)
        assert exact < 2e-14
        m = mean(users, scale, rate, weight)
        assert moments.log_moments(m, 2)[2] == pytest.approx(exact, rel=1e-14, abs=0)


@pytest.mark.parametrize(("users", "scale"), [(1, 0.7), (2, 1.0), (3, 0.4), (4, 2.0), (6, 1.5)])
def test_brute_force_enumeration(users, scale):
    """The paper's sum over all exponents k_1 + ... + k_n = k, term by term."""
    for order in range(2, 6):
        total = 0.0
        for ks in itertools.product(range(order + 1), repeat=users):
            if sum(ks) == order:
                multinomial = math.factorial(order) / math.prod(math.factorial(k) for k in ks)
                total += multinomial * math.exp(sum(k * k - k for k in ks) / (2 * scale**2))
        exact = math.log(total / users**order)
        assert moments.log_moments(mean(users, scale), order)[order] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("users", "rate", "scale"), [(1, 0.3, 2.0), (5, 0.4, 1.5), (40, 0.1, 2.0), (300, 0.02, 1.5)])
def test_check_in_equals_the_sum_over_participants(users, rate, scale):
    """Given k participants the round is 1 - k/n + (k/n) S_k; here summed over k = 0..n explicitly."""
    orders = np.arange(2, 41)
    excess = np.zeros(len(orders))
    for k in range(1, users + 1):
        given = moments.log_moments(mean(k, scale, weight=k / users), 40)[2:]
        excess += stats.binom.pmf(k, users, rate) * np.expm1(given)
    found = moments.log_moments(mean(users, scale, rate), 40)[2:]
    np.testing.assert_allclose(np.expm1(found), excess, rtol=2e-12, atol=0)


def test_one_user_is_the_plain_gaussian():
    for scale in (0.3, 1.0, 100.0):
        k = np.arange(0.0, 1001.0)
        np.testing.assert_allclose(moments.log_moments(mean(1, scale), 1000), k * (k - 1) / (2 * scale**2), rtol=1e-14)


def test_the_two_series_methods_agree():
    """The recurrence (n >= k) and binary powering are different algorithms for the same numbers."""
    for users, scale in [(64, 0.3), (100, 1.0), (1000, 5.0), (77, 100.0)]:
        log_m = Lognormal(scale=scale).log_moments(np.arange(65.0))
        one = moments._by_recurrence(log_m, users)
        two = moments._by_powering(log_m, users)
        np.testing.assert_allclose(one[2:], two[2:], rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    "m",
    [
        mean(60_000, 9.48),
        mean(10**9, 100.0),
        mean(60_000, 5.0, rate=0.1),
        mean(6_000, 5.0, weight=0.1),
        mean(3, 200.0),
        mean(100, 50.0),
        mean(1000, 3.0, rate=0.01, weight=0.5),
    ],
)
def test_one_large_order_is_an_upper_bound_and_close(m):
    table = moments.log_moments(m, 2000)
    for order in (64, 150, 400, 1000, 2000):
        bound = moments.log_moment_bound(m, order)
        assert bound >= table[order]
        if table[order] < 1.0:  # before the heavy tail takes over
            assert bound <= table[order] * (1 + 1e-8)


def test_one_large_order_is_close_where_one_report_dominates():
    m = mean(60_000, 9.48)
    for order in (1900, 1976, 1990):
        exact = moments.log_moments(m, order)[order]
        assert exact <= moments.log_moment_bound(m, order) <= exact * (1 + 1e-2)


def test_orders_to_ten_thousand():
    for users, scale in [(60_000, 9.48), (10**9, 100.0), (1, 2.0)]:
        found = moments.log_moments(mean(users, scale), 10_000)
        assert np.isfinite(found).all()
        rdp = found[2:] / np.arange(1.0, 10_000.0)
        assert (np.diff(rdp) > 0).all()
        assert (rdp <= np.arange(2.0, 10_001.0) / (2 * scale**2) * (1 + 1e-15)).all()


def test_few_users_and_large_orders():
    """n < k, where the recurrence's weights change sign."""
    for users, scale in [(2, 0.3), (7, 3.0), (500, 20.0)]:
        found = moments.log_moments(mean(users, scale), 1500)
        rdp = found[2:] / np.arange(1.0, 1500.0)
        assert (np.diff(rdp) > 0).all()
        # one report alone: m_k >= n^(1-k) M_k, which is close when it dominates
        k = 1500
        alone = k * (k - 1) / (2 * scale**2) - (k - 1) * math.log(users)
        assert found[k] >= max(alone, 0.0) * (1 - 1e-14)
        if scale < 1:
            assert found[k] == pytest.approx(alone, rel=1e-9)


def test_the_geometric_bound_is_above_the_integral():
    for m in [mean(2, 1.0), mean(1000, 3.0), mean(60_000, 5.0, rate=0.1), mean(10, 2.0, weight=0.3)]:
        powers = np.arange(1.0, 64.0)
        exact = moments.log_negative_moments(m, powers)
        assert (moments.geometric_bound(m, powers) >= exact * (1 - 1e-13)).all()


def test_small_rates_do_not_cancel():
    """`log(1 + rate (M_k - 1))` keeps its relative accuracy for rates down to 1e-12."""
    with mp.workdps(40):
        for rate in (1e-12, 1e-8, 1e-3, 0.5):
            for scale in (0.2, 2.0, 30.0):
                for order in (2, 4, 30, 300):
                    exact = mp.log1p(mp.mpf(rate) * mp.expm1(mp.mpf(order * order - order) / (2 * mp.mpf(scale) ** 2)))
                    found = Lognormal(scale=scale, rate=rate).log_moments(np.array([float(order)]))[0]
                    assert abs(found / exact - 1) < 1e-14, (rate, scale, order)


def test_reverse_moments_of_one_sampled_user():
    """S = 1 - w + w W in one dimension: the integral over t against quadrature over z."""
    for weight, scale in [(0.3, 1.0), (0.01, 0.5), (0.5, 20.0)]:
        z = np.arange(-40.0, 12.0, 0.01)
        log_s = np.log1p(weight * np.expm1(z / scale - 0.5 / scale**2))
        for power in (1.0, 6.0, 30.0):
            excess = float(np.expm1(-power * log_s) @ np.exp(-0.5 * z**2)) * 0.01 / math.sqrt(2 * math.pi)
            found = moments.log_negative_moments(mean(1, scale, weight=weight), np.array([power]))[0]
            assert found == pytest.approx(math.log1p(excess), rel=1e-9)


def test_reverse_moments_of_huge_crowds_with_little_noise():
    """Values by integration in extended precision; the error of one report's transform is not multiplied by n."""
    for users, scale, exact in [(10**15, 0.11, 1.73901), (10**15, 0.12, 0.79662), (10**12, 0.12, 1.96223)]:
        found = moments.log_negative_moments(mean(users, scale), np.array([1.0]))[0]
        assert found == pytest.approx(exact, rel=2e-5)


def test_log_factorials_have_twice_the_precision():
    high, low = moments._log_factorials(2000)
    assert math.exp(high[2000] - high[1999] + (low[2000] - low[1999])) == pytest.approx(2000, rel=1e-13)
    assert high[1000] + low[1000] == pytest.approx(math.lgamma(1001), rel=1e-15)

"""Rényi DP: values, laws, both directions, conversion."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from shoal import BallsAndBins, LocalGaussian, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.bounds import rdp
from shoal.bounds.round import Identical

DELTA = 1 / 60_000


def shuffle(users, sigma, **more):
    return Shuffle(users=users, sigma=sigma, crowd="identical", **more)


def check_in(users, rate, sigma, **more):
    return ShuffledCheckIn(users=users, rate=rate, sigma=sigma, crowd="identical", **more)


def subsampled(users, sample, sigma, **more):
    return SubsampledShuffle(users=users, sample=sample, sigma=sigma, crowd="identical", **more)


@pytest.mark.parametrize(
    ("mechanism", "rounds", "expected"),
    [
        (shuffle(60_000, 9.48), 1, 0.0014063),
        (shuffle(60_000, 9.48), 7, 0.0025118),
        (check_in(60_000, 0.1, 5.0), 5_540, 0.060788),
    ],
)
def test_known_epsilons(mechanism, rounds, expected):
    digits = len(str(expected).split(".")[1])
    assert round(mechanism.epsilon(method="rdp", delta=DELTA, rounds=rounds).upper, digits) == expected


def test_known_rdp_values():
    """Computed to many digits by two other methods."""
    assert shuffle(60_000, 9.48).rdp(32)[0] == pytest.approx(2.98380538304391786e-6, rel=1e-12)
    assert shuffle(1000, 1.0).rdp(8)[0] == pytest.approx(6.90906441953831439e-3, rel=1e-12)
    assert shuffle(2, 5.0).rdp(128)[0] == pytest.approx(1.87332081660447658, rel=1e-12)
    assert shuffle(2, 1.0).rdp(2)[0] == pytest.approx(0.6201145070, rel=1e-9)


def test_never_below_the_exact_value():
    """The published curve is inflated by the round-off bound, so it lies above the exact one."""
    for users, sigma in [(1000, 1.0), (60_000, 9.48), (10**9, 100.0)]:
        with mp.workdps(50):
            s = mp.mpf(sigma)
            exact2 = mp.log1p(mp.expm1(1 / s**2) / users)
            # m_3 = 1 + 3(n-1)/n^2 (M_2-1) + (M_3-1)/n^2
            n = mp.mpf(users)
            exact3 = mp.log1p(3 * (n - 1) / n**2 * mp.expm1(1 / s**2) + mp.expm1(3 / s**2) / n**2) / 2
            assert mp.mpf(float(shuffle(users, sigma).rdp(2, direction="forward")[0])) >= exact2
            assert mp.mpf(float(shuffle(users, sigma).rdp(3, direction="forward")[0])) >= exact3


def test_both_directions_and_the_worse_is_taken():
    m = shuffle(10, 1.0)
    orders = [2, 3, 8]
    both = {d: m.rdp(orders, direction=d) for d in ("forward", "reverse")}
    assert (both["forward"] > both["reverse"]).all()
    np.testing.assert_array_equal(m.rdp(orders), np.maximum(both["forward"], both["reverse"]))
    # one user: the two are equal
    one = shuffle(1, 1.0)
    np.testing.assert_array_equal(one.rdp(orders, direction="forward"), one.rdp(orders, direction="reverse"))


def test_reverse_direction_counts_when_it_is_worse(monkeypatch):
    """If the reverse direction were the worse one, every answer would follow it."""
    m = check_in(500, 0.3, 1.7)
    before = m.epsilon(method="rdp", delta=1e-6, rounds=3).upper, m.rdp([4.0])[0]
    true = Identical.log_moments

    def worse_in_reverse(mean, orders, direction, **more):
        return true(mean, orders, direction, **more) * (10.0 if direction == "reverse" else 1.0)

    monkeypatch.setattr(Identical, "log_moments", worse_in_reverse)
    rdp._log_moments_at_level.cache_clear()
    rdp._log_moment_at.cache_clear()
    try:
        assert m.rdp([4.0])[0] > 5 * before[1]
        assert m.epsilon(method="rdp", delta=1e-6, rounds=3).upper > before[0]
    finally:
        rdp._log_moments_at_level.cache_clear()
        rdp._log_moment_at.cache_clear()


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (shuffle(1001, 2.0), shuffle(1000, 2.0)),
        (shuffle(2, 2.0), shuffle(1, 2.0)),
        (shuffle(1000, 2.1), shuffle(1000, 2.0)),
        (check_in(1000, 0.1, 2.0), check_in(1000, 0.2, 2.0)),
        (check_in(1001, 0.1, 2.0), check_in(1000, 0.1, 2.0)),
        (check_in(1000, 0.999, 2.0), shuffle(1000, 2.0)),
        (subsampled(1000, 100, 2.0), shuffle(100, 2.0)),
        (subsampled(1001, 100, 2.0), subsampled(1000, 100, 2.0)),
        (shuffle(1000, 2.0), shuffle(1000, 2.0, adjacency="replace")),
        (check_in(1000, 0.1, 2.0), LocalGaussian(sigma=2.0)),
        (shuffle(1000, 2.0), LocalGaussian(sigma=1.999)),
    ],
)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_monotone(less, more, direction):
    orders = [1.5, 2, 3, 3.5, 8, 64, 300]
    one, two = (m.rdp(orders, direction=direction) for m in (less, more))
    assert (one <= two).all()
    assert (one < two * (1 - 1e-9)).any()
    assert (
        less.epsilon(method="rdp", delta=1e-6, rounds=3).upper <= more.epsilon(method="rdp", delta=1e-6, rounds=3).upper
    )


def test_monotone_in_order_and_rounds():
    m = check_in(60_000, 0.1, 5.0)
    orders = np.concatenate([np.linspace(1.1, 20, 60), np.arange(21, 1200, 13), [2000, 5000]])
    for direction in ("forward", "reverse"):
        curve = m.rdp(orders, direction=direction)
        assert (np.diff(curve) > -1e-11 * curve[1:]).all()
    eps = m.epsilon(method="rdp", delta=1e-5, rounds=[1, 2, 5, 100, 101, 10**4, 10**6]).astype(float)
    assert (np.diff(eps) > 0).all()
    by_delta = m.epsilon(method="rdp", delta=[1e-12, 1e-8, 1e-5, 0.1], rounds=100).astype(float)
    assert (np.diff(by_delta) < 0).all()


def test_never_above_the_local_curve():
    orders = np.concatenate([np.linspace(1.01, 4, 30), np.arange(5.0, 400.0), [1500.0, 20_000.0, 3e6]])
    for m in [shuffle(2, 0.5), shuffle(60_000, 9.48), check_in(100, 0.5, 1.0), subsampled(50, 7, 3.0)]:
        local = LocalGaussian(sigma=m.sigma)
        for direction in ("forward", "reverse"):
            assert (m.rdp(orders, direction=direction) <= local.rdp(orders)).all()


def test_real_orders_are_bounded_by_chords():
    """At real orders the bound lies above the exact moment (quadrature for n = 2) and below both chord ends."""
    s, users = 1.5, 2
    for order in (1.3, 2.5, 3.7):
        with mp.workdps(20):
            step = mp.mpf("0.25")
            z = [step * i for i in range(-40, 64)]
            ws, gs = [mp.exp(x / s - 1 / (2 * mp.mpf(s) ** 2)) for x in z], [mp.npdf(x) * step for x in z]
            total = mp.fsum(
                gi * mp.fsum(gj * ((wi + wj) / 2) ** order for wj, gj in zip(ws, gs, strict=True))
                for wi, gi in zip(ws, gs, strict=True)
            )
            exact = float(mp.log(total)) / (order - 1)
        found = shuffle(users, s).rdp(order, direction="forward")[0]
        assert exact < found
        assert found <= shuffle(users, s).rdp(math.ceil(order), direction="forward")[0] * (1 + 1e-12)


def test_replace_is_half_the_noise():
    np.testing.assert_array_equal(
        shuffle(100, 4.0, adjacency="replace").rdp([2, 5, 30]), shuffle(100, 2.0).rdp([2, 5, 30])
    )


def test_balls_and_bins_is_the_shuffle_ratio():
    np.testing.assert_array_equal(BallsAndBins(bins=77, sigma=1.1).rdp([2, 9]), shuffle(77, 1.1).rdp([2, 9]))


def test_local_epsilon_matches_dp_accounting():
    """The same conversion at the same orders, by another library."""
    import dp_accounting

    orders = np.arange(2.0, 100.0)
    for sigma, rounds in [(5.0, 1), (2.0, 30)]:
        other = RdpAccountant(orders)
        other.compose(dp_accounting.GaussianDpEvent(sigma), rounds)
        theirs = other.get_epsilon(1e-5)
        assert LocalGaussian(sigma=sigma).epsilon(
            method="rdp", delta=1e-5, rounds=rounds, orders=orders
        ).upper == pytest.approx(theirs, rel=1e-12)
        assert LocalGaussian(sigma=sigma).epsilon(method="rdp", delta=1e-5, rounds=rounds).upper <= theirs * (1 + 1e-12)


def test_shuffle_epsilon_from_its_own_curve_matches_dp_accounting():
    m = check_in(60_000, 0.1, 5.0)
    orders = np.arange(2.0, 400.0)
    theirs, _ = compute_epsilon(orders, m.rdp(orders, rounds=5_540), 1e-5)
    assert m.epsilon(method="rdp", delta=1e-5, rounds=5_540, orders=orders).upper == pytest.approx(theirs, rel=1e-9)
    assert m.epsilon(method="rdp", delta=1e-5, rounds=5_540).upper <= theirs * (1 + 1e-12)


def test_epsilon_and_delta_are_inverse():
    for m, rounds in [(shuffle(60_000, 9.48), 7), (check_in(1000, 0.1, 1.0), 100), (LocalGaussian(sigma=3.0), 2)]:
        for delta in (1e-4, 1e-6, 1e-11):
            eps = m.epsilon(method="rdp", delta=delta, rounds=rounds).upper
            assert eps > 0.0
            assert m.delta(method="rdp", epsilon=eps, rounds=rounds).upper == pytest.approx(delta, rel=1e-6)


def test_the_grid_extends_itself():
    """The best order is far above any fixed grid here, and inside the one that was searched."""
    m = shuffle(10**7, 50.0)
    parts = ((m.upper_round(), 1),)
    _, best = rdp._worse_direction(parts, None, lambda o, m: rdp.epsilon_terms(o, m, 1e-6))
    assert best > 50_000
    # no order of a wide independent scan does better than what was found
    orders = np.unique(np.round(np.geomspace(2, 400_000, 60)))
    scan = m.epsilon(method="rdp", delta=1e-6, orders=orders).upper
    assert m.epsilon(method="rdp", delta=1e-6).upper <= scan
    limited = m.epsilon(method="rdp", delta=1e-6, orders=np.arange(2, 65)).upper
    assert limited > 1000 * m.epsilon(method="rdp", delta=1e-6).upper


def test_restricted_orders_reproduce_the_papers_row():
    """Orders up to 30: what the paper's Table 1 prints for its own method."""
    printed = [0.22820, 0.22820, 0.22821, 0.22821, 0.22821, 0.22822, 0.22822]
    found = shuffle(60_000, 9.48).epsilon(method="rdp", delta=DELTA, rounds=np.arange(1, 8), orders=np.arange(2, 31))
    assert [round(float(e), 5) for e in found] == printed


def test_extreme_answers_stay_on_the_safe_side():
    huge = LocalGaussian(sigma=0.05).epsilon(method="rdp", delta=1e-9, rounds=10**6).upper
    assert 2e8 < huge < math.inf
    # delta too small for a double is not reported as zero
    assert shuffle(1000, 5.0).delta(method="rdp", epsilon=100.0).upper > 0.0
    assert LocalGaussian(sigma=0.1).delta(method="rdp", epsilon=0.0).upper == 1.0
    assert shuffle(1000, 5.0).epsilon(method="rdp", delta=0.999999).upper == 0.0


def test_conversion_is_the_stated_formula():
    m = LocalGaussian(sigma=2.0)
    order, delta = 7.0, 1e-6
    eps = m.epsilon(method="rdp", delta=delta, orders=[order]).upper
    assert eps == pytest.approx(order / 8 + math.log(1 - 1 / order) - math.log(delta * order) / (order - 1), rel=1e-12)
    back = m.delta(method="rdp", epsilon=1.0, orders=[order]).upper
    assert back == pytest.approx(math.exp(6 * (order / 8 - 1.0)) * (1 - 1 / order) ** 6 / order, rel=1e-12)


def test_many_questions_share_the_curve(monkeypatch):
    m = shuffle(4321, 3.21)
    calls = []
    true = Identical.log_moments
    monkeypatch.setattr(Identical, "log_moments", lambda *a, **k: calls.append(1) or true(*a, **k))
    m.epsilon(method="rdp", delta=1e-5, rounds=list(range(1, 200)))
    assert len(calls) < 150  # 199 questions in two directions


def test_thinned_single_report_is_the_local_guarantee_with_its_coin():
    """One user: the report and the coin in the clear, so dP/dQ is W with probability rate, else 1."""
    m = check_in(1, 0.1, 2.0)
    exact = [math.log1p(0.1 * math.expm1((k * k - k) / 8)) / (k - 1) for k in (2, 3, 10)]
    np.testing.assert_allclose(m.rdp([2, 3, 10]), exact, rtol=1e-12)
    np.testing.assert_allclose(m.replace(crowd="any").rdp([2, 3, 10]), exact, rtol=1e-9)


def test_no_crowd_is_worse_than_the_report_with_its_coin_in_the_clear():
    orders = [2, 3, 10, 40]
    for m, rate in (
        (ShuffledCheckIn(users=1000, rate=0.1, sigma=2.0), 0.1),
        (SubsampledShuffle(users=10, sample=5, sigma=2.0), 0.5),
    ):
        clear = [math.log1p(rate * math.expm1((k * k - k) / 8)) / (k - 1) for k in orders]
        for way in ("forward", "reverse"):
            assert (m.rdp(orders, direction=way) <= np.array(clear) * (1.0 + 1e-9)).all()

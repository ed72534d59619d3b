"""Property tests over the whole parameter space: no NaN, no needless infinity, no crash, order kept."""

import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal import BallsAndBins, LocalGaussian, Shuffle, ShuffledCheckIn, SubsampledShuffle

COMMON = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)


def logarithmic(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp).map(lambda x: min(max(x, low), high))


def whole(low, high):
    return logarithmic(low, high).map(round)


sigmas = logarithmic(1e-3, 1e6)
users = whole(1, 1e12)
rates = logarithmic(1e-9, 1.0)
deltas = logarithmic(1e-15, 0.5)
rounds = whole(1, 1e7)
adjacencies = st.sampled_from(["zero-out", "replace"])


@st.composite
def mechanisms(draw, crowds=("identical",)):
    sigma, adjacency, crowd = draw(sigmas), draw(adjacencies), draw(st.sampled_from(crowds))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return LocalGaussian(sigma=sigma, adjacency=adjacency)
    if kind == 1:
        return Shuffle(users=draw(users), sigma=sigma, adjacency=adjacency, crowd=crowd)
    if kind == 2:
        sample = draw(whole(1, 1e6))
        return SubsampledShuffle(
            users=sample * draw(whole(1, 1e5)), sample=sample, sigma=sigma, adjacency=adjacency, crowd=crowd
        )
    if kind == 3:
        return ShuffledCheckIn(users=draw(users), rate=draw(rates), sigma=sigma, adjacency=adjacency, crowd=crowd)
    return BallsAndBins(bins=draw(whole(1, 1e9)), sigma=sigma)


@given(mechanisms(), deltas, rounds)
@COMMON
def test_epsilon_is_finite_and_never_above_the_local_one(m, delta, rounds):
    eps = m.epsilon(method="rdp", delta=delta, rounds=rounds)
    assert math.isfinite(eps.upper)
    assert eps.upper >= 0.0
    local = LocalGaussian(sigma=m.sigma, adjacency=m.adjacency)
    assert eps.upper <= local.epsilon(method="rdp", delta=delta, rounds=rounds).upper * (1 + 1e-9)


@given(mechanisms(), logarithmic(1e-6, 1e4), rounds)
@COMMON
def test_delta_is_a_probability_and_not_zero(m, epsilon, rounds):
    delta = m.delta(method="rdp", epsilon=epsilon, rounds=rounds).upper
    assert 0.0 < delta <= 1.0
    assert m.delta(method="rdp", epsilon=2 * epsilon, rounds=rounds).upper <= delta * (1 + 1e-9)


@given(mechanisms(), st.lists(logarithmic(1.001, 3000.0), min_size=1, max_size=4))
@COMMON
def test_rdp_is_finite_positive_and_grows_with_the_order(m, orders):
    orders = sorted(orders)
    for direction in ("forward", "reverse"):
        curve = m.rdp(orders, direction=direction)
        assert all(math.isfinite(v) and v > 0.0 for v in curve)
        assert all(a <= b * (1 + 1e-6) for a, b in itertools.pairwise(curve))


@given(users, sigmas, rates, deltas, rounds)
@settings(COMMON, max_examples=40)
def test_more_users_more_noise_fewer_rounds_help(n, sigma, rate, delta, rounds):
    m = ShuffledCheckIn(users=n, rate=rate, sigma=sigma, crowd="identical")
    eps = m.epsilon(method="rdp", delta=delta, rounds=rounds).upper
    slack = eps * 2e-3 + 1e-12  # the order grid is finite, so the optimum is not met exactly
    assert m.replace(users=2 * n).epsilon(method="rdp", delta=delta, rounds=rounds).upper <= eps + slack
    assert m.replace(sigma=2 * sigma).epsilon(method="rdp", delta=delta, rounds=rounds).upper <= eps + slack
    assert m.epsilon(method="rdp", delta=delta, rounds=2 * rounds).upper >= eps - slack


@pytest.mark.filterwarnings("ignore::shoal.AccuracyWarning")  # the space goes beyond the range of the law
@given(mechanisms(crowds=("identical", "any")), deltas, rounds, logarithmic(1e-6, 1e4))
@settings(COMMON, max_examples=12)
def test_certified_brackets_never_fail(m, delta, rounds, epsilon):
    """The default method over the same space: valid brackets, never wider than Rényi DP says."""
    found = m.epsilon(delta=delta, rounds=rounds)
    known = LocalGaussian(sigma=m.sigma, adjacency=m.adjacency) if getattr(m, "crowd", "") == "any" else m
    by_rdp = known.epsilon(method="rdp", delta=delta, rounds=rounds).upper
    assert 0.0 <= found.lower <= found.upper <= by_rdp * (1 + 2e-3) + 1e-12
    assert 0.0 < m.delta(epsilon=epsilon, rounds=rounds).upper <= 1.0

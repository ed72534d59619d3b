"""The paper's bounds: against brute force, high precision, each other, and the digits in print."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import shoal
from shoal import literature
from shoal.bounds import moments
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical


def exact_moment(mean: Identical, order: int) -> float:
    return float(moments.log_moments(mean, order)[order])


def checkin_rdp(users: int, rate: float, sigma: float, order: int) -> float:
    mean = Identical(ratio=Lognormal(scale=sigma, rate=rate), users=users)
    return exact_moment(mean, order) / (order - 1)


def gaussian_delta(epsilons, sigma: float):
    """The Gaussian mechanism's profile, through Mills ratios: accurate far out."""
    u, v = epsilons * sigma - 0.5 / sigma, epsilons * sigma + 0.5 / sigma
    return 0.5 * np.exp(-(u**2) / 2) * (special.erfcx(u / math.sqrt(2)) - special.erfcx(v / math.sqrt(2)))


# --- Theorem 1, Algorithm 1 --------------------------------------------------------------------


def theorem1_brute_force(users: int, order: int, sigma: float) -> float:
    """The sum of Theorem 1 over all tuples (k_1, ..., k_n), in 40 digits."""
    with mpmath.workdps(40):
        total = mpmath.mpf(0)
        for ks in itertools.product(range(order + 1), repeat=users):
            if sum(ks) == order:
                ways = math.factorial(order)
                for k in ks:
                    ways //= math.factorial(k)
                total += ways * mpmath.exp(sum(k * k for k in ks) / (2 * mpmath.mpf(sigma) ** 2))
        moment = total * mpmath.exp(-order / (2 * mpmath.mpf(sigma) ** 2)) / mpmath.mpf(users) ** order
        return float(mpmath.log(moment) / (order - 1))


@pytest.mark.parametrize(("users", "order"), [(1, 2), (1, 7), (2, 2), (2, 7), (3, 5), (4, 4), (5, 3), (6, 6)])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 9.48, 1e4])
def test_algorithm1_is_the_sum_over_all_tuples(users, order, sigma):
    expected = theorem1_brute_force(users, order, sigma)
    assert literature.algorithm1(users=users, order=order, sigma=sigma) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("users", [1, 2, 5, 30, 1_000, 60_000, 10**9])
@pytest.mark.parametrize("order", [2, 3, 10, 31])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 9.48])
def test_algorithm1_equals_the_series_engine(users, order, sigma):
    by_series = literature.shuffle_rdp(users=users, order=order, sigma=sigma)
    assert literature.algorithm1(users=users, order=order, sigma=sigma) == pytest.approx(by_series, rel=1e-12)


def test_partitions_are_complete_and_distinct():
    counts = [1, 1, 2, 3, 5, 7, 11, 15, 22, 30, 42, 56, 77, 101, 135, 176, 231, 297, 385, 490, 627]
    for total, count in enumerate(counts):
        found = list(literature.partitions(total))
        assert len(found) == len(set(found)) == count
        assert all(sum(part * often for part, often in p) == total for p in found)
        assert all(part > after for p in found for (part, _), (after, _) in itertools.pairwise(p))


def test_partitions_are_made_one_at_a_time():
    first = next(literature.partitions(500))
    assert first == ((1, 500),)


def test_corollary1_bounds_theorem1_and_is_reached_by_one_user():
    for order, sigma in itertools.product([2, 5, 20], [0.5, 3.0]):
        local = literature.corollary1(order=order, sigma=sigma)
        assert local == order / (2 * sigma**2)
        assert literature.algorithm1(users=1, order=order, sigma=sigma) == pytest.approx(local, rel=1e-13)
        assert literature.algorithm1(users=2, order=order, sigma=sigma) < local


# --- Theorem 2 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("users", "sample"), [(10, 1), (10, 9), (10, 10), (1_000, 10), (60_000, 6_000)])
@pytest.mark.parametrize("sigma", [0.7, 5.0])
@pytest.mark.parametrize("order", [2, 3, 12])
def test_theorem2_is_above_the_exact_value_in_both_directions(users, sample, sigma, order):
    bound = literature.theorem2(users=users, sample=sample, sigma=sigma, order=order)
    exact = shoal.SubsampledShuffle(users=users, sample=sample, sigma=sigma, crowd="identical").rdp(order)[0]
    assert bound >= exact


def test_theorem2_equals_its_formula_in_high_precision():
    users, sample, sigma, order = 50, 5, 1.5, 6
    with mpmath.workdps(40):
        rate = mpmath.mpf(sample) / users
        eps = {j: mpmath.mpf(theorem1_brute_force(sample, j, sigma)) for j in range(2, order + 1)}
        total = 1 + rate**2 * math.comb(order, 2) * min(4 * (mpmath.exp(eps[2]) - 1), 2 * mpmath.exp(eps[2]))
        total += sum(2 * rate**j * math.comb(order, j) * mpmath.exp((j - 1) * eps[j]) for j in range(3, order + 1))
        expected = float(mpmath.log(total) / (order - 1))
    assert literature.theorem2(users=users, sample=sample, sigma=sigma, order=order) == pytest.approx(
        expected, rel=1e-13
    )


def test_theorem2_takes_the_smaller_of_the_two_second_terms():
    # One report with little noise: 2 e^eps is the smaller one.
    second = math.log1p(0.5**2 * 2 * math.exp(1 / 0.5**2))
    assert literature.theorem2(users=2, sample=1, sigma=0.5, order=2) == pytest.approx(second, rel=1e-13)


def test_theorem2_gives_the_same_by_algorithm1():
    given = {"users": 500, "sample": 20, "sigma": 2.0, "order": 9}
    by_partitions = literature.theorem2(**given, shuffle=literature.algorithm1)
    assert by_partitions == pytest.approx(literature.theorem2(**given), rel=1e-13)


# --- check-in: sums and Theorem 3 --------------------------------------------------------------

CHECKINS = [(1, 0.2, 1.0, 3), (7, 0.5, 0.5, 12), (50, 0.3, 1.0, 10), (400, 0.1, 2.0, 4), (300, 1.0, 2.0, 5)]


@pytest.mark.parametrize(("users", "rate", "sigma", "order"), [*CHECKINS, (20_000, 3e-4, 5.0, 2)])
def test_exact_sum_over_participants_equals_the_closed_engine(users, rate, sigma, order):
    value = literature.checkin_sum(users=users, rate=rate, sigma=sigma, order=order)
    assert value == pytest.approx(checkin_rdp(users, rate, sigma, order), rel=1e-12)


@pytest.mark.parametrize(("users", "rate", "sigma", "order"), CHECKINS)
def test_sum_with_theorem2_inside_is_above_the_exact_sum_and_equals_the_plain_sum(users, rate, sigma, order):
    value = literature.checkin_sum(users=users, rate=rate, sigma=sigma, order=order, inner="theorem2")
    assert value >= checkin_rdp(users, rate, sigma, order)
    chosen = [k for k in range(1, users + 1) if stats.binom.pmf(k, users, rate) > 1e-30]
    plain = stats.binom.pmf(0, users, rate) + sum(
        stats.binom.pmf(k, users, rate)
        * math.exp((order - 1) * literature.theorem2(users=users, sample=k, sigma=sigma, order=order))
        for k in chosen
    )
    assert value == pytest.approx(math.log(plain) / (order - 1), rel=1e-9)


def test_printed_sum_leaves_out_nobody_and_fixes_the_rate():
    users, rate, sigma, order = 12, 0.25, 1.0, 4
    plain = sum(
        stats.binom.pmf(k, users, rate)
        # Theorem 2 at the check-in rate for k reports: k of 4k users.
        * math.exp((order - 1) * literature.theorem2(users=4 * k, sample=k, sigma=sigma, order=order))
        for k in range(1, users + 1)
    )
    value = literature.checkin_sum_printed(users=users, rate=rate, sigma=sigma, order=order)
    assert value == pytest.approx(math.log(plain) / (order - 1), rel=1e-12)
    # What is wrong with it, in the smallest case: one user, and a "bound" below the exact value.
    assert literature.checkin_sum_printed(users=1, rate=0.2, sigma=1.0, order=3) < 0 < checkin_rdp(1, 0.2, 1.0, 3)


@pytest.mark.parametrize(
    ("users", "rate", "sigma", "order"), [(40, 0.25, 1.0, 3), (400, 0.25, 3.0, 2), (90, 1.0, 1.0, 4)]
)
def test_theorem3_finds_the_best_delta(users, rate, sigma, order):
    mean = round(users * rate)
    scale = round(1 / rate)

    def inner(k):
        return (order - 1) * literature.theorem2(users=scale * k, sample=k, sigma=sigma, order=order)

    every = [
        math.log(math.exp(inner(1) - (1 - q / mean) ** 2 * mean / 2) + math.exp(inner(q + 1))) / (order - 1)
        for q in range(min(mean, users - 1) + 1)
    ]
    value = literature.theorem3(users=users, rate=rate, sigma=sigma, order=order)
    assert value == pytest.approx(min(every), rel=1e-12)


def test_theorem3_at_the_parameters_of_figure_1b():
    users = 60_000
    curve = {k: literature.theorem3(users=users, rate=0.1, sigma=5.0, order=k) for k in range(2, 11)}

    def epsilon(orders):
        return literature.epsilon_from_rdp(curve=curve.__getitem__, orders=orders, delta=1 / users, rounds=5_540)

    assert f"{epsilon(range(2, 11)):.3f}" == "9.617"
    assert epsilon([2]) == epsilon(range(2, 11))


def test_bounds_are_ordered():
    given = {"users": 1_000, "rate": 0.1, "sigma": 5.0, "order": 2}
    exact = literature.checkin_sum(**given)
    by_theorem2 = literature.checkin_sum(**given, inner="theorem2")
    assert 0 < exact < by_theorem2 < literature.theorem3(**given) < literature.generic_bound(**given)
    assert by_theorem2 < literature.corollary1(order=2, sigma=5.0)


# --- generic bound, baseline -------------------------------------------------------------------


def two_user_profile(sigma: float):
    """The exact profile of two shuffled reports, the worse direction, by summation on a fine grid."""
    z = np.linspace(-12, 12, 2_001)
    p = stats.norm.pdf(z) * (z[1] - z[0])
    w = np.exp(z / sigma - 0.5 / sigma**2)
    s = ((w[:, None] + w) / 2).ravel()
    at = np.argsort(s)
    s, q = s[at], np.outer(p, p).ravel()[at]
    above_q = np.append(np.cumsum(q[::-1])[::-1], 0.0)
    above_p = np.append(np.cumsum((q * s)[::-1])[::-1], 0.0)
    below_q, below_p = np.append(0.0, np.cumsum(q)), np.append(0.0, np.cumsum(q * s))

    def profile(reports, epsilons):
        assert reports == 2
        x = np.exp(epsilons)
        up, down = np.searchsorted(s, x), np.searchsorted(s, 1 / x)
        forward = above_p[up] - x * above_q[up]
        reverse = below_q[down] - x * below_p[down]
        return np.maximum(np.maximum(forward, reverse), 0.0)

    return profile


@pytest.mark.parametrize("order", [2, 3, 8])
def test_generic_bound_is_above_the_exact_value_and_near_it_for_an_exact_profile(order):
    exact = literature.shuffle_rdp(users=2, order=order, sigma=2.0)
    value = literature.generic_bound(
        users=2, rate=1.0, sigma=2.0, order=order, profile=two_user_profile(2.0), sensitivity=1.0
    )
    assert exact <= value < 1.1 * exact


@pytest.mark.parametrize("order", [2, 5, 30])
def test_generic_bound_integrates_a_gaussian_profile_to_its_rdp(order):
    value = literature.generic_bound(
        users=3,
        rate=1.0,
        sigma=2.0,
        order=order,
        profile=lambda reports, epsilons: gaussian_delta(epsilons, 10.0),
        sensitivity=1.0,
    )
    expected = literature.corollary1(order=order, sigma=10.0)
    assert expected * (1 - 1e-12) <= value <= expected * (1 + 1e-3)


@pytest.mark.parametrize(("users", "rate", "sigma", "order"), [(30, 0.3, 1.0, 3), (300, 0.1, 4.0, 6), (1, 0.5, 2.0, 4)])
def test_generic_bound_without_any_profile_samples_the_report_in_the_clear(users, rate, sigma, order):
    value = literature.generic_bound(
        users=users, rate=rate, sigma=sigma, order=order, profile=lambda k, e: np.ones_like(e), sensitivity=1.0
    )
    local = shoal.LocalGaussian(sigma=sigma).rdp(order)[0]
    assert checkin_rdp(users, rate, sigma, order) * (1 - 1e-12) <= value <= local * (1 + 1e-12)
    # k of n sampled, in the clear: the forward half of the integral is exact for 1 - k/n + k/n W.
    sampled = sum(
        stats.binom.pmf(k, users, rate)
        * math.exp(exact_moment(Identical(ratio=Lognormal(scale=sigma), users=1, weight=k / users), order))
        for k in range(1, users + 1)
    )
    lower = math.log(sampled + (1 - rate) ** users) / (order - 1)
    assert lower * (1 - 1e-9) <= value < 2 * lower


def test_default_generic_bound_is_above_the_exact_value_for_replacement():
    value = literature.generic_bound(users=2_000, rate=0.5, sigma=20.0, order=4)
    assert checkin_rdp(2_000, 0.5, 10.0, 4) < value < literature.corollary1(order=4, sigma=10.0)


def test_baseline_is_the_best_of_its_steps():
    users, rate, sigma, delta, rounds = 60_000, 0.1, 10.0, 1 / 60_000, 50
    value = literature.checkin_baseline(users=users, rate=rate, sigma=sigma, delta=delta, rounds=rounds)
    found = []
    for j in range(-20, 36):
        delta0 = 1e-10 * 2.0**-j
        epsilon0 = 2 * math.sqrt(2 * math.log(1.25 / delta0)) / sigma
        one = literature.clones(users=6_000, epsilon0=epsilon0, delta=delta0, delta0=delta0)
        if rounds * rate * one.delta < delta:
            epsilon = math.log(1 + rate * (math.exp(one.epsilon) - 1))
            found.append(
                literature.optimal_composition(
                    epsilon=epsilon, delta=rate * one.delta, rounds=rounds, delta_total=delta
                )
            )
    assert value == pytest.approx(min(found), rel=1e-12)
    exact = shoal.ShuffledCheckIn(users=users, rate=rate, sigma=sigma, adjacency="replace", crowd="identical")
    assert exact.epsilon(delta=delta, rounds=rounds, method="rdp").upper < value


def test_baseline_falls_back_on_the_report_in_the_clear():
    value = literature.checkin_baseline(users=100, rate=0.5, sigma=5.0, delta=1e-5)
    epsilon0 = 2 * math.sqrt(2 * math.log(1.25 / 2e-5)) / 5.0
    assert math.log(1 + 0.5 * (math.exp(epsilon0) - 1)) <= value < epsilon0
    with pytest.raises(ValueError, match="epsilon0 must be at most"):
        literature.clones(users=50, epsilon0=epsilon0, delta=1e-5)


# --- clones ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "epsilon0", "delta", "delta0"),
    [(60_000, 1.439, 1e-10, 1e-10), (1_000, 0.1, 1e-5, 0.0), (10**9, 8.0, 1e-12, 1e-30), (10**6, 1e-7, 0.1, 1e-9)],
)
def test_clones_equals_its_formula_in_high_precision(users, epsilon0, delta, delta0):
    with mpmath.workdps(40):
        e, d, n = mpmath.exp(mpmath.mpf(epsilon0)), mpmath.mpf(delta), mpmath.mpf(users)
        gain = (e - 1) / (e + 1) * (8 * mpmath.sqrt(e * mpmath.log(4 / d)) / mpmath.sqrt(n) + 8 * e / n)
        epsilon = mpmath.log(1 + gain)
        total = d + (mpmath.exp(epsilon) + 1) * (1 + 1 / (2 * e)) * n * mpmath.mpf(delta0)
    found = literature.clones(users=users, epsilon0=epsilon0, delta=delta, delta0=delta0)
    assert found.epsilon == pytest.approx(float(epsilon), rel=1e-14)
    assert found.delta == pytest.approx(float(total), rel=1e-14)


def test_clones_by_hand():
    # e^eps0 = 3: (3-1)/(3+1) (8 sqrt(3 log(4/delta)) / 100 + 24 / 10^4), with log(4/delta) = 12
    found = literature.clones(users=10_000, epsilon0=math.log(3), delta=4 * math.exp(-12))
    assert found.epsilon == pytest.approx(math.log(1 + 0.5 * (0.48 + 0.0024)), rel=1e-14)
    assert found.delta == pytest.approx(4 * math.exp(-12), rel=1e-14)


def test_clones_is_refused_just_beyond_its_condition():
    limit = math.log(1_000 / (16 * math.log(2 / 1e-3)))
    literature.clones(users=1_000, epsilon0=limit * (1 - 1e-12), delta=1e-3)
    with pytest.raises(ValueError, match=r"epsilon0 must be at most log\(users / \(16 log\(2 / delta\)\)\) = 2.1069 "):
        literature.clones(users=1_000, epsilon0=limit * (1 + 1e-9), delta=1e-3)


def test_clones_gaussian_takes_the_largest_delta0_that_meets_the_target():
    users, sigma, delta = 60_000, 9.476, 1 / 60_000
    for rounds in range(1, 9):
        found = literature.clones_gaussian(users=users, sigma=sigma, delta=delta, rounds=rounds)
        assert found.total.delta == rounds * found.round.delta <= delta
        assert found.total.epsilon == rounds * found.round.epsilon
        twice = 2 * found.local.delta
        epsilon0 = 2 * math.sqrt(2 * math.log(1.25 / twice)) / sigma
        assert rounds * literature.clones(users=users, epsilon0=epsilon0, delta=twice, delta0=twice).delta > delta


def test_classical_calibration_holds_where_table_1_uses_it_above_one():
    for rounds in range(1, 8):
        local = literature.clones_gaussian(users=60_000, sigma=9.476, delta=1 / 60_000, rounds=rounds).local
        assert local.epsilon > 1
        assert gaussian_delta(local.epsilon, 9.476 / 2) < local.delta


def test_clones_profile_is_what_clones_proves():
    profile = literature.clones_profile(sigma=9.476)
    found = literature.clones_gaussian(users=60_000, sigma=9.476, delta=1 / 60_000)
    at = np.array([0.0, found.round.epsilon * (1 - 1e-9), found.round.epsilon, 0.5, 5.0])
    deltas = profile(60_000, at)
    assert deltas[0] == 1.0
    assert deltas[1] > 1 / 60_000 >= found.round.delta == deltas[2]
    assert (np.diff(deltas) <= 0).all()


# --- composition -------------------------------------------------------------------------------


def composed_delta(epsilon: float, delta: float, rounds: int, at: mpmath.mpf) -> mpmath.mpf:
    """Hockey stick of `rounds` copies of the worst (epsilon, delta) pair: by losses, from their pmf."""
    up = (1 - mpmath.mpf(delta)) / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
    down = (1 - mpmath.mpf(delta)) / (1 + mpmath.exp(mpmath.mpf(epsilon)))
    pmf = {0: mpmath.mpf(1)}
    for _ in range(rounds):
        step: dict[int, mpmath.mpf] = {}
        for loss, mass in pmf.items():
            step[loss + 1] = step.get(loss + 1, mpmath.mpf(0)) + mass * up
            step[loss - 1] = step.get(loss - 1, mpmath.mpf(0)) + mass * down
        pmf = step
    infinite = 1 - sum(pmf.values())
    finite = (mass * max(0, 1 - mpmath.exp(at - loss * mpmath.mpf(epsilon))) for loss, mass in pmf.items())
    return infinite + sum(finite)


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("target", [1e-6, 0.02, 0.5])
def test_optimal_composition_is_the_smallest_step_of_the_exact_one(rounds, epsilon, delta, target):
    with mpmath.workdps(30):
        steps = [
            k
            for k in range(rounds, -1, -2)
            if composed_delta(epsilon, delta, rounds, k * mpmath.mpf(epsilon)) <= target
        ]
    if not steps:
        with pytest.raises(ValueError, match="delta_total must be at least"):
            literature.optimal_composition(epsilon=epsilon, delta=delta, rounds=rounds, delta_total=target)
        return
    value = literature.optimal_composition(epsilon=epsilon, delta=delta, rounds=rounds, delta_total=target)
    assert value == pytest.approx(min(steps) * epsilon, rel=1e-15)
    assert value >= min(steps) * epsilon


@pytest.mark.parametrize(("epsilon", "rounds", "i"), [(0.5, 12, 4), (0.01, 500, 180), (0.001, 5_000, 2_400)])
def test_delta_of_a_step_is_rounded_up_by_little(epsilon, rounds, i):
    from shoal.literature.composition import log_excess_delta

    with mpmath.workdps(60):
        eps = mpmath.mpf(epsilon)
        exact = (
            sum(
                mpmath.binomial(rounds, j) * (mpmath.exp((rounds - j) * eps) - mpmath.exp((rounds - 2 * i + j) * eps))
                for j in range(i)
            )
            / (1 + mpmath.exp(eps)) ** rounds
        )
        above = float(log_excess_delta(epsilon, rounds, i) - mpmath.log(exact))
    assert 0 <= above < 1e-10


def test_optimal_composition_of_many_rounds_is_far_below_addition():
    value = literature.optimal_composition(epsilon=0.01, delta=1e-12, rounds=10_000, delta_total=1e-5)
    assert 3.5 < value < 6.0  # about 10^4 eps^2 / 2 + eps 100 * 4.26


def test_optimal_composition_without_loss_costs_nothing():
    assert literature.optimal_composition(epsilon=0.0, delta=0.0, rounds=10, delta_total=1e-9) == 0.0


def test_conversion_is_that_of_the_package():
    m = shoal.Shuffle(users=500, sigma=2.0, crowd="identical")
    orders = range(2, 40)
    value = literature.epsilon_from_rdp(curve=lambda k: m.rdp(k)[0], orders=orders, delta=1e-6, rounds=20)
    assert value == pytest.approx(m.epsilon(delta=1e-6, rounds=20, method="rdp", orders=orders).upper, rel=1e-12)


# --- Table 1 and Figure 1a ---------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [literature.shuffle_rdp, literature.algorithm1])
def test_table1_equals_the_paper_in_all_printed_digits(shuffle):
    table = literature.table1(shuffle=shuffle)
    assert table.rounds == literature.PRINTED_TABLE1["rounds"]
    for row in ("rdp", "clones"):
        computed = [f"{value:.5f}" for value in getattr(table, row)]
        assert computed == [f"{value:.5f}" for value in literature.PRINTED_TABLE1[row]]
    assert "sensitivity 2 in the clones row, 1 in the RDP row" in table.note


def test_printed_digits_of_table1_are_those_of_the_paper():
    assert literature.PRINTED_TABLE1["clones"] == (0.18623, 0.38461, 0.59516, 0.79355, 1.02241, 1.22689, 1.43138)
    assert literature.PRINTED_TABLE1["rdp"] == (0.22820, 0.22820, 0.22821, 0.22821, 0.22821, 0.22822, 0.22822)


def test_clones_row_halves_delta0_as_rounds_are_added():
    halvings = [
        math.log2(1e-10 / literature.clones_gaussian(users=60_000, sigma=9.476, delta=1 / 60_000, rounds=t).local.delta)
        for t in range(1, 8)
    ]
    assert np.allclose(halvings, [0, 1, 2, 2, 3, 3, 3], rtol=0, atol=1e-12)


def test_figure1a_starts_at_table1_and_shuffling_helps():
    figure = literature.figure1a(rounds=range(1, 8))
    assert figure.shuffled == pytest.approx(np.array(literature.table1().rdp), rel=1e-15)
    assert (figure.shuffled < figure.unshuffled).all()
    local = shoal.LocalGaussian(sigma=9.48).epsilon(delta=1 / 60_000, rounds=7, method="rdp", orders=range(2, 31))
    assert figure.unshuffled[-1] == pytest.approx(local.upper, rel=1e-12)
    default = literature.figure1a()
    assert default.rounds[0] == 1
    assert default.rounds[-1] == 10_000
    assert (np.diff(default.unshuffled) > 0).all()


# --- input, imports ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: literature.algorithm1(users=5, order=3, sigma=-1.0), "sigma must be positive, got -1.0"),
        (lambda: literature.algorithm1(users=0, order=3, sigma=1.0), "users must be at least 1, got 0"),
        (lambda: literature.algorithm1(users=5, order=2.5, sigma=1.0), "order must be a whole number, got 2.5"),
        (lambda: literature.algorithm1(users=5, order=1, sigma=1.0), "order must be at least 2, got 1"),
        (lambda: literature.algorithm1(users=5, order=101, sigma=1.0), "order must be at most 100, got 101"),
        (lambda: literature.corollary1(order=1.0, sigma=1.0), "order must be above 1 and at most 1e+09, got 1.0"),
        (lambda: literature.theorem2(users=5, sample=6, sigma=1.0, order=2), "sample must be at most users (5), got 6"),
        (
            lambda: literature.theorem3(users=5, rate=0.0, sigma=1.0, order=2),
            "rate must be above 0 and at most 1, got 0.0",
        ),
        (
            lambda: literature.checkin_sum(users=5, rate=0.5, sigma=1.0, order=2, inner="fast"),
            "inner must be one of exact, theorem2, got 'fast'",
        ),
        (
            lambda: literature.checkin_baseline(users=5, rate=0.1, sigma=1.0, delta=1e-5),
            "users * rate must be at least 1, got 0.5",
        ),
        (
            lambda: literature.generic_bound(users=5, rate=0.5, sigma=1.0, order=2, profile=lambda k, e: -e),
            "profile must give one delta of at least 0 for each epsilon",
        ),
        (lambda: literature.clones(users=5, epsilon0=-1.0, delta=0.1), "epsilon0 must be at least 0, got -1.0"),
        (
            lambda: literature.clones(users=500, epsilon0=0.1, delta=0.1, delta0=2.0),
            "delta0 must lie strictly between 0 and 1, got 2.0",
        ),
        (
            lambda: literature.clones_gaussian(users=500, sigma=1.0, delta=0.1, sensitivity=3.0),
            "sensitivity must be 1 or 2, got 3",
        ),
        (
            lambda: literature.clones_gaussian(users=50, sigma=1.0, delta=0.1),
            "users or sigma must be larger for clones to apply: no delta0 gives delta 0.1",
        ),
        (
            lambda: literature.optimal_composition(epsilon=0.1, delta=0.1, rounds=2, delta_total=0.1),
            "delta_total must be at least 0.19 for 2 rounds with delta 0.1, got 0.1",
        ),
        (
            lambda: literature.epsilon_from_rdp(curve=lambda k: -1.0, orders=[2], delta=0.1),
            "curve(2) must be at least 0, got -1.0",
        ),
        (lambda: literature.epsilon_from_rdp(curve=float, orders=[], delta=0.1), "orders must not be empty"),
        (lambda: literature.figure1a(rounds=[0]), "rounds must be at least 1, got 0"),
    ],
)
def test_errors_name_the_argument_its_value_and_what_is_allowed(call, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the whole message is compared)
        call()
    assert message in str(error.value)


def test_arguments_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        literature.algorithm1(5, 3, 1.0)


def test_public_names_exist_and_the_package_does_not_import_them():
    assert all(hasattr(literature, name) for name in literature.__all__)
    code = "import sys, shoal; sys.exit(any(name.startswith('shoal.literature') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

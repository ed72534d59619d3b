"""Users aside again and again: terms, exact small crowds in both directions, limits, and the order of bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import special

import shoal
from helpers import Array
from shoal.bounds.anycrowd import iterated
from shoal.bounds.anycrowd.iterated import Vantage
from shoal.bounds.anycrowd.prices import Prices, prices_of_report
from shoal.bounds.ratio import Lognormal

EPSILONS: Array = np.concatenate([[0.0], np.geomspace(0.01, 6.0, 24)])


def vantages(sigma: float, rate: float = 1.0) -> dict[str, Vantage]:
    ratio = Lognormal(scale=sigma, rate=rate)
    return {
        "zero": Vantage.from_zero(ratio),
        "moved": Vantage.in_reverse(ratio),
        "replace": Vantage.of_replace(ratio),
    }


def deltas(prices: Prices, epsilons: Array, towards: str) -> Array:
    """delta at each epsilon in one direction: to the new place ("forward") or to the one that is left."""
    if towards == "forward":
        return prices.at(np.expm1(epsilons))
    return np.exp(epsilons) * prices.at(np.expm1(-epsilons))


# One term


@pytest.mark.parametrize("name", ["zero", "moved", "replace"])
@pytest.mark.parametrize("sigma", [0.8, 2.0])
def test_a_term_has_the_calls_of_the_worst_user(name: str, sigma: float) -> None:
    """E(X_u - k)+ = E(w - v - k e_u)+, for places u on the line of the move, by a sum over a fine grid."""
    r, vantage = 1.0 / sigma, vantages(sigma)[name]
    y, step = np.linspace(-15.0, 19.0, 40_001, retstep=True)
    p = np.exp(-0.5 * y * y) * step / math.sqrt(2.0 * math.pi)
    w = np.exp(vantage.step * y - 0.5 * vantage.step**2)
    # On the line through the move: from zero others stand between -r and r, from the ball's surface between 0 and 2 r.
    low = -r if name == "zero" else 0.0
    for v, k in itertools.product((0.0, 0.4, 5.0), (-2.0, -0.3, 0.0, 0.4, 3.0)):
        calls = []
        for a in np.linspace(low, low + 2.0 * r, 5).tolist():
            # A user at a place off the line is one on it at unit length's projection: e has the deviation of |u|.
            calls.append(float(p @ np.maximum(w - v - k * np.exp(a * y - 0.5 * a * a), 0.0)))
        x, mass = vantage.term(v, 1e-14, np.array([k + v - 1.0]))
        assert mass.sum() == pytest.approx(1.0, abs=1e-12)
        assert mass @ x == pytest.approx(0.0, abs=1e-9)
        computed = float(mass @ np.maximum(x - (v - 1.0) - k, 0.0))
        assert computed >= max(calls) - 1e-7
        # At the end of the line that is the worst one it is an equality.
        worst = vantage.above if k >= 0.0 else vantage.below
        exact = float(p @ np.maximum(w - v - k * np.exp(worst * y - 0.5 * worst**2), 0.0))
        assert computed == pytest.approx(exact, rel=1e-5, abs=1e-7)


def test_every_x_has_its_report() -> None:
    for name, v in itertools.product(("zero", "moved", "replace"), (0.2, 1.0, 3.0)):
        vantage = vantages(1.3)[name]
        z = (math.log(v) + 0.5 * vantage.step**2) / vantage.step
        for place, y in (
            (vantage.below, np.linspace(-5.0, z - 0.01, 9)),
            (vantage.above, np.linspace(z + 0.01, 6.0, 9)),
        ):
            piece = iterated._Reports(low=-6.0, high=6.0, place=place)
            assert piece.at_value(piece.value(y, vantage.step, v), vantage.step, v) == pytest.approx(y, abs=1e-9)


@pytest.mark.parametrize("users", [1, 2, 3, 30, 64, 1_000, 4_097])
def test_users_join_by_powers_of_two_at_most_as_many_as_there_are(users: int) -> None:
    joining = iterated._ladder(users)
    assert 1 + sum(joining) == users
    assert all(size & (size - 1) == 0 for size in joining)
    assert all(size <= 1 + sum(joining[:place]) for place, size in enumerate(joining))


# Exact crowds of two to twelve users


def histograms(letters: Array) -> Array:
    """The law of the histogram of letters that users send on their own, over (crowd, counts of all letters but one).

    `letters` holds probabilities over (crowd, user, letter). All sums are of positive terms.
    """
    crowds, users, size = letters.shape
    law = np.zeros((crowds, *[users + 1] * (size - 1)))
    law[(slice(None), *[0] * (size - 1))] = 1.0
    for user in range(users):
        chance = letters[:, user, :].reshape(crowds, size, *[1] * (size - 1))
        after = chance[:, -1] * law
        for letter in range(size - 1):
            moved = np.roll(law, 1, axis=letter + 1)  # counts never reach the last place before the last user
            after = after + chance[:, letter] * moved
        law = after
    return law.reshape(crowds, -1)


def crowds(rng: np.random.Generator, users: int) -> tuple[Array, Array]:
    """Directions of the others and weights along them: mixed, perpendicular, at both ends, and near the reference."""
    angle = rng.uniform(0.0, math.pi, (48, users - 1))
    length = np.ones((48, users - 1))
    angle[:8] = math.pi * rng.integers(0, 2, (8, users - 1))  # at x' and opposite to it
    angle[8:12] = math.pi
    angle[12:16] = 0.0
    angle[16:20] = 0.5 * math.pi
    length[20:30] = rng.uniform(0.0, 1.0, (10, users - 1))
    length[30:34] = 0.0
    return length * np.cos(angle), length * np.sin(angle)


def worst_excess(users: int, sigma: float, rng: np.random.Generator) -> tuple[int, float]:
    """The number of comparisons, and the largest exact delta over its bound."""
    r, count, largest = 1.0 / sigma, 0, 0.0
    along, across = crowds(rng, users)
    # The attacker looks along a direction of its own, and rounds reports to four cells.
    turn = rng.uniform(-0.5, 0.5, (len(along), 1))
    cuts = np.sort(rng.normal(0.0, 1.5, (len(along), 1, 3)), axis=2)

    def letters(x: Array, y: Array) -> Array:
        place = r * (np.cos(turn) * x + np.sin(turn) * y)
        law = special.ndtr(cuts - place[..., None])
        ends = np.zeros((*place.shape, 1))
        return np.maximum(np.diff(np.concatenate([ends, law, ends + 1.0], axis=2), axis=2), 0.0)

    def seen(x: float) -> Array:
        first = np.full((len(along), 1), x)
        return histograms(np.concatenate([letters(first, 0.0 * first), letters(along, across)], axis=1))

    before, zero, after = (seen(x) for x in (-1.0, 0.0, 1.0))
    pairs = {"zero": (after, zero), "moved": (zero, after), "replace": (after, before)}
    for name, (top, base) in pairs.items():
        prices = iterated.iterated_prices(vantages(sigma)[name], users, 16, 1e-20)
        for towards, p, q in (("forward", top, base), ("reverse", base, top)):
            exact = np.stack([np.maximum(p - math.exp(e) * q, 0.0).sum(axis=1) for e in EPSILONS.tolist()])
            bound = deltas(prices, EPSILONS, towards)[:, None]
            count += exact.size
            largest = max(largest, float(np.max((exact - 1e-12) / bound)))
    return count, largest


def test_no_small_crowd_is_above() -> None:
    rng = np.random.default_rng(3)
    found = [
        worst_excess(users, sigma, rng)
        for users, sigma in ((2, 0.7), (2, 2.0), (3, 1.2), (4, 3.0), (5, 0.8), (6, 1.5), (8, 2.0), (10, 1.0), (12, 2.5))
    ]
    assert sum(count for count, _ in found) >= 20_000
    assert max(ratio for _, ratio in found) <= 1.0
    # It bites: rounded to four cells, some crowd still shows most of what is allowed.
    assert max(ratio for _, ratio in found) > 0.8


def two_users(r: float, moved: float, still: float, other: float, epsilon: float) -> float:
    """delta(D' || D) for two users on a line, by a sum over a fine grid of both reports."""
    y, step = np.linspace(-9.0, 9.0 + 2.0 * r, 1501, retstep=True)
    moved_p, still_p, other_p = (np.exp(-0.5 * (y - r * a) ** 2) for a in (moved, still, other))
    pair = np.outer(moved_p - math.exp(epsilon) * still_p, other_p)
    return float(0.5 * np.maximum(pair + pair.T, 0.0).sum()) * step**2 / (2.0 * math.pi)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_two_users_come_close_to_the_bound(sigma: float) -> None:
    r = 1.0 / sigma
    ends = {"zero": (1.0, 0.0), "moved": (0.0, 1.0), "replace": (1.0, -1.0)}
    for name, (moved, still) in ends.items():
        prices = iterated.iterated_prices(vantages(sigma)[name], 2, 32, 1e-20)
        ratios = []
        for epsilon in (0.0, 0.1 * r, r, 4.0 * r):
            bound = float(deltas(prices, np.array([epsilon]), "forward")[0])
            ratios += [two_users(r, moved, still, a, epsilon) / bound for a in (-1.0, 0.0, 1.0)]
        assert 0.75 < max(ratios) <= 1.0 + 1e-6, name


# Limits and order


def test_one_user_is_one_report_and_nobody_sends_more_than_it() -> None:
    for rate in (1.0, 0.3):
        vantage = vantages(1.5, rate)["replace"]
        gap = np.expm1(np.linspace(-0.7, 4.0, 25))
        report = prices_of_report(gap, 1.0 / vantage.step, rate).value
        assert iterated.iterated_prices(vantage, 1, 32, 1e-20).at(gap) == pytest.approx(report, rel=0.02)
        assert np.all(iterated.iterated_prices(vantage, 7, 32, 1e-20).at(gap) <= report * 1.02)


def test_delta_falls_with_users_noise_and_rate() -> None:
    epsilons = np.array([0.05, 0.3, 1.0])
    for name in ("zero", "moved", "replace"):

        def at(users: int, sigma: float, rate: float, name: str = name) -> Array:
            return deltas(iterated.iterated_prices(vantages(sigma, rate)[name], users, 16, 1e-20), epsilons, "forward")

        assert np.all(at(24, 2.0, 1.0) < at(8, 2.0, 1.0))
        assert np.all(at(8, 2.4, 1.0) < at(8, 2.0, 1.0))
        assert np.all(at(8, 2.0, 0.5) < at(8, 2.0, 1.0))


def test_many_users_look_normal() -> None:
    """S is about normal, its variance that of one term at v = 1, over n."""
    users, sigma = 2_048, 5.0
    vantage = vantages(sigma)["replace"]
    x, mass = vantage.term(1.0, 1e-14, np.empty(0))
    deviation = math.sqrt(float(mass @ x**2) / users)
    wanted = deviation / math.sqrt(2.0 * math.pi)
    assert wanted < float(deltas(iterated.iterated_prices(vantage, users, 32, 1e-20), np.zeros(1), "forward")[0])
    assert float(deltas(iterated.iterated_prices(vantage, users, 32, 1e-20), np.zeros(1), "forward")[0]) < 1.08 * wanted


def test_a_finer_grid_is_sharper() -> None:
    for name in ("zero", "replace"):
        coarse, fine = (
            deltas(iterated.iterated_prices(vantages(2.0)[name], 20, half, 1e-20), np.array([0.2, 1.0]), "forward")
            for half in (16, 32)
        )
        assert np.all(fine < coarse)
        assert np.all(coarse < 1.5 * fine)


def test_prices_of_the_inverse_ratio_are_mirrored_twice_to_themselves() -> None:
    prices = iterated.iterated_prices(vantages(2.0)["moved"], 6, 16, 1e-20)
    again = iterated._mirrored(iterated._mirrored(prices))
    assert again.gap == pytest.approx(prices.gap, rel=1e-9)
    assert again.value == pytest.approx(prices.value, rel=1e-9)
    mirror = iterated._mirrored(prices)
    assert deltas(mirror, EPSILONS, "reverse") == pytest.approx(deltas(prices, EPSILONS, "forward"), rel=1e-6)


# As prices of a round


def epsilon_of(prices: Prices, delta: float) -> float:
    """The first epsilon on a fine grid at which delta is met."""
    epsilons = np.linspace(0.0, 4.0, 4_001)
    return float(epsilons[np.argmax(deltas(prices, epsilons, "forward") <= delta)])


def test_replace_is_one_bound_in_both_directions() -> None:
    prices = iterated.replace_prices(Lognormal(scale=2.0), 30, 512, 1e-20)
    assert epsilon_of(prices, 1e-6) < 2.5
    assert deltas(prices, EPSILONS, "forward") == pytest.approx(deltas(prices, EPSILONS, "reverse"), rel=1e-2)


def test_zero_out_is_sharper_in_the_direction_that_leads() -> None:
    gap = np.expm1(np.linspace(-5.0, 5.0, 400))
    report = prices_of_report(gap, 2.0, 1.0)
    few = iterated.sharpened(report, Lognormal(scale=2.0), 30, 512, 1e-20)
    assert epsilon_of(few, 1e-9) < 2.7
    assert np.all(few.at(gap) <= report.value * (1.0 + 1e-9))
    # Among more users only the reverse direction is looked at, and only where it leads.
    many = iterated.sharpened(report, Lognormal(scale=2.0), 400, 512, 1e-20)
    assert many is report


def test_answers_use_it() -> None:
    m = shoal.Shuffle(users=3, sigma=4.0, adjacency="replace")
    prices = iterated.replace_prices(Lognormal(scale=4.0), 3, 512, 1e-20)
    assert float(m.epsilon(delta=1e-6).upper) <= epsilon_of(prices, 1e-6) + 1e-3
    assert not iterated.has_replace_bound(Lognormal(scale=0.5), 3)

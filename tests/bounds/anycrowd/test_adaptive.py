"""Groups of records that react to each other: above every strategy, between known laws, with all errors charged."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.bounds.anycrowd import adaptive, evaluate, groups
from shoal.bounds.anycrowd.adaptive import AdaptiveDivision, adaptive_sum
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.replace import Replace
from shoal.bounds.anycrowd.sequential import Sequential
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.grid import in_order
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical
from shoal.bounds.sums import Batch, atoms_on_grid, batch, sums_by_count

CUTS = (-1.0, -0.5, 0.2, 1.0)


def nodes_at(v: float) -> groups.MixtureNodes:
    return groups.MixtureNodes(value=np.array([v]), chance=np.ones((1, 1)), beyond=np.zeros(1), weight=np.ones(1))


def group_law(r: float, size: int, v: float, cuts: tuple[float, ...] = CUTS, at: float = -math.inf) -> Batch:
    plan = AdaptiveDivision(size=size, cuts=cuts, t=at, spare=10)
    return plan.group_laws(Lognormal(scale=1.0 / r), Thinning.of(r, at), nodes_at(v), 128, 1e-20)


def call_or_put(points: np.ndarray, mass: np.ndarray, strikes: np.ndarray) -> np.ndarray:
    """Calls at strikes from 0 on, puts below."""
    sign = np.where(strikes >= 0.0, 1.0, -1.0)
    prices: np.ndarray = np.maximum(sign[:, None] * (points - strikes[:, None]), 0.0) @ mass
    return prices


def prices_of(law: Batch, strikes: np.ndarray) -> np.ndarray:
    return call_or_put(in_order(law.points()), in_order(law.rows[0, 0]), strikes)


# ---------------------------------------------------------------------------------------------
# Independent computation: the value of the game with records at chosen places.


def place_law(r: float, a: float, v: float) -> tuple[np.ndarray, np.ndarray]:
    """X_a + v - 1 without thinning as points and masses, by quadrature in two dimensions."""
    z, wz = np.polynomial.hermite_e.hermegauss(48)
    s, ws = np.polynomial.hermite_e.hermegauss(12)
    y, width = z + a * r, r * math.sqrt(1.0 - a**2)
    x = (np.exp(r * y - 0.5 * r**2) - v) * np.exp(-r * a * y + 0.5 * (r * a) ** 2)
    points = x[:, None] * np.exp(width * s - 0.5 * width**2) + v - 1.0
    return points.ravel(), np.outer(wz, ws).ravel() / (2.0 * math.pi)


def game_value(r: float, size: int, v: float, places: np.ndarray, strikes: np.ndarray) -> np.ndarray:
    """`C_size` at the strikes, each term at the best of these places given the sum so far."""
    # sum s so far: C is a function of k - s, on a grid with linear tails
    grid = np.linspace(-30.0 * r, 30.0 * r, 1001)
    value = np.maximum(-grid, 0.0)
    for _ in range(size):
        options = []
        for a in places:
            points, mass = place_law(r, a, v)
            after = grid[:, None] - points
            options.append((np.interp(after, grid, value) + np.maximum(grid[0] - after, 0.0)) @ mass)
        value = np.max(options, axis=0)
    calls = np.interp(strikes, grid, value)
    return np.where(strikes >= 0.0, calls, calls + strikes)


@pytest.mark.parametrize("v", [0.9, 1.0, 1.15])
def test_a_group_is_above_the_best_strategy(v: float) -> None:
    r, size, strikes = 0.4, 4, np.array([-1.2, -0.5, -0.1, 0.0, 0.1, 0.5, 1.2, 3.0])
    places = np.array([-1.0, -0.7, -0.2, 0.5, 1.0])
    value = game_value(r, size, v, places, strikes)
    law = group_law(r, size, v)
    prices = prices_of(law, strikes)
    assert (prices >= value * (1.0 - 1e-3)).all()  # the reference interpolates, which is upwards
    assert (prices <= value * 1.25 + 1e-4).all()
    # To choose late is worth something: no place for all terms reaches the value.
    fixed = np.max([game_value(r, size, v, places[i : i + 1], strikes) for i in range(len(places))], axis=0)
    assert (value > fixed * 1.002).any()
    assert law.stretch[0] < 1e-6


@pytest.mark.parametrize("at", [-math.inf, 0.5])
def test_a_group_is_above_every_order_of_kinds(at: float) -> None:
    """Any fixed sequence of intervals is a strategy."""
    r, v, size = 0.5, 1.05, 3
    thin, ratio = Thinning.of(r, at), Lognormal(scale=2.0)
    kinds, count = groups.interval_batch(ratio, thin, [CUTS], nodes_at(v), 128, 1e-20)
    law = group_law(r, size, v, at=at)
    strikes = np.array([-0.8, -0.2, 0.1, 0.6, 2.0])
    prices = prices_of(law, strikes)
    for chosen in itertools.product(range(count[0]), repeat=size):
        total = kinds.only(chosen[0])
        for kind in chosen[1:]:
            total = adaptive.batch_sum(total, kinds.only(kind), 1e-20)
        assert (prices >= prices_of(total, strikes) * (1.0 - 1e-9)).all()


# ---------------------------------------------------------------------------------------------
# Limits and laws.


def test_one_kind_is_a_sum_of_independent_terms() -> None:
    ratio, thin = Lognormal(scale=2.5), Thinning.of(0.4, 0.25)
    terms, kinds = groups.interval_batch(ratio, thin, [groups._ANYWHERE], nodes_at(1.1), 128, 1e-20)
    one_by_one, doubled = adaptive_sum(terms, kinds, 8, np.ones(1), 1e-20), sums_by_count(terms, 1e-20)(8)
    strikes = np.array([-1.0, -0.3, 0.2, 1.0, 3.0])
    assert prices_of(one_by_one, strikes) == pytest.approx(prices_of(doubled, strikes), rel=2e-3)
    assert one_by_one.count == 8


def test_finer_cuts_are_below_coarser_and_groups_that_stay_below_both() -> None:
    r, size, strikes = 0.4, 8, np.array([-1.0, -0.2, 0.0, 0.3, 1.0, 4.0])
    coarse, fine = (prices_of(group_law(r, size, 1.0, cuts), strikes) for cuts in ((-1.0, 1.0), CUTS))
    static = groups.Division(size=size, cuts=CUTS, t=-math.inf)
    stays = static.group_laws(Lognormal(scale=1.0 / r), Thinning.of(r, -math.inf), nodes_at(1.0), 128, 1e-20)
    assert (fine <= coarse * (1.0 + 1e-3)).all()
    assert (prices_of(stays, strikes) <= fine * (1.0 + 1e-3)).all()
    assert (fine < coarse * 0.99).any()


def test_wider_intervals_cover_every_place() -> None:
    """For an unusual v fewer intervals serve, whatever their number: none of the places is left out."""
    for count in range(2, 12):
        division = groups.Division(size=2, cuts=tuple(np.linspace(-1.0, 1.0, count).tolist()), t=-math.inf)
        for chance in (1.0, 1e-3, 1e-6):
            cuts = division.cuts_for(chance)
            assert (cuts[0], cuts[-1]) == (-1.0, 1.0)
            assert set(cuts) <= set(division.cuts)


# ---------------------------------------------------------------------------------------------
# Errors, made large enough to be seen.


def two_kinds(half: int = 64) -> tuple[Batch, list[tuple[np.ndarray, np.ndarray]]]:
    """Two kinds of terms on a lattice, exactly."""
    base = -4
    laws = [(np.array([-0.5, 0.0, 0.75]), np.array([0.3, 0.5, 0.2])), (np.array([-0.75, 0.5]), np.array([0.4, 0.6]))]
    rows = [atoms_on_grid(points, mass, half, base) for points, mass in laws]
    return batch(rows, base, weight=np.ones(2), stretch=[0.0, 0.0], cut=[0.0, 0.0]), laws


def test_small_games_by_hand() -> None:
    terms, laws = two_kinds()
    law = adaptive_sum(terms, [2], 3, np.ones(1), 1e-20)
    # C_3 by recursion over all sums that can occur
    strikes = np.arange(-2.0, 2.01, 0.25)

    def value(k: float, left: int) -> float:
        if left == 0:
            return max(-k, 0.0)
        return max(float(m @ [value(k - x, left - 1) for x in p]) for p, m in laws)

    calls = np.array([value(k, 3) for k in strikes])
    exact = np.where(strikes >= 0.0, calls, calls + strikes)
    assert prices_of(law, strikes) == pytest.approx(exact, rel=1e-12, abs=1e-14)


def test_stretches_are_carried_through_all_steps() -> None:
    terms, _ = two_kinds()
    plain = adaptive_sum(terms, [2], 4, np.ones(1), 1e-20)
    stretched = adaptive_sum(replace(terms, stretch=np.array([0.02, 0.05])), [2], 4, np.ones(1), 1e-20)
    # error 1: all terms may be as far off as the worst kind
    assert stretched.stretch[0] >= 0.05
    assert plain.stretch[0] > 0.0
    # error 2: what prices lack is charged at every step, here the rounding of each comparison
    assert plain.stretch[0] >= 4 * 64.0 * 2.0**-53


def test_the_lack_of_largest_prices_is_charged_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    terms, _ = two_kinds()
    honest = groups.law_of_largest_prices
    monkeypatch.setattr(groups, "law_of_largest_prices", lambda points, rows: (honest(points, rows)[0], 0.01))
    assert adaptive_sum(terms, [2], 4, np.ones(1), 1e-20).stretch[0] >= 1.01**4 - 1.0  # error 2


def test_cuts_are_carried_through_all_steps() -> None:
    terms, _ = two_kinds()
    law = adaptive_sum(replace(terms, cut=np.array([1e-3, 3e-3])), [2], 4, np.ones(1), 1e-20)
    assert law.cut[0] >= 4 * 3e-3  # errors 1 and 2: the worst kind at each step


def test_what_ends_lose_is_charged() -> None:
    """With a large share the ends of the sums are moved inwards; with their cut prices are no smaller than before."""
    strikes = np.array([-0.8, 0.5, 1.5, 3.0])
    fine, coarse = (
        AdaptiveDivision(size=6, cuts=CUTS, t=-math.inf, spare=10).group_laws(
            Lognormal(scale=2.0), Thinning.of(0.5, -math.inf), nodes_at(1.0), 128, share
        )
        for share in (1e-20, 1e-4)
    )
    assert (prices_of(coarse, strikes) < prices_of(fine, strikes) * 0.999).any()
    assert (prices_of(coarse, strikes) + 2.0 * coarse.cut[0] >= prices_of(fine, strikes)).all()


# ---------------------------------------------------------------------------------------------
# The round.


def upper(round_: Exchange | Replace, delta: float) -> float:
    return evaluate.upper_epsilon(((round_, 1),), delta)


@pytest.mark.parametrize(("steps", "sigma", "most"), [(1_000, 2.0, 0.1346), (10_000, 5.0, 0.0069)])
def test_published_points(steps: int, sigma: float, most: float) -> None:
    assert upper(Sequential(ratio=Lognormal(scale=sigma), users=steps), 1e-6) <= most


@pytest.mark.parametrize(("users", "sigma"), [(100, 4.0), (1_000, 2.0), (3_000, 0.9)])
def test_it_is_between_the_opposite_crowd_and_one_output_in_the_clear(users: int, sigma: float) -> None:
    part = Sequential(ratio=Lognormal(scale=sigma), users=users)
    at_once = Exchange(ratio=Lognormal(scale=sigma), users=users)
    clear = ((Identical(ratio=Lognormal(scale=sigma), users=1), 1),)
    epsilon = upper(part, 1e-6)
    # Records that send at once are a special case; their own bound is at most a little smaller.
    assert 0.95 * upper(at_once, 1e-6) < epsilon < upper(at_once, 1e-6) * 1.03
    assert epsilon <= evaluate.upper_epsilon(clear, 1e-6)


def test_more_records_and_more_noise_are_better() -> None:
    by_users = [upper(Sequential(ratio=Lognormal(scale=2.0), users=n), 1e-6) for n in (50, 500, 5_000)]
    by_noise = [upper(Sequential(ratio=Lognormal(scale=s), users=500), 1e-6) for s in (0.8, 2.0, 6.0)]
    assert by_users == sorted(by_users, reverse=True)
    assert by_noise == sorted(by_noise, reverse=True)


def test_replace_is_at_least_two_moves_of_the_identical_crowd() -> None:
    part = Sequential(ratio=Lognormal(scale=3.0), users=1_000)
    identical = ((Identical(ratio=Lognormal(scale=1.5), users=1_000), 1),)
    low = evaluate.certify.epsilons(identical, [1e-6])[0].lower
    assert low < upper(Replace(step=part), 1e-6) < 1.6 * low


def test_a_round_is_told_from_that_of_reports_at_once() -> None:
    ratio = Lognormal(scale=2.0)
    assert Sequential(ratio=ratio, users=100) != Exchange(ratio=ratio, users=100)
    assert isinstance(Sequential(ratio=ratio, users=100).limited(), Sequential)

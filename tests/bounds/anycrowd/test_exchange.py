"""The law of the exchange theorem in numbers: its terms, its mixtures, its prices and moments."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from shoal.bounds.anycrowd import exchange
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.ratio import Lognormal


@pytest.mark.parametrize("r", [0.1, 0.5, 1.5])
@pytest.mark.parametrize("at", [-0.5, 1.0, 2.5])
def test_thinning(r, at):
    """tau and q with 40 digits."""
    thin = Thinning.of(r, at)
    with mpmath.workdps(40):
        c = mpmath.exp(-mpmath.mpf(r) * at - mpmath.mpf(r) ** 2 / 2)
        tau = mpmath.ncdf(-at) - mpmath.ncdf(-at - mpmath.mpf(r)) / c
        assert thin.tau == pytest.approx(float(tau), abs=1e-14)
        assert thin.q == pytest.approx(float(c * (1 - tau)), rel=1e-14)
    everybody = Thinning.of(r, -math.inf)
    assert (everybody.tau, everybody.q) == (0.0, 1.0)


def stop_loss(r, thin, v, k):
    """E(X - k)+ at the worst place for k: `E_p (w - v - k ê_u)+`, u = -x' for k >= 0 and x' below, by quadrature."""
    y = np.linspace(-12.0, 12.0 + 2 * r, 400_001)
    density = stats.norm.pdf(y) * (y[1] - y[0])
    w = np.exp(r * y - r**2 / 2)
    e = np.exp(-r * y - r**2 / 2) if k >= 0.0 else w
    kept = e if thin.t == -math.inf else np.minimum(1.0, e / math.exp(-r * thin.t - r**2 / 2)) / (1.0 - thin.tau)
    return density @ np.maximum(w - v - k * kept, 0.0)


@pytest.mark.parametrize("r", [0.2, 0.8])
@pytest.mark.parametrize("at", [-math.inf, 0.3, 1.5])
@pytest.mark.parametrize("v", [0.0, 0.4, 1.0, 3.0])
def test_a_term_has_the_stop_loss_of_the_worst_user(r, at, v):
    thin = Thinning.of(r, at)
    y, mass = exchange._exchange_term(Lognormal(scale=1 / r), thin, v, 1e-20, np.linspace(-8.0, 8.0, 3201))
    assert np.all(mass >= 0.0)
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert mass @ y == pytest.approx(0.0, abs=1e-10)
    x = y - (v - 1.0)
    for k in (-2.0, -0.5, 0.0, 0.3, 1.5, 4.0):
        assert mass @ np.maximum(x - k, 0.0) == pytest.approx(stop_loss(r, thin, v, k), rel=1e-5, abs=1e-9)


def test_a_term_of_a_user_who_may_stay_away():
    thin = Thinning.of(0.5, 1.0)
    y, mass = exchange._exchange_term(Lognormal(scale=2.0, rate=0.3), thin, 0.7, 1e-20, np.empty(0))
    whole, all_of_it = exchange._exchange_term(Lognormal(scale=2.0), thin, 0.7, 1e-20, np.empty(0))
    for k in (0.1, 1.0):
        assert mass @ np.maximum(y - k, 0.0) == pytest.approx(0.3 * (all_of_it @ np.maximum(whole - k, 0.0)))
    assert mass @ y == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("r", [0.1, 0.7, 2.0])
def test_nodes_are_a_spread_of_the_ratio(r):
    nodes = exchange._ratio_nodes(r, 1.0, 1e-18)
    assert nodes.chance.sum() == pytest.approx(1.0, abs=1e-13)
    assert nodes.chance @ nodes.value == pytest.approx(1.0, abs=1e-12)
    for k in (0.2, 1.0, 2.0):
        call = stats.norm.cdf((-math.log(k) + r**2 / 2) / r) - k * stats.norm.cdf((-math.log(k) - r**2 / 2) / r)
        assert nodes.chance @ np.maximum(nodes.value - k, 0.0) >= call


@pytest.mark.parametrize(("trials", "chance"), [(1, 0.5), (7, 0.2), (999, 0.07), (59_999, 0.9), (10**7, 0.3)])
def test_binomial_masses(trials, chance):
    first, masses = exchange._binomial(trials, chance, 1e-12)
    law = stats.binom(trials, chance)
    counts = np.arange(first, first + len(masses))
    assert masses == pytest.approx(law.pmf(counts), rel=1e-8, abs=1e-15)
    assert law.cdf(first - 1) + law.sf(counts[-1]) <= 1e-12


@pytest.mark.parametrize(
    ("kept", "users", "sample"), [(1, 5, 2), (4, 5, 5), (30, 69, 1), (500, 1000, 300), (9, 10**6, 50)]
)
def test_hypergeometric_masses(kept, users, sample):
    first, masses = exchange._hypergeometric(kept, users, sample, 1e-12)
    law = stats.hypergeom(users, sample, kept)
    counts = np.arange(first, first + len(masses))
    assert masses == pytest.approx(law.pmf(counts), rel=1e-8, abs=1e-14)
    assert law.cdf(first - 1) + law.sf(counts[-1]) <= 1e-12


@pytest.mark.parametrize(
    ("users", "sample", "kept"), [(5, 2, 0.3), (5, 5, 0.6), (69, 1, 0.2), (1000, 300, 0.5), (10**6, 50, 1.0)]
)
def test_masses_of_a_fixed_size(users, sample, kept):
    """User 1 is drawn with probability m / n, then it is one of those that count."""
    first, masses = exchange._hidden_in_sample(users, sample, kept, 1e-12)
    counts = np.arange(first, first + len(masses))
    away, there = stats.binom(sample, kept), stats.binom(sample - 1, kept)
    part = sample / users
    assert masses == pytest.approx((1 - part) * away.pmf(counts) + part * there.pmf(counts - 1), rel=1e-8, abs=1e-14)
    assert masses.sum() == pytest.approx(1.0, abs=1e-13)
    assert there.sf(counts[-1] - 1) + away.sf(counts[-1]) + (1 - part) * away.cdf(first - 1) <= 1e-12
    assert there.cdf(first - 2) <= 1e-12


@pytest.mark.parametrize(("trials", "chance"), [(3, 0.4), (68, 0.75), (999, 0.5), (10**6, 0.8)])
def test_blocks_cover_all_counts_and_are_narrow(trials, chance):
    first, masses = exchange._binomial(trials, chance, 1e-18)
    blocks = exchange._blocks(first, masses, 12)
    assert min(first, 1) <= blocks[0][0] <= first
    assert blocks[-1][1] == first + len(masses) - 1
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(blocks))
    assert sum(chance for *_, chance in blocks) == pytest.approx(1.0, abs=1e-12)
    narrow = all(most <= max(least + 1, 1.34 * least) for least, most, _ in blocks if least > 3)
    assert narrow


def draws_of_f(crowd, thin, games, seed):
    """f of the theorem, drawn at random."""
    rng = np.random.default_rng(seed)
    r, n = 1.0 / crowd.ratio.scale, crowd.users
    found = np.empty(games)
    kept = rng.binomial(n - 1, thin.q, games) if thin.q < 1.0 else np.full(games, n - 1)
    for game in range(games):
        if crowd.sample is None:
            there = rng.random(int(kept[game]) + 1) < crowd.ratio.rate
            present, others, over = bool(there[0]), int(there[1:].sum()), kept[game] + 1
        else:
            present = bool(rng.random() < crowd.sample / n)
            others = int(rng.binomial(crowd.sample - present, thin.q))
            over = present + others + thin.q * (n - crowd.sample)
        v = math.exp(r * rng.normal() - r**2 / 2) if present else 1.0
        terms = draw_terms(rng, r, thin, v, others)
        found[game] = 1.0 + ((v - 1.0) + (terms + v - 1.0).sum()) / over
    return found


def draw_terms(rng, r, thin, v, size):
    """X(v): above 0 as that of a user at -x', below as that of one at x', else 0."""
    z = (math.log(v) + r**2 / 2) / r
    u = rng.random(size)
    x = np.zeros(size)
    for place, sign in ((-r, 1.0), (r, -1.0)):
        report = kept_reports(rng, r, thin, place, size)
        w = np.exp(r * report - r**2 / 2)
        e = np.exp(place * report - r**2 / 2)
        ratio = e if thin.t == -math.inf else np.minimum(1.0, e / math.exp(-r * thin.t - r**2 / 2)) / (1 - thin.tau)
        inside = sign * (report - z) > 0.0
        # both parts of the law together hold at most all the mass: share one uniform number between them
        chance = stop_chance(r, thin, place, z, sign)
        mine = u < chance if sign > 0 else u > 1.0 - chance
        fresh = np.flatnonzero(mine)
        pool = ((w - v) / ratio)[inside]
        while len(pool) < len(fresh):
            more = kept_reports(rng, r, thin, place, 1000)
            more = more[sign * (more - z) > 0.0]
            w_more, e_more = np.exp(r * more - r**2 / 2), np.exp(place * more - r**2 / 2)
            if thin.t > -math.inf:
                e_more = np.minimum(1.0, e_more / math.exp(-r * thin.t - r**2 / 2)) / (1 - thin.tau)
            pool = np.append(pool, (w_more - v) / e_more)
        x[fresh] = pool[: len(fresh)]
    return x


def kept_reports(rng, r, thin, place, size):
    """Reports of density p ê."""
    found = np.empty(0)
    while len(found) < size:
        y = rng.normal(size=2 * size + 10) + place
        if thin.t > -math.inf:
            e = np.exp(place * y - r**2 / 2)
            y = y[rng.random(len(y)) < np.minimum(1.0, math.exp(-r * thin.t - r**2 / 2) / e)]
        found = np.append(found, y)
    return found[:size]


def stop_chance(r, thin, place, z, sign):
    y = np.linspace(-12.0, 12.0, 20_001)
    e = np.exp(place * y - r**2 / 2)
    if thin.t > -math.inf:
        e = np.minimum(1.0, e / math.exp(-r * thin.t - r**2 / 2)) / (1 - thin.tau)
    inside = sign * (y - z) > 0.0
    return float((stats.norm.pdf(y) * e)[inside].sum() * (y[1] - y[0]))


@pytest.mark.parametrize(
    ("crowd", "at"),
    [
        (Exchange(ratio=Lognormal(scale=2.0), users=4), 0.5),
        (Exchange(ratio=Lognormal(scale=2.0), users=12), -math.inf),
        (Exchange(ratio=Lognormal(scale=2.0, rate=0.4), users=8), 1.0),
        (Exchange(ratio=Lognormal(scale=2.0), users=8, sample=3), 1.0),
    ],
    ids=["few", "all kept", "check-in", "fixed size"],
)
def test_prices_of_f_by_simulation(crowd, at):
    thin = Thinning.of(0.5, at)
    f = draws_of_f(crowd, thin, 6_000, 5)
    cases, error = crowd.cases(thin.q, 1e-18)
    found = exchange._exchange_prices(crowd, thin, [cases], error, 192, 1e-18)[0]
    for k in (0.5, 0.8, 1.0, 1.2, 1.6):
        gain = np.maximum(f - k, 0.0) if k >= 1.0 else np.maximum(k - f, 0.0)
        mean, error = gain.mean(), gain.std() / math.sqrt(len(f))
        here = found.at(np.array([k - 1.0]))[0]
        assert here >= mean - 4.5 * error
        # nodes, blocks and grid cost some per cent; f below 0 counts in puts of f, not in those of S
        if k >= 0.8:
            assert here <= 1.08 * mean + 4.5 * error + 1e-4


def test_moments_of_two_users():
    """Between the opposite crowd (0.9515 and 0.794 at order 2) and one report in the clear (1)."""
    for way, least in (("forward", 0.9514), ("reverse", 0.7940)):
        found = Exchange(ratio=Lognormal(scale=1.0), users=2).log_moments(np.array([2.0]), way)[0]
        assert least <= found < 0.9999


def test_from_above_only():
    with pytest.raises(ValueError, match="from above only"):
        Exchange(ratio=Lognormal(scale=1.0), users=2).pair(128, 1e-18, "lower", "forward")

"""Replace, directly: the theorem for one t (finite alphabets, two Gaussian users, identical crowds), and its prices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import special

import shoal
from helpers import Array
from shoal.bounds.anycrowd import direct, exchange, iterated, replace
from shoal.bounds.anycrowd.direct import Score
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.ratio import Lognormal


def bound(users: int, sigma: float, epsilon: float, at: float = -math.inf, rate: float = 1.0, half: int = 64) -> float:
    """delta at epsilon, by the theorem."""
    r = 1.0 / sigma
    thin = Thinning.of(r, at)
    cases, error = Exchange(ratio=Lognormal(scale=sigma, rate=rate), users=users).cases(thin.q, 1e-13)
    score = Score(r=r, t=math.exp(epsilon))
    return direct.direct_delta(score, thin, cases, rate=rate, error=error, half=half, budget=1e-13)


# The exchange, for finite alphabets


def finite(rng: np.random.Generator, users: int, letters: int, t: float) -> tuple[Array, Array, list[Array]]:
    """p, G and the e of the others."""
    p, moved, still, *others = (rng.dirichlet(np.full(letters, 0.7)) + 0.01 for _ in range(users + 2))
    p, moved, still, *others = (one / one.sum() for one in (p, moved, still, *others))
    return p, (moved - t * still) / p, [one / p for one in others]


def by_multiset(p: Array, score: Array, e: list[Array], over: float) -> dict[tuple[int, ...], Array]:
    """For each multiset its probability, and the means of G(z) and of f_t on it."""
    found: dict[tuple[int, ...], Array] = {}
    for letters in itertools.product(range(len(p)), repeat=1 + len(e)):
        z, *others = letters
        weights = [one[y] for one, y in zip(e, others, strict=True)]
        chance = math.prod(p[list(letters)]) * math.prod(weights)
        f = score[z] + sum((score[y] - score[z]) / weight for y, weight in zip(others, weights, strict=True)) / over
        key = tuple(sorted(letters))
        found[key] = found.get(key, np.zeros(4)) + chance * np.array([1.0, score[z], f, max(f, 0.0)])
    return found


@pytest.mark.parametrize("users", [2, 3, 4])
def test_the_bound_is_unbiased_and_above_every_finite_crowd(users: int) -> None:
    rng = np.random.default_rng(users)
    for _ in range({2: 60, 3: 30, 4: 10}[users]):
        t = math.exp(rng.exponential(0.5))
        p, score, e = finite(rng, users, 3, t)
        found = by_multiset(p, score, e, users)
        for _, mean, f, _ in found.values():
            assert f == pytest.approx(mean, rel=1e-11, abs=1e-13)
        delta = sum(max(mean, 0.0) for _, mean, _, _ in found.values())
        assert delta <= sum(positive for *_, positive in found.values()) + 1e-13


def test_kept_users_are_exchanged_by_their_own_densities() -> None:
    """Thinning to another density than p ê would break it."""
    rng = np.random.default_rng(0)
    p, score, e = finite(rng, 3, 3, 1.3)
    kept = [np.minimum(1.0, one / 0.8) / (p @ np.minimum(1.0, one / 0.8)) for one in e]
    assert all(f == pytest.approx(mean, abs=1e-13) for _, mean, f, _ in by_multiset(p, score, kept, 3).values())
    found = by_multiset(p, score, kept, 3)
    wrong = sum(abs(f * 1.01 - mean) for _, mean, f, _ in found.values())
    assert wrong > 1e-3


# One term


def test_t_of_zero_is_the_term_of_zero_out() -> None:
    ratio, r = Lognormal(scale=1.7, rate=0.6), 1.0 / 1.7
    for at, v in itertools.product((-math.inf, 0.4, 1.5), (0.3, 1.0, 4.0)):
        thin = Thinning.of(r, at)
        a, p = direct.score_term(Score(r=r, t=0.0), thin, v, 0.6, 1e-14, np.empty(0))
        b, q = exchange._exchange_term(ratio, thin, v, 1e-14, np.empty(0))
        for k in (-1.0, -0.2, 0.0, 0.3, 2.0):
            assert p @ np.maximum(a - k, 0.0) == pytest.approx(q @ np.maximum(b - k, 0.0), rel=1e-3)


@pytest.mark.parametrize("at", [-math.inf, 0.0, 1.5])
def test_a_term_has_the_calls_of_the_worst_user(at: float) -> None:
    """E(X - k)+ = E_p(G - v - k ê)+ at u = x above 0, at u = x' below, by a sum over a fine grid."""
    r, t = 0.6, 1.4
    thin, score = Thinning.of(r, at), Score(r=r, t=t)
    y, step = np.linspace(-14.0, 14.0, 400_001, retstep=True)
    p = np.exp(-0.5 * y * y) * step / math.sqrt(2.0 * math.pi)
    c = math.inf if at == -math.inf else math.exp(-r * at - 0.5 * r**2)
    for v, k in itertools.product((-3.0, -0.4, 0.0, 2.5), (-2.0, -0.3, 0.0, 0.4, 3.0)):
        e = np.exp((-r if k > 0.0 else r) * y - 0.5 * r**2)
        kept = e if c == math.inf else np.minimum(1.0, e / c) / (p @ np.minimum(1.0, e / c))
        wanted = p @ np.maximum(score.at(y) - v - k * kept, 0.0)
        x, mass = direct.score_term(score, thin, v, 1.0, 1e-14, np.array([k + v - (1.0 - t)]))
        assert mass.sum() == pytest.approx(1.0, abs=1e-12)
        assert mass @ x == pytest.approx(0.0, abs=1e-9)
        assert mass @ np.maximum(x - (v - (1.0 - t)) - k, 0.0) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_every_x_has_its_report() -> None:
    for at, v, t in itertools.product((-math.inf, 0.7), (-2.0, 0.0, 0.8), (1.0, 3.0)):
        score = Score(r=0.5, t=t)
        assert float(score.at(np.array([score.root(v)]))[0]) == pytest.approx(v, abs=1e-12)
        for piece in direct._score_pieces(score, Thinning.of(0.5, at), v, -5.0, 5.0):
            y = np.linspace(piece.low, piece.high, 12)[1:-1]
            assert piece.reports(piece.value(y, score, v), score, v) == pytest.approx(y, abs=1e-9)


# Gaussian crowds


def two_users(r: float, still: float, moved: float, other: float, t: float) -> float:
    """delta of two users on a line, by a sum over a grid."""
    y, step = np.linspace(-9.0 * 1.0, 9.0, 721, retstep=True)
    here, there, theirs = (np.exp(-0.5 * (y - r * x) ** 2) / math.sqrt(2.0 * math.pi) for x in (still, moved, other))
    gain = np.outer(there - t * here, theirs)
    return float(np.maximum(0.5 * (gain + gain.T), 0.0).sum() * step**2)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_two_users_are_below_the_bound(sigma: float) -> None:
    sharp = 0.0
    for epsilon in (0.0, 0.3, 1.0):
        best = min(bound(2, sigma, epsilon, at) for at in (-math.inf, 1.0))
        for still, moved, other in itertools.product((-1.0, -0.4, 0.0), (1.0, 0.5), (-1.0, -0.5, 0.0, 0.7, 1.0)):
            found = two_users(1.0 / sigma, still, moved, other, math.exp(epsilon))
            assert found <= best * (1.0 + 1e-6)
            sharp = max(sharp, found / best)
    assert sharp > 0.75  # so that a constant that is wrong by a third would be seen


@pytest.mark.parametrize(("users", "sigma", "rate", "at"), [(1_000, 2.0, 1.0, 1.5), (3_000, 1.5, 0.3, 1.5)])
def test_the_identical_crowd_is_below_the_bound(users: int, sigma: float, rate: float, at: float) -> None:
    """And not far, where delta is large: constants that are off by a tenth would be seen."""
    if rate < 1.0:
        one = shoal.ShuffledCheckIn(users=users, sigma=sigma, rate=rate, adjacency="replace", crowd="identical")
    else:
        one = shoal.Shuffle(users=users, sigma=sigma, adjacency="replace", crowd="identical")
    for epsilon in (0.02, 0.1):
        assert float(one.delta(epsilon=epsilon).lower) <= bound(users, sigma, epsilon, at, rate)


def test_one_user_is_one_report_in_the_clear() -> None:
    """With nobody else v is all there is, and its nodes are above it."""
    for epsilon in (0.1, 1.0):
        s = 0.5 * 2.0
        exact = special.ndtr(0.5 / s - epsilon * s) - math.exp(epsilon) * special.ndtr(-0.5 / s - epsilon * s)
        assert exact <= bound(1, 2.0, epsilon) <= 1.3 * exact


def test_delta_falls_with_t_and_is_convex() -> None:
    t = np.linspace(1.0, 1.5, 6)
    found = np.array([bound(200, 2.0, math.log(one), 1.5) for one in t.tolist()])
    assert np.all(np.diff(found) < 0.0)
    assert np.all(np.diff(found, 2) > 0.0)


# As prices


def test_a_thousand_users() -> None:
    m = shoal.Shuffle(users=1_000, sigma=2.0, adjacency="replace")
    found = m.epsilon(delta=1e-6)
    assert float(found.lower) < float(found.upper) <= 0.232
    assert bound(1_000, 2.0, float(found.upper), 1.5) <= 1e-6 * (1.0 + 1e-6)
    assert np.all(np.isfinite(m.rdp([2, 8])))


def test_it_is_never_above_the_way_through_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    m = shoal.ShuffledCheckIn(users=400, sigma=1.8, rate=0.5, adjacency="replace")
    questions = [(1e-3, 1), (1e-9, 1), (1e-6, 1), (1e-6, 20)]
    # The two are compared alone, without the bound from the place that is left.
    monkeypatch.setattr(iterated, "has_replace_bound", lambda ratio, users: False)
    replace._replace_law.cache_clear()
    directly = [float(m.epsilon(delta=delta, rounds=rounds).upper) for delta, rounds in questions]
    monkeypatch.setattr(direct, "is_worth_computing", lambda step: False)
    replace._replace_law.cache_clear()
    through = [float(m.epsilon(delta=delta, rounds=rounds).upper) for delta, rounds in questions]
    replace._replace_law.cache_clear()
    assert all(a <= b * (1.0 + 1e-6) for a, b in zip(directly, through, strict=True))
    assert directly[2] < 0.97 * through[2]

"""A crowd that changes sides: its masses, and what it shows against exact suprema."""

import math

import numpy as np
import pytest

from shoal.bounds import certify
from shoal.bounds.anycrowd.opposite import Opposite
from shoal.bounds.central import switching
from shoal.bounds.central.switching import Switching
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical


def shown(sigma, steps, epsilon):
    return certify.deltas(((Switching(scale=sigma, steps=steps, loss=epsilon), 1),), [epsilon], 1.0)[0].lower


def value(sigma, steps, epsilon, places=(-1.0, 1.0), reach=60.0, size=6001):
    """U_T(0) / T on a fine even grid: what the best crowd at these places can show at most, up to the grid."""
    r, t = 1.0 / sigma, math.exp(epsilon)
    y, width = np.linspace(-9.0, 9.0 + 2.0 * r, 400, retstep=True)
    p = np.exp(-0.5 * y * y) * width / math.sqrt(2.0 * math.pi)
    s = np.linspace(-reach, reach, size)
    u = np.maximum(s, 0.0)
    for _ in range(steps):
        best = np.full(size, -np.inf)
        for a in places:
            still, moved = -a * r, (1.0 - a) * r
            score = np.exp(moved * y - 0.5 * moved**2) - t * np.exp(still * y - 0.5 * still**2)
            # Beyond the grid U is s or 0.
            after = s[:, None] + score
            best = np.maximum(best, (np.interp(after, s, u) + np.maximum(after - reach, 0.0)) @ p)
        u = best
    return float(np.interp(0.0, s, u)) / steps


@pytest.mark.parametrize(("sigma", "steps", "epsilon"), [(4.0, 2, 0.568), (2.0, 3, 1.0), (1.0, 2, 1.0), (4.0, 5, 0.4)])
def test_it_shows_what_the_best_crowd_shows(sigma, steps, epsilon):
    exact = value(sigma, steps, epsilon)
    assert 0.985 * exact <= shown(sigma, steps, epsilon) <= exact * (1.0 + 1e-4)


def test_places_in_between_gain_nothing():
    assert value(2.0, 3, 0.8, places=(-1.0, -0.5, 0.0, 0.5, 1.0)) == pytest.approx(value(2.0, 3, 0.8), rel=1e-6)


@pytest.mark.parametrize(("sigma", "steps", "epsilon", "gain"), [(4.0, 2, 0.568, 1.28), (4.0, 10, 0.3, 1.4)])
def test_it_shows_more_than_a_crowd_that_stays(sigma, steps, epsilon, gain):
    stays = Opposite(mean=Identical(ratio=Lognormal(scale=sigma), users=steps), loss=epsilon)
    assert shown(sigma, steps, epsilon) > gain * certify.deltas(((stays, 1),), [epsilon], 1.0)[0].lower


@pytest.mark.parametrize(("sigma", "steps"), [(0.5, 3), (2.0, 20), (30.0, 64)])
def test_its_masses_are_two_laws(sigma, steps):
    sums = switching._last_sum(Switching(scale=sigma, steps=steps))
    for mass in (sums.moved, sums.still):
        assert mass.sum() == pytest.approx(1.0, abs=1e-12 + sums.skipped)
    assert sums.error < 1e-9


def test_the_rule_changes_sides():
    attack = Switching(scale=4.0, steps=3, loss=0.568)
    points, steps = switching._steps(attack)
    first, _, last = switching._rule(points, steps, 3)
    assert first[len(points) // 2] == 0  # opposite at the start
    assert set(last[points < -1.0]) == {0}
    assert set(last[(points > 0.1) & (points < 1.0)]) == {1}  # at x' when ahead


def test_several_epochs_show_more():
    attack = Switching(scale=4.0, steps=10)
    one, three = (certify.epsilons(((attack, epochs),), [1e-5], 1.0)[0].lower for epochs in (1, 3))
    assert one < three < 3.0 * one

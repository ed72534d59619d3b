"""The opposite crowd from below, against quadrature, simulation and values computed independently."""

import math

import numpy as np
import pytest
from scipy import stats

from shoal import Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.bounds import certify
from shoal.bounds.anycrowd.opposite import Opposite
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical

VALUES = [
    (60_000, 9.48, 1 / 60_000, 6.12356e-4),
    (1_000, 2.0, 1e-6, 0.127238),
    (100_000, 2.0, 1e-8, 0.0111556),
    (100, 5.0, 1e-5, 0.0654834),
    (10_000, 1.0, 1e-6, 1.89588),
]


@pytest.mark.parametrize(("users", "sigma", "delta", "epsilon"), VALUES)
def test_values(users, sigma, delta, epsilon):
    """FFT of the scores with rare large ones apart, by other code."""
    found = Shuffle(users=users, sigma=sigma).epsilon(delta=delta).lower
    assert 0.998 * epsilon <= found <= epsilon * (1 + 1e-5)


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (2.0, 0.2), (0.5, 3.0)])
@pytest.mark.parametrize("way", ["forward", "reverse"])
def test_two_users_by_quadrature(sigma, epsilon, way):
    """delta = E[(mean of w_2 - e^eps w_1)+] over the crowd's reports, in two dimensions."""
    r = 1 / sigma
    z = np.linspace(-10.0, 10.0 + 2 * r, 4001)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    one, two = (np.exp(a * r * z - a**2 * r**2 / 2) for a in (1, 2))
    score = two - math.exp(epsilon) * one if way == "forward" else one - math.exp(epsilon) * two
    exact = weight @ np.maximum(0.5 * (score[:, None] + score[None, :]), 0.0) @ weight
    mean = Identical(ratio=Lognormal(scale=sigma), users=2)
    sign = 1.0 if way == "forward" else -1.0
    found = certify.deltas(((Opposite(mean=mean, loss=sign * epsilon), 1),), [epsilon], direction=way)[0]
    assert found.lower <= exact * (1 + 1e-6)
    # With little noise the panels of reports are felt where scores are small.
    assert found.lower >= (0.995 if sigma >= 1.0 else 0.96) * exact


def test_sampled_rounds_by_simulation():
    """Check-in and a fixed size, against the best test of simulated rounds."""
    rng = np.random.default_rng(7)
    n, sigma, rate, epsilon, games = 30, 1.0, 0.5, 0.3, 200_000
    r = 1 / sigma
    z = rng.normal(size=(games, n))
    there = rng.random((games, n)) < rate
    one, two = (np.where(there, np.exp(a * r * z - a**2 * r**2 / 2), 1.0).mean(axis=1) for a in (1, 2))
    gain = np.maximum(two - math.exp(epsilon) * one, 0.0)
    low, high = (gain.mean() + s * 5 * gain.std() / math.sqrt(games) for s in (-1, 1))
    mean = Identical(ratio=Lognormal(scale=sigma, rate=rate), users=n)
    found = certify.deltas(((Opposite(mean=mean, loss=epsilon), 1),), [epsilon], direction="forward")[0]
    assert 0.99 * low <= found.lower <= high
    w = 0.25
    mixed = 1 - w + w * np.stack([np.exp(a * r * z - a**2 * r**2 / 2).mean(axis=1) for a in (1, 2)])
    gain = np.maximum(mixed[1] - math.exp(0.1) * mixed[0], 0.0)
    low, high = (gain.mean() + s * 5 * gain.std() / math.sqrt(games) for s in (-1, 1))
    mean = Identical(ratio=Lognormal(scale=sigma), users=n, weight=w)
    found = certify.deltas(((Opposite(mean=mean, loss=0.1), 1),), [0.1], direction="forward")[0]
    assert 0.99 * low <= found.lower <= high


@pytest.mark.parametrize(
    ("m", "delta", "rounds", "least"),
    [
        (Shuffle(users=60_000, sigma=9.48), 1 / 60_000, 7, 2.102e-3),
        (ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0), 1e-5, 5_540, 0.0612),
        (Shuffle(users=1_000, sigma=2.0), 1e-6, 100, 1.103),
    ],
    ids=lambda v: getattr(v, "label", v),
)
def test_many_rounds(m, delta, rounds, least):
    """At least what the tests at some dozens of thresholds show, by other code."""
    found = m.epsilon(delta=delta, rounds=rounds)
    assert least <= found.lower <= found.upper


def test_it_is_worse_than_the_identical_crowd():
    for m in (Shuffle(users=300, sigma=2.0), SubsampledShuffle(users=900, sample=300, sigma=2.0)):
        ideal = m.replace(crowd="identical").epsilon(delta=1e-6).upper
        assert m.epsilon(delta=1e-6).lower > 1.5 * ideal

"""The opposite crowd from below, against quadrature, simulation and values computed independently."""

import math

import numpy as np
import pytest
from scipy import stats

from shoal import Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.bounds import certify
from shoal.bounds.anycrowd import opposite
from shoal.bounds.anycrowd.opposite import Opposite, OppositeMany, OppositeSizes
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


# Many users: a distance for round-off


@pytest.mark.parametrize("copies", [10, 1_000, 100_000])
def test_masses_that_are_off_by_a_factor_are_at_a_distance(copies):
    """Copies of two letters, off by 1 + e and 1 - e: at most e sqrt(n / 2) apart, and not far below."""
    chance, error = 0.5, 1e-4
    counts = np.arange(copies + 1)
    exact, off = (stats.binom.pmf(counts, copies, p) for p in (chance, chance * (1.0 + error)))
    distance = 0.5 * float(np.abs(exact - off).sum())
    assert 0.4 * error * math.sqrt(copies / 2.0) < distance <= error * math.sqrt(copies / 2.0)


def test_the_distance_grows_with_the_root_of_the_users():
    few, many = (
        opposite._score_sums(Opposite(mean=Identical(ratio=Lognormal(scale=2.0), users=n)), 96, 1e-24)
        for n in (2**10, 2**16)
    )
    assert many.distance == pytest.approx(8.0 * few.distance, rel=0.2)
    # No less than what the report itself is off by, among all users.
    assert few.distance > math.sqrt(2**10 / 2.0) * 1024.0 * 2.0**-53
    assert many.relative > 32.0 * few.relative


def test_by_distance_the_attack_is_the_same_but_for_its_charge():
    mean = Identical(ratio=Lognormal(scale=2.0), users=3_000)
    for direction in ("forward", "reverse"):
        by_factor, by_distance = (
            certify.deltas(((attack(mean=mean, loss=0.05), 1),), [0.05], 1.0, direction=direction)[0].lower
            for attack in (Opposite, OppositeMany)
        )
        distance = OppositeMany(mean=mean, loss=0.05)._sums(384, 1e-24).distance
        assert by_distance < by_factor * (1.0 + 1e-9)
        # Answers use somewhat more cells than this.
        charge = (1.0 + math.exp(OppositeMany.epsilon_max)) * distance
        assert 0.5 * charge < by_factor - by_distance < 2.0 * charge + 1e-6 * by_factor


def test_a_hundred_million_users():
    """Nearly what the central limit theorem says, and never above the bound from above at that epsilon."""
    users, sigma, delta = 10**8, 2.0, 1e-8
    variance = (math.exp(2.0 / sigma**2) - 1.0) ** 2 + math.exp(1.0 / sigma**2) - 1.0
    deviation = math.sqrt(variance / users)
    limit = 2.79e-4
    x = limit / deviation
    # delta = deviation (phi(x) - x Phi(-x)) is met at about this epsilon
    assert deviation * (stats.norm.pdf(x) - x * stats.norm.sf(x)) == pytest.approx(delta, rel=0.1)
    attack = OppositeMany(mean=Identical(ratio=Lognormal(scale=sigma), users=users), loss=limit)
    assert attack.is_worth_computing
    found = certify.epsilons(((attack, 1),), [delta], 1.0)[0].lower
    assert limit / 1.06 < found < limit * 1.001


# Few senders: their number first


def test_numbers_of_reports_have_their_chances():
    for users, rate in ((4_185_999, 2.66e-6), (20_000, 0.01)):
        counts, chances = opposite._sender_chances(users, rate)
        assert chances == pytest.approx(stats.binom.pmf(counts, users, rate), rel=1e-8)
        assert math.fsum(chances) == pytest.approx(1.0, abs=1e-12)
    attack = OppositeSizes(mean=Identical(ratio=Lognormal(scale=1.0, rate=0.01), users=20_000))
    assert math.fsum(chance for _, chance in attack.sizes()) == pytest.approx(1.0, abs=1e-12)
    # A block counts as its smallest number of reports.
    sizes = [round(one.weight * 20_000) for one, _ in attack.sizes()]
    assert sizes == sorted(sizes)
    assert sum(chance * size for (_, chance), size in zip(attack.sizes(), sizes, strict=True)) < 200.0


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_to_look_at_the_number_first_is_as_good(direction):
    """Up to sixteen senders no report is dropped, so one round is the same attack."""
    mean = Identical(ratio=Lognormal(scale=1.0, rate=0.05), users=60)
    sign = 1.0 if direction == "forward" else -1.0
    at_once, by_size = (
        certify.deltas(((attack(mean=mean, loss=sign * 0.3), 1),), [0.3], direction=direction)[0].lower
        for attack in (Opposite, OppositeSizes)
    )
    assert by_size == pytest.approx(at_once, rel=0.02)


def test_check_in_with_few_senders_and_very_many_rounds():
    """Round-off among four million users would leave nothing of 85,859 rounds; a bound from above is 0.0620."""
    m = ShuffledCheckIn(users=4_185_999, rate=2.66e-6, sigma=0.752)
    attack = next(a for a in m.attack_rounds() if isinstance(a, OppositeSizes))
    found = certify.epsilons(((attack, 85_859),), [3.62e-5], 1.0)[0].lower
    assert 0.0610 < found < 0.0620

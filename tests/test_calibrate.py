"""Calibration: what comes back meets the target, and a little less would not."""

import math

import pytest
from scipy import special

from shoal import (
    BallsAndBins,
    LocalGaussian,
    PoissonSampling,
    Shuffle,
    ShuffledCheckIn,
    SubsampledShuffle,
    calibrate,
)
from shoal.errors import InvalidInput, InvalidType

MAKERS = [
    LocalGaussian(sigma=1.0),
    Shuffle(users=10_000, sigma=1.0, crowd="identical"),
    ShuffledCheckIn(users=10_000, rate=0.1, sigma=1.0, crowd="identical"),
    SubsampledShuffle(users=10_000, sample=100, sigma=1.0, crowd="identical"),
    BallsAndBins(bins=100, sigma=1.0),
    Shuffle(users=10_000, sigma=1.0, adjacency="replace", crowd="identical"),
]


@pytest.mark.parametrize("m", MAKERS, ids=lambda m: f"{m.label}-{m.adjacency}")
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("method", ["tight", "rdp"])
def test_sigma_meets_the_target_tightly(m, epsilon, method):
    how = {"delta": 1e-5, "rounds": 10, "method": method}
    found = calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=epsilon, **how)
    assert m.replace(sigma=found).epsilon(**how).upper <= epsilon
    # brackets are as wide as the accuracy, so a little less noise may still do
    less = found * (1 - (2e-4 if method == "rdp" else 3e-3))
    assert m.replace(sigma=less).epsilon(**how).upper > epsilon


@pytest.mark.parametrize("m", MAKERS, ids=lambda m: f"{m.label}-{m.adjacency}")
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 50.0])
def test_rounds_is_the_largest_number(m, epsilon):
    m = m.replace(sigma=200.0 if m.label in ("local", "balls-and-bins") else 4.0)
    found = calibrate.rounds(m, epsilon=epsilon, delta=1e-5, method="rdp")
    below, above = m.epsilon(delta=1e-5, rounds=[found, found + 1], method="rdp")
    assert below.upper <= epsilon < above.upper


ANY = [
    Shuffle(users=2_000, sigma=4.0),
    Shuffle(users=30, sigma=9.0),
    Shuffle(users=60_000, sigma=1.5),
    ShuffledCheckIn(users=2_000, rate=0.2, sigma=4.0),
    SubsampledShuffle(users=2_000, sample=300, sigma=4.0),
    Shuffle(users=2_000, sigma=4.0, adjacency="replace"),
    ShuffledCheckIn(users=2_000, rate=0.2, sigma=4.0, adjacency="replace"),
    SubsampledShuffle(users=2_000, sample=300, sigma=4.0, adjacency="replace"),
]


@pytest.mark.parametrize("m", ANY, ids=lambda m: f"{m.label}-{m.users}-{m.adjacency}")
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_rounds_of_any_crowd_is_the_largest_number(m, epsilon):
    """The next number does not meet the target, nor does any other that is larger; all that are smaller do."""
    found = calibrate.rounds(m, epsilon=epsilon, delta=1e-6)
    near, far = range(max(1, found - 2), found + 4), (found // 20, found // 2, found * 2, found * 20)
    counts = sorted({*near, *(r for r in far if r)})
    met = [e.upper <= epsilon for e in m.epsilon(delta=1e-6, rounds=counts)]
    assert met == [r <= found for r in counts]


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 8.0])
def test_users_is_the_fewest(epsilon):
    for m in (maker.replace(sigma=2.0) for maker in MAKERS[1:3]):
        how = {"delta": 1e-6, "rounds": 5, "method": "rdp"}
        found = calibrate.users(lambda n, m=m: m.replace(users=n), epsilon=epsilon, **how)
        assert m.replace(users=found).epsilon(**how).upper <= epsilon
        if found > 1:
            assert m.replace(users=found - 1).epsilon(**how).upper > epsilon


def test_tight_rounds_and_users():
    m = MAKERS[2].replace(sigma=2.0)
    found = calibrate.rounds(m, epsilon=0.5, delta=1e-6)
    assert m.epsilon(delta=1e-6, rounds=found).upper <= 0.5
    assert m.epsilon(delta=1e-6, rounds=math.ceil(found * 1.01)).upper > 0.5
    assert found > calibrate.rounds(m, epsilon=0.5, delta=1e-6, method="rdp")
    few = calibrate.users(lambda n: m.replace(users=n), epsilon=0.1, delta=1e-6)
    assert m.replace(users=few).epsilon(delta=1e-6).upper <= 0.1
    assert m.replace(users=math.floor(few * 0.99)).epsilon(delta=1e-6).upper > 0.1


def test_users_may_start_above_one():
    m = MAKERS[3]
    found = calibrate.users(lambda n: m.replace(users=n), epsilon=0.5, delta=1e-6, rounds=50, at_least=m.sample)
    assert found >= m.sample
    assert m.replace(users=found).epsilon(delta=1e-6, rounds=50).upper <= 0.5


def test_any_crowd():
    m = ShuffledCheckIn(users=10_000, rate=0.1, sigma=1.0)
    target = {"epsilon": 0.1, "delta": 1e-5, "tolerance": 0.03}
    found = calibrate.sigma(lambda s: m.replace(sigma=s), **target)
    ideal = calibrate.sigma(lambda s: m.replace(sigma=s, crowd="identical"), **target)
    assert m.replace(sigma=found).epsilon(delta=1e-5).upper <= 0.1
    assert m.replace(sigma=0.95 * found).epsilon(delta=1e-5).upper > 0.1
    assert ideal < found


def test_unreachable_targets_say_so():
    m = Shuffle(users=10, sigma=1.0, crowd="identical")
    with pytest.raises(ValueError, match=r"epsilon must be reachable, got 1e-10, which even .* users do not meet"):
        calibrate.users(lambda n: m.replace(users=n), epsilon=1e-10, delta=1e-6, method="rdp")
    with pytest.raises(ValueError, match=r"epsilon must be at least .*, the cost of one round, got 0.1"):
        calibrate.rounds(m, epsilon=0.1, delta=1e-6)
    with pytest.raises(ValueError, match=r"epsilon must be positive, got 0.0"):
        calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=0, delta=1e-6)
    with pytest.raises(ValueError, match=r"delta must lie strictly between 0 and 1, got 2.0"):
        calibrate.rounds(m, epsilon=1, delta=2)
    with pytest.raises(ValueError, match=r"tolerance must lie between"):
        calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=1, delta=1e-6, tolerance=0)


@pytest.mark.parametrize(
    "m",
    [
        Shuffle(users=300, sigma=1.0, crowd="identical"),
        PoissonSampling(rate=0.05, sigma=1.0),
        LocalGaussian(sigma=1.0, adjacency="replace"),
    ],
)
def test_targets_of_attacks(m):
    """The least noise for a rate of attacks, or an advantage: met, and not met with a thousandth less noise."""
    for target, spent in (
        ({"tpr": 0.03, "fpr": 0.01}, lambda m: m.tradeoff(0.01, rounds=3).upper),
        ({"advantage": 0.1}, lambda m: m.advantage(rounds=3).upper),
    ):
        limit = target.get("tpr", target.get("advantage"))
        sigma = calibrate.sigma(m, rounds=3, **target)
        assert spent(m.replace(sigma=sigma)) <= limit < spent(m.replace(sigma=0.997 * sigma))
        count = calibrate.rounds(m.replace(sigma=2 * sigma), **target)
        assert count > 3


def test_an_advantage_has_a_closed_form():
    """One plain report of width mu = 1 / sigma has the advantage 2 Phi(mu / 2) - 1."""
    sigma = calibrate.sigma(LocalGaussian(sigma=1.0), advantage=0.1, tolerance=1e-6, accuracy=1e-9)
    assert sigma == pytest.approx(0.5 / special.ndtri(0.55), rel=3e-6)
    assert calibrate.users(Shuffle(users=1, sigma=3.0, crowd="identical"), tpr=0.012, fpr=0.01) > 10


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"epsilon": 1.0}, "must be epsilon and delta, tpr and fpr, or advantage, got epsilon"),
        ({}, "got none of them"),
        ({"epsilon": 1.0, "delta": 1e-6, "advantage": 0.1}, "got epsilon, delta, advantage"),
        ({"tpr": 0.01, "fpr": 0.01}, r"tpr must be above fpr = 0\.01, which a guess reaches, got 0\.01"),
        ({"advantage": 1.0}, r"advantage must lie strictly between 0 and 1, got 1\.0"),
        ({"tpr": float("nan"), "fpr": 0.01}, "tpr must be finite, got nan"),
    ],
)
def test_targets_that_are_none(target, message):
    with pytest.raises((InvalidInput, InvalidType), match=message):
        calibrate.sigma(LocalGaussian(sigma=1.0), **target)


def test_what_makes_a_mechanism():
    with pytest.raises(InvalidType, match=r"make must be a shoal mechanism or a function that returns one, got 3\.0"):
        calibrate.sigma(3.0, epsilon=1.0, delta=1e-6)


def test_tolerance_is_honoured():
    m = LocalGaussian(sigma=1.0)
    loose = calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=1, delta=1e-6, tolerance=0.1)
    tight = calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=1, delta=1e-6, tolerance=1e-9)
    assert tight <= loose <= tight * 1.1
    assert m.replace(sigma=tight * (1 - 3e-9)).epsilon(delta=1e-6).upper > 1

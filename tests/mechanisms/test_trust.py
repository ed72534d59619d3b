"""Secure sums, corrupt users, and the same noise under other trust: brute force, limits, draws, laws."""

import math

import numpy as np
import pytest
from scipy import stats

from shoal import (
    FixedBatch,
    LocalGaussian,
    PoissonSampling,
    SecureSum,
    SequentialShuffle,
    Shuffle,
    ShuffledCheckIn,
    SubsampledShuffle,
    audit,
)
from shoal.bounds.central.summed import last_likely
from shoal.literature.compare import compare, deployments

ADJACENCIES = ("zero-out", "replace")
DRAWS, CHUNK = 10_000_000, 1_000_000


def overlap(first, second):
    return first.lower <= second.upper and second.lower <= first.upper


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_sum_is_one_gaussian_report(adjacency):
    m = SecureSum(users=400, sigma=0.3, adjacency=adjacency)
    one_report = LocalGaussian(sigma=0.3 * math.sqrt(400), adjacency=adjacency)
    assert m.epsilon(delta=1e-6, rounds=7) == one_report.epsilon(delta=1e-6, rounds=7)
    surviving = m.replace(survivors=300, corrupt=200)
    assert surviving.epsilon(delta=1e-6) == LocalGaussian(sigma=3.0, adjacency=adjacency).epsilon(delta=1e-6)
    # One honest share is the local report, also where all that must survive may be corrupt.
    local = LocalGaussian(sigma=0.3, adjacency=adjacency).epsilon(delta=1e-6)
    for alone in (SecureSum(users=1, sigma=0.3, adjacency=adjacency), m.replace(survivors=10, corrupt=50)):
        assert alone.epsilon(delta=1e-6) == local


def exact_delta(users, rate, sigma, value, *, opposite, shares_min=1):
    """delta of one sum with coins by brute force over who came, on a grid: all others at -1, or at 0."""
    y = np.linspace(-40.0, 40.0, 80_001)
    forward = reverse = 0.0
    for number in range(shares_min, users + 1):
        chance, spread = number / users, sigma * math.sqrt(number)
        weight = stats.binom(users, rate).pmf(number)
        crowd = -1.0 if opposite else 0.0
        with_user, without = (number - 1) * crowd, number * crowd
        p, q = (
            chance * stats.norm.pdf(y, with_user + x, spread) + (1.0 - chance) * stats.norm.pdf(y, without, spread)
            for x in (1.0, 0.0)
        )
        forward += weight * float(np.maximum(p - math.exp(value) * q, 0.0).sum()) * (y[1] - y[0])
        reverse += weight * float(np.maximum(q - math.exp(value) * p, 0.0).sum()) * (y[1] - y[0])
    return forward, reverse


@pytest.mark.parametrize("shares_min", [1, 3])
@pytest.mark.parametrize(("users", "rate", "sigma", "value"), [(5, 0.5, 1.0, 0.5), (9, 0.2, 0.8, 1.0)])
def test_coins_against_brute_force(users, rate, sigma, value, shares_min):
    """The better of two crowds is reached by the lower end; for one sum the upper end is attained."""
    m = SecureSum(users=users, rate=rate, sigma=sigma, survivors=shares_min)
    bracket = m.delta(epsilon=value)
    exact = [exact_delta(users, rate, sigma, value, opposite=o, shares_min=shares_min) for o in (True, False)]
    largest = max(max(pair) for pair in exact)
    assert bracket.lower <= largest * (1 + 1e-6)
    assert bracket.upper == pytest.approx(largest, rel=1e-2)
    assert bracket.upper >= largest * (1 - 1e-6)
    assert bracket.lower >= 0.97 * largest


def test_with_coins_it_is_nearly_a_fixed_batch():
    """How many came hardly varies with many users, and a batch of that size is drawn without replacement."""
    coins = SecureSum(users=10_000, rate=0.1, sigma=0.1, adjacency="replace").epsilon(delta=1e-6, rounds=20)
    drawn = FixedBatch(records=10_000, batch=1_000, sigma=0.1 * math.sqrt(1_000), adjacency="replace")
    batch = drawn.epsilon(delta=1e-6, rounds=20)
    assert overlap(coins, batch)
    assert coins.upper == pytest.approx(batch.upper, rel=0.03)


def test_a_rate_of_nearly_one_is_a_sum_of_all():
    nearly = SecureSum(users=20, rate=1.0 - 1e-12, sigma=0.5).epsilon(delta=1e-6, rounds=3)
    assert overlap(nearly, SecureSum(users=20, sigma=0.5).epsilon(delta=1e-6, rounds=3))


def test_ten_million_draws_stay_inside():
    """One sum of six users with coins, all others opposite, both directions."""
    users, rate, sigma, value = 6, 0.4, 0.9, 0.5
    rng = np.random.default_rng(29)
    bracket = SecureSum(users=users, rate=rate, sigma=sigma).delta(epsilon=value)
    means = []
    for place, sign in ((1.0, 1.0), (0.0, -1.0)):
        total = squares = 0.0
        for _ in range(DRAWS // CHUNK):
            others = rng.binomial(users - 1, rate, CHUNK)
            takes_part = rng.random(CHUNK) < rate
            number = others + takes_part
            # Seen from -number: the user stands at 1 more than its place, or is not there.
            variance = sigma**2 * np.maximum(number, 1)
            y = takes_part * (1.0 + place) + np.sqrt(variance) * rng.standard_normal(CHUNK)
            chance = number / users
            law = [chance * np.exp((2.0 * x * y - x * x) / (2.0 * variance)) + 1.0 - chance for x in (2.0, 1.0)]
            loss = sign * np.log(law[0] / law[1])
            gains = np.maximum(-np.expm1(value - loss), 0.0)
            total, squares = total + float(gains.sum()), squares + float(gains @ gains)
        mean = total / DRAWS
        means.append((mean, 5.0 * math.sqrt((squares / DRAWS - mean**2) / DRAWS)))
    mean, error = max(means)
    assert mean - error <= bracket.upper
    assert bracket.lower <= mean + error
    assert bracket.upper <= (mean + error) * 1.02


def test_fewer_shares_and_more_corruption_are_less_private():
    m = SecureSum(users=100, rate=0.3, sigma=0.4)
    values = [m.replace(corrupt=c).epsilon(delta=1e-6).upper for c in (0, 60)]
    assert values == sorted(values)
    thresholds = [m.replace(survivors=s).epsilon(delta=1e-6).upper for s in (40, 10)]
    assert thresholds == sorted(thresholds)


@pytest.mark.parametrize(("users", "rate"), [(10, 0.5), (1_000, 0.01), (10**6, 0.3), (50, 0.999)])
def test_chernoff_leaves_out_next_to_nothing(users, rate):
    law = stats.binom(users, rate)
    first, last = (last_likely(users, rate, rises=rises) for rises in (False, True))
    assert law.cdf(first - 1) <= 1e-30 or first == 0
    assert law.sf(last) <= 1e-30 or last == users
    assert 0 <= first <= users * rate <= last <= users


@pytest.mark.parametrize(
    "m",
    [
        Shuffle(users=500, sigma=2.0),
        Shuffle(users=500, sigma=2.0, crowd="identical"),
        ShuffledCheckIn(users=500, rate=0.2, sigma=2.0, crowd="identical"),
        SequentialShuffle(users=500, sigma=2.0, crowd="identical"),
        SecureSum(users=500, rate=0.2, sigma=0.3),
    ],
    ids=str,
)
def test_corrupt_users_are_revealed_and_the_rest_count(m):
    corrupted = m.replace(corrupt=200).epsilon(delta=1e-6, rounds=2)
    assert corrupted == m.replace(users=300).epsilon(delta=1e-6, rounds=2)
    assert "corrupt users = 200" in m.replace(corrupt=200).statement(delta=1e-6).sentence()
    assert "corrupt" not in m.settings
    with pytest.raises(ValueError, match=r"^corrupt must be below users \(500\), got 500"):
        m.replace(corrupt=500)


def test_corrupt_users_in_a_sample():
    """How many honest users were drawn is public: a bracket around the draw with the mean number."""
    m = SubsampledShuffle(users=2_000, sample=400, sigma=2.0, crowd="identical")
    corrupted = m.replace(corrupt=500).epsilon(delta=1e-6, rounds=10)
    # 300 honest users are drawn of 1,500 on average.
    mean = m.replace(users=1_500, sample=300).epsilon(delta=1e-6, rounds=10)
    assert corrupted.lower < mean.lower < mean.upper < corrupted.upper < 2.0 * mean.upper
    assert corrupted.upper <= LocalGaussian(sigma=2.0).epsilon(delta=1e-6, rounds=10).upper
    small = m.replace(sample=20).replace(users=80, crowd="any")
    anyone = small.replace(corrupt=20).epsilon(delta=1e-3)
    assert anyone.upper >= small.replace(users=60, sample=15).epsilon(delta=1e-3).lower
    by_rdp = m.replace(corrupt=500).epsilon(delta=1e-6, rounds=10, method="rdp")
    assert by_rdp.upper >= corrupted.lower


def test_draws_of_a_sample_with_corrupt_users_stay_inside():
    """Brute force: 3 honest and 2 corrupt users, samples of 3, the identical crowd; honest numbers are public."""
    sigma, value, size = 1.5, 0.3, 400_000
    rng = np.random.default_rng(31)
    total = 0.0
    for number in (1, 2, 3):
        weight = stats.hypergeom(5, 3, 3).pmf(number)
        z = rng.standard_normal((size, number)) / 1.0
        z[:, 0] += (rng.random(size) < number / 3) / sigma
        ratio = 1.0 - number / 3 + number / 3 * np.exp(z / sigma - 0.5 / sigma**2).mean(axis=1)
        total += weight * float(np.maximum(1.0 - math.exp(value) / ratio, 0.0).mean())
    m = SubsampledShuffle(users=5, sample=3, sigma=sigma, corrupt=2, crowd="identical")
    bracket = m.delta(epsilon=value)
    assert bracket.lower <= total * 1.02
    assert bracket.upper >= total * 0.98


def test_the_same_noise_under_other_trust():
    m = Shuffle(users=1_000, sigma=3.0)
    deployed = {name: d.epsilon(delta=1e-6, rounds=10) for name, d in deployments(m).items()}
    shuffled = m.epsilon(delta=1e-6, rounds=10)
    assert deployed["secure sum"].upper < shuffled.lower < shuffled.upper < deployed["no shuffler"].lower
    assert deployed["secure sum"] == deployed["central noise"]
    # Corrupt users take their noise with them, unless the server adds it.
    corrupted = {name: d.epsilon(delta=1e-6, rounds=10) for name, d in deployments(m.replace(corrupt=500)).items()}
    assert corrupted["central noise"] == deployed["central noise"]
    assert corrupted["secure sum"].lower > 1.3 * deployed["secure sum"].upper
    assert isinstance(deployments(ShuffledCheckIn(users=100, rate=0.5, sigma=1.0))["central noise"], PoissonSampling)
    assert deployments(LocalGaussian(sigma=1.0)) == {}


def test_the_comparison_says_whom_each_needs():
    table = {row.deployment: row for row in compare(Shuffle(users=500, sigma=3.0, corrupt=50), delta=1e-6)}
    assert "nobody is trusted" in table["no shuffler"].note
    assert "secure aggregation is trusted" in table["secure sum"].note
    assert "server that holds the data is trusted" in table["central noise"].note


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"survivors": 11}, r"^survivors must be at most users \(10\), got 11"),
        ({"survivors": 0}, "^survivors must be at least 1, got 0"),
        ({"corrupt": 10}, r"^corrupt must be below users \(10\), got 10"),
        ({"corrupt": -1}, "^corrupt must be at least 0, got -1"),
    ],
)
def test_bad_numbers(bad, message):
    with pytest.raises(ValueError, match=message):
        SecureSum(users=10, sigma=1.0, **bad)


def test_the_registry_calls_it_federated():
    entry = SecureSum(users=100, sigma=1.0).statement(delta=1e-6).to_registry()
    assert entry["deployment"]["deployment_model"]["model_name"] == "Federated"


@pytest.mark.parametrize("changes", [{"corrupt": 5}, {"reports_per_user": 2}])
def test_audits_know_one_report_of_honest_users_only(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        audit.audit(Shuffle(users=20, sigma=2.0, **changes), delta=1e-5, trials=1_000)


def test_numbers_in_groups_are_bounded_from_both_sides():
    """So many users that neighbouring numbers are put together: brute force over all of them."""
    bracket = SecureSum(users=60, rate=0.5, sigma=0.5).delta(epsilon=0.3)
    exact = [exact_delta(60, 0.5, 0.5, 0.3, opposite=o) for o in (True, False)]
    largest = max(max(pair) for pair in exact)
    assert 0.85 * largest <= bracket.lower <= largest <= bracket.upper <= 1.1 * largest


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_small_rates_of_attacks_are_answered_after_many_rounds(adjacency):
    """The probabilities of groups add up to a little more than 1 from above, so nothing is concluded from below."""
    m = SecureSum(users=1_000, rate=0.1, sigma=3.0, adjacency=adjacency)
    ends = [m.tradeoff(1e-6, rounds=rounds) for rounds in (1, 10, 100)]
    assert all(1e-6 < power.lower <= power.upper < 1.03 * power.lower for power in ends)
    assert [power.upper for power in ends] == sorted(power.upper for power in ends)

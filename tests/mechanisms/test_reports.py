"""Several reports of one user in a shuffle: brute force, limits, laws, and bounds by other ways."""

import itertools
import math

import numpy as np
import pytest

from shoal import LocalGaussian, RandomAllocation, Shuffle
from shoal.literature.compare import compare, deployments

ADJACENCIES = ("zero-out", "replace")


def overlap(first, second):
    return first.lower <= second.upper and second.lower <= first.upper


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_one_report_is_the_mechanism_itself(adjacency):
    m = Shuffle(users=50, sigma=2.0, crowd="identical", adjacency=adjacency)
    assert m.replace(reports_per_user=1) == m
    assert "reports per user" not in m.settings


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("crowd", ["any", "identical"])
def test_a_user_alone_sends_all_its_reports_in_the_clear(adjacency, crowd):
    m = Shuffle(users=1, sigma=3.0, reports_per_user=9, adjacency=adjacency, crowd=crowd)
    local = LocalGaussian(sigma=1.0, adjacency=adjacency).epsilon(delta=1e-6, rounds=2)
    assert m.epsilon(delta=1e-6, rounds=2).upper == pytest.approx(local.upper, rel=1e-9)
    assert m.epsilon(delta=1e-6, rounds=2).lower == pytest.approx(local.lower, rel=1e-9)


@pytest.mark.parametrize("rounds", [1, 30])
def test_for_an_identical_crowd_it_is_random_allocation(rounds):
    m = Shuffle(users=40, sigma=2.0, reports_per_user=3, crowd="identical")
    allocation = RandomAllocation(steps=120, picks=3, sigma=2.0)
    assert m.epsilon(delta=1e-6, rounds=rounds) == allocation.epsilon(delta=1e-6, rounds=rounds)
    assert m.epsilon(delta=1e-6, rounds=rounds).width <= 0.02 * m.epsilon(delta=1e-6, rounds=rounds).upper


@pytest.mark.parametrize("places", [(0.0, 0.0), (-1.0, -1.0), (1.0, -1.0)])
def test_no_crowd_of_a_few_users_is_outside(places):
    """Two others and this user, two reports each: the law of all matchings by brute force, other users anywhere."""
    sigma, value, size = 1.6, 0.2, 60_000
    crowd = np.array([*places, *places])
    rng = np.random.default_rng(37)
    upper = Shuffle(users=3, sigma=sigma, reports_per_user=2).delta(epsilon=value).upper
    ideal = Shuffle(users=3, sigma=sigma, reports_per_user=2, crowd="identical").delta(epsilon=value)
    held = {0: np.array([0.0, 0.0, *crowd]), 1: np.array([1.0, 1.0, *crowd])}

    def likelihood(y, vectors):
        # The density of a multiset is a permanent; equal places are put together first.
        kinds, counts = np.unique(vectors, return_counts=True)
        total = np.zeros(len(y))
        for chosen in set(itertools.permutations(np.repeat(np.arange(len(kinds)), counts).tolist())):
            shift = kinds[np.array(chosen)]
            total += np.exp((y @ shift - 0.5 * float(shift @ shift)) / sigma**2)
        return total / math.factorial(6) * np.prod([math.factorial(c) for c in counts])

    for here, there in ((1, 0), (0, 1)):
        y = held[here] + sigma * rng.standard_normal((size, 6))
        gains = np.maximum(1.0 - math.exp(value) * likelihood(y, held[there]) / likelihood(y, held[here]), 0.0)
        noise = 5.0 * float(gains.std()) / math.sqrt(size)
        assert float(gains.mean()) - noise <= upper
        if places == (0.0, 0.0):
            assert float(gains.mean()) - noise <= ideal.upper
            if here == 1:
                assert float(gains.mean()) + noise >= ideal.lower


def test_ten_million_reports_stay_inside():
    """2,500,000 rounds of four reports: two users with two reports each, the identical crowd, both directions."""
    sigma, value, size, chunk = 1.5, 0.3, 2_500_000, 500_000
    rng = np.random.default_rng(41)
    bracket = Shuffle(users=2, sigma=sigma, reports_per_user=2, crowd="identical").delta(epsilon=value)
    means = []
    for shift, sign in ((1.0, 1.0), (0.0, -1.0)):
        total = squares = 0.0
        for _ in range(size // chunk):
            y = sigma * rng.standard_normal((chunk, 4)) + np.array([shift, shift, 0.0, 0.0])
            w = np.exp((y - 0.5) / sigma**2)
            first = w.sum(axis=1)
            ratio = (first**2 - np.einsum("ij,ij->i", w, w)) / 12.0  # the mean over pairs of products
            gains = np.maximum(1.0 - math.exp(value) * ratio**-sign, 0.0)
            total, squares = total + float(gains.sum()), squares + float(gains @ gains)
        mean = total / size
        means.append((mean, 5.0 * math.sqrt((squares / size - mean**2) / size)))
    mean, error = max(means)
    assert mean - error <= bracket.upper
    assert bracket.lower <= mean + error


def by_way_of_zero(m, delta):
    """Group privacy: the user's reports become zero one after the other, each among all reports of the round."""
    reports = m.reports_per_user
    single = m.replace(users=m.users * reports, reports_per_user=1)
    for share in np.geomspace(1.0 / reports, 1e-6, 60):
        step = single.epsilon(delta=delta * share).upper
        if share * sum(math.exp(i * step) for i in range(reports)) <= 1.0:
            return reports * step
    return math.inf


def test_rounds_against_the_way_through_zero():
    """With much noise both are alike; with little the way through zero is of no use."""
    much, little = (Shuffle(users=1_000, sigma=s, reports_per_user=4, crowd="identical") for s in (5.0, 0.5))
    assert much.epsilon(delta=1e-6).upper == pytest.approx(by_way_of_zero(much, 1e-6), rel=0.05)
    assert little.epsilon(delta=1e-6).upper < 0.7 * by_way_of_zero(little, 1e-6)


def test_one_vector_split_over_reports_is_never_less_private_with_little_noise():
    """k reports of noise sigma sqrt(k) are in the clear one report of noise sigma; among others they hide better."""
    whole = Shuffle(users=500, sigma=0.8, crowd="identical")
    split = whole.replace(sigma=0.8 * math.sqrt(4), reports_per_user=4)
    assert split.epsilon(delta=1e-6).upper < 0.7 * whole.epsilon(delta=1e-6).lower


def test_laws():
    m = Shuffle(users=300, sigma=3.0, crowd="identical")
    values = [m.replace(reports_per_user=k).epsilon(delta=1e-6) for k in (1, 2, 5)]
    assert all(first.upper < second.lower for first, second in itertools.pairwise(values))
    anyone = Shuffle(users=300, sigma=3.0, reports_per_user=2).epsilon(delta=1e-6)
    assert anyone.lower <= values[1].upper <= anyone.upper
    assert anyone.upper == Shuffle(users=300, sigma=3.0).epsilon(delta=1e-6, rounds=2).upper
    corrupt = Shuffle(users=400, sigma=3.0, reports_per_user=2, corrupt=100, crowd="identical")
    assert corrupt.epsilon(delta=1e-6) == values[1]


def test_statements_and_comparisons():
    m = Shuffle(users=300, sigma=3.0, reports_per_user=4, crowd="identical")
    sentence = m.statement(delta=1e-6).sentence()
    assert "reports per user = 4" in sentence
    assert "zero-out adjacency of one person with 4 reports a round, assuming" in sentence
    assert m.expected_reports(300) == 1_200.0
    # The sum of a person's reports moves by up to 4, in twice the noise.
    assert deployments(m)["no shuffler"] == LocalGaussian(sigma=1.5)
    assert "clones" not in {row.method for row in compare(m, delta=1e-6)}

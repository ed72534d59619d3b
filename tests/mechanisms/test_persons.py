"""A person with several records or reports: limits, published numbers, draws by the million, what statements say."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from shoal import Accountant, FixedBatch, LocalGaussian, PoissonSampling, calibrate
from shoal.mechanisms import from_dict

ADJACENCIES = ("zero-out", "replace")
DRAWS, CHUNK = 10_000_000, 500_000


def overlap(first, second):
    return first.lower <= second.upper and second.lower <= first.upper


def drawn_delta(here, there, weights, sigma, value):
    """delta of one step by 10^7 draws from the first mixture (whole places), and five standard errors."""
    rng, total, squares = np.random.default_rng(23), 0.0, 0.0
    cuts, start = np.cumsum(weights)[:-1], min(*here, *there)
    top, base = np.zeros(16), np.zeros(16)
    for polynomial, places in ((top, here), (base, there)):
        np.add.at(polynomial, places - start, weights * np.exp(-0.5 * (places / sigma) ** 2))
    for _ in range(DRAWS // CHUNK):
        z = rng.standard_normal(CHUNK) + here[np.searchsorted(cuts, rng.random(CHUNK))] / sigma
        powers = np.exp(z / sigma)  # each density is a polynomial in it
        ratio = np.polynomial.polynomial.polyval(powers, np.trim_zeros(base, "b"))
        ratio /= np.polynomial.polynomial.polyval(powers, np.trim_zeros(top, "b"))
        gains = np.maximum(1.0 - math.exp(value) * ratio, 0.0)
        total, squares = total + float(gains.sum()), squares + float(gains @ gains)
    mean = total / DRAWS
    return mean, 5.0 * math.sqrt(max(squares / DRAWS - mean**2, 0.0) / DRAWS)


@pytest.mark.parametrize(
    ("records", "rate", "sigma", "rounds", "delta", "value"),
    [
        (2, 0.0064, 1.0, 782, 1e-6, 2.53199),
        (2, 0.02048, 4.0, 10_000, 1e-5, 4.60455),
        (4, 0.01, 2.0, 1_000, 1e-6, 3.26989),
        (10, 0.001, 1.0, 5_000, 1e-6, 4.80823),
    ],
)
def test_the_finest_grid_of_dp_accounting_lies_inside(records, rate, sigma, rounds, delta, value):
    bracket = PoissonSampling(rate=rate, sigma=sigma, records_per_user=records).epsilon(delta=delta, rounds=rounds)
    assert bracket.lower <= value <= bracket.upper
    assert bracket.width <= 1e-3 * bracket.upper


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_one_record_is_the_mechanism_itself(adjacency):
    m = PoissonSampling(rate=0.01, sigma=1.0, adjacency=adjacency)
    assert m == m.replace(records_per_user=1)
    assert "records per user" not in m.settings
    # A second record that is hardly ever drawn with the first adds to the rate.
    twice = m.replace(rate=1e-4, records_per_user=2).epsilon(delta=1e-6, rounds=100)
    once = m.replace(rate=2e-4).epsilon(delta=1e-6, rounds=100)
    assert twice.upper == pytest.approx(once.upper, rel=0.02)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("records", [2, 7])
def test_all_records_in_every_batch_are_a_shift_by_their_number(adjacency, records):
    shift = LocalGaussian(sigma=6.0 / records, adjacency=adjacency).epsilon(delta=1e-6, rounds=3)
    poisson = PoissonSampling(rate=1.0, sigma=6.0, records_per_user=records, adjacency=adjacency)
    fixed = FixedBatch(records=50, batch=50, sigma=6.0, records_per_user=records, adjacency=adjacency)
    for m in (poisson, fixed):
        assert overlap(m.epsilon(delta=1e-6, rounds=3), shift)
        assert m.epsilon(delta=1e-6, rounds=3).width <= 1e-3 * shift.upper


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_ten_million_draws_stay_inside(adjacency):
    records, sigma = 3, 1.2
    number = np.arange(records + 1)
    poisson = PoissonSampling(rate=0.1, sigma=sigma, records_per_user=records, adjacency=adjacency)
    fixed = FixedBatch(records=40, batch=4, sigma=sigma, records_per_user=records, adjacency=adjacency)
    binomial = stats.binom(records, 0.1).pmf(number)
    hypergeometric = stats.hypergeom(40, records, 4).pmf(number)
    moved = -number if adjacency == "replace" else 0 * number
    pairs = [
        # Poisson: exact. Fixed batches: the crowd beside the person in Q, and for zero-out the opposite one.
        (poisson, binomial, number, moved, True),
        (fixed, hypergeometric, 2 * number - records, moved - (records - number), False),
    ]
    for m, weights, p, q, is_exact in pairs:
        values = [drawn_delta(*pair, weights, sigma, 0.5) for pair in ((p, q), (q, p))]
        bracket = m.delta(epsilon=0.5)
        mean, error = max(values)
        assert mean - error <= bracket.upper
        if is_exact:
            assert bracket.lower <= mean + error


def test_records_drawn_without_replacement_are_bracketed_as_single_ones_are():
    for adjacency, width in (("zero-out", 0.065), ("replace", 0.17)):
        m = FixedBatch(records=60_000, batch=600, sigma=2.0, adjacency=adjacency)
        for records in (1, 2, 4):
            bracket = m.replace(records_per_user=records).epsilon(delta=1e-6, rounds=1_000)
            assert bracket.width <= width * bracket.upper


def test_more_records_are_never_more_private():
    for m in (PoissonSampling(rate=0.01, sigma=1.5), FixedBatch(records=2_000, batch=20, sigma=1.5)):
        bracket = [m.replace(records_per_user=k).epsilon(delta=1e-6, rounds=20) for k in (1, 2, 3, 5)]
        assert all(first.upper <= second.upper for first, second in itertools.pairwise(bracket))
        # Two records are not two rounds: they may fall into one batch.
        assert bracket[1].upper > m.epsilon(delta=1e-6, rounds=40).lower


def test_statements_say_whom_they_protect():
    m = PoissonSampling(rate=0.01, sigma=2.0, records_per_user=4)
    statement = m.statement(delta=1e-6, rounds=100)
    assert "records per user = 4" in statement.sentence()
    assert "zero-out adjacency of one person with at most 4 records, assuming" in statement.sentence()
    assert statement.to_dict()["person"] == "one person with at most 4 records"
    entry = statement.to_registry()["deployment"]["privacy_loss"]
    assert entry["privacy_unit"] == "User"
    assert "all vectors of one person with at most 4 records" in entry["privacy_unit_details"]
    answers = {item.question: item.answer for item in statement.checklist()}
    assert answers["What is the unit of privacy?"] == "One person with at most 4 records."
    # A record is a person with one of them: nothing is added.
    assert "person" not in m.replace(records_per_user=1).statement(delta=1e-6).sentence()
    ledger = Accountant()
    ledger.compose(m, rounds=3)
    ledger.compose(LocalGaussian(sigma=9.0), rounds=1)
    assert "of one person with at most 4 records and one vector" in ledger.statement(delta=1e-6).sentence()


def test_ledgers_of_before_mean_one_record():
    saved = {"mechanism": "PoissonSampling", "sigma": 1.0, "adjacency": "zero-out", "rate": 0.01}
    assert from_dict(saved) == PoissonSampling(rate=0.01, sigma=1.0)


@pytest.mark.parametrize("records", [0, 1.5, 1001, "x"])
def test_bad_numbers_of_records(records):
    with pytest.raises((ValueError, TypeError), match=r"^records_per_user must"):
        PoissonSampling(rate=0.1, sigma=1.0, records_per_user=records)


def test_no_more_records_than_there_are():
    with pytest.raises(ValueError, match=r"^records_per_user must be at most records \(5\), got 6"):
        FixedBatch(records=5, batch=2, sigma=1.0, records_per_user=6)


@pytest.mark.filterwarnings("ignore::shoal.AccuracyWarning")
@pytest.mark.parametrize("sigma", [1e-3, 0.3, 1e7])
def test_extreme_settings_have_answers(sigma):
    for m in (
        PoissonSampling(rate=0.1, sigma=sigma, records_per_user=30),
        FixedBatch(records=5_000, batch=200, sigma=sigma, records_per_user=30),
    ):
        bracket = m.epsilon(delta=1e-6, rounds=10)
        assert 0.0 <= bracket.lower <= bracket.upper < math.inf


def test_noise_for_a_person():
    noise = calibrate.sigma(
        lambda sigma: PoissonSampling(rate=0.01, sigma=sigma, records_per_user=3), epsilon=2.0, delta=1e-6, rounds=100
    )
    m = PoissonSampling(rate=0.01, sigma=noise, records_per_user=3)
    assert 1.99 < m.epsilon(delta=1e-6, rounds=100).upper <= 2.0

"""What other tools' noise is worth: their formulas, closed forms in high precision, limits and laws."""

import json
import math

import mpmath
import numpy as np
import pytest

from shoal import Interval, LocalGaussian, Shuffle, noise_check


def exact_delta(width, epsilon):
    r, e = mpmath.mpf(width), mpmath.mpf(epsilon)
    return mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)


def exact_epsilon(width, delta):
    """By bisection in high precision, around r^2 / 2."""
    with mpmath.workdps(60):
        r = mpmath.mpf(width)
        low, high = r * (r / 2 - 20) if width > 40 else mpmath.mpf(0), r * (r / 2 + 20)
        for _ in range(160):
            middle = (low + high) / 2
            low, high = (low, middle) if exact_delta(width, middle) <= delta else (middle, high)
        return high


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("width", [1e-3, 0.5, 7.0, 9e3, 1.1e4, 1e5, 3e6])
def test_epsilon_of_any_width_brackets_the_closed_form(width, delta):
    found = noise_check.gaussian_epsilon(width, delta)
    with mpmath.workdps(60):
        truth = exact_epsilon(width, delta)
        assert found.lower <= truth * (1 + mpmath.mpf(10) ** -25)
        assert truth <= found.upper * (1 + mpmath.mpf(10) ** -25) + mpmath.mpf(10) ** -30
    assert found.width <= 1e-3 * found.upper


def test_the_two_ways_meet_where_one_takes_over():
    below, above = (
        noise_check.gaussian_epsilon(0.99999 * noise_check._WIDE, 1e-6),
        noise_check.gaussian_epsilon(1.00001 * noise_check._WIDE, 1e-6),
    )
    assert below.upper < above.upper < below.upper * 1.0001
    assert below.lower == pytest.approx(
        LocalGaussian(sigma=1 / (0.99999 * noise_check._WIDE)).epsilon(delta=1e-6).lower
    )


def test_the_noise_of_flower_is_that_of_its_formula():
    found = noise_check.flower(clipping_norm=2.0, sensitivity=4.0, epsilon=0.5, delta=1e-6)
    assert found.deviation == 4.0 * math.sqrt(2.0 * math.log(1.25 / 1e-6)) / 0.5
    assert found.sigma == found.deviation / 2.0
    zero, other = found.rows
    assert (zero.adjacency, other.adjacency) == ("zero-out", "replace")
    assert zero.epsilon.upper == pytest.approx(LocalGaussian(sigma=found.sigma).epsilon(delta=1e-6).upper, rel=1e-12)
    # With the sensitivity that two vectors have, the classical formula keeps its promise below epsilon = 1.
    assert zero.epsilon.upper < other.epsilon.upper <= 0.5
    assert found.note == ""


def test_flower_itself_adds_that_noise(monkeypatch):
    module = pytest.importorskip("flwr.supercore.differential_privacy")
    seen = []
    monkeypatch.setattr(np.random, "normal", lambda loc, scale, size: seen.append(scale) or np.zeros(size))
    arrays = module.ndarrays_to_parameters([np.zeros(3)])
    module.add_localdp_gaussian_noise_to_params(arrays, 1.5, 0.7, 1e-5)
    found = noise_check.flower(clipping_norm=1.0, sensitivity=1.5, epsilon=0.7, delta=1e-5)
    assert seen == [pytest.approx(found.deviation, rel=1e-14)]


def test_a_sensitivity_that_is_too_small_is_said():
    found = noise_check.flower(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    assert found.rows[1].epsilon.lower > found.promised
    assert "Two clipped vectors can be 2 apart; the sensitivity was set to 1." in found.sentence()


def test_behind_a_shuffler():
    found = noise_check.flower(clipping_norm=1.0, sensitivity=1.0, epsilon=2.0, delta=1e-5, users=1_000, rounds=3)
    local, shuffled = (row for row in found.rows if row.adjacency == "zero-out")
    assert (local.users, shuffled.users) == (None, 1_000)
    exact = Shuffle(users=1_000, sigma=found.sigma).epsilon(delta=1e-5, rounds=3)
    assert shuffled.epsilon.upper == pytest.approx(exact.upper, rel=1e-3)
    assert shuffled.epsilon.upper < 0.3 * local.epsilon.upper
    text = found.sentence()
    assert "Behind a trusted shuffler, among 1,000 users who may hold anything, 3 rounds together give ε ≤" in text
    assert json.loads(json.dumps(found.to_dict()))["guarantee"] == text


@pytest.mark.parametrize("deviation", [1e-5, 1e-9, 1e-100])
def test_next_to_no_noise_has_an_honest_answer(deviation):
    found = noise_check.gaussian(deviation=deviation, clipping_norm=1.0, delta=1e-5, users=100)
    for row in found.rows:
        move = {"zero-out": 1.0, "replace": 2.0}[row.adjacency]
        assert row.epsilon.upper == pytest.approx((move / deviation) ** 2 / 2, rel=1e-3)
    assert "no useful guarantee" in found.sentence()


def test_no_noise_is_no_guarantee():
    for found in (
        noise_check.gaussian(deviation=0.0, clipping_norm=1.0, delta=1e-5, users=9),
        noise_check.flower(clipping_norm=1.0, sensitivity=0.0, epsilon=1.0, delta=1e-5),
        noise_check.nvflare_percentile(),
    ):
        assert all(row.epsilon.upper == math.inf for row in found.rows)
        assert "no guarantee" in found.sentence()
        assert "adds no noise" in found.sentence()
        assert found.to_dict()["rows"][0]["epsilon"]["upper"] is None


def test_a_lot_of_noise_counts_as_the_most_there_is():
    found = noise_check.gaussian(deviation=1e12, clipping_norm=1.0, delta=1e-15, users=10)
    assert all(0.0 == row.epsilon.lower <= row.epsilon.upper < 1e-7 for row in found.rows)


def test_the_sparse_vector_filter_costs_what_it_sends():
    """One number: its own epsilon and that of the choice; many: plain addition from above, and less at a delta."""
    one = noise_check.nvflare_svt(parameters=1, delta=1e-9, epsilon=0.3, noise_var=0.2)
    assert one.rows[0].epsilon.upper == pytest.approx(0.5)
    assert one.deviation == pytest.approx(math.sqrt(2.0) * 2e-5 / 0.2)
    many = noise_check.nvflare_svt(parameters=10**5, delta=1e-6)
    assert 10.0 < many.rows[0].epsilon.upper < 10**4 * 0.1 + 0.1
    huge = noise_check.nvflare_svt(parameters=10**9, delta=1e-6)
    assert huge.rows[0].epsilon.upper == pytest.approx(10**8 * 0.1 + 0.1)
    assert "sent without noise" in many.sentence()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive, got 0.0"),
        ({"sensitivity": -1.0}, "sensitivity must be at least 0, got -1.0"),
        ({"clipping_norm": 0.0}, "clipping_norm must be positive, got 0.0"),
        ({"delta": 0.0}, "delta must lie strictly between 0 and 1, got 0.0"),
        ({"users": 0}, "users must be at least 1, got 0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        noise_check.flower(**{"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5, **change})


def test_more_rounds_and_less_noise_cost_more():
    def upper(**change):
        found = noise_check.gaussian(**{"deviation": 0.01, "clipping_norm": 1.0, "delta": 1e-5, **change})
        return found.rows[0].epsilon.upper

    assert upper() < upper(rounds=10**4) < upper(rounds=10**5) < upper(rounds=10**5, deviation=1e-7)
    assert isinstance(noise_check.gaussian_epsilon(0.0, 1e-5), Interval)

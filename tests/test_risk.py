"""Risks of one user against closed forms, brute force and simulation."""

import math

import mpmath
import numpy as np
import pytest

import shoal
from shoal.risk import bayes_accuracy, guessing

MUS = (0.05, 0.3, 1.0, 2.5, 5.0)
PRIORS = (0.5, 0.3, 0.1, 0.9, 1e-3)


def phi(x):
    return mpmath.ncdf(x)


def exact_bayes(mu, prior):
    """Guessing between N(0, 1) and N(mu, 1): the better of both worlds wherever the posterior says so."""
    prior = mpmath.mpf(prior)
    cut = mpmath.log((1 - prior) / prior) / mu + mpmath.mpf(mu) / 2
    return prior * phi(mu - cut) + (1 - prior) * phi(cut)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("prior", PRIORS)
def test_bayes_accuracy_of_one_report_is_exact(mu, prior):
    mpmath.mp.dps = 40
    truth = exact_bayes(mu, prior)
    accuracy = bayes_accuracy(shoal.LocalGaussian(sigma=1.0 / mu), prior=prior)
    assert accuracy.lower <= truth <= accuracy.upper
    assert accuracy.width < 1e-9


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("baseline", [1e-6, 1e-3, 0.01, 0.25, 0.5])
def test_a_secret_of_two_values_is_guessed_no_better_than_the_bound(mu, baseline):
    """The best guess of a rare attribute: with the data N(mu, 1), without it N(0, 1)."""
    mpmath.mp.dps = 40
    best = phi(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(baseline) - 1) + mu)
    bound = guessing(shoal.LocalGaussian(sigma=1.0 / mu), baseline=baseline)
    assert bound.lower == baseline
    assert best <= bound.upper <= best * (1 + mpmath.mpf(10) ** -9)


def test_many_attributes_by_simulation():
    """Eight values at the corners of a simplex; the likeliest one is guessed."""
    generator = np.random.default_rng(7)
    sigma, values, trials = 0.5, 8, 20_000
    secret = generator.integers(values, size=trials)
    reports = np.eye(values)[secret] + sigma * generator.standard_normal((trials, values))
    right = (reports.argmax(axis=1) == secret).mean()
    assert 1.0 / values < right < guessing(shoal.LocalGaussian(sigma=sigma), baseline=1.0 / values).upper


def test_it_is_the_trade_off_of_many_poisson_rounds():
    m = shoal.PoissonSampling(rate=0.002, sigma=0.5)
    bound = guessing(m, baseline=1e-3, rounds=10_000)
    assert 0.0479003 < bound.upper < 0.0479137
    ledger = shoal.Accountant().compose(m, rounds=10_000)
    assert guessing(ledger, baseline=1e-3) == bound


def test_monotone_in_noise_rounds_and_baseline():
    noise = [bayes_accuracy(shoal.Shuffle(users=1_000, sigma=s)).upper for s in (1.0, 2.0, 4.0)]
    assert noise == sorted(noise, reverse=True)
    m = shoal.BallsAndBins(bins=100, sigma=1.0)
    assert bayes_accuracy(m).upper < bayes_accuracy(m, rounds=10).upper
    assert guessing(m, baseline=0.01).upper < guessing(m, baseline=0.02).upper
    for prior in (0.2, 0.8):
        accuracy = bayes_accuracy(m, prior=prior, rounds=10)
        assert accuracy.upper == pytest.approx(bayes_accuracy(m, prior=1.0 - prior, rounds=10).upper, rel=1e-12)
        assert accuracy.lower >= 0.8 * (1.0 - 1e-12)


def test_half_the_advantage_is_gained_at_even_odds():
    m = shoal.Shuffle(users=100, sigma=1.0, crowd="identical")
    accuracy, advantage = bayes_accuracy(m), m.advantage()
    assert accuracy.upper == pytest.approx(0.5 + 0.5 * advantage.upper, rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, math.nan, "x", None])
def test_bad_probabilities_are_named(value):
    m = shoal.LocalGaussian(sigma=1.0)
    with pytest.raises(shoal.ShoalError, match=r"^prior must "):
        bayes_accuracy(m, prior=value)
    with pytest.raises(shoal.ShoalError, match=r"^baseline must "):
        guessing(m, baseline=value)


def test_other_bad_input():
    with pytest.raises(shoal.ShoalError, match=r"^source must be a shoal mechanism or an accountant, got 3$"):
        bayes_accuracy(3)
    with pytest.raises(shoal.ShoalError, match=r"^rounds must be 1 for an accountant, which counts its own, got 2$"):
        guessing(shoal.Accountant().compose(shoal.LocalGaussian(sigma=1.0)), baseline=0.1, rounds=2)

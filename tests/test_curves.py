"""Whole curves and their Gaussians: closed forms, mpmath, other libraries, and laws."""

import csv
import io
import json
import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import special

from helpers import run
from shoal import Accountant, BallsAndBins, LocalGaussian, PoissonSampling, Shuffle
from shoal.adapters.opendp import privacy_profile
from shoal.curves import gaussian_fit, privacy_curve
from shoal.errors import InvalidInput

SHUFFLE = Shuffle(users=1_000, sigma=3.0, crowd="identical")
POISSON = PoissonSampling(rate=0.01, sigma=1.0)


def gaussian_power(fpr, mu):
    # 2 fpr - 1 cancels: forty digits.
    with mpmath.workdps(40):
        return mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(fpr) - 1) + mu)


def gaussian_delta(epsilon, mu):
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def test_a_plain_report_is_its_own_gaussian():
    """At 25 widths mu is 2 sqrt(T) / sigma, and at 50 points the curve is that of mpmath."""
    random = np.random.default_rng(1)
    for sigma, rounds in zip(random.uniform(0.5, 20.0, 25), random.integers(1, 50, 25), strict=True):
        fit = gaussian_fit(LocalGaussian(sigma=sigma, adjacency="replace"), rounds=int(rounds))
        mu = 2.0 * math.sqrt(rounds) / sigma
        assert mu <= fit.mu <= mu * (1.0 + 1e-8)
        assert fit.regret < 3e-3 * (1.0 + mu)
    mu = 0.7
    curve = privacy_curve(
        LocalGaussian(sigma=1.0 / mu), epsilons=np.linspace(0.0, 4.0, 25), rates=np.geomspace(1e-9, 0.9, 25)
    )
    for row in curve.rows():
        exact = (gaussian_delta if row["number"] == "delta" else gaussian_power)(row["value"], mpmath.mpf(mu))
        assert row["lower"] <= float(exact) * (1.0 + 1e-12)
        assert row["upper"] >= float(exact) * (1.0 - 1e-12)
        assert row["upper"] - row["lower"] < 1e-6


@pytest.mark.parametrize(
    ("source", "rounds", "reveal"),
    [(SHUFFLE, 100, 1e-8), (POISSON, 1_000, 1e-7), (BallsAndBins(bins=100, sigma=1.0), 5, 1e-6), (POISSON, 3, 0.0)],
)
def test_the_gaussian_dominates_at_every_epsilon_and_rate(source, rounds, reveal):
    fit = gaussian_fit(source, rounds=rounds, reveal=reveal)
    curve = privacy_curve(source, rounds=rounds, rates=np.geomspace(1e-7, 0.99, 30))
    power = reveal + (1.0 - reveal) * special.ndtr(
        special.ndtri(np.minimum(np.array(curve.rates) / (1.0 - reveal), 1.0)) + fit.mu
    )
    lower = np.array([interval.lower for interval in curve.powers])
    assert np.all(lower <= power * (1.0 + 1e-9))
    for epsilon, delta in zip(curve.epsilons, curve.deltas, strict=True):
        assert delta.lower <= reveal + (1.0 - reveal) * float(gaussian_delta(epsilon, fit.mu)) * (1.0 + 1e-9)
    # The regret closes the gap: with it no claimed power is above what some test reaches.
    for rate, claimed in zip(curve.rates, power, strict=True):
        if rate + fit.regret < 1.0:
            assert source.tradeoff(rate + fit.regret, rounds=rounds).upper + fit.regret >= claimed - 1e-9


def test_more_revealing_needs_less_width_and_more_rounds_more():
    widths = [gaussian_fit(SHUFFLE, rounds=100, reveal=reveal).mu for reveal in (0.0, 1e-12, 1e-8, 1e-4)]
    assert widths == sorted(widths, reverse=True)
    rising = [gaussian_fit(SHUFFLE, rounds=rounds, reveal=1e-8).mu for rounds in (1, 10, 100)]
    assert rising == sorted(rising)
    # Many rounds are nearly Gaussian, so little is overstated; one round is not.
    assert gaussian_fit(SHUFFLE, rounds=100, reveal=1e-8).regret < 1e-3
    assert gaussian_fit(POISSON, rounds=1_000).regret > 0.1


def test_a_curve_goes_through_the_answers(tmp_path):
    ledger = Accountant().compose(SHUFFLE, rounds=10)
    curve = privacy_curve(ledger, epsilons=[0.1], rates=[0.01])
    assert curve.deltas[0] == SHUFFLE.delta(epsilon=0.1, rounds=10)
    rows = list(csv.DictReader(io.StringIO(curve.to_csv())))
    assert [row["number"] for row in rows] == ["delta", "tpr"]
    assert float(rows[1]["upper"]) == SHUFFLE.tradeoff(0.01, rounds=10).upper
    default = privacy_curve(SHUFFLE, rounds=10)
    assert default.deltas[-1].upper == pytest.approx(1e-12, rel=0.2)
    assert all(a.upper >= b.upper for a, b in zip(default.deltas, default.deltas[1:], strict=False))
    with pytest.raises(InvalidInput, match=r"reveal must be at least 0 and below 1, got 1\.0"):
        gaussian_fit(SHUFFLE, reveal=1.0)
    with pytest.raises(InvalidInput, match="rounds must be 1 for an accountant, which counts its own, got 2"):
        privacy_curve(ledger, rounds=2)


@pytest.mark.parametrize(("source", "rounds"), [(SHUFFLE, 100), (POISSON, 1_000), (LocalGaussian(sigma=2.0), 3)])
def test_a_composition_as_a_distribution(source, rounds):
    """dp_accounting reads from the exported composition what the package says, from above."""
    loss = source.pld(rounds=rounds, step=1e-3)
    for delta in (1e-3, 1e-6, 1e-10):
        ours, theirs = source.epsilon(delta=delta, rounds=rounds), loss.get_epsilon_for_delta(delta)
        assert ours.lower <= theirs <= ours.upper * (1.0 + 1e-3)
    for epsilon in (0.0, 0.1, 0.3):
        exact = source.delta(epsilon=epsilon, rounds=rounds)
        assert exact.lower <= loss.get_delta_for_epsilon(epsilon) <= exact.upper * 1.01
    # It composes with dp_accounting's own.
    other = privacy_loss_distribution.from_gaussian_mechanism(5.0, value_discretization_interval=1e-3)
    both = Accountant().compose(source, rounds=rounds).compose(LocalGaussian(sigma=5.0)).epsilon(delta=1e-6)
    assert both.lower <= loss.compose(other).get_epsilon_for_delta(1e-6) <= both.upper * 1.01
    with pytest.raises(InvalidInput, match=r"step must be at least .* for losses up to .*, got 1e-09"):
        source.pld(rounds=rounds, step=1e-9)


@pytest.mark.parametrize("m", [LocalGaussian(sigma=0.02), PoissonSampling(rate=1e-3, sigma=0.05)])
def test_a_composition_without_a_law_is_refused(m):
    with pytest.raises(InvalidInput, match="sigma must be large enough, and rounds few enough, for a composed law"):
        m.pld(rounds=3)


def test_a_profile_of_opendp():
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")
    profile = privacy_profile(SHUFFLE, rounds=100)
    exact = SHUFFLE.epsilon(delta=1e-6, rounds=100)
    assert exact.lower <= profile.epsilon(1e-6) <= exact.upper * 1.001
    assert profile.delta(0.3) == SHUFFLE.delta(epsilon=0.3, rounds=100).upper


def test_the_command_writes_curves(tmp_path):
    options = ("curve", "shuffle", "--users", "1000", "--sigma", "3", "--crowd", "identical", "--rounds", "100")
    printed = run(*options)
    assert printed.exit_code == 0
    file = tmp_path / "curve.json"
    result = run(*options, "--out", str(file), "--reveal", "1e-8")
    assert result.exit_code == 0, result.output
    assert "Gaussian DP with μ = 0.10842" in " ".join(result.output.split())
    data = json.loads(file.read_text())
    assert data["gaussian"]["mu"] == gaussian_fit(SHUFFLE, rounds=100, reveal=1e-8).mu
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    assert [float(row["upper"]) for row in rows] == [point["upper"] for point in data["points"]]
    refused = run(*options, "--out", "curve.txt")
    assert refused.exit_code == 2
    assert "out must end in .csv or .json, got 'curve.txt'" in refused.stderr

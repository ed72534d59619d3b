"""Composition, the questions asked of it, and what other methods say of the same rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from helpers import described, reference
from shoal import Shuffle
from shoal.bounds import certify, composition, moments
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical
from shoal.interval import Interval

REFERENCES = reference("hockey_sticks")
DIRECTIONS = ("forward", "reverse")


def epsilon(mean: Identical, delta: float, rounds: int = 1, accuracy: float = 1e-3) -> Interval:
    return certify.epsilons(((mean, rounds),), [delta], accuracy)[0]


def gaussian_delta(width: float, eps: float) -> float:
    return float(special.ndtr(width / 2 - eps / width) - np.exp(eps + special.log_ndtr(-width / 2 - eps / width)))


@pytest.mark.parametrize(
    ("mean", "delta", "rounds", "value"),
    [
        (described(60_000, 9.48), 1 / 60_000, 1, 0.00059456),
        (described(60_000, 9.48), 1 / 60_000, 7, 0.0020473),
        (described(1000, 1.0), 1e-6, 1, 0.171729),
        (described(1000, 0.5), 1e-6, 1, 4.1060),
        (described(10**7, 0.3), 1e-12, 1, 12.3492),
        (described(60_000, 9.48), 1 / 60_000, 10**6, 1.63897),
        (described(60_000, 5.0, 0.1), 1 / 60_000, 5_540, 0.05381),
        (described(60_000, 5.0, 0.1), 1e-5, 5_540, 0.05674),
        (described(1000, 2.0), 1e-6, 1, 0.05923),
    ],
)
def test_known_values(mean: Identical, delta: float, rounds: int, value: float) -> None:
    found = epsilon(mean, delta, rounds)
    digits = 0.6 * 10.0 ** (math.floor(math.log10(value)) - 3)
    assert found.lower - digits <= value <= found.upper + digits
    assert found.width <= 1e-3 * found.upper


@pytest.mark.parametrize("reference", REFERENCES[::3], ids=lambda r: f"{r['users']}-{r['scale']}-{r['epsilon']:.3g}")
def test_delta_of_one_round_brackets_high_precision_values(reference: dict[str, Any]) -> None:
    r = reference
    mean = described(r["users"], r["scale"], r["rate"], r["weight"])
    found = certify.deltas(((mean, 1),), [r["epsilon"]], direction=r["direction"])[0]
    assert found.lower <= r["delta"] <= found.upper


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("scale", "rounds"), [(1.0, 1), (1.0, 10), (0.5, 3), (5.0, 30), (10.0, 1000), (2000.0, 10**6)])
def test_the_general_method_brackets_the_gaussian_mechanism(scale: float, rounds: int, direction: Any) -> None:
    """One report has a closed form for any number of rounds, which the laws and compositions must meet."""
    width = math.sqrt(rounds) / scale
    together = composition.Composition(parts=((described(1, scale), rounds),), half=512, budget=1e-24)
    for z in (-0.5, 0.5, 2.0, 4.0, 6.5):
        eps = max(0.0, width**2 / 2 + z * width)
        truth = gaussian_delta(width, eps)
        curves = together.curves(direction)
        lower, upper = curves["lower"].delta(eps), curves["upper"].delta(eps)
        assert lower <= truth * (1 + 1e-9)
        assert truth <= upper * (1 + 1e-9)
        assert upper - lower <= 0.03 * upper
        curves = together.near_delta(direction, truth)
        assert curves["lower"].epsilon(truth) <= eps + 1e-9
        assert eps <= curves["upper"].epsilon(truth) + 1e-9


def test_the_gaussian_mechanism_is_exact() -> None:
    for scale, rounds, delta in [(1.0, 1, 1e-6), (0.3, 5, 1e-12), (1000.0, 10, 1e-3), (5.0, 10**6, 1e-9)]:
        found = epsilon(described(1, scale), delta, rounds)
        assert found.width <= 1e-8 * found.upper
        width = math.sqrt(rounds) / scale
        assert gaussian_delta(width, found.upper) <= delta * (1 + 1e-9)
        assert gaussian_delta(width, found.lower) >= delta * (1 - 1e-9)
    one = certify.deltas(((described(1, 1.0), 1),), [4.0])[0]
    assert one.lower <= 4.71224120079312e-5 <= one.upper
    assert one.width < 1e-9 * one.upper


def test_delta_is_never_reported_as_zero() -> None:
    for mean, rounds, eps in [
        (described(1, 50.0), 3, 40.0),
        (described(100, 5.0), 1, 200.0),
        (described(9, 2.0), 7, 90.0),
    ]:
        found = certify.deltas(((mean, rounds),), [eps])[0]
        assert 0.0 == found.lower < found.upper <= 1e-20


def test_one_user_with_a_coin_is_not_the_gaussian_mechanism() -> None:
    """delta(eps) of one thinned report is rate times that of the report."""
    for direction in DIRECTIONS:
        found = certify.deltas(((described(1, 1.0, 0.1), 1),), [2.0], direction=direction)[0]  # type: ignore[arg-type]
        assert found.lower <= 0.1 * gaussian_delta(1.0, 2.0) <= found.upper < 0.11 * gaussian_delta(1.0, 2.0)


def test_different_rounds_compose_like_the_gaussian_mechanism() -> None:
    parts = ((described(1, 2.0), 3), (described(1, 7.0), 50), (described(1, 1.5, 0.999999999), 1))
    width = math.sqrt(3 / 4 + 50 / 49 + 1 / 2.25)
    for eps in (0.5, 3.0, 8.0):
        found = certify.deltas(parts, [eps])[0]
        truth = gaussian_delta(width, eps)
        assert found.lower * (1 - 1e-6) <= truth <= found.upper * (1 + 1e-6)
        assert found.width < 0.05 * found.upper


def test_equal_rounds_are_counted_once_however_they_are_listed() -> None:
    mean = described(100, 2.0)
    assert certify.epsilons(((mean, 3), (mean, 4)), [1e-6]) == certify.epsilons(((mean, 7),), [1e-6])


@pytest.mark.parametrize("mean", [described(1000, 1.0), described(10, 0.5), described(60_000, 5.0, 0.1)], ids=str)
def test_epsilon_and_delta_are_inverse(mean: Identical) -> None:
    for rounds in (1, 20, 5000):
        parts = ((mean, rounds),)
        for delta in (1e-3, 1e-8, 1e-12):
            eps = certify.epsilons(parts, [delta])[0]
            at_lower, at_upper = certify.deltas(parts, [eps.lower, eps.upper])
            assert at_upper.lower <= delta * (1 + 1e-6)
            assert at_lower.upper >= delta * (1 - 1e-6) or eps.lower == 0.0


def test_privacy_is_monotone_in_users_scale_and_rounds() -> None:
    chains = [
        [(described(n, 1.0), 10) for n in (1000, 300, 100, 30, 10, 3, 2, 1)],
        [(described(100, s), 10) for s in (50.0, 5.0, 2.0, 1.0, 0.5, 0.3)],
        [(described(100, 2.0), t) for t in (1, 2, 3, 10, 63, 64, 65, 127, 128, 129, 1000, 4097, 10**5)],
        [(described(100, 2.0, g), 10) for g in (1e-3, 0.1, 0.5, 1.0)],
    ]
    for chain in chains:
        before = 0.0
        for mean, rounds in chain:
            found = epsilon(mean, 1e-8, rounds)
            assert found.upper >= before
            assert found.width <= 1e-3 * found.upper
            before = found.lower


def test_one_law_answers_many_questions() -> None:
    mean = described(1000, 1.0)
    curve = Shuffle(users=1000, sigma=1.0, crowd="identical").epsilon(delta=1e-6, rounds=[1, 10, 100])
    assert curve.tolist() == [epsilon(mean, 1e-6, t) for t in (1, 10, 100)]
    many = certify.epsilons(((mean, 10),), [1e-3, 1e-6, 1e-9])
    assert [i.lower for i in many] == sorted(i.lower for i in many)


def test_finer_answers_lie_in_coarser_ones() -> None:
    for mean, rounds in [(described(1000, 1.0), 1), (described(60_000, 9.48), 1000), (described(10, 0.3), 30)]:
        coarse, fine = epsilon(mean, 1e-7, rounds, 1e-2), epsilon(mean, 1e-7, rounds, 1e-4)
        assert fine.width <= 1e-4 * fine.upper
        assert coarse.lower <= fine.upper
        assert fine.lower <= coarse.upper


def test_the_worse_direction_is_the_larger_of_the_two() -> None:
    parts = ((described(10, 1.0), 5),)
    forward, reverse, worse = (certify.epsilons(parts, [1e-6], direction=d)[0] for d in ("forward", "reverse", "worse"))  # type: ignore[arg-type]
    assert worse.upper == max(forward.upper, reverse.upper)
    assert reverse.upper < forward.lower


def renyi_epsilon(mean: Identical, rounds: int, delta: float) -> float:
    """The forward RDP guarantee over whole orders."""
    k = np.arange(2.0, 257.0)
    curve = rounds * moments.log_moments(mean, 256)[2:] / (k - 1)
    return float(np.min(curve + np.log1p(-1 / k) - np.log(delta * k) / (k - 1)))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    users=st.one_of(st.integers(1, 100), st.integers(100, 10**8)),
    scale=st.floats(-0.7, 3.0).map(lambda x: 10.0**x),
    rate=st.one_of(st.just(1.0), st.floats(-6.0, 0.0).map(lambda x: 10.0**x)),
    weight=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    rounds=st.one_of(st.just(1), st.floats(0.0, 5.0).map(lambda x: int(10.0**x))),
    delta=st.floats(-12.0, -1.0).map(lambda x: 10.0**x),
)
def test_brackets_are_in_order_and_agree_with_other_bounds(
    users: int, scale: float, rate: float, weight: float, rounds: int, delta: float
) -> None:
    mean = described(users, scale, rate, weight)
    found = epsilon(mean, delta, rounds)  # lower > upper would raise
    local = epsilon(described(1, scale), delta, rounds)
    assert found.upper <= local.upper
    # Where delta is very close to the total variation distance eps is nearly 0, and its relative width means little.
    assert found.width <= 1e-3 * found.upper + 1e-5 * delta
    forward = certify.epsilons(((mean, rounds),), [delta], direction="forward")[0]
    renyi = max(0.0, renyi_epsilon(mean, rounds, delta))
    assert forward.lower <= renyi
    assert forward.upper <= renyi * (1 + 1e-3)


@pytest.mark.parametrize("rounds", [1, 1000])
@pytest.mark.parametrize("rate", [1.0, 0.1, 0.001])
@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("users", [1, 10, 1000, 10**7])
def test_the_accuracy_asked_for_is_reached(users: int, scale: float, rate: float, rounds: int) -> None:
    found = epsilon(described(users, scale, rate), 1e-6, rounds)
    assert found.width <= 1e-3 * found.upper


@pytest.mark.parametrize(("users", "scale", "eps"), [(5, 1.0, 1.0), (3, 0.5, 3.0)])
def test_ten_million_draws_do_not_contradict(users: int, scale: float, eps: float) -> None:
    """Monte Carlo means of both hockey sticks, within five standard errors."""
    rng = np.random.default_rng(7)
    draws, chunks = 10**6, 10
    sums = {d: np.zeros(2) for d in DIRECTIONS}
    for _ in range(chunks):
        s = np.exp(rng.standard_normal((users, draws)) / scale - 0.5 / scale**2).mean(axis=0)
        sticks = {"forward": np.maximum(s - math.exp(eps), 0), "reverse": np.maximum(1 - math.exp(eps) * s, 0)}
        for direction, values in sticks.items():
            sums[direction] += [values.sum(), (values**2).sum()]
    for direction, (total, squares) in sums.items():
        mean = total / (draws * chunks)
        error = 5 * math.sqrt(squares / (draws * chunks) - mean**2) / math.sqrt(draws * chunks)
        found = certify.deltas(((described(users, scale), 1),), [eps], direction=direction)[0]  # type: ignore[arg-type]
        assert found.lower - error <= mean <= found.upper + error
        assert error < 0.1 * mean


@pytest.mark.parametrize("rounds", [1, 9, 400])
def test_the_tradeoff_curve_brackets_the_gaussian_one(rounds: int) -> None:
    scale = 3.0 * math.sqrt(rounds)
    parts = ((described(1, scale, 1 - 1e-12), rounds),)
    fprs = [1e-6, 1e-3, 0.05, 0.3, 0.5, 0.9, 0.999]
    for fpr, found in zip(fprs, certify.powers(parts, fprs), strict=True):
        truth = float(special.ndtr(special.ndtri(fpr) + 1 / 3))
        assert found.lower * (1 - 1e-9) <= truth <= found.upper * (1 + 1e-9)
        assert found.width <= 2e-3 * found.upper
    advantage = certify.advantage(parts)
    truth = gaussian_delta(1 / 3, 0.0)
    assert advantage.lower * (1 - 1e-9) <= truth <= advantage.upper * (1 + 1e-9)
    exact = certify.powers(((described(1, scale), rounds),), [0.05])[0]
    assert exact.width < 1e-12


def thinned_power(width: float, rate: float, rounds: int, fpr: float) -> float:
    """One thinned report a round: given k reports a Gaussian pair of width sqrt(k) w, k seen by all.

    The best test has one slope of the trade-off curve for every k, found by bisection.
    """
    k = np.arange(rounds + 1)
    log_weights = special.gammaln(rounds + 1) - special.gammaln(k + 1) - special.gammaln(rounds - k + 1)
    weights = np.exp(log_weights + k * math.log(rate) + (rounds - k) * math.log1p(-rate))
    widths = np.sqrt(np.maximum(k, 1e-12)) * width
    low, high = -500.0, 500.0
    for _ in range(200):
        loss = 0.5 * (low + high)
        false = float(weights @ special.ndtr(-widths / 2 - loss / widths))
        low, high = (loss, high) if false > fpr else (low, loss)
    return float(weights @ special.ndtr(widths / 2 - high / widths))


@pytest.mark.parametrize(
    ("scale", "rate", "rounds", "fpr"),
    [
        (0.44, 0.45, 37, 1e-5),
        (0.5935079341702821, 0.595710699450209, 51, 2.4164040581365967e-08),
        (1.4026170090580965, 0.9164822085596203, 198, 5.652670030571744e-10),
        (2.0, 0.3, 40, 0.01),
    ],
)
def test_the_tradeoff_of_one_thinned_report(scale: float, rate: float, rounds: int, fpr: float) -> None:
    """Wide separations, where base and top masses differ by many orders of magnitude."""
    found = certify.powers(((described(1, scale, rate), rounds),), [fpr], direction="forward")[0]
    truth = thinned_power(1 / scale, rate, rounds, fpr)
    assert found.lower <= truth * (1 + 1e-7)
    assert truth <= found.upper * (1 + 1e-7)


@pytest.mark.parametrize("rounds", [1, 30, 5_000, 10**6])
def test_one_thinned_report_for_any_number_of_rounds(rounds: int) -> None:
    """delta(eps) = sum_k Bin(T, rate)(k) delta_Gauss(eps; sqrt(k) / s): exact, for every T."""
    for scale, rate in [(0.5, 0.1), (5.0, 0.3), (50.0, 0.01), (300.0, 0.9)]:
        spread = 12 * math.sqrt(rounds * rate) + 40
        k = np.arange(max(1, math.floor(rounds * rate - spread)), min(rounds, math.ceil(rounds * rate + spread)) + 1)
        log_weights = special.gammaln(rounds + 1) - special.gammaln(k + 1) - special.gammaln(rounds - k + 1)
        weights = np.exp(log_weights + k * math.log(rate) + (rounds - k) * math.log1p(-rate))
        widths = np.sqrt(k) / scale
        for z in (0.5, 3.0):
            eps = rate * rounds / scale**2 / 2 + z * math.sqrt(rate * rounds) / scale
            first = special.ndtr(widths / 2 - eps / widths)
            truth = float(weights @ (first - np.exp(eps + special.log_ndtr(-widths / 2 - eps / widths))))
            for direction in DIRECTIONS:
                found = certify.deltas(((described(1, scale, rate), rounds),), [eps], direction=direction)[0]  # type: ignore[arg-type]
                assert found.lower <= truth * (1 + 1e-7)
                assert truth <= found.upper * (1 + 1e-7)


def test_the_local_guarantee_of_extreme_rounds_is_finite() -> None:
    found = epsilon(described(1, 1e-4), 1e-5, 10**12)
    assert 5e19 < found.upper < 5.1e19


def test_the_tradeoff_curve_is_no_worse_than_epsilon_and_delta_say() -> None:
    parts = ((described(1000, 1.0), 20),)
    delta = certify.deltas(parts, [0.5])[0].upper
    for fpr, found in zip((1e-4, 0.01, 0.5), certify.powers(parts, [1e-4, 0.01, 0.5]), strict=True):
        assert fpr <= found.lower <= math.exp(0.5) * fpr + delta


def test_scales_out_of_range_get_the_local_guarantee() -> None:
    mean = described(100, 0.05)
    found = epsilon(mean, 1e-6)
    assert found == Interval(lower=0.0, upper=epsilon(described(1, 0.05), 1e-6).upper)
    assert certify.deltas(((mean, 1),), [1.0])[0].upper <= 1.0
    assert certify.powers(((mean, 1),), [0.1])[0].lower == 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: certify.epsilons((), [1e-6]), "parts must not be empty"),
        (lambda m: certify.epsilons(((m, 0),), [1e-6]), "rounds must be at least 1"),
        (lambda m: certify.epsilons(((m, 1),), [0.0]), "delta must lie strictly between 0 and 1"),
        (lambda m: certify.deltas(((m, 1),), [-1.0]), "epsilon must be at least 0"),
        (lambda m: certify.epsilons(((m, 1),), [1e-6], 0.0), "accuracy must be positive"),
        (lambda m: certify.epsilons(((m, 1),), [1e-6], direction="both"), "direction must be one of"),
        (lambda m: certify.powers(((m, 1),), [1.0]), "fpr must lie strictly between 0 and 1"),
    ],
)
def test_bad_questions_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(described(10, 1.0))


@pytest.mark.parametrize(
    ("users", "scale", "rate", "weight", "rounds", "fpr"),
    [
        (3, 13.945402, 1.0, 1.0, 1, 1.95e-11),
        (5612, 608.98, 1.0, 1.0, 1088, 2.8356e-8),
        (1, 12.3472, 1.0, 1.0 / 3.0, 685, 2.96e-9),
        (31_305_359, 40.8, 1.0, 1.0, 15_887, 2.77e-7),
        (10, 1.0, 0.1, 1.0, 30, 0.3),
    ],
)
def test_mixtures_of_tests_are_as_good_as_the_bound(
    users: int, scale: float, rate: float, weight: float, rounds: int, fpr: float
) -> None:
    """Poor tests between good ones do not count: the true positive rate has the accuracy asked for."""
    mean = Identical(ratio=Lognormal(scale=scale, rate=rate), users=users, weight=weight)
    for accuracy in (1e-3, 1e-4):
        found = certify.powers(((mean, rounds),), [fpr], accuracy)[0]
        assert fpr < found.lower
        assert found.width <= accuracy * found.upper


def test_the_hull_of_points() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.random(300), rng.random(300)
    corners = certify._concave_hull(np.append(x, [0.0, 1.0]), np.append(y, [0.0, 1.0]))
    assert np.all(np.diff(corners[0]) > 0.0)
    assert np.all(np.diff(np.diff(corners[1]) / np.diff(corners[0])) <= 1e-12)
    assert np.all(np.interp(x, *corners) >= y - 1e-12)
    assert set(corners[0]) <= {*x, 0.0, 1.0}

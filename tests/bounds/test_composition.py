"""Composition against brute force, simulation, limits and the laws it must obey."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import interpolate, optimize, special

from helpers import described
from shoal.bounds import certify, composition
from shoal.bounds.mean_law import Pair, mean_law
from shoal.bounds.numeric import Direction, FloatArray, Side
from shoal.bounds.round import Identical, Round

DIRECTIONS: tuple[Direction, Direction] = ("forward", "reverse")
BUDGET = 1e-24
RARE = [
    # few reports a round, or sums of many whose rare large ratios matter: two scales of loss in one law
    (1000, 0.4, 0.001),
    (2_769_998, 0.636797, 0.00903227),
    (10**7, 0.5, 1.0),
    (60_000, 0.3, 0.001),
]


def twice(pair: Pair, epsilon: float) -> float:
    """delta of two rounds by all pairs of atoms."""
    loss = np.add.outer(pair.loss, pair.loss)
    excess = np.multiply.outer(pair.top, pair.top) * -np.expm1(np.minimum(epsilon - loss, 0.0))
    return float(excess.sum()) + 2.0 * pair.infinite


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "kind", [*RARE, (3, 1.0, 1.0), (60_000, 9.48, 1.0), (1, 0.5, 0.3), (10**8, 300.0, 1e-4)], ids=str
)
def test_two_rounds_lie_outside_the_products_of_their_atoms(
    kind: tuple[int, float, float], direction: Direction
) -> None:
    """From above the grid may only raise what the atoms of one law give, from below only lower it."""
    mean = described(*kind)
    curves = composition.Composition(parts=((mean, 2),), half=32, budget=BUDGET).curves(direction)
    law = mean_law(mean, 32, BUDGET)
    spread = float(law.mass @ np.abs(law.loss["upper"]).clip(max=50.0))
    for eps in (0.0, 0.3 * spread, spread, 3.0 * spread, 5.0 * spread, 30.0 * spread):
        exact = {side: twice(law.pair(side, direction), eps) for side in composition.SIDES}
        lower, upper = curves["lower"].delta(eps), curves["upper"].delta(eps)
        assert lower <= max(0.0, exact["lower"]) * (1 + 1e-12) + 1e-22
        assert upper >= min(1.0, exact["upper"]) * (1 - 1e-12) - 1e-22
        assert upper - exact["upper"] <= 0.5 * upper + 1e-18
        assert exact["lower"] - lower <= 0.5 * upper + 1e-18


@pytest.mark.parametrize("wrong", ["half and half", "w stays"])
def test_unfair_shares_are_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(self: Any, offset: Any, width: Any) -> Any:
        right = offset / width
        if wrong == "half and half":  # keeps the mean loss, not the mean ratio: too small from above
            return composition.Share(1.0 - right, 1.0 - right, 0.0), composition.Share(right, right, 0.0)
        a = np.expm1(-offset) / np.expm1(-width)
        return composition.Share(1.0 - a, 1.0 - a, 0.0), composition.Share(a, a, 0.0)

    monkeypatch.setattr(composition._LossRule, "shares", shares)
    for cached in (composition._round_on_grid, composition._doubled, composition._composed_curves):
        cached.cache_clear()
    noticed = 0
    for direction in DIRECTIONS:
        try:
            test_two_rounds_lie_outside_the_products_of_their_atoms((1, 0.5, 0.3), direction)
        except AssertionError:
            noticed += 1
    assert noticed
    monkeypatch.undo()
    for cached in (composition._round_on_grid, composition._doubled, composition._composed_curves):
        cached.cache_clear()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sharing_keeps_both_masses(direction: Direction) -> None:
    rng = np.random.default_rng(3)
    for width in (1e-9, 1e-3, 1.0, 30.0):
        offset = width * rng.random(50)
        u, w = rng.random(50), 0.1 * rng.standard_normal(50)
        left, right = composition._LossRule(direction=direction).shares(offset, width)
        masses = [share.mass * u for share in (left, right)]
        moments = [share.moment * w + share.lift * u for share in (left, right)]
        places = (-offset, width - offset)
        assert sum(masses) == pytest.approx(u, rel=1e-14)
        assert sum(m * np.exp(-y) for m, y in zip(masses, places, strict=True)) == pytest.approx(u, rel=1e-12)
        if direction == "forward":  # top mass from below
            assert sum(moments) == pytest.approx(w, abs=1e-14)
        else:  # base mass from below
            kept = sum((m + q) * np.exp(-y) for m, q, y in zip(masses, moments, places, strict=True))
            assert kept == pytest.approx(u + w, rel=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_offsets_or_whole_masses_tell_the_same(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ((described(1000, 1.0), 300),)
    found = []
    for large in (1e9, 1e-9):
        monkeypatch.setattr(composition, "_LOWER_MASSES_ABOVE_LOSS", large)
        composition._doubled.cache_clear()
        composition._composed_curves.cache_clear()
        curve = composition.Composition(parts=parts, half=128, budget=BUDGET).near_delta(direction, 1e-8)["lower"]
        found.append([curve.epsilon(d) for d in (1e-8, 1e-4, 1e-2)])
    composition._doubled.cache_clear()
    composition._composed_curves.cache_clear()
    assert found[0] == pytest.approx(found[1], rel=1e-8)


class _Pairs(Round):
    """A round that hands out the pairs of another."""

    def __init__(self, mean: Identical) -> None:
        self.mean, self.ratio, self.users, self.weight = mean, mean.ratio, mean.users, mean.weight

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        return mean_law(self.mean, half, budget).pair(side, direction)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 0.0, 1.0

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise NotImplementedError

    def limited(self) -> Round:
        return self


@pytest.mark.parametrize("kind", [(1000, 1.0, 1.0), (2_769_998, 0.636797, 0.00903227)], ids=str)
def test_rounds_that_bring_their_pairs(kind: tuple[int, float, float]) -> None:
    mean = described(*kind)
    for rounds in (1, 2, 77):
        own, other = (certify.epsilons(((m, rounds),), [1e-9])[0] for m in (mean, _Pairs(mean)))
        assert own.lower <= other.upper
        assert other.lower <= own.upper
        assert other.width <= 1e-3 * other.upper


@pytest.mark.parametrize(("scale", "rounds", "eps"), [(0.5, 30, 1.0), (0.4, 60, 2.0), (1.0, 100, 0.5)])
def test_simulated_rounds_with_rare_reports_do_not_contradict(scale: float, rounds: int, eps: float) -> None:
    """20 users of whom about one takes part: losses near 0 or large. Means under P, and under Q."""
    users, rate, draws = 20, 0.05, 40_000
    rng = np.random.default_rng(5)
    for direction in DIRECTIONS:
        loss = np.zeros(draws)
        for _ in range(rounds):
            others = rng.binomial(users - 1, rate, draws)
            mine = rng.random(draws) < rate
            total = np.zeros(draws)
            for k in range(int(others.max()) + 1):
                active = others > k
                total[active] += np.exp(rng.standard_normal(int(active.sum())) / scale - 0.5 / scale**2) - 1.0
            shift = 1.0 / scale if direction == "forward" else 0.0
            mean = np.exp((rng.standard_normal(int(mine.sum())) + shift) / scale - 0.5 / scale**2) - 1.0
            total[mine] += mean
            loss += np.log1p(total / users)
        if direction == "reverse":
            loss = -loss
        values = -np.expm1(np.minimum(eps - loss, 0.0))
        error = 5.0 * float(values.std()) / math.sqrt(draws)
        found = certify.deltas(((described(users, scale, rate), rounds),), [eps], direction=direction)[0]
        assert found.lower - error <= float(values.mean()) <= found.upper + error
        if direction == "forward":
            assert 0.0 < error < 0.5 * float(values.mean())


@pytest.mark.parametrize(
    ("users", "scale", "rate", "rounds", "delta"),
    [
        (2_769_998, 0.636797, 0.00903227, 32, 6.59e-12),
        (73_000_000, 0.62, 1.0, 2, 1.5e-12),
        (10**7, 50.0, 0.001, 1000, 1e-6),
        (10**7, 0.5, 0.001, 1000, 1e-6),
        (10**8, 1000.0, 1e-4, 10**5, 1e-9),
        (1, 0.2, 0.5, 10**6, 1e-12),
        # Rare rounds of few and of many users, very many of them
        (10, 1.0, 1e-6, 10**6, 0.1),
        (10, 5.0, 0.001, 10**6, 0.1),
        (10**8, 5.0, 1e-6, 10**6, 1e-6),
        (10**8, 1.0, 1e-6, 10**6, 1e-12),
        (10**8, 1000.0, 1e-6, 10**6, 1e-12),
        (10**5, 1000.0, 1e-6, 10**6, 1e-6),
        (1000, 0.2, 1e-6, 100, 1e-12),
    ],
)
def test_an_accuracy_of_a_ten_thousandth_is_reached(
    users: int, scale: float, rate: float, rounds: int, delta: float
) -> None:
    found = certify.epsilons(((described(users, scale, rate), rounds),), [delta], 1e-4)[0]
    assert 0.0 < found.width <= 1e-4 * found.upper


def test_tiny_epsilons_of_many_rounds_meet_the_normal_limit() -> None:
    """Some 10^10 reports: the loss is normal, eps that of a Gaussian mechanism of the same variance."""
    users, scale, rate = 10**7, 50.0, 0.001
    for rounds in (1000, 10**6):
        width = math.sqrt(rounds * rate * math.expm1(scale**-2) / users)

        def excess(eps: float, width: float = width) -> float:
            first = special.ndtr(width / 2 - eps / width)
            return float(first - math.exp(eps) * special.ndtr(-width / 2 - eps / width)) - 1e-6

        limit = optimize.brentq(excess, 1e-9, 20 * width, xtol=1e-18, rtol=1e-12)
        found = certify.epsilons(((described(users, scale, rate), rounds),), [1e-6])[0]
        assert found.lower * (1 - 1e-4) <= limit <= found.upper * (1 + 1e-4)
        assert found.width <= 1e-3 * found.upper


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_plain_transform_of_the_exported_round_agrees(direction: Direction) -> None:
    """An FFT of the round on a fine uniform lattice: no bound, but an independent way."""
    mean, rounds, step = described(300, 2.0), 500, 2e-4
    start, masses, _ = composition.upper_lattice(mean, 512, direction, step)
    length = 1 << 17
    spectrum = np.fft.rfft(masses, length) ** rounds
    top = np.maximum(np.fft.irfft(spectrum, length), 0.0)
    # the window that wraps around is where the bulk is
    index = np.arange(length)
    centre = round(rounds * float(masses @ np.arange(len(masses))) / float(masses.sum()))
    index = index + np.rint((centre - index) / length).astype(int) * length
    loss = step * (index + rounds * start)
    curves = composition.Composition(parts=((mean, rounds),), half=512, budget=BUDGET).curves(direction)
    for eps in (0.2, 0.5, 0.9):
        value = float((top * -np.expm1(np.minimum(eps - loss, 0.0))).sum())
        assert curves["lower"].delta(eps) <= value * (1 + 1e-6)
        assert value <= curves["upper"].delta(eps) * 1.02


def test_brackets_that_do_not_overlap_are_an_error() -> None:
    one, other = certify.Interval(lower=1.0, upper=2.0), certify.Interval(lower=2.1, upper=3.0)
    with pytest.raises(ArithmeticError, match="please report"):
        certify._intersection(one, other)
    touching = certify.Interval(lower=2.0 * (1 + 1e-14), upper=3.0)
    assert certify._intersection(one, touching) == certify.Interval(lower=2.0, upper=2.0)


def test_steps_wider_than_a_power_of_ten_are_safe() -> None:
    """Cells of hundreds of e-folds: whatever is lost is lost on the safe side."""
    mean, rounds = described(1, 0.2, 0.999999999), 10**6
    truth = certify.epsilons(((described(1, 0.2), rounds),), [1e-9])[0]
    for half in (128, 256):
        for direction in DIRECTIONS:
            curves = composition.Composition(parts=((mean, rounds),), half=half, budget=BUDGET).near_delta(
                direction, 1e-9
            )
            lower, upper = (curves[side].epsilon(1e-9) for side in ("lower", "upper"))
            assert lower <= truth.lower * (1 + 1e-8)
            assert truth.upper <= upper * (1 + 1e-8)
            assert upper - lower < 0.02 * upper


def call(strike: Any, scale: float) -> Any:
    """`E[(W - strike)+]` of one ratio, in closed form."""
    there = strike > 0.0
    place = np.log(np.where(there, strike, 1.0)) * scale
    value = special.ndtr(0.5 / scale - place) - strike * special.ndtr(-0.5 / scale - place)
    return np.where(there, value, 1.0 - strike)


def ratios(scale: float, step: float) -> tuple[Any, Any]:
    """Nodes and weights of the trapezoidal rule for a function of W."""
    z = np.arange(-8.0, 8.0 + 1.0 / scale, step)
    return np.exp(z / scale - 0.5 / scale**2), step * np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)


def quadrature(scale: float, rate: float, rounds: int, epsilon: float) -> dict[Direction, float]:
    """delta of rounds of two users, by `E[(S_1 ... S_T - t)+] = E[S_1 E[(S_2 ... S_T - t / S_1)+ | S_1]]`.

    Rounds in which nobody checked in have S = 1 and are counted apart, so that all functions of log t are
    smooth, and splines and trapezoidal rules exact to 1e-7 or so.
    """
    (w, p), (fine_w, fine_p) = ratios(scale, 0.1), ratios(scale, 0.01)
    still = (1.0 - rate) ** 2
    one, two = 2.0 * rate * (1.0 - rate) / (1.0 - still), rate**2 / (1.0 - still)
    s = np.concatenate([(1.0 + fine_w) / 2.0, np.add.outer(w, w).ravel() / 2.0])
    mass = np.concatenate([one * fine_p, two * np.multiply.outer(p, p).ravel()])
    s, mass = s[mass * s > 1e-13], mass[mass * s > 1e-13]
    x = np.linspace(-25.0, 12.0, 2500)
    strikes = 2.0 * np.exp(x)
    value = 0.5 * one * call(strikes - 1.0, scale)
    value += 0.5 * two * sum(a * call(strikes - b, scale) for a, b in zip(fine_p, fine_w, strict=True))
    curves = [lambda e: max(0.0, 1.0 - math.exp(e)), interpolate.CubicSpline(x, value)]
    for _ in range(rounds - 1):
        value = np.zeros_like(x)
        for one_s, one_mass in zip(s.tolist(), mass.tolist(), strict=True):
            y = x - math.log(one_s)
            inner = np.where(y < x[0], 1.0 - np.exp(y), curves[-1](np.clip(y, x[0], x[-1])))
            value += one_mass * one_s * inner
        curves.append(interpolate.CubicSpline(x, value))

    def total(e: float) -> float:
        chances = (math.comb(rounds, k) * still ** (rounds - k) * (1.0 - still) ** k for k in range(rounds + 1))
        return sum(chance * float(curve(e)) for chance, curve in zip(chances, curves, strict=True))

    return {"forward": total(epsilon), "reverse": 1.0 + math.exp(epsilon) * (total(-epsilon) - 1.0)}


@pytest.mark.parametrize(("scale", "rate", "rounds", "epsilon"), [(2.0, 1.0, 2, 0.6), (0.7, 0.3, 3, 1.0)])
def test_rounds_of_two_users_by_quadrature(scale: float, rate: float, rounds: int, epsilon: float) -> None:
    truth = quadrature(scale, rate, rounds, epsilon)
    for direction in DIRECTIONS:
        parts = ((described(2, scale, rate), rounds),)
        found = certify.deltas(parts, [epsilon], 1e-5, direction=direction)[0]
        assert found.lower <= truth[direction] * (1.0 + 1e-6)
        assert truth[direction] <= found.upper * (1.0 + 1e-6)
        assert found.width <= 1e-5 * found.upper


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", [(10, 0.3, 0.1), (1000, 1.0, 1.0), (10**7, 0.5, 0.001), (60_000, 9.48, 1.0)], ids=str)
def test_the_simple_bound_is_above_the_composition(kind: tuple[int, float, float], direction: Direction) -> None:
    for rounds in (1, 7, 1000):
        for delta in (1e-3, 1e-9):
            together = composition.Composition(parts=((described(*kind), rounds),), half=128, budget=BUDGET)
            composed = together.near_delta(direction, delta)["lower"].epsilon(delta)
            simple = together.simple_epsilon(direction, delta)
            assert composed <= simple
            if composed > 1.0:
                assert simple <= 4.0 * composed


def test_a_direction_that_is_left_out_is_the_better_one() -> None:
    """With both directions composed the answers are the same."""
    for kind in ((10, 0.3, 0.1), (1000, 0.3, 1.0), (10**7, 0.5, 0.001), (50, 2.0, 0.5)):
        for rounds in (2, 500):
            parts = ((described(*kind), rounds),)
            worse = certify.epsilons(parts, [1e-8])[0]
            each = [certify.epsilons(parts, [1e-8], direction=direction)[0] for direction in DIRECTIONS]
            assert max(e.lower for e in each) <= worse.upper
            assert worse.lower <= max(e.upper for e in each)
            assert each[1].upper <= worse.upper * (1.0 + 1e-3)


@pytest.mark.parametrize(("users", "scale"), [(1000, 0.1), (65, 0.12), (100, 0.15), (10**5, 0.1)])
def test_very_little_noise(users: int, scale: float) -> None:
    """Most of S is nearly 0 there: no error may push it below, and nothing may be lost in composition."""
    mean = described(users, scale)
    before = 0.0
    for rounds in (1, 2, 7):
        found = certify.epsilons(((mean, rounds),), [1e-6])[0]
        assert before < found.lower
        assert found.width <= 1e-3 * found.upper
        before = found.upper

"""Several records of one person: high precision, search for worse vectors, limits, draws, both directions."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import signal, stats

from shoal.bounds import certify, rdp
from shoal.bounds.central.records import (
    OppositeBatch,
    StandIns,
    binomial_records,
    hypergeometric_records,
    labelled,
    together,
)
from shoal.bounds.central.swap import Swap, Worst
from shoal.bounds.composition import Composition
from shoal.bounds.numeric import DIRECTIONS
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical


def epsilon(round_, rounds, delta, **question):
    return certify.epsilons(((round_, rounds),), [delta], **question)[0]


def delta_of(round_, value, **question):
    return certify.deltas(((round_, 1),), [value], **question)[0]


@pytest.mark.parametrize(("records", "rate"), [(1, 0.3), (4, 0.01), (20, 1e-4), (30, 0.9), (3, 1.0)])
def test_binomial_weights(records, rate):
    drawn = binomial_records(records, rate)
    with mpmath.workdps(60):
        q = mpmath.mpf(rate)
        exact = [mpmath.binomial(records, j) * q**j * (1 - q) ** (records - j) for j in range(records + 1)]
        tails = [mpmath.fsum(exact[j + 1 :]) for j in range(records + 1)]
        assert all(abs(w - e) <= 2**-53 * e for w, e in zip(drawn.weights, exact, strict=True))
        assert all(abs(t - e) <= 2**-53 * e for t, e in zip(drawn.tails, tails, strict=True))
    assert drawn.rate == pytest.approx(1.0 - (1.0 - rate) ** records, rel=1e-9)


@pytest.mark.parametrize(("records", "batch", "population"), [(3, 10, 100), (5, 98, 100), (4, 600, 60_000), (2, 1, 9)])
def test_hypergeometric_weights(records, batch, population):
    drawn = hypergeometric_records(records, batch, population)
    law = stats.hypergeom(population, records, batch)
    assert drawn.weights == pytest.approx(law.pmf(np.arange(records + 1)), rel=1e-9, abs=1e-300)
    assert drawn.rate == pytest.approx(law.sf(0), rel=1e-9)


def exact_deltas(weights, places_p, places_q, value):
    """delta of one round in both directions, by mpmath: the ratio of the two mixtures rises."""
    with mpmath.workdps(40):
        shares = [mpmath.mpf(w) for w in weights]

        def density(z, places):
            return mpmath.fsum(w * mpmath.npdf(z, place) for w, place in zip(shares, places, strict=True))

        def above(z, places):
            return mpmath.fsum(w * mpmath.ncdf(place - z) for w, place in zip(shares, places, strict=True))

        def crossing(t):
            low, high = mpmath.mpf(-80), mpmath.mpf(120)
            for _ in range(200):
                middle = (low + high) / 2
                rises = density(middle, places_p) < t * density(middle, places_q)
                low, high = (middle, high) if rises else (low, middle)
            return low

        t = mpmath.e ** mpmath.mpf(value)
        up, down = crossing(t), crossing(1 / t)
        forward = above(up, places_p) - t * above(up, places_q)
        reverse = 1 - above(down, places_q) - t * (1 - above(down, places_p))
        return float(forward), float(max(reverse, 0))


@pytest.mark.parametrize("opposed", [False, True])
@pytest.mark.parametrize(
    ("records", "rate", "sigma", "value"), [(2, 0.1, 1.0, 1.0), (5, 0.01, 0.7, 0.2), (12, 0.05, 4.0, 0.1)]
)
def test_one_step_against_high_precision(opposed, records, rate, sigma, value):
    drawn = binomial_records(records, rate)
    places = [j / sigma for j in range(records + 1)]
    exact = exact_deltas(drawn.weights, places, [-place if opposed else 0.0 for place in places], value)
    upper, lower = together(sigma, drawn, opposed=opposed)
    assert upper == lower
    for direction, truth in zip(DIRECTIONS, exact, strict=True):
        bracket = delta_of(upper, value, direction=direction)
        # The weights add up to 1 but for rounding.
        assert bracket.lower - 1e-16 <= truth <= bracket.upper + 1e-16
        assert bracket.width <= 0.01 * bracket.upper + 1e-20


def test_directions_must_not_be_mixed():
    """Composed on their own the directions differ; the worse one at each step is neither (Lebeda et al. 2024)."""
    records, rate, sigma, rounds = 2, 0.3, 1.0, 4
    drawn, z = binomial_records(records, rate), np.linspace(-14.0, 16.0, 60_001)
    p = sum(w * stats.norm.pdf(z, j / sigma) for j, w in enumerate(drawn.weights)) * (z[1] - z[0])
    q = stats.norm.pdf(z) * (z[1] - z[0])

    def composed(top, base, value):
        loss, step = np.log(top / base), 1e-3
        low = np.floor(loss.min() / step)
        law = np.bincount(np.round(loss / step - low).astype(int), top)
        total = law
        for _ in range(rounds - 1):
            total = np.maximum(signal.fftconvolve(total, law), 0.0)
        losses = step * (rounds * low + np.arange(len(total)))
        return float((total * np.maximum(-np.expm1(value - losses), 0.0)).sum())

    round_ = together(sigma, drawn, opposed=False)[0]
    for value in (0.5, 2.0):
        by_hand = {"forward": composed(p, q, value), "reverse": composed(q, p, value)}
        for direction, truth in by_hand.items():
            bracket = certify.deltas(((round_, rounds),), [value], direction=direction)[0]
            assert bracket.upper == pytest.approx(truth, rel=5e-3)
            assert bracket.lower == pytest.approx(truth, rel=5e-3)
        assert abs(by_hand["forward"] / by_hand["reverse"] - 1.0) > 0.05


def test_one_crowd_for_both_signs_would_report_too_little():
    """Fixed batches: losses below 0 need the other crowd, or a real one exceeds the pair in reverse."""
    rate, sigma, value = 0.3, 1.0, 0.5
    swap = Swap(scale=sigma, rate=rate, place_p=1.0, place_q=0.0, place_out=-1.0)
    mixed, right = (Worst(swap=swap, place_out_below=place) for place in (-1.0, 1.0))
    z = np.linspace(-14.0, 14.0, 200_001)
    p, q = ((1 - rate) * stats.norm.pdf(z, 1.0) + rate * stats.norm.pdf(z, place) for place in (1.0, 0.0))
    beside = float(np.maximum(q - math.exp(value) * p, 0.0).sum() * (z[1] - z[0]))
    assert delta_of(mixed, value, direction="reverse").upper < 0.99 * beside
    assert delta_of(right, value, direction="reverse").upper >= beside * (1 - 1e-6)
    single = StandIns(scale=sigma, drawn=hypergeometric_records(1, 3, 10), replaced=False)
    assert delta_of(single, value, direction="reverse").upper >= beside * (1 - 1e-6)


def test_one_record_is_the_mechanism_itself():
    for rate, sigma in ((0.01, 0.6), (0.4, 3.0)):
        drawn = binomial_records(1, rate)
        pairs = [
            (together(sigma, drawn, opposed=False)[0], Identical(ratio=Lognormal(scale=sigma), users=1, weight=rate)),
            (
                together(sigma, drawn, opposed=True)[0],
                Worst(swap=Swap(scale=sigma, rate=rate, place_p=1.0, place_q=-1.0, place_out=0.0), place_out_below=0.0),
            ),
        ]
        for several, single in pairs:
            for rounds, delta in ((1, 1e-10), (300, 1e-6)):
                first, second = epsilon(several, rounds, delta), epsilon(single, rounds, delta)
                assert first.lower <= second.upper
                assert second.lower <= first.upper
                assert first.width <= 1e-3 * first.upper
        orders = np.array([2.0, 3.0, 7.0])
        for direction in DIRECTIONS:
            several, single = (round_.log_moments(orders, direction) for round_ in pairs[1])
            assert several == pytest.approx(single, rel=1e-6)


def test_every_record_in_every_batch_is_a_shift_by_their_number():
    for opposed in (False, True):
        report = Identical(ratio=Lognormal(scale=5.0 / (3 * (1 + opposed))), users=1)
        assert together(5.0, binomial_records(3, 1.0), opposed=opposed) == (report, report)
        assert labelled(5.0, hypergeometric_records(3, 50, 50), replaced=opposed) == report
        # A batch that leaves out fewer records than the person has: some of its records are always there.
        drawn = hypergeometric_records(3, 99, 100)
        assert drawn.weights[:2] == (0.0, 0.0)
        almost = StandIns(scale=5.0, drawn=drawn, replaced=opposed)
        assert epsilon(almost, 5, 1e-6).upper == pytest.approx(epsilon(report, 5, 1e-6).upper, rel=0.02)
        almost = together(5.0, binomial_records(3, 1.0 - 1e-9), opposed=opposed)[0]
        assert epsilon(almost, 5, 1e-6).upper == pytest.approx(epsilon(report, 5, 1e-6).upper, rel=1e-3)


def test_more_records_are_less_private():
    values = [epsilon(together(1.0, binomial_records(k, 0.01), opposed=False)[0], 50, 1e-6).upper for k in range(1, 8)]
    assert values == sorted(values)
    values = [
        epsilon(StandIns(scale=1.5, drawn=hypergeometric_records(k, 20, 2_000), replaced=False), 50, 1e-6).upper
        for k in range(1, 6)
    ]
    assert values == sorted(values)


def test_records_that_are_hardly_ever_drawn_together():
    """Cutting them moves the bracket by nothing that is seen, and both rounds stay on their sides."""
    drawn = binomial_records(60, 1e-3)
    upper, lower = together(1.0, drawn, opposed=False)
    assert len(upper.drawn) == len(lower.drawn) < 21
    assert upper.lost == pytest.approx(sum(drawn.weights[len(upper.drawn) :]), rel=1e-6)
    assert math.fsum(lower.drawn) == pytest.approx(1.0, abs=1e-15)
    for direction in DIRECTIONS:
        above, below = (epsilon(round_, 100, 1e-6, direction=direction) for round_ in (upper, lower))
        assert below.lower <= above.upper
        assert above.upper - below.lower <= 2e-3 * above.upper


def grid_delta(weights, here, there, sigma, value):
    """delta between mixtures of Gaussians of the plane, by sums over a grid."""
    axis = np.linspace(-9.0, 9.0, 181)
    x, y = np.meshgrid(axis, axis)

    def density(places):
        return sum(
            w * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)
            for w, (a, b) in zip(weights, places, strict=True)
        )

    excess = np.maximum(density(here) - math.exp(value) * density(there), 0.0)
    return float(excess.sum()) * (axis[1] - axis[0]) ** 2


def drawn_vectors(rng, count):
    """Vectors of the plane of norm at most 1, often on the circle and often on one axis."""
    sizes = np.where(rng.random(count) < 0.7, 1.0, rng.random(count))
    angles = rng.choice([0.0, math.pi], count) if rng.random() < 0.6 else rng.uniform(0.0, 2 * math.pi, count)
    return sizes[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_no_other_vectors_are_worse(kind, replaced):
    """Vectors of the person and of those who stand in, drawn at random: never above; equal ones reach theorem 1."""
    rng = np.random.default_rng(5)
    records, sigma = 2, 1.5
    subsets = [s for size in range(records + 1) for s in itertools.combinations(range(records), size)]
    drawn = binomial_records(records, 0.3) if kind == "poisson" else hypergeometric_records(records, 3, 10)
    weights = [drawn.weights[len(s)] / math.comb(records, len(s)) for s in subsets]
    upper = together(sigma, drawn, opposed=replaced)[0]
    if kind == "fixed":
        upper = StandIns(scale=sigma, drawn=drawn, replaced=replaced)
    for value in (0.0, 0.5, 1.5):
        bound, largest = delta_of(upper, value).upper, 0.0
        for trial in range(60):
            x, other, moved = (drawn_vectors(rng, records) for _ in range(3))
            if trial % 3 == 0:
                x = np.tile(x[:1], (records, 1))
                moved = -x
                other = np.tile(other[:1], (records, 1))
            if trial % 6 == 0:
                other = -x
            if kind == "poisson":
                other = np.zeros_like(other)
            if not replaced:
                moved = np.zeros_like(moved)
            here, there = (
                [sum((v[i] if i in s else other[i]) for i in range(records)) for s in subsets] for v in (x, moved)
            )
            largest = max(
                largest, *(grid_delta(weights, *pair, sigma, value) for pair in ((here, there), (there, here)))
            )
        assert largest <= bound * (1.0 + 1e-3)
        assert largest >= (0.97 if kind == "poisson" else 0.95) * bound


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_draws_stay_inside(kind):
    """delta by Monte Carlo over two steps, both directions, never outside; fixed batches: crowds that can happen."""
    rng = np.random.default_rng(11)
    records, sigma, rounds, size = 3, 1.2, 2, 400_000
    if kind == "poisson":
        drawn = binomial_records(records, 0.1)
        cases = [(together(sigma, drawn, opposed=False), 0.0, 0.0), (together(sigma, drawn, opposed=True), 0.0, -1.0)]
    else:
        drawn = hypergeometric_records(records, 4, 40)
        dominating = StandIns(scale=sigma, drawn=drawn, replaced=False)
        crowd = OppositeBatch(scale=sigma, records=records, drawn=drawn.weights)
        cases = [((dominating, crowd), -1.0, 0.0), ((dominating, None), 1.0, 0.0)]
    j = np.arange(records + 1)
    for (upper, lower), other, moved in cases:
        here, there = ((place * j + other * (records - j)) / sigma for place in (1.0, moved))
        for direction, (top, base) in zip(DIRECTIONS, ((here, there), (there, here)), strict=True):
            number = rng.choice(records + 1, p=drawn.weights, size=(size, rounds))
            z = rng.standard_normal((size, rounds)) + top[number]
            logs = [
                np.log(sum(w * np.exp(-0.5 * (z - place) ** 2) for w, place in zip(drawn.weights, law, strict=True)))
                for law in (top, base)
            ]
            loss = (logs[0] - logs[1]).sum(axis=1)
            for value in (0.2, 1.0):
                gains = np.maximum(-np.expm1(value - loss), 0.0)
                noise = 5.0 * float(gains.std()) / math.sqrt(size) + 1e-12
                above = certify.deltas(((upper, rounds),), [value], direction=direction)[0].upper
                assert float(gains.mean()) - noise <= above
                if lower is not None:
                    below = certify.deltas(((lower, rounds),), [value], 1e-2, direction=direction)[0].lower
                    assert below <= float(gains.mean()) + noise


def test_published_numbers():
    """The finest grid of dp_accounting 0.6 for add or remove; see `benchmarks/results/user_level.md`."""
    published = [
        (2, 0.0064, 1.0, 782, 1e-6, 2.53199),
        (2, 0.02048, 4.0, 10_000, 1e-5, 4.60455),
        (4, 0.01, 2.0, 1_000, 1e-6, 3.26989),
        (10, 0.001, 1.0, 5_000, 1e-6, 4.80823),
    ]
    for records, rate, sigma, rounds, delta, value in published:
        bracket = epsilon(together(sigma, binomial_records(records, rate), opposed=False)[0], rounds, delta)
        assert bracket.lower <= value * (1 + 1e-5)
        assert value <= bracket.upper * (1 + 1e-5)
        assert bracket.width <= 1e-3 * bracket.upper


def test_masses_of_both_laws_are_whole():
    """The dominating pairs hold all mass: none is lost between their parts."""
    for round_ in (
        together(1.0, binomial_records(5, 0.1), opposed=True)[0],
        labelled(1.0, hypergeometric_records(5, 30, 300), replaced=False),
        StandIns(scale=1.0, drawn=hypergeometric_records(5, 30, 300), replaced=False),
    ):
        for direction in DIRECTIONS:
            pair = round_.pair(512, 1e-24, "upper", direction)
            assert float(pair.top.sum()) + pair.infinite == pytest.approx(1.0, abs=1e-11)
            assert float(pair.base.sum()) <= 1.0 + 1e-11
            below = round_.pair(512, 1e-24, "lower", direction)
            assert float(below.top.sum()) <= 1.0
        composition = Composition(parts=((round_, 1),), half=512, budget=1e-24)
        curve = {d: composition.curves(d) for d in DIRECTIONS}
        assert all(c["lower"].delta(0.5) <= c["upper"].delta(0.5) for c in curve.values())


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("batch", "sigma", "value"), [(30, 1.0, 0.4), (5, 0.6, 2.0), (150, 2.5, 0.05)])
def test_theorem_2_against_a_search_for_the_best_shares(replaced, batch, sigma, value):
    """Two records: the share of the pair by a search on a grid, every price by sums over a fine grid."""
    drawn, r, t = hypergeometric_records(2, batch, 200), 1.0 / sigma, math.exp(value)
    z = np.linspace(-12.0, 14.0 + 4.0 * r, 40_001)
    density = stats.norm.pdf(z) * (z[1] - z[0])

    def ratio(place):
        return np.exp(place * r * z - 0.5 * (place * r) ** 2)

    terms = {
        "forward": [ratio(2 * j) - t * (1.0 if replaced else ratio(j)) for j in (1, 2)],
        "reverse": [ratio(2 * j if replaced else j) - t for j in (1, 2)],
    }
    whole = (t - 1.0) * drawn.weights[0]
    law = StandIns(scale=sigma, drawn=drawn, replaced=replaced)
    for direction, (first, second) in terms.items():

        def price(share, first=first, second=second):
            parts = zip(drawn.weights[1:], (first, second), (1.0 - share, share), strict=True)
            return sum(float(np.maximum(p * f - c * whole, 0.0) @ density) for p, f, c in parts)

        shares = np.linspace(0.0, 1.0, 21)
        least = int(np.argmin([price(share) for share in shares]))
        fine = np.linspace(shares[max(least - 1, 0)], shares[min(least + 1, 20)], 81)
        best = min(price(share) for share in fine)
        bracket = delta_of(law, value, direction=direction)
        assert best * (1 - 2e-4) <= bracket.upper <= best * (1 + 2e-3)


def test_theorem_2_is_exact_where_a_real_crowd_reaches_it():
    """All others opposite: the two laws meet, one step and many."""
    sigma, drawn = 2.0, hypergeometric_records(3, 600, 60_000)
    upper = StandIns(scale=sigma, drawn=drawn, replaced=False)
    crowd = OppositeBatch(scale=sigma, records=3, drawn=drawn.weights)
    for value in (0.1, 1.0):
        assert delta_of(crowd, value, direction="forward").lower >= 0.995 * delta_of(upper, value).upper
    assert epsilon(crowd, 500, 1e-6).lower >= 0.93 * epsilon(upper, 500, 1e-6).upper


def test_renyi_never_says_less_than_the_law():
    for round_ in (
        StandIns(scale=1.0, drawn=hypergeometric_records(3, 30, 300), replaced=True),
        together(1.0, binomial_records(60, 1e-3), opposed=False)[0],
        together(0.2, binomial_records(30, 0.01), opposed=False)[0],
    ):
        for rounds in (1, 50):
            # What is left out counts as exposed in the law, and in no other way in a moment.
            law = epsilon(round_, rounds, 1e-3)
            moments = rdp.least_epsilon(((round_, rounds),), 1e-3, None)
            assert law.lower <= moments


def test_a_person_of_whom_much_is_left_out_counts_as_seen_in_the_clear():
    drawn = binomial_records(60, 0.1)
    upper, lower = together(0.3, drawn, opposed=False)
    assert not upper.is_in_range
    local = epsilon(Identical(ratio=Lognormal(scale=0.3 / 60), users=1), 1000, 1e-6).upper
    assert epsilon(lower, 1000, 1e-6).lower < epsilon(upper, 1000, 1e-6).upper == pytest.approx(local)
    stand_ins = labelled(0.3, hypergeometric_records(60, 100, 1000), replaced=False)
    assert stand_ins.ratio.scale == pytest.approx(0.3 / 60)
    assert stand_ins.log_moments(np.array([2.0]), "forward")[0] >= 0.5 * (60 / 0.3) ** 2

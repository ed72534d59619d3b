"""DP-SGD's sampling schemes: high precision, search for worse vectors, limits, laws, other libraries, attacks."""

import itertools
import json
import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from shoal import (
    Accountant,
    BallsAndBins,
    FixedBatch,
    LocalGaussian,
    PoissonSampling,
    RandomAllocation,
    SequentialShuffle,
    ShuffledEpochs,
    calibrate,
)
from shoal.bounds import certify, rdp
from shoal.bounds.anycrowd.opposite import Opposite
from shoal.bounds.central import attacks
from shoal.bounds.central.swap import Real, Swap, Worst
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical
from shoal.mechanisms import from_dict
from shoal.query import AccuracyWarning

ADJACENCIES = ("zero-out", "replace")

PLACES = {
    # scheme, adjacency: x, x', other for k >= 1, other for k <= 1
    ("poisson", "zero-out"): (1.0, 0.0, 0.0, 0.0),
    ("poisson", "replace"): (1.0, -1.0, 0.0, 0.0),
    ("fixed", "zero-out"): (1.0, 0.0, -1.0, 1.0),
    ("fixed", "replace"): (1.0, -1.0, -1.0, 1.0),
}


def scheme(kind, adjacency, rate, sigma):
    if kind == "poisson":
        return PoissonSampling(rate=rate, sigma=sigma, adjacency=adjacency)
    return FixedBatch(records=1000, batch=round(1000 * rate), sigma=sigma, adjacency=adjacency)


def exact_delta(here, there, other, rate, sigma, epsilon):
    """`P(A) - e^eps Q(A)` of the best test A = {y > c} between the mixtures, by mpmath."""
    with mpmath.workdps(40):
        q, s, t = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.e ** mpmath.mpf(epsilon)

        def density(y, place):
            return (1 - q) * mpmath.npdf(y, other, s) + q * mpmath.npdf(y, place, s)

        low, high = mpmath.mpf(here + there) / 2, mpmath.mpf(here) + 60 * s
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if density(middle, here) < t * density(middle, there) else (low, middle)

        def above(place):
            return (1 - q) * mpmath.ncdf((other - low) / s) + q * mpmath.ncdf((place - low) / s)

        return float(above(here) - t * above(there))


@pytest.mark.parametrize("fpr", [0.01, 0.1, 0.4])
@pytest.mark.parametrize(("records", "sigma"), [(60, 1.258), (1360, 4.439), (20, 0.5)])
def test_attacks_on_one_fixed_batch(records, sigma, fpr):
    """The best tests, by likelihood ratios on a fine grid, of the others on either side, told apart either way."""
    rate, y = 10 / records, np.linspace(-12.0, 12.0, 400_001)
    best = 0.0
    for other in (-1.0, 1.0):
        mixtures = [
            (1 - rate) * stats.norm.pdf(y - other / sigma) + rate * stats.norm.pdf(y - x / sigma) for x in (0, 1)
        ]
        for q, p in (mixtures, mixtures[::-1]):
            order = np.argsort(-p / q)
            best = max(best, np.interp(fpr, *((y[1] - y[0]) * np.cumsum(law[order]) for law in (q, p))))
    found = FixedBatch(records=records, batch=10, sigma=sigma).tradeoff(fpr)
    assert found.lower <= best * (1 + 1e-6) <= found.upper * (1 + 2e-6)
    assert found.lower >= 0.98 * best


@pytest.mark.parametrize(("kind", "adjacency"), PLACES)
@pytest.mark.parametrize(("rate", "sigma", "epsilon"), [(0.1, 1.0, 1.0), (0.001, 0.5, 2.0), (0.9, 3.0, 0.3)])
def test_one_step_against_high_precision(kind, adjacency, rate, sigma, epsilon):
    """The worse of both directions; without replacement the others are elsewhere in the other direction."""
    here, there, first, second = PLACES[kind, adjacency]
    forward = exact_delta(here, there, first, rate, sigma, epsilon)
    reverse = exact_delta(-there, -here, -second, rate, sigma, epsilon)
    found = scheme(kind, adjacency, rate, sigma).delta(epsilon=epsilon)
    assert max(forward, reverse) in found
    assert found.width <= 0.01 * found.upper


@pytest.mark.parametrize(("kind", "adjacency"), PLACES)
def test_no_other_vectors_are_worse(kind, adjacency):
    """All x, x' and other vectors of the plane, drawn at random inside and on the unit circle: 2-dimensional sums."""
    rate, sigma, epsilon = 0.2, 1.0, 0.4
    most = scheme(kind, adjacency, rate, sigma).delta(epsilon=epsilon).upper
    rng = np.random.default_rng(3)
    axis = np.linspace(-6.0, 6.0, 161)
    x, y = np.meshgrid(axis, axis)

    def density(place):
        return np.exp(-((x - place[0]) ** 2 + (y - place[1]) ** 2) / (2.0 * sigma**2)) / (2.0 * math.pi * sigma**2)

    largest = 0.0
    for trial in range(60):
        angles = rng.uniform(0.0, 2.0 * math.pi, 3) if trial % 2 else rng.choice([0.0, math.pi], 3)
        sizes = np.where(rng.random(3) < 0.7, 1.0, rng.random(3))
        here, there, other = (r * np.array([math.cos(a), math.sin(a)]) for r, a in zip(sizes, angles, strict=True))
        if adjacency == "zero-out":
            here, there = (0.0 * here, there) if trial % 4 < 2 else (here, 0.0 * there)
        if kind == "poisson":
            other = 0.0 * other
        p, q = ((1.0 - rate) * density(other) + rate * density(place) for place in (here, there))
        largest = max(largest, float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum()) * (axis[1] - axis[0]) ** 2)
    assert 0.9 * most < largest < most * (1.0 + 1e-3)


@pytest.mark.parametrize("rate", [1e-9, 0.03, 0.9])
@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_the_line_agrees_with_the_law_of_a_ratio(rate, sigma):
    """Two engines for Poisson sampling and zero-out: brackets of one number."""
    line = Worst(swap=Swap(scale=sigma, rate=rate, place_p=1.0, place_q=0.0, place_out=0.0), place_out_below=0.0)
    mean = Identical(ratio=Lognormal(scale=sigma), users=1, weight=rate)
    for rounds, delta in [(1, 1e-11), (300, 1e-8)]:
        one, other = (certify.epsilons(((part, rounds),), [delta], 1e-4)[0] for part in (line, mean))
        assert one.lower <= other.upper
        assert other.lower <= one.upper
        assert one.width <= 1e-3 * one.upper
    orders = np.array([1.5, 2.0, 7.0, 15.0])
    for direction in ("forward", "reverse"):
        known = rdp.divergences(((mean, 1),), orders, direction)
        whole = orders == np.round(orders)
        found = line.log_moments(orders, direction) / (orders - 1.0)
        assert found[whole] == pytest.approx(known[whole], rel=1e-6)


def test_poisson_against_dp_accounting():
    """Inside its bracket (rounded up and down) and narrower, for both adjacencies."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as peer

    relations = {"zero-out": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace": NeighboringRelation.REPLACE_ONE}
    for adjacency, relation in relations.items():
        for rate, sigma, rounds, delta in [(0.01, 1.0, 100, 1e-6), (0.2, 3.0, 10, 1e-4), (0.05, 1.2, 1, 1e-5)]:
            low, high = (
                peer.from_gaussian_mechanism(
                    sigma,
                    sampling_prob=rate,
                    pessimistic_estimate=up,
                    use_connect_dots=False,
                    value_discretization_interval=1e-3,
                    neighboring_relation=relation,
                )
                .self_compose(rounds)
                .get_epsilon_for_delta(delta)
                for up in (False, True)
            )
            found = PoissonSampling(rate=rate, sigma=sigma, adjacency=adjacency).epsilon(delta=delta, rounds=rounds)
            assert low <= found.lower <= found.upper <= high
            assert found.width < high - low


def test_one_step_at_small_delta():
    """One step has a closed form: `delta(log(1 + q (e^e - 1))) = q delta_Gauss(e)`."""
    rate, sigma = 0.00033, 4.0
    for delta in (1e-12, 1e-15):
        with mpmath.workdps(30):

            def excess(e, delta=delta):
                gauss = mpmath.ncdf(0.5 / sigma - e * sigma) - mpmath.e**e * mpmath.ncdf(-0.5 / sigma - e * sigma)
                return mpmath.log(rate * gauss) - mpmath.log(delta)

            local = mpmath.findroot(excess, 1.5)
            truth = float(mpmath.log1p(rate * mpmath.expm1(local)))
        assert truth in PoissonSampling(rate=rate, sigma=sigma).epsilon(delta=delta)


def inverted(rate, sigma, rounds, epsilon):
    """delta of Poisson sampling by Mellin inversion through the saddle point, the worse of both directions.

    `E(S - k)+` is the integral of `E[S^(1+z)] k^-z / (z (z + 1))` over a vertical line, `E(1 - k S)+` that of
    `E[S^-z] k^-z / (z (z + 1))`; moments of one step by the trapezoidal rule, which is exact for them.
    """
    y = np.linspace(-14.0, 14.0 + 12.0 / sigma, 3_001)
    mass = stats.norm.pdf(y) * (y[1] - y[0])
    loss = np.log1p(rate * np.expm1(y / sigma - 0.5 / sigma**2))
    found = []
    for shift, sign in ((1.0, 1.0), (0.0, -1.0)):
        if rounds * (sign * loss).max() <= epsilon:
            continue  # no loss is as large as that

        def log_term(z, shift=shift, sign=sign):
            moment = np.expm1(np.multiply.outer(shift + sign * z, loss)) @ mass
            return rounds * np.log1p(moment) - z * epsilon - np.log(z * (z + 1.0))

        real = np.geomspace(1e-2, 2e4, 400)
        with np.errstate(over="ignore", invalid="ignore"):
            values = log_term(real)
        best = np.nanargmin(np.where(np.isfinite(values), values, np.nan))
        z = real[best]
        bend = (log_term(z * 1.001) - 2.0 * values[best] + log_term(z * 0.999)) / (1e-3 * z) ** 2
        line = log_term(z + 1j * np.linspace(0.0, 12.0 / math.sqrt(bend), 400))
        terms = np.exp(line - values[best]).real
        step = 12.0 / math.sqrt(bend) / 399.0
        found.append(float(values[best]) + math.log(step * (terms.sum() - 0.5 * terms[0]) / math.pi))
    return math.exp(max(found))


REPORTED = {
    # where prv_accountant or Opacus' copy of it raises or is wrong: rate, sigma, steps, delta
    "prv_accountant 17": (0.00033, 4.0, 10_000, 1e-15),
    "prv_accountant 17, the second": (0.00038, 4.0, 10_000, 1e-15),
    "prv_accountant 42": (0.2, 1.0, 10, 1e-5),
    "prv_accountant 42, all of its steps": (0.2, 1.0, 500, 1e-5),
    "the error of prv_accountant 36, Opacus 601 and 604": (0.125, 0.8, 1_000, 1e-6),
}


@pytest.mark.parametrize("setting", REPORTED.values(), ids=REPORTED)
def test_poisson_where_prv_was_reported_to_fail(setting):
    rate, sigma, rounds, delta = setting
    found = PoissonSampling(rate=rate, sigma=sigma).epsilon(delta=delta, rounds=rounds)
    assert inverted(rate, sigma, rounds, found.upper) <= delta * (1.0 + 1e-6)
    assert inverted(rate, sigma, rounds, found.lower) >= delta * (1.0 - 1e-6)
    assert found.width <= 1.5e-3 * found.upper


def test_poisson_below_the_smallest_delta():
    """The very deltas of prv_accountant 17 (there 0.056 or 3.8): from above only."""
    for rate, delta in ((0.00033, 1.1e-18), (0.00033, 1.13e-18), (0.00038, 1.13e-18)):
        with pytest.warns(AccuracyWarning):
            found = PoissonSampling(rate=rate, sigma=4.0).epsilon(delta=delta, rounds=10_000)
        assert inverted(rate, 4.0, 10_000, found.upper) <= delta
        assert found.upper < 0.2


def test_epsilon_is_never_negative():
    """Opacus 585 and 844: one step whose delta at 0, `q (2 Phi(1 / (2 sigma)) - 1)`, is below the delta asked for."""
    m = PoissonSampling(rate=0.2, sigma=1.2)
    least = 0.2 * math.erf(0.5 / 1.2 / math.sqrt(2.0))
    assert least in m.delta(epsilon=0.0)
    for delta in (0.08, 0.2):
        assert m.epsilon(delta=delta).upper == 0.0
    assert m.epsilon(delta=0.99 * least).lower > 0.0


def test_calibration_where_prv_overflowed():
    """A setting of prv_accountant's tests; rate, steps and target as there."""
    rate, rounds, delta = 0.26058631921824105, 18_800, 0.00011448277499759097
    sigma = calibrate.sigma(
        lambda sigma: PoissonSampling(rate=rate, sigma=sigma), epsilon=4.0, delta=delta, rounds=rounds
    )
    assert inverted(rate, sigma, rounds, 4.0) <= delta
    assert inverted(rate, sigma / 1.002, rounds, 4.0) > delta


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_two_steps_of_fixed_batches_by_hand(adjacency):
    """The dominating pair convolved with itself on a fine lattice, and the real crowds below it."""
    here, there, first, second = PLACES["fixed", adjacency]
    rate, sigma, epsilon = 0.2, 1.0, 0.7
    m = FixedBatch(records=10, batch=2, sigma=sigma, adjacency=adjacency)
    y = np.linspace(-12.0, 12.0, 48_001)

    def masses(there, here, other):
        return [
            ((1.0 - rate) * stats.norm.pdf(y, other, sigma) + rate * stats.norm.pdf(y, place, sigma)) * (y[1] - y[0])
            for place in (here, there)
        ]

    def gains(p, q):
        up = p > q
        return np.log(p[up] / q[up]), p[up]

    def twice(loss, top):
        low, step = loss.min(), 1e-3
        where = np.round((loss - low) / step).astype(int)
        one = np.bincount(where, top)
        two = np.convolve(one, one)
        total = 2.0 * low + step * np.arange(len(two))
        return float((two * np.maximum(1.0 - np.exp(epsilon - total), 0.0)).sum())

    p, q = masses(there, here, first)
    up, down = gains(p, q), gains(*masses(-here, -there, -second))
    worst = []
    for (gain, top), (mirror, base) in ((up, down), (down, up)):
        under = base * np.exp(-mirror)
        rest = 1.0 - top.sum() - under.sum()
        worst.append(twice(np.concatenate([gain, -mirror, [0.0]]), np.concatenate([top, under, [rest]])))
    real = max(twice(np.log(p / q), p), twice(np.log(q / p), q))
    found = m.delta(epsilon=epsilon, rounds=2)
    assert found.upper == pytest.approx(max(worst), rel=3e-3)
    assert found.lower >= real * (1.0 - 3e-3)
    assert found.lower <= max(worst)


def test_limits():
    report = {a: LocalGaussian(sigma=2.0, adjacency=a).epsilon(delta=1e-5, rounds=7) for a in ADJACENCIES}
    for adjacency in ADJACENCIES:
        common = {"sigma": 2.0, "adjacency": adjacency}
        assert PoissonSampling(rate=1.0, **common).epsilon(delta=1e-5, rounds=7) == report[adjacency]
        assert FixedBatch(records=50, batch=50, **common).epsilon(delta=1e-5, rounds=7) == report[adjacency]
        assert ShuffledEpochs(steps=1, epochs=7, **common).epsilon(delta=1e-5) == report[adjacency]
    assert RandomAllocation(steps=7, picks=7, sigma=2.0).epsilon(delta=1e-5) == report["zero-out"]
    bins = BallsAndBins(bins=20, sigma=2.0)
    once = RandomAllocation(steps=20, sigma=2.0)
    assert once.epsilon(delta=1e-5) == bins.epsilon(delta=1e-5)
    assert once.replace(epochs=3).epsilon(delta=1e-5, rounds=2) == bins.epsilon(delta=1e-5, rounds=6)
    kept = once.replace(epochs=4, persistent=True)
    assert kept.epsilon(delta=1e-5) == bins.replace(sigma=1.0).epsilon(delta=1e-5)
    assert kept.epsilon(delta=1e-5).lower > once.replace(epochs=4).epsilon(delta=1e-5).upper


def polynomial(w, picks):
    """The mean of products over all sets of `picks` columns."""
    sets = list(itertools.combinations(range(w.shape[1]), picks))
    return sum(w[:, chosen].prod(axis=1) for chosen in map(list, sets)) / len(sets)


@pytest.mark.parametrize(("steps", "picks", "sigma"), [(3, 2, 1.0), (5, 2, 0.8), (6, 4, 1.5)])
def test_allocation_against_draws(steps, picks, sigma):
    """delta by Monte Carlo over the likelihood ratio itself, both directions, never outside."""
    rng = np.random.default_rng(steps)
    r = 1.0 / sigma
    w = np.exp(r * rng.standard_normal((400_000, steps)) - 0.5 * r * r)
    s = polynomial(w, picks)
    m = RandomAllocation(steps=steps, picks=picks, sigma=sigma)
    for epsilon in (0.3, 1.0):
        found = m.delta(epsilon=epsilon)
        draws = np.maximum(s - math.exp(epsilon), 0.0)
        noise = 5.0 * float(draws.std()) / math.sqrt(len(draws))
        assert found.lower <= float(draws.mean()) + noise
        assert float(np.maximum(1.0 - math.exp(epsilon) * s, 0.0).mean()) <= found.upper + 0.005
        assert float(draws.mean()) <= found.upper + noise
        assert found.lower > 0.6 * found.upper


def test_independent_products_are_below_allocation():
    """Kahane: the mean of products over all sets, against that of independent ones, at every stop-loss."""
    rng = np.random.default_rng(5)
    steps, picks, r, draws = 5, 2, 0.7, 200_000
    w = np.exp(r * rng.standard_normal((draws, steps)) - 0.5 * r * r)
    sets = math.comb(steps, picks)
    alone = np.exp(r * math.sqrt(picks) * rng.standard_normal((draws, sets)) - 0.5 * r * r * picks).mean(axis=1)
    s = polynomial(w, picks)
    for k in (0.3, 0.7, 1.0, 1.5, 3.0):
        real, below = np.maximum(s - k, 0.0), np.maximum(alone - k, 0.0)
        assert float(real.mean()) > float(below.mean()) - 5.0 * float(real.std() + below.std()) / math.sqrt(draws)
    # With little noise it is the better lower end, and it is exact for one pick.
    for t, sigma, delta, least in ((50, 0.4, 1e-4, 11.6), (100, 0.5, 1e-6, 8.35)):
        found = RandomAllocation(steps=t, picks=2, sigma=sigma).epsilon(delta=delta)
        assert least <= found.lower < found.upper


def test_the_attack_on_allocation_is_a_law_of_the_sum():
    """Its masses are those of draws of the same rounded scores, and add up to 1."""
    attack = attacks.Allocation(scale=1.0, steps=8, picks=3)
    p, q, error = attacks._score_sum_masses(attack)
    assert error < 1e-10
    assert float(p.sum()) == pytest.approx(1.0, abs=1e-9)
    assert float(q.sum()) == pytest.approx(1.0, abs=1e-9)
    quiet, marked, _ = attacks._scores(attack)
    rng = np.random.default_rng(0)
    counts = (5, 3)
    total = sum(
        (one.start + rng.choice(len(one.mass), p=one.mass / one.mass.sum(), size=(100_000, n))).sum(axis=1)
        for one, n in zip((quiet, marked), counts, strict=True)
    )
    start = 8 * quiet.start
    places = np.arange(len(p)) + (float(np.mean(total)) - float(p @ np.arange(len(p))))
    assert float(np.var(total)) == pytest.approx(float(p @ (places - total.mean()) ** 2), rel=0.03)
    assert start <= int(total.min())


def test_the_maximum_is_the_test_of_chua_et_al():
    """`P(max > c) - e^eps Q(max > c)` at the best c, from its closed form."""
    steps, sigma, epsilon = 50, 0.7, 2.0
    c = np.linspace(-3.0, 8.0, 40_001) / sigma
    tails = [
        -np.expm1((steps - 1.0) * special.log_ndtr(c) + special.log_ndtr(c - a / sigma)) for a in (2.0, 1.0)
    ]  # of the largest output
    closed = float(np.max(tails[0] - math.exp(epsilon) * tails[1]))
    found = certify.deltas(((attacks.Maximum(scale=sigma, steps=steps), 1),), [epsilon], 1.0)[0]
    assert found.lower == pytest.approx(closed, rel=1e-4)
    assert found.lower <= closed * (1.0 + 1e-6)
    whole = ShuffledEpochs(steps=steps, sigma=sigma).delta(epsilon=epsilon)
    assert whole.lower >= found.lower
    # The likelihood ratio of the same crowd, tested at its best threshold, shows no less.
    best = Opposite(mean=Identical(ratio=Lognormal(scale=sigma), users=steps), loss=epsilon)
    assert whole.lower >= certify.deltas(((best, 1),), [epsilon], 1.0)[0].lower * 0.999


@pytest.mark.parametrize("sigma", [2.0, 0.5, 0.1, 0.02])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_maximum_of_one_step_is_one_gaussian_report(sigma, direction):
    """With one step, P = N(2, sigma^2) and Q = N(1, sigma^2): delta at 0 and at 1 in closed form, at any noise."""
    curves = {
        side: attacks.Maximum(scale=sigma, steps=1).pair(200, 1e-15, side, direction) for side in ("lower", "upper")
    }
    for epsilon in (0.0, 1.0):
        r = 1.0 / sigma
        closed = special.ndtr(r / 2.0 - epsilon / r) - math.exp(epsilon) * special.ndtr(-r / 2.0 - epsilon / r)
        ends = {}
        for side, pair in curves.items():
            gain = np.maximum(pair.top - math.exp(epsilon) * pair.base, 0.0).sum()
            ends[side] = min(1.0, max(0.0, float(gain) + pair.infinite))
        # From above it is what this attack with its cells shows, up to the errors of its masses: not below the lower.
        assert 0.0 <= ends["lower"] <= min(closed, ends["upper"]) * (1.0 + 1e-12)
        if sigma >= 0.1:
            assert ends["lower"] == pytest.approx(closed, rel=0.02)
    # What is not known about outcomes is one outcome more: the masses of top add up to 1, whatever was left out.
    assert float(curves["lower"].top.sum()) == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize(
    "m",
    [
        ShuffledEpochs(steps=100, sigma=0.1),
        ShuffledEpochs(steps=1_000, sigma=1e-4, epochs=10),
        ShuffledEpochs(steps=10, sigma=1e-3, epochs=10, adjacency="replace"),
        SequentialShuffle(users=100, sigma=0.05),
        RandomAllocation(steps=100, picks=3, sigma=0.01),
        RandomAllocation(steps=100, picks=3, sigma=1e-4),
    ],
    ids=repr,
)
@pytest.mark.parametrize("rounds", [1, 10])
def test_with_next_to_no_noise_every_question_has_an_answer(m, rounds):
    advantage = m.advantage(rounds=rounds)
    assert 0.0 <= advantage.lower <= advantage.upper <= 1.0
    # No attack shows more than one report an epoch in the clear.
    picks = getattr(m, "picks", 1) * getattr(m, "epochs", 1)
    clear = LocalGaussian(sigma=m.sigma, adjacency=m.adjacency).epsilon(delta=1e-5, rounds=rounds * picks)
    eps = m.epsilon(delta=1e-5, rounds=rounds)
    assert 0.0 <= eps.lower <= eps.upper <= clear.upper * (1.0 + 1e-9)
    assert 0.01 <= m.tradeoff(0.01, rounds=rounds).upper <= 1.0
    assert 0.0 < m.delta(epsilon=1.0, rounds=rounds).upper <= 1.0


def test_an_attack_with_little_noise_shows_nearly_all():
    """Q differs from P by one output of N(2 / sigma, 1) instead of N(1 / sigma, 1), and nothing hides it."""
    assert ShuffledEpochs(steps=100, sigma=0.1).advantage().lower > 0.99999


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_bad_news_about_shuffling(adjacency):
    """Poisson accounting claims far less than the lower end of the bracket; one use an epoch is never exceeded."""
    m = ShuffledEpochs(steps=1_000, sigma=0.6, epochs=5, adjacency=adjacency)
    eps = m.epsilon(delta=1e-6)
    report = LocalGaussian(sigma=0.6, adjacency=adjacency).epsilon(delta=1e-6, rounds=5)
    assert 0.9 * report.upper < eps.upper <= report.upper * (1.0 + 1e-9)
    assert m.claimed(delta=1e-6).upper < 0.5 * eps.lower
    again = PoissonSampling(rate=1e-3, sigma=0.6, adjacency=adjacency).epsilon(delta=1e-6, rounds=5_000)
    assert m.claimed(delta=1e-6) == again
    words = m.caution(delta=1e-6, epsilon=eps)
    assert words.startswith("Poisson accounting would claim epsilon = ")
    assert "too small by at least" in words
    few = m.replace(steps=1, epochs=1)
    assert "too small" not in few.caution(delta=1e-6, epsilon=few.epsilon(delta=1e-6))


SOME = [
    PoissonSampling(rate=0.02, sigma=1.0),
    PoissonSampling(rate=0.02, sigma=1.0, adjacency="replace"),
    FixedBatch(records=500, batch=10, sigma=1.0),
    FixedBatch(records=500, batch=10, sigma=1.0, adjacency="replace"),
    RandomAllocation(steps=100, picks=2, sigma=1.0),
    RandomAllocation(steps=50, picks=3, sigma=2.0, epochs=2, persistent=True),
    ShuffledEpochs(steps=50, sigma=1.0, epochs=2),
    ShuffledEpochs(steps=50, sigma=1.0, adjacency="replace"),
]


@pytest.mark.parametrize("m", SOME, ids=lambda m: f"{m.label} {m.adjacency}")
def test_laws(m):
    """Noise helps, rounds cost, delta and epsilon are inverse, Rényi DP is above, plain data come back."""
    eps = m.epsilon(delta=1e-6, rounds=3)
    assert 0.0 < eps.lower <= eps.upper
    assert m.replace(sigma=1.5 * m.sigma).epsilon(delta=1e-6, rounds=3).upper < eps.upper
    assert m.epsilon(delta=1e-6, rounds=4).upper >= eps.upper
    assert m.delta(epsilon=eps.upper, rounds=3).lower <= 1e-6 <= m.delta(epsilon=0.99 * eps.lower, rounds=3).upper
    assert m.epsilon(delta=1e-6, rounds=3, method="rdp").upper >= eps.lower
    power = m.tradeoff(0.01, rounds=3)
    assert 0.01 <= power.lower <= power.upper <= 1.0
    assert m.advantage(rounds=3).lower <= m.advantage(rounds=3).upper
    assert from_dict(m.to_dict()) == m
    ledger = Accountant().compose(m, rounds=3)
    assert Accountant().load_state_dict(ledger.state_dict()).epsilon(delta=1e-6) == eps
    assert m.label in m.statement(delta=1e-6).sentence().lower()


def test_which_scheme_is_how_private():
    """At the same number of uses: one allocation is below Poisson sampling, fixed batches and shuffling are above."""
    steps, sigma, delta = 100, 1.0, 1e-6
    allocation = RandomAllocation(steps=steps, sigma=sigma).epsilon(delta=delta)
    poisson = PoissonSampling(rate=1 / steps, sigma=sigma).epsilon(delta=delta, rounds=steps)
    batches = FixedBatch(records=1_000, batch=10, sigma=sigma).epsilon(delta=delta, rounds=steps)
    shuffled = ShuffledEpochs(steps=steps, sigma=sigma).epsilon(delta=delta)
    assert allocation.upper < poisson.lower < batches.lower
    assert poisson.upper < shuffled.lower
    # k of t is not better than one of all t, and k times one of t/k bounds it.
    blocks = BallsAndBins(bins=25, sigma=sigma).epsilon(delta=delta, rounds=4)
    several = RandomAllocation(steps=steps, picks=4, sigma=sigma).epsilon(delta=delta)
    assert allocation.upper < several.lower < several.upper == blocks.upper
    uneven = RandomAllocation(steps=103, picks=4, sigma=sigma).epsilon(delta=delta)
    assert uneven.upper < blocks.upper


def test_different_schemes_together():
    together = Accountant()
    for m in SOME:
        if m.adjacency == "zero-out":
            together.compose(m)
    eps = together.epsilon(delta=1e-6)
    assert 0.0 < eps.lower <= eps.upper
    assert eps.upper > max(m.epsilon(delta=1e-6).upper for m in SOME if m.adjacency == "zero-out")


def test_export():
    m = RandomAllocation(steps=40, picks=2, sigma=1.0)
    exported = m.pld(step=1e-3).get_epsilon_for_delta(1e-5)
    assert m.epsilon(delta=1e-5).lower <= exported
    assert exported == pytest.approx(m.epsilon(delta=1e-5).upper, rel=1e-3)
    batches = FixedBatch(records=100, batch=5, sigma=1.0)
    assert batches.pld(step=1e-3).get_epsilon_for_delta(1e-5) == pytest.approx(
        batches.epsilon(delta=1e-5).upper, rel=1e-3
    )


def test_the_command_knows_them():
    from typer.testing import CliRunner

    from shoal.cli.app import app

    def run(words):
        found = CliRunner().invoke(app, ["epsilon", *words.split(), "--delta", "1e-5", "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)["rows"][0]

    poisson = run("poisson --rate 0.1 --sigma 2 --rounds 5")["epsilon"]
    assert poisson["upper"] == PoissonSampling(rate=0.1, sigma=2.0).epsilon(delta=1e-5, rounds=5).upper
    batches = run("fixed-batch --records 50 --batch 5 --sigma 2 --adjacency replace")["epsilon"]
    m = FixedBatch(records=50, batch=5, sigma=2.0, adjacency="replace")
    assert batches["lower"] == m.epsilon(delta=1e-5).lower
    assert run("allocation --steps 20 --picks 2 --sigma 2 --epochs 2")["epsilon"]["lower"] > 0.0
    shuffled = run("shuffled-epochs --steps 100 --sigma 0.7")
    assert "Poisson accounting would claim" in shuffled["caution"]


def test_an_attack_is_valid_in_either_direction():
    """Merged panels of the real crowd show no more than the dominating pair, at every loss."""
    swap = Swap(scale=1.0, rate=0.3, place_p=1.0, place_q=0.0, place_out=-1.0)
    worst, real = Worst(swap=swap, place_out_below=1.0), Real(swap=swap)
    for direction in ("forward", "reverse"):
        for epsilon in (0.0, 0.2, 1.0):
            most = certify.deltas(((worst, 1),), [epsilon], direction=direction)[0]
            seen = certify.deltas(((real, 1),), [epsilon], 1.0, direction=direction)[0]
            assert seen.lower <= most.upper
    with pytest.raises(ValueError, match="an attack has no"):
        real.log_moments(np.array([2.0]), "forward")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonSampling(rate=0.0, sigma=1.0), "rate must be above 0 and at most 1, got 0.0"),
        (lambda: PoissonSampling(rate=0.5, sigma=-1.0), "sigma must be positive, got -1.0"),
        (lambda: FixedBatch(records=5, batch=6, sigma=1.0), r"batch must be at most records \(5\), got 6"),
        (lambda: RandomAllocation(steps=5, picks=6, sigma=1.0), r"picks must be at most steps \(5\), got 6"),
        (lambda: RandomAllocation(steps=5, sigma=1.0, epochs=0), "epochs must be at least 1, got 0"),
        (lambda: RandomAllocation(steps=5, sigma=1.0, persistent=1), "persistent must be True or False, got 1"),
        (
            lambda: RandomAllocation(steps=5, sigma=1.0, adjacency="replace"),
            "adjacency must be zero-out for RandomAllocation, got 'replace'",
        ),
        (lambda: ShuffledEpochs(steps=0, sigma=1.0), "steps must be at least 1, got 0"),
        (lambda: ShuffledEpochs(steps=5, sigma=1.0).claimed(delta=2.0), "delta must lie strictly between 0 and 1"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()

"""Groups and self-application: unbiased, above every place and every mixture of places, above real crowds."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from shoal import Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.bounds.anycrowd import evaluate, exchange, groups
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.prices import PricedLaw, Prices
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.grid import in_order
from shoal.bounds.ratio import Lognormal

# ---------------------------------------------------------------------------------------------
# The estimate: its mean given the multiset is the likelihood ratio.


@pytest.mark.parametrize("seed", range(12))
def test_the_estimate_with_users_aside_is_unbiased(seed: int) -> None:
    """All assignments of letters to user 1, one user aside and two others, kept or not."""
    rng = np.random.default_rng(seed)
    letters = 3
    p, moved = rng.dirichlet(np.ones(letters)), rng.dirichlet(np.ones(letters))
    others = [rng.dirichlet(np.ones(letters)) for _ in range(3)]
    w, e = moved / p, [other / p for other in others]
    # The view of user 1 and the user aside alone: S' = E[w(z) | their two letters]
    pair = np.outer(p, others[0])
    inner = (pair * w[:, None] + (pair * w[:, None]).T) / (pair + pair.T)
    sums: dict[tuple[int, ...], np.ndarray] = {}
    for z, y, a, b in itertools.product(range(letters), repeat=4):
        weight = p[z] * others[0][y] * others[1][a] * others[2][b]
        v = inner[z, y]
        f = v + ((w[a] - v) / e[1][a] + (w[b] - v) / e[2][b]) / 4.0
        seen = tuple(sorted((z, y, a, b)))
        sums[seen] = sums.get(seen, np.zeros(3)) + weight * np.array([1.0, w[z], f])
    for mass, ratio, estimate in sums.values():
        assert estimate / mass == pytest.approx(ratio / mass, abs=1e-12)


@pytest.mark.parametrize("sample", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_with_users_aside_is_unbiased_for_a_fixed_size(seed: int, sample: int) -> None:
    """The same with a letter more, "not drawn", which all but `sample` users send."""
    rng = np.random.default_rng([seed, sample])
    letters = 3
    p, moved = (np.append(rng.dirichlet(np.ones(letters)), 1.0) for _ in range(2))
    others = [np.append(rng.dirichlet(np.ones(letters)), 1.0) for _ in range(3)]
    w, e = moved / p, [other / p for other in others]
    pair = np.outer(p, others[0])
    # How many of the two are drawn is the same both ways round: nothing else is needed of the others.
    inner = (pair * w[:, None] + (pair * w[:, None]).T) / (pair + pair.T)
    sums: dict[tuple[int, ...], np.ndarray] = {}
    for z, y, a, b in itertools.product(range(letters + 1), repeat=4):
        if sum(letter < letters for letter in (z, y, a, b)) != sample:
            continue
        v = inner[z, y]
        f = v + ((w[a] - v) / e[1][a] + (w[b] - v) / e[2][b]) / 4.0
        weight = p[z] * others[0][y] * others[1][a] * others[2][b]
        seen = tuple(sorted((z, y, a, b)))
        sums[seen] = sums.get(seen, np.zeros(3)) + weight * np.array([1.0, w[z], f])
    for mass, ratio, estimate in sums.values():
        assert estimate / mass == pytest.approx(ratio / mass, abs=1e-12)


# ---------------------------------------------------------------------------------------------
# One user: the law of an interval is above that of every place in it.


def stop_loss(r: float, thin: Thinning, a: float, v: float, k: float) -> float:
    """The call of X_a at k >= 0, its put at k < 0: `E_p(w - v - k ê)+` and its mirror, by sums in two dimensions."""
    s, y = np.linspace(-9.0, 9.0, 3001), np.linspace(-9.0, 9.0, 301)
    second, first = (np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi) * (x[1] - x[0]) for x in (s, y))
    w = np.exp(r * s - 0.5 * r**2)
    e = np.exp(r * (a * s[:, None] + math.sqrt(1.0 - a**2) * y) - 0.5 * r**2)
    if thin.q < 1.0:
        c = math.exp(-r * thin.t - 0.5 * r**2)
        e = np.minimum(1.0, e / c) / (1.0 - thin.tau)
    gain = (w[:, None] - v - k * e) * (1.0 if k >= 0.0 else -1.0)
    return float(second @ np.maximum(gain, 0.0) @ first)


@pytest.mark.parametrize("at", [-math.inf, 0.25])
@pytest.mark.parametrize("interval", [(-1.0, -0.6), (-0.6, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("v", [0.7, 1.0, 1.4])
def test_an_interval_is_above_its_places(at: float, interval: tuple[float, float], v: float) -> None:
    r = 0.5
    thin = Thinning.of(r, at)
    (term,) = groups._interval_terms(Lognormal(scale=1.0 / r), thin, interval, v, 1e-20)
    x, mass = term.point - (v - 1.0), term.mass
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert mass @ x == pytest.approx(1.0 - v, abs=1e-10)
    for k in (-0.8, -0.3, -0.1, 0.1, 0.4, 1.2):
        price = float(mass @ np.maximum((x - k) * (1.0 if k >= 0.0 else -1.0), 0.0))
        every = [stop_loss(r, thin, a, v, k) for a in np.linspace(*interval, 4)]
        assert price >= max(every) - 2e-6  # what the reference is off by
        assert price <= max(every) * 1.05 + 5e-3  # spreads cost little


# ---------------------------------------------------------------------------------------------
# Groups.


def test_the_law_of_the_largest_prices() -> None:
    rng = np.random.default_rng(5)
    points = np.concatenate([-(2.0 ** np.arange(6.0)[::-1]), np.linspace(-0.5, 0.5, 11), 2.0 ** np.arange(6.0)])
    points[np.argmin(np.abs(points))] = 0.0
    for _ in range(50):
        rows = rng.dirichlet(np.full(len(points), 0.3), size=4)
        rows /= 2.0
        for row in rows:  # mean 0: mass moved between the ends
            side = 0 if row @ points > 0.0 else -1
            part = abs(row @ points) / abs(points[side])
            assert part < 0.5
            row[side] += part
            row[np.searchsorted(points, 0.0)] += 1.0 - row.sum()
        mass, stretch = groups.law_of_largest_prices(points, rows)
        assert mass.min() >= 0.0
        assert mass.sum() == pytest.approx(1.0, abs=1e-14)
        assert stretch < 1e-10
        for k in points:
            sign = 1.0 if k >= 0.0 else -1.0
            every, found = (law @ np.maximum(sign * (points - k), 0.0) for law in (rows, mass))
            assert found == pytest.approx(every.max(), rel=1e-11, abs=1e-15)


def contracted(r: float, a: float, v: float, step: float, size: int) -> np.ndarray:
    """X_a + v - 1 without thinning, on a lattice of `size` points, each atom at its nearest point."""
    z = np.linspace(-1.0, 1.0, 3001)
    s, ws = np.polynomial.hermite_e.hermegauss(60)
    zeta, width = 9.0 * z + a * r, r * math.sqrt(1.0 - a**2)
    density = 9.0 * (z[1] - z[0]) * np.exp(-0.5 * (9.0 * z) ** 2) / math.sqrt(2.0 * math.pi)
    x = (np.exp(r * zeta - 0.5 * r**2) - v) * np.exp(-r * a * zeta + 0.5 * (r * a) ** 2)
    y = x[:, None] * np.exp(width * s - 0.5 * width**2) + v - 1.0
    index = np.clip(np.rint(y / step).astype(int) + size // 2, 0, size - 1)
    mass = np.outer(density, ws / math.sqrt(2.0 * math.pi))
    return np.bincount(index.ravel(), mass.ravel(), size)


@pytest.mark.parametrize("v", [0.95, 1.0, 1.1])
def test_a_group_is_above_any_mixture_of_places_in_an_interval(v: float) -> None:
    r, size, step, cells = 0.4, 6, 2e-3, 2**14
    plan = groups.Division(size=size, cuts=(-1.0, -0.5, 0.2, 1.0), t=-math.inf)
    nodes = groups.MixtureNodes(value=np.array([v]), chance=np.ones((1, 1)), beyond=np.zeros(1), weight=np.ones(1))
    batch = groups._group_batch(Lognormal(scale=1.0 / r), Thinning.of(r, -math.inf), plan, nodes, 128, 1e-20)
    assert batch.stretch[0] < 1e-6
    points, mass = in_order(batch.points()), in_order(batch.rows[0, 0])
    rng = np.random.default_rng(3)
    lattice = (np.arange(cells) - cells // 2) * step
    tightest = 0.0
    for low, high in itertools.pairwise(plan.cuts):
        for places in ([low] * size, [high] * size, [low, high] * (size // 2), rng.uniform(low, high, size)):
            kinds = {a: np.fft.rfft(np.fft.ifftshift(contracted(r, a, v, step, cells))) for a in set(places)}
            total = np.fft.fftshift(np.fft.irfft(math.prod(kinds[a] for a in places), cells))
            total /= total.sum()
            centre = lattice - total @ lattice
            for k in (-1.5, -0.7, -0.2, 0.2, 0.7, 1.5, 3.0):
                sign = 1.0 if k >= 0.0 else -1.0
                exact = float(total @ np.maximum(sign * (centre - k), 0.0))
                found = float(mass @ np.maximum(sign * (points - k), 0.0))
                assert found >= exact * (1.0 - 1e-4) - 1e-9, (places, k)
                tightest = max(tightest, exact / found)
    assert tightest > 0.95


# ---------------------------------------------------------------------------------------------
# Real crowds of many places lie below: reports rounded to letters, the histogram of all users.


def histogram_delta(places: np.ndarray, sigma: float, epsilon: float, edges: list[float]) -> float:
    """delta of the counts of letters (post-processing of the shuffled reports), the worse direction."""

    def letters(x: float) -> np.ndarray:
        return np.diff(special.ndtr((np.concatenate([[-np.inf], edges, [np.inf]]) - x) / sigma))

    def with_user(counts: np.ndarray, x: float) -> np.ndarray:
        chance, grown = letters(x), np.zeros([n + 1 for n in counts.shape])
        grown[:-1, :-1, :-1] += chance[0] * counts
        for axis in range(3):
            place = [slice(None, -1)] * 3
            place[axis] = slice(1, None)
            grown[tuple(place)] += chance[axis + 1] * counts
        return grown

    counts = np.ones((1, 1, 1))
    for x in places:
        counts = with_user(counts, float(x))
    still, moved = with_user(counts, 0.0), with_user(counts, 1.0)
    scale = math.exp(epsilon)
    return max(float(np.maximum(a - scale * b, 0.0).sum()) for a, b in ((still, moved), (moved, still)))


@pytest.mark.parametrize(("users", "sigma", "epsilon"), [(100, 5.0, 0.03), (100, 2.0, 0.05)])
def test_mixed_crowds_lie_below_the_bound(users: int, sigma: float, epsilon: float) -> None:
    m = Shuffle(users=users, sigma=sigma)
    assert groups.grouping(m.upper_round().ratio, users) is not None
    bound = m.delta(epsilon=epsilon).upper
    rng = np.random.default_rng(11)
    half = (users - 1) // 2
    crowds = {
        "opposite": np.full(users - 1, -1.0),
        "half": np.repeat([-1.0, 1.0], [users - 1 - half, half]),
        "half, one by one": np.resize([-1.0, 1.0], users - 1),
        "many places": rng.uniform(-1.0, 1.0, users - 1),
        "sorted": np.linspace(-1.0, 0.0, users - 1),
    }
    edges = [-0.5 * sigma, 0.8 * sigma, 2.0 * sigma]
    found = {name: histogram_delta(places, sigma, epsilon, edges) for name, places in crowds.items()}
    assert all(0.0 < delta <= bound for delta in found.values()), (found, bound)
    # The check can fail: rounding to four letters keeps a good part of the worst crowd's delta.
    assert found["opposite"] > 0.05 * bound, (found, bound)


# Few users in small groups: the law of the counts of letters, for many crowds, both directions at many thresholds.


def counts(places: np.ndarray, sigma: float, silent: float, sent: float) -> np.ndarray:
    """The law of how many reports are in each of four letters; users stay silent or send with these weights."""
    edges = np.array([-np.inf, -0.5 * sigma, 0.6 * sigma, 1.7 * sigma, np.inf])
    found = np.zeros((len(places) + 1,) * 4)
    found[0, 0, 0, 0] = 1.0
    for x in places.tolist():
        chance, grown = np.diff(special.ndtr((edges - x) / sigma)), silent * found
        for axis in range(4):
            to, of = [slice(None)] * 4, [slice(None)] * 4
            to[axis], of[axis] = slice(1, None), slice(None, -1)
            grown[tuple(to)] += sent * chance[axis] * found[tuple(of)]
        found = grown
    return found


FEW = {
    "shuffle": Exchange(ratio=Lognormal(scale=2.0), users=10),
    "check-in": Exchange(ratio=Lognormal(scale=1.5, rate=0.4), users=11),
    "fixed size": Exchange(ratio=Lognormal(scale=2.0), users=11, sample=7),
    "small sample": Exchange(ratio=Lognormal(scale=1.5), users=12, sample=4),
    "all of them": Exchange(ratio=Lognormal(scale=3.0), users=9, sample=9),
}


@pytest.mark.parametrize("at", [-math.inf, 0.5])
@pytest.mark.parametrize("name", FEW)
def test_every_crowd_is_below_the_law_of_small_groups(name: str, at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_MIXED_SENDERS", 0.0)  # so few would be taken by size, where there are no groups
    few = FEW[name]
    drawn = few.sample is not None
    plan = groups.Division(size=2, cuts=(-1.0, -0.3, 1.0), t=-math.inf if drawn else at, drawn=drawn)
    bound = exchange._prices_with_groups(few, plan, 512, 1e-24)
    n, sigma = few.users, few.ratio.scale
    silent, sent = (1.0, 1.0) if drawn else (1.0 - few.ratio.rate, few.ratio.rate)
    rng = np.random.default_rng([ord(letter) for letter in name])
    half = np.resize([-1.0, 1.0], n - 1)
    crowds = [np.full(n - 1, -1.0), half, np.sort(half), np.linspace(-1.0, 1.0, n - 1)]
    crowds += [rng.choice([-1.0, 1.0, rng.uniform(-1.0, 1.0)], n - 1) for _ in range(4)]
    epsilon = np.concatenate([-np.geomspace(1.0, 0.01, 12), np.geomspace(0.01, 1.5, 12)])
    tightest = 0.0
    for places in crowds:
        still, moved = (counts(np.append(places, x), sigma, silent, sent) for x in (0.0, 1.0))
        if drawn:
            there = np.indices(still.shape).sum(axis=0) == few.sample
            still, moved = still[there] / math.comb(n, few.sample or 0), moved[there] / math.comb(n, few.sample or 0)
        for k in np.exp(epsilon).tolist():
            gain = moved - k * still if k > 1.0 else k * still - moved
            exact, found = float(np.maximum(gain, 0.0).sum()), float(bound.at(np.array([k - 1.0]))[0])
            assert exact <= found, (name, places, k)
            tightest = max(tightest, exact / found)
    print(f"{name}: {tightest:.3f} of the bound found")
    assert tightest > 0.5  # it could fail


# ---------------------------------------------------------------------------------------------
# How sharp it is: users, sigma, rate, rounds, delta, and what epsilon must not exceed.

SHARP = [
    (60_000, 9.48, 1.0, 1, 1 / 60_000, 6.27e-4),
    (60_000, 9.48, 1.0, 7, 1 / 60_000, 2.15e-3),
    (60_000, 5.0, 0.1, 5_540, 1e-5, 0.0642),
    (100_000, 2.0, 1.0, 1, 1e-8, 0.0114),
    (1_000, 2.0, 1.0, 1, 1e-6, 0.1345),
    (1_000, 2.0, 1.0, 100, 1e-6, 1.24),
    (100, 5.0, 1.0, 1, 1e-5, 0.0745),
]


@pytest.mark.parametrize(("users", "sigma", "rate", "rounds", "delta", "most"), SHARP)
def test_epsilon_is_close_to_what_the_opposite_crowd_reveals(
    users: int, sigma: float, rate: float, rounds: int, delta: float, most: float
) -> None:
    m = Shuffle(users=users, sigma=sigma) if rate == 1.0 else ShuffledCheckIn(users=users, sigma=sigma, rate=rate)
    found = m.epsilon(delta=delta, rounds=rounds)
    assert found.lower <= found.upper <= most
    # as the curve of all questions says
    assert evaluate.upper_delta(((m.upper_round(), rounds),), found.upper * 1.001) <= delta


# Fixed sizes: users, sample, sigma, rounds, delta, and how far above the opposite crowd's epsilon it may be.
FIXED = [
    (60_000, 6_000, 5.0, 1, 1e-5, 1.042),
    (60_000, 6_000, 5.0, 5_540, 1e-5, 1.038),
    (10_000, 1_000, 2.0, 1, 1e-6, 1.032),
    (100_000, 10_000, 2.0, 1, 1e-8, 1.021),
    (1_000, 500, 5.0, 1, 1e-5, 1.075),
]


@pytest.mark.parametrize(("users", "sample", "sigma", "rounds", "delta", "most"), FIXED)
def test_fixed_sizes_are_close_to_it_too(
    users: int, sample: int, sigma: float, rounds: int, delta: float, most: float
) -> None:
    found = SubsampledShuffle(users=users, sample=sample, sigma=sigma).epsilon(delta=delta, rounds=rounds)
    assert found.lower <= found.upper <= most * found.lower


def test_the_plain_theorem_is_taken_where_it_is_better() -> None:
    """One large term decides there."""
    m = SubsampledShuffle(users=1_000, sample=100, sigma=1.5).upper_round()
    plan = groups.grouping(m.ratio, 1_000, 100)
    assert plan is not None
    gap = np.array([math.expm1(0.36)])
    grouped, best = (
        prices.at(gap)[0] for prices in (exchange._prices_with_groups(m, plan, 512, 1e-24), m.law(512, 1e-24).prices())
    )
    assert best < 0.99 * grouped


@pytest.mark.parametrize(
    ("users", "sigma"), [((79, 80), 2.0), ((399, 400), 1.3), ((499, 500), 2.0), ((3_999, 4_000), 4.0)]
)
def test_no_jump_where_the_rule_changes(users: tuple[int, int], sigma: float) -> None:
    fewer, more = (evaluate.upper_epsilon(((Shuffle(users=n, sigma=sigma).upper_round(), 1),), 1e-6) for n in users)
    assert more <= 1.002 * fewer


def test_few_users_and_little_noise_are_not_grouped() -> None:
    assert groups.grouping(Lognormal(scale=5.0), 20) is None
    assert groups.grouping(Lognormal(scale=0.9), 10**6) is None
    assert groups.grouping(Lognormal(scale=5.0), 10**6, 50) is None
    plan = groups.grouping(Lognormal(scale=5.0), 60_000)
    assert plan is not None
    for kept in range(59_990, 60_000):
        rest = kept - plan.size * plan.groups(kept)
        assert plan.aside <= rest < plan.aside + plan.size
        assert all(plan.aside <= count <= rest for count in plan.asides([kept]))


def test_users_of_a_fixed_size_are_counted_to_the_safe_side() -> None:
    """v is that of the largest g, groups those of the smallest; nobody drawn is forgotten."""
    few = Exchange(ratio=Lognormal(scale=5.0), users=1_000, sample=200)
    plan = groups.grouping(few.ratio, 1_000, 200)
    assert plan is not None
    thin = Thinning.of(0.2, plan.t)
    cases, small, lost, _ = exchange._split_sample(few, plan, thin, 1e-20, 1.0)
    assert sum(case.chance for case in cases) == pytest.approx(1.0, abs=1e-12)
    assert lost <= 1e-19
    assert plan.lone == (len(plan.cuts) - 2) * plan.size  # a group across each end of an interval
    largest = sorted(small)
    for case in cases:
        smallest = next((g for g in reversed(largest) if g < case.law), -1) + 1
        assert plan.lone + plan.size * case.groups >= 200 - smallest
        assert small[case.law].terms == case.law - 1
        assert small[case.law].present == pytest.approx(case.law / (case.aside + 1), rel=1e-12)
        assert small[case.law].denominator == case.aside + 1


def test_users_aside_alone_are_the_law_that_bounds_them() -> None:
    """No groups: f is v. With one group more, both parts count in full."""
    ratio, thin = Lognormal(scale=5.0), Thinning.of(0.2, -math.inf)
    plan = groups.Division(size=4, cuts=(-1.0, -0.3, 1.0), t=-math.inf)
    law = PricedLaw(gap=np.array([-0.4, 0.0, 0.1, 0.3]), mass=np.array([0.1, 0.7, 0.1, 0.1]), infinite=0.0)

    def priced(kept: int) -> Prices:
        case = groups.Grouped(hidden=kept, aside=plan.aside, law=0, groups=plan.groups(kept), chance=1.0)
        return groups.grouped_prices(ratio, thin, plan, {0: law}, [case], 0.0, 0.0, 96, 1e-20)

    at = np.array([-0.3, -0.1, 0.0, 0.05, 0.2])
    alone, more = (priced(kept).at(at) for kept in (plan.aside, plan.aside + 4))
    assert np.all(alone >= law.prices().at(at) * (1.0 - 1e-12))
    assert alone[2] <= 1.5 * law.prices().at(at)[2]
    # (K2 + 1)(v - 1) over K + 1, and terms of mean 0: above v itself, made smaller by that factor
    part = (plan.aside + 1) / (plan.aside + 5)
    smaller = PricedLaw(gap=law.gap * part, mass=law.mass, infinite=0.0).prices()
    assert np.all(more >= smaller.at(at) * (1.0 - 1e-12))
    # 4 users add their own size, but far less than user 1 with 6 others
    assert more[2] <= 2.0 * smaller.at(at)[2]

"""Any crowd: the clones theorem in numbers, its search, and the bad crowd that bounds it from below."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from shoal import Accountant, LocalGaussian, Shuffle, ShuffledCheckIn, SubsampledShuffle, crowd, pld
from shoal.compose import Composition
from shoal.crowd import AnyCrowd, ByZero, Clones, stray
from shoal.ratio import MeanRatio, Ratio
from shoal.witness import Opposite


def exact_stray(sigma, exponent):
    """tau with 50 digits: E over the zero vector's and the moved user's report of (1 - p_j / (c p))+."""
    with mpmath.workdps(50):
        r, e0 = 1 / mpmath.mpf(sigma), mpmath.mpf(exponent)

        def delta(e):
            return mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)

        return float(delta(e0) + delta(e0 - r**2))


@pytest.mark.parametrize(
    ("sigma", "t", "clone", "tau"),
    [
        (1.0, 3.0, 0.0301973834223, 0.00660609787),
        (9.48, 4.2, 0.638520471745, 7.812918398e-7),
        (5.0, 5.45, 0.329558961075, 3.468132682e-9),
    ],
)
def test_known_values_of_the_clone_probability_and_of_tau(sigma, t, clone, tau):
    exponent = 0.5 / sigma**2 + t / sigma
    assert math.exp(-exponent) == pytest.approx(clone, rel=1e-11)
    assert stray(sigma, exponent) == pytest.approx(tau, rel=1e-9)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("t", [2.0, 5.0, 8.0])
def test_tau_is_never_too_small(sigma, t):
    exponent = 0.5 / sigma**2 + t / sigma
    if exponent >= 1 / sigma**2:
        exact = exact_stray(sigma, exponent)
        assert exact <= stray(sigma, exponent) <= exact * (1 + 1e-7)


def test_tau_by_quadrature():
    """tau as what it is: a crowd user at -x' whose report cannot pass for a clone."""
    sigma, exponent = 2.0, 2.0
    r, c = 1 / sigma, math.exp(-exponent)

    def lost(z):
        return max(0.0, 1.0 - math.exp(-r * z - r**2 / 2) / c)

    kink = (exponent - r**2 / 2) / r
    total = sum(
        integrate.quad(lambda z, place=place: lost(z) * stats.norm.pdf(z - place), kink, kink + 30, epsabs=1e-14)[0]
        for place in (0.0, r)
    )
    assert total == pytest.approx(stray(sigma, exponent), rel=1e-8)


@pytest.mark.parametrize(("trials", "exponent"), [(1, 0.5), (7, 2.0), (999, 2.6), (59_999, 0.45), (10**7, 1.1)])
def test_binomial_masses(trials, exponent):
    first, masses, error = crowd._binomial(trials, exponent, 1e-12)
    exact = stats.binom(trials, math.exp(-exponent))
    counts = np.arange(first, first + len(masses))
    assert masses == pytest.approx(exact.pmf(counts), rel=1e-9, abs=1e-16)
    assert exact.cdf(first - 1) + exact.sf(counts[-1]) <= 1e-12
    assert error < 1e-8


def any_crowd(users, sigma=2.0, rate=1.0, sample=None):
    return AnyCrowd(ratio=Ratio(scale=sigma, rate=rate), users=users, sample=sample)


@pytest.mark.parametrize(
    "case", [any_crowd(12), any_crowd(12, 1.0), any_crowd(12, 2.0, 0.3), any_crowd(12, 2.0, 1.0, 5)]
)
@pytest.mark.parametrize("way", ["forward", "reverse"])
def test_the_pair_is_the_sum_over_the_number_of_clones(case, way):
    """E_K[delta] + t term by term, each from the identical crowd of K+1 users."""
    clones = Clones(crowd=case, exponent=2.0, spare=1e-13)
    c, n, m = math.exp(-2.0), case.users, case.reports
    if case.sample is None:
        terms = [(stats.binom.pmf(k, n - 1, c), k + 1, 1.0) for k in range(n)]
    else:
        chances = [stats.binom.pmf(g, m, c) * (g + c * (n - m)) / (n * c) for g in range(m + 1)]
        assert sum(chances) == pytest.approx(1.0)
        terms = [(chances[g], g, g / (g + c * (n - m))) for g in range(1, m + 1)]
    cost = exact_stray(case.ratio.scale, 2.0) * case.ratio.rate * case.weight * (n - 1) * c / (1 + (n - 1) * c)
    curve = Composition(parts=((clones, 1),), half=512, budget=1e-30).above(way)
    least = math.inf
    for epsilon in (0.0, 0.05, 0.2, 0.5):
        each = [
            (chance, pld.deltas(((MeanRatio(ratio=case.ratio, users=k, weight=w), 1),), [epsilon], direction=way)[0])
            for chance, k, w in terms
        ]
        extra = cost * (1.0 if way == "forward" else math.exp(epsilon))
        total = sum(chance * found.upper for chance, found in each) + extra
        least = min(least, total)
        assert curve.delta(epsilon) <= least * 1.01
        if way == "forward":
            assert curve.delta(epsilon) >= sum(chance * found.lower for chance, found in each) + extra


def test_without_base_is_the_running_minimum():
    """Taking t of base mass off every test equals min over eps' <= eps of delta(eps') + e^eps' t."""
    rng = np.random.default_rng(1)
    loss = np.sort(rng.normal(size=50))
    base = rng.random(50)
    base /= base.sum()
    top = base * np.exp(loss)
    pair = crowd.Pair(side="upper", loss=loss, base=base, top=top, infinite=0.0)
    assert crowd._without_base(pair, 2.0).infinite == 1.0
    for mass in (1e-3, 0.05, 0.4):
        moved = crowd._without_base(pair, mass)
        grid = np.linspace(-6.0, 4.0, 20_001)
        whole = np.maximum(top - np.exp(grid)[:, None] * base, 0.0).sum(axis=1) + np.exp(grid) * mass
        for epsilon in (-1.0, 0.0, 0.5, 2.0):
            here = np.maximum(moved.top - math.exp(epsilon) * moved.base, 0.0).sum() + moved.infinite
            least = whole[grid <= epsilon].min()
            assert here == pytest.approx(least, abs=1e-3)


VALUES = [
    (Shuffle(users=60_000, sigma=9.48), 1 / 60_000, 1, 8.15e-4),
    (ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0), 1e-5, 5_540, 0.108),
    (Shuffle(users=1_000, sigma=2.0), 1e-6, 1, 0.257),
    (Shuffle(users=60_000, sigma=9.48, adjacency="replace"), 1 / 60_000, 1, 1.98e-3),
    (ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, adjacency="replace"), 1e-5, 5_540, 0.234),
    (Shuffle(users=1_000, sigma=2.0, adjacency="replace"), 1e-6, 1, 0.56),
]


@pytest.mark.parametrize(("m", "delta", "rounds", "most"), VALUES, ids=lambda v: getattr(v, "label", v))
def test_values(m, delta, rounds, most):
    found = m.epsilon(delta=delta, rounds=rounds)
    assert found.upper <= most
    ideal = m.replace(crowd="identical").epsilon(delta=delta, rounds=rounds)
    local = LocalGaussian(sigma=m.sigma, adjacency=m.adjacency).epsilon(delta=delta, rounds=rounds)
    assert ideal.lower * (1 - 0.01) <= found.lower < found.upper < local.upper
    # the delta asked at that eps is the one given, up to how well the clone probability is chosen
    back = m.delta(epsilon=found.upper, rounds=rounds)
    assert back.lower < delta
    assert back.upper == pytest.approx(delta, rel=0.05)


def test_witness_values():
    """Values of the opposite crowd computed independently."""
    first = Shuffle(users=60_000, sigma=9.48).epsilon(delta=1 / 60_000)
    assert first.lower == pytest.approx(6.12e-4, rel=2e-3)
    second = Shuffle(users=1_000, sigma=2.0).epsilon(delta=1e-6)
    assert 0.99 * 0.1272 <= second.lower <= 0.1272


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 0.5), (2.0, 0.2), (0.5, 3.0)])
@pytest.mark.parametrize("way", ["forward", "reverse"])
def test_witness_of_two_users_by_quadrature(sigma, epsilon, way):
    """delta = E[(mean of w_2 - e^eps w_1)+] over the crowd's reports, in two dimensions."""
    r = 1 / sigma
    z = np.linspace(-10.0, 10.0 + 2 * r, 4001)
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    one, two = (np.exp(a * r * z - a**2 * r**2 / 2) for a in (1, 2))
    score = two - math.exp(epsilon) * one if way == "forward" else one - math.exp(epsilon) * two
    exact = weight @ np.maximum(0.5 * (score[:, None] + score[None, :]), 0.0) @ weight
    mean = MeanRatio(ratio=Ratio(scale=sigma), users=2)
    sign = 1.0 if way == "forward" else -1.0
    found = pld.deltas(((Opposite(mean=mean, loss=sign * epsilon), 1),), [epsilon], direction=way)[0]
    assert found.lower <= exact * (1 + 1e-6)
    # Clipped scores leave a coarse lattice to the small ones that matter in reverse with little noise.
    assert found.lower >= (0.97 if way == "forward" or sigma >= 1.0 else 0.0) * exact


def test_witness_by_simulation():
    """Check-in and a fixed size, against the best test of simulated rounds."""
    rng = np.random.default_rng(7)
    n, sigma, rate, epsilon, games = 30, 1.0, 0.5, 0.3, 400_000
    r = 1 / sigma
    z = rng.normal(size=(games, n))
    there = rng.random((games, n)) < rate
    one, two = (np.where(there, np.exp(a * r * z - a**2 * r**2 / 2), 1.0).mean(axis=1) for a in (1, 2))
    gain = np.maximum(two - math.exp(epsilon) * one, 0.0)
    low, high = (gain.mean() + s * 5 * gain.std() / math.sqrt(games) for s in (-1, 1))
    mean = MeanRatio(ratio=Ratio(scale=sigma, rate=rate), users=n)
    found = pld.deltas(((Opposite(mean=mean, loss=epsilon), 1),), [epsilon], direction="forward")[0]
    assert 0.97 * low <= found.lower <= high
    w = 0.25
    mixed = 1 - w + w * np.stack([np.exp(a * r * z - a**2 * r**2 / 2).mean(axis=1) for a in (1, 2)])
    gain = np.maximum(mixed[1] - math.exp(0.1) * mixed[0], 0.0)
    low, high = (gain.mean() + s * 5 * gain.std() / math.sqrt(games) for s in (-1, 1))
    mean = MeanRatio(ratio=Ratio(scale=sigma), users=n, weight=w)
    found = pld.deltas(((Opposite(mean=mean, loss=0.1), 1),), [0.1], direction="forward")[0]
    assert 0.9 * low <= found.lower <= high


def test_one_user_is_the_local_guarantee():
    for sigma in (0.5, 3.0):
        assert Shuffle(users=1, sigma=sigma).epsilon(delta=1e-5).upper == pytest.approx(
            LocalGaussian(sigma=sigma).epsilon(delta=1e-5).upper, rel=2e-3
        )


def test_few_users_gain_and_the_reverse_direction_is_not_forgotten():
    """With few clones the mass at infinity of the reverse direction is much more than tau."""
    m = ShuffledCheckIn(users=100, rate=0.3, sigma=2.0)
    alone = ((MeanRatio(ratio=Ratio(scale=2.0, rate=0.3), users=1), 20),)
    assert m.epsilon(delta=1e-5, rounds=20).upper < 0.5 * pld.epsilons(alone, [1e-5])[0].lower


@pytest.mark.parametrize("sample", [1, 2, 10])
def test_small_samples_over_many_rounds(sample):
    """Rounds in which nobody special was sampled count as rounds, too."""
    m = SubsampledShuffle(users=50, sample=sample, sigma=2.0)
    found = m.epsilon(delta=1e-4, rounds=30)
    assert m.replace(crowd="identical").epsilon(delta=1e-4, rounds=30).upper <= found.upper
    for mass in (1e-9, 1e-6):
        for way in ("forward", "reverse"):
            pair = crowd._resolved(((m.round(), 1),), mass)[0][0].pair(256, 1e-24, "upper", way)
            assert pair.base.sum() + (mass if way == "reverse" else 0.0) >= 1.0 - 1e-9
            assert pair.top.sum() + pair.infinite >= 1.0 - 1e-9


def test_any_crowd_tends_to_the_identical_one_with_much_noise():
    m = Shuffle(users=10_000, sigma=300.0)
    found, ideal = (m.replace(crowd=c).epsilon(delta=1e-7).upper for c in ("any", "identical"))
    assert ideal <= found <= 1.1 * ideal


@pytest.mark.parametrize(
    "m",
    [
        Shuffle(users=200, sigma=3.0),
        SubsampledShuffle(users=2_000, sample=200, sigma=3.0),
        ShuffledCheckIn(users=2_000, rate=0.1, sigma=3.0),
    ],
    ids=lambda m: m.label,
)
def test_laws(m):
    """More users, more noise, fewer rounds: never worse; replace is never better; lower ends stay below."""
    how = {"delta": 1e-5, "rounds": 3}
    here = m.epsilon(**how)
    assert here.lower <= here.upper <= LocalGaussian(sigma=m.sigma).epsilon(**how).upper
    assert m.replace(users=2 * m.users).epsilon(**how).upper <= here.upper * 1.002
    assert m.replace(sigma=1.2 * m.sigma).epsilon(**how).upper <= here.upper * 1.002
    assert m.epsilon(delta=1e-5, rounds=4).upper >= here.upper * 0.998
    assert m.replace(adjacency="replace").epsilon(**how).upper >= here.upper


def test_different_rounds_together():
    one, other = Shuffle(users=5_000, sigma=3.0), ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0)
    both = Accountant().compose(one, rounds=5).compose(other, rounds=100)
    found = both.epsilon(delta=1e-5)
    parts = [one.epsilon(delta=1e-5, rounds=5), other.epsilon(delta=1e-5, rounds=100)]
    assert max(p.lower for p in parts) * 0.99 <= found.lower
    assert max(p.upper for p in parts) * 0.99 <= found.upper
    assert found.upper <= sum(p.upper for p in parts)
    with_local = (
        Accountant().compose(one.replace(adjacency="replace")).compose(LocalGaussian(sigma=50.0, adjacency="replace"))
    )
    assert (
        with_local.epsilon(delta=1e-5).upper < LocalGaussian(sigma=3.0, adjacency="replace").epsilon(delta=1e-5).upper
    )


def test_group_privacy_by_way_of_zero():
    """For one plain report the way through zero is known: it may not be below the Gaussian mechanism."""
    rounds = ((MeanRatio(ratio=Ratio(scale=3.0), users=1), 1),)
    above = Composition(parts=rounds, half=1024, budget=1e-30).above
    by_zero = ByZero(there=above("forward"), back=above("reverse"))
    for epsilon in (0.1, 1.0, 3.0):
        exact = LocalGaussian(sigma=3.0, adjacency="replace").delta(epsilon=epsilon)
        assert by_zero.delta(epsilon) >= exact.lower
    assert by_zero.delta(by_zero.epsilon(1e-3)) <= 1e-3


def test_the_moved_crowd_of_the_paper_is_worse():
    """The counter-example to "w.l.o.g.": Rényi DP of order 2, two users, sigma = 1."""

    def order_two(places):
        z = np.linspace(-12.0, 12.0, 2401)
        step = z[1] - z[0]
        before, after = (
            sum(
                np.multiply.outer(stats.norm.pdf(z - a), stats.norm.pdf(z - b)) for a, b in itertools.permutations(pair)
            )
            / 2
            for pair in places
        )
        return math.log((after**2 / before).sum() * step**2)

    assert order_two([(0.0, 0.0), (1.0, 0.0)]) == pytest.approx(0.6201145070, abs=1e-9)
    assert order_two([(0.0, -1.0), (1.0, -1.0)]) == pytest.approx(0.9514579734, abs=1e-9)
    assert Shuffle(users=2, sigma=1.0, crowd="identical").rdp(2)[0] == pytest.approx(0.6201145070, abs=1e-9)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_questions_far_out(adjacency):
    """Large eps, where no report reaches the attack's threshold, and rates of error that nobody can measure."""
    m = Shuffle(users=1_000, sigma=2.0, adjacency=adjacency)
    far = m.delta(epsilon=5.0 if adjacency == "zero-out" else 12.0)
    assert 0.0 <= far.lower <= far.upper < 1e-4
    power = m.tradeoff(1e-14)
    assert 1e-14 <= power.lower <= power.upper <= LocalGaussian(sigma=2.0, adjacency=adjacency).tradeoff(1e-14).upper


def test_by_way_of_zero_does_not_fall_off():
    """From T to T + 20 rounds nothing much may happen, although the way back needs fewer and fewer clones."""
    m = Shuffle(users=10_000, sigma=2.0, adjacency="replace")
    some, more = (m.epsilon(delta=1e-6, rounds=t).upper for t in (40, 60))
    assert some < more < 1.5 * some


def test_bad_input():
    with pytest.raises(ValueError, match=r"infinite must lie strictly between 0 and 1, got 2.0"):
        Shuffle(users=10, sigma=1.0).pld(infinite=2.0)
    with pytest.raises(ValueError, match=r"infinite must be at least 1e-100, got 1e-310"):
        Shuffle(users=10, sigma=1.0).pld(infinite=1e-310)
    with pytest.raises(ValueError, match=r"step must be above 0 and at most 1, got -1.0"):
        Shuffle(users=10, sigma=1.0).pld(step=-1.0)
    with pytest.raises(ValueError, match=r"step must be at least 2.4e-06 for losses from -11.3 to 11.1, got 1e-09"):
        Shuffle(users=10, sigma=1.0).pld(step=1e-9)


def test_dp_accounting_distribution():
    m = Shuffle(users=1_000, sigma=2.0)
    found = m.pld(infinite=1e-7).get_epsilon_for_delta(1e-6)
    assert m.epsilon(delta=1e-6).upper * 0.99 <= found <= LocalGaussian(sigma=2.0).epsilon(delta=1e-6).upper

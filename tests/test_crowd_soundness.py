"""No crowd breaks the guarantee for any crowd.

Three independent kinds of evidence, none of which uses the code under test for more than its answer:

- the theorem itself, for finite alphabets in place of Gaussians, against the exact law of what the
  server sees, and the map of its proof, step by step;
- few users in one dimension: exact laws of *rounded* reports. Rounding is post-processing, so such a
  number is a true lower bound on the delta of that crowd and needs no error term; the cells are fine
  enough that little is lost, which is tested;
- many users with all others opposite to the moved one, by a convolution from above.

A report that is not sent (check-in) is one more letter, written first, so check-in is the same
mechanism with another alphabet: the number of users is fixed and known to the server.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from shoal import Interval, LocalGaussian, Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle

Array = npt.NDArray[np.float64]
ROUND_OFF = 1e-13


# ---------------------------------------------------------------------------------------------
# The law of what the server sees.


@functools.lru_cache(maxsize=32)
def multisets(letters: int, size: int) -> tuple[tuple[npt.NDArray[np.intp], ...], Array]:
    """All multisets of `size` letters in sorted order, one array for each place, and 1/(product of multiplicities!)."""
    found = np.array(list(itertools.combinations_with_replacement(range(letters), size)), dtype=np.intp)
    found = found.reshape(-1, size)
    run, weight = np.ones(len(found)), np.ones(len(found))
    for a in range(1, size):
        run = np.where(found[:, a] == found[:, a - 1], run + 1.0, 1.0)
        weight /= run
    return tuple(found.T), weight


def unlabelled(reports: list[Array]) -> Array:
    """Law of the multiset of independent reports, each given by its probabilities along the last axis."""
    if not reports:
        return np.ones(1)
    places, weight = multisets(reports[0].shape[-1], len(reports))

    def permanent(rows: list[Array], columns: tuple[npt.NDArray[np.intp], ...]) -> Array:
        first, rest = rows[0], rows[1:]
        terms = (
            first[..., col] * permanent(rest, columns[:a] + columns[a + 1 :]) if rest else first[..., col]
            for a, col in enumerate(columns)
        )
        return functools.reduce(np.add, terms)

    return weight * permanent(reports, places)


def sampled(reports: list[Array], size: int) -> Array:
    """The same when `size` of the reports, drawn without replacement, are sent."""
    laws = [unlabelled(list(some)) for some in itertools.combinations(reports, size)]
    return functools.reduce(np.add, laws) / len(laws)


def thinned(report: Array, rate: Array | float) -> Array:
    """A report that is sent with probability `rate`: one more letter in front."""
    rate = np.broadcast_to(np.asarray(rate, dtype=float), report.shape[:-1])[..., None]
    return np.concatenate([1.0 - rate, rate * report], axis=-1)


def hockey_stick(p: Array, q: Array, epsilon: Array) -> Array:
    return np.maximum(p - np.exp(epsilon)[:, None] * q, 0.0).sum(axis=-1)


# ---------------------------------------------------------------------------------------------
# Finite alphabets: the theorem in general.

CASES = 2_400
MAPPED = 400
SIZES = [(users, letters) for users in (2, 3, 4) for letters in (2, 3, 4)]


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Random instances of the theorem, one for each row: user 1 holds `still` in D and `moved` in D'."""

    still: Array
    moved: Array
    others: list[Array]
    clone: Array
    epsilon: Array
    rate: Array

    @classmethod
    def draw(cls, users: int, letters: int, count: int) -> Cases:
        rng = np.random.default_rng([users, letters])
        still = rng.dirichlet(np.ones(letters), count)
        near = rng.choice([0.0, 0.5, 0.9, 0.99], size=(count, 1))

        def density() -> Array:
            return near * still + (1.0 - near) * rng.dirichlet(np.full(letters, rng.choice([0.3, 1.0, 3.0])), count)

        moved, others = density(), [density() for _ in range(users - 1)]
        # Often just above the largest clone probability that costs nothing, where the bound is tightest.
        free = np.min([(other / still).min(axis=-1) for other in others], axis=0)
        clone = np.where(rng.random(count) < 0.4, free * rng.uniform(1.0, 1.3, count), rng.random(count))
        return cls(
            still=still,
            moved=moved,
            others=others,
            clone=clone.clip(1e-3, 0.999),
            epsilon=rng.uniform(-1.0, 2.0, count) * rng.choice([0.1, 0.3, 1.0], count),
            rate=rng.random(count),
        )

    @property
    def users(self) -> int:
        return len(self.others) + 1

    def rejection(self, j: int) -> Array:
        """rho_j = (1 - p_j / (c p))_+, the probability that clone j does not keep its point."""
        return np.maximum(1.0 - self.others[j] / (self.clone[:, None] * self.still), 0.0)

    @property
    def tau(self) -> Array:
        costs = [(self.rejection(j) * (self.moved + self.still)).sum(axis=-1) for j in range(self.users - 1)]
        return np.max(costs, axis=0)

    def thinned(self) -> Cases:
        """Check-in: nobody's density of not taking part differs, so c stays and tau becomes rate * tau."""
        return Cases(
            still=thinned(self.still, self.rate),
            moved=thinned(self.moved, self.rate),
            others=[thinned(other, self.rate) for other in self.others],
            clone=self.clone,
            epsilon=self.epsilon,
            rate=self.rate,
        )

    def rest(self, j: int) -> Array:
        """r_j, from which user j reports when it is no clone or does not keep its point."""
        left = self.others[j] - np.minimum(self.others[j], self.clone[:, None] * self.still)
        mass: Array = left.sum(axis=-1, keepdims=True)
        return left / mass

    def step(self, j: int, point: Array) -> Array:
        """Clone j's keep-or-replace step on a point of the given density."""
        lost = point * self.rejection(j)
        return point - lost + lost.sum(axis=-1, keepdims=True) * self.rest(j)

    def labelled(self, clones: tuple[int, ...], others: tuple[int, ...], user1: bool, moved: int | None) -> Array:
        """Law of the server's view when points with the labels `clones` (and 1, if `user1`) take their steps.

        The point labelled `moved` is user 1's own in D' (None: no such point); all others are from
        `still`. `others` report from r_j. Label 1 is -1.
        """
        reports = [self.moved if moved == -1 else self.still] if user1 else []
        reports += [self.step(j, self.moved if j == moved else self.still) for j in clones]
        return unlabelled(reports + [self.rest(j) for j in others])


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Two data sets' laws, the pairs that the theorem compares them with (probability, P, Q), and the cost."""

    moved: Array
    still: Array
    pairs: list[tuple[Array, Array, Array]]
    cost: Array

    def excess(self, epsilon: Array) -> Iterator[tuple[Array, Array]]:
        """Exact delta minus the mixture's, and what the theorem allows for it; forward, then reverse."""
        forward = sum(weight * hockey_stick(p, q, epsilon) for weight, p, q in self.pairs)
        yield hockey_stick(self.moved, self.still, epsilon) - forward, self.cost
        reverse = sum(weight * hockey_stick(q, p, epsilon) for weight, p, q in self.pairs)
        yield hockey_stick(self.still, self.moved, epsilon) - reverse, np.exp(epsilon) * self.cost


def shuffle_claim(cases: Cases, cost: Array) -> Claim:
    pairs = [
        (
            binom.pmf(k, cases.users - 1, cases.clone),
            unlabelled([cases.moved] + [cases.still] * k),
            unlabelled([cases.still] * (k + 1)),
        )
        for k in range(cases.users)
    ]
    return Claim(
        moved=unlabelled([cases.moved, *cases.others]),
        still=unlabelled([cases.still, *cases.others]),
        pairs=pairs,
        cost=cost,
    )


def special_law(users: int, sample: int, clone: Array, special: int) -> tuple[Array, Array]:
    """P(g) and w: how often g of the sampled are user 1 or clones, and how often user 1 is then one of them."""
    left = clone * (users - sample)
    weight = special / (special + left) if special else np.zeros_like(clone)
    return binom.pmf(special, sample, clone) * (special + left) / (users * clone), weight


def sampled_claim(cases: Cases, sample: int) -> Claim:
    pairs = []
    for g in range(sample + 1):
        probability, weight = special_law(cases.users, sample, cases.clone, g)
        q = unlabelled([cases.still] * g) if g else np.ones((len(cases.clone), 1))
        p = unlabelled([cases.moved] + [cases.still] * (g - 1)) if g else q
        pairs.append((probability, (1.0 - weight)[:, None] * q + weight[:, None] * p, q))
    return Claim(
        moved=sampled([cases.moved, *cases.others], sample),
        still=sampled([cases.still, *cases.others], sample),
        pairs=pairs,
        cost=cases.tau * sample / cases.users,
    )


def claims(cases: Cases) -> Iterator[Claim]:
    yield shuffle_claim(cases, cases.tau)
    yield shuffle_claim(cases.thinned(), cases.rate * cases.tau)
    for sample in range(1, cases.users + 1):
        yield sampled_claim(cases, sample)


@pytest.mark.parametrize(("users", "letters"), SIZES)
def test_the_theorem_holds_for_finite_alphabets(users: int, letters: int) -> None:
    cases = Cases.draw(users, letters, CASES)
    for claim in claims(cases):
        for excess, allowed in claim.excess(cases.epsilon):
            assert (excess <= allowed + ROUND_OFF).all()
            # The cost is needed: without it the claim is wrong, so this test can fail.
            assert (excess > 1e-6).sum() > 10


def test_there_are_enough_finite_cases() -> None:
    assert CASES * len(SIZES) >= 20_000


@pytest.mark.parametrize(("users", "letters"), SIZES)
def test_the_map_of_the_proof_gives_d_exactly_and_d_prime_up_to_its_cost(users: int, letters: int) -> None:
    """Shuffle and check-in: random labels for the K + 1 points of the identical crowd."""
    plain = Cases.draw(users, letters, MAPPED)
    for cases, cost in ((plain, plain.tau), (plain.thinned(), plain.rate * plain.tau)):
        still, moved, used = (np.zeros(1), np.zeros(1), np.zeros(1))
        for coins in itertools.product((False, True), repeat=users - 1):
            clones = tuple(j for j in range(users - 1) if coins[j])
            others = tuple(j for j in range(users - 1) if not coins[j])
            weight = cases.clone ** len(clones) * (1.0 - cases.clone) ** len(others)
            still = still + weight[:, None] * cases.labelled(clones, others, True, None)
            for label in (-1, *clones):
                law = cases.labelled(clones, others, True, label)
                moved = moved + weight[:, None] * law / (len(clones) + 1)
            used = used + weight * cost * len(clones) / (len(clones) + 1)
        assert np.abs(still - unlabelled([cases.still, *cases.others])).max() < ROUND_OFF
        distance = 0.5 * np.abs(moved - unlabelled([cases.moved, *cases.others])).sum(axis=-1)
        assert (distance <= used + ROUND_OFF).all()
        assert (distance > 1e-6).sum() > 10


@pytest.mark.parametrize(("users", "sample"), [(n, m) for n in (2, 3, 4) for m in range(1, n + 1)])
def test_the_map_for_fixed_size_sampling(users: int, sample: int) -> None:
    """Given only g, the map draws who is sampled and who of them is a clone, blind to whether user 1's point is there.

    Its cost is at most w tau given g, and E[w] = sample / users.
    """
    cases = Cases.draw(users, 3, MAPPED)
    seats = 1.0 / math.comb(users, sample)
    still, moved, used, total = (np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1))
    for who in itertools.combinations(range(-1, users - 1), sample):
        rest = tuple(j for j in who if j >= 0)
        for coins in itertools.product((False, True), repeat=len(rest)):
            clones = tuple(j for j, coin in zip(rest, coins, strict=True) if coin)
            others = tuple(j for j, coin in zip(rest, coins, strict=True) if not coin)
            user1 = -1 in who
            special = clones + ((-1,) if user1 else ())
            probability = seats * cases.clone ** len(clones) * (1.0 - cases.clone) ** len(others)
            weight = special_law(users, sample, cases.clone, len(special))[1]
            plain = cases.labelled(clones, others, user1, None)
            still = still + probability[:, None] * plain
            moved = moved + (probability * (1.0 - weight))[:, None] * plain
            for label in special:
                law = cases.labelled(clones, others, user1, label)
                moved = moved + (probability * weight / len(special))[:, None] * law
            used, total = used + probability * weight * cases.tau, total + probability
    assert np.abs(total - 1.0).max() < ROUND_OFF
    assert np.abs(used - cases.tau * sample / users).max() < ROUND_OFF
    assert np.abs(still - sampled([cases.still, *cases.others], sample)).max() < ROUND_OFF
    distance = 0.5 * np.abs(moved - sampled([cases.moved, *cases.others], sample)).sum(axis=-1)
    assert (distance <= used + ROUND_OFF).all()
    assert (distance > 1e-6).sum() > 10


@pytest.mark.parametrize("users", [1, 2, 3, 5, 6])
def test_law_of_the_sampled_clones_by_enumeration(users: int) -> None:
    """Over all samples and all clone coins of everybody else, sampled or not."""
    for sample in range(1, users + 1):
        for c in (0.05, 0.4, 0.9):
            joint = np.zeros((sample + 1, 2))
            for who in itertools.combinations(range(users), sample):
                for coins in itertools.product((0, 1), repeat=users - 1):
                    kind = (1, *coins)  # user 1 always counts
                    joint[sum(kind[i] for i in who), int(0 in who)] += (
                        c ** sum(coins) * (1 - c) ** (users - 1 - sum(coins)) / math.comb(users, sample)
                    )
            for g in range(sample + 1):
                probability, weight = special_law(users, sample, np.array([c]), g)
                assert joint[g].sum() == pytest.approx(probability[0], abs=1e-14)
                if probability[0] > 0.0:
                    assert joint[g, 1] / joint[g].sum() == pytest.approx(weight[0], abs=1e-14)


# ---------------------------------------------------------------------------------------------
# Few users in one dimension: rounded reports, exact.


@dataclass(frozen=True, kw_only=True)
class Line:
    """Reports on a line, rounded to cells, for a mechanism of few users."""

    mechanism: Mechanism
    cells: int

    def reports(self, positions: list[float]) -> Array:
        """Probabilities of the cells, one row for each position. Exact up to round-off in Phi."""
        sigma = self.mechanism.sigma
        reach = 1.0 + 5.5 * sigma
        edges = np.concatenate([[-np.inf], np.linspace(-reach, reach, self.cells - 1), [np.inf]])
        z = (edges - np.asarray(positions)[:, None]) / sigma
        # Differences in the tail that does not cancel.
        cells: Array = np.where(z[:, 1:] > 0, ndtr(-z[:, :-1]) - ndtr(-z[:, 1:]), ndtr(z[:, 1:]) - ndtr(z[:, :-1]))
        return thinned(cells, self.mechanism.rate) if isinstance(self.mechanism, ShuffledCheckIn) else cells

    def view(self, first: Array, others: list[Array]) -> Array:
        """What the server sees, for each row of user 1's report `first`."""
        if isinstance(self.mechanism, SubsampledShuffle):
            return sampled([first, *others], self.mechanism.sample)
        return unlabelled([first, *others])

    def deltas(self, user: list[float], crowd: list[float], epsilon: float) -> Array:
        """Hockey sticks between any two positions of user 1: entry i, j is that of i against j."""
        views = self.view(self.reports(user), list(self.reports(crowd)))
        return np.array([[np.maximum(p - math.exp(epsilon) * q, 0.0).sum() for q in views] for p in views])


def position(rng: np.random.Generator) -> float:
    return float(rng.choice([-1.0, 1.0]) if rng.random() < 0.4 else rng.uniform(-1.0, 1.0))


def few(kind: str, sigma: float, rng: np.random.Generator) -> Mechanism:
    if kind == "shuffle 2":
        return Shuffle(users=2, sigma=sigma)
    if kind == "shuffle 3":
        return Shuffle(users=3, sigma=sigma)
    if kind == "check-in 2":
        return ShuffledCheckIn(users=2, rate=rng.uniform(0.1, 1.0), sigma=sigma)
    if kind == "check-in 3":
        return ShuffledCheckIn(users=3, rate=rng.uniform(0.1, 1.0), sigma=sigma)
    return SubsampledShuffle(users=3, sample=int(kind[-1]), sigma=sigma)


FEW = [  # kind, settings, crowds for each
    ("shuffle 2", 7, 70),
    ("check-in 2", 7, 70),
    ("shuffle 3", 6, 50),
    ("check-in 3", 6, 50),
    ("sample 1", 4, 60),
    ("sample 2", 4, 60),
]


@pytest.mark.parametrize(("kind", "settings", "crowds"), FEW, ids=[kind for kind, *_ in FEW])
def test_no_crowd_of_few_users_exceeds_the_bound(kind: str, settings: int, crowds: int) -> None:
    rng = np.random.default_rng([ord(letter) for letter in kind])
    beaten = 0
    cells = 40 if kind in ("shuffle 3", "check-in 3") else 120
    for i in range(settings):
        sigma = math.exp(math.log(0.3) + (i + rng.random()) / settings * math.log(5.0 / 0.3))
        line = Line(mechanism=few(kind, sigma, rng), cells=cells)
        epsilon = max(0.0, 0.5 / sigma**2 + rng.uniform(-1.0, 1.5) / sigma)
        zero_out = line.mechanism.delta(epsilon=epsilon).upper
        replace = line.mechanism.replace(adjacency="replace").delta(epsilon=epsilon).upper
        identical = line.mechanism.replace(crowd="identical").delta(epsilon=epsilon).upper
        for _ in range(crowds):
            crowd = [position(rng) for _ in range(line.mechanism.users - 1)]
            a, b = position(rng), position(rng)
            found = line.deltas([0.0, a, b], crowd, epsilon)
            moved = max(found[0].max(), found[:, 0].max())
            assert moved <= zero_out + ROUND_OFF, (line, epsilon, crowd, a, b)
            assert found.max() <= replace + ROUND_OFF, (line, epsilon, crowd, a, b)
            beaten += moved > identical
    # The identical crowd's number is no guarantee for any crowd: it is exceeded, so the bound above could be.
    assert beaten > 5


def test_there_are_enough_crowds() -> None:
    assert sum(settings * crowds for _, settings, crowds in FEW) >= 2_000


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
@pytest.mark.parametrize("kind", ["shuffle 2", "check-in 2", "sample 2"])
def test_no_two_crowds_of_two_rounds_exceed_the_bound(kind: str, epsilon: float) -> None:
    """The crowd and user 1 hold something else in each round."""
    rng = np.random.default_rng([ord(letter) for letter in kind])
    line = Line(mechanism=few(kind, 3.0, rng), cells=28)
    both = {
        a: line.mechanism.replace(adjacency=a).delta(epsilon=epsilon, rounds=2).upper for a in ("zero-out", "replace")
    }
    for i in range(40):
        adjacency = ("zero-out", "replace")[i % 2]
        laws = []
        for _ in range(2):
            user = [0.0 if adjacency == "zero-out" else position(rng), position(rng)]
            crowd = [position(rng) for _ in range(line.mechanism.users - 1)]
            laws.append(line.view(line.reports(user), list(line.reports(crowd))))
        p, q = (np.outer(laws[0][k], laws[1][k]) for k in (0, 1))
        for x, y in ((p, q), (q, p)):
            assert np.maximum(x - math.exp(epsilon) * y, 0.0).sum() <= both[adjacency] + ROUND_OFF


@pytest.mark.parametrize(
    ("users", "sigma", "epsilon", "delta", "cells", "loss"),
    [
        (2, 1.0, 3.0, 1.67702771411789e-4, 120, 0.01),  # high precision, identical crowd
        (2, 1.0, 3.0, 1.67702771411789e-4, 480, 6e-4),
        (2, 0.3, 8.0, None, 120, 0.05),
        (2, 3.0, 0.3, None, 120, 0.01),
        (3, 1.0, 1.0, None, 40, 0.05),
        (3, 3.0, 0.3, None, 40, 0.05),
    ],
)
def test_rounding_loses_little(
    users: int, sigma: float, epsilon: float, delta: float | None, cells: int, loss: float
) -> None:
    m = Shuffle(users=users, sigma=sigma, crowd="identical")
    truth = m.delta(epsilon=epsilon) if delta is None else Interval(lower=delta, upper=delta)
    rounded = Line(mechanism=m, cells=cells).deltas([0.0, 1.0], [0.0] * (users - 1), epsilon).max()
    assert truth.lower * (1.0 - loss) <= rounded <= truth.upper


def test_the_crowd_matters() -> None:
    """The counter-example to "without loss of generality": Rényi DP of order 2, two users, sigma 1."""
    line = Line(mechanism=Shuffle(users=2, sigma=1.0), cells=400)
    p, q = line.view(line.reports([1.0, 0.0]), list(line.reports([0.0])))
    assert math.log(float((p * p / q).sum())) == pytest.approx(0.6201145070, rel=2e-3)
    p, q = line.view(line.reports([1.0, 0.0]), list(line.reports([-1.0])))
    assert math.log(float((p * p / q).sum())) == pytest.approx(0.9514579734, rel=2e-3)


# ---------------------------------------------------------------------------------------------
# Many users, all others opposite: the sum of n i.i.d. terms.


def opposite(users: int, sigma: float, epsilon: float, size: int = 2**19) -> float:
    """The delta of the crowd at -x', the worse direction, bounded from above.

    With others at -x', user 1 is at distance 1 from them in D and 2 in D', so
    delta = E[(mean_i (w_2(z_i) - e^epsilon w_1(z_i)))_+], w_a(z) = exp(a z/sigma - a^2/(2 sigma^2)). Each
    term goes to its two neighbours on a grid with the mean kept (a larger sum in convex order); values
    too large for the window are left out, and the mass w_2 gives to them is added.
    """

    def stick(first: int, second: int) -> float:
        z, width = np.linspace(-9.0, 9.0 + 2.0 / sigma, 2**18, retstep=True)
        mass = np.exp(-0.5 * z * z) * width / math.sqrt(2.0 * math.pi)
        w = {a: np.exp(a * z / sigma - a * a / (2.0 * sigma**2)) for a in (1, 2)}
        term = w[first] - math.exp(epsilon) * w[second] + math.expm1(epsilon)  # centred
        sd = math.sqrt(float(mass @ (term * term)))
        step = max(0.004 * sd * users**0.25, 24.0 * sd * math.sqrt(users) / size)
        inside = np.abs(term) < 0.4 * size * step
        left_out = float((mass * w[first])[~inside].sum())
        index = np.floor(term[inside] / step).astype(np.int64)
        part = term[inside] / step - index
        law = np.bincount(index % size, mass[inside] * (1.0 - part), size)
        law += np.bincount((index + 1) % size, mass[inside] * part, size)
        total = np.fft.irfft(np.fft.rfft(law) ** users, size)
        total = np.roll(total, size // 2)
        mean = (np.arange(size) - size // 2) * step / users - math.expm1(epsilon)
        return float(total @ np.maximum(mean, 0.0)) + left_out

    return max(stick(2, 1), stick(1, 2))


WITNESSES = [  # users, sigma, epsilons
    (30, 1.5, (0.5, 1.5)),
    (100, 1.0, (0.5, 1.5)),
    (300, 2.0, (0.1, 0.25)),
    (1_000, 2.0, (0.05, 0.1272)),
    (1_000, 5.0, (0.01, 0.03)),
    (5_000, 1.5, (0.05, 0.1)),
    (5_000, 2.0, (0.02, 0.05)),
    (5_000, 9.48, (0.002, 0.006)),
]


@pytest.mark.parametrize(("users", "sigma", "epsilons"), WITNESSES)
def test_the_opposite_crowd_lies_below_the_bound(users: int, sigma: float, epsilons: tuple[float, ...]) -> None:
    m = Shuffle(users=users, sigma=sigma)
    for epsilon in epsilons:
        found, witness = m.delta(epsilon=epsilon), opposite(users, sigma, epsilon)
        print(f"{m} {epsilon=}: opposite crowd {witness:.4e}, lower/opposite {found.lower / witness:.4f}, {found:.4e}")
        assert witness <= found.upper
        assert m.replace(crowd="identical").delta(epsilon=epsilon).lower <= witness


def test_the_convolution_agrees_with_brute_force_and_with_known_values() -> None:
    line = Line(mechanism=Shuffle(users=2, sigma=2.0), cells=300)
    for epsilon in (0.1, 0.6):
        rounded = line.deltas([0.0, 1.0], [-1.0], epsilon).max()
        assert rounded <= opposite(2, 2.0, epsilon) <= rounded * (1.0 + 2e-3)
    assert opposite(1_000, 2.0, 0.1272) == pytest.approx(1e-6, rel=0.02)


# ---------------------------------------------------------------------------------------------
# Laws.

LAWS = [
    (Shuffle(users=1_000, sigma=2.0), 1e-6, (1, 20)),
    (Shuffle(users=50, sigma=0.5), 1e-4, (1, 3)),
    (Shuffle(users=60_000, sigma=9.48), 1e-5, (1, 7)),
    (ShuffledCheckIn(users=10_000, rate=0.1, sigma=5.0), 1e-5, (1, 500)),
    (SubsampledShuffle(users=10_000, sample=1_000, sigma=5.0), 1e-5, (1, 500)),
]
SLACK = 1.0 + 1e-2


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize(("m", "delta", "rounds"), LAWS, ids=[f"{m.label} {m.users}" for m, *_ in LAWS])
def test_any_crowd_lies_between_identical_and_local_and_obeys_the_laws(
    m: Mechanism, delta: float, rounds: tuple[int, ...], adjacency: str
) -> None:
    m = m.replace(adjacency=adjacency)
    ask: Callable[[Mechanism, int], Interval] = lambda x, count: x.epsilon(delta=delta, rounds=count)  # noqa: E731
    found = [ask(m, count) for count in rounds]
    local = LocalGaussian(sigma=m.sigma, adjacency=m.adjacency)
    for count, eps in zip(rounds, found, strict=True):
        assert eps.upper <= ask(local, count).upper * (1.0 + 1e-9)
        assert eps.upper >= ask(m.replace(crowd="identical"), count).lower
    assert found[0].upper <= found[1].upper * SLACK
    assert ask(m.replace(users=2 * m.users), rounds[1]).upper <= found[1].upper * SLACK
    assert ask(m.replace(sigma=1.5 * m.sigma), rounds[1]).upper <= found[1].upper * SLACK
    assert m.delta(epsilon=found[0].upper * SLACK).upper <= delta

"""An audit: the distinguishing game is played by simulation, to try to break a claimed epsilon.

Two worlds differ in user 1's vector: x in Q and x' in P (zero-out: x = 0 and |x'| = 1; replace:
x = -x', |x'| = 1). Everybody else's vector, of norm at most 1, is part of a *crowd* of some shape and
known to the attacker, who sees all rounds' shuffled reports and must say which world holds. A
mechanism that is (epsilon, delta)-DP has P(A) <= e^epsilon Q(A) + delta for every event A, and the
same with P and Q swapped. So any event A at all proves, from its measured rates,

    epsilon >= log((P(A) - delta) / Q(A)),

and the audit reports the largest such bound that the games support: with Clopper and Pearson's
(1934) exact limits in place of both rates, at a confidence that holds for all rows together (by
Bonferroni, over two rates a row). The event is a threshold on a test statistic. Statistic,
direction and threshold are chosen on other games than those that measure, so choosing costs no
confidence. An audit can refute a claim; it cannot prove one.

**The likelihood of a shuffled round.** Let the crowd hold the vectors v_c, each m_c times, and let k
of the n users report: which k is uniform, and the law of k is the same in both worlds. With p_v the
density of a report from v, and user 1 at y, the likelihood of the reports z_1..z_k is, up to a
factor without y,

    L_y = sum_j  F_0(j) prod_c (m_c)_{j_c}  +  sum_j  F_y(j) prod_c (m_c)_{j_c},

(m)_j = m!/(m-j)!, where F_0(j) sums prod_i p_{v(i)}(z_i) over the ways to give the reports to the
classes, j_c of them to class c, with user 1 absent; and F_y the same with one report given to user
1 with weight p_y. Both follow from one pass over the reports (elementary symmetric polynomials are
the case of two classes). If all others hold one vector v this is, up to a factor,

    L_y = n - k + sum_i p_y(z_i) / p_v(z_i).

The statistic is then log L_x' - log L_x, summed over rounds: by Neyman and Pearson no test is
better. Where the pass is too long (many users with different vectors) a logistic regression takes
its place, trained on features that are sums over the reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import betaincinv, expit, gammaln

from shoal import _validate
from shoal.bounds.numeric import FloatArray
from shoal.errors import InvalidInput, InvalidType
from shoal.interval import Interval
from shoal.mechanisms import Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.progress import Progress

SHAPES = ("identical", "opposite", "orthogonal", "clusters", "spread")
"""identical: all others at x. opposite: all at -x'. orthogonal: all at one unit vector orthogonal to x'.
clusters: one half at -x', the other at x'. spread: independent and uniform in the unit ball."""

DIMENSIONS = (1, 2, 8)
CONFIDENCE = 0.999

_MOST_TRIALS = 10**9
"""More would take days."""

_MOST_COORDINATES = 10**7
"""Of one round's reports: they must fit into memory together."""

_BATCH = 2**19
"""Numbers drawn at once: a few arrays of 4 MB."""

_LONGEST_PASS = 20_000
"""Steps of the exact likelihood of one round, beyond which a trained test takes its place."""

_MOST_COMPONENTS = 16
"""Crowds with more different vectors are described to the trained test by their mean and spread."""

_DEFAULT_TRIALS = (1_000, 100_000)
_DEFAULT_WORK = 9e8
"""Default trials lie in this range, by the work they make: some 20 seconds on one core."""

_TINY = float(np.finfo(float).tiny)
"""The smallest number with full precision, where a logarithm of 0 must not be taken."""

_RANKS = 200
"""Thresholds that are tried, by the rank of a score: few among the many, all among the rare."""

_RIDGE = 1e-4
"""Keeps the trained test's weights finite where the worlds can be told apart without error."""

_CHOOSING_TRIALS = 100_000
"""At most so many games choose the test and its threshold."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What the games against one crowd show.

    `dimensions` are those in which this is the same game: coordinates in which nobody's vector
    differs carry the same noise in both worlds, and say nothing.
    """

    shape: str
    dimensions: tuple[int, ...]
    test: str
    """\"optimal" (the likelihood ratio, which no test can beat), "trained", or "likelihood" (of a real training's
    reports, by an approximation that costs strength and no validity)."""

    direction: str
    """\"forward" if P was the more likely world in the event that was measured, else "reverse"."""

    trials: int
    """Games that measured the rates, in each world."""

    hits: int
    """How many of them ended in the event in the world that makes it likely, and..."""

    alarms: int
    """...in the other."""

    epsilon: float
    """What the games prove: epsilon is at least this, at `confidence` for all rows together."""

    confidence: float
    any_crowd: Interval | None
    """Certified for any crowd (None if the mechanism's numbers are for the identical crowd only)."""

    identical_crowd: Interval | None
    """Certified for the identical crowd (None if this is another one)."""

    claim: float | None
    """The epsilon that was to be checked, if not the certified one."""

    @property
    def limit(self) -> float:
        """What epsilon is claimed to be at most: the claim, or else the smallest certified upper bound."""
        if self.claim is not None:
            return self.claim
        return min(bound.upper for bound in (self.any_crowd, self.identical_crowd) if bound is not None)

    @property
    def stands(self) -> bool:
        return self.epsilon <= self.limit


def audit(
    mechanism: Mechanism,
    *,
    delta: float,
    rounds: int = 1,
    trials: int | None = None,
    seed: int = 0,
    shapes: Any = None,
    dimensions: Any = DIMENSIONS,
    confidence: float = CONFIDENCE,
    claim: float | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Play the distinguishing game against crowds of several shapes; one row for each.

    The claim under attack is the mechanism's certified epsilon at `delta` after `rounds` rounds, for
    any crowd, and for the identical crowd also that crowd's; or `claim`, from wherever it comes. With
    `crowd="identical"` only that crowd is played. `trials` games measure each row, in each world, and
    half as many more choose the test; by default as many as take some 20 seconds in all. The same
    seed gives the same rows. If every claim is true, the probability that any row contradicts one
    is at most 1 - `confidence`.

    >>> rows = audit(Shuffle(users=5, sigma=0.5), delta=1e-5, shapes="identical", trials=2_000)
    >>> rows[0].test, 1.0 < rows[0].epsilon < rows[0].identical_crowd.upper, rows[0].stands
    ('optimal', True, True)
    """
    if not isinstance(mechanism, (Shuffle, SubsampledShuffle, ShuffledCheckIn)):
        raise InvalidType(f"mechanism must be Shuffle, SubsampledShuffle or ShuffledCheckIn, got {mechanism!r}")
    delta, rounds = _validate.delta(delta), _validate.rounds(rounds)
    seed = _validate.integer("seed", seed, minimum=0, maximum=2**63 - 1)
    confidence = _validate.delta(confidence, "confidence")
    claim = None if claim is None else _validate.epsilon(claim, "claim")
    games = _games(mechanism, rounds, shapes, dimensions, seed)
    work = sum(game.work for game in games)
    low, high = _DEFAULT_TRIALS
    if trials is None:
        # 1.5: half as many games again choose the test.
        trials = round(min(max(_DEFAULT_WORK / (1.5 * work), low), high))
    trials = _validate.integer("trials", trials, minimum=100, maximum=_MOST_TRIALS)
    # Bonferroni: two rates a row, and all rows hold together.
    alpha = (1.0 - confidence) / (2 * len(games))

    certified = mechanism.epsilon(delta=delta, rounds=rounds)
    identical = mechanism.replace(crowd="identical").epsilon(delta=delta, rounds=rounds)
    done, all_work = 0.0, work * (trials + _choosing(trials))
    result = []
    for game in games:

        def played(count: int, game: Game = game) -> None:
            nonlocal done
            done += count * game.work
            if progress is not None:
                progress(game.shape, min(1.0, done / all_work))

        found = _measure(game, delta=delta, trials=trials, alpha=alpha, seed=seed, played=played)
        row = Finding(
            shape=game.shape,
            dimensions=game.dimensions,
            test="optimal" if game.exact else "trained",
            trials=trials,
            confidence=confidence,
            any_crowd=certified if mechanism.crowd == "any" else None,
            identical_crowd=identical if game.shape == "identical" else None,
            claim=claim,
            **found,
        )
        result.append(row)
    return result


# ---------------------------------------------------------------------------------------------
# The games


@dataclass(frozen=True, kw_only=True, eq=False)
class Game:
    """One crowd, in as few dimensions as show everything; user 1 moves along the first axis."""

    mechanism: Shuffle | SubsampledShuffle | ShuffledCheckIn
    rounds: int
    shape: str
    dimensions: tuple[int, ...]
    points: FloatArray
    """The different vectors of the others (classes), in rows."""

    counts: npt.NDArray[np.int64]
    """How many users hold each of them; the largest first."""

    @property
    def dimension(self) -> int:
        return int(self.points.shape[1])

    @property
    def own(self) -> FloatArray:
        """User 1's vector in Q and in P."""
        vectors = np.zeros((2, self.dimension))
        vectors[:, 0] = (0.0 if self.mechanism.adjacency == "zero-out" else -1.0), 1.0
        return vectors

    @property
    def reports(self) -> float:
        """How many reports come in a round, on average."""
        m = self.mechanism
        if isinstance(m, ShuffledCheckIn):
            return m.users * m.rate
        return float(m.sample if isinstance(m, SubsampledShuffle) else m.users)

    @property
    def states(self) -> float:
        """In how many ways some reports' numbers in the classes but the first can be."""
        return math.exp(min(float(np.log1p(self.counts[1:]).sum()), 700.0))

    @property
    def steps(self) -> float:
        """The length of the exact likelihood's pass over a round."""
        return self.reports * len(self.points) * self.states

    @property
    def exact(self) -> bool:
        return len(self.points) == 1 or self.steps <= _LONGEST_PASS

    @property
    def work(self) -> float:
        """Of one trial, in units of about 10 ns."""
        users, dimension = self.mechanism.users, self.dimension
        if len(self.points) == 1:
            round_ = self.reports * (dimension + 3)
        else:
            round_ = self.steps if self.exact else self.reports * (2 * dimension + 15)
            round_ += 5.0 * users if self.reports < users else 0.0  # who takes part
        return self.rounds * (round_ + 20.0)

    def play(self, trials: int, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Statistics of the games, in batches of shape (2 worlds, trials, features).

        Both worlds get the same coins and noise: each world's rate is still that of independent
        games, and nothing else is needed of them.
        """
        statistic = (_ratio_one if len(self.points) == 1 else _ratio_many) if self.exact else _features
        size = max(1, int(_BATCH / self._numbers()))
        for start in range(0, trials, size):
            count = min(size, trials - start)
            yield sum(statistic(self, self._round(count, rng)) for _ in range(self.rounds))  # type: ignore[misc]

    def _numbers(self) -> float:
        """How many numbers one round of one trial holds in memory at once."""
        classes = len(self.points)
        members = self.mechanism.users if classes > 1 else 0
        targets = classes + 2 if self.exact else 7
        return max(self.reports * (self.dimension + targets), 3 * self.states * self.exact, members)

    def _round(self, trials: int, rng: np.random.Generator) -> Reports:
        m = self.mechanism
        if isinstance(m, ShuffledCheckIn):
            sizes = rng.binomial(m.users, m.rate, trials)
        else:
            sizes = np.full(trials, round(self.reports))
        # By symmetry user 1 is among those who report with probability sizes / users.
        taking_part = rng.random(trials) * m.users < sizes
        others = sizes - taking_part
        width = int(others.max())
        centres = self.points[0]
        if len(self.points) > 1:
            # Who of the others reports matters only where they differ, and only if not all do.
            classes = np.repeat(np.arange(len(self.points)), self.counts)
            if others.min() < m.users - 1:
                centres = self.points[classes[_first_of_random_order(trials, m.users - 1, width, rng)]]
            else:
                centres = self.points[classes]
        crowd = centres + m.sigma * rng.standard_normal((trials, width, self.dimension))
        own = self.own[:, None, :] + m.sigma * rng.standard_normal((trials, self.dimension))
        return Reports(
            sizes=sizes,
            crowd=crowd,
            present=np.arange(width) < others[:, None],
            own=own,
            taking_part=taking_part,
        )


def _first_of_random_order(trials: int, users: int, width: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """For each trial the first `width` of the users in an order of its own, (trials, width)."""
    # Ties have probability 0, and both worlds share the order.
    keys = rng.random((trials, users))
    if width == users:
        return keys.argsort(axis=1)
    chosen = keys.argpartition(width, axis=1)[:, :width]
    order = np.take_along_axis(keys, chosen, axis=1).argsort(axis=1)
    return np.take_along_axis(chosen, order, axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reports:
    """One round of many trials."""

    sizes: npt.NDArray[np.int64]
    """How many reports the server sees, (trials,)."""

    crowd: FloatArray
    """The others' reports, (trials, width, dimension), of which those in `present` are real."""

    present: npt.NDArray[np.bool_]
    own: FloatArray
    """User 1's report in Q and in P, (2, trials, dimension), sent where `taking_part`."""

    taking_part: npt.NDArray[np.bool_]


def _games(mechanism: Any, rounds: int, shapes: Any, dimensions: Any, seed: int) -> list[Game]:
    # For replace the opposite of where user 1 goes is where it comes from: that is the identical crowd.
    known = tuple(s for s in SHAPES if not (s == "opposite" and mechanism.adjacency == "replace"))
    if mechanism.crowd == "identical":
        known = ("identical",)
    wanted = [
        _validate.choice("shapes", s, SHAPES) for s in _validate.each("shapes", known if shapes is None else shapes)
    ]
    sizes = [
        _validate.integer("dimensions", d, minimum=1, maximum=_MOST_COORDINATES)
        for d in _validate.each("dimensions", dimensions)
    ]
    for name, values in (("shapes", wanted), ("dimensions", sizes)):
        if len(set(values)) < len(values):
            raise InvalidInput(f"{name} must all be different, got {', '.join(map(str, values))}")
    for shape in wanted:
        if shape not in known and mechanism.crowd == "identical":
            raise InvalidInput(f"shapes must be identical for a mechanism of the identical crowd, got {shape!r}")
        if shape not in known:
            raise InvalidInput(f"shapes must not have {shape} for replace adjacency: it is the identical crowd there")
    games = []
    for shape in wanted:
        fitting = tuple(d for d in sorted(sizes) if d >= _LEAST_DIMENSION.get(shape, 1))
        if not fitting and shapes is not None:
            raise InvalidInput(f"dimensions must have one of at least 2 for the shape {shape}, got {sizes[0]}")
        # Only a spread crowd fills its dimensions; the others lie on a line or in a plane, whatever the dimension.
        groups = [(d,) for d in fitting] if shape == "spread" else [fitting] if fitting else []
        for group in groups:
            _check_size(mechanism, rounds, group[0] if shape == "spread" else 2)
            # A stream of its own for each game: a row does not change with what else is played.
            rng = np.random.default_rng([seed, SHAPES.index(shape), group[0]])
            points, counts = crowd(shape, mechanism, group[0], rng)
            games.append(
                Game(mechanism=mechanism, rounds=rounds, shape=shape, dimensions=group, points=points, counts=counts)
            )
    return games


_LEAST_DIMENSION = {"orthogonal": 2}


def _check_size(mechanism: Any, rounds: int, dimension: int) -> None:
    most = _MOST_COORDINATES // dimension
    if mechanism.users > most:
        raise InvalidInput(
            f"users must be at most {most} for an audit, which plays every report, got {mechanism.users}"
        )
    if rounds * mechanism.users > 10 * _MOST_COORDINATES:
        raise InvalidInput(
            f"rounds must be at most {10 * _MOST_COORDINATES // mechanism.users} for an audit of {mechanism.users} "
            f"users, which plays every report, got {rounds}"
        )


def crowd(
    shape: str, mechanism: Any, dimension: int, rng: np.random.Generator
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """The different vectors of the others, and how many users hold each."""
    others = mechanism.users - 1
    one = np.array([others])
    if shape == "identical":
        return np.array([[0.0 if mechanism.adjacency == "zero-out" else -1.0]]), one
    if shape == "opposite":
        return np.array([[-1.0]]), one
    if shape == "orthogonal":
        return np.array([[0.0, 1.0]]), one
    if shape == "clusters":
        return np.array([[-1.0], [1.0]]), np.array([others - others // 2, others // 2])
    directions = rng.standard_normal((max(others, 1), dimension))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Uniform in the ball: the radius has the density of r^(d-1).
    points = directions * rng.random((len(directions), 1)) ** (1.0 / dimension)
    if len(points) < dimension - 1:
        # Turn the axes but the first, so that all vectors lie in as many of them as there are vectors.
        points = np.hstack([points[:, :1], np.linalg.qr(points[:, 1:].T)[1].T])
    return points, np.full(len(points), min(others, 1))


# ---------------------------------------------------------------------------------------------
# The statistics, each of one round: (game, reports) -> (2 worlds, trials, features)


def _log_densities(reports: FloatArray, vectors: FloatArray, sigma: float) -> FloatArray:
    """log p_v(z) for each report and vector (last axis), up to a term of the report alone."""
    result: FloatArray = (reports @ vectors.T - 0.5 * np.sum(vectors**2, axis=1)) / sigma**2
    return result


def _ratio_one(game: Game, reports: Reports) -> FloatArray:
    """log L_x' - log L_x when all others hold one vector."""
    sigma, users = game.mechanism.sigma, game.mechanism.users

    def log_ratios(z: FloatArray) -> FloatArray:
        # Shifted to the crowd's vector, whose own density is then the term left out.
        return _log_densities(z - game.points[0], game.own - game.points[0], sigma)

    logs = np.where(reports.present[..., None], log_ratios(reports.crowd), -np.inf)
    own = np.where(reports.taking_part[:, None], log_ratios(reports.own), -np.inf)
    top = logs.max(axis=1, initial=-1e300)  # finite also where nobody reports
    with np.errstate(divide="ignore"):
        others = np.log(np.exp(logs - top[:, None]).sum(axis=1)) + top
        absent = np.log(users - reports.sizes)[:, None]
    values: FloatArray = np.logaddexp(np.logaddexp(others, absent), own)
    return (values[..., 1] - values[..., 0])[..., None]


def _ratio_many(game: Game, reports: Reports) -> FloatArray:
    """log L_x' - log L_x when the others hold a few different vectors: one pass over the reports.

    `F[0]` is F_0 and `F[1]`, `F[2]` are F_x and F_x', over the numbers j of reports given to each
    class but the first (whose number follows), and the trials. A common factor of all three cancels.
    """
    targets = np.vstack([game.points, game.own])
    sigma, classes = game.mechanism.sigma, len(game.points)

    def weights(z: FloatArray, real: npt.NDArray[np.bool_]) -> FloatArray:
        """The densities of a report at all targets (targets first), the largest one 1."""
        logs = np.moveaxis(_log_densities(z, targets, sigma), -1, 0)
        shown = np.exp(logs - logs.max(axis=0))
        nothing = np.zeros((len(targets), *(1,) * real.ndim))
        nothing[0] = 1.0  # a report that is not there changes nothing
        result: FloatArray = np.where(real, shown, nothing)
        return result

    def add(F: FloatArray, w: FloatArray) -> FloatArray:
        new: FloatArray = w[0] * F
        for c in range(1, classes):
            given, before = np.moveaxis(new, c, 0), np.moveaxis(F, c, 0)
            given[1:] += w[c] * before[:-1]
        new[1] += w[classes] * F[0]
        new[2] += w[classes + 1] * F[0]
        # Scaled after each report, or products of thousands of densities would underflow.
        largest = new.max(axis=tuple(range(classes)))
        new /= np.maximum(largest, _TINY)
        return new

    trials = len(reports.sizes)
    F = np.zeros((3, *(game.counts[1:] + 1), trials))
    F[(0,) * classes] = 1.0
    w = weights(reports.crowd, reports.present)
    for i in range(w.shape[-1]):
        F = add(F, w[..., i])
    ways = _ways(game, reports.sizes)
    states = tuple(range(classes - 1))
    result = np.empty((2, trials, 1))
    for world in (0, 1):
        # User 1's own report comes last, so that the pass over the crowd serves both worlds.
        end = add(F, weights(reports.own[world], reports.taking_part))
        absent = (end[0] * ways[0]).sum(axis=states)
        low, high = (np.maximum(absent + (end[y] * ways[1]).sum(axis=states), _TINY) for y in (1, 2))
        result[world, :, 0] = np.log(high) - np.log(low)
    return result


def _ways(game: Game, sizes: npt.NDArray[np.int64]) -> FloatArray:
    """prod_c (m_c)_{j_c} with all reports given to the crowd, and with all but one; the largest is 1."""
    factorials = gammaln(np.arange(game.counts.max() + 1) + 1.0)
    first, rest = game.counts[0], game.counts[1:]
    given = np.indices((*(rest + 1), 1))[:-1]
    logs = np.zeros(given.shape[1:])
    for count, j in zip(rest, given, strict=True):
        logs = logs + factorials[count] - factorials[count - j]
    mine = np.stack([sizes, sizes - 1])[(slice(None), *(None,) * len(rest))] - given.sum(axis=0)
    possible = (mine >= 0) & (mine <= first)
    logs = logs + factorials[first] - factorials[first - np.where(possible, mine, 0)]
    logs = np.where(possible, logs, -np.inf)
    result: FloatArray = np.exp(logs - logs.max(axis=tuple(range(logs.ndim - 1))))
    return result


def _features(game: Game, reports: Reports) -> FloatArray:
    """What the trained test sees of a round, where the likelihood is out of reach.

    With f the density of a report of a random other user: log L_x' - log L_x as if the others' vectors
    were drawn at random, which they are not; how much more each report looks like user 1 at x' than
    at x, among n such; the first three moments along user 1's move, and the squared length.
    """
    sigma, users = game.mechanism.sigma, game.mechanism.users
    mean = np.average(game.points, axis=0, weights=game.counts)
    centres, shares, width = game.points, game.counts / game.counts.sum(), sigma
    if len(game.points) > _MOST_COMPONENTS:
        centres, shares = mean[None], np.ones(1)
        width = math.sqrt(sigma**2 + float(np.mean((game.points - mean) ** 2)))

    def summands(z: FloatArray) -> FloatArray:
        length = np.sum(z**2, axis=-1)
        parts = np.exp(_log_densities(z, centres, width) - 0.5 * (length / width**2)[..., None]) @ shares
        crowd = np.log(np.maximum(parts, _TINY)) + 0.5 * length / sigma**2 - game.dimension * math.log(width / sigma)
        # Clipped: one report that is absurdly likely decides as well as one that overflows.
        ratios = np.exp(np.clip(_log_densities(z, game.own, sigma) - crowd[..., None], -300.0, 300.0))
        at_x, at_moved = ratios[..., 0], ratios[..., 1]
        likeness = (at_moved - at_x) / (0.5 * (at_moved + at_x) + users - 1)
        along = z[..., 0] - mean[0]
        return np.stack([at_x, at_moved, likeness, along, along**2, along**3, length], axis=-1)

    sums = np.where(reports.present[..., None], summands(reports.crowd), 0.0).sum(axis=1)
    both = sums + np.where(reports.taking_part[:, None], summands(reports.own), 0.0)
    absent = users - reports.sizes
    ratio = np.log(np.maximum(absent + both[..., 1], _TINY)) - np.log(np.maximum(absent + both[..., 0], _TINY))
    return np.concatenate([ratio[..., None], both[..., 2:]], axis=-1)


# ---------------------------------------------------------------------------------------------
# From statistics to bounds


def clopper_pearson(successes: Any, trials: int, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Lower and upper limit of a probability, each exceeded with probability at most alpha.

    Clopper and Pearson (1934): quantiles of Beta(k, N - k + 1) and Beta(k + 1, N - k).

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> float(low), round(float(high), 6)  # 1 - 0.05^(1/100)
    (0.0, 0.029513)
    """
    k = np.asarray(successes, dtype=float)
    low = np.where(k > 0, betaincinv(np.maximum(k, 1.0), trials - k + 1.0, alpha), 0.0)
    high = np.where(k < trials, betaincinv(k + 1.0, np.maximum(trials - k, 1.0), 1.0 - alpha), 1.0)
    return low, high


def lower_bound(hits: Any, alarms: Any, trials: int, *, delta: float, alpha: float) -> FloatArray:
    """log((P(A) - delta) / Q(A)) from below, where A came up `hits` times in P and `alarms` times in Q.

    Wrong with probability at most 2 alpha; 0 where the games prove nothing.
    """
    likely, _ = clopper_pearson(hits, trials, alpha)
    _, unlikely = clopper_pearson(alarms, trials, alpha)
    # 0, never less: an event that proves nothing is no proof of the opposite.
    result: FloatArray = np.log(np.maximum(likely - delta, unlikely) / unlikely)
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Event:
    """The event that is measured: sign * (features . weights) >= threshold; sign -1 looks for Q."""

    weights: FloatArray
    sign: int
    threshold: float

    def count(self, games: FloatArray) -> tuple[int, int]:
        """How often it came up in the world it looks for, and in the other."""
        came = (self.sign * (games @ self.weights) >= self.threshold).sum(axis=1)
        return (int(came[1]), int(came[0])) if self.sign > 0 else (int(came[0]), int(came[1]))


def _train(games: FloatArray) -> FloatArray:
    """Logistic regression of the world on the features."""
    data = np.concatenate([games[0], games[1]])
    worlds = np.repeat([-1.0, 1.0], games.shape[1])
    mean, spread = data.mean(axis=0), data.std(axis=0)
    spread[spread == 0.0] = 1.0  # a feature that never changes says nothing
    scaled = np.hstack([(data - mean) / spread, np.ones((len(data), 1))])

    def loss(w: FloatArray) -> tuple[float, FloatArray]:
        margin = worlds * (scaled @ w)
        slope = -(worlds * expit(-margin)) @ scaled / len(data) + 2.0 * _RIDGE * w
        return float(np.logaddexp(0.0, -margin).mean() + _RIDGE * w @ w), slope

    found = minimize(loss, np.zeros(scaled.shape[1]), jac=True, method="L-BFGS-B")
    result: FloatArray = found.x[:-1] / spread
    return result


def choose(games: FloatArray, weights: FloatArray, delta: float, alpha: float) -> Event:
    """The direction and threshold that would prove most in these games."""
    scores = games @ weights
    trials = scores.shape[1]
    ranks = np.unique(np.geomspace(1, trials, _RANKS).astype(int))
    found = []
    for sign in (1, -1):
        unlikely, likely = (np.sort(sign * s) for s in scores[::sign])
        # Where the best threshold is, among the rare of one world or of the other, is not known beforehand.
        thresholds = np.unique(np.concatenate([unlikely[-ranks], likely[-ranks]]))
        hits, alarms = (trials - np.searchsorted(s, thresholds) for s in (likely, unlikely))
        bounds = lower_bound(hits, alarms, trials, delta=delta, alpha=alpha)
        i = int(np.argmax(bounds))
        found.append((float(bounds[i]), sign, float(thresholds[i])))
    _, sign, threshold = max(found)
    return Event(weights=weights, sign=sign, threshold=threshold)


def _choosing(trials: int) -> int:
    return min(trials // 2, _CHOOSING_TRIALS)


def _measure(
    game: Game, *, delta: float, trials: int, alpha: float, seed: int, played: Callable[[int], None]
) -> dict[str, Any]:
    """Choose the event on some games, count it in others."""
    place = [seed, SHAPES.index(game.shape), game.dimensions[0]]

    def batches(count: int, stream: int) -> Iterator[FloatArray]:
        for batch in game.play(count, np.random.default_rng([*place, stream])):
            yield batch
            played(batch.shape[1])

    games = np.concatenate(list(batches(_choosing(trials), 1)), axis=1)
    weights = np.ones(1)
    if not game.exact:
        # Trained on one half, threshold chosen on the other: on its own games a trained test looks too good.
        half = games.shape[1] // 2
        weights, games = _train(games[:, :half]), games[:, half:]
    event = choose(games, weights, delta, alpha)
    hits, alarms = (sum(c) for c in zip(*(event.count(batch) for batch in batches(trials, 2)), strict=True))
    return {
        "direction": "forward" if event.sign > 0 else "reverse",
        "hits": hits,
        "alarms": alarms,
        "epsilon": float(lower_bound(hits, alarms, trials, delta=delta, alpha=alpha)),
    }

"""Shuffled check-in, where each user tosses a coin to take part: Theorem 3, exact sums, baselines.

The server sees how many users take part. Given that they are k of the n users, they are a uniform sample of k, so the
sampling rate is k/n and

    E[S^L] = sum_{k=0..n} Bin(n, rate)(k) E[S_k^L],      S_k: k of n sampled without replacement, shuffled.

The paper writes the check-in rate for k/n in every term and leaves out k = 0; Theorem 3 bounds that sum. The exact
result needs no sum: S is a mean of n thinned ratios (`ShuffledCheckIn`).

Error: the sums run over all k except a tail of mass below e^-60, which is charged at its largest possible moment.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import special

from shoal import _validate
from shoal.bounds import moments
from shoal.bounds.numeric import FloatArray
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical
from shoal.errors import InvalidInput
from shoal.literature import _logspace
from shoal.literature.clones import (
    Guarantee,
    Profile,
    clones_profile,
    local_on_grid,
    local_scale,
    log_gaussian_profile,
    rounds_on_grid,
)
from shoal.literature.composition import optimal_composition
from shoal.literature.partitions import shuffle_rdp
from shoal.literature.sampling import log_moment_theorem2

Inner = Literal["exact", "theorem2"]

_SUMMED_USERS_MAX = 10**8
"""The time for a sum grows with the square root of the number of users."""

_TAIL = 60.0
"""Numbers of participants in a tail of mass below e^-60 are not summed; the tail is charged at its worst."""


def _log_tail(users: int, rate: float, k: int) -> float:
    """Return Chernoff's bound on the log-probability of at most k (below the mean) or at least k (above)."""
    share = k / users
    return -users * float(special.rel_entr(share, rate) + special.rel_entr(1.0 - share, 1.0 - rate))


def _participant_counts(users: int, rate: float, depth: float) -> tuple[FloatArray, FloatArray, float]:
    """Return participant counts, their log-probabilities, and the log of the mass left out (<= 2 e^-depth)."""
    if rate == 1.0:
        return np.array([float(users)]), np.zeros(1), -math.inf

    def last_inside(inside: int, outside: int) -> int:
        # The last k from the mean towards `outside` whose tail is above e^-depth (or `outside` itself).
        if _log_tail(users, rate, outside) > -depth:
            return outside
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if _log_tail(users, rate, middle) > -depth else (inside, middle)
        return inside

    # Bisection on a proved bound of the tail: all that is outside is charged, so the ends need not be sharp.
    centre = math.floor(users * rate)
    low, high = last_inside(centre, 0), last_inside(min(centre + 1, users), users)
    outside = [_log_tail(users, rate, low - 1)] if low > 0 else []
    outside += [_log_tail(users, rate, high + 1)] if high < users else []
    k = np.arange(low, high + 1, dtype=float)
    # Ratios of successive probabilities keep full accuracy where log-factorials would lose six digits.
    steps = np.log((users - k[1:] + 1.0) / k[1:]) + (math.log(rate) - math.log1p(-rate))
    log_p = np.concatenate([[0.0], np.cumsum(steps)])
    return k, log_p - float(special.logsumexp(log_p)), _logspace.log_sum(outside)


def _log_excess_sum(users: int, rate: float, log_moment_of: Callable[[int], float], ceiling: float) -> float:
    """Return `log sum_k Bin(n, rate)(k) (m_k - 1)` over k = 1..n, from log m_k <= `ceiling`."""
    # Deeper by the ceiling: the mass left out is multiplied by the largest possible moment.
    k, log_p, log_outside = _participant_counts(users, rate, _TAIL + ceiling)
    inner = np.array([log_moment_of(int(i)) if i else 0.0 for i in k])
    terms = log_p + _logspace.log_of_excess(inner)
    return _logspace.log_sum([*terms, log_outside + float(_logspace.log_of_excess(ceiling))])


def _checked_setting(users: int, rate: float, sigma: float, order: int) -> tuple[int, float, float, int]:
    return (
        _validate.integer("users", users, minimum=1, maximum=_SUMMED_USERS_MAX),
        _validate.rate(rate),
        _validate.sigma(sigma),
        _logspace.whole_order(order),
    )


def checkin_sum(*, users: int, rate: float, sigma: float, order: int, inner: Inner = "exact") -> float:
    """Return the Rényi DP of the shuffled check-in as a sum over participant counts, corrected.

    Source: Liew, Hasegawa and Takahashi (2022), arXiv:2206.03151, quoted before Theorem 3 of Liew and
    Takahashi (2022); here with sampling rate k/n for k participants, and with the term k = 0.

    Args:
      users: The number of users.
      rate: The probability that a user takes part.
      sigma: The noise multiplier of a report.
      order: The Rényi order, a whole number.
      inner: How a sample of k users is bounded: `"exact"` by its ratio (the sum then equals the closed form of
        `ShuffledCheckIn`), `"theorem2"` by `theorem2`.

    Returns:
      The Rényi divergence of the given order, in one direction, for the identical crowd.

    >>> f"{checkin_sum(users=100, rate=0.1, sigma=2.0, order=4):.10g}"
    '0.0005711972629'
    """
    n, g, s, top = _checked_setting(users, rate, sigma, order)
    _validate.choice("inner", inner, get_args(Inner))

    def exact(k: int) -> float:
        sampled = Identical(ratio=Lognormal(scale=s), users=k, weight=k / n)
        return float(moments.log_moments(sampled, top)[top])

    def by_theorem2(k: int) -> float:
        return log_moment_theorem2(reports=k, rate=k / n, sigma=s, order=top, shuffle=shuffle_rdp)

    if inner == "exact":  # at most the moment of one report seen in the clear
        excess = _log_excess_sum(n, g, exact, ceiling=top * (top - 1) / (2.0 * s**2))
    else:  # largest for one report that is certainly sampled
        largest = log_moment_theorem2(reports=1, rate=1.0, sigma=s, order=top, shuffle=shuffle_rdp)
        excess = _log_excess_sum(n, g, by_theorem2, largest)
    return _logspace.log_of_moment([excess]) / (top - 1)


def checkin_sum_printed(*, users: int, rate: float, sigma: float, order: int) -> float:
    """Return the sum before Theorem 3 as the paper prints it, which is no bound.

    Source: Liew and Takahashi (2022), section 4.2. Known to be wrong: every term has the check-in rate where the
    sampling rate of k participants is k/n, and the term of k = 0, (1 - rate)^n, is missing. It is here for
    comparison only; with few users it can be negative.

    Args:
      users: The number of users.
      rate: The probability that a user takes part.
      sigma: The noise multiplier of a report.
      order: The Rényi order, a whole number.

    Returns:
      The printed formula's value.
    """
    n, g, s, top = _checked_setting(users, rate, sigma, order)

    @functools.cache
    def bound(k: int) -> float:
        return log_moment_theorem2(reports=k, rate=g, sigma=s, order=top, shuffle=shuffle_rdp)

    excess = _log_excess_sum(n, g, bound, bound(1))
    nobody = n * math.log1p(-g) if g < 1.0 else -math.inf
    return float(np.logaddexp(math.log(-math.expm1(nobody)), excess)) / (top - 1)


def theorem3(*, users: int, rate: float, sigma: float, order: int) -> float:
    """Return the Rényi DP of the shuffled check-in by Theorem 3, for the best Delta.

    Source: Liew and Takahashi (2022), Theorem 3. With c = n rate and k = (1 - Delta) c + 1,

        (L - 1) D_L <= log( e^((L-1) eps(1) - Delta^2 c / 2) + e^((L-1) eps(k)) ),

    where eps(k) is the right-hand side of Theorem 2 for k reports at sampling rate `rate`. Delta is the best value
    in [0, 1] for which k is a whole number. eps(k) falls with k (the paper's Conjecture 1, which is a theorem: means
    of exchangeable ratios shrink in convex order), so the search skips intervals of k that cannot beat the best value.

    Known to be wrong: it bounds `checkin_sum_printed`, whose sampling rate is right only for k = n rate, so it is not
    proved as stated (k = 0 does no harm here). It also inherits the looseness of Theorem 2: for the paper's 5,540
    rounds it gives an epsilon of 9.617 (order 2) where 0.0608 is exact.

    Args:
      users: The number of users.
      rate: The probability that a user takes part.
      sigma: The noise multiplier of a report.
      order: The Rényi order, a whole number.

    Returns:
      The bound on the Rényi divergence.

    >>> f"{theorem3(users=60_000, rate=0.1, sigma=5.0, order=2):.6g}"
    '2.9761e-07'
    """
    n, g, s, top = _checked_setting(users, rate, sigma, order)
    mean = n * g

    @functools.cache
    def log_inner(k: int) -> float:
        return log_moment_theorem2(reports=k, rate=g, sigma=s, order=top, shuffle=shuffle_rdp)

    def log_first(q: int) -> float:
        # The first term, for (1 - Delta) c = q, which grows with q.
        return log_inner(1) - 0.5 * mean * (1.0 - q / mean) ** 2

    def value(q: int) -> float:
        return float(np.logaddexp(log_first(q), log_inner(q + 1)))

    # Branch and bound: both terms are monotone, so the ends of an interval bound every value inside.
    last = min(math.floor(mean), n - 1)
    best = min(value(0), value(last))
    queue = [(0.0, 0, last)]
    while queue:
        at_least, a, b = heapq.heappop(queue)
        if at_least >= best:
            break
        middle = (a + b) // 2
        best = min(best, value(middle))
        for low, high in ((a, middle), (middle, b)):
            if high - low > 1:
                heapq.heappush(queue, (float(np.logaddexp(log_first(low), log_inner(high + 1))), low, high))
    return best / (top - 1)


def _sampled_epsilon(epsilon: float, rate: float) -> float:
    """Return `log(1 + rate (e^epsilon - 1))`."""
    # Where e^epsilon could overflow it is taken out of the logarithm.
    if epsilon > 1.0:
        return epsilon + math.log(rate + (1.0 - rate) * math.exp(-epsilon))
    return math.log1p(rate * math.expm1(epsilon))


def checkin_baseline(
    *, users: int, rate: float, sigma: float, delta: float, rounds: int = 1, sensitivity: float = 2.0
) -> float:
    """Return epsilon of the shuffled check-in through approximate DP only.

    Source: the "Baseline" of Liew and Takahashi (2022), section 5.2, after Liew, Hasegawa and
    Takahashi (2022). A round of n rate reports is (eps, del)-DP by `clones`; sampling makes it
    (log(1 + rate (e^eps - 1)), rate del)-DP (Balle, Barthe and Gaboardi 2018, Theorem 9); rounds are
    composed by `optimal_composition`, for the best delta0 = delta on the halving grid. Where `clones`
    does not apply, or is worse, the guarantee of one report in the clear takes its place.

    Known to be wrong: the number of reports is random, but its mean, rounded down, is used. That
    flatters the baseline a little.

    Args:
      users: The number of users.
      rate: The probability that a user takes part.
      sigma: The noise multiplier of a report.
      delta: The delta of all rounds together.
      rounds: The number of rounds.
      sensitivity: How far apart two vectors of one user can be: 1 or 2.

    Returns:
      Epsilon of all rounds together.

    Raises:
      InvalidInput: If fewer than one report is expected, or an argument is out of its range.
    """
    n, g = _validate.users("users", users), _validate.rate(rate)
    target, count = _validate.delta(delta), _validate.rounds(rounds)
    reports = math.floor(n * g)
    if reports < 1:
        raise InvalidInput(f"users * rate must be at least 1, got {n * g:g}")
    scale = local_scale(sigma, sensitivity)

    def best(guarantees: Iterable[Guarantee]) -> float:
        sampled = (Guarantee(epsilon=_sampled_epsilon(x.epsilon, g), delta=g * x.delta) for x in guarantees)
        # Composition needs some of delta for itself.
        fitting = (x for x in sampled if count * x.delta <= 0.999 * target)
        # epsilon grows as delta0 falls; after 40 halvings the rounds' delta no longer matters.
        return min(
            (
                optimal_composition(epsilon=x.epsilon, delta=x.delta, rounds=count, delta_total=target)
                for x in itertools.islice(fitting, 40)
            ),
            default=math.inf,
        )

    return min(best(shuffled for _, shuffled in rounds_on_grid(reports, scale)), best(local_on_grid(scale)))


@dataclass(frozen=True, kw_only=True)
class _IntegrationCells:
    """The cells over which `generic_bound` integrates epsilon, with four Gauss points each."""

    edges: FloatArray
    points: FloatArray
    log_weights: FloatArray
    log_left: FloatArray
    """The weight of a cell's left edge in the chord (in e^epsilon) at each point, as a logarithm."""
    log_right: FloatArray


@functools.lru_cache(maxsize=8)
def _integration_cells(order: int, scale: float) -> _IntegrationCells:
    """Return cells, fine near 0, that leave out at most e^-60 of `E[W^order]` of a report in the clear."""
    depth = _TAIL + order * (order - 1) / (2.0 * scale**2)
    end = (2.0 * order - 1.0) / (2.0 * scale**2) + math.sqrt(2.0 * depth) / scale
    # e^((L-1) eps) changes by a factor e in 1/L; the profile near 0 varies over many powers of ten. Hence two grids.
    straight = np.linspace(0.0, end, math.ceil(end * order) + 2)
    edges = np.unique(np.concatenate([straight, end * np.geomspace(1e-9, 1.0, 2000)]))
    nodes, weights = np.polynomial.legendre.leggauss(4)
    width = np.diff(edges)[:, None]
    points = edges[:-1, None] + width * (0.5 + 0.5 * nodes)
    right = np.expm1(points - edges[:-1, None]) / np.expm1(width)
    return _IntegrationCells(
        edges=edges,
        points=points,
        log_weights=np.log(0.5 * width * weights),
        log_left=np.log1p(-right),
        log_right=np.log(right),
    )


def generic_bound(
    *, users: int, rate: float, sigma: float, order: int, profile: Profile | None = None, sensitivity: float = 2.0
) -> float:
    """Return the Rényi DP of the shuffled check-in from a privacy profile of the shuffle.

    Source: the "generic bound" of Liew and Takahashi (2022), section 5.2, after Liew, Hasegawa and
    Takahashi (2022). With k participants sampled at w = k/n, a profile d(eps) of the shuffle of k
    becomes w d(eps) at eps' = log(1 + w (e^eps - 1)) (Balle, Barthe and Gaboardi 2018, Theorem 9),

        E_Q[(P/Q)^L] = 1 + L (L-1) int_0^inf (e^((L-1) eps') d_{P||Q}(eps') + e^(-L eps') d_{Q||P}(eps')) d eps',

    and the sum over k is that of `checkin_sum`. The profile is clipped by that of one report in the clear at the given
    sensitivity, which shuffling cannot exceed; without the clipping the integral of a profile from `clones` would not
    converge.

    Between the points of the grid d is replaced by its chord in e^eps, which lies above it (profiles are
    convex there), so the result is a bound. It loses what the profile loses, and uses one delta for both directions.

    Args:
      users: The number of users.
      rate: The probability that a user takes part.
      sigma: The noise multiplier of a report.
      order: The Rényi order, a whole number.
      profile: `profile(k, epsilons)` bounds delta of k shuffled reports in both directions; `clones_profile` if None.
      sensitivity: How far apart two vectors of one user can be: 1 or 2.

    Returns:
      The bound on the Rényi divergence.

    Raises:
      InvalidInput: If the profile does not give one delta of at least 0 for each epsilon, or an argument is out of its
        range.
    """
    n, g, _, top = _checked_setting(users, rate, sigma, order)
    scale = local_scale(sigma, sensitivity)
    delta_of = clones_profile(sigma=sigma, sensitivity=sensitivity) if profile is None else profile
    cells = _integration_cells(top, scale)
    at = cells.points
    local = log_gaussian_profile(cells.edges, scale)
    ceiling = top * (top - 1) / (2.0 * scale**2)
    # Beyond the last cell: L(L-1) int_x^inf u^(L-2) d(u) du <= E[W^L; W > x], for either direction.
    beyond = (2.0 * top - 1.0) / (2.0 * scale) - float(cells.edges[-1]) * scale
    log_beyond = math.log(2.0) + ceiling + float(special.log_ndtr(beyond))

    def log_moment(k: int) -> float:
        w = k / n
        deltas = np.asarray(delta_of(k, cells.edges), dtype=float)
        if deltas.shape != cells.edges.shape or not (deltas >= 0.0).all():
            raise InvalidInput(f"profile must give one delta of at least 0 for each epsilon, got {deltas}")
        log_delta = np.minimum(np.log(np.maximum(deltas, 1e-320)), local)
        log_chord = np.logaddexp(cells.log_left + log_delta[:-1, None], cells.log_right + log_delta[1:, None])
        grown = np.logaddexp(math.log1p(-w), math.log(w) + at) if w < 1.0 else at  # eps'
        # d eps' = w e^(eps - eps') d eps, and one more w from the profile
        kernel = np.logaddexp((top - 2.0) * grown, -(top + 1.0) * grown) + at + cells.log_weights
        twice = 2.0 * math.log(w)
        inside = math.log(top * (top - 1.0)) + twice + _logspace.log_sum(log_chord + kernel)
        # One delta for both directions can exceed the moment of the report in the clear.
        return min(_logspace.log_of_moment([inside, twice + log_beyond]), ceiling)

    return _logspace.log_of_moment([_log_excess_sum(n, g, log_moment, ceiling)]) / (top - 1)

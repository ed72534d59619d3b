"""Rényi DP of the shuffled Gaussian: Theorem 1 by enumeration (Algorithm 1), its bound, its series.

Liew and Takahashi (2022), Theorem 1: for whole orders L, all other users at the origin,

    (L - 1) D_L = log( e^(-L / 2 sigma^2) / n^L  sum_{k_1+...+k_n=L} L! / (k_1! ... k_n!) e^(sum k_i^2 / 2 sigma^2) ).

The paper calls this D_L(M(D) || M(D')); with D the unmoved data set its proof computes
D_L(M(D') || M(D)), the direction called forward in this package. The reverse direction is not covered.
The proof lets all other users hold the zero vector "w.l.o.g."; that is an assumption.

Error: round-off only, near 1e-13 relative.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from scipy import special

from shoal import _validate
from shoal.bounds import moments
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical
from shoal.literature import _logspace

_ENUMERATION_MAX = 100
"""There are 190,569,292 partitions of 100; each further order costs 12% more time."""

_PARTITIONS_AT_ONCE = 65_536


class ShuffleRdp(Protocol):
    """Rényi DP of a shuffle at a whole order: `algorithm1` or `shuffle_rdp`."""

    def __call__(self, *, users: int, order: int, sigma: float) -> float: ...


def partitions(total: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the partitions of a whole number as ((part, count), ...), parts falling.

    >>> list(partitions(4))
    [((1, 4),), ((2, 1), (1, 2)), ((2, 2),), ((3, 1), (1, 1)), ((4, 1),)]
    """
    stack: list[tuple[int, int, tuple[tuple[int, int], ...]]] = [(total, total, ())]
    while stack:
        rest, largest, chosen = stack.pop()
        if not rest:
            yield chosen
            continue
        # Ones can complete every prefix with parts above 1, so the search has no dead ends.
        for part in range(min(largest, rest), 1, -1):
            for count in range(rest // part, 0, -1):
                stack.append((rest - count * part, part - 1, (*chosen, (part, count))))
        if largest:
            stack.append((0, 0, (*chosen, (1, rest))))


def algorithm1(*, users: int, order: int, sigma: float) -> float:
    """Return the Rényi DP of the shuffle by Algorithm 1, a sum over integer partitions.

    Source: Liew and Takahashi (2022), Theorem 1 and Algorithm 1. A partition of L into l parts, in
    which the distinct parts occur kappa_1, kappa_2, ... times, stands for
    `n! / ((n - l)! kappa_1! kappa_2! ...)` of the tuples (k_1, ..., k_n), and for none if l > n.

    Known to be wrong in print, and corrected here: the multiplicity lacks (n - l)!; the exponent
    lacks 1 / (2 sigma^2); the logarithm and the factor 1 / (L - 1) are missing. Time grows
    exponentially with the square root of the order. Each term is summed less its weight (the
    weights sum to 1), which preserves the digits of a small result.

    Args:
      users: The number of users, n.
      order: The Rényi order L, a whole number of at most 100.
      sigma: The noise multiplier of a report.

    Returns:
      The Rényi divergence in one direction, for the identical crowd.

    >>> f"{algorithm1(users=60_000, order=32, sigma=9.48):.12g}"
    '2.98380538304e-06'
    """
    n = _validate.users("users", users)
    top = _logspace.whole_order(order, maximum=_ENUMERATION_MAX)
    s = _validate.sigma(sigma)
    log_factorial = [math.lgamma(k + 1.0) for k in range(top + 1)]
    # log(n! / ((n-l)! n^l)) for l parts; minus infinity for more parts than users.
    steps = [math.log1p(-i / n) if i < n else -math.inf for i in range(top)]
    log_places = list(itertools.accumulate(steps, initial=0.0))
    log_n = math.log(n)
    # The contributions of `count` parts of one size to the logarithm of a weight, and to its exponent.
    weight = [
        [-c * log_factorial[p] - log_factorial[c] - c * (p - 1) * log_n for c in range(top // max(p, 1) + 1)]
        for p in range(top + 1)
    ]
    half = 1.0 / (2.0 * s**2)
    growth = [p * (p - 1) * half for p in range(top + 1)]

    def terms() -> Iterator[tuple[float, float]]:
        for partition in partitions(top):
            parts, log_weight, exponent = 0, log_factorial[top], 0.0
            for part, count in partition:
                parts += count
                log_weight += weight[part][count]
                exponent += count * growth[part]
            if parts <= n:
                yield log_weight + log_places[parts], exponent

    source, sums = terms(), []
    while chunk := list(itertools.islice(source, _PARTITIONS_AT_ONCE)):
        log_weights, exponents = np.array(chunk).T
        sums.append(_logspace.log_sum(log_weights + _logspace.log_of_excess(exponents)))
    return _logspace.log_of_moment(sums) / (top - 1)


def shuffle_rdp(*, users: int, order: int, sigma: float) -> float:
    """Return the Rényi DP of the shuffle by Theorem 1, in polynomial time.

    The numbers are those of `algorithm1`, computed from this package's series of moments.

    Args:
      users: The number of users.
      order: The Rényi order, a whole number.
      sigma: The noise multiplier of a report.

    Returns:
      The Rényi divergence in one direction, for the identical crowd.

    >>> f"{shuffle_rdp(users=60_000, order=1_000, sigma=9.48):.6g}"
    '9.3244e-05'
    """
    n = _validate.users("users", users)
    top = _logspace.whole_order(order)
    shuffled = Identical(ratio=Lognormal(scale=_validate.sigma(sigma)), users=n)
    return float(moments.log_moments(shuffled, top)[top]) / (top - 1)


def corollary1(*, order: float, sigma: float) -> float:
    """Return the Rényi DP of one report seen in the clear, which shuffling cannot exceed.

    Source: Liew and Takahashi (2022), Corollary 1. It is true for every order and both directions, because
    shuffling is post-processing; unlike Theorem 1 it holds for any crowd. The paper calls the inequality strict,
    but it is an equality for one user.

    Args:
      order: The Rényi order.
      sigma: The noise multiplier of a report.

    Returns:
      `order / (2 sigma^2)`.
    """
    return _validate.order(order) / (2.0 * _validate.sigma(sigma) ** 2)


def log_binomials(order: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return `log C(order, j)` for j = 0 .. order."""
    j = np.arange(order + 1, dtype=float)
    result = -np.log1p(order) - special.betaln(order - j + 1.0, j + 1.0)
    return np.asarray(result, dtype=float)

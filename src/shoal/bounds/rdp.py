"""Rényi DP of composed rounds, in both directions, and its conversion to (epsilon, delta).

For a round with ratio S = dP/dQ (see `ratio`) and order L > 1

    forward:  (L - 1) D_L(P || Q) = log E[S^L],      reverse:  (L - 1) D_L(Q || P) = log E[S^(1-L)],

both convex in L and zero at L = 1. A round gives upper bounds on them (`round`).

Composition adds logarithmic moments (Mironov 2017, Proposition 1). Conversion (Canonne, Kamath and
Steinke 2020, Proposition 12, arXiv:2004.00010v4; Balle et al. 2020, Theorem 21):

    epsilon = D_L + log(1 - 1/L) - (log delta + log L) / (L - 1),
    delta   = exp((L - 1)(D_L - epsilon)) (1 - 1/L)^(L-1) / L,

for the best L. Each direction is converted on its own, and the worse result counts. The grid of
orders grows until the best order lies inside it.

*Errors*, u = 2^-53:

1. The moments are inflated by their round-off bound where they are made (`round`).
2. The conversion adds a handful of terms: 8 u of the sum of their sizes is more than its round-off.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from shoal._validate import ORDER_MAX
from shoal.bounds.gaussian import SMALLEST_DOUBLE
from shoal.bounds.numeric import DIRECTIONS, UNIT, Direction, FloatArray
from shoal.bounds.round import DENSE_ORDER_MAX, Round

_FINE, _GAIN = 2e-4, 1e-9
"""The search around the best order ends when orders differ, or answers change, by less than these parts."""

Repeated = tuple[Round, int]
"""A round and how often it is repeated."""


def divergences(parts: Sequence[Repeated], orders: FloatArray, direction: Direction) -> FloatArray:
    """`D_L` of the composed rounds at real orders."""
    # error 1 is in the moments already; counts are multiplied here and in the search, nowhere else.
    total = sum((count * mean.log_moments(orders, direction) for mean, count in parts), np.zeros(len(orders)))
    return total / (orders - 1.0)


@functools.lru_cache(maxsize=64)
def order_grid(level: int) -> FloatArray:
    """Orders of one level: 0 for L <= 64, 1 up to 256, each further one twice as far."""
    if level == 0:
        # Small orders count where epsilon is large; there they are denser than the whole ones.
        return np.concatenate([np.linspace(1.02, 2.0, 50)[:-1], np.linspace(2.0, 8.0, 25), np.arange(9.0, 65.0)])
    if level == 1:
        return np.arange(65.0, DENSE_ORDER_MAX + 1.0)
    return np.round(DENSE_ORDER_MAX * 2.0 ** (level - 2.0 + np.arange(1, 5) / 4.0))


@functools.lru_cache(maxsize=512)
def _level(mean: Round, direction: Direction, level: int) -> FloatArray:
    return mean.log_moments(order_grid(level), direction, quick=True)


@functools.lru_cache(maxsize=4096)
def _one(mean: Round, direction: Direction, order: float) -> float:
    return float(mean.log_moments(np.array([order]), direction, quick=True)[0])


def _total_at(parts: Sequence[Repeated], direction: Direction, order: float) -> float:
    return sum(count * _one(mean, direction, order) for mean, count in parts)


def _search(
    parts: Sequence[Repeated], direction: Direction, objective: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[float, float]:
    """The least value of an objective(orders, log-moments), and the order that gives it.

    Levels are added until the best order is no longer the last one of its level.
    """
    best, at, level = math.inf, math.nan, 0
    while True:
        orders = order_grid(level)
        total = sum((count * _level(mean, direction, level) for mean, count in parts), np.zeros(len(orders)))
        values = objective(orders, total)
        i = int(np.argmin(values))
        if values[i] < best:
            best, at = float(values[i]), float(orders[i])
        if at < orders[-1] or orders[-1] * 2.0 > ORDER_MAX:
            break
        level += 1
    # Above the dense levels, halve the gap around the best order until it no longer pays.
    gap = at * 2.0**0.25 - at
    while at > DENSE_ORDER_MAX and gap >= max(1.0, _FINE * at):
        orders = np.round(np.array([max(at - gap / 2.0, DENSE_ORDER_MAX), at + gap / 2.0]))
        values = objective(orders, np.array([_total_at(parts, direction, float(order)) for order in orders]))
        i = int(np.argmin(values))
        if values[i] < best:
            gain = best - float(values[i])
            best, at = float(values[i]), float(orders[i])
            if gain < _GAIN * abs(best):
                break
        gap /= 2.0
    return best, at


def epsilon_terms(orders: FloatArray, log_moment: FloatArray, delta: float) -> FloatArray:
    """The epsilon that each order proves at this delta, rounded up, from `(L - 1) D_L`."""
    penalty = (math.log(delta) + np.log(orders)) / (orders - 1.0)
    value: FloatArray = log_moment / (orders - 1.0) + np.log1p(-1.0 / orders) - penalty
    # error 2
    value += 8.0 * UNIT * (log_moment / (orders - 1.0) + np.abs(penalty) + 1.0 / orders)
    return value


def _log_delta_terms(orders: FloatArray, log_moment: FloatArray, epsilon: float) -> FloatArray:
    """The logarithm of the delta that each order proves at this epsilon, rounded up."""
    gain = (orders - 1.0) * epsilon
    value: FloatArray = log_moment - gain + (orders - 1.0) * np.log1p(-1.0 / orders) - np.log(orders)
    # error 2
    value += 8.0 * UNIT * (log_moment + gain + 2.0 + np.log(orders))
    return value


def _worst(
    parts: Sequence[Repeated], orders: FloatArray | None, objective: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[float, float]:
    """The worse of both directions' best values of an objective, and the order that gives it."""
    if orders is not None:
        tables = [objective(orders, divergences(parts, orders, d) * (orders - 1.0)) for d in DIRECTIONS]
        return max((float(t.min()), float(orders[int(np.argmin(t))])) for t in tables)
    best, at = _search(parts, "forward", objective)
    # If the reverse direction does no worse at this one order, its best is no worse either.
    if float(objective(np.array([at]), np.array([_total_at(parts, "reverse", at)]))[0]) <= best:
        return best, at
    return max((best, at), _search(parts, "reverse", objective))


def least_epsilon(parts: Sequence[Repeated], delta: float, orders: FloatArray | None = None) -> float:
    """The least epsilon that Rényi DP proves at this delta; `orders` restricts the search to them."""
    if not parts:
        return 0.0
    return max(0.0, _worst(parts, orders, lambda o, m: epsilon_terms(o, m, delta))[0])


def best_order(parts: Sequence[Repeated], delta: float) -> float:
    """The order at which `least_epsilon` is reached, in the direction that is worse."""
    return _worst(parts, None, lambda o, m: epsilon_terms(o, m, delta))[1]


def least_delta(parts: Sequence[Repeated], epsilon: float, orders: FloatArray | None = None) -> float:
    """The least delta that Rényi DP proves at this epsilon, at most 1 and never rounded to 0."""
    if not parts:
        return 0.0
    log_delta, _ = _worst(parts, orders, lambda o, m: _log_delta_terms(o, m, epsilon))
    if log_delta >= 0.0:
        return 1.0
    return max(math.exp(log_delta), SMALLEST_DOUBLE)

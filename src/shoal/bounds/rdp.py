"""Rényi DP of composed rounds, in both directions, and its conversion to (epsilon, delta).

For a round with ratio S = dP/dQ (see `ratio`) and order L > 1

    forward:  (L - 1) D_L(P || Q) = log E[S^L],      reverse:  (L - 1) D_L(Q || P) = log E[S^(1-L)],

both convex in L and zero at L = 1. Every round gives upper bounds on them (`round`).

Composition adds logarithmic moments (Mironov 2017, Proposition 1). Conversion (Canonne, Kamath and
Steinke 2020, Proposition 12, arXiv:2004.00010v4; Balle et al. 2020, Theorem 21):

    epsilon = D_L + log(1 - 1/L) - (log delta + log L) / (L - 1),
    delta   = exp((L - 1)(D_L - epsilon)) (1 - 1/L)^(L-1) / L,

for the best L. Each direction is converted separately, and the worse result counts. The grid of
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

_ORDER_STEP, _ORDER_GAIN = 2e-4, 1e-9
"""The search for the best order ends when orders differ, or answers change, by less than these relative amounts."""

Repeated = tuple[Round, int]
"""A round, and how often it is repeated."""


def divergences(parts: Sequence[Repeated], orders: FloatArray, direction: Direction) -> FloatArray:
    """`D_L` of the composed rounds at real orders.

    Args:
        parts: the rounds and their counts.
        orders: the orders L > 1.
        direction: D(P||Q) or D(Q||P).

    Returns:
        Upper bounds, one for each order.
    """
    # error 1 is charged in the moments; counts are multiplied here and in the search, nowhere else.
    total = sum((count * round_.log_moments(orders, direction) for round_, count in parts), np.zeros(len(orders)))
    return total / (orders - 1.0)


@functools.lru_cache(maxsize=64)
def order_grid(level: int) -> FloatArray:
    """The orders of one level: 0 up to 64, 1 up to 256, then each up to twice the last."""
    if level == 0:
        # Small orders matter where epsilon is large, so there the grid is denser than the whole numbers.
        return np.concatenate([np.linspace(1.02, 2.0, 50)[:-1], np.linspace(2.0, 8.0, 25), np.arange(9.0, 65.0)])
    if level == 1:
        return np.arange(65.0, DENSE_ORDER_MAX + 1.0)
    return np.round(DENSE_ORDER_MAX * 2.0 ** (level - 2.0 + np.arange(1, 5) / 4.0))


@functools.lru_cache(maxsize=512)
def _log_moments_at_level(round_: Round, direction: Direction, level: int) -> FloatArray:
    """The log-moments of one round at the orders of one level."""
    return round_.log_moments(order_grid(level), direction, quick=True)


@functools.lru_cache(maxsize=4096)
def _log_moment_at(round_: Round, direction: Direction, order: float) -> float:
    """The log-moment of one round at one order."""
    return float(round_.log_moments(np.array([order]), direction, quick=True)[0])


def _total_at(parts: Sequence[Repeated], direction: Direction, order: float) -> float:
    """The log-moment of all rounds at one order."""
    return sum(count * _log_moment_at(round_, direction, order) for round_, count in parts)


def _searched_best(
    parts: Sequence[Repeated], direction: Direction, objective: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[float, float]:
    """The smallest value of an objective(orders, log-moments), and its order.

    Levels are added until the best order is no longer the last one of its level.
    """
    best, order, level = math.inf, math.nan, 0
    while True:
        orders = order_grid(level)
        total = sum(
            (count * _log_moments_at_level(round_, direction, level) for round_, count in parts), np.zeros(len(orders))
        )
        values = objective(orders, total)
        i = int(np.argmin(values))
        if values[i] < best:
            best, order = float(values[i]), float(orders[i])
        if order < orders[-1] or orders[-1] * 2.0 > ORDER_MAX:
            break
        level += 1
    # Above the dense levels the gap around the best order is halved until the gain is negligible.
    gap = order * 2.0**0.25 - order
    while order > DENSE_ORDER_MAX and gap >= max(1.0, _ORDER_STEP * order):
        orders = np.round(np.array([max(order - gap / 2.0, DENSE_ORDER_MAX), order + gap / 2.0]))
        values = objective(orders, np.array([_total_at(parts, direction, float(candidate)) for candidate in orders]))
        i = int(np.argmin(values))
        if values[i] < best:
            gain = best - float(values[i])
            best, order = float(values[i]), float(orders[i])
            if gain < _ORDER_GAIN * abs(best):
                break
        gap /= 2.0
    return best, order


def epsilon_terms(orders: FloatArray, log_moment: FloatArray, delta: float) -> FloatArray:
    """The epsilon that each order proves at one delta, rounded up.

    Args:
        orders: the orders L.
        log_moment: `(L - 1) D_L` at each.
        delta: delta.

    Returns:
        An upper bound on epsilon for each order.
    """
    penalty = (math.log(delta) + np.log(orders)) / (orders - 1.0)
    value = log_moment / (orders - 1.0) + np.log1p(-1.0 / orders) - penalty
    # error 2
    return value + 8.0 * UNIT * (log_moment / (orders - 1.0) + np.abs(penalty) + 1.0 / orders)


def _log_delta_terms(orders: FloatArray, log_moment: FloatArray, epsilon: float) -> FloatArray:
    """The logarithm of the delta that each order proves at one epsilon, rounded up."""
    gain = (orders - 1.0) * epsilon
    value = log_moment - gain + (orders - 1.0) * np.log1p(-1.0 / orders) - np.log(orders)
    # error 2
    return value + 8.0 * UNIT * (log_moment + gain + 2.0 + np.log(orders))


def _worse_direction(
    parts: Sequence[Repeated], orders: FloatArray | None, objective: Callable[[FloatArray, FloatArray], FloatArray]
) -> tuple[float, float]:
    """The best value of an objective in the worse direction, and its order."""
    if orders is not None:
        tables = [objective(orders, divergences(parts, orders, direction) * (orders - 1.0)) for direction in DIRECTIONS]
        return max((float(t.min()), float(orders[int(np.argmin(t))])) for t in tables)
    best, order = _searched_best(parts, "forward", objective)
    # If the reverse direction is no worse at this order, its best value is no worse either.
    if float(objective(np.array([order]), np.array([_total_at(parts, "reverse", order)]))[0]) <= best:
        return best, order
    return max((best, order), _searched_best(parts, "reverse", objective))


def least_epsilon(parts: Sequence[Repeated], delta: float, orders: FloatArray | None = None) -> float:
    """The smallest epsilon that Rényi DP proves at one delta.

    Args:
        parts: the rounds and their counts.
        delta: delta.
        orders: the orders to choose from; all if None.

    Returns:
        Epsilon, at least 0.
    """
    if not parts:
        return 0.0
    return max(0.0, _worse_direction(parts, orders, lambda o, m: epsilon_terms(o, m, delta))[0])


def best_order(parts: Sequence[Repeated], delta: float) -> float:
    """The order that gives `least_epsilon`, in the worse direction.

    Args:
        parts: the rounds and their counts.
        delta: delta.

    Returns:
        The order.
    """
    return _worse_direction(parts, None, lambda o, m: epsilon_terms(o, m, delta))[1]


def least_delta(parts: Sequence[Repeated], epsilon: float, orders: FloatArray | None = None) -> float:
    """The smallest delta that Rényi DP proves at one epsilon.

    Args:
        parts: the rounds and their counts.
        epsilon: epsilon.
        orders: the orders to choose from; all if None.

    Returns:
        Delta, at most 1 and never rounded to 0.
    """
    if not parts:
        return 0.0
    log_delta, _ = _worse_direction(parts, orders, lambda o, m: _log_delta_terms(o, m, epsilon))
    if log_delta >= 0.0:
        return 1.0
    return max(math.exp(log_delta), SMALLEST_DOUBLE)

"""From one round to many: optimal composition of (epsilon, delta), and conversion of Rényi bounds.

Error: both results are rounded to the safe side, upwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from shoal import _validate
from shoal.bounds import rdp
from shoal.bounds.numeric import UNIT
from shoal.errors import InvalidInput
from shoal.literature import _logspace

_COMPOSED_ROUNDS_MAX = 10**7
"""The sums have half as many terms."""


def epsilon_from_rdp(*, curve: Callable[[int], float], orders: Any, delta: float, rounds: int = 1) -> float:
    """Return epsilon of many rounds from Rényi bounds of one round.

    The conversion is that of the whole package (`bounds.rdp`): Canonne, Kamath and Steinke (2020),
    Proposition 12. The best of the given orders counts, so few orders give a large epsilon.

    Args:
      curve: From an order to the bound on the Rényi divergence of one round.
      orders: The whole orders to try.
      delta: The delta of all rounds together.
      rounds: The number of rounds.

    Returns:
      Epsilon of all rounds together.

    >>> f"{epsilon_from_rdp(curve=lambda order: order / 8, orders=range(2, 65), delta=1e-5, rounds=3):.6f}"
    '4.011912'
    """
    whole = _logspace.whole_orders(orders)
    count, target = _validate.rounds(rounds), _validate.delta(delta)
    at = np.array(whole, dtype=float)
    values = np.array([_validate.epsilon(curve(k), name=f"curve({k})") for k in whole])
    # The formula of `bounds.rdp` itself, for bounds that do not come from a ratio.
    terms = rdp.epsilon_terms(at, count * values * (at - 1.0), target)
    return max(0.0, float(terms.min()))


def log_excess_delta(epsilon: float, rounds: int, i: int) -> float:
    """Return an upper bound on `log delta_i` of `optimal_composition`.

    Args:
      epsilon: Epsilon of one round.
      rounds: The number of rounds, k.
      i: The index; 0 is plain addition.

    Returns:
      The logarithm, minus infinity for i = 0.
    """
    if i == 0 or epsilon == 0.0:
        return -math.inf
    k = float(rounds)
    j = np.arange(i, dtype=float)
    # e^((k-j) eps) - e^((k-2i+j) eps) = e^((k-j) eps) (1 - e^(-2(i-j) eps))
    log_total = k * float(np.logaddexp(0.0, epsilon))
    log_choose = special.gammaln(k + 1.0) - special.gammaln(j + 1.0) - special.gammaln(k - j + 1.0)
    log_terms = log_choose + ((k - j) * epsilon - log_total) + np.log(-np.expm1(-2.0 * (i - j) * epsilon))
    # The largest numbers in the differences bound the round-off.
    slack = 16.0 * UNIT * (float(special.gammaln(k + 1.0)) + log_total + k)
    return float(special.logsumexp(log_terms)) + slack


def optimal_composition(*, epsilon: float, delta: float, rounds: int, delta_total: float) -> float:
    """Return epsilon of adaptive rounds of (epsilon, delta)-DP by optimal composition.

    Source: Kairouz, Oh and Viswanath (2015), The Composition Theorem for Differential Privacy,
    Theorem 3.3: k rounds are ((k - 2i) epsilon, 1 - (1 - delta)^k (1 - delta_i))-DP, i = 0 .. k/2,

        delta_i = sum_{j<i} C(k,j) (e^((k-j) eps) - e^((k-2i+j) eps)) / (1 + e^eps)^k,

    and nothing better follows from epsilon and delta alone. i = 0 is plain addition. It loses because a Gaussian
    round satisfies many pairs (epsilon, delta) at once, of which this uses one.

    Args:
      epsilon: Epsilon of one round.
      delta: Delta of one round.
      rounds: The number of rounds, k.
      delta_total: The delta of all rounds together.

    Returns:
      The smallest (k - 2i) epsilon that meets `delta_total`.

    Raises:
      InvalidInput: If the rounds' own delta exceeds `delta_total`, or an argument is out of its range.

    >>> round(optimal_composition(epsilon=0.1, delta=1e-8, rounds=100, delta_total=1e-5), 6)
    4.4
    """
    eps = _validate.epsilon(epsilon)
    round_delta = 0.0 if delta == 0 else _validate.delta(delta)
    k = _validate.integer("rounds", rounds, minimum=1, maximum=_COMPOSED_ROUNDS_MAX)
    target = _validate.delta(delta_total, name="delta_total")
    log_remaining = k * math.log1p(-round_delta)

    def total_delta(i: int) -> float:
        log_delta = log_excess_delta(eps, k, i)
        if log_delta >= 0.0:
            return 1.0
        return -math.expm1(log_remaining + math.log1p(-math.exp(log_delta))) * (1.0 + 8.0 * UNIT)

    if total_delta(0) > target:
        raise InvalidInput(
            f"delta_total must be at least {total_delta(0):.6g} for {k} rounds with delta {round_delta:g}, got {target}"
        )
    fits, fails = 0, k // 2 + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if total_delta(middle) <= target:
            fits = middle
        else:
            fails = middle
    steps = k - 2 * fits
    return math.nextafter(steps * eps, math.inf) if steps and eps else 0.0

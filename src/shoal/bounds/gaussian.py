"""Closed forms of one Gaussian report: N(0, 1) against N(r, 1), r the *width*.

T reports of width r are one of width r sqrt(T). The curve (Balle and Wang 2018, theorem 8, arXiv:1805.06530):

    delta(eps) = Phi(r/2 - eps/r) - e^eps Phi(-r/2 - eps/r).

*Errors*, u = 2^-53:

1. Arguments a of Phi are exact to 2u, so the logarithms of both terms are exact to 4u (1 + a^2), and so is the
   rounding of their difference; 16 u times `2 + (r/2 + eps/r)^2 + eps` times their sum is more, and is charged.
2. The power of a test, `Phi(Phi^-1(fpr) + r)`: the quantile is exact to a few u of itself, Phi as in 1; 64 u times
   `2 + (|quantile| + r)^2` of the power is more than both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from shoal.bounds.numeric import UNIT, FloatArray
from shoal.interval import Interval

SMALLEST_DOUBLE = 5e-324
"""No delta of a report is 0: one too small for a double is reported as the smallest double."""


def log_terms(width: float, epsilon: FloatArray | float) -> tuple[FloatArray, FloatArray]:
    """The logarithms of the two terms of delta.

    Args:
        width: r.
        epsilon: eps, one or many.

    Returns:
        The logarithm of the first term, and that of the second, which is at most 0 even if large terms are rounded.
    """
    first = special.log_ndtr(width / 2.0 - epsilon / width)
    second = np.minimum(0.0, epsilon + special.log_ndtr(-width / 2.0 - epsilon / width))
    return first, second


def _relative_error(width: float, epsilon: FloatArray | float) -> FloatArray | float:
    """The error of the difference of both terms, as a part of their sum (error 1)."""
    return 16.0 * UNIT * (2.0 + (width / 2.0 + epsilon / width) ** 2 + epsilon)


def delta_at(width: float, epsilon: float) -> Interval:
    """delta at one eps.

    Args:
        width: r; infinity stands for no noise.
        epsilon: eps >= 0.

    Returns:
        A bracket as wide as round-off.
    """
    if math.isinf(width):
        return Interval(lower=0.0, upper=1.0)
    first, second = (math.exp(float(log)) for log in log_terms(width, epsilon))
    value, error = first - second, float(_relative_error(width, epsilon)) * (first + second)
    return Interval(lower=max(0.0, value - error), upper=min(1.0, max(value + error, SMALLEST_DOUBLE)))


def deltas_above(width: float, epsilon: FloatArray) -> FloatArray:
    """Upper bounds on delta at many eps.

    Args:
        width: r.
        epsilon: values of eps >= 0.

    Returns:
        The bounds, one for each eps.
    """
    first, second = (np.exp(log) for log in log_terms(width, epsilon))
    return np.minimum(1.0, np.maximum(first - second, 0.0) + _relative_error(width, epsilon) * (first + second))


def epsilon_at(width: float, delta: float) -> Interval:
    """eps at one delta.

    Args:
        width: r; infinity stands for no noise.
        delta: delta, between 0 and 1.

    Returns:
        A bracket as wide as round-off.
    """
    if math.isinf(width):
        return Interval(lower=0.0, upper=math.inf)
    ends = []
    # The lower end of the bracket of delta falls to a given delta before the upper one: each gives one end of eps.
    for end in ("lower", "upper"):

        def excess(value: float, end: str = end) -> float:
            return delta - float(getattr(delta_at(width, value), end))

        root = _bisect(excess, width)
        ends.append(root[0] if end == "lower" else root[1])
    return Interval(lower=min(ends), upper=max(ends))


def power_at(width: float, fpr: float) -> Interval:
    """The power of the best test at a false positive rate: `Phi(Phi^-1(fpr) + r)`.

    Args:
        width: r; infinity stands for no noise.
        fpr: the false positive rate.

    Returns:
        A bracket as wide as round-off.
    """
    if math.isinf(width):
        return Interval(lower=fpr, upper=1.0)
    quantile = float(special.ndtri(fpr))
    power = float(special.ndtr(quantile + width))
    # error 2
    error = 64.0 * UNIT * (2.0 + (abs(quantile) + width) ** 2) * power
    return Interval(lower=max(fpr, power - error), upper=max(fpr, min(1.0, power + error)))


def _bisect(rising: Callable[[float], float], scale: float) -> tuple[float, float]:
    """Neighbouring numbers >= 0 between which a rising function crosses 0."""
    if rising(0.0) >= 0.0:
        return 0.0, 0.0
    low, high = 0.0, scale
    while rising(high) < 0.0:
        low, high = high, 2.0 * high
    while True:
        # Down to neighbouring doubles: about sixty steps, and no tolerance to choose.
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return low, high
        low, high = (low, middle) if rising(middle) >= 0.0 else (middle, high)

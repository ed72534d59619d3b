"""Laplace transforms of the ratio of one report; `moments` makes negative moments of means from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import special

from shoal.bounds.numeric import FloatArray

_LOG_DOUBLE_MAX = 700.0
"""e^700 is a double, e^710 is not."""

_PEAK_DEVIATIONS = 10.0
"""Further than this many deviations from its peak an integrand is below e^-50 of it."""

_SERIES_BELOW = 0.03
"""Below, the series of `e^-v - 1 + v` to its ninth power is exact to round-off."""


class Transform(Protocol):
    """The transform of a thinned ratio V of mean 1."""

    def log(self, a: FloatArray) -> FloatArray:
        """`K(a) = log E exp(-a(V - 1))` for increasing a > 0, with full relative accuracy where it is tiny."""
        ...

    def log_at_zero(self, a: FloatArray) -> FloatArray:
        """`log E exp(-a V)` for increasing a > 0, with full relative accuracy.

        For large a `K(a) - a` would be a difference of two nearly equal numbers.
        """
        ...

    def nodes(self, a: float) -> float:
        """The approximate number of points that one value at a costs."""
        ...

    def reach(self, power: float, users: int) -> float:
        """The largest -log S at which a power of S matters: S is small only where all ratios are.

        Args:
            power: p of `E[S^-p]`.
            users: the number n of ratios of which S is the mean.

        Returns:
            An estimate, on the large side.
        """
        ...


def thinned(logarithm: FloatArray, rate: float) -> FloatArray:
    """`log(1 - rate + rate e^x)` for x >= 0, to full relative accuracy and without overflow.

    Args:
        logarithm: x.
        rate: the probability of a report.

    Returns:
        The logarithms, of the shape of x.
    """
    if rate == 1.0:
        return logarithm
    large = logarithm > _LOG_DOUBLE_MAX
    # e^x is factored out only where it would overflow: elsewhere that would cancel for small rates.
    small = np.log1p(rate * np.expm1(np.where(large, 0.0, logarithm)))
    return np.where(large, logarithm + math.log(rate), small)


@dataclass(frozen=True, kw_only=True)
class LognormalTransform:
    """The transform of `W = exp(z/s - 1/(2s^2))`, z standard normal, by trapezoidal rules in z.

    Their error falls exponentially with the step.
    """

    scale: float
    rate: float

    def log(self, a: FloatArray) -> FloatArray:
        # Where K is small, E[e^-v - 1 + v], v = a(W - 1), is summed instead of E[e^-v]: E[v] = 0, terms are >= 0.
        s = self.scale
        deviation = math.sqrt(math.expm1(min(1.0 / s**2, _LOG_DOUBLE_MAX)))
        is_small = (a <= 1.0) | (a * deviation <= 1.0)
        result = np.empty_like(a)
        for chosen in (is_small, ~is_small):
            if not chosen.any():
                continue
            # The centred terms grow like W^2 to the right, whose weight peaks 2/s further out.
            centred = chosen is is_small
            right = 2.0 / s + _PEAK_DEVIATIONS if centred else _PEAK_DEVIATIONS
            z, log_density = self._z_nodes(float(a[chosen][-1]), right)
            v = a[chosen][:, None] * np.expm1(z / s - 0.5 / s**2)
            result[chosen] = (
                np.log1p(_exp_remainder(v) @ np.exp(log_density)) if centred else log_sum_exp(log_density - v)
            )
        return thinned(result, self.rate)

    def log_at_zero(self, a: FloatArray) -> FloatArray:
        s, rate = self.scale, self.rate
        z, log_density = self._z_nodes(float(a[-1]), 1.0 / s + _PEAK_DEVIATIONS)
        exponents = -a[:, None] * np.exp(z / s - 0.5 / s**2)
        # 1 - E[e^(-aW)] where that is small: no logarithm of a sum near 1
        missing = -np.expm1(exponents) @ np.exp(log_density)
        result = np.where(missing < 0.5, np.log1p(-np.minimum(missing, 0.5)), log_sum_exp(log_density + exponents))
        if rate == 1.0:
            return result
        # The thinned transform in the same two forms: 1 minus a small loss, or the sum of both terms.
        loss = -(rate * np.expm1(result) + (1.0 - rate) * np.expm1(-a))
        small = np.log1p(-np.minimum(loss, 0.5))
        return np.where(loss < 0.5, small, np.logaddexp(math.log(rate) + result, math.log1p(-rate) - a))

    def nodes(self, a: float) -> float:
        s = self.scale
        return (s * self._saddle(a) + 2.0 / s + 20.0) / self._z_step(a)

    def reach(self, power: float, users: int) -> float:
        # The tilted mean of log W, its value without a tilt, and twelve deviations of a mean of n.
        s, n = self.scale, users
        return power / (n * s**2) + 0.5 / s**2 + 12.0 / (s * math.sqrt(n))

    def _saddle(self, a: float) -> float:
        """The b at which `exp(-a W(z)) phi(z)` peaks, z = -scale * b: `b e^b = a / s^2 e^(-1/(2s^2))`."""
        return float(special.wrightomega(math.log(a / self.scale**2) - 0.5 / self.scale**2).real)

    def _z_step(self, a: float) -> float:
        # At the saddle the exponent's curvature is 1 + b: steps of 0.45 of that width leave an error far below 1e-16
        # (it falls as e^(-2 (pi/h)^2)). W itself changes on the scale s.
        return min(0.45 / math.sqrt(1.0 + self._saddle(a)), 0.2 * self.scale)

    def _z_nodes(self, a: float, right: float) -> tuple[FloatArray, FloatArray]:
        """Nodes z fine and wide enough for the trapezoidal rule at every parameter up to a, and their log weights."""
        step = self._z_step(a)
        z = np.arange(-self.scale * self._saddle(a) - _PEAK_DEVIATIONS, right + step, step)
        return z, -0.5 * z**2 + math.log(step / math.sqrt(2.0 * math.pi))


def log_sum_exp(rows: FloatArray) -> FloatArray:
    """`log(sum(exp(row)))` of each row (scipy's is many times slower on small ones)."""
    top = rows.max(axis=1)
    return top + np.log(np.exp(rows - top[:, None]).sum(axis=1))


def _exp_remainder(v: FloatArray) -> FloatArray:
    """`e^-v - 1 + v`, without cancellation for small v."""
    result = np.expm1(-v) + v
    small = np.abs(v) < _SERIES_BELOW
    x = -v[small]
    series = np.zeros_like(x)
    for j in range(9, 1, -1):
        series = (series + 1.0) * x / j
    # series = x/2 (1 + x/3 (1 + ...)), so that x * series = x^2/2 + x^3/6 + ...
    result[small] = x * series
    return result

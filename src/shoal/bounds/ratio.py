"""The likelihood ratio of one report, and the mean of many: what every other file starts from.

One report is `x + N(0, sigma^2 I)`. Let the moved user's vector travel a distance `D` (1 for
zero-out, 2 for replace) and write `s = sigma / D`. Where the report of that user may be any of
the reports seen, the ratio of the two densities of one report, under the law Q in which the user
did not move, is

    W = exp(Z / s - 1 / (2 s^2)),   Z ~ N(0, 1),      E[W] = 1,

lognormal with moments `M_k = E[W^k] = exp((k^2 - k) / (2 s^2))` (`Lognormal`). Other noise has another W:
`Ratio` lists what it must offer. A user who takes part with probability `rate` contributes the *thinned* ratio V,
which is W with that probability and 1 otherwise, so that `E[V^k] - 1 = rate * (M_k - 1)`.

A round of any mechanism of this package has the likelihood ratio

    dP/dQ = S = 1 - weight + weight * (V_1 + ... + V_n) / n,

described by `MeanRatio`. Error: the moments below have a relative error of a few units
in the last place, even where they differ from 1 by less than 1e-16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.laplace import LognormalTransform, Transform, thinned
from shoal.bounds.numeric import SCALE_MAX, SCALE_MIN, FloatArray

_EXTREME_BELOW_SCALE = 0.18
"""Below this scale most of S lies so close to 0 that a stretch would widen the bounds noticeably."""

_CELLS_FROM_SCALE = ((0.7, 512), (0.4, 384), (0.0, 448))
"""From each scale on, the cells of a level that mostly reach the default accuracy at the first attempt.

The less noise, the longer and smoother the tails. The numbers are among the resolutions of `certify`.
"""


class Ratio(Protocol):
    """The thinned ratio V of one report: W with probability `rate`, else 1. A new noise is one class like this."""

    @property
    def rate(self) -> float: ...

    @property
    def scale(self) -> float:
        """The scale s at which N(0, 1) and N(1/s, 1) are no more private than a report; 0 if unknown."""
        ...

    @property
    def deviation(self) -> float:
        """The approximate standard deviation of W, for the first choice of a grid."""
        ...

    @property
    def is_gaussian(self) -> bool:
        """Whether W is exactly the ratio of N(0, 1) and N(1 / scale, 1)."""
        ...

    @property
    def is_summable(self) -> bool:
        """Whether the grid can hold sums of W."""
        ...

    @property
    def is_extreme(self) -> bool:
        """Whether most of W lies next to 0: the round-off of sums is then a factor for any number of users."""
        ...

    @property
    def cells(self) -> int:
        """The cells of a level that mostly suffice for the default accuracy."""
        ...

    def at_rate(self, rate: float) -> Ratio:
        """The ratio of the same report, sent with another probability."""
        ...

    def halved(self) -> Ratio | None:
        """The ratio of a user who moves half as far; None if it does not exist."""
        ...

    def limited(self) -> Ratio:
        """Itself, or within the limits on noise a ratio that is never better."""
        ...

    # Reports are named by a coordinate z in which W rises.

    def reach(self, below: float, above: float) -> tuple[float, float]:
        """The interval of z that is computed.

        Args:
            below: the Q-mass that may lie under the interval.
            above: the P-mass that may lie over it.

        Returns:
            The two ends.
        """
        ...

    def log_at(self, z: FloatArray) -> FloatArray:
        """log W at each z."""
        ...

    def beyond(self, low: float, high: float) -> tuple[FloatArray, FloatArray]:
        """The masses outside of an interval.

        Args:
            low: its lower end.
            high: its upper end.

        Returns:
            The masses under `low` and over `high`: of Q, and of P (which has the density W).
        """
        ...

    def atoms(self, low: float, high: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Points that stand for the reports in an interval, exactly up to 2^-43.

        Args:
            low: the lower end of the interval.
            high: its upper end.
            edges: values of W; no point stands for reports on both sides of one.

        Returns:
            The z of the points, and their Q-masses times the rate.
        """
        ...

    def log_moments(self, orders: FloatArray) -> FloatArray:
        """`log E[V^k]` for real orders k."""
        ...

    @property
    def transform(self) -> Transform | None:
        """The Laplace transform of V; None if unknown: negative moments then have a simple bound only."""
        ...


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """The ratio of a Gaussian report at `scale` s: `W = exp(Z / s - 1 / (2 s^2))`."""

    scale: float
    rate: float = 1.0

    @property
    def deviation(self) -> float:
        # With less noise the deviation belongs to a tail of tiny probability: 1, the mean, is more typical.
        return math.sqrt(math.expm1(1.0 / self.scale**2)) if self.scale > 1.0 else 1.0

    @property
    def is_gaussian(self) -> bool:
        return True

    @property
    def is_summable(self) -> bool:
        return self.scale >= SCALE_MIN

    @property
    def is_extreme(self) -> bool:
        return self.scale < _EXTREME_BELOW_SCALE

    @property
    def cells(self) -> int:
        return next(cells for start, cells in _CELLS_FROM_SCALE if self.scale >= start)

    def at_rate(self, rate: float) -> Lognormal:
        return replace(self, rate=rate)

    def halved(self) -> Lognormal:
        return replace(self, scale=2.0 * self.scale)

    def limited(self) -> Lognormal:
        # More noise is post-processing, so less noise is never better.
        return replace(self, scale=min(self.scale, SCALE_MAX))

    def reach(self, below: float, above: float) -> tuple[float, float]:
        low = float(special.ndtri(below))
        # Under P the report is shifted by 1/s; -low leaves as little of Q on the right as on the left.
        return low, max(-low, 1.0 / self.scale - float(special.ndtri(above)))

    def log_at(self, z: FloatArray) -> FloatArray:
        return z / self.scale - 0.5 / self.scale**2

    def beyond(self, low: float, high: float) -> tuple[FloatArray, FloatArray]:
        shift = 1.0 / self.scale
        return special.ndtr([low, -high]), special.ndtr([low - shift, shift - high])

    def atoms(self, low: float, high: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        s = self.scale
        # The z of every edge: panels end there.
        kinks = s * (np.log(edges) + 0.5 / s**2)
        z, weight = quadrature.nodes(low, high, kinks, 1.0 / s)
        return z, weight * np.exp(-0.5 * z**2) * (self.rate / math.sqrt(2.0 * math.pi))

    def log_moments(self, orders: FloatArray) -> FloatArray:
        """`log E[V^k]` for real orders k: `log(1 + rate * (exp((k^2 - k) / (2 s^2)) - 1))`."""
        exponent = orders * (orders - 1.0) / (2.0 * self.scale**2)
        return thinned(exponent, self.rate)

    @property
    def transform(self) -> Transform | None:
        return LognormalTransform(scale=self.scale, rate=self.rate) if self.scale >= SCALE_MIN else None


@dataclass(frozen=True, kw_only=True)
class MeanRatio:
    """The ratio S of one round: `1 - weight + weight * mean` over `users` independent V."""

    ratio: Ratio
    users: int
    weight: float = 1.0

    @property
    def is_single(self) -> bool:
        """Whether S is one V, whose moments of every order have a closed form."""
        return self.users == 1 and self.weight == 1.0

"""The likelihood ratio of one report, and the mean of many: what every other file starts from.

One report is `x + N(0, sigma^2 I)`. Let the moved user's vector travel a distance `D` (1 for
zero-out, 2 for replace) and write `s = sigma / D`. Where the report of that user may be any of
the reports seen, the ratio of the two densities of one report, under the law Q in which the user
did not move, is

    W = exp(Z / s - 1 / (2 s^2)),   Z ~ N(0, 1),      E[W] = 1,

lognormal with moments `M_k = E[W^k] = exp((k^2 - k) / (2 s^2))` (`Lognormal`). Other noise has another W:
`Ratio` says what it must offer. A user who takes part with probability `rate` contributes the *thinned* ratio V,
which is W with that probability and 1 otherwise, so that `E[V^k] - 1 = rate * (M_k - 1)`.

A round of any mechanism of this package has the likelihood ratio

    dP/dQ = S = 1 - weight + weight * (V_1 + ... + V_n) / n,

a value described by `MeanRatio`. Error: the moments below carry a relative error of a few units
in the last place, also where they differ from 1 by less than 1e-16.
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

_NEAR_ZERO = 0.18
"""Below this scale most of S lies so near to 0 that a stretch would hurt."""

_CELLS = ((0.7, 512), (0.4, 384), (0.0, 448))
"""From each scale on, the cells to a level that mostly give the default accuracy at once: the less noise, the longer
and smoother the tails. They are among the steps of `certify`."""


class Ratio(Protocol):
    """The thinned ratio V of one report: W with probability `rate`, else 1. A new noise is one class like this."""

    @property
    def rate(self) -> float: ...

    @property
    def scale(self) -> float:
        """The Gaussian mechanism N(0, 1) against N(1 / scale, 1) is no more private than one report; 0 if unknown."""
        ...

    @property
    def deviation(self) -> float:
        """About the standard deviation of W, for the first choice of a grid."""
        ...

    @property
    def is_gaussian(self) -> bool:
        """Whether W is exactly the ratio of N(0, 1) and N(1 / scale, 1)."""
        ...

    @property
    def is_summable(self) -> bool:
        """Whether the grid holds sums of W."""
        ...

    @property
    def is_extreme(self) -> bool:
        """Whether most of W lies next to 0: round-off of sums is then carried as a factor for any number of users."""
        ...

    @property
    def cells(self) -> int:
        """Cells to a level that are mostly enough for the default accuracy."""
        ...

    def at_rate(self, rate: float) -> Ratio:
        """The same report, sent with another probability."""
        ...

    def halved(self) -> Ratio | None:
        """That of a user who moves half as far; None if there is no such thing."""
        ...

    def limited(self) -> Ratio:
        """Itself, or one that is never better and has less noise where there is more than is computed."""
        ...

    # Reports are named by a coordinate z in which W rises.

    def reach(self, below: float, above: float) -> tuple[float, float]:
        """The z between which W is looked at: at most `below` of Q lies under them, at most `above` of P over them."""
        ...

    def log_at(self, z: FloatArray) -> FloatArray:
        """log W."""
        ...

    def beyond(self, low: float, high: float) -> tuple[FloatArray, FloatArray]:
        """The masses under `low` and over `high`, of Q and of P (which has the density W)."""
        ...

    def atoms(self, low: float, high: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        """z and Q-masses, times the rate, of points that stand for the reports in between, exactly up to 2^-43.

        None of them stands for reports with W on both sides of an edge.
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
        # With less noise the deviation is that of a tail that hardly ever happens: 1, the mean, is more typical.
        return math.sqrt(math.expm1(1.0 / self.scale**2)) if self.scale > 1.0 else 1.0

    @property
    def is_gaussian(self) -> bool:
        return True

    @property
    def is_summable(self) -> bool:
        return self.scale >= SCALE_MIN

    @property
    def is_extreme(self) -> bool:
        return self.scale < _NEAR_ZERO

    @property
    def cells(self) -> int:
        return next(cells for least, cells in _CELLS if self.scale >= least)

    def at_rate(self, rate: float) -> Lognormal:
        return replace(self, rate=rate)

    def halved(self) -> Lognormal:
        return replace(self, scale=2.0 * self.scale)

    def limited(self) -> Lognormal:
        # More noise is processing: less of it is never better.
        return replace(self, scale=min(self.scale, SCALE_MAX))

    def reach(self, below: float, above: float) -> tuple[float, float]:
        low = float(special.ndtri(below))
        # Under P the report is shifted by 1/s; -low keeps as little of Q on the right as on the left.
        return low, max(-low, 1.0 / self.scale - float(special.ndtri(above)))

    def log_at(self, z: FloatArray) -> FloatArray:
        return z / self.scale - 0.5 / self.scale**2

    def beyond(self, low: float, high: float) -> tuple[FloatArray, FloatArray]:
        shift = 1.0 / self.scale
        return special.ndtr([low, -high]), special.ndtr([low - shift, shift - high])

    def atoms(self, low: float, high: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        s = self.scale
        # The z of every edge: panels end there.
        cuts = s * (np.log(edges) + 0.5 / s**2)
        z, weight = quadrature.nodes(low, high, cuts, 1.0 / s)
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

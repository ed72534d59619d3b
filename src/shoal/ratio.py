"""The likelihood ratio of one report, and the mean of many: what every other file starts from.

One report is `x + N(0, sigma^2 I)`. Let the moved user's vector travel a distance `D` (1 for
zero-out, 2 for replace) and write `s = sigma / D`. Where the report of that user may be any of
the reports seen, the ratio of the two densities of one report, under the law Q in which the user
did not move, is

    W = exp(Z / s - 1 / (2 s^2)),   Z ~ N(0, 1),      E[W] = 1,

lognormal with moments `M_k = E[W^k] = exp((k^2 - k) / (2 s^2))`. A user who takes part with
probability `rate` contributes the *thinned* ratio V, which is W with that probability and 1
otherwise, so that `E[V^k] - 1 = rate * (M_k - 1)`.

A round of any mechanism of this package has the likelihood ratio

    dP/dQ = S = 1 - weight + weight * (V_1 + ... + V_n) / n,

a value described by `MeanRatio`. Error: the moments below carry a relative error of a few units
in the last place, also where they differ from 1 by less than 1e-16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from shoal._validate import FloatArray


def thinned(logarithm: FloatArray, rate: float) -> FloatArray:
    """`log(1 - rate + rate e^x)` for x >= 0, to full relative accuracy and without overflow."""
    if rate == 1.0:
        return logarithm
    large = logarithm > 700.0
    # Only where e^x would overflow is it pulled out: elsewhere that would cancel for small rates.
    small = np.log1p(rate * np.expm1(np.where(large, 0.0, logarithm)))
    return np.where(large, logarithm + math.log(rate), small)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The ratio V of one report: W at `scale` s with probability `rate`, else 1."""

    scale: float
    rate: float = 1.0

    def log_moments(self, orders: FloatArray) -> FloatArray:
        """`log E[V^k]` for real orders k: `log(1 + rate * (exp((k^2 - k) / (2 s^2)) - 1))`."""
        exponent = orders * (orders - 1.0) / (2.0 * self.scale**2)
        return thinned(exponent, self.rate)


@dataclass(frozen=True, kw_only=True)
class MeanRatio:
    """The ratio S of one round: `1 - weight + weight * mean` over `users` independent V."""

    ratio: Ratio
    users: int
    weight: float = 1.0

    def limited(self, users: int, scale: float) -> MeanRatio:
        """With no more users than that, nor more noise: never better (leave-one-out means; noise is processing)."""
        return replace(
            self, users=min(self.users, users), ratio=replace(self.ratio, scale=min(self.ratio.scale, scale))
        )  # fmt: skip

    @property
    def is_single(self) -> bool:
        """Whether S is one V, whose moments of every order have a closed form."""
        return self.users == 1 and self.weight == 1.0

"""Which reports of the other users stay hidden (the thinning of `anycrowd.exchange`), and the ratio w of a report."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from shoal.bounds.numeric import FloatArray


@dataclass(frozen=True, kw_only=True)
class Thinning:
    """A report stays hidden with probability `min(1, c / e)`, `c = exp(-r t - r^2 / 2)`; t = -infinity hides all.

    `q` is the probability that a user is hidden, and `tau = 1 - q / c`.
    """

    t: float
    tau: float
    q: float

    @classmethod
    def of(cls, r: float, t: float) -> Thinning:
        """The thinning at t for reports with noise 1 / r.

        Args:
            r: Distance of a vector of norm 1 from 0, in standard deviations of the noise.
            t: Reports at most -t along the vector of their user always stay hidden, in the same unit.

        Returns:
            The thinning with its probabilities.
        """
        if t == -math.inf:
            return cls(t=t, tau=0.0, q=1.0)
        c = math.exp(-r * t - 0.5 * r**2)
        # c (1 - tau) without cancellation
        q = c * float(special.ndtr(t)) + float(special.ndtr(-t - r))
        return cls(t=t, tau=1.0 - q / c, q=q)


def root(r: float, v: float) -> float:
    """The report z with w(z) = v.

    Args:
        r: Distance of x' from 0, in standard deviations of the noise.
        v: A ratio, at least 0.

    Returns:
        z along x', or -infinity for v = 0.
    """
    return (math.log(v) + 0.5 * r**2) / r if v > 0.0 else -math.inf


def excess_ratio(y: FloatArray, r: float, v: float) -> FloatArray:
    """The difference w(y) - v, without cancellation near 0.

    Args:
        y: Reports along x', in standard deviations of the noise.
        r: Distance of x' from 0, in the same unit.
        v: A ratio, at least 0.

    Returns:
        One difference for each report.
    """
    return v * np.expm1(r * (y - root(r, v))) if v > 0.0 else np.exp(r * y - 0.5 * r**2)

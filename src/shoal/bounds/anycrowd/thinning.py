"""Which reports of the others are kept (the thinning of `anycrowd.exchange`), and the ratio w of a report."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from shoal.bounds.numeric import FloatArray


@dataclass(frozen=True, kw_only=True)
class Thinning:
    """Reports are kept with probability `min(1, c / e)`, `c = exp(-r t - r^2 / 2)`, t = `at`; -infinity keeps all."""

    at: float
    stray: float
    kept: float

    @classmethod
    def of(cls, r: float, at: float) -> Thinning:
        if at == -math.inf:
            return cls(at=at, stray=0.0, kept=1.0)
        c = math.exp(-r * at - 0.5 * r**2)
        # c (1 - tau) without cancellation
        kept = c * float(special.ndtr(at)) + float(special.ndtr(-at - r))
        return cls(at=at, stray=1.0 - kept / c, kept=kept)


def root(r: float, v: float) -> float:
    """The z with w(z) = v."""
    return (math.log(v) + 0.5 * r**2) / r if v > 0.0 else -math.inf


def excess(y: FloatArray, r: float, v: float) -> FloatArray:
    """w(y) - v."""
    found: FloatArray = v * np.expm1(r * (y - root(r, v))) if v > 0.0 else np.exp(r * y - 0.5 * r**2)
    return found

"""Clipping and noise of one update: what a node does before it seals.

**Clipping** is in the l2 norm over all arrays together, in double precision, and shortens by a little
more than the rounding error of the norm: the clipped vector is never longer than C. An update with a
number that is not finite becomes the zero vector.

**Noise.** A floating-point Gaussian sampler leaks through the pattern of its last bits (Mironov 2012),
and an ordinary generator can be predicted. `secure` therefore uses OpenDP's Gaussian mechanism: exact
discrete Gaussian noise (Canonne, Kamath and Steinke 2020) from a cryptographic generator, on a grid whose
step h is the power of two that is 2^-80 to 2^-79 times the standard deviation s. OpenDP's own default, 2^-1074,
takes more than three times as long and gains nothing; this is what the coarser grid costs:

- *Rounding to the grid* lengthens a vector by at most sqrt(d) h. Clipping leaves a margin of (d + 8) 2^-52 of
  the norm, which is more for every sigma up to 10^8, so that the vector on the grid is never longer than C.
- *Discrete instead of continuous.* The accounting speaks of the continuous Gaussian; rounded to the grid, which
  is post-processing, it has the probability of a cell where the discrete one has the density in its middle. By
  Taylor their logarithms differ by at most (h/s)^2 (1 + t^2) at t standard deviations. Up to t = 40 that is below
  2^-147 a number (beyond, there is a probability of 1e-349), so that d numbers of n users in T rounds add at most
  2 n d T 2^-147 to epsilon: below 1e-15 for n d T = 10^28, and less than the outward rounding of an interval.

The cast to single precision afterwards is post-processing. `simulation` is numpy's sampler: fast, predictable,
for experiments on data that is nobody's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shoal.bounds.numeric import FloatArray

SECURE, SIMULATION = "secure", "simulation"
GRID_BITS = 80


def clip_update(arrays: Iterable[Any], *, clip: float) -> FloatArray:
    """All arrays as one vector of l2 norm at most `clip`.

    Args:
        arrays: the update, array by array.
        clip: the largest norm.

    Returns:
        The vector, shortened if it is longer; zero if any number is not finite.
    """
    vector: FloatArray = np.concatenate([np.zeros(0), *(np.asarray(a, dtype=np.float64).ravel() for a in arrays)])
    if not np.isfinite(vector).all():
        return np.zeros_like(vector)
    largest = float(np.max(np.abs(vector), initial=0.0))
    if largest == 0.0:
        return vector
    # Scaled by its largest entry no square overflows; the relative error of the norm is below (d + 4) 2^-53.
    norm = float(np.linalg.norm(vector / largest))
    margin = 1.0 - (len(vector) + 8) * 2.0**-52
    if norm <= clip / largest * margin:
        return vector
    return vector / largest * (clip / norm * margin)


def gaussian_secure(vector: FloatArray, scale: float) -> FloatArray:
    """The vector plus exact Gaussian noise from OpenDP.

    Args:
        vector: the clipped update.
        scale: the standard deviation of the noise.

    Returns:
        The noisy vector.
    """
    return np.asarray(_gaussian_mechanism(len(vector), scale)(vector), dtype=np.float64)


def grid_exponent(scale: float) -> int:
    """The exponent of the grid's step for noise of standard deviation `scale`."""
    return math.frexp(scale)[1] - 1 - GRID_BITS


@functools.lru_cache(maxsize=4)
def _gaussian_mechanism(size: int, scale: float) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale, k=grid_exponent(scale))


def gaussian_simulation(vector: FloatArray, scale: float) -> FloatArray:
    """The vector plus noise from numpy's generator, neither exact nor unpredictable: for simulation only.

    Args:
        vector: the clipped update.
        scale: the standard deviation of the noise.

    Returns:
        The noisy vector.
    """
    return vector + np.random.default_rng().normal(scale=scale, size=len(vector))


NOISE_SOURCES: dict[str, Callable[[FloatArray, float], FloatArray]] = {
    SECURE: gaussian_secure,
    SIMULATION: gaussian_simulation,
}

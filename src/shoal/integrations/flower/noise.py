"""Clipping and noise of one update: what a node does before it seals.

**Clipping** is in the l2 norm over all arrays together, in double precision, and shortens by a little
more than the rounding error of the norm: the clipped vector is never longer than C. An update with a
number that is not finite becomes the zero vector.

**Noise.** A floating-point Gaussian sampler leaks through the pattern of its last bits (Mironov 2012),
and an ordinary generator can be predicted. `secure` therefore uses OpenDP's Gaussian mechanism: exact
discrete Gaussian noise (Canonne, Kamath and Steinke 2020) on a grid of 2^-1074, from a cryptographic
generator. On so fine a grid it differs from the continuous Gaussian that the accounting speaks of, rounded
to the grid, by less than dimension * (2^-1074 / (C sigma))^2 in total variation: nothing that could be
written as a double. The cast to single precision afterwards is post-processing. `simulation` is numpy's
sampler: fast, predictable, for experiments on data that is nobody's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shoal._validate import FloatArray

SECURE, SIMULATION = "secure", "simulation"


def clipped(arrays: Iterable[Any], *, clip: float) -> FloatArray:
    """All arrays as one vector of l2 norm at most `clip`; zero if any number is not finite."""
    vector = np.concatenate([np.zeros(0), *(np.asarray(a, dtype=np.float64).ravel() for a in arrays)])
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
    """`vector` plus Gaussian noise of standard deviation `scale`, from OpenDP."""
    return np.asarray(_mechanism(len(vector), scale)(vector), dtype=np.float64)


@functools.lru_cache(maxsize=4)
def _mechanism(size: int, scale: float) -> Any:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=size)
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)


def gaussian_simulation(vector: FloatArray, scale: float) -> FloatArray:
    """The same from numpy's generator: for simulation only, neither exact nor unpredictable."""
    return vector + np.random.default_rng().normal(scale=scale, size=len(vector))


SOURCES: dict[str, Callable[[FloatArray, float], FloatArray]] = {
    SECURE: gaussian_secure,
    SIMULATION: gaussian_simulation,
}

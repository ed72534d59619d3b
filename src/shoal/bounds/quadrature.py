"""Integrals of smooth densities, panel by panel.

Panels do not cross the points at which an integrand has a kink (lattice points, edges of regions), and are so narrow
that the 6-point rule of Gauss and Legendre is exact to round-off on each: its remainder is
`f^(12) w^13 (6!)^4 / (13 (12!)^3)` for a panel of width w, which for products of a normal density and exponentials of
growth g, on panels at most `1 / (|z| + g + 5)` wide, is below 1e-15 of the integral (the 12th derivative of
`exp(-z^2/2 + g z)` is at most (|z| + g + 2.2)^12 times it).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from shoal.bounds.numeric import FloatArray

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


def nodes(low: float, high: float, kinks: FloatArray, growth: float) -> tuple[FloatArray, FloatArray]:
    """Nodes z between low and high, and their weights for the integral dz.

    Args:
        low: the lower end of the integral.
        high: its upper end.
        kinks: points at which the integrand is not smooth; those outside of the interval do not matter.
        growth: the largest growth rate g of the exponentials in the integrand.

    Returns:
        The nodes and their weights, in increasing order of z.
    """
    return panel_nodes(panel_edges(low, high, kinks, growth))


def panel_edges(low: float, high: float, kinks: FloatArray, growth: float) -> FloatArray:
    """The ends of all panels between low and high.

    Args:
        low: the lower end of the integral.
        high: its upper end.
        kinks: points that no panel may cross.
        growth: the largest growth rate g of the exponentials in the integrand.

    Returns:
        The ends in increasing order, one more than there are panels.
    """
    # The width for which the remainder at the head of this file is below round-off.
    panel = 1.0 / (max(abs(low), abs(high)) + growth + 5.0)
    steps = max(1, math.ceil((high - low) / panel))
    return np.unique(np.concatenate([np.linspace(low, high, steps + 1), np.clip(kinks, low, high)]))


def panel_nodes(edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Six nodes for each panel between neighbouring edges, and their weights."""
    widths = np.diff(edges)
    z = (edges[:-1, None] + 0.5 * widths[:, None] * (_NODES + 1.0)).ravel()
    return z, (0.5 * widths[:, None] * _WEIGHTS).ravel()


def normal_density(z: FloatArray) -> FloatArray:
    """The standard normal density."""
    return np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)


def quantile(mass: float) -> float:
    """The z below which a standard normal variable has this mass."""
    return float(special.ndtri(mass))

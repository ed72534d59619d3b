"""Pairs of laws on the line, panel by panel: what `swap` and `records` have in common.

Their outputs are one coordinate z, in deviations of the noise, along which the loss `log P/Q` changes its sign once:
above `middle` it is positive and rises. A dominating pair consists of two halves. Its losses above 0 are those of one
pair; its losses below 0 are, mirrored, those of another pair with P and Q exchanged, because the worst data set for
positive losses need not be the worst for negative ones. All other mass has loss 0.

*Computed* panel by panel, on each of which the loss does not change its sign. From above the mass of a panel goes to
the losses at its two ends so that P- and Q-mass stay; from below it stays together: merging is post-processing.

*Errors*, u = 2^-53:

1. Masses of panels are sums of positive terms by a rule that is exact to round-off (`quadrature`): the factor
   `1 +- 2^10 u` is the same for P and Q.
2. The loss of a panel is off by what its line says (`LossLine.loss_error`), and by what rounding of the place does to
   it; it is moved by more.
3. Tails of less than the budget are charged as mass of infinite loss, or left out.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.bounds import quadrature
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import ROUNDED_UP, UNIT, Direction, FloatArray, Side
from shoal.bounds.round import Round

MASS_ERROR = 1024.0 * UNIT
"""error 1"""

_MOMENT_REACH = 64.0
"""Reach of integrals, in deviations, beyond which Rényi orders get the local bound."""

_LAYOUT_POINTS = 4096
"""Number of points from which the panels are laid out."""

MOMENT_ERROR = 1e-9
"""A relative bound on the error of a logarithmic moment, of its quadrature and of what is cut at the ends."""


class LossLine(Protocol):
    """One pair of laws P and Q on the line; frozen, and equal pairs are equal objects."""

    def __hash__(self) -> int: ...

    @property
    def middle(self) -> float:
        """The output at which the loss is 0; it is positive above and negative below."""
        ...

    @property
    def growth(self) -> float:
        """The largest growth rate of the exponentials in both densities."""
        ...

    @property
    def steepest(self) -> float:
        """A bound on the slope of the loss above `middle`."""
        ...

    def log_ratio(self, z: FloatArray) -> FloatArray:
        """log P/Q at each output."""
        ...

    def loss_error(self, z: FloatArray, loss: FloatArray) -> FloatArray:
        """A bound on the error of `log_ratio`, apart from rounding of the output itself.

        Args:
            z: Outputs, in deviations.
            loss: Their losses.

        Returns:
            One bound for each output; between two outputs the larger of both holds.
        """
        ...

    def density_p(self, z: FloatArray) -> FloatArray:
        """The density of P."""
        ...

    def density_q(self, z: FloatArray) -> FloatArray:
        """The density of Q."""
        ...

    def log_density_p(self, z: FloatArray) -> FloatArray:
        """The logarithm of the density of P, also where the density underflows."""
        ...

    def ends(self, budget: float) -> tuple[float, float]:
        """The points outside of which P and Q have less mass than the budget."""
        ...


def mixture_density(z: FloatArray, components: Sequence[tuple[float, float]]) -> FloatArray:
    """The density of a mixture of normal laws.

    Args:
        z: Outputs, in deviations.
        components: The share and the place of each law.

    Returns:
        One density for each output.
    """
    total = np.zeros_like(z)
    for share, place in components:
        total += share * quadrature.normal_density(z - place)
    return total


def mixture_log_density(z: FloatArray, components: Sequence[tuple[float, float]]) -> FloatArray:
    """The logarithm of the density of a mixture of normal laws.

    Args:
        z: Outputs, in deviations.
        components: The share and the place of each law.

    Returns:
        One logarithm for each output.
    """
    terms = [math.log(share) - 0.5 * (z - place) ** 2 for share, place in components if share > 0.0]
    return np.asarray(np.logaddexp.reduce(terms)) - 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True, kw_only=True)
class LossPanels:
    """Panels of the line: P-mass, loss of the panel as one, and the losses at its ends, one more than panels."""

    top: FloatArray
    loss: FloatArray
    ends: FloatArray
    error: FloatArray
    """By how much a panel's losses may be off."""


def panel_places(line: LossLine, low: float, high: float, half: int) -> FloatArray:
    """Points between which losses change by 1/(2 half) of themselves, or of a typical loss where they are smaller.

    Args:
        line: The pair of laws.
        low: The lowest point.
        high: The highest point.
        half: The resolution: the number of cells on each side of a level.

    Returns:
        The points in increasing order.
    """
    z = np.linspace(low, high, _LAYOUT_POINTS)
    loss = np.abs(line.log_ratio(z))
    order = np.argsort(loss)
    total = np.cumsum(line.density_p(z)[order])
    # The median loss under P: below twice of it steps are absolute, or there would be no end of them towards 0.
    typical = float(loss[order][int(np.searchsorted(total, 0.5 * total[-1]))])
    size = np.maximum(0.5 * (loss[1:] + loss[:-1]), max(2.0 * typical, 1e-300))
    count = np.append(0.0, np.cumsum(2.0 * half * np.abs(np.diff(loss)) / size + half / _LAYOUT_POINTS))
    return np.interp(np.linspace(0.0, count[-1], math.ceil(count[-1]) + 1), count, z)


def loss_panels(line: LossLine, low: float, high: float, half: int) -> LossPanels:
    """Panels between two points that lie on one side of the place where the loss is 0.

    Args:
        line: The pair of laws.
        low: The lowest point.
        high: The highest point.
        half: The resolution: the number of cells on each side of a level.

    Returns:
        The panels from low to high.
    """
    cuts = quadrature.panel_edges(low, high, panel_places(line, low, high, half), line.growth)
    z, weight = (values.reshape(-1, 6) for values in quadrature.panel_nodes(cuts))
    # e^-loss is the mean of its values under P above 0, e^loss that under Q below: |loss| beyond the panel's least
    sign, density = (1.0, line.density_p) if low >= line.middle else (-1.0, line.density_q)
    size = np.maximum(sign * line.log_ratio(z), 0.0)
    size_min = size.min(axis=1)
    mass = weight * density(z)
    whole = np.maximum(mass.sum(axis=1), 1e-300)
    merged_size = size_min - np.log1p((mass * np.expm1(size_min[:, None] - size)).sum(axis=1) / whole)
    top = whole if sign > 0.0 else (weight * line.density_p(z)).sum(axis=1)
    ends = line.log_ratio(cuts)
    # error 2. Rounding of the place is felt where the loss is small: by the slope of the loss there.
    error_at_ends = line.loss_error(cuts, ends)
    slope = np.abs(np.diff(ends)) / np.diff(cuts)
    error = np.maximum(error_at_ends[1:], error_at_ends[:-1]) + 16.0 * UNIT * (1.0 + abs(low) + abs(high)) * slope
    return LossPanels(top=top, loss=sign * merged_size, ends=ends, error=error)


def _atoms_at_ends(panels: LossPanels, sign: float) -> tuple[FloatArray, FloatArray]:
    """Losses and P-masses from above: each panel's mass at its two ends; `sign` is -1 for a mirrored half."""
    low, width = panels.ends[:-1], np.maximum(np.diff(panels.ends), 1e-300)
    # error 2: a little more of the mass goes to the end with the larger loss, and both ends go up.
    offset = np.clip(panels.loss + sign * panels.error - low, 0.0, width)
    right = np.expm1(-offset) / np.expm1(-width)
    top = np.zeros_like(panels.ends)
    top[:-1] += panels.top * (1.0 - right)
    top[1:] += panels.top * right
    # An end belongs to the panels on both of its sides.
    error = np.maximum(np.append(panels.error, 0.0), np.append(0.0, panels.error))
    return panels.ends + sign * error, top * (1.0 + MASS_ERROR)


def _atoms_in_panels(panels: LossPanels, sign: float) -> tuple[FloatArray, FloatArray]:
    """Losses and P-masses from below: each panel as one; `sign` is -1 for a mirrored half."""
    return panels.loss - sign * panels.error, panels.top * (1.0 - MASS_ERROR)


@functools.lru_cache(maxsize=128)
def _gains(line: LossLine, half: int, budget: float) -> LossPanels:
    """The panels on which the loss is above 0."""
    return loss_panels(line, line.middle, max(line.ends(budget)[1], line.middle + 1.0), half)


@dataclass(frozen=True, kw_only=True)
class TwoHalves(Round):
    """The round of a dominating pair made of two halves of lines."""

    @abstractmethod
    def lines(self, direction: Direction) -> tuple[LossLine, LossLine]:
        """The line with the losses above 0, and the one whose losses above 0, mirrored, are those below."""

    @abstractmethod
    def mass_at_zero(self, direction: Direction) -> float:
        """The P-mass of loss 0 that belongs to neither half, too small by its rounding."""

    @abstractmethod
    def local_log_moments(self, orders: FloatArray) -> FloatArray:
        """Logarithmic moments of one plain report, with its coin in the clear."""

    @property
    def infinite(self) -> float:
        """The P-mass that the round puts at an infinite loss."""
        return 0.0

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        up, down = (_gains(line, half, budget) for line in self.lines(direction))
        atoms = _atoms_at_ends if side == "upper" else _atoms_in_panels
        # error 2: losses below 0 are moved towards 0 from above and away from it from below.
        (gains, top), (losses, mirrored) = atoms(up, 1.0), atoms(down, -1.0)
        under = mirrored * np.exp(-losses)
        if side == "upper":
            # What is missing has loss 0, and so has what was cut from the losses below; what was cut above is error 3.
            rest, infinite = 1.0 - float(top.sum() + under.sum()), (budget + self.infinite) * ROUNDED_UP
        else:
            rest, infinite = self.mass_at_zero(direction), 0.0
        rest = max(rest, 0.0) * (1.0 + (MASS_ERROR if side == "upper" else -MASS_ERROR))
        loss, mass = np.concatenate([-losses[::-1], [0.0], gains]), np.concatenate([under[::-1], [rest], top])
        occupied = mass > 0.0
        loss, mass = loss[occupied], mass[occupied]
        # Moved ends of both halves may pass each other around 0.
        order = np.argsort(loss, kind="stable")
        loss, mass = loss[order], mass[order]
        return Pair(side=side, loss=loss, base=mass * np.exp(-loss), top=mass, infinite=infinite)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 2.0 * MASS_ERROR, 2.0 * (budget + self.infinite)  # errors 1 and 3, of P and of Q

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """`log E[S^L]` of the dominating pair by quadrature, or of one plain report and its coin in the clear.

        `E[S^L] - 1` is the mean of `S^L - 1 - L (S - 1)`, as S has mean 1: terms of one sign.
        """
        local = self.local_log_moments(orders) * (1.0 + MOMENT_ERROR)
        lines = self.lines(direction)
        # The loss rises no faster than this with the output, so that integrals of e^((L-1) loss) end so far out.
        reach = (orders + 2.0) * max(line.steepest for line in lines)
        bounds = local.copy()
        for place in np.flatnonzero(reach <= _MOMENT_REACH).tolist():
            # In powers of two, so that orders share their nodes.
            end = 2.0 ** math.ceil(math.log2(reach[place]))
            excess = _excess(tuple(_moment_nodes(line, end) for line in lines), float(orders[place]))
            bounds[place] = min(local[place], float(np.logaddexp(0.0, excess)) * (1.0 + MOMENT_ERROR))
        return bounds


@functools.lru_cache(maxsize=16)
def _moment_nodes(line: LossLine, reach: float) -> tuple[FloatArray, FloatArray]:
    """Losses above 0 and logarithms of the P-masses of nodes, as far as moments look.

    At the end integrands fall by a factor of e^-13 a deviation or faster: the last node, of weight 1, is for the rest.
    """
    # 1e-40: thirteen deviations beyond where the integrand can have its peak.
    end = line.ends(1e-40)[1] + reach
    z, weight = quadrature.nodes(line.middle, end, np.zeros(0), reach)
    z, weight = np.append(z, end), np.append(weight, 1.0)
    return line.log_ratio(z), line.log_density_p(z) + np.log(weight)


def _excess(nodes: tuple[tuple[FloatArray, FloatArray], ...], order: float) -> float:
    """`log (E[S^order] - 1)`."""
    (gain, top), (loss, mirrored) = nodes
    # above: e^((L-1) x) - L + (L-1) e^-x under P; below: e^(-L x) - 1 + L (1 - e^-x) under the mirror's P
    up = np.logaddexp(_log_bend((order - 1.0) * gain), math.log(order - 1.0) + _log_bend(-gain))
    down = np.exp(_log_bend(-order * loss)) - order * np.exp(_log_bend(-loss))
    with np.errstate(divide="ignore"):
        terms = np.concatenate([up + top, np.log(np.maximum(down, 0.0)) + mirrored])
    term_max = float(terms.max())
    return term_max + math.log(float(np.exp(terms - term_max).sum()))


def _log_bend(x: FloatArray) -> FloatArray:
    """`log(e^x - 1 - x)`, without cancellation near 0."""
    # The series is exact to 1e-13 there; beyond, the difference loses no more than that.
    small = np.abs(x) < 1e-2
    with np.errstate(divide="ignore", over="ignore"):
        series = np.log(0.5 * x**2) + np.log1p(x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0))))
        middle = np.log(np.maximum(np.expm1(np.minimum(x, 30.0)) - np.minimum(x, 30.0), 1e-300))
    large: FloatArray = np.where(x > 30.0, x, middle)
    return np.where(small, series, large)

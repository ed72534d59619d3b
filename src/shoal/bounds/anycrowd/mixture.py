"""Mixtures of laws of sums as prices: the last step of `anycrowd.exchange` and of `anycrowd.groups`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.bounds.anycrowd.prices import Prices, prices_of_law
from shoal.bounds.grid import KEEP_MEAN, Cells, base_for, in_order, levels_for
from shoal.bounds.numeric import UNIT, FloatArray
from shoal.bounds.sums import Law, atoms_on_grid

_LAWS_AT_ONCE = 16
"""Number of laws put on the grid together: few enough to stay in the processor's cache."""


@dataclass(kw_only=True)
class Mixture:
    """Laws of `1 + gap` with their chances; `cut` is what their prices lack."""

    cut: float
    gaps: list[FloatArray] = field(default_factory=list)
    masses: list[FloatArray] = field(default_factory=list)
    size: float = 0.0
    """Mean absolute value of a gap."""
    largest: float = 0.0
    """Largest absolute value of a gap."""

    def add(self, chance: float, law: Law, shift: float, denominator: float) -> None:
        """Add the law of `(shift + sum) / denominator` to the mixture.

        Args:
            chance: Probability of this law in the mixture.
            law: Law of the sum.
            shift: What is added to the sum.
            denominator: What the shifted sum is divided by.
        """
        if chance == 0.0:
            return
        gap = (shift + law.point) / denominator
        self.gaps.append(gap)
        self.masses.append(chance * law.mass)
        self.size += chance * float(law.mass @ np.abs(gap))
        self.largest = max(self.largest, -float(gap[0]), float(gap[-1]))
        # Twice, because what was cut moves the mean as well.
        self.cut += chance * 2.0 * law.cut / denominator

    def prices(self, error: float, half: int) -> Prices:
        """Prices of the mixture.

        Args:
            error: Relative error of the chances.
            half: Number of cells on either side of a level's middle.

        Returns:
            Prices at the points of a grid.
        """
        base = base_for(self.size, half)
        masses = np.zeros((levels_for(self.largest, half, base), 2 * half + 1))
        for start in range(0, len(self.gaps), _LAWS_AT_ONCE):
            part = slice(start, start + _LAWS_AT_ONCE)
            atoms = atoms_on_grid(np.concatenate(self.gaps[part]), np.concatenate(self.masses[part]), half, base)
            masses[: len(atoms)] += atoms
        gap = in_order(Cells(rule=KEEP_MEAN, base=base, rows=masses[None, None]).points())
        mass = in_order(masses)
        occupied = (mass > 0.0) | (gap == 0.0)
        # Chances that were charged are missing from the sum; scaling to 1 raises the rest, which is safe.
        gap, mass = gap[occupied], mass[occupied] / float(mass.sum())
        # Means are known to a few N u of the size of their laws, N cells, and this last sharing is rounded.
        return prices_of_law(gap, mass, error + 64.0 * len(gap) * UNIT, self.cut * (1.0 + 1e-9))

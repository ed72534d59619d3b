"""A mixture of sums, as prices: where the laws of `anycrowd.exchange` and `anycrowd.groups` end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.bounds.anycrowd.prices import Prices, of_law
from shoal.bounds.batch_grid import Law, atoms_on_grid
from shoal.bounds.grid import Cells, base_for, in_order, levels_for
from shoal.bounds.numeric import UNIT, FloatArray

_CHUNK = 16
"""So many laws are shared on the grid at once: few enough to stay in the processor's cache."""


@dataclass(kw_only=True)
class Mixture:
    """Laws of `1 + gap` with their chances; `cut` is what their prices lack."""

    cut: float
    gaps: list[FloatArray] = field(default_factory=list)
    masses: list[FloatArray] = field(default_factory=list)
    size: float = 0.0
    """The mean size of a gap."""
    largest: float = 0.0

    def add(self, chance: float, law: Law, shift: float, over: float) -> None:
        """`(shift + sum) / over`, the sum of this law; what was cut moves its mean too."""
        if chance == 0.0:
            return
        gap = (shift + law.point) / over
        self.gaps.append(gap)
        self.masses.append(chance * law.mass)
        self.size += chance * float(law.mass @ np.abs(gap))
        self.largest = max(self.largest, -float(gap[0]), float(gap[-1]))
        self.cut += chance * 2.0 * law.cut / over

    def prices(self, error: float, half: int) -> Prices:
        """Their prices, with chances known to this relative error."""
        base = base_for(self.size, half)
        p = np.zeros((levels_for(self.largest, half, base), 2 * half + 1))
        for start in range(0, len(self.gaps), _CHUNK):
            some = slice(start, start + _CHUNK)
            found = atoms_on_grid(np.concatenate(self.gaps[some]), np.concatenate(self.masses[some]), half, base)
            p[: len(found)] += found
        gap, mass = in_order(Cells(base=base, mass=p, moment=p).points()), in_order(p)
        there = (mass > 0.0) | (gap == 0.0)
        # Chances add up to what was not charged: what is left is scaled to 1, upwards.
        gap, mass = gap[there], mass[there] / float(mass.sum())
        # Means are known to a few N u of the size of their laws, N cells, and this last sharing is rounded.
        return of_law(gap, mass, error + 64.0 * len(gap) * UNIT, self.cut * (1.0 + 1e-9))

"""Sums of independent terms from above, for several laws at once, on the grid of `grid`.

Sharing between lattice points keeps the mean, so every operation is a mean-preserving spread of the exact sum, up to
the errors that a `Batch` carries along:

1. `cut`: cells at the ends whose first moment is negligible are moved inwards to the last cell kept. Calls, puts and
   the mean lose at most the moment moved, and moments of sums add up.
2. `stretch`: computed masses are within a factor `1 +- e` of exact ones, e the error in the ledger of `grid`. By the
   lemma of `mean_law` (error 2 there) the exact law about its mean is below the computed one about its mean, stretched
   by 1 + 8e, in the convex order; stretches of repeated sums add up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.bounds.grid import KEEP_MEAN, Cells, base_for, convolved, deposit, in_order, rebased, without_empty_levels
from shoal.bounds.numeric import ROUNDED_UP, FloatArray
from shoal.bounds.powering import powers


@dataclass(frozen=True, kw_only=True)
class Law:
    """Positions and masses of one law of mean 0, and its cut (error 1)."""

    point: FloatArray
    mass: FloatArray
    cut: float


NO_TERMS = Law(point=np.zeros(1), mass=np.ones(1), cut=0.0)
"""The sum of no terms."""


def atoms_on_grid(y: FloatArray, mass: FloatArray, half: int, base: int) -> FloatArray:
    """Masses of atoms shared between the lattice points on either side, so that the mean stays.

    Args:
        y: positions of the atoms.
        mass: their masses.
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.

    Returns:
        Masses over (level, position).
    """
    return deposit(KEEP_MEAN, y, [mass], half, base)[0][0, 0]


@dataclass(frozen=True, kw_only=True)
class Batch(Cells):
    """Sums of `count` terms each, for several laws of one grid, masses only.

    `weight` says how much each law matters for the choice of the grid.
    """

    count: int
    weight: FloatArray
    stretch: FloatArray
    cut: FloatArray

    def only(self, place: int) -> Batch:
        """The batch of one of the laws."""
        law = slice(place, place + 1)
        return replace(self, weight=np.ones(1), rows=self.rows[:, law], stretch=self.stretch[law], cut=self.cut[law])

    def laws(self) -> list[Law]:
        """Each law centred at its mean (up to round-off) and stretched."""
        y, laws = in_order(self.points()), []
        for cells, stretch, cut in zip(in_order(self.rows[0]), self.stretch.tolist(), self.cut.tolist(), strict=True):
            occupied = cells > 0.0
            # error 2: the computed law about its mean, stretched, is above the exact one about its own
            share = cells[occupied] / cells.sum()
            point = (y[occupied] - float(share @ y[occupied])) * (1.0 + stretch)
            laws.append(Law(point=point, mass=share, cut=cut))
        return laws


def _with_ledger(a: Batch) -> Batch:
    """The laws with what their ledger holds as a stretch (error 2)."""
    # Stretches multiply; the millionth covers their rounding and terms of second order.
    stretch = a.stretch + 8.0 * a.relative * (1.0 + a.stretch) * (1.0 + 1e-6)
    return replace(a, relative=0.0, stretch=stretch)


def batch(
    rows: Sequence[FloatArray], base: int, *, weight: FloatArray, stretch: Sequence[float], cut: Sequence[float]
) -> Batch:
    """Laws of one term each, from their masses on one grid.

    Args:
        rows: masses over (level, position), for each law.
        base: the spacing of level 0 is 2^base.
        weight: how much each law matters for the choice of later grids.
        stretch: the stretch of each law (error 2).
        cut: the cut of each law (error 1).

    Returns:
        The batch.
    """
    masses = np.zeros((1, len(rows), max(len(row) for row in rows), rows[0].shape[1]))
    for place, row in enumerate(rows):
        masses[0, place, : len(row)] = row
    return Batch(
        rule=KEEP_MEAN,
        count=1,
        weight=weight,
        base=base,
        rows=masses,
        stretch=np.array(stretch),
        cut=np.array(cut),
    )


def _without_ends(a: Batch, allowance: float) -> Batch:
    """The laws with ends of negligible first moment moved inwards to the last cell kept."""
    points, shape = in_order(a.points()), a.rows.shape[1:]
    order = in_order(np.arange(float(shape[1] * shape[2])).reshape(shape[1:])).astype(np.int64)
    rows = a.rows.reshape(shape[0], -1)[:, order]
    sizes = rows * np.abs(points)
    index, middle = np.arange(len(points)), len(points) // 2  # where 0 is: no mass changes sides
    low = np.minimum((np.cumsum(sizes, axis=1) < allowance).sum(axis=1), middle)[:, None]
    high = len(points) - 1 - (np.cumsum(sizes[:, ::-1], axis=1) < allowance).sum(axis=1)
    high = np.maximum(high, middle)[:, None]
    # error 1: moved inwards, which is no spread, so its first moment is charged
    below, above = index < low, index > high
    cut = a.cut + (sizes * (below | above)).sum(axis=1) * ROUNDED_UP
    rows += (index == low) * (rows * below).sum(axis=1)[:, None] + (index == high) * (rows * above).sum(axis=1)[:, None]
    rows[below | above] = 0.0
    mass = np.zeros((shape[0], shape[1] * shape[2]))
    mass[:, order] = rows
    return replace(a, rows=without_empty_levels(mass.reshape(1, *shape)), cut=cut)


def deviation(a: Batch) -> float:
    """The weighted mean absolute deviation of the laws, given that they are not at 0."""
    points = np.abs(a.points())
    sizes = (a.rows[0] * points).sum(axis=(1, 2))
    off_centre = (a.rows[0] * (points > 0.0)).sum(axis=(1, 2))
    return float(a.weight @ sizes) / float(a.weight @ off_centre)


def batch_sum(a: Batch, b: Batch, share: float) -> Batch:
    """The sum of each law of one batch with that of another.

    Args:
        a: one batch.
        b: the other; `a` itself stands for an independent copy.
        share: how much of its first moment may be cut, for each term.

    Returns:
        The batch of sums, on a grid that fits them.
    """
    if a is not b:
        a, b = _with_ledger(rebased(a, b.base)), _with_ledger(rebased(b, a.base))
    rows, relative = convolved(a, b)
    total = Batch(
        rule=a.rule,
        count=a.count + b.count,
        weight=a.weight,
        base=a.base,
        rows=rows,
        relative=relative,
        cut=a.cut + b.cut,
        stretch=np.maximum(a.stretch, b.stretch),
    )
    total = _without_ends(total, share * total.count)
    return _with_ledger(rebased(total, base_for(deviation(total), total.half)))


def sums_by_count(term: Batch, share: float) -> Callable[[int], Batch]:
    """A function that returns the sum of any number of copies of a term.

    Args:
        term: the laws of one term.
        share: how much of its first moment may be cut, for each term.

    Returns:
        The function, which remembers the sums it has made.
    """
    return powers(term, lambda a, b: batch_sum(a, b, share))


def sums(term: Batch, counts: Sequence[int], share: float) -> dict[int, Batch]:
    """Sums of several numbers of copies of a term.

    Args:
        term: the laws of one term.
        counts: the numbers; 0 is left out.
        share: how much of its first moment may be cut, for each term.

    Returns:
        The sums by their counts.
    """
    sum_of, by_count = sums_by_count(term, share), {}
    increasing = sorted({count for count in counts if count > 0})
    if increasing:
        by_count[increasing[0]] = sum_of(increasing[0])
    # Most differences are equal, so each count costs one more sum.
    for before, count in itertools.pairwise(increasing):
        by_count[count] = batch_sum(by_count[before], sum_of(count - before), share)
    return by_count

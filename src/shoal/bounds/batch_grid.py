"""Sums of independent terms from above, for several laws at once: the grid of `grid`, masses only.

A law is an array of masses over (level, position); a `Batch` holds the same grid for several laws and adds terms to
all of them at once. Sharing between lattice points keeps the mean, so every operation is a mean-preserving spread of
the exact sum, up to the errors that `Batch` carries along:

1. `cut`: cells at the ends whose first moment is negligible are moved inwards to the last cell kept. Calls, puts and
   the mean lose at most the moment moved, and moments of sums add up.
2. `stretch`: computed masses are within a factor `1 +- e` of exact ones, e = (longest sum of products + 64) u,
   u = 2^-53. By the lemma of `mean_law` (error 2 there) the exact law about its mean is below the computed
   one about its mean, stretched by 1 + 8e, in the convex order; stretches of repeated sums add up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.bounds.grid import Cells, base_for, in_order, levels_for, located
from shoal.bounds.numeric import UNIT, FloatArray

_ATOMS_PER_PASS = 2**14
"""Atoms that are shared at once: few enough to stay in the processor's cache."""


def atoms_on_grid(y: FloatArray, mass: FloatArray, half: int, base: int) -> FloatArray:
    """Atoms shared between the lattice points on either side, so that the mean stays.

    Args:
        y: positions of the atoms.
        mass: their masses.
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.

    Returns:
        Masses over (level, position).
    """
    levels, columns = levels_for(float(np.abs(y).max()), half, base), 2 * half + 1
    # Both neighbours of an atom are on its level: a level reaches one point into the next.
    masses = np.zeros(levels * columns)
    for start in range(0, len(y), _ATOMS_PER_PASS):
        part = slice(start, start + _ATOMS_PER_PASS)
        level, left, right = located(y[part], half, base, levels)
        index = level * columns + left.astype(np.int64) + half
        masses += np.bincount(index, (1.0 - right) * mass[part], len(masses))
        masses += np.bincount(index + 1, right * mass[part], len(masses))
    return masses.reshape(levels, columns)


def positions(half: int, base: int, low: float, high: float) -> FloatArray:
    """All lattice points between low and high.

    Args:
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.
        low: the lower limit, excluded.
        high: the upper limit, excluded.

    Returns:
        The points, of which the levels may repeat one another's ends.
    """
    spacing = math.ldexp(1.0, base)
    levels = max(1, math.ceil(math.log2(max(high, -low, spacing) / (half * spacing))) + 2)
    outer = np.arange(half // 2, half + 1.0)
    positive = np.concatenate(
        [spacing * np.arange(0.0, half + 1.0)] + [math.ldexp(spacing, k) * outer for k in range(1, levels)]
    )
    points = np.concatenate([-positive, positive])
    return points[(points > low) & (points < high)]


@dataclass(frozen=True, kw_only=True)
class Law:
    """Positions and masses of one law of mean 0, and its cut (error 1)."""

    point: FloatArray
    mass: FloatArray
    cut: float


NO_TERMS = Law(point=np.zeros(1), mass=np.ones(1), cut=0.0)
"""The sum of no terms."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sums of `count` terms each, for several laws: masses over (law, level, position), position 0 in the middle.

    `weight` says how much each law matters for the choice of the grid.
    """

    count: int
    weight: FloatArray
    base: int
    mass: FloatArray
    stretch: FloatArray
    cut: FloatArray

    @property
    def half(self) -> int:
        """N, the number of cells on each side of the centre."""
        return int(self.mass.shape[2]) // 2

    @property
    def points(self) -> FloatArray:
        """The position of every cell."""
        return Cells(base=self.base, mass=self.mass[0], moment=self.mass[0]).points()

    @property
    def longest(self) -> int:
        """The largest number of terms in a mass of a sum."""
        return Cells(base=self.base, mass=self.mass[0], moment=self.mass[0]).longest

    def only(self, place: int) -> Batch:
        """The batch of one of the laws."""
        row = slice(place, place + 1)
        return replace(self, weight=np.ones(1), mass=self.mass[row], stretch=self.stretch[row], cut=self.cut[row])

    def laws(self) -> list[Law]:
        """Each law centred at its mean (up to round-off) and stretched."""
        y, laws = in_order(self.points), []
        for mass, stretch, cut in zip(self.mass, self.stretch.tolist(), self.cut.tolist(), strict=True):
            cells = in_order(mass)
            occupied = cells > 0.0
            # error 2: the computed law about its mean, stretched, is above the exact one about its own
            share = cells[occupied] / cells.sum()
            point = (y[occupied] - float(share @ y[occupied])) * (1.0 + stretch)
            laws.append(Law(point=point, mass=share, cut=cut))
        return laws


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
    levels = max(len(row) for row in rows)
    mass = np.zeros((len(rows), levels, rows[0].shape[1]))
    for place, row in enumerate(rows):
        mass[place, : len(row)] = row
    return Batch(count=1, weight=weight, base=base, mass=mass, stretch=np.array(stretch), cut=np.array(cut))


def _coarsened(mass: FloatArray) -> FloatArray:
    """Masses of the even points after each odd one is shared; arrays start and end with an even one."""
    # Half to each side: a spread that keeps the mean.
    even, odd = mass[:, ::2].copy(), 0.5 * mass[:, 1::2]
    even[:, :-1] += odd
    even[:, 1:] += odd
    return even


def _padded_rows(mass: FloatArray, half: int) -> FloatArray:
    """Arrays over the points -N/2..N/2 as arrays over -N..N."""
    wide = np.zeros((len(mass), 2 * half + 1))
    wide[:, half // 2 : half // 2 + half + 1] = mass
    return wide


def rebased_batch(a: Batch, base: int) -> Batch:
    """The laws on a grid with a coarser level 0.

    Args:
        a: the laws.
        base: the new base; nothing changes if it is not larger.

    Returns:
        A batch whose sums are spreads of the old ones.
    """
    mass, quarter = a.mass, a.half // 2
    for _ in range(a.base, base):
        # Level 0 is shared between its even points, which are points of level 1, the new level 0.
        coarse = _coarsened(mass[:, 0])
        mass = mass[:, 1:].copy() if mass.shape[1] > 1 else np.zeros_like(mass)
        mass[:, 0, quarter : quarter + a.half + 1] += coarse
    # error 2, for each level removed
    steps = 32.0 * max(0, base - a.base) * UNIT
    return replace(a, base=max(base, a.base), mass=mass, stretch=a.stretch + steps)


def _span(mass: FloatArray, low: int, high: int) -> slice:
    """The span of two columns in which any of the laws has mass."""
    where = np.flatnonzero(mass[:, low:high].any(axis=0))
    return slice(low + int(where[0]), low + int(where[-1]) + 1) if where.size else slice(0, 0)


def _runs(mass: FloatArray, level: int) -> list[slice]:
    """The runs of a level that hold mass: above level 0 its middle is empty."""
    columns = mass.shape[1]
    parts = [(0, columns)] if level == 0 else [(0, columns // 2), (columns // 2, columns)]
    return [span for span in (_span(mass, *part) for part in parts) if span.stop]


def _convolved_levels(a: Batch, b: Batch) -> list[FloatArray]:
    """Masses of the sums, level by level, on points -2N..2N of each."""
    half, same = a.half, a is b
    laws, columns = a.mass.shape[0], 2 * half + 1
    # Pairs go to the larger of their levels: a term of a lower level is first coarsened to the higher one's grid.
    empty = np.zeros((laws, columns))
    below = [empty, empty]
    rows = []
    levels = max(a.mass.shape[1], b.mass.shape[1])
    for k in range(levels):
        pa, pb = (x.mass[:, k] if k < x.mass.shape[1] else empty for x in (a, b))
        # When a law is added to itself, each pair of different levels occurs twice.
        terms = [(pa, pb + 2.0 * below[1])] if same else [(pa, pb + below[1]), (pb, below[0])]
        p = np.zeros((laws, 4 * half + 1))
        for left, right in terms:
            span = _span(right, 0, columns)
            backwards = right[:, span][:, ::-1]
            for run in _runs(left, k) if span.stop else []:
                start = run.start + span.start
                stop = run.stop + span.stop - 1
                for law in np.flatnonzero(left[:, run].any(axis=1)).tolist():
                    p[law, start:stop] += np.correlate(left[law, run], backwards[law], "full")
        rows.append(p)
        if k + 1 < levels:
            low = _padded_rows(_coarsened(pb + below[1]), half)
            below = [low if same else _padded_rows(_coarsened(pa + below[0]), half), low]
    return rows


def _settled_levels(masses: list[FloatArray], half: int) -> FloatArray:
    """Masses over (law, level, position), each on the level where it belongs."""
    # Sums reach twice as far as their terms: masses outside belong to the next level.
    inside = slice(half, 3 * half + 1)
    k = 0
    while k < len(masses):
        outside = masses[k].copy()
        outside[:, inside] = 0.0
        if outside.any():
            if k + 1 == len(masses):
                masses.append(np.zeros_like(outside))
            masses[k + 1][:, inside] += _coarsened(outside)
        k += 1
    settled = np.stack([row[:, inside] for row in masses], axis=1)
    # A level's middle is covered by finer levels, on whose grid its points are: moving down is exact.
    middle = slice(half - half // 2 + 1, half + half // 2)
    for k in range(len(masses) - 1, 0, -1):
        settled[:, k - 1, 2 : 2 * half - 1 : 2] += settled[:, k, middle]
        settled[:, k, middle] = 0.0
    return settled


def _without_ends(a: Batch, allowance: float) -> Batch:
    """The laws with ends of negligible first moment moved inwards to the last cell kept."""
    points, shape = in_order(a.points), a.mass.shape
    order = in_order(np.arange(shape[1] * shape[2]).reshape(shape[1:]))
    rows = a.mass.reshape(shape[0], -1)[:, order]
    sizes = rows * np.abs(points)
    index, middle = np.arange(len(points)), len(points) // 2  # where 0 is: no mass changes sides
    low = np.minimum((np.cumsum(sizes, axis=1) < allowance).sum(axis=1), middle)[:, None]
    high = len(points) - 1 - (np.cumsum(sizes[:, ::-1], axis=1) < allowance).sum(axis=1)
    high = np.maximum(high, middle)[:, None]
    # error 1: moved inwards, which is no spread, so its first moment is charged
    below, above = index < low, index > high
    cut = a.cut + (sizes * (below | above)).sum(axis=1) * (1.0 + 1e-9)
    rows += (index == low) * (rows * below).sum(axis=1)[:, None] + (index == high) * (rows * above).sum(axis=1)[:, None]
    rows[below | above] = 0.0
    mass = np.zeros((shape[0], shape[1] * shape[2]))
    mass[:, order] = rows
    mass = mass.reshape(shape)
    levels = int(np.flatnonzero(mass.any(axis=(0, 2)))[-1]) + 1
    return replace(a, mass=mass[:, :levels], cut=cut)


def deviation(a: Batch) -> float:
    """The weighted mean absolute deviation of the laws, given that they are not at 0."""
    points = np.abs(a.points)
    sizes = (a.mass * points).sum(axis=(1, 2))
    off_centre = (a.mass * (points > 0.0)).sum(axis=(1, 2))
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
        a, b = rebased_batch(a, b.base), rebased_batch(b, a.base)
    # error 2, of this sum
    mass = _settled_levels(_convolved_levels(a, b), a.half)
    error = (max(a.longest, b.longest) + 64.0) * UNIT
    stretch = np.maximum(a.stretch, b.stretch)
    total = Batch(
        count=a.count + b.count,
        weight=a.weight,
        base=a.base,
        mass=mass,
        cut=a.cut + b.cut,
        stretch=stretch + 8.0 * error * (1.0 + stretch) * (1.0 + 1e-6),
    )
    total = _without_ends(total, share * total.count)
    return rebased_batch(total, base_for(deviation(total), total.half))


def sums_by_count(term: Batch, share: float) -> Callable[[int], Batch]:
    """A function that returns the sum of any number of copies of a term.

    Args:
        term: the laws of one term.
        share: how much of its first moment may be cut, for each term.

    Returns:
        The function, which remembers the sums it has made.
    """
    by_count: dict[int, Batch] = {1: term}

    def sum_of(count: int) -> Batch:
        if count not in by_count:
            if count % 2:
                by_count[count] = batch_sum(sum_of(count - 1), term, share)
            else:
                half = sum_of(count // 2)
                by_count[count] = batch_sum(half, half, share)
        return by_count[count]

    return sum_of


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

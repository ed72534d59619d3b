"""Sums of independent terms from above, for several laws at once: the grid of `grid`, masses only.

A law is an array of masses over (level, position); a `Batch` holds the same grid for several laws, and adds terms to
all of them together. Sharing between lattice points keeps the mean, so every operation is a mean-preserving spread of
the exact sum, up to what `Batch` carries along:

1. `cut`: cells at the ends whose first moment is negligible are moved inwards to the last cell kept. What that takes
   from a call or a put, and from the mean, is at most the moment moved, and moments of sums add up.
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

_CHUNK = 2**14
"""So many atoms are shared at once: few enough to stay in the processor's cache."""


def atoms_on_grid(y: FloatArray, mass: FloatArray, half: int, base: int) -> FloatArray:
    """Atoms shared by the lattice points on either side, means kept: masses over (level, position)."""
    levels, columns = levels_for(float(np.abs(y).max()), half, base), 2 * half + 1
    # Both neighbours of an atom are on its level: a level reaches one point beyond where the next one takes over.
    found = np.zeros(levels * columns)
    for start in range(0, len(y), _CHUNK):
        part = slice(start, start + _CHUNK)
        level, left, right = located(y[part], half, base, levels)
        index = level * columns + left.astype(np.int64) + half
        found += np.bincount(index, (1.0 - right) * mass[part], len(found))
        found += np.bincount(index + 1, right * mass[part], len(found))
    return found.reshape(levels, columns)


def positions(half: int, base: int, low: float, high: float) -> FloatArray:
    """All lattice points between low and high."""
    spacing = math.ldexp(1.0, base)
    levels = max(1, math.ceil(math.log2(max(high, -low, spacing) / (half * spacing))) + 2)
    outer = np.arange(half // 2, half + 1.0)
    positive = np.concatenate(
        [spacing * np.arange(0.0, half + 1.0)] + [math.ldexp(spacing, k) * outer for k in range(1, levels)]
    )
    every: FloatArray = np.concatenate([-positive, positive])
    return every[(every > low) & (every < high)]


@dataclass(frozen=True, kw_only=True)
class Law:
    """Positions and masses of one law of mean 0, and what it lacks (error 1)."""

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
        return int(self.mass.shape[2]) // 2

    @property
    def points(self) -> FloatArray:
        return Cells(base=self.base, mass=self.mass[0], moment=self.mass[0]).points()

    @property
    def longest(self) -> int:
        return Cells(base=self.base, mass=self.mass[0], moment=self.mass[0]).longest

    def only(self, place: int) -> Batch:
        """One of the laws alone."""
        one = slice(place, place + 1)
        return replace(
            self, weight=np.ones(1), mass=self.mass[one], stretch=self.stretch[one], cut=self.cut[one]
        )  # fmt: skip

    def laws(self) -> list[Law]:
        """Each law centred at its mean (up to round-off) and stretched."""
        y, found = in_order(self.points), []
        for mass, stretch, cut in zip(self.mass, self.stretch.tolist(), self.cut.tolist(), strict=True):
            every = in_order(mass)
            there = every > 0.0
            # error 2: about its mean, stretched, the computed law is above the exact one about its own
            part = every[there] / every.sum()
            point = (y[there] - float(part @ y[there])) * (1.0 + stretch)
            found.append(Law(point=point, mass=part, cut=cut))
        return found


def batch(
    rows: Sequence[FloatArray], base: int, *, weight: FloatArray, stretch: Sequence[float], cut: Sequence[float]
) -> Batch:
    """Laws of one term each, from their masses on one grid."""
    levels = max(len(row) for row in rows)
    mass = np.zeros((len(rows), levels, rows[0].shape[1]))
    for place, row in enumerate(rows):
        mass[place, : len(row)] = row
    return Batch(count=1, weight=weight, base=base, mass=mass, stretch=np.array(stretch), cut=np.array(cut))


def _coarser(mass: FloatArray) -> FloatArray:
    """Every odd point is shared by its neighbours; arrays start and end with an even one."""
    # Halves to both sides keep the mean; a spread.
    even, odd = mass[:, ::2].copy(), 0.5 * mass[:, 1::2]
    even[:, :-1] += odd
    even[:, 1:] += odd
    return even


def _padded(mass: FloatArray, half: int) -> FloatArray:
    wide = np.zeros((len(mass), 2 * half + 1))
    wide[:, half // 2 : half // 2 + half + 1] = mass
    return wide


def rebased_batch(a: Batch, base: int) -> Batch:
    """The same laws with a coarser level 0."""
    mass, quarter = a.mass, a.half // 2
    for _ in range(a.base, base):
        # Level 0 is shared by every second of its points, which are points of level 1, the new level 0.
        coarse = _coarser(mass[:, 0])
        mass = mass[:, 1:].copy() if mass.shape[1] > 1 else np.zeros_like(mass)
        mass[:, 0, quarter : quarter + a.half + 1] += coarse
    steps = 32.0 * max(0, base - a.base) * UNIT
    return replace(a, base=max(base, a.base), mass=mass, stretch=a.stretch + steps)


def _span(mass: FloatArray, low: int, high: int) -> slice:
    """Where any of the laws has mass, between two columns."""
    where = np.flatnonzero(mass[:, low:high].any(axis=0))
    return slice(low + int(where[0]), low + int(where[-1]) + 1) if where.size else slice(0, 0)


def _runs(mass: FloatArray, level: int) -> list[slice]:
    """The runs of a level that hold mass: above level 0 its middle is empty."""
    columns = mass.shape[1]
    parts = [(0, columns)] if level == 0 else [(0, columns // 2), (columns // 2, columns)]
    return [span for span in (_span(mass, *part) for part in parts) if span.stop]


def _convolved(a: Batch, b: Batch) -> list[FloatArray]:
    """Masses of the sums, level by level, on points -2N..2N of each."""
    half, same = a.half, a is b
    laws, columns = a.mass.shape[0], 2 * half + 1
    # Pairs by the larger of their levels: a term of a lower level is first shared on the higher one's grid.
    nothing = np.zeros((laws, columns))
    below = [nothing, nothing]
    found = []
    levels = max(a.mass.shape[1], b.mass.shape[1])
    for k in range(levels):
        pa, pb = (x.mass[:, k] if k < x.mass.shape[1] else nothing for x in (a, b))
        # A sum with itself has each pair of different levels twice.
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
        found.append(p)
        if k + 1 < levels:
            low = _padded(_coarser(pb + below[1]), half)
            below = [low if same else _padded(_coarser(pa + below[0]), half), low]
    return found


def _settled(masses: list[FloatArray], half: int) -> FloatArray:
    """Move what lies beyond a level's reach up, what lies in its empty middle down (exactly)."""
    # Sums reach twice as far as their terms: what is outside belongs to the next level.
    inside = slice(half, 3 * half + 1)
    k = 0
    while k < len(masses):
        outside = masses[k].copy()
        outside[:, inside] = 0.0
        if outside.any():
            if k + 1 == len(masses):
                masses.append(np.zeros_like(outside))
            masses[k + 1][:, inside] += _coarser(outside)
        k += 1
    settled = np.stack([row[:, inside] for row in masses], axis=1)
    # A level's middle is covered by finer levels, on whose grid its points are: moving down is exact.
    middle = slice(half - half // 2 + 1, half + half // 2)
    for k in range(len(masses) - 1, 0, -1):
        settled[:, k - 1, 2 : 2 * half - 1 : 2] += settled[:, k, middle]
        settled[:, k, middle] = 0.0
    return settled


def _clipped(a: Batch, allowance: float) -> Batch:
    """Without the ends of each law whose first moment is within the allowance: moved to the last cell kept."""
    points, shape = in_order(a.points), a.mass.shape
    order = in_order(np.arange(shape[1] * shape[2]).reshape(shape[1:]))
    rows = a.mass.reshape(shape[0], -1)[:, order]
    sizes = rows * np.abs(points)
    here, middle = np.arange(len(points)), len(points) // 2  # where 0 is: no mass changes sides
    low = np.minimum((np.cumsum(sizes, axis=1) < allowance).sum(axis=1), middle)[:, None]
    high = len(points) - 1 - (np.cumsum(sizes[:, ::-1], axis=1) < allowance).sum(axis=1)
    high = np.maximum(high, middle)[:, None]
    # error 1: moved inwards, which is no spread, so its first moment is charged
    below, above = here < low, here > high
    cut = a.cut + (sizes * (below | above)).sum(axis=1) * (1.0 + 1e-9)
    rows += (here == low) * (rows * below).sum(axis=1)[:, None] + (here == high) * (rows * above).sum(axis=1)[:, None]
    rows[below | above] = 0.0
    mass = np.zeros((shape[0], shape[1] * shape[2]))
    mass[:, order] = rows
    mass = mass.reshape(shape)
    levels = int(np.flatnonzero(mass.any(axis=(0, 2)))[-1]) + 1
    return replace(a, mass=mass[:, :levels], cut=cut)


def deviation(a: Batch) -> float:
    """The mean absolute deviation of the laws, on average, given that there is one."""
    points = np.abs(a.points)
    sizes = (a.mass * points).sum(axis=(1, 2))
    away = (a.mass * (points > 0.0)).sum(axis=(1, 2))
    return float(a.weight @ sizes) / float(a.weight @ away)


def batch_sum(a: Batch, b: Batch, share: float) -> Batch:
    """Each law of a and that of b in one sum (b may be a: as many terms again).

    `share` is how much of the first moment of a term may be cut, for each of the terms.
    """
    if a is not b:
        a, b = rebased_batch(a, b.base), rebased_batch(b, a.base)
    # error 2, of this sum
    mass = _settled(_convolved(a, b), a.half)
    error = (max(a.longest, b.longest) + 64.0) * UNIT
    stretch = np.maximum(a.stretch, b.stretch)
    both = Batch(
        count=a.count + b.count, weight=a.weight, base=a.base, mass=mass, cut=a.cut + b.cut,
        stretch=stretch + 8.0 * error * (1.0 + stretch) * (1.0 + 1e-6),
    )  # fmt: skip
    both = _clipped(both, share * both.count)
    return rebased_batch(both, base_for(deviation(both), both.half))


def sums_by_count(one: Batch, share: float) -> Callable[[int], Batch]:
    """Sums of any number of copies of a term; those made on the way are kept."""
    made: dict[int, Batch] = {1: one}

    def sum_of(count: int) -> Batch:
        if count not in made:
            if count % 2:
                made[count] = batch_sum(sum_of(count - 1), one, share)
            else:
                part = sum_of(count // 2)
                made[count] = batch_sum(part, part, share)
        return made[count]

    return sum_of


def sums(one: Batch, counts: Sequence[int], share: float) -> dict[int, Batch]:
    """Sums of each of the counts, but for 0: from one to the next."""
    sum_of, found = sums_by_count(one, share), {}
    wanted = sorted({count for count in counts if count > 0})
    if wanted:
        found[wanted[0]] = sum_of(wanted[0])
    # Most differences are equal, so one more sum for each.
    for before, count in itertools.pairwise(wanted):
        found[count] = batch_sum(found[before], sum_of(count - before), share)
    return found

"""Sums of independent terms on a grid whose cells grow with the distance from its centre.

*The grid* has levels k = 0, 1, ... of spacing `h 2^k` (h a power of two, so that positions are
exact); level k holds the positions with `N h 2^(k-1) < |y| <= N h 2^k`, y the distance from the
centre. Cells carry a mass and a moment, which says where the mass came from. A `Rule` says how both
are shared between the lattice points on either side of an atom, and what the moment of a sum is.

A piece of level k is convolved with everything below it on the lattice of level k, after
the finer pieces were coarsened (every odd point is shared between its two neighbours). Masses are sums of
positive products: nothing cancels, and far tails keep their relative accuracy. The longest sum has
`longest` terms, so a mass is off by a factor `1 +- longest u` at most, u = 2^-53.

`mean_law` adds ratios on this grid, `composition` privacy losses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from shoal.bounds.numeric import FloatArray, IntArray

_LEVEL_ZERO_DEVIATIONS = 6.0
"""Level 0 reaches to between half and all of this many mean absolute deviations."""


class Share(NamedTuple):
    """The part of an atom that goes to one lattice point.

    Its mass is `mass` times the atom's; its moment is `moment` times the atom's, plus `lift` times the atom's mass.
    """

    mass: FloatArray | float
    moment: FloatArray | float
    lift: FloatArray | float


class Rule(Protocol):
    """How atoms are shared between lattice points, and how moments multiply."""

    def __hash__(self) -> int: ...

    def shares(self, offset: FloatArray | float, width: FloatArray | float) -> tuple[Share, Share]:
        """The shares of the left and the right neighbour of an atom.

        Args:
            offset: how far the atom lies above the left one.
            width: the distance of the two.

        Returns:
            The left and the right share.
        """
        ...

    def moment_of_sum(self, a: FloatArray, a_moment: FloatArray, b: FloatArray, b_moment: FloatArray) -> FloatArray:
        """The moments of a sum of two independent parts, by convolution.

        Args:
            a: masses of the first part.
            a_moment: its moments.
            b: masses of the second part.
            b_moment: its moments.

        Returns:
            The moments on the lattice of the convolution.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Masses and moments on the grid: row k is level k, index i + N is its point i."""

    base: int
    mass: FloatArray
    moment: FloatArray

    @property
    def half(self) -> int:
        """N, the number of cells on each side of the centre."""
        return int(self.mass.shape[1]) // 2

    @property
    def longest(self) -> int:
        """The largest number of terms in a mass of a sum, with the operations on it."""
        # A level with all below it, a few operations for each coarsening, and a few for settling.
        return 2 * self.half + 1 + 8 * (len(self.mass) + 1) + 16

    def spacings(self) -> FloatArray:
        """The spacing of each level, as a column."""
        return np.ldexp(1.0, self.base + np.arange(len(self.mass)))[:, None]

    def points(self) -> FloatArray:
        """The position y of every cell."""
        return self.spacings() * np.arange(-self.half, self.half + 1.0)

    def largest_offset(self, *, in_spacings: bool) -> float:
        """The largest |moment / mass| of a cell."""
        occupied = self.mass > 0.0
        size = np.abs(self.moment[occupied]) / self.mass[occupied]
        if in_spacings:
            size = size / np.broadcast_to(self.spacings(), self.mass.shape)[occupied]
        return float(size.max())


def in_order(values: FloatArray) -> FloatArray:
    """The cells of all levels from the lowest position to the highest (a copy)."""
    half = values.shape[1] // 2
    # Above level 0 only the outer halves of a row hold anything, its points beyond N/2.
    outer = half - half // 2 + 1
    return np.concatenate([values[:0:-1, :outer].ravel(), values[0], values[1:, -outer:].ravel()])


@functools.lru_cache(maxsize=1024)
def _taps(rule: Rule, spacing: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The shares that an even point gets from the odd one below, from itself and from the odd one above."""
    left, right = rule.shares(spacing, 2.0 * spacing)
    masses = np.array([right.mass, 1.0, left.mass])
    return masses, np.array([right.moment, 1.0, left.moment]), np.array([right.lift, 0.0, left.lift])


def coarsen(rule: Rule, mass: FloatArray, moment: FloatArray, spacing: float) -> tuple[FloatArray, FloatArray]:
    """A measure on the even points of a lattice: each odd point is shared between its neighbours.

    Args:
        rule: how it is shared.
        mass: masses, from an even point to an even point.
        moment: moments of the same points.
        spacing: the distance of neighbouring points.

    Returns:
        The masses and moments of the even points.
    """
    # Three taps at every even point: itself, and the shares of its odd neighbours.
    masses, moments, lifts = _taps(rule, spacing)
    p = np.correlate(mass, masses, "same")[::2].copy()
    q = np.correlate(moment, moments, "same")[::2] + np.correlate(mass, lifts, "same")[::2]
    return p, q


def located(y: FloatArray, half: int, base: int, levels: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """The place of each y on the grid.

    Args:
        y: distances from the centre.
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.
        levels: the number of levels.

    Returns:
        The lowest level that reaches each y, the lattice point on its left there, and its distance from that point in
        spacings. All are exact, as are multiplications by powers of two.
    """
    level = np.searchsorted(np.ldexp(float(half), base + np.arange(levels - 1)), np.abs(y))
    scaled = y * np.ldexp(1.0, -(base + np.arange(levels)))[level]
    # The last point has no right neighbour: it is the right neighbour of the point before.
    left = np.minimum(np.floor(scaled), half - 1.0)
    return level, left, scaled - left


def base_for(deviation: float, half: int) -> int:
    """The base of the grid for laws with a given spread.

    Args:
        deviation: their mean absolute deviation.
        half: N, the number of cells on each side of the centre.

    Returns:
        The base: level 0 has the spacing 2^base.
    """
    return math.floor(math.log2(_LEVEL_ZERO_DEVIATIONS * deviation / half))


def levels_for(largest: float, half: int, base: int) -> int:
    """The number of levels that a grid needs.

    Args:
        largest: the distance from the centre that it must reach.
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.

    Returns:
        The number of levels, at least 1.
    """
    reach = math.ldexp(float(half), base)
    doublings = max(0, math.frexp(largest / reach)[1])
    # frexp gives f 2^e with f in [1/2, 1); f = 1/2 exactly still fits one level lower.
    return 1 + doublings - int(doublings > 0 and largest <= math.ldexp(reach, doublings - 1))


def deposit(
    rule: Rule, y: FloatArray, mass: FloatArray, moment: FloatArray, half: int, base: int
) -> tuple[FloatArray, FloatArray]:
    """Atoms shared between the lattice points on either side.

    Args:
        rule: how they are shared.
        y: their positions.
        mass: their masses.
        moment: their moments about y.
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.

    Returns:
        Masses and moments over (level, position).
    """
    levels, columns = levels_for(float(np.abs(y).max()), half, base), 2 * half + 1
    level, left, offset = located(y, half, base, levels)
    width = np.ldexp(1.0, base + np.arange(levels))[level]
    index = level * columns + left.astype(np.int64) + half
    size = levels * columns
    p, q = np.zeros(size), np.zeros(size)
    for where, share in zip((index, index + 1), rule.shares(offset * width, width), strict=True):
        p += np.bincount(where, share.mass * mass, size)
        q += np.bincount(where, share.moment * moment + share.lift * mass, size)
    return p.reshape(levels, columns), q.reshape(levels, columns)


def rebased(rule: Rule, cells: Cells, base: int) -> tuple[FloatArray, FloatArray]:
    """Masses and moments with a coarser level 0.

    Args:
        rule: how odd points are shared.
        cells: the measure.
        base: the new base; nothing changes if it is not larger.

    Returns:
        Masses and moments over (level, position).
    """
    mass, moment = cells.mass, cells.moment
    quarter = cells.half // 2
    for exponent in range(cells.base, base):
        # Level 0 moves to its even points: these are the inner half of level 1, which is empty.
        rows = []
        for values, coarse in zip(
            (mass, moment), coarsen(rule, mass[0], moment[0], math.ldexp(1.0, exponent)), strict=True
        ):
            upper = values[1:].copy() if len(values) > 1 else np.zeros((1, values.shape[1]))
            upper[0, quarter : quarter + len(coarse)] += coarse
            rows.append(upper)
        mass, moment = rows
    return mass, moment


def convolved(rule: Rule, a: Cells, b: Cells) -> tuple[FloatArray, FloatArray]:
    """The law of the sum of two independent parts.

    Args:
        rule: how points are shared, and how moments multiply.
        a: one part.
        b: the other, of the same base; `a` itself stands for an independent copy.

    Returns:
        Masses and moments over (level, position).
    """
    return _settle(rule, *_convolve_levels(rule, a, b), a.base, a.half)


def _nonzero(mass: FloatArray) -> slice:
    """The span from the first to the last positive mass."""
    where = mass.nonzero()[0]
    return slice(int(where[0]), int(where[-1]) + 1) if where.size else slice(0, 0)


def _halves(mass: FloatArray, level: int) -> Iterator[slice]:
    """The runs of a level that can hold mass: above level 0 its middle is empty."""
    middle = len(mass) // 2
    for run in [slice(0, len(mass))] if level == 0 else [slice(0, middle), slice(middle, len(mass))]:
        inner = _nonzero(mass[run])
        if inner.stop:
            yield slice(run.start + inner.start, run.start + inner.stop)


def _padded(pair: tuple[FloatArray, FloatArray], half: int) -> tuple[FloatArray, FloatArray]:
    """Arrays over the points -N/2..N/2 as arrays over -N..N."""
    first, second = np.zeros(2 * half + 1), np.zeros(2 * half + 1)
    inside = slice(half // 2, half // 2 + half + 1)
    first[inside], second[inside] = pair
    return first, second


def _convolve_levels(rule: Rule, a: Cells, b: Cells) -> tuple[list[FloatArray], list[FloatArray]]:
    """Masses and moments of the sum, level by level, on points -2N..2N of each."""
    half, columns = a.half, 2 * a.half + 1
    same = a is b
    zeros = np.zeros(columns)
    masses, moments = [], []
    below = [(zeros, zeros), (zeros, zeros)]
    levels = max(len(a.mass), len(b.mass))
    for k in range(levels):
        rows = [(x.mass[k], x.moment[k]) if k < len(x.mass) else (zeros, zeros) for x in (a, b)]
        (pa, qa), (pb, qb) = rows
        (ca, da), (cb, db) = below[0], below[-1]
        # Level k of one part with all levels up to k of the other, so that each pair of levels meets once. When a law
        # is added to itself, each pair of different levels occurs twice.
        terms = [(pa, qa, pb + 2.0 * cb, qb + 2.0 * db)] if same else [(pa, qa, pb + cb, qb + db), (pb, qb, ca, da)]
        p, q = np.zeros(4 * half + 1), np.zeros(4 * half + 1)
        for left_p, left_q, right_p, right_q in terms:
            # Most of a row may be empty, so only runs that hold mass are multiplied.
            span = _nonzero(right_p)
            if not span.stop:
                continue
            for run in _halves(left_p, k):
                start = run.start + span.start
                stop = start + (run.stop - run.start) + (span.stop - span.start) - 1
                p[start:stop] += np.convolve(left_p[run], right_p[span])
                q[start:stop] += rule.moment_of_sum(left_p[run], left_q[run], right_p[span], right_q[span])
        masses.append(p)
        moments.append(q)
        if k + 1 == levels:
            break
        # All lower levels, and this one, on the lattice of the next.
        spacing = math.ldexp(1.0, a.base + k)
        below = [
            _padded(coarsen(rule, row_p + low_p, row_q + low_q, spacing), half)
            for (row_p, row_q), (low_p, low_q) in zip(rows[: 2 - same], below, strict=False)
        ]
    return masses, moments


def _settle(
    rule: Rule, masses: list[FloatArray], moments: list[FloatArray], base: int, half: int
) -> tuple[FloatArray, FloatArray]:
    """Masses and moments over (level, position), each on the level where it belongs."""
    inside = slice(half, 3 * half + 1)
    # Upwards first: masses beyond a level's reach are coarsened into the next, which may then overflow itself.
    k = 0
    while k < len(masses):
        if masses[k][:half].any() or masses[k][3 * half + 1 :].any():
            outside, outside_moment = masses[k].copy(), moments[k].copy()
            outside[inside] = outside_moment[inside] = 0.0
            p, q = coarsen(rule, outside, outside_moment, math.ldexp(1.0, base + k))
            if k + 1 == len(masses):
                masses.append(np.zeros(4 * half + 1))
                moments.append(np.zeros(4 * half + 1))
            masses[k + 1][inside] += p
            moments[k + 1][inside] += q
        k += 1
    settled = [np.stack([row[inside] for row in rows]) for rows in (masses, moments)]
    # Then downwards: points of a level's middle are even points of the level below, so this is exact.
    middle = slice(half - half // 2 + 1, half + half // 2)
    for k in range(len(masses) - 1, 0, -1):
        for rows in settled:
            rows[k - 1, 2 : 2 * half - 1 : 2] += rows[k, middle]
            rows[k, middle] = 0.0
    return settled[0], settled[1]

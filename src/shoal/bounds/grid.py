"""Sums of independent terms on a grid whose cells grow with the distance from its centre.

*The grid* has levels k = 0, 1, ... of spacing `h 2^k` (h a power of two, so that positions are
exact); level k holds the positions with `N h 2^(k-1) < |y| <= N h 2^k`, y the distance from the
centre. Cells carry a mass and any number of further *channels* (a moment that says where the mass came
from, say), for one law or for several at once. A `Rule` says how all of them are shared between the
lattice points on either side of an atom, and what the channels of a sum are.

A piece of level k is convolved with everything below it on the lattice of level k, after
the finer pieces were coarsened (every odd point is shared between its two neighbours). Masses are sums of
positive products: nothing cancels, and far tails keep their relative accuracy.

*The ledger.* `relative` bounds the relative error of all masses, u = 2^-53. Operations add to it: a sum of
two parts the errors of both and `longest` u, the largest number of operations on one mass; each removed level 8 u
(a share is exact to 5 u, and is multiplied and added up); putting atoms on the grid one u for each atom in the fullest
cell, and 32 u.

Laws of ratios (`mean_law`), privacy losses (`composition`), scores (`anycrowd.opposite`) and terms (`sums`) live here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from shoal.bounds.numeric import UNIT, FloatArray, IntArray

_LEVEL_ZERO_DEVIATIONS = 6.0
"""Level 0 reaches to between half and all of this many mean absolute deviations."""

_ATOMS_PER_PASS = 2**14
"""Number of atoms that are shared at once: few enough to stay in the processor's cache."""


class Share(NamedTuple):
    """The part of an atom that goes to one lattice point.

    Its mass is `mass` times the atom's; any other channel is `moment` times the atom's, plus `lift` times the atom's
    mass.
    """

    mass: FloatArray | float
    moment: FloatArray | float
    lift: FloatArray | float


class Rule(Protocol):
    """How atoms are shared between lattice points, and how channels multiply."""

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
        """One channel of a sum of two independent parts, by convolution.

        Args:
            a: masses of the first part.
            a_moment: its channel.
            b: masses of the second part.
            b_moment: its channel.

        Returns:
            The channel on the lattice of the convolution.
        """
        ...


class KeepMean:
    """The rule that keeps the mean; all channels have equal shares, and add up as derivatives do."""

    def shares(self, offset: FloatArray | float, width: FloatArray | float) -> tuple[Share, Share]:
        right = offset / width
        left = 1.0 - right
        return Share(left, left, 0.0), Share(right, right, 0.0)

    def moment_of_sum(self, a: FloatArray, a_moment: FloatArray, b: FloatArray, b_moment: FloatArray) -> FloatArray:
        return np.convolve(a, b_moment) + np.convolve(a_moment, b)


KEEP_MEAN = KeepMean()


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Measures on the grid, in rows over (channel, law, level, position).

    Masses are the first channel; point i is at index i + N.

    `relative` is the ledger of relative errors of the masses, see the head of this file.
    """

    rule: Rule
    base: int
    rows: FloatArray
    relative: float = 0.0

    @property
    def mass(self) -> FloatArray:
        """The masses of the first law over (level, position)."""
        return self.rows[0, 0]

    @property
    def moment(self) -> FloatArray:
        """The first channel after the masses, of the first law."""
        return self.rows[1, 0]

    @property
    def half(self) -> int:
        """N, the number of cells on each side of the centre."""
        return self.rows.shape[-1] // 2

    @property
    def levels(self) -> int:
        """The number of levels."""
        return self.rows.shape[-2]

    @property
    def longest(self) -> int:
        """The largest number of terms and other operations that make one mass of a sum."""
        # A level with all below it, a few operations for each coarsening, and a few for settling.
        return 2 * self.half + 1 + 8 * (self.levels + 1) + 16

    def spacings(self) -> FloatArray:
        """The spacing of each level, as a column."""
        return np.ldexp(1.0, self.base + np.arange(self.levels))[:, None]

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


C = TypeVar("C", bound=Cells)


def in_order(values: FloatArray) -> FloatArray:
    """The cells of all levels from the lowest position to the highest (a copy), over the other axes."""
    half = values.shape[-1] // 2
    # Above level 0 only the outer halves of a row hold anything, its points beyond N/2.
    outer, flat = half - half // 2 + 1, (*values.shape[:-2], -1)
    below, above = values[..., :0:-1, :outer], values[..., 1:, -outer:]
    return np.concatenate([below.reshape(flat), values[..., 0, :], above.reshape(flat)], axis=-1)


def without_empty_levels(rows: FloatArray) -> FloatArray:
    """The rows without the highest levels that hold nothing."""
    return rows[..., : int(np.flatnonzero(rows.any(axis=(0, 1, 3)))[-1]) + 1, :]


@functools.lru_cache(maxsize=1024)
def _odd_shares(rule: Rule, spacing: float) -> tuple[Share, Share]:
    """The shares of the even neighbours of an odd point."""
    left, right = rule.shares(spacing, 2.0 * spacing)
    return left, right


def coarsen(rule: Rule, rows: FloatArray, spacing: float) -> FloatArray:
    """A measure on the even points of a lattice; odd points are shared between their neighbours.

    Args:
        rule: how it is shared.
        rows: masses and other channels over (channel, law, position), from an even point to an even point.
        spacing: the distance of neighbouring points.

    Returns:
        The rows of the even points.
    """
    # Copies: strided operands cost up to three times as much where rows are a power of two long.
    even, odd = rows[..., ::2].copy(), rows[..., 1::2].copy()
    left, right = _odd_shares(rule, spacing)
    even[0, :, :-1] += left.mass * odd[0]
    even[0, :, 1:] += right.mass * odd[0]
    if len(rows) > 1:
        even[1:, :, :-1] += left.moment * odd[1:] + left.lift * odd[0]
        even[1:, :, 1:] += right.moment * odd[1:] + right.lift * odd[0]
    return even


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


def lattice_points(half: int, base: int, low: float, high: float, centre: float = 0.0) -> FloatArray:
    """All lattice points between low and high.

    Args:
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.
        low: the lower limit, excluded.
        high: the upper limit, excluded.
        centre: the centre of the grid.

    Returns:
        The points, of which the levels may repeat one another's ends.
    """
    spacing = math.ldexp(1.0, base)
    reach = max(high - centre, centre - low, spacing)
    levels = max(1, math.ceil(math.log2(reach / (half * spacing))) + 2)
    outer = np.arange(half // 2, half + 1.0)
    positive = np.concatenate(
        [spacing * np.arange(0.0, half + 1.0)] + [math.ldexp(spacing, k) * outer for k in range(1, levels)]
    )
    points = centre + np.concatenate([-positive, positive])
    return points[(points > low) & (points < high)]


def deposit(rule: Rule, y: FloatArray, values: Sequence[FloatArray], half: int, base: int) -> tuple[FloatArray, float]:
    """Atoms shared between the lattice points on either side.

    Args:
        rule: how they are shared.
        y: their positions.
        values: their masses, and other channels about y.
        half: N, the number of cells on each side of the centre.
        base: the spacing of level 0 is 2^base.

    Returns:
        Rows of one law over (channel, law, level, position), and the relative error that this adds.
    """
    levels, columns = levels_for(float(np.abs(y).max()), half, base), 2 * half + 1
    rows, atoms = np.zeros((len(values), levels * columns)), 0
    for start in range(0, len(y), _ATOMS_PER_PASS):
        part = slice(start, start + _ATOMS_PER_PASS)
        # Both neighbours of an atom are on its level: a level reaches one point into the next.
        level, left, offset = located(y[part], half, base, levels)
        width = np.ldexp(1.0, base + np.arange(levels))[level]
        index = level * columns + left.astype(np.int64) + half
        atoms += int(np.bincount(index).max())
        mass = values[0][part]
        for place, share in zip((index, index + 1), rule.shares(offset * width, width), strict=True):
            rows[0] += np.bincount(place, share.mass * mass, rows.shape[1])
            for number, channel in enumerate(values[1:], 1):
                weights = share.moment * channel[part] + share.lift * mass
                rows[number] += np.bincount(place, weights, rows.shape[1])
    # A cell adds up the shares of as many atoms above it, and of as many below it, each exact to a few u.
    return rows.reshape(len(values), 1, levels, columns), (atoms + 32.0) * UNIT


def rebased(a: C, base: int) -> C:
    """The measures on a grid with a coarser level 0.

    Args:
        a: the measures.
        base: the new base; nothing changes if it is not larger.

    Returns:
        The measures, with the error of sharing in the ledger.
    """
    if base <= a.base:
        return a
    rows, quarter = a.rows, a.half // 2
    for exponent in range(a.base, base):
        # Level 0 moves to its even points: these are the inner half of level 1, which is empty.
        coarse = coarsen(a.rule, rows[:, :, 0], math.ldexp(1.0, exponent))
        rows = rows[:, :, 1:].copy() if rows.shape[2] > 1 else np.zeros_like(rows)
        rows[:, :, 0, quarter : quarter + coarse.shape[-1]] += coarse
    return replace(a, base=base, rows=rows, relative=a.relative + 8.0 * (base - a.base) * UNIT)


def convolved(a: Cells, b: Cells) -> tuple[FloatArray, float]:
    """The laws of sums of two independent parts.

    Args:
        a: one part.
        b: the other, of the same base and rule; `a` itself stands for an independent copy.

    Returns:
        Rows over (channel, law, level, position), and their relative error.
    """
    rows = _settled(a.rule, _convolved_levels(a, b), a.base, a.half)
    return rows, a.relative + b.relative + max(a.longest, b.longest) * UNIT


def _span(mass: FloatArray, low: int, high: int) -> slice:
    """The span of two columns in which any of the laws has mass."""
    part = mass[:, low:high]
    # `any` and `argmax` stop at the first mass, from either end.
    occupied = np.asarray(np.not_equal(part[0], 0.0) if len(part) == 1 else part.any(axis=0))
    first = int(occupied.argmax())
    if not occupied[first]:
        return slice(0, 0)
    return slice(low + first, low + len(occupied) - int(occupied[::-1].argmax()))


def _runs(mass: FloatArray, level: int) -> list[slice]:
    """The runs of a level that hold mass: above level 0 its middle is empty."""
    columns = mass.shape[1]
    parts = [(0, columns)] if level == 0 else [(0, columns // 2), (columns // 2, columns)]
    return [span for span in (_span(mass, *part) for part in parts) if span.stop]


def _padded(rows: FloatArray, half: int) -> FloatArray:
    """Arrays over the points -N/2..N/2 as arrays over -N..N."""
    wide = np.zeros((*rows.shape[:2], 2 * half + 1))
    wide[..., half // 2 : half // 2 + half + 1] = rows
    return wide


def _convolved_levels(a: Cells, b: Cells) -> list[FloatArray]:
    """Rows of the sums, level by level, on points -2N..2N of each."""
    half, is_copy = a.half, a is b
    channels, laws, levels = a.rows.shape[0], a.rows.shape[1], max(a.levels, b.levels)
    empty = np.zeros((channels, laws, 2 * half + 1))
    below, sums = [empty, empty], []
    for k in range(levels):
        left_part, right_part = (x.rows[:, :, k] if k < x.levels else empty for x in (a, b))
        # Level k of one part with all levels up to k of the other, so that each pair of levels meets once. When a law
        # is added to itself, each pair of different levels occurs twice.
        if is_copy:
            terms = [(left_part, right_part + 2.0 * below[1])]
        else:
            terms = [(left_part, right_part + below[1]), (right_part, below[0])]
        total = np.zeros((channels, laws, 4 * half + 1))
        for left, right in terms:
            _add_products(a.rule, total, left, right, k)
        sums.append(total)
        if k + 1 < levels:
            # All lower levels, and this one, on the lattice of the next.
            spacing = math.ldexp(1.0, a.base + k)
            low = _padded(coarsen(a.rule, right_part + below[1], spacing), half)
            below = [low if is_copy else _padded(coarsen(a.rule, left_part + below[0], spacing), half), low]
    return sums


def _add_products(rule: Rule, total: FloatArray, left: FloatArray, right: FloatArray, level: int) -> None:
    """Add the convolution of the rows of one level with those of this level and all below to `total`."""
    span = _span(right[0], 0, right.shape[2])
    # Most of a row may be empty, so only runs that hold mass are multiplied.
    for run in _runs(left[0], level) if span.stop else []:
        start, stop = run.start + span.start, run.stop + span.stop - 1
        for law in [0] if left.shape[1] == 1 else np.flatnonzero(left[0, :, run].any(axis=1)).tolist():
            a, b = left[:, law, run], right[:, law, span]
            total[0, law, start:stop] += np.correlate(a[0], b[0, ::-1], "full")
            for channel in range(1, len(total)):
                total[channel, law, start:stop] += rule.moment_of_sum(a[0], a[channel], b[0], b[channel])


def _settled(rule: Rule, sums: list[FloatArray], base: int, half: int) -> FloatArray:
    """Rows over (channel, law, level, position), each on the level where it belongs."""
    # Sums reach twice as far as their terms: masses outside belong to the next level, which may then overflow itself.
    inside = slice(half, 3 * half + 1)
    k = 0
    while k < len(sums):
        if sums[k][0, :, :half].any() or sums[k][0, :, 3 * half + 1 :].any():
            outside = sums[k].copy()
            outside[..., inside] = 0.0
            if k + 1 == len(sums):
                sums.append(np.zeros_like(outside))
            sums[k + 1][..., inside] += coarsen(rule, outside, math.ldexp(1.0, base + k))
        k += 1
    settled = np.stack([total[..., inside] for total in sums], axis=2)
    # A level's middle is covered by finer levels, on whose grid its points are: moving down is exact.
    middle = slice(half - half // 2 + 1, half + half // 2)
    for k in range(len(sums) - 1, 0, -1):
        settled[:, :, k - 1, 2 : 2 * half - 1 : 2] += settled[:, :, k, middle]
        settled[:, :, k, middle] = 0.0
    return settled

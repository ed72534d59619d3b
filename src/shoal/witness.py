"""A bad crowd: everybody else sits opposite to where user 1 goes.

User 1 holds 0 in D and x', |x'| = 1, in D'; all others hold -x'. Seen from the others, user 1 stands
at distance a = 1 in D and a = 2 in D', alone either way: the crowd hides it less than one that stands
where it comes from. No guarantee for any crowd can be below what this one shows, so this file
bounds its privacy from below, for the lower end of every interval that claims to hold for any crowd.

Reports are looked at along x' only, in units of sigma and from the others' place. With r = 1 / sigma
and `w_a(z) = exp(a r z - a^2 r^2 / 2)` (1 for a user who did not take part), the ratio of the two laws
is `mean w_2 / mean w_1`, and the best test at threshold t asks whether the sum of the *scores*
`w_2 - t w_1` is positive. Here an attacker does just that, with its own roundings: it clips and
rounds every score to a lattice, adds them up in pairs, pairs of pairs and so on in random order,
and when the lattice gets too fine for the spread of the sums, rounds these at random to one of
the two neighbours on one twice as coarse. All of that is post-processing of what the server sees:
the law of its final sum, under D and under D', is a pair that bounds the privacy from below, in both
directions and over any number of rounds. Only round-off remains.

Three laws go through the sums: all m of them from the crowd (A), and one of them from user 1 at
a = 1 or 2 (B_a), with `A_2m = A_m * A_m` and `B_2m = A_m * B_m`.

*Errors.* All terms are positive, so masses are within a factor `1 +- e` where e adds up: 2^10 u for the
quadrature of one score (as in `shoal.law`), the longest sum of products for every convolution.
Top masses are taken too small and base masses too large by it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from shoal._validate import FloatArray
from shoal.law import Direction, Pair, Side
from shoal.ratio import MeanRatio, Ratio

IntArray = NDArray[np.int64]

USERS_MAX = 10**7
"""Beyond it round-off would be felt."""

SCALE_MIN = 0.2
"""Below it scores spread over too many orders of magnitude for one lattice."""

_UNIT = 2.0**-53
_SPAN = 9.0
"""Reports are clipped to this many deviations beyond the places where users stand."""

_LONGEST = 1 << 13
"""Cells of the lattice of one score at most."""


@dataclass(frozen=True, kw_only=True)
class Opposite:
    """A round with `mean.users` reports of which one may be user 1's, everybody else opposite.

    `mean` is the round of the identical crowd; `loss` is log t of the scores.
    """

    mean: MeanRatio
    loss: float = 0.0

    @property
    def ratio(self) -> Ratio:
        return self.mean.ratio

    @property
    def users(self) -> int:
        return self.mean.users

    @property
    def weight(self) -> float:
        return self.mean.weight

    @property
    def is_in_range(self) -> bool:
        return self.users <= USERS_MAX and self.ratio.scale >= SCALE_MIN

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        sums = _sums(self, half // 6, budget)
        one, two = ((1.0 - self.weight) * sums.masses[0] + self.weight * moved for moved in sums.masses[1:])
        error = sums.error + 16.0 * _UNIT
        base, top = (one, two) if direction == "forward" else (two, one)
        there = (base > 0.0) & (top > 0.0)
        sign = 1.0 if side == "upper" else -1.0
        lost = float(top[base <= 0.0].sum()) if side == "upper" else 0.0
        base, top = base[there] * (1.0 - sign * error), top[there] * (1.0 + sign * error)
        loss = np.log(top / base)
        order = np.argsort(loss)
        return Pair(side=side, loss=loss[order], base=base[order], top=top[order], infinite=lost)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return _sums(self, half // 6, budget).error, 0.0


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """The three laws (rows) of the sum of `users` scores, on the lattice `2^octave (start + 0, 1, ...)`."""

    users: int
    octave: int
    start: int
    masses: FloatArray
    error: float


@functools.lru_cache(maxsize=16)
def _sums(crowd: Opposite, fineness: int, budget: float) -> _Sums:
    one = _score(crowd, fineness)
    total = one
    for bit in bin(crowd.users)[3:]:
        total = _tidy(_added(total, total), fineness, budget)
        if bit == "1":
            total = _tidy(_added(total, one), fineness, budget)
    return total


def _score(crowd: Opposite, fineness: int) -> _Sums:
    """The laws of one score, less its mean `1 - t`, in units of the lattice."""
    r, t, n = 1.0 / crowd.ratio.scale, math.exp(crowd.loss), crowd.users
    square, linear, mean = math.exp(-2.0 * r**2), t * math.exp(-0.5 * r**2), 1.0 - t

    def score(z: FloatArray) -> FloatArray:
        v = np.exp(r * z)
        found: FloatArray = (square * v - linear) * v - mean
        return found

    z_low, z_high = -_SPAN, _SPAN + 2.0 * r
    deviation = math.sqrt(math.exp(4.0 * r**2) - 2.0 * t * math.exp(2.0 * r**2) + t**2 * math.exp(r**2) - mean**2)
    lowest = -(linear**2) / (4.0 * square) - mean
    # A single score beyond a dozen deviations of the sum says all there is to say.
    # 0, the score of a user who did not take part, is on the lattice in any case.
    highest = max(0.0, min(float(score(np.array(z_high))), 12.0 * math.sqrt(n) * deviation))
    step = max(deviation / fineness, (highest - lowest) / _LONGEST)
    first, last = math.floor(lowest / step), math.ceil(highest / step)
    edges = step * (np.arange(first, last) + 0.5)
    inside = np.sqrt(np.maximum(linear**2 + 4.0 * square * (edges + mean), 0.0))
    right = (linear + inside) / (2.0 * square)
    left = -2.0 * (edges + mean) / (linear + inside)
    cells = np.log(np.concatenate([right, left[left > 0.0]])) / r
    panels = np.linspace(z_low, z_high, math.ceil((z_high - z_low) * (z_high + 2.0 * r + 5.0)) + 1)
    cuts = np.unique(np.concatenate([panels, np.clip(cells, z_low, z_high)]))
    widths = np.diff(cuts)
    middle = cuts[:-1] + 0.5 * widths
    index = _cell(score(middle), step, first, last)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    z = cuts[:-1, None] + 0.5 * widths[:, None] * (nodes + 1.0)
    rows = []
    for place in (0.0, r, 2.0 * r):
        density = np.exp(-0.5 * (z - place) ** 2) / math.sqrt(2.0 * math.pi)
        row = np.bincount(index, 0.5 * widths * (density @ weights), last - first + 1)
        for end, mass in ((z_low, special.ndtr(z_low - place)), (z_high, special.ndtr(place - z_high))):
            row[_cell(score(np.array([end])), step, first, last)] += mass
        thinned = crowd.ratio.rate * row
        thinned[-first] += 1.0 - crowd.ratio.rate
        rows.append(thinned)
    return _Sums(users=1, octave=0, start=first, masses=np.stack(rows), error=1024.0 * _UNIT)


def _cell(scores: FloatArray, step: float, first: int, last: int) -> IntArray:
    index: IntArray = np.clip(np.rint(scores / step), first, last).astype(np.int64) - first
    return index


def _added(a: _Sums, b: _Sums) -> _Sums:
    """The sum of a and b, user 1 being in either in proportion to their sizes."""
    while b.octave < a.octave:
        b = _coarser(b)
    users = a.users + b.users
    rows = [np.convolve(a.masses[0], b.masses[0])]
    for k in (1, 2):
        moved = np.convolve(a.masses[k], b.masses[0])
        if a is not b:
            moved = (a.users * moved + b.users * np.convolve(a.masses[0], b.masses[k])) / users
        rows.append(moved)
    longest = min(a.masses.shape[1], b.masses.shape[1])
    return replace(
        a, users=users, start=a.start + b.start, masses=np.stack(rows),
        error=a.error + b.error + (longest + 8.0) * _UNIT,
    )  # fmt: skip


def _coarser(a: _Sums) -> _Sums:
    """Odd points are rounded to either neighbour at random."""
    lead = a.start % 2
    padded = np.pad(a.masses, ((0, 0), (lead, 1 - (a.masses.shape[1] + lead) % 2)))
    even, odd = padded[:, 0::2].copy(), padded[:, 1::2]
    even[:, :-1] += 0.5 * odd
    even[:, 1:] += 0.5 * odd
    return replace(a, octave=a.octave + 1, start=(a.start - lead) // 2, masses=even, error=a.error + 2.0 * _UNIT)


def _tidy(a: _Sums, fineness: int, budget: float) -> _Sums:
    """Sums at either end that hardly ever occur are clipped, and the lattice is made coarser if it is long."""
    most = a.masses.max(axis=0)
    low = int(np.searchsorted(np.cumsum(most), budget))
    high = len(most) - int(np.searchsorted(np.cumsum(most[::-1]), budget))
    masses = a.masses[:, low:high].copy()
    masses[:, 0] += a.masses[:, :low].sum(axis=1)
    masses[:, -1] += a.masses[:, high:].sum(axis=1)
    error = a.error + (a.masses.shape[1] - high + low) * _UNIT
    a = replace(a, start=a.start + low, masses=masses, error=error)
    while a.masses.shape[1] > 24 * fineness:
        a = _coarser(a)
    return a

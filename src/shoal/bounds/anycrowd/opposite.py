"""A bad crowd, from below: everybody else sits opposite to where user 1 goes.

User 1 holds 0 in D and x', |x'| = 1, in D'; all others hold -x'. Seen from the others, user 1 stands at distance a = 1
in D and a = 2 in D', alone either way: the crowd hides it less than one that stands where it comes from. No guarantee
for any crowd can be below what this one shows, and as users become many no crowd of one place shows more
(`docs/explanation/guarantee.md`), so its privacy, bounded from below, is the lower end of every interval that
claims to hold for any crowd.

Reports are looked at along x' only, in units of sigma and from the others' place. With r = 1 / sigma and
`w_a(z) = exp(a r z - a^2 r^2 / 2)` (1 for a user who did not take part), the ratio of the two laws is
`mean w_2 / mean w_1`, and the best test at threshold t asks whether the sum of the *scores* `w_2 - t w_1` is
positive: `delta(D' || D)(log t) = E[(mean of n independent w_2 - t w_1)+]`. Here an attacker does just that, with
its own roundings. It rounds every report to one of some thousand panels, takes the score of the panel's middle,
rounds it to one of the two nearest points of the grid of `grid`, by a coin that keeps the mean, and adds
scores up in pairs, pairs of pairs and so on, rounding again wherever the grid asks for it; large sums of hardly
any probability count as the last of the others. All of that is post-processing of what the server sees, the same
under D and D': the law of its final sum is a pair that bounds the privacy from below, in both directions and, round
by round, over any number of them. With t = e^eps it is the best test at eps, up to these roundings.

Two laws go through the sums of m scores: all of them from the crowd (the masses), and m times that of one of them,
drawn at random, coming from user 1 at a = 1 or 2 (the moments): the moment of a sum of two independent parts is
`mass * moment' + moment * mass'`.

*Errors.* All terms are positive, so masses and moments are within a factor `1 +- e`, where e adds up: 2^10 u,
u = 2^-53, for the quadrature of one report, and the longest sum of products for every convolution. Top masses are taken
too small and base masses too large by it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.grid import Cells, Share, convolved, deposit, in_order, rebased
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import UNIT, Direction, FloatArray, Side
from shoal.bounds.ratio import Ratio
from shoal.bounds.round import Identical, Round

_ATTACK_USERS_MAX = 10**7
"""Beyond it round-off would be felt."""

_SCALE_MIN = 0.3
"""Below it one report says nearly all there is to say, and scores spread over too many orders of magnitude."""

_SURE = 10**6
"""Up to so many users times rounds the round-off of an attack is not felt."""

_SPAN = 9.0
"""Reports are clipped to this many deviations beyond the places where users stand."""

_PANEL = 1.0 / 64.0
"""How wide the panels are, in deviations of a report."""

_LARGEST = 12.0
"""A report whose score makes the mean e^12 says all that there is to say."""

_REACH = 6.0
"""Level 0 reaches to between half and all of this many mean absolute deviations."""


class _Tosses:
    """Rounding by a coin that keeps the mean: all laws are shared alike."""

    def shares(self, offset: FloatArray | float, width: FloatArray | float) -> tuple[Share, Share]:
        right = offset / width
        left = 1.0 - right
        return Share(left, left, 0.0), Share(right, right, 0.0)

    def moment_of_sum(self, a: FloatArray, a_moment: FloatArray, b: FloatArray, b_moment: FloatArray) -> FloatArray:
        both: FloatArray = np.convolve(a, b_moment) + np.convolve(a_moment, b)
        return both


_RULE = _Tosses()


@dataclass(frozen=True, kw_only=True)
class Opposite(Round):
    """A round with `mean.users` reports of which one may be user 1's, everybody else opposite.

    `mean` is the round of the identical crowd; `loss` is log t of the scores.
    """

    mean: Identical
    loss: float = 0.0

    @property
    def ratio(self) -> Ratio:  # type: ignore[override]
        return self.mean.ratio

    @property
    def users(self) -> int:  # type: ignore[override]
        return self.mean.users

    @property
    def weight(self) -> float:  # type: ignore[override]
        return self.mean.weight

    @property
    def is_worth_computing(self) -> bool:
        """Whether the attack is worth computing."""
        return self.users <= _ATTACK_USERS_MAX and self.ratio.scale >= _SCALE_MIN

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        sums = _sums(self, half // 2, budget)
        crowd = in_order(sums.mass)
        one, two = (
            (1.0 - self.weight) * crowd + self.weight * in_order(moment) / self.users
            for moment in (sums.moment, sums.farther)
        )
        error = sums.error + 16.0 * UNIT
        base, top = (one, two) if direction == "forward" else (two, one)
        there = (base > 0.0) & (top > 0.0)
        sign = 1.0 if side == "upper" else -1.0
        # Where the base has underflowed, a bound from below forgets the mass, one from above puts it at infinity.
        lost = float(top[base <= 0.0].sum()) if side == "upper" else 0.0
        base, top = base[there] * (1.0 - sign * error), top[there] * (1.0 + sign * error)
        loss = np.log(top / base)
        order = np.argsort(loss)
        return Pair(side=side, loss=loss[order], base=base[order], top=top[order], infinite=lost)

    def limited(self) -> Opposite:
        # An attack is what it is: fewer users would make it better.
        return self

    def tuned(self, loss: float) -> Opposite:
        return replace(self, loss=loss)

    def dominates(self, other: Round, rounds: int) -> bool:
        # Of the same move it shows more than the identical crowd, but for its round-off with many users.
        return self.mean == other and self.users * rounds <= _SURE

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise ValueError("an attack has no Rényi divergence from above")

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return _sums(self, half // 2, budget).error, 0.0


@dataclass(frozen=True, kw_only=True)
class _Scores(Cells):
    """The sum of `count` scores, each less its mean 1 - t: moments are for user 1 in D, `farther` those in D'."""

    farther: FloatArray
    count: int
    error: float

    def far(self) -> Cells:
        return Cells(base=self.base, mass=self.mass, moment=self.farther)


@functools.lru_cache(maxsize=32)
def _sums(crowd: Opposite, half: int, budget: float) -> _Scores:
    """All scores of a round."""
    one = _score(crowd, half)
    total = one
    for bit in bin(crowd.users)[3:]:
        total = _tidy(_together(total, total), budget)
        if bit == "1":
            total = _tidy(_together(total, one), budget)
    return total


def _score(crowd: Opposite, half: int) -> _Scores:
    r, t, rate = 1.0 / crowd.ratio.scale, math.exp(crowd.loss), crowd.ratio.rate
    low, high = -_SPAN, _SPAN + 2.0 * r
    z, weight = quadrature.nodes(low, high, np.arange(low, high, _PANEL), 2.0 * r)
    middle = np.concatenate([z.reshape(-1, 6).mean(axis=1), [low, high]])
    # A test may score a report as it likes: that of a panel's middle for all of it, clipped where it says all.
    score = np.expm1(r * (2.0 * middle - 2.0 * r)) - t * np.expm1(r * (middle - 0.5 * r))
    score = np.append(np.minimum(score, crowd.users * math.exp(_LARGEST)), 0.0)
    rows = []
    # Where the crowd stands, where user 1 stands in D, and where in D', all seen from the crowd.
    for place in (0.0, r, 2.0 * r):
        inside = (weight * quadrature.normal_density(z - place)).reshape(-1, 6).sum(axis=1)
        # Clipped, not cut: what is beyond keeps its mass, so a test of it is still a test.
        ends = special.ndtr([low - place, place - high])
        rows.append(np.concatenate([rate * inside, rate * ends, [1.0 - rate]]))
    typical = float(rows[0] @ np.abs(score)) / rate
    base = math.floor(math.log2(_REACH * typical / half))
    # The attacker tosses a coin to round its score: all three laws are shared alike, so it can really be done.
    mass, near = deposit(_RULE, score, rows[0], rows[1], half, base)
    _, far = deposit(_RULE, score, rows[0], rows[2], half, base)
    return _Scores(base=base, mass=mass, moment=near, farther=far, count=1, error=1024.0 * UNIT)


def _rebase(a: _Scores, base: int) -> _Scores:
    if base <= a.base:
        return a
    mass, moment = rebased(_RULE, a, base)
    _, farther = rebased(_RULE, a.far(), base)
    error = a.error + 8.0 * (base - a.base) * UNIT
    return replace(a, base=base, mass=mass, moment=moment, farther=farther, error=error)


def _together(a: _Scores, b: _Scores) -> _Scores:
    # The coarser grid of the two: an attacker may round once more.
    if a is not b:
        a, b = _rebase(a, b.base), _rebase(b, a.base)
    mass, moment = convolved(_RULE, a, b)
    far = a.far()
    _, farther = convolved(_RULE, far, far if a is b else b.far())
    return _Scores(
        base=a.base, mass=mass, moment=moment, farther=farther, count=a.count + b.count,
        error=a.error + b.error + (max(a.longest, b.longest) + 32.0) * UNIT,
    )  # fmt: skip


def _tidy(a: _Scores, budget: float) -> _Scores:
    """Sums at either end that hardly ever occur are clipped, and level 0 is fitted to the rest."""
    points, every = in_order(a.points()), a.points()
    rows = [in_order(values) for values in (a.mass, a.moment, a.farther)]
    # Improbable for the crowd and for user 1 alike.
    most = np.maximum(rows[0], np.maximum(rows[1], rows[2]) / a.count)
    low = min(int(np.searchsorted(np.cumsum(most), budget)), len(most) - 1)
    high = max(len(most) - int(np.searchsorted(np.cumsum(most[::-1]), budget)), low + 1)
    clipped = []
    for values, row in zip((a.mass, a.moment, a.farther), rows, strict=True):
        kept = np.where((every < points[low]) | (every > points[high - 1]), 0.0, values)
        kept[every == points[low]] += float(row[:low].sum())
        kept[every == points[high - 1]] += float(row[high:].sum())
        clipped.append(kept)
    levels = max(int(np.flatnonzero(values.any(axis=1))[-1]) for values in clipped) + 1
    mass, moment, farther = (values[:levels] for values in clipped)
    error = a.error + 2.0 * (low + len(most) - high) * UNIT
    a = replace(a, mass=mass, moment=moment, farther=farther, error=error)
    size = np.abs(every[:levels])
    away = float(a.mass[size > 0.0].sum())
    return _rebase(a, math.floor(math.log2(_REACH * float((a.mass * size).sum()) / away / a.half)))

"""A bad crowd, from below: all other users sit opposite to the direction in which user 1 moves.

User 1 holds 0 in D and x', |x'| = 1, in D'; all others hold -x'. Seen from the others, user 1 stands at distance a = 1
in D and a = 2 in D', on its own in both cases, so this crowd hides it less than one that stands where it comes from. No
guarantee for any crowd can be below what this crowd reveals. With many users no crowd at a single place reveals more
(`docs/explanation/guarantee.md`). Its privacy, bounded from below, is therefore the lower end of every interval that
claims to hold for any crowd.

Reports are looked at along x' only, in units of sigma and from the others' place. With r = 1 / sigma and
`w_a(z) = exp(a r z - a^2 r^2 / 2)` (1 for a user who did not take part), the ratio of the two laws is
`mean w_2 / mean w_1`. The best test at threshold t asks whether the sum of the *scores* `w_2 - t w_1` is positive, and
`delta(D' || D)(log t) = E[(mean of n independent w_2 - t w_1)+]`. The attacker of this file runs that test with
roundings of its own. It rounds every report to one of some thousand panels, takes the score of the panel's middle and
rounds it to one of the two nearest points of the grid of `grid`, by a coin that keeps the mean. It adds scores up in
pairs, pairs of pairs and so on, and rounds again wherever the grid requires it. Very large sums of negligible
probability are replaced by the last point that is kept. All of this is post-processing of what the server sees, the
same under D and D': the law of the final sum is a pair that bounds privacy from below, in both directions and, round by
round, over any number of rounds. With t = e^eps it is the best test at eps, up to these roundings.

Two laws go through the sums of m scores. In one all scores come from the crowd (the masses); the other is m times the
law with one score, drawn at random, coming from user 1 at a = 1 or 2 (the moments). The moment of a sum of two
independent parts is `mass * moment' + moment * mass'`.

*Errors.* All terms are positive, so masses and moments are within a factor `1 +- e`. The e add up: 2^10 u, u = 2^-53,
for the quadrature of one report, and the longest sum of products for every convolution. Top masses are made smaller and
base masses larger by it.

*Many users.* e grows with the users n. A distance does not: let one operation make the masses of sums of m scores, each
off by a factor in `1 +- e`. Scaled to mass 1 the computed law p' has `KL(p || p') <= e^2`, up to second order, so
that n / m independent copies of it are within `e sqrt(n / (2 m))` in total variation (Pinsker); the one copy that holds
user 1's score is within 2 e. (If only masses of a part P are off by it, e counts as e sqrt(P).) Added up over all
operations this is a *distance* h of the computed laws from the exact ones, and `delta(eps)` is at least the computed
one less `(1 + e^eps) h`: `OppositeMany`, for eps up to `epsilon_max`.

*Few senders.* In check-in the server sees the number k of reports, and one of which 1 in n / k is user 1's: a mixture
of fixed sizes k among n, with the masses of Bin(n, rate). The law of k is that of D and of D'. `OppositeSizes` looks
at k first, so that e grows with k and not with n. An attacker may drop reports: k counts as the smallest of a block.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.grid import KEEP_MEAN, Cells, base_for, convolved, deposit, in_order, rebased, without_empty_levels
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import ROUNDED_UP, UNIT, Direction, FloatArray, Side
from shoal.bounds.powering import power
from shoal.bounds.ratio import Ratio
from shoal.bounds.round import Identical, Round

_ATTACK_USERS_MAX = 10**8
"""Beyond this number of users round-off as a factor leaves nothing."""

_DISTANCE_USERS_MIN, _DISTANCE_USERS_MAX = 10**7, 10**9
"""Above the first number of users a distance may be the smaller charge; beyond the second it is too large as well."""

_MANY_EPSILON_MAX = 0.1
"""The largest eps for which the distance is charged: with so many users all are below it."""

_SIZES_USERS_MIN, _SIZES_SENDERS_MAX = 10**4, 256.0
"""Users from which round-off matters over many rounds, and senders up to which their number is looked at."""

_SIZES_TAIL = 1e-25
"""Numbers of reports beyond which less than this is left count as the last one before."""

_CHANCE_ERROR = 1e-12
"""Relative error of the chances of numbers of reports."""

_BLOCK_PART = 16
"""A block of numbers of reports is at most this part of them wide."""

_ATTACK_SIGMA_MIN = 0.3
"""Below this scale one report reveals nearly everything, and scores spread over too many orders of magnitude."""

_DOMINANT_USERS_TIMES_ROUNDS_MAX = 10**6
"""Up to this product of users and rounds the round-off of the attack is negligible."""

_REPORT_REACH = 9.0
"""Reports are clipped this many standard deviations beyond the places where users stand."""

_PANEL_WIDTH = 1.0 / 64.0
"""Width of the panels, in standard deviations of a report."""

_LOG_MEAN_SCORE_MAX = 12.0
"""A report whose score makes the mean e^12 already decides the test; larger scores are clipped."""


@dataclass(frozen=True, kw_only=True)
class Opposite(Round):
    """The attack on a round in which all users but user 1 sit opposite to its move.

    `mean` is the same round among an identical crowd; `loss` is log t of the scores.
    """

    mean: Identical
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
    def is_worth_computing(self) -> bool:
        """Whether the attack is worth computing."""
        return self.users <= _ATTACK_USERS_MAX and self.ratio.scale >= _ATTACK_SIGMA_MIN

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        scores = _score_sums(self, half // 2, budget)
        crowd, *moved = in_order(scores.rows[:, 0])
        before, after = ((1.0 - self.weight) * crowd + self.weight * moment / self.users for moment in moved)
        error = scores.relative + 16.0 * UNIT
        base, top = (before, after) if direction == "forward" else (after, before)
        positive = (base > 0.0) & (top > 0.0)
        sign = 1.0 if side == "upper" else -1.0
        # Where the base has underflowed, a lower bound drops the mass and an upper bound puts it at infinity.
        lost = float(top[base <= 0.0].sum()) if side == "upper" else 0.0
        base, top = base[positive] * (1.0 - sign * error), top[positive] * (1.0 + sign * error)
        loss = np.log(top / base)
        order = np.argsort(loss)
        return Pair(side=side, loss=loss[order], base=base[order], top=top[order], infinite=lost)

    def limited(self) -> Opposite:
        # Fewer users would make the attack stronger than it is, so nothing may be limited.
        return self

    def tuned(self, loss: float) -> Opposite:
        return replace(self, loss=loss)

    def dominates(self, round_: Round, rounds: int) -> bool:
        # For the same move it reveals more than the identical crowd does, except for its round-off with many users.
        return self.mean == round_ and self.users * rounds <= _DOMINANT_USERS_TIMES_ROUNDS_MAX

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise ValueError("an attack has no upper bound on Rényi divergences")

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return _score_sums(self, half // 2, budget).relative, 0.0


@dataclass(frozen=True, kw_only=True)
class OppositeMany(Opposite):
    """The same attack among so many users that a distance is the smaller charge for round-off."""

    epsilon_max: ClassVar[float] = _MANY_EPSILON_MAX

    @property
    def is_worth_computing(self) -> bool:
        return _DISTANCE_USERS_MIN < self.users <= _DISTANCE_USERS_MAX and self.ratio.scale >= _ATTACK_SIGMA_MIN

    def _sums(self, half: int, budget: float) -> _Scores:
        return _score_sums(Opposite(mean=self.mean, loss=self.loss), half // 2, budget)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        scores = self._sums(half, budget)
        crowd, *moved = (row / row.sum() for row in in_order(scores.rows[:, 0]))
        before, after = ((1.0 - self.weight) * crowd + self.weight * row for row in moved)
        base, top = (before, after) if direction == "forward" else (after, before)
        positive = (base > 0.0) & (top > 0.0)
        sign = 1.0 if side == "upper" else -1.0
        lost = float(top[base <= 0.0].sum()) if side == "upper" else 0.0
        base, top = base[positive] * (1.0 - sign * 64.0 * UNIT), top[positive] * (1.0 + sign * 64.0 * UNIT)
        loss = np.log(top / base)
        order = np.argsort(loss)
        charge = (1.0 + math.exp(self.epsilon_max)) * scores.distance
        return Pair(side=side, loss=loss[order], base=base[order], top=top[order], infinite=lost + sign * charge)

    def dominates(self, round_: Round, rounds: int) -> bool:
        return False

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 64.0 * UNIT, self._sums(half, budget).distance


@dataclass(frozen=True, kw_only=True)
class OppositeSizes(Opposite):
    """The same attack on check-in with few senders, whose number is looked at first."""

    @property
    def is_worth_computing(self) -> bool:
        return (
            self.users >= _SIZES_USERS_MIN
            and self.ratio.rate < 1.0
            and self.users * self.ratio.rate <= _SIZES_SENDERS_MAX
            and self.ratio.scale >= _ATTACK_SIGMA_MIN
        )

    def sizes(self) -> list[tuple[Opposite, float]]:
        """Attacks on fixed sizes with their chances, each a block of numbers of reports."""
        counts, chances = _sender_chances(self.users, self.ratio.rate)
        starts = [0]
        while starts[-1] < counts[-1]:
            starts.append(starts[-1] + max(1, starts[-1] // _BLOCK_PART))
        first = np.searchsorted(starts, counts, side="right") - 1
        sums = np.bincount(first, chances)
        ratio = self.ratio.at_rate(1.0)
        return [
            (
                Opposite(mean=Identical(ratio=ratio, users=max(start, 1), weight=start / self.users), loss=self.loss),
                float(chance),
            )
            for start, chance in zip(starts, sums.tolist(), strict=False)
            if chance > 0.0
        ]

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        sign = 1.0 if side == "upper" else -1.0
        loss, base, top, lost = [], [], [], 0.0
        for attack, chance in self.sizes():
            one = attack.pair(half, budget, side, direction)
            loss.append(one.loss)
            base.append(one.base * (chance * (1.0 - sign * _CHANCE_ERROR)))
            top.append(one.top * (chance * (1.0 + sign * _CHANCE_ERROR)))
            lost += chance * one.infinite
        losses = np.concatenate(loss)
        order = np.argsort(losses)
        return Pair(
            side=side,
            loss=losses[order],
            base=np.concatenate(base)[order],
            top=np.concatenate(top)[order],
            infinite=lost,
        )

    def dominates(self, round_: Round, rounds: int) -> bool:
        return False

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return max(attack.test_error(half, budget)[0] for attack, _ in self.sizes()) + _CHANCE_ERROR, 0.0


def _sender_chances(users: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Numbers of reports and their chances, known to `_CHANCE_ERROR`; what is beyond the last is added to it."""
    counts = np.arange(float(min(users, math.ceil(4.0 * users * rate + 128.0)) + 1))
    steps = (users - counts[:-1]) / (counts[1:]) * (rate / (1.0 - rate))
    # From no report on: each step is some roundings, the first one some of its exponent, which is small.
    chances = math.exp(users * math.log1p(-rate)) * np.append(1.0, np.cumprod(steps))
    beyond = np.cumsum(chances[::-1])[::-1]
    used = beyond > _SIZES_TAIL
    return counts[used], chances[used]


@dataclass(frozen=True, kw_only=True)
class _Scores(Cells):
    """The sum of `count` scores, each less its mean 1 - t; its channels are for user 1 in D and in D'.

    All operations so far are off by the sum of `e / sqrt(2 m)`, `crowd_error`, and by the sum of 2 e, `own_error`.
    """

    count: int
    crowd_error: float = 0.0
    own_error: float = 0.0

    def off_by(self, error: float) -> _Scores:
        """The same sum after an operation that made its masses with this relative error."""
        crowd_error = self.crowd_error + error / math.sqrt(2.0 * self.count)
        return replace(self, crowd_error=crowd_error, own_error=self.own_error + 2.0 * error)

    @property
    def distance(self) -> float:
        """The distance of the laws, scaled to mass 1, from the exact ones."""
        return (math.sqrt(self.count) * self.crowd_error + self.own_error) * ROUNDED_UP


@functools.lru_cache(maxsize=32)
def _score_sums(crowd: Opposite, half: int, budget: float) -> _Scores:
    """Law of the sum of all scores of a round."""

    def add(a: _Scores, b: _Scores) -> _Scores:
        return _clipped_scores(_score_sum(a, b), budget)

    return power(_score_of_report(crowd, half), crowd.users, add)


def _score_of_report(crowd: Opposite, half: int) -> _Scores:
    """Law of the score of one report."""
    r, t, rate = 1.0 / crowd.ratio.scale, math.exp(crowd.loss), crowd.ratio.rate
    low, high = -_REPORT_REACH, _REPORT_REACH + 2.0 * r
    z, weight = quadrature.nodes(low, high, np.arange(low, high, _PANEL_WIDTH), 2.0 * r)
    middle = np.concatenate([z.reshape(-1, 6).mean(axis=1), [low, high]])
    # A test may score reports as it likes: a whole panel counts as its middle, and large scores are clipped.
    score = np.expm1(r * (2.0 * middle - 2.0 * r)) - t * np.expm1(r * (middle - 0.5 * r))
    score = np.append(np.minimum(score, crowd.users * math.exp(_LOG_MEAN_SCORE_MAX)), 0.0)
    rows = []
    # The places of the crowd, of user 1 in D and of user 1 in D', all seen from the crowd.
    for place in (0.0, r, 2.0 * r):
        inside = (weight * quadrature.normal_density(z - place)).reshape(-1, 6).sum(axis=1)
        # Clipped, not cut: reports beyond the ends keep their mass, so this is still a test.
        ends = special.ndtr([low - place, place - high])
        rows.append(np.concatenate([rate * inside, rate * ends, [1.0 - rate]]))
    typical = float(rows[0] @ np.abs(score)) / rate
    base = base_for(typical, half)
    # The attacker tosses a coin to round its score. All three laws are shared alike, so this attack can be carried out.
    rows_on_grid, error = deposit(KEEP_MEAN, score, rows, half, base)
    relative = max(2.0 * error, 1024.0 * UNIT)
    return _Scores(
        rule=KEEP_MEAN,
        base=base,
        rows=rows_on_grid,
        count=1,
        relative=relative,
        crowd_error=relative / math.sqrt(2.0),
        own_error=2.0 * relative,
    )


def _score_sum(a: _Scores, b: _Scores) -> _Scores:
    """Law of the sum of two independent sums of scores."""
    before = a.relative + b.relative
    # On the coarser grid of the two: an attacker may round once more.
    if a is not b:
        a, b = rebased(a, b.base), rebased(b, a.base)
    rows, relative = convolved(a, b)
    total = _Scores(
        rule=a.rule,
        base=a.base,
        rows=rows,
        count=a.count + b.count,
        relative=relative,
        # Each smaller block of users is in both parts or in one of them: its operation is counted once.
        crowd_error=max(a.crowd_error, b.crowd_error),
        own_error=max(a.own_error, b.own_error),
    )
    # A difference of sums that are much larger than it is rounded up.
    return total.off_by(relative - before + 8.0 * UNIT * relative)


def _clipped_scores(a: _Scores, budget: float) -> _Scores:
    """The sum without improbable values at either end, with level 0 fitted to the rest."""
    points = a.points()
    ordered, rows = in_order(points), in_order(a.rows[:, 0])
    # A value is clipped only if it is improbable for the crowd and for user 1 alike.
    largest = np.maximum(rows[0], rows[1:].max(axis=0) / a.count)
    low = min(int(np.searchsorted(np.cumsum(largest), budget)), len(largest) - 1)
    high = max(len(largest) - int(np.searchsorted(np.cumsum(largest[::-1]), budget)), low + 1)
    clipped = np.where((points < ordered[low]) | (points > ordered[high - 1]), 0.0, a.rows)
    for cells, row in zip(clipped[:, 0], rows, strict=True):
        cells[points == ordered[low]] += float(row[:low].sum())
        cells[points == ordered[high - 1]] += float(row[high:].sum())
    error = 2.0 * (low + len(largest) - high) * UNIT
    # Only the masses of the two ends are off by it, which matters in a distance as the root of what they hold.
    ends = float(np.max((rows[:, : low + 1].sum(axis=1) + rows[:, high - 1 :].sum(axis=1)) / rows.sum(axis=1)))
    a = replace(a, rows=without_empty_levels(clipped), relative=a.relative + error)
    a = a.off_by(error * math.sqrt(min(ends, 1.0)))
    size = np.abs(a.points())
    # The mean absolute value, given that the sum is not 0, fixes the width of the cells.
    typical = float((a.mass * size).sum()) / float(a.mass[size > 0.0].sum())
    coarse = rebased(a, base_for(typical, a.half))
    return coarse.off_by(coarse.relative - a.relative + 8.0 * UNIT * a.relative)

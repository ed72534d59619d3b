"""The law of the mean ratio S of a round, from above and from below in the convex order.

A hockey stick `E[(S - e^eps)+]` or `E[(1 - e^eps S)+]` is the mean of a convex function of S, so a
law above that of S in the convex order bounds it from above, and a law below it from below. Both come
from one calculation, on cells that carry a mass p and a first moment q about their lattice point x:

- *from above*: the mass p sits at x. An atom between two lattice points is shared between them so that
  its mean stays: a mean-preserving spread.
- *from below*: the mass p sits at x + q/p, the mean of everything merged into the cell: a
  mean-preserving contraction.

Both orders survive sums of independent terms, so the sum X of n ratios is made by doubling,
`X_2m = X_m + X_m'` and `X_m+1 = X_m + V`, in log2(n) convolutions of masses and of moments. Every
mass is a sum of positive products: nothing cancels, and far tails keep their relative accuracy.

*The grid* is that of `grid`, y = X - centre. The centre is 0 while S spreads over orders of
magnitude (the resolution is then relative to X), and m once X_m is concentrated (the resolution is then
relative to X_m - m).

*Errors.* Write u = 2^-53 and L for the longest sum of products.

1. Cut tails. The outermost cells of negligible mass are moved to the end of the grid (clipped).
   The event that a cut happened has Q-mass `cut_q` and P-mass `cut_p`; by exchangeability the
   sum of a and b ratios has `cut_q = cut_q(a) + cut_q(b)` and
   `cut_p = (a (cut_p(a) + cut_q(b)) + b (cut_p(b) + cut_q(a))) / (a + b)`: the report that carries
   the change is cut, or one of the others. These masses are added to delta (subtracted, from below).
2. Round-off of masses. Computed masses are within a factor `1 +- e` of the exact convolution,
   e = (L + 16) u. For few users the factor is carried along (`mass_error`, e times the number of
   sums). For many users it would be multiplied by n and by the number of rounds; instead a lemma turns it
   into a stretch:

   *Lemma.* A and B put masses p_i and p_i (1 + e_i), |e_i| <= e < 1/10, on the same points, both
   have mass 1. Then B - E[B] is below (1 + 4e)(A - E[A]) in the convex order. *Proof.* Let
   v = x - E[A], d = E[A] - E[B] <= e E|v|, k >= 0. `E[((1+4e)v - k)+] - (1+e) E[(v + d - k)+] >=
   P(v > k-d) (3e E[v | v > k-d] + e k - (1+e) d)`, and E[v | v > k-d] >= E[v | v > -d] >=
   E|v|/2 - d, so that this is >= 0: calls above the mean are ordered, puts below it by symmetry,
   and the means agree. (B from above; A and B change places from below.)

   Scaling both to mass 1 doubles e, so the law of the exact sum is bounded by the computed one,
   centred at its own mean and stretched by 1 + 8e for each convolution, however many users there
   are (`stretch`).
3. Clipping and then centring is a contraction (x -> clip(x) + const grows more slowly than x, so
   it crosses x once), which is safe from below; from above it moves the other points by at most the
   moment that was cut (`shift`).
4. Round-off of the cells' means q/p moves the points of the law from below. The contribution of the atoms y_1 and
   y_2 of a sum to p and q is rounded by at most L u times itself, so a mean is off by at most the average of
   `e spacing` over the pairs in the cell, where e is 2 L u times the largest offset in spacings, for q and
   as much again for p, and the spacing of a pair is at most `h + 2 (|y_1| + |y_2|) / N`. Few users: both are
   carried, as `blur S` (`blur (1 + S)` once centred) and `jitter`. Many users: another lemma.

   *Lemma.* A = A_1 + A_2 is a sum of independent terms, v = A - E[A] = v_1 + v_2, and its cells' means are off
   by the average over the cell of at most `r (|v_1| + |v_2|) + a`, and by nothing where all reports are
   exactly 1 (then v = 0), which has probability 1 - m. Then these means, centred, are below (1 + c) v in
   the convex order for `c = 12 (r + a m / E|v|)`, if c < 1/10.
   *Proof.* Share each cell's error among its pairs: the means are a contraction of B, which has the masses
   of A and points v + g with |g| <= r (|v_1| + |v_2|) + a. `|d| = |E[g]| <= 2 r E|v| + a m`, as
   E|v_i| <= E|v| (Jensen). For k >= 0 a call of B - E[B] is at most the call of `v + |g| + |d|`; let H be the
   event that this is above k, which rises with v_1 and with v_2 (r < 1). The call of (1 + c) v is larger by at
   least `c E[v; H] - E[|g|; H] - |d| P(H)`. On H `|v_1| + |v_2| <= v + 2 v_1^- + 2 v_2^-`, and as v_i^-
   falls where H rises (Harris), `E[v_i^-; H] <= P(H) E|v|/2`, so that
   `E[|g|; H] <= r E[v; H] + 2 r E|v| P(H) + a P(H and moved)`. If H contains the points that have not moved,
   it contains all v > 0: E[v; H] = E|v|/2, P(H) <= 1, and c = 9 r + 4 a m / E|v| is enough. If not, H is an upper
   part of the moved points, `E[v; H] >= P(H) E|v| / (2 m)`, and the same c is enough. The rest of c is for points
   with -|g| - |d| < v < 0 in H, which is of second order. Puts by symmetry.
5. Positions of nodes are off by `rho W`, rho = 2u (2 + |log W|), because of the exponential. Few users:
   S is off by at most `rho S` (`rho (1 + S)` once centred), `nodes`, and both sides move
   by it. Many users: the lemma of 4 for one report. A grid has its centre at 0 only for s < 12, where E|v| of
   a report that takes part is above 0.06, so that c = 200 rho is enough; for a centre at 1 errors are
   relative to v and c = 10 rho is enough. The charge is the stretch of a mass error of `8 N rho`, N >= 64:
   64 N rho. Moving the grid from one centre to another is exact to 2u times their distance, which is
   added to `jitter`, and 8u of the rest.
6. A spread may reach below S = 0. Forward, where S counts above e^eps only, such a point may as well be
   at 0. In reverse it counts `1 + e^eps |S|`: there is base mass below 0, E[max(-S, 0)] of it. As much is taken from
   the atoms next to 0, which go to an infinite loss. Delta stays the same at all eps at which the best test holds more
   base mass than that; at all others it is the delta at the last of them, and the true one is no larger.
7. The ratio of one report enters as the nodes of 6-point Gauss-Legendre rules on panels that do
   not cross lattice points and are at most 1/(z + 1/s + 5) wide, where the remainder
   `f^(12) w^13 (6!)^4 / (13 (12!)^3)` is below 1e-15 of the integral (the 12th derivative of
   `exp(-z^2/2 + z/s)` is at most (|z| + 1/s + 2.2)^12 times it).
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from shoal.bounds.grid import Cells, Share, base_for, convolved, deposit, lattice_points, rebased, without_empty_levels
from shoal.bounds.numeric import ROUNDED_UP, SIDES, UNIT, Direction, FloatArray, Side
from shoal.bounds.powering import powers
from shoal.bounds.ratio import MeanRatio, Ratio

_FACTOR_USERS_MAX = 64
"""Up to this many users round-off is carried as a factor on the masses, beyond as a stretch.

If the ratio is extreme and the sum not centred it is a factor for any number of users.
"""

_CONCENTRATED = 0.15
"""X_m is centred at m once its typical distance from m is below this part of m."""

_SMALL_RATIO = 0.3
"""Ratios below this part of their mean count as small: while there are any, the grid stays relative to 0."""

_TYPICAL_DISTANCE = 0.06
"""The E|v| that error 5 assumes, v the distance from 1 of a report that takes part."""

_STRETCH_MAX = 0.1
"""Both lemmas are proved for stretches below this."""


class _MomentRule:
    """The sharing rule that keeps the mean; the moment is the first one, about the lattice point."""

    def shares(self, offset: FloatArray | float, width: FloatArray | float) -> tuple[Share, Share]:
        right = offset / width
        left = 1.0 - right
        return Share(left, left, left * offset), Share(right, right, right * (offset - width))

    def moment_of_sum(self, a: FloatArray, a_moment: FloatArray, b: FloatArray, b_moment: FloatArray) -> FloatArray:
        return np.convolve(a, b_moment) + np.convolve(a_moment, b)


_MOMENT_RULE = _MomentRule()


@dataclass(frozen=True, kw_only=True)
class _Sum(Cells):
    """The sum X of `users` ratios, y = X - centre, with the errors that the head of this file lists.

    The ledger `relative` is `mass_error` there.

    Up to `factor_users_max` users round-off of masses is a factor.
    """

    users: int
    factor_users_max: int
    rate: float
    centre: float
    cut_q: float = 0.0
    cut_p: float = 0.0
    shift: float = 0.0
    stretch: float = 0.0
    nodes: float = 0.0
    blur: float = 0.0
    jitter: float = 0.0


def _single_report(ratio: Ratio, half: int, users: int, budget: float) -> _Sum:
    """The thinned ratio of one report, cut where `users` of them cost less than the budget."""
    rate = ratio.rate
    # error 1: cut Q-mass is charged for every user, cut P-mass only for the one who carries the change.
    z_low, z_high = ratio.reach(budget / users, budget)
    ends = np.array([z_low, z_high])
    w_low, w_high = (math.exp(log) for log in ratio.log_at(ends).tolist())
    centre = 1.0 if w_low > _SMALL_RATIO else 0.0
    # About 0 the finest level reaches just beyond the smallest ratio; above it cells grow with the ratio.
    base = base_for(ratio.deviation, half) if centre else math.floor(math.log2(2.0 * w_low / half))
    # error 7: no node stands for reports on both sides of a lattice point, where sharing has a kink.
    z, inside = ratio.atoms(z_low, z_high, lattice_points(half, base, w_low, w_high, centre))
    exponents = ratio.log_at(np.concatenate([z, ends]))
    y = np.expm1(exponents) if centre else np.exp(exponents)
    # Both tails become atoms at the ends, so that the law has all of its mass; they are charged (error 1).
    beyond, beyond_p = ratio.beyond(z_low, z_high)
    masses = np.concatenate([inside, rate * beyond])
    # error 5: the charge suffices where a report that takes part is typically far enough from 1; else it is raised.
    distance = float(masses @ np.abs(np.expm1(exponents))) / rate
    closeness = 1.0 if centre else max(1.0, _TYPICAL_DISTANCE / distance)
    if rate < 1.0:
        y, masses = np.append(y, 1.0 - centre), np.append(masses, 1.0 - rate)
    rows, error = deposit(_MOMENT_RULE, y, [masses, np.zeros_like(masses)], half, base)
    return _Sum(
        users=1,
        factor_users_max=sys.maxsize if ratio.is_extreme else _FACTOR_USERS_MAX,
        rate=rate,
        centre=centre,
        rule=_MOMENT_RULE,
        base=base,
        rows=rows,
        cut_q=rate * float(beyond.sum()) * ROUNDED_UP,
        cut_p=rate * float(beyond_p.sum()) * ROUNDED_UP,
        shift=rate * float(beyond_p.sum() + beyond.sum()) * ROUNDED_UP,
        # error 2, for the density, the rule of error 7 and the sums of nodes in a cell
        relative=max(2.0 * error, 1024.0 * UNIT),
        nodes=64.0 * (1.0 + float(np.abs(exponents).max())) * UNIT * closeness,
    )


def _from_end(a: _Sum, values: FloatArray, end: Literal["top", "bottom"]) -> FloatArray:
    """The cells from one end of the grid inwards, as one array (a copy)."""
    half = a.half
    # About 0 nothing lies below the centre, which is itself the lowest cell.
    if end == "top":
        return values[::-1, :half:-1].ravel()
    if a.centre:
        return values[::-1, :half].ravel()
    return np.concatenate([values[0, half : half + 1], values[:, half + 1 :].ravel()])


def _put_back(a: _Sum, values: FloatArray, end: Literal["top", "bottom"], row: FloatArray) -> None:
    """Write an array made by `_from_end` back."""
    half, levels = a.half, len(values)
    if end == "top":
        values[::-1, :half:-1] = row.reshape(levels, half)
    elif a.centre:
        values[::-1, :half] = row.reshape(levels, half)
    else:
        values[0, half] = row[0]
        values[:, half + 1 :] = row[1:].reshape(levels, half)


def _clipped_sum(a: _Sum, users: int, allowance: float) -> _Sum:
    """The sum whose outermost cells, as far as their cost at `users` users allows, are moved inwards.

    The moved mass d costs `d users / m` of Q-mass in the end, and `E[X/m]` of it in P-mass.
    """
    rows = a.rows.copy()
    mass, moment = rows[:, 0]
    points = a.points()
    cut_q, cut_p, shift = a.cut_q, a.cut_p, a.shift
    for end in ("top", "bottom"):
        p, q, y = (_from_end(a, values, end) for values in (mass, moment, points))
        size = np.maximum(p * (a.centre + y) + q, 0.0) / a.users
        # error 1, as it will stand once all users have been added up.
        cost = np.cumsum(p * (users / a.users) + size)
        number = int(np.searchsorted(cost, allowance))
        if number == 0:
            continue
        # The moved mass is added to an occupied cell: an empty one has no mean.
        number += int(np.argmax(p[number:] > 0.0))
        moved = float(p[:number].sum())
        cut_q += moved * ROUNDED_UP  # error 1
        cut_p += float(size[:number].sum()) * ROUNDED_UP
        # error 3: the moment about the new place, and the distance of the cells' means from their points.
        shift += float((p[:number] * np.abs(y[:number] - y[number]) + np.abs(q[:number])).sum()) * ROUNDED_UP
        p[:number] = 0.0
        q[:number] = 0.0
        p[number] += moved
        _put_back(a, mass, end, p)
        _put_back(a, moment, end, q)
    return replace(a, rows=without_empty_levels(rows), cut_q=cut_q, cut_p=cut_p, shift=shift)


def _recentred(a: _Sum, centre: float, base: int) -> _Sum:
    """The sum on the grid of another centre."""
    if a.centre == centre:
        return rebased(a, base)
    occupied = a.mass > 0.0
    y = a.points()[occupied] + (a.centre - centre)
    rows, error = deposit(a.rule, y, [a.mass[occupied], a.moment[occupied]], a.half, base)
    # error 2: a new cell adds up many old ones; error 5: the move.
    return replace(
        a,
        centre=centre,
        base=base,
        rows=rows,
        relative=a.relative + error,
        nodes=a.nodes + 8.0 * UNIT,
        jitter=a.jitter + 2.0 * UNIT * abs(a.centre - centre),
    )


def _fitted(a: _Sum) -> _Sum:
    """The sum with centre and level 0 chosen for its present shape."""
    occupied = a.mass > 0.0
    mass, gap = a.mass[occupied], a.points()[occupied] + (a.centre - a.users)
    # Where reports are rare, X is mostly exactly the number of users, which needs no resolution.
    off_centre = gap != 0.0
    deviation = float((mass * np.abs(gap))[off_centre].sum() / mass[off_centre].sum())
    if not a.centre:
        # The grid stays relative to X while X is concentrated but still has small values.
        lowest = float(gap.min()) / a.users + 1.0
        if deviation > _CONCENTRATED * a.users and lowest < _SMALL_RATIO:
            # Levels that clipping has emptied are dropped; the others keep their relative resolution.
            smallest = float(a.points()[occupied].min())
            return rebased(a, math.floor(math.log2(2.0 * smallest / a.half))) if smallest > 0.0 else a
    return _recentred(a, float(a.users), base_for(deviation, a.half))


def _sum_of_two(a: _Sum, b: _Sum) -> _Sum:
    """The sum of two independent sums (b may be a itself: an independent copy)."""
    if a is not b:
        b = _recentred(b, float(b.users) if a.centre else 0.0, a.base)
    users = a.users + b.users
    # errors 2 and 4: as a factor the charge would grow with the number of users, as a stretch it does not.
    uses_stretch = users > (_FACTOR_USERS_MAX if a.centre else a.factor_users_max)
    if uses_stretch:
        a, b = (_as_stretch(a),) * 2 if a is b else (_as_stretch(a), _as_stretch(b))
    longest = max(a.longest, b.longest)
    offset = max(x.largest_offset(in_spacings=True) for x in (a, b)) + 1.0
    rows, relative_error = convolved(a, b)
    # error 4: a mean is off by a part of the spacing, which is relative to |y| above level 0, absolute in level 0.
    error = 4.0 * longest * UNIT * offset
    relative = 2.0 * error / a.half
    # error 1: the report that carries the change is in a or in b, in proportion to their users.
    total = _Sum(
        users=users,
        factor_users_max=a.factor_users_max,
        rate=a.rate,
        centre=a.centre + b.centre,
        rule=a.rule,
        base=a.base,
        rows=rows,
        relative=relative_error,
        cut_q=a.cut_q + b.cut_q,
        cut_p=(a.users * (a.cut_p + b.cut_q) + b.users * (b.cut_p + a.cut_q)) / users,
        shift=a.shift + b.shift,
        stretch=max(a.stretch, b.stretch),
        nodes=max(a.nodes, b.nodes),
        blur=max(a.blur, b.blur),
        jitter=a.jitter + b.jitter + error * math.ldexp(1.0, a.base),
    )
    if uses_stretch:
        return _as_stretch(total, relative)
    widest = math.ldexp(1.0, a.base + max(a.levels, b.levels))
    if a.half * widest < 2.0 * users:
        # error 4: on a short grid the error relative above level 0 is charged by its widest spacing.
        return replace(total, jitter=total.jitter + 2.0 * error * widest)
    # error 4: |y_1| + |y_2| <= X + 2 users, at most three times X + users, to which blur is relative.
    return replace(total, blur=total.blur + 3.0 * relative)


def _as_stretch(a: _Sum, relative: float = 0.0) -> _Sum:
    """The sum with all round-off as a stretch.

    `relative` is the part of |y_1| + |y_2| by which the last sum moved means.
    """
    gap = a.centre - a.users
    # E|v| and m of the lemma of error 4: without a coin, or about 0, every ratio counts as moved.
    distance = float(np.abs(a.mass * (a.points() + gap) + a.moment).sum())
    moved = 1.0 if a.centre == 0.0 or a.rate == 1.0 else -math.expm1(a.users * math.log1p(-a.rate))
    # blur is relative to X + users
    slope, level = relative + a.blur, relative * abs(gap) + 2.0 * a.blur * a.users + a.jitter
    # error 5 is a stretch that all sums share: it is charged once, however many there are.
    stretch = _total_stretch(max(a.stretch, 4.0 * a.half * a.nodes), a.relative)
    stretch += 12.0 * (slope + level * moved / distance) * (1.0 + stretch)
    if not stretch < _STRETCH_MAX:
        raise ArithmeticError(
            f"round-off of {stretch} for {a.users} users at rate {a.rate}: please report this as a bug"
        )
    return replace(a, relative=0.0, stretch=stretch, blur=0.0, jitter=0.0)


def _total_stretch(stretch: float, mass_error: float) -> float:
    """The stretch after adding a relative error of the masses, by the lemma of error 2."""
    # Stretches multiply; the millionth covers their rounding and terms of second order.
    return stretch + 8.0 * mass_error * (1.0 + stretch) * (1.0 + 1e-6)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair of measures on common atoms, with the losses `log(top / base)` in increasing order.

    `delta(eps) <= sum (top - e^eps base)+ + infinite` on the side "upper", and `>=` on the side
    "lower" (where `infinite` is negative or 0). In the direction "forward" base is Q and top is P.
    """

    side: Side
    loss: FloatArray
    base: FloatArray
    top: FloatArray
    infinite: float


@dataclass(frozen=True, kw_only=True)
class MeanLaw:
    """The law of S of one round, from above and from below: `mass` at e^loss.

    `absolute` says that the losses came from S - 1 rather than from S, and are rounded accordingly. `below` is
    `E[max(-S, 0)]` of the law from above, whose points below 0 were moved to 0. The other fields are the errors
    listed at the head of this file.
    """

    loss: dict[Side, FloatArray]
    mass: FloatArray
    cut: dict[Direction, float]
    shift: float
    nodes: float
    blur: float
    jitter: float
    centred: bool
    stretch: float
    mass_error: float
    absolute: bool
    below: float = 0.0

    def log_ratio(self, side: Side, direction: Direction) -> FloatArray:
        """log S of every atom on one side, moved by the largest error of its position.

        Args:
            side: the side that is bounded.
            direction: D(P||Q) or D(Q||P).

        Returns:
            The losses in the order of the atoms; -infinity for S = 0.
        """
        sign = 1.0 if side == "upper" else -1.0
        towards = sign if direction == "forward" else -sign
        loss = self.loss[side]
        ratio, gap = np.exp(loss), np.expm1(loss)
        stretch = self.stretch if side == "upper" else -self.stretch / (1.0 + self.stretch)
        # error 5, unless a stretch covers it.
        error = (0.0 if self.stretch else self.nodes) * (float(self.centred) + ratio)
        # error 3 concerns the law from above, error 4 the cells' means, which only the law from below uses.
        error += self.shift if side == "upper" else self.blur * (float(self.centred) + ratio) + self.jitter
        # Rounding of S itself, and (where the law was centred) of its mean.
        zero = ratio == 0.0
        size = np.abs(gap) if self.absolute else ratio * (1.0 + np.abs(np.where(zero, 0.0, loss)))
        rounding = 16.0 * UNIT * size
        if self.stretch:
            rounding += 64.0 * UNIT * float(self.mass @ np.abs(gap))
        move = stretch * gap + towards * (error + rounding)
        # A point moved to 0 or below is a point at 0: loss -infinity.
        with np.errstate(divide="ignore"):
            moved = loss + np.log1p(np.maximum(move / np.where(zero, 1.0, ratio), -1.0))
            moved[zero] = np.log(np.maximum(move[zero], 0.0))
        if side == "upper" and direction == "reverse":
            # error 6: taken from the atoms next to 0, lowest ratios first.
            below = self.below + float(self.mass @ np.maximum(-ratio - move, 0.0))
            if below > 0.0:
                order = np.argsort(moved)
                top = np.cumsum((self.mass * np.exp(moved))[order])
                moved[order[: int(np.searchsorted(top, below * ROUNDED_UP)) + 1]] = -np.inf
        return moved

    def pair(self, side: Side, direction: Direction) -> Pair:
        """One side of the law as a pair, all errors charged.

        Args:
            side: the side that is bounded.
            direction: D(P||Q) or D(Q||P).

        Returns:
            The pair, whose losses increase.
        """
        sign = 1.0 if side == "upper" else -1.0
        loss = self.log_ratio(side, direction)
        # error 2
        mass = self.mass * (1.0 + sign * self.mass_error)
        order = np.argsort(loss)
        loss, mass = loss[order], mass[order]
        # S = 0 has no mass under P: nothing forward, an infinite loss in reverse (which from below is left out).
        finite = loss > -np.inf
        lost = float(mass[~finite].sum()) if direction == "reverse" and side == "upper" else 0.0
        loss, mass = loss[finite], mass[finite]
        top = mass * np.exp(loss)
        # error 1
        infinite = lost + sign * self.cut[direction]
        if direction == "forward":
            return Pair(side=side, loss=loss, base=mass, top=top, infinite=infinite)
        return Pair(side=side, loss=-loss[::-1], base=top[::-1], top=mass[::-1], infinite=infinite)


@functools.lru_cache(maxsize=64)
def mean_law(mean: MeanRatio, half: int, budget: float) -> MeanLaw:
    """The law of the mean ratio S of one round.

    Args:
        mean: the mean ratio.
        half: N, the number of cells on each side of a level.
        budget: about how much P- and Q-mass may be cut off (and charged).

    Returns:
        The law.

    Raises:
        ValueError: if sums of the ratio would leave the range of double precision.
    """
    return mean_laws((mean,), half, budget)[0]


@functools.lru_cache(maxsize=8)
def mean_laws(means: tuple[MeanRatio, ...], half: int, budget: float) -> tuple[MeanLaw, ...]:
    """The laws of several mean ratios, each at the cost of one more convolution.

    Args:
        means: mean ratios of one ratio, whose users increase, ideally in equal steps.
        half: N, the number of cells on each side of a level.
        budget: about how much P- and Q-mass may be cut off (and charged).

    Returns:
        The laws in the order of `means`.

    Raises:
        ValueError: if sums of the ratio would leave the range of double precision.
    """
    ratio, users_max = means[0].ratio, means[-1].users
    if not ratio.is_summable:
        raise ValueError(f"the ratio must be one whose sums can be computed, got {ratio}")
    # error 1: a sum is clipped at both ends once for each bit, once more for an odd one, and once for each mean.
    allowance = budget / (8.0 * (users_max.bit_length() + len(means)))
    single = _single_report(ratio, half, users_max, allowance)

    def add(a: _Sum, b: _Sum) -> _Sum:
        total = _clipped_sum(_sum_of_two(a, b), users_max, allowance)
        return _fitted(total) if a is b else total

    sum_of = powers(single, add)
    totals = [sum_of(means[0].users)]
    for place, mean in enumerate(means[1:], 1):
        # The place without its lowest bit: no sum is more than log2 additions away from the first.
        before = totals[place & (place - 1)]
        rest = sum_of(mean.users - before.users)
        totals.append(_fitted(_clipped_sum(_sum_of_two(rebased(before, rest.base), rest), users_max, allowance)))
    return tuple(_law_of_mean(total, mean.weight) for total, mean in zip(totals, means, strict=True))


def _law_of_mean(total: _Sum, weight: float) -> MeanLaw:
    """The law of S = 1 - weight + weight X / n, from the sum X."""
    if total.centre:  # no S is so close to 0 that a stretch would widen the bounds
        total = _as_stretch(total)
    n = total.users
    occupied = total.mass > 0.0
    mass, offset = total.mass[occupied], total.moment[occupied] / total.mass[occupied]
    y = total.points()[occupied]
    loss: dict[Side, FloatArray] = {}
    below = 0.0
    plain = total.centre == 0.0 and weight == 1.0
    for side, raw in zip(SIDES, (y, y + offset), strict=True):
        points = raw
        if total.stretch:
            # The lemmas of errors 2 and 4 concern laws around their own mean.
            whole = float(mass.sum())
            mean = float((mass * points).sum()) / whole + (total.centre - n)
            points = points - mean
        with np.errstate(divide="ignore"):
            if plain:
                loss[side] = np.log(np.maximum(points, 0.0) / n)
                negative_part = -points / n
            else:
                change = weight * (points + (total.centre - n)) / n
                loss[side] = np.log1p(np.maximum(change, -1.0))
                negative_part = -1.0 - change
        if side == "upper":
            below = float(mass @ np.maximum(negative_part, 0.0)) * (1.0 + 1e-6)  # error 6
    stretch, mass_error, shift = total.stretch, total.relative, 0.0
    if total.stretch:
        # Scaled to mass 1, as the lemma of error 2 requires: the rest of that error is then a stretch, too.
        mass = mass / float(mass.sum())
        stretch, mass_error = _total_stretch(stretch, mass_error), 0.0
        shift = weight * total.shift / n
    return MeanLaw(
        loss=loss,
        mass=mass,
        # Mass cut at the bottom has gained weight by its move, but less than its Q-mass.
        cut={"forward": (2.0 - weight) * total.cut_q + weight * total.cut_p, "reverse": total.cut_q},
        shift=shift,
        nodes=total.nodes,
        blur=total.blur,
        jitter=total.jitter / n,
        centred=total.centre > 0.0,
        stretch=stretch,
        mass_error=mass_error + 64.0 * UNIT,
        absolute=not plain,
        below=below,
    )

"""Any crowd, with users aside again and again: zero-out, and replace seen from the place that user 1 leaves.

Units of sigma, r = 1 / sigma. User 1 moves from one place to another; ratios are taken from a *reference*, the place
that it leaves: w of the report at the new place, `e_u` of one at u. Seen along the move, with y standard normal for a
report from the reference, `w(y) = exp(s y - s^2 / 2)`, where s is the length of the move.

**Theorem.** Whatever the others hold, in any dimension, S = dD'/dD under D is below, in the convex order,

    f = 1 + [(v - 1) + sum over i < n of (X_i(v) + v - 1)] / n,

with v = w(z), z ~ N(0, 1), and X_i(v) independent given v, of one law: that of a user at `above` where w(y) > v, that
of a user at `below` where w(y) < v, and 0 with the rest of the mass. A user at place a has the density phi(y - a) and
`X = (w - v) exp(-a y + a^2 / 2)`. The worst places are

- *zero-out, from zero*: s = r, above -r and below r (the theorem of `anycrowd.exchange` with nobody thinned);
- *zero-out, from the place that is left*, which bounds dD/dD' under D': s = r, above 0 and below 2 r;
- *replace, from the place that is left*: s = 2 r, above 0 and below 2 r.

*Iterated.* As in `anycrowd.groups`, S' of user 1 and k - 1 users may take the place of v among the other n - k, and
v >= 0 may have any law above that of S':

    f = 1 + [k (v - 1) + sum over i <= n - k of (X_i(v) + v - 1)] / n,      v = S' of k users.

S' is bounded by the same theorem, of fewer users, and so on down to user 1's own report. *Check-in*: everybody takes
part with probability `rate`; X + v - 1 is 0 for a user who does not, v is 1 if user 1 does not. Proofs:
`docs/explanation/guarantee.md`, "Seen from the place that is left".

*Errors*, next to those of `anycrowd.groups` for v and for what is mixed, and of `sums`.

1. Terms from reports beyond the ends of the grid count as those at the ends: their first moments are
   `Phi(s - high)` and at most `v Phi(low)`, and are charged with the mean that they move; so is the first moment of
   what is left of 1 for X = 0, off by 2^-46 at most, where it is too little to be known well.
2. Round-off of masses and positions: as error 4 of `anycrowd.exchange`. Next to the report z with w(z) = v, where X
   changes its sign, positions are off by some u of the exponent times v and the exponential there; farther away, where
   w is below v / e or above e v, by that part of X.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.anycrowd.mixture import Mixture
from shoal.bounds.anycrowd.prices import PricedLaw, Prices, law_from_prices, prices_of_report, smaller_prices
from shoal.bounds.anycrowd.thinning import excess_ratio, root
from shoal.bounds.grid import base_for, lattice_points
from shoal.bounds.numeric import DELTA_MIN, UNIT, FloatArray
from shoal.bounds.ratio import Lognormal
from shoal.bounds.sums import Batch, atoms_on_grid, batch, batch_sum

FIRST_MOMENT_MIN = 1e-30
"""Farther out than where this first moment is left other bounds serve."""

_LOSS_STEPS = 32
"""Prices of one report in the clear for each deviation of its loss."""

_USUAL_HALF = 32
"""Cells of a grid at which values of v are as far apart as is said here; where it is finer, so are they."""

_FIRST_STEP, _LOG_STEP = 0.2, 0.06
"""The step of v next to 1 in deviations of the last rung, and the growth of steps, which is larger for a wide law."""

_HALF_MAX = 32
"""Cells of a grid at most: twice as many sharpen epsilon by some parts in a hundred, in three times the time."""

_STEP_MAX = 3.0
"""Moves that are longer, in deviations of the noise, are hardly hidden by anybody."""

_REPLACE_USERS_MAX, _ZERO_OUT_USERS_MAX, _USERS_REACH = 2048, 128, 1.25
"""Numbers of users up to which replace, and zero-out, are computed: among more no term decides alone. Up to this factor
beyond, the others are revealed, so that no bound gets worse there."""

_REVERSE_LEAD = 1.25
"""Zero-out is seen from the place that is left where delta in reverse is larger than that forward by this factor."""

_LOWEST_GAP = 0.98
"""Values of v closer to 0 than this gap count as 0 in part: they are spread to it."""

_CHANCE_ERROR = 2.0**-40
"""Relative error of the chances of v."""


# One term X(v) + v - 1


@dataclass(frozen=True, kw_only=True)
class _Reports:
    """Reports between two points of a user at `place`: `X = (w - v) exp(-place y + place^2 / 2)`."""

    low: float
    high: float
    place: float

    def value(self, y: FloatArray, s: float, v: float) -> FloatArray:
        return excess_ratio(y, s, v) * np.exp(-self.place * y + 0.5 * self.place**2)

    def at_value(self, x: FloatArray, s: float, v: float) -> FloatArray:
        """The reports at which X is x.

        With u = exp(s y) X is `a u - b` for a user at 0, `a u^2 - b u` for one at -s, `a - b / u` for one at s, and
        `a / u - b / u^2` for one at 2 s.
        """
        a, b = math.exp(0.5 * (self.place**2 - s**2)), v * math.exp(0.5 * self.place**2)
        if self.place == 0.0:
            return np.log((x + b) / a) / s
        if self.place == -s:
            return np.log(0.5 * (b + np.sqrt(b**2 + 4.0 * a * x)) / a) / s
        if self.place == s:
            return np.log(b / (a - x)) / s
        return np.log(2.0 * b / (a + np.sqrt(a**2 - 4.0 * x * b))) / s


@dataclass(frozen=True, kw_only=True)
class Vantage:
    """One move of user 1 seen from a reference: by `step`, where the worst users stand at `above` and `below`."""

    step: float
    above: float
    below: float
    rate: float

    @classmethod
    def from_zero(cls, ratio: Lognormal) -> Vantage:
        """Zero-out, from zero; `ratio` is that of a report that moves from 0, here and below."""
        r = 1.0 / ratio.scale
        return cls(step=r, above=-r, below=r, rate=ratio.rate)

    @classmethod
    def in_reverse(cls, ratio: Lognormal) -> Vantage:
        """Zero-out, from the place that is left."""
        r = 1.0 / ratio.scale
        return cls(step=r, above=0.0, below=2.0 * r, rate=ratio.rate)

    @classmethod
    def of_replace(cls, ratio: Lognormal) -> Vantage:
        """Replace, from the place that is left."""
        r = 1.0 / ratio.scale
        return cls(step=2.0 * r, above=0.0, below=2.0 * r, rate=ratio.rate)

    def term(self, v: float, share: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
        """X(v) + v - 1 of one user as points and masses; the last two are X = 0, and a user who is not there.

        Args:
            v: User 1's own ratio, or that of those aside.
            share: First moment of the reports that count as those at the ends.
            edges: Points that no panel of reports crosses.

        Returns:
            Points and masses.
        """
        s, beyond = self.step, self.below
        low, high = quadrature.quantile(share / max(v, 1.0)), s - quadrature.quantile(share)
        z = min(max(root(s, v), low), high)
        pieces = [_Reports(low=low, high=z, place=self.below), _Reports(low=z, high=high, place=self.above)]
        points, masses = [], []
        for piece in pieces:
            if piece.low == piece.high:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                kinks = piece.at_value(edges - (v - 1.0), s, v)
            y, weight = quadrature.nodes(piece.low, piece.high, kinks[np.isfinite(kinks)], 2.0 * beyond)
            points.append(piece.value(y, s, v))
            masses.append(weight * quadrature.normal_density(y - piece.place))
        for piece, end, sign in zip(pieces, (low, high), (1.0, -1.0), strict=True):  # error 1
            points.append(piece.value(np.array([end]), s, v))
            masses.append(np.array([special.ndtr(sign * (end - piece.place))]))
        x, mass = np.concatenate(points), np.concatenate(masses)
        rest = max(0.0, 1.0 - math.fsum(mass))
        point = np.concatenate([x + (v - 1.0), [v - 1.0, 0.0]])
        return point, np.concatenate([self.rate * mass, [self.rate * rest, 1.0 - self.rate]])

    def terms(self, nodes: FloatArray, weight: FloatArray, half: int, share: float) -> Batch:
        """The law of one term for each v.

        Args:
            nodes: The values of v.
            weight: How much each of them matters for the choice of the grid.
            half: Number of cells on either side of a level's middle.
            share: First moment that each term may lose.

        Returns:
            The laws, on one grid.
        """
        s, beyond, values = self.step, self.below, nodes.tolist()
        # Twice: the first pass says how large a term is, which fixes the grid that the second one is made for.
        rough = [self.term(v, share, np.empty(0)) for v in values]
        sizes = np.array([float(mass @ np.abs(y)) / self.rate for y, mass in rough])
        base = base_for(float(weight @ sizes) / float(weight.sum()), half)
        exponent = 2.0 * beyond * (beyond - quadrature.quantile(share)) + 3.0 * beyond**2
        rows, stretch, cut = [], [], []
        for v, (y, mass), size in zip(values, rough, sizes.tolist(), strict=True):
            edges = lattice_points(half, base, float(y.min()), float(y.max()))
            rows.append(atoms_on_grid(*self.term(v, share, edges), half, base))
            # error 2
            z = max(root(s, v), quadrature.quantile(share / max(v, 1.0)))
            lift = max(math.exp(-place * z + 0.5 * place**2) for place in (self.above, self.below))
            wrong = 1.0 + v + 3.0 * v * lift
            stretch.append((8.0 * 4096.0 + 12.0 * 64.0 * (2.0 + exponent) * wrong / size) * UNIT)
            # error 1
            rest = 2.0**-46 * abs(v - 1.0) if mass[-2] < 2.0**-20 * self.rate else 0.0
            cut.append(self.rate * (2.0 * share + rest))
        return batch(rows, base, weight=weight, stretch=stretch, cut=cut)


# The iteration


def _ladder(users: int) -> list[int]:
    """Numbers of users that join one after the other: powers of two, so that sums of terms are shared."""
    rest, joining, size = users - 1, [], 1
    while size <= rest:
        joining.append(size)
        rest -= size
        size *= 2
    # What is left has one rung for each of its binary digits.
    return sorted(joining + [1 << place for place in range(rest.bit_length()) if rest >> place & 1])


def _ends(law: PricedLaw, budget: float) -> tuple[float, float]:
    """The gaps beyond which puts and calls are within the budget."""
    prices = law.prices()
    costly = prices.gap[prices.value > max(budget, 2.0 * law.infinite)]
    return float(costly.min(initial=0.0)), float(costly.max(initial=0.0))


def _first_gaps(vantage: Vantage, law: PricedLaw, users: int, half: int, budget: float) -> FloatArray:
    """Values of v less 1: 0 for v, then finely about 1, where the last rungs look, and in growing steps."""
    point, mass = vantage.term(1.0, budget, np.empty(0))
    first, last = _ends(law, budget)
    step = _FIRST_STEP * float(mass @ np.abs(point)) / math.sqrt(users)
    growth = math.exp(_LOG_STEP * (1.0 + vantage.step) * _USUAL_HALF / half)
    count = math.ceil(math.log1p(last / step * (growth - 1.0)) / math.log(growth)) + 1
    ends = step * np.cumsum(growth ** np.arange(float(count)))
    below = ends[: 1 + int(np.searchsorted(ends, -first))]
    return np.concatenate([[-1.0], -below[below < _LOWEST_GAP][::-1], [0.0], ends])


def _spread(law: PricedLaw, gap: FloatArray) -> tuple[FloatArray, float]:
    """Chances of the values of v, and what the law has beyond the last."""
    inside = np.minimum(law.gap, gap[-1])
    cell = np.clip(np.searchsorted(gap, inside, side="right") - 1, 0, len(gap) - 2)
    right = (inside - gap[cell]) / (gap[cell + 1] - gap[cell])
    chance: FloatArray = np.bincount(cell, law.mass * (1.0 - right), len(gap)).astype(np.float64)
    chance += np.bincount(cell + 1, law.mass * right, len(gap))
    return chance / chance.sum(), law.infinite + float(law.mass @ np.maximum(law.gap - gap[-1], 0.0))


@functools.lru_cache(maxsize=32)
def iterated_prices(vantage: Vantage, users: int, half: int, budget: float) -> Prices:
    """Prices of the ratio of the new place to the one that is left, under the latter.

    Args:
        vantage: The move, and from where it is seen.
        users: Number of users.
        half: Number of cells on either side of a level's middle.
        budget: Mass and first moment that may be cut, and are charged.

    Returns:
        Prices at the points of a grid.
    """
    scale, share = 1.0 / vantage.step, budget / users
    prices = prices_of_report(_report_gaps(vantage.step, share), scale, vantage.rate)
    law = law_from_prices(prices)
    gap = _first_gaps(vantage, law, users, half, share)
    total, count = None, 1
    for joining in _ladder(users):
        # The more users there are the closer v is to 1: values that no longer occur are left out.
        first, last = _ends(law, share * count)
        used = np.append(0, np.flatnonzero((gap[1:] >= first) & (gap[:-1] <= last)) + 1)
        gap = gap[used]
        chance, beyond = _spread(law, gap)
        if total is None:
            total = vantage.terms(1.0 + gap, chance, half, share)
        else:
            total = replace(
                total, rows=total.rows[:, used], stretch=total.stretch[used], cut=total.cut[used], weight=chance
            )
        while total.count < joining:
            total = batch_sum(total, total, share)
        # Given v = V a call of f costs at most V, and a put: as for groups.
        mixture = Mixture(cut=2.0 * beyond)
        for v, part, sum_of_terms in zip(gap.tolist(), chance.tolist(), total.laws(), strict=True):
            mixture.add(part, sum_of_terms, count * v, count + joining)
        count += joining
        prices = mixture.prices(_CHANCE_ERROR, half)
        prices = smaller_prices(prices, prices_of_report(prices.gap, scale, vantage.rate))
        law = law_from_prices(prices)
    return prices


def _report_gaps(step: float, share: float) -> FloatArray:
    """Gaps at which one report in the clear is priced, evenly in its loss."""
    end = 0.5 * step**2 - step * quadrature.quantile(share)
    loss = np.linspace(0.0, end, math.ceil(_LOSS_STEPS * end / step))
    gap: FloatArray = np.expm1(np.concatenate([-loss[:0:-1], loss]))
    return np.unique(gap[gap > -1.0])


# As prices of a round


def _mirrored(prices: Prices) -> Prices:
    """Prices of the inverse ratio under the other law: `k` times the price at `1 / k`."""
    gap = (-prices.gap / (1.0 + prices.gap))[::-1]
    inside = gap > -1.0  # very small ratios round to 0
    value = (prices.value / (1.0 + prices.gap))[::-1] * (1.0 + 8.0 * UNIT)
    return Prices(gap=gap[inside], value=value[inside])


def _prices(vantage: Vantage, users: int, half: int, budget: float) -> Prices:
    return iterated_prices(vantage, users, min(half // 16, _HALF_MAX), max(budget, FIRST_MOMENT_MIN))


def has_replace_bound(ratio: Lognormal, users: int) -> bool:
    """Whether a round of replace is seen from the place that is left; `ratio` is that of a move from 0."""
    return 2.0 / ratio.scale <= _STEP_MAX and users < _USERS_REACH * _REPLACE_USERS_MAX


def replace_prices(ratio: Lognormal, users: int, half: int, budget: float) -> Prices:
    """Prices of a round of replace, the same in both directions.

    Args:
        ratio: The ratio of one report that moves from 0.
        users: Number of users.
        half: Number of cells on either side of a level's middle, for laws of other bounds.
        budget: Mass and first moment that may be cut, and are charged.

    Returns:
        Prices at the points of a grid.
    """
    # The others may be revealed.
    prices = _prices(Vantage.of_replace(ratio), min(users, _REPLACE_USERS_MAX), half, budget)
    # Either end of the move may be the place that is left, so of a price and its mirror image the smaller one holds.
    return smaller_prices(prices, _mirrored(prices))


def sharpened(prices: Prices, ratio: Lognormal, users: int, half: int, budget: float) -> Prices:
    """Prices of a round of zero-out that are sharper for few users.

    Args:
        prices: Upper bounds on the prices of the round.
        ratio: The ratio of one report that moves from 0.
        users: Number of users.
        half: Number of cells on either side of a level's middle, for laws of other bounds.
        budget: Mass and first moment that may be cut, and are charged.

    Returns:
        Upper bounds on the same prices.
    """
    if 1.0 / ratio.scale > _STEP_MAX:
        return prices
    if users < _USERS_REACH * _ZERO_OUT_USERS_MAX:
        few = min(users, _ZERO_OUT_USERS_MAX)
        prices = smaller_prices(prices, _prices(Vantage.from_zero(ratio), few, half, budget))
    gap = prices.gap[prices.gap > 0.0]
    forward, reverse = prices.at(gap), _mirrored(prices).at(gap)
    # Where no delta is larger in reverse, epsilon is that of the other direction.
    if not np.any((forward > DELTA_MIN) & (reverse > _REVERSE_LEAD * forward)):
        return prices
    return smaller_prices(prices, _mirrored(_prices(Vantage.in_reverse(ratio), users, half, budget)))

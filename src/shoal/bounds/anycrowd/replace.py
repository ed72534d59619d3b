"""Replace among any crowd: two moves of the exchange theorem, to zero and from zero.

User 1 moves from x to x', both of norm at most 1, by way of zero. Group privacy adds the two moves up,

    delta(e1 + e2) <= delta1(e1) + e^e1 delta2(e2),

where delta1 is the curve of the move from x to zero (forward) and delta2 that of the move from zero to x' (reverse),
each composed over all rounds first. Replace is the same in both directions. Its worst pair is no worse than one report
in the clear that moves by 2.

Where not all rounds lead through zero (with rounds of an assumed identical crowd among them), the bound is applied to
each round, as prices (`Replace.law`), and composed afterwards. So are the bounds that do not pass through zero: the
round seen from the place that is left (`anycrowd.iterated`), for samples one report with another's in its place and, of
few users, the theorem with user 1's own place as the reference, and with little noise one bound for each t
(`anycrowd.direct`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shoal.bounds.anycrowd import direct, iterated
from shoal.bounds.anycrowd.exchange import BARE, Exchange
from shoal.bounds.anycrowd.prices import (
    PricedLaw,
    Prices,
    law_from_prices,
    prices_of_report,
    prices_of_sampled_report,
    smaller_prices,
)
from shoal.bounds.composition import Composition, Curve
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import EPSILON_MAX, Direction, FloatArray, Side
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round

_EPSILON_SHARES: FloatArray = np.linspace(0.3, 0.7, 41)
"""Shares of eps that are tried for the first of the two moves."""

_OWN_PLACE_USERS_MAX = 64
"""Up to this number of users a sample seen from user 1's own place may be the better bound."""

_PRICE_POINTS = 400
"""Number of losses at which one round by way of zero is priced."""


@dataclass(frozen=True, kw_only=True)
class ThroughZero:
    """Curves of the move to zero and of the move from zero, added up by group privacy."""

    to_zero: Curve
    from_zero: Curve

    def delta(self, epsilon: float) -> float:
        """Smallest delta that the tried shares of epsilon give."""
        deltas = (
            self.to_zero.delta(e) + math.exp(min(e, 700.0)) * self.from_zero.delta(epsilon - e)
            for e in epsilon * _EPSILON_SHARES
        )
        return min(1.0, min(deltas) * (1.0 + 1e-9))

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon, to 1e-9, that meets delta; infinity if none does."""
        # The best share changes with eps, so delta need not be smooth; the end at which delta is met is returned.
        low, high = 0.0, 1.0
        if self.delta(low) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2.0 * high
            if high > 2.0 * EPSILON_MAX:
                return math.inf
        while high - low > 1e-9 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


@dataclass(frozen=True, kw_only=True)
class Replace(Round):
    """A round in which user 1 moves from one vector to another; `step` is the round of its move to or from zero."""

    step: Exchange

    is_upper_only: ClassVar[bool] = True

    @property
    def ratio(self) -> Lognormal:
        return replace(self.step.ratio, scale=0.5 * self.step.ratio.scale)

    @property
    def users(self) -> int:
        return self.step.users

    @property
    def weight(self) -> float:
        return self.step.weight

    @property
    def has_direct_bound(self) -> bool:
        return (
            self.step.sample is not None
            or iterated.has_replace_bound(self.step.ratio, self.users)
            or direct.is_worth_computing(self.step)
        )

    def limited(self) -> Replace:
        # The limits are those of the whole move, which is twice as far as a step.
        ratio = self.ratio.limited()
        step = self.step if ratio == self.ratio else replace(self.step, ratio=ratio.halved())
        return Replace(step=step.limited())

    def own_report(self) -> Round:
        return Identical(ratio=self.ratio.at_rate(self.ratio.rate * self.weight), users=1)

    def leg(self) -> Round:
        return self.step

    @property
    def is_bare(self) -> bool:
        return self.ratio.scale < BARE

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        if side != "upper":
            raise ValueError("a bound on replace for any crowd bounds from above only")
        if self.is_bare:
            return self.own_report().pair(half, budget, side, direction)
        return self.law(half, budget).pair(direction)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return self.step.test_error(half, budget)

    def law(self, half: int, budget: float) -> PricedLaw:
        """The law of the smaller prices of all bounds on this round.

        Args:
            half: Number of cells on either side of a level's middle.
            budget: Mass and first moment that may be cut, and are charged.

        Returns:
            A law above the ratio of the round, the same for both directions.
        """
        return _replace_law(self, half, budget)

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        if self.is_bare:
            return self.own_report().log_moments(orders, direction, quick=quick)
        return self.law(512, 1e-60).log_moments(orders, direction, self.ratio.scale, self.ratio.rate * self.weight)


@functools.lru_cache(maxsize=32)
def _replace_law(moved: Replace, half: int, budget: float) -> PricedLaw:
    """Law of one round by way of zero, sharpened by the bounds that do not pass through zero."""
    leg = Composition(parts=((moved.step, 1),), half=half, budget=budget)
    through_zero = ThroughZero(to_zero=leg.upper_curve("forward"), from_zero=leg.upper_curve("reverse"))
    # The losses of a leg are bounded; those of both together by twice as much.
    last = 2.0 * float(max(through_zero.to_zero.loss[-1], through_zero.from_zero.loss[-1]))
    first = min(1e-3 * last, 1e-2 * max(through_zero.epsilon(0.1 * through_zero.delta(0.0)), 1e-12))
    loss = np.concatenate([[0.0], np.geomspace(first, last, _PRICE_POINTS)])
    deltas = np.array([through_zero.delta(e) for e in loss.tolist()])
    mirrored = np.expm1(-loss) > -1.0  # very large losses round to -1
    # x and x' may change places, so puts are calls seen from the other end.
    gap = np.concatenate([np.expm1(-loss[mirrored][:0:-1]), np.expm1(loss)])
    value = np.concatenate([(np.exp(-loss) * deltas)[mirrored][:0:-1], deltas])
    scale = moved.ratio.scale
    # The cap is one report in the clear that moves by 2.
    best = smaller_prices(Prices(gap=gap, value=value), prices_of_report(gap, scale, moved.ratio.rate * moved.weight))
    if moved.step.sample is not None:
        sampled = prices_of_sampled_report(gap, scale, moved.weight, scale_after=scale, scale_before=scale)
        best = smaller_prices(best, sampled)
    if moved.step.sample is None and iterated.has_replace_bound(moved.step.ratio, moved.users):
        best = smaller_prices(best, iterated.replace_prices(moved.step.ratio, moved.users, half, budget))
    # Large Rényi orders look farther out than users are set aside.
    is_far_out = moved.step.sample is not None or budget < iterated.FIRST_MOMENT_MIN
    if is_far_out and moved.users <= _OWN_PLACE_USERS_MAX:
        best = smaller_prices(best, _prices_from_own_place(moved, half, budget))
    if direct.is_worth_computing(moved.step):
        best = smaller_prices(best, direct.direct_prices(moved.step, loss, deltas))
    return law_from_prices(best)


def _prices_from_own_place(moved: Replace, half: int, budget: float) -> Prices:
    """Prices of the theorem seen from user 1's own place, tight for few users.

    User 1 moves by 2, and the others may be at distance 2. Either end of the move may serve as the reference, so the
    smaller of each price and its mirror image holds.
    """
    prices = replace(moved.step, ratio=moved.ratio).law(half, budget).prices()
    gap = np.union1d(prices.gap, -prices.gap / (1.0 + prices.gap))
    gap = gap[gap > -1.0]  # very small ratios round to 0
    mirror = -gap / (1.0 + gap)
    return Prices(gap=gap, value=np.minimum(prices.at(gap), (1.0 + gap) * prices.at(mirror) * (1.0 + 8.0 * 2.0**-53)))

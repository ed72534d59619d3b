"""Replace among any crowd: by way of zero, two moves of the exchange theorem.

User 1 goes from x to x', both of norm at most 1, and through zero. Group privacy adds the two moves up,

    delta(e1 + e2) <= delta1(e1) + e^e1 delta2(e2),

delta1 the curve of the way from x to zero (D' there, D here), delta2 that of the way from zero to x' (reverse), each
composed over all rounds first. Replace is the same in both directions, and its worst pair is no worse than one
report in the clear that moves by 2.

Where not all rounds lead through zero (a crowd that is assumed identical among them), the bound is applied to each
round, as prices (`Replace.law`), and composed after it. So are the bounds that know no zero: for few users the theorem
seen from where user 1 stands, for samples one report with another's in its place, and with little noise one bound for
each t (`anycrowd.direct`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shoal.bounds.anycrowd import direct
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

_SPLITS: FloatArray = np.linspace(0.3, 0.7, 41)
"""Which parts of eps go to the first of the two moves."""

_FEW = 64
"""Up to so many users the way through zero may lose more than it gains."""

_POINTS = 400
"""Points at which prices of one round by way of zero are known."""


@dataclass(frozen=True, kw_only=True)
class ByZero:
    """The curves of the way there and of the way back, and what they say together."""

    there: Curve
    back: Curve

    def delta(self, epsilon: float) -> float:
        sums = (self.there.delta(e) + math.exp(min(e, 700.0)) * self.back.delta(epsilon - e) for e in epsilon * _SPLITS)
        return min(1.0, min(sums) * (1.0 + 1e-9))

    def epsilon(self, delta: float) -> float:
        """An eps whose delta is at most that given, the smallest to 1e-9; infinity if there is none."""
        # Any split of eps is valid, so delta may be rough as a function; the end that is met is returned.
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
    """A round in which user 1 goes from one vector to another; `step` is the way to zero, or from it."""

    step: Exchange

    is_upper_only: ClassVar[bool] = True

    @property
    def ratio(self) -> Lognormal:  # type: ignore[override]
        return replace(self.step.ratio, scale=0.5 * self.step.ratio.scale)

    @property
    def users(self) -> int:  # type: ignore[override]
        return self.step.users

    @property
    def weight(self) -> float:  # type: ignore[override]
        return self.step.weight

    @property
    def has_direct_bound(self) -> bool:
        return self.step.sample is not None or self.users <= _FEW or direct.pays(self.step)

    def limited(self) -> Replace:
        # The whole way is twice as far as a step.
        whole = self.ratio.limited()
        step = self.step if whole == self.ratio else replace(self.step, ratio=whole.halved())
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
            raise ValueError("the way through zero bounds from above only")
        if self.is_bare:
            return self.own_report().pair(half, budget, side, direction)
        return self.law(half, budget).pair(direction)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return self.step.test_error(half, budget)

    def law(self, half: int, budget: float) -> PricedLaw:
        return _replace_law(self, half, budget)

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        if self.is_bare:
            return self.own_report().log_moments(orders, direction, quick=quick)
        return self.law(512, 1e-60).log_moments(orders, direction, self.ratio.scale, self.ratio.rate * self.weight)


@functools.lru_cache(maxsize=32)
def _replace_law(moved: Replace, half: int, budget: float) -> PricedLaw:
    """One round in prices, by way of zero or what else bounds it; puts mirror calls: both directions are the same."""
    one = Composition(parts=((moved.step, 1),), half=half, budget=budget)
    way = ByZero(there=one.above("forward"), back=one.above("reverse"))
    # Each leg ends somewhere; their sum ends at twice that at most.
    most = 2.0 * float(max(way.there.loss[-1], way.back.loss[-1]))
    least = min(1e-3 * most, 1e-2 * max(way.epsilon(0.1 * way.delta(0.0)), 1e-12))
    loss = np.concatenate([[0.0], np.geomspace(least, most, _POINTS)])
    deltas = np.array([way.delta(e) for e in loss.tolist()])
    mirrored = np.expm1(-loss) > -1.0  # far out it rounds to that
    # x and x' may change places, so puts are calls seen from the other end.
    gap = np.concatenate([np.expm1(-loss[mirrored][:0:-1]), np.expm1(loss)])
    value = np.concatenate([(np.exp(-loss) * deltas)[mirrored][:0:-1], deltas])
    scale = moved.ratio.scale
    # The cap: one report in the clear that moves by 2.
    best = smaller_prices(Prices(gap=gap, value=value), prices_of_report(gap, scale, moved.ratio.rate * moved.weight))
    if moved.step.sample is not None:
        best = smaller_prices(
            best, prices_of_sampled_report(gap, scale, moved.weight, scale_after=scale, scale_before=scale)
        )
    if moved.users <= _FEW:
        best = smaller_prices(best, _seen_from_user(moved, half, budget))
    if direct.pays(moved.step):
        best = smaller_prices(best, direct.prices(moved.step, loss, deltas))
    return law_from_prices(best)


def _seen_from_user(moved: Replace, half: int, budget: float) -> Prices:
    """The theorem seen from where user 1 stands: it moves by 2, and so far are the others. Good for few users.

    Either end may be the one it is seen from, so of each price and its mirror image the smaller holds.
    """
    found = replace(moved.step, ratio=moved.ratio).law(half, budget).prices()
    gap = np.union1d(found.gap, -found.gap / (1.0 + found.gap))
    gap = gap[gap > -1.0]  # far out it rounds to -1
    mirror = -gap / (1.0 + gap)
    return Prices(gap=gap, value=np.minimum(found.at(gap), (1.0 + gap) * found.at(mirror) * (1.0 + 8.0 * 2.0**-53)))

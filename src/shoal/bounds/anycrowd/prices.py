"""A round described by its prices, bounded from above: calls E(S - k)+ for k >= 1 and puts E(k - S)+ for k <= 1.

A hockey-stick divergence is a price in the sense of finance. Let S = dP/dQ under Q, which is at least 0 and has mean 1.
Then `delta(P || Q)(eps)` is the call at k = e^eps, and `delta(Q || P)(eps)` is e^eps times the put at k = e^-eps.
`gap` is k - 1.

Prices are a convex function of k, apart from the change from puts to calls (`call = put - gap`). Upper bounds at some
points are therefore upper bounds between them too, by chords. Their lower convex hull, which starts with a put of 0 at
k = 0, is the price function of a law: the largest law that satisfies all the bounds. It is above S in the convex order,
except for the part of the mean that its last call price leaves at infinity, so it dominates S in every adaptive
composition (Blackwell). Two bounds on the same S combine into a better one: the smaller price at each point.

*Errors.* Bounds are raised by a factor 1 + 1e-9 before the hull is made. The prices of the resulting law, which are
sums of positive terms, are compared with the bounds that went in and must not be smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from shoal.bounds import gaussian
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import UNIT, Direction, FloatArray
from shoal.bounds.ratio import Lognormal

_HULL_MARGIN = 1e-9
"""Relative amount by which prices are raised before their hull is made."""

_PRICE_MIN = 1e-200
"""Points with smaller prices are left out of the hull, where their masses would underflow."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Upper bounds `value` on prices at the increasing points k = 1 + `gap`.

    Where the gap is negative they are prices of puts, elsewhere of calls.
    """

    gap: FloatArray
    value: FloatArray

    def at(self, gap: FloatArray) -> FloatArray:
        """Bounds at any gaps: chords between the points, constant beyond them."""
        left, right = self.gap <= 0.0, self.gap >= 0.0
        # A put at k = 0 costs nothing, which gives the first chord its left end.
        puts = np.interp(gap, np.append(-1.0, self.gap[left]), np.append(0.0, self.value[left]))
        calls = np.interp(gap, self.gap[right], self.value[right])
        return np.where(gap < 0.0, puts, calls)


def prices_of_law(gap: FloatArray, mass: FloatArray, error: float, cut: float) -> Prices:
    """Prices of a law of mean 1, up to rounding of its mean.

    Args:
        gap: Points of the law less 1, increasing; 0 is one of them.
        mass: Probabilities of the points.
        error: Relative amount by which prices are raised.
        cut: Absolute amount by which prices are raised.

    Returns:
        Prices at all gaps above -1.
    """
    # Sums of positive terms from either end keep the relative accuracy of the smallest prices.
    steps = np.diff(gap)
    above = np.cumsum(mass[::-1])[::-1]
    below = np.cumsum(mass)
    calls = np.append(np.cumsum((above[1:] * steps)[::-1])[::-1], 0.0)
    puts = np.append(0.0, np.cumsum(below[:-1] * steps))
    zero = int(np.searchsorted(gap, 0.0))
    # At k = 1 a call and a put cost the same up to rounding of the mean; the larger one is safe.
    calls[zero] = max(calls[zero], puts[zero])
    value = np.where(gap < 0.0, puts, calls) * (1.0 + error) + cut
    inside = gap > -1.0
    return Prices(gap=gap[inside], value=value[inside])


def prices_of_report(gap: FloatArray, scale: float, rate: float) -> Prices:
    """Prices of one report in the clear (Balle and Wang 2018, theorem 8).

    Args:
        gap: Points k - 1, increasing.
        scale: Standard deviation of the noise, in units of the distance that the vector moves.
        rate: Probability that the report is sent.

    Returns:
        Prices at these points.
    """
    width = 1.0 / scale
    loss = np.log1p(gap)
    epsilon = np.abs(loss)
    delta = gaussian.deltas_above(width, epsilon)
    return Prices(gap=gap, value=rate * np.exp(np.minimum(loss, 0.0)) * delta * (1.0 + 8.0 * UNIT))


def prices_of_sampled_report(
    gap: FloatArray, scale: float, weight: float, *, scale_after: float, scale_before: float
) -> Prices:
    """Prices of one report in the clear, user 1's or another user's in its place.

    `D = (1 - g) R + g P0`, `D' = (1 - g) R + g P1`, where g is `weight` and R is the law without user 1. For t' >= 1,
    `t = 1 + (t' - 1) / g` and `b = t' / t` (Balle, Barthe and Gaboardi 2018, theorem 2),

        D' - t' D = g (P1 - t (b P0 + (1 - b) R)),

    so `delta(D' || D) <= g (b delta(P1 || P0) + (1 - b) delta(P1 || R))` at t. P1 and P0 differ by the move of user 1,
    P1 and R by the distance from user 1's new vector to another user's, P0 and R by that from its old vector: reports
    of `scale`, `scale_after` and `scale_before`. The other direction has P0 and `scale_before`.

    Args:
        gap: Points k - 1, increasing.
        scale: Scale for user 1's move.
        weight: Probability that user 1 is drawn.
        scale_after: Scale for the distance from user 1's vector after the move to another user's.
        scale_before: Scale for the distance from user 1's vector before the move to another user's.

    Returns:
        Prices at these points.
    """
    # Puts are hockey sticks of the other direction, at the inverse ratio.
    excess = np.where(gap >= 0.0, gap, -gap / (1.0 + gap))  # t' - 1
    share = (1.0 + excess) * weight / (weight + excess)
    moved, after, before = (prices_of_report(excess / weight, s, 1.0).value for s in (scale, scale_after, scale_before))
    delta = weight * (share * moved + (1.0 - share) * np.where(gap >= 0.0, after, before))
    return Prices(gap=gap, value=delta * np.where(gap >= 0.0, 1.0, 1.0 + gap) * (1.0 + 64.0 * UNIT))


def smaller_prices(first: Prices, second: Prices) -> Prices:
    """The smaller of two bounds at each point.

    Args:
        first: Upper bounds on the prices of a round.
        second: Other upper bounds on the prices of the same round.

    Returns:
        Bounds at the points of both.
    """
    gap = np.union1d(first.gap, second.gap)
    return Prices(gap=gap, value=np.minimum(first.at(gap), second.at(gap)))


@dataclass(frozen=True, kw_only=True)
class PricedLaw:
    """A law of S: masses at 1 + gap, and the P-mass at infinity."""

    gap: FloatArray
    mass: FloatArray
    infinite: float

    def prices(self) -> Prices:
        """Prices of this law at its own points and at k = 1."""
        gap, mass = self.gap, self.mass
        zero = int(np.searchsorted(gap, 0.0))
        if zero == len(gap) or gap[zero] != 0.0:
            gap, mass = np.insert(gap, zero, 0.0), np.insert(mass, zero, 0.0)
        finite = prices_of_law(gap, mass, 0.0, 0.0)
        return replace(finite, value=finite.value + np.where(finite.gap > 0.0, self.infinite, 0.0))

    def log_moments(self, orders: FloatArray, direction: Direction, scale: float, rate: float) -> FloatArray:
        """Upper bounds on `(L - 1) D_L`, D_L the Rényi divergence.

        Args:
            orders: The orders L, above 1.
            direction: D(P||Q) or D(Q||P).
            scale: Scale of a report in the clear that is at least as revealing as the round.
            rate: Probability that this report is sent.

        Returns:
            One bound for each order.
        """
        prices = self.prices()
        local = Lognormal(scale=scale, rate=rate).log_moments(orders)
        bounds = np.array([_log_moment_from_prices(prices, order, direction, scale, rate) for order in orders.tolist()])
        return np.minimum(bounds, local * (1.0 + 1e-12))

    def pair(self, direction: Direction) -> Pair:
        """The masses of P and Q on common losses, bounded from above."""
        positive = self.gap > -1.0
        loss, mass = np.log1p(self.gap[positive]), self.mass[positive]
        top = mass * (1.0 + self.gap[positive])
        if direction == "forward":
            return Pair(side="upper", loss=loss, base=mass, top=top, infinite=self.infinite)
        # Where S is 0 the reverse ratio is infinite.
        lost = float(self.mass[~positive].sum())
        return Pair(side="upper", loss=-loss[::-1], base=top[::-1], top=mass[::-1], infinite=lost)


_LOG_WEIGHT_STEP = 0.05
"""Change of the logarithm of a weight along one step of a sum over prices."""

_STEPS_PER_GAP_MAX = 64
"""Largest number of steps into which the stretch between two prices is cut."""


def _log_moment_from_prices(prices: Prices, order: float, direction: Direction, scale: float, rate: float) -> float:
    """Upper bound on `log E[S^L]` (forward) or `log E[S^(1-L)]` (reverse).

    `E[phi(S)] = phi(1) + integral of phi''(k) * (put at k, or call above 1)`. Between the points prices are at most
    their chords. phi'' is a power of k: at most its chord where it is convex, at most its larger end elsewhere. Beyond
    the last points the prices of one report in the clear serve, whose part of the integral is at most its moment there.
    """
    power = order - 2.0 if direction == "forward" else -order - 1.0
    gap, value = prices.gap, prices.value
    pieces = np.clip(np.ceil(abs(power) * np.diff(np.log1p(gap)) / _LOG_WEIGHT_STEP), 1, _STEPS_PER_GAP_MAX).astype(
        np.int64
    )
    starts = np.repeat(gap[:-1], pieces)
    within = np.arange(len(starts)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    gap = np.append(starts + np.repeat(np.diff(gap) / pieces, pieces) * within, gap[-1])
    value = prices.at(gap)
    with np.errstate(over="ignore", invalid="ignore"):
        weight = np.exp(power * np.log1p(gap))
        left, right = weight[:-1], weight[1:]
        # A concave weight is above its chord, so its larger end serves.
        if 0.0 < power < 1.0:
            left = right = np.maximum(left, right)
        ends = left * value[:-1] + right * value[1:]
        across = left * value[1:] + right * value[:-1]
        inside = order * (order - 1.0) * float(np.diff(gap) @ (ends / 3.0 + across / 6.0))
        low, high = (scale * (math.log1p(end) + 0.5 / scale**2) for end in (float(gap[0]), float(gap[-1])))
        log_full = order * (order - 1.0) / (2.0 * scale**2) + math.log(rate)
        if direction == "forward":
            below = order * float(value[0]) * float(weight[0]) * (1.0 + float(gap[0]))
            log_beyond = log_full + float(special.log_ndtr(order / scale - high))
        else:
            below = (order - 1.0) * float(value[-1]) * float(weight[-1]) * (1.0 + float(gap[-1]))
            log_beyond = log_full + float(special.log_ndtr(low + (order - 1.0) / scale))
    total = inside + below + math.exp(min(log_beyond, 700.0))
    return math.log1p(total) * (1.0 + 1e-9) if math.isfinite(total) and log_beyond < 700.0 else math.inf


def law_from_prices(prices: Prices) -> PricedLaw:
    """The law whose prices are the lower convex hull of these bounds."""
    # Dropping points makes a hull larger, which is safe.
    large = prices.value > _PRICE_MIN
    gap, value = _hull_corners(prices.gap[large], prices.value[large] * (1.0 + _HULL_MARGIN))
    steps = np.diff(gap)
    left = gap[1:] <= 0.0  # segments between puts; elsewhere between calls
    price = np.where(left, np.diff(value), 0.0)
    right = gap[:-1] >= 0.0
    price = np.where(right, np.diff(value), price)
    across = ~left & ~right
    price[across] = (value[1:] + gap[1:] - value[:-1])[across]
    slope = price / steps  # of puts; of calls where `right`
    put_slope = np.concatenate([[0.0], np.where(right, 1.0 + slope, slope), [1.0]])
    call_slope = np.concatenate([[-1.0], np.where(right, slope, slope - 1.0), [0.0]])
    # Masses are changes of slope, taken on each side from the price that is small there.
    mass = np.where(gap > 0.0, np.diff(call_slope), np.diff(put_slope))
    mass = np.maximum(mass, 0.0)
    law = PricedLaw(gap=gap, mass=mass / math.fsum(mass), infinite=float(value[-1]))
    # Comparing the law's prices with the bounds lets no error of the hull pass unnoticed.
    if np.any(law.prices().at(gap) < value / (1.0 + 0.5 * _HULL_MARGIN)):
        raise ArithmeticError("the prices of a law are below the bounds it was made from: please report this as a bug")
    return law


def _hull_corners(gap: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The corners of the lower convex hull of prices, from k = 0 on."""
    corners: list[tuple[float, float]] = [(-1.0, 0.0)]
    slopes: list[tuple[float, float]] = []
    for point in zip(gap.tolist(), value.tolist(), strict=True):
        while True:
            slope = _slope(corners[-1], point)
            if not slopes or _rises(slopes[-1], slope, corners[-1][0]):
                break
            corners.pop()
            slopes.pop()
        corners.append(point)
        slopes.append(slope)
    # Calls never rise with k, so a last price above the one before it is the worse bound of the two.
    while len(slopes) > 1 and slopes[-1][1] >= 0.0:
        corners.pop()
        slopes.pop()
    places, values = zip(*corners, strict=True)
    return np.array(places), np.array(values)


def _slope(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Slopes from a to b of puts and of calls, each exact where it is small."""
    step = b[0] - a[0]
    if b[0] <= 0.0:
        slope = (b[1] - a[1]) / step
        return slope, slope - 1.0
    if a[0] >= 0.0:
        slope = (b[1] - a[1]) / step
        return 1.0 + slope, slope
    slope = (b[1] + b[0] - a[1]) / step
    return slope, slope - 1.0


def _rises(before: tuple[float, float], after: tuple[float, float], gap: float) -> bool:
    """Whether the slope increases at a corner, so that the hull stays convex there."""
    return after[1] > before[1] if gap > 0.0 else after[0] > before[0]

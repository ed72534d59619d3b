"""A round by its prices: calls `E[(S - k)+]` for k >= 1 and puts `E[(k - S)+]` for k <= 1, from above.

In units of finance a hockey stick is a price: `delta(P || Q)(eps)` is the call at k = e^eps and `delta(Q || P)(eps)` is
e^eps times the put at e^-eps, all of the ratio S = dP/dQ under Q, which is at least 0 and has mean 1. `gap` is k - 1.

Prices are a convex function of k, up to the change from put to call (`call = put - gap`). So whatever is known of
S, upper bounds at some points are upper bounds between them too, by chords, and their lower convex hull, which
starts with a put of 0 at k = 0, is the price function of a law: the largest for which all of this holds. It is
above S in the convex order, but for what its last call price leaves at infinity; so it dominates in every adaptive
composition (Blackwell). Two bounds on one S give a better one: the smaller price at each point.

*Errors.* Bounds are taken larger by a factor 1 + 1e-9 before the hull is made, and the prices of the law that comes
out, sums of positive terms, are compared with those that went in: they are not smaller.
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

_MARGIN = 1e-9
"""By how much, in relative terms, prices are raised before their hull is made."""

_TINY = 1e-200
"""Points with prices below this are left out: masses would underflow."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Upper bounds `value` at k = 1 + `gap`, increasing: puts where the gap is negative, calls elsewhere."""

    gap: FloatArray
    value: FloatArray

    def at(self, gap: FloatArray) -> FloatArray:
        """The bounds at other points: by chords between, by what the ends say beyond."""
        left, right = self.gap <= 0.0, self.gap >= 0.0
        # At k = 0 a put costs nothing; below the first point that is the other end of a chord.
        puts = np.interp(gap, np.append(-1.0, self.gap[left]), np.append(0.0, self.value[left]))
        calls = np.interp(gap, self.gap[right], self.value[right])
        return np.where(gap < 0.0, puts, calls)


def of_law(gap: FloatArray, mass: FloatArray, error: float, cut: float) -> Prices:
    """Prices of the law with these masses at 1 + gap, 0 being one of the gaps, its mean 1 up to rounding.

    They are raised by the relative `error` and by `cut`.
    """
    # Sums of positive terms from either end: the smallest prices are known as well as the largest.
    steps = np.diff(gap)
    above = np.cumsum(mass[::-1])[::-1]
    below = np.cumsum(mass)
    calls = np.append(np.cumsum((above[1:] * steps)[::-1])[::-1], 0.0)
    puts = np.append(0.0, np.cumsum(below[:-1] * steps))
    zero = int(np.searchsorted(gap, 0.0))
    # At 1 a call and a put cost the same; rounding of the mean shows here, and the larger one is safe.
    calls[zero] = max(calls[zero], puts[zero])
    value = np.where(gap < 0.0, puts, calls) * (1.0 + error) + cut
    inside = gap > -1.0
    return Prices(gap=gap[inside], value=value[inside])


def of_report(gap: FloatArray, scale: float, rate: float) -> Prices:
    """Prices of one report in the clear, sent with probability `rate` (Balle and Wang 2018, theorem 8)."""
    width = 1.0 / scale
    loss = np.log1p(gap)
    epsilon = np.abs(loss)
    delta = gaussian.deltas_above(width, epsilon)
    return Prices(gap=gap, value=rate * np.exp(np.minimum(loss, 0.0)) * delta * (1.0 + 8.0 * UNIT))


def of_sampled(gap: FloatArray, scale: float, weight: float, *, there: float, here: float) -> Prices:
    """Prices of a report in the clear, or of another user's in its place: user 1 is drawn with probability `weight`.

    `D = (1 - g) R + g P0`, `D' = (1 - g) R + g P1`, g the weight, R without user 1. For t' >= 1 and
    `t = 1 + (t' - 1) / g`, `b = t' / t` (Balle, Barthe and Gaboardi 2018, theorem 2),

        D' - t' D = g (P1 - t (b P0 + (1 - b) R)),

    so `delta(D' || D) <= g (b delta(P1 || P0) + (1 - b) delta(P1 || R))` at t. P1 and P0 differ by a move of user 1,
    P1 and R by one from user 1's new place to another user's, P0 and R by one from its old place: reports of
    `scale`, `there` and `here`. The other direction has P0 and `here`.
    """
    # Puts are hockey sticks of the other direction, at the inverse ratio.
    over = np.where(gap >= 0.0, gap, -gap / (1.0 + gap))  # t' - 1
    share = (1.0 + over) * weight / (weight + over)
    moved, new, old = (of_report(over / weight, s, 1.0).value for s in (scale, there, here))
    delta = weight * (share * moved + (1.0 - share) * np.where(gap >= 0.0, new, old))
    return Prices(gap=gap, value=delta * np.where(gap >= 0.0, 1.0, 1.0 + gap) * (1.0 + 64.0 * UNIT))


def smaller(one: Prices, other: Prices) -> Prices:
    """The smaller of two bounds, at the points of both."""
    gap = np.union1d(one.gap, other.gap)
    return Prices(gap=gap, value=np.minimum(one.at(gap), other.at(gap)))


@dataclass(frozen=True, kw_only=True)
class PricedLaw:
    """A law of S: masses at 1 + gap, and the P-mass at infinity."""

    gap: FloatArray
    mass: FloatArray
    infinite: float

    def prices(self) -> Prices:
        gap, mass = self.gap, self.mass
        zero = int(np.searchsorted(gap, 0.0))
        if zero == len(gap) or gap[zero] != 0.0:
            gap, mass = np.insert(gap, zero, 0.0), np.insert(mass, zero, 0.0)
        made = of_law(gap, mass, 0.0, 0.0)
        return replace(made, value=made.value + np.where(made.gap > 0.0, self.infinite, 0.0))

    def log_moments(self, orders: FloatArray, direction: Direction, scale: float, rate: float) -> FloatArray:
        """Upper bounds on `(L - 1) D_L`; scale and rate are those of the one report that is known to be worse."""
        prices = self.prices()
        local = Lognormal(scale=scale, rate=rate).log_moments(orders)
        found = np.array([_log_moment(prices, order, direction, scale, rate) for order in orders.tolist()])
        best: FloatArray = np.minimum(found, local * (1.0 + 1e-12))
        return best

    def pair(self, direction: Direction) -> Pair:
        there = self.gap > -1.0
        loss, mass = np.log1p(self.gap[there]), self.mass[there]
        top = mass * (1.0 + self.gap[there])
        if direction == "forward":
            return Pair(side="upper", loss=loss, base=mass, top=top, infinite=self.infinite)
        lost = float(self.mass[~there].sum())
        return Pair(side="upper", loss=-loss[::-1], base=top[::-1], top=mass[::-1], infinite=lost)


_FINE = 0.05
"""By how much the logarithm of a weight may change along a step, in sums over prices."""

_PIECES = 64
"""The most steps into which one between two prices is cut."""


def _log_moment(prices: Prices, order: float, direction: Direction, scale: float, rate: float) -> float:
    """`log E[S^L]` (forward) or `log E[S^(1-L)]` from above, for one order L.

    `E[phi(S)] = phi(1) + integral of phi''(k) * (put at k, or call above 1)`. Between the points prices are at most
    their chords; phi'' is a power of k, at most its chord where it is convex and its larger end elsewhere. Beyond the
    ends the prices of one report serve, whose parts of the integral are at most its moments there.
    """
    power = order - 2.0 if direction == "forward" else -order - 1.0
    gap, value = prices.gap, prices.value
    pieces = np.clip(np.ceil(abs(power) * np.diff(np.log1p(gap)) / _FINE), 1, _PIECES).astype(np.int64)
    starts = np.repeat(gap[:-1], pieces)
    within = np.arange(len(starts)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    gap = np.append(starts + np.repeat(np.diff(gap) / pieces, pieces) * within, gap[-1])
    value = prices.at(gap)
    with np.errstate(over="ignore", invalid="ignore"):
        weight = np.exp(power * np.log1p(gap))
        left, right = weight[:-1], weight[1:]
        # A concave weight is above its chord: its larger end serves.
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


def law_of(prices: Prices) -> PricedLaw:
    """The law whose prices are the lower convex hull of these bounds."""
    # Without its smallest points a hull is larger, so they may go.
    known = prices.value > _TINY
    gap, value = _hull(prices.gap[known], prices.value[known] * (1.0 + _MARGIN))
    steps = np.diff(gap)
    left = gap[1:] <= 0.0  # segments on which puts are known, elsewhere calls
    price = np.where(left, np.diff(value), 0.0)
    right = gap[:-1] >= 0.0
    price = np.where(right, np.diff(value), price)
    across = ~left & ~right
    price[across] = (value[1:] + gap[1:] - value[:-1])[across]
    slope = price / steps  # of puts; of calls where `right`
    put_slope = np.concatenate([[0.0], np.where(right, 1.0 + slope, slope), [1.0]])
    call_slope = np.concatenate([[-1.0], np.where(right, slope, slope - 1.0), [0.0]])
    # The bends of prices are masses; on each side from the price that is small there.
    mass = np.where(gap > 0.0, np.diff(call_slope), np.diff(put_slope))
    mass = np.maximum(mass, 0.0)
    found = PricedLaw(gap=gap, mass=mass / math.fsum(mass), infinite=float(value[-1]))
    made = found.prices().at(gap)
    wanted = value / (1.0 + 0.5 * _MARGIN)
    # No error of the hull can go unseen: what was made is compared with what was wanted.
    if np.any(made < wanted):
        raise ArithmeticError("prices of a law are below those it was made of: please report this as a bug")
    return found


def _hull(gap: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
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
    # What is beyond the last corner costs as much as it does: prices never rise.
    # A last price above the one before it is no better bound than that one.
    while len(slopes) > 1 and slopes[-1][1] >= 0.0:
        corners.pop()
        slopes.pop()
    places, values = zip(*corners, strict=True)
    return np.array(places), np.array(values)


def _slope(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """The slope from a to b, of puts and of calls; each exact where it is small."""
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
    return after[1] > before[1] if gap > 0.0 else after[0] > before[0]

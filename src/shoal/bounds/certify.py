"""Certified answers: eps, delta, trade-off curve and advantage of any rounds run together.

Every answer is an `Interval`: its upper end is the guarantee, its lower end shows how much of it may
be slack. Both come from `composition`, at a resolution that is refined until the interval is
narrow enough; the worse of the two directions D(P||Q) and D(Q||P) is given unless one is named.

One plain report in each round, `S = W`, has a closed form (the Gaussian mechanism), whose intervals are
as wide as round-off. It also caps every other upper bound, because shuffling and sampling are
post-processing of that report.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from shoal import _validate
from shoal.bounds import gaussian
from shoal.bounds.composition import Composition, Parts
from shoal.bounds.numeric import DELTA_MIN, DIRECTIONS, EPSILON_MAX, LAW_ROUNDS_MAX, UNIT, Direction, FloatArray
from shoal.bounds.round import Round
from shoal.interval import Interval

DirectionChoice = Literal["worse", "forward", "reverse"]

ACCURACY = 1e-3
"""The default relative width in epsilon."""

_CROSSING = 1e-12
"""The relative distance by which bounds that are both exact may cross."""

_SHALLOW_SLOPE = 0.01
"""Where delta falls more slowly than this power of eps, digits of eps are not worth computing."""

_RESOLUTIONS = (384, 448, 512, 640, 1024, 2048, 4096)
"""Cells to a level of the law, from the coarsest to the finest."""

_BUDGET_DIGITS = 6.0
"""Digits between the smallest delta in question and the mass that may be cut for it."""

_BUDGET_STEP_DIGITS, _BUDGET_EXPONENT_MAX = 12.0, -24.0
"""Budgets are powers of ten in steps of this many digits, up to a largest one, so that questions share laws."""

_UNINFORMATIVE_EXCESS = 64.0
"""A bracket that is this many times too wide does not predict how its width falls."""

_STALLED_PART = 0.8
"""Twice the cells divide a width by four: if this part of it is left, something else limits it."""

SLOPE_DIVISOR = 1e3
"""The slope of delta is measured over eps divided by this: a bracket of delta may be wider in proportion."""

_USUAL_DELTA_MIN, _USUAL_FPR_MIN = 1e-12, 1e-6
"""The delta and the false positive rate that budgets assume where the question does not fix them."""


# Rounds that are one plain report


def _is_gaussian(parts: Parts) -> bool:
    """Whether every round is one plain report W: no shuffler, no sampling, no coin."""
    return all(round_.is_gaussian for round_, _ in parts)


def _local_width(parts: Parts) -> float:
    """The width of the Gaussian mechanism of which the rounds are post-processing.

    Forgetting who sent which report, and who took part, can only help: each round is dominated by
    the one report of the user who moved.
    """
    scales = [round_.ratio.scale for round_, _ in parts]
    # 0 stands for noise for which no Gaussian is known that is no more private.
    if min(scales) == 0.0:
        return math.inf
    squares = [rounds / scale**2 for scale, (_, rounds) in zip(scales, parts, strict=True)]
    return math.sqrt(math.fsum(squares))


# Public questions


def _merged_parts(parts: Parts) -> Parts:
    """The different rounds, with their counts checked and added up (here and nowhere else)."""
    counts: dict[Round, int] = {}
    for round_, rounds in parts:
        counts[round_] = counts.get(round_, 0) + _validate.rounds(rounds)
    if not counts:
        raise ValueError("parts must not be empty")
    return tuple(counts.items())


def _directions(direction: DirectionChoice) -> tuple[Direction, ...]:
    _validate.choice("direction", direction, ("worse", "forward", "reverse"))
    return DIRECTIONS if direction == "worse" else (direction,)


def budget_for(parts: Parts, smallest: float) -> float:
    """The mass that may be cut off a round: a millionth of the smallest delta over all rounds.

    Args:
        parts: the rounds and their counts.
        smallest: the smallest delta in question.

    Returns:
        The budget, rounded down to one that many questions share.
    """
    total = sum(rounds for _, rounds in parts)
    # Below 1e-100 the masses of cells would come near the smallest doubles.
    exponent = math.log10(max(smallest, 1e-100) / total) - _BUDGET_DIGITS
    return float(10.0 ** min(_BUDGET_EXPONENT_MAX, _BUDGET_STEP_DIGITS * math.floor(exponent / _BUDGET_STEP_DIGITS)))


@dataclass(frozen=True, kw_only=True)
class _Bracket:
    """An interval, and the factor by which its relative width may exceed the accuracy."""

    interval: Interval
    slope: float = 1.0

    @property
    def width(self) -> float:
        """The relative width, to be compared with the accuracy."""
        upper = self.interval.upper
        return self.interval.width / (upper * self.slope) if 0.0 < upper < math.inf else float(upper > 0.0)


def _refined(parts: Parts, accuracy: float, brackets_at: Callable[[int], list[_Bracket]]) -> list[Interval]:
    """Intervals at finer and finer resolution; each is valid, and so is their intersection."""
    accuracy = _validate.real("accuracy", accuracy)
    if accuracy <= 0.0:
        raise ValueError(f"accuracy must be positive, got {accuracy}")
    place = _RESOLUTIONS.index(max(round_.ratio.cells for round_, _ in parts))
    brackets = brackets_at(_RESOLUTIONS[place])
    excess = max(bracket.width for bracket in brackets) / accuracy
    while excess > 1.0 and place + 1 < len(_RESOLUTIONS):
        # Widths fall with the square of the resolution (a tenth is added to succeed at once). From a bad start it is
        # doubled step by step, because a law costs the square of its cells.
        target = _RESOLUTIONS[place] * (max(1.25, math.sqrt(1.1 * excess)) if excess < _UNINFORMATIVE_EXCESS else 2.0)
        last, place = place, min(max(place + 1, bisect.bisect_left(_RESOLUTIONS, target)), len(_RESOLUTIONS) - 1)
        finer = brackets_at(_RESOLUTIONS[place])
        brackets = [
            replace(fine, interval=_intersection(coarse.interval, fine.interval))
            for coarse, fine in zip(brackets, finer, strict=True)
        ]
        before, excess = excess, max(bracket.width for bracket in brackets) / accuracy
        is_stalled = excess > _STALLED_PART * before and before < _UNINFORMATIVE_EXCESS
        if is_stalled and _RESOLUTIONS[place] >= 2 * _RESOLUTIONS[last]:
            break
    return [bracket.interval for bracket in brackets]


def _intersection(first: Interval, second: Interval) -> Interval:
    """The intersection of two brackets of one number; they overlap, or one of them is wrong."""
    return _ordered(max(first.lower, second.lower), min(first.upper, second.upper))


def _worst_interval(intervals: Sequence[Interval]) -> Interval:
    """The bracket of the largest of several numbers."""
    return Interval(lower=max(i.lower for i in intervals), upper=max(i.upper for i in intervals))


def in_range(parts: Parts) -> bool:
    """Whether laws can be computed for these rounds; outside only the local guarantee is claimed."""
    return all(round_.is_in_range and rounds <= LAW_ROUNDS_MAX for round_, rounds in parts)


def limited(parts: Parts) -> Parts:
    """The rounds moved within the limits on users and noise, which makes them never more private."""
    return tuple((round_.limited(), rounds) for round_, rounds in parts)


def _from_limits(parts: Parts, caps: list[Interval], answer: Callable[[Parts], list[Interval]]) -> list[Interval]:
    """The intervals of rounds beyond the limits on users and noise, from the rounds at these limits."""
    within = limited(parts)
    # Too little noise, or too many rounds: only the caps are left.
    if within == parts or not in_range(within):
        return caps
    return [
        Interval(lower=cap.lower, upper=min(cap.upper, limit.upper))
        for cap, limit in zip(caps, answer(within), strict=True)
    ]


def _ordered(lower: float, upper: float) -> Interval:
    """The bracket of two ends, which may cross by rounding and not by more."""
    if lower > upper * (1.0 + _CROSSING):
        raise ArithmeticError(f"lower bound {lower} above upper bound {upper}: please report this as a bug")
    return Interval(lower=min(lower, upper), upper=upper)


def epsilons(
    parts: Parts, deltas: Sequence[float], accuracy: float = ACCURACY, *, direction: DirectionChoice = "worse"
) -> list[Interval]:
    """eps at each delta, bracketed.

    Where delta is so close to the total variation distance that eps is nearly 0, and a relative change
    of delta moves eps by more than a hundred times as much, the accepted width grows in proportion.

    Args:
        parts: the rounds and their counts.
        deltas: values of delta.
        accuracy: the relative width that intervals should have.
        direction: the worse one, or one of the two.

    Returns:
        An interval for each delta. Where the accuracy is not reached (or a scale is below the range of
        the law) the interval is wider, but valid.
    """
    parts, deltas = _merged_parts(parts), [_validate.delta(delta) for delta in deltas]
    directions = _directions(direction)
    local = [gaussian.epsilon_at(_local_width(parts), delta) for delta in deltas]
    if _is_gaussian(parts):
        return local
    caps = [Interval(lower=0.0, upper=interval.upper) for interval in local]
    if not in_range(parts) or min(deltas) < DELTA_MIN:
        return _from_limits(parts, caps, lambda within: epsilons(within, deltas, accuracy, direction=direction))
    budget = budget_for(parts, min(deltas))
    remaining = [directions] * len(deltas)

    def brackets_at(half: int) -> list[_Bracket]:
        composition = Composition(parts=parts, half=half, budget=budget)
        brackets = []
        for place, (delta, cap) in enumerate(zip(deltas, caps, strict=True)):
            if composition.total_variation() <= delta:
                brackets.append(_Bracket(interval=Interval(lower=0.0, upper=0.0)))
                continue
            by_direction: dict[Direction, Interval] = {}
            lower_max = slope = 0.0
            for direction_ in remaining[place]:
                # A direction that is certainly more private need not be composed or refined.
                if by_direction and composition.simple_epsilon(direction_, delta) < lower_max:
                    continue
                curves = composition.near_delta(direction_, delta)
                interval = _ordered(curves["lower"].epsilon(delta), curves["upper"].epsilon(delta))
                by_direction[direction_] = interval
                lower_max = max(lower_max, interval.lower)
                # -d log(delta) / d log(eps), below 1 where delta is nearly the total variation distance
                slope = max(slope, curves["upper"].slope(interval.upper, delta) * interval.upper)
            # The others are certainly more private at this delta.
            remaining[place] = tuple(name for name, interval in by_direction.items() if interval.upper >= lower_max)
            bracket = _intersection(_worst_interval(list(by_direction.values())), cap)
            brackets.append(_Bracket(interval=bracket, slope=max(1.0, _SHALLOW_SLOPE / slope) if slope > 0.0 else 1.0))
        return brackets

    return _refined(parts, accuracy, brackets_at)


def deltas(
    parts: Parts, epsilons: Sequence[float], accuracy: float = ACCURACY, *, direction: DirectionChoice = "worse"
) -> list[Interval]:
    """delta at each eps, bracketed.

    Args:
        parts: the rounds and their counts.
        epsilons: values of eps.
        accuracy: the relative width that intervals should have in eps; the relative width in delta is
            `-d log(delta) / d log(eps)` times that.
        direction: the worse one, or one of the two.

    Returns:
        An interval for each eps; one that misses the accuracy is wider, but valid.
    """
    parts, epsilons = _merged_parts(parts), [_validate.epsilon(epsilon) for epsilon in epsilons]
    directions = _directions(direction)
    width = _local_width(parts)
    local = [gaussian.delta_at(width, epsilon) for epsilon in epsilons]
    if _is_gaussian(parts):
        return local
    caps = [Interval(lower=0.0, upper=interval.upper) for interval in local]
    if not in_range(parts):
        return _from_limits(parts, caps, lambda within: deltas(within, epsilons, accuracy, direction=direction))
    budget = budget_for(parts, _USUAL_DELTA_MIN)

    def brackets_at(half: int) -> list[_Bracket]:
        composition = Composition(parts=parts, half=half, budget=budget)
        brackets = []
        for epsilon, cap in zip(epsilons, caps, strict=True):
            if epsilon > EPSILON_MAX:
                # e^eps times a mass would be near the largest double: return the local guarantee unchanged.
                brackets.append(_Bracket(interval=cap, slope=math.inf))
                continue
            curves = [composition.curves(direction_) for direction_ in directions]
            intervals = [_ordered(c["lower"].delta(epsilon), c["upper"].delta(epsilon)) for c in curves]
            delta, next_delta = (
                max(c["upper"].delta(x) for c in curves) for x in (epsilon, (1.0 + 1.0 / SLOPE_DIVISOR) * epsilon)
            )
            slope = max(1.0, SLOPE_DIVISOR * math.log(delta / next_delta)) if 0.0 < next_delta < delta else 1.0
            is_negligible = delta <= DELTA_MIN  # its digits do not matter
            bracket = _intersection(_worst_interval(intervals), cap)
            # A delta that underflowed is no proof of pure differential privacy.
            bracket = Interval(lower=bracket.lower, upper=max(bracket.upper, gaussian.SMALLEST_DOUBLE))
            brackets.append(_Bracket(interval=bracket, slope=math.inf if is_negligible else slope))
        return brackets

    return _refined(parts, accuracy, brackets_at)


def advantage(parts: Parts, accuracy: float = ACCURACY) -> Interval:
    """The largest TPR - FPR of any attack: the total variation distance, delta at eps = 0.

    Args:
        parts: the rounds and their counts.
        accuracy: the relative width that the interval should have.

    Returns:
        An interval; one that misses the accuracy is wider, but valid.
    """
    # The distance is the same both ways: two brackets of one number.
    forward, reverse = (deltas(parts, [0.0], accuracy, direction=direction)[0] for direction in DIRECTIONS)
    return _intersection(forward, reverse)


def powers(
    parts: Parts, fprs: Sequence[float], accuracy: float = ACCURACY, *, direction: DirectionChoice = "worse"
) -> list[Interval]:
    """The largest true positive rate of an attack at each false positive rate, bracketed.

    An attack distinguishes P from Q ("forward": a false positive is a Q taken for a P) or Q from P
    ("reverse"). From above, by `TPR <= e^eps FPR + delta(eps)` and, from the other direction's
    delta', `1 - FPR <= e^eps (1 - TPR) + delta'(eps)`, at every eps of the curves; from below, the
    tests "loss >= L_J" themselves, and mixtures of them.

    Args:
        parts: the rounds and their counts.
        fprs: false positive rates.
        accuracy: the relative width that intervals should have.
        direction: the worse one, or one of the two.

    Returns:
        An interval for each rate; one that misses the accuracy is wider, but valid.
    """
    parts, fprs = _merged_parts(parts), [_validate.delta(fpr, "fpr") for fpr in fprs]
    directions = _directions(direction)
    if _is_gaussian(parts):
        return [gaussian.power_at(_local_width(parts), fpr) for fpr in fprs]
    caps = [Interval(lower=fpr, upper=gaussian.power_at(_local_width(parts), fpr).upper) for fpr in fprs]
    if not in_range(parts):
        return _from_limits(parts, caps, lambda within: powers(within, fprs, accuracy, direction=direction))
    budget = budget_for(parts, min(_USUAL_FPR_MIN, *fprs))

    def brackets_at(half: int) -> list[_Bracket]:
        composition = Composition(parts=parts, half=half, budget=budget)
        brackets = []
        for fpr, cap in zip(fprs, caps, strict=True):
            intervals = [_intersection(cap, _power_bracket(composition, direction_, fpr)) for direction_ in directions]
            brackets.append(_Bracket(interval=_worst_interval(intervals)))
        return brackets

    return _refined(parts, accuracy, brackets_at)


def highest_power(parts: Parts, fpr: float, half: int = 512) -> float:
    """An upper bound on the true positive rate, for rounds that have upper bounds only.

    Args:
        parts: the rounds and their counts.
        fpr: the false positive rate.
        half: the number of cells on each side of a level.

    Returns:
        The larger bound of the two directions.
    """
    composition = Composition(parts=parts, half=half, budget=budget_for(parts, min(_USUAL_FPR_MIN, fpr)))
    cap = gaussian.power_at(_local_width(parts), fpr).upper
    return max(fpr, min(cap, max(_power_bound(composition, direction, fpr) for direction in DIRECTIONS)))


def _power_bound(composition: Composition, direction: Direction, fpr: float) -> float:
    """An upper bound on the TPR at the FPR, from the curves of both directions."""
    epsilon, delta = composition.upper_curve(direction).points()
    # e^700 is near the largest double; a bound above 1 says nothing anyway.
    upper = float(np.min(fpr * np.exp(np.minimum(epsilon, 700.0)) + delta, initial=1.0))
    epsilon, delta = composition.upper_curve(_opposite_direction(direction)).points()
    upper = min(upper, float(np.min(1.0 - np.exp(-epsilon) * (1.0 - fpr - delta), initial=1.0)))
    return max(fpr, upper * (1.0 + 8.0 * UNIT))


def _opposite_direction(direction: Direction) -> Direction:
    return "reverse" if direction == "forward" else "forward"


def _power_bracket(composition: Composition, direction: Direction, fpr: float) -> Interval:
    """The largest TPR at the FPR, bracketed by the curves of both directions."""
    lower = float(np.interp(fpr, *_test_rates(composition, direction)))
    return _ordered(max(fpr, lower * (1.0 - 8.0 * UNIT)), _power_bound(composition, direction, fpr))


@functools.lru_cache(maxsize=8)
def _test_rates(composition: Composition, direction: Direction) -> tuple[FloatArray, FloatArray]:
    """False (too large) and true positive rates (too small) of tests and mixtures of tests."""
    curves, opposite_curves = composition.curves(direction), composition.curves(_opposite_direction(direction))
    # Masses from below are too small, as delta needs them; a false positive rate must be too large.
    factor, extra = composition.test_error()
    base, top = curves["lower"].masses()
    opposite_base, opposite_top = opposite_curves["lower"].masses()
    base, opposite_base = (mass * factor + extra for mass in (base, opposite_base))
    # The trivial tests, the tests "loss >= L_J", and those of the other direction with their decisions exchanged.
    fprs = np.clip(np.concatenate([[0.0, 1.0], base, 1.0 - opposite_top]), 0.0, 1.0)
    powers = np.clip(np.concatenate([[0.0, 1.0], top, 1.0 - opposite_base]), 0.0, 1.0)
    return _concave_hull(fprs, powers)


def _concave_hull(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The upper concave hull of points, which mixtures of tests reach."""
    # Among tests with equal false positive rates the best comes first and hides the others.
    order = np.lexsort((-y, x))
    corners: list[tuple[float, float]] = []
    for point in zip(x[order].tolist(), y[order].tolist(), strict=True):
        while len(corners) > 1 and _turns_left(corners[-2], corners[-1], point):
            corners.pop()
        if not corners or point[1] > corners[-1][1]:
            corners.append(point)
    xs, ys = zip(*corners, strict=True)
    return np.array(xs), np.array(ys)


def _turns_left(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether the path from a over b to c turns left, or not at all."""
    return (b[0] - a[0]) * (c[1] - a[1]) >= (c[0] - a[0]) * (b[1] - a[1])

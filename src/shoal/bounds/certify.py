"""Certified answers: eps, delta, trade-off curve and advantage of any rounds run together.

Every answer is an `Interval`: its upper end is the guarantee, its lower end says how much of it may
be slack. Both come from `composition`, at a resolution that is refined until the interval is as
narrow as asked; the worse of the two directions D(P||Q) and D(Q||P) is given unless one is named.

One plain report a round, `S = W`, has a closed form (the Gaussian mechanism), whose intervals are
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
"""Relative width in epsilon that is asked for by default."""

_CROSSING = 1e-12
"""How far, in relative terms, bounds that are both exact may cross."""

_FLAT = 0.01
"""Where delta falls more slowly than this power of eps, digits of eps are not worth their time."""

_HALVES = (384, 448, 512, 640, 1024, 2048, 4096)
"""Cells to a level of the law, from the coarsest to the finest."""


_SPARE = 6.0
"""Digits between the smallest delta asked for and what may be cut for it."""

_BUDGET_STEP, _BUDGET_MOST = 12.0, -24.0
"""Budgets are powers of ten in such steps, and none is larger: questions about other deltas share a law."""

_FAR = 64.0
"""A bracket that is this many times too wide says little about how its width falls."""

_STUCK = 0.8
"""Twice the cells divide a width by four: if this much is left, something else limits it."""

SLOPE_DIVISOR = 1e3
"""How steeply delta falls is read over such a part of eps: a bracket of delta may be wider by as much."""


_SMALLEST_DELTA, _SMALLEST_FPR = 1e-12, 1e-6
"""Budgets of questions whose delta is not known beforehand: as if for one as small as people ask for."""


# Rounds that are one plain report


def _is_gaussian(parts: Parts) -> bool:
    """Whether every round is one plain report W: no shuffler, no sampling, no coin."""
    return all(mean.is_gaussian for mean, _ in parts)


def _local_width(parts: Parts) -> float:
    """The width of the Gaussian mechanism that the rounds are post-processing of.

    Forgetting who sent which report, and who took part, can only help: each round is dominated by
    the one report of the user who moved.
    """
    scales = [mean.ratio.scale for mean, _ in parts]
    # 0: a noise of which no Gaussian is known that is no more private
    if min(scales) == 0.0:
        return math.inf
    squares = [rounds / scale**2 for scale, (_, rounds) in zip(scales, parts, strict=True)]
    return math.sqrt(math.fsum(squares))


# Public questions


def _checked(parts: Parts) -> Parts:
    """Equal rounds together, counts checked and added up here and nowhere else."""
    counts: dict[Round, int] = {}
    for mean, rounds in parts:
        counts[mean] = counts.get(mean, 0) + _validate.rounds(rounds)
    if not counts:
        raise ValueError("parts must not be empty")
    return tuple(counts.items())


def _directions(direction: DirectionChoice) -> tuple[Direction, ...]:
    _validate.choice("direction", direction, ("worse", "forward", "reverse"))
    return DIRECTIONS if direction == "worse" else (direction,)


def budget_for(parts: Parts, smallest: float) -> float:
    """Mass that may be cut off a round: a millionth of the smallest delta, shared by the rounds."""
    total = sum(rounds for _, rounds in parts)
    # Below 1e-100 the masses of cells would come near the smallest doubles.
    exponent = math.log10(max(smallest, 1e-100) / total) - _SPARE
    return float(10.0 ** min(_BUDGET_MOST, _BUDGET_STEP * math.floor(exponent / _BUDGET_STEP)))


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """A bracket, and how many times its relative width may exceed the accuracy."""

    interval: Interval
    slope: float = 1.0

    @property
    def width(self) -> float:
        upper = self.interval.upper
        return self.interval.width / (upper * self.slope) if 0.0 < upper < math.inf else float(upper > 0.0)


def _refined(parts: Parts, accuracy: float, answer: Callable[[int], list[_Answer]]) -> list[Interval]:
    """Ask at finer and finer resolution; every answer is valid, so their intersection is."""
    accuracy = _validate.real("accuracy", accuracy)
    if accuracy <= 0.0:
        raise ValueError(f"accuracy must be positive, got {accuracy}")
    place = _HALVES.index(max(mean.ratio.cells for mean, _ in parts))
    best = answer(_HALVES[place])
    excess = max(one.width for one in best) / accuracy
    while excess > 1.0 and place + 1 < len(_HALVES):
        # Widths fall with the square of the resolution (a tenth more, to be there at once); from a bad start it goes
        # step by step, because a law costs the square of its cells.
        wanted = _HALVES[place] * (max(1.25, math.sqrt(1.1 * excess)) if excess < _FAR else 2.0)
        last, place = place, min(max(place + 1, bisect.bisect_left(_HALVES, wanted)), len(_HALVES) - 1)
        finer = answer(_HALVES[place])
        best = [replace(new, interval=_meet(old.interval, new.interval)) for old, new in zip(best, finer, strict=True)]
        before, excess = excess, max(one.width for one in best) / accuracy
        if excess > _STUCK * before and before < _FAR and _HALVES[place] >= 2 * _HALVES[last]:
            break
    return [one.interval for one in best]


def _meet(one: Interval, other: Interval) -> Interval:
    """Two brackets of one number; they overlap, or one of them is wrong."""
    return _ordered(max(one.lower, other.lower), min(one.upper, other.upper))


def _worst(intervals: Sequence[Interval]) -> Interval:
    return Interval(lower=max(i.lower for i in intervals), upper=max(i.upper for i in intervals))


def in_range(parts: Parts) -> bool:
    """Whether the law was made for these rounds; elsewhere the local guarantee is all that is claimed."""
    return all(mean.is_in_range and rounds <= LAW_ROUNDS_MAX for mean, rounds in parts)


def limited(parts: Parts) -> Parts:
    """The rounds within the limits on users and noise: never better, so a bound from above for those beyond."""
    return tuple((part.limited(), rounds) for part, rounds in parts)


def _from_limits(parts: Parts, caps: list[Interval], answer: Callable[[Parts], list[Interval]]) -> list[Interval]:
    """What the limits say of rounds beyond them, if that is all that is wrong with these rounds."""
    within = limited(parts)
    # Too little noise, or too many rounds: limits on users and noise do not help.
    if within == parts or not in_range(within):
        return caps
    return [
        Interval(lower=cap.lower, upper=min(cap.upper, found.upper))
        for cap, found in zip(caps, answer(within), strict=True)
    ]


def _ordered(lower: float, upper: float) -> Interval:
    """A bracket, whose ends may cross by the rounding of their last steps and not by more."""
    if lower > upper * (1.0 + _CROSSING):
        raise ArithmeticError(f"lower bound {lower} above upper bound {upper}: please report this as a bug")
    return Interval(lower=min(lower, upper), upper=upper)


def epsilons(
    parts: Parts, deltas: Sequence[float], accuracy: float = ACCURACY, *, direction: DirectionChoice = "worse"
) -> list[Interval]:
    """eps at each delta, bracketed; `accuracy` is the relative width wanted.

    Where delta is so close to the total variation distance that eps is nearly 0, and a relative change
    of delta moves eps by more than a hundred times as much, the width wanted grows in proportion.

    Where the accuracy is not reached (or a scale is below the range of the law) the interval is
    wider, but valid.
    """
    parts, asked = _checked(parts), [_validate.delta(d) for d in deltas]
    ways = _directions(direction)
    local = [gaussian.epsilon_at(_local_width(parts), d) for d in asked]
    if _is_gaussian(parts):
        return local
    caps = [Interval(lower=0.0, upper=interval.upper) for interval in local]
    if not in_range(parts) or min(asked) < DELTA_MIN:
        return _from_limits(parts, caps, lambda within: epsilons(within, asked, accuracy, direction=direction))
    budget = budget_for(parts, min(asked))
    left = [ways] * len(asked)

    def answer(half: int) -> list[_Answer]:
        together = Composition(parts=parts, half=half, budget=budget)
        found = []
        for place, (d, cap) in enumerate(zip(asked, caps, strict=True)):
            if together.total_variation() <= d:
                found.append(_Answer(interval=Interval(lower=0.0, upper=0.0)))
                continue
            each: dict[Direction, Interval] = {}
            least = steep = 0.0
            for way in left[place]:
                # A direction that is surely the better one need not be composed, nor refined.
                if each and together.simple_epsilon(way, d) < least:
                    continue
                curves = together.near_delta(way, d)
                each[way] = _ordered(curves["lower"].epsilon(d), curves["upper"].epsilon(d))
                least = max(least, each[way].lower)
                # -d log(delta) / d log(eps), below 1 where delta is nearly the total variation distance
                steep = max(steep, curves["upper"].slope(each[way].upper, d) * each[way].upper)
            left[place] = tuple(way for way, interval in each.items() if interval.upper >= least)
            bracket = _meet(_worst(list(each.values())), cap)
            found.append(_Answer(interval=bracket, slope=max(1.0, _FLAT / steep) if steep > 0.0 else 1.0))
        return found

    return _refined(parts, accuracy, answer)


def deltas(
    parts: Parts, epsilons: Sequence[float], accuracy: float = ACCURACY, *, direction: DirectionChoice = "worse"
) -> list[Interval]:
    """delta at each eps, bracketed as tightly as a relative width `accuracy` in eps would be.

    A relative change of eps is `-d log(delta) / d log(eps)` times that of delta.
    """
    parts, asked = _checked(parts), [_validate.epsilon(e) for e in epsilons]
    ways = _directions(direction)
    width = _local_width(parts)
    local = [gaussian.delta_at(width, e) for e in asked]
    if _is_gaussian(parts):
        return local
    caps = [Interval(lower=0.0, upper=interval.upper) for interval in local]
    if not in_range(parts):
        return _from_limits(parts, caps, lambda within: deltas(within, asked, accuracy, direction=direction))
    budget = budget_for(parts, _SMALLEST_DELTA)

    def answer(half: int) -> list[_Answer]:
        together = Composition(parts=parts, half=half, budget=budget)
        found = []
        for e, cap in zip(asked, caps, strict=True):
            if e > EPSILON_MAX:
                # e^eps times a mass is near the end of doubles: the local guarantee is told, as it is.
                found.append(_Answer(interval=cap, slope=math.inf))
                continue
            curves = [together.curves(way) for way in ways]
            each = [_ordered(c["lower"].delta(e), c["upper"].delta(e)) for c in curves]
            here, there = (max(c["upper"].delta(x) for c in curves) for x in (e, (1.0 + 1.0 / SLOPE_DIVISOR) * e))
            slope = max(1.0, SLOPE_DIVISOR * math.log(here / there)) if 0.0 < there < here else 1.0
            negligible = here <= DELTA_MIN  # nobody asks for its digits
            bracket = _meet(_worst(each), cap)
            # A delta that underflowed is no proof of pure differential privacy.
            bracket = Interval(lower=bracket.lower, upper=max(bracket.upper, gaussian.SMALLEST_DOUBLE))
            found.append(_Answer(interval=bracket, slope=math.inf if negligible else slope))
        return found

    return _refined(parts, accuracy, answer)


def advantage(parts: Parts, accuracy: float = ACCURACY) -> Interval:
    """The largest TPR - FPR of any attack: the total variation distance, delta at eps = 0."""
    # The distance is the same both ways: two brackets of one number.
    forward, reverse = (deltas(parts, [0.0], accuracy, direction=way)[0] for way in DIRECTIONS)
    return _meet(forward, reverse)


def powers(
    parts: Parts, fprs: Sequence[float], accuracy: float = ACCURACY, *, direction: DirectionChoice = "worse"
) -> list[Interval]:
    """The largest true positive rate of an attack at each false positive rate, bracketed.

    An attack tells P from Q ("forward": a false positive is a Q taken for a P) or Q from P
    ("reverse"). From above, by `TPR <= e^eps FPR + delta(eps)` and, from the other direction's
    delta', `1 - FPR <= e^eps (1 - TPR) + delta'(eps)`, at every eps of the curves; from below, the
    tests "loss >= L_J" themselves, and mixtures of them.
    """
    parts, asked = _checked(parts), [_validate.delta(f, "fpr") for f in fprs]
    ways = _directions(direction)
    if _is_gaussian(parts):
        return [gaussian.power_at(_local_width(parts), f) for f in asked]
    caps = [Interval(lower=f, upper=gaussian.power_at(_local_width(parts), f).upper) for f in asked]
    if not in_range(parts):
        return _from_limits(parts, caps, lambda within: powers(within, asked, accuracy, direction=direction))
    budget = budget_for(parts, min(_SMALLEST_FPR, *asked))

    def answer(half: int) -> list[_Answer]:
        together = Composition(parts=parts, half=half, budget=budget)
        found = []
        for fpr, cap in zip(asked, caps, strict=True):
            each = [_meet(cap, _power(together, way, fpr)) for way in ways]
            found.append(_Answer(interval=_worst(each)))
        return found

    return _refined(parts, accuracy, answer)


def highest_power(parts: Parts, fpr: float, half: int = 512) -> float:
    """An upper bound on the true positive rate, both ways, for rounds of which only that is known."""
    together = Composition(parts=parts, half=half, budget=budget_for(parts, min(_SMALLEST_FPR, fpr)))
    cap = gaussian.power_at(_local_width(parts), fpr).upper
    return max(fpr, min(cap, max(_power_bound(together, way, fpr) for way in DIRECTIONS)))


def _power_bound(rounds: Composition, direction: Direction, fpr: float) -> float:
    epsilon, delta = rounds.upper_curve(direction).points()
    # e^700 is near the largest double; a bound above 1 says nothing anyway.
    upper = float(np.min(fpr * np.exp(np.minimum(epsilon, 700.0)) + delta, initial=1.0))
    epsilon, delta = rounds.upper_curve(_other(direction)).points()
    upper = min(upper, float(np.min(1.0 - np.exp(-epsilon) * (1.0 - fpr - delta), initial=1.0)))
    return max(fpr, upper * (1.0 + 8.0 * UNIT))


def _other(direction: Direction) -> Direction:
    return "reverse" if direction == "forward" else "forward"


def _power(rounds: Composition, direction: Direction, fpr: float) -> Interval:
    """The largest TPR at the FPR, from the curves of both directions."""
    lower = float(np.interp(fpr, *_tests(rounds, direction)))
    return _ordered(max(fpr, lower * (1.0 - 8.0 * UNIT)), _power_bound(rounds, direction, fpr))


@functools.lru_cache(maxsize=8)
def _tests(rounds: Composition, direction: Direction) -> tuple[FloatArray, FloatArray]:
    """False (too large) and true positive rates (too small) that tests and mixtures of tests have."""
    here, there = rounds.curves(direction), rounds.curves(_other(direction))
    # Masses from below are too small for delta's sake; a false positive rate must be too large.
    factor, extra = rounds.test_error()
    base, top = here["lower"].masses()
    other_base, other_top = there["lower"].masses()
    base, other_base = (mass * factor + extra for mass in (base, other_base))
    # Never and always, the tests "loss >= L_J", and those of the other direction with their decisions exchanged.
    false = np.clip(np.concatenate([[0.0, 1.0], base, 1.0 - other_top]), 0.0, 1.0)
    true = np.clip(np.concatenate([[0.0, 1.0], top, 1.0 - other_base]), 0.0, 1.0)
    return _hull(false, true)


def _hull(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The concave hull from above of points: what mixtures of tests reach."""
    # Among tests with one false positive rate the best comes first and hides the others.
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
    return (b[0] - a[0]) * (c[1] - a[1]) >= (c[0] - a[0]) * (b[1] - a[1])

"""Two searches for the place where a function changes sign: over real numbers, and over whole ones.

The function is the excess of a mechanism, log(epsilon / target), and the place is a parameter on a logarithmic scale.
A bracket has a *missed* end, where the excess is positive, and a *met* end, where it is not. Each end was computed, so
the met end of the final bracket is an answer whatever chose the points in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

Point = tuple[float, float]
"""A place on a logarithmic scale, and the excess there (or, of a guess, the slope)."""

Bracket = tuple[Point, Point]
"""The missed end and the met end."""

Counted = tuple[int, Point]
"""A whole number, with its logarithm and its excess."""

_SLOPE_TRIES = 6
"""Evaluations for a search that follows a slope; then one that needs no slope takes over."""

_TURNS_MAX = 200
"""More turns than any search takes: each eighth turn halves the bracket."""

_HALVING_TURN = 8
"""How often the middle of a bracket is taken, whatever the interpolation says."""

_MARGIN_PART = 0.3
"""A guess lies this part of the final width beyond the interpolated place, so that the bracket closes on it."""

_FIRST_FACTOR, _LARGEST_FACTOR = 4, 64
"""Whole numbers are first tried in growing factors: they range over twelve orders of magnitude."""


def expand(excess: Callable[[float], float], first: float, last: float, start: float) -> Bracket | None:
    """A bracket of a falling function around 0, reached by growing steps.

    Args:
        excess: The function.
        first: The first allowed place.
        last: The last allowed place.
        start: Where to begin.

    Returns:
        The bracket, or None if no allowed place is met.
    """
    end = (start, excess(start))
    is_rising = end[1] > 0.0
    step = math.log(2.0)
    while True:
        x = min(end[0] + step, last) if is_rising else max(end[0] - step, first)
        if x == end[0]:
            return None if is_rising else (end, end)
        further = (x, excess(x))
        if (further[1] > 0.0) != is_rising:
            return (end, further) if is_rising else (further, end)
        end, step = further, 2.0 * step


def bracket_near(
    excess: Callable[[float], float], guess: Point, ends: tuple[float, float], margin: float
) -> Bracket | None:
    """A bracket of a falling function around 0, reached from a guess by following its slope.

    Args:
        excess: The function.
        guess: A place, and the slope there.
        ends: The first and the last allowed place.
        margin: How far beyond the place that the slope points to the next evaluation is.

    Returns:
        The bracket, or None if there is none near the guess.
    """
    (x, slope), last = guess, None
    for _ in range(_SLOPE_TRIES):
        point = (x, excess(x))
        if last is not None and (point[1] > 0.0) != (last[1] > 0.0):
            return (point, last) if point[1] > 0.0 else (last, point)
        if last is not None and point[0] != last[0]:
            # Two evaluations of the function itself know its slope better.
            secant = (point[1] - last[1]) / (point[0] - last[0])
            slope = min(max(secant, 4.0 * slope), 0.25 * slope)
        last, step = point, -point[1] / slope
        if not math.isfinite(step):
            return None
        # A little beyond where the slope points, so that the other side of the root is seen.
        x = min(max(last[0] + 1.02 * step + math.copysign(margin, step), ends[0]), ends[1])
        if x == last[0]:
            return None
    return None


def narrow(excess: Callable[[float], float], bracket: Bracket, width: float) -> float:
    """The met end of a bracket, once both ends are within a width.

    The Illinois rule: an end that stays twice in a row counts half, so that the next guess lies beyond the root.

    Args:
        excess: The function, which falls.
        bracket: The bracket to start from.
        width: The width to reach.

    Returns:
        A place that is met.
    """
    missed, met = bracket
    weight, stayed = {"missed": 1.0, "met": 1.0}, ""
    for turn in range(_TURNS_MAX):
        if abs(met[0] - missed[0]) <= width:
            break
        weighted = (missed[0], missed[1] * weight["missed"]), (met[0], met[1] * weight["met"])
        x = _guess(*weighted, turn, _MARGIN_PART * width)
        point = (x, excess(x))
        if point[1] <= 0.0:
            met, stays, moves = point, "missed", "met"
        else:
            missed, stays, moves = point, "met", "missed"
        weight[moves] = 1.0
        weight[stays] = 0.5 * weight[stays] if stays == stayed else 1.0
        stayed = stays
    return met[0]


def _guess(missed: Point, met: Point, turn: int, margin: float) -> float:
    """The next place to evaluate: just to either side of where a straight line crosses 0, at times the middle."""
    middle = 0.5 * (missed[0] + met[0])
    if turn % _HALVING_TURN == _HALVING_TURN - 1 or not (math.isfinite(missed[1]) and math.isfinite(met[1])):
        return middle
    root = missed[0] + (met[0] - missed[0]) * missed[1] / (missed[1] - met[1])
    towards = math.copysign(margin, met[0] - missed[0])
    x = root + towards if turn % 2 == 0 else root - towards
    low, high = sorted((missed[0], met[0]))
    return x if low < x < high else middle


def whole_number(
    excess: Callable[[int], float],
    first: int,
    last: int,
    *,
    rising: bool,
    guess: Point | None = None,
    width: float = 0.0,
) -> int:
    """The whole number next to the place where the excess changes sign.

    Args:
        excess: The function of a whole number.
        first: The smallest allowed number; it is met if the function rises.
        last: The largest allowed number.
        rising: Whether the function rises, so that the largest number that is met is wanted, or falls.
        guess: A place on a logarithmic scale, and the slope there.
        width: The relative width of a bracket that is narrow enough.

    Returns:
        Falling: the smallest number that is met (last + 1 if there is none). Rising: the largest.
    """
    ends = _counted_near(excess, first, last, guess)
    if ends is None:
        start = _counted(excess, first)
        if not rising and start[1][1] <= 0.0:
            return first
        ends = _expand_counts(excess, start, last, rising)
        if ends is None:
            return last if rising else last + 1
    low, high = _narrow_counts(excess, ends, rising, width)
    return low if rising else high


def _counted(excess: Callable[[int], float], number: int) -> Counted:
    return number, (math.log(number), excess(number))


def _expand_counts(
    excess: Callable[[int], float], start: Counted, last: int, rising: bool
) -> tuple[Counted, Counted] | None:
    """Two numbers with the change of sign between them, reached by growing factors."""
    low, factor = start, _FIRST_FACTOR
    while True:
        number = min(low[0] * factor, last)
        if number == low[0]:
            return None
        high = _counted(excess, number)
        if (high[1][1] > 0.0) == rising:
            return low, high
        low, factor = high, min(factor * 2, _LARGEST_FACTOR)


def _narrow_counts(
    excess: Callable[[int], float], ends: tuple[Counted, Counted], rising: bool, width: float
) -> tuple[int, int]:
    """Neighbouring numbers with the change of sign between them, or two within the relative width."""
    (low, high), turn, stayed = ends, 0, ""
    while high[0] - low[0] > max(1.0, width * low[0]):
        missed, met = (high[1], low[1]) if rising else (low[1], high[1])
        x = math.exp(_guess(missed, met, turn, _MARGIN_PART * width))
        # In turns on either side of the guess, so that a good guess closes the bracket in two evaluations.
        number = min(max(round(x) + (turn % 2 if x > low[0] else 0), low[0] + 1), high[0] - 1)
        middle = _counted(excess, number)
        # The Illinois rule, as in `narrow`.
        if (middle[1][1] > 0.0) == rising:
            high, low, stayed = middle, _halved(low, stayed == "low"), "low"
        else:
            low, high, stayed = middle, _halved(high, stayed == "high"), "high"
        turn += 1
    return low[0], high[0]


def _halved(end: Counted, again: bool) -> Counted:
    """An end that stays: if once more, it counts half."""
    number, (x, excess) = end
    return number, (x, 0.5 * excess if again else excess)


def _counted_near(
    excess: Callable[[int], float], first: int, last: int, guess: Point | None
) -> tuple[Counted, Counted] | None:
    """Two numbers with the change of sign between them, reached by `bracket_near`; the smaller one is missed."""
    if guess is None or guess[0] <= math.log(first):
        return None
    seen: dict[int, Point] = {}

    def at(x: float) -> float:
        number = min(max(round(math.exp(x)), first), last)
        # A slope that points to a number that was seen means the next one on the other side of the root.
        if number in seen:
            number = min(max(number + (1 if seen[number][1] > 0.0 else -1), first), last)
        if number not in seen:
            seen[number] = _counted(excess, number)[1]
        return seen[number][1]

    if bracket_near(at, guess, (math.log(first), math.log(last)), 0.0) is None:
        return None
    low = max(_with_sign(seen, is_met=False), default=None)
    high = min(_with_sign(seen, is_met=True), default=None)
    return (low, high) if low and high and low[0] < high[0] else None


def _with_sign(seen: dict[int, Point], *, is_met: bool) -> Iterable[Counted]:
    return (item for item in seen.items() if (item[1][1] <= 0.0) == is_met)

"""The least noise, the most rounds, the fewest users that meet a privacy target.

Every function returns a value for which the *upper* bound on epsilon was computed and found to be
at most the target: the search narrows a bracket whose safe end is always such a value. Brackets
expand by themselves, so no starting point is needed; interpolation only chooses where to look next.

For any crowd, where one epsilon is dear, the search starts where coarser laws meet the target (`_Target.nearby`): that
only chooses where to look, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shoal import _validate
from shoal.accountant import Accountant
from shoal.bounds import certify
from shoal.bounds.anycrowd import evaluate
from shoal.errors import InvalidInput, Unreachable
from shoal.mechanisms import Mechanism, bounds
from shoal.query import EPSILON, Bounds, Method, Options, guarantee

_TOLERANCE = 1e-4
"""How far above the least sigma the one that is returned may be, as a part of it."""

_JAGGED = 2e-4
"""About the height of the steps in which epsilon of any crowd falls with users: looking closer only finds a step."""

_COARSE = 4.0 * certify.ACCURACY
"""The accuracy of laws that only say where to look: a quarter of the work."""

_STEP = math.log(2.0)
"""How far such a search goes at once."""

_NEAR = 0.02
"""Within this of the target, on a logarithmic scale, a slope says where it is met."""

_FLAT = 0.01
"""Where epsilon falls more slowly than this power, a slope says nothing."""

_LOOKS, _TRIES = 8, 6
"""So many looks by coarse laws, and so many by fine ones; then the search that needs no slope takes over."""


Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class _Target:
    """What is to be met, and how epsilon is computed."""

    epsilon: float
    delta: float
    options: Options

    @classmethod
    def checked(cls, epsilon: Any, delta: Any, method: Method, orders: Any, accuracy: float) -> _Target:
        target = _validate.epsilon(epsilon, positive=True)
        options = Options(method=method, orders=orders, accuracy=accuracy)
        return cls(epsilon=target, delta=_validate.delta(delta), options=options)

    def spent(self, mechanism: Mechanism, rounds: int, after: Accountant | None = None) -> float:
        counts = {entry.mechanism: entry.rounds for entry in after or ()}
        counts[mechanism] = counts.get(mechanism, 0) + rounds
        return guarantee(EPSILON, bounds(counts.items()), self.delta, self.options)

    def excess(self, mechanism: Mechanism, rounds: int, after: Accountant | None = None) -> float:
        """log(epsilon / target): met if it is not positive."""
        return self._log(self.spent(mechanism, rounds, after))

    def _log(self, spent: float) -> float:
        return math.log(spent / self.epsilon) if spent > 0.0 else -math.inf

    def is_dear(self, mechanism: Mechanism, rounds: int) -> bool:
        """Whether one epsilon takes long: for any crowd, tightly."""
        return self.options.method == "tight" and evaluate.is_any(mechanism.bounds(rounds).upper)

    def nearby(self, make: Callable[[float], Mechanism], rounds: int, ends: Point, start: float) -> Point | None:
        """For any crowd: about where the target is met, and how fast the excess falls there.

        The identical crowd says roughly where that is, coarse laws say it better. None where they do not know.
        """

        def parts(x: float) -> Bounds:
            return make(x).bounds(rounds)

        def ideal(x: float) -> float:
            return self._log(certify.epsilons(parts(x).attacks[0], [self.delta], 0.01)[0].upper)

        def coarse(x: float) -> float:
            return self._log(evaluate.upper_epsilon(parts(x).upper, self.delta, _COARSE))

        if not self.is_dear(make(start), rounds):
            return None
        bracket = _expand(ideal, *ends, start)
        if bracket is None:
            return None
        # To a tenth: any crowd meets the target somewhere else anyway. The slope is more alike.
        x = _narrow(ideal, bracket, 0.1)
        slope = (ideal(x + 0.2) - ideal(x)) / 0.2
        # Any crowd asks for more; coming from above the first looks are cheap, and few.
        here, seen = (-math.inf, math.nan), (math.inf, -math.inf)
        x = min(x + _STEP, ends[1])
        for _ in range(_LOOKS):
            there = (x, coarse(x))
            if math.isfinite(here[0]) and there[0] != here[0]:
                slope = (there[1] - here[1]) / (there[0] - here[0])
            if not (math.isfinite(there[1]) and math.isfinite(slope) and slope < -_FLAT):
                return None
            here, way = there, -there[1] / slope
            # between what was met and what was not, and not far from here
            seen = (seen[0], max(seen[1], x)) if there[1] > 0.0 else (min(seen[0], x), seen[1])
            x = min(max(x + min(max(way, -_STEP), 2.0 * _STEP), ends[0]), ends[1])
            if abs(there[1]) < _NEAR or x == here[0]:
                return x, slope
            if not seen[1] < x < seen[0]:
                x = 0.5 * (seen[0] + seen[1])
        return None


def sigma(
    make: Callable[[float], Mechanism],
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    method: Method = "tight",
    orders: Any = None,
    accuracy: float = certify.ACCURACY,
    tolerance: float = _TOLERANCE,
) -> float:
    """The least noise multiplier that meets the target, to a relative `tolerance` above it.

    `make` turns a sigma into a mechanism.

    >>> from shoal import LocalGaussian
    >>> s = sigma(lambda sigma: LocalGaussian(sigma=sigma), epsilon=1.0, delta=1e-5)
    >>> LocalGaussian(sigma=s).epsilon(delta=1e-5).upper <= 1.0
    True
    """
    target = _Target.checked(epsilon, delta, method, orders, accuracy)
    count = _validate.rounds(rounds)
    width = _validate.real("tolerance", tolerance)
    if not 1e-12 <= width <= 1.0:
        raise InvalidInput(f"tolerance must lie between 1e-12 and 1, got {width}")
    # A factor of two inside the allowed range, so that sigma / 2 (replace) is allowed as well.
    # Clamped after the logarithm and back, whose rounding could step outside.
    least, most = 2.0 * _validate.SIGMA_RANGE[0], _validate.SIGMA_RANGE[1]

    def at(log_sigma: float) -> Mechanism:
        return make(min(max(math.exp(log_sigma), least), most))

    def excess(log_sigma: float) -> float:
        return target.excess(at(log_sigma), count)

    # Little noise takes longest to analyse: come from above, from more than most people need.
    ends, start = (math.log(least), math.log(most)), math.log(8.0)
    near = target.nearby(at, count, ends, start)
    bracket = near and _around(excess, near, ends, 0.3 * width)
    bracket = bracket or _expand(excess, *ends, start)
    if bracket is None:
        raise Unreachable(f"epsilon must be reachable, got {target.epsilon}, which even sigma = {most:g} does not meet")
    return min(max(math.exp(_narrow(excess, bracket, math.log1p(width))), least), most)


def rounds(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float,
    after: Accountant | None = None,
    method: Method = "tight",
    orders: Any = None,
    accuracy: float = certify.ACCURACY,
) -> int:
    """The largest number of rounds that meets the target, 10^12 at most.

    They come on top of the rounds that `after` lists already, where it is given.

    >>> from shoal import ShuffledCheckIn
    >>> m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    >>> t = rounds(m, epsilon=1.0, delta=1e-5)
    >>> m.epsilon(delta=1e-5, rounds=t).upper <= 1.0
    True
    """
    target = _Target.checked(epsilon, delta, method, orders, accuracy)
    if target.excess(mechanism, 1, after) > 0.0:
        least = target.spent(mechanism, 1, after)
        what = "one round" if after is None else "the rounds so far and one more"
        raise Unreachable(f"epsilon must be at least {least:.6g}, the cost of {what}, got {target.epsilon}")
    # Every number of rounds that is looked at is one whose upper bound was computed; the answer is one that met it.
    return _fewest(lambda count: target.excess(mechanism, count, after), 1, _most(mechanism, after), rising=True)


def _most(mechanism: Mechanism, after: Accountant | None) -> int:
    """How many rounds more an accountant can count."""
    return _validate.ROUNDS_MAX - sum(entry.rounds for entry in after or () if entry.mechanism == mechanism)


def users(
    make: Callable[[int], Mechanism],
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    at_least: int = 1,
    method: Method = "tight",
    orders: Any = None,
    accuracy: float = certify.ACCURACY,
) -> int:
    """The least number of users, from `at_least` up, that meets the target.

    `make` turns a number of users into a mechanism. For any crowd, whose epsilon falls in small steps, it is the least
    to one part in 5,000.

    >>> from shoal import Shuffle
    >>> m = Shuffle(users=1, sigma=2.0, crowd="identical")
    >>> n = users(lambda users: m.replace(users=users), epsilon=0.1, delta=1e-6)
    >>> m.replace(users=n).epsilon(delta=1e-6).upper <= 0.1
    True
    """
    target = _Target.checked(epsilon, delta, method, orders, accuracy)
    count = _validate.rounds(rounds)
    first = _validate.users("at_least", at_least)

    def excess(number: int) -> float:
        try:
            mechanism = make(number)
        except ValueError as error:
            if number == first:
                raise
            # What is allowed for few users may end with many, as a rate that becomes too small.
            raise Unreachable(
                f"epsilon must be reachable, got {target.epsilon}, and {number} users: {error}"
            ) from error
        return target.excess(mechanism, count)

    ends = (math.log(first), math.log(_validate.USERS_MAX))
    try:
        near = target.nearby(
            lambda x: make(min(max(round(math.exp(x)), first), _validate.USERS_MAX)), count, ends, ends[0]
        )
    except ValueError:
        near = None  # `excess` will say what is wrong
    width = _JAGGED if target.is_dear(make(first), count) else 0.0
    found = _fewest(excess, first, _validate.USERS_MAX, rising=False, near=near, width=width)
    if found > _validate.USERS_MAX:
        raise Unreachable(
            f"epsilon must be reachable, got {target.epsilon}: none found up to {_validate.USERS_MAX:,} users"
        )
    return found


# Brackets: (x, excess) of a point that is not met and of one that is, x on a logarithmic scale


def _expand(excess: Callable[[float], float], least: float, most: float, start: float) -> tuple[Point, Point] | None:
    """A bracket of a falling function around 0, found from a start by growing steps."""
    here = (start, excess(start))
    up = here[1] > 0.0
    step = math.log(2.0)
    while True:
        x = min(here[0] + step, most) if up else max(here[0] - step, least)
        if x == here[0]:
            return None if up else (here, here)
        there = (x, excess(x))
        if (there[1] > 0.0) != up:
            return (here, there) if up else (there, here)
        here, step = there, 2.0 * step


def _around(excess: Callable[[float], float], near: Point, ends: Point, margin: float) -> tuple[Point, Point] | None:
    """A bracket of a falling function around 0, found from where a slope says that it is; None if it is not there."""
    (x, slope), here = near, None
    for _ in range(_TRIES):
        there = (x, excess(x))
        if here is not None and (there[1] > 0.0) != (here[1] > 0.0):
            return (there, here) if there[1] > 0.0 else (here, there)
        if here is not None and there[0] != here[0]:
            # Two looks at the function itself know its slope better.
            seen = (there[1] - here[1]) / (there[0] - here[0])
            slope = min(max(seen, 4.0 * slope), 0.25 * slope)
        here, way = there, -there[1] / slope
        if not math.isfinite(way):
            return None
        # A little beyond where the slope points, so that the other side of the root is seen.
        x = min(max(here[0] + 1.02 * way + math.copysign(margin, way), ends[0]), ends[1])
        if x == here[0]:
            return None
    return None


def _narrow(excess: Callable[[float], float], bracket: tuple[Point, Point], width: float) -> float:
    """The met end of the bracket, once both ends are within the width.

    The Illinois rule: an end that stays twice in a row counts half, so that the next guess lies
    beyond the root.
    """
    bad, good = bracket
    weight, stayed = {"bad": 1.0, "good": 1.0}, ""
    for turn in range(200):  # each eighth turn halves the bracket: it ends much sooner
        if abs(good[0] - bad[0]) <= width:
            break
        x = _guess((bad[0], bad[1] * weight["bad"]), (good[0], good[1] * weight["good"]), turn, 0.3 * width)
        there = (x, excess(x))
        if there[1] <= 0.0:
            good, stays, moves = there, "bad", "good"
        else:
            bad, stays, moves = there, "good", "bad"
        weight[moves] = 1.0
        weight[stays] = 0.5 * weight[stays] if stays == stayed else 1.0
        stayed = stays
    return good[0]


def _guess(bad: Point, good: Point, turn: int, margin: float) -> float:
    """Where to look next: just to either side of where a straight line crosses 0, at times the middle."""
    middle = 0.5 * (bad[0] + good[0])
    if turn % 8 == 7 or not (math.isfinite(bad[1]) and math.isfinite(good[1])):
        return middle
    root = bad[0] + (good[0] - bad[0]) * bad[1] / (bad[1] - good[1])
    towards = math.copysign(margin, good[0] - bad[0])
    x = root + towards if turn % 2 == 0 else root - towards
    low, high = sorted((bad[0], good[0]))
    return x if low < x < high else middle


def _fewest(
    excess: Callable[[int], float], first: int, most: int, *, rising: bool, near: Point | None = None,
    width: float = 0.0,
) -> int:  # fmt: skip
    """The whole number in [first, most] next to where the excess changes sign.

    Falling: the least one that is met (most + 1 if there is none). Rising: the largest one that is
    met, where the first one is. Up to a part `width` of it.
    """
    low, high = _beside(excess, first, most, near) or (None, None)
    if low is None or high is None:
        known: Point = (math.log(first), excess(first))
        if not rising and known[1] <= 0.0:
            return first
        # By growing factors: numbers range over twelve orders of magnitude.
        n, step = first, 4
        while True:
            further = min(n * step, most)
            if further == n:
                return most if rising else most + 1
            there = (math.log(further), excess(further))
            if (there[1] > 0.0) == rising:
                break
            n, known, step = further, there, min(step * 2, 64)
        low, high = (n, known), (further, there)
    turn, stayed = 0, ""
    while high[0] - low[0] > max(1.0, width * low[0]):
        bad, good = (high[1], low[1]) if rising else (low[1], high[1])
        x = math.exp(_guess(bad, good, turn, 0.3 * width))
        # In turns on the one and the other side of the guess, so that a good guess closes the bracket in two looks.
        middle = min(max(round(x) + (turn % 2 if x > low[0] else 0), low[0] + 1), high[0] - 1)
        there = (math.log(middle), excess(middle))
        # The Illinois rule, as in `_narrow`.
        if (there[1] > 0.0) == rising:
            high, low = (middle, there), _halved(low, stayed == "low")
            stayed = "low"
        else:
            low, high = (middle, there), _halved(high, stayed == "high")
            stayed = "high"
        turn += 1
    return low[0] if rising else high[0]


_Count = tuple[int, Point]


def _halved(end: _Count, again: bool) -> _Count:
    """An end that stays once more: it counts half."""
    number, (x, excess) = end
    return number, (x, 0.5 * excess if again else excess)


def _beside(
    excess: Callable[[int], float], first: int, most: int, near: Point | None
) -> tuple[_Count, _Count] | None:  # fmt: skip
    """`_around` for whole numbers."""
    if near is None or near[0] <= math.log(first):
        return None
    seen: dict[int, Point] = {}

    def at(x: float) -> float:
        number = min(max(round(math.exp(x)), first), most)
        # A slope that points to a number that was seen means the next one on the other side of the root.
        if number in seen:
            number = min(max(number + (1 if seen[number][1] > 0.0 else -1), first), most)
        if number not in seen:
            seen[number] = (math.log(number), excess(number))
        return seen[number][1]

    if _around(at, near, (math.log(first), math.log(most)), 0.0) is None:
        return None
    low = max((one for one in seen.items() if one[1][1] > 0.0), default=None)
    high = min((one for one in seen.items() if one[1][1] <= 0.0), default=None)
    return (low, high) if low and high and low[0] < high[0] else None

"""The least noise, the most rounds, the fewest users that meet a privacy target.

Every function returns a value for which the *upper* bound on epsilon was computed and found to be
at most the target: the search narrows a bracket whose safe end is always such a value. Brackets
expand by themselves, so no starting point is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shoal import _validate
from shoal.mechanisms import Mechanism, Method

_TOLERANCE = 1e-4


def _is_met(mechanism: Mechanism, epsilon: float, delta: float, rounds: int, method: Method, orders: Any) -> bool:
    return bool(mechanism.epsilon(delta=delta, rounds=rounds, method=method, orders=orders).upper <= epsilon)


def _target(epsilon: Any, delta: Any) -> tuple[float, float]:
    target = _validate.epsilon(epsilon)
    if target == 0.0:
        raise ValueError("epsilon must be positive, got 0.0")
    return target, _validate.delta(delta)


def sigma(
    make: Callable[[float], Mechanism],
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    method: Method = "rdp",
    orders: Any = None,
    tolerance: float = _TOLERANCE,
) -> float:
    """The least noise multiplier that meets the target, to a relative `tolerance` above it.

    `make` turns a sigma into a mechanism.

    >>> from shoal import LocalGaussian
    >>> s = sigma(lambda sigma: LocalGaussian(sigma=sigma), epsilon=1.0, delta=1e-5)
    >>> LocalGaussian(sigma=s).epsilon(delta=1e-5).upper <= 1.0
    True
    """
    target, delta = _target(epsilon, delta)
    count = _validate.rounds(rounds)
    width = _tolerance(tolerance)

    def is_met(value: float) -> bool:
        return _is_met(make(value), target, delta, count, method, orders)

    # A factor of two inside the allowed range, so that sigma / 2 (replace) is allowed as well.
    least, most = 2.0 * _validate.SIGMA_RANGE[0], _validate.SIGMA_RANGE[1]
    low, high = None, 1.0
    while not is_met(high):
        if high >= most:
            raise ValueError(f"epsilon must be reachable, got {target}, which even sigma = {most:g} does not meet")
        low, high = high, min(high * 4.0, most)
    while low is None:
        if high <= least:
            return high
        lower = max(high / 4.0, least)
        if is_met(lower):
            high = lower
        else:
            low = lower
    while high > low * (1.0 + width):
        middle = math.sqrt(low * high)
        if is_met(middle):
            high = middle
        else:
            low = middle
    return high


def rounds(mechanism: Mechanism, *, epsilon: float, delta: float, method: Method = "rdp", orders: Any = None) -> int:
    """The largest number of rounds that meets the target.

    >>> from shoal import ShuffledCheckIn
    >>> m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    >>> t = rounds(m, epsilon=1.0, delta=1e-5)
    >>> m.epsilon(delta=1e-5, rounds=t).upper <= 1.0 < m.epsilon(delta=1e-5, rounds=t + 1).upper
    True
    """
    target, delta = _target(epsilon, delta)

    def is_met(count: int) -> bool:
        return _is_met(mechanism, target, delta, count, method, orders)

    if not is_met(1):
        least = mechanism.epsilon(delta=delta, method=method, orders=orders).upper
        raise ValueError(f"epsilon must be at least {least:.6g}, the cost of one round, got {target}")
    return _largest(is_met, _validate.ROUNDS_MAX)


def users(
    make: Callable[[int], Mechanism],
    *,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    at_least: int = 1,
    method: Method = "rdp",
    orders: Any = None,
) -> int:
    """The least number of users, from `at_least` up, that meets the target.

    `make` turns a number of users into a mechanism.

    >>> from shoal import Shuffle
    >>> m = Shuffle(users=1, sigma=2.0, crowd="identical")
    >>> n = users(lambda users: m.replace(users=users), epsilon=0.1, delta=1e-6)
    >>> m.replace(users=n).epsilon(delta=1e-6).upper <= 0.1 < m.replace(users=n - 1).epsilon(delta=1e-6).upper
    True
    """
    target, delta = _target(epsilon, delta)
    count = _validate.rounds(rounds)
    first = _validate.users("at_least", at_least)

    def is_met(value: int) -> bool:
        return _is_met(make(value), target, delta, count, method, orders)

    if is_met(first):
        return first
    # "Not met" is monotone in the number of users: the answer is one more than its last place.
    last = _largest(lambda extra: not is_met(first + extra), _validate.USERS_MAX - first, start=0)
    if last >= _validate.USERS_MAX - first:
        raise ValueError(f"epsilon must be reachable, got {target}, which no number of users meets")
    return first + last + 1


def _tolerance(value: Any) -> float:
    width = _validate.real("tolerance", value)
    if not 1e-12 <= width <= 1.0:
        raise ValueError(f"tolerance must lie between 1e-12 and 1, got {width}")
    return width


def _largest(holds: Callable[[int], bool], most: int, start: int = 1) -> int:
    """The largest whole number in [start, most] up to which `holds` stays true; it does at `start`."""
    low, step = start, 1
    while True:
        high = min(low + step, most)
        if high <= low:
            return low
        if not holds(high):
            break
        low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low

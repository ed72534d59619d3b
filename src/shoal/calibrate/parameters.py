"""The smallest sigma, the largest number of rounds and the smallest number of users that meet a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from shoal import _validate
from shoal.accountant import Accountant
from shoal.bounds import certify
from shoal.calibrate.searching import bracket_near, expand, narrow, whole_number
from shoal.calibrate.target import Target
from shoal.errors import InvalidInput, InvalidType, Unreachable
from shoal.mechanisms import Mechanism
from shoal.query import Method, Options

_TOLERANCE = 1e-4
"""The relative distance by which the returned sigma may exceed the smallest one."""

_STEP_HEIGHT = 2e-4
"""Height of the steps in which epsilon of any crowd falls with users; a narrower bracket only shows a step."""

_START_SIGMA = 8.0
"""Little noise takes longest to analyse: the search comes from above, from more noise than most people need."""


Value = TypeVar("Value", int, float)


def _builder(make: Callable[[Value], Mechanism] | Mechanism, name: str) -> Callable[[Value], Mechanism]:
    """A function that turns a value of a parameter into a mechanism."""
    if not isinstance(make, Mechanism):
        if not callable(make):
            raise InvalidType(f"make must be a shoal mechanism or a function that returns one, got {make!r}")
        return make
    template = make
    return lambda value: template.replace(**{name: value})


def sigma(
    make: Callable[[float], Mechanism] | Mechanism,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    advantage: float | None = None,
    rounds: int = 1,
    method: Method = "tight",
    orders: Any = None,
    accuracy: float = certify.ACCURACY,
    tolerance: float = _TOLERANCE,
) -> float:
    """The least noise multiplier that meets the target.

    Args:
        make: A mechanism, whose own sigma does not matter, or a function that turns a sigma into one.
        epsilon: The epsilon to be met at `delta`.
        delta: Its delta.
        tpr: In the place of an epsilon: the true positive rate that no test may exceed at `fpr`.
        fpr: Its false positive rate.
        advantage: In the place of an epsilon: the difference of both rates that no test may exceed.
        rounds: The number of rounds.
        method: "tight", or "rdp" for Rényi DP.
        orders: The Rényi orders for "rdp"; all by default.
        accuracy: The relative accuracy of an epsilon.
        tolerance: The relative distance by which the sigma may exceed the smallest one.

    Returns:
        A sigma that meets the target.

    Raises:
        InvalidInput: Where an argument is not allowed.
        Unreachable: If no allowed sigma meets the target.

    >>> from shoal import LocalGaussian
    >>> s = sigma(LocalGaussian(sigma=1.0), epsilon=1.0, delta=1e-5)
    >>> LocalGaussian(sigma=s).epsilon(delta=1e-5).upper <= 1.0
    True
    >>> s = sigma(LocalGaussian(sigma=1.0), tpr=0.02, fpr=0.01)
    >>> 0.0199 < LocalGaussian(sigma=s).tradeoff(0.01).upper <= 0.02
    True
    """
    options = Options(method=method, orders=orders, accuracy=accuracy)
    target = Target.of(epsilon=epsilon, delta=delta, tpr=tpr, fpr=fpr, advantage=advantage, options=options)
    count = _validate.rounds(rounds)
    width = _validate.real("tolerance", tolerance)
    if not 1e-12 <= width <= 1.0:
        raise InvalidInput(f"tolerance must lie between 1e-12 and 1, got {width}")
    # A factor of two inside the allowed range, so that sigma / 2 (replace) is allowed as well.
    # Clamped after the logarithm and back, whose rounding could step outside.
    low, high = 2.0 * _validate.SIGMA_RANGE[0], _validate.SIGMA_RANGE[1]
    build = _builder(make, "sigma")

    def at(log_sigma: float) -> Mechanism:
        return build(min(max(math.exp(log_sigma), low), high))

    def excess(log_sigma: float) -> float:
        return target.excess(at(log_sigma), count)

    ends, start = (math.log(low), math.log(high)), math.log(_START_SIGMA)
    guess = target.guess(at, count, ends, start)
    bracket = None if guess is None else bracket_near(excess, guess, ends, 0.3 * width)
    bracket = bracket or expand(excess, *ends, start)
    if bracket is None:
        raise Unreachable(
            f"{target.name} must be reachable, got {target.limit}, which even sigma = {high:g} does not meet"
        )
    return min(max(math.exp(narrow(excess, bracket, math.log1p(width))), low), high)


def rounds(
    mechanism: Mechanism,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    advantage: float | None = None,
    after: Accountant | None = None,
    method: Method = "tight",
    orders: Any = None,
    accuracy: float = certify.ACCURACY,
) -> int:
    """The largest number of rounds that meets the target, 10^12 at most.

    The answer is tight: it holds if neither these rounds nor those before were chosen from what was published.
    `shoal.Filter` is for rounds that are.

    Args:
        mechanism: What is run in each round.
        epsilon: The epsilon to be met at `delta`.
        delta: Its delta.
        tpr: In the place of an epsilon: the true positive rate that no test may exceed at `fpr`.
        fpr: Its false positive rate.
        advantage: In the place of an epsilon: the difference of both rates that no test may exceed.
        after: Rounds that come before, and count as well.
        method: "tight", or "rdp" for Rényi DP.
        orders: The Rényi orders for "rdp"; all by default.
        accuracy: The relative accuracy of an epsilon.

    Returns:
        The number of rounds, without those before.

    Raises:
        InvalidInput: Where an argument is not allowed.
        Unreachable: If not even one round meets the target.

    >>> from shoal import ShuffledCheckIn
    >>> m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    >>> t = rounds(m, epsilon=1.0, delta=1e-5)
    >>> m.epsilon(delta=1e-5, rounds=t).upper <= 1.0
    True
    """
    options = Options(method=method, orders=orders, accuracy=accuracy)
    target = Target.of(epsilon=epsilon, delta=delta, tpr=tpr, fpr=fpr, advantage=advantage, options=options)
    if target.excess(mechanism, 1, after) > 0.0:
        cost = target.spent(mechanism, 1, after)
        cause = "one round" if after is None else "the rounds so far and one more"
        raise Unreachable(f"{target.name} must be at least {cost:.6g}, the cost of {cause}, got {target.limit}")
    # Every number of rounds that is tried is one whose upper bound was computed; the answer is one that met it.
    rounds_before = sum(entry.rounds for entry in after or () if entry.mechanism == mechanism)
    last = _validate.ROUNDS_MAX - rounds_before
    return whole_number(lambda count: target.excess(mechanism, count, after), 1, last, rising=True)


def users(
    make: Callable[[int], Mechanism] | Mechanism,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    advantage: float | None = None,
    rounds: int = 1,
    at_least: int = 1,
    method: Method = "tight",
    orders: Any = None,
    accuracy: float = certify.ACCURACY,
) -> int:
    """The least number of users that meets the target.

    For any crowd, whose epsilon falls in small steps, it is the least to one part in 5,000.

    Args:
        make: A mechanism, whose own number of users does not matter, or a function that turns a number into one.
        epsilon: The epsilon to be met at `delta`.
        delta: Its delta.
        tpr: In the place of an epsilon: the true positive rate that no test may exceed at `fpr`.
        fpr: Its false positive rate.
        advantage: In the place of an epsilon: the difference of both rates that no test may exceed.
        rounds: The number of rounds.
        at_least: The smallest number that is allowed.
        method: "tight", or "rdp" for Rényi DP.
        orders: The Rényi orders for "rdp"; all by default.
        accuracy: The relative accuracy of an epsilon.

    Returns:
        A number of users that meets the target.

    Raises:
        InvalidInput: Where an argument is not allowed.
        Unreachable: If no allowed number of users meets the target.

    >>> from shoal import Shuffle
    >>> m = Shuffle(users=1, sigma=2.0, crowd="identical")
    >>> n = users(m, epsilon=0.1, delta=1e-6)
    >>> m.replace(users=n).epsilon(delta=1e-6).upper <= 0.1
    True
    """
    options = Options(method=method, orders=orders, accuracy=accuracy)
    target = Target.of(epsilon=epsilon, delta=delta, tpr=tpr, fpr=fpr, advantage=advantage, options=options)
    count = _validate.rounds(rounds)
    first, last = _validate.users("at_least", at_least), _validate.USERS_MAX
    build = _builder(make, "users")

    def excess(number: int) -> float:
        try:
            mechanism = build(number)
        except ValueError as error:
            if number == first:
                raise
            # What is allowed for few users may end with many, as a rate that becomes too small.
            raise Unreachable(
                f"{target.name} must be reachable, got {target.limit}, and {number} users: {error}"
            ) from error
        return target.excess(mechanism, count)

    ends = (math.log(first), math.log(last))
    try:
        guess = target.guess(lambda x: build(min(max(round(math.exp(x)), first), last)), count, ends, ends[0])
    except ValueError:
        guess = None  # `excess` will say what is wrong
    width = _STEP_HEIGHT if target.is_expensive(build(first), count) else 0.0
    number = whole_number(excess, first, last, rising=False, guess=guess, width=width)
    if number > last:
        raise Unreachable(f"{target.name} must be reachable, got {target.limit}, which even {last:,} users do not meet")
    return number

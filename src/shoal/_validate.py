"""One voice for bad input: every message names the argument, its value and what is allowed."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.bounds.numeric import FloatArray
from shoal.errors import InvalidInput, InvalidType

Numbers = Sequence[float] | npt.NDArray[Any]
"""Many values of a question: the answer is an array."""

WholeNumbers = Sequence[int] | npt.NDArray[Any]

SIGMA_RANGE = (1e-4, 1e9)
"""Noise multipliers whose moments neither overflow nor underflow in double precision."""

RATE_MIN = 1e-12
"""Below this the smallest moments would leave the range of double precision."""

USERS_MAX = 10**15
ROUNDS_MAX = 10**12
ORDER_MAX = 1e9
ASKED_EPSILON_MAX = 1e12
"""The largest values of arguments: whole numbers that doubles hold, and orders and epsilons whose products do not
overflow. Laws are computed up to smaller limits (`bounds.numeric`); beyond these, simpler bounds answer."""


def real(name: str, value: Any) -> float:
    """A finite real number; booleans, strings and arrays are refused.

    Args:
        name: The name of the argument, for the message.
        value: Its value.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is not finite.
    """
    # A numpy array without dimensions is one number.
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise InvalidType(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidInput(f"{name} must be finite, got {number}")
    return number


def integer(name: str, value: Any, *, minimum: int, maximum: int) -> int:
    """A whole number in [minimum, maximum]; 3.0 is accepted, 2.5 is not.

    Args:
        name: The name of the argument, for the message.
        value: Its value.
        minimum: The smallest allowed number.
        maximum: The largest allowed number.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is not whole, or outside the limits.
    """
    number = real(name, value)
    if number != int(number):
        raise InvalidInput(f"{name} must be a whole number, got {value}")
    # Whole numbers beyond 2^53 must not go through a double.
    whole = operator.index(value) if isinstance(value, numbers.Integral) else int(number)
    if whole < minimum:
        raise InvalidInput(f"{name} must be at least {minimum}, got {whole}")
    if whole > maximum:
        raise InvalidInput(f"{name} must be at most {maximum}, got {whole}")
    return whole


def users(name: str, value: Any) -> int:
    """A number of users.

    Args:
        name: The name of the argument, for the message.
        value: Its value.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is not whole, or outside 1 to `USERS_MAX`.
    """
    return integer(name, value, minimum=1, maximum=USERS_MAX)


def rounds(value: Any, name: str = "rounds") -> int:
    """A number of rounds.

    Args:
        value: The value of the argument.
        name: Its name, for the message.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is not whole, or outside 1 to `ROUNDS_MAX`.
    """
    return integer(name, value, minimum=1, maximum=ROUNDS_MAX)


def sigma(value: Any, name: str = "sigma") -> float:
    """A noise multiplier.

    Args:
        value: The value of the argument.
        name: Its name, for the message.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is not positive, or outside `SIGMA_RANGE`.
    """
    number = real(name, value)
    low, high = SIGMA_RANGE
    if number <= 0:
        raise InvalidInput(f"{name} must be positive, got {number}")
    if not low <= number <= high:
        raise InvalidInput(f"{name} must lie between {low:g} and {high:g}, got {number}")
    return number


def rate(value: Any, name: str = "rate") -> float:
    """A probability of taking part.

    Args:
        value: The value of the argument.
        name: Its name, for the message.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is outside `RATE_MIN` to 1.
    """
    number = real(name, value)
    if not 0 < number <= 1:
        raise InvalidInput(f"{name} must be above 0 and at most 1, got {number}")
    if number < RATE_MIN:
        raise InvalidInput(f"{name} must be at least {RATE_MIN:g}, got {number}")
    return number


def probability(name: str, value: Any) -> float:
    """The value as a probability strictly between 0 and 1."""
    number = real(name, value)
    if not 0.0 < number < 1.0:
        raise InvalidInput(f"{name} must lie strictly between 0 and 1, got {number}")
    return number


def delta(value: Any, name: str = "delta") -> float:
    """A probability strictly between 0 and 1.

    Args:
        value: The value of the argument.
        name: Its name, for the message.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is outside.
    """
    number = real(name, value)
    if not 0 < number < 1:
        raise InvalidInput(f"{name} must lie strictly between 0 and 1, got {number}")
    return number


def epsilon(value: Any, name: str = "epsilon", *, positive: bool = False) -> float:
    """A privacy loss of at least 0.

    Args:
        value: The value of the argument.
        name: Its name, for the message.
        positive: Whether 0 is refused.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is negative, too large, or a refused 0.
    """
    number = real(name, value)
    if positive and number == 0.0:
        raise InvalidInput(f"{name} must be positive, got {number}")
    if not 0 <= number <= ASKED_EPSILON_MAX:
        limit = "at least 0" if number < 0 else f"at most {ASKED_EPSILON_MAX:g}"
        raise InvalidInput(f"{name} must be {limit}, got {number}")
    return number


def order(value: Any, name: str = "order") -> float:
    """A Rényi order.

    Args:
        value: The value of the argument.
        name: Its name, for the message.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no number.
        InvalidInput: If it is not above 1, or above `ORDER_MAX`.
    """
    number = real(name, value)
    if not 1 < number <= ORDER_MAX:
        raise InvalidInput(f"{name} must be above 1 and at most {ORDER_MAX:g}, got {number}")
    return number


def orders(value: Any) -> FloatArray:
    """One or more Rényi orders, as a flat array in the order given."""
    checked = [order(v) for v in each("orders", value)]
    return np.array(checked, dtype=float)


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """One of several allowed words.

    Args:
        name: The name of the argument, for the message.
        value: Its value.
        allowed: The allowed words.

    Returns:
        The word.

    Raises:
        InvalidType: If it is no text.
        InvalidInput: If it is another word.
    """
    if not isinstance(value, str):
        raise InvalidType(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    if value not in allowed:
        raise InvalidInput(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def is_scalar(value: Any) -> bool:
    """Whether a value is a single one and not a collection."""
    array: Any = value  # of another library, perhaps: numpy's types know lists and its own arrays only
    return isinstance(value, (str, bytes)) or not isinstance(value, Iterable) or np.ndim(array) == 0


def each(name: str, value: Any) -> list[Any]:
    """The values of a scalar or of a collection with one dimension.

    Args:
        name: The name of the argument, for the message.
        value: Its value.

    Returns:
        The values.

    Raises:
        InvalidInput: If there are none.
    """
    if is_scalar(value):
        return [value]
    # Python numbers, so that messages show 3 and not np.int64(3).
    items = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else list(value)
    if not items:
        raise InvalidInput(f"{name} must not be empty")
    return items

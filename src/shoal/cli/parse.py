"""From the words of a command line to numbers, lists and ranges."""

from __future__ import annotations

import re

from shoal import _validate
from shoal._written import number
from shoal.errors import InvalidInput


def numbers(name: str, text: str) -> list[float | int]:
    """Return the numbers of a comma-separated list.

    Args:
      name: What the numbers are, for messages.
      text: The list.

    Returns:
      The numbers, whole ones as integers.

    Raises:
      InvalidInput: If one of them is no number.
    """
    return [number(name, part.strip()) for part in text.split(",")]


_RANGE = re.compile(r"(\d[\d_]*(?:[eE]\d+)?)-(\d[\d_]*(?:[eE]\d+)?)(?:([:@])(\d[\d_]*))?")
_VALUES_MAX = 10_000
"""Nobody reads more rows, and each takes its time."""


def whole_numbers(name: str, text: str) -> list[int]:
    """Return the numbers of a list of whole numbers and ranges: `1,7`, `1-7`, `100-1000:100`, `1-10000@50`.

    A range A-B includes both ends; `:S` goes up from A in steps of S, `@K` takes K values from A to B
    that are evenly spaced on a logarithmic scale.

    Args:
      name: What the numbers are, for messages.
      text: The list.

    Returns:
      The numbers, in the order of the list.

    Raises:
      InvalidInput: If the list cannot be read, or is too long.
    """
    result: list[int] = []
    for part in (p.strip() for p in text.split(",")):
        match = _RANGE.fullmatch(part)
        if not match:
            # A hyphen that is no sign and no exponent was meant for a range.
            if "-" in part[1:] and "e-" not in part.lower():
                raise InvalidInput(f"{name} must be a range such as 1-7, 100-1000:100 or 1-5540@50, got {part!r}")
            result.append(_validate.rounds(number(name, part), name))
            continue
        low, high = (_validate.rounds(number(name, end), name) for end in match.group(1, 2))
        if low > high:
            raise InvalidInput(f"{name} must be a range from low to high, got {part!r}")
        mark, extra = match.group(3), number(name, match.group(4) or "1")
        step = _validate.integer(f"the number after {mark} in {name}", extra, minimum=1, maximum=_validate.ROUNDS_MAX)
        if (step if mark == "@" else (high - low) // step + 1) > _VALUES_MAX:
            raise InvalidInput(f"{name} must have at most {_VALUES_MAX} values, got {part!r}")
        result.extend(log_spaced(low, high, [low, high], step) if mark == "@" else range(low, high + 1, step))
    return result


def log_spaced(first: int, last: int, also: list[int], count: int = 60) -> list[int]:
    """Return whole numbers that are evenly spaced on a logarithmic scale.

    Args:
      first: The smallest.
      last: The largest.
      also: Numbers to add.
      count: About how many.
    """
    points = (first * (last / first) ** (i / max(count - 1, 1)) for i in range(count))
    return sorted({*also, *(min(last, round(p)) for p in points)})


def curve_points(crowd: str | None) -> int:
    """Return how many points a curve has: for any crowd each costs some tenths of a second."""
    return 12 if crowd == "any" else 60


def evenly_spaced(values: list[float], count: int = 60) -> list[float]:
    """Return evenly spaced numbers over the span of the values, and the values themselves.

    Args:
      values: The values; a single one has a span of its own.
      count: How many numbers, without the values.
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = 0.0, 1.5 * high if high > 0.0 else 1.0
    return sorted({*values, *(low + (high - low) * i / (count - 1) for i in range(count))})

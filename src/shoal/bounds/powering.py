"""Sums of many equal terms by doubling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def powers(single: T, add: Callable[[T, T], T]) -> Callable[[int], T]:
    """A function that returns the sum of any number of equal independent terms.

    Args:
        single: one term.
        add: the sum of two; it is given the same object twice for a sum and an independent copy of it.

    Returns:
        The function from a number, at least 1, to the sum; it remembers the sums that it has made.
    """
    by_count = {1: single}

    def sum_of(count: int) -> T:
        if count not in by_count:
            if count % 2:
                by_count[count] = add(sum_of(count - 1), single)
            else:
                half = sum_of(count // 2)
                by_count[count] = add(half, half)
        return by_count[count]

    return sum_of


def power(single: T, count: int, add: Callable[[T, T], T]) -> T:
    """The sum of `count` equal independent terms, by doubling.

    Args:
        single: one term.
        count: their number, at least 1.
        add: the sum of two; it is given the same object twice for a sum and an independent copy of it.

    Returns:
        The sum.
    """
    return powers(single, add)(count)

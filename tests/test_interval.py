"""Brackets: compared by their guarantee, refused where that could mislead."""

import math
import operator

import numpy as np
import pytest

from shoal import Interval, LocalGaussian

EPS = Interval(lower=0.25, upper=0.5)
ORDER = [operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("compare", ORDER, ids=lambda f: f.__name__)
@pytest.mark.parametrize("number", [0.0, 0.25, 0.3, 0.5, 0.7, 1, np.float64(0.4), np.float32(0.5), math.inf])
def test_an_interval_stands_for_its_guarantee(compare, number):
    assert compare(EPS, number) is compare(0.5, float(number))
    assert bool(compare(number, EPS)) is compare(float(number), 0.5)


def test_code_that_keeps_a_budget_is_on_the_safe_side():
    """Where the truth may be above the budget, neither way to write the check lets the round pass."""
    budget = 0.3
    assert budget in EPS
    assert operator.gt(EPS, budget)
    assert not operator.le(EPS, budget)


def test_two_intervals_have_no_order():
    for compare in ORDER:
        with pytest.raises(TypeError, match=r"two intervals have no order: compare one end of each, as in a\.upper"):
            compare(EPS, EPS)
    with pytest.raises(TypeError, match=r"\.upper"):
        max([EPS, EPS])


@pytest.mark.parametrize("other", ["0.3", None, True, [1.0]])
def test_what_is_no_number_is_refused(other):
    with pytest.raises(TypeError, match="not supported between"):
        operator.lt(EPS, other)
    with pytest.raises(ValueError, match="an interval must be compared with a number, got nan"):
        operator.gt(EPS, math.nan)


def test_equality_is_of_both_ends():
    assert Interval(lower=0.25, upper=0.5) == EPS
    assert EPS != 0.5
    assert len({EPS, Interval(lower=0.25, upper=0.5)}) == 1


def test_arrays_compare_each():
    found = LocalGaussian(sigma=2.0).epsilon(delta=[1e-3, 1e-9])
    np.testing.assert_array_equal(found <= 3.0, found.upper <= 3.0)

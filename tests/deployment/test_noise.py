"""Clipping and noise of one update."""

import math
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shoal.deployment import noise

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette would rather have a package that is not on every index yet


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.floats(min_value=1e-9, max_value=1e9),
)
@settings(max_examples=300, deadline=None)
def test_no_clipped_update_is_longer_than_the_norm(values, clip):
    found = noise.clip_update([np.array(values)], clip=clip)
    assert np.isfinite(found).all()
    assert math.hypot(*found.tolist()) <= clip  # hypot is exact to the last bit, here the reference


@given(st.lists(st.floats(min_value=-1e3, max_value=1e3), min_size=1, max_size=40))
@settings(deadline=None)
def test_short_updates_are_left_alone_and_long_ones_keep_their_direction(values):
    vector = np.array(values)
    norm = float(np.linalg.norm(vector))
    np.testing.assert_array_equal(noise.clip_update([vector], clip=norm * 1.001 + 1e-6), vector)
    if norm > 1e-3:
        np.testing.assert_allclose(noise.clip_update([vector], clip=norm / 2), vector / 2, rtol=1e-9, atol=1e-300)


def test_clipping_is_over_all_arrays_together():
    found = noise.clip_update([np.full((2, 3), 3.0), np.full(1, 3.0), np.full(2, 3.0)], clip=1.0)
    np.testing.assert_allclose(found, np.full(9, 1 / 3), rtol=1e-9)


def test_single_precision_updates_are_measured_in_double():
    many = np.full(1_000_000, 1e-3, dtype=np.float32)
    assert float(np.linalg.norm(noise.clip_update([many], clip=0.5))) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_zero(bad):
    assert not noise.clip_update([np.ones(3), np.array([1.0, bad])], clip=1.0).any()


@pytest.mark.parametrize("source", noise.NOISE_SOURCES)
def test_noise_is_gaussian_of_the_right_size(source):
    shift = np.linspace(-5, 5, 4_000)
    found = noise.NOISE_SOURCES[source](shift, 3.0) - shift
    assert stats.kstest(found / 3.0, "norm").pvalue > 1e-4
    assert stats.kstest(found / 3.3, "norm").pvalue < 1e-2 or abs(found.std() - 3.0) < 0.12


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1.0, 2.0, 3.0, 1e6])
def test_the_grid_is_as_fine_as_the_accounting_says(scale):
    assert 2.0**-80 <= math.ldexp(1.0, noise.grid_exponent(scale)) / scale * 2 <= 2.0**-78
    assert math.ldexp(1.0, noise.grid_exponent(scale)) / scale <= 2.0**-80  # the step h is at most 2^-80 s


def test_discrete_and_rounded_noise_differ_by_what_the_page_says():
    """Their logarithms differ by at most (h/s)^2 (1 + t^2): here on a coarse grid, with 60 digits."""
    mpmath.mp.dps = 60
    for step in (mpmath.mpf(2) ** -4, mpmath.mpf(2) ** -7):
        total = sum(mpmath.exp(-((j * step) ** 2) / 2) for j in range(int(-20 / step), int(20 / step) + 1))
        for t in (0, 1, 3, 10, 40):
            j = mpmath.nint(t / step)
            discrete = -((j * step) ** 2) / 2 - mpmath.log(total)
            cell = mpmath.erfc((j - 0.5) * step / mpmath.sqrt(2)) - mpmath.erfc((j + 0.5) * step / mpmath.sqrt(2))
            assert abs(discrete - mpmath.log(cell / 2)) <= step**2 * (1 + (j * step) ** 2)


def test_secure_noise_is_opendp_on_its_grid():
    mechanism = noise._gaussian_mechanism(5, 2.0)
    assert mechanism.map(1.0) == pytest.approx(1 / (2 * 2.0**2), rel=1e-12)  # zCDP of the exact Gaussian
    assert not np.array_equal(noise.gaussian_secure(np.zeros(5), 2.0), noise.gaussian_secure(np.zeros(5), 2.0))

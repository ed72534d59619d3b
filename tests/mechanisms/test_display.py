"""What notebooks show: rich reprs that lose nothing and never under-report."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal

MECHANISMS = [
    shoal.LocalGaussian(sigma=2.0, adjacency="replace"),
    shoal.Shuffle(users=60_000, sigma=9.48),
    shoal.SubsampledShuffle(users=100, sample=10, sigma=1.5, crowd="identical"),
    shoal.ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0),
    shoal.BallsAndBins(bins=1_000, sigma=1.0),
]


@pytest.mark.parametrize("m", MECHANISMS, ids=lambda m: m.label)
def test_a_mechanism_shows_every_field_its_assumption_and_whom_it_trusts(m):
    for text in (m._repr_html_(), m._repr_markdown_()):
        assert type(m).__name__ in text
        for name, value in m.to_dict().items():
            assert (f"{value:,}" if isinstance(value, int) else str(value)) in text, name
        assert m.trust in text
    assert m.assumption in m._repr_markdown_()
    assert m._repr_html_().count("<tr>") == m._repr_markdown_().count("\n") - 1


@given(st.floats(1e-12, 1e3), st.floats(0.0, 1.0))
def test_an_interval_is_rounded_outwards(upper, share):
    lower = share * upper
    interval = shoal.Interval(lower=lower, upper=upper)
    for text in (interval._repr_markdown_(), interval._repr_html_()):
        numbers = [float(x) for x in re.findall(r"[\d.]+(?:e[-+]\d+)?", text)]
        assert numbers[-1] >= upper
        assert numbers[-1] == pytest.approx(upper, rel=2e-4)
        if lower > 0.0:
            assert numbers[0] <= lower


def test_an_upper_bound_alone_and_an_infinite_one():
    assert shoal.Interval(lower=0.0, upper=0.25)._repr_markdown_() == "at most **0.25**"
    assert "<b>inf</b>" in shoal.Interval(lower=1.0, upper=math.inf)._repr_html_()

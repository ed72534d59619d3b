"""The revealing Gaussian pair that dominates rounds: what they cost a filter.

R(d, w), the *revealing Gaussian pair*: with probability d the output says whether it comes from P or from Q, otherwise
it is drawn from N(w, 1) (P) or N(0, 1) (Q). Its curve is the same in both directions,

    d + (1 - d) delta_G(w, eps),    delta_G the curve of `bounds.gaussian`,

and R(d1, w1) and R(d2, w2) together are R(d, w) with `1 - d = (1 - d1)(1 - d2)` and `w^2 = w1^2 + w2^2`: one of them
reveals, or both are Gaussian. Its best test with false positive rate a has the power

    F(a) = d + (1 - d) Phi(Phi^-1(a / (1 - d)) + w)    (1 if a >= 1 - d).

**Proposition.** Let a curve be `max_J (t_J - e^eps a_J)` for eps >= 0. It is below that of R(d, w) if `t_J <= F(a_J)`
for each J, because then `t_J - e^eps a_J <= max_a (F(a) - e^eps a)`. So the least width for a given d is

    w = max over J with t_J > d and a_J < 1 - d of Phi^-1((t_J - d) / (1 - d)) - Phi^-1(a_J / (1 - d)).

The upper curves of `composition` have this form, and the pairs (a_J, t_J) of both directions count. Nothing has to be
interpolated between grid points. A pair below R(d, w) in both directions at every eps >= 0 is below it at every real
eps. What filters add up is proved in `docs/explanation/adaptivity.md`.

*Errors*, u = 2^-53:

1. t_J is a sum of three terms, and a_J a product with e^-L: t_J is raised by 8 u, and a_J lowered by 8 u (1 + |L|).
2. Quantiles x of p: p is off by 8 u, which moves x by 8 u p / phi(x), and x itself is off by a few u of its size, for
   which 64 u (1 + |x|) is charged.
3. Sums and square roots of widths: a relative error of a few u, for which `ROUNDED_UP` is charged.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from shoal.bounds import certify, gaussian
from shoal.bounds.composition import Composition, Curve, Parts
from shoal.bounds.numeric import DIRECTIONS, ROUNDED_UP, UNIT, Direction, FloatArray

REVEAL_GRID: FloatArray = np.exp2(-0.5 * np.arange(2.0, 125.0))
"""The probabilities d at which widths are tabled, from 1/2 down to 2^-62 in steps of a factor sqrt(2)."""

_CELLS, _CUT_MASS = 512, 1e-20
"""The resolution of laws, and about the mass that they may cut: those of most questions, so that laws are shared."""


@dataclass(frozen=True, kw_only=True)
class CurveTests:
    """The tests that make up an upper curve: false positive rates (too small) and powers (too large)."""

    fpr: FloatArray
    power: FloatArray

    @classmethod
    def of(cls, curve: Curve) -> CurveTests:
        """The tests that decide the curve at eps >= 0."""
        # The maximum at eps is at the first loss of at least eps.
        chosen = curve.loss >= 0.0
        loss, base = curve.loss[chosen], curve.base[chosen]
        # error 1
        power = (curve.gain[chosen] + base + curve.infinite) * (1.0 + 8.0 * UNIT)
        fpr = np.exp(-loss) * base * (1.0 - 8.0 * UNIT * (1.0 + loss))
        # Beyond the last loss the curve is constant: a test that is never wrong.
        return cls(fpr=np.append(fpr, 0.0), power=np.append(power, curve.infinite))

    def least_width(self, reveal: float) -> float:
        """The least w for which R(reveal, w) dominates; infinity if there is none.

        Args:
            reveal: d, at least 0 and below 1.

        Returns:
            An upper bound on that width.
        """
        power, fpr = (self.power - reveal) / (1.0 - reveal), self.fpr / (1.0 - reveal)
        matters = (power > 0.0) & (fpr < 1.0)
        power, fpr = power[matters], fpr[matters]
        if np.any(power >= 1.0) or np.any(fpr <= 0.0):
            return math.inf
        return max(0.0, float(np.max(_quantile(power, 1.0) - _quantile(fpr, -1.0), initial=0.0)))


def _quantile(probability: FloatArray, side: float) -> FloatArray:
    """The normal quantile, from above (side 1) or below (-1)."""
    x = special.ndtri(probability)
    # error 2
    density = np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)
    return x + side * UNIT * (8.0 * probability / density + 64.0 * (1.0 + np.abs(x)))


def local_width(parts: Parts) -> float:
    """The width of one plain report in each round, of which the rounds are post-processing.

    Args:
        parts: the rounds and their counts.

    Returns:
        The width; infinity where no Gaussian is known.
    """
    scales = [(round_.local().ratio.scale, rounds) for round_, rounds in parts]
    if any(scale == 0.0 for scale, _ in scales):
        return math.inf
    # error 3
    return math.sqrt(math.fsum(rounds / scale**2 for scale, rounds in scales)) * ROUNDED_UP


@functools.lru_cache(maxsize=1024)
def least_widths(parts: Parts) -> FloatArray:
    """For each probability of `REVEAL_GRID` the width of a pair that dominates rounds run together.

    Args:
        parts: the rounds and their counts, fixed beforehand.

    Returns:
        Upper bounds on the least widths.
    """
    return np.array([least_width(parts, reveal) for reveal in REVEAL_GRID.tolist()])


def least_width(parts: Parts, reveal: float) -> float:
    """The width of a pair that dominates rounds run together, for one probability of revealing.

    Args:
        parts: the rounds and their counts, fixed beforehand.
        reveal: d, at least 0 and below 1.

    Returns:
        An upper bound on the least width; infinity where none is known.
    """
    parts = certify.limited(parts)
    return min([local_width(parts), *(_worse_width(tests, reveal) for tests in _both_directions(parts))])


def _worse_width(tests: tuple[CurveTests, ...], reveal: float) -> float:
    return max(test.least_width(reveal) for test in tests)


@functools.lru_cache(maxsize=64)
def _both_directions(parts: Parts) -> tuple[tuple[CurveTests, ...], ...]:
    """The tests of the composed curves; none where a local width is exact, or no law can be computed."""
    if all(round_.is_gaussian for round_, _ in parts) or not certify.in_range(parts):
        return ()
    return (tuple(map(CurveTests.of, composed_curves(parts).values())),)


def composed_curves(parts: Parts) -> dict[Direction, Curve]:
    """The upper curves of rounds run together, by direction, at a fine resolution.

    Args:
        parts: the rounds and their counts, for which laws can be computed.

    Returns:
        The curves.
    """
    composition = Composition(parts=parts, half=_CELLS, budget=_CUT_MASS)
    return {direction: composition.upper_curve(direction) for direction in DIRECTIONS}


def revealing_power(fpr: FloatArray, reveal: float, width: float) -> FloatArray:
    """The power F of the best test of a revealing Gaussian pair.

    Args:
        fpr: false positive rates.
        reveal: d, at least 0 and below 1.
        width: w.

    Returns:
        The powers.
    """
    inside = np.minimum(fpr / (1.0 - reveal), 1.0)
    return reveal + (1.0 - reveal) * special.ndtr(special.ndtri(inside) + width)


def width_within(epsilon: float, delta: float, reveal: float) -> float:
    """The largest w for which R(reveal, w) is within (epsilon, delta).

    Args:
        epsilon: epsilon, at least 0.
        delta: delta.
        reveal: d, at least 0 and below delta.

    Returns:
        A lower bound on that width, at least 0.
    """
    allowed = (delta - reveal) / (1.0 - reveal) * (1.0 - 8.0 * UNIT)
    low, high = 0.0, 1.0
    while gaussian.delta_at(high, epsilon).upper <= allowed:
        low, high = high, 2.0 * high
    while low < (middle := 0.5 * (low + high)) < high and high - low > 1e-12 * high:
        low, high = (middle, high) if gaussian.delta_at(middle, epsilon).upper <= allowed else (low, middle)
    return low

"""What can really be seen of random allocation and of shuffled epochs: attacks, which bound privacy from below.

An attacker sees the noisy sums of all steps, reduces them to one number the same way under P and Q, and looks at
that. Whatever it computes is post-processing, so the law of its number is a pair from below, in both directions and,
epoch by epoch, over any number of epochs.

**Allocation.** Under Q all t outputs are N(0, 1) (in deviations); under P k of them, in places drawn at random, are
N(r, 1), r = 1 / sigma. The best test is the elementary symmetric polynomial e_k of the ratios `w = exp(r y - r^2 /
2)`. As `e_k = [x^k] prod (1 + x w_i)`, the sum of the scores `log(1 - q + q w)`, q = k/t, is nearly as good: it is
what the best attack on Poisson sampling looks at. Scores are rounded to a lattice, so that their sum is exact and does
not depend on where the k outputs were: its masses are `a^t` under Q and `a^(t-k) b^k` under P, powers of convolution,
where a and b are the masses of one score from N(0, 1) and N(r, 1).

**Maximum.** `ShuffledEpochs` with all other vectors opposite to the record's (Chua et al. 2024: all others hold -1,
the record 1 or 0). Every batch sums to -b plus what the record adds in its own: up to that shift the outputs are N(0,
1) but for one, in a place drawn at random, which is N(2r, 1) with the record and N(r, 1) without it. The attacker
looks at the largest output: `P(max <= c) = Phi(c)^(t-1) Phi(c - 2r)`.

*Errors.* All masses are sums of positive terms.

1. Relative errors of one score's masses (differences of Phi, by the tail that does not cancel) and of every
   convolution add up to e; P-masses are taken too small by it, Q-masses too large.
2. Cells of both ends that hold less than 1e-60 are left out of sums: leaving out P-mass is safe, and less than 1e-57 of
   Q-mass may be missing, which costs less than 1e-15 while eps is at most `epsilon_max` = 90.
3. Cells of the maximum whose masses cancel count as one outcome, whose mass is what the others leave (`whole_pair`).
   The others are known to 1e-9.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import LAW_USERS_MAX, UNIT, Direction, FloatArray, Side
from shoal.bounds.powering import power
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Round

_OUTPUT_SPAN = 12.0
"""Number of deviations beyond their possible means at which outputs are clipped."""

_TRIM = 1e-60
"""Mass that each end of a sum may lose (error 2)."""

_LATTICE_MAX = 12_000
"""The largest number of lattice points for a sum of scores."""

_LATTICE_STEP = 0.3
"""Step of the lattice in deviations of a score, if the sum has room for it."""

_MISSING = 1e-15
"""The cost of error 2 at any eps up to `epsilon_max`."""

_CELL_ERROR = 1e-9
"""Relative error of masses above which cells of the maximum are left out of the test (error 3)."""

_EXPONENT_MAX = 600.0
"""e to this power, times or divided by the largest number of steps, is a double."""

_CLIPS = np.arange(8.0, 2.0, -1.0)
"""Deviations above the mean of a marked output at which scores may be clipped, from weak to strong."""


def cell_masses(cuts: FloatArray, mean: float) -> tuple[FloatArray, float]:
    """The masses of N(mean, 1) between cuts and beyond them, and their relative error.

    Args:
        cuts: Rising points.
        mean: The mean.

    Returns:
        One mass more than there are cuts, and the relative error of all.
    """
    z = cuts - mean
    below, above = special.ndtr(z), special.ndtr(-z)
    # error 1: each difference by the tail in which both of its terms are small.
    inner = np.where(z[1:] <= 0.0, np.diff(below), -np.diff(above))
    size = np.maximum(np.minimum(below[1:], above[:-1]), 1e-300)
    error = float(np.max(size * (2.0 + z[1:] ** 2) / np.maximum(inner, 1e-300), initial=2.0 + _OUTPUT_SPAN**2))
    return np.concatenate([below[:1], inner, above[-1:]]), 16.0 * UNIT * error


def attack_pair(p: FloatArray, q: FloatArray, error: float, side: Side, direction: Direction, missing: float) -> Pair:
    """P- and Q-masses of the same outcomes as a pair.

    Args:
        p: P-masses.
        q: Q-masses.
        error: Relative error of the masses.
        side: "lower" for a bound on privacy, "upper" for the most that this very attack shows.
        direction: D(P||Q) or D(Q||P).
        missing: Q-mass that may be missing.

    Returns:
        The pair, whose losses increase.
    """
    top, base = (p, q) if direction == "forward" else (q, p)
    possible = (top > 0.0) & (base > 0.0)
    sign = 1.0 if side == "upper" else -1.0
    lost = float(top[base <= 0.0].sum()) if side == "upper" else 0.0
    # error 1
    top, base = top[possible] * (1.0 + sign * error), base[possible] * (1.0 - sign * error)
    loss = np.log(top) - np.log(base)
    order = np.argsort(loss)
    return Pair(side=side, loss=loss[order], base=base[order], top=top[order], infinite=lost + sign * missing)


def whole_pair(p: FloatArray, q: FloatArray, error: float, side: Side, direction: Direction, missing: float) -> Pair:
    """The pair of `attack_pair`, with all outcomes that are not listed, or not listed under both laws, as one more.

    With little noise the two laws hardly overlap, and most of their mass may be in outcomes whose masses are unknown.
    To take these for one outcome is post-processing. It has what the others leave of 1: too little top mass and too
    much base mass from below; from above all of it is at an infinite loss as well.

    Args:
        p: P-masses.
        q: Q-masses.
        error: Relative error of the masses.
        side: "lower" for a bound on privacy, "upper" for the most that this very attack shows.
        direction: D(P||Q) or D(Q||P).
        missing: Mass that may be missing.

    Returns:
        The pair, which has an atom.
    """
    pair = attack_pair(p, q, error, side, direction, missing)
    top, base = (p, q) if direction == "forward" else (q, p)
    possible = (top > 0.0) & (base > 0.0)
    # Sums of positive terms: 1e-12 covers their rounding.
    top_sum, base_sum = (float(masses[possible].sum()) for masses in (top, base))
    rest_top = 1.0 - top_sum * (1.0 + error + 1e-12) - missing
    if rest_top <= 0.0:
        return pair
    if side == "upper":
        # It counts once more at a loss of 0: composed masses that do not add up to 1 would vanish.
        rest_base, infinite = rest_top, min(1.0, 1.0 - top_sum + missing)
    else:
        rest_base, infinite = max(1.0 - base_sum * (1.0 - error - 1e-12), UNIT), pair.infinite
    loss = np.append(pair.loss, math.log(rest_top / rest_base))
    order = np.argsort(loss)
    base, top = np.append(pair.base, rest_base)[order], np.append(pair.top, rest_top)[order]
    return replace(pair, loss=loss[order], base=base, top=top, infinite=infinite)


@dataclass(frozen=True, kw_only=True)
class Attack(Round):
    """An attack on the outputs of all steps, as a round that can be composed."""

    scale: float
    steps: int

    @property
    def users(self) -> int:
        return self.steps

    @property
    def weight(self) -> float:
        return 1.0

    @property
    def is_in_range(self) -> bool:
        # It needs no law of a mean of ratios, whose range of scales is limited.
        return self.steps <= LAW_USERS_MAX

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise ValueError("an attack has no Rényi divergence from above")


@dataclass(frozen=True, kw_only=True)
class Allocation(Attack):
    """The attack by the sum of scores where `picks` of the `steps` hold the record.

    `clipped`: large scores count less, so that the lattice can resolve the small ones; which of both is better depends.
    """

    epsilon_max: ClassVar[float] = 90.0
    """The largest eps at which the attack bounds from below (error 2)."""

    picks: int
    clipped: bool = True

    @property
    def ratio(self) -> Lognormal:
        """All of the record's outputs in the clear are one report with `picks` times the precision."""
        return Lognormal(scale=self.scale / math.sqrt(self.picks))

    def limited(self) -> Allocation:
        # An attack is what it is.
        return self

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        p, q, error = _score_sum_masses(self)
        return whole_pair(p, q, error, side, direction, _MISSING)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return _score_sum_masses(self)[2], _MISSING


@functools.lru_cache(maxsize=16)
def _score_sum_masses(attack: Allocation) -> tuple[FloatArray, FloatArray, float]:
    """P- and Q-masses of the sum of all scores, and their relative error."""
    quiet, marked, error = _scores(attack)
    rest = _power(quiet, attack.steps - attack.picks)
    q, p = rest.times(_power(quiet, attack.picks)), rest.times(_power(marked, attack.picks))
    start, stop = min(p.start, q.start), max(p.stop, q.stop)
    # error 1: that of one score once for each step, and that of the convolutions
    total = error * attack.steps + max(p.error, q.error)
    return p.between(start, stop), q.between(start, stop), math.expm1(total * (1.0 + 1e-6))


@dataclass(frozen=True, kw_only=True)
class _Lattice:
    """Masses of neighbouring points of a lattice; `error` is the relative error of convolutions."""

    start: int
    mass: FloatArray
    error: float = 0.0

    @property
    def stop(self) -> int:
        return self.start + len(self.mass)

    def between(self, start: int, stop: int) -> FloatArray:
        masses = np.zeros(stop - start)
        masses[self.start - start : self.stop - start] = self.mass
        return masses

    def times(self, b: _Lattice) -> _Lattice:
        mass = np.convolve(self.mass, b.mass)
        # error 2
        low = int(np.searchsorted(np.cumsum(mass), _TRIM))
        high = len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), _TRIM))
        error = self.error + b.error + (min(len(self.mass), len(b.mass)) + 8.0) * UNIT
        return _Lattice(start=self.start + b.start + low, mass=mass[low:high], error=error)


def _power(score: _Lattice, count: int) -> _Lattice:
    """The law of the sum of `count` independent scores."""
    return power(score, count, _Lattice.times) if count else _Lattice(start=0, mass=np.ones(1))


def _scores(attack: Allocation) -> tuple[_Lattice, _Lattice, float]:
    """One score from N(0, 1) and from N(r, 1), and the relative error of their masses."""
    r, q = 1.0 / attack.scale, attack.picks / attack.steps
    low, high = -_OUTPUT_SPAN, r + _OUTPUT_SPAN

    def score(z: FloatArray) -> FloatArray:
        return np.logaddexp(math.log1p(-q), math.log(q) + r * (z - 0.5 * r))

    # A look at the score's law, to choose a lattice: nothing of it enters the masses.
    z = np.linspace(low, high, 4001)
    quiet, marked = (quadrature.normal_density(z - mean) * (z[1] - z[0]) for mean in (0.0, r))
    # Large scores are clipped where the sum would otherwise spread over too many points.
    for clip in (high, *(r + _CLIPS)) if attack.clipped else (high,):
        values = score(np.minimum(z, clip))
        mean = float(values @ quiet)
        deviation = math.sqrt(float((values - mean) ** 2 @ quiet))
        spread = _range_of_sums(values - mean, quiet, marked, attack)
        if spread <= _LATTICE_MAX * _LATTICE_STEP * deviation:
            break
    step, high = max(_LATTICE_STEP * deviation, spread / _LATTICE_MAX), float(clip)
    first, last = round(float(values[0]) / step), round(float(values[-1]) / step)
    # The output at which the score is half a step above each lattice point but the last
    bounds = (np.arange(first, last) + 0.5) * step
    excess = bounds - math.log1p(-q)
    inside = np.maximum(np.expm1(np.minimum(excess, _EXPONENT_MAX)), 1e-300)
    # Beyond the exponents of doubles the -1 of expm1 is not felt.
    log_ratio = np.where(excess < _EXPONENT_MAX, np.log(inside * (1.0 - q) / q), excess + math.log((1.0 - q) / q))
    cuts = log_ratio / r + 0.5 * r
    # Lattice points that no output reaches, or only clipped ones, are put together with the first or the last.
    keep = (cuts > low) & (cuts < high)
    first, cuts = first + int(np.argmax(keep)), cuts[keep]
    (quiet_masses, error), (marked_masses, marked_error) = (cell_masses(cuts, mean) for mean in (0.0, r))
    return _Lattice(start=first, mass=quiet_masses), _Lattice(start=first, mass=marked_masses), max(error, marked_error)


def _range_of_sums(score: FloatArray, quiet: FloatArray, marked: FloatArray, attack: Allocation) -> float:
    """The width of the range in which nearly all sums lie (Chernoff)."""
    ends = []
    for sign in (1.0, -1.0):
        powers = np.geomspace(1e-3, 1e3, 49) / max(float(np.max(sign * score)), 1e-300)
        with np.errstate(over="ignore"):  # of scores far on the other side, which count for nothing
            exponents = np.outer(powers, sign * score)
        logs = [special.logsumexp(exponents, b=mass, axis=1) for mass in (quiet, marked)]
        sums = ((attack.steps - attack.picks) * logs[0] + attack.picks * np.maximum(*logs) - math.log(_TRIM)) / powers
        ends.append(float(sums.min()))
    return ends[0] + ends[1]


@dataclass(frozen=True, kw_only=True)
class Maximum(Attack):
    """The attack by the largest of `steps` outputs, one of which has its mean at 2 (P) or 1 (Q)."""

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.scale)

    def limited(self) -> Maximum:
        # An attack is what it is.
        return self

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        r = 1.0 / self.scale
        cuts = np.linspace(-_OUTPUT_SPAN, 2.0 * r + _OUTPUT_SPAN, 8 * half + 1)
        (p, p_error), (q, q_error) = (_maximum_masses(cuts, self.steps, place) for place in (2.0 * r, r))
        sure = np.maximum(p_error, q_error) < _CELL_ERROR  # error 3
        return whole_pair(p[sure], q[sure], _CELL_ERROR, side, direction, 0.0)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return _CELL_ERROR, 0.0


def _maximum_masses(cuts: FloatArray, steps: int, place: float) -> tuple[FloatArray, FloatArray]:
    """Masses of the cells for the largest of `steps` outputs, one of them at `place`, and their relative errors.

    With F the law of the maximum, a cell has `F(c') - F(c) = -F(c') expm1(log F(c) - log F(c'))`.
    """
    parts = (steps - 1.0) * special.log_ndtr(cuts), special.log_ndtr(cuts - place)
    log_law = parts[0] + parts[1]
    rise = np.diff(log_law)
    # By how much log F may be off: a part of itself that grows with the square of the argument.
    wrong = 16.0 * UNIT * (1.0 + (np.abs(cuts) + place) ** 2) * -log_law
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(rise > 0.0, (wrong[1:] + wrong[:-1]) / rise + wrong[1:] + 16.0 * UNIT, math.inf)
    return -np.exp(log_law[1:]) * np.expm1(-rise), error

"""Composition of rounds: delta as a function of eps, for many rounds, from above and from below.

A round is a pair of measures (base, top) on common atoms with losses `log(top / base)`; the law of
`shoal.law` gives one pair from above and one from below for each direction. Everything asked is
read from suffix sums. With `B_J`, `T_J` the base and top mass of the atoms with loss >= L_J,

    delta(eps) = max_J (T_J - e^eps B_J),        eps(delta) = max_J log((T_J - delta) / B_J),

(Neyman and Pearson), where T is taken too large and B too small on the side "upper", and the other
way round on the side "lower".

*Many rounds.* Both pairs are put on a lattice of losses, `L_j = j D`. From above an atom is shared
by its two neighbours so that base and top mass stay (a mean-preserving spread, whose ratio is
exactly e^{L_j}). From below the atoms nearest to a lattice point are merged, which is
post-processing; base and top mass of the cell are kept apart. Independent rounds convolve base
with base and top with top. Very many rounds are doubled first, by direct convolution, on lattices
that get coarser as the law gets wider.

*Tilting.* The rest is done by FFT on `base_j e^(t L_j) / M(t)` and `top_j e^((t-1) L_j)`, with
t >= 1 the saddle point of the wanted eps, so that what is asked for lies where the tilted law has
its bulk; absolute errors of the FFT are then relative errors of delta, at delta = 1e-12 as well as
at 0.1.

*Errors*, all added on the safe side; u = 2^-53, F the length of the FFT, z its output:

1. Wrap-around: the tilted mass outside the window, bounded by Chernoff at the best of some tilts.
   From above, mass that comes in only raises delta, and mass that went out at the top is added.
2. FFT: every intermediate value is at most the l1 norm of the input, each of the log2(F) stages adds
   a few u of it, so an output is off by at most `eta = 16 u log2(F) |a|_1`; its power by
   `T (|z| + eta)^(T-1) eta`, the inverse by the mean of these plus `16 u log2(F) mean|z^T|`.
3. The power itself, `exp(T log z)`: `|z|^T u (4 T (4 + |log|z||) + 32)`.
4. Rounding of the masses, a relative error of some u for each round (`relative`).
5. The masses cut off are added to (taken from) delta once for each round (`infinite`).

How the step and the tilt are chosen affects how tight the answers are, never that they are valid.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import fft, optimize, special

from shoal._validate import FloatArray
from shoal.law import Direction, Pair, Side, mean_law
from shoal.ratio import MeanRatio

Parts = tuple[tuple[MeanRatio, int], ...]
"""Different rounds and how often each is run."""

Measure = Literal["base", "top"]
SIDES: tuple[Side, Side] = ("upper", "lower")

_UNIT = 2.0**-53
_ALIAS = 1e-13
"""Tilted mass that may lie outside the window of the FFT."""

_ROUNDS_BITS = 7
"""Compositions are doubled until their number is below 2 to this power; the rest is done by FFT."""

_DIRECT_MAX = 6000
"""Longest lattice convolved directly."""

_LENGTH_MAX = 1 << 22
"""Longest lattice and FFT: 32 MiB an array."""


# One round, and many: lattice pairs and their tilted convolutions


@dataclass(frozen=True, kw_only=True)
class _Lattice:
    """A pair on the losses `step * (start + 0, 1, 2, ...)`, by the logarithms of its masses.

    Masses are too large (side "upper") or too small by a factor within `1 + relative` at most.
    """

    step: float
    start: int
    log_base: FloatArray
    log_top: FloatArray
    infinite: float
    relative: float = 0.0

    @property
    def losses(self) -> FloatArray:
        every: FloatArray = self.step * np.arange(self.start, self.start + len(self.log_base), dtype=np.float64)
        return every

    def log_mass(self, measure: Measure) -> FloatArray:
        return self.log_base if measure == "base" else self.log_top

    @property
    def rounding(self) -> float:
        """The relative error of masses that go from logarithms and back: some u times the logarithm."""
        logs = np.concatenate([self.log_base, self.log_top])
        return _UNIT * (4.0 * float(np.abs(logs[logs > -np.inf]).max()) + 64.0)


@functools.lru_cache(maxsize=64)
def _pair(mean: MeanRatio, half: int, budget: float, side: Side, direction: Direction) -> Pair:
    return mean_law(mean, half, budget).pair(side, direction)


def _core(base: FloatArray, top: FloatArray, spare: float) -> slice:
    """The atoms, in order of their losses, without ends that hold less than `spare` of both masses."""
    low = int(np.searchsorted(np.cumsum(base + top), spare))
    high = len(top) - int(np.searchsorted(np.cumsum((base + top)[::-1]), spare))
    return slice(low, high)


@functools.lru_cache(maxsize=64)
def _lattice(
    mean: MeanRatio, half: int, budget: float, side: Side, direction: Direction, step: float, spare: float = 0.0
) -> _Lattice:
    """The pair of a round, spread to (upper) or merged on (lower) the lattice.

    Ends that hold less than `spare` are cut; their top mass is charged.
    """
    pair = _pair(mean, half, budget, side, direction)
    core = _core(pair.base, pair.top, spare)
    lost = float(pair.top[: core.start].sum() + pair.top[core.stop :].sum()) * (1.0 + 1e-9)
    pair = replace(
        pair, loss=pair.loss[core], base=pair.base[core], top=pair.top[core],
        infinite=pair.infinite + (lost if side == "upper" else -lost),
    )  # fmt: skip
    scaled = pair.loss / step
    if side == "upper":
        left = np.floor(scaled)
        # share = (e^(loss - L) - 1) / (e^step - 1): base and top mass stay; rounding of the loss
        # itself was allowed for in the law.
        share = np.expm1(np.clip(pair.loss - left * step, 0.0, step)) / math.expm1(step)
        start, length = int(left[0]), int(left[-1] - left[0]) + 2
        index = (left - left[0]).astype(np.int64)
        base = np.bincount(index, pair.base * (1.0 - share), length) + np.bincount(index + 1, pair.base * share, length)
        losses = step * np.arange(start, start + length)
        with np.errstate(divide="ignore"):
            log_base = np.log(base)
        log_top = log_base + losses
    else:
        near = np.rint(scaled)
        start, length = int(near[0]), int(near[-1] - near[0]) + 1
        index = (near - near[0]).astype(np.int64)
        with np.errstate(divide="ignore"):
            log_base = np.log(np.bincount(index, pair.base, length))
            log_top = np.log(np.bincount(index, pair.top, length))
    return _Lattice(step=step, start=start, log_base=log_base, log_top=log_top, infinite=pair.infinite)


def _together(a: _Lattice, b: _Lattice, side: Side, allowance: float) -> _Lattice:
    """The rounds of a and of b, by direct convolution: positive terms, so small relative errors.

    The ends that hold less base and top mass than the allowance are cut; their top mass is charged.
    """
    base, start = np.convolve(np.exp(a.log_base), np.exp(b.log_base)), a.start + b.start
    if side == "upper":
        top = base * np.exp(a.step * np.arange(start, start + len(base)))
    else:
        top = np.convolve(np.exp(a.log_top), np.exp(b.log_top))
    core = _core(base, top, allowance)
    # 1e-180 is more than can be lost by underflow: losses are below 300 here, so 5e-324 e^300 a product.
    lost = float(top[: core.start].sum() + top[core.stop :].sum()) * (1.0 + 1e-9) + 1e-180
    sign = 1.0 if side == "upper" else -1.0
    return _from_masses(
        a, start + core.start, base[core], top[core],
        infinite=a.infinite + b.infinite + sign * lost,
        relative=a.relative + b.relative + min(len(a.log_base), len(b.log_base)) * _UNIT + a.rounding + b.rounding,
    )  # fmt: skip


def _coarser(lattice: _Lattice, side: Side) -> _Lattice:
    """The same rounds on every second point: odd points are shared by their neighbours.

    From above so that base and top mass stay, `1 / (e^step + 1)` of it to the right; from below in
    halves, which are merged with what is there.
    """
    lead = lattice.start % 2
    tail = 1 - (len(lattice.log_base) + lead) % 2
    share = 1.0 / (math.exp(lattice.step) + 1.0) if side == "upper" else 0.5
    start = (lattice.start - lead) // 2
    masses = []
    for log_mass in (lattice.log_base, lattice.log_top):
        mass = np.pad(np.exp(log_mass), (lead, tail))
        even, odd = mass[0::2].copy(), mass[1::2]
        even[:-1] += (1.0 - share) * odd
        even[1:] += share * odd
        masses.append(even)
    base, top = masses
    wider = replace(lattice, step=2.0 * lattice.step)
    if side == "upper":
        top = base * np.exp(wider.step * np.arange(start, start + len(base)))
    return _from_masses(wider, start, base, top, lattice.infinite, lattice.relative + lattice.rounding)


def _from_masses(
    like: _Lattice, start: int, base: FloatArray, top: FloatArray, infinite: float, relative: float
) -> _Lattice:
    with np.errstate(divide="ignore"):
        log_base, log_top = np.log(base), np.log(top)
    return _Lattice(
        step=like.step, start=start, log_base=log_base, log_top=log_top, infinite=infinite, relative=relative
    )


@dataclass(frozen=True, kw_only=True)
class _Key:
    """A lattice of one kind of round; rounds whose loss is not 0 are one in 2^`rare`."""

    mean: MeanRatio
    half: int
    budget: float
    side: Side
    direction: Direction
    step: float
    spare: float
    rare: int

    def octaves(self, rung: int) -> int:
        """How often the step is doubled for 2^rung rounds: as the deviation of their loss grows.

        While even 2^rung rounds mostly have loss 0 it is the same rare losses that are seen.
        """
        return max(0, rung - self.rare) // 2


@functools.lru_cache(maxsize=256)
def _ladder(key: _Key, rung: int) -> _Lattice:
    """2^rung rounds."""
    if rung == 0:
        return _lattice(key.mean, key.half, key.budget, key.side, key.direction, key.step, key.spare)
    below = _ladder(key, rung - 1)
    twice = _together(below, below, key.side, math.ldexp(0.1 * max(key.budget, key.spare), rung))
    return _coarser(twice, key.side) if key.octaves(rung) > key.octaves(rung - 1) else twice


def _is_short(lattice: _Lattice) -> bool:
    """Whether two rounds of it can be convolved directly, without underflow of e^loss."""
    ends = abs(lattice.start), abs(lattice.start + len(lattice.log_base))
    return len(lattice.log_base) <= _DIRECT_MAX and 2.0 * lattice.step * max(ends) < 300.0


@functools.lru_cache(maxsize=256)
def _on_rung(key: _Key, rung: int, top: int) -> _Lattice:
    """2^rung rounds on the lattice of rung `top`."""
    if rung == top:
        return _ladder(key, rung)
    finer = _on_rung(key, rung, top - 1)
    return _coarser(finer, key.side) if key.octaves(top) > key.octaves(top - 1) else finer


@dataclass(frozen=True, kw_only=True)
class _Cumulant:
    """`K(t) = sum_i T_i log sum_j m_ij e^(t L_j)` of the rounds' masses m."""

    terms: tuple[tuple[FloatArray, FloatArray, int], ...]

    def __call__(self, tilt: float) -> float:
        value = 0.0
        for log_mass, losses, rounds in self.terms:
            exponent = log_mass + tilt * losses
            peak = float(exponent.max())
            value += rounds * (peak + math.log(float(np.exp(exponent - peak).sum())))
        return value

    def derivatives(self, tilt: float) -> tuple[float, float, float]:
        """K, K', K''."""
        value = first = second = 0.0
        for log_mass, losses, rounds in self.terms:
            exponent = log_mass + tilt * losses
            peak = float(exponent.max())
            weights = np.exp(exponent - peak)
            total = float(weights.sum())
            mean = float(weights @ losses) / total
            value += rounds * (peak + math.log(total))
            first += rounds * mean
            second += rounds * float(weights @ (losses - mean) ** 2) / total
        return value, first, second

    def tail(self, tilt: float, edge: float, sign: int, slopes: FloatArray) -> float:
        """Chernoff: the mass, tilted and scaled to 1, above (sign 1) or below (-1) the edge."""
        here = self(tilt)
        return math.exp(min(0.0, *(self(tilt + sign * t) - here - sign * t * edge for t in slopes)))


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Where a tilted convolution is looked at: losses `step * (first .. first + length - 1)`."""

    tilt: float
    first: int
    length: int
    slopes: FloatArray


def _window(cumulant: _Cumulant, tilt: float, step: float) -> _Window:
    """The losses that hold all but _ALIAS of the tilted mass."""
    here, _, variance = cumulant.derivatives(tilt)
    deviation = math.sqrt(max(variance, step**2))
    # Large losses that are rare want slopes of their own scale, not of the deviation's.
    widest = max(float(losses[-1] - losses[0]) for _, losses, _ in cumulant.terms)
    slopes = np.concatenate([np.geomspace(0.3, 12.0, 8) / deviation, np.geomspace(2.0, 60.0, 5) / widest])
    reach = -math.log(_ALIAS / 4.0)
    top = min((cumulant(tilt + t) - here + reach) / t for t in slopes)
    bottom = max((here - cumulant(tilt - t) - reach) / t for t in slopes)
    first, last = math.floor(bottom / step) - 1, math.ceil(top / step) + 1
    return _Window(tilt=tilt, first=first, length=int(fft.next_fast_len(last - first + 1, real=True)), slopes=slopes)


def _convolution(
    lattices: Sequence[tuple[_Lattice, int]], measure: Measure, tilt: float, window: _Window
) -> tuple[FloatArray, float, float]:
    """Tilted masses of the composition over the window, the error of each, and a relative error."""
    length = window.length
    stages = math.log2(length) + 1.0
    eta = 16.0 * _UNIT * stages
    spectra = []
    log_bound = np.zeros(length // 2 + 1)
    relative = 0.0
    for lattice, rounds in lattices:
        log_mass, losses = lattice.log_mass(measure), lattice.losses
        index = np.arange(lattice.start, lattice.start + len(log_mass))
        exponent = log_mass + tilt * losses
        peak = float(exponent.max())
        exponent -= peak + math.log(float(np.exp(exponent - peak).sum()))
        z = fft.rfft(np.bincount(index % length, np.exp(exponent), length))
        log_bound += rounds * np.log(np.abs(z) + eta)
        spectra.append((z, rounds))
        # Masses below e^-60 may be off by much more without any effect.
        heavy = exponent > -60.0
        largest = float(np.abs(log_mass[heavy]).max() + np.abs(tilt * losses[heavy]).max())
        relative += rounds * (lattice.relative + _UNIT * (4.0 * largest + 64.0))
    # The rest of the spectrum is left out: together less than e^-80.
    loud = np.flatnonzero(log_bound > -80.0 - math.log(length))
    log_size, phase, slope, spread = np.zeros((4, loud.size))
    for z, rounds in spectra:
        chosen = z[loud]
        size = np.maximum(np.abs(chosen), 1e-300)
        log_size += rounds * np.log(size)
        phase += rounds * np.angle(chosen)
        slope += rounds * eta / (size + eta)
        spread += 4.0 * rounds * (4.0 + np.abs(np.log(size)))
    powered = np.zeros(length // 2 + 1, dtype=complex)
    powered[loud] = np.exp(log_size) * (np.cos(phase) + 1j * np.sin(phase))
    density = fft.irfft(powered, length)
    # The half spectrum stands for the whole: twice its sum, over the length.
    errors = np.exp(log_bound[loud]) * (slope + _UNIT * (spread + 32.0 + 16.0 * stages))
    error = 2.0 / length * float(errors.sum()) + math.exp(-79.0)
    return np.roll(density, -(window.first % length)), error, relative


# Suffix sums, whose largest excess is delta


@dataclass(frozen=True, kw_only=True)
class Curve:
    """delta as a function of eps on one side and in one direction.

    With x = e^(eps - reference) - 1, `delta = scale max_J (gain_J - x base_J) + infinite`, where
    `gain_J = T_J - B_J` in units in which e^reference is 1. On the side "upper" `loss[J-1] < eps <=
    loss[J]` names the J of the maximum, and the curve holds for eps >= floor; `beyond` is what is left
    above every loss.
    """

    side: Side
    loss: FloatArray
    gain: FloatArray
    base: FloatArray
    reference: float
    log_scale: float
    infinite: float
    floor: float = 0.0
    beyond: float = 0.0

    def delta(self, epsilon: float) -> float:
        x = math.expm1(epsilon - self.reference)
        if self.side == "upper":
            if epsilon < self.floor:
                return 1.0
            place = int(np.searchsorted(self.loss, epsilon))
            above = place == len(self.loss)
            excess = self.beyond if above else float(self.gain[place] - x * self.base[place])
        else:
            excess = float(np.max(self.gain - x * self.base))
        value = math.exp(min(self.log_scale, 700.0)) * max(excess, 0.0) + self.infinite
        return min(1.0, max(0.0, value))

    def epsilon(self, delta: float) -> float:
        """The smallest eps >= 0 whose delta is at most that given (an upper or lower bound on it)."""
        left = delta - self.infinite
        if left <= 0.0:
            return math.inf if self.side == "upper" else 0.0
        if left >= 1.0:
            return 0.0
        target = math.exp(min(math.log(left) - self.log_scale, 700.0))
        excess = self.gain - target
        sound = self.base > 0.0
        if self.side == "upper" and np.any(excess[~sound] > 0.0):
            return math.inf
        excess, base = excess[sound], self.base[sound]
        if not excess.size:
            return 0.0
        with np.errstate(over="ignore"):
            largest = float(np.max(excess / base))
        value = self.reference + math.log1p(largest) if largest > -1.0 else -math.inf
        if self.side == "upper":
            value = max(value, self.floor)
        return max(0.0, value)

    def slope(self, epsilon: float, delta: float) -> float:
        """About `-d log(delta) / d eps`: the base mass above eps, times e^eps, over delta."""
        place = min(int(np.searchsorted(self.loss, epsilon)), len(self.loss) - 1)
        exponent = epsilon - self.reference + self.log_scale - math.log(delta)
        return float(self.base[place]) * math.exp(min(exponent, 700.0))

    def points(self) -> tuple[FloatArray, FloatArray]:
        """Some eps >= 0 and the delta of each."""
        chosen = self.loss >= max(self.floor, 0.0)
        x = np.expm1(np.minimum(self.loss[chosen] - self.reference, 700.0))
        excess = self.gain[chosen] - x * self.base[chosen]
        delta = math.exp(min(self.log_scale, 700.0)) * np.maximum(excess, 0.0) + self.infinite
        return self.loss[chosen], np.clip(delta, 0.0, 1.0)

    def masses(self) -> tuple[FloatArray, FloatArray]:
        """Base (too large) and top mass (too small) of the tests "loss >= L_J", from below."""
        base = math.exp(min(self.log_scale - self.reference, 700.0)) * self.base
        top = math.exp(min(self.log_scale, 700.0)) * (self.gain + self.base) + self.infinite
        return base, top


def _suffix(values: FloatArray) -> FloatArray:
    sums: FloatArray = np.cumsum(values[::-1])[::-1]
    return sums


def _one_round(pair: Pair) -> Curve:
    """The curve of a single round, from its atoms."""
    gain, base = _suffix(pair.base * np.expm1(pair.loss)), _suffix(pair.base)
    # cumulative sums of n terms, and exponentials: relative errors of the sums of absolute values
    rounding = _UNIT * (2.0 * len(base) + 64.0)
    above = _suffix(pair.base * np.abs(np.expm1(pair.loss)))
    sign = 1.0 if pair.side == "upper" else -1.0
    return Curve(
        side=pair.side, loss=pair.loss, gain=gain + sign * rounding * above, base=base * (1.0 - sign * rounding),
        reference=0.0, log_scale=0.0, infinite=pair.infinite,
    )  # fmt: skip


def _many_rounds(
    lattices: Sequence[tuple[_Lattice, int]], side: Side, tilt: float, wanted: float | None = None
) -> Curve:
    """The curve of a composition, accurate for eps near K'(tilt).

    Merged cells (side "lower") have losses a little off their lattice points, which adds up over many
    rounds. Base and top masses are therefore tilted each on its own, so that both have their bulk
    at the same point, the `label`; the true loss there is the `reference`. From above the two are
    one, and may be `wanted` elsewhere (a given eps).
    """
    step = lattices[0][0].step
    cumulant = _cumulant(lattices, "base")
    k_base, label, _ = cumulant.derivatives(tilt)
    k_top, top_tilt, reference = k_base, tilt - 1.0, label
    if side == "lower":
        top_cumulant = _cumulant(lattices, "top")
        k_top, label, _ = top_cumulant.derivatives(top_tilt)
        tilt = _tilt_at(cumulant, label, tilt)
        k_base = cumulant(tilt)
        reference = k_top - k_base + (tilt - top_tilt) * label
        if wanted is not None:
            label += wanted - reference
            reference = k_top - k_base + (tilt - top_tilt) * label
    window = _window(cumulant, tilt, step)
    if window.length > _LENGTH_MAX:
        return _silent(side)
    losses: FloatArray = step * np.arange(window.first, window.first + window.length, dtype=np.float64)
    top_edge, bottom_edge = float(losses[-1]), float(losses[0])
    if side == "upper":
        reference = label = min(max(0.0, label) if wanted is None else wanted, top_edge)
    elif label > top_edge:
        return _silent(side)
    # Far below the reference the weights would only magnify errors, and overflow.
    reach = min(40.0 / tilt + 4.0 * step, 600.0 / tilt)
    begin = min(int(np.searchsorted(losses, label - reach)), window.length - 1)
    kept = losses[begin:]
    gap = kept - label
    weight, top_weight = np.exp(-tilt * gap), np.exp(-top_tilt * gap)
    density, error, relative = _convolution(lattices, "base", tilt, window)
    density = density[begin:]
    # Points are multiples of the step, rounded.
    relative += 8.0 * _UNIT * (tilt + 1.0) * max(abs(top_edge), abs(bottom_edge))
    over = cumulant.tail(tilt, top_edge, 1, window.slopes)
    log_scale = k_top - top_tilt * label
    infinite = sum(rounds * lattice.infinite for lattice, rounds in lattices)
    summing = 8.0 * len(kept) * _UNIT
    if side == "upper":
        mass = (np.maximum(density, 0.0) + error) * (1.0 + summing)
        # weight (e^gap - 1), where neither factor overflows
        rise = np.where(gap < 1.0, weight * np.expm1(np.minimum(gap, 1.0)), top_weight - weight)
        # Mass beyond the window: e^((1 - t) L) decreases with L, as t >= 1. Summing has to cover the
        # negative terms of the gain as well.
        beyond = over * float(top_weight[-1])
        gain = _suffix(mass * rise) + beyond + summing * _suffix(mass * np.abs(rise))
        return Curve(
            side=side, loss=kept, gain=gain, base=_suffix(mass * weight), reference=reference,
            log_scale=log_scale + 3.0 * relative, infinite=infinite,
            floor=max(0.0, float(kept[0]) - step), beyond=beyond,
        )  # fmt: skip
    top_density, top_error, top_relative = _convolution(lattices, "top", top_tilt, window)
    strays = sum(
        top_cumulant.tail(top_tilt, edge, sign, window.slopes) for edge, sign in ((top_edge, 1), (bottom_edge, -1))
    )
    top = _suffix((top_density[begin:] - top_error) * top_weight) - strays * top_weight
    base = _suffix((density + error) * weight) + over * float(weight[-1])
    slack = 3.0 * (relative + top_relative) + summing
    base *= 1.0 + slack
    return Curve(
        # Far below the reference base is e^40 times top, and their difference is rounded accordingly.
        side=side, loss=kept, gain=top - slack * np.abs(top) - base - 8.0 * _UNIT * (np.abs(top) + base),
        base=base, reference=reference,
        log_scale=log_scale, infinite=infinite,
    )  # fmt: skip


def _tilt_at(cumulant: _Cumulant, loss: float, guess: float) -> float:
    """The tilt >= 1/2 with mean K' = loss, near the guess."""
    width = 1.0 / math.sqrt(cumulant.derivatives(guess)[2])

    def excess(tilt: float) -> float:
        return cumulant.derivatives(tilt)[1] - loss

    low = high = guess
    for _ in range(60):
        if excess(low) <= 0.0 or low <= 0.5:
            break
        low, width = max(0.5, low - width), 2.0 * width
    for _ in range(60):
        if excess(high) >= 0.0:
            break
        high, width = high + width, 2.0 * width
    if not excess(low) < 0.0 < excess(high):
        return guess
    return float(optimize.brentq(excess, low, high, rtol=1e-9))


def _cumulant(lattices: Sequence[tuple[_Lattice, int]], measure: Measure) -> _Cumulant:
    terms = []
    for lattice, rounds in lattices:
        log_mass = lattice.log_mass(measure)
        there = log_mass > -np.inf
        terms.append((log_mass[there], lattice.losses[there], rounds))
    return _Cumulant(terms=tuple(terms))


# From a question to the tilt that answers it


def _log_delta(cumulant: _Cumulant, tilt: float) -> float:
    """The saddle-point estimate of log delta at eps = K'(t)."""
    value, epsilon, variance = cumulant.derivatives(tilt)
    deviation = math.sqrt(max(variance, 1e-300))
    mills = [0.5 * float(special.erfcx(x * deviation / math.sqrt(2.0))) for x in (tilt - 1.0, tilt)]
    return value - (tilt - 1.0) * epsilon + math.log(max(mills[0] - mills[1], 1e-300))


def _rising_root(function: Callable[[float], float], scale: float) -> float:
    """t >= 0 where an increasing function crosses 0 (0 if it starts above), roughly."""
    if function(0.0) >= 0.0:
        return 0.0
    high = scale
    while function(high) < 0.0:
        high *= 4.0
        if high > 1e18 * scale:
            return high
    return float(optimize.brentq(function, 0.0, high, xtol=1e-6 * high, rtol=1e-6))


def _tilt_for_delta(cumulant: _Cumulant, delta: float) -> float:
    deviation = math.sqrt(cumulant.derivatives(1.0)[2])
    return 1.0 + _rising_root(lambda t: math.log(delta) - _log_delta(cumulant, 1.0 + t), 1.0 / deviation)


def _tilt_for_epsilon(cumulant: _Cumulant, epsilon: float) -> float:
    deviation = math.sqrt(cumulant.derivatives(1.0)[2])
    highest = sum(rounds * float(losses[-1]) for _, losses, rounds in cumulant.terms)
    near = min(epsilon, highest - 0.5 * (highest - cumulant.derivatives(1.0)[1]) * 1e-3)
    return 1.0 + _rising_root(lambda t: cumulant.derivatives(1.0 + t)[1] - near, 1.0 / deviation)


def _tilt_for_mass(cumulant: _Cumulant, mass: float) -> float:
    """The tilt t >= 1 at whose mean loss the base mass above is about the one given."""

    def excess(t: float) -> float:
        value, loss, variance = cumulant.derivatives(1.0 + t)
        mills = 0.5 * float(special.erfcx((1.0 + t) * math.sqrt(variance / 2.0)))
        return math.log(mass) - (value - (1.0 + t) * loss + math.log(max(mills, 1e-300)))

    return 1.0 + _rising_root(excess, 1.0 / math.sqrt(cumulant.derivatives(1.0)[2]))


@functools.lru_cache(maxsize=64)
def _sketch(mean: MeanRatio, half: int, budget: float, direction: Direction) -> tuple[FloatArray, FloatArray]:
    """Some hundred atoms (logarithms of base masses, losses) that look like the law: for guesses."""
    pair = _pair(mean, half, budget, "upper", direction)
    starts = np.arange(0, len(pair.loss), len(pair.loss) // 400 + 1)
    base, top = (np.add.reduceat(values, starts) for values in (pair.base, pair.top))
    there = (base > 0.0) & (top > 0.0)
    return np.log(base[there]), np.log(top[there] / base[there])


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Rounds run together, looked at with one resolution of their laws."""

    parts: Parts
    half: int
    budget: float

    @property
    def is_one(self) -> bool:
        return len(self.parts) == 1 and self.parts[0][1] == 1

    def total_variation(self) -> float:
        """A simple upper bound on delta at eps = 0: distances add up, and so do divergences.

        Pinsker's inequality, `TV <= sqrt(KL / 2)`, with 1e-9 to spare for masses that do not add up to
        1 exactly.
        """
        distance = divergence = infinite = 0.0
        for mean, rounds in self.parts:
            pair = _pair(mean, self.half, self.budget, "upper", "forward")
            infinite += rounds * pair.infinite
            distance += rounds * _one_round(pair).delta(0.0)
            divergence += rounds * (float(pair.top @ pair.loss) + 1e-9)
        return min(distance, infinite + math.sqrt(max(divergence, 0.0) / 2.0))

    def near_delta(self, direction: Direction, delta: float) -> dict[Side, Curve]:
        """Curves of both sides that are accurate where delta(eps) is the delta given."""
        if self.is_one:
            return self._one(direction)
        sketch = self._sketched(direction)
        tilt = _tilt_for_delta(sketch, delta)
        # A hundred-thousandth of delta, shared by the rounds, may be cut; in few steps, shared by questions.
        spare = 10.0 ** (3.0 * math.floor((math.log10(delta / sum(rounds for _, rounds in self.parts)) - 5.0) / 3.0))
        curves: dict[Side, Curve] = {}
        room = math.inf
        for side in SIDES:
            curve = self._curve(side, direction, tilt, spare=spare, room=room)
            for _ in range(6):
                found = curve.epsilon(delta)
                distance = abs(found - curve.reference)
                if side == "upper" and room == math.inf and 0.0 < found < math.inf:
                    # Where the tilted law is not the one that matters, a finer step may be needed.
                    room = found / max(tilt, curve.slope(found, delta))
                    coarse, fine = (self._step(direction, tilt, spare, r)[0] for r in (math.inf, room))
                    if fine < 0.6 * coarse:
                        curve = self._curve(side, direction, tilt, found, spare, room)
                        continue
                    room = 1e300  # as good as infinite: asked and answered
                if distance * tilt <= 4.0 or (math.isinf(found) and tilt == 1.0):
                    break
                if math.isinf(found):
                    # Rare large losses, which hardly count for this delta, have taken over the tilted law.
                    tilt = 1.0
                    curve = self._curve(side, direction, tilt, spare=spare, room=room)
                    continue
                if side == "upper" and distance > 0.2 * math.sqrt(sketch.derivatives(tilt)[2]):
                    tilt = _tilt_for_epsilon(sketch, found)
                # From below, 0 says that the answer is out of sight, which is further down.
                wanted = found if found > 0.0 or side == "upper" else max(0.0, curve.reference - 30.0 / tilt)
                curve = self._curve(side, direction, tilt, wanted, spare, room)
            curves[side] = curve
        return curves

    def near_epsilon(self, direction: Direction, epsilon: float) -> dict[Side, Curve]:
        """Curves of both sides that are accurate at the eps given."""
        if self.is_one:
            return self._one(direction)
        tilt = _tilt_for_epsilon(self._sketched(direction), epsilon)
        return {side: self._curve(side, direction, tilt, epsilon) for side in SIDES}

    def near_mass(self, direction: Direction, mass: float) -> dict[Side, Curve]:
        """Curves of both sides that are accurate where the base mass of a test is the one given."""
        if self.is_one:
            return self._one(direction)
        tilt = _tilt_for_mass(self._sketched(direction), mass)
        return {side: self._curve(side, direction, tilt) for side in SIDES}

    def test_error(self) -> tuple[float, float]:
        """A factor and a sum by which the base mass of a test from below may be too small.

        The masses from below are made too small for delta; the false positive rate of a test must
        not be.
        """
        factor = extra = 0.0
        for mean, rounds in self.parts:
            law = mean_law(mean, self.half, self.budget)
            factor += 2.1 * rounds * law.mass_error
            extra += rounds * max(law.cut.values())
        return math.exp(factor), extra

    def _one(self, direction: Direction) -> dict[Side, Curve]:
        mean = self.parts[0][0]
        return {side: _one_round(_pair(mean, self.half, self.budget, side, direction)) for side in SIDES}

    def _sketched(self, direction: Direction) -> _Cumulant:
        terms = [(*_sketch(mean, self.half, self.budget, direction), rounds) for mean, rounds in self.parts]
        return _Cumulant(terms=tuple(terms))

    def _curve(
        self,
        side: Side,
        direction: Direction,
        tilt: float,
        wanted: float | None = None,
        spare: float = 0.0,
        room: float = math.inf,
    ) -> Curve:
        step, rare = self._step(direction, tilt, spare, room)
        lattices = self._lattices(side, direction, step, rare, spare)
        return _many_rounds(lattices, side, tilt, wanted)

    def _step(self, direction: Direction, tilt: float, spare: float, room: float) -> tuple[float, int]:
        """The loss step, and how rare losses other than 0 are.

        Sharing adds up to step^2 / 4 to the variance of each loss that is not 0, which moves the
        saddle-point eps by `tilt * rounds * step^2 / 8`; coarser lattices of more rounds add the
        same again each. A part of eps may be lost that way; where eps is about 0, a part of the
        typical loss of all rounds.
        """
        total = sum(rounds for _, rounds in self.parts)
        moved = square = widest = 0.0
        for mean, rounds in self.parts:
            log_base, loss = _sketch(mean, self.half, self.budget, direction)
            base, size = np.exp(log_base), np.abs(loss)
            # Rounds in which nobody took part have loss 0 (up to rounding) and need no resolution.
            away = size > 1e-4 * float(base @ size**2) / float(base @ size)
            some = float(base[away].sum())
            moved += rounds * some
            square += rounds * float((base * size)[away].sum()) ** 2 / some
            kept = loss[_core(base, base * np.exp(loss), spare)]
            widest = max(widest, float(kept[-1] - kept[0]))
        _, epsilon, variance = self._sketched(direction).derivatives(tilt)
        room = max(min(epsilon / tilt, room), min(variance, square))
        wanted = math.sqrt(4e-4 * room / max(1.0, moved)) * 512.0 / self.half
        # Merging costs about step^2 / 12 of the mean loss a round, which must stay below the
        # deviation of all rounds together.
        wanted = min(wanted, math.sqrt(math.sqrt(square) / max(1.0, moved)) * 256.0 / self.half, 0.5)
        # In half octaves, shared between questions.
        step = 2.0 ** (math.floor(2.0 * math.log2(max(wanted, 4.0 * widest / _LENGTH_MAX))) / 2.0)
        return step, max(0, math.ceil(math.log2(total / moved)))

    def _lattices(
        self, side: Side, direction: Direction, step: float, rare: int, spare: float
    ) -> list[tuple[_Lattice, int]]:
        """Lattices and counts: many rounds are first doubled as far as that is cheap."""
        about = dict(half=self.half, budget=self.budget, side=side, direction=direction, step=step)
        keys = [_Key(mean=mean, spare=spare, rare=rare, **about) for mean, _ in self.parts]  # type: ignore[arg-type]
        wanted = max(0, max(rounds for _, rounds in self.parts).bit_length() - _ROUNDS_BITS)
        top = 0
        while top < wanted and all(_is_short(_ladder(key, top)) for key in keys):
            top += 1
        allowance = math.ldexp(0.1 * max(self.budget, spare), top)
        found = []
        for key, (_, rounds) in zip(keys, self.parts, strict=True):
            if rounds >> top:
                found.append((_on_rung(key, top, top), rounds >> top))
            rest = [_on_rung(key, rung, top) for rung in range(top) if rounds >> rung & 1]
            if rest:
                found.append((functools.reduce(lambda a, b: _together(a, b, side, allowance), rest), 1))
        return found


def _silent(side: Side) -> Curve:
    """A curve that says nothing: delta between 0 and 1, eps between 0 and infinity."""
    one = np.ones(1)
    infinite = 1.0 if side == "upper" else -1.0
    return Curve(side=side, loss=one, gain=0.0 * one, base=one, reference=0.0, log_scale=0.0, infinite=infinite)


def upper_lattice(mean: MeanRatio, half: int, direction: Direction, step: float) -> tuple[int, FloatArray, float]:
    """One round from above: index of the first loss, top masses of the losses, and mass at infinity."""
    lattice = _lattice(mean, half, 1e-24, "upper", direction, step)
    return lattice.start, np.exp(lattice.log_top), lattice.infinite

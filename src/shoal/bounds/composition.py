"""Composition of rounds: delta as a function of eps, for many rounds, from above and from below.

A round is a pair of measures (base, top) on common atoms with losses `log(top / base)`. Independent
rounds multiply ratios, so their losses add up: the same sums on the same grid as in `mean_law`, of
losses instead of ratios.

*Cells.* A cell carries the mass u of top at a lattice point L, and an offset w. From above the
pair of the cell is `(base, top) = (u e^-L, u)`: sharing an atom between two lattice points so that both
of its masses stay is a mean-preserving spread of the ratio. From below the cell is everything merged
into it, and merging is post-processing. The law of one round has one Q-mass for both sides, so

- *forward* (Q is the base): `(base, top) = (u e^-L, u + w)`, and one side of an atom gets
  the part f of its base: top `f (u + w)`;
- *reverse* (Q is the top): `(base, top) = (e^-L (u + w), u)`, and one side gets the part a of its top.

With `a = (1 - e^-o) / (1 - e^-d)` and `f = a e^(o - d)` for an atom o above the lower and d - o below
the upper of two points, the two sides together keep base and top mass. Where cells get wider than a few e-folds
(very many rounds with very large losses) `u + w` itself is carried, as a sum of positive products.

Because top masses are carried and nothing cancels, one composition answers every eps >= 0 and
every delta to the same relative accuracy, at delta = 1e-12 as well as at 0.1.

*Reading.* For the cells from J on, with `U_J = sum u_j`, `B_J = sum u_j e^(L_J - L_j)` and
`G_J = sum u_j (1 - e^(L_J - L_j))` (made of positive terms, `G_J = G_J+1 + (1 - e^(L_J - L_J+1)) B_J+1`)

    delta(eps) = max_J (G_J - (e^(eps - L_J) - 1) B_J),

(Neyman and Pearson) from above; from below w is added to G_J (forward) or subtracted from it (reverse).

*Errors*, all charged on the safe side; u = 2^-53:

1. Cells cut at the ends hold less top mass than allowed. It is charged to delta from above
   (`infinite`); from below they are left out of the test, which needs no charge. The mass that the law
   of a round cut is charged on both sides, once for each round.
2. Masses are within a factor `1 +- relative` of exact ones: the longest sum of products, and a few
   units for sharing, once for each convolution; the errors of a and b add up.
3. Offsets are within `jitter` times u: products of the parts' errors with `1 + |w / u|`, and
   the effect of rounded masses and sums on products with an offset.
4. Positions are within `slip` of exact ones: an atom is 4u (|loss| + |centre|) off when it is put on
   a grid. Losses are moved by that much in the end.
5. Underflow: all masses below 1e-260 together are charged as 1e-250, each time.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from shoal.bounds.grid import Cells, Share, base_for, convolved, deposit, in_order, rebased, without_empty_levels
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import ROUNDED_UP, SIDES, UNIT, Direction, FloatArray, Side
from shoal.bounds.round import Round, SideChoice
from shoal.errors import InvalidInput

Parts = tuple[tuple[Round, int], ...]
"""Different rounds, and how often each is run."""

_LOWER_MASSES_ABOVE_LOSS = 8.0
"""If the grid reaches this loss, no eps of interest is small enough to need offsets."""

_ZERO_LOSS_PART = 1e-4
"""Losses below this part of a typical loss count as 0 in the choice of a grid."""

_CENTRE_SPREADS, _CENTRE_MASS = 2.0, 0.9
"""A grid is centred off 0 if losses lie this many spreads off 0, and this part of the mass is not at 0."""

_CHERNOFF_POWERS: FloatArray = 2.0 ** np.arange(-8.0, 17.0)
"""The powers l of Chernoff's bound."""

_LATTICE_POINTS_MAX = 10**7
"""The largest number of points of a lattice of losses with equal steps."""

_UNDERFLOW_CHARGE = 1e-250
"""A charge for underflow, larger than all masses lost by it (error 5)."""

_EFOLDS_PER_BLOCK = 100.0
"""E-folds of losses over which sums are discounted at a time: e^100 times a mass is far below the largest double."""

_LATTICE_CUT = 1e-24
"""The mass that a lattice of one round may cut: below any delta for which such lattices are composed."""


# One composition: losses on the grid


@dataclass(frozen=True, kw_only=True)
class _LossRule:
    """How cells of losses and their offsets are shared.

    `lower_masses`: the channel holds the masses `u + w` of the lower side instead of offsets w.
    """

    direction: Direction
    lower_masses: bool = False

    def shares(self, offset: FloatArray | float, width: FloatArray | float) -> tuple[Share, Share]:
        rest = width - offset
        # By expm1 throughout: shares of narrow cells would cancel otherwise.
        both_sides = np.expm1(-width)
        right = np.expm1(-offset) / both_sides
        left = np.exp(-offset) * np.expm1(-rest) / both_sides
        if self.direction == "forward":
            # f = right e^-rest of the base, so the part right - f = -right expm1(-rest) of u changes sides
            up, down = right * np.exp(-rest), np.expm1(-rest) / both_sides
            swap = -right * np.expm1(-rest)
            lower, upper = swap, -swap
        else:
            up, down = right * np.exp(rest), left * np.exp(-offset)
            lower, upper = left * np.expm1(-offset), right * np.expm1(rest)
        if self.lower_masses:
            # u + w is shared by itself: no part of u changes sides.
            lower, upper = 0.0 * lower, 0.0 * upper
        return Share(left, down, lower), Share(right, up, upper)

    def moment_of_sum(self, a: FloatArray, a_moment: FloatArray, b: FloatArray, b_moment: FloatArray) -> FloatArray:
        if self.lower_masses:
            return np.convolve(a_moment, b_moment)
        # (u_1 + w_1)(u_2 + w_2) - u_1 u_2, without the difference.
        return np.convolve(a, b_moment) + np.convolve(a_moment, b + b_moment)


@dataclass(frozen=True, kw_only=True)
class _Losses(Cells):
    """Composed rounds: masses u of top at the losses `centre + y`, with the offsets w as a channel if there is one.

    `infinite` and `lost` are charged from above and from below; `drift` is how far the losses from
    below lie under the lattice points. The ledger `relative`, `jitter` and `slip` are errors 2 to 4.
    """

    rule: _LossRule
    centre: float
    infinite: float
    lost: float
    jitter: float
    slip: float
    drift: float = 0.0

    @property
    def offset(self) -> float:
        """The largest |w / u|, with a margin for sharing once more on the coarsest level; 0 without offsets."""
        if self.is_upper_only:
            return 0.0
        return self.largest_offset(in_spacings=False) + 2.0 * math.ldexp(1.0, self.base + self.levels)

    @property
    def is_upper_only(self) -> bool:
        """Whether only the upper side is carried."""
        return len(self.rows) == 1


def _median_scale(mass: FloatArray, distance: FloatArray) -> float:
    """1.2 times the median distance: about the mean distance of a normal law, whatever the tails."""
    order = np.argsort(distance)
    total = np.cumsum(mass[order])
    return 1.2 * float(distance[order][int(np.searchsorted(total, 0.5 * total[-1]))])


def _centre_and_scale(loss: FloatArray, mass: FloatArray) -> tuple[float, float]:
    """A good centre for a grid of these losses, and the scale of the distances from it.

    The centre is 0 while many rounds have loss 0 (nobody took part) or the losses surround 0.
    Losses of 0, up to rounding, need no resolution.
    """
    size = np.abs(loss)
    if not np.any(size):
        return 0.0, 1.0
    off_zero = size > _ZERO_LOSS_PART * float(mass @ size**2) / float(mass @ size)
    moved, mass_off_zero = loss[off_zero], mass[off_zero]
    mean = float(mass_off_zero @ moved) / float(mass_off_zero.sum())
    spread, distance = _median_scale(mass_off_zero, np.abs(moved - mean)), _median_scale(mass_off_zero, np.abs(moved))
    if abs(mean) > _CENTRE_SPREADS * spread and float(mass_off_zero.sum()) > _CENTRE_MASS * float(mass.sum()):
        # A single loss does not spread: its rounding does.
        return mean, max(spread, UNIT * abs(mean))
    return 0.0, distance


@functools.lru_cache(maxsize=64)
def _round_on_grid(round_: Round, half: int, budget: float, direction: Direction, sides: SideChoice) -> _Losses:
    """One round on the grid."""
    atoms = round_.atoms(half, budget, direction, sides)
    loss, u, w = atoms.loss, atoms.top, atoms.offset
    centre, scale = _centre_and_scale(loss, u)
    rule, base = _LossRule(direction=direction), base_for(scale, half)
    rows, error = deposit(rule, loss - centre, [u] if sides == "upper" else [u, w], half, base)
    # Errors 1 and 5 (cut by the law, and underflow), 2 and 4 for putting atoms on the grid; 3 below.
    cells = _Losses(
        base=base,
        rows=rows,
        rule=rule,
        centre=centre,
        infinite=atoms.infinite + _UNDERFLOW_CHARGE,
        lost=atoms.lost + _UNDERFLOW_CHARGE,
        relative=atoms.relative + error,
        jitter=0.0,
        slip=4.0 * UNIT * (float(np.abs(loss).max()) + abs(centre)),
    )
    return replace(cells, jitter=error * cells.offset)


def _without_tails(a: _Losses, allowance: float) -> _Losses:
    """The rounds without the ends that hold less top mass than the allowance."""
    mass, points = in_order(a.mass), in_order(a.points())
    # The fullest cell remains, however large the allowance.
    fullest = int(np.argmax(mass))
    low = min(int(np.searchsorted(np.cumsum(mass), allowance)), fullest)
    high = max(len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), allowance)), fullest + 1)
    cut = float(mass[:low].sum() + mass[high:].sum()) * ROUNDED_UP
    cells = a.points()
    is_cut = (cells < points[low]) | (cells > points[high - 1])
    # Errors 1 and 5. From below the cells are left out of every test, which needs no charge.
    rows = without_empty_levels(np.where(is_cut, 0.0, a.rows))
    return replace(a, rows=rows, infinite=a.infinite + cut + _UNDERFLOW_CHARGE)


def _rebased_losses(a: _Losses, base: int) -> _Losses:
    """The rounds on a grid with a coarser level 0."""
    if base <= a.base:
        return a
    # Errors 2 and 3: a few operations on each mass and offset for each level removed.
    moved = rebased(a, base)
    return replace(moved, jitter=a.jitter + (moved.relative - a.relative) * moved.offset)


def _refitted(a: _Losses) -> _Losses:
    """The rounds with centre and level 0 chosen for their present losses."""
    occupied = a.mass > 0.0
    y, mass = a.points()[occupied], a.mass[occupied]
    centre, scale = _centre_and_scale(y, mass)
    if centre:
        base = base_for(scale, a.half)
        rows, error = deposit(a.rule, y - centre, list(a.rows[:, 0, occupied]), a.half, base)
        # error 4
        slip = a.slip + 4.0 * UNIT * (float(np.abs(y).max()) + abs(centre))
        a = replace(a, base=base, rows=rows, centre=a.centre + centre, slip=slip, relative=a.relative + error)
        return replace(a, jitter=a.jitter + error * a.offset)
    return _rebased_losses(a, base_for(scale, a.half))


def _with_lower_masses(a: _Losses) -> _Losses:
    """The rounds with `u + w` instead of w, on the safe side of its error."""
    if a.rule.lower_masses or a.is_upper_only:
        return a
    # error 3 is charged here: from below more base mass, or less top mass, makes the difference smaller.
    error = a.jitter * a.mass + a.relative * np.abs(a.moment)
    lower = a.mass + a.moment + (error if a.rule.direction == "reverse" else -error)
    return _with_channel(replace(a, rule=replace(a.rule, lower_masses=True), jitter=0.0), np.maximum(lower, 0.0))


def _with_channel(a: _Losses, channel: FloatArray) -> _Losses:
    """The rounds with another channel next to their masses."""
    return replace(a, rows=np.stack([a.mass, channel])[:, None])


def _renormalised(a: _Losses) -> _Losses:
    """The rounds with base masses from below relative to their own level, in reverse."""
    if a.is_upper_only or not a.rule.lower_masses or a.rule.direction == "forward":
        return a
    # Otherwise the masses of many rounds would drift away from u and overflow.
    factor = float(a.moment.sum()) / float(a.mass.sum())
    a = replace(a, drift=a.drift + math.log(factor), relative=a.relative + 8.0 * UNIT)
    return _with_channel(a, a.moment / factor)


def _choose_representation(a: _Losses) -> _Losses:
    """The rounds with `u + w` instead of w where losses are large: cheaper there, exact enough, no overflow."""
    if math.ldexp(1.0, a.base + a.levels) * a.half > _LOWER_MASSES_ABOVE_LOSS:
        return _renormalised(_with_lower_masses(a))
    return a


def _composed(a: _Losses, b: _Losses, allowance: float) -> _Losses:
    """The rounds of a and of b (b may be a: an independent copy)."""
    if a is not b:
        if max(a.base, b.base) > min(a.base, b.base):
            a, b = _rebased_losses(a, b.base), _rebased_losses(b, a.base)
        if a.rule.lower_masses or b.rule.lower_masses:
            a, b = _with_lower_masses(a), _with_lower_masses(b)
    # error 2: of both parts, and of this convolution
    rows, relative = convolved(a, b)
    jitter = 0.0
    if not a.rule.lower_masses and not a.is_upper_only:
        # error 3: w_1 u_2 + u_1 w_2 + w_1 w_2, each factor off by its own error; 1.01 covers products of errors.
        offset_a, offset_b = a.offset, b.offset
        jitter = a.jitter * (1.0 + offset_b) + b.jitter * (1.0 + offset_a) + a.jitter * b.jitter
        jitter += 1.01 * relative * (offset_a + offset_b + offset_a * offset_b)
    total = _Losses(
        base=a.base,
        rows=rows,
        rule=a.rule,
        centre=a.centre + b.centre,
        infinite=a.infinite + b.infinite,
        lost=a.lost + b.lost,
        relative=relative,
        jitter=jitter,
        slip=a.slip + b.slip + 2.0 * UNIT * abs(a.centre + b.centre),
        drift=a.drift + b.drift,
    )
    return _choose_representation(_refitted(_without_tails(total, allowance)))


@dataclass(frozen=True, kw_only=True)
class _GridSettings:
    """The resolution at which rounds are composed.

    Each round may lose `tail_allowance` of its top mass at every doubling.
    """

    half: int
    budget: float
    direction: Direction
    tail_allowance: float
    sides: SideChoice


@functools.lru_cache(maxsize=128)
def _doubled(round_: Round, settings: _GridSettings, rung: int) -> _Losses:
    """2^rung rounds of one kind."""
    # Cached: questions about other numbers of rounds use the same rungs. Each may cut twice as much (error 1).
    if rung == 0:
        losses = _round_on_grid(round_, settings.half, settings.budget, settings.direction, settings.sides)
        return _choose_representation(_without_tails(losses, settings.tail_allowance))
    below = _doubled(round_, settings, rung - 1)
    return _composed(below, below, math.ldexp(settings.tail_allowance, rung))


@functools.lru_cache(maxsize=64)
def _composed_curves(parts: Parts, settings: _GridSettings) -> dict[Side, Curve]:
    """The curves of all rounds, composed from those that spread least."""
    bits = [(round_, rung) for round_, rounds in parts for rung in range(rounds.bit_length()) if rounds >> rung & 1]
    # A piece that spreads far makes the grid coarse for all pieces after it.
    pieces = sorted((_doubled(round_, settings, rung) for round_, rung in bits), key=lambda piece: piece.base)
    allowance = settings.tail_allowance * max(rounds for _, rounds in parts)
    return _curves_of(functools.reduce(lambda a, b: _composed(a, b, allowance), pieces))


# Suffix sums, whose largest excess is delta


@dataclass(frozen=True, kw_only=True)
class Curve:
    """delta as a function of eps on one side and in one direction.

    `delta(eps) = max_J (gain_J - (e^(eps - loss_J) - 1) base_J) + infinite`, where on the side "upper"
    the maximum is at the J with `loss[J-1] < eps <= loss[J]`. From below every J gives a bound, and `blur`
    is the error of `base`.
    """

    side: Side
    loss: FloatArray
    gain: FloatArray
    base: FloatArray
    infinite: float
    blur: FloatArray | float = 0.0

    def delta(self, epsilon: float) -> float:
        """A bound on delta at one eps, on the side of the curve."""
        if self.side == "upper":
            place = int(np.searchsorted(self.loss, epsilon))
            if place == len(self.loss):
                return min(1.0, self.infinite)
            excess = float(self.gain[place] - math.expm1(epsilon - self.loss[place]) * self.base[place])
        else:
            # Every J is a test, and any test bounds from below: the best one counts, after its error.
            x = np.expm1(np.minimum(epsilon - self.loss, 700.0))
            excess = float(np.max(self.gain - x * self.base - np.abs(x) * self.blur))
        return min(1.0, max(0.0, max(excess, 0.0) + self.infinite))

    def epsilon(self, delta: float) -> float:
        """A bound, on the side of the curve, on the smallest eps >= 0 for a delta."""
        remaining = delta - self.infinite
        if remaining <= 0.0:
            return math.inf if self.side == "upper" else 0.0
        if remaining >= 1.0:
            return 0.0
        if self.side == "upper":
            # The gain falls with J: eps lies in the cell below the first J at which it is small enough.
            place = min(
                len(self.gain) - int(np.searchsorted(self.gain[::-1], remaining, side="right")), len(self.gain) - 1
            )
            # A smaller step and a larger value below, because a division and a logarithm are rounded.
            step = max(0.0, (remaining - float(self.gain[place])) / float(self.base[place]) - 8.0 * UNIT)
            value = float(self.loss[place]) + math.log1p(-step) if step < 1.0 else -math.inf
            if place:
                # The gain of the cell before was too large, so eps is above its loss.
                value = max(value, float(self.loss[place - 1]))
            return max(0.0, value + 4.0 * UNIT * abs(value)) if value > 0.0 else 0.0
        excess = self.gain - remaining
        # More base mass makes eps smaller where it is above the loss of the test, less where it is below.
        base = self.base + self.blur * np.sign(excess)
        with np.errstate(over="ignore"):
            x = np.divide(excess, base, out=np.full_like(excess, -1.0), where=base > 0.0)
        x = np.minimum(x, 1e300)  # overflow counts as less: a smaller eps is a lower bound, too
        x -= 8.0 * UNIT * (1.0 + np.abs(x))
        is_sound = x > -1.0
        if not np.any(is_sound):
            return 0.0
        value = float(np.max(self.loss[is_sound] + np.log1p(x[is_sound])))
        return max(0.0, value - 4.0 * UNIT * abs(value))

    def slope(self, epsilon: float, delta: float) -> float:
        """`-d log(delta) / d eps`: the base mass above eps, times e^eps, divided by delta.

        Args:
            epsilon: where on the curve.
            delta: its value there.

        Returns:
            The slope, at least 0.
        """
        place = min(int(np.searchsorted(self.loss, epsilon)), len(self.loss) - 1)
        return float(self.base[place]) * math.exp(min(epsilon - float(self.loss[place]), 0.0)) / delta

    def points(self) -> tuple[FloatArray, FloatArray]:
        """The points eps >= 0 of the curve, and delta at each, from above."""
        chosen = self.loss >= 0.0
        return self.loss[chosen], np.clip(self.gain[chosen] + self.infinite, 0.0, 1.0)

    def masses(self) -> tuple[FloatArray, FloatArray]:
        """Base masses (too large) and top masses (too small) of the tests "loss >= L_J", from below."""
        base = np.exp(np.minimum(-self.loss, 700.0)) * (self.base + self.blur)
        return base, self.gain + self.base - self.blur + self.infinite


def _suffix_sums(values: FloatArray) -> FloatArray:
    """`sum_{j >= J} values_j`."""
    return np.cumsum(values[::-1])[::-1]


def _discounted_sums(loss: FloatArray, values: FloatArray) -> FloatArray:
    """`sum_{j >= J} values_j e^(L_J - L_j)` for rising losses, block by block so that no power overflows."""
    discounted = np.empty_like(values)
    stop, carry = len(loss), 0.0
    while stop:
        start = int(np.searchsorted(loss[:stop], loss[stop - 1] - _EFOLDS_PER_BLOCK))
        discount = np.exp(loss[start] - loss[start:stop])
        sums = _suffix_sums(values[start:stop] * discount)
        if stop < len(loss):
            sums += carry * math.exp(loss[start] - loss[stop])
        discounted[start:stop] = sums / discount
        stop, carry = start, float(discounted[start])
    return discounted


def _gains_of(loss: FloatArray, base: FloatArray) -> FloatArray:
    """The gains G_J, from B_J."""
    rises = -np.expm1(-np.diff(loss)) * base[1:]
    return np.append(_suffix_sums(rises), 0.0)


def _summation_error(size: int) -> float:
    """The relative error of suffix sums of this many masses."""
    return (4.0 * size + 64.0) * UNIT


def _single_round_curve(pair: Pair) -> Curve:
    """The curve of a single round, from its atoms."""
    base = _discounted_sums(pair.loss, pair.top)
    error = _summation_error(len(base))
    gain = _gains_of(pair.loss, base)
    if pair.side == "upper":
        gain, base, error = gain * (1.0 + error), base * (1.0 + error), 0.0
    return Curve(
        side=pair.side, loss=pair.loss, gain=gain * (1.0 - error), base=base, infinite=pair.infinite, blur=error * base
    )


def _curves_of(rounds: _Losses) -> dict[Side, Curve]:
    """Both curves of a composition."""
    cells, y = in_order(rounds.rows[:, 0]), in_order(rounds.points())
    occupied = cells[0] > 0.0
    mass, loss = cells[0, occupied], rounds.centre + y[occupied]
    # error 4: losses are raised by it from above and lowered from below.
    slip = rounds.slip + 4.0 * UNIT * float(np.abs(loss).max())
    # error 2: the errors of the parts add up in the exponent, (1 + e)^T.
    error = math.expm1(min(rounds.relative * (1.0 + 1e-6), 600.0)) + _summation_error(len(loss))
    base = _discounted_sums(loss, mass)
    gain = _gains_of(loss, base)
    upper = Curve(
        side="upper", loss=loss + slip, gain=gain * (1.0 + error), base=base * (1.0 + error), infinite=rounds.infinite
    )
    if rounds.is_upper_only:
        return {"upper": upper}
    offset = cells[1, occupied]
    loss = loss - slip - rounds.drift
    reverse = rounds.rule.direction == "reverse"
    # From below `error` (2) and `jitter` (3) lower the gain, and are the blur where base mass counts.
    if rounds.rule.lower_masses:
        top, base = (_suffix_sums(mass), _discounted_sums(loss, offset)) if reverse else (_suffix_sums(offset), base)
        gain, blur = top - base - error * (top + base), error * base
    elif reverse:
        base_offset, blur = (
            _discounted_sums(loss, offset),
            rounds.jitter * base + error * _discounted_sums(loss, np.abs(offset)),
        )
        gain, base, blur = (1.0 - error) * gain - base_offset - blur, base + base_offset, blur + error * base
    else:
        offset_error = rounds.jitter * _suffix_sums(mass) + error * _suffix_sums(np.abs(offset))
        gain, blur = (1.0 - error) * gain + _suffix_sums(offset) - offset_error, error * base
    lower = Curve(side="lower", loss=loss, gain=gain, base=base, infinite=-rounds.lost, blur=blur)
    return {"upper": upper, "lower": lower}


# Questions about a composition


@dataclass(frozen=True, kw_only=True)
class Composition:
    """Rounds run together, at one resolution of their laws.

    `half` is the number of cells on each side of a level, `budget` about the mass that may be cut off a round.
    """

    parts: Parts
    half: int
    budget: float

    @property
    def is_single(self) -> bool:
        """Whether there is one round only, which needs no composition."""
        return len(self.parts) == 1 and self.parts[0][1] == 1

    def total_variation(self) -> float:
        """A simple upper bound on delta at eps = 0, from sums of distances and of divergences.

        Pinsker's inequality, `TV <= sqrt(KL / 2)`, with a margin of 1e-9 for masses that do not add up to
        1 exactly.
        """
        distance = divergence = infinite = 0.0
        for round_, rounds in self.parts:
            pair = _round_pair(round_, self.half, self.budget, "upper", "forward")
            infinite += rounds * pair.infinite
            distance += rounds * _single_round_curve(pair).delta(0.0)
            divergence += rounds * (float(pair.top @ pair.loss) + 1e-9)
        return min(distance, infinite + math.sqrt(max(divergence, 0.0) / 2.0))

    def simple_epsilon(self, direction: Direction, delta: float) -> float:
        """A simple upper bound on eps, without composing anything (Chernoff).

        `delta(eps) <= infinite + P(loss > eps) <= infinite + E[e^(l loss)] e^(-l eps)` for l > 0, all under top,
        where expectations of rounds multiply. The best of `_CHERNOFF_POWERS` counts.

        Args:
            direction: D(P||Q) or D(Q||P).
            delta: the delta at which eps is bounded.

        Returns:
            The bound; infinity if the laws cut more mass than delta.
        """
        remaining, logs = delta, np.zeros_like(_CHERNOFF_POWERS)
        for round_, rounds in self.parts:
            infinite, log_moments = _chernoff_moments(round_, self.half, self.budget, direction)
            remaining -= rounds * infinite
            logs = logs + rounds * log_moments
        if remaining <= 0.0:
            return math.inf
        return max(0.0, float(np.min((logs - math.log(remaining)) / _CHERNOFF_POWERS)) * ROUNDED_UP)

    def upper_curve(self, direction: Direction) -> Curve:
        """The upper curve, without the work for the lower one."""
        if self.is_single:
            return _single_round_curve(_round_pair(self.parts[0][0], self.half, self.budget, "upper", direction))
        settings = _GridSettings(
            half=self.half, budget=self.budget, direction=direction, tail_allowance=self.budget, sides="upper"
        )
        return _composed_curves(self.parts, settings)["upper"]

    def near_delta(self, direction: Direction, delta: float) -> dict[Side, Curve]:
        """Curves of both sides that are accurate where delta(eps) is at least a given delta.

        Args:
            direction: D(P||Q) or D(Q||P).
            delta: the smallest delta of interest.

        Returns:
            The curves by side.
        """
        # The rounds together may cut a millionth of delta; in coarse steps, so that questions share a composition.
        tail_allowance = 10.0 ** (
            6.0 * math.floor((math.log10(delta / sum(rounds for _, rounds in self.parts)) - 7.0) / 6.0)
        )
        return self._curves(direction, max(self.budget, tail_allowance))

    def curves(self, direction: Direction) -> dict[Side, Curve]:
        """Curves of both sides that are accurate at every eps."""
        return self._curves(direction, self.budget)

    def test_error(self) -> tuple[float, float]:
        """The relative and the absolute error of the base mass of a test from below.

        Masses from below are made small, which is safe for delta, but the false positive rate of a test
        must not be too small.
        """
        factor = extra = 0.0
        for round_, rounds in self.parts:
            error, cut = round_.test_error(self.half, self.budget)
            # They were lowered by 1 - e and must be raised by 1 + e: the two differ by less than e^(2.1 e).
            factor += 2.1 * rounds * error
            extra += rounds * cut
        return math.exp(factor), extra

    def _curves(self, direction: Direction, tail_allowance: float) -> dict[Side, Curve]:
        if self.is_single:
            round_ = self.parts[0][0]
            return {
                side: _single_round_curve(_round_pair(round_, self.half, self.budget, side, direction))
                for side in SIDES
            }
        settings = _GridSettings(
            half=self.half, budget=self.budget, direction=direction, tail_allowance=tail_allowance, sides="both"
        )
        if all(round_.is_joint for round_, _ in self.parts):
            return _composed_curves(self.parts, settings)
        # Sides from different laws share nothing: each is composed separately.
        return {side: _composed_curves(self.parts, replace(settings, sides=side))[side] for side in SIDES}


@functools.lru_cache(maxsize=64)
def _round_pair(round_: Round, half: int, budget: float, side: Side, direction: Direction) -> Pair:
    return round_.pair(half, budget, side, direction)


@functools.lru_cache(maxsize=64)
def _chernoff_moments(round_: Round, half: int, budget: float, direction: Direction) -> tuple[float, FloatArray]:
    """The mass at infinity of one round, and `log E[e^(l loss)]` of the rest for Chernoff's powers, both from above."""
    pair = _round_pair(round_, half, budget, "upper", direction)
    # An atom without mass counts as 1e-300, which is too large, by next to nothing.
    log_top = np.log(np.maximum(pair.top, 1e-300))
    logs = np.array([special.logsumexp(log_top + power * pair.loss) for power in _CHERNOFF_POWERS])
    return pair.infinite, logs + 1e-9 * np.abs(logs) + 1e-12


def upper_lattice(round_: Round, half: int, direction: Direction, step: float) -> tuple[int, FloatArray, float]:
    """One round from above, on a lattice of losses.

    Args:
        round_: the round.
        half: the number of cells on each side of a level of its law.
        direction: D(P||Q) or D(Q||P).
        step: the distance of the lattice points.

    Returns:
        The index of the first loss, the top masses of the losses, and the mass at infinity.

    Raises:
        ValueError: if the lattice would have too many points.
    """
    pair = _round_pair(round_, half, _LATTICE_CUT, "upper", direction)
    low, high = float(pair.loss[0]), float(pair.loss[-1])
    if high - low > _LATTICE_POINTS_MAX * step:
        step_min = 1.06 * (high - low) / _LATTICE_POINTS_MAX  # also after rounding to two digits
        raise InvalidInput(f"step must be at least {step_min:.1e} for losses from {low:.3g} to {high:.3g}, got {step}")
    # Shared so that top and base mass stay: from above, like cells of the grid.
    left_point = np.floor(pair.loss / step)
    left_share, right_share = _LossRule(direction=direction).shares(
        np.clip(pair.loss - left_point * step, 0.0, step), step
    )
    index = (left_point - left_point[0]).astype(np.int64)
    length = int(index[-1]) + 2
    masses = np.zeros(length)
    for where, share in ((index, left_share), (index + 1, right_share)):
        masses += np.bincount(where, share.mass * pair.top, length)
    return int(left_point[0]), masses, pair.infinite

"""Composition of rounds: delta as a function of eps, for many rounds, from above and from below.

A round is a pair of measures (base, top) on common atoms with losses `log(top / base)`. Independent
rounds multiply ratios, so their losses add up: the same sums on the same grid as in `mean_law`, of
losses in the place of ratios.

*Cells.* What is carried is the mass u of top at a lattice point L, and an offset w. From above the
pair of the cell is `(base, top) = (u e^-L, u)`: sharing an atom by two lattice points so that both
of its masses stay is a mean-preserving spread of the ratio. From below the cell is what was merged
into it, which is post-processing. The law of one round has one Q-mass for both sides, so

- *forward* (Q is the base): `(base, top) = (u e^-L, u + w)`, and what goes to one side of an atom
  is the part f of its base: top `f (u + w)`;
- *reverse* (Q is the top): `(base, top) = (e^-L (u + w), u)`, and what goes is the part a of its top.

With `a = (1 - e^-o) / (1 - e^-d)` and `f = a e^(o - d)` for an atom o above the lower and d - o below
the upper of two points, both keep base and top mass together. Where cells get wider than some e-folds
(very many rounds with very large losses) `u + w` itself is carried, as a sum of positive products.

Because top masses are carried, and nothing cancels, one composition answers every eps >= 0 and
every delta to the same relative accuracy, at delta = 1e-12 as well as at 0.1.

*Reading.* For the cells from J on, with `U_J = sum u_j`, `B_J = sum u_j e^(L_J - L_j)` and
`G_J = sum u_j (1 - e^(L_J - L_j))` (made of positive terms, `G_J = G_J+1 + (1 - e^(L_J - L_J+1)) B_J+1`)

    delta(eps) = max_J (G_J - (e^(eps - L_J) - 1) B_J),

(Neyman and Pearson) from above; from below w is added to (forward), or taken from (reverse), G_J.

*Errors*, all put on the safe side; u = 2^-53:

1. Cells cut at the ends hold less top mass than allowed. It is charged to delta from above
   (`infinite`); from below they are left out of the test, which needs no charge. What the law of a
   round cut is charged on both sides, once for each round.
2. Masses are within a factor `1 +- relative` of exact ones: the longest sum of products, and some
   units for sharing, once for each convolution; those of a and b add up.
3. Offsets are within `jitter` times u: products of the parts' errors with `1 + |w / u|`, and
   what rounding of masses and of sums does to products that hold an offset.
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

from shoal.bounds.grid import Cells, Share, base_for, convolved, deposit, in_order, rebased
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import ROUNDED_UP, SIDES, UNIT, Direction, FloatArray, Side
from shoal.bounds.round import Round, SideChoice
from shoal.errors import InvalidInput

Parts = tuple[tuple[Round, int], ...]
"""Different rounds and how often each is run."""

_LARGE = 8.0
"""Where the grid reaches to such losses no eps of interest is so small that offsets are needed to see it."""

_ZERO_LOSS_PART = 1e-4
"""Losses below this part of a typical one count as 0 where a grid is chosen."""

_CLEAR, _MOST = 2.0, 0.9
"""A grid has a centre of its own where losses lie this many of their spreads off 0, and hardly any are 0."""

_POWERS: FloatArray = 2.0 ** np.arange(-8.0, 17.0)
"""The l of Chernoff's bound."""

_LATTICE_MAX = 10**7
"""The most points of a lattice of losses with equal steps."""

_SMALL = 1e-250
"""More than all masses lost by underflow (error 5)."""

_EFOLDS = 100.0
"""Sums are discounted over so many e-folds of losses at a time: e^100 times any mass is far from the largest double."""

_LATTICE_BUDGET = 1e-24
"""What a lattice may lack of a round's mass: less than any delta that such lattices are composed for."""


# One composition: losses on the grid


@dataclass(frozen=True, kw_only=True)
class _LossRule:
    """How cells of losses are shared: with which offsets, and whether `u + w` is carried for w.

    `bare`: with none, for what is bounded from above only.
    """

    direction: Direction
    whole: bool = False
    bare: bool = False

    def shares(self, offset: FloatArray | float, width: FloatArray | float) -> tuple[Share, Share]:
        rest = width - offset
        # Everything by expm1: shares of narrow cells would cancel otherwise.
        both = np.expm1(-width)
        right = np.expm1(-offset) / both
        left = np.exp(-offset) * np.expm1(-rest) / both
        if self.bare:
            return Share(left, 0.0, 0.0), Share(right, 0.0, 0.0)
        if self.direction == "forward":
            # f = right e^-rest of the base, so that right - f = -right expm1(-rest) of u changes sides
            up, down = right * np.exp(-rest), np.expm1(-rest) / both
            swap = -right * np.expm1(-rest)
            lower, upper = swap, -swap
        else:
            up, down = right * np.exp(rest), left * np.exp(-offset)
            lower, upper = left * np.expm1(-offset), right * np.expm1(rest)
        if self.whole:
            # u + w is shared by itself: nothing of u changes sides.
            lower, upper = 0.0 * lower, 0.0 * upper
        return Share(left, down, lower), Share(right, up, upper)

    def moment_of_sum(self, a: FloatArray, a_moment: FloatArray, b: FloatArray, b_moment: FloatArray) -> FloatArray:
        if self.bare:
            return np.zeros(len(a) + len(b) - 1)
        if self.whole:
            every: FloatArray = np.convolve(a_moment, b_moment)
            return every
        # (u_1 + w_1)(u_2 + w_2) - u_1 u_2, without the difference.
        both: FloatArray = np.convolve(a, b_moment) + np.convolve(a_moment, b + b_moment)
        return both


@dataclass(frozen=True, kw_only=True)
class _Losses(Cells):
    """Rounds run together: masses u of top at the losses `centre + y`, with the offsets w as moments.

    `infinite` and `lost` are what is charged from above and from below; `drift` is by how much the
    losses from below lie under the lattice points.
    """

    rule: _LossRule
    centre: float
    infinite: float
    lost: float
    relative: float
    jitter: float
    slip: float
    drift: float = 0.0

    @property
    def offset(self) -> float:
        """The largest |w / u|, also of what is shared once more on the coarsest level."""
        return self.largest_offset(in_spacings=False) + 2.0 * math.ldexp(1.0, self.base + len(self.mass))


def _scale(mass: FloatArray, distance: FloatArray) -> float:
    """1.2 times the median distance of the mass: about the mean one of a normal law, whatever is rare and far."""
    order = np.argsort(distance)
    total = np.cumsum(mass[order])
    return 1.2 * float(distance[order][int(np.searchsorted(total, 0.5 * total[-1]))])


def _middle(loss: FloatArray, mass: FloatArray) -> tuple[float, float]:
    """A good centre for the grid of these losses, and the scale of the distances from it.

    0 stays the centre while many rounds have loss 0 (nobody took part) or the losses surround it.
    Losses of 0, up to rounding, need no resolution.
    """
    size = np.abs(loss)
    if not np.any(size):
        return 0.0, 1.0
    away = size > _ZERO_LOSS_PART * float(mass @ size**2) / float(mass @ size)
    moved, some = loss[away], mass[away]
    mean = float(some @ moved) / float(some.sum())
    near, far = _scale(some, np.abs(moved - mean)), _scale(some, np.abs(moved))
    if abs(mean) > _CLEAR * near and float(some.sum()) > _MOST * float(mass.sum()):
        return mean, near
    return 0.0, far


@functools.lru_cache(maxsize=64)
def _round(mean: Round, half: int, budget: float, direction: Direction, source: SideChoice) -> _Losses:
    """One round on the grid."""
    found = mean.atoms(half, budget, direction, source)
    loss, u, w = found.loss, found.top, found.offset
    centre, scale = _middle(loss, u)
    rule, base = _LossRule(direction=direction, bare=source == "upper"), base_for(scale, half)
    masses, moments = deposit(rule, loss - centre, u, w, half, base)
    # Errors 1 and 5 (what the law cut, and underflow), 2 and 4 for putting atoms on the grid; 3 below.
    cells = _Losses(
        base=base, mass=masses, moment=moments, rule=rule, centre=centre,
        infinite=found.infinite + _SMALL, lost=found.lost + _SMALL, relative=found.relative + 64.0 * UNIT, jitter=0.0,
        slip=4.0 * UNIT * (float(np.abs(loss).max()) + abs(centre)),
    )  # fmt: skip
    return replace(cells, jitter=64.0 * UNIT * cells.offset)


def _clipped(a: _Losses, allowance: float) -> _Losses:
    """Without the ends that hold less top mass than the allowance."""
    mass, points = in_order(a.mass), in_order(a.points())
    # At least one cell is left, however large the allowance.
    low = min(int(np.searchsorted(np.cumsum(mass), allowance)), len(mass) - 1)
    high = max(len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), allowance)), low + 1)
    gone = float(mass[:low].sum() + mass[high:].sum()) * ROUNDED_UP
    every = a.points()
    out = (every < points[low]) | (every > points[high - 1])
    kept, moment = np.where(out, 0.0, a.mass), np.where(out, 0.0, a.moment)
    levels = int(np.flatnonzero(kept.any(axis=1))[-1]) + 1
    # Errors 1 and 5. From below the cells are left out of every test: nothing is charged.
    return replace(a, mass=kept[:levels], moment=moment[:levels], infinite=a.infinite + gone + _SMALL)


def _rebase(a: _Losses, base: int) -> _Losses:
    """The same rounds with a coarser level 0."""
    if base <= a.base:
        return a
    mass, moment = rebased(a.rule, a, base)
    # Errors 2 and 3: some operations on each mass and offset for each level that goes.
    steps = 16.0 * (base - a.base) * UNIT
    moved = replace(a, base=base, mass=mass, moment=moment, relative=a.relative + steps)
    return replace(moved, jitter=a.jitter + steps * moved.offset)


def _fit(a: _Losses) -> _Losses:
    """Choose centre and level 0 for what the rounds look like now."""
    occupied = a.mass > 0.0
    y, mass = a.points()[occupied], a.mass[occupied]
    centre, scale = _middle(y, mass)
    if centre:
        base = base_for(scale, a.half)
        mass, moment = deposit(a.rule, y - centre, mass, a.moment[occupied], a.half, base)
        # error 4
        slip = a.slip + 4.0 * UNIT * (float(np.abs(y).max()) + abs(centre))
        a = replace(
            a, base=base, mass=mass, moment=moment, centre=a.centre + centre, slip=slip,
            relative=a.relative + 64.0 * UNIT,
        )  # fmt: skip
        return replace(a, jitter=a.jitter + 64.0 * UNIT * a.offset)
    return _rebase(a, base_for(scale, a.half))


def _whole(a: _Losses) -> _Losses:
    """`u + w` in the place of w, on the safe side of its error."""
    if a.rule.whole or a.rule.bare:
        return a
    # error 3 is settled here: from below more base mass, or less top mass, is less of a difference.
    error = a.jitter * a.mass + a.relative * np.abs(a.moment)
    moment = a.mass + a.moment + (error if a.rule.direction == "reverse" else -error)
    return replace(a, rule=replace(a.rule, whole=True), moment=np.maximum(moment, 0.0), jitter=0.0)


def _drifted(a: _Losses) -> _Losses:
    """In reverse, base masses from below measured by what they are, not by the lattice points far above."""
    if not a.rule.whole or a.rule.direction == "forward":
        return a
    # Without this offsets of many rounds would run away from 1 and overflow.
    factor = float(a.moment.sum()) / float(a.mass.sum())
    return replace(a, moment=a.moment / factor, drift=a.drift + math.log(factor), relative=a.relative + 8.0 * UNIT)


def _suited(a: _Losses) -> _Losses:
    """With `u + w` where losses are large: exact enough there, cheaper, and offsets could overflow."""
    if math.ldexp(1.0, a.base + len(a.mass)) * a.half > _LARGE:
        return _drifted(_whole(a))
    return a


def _together(a: _Losses, b: _Losses, allowance: float) -> _Losses:
    """The rounds of a and of b (b may be a: as many again)."""
    if a is not b:
        if max(a.base, b.base) > min(a.base, b.base):
            a, b = _rebase(a, b.base), _rebase(b, a.base)
        if a.rule.whole or b.rule.whole:
            a, b = _whole(a), _whole(b)
    mass, moment = convolved(a.rule, a, b)
    # error 2: of both parts, and of one more convolution
    step = (max(a.longest, b.longest) + 64.0) * UNIT
    relative, jitter = a.relative + b.relative + step, 0.0
    if not a.rule.whole:
        # error 3: w_1 u_2 + u_1 w_2 + w_1 w_2, each factor off by its own; 1.01 is for products of errors.
        one, other = a.offset, b.offset
        jitter = a.jitter * (1.0 + other) + b.jitter * (1.0 + one) + a.jitter * b.jitter
        jitter += 1.01 * relative * (one + other + one * other)
    both = _Losses(
        base=a.base, mass=mass, moment=moment, rule=a.rule, centre=a.centre + b.centre,
        infinite=a.infinite + b.infinite, lost=a.lost + b.lost, relative=relative, jitter=jitter,
        slip=a.slip + b.slip + 2.0 * UNIT * abs(a.centre + b.centre), drift=a.drift + b.drift,
    )  # fmt: skip
    return _suited(_fit(_clipped(both, allowance)))


@dataclass(frozen=True, kw_only=True)
class _Look:
    """How rounds are looked at; each loses up to `spare` of its top mass each time rounds are put together."""

    half: int
    budget: float
    direction: Direction
    spare: float
    source: SideChoice


@functools.lru_cache(maxsize=128)
def _ladder(mean: Round, look: _Look, rung: int) -> _Losses:
    """2^rung rounds."""
    # Kept: questions about other numbers of rounds climb the same ladder. Each rung may cut twice as much (error 1).
    if rung == 0:
        return _suited(_clipped(_round(mean, look.half, look.budget, look.direction, look.source), look.spare))
    below = _ladder(mean, look, rung - 1)
    return _together(below, below, math.ldexp(look.spare, rung))


@functools.lru_cache(maxsize=64)
def _read(parts: Parts, look: _Look) -> dict[Side, Curve]:
    """All rounds: the ladders' rungs, from those that spread least."""
    bits = [(mean, rung) for mean, rounds in parts for rung in range(rounds.bit_length()) if rounds >> rung & 1]
    # A piece that spreads far makes the grid coarse for all that come after it.
    pieces = sorted((_ladder(mean, look, rung) for mean, rung in bits), key=lambda piece: piece.base)
    allowance = look.spare * max(rounds for _, rounds in parts)
    return _curves(functools.reduce(lambda a, b: _together(a, b, allowance), pieces))


# Suffix sums, whose largest excess is delta


@dataclass(frozen=True, kw_only=True)
class Curve:
    """delta as a function of eps on one side and in one direction.

    `delta(eps) = max_J (gain_J - (e^(eps - loss_J) - 1) base_J) + infinite`, where on the side "upper"
    `loss[J-1] < eps <= loss[J]` names the J of the maximum. From below any J gives a bound, and `blur` is
    how far `base` may be off.
    """

    side: Side
    loss: FloatArray
    gain: FloatArray
    base: FloatArray
    infinite: float
    blur: FloatArray | float = 0.0

    def delta(self, epsilon: float) -> float:
        if self.side == "upper":
            place = int(np.searchsorted(self.loss, epsilon))
            if place == len(self.loss):
                return min(1.0, self.infinite)
            excess = float(self.gain[place] - math.expm1(epsilon - self.loss[place]) * self.base[place])
        else:
            # Every J is a test, and any test bounds from below: the best one counts, after its own error.
            x = np.expm1(np.minimum(epsilon - self.loss, 700.0))
            excess = float(np.max(self.gain - x * self.base - np.abs(x) * self.blur))
        return min(1.0, max(0.0, max(excess, 0.0) + self.infinite))

    def epsilon(self, delta: float) -> float:
        """The smallest eps >= 0 whose delta is at most that given (an upper or lower bound on it)."""
        left = delta - self.infinite
        if left <= 0.0:
            return math.inf if self.side == "upper" else 0.0
        if left >= 1.0:
            return 0.0
        if self.side == "upper":
            # gain falls with J: eps lies in the cell below the first J at which it is small enough
            place = min(len(self.gain) - int(np.searchsorted(self.gain[::-1], left, side="right")), len(self.gain) - 1)
            # Less of it, and more of the value below: a division and a logarithm are rounded.
            part = max(0.0, (left - float(self.gain[place])) / float(self.base[place]) - 8.0 * UNIT)
            value = float(self.loss[place]) + math.log1p(-part) if part < 1.0 else -math.inf
            if place:
                # The next cell's gain was too large: eps is above its loss.
                value = max(value, float(self.loss[place - 1]))
            return max(0.0, value + 4.0 * UNIT * abs(value)) if value > 0.0 else 0.0
        excess = self.gain - left
        # eps is smaller for more base mass where it is above the loss of the test, and for less where it is below.
        base = self.base + self.blur * np.sign(excess)
        with np.errstate(over="ignore"):
            x = np.divide(excess, base, out=np.full_like(excess, -1.0), where=base > 0.0)
        x = np.minimum(x, 1e300)  # what overflows counts as less: a smaller eps is a lower bound, too
        x -= 8.0 * UNIT * (1.0 + np.abs(x))
        sound = x > -1.0
        if not np.any(sound):
            return 0.0
        value = float(np.max(self.loss[sound] + np.log1p(x[sound])))
        return max(0.0, value - 4.0 * UNIT * abs(value))

    def slope(self, epsilon: float, delta: float) -> float:
        """`-d log(delta) / d eps`: the base mass above eps, times e^eps, over delta."""
        place = min(int(np.searchsorted(self.loss, epsilon)), len(self.loss) - 1)
        return float(self.base[place]) * math.exp(min(epsilon - float(self.loss[place]), 0.0)) / delta

    def points(self) -> tuple[FloatArray, FloatArray]:
        """Some eps >= 0 and the delta of each, from above."""
        chosen = self.loss >= 0.0
        return self.loss[chosen], np.clip(self.gain[chosen] + self.infinite, 0.0, 1.0)

    def masses(self) -> tuple[FloatArray, FloatArray]:
        """Base (too large) and top mass (too small) of the tests "loss >= L_J", from below."""
        base = np.exp(np.minimum(-self.loss, 700.0)) * (self.base + self.blur)
        return base, self.gain + self.base - self.blur + self.infinite


def _suffix(values: FloatArray) -> FloatArray:
    sums: FloatArray = np.cumsum(values[::-1])[::-1]
    return sums


def _discounted(loss: FloatArray, values: FloatArray) -> FloatArray:
    """`sum_{j >= J} values_j e^(L_J - L_j)` for rising losses, block by block so that no power overflows."""
    found = np.empty_like(values)
    stop, carry = len(loss), 0.0
    while stop:
        start = int(np.searchsorted(loss[:stop], loss[stop - 1] - _EFOLDS))
        discount = np.exp(loss[start] - loss[start:stop])
        sums = _suffix(values[start:stop] * discount)
        if stop < len(loss):
            sums += carry * math.exp(loss[start] - loss[stop])
        found[start:stop] = sums / discount
        stop, carry = start, float(found[start])
    return found


def _gains(loss: FloatArray, base: FloatArray) -> FloatArray:
    """G_J from B_J."""
    rises = -np.expm1(-np.diff(loss)) * base[1:]
    return np.append(_suffix(rises), 0.0)


def _reading(size: int) -> float:
    """The relative error of the sums made of this many masses."""
    return (4.0 * size + 64.0) * UNIT


def _one_round(pair: Pair) -> Curve:
    """The curve of a single round, from its atoms."""
    base = _discounted(pair.loss, pair.top)
    error = _reading(len(base))
    gain = _gains(pair.loss, base)
    if pair.side == "upper":
        gain, base, error = gain * (1.0 + error), base * (1.0 + error), 0.0
    return Curve(
        side=pair.side, loss=pair.loss, gain=gain * (1.0 - error), base=base, infinite=pair.infinite, blur=error * base
    )


def _curves(rounds: _Losses) -> dict[Side, Curve]:
    """Both curves of a composition."""
    mass, offset, y = (in_order(values) for values in (rounds.mass, rounds.moment, rounds.points()))
    there = mass > 0.0
    mass, offset, loss = mass[there], offset[there], rounds.centre + y[there]
    # error 4: losses are larger by it from above, smaller from below.
    slip = rounds.slip + 4.0 * UNIT * float(np.abs(loss).max())
    # error 2: the parts' errors add up in the exponent, (1 + e)^T.
    error = math.expm1(min(rounds.relative * (1.0 + 1e-6), 600.0)) + _reading(len(loss))
    base = _discounted(loss, mass)
    gain = _gains(loss, base)
    upper = Curve(
        side="upper", loss=loss + slip, gain=gain * (1.0 + error), base=base * (1.0 + error), infinite=rounds.infinite
    )
    loss = loss - slip - rounds.drift
    reverse = rounds.rule.direction == "reverse"
    # From below `error` (2) and `jitter` (3) are taken off the gain, and told as blur where base mass counts.
    if rounds.rule.whole:
        top, base = (_suffix(mass), _discounted(loss, offset)) if reverse else (_suffix(offset), base)
        gain, blur = top - base - error * (top + base), error * base
    elif reverse:
        extra, blur = _discounted(loss, offset), rounds.jitter * base + error * _discounted(loss, np.abs(offset))
        gain, base, blur = (1.0 - error) * gain - extra - blur, base + extra, blur + error * base
    else:
        wrong = rounds.jitter * _suffix(mass) + error * _suffix(np.abs(offset))
        gain, blur = (1.0 - error) * gain + _suffix(offset) - wrong, error * base
    lower = Curve(side="lower", loss=loss, gain=gain, base=base, infinite=-rounds.lost, blur=blur)
    return {"upper": upper, "lower": lower}


# What is asked of a composition


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

    def simple_epsilon(self, direction: Direction, delta: float) -> float:
        """A simple upper bound on eps, without composing anything (Chernoff).

        `delta(eps) <= infinite + P(loss > eps) <= infinite + E[e^(l loss)] e^(-l eps)` for l > 0, all under top,
        where expectations of rounds multiply; the best l of some is taken.
        """
        left, logs = delta, np.zeros_like(_POWERS)
        for mean, rounds in self.parts:
            infinite, log_moments = _log_moments(mean, self.half, self.budget, direction)
            left -= rounds * infinite
            logs = logs + rounds * log_moments
        if left <= 0.0:
            return math.inf
        return max(0.0, float(np.min((logs - math.log(left)) / _POWERS)) * ROUNDED_UP)

    def above(self, direction: Direction) -> Curve:
        """The curve of the side "upper" alone."""
        if self.is_one:
            return _one_round(_pair(self.parts[0][0], self.half, self.budget, "upper", direction))
        look = _Look(half=self.half, budget=self.budget, direction=direction, spare=self.budget, source="upper")
        return _read(self.parts, look)["upper"]

    def near_delta(self, direction: Direction, delta: float) -> dict[Side, Curve]:
        """Curves of both sides that are accurate where delta(eps) is the delta given or more."""
        # A millionth of delta, shared by the rounds, may be cut; in few steps, shared by questions.
        spare = 10.0 ** (6.0 * math.floor((math.log10(delta / sum(rounds for _, rounds in self.parts)) - 7.0) / 6.0))
        return self._curves(direction, max(self.budget, spare))

    def curves(self, direction: Direction) -> dict[Side, Curve]:
        """Curves of both sides that are accurate at every eps."""
        return self._curves(direction, self.budget)

    def test_error(self) -> tuple[float, float]:
        """A factor and a sum by which the base mass of a test from below may be too small.

        The masses from below are made too small for delta; the false positive rate of a test must
        not be.
        """
        factor = extra = 0.0
        for mean, rounds in self.parts:
            error, cut = mean.test_error(self.half, self.budget)
            # They were made smaller by 1 - e and must be larger by 1 + e, which is less than e^(2.1 e) apart.
            factor += 2.1 * rounds * error
            extra += rounds * cut
        return math.exp(factor), extra

    def _curves(self, direction: Direction, spare: float) -> dict[Side, Curve]:
        if self.is_one:
            mean = self.parts[0][0]
            return {side: _one_round(_pair(mean, self.half, self.budget, side, direction)) for side in SIDES}
        look = _Look(half=self.half, budget=self.budget, direction=direction, spare=spare, source="both")
        if all(mean.is_joint for mean, _ in self.parts):
            return _read(self.parts, look)
        # Sides that come from different laws share nothing: each is composed on its own.
        return {side: _read(self.parts, replace(look, source=side))[side] for side in SIDES}


@functools.lru_cache(maxsize=64)
def _pair(mean: Round, half: int, budget: float, side: Side, direction: Direction) -> Pair:
    return mean.pair(half, budget, side, direction)


@functools.lru_cache(maxsize=64)
def _log_moments(mean: Round, half: int, budget: float, direction: Direction) -> tuple[float, FloatArray]:
    """Mass at infinity of one round from above, and `log E[e^(l loss)]` of the rest for some l (to 1e-9 up)."""
    pair = _pair(mean, half, budget, "upper", direction)
    # An atom without mass counts with the smallest there is: too large, by nothing.
    log_top = np.log(np.maximum(pair.top, 1e-300))
    logs = np.array([special.logsumexp(log_top + power * pair.loss) for power in _POWERS])
    return pair.infinite, logs + 1e-9 * np.abs(logs) + 1e-12


def upper_lattice(mean: Round, half: int, direction: Direction, step: float) -> tuple[int, FloatArray, float]:
    """One round from above: index of the first loss, top masses of the losses, and mass at infinity."""
    pair = _pair(mean, half, _LATTICE_BUDGET, "upper", direction)
    low, high = float(pair.loss[0]), float(pair.loss[-1])
    if high - low > _LATTICE_MAX * step:
        least = 1.06 * (high - low) / _LATTICE_MAX  # also after rounding to two digits
        raise InvalidInput(f"step must be at least {least:.1e} for losses from {low:.3g} to {high:.3g}, got {step}")
    # Shared so that top and base mass stay: from above, as cells of the grid are.
    left = np.floor(pair.loss / step)
    below, above = _LossRule(direction=direction).shares(np.clip(pair.loss - left * step, 0.0, step), step)
    index = (left - left[0]).astype(np.int64)
    length = int(index[-1]) + 2
    masses = np.zeros(length)
    for where, share in ((index, below), (index + 1, above)):
        masses += np.bincount(where, share.mass * pair.top, length)
    return int(left[0]), masses, pair.infinite

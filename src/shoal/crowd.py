"""From any crowd to the identical one: a guarantee that does not depend on what the others hold.

Everybody's vector has norm at most R = 1 (in units of the clipping norm); user 1 holds 0 in D and
x', |x'| <= 1, in D'. Let p be the density of a report from the zero vector, r = 1 / sigma, and

    dG(eps; r) = Phi(r/2 - eps/r) - e^eps Phi(-r/2 - eps/r)

the delta of one report (Balle and Wang 2018).

**Theorem (Gaussian clones).** Take any e0 > 0, c = e^-e0, and `tau = dG(e0; r) + dG(e0 - r^2; r)`.
Let K ~ Bin(n-1, c) and `t = tau (n-1)c / (1 + (n-1)c)`. Whatever the other n-1 users hold, in any
dimension, for every eps

    delta(D' || D) <= E_K[delta of P || Q with K+1 users] + t,
    delta(D || D') <= E_K[delta of Q || P with K+1 users] + e^eps t,

where the right-hand sides are those of the identical crowd.

*Proof.* User j >= 2, density p_j: with probability c ("a clone") draw y ~ p and keep it with
probability `1 - rho_j(y)`, `rho_j = (1 - p_j / (c p))+`; in every other case report a fresh draw
from `r_j ~ p_j - min(p_j, c p)`. That is exactly p_j. Let F get the set J of clones and the
unlabelled points {z_1} and {y_j : j in J}, hand out the labels J and 1 by a uniform bijection, run
the keep-or-replace step of user j on the point labelled j, add draws from r_j for j not in J, and
shuffle. Under D all K+1 points are i.i.d. p and F's output is the mechanism's. Under D' it is so
if z_1 ~ p_x' gets label 1; if it gets label j, couple it with the run in which z_1 and y_j keep
their own labels: the multisets agree unless rho_j fires on z_1 or on y_j, which has probability
`E_x'[rho_j] + E_0[rho_j] <= tau` (log(p_j / p) is normal; both terms grow with |x_j| and are largest
when x_j is antipodal to x'). z_1 gets label 1 with probability `E[1 / (K+1)] >= 1 / (1 + (n-1)c)`
(Jensen). So only D' is moved, by t in total variation, and F is post-processing of the identical
crowd of K+1 users. []

*Check-in at rate g* is the theorem with one more letter, "not sent": p becomes (1 - g, g p), and so do
p_j and p_x'. On that letter rho_j is 0, so that tau becomes g tau. N ~ Bin(n-1, c), the number of
clones taking part or not, is all that is revealed, and the pair is the identical crowd's check-in
with N+1 users. (The number of clones that took part would leak user 1's coin.)

*Fixed size, m of n.* Call user 1 and the clones special; g of the m sampled are special, and g is
all that is revealed. Its law is `P(g) = b(g; m, c) (g + c (n - m)) / (n c)`, b binomial, and user 1 is
among them with probability `w = g / (g + c (n - m))` (Bayes' rule). Given g, F draws which special users
and which others were sampled, without knowing whether z_1 is there, and labels the g points. If it is
there and label 1 was handed out (w^2), z_1 gets it with probability 1 / g, and is swapped with j as
before otherwise: tau (g - 1) / g. If z_1 is there and label 1 is not (w (1 - w)), let user 1 take the
place of the j that z_1 got: all sets of given sizes are equally likely, so the sampled users have
the right law, and the reports agree unless rho_j fires on z_1. If z_1 is not there but label 1 is
((1 - w) w), let a clone j take the place of user 1, which errs if rho_j fires on y_j. These two
together cost at most w (1 - w) tau, all four `w (1 - w / g) tau`, on average at most (m / n) t by Jensen.

*Replace.* The theorem centred at user 1's own vector, where all others are within R = 2 and it
moves by 2: sigma is halved. Or group privacy through the zero vector after composition,
`delta_replace(e1 + e2) <= delta(P || Q)(e1) + e^e1 delta(Q || P)(e2)`. The smaller is taken.

*Composition.* A round is the pair that reveals K, with t as mass at infinity (forward). In
reverse, `T - e^eps (B - t)` says that the base mass of every test is smaller by t: the atoms of
highest loss that hold t of base mass lose it, and their top mass is at infinity. Every c gives a
valid bound: it is chosen for the question, rounds and all, and how well affects the tightness only.

*The sum over K* goes over blocks. More users are better (the mean of more is a contraction), so a
block counts as its smallest K. For a fixed size the block g1..g2 counts as g1 points with the
weight of g2, which is above each of them in the convex order: S = 1 - w + w * mean.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from shoal import pld
from shoal._validate import FloatArray
from shoal.compose import Composition, Curve, Parts, Round
from shoal.law import Direction, Pair, Side, mean_laws
from shoal.ratio import MeanRatio, Ratio

_UNIT = 2.0**-53

_GRID = 64.0
"""Clone probabilities are taken from a grid of this many to a standard deviation of log(p_j / p),
so that neighbouring questions share laws."""

_ROUGH = 128
"""Cells of the laws with which the clone probability is chosen."""

_SPARE = 1e-3
"""The part of the mass at infinity that goes to the lower tail of the number of clones."""


@dataclass(frozen=True, kw_only=True)
class AnyCrowd:
    """A round of `users` of which nothing is known; `sample` of them report (all, if None).

    `ratio` is that of one report, its scale for how far user 1 moves. `by_way_of_zero` says that
    it moves between two vectors, each of which is half as far from zero.
    """

    ratio: Ratio
    users: int
    sample: int | None = None
    by_way_of_zero: bool = False

    @property
    def reports(self) -> int:
        return self.users if self.sample is None else self.sample

    @property
    def weight(self) -> float:
        """The probability that user 1 is sampled."""
        return self.reports / self.users

    def alone(self) -> MeanRatio:
        """User 1's report and coin in the clear: everything else is post-processing of them."""
        return MeanRatio(ratio=replace(self.ratio, rate=self.ratio.rate * self.weight), users=1)

    def halfway(self) -> AnyCrowd:
        return replace(self, ratio=replace(self.ratio, scale=2.0 * self.ratio.scale), by_way_of_zero=False)


def stray(scale: float, exponent: float) -> float:
    """tau of the theorem at c = e^-exponent, from above; needs exponent >= 1 / scale^2."""
    width = 1.0 / scale
    near, far = (pld.gaussian_delta(width, e).upper for e in (exponent - width**2, exponent))
    return (near + far) * (1.0 + 8.0 * _UNIT)


def exponent_for(scale: float, most: float) -> float:
    """The smallest exponent of the grid whose tau is at most that given (1e-300 at least: tau underflows)."""
    lowest = 0.5 / scale  # where exponent = r^2

    def excess(place: float) -> float:
        return math.log(max(stray(scale, 0.5 / scale**2 + place / scale), 1e-300)) - math.log(most)

    high = lowest + 1.0
    while excess(high) > 0.0:
        high += 1.0
    root = lowest if excess(lowest) <= 0.0 else float(optimize.brentq(excess, lowest, high, xtol=1e-6))
    place = math.ceil(root * _GRID) / _GRID
    while excess(place) > 0.0:
        place += 1.0 / _GRID
    return 0.5 / scale**2 + place / scale


@dataclass(frozen=True, kw_only=True)
class Clones:
    """The pair of the theorem for one clone probability: a mixture of identical crowds.

    `spare` is the probability of too few clones that is counted as lost; blocks are `2 / fineness` wide, and
    about fineness / 4 at most. For an estimate that need not be a bound a block counts as its middle.
    """

    crowd: AnyCrowd
    exponent: float
    spare: float
    fineness: int = 512
    is_bound: bool = True

    @property
    def ratio(self) -> Ratio:
        return self.crowd.ratio

    @property
    def users(self) -> int:
        return self.crowd.users

    @property
    def weight(self) -> float:
        return self.crowd.weight

    @property
    def cost(self) -> float:
        """How far D' is moved in total variation."""
        others = (self.users - 1) * math.exp(-self.exponent)
        moved = self.ratio.rate * self.weight * others / (1.0 + others)
        return stray(self.ratio.scale, self.exponent) * moved * (1.0 + 16.0 * _UNIT)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        blocks, still = self.blocks()
        laws = mean_laws(tuple(mean for mean, _ in blocks), half, budget)
        pairs = [law.pair(side, direction) for law in laws]
        weights = [weight for _, weight in blocks]
        if still:
            one = np.ones(1)
            pairs.append(Pair(side=side, loss=0.0 * one, base=one, top=one, infinite=0.0))
            weights.append(still)
        loss = np.concatenate([pair.loss for pair in pairs])
        order = np.argsort(loss)
        base, top = (
            np.concatenate([w * getattr(pair, name) for w, pair in zip(weights, pairs, strict=True)])[order]
            for name in ("base", "top")
        )
        mixed = Pair(
            side=side, loss=loss[order], base=base, top=top,
            infinite=self.spare + sum(w * pair.infinite for w, pair in zip(weights, pairs, strict=True)),
        )  # fmt: skip
        if direction == "forward":
            return replace(mixed, infinite=mixed.infinite + self.cost)
        return _without_base(mixed, self.cost * (1.0 + 1e-9))  # rounding of the sums must not keep any of it

    def blocks(self) -> tuple[tuple[tuple[MeanRatio, float], ...], float]:
        """Identical crowds, of increasing size, with their probabilities; and that of nothing to see."""
        return _blocks(self)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        """A bound from above is no attack: its tests may not exist at all."""
        return 0.0, 1.0


def _without_base(pair: Pair, mass: float) -> Pair:
    """The pair whose tests all have `mass` less of base mass."""
    above = np.cumsum(pair.base[::-1])[::-1]
    last = len(above) - 1 - int(np.searchsorted(above[::-1], mass))
    if last < 0:
        return replace(pair, infinite=1.0)
    beyond = float(above[last + 1]) if last + 1 < len(above) else 0.0
    part = min(1.0, (mass - beyond) / float(pair.base[last])) if pair.base[last] > 0.0 else 1.0
    base, top = pair.base[: last + 1].copy(), pair.top[: last + 1].copy()
    gone = float(pair.top[last + 1 :].sum()) + part * float(top[last])
    base[last] *= 1.0 - part
    top[last] *= 1.0 - part
    return replace(
        pair, loss=pair.loss[: last + 1], base=base, top=top, infinite=pair.infinite + gone * (1.0 + 1e-9)
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _blocks(clones: Clones) -> tuple[tuple[tuple[MeanRatio, float], ...], float]:
    crowd, spare = clones.crowd, clones.spare
    clone = math.exp(-clones.exponent)
    sampled = crowd.sample is not None
    coins = crowd.reports if sampled else crowd.users - 1
    # The factor of the law of g is at most 1 / c.
    first, masses, error = _binomial(coins, clones.exponent, spare * clone if sampled else spare)
    outside = clone * (crowd.users - crowd.reports)
    if sampled:
        masses = masses * (np.arange(first, first + len(masses)) + outside) / (clone * crowd.users)
    # Four deviations either way are cut finely, the rest four times less so.
    deviation = math.sqrt(clone * coins)
    width = max(1, round(2.0 / clones.fineness * clone * coins), math.ceil(32.0 * deviation / clones.fineness))
    far = 4 * width
    low = max(0, math.floor(clone * coins - 4.0 * deviation) - first) // far * far
    high = -(-max(0, math.ceil(clone * coins + 4.0 * deviation) - first) // far) * far
    pieces = [range(0, low, far), range(low, high, width), range(high, len(masses), far)]
    starts = [start for piece in pieces for start in piece if start < len(masses)]
    weights = np.add.reduceat(masses, starts)
    found, still = [], 0.0
    for start, end, weight in zip(starts, [*starts[1:], len(masses)], weights.tolist(), strict=True):
        least, most = first + start, first + end - 1
        if not clones.is_bound:
            least = most = (least + most) // 2
        mean = MeanRatio(ratio=crowd.ratio, users=least + 1)
        if sampled:
            if most == 0:
                still = weight * (1.0 + error)
                continue
            most_weight = min(1.0, most / (most + outside) * (1.0 + 8.0 * _UNIT))
            mean = MeanRatio(ratio=crowd.ratio, users=max(least, 1), weight=most_weight)
        found.append((mean, weight * (1.0 + error)))
    return tuple(found), still


def _binomial(trials: int, exponent: float, spare: float) -> tuple[int, FloatArray, float]:
    """Bin(trials, c = e^-exponent): the smallest count, the masses from there on, their relative error.

    Counts outside have a probability below `spare` (Bernstein's inequality); masses follow from the
    largest by their ratios `(n - k) / (k + 1) * c / (1 - c)`, some roundings a step, and are scaled to
    sum 1.
    """
    chance, other = math.exp(-exponent), -math.expm1(-exponent)
    mean, variance = trials * chance, trials * chance * other
    log = math.log(2.0 / spare)
    reach = log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * log * variance)
    first, last = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    mode = min(max(first, math.floor((trials + 1) * chance)), last)
    up: FloatArray = np.arange(mode, last, dtype=np.float64)
    down: FloatArray = np.arange(mode, first, -1, dtype=np.float64)
    odds = chance / other
    rising = np.cumprod((trials - up) / (up + 1.0) * odds)
    falling = np.cumprod(down / ((trials - down + 1.0) * odds))[::-1]
    masses = np.concatenate([falling, [1.0], rising])
    return first, masses / masses.sum(), 16.0 * _UNIT * (len(masses) + 8.0)


# Questions: upper bounds for rounds some of which are an AnyCrowd

AnyParts = tuple[tuple[MeanRatio | Round | AnyCrowd, int], ...]

_LEAST = 1e-15
"""No mass at infinity below this is tried where delta itself is asked."""


def is_any(parts: AnyParts) -> bool:
    """Whether there is a round whose crowd may hold anything: such rounds have upper bounds only."""
    return any(isinstance(part, AnyCrowd) for part, _ in parts)


def epsilon(parts: AnyParts, delta: float, accuracy: float = pld.ACCURACY) -> float:
    """eps at delta: the best bound that the theorem gives, to about the relative accuracy."""
    local = pld.epsilons(_local(parts), [delta])[0].upper
    if not _in_range(parts) or delta < pld.DELTA_MIN:
        return local

    halves = _halfway(parts)
    if halves is not None:
        mass, guess = _least(
            halves, 5e-3 * delta, 0.4 * delta, lambda p: _rough(p).above("forward").epsilon(0.5 * delta)
        )
        # On the way back tau weighs e^e1 times as much: where that is too much there have to be fewer clones.
        for less in (1.0, 0.25, 0.05, 0.01, 1e-3):
            step = _rough(_resolved(halves, less * mass))
            guess = ByZero(there=step.above("forward"), back=step.above("reverse")).epsilon(delta)
            if guess < math.inf:
                break
        # Mostly much better than the direct way, whose clones are fewer.
        sample = _rough(_resolved(parts, 0.1 * delta)).above("forward").epsilon(delta)
        if guess < math.inf and (guess < 0.8 * sample or guess < _for_epsilon(parts, delta)[1]):
            found = _by_zero(halves, guess, less * mass, _half(accuracy), delta).epsilon(delta)
            if found < math.inf:
                return min(local, found)
    there, back = (_fine(_resolved(parts, mass), _half(accuracy)) for mass in _for_epsilon(parts, delta)[0])
    if there.total_variation() <= delta:
        return 0.0
    return min(local, max(there.above("forward").epsilon(delta), back.above("reverse").epsilon(delta)))


def delta(parts: AnyParts, epsilon: float, accuracy: float = pld.ACCURACY) -> float:
    """delta at eps."""
    local = pld.deltas(_local(parts), [epsilon])[0].upper
    if not _in_range(parts) or epsilon > pld.EPSILON_MAX:
        return local

    masses, abouts = zip(
        *(_least(parts, _LEAST, 0.5, lambda p, way=way: _rough(p).above(way).delta(epsilon)) for way in _WAYS),  # type: ignore[misc]
        strict=True,
    )
    halves = _halfway(parts)
    if halves is not None:
        way, half_way = _least(halves, _LEAST, 0.5, lambda p: _rough(p).above("forward").delta(0.5 * epsilon))
        if (1.0 + math.exp(0.5 * epsilon)) * half_way < max(abouts):
            return min(local, _by_zero(halves, epsilon, way, _half(accuracy)).delta(epsilon))
    curves = [_fine(_resolved(parts, m), _half(accuracy)).above(w) for m, w in zip(masses, _WAYS, strict=True)]
    return min(local, max(curve.delta(epsilon) for curve in curves))


def advantage(parts: AnyParts, accuracy: float = pld.ACCURACY) -> float:
    """The largest TPR - FPR of any attack: delta at 0."""
    return delta(parts, 0.0, accuracy)


def power(parts: AnyParts, fpr: float, accuracy: float = pld.ACCURACY) -> float:
    """The largest true positive rate at the false positive rate.

    By way of zero, what a test may gain on the first half of the way is its chance to err on the second.
    """
    halves = _halfway(parts)
    direct = _power(parts, fpr, accuracy)
    if halves is None:
        return direct
    return min(direct, _power(halves, min(_power(halves, fpr, accuracy), 1.0 - 2.0**-53), accuracy))


def one_round(part: MeanRatio | AnyCrowd, mass: float) -> MeanRatio | Round:
    """A round whose bound has about `mass` at infinity."""
    return _resolved(((part, 1),), mass)[0][0]


# How they are answered

_BUDGET = 1e-30
_WAYS: tuple[Direction, Direction] = ("forward", "reverse")


def _half(accuracy: float) -> int:
    """Cells of a law that is about that accurate."""
    return int(min(2048, max(512, 2 ** math.ceil(math.log2(512.0 * math.sqrt(pld.ACCURACY / accuracy))))))


def _local(parts: AnyParts) -> Parts:
    """The one plain report a round of which everything is post-processing."""
    return tuple((MeanRatio(ratio=replace(part.ratio, rate=1.0), users=1), rounds) for part, rounds in parts)


def _in_range(parts: AnyParts) -> bool:
    """Whether the laws were made for these rounds; elsewhere the local guarantee is all that is claimed."""
    return pld.in_range(_resolved(parts, 0.0)) and all(part.users <= pld.USERS_MAX for part, _ in parts)


def _resolved(parts: AnyParts, mass: float) -> Parts:
    """The parts with clones that cost about `mass` altogether; without any for 0."""
    crowds = sum(isinstance(part, AnyCrowd) for part, _ in parts)
    found: list[tuple[MeanRatio | Round, int]] = []
    for part, rounds in parts:
        if not isinstance(part, AnyCrowd):
            found.append((part, rounds))
        elif mass == 0.0:
            found.append((part.alone(), rounds))
        else:
            share = mass / crowds / rounds
            exponent = exponent_for(part.ratio.scale, (1.0 - _SPARE) * share / (part.ratio.rate * part.weight))
            found.append((Clones(crowd=part, exponent=exponent, spare=_SPARE * share), rounds))
    return tuple(found)


def _least(parts: AnyParts, low: float, high: float, estimate: Callable[[Parts], float]) -> tuple[float, float]:
    """The mass at infinity, between low and high or 0, for which the estimate is least, and that estimate."""

    def at(log_mass: float) -> float:
        return min(1e9, estimate(_resolved(parts, math.exp(log_mass))))

    limits = (math.log(low), math.log(high))
    best = optimize.minimize_scalar(at, bounds=limits, method="bounded", options={"xatol": 0.06})
    alone = estimate(_resolved(parts, 0.0))
    return (0.0, alone) if alone <= best.fun else (math.exp(best.x), float(best.fun))


def _rough(parts: Parts) -> Composition:
    guessed = tuple(
        (replace(part, fineness=_ROUGH // 4, is_bound=False) if isinstance(part, Clones) else part, rounds)
        for part, rounds in parts
    )
    return _fine(guessed, _ROUGH)


def _fine(parts: Parts, half: int) -> Composition:
    return Composition(parts=parts, half=half, budget=_BUDGET)


def _for_epsilon(parts: AnyParts, delta: float) -> tuple[tuple[float, float], float]:
    """The masses at infinity for eps at delta, forward and reverse, and about what the answer is.

    The two directions are bounds of their own, so each may have its own clones. In reverse tau weighs
    e^eps times as much.
    """
    there, about = _least(parts, 5e-3 * delta, 0.8 * delta, lambda p: _rough(p).above("forward").epsilon(delta))
    back = _rough(_resolved(parts, there)).above("reverse").epsilon(delta)
    if back <= about:
        return (there, there), about
    scaled = delta * math.exp(-min(about, 20.0))
    mass, back = _least(parts, 5e-3 * scaled, 0.8 * scaled, lambda p: _rough(p).above("reverse").epsilon(delta))
    return (there, mass), max(about, back)


def _halfway(parts: AnyParts) -> AnyParts | None:
    """The rounds in which user 1 moves to zero only, if the way there and back leads through them all."""
    found: list[tuple[MeanRatio | Round | AnyCrowd, int]] = []
    for part, rounds in parts:
        if isinstance(part, AnyCrowd) and part.by_way_of_zero:
            found.append((part.halfway(), rounds))
        elif isinstance(part, MeanRatio) and part.is_single and part.ratio.rate == 1.0:
            found.append((replace(part, ratio=replace(part.ratio, scale=2.0 * part.ratio.scale)), rounds))
        else:
            return None
    return tuple(found) if is_any(tuple(found)) else None


@dataclass(frozen=True, kw_only=True)
class ByZero:
    """Group privacy: from x to zero in the direction "forward", from there to x' in "reverse".

    With eps = e1 + e2, `P(A) <= e^e1 Q(A) + delta1` and `Q(A) <= e^e2 P'(A) + delta2` give
    `delta(eps) <= delta1 + e^e1 delta2`; the best e1 of some is taken. Each way has its own clones.
    """

    there: Curve
    back: Curve

    def delta(self, epsilon: float) -> float:
        firsts = epsilon * np.linspace(0.4, 0.6, 41)
        sums = (self.there.delta(e) + math.exp(e) * self.back.delta(max(0.0, epsilon - e)) for e in firsts)
        return min(1.0, min(sums) * (1.0 + 1e-9))

    def epsilon(self, delta: float) -> float:
        """An eps whose delta is at most that given, the smallest to 1e-9; infinity if there is none."""
        low, high = 0.0, 1.0
        if self.delta(low) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2.0 * high
            if high > 2.0 * pld.EPSILON_MAX:
                return math.inf
        while high - low > 1e-9 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def _by_zero(halves: AnyParts, epsilon: float, mass: float, half: int, delta: float | None = None) -> ByZero:
    """About the best for this eps (or for this delta, near that eps); `mass` is best for half of the way."""
    masses = [mass, mass * math.exp(-min(0.5 * epsilon, 20.0))]
    for reach in (4.0, 1.5) if delta is not None else (4.0,):
        for place, way in enumerate(_WAYS):

            def asked(parts: Parts, way: Direction = way, leg: float = 0.5 * epsilon) -> float:
                return _rough(parts).above(way).delta(leg)

            if masses[place]:
                low, high = masses[place] / reach, min(0.5, masses[place] * reach)
                masses[place] = _least(halves, low, high, asked)[0]
        there, back = (_resolved(halves, m) for m in masses)
        if delta is not None:
            rough = ByZero(there=_rough(there).above("forward"), back=_rough(back).above("reverse")).epsilon(delta)
            epsilon = min(epsilon, rough)
    return ByZero(there=_fine(there, half).above("forward"), back=_fine(back, half).above("reverse"))


def _power(parts: AnyParts, fpr: float, accuracy: float) -> float:
    if not _in_range(parts) or fpr < 1e3 * _LEAST:
        return pld.tradeoff(_local(parts), [fpr])[0].upper

    def estimate(parts: Parts) -> float:
        curves = (_rough(parts).above(way).points() for way in _WAYS)
        return max(float(np.min(fpr * np.exp(np.minimum(e, 700.0)) + d, initial=1.0)) for e, d in curves)

    mass, _ = _least(parts, max(_LEAST, 1e-6 * fpr), 0.05 * fpr, estimate)
    return pld.highest_power(_resolved(parts, mass), fpr, _half(accuracy))

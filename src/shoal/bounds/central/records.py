"""Several records of one person in a sampled batch: mixtures of Gaussians, and what dominates them.

A trusted server draws a batch, sums its clipped vectors and adds `N(0, (C sigma)^2 I)`. One person has k records, all
of which change: they hold x_1, ..., x_k in D and x'_1, ..., x'_k in D' (zero-out: x' = 0), all of norm at most 1, and
may depend on everything published before. J is the set of those that are in the batch, p_J its probability, which is
the same in D and D', p_j that of |J| = j, and x_J the sum of the x_i with i in J.

**Nothing stands in the place of a record that is not drawn** (Poisson sampling: |J| is binomial). Given the rest of the
batch, P and Q are, up to a shift, the mixtures of N(x_J) and of N(x'_J) with weights p_J.

*Theorem 1.* For any law of J, `delta(P || Q)` is, at all losses of both signs, at most that of

    zero-out:  sum_j p_j N(j)   against   N(0),
    replace:   sum_j p_j N(j)   against   sum_j p_j N(-j).

*Proof.* With the density of N(0) as the base, `dP = sum_J p_J w_J` and `dQ = sum_J p_J w'_J`: each w_J is a lognormal
of mean 1 whose logarithm has variance `|x_J|^2 / sigma^2 <= |J|^2 / sigma^2`, so it is below the lognormal of variance
`j^2 / sigma^2`, j = |J|, in the convex order. For t >= 0, `dP - t dQ` is a sum of terms `p_J w_J` and `-t p_J w'_J`. In
the convex order a sum is below the comonotone sum of terms with the same laws (Mueller and Stoyan 2002), and a
comonotone sum rises with the law of each of its terms, because its stop-losses are sums of theirs. Comonotone are
`w_J = exp(r Z - r^2 / 2)` and `-w'_J = -exp(-r Z - r^2 / 2)`, r = j / sigma: those of the pair above (with x' = 0,
w' = 1). So `E(dP - t dQ)_+` is at most that of the pair. ∎ It is attained where all vectors are equal in D, and
opposite or 0 in D'.

Adaptive composition: one pair dominates every step whatever was published before, so products of it dominate adaptive
compositions (Zhu, Dong and Wang 2022, theorem 10). For zero-out this is theorem 3.1 of Ganesh (2024, arXiv:2401.10294);
for k = 1 the second pair is that of Lebeda et al. (2024, arXiv:2405.20769). The terms also rise with j, so the pair
rises with |J| in the usual stochastic order: "at most k records" is covered.

**Another record stands in its place** (fixed batches: |J| is hypergeometric). Number the stand-ins so that o_i replaces
x_i: P and Q are mixtures of N(x_J + o_K) and N(x'_J + o_K), K the complement of J. They share the component without any
of the person's records, N(o_1 + ... + o_k), of weight 1 - s.

*Theorem 2.* Let t >= 1, and let shares `c_1, ..., c_k >= 0` add up to at most `(t - 1) (1 - s)`. Then
`E(dP - t dQ)_+ <= sum_j E(p_j f_j - c_j)_+`, where, with `w_a = exp(a Z - a^2 / 2)` and r = 1 / sigma,

    zero-out, P against Q:  f_j = w_{2jr} - t w_{jr}
    zero-out, Q against P:  f_j = w_{jr} - t
    replace:                f_j = w_{2jr} - t.

*Proof.* Seen from the shared component, `dP - t dQ` is the sum over nonempty J of p_J times `u_J - t u'_J`, less `(t -
1) (1 - s)`; u_J and u'_J are the lognormals of N(x_J - o_J) and N(x'_J - o_J). Give each J the part `p_J / p_j` of c_j
and use `(a + b)_+ <= a_+ + b_+`. A term `E(p_J (u_J - t u'_J) - c)_+` with c >= 0 is, up to a factor, that of a person
with one record of norm |J|, drawn at a rate of `p_J (t - 1) / (p_J (t - 1) + c)`: the theorem of `swap` has its worst
case, which is the one above. ∎

The best shares are `p_j max(0, f_j(z))` at one z. Where all of these f_j are positive the sum is that of the real crowd
in which all other vectors are opposite (P against Q) or beside (Q against P): there the bound is exact. It is not
where one of them is negative. The bound is convex in t, as the least value of a jointly convex problem.

*Corollary.* Shares in proportion to p_j: publish a label j >= 1 with probability p_j / s, then let the batch be that of
a person with one record of norm j, drawn at rate s. That is a mixture of rounds of `swap`, whose moments are known.

"At most k records" is covered here as well: the worst case of each term rises with j and, as `(1 - s) / s` falls, with
s; with fewer records s is smaller, and so is j in the usual stochastic order.

*Computed*: the lines of theorem 1 by `lines`, theorem 2 as prices at some thousand t (`prices`: chords are above a
convex function); weights are correctly rounded quotients of whole numbers.

*Errors*, u = 2^-53:

1. A likelihood ratio is 1 plus a sum of `r_j (e^D_j - 1)`, r_j the posterior weights: near 1 its terms may cancel, so
   its error is a multiple of u times the sum of their sizes; elsewhere it is a sum of positive terms.
2. More records than `kept` are hardly ever drawn together. From above such batches count as mass of infinite loss, from
   below as batches with `kept` of them, which is a person with fewer records at times: by theorem 1 less is seen.
3. Prices of theorem 2 are differences of tails of the normal law: what rounding of each term and of z can do is added.
   Shares are those of the lower end of a bracket of z, which add up to no more than they may.
4. Masses of panels of a crowd from below are off by `MASS_ERROR` of `lines`; tails are left out.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.anycrowd.prices import PricedLaw, Prices, law_from_prices
from shoal.bounds.central.attacks import attack_pair
from shoal.bounds.central.lines import (
    MASS_ERROR,
    MOMENT_ERROR,
    TwoHalves,
    mixture_density,
    mixture_log_density,
    panel_places,
)
from shoal.bounds.central.swap import Swap, Worst
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import LAW_RATE_MIN, ROUNDED_UP, SCALE_MAX, SCALE_MIN, UNIT, Direction, FloatArray, Side
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round

RECORDS_MAX = 1000
"""The largest number of records of one person whose weights are computed."""

_WEIGHT_MIN = 1e-40
"""Numbers of records that are together less likely than this are left out (error 2)."""

_NOISE_MIN_TOGETHER = 0.05
"""The smallest noise, as a part of the records drawn together, whose losses can be composed: 1 / 20."""

_LOST_MAX = 1e-6
"""The most mass that may be left out; with more of it all records count as drawn, in the clear."""

_PRICE_POINTS = 2048
"""Number of losses at which theorem 2 is priced."""

_PUT_LOSS_MAX = 30.0
"""Puts at smaller k are left out, which is safe: neighbouring k - 1 would round to one number."""

_PRICE_FIRST = 1e-3
"""The smallest of them, as a part of the total variation."""

_PRICE_REACH = 14.0
"""How many deviations of one report the largest of them lies beyond its mean: beyond, less than 1e-43 is left."""

_NOISE_MIN_SWAPPED = 0.2
"""The same where another record takes the place of each; with less noise a labelled person is seen in the clear."""


# Weights


@dataclass(frozen=True, kw_only=True)
class DrawnRecords:
    """The law of the number of a person's records in a batch: `weights` of 0, 1, ..., each correctly rounded.

    `tails` are the probabilities of more than 0, 1, ... records, and `records` is the person's number of them.
    """

    records: int
    weights: tuple[float, ...]
    tails: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The probability that the batch holds any of the person's records."""
        return self.tails[0]

    def kept(self, noise: float, noise_min: float) -> int:
        """The number of records up to which batches are looked at.

        Args:
            noise: sigma, in units of one record.
            noise_min: The least noise, as a part of the records drawn together, that can be composed.

        Returns:
            The number, at least 1.
        """
        likely = next(number for number, tail in enumerate(self.tails) if tail < _WEIGHT_MIN)
        return max(1, min(likely, math.floor(noise / noise_min)))


def _drawn(terms: list[int], total: int) -> DrawnRecords:
    """The law with these whole numbers as weights."""
    tails, tail = [], 0
    for term in reversed(terms):
        tails.append(tail / total)
        tail += term
    weights = tuple(term / total for term in terms)
    return DrawnRecords(records=len(terms) - 1, weights=weights, tails=tuple(reversed(tails)))


@functools.lru_cache(maxsize=64)
def binomial_records(records: int, rate: float) -> DrawnRecords:
    """The number of records in a batch when each is drawn on its own coin.

    Args:
        records: The person's number of records.
        rate: The probability of each.

    Returns:
        The binomial law.
    """
    drawn, base = Fraction(rate).numerator, Fraction(rate).denominator
    rest = base - drawn
    terms = [math.comb(records, j) * drawn**j * rest ** (records - j) for j in range(records + 1)]
    return _drawn(terms, base**records)


@functools.lru_cache(maxsize=64)
def hypergeometric_records(records: int, batch: int, population: int) -> DrawnRecords:
    """The number of a person's records in a batch of fixed size.

    Args:
        records: The person's number of records.
        batch: The size of the batch.
        population: The number of all records.

    Returns:
        The hypergeometric law.
    """
    terms = [
        math.comb(records, j) * math.perm(batch, j) * math.perm(population - batch, records - j)
        for j in range(records + 1)
    ]
    return _drawn(terms, math.perm(population, records))


# The lines of theorem 1


@dataclass(frozen=True, kw_only=True)
class MixedPlaces:
    """P = sum of weights N(places_p), Q = sum of weights N(places_q), places in deviations."""

    weights: tuple[float, ...]
    places_p: tuple[float, ...]
    places_q: tuple[float, ...]

    @property
    def reversed(self) -> MixedPlaces:
        """The pair with P and Q exchanged and the line reflected, so that losses rise again."""
        mirrored = (tuple(-place for place in places) for places in (self.places_q, self.places_p))
        return MixedPlaces(weights=self.weights, places_p=next(mirrored), places_q=next(mirrored))

    @property
    def middle(self) -> float:
        """The output at which the loss is 0."""
        return _middle(self)

    @property
    def growth(self) -> float:
        """The largest growth rate of the exponentials in both densities."""
        return 2.0 * max(abs(place) for place in (*self.places_p, *self.places_q))

    @property
    def steepest(self) -> float:
        """A bound on the slope of the loss."""
        return max(self.places_p) - min(self.places_q)

    def _terms(self, z: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Exponents of all components of P and of Q, seen from N(0), and `log` of their quotients."""
        weights, here, there = (
            np.array(values).reshape(-1, *(1,) * z.ndim) for values in (self.weights, self.places_p, self.places_q)
        )
        logs = np.log(weights)
        top, base = (logs + places * (z - 0.5 * places) for places in (here, there))
        return top, base, (here - there) * (z - 0.5 * (here + there))

    def log_ratio(self, z: FloatArray) -> FloatArray:
        """log P/Q at each output."""
        top, base, quotients = self._terms(z)
        log_base = special.logsumexp(base, axis=0)
        # error 1: near loss 0 by the change of the ratio, elsewhere as a sum of positive terms.
        change = (np.exp(base - log_base) * np.expm1(np.minimum(quotients, 700.0))).sum(axis=0)
        is_small = np.abs(change) < 0.5
        ratio: FloatArray = special.logsumexp(top, axis=0) - log_base
        return np.where(is_small, np.log1p(np.where(is_small, change, 0.0)), ratio)

    def loss_error(self, z: FloatArray, loss: FloatArray) -> FloatArray:
        """A bound on the error of `log_ratio`.

        Args:
            z: Outputs, in deviations.
            loss: Their losses.

        Returns:
            One bound for each output; each term of the change is monotone, so both ends together bound a panel.
        """
        _, base, quotients = self._terms(z)
        sizes = np.exp(base - special.logsumexp(base, axis=0)) * np.abs(np.expm1(np.minimum(quotients, 700.0)))
        exponents = self.growth * (2.0 * float(np.abs(z).max()) + self.growth) - math.log(min(self.weights))
        # error 1
        return np.asarray(32.0 * UNIT * (16.0 + exponents) * (np.abs(loss) + np.minimum(sizes.sum(axis=0), 1.0)))

    def density_p(self, z: FloatArray) -> FloatArray:
        """The density of P."""
        return mixture_density(z, tuple(zip(self.weights, self.places_p, strict=True)))

    def density_q(self, z: FloatArray) -> FloatArray:
        """The density of Q."""
        return mixture_density(z, tuple(zip(self.weights, self.places_q, strict=True)))

    def log_density_p(self, z: FloatArray) -> FloatArray:
        """The logarithm of the density of P."""
        return mixture_log_density(z, tuple(zip(self.weights, self.places_p, strict=True)))

    def ends(self, budget: float) -> tuple[float, float]:
        """The points outside of which P and Q have less mass than the budget."""
        tail, places = quadrature.quantile(budget), (*self.places_p, *self.places_q)
        return min(places) + tail, max(places) - tail


@functools.lru_cache(maxsize=256)
def _middle(line: MixedPlaces) -> float:
    """The output at which the loss of a line is 0, by bisection."""
    if line.places_p == line.reversed.places_p:
        return 0.0  # P and Q are mirror images
    places = (*line.places_p, *line.places_q)
    low, high = min(places) - 1.0, max(places) + 1.0
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            return high
        low, high = (low, middle) if float(line.log_ratio(np.array([middle]))[0]) >= 0.0 else (middle, high)


@dataclass(frozen=True, kw_only=True)
class Together(TwoHalves):
    """The pair of theorem 1; `opposed` for replace. `lost` is the probability of more records (error 2).

    `drawn` are the weights of the numbers of records that are looked at, `all_drawn` those of all.
    """

    scale: float
    records: int
    drawn: tuple[float, ...]
    all_drawn: tuple[float, ...]
    opposed: bool
    lost: float

    @property
    def is_in_range(self) -> bool:
        noise = self.scale / (len(self.drawn) - 1)
        is_likely = self.lost <= _LOST_MAX and 1.0 - self.drawn[0] >= LAW_RATE_MIN
        return noise >= _NOISE_MIN_TOGETHER and self.scale <= SCALE_MAX and is_likely

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.scale / (self.records * (1.0 + self.opposed)))

    @property
    def users(self) -> int:
        return 1

    @property
    def weight(self) -> float:
        return min(1.0, math.fsum(self.drawn[1:]) + self.lost)

    @property
    def infinite(self) -> float:
        return self.lost

    def lines(self, direction: Direction) -> tuple[MixedPlaces, MixedPlaces]:
        numbers = [number for number, weight in enumerate(self.drawn) if weight > 0.0]
        places = tuple(number / self.scale for number in numbers)
        line = MixedPlaces(
            weights=tuple(self.drawn[number] for number in numbers),
            places_p=places,
            places_q=tuple(-place if self.opposed else 0.0 for place in places),
        )
        return (line, line.reversed) if direction == "forward" else (line.reversed, line)

    def mass_at_zero(self, direction: Direction) -> float:
        return 0.0

    def local_log_moments(self, orders: FloatArray) -> FloatArray:
        # The number of records in the clear: all of them, or (an upper bound) none.
        return replace(self.ratio, rate=self.weight).log_moments(orders)

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        if len(self.drawn) > self.records:
            return super().log_moments(orders, direction, quick=quick)
        # No moment can leave out what is lost; nor can it have weights that have underflowed.
        if 0.0 in self.all_drawn:
            return self.local_log_moments(orders) * (1.0 + MOMENT_ERROR)
        whole = replace(self, drawn=self.all_drawn, lost=0.0)
        return whole.log_moments(orders, direction, quick=quick)

    def limited(self) -> Together:
        return replace(self, scale=min(self.scale, SCALE_MAX))


def together(scale: float, drawn: DrawnRecords, *, opposed: bool) -> tuple[Round, Round]:
    """The rounds that bound a person with several records, where nothing stands in their places.

    Args:
        scale: sigma, in units of one record.
        drawn: The law of the number of records in a batch.
        opposed: Whether all records are replaced by opposite ones, rather than by nothing.

    Returns:
        The round from above, and the one from below; they are equal where no number of records is left out.
    """
    if drawn.weights[-1] == 1.0:
        report = Identical(ratio=Lognormal(scale=scale / (drawn.records * (1.0 + opposed))), users=1)
        return report, report
    kept = drawn.kept(scale, _NOISE_MIN_TOGETHER)
    tail = drawn.tails[kept]
    upper = Together(
        scale=scale,
        records=drawn.records,
        drawn=drawn.weights[: kept + 1],
        all_drawn=drawn.weights,
        opposed=opposed,
        lost=tail * ROUNDED_UP,
    )
    if kept == drawn.records:
        return upper, upper
    # error 2
    moved = (*drawn.weights[:kept], drawn.weights[kept] + tail)
    return upper, replace(upper, drawn=moved, lost=0.0)


# The corollary: a public label, then one of several rounds


@dataclass(frozen=True, kw_only=True)
class Labelled(Round):
    """One of several rounds, drawn at random; which one is public. `lost` is the probability of complete exposure.

    What is missing of all weights is a round in which nothing happens. `scale` is that of one plain report of which the
    whole round is post-processing, also where more is lost than any part shows. `coarse` are fewer parts from above,
    for moments.
    """

    scale: float
    parts: tuple[tuple[float, Round], ...]
    lost: float = 0.0
    coarse: tuple[tuple[float, Round], ...] = ()

    @property
    def is_in_range(self) -> bool:
        return self.lost <= _LOST_MAX and all(part.is_in_range for _, part in self.parts)

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.scale)

    @property
    def users(self) -> int:
        return 1

    @property
    def weight(self) -> float:
        return 1.0

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        pairs = [(weight, part.pair(half, budget, side, direction)) for weight, part in self.parts]
        sign = 1.0 if side == "upper" else -1.0
        nothing: list[FloatArray] = [np.zeros(0)]
        loss = np.concatenate(nothing + [pair.loss for _, pair in pairs])
        # Products with the weights are rounded.
        top = np.concatenate(nothing + [weight * pair.top for weight, pair in pairs]) * (1.0 + sign * 4.0 * UNIT)
        infinite = math.fsum(weight * pair.infinite for weight, pair in pairs)
        if side == "upper":
            rest = max(0.0, 1.0 - self.lost - float(top.sum())) * ROUNDED_UP
            infinite = (infinite + self.lost) * ROUNDED_UP
        else:
            # What an attacker ignores: the same under P and Q.
            rest = max(0.0, 1.0 - self.lost - math.fsum(weight for weight, _ in pairs)) * (1.0 - 4.0 * UNIT)
        loss, top = np.append(loss, 0.0), np.append(top, rest)
        occupied = top > 0.0
        loss, top = loss[occupied], top[occupied]
        order = np.argsort(loss, kind="stable")
        loss, top = loss[order], top[order]
        return Pair(side=side, loss=loss, base=top * np.exp(-loss), top=top, infinite=infinite)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        errors = [part.test_error(half, budget) for _, part in self.parts]
        return max(relative for relative, _ in errors) + 8.0 * UNIT, math.fsum(missing for _, missing in errors)

    def limited(self) -> Labelled:
        parts = tuple((weight, part.limited()) for weight, part in self.parts)
        coarse = tuple((weight, part.limited()) for weight, part in self.coarse)
        return replace(
            self, parts=parts, coarse=coarse, scale=min([self.scale, *(part.ratio.scale for _, part in parts)])
        )

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """Log-moments of the mixture; what is lost counts as one plain report."""
        local = self.ratio.log_moments(orders)
        parts = self.coarse or self.parts
        logs = [part.log_moments(orders, direction, quick=quick) for _, part in parts]
        # E[S^L] - 1 is the mean over parts; a few units more than its rounding.
        with np.errstate(divide="ignore"):
            weights = np.log(np.array([*(weight for weight, _ in parts), self.lost]))[:, None]
            stacked = np.stack([*logs, local])
            excess = special.logsumexp(weights + stacked + np.log(-np.expm1(-stacked)), axis=0)
        mixed: FloatArray = np.logaddexp(0.0, excess) * (1.0 + 64.0 * UNIT)
        return np.minimum(mixed, local)


@dataclass(frozen=True, kw_only=True)
class LabelledUpper(Labelled):
    """The same where a round is known from above only."""

    is_upper_only: ClassVar[bool] = True

    def own_report(self) -> Round:
        parts = tuple((weight, part.own_report()) for weight, part in self.parts)
        return Labelled(scale=self.scale, parts=parts, lost=self.lost)


def labelled(scale: float, drawn: DrawnRecords, *, replaced: bool) -> Round:
    """The round of the corollary, from above.

    Args:
        scale: sigma, in units of one record.
        drawn: The law of the number of records in a batch.
        replaced: Whether the records are replaced by others, rather than zeroed out.

    Returns:
        A round that dominates fixed batches.
    """
    in_the_clear = scale / (drawn.records * (1.0 + replaced))
    if drawn.weights[-1] == 1.0:
        return Identical(ratio=Lognormal(scale=in_the_clear), users=1)
    place_q = -1.0 if replaced else 0.0
    kept = drawn.kept(scale, SCALE_MIN)
    parts: list[tuple[float, Round]] = []
    for number in range(1, kept + 1):
        weight, noise = drawn.weights[number], scale / number
        if weight == 0.0:
            continue
        if noise >= _NOISE_MIN_SWAPPED and drawn.rate < 1.0:
            swap = Swap(scale=noise, rate=drawn.rate, place_p=1.0, place_q=place_q, place_out=-1.0)
            parts.append((min(weight / drawn.rate, 1.0), Worst(swap=swap, place_out_below=1.0)))
        else:
            # In the clear: with the coin public, or no coin, the place of the others does not matter.
            parts.append((weight, Identical(ratio=Lognormal(scale=noise / (1.0 + replaced)), users=1)))
    # error 2
    return Labelled(scale=in_the_clear, parts=tuple(parts), lost=drawn.tails[kept] * ROUNDED_UP)


# Theorem 2


@dataclass(frozen=True, kw_only=True)
class StandIns(Round):
    """A person with several records in fixed batches, from above; `scale` is sigma, in units of one record."""

    scale: float
    drawn: DrawnRecords
    replaced: bool

    @property
    def _kept(self) -> int:
        return self.drawn.kept(self.scale, _NOISE_MIN_TOGETHER)

    @property
    def is_in_range(self) -> bool:
        return (
            self.drawn.tails[self._kept] <= _LOST_MAX
            and self.scale <= SCALE_MAX
            and self.scale >= _NOISE_MIN_TOGETHER * self._kept
            and self.drawn.rate >= LAW_RATE_MIN
        )

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.scale / (self.drawn.records * (1.0 + self.replaced)))

    @property
    def users(self) -> int:
        return 1

    @property
    def weight(self) -> float:
        return self.drawn.rate

    def _law(self) -> PricedLaw:
        return _stand_ins_law(self.scale, self.drawn, self._kept, self.replaced)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        pair = self._law().pair(direction)
        if side == "upper":
            return pair
        # The same law, which is one on points: what it shows from below, without what was put at infinity.
        return replace(pair, side="lower", top=pair.top * (1.0 - 4.0 * UNIT), infinite=0.0)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 8.0 * UNIT, 2.0 * self._law().infinite

    def limited(self) -> StandIns:
        return replace(self, scale=min(self.scale, SCALE_MAX))

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        by_label = labelled(self.scale, self.drawn, replaced=self.replaced)
        return by_label.log_moments(orders, direction, quick=quick)


@functools.lru_cache(maxsize=32)
def _stand_ins_law(scale: float, drawn: DrawnRecords, kept: int, replaced: bool) -> PricedLaw:
    """The law with the prices of theorem 2."""
    numbers = np.array([number for number in range(1, kept + 1) if drawn.weights[number] > 0.0])
    weights, steps = np.array(drawn.weights)[numbers], numbers / scale
    moved = (2.0 * steps, steps) if not replaced else (2.0 * steps, 0.0 * steps)
    back = (steps, 0.0 * steps) if not replaced else moved
    none = drawn.weights[0]
    # error 2
    lost = drawn.tails[kept] * ROUNDED_UP
    # As far as one report with all records that are looked at shows anything.
    furthest = float(steps[-1]) * (1.0 + replaced)
    last = 0.5 * furthest**2 + _PRICE_REACH * furthest
    smallest = _PRICE_FIRST * float(_prices_of_terms(np.zeros(1), weights, *moved, none)[0])
    loss = np.concatenate([[0.0], np.geomspace(min(smallest, 0.5 * last), last, _PRICE_POINTS)])
    calls, deltas_back = (_prices_of_terms(loss, weights, *places, none) + lost for places in (moved, back))
    mirrored = loss < _PUT_LOSS_MAX
    gap = np.concatenate([np.expm1(-loss[mirrored][:0:-1]), np.expm1(loss)])
    puts = (np.exp(-loss) * deltas_back)[mirrored][:0:-1]
    calls[0] = max(calls[0], deltas_back[0])
    return law_from_prices(Prices(gap=gap, value=np.concatenate([puts, calls])))


def _prices_of_terms(
    loss: FloatArray, weights: FloatArray, up: FloatArray, down: FloatArray, none: float
) -> FloatArray:
    """`sum_j E(p_j (w_up - t w_down) - c_j)_+` with the best shares, at each log t.

    Args:
        loss: log t, at least 0.
        weights: The p_j.
        up: Places of the components of the first law, in deviations.
        down: Those of the second law, at lower places.
        none: 1 - s.

    Returns:
        One price for each loss, rounded up.
    """
    t, loss = np.exp(loss)[:, None], loss[:, None]

    def excess(z: FloatArray) -> FloatArray:
        # f_j / t where it is positive: its second factor rises from 0 at `zeros`. What is clipped is far above 1.
        rise = np.expm1(np.clip((up - down) * (z - zeros), 0.0, 300.0))
        return np.asarray(np.exp(np.clip(down * (z - 0.5 * down), -300.0, 300.0)) * rise)

    zeros = 0.5 * (up + down) + loss / (up - down)
    target = -np.expm1(-loss) * none
    low = np.min(zeros, axis=1, keepdims=True)
    high = np.max(zeros, axis=1, keepdims=True) + 60.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        is_small = (weights * excess(middle)).sum(axis=1, keepdims=True) * ROUNDED_UP <= target
        low, high = np.where(is_small, middle, low), np.where(is_small, high, middle)
    # error 3
    shares, places = weights * excess(low) * t, np.maximum(low, zeros)
    terms = [
        weights * special.ndtr(up - places),
        -weights * t * special.ndtr(down - places),
        -shares * special.ndtr(-places),
    ]
    rounding = 64.0 * UNIT * (1.0 + places**2) * sum(np.abs(term) for term in terms)
    return np.asarray((np.maximum(sum(terms), 0.0) + rounding).sum(axis=1))


# A crowd that can really happen, from below


@dataclass(frozen=True, kw_only=True)
class OppositeBatch(Round):
    """Fixed batches in which all others hold the opposite of the person's records (zero-out), from below."""

    scale: float
    records: int
    drawn: tuple[float, ...]

    @property
    def is_in_range(self) -> bool:
        return self.scale / self.records >= _NOISE_MIN_SWAPPED and self.scale <= SCALE_MAX

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.scale / self.records)

    @property
    def users(self) -> int:
        return 1

    @property
    def weight(self) -> float:
        return min(1.0, math.fsum(self.drawn[1:]))

    def _line(self) -> MixedPlaces:
        numbers = [number for number, weight in enumerate(self.drawn) if weight > 0.0]
        return MixedPlaces(
            weights=tuple(self.drawn[number] for number in numbers),
            places_p=tuple((2.0 * number - self.records) / self.scale for number in numbers),
            places_q=tuple((number - self.records) / self.scale for number in numbers),
        )

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        line = self._line()
        low, high = line.ends(budget)
        cuts = quadrature.panel_edges(low, high, panel_places(line, low, high, half), line.growth)
        z, weight = (values.reshape(-1, 6) for values in quadrature.panel_nodes(cuts))
        p, q = ((weight * density(z)).sum(axis=1) for density in (line.density_p, line.density_q))
        # error 4
        return attack_pair(p, q, MASS_ERROR, side, direction, 2.0 * budget if side == "upper" else 0.0)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 2.0 * MASS_ERROR, 2.0 * budget

    def limited(self) -> OppositeBatch:
        # An attack is what it is.
        return self

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise ValueError("an attack has no Rényi divergence from above")

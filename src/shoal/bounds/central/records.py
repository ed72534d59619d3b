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

*Theorem 2.* Draw a label j >= 1 with probability p_j / s and publish it; then let the batch be one of a person with one
record of norm j, drawn at rate s. The pair of that (`swap`, with noise sigma / j) dominates P and Q.

*Proof.* `P - t Q` is the sum over nonempty J of `p_J (N(x_J + o_K) - t N(x'_J + o_K))` less `(t - 1) (1 - s)` times the
shared component. Share the last term among the J in proportion to p_J and use `(a + b)_+ <= a_+ + b_+`: what belongs
to J is p_J / s times `P_J - t Q_J` of `(1 - s) N(o_J) + s N(x_J)` against `(1 - s) N(o_J) + s N(x'_J)`, shifted by
o_K. All three vectors have norm at most |J|, so the theorem of `swap` bounds it. ∎ For k = 1 it is that theorem. It is
not exact for k > 1, where the label says more than the public sees; nor is one place of the others the worst for every
t (with k = 2 and a rate near 1 they do most harm neither beside nor opposite). From below: crowds that can really
happen.

*Computed*: the lines of theorem 1 by `lines`; weights are correctly rounded quotients of whole numbers.

*Errors*, u = 2^-53:

1. A likelihood ratio is 1 plus a sum of `r_j (e^D_j - 1)`, r_j the posterior weights: near 1 its terms may cancel, so
   its error is a multiple of u times the sum of their sizes; elsewhere it is a sum of positive terms.
2. More records than `kept` are hardly ever drawn together. From above such batches count as mass of infinite loss, from
   below as batches with `kept` of them, which is a person with fewer records at times: by theorem 1 less is seen.
3. Masses of panels of a crowd from below are off by `MASS_ERROR` of `lines`; tails are left out.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.central.attacks import attack_pair
from shoal.bounds.central.lines import MASS_ERROR, TwoHalves, mixture_density, mixture_log_density, panel_places
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
        error: FloatArray = 32.0 * UNIT * (16.0 + exponents) * (np.abs(loss) + np.minimum(sizes.sum(axis=0), 1.0))
        return error

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
    """The pair of theorem 1; `opposed` for replace. `lost` is the probability of more records (error 2)."""

    scale: float
    records: int
    drawn: tuple[float, ...]
    opposed: bool
    lost: float

    @property
    def is_in_range(self) -> bool:
        noise = self.scale / (len(self.drawn) - 1)
        return noise >= _NOISE_MIN_TOGETHER and self.scale <= SCALE_MAX and 1.0 - self.drawn[0] >= LAW_RATE_MIN

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
        scale=scale, records=drawn.records, drawn=drawn.weights[: kept + 1], opposed=opposed, lost=tail * ROUNDED_UP
    )
    if kept == drawn.records:
        return upper, upper
    # error 2
    moved = (*drawn.weights[:kept], drawn.weights[kept] + tail)
    return upper, replace(upper, drawn=moved, lost=0.0)


# Theorem 2: a public label, then one of several rounds


@dataclass(frozen=True, kw_only=True)
class Labelled(Round):
    """One of several rounds, drawn at random; which one is public. `lost` is the probability of complete exposure.

    What is missing of all weights is a round in which nothing happens.
    """

    parts: tuple[tuple[float, Round], ...]
    lost: float = 0.0

    @property
    def is_in_range(self) -> bool:
        return all(part.is_in_range for _, part in self.parts)

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=min(part.ratio.scale for _, part in self.parts))

    @property
    def users(self) -> int:
        return 1

    @property
    def weight(self) -> float:
        return 1.0

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        pairs = [(weight, part.pair(half, budget, side, direction)) for weight, part in self.parts]
        sign = 1.0 if side == "upper" else -1.0
        loss = np.concatenate([pair.loss for _, pair in pairs])
        # Products with the weights are rounded.
        top = np.concatenate([weight * pair.top for weight, pair in pairs]) * (1.0 + sign * 4.0 * UNIT)
        infinite = math.fsum(weight * pair.infinite for weight, pair in pairs)
        if side == "upper":
            rest = max(0.0, 1.0 - self.lost - float(top.sum())) * ROUNDED_UP
            loss, top, infinite = np.append(loss, 0.0), np.append(top, rest), (infinite + self.lost) * ROUNDED_UP
        occupied = top > 0.0
        loss, top = loss[occupied], top[occupied]
        order = np.argsort(loss, kind="stable")
        loss, top = loss[order], top[order]
        return Pair(side=side, loss=loss, base=top * np.exp(-loss), top=top, infinite=infinite)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        errors = [part.test_error(half, budget) for _, part in self.parts]
        return max(relative for relative, _ in errors) + 8.0 * UNIT, math.fsum(missing for _, missing in errors)

    def limited(self) -> Labelled:
        return replace(self, parts=tuple((weight, part.limited()) for weight, part in self.parts))

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """Log-moments of the mixture, or of one plain report where complete exposure is possible."""
        if self.lost > 0.0:
            return self.ratio.log_moments(orders)
        logs = np.stack([part.log_moments(orders, direction, quick=quick) for _, part in self.parts])
        # E[S^L] - 1 is the mean over parts; a few units more than its rounding.
        excess = sum(
            weight * np.expm1(np.minimum(log, 700.0)) for (weight, _), log in zip(self.parts, logs, strict=True)
        )
        largest: FloatArray = logs.max(axis=0)
        return np.where(largest < 600.0, np.log1p(excess) * (1.0 + 64.0 * UNIT), largest)


def labelled(scale: float, drawn: DrawnRecords, *, replaced: bool) -> Round:
    """The round of theorem 2, from above.

    Args:
        scale: sigma, in units of one record.
        drawn: The law of the number of records in a batch.
        replaced: Whether the records are replaced by others, rather than zeroed out.

    Returns:
        A round that dominates fixed batches.
    """
    if drawn.weights[-1] == 1.0:
        return Identical(ratio=Lognormal(scale=scale / (drawn.records * (1.0 + replaced))), users=1)
    place_q = -1.0 if replaced else 0.0
    kept = drawn.kept(scale, SCALE_MIN)
    parts: list[tuple[float, Round]] = []
    for number in range(1, kept + 1):
        weight, noise = drawn.weights[number], scale / number
        if weight == 0.0:
            continue
        if noise >= _NOISE_MIN_SWAPPED:
            swap = Swap(scale=noise, rate=drawn.rate, place_p=1.0, place_q=place_q, place_out=-1.0)
            parts.append((min(weight / drawn.rate, 1.0), Worst(swap=swap, place_out_below=1.0)))
        else:
            # In the clear: with the coin public the place of the others does not matter.
            parts.append((weight, Identical(ratio=Lognormal(scale=noise / (1.0 + replaced)), users=1)))
    # error 2
    return Labelled(parts=tuple(parts), lost=drawn.tails[kept] * ROUNDED_UP)


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
        # error 3
        return attack_pair(p, q, MASS_ERROR, side, direction, 2.0 * budget if side == "upper" else 0.0)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 2.0 * MASS_ERROR, 2.0 * budget

    def limited(self) -> OppositeBatch:
        # An attack is what it is.
        return self

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise ValueError("an attack has no Rényi divergence from above")

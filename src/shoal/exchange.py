"""Any crowd, from above: the exchange theorem, as one law that dominates whatever the others hold.

Units of sigma, r = 1 / sigma. User 1 holds 0 in D and x' in D'; the others hold x_j; all of them have norm 1 without
loss. p is the density of a report from 0, `w = p_x' / p` and `e_j = p_j / p`. Pick a *thinning* t: with
`c = exp(-r t - r^2/2)` user j is kept with probability `min(1, c / e_j)` of its report (q if it did not take part),
otherwise its label and report are revealed. A kept report has the density `p ê_j`, `ê_j = min(1, e_j / c) / (1 - tau)`,
`tau = Phi(-t) - Phi(-t - r) / c`, and each user is kept with probability `q = c (1 - tau)` on its own (t = -infinity
keeps everybody: q = 1, ê = e).

**Theorem (exchange).** Whatever the others hold, in any dimension, S = dD'/dD under D is below, in the convex order,

    f = 1 + [(v - 1) + sum over i <= K of (X_i(v) + v - 1)] / (K + 1),

with v = w(z), z ~ p, K ~ Bin(n - 1, q) revealed, and X_i(v) independent given both, of one law of mean 1 - v: writing
z for the point with w(z) = v,

- y > z: for y < t density p / (1 - tau) and `X = (1 - tau)(w - v)`; for y > t density `p(y + r) / q` and
  `X = q e^(r y + r^2/2) (w - v)`;
- y < z: for y > -t density p / (1 - tau) and `X = (1 - tau)(w - v)`; for y < -t density `p(y - r) / q` and
  `X = q (1 - v / w)`;
- X = 0 with the rest of the mass.

*Check-in*: user 1 and every kept user take part with probability `rate`; v is 1, or X + v - 1 is 0, for one that does
not. *Fixed size*, m of n: given K, g of the K + 1 are sampled (hypergeometric, revealed); user 1 is one of them with
probability g / (K + 1), then there are g - 1 terms, otherwise v = 1 and g terms. Proofs are in
`docs/explanation/guarantee.md`.

Where users are many this is sharpened: `shoal.groups`. Fixed sizes stay with the theorem as it stands here.

S is also below the one report in the clear (with its coin), `shoal.prices.of_report`: what is composed is the law of
the smaller prices of both, and of several thinnings where that pays.

*Computing it.* For a given crowd f is affine in v (before X takes the place of its users' terms), so v may be spread,
mean kept, on a dozen nodes; the sums for all nodes are made together (`shoal.spread`), once for each block of K. A
block counts as its smallest K: the other kept users, chosen from the set of those kept alone, are revealed. For a fixed
size g is then drawn given that smallest K, and a block of g counts as its largest: from g to g + 1 the f of a given
crowd has one more independent term of mean 0, or w(z) in the place of v = 1.

*Errors.* All are put into prices: calls above 1 and puts below.

1. v beyond the last node: given v a call costs at most `v + E(w - v)+`, a put at most 1 + v, so 2 Phi(r - z_max) is
   charged to both.
2. Improbably small K (or g outside its blocks): at most its probability, to both.
3. Terms from reports beyond the ends of the grid count as those at the ends: their first moments, `Phi(r - high)` and
   `v Phi(low)`, are charged, and so is what `shoal.spread` cuts (its 1), twice for the mean that they move; also the
   first moment of what is left of 1 for X = 0, off by 2^-46 at most, where it is too little to be known well.
4. Round-off of masses and sums: the stretch of `shoal.spread` (its 2), to which one term adds 8 times the 2^12 u of
   quadrature and densities, and, by the lemma on means of `shoal.law` (its 4), 12 times the error of positions over
   the mean size of a term.
5. Means of the laws given v and K are known to a few N u of their size, N cells: a relative error of prices.
6. Weights of K and g: relative, 16 u for each of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import special

from shoal import groups, panels
from shoal.law import Pair
from shoal.mixture import Mixture
from shoal.numeric import UNIT, USERS_MAX, Direction, FloatArray, Side
from shoal.prices import PricedLaw, Prices, law_of, of_report, smaller
from shoal.ratio import Lognormal
from shoal.rounds import Identical, Round
from shoal.spread import NOTHING, Batch, Law, added, atoms_on_grid, base_for, batch, positions, sums
from shoal.thinning import Thinning, excess, root

_PLACES: FloatArray = np.array([-5.5, -3.5, -2.0, -1.0, -0.2, 0.6, 1.4, 2.4, 3.8, 6.0])
"""Where z has its nodes, next to -infinity and the end of the grid."""

_THINNINGS = ((2.5, (1.0,)), (1.75, (1.5,)), (1.25, (1.5, 2.5)), (0.0, (1.5, 2.5, 3.5)))
"""Thinnings from each sigma on: with much noise one is as good as any, with little the best one depends on delta."""

_SCALE_MIN = 0.5
"""With less noise nothing but the report itself is looked at: hardly anybody is kept."""

_SMALL = 300
"""Crowds up to this size are too small to lose many, and cheap to look at with several thinnings."""

_FEW = 2.0
"""Thinnings that keep fewer users of a larger crowd than this, on average, are not worth their time."""

_FOR_MOMENTS = 1e-60
"""What laws for Rényi divergences cut: large orders look far into the tails."""

_BLOCK = 6e-3
"""The width of a block of K, as a part of K: about four times what it costs of epsilon."""

_DEAR = 1.25
"""Below this sigma a term spreads over so many orders of magnitude that sums of it take long."""

_BLOCKS = 12
"""Blocks within three deviations of K at most."""


# One term X(v) + v - 1


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Reports between two points, of density `weight` times normal about `place`: one formula for X."""

    low: float
    high: float
    place: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class _Plain(_Piece):
    """`X = (1 - tau)(w - v)`."""

    def value(self, y: FloatArray, r: float, v: float) -> FloatArray:
        return excess(y, r, v) / self.weight

    def reports(self, x: FloatArray, r: float, v: float) -> FloatArray:
        found: FloatArray = (np.log(v + x * self.weight) + 0.5 * r**2) / r
        return found


@dataclass(frozen=True, kw_only=True)
class _Far(_Piece):
    """`X = q e^(r y + r^2/2) (w - v)`: a user opposite to x'."""

    def value(self, y: FloatArray, r: float, v: float) -> FloatArray:
        found: FloatArray = np.exp(r * y + 0.5 * r**2) * excess(y, r, v) / self.weight
        return found

    def reports(self, x: FloatArray, r: float, v: float) -> FloatArray:
        b = v * math.exp(0.5 * r**2)
        found: FloatArray = np.log(0.5 * (b + np.sqrt(b**2 + 4.0 * x * self.weight))) / r
        return found


@dataclass(frozen=True, kw_only=True)
class _Near(_Piece):
    """`X = q (1 - v / w)`: a user at x'."""

    def value(self, y: FloatArray, r: float, v: float) -> FloatArray:
        found: FloatArray = -np.expm1(-r * (y - root(r, v))) / self.weight
        return found

    def reports(self, x: FloatArray, r: float, v: float) -> FloatArray:
        found: FloatArray = (np.log(v / (1.0 - x * self.weight)) + 0.5 * r**2) / r
        return found


def _pieces(r: float, thin: Thinning, v: float, low: float, high: float) -> Iterator[_Plain | _Far | _Near]:
    t, z = thin.at, min(max(root(r, v), low), high)
    inside, outside = 1.0 / (1.0 - thin.stray), 1.0 / thin.kept
    yield _Near(low=low, high=min(z, -t), place=r, weight=outside)
    yield _Plain(low=max(low, -t), high=z, place=0.0, weight=inside)
    yield _Plain(low=z, high=min(high, t), place=0.0, weight=inside)
    yield _Far(low=max(z, t), high=high, place=-r, weight=outside)


def _term(ratio: Lognormal, thin: Thinning, v: float, share: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """X(v) + v - 1 of one user as points and masses; panels of reports do not cross the edges."""
    r, rate = 1.0 / ratio.scale, ratio.rate
    low, high = panels.quantile(share / max(v, 1.0)), r - panels.quantile(share)
    pieces = [piece for piece in _pieces(r, thin, v, low, high) if piece.high > piece.low]
    points, masses = [], []
    for piece in pieces:
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = piece.reports(edges - (v - 1.0), r, v)
        y, weight = panels.nodes(piece.low, piece.high, kinks[np.isfinite(kinks)], 2.0 * r)
        points.append(piece.value(y, r, v))
        masses.append(weight * panels.normal_density(y - piece.place) * piece.weight)
    for piece, end, sign in ((pieces[0], low, 1.0), (pieces[-1], high, -1.0)):  # error 3
        points.append(piece.value(np.array([end]), r, v))
        masses.append(np.array([special.ndtr(sign * (end - piece.place)) * piece.weight]))
    x, mass = np.concatenate(points), np.concatenate(masses)
    rest = max(0.0, 1.0 - math.fsum(mass))
    y = np.concatenate([x + (v - 1.0), [v - 1.0, 0.0]])
    return y, np.concatenate([rate * mass, [rate * rest, 1.0 - rate]])


def _terms(ratio: Lognormal, thin: Thinning, nodes: _Nodes, half: int, share: float) -> Batch:
    """One term for each v, on one grid."""
    r, none = 1.0 / ratio.scale, np.empty(0)
    rough = [_term(ratio, thin, v, share, none) for v in nodes.value.tolist()]
    sizes = np.array([float(mass @ np.abs(y)) / ratio.rate for y, mass in rough])
    base = base_for(float(nodes.weight @ sizes) / float(nodes.weight.sum()), half)
    exponent = 2.0 * r * (r - panels.quantile(share)) + 3.0 * r**2
    rows, stretch, cut = [], [], []
    for v, (y, mass), size in zip(nodes.value.tolist(), rough, sizes.tolist(), strict=True):
        edges = positions(half, base, float(y.min()), float(y.max()))
        rows.append(atoms_on_grid(*_term(ratio, thin, v, share, edges), half, base))
        # error 4: positions are off by some u of w and of v, times the exponent that they come from
        stretch.append((8.0 * 4096.0 + 12.0 * 64.0 * (2.0 + exponent) * (1.0 + v) / size) * UNIT)
        # error 3: what is left of 1 for X = 0 has a relative error where there is enough of it
        rest = 2.0**-46 * abs(v - 1.0) if mass[-2] < 2.0**-20 * ratio.rate else 0.0
        cut.append(ratio.rate * (2.0 * share + rest))
    return batch(rows, base, weight=nodes.weight, stretch=stretch, cut=cut)


# Nodes of v


@dataclass(frozen=True, kw_only=True)
class _Nodes:
    """Values of v with their chances; the last is v = 1 of a user 1 who is not there, of chance 0 here.

    `weight` is the chance of each with user 1's absence counted, `cut` is error 1.
    """

    value: FloatArray
    chance: FloatArray
    weight: FloatArray
    cut: float


def _nodes(r: float, present: float, budget: float) -> _Nodes:
    """w(z) spread on nodes."""
    low, last = panels.quantile(1e-6 * budget), r - panels.quantile(budget)
    ends = np.append(_PLACES[last - 1.0 > _PLACES], last)
    value = np.append(0.0, np.exp(r * ends - 0.5 * r**2))
    z, weight = panels.nodes(low, last, ends, 2.0 * r)
    mass = weight * panels.normal_density(z)
    cell = np.searchsorted(ends, z)
    left = np.append(-np.inf, ends)[cell]
    above = np.where(
        cell > 0, value[cell] * np.expm1(r * (z - np.where(cell > 0, left, z))), np.exp(r * z - 0.5 * r**2)
    )
    right = above / (value[cell + 1] - value[cell])
    chance: FloatArray = np.bincount(cell, mass * (1.0 - right), len(value)).astype(np.float64)
    chance += np.bincount(cell + 1, mass * right, len(value))
    chance[0] += float(special.ndtr(low))
    chance = chance / math.fsum(chance)
    value, chance = np.append(value, 1.0), np.append(chance, 0.0)
    absent = np.append(np.zeros(len(value) - 1), 1.0)
    return _Nodes(
        value=value, chance=chance, weight=present * chance + (1.0 - present) * absent,
        cut=2.0 * float(special.ndtr(r - last)) * (1.0 + 1e-9) + budget,
    )  # fmt: skip


# How many are kept, and sampled


@dataclass(frozen=True, kw_only=True)
class Case:
    """`terms` terms over K + 1, K = `others`, of this chance.

    User 1 is there with probability `present`; if it is not, there are `extra` more terms.
    """

    terms: int
    others: int
    chance: float
    present: float
    extra: int = 0


def _counts(trials: int, chance: float, spare: float) -> tuple[int, FloatArray]:
    """Bin(trials, chance): the smallest count, and the masses from there on.

    Counts outside have a probability below `spare` (Bernstein's inequality); masses follow from the largest by their
    ratios `(n - k) / (k + 1) * c / (1 - c)`, some roundings a step, and are scaled to sum 1.
    """
    other = 1.0 - chance
    mean, variance = trials * chance, trials * chance * other
    log = math.log(2.0 / spare)
    reach = log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * log * variance)
    first, last = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    mode = min(max(first, math.floor((trials + 1) * chance)), last)
    up: FloatArray = np.arange(mode, last, dtype=np.float64)
    down: FloatArray = np.arange(mode, first, -1, dtype=np.float64)
    rising = np.cumprod((trials - up) / (up + 1.0) * (chance / other))
    falling = np.cumprod(down / ((trials - down + 1.0) * (chance / other)))[::-1]
    masses = np.concatenate([falling, [1.0], rising])
    return first, masses / masses.sum()


def _sampled(kept: int, users: int, sample: int, spare: float) -> tuple[int, FloatArray]:
    """How many of `kept` are among `sample` of `users`: hypergeometric, as `_counts`."""
    mean = kept * sample / users
    log = math.log(2.0 / spare)
    # Sums of draws without replacement concentrate at least as well as with it (Hoeffding 1963, theorem 4)
    variance = min(mean, sample * (1.0 - sample / users), kept)
    reach = log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * log * min(variance, mean))
    first = max(0, kept + sample - users, math.floor(mean - reach))
    last = min(kept, sample, math.ceil(mean + reach))
    mode = min(max(first, (kept + 1) * (sample + 1) // (users + 2)), last)

    def ratios(g: FloatArray) -> FloatArray:
        found: FloatArray = (kept - g) * (sample - g) / ((g + 1.0) * (users - kept - sample + g + 1.0))
        return found

    rising = np.cumprod(ratios(np.arange(mode, last, dtype=np.float64)))
    falling = np.cumprod(1.0 / ratios(np.arange(mode - 1, first - 1, -1, dtype=np.float64)))[::-1]
    masses = np.concatenate([falling, [1.0], rising])
    return first, masses / masses.sum()


def _blocks(first: int, masses: FloatArray, most: int, finer: int = 1) -> list[tuple[int, int, float]]:
    """Smallest and largest count of each block, and its mass: fine within three deviations, about `most` there.

    Blocks start at multiples of their width, which is a power of two, so that those of other laws share sums.
    """
    counts = first + np.arange(len(masses))
    mean = float(masses @ counts)
    deviation = math.sqrt(max(0.0, float(masses @ (counts - mean) ** 2)))
    width = 2 ** max(0, round(math.log2(max(1.0, _BLOCK * mean / finer, 6.0 * deviation / (finer * most)))))
    low, high = (math.floor((mean + x * deviation) / width) * width for x in (-3.0, 3.0))
    starts = [first, *range(low, high + width, width)]
    # In the tails a block may change the count by a quarter.
    while starts[1] > max(first, 1):
        starts.insert(1, min(starts[1] - width, 3 * starts[1] // 4))
    while starts[-1] < first + len(masses):
        starts.append(max(starts[-1] + width, 5 * starts[-1] // 4))
    starts = sorted({min(max(start, first), first + len(masses) - 1) for start in starts})
    ends = [*starts[1:], first + len(masses)]
    return [
        (start, end - 1, float(masses[start - first : end - first].sum()))
        for start, end in zip(starts, ends, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Exchange(Round):
    """A round of `users` of which nothing is known; `sample` of them report (all, if None).

    `ratio` is that of one report, its scale for how far user 1 and the others are from the reference.
    """

    ratio: Lognormal
    users: int
    sample: int | None = None

    is_above_only: ClassVar[bool] = True

    @property
    def weight(self) -> float:  # type: ignore[override]
        """The probability that user 1 is sampled."""
        return 1.0 if self.sample is None else self.sample / self.users

    def limited(self) -> Exchange:
        # The others may be revealed.
        users = min(self.users, USERS_MAX) if self.sample is None else self.users
        return replace(self, ratio=self.ratio.limited(), users=users)

    def alone(self) -> Round:
        return Identical(ratio=self.ratio.at_rate(self.ratio.rate * self.weight), users=1)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        if side != "upper":
            raise ValueError("the exchange theorem bounds from above only")
        return self.law(half, budget).pair(direction)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        """A bound from above is no attack: its tests may not exist at all."""
        return 0.0, 1.0

    def law(self, half: int, budget: float) -> PricedLaw:
        return _law(self, half, budget)

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """Upper bounds on `(L - 1) D_L` at orders L > 1."""
        return self.law(512, _FOR_MOMENTS).log_moments(
            orders, direction, self.ratio.scale, self.ratio.rate * self.weight
        )

    def cases(self, kept: float, spare: float, finer: int = 1) -> tuple[list[Case], float]:
        """How many terms there are, over what, and the relative error of their chances (error 6)."""
        first, masses = (self.users - 1, np.ones(1)) if kept == 1.0 else _counts(self.users - 1, kept, spare)
        error = 16.0 * UNIT * (len(masses) + 8.0)
        found = []
        # With little noise sums of many terms are dear, and for a fixed size there are many of them.
        dear = self.sample is not None and self.ratio.scale < _DEAR and self.users > _SMALL
        most = _BLOCKS // 3 if dear else _BLOCKS
        for least, _, chance in _blocks(first, masses, most if self.sample is None else most // 2, finer):
            if self.sample is None:
                found.append(Case(terms=least, others=least, chance=chance, present=self.ratio.rate))
                continue
            lowest, inner = _sampled(least + 1, self.users, self.sample, spare)
            error = max(error, 16.0 * UNIT * (len(masses) + len(inner) + 8.0))
            for _, largest, part in _blocks(lowest, inner, most):
                present = min(1.0, largest / (least + 1) * (1.0 + 4.0 * UNIT))
                terms, extra = (largest - 1, 1) if largest else (0, 0)
                found.append(Case(terms=terms, others=least, chance=chance * part, present=present, extra=extra))
        return found, error


@functools.lru_cache(maxsize=32)
def _law(crowd: Exchange, half: int, budget: float) -> PricedLaw:
    """The law of the smaller prices: of one report in the clear, of the theorem with groups or at some thinnings."""
    r = 1.0 / crowd.ratio.scale
    best = of_report(_local_grid(r, budget), crowd.ratio.scale, crowd.ratio.rate * crowd.weight)
    plan = None if crowd.sample is not None else groups.plan(crowd.ratio, crowd.users)
    if plan is not None:
        best = smaller(best, _with_local(crowd, _refined(crowd, plan, half, budget)))
    if plan is None or budget <= _FOR_MOMENTS:
        for thin in _thinnings(crowd):
            cases, error = crowd.cases(thin.kept, budget)
            found = _prices(crowd, thin, [cases], error, half * 3 // 8, budget)[0]
            best = smaller(best, _with_local(crowd, found))
    return law_of(best)


def _thinnings(crowd: Exchange) -> list[Thinning]:
    """Those that are worth their time."""
    scale = crowd.ratio.scale
    if scale < _SCALE_MIN:
        return []
    places = next(some for least, some in _THINNINGS if scale >= least)
    if crowd.users <= _SMALL:
        places = (0.0, 0.75, *places, 2.25)
    if crowd.sample is not None and (scale >= 1.0 or crowd.sample <= 64):
        # To keep everybody leaves nothing to mix where sizes are fixed, and is best for small samples.
        places = (-math.inf, *places)
    found = [Thinning.of(1.0 / scale, at) for at in places]
    return [thin for thin in found if (crowd.users - 1) * thin.kept >= (_FEW if crowd.users > _SMALL else 0.1)]


def _with_local(crowd: Exchange, prices: Prices) -> Prices:
    """Prices, or those of one report in the clear where they are smaller."""
    return smaller(prices, of_report(prices.gap, crowd.ratio.scale, crowd.ratio.rate * crowd.weight))


def _refined(crowd: Exchange, plan: groups.Plan, half: int, budget: float) -> Prices:
    """Prices of f with groups of users, user 1 among those aside."""
    thin = Thinning.of(1.0 / crowd.ratio.scale, plan.at)
    cases, error = crowd.cases(thin.kept, budget, finer=3)
    kept = [(case.others, case.chance) for case in cases]
    sizes = plan.asides([count for count, _ in kept])
    one = [[Case(terms=size, others=size, chance=1.0, present=crowd.ratio.rate)] for size in sizes]
    aside = _prices(crowd, thin, one, 0.0, half // 4, budget)
    laws = {size: law_of(_with_local(crowd, found)) for size, found in zip(sizes, aside, strict=True)}
    return groups.prices(crowd.ratio, thin, plan, laws, kept, error, half * 3 // 16, budget)


def _local_grid(r: float, budget: float) -> FloatArray:
    """Gaps at which one report in the clear is looked at: finely out to where `budget` is left of its prices."""
    near, far = (0.5 * r**2 - r * panels.quantile(least) for least in (budget, 1e-280))
    loss = np.concatenate([
        np.linspace(0.0, near, math.ceil(64.0 * near / r))[:-1],
        np.linspace(near, far, math.ceil(16.0 * (far - near) / r)),
    ])  # fmt: skip
    found: FloatArray = np.expm1(np.concatenate([-loss[:0:-1], loss]))
    return np.unique(found[found > -1.0])  # next to -1 several losses are one gap


def _prices(
    crowd: Exchange, thin: Thinning, mixtures: Sequence[Sequence[Case]], error: float, half: int, budget: float
) -> list[Prices]:
    """Prices of f at one thinning, for each mixture of cases; `error` is that of their chances."""
    every = [case for cases in mixtures for case in cases]
    present = sum(case.chance * case.present for case in every) / len(mixtures)
    ratio = crowd.ratio if crowd.sample is None else replace(crowd.ratio, rate=1.0)
    nodes = _nodes(1.0 / ratio.scale, present, budget)
    one = _terms(ratio, thin, nodes, half, budget)
    totals = sums(one, [case.terms for case in every], budget)
    return [_mixed(nodes, one, totals, cases, error, half, budget) for cases in mixtures]


def _mixed(
    nodes: _Nodes,
    one: Batch,
    totals: Mapping[int, Batch],
    cases: Sequence[Case],
    error: float,
    half: int,
    budget: float,
) -> Prices:
    mixture = Mixture(cut=nodes.cut + 2.0 * budget)
    for case in cases:
        laws = totals[case.terms].laws() if case.terms else [NOTHING] * len(nodes.value)
        for place, v in enumerate(nodes.value.tolist()):
            mixture.add(case.chance * case.present * float(nodes.chance[place]), laws[place], v - 1.0, case.others + 1)
        if case.present < 1.0:
            law = _absent(totals.get(case.terms), one, case.extra, budget)
            mixture.add(case.chance * (1.0 - case.present), law, 0.0, case.others + 1)
    return mixture.prices(error, half)


def _absent(total: Batch | None, one: Batch, extra: int, share: float) -> Law:
    """The terms where user 1 is not there, v = 1: one more where another is in its place."""
    alone = None if total is None else total.only(len(total.mass) - 1)
    if extra:
        more = one.only(len(one.mass) - 1)
        alone = more if alone is None else added(alone, more, share)
    return NOTHING if alone is None else alone.laws()[0]

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
not. *Fixed size*, m of n: g, the number of user 1 and kept users among the m, is revealed in the place of K, and
g + q (n - m) takes the place of K + 1; user 1 is one of the g with probability g / (g + q (n - m)), then there are
g - 1 terms, otherwise v = 1 and g terms. Check-in is a mixture of fixed sizes, and is taken as that for few users.
Proofs are in `docs/explanation/guarantee.md`.

Where users are many this is sharpened: `anycrowd.groups`.

S is also below one report in the clear (with its coin), `anycrowd.prices.prices_of_report`, and for a fixed size below
that report with another user's in its place, `anycrowd.prices.prices_of_sampled_report`. What is composed is the law of
the smaller prices of all of them, and of several thinnings where that pays.

*Computing it.* For a given crowd f is affine in v (before X takes the place of its users' terms), so v may be spread,
mean kept, on a dozen nodes; the sums for all nodes are made together (`sums`), once for each block of K. A
block counts as its smallest K: the other kept users, chosen from the set of those kept alone, are revealed. For a fixed
size a block counts as its largest g over its smallest g + q (n - m): from g to g + 1 the sum of a given crowd has one
more independent term of mean 0, or w(z) in the place of v = 1, and what has mean 0 grows with its factor.

*Errors.* All are put into prices: calls above 1 and puts below.

1. v beyond the last node: given v a call costs at most `v + E(w - v)+`, a put at most 1 + v, so 2 Phi(r - z_max) is
   charged to both.
2. Improbable K (or g): at most their probability, to both.
3. Terms from reports beyond the ends of the grid count as those at the ends: their first moments, `Phi(r - high)` and
   `v Phi(low)`, are charged, and so is what `sums` cuts (its 1), twice for the mean that they move; also the
   first moment of what is left of 1 for X = 0, off by 2^-46 at most, where it is too little to be known well.
4. Round-off of masses and sums: the stretch of `sums` (its 2), to which one term adds 8 times the 2^12 u of
   quadrature and densities, and, by the lemma on means of `mean_law` (its 4), 12 times the error of positions over
   the mean size of a term.
5. Means of the laws given v and K are known to a few N u of their size, N cells: a relative error of prices.
6. Weights of K or g: relative, 16 u for each of them.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.anycrowd import groups, iterated
from shoal.bounds.anycrowd.mixture import Mixture
from shoal.bounds.anycrowd.prices import (
    PricedLaw,
    Prices,
    law_from_prices,
    prices_of_report,
    prices_of_sampled_report,
    smaller_prices,
)
from shoal.bounds.anycrowd.thinning import Thinning, excess_ratio, root
from shoal.bounds.grid import base_for, lattice_points
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import LAW_USERS_MAX, UNIT, Direction, FloatArray, Side
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.bounds.sums import NO_TERMS, Batch, Law, atoms_on_grid, batch, batch_sum, sums

_NODES_USUAL: FloatArray = np.array([-5.5, -3.5, -2.0, -1.0, -0.2, 0.6, 1.4, 2.4, 3.8, 6.0])
"""Where z has its nodes, next to -infinity and the end of the grid."""

_NODES_FEW_USERS: FloatArray = np.array(
    [-6.4, -5.4, -4.6, -3.8, -3.0, -2.0, -1.0, -0.2, 0.6, 1.4, 2.2, 3.0, 3.8, 4.6, 5.4, 6.4]
)
"""Nodes of z for few users, among whom a rare v, large or small, is a large part of f."""

_NODES_HARDLY_HIDDEN: FloatArray = np.array([-5.5, -2.0, 0.6, 2.4, 3.8, 5.0, 5.4, 5.8, 6.2, 6.6, 7.0, 7.4, 7.8, 8.2])
"""Nodes of z where hardly any user is hidden, so that f is nearly v: finely where v is large and rare."""

_NODE_FACTOR_MAX = 4.0
"""The largest factor on the number of nodes, for a handful of users, where v is nearly all of f."""

_THINNINGS_BY_SIGMA = ((2.5, (1.0,)), (1.75, (1.5, 3.0)), (1.25, (1.5, 2.5, 3.5)), (0.5, (1.5, 2.5, 4.0)), (0.0, ()))
"""Thinnings from each sigma on: with much noise one is as good as any, with little the best one depends on delta."""

_THINNINGS_FEW_USERS = (
    (3.0, (0.0, 1.0, 2.25)),
    (1.75, (0.0, 1.0, 2.25, 3.1, 4.0)),
    (0.5, (0.0, 1.0, 2.0, 3.25)),
    (0.0, ()),
)
"""Thinnings from each sigma on for few users; with less noise hardly any user is hidden."""

_THINNINGS_BY_SIZE = (1.0, 2.25, 3.25, 4.5)
"""Thinnings where check-in is taken as a mixture of fixed sizes."""

_SCALE_EDGES, _USER_EDGES = (0.5, 0.75, 1.0, 1.25, 1.75, 2.5, 3.0), ((8, 16), (300, 376))
"""Where these rules, and those of `anycrowd.groups`, change; some edges are of both noise and senders (`_neighbours`).

An edge of users comes with the last number for which the rule on its other side may still be the better one."""

_SENDER_EDGES = ((16.0, 1.15), (80.0, 1.08), (400.0, 1.03), (800.0, 1.03))
"""Edges in the number of senders, each with the factor up to which the rule on its other side may be better."""

_SIGMA_REACH, _USERS_REACH = 1.015, 1.03
"""This factor for edges in sigma, and for edges in users that depend on sigma (found by trial)."""

_MIXED_USERS, _MIXED_SENDERS = 8, 16.0
"""Numbers of users and of senders up to which check-in is taken as a mixture of fixed sizes, which is expensive."""

_THINNING_FEW_SENDERS = 4.5
"""A thinning for few senders, among whom one large term decides: it leaves next to none."""

_HEAVY_TERMS_SIGMA, _HARDLY_HIDDEN = 0.75, 2.02
"""Below this sigma one large term decides among many users, too; then a thinning leaves this many on average."""

_SMALL_CROWD = 300
"""Crowds up to this size are too small to lose many, and cheap to look at with several thinnings."""

_HIDDEN_MIN = 2.0
"""Thinnings that keep fewer users of a larger crowd than this, on average, are not worth their time."""

_MOMENT_BUDGET = 1e-60
"""Mass that laws for Rényi divergences cut: large orders look far into the tails."""

_BLOCK_WIDTH = 6e-3
"""The width of a block of K, as a part of K: about four times what it costs of epsilon."""

_BLOCK_WIDTH_MAX = 0.03
"""The largest width of a block within three deviations, as a part of K."""

_STRONG_THINNING_SIGMA = 1.25
"""Below this sigma a term spreads over so many orders of magnitude that one large one decides."""

_GROUPS_ONLY_SIGMA = 2.9
"""From this sigma on, for 100 senders, no single term is large enough for the theorem without groups to be the better
one; the more they are the smaller it is, like their sixth root (found by trial)."""

BARE = 0.18
"""Below this sigma, for the whole move, nothing but one report in the clear is known, and prices leave the range of
doubles."""

_USUAL_HALF = 512
"""Number of cells for which nodes and blocks are laid out; with more cells there are more of them."""

_SIZES_SIGMA_MAX = 2.5
"""From this sigma on a mixture of fixed sizes is no better than one binomial number of senders."""

_BLOCKS = 12
"""Blocks within three deviations of K at most."""


# One term X(v) + v - 1


@dataclass(frozen=True, kw_only=True)
class _TermPiece:
    """Reports between two points with one formula for X, of density `weight` times normal about `place`."""

    low: float
    high: float
    place: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class _CentralPiece(_TermPiece):
    """`X = (1 - tau)(w - v)`."""

    def value(self, y: FloatArray, r: float, v: float) -> FloatArray:
        return excess_ratio(y, r, v) / self.weight

    def reports(self, x: FloatArray, r: float, v: float) -> FloatArray:
        return (np.log(v + x * self.weight) + 0.5 * r**2) / r


@dataclass(frozen=True, kw_only=True)
class _OppositePiece(_TermPiece):
    """`X = q e^(r y + r^2/2) (w - v)`: a user opposite to x'."""

    def value(self, y: FloatArray, r: float, v: float) -> FloatArray:
        return np.exp(r * y + 0.5 * r**2) * excess_ratio(y, r, v) / self.weight

    def reports(self, x: FloatArray, r: float, v: float) -> FloatArray:
        b = v * math.exp(0.5 * r**2)
        return np.log(0.5 * (b + np.sqrt(b**2 + 4.0 * x * self.weight))) / r


@dataclass(frozen=True, kw_only=True)
class _SamePlacePiece(_TermPiece):
    """`X = q (1 - v / w)`: a user at x'."""

    def value(self, y: FloatArray, r: float, v: float) -> FloatArray:
        return -np.expm1(-r * (y - root(r, v))) / self.weight

    def reports(self, x: FloatArray, r: float, v: float) -> FloatArray:
        return (np.log(v / (1.0 - x * self.weight)) + 0.5 * r**2) / r


def _term_pieces(
    r: float, thin: Thinning, v: float, low: float, high: float
) -> Iterator[_CentralPiece | _OppositePiece | _SamePlacePiece]:
    t, z = thin.t, min(max(root(r, v), low), high)
    inside, outside = 1.0 / (1.0 - thin.tau), 1.0 / thin.q
    yield _SamePlacePiece(low=low, high=min(z, -t), place=r, weight=outside)
    yield _CentralPiece(low=max(low, -t), high=z, place=0.0, weight=inside)
    yield _CentralPiece(low=z, high=min(high, t), place=0.0, weight=inside)
    yield _OppositePiece(low=max(z, t), high=high, place=-r, weight=outside)


def _exchange_term(
    ratio: Lognormal, thin: Thinning, v: float, share: float, edges: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """X(v) + v - 1 of one user as points and masses; no panel of reports crosses an edge."""
    r, rate = 1.0 / ratio.scale, ratio.rate
    # Beyond these reports the first moment of X is `share` on either side: v Phi(low) and Phi(r - high).
    low, high = quadrature.quantile(share / max(v, 1.0)), r - quadrature.quantile(share)
    pieces = [piece for piece in _term_pieces(r, thin, v, low, high) if piece.high > piece.low]
    points, masses = [], []
    # X has a density on each piece; a panel that crosses no lattice point of X is shared by two points only, exactly.
    for piece in pieces:
        with np.errstate(divide="ignore", invalid="ignore"):
            kinks = piece.reports(edges - (v - 1.0), r, v)
        y, weight = quadrature.nodes(piece.low, piece.high, kinks[np.isfinite(kinks)], 2.0 * r)
        points.append(piece.value(y, r, v))
        masses.append(weight * quadrature.normal_density(y - piece.place) * piece.weight)
    for piece, end, sign in ((pieces[0], low, 1.0), (pieces[-1], high, -1.0)):  # error 3
        points.append(piece.value(np.array([end]), r, v))
        masses.append(np.array([special.ndtr(sign * (end - piece.place)) * piece.weight]))
    x, mass = np.concatenate(points), np.concatenate(masses)
    # What is left of mass is X = 0: calls of one user and puts of another leave a gap between them.
    rest = max(0.0, 1.0 - math.fsum(mass))
    y = np.concatenate([x + (v - 1.0), [v - 1.0, 0.0]])
    return y, np.concatenate([rate * mass, [rate * rest, 1.0 - rate]])


def _exchange_batch(ratio: Lognormal, thin: Thinning, nodes: _RatioNodes, half: int, share: float) -> Batch:
    """The law of one term for each v."""
    r, none = 1.0 / ratio.scale, np.empty(0)
    # Twice: the first pass says how large a term is, which fixes the grid that the second one is made for.
    rough = [_exchange_term(ratio, thin, v, share, none) for v in nodes.value.tolist()]
    sizes = np.array([float(mass @ np.abs(y)) / ratio.rate for y, mass in rough])
    base = base_for(float(nodes.weight @ sizes) / float(nodes.weight.sum()), half)
    exponent = 2.0 * r * (r - quadrature.quantile(share)) + 3.0 * r**2
    rows, stretch, cut = [], [], []
    for v, (y, mass), size in zip(nodes.value.tolist(), rough, sizes.tolist(), strict=True):
        edges = lattice_points(half, base, float(y.min()), float(y.max()))
        rows.append(atoms_on_grid(*_exchange_term(ratio, thin, v, share, edges), half, base))
        # error 4: positions are off by some u of w and of v, times the exponent that they come from
        stretch.append((8.0 * 4096.0 + 12.0 * 64.0 * (2.0 + exponent) * (1.0 + v) / size) * UNIT)
        # error 3: what is left of 1 for X = 0 has a relative error where there is enough of it
        rest = 2.0**-46 * abs(v - 1.0) if mass[-2] < 2.0**-20 * ratio.rate else 0.0
        cut.append(ratio.rate * (2.0 * share + rest))
    return batch(rows, base, weight=nodes.weight, stretch=stretch, cut=cut)


# Nodes of v


@dataclass(frozen=True, kw_only=True)
class _RatioNodes:
    """Values of v with their chances; the last is v = 1 of a user 1 who is not there, of chance 0 here.

    `weight` is the chance of each with user 1's absence counted, `cut` is error 1.
    """

    value: FloatArray
    chance: FloatArray
    weight: FloatArray
    cut: float


def _ratio_nodes(
    r: float, present: float, budget: float, fine: float = 1.0, usual: FloatArray = _NODES_USUAL
) -> _RatioNodes:
    """w(z) spread on nodes, `fine` times as many as is usual."""
    # Low z may go far: below them v is next to 0, where it costs nothing to go on.
    low, last = quadrature.quantile(1e-6 * budget), r - quadrature.quantile(budget)
    places = np.interp(np.arange(0.0, len(usual) - 1 + 0.5 / fine, 1.0 / fine), np.arange(len(usual)), usual)
    ends = np.append(places[last - 1.0 > places], last)
    value = np.append(0.0, np.exp(r * ends - 0.5 * r**2))
    z, weight = quadrature.nodes(low, last, ends, 2.0 * r)
    mass = weight * quadrature.normal_density(z)
    cell = np.searchsorted(ends, z)
    left = np.append(-np.inf, ends)[cell]
    # w(z) less the node on its left, without cancellation where both are next to 1.
    above = np.where(
        cell > 0, value[cell] * np.expm1(r * (z - np.where(cell > 0, left, z))), np.exp(r * z - 0.5 * r**2)
    )
    right = above / (value[cell + 1] - value[cell])
    chance: FloatArray = np.bincount(cell, mass * (1.0 - right), len(value)).astype(np.float64)
    chance += np.bincount(cell + 1, mass * right, len(value))
    # Still lower z count as v = 0: their v is at most 1e-6 of the budget in mean.
    chance[0] += float(special.ndtr(low))
    chance = chance / math.fsum(chance)
    value, chance = np.append(value, 1.0), np.append(chance, 0.0)
    absent = np.append(np.zeros(len(value) - 1), 1.0)
    return _RatioNodes(
        value=value,
        chance=chance,
        weight=present * chance + (1.0 - present) * absent,
        # error 1; the budget once more covers z below `low`
        cut=2.0 * float(special.ndtr(r - last)) * (1.0 + 1e-9) + budget,
    )


# How many are kept, and sampled


@dataclass(frozen=True, kw_only=True)
class Case:
    """A number of hidden users with its chance: `terms` terms and user 1's own, divided by `denominator`.

    The denominator is K + 1, or g + q (n - m) for a fixed size. User 1 is there with probability `present`; if it is
    not, there are `extra` more terms.
    """

    terms: int
    denominator: float
    chance: float
    present: float
    extra: int = 0


def _binomial(trials: int, chance: float, spare: float) -> tuple[int, FloatArray]:
    """Bin(trials, chance): the smallest count, and the masses from there on.

    Counts outside have a probability below `spare` (Bernstein's inequality); masses follow from the largest by their
    ratios `(n - k) / (k + 1) * c / (1 - c)`, some roundings a step, and are scaled to sum 1.
    """
    complement = 1.0 - chance
    mean, variance = trials * chance, trials * chance * complement
    log = math.log(2.0 / spare)
    # error 2: what is outside has less than `spare`
    reach = log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * log * variance)
    first, last = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    # From the most probable count outwards all ratios are at most 1: nothing overflows, small masses become 0.
    mode = min(max(first, math.floor((trials + 1) * chance)), last)
    up: FloatArray = np.arange(mode, last, dtype=np.float64)
    down: FloatArray = np.arange(mode, first, -1, dtype=np.float64)
    rising = np.cumprod((trials - up) / (up + 1.0) * (chance / complement))
    falling = np.cumprod(down / ((trials - down + 1.0) * (chance / complement)))[::-1]
    masses = np.concatenate([falling, [1.0], rising])
    return first, masses / masses.sum()


def _hypergeometric(hidden: int, users: int, sample: int, spare: float) -> tuple[int, FloatArray]:
    """The number of hidden users among `sample` of `users`, as in `_binomial`: hypergeometric."""
    mean = hidden * sample / users
    log = math.log(2.0 / spare)
    # Sums of draws without replacement concentrate at least as well as with it (Hoeffding 1963, theorem 4)
    variance = min(mean, sample * (1.0 - sample / users), hidden)
    reach = log / 3.0 + math.sqrt(log**2 / 9.0 + 2.0 * log * min(variance, mean))
    first = max(0, hidden + sample - users, math.floor(mean - reach))
    last = min(hidden, sample, math.ceil(mean + reach))
    mode = min(max(first, (hidden + 1) * (sample + 1) // (users + 2)), last)

    def ratios(g: FloatArray) -> FloatArray:
        return (hidden - g) * (sample - g) / ((g + 1.0) * (users - hidden - sample + g + 1.0))

    rising = np.cumprod(ratios(np.arange(mode, last, dtype=np.float64)))
    falling = np.cumprod(1.0 / ratios(np.arange(mode - 1, first - 1, -1, dtype=np.float64)))[::-1]
    masses = np.concatenate([falling, [1.0], rising])
    return first, masses / masses.sum()


def _hidden_in_sample(users: int, sample: int, q: float, spare: float) -> tuple[int, FloatArray]:
    """The number of drawn users that are user 1 or hidden.

    It is Bin(m, q) if user 1 is not drawn, else 1 + Bin(m - 1, q).
    """
    # 1 + Bin(m - 1, q) is at most 1 + Bin(m, q), and a step of 1 is within the reach of a smaller `spare`.
    first, masses = (sample, np.ones(1)) if q == 1.0 else _binomial(sample, q, 1e-3 * spare)
    masses = masses * (first + np.arange(len(masses)) + q * (users - sample))
    if masses[0] == 0.0:  # everybody is drawn, and so is user 1
        first, masses = first + 1, masses[1:]
    return first, masses / masses.sum()


def _blocks(first: int, masses: FloatArray, blocks_max: int, finer: float = 1.0) -> list[tuple[int, int, float]]:
    """Smallest and largest count of each block, and its mass: fine within three deviations, about `most` there.

    Blocks start at multiples of their width, which is a power of two, so that those of other laws share sums.
    """
    # Nothing to mix: the count is known.
    if len(masses) == 1:
        return [(first, first, float(masses[0]))]
    counts = first + np.arange(len(masses))
    mean = float(masses @ counts)
    deviation = math.sqrt(max(0.0, float(masses @ (counts - mean) ** 2)))
    wide = max(_BLOCK_WIDTH * mean, min(6.0 * deviation / blocks_max, _BLOCK_WIDTH_MAX * mean)) / finer
    width = 2 ** max(0, round(math.log2(max(1.0, wide))))
    low, high = (math.floor((mean + x * deviation) / width) * width for x in (-3.0, 3.0))
    starts, end = list(range(low, high + width, width)), first + len(masses)
    # Each step outwards may be twice the last one: tails weigh little, and a sum of 2 w terms is there already.
    step = width
    while starts[0] > first:
        step = _tail_step(starts[0], step, width)
        starts.insert(0, starts[0] - step)
    step = width
    while starts[-1] < end:
        step = _tail_step(starts[-1], step, width)
        starts.append(starts[-1] + step)
    # The first block may start below all counts (a smaller one is above), but not at 0 where that cannot be.
    starts = sorted({max(start, min(first, 1)) for start in starts if start < end})
    starts = starts[max(0, bisect.bisect_right(starts, first) - 1) :]
    bounds = [max(start - first, 0) for start in (*starts, end)]
    return [
        (start, first + after - 1, float(masses[before:after].sum()))
        for start, (before, after) in zip(starts, itertools.pairwise(bounds), strict=True)
    ]


def _tail_step(start: int, step: int, width: int) -> int:
    """In the tails blocks get wider, up to a quarter of the count: powers of two, so that sums are shared."""
    return 2 * step if 8 * step <= start else max(width, step // 2) if 4 * step > start else step


@dataclass(frozen=True, kw_only=True)
class Exchange(Round):
    """A round of `users` of which nothing is known; `sample` of them report (all, if None).

    `ratio` is that of one report, its scale for how far user 1 and the others are from the reference.
    """

    ratio: Lognormal
    users: int
    sample: int | None = None

    is_upper_only: ClassVar[bool] = True

    @property
    def weight(self) -> float:
        """The probability that user 1 is sampled."""
        return 1.0 if self.sample is None else self.sample / self.users

    @property
    def is_by_size(self) -> bool:
        """Whether the number of senders is fixed, or they are so few that check-in is a mixture of fixed sizes."""
        if self.sample is not None or self.ratio.rate == 1.0:
            return self.sample is not None
        # With much noise no single term decides, and what a block of sizes costs is more than they gain.
        return self.users <= _MIXED_USERS or (
            self.users * self.ratio.rate < _MIXED_SENDERS and self.ratio.scale < _SIZES_SIGMA_MAX
        )

    def limited(self) -> Exchange:
        # Samples keep their users: the probability to be drawn depends on them.
        # The others may be revealed.
        users = min(self.users, LAW_USERS_MAX) if self.sample is None else self.users
        return replace(self, ratio=self.ratio.limited(), users=users)

    def own_report(self) -> Round:
        return Identical(ratio=self.ratio.at_rate(self.ratio.rate * self.weight), users=1)

    @property
    def is_bare(self) -> bool:
        return self.ratio.scale < BARE

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        if side != "upper":
            raise ValueError("the exchange theorem bounds from above only")
        if self.is_bare:
            return self.own_report().pair(half, budget, side, direction)
        return self.law(half, budget).pair(direction)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        """A bound from above is no attack: its tests may not exist at all."""
        return 0.0, 1.0

    def law(self, half: int, budget: float) -> PricedLaw:
        return _law(self, half, budget)

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        if self.is_bare:
            return self.own_report().log_moments(orders, direction, quick=quick)
        return self.law(512, _MOMENT_BUDGET).log_moments(
            orders, direction, self.ratio.scale, self.ratio.rate * self.weight
        )

    def division(self) -> groups.Division | None:
        """How the others are grouped, or None where groups do not pay."""
        return groups.grouping(self.ratio, self.users, self.sample)

    def cases(self, q: float, spare: float, finer: float = 1.0) -> tuple[list[Case], float]:
        """The numbers of terms with their chances, and the relative error of these (error 6).

        Args:
            q: Probability that a user is hidden.
            spare: Probability of numbers that may be left out.
            finer: Factor on the number of blocks.

        Returns:
            The cases and the error.
        """
        if not self.is_by_size:
            first, masses = (self.users - 1, np.ones(1)) if q == 1.0 else _binomial(self.users - 1, q, spare)
            cases = [
                Case(terms=smallest_count, denominator=smallest_count + 1.0, chance=chance, present=self.ratio.rate)
                for smallest_count, _, chance in _blocks(first, masses, _BLOCKS, finer)
            ]
            return cases, 16.0 * UNIT * (len(masses) + 8.0)
        cases, longest = [], 0
        smallest, sizes = (self.sample, np.ones(1)) if self.sample else _binomial(self.users, self.ratio.rate, spare)
        # A block of sizes counts as its largest: reports may be dropped.
        for _, size, likely in _blocks(smallest, sizes, _BLOCKS, finer):
            # g is all that is revealed of a fixed size; who of the others was kept is averaged out.
            first, masses = _hidden_in_sample(self.users, size, q, spare)
            rest, longest = q * (self.users - size), max(longest, len(masses))
            cases += [
                Case(
                    terms=max(largest_count - 1, 0),
                    denominator=smallest_count + rest,
                    chance=likely * chance,
                    extra=min(largest_count, 1),
                    present=min(1.0, largest_count / (largest_count + rest) * (1.0 + 4.0 * UNIT))
                    if largest_count
                    else 0.0,
                )
                for smallest_count, largest_count, chance in _blocks(first, masses, _BLOCKS, finer)
                if likely * chance > 0.0
            ]
        # All that is dropped together has less than `spare`.
        cases = [case for case in cases if case.chance * len(cases) > spare]  # error 2
        return cases, 16.0 * UNIT * (len(sizes) + longest + 8.0)


@functools.lru_cache(maxsize=32)
def _law(crowd: Exchange, half: int, budget: float) -> PricedLaw:
    """The law of the smaller prices, of this round and of those next to it that are no better."""
    # A bound for a worse round is one for this round, so the smaller of both is.
    bounds = [_best_prices(round_, half, budget) for round_ in (crowd, *_neighbours(crowd))]
    if crowd.division() is not None:
        bounds += [
            price
            for round_ in _lower_noise_neighbours(crowd)
            for price in _ungrouped_prices(round_, _thinnings_with_groups(round_), half, budget)
        ]
    best = functools.reduce(smaller_prices, bounds)
    if crowd.sample is None:
        best = iterated.sharpened(best, crowd.ratio, crowd.users, half, budget)
    return law_from_prices(best)


def _neighbours(crowd: Exchange) -> list[Exchange]:
    """Rounds that are no better, across an edge of the rules for thinnings and groups: no bound gets worse there.

    Less noise is worse (noise can be added afterwards), and so are fewer users (the others may be revealed), a higher
    rate and a larger sample (reports may be dropped).
    """
    ratio, users = crowd.ratio, crowd.users
    senders = users * ratio.rate * crowd.weight
    rounds = [
        replace(crowd, ratio=replace(ratio, scale=edge * (1.0 - 1e-9)))
        for edge in (*_SCALE_EDGES, groups.unthinned_from_sigma(groups.crowd_size(users, crowd.sample)))
        if edge <= ratio.scale < _SIGMA_REACH * edge
    ]
    enough = groups.unthinned_from(ratio.scale)
    if crowd.sample is not None:
        if users / _SENDER_EDGES[0][1] <= crowd.sample < users:
            rounds.append(replace(crowd, sample=users))
        return rounds + [
            replace(crowd, sample=math.ceil(edge))
            for edge, reach in (*_SENDER_EDGES, (enough, _USERS_REACH))
            if edge / reach <= crowd.sample < edge <= users
        ]
    rounds += [replace(crowd, users=edge) for edge, last in _USER_EDGES if edge < users <= last]
    if enough <= users < _USERS_REACH * enough:
        rounds.append(replace(crowd, users=max(1, math.ceil(enough) - 1)))
    for edge, reach in _SENDER_EDGES:
        if edge <= senders < reach * edge:
            rounds.append(replace(crowd, users=max(1, math.ceil(edge / ratio.rate) - 1)))
        if edge / reach <= senders < edge <= users:
            rounds.append(replace(crowd, ratio=replace(ratio, rate=min(1.0, edge / users * (1.0 + 1e-9)))))
    return list(dict.fromkeys(rounds))


def _lower_noise_neighbours(crowd: Exchange) -> list[Exchange]:
    """Rounds just below the noise from which only the bound with groups is computed."""
    ratio, users = crowd.ratio, crowd.users
    senders = users * ratio.rate
    noise, senders_max = (
        _GROUPS_ONLY_SIGMA * (100.0 / senders) ** (1.0 / 6.0),
        100.0 * (_GROUPS_ONLY_SIGMA / ratio.scale) ** 6,
    )
    rounds = []
    if crowd.sample is None and noise <= ratio.scale < _SIGMA_REACH * noise:
        rounds.append(replace(crowd, ratio=replace(ratio, scale=noise * (1.0 - 1e-9))))
    if crowd.sample is None and senders_max <= senders < _USERS_REACH * senders_max:
        rounds.append(replace(crowd, users=max(1, math.ceil(senders_max / ratio.rate) - 1)))
    return rounds


@functools.lru_cache(maxsize=32)
def _best_prices(crowd: Exchange, half: int, budget: float) -> Prices:
    """The smaller prices of one report in the clear, and of the theorem with groups or at some thinnings."""
    scale = crowd.ratio.scale
    # The cap first: whatever else fails to help, no answer is above the report and its coin in the clear.
    best = prices_of_report(_local_grid(1.0 / scale, budget), scale, crowd.ratio.rate * crowd.weight)
    if crowd.sample is not None:
        best = smaller_prices(
            best, prices_of_sampled_report(best.gap, scale, crowd.weight, scale_after=0.5 * scale, scale_before=scale)
        )
    plan = crowd.division()
    if plan is not None:
        best = smaller_prices(best, _with_local(crowd, _prices_with_groups(crowd, plan, half, budget)))
    without_groups = plan is None or budget <= _MOMENT_BUDGET
    return functools.reduce(
        smaller_prices,
        _ungrouped_prices(crowd, _thinnings(crowd) if without_groups else _thinnings_with_groups(crowd), half, budget),
        best,
    )


def _ungrouped_prices(crowd: Exchange, thinnings: Sequence[Thinning], half: int, budget: float) -> Iterator[Prices]:
    """Prices of the theorem without groups, at each thinning."""
    # A mixture of sizes has ten times as many cases, each a sum of few terms, which needs fewer cells.
    cells = half // 8 if crowd.is_by_size and crowd.sample is None else half // 4
    for thin in thinnings:
        cases, error = crowd.cases(thin.q, budget, finer=_fine(half))
        yield _with_local(crowd, _exchange_prices(crowd, thin, [cases], error, cells, budget, _fine(half))[0])


def _fine(half: int) -> float:
    """The factor on the usual number of nodes and blocks."""
    return 0.5 if half < _USUAL_HALF else float(round(half / _USUAL_HALF))


def _thinnings(crowd: Exchange) -> list[Thinning]:
    """Thinnings that are worth their time where there are no groups."""
    scale, is_small = crowd.ratio.scale, crowd.users <= _SMALL_CROWD
    if crowd.is_by_size and crowd.sample is None and crowd.users > _MIXED_USERS:
        return [Thinning.of(1.0 / scale, at) for at in _THINNINGS_BY_SIZE]
    # Which t is best depends on delta, which is not known here: each is the best somewhere, and the smaller prices win.
    places = next(
        places_
        for sigma_min, places_ in (_THINNINGS_FEW_USERS if is_small else _THINNINGS_BY_SIGMA)
        if scale >= sigma_min
    )
    if crowd.is_by_size:
        # To keep everybody leaves nothing to mix where sizes are fixed; it is best but for large samples.
        places = (-math.inf, *places)
    if crowd.users * crowd.weight * crowd.ratio.rate < _MIXED_SENDERS:
        places = (*places, _THINNING_FEW_SENDERS)
    if places and not is_small and scale < _HEAVY_TERMS_SIGMA:
        # c = exp(-r t - r^2/2) is nearly the part that is kept.
        places = (*places, scale * math.log((crowd.users - 1) / _HARDLY_HIDDEN) - 0.5 / scale)
    thinnings = [Thinning.of(1.0 / scale, at) for at in places]
    return [thin for thin in thinnings if (crowd.users - 1) * thin.q >= (0.1 if is_small else _HIDDEN_MIN)]


def _thinnings_with_groups(crowd: Exchange) -> list[Thinning]:
    """Thinnings of the theorem without groups that may still be better than groups: where one large term decides."""
    scale = crowd.ratio.scale
    if crowd.sample is not None:
        places = [-math.inf, 0.75] if crowd.users <= _SMALL_CROWD else [-math.inf]
    elif scale * (crowd.users * crowd.ratio.rate / 100.0) ** (1.0 / 6.0) < _GROUPS_ONLY_SIGMA:
        places = (
            [1.0] if scale >= _THINNINGS_BY_SIGMA[1][0] else [1.5, 2.5] if scale >= _STRONG_THINNING_SIGMA else [3.0]
        )
    else:
        return []
    return [Thinning.of(1.0 / scale, at) for at in places]


def _with_local(crowd: Exchange, prices: Prices, weight: float | None = None) -> Prices:
    """Prices, or those of one report in the clear where they are smaller."""
    present = crowd.ratio.rate * (crowd.weight if weight is None else weight)
    return smaller_prices(prices, prices_of_report(prices.gap, crowd.ratio.scale, present))


def _prices_with_groups(crowd: Exchange, plan: groups.Division, half: int, budget: float) -> Prices:
    """Prices of f with groups of users, user 1 among those aside."""
    thin = Thinning.of(1.0 / crowd.ratio.scale, plan.t)
    split = _split_senders if crowd.sample is None else _split_sample
    cases, small, lost, error = split(crowd, plan, thin, budget, _fine(half))
    # S' of user 1 and those aside is bounded by the plain theorem, and by its own report in the clear.
    bounds = _exchange_prices(crowd, thin, [[case] for case in small.values()], 0.0, half // 4, budget, _fine(half))
    laws = {
        key: law_from_prices(_with_local(crowd, prices, case.present if plan.drawn else 1.0))
        for (key, case), prices in zip(small.items(), bounds, strict=True)
    }
    return groups.grouped_prices(crowd.ratio, thin, plan, laws, cases, lost, error, half * 3 // 16, budget)


_Split = tuple[list[groups.Grouped], dict[int, Case], float, float]
"""Cases, the small crowds of user 1 and those aside by their key, what is left of probability, error of chances."""


def _split_senders(crowd: Exchange, plan: groups.Division, thin: Thinning, budget: float, fine: float) -> _Split:
    """The cases where each user sends on its own: those in no group are aside."""
    if crowd.is_by_size:  # cases then count senders, not users; groups are never formed among so few
        raise ArithmeticError(f"groups among {crowd.users} users by size: please report this as a bug")
    # Groups jump with K by whole groups, so its blocks are finer here; sums of groups are few and cheap.
    cases_, error = crowd.cases(thin.q, budget, finer=3 * fine)
    sizes = plan.asides([case.terms for case in cases_])
    cases, lost = [], 2.0 * budget
    for case in cases_:
        count = plan.groups(case.terms)
        rest = case.terms - plan.size * count
        law = bisect.bisect_right(sizes, rest) - 1
        # Too few are kept to leave anybody for groups: improbable, and charged (error 1 of `groups`).
        if law < 0:
            lost += case.chance
        else:
            # Those aside beyond the law's number are revealed: epsilon then falls in steps with the users.
            hidden = plan.size * count + sizes[law]
            cases.append(
                groups.Grouped(hidden=hidden, aside=sizes[law], law=sizes[law], groups=count, chance=case.chance)
            )
    small = {size: Case(terms=size, denominator=size + 1.0, chance=1.0, present=crowd.ratio.rate) for size in sizes}
    return cases, small, lost, error


def _split_sample(crowd: Exchange, plan: groups.Division, thin: Thinning, budget: float, fine: float) -> _Split:
    """The cases of a fixed sample, with nobody thinned: g of user 1 and those aside are drawn."""
    sample = crowd.sample or 0
    aside = min(math.ceil(plan.aside * crowd.users / sample), crowd.users - 1)
    lowest, masses = _hypergeometric(aside + 1, crowd.users, sample, budget)
    cases, small = [], {}
    for smallest, largest, chance in _blocks(lowest, masses, _BLOCKS // 2, fine):
        # A block counts as its largest g for v, and as its smallest for the groups, which are then more.
        largest_count = max(largest, 1)
        present = min(1.0, largest_count / (aside + 1) * (1.0 + 4.0 * UNIT))
        small[largest_count] = Case(
            terms=largest_count - 1, denominator=aside + 1.0, chance=1.0, present=present, extra=1
        )
        count = max(0, math.ceil((sample - smallest - plan.lone) / plan.size))
        cases.append(
            groups.Grouped(hidden=crowd.users - 1, aside=aside, law=largest_count, groups=count, chance=chance)
        )
    return cases, small, 2.0 * budget, 16.0 * UNIT * (len(masses) + 8.0)


def _local_grid(r: float, budget: float) -> FloatArray:
    """Gaps at which one report in the clear is priced: finely until only `budget` of its prices is left."""
    # Far out prices still matter for large Rényi orders: coarsely, down to the smallest doubles.
    fine_end, coarse_end = (0.5 * r**2 - r * quadrature.quantile(mass) for mass in (budget, 1e-280))
    loss = np.concatenate(
        [
            np.linspace(0.0, fine_end, math.ceil(128.0 * fine_end / r))[:-1],
            np.linspace(fine_end, coarse_end, math.ceil(16.0 * (coarse_end - fine_end) / r)),
        ]
    )
    gap: FloatArray = np.expm1(np.concatenate([-loss[:0:-1], loss]))
    return np.unique(gap[gap > -1.0])  # next to -1 several losses are one gap


def _exchange_prices(
    crowd: Exchange,
    thin: Thinning,
    mixtures: Sequence[Sequence[Case]],
    error: float,
    half: int,
    budget: float,
    fine: float = 1.0,
) -> list[Prices]:
    """Prices of f at one thinning, for each mixture of cases; `error` is that of their chances."""
    all_cases = [case for cases in mixtures for case in cases]
    # By size the coin is in the number of senders: given it, all terms are sent.
    present = sum(case.chance * case.present for case in all_cases) / len(mixtures)
    ratio = replace(crowd.ratio, rate=1.0) if crowd.is_by_size else crowd.ratio
    is_small = crowd.users <= _SMALL_CROWD or (
        crowd.is_by_size and crowd.users * crowd.ratio.rate * crowd.weight < groups.GROUP_SENDERS_MIN
    )
    node_factor = min(_NODE_FACTOR_MAX, max(1.0, _MIXED_USERS / crowd.users))
    usual = (
        _NODES_FEW_USERS
        if is_small
        else _NODES_HARDLY_HIDDEN
        if crowd.users * thin.q < 2.0 * _HARDLY_HIDDEN
        else _NODES_USUAL
    )
    nodes = _ratio_nodes(1.0 / ratio.scale, present, budget, fine * node_factor, usual)
    single = _exchange_batch(ratio, thin, nodes, half, budget)
    totals = sums(single, [case.terms for case in all_cases], budget)
    return [_mixed(nodes, single, totals, cases, error, half, budget) for cases in mixtures]


def _mixed(
    nodes: _RatioNodes,
    single: Batch,
    totals: Mapping[int, Batch],
    cases: Sequence[Case],
    error: float,
    half: int,
    budget: float,
) -> Prices:
    mixture = Mixture(cut=nodes.cut + 3.0 * budget)
    # Many cases of a fixed size have as many terms.
    laws = {0: [NO_TERMS] * len(nodes.value)} | {count: total.laws() for count, total in totals.items()}
    absent_laws: dict[tuple[int, int], Law] = {}
    for case in cases:
        for v, chance, law in zip(nodes.value.tolist(), nodes.chance.tolist(), laws[case.terms], strict=True):
            # error 5 is charged by the mixture, with that of its last sharing
            mixture.add(case.chance * case.present * chance, law, v - 1.0, case.denominator)
        # Without user 1 nothing depends on v but its place in the count: v = 1, one law for all nodes.
        if case.present < 1.0:
            key = case.terms, case.extra
            if key not in absent_laws:
                absent_laws[key] = _absent(totals.get(case.terms), single, case.extra, budget)
            mixture.add(case.chance * (1.0 - case.present), absent_laws[key], 0.0, case.denominator)
    return mixture.prices(error, half)


def _absent(total: Batch | None, single: Batch, extra: int, share: float) -> Law:
    """The sum of terms without user 1 (v = 1), with one more where another user is in its place."""
    absent = None if total is None else total.only(len(total.weight) - 1)
    if extra:
        another = single.only(len(single.weight) - 1)
        absent = another if absent is None else batch_sum(absent, another, share)
    return NO_TERMS if absent is None else absent.laws()[0]

"""Any crowd, sharper: the exchange theorem applied to itself, and to groups of users.

Terms, letters and thinning as in `anycrowd.exchange`; K users are kept. `anycrowd.exchange` takes the worst user for
every term; users opposite to x' and users at x' have opposite skew, and no crowd has both at once everywhere. So, two
refinements:

**Aside.** K2 of the kept users, chosen by who was kept and what they hold, not by reports, form with user 1 a small
crowd of their own; S' = E[w(z) | their reports, shuffled] takes the place of w(z) in the f of the other K1 = K - K2:

    f = 1 + [(K2 + 1)(v - 1) + sum over i <= K1 of (X_i(v) + v - 1)] / (K + 1),      v = S'.

S' is below the plain theorem's f for K2 users, cut off at 0, and below one report in the clear; v >= 0 is spread on
nodes.

**Groups.** X of a user at u depends on its *place* a = <u, x'> only; its calls above 0 fall with a and its puts below 0
rise. For a in [a0, a1] X is below the law that has the X of a0 above 0, that of a1 below 0 and the rest at 0. [-1, 1]
is cut into m intervals; b users in one of them are below the sum of b such terms, and below the law whose prices are
the largest of the m: so is every group, wherever it is. K2 >= m (b - 1) users aside leave a multiple of b in every
interval, so that K1 = b floor((K - m (b - 1)) / b) users are groups and nothing else.

*Fixed size*, s of n: nobody is thinned. g of user 1 and those aside are drawn, S' is that of g drawn among K2 + 1, and
the other s - g drawn users, sorted by place, are groups; at most m - 1 of these have users of several intervals and
count as b users anywhere. A block of g counts as its largest for v and as its smallest for the groups.

Proofs: `docs/explanation/guarantee.md`, "Sharper with many users".

*At a place.* Under p `(log w, log e)` are normal with correlation a. Without thinning `X = (w - v) e^(-r a y + r^2
a^2/2) rho`, y ~ N(a r, 1) the report along x', rho an independent lognormal of mean 1 and parameter `r sqrt(1 -
a^2)`, which is spread on nodes. With thinning 1 / ê is spread on nodes given y, a lognormal cut off below; its
weights are normal masses. Reports y go in cells, within which X is spread to the ends: masses and shares are
integrals of positive functions, 6 nodes a cell.

*Which groups.* The rule of `plan`, found by trial: with many users (4,000; more where sigma is below 1.5) no
thinning, b about sqrt(K / rate) / 4 and 8 intervals; with fewer b is up to half of sqrt(K / rate), with 2 or 3
intervals, finer near -1, and t from 0 to 1. Below 80 senders or sigma = 1 one large term decides, which no group makes
smaller.

*Errors*, next to those of `anycrowd.exchange` and `batch_grid`:

1. v beyond the last node, and what the law of S' has at infinity: given v = V a call costs at most `V + 1`, a put
   `1 + V`, so that a call price C of v costs C of both in the limit; 2 C is charged. K below the number aside, and g
   outside its blocks: their probability.
2. One term: reports beyond the ends (`Phi(r - high)` and `v Phi(low)` of first moment), 1 / ê or rho beyond its
   last node (`share` times 1 above and times v below): 4 `share` max(1, v). Masses are taken to have a relative error
   of 2^-24. Cells are exact to 1e-14; differences of normal masses that are good to `4 (8 + x^2) u` at x, over steps
   of 1 / ê of `0.8 r sqrt(1 - a^2)` or up to four times less, lose a factor of their inverse: 6e-9 for sigma <= 1e3,
   a <= 0.8 and x < 38.6, where normal masses underflow. With 60 digits 5e-9 was seen. The rest at 0 is what is left
   of 1, off by 2^-46 at most: below 2^-20 that is no small part of it, and its first moment is charged. Errors of
   positions: as error 4 there.
3. The largest prices: made as masses of the law that leads at a point, plus what others lead by next to it, all
   positive. The prices of what comes out are compared with those that went in. If calls (puts) lack a part l, the
   law stretched by 1 + 2 l lacks nothing, as `((1 + s) x - k)+ >= (1 + s)(x - k)+` for k >= 0. If a mean is off by
   a part d of the mean size, centring it costs a stretch of 4 d (lemma of `mean_law`, its 2); 8 d is taken, for
   what goes in and what comes out. Prices below 1e-290 are charged.
4. Chances of v: relative, 2^-40.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.anycrowd.mixture import Mixture
from shoal.bounds.anycrowd.prices import PricedLaw, Prices
from shoal.bounds.anycrowd.thinning import Thinning, excess_ratio, root
from shoal.bounds.batch_grid import NO_TERMS, Batch, atoms_on_grid, batch, batch_sum, sums, sums_by_count
from shoal.bounds.grid import base_for, in_order
from shoal.bounds.numeric import UNIT, FloatArray
from shoal.bounds.ratio import Lognormal

_QUADRATURE = 2.0**-24
"""Relative error of the masses of one term: panels next to a place in the middle are wider than elsewhere."""

_STEP = 0.8
"""Distance of the nodes of 1 / ê, in deviations, near its middle."""

_SMALL = 2.0**-20
"""A rest of mass above this is known to a factor as good as that of the others."""

_NOTHING = 1e-290
"""Prices below this are charged."""

_HALF = 96
"""Cells of a grid at which nodes are as far apart as is said here; where it is finer, so are they."""

_CELL = 0.05
"""Width of the cells of reports; within one, a report counts as one at an end of it."""

_STEPS: FloatArray = np.concatenate([1.3 ** np.arange(5.0), 4.0 * 2.5 ** np.arange(40.0)])
"""Steps between nodes of v, in deviations; they are cut in two, which costs little."""

FEW, _MANY = 80, 4_000
"""From so many senders on groups pay; with so many users nobody needs to be thinned."""

_CALM = 1.5
"""Below this sigma these are more."""

_QUIETEST, _NOISIEST = 1.0, 1e3
"""With less noise one large term decides; with more all crowds look the same, and error 2 is not known to be small."""

_CUTS = ((-1.0, -0.3, 1.0), (-1.0, -0.6, 0.0, 1.0))
"""Intervals of places for few senders: finer where users are opposite."""

_ANYWHERE = (-1.0, 1.0)
"""The places of a user of whom nothing is known."""

_CHANCES = 2.0**-40
"""Relative error of the chances of v."""

_UNUSUAL, _RARE = 3e-3, 1e-4
"""For values of v less probable than this, half as many intervals do, or none."""

_GAUSS, _WEIGHTS = np.polynomial.legendre.leggauss(6)


@dataclass(frozen=True, kw_only=True)
class Division:
    """Groups of `size` users; places are cut at `cuts`, from -1 to 1; `t` is that of the thinning.

    Groups of a fixed size are made of the users that are drawn, and `lone` of them are in no group.
    """

    size: int
    cuts: tuple[float, ...]
    t: float
    drawn: bool = False

    @property
    def aside(self) -> int:
        """So many users are taken aside at least."""
        return (len(self.cuts) - 1) * (self.size - 1)

    @property
    def lone(self) -> int:
        """So many are in groups of several intervals at most, and count as users anywhere."""
        return (len(self.cuts) - 2) * self.size if self.drawn else 0

    def cuts_for(self, chance: float) -> tuple[float, ...]:
        """The cuts for a v of this chance: places matter for v that happen, elsewhere wider intervals do."""
        if chance <= _RARE:
            return _ANYWHERE
        return self.cuts[::2] if chance <= _UNUSUAL and len(self.cuts) > 4 else self.cuts

    def groups(self, kept: int) -> int:
        """How many groups there are among so many: all users but those aside."""
        return max(0, (kept - self.aside) // self.size)

    def asides(self, kept: Sequence[int]) -> list[int]:
        """How many are aside for each of these numbers of kept users, in a few steps: smaller counts are above."""
        rest = {count - self.size * self.groups(count) for count in kept}
        if len(rest) > 1:
            step = max(1, self.size // 4)
            rest = {self.aside + (count - self.aside) // step * step for count in rest}
        return sorted(count for count in rest if count >= self.aside)


def counted(users: int, sample: int | None) -> int:
    """Who must be many for nobody to be thinned: all users, or those that are drawn if that is a fixed number."""
    return users if sample is None else sample


def enough(scale: float) -> float:
    """So many are enough: more where there is less noise."""
    return _MANY * max(1.0, _CALM / scale) ** 6


def enough_noise(count: int) -> float:
    """From this sigma on so many are enough; infinity where they never are."""
    return _CALM * (_MANY / count) ** (1.0 / 6.0) if count >= _MANY else math.inf


def plan(ratio: Lognormal, users: int, sample: int | None = None) -> Division | None:
    """How users are grouped, or None where that does not pay; `sample` is how many of them report, if that is fixed."""
    senders = users * ratio.rate if sample is None else sample
    if senders < FEW or not _QUIETEST <= ratio.scale <= _NOISIEST:
        return None
    # With many users the variance decides: thin nobody, and cut places finely to pay for little skew.
    if counted(users, sample) >= enough(ratio.scale):
        at, size, cuts = -math.inf, 0.27, tuple(np.linspace(-1.0, 1.0, 9).tolist())
    # With few, large terms matter as well: thinning bounds them, and fewer intervals leave fewer users aside.
    elif ratio.scale < 1.75:
        at, size, cuts = 1.0, 0.4, _CUTS[0]
    else:
        at = 1.0 if users < 500 and ratio.scale < 2.5 else 0.25 if ratio.rate == 1.0 else 0.0
        size, cuts = 0.5, _CUTS[int(senders >= 400)]
    if sample is not None:
        # To keep everybody leaves less to mix, and groups cost the users that are in none.
        return Division(size=max(2, round(min(size, 0.4) * math.sqrt(sample))), cuts=cuts, t=-math.inf, drawn=True)
    kept = users * Thinning.of(1.0 / ratio.scale, at).q
    return Division(size=max(2, round(size * math.sqrt(kept / ratio.rate))), cuts=cuts, t=at)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """So many `groups` (and those in none), `aside` users, of `kept` in all, of this chance; v is of law `law`."""

    kept: int
    aside: int
    law: int
    groups: int
    chance: float


# One user at a place


@dataclass(frozen=True, kw_only=True)
class _Everybody:
    """Nobody is thinned: `X = (w - v) e^(-r a y + r^2 a^2 / 2) rho`, rho an independent lognormal on nodes."""

    r: float
    place: float
    node: FloatArray
    chance: FloatArray

    @classmethod
    def of(cls, r: float, place: float, share: float, fine: float) -> _Everybody:
        width = r * math.sqrt(1.0 - place**2)
        node, chance = (np.ones(1), np.ones(1)) if width == 0.0 else _lognormal(width, share, fine)
        return cls(r=r, place=place, node=node, chance=chance)

    def kinks(self, v: float) -> list[float]:
        a = self.place
        return [root(self.r, a * v / (a - 1.0))] if a < 0.0 < v else []

    def scale(self, y: FloatArray) -> FloatArray:
        shift = self.r * self.place
        found: FloatArray = np.exp(-shift * y + 0.5 * shift**2)
        return found

    def density(self, y: FloatArray) -> FloatArray:
        return quadrature.normal_density(y - self.r * self.place)[..., None] * self.chance


@dataclass(frozen=True, kw_only=True)
class _End:
    """A thinned user at x' or opposite to it: ê is a function of y."""

    r: float
    place: float
    thin: Thinning
    node: FloatArray

    def kinks(self, v: float) -> list[float]:
        return [-self.place * self.thin.t]

    def scale(self, y: FloatArray) -> FloatArray:
        found: FloatArray = (1.0 - self.thin.tau) * np.exp(np.maximum(0.0, -self.r * (self.thin.t + self.place * y)))
        return found

    def density(self, y: FloatArray) -> FloatArray:
        return (quadrature.normal_density(y) / self.scale(y))[..., None]


@dataclass(frozen=True, kw_only=True)
class _Middle:
    """A thinned user elsewhere: 1 / ê has a law given y, on nodes."""

    r: float
    place: float
    thin: Thinning
    node: FloatArray

    @classmethod
    def of(cls, r: float, place: float, thin: Thinning, share: float, fine: float) -> _Middle:
        # error 2: beyond it 1 / ê has less than `share` of first moment
        last = max(-r * (thin.t + quadrature.quantile(share) - r), 0.1 * r)
        steps = _finer(_STEP * r * math.sqrt(1.0 - place**2) * np.array([1.0] * 6 + [1.5, 2.0] + [3.0] * 64), fine)
        log = np.append(0.0, np.cumsum(steps))
        log = np.append(log[log < last], last)
        return cls(r=r, place=place, thin=thin, node=(1.0 - thin.tau) * np.exp(log))

    def kinks(self, v: float) -> list[float]:
        return []

    def scale(self, y: FloatArray) -> FloatArray:
        return np.ones_like(y)

    def density(self, y: FloatArray) -> FloatArray:
        r, a, thin = self.r, self.place, self.thin
        side = math.sqrt(1.0 - a**2)
        log = np.log(self.node / self.node[0])
        # the second coordinate at which 1 / ê is this node, and ê at y times it
        at = ((-log - r * thin.t) / r - a * y[..., None]) / side
        lift = np.exp(r * (a * y + thin.t) + 0.5 * (r * side) ** 2)[..., None] / self.node[0]
        # Masses between nodes under p, and under p ê, which shifts the second coordinate by r times `side`.
        first, total = _between(at), lift * _between(at - r * side)
        step = np.diff(self.node)
        # The mean of 1 / ê in a cell says how it is shared; rounding may leave it a little outside.
        right = np.clip((first - self.node[:-1] * total) / step, 0.0, total)
        found = np.zeros(at.shape)
        found[..., 0] = special.ndtr(-at[..., 0]) / self.node[0]
        found[..., -1] = lift[..., 0] * special.ndtr(at[..., -1] - r * side)
        found[..., :-1] += total - right
        found[..., 1:] += right
        found *= quadrature.normal_density(y)[..., None]
        return found


def _between(at: FloatArray) -> FloatArray:
    """Normal masses between falling points, each from the tail that it is nearer to."""
    low, high = special.ndtr(at), special.ndtr(-at)
    # A difference of two numbers near 1 has no digits left; one of two small ones has.
    found: FloatArray = np.where(at[..., 1:] > 0.0, high[..., 1:] - high[..., :-1], low[..., :-1] - low[..., 1:])
    return found


_Place = _Everybody | _End | _Middle


def _user(r: float, place: float, thin: Thinning, share: float, fine: float) -> _Place:
    if thin.q == 1.0:
        return _Everybody.of(r, place, share, fine)
    if abs(place) == 1.0:
        return _End(r=r, place=place, thin=thin, node=np.ones(1))
    return _Middle.of(r, place, thin, share, fine)


def _gauss(edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights over (cell, node)."""
    widths = np.diff(edges)[:, None]
    return edges[:-1, None] + 0.5 * widths * (_GAUSS + 1.0), 0.5 * widths * _WEIGHTS


def _finer(steps: FloatArray, fine: float) -> FloatArray:
    """Each step cut into some, or each two of them taken together."""
    if fine < 0.75:
        return np.add.reduceat(steps, np.arange(0, len(steps), 2))
    parts = round(fine)
    return np.repeat(steps / parts, parts)


def _lognormal(width: float, share: float, fine: float) -> tuple[FloatArray, FloatArray]:
    """A lognormal of mean 1, spread on nodes from 0 on."""
    last = width - quadrature.quantile(share)
    steps = _STEP * np.cumsum(_finer(np.concatenate([[0.5], np.ones(4), 1.4 ** np.arange(1.0, 12.0)]), fine))
    ends = np.concatenate([-steps[steps < last - 1.0][::-1], steps[steps < last - 1.0], [last]])
    value = np.append(0.0, np.exp(width * ends - 0.5 * width**2))
    z, weight = _gauss(np.union1d(np.linspace(-last, last, math.ceil(2.0 * last / _CELL) + 1), ends))
    mass = weight * quadrature.normal_density(z)
    cell = np.searchsorted(ends, z)
    right = (np.exp(width * z - 0.5 * width**2) - value[cell]) / (value[cell + 1] - value[cell])
    chance = np.bincount(cell.ravel(), (mass * (1.0 - right)).ravel(), len(value))
    chance += np.bincount(cell.ravel() + 1, (mass * right).ravel(), len(value))
    chance[0] += special.ndtr(-last)
    chance[-1] += special.ndtr(-last)
    return value, chance / float(np.sum(chance))


def _half_term(user: _Place, v: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The part of X whose reports are between the first edge and the last, where X has one sign."""
    # Between edges X must be monotone, or its spread to the ends would not be one: kinks become edges.
    inside = np.array([k for k in user.kinks(v) if edges[0] < k < edges[-1]])
    edges = np.union1d(edges, inside)
    y, weight = _gauss(edges)
    x = excess_ratio(y, user.r, v) * user.scale(y)
    at = excess_ratio(edges, user.r, v) * user.scale(edges)
    # Each report of a cell is shared by its ends so that its X is kept in mean.
    right = np.clip((x - at[:-1, None]) / (at[1:] - at[:-1])[:, None], 0.0, 1.0)
    mass = weight[..., None] * user.density(y)
    total = np.zeros((len(edges), len(user.node)))
    total[:-1] += (mass * (1.0 - right)[..., None]).sum(axis=1)
    total[1:] += (mass * right[..., None]).sum(axis=1)
    return (at[:, None] * user.node).ravel(), total.ravel()


def _sides(r: float, v: float, share: float, fine: float) -> tuple[FloatArray, FloatArray]:
    """Edges of cells of reports below and above the one at which w is v."""
    low, high = quadrature.quantile(share / max(v, 1.0)), r - quadrature.quantile(share)
    z = min(max(root(r, v), low), high)
    below, above = (np.linspace(a, b, math.ceil(fine * (b - a) / _CELL) + 1) for a, b in ((low, z), (z, high)))
    return below, above


@dataclass(frozen=True, kw_only=True)
class _Term:
    """X(v) + v - 1 as points and masses; `size` is its mean size where there is a report."""

    point: FloatArray
    mass: FloatArray
    size: float
    stretch: float
    cut: float


def _term(ratio: Lognormal, halves: Sequence[tuple[FloatArray, FloatArray]], v: float, share: float) -> _Term:
    r = 1.0 / ratio.scale
    x, mass = (np.concatenate(part) for part in zip(*halves, strict=True))
    rest = max(0.0, 1.0 - float(mass.sum()))
    point = np.concatenate([x + (v - 1.0), [v - 1.0, 0.0]])
    mass = np.concatenate([ratio.rate * mass, [ratio.rate * rest, 1.0 - ratio.rate]])
    # error 2: positions are off by some u of w and v, times the exponent that they come from
    size = float(mass @ np.abs(point)) / ratio.rate
    exponent = 2.0 * r * (r - quadrature.quantile(share)) + 3.0 * r**2
    places = 12.0 * 64.0 * (2.0 + exponent) * (1.0 + v) / size * UNIT
    # The rest is what is left of 1: where it is small it is not known to a factor, and its first moment is charged.
    lost = 0.0 if rest > _SMALL else 2.0**-44 * (1.0 + v)
    return _Term(
        point=point, mass=mass, size=size, stretch=8.0 * _QUADRATURE + places,
        cut=ratio.rate * (4.0 * share * max(1.0, v) + lost),
    )  # fmt: skip


def _terms(
    ratio: Lognormal, thin: Thinning, cuts: Sequence[float], v: float, share: float, fine: float = 1.0
) -> list[_Term]:
    """X(v) + v - 1 of a user between two cuts, for each two."""
    r = 1.0 / ratio.scale
    # Above 0 the user at the lower end of an interval is the worst one, below 0 that at its upper end.
    below, above = _sides(r, v, share, fine)
    users = [_user(r, a, thin, share, fine) for a in cuts]
    nothing = np.empty(0), np.empty(0)
    highs = [_half_term(user, v, above) if len(above) > 1 else nothing for user in users[:-1]]
    lows = [_half_term(user, v, below) if len(below) > 1 else nothing for user in users[1:]]
    return [_term(ratio, halves, v, share) for halves in zip(highs, lows, strict=True)]


# Groups


def _merged(points: FloatArray, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cells in order without the points that two levels share."""
    # The last point of a level is the first of the next: one point, its masses added.
    first = np.append(True, np.diff(points) > 0.0)
    return points[first], np.add.reduceat(rows, np.flatnonzero(first), axis=1)


def _prices(points: FloatArray, rows: FloatArray) -> FloatArray:
    """Puts below 0, calls from there on, of each law: sums of positive terms."""
    steps = np.diff(points)
    above, below = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1], np.cumsum(rows, axis=1)
    calls, puts = np.zeros_like(rows), np.zeros_like(rows)
    calls[:, :-1] = np.cumsum((above[:, 1:] * steps)[:, ::-1], axis=1)[:, ::-1]
    puts[:, 1:] = np.cumsum(below[:, :-1] * steps, axis=1)
    return np.where(points < 0.0, puts, calls)


def _off(points: FloatArray, rows: FloatArray) -> float:
    """The largest mean of the laws, as a part of their mean size."""
    return float(np.max(np.abs(rows @ points) / (rows @ np.abs(points))))


def largest(points: FloatArray, rows: FloatArray) -> tuple[FloatArray, float]:
    """The law of the largest prices of some laws of mean 0 on common points, one of which is 0.

    With it comes a stretch: all of the laws, centred, are below this one, centred and stretched (error 3).
    """
    price, here = _prices(points, rows), np.arange(len(points))
    best, top, steps = price.argmax(axis=0), price.max(axis=0), np.diff(points)
    # Where another law leads next to a point, the largest prices bend there by more than those of the one that leads.
    # error 3: all sums of positive terms, so that small prices keep their digits
    mass = rows[best, here]
    mass[:-1] += np.maximum(top[1:] - price[best[:-1], here[1:]], 0.0) / steps
    mass[1:] += np.maximum(top[:-1] - price[best[1:], here[:-1]], 0.0) / steps
    # Rounding may leave the mass a little off 1; what that takes from a price is found in the comparison below.
    mass /= mass.sum()
    made, there = _prices(points, mass[None])[0], top > _NOTHING
    lack = float(np.max(1.0 - made[there] / top[there], initial=0.0))
    off = _off(points, rows) + _off(points, mass[None])
    return mass, 2.0 * lack + 8.0 * off + 64.0 * len(points) * UNIT


def _users(
    ratio: Lognormal, thin: Thinning, cuts: Sequence[tuple[float, ...]], nodes: Nodes, half: int, share: float
) -> tuple[Batch, list[int]]:
    """One user between two of the cuts, for each two and each v; how many laws each v has."""
    weight = nodes.weight
    fine = half / _HALF
    terms = [_terms(ratio, thin, cut, v, share, fine) for cut, v in zip(cuts, nodes.value.tolist(), strict=True)]
    kinds = np.array([len(row) for row in terms])
    sizes = np.array([float(np.mean([term.size for term in row])) for row in terms])
    base = base_for(float(weight @ sizes) / float(weight.sum()), half)
    every = [term for row in terms for term in row]
    one = batch(
        [atoms_on_grid(term.point, term.mass, half, base) for term in every], base,
        weight=np.repeat(weight / kinds, kinds),
        stretch=[term.stretch for term in every], cut=[term.cut for term in every],
    )  # fmt: skip
    return one, kinds.tolist()


def _groups(ratio: Lognormal, thin: Thinning, plan: Division, nodes: Nodes, half: int, share: float) -> Batch:
    """One group for each v."""
    weight = nodes.weight
    cuts = [plan.cuts_for(chance) for chance in weight.tolist()]
    one, kinds = _users(ratio, thin, cuts, nodes, half, share)
    # All intervals and all v go through the same doublings, on one grid.
    group = sums_by_count(one, share)(plan.size)
    points = in_order(group.points)
    laws, stretch, cut = [], [], []
    for last, kind in zip(np.cumsum(kinds).tolist(), kinds, strict=True):
        which = slice(last - kind, last)
        at, rows = _merged(points, np.stack([in_order(law) for law in group.mass[which]]))
        # One law above the group wherever it stands; its grid was made for single groups, the next is for their sums.
        mass, lack = largest(at, rows / rows.sum(axis=1)[:, None])
        laws.append((at[mass > 0.0], mass[mass > 0.0]))
        stretch.append((1.0 + float(group.stretch[which].max())) * (1.0 + lack) - 1.0)
        cut.append(float(group.cut[which].max()) + _NOTHING)
    deviations = np.array([float(mass @ np.abs(at)) for at, mass in laws])
    base = base_for(float(weight @ deviations) / float(weight.sum()), half)
    return batch(
        [atoms_on_grid(at, mass, half, base) for at, mass in laws], base, weight=weight, stretch=stretch, cut=cut
    )  # fmt: skip


# What user 1 looks like among those taken aside


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Values of v; chances of each over (law, value), and what each law has beyond the last.

    `weight` is the chance of each value over all laws.
    """

    value: FloatArray
    chance: FloatArray
    beyond: FloatArray
    weight: FloatArray

    @classmethod
    def of(cls, laws: Sequence[PricedLaw], parts: Sequence[float], budget: float, fine: float = 1.0) -> Nodes:
        """`parts` are the chances of the laws."""
        share = np.array(parts) / math.fsum(parts)
        # Steps of about one deviation cost little: v is the smaller part of f, and its spread adds variances.
        size = 1.25 * float(share @ np.array([float(law.mass @ np.abs(law.gap)) for law in laws]))
        first, last = min(_start(law, budget) for law in laws), max(_end(law, budget) for law in laws)
        steps = size * np.cumsum(_finer(np.append(0.5, _STEPS), fine))
        # What lies below all other nodes is shared with v = 0, which is far away: they go as far as there is anything.
        below = steps[: 1 + int(np.searchsorted(steps, -first))]
        ends = np.concatenate([-below[below < 0.98][::-1], steps[steps < 0.8 * last], [last]])
        value = np.append(-1.0, ends)
        chances = []
        for law in laws:
            gap = np.minimum(law.gap, last)
            cell = np.clip(np.searchsorted(value, gap, side="right") - 1, 0, len(value) - 2)
            right = (gap - value[cell]) / (value[cell + 1] - value[cell])
            mass = np.bincount(cell, law.mass * (1.0 - right), len(value))
            mass += np.bincount(cell + 1, law.mass * right, len(value))
            chances.append(mass / mass.sum())
        # error 1: what lies beyond the last node counts as on it, and its call price is charged
        beyond = [law.infinite + float(law.mass @ np.maximum(law.gap - last, 0.0)) for law in laws]
        chance = np.stack(chances)
        return cls(value=1.0 + value, chance=chance, beyond=np.array(beyond), weight=share @ chance)


def _start(law: PricedLaw, budget: float) -> float:
    """Up to where puts are no more than the budget."""
    puts = np.append(0.0, np.cumsum(np.cumsum(law.mass[:-1]) * np.diff(law.gap)))
    return float(law.gap[int(np.searchsorted(puts, budget, side="right")) - 1])


def _end(law: PricedLaw, budget: float) -> float:
    """Where calls are no more than the budget."""
    tail = np.append(np.cumsum(law.mass[:0:-1])[::-1], 0.0)
    calls = law.infinite + np.append(np.cumsum((tail[:-1] * np.diff(law.gap))[::-1])[::-1], 0.0)
    return float(law.gap[int(np.argmax(calls <= max(budget, 2.0 * law.infinite)))])


def prices(
    ratio: Lognormal, thin: Thinning, plan: Division, aside: Mapping[int, PricedLaw], cases: Sequence[Grouped],
    lost: float, error: float, half: int, budget: float,
) -> Prices:  # fmt: skip
    """Prices of f for cases of these chances, `lost` that of all others; the laws `aside` are above S'."""
    keys = sorted(aside)
    parts = [math.fsum(case.chance for case in cases if case.law == key) for key in keys]
    nodes = Nodes.of([aside[key] for key in keys], parts, budget, 2.0 * half / _HALF)
    one = _groups(ratio, thin, plan, nodes, half, budget)
    found = sums(one, [case.groups for case in cases], plan.size * budget)
    # Groups that straddle an end of an interval: as many users of whom nothing is known (proposition 5).
    if plan.lone:
        user, _ = _users(ratio, thin, [_ANYWHERE] * len(nodes.value), nodes, half, budget)
        lone = sums_by_count(user, budget)(plan.lone)
        found = {0: lone, **{count: batch_sum(total, lone, budget) for count, total in found.items()}}
    laws = {count: total.laws() for count, total in found.items()}
    laws.setdefault(0, [NO_TERMS] * len(nodes.value))
    mixture = Mixture(cut=lost)
    for case in cases:
        which = keys.index(case.law)
        # error 1
        mixture.cut += 2.0 * case.chance * float(nodes.beyond[which])
        for v, chance, law in zip(nodes.value.tolist(), nodes.chance[which].tolist(), laws[case.groups], strict=True):
            mixture.add(case.chance * chance, law, (case.aside + 1) * (v - 1.0), case.kept + 1)
    # error 4
    return mixture.prices(error + _CHANCES, half)

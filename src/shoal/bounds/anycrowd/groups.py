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

*Errors*, next to those of `anycrowd.exchange` and `sums`:

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
from shoal.bounds.grid import base_for, in_order
from shoal.bounds.numeric import UNIT, FloatArray
from shoal.bounds.ratio import Lognormal
from shoal.bounds.sums import NO_TERMS, Batch, atoms_on_grid, batch, batch_sum, sums, sums_by_count

_QUADRATURE = 2.0**-24
"""Relative error of the masses of one term: panels next to a place in the middle are wider than elsewhere."""

_NODE_STEP = 0.8
"""Distance of the nodes of 1 / ê, in deviations, near its middle."""

_REST_MIN = 2.0**-20
"""A rest of mass above this is known to a factor as good as that of the others."""

PRICE_CHARGE = 1e-290
"""Prices below this are charged."""

_GROUP_HALF = 96
"""Cells of a grid at which nodes are as far apart as is said here; where it is finer, so are they."""

_REPORT_CELL = 0.05
"""Width of the cells of reports; within one, a report counts as one at an end of it."""

_MIXTURE_STEPS: FloatArray = np.concatenate([1.3 ** np.arange(5.0), 4.0 * 2.5 ** np.arange(40.0)])
"""Steps between nodes of v, in deviations; they are cut in two, which costs little."""

GROUP_SENDERS_MIN, _UNTHINNED_USERS = 80, 4_000
"""The number of senders from which groups pay, and the number of users from which nobody needs to be thinned."""

_UNTHINNED_SIGMA = 1.5
"""Below this scale the second number grows."""

_GROUP_SIGMA_MIN, _GROUP_SIGMA_MAX = 1.0, 1e3
"""Scales between which groups are formed.

Below, one large term decides; above, all crowds look alike, and error 2 is not known to be small.
"""

_FEW_SENDERS_CUTS = ((-1.0, -0.3, 1.0), (-1.0, -0.6, 0.0, 1.0))
"""Intervals of places for few senders: finer where users are opposite."""

_ANYWHERE = (-1.0, 1.0)
"""The places of a user of whom nothing is known."""

_CHANCE_ERROR = 2.0**-40
"""Relative error of the chances of v."""

_UNUSUAL_CHANCE, _RARE_CHANCE = 3e-3, 1e-4
"""Chances of v below which half the intervals suffice, or none."""

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
        """The smallest number of users aside."""
        return (len(self.cuts) - 1) * (self.size - 1)

    @property
    def lone(self) -> int:
        """The largest number of users in groups of several intervals; they count as users anywhere."""
        return (len(self.cuts) - 2) * self.size if self.drawn else 0

    def cuts_for(self, chance: float) -> tuple[float, ...]:
        """The cuts for a v of this chance: places matter for v that happen, elsewhere wider intervals do."""
        if chance <= _RARE_CHANCE:
            return _ANYWHERE
        if chance > _UNUSUAL_CHANCE or len(self.cuts) <= 4:
            return self.cuts
        # The last cut stays, so that no place is left out.
        return (*self.cuts[:-1:2], self.cuts[-1])

    def groups(self, hidden: int) -> int:
        """The number of groups among hidden users: all but those aside are in one."""
        return max(0, (hidden - self.aside) // self.size)

    def group_laws(self, ratio: Lognormal, thin: Thinning, nodes: MixtureNodes, half: int, share: float) -> Batch:
        """One law for each v, above every group wherever its users are."""
        return _group_batch(ratio, thin, self, nodes, half, share)

    def asides(self, hidden: Sequence[int]) -> list[int]:
        """Numbers of users aside for these numbers of hidden users, in a few steps: smaller numbers are above."""
        rest = {count - self.size * self.groups(count) for count in hidden}
        if len(rest) > 1:
            step = max(1, self.size // 4)
            rest = {self.aside + (count - self.aside) // step * step for count in rest}
        return sorted(count for count in rest if count >= self.aside)


def crowd_size(users: int, sample: int | None) -> int:
    """The number that must be large if nobody is thinned: all users, or the size of a fixed sample."""
    return users if sample is None else sample


def unthinned_from(scale: float) -> float:
    """The number of users from which nobody is thinned; it grows where there is less noise."""
    return _UNTHINNED_USERS * max(1.0, _UNTHINNED_SIGMA / scale) ** 6


def unthinned_from_sigma(count: int) -> float:
    """The scale from which this number of users is enough to thin nobody; infinity if there is none."""
    return _UNTHINNED_SIGMA * (_UNTHINNED_USERS / count) ** (1.0 / 6.0) if count >= _UNTHINNED_USERS else math.inf


def grouping(ratio: Lognormal, users: int, sample: int | None = None) -> Division | None:
    """The division of users into groups, or None where groups do not pay.

    Args:
        ratio: The ratio of one report.
        users: Number of users.
        sample: Number of users drawn, if it is fixed.

    Returns:
        The division.
    """
    senders = users * ratio.rate if sample is None else sample
    if senders < GROUP_SENDERS_MIN or not _GROUP_SIGMA_MIN <= ratio.scale <= _GROUP_SIGMA_MAX:
        return None
    # With many users the variance decides: thin nobody, and cut places finely to pay for little skew.
    if crowd_size(users, sample) >= unthinned_from(ratio.scale):
        at, size, cuts = -math.inf, 0.27, tuple(np.linspace(-1.0, 1.0, 9).tolist())
    # With few, large terms matter as well: thinning bounds them, and fewer intervals leave fewer users aside.
    elif ratio.scale < 1.75:
        at, size, cuts = 1.0, 0.4, _FEW_SENDERS_CUTS[0]
    else:
        at = 1.0 if users < 500 and ratio.scale < 2.5 else 0.25 if ratio.rate == 1.0 else 0.0
        size, cuts = 0.5, _FEW_SENDERS_CUTS[int(senders >= 400)]
    if sample is not None:
        # To keep everybody leaves less to mix, and groups cost the users that are in none.
        return Division(size=max(2, round(min(size, 0.4) * math.sqrt(sample))), cuts=cuts, t=-math.inf, drawn=True)
    hidden = users * Thinning.of(1.0 / ratio.scale, at).q
    return Division(size=max(2, round(size * math.sqrt(hidden / ratio.rate))), cuts=cuts, t=at)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """A number of hidden users with its chance: `groups` of them and `aside` users; v has the law numbered `law`."""

    hidden: int
    aside: int
    law: int
    groups: int
    chance: float


# One user at a place


@dataclass(frozen=True, kw_only=True)
class _Unthinned:
    """A user without thinning: `X = (w - v) e^(-r a y + r^2 a^2 / 2) rho`, rho an independent lognormal on nodes."""

    r: float
    place: float
    node: FloatArray
    chance: FloatArray

    @classmethod
    def of(cls, r: float, place: float, share: float, fine: float) -> _Unthinned:
        width = r * math.sqrt(1.0 - place**2)
        node, chance = (np.ones(1), np.ones(1)) if width == 0.0 else _lognormal(width, share, fine)
        return cls(r=r, place=place, node=node, chance=chance)

    def kinks(self, v: float) -> list[float]:
        a = self.place
        return [root(self.r, a * v / (a - 1.0))] if a < 0.0 < v else []

    def scale(self, y: FloatArray) -> FloatArray:
        shift = self.r * self.place
        return np.exp(-shift * y + 0.5 * shift**2)

    def density(self, y: FloatArray) -> FloatArray:
        return quadrature.normal_density(y - self.r * self.place)[..., None] * self.chance


@dataclass(frozen=True, kw_only=True)
class _ThinnedEnd:
    """A thinned user at x' or opposite to it: ê is a function of y."""

    r: float
    place: float
    thin: Thinning
    node: FloatArray

    def kinks(self, v: float) -> list[float]:
        return [-self.place * self.thin.t]

    def scale(self, y: FloatArray) -> FloatArray:
        return (1.0 - self.thin.tau) * np.exp(np.maximum(0.0, -self.r * (self.thin.t + self.place * y)))

    def density(self, y: FloatArray) -> FloatArray:
        return (quadrature.normal_density(y) / self.scale(y))[..., None]


@dataclass(frozen=True, kw_only=True)
class _ThinnedMiddle:
    """A thinned user elsewhere: 1 / ê has a law given y, on nodes."""

    r: float
    place: float
    thin: Thinning
    node: FloatArray

    @classmethod
    def of(cls, r: float, place: float, thin: Thinning, share: float, fine: float) -> _ThinnedMiddle:
        # error 2: beyond it 1 / ê has less than `share` of first moment
        last = max(-r * (thin.t + quadrature.quantile(share) - r), 0.1 * r)
        steps = _finer(_NODE_STEP * r * math.sqrt(1.0 - place**2) * np.array([1.0] * 6 + [1.5, 2.0] + [3.0] * 64), fine)
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
        density = np.zeros(at.shape)
        density[..., 0] = special.ndtr(-at[..., 0]) / self.node[0]
        density[..., -1] = lift[..., 0] * special.ndtr(at[..., -1] - r * side)
        density[..., :-1] += total - right
        density[..., 1:] += right
        density *= quadrature.normal_density(y)[..., None]
        return density


def _between(at: FloatArray) -> FloatArray:
    """Normal masses between falling points, each from its nearer tail."""
    low, high = special.ndtr(at), special.ndtr(-at)
    # A difference of two numbers near 1 has no digits left; one of two small ones has.
    return np.where(at[..., 1:] > 0.0, high[..., 1:] - high[..., :-1], low[..., :-1] - low[..., 1:])


_Place = _Unthinned | _ThinnedEnd | _ThinnedMiddle


def _user(r: float, place: float, thin: Thinning, share: float, fine: float) -> _Place:
    if thin.q == 1.0:
        return _Unthinned.of(r, place, share, fine)
    if abs(place) == 1.0:
        return _ThinnedEnd(r=r, place=place, thin=thin, node=np.ones(1))
    return _ThinnedMiddle.of(r, place, thin, share, fine)


def _gauss(edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights over (cell, node)."""
    widths = np.diff(edges)[:, None]
    return edges[:-1, None] + 0.5 * widths * (_GAUSS + 1.0), 0.5 * widths * _WEIGHTS


def _finer(steps: FloatArray, fine: float) -> FloatArray:
    """Steps `fine` times as fine: cut into parts, or taken together in pairs."""
    if fine < 0.75:
        return np.add.reduceat(steps, np.arange(0, len(steps), 2))
    parts = round(fine)
    return np.repeat(steps / parts, parts)


def _lognormal(width: float, share: float, fine: float) -> tuple[FloatArray, FloatArray]:
    """A lognormal of mean 1, spread on nodes from 0 on."""
    last = width - quadrature.quantile(share)
    steps = _NODE_STEP * np.cumsum(_finer(np.concatenate([[0.5], np.ones(4), 1.4 ** np.arange(1.0, 12.0)]), fine))
    ends = np.concatenate([-steps[steps < last - 1.0][::-1], steps[steps < last - 1.0], [last]])
    value = np.append(0.0, np.exp(width * ends - 0.5 * width**2))
    z, weight = _gauss(np.union1d(np.linspace(-last, last, math.ceil(2.0 * last / _REPORT_CELL) + 1), ends))
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
    """Edges of cells of reports below and above the report at which w is v."""
    low, high = quadrature.quantile(share / max(v, 1.0)), r - quadrature.quantile(share)
    z = min(max(root(r, v), low), high)
    below, above = (np.linspace(a, b, math.ceil(fine * (b - a) / _REPORT_CELL) + 1) for a, b in ((low, z), (z, high)))
    return below, above


@dataclass(frozen=True, kw_only=True)
class _PlaceTerm:
    """X(v) + v - 1 as points and masses; `size` is its mean size where there is a report."""

    point: FloatArray
    mass: FloatArray
    size: float
    stretch: float
    cut: float


def _place_term(
    ratio: Lognormal, halves: Sequence[tuple[FloatArray, FloatArray]], v: float, share: float
) -> _PlaceTerm:
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
    lost = 0.0 if rest > _REST_MIN else 2.0**-44 * (1.0 + v)
    return _PlaceTerm(
        point=point,
        mass=mass,
        size=size,
        stretch=8.0 * _QUADRATURE + places,
        cut=ratio.rate * (4.0 * share * max(1.0, v) + lost),
    )


def _interval_terms(
    ratio: Lognormal, thin: Thinning, cuts: Sequence[float], v: float, share: float, fine: float = 1.0
) -> list[_PlaceTerm]:
    """X(v) + v - 1 of a user in each interval between neighbouring cuts."""
    r = 1.0 / ratio.scale
    # Above 0 the user at the lower end of an interval is the worst one, below 0 that at its upper end.
    below, above = _sides(r, v, share, fine)
    users = [_user(r, a, thin, share, fine) for a in cuts]
    nothing = np.empty(0), np.empty(0)
    highs = [_half_term(user, v, above) if len(above) > 1 else nothing for user in users[:-1]]
    lows = [_half_term(user, v, below) if len(below) > 1 else nothing for user in users[1:]]
    return [_place_term(ratio, halves, v, share) for halves in zip(highs, lows, strict=True)]


# Groups


def without_repeats(points: FloatArray, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cells in order, without points that two levels share."""
    # The last point of a level is the first of the next: one point, its masses added.
    first = np.append(True, np.diff(points) > 0.0)
    return points[first], np.add.reduceat(rows, np.flatnonzero(first), axis=1)


def _prices_of_rows(points: FloatArray, rows: FloatArray) -> FloatArray:
    """Puts below 0, calls from there on, of each law: sums of positive terms."""
    steps = np.diff(points)
    above, below = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1], np.cumsum(rows, axis=1)
    calls, puts = np.zeros_like(rows), np.zeros_like(rows)
    calls[:, :-1] = np.cumsum((above[:, 1:] * steps)[:, ::-1], axis=1)[:, ::-1]
    puts[:, 1:] = np.cumsum(below[:, :-1] * steps, axis=1)
    return np.where(points < 0.0, puts, calls)


def _relative_mean(points: FloatArray, rows: FloatArray) -> float:
    """The largest mean of the laws, relative to their mean size."""
    return float(np.max(np.abs(rows @ points) / (rows @ np.abs(points))))


def law_of_largest_prices(points: FloatArray, rows: FloatArray) -> tuple[FloatArray, float]:
    """The law of the largest prices of several laws of mean 0, and its stretch.

    All of the laws, centred, are below this one, centred and stretched (error 3).

    Args:
        points: Increasing points, one of which is 0.
        rows: Masses over (law, point).

    Returns:
        Masses of the law at the points, and the stretch.
    """
    price, place = _prices_of_rows(points, rows), np.arange(len(points))
    best, top, steps = price.argmax(axis=0), price.max(axis=0), np.diff(points)
    # Where another law leads next to a point, the largest prices bend there by more than those of the one that leads.
    # error 3: all sums of positive terms, so that small prices keep their digits
    mass = rows[best, place]
    mass[:-1] += np.maximum(top[1:] - price[best[:-1], place[1:]], 0.0) / steps
    mass[1:] += np.maximum(top[:-1] - price[best[1:], place[:-1]], 0.0) / steps
    # Rounding may leave the mass a little off 1; what that takes from a price is found in the comparison below.
    mass /= mass.sum()
    result, occupied = _prices_of_rows(points, mass[None])[0], top > PRICE_CHARGE
    lack = float(np.max(1.0 - result[occupied] / top[occupied], initial=0.0))
    off = _relative_mean(points, rows) + _relative_mean(points, mass[None])
    return mass, 2.0 * lack + 8.0 * off + 64.0 * len(points) * UNIT


def interval_batch(
    ratio: Lognormal, thin: Thinning, cuts: Sequence[tuple[float, ...]], nodes: MixtureNodes, half: int, share: float
) -> tuple[Batch, list[int]]:
    """One term for each v and each interval between cuts, and the number of laws of each v."""
    weight = nodes.weight
    fine = half / _GROUP_HALF
    terms = [
        _interval_terms(ratio, thin, cut, v, share, fine) for cut, v in zip(cuts, nodes.value.tolist(), strict=True)
    ]
    kinds = np.array([len(row) for row in terms])
    sizes = np.array([float(np.mean([term.size for term in row])) for row in terms])
    base = base_for(float(weight @ sizes) / float(weight.sum()), half)
    all_terms = [term for row in terms for term in row]
    single = batch(
        [atoms_on_grid(term.point, term.mass, half, base) for term in all_terms],
        base,
        weight=np.repeat(weight / kinds, kinds),
        stretch=[term.stretch for term in all_terms],
        cut=[term.cut for term in all_terms],
    )
    return single, kinds.tolist()


def _group_batch(
    ratio: Lognormal, thin: Thinning, grouping: Division, nodes: MixtureNodes, half: int, share: float
) -> Batch:
    """The sum of one group for each v."""
    weight = nodes.weight
    cuts = [grouping.cuts_for(chance) for chance in weight.tolist()]
    single, kinds = interval_batch(ratio, thin, cuts, nodes, half, share)
    # All intervals and all v go through the same doublings, on one grid.
    group = sums_by_count(single, share)(grouping.size)
    points = in_order(group.points())
    laws, stretch, cut = [], [], []
    for last, kind in zip(np.cumsum(kinds).tolist(), kinds, strict=True):
        rows_of_v = slice(last - kind, last)
        at, rows = without_repeats(points, in_order(group.rows[0, rows_of_v]))
        # One law above the group wherever it stands; its grid was made for single groups, the next is for their sums.
        mass, lack = law_of_largest_prices(at, rows / rows.sum(axis=1)[:, None])
        laws.append((at[mass > 0.0], mass[mass > 0.0]))
        stretch.append((1.0 + float(group.stretch[rows_of_v].max())) * (1.0 + lack) - 1.0)
        cut.append(float(group.cut[rows_of_v].max()) + PRICE_CHARGE)
    deviations = np.array([float(mass @ np.abs(at)) for at, mass in laws])
    base = base_for(float(weight @ deviations) / float(weight.sum()), half)
    return batch(
        [atoms_on_grid(at, mass, half, base) for at, mass in laws], base, weight=weight, stretch=stretch, cut=cut
    )


# What user 1 looks like among those taken aside


@dataclass(frozen=True, kw_only=True)
class MixtureNodes:
    """Values of v; chances of each over (law, value), and what each law has beyond the last.

    `weight` is the chance of each value over all laws.
    """

    value: FloatArray
    chance: FloatArray
    beyond: FloatArray
    weight: FloatArray

    @classmethod
    def of(cls, laws: Sequence[PricedLaw], parts: Sequence[float], budget: float, fine: float = 1.0) -> MixtureNodes:
        """`parts` are the chances of the laws."""
        share = np.array(parts) / math.fsum(parts)
        # Steps of about one deviation cost little: v is the smaller part of f, and its spread adds variances.
        size = 1.25 * float(share @ np.array([float(law.mass @ np.abs(law.gap)) for law in laws]))
        first, last = min(_first_node(law, budget) for law in laws), max(_last_node(law, budget) for law in laws)
        steps = size * np.cumsum(_finer(np.append(0.5, _MIXTURE_STEPS), fine))
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


def _first_node(law: PricedLaw, budget: float) -> float:
    """The last point at which puts are within the budget."""
    puts = np.append(0.0, np.cumsum(np.cumsum(law.mass[:-1]) * np.diff(law.gap)))
    return float(law.gap[int(np.searchsorted(puts, budget, side="right")) - 1])


def _last_node(law: PricedLaw, budget: float) -> float:
    """The first point at which calls are within the budget."""
    tail = np.append(np.cumsum(law.mass[:0:-1])[::-1], 0.0)
    calls = law.infinite + np.append(np.cumsum((tail[:-1] * np.diff(law.gap))[::-1])[::-1], 0.0)
    return float(law.gap[int(np.argmax(calls <= max(budget, 2.0 * law.infinite)))])


def grouped_prices(
    ratio: Lognormal,
    thin: Thinning,
    grouping: Division,
    aside: Mapping[int, PricedLaw],
    cases: Sequence[Grouped],
    lost: float,
    error: float,
    half: int,
    budget: float,
) -> Prices:
    """Prices of f with groups.

    Args:
        ratio: The ratio of one report.
        thin: The thinning.
        grouping: How users are grouped.
        aside: Laws above S', by the keys of the cases.
        cases: Numbers of hidden users with their chances.
        lost: The chance of all other numbers.
        error: Relative error of the chances.
        half: Number of cells on either side of a level's middle.
        budget: First moment that each term may lose.

    Returns:
        Prices at the points of a grid.
    """
    keys = sorted(aside)
    parts = [math.fsum(case.chance for case in cases if case.law == key) for key in keys]
    nodes = MixtureNodes.of([aside[key] for key in keys], parts, budget, 2.0 * half / _GROUP_HALF)
    group = grouping.group_laws(ratio, thin, nodes, half, budget)
    totals = sums(group, [case.groups for case in cases], grouping.size * budget)
    # Groups that straddle an end of an interval: as many users of whom nothing is known (proposition 5).
    if grouping.lone:
        user, _ = interval_batch(ratio, thin, [_ANYWHERE] * len(nodes.value), nodes, half, budget)
        lone = sums_by_count(user, budget)(grouping.lone)
        totals = {0: lone, **{count: batch_sum(total, lone, budget) for count, total in totals.items()}}
    laws = {count: total.laws() for count, total in totals.items()}
    laws.setdefault(0, [NO_TERMS] * len(nodes.value))
    mixture = Mixture(cut=lost)
    for case in cases:
        law_place = keys.index(case.law)
        # error 1
        mixture.cut += 2.0 * case.chance * float(nodes.beyond[law_place])
        for v, chance, law in zip(
            nodes.value.tolist(), nodes.chance[law_place].tolist(), laws[case.groups], strict=True
        ):
            mixture.add(case.chance * chance, law, (case.aside + 1) * (v - 1.0), case.hidden + 1)
    # error 4
    return mixture.prices(error + _CHANCE_ERROR, half)

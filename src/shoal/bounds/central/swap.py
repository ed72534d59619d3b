"""One record among those of a sampled batch: pairs of mixtures of two Gaussians on the line.

A trusted server draws a batch, sums its clipped vectors and adds `N(0, (C sigma)^2 I)`. One record holds x in D and x'
in D'. It is in the batch with probability q; if not, another vector o may stand in its place (sampling without
replacement), or nothing does (o = 0, Poisson sampling). Given all the rest of the batch, the two laws are, up to a
shift,

    P = (1 - q) N(o) + q N(x),      Q = (1 - q) N(o) + q N(x'),

so that, by joint convexity, `delta(P || Q)(log k)` is at most the largest `E[((1 - q)(1 - k) p_o + q p_x - k q p_x')+]`
over vectors of norm at most 1. The following theorem finds it; vectors are written in one coordinate.

*Theorem.* For k >= 1 the largest value is reached at

| sampling | adjacency | x | x' | o | k <= 1: o |
|---|---|---|---|---|---|
| Poisson | zero-out | 1 | 0 | 0 | 0 |
| Poisson | replace | 1 | -1 | 0 | 0 |
| without replacement | zero-out | 1 | 0 | -1 | 1 |
| without replacement | replace | 1 | -1 | -1 | 1 |

*Proof.* Coordinates of its own bring a vector to norm 1; leaving them out again is post-processing. Take the density
from the place that is fixed (o for Poisson, x' = 0 for zero-out) as the base of two likelihood ratios u and v of
the other two vectors: increasing functions of two standard Gaussians, whose correlation is the inner product.
`(c + alpha u - beta v)+` with alpha, beta >= 0 is submodular, so its mean falls with the correlation, and is largest
for opposite vectors; with both signs equal it is supermodular, and largest for equal ones (Slepian; Mueller and
Stoyan 2002). For zero-out without replacement the signs are those of q and (1 - q)(1 - k): opposite for
k > 1, equal for k < 1. For replace without replacement, k >= 1, `P - k Q = q (p_x - k' m)` with m a mixture of p_x' and
p_o and k' = 1 + (k - 1)/q; convexity in m leaves one pair at a distance of at most 2 (Balle, Barthe and Gaboardi
2018, theorem 2; Zhu, Dong and Wang 2022, theorem 11). k <= 1 is the same with P and Q exchanged.

The Poisson pairs are those of Mironov, Talwar and Zhang (2019) for zero-out, and for replace that of
Lebeda, Regehr, Kamath and Steinke (2024) and of dp_accounting's `AdjacencyType.REPLACE`.

The largest value at each k, convex in k as a maximum of convex functions, is that of *one* pair of laws, which
therefore dominates every round, and round by round every adaptive composition (Zhu, Dong and Wang 2022, theorem 10):
its losses above 0 are those of the pair for k >= 1, its losses below 0 those of the pair for k <= 1, all other mass has
loss 0. With replacement of a real stand-in the two pairs are of two crowds, so that the dominating one is no real one:
one round is exact, several are bounded from above (that the worst data set
of one round need not be that of several is a point of Lebeda et al. 2024).

*Computed* panel by panel of the line, on each of which the loss does not change its sign; above loss 0 it rises with
the output. (`D = log p_x/p_x'` is linear and `P/Q = 1 + r (e^D - 1)`, r the posterior chance under Q that the record
was in. Where x' is not below o both factors rise while D > 0; for Poisson and replace P rises with the output, seen
from p_o, and Q falls.) From above the mass of a panel goes to the losses at its two ends so that P- and Q-mass
stay; from below it stays together: merging is post-processing.

*Errors*, u = 2^-53:

1. Masses of panels are sums of positive terms by a rule that is exact to round-off (`quadrature`): the factor
   `1 +- 2^10 u` is the same for P and Q.
2. The loss of a panel is made of terms of one sign, and so is off by a part of itself that is 4u times the largest
   exponent, and by what rounding of the place does to it; it is moved by more.
3. Tails of less than the budget are charged as mass of infinite loss, or left out.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import LAW_RATE_MIN, ROUNDED_UP, SCALE_MAX, SCALE_MIN, UNIT, Direction, FloatArray, Side
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Round

_MASS_ERROR = 1024.0 * UNIT
"""error 1"""

_MOMENT_REACH = 64.0
"""Reach of integrals, in deviations, beyond which Rényi orders get the local bound."""

_LAYOUT_POINTS = 4096
"""Number of points from which the panels are laid out."""

_NOISE_MIN, _NOISE_MIN_OPPOSITE = SCALE_MIN, 0.2
"""The smallest scales whose losses can be composed, where nothing or another record takes the place of this one."""

_MOMENT_ERROR = 1e-9
"""A relative bound on the error of a logarithmic moment, of its quadrature and of what is cut at the ends."""


@dataclass(frozen=True, kw_only=True)
class Swap:
    """P = (1 - rate) N(place_out) + rate N(place_p); Q has `place_q` for `place_p`. The noise has deviation `scale`."""

    scale: float
    rate: float
    place_p: float
    place_q: float
    place_out: float

    @property
    def reversed(self) -> Swap:
        """The pair with P and Q exchanged and the line reflected, so that losses rise again."""
        return replace(self, place_p=-self.place_q, place_q=-self.place_p, place_out=-self.place_out)

    @property
    def middle(self) -> float:
        """The place where the loss is 0, in deviations; above it P is more likely, as `place_p` is above `place_q`."""
        return 0.5 * (self.place_p + self.place_q) / self.scale

    def log_ratio(self, z: FloatArray) -> FloatArray:
        """log P/Q at the output z (in deviations), to a few units of itself."""
        place_p, place_q, place_out = (place / self.scale for place in (self.place_p, self.place_q, self.place_out))
        distance = (place_p - place_q) * (z - self.middle)
        odds = (place_q - place_out) * (z - 0.5 * (place_q + place_out))
        if self.rate < 1.0:
            odds = odds + (math.log(self.rate) - math.log1p(-self.rate))
            share, rest = special.log_expit(odds), special.log_expit(-odds)
        else:
            share, rest = np.zeros_like(odds), np.full_like(odds, -math.inf)
        # P/Q = 1 + share (e^distance - 1): near loss 0 by its change, elsewhere as a sum of two terms.
        change = np.exp(share) * np.expm1(np.minimum(distance, 700.0))
        is_small = np.abs(change) < 0.5
        return np.where(is_small, np.log1p(np.where(is_small, change, 0.0)), np.logaddexp(rest, share + distance))

    def density(self, z: FloatArray, place: float) -> FloatArray:
        """The density of P (`place = place_p`) or Q (`place = place_q`).

        Args:
            z: Outputs, in deviations.
            place: Where the record puts the mean of the output.

        Returns:
            One density for each output.
        """
        absent: FloatArray = (1.0 - self.rate) * quadrature.normal_density(z - self.place_out / self.scale)
        return absent + self.rate * quadrature.normal_density(z - place / self.scale)

    def ends(self, budget: float) -> tuple[float, float]:
        """The points outside of which P and Q have less mass than the budget."""
        tail = quadrature.quantile(budget)
        places = [place / self.scale for place in (self.place_p, self.place_q, self.place_out)]
        return min(places) + tail, max(places) - tail


@dataclass(frozen=True, kw_only=True)
class _LossPanels:
    """Panels of the line: P-mass, loss of the panel as one, and the losses at its ends, one more than panels."""

    top: FloatArray
    loss: FloatArray
    ends: FloatArray
    error: FloatArray
    """By how much a panel's losses may be off."""


def _places(swap: Swap, low: float, high: float, half: int) -> FloatArray:
    """Points between which losses change by 1/(2 half) of themselves, or of a typical loss where they are smaller."""
    z = np.linspace(low, high, _LAYOUT_POINTS)
    loss = np.abs(swap.log_ratio(z))
    order = np.argsort(loss)
    total = np.cumsum(swap.density(z, swap.place_p)[order])
    # The median loss under P: below twice of it steps are absolute, or there would be no end of them towards 0.
    typical = float(loss[order][int(np.searchsorted(total, 0.5 * total[-1]))])
    size = np.maximum(0.5 * (loss[1:] + loss[:-1]), max(2.0 * typical, 1e-300))
    count = np.append(0.0, np.cumsum(2.0 * half * np.abs(np.diff(loss)) / size + half / _LAYOUT_POINTS))
    return np.interp(np.linspace(0.0, count[-1], math.ceil(count[-1]) + 1), count, z)


def _loss_panels(swap: Swap, low: float, high: float, half: int) -> _LossPanels:
    """Panels between two points that lie on one side of the place where the loss is 0."""
    growth = 2.0 * max(abs(swap.place_p), abs(swap.place_q), abs(swap.place_out)) / swap.scale
    cuts = quadrature.panel_edges(low, high, _places(swap, low, high, half), growth)
    z, weight = (values.reshape(-1, 6) for values in quadrature.panel_nodes(cuts))
    # e^-loss is the mean of its values under P above 0, e^loss that under Q below: |loss| beyond the panel's least
    sign, place = (1.0, swap.place_p) if low >= swap.middle else (-1.0, swap.place_q)
    size = np.maximum(sign * swap.log_ratio(z), 0.0)
    size_min = size.min(axis=1)
    mass = weight * swap.density(z, place)
    whole = np.maximum(mass.sum(axis=1), 1e-300)
    merged_size = size_min - np.log1p((mass * np.expm1(size_min[:, None] - size)).sum(axis=1) / whole)
    top = whole if sign > 0.0 else (weight * swap.density(z, swap.place_p)).sum(axis=1)
    distances = abs(swap.place_p - swap.place_q) + abs(swap.place_q - swap.place_out)
    exponents = distances / swap.scale * (abs(low) + abs(high) + growth)
    ends = swap.log_ratio(cuts)
    # error 2. Rounding of the place is felt where the loss is small: by the slope of the loss there.
    slope = np.abs(np.diff(ends)) / np.diff(cuts)
    error = 16.0 * UNIT * (16.0 - math.log(swap.rate) + exponents) * np.maximum(np.abs(ends[1:]), np.abs(ends[:-1]))
    error += 16.0 * UNIT * (1.0 + abs(low) + abs(high)) * slope
    return _LossPanels(top=top, loss=sign * merged_size, ends=ends, error=error)


def _atoms_at_ends(line: _LossPanels) -> tuple[FloatArray, FloatArray]:
    """Losses and P-masses from above: each panel's mass at its two ends."""
    low, width = line.ends[:-1], np.maximum(np.diff(line.ends), 1e-300)
    # error 2: a little more of the mass goes to the upper end, and both ends go up below.
    offset = np.clip(line.loss + line.error - low, 0.0, width)
    right = np.expm1(-offset) / np.expm1(-width)
    top = np.zeros_like(line.ends)
    top[:-1] += line.top * (1.0 - right)
    top[1:] += line.top * right
    # An end belongs to the panels on both of its sides.
    error = np.maximum(np.append(line.error, 0.0), np.append(0.0, line.error))
    return line.ends + error, top * (1.0 + _MASS_ERROR)


def _atoms_in_panels(line: _LossPanels) -> tuple[FloatArray, FloatArray]:
    """Losses and P-masses from below: each panel as one."""
    return line.loss - line.error, line.top * (1.0 - _MASS_ERROR)


@functools.lru_cache(maxsize=32)
def _gains(swap: Swap, half: int, budget: float) -> _LossPanels:
    """The panels on which the loss is above 0."""
    return _loss_panels(swap, swap.middle, max(swap.ends(budget)[1], swap.middle + 1.0), half)


# Rounds, as `composition` knows them


@dataclass(frozen=True, kw_only=True)
class _OnTheLine(Round):
    """A round on the line; the record in the clear is one report that moves from `place_q` to `place_p`."""

    swap: Swap

    @property
    def is_in_range(self) -> bool:
        noise_min = _NOISE_MIN if self.swap.place_out == 0.0 else _NOISE_MIN_OPPOSITE
        return noise_min <= self.swap.scale and self.ratio.scale <= SCALE_MAX and self.swap.rate >= LAW_RATE_MIN

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.swap.scale / (self.swap.place_p - self.swap.place_q))

    @property
    def users(self) -> int:
        return 1

    @property
    def weight(self) -> float:
        return self.swap.rate

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 2.0 * _MASS_ERROR, 2.0 * budget  # errors 1 and 3, of P and of Q


@dataclass(frozen=True, kw_only=True)
class Worst(_OnTheLine):
    """The pair that dominates: losses above 0 are those of `swap`, losses below 0 those with `place_out_below`."""

    place_out_below: float

    def _swaps(self, direction: Direction) -> tuple[Swap, Swap]:
        """The pair with the losses above 0, and the pair whose losses above 0, mirrored, are those below."""
        forward_swap, reverse_swap = self.swap, replace(self.swap, place_out=self.place_out_below).reversed
        return (forward_swap, reverse_swap) if direction == "forward" else (reverse_swap, forward_swap)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        up, down = (_gains(swap, half, budget) for swap in self._swaps(direction))
        atoms = _atoms_at_ends if side == "upper" else _atoms_in_panels
        (gains, top), (losses, mirrored) = atoms(up), atoms(down)
        under = mirrored * np.exp(-losses)
        if side == "upper":
            # What is missing has loss 0, and so has what was cut from the losses below; what was cut above is error 3.
            rest, infinite = 1.0 - float(top.sum() + under.sum()), budget * ROUNDED_UP
        else:
            rest, infinite = self._rest(direction), 0.0
        rest = max(rest, 0.0) * (1.0 + (_MASS_ERROR if side == "upper" else -_MASS_ERROR))
        loss, mass = np.concatenate([-losses[::-1], [0.0], gains]), np.concatenate([under[::-1], [rest], top])
        occupied = mass > 0.0
        loss, mass = loss[occupied], mass[occupied]
        # Moved ends of both halves may pass each other around 0.
        order = np.argsort(loss, kind="stable")
        loss, mass = loss[order], mass[order]
        return Pair(side=side, loss=loss, base=mass * np.exp(-loss), top=mass, infinite=infinite)

    def _rest(self, direction: Direction) -> float:
        """The mass of loss 0, too small by its rounding: neither above 0, nor (as base mass of the mirror) below."""
        up, down = self._swaps(direction)
        direct = [float(special.ndtr(place / up.scale - up.middle)) for place in (up.place_out, up.place_p)]
        mirror = [float(special.ndtr(place / down.scale - down.middle)) for place in (down.place_out, down.place_q)]
        return 1.0 - (1.0 - up.rate) * (direct[0] + mirror[0]) - up.rate * (direct[1] + mirror[1]) - 64.0 * UNIT

    def limited(self) -> Worst:
        scale_max = SCALE_MAX * (self.swap.place_p - self.swap.place_q)
        return replace(self, swap=replace(self.swap, scale=min(self.swap.scale, scale_max)))

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """`log E[S^L]` of the dominating pair by quadrature, or of the record and its coin in the clear.

        `E[S^L] - 1` is the mean of `S^L - 1 - L (S - 1)`, as S has mean 1: terms of one sign.
        """
        local = replace(self.ratio, rate=self.swap.rate).log_moments(orders) * (1.0 + _MOMENT_ERROR)
        swaps = self._swaps(direction)
        # The loss rises no faster than this with the output, so that integrals of e^((L-1) loss) end so far out.
        steepest = max(swap.place_p - min(swap.place_q, swap.place_out) for swap in swaps) / self.swap.scale
        reach = (orders + 2.0) * steepest
        bounds = local.copy()
        for place in np.flatnonzero(reach <= _MOMENT_REACH).tolist():
            # In powers of two, so that orders share their nodes.
            end = 2.0 ** math.ceil(math.log2(reach[place]))
            excess = _excess(tuple(_moment_nodes(swap, end) for swap in swaps), float(orders[place]))
            bounds[place] = min(local[place], float(np.logaddexp(0.0, excess)) * (1.0 + _MOMENT_ERROR))
        return bounds


@functools.lru_cache(maxsize=16)
def _moment_nodes(swap: Swap, reach: float) -> tuple[FloatArray, FloatArray]:
    """Losses above 0 and logarithms of the P-masses of nodes, as far as moments look.

    At the end integrands fall by a factor of e^-13 a deviation or faster: the last node, of weight 1, is for the rest.
    """
    # 1e-40: thirteen deviations beyond where the integrand can have its peak.
    end = swap.ends(1e-40)[1] + reach
    z, weight = quadrature.nodes(swap.middle, end, np.zeros(0), reach)
    z, weight = np.append(z, end), np.append(weight, 1.0)
    places = [(1.0 - swap.rate, swap.place_out), (swap.rate, swap.place_p)]
    terms = [math.log(share) - 0.5 * (z - place / swap.scale) ** 2 for share, place in places if share > 0.0]
    return swap.log_ratio(z), np.logaddexp.reduce(terms) + np.log(weight) - 0.5 * math.log(2.0 * math.pi)


def _excess(nodes: tuple[tuple[FloatArray, FloatArray], ...], order: float) -> float:
    """`log (E[S^order] - 1)`."""
    (gain, top), (loss, mirrored) = nodes
    # above: e^((L-1) x) - L + (L-1) e^-x under P; below: e^(-L x) - 1 + L (1 - e^-x) under the mirror's P
    up = np.logaddexp(_log_bend((order - 1.0) * gain), math.log(order - 1.0) + _log_bend(-gain))
    down = np.exp(_log_bend(-order * loss)) - order * np.exp(_log_bend(-loss))
    with np.errstate(divide="ignore"):
        terms = np.concatenate([up + top, np.log(np.maximum(down, 0.0)) + mirrored])
    term_max = float(terms.max())
    return term_max + math.log(float(np.exp(terms - term_max).sum()))


def _log_bend(x: FloatArray) -> FloatArray:
    """`log(e^x - 1 - x)`, without cancellation near 0."""
    # The series is exact to 1e-13 there; beyond, the difference loses no more than that.
    small = np.abs(x) < 1e-2
    with np.errstate(divide="ignore", over="ignore"):
        series = np.log(0.5 * x**2) + np.log1p(x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0 * (1.0 + x / 6.0))))
        middle = np.log(np.maximum(np.expm1(np.minimum(x, 30.0)) - np.minimum(x, 30.0), 1e-300))
    large: FloatArray = np.where(x > 30.0, x, middle)
    return np.where(small, series, large)


@dataclass(frozen=True, kw_only=True)
class Real(_OnTheLine):
    """The pair of one crowd that can really happen, from below: merged panels, whatever the sign of their loss."""

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        low, high = self.swap.ends(budget)
        lines = [_loss_panels(self.swap, *ends, half) for ends in ((low, self.swap.middle), (self.swap.middle, high))]
        loss, top, error = (np.concatenate([getattr(x, name) for x in lines]) for name in ("loss", "top", "error"))
        if direction == "reverse":
            # The same panels with P and Q exchanged: an attack looks at tests of both directions, and those of other
            # panels could be better than all that the upper side of these shows.
            loss, top = -loss, top * np.exp(-loss - error)
        loss, top, infinite = loss - error, top * (1.0 - _MASS_ERROR), 0.0
        if side == "upper":
            # Merged, too: what the attack as it is shows at most. All of errors 1 to 3 the other way round.
            loss, top, infinite = (
                loss + 8.0 * error,
                top * (1.0 + 8.0 * _MASS_ERROR) * np.exp(2.0 * error),
                2.0 * budget,
            )
        occupied = top > 0.0
        loss, top = loss[occupied], top[occupied]
        order = np.argsort(loss)
        loss, top = loss[order], top[order]
        return Pair(side=side, loss=loss, base=top * np.exp(-loss), top=top, infinite=infinite)

    def limited(self) -> Real:
        # An attack is what it is.
        return self

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise ValueError("an attack has no Rényi divergence from above")

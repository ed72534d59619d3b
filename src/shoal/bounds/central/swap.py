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

*Computed* by `lines`: above loss 0 it rises with the output. (`D = log p_x/p_x'` is linear and `P/Q = 1 + r (e^D - 1)`,
r the posterior chance under Q that the record was in. Where x' is not below o both factors rise while D > 0; for
Poisson and replace P rises with the output, seen from p_o, and Q falls.)

*Errors*, beyond those of `lines`, u = 2^-53:

1. The loss is made of terms of one sign, and so is off by a part of itself that is 4u times the largest exponent; 16u
   times more than that exponent is charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.central.lines import MASS_ERROR, TwoHalves, loss_panels, mixture_density, mixture_log_density
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import LAW_RATE_MIN, SCALE_MAX, SCALE_MIN, UNIT, Direction, FloatArray, Side
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Round

_NOISE_MIN, _NOISE_MIN_OPPOSITE = SCALE_MIN, 0.2
"""The smallest scales whose losses can be composed, where nothing or another record takes the place of this one."""


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

    def _components(self, place: float) -> tuple[tuple[float, float], tuple[float, float]]:
        """Shares and places, in deviations, of P (`place = place_p`) or Q (`place = place_q`)."""
        return (1.0 - self.rate, self.place_out / self.scale), (self.rate, place / self.scale)

    def density_p(self, z: FloatArray) -> FloatArray:
        """The density of P."""
        return mixture_density(z, self._components(self.place_p))

    def density_q(self, z: FloatArray) -> FloatArray:
        """The density of Q."""
        return mixture_density(z, self._components(self.place_q))

    def log_density_p(self, z: FloatArray) -> FloatArray:
        """The logarithm of the density of P."""
        return mixture_log_density(z, self._components(self.place_p))

    @property
    def growth(self) -> float:
        """The largest growth rate of the exponentials in both densities."""
        return 2.0 * max(abs(self.place_p), abs(self.place_q), abs(self.place_out)) / self.scale

    @property
    def steepest(self) -> float:
        """A bound on the slope of the loss."""
        return (self.place_p - min(self.place_q, self.place_out)) / self.scale

    def loss_error(self, z: FloatArray, loss: FloatArray) -> FloatArray:
        """A bound on the error of `log_ratio`.

        Args:
            z: Outputs, in deviations.
            loss: Their losses.

        Returns:
            One bound for each output.
        """
        distances = abs(self.place_p - self.place_q) + abs(self.place_q - self.place_out)
        exponents = distances / self.scale * (2.0 * float(np.abs(z).max()) + self.growth)
        # error 1
        return 16.0 * UNIT * (16.0 - math.log(self.rate) + exponents) * np.abs(loss)

    def ends(self, budget: float) -> tuple[float, float]:
        """The points outside of which P and Q have less mass than the budget."""
        tail = quadrature.quantile(budget)
        places = [place / self.scale for place in (self.place_p, self.place_q, self.place_out)]
        return min(places) + tail, max(places) - tail


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


@dataclass(frozen=True, kw_only=True)
class Worst(_OnTheLine, TwoHalves):
    """The pair that dominates: losses above 0 are those of `swap`, losses below 0 those with `place_out_below`."""

    place_out_below: float

    def lines(self, direction: Direction) -> tuple[Swap, Swap]:
        forward_swap, reverse_swap = self.swap, replace(self.swap, place_out=self.place_out_below).reversed
        return (forward_swap, reverse_swap) if direction == "forward" else (reverse_swap, forward_swap)

    def mass_at_zero(self, direction: Direction) -> float:
        # Neither above 0, nor (as base mass of the mirror) below.
        up, down = self.lines(direction)
        direct = [float(special.ndtr(place / up.scale - up.middle)) for place in (up.place_out, up.place_p)]
        mirror = [float(special.ndtr(place / down.scale - down.middle)) for place in (down.place_out, down.place_q)]
        return 1.0 - (1.0 - up.rate) * (direct[0] + mirror[0]) - up.rate * (direct[1] + mirror[1]) - 64.0 * UNIT

    def local_log_moments(self, orders: FloatArray) -> FloatArray:
        return replace(self.ratio, rate=self.swap.rate).log_moments(orders)

    def limited(self) -> Worst:
        scale_max = SCALE_MAX * (self.swap.place_p - self.swap.place_q)
        return replace(self, swap=replace(self.swap, scale=min(self.swap.scale, scale_max)))


@dataclass(frozen=True, kw_only=True)
class Real(_OnTheLine):
    """The pair of one crowd that can really happen, from below: merged panels, whatever the sign of their loss."""

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        low, high = self.swap.ends(budget)
        lines = [loss_panels(self.swap, *ends, half) for ends in ((low, self.swap.middle), (self.swap.middle, high))]
        loss, top, error = (np.concatenate([getattr(x, name) for x in lines]) for name in ("loss", "top", "error"))
        if direction == "reverse":
            # The same panels with P and Q exchanged: an attack looks at tests of both directions, and those of other
            # panels could be better than all that the upper side of these shows.
            loss, top = -loss, top * np.exp(-loss - error)
        loss, top, infinite = loss - error, top * (1.0 - MASS_ERROR), 0.0
        if side == "upper":
            # Merged, too: what the attack as it is shows at most. All errors the other way round.
            loss, top, infinite = (
                loss + 8.0 * error,
                top * (1.0 + 8.0 * MASS_ERROR) * np.exp(2.0 * error),
                2.0 * budget,
            )
        occupied = top > 0.0
        loss, top = loss[occupied], top[occupied]
        order = np.argsort(loss)
        loss, top = loss[order], top[order]
        return Pair(side=side, loss=loss, base=top * np.exp(-loss), top=top, infinite=infinite)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        return 2.0 * MASS_ERROR, 2.0 * budget

    def limited(self) -> Real:
        # An attack is what it is.
        return self

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        raise ValueError("an attack has no Rényi divergence from above")

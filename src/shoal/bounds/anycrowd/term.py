"""One user's term of the exchange theorem, X(v) + v - mean, for zero-out and for one t of replace.

Letters and thinning as in `anycrowd.exchange` and `anycrowd.direct`: `G(y) = w(y) - t w(-y)` is the *score* of a report
y along x', `w(y) = exp(r y - r^2/2)`. t = 0 is zero-out, where G is the ratio w itself. z is the point with G(z) = v;
-infinity where there is none, that is for t = 0 and v = 0.

- y > z: for y < T density p / (1 - tau) and `X = (1 - tau)(G - v)`; for y > T density `p(y + r) / q` and
  `X = q e^(r y + r^2/2) (G - v)`: the worst user stands at -x';
- y < z: the same with -y for y in the density and the factor: the worst user stands at x';
- X = 0 with the rest of the mass.

T is the t of the thinning.

*Errors*, which stay with the laws:

1. Terms from reports beyond the ends of the grid count as those at the ends: first moments of at most
   `Phi(r - high) + v_- Phi(-high)` and `t Phi(low + r) + v_+ Phi(low)`, (2 + t) `share` for v >= 0 and one `share` more
   below. The first moment of what is left of 1 for X = 0, off by 2^-46 at most, is charged where it is too little to
   be known well.
2. Round-off of masses is 2^12 u from quadrature and densities, a stretch of 8 times that; by the lemma on means of
   `mean_law` (its 4) 12 times the error of positions over the mean size of a term comes to it. Positions are off by
   some u of `|v| + 1 + 2 t`, times the exponent that they come from; for t > 0 two terms cancel where X changes its
   sign, and 1 / ê makes what is left of rounding larger there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.anycrowd.thinning import Thinning, excess_ratio, root
from shoal.bounds.grid import base_for, lattice_points
from shoal.bounds.numeric import UNIT, FloatArray
from shoal.bounds.sums import Batch, atoms_on_grid, batch


@dataclass(frozen=True, kw_only=True)
class Score:
    """`G(y) = w(y) - t w(-y)`, rising; t = 0 is zero-out."""

    r: float
    t: float = 0.0

    @property
    def mean(self) -> float:
        return 1.0 - self.t

    def at(self, y: FloatArray) -> FloatArray:
        if self.t == 0.0:
            return np.exp(self.r * y - 0.5 * self.r**2)
        return np.exp(self.r * y - 0.5 * self.r**2) - self.t * np.exp(-self.r * y - 0.5 * self.r**2)

    def root(self, v: float) -> float:
        """The y with G(y) = v; -infinity if there is none."""
        if self.t == 0.0:
            return root(self.r, v)
        b = v * math.exp(0.5 * self.r**2)
        s = float(_positive_root(b, np.array([self.t]))[0])
        return math.log(s) / self.r if s > 0.0 else -math.inf

    def excess(self, y: FloatArray, v: float) -> FloatArray:
        """G(y) - v, of two terms of one sign."""
        if self.t == 0.0:
            return excess_ratio(y, self.r, v)
        z = self.root(v)
        if z == -math.inf:
            return self.at(y) - v
        up = math.exp(self.r * z - 0.5 * self.r**2) * np.expm1(self.r * (y - z))
        down = self.t * math.exp(-self.r * z - 0.5 * self.r**2) * np.expm1(-self.r * (y - z))
        return up - down

    def ends(self, v: float, share: float) -> tuple[float, float]:
        """Reports beyond which the first moment of X is a few `share` (error 1)."""
        middle = quadrature.quantile(share)
        low = min(middle - (self.r if self.t > 0.0 else 0.0), quadrature.quantile(share / max(v, 1.0)))
        return low, max(self.r - middle, -quadrature.quantile(share / max(-v, 1.0)))

    def position_error(self, v: float, thin: Thinning) -> float:
        """How far positions are off, next to their exponent and to u (error 2)."""
        if self.t == 0.0:
            return 1.0 + v
        z = abs(self.root(v))
        lift = math.exp(self.r * z if thin.q == 1.0 else max(0.0, self.r * (z - thin.t)))
        return (abs(v) + 1.0 + 2.0 * self.t) * lift


def _positive_root(b: float, c: FloatArray) -> FloatArray:
    """The larger s with s^2 = b s + c, without cancellation."""
    side = np.sqrt(b**2 + 4.0 * c)
    return 0.5 * (b + side) if b > 0.0 else 2.0 * c / (side - b)


@dataclass(frozen=True, kw_only=True)
class ScorePiece:
    """Reports between two points, of density `weight` times normal about `place`; X = e^(-place y + r^2/2) (G - v) /
    weight, without the exponential where the place is 0."""

    low: float
    high: float
    place: float
    weight: float

    def value(self, y: FloatArray, score: Score, v: float) -> FloatArray:
        lift = np.exp(-self.place * y + 0.5 * self.place**2) / self.weight
        return lift * score.excess(y, v)

    def density(self, y: FloatArray) -> FloatArray:
        return quadrature.normal_density(y - self.place) * self.weight

    def reports(self, x: FloatArray, score: Score, v: float) -> FloatArray:
        """Where X is x: with s = e^(r y), `s - t / s = b` times s for users at x', times 1 / s for users at -x'."""
        r, b = score.r, v * math.exp(0.5 * score.r**2)
        if self.place < 0.0:
            return np.log(_positive_root(b, score.t + x * self.weight)) / r
        if self.place > 0.0:
            rest = 1.0 - x * self.weight
            side = np.sqrt(b**2 + 4.0 * score.t * rest)
            inverse = 2.0 * rest / (side + b) if b > 0.0 or score.t == 0.0 else (side - b) / (2.0 * score.t)
            return -np.log(inverse) / r
        inside = b + x * (self.weight * math.exp(0.5 * r**2))
        side = np.sqrt(inside**2 + 4.0 * score.t)
        return np.log(np.where(inside > 0.0, 0.5 * (inside + side), 2.0 * score.t / (side - inside))) / r


def score_pieces(score: Score, thin: Thinning, v: float, low: float, high: float) -> list[ScorePiece]:
    """The pieces of the law of X between two reports.

    Args:
        score: The score G.
        thin: The thinning.
        v: User 1's own score.
        low: The smallest report.
        high: The largest report.

    Returns:
        The pieces that are not empty, from the lowest report on.
    """
    t, z = thin.t, min(max(score.root(v), low), high)
    inside, outside = 1.0 / (1.0 - thin.tau), 1.0 / thin.q
    pieces = (
        ScorePiece(low=low, high=min(z, -t), place=score.r, weight=outside),
        ScorePiece(low=max(low, -t), high=z, place=0.0, weight=inside),
        ScorePiece(low=z, high=min(high, t), place=0.0, weight=inside),
        ScorePiece(low=max(z, t), high=high, place=-score.r, weight=outside),
    )
    return [piece for piece in pieces if piece.high > piece.low]


def score_term(
    score: Score, thin: Thinning, v: float, rate: float, share: float, edges: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """X(v) + v - (1 - t) of one user as points and masses.

    Args:
        score: The score G.
        thin: The thinning.
        v: User 1's own score.
        rate: Probability that a report is sent.
        share: First moment of the reports that count as those at the ends.
        edges: Lattice points that no panel of reports crosses.

    Returns:
        Points and masses; the last two are those of X = 0 and of no report.
    """
    r, shift = score.r, v - score.mean
    low, high = score.ends(v, share)
    pieces = score_pieces(score, thin, v, low, high)
    points, masses = [], []
    # X has a density on each piece; a panel that crosses no lattice point of X is shared by two points only, exactly.
    for piece in pieces:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            kinks = piece.reports(edges - shift, score, v)
        y, weight = quadrature.nodes(piece.low, piece.high, kinks[np.isfinite(kinks)], 2.0 * r)
        points.append(piece.value(y, score, v))
        masses.append(weight * piece.density(y))
    for piece, end, sign in ((pieces[0], low, 1.0), (pieces[-1], high, -1.0)):  # error 1
        points.append(piece.value(np.array([end]), score, v))
        masses.append(np.array([special.ndtr(sign * (end - piece.place)) * piece.weight]))
    x, mass = np.concatenate(points), np.concatenate(masses)
    # What is left of mass is X = 0: calls of one user and puts of another leave a gap between them.
    rest = max(0.0, 1.0 - math.fsum(mass))
    return np.concatenate([x + shift, [shift, 0.0]]), np.concatenate([rate * mass, [rate * rest, 1.0 - rate]])


def term_batch(
    score: Score, thin: Thinning, value: FloatArray, weight: FloatArray, *, rate: float, half: int, share: float
) -> Batch:
    """The law of one term for each v.

    Args:
        score: The score G.
        thin: The thinning.
        value: User 1's scores v.
        weight: How much each v matters for the choice of the grid.
        rate: Probability that a report is sent.
        half: Number of cells on either side of a level's middle.
        share: First moment that a term may lose.

    Returns:
        One law for each v.
    """
    r, none = score.r, np.empty(0)
    # Twice: the first pass says how large a term is, which fixes the grid that the second one is made for.
    rough = [score_term(score, thin, v, rate, share, none) for v in value.tolist()]
    sizes = np.array([float(mass @ np.abs(y)) / rate for y, mass in rough])
    base = base_for(float(weight @ sizes) / float(weight.sum()), half)
    exponent = 2.0 * r * (r - quadrature.quantile(share)) + 3.0 * r**2
    rows, stretch, cut = [], [], []
    for v, (y, mass), size in zip(value.tolist(), rough, sizes.tolist(), strict=True):
        edges = lattice_points(half, base, float(y.min()), float(y.max()))
        rows.append(atoms_on_grid(*score_term(score, thin, v, rate, share, edges), half, base))
        wrong = score.position_error(v, thin)
        stretch.append((8.0 * 4096.0 + 12.0 * 64.0 * (2.0 + exponent) * wrong / size) * UNIT)  # error 2
        rest = 2.0**-46 * abs(v - score.mean) if mass[-2] < 2.0**-20 * rate else 0.0
        cut.append(rate * ((2.0 + score.t + float(v < 0.0)) * share + rest))  # error 1
    return batch(rows, base, weight=weight, stretch=stretch, cut=cut)

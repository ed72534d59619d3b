"""Replace among any crowd, directly: one bound for each t, without the way through zero.

Terms, letters and thinning as in `anycrowd.exchange`; here user 1 holds x in D and x' in D', both of norm 1 without
loss, and 0 in the reference D0, from which all ratios are taken: `w_u = p_u / p`. For t >= 1 let `G = w_x' - t w_x`.
Then

    delta(D' || D)(log t) = E0[(E0[G(z) | M])+] <= E0[(f_t)+],   f_t = G(z) + sum over i <= K of X_i / (K + 1),

`X_i = (G(y_i) - G(z)) / ê_i`: by the exchange lemma f_t is unbiased for E0[G(z) | M].

**Theorem (replace).** Whatever the others hold, for all x and x', in any dimension, `delta(D' || D)(log t) <= E[(f)+]`,

    f = (1 - t) + [(v - (1 - t)) + sum over i <= K of (X_i(v) + v - (1 - t))] / (K + 1),

v = G(z) and X_i(v) of the *antipodal* pair x = -x', z ~ p, K ~ Bin(n - 1, q) revealed: with `w(y) = exp(r y - r^2/2)`,
`G(y) = w(y) - t w(-y)` and z the point with G(z) = v,

- y > z: for y < T density p / (1 - tau) and `X = (1 - tau)(G - v)`; for y > T density `p(y + r) / q` and
  `X = q e^(r y + r^2/2) (G - v)`: the worst user stands at x;
- y < z: the same with -y for y in the density and the factor: the worst user stands at x';
- X = 0 with the rest of the mass.

T is the t of the thinning in `anycrowd.exchange`. Check-in is as there, with 1 - t for the letter of those who send
nothing; fixed sizes are not looked at. x and x' may change places, so both directions have this bound. Proofs:
`docs/explanation/guarantee.md`, "Replace, directly".

Only t at which it was computed are known; delta is a convex function of t, so that chords are bounds between them.

*Errors*, next to those of `sums`; all go into the one number.

1. v beyond the nodes: given v = V the bound may be taken as |V| + 1 (that of f before its users are the worst), so
   `2 Phi(r - last) + t Phi(-r - last)` for z > last > 0 and `t Phi(first + r) + 2 Phi(first + r)` for z < first.
2. Improbable K: f then costs at most E[w_x'] = 1 times their probability.
3. Terms from reports beyond the ends of the grid count as those at the ends: first moments of at most
   `Phi(r - high) + v_- Phi(-high)` and `t Phi(low + r) + v_+ Phi(low)`, (3 + t) `share` in all, and what
   `sums` cuts, twice for the mean that they move. What is left of 1 for X = 0: as there.
4. Round-off of masses, sums and positions: the stretch of `anycrowd.exchange` (its 4). Positions are off by some u of
   `|v| + 1 + 2 t`, times the exponent that they come from and 1 / ê where X changes its sign.
5. Means of the laws given v and K, and the point at which they are priced, are known to a few N u of their sizes, N
   cells: they are moved up by 64 N u of them.
6. Chances of v and of K: relative, 2^-40 and 16 u for each count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.anycrowd.exchange import Case, Exchange
from shoal.bounds.anycrowd.prices import Prices
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.grid import base_for, lattice_points
from shoal.bounds.numeric import UNIT, FloatArray
from shoal.bounds.sums import NO_TERMS, Batch, Law, atoms_on_grid, batch, sums

_SCORE_NODES: FloatArray = np.array([-6.0, -4.2, -3.0, -2.0, -1.0, -0.2, 0.6, 1.4, 2.4, 3.8, 6.0])
"""Where z has its nodes, next to the ends of the grid."""

_CHANCE_ERROR = 2.0**-40
"""Relative error of the chances of v (error 6)."""

_SIGMA_MAX, _SIGMA_MIN = 3.2, 1.0
"""Below this sigma, for 100 senders, one bound for each t may be better than the way through zero with groups; the more
they are the smaller it is, like their twelfth root. With less noise one report in the clear is nearly all that there is
(found by trial)."""

_SIGMA_REACH = 1.12
"""So far beyond it a round counts as one with no more noise than that: no bound gets worse there."""

_LOG_DELTA_STEPS: FloatArray = np.minimum(0.4 + 0.2 * np.arange(21.0), 1.4)
"""Falls of the logarithm of delta from one t to the next: small where delta is large."""

_DELTA_MIN = 1e-11
"""The smallest delta that is computed."""

_LEAD = 0.1
"""A lead in the logarithm of delta after which the search ends where the lead is lost."""

_BUDGET = 1e-14
"""Mass and first moment that may be cut: far out the way through zero serves."""

_HALF_CELLS = 64
"""Half the cells of a level."""


# G and its inverse


@dataclass(frozen=True, kw_only=True)
class Score:
    """`G(y) = w(y) - t w(-y)`, rising; t = 0 is zero-out."""

    r: float
    t: float

    @property
    def mean(self) -> float:
        return 1.0 - self.t

    def at(self, y: FloatArray) -> FloatArray:
        return np.exp(self.r * y - 0.5 * self.r**2) - self.t * np.exp(-self.r * y - 0.5 * self.r**2)

    def root(self, v: float) -> float:
        """The y with G(y) = v; -infinity if there is none."""
        b = v * math.exp(0.5 * self.r**2)
        s = float(_positive_root(b, np.array([self.t]))[0])
        return math.log(s) / self.r if s > 0.0 else -math.inf

    def excess(self, y: FloatArray, v: float) -> FloatArray:
        """G(y) - v, of two terms of one sign."""
        z = self.root(v)
        if z == -math.inf:
            return self.at(y) - v
        up = math.exp(self.r * z - 0.5 * self.r**2) * np.expm1(self.r * (y - z))
        down = self.t * math.exp(-self.r * z - 0.5 * self.r**2) * np.expm1(-self.r * (y - z))
        return up - down


def _positive_root(b: float, c: FloatArray) -> FloatArray:
    """The larger s with s^2 = b s + c, without cancellation."""
    side = np.sqrt(b**2 + 4.0 * c)
    return 0.5 * (b + side) if b > 0.0 else 2.0 * c / (side - b)


# One term X(v) + v - (1 - t)


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
        """Where X is x: with s = e^(r y), `s - t / s = b` times s for users at x, times 1 / s for users at x'."""
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


def _score_pieces(score: Score, thin: Thinning, v: float, low: float, high: float) -> list[ScorePiece]:
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
        Points and masses.
    """
    r, shift = score.r, v - score.mean
    # The same on both sides: x and x' are antipodal, and each side has a worst user of its own.
    reach = max(r - quadrature.quantile(share), -quadrature.quantile(share / max(abs(v), 1.0)))
    pieces = _score_pieces(score, thin, v, -reach, reach)
    points, masses = [], []
    for piece in pieces:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            kinks = piece.reports(edges - shift, score, v)
        y, weight = quadrature.nodes(piece.low, piece.high, kinks[np.isfinite(kinks)], 2.0 * r)
        points.append(piece.value(y, score, v))
        masses.append(weight * piece.density(y))
    for piece, end, sign in ((pieces[0], -reach, 1.0), (pieces[-1], reach, -1.0)):  # error 3
        points.append(piece.value(np.array([end]), score, v))
        masses.append(np.array([special.ndtr(sign * (end - piece.place)) * piece.weight]))
    x, mass = np.concatenate(points), np.concatenate(masses)
    rest = max(0.0, 1.0 - math.fsum(mass))
    return np.concatenate([x + shift, [shift, 0.0]]), np.concatenate([rate * mass, [rate * rest, 1.0 - rate]])


# Nodes of v


@dataclass(frozen=True, kw_only=True)
class _ScoreNodes:
    """Values of v with their chances, for one t; the last is v = 1 - t of a user 1 who is not there, of chance 0 here.

    `weight` is the chance of each with user 1's absence counted, `cut` is error 1.
    """

    score: Score
    value: FloatArray
    chance: FloatArray
    weight: FloatArray
    cut: float

    @classmethod
    def of(cls, score: Score, present: float, budget: float) -> _ScoreNodes:
        """G(z) spread on nodes.

        Args:
            score: The score G.
            present: Probability that user 1 takes part.
            budget: First moment that may lie beyond the last node.

        Returns:
            The nodes.
        """
        r, t = score.r, score.t
        # Both ends: G is large and positive for large z, large and negative for small.
        last = r - quadrature.quantile(budget)
        ends = np.concatenate([[-last], _SCORE_NODES[np.abs(_SCORE_NODES) < last - 1.0], [last]])
        value = score.at(ends)
        z, weight = quadrature.nodes(-last, last, ends, 2.0 * r)
        mass = weight * quadrature.normal_density(z)
        cell = np.clip(np.searchsorted(ends, z) - 1, 0, len(ends) - 2)
        right = np.clip((score.at(z) - value[cell]) / (value[cell + 1] - value[cell]), 0.0, 1.0)
        chance: FloatArray = np.bincount(cell, mass * (1.0 - right), len(value)).astype(np.float64)
        chance += np.bincount(cell + 1, mass * right, len(value))
        value, chance = np.append(value, score.mean), np.append(chance, 0.0)
        weight = present * chance
        weight[-1] += 1.0 - present
        # error 1
        cut = (4.0 + 2.0 * t) * float(special.ndtr(r - last)) * (1.0 + 1e-9)
        return cls(score=score, value=value, chance=chance, weight=weight, cut=cut)


def _score_batch(nodes: _ScoreNodes, thin: Thinning, rate: float, half: int, share: float) -> Batch:
    """The law of one term for each v."""
    score, none = nodes.score, np.empty(0)
    r = score.r
    rough = [score_term(score, thin, v, rate, share, none) for v in nodes.value.tolist()]
    sizes = np.array([float(mass @ np.abs(y)) / rate for y, mass in rough])
    base = base_for(float(nodes.weight @ sizes) / float(nodes.weight.sum()), half)
    exponent = 2.0 * r * (r - quadrature.quantile(share)) + 3.0 * r**2
    rows, stretch, cut = [], [], []
    for v, (y, mass), size in zip(nodes.value.tolist(), rough, sizes.tolist(), strict=True):
        edges = lattice_points(half, base, float(y.min()), float(y.max()))
        rows.append(atoms_on_grid(*score_term(score, thin, v, rate, share, edges), half, base))
        # Where X changes its sign two terms cancel; 1 / ê makes what is left of rounding larger there.
        z = abs(score.root(v))
        lift = math.exp(r * z if thin.q == 1.0 else max(0.0, r * (z - thin.t)))
        wrong = (abs(v) + 1.0 + 2.0 * score.t) * lift  # error 4
        stretch.append((8.0 * 4096.0 + 12.0 * 64.0 * (2.0 + exponent) * wrong / size) * UNIT)
        rest = 2.0**-46 * abs(v - score.mean) if mass[-2] < 2.0**-20 * rate else 0.0
        cut.append(rate * ((3.0 + score.t) * share + rest))
    return batch(rows, base, weight=nodes.weight, stretch=stretch, cut=cut)


# The bound


def _call(law: Law, shift: float) -> float:
    """E[(shift + sum)+], from above."""
    # One number is wanted, so what is uncertain of the mean is added to it.
    size = float(law.mass @ np.abs(law.point)) + abs(shift)
    shift += 64.0 * len(law.point) * UNIT * size  # error 5
    return float(law.mass @ np.maximum(law.point + shift, 0.0)) + 2.0 * law.cut


def direct_delta(
    score: Score, thin: Thinning, cases: Sequence[Case], *, rate: float, error: float, half: int, budget: float
) -> float:
    """Upper bound on delta(log t) for one t.

    Args:
        score: The score G, which holds t.
        thin: The thinning.
        cases: Numbers of terms with their chances.
        rate: Probability that a report is sent.
        error: Relative error of the chances.
        half: Number of cells on either side of a level's middle.
        budget: First moment that each term may lose.

    Returns:
        The bound.
    """
    present = math.fsum(case.chance * case.present for case in cases)
    nodes = _ScoreNodes.of(score, present, budget)
    single = _score_batch(nodes, thin, rate, half, budget)
    totals = sums(single, [case.terms for case in cases], budget)
    laws = {0: [NO_TERMS] * len(nodes.value)} | {count: total.laws() for count, total in totals.items()}
    mean, total = score.mean, 0.0
    for case in cases:
        present_call = math.fsum(
            chance * _call(law, case.denominator * mean + v - mean)
            for v, chance, law in zip(nodes.value.tolist(), nodes.chance.tolist(), laws[case.terms], strict=True)
            if chance > 0.0
        )
        total += case.chance * case.present * present_call / case.denominator
        if case.present < 1.0:
            law = laws[case.terms][-1]
            total += case.chance * (1.0 - case.present) * _call(law, case.denominator * mean) / case.denominator
    # error 6 is relative; errors 1 and 2 are added
    return total * (1.0 + error + _CHANCE_ERROR) + nodes.cut + 2.0 * budget


# As prices of a round


def is_worth_computing(step: Exchange) -> bool:
    """Whether one bound for each t is worth its time; there is none for fixed sizes."""
    return not step.is_by_size and _SIGMA_MIN <= step.ratio.scale < _SIGMA_REACH * _sigma_max(step)


def _sigma_max(step: Exchange) -> float:
    return _SIGMA_MAX / math.pow(_senders(step) / 100.0, 1.0 / 12.0)


def _senders(step: Exchange) -> float:
    return step.users * step.ratio.rate


def _thinning(step: Exchange) -> Thinning:
    """A thinning that is good where bounds for each t are used (found by trial)."""
    scale = step.ratio.scale
    # The fewer they are and the less noise there is, the more must be thinned.
    at = 1.25 + max(0.0, 5.0 - math.log10(_senders(step))) * scale**-2.6
    return Thinning.of(1.0 / scale, min(at, 3.5))


_EPSILON_MAX = 60.0
"""The largest log t: squares of larger t leave the range of double precision."""


@functools.lru_cache(maxsize=512)
def _bound_at(step: Exchange, epsilon: float) -> float:
    """Upper bound on delta of one round at epsilon."""
    thin, rate = _thinning(step), step.ratio.rate
    cases, error = step.cases(thin.q, _BUDGET)
    score = Score(r=1.0 / step.ratio.scale, t=math.exp(epsilon))
    return direct_delta(score, thin, cases, rate=rate, error=error, half=_HALF_CELLS, budget=_BUDGET)


def direct_prices(step: Exchange, loss: FloatArray, known_deltas: FloatArray) -> Prices:
    """Prices of a round of replace, where `step` is a move from 0, next to `known` deltas at some losses.

    From one t to the next delta falls by about what is said above; it ends where the known ones are smaller again.
    Puts mirror calls: both directions are the same.
    """
    step = replace(step, ratio=replace(step.ratio, scale=min(step.ratio.scale, _sigma_max(step))))
    logs = np.log(np.maximum(known_deltas, 1e-300))
    # In few steps, so that laws of other budgets share what is dear.
    next_one = 2.0 ** (0.25 * round(4.0 * math.log2(float(np.interp(_LOG_DELTA_STEPS[0], logs[0] - logs, loss)))))
    epsilon, deltas, was_ahead = [0.0], [], False
    for fall in _LOG_DELTA_STEPS[1:]:
        deltas.append(_bound_at(step, epsilon[-1]))
        lead = float(np.interp(epsilon[-1], loss, logs)) - math.log(deltas[-1])
        was_ahead |= lead > _LEAD
        # It was ahead and is no more: from here on the way through zero serves.
        if deltas[-1] < _DELTA_MIN or (was_ahead and lead < 0.0):
            break
        # Delta falls about exponentially: the last two points say where it will have fallen enough.
        if len(deltas) > 1:
            slope = math.log(deltas[-2] / deltas[-1]) / (epsilon[-1] - epsilon[-2])
            wide = 2.0 * (epsilon[-1] - epsilon[-2])
            next_one = epsilon[-1] + (min(fall / slope, wide) if slope > 0.0 else wide)
        if next_one > _EPSILON_MAX:
            break
        epsilon.append(next_one)
    at, value = np.array(epsilon[: len(deltas)]), np.array(deltas) * (1.0 + 16.0 * UNIT)
    return Prices(
        gap=np.concatenate([np.expm1(-at[:0:-1]), np.expm1(at)]),
        value=np.concatenate([(np.exp(-at) * value)[:0:-1], value]),
    )

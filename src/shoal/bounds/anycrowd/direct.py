"""Replace among any crowd, directly: one bound for each t, without the way through zero.

Terms, letters and thinning as in `anycrowd.exchange`; here user 1 holds x in D and x' in D', both of norm 1 without
loss, and 0 in the reference D0, from which all ratios are taken: `w_u = p_u / p`. For t >= 1 let `G = w_x' - t w_x`.
Then

    delta(D' || D)(log t) = E0[(E0[G(z) | M])+] <= E0[(f_t)+],   f_t = G(z) + sum over i <= K of X_i / (K + 1),

`X_i = (G(y_i) - G(z)) / ê_i`: by the exchange lemma f_t is unbiased for E0[G(z) | M].

**Theorem (replace).** Whatever the others hold, for all x and x', in any dimension, `delta(D' || D)(log t) <= E[(f)+]`,

    f = (1 - t) + [(v - (1 - t)) + sum over i <= K of (X_i(v) + v - (1 - t))] / (K + 1),

v = G(z) and X_i(v) of the *antipodal* pair x = -x' (`anycrowd.term`), z ~ p, K ~ Bin(n - 1, q) revealed. Check-in is
as there, with 1 - t for the letter of those who send nothing; fixed sizes are not looked at. x and x' may change
places, so both directions have this bound. Proofs:
`docs/explanation/guarantee.md`, "Replace, directly".

Only t at which it was computed are known; delta is a convex function of t, so that chords are bounds between them.

*Errors*, next to those of `sums`; all go into the one number.

1. v beyond the nodes: the cut of `anycrowd.nodes`.
2. Improbable K: f then costs at most E[w_x'] = 1 times their probability.
3. Terms: the cuts of `anycrowd.term` and what `sums` cuts, twice for the mean that they move.
4. Round-off of masses, sums and positions: the stretches of both.
5. Means of the laws given v and K, and the point at which they are priced, are known to a few N u of their sizes, N
   cells: they are moved up by 64 N u of them.
6. Chances of v and of K: relative, 2^-40 and 16 u for each count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.bounds.anycrowd.counts import Case
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.nodes import ScoreNodes
from shoal.bounds.anycrowd.prices import Prices
from shoal.bounds.anycrowd.term import Score, term_batch
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.numeric import UNIT, FloatArray
from shoal.bounds.sums import NO_TERMS, Law, sums

_SCORE_NODES = (-6.0, -4.2, -3.0, -2.0, -1.0, -0.2, 0.6, 1.4, 2.4, 3.8, 6.0)
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
    nodes = ScoreNodes.of(score, present, budget, _SCORE_NODES)
    # errors 3 and 4 stay with the laws of terms, and grow with their sums
    single = term_batch(score, thin, nodes.value, nodes.weight, rate=rate, half=half, share=budget)
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
    return step.sample is None and _SIGMA_MIN <= step.ratio.scale < _SIGMA_REACH * _sigma_max(step)


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

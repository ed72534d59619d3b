"""Shuffled epochs of few steps, from below: a crowd that changes sides while the epoch runs.

Record 1 holds 0 in D and x', |x'| = 1, in D', at a step drawn at random. All other records hold one and the same
vector u, which may depend on the outputs before (gradients depend on the model, and the model on all outputs). Let E
be the world in which all outputs are theirs, and `alpha = p_0 / p_u`, `beta = p_x' / p_u` the ratios of one output if
it is record 1's, under E. Then, for any rule that says where u is,

    steps * delta(D' || D)(log t) = E (sum over steps of beta_i - t alpha_i)_+,

so the sum s so far is all that a rule needs to know. The best rule follows from the last step backwards,

    U_0(s) = s_+,    U_{j+1}(s) = max over u of E U_j(s + beta - t alpha):

opposite to x' first and wherever s is behind, at x' where it is ahead. Only these two places are looked at; five more
between them were tried, and gained less than 1e-7 of delta. With many steps there is hardly anything to gain over a
crowd that stays opposite (`anycrowd.opposite`), which is computed more finely.

The attacker does exactly this, with its own roundings: it rounds each output to a panel, takes the score of the panel's
middle, adds it to its sum and rounds that to one of two neighbouring points by a coin that keeps the mean. The rule is
chosen from approximate U; it is fixed before its masses are computed, and any rule is an attack. What is composed
over epochs is the pair of laws of the last sum.

*Errors.* All masses are sums of positive terms.

1. Relative errors of panels' masses (`attacks.cell_masses`) and of one sum of products add up once a step; the masses
   of top are taken too small by them, those of base too large.
2. Cells whose masses are below 1e-200 are not looked at: no test is about them, and underflow is not felt in others.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from shoal.bounds.central.attacks import Attack, attack_pair, cell_masses
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import UNIT, Direction, FloatArray, Side
from shoal.bounds.ratio import Lognormal

STEPS_MAX = 64
"""The largest number of steps at which the attack is worth its time.

With more steps a crowd that stays opposite shows as much, and is computed more finely.
"""

_SCALE_MIN = 0.3
"""Below this scale the largest output shows nearly everything that there is to see."""

_CROWD_PLACES = (-1.0, 1.0)
"""Places along x' between which the crowd switches."""

_REPORT_SPAN = 9.0
"""Outputs are clipped to this many deviations beyond the places where they can have their mean."""

_OUTPUT_PANEL = 1.0 / 16.0
"""Width of the panels, in deviations of an output."""

_SUM_POINTS = 400
"""Points of the sum on either side of 0."""

_EVEN_PART = 0.05
"""Up to this part of a score's mean size points are about evenly spaced; beyond it their ratios are equal."""

_LOG_SUM_MAX = 12.0
"""A sum of e^12 times the mean of all scores decides the test, so larger ones are clipped."""

_MASS_MIN = 1e-200
"""Cells with less mass are left out of all tests (error 2)."""


@dataclass(frozen=True, kw_only=True)
class Switching(Attack):
    """The attack on one epoch whose crowd switches sides; `loss` is log t of its rule."""

    loss: float = 0.0

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.scale)

    @property
    def is_felt(self) -> bool:
        """Whether this attack may show more than others."""
        return 1 < self.steps <= STEPS_MAX and self.scale >= _SCALE_MIN

    def limited(self) -> Switching:
        # An attack is what it is.
        return self

    def tuned(self, loss: float) -> Switching:
        return replace(self, loss=loss)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        masses = _last_sum(self)
        return attack_pair(masses.moved, masses.still, masses.error, side, direction, 0.0)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        masses = _last_sum(self)
        return masses.error, masses.skipped


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Masses of the last sum in D' and in D, their relative error, and the mass that was left out."""

    moved: FloatArray
    still: FloatArray
    error: float
    skipped: float


@dataclass(frozen=True, kw_only=True)
class _SumStep:
    """The transition matrices of the sum in one step, for one place of the crowd.

    `crowd` is for an output of theirs, `still` and `moved` for record 1's in D and in D'.
    """

    crowd: FloatArray
    still: FloatArray
    moved: FloatArray
    error: float


@functools.lru_cache(maxsize=8)
def _last_sum(attack: Switching) -> _Sums:
    """The laws of the sum after the last step, with and without record 1's move."""
    points, steps = _steps(attack)
    rule = _rule(points, steps, attack.steps)
    crowd, still, moved = (np.zeros(len(points)) for _ in range(3))
    crowd[len(points) // 2] = 1.0
    # `still` and `moved` add up the worlds in which record 1 had one of the steps so far.
    for choice in rule:
        after = [np.zeros(len(points)) for _ in range(3)]
        for number, step in enumerate(steps):
            is_chosen = choice == number
            after[0] += (crowd * is_chosen) @ step.crowd
            after[1] += (still * is_chosen) @ step.crowd + (crowd * is_chosen) @ step.still
            after[2] += (moved * is_chosen) @ step.crowd + (crowd * is_chosen) @ step.moved
        crowd, still, moved = after
    # error 1
    step_error = max(step.error for step in steps) + (4.0 * len(points) + 64.0) * UNIT
    sure = (still > _MASS_MIN) & (moved > _MASS_MIN)  # error 2
    still, moved = still / attack.steps, moved / attack.steps
    return _Sums(
        moved=moved[sure],
        still=still[sure],
        error=math.expm1(1.01 * attack.steps * step_error),
        skipped=float(still[~sure].sum() + moved[~sure].sum()),
    )


def _rule(points: FloatArray, steps: list[_SumStep], count: int) -> list[FloatArray]:
    """The number of the best place for each sum, from the first step on."""
    value, choices = np.maximum(points, 0.0), []
    for _ in range(count):
        values = np.stack([step.crowd @ value for step in steps])
        choices.append(values.argmax(axis=0))
        value = values.max(axis=0)
    return choices[::-1]


def _steps(attack: Switching) -> tuple[FloatArray, list[_SumStep]]:
    """The points of the sum, and its transition matrices for each place of the crowd."""
    r, t = 1.0 / attack.scale, math.exp(attack.loss)
    scores, masses, errors = [], [], []
    for place in _CROWD_PLACES:
        # Where record 1 is in D and in D', seen from the crowd.
        still, moved = -place * r, (1.0 - place) * r
        low, high = min(still, 0.0) - _REPORT_SPAN, max(moved, 0.0) + _REPORT_SPAN
        cuts = np.linspace(low, high, math.ceil((high - low) / _OUTPUT_PANEL) + 1)
        middle = np.concatenate([[low], 0.5 * (cuts[1:] + cuts[:-1]), [high]])
        scores.append(np.exp(moved * middle - 0.5 * moved**2) - t * np.exp(still * middle - 0.5 * still**2))
        masses_by_mean = [cell_masses(cuts, mean) for mean in (0.0, still, moved)]
        masses.append([mass for mass, _ in masses_by_mean])
        errors.append(max(error for _, error in masses_by_mean))
    points = _sum_points(attack, scores[0], masses[0][0])
    steps = []
    for score, rows, error in zip(scores, masses, errors, strict=True):
        crowd, still_matrix, moved_matrix = _matrices(points, score, rows)
        steps.append(_SumStep(crowd=crowd, still=still_matrix, moved=moved_matrix, error=error))
    return points, steps


def _sum_points(attack: Switching, score: FloatArray, mass: FloatArray) -> FloatArray:
    """The points of the sum, about evenly spaced near 0 and in about equal ratios beyond."""
    t = math.exp(attack.loss)
    finest = _EVEN_PART * float(mass @ np.abs(score - (1.0 - t)))
    farthest = attack.steps * min(float(np.abs(score).max()), max(t, 1.0) * math.exp(_LOG_SUM_MAX))
    step = math.asinh(farthest / finest) / _SUM_POINTS
    return finest * np.sinh(np.arange(-_SUM_POINTS, _SUM_POINTS + 1) * step)


def _matrices(points: FloatArray, score: FloatArray, rows: list[FloatArray]) -> list[FloatArray]:
    """Transition matrices for several laws of the output, all rounded by the same coins."""
    size = len(points)
    after = np.clip(points[:, None] + score, points[0], points[-1])
    cell = np.clip(np.searchsorted(points, after, side="right") - 1, 0, size - 2)
    right = np.clip((after - points[cell]) / (points[cell + 1] - points[cell]), 0.0, 1.0)
    index = (np.arange(size)[:, None] * size + cell).ravel()
    matrices = []
    for row in rows:
        matrix = np.zeros(size**2)
        matrix += np.bincount(index, ((1.0 - right) * row).ravel(), size**2)
        matrix += np.bincount(index + 1, (right * row).ravel(), size**2)
        matrices.append(matrix.reshape(size, size))
    return matrices

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
"""With more steps a crowd that stays opposite shows as much, and is known more finely."""

_SCALE_MIN = 0.3
"""With less noise the largest output says nearly all there is to say."""

_PLACES = (-1.0, 1.0)
"""Where the crowd may be, along x'."""

_SPAN = 9.0
"""Outputs are clipped to this many deviations beyond the places where they can have their mean."""

_PANEL = 1.0 / 16.0
"""How wide the panels are, in deviations of an output."""

_CELLS = 400
"""Points of the sum on either side of 0."""

_FINEST = 0.05
"""Points are about evenly spaced up to this part of a score's mean size, and in equal ratios beyond."""

_FARTHEST = 12.0
"""A sum of e^12 times the mean of all scores says all there is to say."""

_TINY = 1e-200
"""Cells with less mass are not looked at (error 2)."""


@dataclass(frozen=True, kw_only=True)
class Switching(Attack):
    """One epoch, everybody else on one side or the other; `loss` is log t of the rule."""

    loss: float = 0.0

    @property
    def ratio(self) -> Lognormal:
        return Lognormal(scale=self.scale)

    @property
    def is_felt(self) -> bool:
        """Whether it may show more than other attacks."""
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
    """Masses of the last sum in D' and in D, their relative error, and what was not looked at."""

    moved: FloatArray
    still: FloatArray
    error: float
    skipped: float


@dataclass(frozen=True, kw_only=True)
class _Step:
    """How one step moves the sum while the crowd is at one place: matrices from sum to sum.

    `crowd` is for an output of theirs, `still` and `moved` for record 1's in D and in D'.
    """

    crowd: FloatArray
    still: FloatArray
    moved: FloatArray
    error: float


@functools.lru_cache(maxsize=8)
def _last_sum(attack: Switching) -> _Sums:
    points, steps = _steps(attack)
    rule = _rule(points, steps, attack.steps)
    crowd, still, moved = (np.zeros(len(points)) for _ in range(3))
    crowd[len(points) // 2] = 1.0
    # `still` and `moved` add up the worlds in which record 1 had one of the steps so far.
    for choice in rule:
        after = [np.zeros(len(points)) for _ in range(3)]
        for number, step in enumerate(steps):
            here = choice == number
            after[0] += (crowd * here) @ step.crowd
            after[1] += (still * here) @ step.crowd + (crowd * here) @ step.still
            after[2] += (moved * here) @ step.crowd + (crowd * here) @ step.moved
        crowd, still, moved = after
    # error 1
    one = max(step.error for step in steps) + (4.0 * len(points) + 64.0) * UNIT
    sure = (still > _TINY) & (moved > _TINY)  # error 2
    still, moved = still / attack.steps, moved / attack.steps
    return _Sums(
        moved=moved[sure], still=still[sure], error=math.expm1(1.01 * attack.steps * one),
        skipped=float(still[~sure].sum() + moved[~sure].sum()),
    )  # fmt: skip


def _rule(points: FloatArray, steps: list[_Step], count: int) -> list[FloatArray]:
    """Which place is best for each sum, from the first step on."""
    value, choices = np.maximum(points, 0.0), []
    for _ in range(count):
        values = np.stack([step.crowd @ value for step in steps])
        choices.append(values.argmax(axis=0))
        value = values.max(axis=0)
    return choices[::-1]


def _steps(attack: Switching) -> tuple[FloatArray, list[_Step]]:
    """The points of the sum, and what a step does for each place of the crowd."""
    r, t = 1.0 / attack.scale, math.exp(attack.loss)
    scores, masses, errors = [], [], []
    for place in _PLACES:
        # Where record 1 is in D and in D', seen from the crowd.
        still, moved = -place * r, (1.0 - place) * r
        low, high = min(still, 0.0) - _SPAN, max(moved, 0.0) + _SPAN
        cuts = np.linspace(low, high, math.ceil((high - low) / _PANEL) + 1)
        middle = np.concatenate([[low], 0.5 * (cuts[1:] + cuts[:-1]), [high]])
        scores.append(np.exp(moved * middle - 0.5 * moved**2) - t * np.exp(still * middle - 0.5 * still**2))
        each = [cell_masses(cuts, mean) for mean in (0.0, still, moved)]
        masses.append([mass for mass, _ in each])
        errors.append(max(error for _, error in each))
    points = _sum_points(attack, scores[0], masses[0][0])
    steps = []
    for score, rows, error in zip(scores, masses, errors, strict=True):
        crowd, still_matrix, moved_matrix = _matrices(points, score, rows)
        steps.append(_Step(crowd=crowd, still=still_matrix, moved=moved_matrix, error=error))
    return points, steps


def _sum_points(attack: Switching, score: FloatArray, mass: FloatArray) -> FloatArray:
    """Points of the sum: about evenly spaced near 0, then in about equal ratios."""
    t = math.exp(attack.loss)
    finest = _FINEST * float(mass @ np.abs(score - (1.0 - t)))
    most = attack.steps * min(float(np.abs(score).max()), max(t, 1.0) * math.exp(_FARTHEST))
    step = math.asinh(most / finest) / _CELLS
    return finest * np.sinh(np.arange(-_CELLS, _CELLS + 1) * step)


def _matrices(points: FloatArray, score: FloatArray, rows: list[FloatArray]) -> list[FloatArray]:
    """From sum to sum, for each of these laws of the output; all are rounded by the same coins."""
    size = len(points)
    after = np.clip(points[:, None] + score, points[0], points[-1])
    cell = np.clip(np.searchsorted(points, after, side="right") - 1, 0, size - 2)
    right = np.clip((after - points[cell]) / (points[cell + 1] - points[cell]), 0.0, 1.0)
    index = (np.arange(size)[:, None] * size + cell).ravel()
    matrices = []
    for row in rows:
        matrix = np.bincount(index, ((1.0 - right) * row).ravel(), size**2)
        matrix += np.bincount(index + 1, (right * row).ravel(), size**2)
        matrices.append(matrix.reshape(size, size))
    return matrices

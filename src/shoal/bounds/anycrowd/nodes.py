"""User 1's own score v on a few nodes: a mean-preserving spread, with what lies beyond the nodes charged.

For a given crowd the bounds of `anycrowd` are affine in v before its users are the worst ones, so v may be spread.
*Errors.* v beyond the last node counts as on it. For zero-out a call then costs at most `v + E(w - v)+` given v, a put
at most 1 + v: `2 Phi(r - last)` is charged. For replace the bound may be taken as |v| + 1: `2 Phi(r - last) +
t Phi(-r - last)` on one side and `t Phi(first + r) + 2 Phi(first + r)` on the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from shoal.bounds import quadrature
from shoal.bounds.anycrowd.term import Score
from shoal.bounds.numeric import FloatArray, IntArray


def spread_on_nodes(cell: IntArray, right: FloatArray, mass: FloatArray, count: int) -> FloatArray:
    """Masses on nodes, each shared between the ends of its cell.

    Args:
        cell: The cell of each mass: the number of the node at its left end.
        right: The part of each mass that goes to the right end.
        mass: The masses.
        count: The number of nodes.

    Returns:
        The mass of each node.
    """
    cell, right, mass = cell.ravel(), right.ravel(), mass.ravel()
    chance: FloatArray = np.bincount(cell, mass * (1.0 - right), count).astype(np.float64)
    return chance + np.bincount(cell + 1, mass * right, count)


@dataclass(frozen=True, kw_only=True)
class ScoreNodes:
    """Values of v with their chances; the last is the mean, of a user 1 who is not there, of chance 0 here.

    `weight` is the chance of each with user 1's absence counted, `cut` is the charge for what lies beyond the nodes.
    """

    value: FloatArray
    chance: FloatArray
    weight: FloatArray
    cut: float

    @classmethod
    def of(cls, score: Score, present: float, budget: float, places: Sequence[float]) -> ScoreNodes:
        """G(z) spread on nodes.

        Args:
            score: The score G.
            present: Probability that user 1 takes part.
            budget: First moment that may lie beyond the last node.
            places: Reports z at which there is a node, increasing; further ones are at the ends.

        Returns:
            The nodes.
        """
        value, chance, cut = (_of_ratio if score.t == 0.0 else _of_score)(score, budget, np.array(places))
        value, chance = np.append(value, score.mean), np.append(chance, 0.0)
        weight = present * chance
        weight[-1] += 1.0 - present
        return cls(value=value, chance=chance, weight=weight, cut=cut)


_Spread = tuple[FloatArray, FloatArray, float]


def _of_ratio(score: Score, budget: float, places: FloatArray) -> _Spread:
    """w(z): the lowest node is v = 0, where z is -infinity."""
    r = score.r
    # Low z may go far: below them v is next to 0, where it costs nothing to go on.
    low, last = quadrature.quantile(1e-6 * budget), r - quadrature.quantile(budget)
    ends = np.append(places[last - 1.0 > places], last)
    value = np.append(0.0, score.at(ends))
    z, weight = quadrature.nodes(low, last, ends, 2.0 * r)
    cell = np.searchsorted(ends, z)
    left = np.append(-np.inf, ends)[cell]
    # w(z) less the node on its left, without cancellation where both are next to 1.
    above = np.where(cell > 0, value[cell] * np.expm1(r * (z - np.where(cell > 0, left, z))), score.at(z))
    right = above / (value[cell + 1] - value[cell])
    chance = spread_on_nodes(cell, right, weight * quadrature.normal_density(z), len(value))
    # Still lower z count as v = 0: their v is at most 1e-6 of the budget in mean.
    chance[0] += float(special.ndtr(low))
    # The budget once more covers z below `low`.
    return value, chance / math.fsum(chance), 2.0 * float(special.ndtr(r - last)) * (1.0 + 1e-9) + budget


def _of_score(score: Score, budget: float, places: FloatArray) -> _Spread:
    """G(z): nodes at both ends, as G is large and negative for small z."""
    r, t = score.r, score.t
    last = r - quadrature.quantile(budget)
    ends = np.concatenate([[-last], places[np.abs(places) < last - 1.0], [last]])
    value = score.at(ends)
    z, weight = quadrature.nodes(-last, last, ends, 2.0 * r)
    cell = np.clip(np.searchsorted(ends, z) - 1, 0, len(ends) - 2)
    right = np.clip((score.at(z) - value[cell]) / (value[cell + 1] - value[cell]), 0.0, 1.0)
    chance = spread_on_nodes(cell, right, weight * quadrature.normal_density(z), len(value))
    return value, chance, (4.0 + 2.0 * t) * float(special.ndtr(r - last)) * (1.0 + 1e-9)

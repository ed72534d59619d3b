"""The statistics of the games: log likelihood ratios, and features where a likelihood takes too long.

**The likelihood of a shuffled round.** Let the crowd hold the vectors v_c, each m_c times, and let k of the n users
report: which k is uniform, and the law of k is the same in both worlds. With p_v the density of a report from v, and
user 1 at y, the likelihood of the reports z_1..z_k is, up to a factor without y,

    L_y = sum_j  F_0(j) prod_c (m_c)_{j_c}  +  sum_j  F_y(j) prod_c (m_c)_{j_c},

(m)_j = m!/(m-j)!, where F_0(j) sums prod_i p_{v(i)}(z_i) over all assignments of the reports to the classes, j_c of
them to class c, with user 1 absent; and F_y the same with one report assigned to user 1 with weight p_y. Both follow
from one pass over the reports (elementary symmetric polynomials are the case of two classes). If all others hold one
vector v this is, up to a factor,

    L_y = n - k + sum_i p_y(z_i) / p_v(z_i).

The statistic is then log L_x' - log L_x, summed over rounds: by Neyman and Pearson no test is better. Where the pass is
too long (many users with different vectors) a logistic regression takes its place, trained on features that are sums
over the reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from shoal.audit.game import Game, Reports
from shoal.bounds.numeric import FloatArray

_BATCH = 2**19
"""The number of values drawn at once: a few arrays of 4 MB."""

_COMPONENTS_LARGEST = 16
"""A crowd with more distinct vectors is described to the trained test by its mean and spread."""

_TINY = float(np.finfo(float).tiny)
"""The smallest number with full precision, where a logarithm of 0 must not be taken."""

Statistic = Callable[[Game, Reports], FloatArray]
"""Maps the reports of one round to numbers of shape (2 worlds, trials, features)."""


def play(game: Game, trials: int, rng: np.random.Generator) -> Iterator[FloatArray]:
    """The statistics of the games, in batches of shape (2 worlds, trials, features).

    Both worlds get the same coins and noise: each world's rate is still that of independent games, and nothing else is
    needed of them.

    Args:
        game: The game.
        trials: The number of trials.
        rng: The source of randomness.

    Yields:
        The statistics of the next trials.
    """
    statistic = statistic_of(game)
    size = max(1, int(_BATCH / game.numbers))
    for start in range(0, trials, size):
        count = min(size, trials - start)
        total = statistic(game, game.draw(count, rng))
        for _ in range(game.rounds - 1):
            total = total + statistic(game, game.draw(count, rng))
        yield total


def statistic_of(game: Game) -> Statistic:
    """The statistic of one round: the log likelihood ratio if its computation is short enough."""
    if not game.exact:
        return features
    return ratio_of_one_class if len(game.points) == 1 else ratio_of_classes


def _log_densities(reports: FloatArray, vectors: FloatArray, sigma: float) -> FloatArray:
    """log p_v(z) for each report and vector (last axis), up to a term of the report alone."""
    return np.asarray((reports @ vectors.T - 0.5 * np.sum(vectors**2, axis=1)) / sigma**2)


def ratio_of_one_class(game: Game, reports: Reports) -> FloatArray:
    """log L_x' - log L_x for a crowd with one vector.

    Args:
        game: The game.
        reports: The reports of one round.

    Returns:
        The statistic, of shape (2 worlds, trials, 1).
    """
    sigma, users = game.mechanism.sigma, game.mechanism.users

    def log_ratios(z: FloatArray) -> FloatArray:
        # Shifted to the crowd's vector, whose own density is then the term left out.
        return _log_densities(z - game.points[0], game.own - game.points[0], sigma)

    logs = np.where(reports.present[..., None], log_ratios(reports.crowd), -np.inf)
    target = np.where(reports.taking_part[:, None], log_ratios(reports.own), -np.inf)
    top = logs.max(axis=1, initial=-1e300)  # finite even if nobody reports
    with np.errstate(divide="ignore"):
        present = np.log(np.exp(logs - top[:, None]).sum(axis=1)) + top
        absent = np.log(users - reports.sizes)[:, None]
    values: FloatArray = np.logaddexp(np.logaddexp(present, absent), target)
    return (values[..., 1] - values[..., 0])[..., None]


def ratio_of_classes(game: Game, reports: Reports) -> FloatArray:
    """log L_x' - log L_x for a crowd with a few distinct vectors, in one pass over the reports.

    `F[0]` is F_0 and `F[1]`, `F[2]` are F_x and F_x', over the numbers j of reports given to each
    class but the first (whose number follows), and the trials. A common factor of all three cancels.

    Args:
        game: The game.
        reports: The reports of one round.

    Returns:
        The statistic, of shape (2 worlds, trials, 1).
    """
    targets = np.vstack([game.points, game.own])
    sigma, classes = game.mechanism.sigma, len(game.points)

    def weights(z: FloatArray, real: npt.NDArray[np.bool_]) -> FloatArray:
        """The densities of a report at all targets (targets first), the largest one 1."""
        logs = np.moveaxis(_log_densities(z, targets, sigma), -1, 0)
        shown = np.exp(logs - logs.max(axis=0))
        nothing = np.zeros((len(targets), *(1,) * real.ndim))
        nothing[0] = 1.0  # a missing report changes nothing
        return np.where(real, shown, nothing)

    def add(F: FloatArray, w: FloatArray) -> FloatArray:
        new: FloatArray = w[0] * F
        for c in range(1, classes):
            after, before = np.moveaxis(new, c, 0), np.moveaxis(F, c, 0)
            after[1:] += w[c] * before[:-1]
        new[1] += w[classes] * F[0]
        new[2] += w[classes + 1] * F[0]
        # Rescaled after each report: products of thousands of densities would underflow.
        largest = new.max(axis=tuple(range(classes)))
        new /= np.maximum(largest, _TINY)
        return new

    trials = len(reports.sizes)
    F = np.zeros((3, *(game.counts[1:] + 1), trials))
    F[(0,) * classes] = 1.0
    w = weights(reports.crowd, reports.present)
    for i in range(w.shape[-1]):
        F = add(F, w[..., i])
    arrangements = _arrangements(game, reports.sizes)
    states = tuple(range(classes - 1))
    result = np.empty((2, trials, 1))
    for world in (0, 1):
        # User 1's own report comes last, so that the pass over the crowd serves both worlds.
        end = add(F, weights(reports.own[world], reports.taking_part))
        absent = (end[0] * arrangements[0]).sum(axis=states)
        low, high = (np.maximum(absent + (end[y] * arrangements[1]).sum(axis=states), _TINY) for y in (1, 2))
        result[world, :, 0] = np.log(high) - np.log(low)
    return result


def _arrangements(game: Game, sizes: npt.NDArray[np.int64]) -> FloatArray:
    """prod_c (m_c)_{j_c} with all reports, and with all but one, assigned to the crowd; the largest is 1."""
    factorials = gammaln(np.arange(game.counts.max() + 1) + 1.0)
    first, rest = game.counts[0], game.counts[1:]
    assigned = np.indices((*(rest + 1), 1))[:-1]
    logs = np.zeros(assigned.shape[1:])
    for count, j in zip(rest, assigned, strict=True):
        logs = logs + factorials[count] - factorials[count - j]
    remaining = np.stack([sizes, sizes - 1])[(slice(None), *(None,) * len(rest))] - assigned.sum(axis=0)
    possible = (remaining >= 0) & (remaining <= first)
    logs = logs + factorials[first] - factorials[first - np.where(possible, remaining, 0)]
    logs = np.where(possible, logs, -np.inf)
    return np.exp(logs - logs.max(axis=tuple(range(logs.ndim - 1))))


def features(game: Game, reports: Reports) -> FloatArray:
    """The features of a round on which a test is trained if the likelihood takes too long.

    With f the density of a report of a random other user: log L_x' - log L_x as if the others' vectors
    were drawn at random, which they are not; how much more each report looks like user 1 at x' than
    at x, among n such; the first three moments along user 1's move, and the squared length.

    Args:
        game: The game.
        reports: The reports of one round.

    Returns:
        The statistic, of shape (2 worlds, trials, features).
    """
    sigma, users = game.mechanism.sigma, game.mechanism.users
    mean = np.average(game.points, axis=0, weights=game.counts)
    centres, shares, width = game.points, game.counts / game.counts.sum(), sigma
    if len(game.points) > _COMPONENTS_LARGEST:
        centres, shares = mean[None], np.ones(1)
        width = math.sqrt(sigma**2 + float(np.mean((game.points - mean) ** 2)))

    def summands(z: FloatArray) -> FloatArray:
        length = np.sum(z**2, axis=-1)
        parts = np.exp(_log_densities(z, centres, width) - 0.5 * (length / width**2)[..., None]) @ shares
        crowd = np.log(np.maximum(parts, _TINY)) + 0.5 * length / sigma**2 - game.dimension * math.log(width / sigma)
        # Clipped against overflow: a ratio of e^300 decides as well as a larger one.
        ratios = np.exp(np.clip(_log_densities(z, game.own, sigma) - crowd[..., None], -300.0, 300.0))
        at_x, at_moved = ratios[..., 0], ratios[..., 1]
        likeness = (at_moved - at_x) / (0.5 * (at_moved + at_x) + users - 1)
        along = z[..., 0] - mean[0]
        return np.stack([at_x, at_moved, likeness, along, along**2, along**3, length], axis=-1)

    sums = np.where(reports.present[..., None], summands(reports.crowd), 0.0).sum(axis=1)
    totals = sums + np.where(reports.taking_part[:, None], summands(reports.own), 0.0)
    absent = users - reports.sizes
    ratio = np.log(np.maximum(absent + totals[..., 1], _TINY)) - np.log(np.maximum(absent + totals[..., 0], _TINY))
    return np.concatenate([ratio[..., None], totals[..., 2:]], axis=-1)

"""From the statistics of games to a proved lower bound on epsilon: an event, its counts, exact limits of its rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaincinv, expit

from shoal.bounds.numeric import FloatArray

_RANKS = 200
"""The number of thresholds that are tried: ranks of the scores, dense at the rare end and sparse elsewhere."""

_RIDGE = 1e-4
"""Keeps the weights of the trained test finite if it can tell the worlds apart without error."""


def clopper_pearson(successes: Any, trials: int, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Lower and upper limits of a probability, each exceeded with probability at most alpha.

    Clopper and Pearson (1934): quantiles of Beta(k, N - k + 1) and Beta(k + 1, N - k).

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> float(low), round(float(high), 6)  # 1 - 0.05^(1/100)
    (0.0, 0.029513)

    Args:
        successes: The number of successes, or an array.
        trials: The number of trials.
        alpha: The probability of error of each limit.

    Returns:
        The lower and the upper limit.
    """
    k = np.asarray(successes, dtype=float)
    low = np.where(k > 0, betaincinv(np.maximum(k, 1.0), trials - k + 1.0, alpha), 0.0)
    high = np.where(k < trials, betaincinv(k + 1.0, np.maximum(trials - k, 1.0), 1.0 - alpha), 1.0)
    return low, high


def lower_bound(hits: Any, alarms: Any, trials: int, *, delta: float, alpha: float) -> FloatArray:
    """A lower bound on log((P(A) - delta) / Q(A)) from the counts of an event A.

    Wrong with probability at most 2 alpha.

    Args:
        hits: The number of games in P in which A happened.
        alarms: The number of games in Q in which A happened.
        trials: The number of games in each world.
        delta: The delta.
        alpha: The probability of error of each rate.

    Returns:
        The bound; 0 if the games prove nothing.
    """
    likely, _ = clopper_pearson(hits, trials, alpha)
    _, unlikely = clopper_pearson(alarms, trials, alpha)
    # 0, never less: an event that proves nothing is no proof of the opposite.
    return np.asarray(np.log(np.maximum(likely - delta, unlikely) / unlikely))


@dataclass(frozen=True, kw_only=True, eq=False)
class Event:
    """An event: sign * (features . weights) >= threshold; with sign -1 it is likely in Q."""

    weights: FloatArray
    sign: int
    threshold: float

    def count(self, games: FloatArray) -> tuple[int, int]:
        """The number of games in which it happened: in the world that makes it likely, and in the other."""
        happened = (self.sign * (games @ self.weights) >= self.threshold).sum(axis=1)
        return (int(happened[1]), int(happened[0])) if self.sign > 0 else (int(happened[0]), int(happened[1]))


def choose(games: FloatArray, weights: FloatArray, delta: float, alpha: float) -> Event:
    """The event whose direction and threshold prove the largest bound in these games.

    Args:
        games: The statistics, of shape (2 worlds, trials, features).
        weights: The weights of the features.
        delta: The delta.
        alpha: The probability of error of each rate.

    Returns:
        The event.
    """
    scores = games @ weights
    trials = scores.shape[1]
    ranks = np.unique(np.geomspace(1, trials, _RANKS).astype(int))
    candidates = []
    for sign in (1, -1):
        unlikely, likely = (np.sort(sign * s) for s in scores[::sign])
        # The best threshold may be rare in either world.
        thresholds = np.unique(np.concatenate([unlikely[-ranks], likely[-ranks]]))
        hits, alarms = (trials - np.searchsorted(s, thresholds) for s in (likely, unlikely))
        bounds = lower_bound(hits, alarms, trials, delta=delta, alpha=alpha)
        i = int(np.argmax(bounds))
        candidates.append((float(bounds[i]), sign, float(thresholds[i])))
    _, sign, threshold = max(candidates)
    return Event(weights=weights, sign=sign, threshold=threshold)


def trained_weights(games: FloatArray) -> FloatArray:
    """The weights of a logistic regression of the world on the features."""
    data = np.concatenate([games[0], games[1]])
    worlds = np.repeat([-1.0, 1.0], games.shape[1])
    mean, spread = data.mean(axis=0), data.std(axis=0)
    spread[spread == 0.0] = 1.0  # a constant feature has no weight
    scaled = np.hstack([(data - mean) / spread, np.ones((len(data), 1))])

    def loss(w: FloatArray) -> tuple[float, FloatArray]:
        margin = worlds * (scaled @ w)
        slope = -(worlds * expit(-margin)) @ scaled / len(data) + 2.0 * _RIDGE * w
        return float(np.logaddexp(0.0, -margin).mean() + _RIDGE * w @ w), slope

    fit = minimize(loss, np.zeros(scaled.shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(fit.x[:-1] / spread)

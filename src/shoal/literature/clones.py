"""Amplification by shuffling of any local randomiser ("clones"), applied to Gaussian reports.

Feldman, McMillan and Talwar (2021), Hiding Among the Clones, arXiv:2012.12803. Only the closed form
of 2021 is here: the stronger statement of 2023 has an erratum.

A local guarantee (epsilon0, delta0) of a Gaussian report comes from the classical calibration,
`epsilon0 = D sqrt(2 log(1.25 / delta0)) / sigma` (Dwork and Roth 2014, Theorem A.1, stated there for
epsilon0 < 1 only), where D is the *sensitivity*: how far apart two vectors of one user can be. Clones
compare a user's report with those of all others, so D = 2 in the unit ball.

Error: round-off only.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal import _validate
from shoal.bounds import gaussian
from shoal.bounds.numeric import UNIT, FloatArray
from shoal.errors import InvalidInput

Profile = Callable[[int, FloatArray], FloatArray]
"""A privacy profile: from the number of shuffled reports and epsilons to upper bounds on delta in both directions."""

GRID_START = 1e-10
"""The halving grid of delta0 consists of GRID_START times powers of two."""

_DOUBLINGS = 32  # up to 0.43
_HALVINGS = 990  # down to 1e-308


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-DP."""

    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class GaussianClones:
    """The guarantees of one report, of one shuffled round, and of all rounds."""

    local: Guarantee
    round: Guarantee
    total: Guarantee


def _sensitivity(value: float) -> float:
    number = _validate.real("sensitivity", value)
    if number not in (1.0, 2.0):
        raise InvalidInput(f"sensitivity must be 1 or 2, got {number:g}")
    return number


def local_scale(sigma: float, sensitivity: float) -> float:
    """Return sigma in units of the distance that a vector can move.

    Args:
      sigma: The noise multiplier of a report.
      sensitivity: How far apart two vectors of one user can be: 1 or 2.

    Returns:
      `sigma / sensitivity`.

    Raises:
      InvalidInput: If an argument is out of its range.
    """
    return _validate.sigma(_validate.sigma(sigma) / _sensitivity(sensitivity), name="sigma / sensitivity")


def epsilon_limit(users: int, delta: float) -> float:
    """Return the largest epsilon0 to which `clones` applies.

    Args:
      users: The number of shuffled reports, n.
      delta: The delta of the shuffled round.

    Returns:
      `log(n / (16 log(2 / delta)))`.
    """
    return math.log(users / (16.0 * math.log(2.0 / delta)))


def clones(*, users: int, epsilon0: float, delta: float, delta0: float = 0.0) -> Guarantee:
    """Return the guarantee of shuffling reports that are (epsilon0, delta0)-DP each.

    Source: Feldman, McMillan and Talwar (2021), Theorem 3.1 (delta0 = 0) and Theorem 3.8: for any
    delta with `epsilon0 <= log(n / (16 log(2 / delta)))`,

        epsilon = log(1 + (e^eps0 - 1)/(e^eps0 + 1) (8 sqrt(e^eps0 log(4/delta)) / sqrt(n) + 8 e^eps0 / n)),
        total delta = delta + (e^epsilon + 1)(1 + e^-eps0 / 2) n delta0.

    It holds for any crowd and any randomiser. It loses in the constants, which for small epsilon0
    can make epsilon exceed epsilon0, and in n delta0. Liew and Takahashi (2022) quote the condition as
    `log(n / (16 log(2 delta)))` and the total with `s^epsilon`: misprints.

    Args:
      users: The number of reports, n.
      epsilon0: Epsilon of one report.
      delta: The delta of shuffling reports that have delta0 = 0.
      delta0: Delta of one report.

    Returns:
      Epsilon and the total delta.

    Raises:
      InvalidInput: If epsilon0 is too large for the theorem, or an argument is out of its range.

    >>> g = clones(users=60_000, epsilon0=1.0, delta=1e-6)
    >>> f"{g.epsilon:.6f} {g.delta:.1g}"
    '0.092750 1e-06'
    """
    n = _validate.users("users", users)
    eps0 = _validate.epsilon(epsilon0, name="epsilon0")
    shuffled_delta = _validate.delta(delta)
    local_delta = 0.0 if delta0 == 0 else _validate.delta(delta0, name="delta0")
    limit = epsilon_limit(n, shuffled_delta)
    if eps0 > limit:
        raise InvalidInput(
            f"epsilon0 must be at most log(users / (16 log(2 / delta))) = {limit:.6g} "
            f"for {n} users and delta {shuffled_delta:g}, got {eps0}"
        )
    grown = math.exp(eps0)
    spread = 8.0 * math.sqrt(grown * math.log(4.0 / shuffled_delta)) / math.sqrt(n) + 8.0 * grown / n
    gain = math.tanh(eps0 / 2.0) * spread  # (e^x - 1)/(e^x + 1) = tanh(x/2)
    total = shuffled_delta + (gain + 2.0) * (1.0 + 0.5 / grown) * n * local_delta
    return Guarantee(epsilon=math.log1p(gain), delta=min(1.0, total))


@functools.lru_cache(maxsize=8)
def local_on_grid(scale: float) -> tuple[Guarantee, ...]:
    """Return the guarantees of one report for falling delta0 on the halving grid (classical calibration)."""
    deltas = GRID_START * 2.0 ** -np.arange(-_DOUBLINGS, _HALVINGS, dtype=float)
    return tuple(Guarantee(epsilon=math.sqrt(2.0 * math.log(1.25 / d)) / scale, delta=d) for d in deltas.tolist())


def rounds_on_grid(users: int, scale: float) -> list[tuple[Guarantee, Guarantee]]:
    """Return pairs of local and shuffled guarantees where `clones` applies.

    Args:
      users: The number of reports.
      scale: sigma in units of the distance that a vector can move.

    Returns:
      A pair for each delta = delta0 on the halving grid, falling.
    """

    def is_covered(local: Guarantee) -> bool:
        return local.epsilon <= epsilon_limit(users, local.delta)

    return [
        (local, clones(users=users, epsilon0=local.epsilon, delta=local.delta, delta0=local.delta))
        # As delta0 falls, epsilon0 rises and its limit falls: the first that is not covered ends the list.
        for local in itertools.takewhile(is_covered, local_on_grid(scale))
    ]


def clones_gaussian(
    *, users: int, sigma: float, delta: float, rounds: int = 1, sensitivity: float = 2.0
) -> GaussianClones:
    """Return `clones` for Gaussian reports, composed by plain addition.

    Source: Liew and Takahashi (2022), section 5.1, the row "Clones" of Table 1. delta0 = delta is the largest of
    1e-10 times a power of two for which `rounds` times the delta of a round is at most `delta`. Sensitivity 1 would
    be like for like with the Rényi row (the paper's crowd), but would not hold for any crowd.

    What is wrong with it: the classical calibration is used above epsilon0 = 1, where it is not
    proved (for the numbers of Table 1 it holds); addition is far from optimal composition.

    Args:
      users: The number of users.
      sigma: The noise multiplier of a report.
      delta: The delta of all rounds together.
      rounds: The number of rounds.
      sensitivity: How far apart two vectors of one user can be: 1 or 2.

    Returns:
      The guarantees of one report, of one round and of all rounds.

    Raises:
      InvalidInput: If no delta0 meets the total delta, or an argument is out of its range.

    >>> guarantees = clones_gaussian(users=60_000, sigma=9.476, delta=1 / 60_000, rounds=3)
    >>> f"{guarantees.total.epsilon:.5f} {guarantees.local.delta:.4g}"
    '0.59516 2.5e-11'
    """
    n = _validate.users("users", users)
    target = _validate.delta(delta)
    count = _validate.rounds(rounds)
    for local, shuffled in rounds_on_grid(n, local_scale(sigma, sensitivity)):
        if count * shuffled.delta <= target:
            total = Guarantee(epsilon=count * shuffled.epsilon, delta=count * shuffled.delta)
            return GaussianClones(local=local, round=shuffled, total=total)
    raise InvalidInput(
        f"users or sigma must be larger for clones to apply: no delta0 gives delta {target:g} "
        f"for {n} users, sigma {sigma:g} and {count} rounds"
    )


def log_gaussian_profile(epsilons: FloatArray, scale: float) -> FloatArray:
    """Return `log delta(epsilon)` of one Gaussian report, rounded up.

    Args:
      epsilons: Where delta is computed.
      scale: sigma in units of the distance that a vector can move.

    Returns:
      The logarithm of delta at each epsilon.
    """
    r = 1.0 / scale
    first, second = gaussian.log_terms(r, epsilons)
    # The difference of two close logarithms is uncertain by their round-off, which is added to it.
    slack = 8.0 * UNIT * (np.abs(first) + np.abs(second) + epsilons + 1.0)
    return np.asarray(first + np.log(-np.expm1(-np.maximum(first - second, 0.0) - slack)), dtype=float)


def clones_profile(*, sigma: float, sensitivity: float = 2.0) -> Profile:
    """Return the privacy profile that `clones` proves for k shuffled Gaussian reports.

    It is a step function: for each epsilon the smallest total delta over the halving grid of delta0 = delta, and 1
    where `clones` does not apply. For large epsilon it falls more slowly than a Gaussian, and the local guarantee is
    better.

    Args:
      sigma: The noise multiplier of a report.
      sensitivity: How far apart two vectors of one user can be: 1 or 2.

    Returns:
      A function from the number of reports and epsilons to deltas.

    >>> profile = clones_profile(sigma=9.48)
    >>> [f"{d:.2g}" for d in profile(60_000, np.array([0.1, 0.2, 0.4]))]
    ['0.48', '3.7e-06', '9.2e-16']
    """
    scale = local_scale(sigma, sensitivity)

    def profile(reports: int, epsilons: FloatArray) -> FloatArray:
        shuffled = [pair[1] for pair in rounds_on_grid(reports, scale)]
        # As delta0 falls, epsilon rises and the total delta falls; the minimum makes it monotone in any case.
        steps = np.array([guarantee.epsilon for guarantee in shuffled])
        order = np.argsort(steps)
        deltas = np.minimum.accumulate(np.concatenate([[1.0], np.array([g.delta for g in shuffled])[order]]))
        return np.asarray(deltas[np.searchsorted(steps[order], epsilons, side="right")], dtype=float)

    return profile

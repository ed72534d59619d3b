"""One mechanism by every method, side by side: what each proves, and what it assumes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

from shoal import _validate
from shoal.errors import InvalidInput, InvalidType
from shoal.interval import Interval
from shoal.literature.checkin import checkin_baseline, theorem3
from shoal.literature.clones import clones_gaussian
from shoal.literature.composition import epsilon_from_rdp
from shoal.literature.partitions import shuffle_rdp
from shoal.literature.sampling import theorem2
from shoal.mechanisms import (
    LocalGaussian,
    Mechanism,
    PoissonSampling,
    SecureSum,
    Shuffle,
    ShuffledCheckIn,
    SubsampledShuffle,
)

PAPER_ORDERS = range(2, 31)
"""The orders that the paper evaluates."""

THEOREM: dict[type[Mechanism], str] = {
    Shuffle: "Theorem 1",
    SubsampledShuffle: "Theorem 2",
    ShuffledCheckIn: "Theorem 3",
}
"""The theorem of the paper that bounds each mechanism."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The epsilon that one method gives."""

    method: str
    crowd: str
    epsilon: float | None
    """A bound, or None where the method does not apply; `note` says why."""
    lower: float = 0.0
    """The lower bound by the same method."""
    note: str = ""
    side: Literal["upper", "lower"] = "upper"
    """"lower" for an attack, which is no guarantee but limits all of them."""
    deployment: str = ""
    """Where the row is about the same noise under other trust: which."""


def compare(mechanism: Mechanism, *, delta: float, rounds: int = 1) -> list[Comparison]:
    """Return epsilon by every method that applies to the mechanism.

    Rows named "tight" are certified intervals of this package, also those of the same noise under other trust
    (`deployments`). The paper's theorems cover one direction and its idealised crowd, through Rényi DP. Clones hold for
    any crowd, with a sensitivity of 2 in the local calibration, and are composed as approximate DP.

    Args:
      mechanism: One round.
      delta: The delta of all rounds together.
      rounds: The number of rounds.

    Returns:
      A row for each method.

    >>> from shoal import Shuffle
    >>> for row in compare(Shuffle(users=60_000, sigma=9.48), delta=1 / 60_000, rounds=7):
    ...     print(f"{row.method} ({row.crowd}): {row.epsilon:.4f}")
    tight, no shuffler (any): 1.0097
    tight, secure sum (any): 0.0020
    tight, central noise (any): 0.0020
    paper, Theorem 1 (identical): 0.2282
    clones (any): 1.4306
    Rényi DP, all orders (identical): 0.0025
    tight (identical): 0.0020
    tight (any): 0.0021
    attack on a bad crowd (any): 0.0021
    """
    _validate.delta(delta)
    count = _validate.rounds(rounds)
    m = mechanism
    rows = []
    for name, deployed in deployments(m).items():
        row = _certified_row(f"tight, {name}", "any", deployed.epsilon(delta=delta, rounds=count), deployed.trust)
        rows.append(replace(row, deployment=name))
    if isinstance(m, tuple(THEOREM)) and not _is_beyond_theorems(m):
        epsilon = epsilon_from_rdp(curve=lambda k: paper_rdp(m, k), orders=PAPER_ORDERS, delta=delta, rounds=count)
        name, note = f"paper, {THEOREM[type(m)]}", "Rényi DP, orders up to 30, one direction"
        rows.append(Comparison(method=name, crowd="identical", epsilon=epsilon, note=note))
    if isinstance(m, (Shuffle, ShuffledCheckIn)) and not _is_beyond_theorems(m):
        # Where its conditions do not hold the row stays and says why: a missing row would look like a good one.
        try:
            note = "approximate DP, sensitivity 2"
            rows.append(Comparison(method="clones", crowd="any", epsilon=clones_epsilon(m, delta, count), note=note))
        except InvalidInput as error:
            rows.append(Comparison(method="clones", crowd="any", epsilon=None, note=str(error)))
    crowded = isinstance(m, (Shuffle, SubsampledShuffle, ShuffledCheckIn))
    exact = m.replace(crowd="identical") if crowded else m
    crowd = "identical" if crowded else "none needed"
    by_rdp = exact.epsilon(delta=delta, rounds=count, method="rdp")
    rows.append(Comparison(method="Rényi DP, all orders", crowd=crowd, epsilon=by_rdp.upper, note="both directions"))
    rows.append(_certified_row("tight", crowd, exact.epsilon(delta=delta, rounds=count), m.trust))
    if crowded:
        safe = m.replace(crowd="any").epsilon(delta=delta, rounds=count)
        rows.append(_certified_row("tight", "any", safe, m.trust))
        worst = "all others opposite" if m.adjacency == "zero-out" else "the worse of opposite and identical"
        note = f"{worst}: no guarantee for any crowd can be below"
        rows.append(
            Comparison(method="attack on a bad crowd", crowd="any", epsilon=safe.lower, note=note, side="lower")
        )
    return rows


def deployments(mechanism: Mechanism) -> dict[str, Mechanism]:
    """The noise of a round's sum under another kind of trust.

    Each report has noise sigma, so that the sum of n reports has sigma sqrt(n): a trusted server adds that at once.
    Users who are corrupt, or drop out, take their noise with them, except where the server adds it.

    Args:
      mechanism: A mechanism whose users add the noise.

    Returns:
      Mechanisms by what they are called: without a shuffler, and for all users or coins also by a secure sum and with
      central noise.

    >>> from shoal import Shuffle
    >>> list(deployments(Shuffle(users=100, sigma=2.0)))
    ['no shuffler', 'secure sum', 'central noise']
    """
    m, named = mechanism, dict[str, Mechanism]()
    if isinstance(m, LocalGaussian):
        return named
    # k reports of one person move their sum by up to k, with noise sigma sqrt(k).
    sigma = m.sigma / math.sqrt(m.reports_per_user) if isinstance(m, Shuffle) else m.sigma
    named["no shuffler"] = LocalGaussian(sigma=sigma, adjacency=m.adjacency)
    if isinstance(m, (Shuffle, ShuffledCheckIn)):
        rate, noise = m.participation, sigma * math.sqrt(m.participation * m.users)
        named["secure sum"] = SecureSum(users=m.users, sigma=sigma, rate=rate, corrupt=m.corrupt, adjacency=m.adjacency)
        if noise <= _validate.SIGMA_RANGE[1]:
            named["central noise"] = PoissonSampling(rate=rate, sigma=noise, adjacency=m.adjacency)
    return named


def _is_beyond_theorems(m: Mechanism) -> bool:
    """Whether theorems of others do not speak of it: they know no corrupt users, and one report of each."""
    return bool(getattr(m, "corrupt", 0)) or getattr(m, "reports_per_user", 1) > 1


def _certified_row(method: str, crowd: str, epsilon: Interval, trust: str) -> Comparison:
    note = f"certified, both directions; {trust}"
    return Comparison(method=method, crowd=crowd, epsilon=epsilon.upper, lower=epsilon.lower, note=note)


@functools.lru_cache(maxsize=1024)
def paper_rdp(m: Mechanism, order: int) -> float:
    """Return the paper's Rényi bound on one round of a mechanism; cached.

    Args:
      m: A mechanism of the paper.
      order: The Rényi order, a whole number.

    Returns:
      The bound on the Rényi divergence.

    Raises:
      InvalidType: If the paper does not treat the mechanism.
    """
    if isinstance(m, Shuffle):
        return shuffle_rdp(users=m.users, sigma=m.scale, order=order)
    if isinstance(m, SubsampledShuffle):
        return theorem2(users=m.users, sample=m.sample, sigma=m.scale, order=order)
    if isinstance(m, ShuffledCheckIn):
        return theorem3(users=m.users, rate=m.rate, sigma=m.scale, order=order)
    raise InvalidType(f"mechanism must be one of the paper's, got {type(m).__name__}")


def clones_epsilon(m: Shuffle | ShuffledCheckIn, delta: float, rounds: int) -> float:
    """Return epsilon by approximate DP and clones, the paper's baseline.

    Args:
      m: The mechanism of one round.
      delta: The delta of all rounds together.
      rounds: The number of rounds.

    Returns:
      Epsilon of all rounds together.

    Raises:
      InvalidInput: If the conditions of the theorem do not hold.
    """
    if isinstance(m, Shuffle):
        return clones_gaussian(users=m.users, sigma=m.sigma, delta=delta, rounds=rounds).total.epsilon
    return checkin_baseline(users=m.users, rate=m.rate, sigma=m.sigma, delta=delta, rounds=rounds)

"""One setting, every method side by side: what each proves, and what it assumes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from shoal import _validate
from shoal.interval import Interval
from shoal.literature.checkin import checkin_baseline, theorem3
from shoal.literature.clones import clones_gaussian
from shoal.literature.composition import epsilon_from_rdp
from shoal.literature.partitions import shuffle_rdp
from shoal.literature.sampling import theorem2
from shoal.mechanisms import LocalGaussian, Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle

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
    """What one method gives: a bound on epsilon from one side, or (None) the reason why there is none.

    `lower` is what the same method knows from below. `side` is "lower" for what is no guarantee but a limit of all.
    """

    method: str
    crowd: str
    epsilon: float | None
    lower: float = 0.0
    note: str = ""
    side: Literal["upper", "lower"] = "upper"


def compare(mechanism: Mechanism, *, delta: float, rounds: int = 1) -> list[Comparison]:
    """Epsilon of `rounds` rounds by every method that knows the mechanism.

    Rows named "tight" are by one method, the certified bracket of this package, also the one without a shuffler.
    The paper's theorems cover one direction and its idealised crowd, through Rényi DP; clones hold for any crowd, with
    a sensitivity of 2 for the local calibration, and are composed as approximate DP.

    >>> from shoal import Shuffle
    >>> for row in compare(Shuffle(users=60_000, sigma=9.48), delta=1 / 60_000, rounds=7):
    ...     print(f"{row.method} ({row.crowd}): {row.epsilon:.4f}")
    tight, no shuffler (any): 1.0097
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
    if not isinstance(m, LocalGaussian):
        local = LocalGaussian(sigma=m.sigma, adjacency=m.adjacency)
        alone = local.epsilon(delta=delta, rounds=count)
        rows.append(_tight("tight, no shuffler", "any", alone))
    if isinstance(m, tuple(THEOREM)):
        epsilon = epsilon_from_rdp(curve=lambda k: paper_rdp(m, k), orders=PAPER_ORDERS, delta=delta, rounds=count)
        name, note = f"paper, {THEOREM[type(m)]}", "Rényi DP, orders up to 30, one direction"
        rows.append(Comparison(method=name, crowd="identical", epsilon=epsilon, note=note))
    if isinstance(m, (Shuffle, ShuffledCheckIn)):
        # Where its conditions do not hold the row stays, and says so: an empty place would look like a good one.
        try:
            note = "approximate DP, sensitivity 2"
            rows.append(Comparison(method="clones", crowd="any", epsilon=clones(m, delta, count), note=note))
        except ValueError as error:
            rows.append(Comparison(method="clones", crowd="any", epsilon=None, note=str(error)))
    crowded = isinstance(m, (Shuffle, SubsampledShuffle, ShuffledCheckIn))
    exact = m.replace(crowd="identical") if crowded else m
    crowd = "identical" if crowded else "none needed"
    by_rdp = exact.epsilon(delta=delta, rounds=count, method="rdp")
    rows.append(Comparison(method="Rényi DP, all orders", crowd=crowd, epsilon=by_rdp.upper, note="both directions"))
    rows.append(_tight("tight", crowd, exact.epsilon(delta=delta, rounds=count)))
    if crowded:
        safe = m.replace(crowd="any").epsilon(delta=delta, rounds=count)
        rows.append(_tight("tight", "any", safe))
        bad = "all others opposite" if m.adjacency == "zero-out" else "the worse of opposite and identical"
        note = f"{bad}: no guarantee for any crowd can be below"
        rows.append(
            Comparison(method="attack on a bad crowd", crowd="any", epsilon=safe.lower, note=note, side="lower")
        )
    return rows


def _tight(method: str, crowd: str, found: Interval) -> Comparison:
    return Comparison(
        method=method, crowd=crowd, epsilon=found.upper, lower=found.lower, note="certified, both directions"
    )


@functools.lru_cache(maxsize=1024)
def paper_rdp(m: Mechanism, order: int) -> float:
    """The paper's Rényi bound for a mechanism; it does not depend on the rounds, so it is kept."""
    if isinstance(m, Shuffle):
        return shuffle_rdp(users=m.users, sigma=m.scale, order=order)
    if isinstance(m, SubsampledShuffle):
        return theorem2(users=m.users, sample=m.sample, sigma=m.scale, order=order)
    if isinstance(m, ShuffledCheckIn):
        return theorem3(users=m.users, rate=m.rate, sigma=m.scale, order=order)
    raise TypeError(f"mechanism must be one of the paper's, got {type(m).__name__}")


def clones(m: Shuffle | ShuffledCheckIn, delta: float, rounds: int) -> float:
    """Epsilon by approximate DP and clones, the paper's baseline; `ValueError` where its conditions do not hold."""
    if isinstance(m, Shuffle):
        return clones_gaussian(users=m.users, sigma=m.sigma, delta=delta, rounds=rounds).total.epsilon
    return checkin_baseline(users=m.users, rate=m.rate, sigma=m.sigma, delta=delta, rounds=rounds)

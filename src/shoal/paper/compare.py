"""One setting, every method side by side: what each proves, and what it assumes."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from shoal import _validate
from shoal.mechanisms import LocalGaussian, Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.paper.checkin import checkin_baseline, theorem3
from shoal.paper.clones import clones_gaussian
from shoal.paper.composition import epsilon_from_rdp
from shoal.paper.partitions import shuffle_rdp
from shoal.paper.sampling import theorem2

PAPER_ORDERS = range(2, 31)
"""The orders that the paper evaluates."""

THEOREM: dict[type[Mechanism], str] = {
    Shuffle: "Theorem 1",
    SubsampledShuffle: "Theorem 2",
    ShuffledCheckIn: "Theorem 3",
}
"""The theorem of the paper that bounds each mechanism."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one method gives: an upper bound on epsilon, or the reason why there is none."""

    method: str
    crowd: str
    epsilon: float | None
    lower: float = 0.0
    note: str = ""


def compare(mechanism: Mechanism, *, delta: float, rounds: int = 1) -> list[Row]:
    """Epsilon of `rounds` rounds by every method that knows the mechanism.

    The paper's theorems cover one direction and its idealised crowd; clones hold for any crowd, with
    a sensitivity of 2 for the local calibration; "tight" for any crowd is the exchange theorem's bound.

    >>> from shoal import Shuffle
    >>> for row in compare(Shuffle(users=60_000, sigma=9.48), delta=1 / 60_000, rounds=7):
    ...     print(f"{row.method} ({row.crowd}): {row.epsilon:.4f}")
    no shuffling (any): 1.1072
    paper, Theorem 1 (identical): 0.2282
    clones (any): 1.4306
    Rényi DP, exact (identical): 0.0025
    tight (identical): 0.0020
    attack on a bad crowd (any): 0.0021
    tight (any): 0.0021
    """
    _validate.delta(delta)
    count = _validate.rounds(rounds)
    m = mechanism
    rows = []
    if not isinstance(m, LocalGaussian):
        local = LocalGaussian(sigma=m.sigma, adjacency=m.adjacency)
        alone = local.epsilon(delta=delta, rounds=count, method="rdp").upper
        rows.append(Row(method="no shuffling", crowd="any", epsilon=alone))
    if isinstance(m, tuple(THEOREM)):
        epsilon = epsilon_from_rdp(curve=lambda k: paper_rdp(m, k), orders=PAPER_ORDERS, delta=delta, rounds=count)
        name, note = f"paper, {THEOREM[type(m)]}", "orders up to 30, one direction"
        rows.append(Row(method=name, crowd="identical", epsilon=epsilon, note=note))
    if isinstance(m, (Shuffle, ShuffledCheckIn)):
        try:
            rows.append(Row(method="clones", crowd="any", epsilon=clones(m, delta, count), note="sensitivity 2"))
        except ValueError as error:
            rows.append(Row(method="clones", crowd="any", epsilon=None, note=str(error)))
    crowded = isinstance(m, (Shuffle, SubsampledShuffle, ShuffledCheckIn))
    exact = m.replace(crowd="identical") if crowded else m
    crowd = "identical" if crowded else "none needed"
    by_rdp = exact.epsilon(delta=delta, rounds=count, method="rdp")
    rows.append(Row(method="Rényi DP, exact", crowd=crowd, epsilon=by_rdp.upper))
    tight = exact.epsilon(delta=delta, rounds=count)
    rows.append(Row(method="tight", crowd=crowd, epsilon=tight.upper, lower=tight.lower, note="certified bracket"))
    if crowded:
        safe = m.replace(crowd="any").epsilon(delta=delta, rounds=count)
        bad = "all others opposite" if m.adjacency == "zero-out" else "the worse of opposite and identical"
        note = f"lower bound ({bad}): no guarantee for any crowd can be below"
        rows.append(Row(method="attack on a bad crowd", crowd="any", epsilon=safe.lower, lower=safe.lower, note=note))
        rows.append(
            Row(method="tight", crowd="any", epsilon=safe.upper, lower=safe.lower, note="certified, exchange theorem")
        )
    return rows


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

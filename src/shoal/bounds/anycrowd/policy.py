"""Which bounds are computed for a round: every choice that is not needed for correctness, and nothing else.

A `BoundPlan` is data. `anycrowd.exchange`, `anycrowd.groups`, `anycrowd.direct` and their kin evaluate a plan soundly,
whatever it says: soundness never depends on which plan is chosen. A bad choice makes a bound larger or slower, never
wrong. So this file may be changed without reading a proof, and the proofs may be read without this file.

All plans of one small family are evaluated coarsely for every round, and those that lead somewhere on the curve
once more with full resolution (`leaders`). The family is the same for all noise, users and rates, so that there
are no edges at which a rule changes: the smallest of bounds that fall with noise and users falls with them, too. What
a plan counts in users (the size of a group, users aside) follows from the number of hidden users by one formula.

A new plan is one line in `FAMILY`. `benchmarks/any_crowd_plans.py` shows which plan leads where, what epsilon is
without it, and what each other constant below is worth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.bounds.anycrowd.prices import Prices
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.numeric import FloatArray

_EIGHTHS = (-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class BoundPlan:
    """One bound on a round, as data: any values are sound.

    `thinning` is t of `anycrowd.exchange`. `size` is the number of users in a group, 0 for the theorem without users
    aside, `cuts` are the places between -1 and 1 at which a group ends, and `aside` is the smallest number of
    users aside. `by_size` takes check-in as a mixture of fixed sizes. User 1's report has a node at each of `places`.
    """

    thinning: float
    size: int = 0
    cuts: tuple[float, ...] = ()
    aside: int = 0
    by_size: bool = False
    places: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of the family: a plan in which users are counted as parts of the number of hidden users.

    A group has `group` times the root of that number (over the rate) users, or one user if that is 0. Where groups
    leave the choice, `aside` times the root of that number are aside, and no more than half of them.
    """

    thinning: float
    group: float | None = None
    cuts: tuple[float, ...] = ()
    aside: float = 2.0
    by_size: bool = False


FAMILY = (
    Member(thinning=-math.inf),
    Member(thinning=1.0),
    Member(thinning=2.25),
    Member(thinning=4.25),
    Member(thinning=1.0, by_size=True),
    Member(thinning=2.5, by_size=True),
    Member(thinning=4.25, by_size=True),
    Member(thinning=-math.inf, group=0.27, cuts=_EIGHTHS),
    Member(thinning=0.25, group=0.5, cuts=(-0.6, 0.0)),
    Member(thinning=0.5, group=0.4, cuts=(-0.3,)),
    Member(thinning=-math.inf, group=0.0, aside=3.0),
)
"""The bounds that are tried for every round."""

SEQUENTIAL_CUTS, SEQUENTIAL_GROUP_MAX = (-0.8, -0.5, -0.1, 0.4), 32
"""Groups of records in sequence are made one term after the other: fewer intervals, and no larger groups."""

_HIDDEN_MIN, _BY_SIZE_SENDERS_MAX = 0.1, 32.0
"""Hidden users below which the report is as good as in the clear; senders up to which a mixture of sizes is tried."""

_PLACES: FloatArray = np.array([-5.5, -3.5, -2.0, -1.0, -0.2, 0.6, 1.4, 2.4, 3.8, 6.0, 8.2])
"""Nodes of user 1's report among many users."""

_NODES_BELOW = 100.0
"""Hidden users below which the nodes are finer, up to three times, as v is the larger part of the sum."""

BLOCKS, BLOCK_WIDTHS = 12, (6e-3, 0.03)
"""Blocks of counts within three deviations, and their smallest and largest widths as parts of the count."""

COARSE, _GROUPS_LOSS = 192, (0.012, 0.0012)
"""Cells of a law at which plans are compared; the part of epsilon that groups by place lose there, and each cut."""

_PROBES: FloatArray = 10.0 ** -np.array([1.0, 2.0, 3.0, 4.5, 6.0, 7.5, 9.0, 11.0, 16.0, 24.0, 36.0, 48.0])
_LEAD = 4e-3
"""Deltas at which plans are compared, next to parts of delta(0), and the lead from which a plan is taken as well."""


def plans(
    *, sigma: float, users: int, rate: float = 1.0, sample: int | None = None, sequential: bool = False
) -> tuple[BoundPlan, ...]:
    """The plans of the family for a round, without those that hide or group nobody.

    Args:
        sigma: Noise of one report.
        users: Number of users.
        rate: Probability that a report is sent.
        sample: Number of users drawn, if it is fixed.
        sequential: Whether users react to the reports before their own.

    Returns:
        Different plans.
    """
    chosen = []
    for member in FAMILY:
        if member.by_size and (rate == 1.0 or sample is not None or users * rate > _BY_SIZE_SENDERS_MAX):
            continue
        # Groups of a fixed size are of those who are drawn, of whom nobody is thinned.
        is_drawn = sample is not None and member.group is not None
        thinning = -math.inf if is_drawn else member.thinning
        hidden = float(sample or 0) if is_drawn else (users - 1) * Thinning.of(1.0 / sigma, thinning).q
        if member.group is None:
            if hidden >= _HIDDEN_MIN:
                chosen.append(BoundPlan(thinning=thinning, by_size=member.by_size, places=_places(hidden)))
        elif (plan := _with_groups(member, thinning, hidden, rate, sequential=sequential)) is not None:
            chosen.append(plan)
    return tuple(dict.fromkeys(chosen))


def _with_groups(member: Member, thinning: float, hidden: float, rate: float, *, sequential: bool) -> BoundPlan | None:
    """The plan of a member with users aside, or None where too few are hidden for it."""
    group, cuts = member.group or 0.0, member.cuts
    size = max(1, round(group * math.sqrt(hidden / rate)))
    # A group of one gains nothing from places.
    if size == 1 and group > 0.0:
        return None
    if sequential:
        size, cuts = min(size, SEQUENTIAL_GROUP_MAX), min(cuts, SEQUENTIAL_CUTS, key=len)
    # What v varies costs a part 1 / K2 of the variance, and what those aside lose a part K2 / K.
    is_free = size == 1 or sequential
    aside = math.ceil(min(0.5 * hidden, member.aside * math.sqrt(hidden))) if is_free else (len(cuts) + 1) * (size - 1)
    if size + aside > hidden:
        return None
    return BoundPlan(thinning=thinning, size=size, cuts=cuts, aside=aside, places=_places(float(aside)))


@functools.lru_cache(maxsize=256)
def _places(hidden: float) -> tuple[float, ...]:
    """Nodes of user 1's report among these hidden users."""
    factor = max(1.0, math.sqrt(_NODES_BELOW / max(hidden, _NODES_BELOW / 9.0)))
    count = math.ceil((len(_PLACES) - 1) * factor) + 1
    return tuple(np.interp(np.linspace(0.0, len(_PLACES) - 1.0, count), np.arange(len(_PLACES)), _PLACES).tolist())


def leaders(bounds: Mapping[BoundPlan, Prices], budget: float) -> list[BoundPlan]:
    """The plans that lead somewhere: the fewest that are nearly the best at each probe.

    Args:
        bounds: Coarse prices of each plan.
        budget: Mass that was cut: probes stay far above it.

    Returns:
        Plans, the most useful one first.
    """
    # At epsilon = 0 deltas are compared, elsewhere epsilons.
    tried, prices_of = list(bounds), list(bounds.values())
    advantage = np.array([float(prices.at(np.zeros(1))[0]) for prices in prices_of])
    probes = np.concatenate([_PROBES[1e8 * budget < _PROBES], advantage.min() * np.array([0.3, 0.05])])
    compared = np.column_stack([advantage, np.array([_epsilons(prices, probes) for prices in prices_of])])
    loss, by_cut = _GROUPS_LOSS
    compared *= np.array([1.0 - loss * float(bool(plan.cuts)) - by_cut * len(plan.cuts) for plan in tried])[:, None]
    best, chosen = compared.min(axis=0), list[BoundPlan]()
    lack = np.full(len(best), math.inf)
    while np.any(lack > _LEAD):
        # The plan that leaves least to gain at all probes together.
        left = np.minimum(lack, compared / np.maximum(best, 1e-300) - 1.0)
        leader = int(np.argmin(np.maximum(left - _LEAD, 0.0).sum(axis=1)))
        chosen.append(tried[leader])
        lack = left[leader]
    return chosen


def _epsilons(prices: Prices, probes: FloatArray) -> FloatArray:
    """The epsilon of the worse direction at each probe."""
    below, above = prices.gap <= 0.0, prices.gap >= 0.0
    loss, epsilon = np.log1p(prices.gap), np.zeros(len(probes))
    curves = ((loss[above], prices.value[above]), (-loss[below][::-1], (prices.value / np.exp(loss))[below][::-1]))
    for at, delta in curves:
        fall = -np.log(np.maximum(np.minimum.accumulate(delta), 1e-300))
        epsilon = np.maximum(epsilon, np.interp(-np.log(probes), fall, at, left=0.0))
    return epsilon

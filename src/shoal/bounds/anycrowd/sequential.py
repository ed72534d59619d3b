"""Sequential, adaptive shuffling from above: the exchange theorem for records that react to all outputs before.

T records stand in a uniformly random order that is secret. Step i publishes `c_i(h_i) + g_j(i, h_i) + N(0, sigma^2 I)`,
where j is the record whose turn it is and h_i are the outputs before; the functions c_i and g_j, |g_j| <= 1, are
anybody's choice. A shuffler's multiset of reports is the case in which no function looks at h_i.

**Theorem (sequential).** For every thinning the ratio S of all outputs, in their order, is below the law of
`anycrowd.exchange` with n = T.

What `anycrowd.groups` adds holds with two changes. Records do not keep to a place, so groups are those of
`anycrowd.adaptive`; and as nobody is left over, any number of records may be aside. Everything else is as it was: the
smaller of two price curves, blocks of K, replace by way of zero, directly, and seen from where record 1 stands. A round
with less noise or fewer records is worse here too: noise can be added to each output before anybody reads it, and a
record's step and name can be revealed.

Proofs: `docs/explanation/guarantee.md`, "Sequential shuffling". Errors: those of the files named above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.bounds.anycrowd import groups
from shoal.bounds.anycrowd.adaptive import AdaptiveDivision
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.thinning import Thinning

_GROUP_MAX = 32
"""Groups are made one term after the other; larger ones gain less than they cost in time."""

_MANY_CUTS = (-1.0, -0.8, -0.5, -0.1, 0.4, 1.0)
"""Intervals of places for many records: finer near -1, where the largest prices come from."""


@dataclass(frozen=True, kw_only=True)
class Sequential(Exchange):
    """One epoch of `users` steps in a fresh secret order, one record each, of which nothing else is known."""

    def division(self) -> AdaptiveDivision | None:
        plan = groups.grouping(self.ratio, self.users)
        if plan is None:
            return None
        thinned = self.users * Thinning.of(1.0 / self.ratio.scale, plan.t).q
        cuts = plan.cuts if len(plan.cuts) < len(_MANY_CUTS) else _MANY_CUTS
        # What v varies costs a part 1 / K2 of the variance, and what those aside lose a part K2 / K.
        return AdaptiveDivision(
            size=min(plan.size, _GROUP_MAX), cuts=cuts, t=plan.t, spare=math.ceil(2.0 * math.sqrt(thinned))
        )

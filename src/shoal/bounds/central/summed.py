"""A secure sum whose senders toss coins: how many came is public, who came is not.

Each of `users` honest users takes part with probability `rate`, on a coin of its own, and adds noise
N(0, (C sigma)^2 I) to its vector. The server learns the sum and the number m of its shares, nothing else. Given m the
shares are those of m users drawn without replacement, and the noise of their sum is one Gaussian of deviation
sigma sqrt(m): a batch of fixed size (`central.swap`) with rate m / users. Each m has its binomial probability, whatever
the users hold, so the round is one of these batches, drawn with a public label.

*Groups.* Neighbouring m are put together. From above a group has the largest rate and the least noise of its m: a pair
of `swap` at t >= 1 is the positive part of `N(x) - t N(x') - (t - 1) (1 - q)/q N(o)`, which rises with q, and noise
that is added is post-processing. From below it has the least rate and the most noise.

*Errors.*

1. Probabilities of groups are differences of a distribution function, good to a part of 1e-10 of the larger one; a part
   of 1e-9 of it is charged.
2. Numbers beyond where Chernoff's bound is `TAIL_CUT` count as complete exposure from above, and as nothing from below.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from scipy import special

from shoal.bounds.central.records import Labelled, LabelledUpper
from shoal.bounds.central.swap import Real, Swap, Worst
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round

TAIL_CUT = 1e-30
"""Chernoff's bound on either tail of the numbers that are left out (error 2)."""

_FINE = (-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Deviations from the mean at which groups start; with no more possible numbers each is its own group."""

_COARSE = (-4.0, 4.0)
"""The same for moments, whose parts take longer."""

_NOISE_MIN_SWAPPED = 0.2
"""The least noise for which another user in the place of this one matters; below, its share counts as seen."""


def _divergence(part: float, rate: float) -> float:
    """The relative entropy of two coins."""
    return float(special.rel_entr(part, rate) + special.rel_entr(1.0 - part, 1.0 - rate))


def last_likely(users: int, rate: float, *, rises: bool) -> int:
    """The number beyond which a binomial law has less than `TAIL_CUT`, by Chernoff's bound.

    The bound holds for draws without replacement as well (Hoeffding 1963, theorem 4).

    Args:
        users: Number of coins.
        rate: Probability of each.
        rises: Whether the upper end is meant.

    Returns:
        The last number that is not left out.
    """
    mean = users * rate
    low, high = (math.floor(mean), users) if rises else (0, math.ceil(mean))
    if users * _divergence((high if rises else low) / users, rate) < -math.log(TAIL_CUT):
        return high if rises else low
    while high - low > 1:
        middle = (low + high) // 2
        is_likely = users * _divergence(middle / users, rate) < -math.log(TAIL_CUT)
        low, high = (middle, high) if is_likely == rises else (low, middle)
    return high if rises else low


@functools.lru_cache(maxsize=64)
def _groups(users: int, rate: float, starts_at: tuple[float, ...]) -> tuple[tuple[int, int, float, float], ...]:
    """First and last number of each group, and its probability from below and from above."""
    first, last = (last_likely(users, rate, rises=rises) for rises in (False, True))
    mean, deviation = users * rate, math.sqrt(users * rate * (1.0 - rate))
    starts = sorted({first, *(min(max(round(mean + x * deviation), first), last) for x in starts_at)})
    if last - first < len(starts_at):
        starts = list(range(first, last + 1))
    edges = [*starts, last + 1]
    # P(at least m) and P(less than m), each exact where it is small
    above = [1.0 if edge == 0 else float(special.betainc(edge, users - edge + 1.0, rate)) for edge in edges[:-1]]
    above.append(0.0 if last == users else float(special.betainc(last + 1.0, users - last, rate)))
    below = [0.0 if edge == 0 else float(special.betaincc(edge, users - edge + 1.0, rate)) for edge in edges[:-1]]
    below.append(1.0 if last == users else float(special.betaincc(last + 1.0, users - last, rate)))
    groups = []
    for place, (start, stop) in enumerate(itertools.pairwise(edges)):
        difference, larger = min(
            (
                (above[place] - above[place + 1], above[place]),
                (below[place + 1] - below[place], below[place + 1]),
            ),
            key=lambda pair: pair[1],
        )
        # error 1
        groups.append((start, stop - 1, max(0.0, difference - 1e-9 * larger), difference + 1e-9 * larger))
    return tuple(groups)


def secure_sum(*, sigma: float, users: int, rate: float, shares_min: int, replaced: bool) -> Round:
    """The round of a secure sum with coins, from above.

    Args:
        sigma: Noise multiplier of one share.
        users: Number of honest users.
        rate: Probability that a user takes part.
        shares_min: Fewer honest shares are never opened.
        replaced: Whether the user's vector is replaced by another, rather than by zero.

    Returns:
        The round.
    """
    # error 2; no share is seen in less noise than one user's and those that must be there.
    scale = sigma * math.sqrt(max(1, shares_min)) / (1.0 + replaced)
    fine, coarse = (
        _parts(sigma, users, shares_min, replaced, _groups(users, rate, starts)) for starts in (_FINE, _COARSE)
    )
    # The weights may add up to more than 1 (error 1): it is a law from above only.
    return LabelledUpper(scale=scale, parts=fine, coarse=coarse, lost=2.0 * TAIL_CUT)


def _parts(
    sigma: float, users: int, shares_min: int, replaced: bool, groups: Sequence[tuple[int, int, float, float]]
) -> tuple[tuple[float, Round], ...]:
    """The batches of all groups, from above."""
    place_q = -1.0 if replaced else 0.0
    parts: list[tuple[float, Round]] = []
    for first, last, _, probability in groups:
        start = max(first, shares_min, 1)
        if start > last:
            continue
        noise, chance = sigma * math.sqrt(start), last / users
        if noise >= _NOISE_MIN_SWAPPED and chance < 1.0:
            swap = Swap(scale=noise, rate=chance, place_p=1.0, place_q=place_q, place_out=-1.0)
            parts.append((min(1.0, probability), Worst(swap=swap, place_out_below=1.0)))
        else:
            # In the clear: with the coin public, or no coin, the place of the others does not matter.
            report = Identical(ratio=Lognormal(scale=noise / (1.0 + replaced)), users=1)
            parts.append((min(1.0, probability * chance), report))
    return tuple(parts)


def secure_sum_attacks(*, sigma: float, users: int, rate: float, shares_min: int, replaced: bool) -> tuple[Round, ...]:
    """Crowds that can really happen in a secure sum with coins, from below.

    Args:
        sigma: Noise multiplier of one share.
        users: Number of honest users.
        rate: Probability that a user takes part.
        shares_min: Fewer honest shares are never opened.
        replaced: Whether the user's vector is replaced by another, rather than by zero.

    Returns:
        All others where the user is in Q, and for zero-out all others opposite to the user's move.
    """
    beside: list[tuple[float, Round]] = []
    opposite: list[tuple[float, Round]] = []
    for first, last, probability, _ in _groups(users, rate, _FINE):
        if first < max(shares_min, 1) or probability <= 0.0:
            continue
        noise, chance = sigma * math.sqrt(last), first / users
        batch = Identical(ratio=Lognormal(scale=noise / (1.0 + replaced)), users=1, weight=chance)
        swap = Swap(scale=noise, rate=chance, place_p=1.0, place_q=0.0, place_out=-1.0)
        beside.append((probability, batch))
        # With all users there is nobody in the place of this one.
        opposite.append((probability, Real(swap=swap) if chance < 1.0 else batch))
    scale = sigma * math.sqrt(max(1, shares_min)) / (1.0 + replaced)
    crowds = [beside] if replaced else [beside, opposite]
    return tuple(Labelled(scale=scale, parts=tuple(crowd)) for crowd in crowds if crowd)

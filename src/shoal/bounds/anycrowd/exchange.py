"""Any crowd, from above: the exchange theorem, as one law that dominates whatever the others hold.

Units of sigma, r = 1 / sigma. User 1 holds 0 in D and x' in D'; the others hold x_j; all of them have norm 1 without
loss. p is the density of a report from 0, `w = p_x' / p` and `e_j = p_j / p`. Pick a *thinning* t: with
`c = exp(-r t - r^2/2)` user j is kept with probability `min(1, c / e_j)` of its report (q if it did not take part),
otherwise its label and report are revealed. A kept report has the density `p ê_j`, `ê_j = min(1, e_j / c) / (1 - tau)`,
`tau = Phi(-t) - Phi(-t - r) / c`, and each user is kept with probability `q = c (1 - tau)` on its own (t = -infinity
keeps everybody: q = 1, ê = e).

**Theorem (exchange).** Whatever the others hold, in any dimension, S = dD'/dD under D is below, in the convex order,

    f = 1 + [(v - 1) + sum over i <= K of (X_i(v) + v - 1)] / (K + 1),

with v = w(z), z ~ p, K ~ Bin(n - 1, q) revealed, and X_i(v) independent given both, of one law of mean 1 - v, that
of `anycrowd.term` at t = 0.

*Check-in*: user 1 and every kept user take part with probability `rate`; v is 1, or X + v - 1 is 0, for one that does
not. *Fixed size*, m of n: g, the number of user 1 and kept users among the m, is revealed in the place of K, and
g + q (n - m) takes the place of K + 1; user 1 is one of the g with probability g / (g + q (n - m)), then there are
g - 1 terms, otherwise v = 1 and g terms. Check-in is a mixture of fixed sizes, and may be taken as that.
Proofs are in `docs/explanation/guarantee.md`.

Where users are many this is sharpened: `anycrowd.groups`.

S is also below one report in the clear (with its coin), `anycrowd.prices.prices_of_report`, and for a fixed size below
that report with another user's in its place, `anycrowd.prices.prices_of_sampled_report`. What is composed is the law of
the smaller prices of all of them, and of several thinnings where that pays.

*Computing it.* For a given crowd f is affine in v (before X takes the place of its users' terms), so v may be spread,
mean kept, on a dozen nodes; the sums for all nodes are made together (`sums`), once for each block of K. A
block counts as its smallest K: the other kept users, chosen from the set of those kept alone, are revealed. For a fixed
size a block counts as its largest g over its smallest g + q (n - m): from g to g + 1 the sum of a given crowd has one
more independent term of mean 0, or w(z) in the place of v = 1, and what has mean 0 grows with its factor.

*Which bounds.* `anycrowd.policy` says which thinnings, groups and nodes are tried. `plan_prices` evaluates what it
says, soundly whatever that is: the smaller of sound prices is sound.

*Errors.* All are put into prices: calls above 1 and puts below.

1. v beyond the last node: the cut of `anycrowd.nodes`, to both.
2. Improbable K (or g): at most their probability, to both.
3. Terms: the cuts of `anycrowd.term`, and what `sums` cuts (its 1), twice for the mean that they move.
4. Round-off of masses, sums and positions: the stretches of both.
5. Means of the laws given v and K are known to a few N u of their size, N cells: a relative error of prices.
6. Weights of K or g: relative, 16 u for each of them.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shoal.bounds import quadrature
from shoal.bounds.anycrowd import groups, iterated, policy
from shoal.bounds.anycrowd.adaptive import AdaptiveDivision
from shoal.bounds.anycrowd.counts import Case, binomial, blocks, hidden_in_sample, hypergeometric
from shoal.bounds.anycrowd.mixture import Mixture
from shoal.bounds.anycrowd.nodes import ScoreNodes
from shoal.bounds.anycrowd.policy import BLOCKS, BoundPlan
from shoal.bounds.anycrowd.prices import (
    PricedLaw,
    Prices,
    law_from_prices,
    prices_of_report,
    prices_of_sampled_report,
    smaller_prices,
)
from shoal.bounds.anycrowd.term import Score, term_batch
from shoal.bounds.anycrowd.thinning import Thinning
from shoal.bounds.mean_law import Pair
from shoal.bounds.numeric import LAW_USERS_MAX, UNIT, Direction, FloatArray, Side
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.bounds.sums import NO_TERMS, Batch, Law, batch_sum, sums

_MOMENT_BUDGET = 1e-60
"""Mass that laws for Rényi divergences cut: large orders look far into the tails."""

BARE = 0.18
"""Below this sigma, for the whole move, nothing but one report in the clear is known, and prices leave the range of
doubles."""

_USUAL_HALF = 512
"""Number of cells for which nodes and blocks are laid out; with more cells there are more of them."""


@dataclass(frozen=True, kw_only=True)
class Exchange(Round):
    """A round of `users` of which nothing is known; `sample` of them report (all, if None).

    `ratio` is that of one report, its scale for how far user 1 and the others are from the reference.
    """

    ratio: Lognormal
    users: int
    sample: int | None = None

    is_upper_only: ClassVar[bool] = True

    is_sequential: ClassVar[bool] = False
    """Whether a user may react to the reports before its own."""

    @property
    def weight(self) -> float:
        """The probability that user 1 is sampled."""
        return 1.0 if self.sample is None else self.sample / self.users

    def limited(self) -> Exchange:
        # Samples keep their users: the probability to be drawn depends on them.
        # The others may be revealed.
        users = min(self.users, LAW_USERS_MAX) if self.sample is None else self.users
        return replace(self, ratio=self.ratio.limited(), users=users)

    def own_report(self) -> Round:
        return Identical(ratio=self.ratio.at_rate(self.ratio.rate * self.weight), users=1)

    @property
    def is_bare(self) -> bool:
        return self.ratio.scale < BARE

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        if side != "upper":
            raise ValueError("the exchange theorem bounds from above only")
        if self.is_bare:
            return self.own_report().pair(half, budget, side, direction)
        return self.law(half, budget).pair(direction)

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        """A bound from above is no attack: its tests may not exist at all."""
        return 0.0, 1.0

    def law(self, half: int, budget: float) -> PricedLaw:
        return _law(self, half, budget)

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        if self.is_bare:
            return self.own_report().log_moments(orders, direction, quick=quick)
        return self.law(512, _MOMENT_BUDGET).log_moments(
            orders, direction, self.ratio.scale, self.ratio.rate * self.weight
        )

    def division(self, plan: BoundPlan) -> groups.Division:
        """The groups of a plan, made so that they bound this round."""
        cuts = (-1.0, *sorted({cut for cut in plan.cuts if abs(cut) <= groups.PLACE_MAX}), 1.0)
        kind = AdaptiveDivision if self.is_sequential else groups.Division
        return kind(size=plan.size, cuts=cuts, spare=plan.aside, drawn=self.sample is not None)

    def cases(self, q: float, spare: float, finer: float = 1.0, *, by_size: bool = False) -> tuple[list[Case], float]:
        """The numbers of terms with their chances, and the relative error of these (error 6).

        Args:
            q: Probability that a user is hidden.
            spare: Probability of numbers that may be left out.
            finer: Factor on the number of blocks.
            by_size: Whether check-in is taken as a mixture of fixed sizes.

        Returns:
            The cases and the error.
        """
        if self.sample is None and not by_size:
            first, masses = binomial(self.users - 1, q, spare)
            cases = [
                Case(terms=smallest_count, denominator=smallest_count + 1.0, chance=chance, present=self.ratio.rate)
                for smallest_count, _, chance in blocks(first, masses, finer)
            ]
            return cases, 16.0 * UNIT * (len(masses) + 8.0)
        cases, longest = [], 0
        smallest, sizes = (
            (self.sample, np.ones(1)) if self.sample is not None else binomial(self.users, self.ratio.rate, spare)
        )
        # A block of sizes counts as its largest: reports may be dropped.
        for _, size, likely in blocks(smallest, sizes, finer):
            # g is all that is revealed of a fixed size; who of the others was kept is averaged out.
            first, masses = hidden_in_sample(self.users, size, q, spare)
            rest, longest = q * (self.users - size), max(longest, len(masses))
            cases += [
                Case(
                    terms=max(largest_count - 1, 0),
                    denominator=smallest_count + rest,
                    chance=likely * chance,
                    extra=min(largest_count, 1),
                    present=min(1.0, largest_count / (largest_count + rest) * (1.0 + 4.0 * UNIT))
                    if largest_count
                    else 0.0,
                )
                for smallest_count, largest_count, chance in blocks(first, masses, finer)
                if likely * chance > 0.0
            ]
        # All that is dropped together has less than `spare`.
        cases = [case for case in cases if case.chance * len(cases) > spare]  # error 2
        return cases, 16.0 * UNIT * (len(sizes) + longest + 8.0)


@functools.lru_cache(maxsize=32)
def _law(crowd: Exchange, half: int, budget: float) -> PricedLaw:
    """The law of the smallest prices of all plans."""
    coarse = min(half, policy.COARSE)
    rough = _rough_prices(crowd, coarse, budget)
    best = list(rough.values())
    if half > coarse:
        # The best plans once more; coarse prices are bounds as well.
        best += [plan_prices(crowd, plan, half, budget) for plan in policy.leaders(rough, budget)]
    prices = functools.reduce(smaller_prices, best, _clear_prices(crowd, budget))
    if crowd.sample is None:
        prices = iterated.sharpened(prices, crowd.ratio, crowd.users, half, budget)
    return law_from_prices(prices)


@functools.lru_cache(maxsize=64)
def _rough_prices(crowd: Exchange, half: int, budget: float) -> dict[BoundPlan, Prices]:
    """Prices of each plan of the family."""
    ratio, sample = crowd.ratio, crowd.sample
    family = policy.plans(
        sigma=ratio.scale, users=crowd.users, rate=ratio.rate, sample=sample, sequential=crowd.is_sequential
    )
    return {plan: plan_prices(crowd, plan, half, budget) for plan in family}


def _clear_prices(crowd: Exchange, budget: float) -> Prices:
    """Prices of one report in the clear, with its coin, or with another user's in its place."""
    scale = crowd.ratio.scale
    best = prices_of_report(_local_grid(1.0 / scale, budget), scale, crowd.ratio.rate * crowd.weight)
    if crowd.sample is None:
        return best
    sampled = prices_of_sampled_report(best.gap, scale, crowd.weight, scale_after=0.5 * scale, scale_before=scale)
    return smaller_prices(best, sampled)


def plan_prices(crowd: Exchange, plan: BoundPlan, half: int, budget: float) -> Prices:
    """Prices of a round by one plan, or of one report in the clear where they are smaller.

    Args:
        crowd: The round.
        plan: What is evaluated; any plan gives an upper bound.
        half: Number of cells for which its nodes and blocks are laid out.
        budget: Mass and first moment that may be cut, and are charged.

    Returns:
        The prices.
    """
    if plan.size > 0:
        if not groups.GROUPS_SCALE_MIN <= crowd.ratio.scale <= groups.GROUPS_SCALE_MAX:
            return _clear_prices(crowd, budget)
        return _with_local(crowd, _prices_with_groups(crowd, plan, half, budget))
    thin, by_size = Thinning.of(1.0 / crowd.ratio.scale, plan.thinning), plan.by_size or crowd.sample is not None
    # A mixture of sizes has ten times as many cases, each a sum of few terms, which needs fewer cells.
    cells = half // 8 if by_size and crowd.sample is None else half // 4
    cases, error = crowd.cases(thin.q, budget, _fine(half), by_size=by_size)
    # By size the coin is in the number of senders: given it, all terms are sent.
    ratio = replace(crowd.ratio, rate=1.0) if by_size else crowd.ratio
    return _with_local(crowd, _exchange_prices(ratio, plan, thin, [cases], error, cells, budget, _fine(half))[0])


def _fine(half: int) -> float:
    """The factor on the usual number of nodes and blocks."""
    return 0.5 if half < _USUAL_HALF else float(round(half / _USUAL_HALF))


def _with_local(crowd: Exchange, prices: Prices, weight: float | None = None) -> Prices:
    """Prices, or those of one report in the clear where they are smaller."""
    present = crowd.ratio.rate * (crowd.weight if weight is None else weight)
    return smaller_prices(prices, prices_of_report(prices.gap, crowd.ratio.scale, present))


def _prices_with_groups(crowd: Exchange, plan: BoundPlan, half: int, budget: float) -> Prices:
    """Prices of f with groups of users, user 1 among those aside."""
    # Groups of a fixed size are made of users that are drawn, of whom nobody is thinned.
    thinning = plan.thinning if crowd.sample is None else -math.inf
    thin, division = Thinning.of(1.0 / crowd.ratio.scale, thinning), crowd.division(plan)
    split = _split_senders if crowd.sample is None else _split_sample
    cases, small, lost, error = split(crowd, division, thin, budget, _fine(half))
    if not cases:  # too few users are hidden for this plan
        return _clear_prices(crowd, budget)
    # S' of user 1 and those aside is bounded by the plain theorem, and by its own report in the clear.
    ratio = crowd.ratio if crowd.sample is None else replace(crowd.ratio, rate=1.0)
    bounds = _exchange_prices(
        ratio, plan, thin, [[case] for case in small.values()], 0.0, half // 4, budget, _fine(half)
    )
    laws = {
        key: law_from_prices(_with_local(crowd, prices, case.present if division.drawn else 1.0))
        for (key, case), prices in zip(small.items(), bounds, strict=True)
    }
    return groups.grouped_prices(crowd.ratio, thin, division, laws, cases, lost, error, half * 3 // 16, budget)


_Split = tuple[list[groups.Grouped], dict[int, Case], float, float]
"""Cases, the small crowds of user 1 and those aside by their key, what is left of probability, error of chances."""


def _split_senders(crowd: Exchange, division: groups.Division, thin: Thinning, budget: float, fine: float) -> _Split:
    """The cases where each user sends on its own: those in no group are aside."""
    # Groups jump with K by whole groups, so its blocks are finer here; sums of groups are few and cheap.
    cases_, error = crowd.cases(thin.q, budget, 3 * fine)
    sizes = division.asides([case.terms for case in cases_])
    cases, lost = [], 2.0 * budget
    for case in cases_:
        count = division.groups(case.terms)
        rest = case.terms - division.size * count
        law = bisect.bisect_right(sizes, rest) - 1
        # Too few are kept to leave anybody for groups: improbable, and charged (error 1 of `groups`).
        if law < 0:
            lost += case.chance
        else:
            # Those aside beyond the law's number are revealed: epsilon then falls in steps with the users.
            hidden = division.size * count + sizes[law]
            cases.append(
                groups.Grouped(hidden=hidden, aside=sizes[law], law=sizes[law], groups=count, chance=case.chance)
            )
    small = {size: Case(terms=size, denominator=size + 1.0, chance=1.0, present=crowd.ratio.rate) for size in sizes}
    return cases, small, lost, error


def _split_sample(crowd: Exchange, division: groups.Division, thin: Thinning, budget: float, fine: float) -> _Split:
    """The cases of a fixed sample, with nobody thinned: g of user 1 and those aside are drawn."""
    sample = crowd.sample or 0
    aside = min(math.ceil(division.aside * crowd.users / sample), crowd.users - 1)
    lowest, masses = hypergeometric(aside + 1, crowd.users, sample, budget)
    cases, small = [], {}
    for smallest, largest, chance in blocks(lowest, masses, fine, parts=BLOCKS // 2):
        # A block counts as its largest g for v, and as its smallest for the groups, which are then more.
        largest_count = max(largest, 1)
        present = min(1.0, largest_count / (aside + 1) * (1.0 + 4.0 * UNIT))
        small[largest_count] = Case(
            terms=largest_count - 1, denominator=aside + 1.0, chance=1.0, present=present, extra=1
        )
        count = max(0, math.ceil((sample - smallest - division.lone) / division.size))
        cases.append(
            groups.Grouped(hidden=crowd.users - 1, aside=aside, law=largest_count, groups=count, chance=chance)
        )
    return cases, small, 2.0 * budget, 16.0 * UNIT * (len(masses) + 8.0)


def _local_grid(r: float, budget: float) -> FloatArray:
    """Gaps at which one report in the clear is priced: finely until only `budget` of its prices is left."""
    # Far out prices still matter for large Rényi orders: coarsely, down to the smallest doubles.
    fine_end, coarse_end = (0.5 * r**2 - r * quadrature.quantile(mass) for mass in (budget, 1e-280))
    loss = np.concatenate(
        [
            np.linspace(0.0, fine_end, math.ceil(128.0 * fine_end / r))[:-1],
            np.linspace(fine_end, coarse_end, math.ceil(16.0 * (coarse_end - fine_end) / r)),
        ]
    )
    gap: FloatArray = np.expm1(np.concatenate([-loss[:0:-1], loss]))
    return np.unique(gap[gap > -1.0])  # next to -1 several losses are one gap


def _exchange_prices(
    ratio: Lognormal,
    plan: BoundPlan,
    thin: Thinning,
    mixtures: Sequence[Sequence[Case]],
    error: float,
    half: int,
    budget: float,
    fine: float,
) -> list[Prices]:
    """Prices of f at one thinning, for each mixture of cases; `error` is that of their chances."""
    all_cases = [case for cases in mixtures for case in cases]
    present = sum(case.chance * case.present for case in all_cases) / len(mixtures)
    score = Score(r=1.0 / ratio.scale)
    nodes = ScoreNodes.of(score, present, budget, _refined(plan.places, fine))
    # errors 3 and 4 stay with the laws of terms, and grow with their sums
    single = term_batch(score, thin, nodes.value, nodes.weight, rate=ratio.rate, half=half, share=budget)
    totals = sums(single, [case.terms for case in all_cases], budget)
    return [_mixed(nodes, single, totals, cases, error, half, budget) for cases in mixtures]


def _refined(places: Sequence[float], fine: float) -> list[float]:
    """Increasing places, `fine` times as many."""
    increasing = sorted(set(places)) or [0.0]
    at = np.arange(0.0, len(increasing) - 1.0 + 0.5 / fine, 1.0 / fine)
    refined: list[float] = np.interp(at, np.arange(len(increasing)), increasing).tolist()
    return sorted(set(refined))


def _mixed(
    nodes: ScoreNodes,
    single: Batch,
    totals: Mapping[int, Batch],
    cases: Sequence[Case],
    error: float,
    half: int,
    budget: float,
) -> Prices:
    mixture = Mixture(cut=nodes.cut + 3.0 * budget)  # errors 1 and 2
    # Many cases of a fixed size have as many terms.
    laws = {0: [NO_TERMS] * len(nodes.value)} | {count: total.laws() for count, total in totals.items()}
    absent_laws: dict[tuple[int, int], Law] = {}
    for case in cases:
        for v, chance, law in zip(nodes.value.tolist(), nodes.chance.tolist(), laws[case.terms], strict=True):
            # error 5 is charged by the mixture, with that of its last sharing
            mixture.add(case.chance * case.present * chance, law, v - 1.0, case.denominator)
        # Without user 1 nothing depends on v but its place in the count: v = 1, one law for all nodes.
        if case.present < 1.0:
            key = case.terms, case.extra
            if key not in absent_laws:
                absent_laws[key] = _absent(totals.get(case.terms), single, case.extra, budget)
            mixture.add(case.chance * (1.0 - case.present), absent_laws[key], 0.0, case.denominator)
    return mixture.prices(error, half)


def _absent(total: Batch | None, single: Batch, extra: int, share: float) -> Law:
    """The sum of terms without user 1 (v = 1), with one more where another user is in its place."""
    absent = None if total is None else total.only(len(total.weight) - 1)
    if extra:
        another = single.only(len(single.weight) - 1)
        absent = another if absent is None else batch_sum(absent, another, share)
    return NO_TERMS if absent is None else absent.laws()[0]

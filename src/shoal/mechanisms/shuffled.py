"""Mechanisms whose users add the noise: reports under their names, or mixed by a shuffler."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, get_args

from shoal import _validate
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.opposite import Opposite, OppositeMany, OppositeSizes
from shoal.bounds.anycrowd.replace import Replace
from shoal.bounds.anycrowd.sequential import Sequential
from shoal.bounds.central.attacks import Allocation
from shoal.bounds.central.records import RECORDS_MAX, Labelled, LabelledUpper
from shoal.bounds.central.summed import TAIL_CUT, last_likely
from shoal.bounds.composition import Parts
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.errors import InvalidInput
from shoal.mechanisms.base import Crowd, Mechanism, SamplingScheme
from shoal.mechanisms.central import FixedBatch
from shoal.mechanisms.ordered import sequential_attacks
from shoal.mechanisms.parameter import (
    CORRUPT,
    COUNT,
    PROBABILITY,
    USERS,
    Parameter,
    check_corrupt,
    choice_of,
    count_up_to,
)
from shoal.query import Bounds
from shoal.records import Model

CROWD = Parameter(domain=choice_of(*get_args(Crowd)), default="any")


@dataclass(frozen=True, kw_only=True)
class LocalGaussian(Mechanism):
    """Every user sends its report to the server under its own name: no shuffler.

    Who sends what: each user its report, each round. Who sees what: the server sees every report
    and whose it is. Who is trusted: nobody.

    >>> m = LocalGaussian(sigma=2.0)
    >>> m.rdp([2, 8]).round(6).tolist()
    [0.25, 1.0]
    """

    label: ClassVar[str] = "local"
    trust: ClassVar[str] = "nobody is trusted"
    protocol: ClassVar[str] = "the user adds its noise as described"

    def upper_round(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=1)


class ShuffledMechanism(Mechanism):
    """A mechanism in which the reports of other users hide each user's own.

    A subclass has the fields `users`, `crowd` and `corrupt`, declared by `USERS`, `CROWD` and `CORRUPT`, and names two
    rounds, which count the `honest` users.
    """

    trust: ClassVar[str] = "the shuffler is trusted, the server is not"
    protocol: ClassVar[str] = "all users counted add their noise as described"
    model: ClassVar[Model] = "Shuffle"
    is_shuffled: ClassVar[bool] = True
    crowd_matters: ClassVar[bool] = True

    if TYPE_CHECKING:
        users: int
        corrupt: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_corrupt(self.corrupt, self.users)

    @property
    def honest(self) -> int:
        """The number of users who are not corrupt: all others are revealed."""
        return self.users - self.corrupt

    @property
    def assumption(self) -> str:
        if self.crowd == "identical":
            return "all other users hold one vector, from which the moved user's departs (the paper's idealised crowd)"
        return "nothing about other users' vectors"

    def identical_round(self) -> Identical:
        """The round in which all others hold one vector."""
        raise NotImplementedError

    def any_crowd_round(self) -> Exchange:
        """The upper bound for any crowd, for zero-out adjacency."""
        raise NotImplementedError

    def upper_round(self) -> Round:
        if self.crowd == "identical":
            return self.identical_round()
        # The theorem moves user 1 to zero or from it.
        step = self.any_crowd_round()
        return step if self.adjacency == "zero-out" else Replace(step=step)

    def attack_rounds(self) -> tuple[Round, ...]:
        identical = self.identical_round()
        if self.crowd == "identical":
            return (identical,)
        # Everybody else opposite to where the user goes from zero, which is one of the moves of "replace" as well.
        moved = replace(identical, ratio=Lognormal(scale=self.sigma, rate=identical.ratio.rate))
        attacks = (attack(mean=moved) for attack in (Opposite, OppositeMany, OppositeSizes))
        # With too little noise for all of them, the identical crowd remains.
        return identical, *(attack for attack in attacks if attack.is_worth_computing)


@dataclass(frozen=True, kw_only=True)
class Shuffle(ShuffledMechanism):
    """All `users` send a report to a shuffler, which permutes them uniformly for the server.

    Who sends what: each user its report, each round. Who sees what: the shuffler passes on the
    reports (sealed, it need not read them); the server sees the multiset of reports and no names,
    times or order. Who is trusted: the shuffler, to permute and not to collude with the server.
    If users drop out, `users` is the smallest number of reports that are sure to arrive.

    With `reports_per_user` = k > 1 each user sends exactly k reports (padded with zero vectors), all of which change,
    and all users * k reports are mixed. From above: a server that learns which are everybody's first reports, second
    reports and so on is left with k rounds of one report each, for any crowd. For an identical one that is the bound of
    `RandomAllocation` with k picks of users * k steps. From below: k of all reports stand elsewhere
    (`central.attacks.Allocation`).

    >>> m = Shuffle(users=60_000, sigma=9.48, crowd="identical")
    >>> eps = m.epsilon(delta=1 / 60_000)
    >>> eps.lower < 0.00059456 < eps.upper < 0.00059516
    True
    >>> f"{float(m.epsilon(delta=1 / 60_000, method='rdp')):.7f}"
    '0.0014063'
    """

    users: int = USERS.field()
    crowd: Crowd = CROWD.field()
    corrupt: int = CORRUPT.field()
    reports_per_user: int = Parameter(
        domain=count_up_to(RECORDS_MAX),
        words="reports per user",
        metavar="K",
        help="Reports that each user sends in a round.",
        default=1,
        is_silent=True,
        absent=1,
        example=1,
        slider=(1, RECORDS_MAX),
    ).field()

    label: ClassVar[str] = "shuffle"

    @property
    def person(self) -> str:
        return f"one person with {self.reports_per_user:,} reports a round" if self.reports_per_user > 1 else ""

    def expected_reports(self, users: int) -> float:
        return float(users * self.reports_per_user)

    def bounds(self, rounds: int) -> Bounds:
        if self.reports_per_user == 1:
            return super().bounds(rounds)
        upper: Parts = ((self.upper_round(), rounds * self.reports_per_user),)
        # Others hold what the user holds in Q, which is also the identical crowd. With one user nothing is hidden.
        if self.honest == 1:
            return Bounds(upper=upper, attacks=(((self.identical_round(), rounds * self.reports_per_user),),))
        attacks = (
            Allocation(
                scale=self.scale,
                steps=self.honest * self.reports_per_user,
                picks=self.reports_per_user,
                clipped=clipped,
            )
            for clipped in (True, False)
        )
        return Bounds(upper=upper, attacks=tuple(((attack, rounds),) for attack in attacks))

    def identical_round(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=self.honest)

    def any_crowd_round(self) -> Exchange:
        return Exchange(ratio=Lognormal(scale=self.sigma), users=self.honest)


@dataclass(frozen=True, kw_only=True)
class SequentialShuffle(ShuffledMechanism):
    """All `users` send a report one after the other, in a secret random order; each may react to all reports before.

    Who sends what: at each step the user whose turn it is sends one report, of a vector that may depend on everything
    that was published before (a model that is updated at each step, say). Who sees what: the server sees the reports
    in their order, and no names. Who is trusted: whoever draws the order, to draw it uniformly and afresh for each
    round, to keep it secret, and to forward reports without names. One round is one pass through all users; if users
    drop out, `users` is the smallest number of reports that are sure to arrive.

    Compare `Shuffle`, whose server sees all reports at once: that is the case in which nobody reacts. For an epoch of
    batches with central noise: `ShuffledEpochs`.

    >>> SequentialShuffle(users=1_000, sigma=2.0).epsilon(delta=1e-6).upper < 0.1346
    True
    """

    users: int = USERS.field()
    crowd: Crowd = CROWD.field()
    corrupt: int = CORRUPT.field()

    label: ClassVar[str] = "sequential"
    protocol: ClassVar[str] = "all users counted add their noise as described and react only to what is published"
    trust: ClassVar[str] = "whoever keeps the order secret is trusted, the server is not"

    def identical_round(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=self.honest)

    def any_crowd_round(self) -> Sequential:
        return Sequential(ratio=Lognormal(scale=self.sigma), users=self.honest)

    def attack_rounds(self) -> tuple[Round, ...]:
        if self.crowd == "identical":
            return (self.identical_round(),)
        adaptive = sequential_attacks(sigma=self.sigma, steps=self.honest, adjacency=self.adjacency)
        return (self.identical_round(), *adaptive)


@dataclass(frozen=True, kw_only=True)
class SubsampledShuffle(ShuffledMechanism):
    """Each round, `sample` of the `users`, drawn without replacement, send a report; then as `Shuffle`.

    Who sends what: each sampled user its report. Who sees what: the server sees the multiset of
    `sample` reports, not who was sampled. Who is trusted: the shuffler, and whoever draws the
    sample, to draw it uniformly and to keep it secret.

    With `corrupt` users the number H of honest ones in a sample is public. Reveal some honest users at random, drawn or
    not, until `fewest` that were drawn, of n' = floor(fewest / most * honest), are left: user 1 is still drawn with its
    chance H / honest, at most `fewest / n'`, and the positive part of P - t Q, t >= 1, rises with that chance. So
    each H between `fewest` and `most` is at most as revealing as `fewest` of n' users; other H are less likely than
    1e-29, and count as complete exposure.

    >>> m = SubsampledShuffle(users=60_000, sample=6_000, sigma=5.0, crowd="identical")
    >>> m.epsilon(delta=1e-5, rounds=100).upper < 0.02
    True
    """

    users: int = USERS.field()
    sample: int = Parameter(
        domain=COUNT,
        words="sampled a round",
        metavar="M",
        help="Users sampled each round.",
        example=6_000,
        slider=(1, 1e8),
    ).field()
    crowd: Crowd = CROWD.field()
    corrupt: int = CORRUPT.field()

    label: ClassVar[str] = "subsampled"
    trust: ClassVar[str] = "the shuffler and the sampler are trusted, the server is not"
    sampling: ClassVar[SamplingScheme] = "drawn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample > self.users:
            raise InvalidInput(f"sample must be at most users ({self.users}), got {self.sample}")
        # The identical crowd's law has the sample as a coin of this rate, which has its own limits.
        _validate.rate(self.participation, name="sample / users")

    @property
    def participation(self) -> float:
        return self.sample / self.users

    def expected_reports(self, users: int) -> float:
        return float(self.sample)

    def identical_round(self) -> Identical:
        if self.corrupt:
            # From below: the most honest users, and the least chance.
            fewest, most = self._honest_in_sample()
            return Identical(ratio=Lognormal(scale=self.scale), users=most, weight=fewest / self.honest)
        return Identical(ratio=Lognormal(scale=self.scale), users=self.sample, weight=self.participation)

    def any_crowd_round(self) -> Exchange:
        return Exchange(ratio=Lognormal(scale=self.sigma), users=self.users, sample=self.sample)

    def _batch_of_one(self) -> FixedBatch | None:
        """The mechanism that draws one report, of any crowd, whose pair is known exactly; None where this is not it."""
        if self.sample > 1 or self.users == 1 or self.crowd != "any" or self.corrupt:
            return None
        batch = FixedBatch(records=self.users, batch=1, sigma=self.sigma, adjacency=self.adjacency)
        return batch if batch.upper_round().is_in_range else None

    def _honest_in_sample(self) -> tuple[int, int]:
        """The fewest and the most honest users in a sample, but for cases that hardly ever happen."""
        ends = (last_likely(self.sample, self.honest / self.users, rises=rises) for rises in (False, True))
        fewest, most = next(ends), next(ends)
        return max(fewest, self.sample - self.corrupt, 1), min(most, self.honest)

    def upper_round(self) -> Round:
        batch = self._batch_of_one()
        if not self.corrupt:
            return super().upper_round() if batch is None else batch.upper_round()
        fewest, most = self._honest_in_sample()
        hidden = replace(self, corrupt=0, users=fewest * self.honest // most, sample=fewest)
        kind = Labelled if self.crowd == "identical" else LabelledUpper
        # Both tails, unless they are impossible.
        return kind(scale=self.scale, parts=((1.0, hidden.upper_round()),), lost=4.0 * TAIL_CUT)

    def attack_rounds(self) -> tuple[Round, ...]:
        batch = self._batch_of_one()
        if not self.corrupt:
            return super().attack_rounds() if batch is None else batch.attack_rounds()
        exact = self.identical_round()
        return (Labelled(scale=self.scale, parts=((1.0 - 4.0 * TAIL_CUT, exact),)),)


@dataclass(frozen=True, kw_only=True)
class ShuffledCheckIn(ShuffledMechanism):
    """Each of the `users` takes part with probability `rate`, on its own secret coin; then as `Shuffle`.

    Who sends what: each user tosses its coin each round, and sends its report if it comes up. Who
    sees what: the server sees the multiset of reports, and so their number, not whose they are.
    Who is trusted: the shuffler, which must hide who took part; each user tosses for itself.

    >>> m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    >>> eps = m.epsilon(delta=1 / 60_000, rounds=5_540)
    >>> eps.lower < 0.05381 < eps.upper < 0.05387
    True
    """

    users: int = USERS.field()
    rate: float = Parameter(
        domain=PROBABILITY,
        words="check-in rate",
        metavar="P",
        help="Probability of checking in.",
        example=0.1,
        slider=(1e-4, 1),
    ).field()
    crowd: Crowd = CROWD.field()
    corrupt: int = CORRUPT.field()

    label: ClassVar[str] = "check-in"
    protocol: ClassVar[str] = "all users counted toss their coins and add their noise as described"
    sampling: ClassVar[SamplingScheme] = "coin"

    @property
    def participation(self) -> float:
        return self.rate

    def identical_round(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale, rate=self.rate), users=self.honest)

    def any_crowd_round(self) -> Exchange:
        return Exchange(ratio=Lognormal(scale=self.sigma, rate=self.rate), users=self.honest)

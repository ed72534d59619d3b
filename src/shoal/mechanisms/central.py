"""Every way in which DP-SGD draws its batches: a trusted server, batches of records, noise added once to each sum.

In each of these a record contributes a vector of norm at most C (a clipped gradient) to the steps whose batch it is
in, and the public sees every noisy sum, `sum + N(0, (C sigma)^2 I)`. What differs is how batches are drawn, and that
changes the privacy, also where the batches look alike (`docs/howto/dp-sgd.md`). Gradients may depend on all that was
published before, settings (rate, sigma, number of steps) may not: those are fixed, or a `shoal.Filter` counts.

The two adjacencies are those of `shoal.mechanisms`, of one record: its vector becomes zero wherever it is used, or any
other. Where the sampling does not show how many records there are (Poisson sampling, allocation), zero-out is the same
as adding or removing the record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal import _validate
from shoal.bounds.central.attacks import Allocation
from shoal.bounds.central.records import (
    RECORDS_MAX,
    DrawnRecords,
    OppositeBatch,
    StandIns,
    binomial_records,
    hypergeometric_records,
    together,
)
from shoal.bounds.central.swap import Real, Swap, Worst
from shoal.bounds.composition import Parts
from shoal.bounds.numeric import LAW_USERS_MAX
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.errors import InvalidInput
from shoal.formatting import rounded
from shoal.interval import Interval
from shoal.mechanisms.base import Mechanism, NoiseBy, SamplingScheme
from shoal.mechanisms.ordered import sequential_attacks, sequential_round
from shoal.mechanisms.parameter import COUNT, FLAG, PROBABILITY, ROUND_COUNT, Parameter, count_up_to
from shoal.query import Bounds
from shoal.records import Model

STEPS = Parameter(
    domain=COUNT, words="steps an epoch", metavar="T", help="Steps in an epoch.", example=1_000, slider=(1, 1e6)
)
EPOCHS = Parameter(
    domain=ROUND_COUNT,
    words="epochs",
    metavar="E",
    help="Epochs in a round.",
    default=1,
    example=1,
    slider=(1, 1e4),
)

RECORDS_PER_USER = Parameter(
    domain=count_up_to(RECORDS_MAX),
    words="records per user",
    metavar="K",
    help="The most records of one person.",
    default=1,
    is_silent=True,
    absent=1,
    example=1,
    slider=(1, RECORDS_MAX),
)


class CentralMechanism(Mechanism):
    """A mechanism in which a trusted server samples and adds noise."""

    trust: ClassVar[str] = "the server that holds the data is trusted, the public is not"
    protocol: ClassVar[str] = "the server samples and adds noise as described"
    noise_by: ClassVar[NoiseBy] = "server"
    model: ClassVar[Model] = "Central"

    @property
    def assumption(self) -> str:
        return "nothing about other records"

    def _refuse_replace(self) -> None:
        if self.adjacency != "zero-out":
            raise InvalidInput(f"adjacency must be zero-out for {type(self).__name__}, got {self.adjacency!r}")


def _person_with_records(records: int) -> str:
    """A person with several records, in words; empty for one record."""
    return f"one person with at most {records:,} records" if records > 1 else ""


@dataclass(frozen=True, kw_only=True)
class BallsAndBins(CentralMechanism):
    """DP-SGD where each example falls into one of `bins` batches of an epoch, with central noise.

    A trusted server puts each example into one of the `bins` batches uniformly at random, and
    publishes each batch's sum of clipped gradients plus `N(0, (C sigma)^2 I)`. One round is one
    epoch. Who sees what: the public sees all `bins` noisy sums. Who is trusted: the server that
    holds the data. Q is the law without the example, P with it. The ratio is that of `Shuffle` with
    `users=bins`; here it is the true worst case, for zero-out adjacency only, and needs no
    assumption on other examples.

    >>> BallsAndBins(bins=1_000, sigma=1.0).epsilon(delta=1e-6).upper < 2.0
    True
    """

    bins: int = Parameter(
        domain=COUNT,
        words="bins",
        metavar="N",
        help="Number of batches per epoch.",
        title="Batches",
        example=1_000,
        slider=(1, 1e6),
    ).field()

    label: ClassVar[str] = "balls-and-bins"
    sampling: ClassVar[SamplingScheme] = "allocated"
    zero_is_absent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_replace()

    @property
    def assumption(self) -> str:
        return "no other user matters"

    def upper_round(self) -> Identical:
        return Identical(ratio=Lognormal(scale=self.scale), users=self.bins)


@dataclass(frozen=True, kw_only=True)
class PoissonSampling(CentralMechanism):
    """Each step, each record is in the batch independently with probability `rate`.

    One round is one step. Zero-out (which is add or remove one here): P = (1 - q) N(0) + q N(1) against Q = N(0), so
    that `dP/dQ = 1 - q + q W` (Mironov, Talwar and Zhang 2019; Zhu, Dong and Wang 2022, theorem 11).
    Replace: P against (1 - q) N(0) + q N(-1), the pair of Lebeda et al. (2024), which `central.swap` proves to be the
    worst. Both directions are composed on their own; both ends of the bracket are of the same, true worst case.

    With `records_per_user` = k > 1 a person has at most k records, all of which become zero (are added or removed) or
    are replaced: the sum over j of Bin(k, q)(j) N(j) against N(0), or against the same sum of N(-j). That is the true
    worst case too (`central.records`).

    >>> m = PoissonSampling(rate=0.01, sigma=1.0)
    >>> f"{m.epsilon(delta=1e-6, rounds=1_000):.4f}"
    '[2.1243, 2.1246]'
    >>> 7.1 < m.replace(records_per_user=3).epsilon(delta=1e-6, rounds=1_000).upper < 7.2
    True
    """

    rate: float = Parameter(
        domain=PROBABILITY,
        words="sampling rate",
        metavar="P",
        help="Probability that a record is in a batch.",
        example=0.01,
        slider=(1e-6, 1),
    ).field()
    records_per_user: int = RECORDS_PER_USER.field()

    label: ClassVar[str] = "poisson"
    sampling: ClassVar[SamplingScheme] = "coin"
    zero_is_absent: ClassVar[bool] = True

    @property
    def participation(self) -> float:
        return self.rate

    @property
    def person(self) -> str:
        return _person_with_records(self.records_per_user)

    def _together(self) -> tuple[Round, Round]:
        """The rounds from above and from below of a person with several records."""
        drawn = binomial_records(self.records_per_user, self.rate)
        return together(self.sigma, drawn, opposed=self.adjacency == "replace")

    def attack_rounds(self) -> tuple[Round, ...]:
        return (self._together()[1],) if self.records_per_user > 1 else super().attack_rounds()

    def upper_round(self) -> Round:
        if self.records_per_user > 1:
            return self._together()[0]
        # Without sampling a replaced record is one Gaussian report of twice the distance, which has closed forms.
        if self.adjacency == "zero-out" or self.rate == 1.0:
            return Identical(ratio=Lognormal(scale=self.scale), users=1, weight=self.rate)
        # Nothing stands in the place of a record that is not drawn: one pair for losses of both signs.
        return Worst(
            swap=Swap(scale=self.sigma, rate=self.rate, place_p=1.0, place_q=-1.0, place_out=0.0), place_out_below=0.0
        )


@dataclass(frozen=True, kw_only=True)
class FixedBatch(CentralMechanism):
    """Each step, `batch` of the `records` are drawn without replacement, on their own at every step.

    One round is one step. If a record is not in the batch another one is in its place, whose vector may lie opposite:
    for zero-out this is less private than Poisson sampling at the same rate. The dominating pairs are those of
    `central.swap`: one step is exact, several are bounded from above by them, and from below by the better of two
    crowds that can really happen.

    With `records_per_user` = k > 1 a person has at most k records, of which a hypergeometric number is in the batch:
    theorem 2 of `central.records` from above, the same two crowds from below.

    >>> m = FixedBatch(records=60_000, batch=600, sigma=1.0)
    >>> m.epsilon(delta=1e-6).width < 1e-3
    True
    """

    records: int = Parameter(
        domain=COUNT, words="records", metavar="N", help="Number of records.", example=60_000, slider=(1, 1e9)
    ).field()
    batch: int = Parameter(
        domain=COUNT, words="batch", metavar="B", help="Records in each batch.", example=600, slider=(1, 1e8)
    ).field()
    records_per_user: int = RECORDS_PER_USER.field()

    label: ClassVar[str] = "fixed-batch"
    sampling: ClassVar[SamplingScheme] = "drawn"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch > self.records:
            raise InvalidInput(f"batch must be at most records ({self.records}), got {self.batch}")
        if self.records_per_user > self.records:
            raise InvalidInput(
                f"records_per_user must be at most records ({self.records}), got {self.records_per_user}"
            )
        _validate.rate(self.rate, name="batch / records")

    @property
    def rate(self) -> float:
        """The chance that a record is in a batch."""
        return self.batch / self.records

    @property
    def participation(self) -> float:
        return self.rate

    @property
    def person(self) -> str:
        return _person_with_records(self.records_per_user)

    def expected_reports(self, users: int) -> float:
        return float(self.batch)

    def _drawn(self) -> DrawnRecords:
        """The law of the number of a person's records in a batch."""
        return hypergeometric_records(self.records_per_user, self.batch, self.records)

    def _stand_ins_opposite(self) -> Swap:
        """The others opposite to where the record is in P."""
        place_q = 0.0 if self.adjacency == "zero-out" else -1.0
        return Swap(scale=self.sigma, rate=self.rate, place_p=1.0, place_q=place_q, place_out=-1.0)

    def _stand_ins_at_q(self) -> Identical:
        """The others where the record is in Q: the ratio of Poisson sampling at this distance."""
        return Identical(ratio=Lognormal(scale=self.scale), users=1, weight=self.rate)

    def upper_round(self) -> Round:
        if self.records_per_user > 1:
            if self.rate == 1.0:
                return together(self.scale, self._drawn(), opposed=False)[0]
            return StandIns(scale=self.sigma, drawn=self._drawn(), replaced=self.adjacency == "replace")
        # A batch of all records is no sample; for losses below 0 the worst stand-in is where the record is in P.
        if self.rate == 1.0:
            return self._stand_ins_at_q()
        return Worst(swap=self._stand_ins_opposite(), place_out_below=1.0)

    def attack_rounds(self) -> tuple[Round, ...]:
        if self.records_per_user > 1:
            # The others where the records are in Q: with or without them the sum moves by a binomial-like number.
            beside = together(self.scale, self._drawn(), opposed=False)[1]
            if self.adjacency == "replace" or self.rate == 1.0:
                return (beside,)
            opposite = OppositeBatch(scale=self.sigma, records=self.records_per_user, drawn=self._drawn().weights)
            return beside, opposite
        if self.adjacency == "zero-out" and self.rate < 1.0:
            return Real(swap=self._stand_ins_opposite()), self._stand_ins_at_q()
        return (self._stand_ins_at_q(),)


@dataclass(frozen=True, kw_only=True)
class RandomAllocation(CentralMechanism):
    """Each record is in `picks` of the `steps` of an epoch, drawn at random, on its own.

    One round is `epochs` epochs: each with picks of its own, or all with the same (`persistent`). Q is the law without
    the record, P with it; zero-out (add or remove one) only. Vectors get a coordinate of their own at each step that
    brings their norms to 1, which is safe. Then the ratios `W_i` of the steps are lognormal and independent under Q,
    however the gradients depend on what was published before, and

        S = (mean over all sets K of `picks` steps) of the product of W_i over K.

    One pick: `BallsAndBins`. All steps: the Gaussian mechanism, `steps` times. In between from above: split the steps
    at random into `picks` blocks and pick one step from each. That draws a uniform set, so S is the mean of the
    product over blocks of block means, given the W_i, and by Jensen below such a product in the convex order: `picks`
    rounds of balls and bins. Feldman and Shenfeld (2025, arXiv:2502.08202, lemma 3.2) reduce to one of
    floor(steps / picks) in this way, leaving the rest of the steps out; here all are used, in blocks whose sizes differ
    by at most one. From below: `central.attacks.Allocation`, and, where noise is small, independent products for all
    sets: by Kahane's inequality S is above their mean in the convex order, which is `BallsAndBins` with one bin for
    each set and noise sigma / sqrt(picks) (`docs/explanation/worst-crowd.md`). Persistent picks: the sums of the same
    step over `epochs`
    epochs are one sum with noise sigma / sqrt(epochs).

    >>> RandomAllocation(steps=1_000, picks=1, sigma=1.0).epsilon(delta=1e-6).upper < 0.172
    True
    """

    steps: int = STEPS.field()
    picks: int = Parameter(
        domain=COUNT,
        words="picks",
        metavar="K",
        help="Steps of an epoch that a record is in.",
        default=1,
        example=1,
        slider=(1, 1e4),
    ).field()
    epochs: int = EPOCHS.field()
    persistent: bool = Parameter(
        domain=FLAG, words="same picks", help="The same picks in every epoch.", default=False
    ).field()

    label: ClassVar[str] = "allocation"
    sampling: ClassVar[SamplingScheme] = "allocated"
    zero_is_absent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_replace()
        if self.picks > self.steps:
            raise InvalidInput(f"picks must be at most steps ({self.steps}), got {self.picks}")

    def bounds(self, rounds: int) -> Bounds:
        scale = self.sigma / math.sqrt(self.epochs) if self.persistent else self.sigma
        epochs = rounds if self.persistent else rounds * self.epochs
        # Blocks whose sizes differ by at most one: `longer` of them have one step more.
        size, longer = divmod(self.steps, self.picks)
        blocks = ((size, self.picks - longer), (size + 1, longer))
        upper: Parts = tuple(
            (Identical(ratio=Lognormal(scale=scale), users=users), number * epochs)
            for users, number in blocks
            if number
        )
        if self.picks in (1, self.steps):
            return Bounds(upper=upper, attacks=(upper,))
        # Two attacks: with large scores clipped, and as they are. Which is better depends on noise and picks.
        attacks: tuple[Parts, ...] = tuple(
            ((Allocation(scale=scale, steps=self.steps, picks=self.picks, clipped=clipped), epochs),)
            for clipped in (True, False)
        )
        # More sets than a law may have users cannot be left out: fewer would show more.
        sets = math.comb(self.steps, self.picks)
        if sets <= LAW_USERS_MAX:
            alone = Identical(ratio=Lognormal(scale=scale / math.sqrt(self.picks)), users=sets)
            attacks = (*attacks, ((alone, epochs),))
        return Bounds(upper=upper, attacks=attacks)


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochs(CentralMechanism):
    """Each epoch permutes the records and cuts them into `steps` batches of one size (`shuffle=True`).

    One round is `epochs` epochs. A record is used once in each epoch; what each record sends may depend on all outputs
    before. From above: the theorem of sequential shuffling (`anycrowd.sequential`), whatever the other records hold;
    never more than one Gaussian report an epoch. From below, for zero-out: all other vectors are opposite to the
    record's, and the attacker looks at the likelihood ratio (`anycrowd.opposite`) or at the largest output (Chua et al.
    2024, "How private are DP-SGD implementations?", arXiv:2403.17673); or, for few steps, they change sides while the
    epoch runs (`central.switching`). For replace also a crowd that holds what the record is replaced by.

    What is assumed, each of which can fail in practice (`docs/howto/dp-sgd.md`):

    - The order is uniform, secret and drawn afresh for each epoch. With `persistent` one order is used for all epochs
      of a round: then only one report an epoch in the clear is claimed.
    - `steps` is the number of *full* batches, n = records // batch; a smaller last batch may be used or dropped.
    - Gradients read what was published and public randomness, nothing else: no batch statistics, no stopping rule that
      looks at raw losses. Sums are divided by a public number. Accumulated gradients are released, and `steps` counts
      these releases, at the latest when an epoch ends.
    - One record's vector becomes zero or another one. Adding or removing a record may change the number of steps; that
      is not covered.

    `claimed` gives what Poisson accounting would have said. It is not a guarantee of this mechanism.

    >>> m = ShuffledEpochs(steps=1_000, sigma=0.5)
    >>> eps, wrong = m.epsilon(delta=1e-6), m.claimed(delta=1e-6)
    >>> eps.lower > 10.9, wrong.upper < 4.3
    (True, True)
    >>> ShuffledEpochs(steps=1_000, sigma=2.0).epsilon(delta=1e-6).upper < 0.1346
    True
    """

    steps: int = STEPS.field()
    epochs: int = EPOCHS.field()
    persistent: bool = Parameter(
        domain=FLAG, words="same order", help="One order for all epochs.", default=False, absent=False
    ).field()

    label: ClassVar[str] = "shuffled-epochs"
    protocol: ClassVar[str] = "the server keeps every order of the records secret and adds noise as described"
    sampling: ClassVar[SamplingScheme] = "allocated"

    def bounds(self, rounds: int) -> Bounds:
        epochs = rounds * self.epochs
        in_the_clear: Parts = ((Identical(ratio=Lognormal(scale=self.scale), users=1), epochs),)
        # One batch of all records: nothing is hidden, and the report is exact.
        if self.steps == 1:
            return Bounds(upper=in_the_clear, attacks=(in_the_clear,))
        if self.persistent and self.epochs > 1:
            # Functions that stay the same: the sums of the same step over all epochs are one sum with less noise.
            attacks = sequential_attacks(
                sigma=self.sigma / math.sqrt(self.epochs), steps=self.steps, adjacency=self.adjacency
            )
            return Bounds(upper=in_the_clear, attacks=tuple(((attack, rounds),) for attack in attacks))
        epoch = sequential_round(sigma=self.sigma, steps=self.steps, adjacency=self.adjacency)
        attacks = sequential_attacks(sigma=self.sigma, steps=self.steps, adjacency=self.adjacency)
        return Bounds(upper=((epoch, epochs),), attacks=tuple(((attack, epochs),) for attack in attacks))

    def claimed(self, *, delta: float, rounds: int = 1, **options: Any) -> Interval:
        """The claim of Poisson accounting at rate 1 / steps: **not** a guarantee of shuffled epochs.

        Args:
            delta: The delta of the claim.
            rounds: The number of rounds.
            options: `method`, `orders` and `accuracy`, as for `epsilon`.

        Returns:
            The epsilon that Poisson sampling would have.
        """
        poisson = PoissonSampling(rate=1.0 / self.steps, sigma=self.sigma, adjacency=self.adjacency)
        return poisson.epsilon(delta=delta, rounds=_validate.rounds(rounds) * self.epochs * self.steps, **options)

    def caution(self, *, delta: float, epsilon: Interval, rounds: int = 1) -> str:
        """The claim of Poisson accounting, and by how much it is too small.

        Args:
            delta: The delta of the guarantee.
            epsilon: Its epsilon.
            rounds: The number of rounds.

        Returns:
            The sentence.
        """
        claimed = self.claimed(delta=delta, rounds=rounds).upper
        claim = f"Poisson accounting would claim epsilon = {rounded(claimed)}, which is not proved for shuffled epochs"
        gap = epsilon.lower - claimed
        return f"{claim} and too small by at least {rounded(gap, 'down')}." if gap > 0.0 else f"{claim}."

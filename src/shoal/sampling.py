"""Every way in which DP-SGD draws its batches: a trusted server, batches of records, noise added once to each sum.

In each of these a record contributes a vector of norm at most C (a clipped gradient) to the steps whose batch it is
in, and the public sees every noisy sum, `sum + N(0, (C sigma)^2 I)`. What differs is how batches are drawn, and that
changes the privacy, also where the batches look alike (`docs/howto/dp-sgd.md`). Gradients may depend on all that was
published before: every number holds for adaptive steps.

The two adjacencies are those of `shoal.mechanisms`, of one record: its vector becomes zero wherever it is used, or any
other. Where the sampling does not show how many records there are (Poisson sampling, allocation), zero-out is the same
as adding or removing the record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal import _validate
from shoal.bounds.anycrowd.opposite import Opposite
from shoal.bounds.central.attacks import Allocation, Maximum
from shoal.bounds.central.swap import Real, Swap, Worst
from shoal.bounds.composition import Parts
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.errors import InvalidInput, InvalidType
from shoal.interval import Interval, rounded
from shoal.mechanisms import MECHANISMS, Mechanism, parameter
from shoal.query import Bounds


class _Central(Mechanism):
    """What sampling by a trusted server has in common."""

    trust: ClassVar[str] = "the server that holds the data is trusted, the public is not"

    @property
    def assumption(self) -> str:
        return "nothing about other records"

    def _zero_out_only(self) -> None:
        if self.adjacency != "zero-out":
            raise InvalidInput(f"adjacency must be zero-out for {type(self).__name__}, got {self.adjacency!r}")


@dataclass(frozen=True, kw_only=True)
class PoissonSampling(_Central):
    """Each step, each record is in the batch with probability `rate`, on a coin of its own.

    One round is one step. Zero-out (which is add or remove one here): P = (1 - q) N(0) + q N(1) against Q = N(0), so
    that `dP/dQ = 1 - q + q W` (Mironov, Talwar and Zhang 2019; Zhu, Dong and Wang 2022, theorem 11).
    Replace: P against (1 - q) N(0) + q N(-1), the pair of Lebeda et al. (2024), which `central.swap` proves to be the
    worst. Both directions are composed on their own; both ends of the bracket are of the same, true worst case.

    >>> m = PoissonSampling(rate=0.01, sigma=1.0)
    >>> f"{m.epsilon(delta=1e-6, rounds=1_000):.4f}"
    '[2.1243, 2.1246]'
    """

    rate: float = parameter("sampling rate", metavar="P", help="Probability that a record is in a batch.")

    label: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("rate", _validate.rate(self.rate))

    def _identical(self) -> Round:
        # Without sampling a replaced record is one Gaussian report of twice the distance, which has closed forms.
        if self.adjacency == "zero-out" or self.rate == 1.0:
            return Identical(ratio=Lognormal(scale=self.scale), users=1, weight=self.rate)
        # Nothing stands in the place of a record that is not drawn: one pair for losses of both signs.
        return Worst(
            swap=Swap(scale=self.sigma, rate=self.rate, place_p=1.0, place_q=-1.0, place_out=0.0), place_out_below=0.0
        )


@dataclass(frozen=True, kw_only=True)
class FixedBatch(_Central):
    """Each step, `batch` of the `records` are drawn without replacement, on their own at every step.

    One round is one step. If a record is not in the batch another one is in its place, whose vector may lie opposite:
    for zero-out this is less private than Poisson sampling at the same rate. The dominating pairs are those of
    `central.swap`: one step is exact, several are bounded from above by them, and from below by the better of two
    crowds that can really happen.

    >>> m = FixedBatch(records=60_000, batch=600, sigma=1.0)
    >>> m.epsilon(delta=1e-6).width < 1e-3
    True
    """

    records: int = parameter("records", metavar="N", help="Number of records.")
    batch: int = parameter("batch", metavar="B", help="Records in each batch.")

    label: ClassVar[str] = "fixed-batch"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("records", _validate.users("records", self.records))
        self._set("batch", _validate.users("batch", self.batch))
        if self.batch > self.records:
            raise InvalidInput(f"batch must be at most records ({self.records}), got {self.batch}")
        _validate.rate(self.rate, name="batch / records")

    @property
    def rate(self) -> float:
        """The chance that a record is in a batch."""
        return self.batch / self.records

    def _swap(self) -> Swap:
        """The others opposite to where the record is in P."""
        there = 0.0 if self.adjacency == "zero-out" else -1.0
        return Swap(scale=self.sigma, rate=self.rate, place_p=1.0, place_q=there, place_out=-1.0)

    def _above(self) -> Round:
        # A batch of all records is no sample; for losses below 0 the worst stand-in is where the record is in P.
        return self._opposite() if self.rate == 1.0 else Worst(swap=self._swap(), place_out_below=1.0)

    def _identical(self) -> Round:
        return Real(swap=self._swap()) if self.adjacency == "zero-out" and self.rate < 1.0 else self._opposite()

    def _opposite(self) -> Identical:
        """The others where the record is in Q: the ratio of Poisson sampling at this distance."""
        return Identical(ratio=Lognormal(scale=self.scale), users=1, weight=self.rate)


@dataclass(frozen=True, kw_only=True)
class RandomAllocation(_Central):
    """Each record is in `picks` of the `steps` of an epoch, drawn at random, on its own.

    One round is `epochs` epochs: each with picks of its own, or all with the same (`persistent`). Q is the law without
    the record, P with it; zero-out (add or remove one) only. With `W_i` the ratio of step i, lognormal and independent
    under Q however the gradients depend on what was published before,

        S = (mean over all sets K of `picks` steps) of the product of W_i over K.

    One pick: `BallsAndBins`. All steps: the Gaussian mechanism, `steps` times. In between from above: split the steps
    at random into `picks` blocks and pick one step from each. That draws a uniform set, so S is the mean of the
    product over blocks of block means, given the W_i, and by Jensen below such a product in the convex order: `picks`
    rounds of balls and bins. Feldman and Shenfeld (2025, arXiv:2502.08202, lemma 3.2) reduce to one of
    floor(steps / picks) in this way, leaving the rest of the steps out; here all are used, in blocks whose sizes differ
    by at most one. From below: `central.attacks.Allocation`. Persistent picks: the sums of the same step over `epochs`
    epochs are one sum with noise sigma / sqrt(epochs).

    >>> RandomAllocation(steps=1_000, picks=1, sigma=1.0).epsilon(delta=1e-6).upper < 0.172
    True
    """

    steps: int = parameter("steps an epoch", metavar="T", help="Steps in an epoch.")
    picks: int = parameter("picks", metavar="K", help="Steps of an epoch that a record is in.", default=1)
    epochs: int = parameter("epochs", metavar="E", help="Epochs in a round.", default=1)
    persistent: bool = parameter("same picks", metavar="", help="The same picks in every epoch.", default=False)

    label: ClassVar[str] = "allocation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._zero_out_only()
        self._set("steps", _validate.users("steps", self.steps))
        self._set("picks", _validate.users("picks", self.picks))
        self._set("epochs", _validate.rounds(self.epochs, "epochs"))
        if self.picks > self.steps:
            raise InvalidInput(f"picks must be at most steps ({self.steps}), got {self.picks}")
        if not isinstance(self.persistent, bool):
            raise InvalidType(f"persistent must be True or False, got {self.persistent!r}")

    def _bounds(self, count: int) -> Bounds:
        scale = self.sigma / math.sqrt(self.epochs) if self.persistent else self.sigma
        rounds = count if self.persistent else count * self.epochs
        # Blocks whose sizes differ by at most one: `more` of them have one step more.
        size, more = divmod(self.steps, self.picks)
        blocks = ((size, self.picks - more), (size + 1, more))
        upper: Parts = tuple(
            (Identical(ratio=Lognormal(scale=scale), users=users), number * rounds)
            for users, number in blocks
            if number
        )
        if self.picks in (1, self.steps):
            return Bounds(upper=upper, identical=upper, opposite=upper)
        # Two attacks: with large scores clipped, and as they are. Which is better depends on noise and picks.
        fine, far = (
            Allocation(scale=scale, steps=self.steps, picks=self.picks, clipped=clipped) for clipped in (True, False)
        )
        return Bounds(upper=upper, identical=((fine, rounds),), opposite=((far, rounds),))


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochs(_Central):
    """What `shuffle=True` does: each epoch permutes the records and cuts them into `steps` batches of one size.

    One round is `epochs` epochs. A record is used once in each epoch, but batches are not drawn independently: whoever
    is not in a batch is in another, and the other records can tell which. From above no amplification is proved beyond
    one use an epoch: with the permutation in the clear an epoch is one Gaussian report. From below: all other vectors
    are opposite to the record's, and the attacker looks at the largest output (Chua et al. 2024, "How private are
    DP-SGD implementations?", arXiv:2403.17673) or at the likelihood ratio itself (`anycrowd.opposite`); for replace
    also at a crowd that holds what the record is replaced by. Batches are taken to be of one size; the upper end needs
    no such thing.

    `claimed` gives what Poisson accounting would have said. It is not a guarantee of this mechanism.

    >>> m = ShuffledEpochs(steps=1_000, sigma=0.5)
    >>> eps, wrong = m.epsilon(delta=1e-6), m.claimed(delta=1e-6)
    >>> eps.lower > 10.9, wrong.upper < 4.3
    (True, True)
    """

    steps: int = parameter("steps an epoch", metavar="T", help="Steps in an epoch.")
    epochs: int = parameter("epochs", metavar="E", help="Epochs in a round.", default=1)

    label: ClassVar[str] = "shuffled-epochs"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("steps", _validate.users("steps", self.steps))
        self._set("epochs", _validate.rounds(self.epochs, "epochs"))

    def _bounds(self, count: int) -> Bounds:
        rounds = count * self.epochs
        report = ((Identical(ratio=Lognormal(scale=self.scale), users=1), rounds),)
        # One batch of all records: nothing is hidden, and the report is exact.
        if self.steps == 1:
            return Bounds(upper=report, identical=report, opposite=report)
        largest = Maximum(scale=self.sigma, steps=self.steps)
        if self.adjacency == "replace":
            found: Round = Identical(ratio=Lognormal(scale=self.scale), users=self.steps)
            return Bounds(upper=report, identical=((found, rounds),), opposite=((largest, rounds),))
        # The likelihood ratio itself, where it can be had: for one epoch, and noise that it is made for.
        sums = Opposite(mean=Identical(ratio=Lognormal(scale=self.sigma), users=self.steps))
        other: Round = sums if sums.is_worth_computing and rounds == 1 else largest
        return Bounds(upper=report, identical=((largest, rounds),), opposite=((other, rounds),))

    def claimed(self, *, delta: float, rounds: int = 1, **how: Any) -> Interval:
        """What Poisson accounting says of as many steps at rate 1 / steps: **not** a guarantee of shuffled epochs."""
        poisson = PoissonSampling(rate=1.0 / self.steps, sigma=self.sigma, adjacency=self.adjacency)
        count = _validate.rounds(rounds) * self.epochs * self.steps
        found: Interval = poisson.epsilon(delta=delta, rounds=count, **how)
        return found

    def caution(self, *, delta: float, epsilon: Interval, rounds: int = 1) -> str:
        """What Poisson accounting would have claimed, and by how much that is too small."""
        claimed = self.claimed(delta=delta, rounds=rounds).upper
        said = f"Poisson accounting would claim epsilon = {rounded(claimed)}, which is not proved for shuffled epochs"
        gap = epsilon.lower - claimed
        return f"{said} and too small by at least {rounded(gap, 'down')}." if gap > 0.0 else f"{said}."


MECHANISMS.update({cls.__name__: cls for cls in (PoissonSampling, FixedBatch, RandomAllocation, ShuffledEpochs)})

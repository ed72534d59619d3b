"""Shoal's mechanisms as events of Google's dp_accounting, and an accountant for these events.

`event(mechanism)` describes one round of a shoal mechanism as a `DpEvent`. `ShuffleAccountant` is a
`PrivacyAccountant` for such events: `compose`, `get_epsilon`, `get_delta`, the ledger and
`calibrate_dp_mechanism` work as they do with dp_accounting's own accountants. `distribution(mechanism)` is one round as
a `PrivacyLossDistribution`, for dp_accounting's own composition; `Mechanism.pld()` calls it.

dp_accounting's neighbouring relation is shoal's adjacency:

| shoal        | dp_accounting                         | one user's vector becomes        |
|--------------|---------------------------------------|----------------------------------|
| `"zero-out"` | `NeighboringRelation.REPLACE_SPECIAL` | the zero vector, a move of 1     |
| `"replace"`  | `NeighboringRelation.REPLACE_ONE`     | any other vector, a move of 2    |
| `"zero-out"` | `NeighboringRelation.ADD_OR_REMOVE_ONE` | absent: the user is left out   |

`ADD_OR_REMOVE_ONE` is for sampling by a trusted server that does not reveal the number of records: Poisson
sampling, random allocation, balls and bins, where it equals zero-out. Shuffle protocols refuse it, because their server
sees how many reports arrive: they hide what a user holds, not whether the user exists.

dp_accounting's own events of DP-SGD are supported too: a `PoissonSampledDpEvent` of a `GaussianDpEvent` is
`PoissonSampling`, a `SampledWithoutReplacementDpEvent` of one is `FixedBatch` (which refuses `ADD_OR_REMOVE_ONE`,
because its batches have a fixed size).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shoal._extras import missing
from shoal.errors import InvalidInput, InvalidType, ShoalError

try:
    import attr
    import dp_accounting
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution
except ModuleNotFoundError as error:
    raise missing("shoal.adapters.dp_accounting needs dp_accounting", "dp-accounting", error.name) from None

from shoal import _validate
from shoal.accountant import Accountant
from shoal.bounds import certify, dominating
from shoal.bounds.composition import Parts, upper_lattice
from shoal.bounds.numeric import DIRECTIONS
from shoal.mechanisms import (
    Adjacency,
    FixedBatch,
    LocalGaussian,
    Mechanism,
    PoissonSampling,
    from_dict,
)

# An event that fits none of these relations is refused with a reason: accounting for another event in its place would
# be worse than refusing.
_ADJACENCY: dict[NeighboringRelation, Adjacency] = {
    NeighboringRelation.REPLACE_SPECIAL: "zero-out",
    NeighboringRelation.REPLACE_ONE: "replace",
    NeighboringRelation.ADD_OR_REMOVE_ONE: "zero-out",
}


def _as_mechanism(value: Any) -> Mechanism:
    if isinstance(value, Mechanism):
        return value
    if isinstance(value, Mapping):
        return from_dict(value)
    raise InvalidType(f"mechanism must be a shoal mechanism, got {value!r}")


@attr.s(frozen=True, auto_attribs=True)
class ShoalDpEvent(dp_accounting.DpEvent):  # type: ignore[misc]
    """Represents one round of a shoal mechanism.

    The mechanism's own docstring defines the round completely: who sends which Gaussian reports,
    who sees what, who is trusted. Its fields `adjacency` and (where other users hide a user's
    report) `crowd` belong to the event: they fix which two data sets are compared, and what is
    assumed about all other users. The event is frozen, hashable, and compares by value.

    The named tuple of the event holds the mechanism as plain data (`Mechanism.to_dict`).

    Attributes:
      mechanism: The shoal mechanism, or the mapping that its `to_dict` returns.
    """

    mechanism: Mechanism = attr.ib(converter=_as_mechanism)

    def to_named_tuple(self) -> Any:
        """Return the event as a named tuple of plain data, for `DpEvent.from_named_tuple`."""
        return super().to_named_tuple()._replace(mechanism=self.mechanism.to_dict())


def event(mechanism: Mechanism) -> ShoalDpEvent:
    """Return one round of a mechanism as a dp_accounting event.

    >>> from shoal import Shuffle
    >>> event(Shuffle(users=10, sigma=2.0)).mechanism.users
    10
    """
    return ShoalDpEvent(mechanism)


_EXPORT_CELLS = 1024
"""Cells in a level of the exported law: its resolution adds less than a step of 1e-4."""


COMPOSED_POINTS_MAX = 400_000
"""The largest number of losses of an exported composition."""

_TAIL = 1e-16
"""Where a composed curve falls below this, the exported one ends: what is beyond counts as certain loss."""


def distribution(mechanism: Mechanism, *, rounds: int = 1, step: float = 1e-4) -> Any:
    """Return rounds as a pessimistic dp_accounting `PrivacyLossDistribution`.

    Several rounds are composed here, with the package's own error bounds. dp_accounting's own composition is not
    tilted: below delta = 1e-9 do not compose single rounds there.

    Args:
      mechanism: What is run in each round.
      rounds: The number of rounds.
      step: The value_discretization_interval, which all distributions composed with this one must share.

    Returns:
      The distribution, which bounds the round from above.

    Raises:
      InvalidInput: If the step is not above 0 and at most 1.

    >>> from shoal import LocalGaussian
    >>> 1.993 < distribution(LocalGaussian(sigma=2.0)).get_epsilon_for_delta(1e-5) < 1.994
    True
    """
    step = _validate.real("step", step)
    if not 0.0 < step <= 1.0:
        raise InvalidInput(f"step must be above 0 and at most 1, got {step}")
    if _validate.rounds(rounds) > 1:
        return _composed(mechanism.bounds(rounds).upper, step)
    total = None
    # One round may consist of several: an epoch of random allocation is one round for each pick.
    for part, count in mechanism.bounds(1).upper:
        pmfs = []
        for direction in DIRECTIONS:
            start, masses, infinite = upper_lattice(part, _EXPORT_CELLS, direction, step)
            pmfs.append(pld_pmf.DensePLDPmf(step, start, masses, infinite, True))
        loss = privacy_loss_distribution.PrivacyLossDistribution(*pmfs)
        loss = loss.self_compose(count) if count > 1 else loss
        total = loss if total is None else total.compose(loss)
    return total


def _composed(parts: Parts, step: float) -> Any:
    """Return composed rounds: their certified curves, joined by lines between multiples of a step."""
    parts = certify.limited(parts)
    if not certify.in_range(parts):
        sigma = min(part.ratio.scale for part, _ in parts)
        raise InvalidInput(f"sigma must be large enough, and rounds few enough, for a composed law, got {sigma:g}")
    curves = list(dominating.composed_curves(parts).values())
    high = max(curve.epsilon(curve.infinite + _TAIL) for curve in curves)
    if not 2.0 * high <= COMPOSED_POINTS_MAX * step:
        step_min = 2.1 * high / COMPOSED_POINTS_MAX
        raise InvalidInput(f"step must be at least {step_min:.1e} for losses up to {high:.3g}, got {step}")
    last = math.ceil(high / step) + 1
    indices = np.arange(-last, last + 1)
    pmfs = []
    for curve in curves:
        # The curve falls; rounding may not make it rise.
        deltas = np.minimum.accumulate([curve.delta(float(index) * step) for index in indices])
        pmfs.append(pld_pmf.create_pmf_pessimistic_connect_dots(step, indices, deltas))
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


class _UnsupportedError(ShoalError):
    """An event that cannot be accounted for, and why."""

    def __init__(self, event: Any, reason: str) -> None:
        super().__init__(reason)
        self.event = event


def _leaves(event: Any, count: int) -> Iterator[tuple[Any, int]]:
    """Yield the events that release something, each with its count; counts are multiplied here only."""
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        times = event.count
        if isinstance(times, bool) or not isinstance(times, numbers.Integral) or times < 0:
            raise _UnsupportedError(event, f"count must be a whole number of at least 0, got {times!r}")
        yield from _leaves(event.event, count * int(times))
    elif isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from _leaves(part, count)
    elif not isinstance(event, dp_accounting.NoOpDpEvent):
        yield event, count


def _translate(event: Any, relation: NeighboringRelation, records_per_user: int) -> Mechanism | None:
    """Return the mechanism of a leaf; None if it protects nothing."""
    adjacency, several = _ADJACENCY[relation], {"records_per_user": records_per_user}
    if isinstance(event, dp_accounting.NonPrivateDpEvent):
        return None
    if isinstance(event, ShoalDpEvent):
        if event.mechanism.adjacency != adjacency:
            raise _UnsupportedError(
                event,
                f"adjacency must be {adjacency!r}, as the accountant's neighboring_relation requires, "
                f"got {event.mechanism.adjacency!r}",
            )
        if relation == NeighboringRelation.ADD_OR_REMOVE_ONE and not event.mechanism.zero_is_absent:
            raise _UnsupportedError(event, f"{event.mechanism.label} does not hide whether a user exists")
        stated = getattr(event.mechanism, "records_per_user", 1)
        if stated < records_per_user:
            raise _UnsupportedError(event, f"records_per_user must be at least {records_per_user}, got {stated}")
        return event.mechanism
    if isinstance(event, dp_accounting.GaussianDpEvent):
        # The sum of vectors of norm <= C with noise of standard deviation C * noise_multiplier: the
        # same pair of Gaussians as one report, at distance 1 (zero-out) or 2 (replace).
        if records_per_user > 1:
            return _with_noise_of(event, event, PoissonSampling, adjacency, rate=1.0, **several)
        return _with_noise_of(event, event, LocalGaussian, adjacency)
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        return _with_noise_of(
            event, event.event, PoissonSampling, adjacency, rate=event.sampling_probability, **several
        )
    if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        if relation == NeighboringRelation.ADD_OR_REMOVE_ONE:
            raise _UnsupportedError(event, "batches of a fixed size need REPLACE_SPECIAL or REPLACE_ONE")
        sizes = {"records": event.source_dataset_size, "batch": event.sample_size, **several}
        return _with_noise_of(event, event.event, FixedBatch, adjacency, **sizes)
    raise _UnsupportedError(event, f"{type(event).__name__} is not supported by shoal")


def _with_noise_of(
    event: Any, noise: Any, mechanism_class: type[Mechanism], adjacency: Adjacency, **fields: Any
) -> Mechanism | None:
    """Return a mechanism with the noise of a `GaussianDpEvent`; None without noise."""
    if not isinstance(noise, dp_accounting.GaussianDpEvent):
        raise _UnsupportedError(event, f"the sampled event must be a GaussianDpEvent, got {type(noise).__name__}")
    if noise.noise_multiplier == 0:
        return None
    try:
        return mechanism_class(sigma=noise.noise_multiplier, adjacency=adjacency, **fields)
    except (InvalidInput, InvalidType) as error:
        raise _UnsupportedError(event, str(error).replace("sigma", "noise_multiplier")) from None


class ShuffleAccountant(dp_accounting.PrivacyAccountant):  # type: ignore[misc]
    """A dp_accounting accountant for rounds of shoal's mechanisms, on top of `shoal.Accountant`.

    It supports `ShoalDpEvent`, `GaussianDpEvent` (the sum of clipped vectors with central noise, as
    its docstring defines it: sensitivity 1 for `REPLACE_SPECIAL`, 2 for `REPLACE_ONE`), Poisson sampling and sampling
    without replacement of it, `NoOpDpEvent`, `NonPrivateDpEvent`, and any nesting of these in `ComposedDpEvent` and
    `SelfComposedDpEvent`. The numbers are the upper ends of shoal's intervals; each event has its
    own crowd. Queries do not change the state.

    Args:
      neighboring_relation: `REPLACE_SPECIAL` (zero-out, the default), `REPLACE_ONE` (replace), or
        `ADD_OR_REMOVE_ONE` for mechanisms that do not reveal the number of records.
      records_per_user: The most records of one person, who is protected with all of them: for dp_accounting's own
        events. Shoal's events say it themselves, and must say at least this number.
      options: Passed to `shoal.Accountant.epsilon` and `.delta`: `method`, `orders`, `accuracy`.

    >>> from shoal import ShuffledCheckIn
    >>> m = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
    >>> a = ShuffleAccountant().compose(event(m), 5_540)
    >>> a.get_epsilon(1e-5) == float(m.epsilon(delta=1e-5, rounds=5_540))
    True
    """

    def __init__(
        self,
        neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_SPECIAL,
        *,
        records_per_user: int = 1,
        **options: Any,
    ) -> None:
        if neighboring_relation not in _ADJACENCY:
            raise InvalidInput(
                "neighboring_relation must be REPLACE_SPECIAL (zero-out), REPLACE_ONE (replace) or ADD_OR_REMOVE_ONE, "
                f"got {getattr(neighboring_relation, 'name', neighboring_relation)!s}"
            )
        super().__init__(neighboring_relation)
        self._relation = neighboring_relation
        self._records_per_user = _validate.users("records_per_user", records_per_user)
        self._accountant = Accountant()
        self._is_private = True
        self._options = options
        self._accountant.epsilon(delta=0.5, **options)  # so that bad options are refused here, not at the first query

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        try:
            entries = [
                (_translate(leaf, self._relation, self._records_per_user), rounds)
                for leaf, rounds in _leaves(event, count)
            ]
        except _UnsupportedError as error:
            return self.CompositionErrorDetails(error.event, str(error))
        try:
            total = len(self._accountant) + sum(rounds for _, rounds in entries)
            if total:
                _validate.rounds(total)
        except (InvalidInput, InvalidType) as error:
            return self.CompositionErrorDetails(event, str(error))
        if do_compose:
            for mechanism, rounds in entries:
                if rounds == 0:
                    continue
                if mechanism is None:
                    self._is_private = False
                else:
                    self._accountant.compose(mechanism, rounds=rounds)
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """Return epsilon of all events so far; infinite after a non-private event."""
        delta = _validate.delta(target_delta, "target_delta")
        return float(self._accountant.epsilon(delta=delta, **self._options)) if self._is_private else math.inf

    def get_delta(self, target_epsilon: float) -> float:
        """Return delta of all events so far; 1 after a non-private event."""
        epsilon = _validate.epsilon(target_epsilon, "target_epsilon")
        return float(self._accountant.delta(epsilon=epsilon, **self._options)) if self._is_private else 1.0

"""What was spent, valid whenever the run stops: `Odometer` runs filters at growing budgets side by side.

Filter f has a budget (epsilon_f, delta / F), F filters in all. What is claimed when the run stops is the epsilon of
the smallest filter that has admitted every round so far. Each filter holds for the output up to where it refuses, so
the mass beyond the epsilon that is claimed is at most the sum of theirs, delta, however the decision to stop depends
on what was published (Lécuyer 2021, arXiv:2103.01379, section 4; `docs/explanation/adaptivity.md`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal import _validate
from shoal.accountant.filter import (
    FILTER_STATE_VERSION,
    Filter,
    PlannedRounds,
    checked_state,
    methods,
    planned_rounds,
)
from shoal.accountant.ledger import Entry
from shoal.accountant.rules import RULES, FilterMethod
from shoal.errors import InvalidInput, InvalidType
from shoal.mechanisms import Mechanism


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A possible claim: `epsilon`, after at most about `rounds` rounds of the plan."""

    rounds: int
    epsilon: float


class Odometer:
    """The epsilon that was spent, for a run that stops when it likes.

    The odometer is fixed beforehand by delta and a plan of all rounds that may be run. It can make one claim for each
    number of rounds in `stops`, and fewer claims cost less: its epsilon is about that of a fixed plan at delta divided
    by their number. Methods are those of `Filter`.

    >>> from shoal import Accountant, Shuffle
    >>> m = Shuffle(users=1_000, sigma=3.0, crowd="identical")
    >>> o = Odometer(delta=1e-6, plan=Accountant().compose(m, rounds=100), stops=(10, 30, 100), method="plan")
    >>> _ = o.spend(m, rounds=12)  # stopped here, because of what was seen
    >>> o.epsilon < 1.1 * m.epsilon(delta=1e-6, rounds=30).upper
    True
    """

    def __init__(
        self,
        *,
        delta: float,
        plan: PlannedRounds,
        stops: Sequence[int] | None = None,
        method: FilterMethod | None = None,
    ) -> None:
        """An odometer that has spent nothing.

        Args:
            delta: The delta of every claim.
            plan: The most that may be run: a mechanism, several of them, or an `Accountant` with numbers of rounds.
            stops: The numbers of rounds at which a claim can be made, at most those of the plan; by default from one
                round to all of them in steps of about a factor sqrt(2).
            method: How rounds are added up; chosen from the plan by default.

        Raises:
            InvalidInput: If an argument is not allowed.
            Unreachable: If no method can pay for rounds like those of the plan.
        """
        planned, total_delta = planned_rounds(plan), _validate.delta(delta)
        numbers = _checked_stops(stops, len(planned))
        share = total_delta / len(numbers) * (1.0 - 1e-15 * len(numbers))
        names = methods(method)
        last = [RULES[name].covering(share, planned, 1.0) for name in names]
        kind = min(last, key=lambda rule: rule.epsilon).name
        adjacency = next(iter(planned)).mechanism.adjacency
        rules = [RULES[kind].covering(share, planned, number / len(planned)) for number in numbers]
        filters = [Filter.of(rule, adjacency) for rule in rules]
        self._start(total_delta, filters, _rungs(numbers, [rule.epsilon for rule in rules]))

    def _start(self, delta: float, filters: Sequence[Filter | None], rungs: tuple[Rung, ...]) -> None:
        self._delta, self._rungs = delta, rungs
        # A filter that has refused claims nothing any more.
        self._filters = list(filters)

    @property
    def _last(self) -> Filter:
        """The filter of the largest budget, which admits all that the odometer admits."""
        last = self._filters[-1]
        if last is None:
            raise ArithmeticError("the last filter of an odometer refused: please report this as a bug")
        return last

    @property
    def delta(self) -> float:
        """The delta of every claim."""
        return self._delta

    @property
    def method(self) -> FilterMethod:
        """How rounds are added up."""
        return self._last.method

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The claims that can be made, in increasing order."""
        return self._rungs

    @property
    def epsilon(self) -> float:
        """The epsilon that may be claimed if the run stops here; 0 if nothing was spent."""
        if not len(self._last):
            return 0.0
        return min(f.epsilon for f in self._filters if f is not None)

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """The rounds that were spent."""
        return self._last.ledger

    def __len__(self) -> int:
        """The number of rounds that were spent."""
        return len(self._last)

    def __repr__(self) -> str:
        return f"<Odometer: epsilon = {self.epsilon:g} at delta = {self.delta:g} after {len(self):,} rounds>"

    def admits(self, mechanism: Mechanism, *, rounds: int = 1) -> bool:
        """Whether a claim can still be made after a block of rounds; spends nothing.

        Args:
            mechanism: What may be run next; it may be chosen from anything seen.
            rounds: How many rounds of it, as one block.

        Returns:
            True if `spend` would accept it.
        """
        return self._last.admits(mechanism, rounds=rounds)

    def spend(self, mechanism: Mechanism, *, rounds: int = 1) -> Odometer:
        """Enter a block of rounds before it is run.

        Args:
            mechanism: What is run next; it may be chosen from anything seen.
            rounds: How many rounds of it, as one block.

        Returns:
            This odometer, so that calls can be chained.

        Raises:
            InvalidInput: If an argument is not allowed.
            Unreachable: If it is more than was planned: no claim could be made any more.
        """
        # The last filter speaks for all: where it refuses, nothing changes.
        self._last.spend(mechanism, rounds=rounds)
        for place, f in enumerate(self._filters[:-1]):
            if f is not None and f.admits(mechanism, rounds=rounds):
                f.spend(mechanism, rounds=rounds)
            else:
                self._filters[place] = None
        return self

    def state_dict(self) -> dict[str, Any]:
        """The odometer as plain data (JSON will do), to be restored by `from_state_dict`."""
        return {
            "version": FILTER_STATE_VERSION,
            "delta": self._delta,
            "stops": [rung.rounds for rung in self._rungs],
            "epsilons": [rung.epsilon for rung in self._rungs],
            "filters": [None if f is None else f.state_dict() for f in self._filters],
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Odometer:
        """A saved odometer, with the claims that it could make when it was made.

        Args:
            state: What `state_dict` returned.

        Returns:
            The odometer.

        Raises:
            InvalidInput: If the state is corrupt, or its filters do not add up to its delta.
        """
        checked_state(state, ("version", "delta", "stops", "epsilons", "filters"))
        delta = _validate.delta(state["delta"])
        filters = [None if saved is None else Filter.from_state_dict(saved) for saved in state["filters"]]
        lengths = {len(filters), len(state["stops"]), len(state["epsilons"])}
        if len(lengths) != 1 or not filters or filters[-1] is None:
            raise InvalidInput(
                "an odometer must have a filter for each of its stops, and a last one that has not refused"
            )
        if math.fsum(f.delta for f in filters if f is not None) > delta:
            raise InvalidInput(f"the deltas of the filters must add up to at most delta = {delta:g}")
        odometer = cls.__new__(cls)
        numbers = [_validate.rounds(number, "stops") for number in state["stops"]]
        epsilons = [_validate.real("epsilons", value) for value in state["epsilons"]]
        odometer._start(delta, filters, _rungs(numbers, epsilons))
        return odometer


def _rungs(numbers: Sequence[int], epsilons: Sequence[float]) -> tuple[Rung, ...]:
    """The claims that an odometer can make."""
    return tuple(Rung(rounds=number, epsilon=epsilon) for number, epsilon in zip(numbers, epsilons, strict=True))


def _checked_stops(stops: Sequence[int] | None, total: int) -> tuple[int, ...]:
    """The numbers of rounds at which claims can be made, in increasing order; the last is that of the plan."""
    if stops is None:
        steps = math.ceil(2.0 * math.log2(total)) if total > 1 else 0
        return tuple(sorted({math.ceil(total / 2.0 ** (step / 2.0) - 1e-9) for step in range(steps + 1)} | {1}))
    if isinstance(stops, (str, bytes)) or not isinstance(stops, Sequence):
        raise InvalidType(f"stops must be a sequence of numbers of rounds, got {stops!r}")
    numbers = {_validate.rounds(number, "stops") for number in stops} | {total}
    if max(numbers) > total:
        raise InvalidInput(f"stops must be at most the rounds of the plan ({total:,}), got {max(numbers):,}")
    return tuple(sorted(numbers))

"""Budgets for rounds that are chosen along the way: `Filter` admits or refuses the next ones.

A tight composition holds for rounds whose parameters are fixed beforehand. A filter holds even if the next mechanism,
its parameters and the decision to stop depend on everything published so far: its budget and its plan are fixed before
anything is seen, and it refuses rounds that would exceed the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import numpy as np

from shoal import _validate
from shoal.accountant.ledger import Accountant, Entry
from shoal.accountant.rules import RULES, FilterMethod, FilterRule, rule_from_dict
from shoal.bounds.numeric import FloatArray
from shoal.errors import InvalidInput, InvalidType, Unreachable
from shoal.mechanisms import Mechanism

FILTER_STATE_VERSION = 1
"""The version of saved filters and odometers; one of another version is refused."""

PlannedRounds = Mechanism | Accountant | Iterable[Mechanism | Entry]
"""The rounds that are likely to run: one mechanism, several, or a ledger."""


class Filter:
    """A budget (epsilon, delta) for rounds that are chosen from anything seen.

    All rounds that it admits are (epsilon, delta)-DP together. The plan says which rounds are likely. From it the
    filter chooses, once, how it adds up, so that it admits the largest multiple of the plan. Methods:

    - "gaussian": each block of rounds counts as the Gaussian mechanism that dominates it, up to a small probability;
      best for shuffled reports;
    - "rdp": Rényi DP at one order; often best for Poisson sampling with much noise in few steps;
    - "plan": each round replaces a planned one and is at least as private. This is as tight as a plan that is fixed
      beforehand, and admits nothing else.

    By default the method is the better of the first two.

    >>> from shoal import Shuffle
    >>> f = Filter(epsilon=0.62, delta=1e-6, plan=Shuffle(users=1_000, sigma=3.0, crowd="identical"))
    >>> small = Shuffle(users=500, sigma=3.0, crowd="identical")
    >>> _ = f.spend(Shuffle(users=1_200, sigma=3.5, crowd="identical"), rounds=10).spend(small)
    >>> f.method, f.admits(small, rounds=10), f.admits(small, rounds=10_000)
    ('gaussian', True, False)
    """

    def __init__(
        self, *, epsilon: float, delta: float, plan: PlannedRounds, method: FilterMethod | None = None
    ) -> None:
        """A filter that has spent nothing.

        Args:
            epsilon: The epsilon of the budget.
            delta: Its delta.
            plan: A mechanism, several of them, or an `Accountant` with the rounds that are planned.
            method: How rounds are added up; chosen from the plan by default.

        Raises:
            InvalidInput: If an argument is not allowed.
            Unreachable: If no round of the plan is within the budget.
        """
        limit, allowance, planned = (
            _validate.epsilon(epsilon, positive=True),
            _validate.delta(delta),
            planned_rounds(plan),
        )
        candidates = [RULES[name].within(limit, allowance, planned) for name in methods(method)]
        self._rule = max(candidates, key=lambda rule: rule.repeats(planned))
        self._start(adjacency=next(iter(planned)).mechanism.adjacency)

    @classmethod
    def of(cls, rule: FilterRule, adjacency: str) -> Filter:
        """A filter of a rule that was fixed already.

        Args:
            rule: How it adds up, and its limits.
            adjacency: The adjacency of all rounds.

        Returns:
            A filter that has spent nothing.
        """
        result = cls.__new__(cls)
        result._rule = rule
        result._start(adjacency=adjacency)
        return result

    def _start(self, adjacency: str) -> None:
        self._adjacency = adjacency
        self._limits = self._rule.limits
        self._spent: FloatArray = np.zeros(len(self._limits))
        self._ledger = Accountant()

    @property
    def epsilon(self) -> float:
        """The epsilon of the budget."""
        return self._rule.epsilon

    @property
    def delta(self) -> float:
        """The delta of the budget."""
        return self._rule.delta

    @property
    def method(self) -> FilterMethod:
        """How rounds are added up."""
        return self._rule.name

    @property
    def remaining(self) -> float:
        """The part of the budget that is left, from 1 down to 0."""
        return self._rule.left(self._spent)

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """The rounds that were spent."""
        return self._ledger.ledger

    def __len__(self) -> int:
        """The number of rounds that were spent."""
        return len(self._ledger)

    def __repr__(self) -> str:
        return f"<Filter: epsilon = {self.epsilon:g}, delta = {self.delta:g}, {100.0 * self.remaining:.1f}% left>"

    def _checked(self, mechanism: Any, rounds: Any) -> int:
        if not isinstance(mechanism, Mechanism):
            raise InvalidType(f"mechanism must be a shoal mechanism, got {mechanism!r}")
        if mechanism.adjacency != self._adjacency:
            raise InvalidInput(f"adjacency must be {self._adjacency!r} as in the plan, got {mechanism.adjacency!r}")
        return _validate.rounds(rounds)

    def _after(self, mechanism: Mechanism, rounds: int) -> FloatArray | None:
        """The costs after these rounds, by the first way to pay that is within the limits, or None."""
        sums = self._rule.added(self._spent, self._rule.costs(mechanism, rounds))
        affordable = np.flatnonzero(np.all(sums <= self._limits, axis=1))
        return sums[affordable[0]] if len(affordable) else None

    def admits(self, mechanism: Mechanism, *, rounds: int = 1) -> bool:
        """Whether a block of rounds is within what is left; spends nothing.

        Args:
            mechanism: The next mechanism; its choice may depend on everything seen.
            rounds: The number of its rounds. They form one block, fixed before the first of them, which may cost
                less than single rounds.

        Returns:
            True if the filter would admit it.

        Raises:
            InvalidInput: If an argument is not allowed.
        """
        return self._after(mechanism, self._checked(mechanism, rounds)) is not None

    def spend(self, mechanism: Mechanism, *, rounds: int = 1) -> Filter:
        """Enter a block of rounds before it is run.

        Args:
            mechanism: The next mechanism; its choice may depend on everything seen.
            rounds: The number of its rounds, as one block.

        Returns:
            This filter, so that calls can be chained.

        Raises:
            InvalidInput: If an argument is not allowed.
            Unreachable: If the filter does not admit the rounds; nothing is spent then.
        """
        count = self._checked(mechanism, rounds)
        spent = self._after(mechanism, count)
        if spent is None:
            block = "one round" if count == 1 else f"{count:,} rounds"
            raise Unreachable(
                f"the filter does not admit {block} of {mechanism.label} ({mechanism.settings}): "
                f"{100.0 * self.remaining:.3g}% of its budget is left"
            )
        # The ledger first: it may refuse (too many rounds), and then nothing has changed.
        self._ledger.compose(mechanism, rounds=count)
        self._spent = spent
        return self

    def state_dict(self) -> dict[str, Any]:
        """The filter as plain data (JSON will do), to be restored by `from_state_dict`."""
        return {
            "version": FILTER_STATE_VERSION,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self._adjacency,
            "rule": self._rule.to_dict(),
            "spent": self._spent.tolist(),
            "rounds": self._ledger.state_dict(),
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Filter:
        """A saved filter, with the rule that was chosen when it was made.

        Args:
            state: What `state_dict` returned.

        Returns:
            The filter.

        Raises:
            InvalidInput: If the state is corrupt, or its rule does not prove its budget.
        """
        fields = ("version", "epsilon", "delta", "adjacency", "rule", "spent", "rounds")
        checked_state(state, fields)
        epsilon, delta = _validate.epsilon(state["epsilon"], positive=True), _validate.delta(state["delta"])
        result = cls.of(rule_from_dict(epsilon, delta, state["rule"]), str(state["adjacency"]))
        spent = np.array([_validate.real("spent", value) for value in state["spent"]])
        if spent.shape != result._limits.shape or np.any(spent < 0.0) or np.any(spent > result._limits):
            raise InvalidInput(f"spent must be {len(result._limits)} numbers within the limits, got {state['spent']!r}")
        result._ledger = Accountant().load_state_dict(state["rounds"])
        result._spent = spent
        return result


def methods(method: FilterMethod | None) -> tuple[FilterMethod, ...]:
    """The candidate methods: the named one, or those that admit any mechanism.

    Args:
        method: The name of a method, or None.

    Returns:
        The names.
    """
    if method is None:
        return "gaussian", "rdp"
    _validate.choice("method", method, get_args(FilterMethod))
    return (method,)


def planned_rounds(plan: PlannedRounds) -> Accountant:
    """The ledger of a plan.

    Args:
        plan: A mechanism, several of them, entries of a ledger, or a ledger.

    Returns:
        The rounds that are planned, in a ledger of their own.
    """
    planned = Accountant()
    entries: Iterable[Any] = (plan,) if isinstance(plan, Mechanism) else plan
    if not isinstance(entries, Iterable):
        raise InvalidType(f"plan must be a mechanism, several of them or an Accountant, got {plan!r}")
    for entry in entries:
        if isinstance(entry, Entry):
            planned.compose(entry.mechanism, rounds=entry.rounds)
        else:
            planned.compose(entry)
    if not len(planned):
        raise InvalidInput("plan must name at least one mechanism, got none")
    return planned


def checked_state(state: Any, fields: tuple[str, ...]) -> None:
    """Refuse a saved state that is not of this version, or has other fields.

    Args:
        state: What was saved.
        fields: The names of its fields.

    Raises:
        InvalidInput: If the state is not one of this version with these fields.
    """
    if not isinstance(state, Mapping):
        raise InvalidType(f"state must be a mapping, got {type(state).__name__}")
    if set(state) != set(fields):
        raise InvalidInput(f"state must have the keys {', '.join(fields)}, got {', '.join(sorted(map(str, state)))}")
    if type(state["version"]) is not int or state["version"] != FILTER_STATE_VERSION:
        raise InvalidInput(f"state version must be {FILTER_STATE_VERSION}, got {state['version']!r}")

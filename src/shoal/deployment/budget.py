"""An accountant with the shape of Flower's, for shuffled reports.

Flower's accountant protocol (`compose`, `get_epsilon`, `get_delta`, `would_exceed`, `state_dict`) describes
a release by a noise multiplier and one of three sampling methods, all for a trusted server; none of them is
shuffling. So this class takes shoal's mechanisms as events instead of claiming one of Flower's, and its
state is shoal's. Every answer is an upper bound, for the crowd and adjacency that the mechanisms name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal import _validate
from shoal.accountant import Accountant
from shoal.errors import InvalidInput
from shoal.mechanisms import Mechanism


class BudgetAccountant:
    """An accountant that says beforehand whether one more round would exceed the budget.

    It composes tightly, which holds for rounds whose settings, number and counts of users do not depend on what was
    published. For rounds that are chosen along the way use `shoal.Filter`; where counts of users may depend on it,
    enter the minimum that was promised.

    >>> from shoal import ShuffledCheckIn
    >>> accountant = BudgetAccountant(target_delta=1e-5, max_epsilon=1.0)
    >>> m = ShuffledCheckIn(users=1_000, rate=0.1, sigma=2.0, crowd="identical")
    >>> accountant.compose(m, count=10)
    >>> accountant.num_releases, accountant.get_epsilon(1e-5) < 0.1, accountant.would_exceed(m, count=10**6)
    (10, True, True)
    """

    def __init__(self, *, target_delta: float, max_epsilon: float | None = None) -> None:
        self.target_delta = _validate.delta(target_delta, "target_delta")
        self.max_epsilon = None if max_epsilon is None else _validate.epsilon(max_epsilon, "max_epsilon")
        self._accountant = Accountant()

    @property
    def accountant(self) -> Accountant:
        """A copy of the ledger, whose answers are intervals."""
        return Accountant().load_state_dict(self._accountant.state_dict())

    @property
    def num_releases(self) -> int:
        """The number of rounds."""
        return len(self._accountant)

    def compose(self, event: Mechanism, count: int = 1) -> None:
        """Enter rounds of a mechanism.

        Args:
            event: the mechanism.
            count: the number of rounds.
        """
        self._accountant.compose(event, rounds=count)

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at `delta`, an upper bound."""
        return float(self._accountant.epsilon(delta=delta))

    def get_delta(self, epsilon: float) -> float:
        """Delta at `epsilon`, an upper bound."""
        return float(self._accountant.delta(epsilon=epsilon))

    def would_exceed(self, event: Mechanism, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether epsilon at `target_delta` would be above the limit after more rounds; enters nothing.

        It compares a tight epsilon with the limit, and is no filter: events must not be chosen from what was published.

        Args:
            event: the mechanism of these rounds.
            max_epsilon: the limit; the accountant's by default.
            count: the number of rounds.

        Returns:
            True if they would exceed it.

        Raises:
            InvalidInput: there is no limit.
        """
        limit = self.max_epsilon if max_epsilon is None else _validate.epsilon(max_epsilon, "max_epsilon")
        if limit is None:
            raise InvalidInput("max_epsilon must be given, here or to the accountant")
        projected = self.accountant.compose(event, rounds=count)
        return float(projected.epsilon(delta=self.target_delta)) > limit

    def state_dict(self) -> dict[str, Any]:
        """The ledger as plain data."""
        return self._accountant.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved ledger; a corrupt one changes nothing."""
        self._accountant.load_state_dict(state)

"""Secure sums: users add the noise, and the server sees nothing but the sum of their shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.bounds.central.summed import secure_sum, secure_sum_attacks
from shoal.bounds.ratio import Lognormal
from shoal.bounds.round import Identical, Round
from shoal.errors import InvalidInput
from shoal.mechanisms.base import Mechanism, SamplingScheme
from shoal.mechanisms.parameter import CORRUPT, COUNT, PROBABILITY, USERS, Parameter, check_corrupt, optional
from shoal.records import Model


@dataclass(frozen=True, kw_only=True)
class SecureSum(Mechanism):
    """All users add noise to their vectors, and a secure aggregation shows the server the sum alone.

    Who sends what: each user its vector plus N(0, (C sigma)^2 I), encrypted or cut into shares. Who sees what: the
    server sees the sum and the number of its shares. Who is trusted: the aggregation, to open no smaller sum. The sum
    of h honest shares is one Gaussian report of noise sigma sqrt(h), whatever the other users hold.

    `survivors` is the smallest number of shares that a sum is opened with (all users, if None), so any others may drop
    out, and `corrupt` users add no noise and tell the server what they hold: h is at least `survivors - corrupt`, and
    at least 1, the user itself. Users with another sigma count as corrupt.

    With `rate` below 1 each user takes part on a secret coin of its own (who drops out has not taken part: `rate` is
    the chance that a share arrives): how many came is public, who came is not, and others stand in the place of a user
    who did not (`central.summed`).

    >>> m = SecureSum(users=10_000, sigma=0.05)
    >>> f"{m.epsilon(delta=1e-6):.4f}"
    '[0.8341, 0.8342]'
    >>> m.replace(survivors=8_000, corrupt=1_000).epsilon(delta=1e-6).upper < 1.1
    True
    """

    users: int = USERS.field()
    rate: float = Parameter(
        domain=PROBABILITY,
        words="check-in rate",
        metavar="P",
        help="Probability of checking in.",
        default=1.0,
        is_silent=True,
        example=1.0,
        slider=(1e-4, 1),
    ).field()
    survivors: int | None = Parameter(
        domain=optional(COUNT),
        words="surviving shares",
        metavar="H",
        help="The fewest shares that a sum is opened with; those of all users by default.",
        default=None,
        is_silent=True,
        example=None,
    ).field()
    corrupt: int = CORRUPT.field()

    label: ClassVar[str] = "secure-sum"
    trust: ClassVar[str] = "the secure aggregation is trusted, the server is not"
    protocol: ClassVar[str] = "all users counted add their noise as described"
    sampling: ClassVar[SamplingScheme] = "coin"
    model: ClassVar[Model] = "Federated"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.survivors is not None and self.survivors > self.users:
            raise InvalidInput(f"survivors must be at most users ({self.users}), got {self.survivors}")
        check_corrupt(self.corrupt, self.users)

    @property
    def assumption(self) -> str:
        return "nothing about other users' vectors"

    @property
    def participation(self) -> float:
        return self.rate

    @property
    def _shares_min(self) -> int:
        """The smallest number of honest shares in a sum that holds an honest user's."""
        fewest = self.survivors if self.survivors is not None else self.users if self.rate == 1.0 else 1
        return max(1, fewest - self.corrupt)

    def upper_round(self) -> Round:
        if self.rate == 1.0:
            return Identical(ratio=Lognormal(scale=self.scale * math.sqrt(self._shares_min)), users=1)
        return secure_sum(**self._with_coins())

    def attack_rounds(self) -> tuple[Round, ...]:
        if self.rate == 1.0:
            return (self.upper_round(),)
        return secure_sum_attacks(**self._with_coins())

    def _with_coins(self) -> dict[str, Any]:
        return {
            "sigma": self.sigma,
            "users": self.users - self.corrupt,
            "rate": self.rate,
            "shares_min": self._shares_min,
            "replaced": self.adjacency == "replace",
        }

"""The terms of a task: what nodes and analyst agree on before the first round."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

from shoal import _validate
from shoal.deployment.noise import NOISE_SOURCES, SECURE
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.mechanisms import ShuffledCheckIn

PROTOCOL = "shoal sealed report 2"
SEAL_BYTES = 32 + 16
"""The encapsulated key and the authentication tag."""
TOKEN_BYTES = 16
NUMBER_BYTES = 4
"""Reports hold numbers in single precision."""
ROUND_MAX = 2**31 - 1
DIMENSION_MAX = 16_000_000
"""A report of this many numbers still passes the proxy, which takes objects of 64 MiB: known before anybody trains."""
CROWD_MAX = 10**7
CROWD_NAMES = ("any", "identical")
LEADING_BITS = 6
IMPLAUSIBLE = 1e-9
"""How often the report of an honest node may be refused for its length."""
CLIP_RANGE = (1e-9, 1e9)
_TASK_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def counted_users(users: int) -> int:
    """Rounds a number of users down to its six leading binary digits.

    This is the number that a ledger counts on. Fewer users are never more private, so rounding down is safe, and
    rounds with nearly the same number of users become one mechanism.

    >>> [counted_users(n) for n in (3, 63, 64, 65, 1_000, 1_023)]
    [3, 63, 64, 64, 992, 1008]
    """
    spare = max(users.bit_length() - LEADING_BITS, 0)
    return users >> spare << spare


def checked_round(value: object) -> int:
    """The number of a round; `InvalidInput` if it is none."""
    return _validate.integer("round", value, minimum=1, maximum=ROUND_MAX)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The terms that nodes and analyst agree on; every report is bound to all of them.

    `clip` is the l2 norm to which an update is clipped, `sigma` the noise multiplier (the noise has
    standard deviation `clip * sigma`), `rate` the probability of checking in, `dimension` the number of
    numbers in an update. `minimum` is the smallest crowd: a round with fewer users publishes nothing.
    `corrupt` is the number of enrolled nodes that may work for the shuffler or the analyst: they hide nobody,
    and the ledger does not count them. `epsilon` at `delta`, for the crowd `crowd`, is the most that all rounds
    together may cost. `noise` is `"secure"`, or `"simulation"` for a fast sampler that protects nobody.

    >>> terms = {"minimum": 50, "epsilon": 8.0, "delta": 1e-5}
    >>> task = Task(name="digits", dimension=650, clip=1.0, sigma=2.0, rate=0.5, **terms)
    >>> task.length
    2665
    """

    name: str
    dimension: int
    clip: float
    sigma: float
    rate: float
    minimum: int
    epsilon: float
    delta: float
    crowd: str = "any"
    corrupt: int = 0
    noise: str = SECURE

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _TASK_NAME.fullmatch(self.name):
            raise InvalidInput(
                f"name must be 1 to 64 lower-case letters, digits, dots, dashes or underscores, got {self.name!r}"
            )
        dimension = _validate.integer("dimension", self.dimension, minimum=1, maximum=DIMENSION_MAX)
        clip = _validate.real("clip", self.clip)
        low, high = CLIP_RANGE
        if not low <= clip <= high:
            raise InvalidInput(f"clip must lie between {low:g} and {high:g}, got {clip}")
        corrupt = _validate.integer("corrupt", self.corrupt, minimum=0, maximum=CROWD_MAX - 2)
        checked = {
            "dimension": dimension,
            "clip": clip,
            "sigma": _validate.sigma(self.sigma),
            "rate": _validate.rate(self.rate),
            "corrupt": corrupt,
            "minimum": _validate.integer("minimum", self.minimum, minimum=2 + corrupt, maximum=CROWD_MAX),
            "epsilon": _validate.epsilon(self.epsilon),
            "delta": _validate.delta(self.delta),
            "crowd": _validate.choice("crowd", self.crowd, CROWD_NAMES),
            "noise": _validate.choice("noise", self.noise, tuple(NOISE_SOURCES)),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @property
    def length(self) -> int:
        """The number of bytes of every sealed report."""
        return SEAL_BYTES + 1 + TOKEN_BYTES + NUMBER_BYTES * self.dimension

    @property
    def digest(self) -> bytes:
        """32 bytes that stand for all terms."""
        return hashlib.sha256(self.info(0)).digest()

    @property
    def longest(self) -> float:
        """The l2 norm that an honest report exceeds with probability 1e-9 at most.

        Clipping allows `clip`, and the norm of the noise is `clip * sigma` times a chi variable with
        `dimension` degrees of freedom. A millionth more covers the rounding to single precision.
        """
        from scipy.special import chdtri

        # One honest report in 10^9 is refused; a hostile one can be no longer than the longest of them.
        chi = math.sqrt(float(chdtri(self.dimension, IMPLAUSIBLE)))
        return self.clip * (1.0 + self.sigma * chi) * (1.0 + 1e-6)

    def info(self, round_number: int) -> bytes:
        """What a report of a round is bound to."""
        return json.dumps({"protocol": PROTOCOL, **asdict(self), "round": round_number}, sort_keys=True).encode()

    def mechanism(self, *, users: int) -> ShuffledCheckIn:
        """One round in which `users` nodes tossed their coins, as the ledger enters it."""
        from shoal.mechanisms import Crowd, ShuffledCheckIn  # a node starts for every round and never accounts

        (crowd,) = (name for name in get_args(Crowd) if name == self.crowd)
        # Nodes that work for an adversary hide nobody: they are taken off before the crowd is counted.
        honest = counted_users(users - self.corrupt)
        return ShuffledCheckIn(users=honest, rate=self.rate, sigma=self.sigma, crowd=crowd)

    def rounds(self, at_most: int | None = None) -> int:
        """The number of rounds that the budget allows with the smallest crowd; `at_most` if that is fewer."""
        return _allowed_rounds(self, at_most)


@functools.lru_cache
def _allowed_rounds(task: Task, at_most: int | None) -> int:
    from shoal import calibrate

    smallest = task.mechanism(users=task.minimum)
    if at_most is not None and float(smallest.epsilon(delta=task.delta, rounds=at_most)) <= task.epsilon:
        return at_most
    # One epsilon is quick; the search for the largest number computes many.
    allowed = calibrate.rounds(smallest, epsilon=task.epsilon, delta=task.delta)
    return min(allowed, ROUND_MAX if at_most is None else at_most)

"""One report: what is inside the seal, how it is sealed, and to what it is bound.

A sealed report is HPKE (RFC 9180, base mode; X25519, HKDF-SHA256, ChaCha20-Poly1305) of

    kind (1 byte: 0 dummy, 1 report) | token (16 bytes) | dimension x float32, little-endian

to the analyst's public key. `info` names the protocol, the task with all its terms, and the round, so a
report opens in its own round and task only, and only if node and analyst agree on clipping norm, noise,
check-in rate, smallest crowd and budget: a ledger that says sigma = 2 counts no report with less, and a
report that was made for a crowd of 1,000 does not open in one of 10. The token (`tokens`) shows that the
sender is one of the enrolled, without saying which. A dummy has a token as well and the same length; its
numbers are zero, so that adding them changes nothing. All sealed reports of a task have one length.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shoal import _validate
from shoal.bounds.numeric import FloatArray
from shoal.deployment.noise import SECURE, SOURCES
from shoal.errors import DeploymentError, InvalidInput

if TYPE_CHECKING:
    from shoal.mechanisms import ShuffledCheckIn

PROTOCOL = "shoal sealed report 2"
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
SEAL_BYTES = 32 + 16
"""The encapsulated key and the authentication tag."""
TOKEN_BYTES = 16
DUMMY, REPORT = 0, 1
ROUND_MAX = 2**31 - 1
DIMENSION_MAX = 10**8
CROWD_MAX = 10**7
CROWDS = ("any", "identical")
LEADING_BITS = 6
IMPLAUSIBLE = 1e-9
"""How often the report of an honest node may be refused for its length."""
CLIP_RANGE = (1e-9, 1e9)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NUMBER = np.dtype("<f4")


class RefusedError(DeploymentError, ValueError):
    """A sealed report that cannot be counted; `reason` is one of `REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


REASONS = ("length", "seal", "content", "norm", "token", "duplicate")
"""Wrong length; not openable (tampered with, or of another round, task or key); nonsense inside; numbers that
clipping and noise do not give; a token of nobody who is enrolled; a token that was seen before."""


def counted(users: int) -> int:
    """The number of users that a ledger counts on: rounded down to its six leading binary digits.

    Fewer users are never more private, so rounding down is safe, and rounds with nearly the same number of
    users are then one mechanism.

    >>> [counted(n) for n in (3, 63, 64, 65, 1_000, 1_023)]
    [3, 63, 64, 64, 992, 1008]
    """
    spare = max(users.bit_length() - LEADING_BITS, 0)
    return users >> spare << spare


def round_number(value: object) -> int:
    return _validate.integer("round", value, minimum=1, maximum=ROUND_MAX)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The terms that nodes and analyst agree on before the first round; every report is bound to all of them.

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
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"name must be 1 to 64 lower-case letters, digits, dots, dashes or underscores, got {self.name!r}"
            )
        whole = _validate.integer("dimension", self.dimension, minimum=1, maximum=DIMENSION_MAX)
        norm = _validate.real("clip", self.clip)
        low, high = CLIP_RANGE
        if not low <= norm <= high:
            raise InvalidInput(f"clip must lie between {low:g} and {high:g}, got {norm}")
        checked = {
            "dimension": whole,
            "clip": norm,
            "sigma": _validate.sigma(self.sigma),
            "rate": _validate.rate(self.rate),
            "corrupt": (corrupt := _validate.integer("corrupt", self.corrupt, minimum=0, maximum=CROWD_MAX - 2)),
            "minimum": _validate.integer("minimum", self.minimum, minimum=2 + corrupt, maximum=CROWD_MAX),
            "epsilon": _validate.epsilon(self.epsilon),
            "delta": _validate.delta(self.delta),
            "crowd": _validate.choice("crowd", self.crowd, CROWDS),
            "noise": _validate.choice("noise", self.noise, tuple(SOURCES)),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @property
    def length(self) -> int:
        """Bytes of every sealed report."""
        return SEAL_BYTES + 1 + TOKEN_BYTES + _NUMBER.itemsize * self.dimension

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

    def info(self, number: int) -> bytes:
        """What a report of round `number` is bound to."""
        return json.dumps({"protocol": PROTOCOL, **asdict(self), "round": number}, sort_keys=True).encode()

    def mechanism(self, *, users: int) -> ShuffledCheckIn:
        """One round in which `users` nodes tossed their coins, as the ledger enters it."""
        from shoal.mechanisms import Crowd, ShuffledCheckIn  # a node starts for every round and never accounts

        (crowd,) = (c for c in get_args(Crowd) if c == self.crowd)
        # Nodes that work for an adversary hide nobody: they are taken off before the crowd is counted.
        honest = counted(users - self.corrupt)
        return ShuffledCheckIn(users=honest, rate=self.rate, sigma=self.sigma, crowd=crowd)

    def rounds(self, at_most: int | None = None) -> int:
        """How many rounds the budget allows if each has no more than the smallest crowd; `at_most` if that is fewer."""
        return _rounds(self, at_most)


@functools.lru_cache
def _rounds(task: Task, at_most: int | None) -> int:
    from shoal import calibrate

    worst = task.mechanism(users=task.minimum)
    if at_most is not None and float(worst.epsilon(delta=task.delta, rounds=at_most)) <= task.epsilon:
        return at_most
    # One epsilon is quick; the search for the largest number asks for many.
    found = calibrate.rounds(worst, epsilon=task.epsilon, delta=task.delta)
    return min(found, ROUND_MAX if at_most is None else at_most)


def opening(task: Task, number: int, model: npt.NDArray[np.floating[Any]], key: X25519PublicKey) -> bytes:
    """What the analyst signs to open a round: the task, the round, the key to seal to and the model to start from.

    With the key in it a node that knows the right signer cannot be made to seal to anybody else.
    """
    content = hashlib.sha256(model.astype(_NUMBER).tobytes()).digest()
    return b"shoal round 2" + task.digest + number.to_bytes(8, "big") + key.public_bytes_raw() + content


def seal(
    values: npt.NDArray[np.floating[Any]] | None, *, task: Task, number: int, key: X25519PublicKey, token: bytes
) -> bytes:
    """The sealed report of round `number`; None seals a dummy."""
    vector = np.zeros(task.dimension, _NUMBER) if values is None else np.asarray(values).astype(_NUMBER)
    if vector.shape != (task.dimension,):
        raise InvalidInput(f"a report must have {task.dimension} numbers, got {vector.shape}")
    if len(token) != TOKEN_BYTES:
        raise InvalidInput(f"token must have {TOKEN_BYTES} bytes, got {len(token)}")
    # A dummy is as long as a report and sealed in the same way: only the analyst can tell them apart.
    kind = DUMMY if values is None else REPORT
    return SUITE.encrypt(bytes([kind]) + token + vector.tobytes(), key, info=task.info(number))


def unseal(sealed: bytes | memoryview, *, task: Task, number: int, key: X25519PrivateKey) -> tuple[bytes, bytes]:
    """Token and content of a report; `RefusedError` if it is not one of this task and round."""
    if len(sealed) != task.length:
        raise RefusedError("length")
    try:
        inside = SUITE.decrypt(sealed, key, info=task.info(number))
    except InvalidTag:
        raise RefusedError("seal") from None
    return inside[1 : 1 + TOKEN_BYTES], inside[:1] + inside[1 + TOKEN_BYTES :]


def numbers(content: bytes, *, longest: float) -> tuple[bool, FloatArray]:
    """Whether a content is a report's, and its numbers; `RefusedError` if clipping and noise do not give them.

    A dummy takes the same steps as a report: who can time the analyst must not learn which of both it has opened.
    """
    vector = np.frombuffer(content, _NUMBER, offset=1).astype(np.float64)
    norm = float(np.linalg.norm(vector))
    if content[0] not in (DUMMY, REPORT) or not math.isfinite(norm):
        raise RefusedError("content")
    if norm > longest:
        raise RefusedError("norm")
    return content[0] == REPORT, vector

"""One report: what is inside the seal, how it is sealed, and to what it is bound.

A sealed report is HPKE (RFC 9180, base mode; X25519, HKDF-SHA256, ChaCha20-Poly1305) of

    kind (1 byte: 0 dummy, 1 report) | report id (16 random bytes) | dimension x float32, little-endian

to the analyst's public key. `info` names the protocol, the task with all its parameters, and the round,
so a report opens in its own round and task only, and only if node and analyst agree on clipping norm,
noise and check-in rate: a ledger that says sigma = 2 counts no report with less. A dummy has the same
length; its numbers are zero and never leave the seal. All sealed reports of a task have one length.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shoal import _validate
from shoal._validate import FloatArray

if TYPE_CHECKING:
    from shoal.mechanisms import Crowd, ShuffledCheckIn

PROTOCOL = "shoal sealed report 1"
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
SEAL_BYTES = 32 + 16
"""The encapsulated key and the authentication tag."""
ID_BYTES = 16
DUMMY, REPORT = 0, 1
ROUND_MAX = 2**31 - 1
DIMENSION_MAX = 10**8
CLIP_RANGE = (1e-9, 1e9)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NUMBER = np.dtype("<f4")


class RefusedError(ValueError):
    """A sealed report that cannot be counted; `reason` is one of `REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


REASONS = ("length", "seal", "content", "duplicate")
"""Wrong length; not openable (tampered with, or of another round, task or key); nonsense inside; seen before."""


def round_number(value: object) -> int:
    return _validate.integer("round", value, minimum=1, maximum=ROUND_MAX)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What nodes and analyst agree on before the first round.

    `clip` is the l2 norm to which an update is clipped, `sigma` the noise multiplier (the noise has
    standard deviation `clip * sigma`), `rate` the probability of checking in, `dimension` the number of
    numbers in an update.

    >>> task = Task(name="digits", dimension=650, clip=1.0, sigma=2.0, rate=0.5)
    >>> task.length
    2665
    """

    name: str
    dimension: int
    clip: float
    sigma: float
    rate: float

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name must be 1 to 64 lower-case letters, digits, dots, dashes or underscores, got {self.name!r}"
            )
        whole = _validate.integer("dimension", self.dimension, minimum=1, maximum=DIMENSION_MAX)
        norm = _validate.real("clip", self.clip)
        low, high = CLIP_RANGE
        if not low <= norm <= high:
            raise ValueError(f"clip must lie between {low:g} and {high:g}, got {norm}")
        checked = {
            "dimension": whole,
            "clip": norm,
            "sigma": _validate.sigma(self.sigma),
            "rate": _validate.rate(self.rate),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @property
    def length(self) -> int:
        """Bytes of every sealed report."""
        return SEAL_BYTES + 1 + ID_BYTES + _NUMBER.itemsize * self.dimension

    def info(self, number: int) -> bytes:
        """What a report of round `number` is bound to."""
        return json.dumps({"protocol": PROTOCOL, **asdict(self), "round": number}, sort_keys=True).encode()

    def mechanism(self, *, users: int, crowd: Crowd) -> ShuffledCheckIn:
        """One round in which `users` nodes tossed their coins."""
        from shoal.mechanisms import ShuffledCheckIn  # a node starts for every round and never accounts

        return ShuffledCheckIn(users=users, rate=self.rate, sigma=self.sigma, crowd=crowd)


def seal(values: npt.NDArray[np.floating] | None, *, task: Task, number: int, key: X25519PublicKey) -> bytes:
    """The sealed report of round `number`; None seals a dummy."""
    vector = np.zeros(task.dimension, _NUMBER) if values is None else np.asarray(values).astype(_NUMBER)
    if vector.shape != (task.dimension,):
        raise ValueError(f"a report must have {task.dimension} numbers, got {vector.shape}")
    kind = DUMMY if values is None else REPORT
    inside = bytes([kind]) + secrets.token_bytes(ID_BYTES) + vector.tobytes()
    return SUITE.encrypt(inside, key, info=task.info(number))


def unseal(
    sealed: bytes | memoryview, *, task: Task, number: int, key: X25519PrivateKey
) -> tuple[bytes, FloatArray | None]:
    """Report id and numbers (None for a dummy); `RefusedError` if it is not a report of this task and round."""
    if len(sealed) != task.length:
        raise RefusedError("length")
    try:
        inside = SUITE.decrypt(sealed, key, info=task.info(number))
    except InvalidTag:
        raise RefusedError("seal") from None
    kind, identity = inside[0], inside[1 : 1 + ID_BYTES]
    if kind == DUMMY:
        return identity, None
    vector = np.frombuffer(inside, _NUMBER, offset=1 + ID_BYTES)
    if kind != REPORT or not np.isfinite(vector).all():
        raise RefusedError("content")
    return identity, vector.astype(np.float64)

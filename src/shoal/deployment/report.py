"""One report: what is inside the seal, how it is sealed, and to what it is bound.

A sealed report is HPKE (RFC 9180, base mode; X25519, HKDF-SHA256, ChaCha20-Poly1305) of

    kind (1 byte: 0 dummy, 1 report) | token (16 bytes) | dimension x float32, little-endian

to the analyst's public key. `info` names the protocol, the task with all its terms, and the round, so a
report opens in its own round and task only, and only if node and analyst agree on clipping norm, noise,
check-in rate, smallest crowd and budget: a ledger that says sigma = 2 counts no report with less, and a
report that was made for a crowd of 1,000 does not open in one of 10. The token (`tokens`) shows that the
sender is enrolled, without saying which node it is. A dummy has a token as well and the same length; its
numbers are zero, so that adding them changes nothing. All sealed reports of a task have one length.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shoal.bounds.numeric import FloatArray
from shoal.deployment.errors import RefusedReportError
from shoal.deployment.task import TOKEN_BYTES, Task
from shoal.errors import InvalidInput

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
DUMMY, REPORT = 0, 1
REFUSAL_REASONS = ("length", "seal", "content", "norm", "token", "duplicate")
"""Why a report is not counted, or not added.

Its length is wrong; it does not open (it was tampered with, or belongs to another round, task or key); its content is
nonsense; clipping and noise do not give such numbers; its token is nobody's; its token was seen before.
"""
_SINGLE = np.dtype("<f4")


def opening_terms(
    fingerprint: bytes, round_number: int, model: npt.NDArray[np.floating[Any]], key: X25519PublicKey
) -> bytes:
    """What the analyst signs to open a round.

    The fingerprint names the task with all its terms, the signer and the sealing keys of all rounds, so that all nodes
    that answer one opening were given the same settings.

    Args:
        fingerprint: that of the nodes' settings.
        round_number: the round.
        model: the numbers that the round starts from.
        key: the analyst's key that reports of this round are sealed to.

    Returns:
        The bytes under the analyst's signature.
    """
    model_digest = hashlib.sha256(model.astype(_SINGLE).tobytes()).digest()
    return b"shoal round 3" + fingerprint + round_number.to_bytes(8, "big") + key.public_bytes_raw() + model_digest


def seal(
    values: npt.NDArray[np.floating[Any]] | None,
    *,
    task: Task,
    round_number: int,
    key: X25519PublicKey,
    token: bytes,
) -> bytes:
    """A sealed report, or a sealed dummy.

    Args:
        values: the noisy update; None for a dummy.
        task: the task to which the report is bound.
        round_number: the round to which it is bound.
        key: the analyst's public key of the round.
        token: the node's token of the round.

    Returns:
        `task.length` bytes.

    Raises:
        InvalidInput: the update or the token has another length.
    """
    vector = np.zeros(task.dimension, _SINGLE) if values is None else np.asarray(values).astype(_SINGLE)
    if vector.shape != (task.dimension,):
        raise InvalidInput(f"a report must have {task.dimension} numbers, got {vector.shape}")
    if len(token) != TOKEN_BYTES:
        raise InvalidInput(f"token must have {TOKEN_BYTES} bytes, got {len(token)}")
    # A dummy is as long as a report and sealed in the same way: only the analyst can tell them apart.
    kind = DUMMY if values is None else REPORT
    return SUITE.encrypt(bytes([kind]) + token + vector.tobytes(), key, info=task.info(round_number))


def unseal(sealed: bytes | memoryview, *, task: Task, round_number: int, key: X25519PrivateKey) -> tuple[bytes, bytes]:
    """Token and content of a sealed report.

    Args:
        sealed: the report as it came.
        task: the task that it must be bound to.
        round_number: the round that it must be bound to.
        key: the analyst's private key of the round.

    Returns:
        The token, and the content: the kind and the numbers.

    Raises:
        RefusedReportError: it is no report of this task and round.
    """
    if len(sealed) != task.length:
        raise RefusedReportError("length")
    try:
        inside = SUITE.decrypt(sealed, key, info=task.info(round_number))
    except InvalidTag:
        raise RefusedReportError("seal") from None
    return inside[1 : 1 + TOKEN_BYTES], inside[:1] + inside[1 + TOKEN_BYTES :]


def report_values(content: bytes, *, longest: float) -> tuple[bool, FloatArray]:
    """Whether a content is a report's, and its numbers.

    A dummy takes the same steps as a report: who can time the analyst must not learn which of the two it has opened.

    Args:
        content: what `unseal` returned.
        longest: the norm that is still plausible.

    Returns:
        True for a report, False for a dummy; and the numbers.

    Raises:
        RefusedReportError: clipping and noise do not give such numbers.
    """
    vector = np.frombuffer(content, _SINGLE, offset=1).astype(np.float64)
    norm = float(np.linalg.norm(vector))
    if content[0] not in (DUMMY, REPORT) or not math.isfinite(norm):
        raise RefusedReportError("content")
    if norm > longest:
        raise RefusedReportError("norm")
    return content[0] == REPORT, vector

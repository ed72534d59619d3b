"""A node's own file: what its owner decides."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from shoal import _validate
from shoal.deployment import files, keys
from shoal.deployment.task import ROUND_MAX, Task
from shoal.errors import DataError, InvalidInput

REFUSALS = {
    101: "the message is not a training message of this protocol",
    102: "the node has no valid settings",
    103: "the node has no valid state",
    104: "the analyst has not signed this round with this model and the node's key",
    105: "the model has another size",
    106: "the round was before the last one that the node answered",
    107: "the node has answered all rounds that its epsilon allows",
    108: "the node failed in another way",
    109: "the round was opened for other settings than the node's",
}
"""All that a node ever says about why it does not report. None of it depends on data; the node's own log says more."""
NO_TRAINING, NO_SETTINGS, NO_STATE, UNSIGNED, OTHER_MODEL, EARLIER, SPENT, OTHER_FAILURE, OTHER_SETTINGS = REFUSALS


def settings_digest(task: Task, *, epoch: int, sealing: tuple[X25519PublicKey, ...]) -> bytes:
    """32 bytes that stand for terms and sealing keys.

    Args:
        task: the task, with all its terms.
        epoch: the number of rounds that share a sealing key.
        sealing: the analyst's sealing keys, one for each epoch.

    Returns:
        The digest; its parts have fixed lengths, so that no two settings have the same bytes.
    """
    head = b"shoal settings 1" + task.digest + epoch.to_bytes(8, "big")
    return hashlib.sha256(b"".join([head, *(key.public_bytes_raw() for key in sealing)])).digest()


def settings_fingerprint(signer: Ed25519PublicKey, digest: bytes) -> bytes:
    """32 bytes that stand for everything that nodes and analyst agree on.

    Who knows signer and digest, as the shuffler does, can tell that the fingerprint is of settings with this signer.

    Args:
        signer: the analyst's signing key.
        digest: that of terms and sealing keys.

    Returns:
        The fingerprint.
    """
    return hashlib.sha256(b"shoal fingerprint 1" + signer.public_bytes_raw() + digest).digest()


def endorsement_terms(fingerprint: bytes) -> bytes:
    """What the analyst signs to hand out settings: two such signatures show that nodes were given different ones."""
    return b"shoal endorsement 1" + fingerprint


@dataclass(frozen=True, kw_only=True)
class Node:
    """The settings of a node, which its owner decides: the task, the analyst's keys, the number of rounds at most.

    `keys` are the analyst's public keys, each for `epoch` rounds in turn; `signer` is the key by which it opens rounds,
    and `endorsement` its signature under all of this. `secret` names the file that the registrar made for this node,
    `state` the folder in which the node remembers what it has answered (in a file: both relative to the file's own
    folder). A reply leaves `pace` seconds after its message came, if training takes no longer: then its time says
    nothing at all. A training that is not over after `limit` seconds counts as the zero update.
    """

    task: Task
    keys: tuple[X25519PublicKey, ...]
    epoch: int
    signer: Ed25519PublicKey
    endorsement: bytes
    rounds: int
    secret: Path
    state: Path
    pace: float = 0.0
    limit: float = 3000.0

    def __post_init__(self) -> None:
        rounds = _validate.integer("rounds", self.rounds, minimum=1, maximum=ROUND_MAX)
        epoch = _validate.integer("epoch", self.epoch, minimum=1, maximum=ROUND_MAX)
        pace = _validate.real("pace", self.pace)
        if pace < 0:
            raise InvalidInput(f"pace must be at least 0 seconds, got {pace}")
        limit = _validate.real("limit", self.limit)
        if limit < 0:
            raise InvalidInput(f"limit must be at least 0 seconds (0 for no limit), got {limit}")
        if len(self.keys) * epoch < rounds:
            raise InvalidInput(f"keys must suffice for {rounds} rounds, {epoch} rounds each, got {len(self.keys)} keys")
        for key in self.keys:
            keys.check_sealing(key)
        keys.check_signing(self.signer)
        checked = {
            "rounds": rounds,
            "epoch": epoch,
            "pace": pace,
            "limit": limit,
            "secret": Path(self.secret),
            "state": Path(self.state),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)
        try:
            self.signer.verify(self.endorsement, endorsement_terms(self.fingerprint))
        except InvalidSignature:
            raise InvalidInput(
                "endorsement must be the signature of signer under keys, epoch and task: these are not as the analyst "
                "wrote them"
            ) from None

    @classmethod
    def read(cls, path: str | Path) -> Node:
        """The settings in a node's TOML file; `DataError` if it holds none."""
        data = files.read_toml(path)
        task = data.pop("task", None)
        needed = {"keys", "epoch", "signer", "endorsement", "rounds", "secret", "state"}
        if not isinstance(task, Mapping) or not needed <= set(data) <= needed | {"pace", "limit"}:
            raise DataError(
                f"{path} must have {', '.join(sorted(needed))} and a table [task], "
                f"got {', '.join(sorted(data)) or 'nothing'}"
            )
        fields = set(Task.__dataclass_fields__)
        if set(task) != fields:
            raise DataError(f"[task] of {path} must have {', '.join(sorted(fields))}, got {', '.join(sorted(task))}")
        # Paths in the file are as seen from the file, not from where a SuperNode happens to run.
        home = Path(path).resolve().parent
        texts = ("secret", "state", "signer", "endorsement")
        if any(not isinstance(data[name], str) for name in texts) or not isinstance(data["keys"], list):
            raise DataError(f"{path} must have texts for secret, state, signer and endorsement, and a list of keys")
        try:
            endorsement = base64.b64decode(data.pop("endorsement"), validate=True)
        except ValueError:
            raise DataError(f"{path} must have an endorsement in base64, as the analyst wrote it") from None
        return cls(
            task=Task(**task),
            keys=tuple(keys.sealing_key(text) for text in data.pop("keys")),
            signer=keys.signing_key(data.pop("signer")),
            endorsement=endorsement,
            secret=home / data.pop("secret"),
            state=home / data.pop("state"),
            **data,
        )

    def to_toml(self) -> str:
        """The file that `read` understands."""
        head = {
            "keys": [keys.public_text(k) for k in self.keys],
            "epoch": self.epoch,
            "signer": keys.public_text(self.signer),
            "endorsement": base64.b64encode(self.endorsement).decode(),
            "rounds": self.rounds,
            "secret": str(self.secret),
            "state": str(self.state),
            "pace": self.pace,
            "limit": self.limit,
        }
        lines = [f"{k} = {_toml(v)}" for k, v in head.items()]
        return "\n".join([*lines, "", "[task]", *(f"{k} = {_toml(v)}" for k, v in asdict(self.task).items()), ""])

    def key(self, round_number: int) -> X25519PublicKey:
        """The analyst's key of a round."""
        return self.keys[(round_number - 1) // self.epoch]

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """Stands for task, signing key and all sealing keys: what two owners compare to know that theirs are the same.

        Not for the number of rounds: the owner may lower it without enrolling anew.
        """
        digest = settings_digest(self.task, epoch=self.epoch, sealing=self.keys)
        return settings_fingerprint(self.signer, digest)

    def state_path(self, member: int | str | None) -> Path:
        """The file of a node's state; simulated nodes share a machine, so each has its own."""
        return self.state / f"{self.task.name}{'' if member is None else f'-{member}'}.state"


def _toml(value: Any) -> str:
    return json.dumps(value)  # numbers, strings and lists of JSON are those of TOML

"""A node's own file: what its owner decides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
}
"""All that a node ever says about why it does not report. None of it depends on data; the node's own log says more."""
NO_TRAINING, NO_SETTINGS, NO_STATE, UNSIGNED, OTHER_MODEL, EARLIER, SPENT, OTHER_FAILURE = REFUSALS


@dataclass(frozen=True, kw_only=True)
class Node:
    """The settings of a node, which its owner decides: the task, the analyst's keys, the number of rounds at most.

    `keys` are the analyst's public keys, each for `epoch` rounds in turn; `signer` is the key by which it
    opens rounds. `secret` names the file that the registrar made for this node, `state` the folder in which
    the node remembers what it has answered (in a file: both relative to the file's own folder). A reply leaves
    `pace` seconds after its message came, if training takes no longer: then its time says nothing at all.
    """

    task: Task
    keys: tuple[X25519PublicKey, ...]
    epoch: int
    signer: Ed25519PublicKey
    rounds: int
    secret: Path
    state: Path
    pace: float = 0.0

    def __post_init__(self) -> None:
        rounds = _validate.integer("rounds", self.rounds, minimum=1, maximum=ROUND_MAX)
        epoch = _validate.integer("epoch", self.epoch, minimum=1, maximum=ROUND_MAX)
        pace = _validate.real("pace", self.pace)
        if pace < 0:
            raise InvalidInput(f"pace must be at least 0 seconds, got {pace}")
        if len(self.keys) * epoch < rounds:
            raise InvalidInput(f"keys must suffice for {rounds} rounds, {epoch} rounds each, got {len(self.keys)} keys")
        checked = {
            "rounds": rounds,
            "epoch": epoch,
            "pace": pace,
            "secret": Path(self.secret),
            "state": Path(self.state),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @classmethod
    def read(cls, path: str | Path) -> Node:
        """The settings in a node's TOML file; `DataError` if it holds none."""
        data = files.read_toml(path)
        task = data.pop("task", None)
        needed = {"keys", "epoch", "signer", "rounds", "secret", "state"}
        if not isinstance(task, Mapping) or not needed <= set(data) <= needed | {"pace"}:
            raise DataError(
                f"{path} must have {', '.join(sorted(needed))} and a table [task], "
                f"got {', '.join(sorted(data)) or 'nothing'}"
            )
        fields = set(Task.__dataclass_fields__)
        if set(task) != fields:
            raise DataError(f"[task] of {path} must have {', '.join(sorted(fields))}, got {', '.join(sorted(task))}")
        # Paths in the file are as seen from the file, not from where a SuperNode happens to run.
        home = Path(path).resolve().parent
        no_texts = {name for name in ("secret", "state", "signer") if not isinstance(data[name], str)}
        if no_texts or not isinstance(data["keys"], list):
            raise DataError(f"{path} must have texts for secret, state and signer, and a list of keys")
        return cls(
            task=Task(**task),
            keys=tuple(keys.sealing_key(text) for text in data.pop("keys")),
            signer=keys.signing_key(data.pop("signer")),
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
            "rounds": self.rounds,
            "secret": str(self.secret),
            "state": str(self.state),
            "pace": self.pace,
        }
        lines = [f"{k} = {_toml(v)}" for k, v in head.items()]
        return "\n".join([*lines, "", "[task]", *(f"{k} = {_toml(v)}" for k, v in asdict(self.task).items()), ""])

    def key(self, round_number: int) -> X25519PublicKey:
        """The analyst's key of a round."""
        return self.keys[(round_number - 1) // self.epoch]

    @property
    def label(self) -> str:
        """Stands for the settings that a state belongs to."""
        # Not the number of rounds: the owner may lower it without enrolling anew.
        parts = [self.task.digest, str(self.epoch).encode(), *(keys.public_text(k).encode() for k in self.keys)]
        return hashlib.sha256(b"|".join([*parts, keys.public_text(self.signer).encode()])).hexdigest()

    def state_path(self, member: int | str | None) -> Path:
        """The file of a node's state; simulated nodes share a machine, so each has its own."""
        return self.state / f"{self.task.name}{'' if member is None else f'-{member}'}.state"


def _toml(value: Any) -> str:
    return json.dumps(value)  # numbers, strings and lists of JSON are those of TOML

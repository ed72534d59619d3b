"""A node's own file and its state: what its owner decides, and what it must not forget."""

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
from shoal.deployment import files, keys, tokens
from shoal.deployment.report import ROUND_MAX, Task
from shoal.errors import DeploymentError, InvalidInput

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
MESSAGE, SETTINGS, STATE, UNSIGNED, MODEL, EARLIER, SPENT, OTHER = REFUSALS


class NodeError(DeploymentError, ValueError):
    """Why a node does not report: a code of `REFUSALS` for the server, and a sentence for the node's own log."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a node's owner decides: the task with all its terms, the analyst's keys, how many rounds at most.

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
        whole = _validate.integer("rounds", self.rounds, minimum=1, maximum=ROUND_MAX)
        epoch = _validate.integer("epoch", self.epoch, minimum=1, maximum=ROUND_MAX)
        pace = _validate.real("pace", self.pace)
        if pace < 0:
            raise InvalidInput(f"pace must be at least 0 seconds, got {pace}")
        if len(self.keys) * epoch < whole:
            raise InvalidInput(f"keys must reach for {whole} rounds of {epoch} each, got {len(self.keys)}")
        checked = {
            "rounds": whole,
            "epoch": epoch,
            "pace": pace,
            "secret": Path(self.secret),
            "state": Path(self.state),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @classmethod
    def read(cls, path: str | Path) -> Node:
        """The settings in a node's TOML file."""
        data = files.table(path)
        task = data.pop("task", None)
        needed = {"keys", "epoch", "signer", "rounds", "secret", "state"}
        if not isinstance(task, Mapping) or not needed <= set(data) <= needed | {"pace"}:
            raise InvalidInput(
                f"{path} must have {', '.join(sorted(needed))} and a table [task], "
                f"got {', '.join(sorted(data)) or 'nothing'}"
            )
        fields = set(Task.__dataclass_fields__)
        if set(task) != fields:
            raise InvalidInput(f"[task] of {path} must have {', '.join(sorted(fields))}, got {', '.join(sorted(task))}")
        # Paths in the file are as seen from the file, not from where a SuperNode happens to run.
        home = Path(path).resolve().parent
        wrong = {n for n in ("secret", "state", "signer") if not isinstance(data[n], str)}
        if wrong or not isinstance(data["keys"], list):
            raise InvalidInput(f"{path} must have texts for secret, state and signer, and a list of keys")
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

    def key(self, number: int) -> X25519PublicKey:
        """The analyst's key of a round."""
        return self.keys[(number - 1) // self.epoch]

    @property
    def label(self) -> str:
        """Stands for the settings that a state belongs to."""
        # Not the number of rounds: the owner may lower it without enrolling anew.
        parts = [self.task.digest, str(self.epoch).encode(), *(keys.public_text(k).encode() for k in self.keys)]
        return hashlib.sha256(b"|".join([*parts, keys.public_text(self.signer).encode()])).hexdigest()

    def memory(self, member: int | str | None) -> Path:
        """Where a node's state is kept; simulated nodes share a machine, so each has its own."""
        return self.state / f"{self.task.name}{'' if member is None else f'-{member}'}.state"


def _toml(value: Any) -> str:
    return json.dumps(value)  # numbers, strings and lists of JSON are those of TOML


@dataclass(frozen=True, kw_only=True)
class State:
    """What a node must not forget: its secret, how many rounds it may answer, the last one and its answer."""

    label: str
    secret: bytes
    rounds: int
    last: int = 0
    answer: bytes = b""

    def write(self, path: Path) -> None:
        head = {"label": self.label, "secret": self.secret.hex(), "rounds": self.rounds, "last": self.last}
        files.replace_summed(path, [json.dumps(head).encode() + b"\n", self.answer])

    @classmethod
    def read(cls, path: Path, node: Node) -> State:
        if not path.exists():
            raise NodeError(
                STATE,
                f"{path} does not exist: run 'shoal flower join' once; if the state was lost, this node must be "
                "enrolled anew, because nobody can tell which rounds it has answered",
            )
        if not files.whole(path):
            raise NodeError(STATE, f"{path} is damaged: this node must be enrolled anew, or restored to its last state")
        line, _, answer = path.read_bytes()[: -files.SUM_BYTES].partition(b"\n")
        head = json.loads(line)
        if head["label"] != node.label:
            raise NodeError(STATE, f"{path} is of other settings: a task whose terms change needs a new name or folder")
        return cls(**{**head, "secret": bytes.fromhex(head["secret"])}, answer=answer)


def join(node: Node, *, member: int | str | None = None, source: Path | None = None) -> State:
    """Make a node's state, once: derive the number of rounds from its own epsilon, and take in its secret.

    The file with the secret is removed: from then on the state is the only place where it is.
    """
    path, given = node.memory(member), node.secret if source is None else source
    if path.exists():
        if given.exists() and State.read(path, node).secret == tokens.read_secret(given):
            _forget(given)  # a crash came between the two
        raise InvalidInput(f"{path} exists: this node has joined already")
    secret = tokens.read_secret(given)
    # Derived from the node's own budget, never taken from the analyst: a node trusts nobody with its epsilon.
    state = State(label=node.label, secret=secret, rounds=node.task.rounds(node.rounds))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # In this order: a crash in between leaves the secret twice, never nowhere.
    state.write(path)
    _forget(given)
    return state


def _forget(path: Path) -> None:
    path.unlink()
    files.sync_folder(path.parent)

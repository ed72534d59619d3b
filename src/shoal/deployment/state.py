"""A node's state: what it must not forget."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.deployment import files, tokens
from shoal.deployment.errors import NodeError
from shoal.deployment.node import NO_STATE, Node
from shoal.errors import DataError


@dataclass(frozen=True, kw_only=True)
class State:
    """The node's secret of the round after the last one, the number of rounds that it may answer, its last answer."""

    label: str
    secret: bytes
    rounds: int
    last: int = 0
    answer: bytes = b""

    def secret_of(self, round_number: int) -> bytes:
        """The node's secret of a round after the last one."""
        return tokens.later_secret(self.secret, rounds=round_number - self.last - 1)

    def answered(self, round_number: int, answer: bytes) -> State:
        """The state after a round, without the secrets of this round and those before."""
        secret = self.secret_of(round_number + 1)
        return replace(self, secret=secret, last=round_number, answer=answer)

    def write(self, path: Path) -> None:
        """Write the state so that a crash leaves the old one or the new one."""
        head = {"label": self.label, "secret": self.secret.hex(), "rounds": self.rounds, "last": self.last}
        files.replace_summed(path, [json.dumps(head).encode() + b"\n", self.answer])

    @classmethod
    def read(cls, path: Path, node: Node) -> State:
        """The state in a file.

        Args:
            path: the file.
            node: the settings that it must belong to.

        Returns:
            The state.

        Raises:
            NodeError: it is missing, damaged, or belongs to other settings.
        """
        if not path.exists():
            raise NodeError(
                NO_STATE,
                f"{path} does not exist: run 'shoal flower join' once; if the state was lost, this node must be "
                "enrolled anew, because nobody can tell which rounds it has answered",
            )
        if not files.is_whole(path):
            raise NodeError(
                NO_STATE, f"{path} is damaged: this node must be enrolled anew, or restored to its last state"
            )
        line, _, answer = path.read_bytes()[: -files.SUM_BYTES].partition(b"\n")
        head = json.loads(line)
        if head["label"] != node.fingerprint.hex():
            raise NodeError(
                NO_STATE, f"{path} belongs to other settings: a task whose terms change needs a new name or folder"
            )
        return cls(**{**head, "secret": bytes.fromhex(head["secret"])}, answer=answer)


def join_task(node: Node, *, member: int | str | None = None, source: Path | None = None) -> State:
    """Make a node's state: derive its number of rounds from its own epsilon, and take in its secret.

    The file with the secret is removed: from then on the state is the only place where it is.

    Args:
        node: the node's settings.
        member: which of the nodes it is, in a simulation.
        source: the file with the secret; by default the one that the settings name.

    Returns:
        The state, which is on the disk.

    Raises:
        DataError: the node has joined already, or there is no secret.
    """
    path = node.state_path(member)
    secret_path = node.secret if source is None else source
    if path.exists():
        if secret_path.exists():
            state = State.read(path, node)
            if state.secret == tokens.later_secret(tokens.read_secret(secret_path), rounds=state.last):
                _forget(secret_path)  # a crash came between the two
        raise DataError(f"{path} exists: this node has joined already")
    secret = tokens.read_secret(secret_path)
    # Derived from the node's own budget, never taken from the analyst: a node trusts nobody with its epsilon.
    state = State(label=node.fingerprint.hex(), secret=secret, rounds=node.task.rounds(node.rounds))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # In this order: a crash in between leaves the secret twice, never nowhere.
    state.write(path)
    _forget(secret_path)
    return state


def _forget(path: Path) -> None:
    path.unlink()
    files.sync_folder(path.parent)

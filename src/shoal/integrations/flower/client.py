"""The node's side: a Flower mod that turns whatever an app trains into one sealed report a round.

    app = ClientApp(mods=[sealed_reports])

The app trains as usual and returns its new arrays; the mod takes the difference to the arrays that were
sent, clips it, adds noise and seals it, and drops everything else that the app returned. A node whose coin
comes up tails does all the same work and then seals a dummy: neither the reply's length nor the time it
takes (which Flower reports to the SuperLink) depends on the coin. A training that fails counts as the zero
update, and only the node's own log says so: an error message would tell the server something about the data.

Everything that privacy depends on comes from the node's own file (`Node`), never from the server. Each
round is answered once: the sealed report is written down before it is sent, and whoever asks for the same
round again gets the same bytes, so that asking twice does not yield two noisy copies of one update.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomllib
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from shoal import _validate
from shoal._validate import FloatArray
from shoal.integrations.flower import files, keys
from shoal.integrations.flower.noise import SECURE, SIMULATION, SOURCES, clipped
from shoal.integrations.flower.report import Task, round_number, seal

LOG = logging.getLogger("flwr")
"""Flower's own log: on a node it stays on the node."""
App = Callable[[Message, Context], Message]

NODE_CONFIG = "shoal"
"""Key of the SuperNode's `--node-config` that names the node's file."""
NODE_FILE = "SHOAL_NODE"
"""Environment variable with the same meaning, for Flower's simulation, which has no node configuration."""
ARRAYS, CONFIG, SEALED = "arrays", "config", "report"
"""Records of a message: model and round on the way out, the sealed report on the way back."""
COIN_BITS = 128
"""Enough for a coin whose probability is exactly `rate`, for every rate that a `Task` may have."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a node's owner decides: the task with its noise, the analyst's key, how many rounds at most.

    `state` is a folder in which the node remembers the last round that it answered (in a file: relative to
    the file's own folder, so that it does not depend on where a node is started). `noise` is
    `"secure"`, or `"simulation"` for a fast sampler that protects nobody.
    """

    task: Task
    key: X25519PublicKey
    rounds: int
    state: Path
    noise: str = SECURE

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", _validate.rounds(self.rounds))
        object.__setattr__(self, "state", Path(self.state))
        _validate.choice("noise", self.noise, tuple(SOURCES))

    @classmethod
    def read(cls, path: str | Path) -> Node:
        """The settings in a node's TOML file."""
        data = tomllib.loads(Path(path).read_text())
        task = data.pop("task", None)
        known = {"key", "rounds", "state", "noise"}
        if not isinstance(task, Mapping) or not known - {"noise"} <= set(data) <= known:
            raise ValueError(
                f"{path} must have key, rounds, state and a table [task], got {', '.join(sorted(data)) or 'nothing'}"
            )
        fields = set(Task.__dataclass_fields__)
        if set(task) != fields:
            raise ValueError(f"[task] of {path} must have {', '.join(sorted(fields))}, got {', '.join(sorted(task))}")
        state = Path(path).resolve().parent / data.pop("state")
        return cls(task=Task(**task), key=keys.public_key(data.pop("key")), state=state, **data)

    def to_toml(self) -> str:
        """The file that `read` understands."""
        task = "\n".join(f"{k} = {_toml(v)}" for k, v in asdict(self.task).items())
        return (
            f"key = {_toml(keys.public_text(self.key))}\nrounds = {self.rounds}\nstate = {_toml(str(self.state))}\n"
            f"noise = {_toml(self.noise)}\n\n[task]\n{task}\n"
        )

    def memory(self, context: Context) -> Path:
        """Where this node's last answer is kept; simulated nodes share a machine, so each has its own."""
        owner = f"-{context.node_config.get('partition-id', context.node_id)}" if self.noise == SIMULATION else ""
        return self.state / f"{self.task.name}{owner}.report"


def _toml(value: Any) -> str:
    return json.dumps(value)  # numbers and strings of JSON are those of TOML


def sealed_reports(message: Message, context: Context, call_next: App) -> Message:
    """The mod: one sealed report for a training message, nothing for any other kind of message."""
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        raise ValueError(f"a message must be of type {MessageType.TRAIN}, got {message.metadata.message_type!r}")
    node = _settings(context)
    number = round_number(message.content.config_records[CONFIG]["round"])
    if number > node.rounds:
        raise ValueError(f"round must be at most {node.rounds} on this node, got {number}")
    sent = [a.numpy() for a in message.content.array_records[ARRAYS].values()]
    size = sum(a.size for a in sent)
    if size != node.task.dimension:
        raise ValueError(f"the model must have {node.task.dimension} numbers on this node, got {size}")
    memory = node.memory(context)
    answer = _recall(memory, node, number)
    if answer is None:
        update = _trained(message, context, call_next, sent, node.task)
        noisy = SOURCES[node.noise](update, node.task.clip * node.task.sigma)
        heads = secrets.randbits(COIN_BITS) < node.task.rate * 2**COIN_BITS
        answer = seal(noisy if heads else None, task=node.task, number=number, key=node.key)
        memory.parent.mkdir(parents=True, exist_ok=True)
        files.replace(memory, [_label(node, number), answer])
    return Message(RecordDict({SEALED: ConfigRecord({"sealed": answer})}), reply_to=message)


def _settings(context: Context) -> Node:
    path = context.node_config.get(NODE_CONFIG) or os.environ.get(NODE_FILE)
    if not path:
        raise ValueError(
            f"this node has no settings: start it with --node-config '{NODE_CONFIG}=\"/path/node.toml\"' "
            f"(or set {NODE_FILE} for a simulation)"
        )
    return _read_node(str(path))


@functools.cache
def _read_node(path: str) -> Node:
    node = Node.read(path)
    if node.noise == SIMULATION:
        LOG.warning("noise comes from numpy's generator: for simulation only, it protects nobody")
    return node


def _trained(message: Message, context: Context, call_next: App, sent: list[Any], task: Task) -> FloatArray:
    """The clipped update; zero if the app fails in any way, which depends on the data and must not show."""
    try:
        names = list(message.content.array_records[ARRAYS])
        reply = call_next(message, context)
        (returned,) = reply.content.array_records.values()
        if list(returned) != names:
            raise ValueError(f"the app must return the arrays {names}, got {list(returned)}")
        arrays = [a.numpy() for a in returned.values()]
        if [a.shape for a in arrays] != [a.shape for a in sent]:
            raise ValueError("the app must return arrays of the shapes that were sent")
        return clipped([a.astype("f8") - b.astype("f8") for a, b in zip(arrays, sent, strict=True)], clip=task.clip)
    except Exception as error:
        LOG.error("training failed, so this node's update is zero: %r", error)
        return clipped([b * 0.0 for b in sent], clip=task.clip)


def _label(node: Node, number: int) -> bytes:
    """Head of the remembered answer: for which task and which round it is."""
    return hashlib.sha256(node.task.info(0) + keys.public_text(node.key).encode()).digest() + number.to_bytes(8, "big")


def _recall(memory: Path, node: Node, number: int) -> bytes | None:
    """The answer to round `number` if it was given before; an earlier round is refused."""
    if not memory.exists():
        return None
    content = memory.read_bytes()
    head, answer = content[:40], content[40:]
    if head[:32] != _label(node, number)[:32] or len(answer) != node.task.length:
        raise ValueError(
            f"{memory} is of other settings or damaged: a task whose settings change needs a new name or state folder"
        )
    last = int.from_bytes(head[32:], "big")
    if number < last:
        raise ValueError(f"round must be at least {last}, which this node has answered, got {number}")
    return answer if number == last else None

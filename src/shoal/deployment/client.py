"""The node's side: a Flower mod that turns whatever an app trains into one sealed report a round.

    app = ClientApp(mods=[sealed_reports])

The app trains as usual and returns its new arrays; the mod takes the difference to the arrays that were
sent, clips it, adds noise and seals it, and drops everything else that the app returned. A node whose coin
comes up tails does all the same work and then seals a dummy: neither the reply's length nor the time it
takes (which Flower reports to the SuperLink) depends on the coin. A training that fails counts as the zero
update, and only the node's own log says so: an error message would tell the server something about the data.

**What a node protects itself from.** Everything that privacy depends on comes from the node's own file
(`Node`), never from the server.

- A round is answered if the analyst has signed its opening, with this model and the key that the node would seal
  to; a message that somebody else made up, for whatever round, is refused and changes nothing.
- Each round is answered once. The sealed report is written down before it is sent, under a lock, and whoever
  asks for the same round again gets the same bytes, so that asking twice does not yield two noisy copies.
- No more rounds are answered than the node's own epsilon allows with the smallest crowd of its own file.
- The secret that its tokens come from lives in the state and nowhere else (`join` moves it there): a node that
  has lost its state cannot make a report at all, rather than a second one.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from shoal.bounds.numeric import FloatArray
from shoal.deployment import files, tokens
from shoal.deployment.node import (
    EARLIER,
    MESSAGE,
    MODEL,
    OTHER,
    REFUSALS,
    SETTINGS,
    SPENT,
    STATE,
    UNSIGNED,
    Node,
    NodeError,
    State,
)
from shoal.deployment.noise import SIMULATION, SOURCES, clipped
from shoal.deployment.report import Task, opening, round_number, seal
from shoal.errors import InvalidInput

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


def sealed_reports(message: Message, context: Context, call_next: App) -> Message:
    """The mod: one sealed report for a training message, a code and no content in any other case."""
    start = time.monotonic()
    pace = 0.0
    try:
        node, member = _settings(context)
        pace = node.pace
        reply = RecordDict({SEALED: ConfigRecord({"sealed": _answer(message, context, call_next, node, member)})})
        made = Message(reply, reply_to=message)
    except NodeError as refusal:
        LOG.error("this node does not report: %s", refusal)
        made = Message(Error(code=refusal.code, reason=REFUSALS[refusal.code]), reply_to=message)
    except Exception:
        LOG.exception("this node does not report")
        made = Message(Error(code=OTHER, reason=REFUSALS[OTHER]), reply_to=message)
    # Every answer takes as long, if the owner asks for it: the time of training tells of the data.
    time.sleep(max(0.0, start + pace - time.monotonic()))
    return made


def _answer(message: Message, context: Context, call_next: App, node: Node, member: int | str | None) -> bytes:
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        raise NodeError(MESSAGE, f"a message must be of type train, got {message.metadata.message_type!r}")
    try:
        config = message.content.config_records[CONFIG]
        number, signature = round_number(config["round"]), config["opening"]
        sent = [a.numpy() for a in message.content.array_records[ARRAYS].values()]
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(MESSAGE, f"a message must have a model, a round and its opening: {error!r}") from None
    size = sum(a.size for a in sent)
    if size != node.task.dimension:
        raise NodeError(MODEL, f"the model must have {node.task.dimension} numbers on this node, got {size}")
    # Before anything is done: a round that the analyst did not open could be one of many with one node in it.
    _check_opening(node, number, sent, signature)
    memory = node.memory(member)
    with _alone(memory):
        state = State.read(memory, node)
        # The same bytes again: two noisy copies of one report would be two rounds.
        if number == state.last:
            return state.answer
        if number < state.last:
            raise NodeError(EARLIER, f"round must be at least {state.last}, which this node answered, got {number}")
        if number > (most := min(state.rounds, node.rounds)):  # the owner may have lowered it since
            raise NodeError(SPENT, f"round must be at most {most} on this node, got {number}")
        task = node.task
        update = _trained(message, context, call_next, sent, task)
        # Training, noise and coin in this order whatever the coin says, so that time does not tell who checked in.
        noisy = SOURCES[task.noise](update, task.clip * task.sigma)
        heads = secrets.randbits(COIN_BITS) < task.rate * 2**COIN_BITS
        token = tokens.token(state.secret, task=task, number=number)
        answer = seal(noisy if heads else None, task=task, number=number, key=node.key(number), token=token)
        # Written down before it is sent: after a crash the round counts as answered, with this answer.
        changed(state, last=number, answer=answer).write(memory)
    return answer


def _check_opening(node: Node, number: int, sent: list[Any], signature: object) -> None:
    if number > len(node.keys) * node.epoch:
        raise NodeError(SPENT, f"round must be one for which this node has a key, got {number}")
    vector = np.concatenate([np.asarray(a).ravel().astype("<f4") for a in sent])
    given = signature if isinstance(signature, bytes) else b""
    try:
        node.signer.verify(given, opening(node.task, number, vector, node.key(number)))
    except InvalidSignature:
        raise NodeError(UNSIGNED, f"round {number} must be signed by the analyst, with this model and key") from None


@contextlib.contextmanager
def _alone(memory: Path) -> Iterator[None]:
    """One process at a time for one node; others wait for it, and then find the round answered."""
    if not memory.parent.exists():
        raise NodeError(STATE, f"{memory.parent} does not exist: run 'shoal flower join' once")
    with open(memory.with_suffix(".lock"), "w") as file:
        files.hold(file)
        yield


def _settings(context: Context) -> tuple[Node, int | str | None]:
    """The node's settings and, in a simulation, which of the nodes it is."""
    named = context.node_config.get(NODE_CONFIG)
    path = named or os.environ.get(NODE_FILE)
    if not path:
        raise NodeError(
            SETTINGS,
            f"this node has no settings: start it with --node-config '{NODE_CONFIG}=\"/path/node.toml\"' "
            f"(or set {NODE_FILE} for a simulation)",
        )
    try:
        node = _read_node(str(path))
    except (ValueError, TypeError) as error:
        raise NodeError(SETTINGS, str(error)) from None
    # The two must not be mixed up: noise that protects nobody is for simulations, which name their file differently.
    if node.task.noise == SIMULATION and named:
        raise NodeError(SETTINGS, f'{path} says noise = "simulation", which protects nobody: not in a deployment')
    if node.task.noise != SIMULATION and not named:
        raise NodeError(SETTINGS, f"{NODE_FILE} is for simulations, and {path} is not the file of one")
    return node, None if named else str(context.node_config.get("partition-id", context.node_id))


@functools.cache
def _read_node(path: str) -> Node:
    node = Node.read(path)
    if node.task.noise == SIMULATION:
        LOG.warning("noise comes from numpy's generator: for simulation only, it protects nobody")
    return node


def _trained(message: Message, context: Context, call_next: App, sent: list[Any], task: Task) -> FloatArray:
    """The clipped update; zero if the app fails in any way, which depends on the data and must not show."""
    try:
        names = list(message.content.array_records[ARRAYS])
        reply = call_next(message, context)
        (returned,) = reply.content.array_records.values()
        if list(returned) != names:
            raise InvalidInput(f"the app must return the arrays {names}, got {list(returned)}")
        arrays = [a.numpy() for a in returned.values()]
        if [a.shape for a in arrays] != [a.shape for a in sent]:
            raise InvalidInput("the app must return arrays of the shapes that were sent")
        return clipped([a.astype("f8") - b.astype("f8") for a, b in zip(arrays, sent, strict=True)], clip=task.clip)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an app that exits has failed as well
        LOG.error("training failed, so this node's update is zero: %r", error)
        return np.zeros(task.dimension)

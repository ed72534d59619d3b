"""The node's side: a Flower mod that turns whatever an app trains into one sealed report a round.

    app = ClientApp(mods=[sealed_reports])

The app trains as usual and returns its new arrays; the mod takes the difference to the arrays that were
sent, clips it, adds noise and seals it, and drops everything else that the app returned. A node whose coin
comes up tails does all the same work and then seals a dummy: neither the reply's length nor the time it
takes (which Flower reports to the SuperLink) depends on the coin. A training that fails, ends its process or does not
end counts as the zero update, and only the node's own log says so: an error message, or a node that does not answer,
would tell the server something about the data. So a training runs in a process of its own (`apart`).

**What a node protects itself from.** Everything that privacy depends on comes from the node's own file
(`Node`), never from the server.

- A round is answered if the analyst has signed its opening, with this model and the key that the node would seal
  to; a message that somebody else made up, for whatever round, is refused and changes nothing.
- Each round is answered once. The sealed report is written down before it is sent, under a lock, and whoever
  asks for the same round again gets the same bytes, so that asking twice does not yield two noisy copies.
- No more rounds are answered than the node's own epsilon allows with the smallest crowd of its own file.
- The secret that its tokens come from lives in the state and nowhere else (`join_task` moves it there): a node that
  has lost its state cannot make a report at all, rather than a second one.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict

from shoal.bounds.numeric import FloatArray
from shoal.deployment import files, tokens
from shoal.deployment.apart import vector_apart
from shoal.deployment.errors import NodeError
from shoal.deployment.log import LOG
from shoal.deployment.node import (
    EARLIER,
    NO_SETTINGS,
    NO_STATE,
    NO_TRAINING,
    OTHER_FAILURE,
    OTHER_MODEL,
    OTHER_SETTINGS,
    REFUSALS,
    SPENT,
    UNSIGNED,
    Node,
)
from shoal.deployment.noise import NOISE_SOURCES, SIMULATION, clip_update
from shoal.deployment.packing import LAYOUT, MODEL, unpacked_model
from shoal.deployment.report import opening_terms, seal
from shoal.deployment.state import State
from shoal.deployment.task import Task, checked_round
from shoal.errors import InvalidInput

App = Callable[[Message, Context], Message]

NODE_CONFIG = "shoal"
"""Key of the SuperNode's `--node-config` that names the node's file."""
NODE_FILE = "SHOAL_NODE"
"""Environment variable with the same meaning, for Flower's simulation, which has no node configuration."""
ARRAYS, CONFIG, SEALED = "arrays", "config", "report"
"""Records: the model for the app; model and round on the way out; the sealed report on the way back."""
ROUND, SIGNATURE, FINGERPRINT = "round", "opening", "fingerprint"
"""Entries of the configuration: the round, the analyst's signature under its opening, and that of which settings."""
SETTINGS, ENDORSEMENT = "settings", "endorsement"
"""The record, and its other entry, by which a node shows that it was given other settings."""
COIN_BITS = 128
"""Enough for a coin whose probability is exactly `rate`, for every rate that a `Task` may have."""


def sealed_reports(message: Message, context: Context, call_next: App) -> Message:
    """Answer a training message with a sealed report, any other case with a code and no content.

    Args:
        message: what the server sent.
        context: Flower's, with the node's configuration.
        call_next: the app.

    Returns:
        The reply.
    """
    start = time.monotonic()
    pace = 0.0
    try:
        node, member = _node_settings(context)
        pace = node.pace
        sealed = _round_answer(message, context, call_next, node, member)
        reply = Message(RecordDict({SEALED: ConfigRecord({"sealed": sealed})}), reply_to=message)
    except NodeError as refusal:
        LOG.error("this node does not report: %s", refusal)
        if refusal.code == OTHER_SETTINGS:
            # With the analyst's own signature, so that the shuffler need not take a node's word for it.
            shown = ConfigRecord({FINGERPRINT: node.fingerprint, ENDORSEMENT: node.endorsement})
            reply = Message(RecordDict({SETTINGS: shown}), reply_to=message)
        else:
            reply = Message(Error(code=refusal.code, reason=REFUSALS[refusal.code]), reply_to=message)
    except Exception:
        LOG.exception("this node does not report")
        reply = Message(Error(code=OTHER_FAILURE, reason=REFUSALS[OTHER_FAILURE]), reply_to=message)
    # If the owner wishes, every answer takes the same time: the time of training depends on the data.
    time.sleep(max(0.0, start + pace - time.monotonic()))
    return reply


def _round_answer(message: Message, context: Context, call_next: App, node: Node, member: int | str | None) -> bytes:
    """The sealed answer to a message; `NodeError` if this node does not report."""
    message = _with_arrays(message)
    round_number, arrays, signature, fingerprint = _parsed(message)
    if fingerprint != node.fingerprint:
        raise NodeError(
            OTHER_SETTINGS,
            f"the round is opened for settings of another fingerprint than {node.fingerprint.hex()}: compare it with "
            "the analyst's, the shuffler's and other owners'",
        )
    size = sum(array.size for array in arrays)
    if size != node.task.dimension:
        raise NodeError(OTHER_MODEL, f"the model must have {node.task.dimension} numbers on this node, got {size}")
    # Before anything is done: a round that the analyst did not open could be one of many with one node in it.
    _check_signature(node, round_number, arrays, signature)
    path = node.state_path(member)
    with _locked(path):
        state = State.read(path, node)
        # The same bytes again: two noisy copies of one report would be two rounds.
        if round_number == state.last:
            return state.answer
        if round_number < state.last:
            raise NodeError(EARLIER, f"this node has answered round {state.last}, got round {round_number}")
        allowed = min(state.rounds, node.rounds)  # the owner may have lowered it since
        if round_number > allowed:
            raise NodeError(SPENT, f"round must be at most {allowed} on this node, got {round_number}")
        task = node.task
        update = _update(functools.partial(_trained_update, message, context, call_next, arrays, task), node)
        # Training, noise and coin in this order whatever the coin says, so that time does not tell who checked in.
        noisy = NOISE_SOURCES[task.noise](update, task.clip * task.sigma)
        heads = secrets.randbits(COIN_BITS) < task.rate * 2**COIN_BITS
        token = tokens.token(state.secret_of(round_number), task=task, round_number=round_number)
        key = node.key(round_number)
        answer = seal(noisy if heads else None, task=task, round_number=round_number, key=key, token=token)
        # Written down before it is sent: after a crash the round counts as answered, with this answer.
        state.answered(round_number, answer).write(path)
    return answer


def _with_arrays(message: Message) -> Message:
    """The message as the app expects it: with the model as arrays, and a configuration without it."""
    if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
        raise NodeError(NO_TRAINING, f"a message must be of type train, got {message.metadata.message_type!r}")
    try:
        config = message.content.config_records[CONFIG]
        arrays = unpacked_model(config)
    except (KeyError, ValueError) as error:
        raise NodeError(NO_TRAINING, f"a message must have a model, a round and its signature: {error!r}") from None
    whole = copy.copy(message)
    rest = ConfigRecord({name: value for name, value in config.items() if name not in (MODEL, LAYOUT)})
    whole.content = RecordDict({ARRAYS: arrays, CONFIG: rest})
    return whole


def _parsed(message: Message) -> tuple[int, list[Any], object, object]:
    """Round, model, signature and fingerprint of a message."""
    try:
        config = message.content.config_records[CONFIG]
        round_number, signature, fingerprint = checked_round(config[ROUND]), config[SIGNATURE], config[FINGERPRINT]
        arrays = [array.numpy() for array in message.content.array_records[ARRAYS].values()]
    except (KeyError, TypeError, ValueError) as error:
        raise NodeError(NO_TRAINING, f"a message must have a model, a round and its signature: {error!r}") from None
    return round_number, arrays, signature, fingerprint


def _check_signature(node: Node, round_number: int, arrays: list[Any], signature: object) -> None:
    """Refuse a round that the analyst has not opened with this model and the node's key."""
    if round_number > len(node.keys) * node.epoch:
        raise NodeError(SPENT, f"round must be one for which this node has a key, got {round_number}")
    model = np.concatenate([np.asarray(array).ravel().astype("<f4") for array in arrays])
    terms = opening_terms(node.fingerprint, round_number, model, node.key(round_number))
    try:
        node.signer.verify(signature if isinstance(signature, bytes) else b"", terms)
    except InvalidSignature:
        raise NodeError(
            UNSIGNED, f"round {round_number} must be signed by the analyst, with this model and key"
        ) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time for a node; the next waits for it, and then finds the round answered."""
    if not path.parent.exists():
        raise NodeError(NO_STATE, f"{path.parent} does not exist: run 'shoal flower join' once")
    with open(path.with_suffix(".lock"), "w") as file:
        files.hold(file)
        yield


def _node_settings(context: Context) -> tuple[Node, int | str | None]:
    """The node's settings and, in a simulation, which of the nodes it is."""
    configured = context.node_config.get(NODE_CONFIG)
    path = configured or os.environ.get(NODE_FILE)
    if not path:
        raise NodeError(
            NO_SETTINGS,
            f"this node has no settings: start it with --node-config '{NODE_CONFIG}=\"/path/node.toml\"' "
            f"(or set {NODE_FILE} for a simulation)",
        )
    try:
        node = _read_node(str(path))
    except (ValueError, TypeError) as error:
        raise NodeError(NO_SETTINGS, str(error)) from None
    # The two must not be mixed up: noise that protects nobody is for simulations, which name their file differently.
    if node.task.noise == SIMULATION and configured:
        raise NodeError(NO_SETTINGS, f'{path} says noise = "simulation", which protects nobody: not in a deployment')
    if node.task.noise != SIMULATION and not configured:
        raise NodeError(NO_SETTINGS, f"{NODE_FILE} is for simulations, and {path} is not the file of a simulation")
    return node, None if configured else str(context.node_config.get("partition-id", context.node_id))


@functools.cache
def _read_node(path: str) -> Node:
    node = Node.read(path)
    if node.task.noise == SIMULATION:
        LOG.warning("noise comes from numpy's generator: for simulation only, it protects nobody")
    return node


def _update(train: Callable[[], FloatArray], node: Node) -> FloatArray:
    """The clipped update; zero if the training ends its process, or does not end."""
    task = node.task
    if task.noise == SIMULATION:  # thousands of nodes in one process, and data that is nobody's
        return train()
    vector = vector_apart(train, size=task.dimension, seconds=node.limit)
    return clip_update([np.zeros(task.dimension) if vector is None else vector], clip=task.clip)


def _trained_update(message: Message, context: Context, call_next: App, arrays: list[Any], task: Task) -> FloatArray:
    """The clipped update; zero if the app fails in any way, which depends on the data and must not show."""
    try:
        names = list(message.content.array_records[ARRAYS])
        reply = call_next(message, context)
        (record,) = reply.content.array_records.values()
        if list(record) != names:
            raise InvalidInput(f"the app must return the arrays {names}, got {list(record)}")
        trained = [array.numpy() for array in record.values()]
        if [array.shape for array in trained] != [array.shape for array in arrays]:
            raise InvalidInput("the app must return arrays of the shapes that were sent")
        differences = [a.astype("f8") - b.astype("f8") for a, b in zip(trained, arrays, strict=True)]
        return clip_update(differences, clip=task.clip)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an app that exits has failed as well
        LOG.error("training failed, so this node's update is zero: %r", error)
        return np.zeros(task.dimension)

"""The shuffler: a Flower strategy that collects sealed reports, permutes them and hands them to the analyst.

Each round it sends the model to all nodes, with the analyst's signature under both, takes nothing but the
sealed bytes from each reply, and refuses to go on with fewer than `minimum` of them. How many of them come from
users it cannot tell: the analyst counts, and a batch that it refuses is collected again. What follows survives
a crash at any point (`journal`):

1. replies are spooled to disk as they arrive, so memory does not grow with their number;
2. they are copied in an order drawn from the operating system's generator, the copy is made durable, and
   the spool, which knows the order of arrival, is removed;
3. the permuted batch is delivered until the analyst confirms it, and only then removed.

A shuffler that dies before 2 asks the nodes again, which give the same bytes as before; one that dies after
2 delivers the same batch in the same order, which the analyst counts once. A batch that was damaged on the
disk is set aside until its round is over, and the nodes are asked again. The shuffler keeps no node ids and no
times. The log says how many nodes did not report, and why, in words that do not depend on data. There is no
federated evaluation: it would reveal something about nodes outside the seal.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from shoal import _validate
from shoal.deployment import files
from shoal.deployment.analyst_client import AnalystClient, OpenRound
from shoal.deployment.client import CONFIG, ENDORSEMENT, FINGERPRINT, ROUND, SEALED, SETTINGS, SIGNATURE
from shoal.deployment.errors import AnalystError, RefusedBatchError
from shoal.deployment.journal import Journal
from shoal.deployment.log import LOG
from shoal.deployment.mailbox import Mailbox
from shoal.deployment.node import OTHER_SETTINGS, REFUSALS, endorsement_terms
from shoal.deployment.packing import packed_model
from shoal.errors import DataError, InvalidInput

SLICE = 16
"""Messages pushed at once: what of a round is in memory at any time."""


class Shuffler(Strategy):
    """A Flower strategy that asks every node, names nobody, and delivers each round exactly once.

    `minimum` is the smallest batch that is passed on; `timeout` the time that nodes have for a round
    (those that are late are left out, which the analyst's ledger accounts for). Once `enough` of the nodes,
    as a share of those that were asked, have replied, the rest has `grace` seconds left, so that a few slow or
    dead nodes do not hold a round. `attempts` is how often a round that stays below the minimum, or whose batch
    the analyst refuses, is tried before the run ends. `fingerprint` is that of the settings that nodes were given, in
    hexadecimal digits: rounds of other settings are refused.
    """

    def __init__(
        self,
        *,
        analyst: AnalystClient,
        journal: Journal,
        minimum: int,
        timeout: float = 3600.0,
        enough: float = 0.9,
        grace: float = 60.0,
        attempts: int = 3,
        poll: float = 0.5,
        fingerprint: str | None = None,
    ) -> None:
        self.analyst, self.journal = analyst, journal
        self.minimum = _validate.integer("minimum", minimum, minimum=2, maximum=_validate.USERS_MAX)
        self.timeout = _validate.real("timeout", timeout)
        self.enough = _validate.rate(enough, "enough")
        self.grace = _validate.real("grace", grace)
        self.attempts = _validate.integer("attempts", attempts, minimum=1, maximum=10**6)
        self.poll = _validate.real("poll", poll)
        self.fingerprint = fingerprint
        self._open_round = OpenRound(round_number=None)
        """The round that is being collected."""

    @classmethod
    def from_file(cls, path: str | Path) -> Shuffler:
        """The shuffler that a TOML file on its own machine describes; `DataError` if it describes none."""
        data = files.read_toml(path)
        needed = {"url", "password", "journal", "minimum"}
        optional = {"authority", "timeout", "enough", "grace", "attempts", "patience", "fingerprint"}
        if not needed <= set(data) <= needed | optional:
            raise DataError(f"{path} must have {', '.join(sorted(needed))}, got {', '.join(sorted(data)) or 'nothing'}")
        analyst = AnalystClient(
            url=data.pop("url"),
            password=Path(data.pop("password")).read_text().strip(),
            authority=data.pop("authority", None),
            patience=data.pop("patience", 600.0),
        )
        return cls(analyst=analyst, journal=Journal(data.pop("journal")), **data)

    def summary(self) -> None:
        """Log the settings."""
        LOG.info("shuffler: at least %d reports a round, %g s for each", self.minimum, self.timeout)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run until the analyst has closed `num_rounds` rounds in all, or opens no more.

        A restarted run goes on where the last one stopped. `initial_arrays` gives names, shapes and types;
        the numbers come from the analyst. `timeout` is the constructor's.

        Args:
            grid: Flower's, by which nodes are reached.
            initial_arrays: arrays of the names, shapes and types that the app trains.
            num_rounds: the number of rounds in all.
            timeout: unused.
            train_config: sent to the nodes with each round.
            evaluate_config: unused, since no node evaluates.
            evaluate_fn: called with each round's model.

        Returns:
            The last model, and what the analyst said of each round.

        Raises:
            AnalystError: a round could not be closed.
        """
        self.summary()
        result = Result()
        # Batches of an earlier run first: nodes must not be asked twice for a round that may be closed.
        for round_number in self.journal.pending():
            with contextlib.suppress(RefusedBatchError):  # then it is collected again below
                result.train_metrics_clientapp[round_number] = self._deliver(round_number)
        while (open_round := self.analyst.open_round()).round_number is not None:
            round_number = open_round.round_number
            self._check_order(round_number)
            self._check_fingerprint(open_round.fingerprint.hex())
            arrays = _shaped(self.analyst.model(round_number), initial_arrays)
            result.arrays = arrays
            if evaluate_fn and (metrics := evaluate_fn(round_number - 1, arrays)) is not None:
                result.evaluate_metrics_serverapp[round_number - 1] = metrics
            if round_number > num_rounds:
                return result
            self._open_round = open_round
            metrics = self._close_round(round_number, arrays, train_config or ConfigRecord(), grid)
            result.train_metrics_clientapp[round_number] = metrics
        LOG.info("the analyst opens no further round: %s", open_round.reason)
        return result

    def _check_order(self, round_number: int) -> None:
        """Refuse an analyst that opens a round again."""
        confirmed = self.journal.confirmed
        # Nodes have answered this round: with other users once more, the difference would show some of them.
        if round_number <= confirmed:
            raise AnalystError(
                f"expected a round after {confirmed}, which is closed, got {round_number}: the analyst was put back "
                "to an earlier state, and must enter what it has forgotten ('shoal analyst skip'); for another analyst "
                "name another journal"
            )

    def _check_fingerprint(self, fingerprint: str) -> None:
        """Refuse a round for settings that were not agreed on."""
        LOG.info("shuffler: rounds are opened for settings with fingerprint %s", fingerprint)
        if self.fingerprint is not None and fingerprint != self.fingerprint.lower():
            raise AnalystError(
                f"fingerprint must be {self.fingerprint}, as this shuffler's settings say, got {fingerprint}: the "
                "analyst opens rounds for other settings"
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model and the round for every node that is connected, once there are enough nodes.

        Args:
            server_round: the round.
            arrays: the model.
            config: sent along.
            grid: Flower's, by which nodes are reached.

        Returns:
            A message for each node.
        """
        deadline = time.monotonic() + self.timeout
        while len(nodes := list(grid.get_node_ids())) < self.minimum:
            if time.monotonic() > deadline:
                raise AnalystError(f"minimum is {self.minimum} nodes, only {len(nodes)} are connected")
            time.sleep(self.poll)
        signature, fingerprint = self._open_round.signature, self._open_round.fingerprint
        opened = ConfigRecord({**config, ROUND: server_round, SIGNATURE: signature, FINGERPRINT: fingerprint})
        opened.update(packed_model(arrays))
        content = RecordDict({CONFIG: opened})
        if len(nodes) > self._open_round.maximum:
            # A larger batch would be refused, however often it is collected: who takes part is drawn by lot.
            LOG.warning("%d nodes are connected, and the analyst takes %d", len(nodes), self._open_round.maximum)
            nodes = random.SystemRandom().sample(nodes, self._open_round.maximum)
        LOG.info("round %d: asking %d nodes", server_round, len(nodes))
        return (
            Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(server_round))
            for node in nodes
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write down the permuted batch; the model itself is the analyst's business.

        Args:
            server_round: the round.
            replies: what the nodes sent.

        Returns:
            Nothing, twice.
        """
        reports = _sealed_bytes(replies, self._open_round)
        self.journal.collect(server_round, reports, length=self._open_round.length, minimum=self.minimum)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: no node evaluates."""
        return ()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: no node evaluates."""
        return None

    def _close_round(self, round_number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> MetricRecord:
        """Collect and deliver until the analyst has closed the round."""
        trouble = ""
        for _ in range(self.attempts):
            # Nodes that reported before send the same report again; nothing new is revealed by another attempt.
            messages = self.configure_train(round_number, arrays, config, grid)
            self.aggregate_train(round_number, self._replies(grid, messages))
            if not self.journal.batch(round_number).exists():
                trouble = f"minimum is {self.minimum} reports"
                continue
            try:
                return self._deliver(round_number)
            except RefusedBatchError as error:
                trouble = str(error)
        raise AnalystError(f"round {round_number} could not be closed in {self.attempts} attempts: {trouble}")

    def _replies(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        """Replies as they come in, a few at a time, until all are there or the time is up."""
        mailbox = Mailbox(grid, largest=self._open_round.length)
        pending: list[str] = []
        stream = iter(messages)
        # In slices: all messages at once would be as many copies of the model in memory.
        while chunk := list(itertools.islice(stream, SLICE)):
            pending.extend(message_id for message_id in grid.push_messages(chunk) if message_id)
        # From when the last node was asked: to ask many of them takes its time, too.
        deadline = time.monotonic() + self.timeout
        # The number of replies that may be missing when the grace begins.
        spare = len(pending) - max(self.minimum, math.ceil(self.enough * len(pending)))
        hurried = False
        while pending:
            answered, start = set(), time.monotonic()
            for message_id, reply in mailbox.pull(pending, deadline=deadline):
                answered.add(message_id)
                if reply is not None:
                    yield reply
            pending = [message_id for message_id in pending if message_id not in answered]
            if len(pending) <= spare and not hurried:
                hurried, deadline = True, min(deadline, time.monotonic() + self.grace)
            # The SuperLink looks through all messages at each request: at most half of its time is for this one's.
            if not pending or time.monotonic() >= deadline:
                break
            time.sleep(max(self.poll, min(time.monotonic() - start, deadline - time.monotonic())))
        for reason, count in sorted(mailbox.dropped.items()):
            LOG.warning("%d replies were dropped: %s", count, reason)
        if pending:
            LOG.warning("%d nodes did not answer in time", len(pending))

    def _deliver(self, round_number: int) -> MetricRecord:
        try:
            answer = self.analyst.deliver(round_number, self.journal.batch(round_number))
        except RefusedBatchError as error:
            # Otherwise it would be delivered first at every start, and be refused again.
            LOG.error("%s", error)
            self.journal.drop(round_number)
            raise
        self.journal.done(round_number)
        LOG.info("round %d: %s", round_number, answer["guarantee"])
        return MetricRecord({"users": int(answer["users"]), "epsilon": float(answer["epsilon"]["upper"])})


def _sealed_bytes(replies: Iterable[Message], opened: OpenRound) -> Iterator[bytes]:
    """The sealed bytes of each reply, and nothing else of it; the log says how many did not report, and why."""
    reasons: collections.Counter[str] = collections.Counter()
    for reply in replies:
        if reply.has_error():
            # Only words of our own: a reason that came with an error could be anything, also something about data.
            reasons[REFUSALS.get(reply.error.code, f"Flower's error code {reply.error.code}")] += 1
            continue
        records = reply.content.config_records
        if SETTINGS in records:
            _check_settings(records[SETTINGS], opened)
            reasons[REFUSALS[OTHER_SETTINGS]] += 1
            continue
        sealed = records[SEALED].get("sealed") if SEALED in records else None
        if isinstance(sealed, bytes):
            yield sealed
        else:
            reasons["a reply without a sealed report"] += 1
    for reason, count in sorted(reasons.items()):
        LOG.warning("%d nodes did not report: %s", count, reason)


def _check_settings(shown: ConfigRecord, opened: OpenRound) -> None:
    """Refuse a round if the analyst's own signature shows that it gave a node other settings.

    A node's word alone does not end a round: any node could say so. What it was given by another signer it leaves out.
    """
    fingerprint, endorsement = shown.get(FINGERPRINT), shown.get(ENDORSEMENT)
    if not isinstance(fingerprint, bytes) or not isinstance(endorsement, bytes) or opened.signer is None:
        return
    try:
        opened.signer.verify(endorsement, endorsement_terms(fingerprint))
    except InvalidSignature:
        return
    if fingerprint != opened.fingerprint:
        raise AnalystError(
            f"fingerprint must be {opened.fingerprint.hex()} for all nodes, and a node shows the analyst's signature "
            f"under {fingerprint.hex()}: whoever gives nodes different keys can tell their reports apart"
        )


def _shaped(vector: np.ndarray[Any, np.dtype[np.float32]], like: ArrayRecord) -> ArrayRecord:
    """A flat vector as arrays of the names, shapes and types of `like`."""
    templates = {name: array.numpy() for name, array in like.items()}
    if types := {str(template.dtype) for template in templates.values()} - {"float32", "float64"}:
        raise InvalidInput(f"initial_arrays must be of type float32 or float64, got {', '.join(sorted(types))}")
    sizes = [t.size for t in templates.values()]
    if sum(sizes) != len(vector):
        raise AnalystError(f"the analyst's model must have {sum(sizes)} numbers, got {len(vector)}")
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    return ArrayRecord(
        {
            name: Array(part.reshape(t.shape).astype(t.dtype))
            for (name, t), part in zip(templates.items(), parts, strict=True)
        }
    )

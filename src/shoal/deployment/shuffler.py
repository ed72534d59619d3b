"""The shuffler: a Flower strategy that collects sealed reports, permutes them and hands them to the analyst.

Each round it sends the model to all nodes, with the analyst's signature under both, takes nothing but the
sealed bytes from each reply, and refuses to go on with fewer than `minimum` of them. How many of them are of
users it cannot tell: the analyst counts, and a batch that it refuses is collected again. What follows survives
a crash at any point (`Journal`):

1. replies are spooled to disk as they arrive, so memory does not grow with their number;
2. they are copied in an order drawn from the operating system's generator, the copy is made durable, and
   the spool, which knows the order of arrival, is removed;
3. the permuted batch is delivered until the analyst confirms it, and only then removed.

A shuffler that dies before 2 asks the nodes again, which give the same bytes as before; one that dies after
2 delivers the same batch in the same order, which the analyst counts once. A batch that was damaged on the
disk is set aside until its round is over, and the nodes are asked again. The shuffler keeps no node ids and no
times. Of nodes that do
not report the log says how many there were for which reason, in words that do not depend on data. There is no
federated evaluation: it would tell about nodes outside the seal.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from shoal import _validate
from shoal.deployment import files
from shoal.deployment.client import ARRAYS, CONFIG, LOG, SEALED
from shoal.deployment.node import REFUSALS
from shoal.errors import DeploymentError, InvalidInput

SLICE = 16
"""Messages pushed or pulled at once: what of a round is in memory at any time."""
BLOCK = 1 << 20
"""Bytes sent to the analyst at once."""


class Journal:
    """The batches of a shuffler on its disk: at most one spool, and one file for each undelivered round.

    `confirmed` is the last round that the analyst has closed with one of them, by which an analyst that was put back
    to an earlier state is known.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = files.lock(self.folder, whose="shuffler")
        self._spool = self.folder / "arrivals.spool"
        # What a crash left behind: arrivals in the order in which they came must not stay.
        for left in (self._spool, *self.folder.glob("*.draft")):
            left.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.close()

    def batch(self, number: int) -> Path:
        return self.folder / f"round-{number:010d}.batch"

    def pending(self) -> list[int]:
        """Rounds whose batch is written down and not confirmed; a damaged one is set aside."""
        found = []
        for path in sorted(self.folder.glob("round-*.batch")):
            if files.whole(path):
                found.append(int(path.stem.removeprefix("round-")))
            else:
                LOG.error("%s is damaged: it is set aside, and the nodes are asked again if its round is open", path)
                path.replace(path.with_suffix(".damaged"))
        return found

    def collect(self, number: int, reports: Iterable[bytes], *, length: int, minimum: int) -> Path | None:
        """Spool the reports and write them down, permuted; None if there are fewer than `minimum`."""
        count = 0
        try:
            with files.private(self._spool) as spool:
                for report in reports:
                    if len(report) != length:
                        LOG.warning("a reply was dropped: a sealed report has %d bytes, not %d", length, len(report))
                        continue
                    spool.write(report)
                    count += 1
            if count < minimum:
                LOG.warning("round %d: %d reports, at least %d are needed", number, count, minimum)
                return None
            # The whole guarantee rests on this permutation: from the system's generator, uniform over all orders.
            order = list(range(count))
            random.SystemRandom().shuffle(order)
            with open(self._spool, "rb") as arrivals:

                def permuted() -> Iterator[bytes]:
                    for place in order:
                        arrivals.seek(place * length)
                        yield arrivals.read(length)

                files.replace_summed(self.batch(number), permuted())
        finally:
            # Also on the way out: the order of arrival is what the shuffler must not keep.
            self._spool.unlink(missing_ok=True)
            files.sync_folder(self.folder)
        return self.batch(number)

    @property
    def confirmed(self) -> int:
        """The last round that was confirmed; 0 if none was."""
        path = self.folder / "confirmed"
        try:
            return int(path.read_text()) if path.exists() else 0
        except ValueError:
            raise InvalidInput(
                f"{path} must hold the last round that was confirmed: write its number into it"
            ) from None

    def done(self, number: int) -> None:
        """The analyst has confirmed the round: nothing of it is kept."""
        # First the mark, then the batch: after a crash in between the batch is delivered again, which changes nothing.
        if number > self.confirmed:
            files.replace(self.folder / "confirmed", [f"{number}\n".encode()])
        self.drop(number)

    def drop(self, number: int) -> None:
        """The batch of a round is of no use."""
        for path in (self.batch(number), self.batch(number).with_suffix(".damaged")):
            path.unlink(missing_ok=True)
        files.sync_folder(self.folder)


class AnalystError(DeploymentError, RuntimeError):
    """The analyst refused, or could not be reached for too long."""


class RefusedBatchError(AnalystError):
    """The analyst does not close the round with this batch."""


@dataclass(frozen=True, kw_only=True)
class OpenRound:
    """What the analyst says about the round it waits for; `number` is None when it opens no more."""

    number: int | None
    length: int
    dimension: int
    opening: bytes = b""
    reason: str = ""


class AnalystClient:
    """The analyst as the shuffler sees it: over TLS, patient with restarts, impatient with refusals."""

    def __init__(
        self, *, url: str, password: str, authority: str | Path | None = None, patience: float = 600.0
    ) -> None:
        if not url.startswith("https://"):
            raise InvalidInput(f"url must start with https://, got {url!r}")
        context = httpx.create_ssl_context(verify=str(authority)) if authority else httpx.create_ssl_context()
        self._http = httpx.Client(
            base_url=url,
            verify=context,
            headers={"Authorization": f"Bearer {password}"},
            timeout=httpx.Timeout(10.0, read=300.0),
            trust_env=False,  # no proxy that the environment names
        )
        self._patience = _validate.real("patience", patience)

    def open_round(self) -> OpenRound:
        """The round to collect next; asking again does not open another."""
        answer = self._ask(lambda: self._http.post("/v1/rounds"), allowed=(200, 403)).json()
        return OpenRound(
            number=answer.get("round"),
            length=answer.get("length", 0),
            dimension=answer.get("dimension", 0),
            opening=base64.b64decode(answer.get("opening", "")),
            reason=answer.get("detail", ""),
        )

    def model(self, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        content = self._ask(lambda: self._http.get(f"/v1/rounds/{number}/model")).content
        return np.frombuffer(content, dtype="<f4").copy()

    def deliver(self, number: int, batch: Path) -> dict[str, Any]:
        """The analyst's answer to a batch; the same batch has the same answer however often it is delivered."""
        size = batch.stat().st_size - files.SUM_BYTES

        def put() -> httpx.Response:
            with open(batch, "rb") as file:
                return self._http.put(
                    f"/v1/rounds/{number}/reports",
                    content=(file.read(min(BLOCK, size - start)) for start in range(0, size, BLOCK)),
                    headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
                )

        answer = self._ask(put, allowed=(200, 403, 409, 422))
        if answer.status_code != 200:
            raise RefusedBatchError(f"the analyst refused the batch of round {number}: {answer.json()['detail']}")
        closed: dict[str, Any] = answer.json()
        return closed

    def close(self) -> None:
        self._http.close()

    def _ask(self, request: Callable[[], httpx.Response], allowed: tuple[int, ...] = (200,)) -> httpx.Response:
        deadline = time.monotonic() + self._patience
        for wait in itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0)):
            try:
                response = request()
                if response.status_code in allowed:
                    return response
                trouble = f"{response.status_code} {response.text[:300]}"
                # 408 and 429 mean later, 5xx a restart; any other refusal will not change by waiting.
                if response.status_code < 500 and response.status_code not in (408, 429):
                    raise AnalystError(f"the analyst refused: {trouble}")
            except httpx.TransportError as error:
                trouble = repr(error)
            if time.monotonic() + wait > deadline:
                raise AnalystError(f"the analyst did not answer for {self._patience:g} seconds: {trouble}")
            LOG.warning("analyst: %s; trying again", trouble)
            time.sleep(wait)
        raise AssertionError("unreachable")


class Shuffler(Strategy):
    """Flower strategy: every node is asked, nobody is named, each round reaches the analyst exactly once.

    `minimum` is the smallest batch that is passed on; `timeout` the time that nodes have for a round
    (those that are late are left out, which the analyst's ledger accounts for). Once `enough` of the nodes,
    as a share of those that were asked, have replied, the rest has `grace` seconds left, so that a few slow or
    dead nodes do not hold a round. `attempts` is how often a round that stays below the minimum, or whose batch
    the analyst refuses, is tried before the run ends.
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
    ) -> None:
        self.analyst, self.journal = analyst, journal
        self.minimum = _validate.integer("minimum", minimum, minimum=2, maximum=_validate.USERS_MAX)
        self.timeout = _validate.real("timeout", timeout)
        self.enough = _validate.rate(enough, "enough")
        self.grace = _validate.real("grace", grace)
        self.attempts = _validate.integer("attempts", attempts, minimum=1, maximum=10**6)
        self.poll = _validate.real("poll", poll)
        self._length = 0
        self._opening = b""

    @classmethod
    def from_file(cls, path: str | Path) -> Shuffler:
        """The shuffler that a TOML file on its own machine describes."""
        data = files.table(path)
        needed = {"url", "password", "journal", "minimum"}
        known = {"authority", "timeout", "enough", "grace", "attempts", "patience"}
        if not needed <= set(data) <= needed | known:
            raise InvalidInput(
                f"{path} must have {', '.join(sorted(needed))}, got {', '.join(sorted(data)) or 'nothing'}"
            )
        analyst = AnalystClient(
            url=data.pop("url"),
            password=Path(data.pop("password")).read_text().strip(),
            authority=data.pop("authority", None),
            patience=data.pop("patience", 600.0),
        )
        return cls(analyst=analyst, journal=Journal(data.pop("journal")), **data)

    def summary(self) -> None:
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
        the numbers come from the analyst. `evaluate_fn` is called with each round's model. `timeout` is the
        constructor's; `evaluate_config` is unused, since no node evaluates.
        """
        self.summary()
        result = Result()
        # Batches of an earlier run first: nodes must not be asked twice for a round that may be closed.
        for number in self.journal.pending():
            with contextlib.suppress(RefusedBatchError):  # then it is collected again below
                result.train_metrics_clientapp[number] = self._deliver(number)
        while True:
            waiting = self.analyst.open_round()
            if waiting.number is None:
                LOG.info("the analyst opens no further round: %s", waiting.reason)
                break
            number = waiting.number
            # Nodes have answered this round: with other users once more, the difference would show some of them.
            if number <= (known := self.journal.confirmed):
                raise AnalystError(
                    f"the analyst waits for round {number}, and has closed round {known} before: it was put back to an "
                    "earlier state, and must enter what it has forgotten ('shoal analyst skip'); for another analyst "
                    "name another journal"
                )
            arrays = _shaped(self.analyst.model(number), initial_arrays)
            result.arrays = arrays
            if evaluate_fn and (metrics := evaluate_fn(number - 1, arrays)) is not None:
                result.evaluate_metrics_serverapp[number - 1] = metrics
            if number > num_rounds:
                break
            self._length, self._opening = waiting.length, waiting.opening
            result.train_metrics_clientapp[number] = self._close(number, arrays, train_config or ConfigRecord(), grid)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The model and the round for every node that is connected, once there are enough."""
        deadline = time.monotonic() + self.timeout
        while len(nodes := list(grid.get_node_ids())) < self.minimum:
            if time.monotonic() > deadline:
                raise AnalystError(f"minimum is {self.minimum} nodes, only {len(nodes)} are connected")
            time.sleep(self.poll)
        opened = ConfigRecord({**config, "round": server_round, "opening": self._opening})
        content = RecordDict({ARRAYS: arrays, CONFIG: opened})
        LOG.info("round %d: asking %d nodes", server_round, len(nodes))
        return (
            Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(server_round))
            for node in nodes
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write down the permuted batch; the model itself is the analyst's business."""
        self.journal.collect(server_round, _sealed(replies), length=self._length, minimum=self.minimum)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No node evaluates."""
        return ()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def _close(self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> MetricRecord:
        """Collect and deliver until the analyst has closed the round."""
        trouble = ""
        for _ in range(self.attempts):
            # Nodes that reported before send the same report again; nothing new is revealed by another attempt.
            self.aggregate_train(number, self._replies(grid, self.configure_train(number, arrays, config, grid)))
            if not self.journal.batch(number).exists():
                trouble = f"minimum is {self.minimum} reports"
                continue
            try:
                return self._deliver(number)
            except RefusedBatchError as error:
                trouble = str(error)
        raise AnalystError(f"round {number} could not be closed in {self.attempts} attempts: {trouble}")

    def _replies(self, grid: Grid, messages: Iterable[Message]) -> Iterator[Message]:
        """Replies as they come in, a few at a time, until all are there or the time is up."""
        deadline = time.monotonic() + self.timeout
        pending: list[str] = []
        stream = iter(messages)
        # In slices: all messages at once would be as many copies of the model in memory.
        while some := list(itertools.islice(stream, SLICE)):
            pending.extend(m for m in grid.push_messages(some) if m)
        # So many may be missing when the grace begins.
        few = len(pending) - max(self.minimum, math.ceil(self.enough * len(pending)))
        hurried = False
        while pending and time.monotonic() < deadline:
            answered = set()
            for start in range(0, len(pending), SLICE):
                for reply in grid.pull_messages(pending[start : start + SLICE]):
                    answered.add(reply.metadata.reply_to_message_id)
                    yield reply
            pending = [m for m in pending if m not in answered]
            if len(pending) <= few and not hurried:
                hurried, deadline = True, min(deadline, time.monotonic() + self.grace)
            if not answered:
                time.sleep(self.poll)
        if pending:
            LOG.warning("%d nodes did not answer in time", len(pending))

    def _deliver(self, number: int) -> MetricRecord:
        try:
            answer = self.analyst.deliver(number, self.journal.batch(number))
        except RefusedBatchError as error:
            # Kept, it would be delivered first at every start, and be refused again.
            LOG.error("%s", error)
            self.journal.drop(number)
            raise
        self.journal.done(number)
        LOG.info("round %d: %s", number, answer["guarantee"])
        return MetricRecord({"users": int(answer["users"]), "epsilon": float(answer["epsilon"]["upper"])})


def _sealed(replies: Iterable[Message]) -> Iterator[bytes]:
    """The sealed bytes of each reply, and nothing else of it; the log says how many did not report, and why."""
    reasons: collections.Counter[str] = collections.Counter()
    for reply in replies:
        if reply.has_error():
            # Only words of our own: a reason that came with an error could be anything, also something about data.
            reasons[REFUSALS.get(reply.error.code, f"Flower's error code {reply.error.code}")] += 1
            continue
        records = reply.content.config_records
        sealed = records[SEALED].get("sealed") if SEALED in records else None
        if isinstance(sealed, bytes):
            yield sealed
        else:
            reasons["a reply without a sealed report"] += 1
    for reason, count in sorted(reasons.items()):
        LOG.warning("%d nodes did not report: %s", count, reason)


def _shaped(vector: np.ndarray[Any, np.dtype[np.float32]], like: ArrayRecord) -> ArrayRecord:
    """A flat vector as arrays of the names, shapes and types of `like`."""
    templates = {name: array.numpy() for name, array in like.items()}
    if wrong := {str(t.dtype) for t in templates.values()} - {"float32", "float64"}:
        raise InvalidInput(f"initial_arrays must be of type float32 or float64, got {', '.join(sorted(wrong))}")
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

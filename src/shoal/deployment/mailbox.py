"""Replies of nodes, one by one: those that were requested, one for each message, of bounded size and in bounded time.

Flower's `HttpGrid.pull_messages` reads all replies of a request at once. A reply that names an object which was never
uploaded, or is no message at all, leaves it as an exception, and takes with it the other replies of the request, which
the SuperLink has forgotten by then; an upload that was announced and does not come holds it for minutes; and the
SuperLink adds whatever a node has addressed to the SuperLink itself. So the mailbox asks the SuperLink which replies
there are, and fetches the parts of each by itself: what is broken, too large or too late is dropped alone. Other grids,
as that of Flower's simulation in one process, are asked for all replies at once, and one by one after an exception.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

PARTS_MAX = 8
"""Objects that a reply may consist of: a message, its records and one array make four."""
OVERHEAD = 1 << 16
"""Bytes that a reply may have beside its sealed report."""
UPLOAD_SECONDS = 60.0
"""Seconds from the announcement of a reply to its last part."""
FAILURES_MAX = 3
"""How often a request for a reply may fail before the reply is given up."""
REQUEST_MAX = 500
"""Messages that one request asks about: a request that fails loses what it was about to bring."""


@dataclass(frozen=True, kw_only=True)
class Announced:
    """A reply whose parts are being fetched."""

    message_id: str
    parts: tuple[str, ...]
    deadline: float


@dataclass
class Mailbox:
    """The replies to the messages of a round; `largest` is the number of bytes that one of them may have."""

    grid: Grid
    largest: int
    dropped: collections.Counter[str] = field(default_factory=collections.Counter)
    """Why replies were dropped, in words of our own."""
    _announced: dict[str, Announced] = field(default_factory=dict)
    _failures: collections.Counter[str] = field(default_factory=collections.Counter)

    def pull(self, message_ids: Sequence[str], *, deadline: float) -> Iterator[tuple[str, Message | None]]:
        """The replies that have come, each under the message that it answers.

        Args:
            message_ids: the messages that have no reply yet.
            deadline: the moment, by the monotonic clock, after which no more parts are fetched.

        Yields:
            The message, and its reply; None for a reply that was dropped.
        """
        waiting = [message_id for message_id in message_ids if message_id not in self._announced]
        for start in range(0, len(waiting), REQUEST_MAX):
            yield from self._pull_some(waiting[start : start + REQUEST_MAX])
        for message_id in [m for m in message_ids if m in self._announced]:
            if time.monotonic() > deadline:
                return
            yield from self._fetched(message_id)

    def _pull_some(self, message_ids: Sequence[str]) -> Iterator[tuple[str, Message | None]]:
        """Ask for some messages; each by itself if that fails."""
        try:
            replies = list(self._request(message_ids))
        except Exception as error:  # Flower's client raises many kinds, and one reply must not end a run
            if len(message_ids) > 1:
                for message_id in message_ids:
                    yield from self._pull_some([message_id])
                return
            (message_id,) = message_ids
            self._failures[message_id] += 1
            if self._failures[message_id] >= FAILURES_MAX:
                yield self._drop(message_id, f"the reply could not be read ({type(error).__name__})")
            return
        pending = set(message_ids)
        for message_id, reply in replies:
            if message_id in pending:
                pending.remove(message_id)
                yield message_id, reply

    def _request(self, message_ids: Sequence[str]) -> Iterable[tuple[str, Message]]:
        """The replies of a grid; from a SuperLink only announcements, whose parts come later."""
        if not isinstance(self.grid, HttpGrid):
            return [(reply.metadata.reply_to_message_id, reply) for reply in self.grid.pull_messages(list(message_ids))]
        response = self._client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        expected = set(message_ids)
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            request_id = message.metadata.reply_to_message_id
            # Only what was requested, and the first of it: a node may send whatever it likes under any name.
            if request_id in expected and request_id not in self._announced:
                self._announced[request_id] = Announced(
                    message_id=message.metadata.message_id,
                    parts=_part_ids(tree),
                    deadline=time.monotonic() + UPLOAD_SECONDS,
                )
        return []

    @property
    def _client(self) -> Any:
        """The SuperLink, as Flower's grid reaches it."""
        return self.grid._runtime_client  # type: ignore[attr-defined]

    def _fetched(self, request_id: str) -> Iterator[tuple[str, Message | None]]:
        """A reply whose parts are all there; nothing while some are still on their way."""
        reply = self._announced[request_id]
        if not 0 < len(reply.parts) <= PARTS_MAX or reply.message_id not in reply.parts:
            yield self._drop(request_id, "the reply had not the form of one")
            return
        try:
            contents = self._contents(reply)
            if contents is None:
                if time.monotonic() > reply.deadline:
                    yield self._drop(request_id, "the reply was announced and did not come")
                return
            if sum(map(len, contents.values())) > self.largest + OVERHEAD:
                yield self._drop(request_id, "the reply was too large")
                return
            message = inflate_object_from_contents(reply.message_id, contents)
            if not isinstance(message, Message) or not (message.has_content() or message.has_error()):
                yield self._drop(request_id, f"the reply could not be read (it is a {type(message).__name__})")
                return
        except Exception as error:  # as above: whatever is in it concerns this reply only
            yield self._drop(request_id, f"the reply could not be read ({type(error).__name__})")
            return
        self._forget(request_id)
        yield request_id, message

    def _contents(self, reply: Announced) -> dict[str, bytes] | None:
        """The parts of a reply as far as they are needed to judge it; None if one is still on its way."""
        contents: dict[str, bytes] = {}
        for part in reply.parts:
            request = PullObjectRequest(node=self.grid.node, run_id=self.grid.run.run_id, object_id=part)  # type: ignore[attr-defined]
            response = self._client.PullObject(request)
            if not response.object_found:
                raise LookupError(part)
            if not response.object_available:
                return None
            contents[part] = response.object_content
            if sum(map(len, contents.values())) > self.largest + OVERHEAD:
                return contents
        return contents

    def _drop(self, request_id: str, reason: str) -> tuple[str, None]:
        self.dropped[reason] += 1
        self._forget(request_id)
        return request_id, None

    def _forget(self, request_id: str) -> None:
        """Let the SuperLink forget a reply that is dealt with."""
        reply = self._announced.pop(request_id, None)
        if reply is None:
            return
        request = ConfirmMessageReceivedRequest(
            node=self.grid.node,  # type: ignore[attr-defined]
            run_id=self.grid.run.run_id,
            message_object_id=reply.message_id,
        )
        try:
            self._client.ConfirmMessageReceived(request)
        except Exception:  # it keeps some bytes until the run ends: nothing to end a round for
            self.dropped["the SuperLink keeps a reply"] += 1


def _part_ids(tree: ObjectTree) -> tuple[str, ...]:
    """The objects of a tree, each once; one more than allowed if there are more, none if it is too deep."""
    parts: dict[str, None] = {}
    try:
        for node in iterate_object_tree(tree):
            parts[node.object_id] = None
            if len(parts) > PARTS_MAX:
                break
    except RecursionError:
        return ()
    return tuple(parts)

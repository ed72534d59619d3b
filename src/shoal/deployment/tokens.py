"""Tokens: how the analyst counts users whom it cannot name.

At enrolment a third party, the **registrar** (`shoal flower enrol`), gives every node a secret of 32 bytes. The
token of a node in a round is derived from it:

    token       = HMAC-SHA256(secret, "shoal token 3" | digest of the task | round), 16 bytes
    mark        = SHA-256("shoal mark 3" | digest of the task | round | token),      16 bytes
    next secret = HMAC-SHA256(secret, "shoal ratchet 3"),                            32 bytes

The secret that the registrar hands out is that of round 1; each round has the next one. A node forgets the secrets of
the rounds that it has answered, so that who gets hold of it cannot tell which of the tokens before were its own.

The analyst is given the **roster**: for each round the marks of all nodes, sorted. Whoever holds the roster can
check a token and cannot make one; the sorted marks of a round say neither whose they are nor which of them
belong to the same node in another round. A token is good for one round of one task, and counts once.

A roster file is a line of JSON and then, for each round, `nodes` marks of 16 bytes. It is written round by
round, so that memory does not grow with the number of rounds: 1,000 nodes for 1,000 rounds are 16 MB on disk.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import hashlib
import hmac
import itertools
import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import _validate
from shoal.deployment import files, keys
from shoal.deployment.task import CROWD_MAX, ROUND_MAX, TOKEN_BYTES, Task
from shoal.errors import DataError, InvalidInput

SECRET_BYTES = 32
MARK_BYTES = 16
"""Of a hash: enough that no two of a billion nodes share a mark by chance."""

REGISTRAR, SECRETS = "registrar.json", "secrets"
ROSTER_FORMAT = "shoal roster 3"


def token(secret: bytes, *, task: Task, round_number: int) -> bytes:
    """The token of a node in a round.

    Args:
        secret: the node's secret of this round.
        task: the task.
        round_number: the round.

    Returns:
        16 bytes.
    """
    return hmac.digest(secret, _token_head(task.digest, round_number), "sha256")[:TOKEN_BYTES]


def later_secret(secret: bytes, *, rounds: int) -> bytes:
    """The secret of a later round.

    Args:
        secret: the secret of a round.
        rounds: how many rounds later.

    Returns:
        32 bytes, from which the earlier secret cannot be computed.
    """
    for _ in range(rounds):
        secret = hmac.digest(secret, b"shoal ratchet 3", "sha256")
    return secret


def mark(value: bytes, *, digest: bytes, round_number: int) -> bytes:
    """What the roster holds of a token.

    Args:
        value: the token.
        digest: the task's digest.
        round_number: the round.

    Returns:
        16 bytes.
    """
    head = b"shoal mark 3" + digest + round_number.to_bytes(8, "big")
    return hashlib.sha256(head + value).digest()[:MARK_BYTES]


def marks(members: Sequence[bytes], *, task: Task, round_number: int) -> list[bytes]:
    """The marks of a round, sorted, so that their order says nothing.

    Args:
        members: the secrets of all nodes in this round.
        task: the task.
        round_number: the round.

    Returns:
        A mark for each node.
    """
    # As `token` and `mark` say; the digest, which all share, is made once for millions of them.
    digest = task.digest
    head = _token_head(digest, round_number)
    round_tokens = (hmac.digest(secret, head, "sha256")[:TOKEN_BYTES] for secret in members)
    return sorted(mark(value, digest=digest, round_number=round_number) for value in round_tokens)


def _token_head(digest: bytes, round_number: int) -> bytes:
    return b"shoal token 3" + digest + round_number.to_bytes(8, "big")


def secret_text(secret: bytes) -> str:
    """A secret as text for a file."""
    return base64.b64encode(secret).decode()


def read_secret(path: Path) -> bytes:
    """A node's secret, as the registrar wrote it; `DataError` if the file holds none."""
    try:
        secret = base64.b64decode(path.read_text().strip(), validate=True)
    except FileNotFoundError:
        raise DataError(
            f"{path} must hold the node's secret from 'shoal flower enrol', there is no such file"
        ) from None
    except (binascii.Error, UnicodeDecodeError):
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise DataError(f"{path} must hold {SECRET_BYTES} bytes in base64, as 'shoal flower enrol' wrote them")
    return secret


def enrol_nodes(
    folder: Path, *, task: Task, nodes: int, first: int, last: int, revoked: Collection[int] = ()
) -> tuple[Path, list[Path]]:
    """Make a roster, and a file with the secret of each new node.

    The secrets come from one key in `registrar.json`, so that a roster for later rounds or with more nodes can
    follow; a registrar that has handed out everything should forget it, and the secrets with it.

    Args:
        folder: the registrar's folder.
        task: the task.
        nodes: the number of nodes that are enrolled in all.
        first: the first round of the roster.
        last: the last round of the roster.
        revoked: the numbers of nodes, as in the names of their secrets, that the roster leaves out.

    Returns:
        The roster, and the files of the new nodes.

    Raises:
        InvalidInput: there are too few nodes, or the roster exists already.
        DataError: the registrar's key is damaged or gone.
    """
    count = _validate.integer("nodes", nodes, minimum=task.minimum, maximum=CROWD_MAX)
    start = _validate.integer("first", first, minimum=1, maximum=ROUND_MAX)
    end = _validate.integer("last", last, minimum=start, maximum=ROUND_MAX)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    roster = folder / f"{task.name}-{start}-{end}.roster"
    if roster.exists():
        raise InvalidInput(f"{roster} must not exist yet: name other rounds or another folder")
    # Secrets come from one key by their number, so that an enrolment that broke off, or grows, gives the same again.
    master, enrolled = _registrar(folder)
    members = [_member(master, place) for place in range(1, count + 1)]
    for place in revoked:
        _validate.integer("revoked", place, minimum=1, maximum=count)
    counted = [member for place, member in enumerate(members, 1) if place not in revoked]
    if len(counted) < task.minimum:
        raise InvalidInput(f"revoked must leave at least {task.minimum} nodes, {len(counted)} of {count} would be left")
    (folder / SECRETS).mkdir(exist_ok=True, mode=0o700)
    new = []
    for place in range(enrolled + 1, count + 1):
        new.append(folder / SECRETS / f"{place:06d}.secret")
        new[-1].unlink(missing_ok=True)  # left by an enrolment that broke off: the same again
        keys.write_secret(new[-1], secret_text(members[place - 1]).encode() + b"\n")
    head = {"format": ROSTER_FORMAT, "task": task.digest.hex(), "first": start, "last": end, "nodes": len(counted)}

    def pieces() -> Iterator[bytes]:
        yield json.dumps(head).encode() + b"\n"
        present = [later_secret(member, rounds=start - 1) for member in counted]
        for round_number in range(start, end + 1):
            yield b"".join(marks(present, task=task, round_number=round_number))
            present = [later_secret(member, rounds=1) for member in present]

    # The roster first: nodes that are remembered as enrolled must be in a roster.
    files.replace(roster, pieces())
    _remember(folder, master, max(enrolled, count))
    return roster, new


def _remember(folder: Path, master: bytes, nodes: int) -> None:
    state = {"key": secret_text(master), "nodes": nodes}
    files.replace(folder / REGISTRAR, [json.dumps(state).encode() + b"\n"])


def _registrar(folder: Path) -> tuple[bytes, int]:
    """The registrar's key and the number of nodes that have been given secrets.

    A new key is written down before anything is made from it: an enrolment that breaks off goes on with the same
    secrets.
    """
    path = folder / REGISTRAR
    if not path.exists():
        if (folder / SECRETS).exists():
            raise DataError(f"{path} is gone, and with it the key of all enrolled nodes: enrol in a new folder")
        master = secrets.token_bytes(SECRET_BYTES)
        _remember(folder, master, 0)
        return master, 0
    try:
        state = json.loads(path.read_text())
        return base64.b64decode(state["key"], validate=True), int(state["nodes"])
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"{path} is damaged: restore it from a backup, or enrol all nodes anew in a new folder"
        ) from None


def _member(master: bytes, place: int) -> bytes:
    return hmac.digest(master, b"shoal node" + place.to_bytes(8, "big"), "sha256")


@dataclass(frozen=True, kw_only=True)
class Roster:
    """A roster file: which marks are good in a round."""

    path: Path
    task: str
    first: int
    last: int
    nodes: int
    offset: int

    @classmethod
    def read(cls, path: Path) -> Roster:
        """The head of a roster file; `DataError` if it is no roster, or not whole."""
        try:
            with open(path, "rb") as file:
                line = file.readline(4096)
                head: dict[str, Any] = json.loads(line)
            if head.pop("format") != ROSTER_FORMAT or not isinstance(head["task"], str):
                raise ValueError
            if [type(head[name]) for name in ("first", "last", "nodes")] != [int] * 3:
                raise ValueError
            roster = cls(path=path, offset=len(line), **head)
            _validate.integer("first", roster.first, minimum=1, maximum=ROUND_MAX)
            _validate.integer("last", roster.last, minimum=roster.first, maximum=ROUND_MAX)
            _validate.integer("nodes", roster.nodes, minimum=1, maximum=CROWD_MAX)
            size = roster.offset + (roster.last - roster.first + 1) * roster.nodes * MARK_BYTES
        except FileNotFoundError:
            raise DataError(f"{path} must be a roster from 'shoal flower enrol', there is no such file") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{path} must be a roster from 'shoal flower enrol', this is something else") from None
        # Its size says whether all of it came through; `check` looks at the marks.
        if path.stat().st_size != size:
            raise DataError(
                f"{path} is damaged: it has {path.stat().st_size} bytes, not {size}; ask the registrar again"
            )
        return roster

    @property
    def fingerprint(self) -> str:
        """The digest of the whole file, in hexadecimal digits: registrar and analyst compare it."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def check(self) -> None:
        """Look at the marks of every round; `DataError` unless they are sorted and no two are the same."""
        for round_number in range(self.first, self.last + 1):
            block = self.marks(round_number)
            if any(a >= b for a, b in itertools.pairwise(block[i] for i in range(len(block)))):
                raise DataError(f"{self.path} is damaged in round {round_number}: ask the registrar again")

    def marks(self, round_number: int) -> Marks:
        """The marks of all nodes in a round."""
        width = self.nodes * MARK_BYTES
        with open(self.path, "rb") as file:
            file.seek(self.offset + (round_number - self.first) * width)
            return Marks(file.read(width))


class Marks:
    """The sorted marks of a round: 16 bytes for each node, and no more."""

    def __init__(self, block: bytes) -> None:
        self._block = block

    def __len__(self) -> int:
        return len(self._block) // MARK_BYTES

    def __getitem__(self, place: int) -> bytes:
        return self._block[place * MARK_BYTES : (place + 1) * MARK_BYTES]

    def find(self, value: bytes) -> int | None:
        """The place of a mark; None if it is nobody's."""
        place = bisect.bisect_left(self, value, 0, len(self))
        return place if place < len(self) and self[place] == value else None

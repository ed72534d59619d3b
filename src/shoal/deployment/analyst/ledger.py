"""The analyst's ledger: a line for each closed round, chained by keyed hashes.

A line's link is a keyed hash of the link before it and of the line, so that a changed digit is noticed. The file
`head` beside the database names the last link, so that lines which are missing at the end are noticed, too.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.accountant import Accountant
from shoal.deployment import files
from shoal.deployment.analyst.database import Database
from shoal.deployment.analyst.models import Models
from shoal.deployment.errors import RESTORE_ADVICE, ConflictError, DamagedError
from shoal.mechanisms import from_dict

HEAD = "head"
COLUMNS = ("round", "batch", "users", "reports", "refused", "entry", "answer", "model")
"""Columns of a round that the chain covers."""


@dataclass(frozen=True, kw_only=True)
class RoundLine:
    """A closed round, as its columns say; `model` is the digest of the model after it."""

    round: int
    batch: bytes
    users: int
    reports: int
    refused: str
    entry: str
    answer: str
    model: bytes

    def cells(self) -> tuple[Any, ...]:
        """The values of the columns, in order."""
        return tuple(getattr(self, name) for name in COLUMNS)


@dataclass(frozen=True, kw_only=True)
class Book:
    """What a ledger said when it was read: the end of its chain, the round that comes next, and what is spent."""

    chain: bytes
    next_round: int
    accountant: Accountant


class ChainedLedger:
    """The ledger in an analyst's database; `head` is the last round that was closed and its link, if it is known."""

    def __init__(
        self, folder: Path, database: Database, models: Models, *, key: bytes, settings: str, start: bytes
    ) -> None:
        self._folder, self._database, self._models, self._key = folder, database, models, key
        self._beginning = _settings_link(key, settings)
        self._start = start
        """The digest of the model that everything began with."""
        self.head: tuple[int, bytes] | None = None

    @classmethod
    def begin(cls, folder: Path, *, key: bytes, settings: str) -> None:
        """Write the head of a ledger without lines.

        Args:
            folder: the analyst's folder.
            key: the key of the chain.
            settings: the settings as text.
        """
        files.replace(folder / HEAD, [_head_text(0, _settings_link(key, settings))])

    def read(self) -> Book:
        """The ledger, checked line by line; `DamagedError` if it is not as it was written."""
        # Of one state: lines and models that are read one after the other may have a round between them.
        with self._database.snapshot():
            rows = self._database.execute(f"SELECT {', '.join(COLUMNS)}, chain FROM rounds ORDER BY round")
            digests = self._models.digests()
        path, chain, accountant = self._database.path, self._beginning, Accountant()
        self._check_head(len(rows))
        ledger_digests = {self._start}
        for expected, (*cells, stored) in enumerate(rows, 1):
            chain = _link(self._key, chain, cells)
            if cells[0] != expected or not hmac.compare_digest(chain, stored):
                raise DamagedError(
                    f"{path} is damaged: the ledger's line for round {expected} is not as it was written; "
                    f"{RESTORE_ADVICE}"
                )
            self._check_link(expected, chain)
            line = RoundLine(**dict(zip(COLUMNS, cells, strict=True)))
            accountant.compose(from_dict(json.loads(line.entry)))
            ledger_digests.add(line.model)
        if max(digests, default=0) != len(rows) + 1:
            raise DamagedError(f"{path} is damaged: model and ledger are of different rounds; {RESTORE_ADVICE}")
        for round_number, digest in digests.items():
            if digest not in ledger_digests:
                raise DamagedError(
                    f"{path} is damaged: the model of round {round_number} is not as it was; {RESTORE_ADVICE}"
                )
        return Book(chain=chain, next_round=len(rows) + 1, accountant=accountant)

    def _check_head(self, rounds: int) -> None:
        """Refuse a ledger that ends too early, or begins with other settings."""
        if self.head is None:
            return
        last, link = self.head
        # The head stands beside the database: an older copy of the database alone does not go unnoticed.
        if last > rounds:
            raise DamagedError(
                f"{self._database.path} is damaged: the ledger ends with round {rounds}, and round {last} was closed; "
                f"restore the folder as it was then, or enter what is missing: shoal analyst skip {self._folder} "
                f"--to {last + 1}"
            )
        if last == 0 and not hmac.compare_digest(self._beginning, link):
            raise DamagedError(
                f"{self._database.path} is damaged: its settings are not as they were written; {RESTORE_ADVICE}"
            )

    def _check_link(self, round_number: int, chain: bytes) -> None:
        if self.head is not None and self.head[0] == round_number and not hmac.compare_digest(chain, self.head[1]):
            raise DamagedError(
                f"{self._folder / HEAD} and {self._database.path} are of different analysts; {RESTORE_ADVICE}"
            )

    def append(self, book: Book, line: RoundLine, content: bytes) -> bytes:
        """Write down a closed round and the model after it, inside a transaction.

        Args:
            book: the ledger before it.
            line: the round.
            content: the model.

        Returns:
            The chain's new end.
        """
        chain = _link(self._key, book.chain, line.cells())
        self._database.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *line.cells(), chain)
        self._models.add(line.round + 1, content)
        return chain

    def rows(self) -> list[dict[str, Any]]:
        """The closed rounds, without what belongs to the chain."""
        names = ("round", "users", "reports", "refused", "entry", "answer")
        rows = self._database.execute(f"SELECT {', '.join(names)} FROM rounds ORDER BY round")
        lines = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**line, **{name: json.loads(line[name]) for name in names[3:]}} for line in lines]

    def answer(self, round_number: int, batch: bytes) -> str:
        """The answer that a closed round's batch was given.

        Args:
            round_number: the round.
            batch: the digest of the batch.

        Returns:
            The answer as text.

        Raises:
            ConflictError: the round was closed with another batch.
        """
        ((stored, answer),) = self._database.execute("SELECT batch, answer FROM rounds WHERE round = ?", round_number)
        if stored != batch:
            raise ConflictError(f"round {round_number} is closed, with another batch")
        return str(answer)

    def read_head(self) -> tuple[int, bytes]:
        """The last round that was closed and its link, by the file beside the database."""
        path = self._folder / HEAD
        try:
            stored = json.loads(path.read_text())
            return int(stored["round"]), bytes.fromhex(stored["chain"])
        except (OSError, ValueError, KeyError, TypeError):
            raise DamagedError(
                f"{path} is missing or damaged: restore the folder from a backup, or name the round that comes next: "
                f"shoal analyst skip {self._folder} --to ROUND"
            ) from None

    def write_head(self, round_number: int, chain: bytes) -> None:
        """Name the last round that was closed, and its link.

        Args:
            round_number: the round; 0 if none was closed.
            chain: the end of the chain.
        """
        if self.head != (round_number, chain):
            files.replace(self._folder / HEAD, [_head_text(round_number, chain)])
            self.head = (round_number, chain)


def _settings_link(key: bytes, settings: str) -> bytes:
    """The chain before its first line."""
    return hmac.digest(key, settings.encode(), "sha256")


def _link(key: bytes, chain: bytes, cells: Sequence[Any]) -> bytes:
    """The chain after one more line."""
    content = [cell.hex() if isinstance(cell, bytes) else cell for cell in cells]
    return hmac.digest(key, chain + json.dumps(content).encode(), "sha256")


def _head_text(round_number: int, chain: bytes) -> bytes:
    return json.dumps({"round": round_number, "chain": chain.hex()}).encode() + b"\n"

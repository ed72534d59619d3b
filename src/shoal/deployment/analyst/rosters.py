"""The analyst's rosters: which tokens are good in a round."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from shoal.deployment import files
from shoal.deployment.analyst.database import Database
from shoal.deployment.errors import DamagedError, ExhaustedError
from shoal.deployment.task import Task
from shoal.deployment.tokens import Marks, Roster
from shoal.errors import DataError

ROSTERS = "rosters"


class Rosters:
    """The rosters that were admitted; where two have the same round, the newer one counts."""

    def __init__(self, folder: Path, database: Database, *, key: bytes) -> None:
        self._folder, self._database, self._key = folder / ROSTERS, database, key
        self._marks: tuple[int, Marks] | None = None
        """The round that was looked up last, and its marks."""

    def admit(self, source: Path, *, task: Task, next_round: int) -> Roster:
        """Take in a roster.

        Args:
            source: the file from the registrar.
            task: the task that it must be made for.
            next_round: the first round that is not closed; closed rounds were counted by the roster they had.

        Returns:
            The roster.

        Raises:
            DataError: it is damaged, of another task, of past rounds, or too small.
        """
        roster = Roster.read(source)
        if roster.task != task.digest.hex():
            raise DataError(f"{source} must be a roster of this task and its terms, this one is of another")
        if roster.nodes < task.minimum:
            raise DataError(f"{source} must enrol at least {task.minimum} nodes, got {roster.nodes}")
        if roster.first < next_round:
            raise DataError(f"{source} must begin at round {next_round} or later, got {roster.first}")
        roster.check()
        with self._database.lock:
            ((place,),) = self._database.execute("SELECT COALESCE(MAX(place), 0) + 1 FROM rosters")
            target = self._folder / f"{place:04d}.roster"
            with open(source, "rb") as file:
                files.replace(target, iter(lambda: file.read(1 << 20), b""))
            digest = self._digest(target, place)
            self._database.execute("INSERT INTO rosters VALUES (?, ?, ?)", target.name, digest, place)
            self._marks = None
        return roster

    def check(self) -> None:
        """Compare all rosters with what was admitted; `DamagedError` if one is not the same."""
        for name, digest, place in self._database.execute("SELECT name, digest, place FROM rosters"):
            path = self._folder / name
            Roster.read(path)
            if not hmac.compare_digest(self._digest(path, place), digest):
                raise DamagedError(f"{path} is damaged: restore it from a backup, or ask the registrar again")

    def marks(self, round_number: int) -> Marks:
        """The marks of those who may report in a round; `ExhaustedError` if there is no roster for it."""
        with self._database.lock:
            if self._marks is None or self._marks[0] != round_number:
                self._marks = (round_number, self._of_round(round_number).marks(round_number))
            return self._marks[1]

    def _of_round(self, round_number: int) -> Roster:
        for (name,) in self._database.execute("SELECT name FROM rosters ORDER BY place DESC"):
            roster = Roster.read(self._folder / name)
            if roster.first <= round_number <= roster.last:
                return roster
        raise ExhaustedError(
            f"round {round_number} has no roster: have nodes enrolled (shoal flower enrol) and admit the roster "
            "(shoal analyst admit)"
        )

    def _digest(self, path: Path, place: int) -> bytes:
        """Keyed as the ledger is: whoever can change the database, and nothing else, cannot enrol anybody."""
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        return hmac.digest(self._key, f"roster {path.name} {place} ".encode() + content, "sha256")

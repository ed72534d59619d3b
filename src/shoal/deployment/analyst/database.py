"""The analyst's database: one SQLite file, which several threads of a process share."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.deployment.errors import RESTORE_ADVICE, DamagedError

VERSION = 2
SCHEMA = (
    "CREATE TABLE settings (version INTEGER NOT NULL, settings TEXT NOT NULL)",
    "CREATE TABLE models (round INTEGER PRIMARY KEY, vector BLOB NOT NULL)",
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, batch BLOB NOT NULL, users INTEGER NOT NULL, "
    "reports INTEGER NOT NULL, refused TEXT NOT NULL, entry TEXT NOT NULL, answer TEXT NOT NULL, "
    "model BLOB NOT NULL, chain BLOB NOT NULL)",
    "CREATE TABLE rosters (name TEXT PRIMARY KEY, digest BLOB NOT NULL, place INTEGER NOT NULL)",
)


class Database:
    """A connection that runs the statements of several threads one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        """Held by whoever needs several statements to see the same state."""
        self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            with self._errors_explained():
                self.connection.execute("PRAGMA journal_mode = WAL")
                self.connection.execute("PRAGMA synchronous = FULL")  # what is answered must survive a loss of power
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, settings: str) -> Database:
        """Make the tables and write the settings down.

        Args:
            path: an empty file.
            settings: the settings as text.

        Returns:
            The open database.
        """
        database = cls(path)
        with database.transaction():
            for statement in SCHEMA:
                database.execute(statement)
            database.execute("INSERT INTO settings VALUES (?, ?)", VERSION, settings)
        return database

    def settings(self) -> str:
        """The settings as text; `DamagedError` if the file is not what it was."""
        with self.lock:
            # A database that is damaged somewhere answers many questions still, and wrongly.
            ((fault,),) = self.execute("PRAGMA quick_check(1)")
            if fault != "ok":
                raise DamagedError(f"{self.path} is damaged ({fault}): {RESTORE_ADVICE}")
            rows = self.execute("SELECT version, settings FROM settings")
        if not rows:
            raise DamagedError(f"{self.path} is damaged (no settings): {RESTORE_ADVICE}")
        ((version, settings),) = rows
        if version != VERSION:
            raise DamagedError(f"{self.path} must be of version {VERSION}, got {version}")
        return str(settings)

    def execute(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a statement.

        Args:
            statement: in SQL, with question marks.
            values: one for each question mark.

        Returns:
            All rows.
        """
        with self.lock, self._errors_explained():
            return self.connection.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements inside happen, or none."""
        with self.lock:
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All statements inside see one state, also while another process closes rounds."""
        with self.lock:
            if self.connection.in_transaction:
                yield
                return
            self.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """SQLite's errors about a file that is no database any more, with what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):  # a full disk, say, damages nothing
                raise
            raise DamagedError(f"{self.path} is damaged ({error}): {RESTORE_ADVICE}") from None
        except sqlite3.DatabaseError as error:
            raise DamagedError(f"{self.path} is damaged ({error}): {RESTORE_ADVICE}") from None

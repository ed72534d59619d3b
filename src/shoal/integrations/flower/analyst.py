"""The analyst: opens, adds up, applies, accounts. Its whole state is one folder.

`analyst.db` (SQLite, write-ahead log) holds the settings, the model and one line for each closed round;
`analyst.key` the private key; `token` the secret by which the shuffler is known. A round, its new model and
its ledger entry are committed in one transaction: after a crash either all of it has happened or none.

**What is counted.** A round's number of users is the number of reports that opened, were of this round and
task, and were not seen before; dummies count, since their senders tossed the coin as well. Nodes that
dropped out, and reports that were refused, do not count, and by the monotonicity theorem (fewer users are
never more private) the entry with the smaller number is the honest one. By the same theorem the ledger rounds
the number down by up to 3% (`counted`): rounds with nearly the same number of users are then one mechanism,
and epsilon takes seconds whatever the number of rounds. Dropping out must not depend on a node's data.

**What is added.** model + step * sum(reports) / (rate * users): the expected number of reports, so that
neither the model nor its scale tells how many checked in.

**What is stored.** Counts, the sum (as the model), and a hash of each batch by which a repetition is known.
No report, no report id, no time, no address.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from shoal import _validate
from shoal._validate import FloatArray
from shoal.accountant import Accountant
from shoal.integrations.flower import keys
from shoal.integrations.flower.budget import BudgetAccountant
from shoal.integrations.flower.report import REASONS, RefusedError, Task, unseal
from shoal.mechanisms import Crowd, from_dict

DATABASE, KEY, TOKEN = "analyst.db", "analyst.key", "token"
VERSION = 1
USERS_MAX = 10**7
LEADING_BITS = 6

SCHEMA = (
    "CREATE TABLE settings (version INTEGER NOT NULL, settings TEXT NOT NULL)",
    "CREATE TABLE model (round INTEGER NOT NULL, vector BLOB NOT NULL)",
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, batch BLOB NOT NULL, users INTEGER NOT NULL, "
    "reports INTEGER NOT NULL, refused TEXT NOT NULL, entry TEXT NOT NULL, answer TEXT NOT NULL)",
)


class ConflictError(ValueError):
    """A batch for a round that is not open, or another batch for one that is closed."""


class ExhaustedError(ValueError):
    """One more round could exceed the budget."""


class BusyError(RuntimeError):
    """Another batch is being received."""


class BatchError(ValueError):
    """A batch that cannot be one of this task: wrong length or too few reports."""


class TooLargeError(ValueError):
    """A batch with more reports than the analyst was set up for."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much the rounds may cost together: epsilon at delta, for a crowd."""

    epsilon: float
    delta: float
    crowd: Crowd = "any"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.epsilon(self.epsilon))
        object.__setattr__(self, "delta", _validate.delta(self.delta))
        _validate.choice("crowd", self.crowd, get_args(Crowd))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an analyst is set up with; fixed for the life of its folder.

    `minimum` and `maximum` bound the reports of a batch; `step` scales the mean update.
    """

    task: Task
    budget: Budget
    minimum: int
    maximum: int = 1_000_000
    step: float = 1.0

    def __post_init__(self) -> None:
        low = _validate.integer("minimum", self.minimum, minimum=2, maximum=USERS_MAX)
        high = _validate.integer("maximum", self.maximum, minimum=low, maximum=USERS_MAX)
        step = _validate.real("step", self.step)
        if step <= 0:
            raise ValueError(f"step must be positive, got {step}")
        for field, value in {"minimum": low, "maximum": high, "step": step}.items():
            object.__setattr__(self, field, value)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Settings:
        return cls(**{**data, "task": Task(**data["task"]), "budget": Budget(**data["budget"])})


def counted(users: int) -> int:
    """The number of users that the ledger counts on: rounded down to its six leading binary digits.

    >>> [counted(n) for n in (3, 63, 64, 65, 1_000, 1_023)]
    [3, 63, 64, 64, 992, 1008]
    """
    spare = max(users.bit_length() - LEADING_BITS, 0)
    return users >> spare << spare


class Analyst:
    """One analyst on one folder. Methods may be called from several threads."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / DATABASE
        if not path.exists():
            raise ValueError(f"{self.folder} must be a folder made by 'shoal analyst init', there is no {DATABASE}")
        self.key: X25519PrivateKey = keys.read_private(self.folder / KEY)
        self.token = (self.folder / TOKEN).read_text().strip()
        self._db = _connect(path)
        self._lock = threading.RLock()
        self._receiving = threading.Lock()
        version, settings = self._db.execute("SELECT version, settings FROM settings").fetchone()
        if version != VERSION:
            raise ValueError(f"{path} must be of version {VERSION}, got {version}")
        self.settings = Settings.from_dict(json.loads(settings))
        self._ledger = BudgetAccountant(
            target_delta=self.settings.budget.delta, max_epsilon=self.settings.budget.epsilon
        )
        self._exceeds: bool | None = None
        """Whether one more round could exceed the budget, once it has been computed."""
        for row in self.rounds():
            self._ledger.compose(from_dict(row["entry"]))

    @classmethod
    def create(cls, folder: str | Path, settings: Settings, *, model: FloatArray | None = None) -> Analyst:
        """Set up a new folder: key pair, token, settings and the model to start from (zero if none is given)."""
        home = Path(folder)
        vector = np.zeros(settings.task.dimension) if model is None else np.asarray(model, dtype=np.float64).ravel()
        if vector.shape != (settings.task.dimension,) or not np.isfinite(vector).all():
            raise ValueError(f"model must be {settings.task.dimension} finite numbers, got {vector.size}")
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (home / DATABASE).exists() or (home / KEY).exists():
            raise ValueError(f"{home} must be a new folder: it holds an analyst already")
        keys.write_secret(home / KEY, keys.private_pem(X25519PrivateKey.generate()))
        keys.write_secret(home / TOKEN, secrets.token_urlsafe(32).encode() + b"\n")
        db = _connect(home / DATABASE)
        with _transaction(db):
            for statement in SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO settings VALUES (?, ?)", (VERSION, json.dumps(asdict(settings))))
            db.execute("INSERT INTO model VALUES (1, ?)", (vector.astype("<f8").tobytes(),))
        db.close()
        return cls(home)

    @property
    def _crowd(self) -> Crowd:
        return self.settings.budget.crowd

    def close(self) -> None:
        self._db.close()

    @property
    def public_key(self) -> str:
        return keys.public_text(self.key.public_key())

    def present(self) -> tuple[int, FloatArray]:
        """The round that comes next, and the model that it starts from."""
        with self._lock:
            number, vector = self._db.execute("SELECT round, vector FROM model").fetchone()
        return number, np.frombuffer(vector, dtype="<f8").copy()

    @property
    def next_round(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT round FROM model").fetchone()[0])

    def rounds(self) -> list[dict[str, Any]]:
        """What is known of each closed round."""
        names = ("round", "users", "reports", "refused", "entry", "answer")
        with self._lock:
            found = self._db.execute(f"SELECT {', '.join(names)} FROM rounds ORDER BY round").fetchall()
        rows = [dict(zip(names, row, strict=True)) for row in found]
        return [{**r, **{k: json.loads(r[k]) for k in ("refused", "entry", "answer")}} for r in rows]

    def accountant(self, crowd: Crowd | None = None) -> Accountant:
        """The ledger; for another crowd than the budget's if one is named."""
        total = Accountant()
        for entry in self._ledger.accountant:
            total.compose(
                entry.mechanism if crowd is None else entry.mechanism.replace(crowd=crowd), rounds=entry.rounds
            )
        return total

    def open_round(self) -> int:
        """The round that is waited for; `ExhaustedError` if it could exceed the budget with the fewest users."""
        budget = self.settings.budget
        with self._lock:
            if self._exceeds is None:
                worst = self.settings.task.mechanism(users=counted(self.settings.minimum), crowd=self._crowd)
                self._exceeds = self._ledger.would_exceed(worst)
            if self._exceeds:
                raise ExhaustedError(
                    f"round {self.next_round} with {self.settings.minimum} users could exceed the budget of epsilon = "
                    f"{budget.epsilon:g} at delta = {budget.delta:g} ({budget.crowd} crowd)"
                )
            return self.next_round

    def receive(self, number: int) -> Batch:
        """Begin to receive a batch for round `number`; `BusyError` while another is being received."""
        if not self._receiving.acquire(blocking=False):
            raise BusyError("another batch is being received")
        try:
            waiting = self.next_round
            if number > waiting:
                raise ConflictError(f"round must be at most {waiting}, which is waited for, got {number}")
            if number == waiting:
                self.open_round()
            return Batch(self, number, counted=number == waiting)
        except BaseException:
            self._receiving.release()
            raise

    def _answer(self, number: int, digest: bytes) -> str:
        """The answer that a closed round's batch was given; `ConflictError` for any other batch."""
        with self._lock:
            known, answer = self._db.execute("SELECT batch, answer FROM rounds WHERE round = ?", (number,)).fetchone()
        if known != digest:
            raise ConflictError(f"round {number} is closed, with another batch")
        return str(answer)

    def _commit(self, number: int, digest: bytes, total: FloatArray, users: int, reports: int, refused: Any) -> str:
        """Close a round: new model, ledger entry and answer, all or nothing."""
        task, budget = self.settings.task, self.settings.budget
        with self._lock:
            mechanism = task.mechanism(users=counted(users), crowd=self._crowd)
            after = self._ledger.accountant.compose(mechanism)
            epsilon = after.epsilon(delta=budget.delta)
            answer = json.dumps(
                {
                    "round": number,
                    "users": users,
                    "counted": mechanism.users,
                    "refused": sum(refused.values()),
                    "epsilon": {"lower": epsilon.lower, "upper": epsilon.upper},
                    "delta": budget.delta,
                    "crowd": mechanism.crowd,
                    "adjacency": mechanism.adjacency,
                    "guarantee": f"{users} users; after {number} rounds epsilon in {epsilon:.4g} at delta = "
                    f"{budget.delta:g} ({mechanism.crowd} crowd, {mechanism.adjacency} adjacency)",
                }
            )
            vector = self.present()[1] + self.settings.step * total / (task.rate * users)
            line = (number, digest, users, reports, json.dumps(refused), json.dumps(mechanism.to_dict()), answer)
            with _transaction(self._db):
                self._db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", line)
                self._db.execute("UPDATE model SET round = ?, vector = ?", (number + 1, vector.tobytes()))
            self._ledger.compose(mechanism)
            self._exceeds = None
            return answer


class Batch:
    """One batch while it comes in: `feed` it bytes, then `finish`; `abandon` it in any other case.

    Memory: one report, one sum, and SQLite's cache of report ids (which spill to a temporary file).
    """

    def __init__(self, analyst: Analyst, number: int, *, counted: bool) -> None:
        task = analyst.settings.task
        self._analyst, self._number, self.counted, self._task = analyst, number, counted, task
        self._hash = hashlib.sha256()
        self._rest = b""
        self._received = self._users = self._reports = 0
        self._refused = dict.fromkeys(REASONS, 0)
        self._total = np.zeros(task.dimension if counted else 0)
        # An unnamed database is a temporary file of SQLite's own: ids outlive neither the batch nor the process.
        self._seen = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._seen.execute("PRAGMA cache_size = -4096")
        self._seen.execute("CREATE TABLE seen (id BLOB PRIMARY KEY) WITHOUT ROWID")
        self._seen.execute("BEGIN")

    def expect(self, size: int) -> None:
        """Refuse a batch by its announced size, before anything is read."""
        length, settings = self._task.length, self._analyst.settings
        if size > settings.maximum * length:
            raise TooLargeError(
                f"a batch must have at most {settings.maximum} reports of {length} bytes, got {size} bytes"
            )
        if size % length:
            raise BatchError(f"a batch must consist of reports of {length} bytes, got {size} bytes")
        if self.counted and size < settings.minimum * length:
            raise BatchError(f"a batch must have at least {settings.minimum} reports, got {size // length}")

    def feed(self, data: bytes) -> None:
        self._hash.update(data)
        length = self._task.length
        view = memoryview(self._rest + data) if self._rest else memoryview(data)
        whole = len(view) // length * length
        for start in range(0, whole, length):
            self._received += 1
            if self._received > self._analyst.settings.maximum:
                raise TooLargeError(f"a batch must have at most {self._analyst.settings.maximum} reports")
            if self.counted:
                self._count(view[start : start + length])
        self._rest = bytes(view[whole:])

    def _count(self, sealed: memoryview) -> None:
        try:
            identity, values = unseal(sealed, task=self._task, number=self._number, key=self._analyst.key)
            try:
                self._seen.execute("INSERT INTO seen VALUES (?)", (identity,))
            except sqlite3.IntegrityError:
                raise RefusedError("duplicate") from None
        except RefusedError as refusal:
            self._refused[refusal.reason] += 1
            return
        self._users += 1
        if values is not None:
            self._reports += 1
            self._total += values

    def finish(self) -> str:
        """The answer, once for each batch and always the same."""
        try:
            self.expect(self._received * self._task.length + len(self._rest))
            if not self.counted:
                return self._analyst._answer(self._number, self._hash.digest())
            if not self._users:
                raise BatchError("a batch must have a report that can be opened, got none")
            counts = (self._users, self._reports, self._refused)
            return self._analyst._commit(self._number, self._hash.digest(), self._total, *counts)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the batch; nothing of it has happened unless `finish` has answered."""
        if self._seen is not None:
            self._seen.close()
            self._seen = None  # type: ignore[assignment]
            self._analyst._receiving.release()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")

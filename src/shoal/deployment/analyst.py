"""The analyst: opens, adds up, applies, accounts. Its whole state is one folder, which one process may change.

`analyst.db` (SQLite, write-ahead log) holds the settings, the last models and one line for each closed round;
`head` where its last line was; `keys/` a private key for each epoch of rounds; `sign.key` the key by which rounds
are opened; `password` the secret by which the shuffler is known; `rosters/` the marks of those who are enrolled.

**What is counted.** A round's number of users is the number of *distinct valid tokens* (`tokens`) in reports
that opened, and so were of this round and these terms; dummies count, since their senders tossed the coin as
well. Numbers that are not plausible are left out of the sum, which is done to the shuffled reports and so costs
nothing; their sender counts, so that neither the number of users nor a refusal depends on what is in a report.
A token that was seen before is looked at no further, and dummies take the steps of reports: the time that a batch
takes, which the shuffler can measure, does not tell who checked in, however often one report is in it. Whatever
else is in a batch does not count, and a batch with fewer users than the smallest
crowd is refused: it publishes nothing and changes nothing. By the monotonicity theorem (fewer
users are never more private) the entry with the smaller number is the honest one; the ledger also rounds the
number down by up to 3% (`counted`): rounds with nearly the same number of users are then one mechanism, and
epsilon takes seconds whatever the number of rounds. Dropping out must not depend on a node's data.

**What is added.** model + step * sum(reports) / (rate * users): the expected number of reports, so that
neither the model nor its scale tells how many checked in.

**What is stored.** Counts, the last few models, and a hash of each batch by which a repetition is known.
No report, no token, no time, no address. A round, its new model and its ledger entry are committed in one
transaction, in which the ledger is read again and checked: its lines form a chain of keyed hashes, so that a
changed digit is an error at the next start, and `head` names the chain's last link, so that lines which are missing
at the end are one too. A folder that is put back as a whole looks like what it was: see `skip`. After a crash
either all of a round has happened or none.

**What is forgotten.** The private key of an epoch is removed when the epoch's last round has closed: sealed
reports that somebody kept cannot be opened afterwards, not even by the analyst.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from shoal import _validate
from shoal.accountant import Accountant
from shoal.bounds.numeric import FloatArray
from shoal.deployment import files, keys, tokens
from shoal.deployment.node import Node
from shoal.deployment.report import (
    CROWD_MAX,
    REASONS,
    ROUND_MAX,
    RefusedError,
    Task,
    numbers,
    opening,
    unseal,
)
from shoal.deployment.tokens import Marks, Roster
from shoal.errors import DeploymentError, InvalidInput
from shoal.mechanisms import Crowd, from_dict
from shoal.query import Statement

DATABASE, HEAD, SIGN, PASSWORD, KEYS, ROSTERS = "analyst.db", "head", "sign.key", "password", "keys", "rosters"
VERSION = 2
EPOCHS_MAX = 10_000

SCHEMA = (
    "CREATE TABLE settings (version INTEGER NOT NULL, settings TEXT NOT NULL)",
    "CREATE TABLE models (round INTEGER PRIMARY KEY, vector BLOB NOT NULL)",
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, batch BLOB NOT NULL, users INTEGER NOT NULL, "
    "reports INTEGER NOT NULL, refused TEXT NOT NULL, entry TEXT NOT NULL, answer TEXT NOT NULL, "
    "model BLOB NOT NULL, chain BLOB NOT NULL)",
    "CREATE TABLE rosters (name TEXT PRIMARY KEY, digest BLOB NOT NULL, place INTEGER NOT NULL)",
)
LINE = ("round", "batch", "users", "reports", "refused", "entry", "answer", "model")
"""Columns of a round that the chain covers."""


class ConflictError(DeploymentError, ValueError):
    """A batch for a round that is not open, or another batch for one that is closed."""


class ExhaustedError(DeploymentError, ValueError):
    """No further round can be opened: the budget, the keys or the roster does not allow it."""


class BusyError(DeploymentError, RuntimeError):
    """Another batch is being received."""


class BatchError(DeploymentError, ValueError):
    """A batch that cannot close a round: wrong length, or a crowd that is too small."""


class TooLargeError(DeploymentError, ValueError):
    """A batch with more reports than the analyst was set up for."""


class DamagedError(DeploymentError, ValueError):
    """A file of the analyst's is not as it was written; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an analyst is set up with; fixed for the life of its folder.

    `rounds` is the number of rounds for which there are keys, `epoch` how many of them share one. `maximum`
    bounds the reports of a batch, `step` scales the mean update, `keep` is the number of models that are kept.
    """

    task: Task
    rounds: int
    epoch: int
    maximum: int = 1_000_000
    step: float = 1.0
    keep: int = 5

    def __post_init__(self) -> None:
        rounds = _validate.integer("rounds", self.rounds, minimum=1, maximum=ROUND_MAX)
        epoch = _validate.integer("epoch", self.epoch, minimum=-(-rounds // EPOCHS_MAX), maximum=ROUND_MAX)
        high = _validate.integer("maximum", self.maximum, minimum=self.task.minimum, maximum=CROWD_MAX)
        keep = _validate.integer("keep", self.keep, minimum=1, maximum=10**6)
        step = _validate.real("step", self.step)
        if step <= 0:
            raise InvalidInput(f"step must be positive, got {step}")
        checked = {"rounds": rounds, "epoch": epoch, "maximum": high, "step": step, "keep": keep}
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Settings:
        return cls(**{**data, "task": Task(**data["task"])})

    @property
    def epochs(self) -> int:
        return -(-self.rounds // self.epoch)

    def epoch_of(self, number: int) -> int:
        return (number - 1) // self.epoch + 1


class Analyst:
    """One analyst on one folder. Methods may be called from several threads.

    With `reading` the folder is only looked at, also while another process serves it. With `behind` the end of the
    ledger may be missing, so that `skip` can make up for it.
    """

    def __init__(self, folder: str | Path, *, reading: bool = False, behind: bool = False) -> None:
        self.folder = Path(folder)
        path = self.folder / DATABASE
        if not path.exists():
            raise InvalidInput(f"{self.folder} must be a folder made by 'shoal analyst init', there is no {DATABASE}")
        self._head: tuple[int, bytes] | None = None
        """The last round that was closed, and the end of the chain then."""
        self._owner: IO[str] | None = None if reading else files.lock(self.folder, whose="analyst")
        self._lock = threading.RLock()
        self._receiving = threading.Lock()
        self._marks: tuple[int, Marks] | None = None
        """The round that was looked up last, and its marks."""
        self._exceeds: tuple[int, bool] | None = None
        """For which round it was computed whether it could exceed the budget, and the answer."""
        try:
            self.signer = keys.read_signing(self.folder / SIGN)
            self.password = _password(self.folder / PASSWORD)
            self._seal = _chain_key(self.signer)
            self._db = _connect(path)
            with _explained(path):
                # A database that is damaged somewhere answers many questions still, and wrongly.
                (fault,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
                if fault != "ok":
                    raise DamagedError(f"{path} is damaged ({fault}): restore it from a backup")
                version, settings = self._db.execute("SELECT version, settings FROM settings").fetchone()
            if version != VERSION:
                raise InvalidInput(f"{path} must be of version {VERSION}, got {version}")
            self._text = str(settings)
            stored = json.loads(settings)
            self._start = bytes.fromhex(stored.pop("start"))
            """The digest of the model that everything began with."""
            self.settings = Settings.from_dict(stored)
            self._head = None if behind else self._read_head()
            # Before anything is answered: a ledger that was cut back would let the same budget be spent twice.
            chain, waiting, _ = self._checked()
            self._check_rosters()
            if not reading and not behind:
                self._write_head(waiting - 1, chain)  # a crash may have come between a round and its head
                self._forget_keys()
                if waiting <= self.settings.rounds:
                    self.key(waiting)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: str | Path, settings: Settings, *, model: FloatArray | None = None) -> Analyst:
        """Set up a new folder: keys, password, settings and the model to start from (zero if none is given).

        It opens its first round once it has a roster.
        """
        home = Path(folder)
        vector = np.zeros(settings.task.dimension) if model is None else np.asarray(model, dtype=np.float64).ravel()
        if vector.shape != (settings.task.dimension,) or not np.isfinite(vector).all():
            raise InvalidInput(f"model must be {settings.task.dimension} finite numbers, got {vector.size}")
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (home / DATABASE).exists() or (home / SIGN).exists():
            raise InvalidInput(f"{home} must be a new folder: it holds an analyst already")
        signer = Ed25519PrivateKey.generate()
        keys.write_secret(home / SIGN, keys.private_pem(signer))
        keys.write_secret(home / PASSWORD, secrets.token_urlsafe(32).encode() + b"\n")
        (home / ROSTERS).mkdir(mode=0o700)
        (home / KEYS).mkdir(mode=0o700)
        # A key for each epoch, made beforehand: nodes get all public ones at once, and private ones are forgotten in
        # turn, so that who takes the analyst later cannot open what was sent earlier.
        public = []
        for number in range(1, settings.epochs + 1):
            key = X25519PrivateKey.generate()
            keys.write_secret(_key_file(home, number), keys.private_pem(key))
            public.append(keys.public_text(key.public_key()))
        files.replace(home / KEYS / "public.json", [json.dumps(public).encode()])
        keys.write_secret(home / DATABASE, b"")  # SQLite would let everybody read it
        db = _connect(home / DATABASE)
        text = json.dumps({**asdict(settings), "start": hashlib.sha256(_model_bytes(vector)).hexdigest()})
        with _transaction(db):
            for statement in SCHEMA:
                db.execute(statement)
            db.execute("INSERT INTO settings VALUES (?, ?)", (VERSION, text))
            db.execute("INSERT INTO models VALUES (1, ?)", (_model_bytes(vector),))
        db.close()
        files.replace(home / HEAD, [_head_text(0, _beginning(_chain_key(signer), text))])
        return cls(home)

    def close(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        if self._owner is not None:
            self._owner.close()

    def public_keys(self) -> tuple[X25519PublicKey, ...]:
        """The keys that nodes seal to, epoch by epoch."""
        path = self.folder / KEYS / "public.json"
        try:
            texts = json.loads(path.read_text())
        except (OSError, ValueError):
            raise DamagedError(f"{path} is missing or damaged: restore it from a backup, or from a node.toml") from None
        return tuple(keys.sealing_key(text) for text in texts)

    def node(self, *, secret: str | Path = "node.secret", state: str | Path = "shoal-state", pace: float = 0.0) -> Node:
        """The settings that this analyst proposes to nodes."""
        return Node(
            task=self.settings.task,
            keys=self.public_keys(),
            epoch=self.settings.epoch,
            signer=self.signer.public_key(),
            rounds=self.settings.rounds,
            secret=Path(secret),
            state=Path(state),
            pace=pace,
        )

    # Rosters

    def admit(self, source: Path) -> Roster:
        """Take in a roster; where it has rounds that an earlier one has too, the new one counts."""
        roster = Roster.read(source)
        if roster.task != self.settings.task.digest.hex():
            raise InvalidInput(f"{source} must be a roster of this task and its terms, this one is of another")
        if roster.nodes < self.settings.task.minimum:
            raise InvalidInput(f"{source} must enrol at least {self.settings.task.minimum} nodes, got {roster.nodes}")
        # Rounds that are closed were counted by the roster they had.
        if roster.first < self.next_round:
            raise InvalidInput(f"{source} must begin at round {self.next_round} or later, got {roster.first}")
        roster.check()
        with self._lock:
            place = int(self._db.execute("SELECT COALESCE(MAX(place), 0) + 1 FROM rosters").fetchone()[0])
            target = self.folder / ROSTERS / f"{place:04d}.roster"
            with open(source, "rb") as file:
                files.replace(target, iter(lambda: file.read(1 << 20), b""))
            with _transaction(self._db):
                line = (target.name, self._roster_digest(target, place), place)
                self._db.execute("INSERT INTO rosters VALUES (?, ?, ?)", line)
            self._marks = None
        return roster

    def _rosters(self) -> list[Roster]:
        """All rosters, the newest first."""
        names = self._db.execute("SELECT name FROM rosters ORDER BY place DESC").fetchall()
        return [Roster.read(self.folder / ROSTERS / name) for (name,) in names]

    def _check_rosters(self) -> None:
        for name, digest, place in self._db.execute("SELECT name, digest, place FROM rosters").fetchall():
            path = self.folder / ROSTERS / name
            Roster.read(path)
            if not hmac.compare_digest(self._roster_digest(path, place), digest):
                raise DamagedError(f"{path} is damaged: restore it from a backup, or ask the registrar again")

    def _roster_digest(self, path: Path, place: int) -> bytes:
        """Keyed as the ledger is: whoever can change the database alone cannot enrol anybody."""
        return hmac.digest(self._seal, f"roster {path.name} {place} ".encode() + _file_digest(path), "sha256")

    def enrolled(self, number: int) -> Marks:
        """The marks of those who may report in a round; `ExhaustedError` if there is no roster for it."""
        with self._lock:
            if self._marks is None or self._marks[0] != number:
                roster = next((r for r in self._rosters() if r.first <= number <= r.last), None)
                if roster is None:
                    raise ExhaustedError(
                        f"round {number} has no roster: have nodes enrolled (shoal flower enrol) and admit the roster "
                        "(shoal analyst admit)"
                    )
                self._marks = (number, roster.marks(number))
            return self._marks[1]

    # The ledger

    def present(self) -> tuple[int, FloatArray]:
        """The round that comes next, and the model that it starts from."""
        with self._lock:
            number, vector = self._db.execute("SELECT round, vector FROM models ORDER BY round DESC").fetchone()
        return int(number), np.frombuffer(vector, dtype="<f8").copy()

    @property
    def next_round(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT MAX(round) FROM models").fetchone()[0])

    def rounds(self) -> list[dict[str, Any]]:
        """What is known of each closed round."""
        names = ("round", "users", "reports", "refused", "entry", "answer")
        with self._lock:
            found = self._db.execute(f"SELECT {', '.join(names)} FROM rounds ORDER BY round").fetchall()
        rows = [dict(zip(names, row, strict=True)) for row in found]
        return [{**r, **{k: json.loads(r[k]) for k in ("refused", "entry", "answer")}} for r in rows]

    def _checked(self) -> tuple[bytes, int, Accountant]:
        """The end of the chain, the next round and the ledger, read from the database and checked line by line."""
        path = self.folder / DATABASE
        with self._lock, _explained(path):
            lines = self._db.execute(f"SELECT {', '.join(LINE)}, chain FROM rounds ORDER BY round").fetchall()
            kept = self._db.execute("SELECT round, vector FROM models ORDER BY round").fetchall()
        chain = _beginning(self._seal, self._text)
        total, digests, known = Accountant(), {self._start}, self._head
        # The head stands beside the database: an older copy of the database alone does not go unnoticed.
        if known is not None and known[0] > len(lines):
            raise DamagedError(
                f"{path} is damaged: the ledger ends with round {len(lines)}, and round {known[0]} was closed; restore "
                f"the folder as it was then, or enter what is missing: shoal analyst skip {self.folder} "
                f"--to {known[0] + 1}"
            )
        if known is not None and known[0] == 0 and not hmac.compare_digest(chain, known[1]):
            raise DamagedError(
                f"{path} is damaged: its settings are not as they were written; restore it from a backup"
            )
        for expected, (*line, stored) in enumerate(lines, 1):
            chain = _link(self._seal, chain, line)
            if line[0] != expected or not hmac.compare_digest(chain, stored):
                raise DamagedError(
                    f"{path} is damaged: the ledger's line for round {expected} is not as it was written; restore the "
                    "folder from a backup, and enter what was spent since then: shoal analyst skip"
                )
            if known is not None and known[0] == expected and not hmac.compare_digest(chain, known[1]):
                raise DamagedError(
                    f"{self.folder / HEAD} and {path} are of different analysts; restore both of one time"
                )
            total.compose(from_dict(json.loads(line[LINE.index("entry")])))
            digests.add(line[LINE.index("model")])
        if not kept or kept[-1][0] != len(lines) + 1:
            raise DamagedError(f"{path} is damaged: model and ledger are of different rounds; restore it from a backup")
        for number, vector in kept:
            if hashlib.sha256(vector).digest() not in digests:
                raise DamagedError(f"{path} is damaged: the model of round {number} is not as it was; restore a backup")
        return chain, len(lines) + 1, total

    def _read_head(self) -> tuple[int, bytes]:
        """The last round that was closed, and the end of the chain then, by a file beside the database."""
        path = self.folder / HEAD
        try:
            stored = json.loads(path.read_text())
            return int(stored["round"]), bytes.fromhex(stored["chain"])
        except (OSError, ValueError, KeyError, TypeError):
            raise DamagedError(
                f"{path} is missing or damaged: restore the folder from a backup, or name the round that comes next: "
                f"shoal analyst skip {self.folder} --to ROUND"
            ) from None

    def _write_head(self, number: int, chain: bytes) -> None:
        if self._head != (number, chain):
            files.replace(self.folder / HEAD, [_head_text(number, chain)])
            self._head = (number, chain)

    def accountant(self, crowd: Crowd | None = None) -> Accountant:
        """The ledger; for another crowd than the budget's if one is named."""
        total = Accountant()
        for entry in self._checked()[2]:
            total.compose(
                entry.mechanism if crowd is None else entry.mechanism.replace(crowd=crowd), rounds=entry.rounds
            )
        return total

    # Rounds

    def open_round(self) -> int:
        """The round that is waited for; `ExhaustedError` if it could exceed the budget with the smallest crowd."""
        task = self.settings.task
        with self._lock:
            number = self.next_round
            if number > self.settings.rounds:
                raise ExhaustedError(f"round must be at most {self.settings.rounds}, for which there are keys")
            self.enrolled(number)
            self.key(number)
            # With the smallest crowd that may come: a round is not opened that might have to be thrown away after
            # nodes have reported. Computed once a round, not at every request.
            if self._exceeds is None or self._exceeds[0] != number:
                worst = self._checked()[2].compose(task.mechanism(users=task.minimum))
                self._exceeds = (number, float(worst.epsilon(delta=task.delta)) > task.epsilon)
            if self._exceeds[1]:
                raise ExhaustedError(
                    f"round {number} with {task.minimum} users could exceed the budget of epsilon = {task.epsilon:g} "
                    f"at delta = {task.delta:g} ({task.crowd} crowd)"
                )
            return number

    def signature(self) -> tuple[int, bytes]:
        """The round that is open, and the analyst's signature under it, its key and its model."""
        with self._lock:
            number = self.open_round()
            key = self.key(number).public_key()
            return number, self.signer.sign(opening(self.settings.task, number, self.present()[1], key))

    def key(self, number: int) -> X25519PrivateKey:
        """The private key of a round; `DamagedError` if it is not the one that nodes seal to."""
        epoch = self.settings.epoch_of(number)
        path = _key_file(self.folder, epoch)
        try:
            found = keys.read_sealing(path)
        except ValueError as error:
            raise DamagedError(str(error)) from None
        if found.public_key() != self.public_keys()[epoch - 1]:
            raise DamagedError(f"{path} is not the key that nodes were given: restore it from a backup")
        return found

    def _forget_keys(self) -> None:
        """Remove the keys of epochs that are over."""
        now = self.settings.epoch_of(self.next_round)
        gone = [path for path in (self.folder / KEYS).glob("*.key") if int(path.stem) < now]
        for path in gone:
            path.unlink()
        if gone:
            files.sync_folder(self.folder / KEYS)

    def receive(self, number: int) -> Delivery:
        """Begin to receive a batch for round `number`; `BusyError` while another is being received."""
        if self._owner is None:
            raise InvalidInput(f"{self.folder} is open for reading only")
        if not self._receiving.acquire(blocking=False):
            raise BusyError("another batch is being received")
        try:
            waiting = self.next_round
            if number > waiting:
                raise ConflictError(f"round must be at most {waiting}, which is waited for, got {number}")
            # A round that is closed is received, too: a shuffler that lost the answer asks with the same batch again.
            if number == waiting:
                self.open_round()
            return Delivery(self, number, counted=number == waiting)
        except BaseException:
            self._receiving.release()
            raise

    def restore(self, number: int) -> None:
        """Go back to the model as it was after round `number`. The ledger stays: what is spent is spent."""
        with self._lock, _transaction(self._db):
            found = self._db.execute("SELECT vector FROM models WHERE round = ?", (number + 1,)).fetchone()
            if found is None:
                kept = [row[0] - 1 for row in self._db.execute("SELECT round FROM models ORDER BY round")]
                raise InvalidInput(f"round must be one whose model is kept ({', '.join(map(str, kept))}), got {number}")
            # The next round starts from it; no line of the ledger is touched.
            self._db.execute("UPDATE models SET vector = ? WHERE round = ?", (found[0], self.next_round))

    def _answer(self, number: int, digest: bytes) -> str:
        """The answer that a closed round's batch was given; `ConflictError` for any other batch."""
        with self._lock:
            known, answer = self._db.execute("SELECT batch, answer FROM rounds WHERE round = ?", (number,)).fetchone()
        if known != digest:
            raise ConflictError(f"round {number} is closed, with another batch")
        return str(answer)

    def _commit(self, number: int, digest: bytes, total: FloatArray, users: int, reports: int, refused: Any) -> str:
        """Close a round: new model, ledger entry and answer, all or nothing."""
        task = self.settings.task
        with self._lock, _transaction(self._db):
            # Read anew inside the transaction: the round may have been closed while this batch came in.
            chain, waiting, ledger = self._checked()
            if number != waiting:
                raise ConflictError(f"round must be {waiting}, which is waited for, got {number}")
            if users < task.minimum:
                raise BatchError(f"a round must have at least {task.minimum} users, got {users}")
            spent = ledger.compose(task.mechanism(users=users)).statement(delta=task.delta)
            if spent.epsilon > task.epsilon:
                raise ExhaustedError(f"round {number} would exceed the budget of epsilon = {task.epsilon:g}")
            # By how many were expected to report, which is public; the number that did depends on secret coins.
            vector = self.present()[1] + self.settings.step * total / (task.rate * users)
            chain, answer = self._enter(chain, spent, number, digest, users, reports, refused, vector)
        # After the commit: a crash in between leaves a head that is behind, which the next start puts right.
        self._write_head(number, chain)
        self._forget_keys()
        return answer

    def _enter(
        self,
        chain: bytes,
        spent: Statement,
        number: int,
        digest: bytes,
        users: int,
        reports: int,
        refused: Any,
        model: FloatArray,
    ) -> tuple[bytes, str]:
        """Write down a round after which so much is spent, and its model; the chain's new end, and the answer."""
        task = self.settings.task
        mechanism = task.mechanism(users=users)
        answer = json.dumps(
            {
                "round": number,
                "users": users,
                "counted": mechanism.users,
                "refused": sum(refused.values()),
                "epsilon": {"lower": spent.answer.lower, "upper": spent.answer.upper},
                "delta": task.delta,
                "crowd": mechanism.crowd,
                "adjacency": mechanism.adjacency,
                "guarantee": spent.sentence(),
            }
        )
        vector = _model_bytes(model)
        entry, after = json.dumps(mechanism.to_dict()), hashlib.sha256(vector).digest()
        line = (number, digest, users, reports, json.dumps(refused), entry, answer, after)
        chain = _link(self._seal, chain, line)
        self._db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*line, chain))
        self._db.execute("INSERT INTO models VALUES (?, ?)", (number + 1, vector))
        self._db.execute("DELETE FROM models WHERE round <= ?", (number + 1 - self.settings.keep,))
        return chain, answer

    def skip(self, number: int) -> None:
        """Go on with round `number`; those before it that the ledger lacks are entered with the smallest crowd.

        For an analyst that was put back to an earlier state. What it has forgotten may have been published, with as
        many users as the smallest crowd or more, so that the entry is an upper bound; and to close one of these
        rounds again, with other users, would show what they differ by.
        """
        try:
            closed = self._read_head()[0]
        except DamagedError:
            closed = 0
        task, most = self.settings.task, self.settings.rounds + 1
        with self._lock, _transaction(self._db):
            chain, waiting, ledger = self._checked()
            least = max(waiting, closed + 1)
            if not least <= number <= most:
                raise InvalidInput(f"round must lie between {least} and {most}, got {number}")
            model = self.present()[1]
            for missing in range(waiting, number):
                spent = ledger.compose(task.mechanism(users=task.minimum)).statement(delta=task.delta)
                chain, _ = self._enter(chain, spent, missing, b"", task.minimum, 0, {}, model)
        self._write_head(number - 1, chain)
        self._forget_keys()


class Delivery:
    """One batch while it comes in: `feed` it bytes, then `finish`; `abandon` it in any other case.

    Memory: some reports, one sum, and 17 bytes for each node that is enrolled.
    """

    def __init__(self, analyst: Analyst, number: int, *, counted: bool) -> None:
        task = analyst.settings.task
        self._analyst, self._number, self.counted, self._task = analyst, number, counted, task
        self._hash = hashlib.sha256()
        self._rest = b""
        self._received = self._reports = 0
        self._refused = dict.fromkeys(REASONS, 0)
        self._total = np.zeros(task.dimension if counted else 0)
        self._open = True
        if counted:
            self._key, self._longest, self._digest = analyst.key(number), task.longest, task.digest
            self._marks = analyst.enrolled(number)
            self._seen = bytearray(len(self._marks))

    def expect(self, size: int) -> None:
        """Refuse a batch by its announced size, before anything is read."""
        length, settings = self._task.length, self._analyst.settings
        if size > settings.maximum * length:
            raise TooLargeError(
                f"a batch must have at most {settings.maximum} reports of {length} bytes, got {size} bytes"
            )
        if size % length:
            raise BatchError(f"a batch must consist of reports of {length} bytes, got {size} bytes")
        if self.counted and size < self._task.minimum * length:
            raise BatchError(f"a batch must have at least {self._task.minimum} reports, got {size // length}")

    def feed(self, data: bytes) -> None:
        # Report by report as they come: a batch may be larger than memory. What is left over waits for the next piece.
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
            token, content = unseal(sealed, task=self._task, number=self._number, key=self._key)
            place = self._marks.find(tokens.mark(token, digest=self._digest, number=self._number))
            if place is None:
                raise RefusedError("token")
            if self._seen[place]:
                raise RefusedError("duplicate")
            # Before the numbers are looked at: a node whose report is nonsense has used its token, too.
            self._seen[place] = 1
            report, values = numbers(content, longest=self._longest)
        except RefusedError as refusal:
            self._refused[refusal.reason] += 1
            return
        # A dummy is added as well, as zeros: no step depends on which of both it is.
        self._reports += report
        self._total += values

    def finish(self) -> str:
        """The answer, once for each batch and always the same."""
        try:
            self.expect(self._received * self._task.length + len(self._rest))
            if not self.counted:
                return self._analyst._answer(self._number, self._hash.digest())
            counts = (sum(self._seen), self._reports, self._refused)
            return self._analyst._commit(self._number, self._hash.digest(), self._total, *counts)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the batch; nothing of it has happened unless `finish` has answered."""
        if self._open:
            self._open = False
            self._analyst._receiving.release()


def _key_file(home: Path, epoch: int) -> Path:
    return home / KEYS / f"{epoch:05d}.key"


def _password(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text:
        raise DamagedError(f"{path} is missing or empty: write a new secret into it, and give it to the shuffler")
    return text


def _chain_key(signer: Ed25519PrivateKey) -> bytes:
    """The key of the ledger's chain: whoever can change the database alone cannot continue it."""
    raw = signer.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    return hmac.digest(raw, b"shoal ledger 2", "sha256")


def _beginning(key: bytes, settings: str) -> bytes:
    """The chain before its first line."""
    return hmac.digest(key, settings.encode(), "sha256")


def _head_text(number: int, chain: bytes) -> bytes:
    return json.dumps({"round": number, "chain": chain.hex()}).encode() + b"\n"


def _link(key: bytes, before: bytes, line: Any) -> bytes:
    """The chain after one more line."""
    content = [part.hex() if isinstance(part, bytes) else part for part in line]
    return hmac.digest(key, before + json.dumps(content).encode(), "sha256")


def _model_bytes(vector: FloatArray) -> bytes:
    return vector.astype("<f8").tobytes()


def _file_digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        with _explained(path):
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")  # what is answered must survive a loss of power
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """SQLite's errors about a file that is not a database any more, with what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):  # a full disk, say, damages nothing
            raise
        raise DamagedError(f"{path} is damaged ({error}): restore it from a backup") from None
    except (sqlite3.DatabaseError, TypeError) as error:
        raise DamagedError(f"{path} is damaged ({error}): restore it from a backup") from None


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")

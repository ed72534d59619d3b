"""The analyst: its settings, keys, rosters, models and ledger put together, on one folder."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from shoal.accountant import Accountant
from shoal.bounds.numeric import FloatArray
from shoal.deployment import files, keys
from shoal.deployment.analyst.database import Database
from shoal.deployment.analyst.delivery import Counts, Delivery, Tally
from shoal.deployment.analyst.keystore import SIGN, KeyStore
from shoal.deployment.analyst.ledger import Book, ChainedLedger, RoundLine
from shoal.deployment.analyst.models import Models, model_bytes, model_digest
from shoal.deployment.analyst.rosters import ROSTERS, Rosters
from shoal.deployment.analyst.settings import Settings
from shoal.deployment.errors import RESTORE_ADVICE, BatchError, BusyError, ConflictError, DamagedError, ExhaustedError
from shoal.deployment.node import Node, endorsement_terms, settings_digest, settings_fingerprint
from shoal.deployment.report import opening_terms
from shoal.deployment.tokens import Marks, Roster
from shoal.errors import DataError, InvalidInput
from shoal.mechanisms import Crowd, ShuffledCheckIn
from shoal.query import Statement

DATABASE = "analyst.db"


class Analyst:
    """One analyst on one folder: `create` it, `open` it, `read` it, or `recover` it.

    Methods may be called from several threads.
    """

    def __init__(self, folder: str | Path, *, owner: IO[str] | None) -> None:
        """Load what is in a folder and check nothing: the class methods do that.

        Args:
            folder: the analyst's folder.
            owner: the folder's lock; None to look only.
        """
        self.folder, self._owner = Path(folder), owner
        self._receiving = threading.Lock()
        self._least: tuple[int, float] | None = None
        """A round, and epsilon after it if it is entered with the smallest crowd."""
        self.key_store = KeyStore(self.folder)
        self.database = Database(self.folder / DATABASE)
        try:
            text = self.database.settings()
            self.settings, start = self._parsed(text)
            key = self.key_store.chain_key
            self.models = Models(self.database, keep=self.settings.keep)
            self.ledger = ChainedLedger(self.folder, self.database, self.models, key=key, settings=text, start=start)
            self.rosters = Rosters(self.folder, self.database, key=key)
        except BaseException:
            self.database.close()
            raise

    def _parsed(self, text: str) -> tuple[Settings, bytes]:
        """Settings and the digest of the first model."""
        try:
            stored = json.loads(text)
            start = bytes.fromhex(stored.pop("start"))
            return Settings.from_dict(stored), start
        except (ValueError, KeyError, TypeError):
            raise DamagedError(f"{self.database.path} is damaged (settings): {RESTORE_ADVICE}") from None

    @classmethod
    def create(cls, folder: str | Path, settings: Settings, *, model: FloatArray | None = None) -> Analyst:
        """Set up a new folder: keys, password, settings and a model to start from.

        The analyst opens its first round once it has a roster.

        Args:
            folder: the new folder.
            settings: what it is set up with.
            model: the model to start from; zero by default.

        Returns:
            The analyst, open.

        Raises:
            InvalidInput: the model does not fit, or the folder holds an analyst already.
        """
        home, dimension = Path(folder), settings.task.dimension
        vector = np.zeros(dimension) if model is None else np.asarray(model, dtype=np.float64).ravel()
        if vector.shape != (dimension,) or not np.isfinite(vector).all():
            raise InvalidInput(f"model must be {dimension} finite numbers, got {vector.size}")
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (home / DATABASE).exists() or (home / SIGN).exists():
            raise InvalidInput(f"{home} must be a new folder: it holds an analyst already")
        key_store = KeyStore.create(home, epochs=settings.epochs)
        (home / ROSTERS).mkdir(mode=0o700)
        keys.write_secret(home / DATABASE, b"")  # SQLite would let everybody read it
        content = model_bytes(vector)
        text = json.dumps({**asdict(settings), "start": model_digest(content).hex()})
        database = Database.create(home / DATABASE, text)
        Models(database, keep=settings.keep).add(1, content)
        database.close()
        ChainedLedger.begin(home, key=key_store.chain_key, settings=text)
        return cls.open(home)

    @classmethod
    def open(cls, folder: str | Path) -> Analyst:
        """The analyst of a folder, for this process only.

        Raises:
            DataError: there is no analyst in the folder, or another process has it.
            DamagedError: a file is not as it was written.
        """
        analyst = cls._locked(folder)
        with analyst._closed_on_error():
            book = analyst._checked()
            analyst.ledger.write_head(book.next_round - 1, book.chain)  # a crash may have come before the head
            analyst._forget_keys()
            if book.next_round <= analyst.settings.rounds:
                analyst.key(book.next_round)
        return analyst

    @classmethod
    def read(cls, folder: str | Path) -> Analyst:
        """The analyst of a folder, to look at only, also while another process serves it."""
        analyst = cls(_existing(folder), owner=None)
        with analyst._closed_on_error():
            analyst._checked()
        return analyst

    @classmethod
    def recover(cls, folder: str | Path) -> Analyst:
        """The analyst of a folder whose ledger may lack its end, so that `skip` can make up for it."""
        analyst = cls._locked(folder)
        with analyst._closed_on_error():
            analyst.ledger.read()
            analyst.rosters.check()
        return analyst

    @classmethod
    def _locked(cls, folder: str | Path) -> Analyst:
        owner = files.lock_folder(_existing(folder), party="analyst")
        try:
            return cls(folder, owner=owner)
        except BaseException:
            owner.close()
            raise

    def _checked(self) -> Book:
        """The whole folder, looked at before anything is answered: a budget must not be spent twice."""
        # The head before the rest: a round that is closed meanwhile is in the database before it is in the head.
        self.ledger.head = self.ledger.read_head()
        book = self.ledger.read()
        self.rosters.check()
        return book

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the database and give up the folder."""
        self.database.close()
        if self._owner is not None:
            self._owner.close()

    # Keys and rosters

    @property
    def signer(self) -> Ed25519PrivateKey:
        """The key by which rounds are opened."""
        return self.key_store.signer

    @property
    def password(self) -> str:
        """The secret by which the shuffler is known."""
        return self.key_store.password

    def public_keys(self) -> tuple[X25519PublicKey, ...]:
        """The keys that nodes seal to, epoch by epoch."""
        return self.key_store.public_keys()

    @functools.cached_property
    def settings_digest(self) -> bytes:
        """Stands for terms and sealing keys."""
        return settings_digest(self.settings.task, epoch=self.settings.epoch, sealing=self.public_keys())

    @property
    def fingerprint(self) -> bytes:
        """Stands for all that nodes are given: terms, signing key and sealing keys."""
        return settings_fingerprint(self.signer.public_key(), self.settings_digest)

    @functools.cached_property
    def endorsement(self) -> bytes:
        """The analyst's signature under its fingerprint."""
        return self.signer.sign(endorsement_terms(self.fingerprint))

    def key(self, round_number: int) -> X25519PrivateKey:
        """The private key of a round; `DamagedError` if it is not the one that nodes seal to."""
        return self.key_store.private_key(self.settings.epoch_of(round_number))

    def node(self, *, secret: str | Path = "node.secret", state: str | Path = "shoal-state", pace: float = 0.0) -> Node:
        """The settings that this analyst proposes to nodes.

        Args:
            secret: the file with the node's secret.
            state: the folder of the node's state.
            pace: the least number of seconds until a reply.

        Returns:
            The settings.
        """
        return Node(
            task=self.settings.task,
            keys=self.public_keys(),
            epoch=self.settings.epoch,
            signer=self.signer.public_key(),
            endorsement=self.endorsement,
            rounds=self.settings.rounds,
            secret=Path(secret),
            state=Path(state),
            pace=pace,
        )

    def admit(self, source: Path) -> Roster:
        """Take in a roster; where it has rounds that an earlier one has too, the new one counts."""
        return self.rosters.admit(source, task=self.settings.task, next_round=self.next_round)

    def enrolled(self, round_number: int) -> Marks:
        """The marks of those who may report in a round; `ExhaustedError` if there is no roster for it."""
        return self.rosters.marks(round_number)

    # The ledger and the models

    @property
    def next_round(self) -> int:
        """The round that comes next."""
        return self.models.next_round

    def present(self) -> tuple[int, FloatArray]:
        """The round that comes next, and the model that it starts from."""
        return self.models.newest()

    def rounds(self) -> list[dict[str, Any]]:
        """What the ledger says of each closed round."""
        return self.ledger.rows()

    def accountant(self, crowd: Crowd | None = None) -> Accountant:
        """The ledger; for another crowd than the budget's if `crowd` names one."""
        accountant = Accountant()
        for entry in self.ledger.read().accountant:
            mechanism = entry.mechanism if crowd is None else entry.mechanism.replace(crowd=crowd)
            accountant.compose(mechanism, rounds=entry.rounds)
        return accountant

    def restore(self, round_number: int) -> None:
        """Go back to the model after round `round_number`. The ledger stays: what is spent is spent."""
        self.models.go_back(round_number)

    # Rounds

    def open_round(self) -> int:
        """The number of the round that comes next; `ExhaustedError` if it could exceed the budget."""
        task = self.settings.task
        with self.database.lock:
            round_number = self.next_round
            if round_number > self.settings.rounds:
                raise ExhaustedError(
                    f"there are keys for {self.settings.rounds} rounds, and none for round {round_number}"
                )
            self.enrolled(round_number)
            self.key(round_number)
            # A round that is opened can be closed with whoever comes: at worst it is entered with the smallest crowd.
            if self._least_epsilon(round_number) > task.epsilon:
                raise ExhaustedError(
                    f"round {round_number} with {task.minimum} users could exceed the budget of epsilon = "
                    f"{task.epsilon:g} at delta = {task.delta:g} ({task.crowd} crowd)"
                )
            return round_number

    def _least_epsilon(self, round_number: int) -> float:
        """Epsilon after a round that is entered with the smallest crowd; computed once, not at every request."""
        task = self.settings.task
        if self._least is None or self._least[0] != round_number:
            after = self.ledger.read().accountant.compose(task.mechanism(users=task.minimum))
            self._least = (round_number, float(after.epsilon(delta=task.delta)))
        return self._least[1]

    def signature(self) -> tuple[int, bytes]:
        """The round that is open, and the analyst's signature under its opening."""
        with self.database.lock:
            round_number = self.open_round()
            key = self.key(round_number).public_key()
            terms = opening_terms(self.fingerprint, round_number, self.present()[1], key)
            return round_number, self.signer.sign(terms)

    def receive(self, round_number: int) -> Delivery:
        """Begin to receive a batch.

        Args:
            round_number: the round that it belongs to.

        Returns:
            The delivery, to be fed.

        Raises:
            BusyError: another batch is being received.
            ConflictError: the round is not open yet.
            ExhaustedError: the round cannot be opened.
        """
        if self._owner is None:
            raise InvalidInput(f"{self.folder} is open for reading only")
        if not self._receiving.acquire(blocking=False):
            raise BusyError("another batch is being received")
        try:
            next_round, tally = self.next_round, None
            if round_number > next_round:
                raise ConflictError(f"expected a round up to {next_round}, got {round_number}")
            # A closed round is received, too: a shuffler that lost the answer asks with the same batch again.
            if round_number == next_round:
                self.open_round()
                marks = self.enrolled(round_number)
                tally = Tally(self.settings, round_number, key=self.key(round_number), marks=marks)
            return Delivery(
                self.settings,
                tally=tally,
                close=functools.partial(self._close_round, round_number),
                repeat=functools.partial(self.ledger.answer, round_number),
                release=self._receiving.release,
            )
        except BaseException:
            self._receiving.release()
            raise

    def _close_round(self, round_number: int, counts: Counts) -> str:
        """Close a round: new model, ledger entry and answer, all or nothing."""
        task = self.settings.task
        with self.database.transaction():
            # Read anew inside the transaction: the round may have been closed while this batch came in.
            book = self.ledger.read()
            if round_number != book.next_round:
                raise ConflictError(f"expected round {book.next_round}, got {round_number}")
            if counts.users < task.minimum:
                raise BatchError(f"a round must have at least {task.minimum} users, got {counts.users}")
            mechanism = task.mechanism(users=counts.users)
            spent = book.accountant.compose(mechanism).statement(delta=task.delta)
            # Both entries are upper bounds, since fewer users are never more private. The larger crowd's can be the
            # larger bound: the accountant puts rounds of many sizes into classes. The smaller of the two counts.
            if spent.epsilon > self._least_epsilon(round_number):
                mechanism = task.mechanism(users=task.minimum)
                book = self.ledger.read()
                spent = book.accountant.compose(mechanism).statement(delta=task.delta)
            if spent.epsilon > task.epsilon:
                raise ExhaustedError(f"round {round_number} would exceed the budget of epsilon = {task.epsilon:g}")
            # By how many were expected to report, which is public; the number that did depends on secret coins.
            mean = counts.total / (task.rate * counts.users)
            vector = self.present()[1] + self.settings.step * mean
            book, answer = self._entered(book, spent, mechanism, counts, vector)
        # After the commit: a crash in between leaves a head that is behind, which the next start puts right.
        self.ledger.write_head(round_number, book.chain)
        self._forget_keys()
        return answer

    def _entered(
        self, book: Book, spent: Statement, mechanism: ShuffledCheckIn, counts: Counts, model: FloatArray
    ) -> tuple[Book, str]:
        """Write down a round after which `spent` holds, and its model; the ledger after it, and the answer."""
        answer = json.dumps(
            {
                "round": book.next_round,
                "users": counts.users,
                "counted": mechanism.users,
                "refused": sum(counts.refused.values()),
                "epsilon": {"lower": spent.answer.lower, "upper": spent.answer.upper},
                "delta": self.settings.task.delta,
                "crowd": mechanism.crowd,
                "adjacency": mechanism.adjacency,
                "guarantee": spent.sentence(),
            }
        )
        content = model_bytes(model)
        line = RoundLine(
            round=book.next_round,
            batch=counts.batch,
            users=counts.users,
            reports=counts.reports,
            refused=json.dumps(counts.refused),
            entry=json.dumps(mechanism.to_dict()),
            answer=answer,
            model=model_digest(content),
        )
        chain = self.ledger.append(book, line, content)
        return replace(book, chain=chain, next_round=book.next_round + 1), answer

    def _forget_keys(self) -> None:
        """Remove the keys of epochs that are over."""
        self.key_store.forget_before(self.settings.epoch_of(self.next_round))

    def skip(self, round_number: int) -> None:
        """Go on with a later round; rounds before it that the ledger lacks are entered with the smallest crowd.

        For an analyst that was put back to an earlier state. What it has forgotten may have been published, with as
        many users as the smallest crowd or more, so that the entry is an upper bound; and to close one of these
        rounds again, with other users, would show what they differ by.
        """
        try:
            closed = self.ledger.read_head()[0]
        except DamagedError:
            closed = 0
        task, limit = self.settings.task, self.settings.rounds + 1
        mechanism = task.mechanism(users=task.minimum)
        with self.database.transaction():
            book = self.ledger.read()
            first = max(book.next_round, closed + 1)
            if not first <= round_number <= limit:
                raise InvalidInput(f"round must lie between {first} and {limit}, got {round_number}")
            model = self.present()[1]
            counts = Counts(batch=b"", total=np.zeros(0), users=task.minimum, reports=0, refused={})
            while book.next_round < round_number:
                spent = book.accountant.compose(mechanism).statement(delta=task.delta)
                book, _ = self._entered(book, spent, mechanism, counts, model)
        self.ledger.write_head(round_number - 1, book.chain)
        self._forget_keys()


def _existing(folder: str | Path) -> Path:
    path = Path(folder)
    if not (path / DATABASE).exists():
        raise DataError(f"{path} must be a folder made by 'shoal analyst init', there is no {DATABASE}")
    return path

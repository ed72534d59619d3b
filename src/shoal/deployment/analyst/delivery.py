"""A batch while the analyst receives it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from shoal.bounds.numeric import FloatArray
from shoal.deployment import tokens
from shoal.deployment.analyst.settings import Settings
from shoal.deployment.errors import BatchError, RefusedReportError, TooLargeError
from shoal.deployment.report import REFUSAL_REASONS, report_values, unseal
from shoal.deployment.tokens import Marks


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a batch was: its digest, the sum of its reports, and how many users and reports counted."""

    batch: bytes
    total: FloatArray
    users: int
    reports: int
    refused: dict[str, int]


class Tally:
    """The reports of the round that is open, opened and added up as they come.

    Memory: one sum, and 17 bytes for each node that is enrolled.
    """

    def __init__(self, settings: Settings, round_number: int, *, key: X25519PrivateKey, marks: Marks) -> None:
        self._task, self._round_number, self._key, self._marks = settings.task, round_number, key, marks
        self._longest, self._digest = settings.task.longest, settings.task.digest
        self._seen = bytearray(len(marks))
        self._total = np.zeros(settings.task.dimension)
        self._reports = 0
        self._refused = dict.fromkeys(REFUSAL_REASONS, 0)

    def count(self, sealed: memoryview) -> None:
        """Open a report and add it, or count it as refused."""
        try:
            token, content = unseal(sealed, task=self._task, round_number=self._round_number, key=self._key)
            mark = tokens.mark(token, digest=self._digest, round_number=self._round_number)
            place = self._marks.find(mark)
            if place is None:
                raise RefusedReportError("token")
            if self._seen[place]:
                raise RefusedReportError("duplicate")
            # Before the numbers are looked at: a node whose report is nonsense has used its token, too.
            self._seen[place] = 1
            is_report, values = report_values(content, longest=self._longest)
        except RefusedReportError as refusal:
            self._refused[refusal.reason] += 1
            return
        # A dummy is added as well, as zeros: no step depends on which of the two it is.
        self._reports += is_report
        self._total += values

    def counts(self, batch: bytes) -> Counts:
        """The result for the batch with this digest."""
        return Counts(
            batch=batch, total=self._total, users=sum(self._seen), reports=self._reports, refused=self._refused
        )


class Delivery:
    """One batch while it comes in: `feed` it bytes, then `finish`; `abandon` it in any other case.

    Memory: some reports, and the tally. A batch for a closed round has no tally: its digest is compared.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tally: Tally | None,
        close: Callable[[Counts], str],
        repeat: Callable[[bytes], str],
        release: Callable[[], None],
    ) -> None:
        self._task, self._maximum = settings.task, settings.maximum
        self._tally, self._close, self._repeat, self._release = tally, close, repeat, release
        self._hash = hashlib.sha256()
        self._rest = b""
        self._received = 0
        self._open = True

    @property
    def closes(self) -> bool:
        """Whether this batch would close the round that is open."""
        return self._tally is not None

    def expect(self, size: int) -> None:
        """Refuse a batch by its announced size, before anything is read."""
        length = self._task.length
        if size > self._maximum * length:
            raise TooLargeError(
                f"a batch must have at most {self._maximum} reports of {length} bytes, got {size} bytes"
            )
        if size % length:
            raise BatchError(f"a batch must consist of reports of {length} bytes, got {size} bytes")
        if self.closes and size < self._task.minimum * length:
            raise BatchError(f"a batch must have at least {self._task.minimum} reports, got {size // length}")

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        # Report by report as they come: a batch may be larger than memory. What is left over waits for the next piece.
        self._hash.update(data)
        length = self._task.length
        view = memoryview(self._rest + data) if self._rest else memoryview(data)
        end = len(view) // length * length
        for start in range(0, end, length):
            self._received += 1
            if self._received > self._maximum:
                raise TooLargeError(f"a batch must have at most {self._maximum} reports")
            if self._tally is not None:
                self._tally.count(view[start : start + length])
        self._rest = bytes(view[end:])

    def finish(self) -> str:
        """The answer, once for each batch and always the same."""
        try:
            self.expect(self._received * self._task.length + len(self._rest))
            digest = self._hash.digest()
            return self._repeat(digest) if self._tally is None else self._close(self._tally.counts(digest))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the batch; nothing of it has happened unless `finish` has answered."""
        if self._open:
            self._open = False
            self._release()

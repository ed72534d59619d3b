"""The last models of an analyst, each under the round that starts from it."""

from __future__ import annotations

import hashlib

import numpy as np

from shoal.bounds.numeric import FloatArray
from shoal.deployment.analyst.database import Database
from shoal.errors import InvalidInput


class Models:
    """The models in the database: that of the next round, and some before it to go back to."""

    def __init__(self, database: Database, *, keep: int) -> None:
        self._database, self._keep = database, keep

    @property
    def next_round(self) -> int:
        """The round that starts from the newest model."""
        return int(self._database.execute("SELECT MAX(round) FROM models")[0][0])

    def newest(self) -> tuple[int, FloatArray]:
        """The round that comes next, and the model that it starts from."""
        round_number, content = self._database.execute("SELECT round, vector FROM models ORDER BY round DESC LIMIT 1")[
            0
        ]
        return int(round_number), np.frombuffer(content, dtype="<f8").copy()

    def digests(self) -> dict[int, bytes]:
        """The digest of each model, by the round that starts from it."""
        rows = self._database.execute("SELECT round, vector FROM models ORDER BY round")
        return {round_number: model_digest(content) for round_number, content in rows}

    def add(self, round_number: int, content: bytes) -> None:
        """Write down the model that a round starts from, and forget the oldest.

        Args:
            round_number: the round.
            content: the model, as `model_bytes` makes it.
        """
        self._database.execute("INSERT INTO models VALUES (?, ?)", round_number, content)
        self._database.execute("DELETE FROM models WHERE round <= ?", round_number - self._keep)

    def go_back(self, round_number: int) -> None:
        """Let the next round start from the model after round `round_number`; `InvalidInput` if it is not kept."""
        with self._database.transaction():
            rows = self._database.execute("SELECT vector FROM models WHERE round = ?", round_number + 1)
            if not rows:
                rounds = [str(row[0] - 1) for row in self._database.execute("SELECT round FROM models ORDER BY round")]
                raise InvalidInput(f"round must be one whose model is kept ({', '.join(rounds)}), got {round_number}")
            # The next round starts from it; no line of the ledger is touched.
            self._database.execute("UPDATE models SET vector = ? WHERE round = ?", rows[0][0], self.next_round)


def model_bytes(vector: FloatArray) -> bytes:
    """A model as the database holds it."""
    return vector.astype("<f8").tobytes()


def model_digest(content: bytes) -> bytes:
    """The digest of a model, by which the ledger names it."""
    return hashlib.sha256(content).digest()

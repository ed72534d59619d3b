"""The analyst as the shuffler sees it: over TLS, patient with restarts, impatient with refusals."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from shoal import _validate
from shoal.deployment import files, keys
from shoal.deployment.errors import AnalystError, RefusedBatchError
from shoal.deployment.log import LOG
from shoal.deployment.node import settings_fingerprint
from shoal.errors import InvalidInput

SEND_BLOCK = 1 << 20
"""Bytes sent to the analyst at once."""


@dataclass(frozen=True, kw_only=True)
class OpenRound:
    """What the analyst says about the next round; `round_number` is None when it opens no more."""

    round_number: int | None
    length: int = 0
    dimension: int = 0
    maximum: int = 0
    signature: bytes = b""
    signer: Ed25519PublicKey | None = None
    settings: bytes = b""
    reason: str = ""

    @property
    def fingerprint(self) -> bytes:
        """That of the settings for which the round is opened."""
        return b"" if self.signer is None else settings_fingerprint(self.signer, self.settings)


class AnalystClient:
    """A connection to the analyst's service."""

    def __init__(
        self, *, url: str, password: str, authority: str | Path | None = None, patience: float = 600.0
    ) -> None:
        """Prepare the connection; nothing is sent yet.

        Args:
            url: the service, with https.
            password: the content of the analyst's file `password`.
            authority: the authority of the service's certificate; the system's by default.
            patience: the number of seconds for which an analyst that does not answer is tried again.
        """
        if not url.startswith("https://"):
            raise InvalidInput(f"url must start with https://, got {url!r}")
        context = httpx.create_ssl_context(verify=str(authority)) if authority else httpx.create_ssl_context()
        self._http = httpx.Client(
            base_url=url,
            verify=context,
            headers={"Authorization": f"Bearer {password}"},
            timeout=httpx.Timeout(10.0, read=300.0),
            trust_env=False,  # no proxy that the environment names
        )
        self._patience = _validate.real("patience", patience)

    def open_round(self) -> OpenRound:
        """The round to collect next; asking again does not open another."""
        answer = self._ask(lambda: self._http.post("/v1/rounds"), allowed=(200, 403)).json()
        return OpenRound(
            round_number=answer.get("round"),
            length=answer.get("length", 0),
            dimension=answer.get("dimension", 0),
            maximum=answer.get("maximum", 0),
            signature=base64.b64decode(answer.get("opening", "")),
            signer=keys.signing_key(answer["signer"]) if "signer" in answer else None,
            settings=bytes.fromhex(answer.get("settings", "")),
            reason=answer.get("detail", ""),
        )

    def model(self, round_number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The model that a round starts from."""
        content = self._ask(lambda: self._http.get(f"/v1/rounds/{round_number}/model")).content
        return np.frombuffer(content, dtype="<f4").copy()

    def deliver(self, round_number: int, batch: Path) -> dict[str, Any]:
        """Deliver a batch; the same batch has the same answer however often it is delivered.

        Args:
            round_number: the round.
            batch: a file of the journal.

        Returns:
            The analyst's answer.

        Raises:
            RefusedBatchError: the analyst does not close the round with it.
            AnalystError: the analyst could not be reached for too long.
        """
        size = batch.stat().st_size - files.SUM_BYTES

        def put() -> httpx.Response:
            with open(batch, "rb") as file:
                return self._http.put(
                    f"/v1/rounds/{round_number}/reports",
                    content=(file.read(min(SEND_BLOCK, size - start)) for start in range(0, size, SEND_BLOCK)),
                    headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
                )

        # 413 as well: a batch that is too large stays too large, and would be delivered first at every start.
        answer = self._ask(put, allowed=(200, 403, 409, 413, 422))
        if answer.status_code != 200:
            raise RefusedBatchError(f"the analyst refused the batch of round {round_number}: {answer.json()['detail']}")
        return dict(answer.json())

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _ask(self, request: Callable[[], httpx.Response], allowed: tuple[int, ...] = (200,)) -> httpx.Response:
        deadline = time.monotonic() + self._patience
        for pause in itertools.chain((0.2, 0.5, 1.0, 2.0), itertools.repeat(5.0)):
            try:
                response = request()
                if response.status_code in allowed:
                    return response
                trouble = f"{response.status_code} {response.text[:300]}"
                # 408 and 429 mean later, 5xx a restart; any other refusal will not change by waiting.
                if response.status_code < 500 and response.status_code not in (408, 429):
                    raise AnalystError(f"the analyst refused: {trouble}")
            except httpx.TransportError as error:
                trouble = repr(error)
            if time.monotonic() + pause > deadline:
                raise AnalystError(f"the analyst did not answer for {self._patience:g} seconds: {trouble}")
            LOG.warning("analyst: %s; trying again", trouble)
            time.sleep(pause)
        raise AssertionError("unreachable")

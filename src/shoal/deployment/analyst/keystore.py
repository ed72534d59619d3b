"""The analyst's keys: for signing, for the ledger's chain, for each epoch of rounds; and the shuffler's password."""

from __future__ import annotations

import hmac
import json
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from shoal.deployment import files, keys
from shoal.deployment.errors import DamagedError

SIGN, PASSWORD, KEYS, PUBLIC_KEYS = "sign.key", "password", "keys", "public.json"


class KeyStore:
    """The secrets in an analyst's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.signer = keys.read_signing(folder / SIGN)
        self.password = _password(folder / PASSWORD)

    @classmethod
    def create(cls, folder: Path, *, epochs: int) -> KeyStore:
        """Make all keys, and a password.

        Args:
            folder: the analyst's folder.
            epochs: the number of epochs.

        Returns:
            The store.
        """
        keys.write_secret(folder / SIGN, keys.private_pem(Ed25519PrivateKey.generate()))
        keys.write_secret(folder / PASSWORD, secrets.token_urlsafe(32).encode() + b"\n")
        (folder / KEYS).mkdir(mode=0o700)
        # A key for each epoch, made beforehand: nodes get all public keys at once, and private keys are forgotten in
        # turn, so that who takes the analyst later cannot open what was sent earlier.
        public = []
        for epoch in range(1, epochs + 1):
            key = X25519PrivateKey.generate()
            keys.write_secret(_key_file(folder, epoch), keys.private_pem(key))
            public.append(keys.public_text(key.public_key()))
        files.replace(folder / KEYS / PUBLIC_KEYS, [json.dumps(public).encode()])
        return cls(folder)

    @property
    def chain_key(self) -> bytes:
        """The key of the ledger's chain: whoever can change the database but not read keys cannot continue it."""
        raw = self.signer.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return hmac.digest(raw, b"shoal ledger 2", "sha256")

    def public_keys(self) -> tuple[X25519PublicKey, ...]:
        """The keys that nodes seal to, epoch by epoch."""
        path = self.folder / KEYS / PUBLIC_KEYS
        try:
            texts = json.loads(path.read_text())
        except (OSError, ValueError):
            raise DamagedError(f"{path} is missing or damaged: restore it from a backup, or from a node.toml") from None
        return tuple(keys.sealing_key(text) for text in texts)

    def private_key(self, epoch: int) -> X25519PrivateKey:
        """The private key of an epoch; `DamagedError` if it is not the one that nodes seal to."""
        path = _key_file(self.folder, epoch)
        key = keys.read_sealing(path)
        if key.public_key() != self.public_keys()[epoch - 1]:
            raise DamagedError(f"{path} is not the key that nodes were given: restore it from a backup")
        return key

    def forget_before(self, epoch: int) -> None:
        """Remove the private keys of earlier epochs."""
        past = [path for path in (self.folder / KEYS).glob("*.key") if int(path.stem) < epoch]
        for path in past:
            path.unlink()
        if past:
            files.sync_folder(self.folder / KEYS)


def _key_file(folder: Path, epoch: int) -> Path:
    return folder / KEYS / f"{epoch:05d}.key"


def _password(path: Path) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text:
        raise DamagedError(f"{path} is missing or empty: write a new secret into it, and give it to the shuffler")
    return text

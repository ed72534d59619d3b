"""Keys and certificates: the analyst's keys, for sealing and for signing, and TLS for machines that have none."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.deployment import files
from shoal.deployment.errors import DamagedError
from shoal.errors import InvalidInput

VALID_DAYS = 90
KEY_BYTES = 32
FIELD = 2**255 - 19
"""The prime of Curve25519."""
EDWARDS = -121665 * pow(121666, -1, FIELD) % FIELD
"""The constant d of Ed25519's curve -x^2 + y^2 = 1 + d x^2 y^2 (RFC 8032, section 5.1)."""


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read.

    Args:
        path: the file, which must not exist.
        content: its content.
    """
    with files.private(path) as file:
        file.write(content)


def private_pem(key: X25519PrivateKey | Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in PEM format."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_sealing(path: Path) -> X25519PrivateKey:
    """The private key of an epoch; `DamagedError` if the file holds none."""
    key = _private_key(path)
    if not isinstance(key, X25519PrivateKey):
        raise DamagedError(f"{path} must hold an X25519 private key, got {type(key).__name__}")
    return key


def read_signing(path: Path) -> Ed25519PrivateKey:
    """The private key by which rounds are opened; `DamagedError` if the file holds none."""
    key = _private_key(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise DamagedError(f"{path} must hold an Ed25519 private key, got {type(key).__name__}")
    return key


def _private_key(path: Path) -> object:
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing: restore it from a backup, nothing can replace it") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise DamagedError(f"{path} is damaged: restore it from a backup, nothing can replace it") from None


def public_text(key: X25519PublicKey | Ed25519PublicKey) -> str:
    """A public key as 44 characters for a configuration file."""
    return base64.b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def sealing_key(text: object) -> X25519PublicKey:
    """The key of an epoch, as `public_text` wrote it; `InvalidInput` if it is none."""
    try:
        key = X25519PublicKey.from_public_bytes(_raw_key(text))
    except ValueError:
        raise _key_error(text) from None
    check_sealing(key)
    return key


def signing_key(text: object) -> Ed25519PublicKey:
    """The analyst's key for opening rounds, as `public_text` wrote it; `InvalidInput` if it is none."""
    try:
        key = Ed25519PublicKey.from_public_bytes(_raw_key(text))
    except ValueError:
        raise _key_error(text) from None
    check_signing(key)
    return key


def _raw_key(text: object) -> bytes:
    return base64.b64decode(text, validate=True) if isinstance(text, str) else b""


def _key_error(text: object) -> InvalidInput:
    return InvalidInput(f"key must be a public key of the analyst, 32 bytes in base64, got {text!r}")


def check_sealing(key: X25519PublicKey) -> None:
    """Refuse an X25519 key that is not canonical, or of small order (RFC 7748, section 6.1).

    With a key of small order the shared secret does not depend on the node's part, and anybody can open the seal.
    """
    canonical = int.from_bytes(key.public_bytes_raw(), "little") < FIELD
    try:
        X25519PrivateKey.generate().exchange(key)  # raises if the shared secret is zero
    except ValueError:
        canonical = False
    if not canonical:
        raise InvalidInput(f"key must be canonical and not of small order, got {public_text(key)!r}")


def check_signing(key: Ed25519PublicKey) -> None:
    """Refuse an Ed25519 key that is not a canonical point of the curve, or of small order.

    Under a key A of small order a signature (R, S) satisfies S B = R + h A for many hashes h, and so stands under many
    messages: whoever hands out such a key can open one round with a sealing key of its own for each node. Points of
    small order are those with 8 A = 0, which is the point with y = 1.
    """
    y = int.from_bytes(key.public_bytes_raw(), "little") & (2**255 - 1)
    square = _x_squared(y)
    on_curve = y < FIELD and pow(square, (FIELD - 1) // 2, FIELD) in (0, 1)
    if not on_curve or _doubled(_doubled(_doubled(y))) == 1:
        raise InvalidInput(f"key must be a point of the curve and not of small order, got {public_text(key)!r}")


def _x_squared(y: int) -> int:
    """The square of x of the curve's points with this y; it has a root if there are any."""
    return (y * y - 1) * pow(EDWARDS * y * y + 1, -1, FIELD) % FIELD


def _doubled(y: int) -> int:
    """The y of twice a point: (y^2 + x^2) / (2 - y^2 + x^2), from the curve's addition law and its equation."""
    square = _x_squared(y)
    return (y * y + square) * pow(2 - y * y + square, -1, FIELD) % FIELD


def make_certificates(folder: Path, *, hosts: Sequence[str] = ("127.0.0.1", "localhost")) -> None:
    """Make a certificate authority (`ca.pem`) and a server certificate (`server.pem`, `server.key`).

    They are for loopback and for trials: the authority's key is thrown away, so that it can sign nothing else.

    Args:
        folder: where the files are written.
        hosts: names and addresses of the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Five minutes in the past, because clocks differ.
    start = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=5)
    end = start + datetime.timedelta(days=VALID_DAYS)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _common_name("shoal test authority")

    def certificate(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )

    root = (
        certificate(issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        certificate(_common_name(hosts[0]), server.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host_name(host) for host in hosts]), critical=False)
        .sign(authority, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
    write_secret(folder / "server.key", private_pem(server))


def make_node_key(path: Path) -> None:
    """Make a SuperNode's key pair for Flower's authentication: `path` and `path.pub` (NIST P-384, OpenSSH)."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")


def make_app_key(path: Path) -> None:
    """Make a key for signing apps (Ed25519, OpenSSH), as `ssh-keygen -t ed25519` does."""
    key = Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )

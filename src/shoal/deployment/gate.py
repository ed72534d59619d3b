"""The gate before the SuperLink: which nodes may pass, how often they poll, and whose signature their app carries.

Flower reads and parses a whole request before it looks at the node's signature, which is in the headers. So nginx asks
the gate about the headers of each request (`/authorise`) before it passes on a byte of the body: a request must be
signed, a short time ago, by a node whose public key is in the operator's folder. Some requests go through the gate:

- `activate-node`: a SuperLink that was started anew knows no nodes. The gate registers a node of the folder with it, so
  that nodes which start again after that are let in; so are those that were killed and did not take their leave.
- `pull-messages`: polls reach the SuperLink if something may wait for the node, and as often as it can bear them. The
  others are answered by the gate: nothing waits.
- `push-messages`: a node may reply in its own name only, to a message that it names.
- `get-fab`: the app is passed on with the signatures under it that lie in the operator's folder; an open-source
  SuperLink has none. By them a node with `flower-supernode --trusted-entities` knows the app that its owner agreed to.

A key that is taken out of the folder is refused from the next request on.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import SUPERLINK_NODE_ID, SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, verify_signature
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from google.protobuf.message import DecodeError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn import Config, Server

from shoal import _validate
from shoal.deployment.link import GATED, SMALL_BODY
from shoal.errors import DataError, InvalidInput

NODE_KEYS, SIGNATURES = "nodes", "signatures"
"""Folders of the gate: a public key for each node (`*.pub`), and signatures under apps (`*.json`)."""
POLLS, PROBES = 40.0, 5.0
"""Polls a second that reach the SuperLink, of nodes that have no message of this wave yet and of those that have.

A poll costs the SuperLink some 6 ms: a quarter of its one core while a wave goes out, and 3% of it at any other time.
"""
NODES_FEW = 15
"""So many nodes, with a poll every three seconds, are no more than the probes."""
IDENTITY = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
"""The headers by which a node shows who it is."""
REFUSED_NODE = 412
"""Flower's answer to a node that it does not know, or that it thinks is there already."""
LICENSE = "valid_license"
"""What Flower calls the entry without which it does not look at the signatures."""


class WatchedFolder:
    """The files of a folder, read again when one was added or removed."""

    def __init__(self, path: Path, suffix: str) -> None:
        self.path, self._suffix = path, suffix
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._stamp, self._contents = 0, dict[str, bytes]()

    def contents(self) -> dict[str, bytes]:
        """The content of each file, by its name; the same object as long as the folder does not change."""
        stamp = self.path.stat().st_mtime_ns
        # A folder that has just changed may change again under the same stamp.
        if stamp != self._stamp or time.time_ns() < stamp + 10**9:
            self._contents = {path.name: path.read_bytes() for path in sorted(self.path.glob(f"*{self._suffix}"))}
            self._stamp = stamp
        return self._contents


class NodeKeys:
    """The public keys of those who may pass."""

    def __init__(self, folder: Path) -> None:
        self._folder = WatchedFolder(folder, ".pub")
        self._contents: dict[str, bytes] = {}
        self._keys: dict[bytes, ec.EllipticCurvePublicKey] = {}

    def known(self) -> Mapping[bytes, ec.EllipticCurvePublicKey]:
        """The keys, each under the text by which nodes show it."""
        contents = self._folder.contents()
        if contents is not self._contents:
            keys = [_node_key(self._folder.path / name, content) for name, content in contents.items()]
            self._keys, self._contents = {public_key_to_bytes(key): key for key in keys}, contents
        return self._keys

    def signer(self, headers: Mapping[str, str], *, now: datetime.datetime) -> bytes | None:
        """The key under which a request is signed.

        Args:
            headers: those of the request.
            now: the time, with its zone.

        Returns:
            The key's text; None unless it is in the folder and the signature is good and recent.
        """
        try:
            text, signature = (base64.b64decode(headers[name], validate=True) for name in IDENTITY[:2])
            timestamp = headers[TIMESTAMP_HEADER]
            age = (now - datetime.datetime.fromisoformat(timestamp)).total_seconds()
            signed = timestamp.encode("ascii")
        except (KeyError, ValueError, TypeError):
            return None
        key = self.known().get(text)
        recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return text if key is not None and recent and verify_signature(key, signed, signature) else None


def _node_key(path: Path, content: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DataError(f"{path} must hold a public key of 'ssh-keygen -t ecdsa', this is something else")
    return key


class Polls:
    """Which polls reach the SuperLink.

    A node that has been handed its message of the present wave has nothing to poll for until the next wave, of which
    the gate hears from whoever is handed a message first. So such nodes probe, a few of all of them a second; those
    that the wave has not reached yet poll, `rate` a second in all.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._wave, self._key = 0, (0, "")
        self._reached: dict[bytes, int] = {}
        self._passed = {PROBES: -math.inf, rate: -math.inf}

    def passes(self, node: bytes, *, nodes: int, moment: float) -> bool:
        """Whether a node's poll is passed on.

        Args:
            node: the node's key.
            nodes: the number of nodes.
            moment: the moment, by the monotonic clock.

        Returns:
            False if another poll of its kind was passed on a short time ago, and there are too many nodes for that.
        """
        rate = PROBES if self._reached.get(node, 0) == self._wave else self._rate
        if nodes > NODES_FEW and moment - self._passed[rate] < 1.0 / rate:
            return False
        self._passed[rate] = moment
        return True

    def handed(self, node: bytes, *, run: int, group: str) -> None:
        """Take note of a message that a node was handed.

        Args:
            node: the node's key.
            run: the message's run.
            group: its round.
        """
        if (run, group) != self._key or self._reached.get(node) == self._wave:  # also a round that is collected again
            self._wave, self._key = self._wave + 1, (run, group)
        self._reached[node] = self._wave


@dataclass(frozen=True, kw_only=True)
class AppSignature:
    """Somebody's signature under an app; `digest` is the SHA-256 of the app as Flower bundles it."""

    key: str
    public: str
    digest: str
    signed_at: int
    signature: str

    def to_json(self) -> str:
        """The file that `read` understands."""
        return json.dumps(self.__dict__, indent=1) + "\n"

    @classmethod
    def read(cls, content: bytes) -> AppSignature:
        """The signature in a file; `DataError` if it holds none."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            raise DataError("a signature must be a file of 'shoal flower sign', this is something else") from None

    @property
    def trust(self) -> str:
        """The line by which a node's owner trusts this key, for `flower-supernode --trusted-entities`."""
        return f"{self.key}: {self.public}"


def sign_app(app: Path, key: Path, *, signed_at: int) -> AppSignature:
    """A signature under an app.

    Args:
        app: the app's folder.
        key: a private key of `ssh-keygen -t ed25519`.
        signed_at: the time, in seconds.

    Returns:
        The signature, under the very bytes that `flwr run` sends to the nodes.

    Raises:
        InvalidInput: the key is of another kind.
    """
    try:
        private = load_ssh_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"key must be a private key of 'ssh-keygen -t ed25519', {key}: {error}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidInput(f"key must be a private key of 'ssh-keygen -t ed25519', {key} is of another kind")
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    digest = hashlib.sha256(build_fab_from_disk(app))
    signature = private.sign(create_message_to_sign(digest.digest(), signed_at))
    return AppSignature(
        key=f"shoal-{hashlib.sha256(public.encode()).hexdigest()[:16]}",
        public=public,
        digest=digest.hexdigest(),
        signed_at=signed_at,
        signature=base64.urlsafe_b64encode(signature).decode(),
    )


class Gate:
    """The gate of one SuperLink, with its folder."""

    def __init__(self, folder: Path, *, superlink: httpx.AsyncClient, polls: float = POLLS) -> None:
        """Read the folder.

        Args:
            folder: with `nodes/*.pub` and `signatures/*.json`.
            superlink: a client of the SuperLink.
            polls: polls a second that reach it.
        """
        self.keys = NodeKeys(folder / NODE_KEYS)
        self._signatures = WatchedFolder(folder / SIGNATURES, ".json")
        self._superlink = superlink
        self._active: dict[bytes, int] = {}
        """The nodes that were let in, as the SuperLink numbers them."""
        self._polls = Polls(_validate.real("polls", polls))
        if polls <= 0:
            raise InvalidInput(f"polls must be positive, got {polls}")

    def app(self) -> Starlette:
        """The service that nginx asks."""
        routes = [Route("/authorise", self._authorise, methods=["GET", "POST"])]
        handlers = {
            "activate-node": self._activate,
            "pull-messages": self._pull,
            "push-messages": self._push,
            "get-fab": self._fab,
        }
        for word in GATED:
            routes.append(Route(f"/v1/fleet/{word}", self._guarded(handlers[word]), methods=["POST"]))
        return Starlette(routes=routes)

    def _signer(self, request: Request) -> bytes | None:
        return self.keys.signer(request.headers, now=datetime.datetime.now(datetime.timezone.utc))

    async def _authorise(self, request: Request) -> Response:
        return Response(status_code=204 if self._signer(request) else 401)

    def _guarded(
        self, handler: Callable[[Request, bytes, bytes], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler that is given the node's key and a small body, and nothing of a stranger's."""

        async def guarded(request: Request) -> Response:
            node = self._signer(request)
            if node is None:
                return Response(status_code=401)
            body = bytearray()
            async for piece in request.stream():
                body += piece
                if len(body) > SMALL_BODY:
                    return Response(status_code=413)
            try:
                return await handler(request, node, bytes(body))
            except httpx.TransportError:
                return Response(status_code=502)

        return guarded

    async def _forwarded(self, request: Request, body: bytes, *, path: str | None = None) -> httpx.Response:
        """The SuperLink's answer to the same request, or to another one of the same node."""
        headers = {name: request.headers[name] for name in (*IDENTITY, "content-type") if name in request.headers}
        for name, value in request.headers.items():
            if name.startswith("flwr-"):
                headers[name] = value
        return await self._superlink.post(path or request.url.path, content=body, headers=headers)

    async def _activate(self, request: Request, node: bytes, body: bytes) -> Response:
        """Let a node of the folder in, also if the SuperLink does not know it yet, or thinks that it is there."""
        answer = await self._forwarded(request, body)
        if answer.status_code == REFUSED_NODE and node in self._active:
            # It was killed, or did not hear that it had been let in: the SuperLink would refuse it for a minute.
            leave = DeactivateNodeRequest(node_id=self._active.pop(node)).SerializeToString()
            await self._forwarded(request, leave, path="/v1/fleet/deactivate-node")
            answer = await self._forwarded(request, body)
        if answer.status_code == REFUSED_NODE:
            content = RegisterNodeRequest(public_key=node).SerializeToString()
            kind = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
            await self._superlink.post("/v1/control/register-node", content=content, headers=kind)
            answer = await self._forwarded(request, body)
        if answer.status_code == 200:
            self._active[node] = ActivateNodeResponse.FromString(answer.content).node_id
        return _passed_on(answer)

    async def _pull(self, request: Request, node: bytes, body: bytes) -> Response:
        """A poll, or the answer that nothing waits: a message without fields has no bytes."""
        if not self._polls.passes(node, nodes=len(self.keys.known()), moment=time.monotonic()):
            return Response(media_type=PROTOBUF_MEDIA_TYPE)
        answer = await self._forwarded(request, body)
        if answer.status_code == 200:
            for message in PullMessagesResponse.FromString(answer.content).messages_list:
                self._polls.handed(node, run=message.metadata.run_id, group=message.metadata.group_id)
        return _passed_on(answer)

    async def _push(self, request: Request, node: bytes, body: bytes) -> Response:
        """Replies of the node's own."""
        try:
            pushed = PushMessagesRequest.FromString(body)
        except DecodeError:
            return Response(status_code=400)
        for message in pushed.messages_list:
            honest = message.metadata.src_node_id == pushed.node.node_id
            is_reply = message.metadata.dst_node_id == SUPERLINK_NODE_ID and message.metadata.reply_to_message_id
            if not honest or not is_reply:
                return Response(status_code=403)
        return _passed_on(await self._forwarded(request, body))

    async def _fab(self, request: Request, node: bytes, body: bytes) -> Response:
        """The app, with the signatures under it."""
        answer = await self._forwarded(request, body)
        if answer.status_code != 200:
            return _passed_on(answer)
        response = GetFabResponse.FromString(answer.content)
        digest = hashlib.sha256(response.fab.content).hexdigest()
        for signature in map(AppSignature.read, self._signatures.contents().values()):
            if signature.digest == digest:
                words = {"signed_at": signature.signed_at, "signature": signature.signature}
                response.fab.verifications[signature.key] = json.dumps(words)
                response.fab.verifications[LICENSE] = "signed"
        return Response(response.SerializeToString(), media_type=PROTOBUF_MEDIA_TYPE)


def _passed_on(answer: httpx.Response) -> Response:
    return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))


def superlink_client(*, port: int, authority: Path, name: str) -> httpx.AsyncClient:
    """A client of a SuperLink on loopback.

    Args:
        port: its port.
        authority: the authority of its certificate.
        name: a name in the certificate.

    Returns:
        The client.
    """

    async def named(request: httpx.Request) -> None:
        request.extensions["sni_hostname"] = name

    return httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{port}",
        verify=httpx.create_ssl_context(verify=str(authority)),
        timeout=httpx.Timeout(120.0, connect=10.0),
        limits=httpx.Limits(max_connections=64),
        trust_env=False,  # no proxy that the environment names
        event_hooks={"request": [named]},
    )


def serve_gate(folder: Path, *, port: int, superlink: int, authority: Path, name: str, polls: float) -> None:
    """Run the gate on loopback until it is stopped.

    Args:
        folder: the gate's folder.
        port: the port that nginx asks.
        superlink: the SuperLink's port.
        authority: the authority of the SuperLink's certificate.
        name: a name in that certificate.
        polls: polls a second that reach the SuperLink.

    Raises:
        InvalidInput: a file, a port or a name does not do.
    """
    if not authority.is_file():
        raise InvalidInput(f"authority must be a file in PEM format, got {authority}")
    for role, value in {"port": port, "superlink": superlink}.items():
        _validate.integer(role, value, minimum=1, maximum=65_535)
    gate = Gate(folder, superlink=superlink_client(port=superlink, authority=authority, name=name), polls=polls)
    gate.keys.known()  # a file that is no key is an error now, not at the first request
    options: dict[str, Any] = {"access_log": False, "log_level": "warning", "server_header": False, "ws": "none"}
    Server(Config(gate.app(), host="127.0.0.1", port=port, **options)).run()

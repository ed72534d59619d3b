"""The analyst as a web service: four kinds of requests, one password, TLS.

The only body that it reads is a batch, which streams through: memory does not depend on its length. The
shuffler learns the number of users and epsilon, never how many checked in. Nothing is logged about requests.

Strangers can connect, and get little for it. A handshake must be over and a request must have begun within some
seconds. The number of handshakes at a time is bounded, since each takes a third of a megabyte before the other side has
sent a byte, and so is that of quiet connections, those without a request. Of too many the oldest of the address that
has the most is closed, so that a new connection, the shuffler's, always gets in. Requests without the password are
answered a few at a time.
"""

import asyncio
import base64
import resource
import secrets
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi import Path as PathParameter
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from shoal import __version__
from shoal.deployment.analyst.analyst import Analyst
from shoal.deployment.errors import (
    BatchError,
    BusyError,
    ConflictError,
    DamagedError,
    ExhaustedError,
    TooLargeError,
)
from shoal.deployment.keys import public_text
from shoal.deployment.task import ROUND_MAX

BATCH_BLOCK = 4 << 20
"""Bytes gathered before they are opened and added up."""
SILENCE = 60.0
"""Seconds without a byte after which a batch is given up."""
HANDSHAKE, HEADER, IDLE = 10.0, 10.0, 30.0
"""Seconds for a TLS handshake, for a request's head, and between two requests on one connection."""
HANDSHAKES_MAX, QUIET_MAX = 64, 64
"""Connections whose handshake is not over, and those without a request."""
STRANGERS = 50
"""Requests a second without the password that are looked at; as many may come at once."""
OPEN_FILES = 65_536
"""Open files and connections that the service requests from the system."""
STATUS = {ConflictError: 409, ExhaustedError: 403, BusyError: 503, BatchError: 422, TooLargeError: 413}


class Refusal(BaseModel):
    """Why a request was refused."""

    detail: str


class NextRound(BaseModel):
    """The round that is open."""

    round: int
    length: int = Field(description="Bytes of a sealed report.")
    dimension: int = Field(description="Numbers of the model.")
    minimum: int = Field(description="Fewest users of a round.")
    maximum: int = Field(description="Most reports of a batch.")
    opening: str = Field(description="The analyst's signature under the opening of this round, in base64.")
    signer: str = Field(description="The key of this signature, in base64.")
    settings: str = Field(description="The digest of terms and sealing keys, in hexadecimal digits.")


class EpsilonBounds(BaseModel):
    lower: float
    upper: float


class ClosedRound(BaseModel):
    """A closed round, and what all rounds so far have cost."""

    round: int
    users: int
    counted: int = Field(description="Users that the ledger counts on.")
    refused: int
    epsilon: EpsilonBounds
    delta: float
    crowd: str
    adjacency: str
    guarantee: str


class Throttle:
    """Answer a limited number of requests without the password in a second; those with it are not held up."""

    def __init__(self, app: ASGIApp, *, password: str) -> None:
        self._app, self._expected = app, f"Bearer {password}".encode()
        self._budget, self._refilled = float(STRANGERS), time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._has_password(scope) and not self._allowed():
            refusal = JSONResponse({"detail": "too many requests without the password"}, 429, {"Retry-After": "1"})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _has_password(self, scope: Scope) -> bool:
        # Compared in constant time here as well: who can measure must not learn the password letter by letter.
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(authorization, self._expected)

    def _allowed(self) -> bool:
        # A bucket that fills up again within a second, one for all strangers: they have no names to tell them apart.
        now = time.monotonic()
        self._budget = min(STRANGERS, self._budget + (now - self._refilled) * STRANGERS)
        self._refilled = now
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Refusal} for status in statuses}


def analyst_app(analyst: Analyst) -> FastAPI:
    """The service of one analyst."""
    app = FastAPI(title="shoal analyst", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Throttle, password=analyst.password)
    _add_refusals(app)
    _add_health(app)
    guarded = _guarded(analyst)
    _add_rounds(app, analyst, guarded)
    _add_reports(app, analyst, guarded)
    return app


_RoundNumber = Annotated[int, PathParameter(ge=1, le=ROUND_MAX)]


def _guarded(analyst: Analyst) -> dict[str, Any]:
    """The options of a path that demands the password."""
    bearer = HTTPBearer(auto_error=False, description="The content of the analyst's file `password`.")

    def check_password(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        password = credentials.credentials if credentials else ""
        if not secrets.compare_digest(password.encode(), analyst.password.encode()):
            raise HTTPException(401, "a request must carry the analyst's password", {"WWW-Authenticate": "Bearer"})

    return {"dependencies": [Depends(check_password)]}


def _add_refusals(app: FastAPI) -> None:
    """Every error that a request can be answered with, as one sentence."""
    for kind, status in STATUS.items():

        def refuse(request: Request, error: Exception, status: int = status) -> JSONResponse:
            headers = {"Retry-After": "1"} if status == 503 else None
            return JSONResponse({"detail": str(error)}, status, headers)

        app.add_exception_handler(kind, refuse)

    @app.exception_handler(DamagedError)
    def damaged(request: Request, error: DamagedError) -> JSONResponse:
        # What is wrong with which file is for the analyst's own log, not for who asks.
        print(f"error: {error}", file=sys.stderr, flush=True)
        return JSONResponse({"detail": "the analyst's folder is damaged, its own log says how"}, 500)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": f"round must be a whole number from 1 to {ROUND_MAX}"}, 422)


def _add_health(app: FastAPI) -> None:
    @app.get("/v1/health", status_code=204)
    async def health() -> None:
        """Whether the service is up; of which version is nobody's business."""


def _add_rounds(app: FastAPI, analyst: Analyst, guarded: dict[str, Any]) -> None:
    """To open a round, and to fetch its model."""

    @app.post("/v1/rounds", responses=_refusals(401, 403, 429), **guarded)
    def open_round() -> NextRound:
        """Open the next round, or name the one that is open; 403 if the budget or the roster does not allow it."""
        task = analyst.settings.task
        round_number, signature = analyst.signature()
        return NextRound(
            round=round_number,
            length=task.length,
            dimension=task.dimension,
            minimum=task.minimum,
            maximum=analyst.settings.maximum,
            opening=base64.b64encode(signature).decode(),
            signer=public_text(analyst.signer.public_key()),
            settings=analyst.settings_digest.hex(),
        )

    @app.get(
        "/v1/rounds/{round_number}/model",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}, **_refusals(401, 409, 422, 429)},
        **guarded,
    )
    def model(round_number: _RoundNumber) -> Response:
        """The model that the next round starts from: float32, little-endian."""
        next_round, vector = analyst.present()
        if round_number != next_round:
            raise ConflictError(f"expected round {next_round}, got {round_number}")
        return Response(vector.astype("<f4").tobytes(), media_type="application/octet-stream")


def _add_reports(app: FastAPI, analyst: Analyst, guarded: dict[str, Any]) -> None:
    """To close a round."""

    @app.put(
        "/v1/rounds/{round_number}/reports",
        responses=_refusals(401, 403, 408, 409, 413, 415, 422, 429, 503),
        openapi_extra={
            "requestBody": {
                "required": True,
                "description": "Sealed reports of one length, one after the other.",
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
        response_model=ClosedRound,
        **guarded,
    )
    async def reports(round_number: _RoundNumber, request: Request) -> Response:
        """Close a round with a batch. The same batch again gets the same answer, another one gets 409."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/octet-stream":
            raise HTTPException(415, "a batch must be of type application/octet-stream")
        batch = await run_in_threadpool(analyst.receive, round_number)
        try:
            # Refused by its announced size, before megabytes are read; a batch without an announcement is counted.
            announced = request.headers.get("content-length", "")
            if announced.isdecimal() and len(announced) < 19:
                batch.expect(int(announced))
            async for block in _batch_blocks(request):
                await run_in_threadpool(batch.feed, block)
            answer = await run_in_threadpool(batch.finish)
        finally:
            # Whatever happened, or the analyst would wait for this batch for ever.
            batch.abandon()
        if batch.closes:
            print(f"round {round_number}: {ClosedRound.model_validate_json(answer).guarantee}", flush=True)
        return Response(answer, media_type="application/json")


async def _batch_blocks(request: Request) -> AsyncIterator[bytes]:
    """The body in pieces of some megabytes; a sender that falls silent is given up."""
    stream = request.stream()
    gathered = bytearray()
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                piece = await anext(stream, None)
        except (TimeoutError, ClientDisconnect):
            raise HTTPException(408, f"a batch must not break off or pause for {SILENCE:g} seconds") from None
        if piece:
            gathered += piece
        if gathered and (piece is None or len(gathered) >= BATCH_BLOCK):
            yield bytes(gathered)
            gathered.clear()
        if piece is None:
            return


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol, closing connections without a request after some seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_quiet(HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_quiet()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_quiet()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else the next request has begun
            self._begin_quiet(IDLE)

    @property
    def _quiet(self) -> "Waiting":
        """All connections of this server without a request."""
        return cast("Waiting", self.config.__dict__.setdefault("quiet", Waiting(QUIET_MAX)))

    def _begin_quiet(self, seconds: float) -> None:
        self._quiet.add(self.transport, self.loop.call_later(seconds, self._give_up))

    def _end_quiet(self) -> None:
        self._quiet.remove(self.transport)

    def _give_up(self) -> None:
        self._end_quiet()
        self.transport.abort()


class Waiting:
    """Connections that nothing has come of yet: a bounded number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The address as it was at the beginning: a connection that is lost has none.
        self._connections: dict[asyncio.Transport, tuple[str, asyncio.TimerHandle | None]] = {}
        self._addresses: dict[str, dict[asyncio.Transport, None]] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, transport: asyncio.Transport, timer: asyncio.TimerHandle | None = None) -> None:
        """Take a connection in; of too many the oldest of the address that has the most is closed.

        Args:
            transport: the connection.
            timer: what is to happen if nothing comes of it.
        """
        self.remove(transport)
        if len(self) >= self._limit:
            crowded = max(self._addresses.values(), key=len)
            oldest = next(iter(crowded))
            self.remove(oldest)
            oldest.abort()
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        self._connections[transport] = address, timer
        self._addresses.setdefault(address, {})[transport] = None

    def remove(self, transport: asyncio.Transport) -> None:
        """Let a connection go, and its timer."""
        if transport not in self._connections:
            return
        address, timer = self._connections.pop(transport)
        if timer is not None:
            timer.cancel()
        self._addresses[address].pop(transport)
        if not self._addresses[address]:
            del self._addresses[address]


class Doorkeeper(asyncio.Protocol):
    """A connection before its handshake; the service's own protocol begins after it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        shaking: Waiting,
    ) -> None:
        """Wait for the connection.

        Args:
            loop: the event loop.
            protocol: makes the service's protocol.
            context: the service's certificate.
            shaking: the connections whose handshake is not over.
        """
        self._loop, self._protocol, self._context, self._shaking = loop, protocol, context, shaking
        self._task: asyncio.Task[None] | None = None
        self._early = b""
        """What came with the end of the handshake, before the service's protocol has begun."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.pause_reading()  # what comes is for the handshake
        self._shaking.add(transport)
        self._task = self._loop.create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _shake(self, transport: asyncio.Transport) -> None:
        try:
            secured = await self._loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE
            )
        except (OSError, EOFError):  # a stranger who hangs up, or speaks something else
            return
        finally:
            self._shaking.remove(transport)
        if secured is None or transport.is_closing():
            return
        protocol = self._protocol()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(self._early)


class _GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers have a doorkeeper."""

    def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        context = options.pop("ssl", None)
        if context is None:
            return super().create_server(protocol_factory, *args, **options)
        shaking = Waiting(HANDSHAKES_MAX)
        return super().create_server(lambda: Doorkeeper(self, protocol_factory, context, shaking), *args, **options)


def serve_analyst(analyst: Analyst, *, host: str, port: int, certificate: Path, key: Path) -> None:
    """Run the service until it is stopped.

    Args:
        analyst: an open analyst.
        host: the address to listen on.
        port: the port to listen on.
        certificate: the TLS certificate.
        key: its private key.
    """
    # Each connection is an open file, and the system's default limit is low.
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if limit == resource.RLIM_INFINITY else min(limit, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, limit))
    server = Server(
        Config(
            analyst_app(analyst),
            http=ImpatientProtocol,
            ws="none",
            host=host,
            port=port,
            ssl_certfile=str(certificate),
            ssl_keyfile=str(key),
            access_log=False,  # who asked when is nothing to keep
            log_level="warning",
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(IDLE),
        )
    )
    task = analyst.settings.task
    print(
        f"analyst of task {task.name} at https://{host}:{port}; next round: {analyst.next_round}, with at least "
        f"{task.minimum} users; fingerprint: {analyst.fingerprint.hex()}; "
        f"budget: epsilon = {task.epsilon:g} at delta = {task.delta:g} "
        f"({task.crowd} crowd, zero-out adjacency)",
        flush=True,
    )
    with asyncio.Runner(loop_factory=_GuardedLoop) as runner:
        runner.run(server.serve())
    if not server.started:
        sys.exit(1)

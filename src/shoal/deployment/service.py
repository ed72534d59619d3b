"""The analyst as a web service: four questions, one secret, TLS.

The only body that it reads is a batch, which streams through: memory does not depend on its length. The
shuffler learns the number of users and epsilon, never how many checked in. Nothing is logged about requests.

Strangers can connect, and get little for it: a handshake must be over and a request must have begun within
some seconds; of the connections on which nothing is asked the oldest is closed when there are too many, so
that a new one, the shuffler's, always gets in; and requests without the password are answered a few at a time.
"""

import asyncio
import base64
import resource
import secrets
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

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
from shoal.deployment.analyst import (
    Analyst,
    BatchError,
    BusyError,
    ConflictError,
    DamagedError,
    ExhaustedError,
    TooLargeError,
)
from shoal.deployment.report import ROUND_MAX

BLOCK = 4 << 20
"""Bytes gathered before they are opened and added up."""
SILENCE = 60.0
"""Seconds without a byte after which a batch is given up."""
HANDSHAKE, HEADER, IDLE = 10.0, 10.0, 30.0
"""Seconds for a TLS handshake, for a request's head, and between two requests on one connection."""
QUIET_MAX = 64
"""Connections on which nothing is being asked."""
STRANGERS = 50
"""Requests a second without the password that are looked at; as many may come at once."""
FILES = 65_536
"""Open files and connections that the service asks the system for."""
STATUS = {ConflictError: 409, ExhaustedError: 403, BusyError: 503, BatchError: 422, TooLargeError: 413}


class Refusal(BaseModel):
    """Why a request was refused."""

    detail: str


class Health(BaseModel):
    version: str


class Waiting(BaseModel):
    """The round that the analyst waits for."""

    round: int
    length: int = Field(description="Bytes of a sealed report.")
    dimension: int = Field(description="Numbers of the model.")
    minimum: int = Field(description="Fewest users of a round.")
    opening: str = Field(description="The analyst's signature under this round and its model, in base64.")


class Bracket(BaseModel):
    lower: float
    upper: float


class Closed(BaseModel):
    """A closed round, and what all rounds so far have cost."""

    round: int
    users: int
    counted: int = Field(description="Users that the ledger counts on.")
    refused: int
    epsilon: Bracket
    delta: float
    crowd: str
    adjacency: str
    guarantee: str


class Throttle:
    """Requests without the password, a limited number in a second; those with it are not held up by them."""

    def __init__(self, app: ASGIApp, *, password: str) -> None:
        self._app, self._expected = app, f"Bearer {password}".encode()
        self._left, self._at = float(STRANGERS), time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._known(scope) and not self._allowed():
            refusal = JSONResponse({"detail": "too many requests without the password"}, 429, {"Retry-After": "1"})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        # Compared in constant time here as well: who can measure must not learn the password letter by letter.
        given = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(given, self._expected)

    def _allowed(self) -> bool:
        # A bucket that fills up again within a second, one for all strangers: they have no names to tell them apart.
        now = time.monotonic()
        self._left, self._at = min(STRANGERS, self._left + (now - self._at) * STRANGERS), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Refusal} for status in statuses}


def make_app(analyst: Analyst) -> FastAPI:
    """The service of one analyst."""
    app = FastAPI(title="shoal analyst", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Throttle, password=analyst.password)
    _add_refusals(app)
    _add_health(app)
    guarded = _guarded(analyst)
    _add_rounds(app, analyst, guarded)
    _add_reports(app, analyst, guarded)
    return app


_Number = Annotated[int, PathParameter(ge=1, le=ROUND_MAX)]


def _guarded(analyst: Analyst) -> dict[str, Any]:
    """What makes a path ask for the password."""
    bearer = HTTPBearer(auto_error=False, description="The content of the analyst's file `password`.")

    def known(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        given = credentials.credentials if credentials else ""
        if not secrets.compare_digest(given.encode(), analyst.password.encode()):
            raise HTTPException(401, "a request must carry the analyst's password", {"WWW-Authenticate": "Bearer"})

    return {"dependencies": [Depends(known)]}


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
    @app.get("/v1/health")
    async def health() -> Health:
        """Whether the service is up."""
        return Health(version=__version__)


def _add_rounds(app: FastAPI, analyst: Analyst, guarded: dict[str, Any]) -> None:
    """To open a round, and to fetch its model."""

    @app.post("/v1/rounds", responses=_refusals(401, 403, 429), **guarded)
    def open_round() -> Waiting:
        """Open the next round, or name the one that is open; 403 if the budget or the roster does not allow it."""
        task = analyst.settings.task
        number, signature = analyst.signature()
        return Waiting(
            round=number,
            length=task.length,
            dimension=task.dimension,
            minimum=task.minimum,
            opening=base64.b64encode(signature).decode(),
        )

    @app.get(
        "/v1/rounds/{number}/model",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}, **_refusals(401, 409, 422, 429)},
        **guarded,
    )
    def model(number: _Number) -> Response:
        """The model of the round that is waited for: float32, little-endian."""
        waiting, vector = analyst.present()
        if number != waiting:
            raise ConflictError(f"round must be {waiting}, which is waited for, got {number}")
        return Response(vector.astype("<f4").tobytes(), media_type="application/octet-stream")


def _add_reports(app: FastAPI, analyst: Analyst, guarded: dict[str, Any]) -> None:
    """To close a round."""

    @app.put(
        "/v1/rounds/{number}/reports",
        responses=_refusals(401, 403, 408, 409, 413, 415, 422, 429, 503),
        openapi_extra={
            "requestBody": {
                "required": True,
                "description": "Sealed reports of one length, one after the other.",
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            }
        },
        response_model=Closed,
        **guarded,
    )
    async def reports(number: _Number, request: Request) -> Response:
        """Close a round with a batch. The same batch again gets the same answer, another one gets 409."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/octet-stream":
            raise HTTPException(415, "a batch must be of type application/octet-stream")
        batch = await run_in_threadpool(analyst.receive, number)
        try:
            # Refused by what is announced, before megabytes are read; a batch without an announcement is counted.
            announced = request.headers.get("content-length", "")
            if announced.isdecimal() and len(announced) < 19:
                batch.expect(int(announced))
            async for block in _blocks(request):
                await run_in_threadpool(batch.feed, block)
            answer = await run_in_threadpool(batch.finish)
        finally:
            # Whatever happened, or the analyst would wait for this batch for ever.
            batch.abandon()
        if batch.counted:
            print(f"round {number}: {Closed.model_validate_json(answer).guarantee}", flush=True)
        return Response(answer, media_type="application/json")


async def _blocks(request: Request) -> AsyncIterator[bytes]:
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
        if gathered and (piece is None or len(gathered) >= BLOCK):
            yield bytes(gathered)
            gathered.clear()
        if piece is None:
            return


class Impatient(H11Protocol):
    """uvicorn's protocol for connections on which something must be asked, and soon."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ask()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._ask()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else the next request has begun
            self._wait(IDLE)

    @property
    def _quiet(self) -> dict["Impatient", asyncio.TimerHandle]:
        """All connections of this server on which nothing is asked, the oldest first."""
        quiet: dict[Impatient, asyncio.TimerHandle] = self.config.__dict__.setdefault("quiet", {})
        return quiet

    def _wait(self, seconds: float) -> None:
        self._ask()
        # One connection too many costs the one that has said nothing for longest.
        if len(self._quiet) >= QUIET_MAX:
            next(iter(self._quiet))._give_up()
        self._quiet[self] = self.loop.call_later(seconds, self._give_up)

    def _ask(self) -> None:
        timer = self._quiet.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._ask()
        self.transport.abort()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers do not wait a minute for a handshake."""

    def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE
        return super().create_server(*args, **options)


def serve(analyst: Analyst, *, host: str, port: int, certificate: Path, key: Path) -> None:
    """Run the service until it is stopped."""
    # Each connection is an open file; what the system allows by default is few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = FILES if most == resource.RLIM_INFINITY else min(most, FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))
    server = Server(
        Config(
            make_app(analyst),
            http=Impatient,
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
        f"analyst of task {task.name} at https://{host}:{port}, waiting for round {analyst.next_round} with at least "
        f"{task.minimum} users; budget: epsilon = {task.epsilon:g} at delta = {task.delta:g} "
        f"({task.crowd} crowd, zero-out adjacency)",
        flush=True,
    )
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(server.serve())
    if not server.started:
        sys.exit(1)

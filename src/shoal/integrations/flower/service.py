"""The analyst as a web service: four questions, one secret, TLS.

The only body that it reads is a batch, which streams through: memory does not depend on its length. The
shuffler learns the number of users and epsilon, never how many checked in. Nothing is logged about requests.
"""

import asyncio
import secrets
import sys
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

from shoal import __version__
from shoal.integrations.flower.analyst import (
    Analyst,
    BatchError,
    BusyError,
    ConflictError,
    ExhaustedError,
    TooLargeError,
)
from shoal.integrations.flower.report import ROUND_MAX

BLOCK = 4 << 20
"""Bytes gathered before they are opened and added up."""
SILENCE = 60.0
"""Seconds without a byte after which a batch is given up."""
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
    minimum: int = Field(description="Fewest reports of a batch.")


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


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Refusal} for status in statuses}


def make_app(analyst: Analyst) -> FastAPI:
    """The service of one analyst."""
    app = FastAPI(title="shoal analyst", version=__version__, docs_url=None, redoc_url=None)
    bearer = HTTPBearer(auto_error=False, description="The content of the analyst's file `token`.")

    def known(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        given = credentials.credentials if credentials else ""
        if not secrets.compare_digest(given.encode(), analyst.token.encode()):
            raise HTTPException(401, "a request must carry the analyst's token", {"WWW-Authenticate": "Bearer"})

    guarded: dict[str, Any] = {"dependencies": [Depends(known)]}
    number_type = Annotated[int, PathParameter(ge=1, le=ROUND_MAX)]

    for kind, status in STATUS.items():

        def refuse(request: Request, error: Exception, status: int = status) -> JSONResponse:
            headers = {"Retry-After": "1"} if status == 503 else None
            return JSONResponse({"detail": str(error)}, status, headers)

        app.add_exception_handler(kind, refuse)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": f"round must be a whole number from 1 to {ROUND_MAX}"}, 422)

    @app.get("/v1/health")
    async def health() -> Health:
        """Whether the service is up."""
        return Health(version=__version__)

    @app.post("/v1/rounds", responses=_refusals(401, 403), **guarded)
    def open_round() -> Waiting:
        """Open the next round, or name the one that is open; 403 if it could exceed the budget."""
        settings = analyst.settings
        return Waiting(
            round=analyst.open_round(),
            length=settings.task.length,
            dimension=settings.task.dimension,
            minimum=settings.minimum,
        )

    @app.get(
        "/v1/rounds/{number}/model",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}, **_refusals(401, 409, 422)},
        **guarded,
    )
    def model(number: number_type) -> Response:
        """The model of the round that is waited for: float32, little-endian."""
        waiting, vector = analyst.present()
        if number != waiting:
            raise ConflictError(f"round must be {waiting}, which is waited for, got {number}")
        return Response(vector.astype("<f4").tobytes(), media_type="application/octet-stream")

    @app.put(
        "/v1/rounds/{number}/reports",
        responses=_refusals(401, 403, 408, 409, 413, 415, 422, 503),
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
    async def reports(number: number_type, request: Request) -> Response:
        """Close a round with a batch. The same batch again gets the same answer, another one gets 409."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/octet-stream":
            raise HTTPException(415, "a batch must be of type application/octet-stream")
        batch = await run_in_threadpool(analyst.receive, number)
        try:
            announced = request.headers.get("content-length", "")
            if announced.isdecimal() and len(announced) < 19:
                batch.expect(int(announced))
            async for block in _blocks(request):
                await run_in_threadpool(batch.feed, block)
            answer = await run_in_threadpool(batch.finish)
        finally:
            batch.abandon()
        if batch.counted:
            print(f"round {number}: {Closed.model_validate_json(answer).guarantee}", flush=True)
        return Response(answer, media_type="application/json")

    return app


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


def serve(analyst: Analyst, *, host: str, port: int, certificate: Path, key: Path) -> None:
    """Run the service until it is stopped."""
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(
            make_app(analyst),
            host=host,
            port=port,
            ssl_certfile=str(certificate),
            ssl_keyfile=str(key),
            access_log=False,
            log_level="warning",
            server_header=False,
            date_header=False,
            limit_concurrency=64,
            timeout_keep_alive=30,
        )
    )
    budget = analyst.settings.budget
    print(
        f"analyst of task {analyst.settings.task.name} at https://{host}:{port}, waiting for round "
        f"{analyst.next_round}; budget: epsilon = {budget.epsilon:g} at delta = {budget.delta:g} "
        f"({budget.crowd} crowd, zero-out adjacency)",
        flush=True,
    )
    server.run()
    if not server.started:
        sys.exit(1)

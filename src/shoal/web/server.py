"""The page's server: this machine only, and only whoever knows the address.

It listens on the loopback address, on a port that the system picks. The path begins with a secret that is drawn anew at
each start; without it nothing is answered. A request must name this server as its host (a foreign name that was made to
point here does not get in), and must not come from another site's page. What is sent forbids the browser to load
anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncGenerator, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config, Server

from shoal import __version__
from shoal.errors import InvalidInput
from shoal.web import workers

LOOPBACK = "127.0.0.1"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
REQUEST_BYTES_MAX = 20 << 20


class Guard:
    """Lets in who names this host and its secret, from no other site; gives every answer its headers."""

    def __init__(self, app: ASGIApp, *, port: int, secret: str) -> None:
        self._app, self._secret = app, secret
        self._hosts = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await PlainTextResponse(refusal, 403)(scope, receive, with_headers)
            return
        inner = {**scope, "path": scope["path"][len(self._secret) + 1 :]}
        await self._app(inner, receive, with_headers)

    def _refusal(self, scope: Scope) -> str | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if host not in self._hosts:
            return "host must be this machine's loopback address and port\n"
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return "origin must be this page\n"
        secret = scope["path"].split("/")[1]
        if not secrets.compare_digest(secret.encode(), self._secret.encode()):
            return "the address must be the one that 'shoal explore' printed\n"
        return None


class Broker:
    """Passes questions to workers, and pieces back; a newer question of the same page ends its older one."""

    def __init__(self) -> None:
        context = workers.context()
        self.quick, self.slow = workers.Worker(context), workers.Worker(context)
        # Pictures have a worker of their own: a slider that moves while they are drawn finds the quick one free, and as
        # long as anybody waits for a number they get little of the processor. Only any crowd's curve is drawn where its
        # number was computed: most of the work is done there already.
        self.pictures = workers.Worker(context, patience=5)
        self._open: dict[str, asyncio.Task[None]] = {}
        self._page: dict[str, Any] = {}

    async def page(self) -> dict[str, Any]:
        """Return what the page consists of. This process itself loads no numerics: it is up at once."""
        if not self._page:
            async with contextlib.aclosing(self.quick.pieces("page", {})) as pieces:
                async for piece in pieces:
                    self._page = piece
        return self._page

    async def answers(
        self, page: str, work: Callable[[asyncio.Queue[Any]], Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the pieces that `work` puts into its queue, until it is done or the page asks something else.

        Args:
          page: The page that asks.
          work: Puts pieces into a queue.
        """
        if page in self._open:
            self._open[page].cancel()
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def run() -> None:
            try:
                await work(queue)
            finally:
                queue.put_nowait(None)

        task = asyncio.create_task(run())
        self._open[page] = task
        try:
            while (piece := await queue.get()) is not None:
                yield piece
            if not task.cancelled():
                yield {"piece": "end"}
        finally:
            task.cancel()
            if self._open.get(page) is task:
                del self._open[page]

    async def explore(self, queue: asyncio.Queue[Any], state: dict[str, str]) -> None:
        """Put into the queue what comes at once, then any crowd, then the pictures; what is solved for comes first.

        Args:
          queue: Where the pieces go.
          state: The texts of the page.
        """
        if state.get("hold"):
            # The identical crowd's value comes soon; any crowd's, if it is the question, takes some times as long.
            solution = await self._pass(queue, self.quick, "solve", {"state": {**state, "crowd": "identical"}})
            if solution.get("crowd") == "identical" and state.get("crowd", "any") == "any":
                solution = await self._pass(queue, self.slow, "solve", {"state": state})
            if solution.get("piece") != "solved":
                return
            state = {**state, solution["field"]: solution["text"], "solved": "yes"}
        begun = asyncio.Event()
        head: dict[str, Any] = {}

        async def any_crowd() -> None:
            await begun.wait()
            if head.get("has_crowd"):
                await self._pass(queue, self.slow, "any", {"state": state})

        later = asyncio.create_task(any_crowd())
        try:
            last = await self._pass(queue, self.quick, "first", {"state": state}, head=head, begun=begun)
            begun.set()
            await later
            if last.get("piece") == "error" or not head:
                return
            crowds = ("local", "identical") if head["has_crowd"] else ("only",)
            pictures = [(task, crowd) for task in ("attack", "curve") for crowd in crowds]
            drawings = [asyncio.create_task(self._draw(queue, self.pictures, state, pictures))]
            if head["has_crowd"]:
                drawings.append(asyncio.create_task(self._draw(queue, self.slow, state, [("curve", "any")])))
            try:
                await asyncio.gather(*drawings)
            finally:
                for drawing in drawings:
                    drawing.cancel()
        finally:
            later.cancel()

    async def _draw(self, queue: asyncio.Queue[Any], worker: workers.Worker, state: Any, pictures: Any) -> None:
        for task, crowd in pictures:
            await self._pass(queue, worker, task, {"state": state, "crowd": crowd})

    async def spent(self, queue: asyncio.Queue[Any], data: dict[str, Any]) -> None:
        """Put what a ledger has cost into the queue."""
        await self._pass(queue, self.slow, "spent", data)

    async def record(self, queue: asyncio.Queue[Any], data: dict[str, Any]) -> None:
        """Put a guarantee as a document into the queue; the slow worker has computed it already."""
        await self._pass(queue, self.slow, "record", data)

    async def _pass(
        self,
        queue: asyncio.Queue[Any],
        worker: workers.Worker,
        task: str,
        data: dict[str, Any],
        *,
        head: dict[str, Any] | None = None,
        begun: asyncio.Event | None = None,
    ) -> dict[str, Any]:
        """Pass on the pieces of a task; return the last one that is no note."""
        last: dict[str, Any] = {}
        async with contextlib.aclosing(worker.pieces(task, data)) as pieces:
            async for piece in pieces:
                queue.put_nowait(piece)
                if piece["piece"] != "note":
                    last = piece
                if head is not None and piece["piece"] == "setting":
                    head.update(piece)
                if begun is not None and piece["piece"] == "epsilon" and piece["crowd"] != "local":
                    begun.set()
        return last

    def close(self) -> None:
        for worker in (self.quick, self.slow, self.pictures):
            worker.close()


def make_app(broker: Broker, *, port: int, secret: str, budget: str | None = None) -> Guard:
    """Return the application: the page and its questions, behind the guard.

    Args:
      broker: Answers the questions.
      port: The port that the server listens on.
      secret: What the path begins with.
      budget: A ledger to open with.
    """

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        file = resources.files("shoal.web") / "page" / name
        ending = name.rpartition(".")[2]
        if ending not in TYPES or not file.is_file():
            return PlainTextResponse("no such file\n", 404)
        return Response(file.read_bytes(), media_type=TYPES[ending])

    async def fields(_: Request) -> Response:
        return JSONResponse({**await broker.page(), "version": __version__, "budget": budget})

    async def body(request: Request) -> dict[str, Any]:
        received = bytearray()
        async for block in request.stream():
            received += block
            if len(received) > REQUEST_BYTES_MAX:
                raise InvalidInput(f"a request must have at most {REQUEST_BYTES_MAX} bytes")
        data = json.loads(received)
        if not isinstance(data, dict) or not isinstance(data.get("page"), str):
            raise InvalidInput("a request must be a mapping with the key page")
        state = data.setdefault("state", {})
        if not isinstance(state, dict) or not all(isinstance(text, str) for text in state.values()):
            raise InvalidInput("state must be a mapping of texts")
        return data

    async def ask(request: Request) -> Response:
        try:
            data = await body(request)
        except ValueError as error:
            return JSONResponse({"detail": str(error)}, 400)

        async def work(queue: asyncio.Queue[Any]) -> None:
            if request.url.path.endswith("/budget"):
                await broker.spent(queue, {"text": str(data.get("text", "")), **data})
            elif request.url.path.endswith("/record"):
                await broker.record(queue, data)
            else:
                await broker.explore(queue, data["state"])

        async def lines() -> AsyncGenerator[bytes, None]:
            async with contextlib.aclosing(broker.answers(data["page"], work)) as pieces:
                async for piece in pieces:
                    yield json.dumps(piece, allow_nan=False).encode() + b"\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/page/{name}", page),
            Route("/api/fields", fields),
            Route("/api/answers", ask, methods=["POST"]),
            Route("/api/budget", ask, methods=["POST"]),
            Route("/api/record", ask, methods=["POST"]),
        ]
    )
    return Guard(app, port=port, secret=secret)


def run(*, show: bool = True, fragment: str = "", budget: str | None = None) -> None:
    """Serve the page until the user ends it.

    Args:
      show: Whether to open a browser.
      fragment: The state that the page opens with.
      budget: A ledger to open with.
    """
    workers.quiet_environment()
    secret = secrets.token_urlsafe(24)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as door:
        door.bind((LOOPBACK, 0))
        port = door.getsockname()[1]
        address = f"http://{LOOPBACK}:{port}/{secret}/" + (f"#{fragment}" if fragment else "")
        with contextlib.suppress(KeyboardInterrupt):  # how it is meant to end
            asyncio.run(_serve(door, port, secret, address, show, budget))


async def _serve(door: socket.socket, port: int, secret: str, address: str, show: bool, budget: str | None) -> None:
    broker = Broker()
    try:
        settings = Config(
            make_app(broker, port=port, secret=secret, budget=budget),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
        )
        server = Server(settings)
        serving = asyncio.create_task(server.serve(sockets=[door]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        print(f"The page is at {address}\nOnly this machine can open it. Ctrl-C ends it.", flush=True)
        if show:
            threading.Thread(target=_open, args=(address,), daemon=True).start()
        await serving
    finally:
        broker.close()


def _open(address: str) -> None:
    if not webbrowser.open(address):
        print("No browser was found: open the address by hand.", file=sys.stderr, flush=True)

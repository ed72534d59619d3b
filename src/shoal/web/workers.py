"""Processes that compute, one question at a time, and can be stopped in the middle of it.

A computation in numpy cannot be interrupted from outside, so one whose answer nobody waits for is ended with its
process. The next process is forked from a server process that has everything loaded already, which takes some
hundredths of a second. Where processes cannot be forked they are spawned, which takes longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

_WARM = "shoal.web.warm"
"""What the process loads that the others are forked from."""


def context() -> BaseContext:
    """Return how processes are started on this system."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload([_WARM])
    return forkserver


def run_worker(questions: Connection, patience: int) -> None:
    """Answer questions until the pipe is closed: the whole life of a process.

    Args:
      questions: The end of a pipe: tasks come in, pieces go out.
      patience: How much other processes go before it (the system's niceness).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    if patience and hasattr(os, "nice"):
        os.nice(patience)
    # Here, because the server imports this file, and it loads no numerics: it must be up at once.
    from shoal.web import tasks

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task, data = questions.recv()
            for piece in tasks.answer(task, data):
                questions.send(piece)
            questions.send(None)


class Worker:
    """One process at a time, whose questions wait for one another.

    A process that was ended is replaced when the next question comes: to fork one takes time that another worker's
    answer may need first.
    """

    def __init__(self, context: BaseContext, *, patience: int = 0) -> None:
        self._context, self._patience = context, patience
        self._turn = asyncio.Lock()
        self._start()

    def _start(self) -> None:
        self._pipe, child = self._context.Pipe()
        self._process = self._context.Process(  # type: ignore[attr-defined]
            target=run_worker, args=(child, self._patience), daemon=True
        )
        self._process.start()
        self._ended = False
        child.close()

    async def pieces(self, task: str, data: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the pieces of a task. Whoever stops listening stops the computation."""
        async with self._turn:
            if self._ended:
                self._start()
            finished = False
            try:
                self._pipe.send((task, data))
                while (piece := await asyncio.to_thread(self._pipe.recv)) is not None:
                    yield piece
                finished = True
            except (EOFError, OSError):
                # The worker died (out of memory, say): report it, and start a new one for the next question.
                yield {
                    "piece": "error",
                    "field": None,
                    "text": "the computation ended early; the terminal of shoal explore may say why",
                }
            finally:
                if not finished:
                    self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._ended = True


def quiet_environment() -> None:
    """One thread for each process: the arrays are small, and several processes share the machine."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

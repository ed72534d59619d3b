"""A SuperNode that starts again.

Flower's SuperNode ends itself when the SuperLink does not know it, which is so for all nodes after the SuperLink was
started anew. Nobody is there to start it again on a phone or in a hospital's cellar. So this process starts it, waits
for its end, and starts it again, later each time if it does not stay up: thousands of nodes must not come at once.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.deployment.apart import end_with_parent
from shoal.errors import InvalidInput

PAUSE, PAUSE_MAX = 1.0, 60.0
"""Seconds before a SuperNode is started again: the first time, and at most."""
STEADY = 120.0
"""Seconds after which a SuperNode has stayed up, and the pauses begin anew."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower sends nothing home."""


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def supernode_command(
    node: Path, *, superlink: str, authority: Path, key: Path, part: int, parts: int, trusted: Path | None
) -> list[str]:
    """The command of a SuperNode.

    Args:
        node: the node's settings.
        superlink: address and port of the proxy.
        authority: the authority of its certificate.
        key: the node's private key.
        part: which part of the data is the node's, for apps that ask.
        parts: the number of parts.
        trusted: whose signature an app must carry; any app may run if there is none.

    Returns:
        The words.

    Raises:
        InvalidInput: a file is missing.
    """
    for role, path in {"node": node, "authority": authority, "key": key, "trusted": trusted}.items():
        if path is not None and not path.is_file():
            raise InvalidInput(f"{role} must be a file, got {path}")
    config = f'shoal="{node.resolve()}" partition-id={part} num-partitions={parts}'
    command = ["flower-supernode", "--superlink", superlink, "--root-certificates", str(authority)]
    command += ["--auth-supernode-private-key", str(key), "--port", str(free_port()), "--node-config", config]
    return command if trusted is None else [*command, "--trusted-entities", str(trusted)]


def keep_running(command: Callable[[], Sequence[str]], *, pause: float = PAUSE) -> None:
    """Run a command again and again, until this process is interrupted or terminated.

    Args:
        command: makes the command, each time anew.
        pause: seconds before it is started a second time.
    """
    stopping, children = threading.Event(), list[subprocess.Popen[bytes]]()

    def stop(*_: object) -> None:
        stopping.set()
        for child in children:
            child.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    delay = pause
    while not stopping.is_set():
        start = time.monotonic()
        children[:] = [
            subprocess.Popen(
                list(command()),
                env={**os.environ, **QUIET},
                # Whoever kills this process ends the SuperNode too: two of one node would take turns.
                preexec_fn=lambda: end_with_parent(signal.SIGTERM),  # noqa: PLW1509 (one thread)
            )
        ]
        if stopping.is_set():  # the signal came before the child was known
            stop()
        code = children[0].wait()
        delay = pause if time.monotonic() > start + STEADY else delay
        if not stopping.is_set():
            print(f"The SuperNode ended with code {code}. It starts again in {delay:g} seconds or more.", flush=True)
            # Spread over twice the time, so that nodes that were sent off together do not come back together.
            stopping.wait(delay * random.uniform(1.0, 2.0))
        delay = min(2.0 * delay, PAUSE_MAX)

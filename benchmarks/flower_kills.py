"""A deployment whose processes are killed (-9) at random moments, and requests that are no requests.

    python benchmarks/flower_kills.py [--kills 25] [--requests 2000] [--seconds 3600] [--seed 0]

Analyst, SuperLink, gate, nginx and three SuperNodes run as real processes with TLS on loopback. Each of analyst,
SuperLink, gate, nginx, ServerApp, SuperNode and ClientApp is killed so many times, each time after a random pause; what
a service of the system would start again is started again, and nothing else is done. In between come malformed
requests: to nginx as a stranger and as a registered node, to the analyst with its password. At the end the ledger must
be the accountant's account of the rounds that were closed, one after the other, without one that is missing or twice,
and three further rounds must close. The program ends with code 1 if not.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import tempfile
import time
import types

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from shoal import Accountant
from shoal.deployment import digits, link, local_machine
from shoal.deployment.analyst import Analyst, Settings
from shoal.deployment.errors import RunError
from shoal.deployment.task import Task

SERVICES = ("analyst", "superlink", "gate", "proxy")
TARGETS = (*SERVICES, "flwr-serverapp", "flower-supernode", "flwr-clientapp")
NODES, PAUSE = 3, 6.0


def pids(machine: local_machine.Machine, word: str) -> list[int]:
    """The processes of a machine whose command line names a word."""
    mark, matching = f"FLWR_HOME={machine.folder / 'flwr'}".encode(), []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if any(w.endswith(word.encode()) for w in words) and mark in (folder / "environ").read_bytes().split(b"\0"):
                matching.append(int(folder.name))
    return matching


def start(machine: local_machine.Machine, name: str) -> None:
    """Start a service again, as a service of the system would."""
    if name == "superlink":
        machine.start_superlink("--enable-supernode-auth", FLWR_LOG_LEVEL="WARNING")
    else:
        {"analyst": machine.start_analyst, "gate": machine.start_gate, "proxy": machine.start_proxy}[name]()


def killed(machine: local_machine.Machine, target: str, generator: random.Random) -> bool:
    """Whether a process of this kind was there, and was killed."""
    if target in SERVICES:
        machine.stop(target, kill=True)
        time.sleep(generator.uniform(0.0, 2.0))
        start(machine, target)
        return True
    candidates = pids(machine, target)
    if candidates:
        with contextlib.suppress(ProcessLookupError):
            os.kill(generator.choice(candidates), signal.SIGKILL)
    return bool(candidates)


def going(machine: local_machine.Machine, run: str | None) -> str | None:
    """The run that goes on: a new one if the last is over, or was lost with its SuperLink."""
    with contextlib.suppress(RunError, ValueError, KeyError):
        if run is not None and not machine.run_status(run).startswith("finished"):
            return run
    with contextlib.suppress(RunError, ValueError, KeyError):  # no SuperLink yet
        return machine.submit()
    return None


def malformed(machine: local_machine.Machine, count: int, generator: random.Random) -> collections.Counter[int]:
    """The statuses of requests that are none: no 500 among them.

    Args:
        machine: the deployment.
        count: the number of requests.
        generator: what makes them.

    Returns:
        The number of each status; 0 for a connection that was closed.
    """
    context = httpx.create_ssl_context(verify=str(machine.tls / "ca.pem"))
    private = load_ssh_private_key((machine.folder / "node-0.key").read_bytes(), password=None)
    password = (machine.analyst_home / "password").read_text().strip()
    statuses: collections.Counter[int] = collections.Counter()
    tricks = ("/v1/fleet/../control/start-run", "/authorise", "//v1/fleet/pull-messages", "/v1/rounds/%00/model", "/")
    paths = [*(f"/v1/fleet/{word}" for word in link.FLEET), *tricks]
    rounds = ["/v1/rounds", "/v1/rounds/1/reports", "/v1/rounds/0/model", "/v1/rounds/99999999999/reports", "/x" * 99]
    with httpx.Client(verify=context, timeout=60.0, trust_env=False) as web:
        for place in range(count):
            headers = {
                "Content-Type": generator.choice(["application/protobuf", "application/octet-stream", "a/b", ""])
            }
            if place % 3 == 0:
                port, path = machine.ports["analyst"], generator.choice(rounds)
                headers["Authorization"] = f"Bearer {generator.choice([password, password[:-1], ''])}"
            else:
                port, path = machine.ports["proxy"], generator.choice(paths)
                shown = private if place % 3 == 1 else ec.generate_private_key(ec.SECP384R1())
                request = httpx.Request("POST", "https://x")
                NodeAuthHttpInterceptor(shown, shown.public_key()).intercept(
                    types.SimpleNamespace(request=request), lambda context: None
                )
                headers |= {k: v for k, v in request.headers.items() if k.startswith("flwr-")}
                if generator.random() < 0.3:
                    headers[generator.choice(sorted(headers))] = generator.choice(["", "x" * 4_000, "2026", "="])
            method = generator.choice(["POST", "PUT", "GET", "DELETE", "PATCH", "OPTIONS"])
            url = httpx.URL(f"https://127.0.0.1:{port}", raw_path=path.encode())
            try:
                status = web.request(
                    method, url, headers=headers, content=generator.randbytes(generator.randrange(2_000))
                )
                statuses[status.status_code] += 1
            except httpx.TransportError:
                statuses[0] += 1
    return statuses


def checked(machine: local_machine.Machine) -> int:
    """The number of rounds, once all about them is right."""
    with contextlib.closing(Analyst.read(machine.analyst_home)) as analyst:
        rounds, total = analyst.rounds(), Accountant()
        for row in rounds:
            total.compose(analyst.settings.task.mechanism(users=row["users"]))
        if [row["round"] for row in rounds] != list(range(1, len(rounds) + 1)):
            raise SystemExit(f"rounds are missing: {[row['round'] for row in rounds]}")
        if analyst.accountant().state_dict() != total.state_dict():
            raise SystemExit("the ledger is not the accountant's account of its rounds")
        if any(sum(row["refused"].values()) for row in rounds):
            raise SystemExit("reports were refused")
    return len(rounds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=25, help="kills of each process")
    options.add_argument("--requests", type=int, default=2_000, help="malformed requests")
    options.add_argument("--seconds", type=float, default=3_600.0, help="after which no more is killed")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    generator = random.Random(chosen.seed)
    terms = {"clip": 1.0, "sigma": 0.5, "rate": 0.75, "minimum": 2, "epsilon": 1e9, "delta": 1e-5}
    task = Task(name="digits", dimension=digits.dimension(), **terms)
    kills: collections.Counter[str] = collections.Counter()
    statuses: collections.Counter[int] = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        machine = local_machine.Machine(folder=pathlib.Path(name), rounds=10_000, timeout=60.0, enough=0.6, grace=2.0)
        settings = Settings(task=task, rounds=10_001, epoch=5)
        with local_machine.deployment(machine, settings, nodes=NODES):
            run, deadline = going(machine, None), time.monotonic() + chosen.seconds
            share = -(-chosen.requests // (chosen.kills * len(TARGETS)))
            while sum(kills.values()) < chosen.kills * len(TARGETS) and time.monotonic() < deadline:
                time.sleep(generator.uniform(0.0, PAUSE))
                target = min(TARGETS, key=lambda t: (kills[t], generator.random()))
                if killed(machine, target, generator):
                    kills[target] += 1
                else:  # a ClientApp lives for a moment
                    target = generator.choice(SERVICES[2:])
                statuses += malformed(machine, min(share, chosen.requests - statuses.total()), generator)
                run = going(machine, run)
            statuses += malformed(machine, chosen.requests - statuses.total(), generator)
            before, patience = checked(machine), time.monotonic() + 600.0
            while checked(machine) < before + 3:
                if time.monotonic() > patience:
                    raise SystemExit("no further round closes")
                run = going(machine, run)
                time.sleep(1.0)
            rounds = checked(machine)
    print(json.dumps({"kills": kills, "statuses": dict(sorted(statuses.items())), "rounds": rounds}))
    if any(status == 500 for status in statuses):
        raise SystemExit("a malformed request was answered with 500")


if __name__ == "__main__":
    main()

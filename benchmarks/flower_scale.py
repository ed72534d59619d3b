"""Rounds with many nodes: how long they take, and whose time it is.

    python benchmarks/flower_scale.py [--nodes 50,200,500] [--polls 40] [--rounds 2] [--markdown FILE]

Analyst, SuperLink, gate and nginx are real processes with TLS on loopback; a run of Flower collects the rounds. The
nodes are threads of one process: each has a key, a secret and a state of its own, speaks Flower's fleet interface
through nginx as a SuperNode does (a poll every three seconds, a heartbeat every thirty), and answers with the mod of
the package, secure noise and all, after a training that takes no time. So the table shows what the link costs. Times
of a busy machine are upper bounds; processor time is what each process used.
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import platform
import tempfile
import threading
import time

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from shoal.deployment import client, digits, gate, keys, local_machine
from shoal.deployment.analyst import Analyst, Settings
from shoal.deployment.task import Task

POLL_SECONDS = 3.0
IDENTITY = threading.Lock()
"""Flower's messages take their sender from a variable of the process."""


class VirtualNode(threading.Thread):
    """A node that speaks the fleet interface."""

    def __init__(self, machine: local_machine.Machine, place: int, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self._machine, self._stopping = machine, stopping
        self._file = machine.join_deployed(place)
        private = machine.folder / f"node-{place}.key"
        keys.make_node_key(private)
        pathlib.Path(f"{private}.pub").rename(machine.gate_home / gate.NODE_KEYS / f"{place}.pub")
        self._key = load_ssh_private_key(private.read_bytes(), password=None)

    def run(self) -> None:
        address, authority = f"127.0.0.1:{self._machine.ports['proxy']}", str(self._machine.tls / "ca.pem")
        pair = (self._key, self._key.public_key())
        with http_request_response(address, False, authority, pair) as connection:
            node_id, receive, send, _, _, pull_object, push_object, confirm = connection
            while not self._stopping.wait(POLL_SECONDS):
                if (received := receive()) is None:
                    continue
                message, tree = received
                run_id, message_id = message.metadata.run_id, message.metadata.message_id
                parts = {part.object_id: None for part in iterate_object_tree(tree)}
                contents = {part: pull_object(run_id, part) for part in parts}
                whole = inflate_object_from_contents(message_id, contents)
                whole.metadata.__dict__["_message_id"] = message_id
                confirm(run_id, message_id)
                reply = self._answer(whole, run_id, node_id)
                wanted, session = send(reply, get_object_tree(reply), 0.0)
                for part, content in get_all_nested_objects(reply).items():
                    if part in wanted:
                        push_object(run_id, session, part, content.deflate())

    def _answer(self, message: Message, run_id: int, node_id: int) -> Message:
        context = Context(run_id, node_id, {client.NODE_CONFIG: str(self._file)}, RecordDict(), {})
        with IDENTITY:
            TaskIdentity._run_id, TaskIdentity._node_id = run_id, node_id
            reply = client.sealed_reports(message, context, lambda m, _: Message(m.content, reply_to=m))
            with no_object_id_recompute():
                reply.metadata.__dict__["_message_id"] = reply.object_id
        return reply


def processor_seconds(machine: local_machine.Machine, name: str) -> float:
    """The processor time of a process and of all that it has started, in seconds."""
    session, ticks = machine.processes[name].pid, 0
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def serverapp_seconds(machine: local_machine.Machine) -> float:
    """The processor time of the ServerApp, which the SuperLink starts in a session of its own."""
    ticks, mark = 0, f"FLWR_HOME={machine.folder / 'flwr'}".encode()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if any(word.endswith(b"flwr-serverapp") for word in words) and mark in (folder / "environ").read_bytes():
                ticks += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(nodes: int, *, polls: float, rounds: int, limit: float) -> dict[str, float]:
    """Seconds a round, and of which process.

    Args:
        nodes: the number of nodes.
        polls: polls a second that the gate lets through.
        rounds: the number of rounds.
        limit: seconds after which the measurement is given up.

    Returns:
        Figures by name.
    """
    terms = {"clip": 1.0, "sigma": 2.0, "rate": 0.5, "minimum": max(2, nodes * 9 // 10), "epsilon": 1e4, "delta": 1e-5}
    task = Task(name="digits", dimension=digits.dimension(), **terms)
    stopping = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        machine = local_machine.Machine(folder=pathlib.Path(name), rounds=rounds, timeout=limit, enough=1.0)
        machine.polls, machine.connections = polls, 10_000  # all nodes share one address
        machine.set_up(Settings(task=task, rounds=rounds + 1, epoch=1), nodes=nodes)
        try:
            machine.start_analyst()
            machine.start_superlink("--enable-supernode-auth", FLWR_LOG_LEVEL="WARNING")
            machine.start_gate()
            machine.start_proxy()
            fleet = [VirtualNode(machine, place, stopping) for place in range(nodes)]
            start = time.monotonic()
            for node in fleet:
                node.start()
                time.sleep(0.3)  # SuperNodes are not started in one moment, and activation has a time limit
            joined = time.monotonic() - start
            moments, used = [], []
            parties = ("superlink", "gate", "proxy", "analyst")
            machine.submit()
            with contextlib.closing(Analyst.read(machine.analyst_home)) as analyst:
                while len(moments) < rounds:
                    time.sleep(0.2)
                    if len(rows := analyst.rounds()) == len(moments):
                        continue
                    moments.append(time.monotonic())
                    used.append({party: processor_seconds(machine, party) for party in parties})
                    used[-1]["app"] = serverapp_seconds(machine)
        finally:
            stopping.set()
            machine.stop_all()
    # The first round comes with what is done once: loading the app, activating the nodes.
    figures = {p: (used[-1][p] - used[0][p]) / (rounds - 1) for p in used[0]}
    seconds = (moments[-1] - moments[0]) / (rounds - 1)
    users = min(row["users"] for row in rows)
    return {"nodes": nodes, "users": users, "seconds": seconds, "join": joined, **figures}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    options.add_argument("--nodes", default="50,200,500", help="numbers of nodes")
    options.add_argument("--polls", type=float, default=gate.POLLS, help="polls a second that reach the SuperLink")
    options.add_argument("--rounds", type=int, default=2, help="rounds, the first of which is not counted")
    options.add_argument("--limit", type=float, default=600.0, help="seconds that nodes have for a round")
    chosen = options.parse_args()
    client.vector_apart = lambda train, **_: train()  # threads must not fork, and this training harms nobody
    lines = [
        f"Measured on {datetime.date.today()} by `benchmarks/flower_scale.py` with Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, reports of {digits.dimension()} numbers, {chosen.polls:g} polls a second.",
        "",
        "| nodes | users | round: s | nodes/s | SuperLink: s of processor | gate | nginx | ServerApp | analyst |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for nodes in map(int, chosen.nodes.split(",")):
        f = measure(nodes, polls=chosen.polls, rounds=chosen.rounds, limit=chosen.limit)
        lines.append(
            f"| {nodes} | {f['users']} | {f['seconds']:.0f} | {nodes / f['seconds']:.1f} | {f['superlink']:.1f} | "
            f"{f['gate']:.1f} | {f['proxy']:.1f} | {f['app']:.1f} | {f['analyst']:.1f} |"
        )
        print(lines[-1], flush=True)
        if chosen.markdown:
            chosen.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

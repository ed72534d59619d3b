"""Sealed reports through shuffler and analyst, tokens, and secure noise: time and memory.

    python benchmarks/flower_throughput.py [--markdown FILE] [--reports 1000,10000] [--numbers 30000]

Shuffler and analyst are processes of their own with TLS between them on loopback. The shuffler gets its
reports as Flower messages from a generator that seals them as it goes (so sealing is part of its time), the
analyst opens and adds them and checks each token against the roster. Memory is the most that each process ever
held. The time of the analyst is also given as a multiple of opening the same number of reports in a plain
loop, in the same run. Then rosters, by themselves: making one round by round, reading one round of it, and
finding all tokens of a round. Last, secure noise on its grid beside OpenDP's finest one.
"""

import argparse
import contextlib
import datetime
import json
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

from shoal.deployment import noise, tokens
from shoal.deployment.analyst import Analyst, Settings
from shoal.deployment.local_machine import Machine
from shoal.deployment.report import report_values, seal, unseal
from shoal.deployment.task import Task

TERMS = {"clip": 1.0, "sigma": 1.0, "rate": 0.5, "minimum": 2, "epsilon": 100.0, "delta": 1e-6, "crowd": "identical"}


def peak(pid: int | str) -> float:
    """The most memory that a process has held, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def shuffle(folder: pathlib.Path, count: int) -> None:
    """The shuffler's process: collect `count` reports, deliver them, say how long it took."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from shoal.deployment.analyst_client import OpenRound
    from shoal.deployment.client import SEALED
    from shoal.deployment.shuffler import Shuffler

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    with contextlib.closing(Analyst.read(folder / "analyst")) as analyst:
        task, key = analyst.settings.task, analyst.public_keys()[0]
    members = [tokens.read_secret(p) for p in sorted((folder / "registrar" / "secrets").iterdir())]
    strategy = Shuffler.from_file(folder / "shuffler.toml")
    strategy._open_round = OpenRound(round_number=1, length=task.length, dimension=task.dimension)
    values = np.random.default_rng(0).normal(size=task.dimension) * 0.9
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"

    def replies():
        for place, secret in enumerate(members):
            token = tokens.token(secret, task=task, round_number=1)
            sealed = seal(values if place % 2 else None, task=task, round_number=1, key=key, token=token)
            yield Message(RecordDict({SEALED: ConfigRecord({"sealed": sealed})}), reply_to=asked)

    start = time.perf_counter()
    strategy.aggregate_train(1, replies())
    collected = time.perf_counter()
    answer = strategy.analyst.deliver(1, strategy.journal.batch(1))
    delivered = time.perf_counter()
    assert answer["users"] == count
    print(json.dumps({"collect": collected - start, "deliver": delivered - collected, "memory": peak("self")}))


def opening(task: Task, count: int) -> float:
    """Seconds to open `count` reports in a plain loop."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    values, longest = np.full(task.dimension, 0.9), task.longest
    sealed = seal(values, task=task, round_number=1, key=key.public_key(), token=bytes(16))
    tries = min(count, 500)
    start = time.perf_counter()
    for _ in range(tries):
        report_values(unseal(sealed, task=task, round_number=1, key=key)[1], longest=longest)
    return (time.perf_counter() - start) / tries * count


def measure(count: int, dimension: int) -> dict[str, float]:
    task = Task(name="benchmark", dimension=dimension, **TERMS)
    with tempfile.TemporaryDirectory() as name:
        machine = Machine(folder=pathlib.Path(name), rounds=1)
        machine.set_up(Settings(task=task, rounds=1, epoch=1), nodes=count)
        try:
            machine.start_analyst()
            idle = peak(machine.processes["analyst"].pid)
            words = [sys.executable, __file__, "--shuffle", name, "--reports", str(count)]
            done = subprocess.run(words, env=machine.environment(), capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            found |= {"analyst": peak(machine.processes["analyst"].pid), "idle": idle}
        finally:
            machine.stop_all()
    return {**found, "opening": opening(task, count), "bytes": task.length * count}


def rosters(nodes: int, rounds: int) -> dict[str, float]:
    """Seconds to make a roster, to read a round of it and to find all tokens of the round; bytes on disk."""
    task = Task(name="benchmark", dimension=10, **TERMS)
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        path, given = tokens.enrol_nodes(pathlib.Path(name) / "r", task=task, nodes=nodes, first=1, last=rounds)
        made = time.perf_counter()
        members = [tokens.read_secret(p) for p in given]
        present = [tokens.later_secret(s, rounds=rounds - 1) for s in members]
        shown = [tokens.token(s, task=task, round_number=rounds) for s in present]
        digest = task.digest
        reading = time.perf_counter()
        marks = tokens.Roster.read(path).marks(rounds)
        read = time.perf_counter()
        assert all(marks.find(tokens.mark(t, digest=digest, round_number=rounds)) is not None for t in shown)
        found = time.perf_counter()
        size = path.stat().st_size
    return {"make": made - start, "read": read - reading, "find": found - read, "bytes": size}


def noisy(count: int) -> dict[str, float]:
    """Processor seconds for secure noise on this many numbers, here and on OpenDP's finest grid."""
    import opendp.prelude as dp

    def seconds(add) -> float:
        add(np.zeros(few))
        start = time.process_time()
        add(np.zeros(few))
        return (time.process_time() - start) / few * count

    few = min(count, 20_000)
    noise.gaussian_secure(np.zeros(1), 2.0)  # OpenDP is loaded, and its features are enabled
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=few)
    finest = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=2.0)
    return {"here": seconds(lambda v: noise.gaussian_secure(v, 2.0)), "finest": seconds(finest)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    options.add_argument("--reports", default="1000,10000", help="numbers of reports")
    options.add_argument("--numbers", type=int, default=30_000, help="numbers in a report")
    options.add_argument("--shuffle", type=pathlib.Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    counts = [int(c) for c in given.reports.split(",")]
    if given.shuffle:
        shuffle(given.shuffle, counts[0])
        return
    lines = [
        f"Measured on {datetime.date.today()} by `benchmarks/flower_throughput.py` with Python "
        f"{platform.python_version()}, reports of {given.numbers:,} numbers, loopback with TLS.",
        "",
        "| reports | MB | seal, spool, permute, journal: s | deliver, open, add: s | reports/s at the analyst "
        "| times opening alone | shuffler's peak MiB | analyst's peak MiB (idle) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for count in counts:
        f = measure(count, given.numbers)
        lines.append(
            f"| {count:,} | {f['bytes'] / 1e6:,.0f} | {f['collect']:.1f} | {f['deliver']:.1f} "
            f"| {count / f['deliver']:,.0f} | {f['deliver'] / f['opening']:.1f} | {f['memory']:.0f} "
            f"| {f['analyst']:.0f} ({f['idle']:.0f}) |"
        )
        print(lines[-1], flush=True)
    lines += ["", "Peak memory is that of the whole process, with Python, numpy, scipy and (shuffler) Flower loaded."]
    more = ["", "| nodes | rounds | roster MiB | make it: s | read a round: ms | find all its tokens: ms |"]
    more.append("|---|---|---|---|---|---|")
    for nodes, rounds in ((1_000, 1_000), (10_000, 100)):
        r = rosters(nodes, rounds)
        more.append(
            f"| {nodes:,} | {rounds:,} | {r['bytes'] / 2**20:.1f} | {r['make']:.1f} | {1e3 * r['read']:.1f} "
            f"| {1e3 * r['find']:.0f} |"
        )
    cost = noisy(10**6)
    more += [
        "",
        f"Secure noise on a million numbers takes {cost['here']:.0f} s of processor time, {cost['finest']:.0f} s on "
        f"OpenDP's finest grid (extrapolated from 20,000): {cost['finest'] / cost['here']:.1f} times as long.",
    ]
    print("\n".join(more))
    lines += more
    if given.markdown:
        given.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

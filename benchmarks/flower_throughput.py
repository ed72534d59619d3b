"""Sealed reports through shuffler and analyst: throughput and peak memory, at two numbers of reports.

    python benchmarks/flower_throughput.py [--markdown FILE] [--reports 1000,10000] [--numbers 30000]

Shuffler and analyst are processes of their own with TLS between them on loopback. The shuffler gets its
reports as Flower messages from a generator that seals them as it goes (so sealing is part of its time), the
analyst opens and adds them. Memory is the most that each process ever held. The time of the analyst is also
given as a multiple of opening the same number of reports in a plain loop, in the same run.
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

from shoal.integrations.flower import keys
from shoal.integrations.flower.analyst import KEY, Analyst, Budget, Settings
from shoal.integrations.flower.report import Task, seal, unseal
from shoal.integrations.flower.run import Machine


def peak(pid: int | str) -> float:
    """The most memory that a process has held, in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def shuffle(folder: pathlib.Path, count: int) -> None:
    """The shuffler's process: collect `count` reports, deliver them, say how long it took."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from shoal.integrations.flower.client import SEALED
    from shoal.integrations.flower.shuffler import Shuffler

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    with contextlib.closing(Analyst(folder / "analyst")) as analyst:
        task = analyst.settings.task
    key = keys.read_private(folder / "analyst" / KEY).public_key()
    strategy = Shuffler.from_file(folder / "shuffler.toml")
    strategy._length = task.length
    values = np.random.default_rng(0).normal(size=task.dimension)
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"

    def replies():
        for number in range(count):
            sealed = seal(values if number % 2 else None, task=task, number=1, key=key)
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
    sealed = seal(np.ones(task.dimension), task=task, number=1, key=key.public_key())
    tries = min(count, 500)
    start = time.perf_counter()
    for _ in range(tries):
        unseal(sealed, task=task, number=1, key=key)
    return (time.perf_counter() - start) / tries * count


def measure(count: int, dimension: int) -> dict[str, float]:
    task = Task(name="benchmark", dimension=dimension, clip=1.0, sigma=1.0, rate=0.5)
    with tempfile.TemporaryDirectory() as name:
        machine = Machine(folder=pathlib.Path(name), rounds=1)
        machine.set_up(Settings(task=task, budget=Budget(epsilon=100.0, delta=1e-6), minimum=2))
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
    if given.markdown:
        given.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

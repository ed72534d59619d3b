"""Rényi accounting, measured side by side in one run on one core: ours, Algorithm 1, random-allocation.

    make bench        or        python benchmarks/rdp_speed.py [--markdown FILE]

Prints ratios; absolute times depend on the machine and on what else it does.
"""

import argparse
import datetime
import importlib.metadata
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from shoal import Shuffle, literature
from shoal.bounds import moments

USERS, SIGMA = 60_000, 9.48


def seconds(work: Callable[[], object], repeat: int = 5) -> float:
    """The median time of some runs, each from cold caches."""
    times = []
    for _ in range(repeat):
        for cached in (moments._moment_table, moments._negative_table, moments.log_moment_bound):
            cached.cache_clear()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def in_a_fresh_process(work: str) -> tuple[float, float]:
    """Seconds that some code takes after the imports, and the peak memory of the process in MiB."""
    program = (
        "import re, time\nimport numpy as np\nfrom shoal import Shuffle\n"
        "Shuffle(users=10, sigma=1.0, crowd='identical').rdp([2, 3])\n"
        f"start = time.perf_counter()\n{work}\n"
        "status = open('/proc/self/status').read()\n"
        "print(time.perf_counter() - start, int(re.search(r'VmHWM:\\s+(\\d+)', status)[1]) / 1024)\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    return float(out[0]), float(out[1])


def against_partitions() -> list[str]:
    """All orders up to 50 in both directions by ours, order 50 alone in one direction by the others."""
    from random_allocation.random_allocation_scheme.direct import allocation_RDP_remove

    mechanism = Shuffle(users=USERS, sigma=SIGMA, crowd="identical")
    orders = np.arange(2, 51)
    ours = seconds(lambda: mechanism.rdp(orders, direction="forward"), repeat=9)
    both = seconds(lambda: mechanism.rdp(orders), repeat=9)
    value = mechanism.rdp([50], direction="forward")[0]
    allocation_RDP_remove(alpha=10, sigma=SIGMA, num_steps=USERS)  # compiles

    def peer() -> float:
        allocation_RDP_remove.cache_clear()
        return allocation_RDP_remove(alpha=50, sigma=SIGMA, num_steps=USERS)

    others: dict[str, Callable[[], float]] = {
        "`shoal.literature.algorithm1`": lambda: literature.algorithm1(users=USERS, order=50, sigma=SIGMA),
        "random-allocation `allocation_RDP_remove`": peer,
    }
    lines = ["| what | times ours | relative difference at order 50 |", "|---|---|---|"]
    lines.append(f"| shoal, all orders 2 to 50, one direction ({ours * 1e3:.1f} ms) | 1 | 0 |")
    lines.append(f"| shoal, all orders 2 to 50, both directions | {both / ours:.1f} | 0 |")
    for name, work in others.items():
        taken = seconds(work, repeat=1)
        lines.append(f"| {name}, order 50 alone, one direction | {taken / ours:,.0f} | {abs(work() / value - 1):.1e} |")
    return lines


def large_orders() -> list[str]:
    lines = [
        "| users | σ | orders to | seconds | peak memory, MiB | times the time for 2,500 orders |",
        "|---|---|---|---|---|---|",
    ]
    for users, sigma in [(USERS, SIGMA), (10**6, SIGMA), (10**9, 100.0), (USERS, 0.5), (5_000, SIGMA)]:
        first = None
        for top in (2_500, 5_000, 10_000):
            work = f"Shuffle(users={users}, sigma={sigma}, crowd='identical').rdp(np.arange(2, {top + 1}))"
            taken, memory = in_a_fresh_process(work)
            first = first or taken
            lines.append(f"| {users:,} | {sigma:g} | {top:,} | {taken:.2f} | {memory:.0f} | {taken / first:.1f} |")
    return lines


def start_up() -> list[str]:
    """Median over several runs, interleaved."""

    def once(*words: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], capture_output=True, check=True)
        return time.perf_counter() - start

    shoal_help = ("-c", "import sys; sys.argv = ['shoal', '--help']; from shoal.cli import main; main()")
    pairs = [(once("-c", "pass"), once(*shoal_help), once("-c", "import shoal")) for _ in range(9)]
    bare, with_help, imported = (statistics.median(column) for column in zip(*pairs, strict=True))
    return [
        "| what | seconds more than `python -c pass` |",
        "|---|---|",
        f"| `shoal --help` | {with_help - bare:.2f} |",
        f"| `import shoal` | {imported - bare:.2f} |",
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    target = options.parse_args().markdown
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "scipy", "random-allocation"))
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/rdp_speed.py` with Python {platform.python_version()}, "
        f"{versions}, one core.",
        f"### Against partitions: n = {USERS:,}, σ = {SIGMA}",
        *against_partitions(),
        "### All orders to 10,000, both directions",
        *large_orders(),
        "### Start-up",
        *start_up(),
    ]
    joined = "\n".join(f"\n{line}\n" if line.startswith("#") else line for line in text) + "\n"
    print(joined)
    if target:
        target.write_text(joined)


if __name__ == "__main__":
    main()

"""Certified brackets: seconds, width and memory over a grid of users, noise and check-in rates, on one core.

    python benchmarks/tight_speed.py [--markdown FILE]

Every point runs in a process of its own, so that nothing is kept from one to the next; times are
given as multiples of a fixed piece of work (an FFT of 2^20 numbers) measured in the same process,
because seconds mean little on a busy machine.
"""

import argparse
import datetime
import itertools
import os
import pathlib
import platform
import statistics
import subprocess
import sys

USERS, SCALES, RATES = (1, 10, 1_000, 60_000, 10**7), (0.3, 0.5, 1.0, 5.0, 50.0), (1.0, 0.1, 0.001)

PROGRAM = """
import re, sys, time
import numpy as np
from shoal import ShuffledCheckIn
users, sigma, rate = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
unit = []
for _ in range(5):
    start = time.perf_counter()
    np.fft.fft(np.ones(1 << 20))
    unit.append(time.perf_counter() - start)
ShuffledCheckIn(users=7, rate=0.5, sigma=3.0, crowd="identical").epsilon(delta=1e-6)
m = ShuffledCheckIn(users=users, rate=rate, sigma=sigma, crowd="identical")
start = time.perf_counter()
one = m.epsilon(delta=1e-6, rounds=1000)
single = time.perf_counter() - start
rounds = sorted({round(10 ** (4 * i / 49)) for i in range(50)})
start = time.perf_counter()
curve = m.epsilon(delta=1e-6, rounds=rounds)
many = time.perf_counter() - start
width = max((e.width / e.upper if e.upper else 0.0) for e in [one, *curve])
memory = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(single, many, width, memory, min(unit), one.upper)
"""


def measure(users: int, scale: float, rate: float) -> list[float]:
    words = [sys.executable, "-c", PROGRAM, str(users), str(scale), str(rate)]
    run = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [float(x) for x in run.stdout.split()]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    target = options.parse_args().markdown
    lines = [
        f"Measured on {datetime.date.today()} by `benchmarks/tight_speed.py` with Python {platform.python_version()}, "
        "one core, δ = 1e-6, identical crowd, default accuracy.",
        "",
        "| users | σ | rate | ε at T = 1,000 | seconds | a curve to T = 10^4, seconds | both in FFTs of 2^20 "
        "| widest bracket | MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = []
    for users, scale, rate in itertools.product(USERS, SCALES, RATES):
        single, many, width, memory, unit, epsilon = measure(users, scale, rate)
        found.append((single, many, width, memory))
        lines.append(
            f"| {users:,} | {scale:g} | {rate:g} | {epsilon:.5g} | {single:.2f} | {many:.2f} "
            f"| {single / unit:.0f}, {many / unit:.0f} | {width:.1e} | {memory:.0f} |"
        )
        print(lines[-1], flush=True)
    singles, curves, widths, memories = zip(*found, strict=True)
    lines += [
        "",
        f"One ε: median {statistics.median(singles):.2f} s, slowest {max(singles):.2f} s. "
        f"A curve: median {statistics.median(curves):.2f} s, slowest {max(curves):.2f} s. "
        f"Widest bracket {max(widths):.1e}, most memory {max(memories):.0f} MiB.",
    ]
    print(lines[-1])
    if target:
        target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

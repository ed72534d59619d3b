"""Certified brackets: seconds, width and memory over a grid of users, noise and check-in rates, on one core.

    python benchmarks/tight_speed.py [--markdown FILE]

Every point runs in processes of its own, one for each delta (1e-6, 1e-12, and 1 / users but at most 0.1), so
that nothing is kept from one to the next. Seconds are those of the processor; they are also given as
multiples of a fixed piece of work (an FFT of 2^20 numbers) measured in the same process, because
seconds mean little on a busy machine.
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
users, sigma, rate, delta = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
unit = []
for _ in range(5):
    start = time.process_time()
    np.fft.fft(np.ones(1 << 20))
    unit.append(time.process_time() - start)
ShuffledCheckIn(users=7, rate=0.5, sigma=3.0, crowd="identical").epsilon(delta=1e-6)
m = ShuffledCheckIn(users=users, rate=rate, sigma=sigma, crowd="identical")
start = time.process_time()
one = m.epsilon(delta=delta, rounds=1000)
single = time.process_time() - start
rounds = sorted({round(10 ** (4 * i / 49)) for i in range(50)})
start = time.process_time()
curve = m.epsilon(delta=delta, rounds=rounds)
many = time.process_time() - start
width = max((e.width / e.upper if e.upper else 0.0) for e in [one, *curve])
memory = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(single, many, width, memory, min(unit), one.upper)
"""


def measure(users: int, scale: float, rate: float, delta: float) -> list[float]:
    words = [sys.executable, "-c", PROGRAM, str(users), str(scale), str(rate), str(delta)]
    run = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [float(x) for x in run.stdout.split()]


def listed(values: tuple[float, ...], spec: str) -> str:
    return ", ".join(format(value, spec) for value in values)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    target = options.parse_args().markdown
    lines = [
        f"Measured on {datetime.date.today()} by `benchmarks/tight_speed.py` with Python {platform.python_version()}, "
        "one core, identical crowd, default accuracy. ε is that of 1,000 rounds at δ = 1e-6, a curve has 50 values of "
        "T up to 10^4; the second of three numbers is for δ = 1e-12, the third for δ = 1 / users.",
        "",
        "| users | σ | rate | ε | seconds | a curve, seconds | both in FFTs of 2^20 | widest bracket | MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = []
    for users, scale, rate in itertools.product(USERS, SCALES, RATES):
        rows = [measure(users, scale, rate, delta) for delta in (1e-6, 1e-12, min(0.1, 1.0 / users))]
        found += rows
        single, many, width, memory, unit, epsilon = zip(*rows, strict=True)
        lines.append(
            f"| {users:,} | {scale:g} | {rate:g} | {epsilon[0]:.5g} | {listed(single, '.2f')} | {listed(many, '.2f')} "
            f"| {single[0] / unit[0]:.0f}, {many[0] / unit[0]:.0f} | {listed(width, '.1e')} | {max(memory):.0f} |"
        )
        print(lines[-1], flush=True)
    singles, curves, widths, memories, _, _ = zip(*found, strict=True)
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

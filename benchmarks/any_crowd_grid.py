"""Any crowd over a grid: how close both ends are, and how long an answer, a curve and a calibration take, on one core.

    python benchmarks/any_crowd_grid.py [--markdown FILE] [--every N]

Users, noise and rates run in processes of their own, so that nothing is kept from one to the next. Seconds are those
of the processor, also given as multiples of a fixed piece of work (an FFT of 2^20 numbers) in the same process.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

USERS, SCALES, RATES = (100, 1_000, 60_000, 10**6), (1.5, 2.0, 5.0, 10.0), (1.0, 0.1)
ROUNDS, DELTAS = (1, 100, 5_000), (1e-6, 1e-9)

PROGRAM = """
import json, sys, time
import numpy as np
from shoal import ShuffledCheckIn, calibrate
users, sigma, rate, more = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "True"
unit = []
for _ in range(5):
    start = time.process_time()
    np.fft.fft(np.ones(1 << 20))
    unit.append(time.process_time() - start)
ShuffledCheckIn(users=7, rate=0.5, sigma=3.0).epsilon(delta=1e-6)
m = ShuffledCheckIn(users=users, rate=rate, sigma=sigma)
rows = []
for rounds in json.loads(sys.argv[5]):
    for delta in json.loads(sys.argv[6]):
        ideal = m.replace(crowd="identical").advantage(rounds=rounds).lower
        start = time.process_time()
        # A new law each time: another sigma in the last digits.
        fresh = m.replace(sigma=sigma * (1.0 + 1e-13 * (1 + len(rows))))
        found = fresh.epsilon(delta=delta, rounds=rounds)
        rows.append([rounds, delta, found.lower, found.upper, ideal, time.process_time() - start])
times = {}
if more:
    fresh = m.replace(sigma=sigma * (1.0 + 1e-12))
    start = time.process_time()
    fresh.epsilon(delta=1e-6, rounds=sorted({round(10 ** (4 * i / 49)) for i in range(50)}))
    times["curve"] = time.process_time() - start
    goal = m.epsilon(delta=1e-6, rounds=100).upper
    for name, call in {
        "sigma": lambda: calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=1.1 * goal, delta=1e-6, rounds=100),
        "rounds": lambda: calibrate.rounds(m.replace(sigma=sigma * (1 + 2e-12)), epsilon=1.1 * goal, delta=1e-6),
        "users": lambda: calibrate.users(lambda n: m.replace(users=n), epsilon=1.1 * goal, delta=1e-6, rounds=100),
    }.items():
        start = time.process_time()
        call()
        times[name] = time.process_time() - start
print(json.dumps([min(unit), rows, times]))
"""


def measure(users: int, scale: float, rate: float, more: bool) -> tuple[float, list[list[float]], dict[str, float]]:
    words = [sys.executable, "-c", PROGRAM, str(users), str(scale), str(rate), str(more), json.dumps(ROUNDS)]
    run = subprocess.run(
        [*words, json.dumps(DELTAS)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    unit, rows, times = json.loads(run.stdout)
    return unit, rows, times


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    options.add_argument("--every", type=int, default=4, help="curve and calibration at every so many points")
    chosen = options.parse_args()
    lines, ratios, part, seconds, units, wide = [], [], [], [], [], []
    slowest = {"curve": 0.0, "sigma": 0.0, "rounds": 0.0, "users": 0.0}
    for place, (users, scale, rate) in enumerate(itertools.product(USERS, SCALES, RATES)):
        unit, rows, times = measure(users, scale, rate, place % chosen.every == 0)
        units.append(unit)
        for rounds, delta, lower, upper, ideal, cpu in rows:
            seconds.append(cpu)
            meant = ideal > 10.0 * delta
            ratio = upper / lower if lower > 0.0 else float("inf")
            if meant:
                ratios.append(ratio)
                if users >= 1_000 and scale >= 2.0:
                    part.append(ratio)
                if ratio > 1.25:
                    wide.append((users, scale, rate, int(rounds), delta, ratio))
            shown = f"{ratio:.3f}" if meant else "–"
            lines.append(
                f"| {users:,} | {scale:g} | {rate:g} | {int(rounds):,} | {delta:g} | {lower:.4g} | {upper:.4g} "
                f"| {shown} | {cpu:.2f} |"
            )
        slowest = {name: max(slowest[name], times.get(name, 0.0)) for name in slowest}
        print(users, scale, rate, f"{max(r[5] for r in rows):.2f} s", times, flush=True)
    text = "\n".join(
        [
            "# Any crowd over a grid",
            "",
            f"{datetime.date.today()}, Python {platform.python_version()}, one core; a unit of work took "
            f"{1e3 * min(units):.0f} to {1e3 * max(units):.0f} ms.",
            "",
            f"upper / lower where the identical crowd's delta(0) is above 10 delta ({len(ratios)} points): median "
            f"{statistics.median(ratios):.3f}, largest {max(ratios):.3f}; above 1.25 at {len(wide)}.",
            "",
            f"One epsilon, both ends: median {statistics.median(seconds):.2f} s of the processor "
            f"({statistics.median(seconds) / statistics.median(units):.0f} units), slowest {max(seconds):.2f} s "
            f"({max(seconds) / statistics.median(units):.0f}). Slowest curve of 50 numbers of rounds "
            f"{slowest['curve']:.2f} s; calibration of sigma {slowest['sigma']:.2f} s, "
            f"rounds {slowest['rounds']:.2f} s, users {slowest['users']:.2f} s (at every {chosen.every}th point).",
            "",
            "| users | sigma | rate | rounds | delta | lower | upper | ratio | s |",
            "|---|---|---|---|---|---|---|---|---|",
            *lines,
            "",
            "## Above 1.25",
            "",
            *(
                [
                    f"- {n} users, sigma = {s:g}, rate {r:g}, {t} rounds, delta = {d:g}: {x:.3f}"
                    for n, s, r, t, d, x in wide
                ]
                or ["None."]
            ),
            "",
            f"With 1,000 users or more and sigma of 2 or more ({len(part)} points): "
            f"median {statistics.median(part):.3f}, largest {max(part):.3f}.",
            "",
        ]
    )
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text)


if __name__ == "__main__":
    main()

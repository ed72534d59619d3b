"""An accountant whose 100 rounds all have other numbers of users, beside 100 rounds of one number, on one core.

    make bench        or        python benchmarks/accountant_speed.py [--markdown FILE]

Every question is asked in a process of its own, warmed up by another one, and timed by the processor's clock.
"""

import argparse
import datetime
import importlib.metadata
import pathlib
import platform
import subprocess
import sys

ROUNDS, DELTA = 100, 1e-6

CASES = {
    "shuffle, users": "Shuffle(users=60_000 - 97 * i, sigma=5.0)",
    "shuffle, users, σ = 2": "Shuffle(users=1_000 + 7 * i, sigma=2.0)",
    "check-in, users": "ShuffledCheckIn(users=60_000 - 97 * i, rate=0.1, sigma=5.0)",
    "check-in, users, few of them": "ShuffledCheckIn(users=1_000 + 7 * i, rate=0.2, sigma=3.0)",
    "subsampled, users": "SubsampledShuffle(users=60_000 - 97 * i, sample=6_000, sigma=5.0)",
    "subsampled, samples": "SubsampledShuffle(users=60_000, sample=6_000 - 7 * i, sigma=5.0)",
    "subsampled, both": "SubsampledShuffle(users=60_000 - 97 * i, sample=6_000 - 7 * i, sigma=5.0)",
    "subsampled, both, few of them": "SubsampledShuffle(users=1_000 + 7 * i, sample=200 + 3 * (i % 20), sigma=3.0)",
    "shuffle, users, replace": 'Shuffle(users=60_000 - 97 * i, sigma=5.0, adjacency="replace")',
    "subsampled, both, replace": (
        'SubsampledShuffle(users=60_000 - 97 * i, sample=6_000 - 7 * i, sigma=5.0, adjacency="replace")'
    ),
}
"""Round i of an accountant, any crowd."""

PROGRAM = """
import time
from shoal import Accountant, Shuffle, ShuffledCheckIn, SubsampledShuffle

Shuffle(users=700, sigma=6.0).epsilon(delta={delta})
a = Accountant()
for i in range({rounds}):
    i = {index}
    a.compose({case})
start = time.process_time()
found = a.epsilon(delta={delta})
print(time.process_time() - start, found.lower, found.upper, len(a.bounds().upper))
"""


def asked(case: str, index: str) -> tuple[float, float, float, int]:
    """Seconds, both ends of epsilon, and how many different rounds were analysed."""
    program = PROGRAM.format(case=case, index=index, rounds=ROUNDS, delta=DELTA)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, lower, upper, analysed = run.stdout.split()
    return float(seconds), float(lower), float(upper), int(analysed)


def table() -> list[str]:
    lines = [
        "| 100 rounds that differ in | round i | s | × one number | analysed as | ε | ε, all as the dearest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        # one number: that of round 0 or of the last round, whichever costs more
        one = max((asked(case, index) for index in ("0", f"{ROUNDS - 1}")), key=lambda found: found[2])
        seconds, lower, upper, analysed = asked(case, "i")
        lines.append(
            f"| {name} | `{case}` | {seconds:.2f} | {seconds / one[0]:.1f} | {analysed} | "
            f"{lower:.4g} to {upper:.4g} | {one[1]:.4g} to {one[2]:.4g} |"
        )
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    target = options.parse_args().markdown
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "scipy"))
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/accountant_speed.py` with Python "
        f"{platform.python_version()}, {versions}, one core; δ = {DELTA:g}, any crowd.",
        "",
        "Seconds of the processor for one ε of an accountant with 100 different rounds, and how many times that of 100 "
        "equal rounds. Similar rounds are analysed together, as the fewest users and the largest sample among them.",
        "",
        *table(),
    ]
    joined = "\n".join(text) + "\n"
    print(joined)
    if target:
        target.write_text(joined)


if __name__ == "__main__":
    main()

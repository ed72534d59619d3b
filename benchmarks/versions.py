"""This version beside another checkout of this repository, in one run: processor time, and the answers.

    git worktree add /tmp/other <commit>
    python benchmarks/versions.py /tmp/other [--repeat N] [--markdown FILE]

Both versions answer each question in separate processes, in turns (ours, theirs, theirs, ours, ...), so that other work
on the machine affects both equally. The result is the median of the ratios of neighbours. All numbers in the answers
must agree to nine digits; the largest relative difference is printed.
"""

import argparse
import datetime
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parents[1]
TOLERANCE = 1e-9
"""The largest relative difference of answers: round-off, as a change of structure reorders sums."""

# Imports and first calls are not measured: a small question of the same kind is asked before.
ASK = """
import time
import numpy as np
import shoal
from shoal import BallsAndBins, LocalGaussian, Shuffle, ShuffledCheckIn, SubsampledShuffle
{warm}
start = time.process_time()
answer = {question}
print(time.process_time() - start, repr(answer).replace("\\n", ""))
"""
START = "import time\n{question}\nprint(time.process_time(), '')"

_WARM = "ShuffledCheckIn(users=7, rate=0.5, sigma=3.0, crowd='identical').epsilon(delta=1e-6)"
_CURVE = "rounds=sorted({round(10 ** (4 * i / 49)) for i in range(50)})"
QUESTIONS: list[tuple[str, str, str]] = [
    *(
        (
            f"ε of 1,000 rounds: {users:,} users, σ = {sigma:g}, rate {rate:g}",
            _WARM,
            f"ShuffledCheckIn(users={users}, rate={rate}, sigma={sigma}, crowd='identical')"
            ".epsilon(delta=1e-6, rounds=1000)",
        )
        for users in (10, 1_000, 60_000, 10**7)
        for sigma, rate in ((0.5, 0.1), (1.0, 1.0), (5.0, 0.1), (50.0, 0.001))
    ),
    *(
        (
            f"50 ε to 10,000 rounds: {users:,} users, σ = {sigma:g}, rate {rate:g}",
            _WARM,
            f"ShuffledCheckIn(users={users}, rate={rate}, sigma={sigma}, crowd='identical')"
            f".epsilon(delta=1e-6, {_CURVE})",
        )
        for users, sigma, rate in ((10, 1.0, 1.0), (1_000, 0.5, 0.1), (60_000, 5.0, 0.1), (10**7, 50.0, 0.001))
    ),
    (
        "δ of 100 rounds: sample of 6,000 of 60,000, σ = 5",
        _WARM,
        "SubsampledShuffle(users=60_000, sample=6_000, sigma=5.0, crowd='identical').delta(epsilon=0.01, rounds=100)",
    ),
    (
        "50 true positive rates: 1,000 users, σ = 3",
        _WARM,
        "Shuffle(users=1_000, sigma=3.0, crowd='identical').tradeoff(np.linspace(0.01, 0.99, 50))",
    ),
    ("ε: balls and bins, 1,000 bins, σ = 1", _WARM, "BallsAndBins(bins=1_000, sigma=1.0).epsilon(delta=1e-6)"),
    ("1,000 ε: local, σ = 5", _WARM, "LocalGaussian(sigma=5.0).epsilon(delta=1e-6, rounds=range(1, 1_001))"),
    *(
        (
            f"Rényi DP, orders to {top:,}: {users:,} users, σ = {sigma:g}",
            "Shuffle(users=10, sigma=1.0, crowd='identical').rdp([2, 3])",
            f"Shuffle(users={users}, sigma={sigma}, crowd='identical').rdp(np.arange(2, {top + 1})).tolist()",
        )
        for users, sigma, top in (
            (60_000, 9.48, 2_500),
            (60_000, 0.5, 2_500),
            (10**9, 100.0, 2_500),
            (5_000, 9.48, 5_000),
        )
    ),
]
STARTS: list[tuple[str, str]] = [
    ("`import shoal`", "import shoal"),
    (
        "`shoal --help`",
        "import sys; sys.argv = ['shoal', '--help']\nfrom shoal.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass",
    ),
]


def asked(checkout: pathlib.Path, program: str) -> tuple[float, str]:
    """Seconds of the processor, and the answer in words, of a version."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    seconds, _, answer = run.stdout.strip().splitlines()[-1].partition(" ")
    return float(seconds), answer


def difference(answers: set[str]) -> float:
    """The largest relative difference of numbers at the same place; infinite if the answers have other forms."""
    numbers = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
    if len({numbers.sub("#", answer) for answer in answers}) > 1:
        return float("inf")
    columns = zip(*([float(x) for x in numbers.findall(answer)] for answer in answers), strict=True)
    return max(((max(column) - min(column)) / max(map(abs, column)) for column in columns if any(column)), default=0.0)


def ratio(other: pathlib.Path, name: str, program: str, repeat: int) -> tuple[float, float, float]:
    """Our seconds, the median of ours / theirs over neighbours in time, and the difference of the answers."""
    ours, theirs, answers = [], [], set()
    for turn in range(repeat):
        for mine in (True, False) if turn % 2 else (False, True):
            seconds, answer = asked(HERE if mine else other, program)
            (ours if mine else theirs).append(seconds)
            answers.add(answer)
    apart = difference(answers) if len(answers) > 1 else 0.0
    if apart > TOLERANCE:
        raise SystemExit(f"{name}: the versions differ by {apart:.1e}: {' | '.join(sorted(answers))[:300]}")
    return statistics.median(ours), statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), apart


def head(checkout: pathlib.Path) -> str:
    words = ["git", "-C", str(checkout), "log", "-1", "--format=%h (%s)"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("other", type=pathlib.Path, help="the other checkout")
    options.add_argument("--repeat", type=int, default=9, help="number of runs of each version")
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    arguments = options.parse_args()
    lines = [
        f"Measured on {datetime.date.today()} by `benchmarks/versions.py` with Python {platform.python_version()}, one "
        f"core: {head(HERE)} against {head(arguments.other)}. Seconds of the processor, median of {arguments.repeat} "
        "runs in turns; ratios below 1: this version is faster. All answers agree to nine digits.",
        "",
        "| question | seconds | times the other's |",
        "|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    programs = [(name, ASK.format(warm=warm, question=question)) for name, warm, question in QUESTIONS]
    ratios, differences = [], []
    for name, program in [*programs, *((name, START.format(question=question)) for name, question in STARTS)]:
        seconds, times, apart = ratio(arguments.other, name, program, arguments.repeat)
        ratios.append(times)
        differences.append(apart)
        lines.append(f"| {name} | {seconds:.3f} | {times:.2f} |")
        print(lines[-1], flush=True)
    lines += [
        "",
        f"Median of the ratios {statistics.median(ratios):.2f}, largest {max(ratios):.2f}. "
        f"Largest relative difference of answers {max(differences):.0e}.",
    ]
    print(lines[-1])
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

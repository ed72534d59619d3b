"""Brackets on epsilon of one epoch of balls and bins, side by side in one run: ours and PLD_accounting.

    pip install "pld_accounting[performance]==2.0"
    python benchmarks/tight_vs_pld_accounting.py [--points 1:100 2:1000] [--accuracy 1e-4] [--markdown FILE]

The same pair of laws in both: one of n bins gets the user, Gaussian noise, and the worse of add and
remove. Every call runs in a process of its own, with one thread; its imports and a warm-up on
another small question (which also compiles the peer's kernels) are not timed, and our caches are
emptied before the clock starts. Ends with status 1 if two brackets of one epsilon do not cross.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass

SIGMAS, BINS, DELTA = (0.5, 1.0, 2.0, 5.0), (100, 1_000, 10_000, 100_000), 1e-6
ACCURACIES = (1e-3, 1e-4, 1e-5)
"""The first is our default; they are tried in this order."""

NARROWER = 100.0
"""How many times narrower than the peer's bracket ours is wanted to be."""

OURS = """
import json, statistics, sys, time
from shoal import BallsAndBins
sigma, bins, delta, accuracy = json.loads(sys.argv[1])
BallsAndBins(bins=10, sigma=2.5).epsilon(delta=1e-3)
times = []
for _ in range(3):
    for name in [n for n in sys.modules if n.startswith("shoal")]:
        for thing in vars(sys.modules[name]).values():
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()
    start = time.perf_counter()
    found = BallsAndBins(bins=bins, sigma=sigma).epsilon(delta=delta, accuracy=accuracy)
    times.append(time.perf_counter() - start)
print(json.dumps([found.lower, found.upper, statistics.median(times)]))
"""

# A negative `epsilon_accuracy` is the peer's default; the alarm ends the process if the call takes too long.
THEIRS = """
import json, signal, sys, time
from PLD_accounting import gaussian_allocation_epsilon_range
sigma, bins, delta, gap, limit = json.loads(sys.argv[1])
gaussian_allocation_epsilon_range(delta=1e-3, sigma=2.5, num_steps=10)
signal.setitimer(signal.ITIMER_REAL, limit)
start = time.perf_counter()
upper, lower = gaussian_allocation_epsilon_range(delta=delta, sigma=sigma, num_steps=bins, epsilon_accuracy=gap)
print(json.dumps([lower, upper, time.perf_counter() - start]))
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A bracket and the seconds it took; without an end, `lower = 0` and `upper` infinite."""

    lower: float
    upper: float
    seconds: float
    failure: str = ""

    @property
    def width(self) -> float:
        """Relative to the upper end, as our `accuracy` is."""
        return math.inf if self.failure else (self.upper - self.lower) / self.upper

    def crosses(self, other: "Found") -> bool:
        return self.lower <= other.upper and other.lower <= self.upper

    def shown(self, digits: int) -> str:
        return self.failure or f"[{self.lower:#.{digits}g}, {self.upper:#.{digits}g}]"


def run(program: str, *arguments: float, limit: float = math.inf) -> Found:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    words = [sys.executable, "-W", "ignore", "-c", program, json.dumps(arguments)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | threads)
    if ended.returncode == 0:
        lower, upper, seconds = json.loads(ended.stdout)
        return Found(lower=lower, upper=upper, seconds=seconds)
    if ended.returncode == -signal.SIGALRM:
        return Found(lower=0.0, upper=math.inf, seconds=limit, failure=f"did not end in {limit:g} s")
    reason = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
    return Found(lower=0.0, upper=math.inf, seconds=math.nan, failure=f"failed: {reason}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One point at one accuracy of ours."""

    sigma: float
    bins: int
    ours: Found
    theirs: Found

    @property
    def narrower(self) -> float:
        return self.theirs.width / self.ours.width

    @property
    def faster(self) -> float:
        """Where the peer did not end, at least this."""
        return self.theirs.seconds / self.ours.seconds

    def cells(self) -> str:
        ours, theirs = self.ours, self.theirs
        if theirs.failure:
            crossing, widths = "–", f"{ours.width:.1e} | – | –"
        else:
            crossing = "yes" if ours.crosses(theirs) else "**NO, THEY EXCLUDE EACH OTHER**"
            widths = f"{ours.width:.1e} | {theirs.width:.1e} | {self.narrower:,.0f}"
        sign = "> " if theirs.failure else ""
        times = "– | –" if math.isnan(theirs.seconds) else f"{sign}{theirs.seconds:.2f} | {sign}{self.faster:,.1f}"
        return (
            f"| {self.sigma:g} | {self.bins:,} | {ours.shown(8)} | {theirs.shown(6)} | {crossing} | {widths} "
            f"| {ours.seconds:.3f} | {times} |"
        )


def summary(accuracy: float, rows: list[Row]) -> str:
    times = [row.faster for row in rows if not math.isnan(row.faster)]
    widths = [row.narrower for row in rows if not row.theirs.failure]
    shown = f"{min(times):,.1f} | {statistics.median(times):,.1f}" if times else "– | –"
    return f"| {accuracy:g} | {shown} | {f'{min(widths):,.0f}' if widths else '–'} |"


def measure(points: list[tuple[float, int]], accuracies: list[float], asked: argparse.Namespace) -> list[list[Row]]:
    """The rows of each accuracy; the peer answers once."""
    tables: list[list[Row]] = [[] for _ in accuracies]
    for sigma, bins in points:
        ours = [run(OURS, sigma, bins, DELTA, accuracy) for accuracy in accuracies]
        if failure := next((one.failure for one in ours if one.failure), ""):
            raise SystemExit(f"shoal at sigma = {sigma:g}, bins = {bins}: {failure}")
        gap = -1.0 if asked.peer_accuracy is None else asked.peer_accuracy * ours[0].upper
        theirs = run(THEIRS, sigma, bins, DELTA, gap, asked.limit, limit=asked.limit)
        for table, one in zip(tables, ours, strict=True):
            table.append(Row(sigma=sigma, bins=bins, ours=one, theirs=theirs))
            print(table[-1].cells(), file=sys.stderr, flush=True)
    return tables


def enough(rows: list[Row]) -> bool:
    return all(row.narrower >= NARROWER for row in rows)


def point(text: str) -> tuple[float, int]:
    sigma, bins = text.split(":")
    return float(sigma), int(bins)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--points", type=point, nargs="+", metavar="SIGMA:BINS", help="these only, e.g. 1:100 2:1000")
    options.add_argument(
        "--accuracy",
        type=float,
        help=f"ours; left out: the coarsest of {', '.join(f'{a:g}' for a in ACCURACIES)} with which every bracket is "
        f"{NARROWER:g} times narrower than the peer's, or else the finest",
    )
    options.add_argument("--peer-accuracy", type=float, help="the relative width asked of the peer; left out: its own")
    options.add_argument("--limit", type=float, default=120.0, help="seconds for one call of the peer (default 120)")
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    asked = options.parse_args()
    if importlib.util.find_spec("PLD_accounting") is None:
        raise SystemExit('PLD_accounting is missing: pip install "pld_accounting[performance]==2.0"')

    points = asked.points or [(sigma, bins) for sigma in SIGMAS for bins in BINS]
    accuracies = [asked.accuracy] if asked.accuracy else list(ACCURACIES)
    tables = measure(points, accuracies, asked)
    chosen = next((i for i, rows in enumerate(tables) if enough(rows)), len(tables) - 1)
    shown = sorted({0, chosen})

    names = ("shoal-dp", "PLD_accounting", "dp-accounting", "numpy", "scipy", "numba")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} from its source" if importlib.util.find_spec(name) else f"no {name}")
    theirs = "its default accuracy (upper / lower at most 1.1)"
    if asked.peer_accuracy is not None:
        theirs = f"an `epsilon_accuracy` of {asked.peer_accuracy:g} of epsilon"
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/tight_vs_pld_accounting.py` with Python "
        f"{platform.python_version()}, {', '.join(versions)}; one core, δ = {DELTA:g}, one epoch. The peer is "
        f"`gaussian_allocation_epsilon_range` with {theirs} and a limit of {asked.limit:g} s.",
    ]
    for i in shown:
        text += [
            f"### shoal with accuracy {accuracies[i]:g}",
            "| σ | bins | shoal | PLD_accounting | do they cross | width, shoal | width, PLD_accounting "
            "| times narrower | seconds, shoal | seconds, PLD_accounting | times faster |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *(row.cells() for row in tables[i]),
        ]
    text += [
        "### All accuracies",
        "| accuracy of shoal | times faster, least | times faster, median | times narrower, least |",
        "|---|---|---|---|",
        *(summary(accuracy, rows) for accuracy, rows in zip(accuracies, tables, strict=True)),
        "",
        "Widths are relative to the upper end. A call that did not end counts with the limit among the times, and "
        "not among the widths.",
    ]
    if asked.accuracy is None:
        reached = f"the coarsest with which every bracket is at least {NARROWER:g} times narrower"
        missed = f"the finest tried; not every bracket is {NARROWER:g} times narrower"
        text.append(f"Chosen: accuracy {accuracies[chosen]:g}, {reached if enough(tables[chosen]) else missed}.")
    apart = {(r.sigma, r.bins) for rows in tables for r in rows if not r.ours.crosses(r.theirs)}
    if apart:
        places = "; ".join(f"σ = {sigma:g}, bins = {bins:,}" for sigma, bins in sorted(apart))
        text.append(f"**ONE OF THE TWO IS WRONG: the brackets exclude each other at {places}.**")
    joined = "\n".join(f"\n{line}\n" if line.startswith("#") else line for line in text) + "\n"
    print(joined)
    if asked.markdown:
        asked.markdown.write_text(joined)
    sys.exit(1 if apart else 0)


if __name__ == "__main__":
    main()

"""What `shuffle=True` gives: brackets over a grid of settings, with the claim of Poisson accounting beside them.

    python benchmarks/shuffled_epochs.py [--markdown FILE]

Steps from 100 to 10^5, sigma from 0.5 to 10, epochs from 1 to 100, each in a fresh secret order; zero-out. Then one
epoch of 10,000 and of 100,000 steps, the sizes that Chua et al. 2024 (arXiv:2403.17673) look at. Every answer is
computed without what earlier ones left in memory, and timed by the processor's clock.
"""

import argparse
import datetime
import importlib.metadata
import itertools
import math
import pathlib
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import shoal
from shoal.formatting import rounded

STEPS = (100, 1_000, 10_000, 100_000)
SIGMAS = (0.5, 1.0, 2.0, 5.0, 10.0)
EPOCHS = (1, 10, 100)
LARGE_STEPS = (10_000, 100_000)
LARGE_SIGMAS = (0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5)
DELTA = 1e-6


def forget() -> None:
    """Empty all caches of the package."""
    for name in [name for name in sys.modules if name.startswith("shoal")]:
        for value in vars(sys.modules[name]).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting: our bracket, its time, one report an epoch in the clear, and the claim of Poisson accounting."""

    mechanism: shoal.ShuffledEpochs
    bracket: shoal.Interval
    seconds: float
    clear: float
    claimed: float

    @classmethod
    def of(cls, mechanism: shoal.ShuffledEpochs) -> "Row":
        forget()
        start = time.process_time()
        bracket = mechanism.epsilon(delta=DELTA)
        seconds = time.process_time() - start
        clear = shoal.LocalGaussian(sigma=mechanism.sigma).epsilon(delta=DELTA, rounds=mechanism.epochs)
        claimed = mechanism.claimed(delta=DELTA)
        return cls(mechanism=mechanism, bracket=bracket, seconds=seconds, clear=clear.upper, claimed=claimed.upper)

    @property
    def quotient(self) -> float:
        """The upper end over the lower one."""
        return self.bracket.upper / self.bracket.lower

    def cells(self) -> str:
        m = self.mechanism
        factor = self.bracket.lower / self.claimed
        cells = (
            f"{m.steps:,}",
            f"{m.sigma:g}",
            f"{m.epochs}",
            rounded(self.bracket.lower, "down"),
            rounded(self.bracket.upper),
            f"{self.quotient:.3f}",
            rounded(self.claimed),
            f"{rounded(factor, 'down', digits=3)} times" if factor > 1.0 else "not refuted",
            rounded(self.clear),
            f"{self.seconds:.2f}",
        )
        return f"| {' | '.join(cells)} |"


HEAD = (
    "| steps | σ | epochs | ε ≥ (attack) | ε ≤ (theorem) | upper / lower | Poisson claims | "
    "true ε ≥ | no amplification | s |"
)


def table(settings: Sequence[shoal.ShuffledEpochs]) -> tuple[list[str], list[Row]]:
    """Lines of a table, and its rows."""
    rows, lines = [], [HEAD, "|" + "---|" * 10]
    for mechanism in settings:
        rows.append(Row.of(mechanism))
        lines.append(rows[-1].cells())
        print(lines[-1], flush=True)
    return lines, rows


def main() -> None:
    warnings.simplefilter("ignore")
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    target = options.parse_args().markdown
    shoal.ShuffledEpochs(steps=700, sigma=6.0).epsilon(delta=DELTA)
    grid, rows = table(
        [
            shoal.ShuffledEpochs(steps=steps, sigma=sigma, epochs=epochs)
            for steps, sigma, epochs in itertools.product(STEPS, SIGMAS, EPOCHS)
        ]
    )
    large, large_rows = table(
        [
            shoal.ShuffledEpochs(steps=steps, sigma=sigma)
            for steps, sigma in itertools.product(LARGE_STEPS, LARGE_SIGMAS)
        ]
    )
    noisy = [row.quotient for row in rows if row.mechanism.sigma >= 2.0]
    refuted = sum(row.claimed < row.bracket.lower for row in rows)
    seconds = [row.seconds for row in (*rows, *large_rows)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy"))
    lines = [
        f"Computed on {datetime.date.today()} by `benchmarks/shuffled_epochs.py` with shoal {shoal.__version__}, "
        f"Python {platform.python_version()}, {versions}, {platform.machine()}, one core; zero-out, δ = {DELTA:g}. "
        '"No amplification" is one report an epoch in the clear. "Poisson claims" is what accounting for Poisson '
        "sampling at rate 1 / steps says. It is not proved for shuffled epochs; where the attack shows more, it is "
        "false, and the factor says by how much. "
        "Seconds are of the processor, for one answer, both ends.",
        "",
        *grid,
        "",
        f"- Upper over lower: at most {max(noisy):.3f} for σ ≥ 2, {max(row.quotient for row in rows):.2f} in all.",
        f"- The claim of Poisson accounting is refuted at {refuted} of {len(rows)} settings.",
        f"- Seconds: median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}.",
        "",
        "One epoch of the sizes in Chua et al. 2024:",
        "",
        *large,
    ]
    assert all(math.isfinite(row.quotient) for row in rows)
    print(*lines[-len(large) - 6 : -len(large)], sep="\n")
    if target:
        target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

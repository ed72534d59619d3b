"""Any crowd along scans: epsilon falls with noise and users, and rises with rounds, rate and sample, at every step.

    python benchmarks/any_crowd_scans.py [--markdown FILE] [--every N]

Each scan asks for the guarantee (the upper end) at 200 values of one parameter, the others fixed.
"""

import argparse
import datetime
import itertools
import pathlib
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal import Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.mechanisms import Mechanism
from shoal.query import EPSILON, Options, guarantee

POINTS = 200


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Values of one parameter of a mechanism, or of the number of rounds, in the order in which epsilon rises."""

    mechanism: Mechanism
    field: str
    values: list[Any]
    delta: float
    rounds: int = 1

    @property
    def name(self) -> str:
        kept = {"sigma", "users", "sample", "rate"} - {self.field}
        fixed = [
            f"{k} {getattr(self.mechanism, k):,}"
            for k in ("users", "sample", "rate", "sigma")
            if k in kept and hasattr(self.mechanism, k)
        ]
        rounds = [] if self.field == "rounds" else [f"{self.rounds:,} rounds"]
        return ", ".join([self.mechanism.label, *fixed, *rounds, f"delta {self.delta:g}"])

    def epsilon(self, value: Any) -> float:
        m, rounds = self.mechanism, self.rounds
        if self.field == "rounds":
            rounds = value
        else:
            m = m.replace(**{self.field: value})
        return guarantee(EPSILON, m.bounds(rounds), self.delta, Options())


def numbers(first: float, last: float) -> list[int]:
    """200 different whole numbers, evenly on a logarithmic scale as far as that is possible."""
    for count in range(POINTS, 100 * POINTS):
        found = np.unique(np.round(np.geomspace(first, last, count)).astype(int))
        if len(found) >= POINTS:
            return [int(n) for n in found]
    raise ValueError(f"there are not {POINTS} whole numbers between {first} and {last}")


def reals(first: float, last: float) -> list[float]:
    # The last factor of a geometric sequence is rounded: a rate must not pass 1.
    return [min(float(x), last) for x in np.geomspace(first, last, POINTS)]


MANY = Shuffle(users=60_000, sigma=5.0)
SOME = ShuffledCheckIn(users=2_000, rate=0.1, sigma=3.0)
DRAWN = SubsampledShuffle(users=2_000, sample=200, sigma=3.0)
MORE, MORE_DRAWN = SOME.replace(users=60_000, sigma=5.0), DRAWN.replace(users=60_000, sigma=5.0)
SCANS = (
    Scan(mechanism=MANY, field="sigma", values=reals(0.7, 50.0)[::-1], delta=1e-6, rounds=10),
    Scan(mechanism=MANY, field="users", values=numbers(1, 10**7)[::-1], delta=1e-6, rounds=10),
    Scan(mechanism=MANY, field="rounds", values=numbers(1, 10**6), delta=1e-6),
    Scan(mechanism=MANY.replace(sigma=2.0), field="users", values=numbers(1, 10**6)[::-1], delta=1e-9),
    Scan(mechanism=SOME, field="sigma", values=reals(0.7, 50.0)[::-1], delta=1e-6),
    Scan(mechanism=SOME, field="users", values=numbers(1, 10**7)[::-1], delta=1e-6, rounds=100),
    Scan(mechanism=SOME, field="rate", values=reals(1e-3, 1.0), delta=1e-6),
    Scan(mechanism=MORE, field="rate", values=reals(1e-4, 1.0), delta=1e-6, rounds=100),
    Scan(mechanism=SOME, field="rounds", values=numbers(1, 10**5), delta=1e-6),
    Scan(mechanism=DRAWN, field="sigma", values=reals(0.7, 50.0)[::-1], delta=1e-6),
    Scan(mechanism=DRAWN, field="users", values=numbers(200, 10**7)[::-1], delta=1e-6, rounds=100),
    Scan(mechanism=DRAWN, field="sample", values=numbers(1, 2_000), delta=1e-6),
    Scan(mechanism=MORE_DRAWN, field="sample", values=numbers(1, 60_000), delta=1e-6, rounds=100),
    Scan(mechanism=DRAWN, field="rounds", values=numbers(1, 10**5), delta=1e-6),
)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    options.add_argument("--every", type=int, default=1, help="only every so many values")
    chosen = options.parse_args()
    lines, every = [], 0
    for scan in SCANS:
        values = scan.values[:: chosen.every]
        found = [scan.epsilon(value) for value in values]
        steps = [(after - before) / before for before, after in itertools.pairwise(found)]
        # Where all that is known is the report in the clear, two answers are equal but for their last digits.
        wrong = [(value, step) for value, step in zip(values[1:], steps, strict=True) if step < -1e-9]
        every += len(wrong)
        said = "; ".join(f"{step:.1e} at {value:,}" for value, step in wrong) or "none"
        lines.append(
            f"| {scan.name} | {scan.field} | {values[0]:,.4g} to {values[-1]:,.4g} | {len(values)} "
            f"| {found[0]:.3g} to {found[-1]:.3g} | {said} |"
        )
        print(lines[-1], flush=True)
    text = "\n".join(
        [
            "# Any crowd along scans",
            "",
            f"{datetime.date.today()}, `benchmarks/any_crowd_scans.py`, Python {platform.python_version()}. Each row: "
            f"the guarantee at several values of one parameter, in the order in which ε rises. Steps down: {every}.",
            "",
            "| fixed | parameter | values | number | ε | steps down |",
            "|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )
    if chosen.markdown:
        chosen.markdown.write_text(text)


if __name__ == "__main__":
    main()

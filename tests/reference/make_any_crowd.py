"""What the bound by Gaussian clones gave (version 0.1): epsilon of any crowd; writes any_crowd.json beside this file.

Run by hand, some ten minutes on two cores, and only with version 0.1 of the package: later ones do not
contain that bound, and must nowhere be above it.

    python tests/reference/make_any_crowd.py

The points: random ones, log-uniform with a fixed seed, one mechanism after the other, every fourth of
them for the adjacency "replace"; and named ones that the documentation speaks of. Parameters are
rounded to four digits before they are used. `upper` is the upper end of epsilon, written with the
digits that restore it exactly (17 at most). A point at which delta is above the total variation
distance has 0, one at which the crowd helps nothing has the local guarantee: both stay in the sample.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import os
import pathlib
import random
from typing import Any

import shoal

SEED, RANDOM_POINTS = 20_240, 330
MECHANISMS = ("Shuffle", "SubsampledShuffle", "ShuffledCheckIn")

# users, sigma, rate, rounds, delta
NAMED = [
    (60_000, 9.48, 1.0, 1, 1 / 60_000),
    (60_000, 9.48, 1.0, 7, 1 / 60_000),
    (60_000, 5.0, 0.1, 5_540, 1e-5),
    (1_000, 2.0, 1.0, 1, 1e-6),
    (1_000, 2.0, 1.0, 100, 1e-6),
    (100_000, 2.0, 1.0, 1, 1e-8),
    (100, 5.0, 1.0, 1, 1e-5),
    (10_000, 1.0, 1.0, 1, 1e-6),
    (10_000, 0.5, 1.0, 1, 1e-6),
]


def point(
    name: str, users: int, sigma: float, rate: float, rounds: int, delta: float, adjacency: str
) -> dict[str, Any]:
    fields: dict[str, Any] = {"mechanism": name, "users": users, "sigma": sigma, "adjacency": adjacency, "crowd": "any"}
    if name == "SubsampledShuffle":
        fields["sample"] = max(1, round(rate * users))
    elif name == "ShuffledCheckIn":
        fields["rate"] = rate
    return {"fields": fields, "rounds": rounds, "delta": delta}


def points() -> list[dict[str, Any]]:
    draw = random.Random(SEED)

    def between(low: float, high: float) -> float:
        return float(f"{math.exp(draw.uniform(math.log(low), math.log(high))):.4g}")

    found = [
        point(
            MECHANISMS[i % 3],
            round(between(2, 1e7)),
            between(0.3, 50.0),
            between(1e-4, 1.0),
            round(between(1, 1e4)),
            between(1e-12, 1e-3),
            "replace" if i // 3 % 4 == 3 else "zero-out",
        )
        for i in range(RANDOM_POINTS)
    ]
    for users, sigma, rate, rounds, delta in NAMED:
        name = "Shuffle" if rate == 1.0 else "ShuffledCheckIn"
        found += [point(name, users, sigma, rate, rounds, delta, adjacency) for adjacency in ("zero-out", "replace")]
    return found


def answered(asked: dict[str, Any]) -> dict[str, Any]:
    fields = dict(asked["fields"])
    mechanism = getattr(shoal, fields.pop("mechanism"))(**fields)
    return {**asked, "upper": mechanism.epsilon(delta=asked["delta"], rounds=asked["rounds"]).upper}


def main() -> None:
    if shoal.__version__ != "0.1.0" or not hasattr(__import__("shoal.bounds.anycrowd.evaluate").crowd, "Clones"):
        raise SystemExit(f"shoal must be version 0.1, whose bound this records, got {shoal.__version__}")
    os.nice(10)
    target = pathlib.Path(__file__).with_name("any_crowd.json")
    with concurrent.futures.ProcessPoolExecutor(max_workers=2) as pool:
        rows = []
        for row in pool.map(answered, points()):
            rows.append(json.dumps(row))
            print(len(rows), rows[-1], flush=True)
    target.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()

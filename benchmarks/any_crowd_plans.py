"""The family of bounds for any crowd: which plan leads where, coarsely and with full resolution.

    python benchmarks/any_crowd_plans.py [--markdown FILE]

For each setting and each plan of `shoal.bounds.anycrowd.policy.FAMILY`: epsilon of one round at delta from the plan
alone, at the resolution at which plans are compared and at full resolution. "Family" is what all plans give together.
"""

import argparse
import datetime
import pathlib
import platform
import time

import numpy as np

from shoal.bounds.anycrowd import exchange, policy
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.prices import Prices
from shoal.bounds.ratio import Lognormal

SETTINGS = (  # users, sigma, rate, sample, delta
    (8, 2.0, 0.5, None, 1e-6),
    (30, 2.0, 1.0, None, 1e-9),
    (100, 5.0, 1.0, None, 1e-6),
    (1_000, 2.0, 1.0, None, 1e-6),
    (60_000, 9.48, 1.0, None, 1e-5),
)
FULL, BUDGET = 512, 1e-20


def epsilon(prices: Prices, delta: float) -> float:
    return float(policy._epsilons(prices, np.array([delta]))[0])


def rows_of(users: int, sigma: float, rate: float, sample: int | None, delta: float) -> list[str]:
    crowd = Exchange(ratio=Lognormal(scale=sigma, rate=rate), users=users, sample=sample)
    start = time.process_time()
    whole = epsilon(exchange._law(crowd, FULL, BUDGET).prices(), delta)
    seconds = time.process_time() - start
    rough = exchange._rough_prices(crowd, policy.COARSE, BUDGET)
    leaders = policy.leaders(rough, BUDGET)
    name = f"{users:,} users, sigma {sigma:g}, rate {rate:g}, sample {sample or '–'}, delta {delta:g}"
    lines = [f"| {name} | family | | {whole:.5g} | | {seconds:.2f} |"]
    for plan, coarse in rough.items():
        start = time.process_time()
        fine = epsilon(exchange.plan_prices(crowd, plan, FULL, BUDGET), delta)
        grouped = f"groups of {plan.size}" if plan.cuts else "aside"
        kind = "by size" if plan.by_size else grouped if plan.size else "plain"
        cuts = f", {len(plan.cuts) + 1} intervals" if plan.cuts else ""
        lines.append(
            f"| | {kind}, t = {plan.thinning:g}{cuts}{', **refined**' if plan in leaders else ''} "
            f"| {epsilon(coarse, delta):.5g} | {fine:.5g} | {100.0 * (epsilon(coarse, delta) / fine - 1.0):.2f}% "
            f"| {time.process_time() - start:.2f} |"
        )
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    chosen = options.parse_args()
    lines = [line for setting in SETTINGS for line in rows_of(*setting)]
    text = "\n".join(
        [
            "# Plans for any crowd",
            "",
            f"{datetime.date.today()}, `benchmarks/any_crowd_plans.py`, Python {platform.python_version()}. "
            "epsilon of one round; the last column is seconds of the processor.",
            "",
            "| setting | plan | coarse | fine | lost | s |",
            "|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text)


if __name__ == "__main__":
    main()

"""Filters and odometers beside a plan that is fixed beforehand, and beside OpenDP's zCDP filter.

python benchmarks/filters.py [--markdown FILE]        (needs opendp)
"""

import argparse
import datetime
import importlib.metadata
import math
import pathlib
import platform
import time

import opendp.prelude as dp

from shoal import (
    Accountant,
    BallsAndBins,
    Filter,
    Mechanism,
    Odometer,
    PoissonSampling,
    Shuffle,
    ShuffledCheckIn,
)
from shoal.accountant.rules import RULES, GaussianRule

dp.enable_features("contrib", "idealized-numerics")

CASES: dict[str, tuple[Mechanism, int, float]] = {
    "`Shuffle(users=1_000, sigma=3.0)`, 100 rounds": (Shuffle(users=1_000, sigma=3.0), 100, 1e-6),
    "`ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0)`, 5,540 rounds (the paper's)": (
        ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0),
        5_540,
        1 / 60_000,
    ),
    "the same, identical crowd": (
        ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical"),
        5_540,
        1 / 60_000,
    ),
    "`PoissonSampling(rate=0.01, sigma=1.0)`, 1,000 steps": (PoissonSampling(rate=0.01, sigma=1.0), 1_000, 1e-6),
    "`BallsAndBins(bins=1_000, sigma=1.0)`, 10 epochs": (BallsAndBins(bins=1_000, sigma=1.0), 10, 1e-6),
    "`BallsAndBins(bins=100, sigma=1.0)`, 100 epochs": (BallsAndBins(bins=100, sigma=1.0), 100, 1e-6),
}


def planned(mechanism: Mechanism, rounds: int) -> Accountant:
    return Accountant().compose(mechanism, rounds=rounds)


def zcdp_epsilon(mechanism: Mechanism, rounds: int, delta: float) -> float:
    """The epsilon of OpenDP's zCDP filter.

    A sampled or shuffled Gaussian report is as heavy-tailed as the report itself, so its zCDP is that of the report.
    """
    measurement = dp.m.make_gaussian(
        dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), mechanism.scale / math.sqrt(rounds)
    )
    return float(dp.c.make_zCDP_to_approxDP(measurement).map(1.0).epsilon(delta))


def tightness() -> list[str]:
    lines = [
        "| rounds | δ | fixed plan (tight) | filter, chosen method | gaussian | rdp | plan "
        "| gaussian, 10 blocks | zCDP (OpenDP) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (mechanism, rounds, delta) in CASES.items():
        tight = mechanism.epsilon(delta=delta, rounds=rounds).upper
        plan = planned(mechanism, rounds)
        least = {method: RULES[method].covering(delta, plan, 1.0).epsilon for method in RULES}
        chosen = min(("gaussian", "rdp"), key=lambda method: least[method])
        blocks = ten_blocks(mechanism, rounds, delta, (tight, least["gaussian"]))
        zcdp = zcdp_epsilon(mechanism, rounds, delta)
        parts = [f"{value:.4g} ({value / tight:.3f} ×)" for value in (least["gaussian"], least["rdp"], least["plan"])]
        lines.append(
            f"| {name} | {delta:.2g} | {tight:.4g} | {chosen}: {least[chosen] / tight:.3f} × | {' | '.join(parts)} | "
            f"{blocks:.4g} ({blocks / tight:.3f} ×) | {zcdp:.4g} ({zcdp / tight:.3g} ×) |"
        )
    return lines


def ten_blocks(mechanism: Mechanism, rounds: int, delta: float, bracket: tuple[float, float]) -> float:
    """The least epsilon, to a thousandth, at which a Gaussian filter admits the rounds in ten equal blocks."""
    low, high = bracket
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        # Planned as ten blocks: local rounds of the width of a block, which say how much may be revealed.
        admitted = any(
            admits_blocks(rule, mechanism, rounds) for rule in gaussian_rules(middle, delta, planned(mechanism, rounds))
        )
        low, high = (low, middle) if admitted else (middle, high)
    return high


def gaussian_rules(epsilon: float, delta: float, plan: Accountant) -> list[GaussianRule]:
    """Gaussian rules that reveal different parts of delta."""
    chosen = GaussianRule.within(epsilon, delta, plan)
    return [
        GaussianRule(epsilon=epsilon, delta=delta, reveal=share * delta, exchange=chosen.exchange)
        for share in (0.003, 0.01, 0.03, 0.1, 0.3, 0.5)
    ]


def admits_blocks(rule: GaussianRule, mechanism: Mechanism, rounds: int) -> bool:
    filter_ = Filter.of(rule, mechanism.adjacency)
    for _ in range(10):
        if not filter_.admits(mechanism, rounds=rounds // 10):
            return False
        filter_.spend(mechanism, rounds=rounds // 10)
    return True


def odometers() -> list[str]:
    lines = [
        "| rounds | method | claims | × the fixed plan at the same stop: last, middle, first |",
        "|---|---|---|---|",
    ]
    for name, (mechanism, rounds, delta) in CASES.items():
        for stops, words in ((None, "default"), ([rounds * i // 10 for i in range(1, 11)], "10")):
            for method in ("plan", None):
                odometer = Odometer(delta=delta, plan=planned(mechanism, rounds), stops=stops, method=method)
                rungs = odometer.rungs
                ratios = [
                    rung.epsilon / mechanism.epsilon(delta=delta, rounds=rung.rounds).upper
                    for rung in (rungs[-1], rungs[len(rungs) // 2], rungs[0])
                ]
                claims = f"{len(rungs)} ({words})"
                lines.append(f"| {name} | {odometer.method} | {claims} | {', '.join(f'{r:.3f}' for r in ratios)} |")
    return lines


def speed() -> list[str]:
    lines = ["| rounds spent | shoal `admits`, ms | OpenDP, one more query, ms |", "|---|---|---|"]
    mechanism = Shuffle(users=1_000, sigma=3.0)
    ours = Filter(epsilon=100.0, delta=1e-6, plan=mechanism)
    ours.admits(mechanism)
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    odometer = dp.c.make_fully_adaptive_composition(*space, dp.zero_concentrated_divergence())
    peer = dp.c.make_privacy_filter(odometer, 1.0, 1e9)(0.0)
    query = dp.m.make_gaussian(*space, 100.0)
    spent = 0
    for target in (10, 100, 300, 1_000):
        while spent < target:
            ours.spend(mechanism)
            peer(query)
            spent += 1
        start = time.process_time()
        for _ in range(20):
            ours.admits(mechanism)
        middle = time.process_time()
        peer(query)
        end = time.process_time()
        spent += 1
        ours.spend(mechanism)
        lines.append(f"| {target:,} | {(middle - start) / 20 * 1e3:.3g} | {(end - middle) * 1e3:.3g} |")
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    target = options.parse_args().markdown
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("numpy", "scipy", "opendp"))
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/filters.py` with Python {platform.python_version()}, "
        f"{versions}, one core.",
        "",
        "The least ε for which a filter admits all rounds, one by one, and how many times that of the same rounds "
        "fixed beforehand. `plan` admits only rounds that are no less private than those planned. In ten blocks: the "
        "rounds are spent ten times, a tenth of them at once. OpenDP's zCDP filter has no amplification by shuffling "
        "or sampling.",
        "",
        *tightness(),
        "",
        "Odometers: the ε that may be stated at a stop, times that of a plan of as many rounds fixed beforehand. With "
        "ten claims, a tenth of the rounds lies between two stops; by default stops grow by a factor √2.",
        "",
        *odometers(),
        "",
        "One more question after many rounds:",
        "",
        *speed(),
    ]
    joined = "\n".join(text) + "\n"
    print(joined)
    if target:
        target.write_text(joined)


if __name__ == "__main__":
    main()

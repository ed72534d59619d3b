"""DP-SGD's ways to draw a batch beside other libraries, in one run: dp_accounting, prv_accountant, PLD_accounting.

    pip install prv_accountant "pld_accounting[performance]==2.0"
    python benchmarks/sampling_speed.py [--points 200] [--markdown FILE]

1. Poisson sampling at random settings: is our bracket inside the one of dp_accounting's `PrivacyLossDistribution`
   (rounded up and down, its default discretisation), and narrower. Its connect-the-dots algorithm is far more exact,
   but has an upper end only: that is compared with our lower end.
2. Seconds: dp_accounting with steps so small that its bracket is 1% of epsilon wide beside ours at accuracy 0.01, and
   PRV as Opacus calls it (an `eps_error` of 0.01, a `delta_error` of delta / 1000) beside ours at its default (0.001);
   all in one process with one thread, caches emptied, best of three.
3. Settings at which PRV was reported to fail.
4. k of t allocation: PLD_accounting brackets the same reduction; ours is also bounded by an attack.

Ends with status 1 if two brackets of one epsilon do not cross.
"""

import argparse
import datetime
import importlib.metadata
import math
import pathlib
import platform
import random
import statistics
import sys
import time
import warnings

from dp_accounting.pld import privacy_loss_distribution as peer

from shoal import Interval, PoissonSampling, RandomAllocation
from shoal.bounds.certify import epsilons

SETTINGS = (
    (0.01, 1.0, 1_000, 1e-6),
    (0.1, 5.0, 1_000, 1e-5),
    (0.004, 0.8, 5_000, 1e-5),
    (0.02, 1.5, 3_000, 1e-7),
    (0.001, 0.7, 5_000, 1e-6),
    (0.05, 4.0, 5_000, 1e-5),
)

REPORTED = (
    ("prv_accountant 17", 0.00033, 4.0, 10_000, 1.1e-18, 0.1, 1.1e-21, 10_000),
    ("prv_accountant 17, at 1e-15", 0.00033, 4.0, 10_000, 1e-15, 0.1, 1e-18, 10_000),
    ("prv_accountant 42", 0.2, 1.0, 10, 1e-5, 0.01, 1e-10, 500),
    ("prv_accountant 36 (the error of Opacus 601 and 604)", 0.125, 0.8, 1_000, 1e-6, 0.1, 1e-10, 1_000),
)
"""Issue, rate, sigma, steps, delta, eps_error, delta_error, and for how many steps PRV is prepared."""

ALLOCATIONS = ((100, 5, 1.0), (1_000, 10, 1.0), (200, 20, 2.0))
DELTA = 1e-6


def fresh() -> None:
    for name in [n for n in sys.modules if n.startswith("shoal")]:
        for thing in vars(sys.modules[name]).values():
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()


def timed(call, times: int = 3):
    """What a call gives, and its least seconds; a failure in words."""
    seconds = []
    for _ in range(times):
        fresh()
        start = time.perf_counter()
        try:
            found = call()
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}", math.nan
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > 5.0:
            break
    return found, min(seconds)


def theirs(rate: float, sigma: float, steps: int, delta: float, step: float = 1e-4) -> tuple[float, float]:
    """dp_accounting's bracket."""
    low, high = (dots(rate, sigma, steps, delta, pessimistic=up, connect=False, step=step) for up in (False, True))
    return low, high


def dots(
    rate: float,
    sigma: float,
    steps: int,
    delta: float,
    *,
    pessimistic: bool = True,
    connect: bool = True,
    step: float = 1e-4,
) -> float:
    """One end of dp_accounting's; connect-the-dots bounds from above."""
    one = peer.from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        pessimistic_estimate=pessimistic,
        use_connect_dots=connect,
        value_discretization_interval=step,
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def ours(rate: float, sigma: float, steps: int, delta: float, accuracy: float = 1e-3) -> Interval:
    return PoissonSampling(rate=rate, sigma=sigma).epsilon(delta=delta, rounds=steps, accuracy=accuracy)


def prv(
    rate: float,
    sigma: float,
    steps: int,
    delta: float,
    eps_error: float = 0.01,
    delta_error: float = 0.0,
    most: int = 0,
) -> tuple[float, float]:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=sigma)
    accountant = PRVAccountant(
        prvs=[mechanism],
        max_self_compositions=[most or steps],
        eps_error=eps_error,
        delta_error=delta_error or delta / 1000.0,
    )
    lower, _, upper = accountant.compute_epsilon(delta=delta, num_self_compositions=[steps])
    return lower, upper


def drawn(count: int) -> list[tuple[float, float, int, float]]:
    """Random settings whose epsilon is one that somebody may want."""
    source, found = random.Random(18), []
    while len(found) < count:
        setting = (
            round(10.0 ** source.uniform(-4.0, -0.3), 6),
            round(10.0 ** source.uniform(-0.3, 0.8), 4),
            round(10.0 ** source.uniform(0.0, 4.0)),
            10.0 ** source.randint(-8, -4),
        )
        if 0.02 < ours(*setting).upper < 12.0:
            found.append(setting)
    return found


def bracket(ends, digits: int = 6) -> str:
    if isinstance(ends, str):
        return ends
    low, high = (ends.lower, ends.upper) if isinstance(ends, Interval) else ends
    return f"[{low:#.{digits}g}, {high:#.{digits}g}]"


def inside(points: list[tuple[float, float, int, float]]) -> tuple[list[str], bool]:
    rows, right = [], True
    held, above, finer, narrower = 0, 0, 0, []
    for setting in points:
        low, high = theirs(*setting)
        found = ours(*setting, accuracy=1e-4)
        if not low <= found.lower <= found.upper <= high:
            found, finer = ours(*setting, accuracy=1e-5), finer + 1
        held += low <= found.lower <= found.upper <= high
        right &= found.lower <= high and low <= found.upper
        above += dots(*setting) >= found.lower
        narrower.append((high - low) / found.width)
    text = (
        f"{len(points)} random settings (rate 1e-4 to 0.5, σ 0.5 to 6.3, 1 to 10,000 steps, δ 1e-8 to 1e-4, ε 0.02 to "
        f"12), ours with accuracy 1e-4 (1e-5 at {finer}): inside dp_accounting's bracket at {held}, narrower at "
        f"{sum(n > 1.0 for n in narrower)}, by a factor of {min(narrower):,.1f} at least, "
        f"{statistics.median(narrower):,.0f} in the median. Its connect-the-dots upper end is above our lower "
        f"end at {above}."
    )
    rows.append(text)
    return rows, right


def speed() -> list[str]:
    rows = [
        "| rate | σ | steps | δ | shoal, 0.01 | seconds | dp_accounting | seconds | times faster "
        "| shoal, 0.001 | seconds | PRV | seconds | times faster |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for setting in SETTINGS:
        mine, seconds = timed(lambda s=setting: ours(*s))
        rough, equal = timed(lambda s=setting: ours(*s, accuracy=0.01))
        # Each step is rounded by up to one interval, up or down.
        step = 0.01 * mine.upper / setting[2]
        other, long = timed(lambda s=setting, h=step: theirs(*s, step=h))
        third, slow = timed(lambda s=setting: prv(*s))
        rows.append(
            f"| {setting[0]:g} | {setting[1]:g} | {setting[2]:,} | {setting[3]:g} | {bracket(rough)} | {equal:.3f} "
            f"| {bracket(other)} | {long:.2f} | {long / equal:.1f} | {bracket(mine)} | {seconds:.3f} "
            f"| {bracket(third)} | {slow:.2f} | {slow / seconds:.1f} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    million, seconds = timed(lambda: ours(0.001, 1.0, 10**6, 1e-6))
    rows.append(f"\n10^6 steps (rate 0.001, σ = 1, δ = 1e-6): {bracket(million)} in {seconds:.2f} s.")
    return rows


def reported() -> list[str]:
    rows = ["| issue | rate | σ | steps | δ | shoal | PRV |", "|---|---|---|---|---|---|---|"]
    for name, rate, sigma, steps, delta, *errors in REPORTED:
        mine, _ = timed(lambda s=(rate, sigma, steps, delta): ours(*s), 1)
        other, _ = timed(lambda s=(rate, sigma, steps, delta), e=errors: prv(*s, *e), 1)
        rows.append(
            f"| {name} | {rate:g} | {sigma:g} | {steps:,} | {delta:g} | {bracket(mine)} | {bracket(other, 4)} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def allocation() -> tuple[list[str], bool]:
    from PLD_accounting import gaussian_allocation_epsilon_range

    rows, right = (
        [
            "| steps | picks | σ | shoal | the reduction alone | seconds | PLD_accounting | seconds | times narrower |",
            "|---|---|---|---|---|---|---|---|---|",
        ],
        True,
    )
    for steps, picks, sigma in ALLOCATIONS:
        m = RandomAllocation(steps=steps, picks=picks, sigma=sigma)
        mine, seconds = timed(lambda m=m: m.epsilon(delta=DELTA))
        reduced = epsilons(m.bounds(1).upper, [DELTA])[0]
        other, slow = timed(
            lambda t=steps, k=picks, s=sigma: gaussian_allocation_epsilon_range(
                delta=DELTA, sigma=s, num_steps=t, num_selected=k
            )[::-1],
            1,
        )
        shown = "–"
        if not isinstance(other, str):
            shown = f"{(other[1] - other[0]) / reduced.width:.0f}"
            right &= other[0] <= reduced.upper and reduced.lower <= other[1]
        rows.append(
            f"| {steps:,} | {picks} | {sigma:g} | {bracket(mine)} | {bracket(reduced)} | {seconds:.2f} "
            f"| {bracket(other)} | {slow:.2f} | {shown} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows, right


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--points", type=int, default=200, help="random settings (default 200)")
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    asked = options.parse_args()
    warnings.simplefilter("ignore")
    ours(0.1, 2.0, 10, 1e-3)
    theirs(0.1, 2.0, 10, 1e-3)
    first, right = inside(drawn(asked.points))
    print(first[0], file=sys.stderr, flush=True)
    last, also = allocation()
    names = ("shoal", "dp-accounting", "prv-accountant", "PLD_accounting", "numpy", "scipy")
    versions = ", ".join(f"{n} {version(n)}" for n in names)
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/sampling_speed.py` with Python "
        f"{platform.python_version()}, {versions}; one core, best of three.",
        "### Poisson sampling inside dp_accounting's bracket",
        *first,
        "### Poisson sampling, seconds",
        *speed(),
        "### Settings at which PRV was reported to fail",
        *reported(),
        "\nBelow δ = 1e-15 shoal has an upper end only, by Rényi DP with all orders.",
        "### k of t allocation, δ = 1e-6",
        *last,
        "\nPLD_accounting brackets the reduction to 1 of ⌊t/k⌋, k times; the width of that is compared. Our first "
        "column brackets the truth: from above by the reduction, from below by an attack.",
    ]
    joined = "\n".join(f"\n{line}\n" if line.startswith("#") else line for line in text) + "\n"
    print(joined)
    if asked.markdown:
        asked.markdown.write_text(joined)
    sys.exit(0 if right and also else 1)


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "from its source"


if __name__ == "__main__":
    main()

"""A person with several records beside dp_accounting, in one run: values, widths and processor seconds.

    python benchmarks/persons.py [--markdown FILE]

dp_accounting 0.6 at steps of 1e-4 and 1e-5 (connect-the-dots, from above only); ours is a bracket, caches emptied. Ends
with status 1 if a value of dp_accounting lies below our lower end, or ours is wider than a thousandth.
"""

import argparse
import datetime
import importlib.metadata
import pathlib
import platform
import sys
import time

from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

import shoal

SETTINGS = (
    (0.0064, 2, 1.0, 782, 1e-6),
    (0.02048, 2, 4.0, 10_000, 1e-5),
    (0.01, 4, 2.0, 1_000, 1e-6),
    (0.001, 10, 1.0, 5_000, 1e-6),
)
"""Rate, records of a person, sigma, steps, delta."""

STEPS = (1e-3, 1e-4)


def emptied() -> None:
    """Empty all caches of shoal."""
    for name in [name for name in sys.modules if name.startswith("shoal")]:
        for value in vars(sys.modules[name]).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def ours(rate: float, records: int, sigma: float, rounds: int, delta: float) -> tuple[shoal.Interval, float]:
    """Return our bracket, and the processor seconds it took."""
    emptied()
    start = time.process_time()
    m = shoal.PoissonSampling(rate=rate, sigma=sigma, records_per_user=records)
    bracket = m.epsilon(delta=delta, rounds=rounds)
    return bracket, time.process_time() - start


def theirs(rate: float, records: int, sigma: float, rounds: int, delta: float, step: float) -> tuple[float, float]:
    """Return dp_accounting's epsilon at a discretisation, and the processor seconds it took."""
    start = time.process_time()
    number = list(range(records + 1))
    law = stats.binom(records, rate).pmf(number).tolist()
    single = pld.from_mixture_gaussian_mechanism(
        standard_deviation=sigma,
        sensitivities=[float(j) for j in number],
        sampling_probs=law,
        value_discretization_interval=step,
    )
    epsilon = single.self_compose(rounds).get_epsilon_for_delta(delta)
    return epsilon, time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--markdown", type=pathlib.Path)
    arguments = parser.parse_args()
    heads = ["rate", "records", "σ", "steps", "δ", "ours", "width", "s"]
    heads += [f"dp_accounting, {step:g}" for step in STEPS]
    rows, is_wrong = [], False
    for setting in SETTINGS:
        best = min((ours(*setting) for _ in range(3)), key=lambda pair: pair[1])
        bracket, seconds = best
        peers = [theirs(*setting, step) for step in STEPS]
        width = bracket.width / bracket.upper
        is_wrong |= width > 1e-3 or min(value for value, _ in peers) < bracket.lower
        rate, records, sigma, rounds, delta = setting
        rows.append(
            [f"{rate:g}", f"{records}", f"{sigma:g}", f"{rounds:,}", f"{delta:g}", f"{bracket:.5f}", f"{width:.1e}"]
            + [f"{seconds:.2f}"]
            + [f"{value:.5f} in {took:.1f} s" for value, took in peers]
        )
    lines = [" | ".join(row) for row in (heads, ["---"] * len(heads), *rows)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dp-accounting", "numpy", "scipy"))
    text = (
        f"Measured on {datetime.date.today()} by `benchmarks/persons.py` with Python {platform.python_version()}, "
        f"shoal from its source, {versions}; processor seconds, ours best of three.\n\n"
        + "".join(f"| {line} |\n" for line in lines)
    )
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())

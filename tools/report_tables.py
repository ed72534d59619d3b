"""The tables of the technical report: computed, kept as data, and written into the page between their marks.

    python tools/report_tables.py           compute all values, and write the tables
    python tools/report_tables.py --render  write the tables from the values that are kept

Values are in benchmarks/results/report_tables.json. Two tables are taken from results of benchmarks that are there
already (any_crowd.md, shuffled_epochs.md).
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import pathlib
import platform
import re
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import shoal
from shoal.formatting import rounded

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "report.md"
RESULTS = ROOT / "benchmarks" / "results"
VALUES = RESULTS / "report_tables.json"

ONE_ROUND = (
    (5, 4.0, 1e-9),
    (30, 2.0, 1e-6),
    (30, 2.0, 1e-9),
    (100, 5.0, 1e-5),
    (1_000, 1.0, 1e-6),
    (1_000, 2.0, 1e-6),
    (1_000, 5.0, 1e-6),
    (10_000, 1.0, 1e-6),
    (60_000, 9.48, 1 / 60_000),
    (100_000, 2.0, 1e-8),
    (1_000_000, 2.0, 1e-9),
)
"""Users, sigma and delta."""

ROUNDS: tuple[tuple[dict[str, Any], float, tuple[int, ...]], ...] = (
    ({"mechanism": "Shuffle", "users": 1_000, "sigma": 2.0}, 1e-6, (1, 10, 100, 1_000)),
    ({"mechanism": "Shuffle", "users": 60_000, "sigma": 9.48}, 1 / 60_000, (7, 700)),
    ({"mechanism": "ShuffledCheckIn", "users": 60_000, "rate": 0.1, "sigma": 5.0}, 1e-6, (1, 5_540)),
    ({"mechanism": "SubsampledShuffle", "users": 60_000, "sample": 6_000, "sigma": 5.0}, 1e-5, (1, 5_540)),
)
"""Mechanism, delta and numbers of rounds."""

LIMIT = tuple((users, sigma) for sigma in (1.0, 2.0, 5.0) for users in (1_000, 10_000, 100_000, 1_000_000))
"""Users and sigma of the table of the limit, at epsilon = sqrt(V / n)."""

ADJACENCIES = ("zero-out", "replace")
EPOCH_ROWS = ((100, "2"), (1_000, "1"), (1_000, "2"), (10_000, "1"), (10_000, "5"), (100_000, "0.5"), (100_000, "2"))
"""Steps and sigma of the rows of shuffled_epochs.md that the report shows, for each number of epochs."""


def limit_variance(sigma: float) -> float:
    """V of the limit theorem: the variance of the opposite crowd's ratio, times n."""
    square = 1.0 / sigma**2
    return math.expm1(2.0 * square) ** 2 + math.expm1(square)


def forget() -> None:
    """Empty all caches of the package."""
    for name in [name for name in sys.modules if name.startswith("shoal")]:
        for value in vars(sys.modules[name]).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def one_round(users: int, sigma: float, delta: float, adjacency: Any) -> dict[str, Any]:
    """Epsilon of one shuffled round of any crowd, its time, and one report in the clear."""
    forget()
    start = time.process_time()
    bracket = shoal.Shuffle(users=users, sigma=sigma, adjacency=adjacency).epsilon(delta=delta)
    seconds = time.process_time() - start
    return {
        "users": users,
        "sigma": sigma,
        "delta": delta,
        "adjacency": adjacency,
        "lower": bracket.lower,
        "upper": bracket.upper,
        "seconds": seconds,
        "clear": shoal.LocalGaussian(sigma=sigma, adjacency=adjacency).epsilon(delta=delta).upper,
    }


def several_rounds(fields: Mapping[str, Any], delta: float, rounds: int) -> dict[str, Any]:
    """Epsilon of several rounds, for both adjacencies."""
    settings = {key: value for key, value in fields.items() if key != "mechanism"}
    mechanism = getattr(shoal, fields["mechanism"])(**settings)
    found = {a: mechanism.replace(adjacency=a).epsilon(delta=delta, rounds=rounds) for a in ADJACENCIES}
    ends = {a: [bracket.lower, bracket.upper] for a, bracket in found.items()}
    return {"mechanism": dict(fields), "delta": delta, "rounds": rounds, **ends}


def limit(users: int, sigma: float) -> dict[str, Any]:
    """Delta of one round at epsilon = sqrt(V / n), times sqrt(n / V)."""
    variance = limit_variance(sigma)
    bracket = shoal.Shuffle(users=users, sigma=sigma).delta(epsilon=math.sqrt(variance / users))
    factor = math.sqrt(users / variance)
    return {"users": users, "sigma": sigma, "lower": bracket.lower * factor, "upper": bracket.upper * factor}


def computed() -> dict[str, Any]:
    """All values; this takes some minutes."""
    warnings.simplefilter("ignore")
    shoal.Shuffle(users=700, sigma=6.0).epsilon(delta=1e-6)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy"))
    values: dict[str, Any] = {
        "made": f"shoal {shoal.__version__}, {datetime.date.today()}, Python {platform.python_version()}, {versions}, "
        f"one core of an {platform.machine()} machine"
    }
    values["one_round"] = [_shown(one_round(*setting, a)) for a in ADJACENCIES for setting in ONE_ROUND]
    values["rounds"] = [
        _shown(several_rounds(fields, delta, rounds)) for fields, delta, counts in ROUNDS for rounds in counts
    ]
    values["limit"] = [_shown(limit(*setting)) for setting in LIMIT]
    return values


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    print(row, flush=True)
    return row


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def power(value: float, users: int = 0) -> str:
    """A delta, as one divided by the number of users if it is that."""
    if users and value * users == 1.0:
        return "$1/n$"
    return f"$10^{{{round(math.log10(value))}}}$"


def _one_round_table(rows: Sequence[Mapping[str, Any]], adjacency: str) -> str:
    return markdown(
        (
            "users",
            r"$\sigma$",
            r"$\delta$",
            r"$\varepsilon \ge$",
            r"$\varepsilon \le$",
            "upper / lower",
            "in the clear",
            "s",
        ),
        [
            (
                f"{row['users']:,}",
                f"{row['sigma']:g}",
                power(row["delta"], row["users"]),
                rounded(row["lower"], "down", 4),
                rounded(row["upper"], "up", 4),
                f"{row['upper'] / row['lower']:.3f}",
                rounded(row["clear"], "up", 4),
                f"{row['seconds']:.1f}",
            )
            for row in rows
            if row["adjacency"] == adjacency
        ],
    )


def _words(fields: Mapping[str, Any]) -> str:
    name = {"Shuffle": "shuffle", "ShuffledCheckIn": "check-in", "SubsampledShuffle": "fixed size"}[fields["mechanism"]]
    more = f", rate {fields['rate']:g}" if "rate" in fields else ""
    more += f", {fields['sample']:,} drawn" if "sample" in fields else ""
    return rf"{name}, {fields['users']:,} users{more}, $\sigma = {fields['sigma']:g}$"


def _ends(ends: Sequence[float]) -> str:
    return f"{rounded(ends[0], 'down', 4)} to {rounded(ends[1], 'up', 4)}"


def _column_rows(path: pathlib.Path, columns: int) -> list[list[str]]:
    """The cells of all table rows of that many columns of a page of results."""
    found = [line.strip("|").split("|") for line in path.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in found if len(cells) == columns]


def _baselines() -> str:
    head, *rows = _column_rows(RESULTS / "any_crowd.md", 12)
    wanted = [
        head.index(name)
        for name in (
            "opposite crowd (below)",
            "ours",
            "ours, no groups",
            "Gaussian clones",
            "clones 2021",
            "blanket, d = 1",
            "blanket, d = 100",
        )
    ]
    names = (
        r"users; $\sigma$; $\delta$",
        r"opposite $\ge$",
        r"ours $\le$",
        "no groups",
        "Gaussian clones",
        "clones 2021",
        "blanket, $d = 1$",
        "blanket, $d = 100$",
    )
    return markdown(names, [[row[0], *(row[i].replace(" (local)", "*") for i in wanted)] for row in rows])


def _epochs() -> str:
    rows = _column_rows(RESULTS / "shuffled_epochs.md", 10)
    wanted = {(f"{steps:,}", sigma) for steps, sigma in EPOCH_ROWS}
    # The second table of that page has rows of one epoch that the first one has too.
    chosen = {tuple(row[:3]): row for row in rows if tuple(row[:2]) in wanted}
    return markdown(
        ("steps", r"$\sigma$", "epochs", r"$\varepsilon \ge$", r"$\varepsilon \le$", "Poisson claims", "in the clear"),
        [[*row[:5], row[6], row[8]] for row in chosen.values()],
    )


def tables(values: Mapping[str, Any]) -> dict[str, str]:
    """Each table of the report by its name.

    Args:
        values: What `computed` gave.

    Returns:
        Names and Markdown.
    """
    rounds = [
        (
            _words(row["mechanism"]),
            power(row["delta"], row["mechanism"]["users"]),
            f"{row['rounds']:,}",
            *(_ends(row[a]) for a in ADJACENCIES),
        )
        for row in values["rounds"]
    ]
    normal = math.exp(-0.5) / math.sqrt(2.0 * math.pi) - 0.5 * math.erfc(math.sqrt(0.5))
    limits = [
        (
            f"{row['sigma']:g}",
            f"{row['users']:,}",
            rounded(row["lower"], "down", 4),
            rounded(row["upper"], "up", 4),
            f"{row['upper'] / row['lower']:.3f}",
            f"{normal:.5f}",
        )
        for row in values["limit"]
    ]
    return {
        "machine": f"Computed with {values['made']}.",
        "zero-out": _one_round_table(values["one_round"], "zero-out"),
        "replace": _one_round_table(values["one_round"], "replace"),
        "rounds": markdown(("mechanism", r"$\delta$", "rounds", "zero-out", "replace"), rounds),
        "limit": markdown((r"$\sigma$", "users", r"$\ge$", r"$\le$", "upper / lower", "limit"), limits),
        "baselines": _baselines(),
        "epochs": _epochs(),
    }


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with each table between its marks.

    Args:
        page: The report.
        parts: Names and tables.

    Returns:
        The report with these tables.
    """
    for name, table in parts.items():
        mark = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not mark.search(page):
            raise ValueError(f"the report must have a place for the table {name!r}")
        page = mark.sub(lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", page)
    return page


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--render", action="store_true", help="do not compute, use the values that are kept")
    if not options.parse_args().render:
        VALUES.write_text(json.dumps(computed(), indent=1) + "\n")
    PAGE.write_text(filled(PAGE.read_text(), tables(json.loads(VALUES.read_text()))))


if __name__ == "__main__":
    main()

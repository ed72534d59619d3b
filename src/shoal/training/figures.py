"""The report of a run folder: epsilon of its rounds by every accountant, and two pictures.

It follows from the configuration and the metrics, so it can be made again at any time.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import InvalidInput
from shoal.plots import Line, draw
from shoal.training.data import write_atomically
from shoal.training.ledger import LedgerEntry, accountants, stopping_accountants
from shoal.training.run import Config, Row, planned_rounds, read_config, read_metrics

PRIVACY = "privacy.jsonl"
BY_ROUNDS, BY_EPSILON = "accuracy_vs_rounds.png", "accuracy_vs_epsilon.png"


@dataclass(frozen=True, kw_only=True)
class Report:
    """Epsilon after each evaluated round, by accountant (a label each): one value per row."""

    config: Config
    rows: list[Row]
    epsilons: dict[str, list[float]]
    keys: list[str]


def run_accountants(config: Config) -> list[LedgerEntry]:
    """The accountants of a run: odometers if it may stop early."""
    if config.stop_early is None:
        return accountants(config.mechanism)
    return stopping_accountants(config.mechanism, planned_rounds(config))


def report(folder: Path) -> Report:
    """Epsilon of a run by every accountant, from its configuration and metrics."""
    config, rows = read_config(folder), read_metrics(folder)
    if not rows:
        raise InvalidInput(f"{folder} has no evaluated round yet")
    spent = [row.spent for row in rows]
    entries = run_accountants(config)
    return Report(
        config=config,
        rows=rows,
        epsilons={a.label: a.epsilons(spent, config.delta) for a in entries},
        keys=[a.key for a in entries],
    )


def write_privacy(run_report: Report, folder: Path) -> Path:
    """Write epsilon by accountant, a line for each evaluated round.

    Args:
        run_report: What `report` returned.
        folder: The run folder.

    Returns:
        The file, in which an infinite epsilon is null.
    """
    path = folder / PRIVACY
    lines = []
    for i, row in enumerate(run_report.rows):
        values = zip(run_report.keys, (e[i] for e in run_report.epsilons.values()), strict=True)
        epsilon = {k: v if math.isfinite(v) else None for k, v in values}
        lines.append(
            json.dumps({"round": row.round, "spent": row.spent, "delta": run_report.config.delta, "epsilon": epsilon})
        )
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return path


def draw_all(run_report: Report, folder: Path) -> list[Path]:
    """Draw accuracy against rounds, and against epsilon by each accountant.

    Args:
        run_report: What `report` returned.
        folder: The run folder.

    Returns:
        The two pictures.
    """
    config, rows = run_report.config, run_report.rows
    accuracy = [100.0 * row.accuracy for row in rows]
    title = _title(config)
    rounds = [Line(label="test accuracy", x=[row.round for row in rows], upper=accuracy)]
    lines = []
    for label, epsilons in run_report.epsilons.items():
        shown = [(e, a) for e, a in zip(epsilons, accuracy, strict=True) if math.isfinite(e) and e > 0.0]
        if shown:
            x, y = zip(*shown, strict=True)
            lines.append(Line(label=label, x=x, upper=y))
    users = config.mechanism.to_dict().get("users", 0)
    delta = f"δ = 1/{users:,}" if users and math.isclose(1 / users, config.delta) else f"δ = {config.delta:g}"
    adjacency = f"{config.mechanism.adjacency} adjacency"
    ylabel = "accuracy on test images, %"
    return [
        draw(rounds, folder / BY_ROUNDS, title=title, xlabel="rounds", ylabel=ylabel, logarithmic=""),
        draw(
            lines,
            folder / BY_EPSILON,
            title=f"{title}\n{adjacency}, {delta}",
            xlabel="ε (upper bound), by accountant (crowd)",
            ylabel=ylabel,
            logarithmic="x",
        ),
    ]


def _title(config: Config) -> str:
    m, symbols = config.mechanism, {"users": "n", "sample": "m", "rate": "γ", "sigma": "σ"}
    values = m.to_dict()
    settings = ", ".join(f"{sign} = {values[name]:,.6g}" for name, sign in symbols.items() if name in values)
    seeded = "" if config.private else ", seeded (not private)"
    return f"{config.data}, {m.label}: {settings}, C = {config.clip:g}{seeded}"

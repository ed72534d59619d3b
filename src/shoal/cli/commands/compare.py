"""The command `shoal compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoal import _validate
from shoal._written import number
from shoal.cli import options as opt
from shoal.cli import parse, screen, view
from shoal.cli.mechanism_options import Described, describes_mechanism
from shoal.formatting import rounded, short
from shoal.literature.compare import compare
from shoal.mechanisms import Mechanism
from shoal.plots import Line, draw

ROUNDS_IN_PICTURE = 8
"""Numbers of rounds in a picture: all methods are computed anew for each."""


@describes_mechanism
def compare_command(
    *,
    delta: opt.Delta,
    described: Described,
    rounds: opt.RoundsOption = "1",
    adjacency: opt.AdjacencyOption = "zero-out",
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """All methods side by side for one setting, each with its ratio to the least epsilon.

    Examples:

    \b
    shoal compare shuffle --users 60000 --sigma 9.48 --delta 1/60000 \\
        --rounds 7

    \b
    shoal compare check-in --users 60000 --rate 0.1 --sigma 5 \\
        --delta 1/60000 --rounds 5540 --plot methods.png
    """
    small = _validate.delta(number("delta", delta))
    count = _validate.rounds(number("rounds", rounds))
    m = described.mechanism(adjacency)
    with screen.working(described.label):
        methods = compare(m, delta=small, rounds=count)
    # Under other trust the same noise is another mechanism.
    smallest = min(row.epsilon for row in methods if row.epsilon is not None and not row.deployment)
    rows = [
        {**vars(row), "ratio": row.epsilon / smallest if row.epsilon is not None and smallest else None}
        for row in methods
    ]
    sentences = [
        "Rows named tight come from one method, the certified interval of this package. Rows with different crowds "
        "answer different questions: only 'any' holds whatever the other users hold."
    ]
    if any(row.deployment == "secure sum" for row in methods):
        sentences.append(
            "The same noise in the sum under other trust: without a shuffler, by a secure sum of which no share is "
            "lost, and added by a trusted server."
        )
    if not any(row.method == "clones" for row in methods):
        sentences.append(f"Left out: clones, of which this package knows no version for {m.label}.")
    view.View(
        title=f"{m.label}: {m.settings}; {view.rounds_words(count)}, δ = {short(small)}, {adjacency} adjacency",
        columns=[
            view.text_column("method", "method"),
            view.text_column("crowd", "crowd"),
            view.ViewColumn(head="ε", text=_bound),
            view.ViewColumn(head="× least", text=lambda row: "–" if row["ratio"] is None else f"{row['ratio']:,.4g}"),
            view.text_column("note", "note", prose=True),
        ],
        rows=rows,
        sentences=sentences,
        payload={"mechanism": view.without_crowd(m), "delta": small, "rounds": count, "rows": rows},
        draw=partial(_draw_methods, m, methods, small, count),
    ).show(as_json=as_json, plot=plot)


def _bound(row: Mapping[str, Any]) -> str:
    """Return epsilon with its side, rounded to it."""
    if row["epsilon"] is None:
        return "–"
    return f"≥ {rounded(row['epsilon'], 'down')}" if row["side"] == "lower" else f"≤ {rounded(row['epsilon'])}"


def _draw_methods(m: Mechanism, methods: Sequence[Any], delta: float, rounds: int, file: Path) -> Path:
    """Each method's epsilon against rounds, where it applies."""
    x = parse.log_spaced(1, rounds, [], count=ROUNDS_IN_PICTURE)
    tables = [compare(m, delta=delta, rounds=count) for count in x]
    lines = []
    left_out = []
    for i, row in enumerate(methods):
        if row.side == "lower":  # it is the lower edge of a band, not a bound among bounds
            continue
        answers = [(count, table[i]) for count, table in zip(x, tables, strict=True) if table[i].epsilon is not None]
        name = f"{row.method} ({row.crowd} crowd)"
        if len(answers) < len(x):
            left_out.append(name)
        if answers:
            counts, bounds = zip(*answers, strict=True)
            lower = [bound.lower for bound in bounds]
            upper = [bound.epsilon for bound in bounds]
            lines.append(Line(label=name, x=counts, upper=upper, lower=lower if any(lower) else None))
    title = f"{m.label}: {m.settings}\n{m.adjacency} adjacency, δ = {short(delta)}"
    note = f"Not drawn where it does not apply: {', '.join(left_out)}." if left_out else ""
    return draw(lines, file, title=title, xlabel="rounds", ylabel="ε (upper bound)", note=note)

"""The command `shoal compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal._written import number
from shoal.cli import options as opt

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism

POINTS = 8
"""Numbers of rounds in a picture: every one takes all methods anew."""


def compare(
    *,
    delta: opt.Delta,
    described: opt.Described,
    rounds: opt.RoundsOption = "1",
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """One setting, every method side by side, with the ratio between them.

    Examples:

    \b
    shoal compare shuffle --users 60000 --sigma 9.48 --delta 1/60000 \\
        --rounds 7

    \b
    shoal compare check-in --users 60000 --rate 0.1 --sigma 5 \\
        --delta 1/60000 --rounds 5540 --plot methods.png
    """
    from shoal import _validate
    from shoal.cli import show
    from shoal.literature.compare import compare as by_every_method
    from shoal.plots import check

    if plot is not None:
        check(plot)
    small = _validate.delta(number("delta", delta))
    count = _validate.rounds(number("rounds", rounds))
    m = described.mechanism(adjacency)
    with show.busy(m):
        methods = by_every_method(m, delta=small, rounds=count)
        path = None if plot is None else _picture(m, methods, small, count, plot)
    best = min(row.epsilon for row in methods if row.epsilon is not None)
    ratios = [None if row.epsilon is None or best == 0.0 else row.epsilon / best for row in methods]
    if as_json:
        listed = [{**vars(row), "ratio": ratio} for row, ratio in zip(methods, ratios, strict=True)]
        payload = {"mechanism": show.fields(m), "delta": small, "rounds": count, "rows": listed}
        show.emit_json({**payload, "plot": path and str(path)})
        return
    asked = f"{show.times(count)}, δ = {show.plain(small)}, {m.adjacency} adjacency"
    _table(f"{m.label}: {m.settings}; {asked}", methods, ratios)
    show.say(
        "Rows named tight are by one method, the certified bracket of this package. Rows with different crowds answer "
        "different questions: only 'any' holds whatever the others hold."
    )
    if not any(row.method == "clones" for row in methods):
        show.say(f"Left out: clones, of which no version for {m.label} is known here.")
    show.say_where(path)


def _table(title: str, methods: Sequence[Any], ratios: Sequence[float | None]) -> None:
    from shoal.cli import show

    cells = []
    for row, ratio in zip(methods, ratios, strict=True):
        below = row.side == "lower"
        value = "–" if row.epsilon is None else show.rounded(row.epsilon, "down" if below else "up")
        sign = "" if row.epsilon is None else "≥ " if below else "≤ "
        cells.append([row.method, row.crowd, f"{sign}{value}", "–" if ratio is None else f"{ratio:,.4g}", row.note])
    show.table(title, ["method", "crowd", "ε", "× least", "note"], cells, words=("note",))


def _picture(m: Mechanism, methods: Sequence[Any], delta: float, rounds: int, file: Path) -> Path:
    """Each method's epsilon against rounds, where it applies."""
    from shoal.cli import parse, show
    from shoal.literature.compare import compare as by_every_method
    from shoal.plots import Line, draw

    x = parse.log_spaced(1, rounds, [], count=POINTS)
    tables = [by_every_method(m, delta=delta, rounds=t) for t in x]
    lines = []
    left_out = []
    for i, row in enumerate(methods):
        if row.side == "lower":  # it is the lower edge of a band, not a bound among bounds
            continue
        known = [(t, table[i]) for t, table in zip(x, tables, strict=True) if table[i].epsilon is not None]
        name = f"{row.method} ({row.crowd} crowd)"
        if len(known) < len(x):
            left_out.append(name)
        if known:
            times, found = zip(*known, strict=True)
            lower = [r.lower for r in found]
            lines.append(
                Line(label=name, x=times, upper=[r.epsilon for r in found], lower=lower if any(lower) else None)
            )
    title = f"{m.label}: {m.settings}\n{m.adjacency} adjacency, δ = {show.plain(delta)}"
    note = f"Where it does not apply not drawn: {', '.join(left_out)}." if left_out else ""
    return draw(lines, file, title=title, xlabel="rounds", ylabel="ε (upper bound)", note=note)

"""The command `shoal rdp`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal._written import number
from shoal.cli import options as opt

if TYPE_CHECKING:
    from shoal.bounds.numeric import FloatArray
    from shoal.mechanisms import Mechanism
    from shoal.plots import Line

DIRECTIONS = ("forward", "reverse", "worse")
POINTS = 60
"""Steps of a drawn curve, evenly spaced on a logarithmic scale of orders."""


def rdp(
    *,
    described: opt.Described,
    orders: Annotated[str, typer.Option(metavar="L[,L…]", help="Rényi orders above 1.")] = "2,4,8,16,32,64",
    rounds: opt.RoundsOption = "1",
    delta: Annotated[
        str | None, typer.Option(metavar="D", help="Also the order that is best for this delta, and its epsilon.")
    ] = None,
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """The Rényi DP curve, both directions, and the worse of the two.

    Examples:

    \b
    shoal rdp shuffle --users 60000 --sigma 9.48 --orders 2,8,32,1000

    \b
    shoal rdp check-in --users 60000 --rate 0.1 --sigma 5 --rounds 5540 \\
        --delta 1e-5 --plot curve.svg
    """
    from shoal import _validate
    from shoal.cli import parse, show
    from shoal.plots import check

    if plot is not None:
        check(plot)
    values = _validate.orders(parse.numbers("orders", orders))
    count = _validate.rounds(number("rounds", rounds))
    small = None if delta is None else _validate.delta(number("delta", delta))
    variants = described.variants(crowd, adjacency)
    with show.busy(variants[0][1]):
        rows = [row for which, m in variants for row in _curve(which, m, values, count)]
        best = [] if small is None else [_best(which, m, small, count) for which, m in variants]
    m = variants[0][1]
    title = f"{m.label}: {m.settings}; {m.adjacency} adjacency; {show.times(count)}"
    path = None
    if plot is not None:
        over = title.replace(f"; {m.adjacency}", f"\n{m.adjacency}")
        with show.busy("the picture"):
            path = _picture(variants, float(values.max()), best, count, over, plot)
    if as_json:
        payload = {"mechanism": show.fields(m), "rounds": count, "rows": rows, "best": best}
        show.emit_json({**payload, "plot": path and str(path)})
        return
    _table(title, rows)
    for which, m in variants:
        show.say(f"{show.crowd_name(which).capitalize()}: assuming {m.assumption}; {m.trust}.")
    for b in best:
        show.say(
            f"{show.crowd_name(b['crowd']).capitalize()}: at δ = {show.plain(b['delta'])} the best order is "
            f"{show.plain(b['order'])}. {b['guarantee']}"
        )
    show.say_where(path)


def _curve(crowd: str | None, m: Mechanism, orders: FloatArray, rounds: int) -> list[dict[str, Any]]:
    curves: dict[str, FloatArray] = {d: m.rdp(orders, rounds=rounds, direction=d) for d in DIRECTIONS}  # type: ignore[arg-type]
    return [
        {"crowd": crowd, "order": float(order), **{d: float(c[i]) for d, c in curves.items()}}
        for i, order in enumerate(orders)
    ]


def _best(crowd: str | None, m: Mechanism, delta: float, rounds: int) -> dict[str, Any]:
    """The order that gives the least epsilon, and that epsilon."""
    from shoal.bounds.rdp import best_order
    from shoal.mechanisms import bounds

    order = best_order(bounds([(m, rounds)]).upper, delta)
    said = m.statement(delta=delta, rounds=rounds, method="rdp")
    reached = {"lower": 0.0, "upper": said.epsilon}
    return {"crowd": crowd, "delta": delta, "order": order, "epsilon": reached, "guarantee": said.sentence()}


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    from shoal.cli import show

    cells = [
        [
            show.crowd_name(r["crowd"]),
            show.plain(r["order"]),
            *(show.rounded(r[d], digits=7) for d in DIRECTIONS),
        ]
        for r in rows
    ]
    show.table(title, ["crowd", "order", "D(P‖Q)", "D(Q‖P)", "worse"], cells)


def _picture(
    variants: list[tuple[str | None, Mechanism]],
    last: float,
    best: list[dict[str, Any]],
    rounds: int,
    title: str,
    file: Path,
) -> Path:
    """A curve a crowd up to the last order asked for, or twice the best one, which gets a mark of its own."""
    from shoal.cli import show
    from shoal.plots import Line, draw

    lines: list[Line] = []
    for i, (which, m) in enumerate(variants):
        end = max([last, *(2.0 * b["order"] for b in best[: i + 1])])
        grid = sorted({max(2, round(end ** (j / POINTS))) for j in range(POINTS + 1)})
        label = m.label if which is None else f"{show.crowd_name(which)} crowd"
        lines.append(Line(label=label, x=grid, upper=m.rdp(grid, rounds=rounds).tolist()))
        for b in best[i : i + 1]:
            words = f"ε ≤ {show.rounded(b['epsilon']['upper'])} at δ = {show.plain(b['delta'])}"
            x = [b["order"]]
            note = f"order {show.plain(b['order'])}: {words}"
            lines.append(Line(label=note, x=x, upper=m.rdp(x, rounds=rounds).tolist()))
    return draw(lines, file, title=title, xlabel="Rényi order", ylabel="Rényi DP")

"""The command `shoal rdp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from shoal import _validate
from shoal._written import number
from shoal.bounds.numeric import FloatArray
from shoal.bounds.rdp import best_order
from shoal.cli import options as opt
from shoal.cli import parse, screen, view
from shoal.cli.mechanism_options import Described, describes_mechanism
from shoal.formatting import rounded, short
from shoal.mechanisms import Mechanism, bounds
from shoal.plots import Line, draw

RenyiDirection = Literal["forward", "reverse", "worse"]
HEADS: dict[RenyiDirection, str] = {"forward": "D(P‖Q)", "reverse": "D(Q‖P)", "worse": "worse"}
CURVE_STEPS = 60
"""Steps of a drawn curve, evenly spaced on a logarithmic scale of orders."""


@describes_mechanism
def rdp_command(
    *,
    described: Described,
    orders: Annotated[str, typer.Option(metavar="L[,L…]", help="Rényi orders above 1.")] = "2,4,8,16,32,64",
    rounds: opt.RoundsOption = "1",
    delta: Annotated[
        str | None, typer.Option(metavar="D", help="Also show the best order for this delta, and its epsilon.")
    ] = None,
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """The Rényi DP curve in both directions, and the worse of the two.

    Examples:

    \b
    shoal rdp shuffle --users 60000 --sigma 9.48 --orders 2,8,32,1000

    \b
    shoal rdp check-in --users 60000 --rate 0.1 --sigma 5 --rounds 5540 \\
        --delta 1e-5 --plot curve.svg
    """
    values = _validate.orders(parse.numbers("orders", orders))
    count = _validate.rounds(number("rounds", rounds))
    small = None if delta is None else _validate.delta(number("delta", delta))
    variants = described.variants(crowd, adjacency)
    with screen.working(described.label):
        rows = [row for m in variants for row in _divergences(m, values, count)]
        best = [] if small is None else [_best(m, small, count) for m in variants]
    m = variants[0]
    title = f"{m.label}: {m.settings}; {adjacency} adjacency; {view.rounds_words(count)}"
    over = title.replace(f"; {adjacency}", f"\n{adjacency}")
    view.View(
        title=title,
        columns=[
            view.CROWD_COLUMN,
            view.number_column("order", "order"),
            *(view.ViewColumn(head=HEADS[direction], text=partial(_divergence, direction)) for direction in HEADS),
        ],
        rows=rows,
        sentences=[
            *(f"{_name(m.crowd)}: assuming {m.assumption}; {m.trust}." for m in variants),
            *(
                f"{_name(row['crowd'])}: at δ = {short(row['delta'])} the best order is {short(row['order'])}. "
                f"{row['guarantee']}"
                for row in best
            ),
        ],
        payload={"mechanism": view.without_crowd(m), "rounds": count, "rows": rows, "best": best},
        draw=partial(_draw_divergences, variants, float(values.max()), best, count, over),
    ).show(as_json=as_json, plot=plot)


def _name(crowd: str | None) -> str:
    return "No crowd needed" if crowd is None else f"{crowd.capitalize()} crowd"


def _divergence(direction: str, row: Mapping[str, Any]) -> str:
    return rounded(row[direction], digits=7)


def _divergences(m: Mechanism, orders: FloatArray, rounds: int) -> list[dict[str, Any]]:
    """Return the divergences at each order."""
    curves = {direction: m.rdp(orders, rounds=rounds, direction=direction) for direction in get_args(RenyiDirection)}
    return [
        {
            "crowd": m.crowd,
            "order": float(order),
            **{direction: float(curve[i]) for direction, curve in curves.items()},
        }
        for i, order in enumerate(orders)
    ]


def _best(m: Mechanism, delta: float, rounds: int) -> dict[str, Any]:
    """Return the order that gives the least epsilon, and that epsilon."""
    order = best_order(bounds([(m, rounds)]).upper, delta)
    statement = m.statement(delta=delta, rounds=rounds, method="rdp")
    return {
        "crowd": m.crowd,
        "delta": delta,
        "order": order,
        "epsilon": {"lower": 0.0, "upper": statement.epsilon},
        "guarantee": statement.sentence(),
    }


def _draw_divergences(
    variants: Sequence[Mechanism], last: float, best: Sequence[dict[str, Any]], rounds: int, title: str, file: Path
) -> Path:
    """A curve for each crowd up to the last order, or twice the best one, which gets a mark of its own."""
    lines: list[Line] = []
    for i, m in enumerate(variants):
        end = max([last, *(2.0 * row["order"] for row in best[: i + 1])])
        grid = sorted({max(2, round(end ** (j / CURVE_STEPS))) for j in range(CURVE_STEPS + 1)})
        label = view.curve_label(m, m.crowd)
        lines.append(Line(label=label, x=grid, upper=m.rdp(grid, rounds=rounds).tolist()))
        for row in best[i : i + 1]:
            note = f"ε ≤ {rounded(row['epsilon']['upper'])} at δ = {short(row['delta'])}"
            x = [row["order"]]
            label = f"order {short(row['order'])}: {note}"
            lines.append(Line(label=label, x=x, upper=m.rdp(x, rounds=rounds).tolist()))
    return draw(lines, file, title=title, xlabel="Rényi order", ylabel="Rényi DP")

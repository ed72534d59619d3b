"""The command `shoal tradeoff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal._written import number
from shoal.cli import options as opt

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism

COARSE = 0.01
"""Accuracy of a drawn curve: no eye sees more."""


def tradeoff(
    *,
    fpr: Annotated[
        str, typer.Option(metavar="F[,F…]", help="False positive rates of the attacker.")
    ] = "0.001,0.01,0.1",
    described: opt.Described,
    rounds: opt.RoundsOption = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """What an attacker can do: the best true positive rate at a false positive rate.

    Examples:

    \b
    shoal tradeoff check-in --users 60000 --rate 0.1 --sigma 5 --rounds 5540

    \b
    shoal tradeoff local --sigma 5 --fpr 0.001,0.01 --plot attack.png
    """
    from shoal import _validate
    from shoal.cli import parse, show
    from shoal.plots import check

    if plot is not None:
        check(plot)
    rates = [_validate.delta(f, "fpr") for f in parse.numbers("fpr", fpr)]
    count = _validate.rounds(number("rounds", rounds))
    variants = described.variants(crowd, adjacency)
    rows = []
    for which, m in variants:
        with show.busy(m):
            rows += _rows(which, m, rates, count, accuracy)
    m = variants[0][1]
    title = f"{m.label}: {m.settings}; {m.adjacency} adjacency; {show.times(count)}"
    path = None
    if plot is not None:
        with show.busy("the picture"):
            path = _picture(variants, count, title.replace(f"; {m.adjacency}", f"\n{m.adjacency}"), plot)
    if as_json:
        payload = {"mechanism": show.fields(m), "rounds": count, "rows": rows}
        show.emit_json({**payload, "plot": path and str(path)})
        return
    _table(title, rows)
    show.say("The attacker knows everything but whether the one user moved; advantage is the largest TPR - FPR.")
    for _, variant in variants:
        show.say(f"Assuming {variant.assumption}; {variant.trust}.")
    show.say_where(path)


def _rows(crowd: str | None, m: Mechanism, rates: list[float], rounds: int, accuracy: float) -> list[dict[str, Any]]:
    from shoal.cli import show

    best = show.interval(m.advantage(rounds=rounds, accuracy=accuracy))
    powers = m.tradeoff(rates, rounds=rounds, accuracy=accuracy)
    return [
        {"crowd": crowd, "fpr": f, "tpr": show.interval(power), "advantage": best}
        for f, power in zip(rates, powers, strict=True)
    ]


def _table(title: str, rows: list[dict[str, Any]]) -> None:
    from shoal.cli import show

    cells = [
        [show.crowd_name(r["crowd"]), show.plain(r["fpr"]), *show.bounds(r["tpr"]), *show.bounds(r["advantage"])]
        for r in rows
    ]
    show.table(title, ["crowd", "FPR", "TPR ≥", "TPR ≤", "advantage ≥", "advantage ≤"], cells)


def _picture(variants: list[tuple[str | None, Mechanism]], rounds: int, title: str, file: Path) -> Path:
    """How many times more often than by guessing an attack is right, for each rate at which it is wrong."""
    from shoal.cli import parse, show
    from shoal.plots import Line, draw

    lines = []
    for crowd, m in variants:
        points = min(40, parse.points_for(crowd))
        # From one in a million, where attacks are judged, nearly to the right end, where all are as good as guessing.
        x = [10 ** (-6 + 5.85 * i / (points - 1)) for i in range(points)]
        label = m.label if crowd is None else f"{show.crowd_name(crowd)} crowd"
        powers = m.tradeoff(x, rounds=rounds, accuracy=COARSE)
        # As a multiple of guessing: the curves themselves lie so near to the diagonal that nobody sees a difference.
        upper, lower = ((ends / x).tolist() for ends in (powers.upper, powers.lower))
        lines.append(Line(label=label, x=x, upper=upper, lower=lower))
    lines.append(Line(label="guessing", x=x, upper=[1.0] * len(x)))
    most = max(max(line.upper) for line in lines)
    return draw(
        lines,
        file,
        title=title,
        xlabel="false positive rate (FPR)",
        ylabel="TPR / FPR: times better than guessing",
        logarithmic="xy" if most > 10.0 else "x",
    )

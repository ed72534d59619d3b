"""The command `shoal tradeoff`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal import _validate
from shoal._written import number
from shoal.cli import options as opt
from shoal.cli import parse, screen, view
from shoal.cli.mechanism_options import Described, describes_mechanism
from shoal.mechanisms import Mechanism
from shoal.plots import Line, draw

ACCURACY_OF_CURVES = 0.01
"""Relative width of a drawn curve's intervals: finer ones look the same."""

CURVE_POINTS_MAX = 40


@describes_mechanism
def tradeoff_command(
    *,
    fpr: Annotated[
        str, typer.Option(metavar="F[,F…]", help="False positive rates of the attacker.")
    ] = "0.001,0.01,0.1",
    described: Described,
    rounds: opt.RoundsOption = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """The highest true positive rate of any attack at a given false positive rate.

    Examples:

    \b
    shoal tradeoff check-in --users 60000 --rate 0.1 --sigma 5 --rounds 5540

    \b
    shoal tradeoff local --sigma 5 --fpr 0.001,0.01 --plot attack.png
    """
    rates = [_validate.delta(rate, "fpr") for rate in parse.numbers("fpr", fpr)]
    count = _validate.rounds(number("rounds", rounds))
    variants = described.variants(crowd, adjacency)
    with screen.working(described.label):
        rows = [row for m in variants for row in _power_rows(m, rates, count, accuracy)]
    m = variants[0]
    title = f"{m.label}: {m.settings}; {adjacency} adjacency; {view.rounds_words(count)}"
    view.View(
        title=title,
        columns=[
            view.CROWD_COLUMN,
            view.number_column("FPR", "fpr"),
            *view.interval_columns("TPR", "tpr"),
            *view.interval_columns("advantage", "advantage"),
        ],
        rows=rows,
        sentences=[
            "The attacker knows everything except whether the user's vector was changed. The advantage is the largest "
            "difference TPR - FPR.",
            *(f"Assuming {variant.assumption}; {variant.trust}." for variant in variants),
        ],
        payload={"mechanism": view.without_crowd(m), "rounds": count, "rows": rows},
        draw=partial(_draw_powers, variants, count, title.replace(f"; {adjacency}", f"\n{adjacency}")),
    ).show(as_json=as_json, plot=plot)


def _power_rows(m: Mechanism, rates: list[float], rounds: int, accuracy: float) -> list[dict[str, Any]]:
    advantage = view.ends(m.advantage(rounds=rounds, accuracy=accuracy))
    powers = m.tradeoff(rates, rounds=rounds, accuracy=accuracy)
    return [
        {"crowd": m.crowd, "fpr": rate, "tpr": view.ends(power), "advantage": advantage}
        for rate, power in zip(rates, powers, strict=True)
    ]


def _draw_powers(variants: Sequence[Mechanism], rounds: int, title: str, file: Path) -> Path:
    """How many times more often than by guessing an attack is right, for each rate at which it is wrong."""
    lines = []
    for m in variants:
        points = min(CURVE_POINTS_MAX, parse.curve_points(m.crowd))
        # From one in a million, where attacks are judged, nearly to the right end, where all are as good as guessing.
        x = [10 ** (-6 + 5.85 * i / (points - 1)) for i in range(points)]
        powers = m.tradeoff(x, rounds=rounds, accuracy=ACCURACY_OF_CURVES)
        # As a multiple of guessing: the curves themselves are so close to the diagonal that nobody sees a difference.
        upper, lower = ((bound / x).tolist() for bound in (powers.upper, powers.lower))
        lines.append(Line(label=view.curve_label(m, m.crowd), x=x, upper=upper, lower=lower))
    lines.append(Line(label="guessing", x=x, upper=[1.0] * len(x)))
    highest = max(max(line.upper) for line in lines)
    return draw(
        lines,
        file,
        title=title,
        xlabel="false positive rate (FPR)",
        ylabel="TPR / FPR: times better than guessing",
        logarithmic="xy" if highest > 10.0 else "x",
    )

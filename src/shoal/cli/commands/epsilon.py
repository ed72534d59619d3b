"""The command `shoal epsilon`."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from shoal.cli import options as opt
from shoal.errors import InvalidInput


class Axis(str, enum.Enum):
    rounds = "rounds"
    users = "users"
    sigma = "sigma"
    rate = "rate"


def epsilon(
    *,
    delta: opt.Deltas,
    described: opt.Described,
    rounds: opt.ManyRounds = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    method: opt.MethodOption = opt.MethodChoice.tight,
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
    against: Annotated[
        Axis, typer.Option(help="What the picture shows epsilon against: rounds, or a range around the value given.")
    ] = Axis.rounds,
) -> None:
    """Epsilon after some rounds.

    Examples:

    \b
    shoal epsilon check-in --users 60000 --rate 0.1 --sigma 5 --delta 1e-5 \\
        --rounds 1,100,5540

    \b
    shoal epsilon shuffle --users 60000 --sigma 9.48 --delta 1/60000 \\
        --rounds 1-7

    \b
    shoal epsilon local --sigma 5 --delta 1e-5 --rounds 1-1000@30 \\
        --plot local.png

    \b
    shoal epsilon shuffle --users 100 --sigma 5 --delta 1e-6 \\
        --plot users.png --against users
    """
    from shoal import _validate
    from shoal.cli import parse
    from shoal.cli.brackets import Query, show
    from shoal.query import EPSILON

    deltas = [_validate.delta(d) for d in parse.numbers("delta", delta)]
    counts = parse.whole_numbers("rounds", rounds)
    variants = described.variants(crowd, adjacency)
    if against is not Axis.rounds:
        if plot is None:
            raise InvalidInput(f"against {against.value} is about the picture: add --plot FILE")
        if against.value not in described.fields:
            raise InvalidInput(f"against must be a parameter of {described.kind}, got {against.value}")
    query = Query(variants=variants, rounds=counts, method=method.value, accuracy=accuracy)
    show(EPSILON, query, deltas, as_json=as_json, plot=plot, against=against.value)

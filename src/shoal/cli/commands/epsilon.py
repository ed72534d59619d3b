"""The command `shoal epsilon`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import typer

from shoal import _validate
from shoal.cli import interval_pictures as pictures
from shoal.cli import options as opt
from shoal.cli import parse
from shoal.cli.interval_view import AnswerRequest, interval_view
from shoal.cli.mechanism_options import Described, describes_mechanism
from shoal.errors import InvalidInput
from shoal.query import EPSILON

EpsilonAxis = Literal["rounds", "users", "sigma", "rate"]


@describes_mechanism
def epsilon_command(
    *,
    delta: opt.DeltaList,
    described: Described,
    rounds: opt.RoundsList = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    method: opt.MethodOption = "tight",
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
    against: Annotated[
        EpsilonAxis,
        typer.Option(help="What the picture shows epsilon against: rounds, or values around the one given."),
    ] = "rounds",
) -> None:
    """Epsilon after a number of rounds.

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
    request = AnswerRequest(
        question=EPSILON,
        values=[_validate.delta(value) for value in parse.numbers("delta", delta)],
        rounds=parse.whole_numbers("rounds", rounds),
        variants=described.variants(crowd, adjacency),
        method=method,
        accuracy=accuracy,
    )
    if against == "rounds":
        draw = partial(pictures.draw_epsilon_against_rounds, request)
    else:
        if plot is None:
            raise InvalidInput(f"against {against} is about the picture: add --plot FILE")
        if against not in described.parameters:
            raise InvalidInput(f"against must be a parameter of {described.label}, got {against}")
        draw = partial(pictures.draw_epsilon_against_parameter, against, request)
    interval_view(request, draw).show(as_json=as_json, plot=plot)

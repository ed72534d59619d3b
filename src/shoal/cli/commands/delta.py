"""The command `shoal delta`."""

from __future__ import annotations

from functools import partial

from shoal import _validate
from shoal.cli import options as opt
from shoal.cli import parse
from shoal.cli.interval_pictures import draw_delta_against_epsilon
from shoal.cli.interval_view import AnswerRequest, interval_view
from shoal.cli.mechanism_options import Described, describes_mechanism
from shoal.query import DELTA


@describes_mechanism
def delta_command(
    *,
    epsilon: opt.EpsilonList,
    described: Described,
    rounds: opt.RoundsList = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    method: opt.MethodOption = "tight",
    accuracy: opt.Accuracy = 1e-3,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """Delta at a given epsilon.

    Examples:

    \b
    shoal delta shuffle --users 60000 --sigma 9.48 --epsilon 0.0005,0.001

    \b
    shoal delta check-in --users 60000 --rate 0.1 --sigma 5 --epsilon 0.1 \\
        --rounds 5540 --json
    """
    request = AnswerRequest(
        question=DELTA,
        values=[_validate.epsilon(value) for value in parse.numbers("epsilon", epsilon)],
        rounds=parse.whole_numbers("rounds", rounds),
        variants=described.variants(crowd, adjacency),
        method=method,
        accuracy=accuracy,
    )
    interval_view(request, partial(draw_delta_against_epsilon, request)).show(as_json=as_json, plot=plot)

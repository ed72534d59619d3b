"""The command `shoal delta`."""

from __future__ import annotations

from shoal.cli import options as opt


def delta(
    *,
    epsilon: opt.ManyEpsilons,
    described: opt.Described,
    rounds: opt.ManyRounds = "1",
    crowd: opt.CrowdOption = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    method: opt.MethodOption = opt.MethodChoice.tight,
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
    from shoal import _validate
    from shoal.cli import parse
    from shoal.cli.brackets import Query, show
    from shoal.query import DELTA

    epsilons = [_validate.epsilon(e) for e in parse.numbers("epsilon", epsilon)]
    counts = parse.whole_numbers("rounds", rounds)
    variants = described.variants(crowd, adjacency)
    query = Query(variants=variants, rounds=counts, method=method.value, accuracy=accuracy)
    show(DELTA, query, epsilons, as_json=as_json, plot=plot)

"""The command `shoal audit`, which tries to break the claims of the others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal._written import number
from shoal.cli import options as opt
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.audit import Finding


def audit(
    *,
    delta: Annotated[
        str | None, typer.Option(metavar="D", help="Delta, such as 1e-5 or 1/60000.", show_default=False)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Attack the training of this run folder, with a planted user, instead."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the run's data is kept. [default: cache]")
    ] = None,
    described: Annotated[opt.Description, opt.Offer(of="crowd", needed=False)],
    rounds: Annotated[
        str | None,
        typer.Option(metavar="T", help="Rounds, in all of which the crowd is the same. [default: 1, or the run's]"),
    ] = None,
    adjacency: opt.AdjacencyOption = opt.AdjacencyChoice.zero_out,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="S[,S…]",
            help="What the others hold: identical (user 1's first vector), opposite (minus its second), orthogonal, "
            "clusters (half opposite, half with user 1), spread (random in the ball). [default: all]",
        ),
    ] = None,
    dimensions: Annotated[str, typer.Option(metavar="D[,D…]", help="Dimensions of the vectors.")] = "1,2,8",
    trials: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Games that measure each row, in each world. "
            "[default: what takes some 20 seconds in all; for a run, 200]",
        ),
    ] = None,
    seed: Annotated[str, typer.Option(metavar="K", help="The same seed gives the same games.")] = "0",
    confidence: Annotated[str, typer.Option(metavar="C", help="Of all rows together.")] = "0.999",
    claim: Annotated[
        str | None, typer.Option(metavar="E", help="Check this epsilon in place of the certified one.")
    ] = None,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """Try to break the guarantee: attack simulated rounds, and see what epsilon the attacks prove.

    An attacker who knows everything but user 1's vector tells two worlds apart, with the best test there is or a
    trained one. Exit code 1 if the attacks prove more than is claimed.

    Examples:

    \b
    shoal audit shuffle --users 10 --sigma 1 --delta 1e-5 --trials 20000

    \b
    shoal audit check-in --users 50 --rate 0.2 --sigma 1 --delta 1e-5 \\
        --shapes identical,opposite --trials 5000

    \b
    shoal audit shuffle --users 5 --sigma 0.5 --delta 1e-5 --trials 20000 \\
        --plot audit.png

    \b
    shoal audit --run runs/small --rounds 3 --trials 60

    A run is trained again for each game: the fewer its users, the rounds and the games, the sooner it ends.
    """
    from shoal.cli import parse
    from shoal.plots import check

    if plot is not None:
        check(plot)
    numbers: dict[str, Any] = {
        "seed": number("seed", seed),
        "confidence": number("confidence", confidence),
        "claim": None if claim is None else number("claim", claim),
    }
    played = None if trials is None else number("trials", trials)
    times = None if rounds is None else number("rounds", rounds)
    if run is not None:
        _refuse_beside_run({"mechanism": described.kind or None, **described.given, "delta": delta, "shapes": shapes})
        found = _of_run(run, data_dir, times, played, **numbers)
    elif not described.kind or delta is None:
        raise InvalidInput(f"{'delta' if described.kind else 'mechanism'} must be given, or run: add --run DIR")
    else:
        games: dict[str, Any] = {
            "shapes": None if shapes is None else [s.strip() for s in shapes.split(",")],
            "dimensions": parse.numbers("dimensions", dimensions),
            "trials": played,
        }
        asked = {"delta": number("delta", delta), "rounds": 1 if times is None else times, **numbers}
        found = _of_mechanism(described, adjacency, asked, games)
    _tell(*found, as_json, plot)


def _refuse_beside_run(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidInput(f"{name} cannot be given with run: the run has its own")


def _of_mechanism(
    described: opt.Description, adjacency: opt.AdjacencyChoice, asked: dict[str, Any], games: dict[str, Any]
) -> tuple[list[Finding], Any, dict[str, Any]]:
    """The games against simulated rounds of a mechanism."""
    from shoal.audit import audit as play
    from shoal.cli import show

    if not described.crowded:
        known = ", ".join(label for label, cls in opt.kinds().items() if opt.has(cls, "crowd"))
        raise InvalidInput(f"mechanism must be one of {known} for an audit, got {described.kind}")
    m = described.mechanism(adjacency)
    with show.progress("certified bounds") as bar:
        progress = bar and (lambda shape, done: bar(f"{shape} crowd", done))
        rows = play(m, **asked, **games, progress=progress)
    return rows, m, asked


def _of_run(
    folder: Path,
    data_dir: Path | None,
    rounds: float | None,
    trials: float | None,
    *,
    seed: float,
    confidence: float,
    claim: float | None,
) -> tuple[list[Finding], Any, dict[str, Any]]:
    """The game against the training of a run folder."""
    from shoal import _validate, training
    from shoal.cli import show
    from shoal.training.data import holds_records

    config = training.read_config(folder)
    asked: dict[str, Any] = {
        "delta": config.delta,
        "rounds": config.rounds if rounds is None else min(_validate.rounds(rounds), config.rounds),
        "seed": _validate.integer("seed", seed, minimum=0, maximum=2**63 - 1),
        "confidence": confidence,
        "claim": None if claim is None else _validate.epsilon(claim, "claim"),
    }
    sys.path.insert(0, "")  # a model of the user's own
    data = (
        training.read_records(config.data)
        if holds_records(config.data)
        else training.load(config.data, data_dir=data_dir)
    )
    with show.progress("games") as bar:
        row = training.audit_run(
            config,
            data,
            trials=200 if trials is None else int(trials),
            rounds=asked["rounds"],
            seed=asked["seed"],
            confidence=confidence,
            claim=asked["claim"],
            progress=bar and (lambda done, total: bar(f"training {done:,} of {total:,}", done / total)),
        )
    return [row], config.mechanism, asked


def _tell(rows: list[Finding], m: Any, asked: dict[str, Any], as_json: bool, plot: Path | None) -> None:
    """Show the rows; exit code 1 if one contradicts its claim."""
    from shoal.cli import show

    path = None if plot is None else _picture(rows, m, asked, plot)
    broken = [row for row in rows if not row.stands]
    if as_json:
        listed = [_listed(row) for row in rows]
        payload = {"mechanism": show.fields(m), **asked, "trials": rows[0].trials, "rows": listed, "stands": not broken}
        show.emit_json({**payload, "plot": path and str(path)})
    else:
        _table(rows, m, asked)
        show.say_where(path)
    # Told last and on stderr, with an exit code of its own: a program that runs audits must notice.
    if broken:
        worst = max(broken, key=lambda row: row.epsilon - row.limit)
        print(
            f"shoal: the claim is contradicted: against the {worst.shape} crowd epsilon is at least "
            f"{show.rounded(worst.epsilon, 'down')} (confidence {asked['confidence']}), but it is claimed to be "
            f"at most {show.rounded(worst.limit)}",
            file=sys.stderr,
        )
        raise typer.Exit(code=1)


def _listed(row: Finding) -> dict[str, Any]:
    from shoal.cli import show

    def bracket(value: Any) -> dict[str, float] | None:
        return None if value is None else show.interval(value)

    return {
        "crowd": row.shape,
        "dimensions": list(row.dimensions),
        "test": row.test,
        "direction": row.direction,
        "hits": row.hits,
        "alarms": row.alarms,
        "epsilon": {"lower": row.epsilon},
        "any_crowd": bracket(row.any_crowd),
        "identical_crowd": bracket(row.identical_crowd),
        "claim": row.limit,
        "stands": row.stands,
    }


def _table(rows: list[Finding], m: Any, asked: dict[str, Any]) -> None:
    from shoal.cli import show

    def upper(bound: Any) -> str:
        return "–" if bound is None else show.rounded(bound.upper)

    claimed = asked["claim"] is not None
    cells = [
        [
            row.shape,
            ", ".join(map(str, row.dimensions)),
            row.test,
            show.rounded(row.epsilon, "down"),
            *([show.rounded(row.limit)] if claimed else []),
            upper(row.any_crowd),
            upper(row.identical_crowd),
            "stands" if row.stands else "BROKEN",
        ]
        for row in rows
    ]
    heads = ["others", "d", "test", "attack ε ≥", *(["claim ε ≤"] if claimed else [])]
    heads += ["any crowd ε ≤", "identical ε ≤", "claim"]
    setting = f"{show.times(asked['rounds'])}, δ = {show.plain(asked['delta'])}, {m.adjacency} adjacency"
    show.table(f"{m.label}: {m.settings}; {setting}", heads, cells)
    show.say(
        f"Each row: {rows[0].trials:,} games in each world measure what a test chosen on other games tells. The lower "
        f"bounds hold together with confidence {asked['confidence']} (Clopper–Pearson, Bonferroni over "
        f"{2 * len(rows)} rates; seed {asked['seed']}). An attack can refute a claim, not prove it."
    )


def _picture(rows: list[Finding], m: Any, asked: dict[str, Any], file: Path) -> Path:
    from shoal.cli import show
    from shoal.plots import draw_rows

    labels = [f"{row.shape}, d = {', '.join(map(str, row.dimensions))}" for row in rows]
    series: dict[str, list[float | None]] = {"attack: ε ≥": [row.epsilon for row in rows]}
    if asked["claim"] is not None:
        series["claim: ε ≤"] = [row.limit for row in rows]
    for name, bounds in (
        ("any crowd", [row.any_crowd for row in rows]),
        ("identical crowd", [row.identical_crowd for row in rows]),
    ):
        series[f"{name}: ε ≤"] = [None if b is None else b.upper for b in bounds]
    used = {name: values for name, values in series.items() if any(v is not None for v in values)}
    setting = f"{m.adjacency} adjacency, δ = {show.plain(asked['delta'])}, {show.times(asked['rounds'])}"
    title = f"Audit of {m.label}: {m.settings}\n{setting}, confidence {asked['confidence']}"
    return draw_rows(labels, used, file, title=title, xlabel="ε")

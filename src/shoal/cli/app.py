"""The commands."""

from __future__ import annotations

import enum
import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from shoal.cli.train import train

if TYPE_CHECKING:
    from shoal.answers import Asked
    from shoal.mechanisms import Mechanism

app = typer.Typer(
    name="shoal",
    no_args_is_help=True,
    rich_markup_mode=None,  # the help must come at once, and rich takes a quarter of a second to load
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="How private are shuffled Gaussian reports?\n\n"
    "Each user adds Gaussian noise to a vector and sends it to a shuffler, which hands the reports, "
    "permuted, to a server that nobody trusts.\n\n"
    "Mechanisms: local (no shuffler), shuffle, subsampled (m of n users a round), check-in (each user "
    "takes part on its own coin), balls-and-bins (central noise, one random batch per epoch).\n\n"
    "Start with:\n\n"
    "shoal epsilon check-in --users 60000 --rate 0.1 --sigma 5 --delta 1e-5 --rounds 1,100,5540\n\n"
    "shoal compare shuffle --users 60000 --sigma 9.48 --delta 1/60000 --rounds 7",
)


def _version(wanted: bool) -> None:
    if wanted:
        from shoal import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


calibrate_app = typer.Typer(
    no_args_is_help=True, help="The least noise, the most rounds or the fewest users for a target."
)
app.add_typer(calibrate_app, name="calibrate")


class Kind(str, enum.Enum):
    local = "local"
    shuffle = "shuffle"
    subsampled = "subsampled"
    check_in = "check-in"
    balls_and_bins = "balls-and-bins"


class CrowdChoice(str, enum.Enum):
    identical = "identical"
    any = "any"
    both = "both"


class AdjacencyChoice(str, enum.Enum):
    zero_out = "zero-out"
    replacement = "replace"


class Against(str, enum.Enum):
    rounds = "rounds"
    users = "users"
    sigma = "sigma"
    rate = "rate"


class MethodChoice(str, enum.Enum):
    tight = "tight"
    rdp = "rdp"


KindArg = Annotated[Kind, typer.Argument(help="The mechanism.", show_default=False)]
Users = Annotated[str | None, typer.Option(metavar="N", help="Number of users (shuffle, subsampled, check-in).")]
Sample = Annotated[str | None, typer.Option(metavar="M", help="Users sampled each round (subsampled).")]
Rate = Annotated[str | None, typer.Option(metavar="P", help="Probability of checking in (check-in).")]
Bins = Annotated[str | None, typer.Option(metavar="N", help="Number of batches per epoch (balls-and-bins).")]
Sigma = Annotated[str | None, typer.Option(metavar="X", help="Noise multiplier: standard deviation / clipping norm.")]
Delta = Annotated[str, typer.Option(metavar="D[,D…]", help="Delta, such as 1e-5 or 1/60000.", show_default=False)]
Epsilon = Annotated[str, typer.Option(metavar="E[,E…]", help="Epsilon.", show_default=False)]
Rounds = Annotated[
    str,
    typer.Option(
        metavar="T[,T…]", help="Rounds: 1,100,5540, a range 1-7, 100-1000:100 (steps), 1-5540@50 (50 values)."
    ),
]
CrowdOpt = Annotated[
    CrowdChoice | None,
    typer.Option(help="What the others hold: the paper's idealised crowd, anything, or both. [default: both]"),
]
AdjacencyOpt = Annotated[AdjacencyChoice, typer.Option(help="One user's vector becomes zero, or any other vector.")]
AgainstOpt = Annotated[
    Against, typer.Option(help="What the picture shows epsilon against: rounds, or a range around the value given.")
]
MethodOpt = Annotated[
    MethodChoice, typer.Option(help="A certified bracket around the truth, or an upper bound through Rényi DP.")
]
Accuracy = Annotated[float, typer.Option(help="Relative width wanted of the bracket (method tight).")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw a picture (.png, .svg or .pdf).")]


def _refuse(message: str) -> NoReturn:
    print(f"shoal: {message}", file=sys.stderr)
    raise typer.Exit(code=2)


def _clear_errors(function: Callable[..., None]) -> Callable[..., None]:
    """Bad input ends in one sentence and exit code 2, not in a traceback; a wide bracket makes a note."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        notes: list[str] = []

        def keep(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: Any = None,
            line: str | None = None,
        ) -> None:
            if category.__name__ == "AccuracyWarning":
                notes.append(str(message))
            else:
                typer.echo(warnings.formatwarning(message, category, filename, lineno), err=True, nl=False)

        with warnings.catch_warnings():
            warnings.filterwarnings("once", message="accuracy .* was not reached")
            warnings.showwarning = keep
            try:
                function(*args, **kwargs)
            except (ValueError, OSError) as error:
                _refuse(str(error))
            finally:
                for note in notes[:2]:
                    typer.echo(f"Note: {note}.", err=True)
                if len(notes) > 2:
                    typer.echo(f"Note: {len(notes) - 2} more brackets are wider than asked.", err=True)

    return wrapped


def _variants(
    kind: Kind,
    given: dict[str, str | None],
    crowd: CrowdChoice | None,
    adjacency: AdjacencyChoice,
    **known: Any,
) -> list[tuple[str | None, Mechanism]]:
    """The mechanism under each crowd asked for."""
    from shoal.cli import parse

    shown = parse.crowds(kind.value, crowd.value if crowd else None)
    m = parse.mechanism(kind.value, given, adjacency.value, **known)
    return [(c, parse.with_crowd(m, c)) for c in shown]


def _given(
    users: str | None, sample: str | None, rate: str | None, bins: str | None, sigma: str | None
) -> dict[str, str | None]:
    return {"users": users, "sample": sample, "rate": rate, "bins": bins, "sigma": sigma}


SYMBOL = {"epsilon": "ε", "delta": "δ"}


def _report(
    question: Asked,
    variants: list[tuple[str | None, Mechanism]],
    given: list[float],
    rounds: list[int],
    how: dict[str, Any],
    as_json: bool,
    plot: Path | None,
    against: str = "rounds",
) -> None:
    """Epsilon at deltas, or delta at epsilons: the same table, JSON, sentence and picture."""
    from shoal.cli import show

    other = "delta" if question == "epsilon" else "epsilon"
    rows: list[dict[str, Any]] = []
    for crowd, m in variants:
        for value in given:
            with show.busy(m):
                answers = getattr(m, question)(**{other: value}, rounds=rounds, **how)
            for count, answer in zip(rounds, answers, strict=True):
                text = m.stated(question, value, answer, count, how["method"]).sentence()
                row = {"crowd": crowd, "rounds": count, other: value, question: show.interval(answer)}
                rows.append({**row, "guarantee": text})
    if plot is None:
        path = None
    elif against == "rounds":
        path = _picture(question, variants, given, rounds, how, plot)
    else:
        from shoal.cli.against import picture

        path = picture(against, variants, given, rounds, how, plot)
    first = variants[0][1]
    if as_json:
        fields = {k: v for k, v in first.to_dict().items() if k != "crowd"}
        show.emit_json({"mechanism": fields, **how, "rows": rows, "plot": path and str(path)})
        return
    cells = [
        [show.crowd_name(r["crowd"]), f"{r['rounds']:,}", show.plain(r[other]), *show.bounds(r[question])] for r in rows
    ]
    asked, answer_name = SYMBOL[other], SYMBOL[question]
    heads = ["crowd", "rounds", asked, f"{answer_name} ≥", f"{answer_name} ≤"]
    show.table(f"{first.label}: {first.settings}; {first.adjacency} adjacency", heads, cells)
    for crowd, _ in variants:
        show.say([row for row in rows if row["crowd"] == crowd][-1]["guarantee"])
    if path:
        show.say(f"Picture: {path}")


def _picture(
    question: str,
    variants: list[tuple[str | None, Mechanism]],
    given: list[float],
    rounds: list[int],
    how: dict[str, Any],
    file: Path,
) -> Path:
    """Epsilon against rounds (a line a crowd and delta), or delta against epsilon (a line a crowd and rounds)."""
    from shoal.cli import parse, show
    from shoal.plots import band, draw

    by_rounds = question == "epsilon"
    other = "delta" if by_rounds else "epsilon"
    keys: list[Any] = given if by_rounds else rounds
    lines = []
    for crowd, m in variants:
        count = parse.points_for(crowd)
        if by_rounds:
            x: list[Any] = parse.log_spaced(min(rounds) if len(rounds) > 1 else 1, max(rounds), rounds, count)
        else:
            x = parse.evenly_spaced(given, count)
        for key in keys:
            fixed = {other: key, "rounds": x} if by_rounds else {other: x, "rounds": key}
            with show.busy(m):
                answers = getattr(m, question)(**fixed, **how)
            words = [] if crowd is None else [f"{show.crowd_name(crowd)} crowd"]
            if len(keys) > 1:
                words.append(f"δ = {show.plain(key)}" if by_rounds else f"{key:,} rounds")
            lines.append(band(", ".join(words) or m.label, x, answers))
    first = variants[0][1]
    notes = [f"{first.adjacency} adjacency"]
    if len(keys) == 1:
        notes.append(f"δ = {show.plain(keys[0])}" if by_rounds else f"rounds = {keys[0]:,}")
    return draw(
        lines,
        file,
        title=f"{first.label}: {first.settings}\n{', '.join(notes)}",
        xlabel="rounds" if by_rounds else "ε",
        ylabel=f"{SYMBOL[question]} ({'bracket' if how['method'] == 'tight' else 'upper bound'})",
    )


@app.command()
@_clear_errors
def epsilon(
    mechanism: KindArg,
    delta: Delta,
    users: Users = None,
    sample: Sample = None,
    rate: Rate = None,
    bins: Bins = None,
    sigma: Sigma = None,
    rounds: Rounds = "1",
    crowd: CrowdOpt = None,
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    method: MethodOpt = MethodChoice.tight,
    accuracy: Accuracy = 1e-3,
    as_json: Json = False,
    plot: Plot = None,
    against: AgainstOpt = Against.rounds,
) -> None:
    """Epsilon after some rounds.

    Examples:

    shoal epsilon check-in --users 60000 --rate 0.1 --sigma 5 --delta 1e-5 --rounds 1,100,5540

    shoal epsilon shuffle --users 60000 --sigma 9.48 --delta 1/60000 --rounds 1-7 --crowd identical

    shoal epsilon local --sigma 5 --delta 1e-5 --rounds 1-1000@30 --plot local.png

    shoal epsilon shuffle --users 1000 --sigma 3 --delta 1e-6 --crowd identical --plot users.png --against users
    """
    from shoal import _validate
    from shoal.cli import parse

    deltas = [_validate.delta(d) for d in parse.numbers("delta", delta)]
    counts = parse.whole_numbers("rounds", rounds)
    variants = _variants(mechanism, _given(users, sample, rate, bins, sigma), crowd, adjacency)
    how = {"method": method.value, "accuracy": accuracy}
    if against is not Against.rounds:
        if plot is None:
            raise ValueError(f"against {against.value} is about the picture: add --plot FILE")
        if not hasattr(variants[0][1], against.value):
            raise ValueError(f"against must be a parameter of {mechanism.value}, got {against.value}")
    _report("epsilon", variants, deltas, counts, how, as_json, plot, against.value)


@app.command()
@_clear_errors
def delta(
    mechanism: KindArg,
    epsilon: Epsilon,
    users: Users = None,
    sample: Sample = None,
    rate: Rate = None,
    bins: Bins = None,
    sigma: Sigma = None,
    rounds: Rounds = "1",
    crowd: CrowdOpt = None,
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    method: MethodOpt = MethodChoice.tight,
    accuracy: Accuracy = 1e-3,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Delta at a given epsilon.

    Examples:

    shoal delta shuffle --users 60000 --sigma 9.48 --epsilon 0.0005,0.001

    shoal delta check-in --users 60000 --rate 0.1 --sigma 5 --epsilon 0.1 --rounds 5540 --json
    """
    from shoal import _validate
    from shoal.cli import parse

    epsilons = [_validate.epsilon(e) for e in parse.numbers("epsilon", epsilon)]
    counts = parse.whole_numbers("rounds", rounds)
    variants = _variants(mechanism, _given(users, sample, rate, bins, sigma), crowd, adjacency)
    _report("delta", variants, epsilons, counts, {"method": method.value, "accuracy": accuracy}, as_json, plot)


@app.command()
@_clear_errors
def rdp(
    mechanism: KindArg,
    users: Users = None,
    sample: Sample = None,
    rate: Rate = None,
    bins: Bins = None,
    sigma: Sigma = None,
    orders: Annotated[str, typer.Option(metavar="L[,L…]", help="Rényi orders above 1.")] = "2,4,8,16,32,64",
    rounds: Annotated[str, typer.Option(metavar="T", help="Rounds.")] = "1",
    delta: Annotated[
        str | None, typer.Option(metavar="D", help="Also the order that is best for this delta, and its epsilon.")
    ] = None,
    crowd: CrowdOpt = None,
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """The Rényi DP curve, both directions, and the worse of the two.

    Examples:

    shoal rdp shuffle --users 60000 --sigma 9.48 --orders 2,8,32,1000

    shoal rdp check-in --users 60000 --rate 0.1 --sigma 5 --rounds 5540 --delta 1e-5 --plot curve.svg
    """
    from shoal import _validate
    from shoal.cli import parse, show
    from shoal.mechanisms import bounds
    from shoal.plots import Line, draw
    from shoal.rdp import best_order

    values = _validate.orders(parse.numbers("orders", orders))
    count = _validate.rounds(parse.number("rounds", rounds))
    small = None if delta is None else _validate.delta(parse.number("delta", delta))
    rows: list[dict[str, Any]] = []
    best: list[dict[str, Any]] = []
    lines = []
    variants = _variants(mechanism, _given(users, sample, rate, bins, sigma), crowd, adjacency)
    for which, m in variants:
        curves = {d: m.rdp(values, rounds=count, direction=d) for d in ("forward", "reverse", "worse")}
        for i, order in enumerate(values):
            rows.append({"crowd": which, "order": float(order), **{d: float(c[i]) for d, c in curves.items()}})
        if small is not None:
            order = best_order(bounds([(m, count)]).upper, small)
            reached = m.epsilon(delta=small, rounds=count, method="rdp").upper
            best.append({"crowd": which, "delta": small, "order": order, "epsilon": {"lower": 0.0, "upper": reached}})
        if plot is not None:
            last = max([float(values.max()), *(2.0 * b["order"] for b in best)])
            grid = sorted({max(2, round(last ** (i / 60))) for i in range(61)})
            label = m.label if which is None else f"{show.crowd_name(which)} crowd"
            lines.append(Line(label=label, x=grid, upper=m.rdp(grid, rounds=count).tolist()))
            for b in best[-1:]:
                note = f"order {show.plain(b['order'])}: ε ≤ {show.rounded(reached)} at δ = {show.plain(small or 0.0)}"
                lines.append(Line(label=note, x=[b["order"]], upper=m.rdp([b["order"]], rounds=count).tolist()))
    m = variants[0][1]
    title = f"{m.label}: {m.settings}; {m.adjacency} adjacency; {count:,} round{'s' if count > 1 else ''}"
    path = None
    if plot is not None:
        path = draw(
            lines,
            plot,
            title=title.replace(f"; {m.adjacency}", f"\n{m.adjacency}"),
            xlabel="Rényi order",
            ylabel="Rényi DP",
        )
    if as_json:
        fields = {k: v for k, v in m.to_dict().items() if k != "crowd"}
        show.emit_json({"mechanism": fields, "rounds": count, "rows": rows, "best": best, "plot": path and str(path)})
        return
    shown = [
        [
            show.crowd_name(r["crowd"]),
            show.plain(r["order"]),
            *(show.rounded(r[d], digits=7) for d in ("forward", "reverse", "worse")),
        ]
        for r in rows
    ]
    show.table(title, ["crowd", "order", "D(P‖Q)", "D(Q‖P)", "worse"], shown)
    for which, m in variants:
        show.say(f"{show.crowd_name(which).capitalize()}: assuming {m.assumption}; {m.trust}.")
    for b in best:
        show.say(
            f"{show.crowd_name(b['crowd']).capitalize()}: at δ = {show.plain(b['delta'])} the best order is "
            f"{show.plain(b['order'])}: "
            f"ε ≤ {show.rounded(b['epsilon']['upper'])}."
        )
    if path:
        show.say(f"Picture: {path}")


def _calibrated(
    what: str,
    kind: Kind,
    given: dict[str, str | None],
    epsilon: str,
    delta: str,
    rounds: str | None,
    crowd: CrowdChoice | None,
    adjacency: AdjacencyChoice,
    how: dict[str, Any],
    as_json: bool,
) -> None:
    """The three calibrations: look for one field, show the value and the guarantee it gives."""
    from shoal import _validate, calibrate
    from shoal.cli import parse, show

    target = _validate.epsilon(parse.number("epsilon", epsilon))
    small = _validate.delta(parse.number("delta", delta))
    count = 1 if rounds is None else _validate.rounds(parse.number("rounds", rounds))
    # A placeholder for the field that is looked for; every trial replaces it.
    placeholder: dict[str, Any] = {"sigma": 1.0, "users": _validate.USERS_MAX}
    known = {what: placeholder[what]} if what in placeholder else {}
    if what == "users" and "users" not in parse.FIELDS[kind.value]:
        raise ValueError(f"users is not a parameter of {kind.value}")
    if what == "users" and kind is Kind.subsampled and given["sample"] is not None:
        known = {"users": _validate.users("sample", parse.number("sample", given["sample"]))}
    rows: list[dict[str, Any]] = []
    for which, m in _variants(kind, given, crowd, adjacency, **known):
        common: dict[str, Any] = {"epsilon": target, "delta": small, **how}
        try:
            with show.busy(m):
                if what == "sigma":
                    value: float | int = calibrate.sigma(lambda s, m=m: m.replace(sigma=s), rounds=count, **common)  # type: ignore[misc]
                elif what == "users":
                    first = getattr(m, "sample", 1)
                    value = calibrate.users(lambda n, m=m: m.replace(users=n), rounds=count, at_least=first, **common)  # type: ignore[misc]
                else:
                    value = count = calibrate.rounds(m, **common)
        except ValueError as error:
            rows.append({"crowd": which, what: None, "reason": str(error)})
            continue
        found = m if what == "rounds" else m.replace(**{what: value})
        reached = found.epsilon(delta=small, rounds=count, **how)
        text = found.stated("epsilon", small, reached, count, how["method"]).sentence()
        rows.append({"crowd": which, what: value, "epsilon": show.interval(reached), "guarantee": text})
    if all(row[what] is None for row in rows):
        raise ValueError(rows[0]["reason"])
    if as_json:
        show.emit_json({"target": {"epsilon": target, "delta": small}, "rows": rows})
        return
    names = {"sigma": "least σ", "rounds": "most rounds", "users": "fewest users"}
    shown = []
    for row in rows:
        reached_text = show.rounded(row["epsilon"]["upper"]) if row[what] is not None else "–"
        value_text = (
            "not reachable"
            if row[what] is None
            else (show.rounded(row[what], digits=7) if what == "sigma" else f"{row[what]:,}")
        )
        shown.append([show.crowd_name(row["crowd"]), value_text, reached_text])
    show.table(
        f"{kind.value}: target ε = {show.plain(target)}, δ = {show.plain(small)}",
        ["crowd", names[what], "ε reached"],
        shown,
    )
    for row in rows:
        show.say(row.get("guarantee") or f"Crowd {row['crowd']}: {row['reason']}.")


@calibrate_app.command("sigma")
@_clear_errors
def calibrate_sigma(
    mechanism: KindArg,
    epsilon: Epsilon,
    delta: Delta,
    users: Users = None,
    sample: Sample = None,
    rate: Rate = None,
    bins: Bins = None,
    rounds: Annotated[str, typer.Option(metavar="T", help="Rounds.")] = "1",
    crowd: CrowdOpt = None,
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    method: MethodOpt = MethodChoice.tight,
    accuracy: Accuracy = 1e-3,
    as_json: Json = False,
) -> None:
    """The least noise multiplier that meets a target.

    Example:

    shoal calibrate sigma check-in --users 60000 --rate 0.1 --rounds 100 --epsilon 0.05 --delta 1e-5
    """
    given = _given(users, sample, rate, bins, None)
    _calibrated(
        "sigma",
        mechanism,
        given,
        epsilon,
        delta,
        rounds,
        crowd,
        adjacency,
        {"method": method.value, "accuracy": accuracy},
        as_json,
    )


@calibrate_app.command("rounds")
@_clear_errors
def calibrate_rounds(
    mechanism: KindArg,
    epsilon: Epsilon,
    delta: Delta,
    users: Users = None,
    sample: Sample = None,
    rate: Rate = None,
    bins: Bins = None,
    sigma: Sigma = None,
    crowd: CrowdOpt = None,
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    method: MethodOpt = MethodChoice.tight,
    accuracy: Accuracy = 1e-3,
    as_json: Json = False,
) -> None:
    """The largest number of rounds that meets a target.

    Example:

    shoal calibrate rounds check-in --users 60000 --rate 0.1 --sigma 5 --epsilon 0.05 --delta 1e-5
    """
    given = _given(users, sample, rate, bins, sigma)
    _calibrated(
        "rounds",
        mechanism,
        given,
        epsilon,
        delta,
        None,
        crowd,
        adjacency,
        {"method": method.value, "accuracy": accuracy},
        as_json,
    )


@calibrate_app.command("users")
@_clear_errors
def calibrate_users(
    mechanism: KindArg,
    epsilon: Epsilon,
    delta: Delta,
    sample: Sample = None,
    rate: Rate = None,
    sigma: Sigma = None,
    rounds: Annotated[str, typer.Option(metavar="T", help="Rounds.")] = "1",
    crowd: CrowdOpt = None,
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    method: MethodOpt = MethodChoice.tight,
    accuracy: Accuracy = 1e-3,
    as_json: Json = False,
) -> None:
    """The fewest users that meet a target.

    Example:

    shoal calibrate users shuffle --sigma 5 --rounds 100 --epsilon 0.5 --delta 1e-6 --crowd identical
    """
    given = _given(None, sample, rate, None, sigma)
    _calibrated(
        "users",
        mechanism,
        given,
        epsilon,
        delta,
        rounds,
        crowd,
        adjacency,
        {"method": method.value, "accuracy": accuracy},
        as_json,
    )


@app.command()
@_clear_errors
def tradeoff(
    mechanism: KindArg,
    fpr: Annotated[
        str, typer.Option(metavar="F[,F…]", help="False positive rates of the attacker.")
    ] = "0.001,0.01,0.1",
    users: Users = None,
    sample: Sample = None,
    rate: Rate = None,
    bins: Bins = None,
    sigma: Sigma = None,
    rounds: Annotated[str, typer.Option(metavar="T", help="Rounds.")] = "1",
    crowd: CrowdOpt = None,
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    accuracy: Accuracy = 1e-3,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """What an attacker can do: the best true positive rate at a false positive rate.

    Examples:

    shoal tradeoff check-in --users 60000 --rate 0.1 --sigma 5 --rounds 5540

    shoal tradeoff local --sigma 5 --fpr 0.001,0.01 --plot attack.png
    """
    from shoal import _validate
    from shoal.cli import parse, show
    from shoal.plots import Line, band, draw

    rates = [_validate.delta(f, "fpr") for f in parse.numbers("fpr", fpr)]
    count = _validate.rounds(parse.number("rounds", rounds))
    variants = _variants(mechanism, _given(users, sample, rate, bins, sigma), crowd, adjacency)
    rows: list[dict[str, Any]] = []
    lines = []
    for which, m in variants:
        best = m.advantage(rounds=count, accuracy=accuracy)
        for f, power in zip(rates, m.tradeoff(rates, rounds=count, accuracy=accuracy), strict=True):
            rows.append({"crowd": which, "fpr": f, "tpr": show.interval(power), "advantage": show.interval(best)})
        if plot is not None:
            points = min(40, parse.points_for(which))
            x = [10 ** (-6 + 5.85 * i / (points - 1)) for i in range(points)]
            power = m.tradeoff(x, rounds=count, accuracy=0.01)
            label = m.label if which is None else f"{show.crowd_name(which)} crowd"
            lines.append(band(label, x, power))
    m = variants[0][1]
    title = f"{m.label}: {m.settings}; {m.adjacency} adjacency; {count:,} round{'s' if count > 1 else ''}"
    path = None
    if plot is not None:
        guess = [10 ** (-6 + 0.15 * i) for i in range(40)]
        lines.append(Line(label="guessing", x=guess, upper=guess))
        title_lines = title.replace("; zero", "\nzero").replace("; replace", "\nreplace")
        path = draw(lines, plot, title=title_lines, xlabel="false positive rate", ylabel="true positive rate (bracket)")
    if as_json:
        fields = {k: v for k, v in m.to_dict().items() if k != "crowd"}
        show.emit_json({"mechanism": fields, "rounds": count, "rows": rows, "plot": path and str(path)})
        return
    cells = [
        [show.crowd_name(r["crowd"]), show.plain(r["fpr"]), *show.bounds(r["tpr"]), *show.bounds(r["advantage"])]
        for r in rows
    ]
    show.table(title, ["crowd", "FPR", "TPR ≥", "TPR ≤", "advantage ≥", "advantage ≤"], cells)
    show.say("The attacker knows everything but whether the one user moved; advantage is the largest TPR - FPR.")
    for _, variant in variants:
        show.say(f"Assuming {variant.assumption}; {variant.trust}.")
    if path:
        show.say(f"Picture: {path}")


@app.command()
@_clear_errors
def compare(
    mechanism: KindArg,
    delta: Delta,
    users: Users = None,
    sample: Sample = None,
    rate: Rate = None,
    bins: Bins = None,
    sigma: Sigma = None,
    rounds: Annotated[str, typer.Option(metavar="T", help="Rounds.")] = "1",
    adjacency: AdjacencyOpt = AdjacencyChoice.zero_out,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """One setting, every method side by side, with the ratio between them.

    Examples:

    shoal compare shuffle --users 60000 --sigma 9.48 --delta 1/60000 --rounds 7

    shoal compare check-in --users 60000 --rate 0.1 --sigma 5 --delta 1/60000 --rounds 5540 --plot methods.png
    """
    from shoal import _validate
    from shoal.cli import parse, show
    from shoal.paper.compare import compare as compare_methods
    from shoal.plots import Line, draw

    small = _validate.delta(parse.number("delta", delta))
    count = _validate.rounds(parse.number("rounds", rounds))
    m = parse.mechanism(mechanism.value, _given(users, sample, rate, bins, sigma), adjacency.value)
    rows = compare_methods(m, delta=small, rounds=count)
    best = min(row.epsilon for row in rows if row.epsilon is not None)
    ratios = [None if row.epsilon is None or best == 0.0 else row.epsilon / best for row in rows]
    path = None
    if plot is not None:
        x = parse.log_spaced(1, count, [], count=8)
        tables = [compare_methods(m, delta=small, rounds=t) for t in x]
        lines = []
        for i, row in enumerate(rows):
            known = [(t, table[i].epsilon) for t, table in zip(x, tables, strict=True) if table[i].epsilon is not None]
            if known:
                times, values = zip(*known, strict=True)
                lines.append(Line(label=f"{row.method} ({row.crowd} crowd)", x=times, upper=values))
        title = f"{m.label}: {m.settings}\n{m.adjacency} adjacency, δ = {show.plain(small)}"
        path = draw(lines, plot, title=title, xlabel="rounds", ylabel="ε (upper bound)")
    if as_json:
        listed = [
            {"method": r.method, "crowd": r.crowd, "epsilon": r.epsilon, "lower": r.lower, "ratio": q, "note": r.note}
            for r, q in zip(rows, ratios, strict=True)
        ]
        fields = {k: v for k, v in m.to_dict().items() if k != "crowd"}
        payload = {"mechanism": fields, "delta": small, "rounds": count, "rows": listed}
        show.emit_json({**payload, "plot": path and str(path)})
        return
    shown = []
    for row, ratio in zip(rows, ratios, strict=True):
        value = "does not apply" if row.epsilon is None else show.rounded(row.epsilon)
        shown.append([row.method, row.crowd, value, "–" if ratio is None else f"{ratio:,.4g}", row.note])
    how_often = "1 round" if count == 1 else f"{count:,} rounds"
    title = f"{m.label}: {m.settings}; {how_often}, δ = {show.plain(small)}, {m.adjacency} adjacency"
    show.table(title, ["method", "crowd", "ε", "times the least", "note"], shown)
    show.say("Rows with different crowds answer different questions: only 'any' holds whatever the others hold.")
    if path:
        show.say(f"Picture: {path}")


@app.command()
@_clear_errors
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture.")] = Path("out"),
) -> None:
    """The privacy of the paper's three protocols at the paper's parameters, with a picture."""
    from shoal import Shuffle, ShuffledCheckIn, SubsampledShuffle
    from shoal.cli import parse, show
    from shoal.plots import Line, draw

    n, last = 60_000, 5_540
    protocols: list[Mechanism] = [
        Shuffle(users=n, sigma=9.48),
        SubsampledShuffle(users=n, sample=6_000, sigma=5.0),
        ShuffledCheckIn(users=n, rate=0.1, sigma=5.0),
    ]
    cells, lines = [], []
    for m in protocols:
        for crowd in ("identical", "any"):
            asked = m.replace(crowd=crowd)
            shown = (1, 7, last)
            x = parse.log_spaced(1, last, list(shown), 60 if crowd == "identical" else 4)
            upper = {t: answer.upper for t, answer in zip(x, asked.epsilon(delta=1 / n, rounds=x), strict=True)}
            cells.append([m.label, show.crowd_name(crowd), *(show.rounded(upper[t]) for t in shown)])
            lines.append(Line(label=f"{m.label}, {show.crowd_name(crowd)} crowd", x=x, upper=list(upper.values())))
    heads = ["protocol", "crowd", *(f"ε ≤ at T = {t:,}" for t in (1, 7, last))]
    show.table(f"The paper's three protocols after T rounds: δ = 1/{n:,}, zero-out adjacency", heads, cells)
    for m in protocols:
        show.say(f"{m.label}: {m.settings}; {m.trust}")
    show.say(
        "Identical crowd: all other users hold the same vector, as the paper assumes without proof. Any crowd: "
        "nothing is assumed. Method: certified upper bounds, both directions; for the identical crowd within "
        "0.1% of the truth."
    )
    title = f"Privacy of {n:,} users' reports after T rounds\nzero-out adjacency, δ = 1/{n:,}"
    path = draw(lines, out / "epsilon_vs_rounds.png", title=title, xlabel="rounds T", ylabel="ε (upper bound)")
    show.say(f"Picture: {path}")


# Commands in files of their own, which take the options above from here.
from shoal.cli import audit as _audit  # noqa: E402, F401

app.command()(_clear_errors(train))
from shoal.cli import flower as _flower  # noqa: E402, F401
from shoal.cli import reproduce as _reproduce  # noqa: E402, F401

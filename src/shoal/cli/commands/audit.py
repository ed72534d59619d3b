"""The command `shoal audit`, which tries to break the claims of the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal import _validate, audit
from shoal._written import number
from shoal.audit import Finding
from shoal.cli import options as opt
from shoal.cli import parse, screen, view
from shoal.cli.mechanism_options import (
    Description,
    MechanismOffer,
    describes_mechanism,
    offered_types,
)
from shoal.errors import InvalidInput
from shoal.formatting import rounded, short
from shoal.interval import Interval
from shoal.mechanisms import Adjacency, Mechanism
from shoal.plots import draw_rows

GAMES_OF_A_RUN = 200
"""Trainings in each world, unless the user says otherwise."""


@dataclass(frozen=True, kw_only=True)
class AuditTerms:
    """What is under attack, and with which randomness and confidence."""

    delta: float
    rounds: float
    seed: float
    confidence: float
    claim: float | None


@describes_mechanism
def audit_command(
    *,
    delta: Annotated[
        str | None, typer.Option(metavar="D", help="Delta, such as 1e-5 or 1/60000.", show_default=False)
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead attack the training of this run folder, with a planted user."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the run's data is kept. [default: cache]")
    ] = None,
    described: Annotated[Description, MechanismOffer(having="crowd", needed=False)],
    rounds: Annotated[
        str | None,
        typer.Option(metavar="T", help="Number of rounds, all with the same crowd. [default: 1, or the run's]"),
    ] = None,
    adjacency: opt.AdjacencyOption = "zero-out",
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="S[,S…]",
            help="What the other users hold: identical (user 1's first vector), opposite (minus its second), "
            "orthogonal, clusters (half opposite, half with user 1), spread (random in the ball). [default: all]",
        ),
    ] = None,
    dimensions: Annotated[str, typer.Option(metavar="D[,D…]", help="Dimensions of the vectors.")] = "1,2,8",
    trials: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Games that measure each row, in each world. "
            "[default: as many as take about 20 seconds in all; for a run, 200]",
        ),
    ] = None,
    seed: Annotated[str, typer.Option(metavar="K", help="The same seed gives the same games.")] = "0",
    confidence: Annotated[str, typer.Option(metavar="C", help="Confidence of all rows together.")] = "0.999",
    claim: Annotated[
        str | None, typer.Option(metavar="E", help="Check this epsilon instead of the certified one.")
    ] = None,
    as_json: opt.Json = False,
    plot: opt.Plot = None,
) -> None:
    """Attack simulated rounds, and report the epsilon that the attacks prove.

    The attacker knows everything except user 1's vector, and tells two worlds apart by the best test there is, or by a
    trained one. The exit code is 1 if the attacks prove more than is claimed.

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

    Each game on a run trains it again: the fewer users, rounds and games, the sooner it ends.
    """
    numbers: dict[str, Any] = {
        "seed": number("seed", seed),
        "confidence": number("confidence", confidence),
        "claim": None if claim is None else number("claim", claim),
    }
    games = None if trials is None else number("trials", trials)
    count = None if rounds is None else number("rounds", rounds)
    if run is not None:
        _refuse_beside_run({"mechanism": described.label or None, **described.texts, "delta": delta, "shapes": shapes})
        findings, m, terms = _of_run(run, data_dir, count, games, **numbers)
    elif not described.label or delta is None:
        raise InvalidInput(f"{'delta' if described.label else 'mechanism'} must be given, or run: add --run DIR")
    else:
        terms = AuditTerms(delta=number("delta", delta), rounds=1 if count is None else count, **numbers)
        choices: dict[str, Any] = {
            "shapes": None if shapes is None else [shape.strip() for shape in shapes.split(",")],
            "dimensions": parse.numbers("dimensions", dimensions),
            "trials": games,
        }
        findings, m = _of_mechanism(described, adjacency, terms, choices)
    _view(findings, m, terms).show(as_json=as_json, plot=plot)
    _refuse_if_broken(findings, terms)


def _refuse_beside_run(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not None:
            raise InvalidInput(f"{name} cannot be given with run: the run has its own")


def _of_mechanism(
    described: Description, adjacency: Adjacency, terms: AuditTerms, choices: Mapping[str, Any]
) -> tuple[list[Finding], Mechanism]:
    """Play the games against simulated rounds of a mechanism."""
    if not described.cls.crowd_matters:
        labels = ", ".join(offered_types("crowd"))
        raise InvalidInput(f"mechanism must be one of {labels} for an audit, got {described.label}")
    m = described.mechanism(adjacency)
    with screen.progress_bar("certified bounds") as bar:
        progress = bar and (lambda shape, share: bar(f"{shape} crowd", share))
        return audit.audit(m, **vars(terms), **choices, progress=progress), m


def _of_run(
    folder: Path,
    data_dir: Path | None,
    rounds: float | None,
    trials: float | None,
    *,
    seed: float,
    confidence: float,
    claim: float | None,
) -> tuple[list[Finding], Mechanism, AuditTerms]:
    """Play the game against the training of a run folder."""
    # PyTorch is an extra, and simulated rounds do without.
    from shoal import training
    from shoal.training.data import holds_records

    config = training.read_config(folder)
    terms = AuditTerms(
        delta=config.delta,
        rounds=config.rounds if rounds is None else min(_validate.rounds(rounds), config.rounds),
        seed=_validate.integer("seed", seed, minimum=0, maximum=2**63 - 1),
        confidence=confidence,
        claim=None if claim is None else _validate.epsilon(claim, "claim"),
    )
    sys.path.insert(0, "")  # for a model of the user's own
    data = (
        training.read_records(config.data)
        if holds_records(config.data)
        else training.load(config.data, data_dir=data_dir)
    )
    with screen.progress_bar("games") as bar:
        finding = training.audit_run(
            config,
            data,
            trials=GAMES_OF_A_RUN if trials is None else int(trials),
            rounds=int(terms.rounds),
            seed=int(terms.seed),
            confidence=confidence,
            claim=terms.claim,
            progress=bar and (lambda done, total: bar(f"training {done:,} of {total:,}", done / total)),
        )
    return [finding], config.mechanism, terms


def _view(findings: Sequence[Finding], m: Mechanism, terms: AuditTerms) -> view.View:
    """Return the findings as a table, JSON and a picture."""
    rows = [_finding_row(finding) for finding in findings]
    setting = f"{view.rounds_words(int(terms.rounds))}, δ = {short(terms.delta)}, {m.adjacency} adjacency"
    claim_column = [view.ViewColumn(head="claim ε ≤", text=lambda row: rounded(row["claim"]))]
    trials = findings[0].trials
    return view.View(
        title=f"{m.label}: {m.settings}; {setting}",
        columns=[
            view.text_column("others", "crowd"),
            view.ViewColumn(head="d", text=lambda row: ", ".join(map(str, row["dimensions"]))),
            view.text_column("test", "test"),
            view.ViewColumn(head="attack ε ≥", text=lambda row: rounded(row["epsilon"]["lower"], "down")),
            *(claim_column if terms.claim is not None else []),
            view.ViewColumn(head="any crowd ε ≤", text=lambda row: _upper(row["any_crowd"])),
            view.ViewColumn(head="identical ε ≤", text=lambda row: _upper(row["identical_crowd"])),
            view.ViewColumn(head="claim", text=lambda row: "stands" if row["stands"] else "BROKEN"),
        ],
        rows=rows,
        sentences=[
            f"Each row comes from {trials:,} games in each world; the test was chosen on other games. The lower "
            f"bounds hold together with confidence {terms.confidence} (Clopper–Pearson, Bonferroni over "
            f"{2 * len(findings)} rates; seed {terms.seed}). An attack can refute a claim, not prove it."
        ],
        payload={
            "mechanism": view.without_crowd(m),
            **vars(terms),
            "trials": trials,
            "rows": rows,
            "stands": all(finding.stands for finding in findings),
        },
        draw=partial(_draw_findings, findings, m, terms),
    )


def _finding_row(finding: Finding) -> dict[str, Any]:
    def bounds(interval: Interval | None) -> dict[str, float] | None:
        return None if interval is None else view.ends(interval)

    return {
        "crowd": finding.shape,
        "dimensions": list(finding.dimensions),
        "test": finding.test,
        "direction": finding.direction,
        "hits": finding.hits,
        "alarms": finding.alarms,
        "epsilon": {"lower": finding.epsilon},
        "any_crowd": bounds(finding.any_crowd),
        "identical_crowd": bounds(finding.identical_crowd),
        "claim": finding.limit,
        "stands": finding.stands,
    }


def _upper(bounds: Mapping[str, float] | None) -> str:
    return "–" if bounds is None else rounded(bounds["upper"])


def _refuse_if_broken(findings: Sequence[Finding], terms: AuditTerms) -> None:
    """End with exit code 1 if a finding contradicts its claim: a program that runs audits must notice."""
    broken = [finding for finding in findings if not finding.stands]
    if broken:
        worst = max(broken, key=lambda finding: finding.epsilon - finding.limit)
        print(
            f"shoal: the claim is contradicted: against the {worst.shape} crowd epsilon is at least "
            f"{rounded(worst.epsilon, 'down')} (confidence {terms.confidence}), but the claim is at most "
            f"{rounded(worst.limit)}",
            file=sys.stderr,
        )
        raise typer.Exit(code=1)


def _draw_findings(findings: Sequence[Finding], m: Mechanism, terms: AuditTerms, file: Path) -> Path:
    """What the attacks prove beside what is certified, a row for each crowd."""
    labels = [f"{finding.shape}, d = {', '.join(map(str, finding.dimensions))}" for finding in findings]
    series: dict[str, list[float | None]] = {"attack: ε ≥": [finding.epsilon for finding in findings]}
    if terms.claim is not None:
        series["claim: ε ≤"] = [finding.limit for finding in findings]
    for name, intervals in (
        ("any crowd", [finding.any_crowd for finding in findings]),
        ("identical crowd", [finding.identical_crowd for finding in findings]),
    ):
        series[f"{name}: ε ≤"] = [None if interval is None else interval.upper for interval in intervals]
    drawn = {name: values for name, values in series.items() if any(value is not None for value in values)}
    setting = f"{m.adjacency} adjacency, δ = {short(terms.delta)}, {view.rounds_words(int(terms.rounds))}"
    title = f"Audit of {m.label}: {m.settings}\n{setting}, confidence {terms.confidence}"
    return draw_rows(labels, drawn, file, title=title, xlabel="ε")

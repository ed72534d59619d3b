"""Figure 1a: epsilon against rounds with and without shuffling."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.audit import Progress
from shoal.interval import Interval
from shoal.literature.tables import PRINTED_TABLE1, SIGMA, USERS, figure1a
from shoal.mechanisms import Shuffle
from shoal.plots import Line, band
from shoal.reproduction import parts
from shoal.reproduction.parts import DELTA, Check, Column, Part, Picture, Steps, least, most

FAR = (1, 10, 100, 1_000, 10_000)
"""Rounds at which any crowd is computed."""


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """Everything that is computed."""

    rounds: tuple[int, ...]
    shuffled: tuple[float, ...]
    unshuffled: tuple[float, ...]
    rdp: tuple[float, ...]
    tight: list[Interval]
    safe: dict[int, Interval]
    """Any crowd, by rounds: some of them only."""


def reproduce_figure1a(progress: Progress | None = None) -> Part:
    """Figure 1a: epsilon against rounds with and without shuffling."""
    found = _compute(progress)
    return Part(
        name="figure1a",
        title="Figure 1a: ε against rounds, with and without shuffling",
        setting=f"{USERS:,} users, σ = {SIGMA}, δ = 1/n, 1 to {found.rounds[-1]:,} rounds.",
        columns=_columns(found),
        picture=_picture(found),
        checks=_checks(found),
        differences=_differences(found),
        notes=(f"Any crowd is computed at {len(FAR)} numbers of rounds; the band is its certified bracket.",),
    )


def _compute(progress: Progress | None) -> _Numbers:
    tell = Steps(progress, "Figure 1a", len(FAR) + 2)
    tell("the paper's two curves")
    paper = figure1a()
    rounds = tuple(int(t) for t in paper.rounds)
    tell("identical crowd")
    ideal = Shuffle(users=USERS, sigma=SIGMA, crowd="identical")
    return _Numbers(
        rounds=rounds,
        shuffled=parts.floats(paper.shuffled),
        unshuffled=parts.floats(paper.unshuffled),
        rdp=parts.rdp(ideal, DELTA, rounds),
        tight=list(ideal.epsilon(delta=DELTA, rounds=list(rounds))),
        safe=dict(zip(FAR, parts.brackets(ideal.replace(crowd="any"), DELTA, FAR, tell), strict=True)),
    )


def _checks(found: _Numbers) -> tuple[Check, ...]:
    start = f"{PRINTED_TABLE1['rdp'][0]:.5f}"
    return (
        Check(
            statement="the curve with shuffling starts where Table 1 does",
            printed=start,
            found=f"{found.shuffled[0]:.5f}",
            agrees=f"{found.shuffled[0]:.5f}" == start,
        ),
        Check(
            statement="“significant amplification”: the curve with shuffling lies below the one without, everywhere",
            printed="below",
            found=f"{found.shuffled[-1]:.4g} against {found.unshuffled[-1]:.4g} at {found.rounds[-1]:,} rounds",
            agrees=all(a < b for a, b in zip(found.shuffled, found.unshuffled, strict=True)),
        ),
        parts.not_without_loss(found.tight[0], found.safe[1]),
    )


def _differences(found: _Numbers) -> tuple[str, ...]:
    last = found.safe[FAR[-1]]
    return (
        "The paper prints this figure without a table, so the recomputed curves can be compared with its text and "
        "with Table 1 only.",
        "The flat part of the paper's curve is the limit of its orders, 30, not a property of the mechanism: the "
        "exact curves keep falling as rounds become fewer.",
        f"At {FAR[-1]:,} rounds the paper's method gives {found.shuffled[-1]:.4g} for the identical crowd; exact "
        f"Rényi DP gives {found.rdp[-1]:.4g}, the bracket at most {most(found.tight[-1])}. Whatever the others hold, "
        f"ε is at most {most(last)} and, for some crowd, at least {least(last)}.",
    )


def _columns(found: _Numbers) -> tuple[Column, ...]:
    return (
        Column(key="rounds", head="rounds", short="rounds", values=found.rounds),
        Column(
            key="no_shuffling_paper",
            head="no shuffling (paper)",
            short="no shuffling (paper)",
            values=found.unshuffled,
            side="up",
        ),
        Column(
            key="shuffling_paper",
            head="shuffling (paper)",
            short="shuffling (paper)",
            values=found.shuffled,
            side="up",
        ),
        *parts.exact_columns(found.rdp, found.tight, [found.safe.get(t) for t in found.rounds]),
    )


def _picture(found: _Numbers) -> Picture:
    x = found.rounds
    return Picture(
        lines=(
            band("tight (identical crowd)", x, found.tight),
            band("tight (any crowd)", FAR, list(found.safe.values()), marks=True),
            Line(label="exact Rényi DP (identical crowd)", x=x, upper=found.rdp),
            Line(label="paper, orders ≤ 30 (identical crowd)", x=x, upper=found.shuffled),
            Line(label="paper, no shuffling (any crowd)", x=x, upper=found.unshuffled),
        ),
        title=f"Figure 1a: shuffle of {USERS:,} users, σ = {SIGMA}\nzero-out adjacency, δ = 1/{USERS:,}",
        xlabel="rounds",
        ylabel="ε",
    )

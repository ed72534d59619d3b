"""The frontier: what privacy costs in accuracy, at chosen epsilons."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.audit import Progress
from shoal.errors import InvalidInput
from shoal.interval import Interval
from shoal.literature.checkin import theorem3
from shoal.literature.tables import ORDERS
from shoal.mechanisms import Mechanism, from_dict
from shoal.plots import Line
from shoal.reproduction import parts
from shoal.reproduction.figure1b import ACCURACY_OF_THE_PAPER, converted
from shoal.reproduction.parts import Check, Column, Part, Picture, Steps, most
from shoal.reproduction.runs import PACKAGED_RUN, TrainingRun, read_run

FRONTIER = Path(__file__).parent / "frontier.json"
"""The runs of the frontier: their settings and test accuracy, written by tools/frontier.py."""


@dataclass(frozen=True, kw_only=True)
class _Trainings:
    """All trainings for one chosen epsilon: one mechanism, several seeds."""

    claim: float
    mechanism: Mechanism
    rounds: int
    accuracies: list[float]
    trusted: list[float]
    """With a trusted server that adds the noise."""

    @property
    def mean(self) -> float:
        return math.fsum(self.accuracies) / len(self.accuracies)

    @property
    def trusted_mean(self) -> float | None:
        return math.fsum(self.trusted) / len(self.trusted) if self.trusted else None


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """Everything that is read and computed."""

    trainings: list[_Trainings]
    delta: float
    without: float
    """Accuracy without privacy, in percent."""
    safe: list[Interval]
    ideal: list[Interval]
    paper_run: TrainingRun
    paper_exact: Interval
    paper_claim: float
    """The epsilon of the paper's run by its own accounting."""

    @property
    def claims(self) -> tuple[float, ...]:
        return tuple(t.claim for t in self.trainings)

    @property
    def users(self) -> int:
        return int(self.trainings[0].mechanism.users)  # type: ignore[attr-defined]

    @property
    def paper_accuracy(self) -> float:
        """In percent."""
        return 100.0 * self.paper_run.accuracy[-1]


def reproduce_frontier(progress: Progress | None = None) -> Part:
    """What privacy costs in accuracy: trainings at chosen epsilons, beside a trusted server's and none."""
    found = _compute(json.loads(FRONTIER.read_text()), progress)
    count = min(len(t.accuracies) for t in found.trainings)
    return Part(
        name="frontier",
        title="Frontier: accuracy on MNIST's test images at a chosen ε",
        setting=f"{found.users:,} users with one image each, all report in each round; δ = "
        f"{parts.fraction(found.delta, found.users)}, any crowd; a linear model on fixed features; mean over {count} "
        f"seed{'s' * (count > 1)} or more.",
        columns=_columns(found),
        picture=_picture(found),
        checks=_checks(found),
        differences=_differences(found),
        notes=(
            "Bands reach from the least seed to the largest. Trainings are seeded, to be repeated; ε is that of the "
            "same runs unseeded. The trusted server's ε is exact for Poisson sampling.",
        ),
    )


def _compute(kept: dict[str, Any], progress: Progress | None) -> _Numbers:
    claims = sorted({float(r["epsilon"]) for r in kept["shuffle"]})
    tell = Steps(progress, "Frontier", len(claims) + 3)
    trainings = [_trainings(kept, e) for e in claims]
    delta = float(kept["shuffle"][0]["delta"])
    safe, ideal = [], []
    for t in trainings:
        tell(f"ε = {t.claim:g}")
        safe.append(parts.tight(t.mechanism, delta, t.rounds))
        ideal.append(parts.tight(t.mechanism.replace(crowd="identical"), delta, t.rounds))
    tell("the paper's run")
    run = read_run(PACKAGED_RUN)
    m, last = run.mechanism, run.rounds[-1]
    return _Numbers(
        trainings=trainings,
        delta=delta,
        without=100.0 * kept["plain"]["accuracy"],
        safe=safe,
        ideal=ideal,
        paper_run=run,
        # The same run twice: by the paper's own accounting, and by ours for any crowd.
        paper_exact=parts.tight(m.replace(crowd="any"), delta, last),
        paper_claim=converted(m, m.scale, theorem3, ORDERS, delta, [last])[0],
    )


def _trainings(kept: dict[str, Any], epsilon: float) -> _Trainings:
    # Seeds differ, nothing else may: their mean would be one of different things.
    runs = [r for r in kept["shuffle"] if r["epsilon"] == epsilon]
    if any(r["mechanism"] != runs[0]["mechanism"] for r in runs):
        raise InvalidInput("runs of one epsilon must have one mechanism")
    return _Trainings(
        claim=epsilon,
        mechanism=from_dict(runs[0]["mechanism"]),
        rounds=int(runs[0]["rounds"]),
        accuracies=[r["accuracy"] for r in runs],
        trusted=[r["accuracy"] for r in kept["opacus"] if r["epsilon"] == epsilon],
    )


def _checks(found: _Numbers) -> tuple[Check, ...]:
    return tuple(
        Check(
            statement=f"the run for ε = {e:g} (any crowd) keeps to it",
            printed=f"{e:g}",
            found=most(b),
            agrees=b.upper <= e,
        )
        for e, b in zip(found.claims, found.safe, strict=True)
    )


def _differences(found: _Numbers) -> tuple[str, ...]:
    run, first, last = found.paper_run, found.trainings[0], found.trainings[-1]
    return (
        f"The paper reports {ACCURACY_OF_THE_PAPER:.0%} at best. With its parameters, σ = {run.mechanism.sigma:g} and "
        f"{run.rounds[-1]:,} rounds, the run kept here ends at {found.paper_accuracy:.1f}%; by the paper's own "
        f"accounting (Theorem 3, identical crowd) that costs ε = {found.paper_claim:.3g}, in truth at most "
        f"{most(found.paper_exact)} for any crowd.",
        f"At ε = {first.claim:g} the linear model on fixed features has {first.mean:.1%}, at ε = {last.claim:g} it "
        f"has {last.mean:.1%}; without privacy {found.without:.1f}%.",
    )


def _columns(found: _Numbers) -> tuple[Column, ...]:
    every = found.trainings
    sigmas = tuple(float(f"{t.mechanism.sigma:.5g}") for t in every)
    seen = tuple(t.accuracies for t in every)
    return (
        Column(key="epsilon", head="ε chosen", short="ε chosen", values=found.claims),
        Column(key="accuracy", head="accuracy, mean", short="acc.", values=tuple(t.mean for t in every)),
        Column(key="accuracy_least", head="least of the seeds", short="least", values=tuple(map(min, seen))),
        Column(key="accuracy_most", head="largest", short="most", values=tuple(map(max, seen))),
        Column(key="seeds", head="seeds", short="", values=tuple(map(len, seen))),
        Column(key="sigma", head="σ", short="σ", values=sigmas),
        Column(key="rounds", head="rounds", short="rounds", values=tuple(t.rounds for t in every)),
        Column(
            key="accuracy_opacus",
            head="trusted server (Opacus), mean",
            short="trusted",
            values=tuple(t.trusted_mean for t in every),
        ),
        *parts.exact_columns(None, found.ideal, found.safe),
    )


def _picture(found: _Numbers) -> Picture:
    known = [t for t in found.trainings if t.trusted_mean is not None]
    paper = (found.paper_accuracy,)
    delta = parts.fraction(found.delta, found.users)
    return Picture(
        lines=(
            Line(
                label="shuffled, any crowd",
                x=found.claims,
                upper=[100.0 * t.mean for t in found.trainings],
                lower=[100.0 * min(t.accuracies) for t in found.trainings],
                top=[100.0 * max(t.accuracies) for t in found.trainings],
                marks=True,
            ),
            Line(
                label="trusted server (Opacus)",
                x=[t.claim for t in known],
                upper=[100.0 * (t.trusted_mean or 0.0) for t in known],
                lower=[100.0 * min(t.trusted) for t in known],
                top=[100.0 * max(t.trusted) for t in known],
                marks=True,
            ),
            Line(label="no privacy", x=(found.claims[0], found.paper_claim), upper=(found.without, found.without)),
            Line(label="paper's run, its ε", x=(found.paper_claim,), upper=paper, marks=True),
            Line(label="paper's run, exact ε", x=(found.paper_exact.upper,), upper=paper, marks=True),
        ),
        title=f"MNIST, {found.users:,} users: accuracy at a chosen ε\nzero-out adjacency, δ = {delta}",
        xlabel="ε",
        ylabel="accuracy on test images, %",
        logarithmic="x",
    )

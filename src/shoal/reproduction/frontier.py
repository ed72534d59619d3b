"""The frontier: what privacy costs in accuracy, at chosen epsilons."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import DataError
from shoal.interval import Interval
from shoal.literature.checkin import theorem3
from shoal.literature.tables import ORDERS
from shoal.mechanisms import Shuffle, from_dict
from shoal.plots import Line
from shoal.progress import Progress
from shoal.reproduction import parts
from shoal.reproduction.figure1b import ACCURACY_OF_THE_PAPER, converted_epsilons
from shoal.reproduction.parts import Check, Column, Part, Picture, Steps, upper_text
from shoal.reproduction.runs import PACKAGED_RUN, TrainingRun, read_run

FRONTIER = Path(__file__).parent / "frontier.json"
"""The runs of the frontier: their settings and test accuracy, written by tools/frontier.py."""


def reproduce_frontier(progress: Progress | None = None) -> Part:
    """Show what privacy costs in accuracy: trainings at chosen epsilons, and two without shuffling."""
    return _computed_frontier(json.loads(FRONTIER.read_text()), progress).part()


@dataclass(frozen=True, kw_only=True)
class _Trainings:
    """All trainings for one chosen epsilon: one mechanism, several seeds."""

    target: float
    mechanism: Shuffle
    rounds: int
    accuracies: list[float]
    trusted: list[float]
    """Accuracies with a trusted server that adds the noise."""

    @property
    def mean(self) -> float:
        """The mean accuracy."""
        return math.fsum(self.accuracies) / len(self.accuracies)

    @property
    def trusted_mean(self) -> float | None:
        """The mean accuracy with a trusted server, where it was trained."""
        return math.fsum(self.trusted) / len(self.trusted) if self.trusted else None


@dataclass(frozen=True, kw_only=True)
class _Frontier:
    """All numbers, read and computed, and what is shown of them."""

    trainings: list[_Trainings]
    delta: float
    without_privacy: float
    """Accuracy without privacy, in percent."""
    any_crowd: list[Interval]
    identical: list[Interval]
    paper_run: TrainingRun
    paper_exact: Interval
    paper_claim: float
    """The epsilon of the paper's run by its own accounting."""

    @property
    def targets(self) -> tuple[float, ...]:
        return tuple(t.target for t in self.trainings)

    @property
    def users(self) -> int:
        return self.trainings[0].mechanism.users

    @property
    def paper_accuracy(self) -> float:
        """The final accuracy of the paper's run, in percent."""
        return 100.0 * self.paper_run.accuracy[-1]

    def part(self) -> Part:
        count = min(len(t.accuracies) for t in self.trainings)
        return Part(
            name="frontier",
            title="Frontier: accuracy on MNIST's test images at a chosen ε",
            setting=f"{self.users:,} users with one image each, all of whom report in each round; δ = "
            f"{parts.fraction(self.delta, self.users)}, any crowd; a linear model on fixed features; mean over {count} "
            f"seed{'s' * (count > 1)} or more.",
            columns=self.columns(),
            picture=self.picture(),
            checks=self.checks(),
            differences=self.differences(),
            notes=(
                "Bands reach from the lowest accuracy of a seed to the highest. Trainings are seeded so that they can "
                "be repeated; ε is that of the same runs without a fixed seed. The trusted server's ε is exact for "
                "Poisson sampling.",
            ),
        )

    def columns(self) -> tuple[Column, ...]:
        trainings = self.trainings
        sigmas = tuple(float(f"{t.mechanism.sigma:.5g}") for t in trainings)
        seeds = tuple(t.accuracies for t in trainings)
        return (
            Column(key="epsilon", head="ε chosen", short="ε chosen", values=self.targets),
            Column(key="accuracy", head="accuracy, mean", short="acc.", values=tuple(t.mean for t in trainings)),
            Column(key="accuracy_least", head="lowest of the seeds", short="lowest", values=tuple(map(min, seeds))),
            Column(key="accuracy_most", head="highest", short="highest", values=tuple(map(max, seeds))),
            Column(key="seeds", head="seeds", short="", values=tuple(map(len, seeds))),
            Column(key="sigma", head="σ", short="σ", values=sigmas),
            Column(key="rounds", head="rounds", short="rounds", values=tuple(t.rounds for t in trainings)),
            Column(
                key="accuracy_opacus",
                head="trusted server (Opacus), mean",
                short="trusted",
                values=tuple(t.trusted_mean for t in trainings),
            ),
            *parts.exact_columns(None, self.identical, self.any_crowd),
        )

    def picture(self) -> Picture:
        trusted = [t for t in self.trainings if t.trusted_mean is not None]
        paper = (self.paper_accuracy,)
        delta = parts.fraction(self.delta, self.users)
        return Picture(
            lines=(
                Line(
                    label="shuffled, any crowd",
                    x=self.targets,
                    upper=[100.0 * t.mean for t in self.trainings],
                    lower=[100.0 * min(t.accuracies) for t in self.trainings],
                    top=[100.0 * max(t.accuracies) for t in self.trainings],
                    marks=True,
                ),
                Line(
                    label="trusted server (Opacus)",
                    x=[t.target for t in trusted],
                    upper=[100.0 * (t.trusted_mean or 0.0) for t in trusted],
                    lower=[100.0 * min(t.trusted) for t in trusted],
                    top=[100.0 * max(t.trusted) for t in trusted],
                    marks=True,
                ),
                Line(
                    label="no privacy",
                    x=(self.targets[0], self.paper_claim),
                    upper=(self.without_privacy, self.without_privacy),
                ),
                Line(label="paper's run, its ε", x=(self.paper_claim,), upper=paper, marks=True),
                Line(label="paper's run, exact ε", x=(self.paper_exact.upper,), upper=paper, marks=True),
            ),
            title=f"MNIST, {self.users:,} users: accuracy at a chosen ε\nzero-out adjacency, δ = {delta}",
            xlabel="ε",
            ylabel="accuracy on test images, %",
            logarithmic="x",
        )

    def checks(self) -> tuple[Check, ...]:
        return tuple(
            Check(
                statement=f"the run for ε = {target:g} (any crowd) stays within it",
                printed=f"{target:g}",
                recomputed=upper_text(epsilon),
                agrees=epsilon.upper <= target,
            )
            for target, epsilon in zip(self.targets, self.any_crowd, strict=True)
        )

    def differences(self) -> tuple[str, ...]:
        run, first, last = self.paper_run, self.trainings[0], self.trainings[-1]
        return (
            f"The paper reports {ACCURACY_OF_THE_PAPER:.0%} at best. With its parameters, σ = {run.mechanism.sigma:g} "
            f"and {run.rounds[-1]:,} rounds, the packaged run ends at {self.paper_accuracy:.1f}%; by the paper's own "
            f"accounting (Theorem 3, identical crowd) that costs ε = {self.paper_claim:.3g}, in truth at most "
            f"{upper_text(self.paper_exact)} for any crowd.",
            f"At ε = {first.target:g} the linear model on fixed features reaches {first.mean:.1%}, at "
            f"ε = {last.target:g} it reaches {last.mean:.1%}; without privacy {self.without_privacy:.1f}%.",
        )


def _computed_frontier(data: dict[str, Any], progress: Progress | None) -> _Frontier:
    targets = sorted({float(r["epsilon"]) for r in data["shuffle"]})
    announce = Steps(progress, "Frontier", len(targets) + 3)
    trainings = [_trainings_of(data, e) for e in targets]
    delta = float(data["shuffle"][0]["delta"])
    any_crowd, identical = [], []
    for t in trainings:
        announce(f"ε = {t.target:g}")
        any_crowd.append(parts.certified_epsilon(t.mechanism, delta, t.rounds))
        identical.append(parts.certified_epsilon(t.mechanism.replace(crowd="identical"), delta, t.rounds))
    announce("the paper's run")
    run = read_run(PACKAGED_RUN)
    m, last = run.mechanism, run.rounds[-1]
    return _Frontier(
        trainings=trainings,
        delta=delta,
        without_privacy=100.0 * data["plain"]["accuracy"],
        any_crowd=any_crowd,
        identical=identical,
        paper_run=run,
        # One run, twice: by the paper's own accounting, and by ours for any crowd.
        paper_exact=parts.certified_epsilon(m.replace(crowd="any"), delta, last),
        paper_claim=converted_epsilons(m, m.scale, theorem3, ORDERS, delta, [last])[0],
    )


def _trainings_of(data: dict[str, Any], epsilon: float) -> _Trainings:
    # Only seeds may differ: a mean over different mechanisms would mean nothing.
    runs = [r for r in data["shuffle"] if r["epsilon"] == epsilon]
    mechanism = from_dict(runs[0]["mechanism"])
    if not isinstance(mechanism, Shuffle) or any(r["mechanism"] != runs[0]["mechanism"] for r in runs):
        raise DataError(f"runs for epsilon {epsilon:g} must share one shuffle mechanism")
    return _Trainings(
        target=epsilon,
        mechanism=mechanism,
        rounds=int(runs[0]["rounds"]),
        accuracies=[r["accuracy"] for r in runs],
        trusted=[r["accuracy"] for r in data["opacus"] if r["epsilon"] == epsilon],
    )

"""Figure 1a: epsilon against rounds, with and without shuffling."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.interval import Interval
from shoal.literature.tables import PRINTED_TABLE1, SIGMA, USERS, figure1a
from shoal.mechanisms import Shuffle
from shoal.plots import Line, band
from shoal.progress import Progress
from shoal.reproduction import parts
from shoal.reproduction.parts import PAPER_DELTA, Check, Column, Part, Picture, Steps, lower_text, upper_text

_ANY_CROWD_ROUNDS = (1, 10, 100, 1_000, 10_000)
"""The numbers of rounds at which any crowd is computed."""


def reproduce_figure1a(progress: Progress | None = None) -> Part:
    """Recompute Figure 1a: epsilon against rounds with and without shuffling."""
    return _computed_figure1a(progress).part()


@dataclass(frozen=True, kw_only=True)
class _Figure1a:
    """All computed numbers, and what is shown of them."""

    rounds: tuple[int, ...]
    shuffled: tuple[float, ...]
    unshuffled: tuple[float, ...]
    rdp: tuple[float, ...]
    identical: list[Interval]
    any_crowd: dict[int, Interval]
    """Epsilon for any crowd, by some of the numbers of rounds."""

    def part(self) -> Part:
        return Part(
            name="figure1a",
            title="Figure 1a: ε against rounds, with and without shuffling",
            setting=f"{USERS:,} users, σ = {SIGMA}, δ = 1/n, 1 to {self.rounds[-1]:,} rounds.",
            columns=self.columns(),
            picture=self.picture(),
            checks=self.checks(),
            differences=self.differences(),
            notes=(
                f"Any crowd is computed at {len(_ANY_CROWD_ROUNDS)} numbers of rounds; the band is its certified "
                "interval.",
            ),
        )

    def columns(self) -> tuple[Column, ...]:
        return (
            Column(key="rounds", head="rounds", short="rounds", values=self.rounds),
            Column(
                key="no_shuffling_paper",
                head="no shuffling (paper)",
                short="no shuffling (paper)",
                values=self.unshuffled,
                side="up",
            ),
            Column(
                key="shuffling_paper",
                head="shuffling (paper)",
                short="shuffling (paper)",
                values=self.shuffled,
                side="up",
            ),
            *parts.exact_columns(self.rdp, self.identical, [self.any_crowd.get(t) for t in self.rounds]),
        )

    def picture(self) -> Picture:
        x = self.rounds
        return Picture(
            lines=(
                band("tight (identical crowd)", x, self.identical),
                band("tight (any crowd)", _ANY_CROWD_ROUNDS, list(self.any_crowd.values()), marks=True),
                Line(label="exact Rényi DP (identical crowd)", x=x, upper=self.rdp),
                Line(label="paper, orders ≤ 30 (identical crowd)", x=x, upper=self.shuffled),
                Line(label="paper, no shuffling (any crowd)", x=x, upper=self.unshuffled),
            ),
            title=f"Figure 1a: shuffle of {USERS:,} users, σ = {SIGMA}\nzero-out adjacency, δ = 1/{USERS:,}",
            xlabel="rounds",
            ylabel="ε",
        )

    def checks(self) -> tuple[Check, ...]:
        start = f"{PRINTED_TABLE1['rdp'][0]:.5f}"
        return (
            Check(
                statement="the curve with shuffling starts where Table 1 does",
                printed=start,
                recomputed=f"{self.shuffled[0]:.5f}",
                agrees=f"{self.shuffled[0]:.5f}" == start,
            ),
            Check(
                statement="“significant amplification”: the curve with shuffling lies everywhere below the one without",
                printed="below",
                recomputed=f"{self.shuffled[-1]:.4g} against {self.unshuffled[-1]:.4g} at {self.rounds[-1]:,} rounds",
                agrees=all(a < b for a, b in zip(self.shuffled, self.unshuffled, strict=True)),
            ),
            parts.not_without_loss(self.identical[0], self.any_crowd[1]),
        )

    def differences(self) -> tuple[str, ...]:
        rounds = _ANY_CROWD_ROUNDS[-1]
        last = self.any_crowd[rounds]
        return (
            "The paper prints this figure without a table, so the recomputed curves can be compared only with its text "
            "and with Table 1.",
            "The flat part of the paper's curve comes from its largest order, 30, not from the mechanism: the exact "
            "curves keep falling as the number of rounds falls.",
            f"At {rounds:,} rounds the paper's method gives {self.shuffled[-1]:.4g} for the identical crowd; exact "
            f"Rényi DP gives {self.rdp[-1]:.4g}, the certified interval at most {upper_text(self.identical[-1])}. "
            f"Whatever the others hold, ε is at most {upper_text(last)} and, for some crowd, at least "
            f"{lower_text(last)}.",
        )


def _computed_figure1a(progress: Progress | None) -> _Figure1a:
    announce = Steps(progress, "Figure 1a", len(_ANY_CROWD_ROUNDS) + 2)
    announce("the paper's two curves")
    paper = figure1a()
    rounds = tuple(int(t) for t in paper.rounds)
    announce("identical crowd")
    identical = Shuffle(users=USERS, sigma=SIGMA, crowd="identical")
    any_crowd = parts.certified_epsilons(identical.replace(crowd="any"), PAPER_DELTA, _ANY_CROWD_ROUNDS, announce)
    return _Figure1a(
        rounds=rounds,
        shuffled=parts.floats(paper.shuffled),
        unshuffled=parts.floats(paper.unshuffled),
        rdp=parts.rdp_epsilons(identical, PAPER_DELTA, rounds),
        identical=list(identical.epsilon(delta=PAPER_DELTA, rounds=list(rounds))),
        any_crowd=dict(zip(_ANY_CROWD_ROUNDS, any_crowd, strict=True)),
    )

"""The options that commands share. Those that describe a mechanism are in `mechanism_options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal import plots
from shoal.cli import errors
from shoal.mechanisms import Adjacency, Crowd
from shoal.query import Method

CrowdChoice = Literal[Crowd, "both"]


def _checked_plot(value: Path | None) -> Path | None:
    """Refuse a picture that cannot be drawn before anything is computed."""
    if value is not None:
        with errors.refusals():
            plots.check(value)
    return value


Delta = Annotated[str, typer.Option(metavar="D", help="Delta, such as 1e-5 or 1/60000.", show_default=False)]
DeltaList = Annotated[
    str, typer.Option(metavar="D[,D…]", help="One or more deltas, such as 1e-5 or 1e-5,1/60000.", show_default=False)
]
EpsilonList = Annotated[str, typer.Option(metavar="E[,E…]", help="One or more epsilons.", show_default=False)]
TargetEpsilon = Annotated[str | None, typer.Option(metavar="E", help="The epsilon to meet, at delta.")]
TargetDelta = Annotated[str | None, typer.Option(metavar="D", help="Its delta, such as 1e-5 or 1/60000.")]
TargetTpr = Annotated[
    str | None, typer.Option(metavar="P", help="Instead of epsilon: the largest true positive rate of attacks.")
]
TargetFpr = Annotated[str | None, typer.Option(metavar="F", help="The false positive rate at which --tpr holds.")]
TargetAdvantage = Annotated[
    str | None, typer.Option(metavar="A", help="Instead of epsilon: the largest TPR - FPR of attacks.")
]
RoundsList = Annotated[
    str,
    typer.Option(
        metavar="T[,T…]",
        help="Numbers of rounds: a list 1,100,5540, a range 1-7, steps 100-1000:100, or 50 values 1-5540@50.",
    ),
]
RoundsOption = Annotated[str, typer.Option(metavar="T", help="Number of rounds.")]
CrowdOption = Annotated[
    CrowdChoice | None,
    typer.Option(
        help="What the other users hold: anything, one vector (an assumption), or both answers. [default: both]"
    ),
]
AdjacencyOption = Annotated[
    Adjacency, typer.Option(help="What may change: one user's vector becomes zero, or any other vector.")
]
MethodOption = Annotated[
    Method, typer.Option(help="A certified interval around the truth, or an upper bound through Rényi DP.")
]
Accuracy = Annotated[
    float, typer.Option(metavar="A", help="Relative width that the interval should have (method tight).")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE", callback=_checked_plot, help="Also draw a picture (.png, .svg or .pdf).")
]

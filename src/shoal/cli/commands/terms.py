"""What the commands for Flower share: the options for the terms of a task, and settings from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.deployment.analyst import Settings
    from shoal.deployment.task import Task

EPOCHS = 100
"""Keys that an analyst makes, if its rounds are not fewer."""

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The analyst's folder.", show_default=False)]
Sigma = Annotated[float, typer.Option(metavar="X", help="Noise multiplier: standard deviation / clipping norm.")]
Rate = Annotated[float, typer.Option(metavar="P", help="Probability of checking in.")]
Clip = Annotated[float, typer.Option(metavar="C", help="l2 norm to which a node's update is clipped.")]
TrialRounds = Annotated[int, typer.Option(metavar="T", help="Rounds.")]
AgreedEpsilon = Annotated[float, typer.Option(metavar="E", help="The budget: no round is opened that could exceed it.")]
TrialEpsilon = Annotated[
    float | None,
    typer.Option(metavar="E", help="The budget: no round is opened that could exceed it. [default: what they cost]"),
]
AgreedDelta = Annotated[float, typer.Option(metavar="D", help="Delta of the budget.")]
AgreedCrowd = Annotated[str, typer.Option(metavar="any|identical", help="Crowd of the budget: what the others hold.")]
Step = Annotated[float, typer.Option(help="What the mean update is multiplied with.")]
TrialNodes = Annotated[int, typer.Option(metavar="N", help="Nodes, each with an equal share of the images.")]
Minimum = Annotated[int | None, typer.Option(metavar="M", help="Fewest users of a round. [default: 3/4 of the nodes]")]
Corrupt = Annotated[
    int,
    typer.Option(metavar="K", help="Enrolled nodes that may be the shuffler's: the ledger does not count them."),
]
TrialApp = Annotated[
    Path | None, typer.Option(metavar="DIR", help="An app made with 'shoal flower new'. [default: the embedded digits]")
]
Home = Annotated[Path, typer.Option(metavar="DIR", help="Folder for keys, settings, state and logs.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Time that nodes have for a round.")]


def settings(task: Task, *, rounds: int | None = None, epoch: int | None = None, **more: Any) -> Settings:
    """Settings with as many rounds as the budget allows, and no more than are asked for."""
    from shoal.deployment.analyst import Settings

    allowed = task.rounds(rounds)
    return Settings(task=task, rounds=allowed, epoch=epoch or -(-allowed // EPOCHS), **more)

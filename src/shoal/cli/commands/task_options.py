"""The options for the terms of a task, which the commands of the deployment share, and settings from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.mechanisms import Crowd

if TYPE_CHECKING:
    from shoal.deployment.analyst import Settings
    from shoal.deployment.task import Task

EPOCHS = 100
"""Number of keys that an analyst makes, if its rounds are not fewer."""

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The analyst's folder.", show_default=False)]
Sigma = Annotated[float, typer.Option(metavar="X", help="Noise multiplier: standard deviation / clipping norm.")]
Rate = Annotated[float, typer.Option(metavar="P", help="Probability of checking in.")]
Clip = Annotated[float, typer.Option(metavar="C", help="L2 norm to which a node's update is clipped.")]
BudgetEpsilon = Annotated[float, typer.Option(metavar="E", help="Budget: no round is opened that could exceed it.")]
BudgetDelta = Annotated[float, typer.Option(metavar="D", help="Delta of the budget.")]
BudgetCrowd = Annotated[Crowd, typer.Option(help="Crowd of the budget: what the other users hold.")]
Step = Annotated[float, typer.Option(help="Factor that multiplies the mean update.")]
Corrupt = Annotated[
    int,
    typer.Option(metavar="K", help="Enrolled nodes that may work for the shuffler; the ledger does not count them."),
]

TrialRounds = Annotated[int, typer.Option(metavar="T", help="Number of rounds.")]
TrialEpsilon = Annotated[
    float | None,
    typer.Option(
        metavar="E", help="Budget: no round is opened that could exceed it. [default: the cost of the rounds]"
    ),
]
TrialNodes = Annotated[int, typer.Option(metavar="N", help="Number of nodes, each with an equal share of the images.")]
TrialMinimum = Annotated[
    int | None, typer.Option(metavar="M", help="Smallest number of users in a round. [default: 3/4 of the nodes]")
]
TrialApp = Annotated[
    Path | None, typer.Option(metavar="DIR", help="An app made with 'shoal flower new'. [default: the embedded digits]")
]
TrialFolder = Annotated[Path, typer.Option(metavar="DIR", help="Folder for keys, settings, state and logs.")]
TrialTimeout = Annotated[float, typer.Option(metavar="SECONDS", help="Time that nodes have for a round.")]


def analyst_settings(task: Task, *, rounds: int | None = None, epoch: int | None = None, **unchanged: Any) -> Settings:
    """Return settings with as many rounds as the budget allows.

    Args:
      task: The terms.
      rounds: The largest number of rounds, if the user limits it.
      epoch: The number of rounds that share a key.
      unchanged: Settings that pass on as they are.

    Returns:
      The settings.

    Raises:
      InvalidInput: If the budget does not allow one round.
    """
    from shoal.deployment.analyst import Settings

    allowed = task.rounds(rounds)
    return Settings(task=task, rounds=allowed, epoch=epoch or -(-allowed // EPOCHS), **unchanged)

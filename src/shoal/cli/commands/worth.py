"""The command `shoal worth`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from shoal import noise_check
from shoal._written import number
from shoal.cli import options as opt
from shoal.cli import screen, view
from shoal.errors import InvalidInput
from shoal.formatting import short
from shoal.noise_check import Worth

Tool = Literal["flower", "nvflare-svt", "nvflare-percentile", "gaussian"]
CHECKS: dict[str, Callable[..., Worth]] = {
    "flower": noise_check.flower,
    "nvflare-svt": noise_check.nvflare_svt,
    "nvflare-percentile": noise_check.nvflare_percentile,
    "gaussian": noise_check.gaussian,
}


def worth_command(
    tool: Annotated[
        Tool,
        typer.Argument(
            metavar="TOOL",
            help=f"Whose noise it is: {', '.join(CHECKS)} (any other).",
            show_default=False,
        ),
    ],
    clipping_norm: Annotated[str | None, typer.Option(metavar="C", help="Norm to which vectors are clipped.")] = None,
    sensitivity: Annotated[
        str | None, typer.Option(metavar="S", help="The sensitivity in the tool's configuration (flower).")
    ] = None,
    epsilon: Annotated[str | None, typer.Option(metavar="E", help="The epsilon in the tool's configuration.")] = None,
    delta: Annotated[str | None, typer.Option(metavar="D", help="The delta in the tool's configuration.")] = None,
    at_delta: Annotated[
        str | None, typer.Option(metavar="D", help="The delta of the epsilon to compute (flower). [default: delta]")
    ] = None,
    deviation: Annotated[
        str | None, typer.Option(metavar="X", help="Standard deviation of the noise, if you know it (gaussian).")
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="N", help="Number of parameters of the model (nvflare-svt).")
    ] = None,
    fraction: Annotated[
        str | None, typer.Option(metavar="F", help="Fraction of them that is sent (nvflare-svt). [default: 0.1]")
    ] = None,
    noise_var: Annotated[
        str | None, typer.Option(metavar="V", help="The filter's noise_var (nvflare-svt). [default: 0.1]")
    ] = None,
    gamma: Annotated[
        str | None, typer.Option(metavar="G", help="The filter's gamma (nvflare-svt). [default: 1e-5]")
    ] = None,
    users: Annotated[
        str | None, typer.Option(metavar="N", help="Also behind a shuffler, among N users with any vectors.")
    ] = None,
    rounds: Annotated[str | None, typer.Option(metavar="T", help="Number of rounds. [default: 1]")] = None,
    as_json: opt.Json = False,
) -> None:
    """The noise that another tool really adds, and the epsilon that it really gives.

    Examples:

    \b
    shoal worth flower --clipping-norm 1 --sensitivity 1 --epsilon 1 \\
        --delta 1e-5 --users 1000

    \b
    shoal worth nvflare-svt --parameters 100000 --delta 1e-6

    \b
    shoal worth gaussian --deviation 0.00001 --clipping-norm 1 --delta 1e-5
    """
    texts = {
        "clipping_norm": clipping_norm,
        "sensitivity": sensitivity,
        "epsilon": epsilon,
        "delta": delta,
        "at_delta": at_delta,
        "deviation": deviation,
        "parameters": parameters,
        "fraction": fraction,
        "noise_var": noise_var,
        "gamma": gamma,
        "users": users,
        "rounds": rounds,
    }
    with screen.working(tool):
        answer = _checked(tool, texts)
    payload = answer.to_dict()
    title = f"{answer.tool}: noise of standard deviation {answer.deviation:.4g}; δ = {short(answer.delta)}"
    view.View(
        title=f"{title}, {view.rounds_words(answer.rounds)}",
        columns=[
            view.ViewColumn(head="trusted", text=_trusted),
            view.text_column("adjacency", "adjacency"),
            *view.interval_columns("ε", "epsilon"),
        ],
        rows=[{**vars(row), "epsilon": view.ends(row.epsilon)} for row in answer.rows],
        sentences=[answer.sentence()],
        payload=payload,
    ).show(as_json=as_json)


def _trusted(row: Mapping[str, Any]) -> str:
    return "nobody" if row["users"] is None else f"a shuffler of {row['users']:,} users"


def _checked(tool: Tool, texts: Mapping[str, str | None]) -> Worth:
    """Return what the tool's noise is worth; refuse options that it does not have."""
    parameters = inspect.signature(CHECKS[tool]).parameters
    names = [name for name in texts if name in parameters]
    for name, text in texts.items():
        if name in names and text is None and parameters[name].default is inspect.Parameter.empty:
            raise InvalidInput(f"{name} must be given for {tool}: add --{name.replace('_', '-')}")
        if name not in names and text is not None:
            raise InvalidInput(f"{name} is not a parameter of {tool}, which has {', '.join(names) or 'no parameters'}")
    return CHECKS[tool](**{name: number(name, text) for name, text in texts.items() if text is not None})

"""The command `shoal worth`."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal._written import number
from shoal.cli import options as opt
from shoal.errors import InvalidInput

if TYPE_CHECKING:
    from shoal.noise_check import Worth


class Tool(str, enum.Enum):
    flower = "flower"
    nvflare_svt = "nvflare-svt"
    nvflare_percentile = "nvflare-percentile"
    gaussian = "gaussian"


NEEDED: dict[Tool, tuple[str, ...]] = {
    Tool.flower: ("clipping_norm", "sensitivity", "epsilon", "delta"),
    Tool.nvflare_svt: ("parameters", "delta"),
    Tool.nvflare_percentile: (),
    Tool.gaussian: ("deviation", "clipping_norm", "delta"),
}
KNOWN: dict[Tool, tuple[str, ...]] = {
    Tool.flower: (*NEEDED[Tool.flower], "at_delta", "users", "rounds"),
    Tool.nvflare_svt: (*NEEDED[Tool.nvflare_svt], "fraction", "epsilon", "noise_var", "gamma", "rounds"),
    Tool.nvflare_percentile: (),
    Tool.gaussian: (*NEEDED[Tool.gaussian], "users", "rounds"),
}


def worth(
    tool: Annotated[Tool, typer.Argument(help="Whose noise it is.", show_default=False)],
    clipping_norm: Annotated[str | None, typer.Option(metavar="C", help="Norm to which vectors are clipped.")] = None,
    sensitivity: Annotated[str | None, typer.Option(metavar="S", help="The sensitivity that flower is told.")] = None,
    epsilon: Annotated[str | None, typer.Option(metavar="E", help="The epsilon that the tool is told.")] = None,
    delta: Annotated[str | None, typer.Option(metavar="D", help="The delta that the tool is told.")] = None,
    at_delta: Annotated[
        str | None, typer.Option(metavar="D", help="The delta at which epsilon is asked for (flower). [default: delta]")
    ] = None,
    deviation: Annotated[
        str | None, typer.Option(metavar="X", help="Standard deviation of the noise, where it is known (gaussian).")
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="N", help="Numbers that the model consists of (nvflare-svt).")
    ] = None,
    fraction: Annotated[
        str | None, typer.Option(metavar="F", help="Part of them that is sent (nvflare-svt). [default: 0.1]")
    ] = None,
    noise_var: Annotated[
        str | None, typer.Option(metavar="V", help="The filter's noise_var (nvflare-svt). [default: 0.1]")
    ] = None,
    gamma: Annotated[
        str | None, typer.Option(metavar="G", help="The filter's gamma (nvflare-svt). [default: 1e-5]")
    ] = None,
    users: Annotated[
        str | None, typer.Option(metavar="N", help="Also behind a shuffler, among so many users of any kind.")
    ] = None,
    rounds: Annotated[str | None, typer.Option(metavar="T", help="Number of rounds. [default: 1]")] = None,
    as_json: opt.Json = False,
) -> None:
    """What the noise of another tool is worth: the noise it really adds, and the epsilon that it really gives.

    Examples:

    \b
    shoal worth flower --clipping-norm 1 --sensitivity 1 --epsilon 1 \\
        --delta 1e-5 --users 1000

    \b
    shoal worth nvflare-svt --parameters 100000 --delta 1e-6

    \b
    shoal worth gaussian --deviation 0.00001 --clipping-norm 1 --delta 1e-5
    """
    from shoal.cli import show

    given = {
        "clipping_norm": clipping_norm, "sensitivity": sensitivity, "epsilon": epsilon, "delta": delta,
        "at_delta": at_delta, "deviation": deviation, "parameters": parameters, "fraction": fraction,
        "noise_var": noise_var, "gamma": gamma, "users": users, "rounds": rounds,
    }  # fmt: skip
    with show.busy(tool.value):
        found = _found(tool, given)
    if as_json:
        show.emit_json(found.to_dict())
        return
    _table(found)
    show.say(found.sentence())


def _found(tool: Tool, given: dict[str, str | None]) -> Worth:
    from shoal import noise_check

    for name, text in given.items():
        option = f"--{name.replace('_', '-')}"
        if name in NEEDED[tool] and text is None:
            raise InvalidInput(f"{name} must be given for {tool.value}: add {option}")
        if name not in KNOWN[tool] and text is not None:
            known = ", ".join(KNOWN[tool]) or "no parameters"
            raise InvalidInput(f"{name} is not a parameter of {tool.value}, which has {known}")
    values: dict[str, Any] = {name: number(name, text) for name, text in given.items() if text is not None}
    found: Worth = getattr(noise_check, tool.value.replace("-", "_"))(**values)
    return found


def _table(found: Worth) -> None:
    from shoal.cli import show

    cells = []
    for row in found.rows:
        trusted = "nobody" if row.users is None else f"a shuffler of {row.users:,} users"
        cells.append([trusted, row.adjacency, *show.bounds(show.interval(row.epsilon))])
    title = f"{found.tool}: noise of standard deviation {found.deviation:.4g}; δ = {show.plain(found.delta)}"
    show.table(f"{title}, {show.times(found.rounds)}", ["trusted", "adjacency", "ε ≥", "ε ≤"], cells)

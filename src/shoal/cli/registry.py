"""How commands are registered: the list of them comes at once, the options of one when it is called.

Options that describe a mechanism come from the fields of the mechanisms, and those live beside the numerics. To
load these takes several times as long as all the rest of `shoal --help`, which only needs names and first lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from shoal.cli import errors, options

_COMMON: dict[str, Any] = {
    "rich_markup_mode": None,  # the help must come at once, and rich takes a quarter of a second to load
    "pretty_exceptions_enable": False,
}


class Group(TyperGroup):
    """Commands that get the options for their mechanism only when they are called (or completed, or explained)."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        function = getattr(getattr(command, "callback", None), "described", None)
        if function is not None:
            command = _whole(function)
        return name, command, rest


def group(help: str, **more: Any) -> typer.Typer:
    """An empty group of commands."""
    return typer.Typer(cls=Group, no_args_is_help=True, help=help, **_COMMON, **more)


def add(to: typer.Typer, *functions: Callable[..., None], name: str | None = None) -> None:
    """Make commands of functions. A parameter `described` stands for the options that describe a mechanism."""
    for function in functions:
        command = errors.told(function)
        if options.is_described(function):
            light = options.without_description(command)
            light.described = command  # type: ignore[attr-defined]
            command = light
        to.command(name)(command)


def _whole(function: Callable[..., None]) -> Any:
    """The same command with all its options."""
    alone = typer.Typer(add_completion=False, **_COMMON)
    alone.command()(options.with_description(function))
    return typer.main.get_command(alone)

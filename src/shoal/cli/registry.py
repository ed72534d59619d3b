"""How commands are registered: the list of them comes at once, the options of one when it is called.

Options that describe a mechanism come from the fields of the mechanisms, and those live beside the numerics. To
load these takes several times as long as all the rest of `shoal --help`, which only needs names and first lines.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from shoal.cli import errors, options

_COMMON: dict[str, Any] = {
    "rich_markup_mode": None,  # the help must come at once, and rich takes a quarter of a second to load
    "pretty_exceptions_enable": False,
}


# Typer's minor versions differ in what they say and how; the tests hold for all of them because of what follows.
# Newer versions of typer bring their own click, older ones need the package: the one that commands are made of.
_CLICK = TyperCommand.__mro__[1].__module__.rpartition(".")[0]
_BaseFormatter: Any = importlib.import_module(f"{_CLICK}.formatting").HelpFormatter
_BaseContext: Any = importlib.import_module(f"{_CLICK}.core").Context
_BadParameter: Any = importlib.import_module(f"{_CLICK}.exceptions").BadParameter
_UsageError: Any = importlib.import_module(f"{_CLICK}.exceptions").UsageError
_NoSuchOption: Any = importlib.import_module(f"{_CLICK}.exceptions").NoSuchOption


class _Formatter(_BaseFormatter):  # type: ignore[misc]
    """Lines are not broken inside words with a hyphen, as check-in is one."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, re.sub(r"\{([A-Z_]+)\}|\[(\[[A-Z_]+\])\]", r"\1\2", _tied(args)), prefix)

    def write_text(self, text: str) -> None:
        super().write_text(_tied(text))

    def write_dl(self, rows: Any, *args: Any, **kwargs: Any) -> None:
        # Newer versions add all choices to an argument's name, in one long line; its help lists them.
        named = [(re.sub(r"^(\[?[A-Z_]+\]?) <[^>]*>$", r"\1", first), second) for first, second in rows]
        super().write_dl([(_tied(first), _tied(second)) for first, second in named], *args, **kwargs)

    def getvalue(self) -> str:
        # Brackets are escaped for a renderer that is not used here; some versions of click list arguments twice.
        text = super().getvalue().replace(_TIE, "-").replace("\\[", "[")
        return re.sub(r"^Positional arguments:\n(?:  .*\n)+\n", "", text, flags=re.MULTILINE)


_TIE = "\u2011"


def _tied(text: str) -> str:
    return re.sub(r"(?<=\w)-(?=\w)", _TIE, text)


class _Context(_BaseContext):  # type: ignore[misc]
    formatter_class = _Formatter


def _meant(word: str, known: Iterable[str]) -> str:
    """What a word that is not known may have been meant for."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean '{near[0]}'?" if near else ""


class Command(TyperCommand):
    """A command whose first sentence is never cut short, and which answers a typo with what may have been meant."""

    context_class = _Context

    def get_short_help_str(self, limit: int = 45) -> str:
        return _first_paragraph(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _NoSuchOption as error:
            known = [name for one in self.get_params(ctx) for name in one.opts]
            raise _UsageError(f"No such option '{error.option_name}'.{_meant(error.option_name, known)}", ctx) from None
        except _BadParameter as error:
            choice = re.search(r"'([^']*)' is not one of (.*)\.", error.message)
            if not choice:
                raise
            meant = _meant(choice.group(1), re.findall(r"'([^']+)'", choice.group(2)))
            words = f"{error.message.removeprefix('Value error, ')}{meant}"
            raise _BadParameter(words, ctx=error.ctx, param=error.param, param_hint=error.param_hint) from None


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


class Group(TyperGroup):
    """Commands that get the options for their mechanism only when they are called (or completed, or explained)."""

    context_class = _Context

    def get_short_help_str(self, limit: int = 45) -> str:
        return _first_paragraph(self.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except _UsageError:
            words = f"No such command '{args[0]}'.{_meant(args[0], self.list_commands(ctx))}"
            raise _UsageError(words, ctx) from None
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
        to.command(name, cls=Command)(command)


def _whole(function: Callable[..., None]) -> Any:
    """The same command with all its options."""
    alone = typer.Typer(add_completion=False, **_COMMON)
    alone.command(cls=Command)(options.with_description(function))
    command = typer.main.get_command(alone)
    for one in command.params:
        # Some versions of click forget what typer told them of an argument.
        if isinstance(one, TyperArgument) and one.help is None:
            one.help = options.explained(function)
    return command

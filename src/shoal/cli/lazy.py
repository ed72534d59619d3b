"""Groups whose commands are imported when they are called.

A group is a table: each name leads to the place of a command ("module:function") or to a table of its own, and to the
first sentence of its help. The list of commands needs no more than that table, so `shoal --help` comes at once. The
file of a command is imported when the command runs, explains itself, or is completed.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Union, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from shoal.cli import errors
from shoal.cli.signatures import resolved_parameters, with_choices

Table = Mapping[str, tuple[Union[str, "Table"], str]]
"""For each name, where the command is (or the table of a group), and the first sentence of its help."""

PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,  # the help must come at once, and rich takes a quarter of a second to load
    "pretty_exceptions_enable": False,
}

# Typer's minor versions word and lay out their help differently; the tests hold for all of them because of what
# follows. Newer versions of typer contain a click of their own, older ones need the package: take what commands use.
_CLICK = TyperCommand.__mro__[1].__module__.rpartition(".")[0]
_BaseFormatter: Any = importlib.import_module(f"{_CLICK}.formatting").HelpFormatter
_BaseContext: Any = importlib.import_module(f"{_CLICK}.core").Context
_BaseCommand: Any = importlib.import_module(f"{_CLICK}.core").Command
_BadParameter: Any = importlib.import_module(f"{_CLICK}.exceptions").BadParameter
_UsageError: Any = importlib.import_module(f"{_CLICK}.exceptions").UsageError
_NoSuchOption: Any = importlib.import_module(f"{_CLICK}.exceptions").NoSuchOption
_CompletionItem: Any = importlib.import_module(f"{_CLICK}.shell_completion").CompletionItem

_UNBREAKABLE_HYPHEN = "\u2011"


class _Formatter(_BaseFormatter):  # type: ignore[misc]  # a class that is known at run time only
    """Lines are not broken at the hyphen of a word such as check-in."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, re.sub(r"\{([A-Z_]+)\}|\[(\[[A-Z_]+\])\]", r"\1\2", _unbreakable(args)), prefix)

    def write_text(self, text: str) -> None:
        super().write_text(_unbreakable(text))

    def write_dl(self, rows: Any, *args: Any, **kwargs: Any) -> None:
        # Newer versions add all choices to an argument's name, in one long line; its help lists them.
        names = [(re.sub(r"^(\[?[A-Z_]+\]?) <[^>]*>$", r"\1", first), second) for first, second in rows]
        super().write_dl([(_unbreakable(first), _unbreakable(second)) for first, second in names], *args, **kwargs)

    def getvalue(self) -> str:
        # Brackets are escaped for a renderer that is not used here; some versions of click list arguments twice.
        text = super().getvalue().replace(_UNBREAKABLE_HYPHEN, "-").replace("\\[", "[")
        return re.sub(r"^Positional arguments:\n(?:  .*\n)+\n", "", text, flags=re.MULTILINE)


def _unbreakable(text: str) -> str:
    return re.sub(r"(?<=\w)-(?=\w)", _UNBREAKABLE_HYPHEN, text)


class _Context(_BaseContext):  # type: ignore[misc]
    formatter_class = _Formatter


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return a question that proposes the closest name, or nothing.

    Args:
      word: What was typed.
      names: What can be typed there.
    """
    closest = difflib.get_close_matches(word, list(names), n=1)
    return f" Did you mean '{closest[0]}'?" if closest else ""


def option_suggestion(word: str, options: Iterable[Any]) -> str:
    """Return a question that proposes an option, or nothing.

    An option whose help begins with the word is the one that was meant (`--noise`: "Noise multiplier ..."), however
    different its name is; otherwise the option whose name is closest.

    Args:
      word: What was typed, such as `--noise`.
      options: The options of the command.
    """
    prose = word.lstrip("-").replace("-", " ").lower()
    for option in options:
        if re.match(rf"{re.escape(prose)}\b", (getattr(option, "help", None) or "").lower()):
            return f" Did you mean '{option.opts[0]}'?"
    return suggestion(word, [name for option in options for name in option.opts])


class Command(TyperCommand):
    """A command that answers a typo with what was probably meant."""

    context_class = _Context

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _NoSuchOption as error:
            options = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "option"]
            text = f"No such option '{error.option_name}'.{option_suggestion(error.option_name, options)}"
            raise _UsageError(text, ctx) from None
        except _BadParameter as error:
            choice = re.search(r"'([^']*)' is not one of (.*)\.", error.message)
            if not choice:
                raise
            hint = suggestion(choice.group(1), re.findall(r"'([^']+)'", choice.group(2)))
            text = f"{error.message.removeprefix('Value error, ')}{hint}"
            raise _BadParameter(text, ctx=error.ctx, param=error.param, param_hint=error.param_hint) from None


class LazyGroup(TyperGroup):
    """A group that knows its commands by a table and imports one when it is called."""

    context_class = _Context
    table: ClassVar[Table] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.table:
            return None
        place, sentence = self.table[cmd_name]
        return load(place, cmd_name) if isinstance(place, str) else group(place, sentence, name=cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self.table.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        # Click would import each command that fits, only to ask whether it is hidden.
        names = [name for name in self.table if name.startswith(incomplete)]
        items = [_CompletionItem(name, help=self.table[name][1]) for name in names]
        return [*items, *_BaseCommand.shell_complete(self, ctx, incomplete)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except _UsageError:
            text = f"No such command '{args[0]}'.{suggestion(args[0], self.list_commands(ctx))}"
            raise _UsageError(text, ctx) from None


def group_class(table: Table) -> type[LazyGroup]:
    """Return the class of a group with these commands, of which typer makes an object."""
    return type("Commands", (LazyGroup,), {"table": table})


def group(table: Table, help: str, *, name: str) -> Any:
    """Return a group of commands below another one.

    Args:
      table: Its commands.
      help: Its help.
      name: What it is called by.
    """
    return group_class(table)(name=name, help=help, no_args_is_help=True, rich_markup_mode=None)


def load(place: str, name: str) -> Any:
    """Return the command at a place, and import its file.

    Args:
      place: "module:function", the module below `shoal.cli.commands`.
      name: What it is called by.
    """
    module, _, function = place.partition(":")
    with errors.refusals():  # what a command needs may not be installed
        command: Callable[..., None] = getattr(importlib.import_module(f"shoal.cli.commands.{module}"), function)
    app = typer.Typer(add_completion=False, **PLAIN)
    app.command(name, cls=Command)(with_choices(errors.as_command(command)))
    click_command = typer.main.get_command(app)
    _restore_argument_help(click_command, command)
    return click_command


def _restore_argument_help(click_command: Any, function: Callable[..., None]) -> None:
    """Give arguments their help again: some versions of click forget what typer says about them."""
    hints = {parameter.name: parameter.annotation for parameter in resolved_parameters(function)}
    for parameter in click_command.params:
        if isinstance(parameter, TyperArgument) and parameter.help is None:
            infos = [item for item in get_args(hints[parameter.name]) if isinstance(item, ArgumentInfo)]
            parameter.help = infos[0].help

"""How errors and warnings are told: one sentence and exit code 2 for bad input, a note for a wide bracket.

Nothing else is caught: a bug keeps its traceback, so that nobody takes it for an answer.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from shoal.errors import ShoalError

NOTES = 2
"""So many wide brackets are told one by one; the others are counted."""


def refuse(message: str) -> NoReturn:
    """End with one sentence and exit code 2."""
    print(f"shoal: {message}", file=sys.stderr)
    raise typer.Exit(code=2)


def told(function: Callable[..., None]) -> Callable[..., None]:
    """The command, but bad input, unusable files and a missing extra end in one sentence, not in a traceback."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with _wide_brackets_noted():
            try:
                function(*args, **kwargs)
            # What users can put right. TypeError is not among them: from a command line only strings arrive.
            except OSError as error:
                named = error.filename is not None and error.strerror is not None
                refuse(f"{str(error.filename)!r} cannot be used: {error.strerror}" if named else str(error))
            except ShoalError as error:
                refuse(str(error))

    return wrapped


@contextmanager
def _wide_brackets_noted() -> Iterator[None]:
    """Each `AccuracyWarning` becomes a note after the answer; other warnings are shown as Python shows them."""
    notes: list[str] = []

    def keep(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        # By its name: the class lives beside the numerics, which a refusal should not have to load.
        if category.__name__ == "AccuracyWarning":
            notes.append(str(message))
        else:
            typer.echo(warnings.formatwarning(message, category, filename, lineno), err=True, nl=False)

    with warnings.catch_warnings():
        # One each, however many points of a curve give the same.
        warnings.filterwarnings("once", message="accuracy .* was not reached")
        warnings.showwarning = keep
        try:
            yield
        finally:
            for note in notes[:NOTES]:
                typer.echo(f"Note: {note}.", err=True)
            if len(notes) > NOTES:
                typer.echo(f"Note: {len(notes) - NOTES} more brackets are wider than asked.", err=True)

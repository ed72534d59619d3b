"""How the command reports errors and warnings.

Bad input, a file that cannot be used, or a missing extra end in one sentence and exit code 2. A wide interval becomes
a note below the answer. Nothing else is caught: a bug keeps its traceback, so that nobody takes it for an answer.
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

NOTES_MAX = 2
"""Accuracy notes printed in full; the rest are counted."""


def refuse(message: str) -> NoReturn:
    """End with one sentence and exit code 2."""
    print(f"shoal: {message}", file=sys.stderr)
    raise typer.Exit(code=2)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what users can put right into one sentence and exit code 2."""
    try:
        yield
    # TypeError and ValueError are not among them: a command line is checked, so such an error is a bug.
    except OSError as error:
        has_name = error.filename is not None and error.strerror is not None
        refuse(f"{str(error.filename)!r} cannot be used: {error.strerror}" if has_name else str(error))
    except ShoalError as error:
        refuse(str(error))


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with its errors and warnings reported as the command reports them."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with _accuracy_notes(), refusals():
            function(*args, **kwargs)

    return wrapped


@contextmanager
def _accuracy_notes() -> Iterator[None]:
    """Print each `AccuracyWarning` as a note after the answer; show other warnings as Python does."""
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
        # Each text once, however many points of a curve give the same.
        warnings.filterwarnings("once", message="accuracy .* was not reached")
        warnings.showwarning = keep
        try:
            yield
        finally:
            for note in notes[:NOTES_MAX]:
                typer.echo(f"Note: {note}.", err=True)
            if len(notes) > NOTES_MAX:
                typer.echo(f"Note: {len(notes) - NOTES_MAX} more intervals are wider than requested.", err=True)

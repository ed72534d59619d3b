"""What the command prints: tables, paragraphs and paths on standard output, signs of progress on standard error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table


def terminal() -> Console:
    """Return where answers are printed, as wide as the terminal is now."""
    return Console(highlight=False)


def print_table(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]], *, prose: Sequence[str] = ()) -> None:
    """Print a table.

    Args:
      title: The line above it.
      heads: The head of each column.
      cells: The texts of each row.
      prose: Heads of the columns of words, whose lines may be broken; numbers are then kept whole.
    """
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, head in enumerate(heads):
        justify: Any = "left" if i == 0 or head in prose else "right"
        table.add_column(head, justify=justify, overflow="fold", no_wrap=bool(prose) and head not in prose)
    for row in cells:
        table.add_row(*row)
    terminal().print(table)


def print_text(text: str) -> None:
    """Print a paragraph, its lines broken between words."""
    terminal().print(text)


def print_path(name: str, path: Path, note: str = "") -> None:
    """Print a path on one line, so that it can be copied.

    Args:
      name: What the path leads to.
      path: The path.
      note: What to print behind it.
    """
    terminal().print(f"{name}: {path}{note}", soft_wrap=True)


def print_json(payload: Mapping[str, Any]) -> None:
    """Print data for programs."""
    terminal().file.write(json.dumps(payload, indent=2, ensure_ascii=False) + "\n")


def print_document(text: str) -> None:
    """Print a text as it is, so that it can be written to a file."""
    terminal().file.write(text)


def working(name: str) -> Status:
    """Return a sign of life for a terminal, to be used in a `with` statement."""
    return Console(stderr=True).status(f"computing {name} …")


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[str, float], None] | None]:
    """Yield a function that shows a step's name and the share done, or None without a terminal."""
    from rich.progress import Progress

    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield None
        return
    with Progress(console=errors, transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda name, share: bar.update(task, description=name, completed=share)

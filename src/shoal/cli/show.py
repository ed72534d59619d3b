"""How answers are shown: tables for people, JSON for programs, one sentence for the record."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from shoal import formatting as numbers

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism

console = Console(highlight=False)
rounded, plain = numbers.rounded, numbers.short


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str] = ()) -> None:
    """A table; columns of `words` are those whose lines may be broken."""
    shown = Table(title=title, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        left = i == 0 or column in words
        # Numbers stay whole where there is a column of words to give way.
        whole = bool(words) and column not in words
        shown.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=whole)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def busy(what: Mechanism | str) -> Status:
    """A sign of life on a terminal, while any crowd's tenths of a second at each point add up."""
    return Console(stderr=True).status(f"computing {what if isinstance(what, str) else what.label} …")


def say(text: str) -> None:
    """A paragraph, its lines broken between words."""
    console.print(text)


@contextlib.contextmanager
def progress(first: str) -> Iterator[Callable[[str, float], None] | None]:
    """A bar on a terminal, to be told words and the part done; None elsewhere. On stderr: the answer stays clean."""
    from rich.progress import Progress

    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield None
        return
    with Progress(console=errors, transient=True) as bar:
        task = bar.add_task(first, total=1.0)
        yield lambda words, done: bar.update(task, description=words, completed=done)


def fields(m: Mechanism) -> dict[str, Any]:
    """The mechanism as plain data, without the crowd: rows have one each."""
    return {k: v for k, v in m.to_dict().items() if k != "crowd"}


def say_where(picture: Path | None) -> None:
    if picture:
        say_path("Picture", picture)


def say_path(name: str, path: Path, more: str = "") -> None:
    """A path is never broken: it is there to be copied."""
    console.print(f"{name}: {path}{more}", soft_wrap=True)


def times(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds:,} rounds"


def emit_json(payload: dict[str, Any]) -> None:
    console.file.write(json.dumps(payload, indent=2, ensure_ascii=False) + "\n")


def bounds(bracket: dict[str, float]) -> list[str]:
    """A bracket as two cells, each rounded outwards; a trivial lower bound is not shown."""
    lower = bracket["lower"]
    return [rounded(lower, "down") if lower > 0.0 else "–", rounded(bracket["upper"])]


def interval(value: Any) -> dict[str, float]:
    return {"lower": value.lower, "upper": value.upper}


def crowd_name(crowd: str | None) -> str:
    return "none needed" if crowd is None else crowd

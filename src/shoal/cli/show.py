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

from shoal import interval as numbers

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism

console = Console(highlight=False)
rounded, plain = numbers.rounded, numbers.short


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    shown = Table(title=title, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        shown.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def busy(m: Mechanism) -> Status:
    """A sign of life on a terminal, while any crowd's second or so at each point adds up."""
    return Console(stderr=True).status(f"computing {m.label} …")


def say(text: str) -> None:
    console.print(text, soft_wrap=True)


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
        say(f"Picture: {picture}")


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

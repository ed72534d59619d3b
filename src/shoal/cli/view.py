"""One view of an answer: a table and sentences for people, JSON for programs, a picture for both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.cli import screen
from shoal.formatting import rounded, short
from shoal.interval import Interval
from shoal.mechanisms import Mechanism

ViewRow = Mapping[str, Any]
"""A row as JSON has it."""


@dataclass(frozen=True, kw_only=True)
class ViewColumn:
    """A column of a table: its head, and the text that it shows of a row."""

    head: str
    text: Callable[[ViewRow], str]
    prose: bool = False
    """Whether its lines may be broken."""


@dataclass(frozen=True, kw_only=True)
class View:
    """An answer to be shown: `title`, `columns` and `rows` make the table, `sentences` follow it.

    `payload` is what `--json` prints. `draw` makes the picture in a file, and is called only if one is requested.
    """

    title: str
    columns: Sequence[ViewColumn]
    rows: Sequence[ViewRow]
    sentences: Sequence[str] = ()
    payload: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[Path], Path] | None = None

    def show(self, *, as_json: bool, plot: Path | None = None) -> None:
        """Draw the picture, if one is requested, and print the answer.

        Args:
          as_json: Whether to print JSON instead of a table and sentences.
          plot: The file of the picture.
        """
        picture = None
        if plot is not None and self.draw is not None:
            with screen.working("the picture"):
                picture = self.draw(plot)
        if as_json:
            where = {} if self.draw is None else {"plot": picture and str(picture)}
            screen.print_json({**self.payload, **where})
            return
        self.print()
        if picture:
            screen.print_path("Picture", picture)

    def print(self) -> None:
        """Print the table and the sentences."""
        screen.print_table(
            self.title,
            [column.head for column in self.columns],
            [[column.text(row) for column in self.columns] for row in self.rows],
            prose=[column.head for column in self.columns if column.prose],
        )
        for sentence in self.sentences:
            screen.print_text(sentence)


def ends(interval: Interval) -> dict[str, float]:
    """Return both ends of an interval, as JSON has them."""
    return {"lower": interval.lower, "upper": interval.upper}


def interval_columns(symbol: str, key: str) -> list[ViewColumn]:
    """Return two columns for the ends of an interval, rounded outwards.

    Args:
      symbol: What the heads call it.
      key: Where a row has its ends.
    """

    def lower(row: ViewRow) -> str:
        # A lower bound of 0 says nothing.
        return rounded(row[key]["lower"], "down") if row[key]["lower"] > 0.0 else "–"

    return [
        ViewColumn(head=f"{symbol} ≥", text=lower),
        ViewColumn(head=f"{symbol} ≤", text=lambda row: rounded(row[key]["upper"])),
    ]


def number_column(head: str, key: str) -> ViewColumn:
    """Return a column for a number that was given."""
    return ViewColumn(head=head, text=lambda row: short(row[key]))


def text_column(head: str, key: str, *, prose: bool = False) -> ViewColumn:
    """Return a column for a text."""
    return ViewColumn(head=head, text=lambda row: str(row[key]), prose=prose)


CROWD_COLUMN = ViewColumn(head="crowd", text=lambda row: crowd_words(row["crowd"]))


def crowd_words(crowd: str | None) -> str:
    """Return what a table calls a crowd."""
    return "none needed" if crowd is None else crowd


def rounds_words(rounds: int) -> str:
    """Return a number of rounds in words."""
    return "1 round" if rounds == 1 else f"{rounds:,} rounds"


def curve_label(mechanism: Mechanism, crowd: str | None, *details: str) -> str:
    """Return what a line of a picture is called.

    Args:
      mechanism: What it is about.
      crowd: Its crowd, or None where none matters.
      details: What else tells it apart from other lines.
    """
    parts = [*([] if crowd is None else [f"{crowd} crowd"]), *details]
    return ", ".join(parts) or mechanism.label


def without_crowd(mechanism: Mechanism) -> dict[str, Any]:
    """Return a mechanism as plain data without its crowd: each row has one."""
    return {name: value for name, value in mechanism.to_dict().items() if name != "crowd"}


def count_column(head: str, key: str) -> ViewColumn:
    """Return a column for a whole number."""
    return ViewColumn(head=head, text=lambda row: f"{row[key]:,}")

"""Columns, checks and pictures of which every part of the reproduction consists, and what the parts share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.formatting import outwards
from shoal.interval import Interval
from shoal.literature.tables import USERS
from shoal.mechanisms import Mechanism
from shoal.plots import Line
from shoal.progress import Progress

Rounding = Literal["nearest", "up", "down", "given"]

PAPER_DELTA = 1.0 / USERS


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its key in the CSV file, its heading, and a value (or None) per row.

    `side` is how people see it rounded: `nearest` for the paper's own numbers (as in print), `up`
    and `down` for bounds, `given` for inputs.
    """

    key: str
    head: str
    values: tuple[float | None, ...]
    side: Rounding = "given"
    short: str = ""
    """The head in narrow tables, which leave out columns without one."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The picture of a part, before it is drawn."""

    lines: tuple[Line, ...]
    title: str
    xlabel: str
    ylabel: str
    logarithmic: str = "xy"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A claim of the paper, the recomputed value, and whether the two agree."""

    statement: str
    printed: str
    recomputed: str
    agrees: bool
    expected: bool = True
    """Whether they should agree: a false claim of the paper should not."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A table or a figure of the paper, recomputed."""

    name: str
    title: str
    setting: str
    columns: tuple[Column, ...]
    picture: Picture
    checks: tuple[Check, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> Iterator[tuple[float | None, ...]]:
        """The values of all columns, row by row."""
        return zip(*(c.values for c in self.columns), strict=True)

    @property
    def surprises(self) -> list[Check]:
        """The checks whose outcome is not the expected one."""
        return [c for c in self.checks if c.agrees != c.expected]

    @property
    def verdict(self) -> str:
        """The outcome of the checks in words."""
        return verdict(self.checks)


def verdict(checks: Sequence[Check]) -> str:
    """Return in words how many checks agree with the paper, and whether that was expected."""
    agree, unexpected = sum(c.agrees for c in checks), sum(c.agrees != c.expected for c in checks)
    number = "one check" if len(checks) == 1 else f"{len(checks)} checks"
    outcome = f"{number} against the paper: {agree} agree, {len(checks) - agree} differ"
    return f"{outcome}, all as expected" if not unexpected else f"{outcome}; {unexpected} of them not as expected"


class Steps:
    """Progress in equal steps, each with a name."""

    def __init__(self, progress: Progress | None, name: str, total: int) -> None:
        self._progress, self._name, self._total, self._done = progress, name, total, 0

    def __call__(self, step: str) -> None:
        if self._progress is not None:
            # Announced before the step runs, so that the display names what is being computed.
            self._progress(f"{self._name}: {step}", min(self._done / self._total, 1.0))
        self._done += 1


@functools.lru_cache(maxsize=256)
def certified_epsilon(m: Mechanism, delta: float, rounds: int) -> Interval:
    """Return the certified epsilon; cached, because parts share some.

    Args:
      m: One round.
      delta: The delta of all rounds together.
      rounds: The number of rounds.

    Returns:
      The interval.
    """
    return m.epsilon(delta=delta, rounds=rounds)


def certified_epsilons(
    m: Mechanism, delta: float, rounds: Iterable[int], announce: Callable[[str], None] = lambda _: None
) -> list[Interval]:
    """Return certified epsilons, announcing each, since any crowd takes seconds.

    Args:
      m: One round.
      delta: The delta of all rounds together.
      rounds: The numbers of rounds.
      announce: Called with a description before each computation.

    Returns:
      An interval for each number of rounds.
    """
    intervals = []
    for count in rounds:
        announce(f"any crowd, {count:,} rounds")
        intervals.append(certified_epsilon(m, delta, count))
    return intervals


def exact_columns(
    rdp: tuple[float, ...] | None, identical: Sequence[Interval], any_crowd: Sequence[Interval | None]
) -> tuple[Column, ...]:
    """Return the columns of the exact results, which stand beside the paper's.

    Args:
      rdp: Epsilon by exact Rényi DP for the identical crowd, if it is shown.
      identical: The certified epsilons for the identical crowd.
      any_crowd: The certified epsilons for any crowd, None where there is none.

    Returns:
      The columns, from left to right.
    """
    head, short = "exact Rényi DP, identical crowd: ε ≤", "exact RDP, ident."
    first = () if rdp is None else (Column(key="rdp_identical", head=head, short=short, values=rdp, side="up"),)
    return (*first, *_interval_columns("identical", identical), *_interval_columns("any", any_crowd))


def _interval_columns(crowd: str, intervals: Sequence[Interval | None]) -> tuple[Column, Column]:
    lower = tuple(None if b is None else b.lower for b in intervals)
    upper = tuple(None if b is None else b.upper for b in intervals)
    return (
        Column(key=f"tight_{crowd}_lower", head=f"tight, {crowd} crowd: ε ≥", values=lower, side="down"),
        Column(
            key=f"tight_{crowd}_upper",
            head=f"tight, {crowd} crowd: ε ≤",
            values=upper,
            side="up",
            short="tight, any" if crowd == "any" else "tight, ident.",
        ),
    )


def rdp_epsilons(m: Mechanism, delta: float, rounds: Sequence[int]) -> tuple[float, ...]:
    """Return epsilons by exact Rényi DP: all orders, both directions.

    Args:
      m: One round.
      delta: The delta of all rounds together.
      rounds: The numbers of rounds.

    Returns:
      Epsilon for each number of rounds.
    """
    return tuple(b.upper for b in m.epsilon(delta=delta, rounds=list(rounds), method="rdp"))


def not_without_loss(identical: Interval, any_crowd: Interval, rounds: str = "1 round") -> Check:
    """Return the check of the paper's "w.l.o.g.": some crowd costs more than the identical one.

    Args:
      identical: Epsilon for the identical crowd.
      any_crowd: Epsilon for any crowd.
      rounds: The number of rounds, in words.

    Returns:
      The check, which is expected to differ from the paper.
    """
    return Check(
        statement=f"all others may be taken to hold the same vector “w.l.o.g.” ({rounds})",
        printed="no loss",
        recomputed=f"identical crowd ε ≤ {upper_text(identical)}, some crowd ε ≥ {lower_text(any_crowd)}",
        # Proved only if some crowd reveals more than the identical one can: ends are compared, not middles.
        agrees=any_crowd.lower <= identical.upper,
        expected=False,
    )


def upper_text(interval: Interval) -> str:
    """Return the upper end as text, rounded up."""
    return outwards(interval.upper, ".5g", 1.0)


def lower_text(interval: Interval) -> str:
    """Return the lower end as text, rounded down."""
    return outwards(interval.lower, ".5g", -1.0)


def floats(values: Iterable[Any]) -> tuple[float, ...]:
    """Return the values as a tuple of floats."""
    return tuple(float(v) for v in values)


def fraction(delta: float, users: int) -> str:
    """Return delta as text, as `1/n` where it is that.

    Args:
      delta: The delta.
      users: The number of users, n.

    Returns:
      The text.
    """
    return f"1/{users:,}" if math.isclose(delta, 1.0 / users) else f"{delta:g}"

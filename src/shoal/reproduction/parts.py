"""What every part of the reproduction is made of: columns, checks, a picture; and what all of them compute."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.audit import Progress
from shoal.interval import Interval, outwards
from shoal.literature.tables import USERS
from shoal.mechanisms import Mechanism
from shoal.plots import Line

Rounding = Literal["nearest", "up", "down", "given"]

DELTA = 1.0 / USERS


@dataclass(frozen=True, kw_only=True)
class Column:
    """One quantity: a name for the CSV file, a head for people, and a value (or None) for each row.

    `side` says how it is rounded for people: `nearest` for the paper's own numbers (as in print), `up`
    and `down` for bounds, `given` for what is not a result.
    """

    key: str
    head: str
    values: tuple[float | None, ...]
    side: Rounding = "given"
    short: str = ""
    """A head for narrow tables, in which a column without one is left out."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What is drawn of a part."""

    lines: tuple[Line, ...]
    title: str
    xlabel: str
    ylabel: str
    logarithmic: str = "xy"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A statement of the paper (or one against it), what was recomputed, and whether the two agree."""

    statement: str
    printed: str
    found: str
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
        return zip(*(c.values for c in self.columns), strict=True)

    @property
    def surprises(self) -> list[Check]:
        """Checks that did not come out as they should."""
        return [c for c in self.checks if c.agrees != c.expected]

    @property
    def verdict(self) -> str:
        """How the checks came out, in words."""
        return verdict(self.checks)


def verdict(checks: Sequence[Check]) -> str:
    """How checks came out, all of them counted, and whether that was expected."""
    agree, strange = sum(c.agrees for c in checks), sum(c.agrees != c.expected for c in checks)
    every = "one check" if len(checks) == 1 else f"{len(checks)} checks"
    said = f"{every} against the paper: {agree} agree, {len(checks) - agree} differ"
    return f"{said}, all as expected" if not strange else f"{said}; {strange} of them not as expected"


class Steps:
    """Progress in equal steps, each with a name."""

    def __init__(self, progress: Progress | None, name: str, total: int) -> None:
        self._progress, self._name, self._total, self._done = progress, name, total, 0

    def __call__(self, words: str) -> None:
        if self._progress is not None:
            # Told before a step is done: what is shown is what is being computed.
            self._progress(f"{self._name}: {words}", min(self._done / self._total, 1.0))
        self._done += 1


@functools.lru_cache(maxsize=256)
def tight(m: Mechanism, delta: float, rounds: int) -> Interval:
    """The certified bracket; kept, since parts share some."""
    return m.epsilon(delta=delta, rounds=rounds)


def brackets(
    m: Mechanism, delta: float, rounds: Iterable[int], tell: Callable[[str], None] = lambda _: None
) -> list[Interval]:
    """The certified brackets, each of which is announced, since any crowd takes seconds."""
    found = []
    for count in rounds:
        tell(f"any crowd, {count:,} rounds")
        found.append(tight(m, delta, count))
    return found


def exact_columns(
    rdp: tuple[float, ...] | None, tight: Sequence[Interval], safe: Sequence[Interval | None]
) -> tuple[Column, ...]:
    """The exact results beside the paper's: Rényi DP, and the brackets of both crowds."""
    head, short = "exact Rényi DP, identical crowd: ε ≤", "exact RDP, ident."
    first = () if rdp is None else (Column(key="rdp_identical", head=head, short=short, values=rdp, side="up"),)
    return (*first, *_bracket_columns("identical", tight), *_bracket_columns("any", safe))


def _bracket_columns(crowd: str, brackets: Sequence[Interval | None]) -> tuple[Column, Column]:
    lower = tuple(None if b is None else b.lower for b in brackets)
    upper = tuple(None if b is None else b.upper for b in brackets)
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


def rdp(m: Mechanism, delta: float, rounds: Sequence[int]) -> tuple[float, ...]:
    """Epsilon through exact Rényi DP, all orders, both directions."""
    return tuple(b.upper for b in m.epsilon(delta=delta, rounds=list(rounds), method="rdp"))


def not_without_loss(ideal: Interval, safe: Interval, when: str = "1 round") -> Check:
    """The paper's "w.l.o.g.": a loss, if some crowd costs more than the identical one."""
    return Check(
        statement=f"all others may be taken to hold the same vector “w.l.o.g.” ({when})",
        printed="no loss",
        found=f"identical crowd ε ≤ {most(ideal)}, some crowd ε ≥ {least(safe)}",
        # Proved only if what some crowd reveals is above all that the identical one can: ends, not middles.
        agrees=safe.lower <= ideal.upper,
        expected=False,
    )


def most(bracket: Interval) -> str:
    """The upper end in words, rounded up."""
    return outwards(bracket.upper, ".5g", 1.0)


def least(bracket: Interval) -> str:
    """The lower end in words, rounded down."""
    return outwards(bracket.lower, ".5g", -1.0)


def floats(values: Iterable[Any]) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def fraction(delta: float, users: int) -> str:
    return f"1/{users:,}" if math.isclose(delta, 1.0 / users) else f"{delta:g}"

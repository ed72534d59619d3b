"""How answers are shown: tables for people, JSON for programs, one sentence for the record."""

from __future__ import annotations

import contextlib
import decimal
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism

console = Console(highlight=False)


def rounded(value: float, side: str = "up", digits: int = 5) -> str:
    """A number to a few digits, rounded to the safe side: a bound stays a bound when it is printed.

    >>> rounded(0.123451), rounded(0.123451, "down")
    ('0.12346', '0.12345')
    """
    if not math.isfinite(value) or value == 0.0:
        return "0" if value == 0.0 else "inf"
    exact = decimal.Decimal(value)
    unit = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
    mode = decimal.ROUND_CEILING if side == "up" else decimal.ROUND_FLOOR
    cut = exact.quantize(unit, rounding=mode)
    if 1e-4 <= abs(value) < 1e7:
        return f"{cut:f}"
    return f"{cut:.{digits - 1}e}"


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


def plain(value: float, digits: int = 6) -> str:
    """A number that the user gave, as short as it can be written, or rounded up.

    A guarantee stays true when delta, epsilon or sigma is printed a little larger than it is.
    """
    if isinstance(value, int):
        return f"{value:,}"
    short = f"{value:.{digits}g}"
    return short if float(short) >= value else rounded(value, digits=digits)


def settings(m: Mechanism) -> str:
    """The mechanism's parameters in words."""
    names = {"users": "users", "sample": "sampled a round", "rate": "check-in rate", "bins": "bins", "sigma": "σ"}
    fields = {k: v for k, v in m.to_dict().items() if k in names}
    return ", ".join(
        f"{names[k]} = {repr(v) if k == 'rate' else plain(v, 10)}"
        for k, v in sorted(fields.items(), key=lambda kv: list(names).index(kv[0]))
    )


def guarantee(m: Mechanism, epsilon: str, delta: str, rounds: int, method: str, bracket: Any) -> str:
    """One sentence that states a whole guarantee; the bracket is the answer that was computed."""
    if method == "rdp":
        how = "Rényi DP, an upper bound"
    elif bracket.width <= 0.1 * bracket.upper:
        off = bracket.width / bracket.upper if bracket.upper else 0.0
        how = f"certified, within {rounded(off, digits=2)} (relative) of the truth" if off else "certified, exact"
    elif bracket.lower > 0.0:
        how = f"certified; no analysis can go below {rounded(bracket.lower, 'down')}"
    else:
        how = "certified upper bound"
    times = "one round" if rounds == 1 else f"{rounds:,} rounds together"
    return (
        f"{times[0].upper()}{times[1:]} of {m.label} ({settings(m)}) {'is' if rounds == 1 else 'are'} "
        f"({epsilon}, {delta})-differentially private for {m.adjacency} adjacency, "
        f"assuming {m.assumption}; {m.trust}; method: {how}."
    )


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

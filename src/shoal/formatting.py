"""Numbers and tables for people: rounded to the safe side, plurals in words, rows for notebooks."""

from __future__ import annotations

import decimal
import html
import math
from collections.abc import Iterable, Sequence


def outwards(value: float, spec: str, side: float) -> str:
    """The number in a format, rounded away from the truth.

    Args:
        value: A bound.
        spec: A format, such as ".3f".
        side: 1 for an upper bound, -1 for a lower one.

    Returns:
        The text. Read again, it is not below an upper bound, and not above a lower one.
    """
    text = format(value, spec)
    gap = side * (value - _read(text))
    moved = value
    # Moved by what rounding took, then twice as far: it ends when the text is on the right side, whatever the format.
    while side * (_read(text) - value) < 0.0:
        moved += side * gap
        gap *= 2.0
        text = format(moved, spec)
    return text


def _read(text: str) -> float:
    number = text.strip().replace(",", "").replace("_", "")
    return float(number[:-1]) / 100.0 if number.endswith("%") else float(number)


def rounded(value: float, side: str = "up", digits: int = 5) -> str:
    """A number to a few digits, rounded to the safe side.

    Args:
        value: A bound.
        side: "up" for an upper bound, "down" for a lower one.
        digits: The number of digits.

    Returns:
        Plain digits between 1e-4 and 1e7, powers of ten beyond them.

    >>> rounded(0.123451), rounded(0.123451, "down"), rounded(1076, digits=3)
    ('0.12346', '0.12345', '1080')
    """
    if not math.isfinite(value) or value == 0.0:
        return "0" if value == 0.0 else "inf"
    text = outwards(value, f".{digits - 1}e", 1.0 if side == "up" else -1.0)
    if 1e-4 <= abs(value) < 1e7:
        return f"{decimal.Decimal(text):f}"
    return text.replace("e-0", "e-").replace("e+0", "e+")


def short(value: float, digits: int = 6) -> str:
    """A number from the user, in the shortest form, or rounded up.

    A guarantee stays true when delta, epsilon or sigma is printed a little larger than it is.

    Args:
        value: The number; whole numbers are printed in full.
        digits: The largest number of digits of other numbers.

    Returns:
        The text.

    >>> short(60_000), short(1e-05), short(1 / 3)
    ('60,000', '1e-05', '0.333334')
    """
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:.{digits}g}"
    return text if float(text) >= value else rounded(value, digits=digits)


def count_of(number: int, noun: str) -> str:
    """A number and its noun, in the singular or the plural.

    Args:
        number: The number.
        noun: The noun in the singular.

    Returns:
        The words.

    >>> count_of(1, "round"), count_of(5_540, "round")
    ('one round', '5,540 rounds')
    """
    return f"one {noun}" if number == 1 else f"{number:,} {noun}s"


def distinct(texts: Iterable[str]) -> str:
    """The different texts, each once, separated by semicolons."""
    return "; ".join(dict.fromkeys(texts))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    Args:
        heads: The names of the columns.
        rows: The cells, row by row.

    Returns:
        The lines of the table.
    """
    body = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n{body}"


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """A table in HTML.

    Args:
        heads: The names of the columns; none for a table without a head.
        rows: The cells, row by row. Where there is no head, the first cell of a row is its name.
        caption: A paragraph above the table.

    Returns:
        The table.
    """
    first = "td" if heads else "th"
    body = ""
    for row in rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        body += f"<tr><{first}>{html.escape(row[0])}</{first}>{cells}</tr>"
    head = f"<tr>{''.join(f'<th>{html.escape(name)}</th>' for name in heads)}</tr>" if heads else ""
    paragraph = f"<p>{html.escape(caption)}</p>" if caption else ""
    return f"{paragraph}<table>{head}{body}</table>"

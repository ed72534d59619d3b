"""Numbers as people write them in a command or on the page."""

from __future__ import annotations

import re

from shoal.errors import InvalidInput, InvalidType

_LONGEST = 60
"""The largest number of characters; a text of millions of digits would take minutes to read."""

_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+")


def number(name: str, text: str) -> float | int:
    """A number from its text: `5540`, `5_540`, `5,540`, `1e-5` or `1/60000`.

    >>> number("delta", "1/60,000") == 1 / 60_000
    True

    Args:
        name: The name of the argument, for the message.
        text: The text.

    Returns:
        The number.

    Raises:
        InvalidType: If it is no text.
        InvalidInput: If the text is no number.
    """
    if not isinstance(text, str):
        raise InvalidType(f"{name} must be written as a text, got {text!r}")
    if len(text) > _LONGEST:
        raise InvalidInput(f"{name} must be a number of at most {_LONGEST} characters, got {len(text)}")
    parts = text.replace("_", "").split("/")
    try:
        if len(parts) == 2:
            return _plain(parts[0]) / _plain(parts[1])
        if len(parts) == 1:
            return _plain(parts[0])
    except (ValueError, ZeroDivisionError, OverflowError):
        pass
    raise InvalidInput(f"{name} must be a number such as 5, 0.1, 1e-5 or 1/60000, got {text!r}")


def _plain(text: str) -> float | int:
    text = text.strip()
    # Commas between groups of three only: 1,5 may be meant as a decimal number.
    text = text.replace(",", "") if _GROUPED.fullmatch(text) else text
    try:
        return int(text)  # first: large whole numbers stay exact
    except ValueError:
        return float(text)

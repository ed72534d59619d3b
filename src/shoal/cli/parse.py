"""From the words of a command line to mechanisms, lists and ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism

FIELDS = {
    "local": (),
    "shuffle": ("users",),
    "subsampled": ("users", "sample"),
    "check-in": ("users", "rate"),
    "balls-and-bins": ("bins",),
}
"""What each mechanism needs beside sigma."""

CROWDED = ("shuffle", "subsampled", "check-in")


def number(name: str, text: str) -> float | int:
    """`5540`, `5_540`, `1e-5` or `1/60000`."""
    parts = text.replace("_", "").split("/")
    try:
        if len(parts) == 2:
            return _plain(parts[0]) / _plain(parts[1])
        if len(parts) == 1:
            return _plain(parts[0])
    except (ValueError, ZeroDivisionError):
        pass
    raise ValueError(f"{name} must be a number such as 5, 0.1, 1e-5 or 1/60000, got {text!r}")


def _plain(text: str) -> float | int:
    try:
        return int(text)
    except ValueError:
        return float(text)


def numbers(name: str, text: str) -> list[float | int]:
    """A comma-separated list."""
    return [number(name, part.strip()) for part in text.split(",")]


def whole_numbers(name: str, text: str) -> list[int]:
    """A list of whole numbers and ranges: `1,7`, `1-7`, `100-1000:100`, `1-10000@50`.

    A range A-B includes both ends; `:S` takes steps of S, `@K` takes K values spaced evenly on a
    logarithmic scale.
    """
    from shoal import _validate

    result: list[int] = []
    for part in (p.strip() for p in text.split(",")):
        first, dash, rest = part.partition("-")
        if not dash or not first:
            result.append(_validate.rounds(number(name, part), name))
            continue
        mark = next((m for m in ":@" if m in rest), "")
        last, _, extra = rest.partition(mark) if mark else (rest, "", "")
        low, high = (_validate.rounds(number(name, end), name) for end in (first, last))
        if low > high:
            raise ValueError(f"{name} must be a range from low to high, got {part!r}")
        count = _validate.rounds(number(name, extra), name) if mark else 1
        if mark == "@":
            points = (low * (high / low) ** (i / max(count - 1, 1)) for i in range(count))
            values = sorted({low, high, *(min(high, round(p)) for p in points)}) if count > 1 else [high]
        else:
            values = list(range(low, high + 1, count))
        if len(values) > 100_000:
            raise ValueError(f"{name} must have at most 100000 values, got {len(values)}")
        result.extend(values)
    return result


def mechanism(kind: str, given: dict[str, str | None], adjacency: str, **known: Any) -> Mechanism:
    """The mechanism that the options describe; `known` sets fields without an option."""
    from shoal.mechanisms import MECHANISMS

    cls = next(c for c in MECHANISMS.values() if c.label == kind)
    needed = (*FIELDS[kind], "sigma")
    fields: dict[str, Any] = {"adjacency": adjacency}
    for name, text in given.items():
        if name in known:
            if text is not None:
                raise ValueError(f"{name} is what is looked for here, so it cannot be given")
        elif name in needed and text is None:
            raise ValueError(f"{name} must be given for {kind}: add --{name}")
        elif name not in needed and text is not None:
            raise ValueError(f"{name} is not a parameter of {kind}, which has {', '.join(needed)}")
        elif text is not None:
            fields[name] = number(name, text)
    return cls(**{**fields, **known})


def crowds(kind: str, choice: str | None) -> list[str | None]:
    """The crowds to show, or [None] for a mechanism without one."""
    if kind not in CROWDED:
        if choice is not None:
            raise ValueError(f"crowd is not a parameter of {kind}: no other user matters")
        return [None]
    return ["identical", "any"] if choice in (None, "both") else [choice]


def with_crowd(m: Mechanism, crowd: str | None) -> Mechanism:
    return m if crowd is None else m.replace(crowd=crowd)


def log_spaced(first: int, last: int, also: list[int], count: int = 60) -> list[int]:
    """About `count` whole numbers, evenly spaced on a logarithmic scale, and those in `also`."""
    points = (first * (last / first) ** (i / (count - 1)) for i in range(count))
    return sorted({*also, *(min(last, round(p)) for p in points)})


def evenly_spaced(values: list[float], count: int = 60) -> list[float]:
    """`count` numbers over the span of the values (around a single one), and the values themselves."""
    low, high = min(values), max(values)
    if low == high:
        low, high = 0.0, 1.5 * high if high > 0.0 else 1.0
    return sorted({*values, *(low + (high - low) * i / (count - 1) for i in range(count))})

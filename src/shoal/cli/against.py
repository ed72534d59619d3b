"""Pictures of epsilon against a parameter of the mechanism."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli import parse, show
from shoal.plots import band, draw

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism

_SPAN = {"sigma": 3.0, "users": 10.0, "rate": 10.0}
"""How far to either side of the given value the picture goes, as a factor."""

_NAME = {"sigma": "σ (noise multiplier)", "users": "users", "rate": "check-in rate"}


def picture(
    field: str,
    variants: list[tuple[str | None, Mechanism]],
    deltas: list[float],
    rounds: list[int],
    how: dict[str, Any],
    file: Path,
) -> Path:
    """A line for each crowd, delta and number of rounds; the value that was given is among the points."""
    lines = []
    for crowd, m in variants:
        x = values(m, field, min(25, parse.points_for(crowd)))
        for delta in deltas:
            for count in rounds:
                found = [m.replace(**{field: v}).epsilon(delta=delta, rounds=count, **how) for v in x]
                words = [] if crowd is None else [f"{show.crowd_name(crowd)} crowd"]
                words += [f"δ = {show.plain(delta)}"] if len(deltas) > 1 else []
                words += [f"{count:,} rounds"] if len(rounds) > 1 else []
                lines.append(band(", ".join(words) or m.label, x, found, marks=crowd == "any"))
    m = variants[0][1]
    notes = [f"{m.adjacency} adjacency"]
    notes += [f"δ = {show.plain(deltas[0])}"] if len(deltas) == 1 else []
    notes += [f"rounds = {rounds[0]:,}"] if len(rounds) == 1 else []
    return draw(
        lines,
        file,
        title=f"{m.label} around {m.settings}\n{', '.join(notes)}",
        xlabel=_NAME[field],
        ylabel=f"ε ({'bracket' if how['method'] == 'tight' else 'upper bound'})",
    )


def values(m: Mechanism, field: str, count: int) -> list[float]:
    """Evenly spaced on a logarithmic scale around the value given, within what the mechanism allows."""
    middle, span = getattr(m, field), _SPAN[field]
    low, high = middle / span, middle * span
    if field == "rate":
        high = min(high, 1.0)
    if field == "users":
        low = max(low, getattr(m, "sample", 1))
    points = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    if field == "users":
        return sorted({middle, *(round(p) for p in points)})
    return sorted({middle, *points})

"""The pictures of `shoal epsilon` and `shoal delta`: a line for each crowd, and for each delta or number of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.cli import parse, screen, view
from shoal.cli.interval_view import AnswerRequest
from shoal.formatting import short
from shoal.mechanisms import Mechanism
from shoal.mechanisms.parameter import named
from shoal.plots import Line, band, draw

DELTA_FLOOR = 1e-12
"""The least delta that is drawn. What is certified below it is mostly the round-off that was charged."""

REACH = {"sigma": 3.0, "users": 10.0, "rate": 10.0}
"""How far to either side of the given value a picture goes, as a factor."""

POINTS_OF_MECHANISMS = 25
"""Points of a picture in which each point is another mechanism, of which nothing is kept from the one before."""


def draw_epsilon_against_rounds(request: AnswerRequest, file: Path) -> Path:
    """Draw epsilon against rounds, a line for each crowd and delta.

    Args:
      request: What is computed.
      file: The file of the picture.

    Returns:
      The file.
    """
    lines: list[Line] = []
    for m in request.variants:
        low = min(request.rounds) if len(request.rounds) > 1 else 1
        points = parse.curve_points(m.crowd)
        x = parse.log_spaced(low, max(request.rounds), list(request.rounds), points)
        for delta in request.values:
            details = [f"δ = {short(delta)}"] if len(request.values) > 1 else []
            label = view.curve_label(m, m.crowd, *details)
            lines.append(band(label, x, request.answers(m, delta, x)))
    notes = [f"δ = {short(request.values[0])}"] if len(request.values) == 1 else []
    ylabel = f"ε ({request.kind_of_bound})"
    return draw(lines, file, title=_title(request, notes), xlabel="rounds", ylabel=ylabel, logarithmic="xy")


def draw_delta_against_epsilon(request: AnswerRequest, file: Path) -> Path:
    """Draw delta against epsilon, a line for each crowd and number of rounds.

    Args:
      request: What is computed.
      file: The file of the picture.

    Returns:
      The file.
    """
    lines: list[Line] = []
    for m in request.variants:
        points = 2 * parse.curve_points(m.crowd)
        x = _down_to_the_floor(m, max(request.rounds), request.values, points)
        for rounds in request.rounds:
            details = [view.rounds_words(rounds)] if len(request.rounds) > 1 else []
            label = view.curve_label(m, m.crowd, *details)
            lines.append(band(label, x, request.answers(m, x, rounds)))
    notes = [f"rounds = {request.rounds[0]:,}"] if len(request.rounds) == 1 else []
    return draw(
        lines,
        file,
        title=_title(request, notes),
        xlabel="ε",
        ylabel=f"δ ({request.kind_of_bound})",
        logarithmic="y",
        floor=DELTA_FLOOR,
        note=f"Drawn where δ is above {DELTA_FLOOR:g}.",
    )


def _down_to_the_floor(m: Mechanism, rounds: int, epsilons: Sequence[float], count: int) -> list[float]:
    """Return epsilons over the span of those given, as far as delta is above the floor; from 0 if it nowhere is."""
    with screen.working(m.label):
        last = m.epsilon(delta=DELTA_FLOOR, rounds=rounds, accuracy=0.01).upper  # enough for the end of an axis
    inside = [epsilon for epsilon in epsilons if epsilon <= last]
    span = [*inside, last] if len(inside) < len(epsilons) else inside
    return parse.evenly_spaced(span if min(span) < max(span) or inside else [0.0, last], count)


def draw_epsilon_against_parameter(name: str, request: AnswerRequest, file: Path) -> Path:
    """Draw epsilon against a parameter, a line for each crowd, delta and number of rounds.

    Args:
      name: The parameter, whose given value is among the points.
      request: What is computed.
      file: The file of the picture.

    Returns:
      The file.
    """
    lines = []
    for m in request.variants:
        crowd = m.crowd
        x = values_around(m, name, min(POINTS_OF_MECHANISMS, parse.curve_points(crowd)))
        for delta in request.values:
            for rounds in request.rounds:
                answers = [request.answers(m.replace(**{name: value}), delta, [rounds])[0] for value in x]
                details = [f"δ = {short(delta)}"] if len(request.values) > 1 else []
                details += [view.rounds_words(rounds)] if len(request.rounds) > 1 else []
                lines.append(band(view.curve_label(m, crowd, *details), x, answers, marks=crowd == "any"))
    notes = [f"δ = {short(request.values[0])}"] if len(request.values) == 1 else []
    notes += [f"rounds = {request.rounds[0]:,}"] if len(request.rounds) == 1 else []
    title = _title(request, notes, "{label} around {settings}")
    return draw(lines, file, title=title, xlabel=_axis(request.first, name), ylabel=f"ε ({request.kind_of_bound})")


def _title(request: AnswerRequest, notes: Sequence[str], head: str = "{label}: {settings}") -> str:
    m = request.first
    details = ", ".join([f"{m.adjacency} adjacency", *notes])
    return f"{head.format(label=m.label, settings=m.settings)}\n{details}"


def _axis(m: Mechanism, name: str) -> str:
    """Return what a parameter is called on an axis."""
    if name == "sigma":
        return "σ (noise multiplier)"
    return named(m.parameters())[name].words


def values_around(m: Mechanism, name: str, count: int) -> list[float]:
    """Return values of a parameter around its own, evenly spaced on a logarithmic scale.

    Args:
      m: The mechanism.
      name: The parameter.
      count: How many values, without its own.

    Returns:
      The values that the mechanism allows, in order.
    """
    middle, reach = getattr(m, name), REACH[name]
    low, high = middle / reach, middle * reach
    if name == "rate":
        high = min(high, 1.0)
    if name == "users":
        low = max(low, m.to_dict().get("sample", 1))
    points = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    if name == "users":
        return sorted({middle, *(round(point) for point in points)})
    return sorted({middle, *points})

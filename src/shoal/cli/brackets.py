"""Epsilon at deltas, or delta at epsilons: the same table, JSON, sentence and picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli import parse
from shoal.cli import show as shown
from shoal.plots import Line, band, check, draw
from shoal.query import EPSILON, Options

if TYPE_CHECKING:
    from shoal.mechanisms import Mechanism
    from shoal.query import Method, Question


FLOOR = 1e-12
"""The least delta that is drawn. What is certified below it is mostly the round-off that was charged."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """Of which mechanism, under which crowds, after how many rounds, and how it is to be answered."""

    variants: list[tuple[str | None, Mechanism]]
    rounds: list[int]
    method: Method
    accuracy: float

    @property
    def how(self) -> dict[str, Any]:
        return {"method": self.method, "accuracy": self.accuracy}

    @property
    def first(self) -> Mechanism:
        return self.variants[0][1]

    @property
    def bound(self) -> str:
        """What the answers are, for an axis."""
        return "bracket" if self.method == "tight" else "upper bound"


def show(
    question: Question, query: Query, given: list[float], *, as_json: bool, plot: Path | None, against: str = "rounds"
) -> None:
    """Compute, draw, and print a table and a sentence for each crowd, or JSON."""
    if plot is not None:
        check(plot)
    rows = [row for crowd, m in query.variants for value in given for row in _rows(question, query, crowd, m, value)]
    path = None
    if plot is not None:
        path = _picture(question, query, given, plot) if against == "rounds" else _around(against, query, given, plot)
    if as_json:
        payload = {"mechanism": shown.fields(query.first), **query.how, "rows": rows, "plot": path and str(path)}
        shown.emit_json(payload)
        return
    _table(question, query.first, rows)
    for crowd, _ in query.variants:
        # One sentence a crowd, for the last row: the most rounds, which is what people ask for.
        last = [row for row in rows if row["crowd"] == crowd][-1]
        shown.say(last["guarantee"])
        if "caution" in last:
            shown.say(last["caution"])
    shown.say(rows[-1]["plain"])
    shown.say_where(path)


def _rows(question: Question, query: Query, crowd: str | None, m: Mechanism, value: float) -> list[dict[str, Any]]:
    """One answer for each number of rounds."""
    options = Options(method=query.method, accuracy=query.accuracy)
    with shown.busy(m):
        answers = [m.answer(question, value, rounds=count, options=options) for count in query.rounds]
    rows = []
    for count, answer in zip(query.rounds, answers, strict=True):
        said = m.state(answer, rounds=count)
        row = {"crowd": crowd, "rounds": count, question.dual: value, question.name: shown.interval(answer.interval)}
        # Only of epsilon: what others would claim is an epsilon.
        caution = m.caution(delta=value, epsilon=answer.interval, rounds=count) if question is EPSILON else ""
        told = {"guarantee": said.sentence(), "plain": said.plain(), **({"caution": caution} if caution else {})}
        rows.append({**row, **told})
    return rows


def _table(question: Question, m: Mechanism, rows: list[dict[str, Any]]) -> None:
    cells = [
        [
            shown.crowd_name(r["crowd"]),
            f"{r['rounds']:,}",
            shown.plain(r[question.dual]),
            *shown.bounds(r[question.name]),
        ]
        for r in rows
    ]
    heads = ["crowd", "rounds", question.dual_symbol, f"{question.symbol} ≥", f"{question.symbol} ≤"]
    shown.table(f"{m.label}: {m.settings}; {m.adjacency} adjacency", heads, cells)


def _picture(question: Question, query: Query, given: list[float], file: Path) -> Path:
    """Epsilon against rounds (a line a crowd and delta), or delta against epsilon (a line a crowd and rounds)."""
    by_rounds = question is EPSILON
    keys: list[Any] = given if by_rounds else query.rounds
    lines: list[Line] = []
    for crowd, m in query.variants:
        if by_rounds:
            low = min(query.rounds) if len(query.rounds) > 1 else 1
            x: list[Any] = parse.log_spaced(low, max(query.rounds), query.rounds, parse.points_for(crowd))
        else:
            x = _down_to_the_floor(m, max(query.rounds), given, 2 * parse.points_for(crowd))
        for key in keys:
            fixed = {question.dual: key, "rounds": x} if by_rounds else {question.dual: x, "rounds": key}
            with shown.busy(m):
                answers = m.epsilon(**fixed, **query.how) if by_rounds else m.delta(**fixed, **query.how)
            words = [] if crowd is None else [f"{shown.crowd_name(crowd)} crowd"]
            if len(keys) > 1:
                words.append(f"δ = {shown.plain(key)}" if by_rounds else f"{key:,} rounds")
            lines.append(band(", ".join(words) or m.label, x, answers))
    notes = [f"{query.first.adjacency} adjacency"]
    if len(keys) == 1:
        notes.append(f"δ = {shown.plain(keys[0])}" if by_rounds else f"rounds = {keys[0]:,}")
    return draw(
        lines,
        file,
        title=f"{query.first.label}: {query.first.settings}\n{', '.join(notes)}",
        xlabel="rounds" if by_rounds else "ε",
        ylabel=f"{question.symbol} ({query.bound})",
        logarithmic="xy" if by_rounds else "y",
        floor=None if by_rounds else FLOOR,
        note="" if by_rounds else f"Drawn where δ is above {FLOOR:g}.",
    )


def _down_to_the_floor(m: Mechanism, rounds: int, given: list[float], count: int) -> list[float]:
    """Epsilons over the span of those given, but not where delta is below the floor; from 0 if it is everywhere."""
    with shown.busy(m):
        last = m.epsilon(delta=FLOOR, rounds=rounds, accuracy=0.01).upper  # the end of an axis: a hundredth will do
    inside = [e for e in given if e <= last]
    ends = [*inside, last] if len(inside) < len(given) else inside
    return parse.evenly_spaced(ends if min(ends) < max(ends) or inside else [0.0, last], count)


# ---------------------------------------------------------------------------------------------
# Epsilon against a parameter of the mechanism

_SPAN = {"sigma": 3.0, "users": 10.0, "rate": 10.0}
"""How far to either side of the given value the picture goes, as a factor."""


def _around(field: str, query: Query, deltas: list[float], file: Path) -> Path:
    """A line for each crowd, delta and number of rounds; the value that was given is among the points."""
    lines = []
    for crowd, m in query.variants:
        # Each point is another mechanism, of which nothing is kept from the one before: fewer points.
        x = values(m, field, min(25, parse.points_for(crowd)))
        for delta in deltas:
            for count in query.rounds:
                with shown.busy(m):
                    found = [m.replace(**{field: v}).epsilon(delta=delta, rounds=count, **query.how) for v in x]
                words = [] if crowd is None else [f"{shown.crowd_name(crowd)} crowd"]
                words += [f"δ = {shown.plain(delta)}"] if len(deltas) > 1 else []
                words += [f"{count:,} rounds"] if len(query.rounds) > 1 else []
                lines.append(band(", ".join(words) or m.label, x, found, marks=crowd == "any"))
    notes = [f"{query.first.adjacency} adjacency"]
    notes += [f"δ = {shown.plain(deltas[0])}"] if len(deltas) == 1 else []
    notes += [f"rounds = {query.rounds[0]:,}"] if len(query.rounds) == 1 else []
    return draw(
        lines,
        file,
        title=f"{query.first.label} around {query.first.settings}\n{', '.join(notes)}",
        xlabel=_axis(query.first, field),
        ylabel=f"ε ({query.bound})",
    )


def _axis(m: Mechanism, field: str) -> str:
    """What the field is called."""
    if field == "sigma":
        return "σ (noise multiplier)"
    return next(parameter.words for parameter in m.parameters() if parameter.name == field)


def values(m: Mechanism, field: str, count: int) -> list[float]:
    """Evenly spaced on a logarithmic scale around the value given, within what the mechanism allows."""
    middle, span = getattr(m, field), _SPAN[field]
    low, high = middle / span, middle * span
    if field == "rate":
        high = min(high, 1.0)
    if field == "users":
        low = max(low, m.to_dict().get("sample", 1))
    points = [low * (high / low) ** (i / (count - 1)) for i in range(count)]
    if field == "users":
        return sorted({middle, *(round(p) for p in points)})
    return sorted({middle, *points})

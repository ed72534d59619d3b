"""Epsilon at given deltas, or delta at given epsilons: the rows, sentences and JSON of both commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.cli import screen, view
from shoal.mechanisms import Mechanism
from shoal.query import EPSILON, Intervals, Method, Options, Question


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """What is computed of which mechanisms, after which numbers of rounds, and how."""

    question: Question
    variants: Sequence[Mechanism]
    values: Sequence[float]
    """Where: the deltas, or the epsilons."""
    rounds: Sequence[int]
    method: Method
    accuracy: float

    @property
    def options(self) -> dict[str, Any]:
        """How it is computed, as arguments of the library."""
        return {"method": self.method, "accuracy": self.accuracy}

    @property
    def first(self) -> Mechanism:
        """The first of the mechanisms, which differ in their crowd only."""
        return self.variants[0]

    @property
    def kind_of_bound(self) -> str:
        """What the answers are, for an axis."""
        return "interval" if self.method == "tight" else "upper bound"

    def answers(self, m: Mechanism, value: Any, rounds: Any) -> Intervals:
        """Return the answers for one mechanism: one value and many rounds, or many values and one number of rounds."""
        with screen.working(m.label):
            if self.question is EPSILON:
                return m.epsilon(delta=value, rounds=rounds, **self.options)
            return m.delta(epsilon=value, rounds=rounds, **self.options)


def interval_view(request: AnswerRequest, draw: Callable[[Path], Path]) -> view.View:
    """Return the answers as a table, sentences and JSON.

    Args:
      request: What is computed.
      draw: Makes the picture.
    """
    rows = [row for m in request.variants for value in request.values for row in _interval_rows(request, m, value)]
    question, m = request.question, request.first
    sentences = []
    for variant in request.variants:
        # One sentence for each crowd, about the last row: the most rounds, which is what people ask for.
        last = [row for row in rows if row["crowd"] == variant.crowd][-1]
        sentences += [last["guarantee"], *([last["caution"]] if "caution" in last else [])]
    return view.View(
        title=f"{m.label}: {m.settings}; {m.adjacency} adjacency",
        columns=[
            view.CROWD_COLUMN,
            view.count_column("rounds", "rounds"),
            view.number_column(question.dual_symbol, question.dual),
            *view.interval_columns(question.symbol, question.name),
        ],
        rows=rows,
        sentences=[*sentences, rows[-1]["plain"]],
        payload={"mechanism": view.without_crowd(m), **request.options, "rows": rows},
        draw=draw,
    )


def _interval_rows(request: AnswerRequest, m: Mechanism, value: float) -> list[dict[str, Any]]:
    """Return one row for each number of rounds."""
    question = request.question
    options = Options(method=request.method, accuracy=request.accuracy)
    with screen.working(m.label):
        answers = [m.answer(question, value, rounds=rounds, options=options) for rounds in request.rounds]
    rows = []
    for rounds, answer in zip(request.rounds, answers, strict=True):
        statement = m.state(answer, rounds=rounds)
        # Only of epsilon: what others would claim is an epsilon.
        caution = m.caution(delta=value, epsilon=answer.interval, rounds=rounds) if question is EPSILON else ""
        rows.append(
            {
                "crowd": m.crowd,
                "rounds": rounds,
                question.dual: value,
                question.name: view.ends(answer.interval),
                "guarantee": statement.sentence(),
                "plain": statement.plain(),
                **({"caution": caution} if caution else {}),
            }
        )
    return rows

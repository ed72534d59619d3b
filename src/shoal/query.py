"""Questions asked of rounds, and their answers: brackets, arrays of them, and whole statements.

A question is asked of `Bounds`: the rounds that bound the truth from above and those that bound it from below.
`How` says by which method and how exactly; every answer is an `Interval` whose upper end is the guarantee. Where a
bracket is wider than asked an `AccuracyWarning` says so: it is valid all the same.

A `Statement` is one whole answer: everything without which its number means nothing (adjacency, crowd, whom it
trusts, method, bracket), as plain data and as a sentence. The command, the analyst, reports and notebooks print it,
and nothing else writes such sentences.
"""

from __future__ import annotations

import html
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from shoal import _moved, _validate
from shoal.bounds import certify, rdp
from shoal.bounds.anycrowd import evaluate
from shoal.bounds.composition import Parts
from shoal.bounds.numeric import DELTA_MIN, DIRECTIONS, FloatArray
from shoal.bounds.round import Round
from shoal.errors import InvalidInput, InvalidType
from shoal.interval import Interval, outwards, rounded, short

Method = Literal["tight", "rdp"]
Asked = Literal["epsilon", "delta"]


class AccuracyWarning(UserWarning):
    """A bracket is wider than was asked. It is valid all the same: the truth lies in it."""


# Questions: shared by mechanisms and accountants, which differ only in the rounds they consist of


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of rounds: how to answer it exactly, for any crowd, and by Rényi DP if that knows it."""

    tight: Callable[[Parts, float, float], Interval]
    any_crowd: Callable[[Parts, float, float], float]
    name: str
    """What is asked, in words, with a place for its value."""
    by_rdp: Callable[[tuple[rdp.Repeated, ...], float, FloatArray | None], float] | None = None
    threshold: Callable[[float, float], float] = lambda value, answer: 0.0
    """The loss at which the best attack on one round decides, from the question and its answer."""


EPSILON = Question(
    tight=lambda p, d, a: certify.epsilons(p, [d], a)[0], name="epsilon at delta = {:g}",
    any_crowd=evaluate.upper_epsilon, by_rdp=rdp.least_epsilon, threshold=lambda delta, epsilon: epsilon,
)  # fmt: skip
DELTA = Question(
    tight=lambda p, e, a: certify.deltas(p, [e], a)[0], name="delta at epsilon = {:g}",
    any_crowd=evaluate.upper_delta, by_rdp=rdp.least_delta, threshold=lambda epsilon, delta: epsilon,
)  # fmt: skip
POWER = Question(
    tight=lambda p, f, a: certify.powers(p, [f], a)[0],
    name="the true positive rate at {:g}",
    any_crowd=evaluate.upper_power,
)
ADVANTAGE = Question(
    tight=lambda p, _, a: certify.advantage(p, a),
    name="the advantage",
    any_crowd=lambda p, _, a: evaluate.upper_advantage(p, a),
)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The rounds that bound the truth from above, and those that bound it from below.

    They are all the same where the mechanism is analysed exactly; otherwise two crowds that can really happen bound
    from below, the identical one and (where there is one) the opposite one.
    """

    upper: Parts
    identical: Parts
    opposite: Parts


@dataclass(frozen=True, kw_only=True)
class How:
    """How a question is to be answered."""

    method: Method
    orders: FloatArray | None
    accuracy: float
    ends: Literal["both", "upper"] = "both"

    @classmethod
    def checked(cls, method: Any, orders: Any, accuracy: Any, ends: Literal["both", "upper"] = "both") -> How:
        _validate.choice("method", method, get_args(Method))
        if orders is not None and method != "rdp":
            raise InvalidInput(f"orders must be left out for method {method!r}: they belong to 'rdp'")
        width = _validate.real("accuracy", accuracy)
        if not 0.0 < width <= 1.0:
            raise InvalidInput(f"accuracy must be above 0 and at most 1, got {width}")
        chosen = None if orders is None else _validate.orders(orders)
        return cls(method=method, orders=chosen, accuracy=width, ends=ends)

    def answer(self, parts: Bounds, value: float, question: Question) -> Interval:
        """One answer. Where the tight one falls short of its accuracy, Rényi DP may be better still."""
        if not parts.upper:
            return Interval(lower=0.0, upper=0.0)
        if self.method == "rdp":
            if question.by_rdp is None:
                raise InvalidInput("method must be 'tight' for this question, got 'rdp'")
            return Interval(lower=0.0, upper=question.by_rdp(parts.upper, value, self.orders))
        # Any crowd has a theorem from above and attacks from below: their distance is no matter of resolution.
        if evaluate.is_any(parts.upper):
            return self._any_crowd(parts, value, question)[0]
        if parts.identical != parts.upper:
            return self._between(parts, value, question)
        # One law for both ends. Where it is too wide (very little noise, say) Rényi DP holds as well, and may be less.
        found = question.tight(parts.identical, value, self.accuracy)
        if found.width <= self.accuracy * found.upper:
            return found
        if question.by_rdp is not None:
            upper = min(found.upper, question.by_rdp(parts.upper, value, None))
            found = Interval(lower=min(found.lower, upper), upper=upper)
        if self.ends == "both":
            self._tell(found, value, question, parts)
        return found

    def numerical(self, parts: Bounds, value: float, question: Question, upper: float) -> float:
        """About how much of the upper end for any crowd is due to its resolution; 0 where nothing is.

        The same bound at half the resolution is farther from its limit by four times as much: what is spread
        to the points on either side moves prices by the square of their distance. An estimate, no certificate.
        """
        if self.method == "rdp" or not evaluate.is_any(parts.upper):
            return 0.0
        fine = certify.ACCURACY if self.accuracy >= certify.ACCURACY else self._any_crowd(parts, value, question)[1]
        return max(0.0, question.any_crowd(parts.upper, value, 4.0 * fine) - upper) / 3.0

    def _any_crowd(self, parts: Bounds, value: float, question: Question) -> tuple[Interval, float]:
        """Both ends for any crowd, and the accuracy that says how fine the upper one was made.

        It is made finer until both ends are as close as asked, or until that changes the upper end by less than
        was asked: the rest of the width is between theorem and attack.
        """
        fine, upper = certify.ACCURACY, question.any_crowd(parts.upper, value, certify.ACCURACY)
        lower = self._below(parts, value, question, upper) if self.ends == "both" else 0.0
        wanted = self._wanted(question, value, upper, lambda e: question.any_crowd(parts.upper, e, certify.ACCURACY))
        # The error falls with the square of the resolution: a quarter of `fine` is twice the cells, and what a step
        # changes is three times what is left to gain.
        while upper - lower > wanted * upper and fine > max(self.accuracy, _FINEST):
            fine *= 0.25
            before, upper = upper, min(upper, question.any_crowd(parts.upper, value, fine))
            if before - upper < 3.0 * wanted * upper:
                break
        return Interval(lower=min(lower, upper), upper=upper), fine

    def _wanted(self, question: Question, value: float, upper: float, ask: Callable[[float], float]) -> float:
        """The relative width asked of an answer: delta is asked to be as narrow as epsilon would be."""
        # At 1 no width is asked for, and without an eps or a delta there is no slope.
        if question is not DELTA or self.accuracy >= 1.0 or upper <= 0.0 or value <= 0.0:
            return self.accuracy
        return self.accuracy * max(
            1.0, certify.SLOPE_DIVISOR * math.log(ask(value / (1.0 + 1.0 / certify.SLOPE_DIVISOR)) / upper)
        )

    def _between(self, parts: Bounds, value: float, question: Question) -> Interval:
        """Other rounds bound from above than from below: how wide the bracket is is a fact about what is known."""
        found = question.tight(parts.upper, value, self.accuracy)
        upper = found.upper
        if question.by_rdp is not None and found.width > self.accuracy * upper:
            upper = min(upper, question.by_rdp(parts.upper, value, None))
        lower = self._below(parts, value, question, upper) if self.ends == "both" else 0.0
        return Interval(lower=min(lower, upper), upper=upper)

    def _tell(self, found: Interval, value: float, question: Question, parts: Bounds) -> None:
        """Warn of a bracket that is wider than asked."""
        if question is DELTA and found.upper <= DELTA_MIN:
            return  # nobody asks for its digits
        wanted = self.accuracy
        if found.lower > 0.0:
            wanted = self._wanted(
                question, value, found.upper, lambda e: question.tight(parts.identical, e, self.accuracy).upper
            )
        # What is as narrow as asked up to rounding of the question's slope is not worth a warning.
        if found.width <= 1.01 * wanted * found.upper:
            return
        warnings.warn(
            f"accuracy {self.accuracy:g} was not reached: {question.name.format(value)} is certified to lie in "
            f"{found:.6g}, which is {outwards(found.width / found.upper, '.1e', 1.0)} of it wide",
            AccuracyWarning,
            stacklevel=_outside(),
        )

    def _below(self, parts: Bounds, value: float, question: Question, upper: float) -> float:
        """The better of two crowds that can really happen."""
        attack, lower = parts.opposite, 0.0
        together = zip(attack, parts.identical, strict=True)
        if not all(worse.dominates(ideal, rounds) for (worse, rounds), (ideal, _) in together):
            # A hundredth is enough for an end that mostly is not the better one, and whose bracket is wide anyway.
            lower = question.tight(parts.identical, value, max(self.accuracy, 1e-2)).lower
            lower = _sure(parts.identical, value, question, lower)
        if attack == parts.identical:
            return lower
        # An attack has the resolution it has: no accuracy is asked for.
        if len(attack) > 1 or attack[0][1] > 1:
            return max(lower, _sure(attack, value, question, question.tight(attack, value, 1.0).lower))
        found = _tuned(attack[0][0], value, question, lower, upper, guess=upper)
        # From far above it may miss what the other crowd shows: once more from there.
        if found > lower or lower == 0.0:
            return found
        return _tuned(attack[0][0], value, question, lower, upper, guess=lower)


def _tuned(attack: Round, value: float, question: Question, lower: float, upper: float, *, guess: float) -> float:
    """The best test of one round is known once the answer is: from a guess first, then from what that finds."""
    for _ in range(6):
        best = ((attack.tuned(min(question.threshold(value, guess), _TUNED_MAX)), 1),)
        before, guess = lower, _sure(best, value, question, question.tight(best, value, 1.0).lower)
        lower = max(lower, guess)
        # Another turn would gain little, or there is little left to gain.
        if lower <= 1.002 * before or guess >= 0.995 * upper:
            break
    return lower


_TUNED_MAX = 20.0
"""No attack is tuned to a larger loss: what it shows there is more than enough."""

_FINEST = 1e-4
"""No accuracy below this makes the law of any crowd finer still."""


def _sure(parts: Parts, value: float, question: Question, lower: float) -> float:
    """What attacks show, as far as eps goes for which they were made."""
    most = min(part.epsilon_max for part, _ in parts)
    # At a larger eps a smaller one is claimed, of delta there nothing.
    if question is EPSILON:
        return min(lower, most)
    return 0.0 if question is DELTA and value > most else lower


def _outside() -> int:
    """The stack level, seen from who calls this, of the first line that is not the package's."""
    home, level = f"{Path(__file__).parent}{os.sep}", 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        frame, level = frame.f_back, level + 1
    return level


class Intervals(np.ndarray[Any, np.dtype[np.object_]]):
    """An array of intervals; `lower` and `upper` are arrays of numbers."""

    @classmethod
    def of(cls, answers: list[Interval]) -> Intervals:
        # Filled in a second step: numpy would try to make numbers of them.
        result = np.empty(len(answers), dtype=object)
        result[:] = answers
        return result.view(cls)

    @property
    def lower(self) -> FloatArray:
        return self._ends("lower")

    @property
    def upper(self) -> FloatArray:
        return self._ends("upper")

    def _ends(self, name: str) -> FloatArray:
        return np.array([getattr(one, name) for one in self.flat], dtype=float).reshape(self.shape)


def _ask(
    values: Any, name: str, check: Callable[[Any], float], rounds: Any, answer: Callable[[float, int], Interval]
) -> Any:
    """One answer, or an array of them: values and rounds are paired as numpy would (one with all)."""
    checked = [check(v) for v in _validate.each(name, values)]
    counts = [_validate.rounds(r) for r in _validate.each("rounds", rounds)]
    size = max(len(checked), len(counts))
    if {len(checked), len(counts)} - {1, size}:
        raise InvalidInput(f"{name} and rounds must have the same length, got {len(checked)} and {len(counts)}")
    if len(checked) < size:
        checked *= size
    if len(counts) < size:
        counts *= size
    if _validate.is_scalar(values) and _validate.is_scalar(rounds):
        return answer(checked[0], counts[0])
    return Intervals.of([answer(v, r) for v, r in zip(checked, counts, strict=True)])


def ask_epsilon(parts: Callable[[int], Bounds], delta: Any, rounds: Any, asked: How) -> Any:
    """Epsilon of `parts(rounds)` for one or many deltas and rounds."""
    return _ask(delta, "delta", _validate.delta, rounds, lambda d, r: asked.answer(parts(r), d, EPSILON))


def ask_delta(parts: Callable[[int], Bounds], epsilon: Any, rounds: Any, asked: How) -> Any:
    """Delta of `parts(rounds)` for one or many epsilons and rounds."""
    return _ask(epsilon, "epsilon", _validate.epsilon, rounds, lambda e, r: asked.answer(parts(r), e, DELTA))


def ask_power(parts: Bounds, fpr: Any, accuracy: Any) -> Any:
    """The largest true positive rate at one or many false positive rates."""
    asked = How.checked("tight", None, accuracy)
    found = [asked.answer(parts, _validate.delta(f, "fpr"), POWER) for f in _validate.each("fpr", fpr)]
    return found[0] if _validate.is_scalar(fpr) else Intervals.of(found)


def ask_rdp(parts: Bounds, orders: Any, direction: str) -> FloatArray:
    """Rényi DP of `parts` at one or many orders; always an array."""
    _validate.choice("direction", direction, ("worse", *DIRECTIONS))
    checked = _validate.orders(orders)
    each = [rdp.divergences(parts.upper, checked, d) for d in DIRECTIONS if direction in ("worse", d)]
    worst: FloatArray = np.stack(each).max(axis=0)
    return worst


# Whole answers


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Some rounds of one mechanism, in words and as data."""

    label: str
    settings: str
    rounds: int
    mechanism: Mapping[str, Any]

    def __str__(self) -> str:
        times = "one round" if self.rounds == 1 else f"{self.rounds:,} rounds"
        return f"{times} of {self.label} ({self.settings})"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One whole answer: what was run, what is claimed about it, and all that the claim rests on.

    `asked` names the one of epsilon and delta that was computed; the other was given. `trust` and `assumption` have a
    line for each different one among the runs. `note` says what else the number rests on, if anything.
    """

    runs: tuple[Rounds, ...]
    adjacency: str
    crowd: str | None
    assumption: str
    trust: str
    method: Method
    asked: Asked
    given: float
    answer: Interval
    accuracy: float
    numerical: float = 0.0
    """About how much of the width is due to resolution; for any crowd, whose upper end is a theorem's."""
    note: str = ""

    @property
    def gap(self) -> float:
        """How much of the width is not: for any crowd, what is between the theorem and the best attack known."""
        return max(0.0, self.answer.width - self.numerical)

    @property
    def epsilon(self) -> float:
        """The epsilon of the guarantee."""
        return self.answer.upper if self.asked == "epsilon" else self.given

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self.answer.upper if self.asked == "delta" else self.given

    @property
    def reached(self) -> float:
        """The relative width of the bracket: 0 where it is exact, 1 where nothing bounds from below or above."""
        if math.isinf(self.answer.upper):
            return 1.0
        return self.answer.width / self.answer.upper if self.answer.upper > 0.0 else 0.0

    def _part(self, width: float) -> float:
        return width / self.answer.upper if 0.0 < self.answer.upper < math.inf else 0.0

    def how(self) -> str:
        """The method, and what the bracket says, in words."""
        if self.method == "rdp":
            return "Rényi DP, an upper bound"
        # Up to a tenth the width is called what it is; beyond, the lower end alone is of use.
        off = self.reached
        if off <= 0.1:
            part = rounded(self._part(self.numerical), digits=1)
            within = (
                f"certified, within {rounded(off, digits=2)} (relative) of the truth" if off else "certified, exact"
            )
            return f"{within}, of which about {part} is numerical" if self.numerical else within
        if self.answer.lower > 0.0:
            return f"certified; no analysis can go below {rounded(self.answer.lower, 'down')}"
        return "certified upper bound"

    def sentence(self) -> str:
        """The whole guarantee in one sentence, every number rounded to the safe side."""
        ends = {self.asked: rounded(self.answer.upper), _OTHER[self.asked]: short(self.given)}
        total = sum(run.rounds for run in self.runs)
        runs = _alike(self.runs)
        first = runs[0]
        if len(runs) == 1:
            times = "one round" if total == 1 else f"{total:,} rounds together"
            what = f"{times} of {first.label} ({first.settings})"
        elif len(runs) <= _NAMED:
            what = f"{', '.join(map(str, runs[:-1]))} and {runs[-1]} together"
        else:
            labels = " and ".join(dict.fromkeys(run.label for run in runs))
            what = f"{total:,} rounds together of {labels} (with {len(self.runs)} different settings)"
        return (
            f"{what[0].upper()}{what[1:]} {'is' if total == 1 else 'are'} "
            f"({ends['epsilon']}, {ends['delta']})-differentially private for {self.adjacency} adjacency, "
            f"assuming {self.assumption}; {self.trust}; method: {self.how()}{'; ' if self.note else ''}{self.note}."
        )

    def plain(self) -> str:
        """The guarantee for people who do not know epsilon: what an attacker gains, as cases in a hundred.

        By (epsilon, delta)-differential privacy a test with false positive rate f has a true positive rate of at most
        `e^epsilon f + delta`. Every number is rounded up.
        """
        found, text = self._right_of_100(), f"In plain words: {self.in_short()}"
        if found is None:
            return text
        before, weak, after = text.partition(_NOT_ENOUGH)
        return (
            f"{before} A test that is wrong in 1 of 100 cases where it {self._otherwise} is right in at most "
            f"{rounded(found, digits=4)} of 100 where it was used; guessing is right in 1.{weak}{after}"
        )

    def in_short(self) -> str:
        """The same without numbers: what whoever has seen the output can tell about one user."""
        found = self._right_of_100()
        if found is None:
            return "this protects nobody."
        can, judged = ("may well", _NOT_ENOUGH) if found >= _WEAK else ("can hardly", "")
        told = f"whoever has seen the whole output {can} tell whether one user's data was used or {self._otherwise}."
        return f"{told}{judged}"

    @property
    def _otherwise(self) -> str:
        return "had been left out" if self.adjacency == "zero-out" else "had been any other"

    def _right_of_100(self) -> float | None:
        """How often a test that is wrong in 1 of 100 cases can be right, of 100; nothing where it may always be."""
        # e^700 is near the largest double; long before it every test is right.
        if math.isinf(self.epsilon) or self.epsilon > 700.0:
            return None
        ratio = math.nextafter(math.exp(self.epsilon) * (1.0 + 1e-15), math.inf)
        return min(100.0, ratio + 100.0 * self.delta)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data (JSON will do): numbers as they are, the sentence with them."""
        return {
            "runs": [{**run.mechanism, "rounds": run.rounds} for run in self.runs],
            "adjacency": self.adjacency,
            "crowd": self.crowd,
            "assumption": self.assumption,
            "trust": self.trust,
            "method": self.method,
            "asked": self.asked,
            _OTHER[self.asked]: self.given,
            self.asked: {"lower": self.answer.lower, "upper": self.answer.upper},
            "accuracy": {
                "asked": self.accuracy,
                "reached": self.reached,
                "numerical": self._part(self.numerical),
                "gap": self._part(self.gap),
            },
            "note": self.note,
            "guarantee": self.sentence(),
            "plain": self.plain(),
        }

    def __str__(self) -> str:
        return self.sentence()

    def facts(self) -> list[tuple[str, str]]:
        """What a notebook or a page shows of it, row by row."""
        symbols = {"epsilon": "ε", "delta": "δ"}
        return [
            ("rounds", "; ".join(map(str, _alike(self.runs)))),
            (symbols[_OTHER[self.asked]], short(self.given)),
            (symbols[self.asked], f"at most {rounded(self.answer.upper)}"),
            ("adjacency", self.adjacency),
            ("assumes", self.assumption),
            ("trust", self.trust),
            ("method", self.how()),
            *([("note", self.note)] if self.note else []),
        ]

    def _repr_markdown_(self) -> str:
        rows = "".join(f"| {name} | {value} |\n" for name, value in self.facts())
        return f"{self.sentence()}\n\n| | |\n|---|---|\n{rows}"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in self.facts())
        return f"<p>{html.escape(self.sentence())}</p><table>{rows}</table>"


_NAMED = 4
"""A sentence spells out so many runs; the data has all of them."""

_WEAK = 10.0
"""From so many of 100 cases on that a test finds, where guessing finds one, a guarantee is called weak."""

_NOT_ENOUGH = " Few would accept that as protection."


_COUNTS = {"users": "users", "sample": "sampled a round"}
"""What may differ between runs that a sentence tells together, and its words there."""


def _alike(runs: tuple[Rounds, ...]) -> tuple[Rounds, ...]:
    """Runs for a sentence: where they are many, one for all that differ in the number of users and sampled only."""
    if len(runs) <= _NAMED:
        return runs
    found: dict[tuple[Any, ...], list[Rounds]] = {}
    for one in runs:
        rest = tuple((k, v) for k, v in one.mechanism.items() if k not in _COUNTS)
        found.setdefault(rest, []).append(one)
    return tuple(_together(same) for same in found.values())


def _together(same: list[Rounds]) -> Rounds:
    words = same[0].settings
    for name, called in _COUNTS.items():
        values = [one.mechanism.get(name, 0) for one in same]
        least, most = min(values), max(values)
        if least < most:
            words = words.replace(f"{called} = {short(values[0])}", f"{called} = {short(least)} to {short(most)}", 1)
    return replace(same[0], settings=words, rounds=sum(one.rounds for one in same))


_OTHER: dict[str, Asked] = {"epsilon": "delta", "delta": "epsilon"}


def which_asked(epsilon: Any, delta: Any) -> Asked:
    """The one of the two that was left out, and so is asked for."""
    if (epsilon is None) == (delta is None):
        raise InvalidType("either delta or epsilon must be given, and not both: the other one is the answer")
    return "epsilon" if epsilon is None else "delta"


def __getattr__(name: str) -> Any:
    """A class under its old name."""
    if f"{__name__}.{name}" in _moved.RENAMED:
        return _moved.renamed(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

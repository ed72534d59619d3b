"""Questions about rounds, and their answers.

    Question    which number is wanted: `EPSILON`, `DELTA`, `POWER` (a true positive rate) or `ADVANTAGE`
    Bounds      the rounds that bound the truth from above, and the attacks that bound it from below
    Options     by which method, and how exactly
    solve       the answer to a question about bounds: an interval, and what part of its width is numerical
    guarantee   the upper end of that interval alone

The upper end of every answer is the guarantee. Where an interval is wider than the options ask for, an
`AccuracyWarning` says so: it is valid all the same.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from shoal import _moved, _validate
from shoal.bounds import certify, rdp
from shoal.bounds.anycrowd import evaluate
from shoal.bounds.composition import Parts
from shoal.bounds.numeric import DELTA_MIN, DIRECTIONS, FloatArray
from shoal.bounds.round import Round
from shoal.errors import InvalidInput
from shoal.formatting import outwards, rounded
from shoal.interval import Interval

Method = Literal["tight", "rdp"]
"""Certified intervals, or upper bounds through Rényi DP."""

QuestionName = Literal["epsilon", "delta", "power", "advantage"]

_TUNED_LOSS_MAX = 20.0
"""No attack is tuned to a larger loss: what it shows there is more than enough."""

_TUNINGS_MAX = 6
"""An attack is tuned at most this often; two or three turns usually settle it."""

_RESOLUTION_MIN = 1e-4
"""No accuracy below this refines the law of any crowd further."""

_ATTACK_ACCURACY = 1e-2
"""The accuracy of the first attack: it rarely is the best one, and then the interval is wide anyway."""


class AccuracyWarning(UserWarning):
    """An interval is wider than requested. It is still valid: the truth lies in it."""


# Questions


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which number is wanted, and how it is computed from rounds."""

    name: QuestionName
    symbol: str
    dual: str
    """The name of the value at which it is computed; empty if it needs none."""

    dual_symbol: str
    check: Callable[[Any], float] = field(repr=False)
    """Takes a value of the dual; returns it, or says what is wrong with it."""

    tight: Callable[[Parts, float, float], Interval] = field(repr=False)
    """The certified interval, from rounds, value and accuracy."""

    any_crowd: Callable[[Parts, float, float], float] = field(repr=False)
    """An upper bound for rounds among any crowd, from rounds, value and accuracy."""

    by_rdp: Callable[[Parts, float, FloatArray | None], float] | None = field(default=None, repr=False)
    """An upper bound through Rényi DP, from rounds, value and orders, if there is one."""

    threshold: Callable[[float, float], float] = field(default=lambda value, answer: 0.0, repr=False)
    """The loss at which the best attack on one round decides, from the value and the answer."""

    def __str__(self) -> str:
        return self.name

    def at(self, value: float) -> str:
        """The question in words."""
        return f"{self.name} at {self.dual} = {value:g}" if self.dual else f"the {self.name}"


EPSILON = Question(
    name="epsilon",
    symbol="ε",
    dual="delta",
    dual_symbol="δ",
    check=_validate.delta,
    tight=lambda parts, delta, accuracy: certify.epsilons(parts, [delta], accuracy)[0],
    any_crowd=evaluate.upper_epsilon,
    by_rdp=rdp.least_epsilon,
    threshold=lambda delta, epsilon: epsilon,
)
DELTA = Question(
    name="delta",
    symbol="δ",
    dual="epsilon",
    dual_symbol="ε",
    check=_validate.epsilon,
    tight=lambda parts, epsilon, accuracy: certify.deltas(parts, [epsilon], accuracy)[0],
    any_crowd=evaluate.upper_delta,
    by_rdp=rdp.least_delta,
    threshold=lambda epsilon, delta: epsilon,
)
POWER = Question(
    name="power",
    symbol="TPR",
    dual="fpr",
    dual_symbol="FPR",
    check=lambda fpr: _validate.delta(fpr, "fpr"),
    tight=lambda parts, fpr, accuracy: certify.powers(parts, [fpr], accuracy)[0],
    any_crowd=evaluate.upper_power,
)
ADVANTAGE = Question(
    name="advantage",
    symbol="TPR - FPR",
    dual="",
    dual_symbol="",
    check=lambda value: 0.0,
    tight=lambda parts, _, accuracy: certify.advantage(parts, accuracy),
    any_crowd=lambda parts, _, accuracy: evaluate.upper_advantage(parts, accuracy),
)
QUESTIONS = {question.name: question for question in (EPSILON, DELTA, POWER, ADVANTAGE)}
"""All questions, by name."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Rounds that bound the truth from above, and attacks that bound it from below.

    Each attack is a list of rounds that can really happen. The first is the one that is known exactly and is quick to
    evaluate: that of the identical crowd, where a crowd matters. An analysis is exact if its upper bound is that
    attack: one law then gives both ends.
    """

    upper: Parts
    attacks: tuple[Parts, ...]

    @property
    def is_exact(self) -> bool:
        """Whether one law gives both ends."""
        return self.attacks[0] == self.upper

    @classmethod
    def together(cls, bounds: Iterable[Bounds]) -> Bounds:
        """The bounds of several mechanisms together; attack i combines attack i (or the last) of each."""
        terms = tuple(bounds)
        count = max((len(term.attacks) for term in terms), default=1)
        attacks = [
            tuple(itertools.chain.from_iterable(term.attacks[min(i, len(term.attacks) - 1)] for term in terms))
            for i in range(count)
        ]
        upper = tuple(itertools.chain.from_iterable(term.upper for term in terms))
        return cls(upper=upper, attacks=tuple(dict.fromkeys(attacks)))


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a question is to be answered.

    Args:
        method: "tight", or "rdp" for an upper bound through Rényi DP.
        orders: The Rényi orders for "rdp"; all by default.
        accuracy: The relative width that an interval should have; for delta, that of the epsilon at it.

    Raises:
        InvalidInput: Where an argument is not allowed.
    """

    method: Method = "tight"
    orders: tuple[float, ...] | None = None
    accuracy: float = certify.ACCURACY

    def __post_init__(self) -> None:
        _validate.choice("method", self.method, get_args(Method))
        if self.orders is not None:
            if self.method != "rdp":
                raise InvalidInput(f"orders must be left out for method {self.method!r}: they belong to 'rdp'")
            object.__setattr__(self, "orders", tuple(_validate.orders(self.orders).tolist()))
        accuracy = _validate.real("accuracy", self.accuracy)
        if not 0.0 < accuracy <= 1.0:
            raise InvalidInput(f"accuracy must be above 0 and at most 1, got {accuracy}")
        object.__setattr__(self, "accuracy", accuracy)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An interval, with the question that it answers and what its width is due to."""

    question: Question
    value: float
    """The value at which the question was asked: the delta of an epsilon, say."""

    options: Options
    interval: Interval
    bounds: Bounds = field(repr=False)
    resolution: float | None = None
    """The accuracy at which the law of any crowd was computed; None where no such law was."""

    @functools.cached_property
    def numerical(self) -> float:
        """The estimated part of an upper end for any crowd that is due to resolution.

        At half the resolution the same bound is four times as far from its limit, because what is moved to the points
        on either side changes prices by the square of their distance. An estimate, no certificate.
        """
        if self.resolution is None:
            return 0.0
        coarse = self.question.any_crowd(self.bounds.upper, self.value, 4.0 * self.resolution)
        return max(0.0, coarse - self.interval.upper) / 3.0


# How it is answered


def solve(question: Question, bounds: Bounds, value: float, options: Options) -> Answer:
    """The answer to a question about rounds.

    Args:
        question: Which number is wanted.
        bounds: The rounds.
        value: At which delta, epsilon or false positive rate; 0 for the advantage.
        options: By which method, and how exactly.

    Returns:
        The answer, both ends.

    Raises:
        InvalidInput: Where the method has no answer to the question.
    """
    interval, resolution = _interval(question, bounds, value, options)
    if resolution is None and options.method == "tight" and bounds.upper and bounds.is_exact:
        _warn_if_wide(question, bounds, value, options, interval)
    return Answer(
        question=question, value=value, options=options, interval=interval, bounds=bounds, resolution=resolution
    )


def guarantee(question: Question, bounds: Bounds, value: float, options: Options) -> float:
    """The upper end of an answer; no attack is evaluated, and no warning issued.

    Args:
        question: Which number is wanted.
        bounds: The rounds.
        value: At which delta, epsilon or false positive rate; 0 for the advantage.
        options: By which method, and how exactly.

    Returns:
        The guarantee.

    Raises:
        InvalidInput: Where the method has no answer to the question.
    """
    return _interval(question, bounds, value, options, with_lower=False)[0].upper


def _interval(
    question: Question, bounds: Bounds, value: float, options: Options, *, with_lower: bool = True
) -> tuple[Interval, float | None]:
    """The interval (from 0, if its lower end is not needed), and the resolution of the law of any crowd."""
    if not bounds.upper:
        return Interval(lower=0.0, upper=0.0), None
    if options.method == "rdp":
        if question.by_rdp is None:
            raise InvalidInput("method must be 'tight' for this question, got 'rdp'")
        orders = None if options.orders is None else np.array(options.orders)
        return Interval(lower=0.0, upper=question.by_rdp(bounds.upper, value, orders)), None
    # Any crowd has a theorem from above and attacks from below: their distance is no matter of resolution.
    if evaluate.is_any(bounds.upper):
        return _any_crowd(question, bounds, value, options, with_lower)
    interval = question.tight(bounds.upper, value, options.accuracy)
    upper = interval.upper
    # Too wide (very little noise, say): Rényi DP holds as well, and may be less.
    if question.by_rdp is not None and interval.width > options.accuracy * upper:
        upper = min(upper, question.by_rdp(bounds.upper, value, None))
    if bounds.is_exact:
        return Interval(lower=min(interval.lower, upper), upper=upper), None
    lower = _best_attack(question, bounds, value, options, upper) if with_lower else 0.0
    return Interval(lower=min(lower, upper), upper=upper), None


def _any_crowd(
    question: Question, bounds: Bounds, value: float, options: Options, with_lower: bool
) -> tuple[Interval, float]:
    """Both ends for any crowd, and the accuracy that says how fine the law for the upper one was.

    The law is refined until both ends are as close as asked, or until that changes the upper end by less than was
    asked: the rest of the width is between theorem and attack.
    """
    resolution, upper = certify.ACCURACY, question.any_crowd(bounds.upper, value, certify.ACCURACY)
    lower = _best_attack(question, bounds, value, options, upper) if with_lower else 0.0
    width = _relative_width(
        question, value, options, upper, lambda e: question.any_crowd(bounds.upper, e, certify.ACCURACY)
    )
    # The error falls with the square of the resolution: a quarter of the accuracy is twice the cells, and what a step
    # changes is three times what is left to gain.
    while upper - lower > width * upper and resolution > max(options.accuracy, _RESOLUTION_MIN):
        resolution *= 0.25
        before, upper = upper, min(upper, question.any_crowd(bounds.upper, value, resolution))
        if before - upper < 3.0 * width * upper:
            break
    return Interval(lower=min(lower, upper), upper=upper), resolution


def _relative_width(
    question: Question, value: float, options: Options, upper: float, delta_at: Callable[[float], float]
) -> float:
    """The relative width that an answer should have; a delta should be as narrow as its epsilon would be."""
    # At accuracy 1 any width will do, and without an eps or a delta there is no slope.
    if question is not DELTA or options.accuracy >= 1.0 or upper <= 0.0 or value <= 0.0:
        return options.accuracy
    nearby = delta_at(value / (1.0 + 1.0 / certify.SLOPE_DIVISOR))
    return options.accuracy * max(1.0, certify.SLOPE_DIVISOR * math.log(nearby / upper))


def _best_attack(question: Question, bounds: Bounds, value: float, options: Options, upper: float) -> float:
    """The largest lower bound that an attack proves."""
    first, *rest = bounds.attacks
    lower = 0.0
    if not any(_dominates(attack, first) for attack in rest):
        accuracy = max(options.accuracy, _ATTACK_ACCURACY)
        lower = _within_range(question, first, value, question.tight(first, value, accuracy).lower)
    for attack in rest:
        if len(attack) > 1 or attack[0][1] > 1:
            # The resolution of an attack is fixed, so no accuracy is requested.
            proved = question.tight(attack, value, 1.0).lower
            lower = max(lower, _within_range(question, attack, value, proved))
            continue
        tuned = _tuned(question, attack[0][0], value, lower, upper, guess=upper)
        # From a guess far above, it may miss what another attack shows: once more from there.
        if tuned <= lower and lower != 0.0:
            tuned = _tuned(question, attack[0][0], value, lower, upper, guess=lower)
        lower = tuned
    return lower


def _dominates(attack: Parts, weaker: Parts) -> bool:
    """Whether an attack certainly proves at least as much as another one."""
    return len(attack) == len(weaker) and all(
        round_.dominates(other_round, rounds) for (round_, rounds), (other_round, _) in zip(attack, weaker, strict=True)
    )


def _tuned(question: Question, attack: Round, value: float, lower: float, upper: float, *, guess: float) -> float:
    """The lower bound by the best test of one round, or the present one.

    Which test is best is known once the answer is: it is tuned to a guess first, then to what that proves.
    """
    for _ in range(_TUNINGS_MAX):
        test = ((attack.tuned(min(question.threshold(value, guess), _TUNED_LOSS_MAX)), 1),)
        before, guess = lower, _within_range(question, test, value, question.tight(test, value, 1.0).lower)
        lower = max(lower, guess)
        # Another turn would gain little, or there is little left to gain.
        if lower <= 1.002 * before or guess >= 0.995 * upper:
            break
    return lower


def _within_range(question: Question, attack: Parts, value: float, lower: float) -> float:
    """The lower bound of an attack, as far as its epsilon goes."""
    epsilon_max = min(round_.epsilon_max for round_, _ in attack)
    # At a larger eps a smaller one is claimed, of delta there nothing.
    if question is EPSILON:
        return min(lower, epsilon_max)
    return 0.0 if question is DELTA and value > epsilon_max else lower


def _warn_if_wide(question: Question, bounds: Bounds, value: float, options: Options, interval: Interval) -> None:
    """Warn of an interval that is wider than asked."""
    if interval.width <= options.accuracy * interval.upper:
        return
    if question is DELTA and interval.upper <= DELTA_MIN:
        return  # nobody needs its digits
    width = options.accuracy
    if interval.lower > 0.0:
        width = _relative_width(
            question,
            value,
            options,
            interval.upper,
            lambda e: question.tight(bounds.upper, e, options.accuracy).upper,
        )
    # What is as narrow as asked up to rounding of the question's slope is not worth a warning.
    if interval.width <= 1.01 * width * interval.upper:
        return
    if interval.lower > 0.0:
        width_text = outwards(interval.width / interval.upper, ".1e", 1.0)
        result = f"is certified to lie in {interval:.6g}, whose relative width is {width_text}"
    else:
        result = f"is at most {rounded(interval.upper)}; nothing is known from below, because {_no_lower_end(bounds)}"
    warnings.warn(
        f"accuracy {options.accuracy:g} was not reached: {question.at(value)} {result}",
        AccuracyWarning,
        stacklevel=_levels_to_caller(),
    )


def _no_lower_end(bounds: Bounds) -> str:
    """The reason why an interval begins at 0, in words."""
    if not certify.in_range(bounds.upper):
        return "exact laws are not computed at this noise, or for this many users or rounds"
    return "the number is smaller than exact laws resolve"


def _levels_to_caller() -> int:
    """The stack level, seen from who calls this, of the first line that is not the package's."""
    home, level = f"{Path(__file__).parent}{os.sep}", 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        frame, level = frame.f_back, level + 1
    return level


# Many answers at once


class Intervals(np.ndarray[Any, np.dtype[np.object_]]):
    """An array of intervals; `lower` and `upper` are arrays of numbers."""

    @classmethod
    def of(cls, intervals: list[Interval]) -> Intervals:
        """The array of these intervals."""
        # Filled in a second step: numpy would try to make numbers of them.
        result = np.empty(len(intervals), dtype=object)
        result[:] = intervals
        return result.view(cls)

    @property
    def lower(self) -> FloatArray:
        """The lower ends."""
        return self._ends("lower")

    @property
    def upper(self) -> FloatArray:
        """The upper ends, which are the guarantees."""
        return self._ends("upper")

    def _ends(self, name: str) -> FloatArray:
        return np.array([getattr(interval, name) for interval in self.flat], dtype=float).reshape(self.shape)


def intervals(question: Question, bounds: Callable[[int], Bounds], values: Any, rounds: Any, options: Options) -> Any:
    """The interval at a value and a number of rounds, or an array of them.

    Args:
        question: Which number is wanted.
        bounds: The bounds of a number of rounds.
        values: One value or several.
        rounds: One number of rounds or several; paired with the values as numpy would (one with all).
        options: By which method, and how exactly.

    Returns:
        An `Interval`, or `Intervals` where there are several values or numbers of rounds.

    Raises:
        InvalidInput: Where a value is not allowed, or there are as many values as numbers of rounds in neither way.
    """
    name = question.dual
    points = [question.check(value) for value in _validate.each(name, values)]
    counts = [_validate.rounds(count) for count in _validate.each("rounds", rounds)]
    size = max(len(points), len(counts))
    if {len(points), len(counts)} - {1, size}:
        raise InvalidInput(f"{name} and rounds must have the same length, got {len(points)} and {len(counts)}")
    pairs = zip(points * (size // len(points)), counts * (size // len(counts)), strict=True)
    answers = [solve(question, bounds(count), value, options).interval for value, count in pairs]
    return answers[0] if _validate.is_scalar(values) and _validate.is_scalar(rounds) else Intervals.of(answers)


def divergences(bounds: Bounds, orders: Any, direction: certify.DirectionChoice) -> FloatArray:
    """Rényi DP of rounds, always an array.

    Args:
        bounds: The rounds.
        orders: One order or several.
        direction: D(P||Q), D(Q||P), or the worse of the two.

    Returns:
        An upper bound for each order.

    Raises:
        InvalidInput: Where an argument is not allowed.
    """
    _validate.choice("direction", direction, get_args(certify.DirectionChoice))
    points = _validate.orders(orders)
    directions = [name for name in DIRECTIONS if direction in ("worse", name)]
    return np.stack([rdp.divergences(bounds.upper, points, name) for name in directions]).max(axis=0)


def __getattr__(name: str) -> Any:
    """An object under its old name."""
    return _moved.old_attribute(__name__, name)

"""The target of a calibration: a number that must not be exceeded, and about where a parameter meets it.

The number is an epsilon at a delta, the power of the best test at a false positive rate, or its advantage.

For any crowd an epsilon takes some tenths of a second. There a search starts where a coarser law meets the target:
that only chooses where to look, and every answer is computed at full accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from shoal import _validate
from shoal.accountant import Accountant
from shoal.bounds import certify
from shoal.bounds.anycrowd import evaluate
from shoal.calibrate.searching import Point, expand, narrow
from shoal.errors import InvalidInput, InvalidType
from shoal.mechanisms import Mechanism, bounds
from shoal.query import ADVANTAGE, EPSILON, POWER, Bounds, Options, Question, guarantee

_COARSE_ACCURACY = 4.0 * certify.ACCURACY
"""The accuracy of laws that only say where to look: a quarter of the work."""

_IDENTICAL_ACCURACY, _IDENTICAL_WIDTH = 0.01, 0.1
"""Accuracy and width of the search for the identical crowd, which meets the target somewhere else anyway."""

_SLOPE_STEP = 0.2
"""The step, on a logarithmic scale, over which the identical crowd's slope is measured."""

_STEP = math.log(2.0)
"""The longest step backwards of a search by slopes; forwards it may take two."""

_CLOSE = 0.02
"""Within this of the target, on a logarithmic scale, a slope says where it is met."""

_SLOPE_MIN = 0.01
"""Where epsilon falls more slowly than this power, a slope says nothing."""

_COARSE_TRIES = 8
"""Evaluations with coarse laws before the search without slopes takes over."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A number to be met, and how it is computed."""

    name: str
    """What users call the number: epsilon, tpr or advantage."""

    question: Question
    value: float
    """At which delta or false positive rate."""

    limit: float
    floor: float = 0.0
    """What the number falls to if nothing is revealed."""

    options: Options

    @classmethod
    def of(
        cls,
        *,
        options: Options,
        epsilon: float | None = None,
        delta: float | None = None,
        tpr: float | None = None,
        fpr: float | None = None,
        advantage: float | None = None,
    ) -> Target:
        """The target that arguments describe: epsilon and delta, tpr and fpr, or an advantage.

        Args:
            options: How the number is computed.
            epsilon: The epsilon to be met at `delta`.
            delta: Its delta.
            tpr: The true positive rate that no test may exceed at the false positive rate `fpr`.
            fpr: Its false positive rate.
            advantage: The difference of both rates that no test may exceed.

        Returns:
            The target.

        Raises:
            InvalidInput: If a number is not allowed.
            InvalidType: Unless exactly one target is described.
        """
        arguments = {"epsilon": epsilon, "delta": delta, "tpr": tpr, "fpr": fpr, "advantage": advantage}
        names = {name for name, number in arguments.items() if number is not None}
        if names == {"epsilon", "delta"}:
            limit, place = _validate.epsilon(epsilon, positive=True), _validate.delta(delta)
            return cls(name="epsilon", question=EPSILON, value=place, limit=limit, options=options)
        if names == {"tpr", "fpr"}:
            limit, place = _validate.probability("tpr", tpr), _validate.probability("fpr", fpr)
            if limit <= place:
                raise InvalidInput(f"tpr must be above fpr = {place:g}, which a guess reaches, got {limit:g}")
            return cls(name="tpr", question=POWER, value=place, limit=limit, floor=place, options=options)
        if names == {"advantage"}:
            limit = _validate.probability("advantage", advantage)
            return cls(name="advantage", question=ADVANTAGE, value=0.0, limit=limit, options=options)
        got = ", ".join(name for name in arguments if name in names) or "none of them"
        raise InvalidType(f"a target must be epsilon and delta, tpr and fpr, or advantage, got {got}")

    def spent(self, mechanism: Mechanism, rounds: int, after: Accountant | None = None) -> float:
        """The number for some rounds, after those of an accountant.

        Args:
            mechanism: What is run.
            rounds: The number of rounds.
            after: The rounds before.

        Returns:
            The guarantee.
        """
        counts = {entry.mechanism: entry.rounds for entry in after or ()}
        counts[mechanism] = counts.get(mechanism, 0) + rounds
        return guarantee(self.question, bounds(counts.items()), self.value, self.options)

    def excess(self, mechanism: Mechanism, rounds: int, after: Accountant | None = None) -> float:
        """The logarithm of the number over its limit; at most 0 if the target is met.

        Args:
            mechanism: What is run.
            rounds: The number of rounds.
            after: The rounds before.

        Returns:
            The excess.
        """
        return self._log_ratio(self.spent(mechanism, rounds, after))

    def _log_ratio(self, spent: float) -> float:
        if spent <= self.limit and spent - self.floor <= 0.0:
            return -math.inf
        # The sign is exact, whatever the rounding of the quotient.
        ratio = math.log((spent - self.floor) / (self.limit - self.floor))
        return max(ratio, 5e-324) if spent > self.limit else min(ratio, 0.0)

    def is_expensive(self, mechanism: Mechanism, rounds: int) -> bool:
        """Whether an answer takes long: for any crowd, tightly."""
        return self.options.method == "tight" and evaluate.is_any(mechanism.bounds(rounds).upper)

    def guess(
        self, make: Callable[[float], Mechanism], rounds: int, ends: tuple[float, float], start: float
    ) -> Point | None:
        """About where any crowd meets the target, and how fast the excess falls there.

        The identical crowd says roughly where that is, coarse laws say it better.

        Args:
            make: Turns a place on a logarithmic scale into a mechanism.
            rounds: The number of rounds.
            ends: The first and the last allowed place.
            start: Where to begin.

        Returns:
            The place and the slope; None where no guess is needed, or none can be made.
        """
        if self.question is not EPSILON or not self.is_expensive(make(start), rounds):
            return None

        def bounds_at(x: float) -> Bounds:
            return make(x).bounds(rounds)

        def identical_excess(x: float) -> float:
            attack = bounds_at(x).attacks[0]
            return self._log_ratio(certify.epsilons(attack, [self.value], _IDENTICAL_ACCURACY)[0].upper)

        def coarse_excess(x: float) -> float:
            return self._log_ratio(evaluate.upper_epsilon(bounds_at(x).upper, self.value, _COARSE_ACCURACY))

        bracket = expand(identical_excess, *ends, start)
        if bracket is None:
            return None
        x = narrow(identical_excess, bracket, _IDENTICAL_WIDTH)
        slope = (identical_excess(x + _SLOPE_STEP) - identical_excess(x)) / _SLOPE_STEP
        # Any crowd needs more; coming from above the first evaluations are cheap, and few.
        return _follow(coarse_excess, min(x + _STEP, ends[1]), slope, ends)


def _follow(excess: Callable[[float], float], start: float, slope: float, ends: tuple[float, float]) -> Point | None:
    """The place where a falling function is close to 0, by following its slope from a start; None if it is lost."""
    x, last = start, (-math.inf, math.nan)
    met, missed = math.inf, -math.inf
    for _ in range(_COARSE_TRIES):
        point = (x, excess(x))
        if math.isfinite(last[0]) and point[0] != last[0]:
            slope = (point[1] - last[1]) / (point[0] - last[0])
        if not (math.isfinite(point[1]) and math.isfinite(slope) and slope < -_SLOPE_MIN):
            return None
        last, step = point, -point[1] / slope
        # Between what was met and what was missed, and not far from here.
        met, missed = (met, max(missed, x)) if point[1] > 0.0 else (min(met, x), missed)
        x = min(max(x + min(max(step, -_STEP), 2.0 * _STEP), ends[0]), ends[1])
        if abs(point[1]) < _CLOSE or x == last[0]:
            return x, slope
        if not missed < x < met:
            x = 0.5 * (met + missed)
    return None

"""Whole privacy curves: both ends of delta(epsilon) and of the power of tests, and the Gaussian that stands for them.

**Gaussian DP.** Rounds are mu-GDP up to revealing d if the revealing Gaussian pair R(d, mu) of `bounds.dominating`
dominates them: every test has at most the power `T(a) = d + (1 - d) Phi(Phi^-1(a / (1 - d)) + mu)`. One number then
says what (epsilon, delta) says at every delta (Dong, Roth and Su 2022, arXiv:1905.02383). It is a bound, and how much
it overstates is its *regret* (Kaissis et al. 2024, arXiv:2406.08918; Gomez et al. 2025, arXiv:2503.10945):

    the least kappa >= 0 with  T_true(a + kappa) + kappa >= T(a)  for every false positive rate a.

T_true is concave, so the lines between its certified lower points lie below it. On a cell [a, b] of a fine grid
`T_true(a + kappa) + kappa >= T(b)` suffices, because both rise. So the regret that is returned is an upper bound.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from shoal import _validate
from shoal.accountant import Accountant
from shoal.bounds import dominating
from shoal.errors import InvalidInput, InvalidType
from shoal.interval import Interval
from shoal.mechanisms import Mechanism
from shoal.mechanisms import bounds as bounds_of
from shoal.query import EPSILON, Bounds, Options, guarantee

CurveSource = Mechanism | Accountant
"""What a curve is of: the rounds of a mechanism, or a ledger."""

CURVE_POINTS = 41
"""Points of a curve for which none are named."""

_QUANTILE_MAX = 6.0
"""Rates of attacks reach to this normal quantile: one in a billion."""

_CELLS = 20_000
"""Cells of the grid on which a regret is certified: it is overstated by at most about mu / 4,000."""

_REGRET_STEP = 1e-5


@dataclass(frozen=True, kw_only=True)
class CurveQuestions:
    """A mechanism's rounds, or a ledger, as functions: their bounds, delta by epsilon, power by false positive rate."""

    bounds: Bounds
    delta: Callable[[Any], Any]
    power: Callable[[Any], Any]

    @classmethod
    def of(cls, source: CurveSource, rounds: int) -> CurveQuestions:
        """The functions of a source.

        Args:
            source: A mechanism, or an accountant.
            rounds: The number of rounds; 1 for an accountant.

        Returns:
            The functions.

        Raises:
            InvalidInput: If an accountant is given a number of rounds.
            InvalidType: If the source is neither.
        """
        if isinstance(source, Mechanism):
            count = _validate.rounds(rounds)
            return cls(
                bounds=source.bounds(count),
                delta=lambda epsilon: source.delta(epsilon=epsilon, rounds=count),
                power=lambda fpr: source.tradeoff(fpr, rounds=count),
            )
        if not isinstance(source, Accountant):
            raise InvalidType(f"source must be a shoal mechanism or an accountant, got {source!r}")
        if rounds != 1:
            raise InvalidInput(f"rounds must be 1 for an accountant, which counts its own, got {rounds!r}")
        return cls(
            bounds=bounds_of((entry.mechanism, entry.rounds) for entry in source),
            delta=lambda epsilon: source.delta(epsilon=epsilon),
            power=source.tradeoff,
        )


@dataclass(frozen=True, kw_only=True)
class GaussianFit:
    """The least mu for which rounds are mu-GDP up to revealing `reveal`, and by how much that overstates."""

    mu: float
    reveal: float
    regret: float


def gaussian_fit(source: CurveSource, *, rounds: int = 1, reveal: float = 0.0) -> GaussianFit:
    """The least Gaussian that dominates rounds at every epsilon, in both directions.

    Args:
        source: A mechanism, or an accountant.
        rounds: The number of rounds; 1 for an accountant.
        reveal: The probability with which everything may be revealed: 0 for Gaussian DP proper. Shuffled reports have
            rare large losses, which a tiny probability covers better than a larger mu.

    Returns:
        Mu, rounded up, and an upper bound on the regret. Mu is infinite where no Gaussian is known.

    Raises:
        InvalidInput: If an argument is out of its range.

    >>> from shoal import LocalGaussian
    >>> fit = gaussian_fit(LocalGaussian(sigma=2.0), rounds=4)
    >>> 1.0 <= fit.mu < 1.000001, fit.regret < 3e-3
    (True, True)
    """
    questions = CurveQuestions.of(source, rounds)
    probability = _validate.real("reveal", reveal)
    if not 0.0 <= probability < 1.0:
        raise InvalidInput(f"reveal must be at least 0 and below 1, got {probability}")
    mu = dominating.least_width(questions.bounds.upper, probability)
    return GaussianFit(mu=mu, reveal=probability, regret=_regret(questions, mu, probability))


def _regret(questions: CurveQuestions, mu: float, reveal: float) -> float:
    """An upper bound on the regret of R(reveal, mu)."""
    if math.isinf(mu):
        return 1.0
    rates = special.ndtr(np.linspace(-_QUANTILE_MAX, _QUANTILE_MAX, CURVE_POINTS))
    powers = [power.lower for power in questions.power(rates.tolist())]
    # The powers of the certain attacks "never" and "always" are exact.
    points = np.concatenate([[0.0], rates, [1.0]]), np.concatenate([[0.0], powers, [1.0]])
    edges = special.ndtr(np.linspace(-_QUANTILE_MAX, _QUANTILE_MAX, _CELLS + 1))
    edges = np.concatenate([[0.0], edges, [1.0]])
    claimed = dominating.revealing_power(edges[1:], reveal, mu) * (1.0 + 1e-12)

    def is_enough(kappa: float) -> bool:
        return bool(np.all(np.interp(edges[:-1] + kappa, *points) * (1.0 - 1e-12) + kappa >= claimed))

    low, high = 0.0, 1.0
    while high - low > _REGRET_STEP:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


@dataclass(frozen=True, kw_only=True)
class PrivacyCurve:
    """Both ends of delta at some epsilons, and of the power at some false positive rates."""

    epsilons: tuple[float, ...]
    deltas: tuple[Interval, ...]
    rates: tuple[float, ...]
    powers: tuple[Interval, ...]

    def rows(self) -> list[dict[str, str | float]]:
        """The points, first of delta, then of the power: what is asked, where, and both ends."""
        deltas = [("delta", "epsilon", x, y) for x, y in zip(self.epsilons, self.deltas, strict=True)]
        powers = [("tpr", "fpr", x, y) for x, y in zip(self.rates, self.powers, strict=True)]
        return [
            {"number": number, "at": place, "value": x, "lower": y.lower, "upper": y.upper}
            for number, place, x, y in (*deltas, *powers)
        ]

    def to_csv(self) -> str:
        """The points as CSV, every digit of each number."""
        text = io.StringIO()
        writer = csv.DictWriter(text, ["number", "at", "value", "lower", "upper"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **{key: repr(row[key]) for key in ("value", "lower", "upper")}} for row in self.rows())
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """The points as plain data (JSON will do)."""
        return {"points": self.rows()}


def privacy_curve(
    source: CurveSource,
    *,
    rounds: int = 1,
    epsilons: Iterable[float] | None = None,
    rates: Iterable[float] | None = None,
) -> PrivacyCurve:
    """The composed curve of rounds, both ends at each point.

    Args:
        source: A mechanism, or an accountant.
        rounds: The number of rounds; 1 for an accountant.
        epsilons: Where delta is wanted; by default from 0 to where it is about 1e-12.
        rates: The false positive rates at which the power of tests is wanted; by default from 1e-9 to nearly 1.

    Returns:
        The curve.

    Raises:
        InvalidInput: If an argument is out of its range.

    >>> from shoal import LocalGaussian
    >>> curve = privacy_curve(LocalGaussian(sigma=1.0), epsilons=[1.0], rates=[0.01])
    >>> print(curve.to_csv().splitlines()[0])
    number,at,value,lower,upper
    >>> [round(row["upper"], 4) for row in curve.rows()]
    [0.1269, 0.0924]
    """
    questions = CurveQuestions.of(source, rounds)
    if epsilons is None:
        last = _last_epsilon(questions.bounds)
        epsilons = (last * place / (CURVE_POINTS - 1) for place in range(CURVE_POINTS))
    if rates is None:
        rates = special.ndtr(np.linspace(-_QUANTILE_MAX, 0.5 * _QUANTILE_MAX, CURVE_POINTS)).tolist()
    xs, fprs = tuple(map(float, epsilons)), tuple(map(float, rates))
    return PrivacyCurve(
        epsilons=xs,
        deltas=tuple(questions.delta(list(xs))) if xs else (),
        rates=fprs,
        powers=tuple(questions.power(list(fprs))) if fprs else (),
    )


def _last_epsilon(bounds: Bounds) -> float:
    """About where delta is 1e-12: beyond, nobody asks."""
    last = guarantee(EPSILON, bounds, 1e-12, Options(accuracy=0.1))
    return last if math.isfinite(last) else 100.0

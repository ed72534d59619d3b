"""Upper bounds on epsilon, delta, advantage and power for rounds of which some are among any crowd.

A round of zero-out is one law (`anycrowd.exchange`), composed like every other. For *replace* both legs of the way
through zero are composed and added up (`anycrowd.replace`) if all rounds lead through it. User 1's own report in the
clear, with its coin, caps every answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from shoal.bounds import certify
from shoal.bounds.anycrowd.replace import ThroughZero
from shoal.bounds.composition import Composition, Curve, Parts
from shoal.bounds.numeric import DELTA_MIN, DIRECTIONS, EPSILON_MAX

_OWN_REPORT_FROM_SHARE = 0.2
"""From this share of the local guarantee on, user 1's own report in the clear may give the smaller bound."""

_NEARLY_LOCAL_BELOW_SIGMA = 0.5
"""Below this scale hardly any user stays hidden, and user 1's own report is always evaluated as well."""

_OWN_REPORT_ACCURACY = 3e-5
"""Relative accuracy for user 1's own report, which is cheap to evaluate."""

_USUAL_BUDGET = 1e-20
"""Mass cut off a round, wherever that is at most a millionth of delta for each round."""


def is_any(parts: Parts) -> bool:
    """Whether any round bounds privacy from above only."""
    return any(part.is_upper_only for part, _ in parts)


def upper_epsilon(parts: Parts, delta: float, accuracy: float = certify.ACCURACY) -> float:
    """Upper bound on epsilon at delta.

    Args:
        parts: Rounds, and how often each is run.
        delta: The delta of the guarantee.
        accuracy: Relative accuracy that the numerical part of the bound should have.

    Returns:
        An epsilon that all rounds together meet at delta.
    """
    parts = certify.limited(parts)
    # The local guarantee needs no theorem about crowds: it caps the rest, and is the only bound out of range.
    cap = certify.epsilons(_local_reports(parts), [delta])[0].upper
    if not certify.in_range(parts) or delta < DELTA_MIN:
        return cap

    def own_report() -> float:
        return certify.epsilons(_own_reports(parts), [delta], min(accuracy, _OWN_REPORT_ACCURACY))[0].upper

    return _smallest(parts, cap, own_report, lambda: _worst(parts, delta, accuracy, lambda curve: curve.epsilon(delta)))


def upper_delta(parts: Parts, epsilon: float, accuracy: float = certify.ACCURACY) -> float:
    """Upper bound on delta at epsilon.

    Args:
        parts: Rounds, and how often each is run.
        epsilon: The epsilon of the guarantee.
        accuracy: Relative accuracy that the numerical part of the bound should have, in epsilon.

    Returns:
        A delta that all rounds together meet at epsilon.
    """
    parts = certify.limited(parts)
    # The local guarantee needs no theorem about crowds: it caps the rest, and is the only bound out of range.
    cap = certify.deltas(_local_reports(parts), [epsilon])[0].upper
    if not certify.in_range(parts) or epsilon > EPSILON_MAX:
        return cap

    def own_report() -> float:
        return certify.deltas(_own_reports(parts), [epsilon], min(accuracy, _OWN_REPORT_ACCURACY))[0].upper

    return _smallest(parts, cap, own_report, lambda: _worst(parts, 1e-12, accuracy, lambda curve: curve.delta(epsilon)))


def upper_advantage(parts: Parts, accuracy: float = certify.ACCURACY) -> float:
    """Upper bound on TPR - FPR of any attack: delta at 0.

    Args:
        parts: Rounds, and how often each is run.
        accuracy: Relative accuracy that the numerical part of the bound should have, in epsilon.

    Returns:
        The bound.
    """
    return upper_delta(parts, 0.0, accuracy)


def upper_power(parts: Parts, fpr: float, accuracy: float = certify.ACCURACY) -> float:
    """Upper bound on the true positive rate at a false positive rate.

    By way of zero, the power that a test may gain on the first leg is its false positive rate on the second.

    Args:
        parts: Rounds, and how often each is run.
        fpr: The false positive rate.
        accuracy: Relative accuracy that the numerical part of the bound should have, in epsilon.

    Returns:
        The bound.
    """
    parts = certify.limited(parts)
    if not certify.in_range(parts):
        return certify.powers(_local_reports(parts), [fpr])[0].upper
    if any(part.is_bare for part, _ in parts):
        return certify.powers(_own_reports(parts), [fpr], accuracy)[0].upper
    half = _half_for(accuracy)
    power = certify.highest_power(parts, fpr, half)
    legs = _legs(parts)
    if legs is None:
        return power
    # A test with false positive rate `fpr` at x rejects at 0 with a probability of at most `power_at_zero`.
    power_at_zero = min(certify.highest_power(legs, fpr, half), 1.0 - 2.0**-53)
    return min(power, certify.highest_power(legs, power_at_zero, half))


def _smallest(parts: Parts, cap: float, own_report: Callable[[], float], theorem: Callable[[], float]) -> float:
    """Smallest of the cap, the theorem's bound and that of user 1's own report, each where it may matter."""
    if any(part.is_bare for part, _ in parts):
        return min(cap, own_report())
    bound = min(cap, theorem())
    # With so little noise the others hardly matter, so user 1's own report may be as good.
    is_nearly_local = any(part.ratio.scale < _NEARLY_LOCAL_BELOW_SIGMA for part, _ in parts)
    return bound if bound <= _OWN_REPORT_FROM_SHARE * cap and not is_nearly_local else min(bound, own_report())


def _half_for(accuracy: float) -> int:
    """Cells of a law that is about that accurate."""
    return int(min(2048, max(256, 2 ** math.ceil(0.5 * math.log2(certify.ACCURACY / accuracy) + 9.0 - 1e-9))))


def _budget(parts: Parts, smallest: float) -> float:
    """Mass that may be cut off a round: one value for most questions, so that they share a law."""
    total = sum(rounds for _, rounds in parts)
    return _USUAL_BUDGET if 1e-6 * smallest >= _USUAL_BUDGET * total else certify.budget_for(parts, smallest)


def _local_reports(parts: Parts) -> Parts:
    """For each round the one plain report of which everything is post-processing."""
    return tuple((part.local(), rounds) for part, rounds in parts)


def _own_reports(parts: Parts) -> Parts:
    """For each round user 1's report and its coin in the clear, of which everything is post-processing too."""
    return tuple((part.own_report(), rounds) for part, rounds in parts)


def _worst(parts: Parts, smallest: float, accuracy: float, bound: Callable[[Curve | ThroughZero], float]) -> float:
    """Bound of the worse direction, or by way of zero where all rounds lead through it."""
    # By way of zero both legs are composed first: group privacy is then lost once, not in every round.
    legs = _legs(parts)
    chosen = parts if legs is None else legs
    composition = Composition(parts=chosen, half=_half_for(accuracy), budget=_budget(chosen, smallest))
    forward, reverse = (composition.upper_curve(direction) for direction in DIRECTIONS)
    if legs is None:
        return max(bound(forward), bound(reverse))
    through_zero = bound(ThroughZero(to_zero=forward, from_zero=reverse))
    if not any(part.has_direct_bound for part, _ in parts):
        return through_zero
    composition = replace(composition, parts=parts)
    return min(through_zero, max(bound(composition.upper_curve(direction)) for direction in DIRECTIONS))


def _legs(parts: Parts) -> Parts | None:
    """The rounds of moves to zero, if the way through zero leads through all rounds."""
    legs = tuple((leg, rounds) for part, rounds in parts if (leg := part.leg()) is not None)
    return legs if len(legs) == len(parts) and is_any(legs) else None

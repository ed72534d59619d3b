"""Questions about rounds some of which are among any crowd: eps, delta, advantage and power, from above.

Zero-out is one law a round (`anycrowd.exchange`), composed as every other. For *replace* both legs of the way through
zero are composed and added up (`anycrowd.replace`), if all rounds lead through it. The report in the clear, with its
coin, caps every answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from shoal.bounds import certify
from shoal.bounds.anycrowd.replace import ByZero
from shoal.bounds.composition import Composition, Curve, Parts
from shoal.bounds.numeric import DELTA_MIN, DIRECTIONS, EPSILON_MAX

_CLOSE = 0.2
"""From this part of the local guarantee on the report and its coin in the clear may be all that there is to gain."""

_LITTLE = 0.5
"""With a smaller sigma hardly anybody can be kept, and next to nothing but that report is looked at."""

_FINE = 3e-5
"""How exactly those are looked at: it is cheap."""

_CUT = 1e-20
"""What is cut of a round, wherever that is a millionth of delta for each round: less takes longer to compute."""


def is_any(parts: Parts) -> bool:
    """Whether there is a round whose crowd may hold anything: such rounds have upper bounds only."""
    return any(part.is_upper_only for part, _ in parts)


def epsilon(parts: Parts, delta: float, accuracy: float = certify.ACCURACY) -> float:
    """eps at delta, from above."""
    parts = certify.limited(parts)
    # What is known without any theorem about crowds caps the rest, and is all there is out of range.
    cap = certify.epsilons(_local(parts), [delta])[0].upper
    if not certify.in_range(parts) or delta < DELTA_MIN:
        return cap
    if any(part.is_bare for part, _ in parts):
        return min(cap, certify.epsilons(_alone(parts), [delta], min(accuracy, _FINE))[0].upper)
    found = min(cap, _asked(parts, delta, accuracy, lambda way: way.epsilon(delta)))
    if found <= _CLOSE * cap and not _is_nearly_local(parts):
        return found
    return min(found, certify.epsilons(_alone(parts), [delta], min(accuracy, _FINE))[0].upper)


def delta(parts: Parts, epsilon: float, accuracy: float = certify.ACCURACY) -> float:
    """delta at eps, from above."""
    parts = certify.limited(parts)
    # As above.
    cap = certify.deltas(_local(parts), [epsilon])[0].upper
    if not certify.in_range(parts) or epsilon > EPSILON_MAX:
        return cap
    if any(part.is_bare for part, _ in parts):
        return min(cap, certify.deltas(_alone(parts), [epsilon], min(accuracy, _FINE))[0].upper)
    found = min(cap, _asked(parts, 1e-12, accuracy, lambda way: way.delta(epsilon)))
    if found <= _CLOSE * cap and not _is_nearly_local(parts):
        return found
    return min(found, certify.deltas(_alone(parts), [epsilon], min(accuracy, _FINE))[0].upper)


def advantage(parts: Parts, accuracy: float = certify.ACCURACY) -> float:
    """The largest TPR - FPR of any attack: delta at 0."""
    return delta(parts, 0.0, accuracy)


def power(parts: Parts, fpr: float, accuracy: float = certify.ACCURACY) -> float:
    """The largest true positive rate at the false positive rate.

    By way of zero, what a test may gain on the first half of the way is its chance to err on the second.
    """
    parts = certify.limited(parts)
    if not certify.in_range(parts):
        return certify.powers(_local(parts), [fpr])[0].upper
    if any(part.is_bare for part, _ in parts):
        return certify.powers(_alone(parts), [fpr], accuracy)[0].upper
    half = _half(accuracy)
    found = certify.highest_power(parts, fpr, half)
    legs = _legs(parts)
    # A test that is wrong in `fpr` of cases at x is wrong in `first` of them at most at 0.
    if legs is None:
        return found
    first = min(certify.highest_power(legs, fpr, half), 1.0 - 2.0**-53)
    return min(found, certify.highest_power(legs, first, half))


# How they are answered


def _half(accuracy: float) -> int:
    """Cells of a law that is about that accurate."""
    return int(min(2048, max(256, 2 ** math.ceil(0.5 * math.log2(certify.ACCURACY / accuracy) + 9.0 - 1e-9))))


def _budget(parts: Parts, smallest: float) -> float:
    """Mass that may be cut off a round, one value for most questions, so that they share a law."""
    total = sum(rounds for _, rounds in parts)
    return _CUT if 1e-6 * smallest >= _CUT * total else certify.budget_for(parts, smallest)


def _local(parts: Parts) -> Parts:
    """The one plain report a round of which everything is post-processing."""
    return tuple((part.local(), rounds) for part, rounds in parts)


def _alone(parts: Parts) -> Parts:
    """User 1's report and its coin in the clear: everything else is post-processing of them, too."""
    return tuple((part.own_report(), rounds) for part, rounds in parts)


def _is_nearly_local(parts: Parts) -> bool:
    """Whether there is so little noise that the others hardly matter."""
    return any(part.ratio.scale < _LITTLE for part, _ in parts)


def _asked(parts: Parts, smallest: float, accuracy: float, ask: Callable[[Curve | ByZero], float]) -> float:
    """The worse answer of both directions, or that by way of zero where all rounds lead through it."""
    # By way of zero both legs are composed first: group privacy is lost once, not round by round.
    legs = _legs(parts)
    chosen = parts if legs is None else legs
    rounds = Composition(parts=chosen, half=_half(accuracy), budget=_budget(chosen, smallest))
    there, back = (rounds.above(way) for way in DIRECTIONS)
    if legs is None:
        return max(ask(there), ask(back))
    found = ask(ByZero(there=there, back=back))
    if not any(part.has_direct_bound for part, _ in parts):
        return found
    rounds = replace(rounds, parts=parts)
    return min(found, max(ask(rounds.above(way)) for way in DIRECTIONS))


def _legs(parts: Parts) -> Parts | None:
    """The rounds in which user 1 moves to zero only, if the way there and back leads through them all."""
    found = tuple((part.leg(), rounds) for part, rounds in parts)
    known = tuple((leg, rounds) for leg, rounds in found if leg is not None)
    return known if len(known) == len(found) and is_any(known) else None

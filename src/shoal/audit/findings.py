"""An audit plays the distinguishing game against crowds of several shapes.

A mechanism that is (epsilon, delta)-DP has P(A) <= e^epsilon Q(A) + delta for every event A, and the same with P and
Q swapped (P and Q are the two worlds of `audit.game`). So any event A at all proves, from its measured rates,

    epsilon >= log((P(A) - delta) / Q(A)),

and the audit reports the largest such bound that the games support: with the exact limits of Clopper and Pearson (1934)
in place of both rates, at a confidence that holds for all rows together (by Bonferroni, over two rates a row). The
event is a threshold on a test statistic. Statistic, direction and threshold are chosen on other games than those that
measure, so choosing costs no confidence. An audit can refute a claim; it cannot prove one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal import _validate
from shoal.audit.game import DIMENSIONS, SHAPES, Game, games_of
from shoal.audit.likelihood import play
from shoal.audit.statistics import choose, lower_bound, trained_weights
from shoal.bounds.numeric import FloatArray
from shoal.errors import InvalidInput, InvalidType
from shoal.interval import Interval
from shoal.mechanisms import Mechanism, Shuffle, ShuffledCheckIn, SubsampledShuffle
from shoal.progress import Progress

CONFIDENCE = 0.999

_TRIALS_LARGEST = 10**9
"""More would take days."""

_DEFAULT_TRIALS = (1_000, 100_000)
_DEFAULT_WORK = 9e8
"""Default trials lie in this range and take about 20 seconds on one core."""

_CHOOSING_TRIALS = 100_000
"""The largest number of games that choose the test and its threshold."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of the games against one crowd.

    `dimensions` are those in which this is the same game: coordinates in which no vector differs carry the same noise
    in both worlds, and reveal nothing.
    """

    shape: str
    dimensions: tuple[int, ...]
    test: str
    """\"optimal" (the likelihood ratio, which no test can beat), "trained", or "likelihood" (for the reports of a real
    training, by an approximation that makes the test weaker but not invalid)."""

    direction: str
    """\"forward" if P was the more likely world in the event that was measured, else "reverse"."""

    trials: int
    """The number of games that measured the rates, in each world."""

    hits: int
    """The number of them in which the event happened, in the world that makes it likely."""

    alarms: int
    """The number of them in which the event happened, in the other world."""

    epsilon: float
    """The lower bound that the games prove, at `confidence` for all rows together."""

    confidence: float
    any_crowd: Interval | None
    """The certified epsilon for any crowd (None if the mechanism has the identical crowd)."""

    identical_crowd: Interval | None
    """The certified epsilon for the identical crowd (None for other shapes)."""

    claim: float | None
    """The claimed epsilon, if it is not the certified one."""

    @property
    def limit(self) -> float:
        """The epsilon under attack: the claim, or else the smallest certified upper bound."""
        if self.claim is not None:
            return self.claim
        return min(bound.upper for bound in (self.any_crowd, self.identical_crowd) if bound is not None)

    @property
    def stands(self) -> bool:
        """Whether the games do not refute the claim."""
        return self.epsilon <= self.limit


def audit(
    mechanism: Mechanism,
    *,
    delta: float,
    rounds: int = 1,
    trials: int | None = None,
    seed: int = 0,
    shapes: Any = None,
    dimensions: Any = DIMENSIONS,
    confidence: float = CONFIDENCE,
    claim: float | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Play the distinguishing game against crowds of several shapes.

    The claim under attack is the mechanism's certified epsilon at `delta` after `rounds` rounds, for any crowd (and for
    the identical crowd, where that is played), or `claim`. With `crowd="identical"` only that crowd is played. If every
    claim is true, the probability that any row contradicts one is at most 1 - `confidence`.

    >>> rows = audit(Shuffle(users=5, sigma=0.5), delta=1e-5, shapes="identical", trials=2_000)
    >>> rows[0].test, 1.0 < rows[0].epsilon < rows[0].identical_crowd.upper, rows[0].stands
    ('optimal', True, True)

    Args:
        mechanism: A `Shuffle`, `SubsampledShuffle` or `ShuffledCheckIn`.
        delta: The delta.
        rounds: The number of rounds of each game.
        trials: The number of games that measure each row, in each world; half as many more choose the test. By default
            as many as take about 20 seconds in all.
        seed: The seed; the same seed gives the same rows.
        shapes: The shapes of crowds, of `SHAPES`; None plays all that fit.
        dimensions: The dimensions of the vectors.
        confidence: The probability with which all rows hold.
        claim: The epsilon to refute; None attacks the certified one.
        progress: Called with the shape and the part of the work that is done.

    Returns:
        One finding for each game.

    Raises:
        InvalidType: If the mechanism is another one.
        InvalidInput: If an argument is out of its range.
    """
    if not isinstance(mechanism, (Shuffle, SubsampledShuffle, ShuffledCheckIn)):
        raise InvalidType(f"mechanism must be Shuffle, SubsampledShuffle or ShuffledCheckIn, got {mechanism!r}")
    for name, plain in (("corrupt", 0), ("reports_per_user", 1)):
        if (value := getattr(mechanism, name, plain)) != plain:
            raise InvalidInput(f"{name} must be {plain} for an audit, got {value}")
    delta, rounds = _validate.delta(delta), _validate.rounds(rounds)
    seed = _validate.integer("seed", seed, minimum=0, maximum=2**63 - 1)
    confidence = _validate.delta(confidence, "confidence")
    claim = None if claim is None else _validate.epsilon(claim, "claim")
    games = games_of(mechanism, rounds, shapes, dimensions, seed)
    work = sum(game.work for game in games)
    low, high = _DEFAULT_TRIALS
    if trials is None:
        # 1.5: half as many games again choose the test.
        trials = round(min(max(_DEFAULT_WORK / (1.5 * work), low), high))
    trials = _validate.integer("trials", trials, minimum=100, maximum=_TRIALS_LARGEST)
    # Bonferroni: two rates a row, and all rows hold together.
    alpha = (1.0 - confidence) / (2 * len(games))

    certified = mechanism.epsilon(delta=delta, rounds=rounds)
    identical = mechanism.replace(crowd="identical").epsilon(delta=delta, rounds=rounds)
    done, all_work = 0.0, work * (trials + _choosing(trials))
    result = []
    for game in games:

        def played(count: int, game: Game = game) -> None:
            nonlocal done
            done += count * game.work
            if progress is not None:
                progress(game.shape, min(1.0, done / all_work))

        measured = _measure(game, delta=delta, trials=trials, alpha=alpha, seed=seed, played=played)
        row = Finding(
            shape=game.shape,
            dimensions=game.dimensions,
            test="optimal" if game.exact else "trained",
            trials=trials,
            confidence=confidence,
            any_crowd=certified if mechanism.crowd == "any" else None,
            identical_crowd=identical if game.shape == "identical" else None,
            claim=claim,
            **measured,
        )
        result.append(row)
    return result


def _choosing(trials: int) -> int:
    return min(trials // 2, _CHOOSING_TRIALS)


def _measure(
    game: Game, *, delta: float, trials: int, alpha: float, seed: int, played: Callable[[int], None]
) -> dict[str, Any]:
    """Choose the event on some games, count it in others."""
    place = [seed, SHAPES.index(game.shape), game.dimensions[0]]

    def batches(count: int, stream: int) -> Iterator[FloatArray]:
        for batch in play(game, count, np.random.default_rng([*place, stream])):
            yield batch
            played(batch.shape[1])

    games = np.concatenate(list(batches(_choosing(trials), 1)), axis=1)
    weights = np.ones(1)
    if not game.exact:
        # Trained on one half, threshold chosen on the other: on its own games a trained test looks too good.
        half = games.shape[1] // 2
        weights, games = trained_weights(games[:, :half]), games[:, half:]
    event = choose(games, weights, delta, alpha)
    hits, alarms = (sum(c) for c in zip(*(event.count(batch) for batch in batches(trials, 2)), strict=True))
    return {
        "direction": "forward" if event.sign > 0 else "reverse",
        "hits": hits,
        "alarms": alarms,
        "epsilon": float(lower_bound(hits, alarms, trials, delta=delta, alpha=alpha)),
    }

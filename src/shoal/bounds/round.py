"""What a round must offer to be composed, and the round of the identical crowd.

A round is a pair of laws (P, Q) of what the server sees, known from above, from below, or exactly. Composition asks it
for *pairs*: measures on common atoms that bound it on one side (`Pair` of `mean_law`), Rényi DP for moments. A new
kind of round is one class like `Identical`: the rest of the engine knows this interface and no kind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from shoal.bounds import moments
from shoal.bounds.mean_law import MeanLaw, Pair, mean_law
from shoal.bounds.numeric import LAW_RATE_MIN, LAW_USERS_MAX, ROUNDED_UP, Direction, FloatArray, Side
from shoal.bounds.ratio import MeanRatio, Ratio

SideChoice = Literal["both", "upper", "lower"]
"""Cells of both sides together, or of one whose offsets are 0."""

DENSE = 256
"""Up to here all whole orders are computed together: it takes milliseconds."""

_MANY = 1000
"""From so many orders on a table of all of them is quicker than each alone."""

_CONTOUR_MAX = 1 << 18
"""One order costs time and memory proportional to it; beyond this the local bound serves."""


@dataclass(frozen=True, kw_only=True)
class Atoms:
    """One round as masses `top` at losses, and what has to be charged; see the head of `composition`.

    `offset` is what the other side has more or less of top (forward) or base mass (reverse), `relative` the relative
    error of the masses, `infinite` and `lost` are charged from above and from below.
    """

    loss: FloatArray
    top: FloatArray
    offset: FloatArray
    infinite: float
    lost: float
    relative: float = 0.0

    @classmethod
    def of(cls, pair: Pair) -> Atoms:
        """One side alone."""
        return cls(
            loss=pair.loss, top=pair.top, offset=np.zeros_like(pair.top), infinite=pair.infinite, lost=-pair.infinite
        )


class Round(ABC):
    """One round; frozen, and equal rounds are equal objects."""

    ratio: Ratio
    """That of the one report which the round is post-processing of, its coin among it."""
    users: int
    weight: float
    """The probability that user 1 is sampled at all."""

    is_joint: ClassVar[bool] = False
    """Whether both sides come from one law, so that they are composed together."""

    epsilon_max: ClassVar[float] = math.inf
    """The largest eps at which it bounds from below."""

    is_upper_only: ClassVar[bool] = False
    """Whether nothing is known from below: such rounds have upper bounds only."""

    @abstractmethod
    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        """One side with `half` cells to a level, about `budget` of its mass cut off (and charged)."""

    def atoms(self, half: int, budget: float, direction: Direction, source: SideChoice) -> Atoms:
        """What composition starts from."""
        return Atoms.of(self.pair(half, budget, "lower" if source == "lower" else "upper", direction))

    @abstractmethod
    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        """By which factor, and by how much, the base mass of a test from below may be too small."""

    @abstractmethod
    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """Upper bounds on `(L - 1) D_L` at real orders L > 1; `quick` may leave out what takes seconds."""

    @abstractmethod
    def limited(self) -> Round:
        """Itself, or a round within the limits on users and noise that is never better."""

    @property
    def is_bare(self) -> bool:
        """Whether there is so little noise that nothing is looked at but user 1's report and its coin, `alone`."""
        return False

    @property
    def has_direct_bound(self) -> bool:
        """Whether there may be a better bound than that of its legs."""
        return False

    @property
    def is_gaussian(self) -> bool:
        """Whether it is one plain Gaussian report, which has closed forms."""
        return False

    @property
    def is_in_range(self) -> bool:
        """Whether its laws can be computed; elsewhere the local guarantee is all that is claimed."""
        return (
            self.ratio.is_summable
            and self.ratio.limited() == self.ratio
            and self.users <= LAW_USERS_MAX
            and self.ratio.rate * self.weight >= LAW_RATE_MIN
        )

    def local(self) -> Round:
        """The one plain report that all of it is post-processing of."""
        return Identical(ratio=self.ratio.at_rate(1.0), users=1)

    def own_report(self) -> Round:
        """User 1's report and its coin in the clear, where nothing better is known of the others."""
        return self

    def leg(self) -> Round | None:
        """The round in which user 1 goes half of the way only, to zero or from it; None if there is none."""
        return None

    def tuned(self, loss: float) -> Round:
        """The same round with its attack tuned to decide at this loss."""
        return self

    def dominates(self, other: Round, rounds: int) -> bool:
        """Whether this one, as computed, is surely no more private than the other over so many rounds."""
        return False


@dataclass(frozen=True, kw_only=True)
class Identical(MeanRatio, Round):
    """The round of the identical crowd, or of one whose ratio is known exactly: S is a mean of ratios."""

    is_joint: ClassVar[bool] = True

    def law(self, half: int, budget: float) -> MeanLaw:
        return mean_law(self, half, budget)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        return self.law(half, budget).pair(side, direction)

    def atoms(self, half: int, budget: float, direction: Direction, source: SideChoice) -> Atoms:
        if source != "both":
            return super().atoms(half, budget, direction, source)
        # Both sides have one mass and differ in where it is: so they are composed once, with an offset.
        law, reverse = self.law(half, budget), direction == "reverse"
        above, below = law.log_ratio("upper", direction), law.log_ratio("lower", direction)
        there = above > -np.inf
        # S = 0 from above: no top mass forward, all of it at an infinite loss in reverse.
        extra = float(law.mass[~there].sum()) * ROUNDED_UP if reverse else 0.0
        above, below, mass = above[there], below[there], law.mass[there]
        loss, top = (-above, mass) if reverse else (above, mass * np.exp(above))
        return Atoms(
            loss=loss, top=top, offset=top * np.expm1(below - above),
            infinite=law.cut[direction] + extra, lost=law.cut[direction], relative=law.mass_error,
        )  # fmt: skip

    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        law = self.law(half, budget)
        return law.mass_error, max(law.cut.values())

    def limited(self) -> Identical:
        # Leave-one-out means: fewer users are never better.
        return replace(self, users=min(self.users, LAW_USERS_MAX), ratio=self.ratio.limited())

    @property
    def is_gaussian(self) -> bool:
        return self.is_single and self.ratio.rate == 1.0 and self.ratio.is_gaussian

    def leg(self) -> Round | None:
        half = self.ratio.halved() if self.is_single and self.ratio.rate == 1.0 else None
        return None if half is None else replace(self, ratio=half)

    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """Exact up to round-off at whole orders (to 16,384 in the forward direction), by chords between them.

        Between whole orders the chord of a convex function is an upper bound. None exceeds the same quantity for the
        moved user's own report with its own coin revealed, because everything else is post-processing of that.
        `quick` leaves out large whole orders at which the heavy tail of one report dominates, which are of no use for a
        conversion; they get the local bound.
        """
        powers = orders if direction == "forward" else 1.0 - orders
        # Rate and weight are one coin here: the report is there or it is not.
        local = self.ratio.at_rate(self.ratio.rate * self.weight).log_moments(powers)
        if self.is_single:
            return local * (1.0 + moments.roundoff(orders))
        below = np.floor(orders)
        above = np.ceil(orders)
        whole, where = np.unique(np.concatenate([below, above]), return_inverse=True)
        values = self._whole(whole, direction, quick)[where.reshape(-1)]
        share = orders - below
        start, end = values[: len(orders)], values[len(orders) :]
        known = np.isfinite(start) & np.isfinite(end)  # no bound at an end, no bound on the chord
        chord = np.full(len(orders), math.inf)
        chord[known] = start[known] + share[known] * (end[known] - start[known])
        result: FloatArray = np.minimum(chord, local) * (1.0 + moments.roundoff(orders))
        return result

    def _whole(self, orders: FloatArray, direction: Direction, quick: bool) -> FloatArray:
        """The same at whole orders >= 1, without the margin for round-off."""
        result = np.zeros(len(orders))
        if direction == "reverse":
            chosen = orders > 1
            result[chosen] = moments.log_negative_moments(self, orders[chosen] - 1.0)
            return result
        # Three ways: all orders up to some from one table, each alone by a contour, or none (the local bound is left).
        together = orders <= DENSE
        if not quick and (self.users >= orders[-1] or len(orders) > _MANY):
            together |= orders <= moments.SERIES_MAX
        alone = np.flatnonzero(~together & (orders <= _CONTOUR_MAX))
        result[orders > _CONTOUR_MAX] = math.inf
        result[alone] = [moments.log_moment_bound(self, int(k)) for k in orders[alone]]
        if not quick:
            # Where the contour gave nothing the table does, at the price of seconds.
            together |= np.isinf(result) & (orders <= moments.SERIES_MAX)
        if together.any():
            table = moments.log_moments(self, int(orders[together].max()))
            result[together] = table[orders[together].astype(int)]
        return result

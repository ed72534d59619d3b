"""The interface of a round that can be composed, and the round of the identical crowd.

A round is a pair of laws (P, Q) of what the server sees, known from above, from below, or exactly. Composition needs
*pairs* from it: measures on common atoms that bound it on one side (`Pair` of `mean_law`). Rényi DP needs moments. A
new kind of round is one class like `Identical`: the rest of `bounds` knows this interface only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from shoal.bounds import moments
from shoal.bounds.mean_law import MeanLaw, Pair, mean_law
from shoal.bounds.numeric import LAW_RATE_MIN, LAW_USERS_MAX, ROUNDED_UP, Direction, FloatArray, Side
from shoal.bounds.ratio import MeanRatio, Ratio

SideChoice = Literal["both", "upper", "lower"]
"""The sides that a composition carries: both together, or one, whose offsets are 0."""

DENSE_ORDER_MAX = 256
"""Up to this order all whole orders are computed at once: it takes milliseconds."""

_TABLE_ABOVE_ORDERS = 1000
"""Above this many orders one table of all orders is faster than evaluating each."""

_CONTOUR_MAX = 1 << 18
"""One order costs time and memory in proportion to it; beyond this the local bound serves."""


@dataclass(frozen=True, kw_only=True)
class Atoms:
    """One round as masses `top` at losses, with its charges; see the head of `composition`.

    `offset` is the difference in top mass (forward) or base mass (reverse) of the lower side from the upper one,
    `relative` the relative error of the masses; `infinite` and `lost` are charged from above and from below.
    """

    loss: FloatArray
    top: FloatArray
    offset: FloatArray
    infinite: float
    lost: float
    relative: float = 0.0

    @classmethod
    def of(cls, pair: Pair) -> Atoms:
        """The atoms of one side only."""
        return cls(
            loss=pair.loss, top=pair.top, offset=np.zeros_like(pair.top), infinite=pair.infinite, lost=-pair.infinite
        )


class Round(ABC):
    """One round; frozen, and equal rounds are equal objects."""

    if TYPE_CHECKING:
        # Fields in some rounds and properties in others; a property at runtime would be in the way of the fields.

        @property
        def ratio(self) -> Ratio:
            """The ratio of the one report, with its coin, of which the round is post-processing."""

        @property
        def users(self) -> int:
            """The number of users."""

        @property
        def weight(self) -> float:
            """The probability that user 1 is sampled at all."""

    is_joint: ClassVar[bool] = False
    """Whether both sides come from one law, so that one composition gives both."""

    epsilon_max: ClassVar[float] = math.inf
    """The largest eps at which the round bounds from below."""

    is_upper_only: ClassVar[bool] = False
    """Whether the round has upper bounds only."""

    @abstractmethod
    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        """One side of the round.

        Args:
            half: the number of cells on each side of a level.
            budget: about how much mass may be cut off (and charged).
            side: the side that is bounded.
            direction: D(P||Q) or D(Q||P).

        Returns:
            A pair that bounds the round on this side.
        """

    def atoms(self, half: int, budget: float, direction: Direction, sides: SideChoice) -> Atoms:
        """The atoms that composition starts from.

        Args:
            half: the number of cells on each side of a level.
            budget: about how much mass may be cut off (and charged).
            direction: D(P||Q) or D(Q||P).
            sides: both sides, or one of them.

        Returns:
            The atoms.
        """
        return Atoms.of(self.pair(half, budget, "lower" if sides == "lower" else "upper", direction))

    @abstractmethod
    def test_error(self, half: int, budget: float) -> tuple[float, float]:
        """The errors of the base mass of a test from below, which may be too small.

        Args:
            half: the number of cells on each side of a level.
            budget: about how much mass may be cut off.

        Returns:
            The relative error, and the absolute one.
        """

    @abstractmethod
    def log_moments(self, orders: FloatArray, direction: Direction, *, quick: bool = False) -> FloatArray:
        """Upper bounds on `(L - 1) D_L` at real orders L > 1.

        Args:
            orders: the orders L.
            direction: D(P||Q) or D(Q||P).
            quick: whether bounds that take seconds may be replaced by weaker ones.

        Returns:
            The bounds, one for each order.
        """

    @abstractmethod
    def limited(self) -> Round:
        """Itself, or a round within the limits on users and noise that is never more private."""

    @property
    def is_bare(self) -> bool:
        """Whether there is so little noise that only `own_report` is computed."""
        return False

    @property
    def has_direct_bound(self) -> bool:
        """Whether there may be a better bound than the sum of its legs."""
        return False

    @property
    def is_gaussian(self) -> bool:
        """Whether the round is one plain Gaussian report, which has closed forms."""
        return False

    @property
    def is_in_range(self) -> bool:
        """Whether its laws can be computed; outside only the local guarantee is claimed."""
        return (
            self.ratio.is_summable
            and self.ratio.limited() == self.ratio
            and self.users <= LAW_USERS_MAX
            and self.ratio.rate * self.weight >= LAW_RATE_MIN
        )

    def local(self) -> Round:
        """The one plain report of which the round is post-processing."""
        return Identical(ratio=self.ratio.at_rate(1.0), users=1)

    def own_report(self) -> Round:
        """User 1's report and its coin in the clear, where there is no better bound without the others."""
        return self

    def leg(self) -> Round | None:
        """The round in which user 1 moves half as far, to zero or from it; None if it does not exist."""
        return None

    def tuned(self, loss: float) -> Round:
        """The round with its attack tuned to decide at this loss."""
        return self

    def dominates(self, round_: Round, rounds: int) -> bool:
        """Whether this round, as computed, is certainly no more private than another one.

        Args:
            round_: the other round.
            rounds: how often both are run.

        Returns:
            False unless it is certain.
        """
        return False


@dataclass(frozen=True, kw_only=True)
class Identical(MeanRatio, Round):
    """The round of the identical crowd, or of one whose ratio is known exactly: S is a mean of ratios."""

    is_joint: ClassVar[bool] = True

    def law(self, half: int, budget: float) -> MeanLaw:
        """The law of the round's ratio.

        Args:
            half: the number of cells on each side of a level.
            budget: about how much mass may be cut off (and charged).

        Returns:
            The law, from above and from below.
        """
        return mean_law(self, half, budget)

    def pair(self, half: int, budget: float, side: Side, direction: Direction) -> Pair:
        return self.law(half, budget).pair(side, direction)

    def atoms(self, half: int, budget: float, direction: Direction, sides: SideChoice) -> Atoms:
        if sides != "both":
            return super().atoms(half, budget, direction, sides)
        # Both sides have the same masses at different losses, so they are composed once, with an offset.
        law, reverse = self.law(half, budget), direction == "reverse"
        above, below = law.log_ratio("upper", direction), law.log_ratio("lower", direction)
        is_positive = above > -np.inf
        # S = 0 from above: forward it has no top mass, in reverse all of it is at an infinite loss.
        mass_at_zero = float(law.mass[~is_positive].sum()) * ROUNDED_UP if reverse else 0.0
        above, below, mass = above[is_positive], below[is_positive], law.mass[is_positive]
        loss, top = (-above, mass) if reverse else (above, mass * np.exp(above))
        return Atoms(
            loss=loss,
            top=top,
            offset=top * np.expm1(below - above),
            infinite=law.cut[direction] + mass_at_zero,
            lost=law.cut[direction],
            relative=law.mass_error,
        )

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
        """Log-moments, exact up to round-off at whole orders (to 16,384 forward), by chords between them.

        Between whole orders the chord of a convex function is an upper bound. No value exceeds the log-moment of the
        moved user's own report with its coin revealed, because everything else is post-processing of that.
        `quick` gives the local bound at large whole orders at which the heavy tail of one report dominates: they are
        useless for a conversion.
        """
        powers = orders if direction == "forward" else 1.0 - orders
        # Rate and weight are one coin here: the report is sent or not.
        local = self.ratio.at_rate(self.ratio.rate * self.weight).log_moments(powers)
        if self.is_single:
            return local * (1.0 + moments.roundoff(orders))
        below = np.floor(orders)
        above = np.ceil(orders)
        whole_orders, position = np.unique(np.concatenate([below, above]), return_inverse=True)
        values = self._at_whole_orders(whole_orders, direction, quick)[position.reshape(-1)]
        share = orders - below
        start, end = values[: len(orders)], values[len(orders) :]
        is_bounded = np.isfinite(start) & np.isfinite(end)  # no bound at an end, no bound on the chord
        chord = np.full(len(orders), math.inf)
        chord[is_bounded] = start[is_bounded] + share[is_bounded] * (end[is_bounded] - start[is_bounded])
        return np.minimum(chord, local) * (1.0 + moments.roundoff(orders))

    def _at_whole_orders(self, orders: FloatArray, direction: Direction, quick: bool) -> FloatArray:
        """Log-moments at whole orders >= 1, without the margin for round-off."""
        result = np.zeros(len(orders))
        if direction == "reverse":
            chosen = orders > 1
            result[chosen] = moments.log_negative_moments(self, orders[chosen] - 1.0)
            return result
        # Three methods: one table of all orders, a contour for each, or none (the local bound remains).
        from_table = orders <= DENSE_ORDER_MAX
        if not quick and (self.users >= orders[-1] or len(orders) > _TABLE_ABOVE_ORDERS):
            from_table |= orders <= moments.SERIES_MAX
        by_contour = np.flatnonzero(~from_table & (orders <= _CONTOUR_MAX))
        result[orders > _CONTOUR_MAX] = math.inf
        result[by_contour] = [moments.log_moment_bound(self, int(k)) for k in orders[by_contour]]
        if not quick:
            # Where the contour gives no bound the table does, at the cost of seconds.
            from_table |= np.isinf(result) & (orders <= moments.SERIES_MAX)
        if from_table.any():
            table = moments.log_moments(self, int(orders[from_table].max()))
            result[from_table] = table[orders[from_table].astype(int)]
        return result

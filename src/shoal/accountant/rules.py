"""The three rules by which a filter adds up rounds that are chosen along the way.

A rule turns a block of rounds into a *cost*, a vector of nonnegative numbers, and has a vector of *limits*, fixed
beforehand. As long as the costs add up to at most the limits, all rounds together are (epsilon, delta)-DP, however
each choice depends on what was seen. Proofs are in `docs/explanation/adaptivity.md`.

`RenyiRule`      the Rényi divergences of both directions at one order (Feldman and Zrnic 2021, arXiv:2008.11193;
                 Lécuyer 2021, arXiv:2103.01379)
`GaussianRule`   the squared width and the probability of a revealing Gaussian pair that dominates the block
                 (`bounds.dominating`; with probability 0 the filter of Smith and Thakurta 2022, arXiv:2210.17520, and
                 Koskela, Tobaben and Honkela 2023, arXiv:2209.15596)
`PlanRule`       one of the rounds of the plan, which the round must not exceed: tight

If a block can be paid for in several ways, the filter takes the first that it can afford.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from shoal import _validate
from shoal.accountant.ledger import Accountant, Entry
from shoal.bounds import gaussian, rdp
from shoal.bounds.dominating import REVEAL_GRID, least_widths, width_within
from shoal.bounds.numeric import DIRECTIONS, ROUNDED_UP, UNIT, FloatArray
from shoal.errors import InvalidInput, Unreachable
from shoal.mechanisms import Mechanism, bounds, from_dict
from shoal.query import EPSILON, Options, guarantee

FilterMethod = Literal["gaussian", "rdp", "plan"]
"""The name of a rule."""

_REVEAL_SHARES: FloatArray = np.exp2(-0.25 * np.arange(1.0, 80.0))
"""The parts of delta that are tried for revealing rounds."""

_EXCHANGES = 400
"""The number of exchange rates of width for revealing that are tried, in steps of a factor 2^(1/4)."""

_COVERING_MARGIN = 1.0 + 1e-6
"""A rule covers this much more than it must, so that rounding refuses no round of the plan."""


class FilterRule(ABC):
    """A rule of a filter for (epsilon, delta)."""

    name: ClassVar[FilterMethod]
    saved_fields: ClassVar[tuple[str, ...]]
    """What `to_dict` writes besides the method."""

    epsilon: float
    delta: float

    @property
    @abstractmethod
    def limits(self) -> FloatArray:
        """The largest allowed sums of the costs."""

    @abstractmethod
    def costs(self, mechanism: Mechanism, rounds: int) -> FloatArray:
        """The ways to pay for a block of rounds.

        Args:
            mechanism: The mechanism of the block.
            rounds: The number of its rounds, fixed before the first of them.

        Returns:
            One row for each way to pay, in the order in which they are tried; none if the rule cannot pay.
        """

    @classmethod
    @abstractmethod
    def within(cls, epsilon: float, delta: float, plan: Accountant) -> FilterRule:
        """The rule for (epsilon, delta) that admits the plan most often.

        Args:
            epsilon: The epsilon of the guarantee.
            delta: Its delta.
            plan: What is likely to be run.

        Returns:
            The rule.

        Raises:
            Unreachable: If the rule cannot pay for rounds like those of the plan.
        """

    @classmethod
    @abstractmethod
    def covering(cls, delta: float, plan: Accountant, repeats: float) -> FilterRule:
        """The rule with the smallest epsilon that admits a multiple of the plan.

        Args:
            delta: The delta of the guarantee.
            plan: What is likely to be run.
            repeats: The multiple of the plan that must be admitted; 1 is the plan itself.

        Returns:
            The rule.

        Raises:
            Unreachable: If the rule cannot pay for rounds like those of the plan.
        """

    def repeats(self, plan: Accountant) -> float:
        """The multiple of the plan that would be admitted, round by round; not rounded."""
        total = np.sum([entry.rounds * self.costs(entry.mechanism, 1)[0] for entry in plan], axis=0)
        return float(np.min(self.limits / np.maximum(total, 1e-300)))

    def added(self, spent: FloatArray, costs: FloatArray) -> FloatArray:
        """The sums after each of several costs, rounded up so that small rounds are never lost.

        Args:
            spent: The costs of all rounds so far.
            costs: One row for each way to pay for the next block.

        Returns:
            One row for each way.
        """
        return np.nextafter(spent + costs, np.inf)

    def left(self, spent: FloatArray) -> float:
        """The part of the limits that is left, between 0 and 1."""
        return max(0.0, float(np.min(1.0 - spent / self.limits)))

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The parameters of the rule as plain data."""


@functools.lru_cache(maxsize=4096)
def _divergences_at(mechanism: Mechanism, order: float) -> tuple[float, ...]:
    """The Rényi divergence of one round at one order, in both directions."""
    parts, orders = bounds(((mechanism, 1),)).upper, np.array([order])
    return tuple(float(rdp.divergences(parts, orders, direction)[0]) for direction in DIRECTIONS)


@dataclass(frozen=True, kw_only=True)
class RenyiRule(FilterRule):
    """Rényi divergences at one order add up to the epsilon that they prove at delta."""

    epsilon: float
    delta: float
    order: float

    name: ClassVar[FilterMethod] = "rdp"
    saved_fields: ClassVar[tuple[str, ...]] = ("order",)

    @classmethod
    def within(cls, epsilon: float, delta: float, plan: Accountant) -> RenyiRule:
        def score(orders: FloatArray, divergences: FloatArray) -> FloatArray:
            allowed = np.array([_renyi_limit(epsilon, delta, order) for order in orders.tolist()])
            return allowed / np.maximum(divergences, 1e-300)

        return cls(epsilon=epsilon, delta=delta, order=_best_order(plan, score)[0])

    @classmethod
    def covering(cls, delta: float, plan: Accountant, repeats: float) -> RenyiRule:
        def score(orders: FloatArray, divergences: FloatArray) -> FloatArray:
            return -rdp.epsilon_terms(orders, repeats * divergences * _COVERING_MARGIN * (orders - 1.0), delta)

        order, best = _best_order(plan, score)
        return cls(epsilon=max(-best, 1e-300) * _COVERING_MARGIN, delta=delta, order=order)

    @property
    def limits(self) -> FloatArray:
        return np.full(2, _renyi_limit(self.epsilon, self.delta, self.order))

    def costs(self, mechanism: Mechanism, rounds: int) -> FloatArray:
        return rounds * np.array([_divergences_at(mechanism, self.order)]) * (1.0 + 4.0 * UNIT)

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.name, "order": self.order}


def _best_order(plan: Accountant, score: Callable[[FloatArray, FloatArray], FloatArray]) -> tuple[float, float]:
    """The order with the best score, and that score; a heuristic, on which no bound rests."""
    parts = bounds((entry.mechanism, entry.rounds) for entry in plan).upper

    def scores(orders: FloatArray) -> FloatArray:
        totals = [
            sum((count * round_.log_moments(orders, direction, quick=True) for round_, count in parts), 0.0 * orders)
            for direction in DIRECTIONS
        ]
        return score(orders, np.maximum(*totals) / (orders - 1.0))

    # In steps of a factor 2 first, until the best order is not the last one; then in ever smaller steps around it.
    orders, best = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0]), -math.inf
    while orders[-1] < _validate.ORDER_MAX / 2.0:
        values = scores(orders)
        place = int(np.argmax(values))
        if values[place] <= best:
            break
        best, order = float(values[place]), float(orders[place])
        if place < len(orders) - 1:
            break
        orders = order * np.array([2.0, 4.0])
    for step in (math.sqrt(2.0), 2.0**0.25, 2.0**0.125):
        orders = np.maximum(order * np.array([1.0 / step, step]), 1.02)
        # Whole orders are exact for more rounds than others are.
        orders = np.where(orders > 4.0, np.round(orders), orders)
        values = scores(orders)
        place = int(np.argmax(values))
        if values[place] > best:
            best, order = float(values[place]), float(orders[place])
    return order, best


@functools.lru_cache(maxsize=4096)
def _renyi_limit(epsilon: float, delta: float, order: float) -> float:
    """The largest Rényi divergence that proves epsilon at delta, from below; 0 if none does."""
    orders = np.array([order])
    limit = epsilon - math.log1p(-1.0 / order) + (math.log(delta) + math.log(order)) / (order - 1.0)
    limit -= 64.0 * UNIT * (epsilon + 1.0 - math.log(delta) / (order - 1.0))
    # Converted with its own charges: the limit holds whatever was lost above.
    while limit > 0.0 and rdp.epsilon_terms(orders, limit * (orders - 1.0), delta)[0] > epsilon:
        limit *= 1.0 - 1e-12
    return max(0.0, limit)


@functools.lru_cache(maxsize=4096)
def _squared_widths(mechanism: Mechanism, rounds: int) -> FloatArray:
    """The squared least widths of a block, for each probability of `REVEAL_GRID`."""
    return least_widths(bounds(((mechanism, rounds),)).upper) ** 2 * ROUNDED_UP


_REVEALS: FloatArray = -np.log1p(-REVEAL_GRID) * ROUNDED_UP
"""The costs of the probabilities p of `REVEAL_GRID`: -log(1 - p), which adds up."""


@dataclass(frozen=True, kw_only=True)
class GaussianRule(FilterRule):
    """Squared widths and probabilities of revealing Gaussian pairs add up.

    `reveal` is the probability of the pair that they add up to; `exchange` is how much squared width one unit of the
    second cost is worth: it says which of the ways to pay for a block comes first.
    """

    epsilon: float
    delta: float
    reveal: float
    exchange: float

    name: ClassVar[FilterMethod] = "gaussian"
    saved_fields: ClassVar[tuple[str, ...]] = ("reveal", "exchange")

    @classmethod
    def within(cls, epsilon: float, delta: float, plan: Accountant) -> GaussianRule:
        exchanges, totals = _plan_totals(plan)
        best, rule = -1.0, None
        for reveal in (delta * _REVEAL_SHARES).tolist():
            repeats = np.min(_gaussian_limits(epsilon, delta, reveal) / np.maximum(totals, 1e-300), axis=1)
            place = int(np.argmax(repeats))
            if rule is None or repeats[place] > best:
                best = float(repeats[place])
                rule = cls(epsilon=epsilon, delta=delta, reveal=reveal, exchange=float(exchanges[place]))
        return _present(rule)

    @classmethod
    def covering(cls, delta: float, plan: Accountant, repeats: float) -> GaussianRule:
        exchanges, totals = _plan_totals(plan)
        smallest, rule = math.inf, None
        for reveal in (delta * _REVEAL_SHARES).tolist():
            # The margin keeps rounding from refusing a round of the plan.
            needed = repeats * totals * _COVERING_MARGIN
            place = int(np.argmin(np.where(needed[:, 1] <= -math.log1p(-reveal), needed[:, 0], math.inf)))
            if needed[place, 1] > -math.log1p(-reveal):
                continue
            allowed = (delta - reveal) / (1.0 - reveal) * (1.0 - 8.0 * UNIT)
            epsilon = gaussian.epsilon_at(math.sqrt(needed[place, 0]), allowed).upper
            if rule is None or epsilon < smallest:
                smallest = epsilon
                rule = cls(epsilon=epsilon, delta=delta, reveal=reveal, exchange=float(exchanges[place]))
        return _present(rule)

    @property
    def limits(self) -> FloatArray:
        return _gaussian_limits(self.epsilon, self.delta, self.reveal)

    def costs(self, mechanism: Mechanism, rounds: int) -> FloatArray:
        return _gaussian_costs(mechanism, rounds, self.exchange)

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.name, "reveal": self.reveal, "exchange": self.exchange}


def _present(rule: GaussianRule | None) -> GaussianRule:
    if rule is None:
        raise Unreachable("no revealing Gaussian pair covers the plan: there is too little noise in it")
    return rule


@functools.lru_cache(maxsize=256)
def _gaussian_limits(epsilon: float, delta: float, reveal: float) -> FloatArray:
    """The squared width and the cost of revealing that are within (epsilon, delta)."""
    return np.array([width_within(epsilon, delta, reveal) ** 2 / ROUNDED_UP, -math.log1p(-reveal) / ROUNDED_UP])


@functools.lru_cache(maxsize=4096)
def _gaussian_costs(mechanism: Mechanism, rounds: int, exchange: float) -> FloatArray:
    """The ways to pay for a block: as one pair, or round by round; the cheapest first."""
    single = np.stack([_squared_widths(mechanism, 1), _REVEALS], axis=1)
    costs = rounds * single
    if rounds > 1:
        costs = np.concatenate([costs, np.stack([_squared_widths(mechanism, rounds), _REVEALS], axis=1)])
    costs = costs[np.isfinite(costs[:, 0])]
    return costs[np.argsort(costs[:, 0] + exchange * costs[:, 1])]


def _plan_totals(plan: Accountant) -> tuple[FloatArray, FloatArray]:
    """The costs of the plan, round by round, at each of a range of exchanges, and these exchanges."""
    tables = [(entry.rounds, _squared_widths(entry.mechanism, 1)) for entry in plan]
    if any(not np.isfinite(table[0]) for _, table in tables):
        raise Unreachable("no revealing Gaussian pair covers a round of the plan: there is too little noise in it")
    # The exchange rates run from "reveal nothing if possible" to "as little width as possible".
    largest = max(float(np.max(table[np.isfinite(table)])) for _, table in tables)
    exchanges = largest / _REVEALS[-1] * np.exp2(-0.25 * np.arange(_EXCHANGES))
    totals = np.zeros((len(exchanges), 2))
    for rounds, table in tables:
        places = np.argmin(table[None, :] + exchanges[:, None] * _REVEALS[None, :], axis=1)
        totals += rounds * np.stack([table[places], _REVEALS[places]], axis=1)
    return exchanges, totals


# As planned


@dataclass(frozen=True, kw_only=True)
class PlanRule(FilterRule):
    """Every round replaces a planned one and is at least as private."""

    epsilon: float
    delta: float
    units: tuple[Entry, ...]

    name: ClassVar[FilterMethod] = "plan"
    saved_fields: ClassVar[tuple[str, ...]] = ("units",)

    @classmethod
    def within(cls, epsilon: float, delta: float, plan: Accountant) -> PlanRule:
        total = len(plan)

        def units(rounds: int) -> tuple[Entry, ...]:
            return _scaled(plan, rounds / total)

        if _tight_epsilon(units(1), delta) > epsilon:
            raise Unreachable(f"not one round of the plan is within epsilon = {epsilon:g} at delta = {delta:g}")
        low, high = 1, 2
        while high <= _validate.ROUNDS_MAX and _tight_epsilon(units(high), delta) <= epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _tight_epsilon(units(middle), delta) <= epsilon else (low, middle)
        return cls(epsilon=epsilon, delta=delta, units=units(low))

    @classmethod
    def covering(cls, delta: float, plan: Accountant, repeats: float) -> PlanRule:
        units = _scaled(plan, repeats)
        return cls(epsilon=_tight_epsilon(units, delta), delta=delta, units=units)

    @property
    def limits(self) -> FloatArray:
        return np.array([float(unit.rounds) for unit in self.units])

    def costs(self, mechanism: Mechanism, rounds: int) -> FloatArray:
        places = [i for i, unit in enumerate(self.units) if is_as_private(mechanism, unit.mechanism)]
        return float(rounds) * np.eye(len(self.units))[places]

    def added(self, spent: FloatArray, costs: FloatArray) -> FloatArray:
        # Numbers of rounds are exact.
        return spent + costs

    def left(self, spent: FloatArray) -> float:
        return 1.0 - float(spent.sum()) / float(self.limits.sum())

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "units": [{**unit.mechanism.to_dict(), "rounds": unit.rounds} for unit in self.units],
        }


def _scaled(plan: Accountant, factor: float) -> tuple[Entry, ...]:
    """The plan with its numbers of rounds scaled and rounded up."""
    return tuple(
        Entry(mechanism=entry.mechanism, rounds=math.ceil(entry.rounds * factor - 1e-9 * entry.rounds))
        for entry in plan
    )


def _tight_epsilon(units: tuple[Entry, ...], delta: float) -> float:
    """The epsilon of rounds that are fixed beforehand."""
    return guarantee(EPSILON, bounds((unit.mechanism, unit.rounds) for unit in units), delta, Options())


def is_as_private(mechanism: Mechanism, baseline: Mechanism) -> bool:
    """Whether a mechanism is certainly at least as private as another, by its parameters.

    More noise is post-processing. More users and a smaller sample are never less private among a crowd (see
    `accountant.merging`), and bins are users. A smaller rate is one more coin before the round; among any crowd it
    also takes others out of the round, so there it is not compared.

    Args:
        mechanism: The mechanism in question.
        baseline: The mechanism that it is compared with.

    Returns:
        False unless it is certain.
    """
    first, second = mechanism.to_dict(), baseline.to_dict()
    if first.keys() != second.keys():
        return False
    at_least, at_most = {"sigma", "bins"}, set()
    if "crowd" in first:
        at_least.add("users")
        at_most.add("sample")
    if first.get("crowd") != "any" and first["adjacency"] == "zero-out":
        at_most.add("rate")
    return all(
        value == second[name]
        or (name in at_least and value > second[name])
        or (name in at_most and value < second[name])
        for name, value in first.items()
    )


# The registry of rules

RULES: dict[str, type[FilterRule]] = {cls.name: cls for cls in (GaussianRule, RenyiRule, PlanRule)}


def rule_from_dict(epsilon: float, delta: float, saved: Any) -> FilterRule:
    """The rule that `FilterRule.to_dict` wrote, for a budget.

    Args:
        epsilon: The epsilon of the budget.
        delta: Its delta.
        saved: What was written.

    Returns:
        The rule.

    Raises:
        InvalidInput: If the rule cannot be read, or does not prove the budget.
    """
    if not isinstance(saved, Mapping) or saved.get("method") not in RULES:
        raise InvalidInput(f"rule must be a mapping with a method among {', '.join(RULES)}, got {saved!r}")
    cls = RULES[saved["method"]]
    if set(saved) != {"method", *cls.saved_fields}:
        raise InvalidInput(f"a rule {cls.name!r} must have {', '.join(cls.saved_fields)}, got {saved!r}")
    if cls is RenyiRule:
        return RenyiRule(epsilon=epsilon, delta=delta, order=_validate.order(saved["order"]))
    if cls is GaussianRule:
        reveal, exchange = _validate.delta(saved["reveal"], "reveal"), _validate.real("exchange", saved["exchange"])
        if not reveal < delta or exchange < 0.0:
            raise InvalidInput(f"reveal must be below delta, and exchange not negative, got {saved!r}")
        return GaussianRule(epsilon=epsilon, delta=delta, reveal=reveal, exchange=exchange)
    units = tuple(
        Entry(
            mechanism=from_dict({k: v for k, v in unit.items() if k != "rounds"}),
            rounds=_validate.rounds(unit["rounds"]),
        )
        for unit in saved["units"]
    )
    if not units or _tight_epsilon(units, delta) > epsilon * (1.0 + 1e-9):
        raise InvalidInput(f"the planned rounds must be within epsilon = {epsilon:g}, but are not")
    return PlanRule(epsilon=epsilon, delta=delta, units=units)

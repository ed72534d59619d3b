"""A noise that the package does not know, in under 40 lines: the interface of a ratio is all that it takes."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shoal.bounds import certify, rdp
from shoal.bounds.round import Identical


@dataclass(frozen=True, kw_only=True)
class TwoPoint:
    """Randomised response: the true bit is sent with probability `truth`; W is its ratio, moved over unmoved."""

    truth: float
    rate: float = 1.0
    scale = 0.0
    deviation = 1.0
    cells = 512
    is_gaussian = is_extreme = False
    is_summable = True
    transform = None

    @property
    def values(self):
        return np.log([(1.0 - self.truth) / self.truth, self.truth / (1.0 - self.truth)])

    def at_rate(self, rate):
        return replace(self, rate=rate)

    def halved(self):
        return None

    def limited(self):
        return self

    def reach(self, below, above):
        return 0.0, 1.0

    def log_at(self, z):
        return np.where(z < 0.5, *self.values)

    def beyond(self, low, high):
        return np.zeros(2), np.zeros(2)

    def atoms(self, low, high, edges):
        return np.array([0.0, 1.0]), self.rate * np.array([self.truth, 1.0 - self.truth])

    def log_moments(self, orders):
        moved = np.array([self.truth, 1.0 - self.truth]) @ np.exp(np.multiply.outer(self.values, orders))
        return np.log1p(self.rate * (moved - 1.0))


def law(ratio, users):
    """All values of S with their probabilities, by counting: how many send each of the two bits."""
    w, found = np.exp(ratio.values), []
    for low, high in itertools.product(range(users + 1), repeat=2):
        absent = users - low - high
        if absent >= 0:
            chance = math.comb(users, low) * math.comb(users - low, high)
            chance *= (ratio.rate * ratio.truth) ** low * (ratio.rate * (1 - ratio.truth)) ** high
            chance *= (1 - ratio.rate) ** absent
            found.append(((low * w[0] + high * w[1] + absent) / users, chance))
    return map(np.array, zip(*found, strict=True))


def composed(value, chance, rounds):
    s, p = value, chance
    for _ in range(rounds - 1):
        s, p = np.multiply.outer(s, value).ravel(), np.multiply.outer(p, chance).ravel()
    return s, p


CASES = [(0.75, 1.0, 1, 1), (0.75, 1.0, 7, 2), (0.9, 0.3, 6, 2), (0.55, 1.0, 300, 1), (0.99, 0.5, 40, 1)]


@pytest.mark.parametrize(("truth", "rate", "users", "rounds"), CASES)
def test_certified_delta_and_epsilon_hold_the_truth(truth, rate, users, rounds):
    ratio = TwoPoint(truth=truth, rate=rate)
    s, p = composed(*law(ratio, users), rounds)
    parts = ((Identical(ratio=ratio, users=users), rounds),)
    for epsilon in (0.0, 0.01, 0.1, 0.5):
        for way, true in (
            ("forward", p @ np.maximum(s - math.exp(epsilon), 0.0)),
            ("reverse", p @ np.maximum(1.0 - math.exp(epsilon) * s, 0.0)),
        ):
            found = certify.deltas(parts, [epsilon], direction=way)[0]
            assert found.lower <= true * (1 + 1e-9)
            assert true * (1 - 1e-9) <= found.upper
    worst = max(p @ np.maximum(s - math.exp(0.1), 0.0), p @ np.maximum(1.0 - math.exp(0.1) * s, 0.0))
    if worst > 1e-12:
        found = certify.epsilons(parts, [worst])[0]
        assert found.lower <= 0.1 * (1 + 1e-6)
        assert 0.1 * (1 - 1e-6) <= found.upper < 0.1 * 1.01 or users == 1


@pytest.mark.parametrize(("truth", "rate", "users", "rounds"), CASES)
def test_renyi_divergences_are_above_the_truth(truth, rate, users, rounds):
    ratio = TwoPoint(truth=truth, rate=rate)
    s, p = law(ratio, users)
    parts = ((Identical(ratio=ratio, users=users), rounds),)
    for order in (1.5, 2.0, 5.0):
        forward, reverse = (rounds * math.log(p @ s**power) / (order - 1.0) for power in (order, 1.0 - order))
        found = [rdp.divergences(parts, np.array([order]), way)[0] for way in ("forward", "reverse")]
        assert found[0] >= forward * (1 - 1e-12)
        assert found[1] >= reverse * (1 - 1e-12)
        if order == 2.0:
            assert found[0] == pytest.approx(forward, rel=1e-9)

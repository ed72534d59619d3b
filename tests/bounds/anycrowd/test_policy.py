"""Plans are data: whatever they say, what is computed from them is above exact attacks; and the family has no edges."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import special

from helpers import Array
from shoal.bounds.anycrowd import exchange, policy
from shoal.bounds.anycrowd.exchange import Exchange
from shoal.bounds.anycrowd.policy import FAMILY, BoundPlan, Member
from shoal.bounds.anycrowd.sequential import Sequential
from shoal.bounds.ratio import Lognormal

SETTINGS = 200
EPSILONS = np.concatenate([-np.geomspace(2.0, 0.02, 8), [0.0], np.geomspace(0.02, 2.0, 8)])


# Exact attacks: the law of the numbers of reports in three letters, of which all prices are known.


def letter_counts(crowd: Exchange, places: list[float], sigma: float) -> Array:
    """The law of how many reports are in each of three letters, and for a fixed size of how many are sent."""
    rate = crowd.ratio.rate if crowd.sample is None else 0.5
    edges = np.array([-np.inf, -0.4 * sigma, 1.0 * sigma, np.inf])
    law = np.zeros((len(places) + 1,) * 3)
    law[0, 0, 0] = 1.0
    for x in places:
        chance, grown = rate * np.diff(special.ndtr((edges - x) / sigma)), (1.0 - rate) * law
        grown[1:] += chance[0] * law[:-1]
        grown[:, 1:] += chance[1] * law[:, :-1]
        grown[:, :, 1:] += chance[2] * law[:, :, :-1]
        law = grown
    if crowd.sample is None:
        return law.ravel()
    # All sets of senders of one size are equally likely.
    sent = law[np.indices(law.shape).sum(axis=0) == crowd.sample]
    return sent / sent.sum()


def prices_of_crowd(crowd: Exchange, others: list[float], moved: float) -> Array:
    """Calls and puts of the counts' likelihood ratio at all thresholds."""
    sigma = crowd.ratio.scale
    still, there = (letter_counts(crowd, [*others, x], sigma) for x in (0.0, moved))
    k = np.exp(EPSILONS)[:, None]
    sign = np.where(k >= 1.0, 1.0, -1.0)
    prices: Array = np.maximum(sign * (there - k * still), 0.0).sum(axis=1)
    return prices


def random_round(rng: np.random.Generator) -> Exchange:
    users, sigma = int(rng.integers(2, 8)), float(np.exp(rng.uniform(math.log(0.6), math.log(6.0))))
    kind = rng.integers(4)
    if kind == 0:
        return Exchange(ratio=Lognormal(scale=sigma, rate=float(rng.uniform(0.1, 0.95))), users=users)
    if kind == 1:
        return Exchange(ratio=Lognormal(scale=sigma), users=users, sample=int(rng.integers(1, users + 1)))
    return (Sequential if kind == 2 else Exchange)(ratio=Lognormal(scale=sigma), users=users)


def random_crowds(rng: np.random.Generator, others: int) -> Iterator[list[float]]:
    yield [-1.0] * others
    yield [1.0] * others
    for _ in range(3):
        yield [float(x) for x in rng.choice([-1.0, 1.0, rng.uniform(-1.0, 1.0)], others)]


def forced(member: Member, rng: np.random.Generator) -> BoundPlan:
    """A plan like a member's, with small numbers that may not suit the round at all."""
    grouped = member.group is not None
    return BoundPlan(
        thinning=member.thinning,
        by_size=member.by_size,
        size=int(rng.integers(1, 4)) if grouped else 0,
        cuts=member.cuts,
        aside=int(rng.integers(0, 4)) if grouped else 0,
        places=tuple(policy._PLACES[:: int(rng.integers(1, 4))].tolist()),
    )


def test_any_plan_is_above_exact_attacks() -> None:
    """Each member of the family in turn, and plans of random numbers."""
    rng, tightest = np.random.default_rng(27), 0.0
    wild = Member(thinning=0.3, group=0.0, cuts=(0.7, -0.2, 0.1), by_size=True)
    members = (*FAMILY, wild)
    for setting in range(SETTINGS):
        crowd = random_round(rng)
        plan = forced(members[setting % len(members)], rng)
        bound = exchange.plan_prices(crowd, plan, 64, 1e-14).at(np.expm1(EPSILONS))
        for others in random_crowds(rng, crowd.users - 1):
            exact = prices_of_crowd(crowd, others, float(rng.choice([1.0, rng.uniform(0.2, 1.0)])))
            assert np.all(exact <= bound * (1.0 + 1e-9) + 1e-13), (crowd, plan, others)
            tightest = max(tightest, float(np.max(exact / bound)))
    assert tightest > 0.7  # so that a bound that is too small by a third would be seen


def test_a_plan_more_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users aside without groups: with this member 30 users are known better at a small delta."""
    crowd, aside = Exchange(ratio=Lognormal(scale=2.0), users=30), FAMILY[-1]

    def smallest_epsilon(*family: Member) -> float:
        monkeypatch.setattr(policy, "FAMILY", family)
        bounds = [exchange.plan_prices(crowd, plan, 512, 1e-20) for plan in policy.plans(sigma=2.0, users=30)]
        return min(float(policy._epsilons(bound, np.array([1e-9]))[0]) for bound in bounds)

    assert aside.group == 0.0
    without, alone = smallest_epsilon(*FAMILY[:-1]), smallest_epsilon(aside)
    assert alone <= 2.68
    assert without > 1.03 * alone


# Scans: the family is the same everywhere, so epsilon falls with noise and users and rises with the rate.


def epsilons(rounds: list[Exchange]) -> Array:
    laws = [exchange._law(crowd, policy.COARSE, 1e-14) for crowd in rounds]
    return np.array([policy._epsilons(law.prices(), np.array([1e-6]))[0] for law in laws])


@pytest.mark.parametrize(
    "rounds",
    [
        [Exchange(ratio=Lognormal(scale=float(s)), users=40) for s in np.geomspace(1.2, 4.0, 6)],
        [Exchange(ratio=Lognormal(scale=3.0), users=int(n)) for n in np.geomspace(6, 400, 6)],
        [Exchange(ratio=Lognormal(scale=2.5, rate=float(p)), users=60) for p in np.linspace(1.0, 0.1, 5)],
    ],
    ids=["sigma", "users", "rate"],
)
def test_scans_have_no_step_the_wrong_way(rounds: list[Exchange]) -> None:
    found = epsilons(rounds)
    assert np.all(np.diff(found) < 0.0), found


def test_plans_count_users_that_there_are() -> None:
    for users in (1, 2, 5, 30, 1_000, 10**6):
        for sample in (None, max(1, users // 3)):
            for plan in policy.plans(sigma=1.7, users=users, rate=1.0, sample=sample):
                assert plan.size + plan.aside <= users
                assert plan.places == tuple(sorted(plan.places))

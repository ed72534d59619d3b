"""The ledger: composition adds, questions are pure, states survive and corrupt ones are refused."""

import contextlib
import copy
import itertools
import json
import math
import random

import numpy as np
import pytest

from shoal import (
    Accountant,
    FixedBatch,
    LocalGaussian,
    PoissonSampling,
    Shuffle,
    ShuffledCheckIn,
    SubsampledShuffle,
)
from shoal.accountant import merging
from shoal.errors import ShoalError
from shoal.mechanisms import MECHANISMS, bounds
from shoal.query import EPSILON, Options, solve

M = ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
N = Shuffle(users=1_000, sigma=3.0, crowd="identical")


def test_same_rounds_cost_the_same_as_asked_of_the_mechanism():
    a = Accountant().compose(M, rounds=60).compose(M, rounds=40)
    assert a.epsilon(delta=1e-5) == M.epsilon(delta=1e-5, rounds=100)
    assert len(a) == 100
    assert len(a.ledger) == 1


def test_composition_adds_rdp():
    a = Accountant().compose(M, rounds=100).compose(N)
    for direction in ("forward", "reverse"):
        added = M.rdp([2, 7, 30], rounds=100, direction=direction) + N.rdp([2, 7, 30], direction=direction)
        np.testing.assert_allclose(a.rdp([2, 7, 30], direction=direction), added, rtol=1e-14)
    assert a.epsilon(delta=1e-5).upper > max(M.epsilon(delta=1e-5, rounds=100).upper, N.epsilon(delta=1e-5).upper)
    assert a.epsilon(delta=1e-5).upper < M.epsilon(delta=5e-6, rounds=100).upper + N.epsilon(delta=5e-6).upper


def test_order_does_not_matter():
    one = Accountant().compose(M).compose(N, rounds=3)
    two = Accountant().compose(N, rounds=3).compose(M)
    assert one.epsilon(delta=1e-6).upper == pytest.approx(two.epsilon(delta=1e-6).upper, rel=1e-14)


def test_questions_do_not_change_it():
    a = Accountant().compose(M, rounds=7)
    before = a.state_dict()
    first = a.epsilon(delta=1e-5), a.delta(epsilon=0.1), a.rdp(2).tolist()
    assert (a.epsilon(delta=1e-5), a.delta(epsilon=0.1), a.rdp(2).tolist()) == first
    assert a.state_dict() == before


def test_nothing_composed_costs_nothing():
    a = Accountant()
    assert a.epsilon(delta=1e-9).upper == 0.0
    assert a.delta(epsilon=0.0).upper == 0.0
    assert a.rdp([2, 3]).tolist() == [0.0, 0.0]


def test_state_survives_json():
    a = Accountant().compose(M, rounds=5).compose(N).compose(LocalGaussian(sigma=9.0), rounds=2)
    b = Accountant().compose(N, rounds=99)
    assert b.load_state_dict(json.loads(json.dumps(a.state_dict()))) is b
    assert b.ledger == a.ledger
    assert b.epsilon(delta=1e-5) == a.epsilon(delta=1e-5)
    b.compose(M)
    assert len(a) == 8


def corrupt(change):
    state = copy.deepcopy(Accountant().compose(M, rounds=5).compose(N).state_dict())
    return change(state) or state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("version") and None, "state must have the keys version and ledger"),
        (lambda s: s.update(version=99), "state version must be 1, got 99"),
        (lambda s: s.update(version=True), "state version must be 1, got True"),
        (lambda s: s["ledger"][0].update(sigma=10**400), "ledger entry 0: sigma must be finite, got inf"),
        (lambda s: s.update(ledger={}), "ledger must be a list, got dict"),
        (lambda s: s["ledger"][0].update(rounds=0), "ledger entry 0: rounds must be at least 1, got 0"),
        (lambda s: s["ledger"][0].update(rounds="many"), "ledger entry 0: rounds must be a number, got 'many'"),
        (lambda s: s["ledger"][1].update(sigma=-3.0), "ledger entry 1: sigma must be positive, got -3.0"),
        (lambda s: s["ledger"][1].update(mechanism="Evil"), "ledger entry 1: mechanism must be one of"),
        (lambda s: s["ledger"][1].pop("users") and None, "ledger entry 1: Shuffle must have the fields"),
        (lambda s: s["ledger"].append(None), "ledger entry 2: an entry must be a mapping with rounds, got None"),
        (lambda s: s["ledger"][1].update(adjacency="replace"), "ledger entry 1: adjacency must be 'zero-out'"),
        (lambda s: "not a state", "state must be a mapping, got str"),
    ],
)
def test_a_corrupt_state_is_refused_and_changes_nothing(change, message):
    a = Accountant().compose(N, rounds=3)
    before = a.ledger
    with pytest.raises((ValueError, TypeError)) as caught:
        a.load_state_dict(corrupt(change))
    assert str(caught.value).startswith(message)
    assert a.ledger == before


def test_compose_checks_before_it_changes():
    a = Accountant().compose(M)
    for bad, rounds in [("shuffle", 1), (M, 0), (M, 2.5), (N.replace(adjacency="replace"), 1)]:
        with pytest.raises((ValueError, TypeError)):
            a.compose(bad, rounds=rounds)
    assert len(a) == 1


def test_it_shows_its_ledger():
    a = Accountant().compose(M, rounds=5).compose(LocalGaussian(sigma=9.0))
    assert repr(a) == "<Accountant: 6 rounds, 2 different>"
    assert "| 5 | check-in | users = 60,000, check-in rate = 0.1, σ = 5 | zero-out, identical crowd |" in (
        a._repr_markdown_()
    )
    assert "<td>local</td><td>σ = 9</td><td>zero-out, no crowd</td>" in a._repr_html_()


# Many numbers of users


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_classes_of_users_are_those_that_add_least(seed, sampled):
    """Against every way to cut the sorted numbers."""
    rng = np.random.default_rng(seed)
    users, times = rng.integers(5, 500, 11), rng.integers(1, 9, 11)
    samples = np.minimum(rng.integers(1, 300, 11), users) if sampled else users
    rounds = {(int(n), int(m)): int(r) for n, m, r in zip(users, samples, times, strict=True)}
    every = sorted(rounds, key=lambda pair: -pair[1] / pair[0] ** 2)

    def price(classes):
        ends = (merging.bounding_size(one, "upper") for one in classes)
        return sum(sum(rounds[pair] for pair in one) * m / n**2 for one, (n, m) in zip(classes, ends, strict=True))

    found = merging.cheapest_classes(rounds, merging.MAX_CLASSES)
    assert [pair for one in found for pair in one] == every
    assert len(found) <= merging.MAX_CLASSES
    cuts = itertools.combinations(range(1, len(every)), merging.MAX_CLASSES - 1)
    ways = ([every[a:b] for a, b in itertools.pairwise((0, *cut, len(every)))] for cut in cuts)
    assert price(found) == pytest.approx(min(map(price, ways)), rel=1e-12)


def test_users_are_counted_down_for_upper_and_up_for_lower_bounds():
    some = Shuffle(users=100, sigma=9.0)
    a, wanted = Accountant().compose(N, rounds=2), 2
    for users in range(100, 100 + 7 * merging.MAX_CLASSES, 7):
        a.compose(some.replace(users=users), rounds=3)
        wanted += 3
    assert len(merging.round_classes(a._counts)) == 1 + merging.MAX_CLASSES  # nothing is counted down
    assert a.merging_note() == ""
    a.compose(some.replace(users=1_000))
    classes = merging.round_classes(a._counts)
    assert sum(one.rounds for one in classes) == len(a) == wanted + 1
    assert classes[0].upper == classes[0].lower == N
    for one in classes[1:]:
        assert one.upper.users <= one.lower.users
    bounds = a.bounds()
    assert [part.users for part, _ in bounds.upper] == [one.upper.users for one in classes]
    assert [part.users for part, _ in bounds.attacks[0]] == [one.lower.users for one in classes]
    assert [part.users for part, _ in bounds.attacks[-1][1:]] == [one.lower.users for one in classes[1:]]


def test_every_mechanism_with_a_crowd_is_counted():
    a = Accountant()
    for users in range(10**6, 10**6 + 20):
        a.compose(SubsampledShuffle(users=users, sample=10, sigma=9.0))
        a.compose(SubsampledShuffle(users=users, sample=11, sigma=8.0))
        a.compose(Shuffle(users=users, sigma=2.0))
        a.compose(Shuffle(users=users, sigma=9.0, crowd="identical"))
    classes = merging.round_classes(a._counts)
    assert len(classes) == 2 * merging.MAX_CLASSES_SAMPLED + merging.MAX_CLASSES_LOW_NOISE + 20
    assert sum(one.rounds for one in classes) == 80
    assert all(one.upper.replace(users=one.lower.users) == one.lower for one in classes)
    assert a.merging_note().endswith("as 30, with users counted down, which is never better")


def test_samples_are_counted_up_for_upper_and_down_for_lower_bounds():
    a = Accountant()
    for i in range(20):
        a.compose(SubsampledShuffle(users=1_000 - 7 * i, sample=900 - 31 * i, sigma=9.0))
        a.compose(SubsampledShuffle(users=100 + 50 * i, sample=90 + 40 * i, sigma=8.0))
    for sigma in (8.0, 9.0):
        every = [e.mechanism for e in a.ledger if e.mechanism.sigma == sigma]
        classes = [one for one in merging.round_classes(a._counts) if one.upper.sigma == sigma]
        assert len(classes) == merging.MAX_CLASSES_SAMPLED
        assert sum(one.rounds for one in classes) == 20
        for m in every:
            assert any(
                one.upper.users <= m.users <= one.lower.users
                and one.lower.sample <= m.sample
                and (m.sample <= one.upper.sample or one.upper.sample == one.upper.users)
                for one in classes
            )
    assert a.merging_note().endswith(
        "40 different rounds are analysed as 8, with users counted down and samples up, which is never better"
    )


def test_samples_that_would_be_too_small_a_part_are_analysed_one_by_one():
    a = Accountant()
    for i in range(10):
        a.compose(SubsampledShuffle(users=10 ** (6 + i), sample=10 ** (1 + i // 2), sigma=9.0))
    a.compose(SubsampledShuffle(users=10**15, sample=1_000, sigma=9.0))
    assert len(merging.round_classes(a._counts)) == 11


def test_counting_users_down_is_never_better():
    """The bracket contains what is known of the ledger as it is: seven numbers of users where six are analysed."""
    a = Accountant()
    for users in (40, 60, 80, 100, 120, 140, 1_000):
        a.compose(Shuffle(users=users, sigma=8.0))
    quick = a.epsilon(delta=1e-5)
    as_it_is = bounds((e.mechanism, e.rounds) for e in a.ledger)
    exact = solve(EPSILON, as_it_is, 1e-5, Options()).interval
    assert quick.lower <= exact.lower <= exact.upper <= quick.upper < 1.1 * exact.upper


def test_counting_samples_up_is_never_better():
    """The bracket contains what is known of the ledger as it is: five samples where four are analysed."""
    a = Accountant()
    for users, sample in ((40, 40), (60, 10), (80, 9), (100, 20), (35, 12)):
        a.compose(SubsampledShuffle(users=users, sample=sample, sigma=8.0))
    quick = a.epsilon(delta=1e-5)
    as_it_is = bounds((e.mechanism, e.rounds) for e in a.ledger)
    exact = solve(EPSILON, as_it_is, 1e-5, Options()).interval
    assert quick.lower <= exact.lower <= exact.upper <= quick.upper < 1.1 * exact.upper


@pytest.mark.parametrize("crowd", ["identical", "any"])
def test_a_larger_sample_of_fewer_users_is_never_more_private(crowd):
    m = SubsampledShuffle(users=60, sample=12, sigma=4.0, crowd=crowd)
    less = [m.epsilon(delta=1e-4), m.replace(sample=13).epsilon(delta=1e-4), m.replace(users=50).epsilon(delta=1e-4)]
    assert less[0].upper < less[1].upper
    assert less[0].upper < less[2].upper
    assert less[0].lower < less[1].lower
    assert less[0].lower < less[2].lower


def test_many_samples_are_stated_together():
    a = Accountant()
    for i in range(8):
        a.compose(SubsampledShuffle(users=900 + i, sample=300 - i, sigma=9.0), rounds=2)
    text = a.statement(delta=1e-6).sentence()
    words = "16 rounds together of subsampled (users = 900 to 907, sampled a round = 293 to 300, σ = 9) are"
    assert text.startswith(words)


def test_a_hundred_numbers_of_users_are_stated_together():
    a = Accountant()
    for i in range(100):
        a.compose(ShuffledCheckIn(users=10_000 + 17 * i, rate=0.1, sigma=5.0))
    assert len(merging.round_classes(a._counts)) == merging.MAX_CLASSES
    said = a.statement(delta=1e-6)
    text = said.sentence()
    assert text.startswith("100 rounds together of check-in (users = 10,000 to 11,683, check-in rate = 0.1, σ = 5) are")
    assert (
        "100 different rounds are analysed as 6, with users counted down, which is never better; the settings" in text
    )
    assert said.to_dict()["note"] in text
    most = ShuffledCheckIn(users=11_683, rate=0.1, sigma=5.0).epsilon(delta=1e-6, rounds=100)
    fewest = ShuffledCheckIn(users=10_000, rate=0.1, sigma=5.0).epsilon(delta=1e-6, rounds=100)
    assert most.lower <= said.answer.lower <= said.answer.upper <= fewest.upper


def random_mechanism(rng, adjacency):
    """A mechanism of any kind with random values of what it needs, and an identical crowd."""
    while True:
        cls = rng.choice(list(MECHANISMS.values()))
        values = {}
        for parameter in cls.parameters():
            if parameter.is_required:
                low, high = parameter.slider
                low, high = (0.7, 20.0) if parameter.name == "sigma" else (low, min(high, 1e5))
                value = math.exp(rng.uniform(math.log(low), math.log(high)))
                values[parameter.name] = int(value) if parameter.domain.kind == "whole" else value
        if cls.crowd_matters:
            values["crowd"] = "identical"
        with contextlib.suppress(ShoalError):  # a sample of more than all, or an adjacency that it does not know
            return cls(**values, adjacency=adjacency)


@pytest.mark.parametrize("seed", range(8))
def test_any_ledger_has_an_answer(seed):
    """One to eight mechanisms of any kind: the bracket is in order, and no round makes the ledger cheaper."""
    rng = random.Random(seed)
    adjacency = rng.choice(["zero-out", "zero-out", "replace"])
    entries = [(random_mechanism(rng, adjacency), int(10 ** rng.uniform(0, 2))) for _ in range(rng.randint(1, 8))]
    a = Accountant()
    for mechanism, rounds in entries:
        a.compose(mechanism, rounds=rounds)
    whole = a.epsilon(delta=1e-6)
    assert 0.0 <= whole.lower <= whole.upper < math.inf
    first, rounds = entries[0]
    assert whole.upper >= first.epsilon(delta=1e-6, rounds=rounds).lower * (1.0 - 1e-9)


def test_a_ledger_whose_rounds_differ_by_a_factor_of_a_thousand():
    a = Accountant().compose(Shuffle(users=67_329, sigma=8.231823882445827), rounds=44)
    a.compose(FixedBatch(records=1_919, batch=8, sigma=1.2774368920049548))
    a.compose(PoissonSampling(rate=0.09365436080979238, sigma=1.1278241978199937), rounds=2)
    a.compose(SubsampledShuffle(users=32, sample=1, sigma=6.166103126609775), rounds=41)
    assert 1.2 < a.epsilon(delta=2.1833077443902117e-05).lower < 1.3

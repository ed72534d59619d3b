"""The ledger: composition adds, questions are pure, states survive and corrupt ones are refused."""

import copy
import json

import numpy as np
import pytest

from shoal import Accountant, LocalGaussian, Shuffle, ShuffledCheckIn

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

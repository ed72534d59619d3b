"""Filters and odometers: what they admit, what they say, and how they are saved."""

import json
import math

import mpmath
import numpy as np
import pytest
from scipy import special

from shoal import (
    Accountant,
    BallsAndBins,
    Filter,
    FixedBatch,
    LocalGaussian,
    Odometer,
    PoissonSampling,
    Shuffle,
    ShuffledCheckIn,
    ShuffledEpochs,
    SubsampledShuffle,
)
from shoal.accountant.rules import RULES, GaussianRule, is_as_private
from shoal.bounds.dominating import REVEAL_GRID, least_widths, width_within
from shoal.errors import InvalidInput, InvalidType, Unreachable
from shoal.mechanisms import bounds

IDEAL = Shuffle(users=1_000, sigma=3.0, crowd="identical")
POISSON = PoissonSampling(rate=0.01, sigma=1.0)
ANY_KIND = [
    LocalGaussian(sigma=30.0),
    IDEAL,
    Shuffle(users=1_000, sigma=3.0),
    ShuffledCheckIn(users=2_000, rate=0.2, sigma=3.0, crowd="identical"),
    SubsampledShuffle(users=2_000, sample=500, sigma=3.0, crowd="identical"),
    BallsAndBins(bins=1_000, sigma=1.0),
    POISSON,
    FixedBatch(records=10_000, batch=100, sigma=1.0),
    ShuffledEpochs(steps=100, sigma=20.0),
]


def planned(mechanism, rounds):
    return Accountant().compose(mechanism, rounds=rounds)


@pytest.mark.parametrize("mechanism", ANY_KIND, ids=lambda m: f"{m.label}-{getattr(m, 'crowd', 'no')}")
@pytest.mark.parametrize("method", RULES)
def test_every_rule_is_above_the_tight_epsilon(mechanism, method):
    """A rule that covers ten rounds promises no less than their tight epsilon, and admits them one by one."""
    rule = RULES[method].covering(1e-6, planned(mechanism, 10), 1.0)
    tight = mechanism.epsilon(delta=1e-6, rounds=10)
    assert rule.epsilon >= tight.lower
    f = Filter.of(rule, mechanism.adjacency)
    for _ in range(10):
        f.spend(mechanism)
    if method == "plan":
        assert rule.epsilon == tight.upper
        assert not f.admits(mechanism)
    else:
        assert not f.admits(mechanism, rounds=2)


def test_the_least_width_of_a_gaussian_is_its_own():
    parts = bounds(((LocalGaussian(sigma=4.0), 9),)).upper
    assert least_widths(parts) == pytest.approx(0.75, rel=1e-8)
    assert np.all(least_widths(parts) >= 0.75)


def test_the_least_width_of_one_balls_and_bins_round_by_high_precision():
    """Two bins: the likelihood ratio is the mean of two lognormal numbers; its tests by quadrature."""
    sigma, reveal = 1.0, float(REVEAL_GRID[20])
    with mpmath.workdps(30):

        def tail(ratio, shift):
            """The probability that the mean of exp(z - 1/2) is above a ratio, the first z shifted."""

            def inner(z):
                rest = 2 * ratio - mpmath.exp(z - mpmath.mpf("0.5"))
                if rest <= 0:
                    return mpmath.npdf(z - shift)
                return mpmath.npdf(z - shift) * mpmath.ncdf(-(mpmath.log(rest) + mpmath.mpf("0.5")))

            edge = mpmath.log(2 * ratio) + mpmath.mpf("0.5")
            return mpmath.quad(inner, [-12, -4, -1, 0, edge - 1, edge, edge + 2, 14])

        widths = []
        for ratio in (1.0, 1.5, 2.0, 4.0, 8.0, 12.0):
            power, fpr = (float(tail(mpmath.mpf(ratio), shift)) for shift in (1, 0))
            if power > reveal:
                widths.append(special.ndtri((power - reveal) / (1 - reveal)) - special.ndtri(fpr / (1 - reveal)))
    least = least_widths(bounds(((BallsAndBins(bins=2, sigma=sigma), 1),)).upper)[20]
    assert max(widths) <= least <= 1.02 * max(widths)


def test_width_within_by_high_precision():
    for epsilon, delta, reveal in ((0.5, 1e-6, 3e-7), (3.0, 1e-10, 1e-12), (0.0, 0.1, 0.01)):
        width = mpmath.mpf(width_within(epsilon, delta, reveal))

        def curve(w, epsilon=epsilon, reveal=reveal):
            gaussian = mpmath.ncdf(w / 2 - epsilon / w) - mpmath.exp(epsilon) * mpmath.ncdf(-w / 2 - epsilon / w)
            return reveal + (1 - reveal) * gaussian

        with mpmath.workdps(40):
            assert curve(width) <= delta < curve(width * (1 + mpmath.mpf("1e-8")))


def test_least_widths_fall_with_noise_users_and_revealing():
    def widths(**settings):
        return least_widths(bounds(((Shuffle(crowd="identical", **settings), 1),)).upper)

    base = widths(users=1_000, sigma=3.0)
    assert np.all(np.diff(base[np.isfinite(base)]) >= -1e-12)  # less revealing, more width
    assert np.all(widths(users=2_000, sigma=3.0) <= base)
    assert np.all(widths(users=1_000, sigma=4.0) <= base)


def test_a_block_costs_no_more_than_its_rounds():
    rule = RULES["gaussian"].covering(1e-6, planned(POISSON, 1_000), 1.0)
    assert isinstance(rule, GaussianRule)
    f = Filter(epsilon=5.0, delta=1e-6, plan=planned(POISSON, 1_000), method="gaussian")
    assert f.admits(POISSON, rounds=1_000)
    single = Filter(epsilon=5.0, delta=1e-6, plan=planned(POISSON, 1_000), method="gaussian")
    count = 0
    while single.admits(POISSON) and count < 1_000:
        single.spend(POISSON)
        count += 1
    assert count < 1_000


def test_the_default_is_the_better_of_two():
    assert Filter(epsilon=0.7, delta=1e-6, plan=planned(IDEAL, 100)).method == "gaussian"
    assert Filter(epsilon=3.0, delta=1e-6, plan=planned(POISSON, 1_000)).method == "rdp"


@pytest.mark.parametrize("method", ["gaussian", "rdp"])
def test_mechanisms_mix(method):
    mixed = Accountant().compose(IDEAL, rounds=50).compose(BallsAndBins(bins=1_000, sigma=1.0), rounds=2)
    f = Filter(epsilon=1.5, delta=1e-6, plan=mixed, method=method)
    f.spend(IDEAL, rounds=20).spend(LocalGaussian(sigma=40.0)).spend(BallsAndBins(bins=500, sigma=1.2))
    assert 0.0 < f.remaining < 1.0
    assert len(f) == 22
    assert [entry.rounds for entry in f.ledger] == [20, 1, 1]
    with pytest.raises(Unreachable, match="does not admit one round of local"):
        f.spend(LocalGaussian(sigma=0.5))
    assert len(f) == 22


def test_what_takes_the_place_of_a_planned_round():
    f = Filter(epsilon=1.0, delta=1e-6, plan=IDEAL, method="plan")
    assert f.admits(IDEAL.replace(users=1_001, sigma=3.5))
    assert not f.admits(IDEAL.replace(users=999))
    assert not f.admits(IDEAL.replace(sigma=2.9))
    assert not f.admits(IDEAL.replace(crowd="any"))
    rounds = 0
    while f.admits(IDEAL):
        f.spend(IDEAL)
        rounds += 1
    assert IDEAL.epsilon(delta=1e-6, rounds=rounds).upper <= 1.0 < IDEAL.epsilon(delta=1e-6, rounds=rounds + 1).upper
    assert f.remaining == 0.0


def test_comparisons_of_parameters_follow_epsilon():
    """Where a mechanism counts as no less private than another one, its epsilon is no larger."""
    pairs = [
        (POISSON, POISSON.replace(rate=0.02)),
        (BallsAndBins(bins=100, sigma=1.0), BallsAndBins(bins=50, sigma=0.9)),
        (
            SubsampledShuffle(users=500, sample=100, sigma=2.0, crowd="identical"),
            SubsampledShuffle(users=400, sample=150, sigma=2.0, crowd="identical"),
        ),
        (
            ShuffledCheckIn(users=500, rate=0.1, sigma=2.0, crowd="identical"),
            ShuffledCheckIn(users=500, rate=0.2, sigma=2.0, crowd="identical"),
        ),
    ]
    for better, worse in pairs:
        assert is_as_private(better, worse)
        assert not is_as_private(worse, better)
        assert better.epsilon(delta=1e-6).lower <= worse.epsilon(delta=1e-6).upper
    # Among any crowd a smaller rate also takes others out of the round.
    assert not is_as_private(
        ShuffledCheckIn(users=500, rate=0.1, sigma=2.0), ShuffledCheckIn(users=500, rate=0.2, sigma=2.0)
    )
    assert not is_as_private(POISSON, IDEAL)


@pytest.mark.parametrize("method", RULES)
def test_a_filter_is_restored_as_it_was(method):
    f = Filter(epsilon=2.0, delta=1e-6, plan=IDEAL, method=method).spend(IDEAL, rounds=7)
    state = json.loads(json.dumps(f.state_dict()))
    restored = Filter.from_state_dict(state)
    assert restored.state_dict() == f.state_dict()
    assert restored.remaining == f.remaining
    assert repr(restored) == repr(f)
    assert restored.admits(IDEAL, rounds=5) == f.admits(IDEAL, rounds=5)


def test_corrupt_filters_are_refused():
    state = Filter(epsilon=2.0, delta=1e-6, plan=IDEAL).spend(IDEAL).state_dict()
    rule = state["rule"]
    for change, words in (
        ({"version": 2}, "state version must be 1"),
        ({"spent": [1e9, 0.0]}, "within the limits"),
        ({"spent": [0.0]}, "within the limits"),
        ({"rule": {**rule, "reveal": 1e-3}}, "reveal must be below delta"),
        ({"rule": {**rule, "method": "tight"}}, "method among"),
        ({"rule": {"method": "gaussian"}}, "must have reveal"),
    ):
        with pytest.raises(InvalidInput, match=words):
            Filter.from_state_dict({**state, **change})
    with pytest.raises(InvalidInput, match="must have the keys"):
        Filter.from_state_dict({k: v for k, v in state.items() if k != "spent"})
    with pytest.raises(InvalidType, match="must be a mapping"):
        Filter.from_state_dict([])
    planned_state = Filter(epsilon=1.0, delta=1e-6, plan=IDEAL, method="plan").state_dict()
    with pytest.raises(InvalidInput, match="planned rounds must be within"):
        Filter.from_state_dict({**planned_state, "epsilon": 0.5})


def test_bad_input_is_refused_in_one_voice():
    f = Filter(epsilon=1.0, delta=1e-6, plan=IDEAL)
    with pytest.raises(InvalidType, match="mechanism must be a shoal mechanism"):
        f.admits("shuffle")
    with pytest.raises(InvalidInput, match="adjacency must be 'zero-out' as in the plan"):
        f.admits(IDEAL.replace(adjacency="replace"))
    with pytest.raises(InvalidInput, match="rounds must be at least 1"):
        f.spend(IDEAL, rounds=0)
    with pytest.raises(InvalidInput, match="plan must name at least one"):
        Filter(epsilon=1.0, delta=1e-6, plan=[])
    with pytest.raises(InvalidType, match="plan must be"):
        Filter(epsilon=1.0, delta=1e-6, plan=3)
    with pytest.raises(InvalidInput, match="method must be one of"):
        Filter(epsilon=1.0, delta=1e-6, plan=IDEAL, method="tight")
    with pytest.raises(InvalidInput, match="epsilon must be positive"):
        Filter(epsilon=0.0, delta=1e-6, plan=IDEAL)
    with pytest.raises(Unreachable, match="not one round of the plan"):
        Filter(epsilon=0.1, delta=1e-6, plan=LocalGaussian(sigma=1.0), method="plan")


# Odometers


@pytest.mark.parametrize("method", RULES)
def test_an_odometer_grows_and_covers_its_plan(method):
    o = Odometer(delta=1e-6, plan=planned(IDEAL, 64), method=method)
    assert o.method == method
    assert o.epsilon == 0.0
    assert o.rungs[-1].rounds == 64
    epsilons = [rung.epsilon for rung in o.rungs]
    assert epsilons == sorted(epsilons)
    before = 0.0
    for count in range(1, 65):
        o.spend(IDEAL)
        assert o.epsilon >= before
        assert o.epsilon >= IDEAL.epsilon(delta=1e-6, rounds=count).lower
        before = o.epsilon
    assert len(o) == 64
    assert o.ledger[0].rounds == 64
    assert o.epsilon == epsilons[-1]
    # Nothing, or next to nothing, is left for more.
    with pytest.raises(Unreachable, match="does not admit 3 rounds"):
        o.spend(IDEAL, rounds=3)


def test_a_claim_costs_the_split_of_delta():
    o = Odometer(delta=1e-6, plan=planned(IDEAL, 100), stops=[10, 50], method="plan")
    for rung in o.rungs:
        split = IDEAL.epsilon(delta=1e-6 / 3 * (1 - 1e-12), rounds=rung.rounds)
        assert rung.epsilon == pytest.approx(split.upper, rel=1e-3)
    assert [rung.rounds for rung in o.rungs] == [10, 50, 100]


def test_an_odometer_is_restored_as_it_was():
    o = Odometer(delta=1e-6, plan=planned(IDEAL, 32), method="plan").spend(IDEAL, rounds=5)
    restored = Odometer.from_state_dict(json.loads(json.dumps(o.state_dict())))
    assert restored.state_dict() == o.state_dict()
    assert restored.epsilon == o.epsilon
    assert repr(restored) == repr(o)
    state = o.state_dict()
    with pytest.raises(InvalidInput, match="must add up"):
        Odometer.from_state_dict({**state, "delta": 1e-9})
    with pytest.raises(InvalidInput, match="a filter for each of its stops"):
        Odometer.from_state_dict({**state, "filters": [*state["filters"][:-1], None]})


def test_bad_stops_are_refused():
    for stops, error in (([200], InvalidInput), ([0], InvalidInput), ("12", InvalidType), (5, InvalidType)):
        with pytest.raises(error, match="stops must be"):
            Odometer(delta=1e-6, plan=planned(IDEAL, 100), stops=stops)


def test_an_odometer_holds_where_the_run_stops_because_of_its_losses():
    """Gaussian rounds, stopped as soon as the loss exceeds the claim: the mass beyond claims stays within delta."""
    sigma, delta, rounds = 3.0, 0.05, 30
    m = LocalGaussian(sigma=sigma)
    o = Odometer(delta=delta, plan=planned(m, rounds), method="plan")
    claims = []
    for _ in range(rounds):
        claims.append(o.spend(m).epsilon)
    random = np.random.default_rng(11)
    losses = np.cumsum(random.normal(0.5 / sigma**2, 1.0 / sigma, (40_000, rounds)), axis=1)
    beyond = losses > np.array(claims)
    stop = np.where(beyond.any(axis=1), beyond.argmax(axis=1), rounds - 1)
    mass = np.maximum(-np.expm1(np.array(claims)[stop] - losses[np.arange(len(stop)), stop]), 0.0)
    assert mass.mean() + 5.0 * mass.std() / math.sqrt(len(mass)) < delta


def test_a_ledger_of_different_rounds_names_its_condition():
    a = planned(IDEAL, 3)
    assert "did not depend on what was published" not in a.statement(delta=1e-6).sentence()
    a.compose(IDEAL.replace(users=900))
    assert "the settings of the rounds did not depend on what was published" in a.statement(delta=1e-6).sentence()

"""dp_accounting's interface in front of shoal: the numbers are shoal's own, and counts multiply once."""

from __future__ import annotations

import json
import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

import shoal
from shoal.adapters.dp_accounting import ShoalDpEvent, ShuffleAccountant, distribution, event

CHECK_IN = shoal.ShuffledCheckIn(users=60_000, rate=0.1, sigma=5.0, crowd="identical")
MECHANISMS = [
    shoal.LocalGaussian(sigma=3.0),
    shoal.Shuffle(users=1_000, sigma=3.0, crowd="identical"),
    shoal.SubsampledShuffle(users=1_000, sample=100, sigma=2.0),
    CHECK_IN,
    shoal.BallsAndBins(bins=50, sigma=1.0),
]


def repeat(what: dp_accounting.DpEvent, count: int) -> dp_accounting.DpEvent:
    return dp_accounting.SelfComposedDpEvent(what, count)


def together(*events: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return dp_accounting.ComposedDpEvent(list(events))


def reason(what: dp_accounting.DpEvent, accountant: ShuffleAccountant | None = None) -> str:
    """Why an accountant refuses an event; it must not have changed by refusing."""
    accountant = accountant or ShuffleAccountant()
    before = accountant.ledger, accountant.get_epsilon(1e-5)
    assert not accountant.supports(what)
    with pytest.raises(dp_accounting.UnsupportedEventError) as caught:
        accountant.compose(what)
    assert (accountant.ledger, accountant.get_epsilon(1e-5)) == before
    return str(caught.value)


# --- events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.label)
def test_event_is_a_frozen_value_that_carries_the_mechanism(mechanism):
    made = event(mechanism)
    assert isinstance(made, dp_accounting.DpEvent)
    assert made.mechanism is mechanism
    assert made == event(mechanism.replace())
    assert hash(made) == hash(event(mechanism.replace()))
    assert made != event(mechanism.replace(sigma=7.0))
    with pytest.raises(AttributeError):
        made.mechanism = mechanism


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.label)
def test_event_survives_dp_accountings_named_tuples_as_plain_data(mechanism):
    nested = together(repeat(event(mechanism), 3), dp_accounting.NoOpDpEvent())
    restored = dp_accounting.DpEvent.from_named_tuple(nested.to_named_tuple())
    assert restored == nested
    plain = event(mechanism).to_named_tuple()._asdict()
    assert json.loads(json.dumps(plain)) == plain
    assert ShoalDpEvent(json.loads(json.dumps(plain["mechanism"]))) == event(mechanism)


def test_event_refuses_what_is_not_a_mechanism():
    with pytest.raises(TypeError, match="mechanism must be a shoal mechanism, got 'shuffle'"):
        event("shuffle")
    with pytest.raises(ValueError, match="sigma must be positive, got -1"):
        ShoalDpEvent({**MECHANISMS[0].to_dict(), "sigma": -1.0})


def test_dp_accountings_own_accountants_refuse_the_event_rather_than_guess():
    assert not dp_accounting.rdp.RdpAccountant().supports(event(CHECK_IN))
    assert not PLDAccountant().supports(event(CHECK_IN))


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.label)
def test_epsilon_and_delta_are_shoals_own(mechanism):
    accountant = ShuffleAccountant().compose(event(mechanism), 12)
    assert accountant.get_epsilon(1e-5) == float(mechanism.epsilon(delta=1e-5, rounds=12))
    assert accountant.get_delta(0.5) == float(mechanism.delta(epsilon=0.5, rounds=12))


def test_5540_rounds_as_self_composition_equal_shoals_number_exactly():
    accountant = ShuffleAccountant().compose(repeat(event(CHECK_IN), 5_540))
    assert accountant.get_epsilon(1 / 60_000) == float(CHECK_IN.epsilon(delta=1 / 60_000, rounds=5_540))
    assert accountant.ledger == repeat(event(CHECK_IN), 5_540)


def test_options_reach_shoal():
    accountant = ShuffleAccountant(method="rdp", orders=[2, 4]).compose(event(CHECK_IN), 7)
    assert accountant.get_epsilon(1e-5) == float(CHECK_IN.epsilon(delta=1e-5, rounds=7, method="rdp", orders=[2, 4]))
    assert accountant.get_epsilon(1e-5) > float(CHECK_IN.epsilon(delta=1e-5, rounds=7))
    with pytest.raises(ValueError, match="method must be"):
        ShuffleAccountant(method="guess")
    with pytest.raises(TypeError, match="alphas"):
        ShuffleAccountant(alphas=[2])


def test_nested_counts_multiply():
    m = event(CHECK_IN)
    wanted = float(CHECK_IN.epsilon(delta=1e-5, rounds=30))
    for nested in (
        repeat(repeat(m, 3), 10),
        repeat(together(m, repeat(m, 2)), 10),
        together(repeat(m, 29), repeat(m, 0), m),
    ):
        assert ShuffleAccountant().compose(nested).get_epsilon(1e-5) == wanted
    assert ShuffleAccountant().compose(repeat(m, 3), 10).get_epsilon(1e-5) == wanted
    assert ShuffleAccountant().compose(m, 10).compose(m, 20).get_epsilon(1e-5) == wanted


def test_different_mechanisms_compose_as_in_shoals_accountant():
    mixed = together(*(repeat(event(m), 2) for m in MECHANISMS))
    ours = shoal.Accountant()
    for m in MECHANISMS:
        ours.compose(m, rounds=10)
    assert ShuffleAccountant().compose(mixed, 5).get_epsilon(1e-5) == float(ours.epsilon(delta=1e-5))


def test_nothing_costs_nothing():
    accountant = ShuffleAccountant()
    assert accountant.get_epsilon(1e-5) == 0.0
    accountant.compose(dp_accounting.NoOpDpEvent(), 5)
    assert (accountant.get_epsilon(1e-5), accountant.get_delta(0.1)) == (0.0, 0.0)


@pytest.mark.parametrize("open_event", [dp_accounting.NonPrivateDpEvent(), dp_accounting.GaussianDpEvent(0.0)])
def test_a_non_private_event_ends_all_privacy(open_event):
    accountant = ShuffleAccountant().compose(together(event(CHECK_IN), repeat(open_event, 2)))
    assert accountant.get_epsilon(1e-5) == math.inf
    assert accountant.get_delta(5.0) == 1.0
    unused = ShuffleAccountant().compose(together(event(CHECK_IN), repeat(open_event, 0)))
    assert unused.get_epsilon(1e-5) == float(CHECK_IN.epsilon(delta=1e-5))


def test_questions_change_nothing():
    accountant = ShuffleAccountant().compose(event(CHECK_IN), 10)
    first = accountant.get_epsilon(1e-5), accountant.get_delta(0.01), accountant.ledger
    assert (accountant.get_epsilon(1e-5), accountant.get_delta(0.01), accountant.ledger) == first


# --- neighbouring relations -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "adjacency"),
    [(NeighboringRelation.REPLACE_SPECIAL, "zero-out"), (NeighboringRelation.REPLACE_ONE, "replace")],
)
def test_relation_is_shoals_adjacency(relation, adjacency):
    accountant = ShuffleAccountant(relation)
    assert accountant.neighboring_relation is relation
    right = CHECK_IN.replace(adjacency=adjacency)
    wrong = CHECK_IN.replace(adjacency={"zero-out": "replace", "replace": "zero-out"}[adjacency])
    accountant.compose(event(right), 3)
    assert accountant.get_epsilon(1e-5) == float(right.epsilon(delta=1e-5, rounds=3))
    assert f"adjacency must be '{adjacency}'" in reason(event(wrong), accountant)


@pytest.mark.parametrize(
    ("relation", "adjacency"),
    [(NeighboringRelation.REPLACE_SPECIAL, "zero-out"), (NeighboringRelation.REPLACE_ONE, "replace")],
)
def test_gaussian_event_is_a_local_report_of_the_right_sensitivity(relation, adjacency):
    gauss = dp_accounting.GaussianDpEvent(3.0)
    ours = ShuffleAccountant(relation).compose(gauss, 2).get_epsilon(1e-5)
    assert ours == float(shoal.LocalGaussian(sigma=3.0, adjacency=adjacency).epsilon(delta=1e-5, rounds=2))
    # dp_accounting's own, which is exact up to discretisation: never below it (but for that), and near it.
    theirs = PLDAccountant(relation).compose(gauss, 2).get_epsilon(1e-5)
    assert theirs * 0.999 < ours < theirs * 1.12


SAMPLED = [
    (
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)),
        shoal.PoissonSampling(rate=0.1, sigma=2.0),
    ),
    (
        dp_accounting.SampledWithoutReplacementDpEvent(500, 50, dp_accounting.GaussianDpEvent(2.0)),
        shoal.FixedBatch(records=500, batch=50, sigma=2.0),
    ),
]


@pytest.mark.parametrize(("sampled", "mechanism"), SAMPLED, ids=["poisson", "fixed-batch"])
@pytest.mark.parametrize(
    ("relation", "adjacency"),
    [(NeighboringRelation.REPLACE_SPECIAL, "zero-out"), (NeighboringRelation.REPLACE_ONE, "replace")],
)
def test_events_of_dp_sgd_are_the_sampling_mechanisms(sampled, mechanism, relation, adjacency):
    ours = ShuffleAccountant(relation).compose(sampled, 20)
    m = mechanism.replace(adjacency=adjacency)
    assert ours.get_epsilon(1e-5) == float(m.epsilon(delta=1e-5, rounds=20))
    if isinstance(m, shoal.PoissonSampling):
        theirs = PLDAccountant(relation).compose(sampled, 20).get_epsilon(1e-5)
        assert ours.get_epsilon(1e-5) == pytest.approx(theirs, rel=2e-3)
    again = ShuffleAccountant(relation).compose(event(m), 20)
    assert again.get_epsilon(1e-5) == ours.get_epsilon(1e-5)


def test_add_or_remove_where_nobody_is_counted():
    """Poisson sampling equals zero-out; counted reports, and batches of a fixed size, are refused."""
    accountant = ShuffleAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    poisson, mechanism = SAMPLED[0]
    accountant.compose(poisson, 3).compose(event(shoal.RandomAllocation(steps=10, sigma=2.0)))
    together = shoal.Accountant().compose(mechanism, rounds=3).compose(shoal.RandomAllocation(steps=10, sigma=2.0))
    assert accountant.get_epsilon(1e-5) == float(together.epsilon(delta=1e-5))
    assert "check-in does not hide whether a user exists" in reason(event(CHECK_IN), accountant)
    assert "batches of a fixed size need REPLACE_SPECIAL" in reason(SAMPLED[1][0], accountant)
    with pytest.raises(ValueError, match=r"neighboring_relation must be REPLACE_SPECIAL .* got zero-out"):
        ShuffleAccountant("zero-out")


# --- calibration ----------------------------------------------------------------------------------


def test_calibration_of_sigma_meets_the_target_and_wastes_nothing():
    def make(sigma: float) -> dp_accounting.DpEvent:
        return repeat(event(CHECK_IN.replace(sigma=sigma)), 1_000)

    sigma = dp_accounting.calibrate_dp_mechanism(
        ShuffleAccountant, make, 0.1, 1e-5, dp_accounting.LowerEndpointAndGuess(0.5, 2.0), tol=1e-4
    )
    assert float(CHECK_IN.replace(sigma=sigma).epsilon(delta=1e-5, rounds=1_000)) <= 0.1
    assert float(CHECK_IN.replace(sigma=sigma - 2e-4).epsilon(delta=1e-5, rounds=1_000)) > 0.1


def test_calibration_of_rounds_agrees_with_shoals():
    rounds = dp_accounting.calibrate_dp_mechanism(
        ShuffleAccountant,
        lambda count: repeat(event(CHECK_IN), count),
        0.1,
        1e-5,
        dp_accounting.ExplicitBracketInterval(1, 100_000),
        discrete=True,
    )
    # dp_accounting promises to be within one of the best.
    assert rounds in {shoal.calibrate.rounds(CHECK_IN, epsilon=0.1, delta=1e-5) - d for d in (0, 1)}
    assert float(CHECK_IN.epsilon(delta=1e-5, rounds=rounds)) <= 0.1


def test_calibration_of_a_gaussian_event_works_with_the_default_bracket():
    sigma = dp_accounting.calibrate_dp_mechanism(ShuffleAccountant, dp_accounting.GaussianDpEvent, 1.0, 1e-5)
    assert float(shoal.LocalGaussian(sigma=sigma).epsilon(delta=1e-5)) <= 1.0
    assert sigma == pytest.approx(
        shoal.calibrate.sigma(lambda s: shoal.LocalGaussian(sigma=s), epsilon=1.0, delta=1e-5), rel=2e-4
    )


# --- what is refused ------------------------------------------------------------------------------


def test_a_distribution_is_from_above_and_composes():
    mechanism = shoal.Shuffle(users=1_000, sigma=1.0, crowd="identical")
    for rounds in (1, 10):
        ours = mechanism.epsilon(delta=1e-6, rounds=rounds)
        theirs = distribution(mechanism).self_compose(rounds).get_epsilon_for_delta(1e-6)
        assert ours.lower <= theirs <= ours.upper * 1.001
        assert mechanism.pld().self_compose(rounds).get_epsilon_for_delta(1e-6) == theirs


def test_unsupported_events_are_refused_with_the_reason_and_change_nothing():
    used = ShuffleAccountant().compose(event(CHECK_IN), 4)
    assert "LaplaceDpEvent is not supported by shoal" in reason(dp_accounting.LaplaceDpEvent(1.0), used)
    assert "UnsupportedDpEvent is not supported by shoal" in reason(dp_accounting.UnsupportedDpEvent(), used)
    assert "the sampled event must be a GaussianDpEvent, got ShoalDpEvent" in reason(
        dp_accounting.PoissonSampledDpEvent(0.1, event(CHECK_IN)), used
    )
    with_replacement = dp_accounting.SampledWithReplacementDpEvent(9, 3, dp_accounting.GaussianDpEvent(1.0))
    assert "SampledWithReplacementDpEvent is not supported by shoal" in reason(with_replacement, used)
    empty = dp_accounting.PoissonSampledDpEvent(0.0, dp_accounting.GaussianDpEvent(1.0))
    assert "rate must be above 0" in reason(empty, used)
    # Half of it is supported: nothing must be entered.
    assert "caused by subevent LaplaceDpEvent" in reason(
        together(event(CHECK_IN), repeat(dp_accounting.LaplaceDpEvent(1.0), 3)), used
    )


@pytest.mark.parametrize("noise", [-1.0, math.nan, math.inf, 1e-9, "1"])
def test_bad_noise_of_a_gaussian_event_is_refused(noise):
    assert "noise_multiplier must" in reason(dp_accounting.GaussianDpEvent(noise))


@pytest.mark.parametrize("count", [-1, 2.5, True, "3"])
def test_bad_nested_count_is_refused(count):
    assert "count must be a whole number" in reason(together(repeat(event(CHECK_IN), count)))


def test_bad_outer_count_is_refused():
    for count in (-1, 2.5, 0):
        accountant = ShuffleAccountant().compose(event(CHECK_IN), 10)
        with pytest.raises((ValueError, TypeError, dp_accounting.UnsupportedEventError), match=r"count|rounds"):
            accountant.compose(event(CHECK_IN), count)
        assert accountant.get_epsilon(1e-5) == float(CHECK_IN.epsilon(delta=1e-5, rounds=10))


def test_too_many_rounds_are_refused_before_anything_is_entered():
    accountant = ShuffleAccountant().compose(event(CHECK_IN), 10**12)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="rounds must be at most 1000000000000"):
        accountant.compose(together(event(MECHANISMS[0]), event(CHECK_IN)))
    assert accountant.ledger == repeat(event(CHECK_IN), 10**12)


def test_bad_questions_are_refused():
    accountant = ShuffleAccountant().compose(event(CHECK_IN)).compose(dp_accounting.NonPrivateDpEvent())
    for delta in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="target_delta must"):
            accountant.get_epsilon(delta)
    with pytest.raises(ValueError, match="target_epsilon must be at least 0"):
        accountant.get_delta(-1.0)
    with pytest.raises(TypeError, match="DpEvent"):
        accountant.compose(CHECK_IN)


def test_a_person_with_several_records():
    """Events of dp_accounting's own; a plain Gaussian is all records in every batch."""
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    step = dp_accounting.PoissonSampledDpEvent(0.0064, gaussian)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    person = ShuffleAccountant(relation, records_per_user=2).compose(step, 782)
    expected = shoal.PoissonSampling(rate=0.0064, sigma=1.0, records_per_user=2).epsilon(delta=1e-6, rounds=782)
    assert person.get_epsilon(1e-6) == expected.upper
    assert 2.53199 in expected
    shift = ShuffleAccountant(relation, records_per_user=2).compose(gaussian)
    assert shift.get_epsilon(1e-6) == pytest.approx(shoal.LocalGaussian(sigma=0.5).epsilon(delta=1e-6).upper)
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(1_000, 10, gaussian)
    batch = ShuffleAccountant(records_per_user=3).compose(drawn, 5)
    m = shoal.FixedBatch(records=1_000, batch=10, sigma=1.0, records_per_user=3)
    assert batch.get_epsilon(1e-6) == m.epsilon(delta=1e-6, rounds=5).upper
    assert ShuffleAccountant(records_per_user=3).supports(event(m))
    assert not ShuffleAccountant(records_per_user=3).supports(event(m.replace(records_per_user=2)))


def test_a_person_exported_as_a_distribution():
    m = shoal.PoissonSampling(rate=0.1, sigma=2.0, records_per_user=3)
    exported = m.pld().get_epsilon_for_delta(1e-5)
    assert m.epsilon(delta=1e-5).upper <= exported * (1 + 1e-6) <= m.epsilon(delta=1e-5).upper * 1.01

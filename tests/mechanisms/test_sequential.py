"""Shuffled epochs and sequential shuffling: published points, brackets, and what `persistent` takes away."""

import pytest

import shoal
from shoal.bounds import certify
from shoal.bounds.central.switching import Switching
from shoal.mechanisms import from_dict


@pytest.mark.parametrize(
    ("steps", "sigma", "upper"),
    [(1_000, 2.0, 0.1346), (10_000, 5.0, 0.0069), (10_000, 0.8, 5.25), (100_000, 0.6, 8.76)],
)
def test_published_points(steps, sigma, upper):
    epsilon = shoal.ShuffledEpochs(steps=steps, sigma=sigma).epsilon(delta=1e-6)
    assert epsilon.upper <= upper
    assert epsilon.upper <= 1.07 * epsilon.lower


@pytest.mark.parametrize(
    ("steps", "sigma", "epochs"), [(100, 2.0, 1), (100, 8.0, 1), (1_000, 3.0, 5), (20_000, 2.0, 20)]
)
def test_brackets_are_narrow(steps, sigma, epochs):
    epsilon = shoal.ShuffledEpochs(steps=steps, sigma=sigma, epochs=epochs).epsilon(delta=1e-6)
    assert epsilon.upper <= 1.15 * epsilon.lower


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize(("steps", "sigma", "epochs"), [(2, 1.0, 1), (7, 4.0, 3), (20, 0.5, 1), (1_000, 0.3, 2)])
def test_never_above_one_report_an_epoch_in_the_clear(steps, sigma, epochs, adjacency):
    m = shoal.ShuffledEpochs(steps=steps, sigma=sigma, epochs=epochs, adjacency=adjacency)
    clear = shoal.LocalGaussian(sigma=sigma, adjacency=adjacency)
    epsilon = m.epsilon(delta=1e-6)
    assert 0.0 < epsilon.lower <= epsilon.upper
    assert epsilon.upper <= clear.epsilon(delta=1e-6, rounds=epochs).upper * (1.0 + 1e-9)


def test_one_order_for_all_epochs_is_not_composed():
    """With one order the truth is far above what fresh orders compose to."""
    fresh = shoal.ShuffledEpochs(steps=100, sigma=2.0, epochs=10)
    same = fresh.replace(persistent=True)
    assert fresh.epsilon(delta=1e-5).upper < 1.27
    assert same.epsilon(delta=1e-5).lower > 7.5
    clear = shoal.LocalGaussian(sigma=2.0).epsilon(delta=1e-5, rounds=10)
    assert same.epsilon(delta=1e-5).upper == pytest.approx(clear.upper, rel=1e-9)
    # One epoch has one order either way.
    assert fresh.replace(epochs=1).epsilon(delta=1e-5) == same.replace(epochs=1).epsilon(delta=1e-5)
    # Orders of different rounds are drawn afresh.
    assert same.epsilon(delta=1e-5, rounds=2).upper < 2.0 * same.epsilon(delta=1e-5).upper


def test_ledgers_from_before_know_fresh_orders_only():
    data = shoal.ShuffledEpochs(steps=10, sigma=1.0).to_dict()
    del data["persistent"]
    assert from_dict(data) == shoal.ShuffledEpochs(steps=10, sigma=1.0)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_one_record_a_step_is_an_epoch(adjacency):
    users = shoal.SequentialShuffle(users=300, sigma=3.0, adjacency=adjacency)
    epoch = shoal.ShuffledEpochs(steps=300, sigma=3.0, adjacency=adjacency)
    for delta in (1e-4, 1e-8):
        one, other = users.epsilon(delta=delta), epoch.epsilon(delta=delta)
        assert one.upper == other.upper
        assert one.lower >= 0.999 * other.lower
    assert users.epsilon(delta=1e-6, rounds=4).upper == epoch.replace(epochs=4).epsilon(delta=1e-6).upper


def test_sequential_shuffling_among_an_identical_crowd_is_shuffling():
    m = shoal.SequentialShuffle(users=50, sigma=1.0, crowd="identical")
    assert m.epsilon(delta=1e-6) == shoal.Shuffle(users=50, sigma=1.0, crowd="identical").epsilon(delta=1e-6)


def test_a_crowd_that_changes_sides_is_in_the_bracket():
    """For few steps it shows more than all crowds that stay, and the lower end knows."""
    steps, sigma, epsilon = 10, 4.0, 0.3
    attack = ((Switching(scale=sigma, steps=steps, loss=epsilon), 1),)
    shown = certify.deltas(attack, [epsilon], 1.0)[0].lower
    delta = shoal.ShuffledEpochs(steps=steps, sigma=sigma).delta(epsilon=epsilon)
    assert shown * (1.0 - 1e-9) <= delta.lower <= delta.upper
    assert delta.lower > 1.3 * shoal.Shuffle(users=steps, sigma=sigma).delta(epsilon=epsilon).lower


def test_rounds_of_different_sizes_count_as_the_smallest():
    ledger = shoal.Accountant()
    for users in range(900, 1_000, 10):
        ledger.compose(shoal.SequentialShuffle(users=users, sigma=4.0))
    together = ledger.epsilon(delta=1e-6)
    assert together.upper <= shoal.SequentialShuffle(users=900, sigma=4.0).epsilon(delta=1e-6, rounds=10).upper * 1.001
    assert together.lower >= 0.97 * shoal.SequentialShuffle(users=990, sigma=4.0).epsilon(delta=1e-6, rounds=10).lower


def test_renyi_dp_and_calibration():
    m = shoal.ShuffledEpochs(steps=2_000, sigma=2.0)
    local = shoal.LocalGaussian(sigma=2.0)
    assert (m.rdp([2, 8]) < local.rdp([2, 8])).all()
    assert m.epsilon(delta=1e-6, method="rdp").upper >= m.epsilon(delta=1e-6).lower
    sigma = shoal.calibrate.sigma(lambda s: m.replace(sigma=s), epsilon=0.5, delta=1e-6, accuracy=0.1)
    assert 0.4 < m.replace(sigma=sigma).epsilon(delta=1e-6).upper <= 0.5


def test_the_sentence_says_what_was_run():
    epoch = shoal.ShuffledEpochs(steps=100, sigma=2.0).statement(delta=1e-6).sentence()
    assert "shuffled-epochs (steps an epoch = 100" in epoch
    assert "same order = no" in epoch
    assert "assuming that the server keeps every order of the records secret and adds noise as described" in epoch
    sequential = shoal.SequentialShuffle(users=100, sigma=2.0).statement(delta=1e-6).sentence()
    assert "sequential (users = 100" in sequential
    assert "react only to what is published" in sequential


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
@pytest.mark.parametrize("users", [2, 3, 100])
def test_a_sample_of_one_is_a_batch_of_one(users, adjacency):
    """One report of a user drawn at random: there is nothing to shuffle."""
    one = shoal.SubsampledShuffle(users=users, sample=1, sigma=1.0, adjacency=adjacency)
    batch = shoal.FixedBatch(records=users, batch=1, sigma=1.0, adjacency=adjacency)
    for delta, rounds in ((1e-3, 1), (1e-6, 20)):
        found = one.epsilon(delta=delta, rounds=rounds)
        assert found == batch.epsilon(delta=delta, rounds=rounds)
    assert (one.rdp([2, 8]) == batch.rdp([2, 8])).all()
    # Too little noise for the exact pair.
    little = one.replace(sigma=0.15).epsilon(delta=1e-6)
    assert little.lower <= little.upper
    assert little.upper <= shoal.LocalGaussian(sigma=0.15, adjacency=adjacency).epsilon(delta=1e-6).upper * (1 + 1e-9)

"""Own models and records, the linear model on fixed features, plans from a budget, and the game against a run."""

import dataclasses
import itertools
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from helpers import ROOT, run
from shoal import LocalGaussian, PoissonSampling, Shuffle, ShuffledCheckIn
from shoal.training import (
    Config,
    DataError,
    Records,
    audit_run,
    clipped_each,
    clipped_sum,
    collect,
    load,
    plan,
    read_config,
    read_metrics,
    read_records,
    resume,
    start,
    train,
    train_run,
)
from shoal.training.features import histograms
from shoal.training.ledger import guarantee
from shoal.training.networks import model_accuracy
from shoal.training.plan import linear_rate, noise_of_the_mean

pytestmark = pytest.mark.xdist_group("training")
RNG = np.random.default_rng(0)


def cloud(count, *, owners=None):
    """Three clouds in five dimensions."""
    labels = RNG.integers(0, 3, count)
    inputs = RNG.normal(size=(count, 5)) + 3.0 * np.eye(3, 5)[labels]
    return inputs.astype(np.float32), labels, owners


def records(users=60, each=3):
    owners = np.repeat(np.arange(users) * 7 + 5, each)
    order = RNG.permutation(len(owners))
    x, y, _ = cloud(len(owners))
    tx, ty, _ = cloud(200)
    return Records(name="clouds", train_inputs=x, train_labels=y, test_inputs=tx, test_labels=ty, owners=owners[order])


# --- features ---------------------------------------------------------------------------------


def test_features_are_of_one_record_alone_and_have_length_one():
    images = load().train_images[:40]
    found = histograms(images)
    assert found.shape == (40, 392)
    assert torch.allclose(found.norm(dim=1), torch.ones(40), atol=1e-5)
    assert torch.allclose(histograms(images[7:8])[0], found[7], atol=1e-6)  # nobody else's data
    dimmed = (images // 2 * 2).astype(np.uint8)
    assert torch.allclose(histograms(dimmed // 2), histograms(dimmed), atol=1e-4)  # brightness does not matter
    assert not histograms(np.zeros((1, 28, 28), np.uint8)).any()


def test_features_see_direction():
    edge = np.zeros((2, 28, 28), np.uint8)
    edge[0, :, 14:] = 200  # brightness rises to the right
    edge[1, :, :14] = 200  # and to the left
    cells = histograms(edge).view(2, 8, 7, 7).sum(dim=(2, 3))
    assert cells.argmax(dim=1).tolist() == [0, 4]


def test_the_linear_model_learns_under_privacy(tmp_path):
    digits = load()
    m = ShuffledCheckIn(users=5000, rate=1.0, sigma=0.5)
    rate = linear_rate(m, users=5000, rounds=30, clip=0.1)
    config = Config(
        mechanism=m,
        rounds=30,
        delta=1e-5,
        network="histograms",
        clip=0.1,
        learning_rate=rate,
        seed=1,
        evaluate_every=30,
    )
    assert train_run(start(config, digits, tmp_path), tmp_path)[-1].accuracy > 0.88


# --- several records a user -------------------------------------------------------------------


def tiny():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


class Scaled(nn.Module):
    """A layer that the fast clipping does not know."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = tiny(), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x) * self.scale


class Divided(Scaled):
    """A use of a parameter that runs for each record apart, with a copy of the parameter."""

    def forward(self, x):
        return self.inner(x) / self.scale


@pytest.mark.parametrize("make", [tiny, Scaled, Divided])
@pytest.mark.parametrize("microbatch", [1, 7, 1000])
def test_records_of_a_user_are_clipped_as_one(make, microbatch):
    model = make()
    owners = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3])
    x, y, _ = cloud(10)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    longest = clipped_sum(model, x, y, owners=owners, clip=1.0).norms.sort().values
    clip = float(longest[1:3].mean())  # two of the four are longer
    expected = []
    for user in range(4):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[owners == user]), y[owners == user]).backward()
        flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        expected.append(flat * min(1.0, clip / float(flat.norm())))
    found = clipped_sum(model, x, y, owners=owners, clip=clip, microbatch=microbatch)
    each = clipped_each(model, x, y, owners=owners, clip=clip, microbatch=microbatch)
    assert len(found.norms) == len(found.losses) == len(each) == 4
    assert (found.norms > clip).sum() == 2
    assert torch.allclose(found.total, torch.stack(expected).sum(dim=0), atol=1e-4)
    assert torch.allclose(each, torch.stack(expected), atol=1e-4)
    assert float(each.norm(dim=1).max()) <= clip


def test_owners_must_be_counted():
    x, y, _ = cloud(3)
    for bad in ([0, 2, 2], [1, 1, 2], [0, 1, 0]):
        with pytest.raises(ValueError, match="owners must be 0, 1, 2"):
            clipped_sum(tiny(), torch.from_numpy(x), torch.from_numpy(y), owners=torch.tensor(bad), clip=1.0)


def test_owners_of_any_number_and_order():
    found = records()
    assert found.users == 60
    assert (np.bincount(found.owners) == 3).all()
    assert found.first(10).users == 10
    assert len(found.first(10).train_labels) == 30
    with pytest.raises(DataError, match="users must be between 1 and 60"):
        found.first(61)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.zeros(3, int)}, "as many records as labels"),
        ({"train_labels": np.full(180, -1)}, "whole numbers from 0"),
        ({"train_inputs": np.full((180, 5), np.nan)}, "finite"),
        ({"test_inputs": np.zeros((200, 4))}, "must have one shape"),
        ({"owners": np.zeros(5, int)}, "a whole number for each training record"),
    ],
)
def test_bad_records(changes, message):
    good = {f.name: getattr(records(), f.name) for f in dataclasses.fields(Records)}
    with pytest.raises(DataError, match=message):
        Records(**{**good, **changes})


def test_collecting_torch_data_sets():
    x, y, _ = cloud(9)
    with_owners = TensorDataset(torch.from_numpy(x), torch.from_numpy(y), torch.tensor([4, 4, 1, 1, 1, 9, 9, 9, 9]))
    test = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    assert collect(with_owners, test).users == 3
    assert collect(test, test).users == 9
    with pytest.raises(DataError, match="test records of own must be"):
        collect(test, with_owners)


# --- own models -------------------------------------------------------------------------------


def own_config(**changes):
    m = ShuffledCheckIn(users=60, rate=0.5, sigma=0.05, crowd="identical")
    given = {"mechanism": m, "rounds": 40, "delta": 1e-5, "clip": 0.5, "learning_rate": 2.0, "seed": 3}
    return Config(**{**given, "evaluate_every": 20, "checkpoint_every": 5, **changes})


@pytest.mark.parametrize("path", ["fast", "faithful"])
def test_an_own_model_learns_and_continues(path, tmp_path):
    data = records()
    rounds = 40 if path == "fast" else 6
    model = tiny()
    before = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
    rows = train(model, data, config=own_config(path=path, rounds=rounds, evaluate_every=rounds), folder=tmp_path / "a")
    assert rows[-1].accuracy > (0.9 if path == "fast" else 0.5)
    assert not torch.equal(before, torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert read_config(tmp_path / "a").network == "own"
    again = train(
        tiny(), data, config=own_config(path=path, rounds=rounds, evaluate_every=rounds), folder=tmp_path / "a"
    )
    assert again == rows  # nothing is left to do
    with pytest.raises(DataError, match="another configuration"):
        train(tiny(), data, config=own_config(rounds=99), folder=tmp_path / "a")
    with pytest.raises(ValueError, match="model must be given for a run whose network is 'own'"):
        resume(data, tmp_path / "a")


class Noisy(nn.Module):
    """Dropout, and random numbers that only the whole model apart can have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.drop(x) + (0.1 * torch.rand_like(x) if self.training else 0.0))


def dropping():
    torch.manual_seed(1)
    return nn.Sequential(nn.Dropout(0.3), nn.Linear(5, 3))


@pytest.mark.parametrize("make", [dropping, Noisy])
@pytest.mark.parametrize("path", ["fast", "faithful"])
def test_dropout_is_repeated_by_the_seed_also_after_a_kill(make, path, tmp_path):
    data, config = records(users=20), own_config(rounds=9, evaluate_every=1, checkpoint_every=5, path=path)
    config = dataclasses.replace(config, mechanism=config.mechanism.replace(users=20))

    def killed(done, row):
        if done == 7:  # what a process that ends here leaves behind
            shutil.copytree(tmp_path / "a", tmp_path / "killed")
        torch.rand(3)  # others draw from PyTorch's generator too
        return True

    rows = train(make(), data, config=config, folder=tmp_path / "a", watch=killed)
    torch.manual_seed(99)
    assert train(make(), data, config=config, folder=tmp_path / "b") == rows
    before = torch.get_rng_state()
    assert train(make(), data, config=config, folder=tmp_path / "killed") == rows
    weights = [torch.load(tmp_path / name / "model.pt") for name in ("a", "b", "killed")]
    assert all(torch.equal(w[k], weights[0][k]) for w in weights for k in w)
    other = train(make(), data, config=dataclasses.replace(config, seed=4), folder=tmp_path / "c")
    assert [r.loss for r in other] != [r.loss for r in rows] or path == "faithful"
    assert len({r.accuracy for r in rows}) > 1
    assert len(before) == len(torch.get_rng_state())


def test_accuracy_is_that_without_dropout():
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(5, 3), nn.Dropout(0.9).eval())
    x, y, _ = cloud(50)
    found = {model_accuracy(model, torch.from_numpy(x), torch.from_numpy(y)) for _ in range(5)}
    assert len(found) == 1
    assert [m.training for m in model.modules()] == [True, True, True, False]


def test_what_train_takes(tmp_path):
    run = start(own_config(network="own"), records(), tmp_path / "r", model=tiny())
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got Run: continue a run by train_run"):
        train(run, records(), config=own_config(), folder=tmp_path / "x")
    with pytest.raises(ValueError, match="model must have 3 outputs"):
        train(nn.Linear(5, 2), records(), config=own_config(), folder=tmp_path / "x")
    with pytest.raises(ValueError, match=r"model must take records of shape \(5,\)"):
        train(nn.Linear(4, 3), records(), config=own_config(), folder=tmp_path / "x")
    with pytest.raises(ValueError, match="'small' is a network for images"):
        start(own_config(), records(), tmp_path / "x")
    with pytest.raises(ValueError, match=r"network must be like package\.module:function, got 'a b:c'"):
        own_config(network="a b:c")
    assert not (tmp_path / "x").exists()


def test_own_data_and_model_in_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = records()
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine/train.npz", inputs=data.train_inputs, labels=data.train_labels, owners=data.owners)
    np.savez(tmp_path / "mine/test.npz", inputs=data.test_inputs, labels=data.test_labels)
    assert read_records("mine").users == 60
    (tmp_path / "my_model.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(5, 3)\n")
    words = ["--data", "mine", "--model", "my_model:make", "--sigma", 0.05, "--rounds", 20, "--clip", 0.5]
    common = ["--rate", 0.5, "--learning-rate", 2, "--crowd", "identical", "--json", "--seed", 1]
    try:
        result = run("train", *words, *common, "--out", "a")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["accuracy"] > 0.8
        again = json.loads(run("train", "--resume", "a", "--json").stdout)
        assert again["accuracy"] == json.loads(result.stdout)["accuracy"]
        missing = run("train", *words[:2], "--model", "my_model:nothing", *words[4:], "--out", "b")
        assert missing.exit_code == 2
        assert "model must be module:function that can be imported" in missing.output
        (tmp_path / "mine/test.npz").write_bytes(b"no")
        assert run("train", *words, "--out", "c").exit_code == 2
    finally:
        sys.modules.pop("my_model", None)
        while "" in sys.path:
            sys.path.remove("")


# --- plans ------------------------------------------------------------------------------------


def test_a_plan_keeps_to_its_budget():
    m = ShuffledCheckIn(users=1000, rate=0.5, sigma=9.0, crowd="identical")
    for epsilon in (0.1, 1.0):
        found = plan(m, users=1000, epsilon=epsilon, delta=1e-5, rounds=20)
        assert found.mechanism.replace(sigma=9.0) == m
        assert 0.97 * epsilon < found.mechanism.epsilon(delta=1e-5, rounds=20).upper <= epsilon
        assert found.weighed == ()
        assert found.noise == pytest.approx(found.mechanism.sigma / np.sqrt(20 * 500))
        assert found.noise > found.floor


def test_the_rule_for_rounds_and_rate():
    m = ShuffledCheckIn(users=100, rate=0.5, sigma=1.0, crowd="identical")
    free = plan(m, users=100, epsilon=1.0, delta=1e-5, auto_rate=True)
    assert free.mechanism.rate == 1.0
    noises = [p.noise for p in free.weighed]
    for before, after in itertools.pairwise(noises[:-1]):
        assert after <= 0.85 * before
    assert free.mechanism.epsilon(delta=1e-5, rounds=free.rounds).upper <= 1.0
    by_rate = plan(m, users=100, epsilon=1.0, delta=1e-5)
    assert by_rate.rounds == 2 * free.rounds  # the same reports a user, at half the rate
    by_rounds = plan(m, users=100, epsilon=1.0, delta=1e-5, rounds=4 * free.rounds, auto_rate=True)
    assert by_rounds.mechanism.rate == 0.25
    with pytest.raises(ValueError, match="rate must not be auto for shuffle"):
        plan(Shuffle(users=10, sigma=1.0), users=10, epsilon=1.0, delta=1e-5, auto_rate=True)


def test_noise_of_the_mean():
    assert noise_of_the_mean(Shuffle(users=100, sigma=3.0), users=100, rounds=9) == pytest.approx(0.1)
    assert noise_of_the_mean(PoissonSampling(sigma=3.0, rate=0.5), users=100, rounds=9) == pytest.approx(0.02)
    assert noise_of_the_mean(LocalGaussian(sigma=3.0), users=100, rounds=9) == pytest.approx(0.1)


def test_epsilon_chooses_the_noise_in_the_shell(tmp_path):
    common = ["--users", 400, "--crowd", "identical", "--network", "histograms", "--epsilon", 2]
    dry = run("train", *common, "--rounds", "auto", "--rate", "auto", "--dry-run", "--out", tmp_path / "no")
    assert dry.exit_code == 0, dry.output
    text = " ".join(dry.output.split())
    assert "For ε ≤ 2 at δ = " in text
    assert "chosen" in text
    assert "Nothing was written." in text
    assert not (tmp_path / "no").exists()
    result = run("train", *common, "--rounds", 8, "--rate", 0.5, "--seed", 1, "--json", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    config = read_config(tmp_path / "run")
    m = config.mechanism
    assert 1.95 < m.epsilon(delta=1e-5, rounds=8).upper <= 2.0
    assert config.learning_rate == pytest.approx(linear_rate(m, users=400, rounds=8, clip=0.1), rel=1e-3)
    assert json.loads(result.stdout)["round"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "auto"], "epsilon must be given for rounds or rate to be chosen"),
        (["--preset", "mnist", "--data", "digits", "--rounds", "5"], "epsilon or sigma must be given"),
        (["--epsilon", "1", "--sigma", "2", "--rate", "auto"], "rate must be a number where sigma is given"),
        (["--epsilon", "1", "--protocol", "shuffle", "--rate", "auto"], "rate must not be auto for shuffle"),
        (["--model", "a:b", "--network", "small"], "model and network cannot be given together"),
    ],
)
def test_refusals(words, message, tmp_path):
    result = run("train", *words, "--out", tmp_path / "run")
    assert result.exit_code == 2, result.output
    assert message in result.output.replace("\n", "")
    assert not (tmp_path / "run").exists()


# --- killed ------------------------------------------------------------------------------------


def test_a_killed_run_stays_within_its_epsilon(tmp_path):
    """kill -9, unseeded, under a budget: what may have been lost is paid for, and epsilon is not exceeded."""
    folder = tmp_path / "run"
    words = ["--users", "300", "--rate", "0.5", "--crowd", "identical", "--epsilon", "3", "--rounds", "400"]
    words += ["--network", "histograms", "--checkpoint-every", "10", "--evaluate-every", "10", "--json"]
    child = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli", "train", *words, "--out", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_bytes().count(b"\n") < 3:
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    config = read_config(folder)
    continued = resume(load().first(300), folder)
    assert 0 < continued.done < 400
    assert continued.spent == continued.done + 10
    rows = train_run(continued, folder)
    assert rows[-1].spent > rows[-1].round  # the lost rounds were paid for...
    assert config.mechanism.epsilon(delta=config.delta, rounds=rows[-1].spent).upper <= 3.0  # ...out of the budget
    assert rows[-1].spent >= 400 - 1
    assert read_metrics(folder) == rows


# --- the game ----------------------------------------------------------------------------------


def test_the_game_finds_a_planted_user_and_respects_the_guarantee():
    data = records(users=12, each=1)
    m = Shuffle(users=12, sigma=0.3)
    config = own_config(mechanism=m, rounds=2, network="own")
    row = audit_run(config, data, trials=60, model=tiny(), seed=1)
    assert row.stands
    assert row.epsilon > 0.5  # with so little noise a user is seen
    assert row.any_crowd == m.epsilon(delta=1e-5, rounds=2)
    assert row.dimensions == (75,)
    assert audit_run(config, data, trials=60, model=tiny(), seed=1) == row
    false = audit_run(config, data, trials=60, model=tiny(), seed=1, claim=0.1)
    assert not false.stands
    loud = own_config(mechanism=m.replace(sigma=20.0), rounds=2, network="own")
    assert audit_run(loud, data, trials=20, model=tiny()).epsilon == 0.0
    with pytest.raises(ValueError, match="run must be of shuffle, subsampled or check-in"):
        audit_run(own_config(mechanism=LocalGaussian(sigma=1.0)), data, trials=20)


def test_auditing_a_run_in_the_shell(tmp_path):
    config = Config(
        mechanism=Shuffle(users=20, sigma=0.3),
        rounds=2,
        delta=1e-5,
        users=20,
        network="histograms",
        clip=0.1,
        learning_rate=5.0,
    )
    digits = load().first(20)
    train_run(start(config, digits, tmp_path), tmp_path)
    result = run("audit", "--run", tmp_path, "--trials", 30, "--rounds", 1, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["stands"] is True
    assert found["rounds"] == 1
    assert found["rows"][0]["any_crowd"]["upper"] >= found["rows"][0]["epsilon"]["lower"]
    broken = run("audit", "--run", tmp_path, "--trials", 60, "--claim", 0.01)
    assert broken.exit_code == 1
    assert "the claim is contradicted" in broken.output
    for words, message in (
        (["--run", tmp_path, "--sigma", "1"], "sigma cannot be given with run"),
        (["--run", tmp_path / "no"], "is not a run folder"),
        (["shuffle", "--users", "5"], "delta must be given, or run"),
        (["--delta", "1e-5"], "mechanism must be given, or run"),
    ):
        bad = run("audit", *words)
        assert bad.exit_code == 2
        assert message in bad.output.replace("\n", "")


# --- the frontier --------------------------------------------------------------------------------

RUNS = sorted((ROOT / "results" / "frontier").glob("epsilon-*/seed-*"))


def test_runs_of_the_frontier_stay_within_their_epsilon():
    """Sigma and rounds of every run's configuration, recomputed, for any crowd."""
    configs = [read_config(folder) for folder in RUNS]
    for c in configs:
        assert c.delta == 1 / 60_000
        assert (c.data, c.users, c.mechanism.users, c.mechanism.crowd) == ("mnist", 60_000, 60_000, "any")
    asked = {(c.mechanism, c.rounds, c.delta, c.epsilon) for c in configs}
    assert len(asked) == 5  # seeds of one epsilon differ in nothing else
    for m, rounds, delta, epsilon in asked:
        assert guarantee(m, delta=delta, rounds=rounds) <= epsilon


def test_the_frontier_is_what_its_runs_gave():
    """Targets, the package's summary, and the table of the page."""
    tool = runpy.run_path(str(ROOT / "tools" / "frontier.py"))
    kept = json.loads((ROOT / "src/shoal/reproduction/frontier.json").read_text())
    assert kept == json.loads(json.dumps(tool["summary"](ROOT / "results" / "frontier")))
    page = (ROOT / "docs/explanation/frontier.md").read_text()
    for epsilon, least in ((0.03, 0.88), (0.1, 0.91), (0.3, 0.91), (1.0, 0.94), (3.0, 0.94)):
        ours = [r for r in kept["shuffle"] if r["epsilon"] == epsilon]
        assert len({r["seed"] for r in ours}) == len(ours) >= 3
        found, server = ([r["accuracy"] for r in kept[k] if r["epsilon"] == epsilon] for k in ("shuffle", "opacus"))
        assert np.mean(found) >= least
        cells = [f"{epsilon:g}", f"{ours[0]['mechanism']['sigma']:.5g}", str(ours[0]["rounds"])]
        for values in (found, server):
            cells += [f"{np.mean(values):.1%}", f"{min(values):.1%} to {max(values):.1%}", str(len(values))]
        assert f"| {' | '.join(cells)} |" in page


def test_a_run_of_the_frontier_is_trained_once(tmp_path):
    """On other data: what is there is left alone, and another seed gets the same configuration but for the seed."""
    shuffled = runpy.run_path(str(ROOT / "tools" / "frontier.py"))["shuffled"]
    config = Config(
        mechanism=Shuffle(users=50, sigma=9.0),
        rounds=2,
        delta=1e-5,
        users=50,
        network="histograms",
        clip=0.1,
        learning_rate=5.0,
        seed=1,
    )
    digits = load().first(50)
    train_run(start(config, digits, tmp_path / "seed-1"), tmp_path / "seed-1")
    before = (tmp_path / "seed-1" / "metrics.jsonl").read_bytes()
    for seed in (1, 2):
        shuffled(digits, 1.0, seed, tmp_path / f"seed-{seed}")
    assert (tmp_path / "seed-1" / "metrics.jsonl").read_bytes() == before
    assert read_config(tmp_path / "seed-2") == dataclasses.replace(config, seed=2)
    assert len(read_metrics(tmp_path / "seed-2")) == 1
